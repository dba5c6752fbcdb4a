"""Answers as tables, for Python, terminals and notebooks. It imports nothing of the model, so that questions
start fast.
"""

from __future__ import annotations

import html
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dse.explain import units
from dse.frontend import tables

if TYPE_CHECKING:
    from dse.explain.values import Table

NO_WRAP = ' style="white-space: nowrap"'  # of a short cell in a notebook
REPR_WIDTH = 160  # columns of a printed answer where there is no terminal
MAX_HTML_ROWS = 1000  # rows of an answer that a notebook shows


class Row(dict[str, Any]):
    """A row of an answer: a dict whose columns are attributes, too (`attribute`)."""

    def __getattr__(self, name: str) -> Any:
        return attribute(self, name)

    def __missing__(self, name: str) -> Any:
        return item(self, name)


def attribute(values: Mapping[str, Any], name: str) -> Any:
    """Returns the value of a column by its name (energy_pj), or by its name on screens, without the unit, if
    no other column has that (energy). Raises AttributeError.
    """
    keys = [name] if name in values else [key for key in values if _screen_name(key) == name]
    if len(keys) == 1:
        return values[keys[0]]
    what = f"is one of {', '.join(keys)}" if keys else f"is no result here; there are {', '.join(values)}"
    raise AttributeError(f"{name} {what}")


def item(values: Mapping[str, Any], name: str) -> Any:
    """Returns what `attribute` does, for x["energy_pj"]. Raises KeyError."""
    try:
        return attribute(values, name)
    except AttributeError as fault:
        raise KeyError(str(fault)) from None


def _screen_name(key: str) -> str:
    return units.label(key).lower().replace(" ", "_")


@dataclass(frozen=True, slots=True)
class Answer:
    """Rows as an Arrow table (`table`), which prints, iterates over rows, and converts to a pandas data
    frame.
    """

    table: pa.Table

    def frame(self) -> Any:
        """Returns a pandas data frame. `.table` is the Arrow table, which Polars reads too."""
        return self.table.to_pandas()

    def unit_keys(self) -> list[str]:
        """Returns for each column the name by which its unit is looked up: of SQL results the view column
        that it was taken from ("" if it was computed), else its own name.
        """
        return [
            (field.metadata or {}).get(units.COLUMN_KEY, field.name.encode()).decode()
            for field in self.table.schema
        ]

    @property
    def note(self) -> str:
        """Why rows are missing: what a condition compares with and no row has; mostly ""."""
        return str((self.table.schema.metadata or {}).get(units.NOTE_KEY, b"").decode())

    def rows(self) -> list[tuple[Any, ...]]:
        """Returns rows as tuples, in the order of the table's columns."""
        return list(zip(*(column.to_pylist() for column in self.table.columns), strict=True))

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __getattr__(self, name: str) -> Any:
        """Raises AttributeError with what there is for names that other libraries have."""
        there = "there are .frame() (a pandas data frame), .table (Arrow), .rows() (tuples), .note"
        raise AttributeError(f"{name}: an answer has no such attribute; {there}")

    def __getitem__(self, at: int) -> Row:
        try:
            return Row(self.table.slice(range(len(self))[at], 1).to_pylist()[0])
        except IndexError:
            raise IndexError(f"row {at}: the answer has {len(self)} rows, from 0 on") from None

    def __iter__(self) -> Iterator[Row]:
        return iter([Row(row) for row in self.table.to_pylist()])

    def __repr__(self) -> str:
        width = shutil.get_terminal_size((REPR_WIDTH, 24)).columns
        shown = tables.table(self.table.column_names, self.rows(), "", (), width, self.unit_keys())
        return "\n".join(filter(None, (shown, self.note)))

    def _repr_html_(self) -> str:
        rest = f"<p>{len(self) - MAX_HTML_ROWS} more rows</p>" if len(self) > MAX_HTML_ROWS else ""
        note = f"<p>{html.escape(self.note)}</p>" if self.note else ""
        rows = self.rows()[:MAX_HTML_ROWS]
        return html_table(self.table.column_names, rows, self.unit_keys()) + rest + note


def answer(rows: Sequence[Mapping[str, Any]]) -> Answer:
    """Returns rows as an answer; the columns are the keys of all."""
    return Answer(pa.Table.from_pylist(rows))


def section(title: str, facts: Mapping[str, Any], found: Sequence[Table] = ()) -> str:
    """Returns facts and tables under a heading, as HTML."""
    parts = [f"<h4>{html.escape(title)}</h4>", html_table(("key", "value"), tables.labelled(facts))]
    for one in found:
        heads = [units.label(name) for name in one.header]
        note = f"<p>{html.escape(one.note)}</p>" if one.note else ""
        parts.append(f"<p>{html.escape(one.title)}</p>{html_table(heads, one.rows, one.header)}{note}")
    return "".join(parts)


def html_table(header: Sequence[str], rows: Sequence[Sequence[Any]], unit_keys: Sequence[str] = ()) -> str:
    """Returns an HTML table. Cells are escaped text. unit_keys: as in `tables.table`."""
    columns = [
        tables.cells(unit_key, [row[i] for row in rows]) for i, unit_key in enumerate(unit_keys or header)
    ]
    heads = "".join(f"<th>{html.escape(tables.safe(name))}</th>" for name in header)
    body = "".join(
        "<tr>"
        + "".join(
            f"<td><pre>{html.escape(cell)}</pre></td>"
            if "\n" in cell
            else f"<td{NO_WRAP * (len(cell) <= tables.MAX_NAME_WIDTH)}>{html.escape(cell)}</td>"
            for cell in line
        )
        + "</tr>"
        for line in zip(*columns, strict=True)
    )
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"
