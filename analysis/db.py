"""SQL over a run folder: one view per table of the run, Pareto fronts, and a check that statements only read.

Views follow a run in progress: each query looks at the manifest again, and reads only parts that are what was
committed (dse/run/folder.py). The check works on the syntax tree: a statement may name views and harmless
table functions only. Even past it, nothing can be reached but the folder's parts and a temporary folder.
The file is long so that all that a statement may reach is seen in one place.
"""

from __future__ import annotations

import itertools
import json
import logging
import re
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from difflib import get_close_matches
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import duckdb
import moocore
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from analysis import advice, computed, origin
from analysis.computed import Computed, literal, nodes
from dse.explain.units import COLUMN_KEY, NOTE_KEY, bare
from dse.run import folder as folders
from dse.run.folder import NONDOMINATED, Damaged
from dse.run.temporary import private_folder
from dse.study import pareto
from workloads.meant import meant
from workloads.renamed import COLUMNS

Values = NDArray[np.float64]

TRIES = 5  # attempts: compaction may replace a part between reading the manifest and reading the part
TIMEOUT_S = 60.0
MAX_BYTES = 1 << 30  # largest answer, which is collected in memory
# texts of what DuckDB raises for Ctrl-C: a RuntimeError in a statement, an error of its own in other calls
INTERRUPTED = ("Query interrupted", "<EMPTY MESSAGE>")
SQL_TYPES = {
    "string": "VARCHAR",
    "int64": "BIGINT",
    "int32": "INTEGER",
    "double": "DOUBLE",
    "bool": "BOOLEAN",
    "timestamp[us, tz=UTC]": "TIMESTAMP WITH TIME ZONE",
}
# view of feasible points: all that may be on the front of the study's objectives
FRONT_ROWS = "internal.front_rows"
# what a statement may raise that is one line for the user
STATEMENT_ERRORS = (duckdb.Error, pa.ArrowException, OSError, RecursionError, UnicodeError)
MAX_NAMES, NEAREST = 12, 5  # up to so many valid names are all listed by a message; else so many near ones
SLOW_S = 5.0  # seconds after which a statement over more than it may need is said to be one
GIVE_UP_S = 2.0  # seconds of interrupts, after which a function that ignores them is left running
DEDUPLICATED = ("mappings", "counts")  # keyed by content: a row may be in several parts, and is shown once
# types of statements that are accepted; EXPLAIN only of these
KINDS = (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN)
NUMBER = re.compile(r"(U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?|FLOAT|DOUBLE|DECIMAL)\b")
EXPLAIN = re.compile(r"^\s*explain\s+(analyze\s+)?(\([^)]*\)\s*)?", re.I)
# arguments of the macros of sql/macros.sql, each with an example
ARGUMENTS = {
    "tbl": "'designs'",
    "objectives": "['energy_pj', 'latency_ns']",
    "epsilon": "0.05",
    "metric": "'energy_pj'",
    "parameter": "'array_x'",
    "first": "energy_pj",
    "second": "latency_ns",
    "reference": "[1e12, 1e9]",
    "grp": "['dram_kind']",
    "given": "['dram_kind']",
    "factors": "{dram_pj: 0.5}",
    "spreads": "{dram_pj: 0.2}",
    "samples": "100",
    "seed": "0",
    "machines": "[17, 18]",
}
# columns of integers that measure nothing
NO_OBJECTIVES = ("machine", "schedule", "model_version", "solver_version")
# columns that stand behind axes and totals in `designs`
LAST = (
    *("certificate", "status", "dominated_by", "bound_energy_pj", "bound_latency_ns"),
    *("limit_level", "need_bytes", "have_bytes", "einsum", "workload", "reason"),
    *("key", "generation", "source", "model_version", "solver_version"),
)
OPTIONAL = ("reference", "grp", "given", "seed", "machines")
# macros of sql/macros.sql, which read the table named by their first argument
SIGNATURES = {
    "pareto": ("tbl", "objectives", "grp"),
    "pareto2": ("tbl", "first", "second"),
    "epsilon_front": ("tbl", "objectives", "epsilon", "grp"),
    "knee": ("tbl", "objectives", "grp"),
    "hypervolume": ("tbl", "objectives", "reference", "grp"),
    "sensitivity": ("tbl", "metric", "parameter", "given"),
}
# macros of sql/computed.sql
REPRICED = {"what_if": ("factors", "machines"), "robust": ("spreads", "samples", "seed", "machines")}
# macro -> (its rows, its columns)
RETURNS = {
    "pareto": ("rows of tbl that no other row dominates", "those of tbl"),
    "pareto2": ("the same for two expressions", "those of tbl"),
    "epsilon_front": ("few rows of the front, within epsilon of all others", "those of tbl"),
    "knee": ("the row of the front of least sum of scaled objectives", "those of tbl"),
    "hypervolume": ("a group", "those of grp, hypervolume, reference"),
    "sensitivity": ("a value of the parameter", "value, rows, paired, times_the_mean"),
    "what_if": (
        "a point at prices times these factors",
        "costs, remapped, optimality_gap, those of machines",
    ),
    "robust": ("a point, prices varied in samples", "share_on_front, those of designs"),
}
ALONE = re.compile(rf"\s*from\s+({'|'.join(SIGNATURES)})\s*\(", re.I)
TABLE_FUNCTIONS = (
    "range",
    "generate_series",
    "unnest",
    "repeat",
    "repeat_row",
    "json_each",
    "json_tree",
    "duckdb_views",
    "duckdb_columns",
    *SIGNATURES,
    *REPRICED,
)
SCHEMAS = ("", "main", "information_schema")
# SHOW TABLES and the like; "": DESCRIBE, whose query is checked by itself
SHOW_NAMES = {"", "tables", "databases", "schemas"}
NAME = re.compile(r"\w+")
# a name that is no column, and those that DuckDB offers for it
NO_COLUMN = re.compile(r'Referenced column "([^"]*)" not found in FROM clause!(?: Candidate bindings: (.*))?')
NO_COLUMN_OF = re.compile(r'does not have a column named "([^"]*)"')
AMBIGUOUS = re.compile(r'Ambiguous reference to column name "([^"]*)"')
NO_NUMBER = re.compile(r"Could not convert string '([^']*)' to ")
RAISED = re.compile(r"while executing the UDF: ValueError: ([^\n]*)")


NO_VOLUME = (
    "a hypervolume of 0: no row is better than the reference in every objective; it is a value of each "
    "objective in its own unit (pJ, ns, mm2), worse than the rows that are to count"
)

LONE_ROWS = (
    "{:,} of {:,} rows have a partner, a row that differs in the parameter alone: only these say what it "
    "does, and count; dse plot RUN sensitivity fits a model of all parameters to all rows"
)


class QueryError(ValueError):
    """A fault of a folder or a statement, in one line."""


class Stopped(QueryError):
    """A statement took too long. DuckDB may still be busy with it, so its connection cannot be used again."""

    exit_code = 1


def connect(
    folder: str | Path,
    schemas: Mapping[str, pa.Schema] | None = None,
    functions: Computed | None = None,
    *,
    skip_damaged: bool = False,
    threads: int = 2,
    memory: str = "4GB",
    axes: Sequence[str] = (),
) -> duckdb.DuckDBPyConnection:
    """Returns a connection with a view per table and the macros of sql/macros.sql, which can read nothing but
    the folder's parts.

    schemas: columns of each table: a table without a part becomes an empty view, and a column that older
        parts lack is NULL
    functions: what computes the values that are not stored; None: such values are missing
    skip_damaged: leave groups with a damaged part out, instead of raising Damaged
    axes: columns of the study's axes, for the macro sensitivity

    Raises QueryError if the folder has no run.
    """
    root = Path(folder).resolve()
    if not (root / "manifest.json").exists() and not (root / "study.yaml").exists():
        raise QueryError(f"{folder}: no manifest.json; give the folder of a run")
    held = ExitStack()
    spill = held.enter_context(private_folder("dse-sql-")) / "spill"
    con = duckdb.connect(config={"threads": threads, "memory_limit": memory, "temp_directory": str(spill)})
    weakref.finalize(con, held.close)
    _add_fronts(con, axes)
    con.execute(
        "CREATE SCHEMA internal; CREATE TABLE internal.run (folder VARCHAR, generation BIGINT, "
        "skip_damaged BOOL)"
    )
    con.execute(f"INSERT INTO internal.run VALUES ({literal(str(root))}, -1, {skip_damaged})")
    for table, schema in (schemas or {}).items():
        columns = ", ".join(f"{_quote(field.name)} {_sql_type(field.type)}" for field in schema)
        con.execute(f"CREATE TABLE internal.{_quote(table)} ({columns})")
    if functions:
        computed.register(con, functions)
    _lock(con, [str(root / "parts")])
    refresh(con)
    return con


def _sql_type(kind: pa.DataType) -> str:
    """Returns DuckDB's name of an Arrow type. Registering an Arrow table instead would import pandas."""
    is_list = pa.types.is_list(kind)
    return SQL_TYPES[str(kind.value_type if is_list else kind)] + "[]" * is_list


def _add_fronts(con: duckdb.DuckDBPyConnection, axes: Sequence[str]) -> None:
    points = "DOUBLE[][]"
    con.create_function("pareto_front", partial(_picked, non_dominated), [points], points, type="arrow")
    con.create_function("knee_rows", partial(_picked, knee), [points], points, type="arrow")
    con.create_function("epsilon_rows", _epsilon_rows, [points, "DOUBLE"], points, type="arrow")
    con.create_function(
        "hypervolume_of", _hypervolumes, [points, "DOUBLE[]", points], "DOUBLE[]", type="arrow"
    )
    con.execute(f"CREATE MACRO study_axes() AS [{', '.join(map(literal, axes))}]::VARCHAR[]")
    con.execute(_sql("macros"))


def _lock(con: duckdb.DuckDBPyConnection, folders: Sequence[str]) -> None:
    """Lets statements read nothing but these folders."""
    for setting in (
        "autoinstall_known_extensions",
        "autoload_known_extensions",
        "python_enable_replacements",
        "enable_progress_bar",
    ):
        con.execute(f"SET {setting} = false")
    con.execute(f"SET allowed_directories = [{', '.join(map(literal, folders))}]")
    con.execute("SET enable_external_access = false")
    con.execute("SET lock_configuration = true")


def query_tables(
    tables: Mapping[str, pa.Table],
    text: str,
    seconds: float = TIMEOUT_S,
    memory: str = "4GB",
    axes: Sequence[str] = (),
    functions: Sequence[computed.Function] = (),
) -> pa.Table:
    """Returns the result of a statement over given tables, as `query` does over those of a run. axes: as of
    `connect`; functions: that need no run.
    """
    with duckdb.connect(config={"threads": 2, "memory_limit": memory}) as con, as_query_error(con, text):
        _add_fronts(con, axes)
        computed.add_functions(con, functions)
        for name, rows in tables.items():
            con.register("given", rows)
            con.execute(f"CREATE TABLE {_quote(name)} AS FROM given")
            con.unregister("given")
        _lock(con, [])
        _check_statement(con, text)
        return _with_origins(con, text, _answer(con, text, seconds))


def refresh(con: duckdb.DuckDBPyConnection) -> None:
    """Points the views at the manifest's parts if the manifest changed. Raises Damaged, with one line per
    part.
    """
    path, last_generation, skip_damaged = con.execute("FROM internal.run").fetchall()[0]
    root = Path(path)
    for attempt in range(TRIES):
        manifest, damaged = folders.verified_parts(root)
        if damaged and not skip_damaged:
            advice = folders.advice(root)
            raise Damaged(
                "\n".join(
                    f"{line}; {advice}, --skip-damaged leaves its machines out"
                    for lines in damaged.values()
                    for line in lines
                )
            )
        if manifest.generation == last_generation and not damaged:
            return
        listed: dict[str, list[str]] = {}
        for group in manifest.groups:
            for part in group.parts if group.name not in damaged else ():
                listed.setdefault(part.table, []).append(folders.part_path(part.table, group.name))
        if not all(group.has_nondominated() for group in manifest.groups if group.name not in damaged):
            listed.pop(NONDOMINATED, None)
        try:
            _views(con, root, listed)
            _check_unique_rows(con, root)
        except duckdb.Error as error:
            if attempt == TRIES - 1 or not isinstance(error, duckdb.IOException):
                raise QueryError(f"{root}: {_line(error)}") from None
        else:
            con.execute(f"UPDATE internal.run SET generation = {manifest.generation}")
            return


def _check_unique_rows(con: duckdb.DuckDBPyConnection, root: Path) -> None:
    """Raises Damaged if a machine, or a schedule of one, has two rows: sums would count it twice."""
    for table, by in (("machines", ("machine",)), ("stored_points", ("machine", "schedule"))):
        if con.execute(
            f"SELECT 1 FROM duckdb_views() WHERE view_name = {literal(table)} AND NOT internal"
        ).fetchall():
            schema = "internal" if table.startswith("stored") else "main"
            # a key that is NULL is none of dse's; to_numpy would import pandas
            columns_sql = ", ".join(f"coalesce({key}, -1) AS {key}" for key in by)
            found = con.sql(f"SELECT {columns_sql} FROM {schema}.{table}").to_arrow_table()
            columns = (np.from_dlpack(found[name].combine_chunks()) for name in by)
            twice = folders.repeated_machines(*columns)
            if len(twice):
                shown = table.removeprefix("stored_")
                raise Damaged(
                    f"{root}: {shown} of machine {twice[0]} stand twice, perhaps from several runs; "
                    f"{folders.advice(root)}"
                )


def views(con: duckdb.DuckDBPyConnection) -> list[str]:
    """Returns the views of a run that a user asks."""
    found = con.execute(
        "SELECT view_name FROM duckdb_views() WHERE NOT internal AND schema_name = 'main' AND NOT "
        "starts_with(view_name, '_')"
    )
    return [name for (name,) in found.fetchall()]


def query(con: duckdb.DuckDBPyConnection, text: str, seconds: float = TIMEOUT_S) -> pa.Table:
    """Returns the result of one SELECT, WITH, FROM, VALUES, EXPLAIN, DESCRIBE or SUMMARIZE statement. Ctrl-C
    interrupts it.

    Metadata of a result column names the column of a view that it shows (analysis/origin.py). Raises
    QueryError, in one line, for other statements and those that DuckDB refuses; Stopped for one that takes
    too long; Damaged for parts of the folder that are not what was committed.
    """
    with as_query_error(con, text):
        text.encode()  # raises for bytes of the command line that are no UTF-8
        computed.widen(con)
        refresh(con)
        _check_statement(con, text)
        return _with_origins(con, text, _query_with_retry(con, text, seconds))


def _with_origins(con: duckdb.DuckDBPyConnection, text: str, found: pa.Table) -> pa.Table:
    """Returns the result, each column with the column of a view that it shows as metadata ("": none), and
    that of a result without rows with what may have been meant.
    """
    sources = origin.columns(con, text, found.column_names)
    fields = [
        field.with_metadata({COLUMN_KEY: source}) for field, source in zip(found.schema, sources, strict=True)
    ]
    return _with_note(con, text, found.cast(pa.schema(fields)))


def _with_note(con: duckdb.DuckDBPyConnection, text: str, found: pa.Table) -> pa.Table:
    rows = [column[0].as_py() for column in found.columns] if len(found) == 1 else []
    is_blank = not len(found) or (bool(rows) and all(one is None or one == 0 for one in rows))
    note = advice.of_left_out(con, text) or (advice.of_no_row(con, text) if is_blank else "")
    note = note or advice.of_occurrences(con, text)
    if {"hypervolume", "reference"} <= {*found.column_names} and not any(found["hypervolume"].to_pylist()):
        note = NO_VOLUME
    if {"rows", "paired", "times_the_mean"} <= {*found.column_names}:
        rows, paired = (sum(found[name].to_pylist()) for name in ("rows", "paired"))
        if paired < rows:
            note = LONE_ROWS.format(paired, rows)
    return found.replace_schema_metadata({NOTE_KEY: note}) if note else found


def is_ctrl_c(error: Exception) -> bool:
    """True if DuckDB raised this exception for Ctrl-C, in place of KeyboardInterrupt."""
    return str(error) in INTERRUPTED


@contextmanager
def as_query_error(con: duckdb.DuckDBPyConnection | None = None, text: str = "") -> Iterator[None]:
    """Turns any error of a statement into a QueryError of one line, but Ctrl-C into KeyboardInterrupt. con,
    text: of the user's statement, about which advice is given, and of whose syntax errors two more lines show
    the place where no advice is known.
    """
    try:
        yield
    except (*STATEMENT_ERRORS, RuntimeError) as error:
        if is_ctrl_c(error):
            raise KeyboardInterrupt from None
        if isinstance(error, STATEMENT_ERRORS):
            told = _advice(con, text, error) if con else ""
            line = (_no_column(con, error) if con else "") or _line(error)
            is_syntax = con is not None and isinstance(error, duckdb.ParserException)
            raise QueryError(f"{line}; {told}" if told else line + _place(error) * is_syntax) from None
        raise


def _advice(con: duckdb.DuckDBPyConnection, text: str, error: BaseException) -> str:
    """Returns what to write instead of a statement that DuckDB cannot read; "" where it is not known."""
    if not isinstance(error, duckdb.ParserException | duckdb.BinderException):
        return ""
    if (word := text.strip().rstrip(";").lower()) in views(con):
        return f"write FROM {word}"
    if "must appear in the GROUP BY clause" in str(error):
        return "arg_min(machine, energy_pj) is the machine of the least energy_pj"
    if AMBIGUOUS.search(str(error)) and (joined := advice.of_join(con, text)):
        return joined
    names_sql = (
        "SELECT DISTINCT column_name FROM duckdb_columns() WHERE NOT internal AND schema_name = 'main'"
    )
    columns = [name for (name,) in con.execute(names_sql).fetchall()]
    is_syntax = isinstance(error, duckdb.ParserException)
    told = advice.of_fault(text, columns)
    return told or (advice.of_keyword(text, [*columns, *views(con)]) if is_syntax else "")


def _place(error: BaseException) -> str:
    """Returns DuckDB's excerpt of a statement, a line, and below it the mark of where it is wrong; "" without
    one.
    """
    _, found, excerpt = str(error).partition("\nLINE ")
    return f"\nLINE {excerpt.rstrip()}" if found else ""


def _no_column(con: duckdb.DuckDBPyConnection, error: BaseException) -> str:
    """Returns what a name that is no column may be: a column of another view or in another unit, or a
    parameter that is no axis; "" of other errors.
    """
    wrong = NO_COLUMN.search(str(error)) or NO_COLUMN_OF.search(str(error))
    if not wrong or wrong[1] in COLUMNS:
        return ""
    return advice.of_column(con, wrong[1]) or _no_axis(con, error)


def _no_axis(con: duckdb.DuckDBPyConnection, error: BaseException) -> str:
    """Returns that a name like gbuf_capacity is no axis of the study; "" of other errors, and where a column
    may be meant.
    """
    wrong = NO_COLUMN.search(str(error))
    if not wrong or "_" not in wrong[1] or wrong[1] in COLUMNS:
        return ""
    axes = computed.study_axes(con)
    if not axes or meant(wrong[1], [*re.findall(r'"([^"]*)"', wrong[2] or ""), *axes]):
        return ""
    return (
        f"{wrong[1]}: no such column, and not an axis of this study (fixed, if it is a parameter); "
        f"the axes are {', '.join(axes)}"
    )


def _query_with_retry(con: duckdb.DuckDBPyConnection, text: str, seconds: float) -> pa.Table:
    """Returns the answer. Tries again where compaction has removed a part in the meantime."""
    for attempt in range(TRIES):
        try:
            return _answer(con, text, seconds)
        except (duckdb.IOException, OSError):
            if attempt == TRIES - 1:
                raise
            con.execute("UPDATE internal.run SET generation = -1")  # no manifest has it: refresh rereads
            refresh(con)
    raise AssertionError("every attempt returns or raises")


def front(
    con: duckdb.DuckDBPyConnection,
    objectives: Sequence[str],
    where: str = "",
    by: Sequence[str] = (),
    distinct: bool = False,
    seconds: float = TIMEOUT_S,
    epsilon: float | None = None,
    at_knee: bool = False,
    of_study: bool = False,
    others: Sequence[str] | None = None,
) -> pa.Table:
    """Returns the front of feasible points, best in the first objective first. Columns: machine, schedule,
    objectives, then others of points and machines (None: all).

    objectives: columns of points, as 'x', '-x', 'x:max' or 'x:min' (sql/macros.sql)
    where: SQL condition over points and machines
    by: one front for each value of these columns; they are the first columns of the result
    distinct: of points with equal objectives only the first; its column `tied_designs` is their number
    epsilon: few points, one of which is worse than any other by at most this share (macro epsilon_front)
    at_knee: the knee alone (macro knee); as with `distinct` one point of those with equal objectives
    of_study: the objectives are the study's, whose front is stored
    """
    distinct = distinct or at_knee
    if epsilon is not None and at_knee:
        raise QueryError("--epsilon and --knee: the knee is one point; leave one of both out")
    if epsilon is not None and not 0 <= epsilon <= 1:
        raise QueryError(f"--epsilon {epsilon:g}: a share from 0 to 1, e.g. 0.05 for 5 %")
    refresh(con)
    names, designs = _objective_columns(con, objectives), _columns(con, "designs")
    for name in by:
        if name not in designs:
            raise QueryError(f'--by "{name}": no such column; {_column_meant(name, [*designs])}')
    rows = "(FROM designs WHERE feasible)"
    if where.strip():
        rows = f"(FROM {rows} WHERE ({where}\n))"
        _condition(con, where, rows)
    order = [f"{_quote(n)}{' DESC' if maximised(o) else ''}" for n, o in zip(names, objectives, strict=True)]
    groups = [_quote(name) for name in by]
    keys = ", ".join(dict.fromkeys([*groups, "machine", "schedule", *map(_quote, names)]))
    partition = ", ".join([*groups, *map(_quote, names)])
    tied_column = f", count(*) OVER (PARTITION BY {partition}) AS tied_designs" if distinct else ""
    distinct_rows = (
        f" QUALIFY row_number() OVER (PARTITION BY {partition} ORDER BY machine, schedule) = 1"
        if distinct
        else ""
    )
    macro = "knee" if at_knee else "pareto" if epsilon is None else "epsilon_front"
    fronts = (
        f"{macro}('compared', [{', '.join(map(literal, objectives))}]"
        f"{'' if epsilon is None else f', {epsilon!r}'}, grp := [{', '.join(map(literal, by))}]::VARCHAR[])"
    )
    ordered = ", ".join([*groups, *order, "machine", "schedule"])
    is_listed = of_study and not by and not where.strip()
    rows = FRONT_ROWS if is_listed else rows
    best_sql = (
        f"WITH compared AS MATERIALIZED (SELECT {keys} FROM {rows}) SELECT machine, schedule FROM {fronts}"
    )
    if is_listed:
        with as_query_error():
            computed.widen(con)
            best = _query_with_retry(con, best_sql, seconds)
    else:
        best = query(con, best_sql, seconds)
    with as_query_error(), computed.narrow_to(con, best):  # compute all other columns for these points only
        first = {*by, "machine", "schedule", *names}
        rest = (
            f"* EXCLUDE ({keys})"
            if others is None
            else ", ".join(_quote(name) for name in others if name not in first)
        )
        asked_designs = f"designs SEMI JOIN internal.asked USING (machine, schedule){distinct_rows}"
        found = _query_with_retry(
            con,
            f"SELECT {keys}{tied_column}{f', {rest}' * bool(rest)} FROM {asked_designs} ORDER BY {ordered}",
            seconds,
        )
    return _with_note(con, f"FROM designs WHERE {where}", found) if where.strip() else found


def best(
    con: duckdb.DuckDBPyConnection,
    objectives: Sequence[str],
    seconds: float = TIMEOUT_S,
    of_study: bool = False,
) -> pa.Table:
    """Returns the first row of `front`, without the columns behind its objectives: the feasible point that is
    best in the first objective, of equal ones in the second, and so on; no row if there is none.

    of_study: the objectives are the study's, all of them, whose front is stored: that point is on it
    """
    refresh(con)
    names = [_quote(name) for name in _objective_columns(con, objectives)]
    order = ", ".join(f"{n}{' DESC' if maximised(o) else ''}" for n, o in zip(names, objectives, strict=True))
    keys = ", ".join(dict.fromkeys(["machine", "schedule", *names]))
    numbers = " AND ".join(f"coalesce(NOT isnan({name}::DOUBLE), false)" for name in names)
    rows = FRONT_ROWS if of_study else "(FROM points WHERE feasible)"
    text = f"SELECT {keys} FROM {rows} WHERE {numbers} ORDER BY {order}, machine, schedule LIMIT 1"
    if not of_study:
        return query(con, text, seconds)
    with as_query_error():
        computed.widen(con)
        return _query_with_retry(con, text, seconds)


def _objective_columns(con: duckdb.DuckDBPyConnection, objectives: Sequence[str]) -> list[str]:
    """Returns the columns of objectives. Raises QueryError for what is no number of points or comes twice."""
    points = _columns(con, "points")
    names = [column_of(objective) for objective in objectives]
    if twice := _given_twice(names):
        raise QueryError(twice)
    numeric = [name for name, kind in points.items() if NUMBER.match(kind) and name not in NO_OBJECTIVES]
    for name in names:
        if name not in points:
            raise QueryError(f'objective "{name}": no such column of points; {_column_meant(name, numeric)}')
        if name not in numeric:
            known_names = ", ".join(numeric)
            raise QueryError(f'objective "{name}" is {points[name]}, no number; there are {known_names}')
    return names


def _given_twice(names: Sequence[str]) -> str:
    """Returns which of the objectives comes twice, as a message; "" if none does."""
    twice = next((name for name in names if names.count(name) > 1), "")
    return f'objective "{twice}" is given twice; give each once' if twice else ""


def column_of(objective: str) -> str:
    """Returns the column name in 'x', '-x', 'x:max' or 'x:min'."""
    return re.sub(r"^-|:(min|max)$", "", objective)


def objective(text: str) -> str:
    """Returns 'x', '-x', 'x:max' or 'x:min' as 'x:max' or 'x:min'."""
    return f"{column_of(text)}:{'max' if maximised(text) else 'min'}"


def maximised(objective: str) -> bool:
    """True for '-x' and 'x:max', False for '-x:max'."""
    return objective.startswith("-") != objective.endswith(":max")


def _condition(con: duckdb.DuckDBPyConnection, where: str, rows: str) -> None:
    """Raises QueryError unless `where` is one expression over the rows: valid by itself (so it closes no
    outer bracket), and valid in place.
    """
    try:
        where.encode()
        con.extract_statements(f"SELECT 1 WHERE {where}")
        _check_reads(con, rows[1:-1])
        con.execute(f"EXPLAIN {rows[1:-1]}")
    except (duckdb.Error, QueryError, UnicodeError) as error:
        told = _advice(con, where, error) or "give a condition over points and machines, e.g. area_mm2 < 2"
        line = _no_column(con, error) or _line(error)
        raise QueryError(f"--where {' '.join(where.split())}: {line}; {told}") from None


def non_dominated(values: Values) -> Values:
    """Returns the distinct rows of values [N, k] (minimised, without NaN) that no other row dominates.

    Of many rows, most are first removed by two pivots: rows that are not better than a pivot in any objective
    are dropped, except the pivot.
    """
    keys = values if np.isfinite(values).all() else ordinal(values)
    rows = np.arange(len(values))
    if len(rows) > 1000:
        scaled = (keys - keys.min(axis=0)) / np.maximum(np.ptp(keys, axis=0), 1e-300)
        for pivot in (keys[scaled.sum(axis=1).argmin()], keys[scaled.max(axis=1).argmin()]):
            better = (keys[rows] < pivot).any(axis=1)
            rows = np.append(rows[better], np.flatnonzero((keys == pivot).all(axis=1))[0])
    found: Values = values[rows[moocore.is_nondominated(keys[rows])]]
    return found


def ordinal(values: Values) -> Values:
    """Returns each column as ranks, which dominate alike. Needed for infinities: moocore 0.3 answers wrongly
    with +inf and crashes with -inf.
    """
    return np.column_stack([np.unique(column, return_inverse=True)[1] for column in values.T]).astype(float)


def covering(values: Values, epsilon: float) -> Values:
    """Returns few rows of a front [N, k] (minimised), so that each row x has one of them with at most
    x + epsilon |x| in every objective; the best of each objective among them.

    From the least sum of scaled objectives on, each row is taken that none of those before covers.
    """
    if not len(values):
        return values
    order = np.argsort(_scaled(values).sum(axis=1), kind="stable")
    rows, kept = values[order], list(np.unique(values[order].argmin(axis=0)))
    limits = rows + epsilon * np.abs(rows)
    is_open = np.ones(len(rows), np.bool_)
    for row in kept:
        is_open &= ~(rows[row] <= limits).all(axis=1)
    while is_open.any():
        kept.append(row := int(is_open.argmax()))
        is_open &= ~(rows[row] <= limits).all(axis=1)
    found: Values = rows[kept]
    return found


def knee(values: Values) -> Values:
    """Returns the row of a front [N, k] of least sum, each objective scaled to 0 .. 1 over the front. Of
    equal sums it is the one whose worst objective is best, then the one that is best in the first objective,
    the second, and so on.
    """
    return values[knees(values)[:1]]


def knees(values: Values) -> NDArray[np.int64]:
    """Returns which rows of a front have the least sum (`knee`), the knee first."""
    scaled = np.round(_scaled(values), 12)  # differences below are of rounding
    sums = np.round(scaled.sum(axis=1), 12)
    worst = scaled.max(axis=1, initial=-np.inf)
    found = np.lexsort((*values.T[::-1], worst, sums))
    return found[sums[found] == sums.min(initial=np.inf)]


def _scaled(values: Values) -> Values:
    """Returns values [N, k] scaled to 0 (least) .. 1 (largest) per column; infinities as ranks."""
    keys = values if np.isfinite(values).all() else ordinal(values)
    scaled: Values = (keys - keys.min(axis=0, initial=np.inf)) / np.maximum(
        keys.max(axis=0, initial=-np.inf) - keys.min(axis=0, initial=np.inf), 1e-300
    )
    return scaled


def hypervolume(values: Values, reference: Values, box: Values) -> list[float]:
    """Returns a hypervolume and its reference. values: [N, k] (minimised); rows with an infinity or a NaN
    count as absent. reference: [k]; empty: that of the box [2, k] (`pareto.boxed_hypervolume`).
    """
    if not len(reference):
        return [pareto.boxed_hypervolume(values, box), *pareto.scaler(box).reference()]
    return [pareto.hypervolume(values[np.isfinite(values).all(axis=1)], reference), *reference]


def _rows_of(groups: pa.ListArray) -> list[Values]:
    """Returns the points of each group [N, k], from lists of points of k objectives."""
    if isinstance(groups, pa.ChunkedArray):
        groups = groups.combine_chunks()
    offsets, rows = groups.offsets.to_numpy(), groups.values
    values_start = rows.offsets[0].as_py() if len(rows) else 0
    k = (rows.offsets[1].as_py() - values_start) if len(rows) else 1
    values = rows.values.to_numpy(zero_copy_only=False)[values_start : values_start + k * len(rows)].reshape(
        -1, k
    )
    return [values[a:b] for a, b in itertools.pairwise(offsets)]


def _points(found: Sequence[Values]) -> pa.ListArray:
    """Returns points of each group as lists of points, each a list of values."""
    k = found[0].shape[1] if found else 1
    flat = np.concatenate(found) if found else np.empty((0, k))
    inner = pa.ListArray.from_arrays(
        pa.array(np.arange(len(flat) + 1) * k, pa.int32()), pa.array(flat.ravel())
    )
    ends = np.cumsum([0, *(len(f) for f in found)])
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), inner)


def _picked(pick: Callable[[Values], Values], groups: pa.ListArray) -> pa.ListArray:
    return _points([pick(values) for values in _rows_of(groups)])


def _epsilon_rows(groups: pa.ListArray, epsilon: pa.Array) -> pa.ListArray:
    pairs = zip(_rows_of(groups), epsilon.to_pylist(), strict=True)
    return _points([covering(values, share) for values, share in pairs])


def _hypervolumes(groups: pa.ListArray, references: pa.ListArray, boxes: pa.ListArray) -> pa.Array:
    found = [
        hypervolume(values, np.array(reference), box)
        for values, reference, box in zip(
            _rows_of(groups), references.to_pylist(), _rows_of(boxes), strict=True
        )
    ]
    return pa.array(found, pa.list_(pa.float64()))


def _views(con: duckdb.DuckDBPyConnection, root: Path, parts: Mapping[str, Sequence[str]]) -> None:
    """Creates a view per table over the parts of the manifest, and the views of computed values."""
    schema_tables = {
        name
        for (name,) in con.execute(
            "SELECT table_name FROM duckdb_tables() WHERE schema_name = 'internal'"
        ).fetchall()
    } - {"run"}
    has_functions = "ratios" in schema_tables  # which `computed.register` creates
    schema_tables -= {"ratios", "asked", "gathered"}
    tables = dict.fromkeys([*sorted(schema_tables - {NONDOMINATED}), *(parts.keys() - {NONDOMINATED})])
    for table in tables:
        sources = [f"FROM internal.{_quote(table)}"] if table in schema_tables else []
        if parts.get(table):
            listed = ", ".join(literal(str(root / part)) for part in parts[table])
            sources.append(f"FROM read_parquet([{listed}], union_by_name = true, hive_partitioning = false)")
        template = "SELECT DISTINCT * FROM ({})" if table in DEDUPLICATED else "{}"
        name = (
            f"internal.stored_{table}"
            if table in (*computed.VIEWS, "points", computed.PACKED)
            else _quote(table)
        )
        con.execute(
            f"CREATE OR REPLACE VIEW {name} AS {template.format(' UNION ALL BY NAME '.join(sources))}"
        )
    has_functions = has_functions and {computed.PACKED, "points", "machines", "einsums"} <= tables.keys()
    if has_functions:
        computed.create_sources(con)
    if {"points", "machines"} <= tables.keys():
        points = computed.point_columns(con)
        machine_columns = [f"m.{_quote(name)}" for name in _columns(con, "machines") if name not in points]
        rows = f"internal.{'point_rows' if has_functions else 'stored_points'}"
        columns = ", ".join([*points.values(), *machine_columns])
        found = f"SELECT {columns} FROM {rows} p JOIN main.machines m USING (machine)"
        if has_functions:
            found = _with_ratios(con, found, [*points])
        of_machines = ", ".join(_quote(name) for name in _columns(con, "machines") if name not in points)
        names = [row[0] for row in con.execute(f"DESCRIBE {found}").fetchall()]
        front = [name for name in ("machine", "schedule", *computed.study_axes(con)) if name in names]
        behind = [name for name in LAST if name in names]
        between = [name for name in names if name not in (*front, *behind)]
        ordered = ", ".join(map(_quote, [*front, *between, *behind]))
        con.execute(f"CREATE OR REPLACE VIEW designs AS SELECT {ordered} FROM ({found})")
        con.execute(f"CREATE OR REPLACE VIEW points AS SELECT * EXCLUDE ({of_machines}) FROM designs")
    elif "points" in tables:
        con.execute("CREATE OR REPLACE VIEW points AS FROM internal.stored_points")
    if NONDOMINATED in schema_tables:
        columns = ", ".join(_quote(name) for name in _columns(con, NONDOMINATED, "internal"))
        listed = ", ".join(literal(str(root / part)) for part in parts.get(NONDOMINATED, ()))
        rows = (
            f"read_parquet([{listed}], hive_partitioning = false)" if listed else "main.points WHERE feasible"
        )
        con.execute(f"CREATE OR REPLACE VIEW {FRONT_ROWS} AS SELECT {columns} FROM {rows}")
    if has_functions:
        computed.create_views(con)
    for table in computed.VIEWS if not has_functions else ():
        if table in tables:
            con.execute(f"CREATE OR REPLACE VIEW {table} AS FROM internal.stored_{table}")


def _with_ratios(con: duckdb.DuckDBPyConnection, designs: str, points: Sequence[str]) -> str:
    """Returns the SELECT `designs` with the ratios of points behind the columns of `points`."""
    listed = ", ".join(map(_quote, points))
    ratios = computed.ratios_sql(con, "points")
    rows = f"SELECT macs_of(machine) AS macs, * FROM ({designs})"
    return f"SELECT {listed}, {ratios}, * EXCLUDE ({listed}, macs) FROM ({rows})"


def _answer(con: duckdb.DuckDBPyConnection, text: str, seconds: float) -> pa.Table:
    """Runs a statement in a thread, so that the main thread reacts to Ctrl-C at once. DuckDB's own check
    misses it while all its threads are busy.
    """
    found: list[pa.Table | BaseException] = []
    is_narrow: list[bool] = []  # known once the machines of a condition are

    def ask() -> None:
        try:
            found.append(_fetch_all(con, text, is_narrow))
        except BaseException as fault:  # raised again below, in the main thread
            found.append(fault)

    thread = threading.Thread(target=ask, name="dse sql", daemon=True)
    thread.start()
    try:
        thread.join(min(seconds, SLOW_S))
        if thread.is_alive() and seconds > SLOW_S:
            if is_narrow == [False] and (told := advice.of_slow(text)):
                logging.getLogger("dse").warning("this takes long (%g s at most): %s", seconds, told)
            thread.join(seconds - SLOW_S)
    except KeyboardInterrupt:
        _interrupt(con, thread)
        raise
    if thread.is_alive():
        _interrupt(con, thread)
        told = advice.of_timeout(text)
        raise Stopped(f"stopped after {seconds:g} s; --timeout gives it more" + f"; {told}" * bool(told))
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


def _interrupt(con: duckdb.DuckDBPyConnection, thread: threading.Thread) -> None:
    """Interrupts a statement repeatedly for up to GIVE_UP_S: an interrupt before the query has begun is lost,
    and a long function never notices one.
    """
    for _ in range(round(GIVE_UP_S / 0.1)):
        con.interrupt()
        thread.join(0.1)
        if not thread.is_alive():
            return


def _fetch_all(con: duckdb.DuckDBPyConnection, text: str, is_narrow: list[bool]) -> pa.Table:
    """Runs a statement; appends to is_narrow whether it is of machines that it names."""
    with computed.narrow(con, text) as narrow:
        is_narrow.append(computed.is_narrow(con))
        reader = con.sql(narrow).to_arrow_reader(100_000)
        batches, size = [], 0
        for batch in reader:
            batches.append(batch)
            size += batch.nbytes
            if size > MAX_BYTES:
                raise QueryError(
                    f"the answer is larger than {MAX_BYTES >> 30} GiB; aggregate, or add a LIMIT"
                )
        return pa.Table.from_batches(batches, reader.schema)


def _check_statement(con: duckdb.DuckDBPyConnection, text: str) -> None:
    statements = con.extract_statements(text)
    # DuckDB writes a PIVOT without IN as a CREATE TYPE and a SELECT of its own
    if any(not statement.query for statement in statements):
        raise QueryError(
            "PIVOT must list its values, PIVOT ... ON x IN ('a', 'b') USING ...: to find them "
            "DuckDB would write, and the tables are read-only"
        )
    if len(statements) != 1:
        raise QueryError(
            f"{len(statements)} statements; give exactly one SELECT, WITH, EXPLAIN, DESCRIBE or SUMMARIZE"
        )
    kind = statements[0].type
    if statements[0].query not in text:  # DuckDB writes a PRAGMA as a SELECT of its own
        raise QueryError("PRAGMA is refused: give one SELECT, WITH, EXPLAIN, DESCRIBE or SUMMARIZE")
    if kind not in KINDS:
        raise QueryError(
            f"{kind.name} is refused: the tables are read-only; give one SELECT, WITH, EXPLAIN, "
            "DESCRIBE or SUMMARIZE"
        )
    if kind == duckdb.StatementType.EXPLAIN:  # EXPLAIN ANALYZE runs what it explains
        explained, changed = EXPLAIN.subn("", statements[0].query, count=1)
        if not changed:
            raise QueryError("EXPLAIN stands behind a comment; begin the statement with it")
        _check_statement(con, explained)
    else:
        _check_reads(con, text)


def _check_reads(con: duckdb.DuckDBPyConnection, text: str) -> None:
    """Raises QueryError unless a statement reads only views, tables of its own WITH clauses, and table
    functions that reach no file.
    """
    tree = json.loads(con.execute(f"SELECT json_serialize_sql({literal(text)})").fetchall()[0][0])
    if tree["error"]:
        raise QueryError(f"{tree['error_message']}; a PIVOT must list its values: PIVOT ... ON x IN (...)")
    found = list(nodes(tree))
    tables_sql = (
        "SELECT view_name FROM duckdb_views() WHERE NOT internal AND schema_name = 'main' UNION ALL SELECT "
        "table_name FROM duckdb_tables() WHERE schema_name = 'main'"
    )
    views = {name for (name,) in con.execute(tables_sql).fetchall()}
    with_names = {
        key.lower()
        for node in found
        for entry in node.get("map", [])
        if isinstance(entry, dict) and NAME.fullmatch(key := str(entry.get("key", "")))
    }
    table_names = {name.lower() for name in views} | with_names
    for node in found:
        match node.get("type"):
            case "BASE_TABLE" | "SHOW_REF":
                _check_table(node["table_name"], node["schema_name"], table_names)
            case "TABLE_FUNCTION":
                _check_table_function(con, node["function"], table_names, with_names)


def _column_meant(name: str, columns: Sequence[str]) -> str:
    """Returns the advice for an unknown column: its new name, the one that is similar, or some near it."""
    if name in COLUMNS:
        return f"its new name is {COLUMNS[name]}"
    if near := meant(name, columns):
        return f"did you mean {' or '.join(near)}?"
    if len(columns) <= MAX_NAMES:
        return f"there are {', '.join(columns)}"
    nearest = ", ".join(get_close_matches(name, columns, NEAREST, cutoff=0))
    return f"the nearest of {len(columns)} are {nearest} (all: dse list columns)"


def _check_table(table: str, schema: str, table_names: set[str]) -> None:
    """Raises QueryError if a table of a statement is not one of the run's. DuckDB would look for a file of
    that name.
    """
    is_unknown = schema.lower() in ("", "main") and table.strip('"').lower() not in table_names | SHOW_NAMES
    if schema.lower() not in SCHEMAS or is_unknown:
        near = meant(table.lower(), table_names)
        raise QueryError(
            f"{table}: no such table; "
            + (f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(table_names))}")
        )


def _check_table_function(
    con: duckdb.DuckDBPyConnection, function: Mapping[str, Any], table_names: set[str], with_names: set[str]
) -> None:
    """Raises QueryError unless a table function is one of TABLE_FUNCTIONS, the table that a front reads is
    allowed, and its other arguments can be used. with_names: of tables of WITH, whose columns are not known.
    """
    name = function["function_name"].lower()
    arguments = _arguments(function)
    if name not in TABLE_FUNCTIONS or function["schema"] not in ("", "main"):
        raise QueryError(
            f"table function {name} is refused: the tables of the run are all there is to read; "
            f"allowed are {', '.join(TABLE_FUNCTIONS)}"
        )
    if name in REPRICED:
        _given_arguments(name, arguments)
    if name not in SIGNATURES:
        return
    first = arguments[0] if arguments else {}
    constant = first.get("value", {}).get("value", first.get("literal", {}).get("text"))
    table = constant if first.get("type") == "VALUE_CONSTANT" else ".".join(first.get("column_names", []))
    if (
        not isinstance(table, str)
        or not table
        or any(one.get("alias", "").lower() == "tbl" for one in arguments[1:])
    ):
        raise QueryError(
            f"{name}: its first argument must name a table"
            + " or be a '(SELECT ...)' in quotes" * (name != "pareto2")
        )
    if name != "pareto2" and table.startswith("("):
        _check_reads(con, f"FROM {table} t")
    else:
        _check_table(table, "", table_names)
    given = _given_arguments(name, arguments)
    if name == "pareto2":
        return
    source = table if table.startswith("(") else _quote(table)
    try:
        columns = {row[0].lower(): row[1] for row in con.execute(f"DESCRIBE FROM {source}").fetchall()}
    except duckdb.Error:
        columns = {}  # a table of WITH, or a fault that DuckDB names when it runs the statement
    if table.lower() in with_names:
        columns = {}
    values = {key: _checked(con, name, key, node, columns) for key, node in given.items() if key != "tbl"}
    references, objectives = values.get("reference"), values.get("objectives")
    if references and objectives and len(references) != len(objectives):
        raise QueryError(
            f"{name}: references: {len(references)}, objectives: {len(objectives)}; give a value of each "
            f"objective in its own unit, e.g. reference := {ARGUMENTS['reference']}"
        )


def example(macro: str) -> str:
    """Returns a call of a macro with all arguments that it needs.

    >>> example("sensitivity")
    "sensitivity('designs', 'energy_pj', 'array_x')"
    """
    names = {**SIGNATURES, **REPRICED}[macro]
    return f"{macro}({', '.join(ARGUMENTS[name] for name in names if name not in OPTIONAL)})"


def optional(macro: str) -> list[str]:
    """Returns the other arguments of a macro, as they are written.

    >>> optional("sensitivity")
    ["given := ['dram_kind']"]
    """
    names = {**SIGNATURES, **REPRICED}[macro]
    return [f"{name} := {ARGUMENTS[name]}" for name in names if name in OPTIONAL]


def _given_arguments(macro: str, arguments: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Returns name -> node of the arguments of a macro. Raises QueryError for names that it has not, and for
    too few or too many.
    """
    names = {**SIGNATURES, **REPRICED}[macro]
    others = " and ".join(optional(macro))
    advice = f"write {example(macro)}" + f"; it may have {others} too" * bool(others)
    given: dict[str, Mapping[str, Any]] = {}
    for i, node in enumerate(arguments):
        left = node.get("left", {}).get("column_names", [""])[-1] if node["type"] == "COMPARE_EQUAL" else ""
        if macro != "pareto2" and left:
            raise QueryError(
                f"{macro}: {left} = ... compares; an argument is named by {left} := ...; {advice}"
            )
        key = node.get("alias", "").lower() or (names[i] if i < len(names) else "")
        if key not in names:
            fault = f"no argument {key}" if key else f"{len(arguments)} arguments"
            raise QueryError(f"{macro}: {fault}; {advice}")
        given[key] = node
    if missing := [name for name in names if name not in OPTIONAL and name not in given]:
        raise QueryError(f"{macro}: {' and '.join(missing)} missing; {advice}")
    return given


def _value(con: duckdb.DuckDBPyConnection, node: Mapping[str, Any]) -> Any:
    """Returns the value of an expression without columns; None: NULL, or one that cannot stand alone."""
    select = json.loads(con.execute("SELECT json_serialize_sql('SELECT 1')").fetchall()[0][0])
    select["statements"][0]["node"]["select_list"] = [{**node, "alias": ""}]
    try:
        found = con.execute(f"FROM json_execute_serialized_sql({literal(json.dumps(select))})").fetchall()
    except duckdb.Error:
        return None
    return found[0][0]


def call_alone(text: str) -> tuple[str, dict[str, Any]]:
    """Returns the macro of a valid statement `FROM macro(...)` that says nothing else, and its arguments;
    ("", {}) of any other statement.

    >>> call_alone("FROM knee('designs', ['energy_pj'])")
    ('knee', {'tbl': 'designs', 'objectives': ['energy_pj']})
    >>> call_alone("FROM knee('designs', ['energy_pj']) LIMIT 1")
    ('', {})
    """
    if not ALONE.match(text):
        return "", {}
    with duckdb.connect() as con:
        tree, plain = (
            json.loads(con.execute(f"SELECT json_serialize_sql({literal(one)})").fetchall()[0][0])
            for one in (text, "FROM pareto(x)")
        )
        if tree["error"] or len(tree["statements"]) != 1:
            return "", {}
        node, plain_node = tree["statements"][0]["node"], plain["statements"][0]["node"]
        source = node.get("from_table", {})
        is_alone = all(
            node.get(key) == value
            for key, value in plain_node.items()
            if key not in ("from_table", "select_list")
        )
        if not is_alone or source.get("type") != "TABLE_FUNCTION":
            return "", {}
        name = source["function"]["function_name"].lower()
        given = _given_arguments(name, _arguments(source["function"]))
        return name, {key: _value(con, one) for key, one in given.items()}


def _arguments(function: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Returns the nodes of a table function's arguments, each with its name as `alias`."""
    if "children" in function:
        return list(function["children"])
    # DuckDB 2.0 and later
    return [one["expression"] | {"alias": one["name"]} for one in function["arguments"]]


def _checked(
    con: duckdb.DuckDBPyConnection, macro: str, key: str, node: Mapping[str, Any], columns: Mapping[str, str]
) -> Any:
    """Returns the value of an argument; None: an expression that only DuckDB can judge. Raises QueryError for
    what the macro cannot use. columns: name in lower case -> type; {}: unknown.
    """
    if any(one.get("type") == "COLUMN_REF" for one in (node, *node.get("children", []))):
        raise QueryError(f"{macro}: {key} names columns in single quotes, e.g. {ARGUMENTS[key]}")
    value = _value(con, node)
    if value is None:
        return None
    shown = repr(value) if isinstance(value, str) else str(value)
    is_list = isinstance(value, list)
    if ARGUMENTS[key].startswith("[") != is_list or (is_list and not value and key not in OPTIONAL):
        kind = "no list" if not is_list else "a list" if value else "empty"
        right = f"[{shown}]" if isinstance(value, str) and key != "reference" else ARGUMENTS[key]
        raise QueryError(f"{macro}: {key} = {shown} is {kind}; give e.g. {right}")
    if key == "objectives" and (twice := _given_twice([column_of(str(one)) for one in value])):
        raise QueryError(f"{macro}: {twice}")
    is_number = key in ("epsilon", "reference")
    for one in value if is_list else [value]:
        if is_number != (not isinstance(one, str)):
            kind = "number" if is_number else "name of a column in single quotes"
            raise QueryError(f"{macro}: {key} = {shown} has {one!r}, no {kind}; give e.g. {ARGUMENTS[key]}")
        if key == "epsilon" and not 0 <= float(one) <= 1:
            raise QueryError(f"{macro}: epsilon = {shown}: a share from 0 to 1, e.g. 0.05 for 5 %")
        if is_number or not columns:
            continue
        column = column_of(one) if key == "objectives" else one
        is_measured = key in ("objectives", "metric")
        fitting = [
            name
            for name, kind in columns.items()
            if not is_measured or (NUMBER.match(kind) and name not in NO_OBJECTIVES)
        ]
        axes = computed.study_axes(con) if key == "parameter" else []
        if axes and column.lower() not in columns:
            near = meant(column, axes)
            told = f"did you mean {' or '.join(near)}? " * bool(near) + f"the axes are {', '.join(axes)}"
            raise QueryError(f'{macro}: {key} "{column}": no such column; {told}')
        if column.lower() not in columns:
            raise QueryError(f'{macro}: {key} "{column}": no such column; {_column_meant(column, fitting)}')
        kind = columns[column.lower()]
        if is_measured and (kind == "VARCHAR" or kind.endswith("[]")):
            listed = ", ".join(fitting[:NEAREST])
            raise QueryError(f'{macro}: {key} "{column}" is {kind}, no number; numbers are {listed}, ...')
    return value


def _columns(con: duckdb.DuckDBPyConnection, table: str, schema: str = "main") -> dict[str, str]:
    """Returns column name -> type."""
    return {row[0]: row[1] for row in con.execute(f"DESCRIBE {schema}.{_quote(table)}").fetchall()}


def _line(error: BaseException) -> str:
    """Returns the message of an error in one line, without DuckDB's excerpt of the statement."""
    text = str(error).split("LINE ")[0]
    if raised := RAISED.search(text):  # by a function of ours
        return raised[1]
    lines = [line.strip() for line in text.splitlines()]
    message = " ".join(line for line in lines if line) or type(error).__name__
    new_names = "; ".join(
        f"{old} has a new name; write {new}" for old, new in COLUMNS.items() if f'"{old}"' in message
    )
    if new_names:
        return f"{message}; {new_names}"
    if wrong := NO_COLUMN.search(message):
        if near := meant(wrong[1], re.findall(r'"([^"]*)"', wrong[2] or "")):
            return f"{wrong[1]}: no such column; did you mean {' or '.join(near)}?"
        text = wrong[1].replace("'", "''")
        return f"{message}; a text stands in single quotes: '{text}'"
    if (name := AMBIGUOUS.search(message)) and name[1] in ("einsum", "workload"):
        return f"{message}; that of machines and designs is where a machine is infeasible, else NULL"
    if (no_number := NO_NUMBER.search(message)) and (number := bare(no_number[1])) is not None:
        return f"{message}; columns hold bare numbers: write {number:.15g}"
    return message


def _sql(name: str) -> str:
    return (files("analysis") / "sql" / f"{name}.sql").read_text()


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
