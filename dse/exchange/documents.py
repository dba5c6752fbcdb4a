"""Files of peers as plain data: YAML whose tags say what a node is, maybe as Jinja templates. No code runs.

A tagged mapping `!Component {name: GLB}` becomes {TAG: "Component", "name": "GLB"}. The merge keys `<<` and
`<<<` (deep) are carried out, and `!included part0.workload`, which stands for a part of an included file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from dse.exchange.notes import Notes, Unreadable
from workloads import document

TAG = "!"  # key of a tagged mapping's tag
INCLUDED = "included"  # tag of a scalar: a part of an included file
TEMPLATE = re.compile(r"\{\{|\{%")
REPEATED = re.compile(r"key (.*) stands twice")
MAX_INCLUDES = 8  # files inside each other; a document is at most 40 levels deep, so all are below the stack


@dataclass(frozen=True, slots=True)
class _Part:
    keys: str  # from the name of the file's document down, with dots between


class _TaggedLoader(document.Loader):
    """A loader to which a tag is a key of the mapping that bears it."""


def _tagged(loader: Any, suffix: str, node: yaml.Node) -> object:
    if isinstance(node, yaml.MappingNode):
        return {TAG: suffix} | loader.construct_mapping(node, deep=True)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    if suffix == INCLUDED:
        return _Part(node.value)
    return {TAG: suffix} if not node.value else loader.construct_scalar(node)


_TaggedLoader.add_multi_constructor("!", _tagged)


def read(path: Path, notes: Notes) -> Any:
    """Returns the document of a file. Raises Unreadable, one line with file, line and fix."""
    return _document(
        path, {name: _scalar(text) for name, text in notes.values.items()}, [], notes, MAX_INCLUDES
    )


def _document(
    path: Path, values: Mapping[str, Any], folders: list[Path], notes: Notes, includes_left: int
) -> Any:
    parts: dict[str, Any] = {}
    data, faults = document.parse(
        _expanded(path, values, folders, notes, includes_left, parts), _TaggedLoader
    )
    for line in faults:
        if match := REPEATED.search(line):  # as YAML readers of the peers take it
            notes.lost(str(path), match[1], "stands twice; the last one is taken")
        else:
            raise Unreadable(f"{path}: {line}")
    try:
        return _merged(data, parts)
    except (LookupError, TypeError) as fault:
        raise Unreadable(
            f"{path}: a file that it includes holds no {fault}; correct the path of keys"
        ) from None


def text_of(path: Path, encoding: str = "utf-8", fix: str = "give the path of a YAML file") -> str:
    """Returns the first MAX_BYTES of a file. Raises Unreadable, one line with what to do (`fix`)."""
    try:
        with path.open("rb") as file:
            return file.read(document.MAX_BYTES).decode(encoding)
    except (OSError, UnicodeDecodeError, ValueError) as fault:
        why = getattr(fault, "strerror", None) or "not UTF-8 text"
        raise Unreadable(f"{path}: cannot be read ({why}); {fix}") from None


def _expanded(
    path: Path,
    values: Mapping[str, Any],
    folders: list[Path],
    notes: Notes,
    includes_left: int,
    parts: dict[str, Any],
) -> str:
    """Returns the text of a file, rendered if it is a template. Documents that it includes go to `parts`."""
    text = text_of(path)
    if not TEMPLATE.search(text):
        return text
    if not includes_left:
        raise Unreadable(f"{path}: files include each other; write them out")
    try:
        from dse.exchange.templates import rendered
    except ImportError:
        raise Unreadable(f"{path}: is a Jinja template: pip install 'dse[exchange]'") from None

    def data(one: Path, values: Mapping[str, Any], folders: list[Path]) -> str:
        name = f"part{len(parts)}"
        parts[name] = _document(one, values, folders, notes, includes_left - 1)
        return f"!{INCLUDED} {name}"

    def plain(one: Path, values: Mapping[str, Any], folders: list[Path]) -> str:
        return _expanded(one, values, folders, notes, includes_left - 1, parts)

    return rendered(path, text, values, folders, data, plain)


def _scalar(text: str) -> Any:
    """Returns a value given as text: `3`, `True`, `{keep: All}`, else the text itself."""
    data, faults = document.parse(text)
    return text if faults else data


def _merged(data: Any, parts: Mapping[str, Any]) -> Any:
    """Returns a document with its included parts, `<<<` merged: mappings deep, own keys over merged ones."""
    if isinstance(data, _Part):
        found: Any = parts
        for key in data.keys.split("."):
            found = found[key]
        return found
    if isinstance(data, list):
        return [_merged(one, parts) for one in data]
    if not isinstance(data, dict):
        return data
    own = {key: _merged(value, parts) for key, value in data.items() if key != "<<<"}
    for base in _listed(data.get("<<<")):
        own = _over(_merged(base, parts), own)
    return own


def _listed(value: Any) -> list[Any]:
    return [] if value is None else value if isinstance(value, list) else [value]


def _over(base: Any, own: Any) -> Any:
    if not (isinstance(base, dict) and isinstance(own, dict)):
        return own
    return base | {key: _over(base[key], value) if key in base else value for key, value in own.items()}
