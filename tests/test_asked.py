"""Views that are computed when asked: equal to what the solver found, machine by machine, also where equal
choices of many machines are costed together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from operator import itemgetter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dse
from analysis import computed, db
from analysis.computed import Computed
from dse.explain import derived, functions
from dse.explain import values as explain
from dse.explain.derived import ChosenRow, RunContext
from dse.frontend.runs import Run
from dse.mapping.nest import Infeasible
from dse.run import record
from dse.sim.einsum.evaluate import Solution
from dse.solve import solve
from dse.study import pareto
from dse.study import study as studies
from hw.arch import Arch
from hw.space import decode
from tests.amount import FULL, amount
from tests.documents import ROOT
from workloads.graph import unique

pytestmark = pytest.mark.xdist_group("asked")

NET = (
    "extents: {m: 24, k: 60, n: 36, q: 20}\neinsums: ['T[m,n] += X[m,k] * W[k,n]', 'R[m,n] = "
    "softmax(T[m,n])', 'Y[m,q] += R[m,n] * V[n,q]', 'Z[m,q] += R[m,n] * U[n,q]']\n"
)
STUDY = """
name: asked
workloads: [{{file: net.yaml, name: net, weight: 2}}, 'gemm:m=48,n=20,k=33']
machine: {machine}
space: {{{space}}}
objectives: [energy_pj, latency_ns]
search: {{method: random, seed: 3}}
stop: {{machines: {many}}}
solver: {solver}
"""
MANY = 40 if FULL else 12
PROOF = ("optimality_gap", "gap_to_bound", "certificate")
COST = ("energy_pj", "latency_cycles", "bottleneck", *PROOF)
EDGE = (
    "array.x: [4, 5, 8, 13], array.y: [2, 8], gbuf.capacity: [2 KiB, 6 KiB, 64 KiB], clock_mhz: [250, "
    "1000], dram.kind: [ddr3, lpddr5, hbm2]"
)
# what is costed together, what is proven and what is not; systolic arrays; hops, layouts and tiles that are
# cut beforehand, each machine alone
CASES = {
    "edge": ("edge_array", EDGE, "{}"),
    "latency": ("edge_array", EDGE, "{objective: latency, gap: 0}"),
    "products": ("edge_array", EDGE, "{objective: edp, mapper: cost_descending}"),
    "ports": (
        "edge_array",
        EDGE + ", gbuf.ports: [shared, separate], gbuf.double_buffer: [true, false]",
        "{mapper: cost_descending}",
    ),
    "systolic": (
        "tpu_edge",
        "array.x: [4, 16, 31], array.y: [8, 16], clock_mhz: [300, 700]",
        "{mapper: cost_descending}",
    ),
    "hops": (
        "kapla_multi_4x4",
        "clock_mhz: [300, 500], regf.capacity: [64 B, 128 B]",
        "{mapper: cost_descending}",
    ),
    "lines": ("burst_edge", "clock_mhz: [300, 500], dram.kind: [lpddr4, lpddr5]", "{}"),
}


Sweep = Callable[[str], Run]


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    """The run of a case, which its tests only read."""

    @cache
    def of(name: str) -> Run:
        folder, (machine, space, solver) = tmp_path_factory.mktemp(name), CASES[name]
        (folder / "net.yaml").write_text(NET)
        (folder / "asked.yaml").write_text(
            STUDY.format(machine=machine, space=space, solver=solver, many=MANY)
        )
        return dse.sweep(folder / "asked.yaml", out=folder / "run", workers=0)

    return of


def solved(run: Run, number: int) -> dict[str, Solution]:
    """By workload, as the solver finds it; nothing of the run's rows is read."""
    arch, found = decode(run.study.space, number), {}
    assert isinstance(arch, Arch)
    for ref, workload in zip(run.study.workloads, studies.workloads_of(run.study), strict=True):
        answer = solve.solve(arch, workload, run.study.solver)
        assert not isinstance(answer, Infeasible)
        found[ref.name] = answer[0]
    return found


@pytest.mark.parametrize("name", ["edge", "lines"])
def test_data_rates_are_those_of_all_occurrences(swept: Sweep, name: str) -> None:
    """The statement of docs/sql.md says for main memory what main_memory_bytes over latency_ns is, of a
    workload with two equal einsums; and the energies of `traffic` add up to that of the point.
    """
    run = swept(name)
    (outer, *_) = run.sql("SELECT level FROM prices LIMIT 1").rows()[0]
    (text,) = [one for one in (ROOT / "docs" / "sql.md").read_text().split("```") if "AS gb_per_s" in one]
    found = run.sql(text.removeprefix("sql").replace("machine = 148 AND", f"level = '{outer}' AND"))
    costs = {(row["machine"], row["workload"]): row for row in run.sql("FROM workload_costs")}
    assert max(run.sql("FROM einsums").table["occurrences"].to_pylist()) == 2
    assert len(found) == len(costs)
    for row in found:
        cost = costs[row["machine"], row["workload"]]
        assert row["gb_per_s"] == pytest.approx(cost["main_memory_bytes"] / cost["latency_ns"])
    sums = run.sql(
        "SELECT sum(weight * t.energy_pj), any_value(p.energy_pj) FROM traffic t "
        "JOIN workloads USING (workload) JOIN points p USING (machine, schedule) GROUP BY machine"
    ).rows()
    assert [one for one, _ in sums] == pytest.approx([other for _, other in sums])


@pytest.mark.parametrize("name", CASES)
def test_views_are_what_the_solver_found(swept: Sweep, name: str) -> None:
    run = swept(name)
    groups = {
        ref.name: unique(workload)
        for ref, workload in zip(run.study.workloads, studies.workloads_of(run.study), strict=True)
    }
    named = dict(zip(groups, studies.workloads_of(run.study), strict=True))
    outer = run.study.space.template.nodes[0].name.upper()
    components = list(run.sql("FROM components"))
    traffic = list(run.sql(f"FROM traffic WHERE level = '{outer}' AND bytes IS NOT NULL"))
    rows = {(row["machine"], row["workload"], row["position"]): row for row in run.sql("FROM einsums")}
    costs = {(row["machine"], row["workload"]): row for row in run.sql("FROM workload_costs")}
    machines = sorted({machine for machine, _ in costs})
    assert len(rows) == len(machines) * sum(map(len, groups.values()))
    assert len(machines) > 3
    chosen = {
        (row["machine"], row["workload"], row["position"]): row["mapping_key"]
        for row in run.sql("FROM choices")
    }
    assert chosen == {at: row["mapping_key"] for at, row in rows.items()}
    for machine in machines[:: max(1, len(machines) // amount(8))]:
        arch = decode(run.study.space, machine)
        assert isinstance(arch, Arch)
        for workload, found in solved(run, machine).items():
            for place, (c, group) in enumerate(zip(found.einsums, groups[workload], strict=True), 1):
                row = rows[machine, workload, place]
                want = {
                    "einsum": c.name,
                    "einsum_key": c.key,
                    "kind": group.einsum.kind,
                    "occurrences": group.occurrences,
                }
                want |= {key: getattr(c, key) for key in ("mapping_key", *COST)}
                want |= explain.work(arch, group.einsum, c)
                want["latency_ns"] = c.latency_cycles / arch.clock_ghz
                assert {key: row[key] for key in want} == want
            metrics = pareto.metrics(pareto.cost_of(found, arch.clock_ghz))
            proof = {key: getattr(found, key) for key in PROOF}
            assert {key: costs[machine, workload][key] for key in (*metrics, *proof)} == metrics | proof
            totals = explain.totals(arch, named[workload], found)
            ratios = record.RATIOS_OF["workload_costs"]
            assert {key: costs[machine, workload][key] for key in ratios} == {
                key: totals[key] for key in ratios
            }
            moved = sum(
                one["bytes"] for one in traffic if (one["machine"], one["workload"]) == (machine, workload)
            )
            assert costs[machine, workload]["main_memory_bytes"] == pytest.approx(moved)
            parts = {
                row["component"]: (row["instances"], row["area_mm2"], row["dynamic_pj"], row["static_pj"])
                for row in components
                if (row["machine"], row["workload"]) == (machine, workload)
            }
            assert parts == {
                one.name: (one.instances, *map(pytest.approx, (one.area_mm2, one.dynamic_pj, one.static_pj)))
                for one in explain.components(arch, found)
            }
        levels = {row["level"]: row for row in run.sql(f"FROM prices WHERE machine = {machine}")}
        assert [
            (levels[one.name]["read_pj"], levels[one.name]["bandwidth"], levels[one.name]["leak_mw"])
            for one in arch.levels
        ] == [(one.read_pj, one.bandwidth, one.leak_mw) for one in arch.levels]


@pytest.mark.parametrize("name", ["edge", "latency", "ports", "systolic"])
def test_machines_costed_together_are_those_costed_alone(swept: Sweep, name: str) -> None:
    run = swept(name)
    rows = [
        ChosenRow(
            row["machine"],
            row["workload"],
            [key for key in row["keys"] if key],
            row["space"],
            row["places"],
            row["gaps"],
            row["spaces"],
        )
        for row in run.con.execute("FROM internal.packed").to_arrow_table().to_pylist()
    ]
    together = derived.solutions(RunContext(run.path, run.study), rows)
    assert (
        sum(len(cell.rows) > 1 for cell in derived._equal_choices(RunContext(run.path, run.study), rows)) > 3
    )
    for row, found in zip(rows, together, strict=True):
        (alone,) = derived.solutions(RunContext(run.path, run.study), [row])
        assert repr(
            (
                found.energy_pj,
                found.latency_cycles,
                found.initiation_interval_cycles,
                found.gap_to_bound,
                found.certificate,
            )
        ) == repr(
            (
                alone.energy_pj,
                alone.latency_cycles,
                alone.initiation_interval_cycles,
                alone.gap_to_bound,
                alone.certificate,
            )
        )
        for one, other in zip(found.einsums, alone.einsums, strict=True):
            assert [getattr(one, key) for key in COST] == [getattr(other, key) for key in COST]


def test_designs_have_the_rates_of_all_workloads(swept: Sweep) -> None:
    """By weight: `net` counts twice. No table stores them, and fronts and conditions know them."""
    run = swept("edge")
    weights = run.study.weights()
    macs = sum(
        weights[ref.name] * workload.macs()
        for ref, workload in zip(run.study.workloads, studies.workloads_of(run.study), strict=True)
    )
    for row in run.sql("FROM designs"):
        assert row["tops"] == pytest.approx(2 * macs / row["latency_ns"] / 1e3)
        assert row["tops_per_w"] == pytest.approx(2 * macs / row["energy_pj"])
        assert row["peak_tops"] == pytest.approx(2 * row["array_x"] * row["array_y"] * row["clock_mhz"] / 1e6)
        assert 0 < row["share_of_peak"] == row["tops"] / row["peak_tops"] <= 1
    stored = pq.read_schema(next((run.path / "parts" / "points").iterdir())).names
    assert not set(stored) & {"tops", "tops_per_w", "share_of_peak"}
    (best,) = run.front(["tops:max"], where="share_of_peak > 0", distinct=True)
    assert best["tops"] == max(row["tops"] for row in run.sql("FROM points"))


def test_what_follows_is_not_stored(swept: Sweep) -> None:
    run = swept("edge")
    assert sorted(path.name for path in (run.path / "parts").iterdir()) == [
        "chosen",
        "counts",
        "events",
        "machines",
        "mappings",
        "nondominated",
        "points",
    ]
    part = next((run.path / "parts" / "chosen").iterdir())
    group = pq.ParquetFile(part).metadata.row_group(0)
    keys = [
        column
        for column in map(group.column, range(group.num_columns))
        if column.path_in_schema.startswith("mapping_")
    ]
    assert len(keys) == 3
    assert all("RLE_DICTIONARY" in column.encodings for column in keys)


def test_nests_are_found_in_whichever_row_group_they_stand(tmp_path: Path) -> None:
    keys = [f"{number:016x}" for number in range(0, 300, 3)]
    rows = pa.table({"mapping_key": keys, "nest": [f"nest {key}" for key in keys]})
    pq.write_table(rows, tmp_path / "mappings.parquet", row_group_size=4)
    for wanted in (
        [keys[0]],
        [keys[-1]],
        keys[3:5],
        keys[::7],
        keys,
        [f"{1:016x}", keys[40]],
        [f"{301:016x}"],
    ):
        assert derived._nests(tmp_path / "mappings.parquet", wanted) == {
            key: f"nest {key}" for key in wanted if key in keys
        }


def test_a_mapping_that_is_not_there_is_one_line(swept: Sweep) -> None:
    run = swept("edge")
    with pytest.raises(ValueError, match="mapping 0123456789abcdef is not in its table mappings"):
        derived.solutions(RunContext(run.path, run.study), [ChosenRow(0, "net", ["0123456789abcdef"])])


NARROW = (
    "machine IN (SELECT machine FROM designs ORDER BY energy_pj, machine LIMIT 3)",
    "machine = (SELECT min(machine) FROM points) AND level <> 'DRAM'",
    "traffic.machine IN (SELECT machine FROM points WHERE machine % 2 = 0)",
    "machine IN (SELECT machine FROM pareto('points', ['energy_pj', 'latency_ns']))",
)
LEAST = "(SELECT min(machine) FROM points)"
# whether the condition is one on the machines of `traffic`, in a join without rows of what traffic lacks
JOINS = (
    ("AS t JOIN points USING (machine, schedule)", f"machine = {LEAST}", True),
    ("AS t LEFT JOIN points p ON p.machine > t.machine", f"t.machine IN {LEAST}", True),
    ("AS t JOIN points p ON p.machine > t.machine", "p.machine IN (SELECT max(machine) FROM points)", False),
    ("AS t FULL JOIN points p ON p.machine > t.machine", f"t.machine IN {LEAST}", False),
    ("AS t, pareto('traffic', ['energy_pj']) AS p", f"t.machine = {LEAST}", False),
)
FRONT = "pareto('points', ['energy_pj', 'latency_ns']) AS p"
OF_PRICES = "(FROM points WHERE machine <> (SELECT min(machine) FROM prices))"
DESIGNS = "AS t JOIN designs AS d USING (machine, schedule)"
# conditions on columns of a view joined by machine: whether they leave machines out before any is computed
MACHINE_COLUMNS = (
    (DESIGNS, "array_x = 8 AND t.level <> 'DRAM'", True),
    (DESIGNS, "array_x IN (5, 13) AND d.energy_pj > 0 AND gbuf_capacity BETWEEN 1 AND 2 * 16384", True),
    ("AS t JOIN machines USING (machine) JOIN points p USING (machine, schedule)", "array_x = 8", True),
    (f"AS t JOIN {FRONT} USING (machine, schedule)", "t.level <> 'MAC'", True),
    (f"AS t LEFT JOIN {FRONT} USING (machine, schedule)", "true", False),
    (f"AS t JOIN {FRONT.replace('points', OF_PRICES)} USING (machine, schedule)", "true", False),
    (DESIGNS, "array_x = 8 OR t.level = 'DRAM'", False),
    (DESIGNS, "t.energy_pj > 0", False),
    ("AS t LEFT JOIN designs d ON d.machine = t.machine AND d.array_x = 8", "d.array_x IS NULL", False),
    ("AS t JOIN designs d ON d.machine > t.machine", "d.array_x = 8", False),
)
WIDE = (
    "machine NOT IN (SELECT machine FROM designs ORDER BY energy_pj, machine LIMIT 3)",
    "machine IN (SELECT machine + 0.5 FROM points)",
    "machine IN (SELECT machine FROM points) OR level = 'MAC'",
    "machine IN (SELECT p.machine FROM points p WHERE p.schedule = traffic.schedule AND p.machine > 5)",
)


@pytest.fixture(scope="module")
def counted(swept: Sweep) -> tuple[Run, list[int]]:
    """A run, and the machines that its functions were called for."""
    run, called = swept("products"), list[int]()
    ask = RunContext(run.path, run.study)

    def heard(call: Callable[..., pa.Array]) -> Callable[..., pa.Array]:
        def one(machines: pa.Array) -> pa.Array:
            called.extend(machines.to_pylist())
            return call(machines)

        return one

    heard_functions = [
        f._replace(call=heard(f.call)) if f.name == "levels_of" else f
        for f in functions.functions(run.study, partial(derived.computed, ask))
    ]
    schemas = {table: record.schema(table, studies.columns(run.study, table)) for table in record.STORED}
    return replace(
        run, con=db.connect(run.path, schemas, Computed(heard_functions, functions.ratios()))
    ), called


def keep_traffic(run: Run) -> pa.Table:
    """Returns all rows of the view traffic, which internal.kept then holds."""
    whole = run.sql("FROM traffic").table
    run.con.register("whole", whole)
    run.con.execute("CREATE OR REPLACE TABLE internal.kept AS FROM whole")
    run.con.unregister("whole")
    return whole


@pytest.mark.parametrize("where", [*NARROW, *WIDE])
def test_machines_are_found_before_anything_is_computed(counted: tuple[Run, list[int]], where: str) -> None:
    run, called = counted
    whole = keep_traffic(run)
    want = (
        run.con.execute(f"SELECT * FROM internal.kept AS traffic WHERE {where} ORDER BY ALL")
        .to_arrow_table()
        .to_pylist()
    )
    called.clear()
    found = run.sql(f"SELECT * FROM traffic WHERE {where} ORDER BY ALL").table.to_pylist()
    assert repr(found) == repr(want)
    assert set(called) == {row["machine"] for row in (want if where in NARROW else whole.to_pylist())}
    assert len(run.sql("FROM traffic")) == whole.num_rows  # all machines again
    own = "WITH designs AS (FROM points WHERE energy_pj > (SELECT median(energy_pj) FROM points)) "
    own += f"SELECT DISTINCT machine FROM {{}} WHERE {NARROW[0]} ORDER BY 1"
    assert run.sql(own.format("traffic")).rows() == run.con.execute(own.format("internal.kept")).fetchall()


@pytest.mark.parametrize(("joined", "where", "narrow"), JOINS)
def test_machines_of_joined_views_are_found_first(
    counted: tuple[Run, list[int]], joined: str, where: str, narrow: bool
) -> None:
    run, called = counted
    keep_traffic(run)
    text = f"SELECT COLUMNS(*)::VARCHAR FROM traffic {joined} WHERE {where} ORDER BY ALL"
    want = run.con.execute(text.replace("FROM traffic", "FROM internal.kept", 1)).fetchall()
    called.clear()
    assert run.sql(text).rows() == want != []
    assert (len(set(called)) == 1) is narrow


@pytest.mark.parametrize(("joined", "where", "narrow"), MACHINE_COLUMNS)
def test_conditions_on_columns_of_machines_are_met_first(
    counted: tuple[Run, list[int]], joined: str, where: str, narrow: bool
) -> None:
    run, called = counted
    keep_traffic(run)
    text = f"SELECT COLUMNS(*)::VARCHAR, t.machine AS m FROM traffic {joined} WHERE {where} ORDER BY ALL"
    want = run.con.execute(text.replace("FROM traffic", "FROM internal.kept", 1)).fetchall()
    called.clear()
    assert run.sql(text).rows() == want != []
    machines = {row[-1] for row in want}
    every = {machine for (machine,) in run.con.execute("SELECT machine FROM internal.kept").fetchall()}
    assert set(called) == (machines if narrow else every)
    assert machines < every or not narrow


def test_components_are_computed_of_the_machines_asked_for(counted: tuple[Run, list[int]]) -> None:
    run, called = counted
    whole = run.sql("FROM components").table.to_pylist()
    called.clear()
    found = run.sql(f"SELECT * FROM components WHERE {NARROW[0]} ORDER BY ALL").table.to_pylist()
    machines = {row["machine"] for row in found}
    assert len(machines) == 3
    assert set(called) == machines
    key = itemgetter("machine", "schedule", "workload", "component")
    of_whole = sorted((row for row in whole if row["machine"] in machines), key=key)
    for one, other in zip(sorted(found, key=key), of_whole, strict=True):
        assert one == pytest.approx(other)


def test_traffic_of_more_machines_than_are_gathered_is_the_same(
    counted: tuple[Run, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _ = counted
    asked_for = f"SELECT * FROM traffic WHERE {NARROW[2]} ORDER BY ALL"
    found = repr(run.sql(asked_for).table.to_pylist())
    monkeypatch.setattr(computed, "MAX_GATHERED", 2)
    assert repr(run.sql(asked_for).table.to_pylist()) == found


def test_views_are_whole_after_an_interrupt_that_came_between(counted: tuple[Run, list[int]]) -> None:
    run, _ = counted
    whole = len(run.sql("FROM einsums"))
    entered = computed.narrow(run.con, f"FROM einsums WHERE {NARROW[0]}")
    entered.__enter__()
    assert run.con.execute("SELECT count(DISTINCT machine) FROM einsums").fetchall() == [(3,)]
    assert len(run.sql("FROM einsums")) == whole
