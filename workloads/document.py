"""YAML files as plain data, read within limits: a short text can expand to a tree that fills the memory, or
that is deeper than the stack.

No code runs and no tag has an effect. Messages quote a file only once it is known to be of the expected kind,
because a study may name any path. `hw` reads its files through this module too, although the packages are
otherwise independent.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from contextlib import suppress
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Any

import yaml

MAX_BYTES = 1 << 20  # of a file
MAX_NEIGHBOURS = 1000  # files beside an absent one that are looked at
MAX_NODES = 50_000  # of a tree, with every alias expanded
MAX_DEPTH = 40  # levels of nesting
SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml reads ten times as fast


class Loader(SafeLoader):  # type: ignore[misc]
    """A loader that records repeated keys (which YAML drops without a message) and reads 1e-4 as a number."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.repeated: list[str] = []

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Returns the mapping of a node; keys that stand twice go to `repeated`."""
        seen: set[str] = set()
        for key, _ in node.value:
            shown = str(key.value)
            if shown in seen:
                self.repeated.append(
                    f"line {node.start_mark.line + 1}: key {shown[:80]} stands twice; keep one"
                )
            seen.add(shown)
        found: dict[Any, Any] = super().construct_mapping(node, deep)
        return found


Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def read(path: Path) -> tuple[object, list[str]]:
    """Returns the document of a YAML file, and the faults of its notation: no file, no YAML, too large a
    tree, repeated keys. Faults do not contain the file's name.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
        text = data.decode("utf-8")
    except (OSError, UnicodeDecodeError, ValueError) as fault:
        return None, [unreadable(path, fault, "a YAML file")]
    if len(data) > MAX_BYTES:
        return None, [f"is larger than {MAX_BYTES >> 20} MiB, as no such file of dse is; give another one"]
    return parse(text)


SUFFIXES = ".yaml", ".yml"
KEY_EXPECTED = "did not find expected key"  # what the parser says of a line that is indented otherwise


def unreadable(path: Path, fault: Exception, what: str) -> str:
    """Returns why a file, which should be `what`, cannot be read, and what may have been meant."""
    near = _file_meant(path) if isinstance(fault, FileNotFoundError) else ""
    return f"cannot be read ({getattr(fault, 'strerror', None) or 'not UTF-8 text'}); " + (
        f"did you mean {near}?" if near else f"give the path of {what}"
    )


def _file_meant(path: Path) -> str:
    """Returns the path of a file whose name is spelt as that of an absent one, or alike, beside it or in the
    folder `studies` there; "" if there is none.
    """
    found: dict[str, Path] = {}
    for folder in (path.parent / "studies", path.parent):
        with suppress(OSError):
            of_yaml = SUFFIXES if path.suffix in ("", *SUFFIXES) else (path.suffix,)
            near = islice(folder.iterdir(), MAX_NEIGHBOURS)
            found |= {one.stem: one for one in near if one.suffix in of_yaml}
    names = get_close_matches(path.stem, found, 1)
    return str(found[names[0]]) if names else ""


def is_kind(data: object, keys: Collection[str]) -> bool:
    """True if a document has one of these keys, that is, if it is of the kind of file that has them. Only
    then may a message quote it.
    """
    return isinstance(data, dict) and any(key in keys for key in data if isinstance(key, str))


def parse(text: str, loader_type: type[Loader] = Loader) -> tuple[object, list[str]]:
    """Returns the document of a YAML text, and its faults as in `read`. loader_type: what tags mean, where
    they mean something.
    """
    try:
        if line := _size_fault(text):
            return None, [line]
        loader = loader_type(text)
        return loader.get_single_data(), list(dict.fromkeys(loader.repeated))
    except yaml.YAMLError as fault:
        mark = getattr(fault, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        problem = getattr(fault, "problem", None) or "characters that YAML does not allow"
        hint = "is it indented as the line before?" if problem == KEY_EXPECTED else "correct it"
        return None, [f"{where}no YAML ({_unquoted(problem)}); {hint}"]
    # raised by tags on values that do not fit them
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError, OverflowError):
        return None, [
            "no YAML (a date that does not exist, a number tag on text, or a key that is a list); correct it"
        ]


def _unquoted(problem: str) -> str:
    """Returns PyYAML's message without text quoted from the file. Quoted punctuation, such as '[', is no such
    text: PyYAML names the tokens that it expects.
    """
    rest = re.sub(r"'[^\w'\"`]{1,9}'", "", problem)
    return problem if not re.search("[\"'`]", rest) else re.split("[\"'`]", problem)[0].rstrip(" :")


def _size_fault(text: str) -> str:
    """Returns why a text expands to too large a tree, or "". It is read as a stream; no tree is built."""
    sizes: list[int] = [0]  # nodes inside of each open collection
    open_anchors: list[str | None] = [None]
    anchor_sizes: dict[str, int] = {}
    events: Any = yaml.parse(text, Loader=SafeLoader)
    for event in events:
        where = f"line {event.start_mark.line + 1}: "
        if isinstance(event, yaml.CollectionStartEvent):
            sizes.append(1)
            open_anchors.append(event.anchor)
            if len(sizes) > MAX_DEPTH:
                return f"{where}nested deeper than {MAX_DEPTH}; flatten it"
            continue
        if isinstance(event, yaml.CollectionEndEvent):
            size, name = sizes.pop(), open_anchors.pop()
        elif isinstance(event, yaml.AliasEvent):
            anchor = str(event.anchor)
            if anchor in open_anchors:
                return f"{where}an alias stands inside of itself; correct it"
            size, name = anchor_sizes.get(anchor, 1), None
        elif isinstance(event, yaml.ScalarEvent):
            size, name = 1, event.anchor
        else:
            continue
        sizes[-1] += size
        if name is not None:
            anchor_sizes[name] = size
        if sizes[-1] > MAX_NODES:
            return f"{where}more than {MAX_NODES:,} values, aliases written out; give less"
    return ""
