"""One HTML file that holds all it shows: plotly.js, report.js and the data of a run; no request leaves it.

Names come from files of anybody. They stand in JSON whose `<`, `>` and `&` are escaped, so that no text ends
the element that holds it, and report.js writes them as text only. Numbers of points and machines are columns
of typed arrays, compressed: a hundred thousand points are a few megabytes.
"""

from __future__ import annotations

import base64
import gzip
import html
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

import numpy as np
from plotly.offline import get_plotlyjs

KINDS = {"f4": np.dtype("<f4"), "u1": np.dtype("u1"), "u2": np.dtype("<u2"), "i4": np.dtype("<i4")}
BREAKS = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


@dataclass(frozen=True, slots=True)
class Column:
    """values: numbers, or of a choice the number of each one's place in `choices` (texts to show). units:
    (factor, name), rising; group: what it is of.
    """

    name: str
    label: str
    group: str
    values: np.ndarray
    choices: Sequence[str] = ()
    units: Sequence[tuple[float, str]] = ()


@dataclass(frozen=True, slots=True)
class Page:
    """What a report shows. facts: plain JSON for the page (report.js reads its keys); details: JSON of the
    points that are explained.
    """

    title: str
    facts: Mapping[str, Any]
    columns: Sequence[Column]
    details: Mapping[str, Any] = field(default_factory=dict)


def document(page: Page) -> str:
    """The whole HTML file."""
    head, data = packed(page.columns)
    script = get_plotlyjs()
    if "</script" in script.lower():  # a release of plotly.js that cannot stand inside an element
        raise RuntimeError(
            "plotly.js of the installed plotly package holds </script; install another release"
        )
    parts = {
        "title": html.escape(page.title),
        "style": _file("report.css"),
        "plotly": script,
        "program": _file("report.js"),
        "facts": embedded({**page.facts, "title": page.title, "columns": head}),
        "columns": data,
        "details": compressed(embedded(page.details).encode()),
    }
    return re.sub(r"\[\[(\w+)\]\]", lambda place: parts[place[1]], _file("report.html"))


def embedded(value: Any) -> str:
    """JSON that may stand inside a script element: no text in it ends the element. NaN and infinities are
    null.
    """
    text = json.dumps(_plain(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return "".join(BREAKS.get(c, c) for c in text) if any(c in text for c in BREAKS) else text


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float | np.floating):
        return float(value) if np.isfinite(value) else None
    return (
        value.item()
        if isinstance(value, np.generic)
        else value.encode("utf-8", "replace").decode()
        if isinstance(value, str)
        else value
    )


def packed(columns: Sequence[Column]) -> tuple[list[dict[str, Any]], str]:
    """(what lies where, the bytes as text). Floats keep seven digits."""
    head, parts, at = [], [], 0
    for column in columns:
        kind, values = _narrow(column)
        raw = values.astype(KINDS[kind]).tobytes()
        head.append(
            {
                "name": column.name,
                "label": column.label,
                "group": column.group,
                "kind": kind,
                "at": at,
                "length": len(values),
                "choices": list(column.choices),
                "units": [list(step) for step in column.units],
            }
        )
        parts.append(raw + bytes(-len(raw) % 4))
        at += len(parts[-1])
    return head, compressed(b"".join(parts))


def _narrow(column: Column) -> tuple[str, np.ndarray]:
    if column.values.dtype.kind not in "iub":
        return "f4", np.clip(column.values, -3e38, 3e38)
    most = int(column.values.max(initial=0))
    return ("u1" if most < 256 else "u2" if most < 65536 else "i4") if int(
        column.values.min(initial=0)
    ) >= 0 else "i4", column.values


def compressed(data: bytes) -> str:
    """Bytes as base64 of gzip without a time stamp: equal bytes give equal text."""
    return base64.b64encode(gzip.compress(data, 9, mtime=0)).decode()


def _file(name: str) -> str:
    return (files("analysis") / name).read_text(encoding="utf-8")
