"""Which column of a view a result's column is: values of each column lie in a range of their own, so a wrong
origin shows in the values.
"""

from __future__ import annotations

import random

import duckdb
import pytest

from analysis import origin

# values of a column: so much and the next ten
RANGES = {"machine": 1000, "energy_pj": 2000, "area_mm2": 3000, "latency_ns": 4000}
NAMES = (*RANGES, "x")
VIEWS = {"designs": ("machine", "energy_pj", "area_mm2"), "costs": ("machine", "energy_pj", "latency_ns")}

EXACT = {  # statement -> origin of each column, "-" for none
    "SELECT energy_pj AS e, log(energy_pj) AS log_pj, energy_pj / area_mm2 AS pj_per_mm2 "
    "FROM designs": "energy_pj - -",
    "SELECT min(energy_pj) AS energy_pj, any_value(area_mm2) AS machine FROM designs": "energy_pj area_mm2",
    "SELECT round(avg(energy_pj), 2), sum(area_mm2), arg_min(machine, energy_pj), count(energy_pj), "
    "max(energy_pj / area_mm2), -min(energy_pj), ln(energy_pj) + 1 AS energy_pj FROM designs "
    "GROUP BY energy_pj": "energy_pj area_mm2 machine - - energy_pj -",
    "SELECT max(energy_pj) - min(energy_pj), energy_pj + latency_ns, energy_pj * machine, "
    "sum(energy_pj * 2) FROM costs GROUP BY ALL": "energy_pj - - -",
    "FROM designs": "machine energy_pj area_mm2",
    "SELECT d.energy_pj, C.latency_ns, d.energy_pj * 2 AS energy_pj FROM main.designs d JOIN costs c "
    "ON c.machine = d.machine": "energy_pj latency_ns -",
    "SELECT * EXCLUDE (machine) REPLACE (area_mm2 * 2 AS area_mm2) FROM designs": "energy_pj -",
    "SELECT * RENAME (energy_pj AS area_mm2, area_mm2 AS energy_pj) FROM designs": "machine - -",
    "SELECT COLUMNS('.*_pj') FROM designs": "-",
    "FROM designs JOIN costs USING (machine)": "machine energy_pj area_mm2 energy_pj latency_ns",
    "FROM designs AS d(energy_pj, machine)": "machine energy_pj area_mm2",
    "WITH designs AS (SELECT area_mm2 AS energy_pj FROM designs) FROM designs": "area_mm2",
    "WITH c(e) AS (SELECT energy_pj FROM designs) SELECT e AS f FROM (FROM c) q": "energy_pj",
    "WITH RECURSIVE r AS (SELECT energy_pj FROM designs UNION ALL SELECT energy_pj + 1 FROM r WHERE "
    "energy_pj < 0) FROM r": "-",
    "SELECT energy_pj FROM (SELECT max(area_mm2) AS energy_pj FROM designs)": "area_mm2",
    "SELECT energy_pj FROM (FROM designs, costs)": "-",
    "SELECT energy_pj FROM designs UNION ALL SELECT energy_pj FROM costs": "energy_pj",
    "SELECT energy_pj FROM designs UNION ALL SELECT area_mm2 FROM designs": "-",
    "(FROM designs) UNION ALL BY NAME (FROM costs)": "machine energy_pj area_mm2 latency_ns",
    "SELECT energy_pj FROM designs FULL JOIN (SELECT area_mm2 AS energy_pj FROM designs) USING "
    "(energy_pj)": "-",
    "SELECT energy_pj, d.energy_pj AS e FROM designs d FULL JOIN range(3) r(energy_pj) USING "
    "(energy_pj)": "- energy_pj",
    "SELECT d.*, energy_pj FROM designs d FULL JOIN (SELECT area_mm2 AS energy_pj FROM designs) "
    "USING (energy_pj)": "machine energy_pj area_mm2 -",
    "FROM designs FULL JOIN (SELECT area_mm2 AS energy_pj FROM designs) USING "
    "(energy_pj)": "machine - area_mm2",
    "SELECT q.e FROM designs d, LATERAL (SELECT d.energy_pj AS e) q": "-",
    "SELECT CASE WHEN machine > 0 THEN energy_pj ELSE area_mm2 END AS energy_pj, energy_pj::INT AS "
    "energy_pj FROM designs": "- -",
    "SELECT energy_pj FROM (SELECT unnest({'energy_pj': 1}), energy_pj FROM designs)": "-",
    "PIVOT designs ON machine IN (1000) USING sum(energy_pj)": "- -",
    "SELECT energy_pj, area_mm2 FROM pareto('(SELECT energy_pj, area_mm2 * 2 AS area_mm2 FROM "
    "designs)', ['energy_pj'])": "energy_pj -",
    "FROM pareto2(costs, energy_pj, latency_ns)": "machine energy_pj latency_ns",
    "VALUES (1)": "-",
    "DESCRIBE designs": "- - - - - -",
}


def views() -> duckdb.DuckDBPyConnection:
    made = duckdb.connect(config={"threads": 1})
    for view, names in VIEWS.items():
        made.execute(
            f"CREATE VIEW {view} AS SELECT {', '.join(f'{RANGES[name]} + i AS {name}' for name in names)} "
            "FROM range(4) AS r(i)"
        )
    made.execute("CREATE MACRO pareto(tbl, objectives) AS TABLE FROM query('FROM ' || tbl || ' t')")
    made.execute("CREATE MACRO pareto2(tbl, a, b) AS TABLE FROM query_table(tbl)")
    return made


@pytest.fixture(scope="module")
def con() -> duckdb.DuckDBPyConnection:
    return views()


@pytest.mark.parametrize("statement", EXACT)
def test_what_has_the_unit_of_a_column_of_a_view(con: duckdb.DuckDBPyConnection, statement: str) -> None:
    names = con.sql(statement).to_arrow_table().column_names
    assert " ".join(source or "-" for source in origin.columns(con, statement, names)) == EXACT[statement]


def item(rng: random.Random) -> str:
    name, alias = rng.choice(NAMES), rng.choice(["", "", f" AS {rng.choice(NAMES)}"])
    return rng.choice(
        [
            f"{name}{alias}",
            f"{name}{alias}",
            f"a.{name}{alias}",
            f"b.{name}{alias}",
            f"{name} + 0.5 AS {rng.choice(NAMES)}",
            f"max({name}) OVER () / 2{alias}",
            f"{rng.choice(['max', 'any_value', 'min', 'lag'])}({name}) OVER (){alias}",
            "*",
            "a.*",
            f"* EXCLUDE ({name})",
            f"* REPLACE ({name} * 2 AS {rng.choice(NAMES)})",
            f"* RENAME ({name} AS {rng.choice(NAMES)})",
        ]
    )


def table(rng: random.Random, depth: int) -> str:
    names = rng.choice(["", "", "", f"({rng.choice(NAMES)})", f"({', '.join(rng.sample(NAMES, 2))})"])
    inner = rng.choice([*VIEWS, "c"]) if not depth or rng.random() < 0.4 else f"({statement(rng, depth - 1)})"
    return f"{inner} AS a{names}"


def statement(rng: random.Random, depth: int = 3) -> str:
    """A random SELECT, often one that DuckDB refuses."""
    given = f"WITH c AS ({statement(rng, depth - 1)}) " if depth and rng.random() < 0.2 else ""
    other = table(rng, max(depth - 1, 0)).replace(" AS a", " AS b")
    beside = rng.choice(
        [
            "",
            "",
            "",
            f" JOIN {other} USING (machine)",
            f" FULL JOIN {other} USING ({rng.choice(NAMES)})",
            f" POSITIONAL JOIN {other}",
            f" NATURAL JOIN {other}",
            f" SEMI JOIN {other} USING (machine)",
            f", {other}",
            ", range(2) b",
        ]
    )
    own = f"SELECT {', '.join(item(rng) for _ in range(rng.randint(1, 3)))} FROM {table(rng, depth)}{beside}"
    if depth and rng.random() < 0.25:
        own = (
            f"({own} LIMIT 4) "
            f"{rng.choice(['UNION ALL', 'UNION', 'UNION ALL BY NAME', 'EXCEPT', 'INTERSECT'])} "
            f"({statement(rng, depth - 1)})"
        )
    return given + own


def traced(con: duckdb.DuckDBPyConnection, seed: int, count: int, depth: int) -> int:
    """Columns, of so many random statements that DuckDB takes, that are said to be one of a view; each holds
    values of that one alone.
    """
    rng = random.Random(seed)
    ran = found = 0
    while ran < count:
        text = statement(rng, depth)
        try:
            result = con.execute(text).to_arrow_table()
        except duckdb.Error:
            continue
        ran += 1
        for source, column in zip(
            origin.columns(con, text, result.column_names), result.columns, strict=True
        ):
            if source:
                found += 1
                assert all(
                    v is None or (v == int(v) and 0 <= v - RANGES[source] < 10) for v in column.to_pylist()
                ), (source, text)
    return found


def test_values_of_random_statements_are_those_of_their_column(con: duckdb.DuckDBPyConnection) -> None:
    assert traced(con, seed=1, count=60, depth=2) > 60
