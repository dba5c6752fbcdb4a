"""What a conversion says besides its files: one line each, with file, key and what is lost or assumed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

# MAPPING.yaml of dse map --format yaml: nests by einsum, as plain data
Nests = dict[str, list[dict[str, Any]]]


class NotCarried(ValueError):
    """Something would be lost, and the user did not allow it: one line each."""


class Unreadable(ValueError):
    """A file that cannot be converted at all: one line per fault, `file: key = value why; fix`."""


@dataclass(frozen=True, slots=True)
class Note:
    """One line. is_lost: ours means something else than the file; False: the file leaves it open."""

    file: str
    key: str
    says: str
    is_lost: bool = True

    def __str__(self) -> str:
        return f"{'lost' if self.is_lost else 'assumed'}: {self.file}: {self.key}: {self.says}"


@dataclass(slots=True)
class Notes:
    """Collects the notes of one conversion, each once, in the order of the files."""

    found: dict[Note, None] = field(default_factory=dict)
    values: Mapping[str, str] = field(default_factory=dict)  # of names of templates, as the user gives them

    def lost(self, file: str, key: str, says: str) -> None:
        """Notes what ours cannot say."""
        self.found.setdefault(Note(file, key, says))

    def assumed(self, file: str, key: str, says: str) -> None:
        """Notes a value that the file does not give."""
        self.found.setdefault(Note(file, key, says, is_lost=False))

    def losses(self) -> list[str]:
        """Returns the lines of what is lost."""
        return [str(note) for note in self.found if note.is_lost]


@dataclass(frozen=True, slots=True)
class Converted:
    """Files of ours as plain data; None: the peer's files hold no such thing."""

    machine: dict[str, Any] | None = None
    workload: dict[str, Any] | None = None
    mapping: Nests | None = None
    schedule: str | None = None  # text of a schedule, where einsums may share loops


def refuse(faults: Iterable[str]) -> None:
    """Raises Unreadable with one line per fault, if there are any."""
    if lines := "\n".join(faults):
        raise Unreadable(lines)
