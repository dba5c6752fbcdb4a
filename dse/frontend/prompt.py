"""The prompt of `dse sql DIR`: statements, until a semicolon or an empty line, and commands that begin with a
dot, a line each.
"""

from __future__ import annotations

import atexit
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from analysis import db
from dse.frontend import tables
from dse.run import record
from dse.study import study as studies
from dse.study.study import Study

COMMAND = re.compile(r"\.[a-z]")  # a line of SQL may begin with .5
ROWS = 40  # rows of an answer that are shown at most, until .rows says otherwise
MAX_HISTORY = 1000  # lines that are kept between sessions
HELP = (
    (".help", "this table"),
    (".tables", "the views, with what one row of each is"),
    (".macros", "what FROM MACRO(...) answers, with an example of each"),
    (
        ".schema [VIEW]",
        "columns with type, unit and meaning; of one view, or of all; of a macro its arguments",
    ),
    (".rows N", f"rows that are shown of an answer; 0: all (at first as many as fit, at most {ROWS})"),
    (".quit", "end; so does Ctrl-D"),
    (
        "a statement",
        "SELECT, WITH, FROM, DESCRIBE or SUMMARIZE, lines up to a ; or an empty one: FROM designs LIMIT 10;",
    ),
)
ROW_IS = {  # view -> what one row is
    "designs": "a point with its machine's parameters",
    "machines": "a machine: parameters, area, status, bounds, why it has no point",
    "points": "a schedule on a machine: metrics, objectives, gaps, certificate",
    "workloads": "a workload of the study: samples and tokens of a run, parameters",
    "choices": "a distinct einsum of a point, with its mapping",
    "workload_costs": "a point's cost of one workload",
    "einsums": "a distinct einsum of a point: cost, bottleneck, mapping",
    "schedules": "how a workload is scheduled on a point",
    "segments": "what is fused or pipelined together",
    "conversions": "a copy of a tensor in another layout",
    "mappings": "a mapping: its nest",
    "counts": "actions of a mapping per level and tensor",
    "prices": "a level of a machine: energy per action",
    "traffic": "actions and energy of an einsum per level and tensor",
    "components": "area and energy of a component of a machine, per point and workload",
    "events": "starts, stops and errors of the run",
}
KEYWORDS = (
    *("SELECT", "FROM", "WHERE", "GROUP BY", "ORDER BY", "LIMIT", "JOIN", "USING", "WITH", "ALL", "DESC"),
    *("count(*)", "min(", "max(", "avg(", "sum(", "DISTINCT", "EXCLUDE", "DESCRIBE", "SUMMARIZE", "AS"),
)

Ask = Callable[[str], Any]  # a statement -> its rows (answers.Answer); raises ValueError in one line
# (answer, statement, n): prints at most n rows of the answer; 0: all; None: as many as fit, at most ROWS
Show = Callable[[Any, str, int | None], None]


def run(ask: Ask, show: Show, study: Study) -> int:
    """Answers commands and statements until .quit or the end of input. A pipe gets answers alone, faults
    stand on stderr. Returns the exit code: of a pipe, that of its last fault. study: of whose columns views
    are.
    """
    views, columns = _views(ask)
    names = {one["column_name"] for one in columns}
    if is_typed := sys.stdin.isatty():
        _edit_lines(
            [
                *views,
                *sorted(names),
                *db.RETURNS,
                *KEYWORDS,
                *(word.split()[0] for word, _ in HELP if word[0] == "."),
            ]
        )
        print(f"views: {', '.join(views)}; .help lists commands, a statement ends with ; or an empty line")
    rows: int | None = None
    code = 0
    for text in _texts("dse> " * is_typed, "...> " * is_typed):
        word, *words = text.split()
        try:
            if word == ".rows":
                rows = _rows(words)
            elif word.startswith("."):
                _command(word, words, views, columns, study)
            else:
                show(ask(text), text, rows)
        except ValueError as fault:
            print(tables.safe(str(fault)), file=None if is_typed else sys.stderr)
            code = 0 if is_typed else int(getattr(fault, "exit_code", 2))
    return code


def _texts(prompt: str, further_prompt: str) -> Iterator[str]:
    """Yields each command, a line, and each statement: lines up to one that ends in a semicolon, an empty
    line, a command or the end of input. Ends at .quit.
    """
    pending: list[str] = []
    line: str | None = ""
    while line is not None:
        line = tables.ask(further_prompt if pending else prompt)
        word = (line or "").strip()
        is_command = bool(COMMAND.match(word))
        if pending and (is_command or not word):
            yield "\n".join(pending)
            pending = []
        if word in (".quit", ".exit"):
            return
        if is_command:
            yield word
        elif word:
            pending.append((line or "").rstrip())
            if word.endswith(";"):
                yield "\n".join(pending)
                pending = []


def command(line: str, ask: Ask, study: Study) -> None:
    """Answers one command that begins with a dot, outside of the prompt. Raises ValueError."""
    word, *words = line.split()
    if word in (".rows", ".quit", ".exit"):
        raise ValueError(f"{word}: is for the prompt (dse sql DIR); here --all shows all rows")
    _command(word, words, *_views(ask), study)


def _views(ask: Ask) -> tuple[list[str], list[dict[str, Any]]]:
    """Returns the names of the views, and a row of COLUMNS per column."""
    columns = list(ask(COLUMNS))
    return sorted({one["table_name"] for one in columns}), columns


COLUMNS = (
    "SELECT table_name, column_name, data_type FROM duckdb_columns() WHERE NOT internal AND schema_name = "
    "'main' AND table_name NOT LIKE '\\_%' ESCAPE '\\' ORDER BY table_name, column_index"
)


def _rows(words: Sequence[str]) -> int:
    """Returns N of .rows N. Raises ValueError."""
    if len(words) != 1 or not words[0].isascii() or not words[0].isdigit():
        raise ValueError(".rows N: give a number of rows; 0: all")
    return int(words[0])


def _command(
    word: str, words: Sequence[str], views: Sequence[str], columns: Iterable[dict[str, Any]], study: Study
) -> None:
    """Prints what a command that begins with a dot answers. Raises ValueError."""
    if word == ".help":
        tables.print_table(("command", "does"), HELP)
    elif word == ".tables":
        tables.print_table(("view", "a row is"), [(view, ROW_IS.get(view, "")) for view in views])
    elif word == ".macros":
        rows = [(f"FROM {db.example(macro)}", row_is) for macro, (row_is, _) in db.RETURNS.items()]
        tables.print_table(("macro", "a row is"), rows)
    elif word == ".schema":
        if macros := [name for name in words if name in db.RETURNS]:
            tables.print_table(("macro", "", ""), [row for macro in macros for row in _macro_rows(macro)])
        words = [name for name in words if name not in macros]
        if macros and not words:
            return
        if unknown := [name for name in words if name not in views]:
            there = f"there are {', '.join(views)}; macros are {', '.join(db.RETURNS)}"
            raise ValueError(f"{unknown[0]}: no such view; {there}")
        meanings = [*_schema(words or views, columns, study)]
        tables.print_table(("view", "column", "type", "unit", "meaning"), meanings)
    else:
        raise ValueError(f"{word}: no such command; .help lists them")


def _macro_rows(macro: str) -> Iterator[tuple[str, str, str]]:
    """Yields (macro, what, text): arguments that it needs, those that it may have, rows and columns."""
    row_is, columns = db.RETURNS[macro]
    yield macro, "write", f"FROM {db.example(macro)}"
    for argument in db.optional(macro):
        yield macro, "may have", argument
    yield macro, "a row is", row_is
    yield macro, "columns", columns


def _schema(
    views: Sequence[str], columns: Iterable[dict[str, Any]], study: Study
) -> Iterator[tuple[str, ...]]:
    """Yields (view, column, type, unit, meaning)."""
    for one in columns:
        view, name = one["table_name"], one["column_name"]
        if view in views:
            columns_of = {"run": record.RUN} | studies.columns(study, view)
            for own in (record.VIEWS, record.TABLES):
                columns_of |= own.get(view, {})
            # the other columns of `workloads` are parameters
            found = columns_of.get(name) or record.Column("", "", f"parameter {name.partition('_')[2]}")
            yield view, name, one["data_type"].lower(), found.unit, found.meaning


def _edit_lines(words: Sequence[str]) -> None:
    """Lets Tab complete names, and keeps the lines of earlier sessions."""
    try:
        import readline
    except ImportError:  # Python may be built without it
        return

    def complete(text: str, state: int) -> str | None:
        found = [word for word in words if word.lower().startswith(text.lower())]
        return found[state] if state < len(found) else None

    readline.set_completer(complete)
    readline.set_completer_delims(" \t\n,()=<>+-*/'\"")
    readline.parse_and_bind("tab: complete")
    folder = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "dse"
    history = folder / "sql_history"
    readline.set_history_length(MAX_HISTORY)
    with suppress(OSError):
        readline.read_history_file(history)

    def keep() -> None:
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            readline.write_history_file(history)

    atexit.register(keep)
