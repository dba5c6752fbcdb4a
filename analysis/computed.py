"""Views of what a run does not store (sql/computed.sql), and statements over them that look for their
machines first.

DuckDB calls a function for all rows that reach it, and a join that leaves most of them out comes after:
`machine IN (SELECT ...)` would compute millions of rows. So the inner SELECT of such a statement is answered
first, and the views are narrowed to its machines before a function sees them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import duckdb
import pyarrow as pa

# of einsums in turn computed, else stored
VIEWS = ("choices", "einsums", "workload_costs", "prices", "schedules", "segments")
PACKED = "chosen"  # the table that choices are stored in
ONLY = "SEMI JOIN internal.asked USING (machine)"
WHOLE = ("BIGINT", "INTEGER", "UBIGINT", "HUGEINT")
# machines whose choices are read before `traffic` computes anything of them: once, though it reads them
# twice, and costed in one call
GATHERED = 50_000


@dataclass(frozen=True, slots=True)
class Computed:
    """functions: name, Arrow columns in and out, their types in SQL; uniques: different einsums by
    workload."""

    functions: Sequence[tuple[str, Callable[..., pa.Array], Sequence[str], str]]
    uniques: pa.Table


def register(con: duckdb.DuckDBPyConnection, computed: Computed) -> None:
    """Make the functions available in SQL, and the table internal.uniques (distinct einsums per workload)."""
    for name, call, takes, gives in computed.functions:
        con.create_function(name, call, list(takes), gives, type="arrow")
    con.register("of_workloads", computed.uniques)
    con.execute("CREATE TABLE internal.uniques AS FROM of_workloads")
    con.unregister("of_workloads")


def views(con: duckdb.DuckDBPyConnection) -> None:
    """Over what is stored of choices (internal.stored_chosen) and machines."""
    keys = [
        name
        for (name, *_) in con.execute(f"DESCRIBE internal.stored_{PACKED}").fetchall()
        if name.startswith("mapping_")
    ]
    con.execute(_sql("computed").replace("[positions]", str(list(range(1, len(keys) + 1)))))


def source(con: duckdb.DuckDBPyConnection, only: str = "") -> None:
    """What the views take machines, points and choices from, where any are computed. only: a join that leaves
    machines out.
    """
    if con.execute(
        "SELECT count(*) FROM duckdb_tables() WHERE schema_name = 'internal' AND table_name = 'uniques'"
    ).fetchall() == [(0,)]:
        return
    keys = [
        name
        for (name, *_) in con.execute(f"DESCRIBE internal.stored_{PACKED}").fetchall()
        if name.startswith("mapping_")
    ]
    con.execute(_sql("packed").replace("[keys]", f"[{', '.join(keys)}]").replace("[only]", only))


def points(con: duckdb.DuckDBPyConnection) -> dict[str, str]:
    """Columns of points p of machines m: stored ones, and where they are NULL what follows."""
    known = {
        name
        for (name,) in con.execute(
            "SELECT function_name FROM duckdb_functions() WHERE function_name LIKE 'follows_%'"
        ).fetchall()
    }
    given = "p.energy_pj, p.latency_cycles, m.clock_ghz, m.area_mm2, m.bound_energy_pj"
    names = [name for (name, *_) in con.execute("DESCRIBE internal.stored_points").fetchall()]
    return {
        name: f'coalesce(p."{name}", follows_{name}({given})) AS "{name}"'
        if f"follows_{name}" in known
        else f'p."{name}"'
        for name in names
    }


@contextmanager
def narrow(con: duckdb.DuckDBPyConnection, text: str) -> Iterator[str]:
    """The statement to run in place of this one; meanwhile the views hold only the machines that it asks for,
    if it says so.
    """
    found = _rewrite(con, text)
    if found is None:
        yield text
        return
    narrow, view = found
    try:
        source(con, ONLY)
        if view == "traffic" and con.execute(
            "SELECT count(*) <= ? FROM internal.asked", [GATHERED]
        ).fetchall() == [(True,)]:
            con.execute(
                "CREATE OR REPLACE TABLE internal.gathered AS SELECT machine, schedule, workload, "
                "keys FROM internal.packed"
            )
            con.execute("CREATE OR REPLACE VIEW internal.packed AS FROM internal.gathered")
        yield narrow
    finally:
        widen(con)


@contextmanager
def only(con: duckdb.DuckDBPyConnection, machines: pa.Table) -> Iterator[None]:
    """Meanwhile the views hold only these machines, and internal.asked the rows given. After a fault the next
    statement widens them: this one may go on.
    """
    con.register("machines_of_a_front", machines)
    con.execute("CREATE OR REPLACE TABLE internal.asked AS FROM machines_of_a_front")
    con.unregister("machines_of_a_front")
    source(con, ONLY)
    yield
    widen(con)


def widen(con: duckdb.DuckDBPyConnection) -> None:
    """All machines again, also after an interrupt that came between."""
    if con.execute(
        "SELECT count(*) FROM duckdb_tables() WHERE schema_name = 'internal' AND table_name = 'asked'"
    ).fetchall() != [(0,)]:
        source(con)
        con.execute("DROP TABLE internal.asked; DROP TABLE IF EXISTS internal.gathered")


def _rewrite(con: duckdb.DuckDBPyConnection, text: str) -> tuple[str, str] | None:
    """With the machines of its one condition `machine IN (SELECT ...)` or `machine = (SELECT ...)` in
    internal.asked, and the view that it is on; None where nothing is gained or the SELECT cannot stand alone.
    """
    tree = json.loads(con.execute("SELECT json_serialize_sql(?::VARCHAR)", [text]).fetchall()[0][0])
    parts = list(nodes(tree))
    views = [
        node
        for node in parts
        if node.get("type") == "BASE_TABLE" and node["table_name"].lower() in (*VIEWS, "traffic")
    ]
    # a name of the statement's own may stand for another table inside
    named = any(node["cte_map"]["map"] for node in parts if "cte_map" in node)
    if len(views) != 1 or named or any(node.get("type") == "TABLE_FUNCTION" for node in parts):
        return None
    own = next((node for node in parts if node.get("from_table") is views[0]), None)
    inner = next(filter(None, map(_machines, _conditions(own.get("where_clause")))), None) if own else None
    if inner is None:
        return None
    try:
        (asked,) = con.execute(
            "SELECT json_deserialize_sql(?::JSON)", [json.dumps({"error": False, "statements": [inner]})]
        ).fetchall()[0]
        con.execute(
            f"CREATE OR REPLACE TABLE internal.asked AS SELECT * FROM ({asked}) AS inner_select(machine)"
        )
    except duckdb.InterruptException:
        raise
    except duckdb.Error:
        return None
    if con.execute("DESCRIBE internal.asked").fetchall()[0][1] not in WHOLE:
        con.execute("DROP TABLE internal.asked")
        return None
    stands = json.loads(
        con.execute("SELECT json_serialize_sql('SELECT machine FROM internal.asked')").fetchall()[0][0]
    )
    inner["node"] = stands["statements"][0]["node"]
    (found,) = con.execute("SELECT json_deserialize_sql(?::JSON)", [json.dumps(tree)]).fetchall()[0]
    return str(found), str(views[0]["table_name"]).lower()


def _conditions(where: dict[str, Any] | None) -> list[dict[str, Any]]:
    """All of which must hold."""
    if where is None:
        return []
    return (
        [one for child in where["children"] for one in _conditions(child)]
        if where["type"] == "CONJUNCTION_AND"
        else [where]
    )


def _machines(condition: dict[str, Any]) -> dict[str, Any] | None:
    """The SELECT of a condition on `machine`."""
    if condition["type"] == "COMPARE_EQUAL":
        column, select, kind = condition["left"], condition["right"], "SCALAR"
    else:
        column, select, kind = condition.get("child") or {}, condition, "ANY"
    is_machine = column.get("type") == "COLUMN_REF" and column["column_names"][-1].lower() == "machine"
    if (
        is_machine
        and select["type"] == "SUBQUERY"
        and select["subquery_type"] == kind
        and condition.get("comparison_type", "COMPARE_EQUAL") == "COMPARE_EQUAL"
    ):
        found: dict[str, Any] = select["subquery"]
        return found
    return None


def nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """All objects of a parsed statement (DuckDB's JSON syntax tree), depth first, parents before children."""
    if isinstance(tree, dict):
        yield tree
    for inner in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from nodes(inner)


def _sql(name: str) -> str:
    return (files("analysis") / "sql" / f"{name}.sql").read_text()
