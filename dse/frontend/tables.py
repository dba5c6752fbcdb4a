"""How values look on a terminal: tables that fit its width, units for readers, text escaped. Everything that
is printed as a table goes through this module. It imports nothing of the model, so that commands start fast.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.cells import cell_len, chop_cells

from dse.explain import units

WIDE = 10_000  # width where the output is no terminal: no line is wrapped, no column left out
GAP = 2  # blanks between columns
MIN_TEXT_WIDTH = 24  # columns of text are wrapped to this width before any column is left out
MIN_LINES = 8  # lines of a table on a terminal, however low it is
LINES_BELOW = 5  # lines that are left free for what is said below a table, and the next prompt
MAX_WORD_WIDTH = 36  # words up to this length are not broken
MAX_NAME_WIDTH = 32  # names up to this length are not wrapped
SPATIAL = "bold cyan"  # style of spatial loops
# a spreadsheet takes a cell that begins with one of these for a formula
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
HEAD_PIECE = re.compile(r"[^ _]*(?:[ _]+|$)")  # where the name of a column may be folded: behind each match
NAME_CELL = re.compile(r"[\w.:=,/-]*")  # a cell without blanks is a name and is not wrapped


def terminal_width() -> int:
    """Returns the columns of the terminal; WIDE where standard output is no terminal."""
    return shutil.get_terminal_size((80, 24)).columns if sys.stdout.isatty() else WIDE


def facts_width() -> int:
    """Returns the width of names and values, a line each: that of the terminal; in a pipe $COLUMNS if it is
    set (`watch` does), else WIDE. No column is left out.
    """
    is_set = os.environ.get("COLUMNS", "").isdecimal()
    return shutil.get_terminal_size((80, 24)).columns if is_set else terminal_width()


def screen_lines(shows_all: bool = False) -> int | None:
    """Returns the lines of the terminal that a table may take; None: no limit, as in a file or a pipe."""
    if shows_all or not sys.stdout.isatty():
        return None
    return max(MIN_LINES, shutil.get_terminal_size((80, 24)).lines - LINES_BELOW)


def safe(text: str) -> str:
    """Returns a text with control characters (also those for right-to-left writing) as escapes.

    >>> safe("C[m] = '[/]'\\x1b[2J")
    "C[m] = '[/]'\\\\x1b[2J"
    """
    return (
        text
        if text.isprintable()
        else "".join(
            c if c.isprintable() or c in "\n\u00a0" else c.encode("unicode_escape").decode() for c in text
        )
    )


def table(
    header: Sequence[str],
    rows: Iterable[Sequence[Any]],
    title: str = "",
    keep: Sequence[str] = (),
    width: int = WIDE,
    unit_keys: Sequence[str] = (),
) -> str:
    """Returns a table of at most `width` columns. Numbers are never wrapped. Where it is too wide, heads are
    folded, then columns are left out from the right, and a line names them. Those of `keep` stay: what does
    not fit stands in a second table below, beside the first column, with those of the others for which it
    has room.

    unit_keys: for each column the name by which its unit is looked up; (): as in the header
    """
    return _fitted(header, rows, title, keep, width, unit_keys)[0]


def _fitted(
    header: Sequence[str],
    rows: Iterable[Sequence[Any]],
    title: str,
    keep: Sequence[str],
    width: int,
    unit_keys: Sequence[str],
) -> tuple[str, list[str]]:
    """Returns the text of `table`, and the columns that are left out."""
    listed = [list(row) for row in rows]
    columns = [
        _column(name, [row[i] for row in listed], unit_key)
        for i, (name, unit_key) in enumerate(zip(header, unit_keys or header, strict=True))
    ]
    if _least_width(columns) > width:
        columns = [_with_folded_head(c) for c in columns]
    dropped: list[_Column] = []
    while _least_width(columns) > width and (
        left_out := next((c for c in reversed(columns[1:]) if c.name not in keep), None)
    ):
        columns.remove(left_out)
        dropped.insert(0, left_out)
    blocks = _blocks(columns, width)
    while len(blocks) > 1 and dropped and _least_width([*blocks[-1], dropped[0]]) <= width:
        blocks[-1].append(dropped.pop(0))
    not_shown = (
        f"(not shown: {', '.join(c.name for c in dropped)}; a wider terminal or --format json shows "
        f"{'it' if len(dropped) == 1 else 'them'})"
    )
    text = "\n".join(
        [
            *([wrapped(title, width)] if title else []),
            "\n\n".join("\n".join(_lines(block, width, len(listed))) for block in blocks),
            *([wrapped(not_shown, width)] if dropped else []),
            "",
        ]
    )
    return text, [c.name for c in dropped]


def _least_width(columns: Sequence[_Column]) -> int:
    return sum(c.min_width + GAP for c in columns) - GAP


def _blocks(columns: Sequence[_Column], width: int) -> list[list[_Column]]:
    """Returns the columns in groups that fit, each with the first column."""
    blocks = [list(columns[:1])]
    for column in columns[1:]:
        if len(blocks[-1]) > 1 and _least_width([*blocks[-1], column]) > width:
            blocks.append(list(columns[:1]))
        blocks[-1].append(column)
    return blocks


@dataclass(frozen=True, slots=True)
class _Column:
    """Cells as text."""

    name: str
    head: list[str]  # lines of its head
    cells: list[str]
    align_right: bool  # whether cells are aligned right (numbers)
    min_width: int  # smallest width to which the column may be wrapped
    max_width: int  # width of its longest line


def cells(measure: str, values: Sequence[Any]) -> list[str]:
    """Returns a column as text. measure: the name by which its unit is looked up."""
    return units.column(measure, values) or [_text(measure, value) for value in values]


def _column(name: str, values: Sequence[Any], measure: str) -> _Column:
    """Returns the cells of a column as text, and its widths. Numbers, and short names without blanks, are not
    wrapped.
    """
    numbers = units.column(measure, values)
    cells = numbers or [_text(measure, value) for value in values]
    max_width = max(cell_len(line) for cell in (safe(name), *cells) for line in cell.split("\n"))
    is_fixed = numbers is not None or (
        max_width <= MAX_NAME_WIDTH and all(NAME_CELL.fullmatch(cell) for cell in cells)
    )
    words = (cell_len(word) for cell in cells for word in BOUND.sub(NO_BREAK, cell).split(" "))
    longest_word = max((word for word in words if word <= MAX_WORD_WIDTH), default=0)
    min_width = min(max_width, max(MIN_TEXT_WIDTH, cell_len(safe(name)), longest_word))
    head = [safe(name)]
    return _Column(head[0], head, cells, numbers is not None, max_width if is_fixed else min_width, max_width)


def _with_folded_head(column: _Column) -> _Column:
    """Returns a column of short cells whose name is folded at blanks and after underscores, to be less
    wide.
    """
    if column.min_width < column.max_width:
        return column
    pieces = HEAD_PIECE.findall(column.name)
    cell_width = max((cell_len(line) for cell in column.cells for line in cell.split("\n")), default=0)
    width = max([cell_width, *(cell_len(piece.rstrip()) for piece in pieces)])
    lines = [""]
    for piece in pieces:
        if cell_len((lines[-1] + piece).rstrip()) > width:
            lines.append("")
        lines[-1] += piece
    return replace(column, head=[line.rstrip() for line in lines], min_width=width, max_width=width)


def _text(measure: str, value: Any) -> str:
    if isinstance(value, float):
        return units.quantity(measure, value)
    if isinstance(value, list) and value and all(isinstance(one, float) for one in value):
        return f"[{', '.join(map(units.number, value))}]"
    return "" if value is None else safe(str(value)).expandtabs()


def _lines(columns: Sequence[_Column], width: int, count: int) -> Iterable[str]:
    """Yields header, rule and rows. Spare width goes to the columns of text, from the left."""
    widths = [c.min_width for c in columns]
    spare = width - sum(w + GAP for w in widths) + GAP
    for i, c in enumerate(columns):
        extra = max(0, min(c.max_width - widths[i], spare))
        widths[i], spare = widths[i] + extra, spare - extra
    height = max(len(c.head) for c in columns)
    for k in range(-height, 0):  # heads end at the rule
        yield _line([c.head[k] if k >= -len(c.head) else "" for c in columns], columns, widths)
    yield "  ".join("─" * w for w in widths)
    for i in range(count):
        folded = [_fold(c.cells[i], w) for c, w in zip(columns, widths, strict=True)]
        for k in range(max(map(len, folded))):
            yield _line([lines[k] if k < len(lines) else "" for lines in folded], columns, widths)


def _fold(cell: str, wide: int) -> list[str]:
    """Returns lines of at most `wide` columns of the terminal, broken at blanks where possible. A character
    may take two columns.
    """
    wrapped = (
        part
        for line in cell.split("\n")
        for part in ([line] if cell_len(line) <= wide else _wrap(line, wide))
    )
    return [piece for part in wrapped for piece in chop_cells(part, wide) or [""]]


def _line(cells: Sequence[str], columns: Sequence[_Column], widths: Sequence[int]) -> str:
    padded = [
        " " * (w - cell_len(text)) + text if c.align_right else text + " " * (w - cell_len(text))
        for text, c, w in zip(cells, columns, widths, strict=True)
    ]
    return (" " * GAP).join(padded).rstrip()


# blanks at which no line ends: between a number and its %, an option and its value
BOUND = re.compile(r"(?<=\d) (?=%)|(?<=--set) ")
NO_BREAK = "\u00a0"


def _wrap(text: str, width: int, indent: str = "") -> list[str]:
    """Returns lines of at most `width` columns, broken at blanks alone; none where a word is longer."""
    lines = textwrap.wrap(
        BOUND.sub(NO_BREAK, text),
        width,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(NO_BREAK, " ") for line in lines]


def wrapped(text: str, width: int) -> str:
    """Returns a text wrapped to the width, continuation lines indented."""
    if width >= WIDE:
        return safe(text)
    indent = " " * (len(text) - len(text.lstrip()) + 4) if text.startswith(" ") else ""
    return "\n".join(_wrap(safe(text), width, indent))


def print_line(text: str) -> None:
    """Prints lines, each wrapped to the terminal."""
    for line in text.split("\n"):
        print(wrapped(line, terminal_width()))


def print_table(
    header: Sequence[str],
    rows: Iterable[Sequence[Any]],
    title: str = "",
    keep: Sequence[str] = (),
    unit_keys: Sequence[str] = (),
) -> None:
    """Prints `table` at the width of the terminal, with the same arguments."""
    print(table(header, rows, title, keep, terminal_width(), unit_keys))


def facts(given: Mapping[str, Any], title: str = "", width: int = WIDE) -> str:
    """Returns names and values, a line each."""
    return table(("key", "value"), labelled(given), title, width=width)


def labelled(given: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns (name without its unit, value with its unit). Values of one name in several units share a line.

    >>> labelled({"latency_cycles": 512.0, "latency_ns": 1024.0, "reason": None})
    [('latency', '512 cycles, 1.024 us')]
    """
    found: dict[str, list[str]] = {}
    for key, value in given.items():
        if value not in (None, [], (), {}):
            found.setdefault(units.label(key), []).append(fact(key, value))
    return [(name, ", ".join(cells)) for name, cells in found.items()]


def fact(key: str, value: Any) -> str:
    """Returns the value of one key as text: durations and dates in words, floats with their unit, lists
    joined, values by key beside their names.
    """
    if key == "study" and isinstance(value, Mapping):
        return study_text(**value)
    if isinstance(value, Mapping):
        return ", ".join(f"{units.label(name)} {units.quantity(name, own)}" for name, own in value.items())
    if key == "time" and isinstance(value, float):
        return time.ctime(value)
    if (key == "seconds" or key.endswith("_s")) and isinstance(value, float):
        return units.duration(value)
    if isinstance(value, list | tuple):
        return "; ".join(map(str, value))
    return units.quantity(key, value) if isinstance(value, float) else _integer_text(key, value)


def study_text(
    name: str, workloads: Sequence[str], machine: str, axes: Mapping[str, int], machines: int
) -> str:
    """Returns what a study varies, in one line. axes: key -> number of values.

    >>> study_text("small", ["alexnet"], "eyeriss", {"array.x": 4, "clock_mhz": 500}, 2000)
    'small: alexnet on eyeriss, 2 axes (array.x 4, clock_mhz 500), 2,000 machines'
    """
    listed = ", ".join(f"{key} {count}" for key, count in axes.items())
    varied = f"{len(axes)} ax{'i' if len(axes) == 1 else 'e'}s ({listed}), " if axes else ""
    return f"{name}: {', '.join(workloads)} on {machine}, {varied}{machines:,} machine{'s' * (machines != 1)}"


def solving_texts(rows: Any, at_least_s: float = 0.0) -> list[str]:
    """Returns what workers work at, of the entry `solving` of status.json: the machine of each lease, for how
    long a worker has had it, if that is at least so long, and how far it says that it is.

    >>> solving_texts([{"worker": 2, "machine": 17, "machines": 3, "since": time.time() - 90}])
    ['machine 17 and 2 more for 90 s (worker 2)']
    """
    found = []
    for row in rows if isinstance(rows, list | tuple) else ():
        match row:
            case {"worker": int(worker), "machine": int(machine), "machines": int(count), "since": float(at)}:
                others = f" and {count - 1} more" if count > 1 else ""
                if (seconds := time.time() - at) >= at_least_s:
                    by = f" (worker {worker})" if worker else ""
                    doing = f": {row['doing']}" if row.get("doing") else ""
                    took = units.duration(max(0.0, seconds))
                    found.append(f"machine {machine}{others} for {took}{by}{doing}")
    return found


def _integer_text(key: str, value: Any) -> str:
    return (
        units.quantity(key, value)
        if isinstance(value, int) and not isinstance(value, bool) and units.steps_of(key)
        else str(value)
    )


def print_json(value: Any) -> None:
    """Prints JSON, with NaN and infinities as null."""
    print(json.dumps(plain(value), indent=1, default=str))


def plain(value: Any) -> Any:
    """Returns a value in which NaN and infinities are None, since JSON has none."""
    if isinstance(value, Mapping):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return (
        None
        if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf")))
        else value
    )


def ask(prompt: str) -> str | None:
    """Returns a line from the user; None at the end of input."""
    try:
        return input(prompt)
    except EOFError:
        return None


def print_rows(
    header: Sequence[str],
    rows: Sequence[Sequence[Any]],
    form: str,
    csv_safe: bool = False,
    keep: Sequence[str] = (),
    unit_keys: Sequence[str] = (),
    max_lines: int | None = None,
    row_count: int | None = None,
    shows_all: str = "--all or --format csv",
    width: int | None = None,
) -> list[str]:
    """Prints rows as a table, CSV, or a JSON list of objects (numbers in full). Returns the columns that a
    table had no room for. csv_safe: prefix texts that a spreadsheet would take for a formula. max_lines: a
    table is cut after the last row that fits into this many lines, and a line says how many more rows there
    are, of row_count in all (None: `rows` are all), and what shows them. width: columns of a table (None: of
    the terminal).
    """
    left_out = list[str]()
    if form == "table":
        text, shown, left_out = _cut_table(
            header, rows, keep, unit_keys, max_lines, width or terminal_width()
        )
        print(text)
        total = len(rows) if row_count is None else row_count
        more = f" of {total}; {shows_all} shows the other {total - shown}"
        print(f"{units.counted(shown, 'row')}{more if shown < total else ''}")
    elif form == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow([_field(name, csv_safe) for name in header])
        writer.writerows([_field(value, csv_safe) for value in row] for row in rows)
    else:
        print_json([dict(zip(header, row, strict=True)) for row in rows])
    return left_out


def _cut_table(
    header: Sequence[str],
    rows: Sequence[Sequence[Any]],
    keep: Sequence[str],
    unit_keys: Sequence[str],
    max_lines: int | None,
    width: int,
) -> tuple[str, int, list[str]]:
    """Returns a table of the first rows that fit into `max_lines`, how many these are, at least one, and the
    columns that are left out.
    """
    shown = len(rows) if max_lines is None else min(len(rows), max_lines)
    while True:
        text, left_out = _fitted(header, rows[:shown], "", keep, width, unit_keys)
        count = text.count("\n") + 1
        if max_lines is None or count <= max_lines or shown <= 1:
            return text, shown, left_out
        shown = max(1, min(shown - 1, shown * max_lines // count))


def _field(value: Any, csv_safe: bool) -> Any:
    """Returns a cell of a CSV file: the text unchanged in a file, without control characters on a
    terminal.
    """
    if not isinstance(value, str):
        return value
    shown = safe(value) if sys.stdout.isatty() else value
    return f"'{shown}" if csv_safe and value.startswith(FORMULA_STARTS) else shown


def print_nests(text: str) -> None:
    """Prints text with loop nests. On a terminal, spatial loops are coloured."""
    if not sys.stdout.isatty():
        print(text)
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    for line in text.split("\n"):
        console.print(Text(line, SPATIAL if line.lstrip().startswith("parfor ") else ""), soft_wrap=True)


def print_end(out: str, status: Any, solved: int, address: str | None = None) -> None:
    """Prints how a run ended and which commands can follow; for an empty front, why it is empty. address: of
    the Ray cluster that the run joined.
    """
    reason, _, why_empty = status.reason.partition("; the front is empty: ")
    state = (
        "nothing is left to do: "
        if status.state == "finished" and not solved
        else ""
        if reason.startswith(status.state)
        else f"{status.state}, "
    )
    print_line(
        f"{out}: {state}{reason}; {units.counted(solved, 'machine')} solved now, {status.done} in all "
        f"({status.infeasible} infeasible, {status.pruned} pruned, {units.counted(status.error, 'error')}), "
        f"front {status.front}"
    )
    commands = (
        [f"dse pareto {out}", f"dse show {out} best", f'dse sql {out} "FROM designs LIMIT 10"']
        if status.front
        else [f'dse sql {out} "SELECT status, reason, count(*) FROM machines GROUP BY ALL"']
    )
    if status.state in ("interrupted", "failed"):
        commands = [f"dse resume {out}{f' --address {address}' if address else ''}", *commands]
    print("next:", "\n      ".join(map(safe, commands)))
    if why_empty:
        print_line(f"the front is empty: {why_empty}")
