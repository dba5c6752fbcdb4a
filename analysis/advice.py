"""What to write instead of a statement that DuckDB refuses, that finds no row, or that takes too long."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import SequenceMatcher, get_close_matches
from typing import Any

import duckdb

from analysis.computed import OF_TRAFFIC, VIEWS, literal, nodes
from dse.explain.units import UNIT_WORDS, bare, quantity
from dse.study.pareto import slug

TEXT = re.compile(r"'(?:[^']|'')*'")
DOTTED = re.compile(r"\w+(?:\.\w+)+")  # array.x, d.array.x
QUANTITY = re.compile(r"(?<![\w.])\d+(?:\.\d+)?\s*[A-Za-z]\w*")  # 8 KiB
GROUP = re.compile(r"\bgroup\s*:=", re.I)
REPRICED = re.compile(r"\b(what_if|robust)\s*\(", re.I)  # in the quotes of pareto('(FROM what_if ...'), too
ASKED = re.compile(r"\bmachines\s*:=\s*\[([\d\s,]*)\]", re.I)  # a literal list of machines
NAMED = re.compile(r"\bmachines\s*:=", re.I)
MAX_VALUES = 32  # of a column, up to which they are said
# columns of computed views -> where else their values are: (view, column)
ELSEWHERE = {
    "level": ("counts", "level"),
    "component": ("counts", "level"),
    "tensor": ("counts", "tensor"),
    "action": ("counts", "action"),
    "workload": ("workloads", "workload"),
    "einsum": ("internal.uniques", "einsum"),
    "kind": ("internal.uniques", "kind"),
}
ONLY_COMPUTED = ("leak", "-", "VECTOR")  # values that only computed views have
# units of names that are meant as another column: energy_uj
OTHER_UNITS = (
    *("j", "mj", "uj", "nj", "fj", "s", "ms", "us", "ps", "w", "uw", "um2", "ghz", "hz", "mhz"),
    *("kb", "mb", "gb", "kib", "mib", "gib", "b", "bits", "bytes", "cycles", "ns", "pj", "mw", "mm2"),
)
KEYWORDS = (
    "select",
    "from",
    "where",
    "group",
    "order",
    "having",
    "limit",
    "join",
    "using",
    "between",
    "distinct",
)
WITHOUT_BY = re.compile(r"\b(group|order)\s+(?!by\b)\w", re.I)
MAX_SAID = 3  # machines of which it is said why they have no row
JOINED = re.compile(r"\bjoin\b((?!\b(?:using|on)\b).)*$", re.I | re.S)  # a last join without its condition
KEYS = ("machine", "schedule", "workload", "einsum")  # columns by which rows of views meet
# views whose costs are those of one occurrence, and endings of the names of costs
OF_ONE_OCCURRENCE, COSTS = ("einsums", "segments"), ("_pj", "_cycles", "_ns", "macs")
# conditions that compare with a number: (least and largest value of the column, number) -> whether none holds
COMPARED: dict[str, Callable[[float, float, float], bool]] = {
    "COMPARE_LESSTHAN": lambda least, _, number: least >= number,
    "COMPARE_LESSTHANOREQUALTO": lambda least, _, number: least > number,
    "COMPARE_GREATERTHAN": lambda _, most, number: most <= number,
    "COMPARE_GREATERTHANOREQUALTO": lambda _, most, number: most < number,
}
MIRRORED = {"LESS": "GREATER", "GREATER": "LESS"}  # 30 > latency_ns
OF_NO_MACHINE = ("mappings", "counts", "workloads", "events")  # views without a column machine


def of_fault(statement: str, columns: Sequence[str]) -> str:
    """Returns what to write for axes of a study (array.x), quantities (8 KiB) and the argument grp of macros
    in a statement, which SQL reads otherwise; "" if it has none. columns: of all views.

    >>> of_fault("FROM designs d WHERE d.array.x = 8 AND note <> 'array.x'", ["array_x"])
    'write d.array_x for d.array.x'
    >>> of_fault("FROM designs WHERE gbuf_capacity = 8 KiB", ["gbuf_capacity"])
    'columns hold bare numbers: write 8192 for 8 KiB'
    """
    code = TEXT.sub("''", statement)
    names, numbers = {}, {}
    if GROUP.search(code):
        names["group :="] = "grp :="
    for dotted in DOTTED.findall(code):
        words = dotted.split(".")
        # the words before the axis are the name of a table
        for i in range(len(words) - 1):
            if (column := slug("_".join(words[i:]))) in columns:
                names[dotted] = ".".join([*words[:i], column])
                break
    if JOINED.search(code) and not re.search(r"\b(cross|natural|positional)\b", code, re.I):
        return "a JOIN says which rows meet: ... JOIN ... USING (machine, schedule)"
    for text in QUANTITY.findall(code):
        if (number := bare(text)) is not None:
            numbers[text] = f"{number:.15g}"
    return "; ".join(
        words + ", ".join(f"{new} for {old}" for old, new in found.items())
        for words, found in (("write ", names), ("columns hold bare numbers: write ", numbers))
        if found
    )


def of_keyword(statement: str, names: Sequence[str]) -> str:
    """Returns which keyword a misspelt word of a statement is that DuckDB cannot read; "" if none is. names:
    of columns and views, which are no keywords.

    >>> of_keyword("SELECT machine FORM designs", ["machine", "designs"])
    'write FROM for FORM'
    >>> of_keyword("FROM designs ORDER energy_pj", ["designs", "energy_pj"])
    'write ORDER BY'
    """
    code = TEXT.sub("''", statement)
    known = {*KEYWORDS, *(name.lower() for name in names)}
    for word in re.findall(r"(?<![\w.])[A-Za-z]{3,}(?![\w.(])", code):
        near = () if word.lower() in known else get_close_matches(word.lower(), KEYWORDS, 1, 0.75)
        if near:
            return f"write {near[0].upper()} for {word}"
    without = WITHOUT_BY.search(code)
    return f"write {without[1].upper()} BY" if without else ""


def of_no_row(con: duckdb.DuckDBPyConnection, statement: str) -> str:
    """Returns the values that there are for each text and number of a statement's conditions that no row has,
    the most similar first, of more than MAX_VALUES numbers the nearest, from where to where a column goes
    that none of its values is as a condition asks, and why machines have no row; "" where there is none, or
    too many texts. Views that are computed are not asked.
    """
    found = [*nodes(_tree(con, statement))]
    views = dict.fromkeys(node["table_name"].lower() for node in found if node.get("type") == "BASE_TABLE")
    said: dict[str, str] = {}
    for column, wanted in _compared(found):
        if column.lower() == "machine" and isinstance(wanted, int) and len(said) < MAX_SAID:
            said |= {f"machine {wanted}": why} if (why := _no_row_of_machine(con, wanted)) else {}
        for view in views if column.lower() not in ("machine", "") else ():
            source, own = f'"{view}"', column
            if view in (*VIEWS, *OF_TRAFFIC) and _is_computed(con):
                source, own = ELSEWHERE.get(column.lower(), ("", ""))
            if not source or (own != column and wanted in ONLY_COMPUTED):
                continue
            try:
                con.execute(f'SELECT "{column}" FROM "{view}" LIMIT 0')
                values_sql = f'SELECT DISTINCT "{own}" FROM {source} WHERE "{own}" IS NOT NULL'
                rows = con.execute(f"{values_sql} LIMIT {MAX_VALUES + 1}").fetchall()
            except duckdb.Error:  # the view has no such column
                continue
            values = [value for (value,) in rows if isinstance(value, str) == isinstance(wanted, str)]
            if 0 < len(values) <= MAX_VALUES and wanted not in values:
                values.sort(key=lambda value: (-_likeness(value, wanted), value))
                listed = ", ".join(map(_shown, values))
                said[column] = f"no row of {view} has {column} = {_shown(wanted)}; there are {listed}"
                if view == "designs" and _has_row(con, "machines", column, wanted):
                    said[column] += (
                        f" (machines without a point: FROM machines WHERE {column} = {_shown(wanted)})"
                    )
            elif len(values) > MAX_VALUES and not isinstance(wanted, str):
                near = _nearest_numbers(con, view, column, wanted)
                said |= {column: f"no row of {view} has {column} = {_shown(wanted)}; {near}"} if near else {}
    for column, kind, number in _bounded(found):
        for view in () if column in said else views:
            if view in (*VIEWS, *OF_TRAFFIC) and _is_computed(con):
                continue
            with suppress(duckdb.Error):  # the view has no such column, or one of texts
                (least, most), *_ = con.execute(
                    f'SELECT min("{column}"), max("{column}") FROM "{view}"'
                ).fetchall()
                if isinstance(least, int | float) and COMPARED[kind](least, most, number):
                    ends = f"{least:.6g} to {most:.6g}"
                    texts = [quantity(column, float(value)) for value in (least, most)]
                    with_units = f" ({' to '.join(texts)})" * (texts[0] != f"{least:.4g}")
                    said[column] = f"{column} of {view} goes from {ends}{with_units}"
    return "; ".join(said.values())


def of_occurrences(con: duckdb.DuckDBPyConnection, statement: str) -> str:
    """Returns that costs of einsums are those of one occurrence, where a statement adds them up and does not
    name `occurrences`; "" of others.
    """
    found = [*nodes(_tree(con, statement))]
    views = [node["table_name"].lower() for node in found if node.get("type") == "BASE_TABLE"]
    asked = next((view for view in views if view in OF_ONE_OCCURRENCE), "")
    if not asked or "occurrences" in statement.lower():
        return ""
    summed = (
        one["column_names"][-1].lower()
        for node in found
        if node.get("type") == "FUNCTION" and node["function_name"] == "sum"
        for one in nodes(node)
        if one.get("type") == "COLUMN_REF"
    )
    cost = next((name for name in summed if name.endswith(COSTS)), "")
    return cost and f"{cost} of {asked} is that of one occurrence: a run has sum({cost} * occurrences)"


def _has_row(con: duckdb.DuckDBPyConnection, view: str, column: str, value: str | float) -> bool:
    """True if a row of a view has this value; False if it has no such column."""
    try:
        return bool(con.execute(f'SELECT 1 FROM "{view}" WHERE "{column}" = ? LIMIT 1', [value]).fetchall())
    except duckdb.Error:
        return False


def of_column(con: duckdb.DuckDBPyConnection, name: str) -> str:
    """Returns of which other views an unknown column is, `designs` first, or which column has the same
    quantity in the unit of columns (energy_pj for energy_uj, energy); "" where none is.
    """
    found = con.execute(
        "SELECT column_name, list(DISTINCT table_name ORDER BY table_name) FROM duckdb_columns() "
        "WHERE NOT internal AND schema_name = 'main' AND table_name NOT LIKE '\\_%' ESCAPE '\\' GROUP BY ALL"
    ).fetchall()
    views_of = {column.lower(): views for column, views in found}
    if views := views_of.get(name.lower()):
        return f"{name} is a column of {', '.join(sorted(views, key=lambda view: view != 'designs'))}"
    stem, _, unit = name.lower().rpartition("_")
    same = [column for column in (f"{stem}_{own}" for own in UNIT_WORDS) if column in views_of]
    if not stem or unit not in OTHER_UNITS or not same:
        with_unit = [f"{name.lower()}_{own}" for own in UNIT_WORDS if f"{name.lower()}_{own}" in views_of]
        return f"{name}: no such column; did you mean {' or '.join(with_unit)}?" if with_unit else ""
    return f"{name}: no such column; columns are in pJ, ns, mm2, mW, bytes and MHz: write {' or '.join(same)}"


def _is_computed(con: duckdb.DuckDBPyConnection) -> bool:
    """False where all views are tables (of several runs), which answer at once."""
    found = con.execute("SELECT count(*) FROM duckdb_views() WHERE view_name = 'uniques'").fetchall()
    return found != [(0,)]


def _no_row_of_machine(con: duckdb.DuckDBPyConnection, machine: int) -> str:
    """Returns why a machine has no point; "" if it has, or if nothing is known."""
    try:
        rows = con.execute(f"SELECT status, reason FROM machines WHERE machine = {machine}").fetchall()
    except duckdb.Error:
        return ""
    if not rows:
        return f"machine {machine} is not in this run"
    status, reason = rows[0]
    return "" if status == "ok" else f"machine {machine} is {status}" + f": {reason}" * bool(reason)


def of_join(con: duckdb.DuckDBPyConnection, statement: str) -> str:
    """Returns by which columns the views of a join should meet, where its USING lacks some of them; "" of
    other statements.
    """
    for node in nodes(_tree(con, statement)):
        if node.get("type") != "JOIN" or not (using := {*map(str.lower, node["using_columns"])}):
            continue
        left, right = (
            [one["table_name"].lower() for one in nodes(node[side]) if one.get("type") == "BASE_TABLE"]
            for side in ("left", "right")
        )
        columns = [set[str]().union(*(_joinable(con, view) for view in views)) for views in (left, right)]
        shared = [key for key in KEYS if all(key in own for own in columns)]
        if {*shared} - using:
            return f"rows of {left[-1]} and {right[0]} meet by USING ({', '.join(shared)})"
    return ""


def _joinable(con: duckdb.DuckDBPyConnection, view: str) -> set[str]:
    """Returns the columns of a view by which its rows meet those of others; of a table of WITH none."""
    try:
        names = {name.lower() for (name, *_) in con.execute(f'DESCRIBE "{view}"').fetchall()}
    except duckdb.Error:
        return set()
    # those of machines and designs say where a machine is infeasible
    return {*KEYS} & names - ({"workload", "einsum"} if view in ("machines", "designs") else set())


def _nearest_numbers(con: duckdb.DuckDBPyConnection, view: str, column: str, wanted: float) -> str:
    """Returns the values of a column of numbers next to one that no row has; "" where a row has it."""
    number = f"{wanted!r}"
    (has, count, below, above), *_ = con.execute(
        f'SELECT coalesce(bool_or("{column}" = {number}), false), count(DISTINCT "{column}"), '
        f'max("{column}") FILTER ("{column}" < {number}), min("{column}") FILTER ("{column}" > {number}) '
        f'FROM "{view}"'
    ).fetchall()
    near = " and ".join(_shown(value) for value in (below, above) if value is not None)
    return "" if has else f"the nearest of {count} values are {near}"


def of_left_out(con: duckdb.DuckDBPyConnection, statement: str) -> str:
    """Returns how many of the machines that what_if or robust are asked for have no schedule, and why; "" of
    other statements, and where all have one.
    """
    if not (REPRICED.search(statement) and (listed := ASKED.search(statement))):
        return ""
    machines = [*dict.fromkeys(map(int, re.findall(r"\d+", listed[1])))]
    why = list(filter(None, (_no_row_of_machine(con, machine) for machine in machines)))
    more = f"; {len(why) - MAX_SAID} more" if len(why) > MAX_SAID else ""
    said = f"{'; '.join(why[:MAX_SAID])}{more}"
    return f"{len(why)} of the {len(machines)} machines are left out: {said}" if why else ""


def of_timeout(statement: str) -> str:
    """Returns what makes a statement over computed views, or a join of rows of machines, shorter, or that
    nothing does; "" where it is none of these.

    >>> of_timeout("FROM what_if({dram_pj: 0.5}) WHERE machine IN (1, 2)").partition(": ")[2]
    'name some, what_if(..., machines := (SELECT list(machine) FROM designs WHERE ...)), or try --timeout 600'
    >>> of_timeout("FROM designs a JOIN points b USING (schedule)")
    'designs and points are joined without machine: write USING (machine, ...), with all columns of both'
    >>> of_timeout("FROM designs")
    ''
    """
    if repriced := REPRICED.search(statement):
        macro = repriced[1].lower()
        fewer = ", or fewer samples" * (macro == "robust")
        return (
            f"{macro} chooses mappings again for every machine of the run: name some, {macro}(..., "
            f"machines := (SELECT list(machine) FROM designs WHERE ...)), or try --timeout 600{fewer}"
        )
    with duckdb.connect() as con:
        found = [*nodes(_tree(con, statement))]
    tables = [node["table_name"].lower() for node in found if node.get("type") == "BASE_TABLE"]
    of_machines = [name for name in tables if name not in OF_NO_MACHINE]
    computed = [name for name in tables if name in (*VIEWS, *OF_TRAFFIC)]
    has_join = any(node.get("type") == "JOIN" for node in found)
    if has_join and len(of_machines) > 1 and not any(map(_joins_machines, found)):
        names = " and ".join(dict.fromkeys(of_machines))
        return f"{names} are joined without machine: write USING (machine, ...), with all columns of both"
    if not computed or any(map(_names_machines, found)):
        return ""
    names = " and ".join(dict.fromkeys(computed))
    condition = (
        "machine = 17, of each of them"
        if len(computed) > 1
        else "machine = 17, or machine IN (SELECT machine FROM pareto('points', ['energy_pj', 'latency_ns']))"
    )
    return (
        f"{names}: computed for every machine that is not left out, seconds for each thousand of them; "
        f"add WHERE {condition}"
    )


def of_slow(statement: str) -> str:
    """Returns what `of_timeout` does, if the statement is one that names no machines.

    >>> of_slow("FROM what_if({dram_pj: 0.5}, machines := [1, 2])")
    ''
    """
    return "" if NAMED.search(statement) else of_timeout(statement)


def _tree(con: duckdb.DuckDBPyConnection, statement: str) -> Mapping[str, Any]:
    found: dict[str, Any] = json.loads(
        con.execute(f"SELECT json_serialize_sql({literal(statement)})").fetchall()[0][0]
    )
    return found


def _compared(found: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str | float]]:
    """Yields (column, text or number) of each condition column = 'text' and column IN ('text', ...)."""
    for node in found:
        match node.get("type"):
            case "COMPARE_EQUAL":
                sides = [node["left"], node["right"]]
            case "COMPARE_IN":
                sides = node["children"]
            case _:
                continue
        columns = [side["column_names"][-1] for side in sides if side["type"] == "COLUMN_REF"]
        constants = [_constant(side["value"]) for side in sides if side["type"] == "VALUE_CONSTANT"]
        if len(columns) == 1:
            yield from ((columns[0], one) for one in constants if one is not None)


def _bounded(found: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str, float]]:
    """Yields (column, kind of condition, number) of each condition column < number, > number and so on."""
    ends = (("lower", "COMPARE_GREATERTHANOREQUALTO"), ("upper", "COMPARE_LESSTHANOREQUALTO"))
    for node in found:
        kind = str(node.get("type"))  # of values, a mapping
        conditions = [(kind, node["left"], node["right"])] if kind in COMPARED else []
        if kind == "COMPARE_BETWEEN":
            conditions = [(one, node["input"], node[end]) for end, one in ends]
        for one, left, right in conditions:
            if left["type"] == "VALUE_CONSTANT":
                _, side, rest = one.partition("LESS" if "LESS" in one else "GREATER")
                left, right, one = right, left, f"COMPARE_{MIRRORED[side]}{rest}"
            number = _constant(right["value"]) if right["type"] == "VALUE_CONSTANT" else None
            if left["type"] == "COLUMN_REF" and isinstance(number, int | float):
                yield left["column_names"][-1], one, number


def _constant(node: Mapping[str, Any]) -> str | float | None:
    """Returns a text or a number of a statement; None for other constants."""
    value = node.get("value")
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    scale = (node["type"]["type_info"] or {}).get("scale", 0)  # of 2.5, a decimal: 25 and 1
    return value / 10**scale if scale and not isinstance(value, str) else value


def _joins_machines(node: Mapping[str, Any]) -> bool:
    """True of a join or a condition by which rows of the same machine meet."""
    if node.get("type") == "COMPARE_EQUAL":
        return all(_is_machine(node[side]) for side in ("left", "right"))
    return node.get("type") == "JOIN" and (
        "machine" in map(str.lower, node["using_columns"]) or node["ref_type"] == "NATURAL"
    )


def _names_machines(node: Mapping[str, Any]) -> bool:
    """True of a condition that leaves machines out."""
    sides = [node.get("left"), node.get("right"), node.get("child"), *node.get("children", [])]
    is_condition = node.get("type") in ("COMPARE_EQUAL", "COMPARE_IN", "SUBQUERY")
    return is_condition and not _joins_machines(node) and any(map(_is_machine, filter(None, sides)))


def _is_machine(node: Mapping[str, Any]) -> bool:
    return node.get("type") == "COLUMN_REF" and node["column_names"][-1].lower() == "machine"


def _shown(value: str | float) -> str:
    return literal(value) if isinstance(value, str) else f"{value:.15g}"


def _likeness(one: str | float, other: str | float) -> float:
    """Returns how alike two texts are; of numbers 0."""
    if isinstance(one, str) and isinstance(other, str):
        return SequenceMatcher(None, one.lower(), other.lower()).ratio()
    return 0.0
