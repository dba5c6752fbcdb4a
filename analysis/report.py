"""Writes a report as one HTML file that contains everything: plotly.js, report.js and the data of a run. It
makes no network requests.

Names in the data come from files of unknown authors. They are JSON in which `<`, `>` and `&` are escaped, so
that no text ends its element, and report.js inserts them as text only. The columns of numbers of points and
machines are compressed typed arrays: a hundred thousand points are a few megabytes.
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

# how report.js reads the numbers of a column -> NumPy type
KINDS = {"f4": np.dtype("<f4"), "u1": np.dtype("u1"), "u2": np.dtype("<u2"), "i4": np.dtype("<i4")}
# characters that could end a script element or a line -> their escapes in JSON
ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


@dataclass(frozen=True, slots=True)
class Column:
    """A column of points."""

    name: str
    label: str
    group: str  # heading under which the page lists it
    values: np.ndarray  # numbers; of texts, indices into `choices`
    choices: Sequence[str] = ()  # the distinct texts; (): numbers
    units: Sequence[tuple[float, str]] = ()  # (factor, name) of each unit, in ascending order


@dataclass(frozen=True, slots=True)
class Page:
    """What a report shows."""

    title: str
    facts: Mapping[str, Any]  # JSON for the page; report.js reads its keys
    columns: Sequence[Column]
    # mappings of the front's points, as JSON for the page; other points have none
    details: Mapping[str, Any] = field(default_factory=dict)


def document(page: Page) -> str:
    """Returns the HTML file."""
    head, data = pack_columns(page.columns)
    script = get_plotlyjs()
    if "</script" in script.lower():  # a release of plotly.js that cannot stand inside an element
        raise RuntimeError(
            "plotly.js of the installed plotly package holds </script; install another release"
        )
    is_live = bool(page.facts.get("live"))  # it asks its server for the run's status, and nothing else
    parts = {
        "title": html.escape(page.title),
        "connect": "connect-src 'self'; " if is_live else "",
        "live": f"<script>{_file('report_live.js')}</script>\n" if is_live else "",
        "style": _file("report.css"),
        "plotly": script,
        "program": _file("report.js"),
        "facts": script_json({**page.facts, "title": page.title, "columns": head}),
        "columns": data,
        "details": gzip_base64(script_json(page.details).encode()),
    }
    return re.sub(r"\[\[(\w+)\]\]", lambda place: parts[place[1]], _file("report.html"))


def script_json(value: Any) -> str:
    """Returns JSON that is safe inside a script element: no text in it ends the element. NaN and infinities
    become null.
    """
    text = json.dumps(_plain(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return "".join(ESCAPES.get(c, c) for c in text) if any(c in text for c in ESCAPES) else text


def _plain(value: Any) -> Any:
    """Returns a value of JSON's types. NaN and infinities are None; broken characters are replaced."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float | np.floating):
        return float(value) if np.isfinite(value) else None
    return (
        value.item()
        if isinstance(value, np.generic)
        else value.encode("utf-8", "replace").decode()
        if isinstance(value, str)
        else value
    )


def pack_columns(columns: Sequence[Column]) -> tuple[list[dict[str, Any]], str]:
    """Returns (a description of each column with its offset, the bytes of all columns as text). Floats are
    stored in 32 bits.
    """
    head, parts, offset = [], [], 0
    for column in columns:
        kind, values = _narrow(column)
        raw = values.astype(KINDS[kind]).tobytes()
        head.append(
            {
                "name": column.name,
                "label": column.label,
                "group": column.group,
                "kind": kind,
                "at": offset,
                "length": len(values),
                "choices": list(column.choices),
                "units": [list(step) for step in column.units],
            }
        )
        parts.append(raw + bytes(-len(raw) % 4))
        offset += len(parts[-1])
    return head, gzip_base64(b"".join(parts))


def _narrow(column: Column) -> tuple[str, np.ndarray]:
    """Returns (the narrowest of KINDS that holds a column's numbers, the numbers)."""
    if column.values.dtype.kind not in "iub":
        return "f4", np.clip(column.values, -3e38, 3e38)
    largest = int(column.values.max(initial=0))
    return ("u1" if largest < 256 else "u2" if largest < 65536 else "i4") if int(
        column.values.min(initial=0)
    ) >= 0 else "i4", column.values


def gzip_base64(data: bytes) -> str:
    """Returns bytes as gzip in base64, without a time stamp: equal bytes give equal text."""
    return base64.b64encode(gzip.compress(data, 9, mtime=0)).decode()


def _file(name: str) -> str:
    return (files("analysis") / name).read_text(encoding="utf-8")
