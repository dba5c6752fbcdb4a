"""Views over parts, fronts in SQL against a brute-force front, and the read-only gate."""

import gc
import itertools
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis import advice, db
from analysis.computed import Computed
from dse.explain import derived, functions
from dse.frontend.answers import Answer
from dse.run import folder, record
from dse.run.folder import Damaged
from dse.study import study as studies
from hw import die
from tests.amount import FULL

NUMBERS = itertools.count(1)
SCHEMAS = {
    "machines": pa.schema([("machine", pa.int64()), ("status", pa.string()), ("array_x", pa.int64())]),
    "points": pa.schema(
        [
            ("machine", pa.int64()),
            ("schedule", pa.int32()),
            ("energy_pj", pa.float64()),
            ("latency_ns", pa.float64()),
            ("feasible", pa.bool_()),
        ]
    ),
    "mappings": pa.schema([("mapping_key", pa.string()), ("nest", pa.string())]),
}


def publish(root: Path, **tables: list[list[dict[str, object]]]) -> None:
    """Each list of rows as one part, and the manifest over all of them."""
    parts = []
    for table, groups in tables.items():
        (root / "parts" / table).mkdir(parents=True, exist_ok=True)
        for rows in groups:
            name = f"{next(NUMBERS):06d}-0"
            path = root / folder.part_path(table, name)
            pq.write_table(
                pa.Table.from_pylist(rows).replace_schema_metadata(folder.part_metadata("", table, name)),
                path,
            )
            parts.append((table, path))
    groups = [
        {"name": path.stem, "level": 0, "parts": [[table, path.stat().st_size, folder.crc(path), 0]]}
        for table, path in parts
    ]
    listed(root, groups)


def listed(root: Path, groups: list[dict[str, Any]]) -> None:
    value = {
        "version": folder.MANIFEST_VERSION,
        "generation": next(NUMBERS),
        "identity": "",
        "groups": groups,
        "retired": [],
    }
    folder.write_bytes(root / folder.MANIFEST, folder.seal("manifest", value))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    publish(tmp_path)
    return tmp_path


def brute(values: np.ndarray) -> list[int]:
    """Rows that no other dominates, by the definition; a NaN is on no front and dominates nothing."""
    rows = [i for i in range(len(values)) if not np.isnan(values[i]).any()]
    return [
        i
        for i in rows
        if not any((values[j] <= values[i]).all() and (values[j] < values[i]).any() for j in rows)
    ]


def random_table(rng: np.random.Generator) -> tuple[pa.Table, np.ndarray, list[str], np.ndarray]:
    """A table with ties, duplicates, NULLs, NaNs, infinities and zeros of both signs; its minimised values;
    objectives; groups.
    """
    n, k = int(rng.integers(0, 60)), int(rng.integers(2, 6))
    values = rng.integers(-3, 4, (n, k)).astype(float) if rng.random() < 0.5 else rng.normal(size=(n, k))
    for special, share in ((np.nan, 0.03), (np.inf, 0.03), (-np.inf, 0.02), (-0.0, 0.05), (0.0, 0.05)):
        values[rng.random((n, k)) < share] = special
    if n:
        values = values[rng.integers(0, n, n)] if rng.random() < 0.3 else values
    missing = rng.random((n, k)) < 0.03
    signs = rng.choice([-1.0, 1.0], k)
    spell = {1.0: ["{}", "{}:min"], -1.0: ["-{}", "{}:max"]}
    objectives = [spell[float(s)][int(rng.integers(2))].format(f"c {i}") for i, s in enumerate(signs)]
    columns = {f"c {i}": pa.array(values[:, i], mask=missing[:, i]) for i in range(k)}
    groups = rng.integers(0, 3, n)
    table = pa.table({"row": pa.array(np.arange(n)), "grp": pa.array(groups, mask=groups == 2), **columns})
    return table, np.where(missing, np.nan, values) * signs, objectives, groups


def test_front_equals_brute_force_on_random_tables(run: Path) -> None:
    con, rng = db.connect(run), np.random.default_rng(7)
    for number in range(1000 if FULL else 24):
        table, values, objectives, groups = random_table(rng)
        con.register("source", table)
        con.execute("CREATE OR REPLACE TABLE t AS FROM source")
        listed = ", ".join(f"'{o}'" for o in objectives)
        found = con.execute(f"SELECT row FROM pareto('t', [{listed}]) ORDER BY row").fetchall()
        assert [row for (row,) in found] == brute(values)
        if number % 4:
            continue
        found = con.execute(
            f"SELECT row FROM pareto('t', [{listed}], grp := ['grp']) ORDER BY row"
        ).fetchall()
        expected = sorted(
            int(i) for g in range(3) for i in np.flatnonzero(groups == g)[brute(values[groups == g])]
        )
        assert [row for (row,) in found] == expected
        first, second = (
            f'{"-" if (o[0] == "-") or o.endswith("max") else ""}"c {i}"'
            for i, o in enumerate(objectives[:2])
        )
        found = con.execute(f"SELECT row FROM pareto2(t, {first}, {second}) ORDER BY row").fetchall()
        assert [row for (row,) in found] == brute(values[:, :2])


def test_macros_equal_their_definitions_on_random_tables(run: Path) -> None:
    """epsilon_front covers the front with few of its rows, knee is the least scaled sum, hypervolume counts
    cells, sensitivity is a mean of ratios: each by its definition in NumPy, one group after the other.
    """
    con, rng = db.connect(run), np.random.default_rng(11)
    for _ in range(200 if FULL else 24):
        k, n = int(rng.integers(1, 4)), int(rng.integers(1, 40))
        values = rng.integers(1, 9, (n, k)).astype(float)
        signs = rng.choice([-1.0, 1.0], k)
        groups, parameter = rng.integers(0, 2, n), rng.integers(0, 3, n)
        lots = rng.integers(0, 12, n)  # of few rows each: some have no partner
        columns = {f"c{i}": values[:, i] for i in range(k)}
        con.register(
            "source", pa.table({"row": np.arange(n), "g": groups, "l": lots, "p": parameter, **columns})
        )
        con.execute("CREATE OR REPLACE TABLE t AS FROM source")
        objectives = "[" + ", ".join(f"'c{i}{':max' if s < 0 else ''}'" for i, s in enumerate(signs)) + "]"

        def rows(macro: str, objectives: str = objectives) -> list[int]:
            statement = f"SELECT row FROM {macro.replace('OBJECTIVES', objectives)} ORDER BY row"
            return [row for (row,) in con.execute(statement).fetchall()]

        signed, expected = values * signs, list[int]()
        kept = rows("epsilon_front('t', OBJECTIVES, 0.3, grp := ['g'])")
        for group in np.unique(groups):
            own = np.flatnonzero(groups == group)
            front = own[brute(signed[own])]
            listed = signed[[row for row in kept if groups[row] == group]]
            assert set(map(tuple, listed)) <= set(map(tuple, signed[front]))
            for row in signed[front]:
                assert (listed <= row + 0.3 * abs(row)).all(axis=1).any()
            assert (listed.min(axis=0) == signed[front].min(axis=0)).all()
            low, high = signed[front].min(axis=0), signed[front].max(axis=0)
            scaled = (signed[front] - low) / np.where(high > low, high - low, 1.0)
            order = [
                (round(one.sum(), 9), round(one.max(), 9), *signed[row])
                for one, row in zip(scaled, front, strict=True)
            ]
            expected += [row for key, row in zip(order, front.tolist(), strict=True) if key == min(order)]
        assert rows("knee('t', OBJECTIVES, grp := ['g'])") == sorted(expected)
        reference = np.where(signs > 0, 10.0, 0.0)
        cells = np.indices([10] * k).reshape(k, -1).T - np.where(signs > 0, 0.0, 10.0)
        dominated = (signed[:, None, :] <= cells[None, :, :]).all(axis=2).any(axis=0).sum()
        statement = f"FROM hypervolume('t', {objectives}, reference := {reference.tolist()})"
        assert con.execute(statement).fetchall()[0][0] == pytest.approx(dominated)
        found = con.execute("FROM sensitivity('t', 'c0', 'p', ['l'])").fetchall()
        logs, counted = np.log(values[:, 0]), [len({*parameter[lots == lot]}) > 1 for lot in lots]
        ratios = logs - np.array([logs[lots == lot].mean() for lot in lots])
        assert [value for value, *_ in found] == np.unique(parameter).tolist()
        for value, count, paired, ratio in found:
            own = (parameter == value) & counted
            assert (count, paired) == ((parameter == value).sum(), own.sum())
            assert ratio == (pytest.approx(np.exp(ratios[own].mean())) if own.any() else None)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            "hypervolume('points', ['energy_pj', 'latency_ns'], reference := [1e12])",
            "references: 1, objectives: 2",
        ),
        ("hypervolume('points', ['energy_pj'], [1e12, 1])", "references: 2, objectives: 1"),
        ("knee('points', 'energy_pj')", r"objectives = 'energy_pj' is no list; give e.g. \['energy_pj'\]"),
        ("epsilon_front('points', 5, 3)", "objectives = 5 is no list"),
        ("epsilon_front('points', ['energy_pj'])", "epsilon missing; write epsilon_front"),
        ("epsilon_front('points', ['energy_pj'], -1)", "a share from 0 to 1"),
        ("epsilon_front('points', ['energy_pj'], 5)", "epsilon = 5: a share from 0 to 1, e.g. 0.05 for 5 %"),
        ("pareto('points', ['energy_pj', 'latency'])", "no such column; did you mean latency_ns"),
        ("pareto('(SELECT 1 AS b)', ['a'])", '"a": no such column; there are b'),
        ("pareto('points', ['certificate'])", "is VARCHAR, no number; numbers are energy_pj"),
        ("pareto('points', [energy_pj])", "names columns in single quotes"),
        ("pareto('points', ['energy_pj'], by := ['machine'])", "no argument by; write pareto"),
        ("pareto('points', ['energy_pj'], grp = ['machine'])", "named by grp := "),
        ("pareto('points', ['energy_pj'], grp := ['machin'])", "did you mean machine"),
        ("sensitivity('points', 'energy_pj', 'machine', 'schedule')", "given = 'schedule' is no list"),
    ],
)
def test_a_wrong_argument_of_a_macro_is_named(call: str, message: str) -> None:
    points = {"machine": [1], "energy_pj": [1.0], "latency_ns": [2.0], "certificate": ["optimal"]}
    with pytest.raises(db.QueryError, match=f"^{call.partition('(')[0]}: [^\n]*{message}[^\n]*$"):
        db.query_tables({"points": pa.table(points)}, f"FROM {call}")


@pytest.mark.parametrize(
    ("condition", "number"),
    [
        ("energy_pj < '1.5 uJ'", "1500000"),
        ("capacity = '32 nm'", "32"),
        ("capacity = '256 KiB'", "262144"),
        ("capacity IN ('64KiB')", "65536"),
        ("capacity = '1..5 KiB'", ""),
        ("capacity = 'large'", ""),
    ],
)
def test_a_quantity_as_a_text_is_told_as_the_number_to_write(condition: str, number: str) -> None:
    points = {"capacity": [262144], "energy_pj": [1.0]}
    with pytest.raises(db.QueryError) as fault:
        db.query_tables({"points": pa.table(points)}, f"FROM points WHERE {condition}")
    assert str(fault.value).endswith(f"; columns hold bare numbers: write {number}") == bool(number)
    assert "\n" not in str(fault.value)
    if number:  # which then is understood
        text = condition.partition("'")[2].partition("'")[0]
        db.query_tables(
            {"points": pa.table(points)}, f"FROM points WHERE {condition}".replace(f"'{text}'", number)
        )


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("SELECT array.x FROM points", "write array_x for array.x"),
        ("SELECT p.array.x FROM points p", "write p.array_x for p.array.x"),
        ("SELECT 'array.x' FROM points WHERE dram.kind = 'a'", "write dram_kind for dram.kind"),
        ('SELECT "dram.kind" FROM points', "write dram_kind for dram.kind"),
        ("FROM points WHERE array_x = 1.5 KiB", "columns hold bare numbers: write 1536 for 1.5 KiB"),
        ("FROM points WHERE array_x = = 4", ""),
        ("FROM points p JOIN points", "a JOIN says which rows meet: ... JOIN ... USING (machine, schedule)"),
        ("FROM points p JOIN points q USING (array_x) WHERE dram_kind = 'a' AND array_x = = 4", ""),
        ("FROM hypervolume('points', ['array_x'], group := ['dram_kind'])", "write grp := for group :="),
    ],
)
def test_axes_and_quantities_of_a_study_are_told_as_sql_has_them(statement: str, told: str) -> None:
    points = {"array_x": [4], "dram_kind": ["lpddr5"]}
    with pytest.raises(db.QueryError) as fault:
        db.query_tables({"points": pa.table(points)}, statement)
    assert ("; " in str(fault.value)) == bool(told)
    assert str(fault.value).endswith(told)


def test_a_parameter_that_is_no_axis_is_told_from_a_text() -> None:
    points = {"points": pa.table({"array_x": [4], "dram_kind": ["lpddr5"]})}
    for name, told in (
        ("gbuf_capacity", "not an axis of this study (fixed, if it is a parameter); the axes are array_x, d"),
        ("lpddr5", "a text stands in single quotes: 'lpddr5'"),
        ("dram_kin", "dram_kin: no such column; did you mean dram_kind?"),
    ):
        with pytest.raises(db.QueryError) as fault:
            db.query_tables(points, f"FROM points WHERE {name} = '4'", axes=["array_x", "dram_kind"])
        assert told in str(fault.value)
        assert ("not an axis" in str(fault.value)) == (name == "gbuf_capacity")


@pytest.mark.parametrize(
    ("condition", "note"),
    [
        ("kind = 'LPDDR5'", "no row of points has kind = 'LPDDR5'; there are 'lpddr5', 'ddr4'"),
        (
            "p.kind IN ('ddr3', 'ddr4') AND x > 4",
            "no row of points has kind = 'ddr3'; there are 'ddr4', 'lpddr5'; x of points goes from 1 to 2",
        ),
        ("kind = 'ddr4' AND x > 4", "x of points goes from 1 to 2"),
        ("kind <> 'ddr9' AND 0 >= x", "x of points goes from 1 to 2"),
        ("y > 17 AND y < 18", ""),
        ("y BETWEEN 40 AND 50", "y of points goes from 0 to 39"),
        ("energy_pj < 7", "energy_pj of points goes from 5e+08 to 1e+09 (500 uJ to 1 mJ)"),
        ("kind = 'lpddr5' OR kind = 'ddr3'", ""),  # has rows
        ("name = 'p40'", ""),  # of more than a few values
        ("x = 3", "no row of points has x = 3; there are 1, 2"),
        ("x IN (1, 2.5) AND kind <> kind", "no row of points has x = 2.5; there are 1, 2"),
        ("x = 2 AND kind <> kind", ""),
        ("y = 17.5", "no row of points has y = 17.5; the nearest of 40 values are 17 and 18"),
        ("y = 900", "no row of points has y = 900; the nearest of 40 values are 39"),
        ("y = 17 AND kind <> kind", ""),
    ],
)
def test_an_answer_without_rows_says_which_values_there_are(condition: str, note: str) -> None:
    points = {"kind": ["ddr4", "lpddr5"] * 20, "x": [1, 2] * 20, "name": [f"p{i}" for i in range(40)]}
    points |= {"y": [*range(40)], "energy_pj": [5e8, 1e9] * 20}
    found = db.query_tables({"points": pa.table(points)}, f"FROM points p WHERE {condition}")
    assert Answer(found).note == note
    assert repr(Answer(found)).endswith(note)
    of_all = db.query_tables({"points": pa.table(points)}, f"SELECT max(y) FROM points p WHERE {condition}")
    assert Answer(of_all).note == note


def test_a_sum_of_costs_of_single_occurrences_says_so() -> None:
    einsums = {"einsums": pa.table({"energy_pj": [3.0, 4.0], "occurrences": [2, 1]})}
    said = "energy_pj of einsums is that of one occurrence: a run has sum(energy_pj * occurrences)"
    for statement, note in (
        ("SELECT sum(energy_pj) FROM einsums", said),
        ("SELECT sum(energy_pj * occurrences) FROM einsums", ""),
        ("SELECT max(energy_pj) FROM einsums", ""),
    ):
        assert Answer(db.query_tables(einsums, statement)).note == note


def test_a_hypervolume_of_zero_says_why() -> None:
    points = {"points": pa.table({"energy_pj": [3.0, 4.0], "area_mm2": [2.0, 1.0]})}
    call = "FROM hypervolume('points', ['energy_pj', 'area_mm2'], [{}, 3])"
    assert Answer(db.query_tables(points, call.format(3))).note == db.NO_VOLUME
    assert Answer(db.query_tables(points, call.format(5))).note == ""


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("FROM einsums a JOIN traffic b USING (machine)", "einsums and traffic: computed for every machine "),
        ("FROM einsums a, points b WHERE a.schedule = b.schedule", "einsums and points are joined without "),
        ("FROM einsums JOIN mappings USING (mapping_key)", "einsums: computed for every machine "),
        ("FROM einsums a, traffic b WHERE a.machine = b.machine AND a.machine = 17", ""),
        ("FROM einsums WHERE machine IN (SELECT machine FROM points)", ""),
        ("FROM points a JOIN machines b USING (machine)", ""),
        ("FROM range(9)", ""),
        ("FROM pareto('(FROM what_if({dram_pj: 2}))', ['energy_pj'])", "what_if chooses mappings again for "),
        ("FROM robust({dram_pj: 0.2}, 100) WHERE machine = 3", "robust chooses mappings again for "),
    ],
)
def test_a_long_statement_is_told_what_to_add(statement: str, told: str) -> None:
    found = advice.of_timeout(statement)
    assert found.startswith(told)
    assert bool(found) == bool(told)


def test_what_takes_long_says_so_before_it_ends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Only where the views are not narrowed to machines."""
    for narrow, said in ((False, ["components: computed"]), (True, [])):

        def slow(con: object, text: str, is_narrow: list[bool], narrow: bool = narrow) -> str:
            is_narrow.append(narrow)
            time.sleep(0.3)
            return "rows"

        caplog.clear()
        monkeypatch.setattr(db, "SLOW_S", 0.1)
        monkeypatch.setattr(db, "_fetch_all", slow)
        assert db._answer(duckdb.connect(), "FROM components", 9.0) == "rows"
        assert [line.partition("): ")[2][:20] for line in caplog.messages] == said


def test_a_front_has_one_knee(run: Path) -> None:
    """Both ends of a front of two have the sum 1; of three on a line the middle is best balanced."""
    two, three = np.array([[9.0, 1.0], [1.0, 9.0]]), np.array([[1.0, 9.0], [9.0, 1.0], [5.0, 5.0]])
    assert db.knee(two).tolist() == db.knee(two[::-1]).tolist() == [[1.0, 9.0]]
    assert db.knees(two).tolist() == [1, 0]
    assert db.knees(np.array([[0.0, 1.0], [0.2, 0.9], [1.0, 0.0]])).tolist() == [0, 2]
    assert db.knee(three).tolist() == db.knee(three[::-1]).tolist() == [[5.0, 5.0]]
    con = db.connect(run)
    con.execute(
        "CREATE TABLE t AS FROM (VALUES (9, 1, 'x'), (1, 9, 'x'), (1, 9, 'x'), (2, 2, 'y')) v(a, b, g)"
    )
    assert con.execute("FROM knee('t', ['a', 'b'], grp := ['g'])").fetchall() == [(1, 9, "x")] * 2 + [
        (2, 2, "y")
    ]


def test_rows_of_fronts_are_ordered_by_group_and_objective(run: Path) -> None:
    con = db.connect(run)
    con.execute("CREATE TABLE t AS SELECT i % 9 AS g, i * 7 % 20 AS a, -a AS b FROM range(180) r(i)")
    for macro in ("pareto('t', ['a', 'b'], grp := ['g'])", "pareto('t', ['a', 'b'])"):
        found = con.execute(f"SELECT {'g' if 'grp' in macro else '1'}, a FROM {macro}").fetchall()
        assert found == sorted(found)
        assert len({a for _, a in found}) == 20
    found = con.execute("SELECT g FROM hypervolume('t', ['a', 'b'], grp := ['g'])").fetchall()
    assert found == [(g,) for g in range(9)]


def test_hypervolumes_of_groups_share_one_box(run: Path) -> None:
    """The box of all rows, logarithmic, up to 1.1: 1 to 100 is an axis from 0 to 1."""
    con = db.connect(run)
    rows = "(1, 10, 'x'), (10, 1, 'x'), (10, 10, 'y'), (100, 100, 'y')"
    con.execute(f"CREATE TABLE t AS FROM (VALUES {rows}) v(a, b, g)")
    reference = [pytest.approx(100**1.1)] * 2
    whole = con.execute("FROM hypervolume('t', ['a', 'b'])").fetchall()
    assert whole == [(pytest.approx(1.1 * 0.6 + 0.6 * 0.5), reference)]
    groups = con.execute("FROM hypervolume('t', ['a', 'b'], grp := ['g']) ORDER BY g").fetchall()
    assert groups == [("x", whole[0][0], reference), ("y", pytest.approx(0.36), reference)]
    highest = con.execute("FROM hypervolume('(SELECT -a AS a, b, g FROM t)', ['a:max', 'b'])").fetchall()
    assert highest == [(pytest.approx(whole[0][0]), [pytest.approx(-(100**1.1)), reference[1]])]


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_prefilter_keeps_the_front_of_a_large_table(k: int) -> None:
    rng = np.random.default_rng(k)
    values = rng.integers(0, 50, (3000, k)).astype(float)
    values[rng.random((3000, k)) < 0.01] = np.inf
    found = db.non_dominated(values)
    assert sorted(map(tuple, found)) == sorted({tuple(values[i]) for i in brute(values)})


def test_front_over_a_subquery_and_one_objective(run: Path) -> None:
    con = db.connect(run)
    con.execute("CREATE TABLE t AS SELECT range AS a, 9 - range AS b, 'x''y' AS c FROM range(10)")
    assert db.query(
        con, "FROM pareto('(SELECT * FROM t WHERE c = ''x''''y'' AND a > 3)', ['a'])"
    ).to_pylist() == [{"a": 4, "b": 5, "c": "x'y"}]
    assert len(db.query(con, "FROM pareto('t', ['a', 'b'])")) == 10


def test_run_without_parts_has_empty_views_with_columns(run: Path) -> None:
    con = db.connect(run, SCHEMAS)
    assert db.query(con, "FROM machines").schema.names == ["machine", "status", "array_x"]
    assert db.front(con, ["energy_pj", "latency_ns"]).num_rows == 0


def test_views_follow_a_run_and_its_compaction(run: Path) -> None:
    con = db.connect(run, SCHEMAS)
    old = {"machine": 0, "status": "ok"}  # written before the column array_x was there
    publish(run, machines=[[old]])
    assert db.query(con, "FROM machines").to_pylist() == [{"machine": 0, "status": "ok", "array_x": None}]
    publish(run, machines=[[old], [{"machine": 1, "status": "ok", "array_x": 8, "array_y": 4}]])
    found = db.query(con, "SELECT array_x, array_y FROM machines ORDER BY machine").to_pylist()
    assert found == [{"array_x": None, "array_y": None}, {"array_x": 8, "array_y": 4}]
    before = [path for group in folder.read(run).groups for path in group.paths()]
    publish(run, machines=[pq.read_table(run / before[1]).to_pylist()])
    for part in before:
        (run / part).unlink()
    assert db.query(con, "SELECT count(*) AS n FROM machines").to_pylist() == [{"n": 1}]


ONE = """
name: one
workloads: ['gemm:m=2,n=2,k=2']
machine: a2
space: {array.x: [1]}
objectives: [energy_pj]
search: {method: exhaustive}
"""


def priced(root: Path, levels: list[dict[str, object]]) -> tuple[dict[str, pa.Schema], Computed]:
    """Schemas and views of a run whose machines all have these levels."""
    (root / "one.yaml").write_text(ONE)
    one = studies.load(root / "one.yaml")
    ask, schema = derived.RunContext(root, one), record.schema("prices")
    listed = pa.array([levels], pa.list_(pa.struct([schema.field(name) for name in functions.PRICES_FIELDS])))
    called = [
        f._replace(call=lambda machines: pa.concat_arrays([listed] * len(machines)))
        if f.name == "levels_of"
        else f
        for f in functions.functions(one, partial(derived.computed, ask))
    ]
    return {table: record.schema(table, studies.columns(one, table)) for table in record.STORED}, Computed(
        called, functions.ratios()
    )


def test_traffic_is_einsums_times_counts_times_prices(run: Path) -> None:
    at = {"machine": 0, "schedule": 0, "workload": "w"}
    einsums = [
        {**at, "einsum": e, "kind": kind, "occurrences": 3, "mapping_key": e}
        for e, kind in (("a", "mac"), ("b", "max"), ("c", "copy"))
    ]
    # None: words
    moved = [
        {
            "mapping_key": e,
            "level": "L",
            "tensor": "T",
            "action": action,
            "elems": 10,
            "bits": None if e == "c" else 8,
        }
        for e in "abc"
        for action in ("read", "write")
    ]
    ops = [
        {"mapping_key": e, "level": "MAC", "tensor": "-", "action": "compute", "elems": 5, "bits": 8}
        for e in "abc"
    ]
    lane = {"level": "MAC", "mac_pj": 7.0, "alu_pj": 2.0, "merge_pj": 0.5}
    level = {
        "level": "L",
        "hop_pj": 3.0,
        "endpoint_pj": 0.5,
        "row_pj": 11.0,
        "read_pj": 4.0,
        "write_pj": 6.0,
        "width_bits": 16,
        "word_bits": 32,
    }
    crossed = [
        {"mapping_key": "a", "level": "L", "tensor": "T", "action": action, "elems": 10, "bits": 1}
        for action in ("hop", "endpoint", "fold")
    ]
    crossed += [
        {"mapping_key": "a", "level": "MAC", "tensor": "T", "action": "merge", "elems": 10, "bits": None}
    ]
    crossed += [
        {"mapping_key": "b", "level": "L", "tensor": "T", "action": action, "elems": 10, "bits": bits}
        for action, bits in (("unused_read", 1), ("unused_write", 1), ("modify", 1), ("open_read", 0))
    ]
    publish(run, einsums=[einsums], counts=[moved, [*moved[:1], *ops], crossed])
    con = db.connect(run, *priced(run, [level, lane]))
    found = db.query(con, "SELECT einsum, action, energy_pj, bytes FROM traffic ORDER BY ALL").to_pylist()
    energy = {(row["einsum"], row["action"]): row["energy_pj"] for row in found}
    assert [energy["b", action] for action in ("unused_read", "unused_write", "modify", "open_read")] == [
        30 * 4 / 16,
        30 * 6 / 16,
        30 * 4 / 16,
        30 * 11,
    ]
    assert len(found) == 16
    assert (energy["a", "hop"], energy["a", "endpoint"], energy["a", "merge"]) == (
        3 * 10 * 3,
        3 * 10 * 0.5,
        3 * 10 * 0.5,
    )
    assert [row["bytes"] for row in found if row["action"] == "read"] == [30.0, 30.0, 120.0]
    assert [energy["a", action] for action in ("read", "write", "compute")] == [
        3 * 10 * 0.5 * 4,
        3 * 10 * 0.5 * 6,
        3 * 5 * 7,
    ]
    assert (energy["b", "compute"], energy["c", "compute"]) == (3 * 5 * 2, 0)


def test_equal_rows_of_mappings_stand_once(run: Path) -> None:
    row = {"mapping_key": "k", "nest": "for"}
    publish(run, mappings=[[row], [row, {"mapping_key": "l", "nest": "for"}]])
    assert db.query(db.connect(run, SCHEMAS), "SELECT count(*) AS n FROM mappings").to_pylist() == [{"n": 2}]


def test_front_joins_machines_and_leaves_out_what_breaks_a_constraint(run: Path) -> None:
    points = [
        {"machine": m, "schedule": 0, "energy_pj": e, "latency_ns": t, "feasible": ok}
        for m, e, t, ok in (
            (0, 1.0, 9.0, True),
            (1, 2.0, 2.0, True),
            (2, 0.5, 0.5, False),
            (3, 3.0, 3.0, True),
            (4, 2.0, 2.0, True),
        )
    ]
    publish(run, points=[points], machines=[[{"machine": m, "status": "ok", "array_x": m} for m in range(5)]])
    con = db.connect(run, SCHEMAS)
    assert db.front(con, ["energy_pj", "latency_ns"]).column("machine").to_pylist() == [0, 1, 4]
    assert db.front(con, ["energy_pj", "latency_ns"], "array_x > 1 and status = 'ok'").column(
        "machine"
    ).to_pylist() == [4]
    assert db.front(con, ["-energy_pj"]).to_pylist()[0]["array_x"] == 3
    assert db.front(con, ["latency_ns", "energy_pj"]).column_names[:4] == [
        "machine",
        "schedule",
        "latency_ns",
        "energy_pj",
    ]
    with pytest.raises(
        db.QueryError, match='objective "energy_p": no such column of points; did you mean energy_pj'
    ):
        db.front(con, ["energy_p"])
    with pytest.raises(db.QueryError, match='objective "energy_pj" is given twice; give each once'):
        db.front(con, ["energy_pj", "energy_pj:max"])
    with pytest.raises(db.QueryError, match="array_z"):
        db.front(con, ["energy_pj"], "array_z > 1")


QUESTIONS = """select 1 as a
with x as (select 1) from x
explain select 1
explain analyze select 1
describe machines
summarize machines
select * from (values (1)) union all by name select machine from machines
with x as (select 1 as a) select * from x, (with y as (select 2) from y)
select machine from machines where machine in (select machine from points)
from pareto('points', ['energy_pj'])
from pareto('(select * from points)', ['energy_pj:max'], grp := ['machine'])
from pareto2(points, energy_pj, -latency_ns)
select * from range(3) r, unnest([1, 2])
from information_schema.tables
pivot machines on status in ('ok') using count(*)
show tables
values (1);""".splitlines()
REFUSED = """
select 1; select 2
create table x (a int)
insert into machines values (1)
drop view machines
copy (select 1) to 'x.csv'
attach 'x.db'
set threads = 1
pragma threads = 1
pragma database_list
/* a */ pragma version
explain pragma show_tables
install httpfs
load httpfs
delete from internal.run
export database 'x.csv'
explain analyze copy (select 1) to 'x.csv'
explain (format json) copy (select 1) to 'x.csv'
explain explain analyze copy (select 1) to 'x.csv'
/* */ explain /* */ analyze copy (select 1) to 'x.csv'
explain create table x (a int)
create macro pareto(a) as 1
begin
checkpoint
vacuum
use main
call pragma_version()
prepare p as select 1
select * from read_text('/etc/passwd')
select * from read_csv('/etc/passwd')
select * from '../x.parquet'
select * from "parts/machines/000001-0.parquet"
select * from (with "/etc/passwd" as (select 1) select 1) a, "/etc/passwd" b
describe '/etc/passwd'
from internal.run
from read_blob('parts/*')
from glob('/etc/*')
from query('select 1')
from query_table('machines')
from pareto('(select * from read_text(''/etc/passwd''))', ['content'])
from pareto('(select 1 as a) t, read_text(''/etc/passwd'') u --', ['a'])
from pareto('/etc/passwd', ['a'])
from pareto(tbl := '/etc/passwd', objectives := ['a'])
from pareto('mach' || 'ines', ['machine'])
from pareto2('/etc/passwd', a, b)
select (select max(x) from (from test_all_types()) t(x))
from enable_logging(storage = 'file', storage_path = '/tmp/x')
from duckdb_secrets()
from json_execute_serialized_sql('{}')
from sniff_csv('/etc/passwd')
pivot machines on status
select '\udcff'
select nope from machines
selec 1""".splitlines()


@pytest.mark.parametrize("text", QUESTIONS)
def test_gate_lets_questions_through(run: Path, text: str) -> None:
    db.query(db.connect(run, SCHEMAS), text)


@pytest.mark.parametrize("text", REFUSED)
def test_gate_refuses_the_rest_in_one_line(run: Path, text: str) -> None:
    con = db.connect(run, SCHEMAS)
    before = sorted(p.name for p in run.iterdir())
    with pytest.raises(db.QueryError) as caught:
        db.query(con, text.replace("x.csv", str(run / "x.csv")).replace("x.db", str(run / "x.db")))
    first, *place = str(caught.value).split("\n")
    assert len(place) == 2 * ("syntax error" in first and "; write " not in first)
    for line, mark in zip(place[::2], place[1::2], strict=True):  # the statement, and where it is wrong
        assert line.startswith("LINE 1: ")
        assert mark.strip() == "^"
    assert sorted(p.name for p in run.iterdir()) == before


@pytest.mark.parametrize(
    "text",
    [
        "pivot machines on status using count(*)",
        "with p as (pivot machines on status) from p",
        "explain pivot machines on status",
    ],
)
def test_a_pivot_without_values_is_refused_as_what_it_is(run: Path, text: str) -> None:
    """DuckDB writes two statements of its own, or four; those of a user are counted."""
    con = db.connect(run, SCHEMAS)
    with pytest.raises(db.QueryError, match="PIVOT must list its values"):
        db.query(con, text)
    with pytest.raises(db.QueryError, match="2 statements; give exactly one"):
        db.query(con, "select 1; select 2")


def test_no_run_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(db.QueryError, match=r"no manifest.json"):
        db.connect(tmp_path)


def test_missing_and_torn_parts_are_one_line(run: Path) -> None:
    publish(run, machines=[[{"machine": 0}]])
    part = run / folder.read(run).groups[0].paths()[0]
    part.write_bytes(part.read_bytes()[:50])
    with pytest.raises(Damaged, match=r"-0\.parquet: 50 bytes") as torn:
        db.connect(run)
    part.unlink()
    with pytest.raises(Damaged, match=r"-0\.parquet: missing") as missing:
        db.connect(run)
    (run / "manifest.json").write_text("{")
    with pytest.raises(Damaged, match=r"manifest.json: damaged") as garbled:
        db.connect(run)
    assert all("\n" not in str(caught.value) for caught in (torn, missing, garbled))


def test_a_flipped_bit_is_found_once_it_is_there_and_its_group_left_out_on_request(run: Path) -> None:
    publish(run, machines=[[{"machine": 0, "status": "ok"}], [{"machine": 1, "status": "ok"}]])
    con = db.connect(run, SCHEMAS)
    part = run / folder.read(run).groups[1].paths()[0]
    data = part.read_bytes()
    part.write_bytes(bytes([*data[:60], data[60] ^ 1, *data[61:]]))
    with pytest.raises(Damaged, match=f"{part.name}: its checksum differs .*--skip-damaged"):
        db.query(con, "FROM machines")
    assert db.query(
        db.connect(run, SCHEMAS, skip_damaged=True), "SELECT machine FROM machines"
    ).to_pylist() == [{"machine": 0}]
    part.write_bytes(data)
    assert len(db.query(con, "FROM machines")) == 2


def test_interrupt_ends_a_long_query(run: Path) -> None:
    code = f"""if True:
        import signal; from analysis import db
        signal.signal(signal.SIGINT, signal.default_int_handler)
        con = db.connect({str(run)!r})
        print("go", flush=True)
        db.query(con, "select sum(a.range * b.range) from range(1000000) a, range(1000000) b")"""
    root = Path(db.__file__).parents[1]
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=root
    )
    assert child.stdout is not None
    child.stdout.readline()
    time.sleep(0.5)
    child.send_signal(signal.SIGINT)
    try:
        assert child.wait(timeout=300) != 0
        assert "KeyboardInterrupt" in child.communicate()[1]
    finally:
        child.kill()


SLOW = {
    "rows": "select sum(a.range * b.range) from range(10000000) a, range(10000000) b",
    "answer": "from range(100000000000)",
    "one call": "select levenshtein(repeat('a', 60000), repeat('b', 60000))",
}


@pytest.mark.parametrize("kind", SLOW)
def test_a_statement_that_takes_too_long_or_says_too_much_is_stopped(
    run: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(db, "MAX_BYTES", 1 << 24)
    with pytest.raises(db.QueryError, match="larger than" if kind == "answer" else "stopped after 0.3 s"):
        db.query(db.connect(run), SLOW[kind], 0.3 if kind != "answer" else 60)


def test_duckdb_has_a_folder_of_its_own_that_goes_with_the_connection(run: Path) -> None:
    con = db.connect(run)
    ((own,),) = con.execute("SELECT current_setting('temp_directory')").fetchall()
    assert Path(own).parent.stat().st_mode & 0o777 == 0o700
    assert not Path(own).exists(), "made when there is something to spill"
    con.close()
    del con
    gc.collect()
    assert not Path(own).parent.exists()


def test_duckdb_is_the_line_whose_anti_joins_are_right() -> None:
    """2.0.0 returns wrong fronts for user-written anti-joins with three objectives."""
    rng = np.random.default_rng(0)
    con = duckdb.connect()
    con.register("source", pa.table({name: rng.random(2000) for name in "xyz"} | {"i": np.arange(2000)}))
    con.execute("CREATE TABLE t AS FROM source")
    worse = "b.x <= a.x AND b.y <= a.y AND b.z <= a.z AND (b.x < a.x OR b.y < a.y OR b.z < a.z)"
    rows = con.execute(f"SELECT i FROM t a ANTI JOIN t b ON ({worse}) ORDER BY i").fetchall()
    values = np.column_stack([con.execute(f"SELECT {n} FROM t ORDER BY i").fetchnumpy()[n] for n in "xyz"])
    assert [i for (i,) in rows] == brute(values)


def test_a_die_of_a_node_outside_of_the_table_has_no_price() -> None:
    """Also where tables of several runs are asked."""
    found = db.query_tables(
        {"points": pa.table({"node_nm": [16.0, 32.0]})},
        "SELECT die_cost_usd(10, node_nm) AS usd FROM points ORDER BY node_nm",
        functions=functions.OF_ANY_RUN,
    )
    assert found["usd"].to_pylist() == [None, pytest.approx(die.cost_usd(10, 32))]
