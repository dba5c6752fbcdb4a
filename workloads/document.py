"""YAML files as plain data, read within limits: a short text can stand for a tree that fills the memory, or
for one that is deeper than any stack.

No code runs, no tag is obeyed, and nothing of a file is shown before it is known to be of the kind that is
asked for: any path may stand in a study. Of the packages that know nothing of each other, `hw` reads its
files with it too.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import yaml

MOST_BYTES = 1 << 20
MOST_NODES = 50_000  # with every alias written out
DEEPEST = 40
Safe: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml reads ten times as fast


class _Loader(Safe):  # type: ignore[misc]
    """Keeps a list of repeated keys (plain YAML drops them silently) and reads 1e-4 as a number."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.repeated: list[str] = []

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
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


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def read(path: Path) -> tuple[object, list[str]]:
    """The document of a YAML file and the faults of its notation (no file, no YAML, too large a tree,
    repeated keys), without the file's name.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(MOST_BYTES + 1)
        text = data.decode("utf-8")
    except (OSError, UnicodeDecodeError, ValueError) as fault:
        return None, [
            f"cannot be read ({getattr(fault, 'strerror', None) or 'not UTF-8 text'}); give the path "
            "of a YAML file"
        ]
    if len(data) > MOST_BYTES:
        return None, [f"holds more than {MOST_BYTES >> 20} MiB, which no file of ours does; give another one"]
    return parse(text)


def is_kind(data: object, keys: Collection[str]) -> bool:
    """Is a document of the kind that has these keys? Only then may a fault quote it."""
    return isinstance(data, dict) and any(key in keys for key in data if isinstance(key, str))


def parse(text: str) -> tuple[object, list[str]]:
    """As `read`, of a text."""
    try:
        if line := _too_much(text):
            return None, [line]
        loader = _Loader(text)
        return loader.get_single_data(), list(dict.fromkeys(loader.repeated))
    except yaml.YAMLError as fault:
        mark = getattr(fault, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        problem = getattr(fault, "problem", None) or "characters that YAML does not allow"
        return None, [f"{where}no YAML ({_unquoted(problem)}); correct it"]
    # of tags on values that are none
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError, OverflowError):
        return None, [
            "no YAML (a date that does not exist, a number that is none, or a key that is a list); correct it"
        ]


def _unquoted(problem: str) -> str:
    """What the YAML reader complains of, without a piece of the file that it quotes; brackets and commas are
    its own.
    """
    own = re.sub(r"'[^\w'\"`]{1,9}'", "", problem)
    return problem if not re.search("[\"'`]", own) else re.split("[\"'`]", problem)[0].rstrip(" :")


def _too_much(text: str) -> str:
    """Why a text stands for a tree that is too large, or nothing. It is walked as a stream: nothing is
    built."""
    sizes: list[int] = [0]  # of the nodes that are open
    names: list[str | None] = [None]
    known: dict[str, int] = {}
    events: Any = yaml.parse(text, Loader=Safe)
    for event in events:
        where = f"line {event.start_mark.line + 1}: "
        if isinstance(event, yaml.CollectionStartEvent):
            sizes.append(1)
            names.append(event.anchor)
            if len(sizes) > DEEPEST:
                return f"{where}nested deeper than {DEEPEST}; flatten it"
            continue
        if isinstance(event, yaml.CollectionEndEvent):
            size, name = sizes.pop(), names.pop()
        elif isinstance(event, yaml.AliasEvent):
            anchor = str(event.anchor)
            if anchor in names:
                return f"{where}an alias stands inside of itself; correct it"
            size, name = known.get(anchor, 1), None
        elif isinstance(event, yaml.ScalarEvent):
            size, name = 1, event.anchor
        else:
            continue
        sizes[-1] += size
        if name is not None:
            known[name] = size
        if sizes[-1] > MOST_NODES:
            return f"{where}more than {MOST_NODES:,} values, aliases written out; give less"
    return ""
