"""Files of peers as plain data: YAML whose tags say what a node is, and the few Jinja statements of the files
that their repositories ship. No code of a file runs.

A tagged mapping `!Component {name: GLB}` becomes {TAG: "Component", "name": "GLB"}. The merge keys `<<` and
`<<<` (deep) are carried out. Of Jinja there is: include_text of a file beside, set, default values, and the
value of a name. All else is refused, for the peer's own front end carries it out.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from dse.exchange.notes import Notes, Unreadable
from workloads import document

TAG = "!"  # key of a tagged mapping's tag
INCLUDE = re.compile(r"^\s*\{\{\s*include_text\(\s*['\"]([^'\"]+)['\"]\s*\)\s*\}\}\s*$")
PATHS = re.compile(r"^\s*\{\{\s*add_to_path\([^}]*\)\s*\}\}\s*$")
SET = re.compile(r"\{%-?\s*set\s+(\w+)\s*=\s*(?:\w+\s*\|\s*default\((.*?)\)|(.*?))\s*-?%\}")
VALUE = re.compile(r"\{\{\s*(\w+)\s*(?:\|\s*default\((.*?)\)\s*)?\}\}")
LEFT = re.compile(r"\{\{|\{%")
REPEATED = re.compile(r"key (.*) stands twice")
MAX_INCLUDES = 20


class _TaggedLoader(document.Loader):
    """A loader to which a tag is a key of the mapping that bears it."""


def _tagged(loader: Any, suffix: str, node: yaml.Node) -> object:
    if isinstance(node, yaml.MappingNode):
        return {TAG: suffix} | loader.construct_mapping(node, deep=True)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    return {TAG: suffix} if not node.value else loader.construct_scalar(node)


_TaggedLoader.add_multi_constructor("!", _tagged)


def read(path: Path, notes: Notes) -> Any:
    """Returns the document of a file. Raises Unreadable, one line with file, line and fix."""
    text = _expanded(path, text_of(path), notes.values, MAX_INCLUDES)
    data, faults = document.parse(text, _TaggedLoader)
    for line in faults:
        if match := REPEATED.search(line):  # as YAML readers of the peers take it
            notes.lost(str(path), match[1], "stands twice; the last one is taken")
        else:
            raise Unreadable(f"{path}: {line}")
    return _merged(data)


def text_of(path: Path, encoding: str = "utf-8", fix: str = "give the path of a YAML file") -> str:
    """Returns the first MAX_BYTES of a file. Raises Unreadable, one line with what to do (`fix`)."""
    try:
        with path.open("rb") as file:
            return file.read(document.MAX_BYTES).decode(encoding)
    except (OSError, UnicodeDecodeError, ValueError) as fault:
        why = getattr(fault, "strerror", None) or "not UTF-8 text"
        raise Unreadable(f"{path}: cannot be read ({why}); {fix}") from None


def _expanded(path: Path, text: str, given: Mapping[str, str], includes_left: int) -> str:
    """Returns the text with its Jinja statements carried out, line by line. given: values of names."""
    values = dict(given)
    lines: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.split("#", 1)[0]
        if match := INCLUDE.match(bare):
            if not includes_left:
                raise Unreadable(f"{path}: line {number}: files include each other; write them out")
            beside = path.parent / match[1]
            lines.append(_expanded(beside, text_of(beside), values, includes_left - 1))
            continue
        if PATHS.match(bare):
            continue
        for match in SET.finditer(bare):
            values.setdefault(match[1], _literal(match[2] if match[2] is not None else match[3]))
        line = (
            VALUE.sub(lambda match: _value(match, values), SET.sub("", bare)) if LEFT.search(bare) else line
        )
        if LEFT.search(line.split("#", 1)[0]):
            raise Unreadable(
                f"{path}: line {number}: {bare.strip()[:60]} is a Jinja statement that is not carried out; "
                "say a name by --set NAME=VALUE, or render the file with its own tool and convert that"
            )
        lines.append(line)
    return "\n".join(lines)


def _value(match: re.Match[str], values: Mapping[str, str]) -> str:
    """Returns the value of a name, else its default, else the text as it stands."""
    if match[1] in values:
        return values[match[1]]
    return match[0] if match[2] is None else _literal(match[2])


def _literal(text: str) -> str:
    try:
        return str(ast.literal_eval(text))
    except (ValueError, SyntaxError):
        return text


def _merged(data: Any) -> Any:
    """Returns a document with `<<<` merged: mappings deep, own keys over merged ones."""
    if isinstance(data, list):
        return [_merged(one) for one in data]
    if not isinstance(data, dict):
        return data
    own = {key: _merged(value) for key, value in data.items() if key != "<<<"}
    for base in _listed(data.get("<<<")):
        own = _over(_merged(base), own)
    return own


def _listed(value: Any) -> list[Any]:
    return [] if value is None else value if isinstance(value, list) else [value]


def _over(base: Any, own: Any) -> Any:
    if not (isinstance(base, dict) and isinstance(own, dict)):
        return own
    return base | {key: _over(base[key], value) if key in base else value for key, value in own.items()}
