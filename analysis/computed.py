"""Views of values that a run does not store but compute on demand (sql/computed.sql), and the narrowing of
statements over them to the machines that they ask for.

DuckDB calls a function for all rows that reach it, before a join removes most of them: `machine IN (SELECT
...)` would compute millions of rows. Therefore the inner SELECT of such a statement is answered first, and
the views are narrowed to its machines before functions are called. Of `einsums JOIN designs USING (machine)
WHERE array_x = 16` the inner SELECT is that of the machines of `designs` that meet its own conditions, of
`components JOIN pareto('points', ...) USING (machine)` that of the machines of the front.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import duckdb
import pyarrow as pa

# views whose rows are computed for unfused schedules, and stored for all others
VIEWS = ("choices", "einsums", "workload_costs", "prices", "schedules", "segments")
OF_MACHINES = ("designs", "machines", "points")  # views with rows per machine that call no such function
FRONTS = ("pareto", "epsilon_front", "knee")  # macros that return rows of machines
# parts of a condition whose value depends on nothing but a row
PLAIN = {
    *("COLUMN_REF", "VALUE_CONSTANT", "CONJUNCTION_AND", "CONJUNCTION_OR", "COMPARE_BETWEEN", "COMPARE_IN"),
    *("COMPARE_NOT_IN", "COMPARE_EQUAL", "COMPARE_NOTEQUAL", "COMPARE_LESSTHAN", "COMPARE_GREATERTHAN"),
    *("COMPARE_LESSTHANOREQUALTO", "COMPARE_GREATERTHANOREQUALTO", "OPERATOR_CAST", "OPERATOR_NOT"),
    *("OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL"),
}
OF_TRAFFIC = ("traffic", "components")  # views of the traffic of choices
PACKED = "chosen"  # the table that choices are stored in
ONLY_ASKED = "SEMI JOIN internal.asked USING (machine)"
INT_TYPES = ("BIGINT", "INTEGER", "UBIGINT", "HUGEINT")  # types that a column of machine numbers may have
# Up to so many machines, choices are copied into the table internal.gathered before the view `traffic` costs
# them: the view uses them twice, and from a table they are costed in one call.
MAX_GATHERED = 50_000


# (name, function of Arrow columns, SQL types of its arguments and of its result, takes and returns NULL)
Function = tuple[str, Callable[..., pa.Array], Sequence[str], str, bool]


@dataclass(frozen=True, slots=True)
class Computed:
    """What computed views need."""

    functions: Sequence[Function]
    ratios: Mapping[str, str]  # view -> SQL of its columns that are made of its others


def register(con: duckdb.DuckDBPyConnection, computed: Computed) -> None:
    """Makes the functions available in SQL, and creates the table internal.ratios."""
    add_functions(con, computed.functions)
    con.execute("CREATE TABLE internal.ratios (view VARCHAR, columns VARCHAR)")
    rows = ", ".join(f"({literal(view)}, {literal(columns)})" for view, columns in computed.ratios.items())
    con.execute(f"INSERT INTO internal.ratios VALUES {rows}")


def add_functions(con: duckdb.DuckDBPyConnection, functions: Sequence[Function]) -> None:
    """Makes functions available in SQL."""
    for name, function, argument_types, result_type, may_be_null in functions:
        nulls = "special" if may_be_null else "default"
        con.create_function(
            name, function, list(argument_types), result_type, type="arrow", null_handling=nulls
        )


def create_views(con: duckdb.DuckDBPyConnection) -> None:
    """Creates the views over stored choices (internal.stored_chosen) and machines."""
    keys = [
        name
        for (name, *_) in con.execute(f"DESCRIBE internal.stored_{PACKED}").fetchall()
        if name.startswith("mapping_")
    ]
    text = _sql("computed").replace("[positions]", str(list(range(1, len(keys) + 1))))
    for view in ("einsums", "workload_costs"):
        text = text.replace(f"[ratios of {view}]", ratios_sql(con, view))
    axes = [f'"{name}"' for name in study_axes(con)]
    text = text.replace("[axes of m]", "".join(f"m.{name}, " for name in axes))
    con.execute(text.replace("[axes]", "".join(f", {name}" for name in axes)))


def study_axes(con: duckdb.DuckDBPyConnection) -> list[str]:
    """Returns the columns of the study's axes; [] where none are known."""
    found: list[str] = con.execute("SELECT study_axes()").fetchall()[0][0]
    return found


def ratios_sql(con: duckdb.DuckDBPyConnection, view: str) -> str:
    """Returns SQL for the ratios of a view, as columns of a SELECT."""
    ((found,),) = con.execute(f"SELECT columns FROM internal.ratios WHERE view = {literal(view)}").fetchall()
    return str(found)


def create_sources(con: duckdb.DuckDBPyConnection, only: str = "", only_points: str = "") -> None:
    """Creates the views from which computed views take machines and choices, and that of points; does nothing
    if no functions are registered. only, only_points: SQL of a join that leaves machines out.
    """
    if con.execute(
        "SELECT count(*) FROM duckdb_tables() WHERE schema_name = 'internal' AND table_name = 'ratios'"
    ).fetchall() == [(0,)]:
        return
    keys = [
        name
        for (name, *_) in con.execute(f"DESCRIBE internal.stored_{PACKED}").fetchall()
        if name.startswith("mapping_")
    ]
    text = _sql("packed").replace("[keys]", f"[{', '.join(keys)}]")
    con.execute(text.replace("[only]", only).replace("[only points]", only_points))


def point_columns(con: duckdb.DuckDBPyConnection) -> dict[str, str]:
    """Returns SQL for each column of points p of machines m: the stored value, or if NULL the computed
    one.
    """
    functions = {
        name
        for (name,) in con.execute(
            "SELECT function_name FROM duckdb_functions() WHERE function_name LIKE 'follows_%'"
        ).fetchall()
    }
    arguments = "p.energy_pj, p.latency_cycles, m.clock_ghz, m.area_mm2, m.bound_energy_pj"
    names = [name for (name, *_) in con.execute("DESCRIBE internal.stored_points").fetchall()]
    return {
        name: f'coalesce(p."{name}", follows_{name}({arguments})) AS "{name}"'
        if f"follows_{name}" in functions
        else f'p."{name}"'
        for name in names
    }


@contextmanager
def narrow(con: duckdb.DuckDBPyConnection, text: str) -> Iterator[str]:
    """Yields the statement to run instead of this one. Within the context, views have only the machines that
    the statement asks for, if it names them in a condition.
    """
    rewritten = _rewrite(con, text) if _has_machines(con) else None
    if rewritten is None:
        yield text
        return
    narrowed, view = rewritten
    try:
        create_sources(con, ONLY_ASKED)
        if view in OF_TRAFFIC and con.execute(
            f"SELECT count(*) <= {MAX_GATHERED} FROM internal.asked"
        ).fetchall() == [(True,)]:
            con.execute(
                "CREATE OR REPLACE TABLE internal.gathered AS SELECT machine, schedule, workload, "
                "keys FROM internal.packed"
            )
            con.execute("CREATE OR REPLACE VIEW internal.packed AS FROM internal.gathered")
        yield narrowed
    finally:
        widen(con)


@contextmanager
def narrow_to(con: duckdb.DuckDBPyConnection, machines: pa.Table) -> Iterator[None]:
    """Narrows the views to these machines within the context; internal.asked has the rows given. After a
    fault the views stay narrow until the next statement, which calls `widen`.
    """
    con.register("machines_of_a_front", machines)
    con.execute("CREATE OR REPLACE TABLE internal.asked AS FROM machines_of_a_front")
    con.unregister("machines_of_a_front")
    create_sources(con, ONLY_ASKED, ONLY_ASKED)
    yield
    widen(con)


def widen(con: duckdb.DuckDBPyConnection) -> None:
    """Gives the views all machines again, if they are narrow, also after an interrupted statement."""
    if is_narrow(con):
        create_sources(con)
        con.execute("DROP TABLE internal.asked; DROP TABLE IF EXISTS internal.gathered")


def is_narrow(con: duckdb.DuckDBPyConnection) -> bool:
    """True while the views are narrowed to machines."""
    found = con.execute(
        "SELECT count(*) FROM duckdb_tables() WHERE schema_name = 'internal' AND table_name = 'asked'"
    ).fetchall()
    return found != [(0,)]


def _has_machines(con: duckdb.DuckDBPyConnection) -> bool:
    """False where the tables were given (`db.query_tables`) and nothing is computed."""
    found = con.execute("SELECT count(*) FROM duckdb_views() WHERE view_name = 'built'").fetchall()
    return found != [(0,)]


def _rewrite(con: duckdb.DuckDBPyConnection, text: str) -> tuple[str, str] | None:
    """Moves the machines of the first condition `machine IN (SELECT ...)` or `machine = (SELECT ...)` on a
    computed view to internal.asked; without one, those of a joined view that its conditions leave.

    Returns the new statement and the view that it reads; None where narrowing gains nothing, or the inner
    SELECT depends on the outer one.
    """
    tree = json.loads(con.execute(f"SELECT json_serialize_sql({literal(text)})").fetchall()[0][0])
    asked = (
        _machines(one, view)
        for node in nodes(tree)
        for view in filter(_is_view, _joined(node.get("from_table")))
        for one in _conditions(node["where_clause"])
    )
    inner = next(filter(None, asked), None)
    is_condition = inner is not None
    inner = inner or _of_joined_views(con, tree)
    if inner is None:
        return None
    # what the inner SELECT reads is answered before the views are narrowed
    inside = {id(node) for node in nodes(inner)}
    outside = [node for node in nodes(tree) if id(node) not in inside]
    # in a WITH clause a name that the inner SELECT reads may be defined anew
    has_with = any(node["cte_map"]["map"] for node in nodes(tree) if "cte_map" in node)
    read = [node["table_name"].lower() for node in outside if _is_view(node)]
    if len(read) != 1 or has_with or any(node.get("type") == "TABLE_FUNCTION" for node in outside):
        return None
    try:
        parsed = literal(json.dumps({"error": False, "statements": [inner]}))
        (inner_sql,) = con.execute(f"SELECT json_deserialize_sql({parsed}::JSON)").fetchall()[0]
        con.execute(
            f"CREATE OR REPLACE TABLE internal.asked AS SELECT * FROM ({inner_sql}) AS inner_select(machine)"
        )
    except duckdb.InterruptException:
        raise
    except duckdb.Error:
        return None
    if con.execute("DESCRIBE internal.asked").fetchall()[0][1] not in INT_TYPES:
        con.execute("DROP TABLE internal.asked")
        return None
    replacement = json.loads(
        con.execute("SELECT json_serialize_sql('SELECT machine FROM internal.asked')").fetchall()[0][0]
    )
    if not is_condition:  # the join and its conditions stay
        return text, read[0]
    inner["node"] = replacement["statements"][0]["node"]
    (new_statement,) = con.execute(
        f"SELECT json_deserialize_sql({literal(json.dumps(tree))}::JSON)"
    ).fetchall()[0]
    return str(new_statement), read[0]


def _of_joined_views(con: duckdb.DuckDBPyConnection, tree: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the SELECT of the machines of a front that is joined by machine to a computed view; or of those
    of a view of OF_MACHINES, joined like that, that meet the conditions on its columns alone; None where
    there is neither.
    """
    for node in nodes(tree):
        source = node.get("from_table")
        if not (tables := _joined_by_machine(source)) or not any(map(_is_view, tables)):
            continue
        selected = json.loads(
            con.execute("SELECT json_serialize_sql('SELECT machine FROM t WHERE a AND b')").fetchall()[0][0]
        )["statements"][0]
        if front := next(filter(_is_front, tables), None):
            selected["node"] |= {"from_table": front, "where_clause": None}
            return selected
        for table in tables:
            if table["type"] != "BASE_TABLE" or table["table_name"].lower() not in OF_MACHINES:
                continue
            others = [one for one in tables if one is not table]
            own = [one for one in _conditions(node["where_clause"]) if _is_about(con, one, table, others)]
            if own:
                where = selected["node"]["where_clause"] | {"children": own}
                selected["node"] |= {"from_table": table, "where_clause": where if len(own) > 1 else own[0]}
                return selected
    return None


def _is_front(table: dict[str, Any]) -> bool:
    """True of a macro of FRONTS, as a table of a FROM clause, whose rows are made of no computed view."""
    function = table.get("function") or {}
    if table["type"] != "TABLE_FUNCTION" or function.get("function_name", "").lower() not in FRONTS:
        return False
    texts = [str(node["value"]["value"]) for node in nodes(function) if node.get("class") == "CONSTANT"]
    words = {word for text in texts for word in re.findall(r"\w+", text.lower())}
    return not words & {*VIEWS, *OF_TRAFFIC}


def _joined_by_machine(source: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Returns the tables of a FROM clause of inner joins, each USING (machine, ...); [] of others."""
    if source is None or source["type"] != "JOIN":
        return [] if source is None else [source]
    sides = [_joined_by_machine(source[side]) for side in ("left", "right")]
    is_by_machine = source["join_type"] == "INNER" and "machine" in map(str.lower, source["using_columns"])
    return [*sides[0], *sides[1]] if is_by_machine and all(sides) else []


def _is_about(
    con: duckdb.DuckDBPyConnection,
    condition: dict[str, Any],
    table: dict[str, Any],
    others: list[dict[str, Any]],
) -> bool:
    """True of a condition on columns of this table alone; those without a table are of none of the others."""
    found = [*nodes(condition)]
    # operators are functions, too: x * 2, x LIKE 'a%'
    if any("class" in node and node["type"] not in PLAIN and not node.get("is_operator") for node in found):
        return False
    references = [
        [*map(str.lower, node["column_names"])] for node in found if node.get("type") == "COLUMN_REF"
    ]
    own, *foreign = (_columns_of(con, one) for one in (table, *others))
    alias = (table["alias"] or table["table_name"]).lower()
    return bool(references) and all(
        reference[-1] in own
        and (
            reference[:-1] == [alias]
            or (len(reference) == 1 and not any(reference[0] in one for one in foreign))
        )
        for reference in references
    )


def _columns_of(con: duckdb.DuckDBPyConnection, table: dict[str, Any]) -> set[str]:
    """Returns the columns of a table of a FROM clause."""
    found = json.loads(con.execute("SELECT json_serialize_sql('FROM t')").fetchall()[0][0])
    found["statements"][0]["node"]["from_table"] = table
    (text,) = con.execute(f"SELECT json_deserialize_sql({literal(json.dumps(found))}::JSON)").fetchall()[0]
    return {name.lower() for (name, *_) in con.execute(f"DESCRIBE {text}").fetchall()}


def _joined(source: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    """Yields the tables of a FROM clause that inner and left joins join: no other makes rows of what a table
    lacks.
    """
    if source is not None and source["type"] == "JOIN" and source["join_type"] in ("INNER", "LEFT"):
        yield from _joined(source["left"])
        yield from _joined(source["right"])
    elif source is not None:
        yield source


def _is_view(node: dict[str, Any]) -> bool:
    """Tells whether a part of a statement is a computed view."""
    return node.get("type") == "BASE_TABLE" and node["table_name"].lower() in (*VIEWS, *OF_TRAFFIC)


def _conditions(where: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Returns the conditions that are joined by AND."""
    if where is None:
        return []
    return (
        [one for child in where["children"] for one in _conditions(child)]
        if where["type"] == "CONJUNCTION_AND"
        else [where]
    )


def _machines(condition: dict[str, Any], view: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the SELECT of a condition on `machine` of this view; None if the condition has another form."""
    if condition["type"] == "COMPARE_EQUAL":
        column, select, kind = condition["left"], condition["right"], "SCALAR"
    else:
        column, select, kind = condition.get("child") or {}, condition, "ANY"
    *of, name = map(str.lower, column.get("column_names") or [""])
    is_machine = name == "machine" and of in ([], [(view["alias"] or view["table_name"]).lower()])
    if (
        is_machine
        and select["type"] == "SUBQUERY"
        and select["subquery_type"] == kind
        and condition.get("comparison_type", "COMPARE_EQUAL") == "COMPARE_EQUAL"
    ):
        found: dict[str, Any] = select["subquery"]
        return found
    return None


def literal(text: str) -> str:
    """Returns a text as SQL writes it. A parameter of a statement would make DuckDB import pandas."""
    return "'" + text.replace("'", "''") + "'"


def nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """Yields all objects of a parsed statement (DuckDB's JSON syntax tree), depth first, parents before
    children.
    """
    if isinstance(tree, dict):
        yield tree
    for inner in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from nodes(inner)


def _sql(name: str) -> str:
    return (files("analysis") / "sql" / f"{name}.sql").read_text()
