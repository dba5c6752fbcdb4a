"""Schedules in a run's tables and in the commands: sequences follow from einsums, others are stored, shown
and priced again.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import dse
from cluster import worker
from dse.explain import values
from dse.frontend import api, cli, runs
from dse.frontend.runs import Run
from dse.mapping import schedule as schedules
from dse.mapping.schedule import parse_schedule, sequential
from dse.run import record
from dse.sim.einsum.evaluate import Solution
from dse.sim.schedule.graph import evaluate
from hw.arch import Arch

pytestmark = pytest.mark.xdist_group("schedule_rows")

NET = """extents: {m: 8}
weights: [W0, W1, W2, W3]
einsums:
- {name: a, extents: {m: 8, n: 6, k: 4}, text: "T1[m,n] += T0[m,k] * W0[k,n]"}
- {name: b, extents: {p: 8, n: 2, k: 6}, text: "T2[p,n] += T1[p,k] * W1[k,n]"}
- {name: c, extents: {m: 8, n: 6, k: 2}, text: "T3[m,n] += T2[m,k] * W2[k,n]"}
- {name: d, extents: {p: 8, n: 2, k: 6}, text: "T4[p,n] += T3[p,k] * W3[k,n]"}
"""
STUDY = """name: rows
workloads: [{file: net.yaml, name: net}]
machine: a3
space: {array.x: [2, 4]}
objectives: [energy_pj, latency_ns]
search: {method: exhaustive}
"""
FUSED = """segment
  store DRAM T0 W0 W1 T2
  for m tile 2
    store GLB T1
    einsum a
      store GLB W0
      for n tile 1
        for k tile 1
          for m tile 1
            mac
    einsum b with m = p
      store GLB T2
      for k tile 1
        for n tile 1
          for p tile 1
            mac"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    (folder / "net.yaml").write_text(NET)
    (folder / "study.yaml").write_text(STUDY)
    (folder / "fused.txt").write_text(FUSED)
    (folder / "broken.txt").write_text(FUSED.replace("store GLB T1\n    ", ""))
    return folder


@pytest.fixture(scope="module")
def run(home: Path) -> runs.Run:
    return dse.sweep(home / "study.yaml", out=home / "turn", workers=0)


def whole(arch: Arch, *_: object) -> list[Solution]:
    """A solver that knows one answer: a and b fused, c and d as they are alone."""
    net = api.catalog.load(str(Path(STUDIED[0]) / "net.yaml"))
    found, _ = api.solve.price_schedule(arch, net, api.SolverOptions(), parse_schedule(FUSED))
    assert isinstance(found, Solution)
    return [found]


STUDIED: list[Path] = []


@pytest.fixture(scope="module")
def fused(home: Path) -> runs.Run:
    STUDIED.append(home)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "solve", whole)
        return dse.sweep(home / "study.yaml", out=home / "fused", workers=0)


def test_a_sequence_has_a_segment_per_different_einsum(run: runs.Run) -> None:
    rows = list(run.sql("FROM schedules ORDER BY machine"))
    assert [
        (
            row["machine"],
            row["weights"],
            row["segments"],
            row["fused"],
            row["pipelined"],
            row["on_chip"],
            row["nest"],
        )
        for row in rows
    ] == [(0, "streamed", 3, 0, 0, None, None), (1, "streamed", 3, 0, 0, None, None)]
    own = list(
        run.sql(
            "SELECT s.*, e.energy_pj AS energy, e.latency_cycles AS cycles, e.occurrences AS runs FROM "
            "segments s JOIN einsums e ON (e.machine = s.machine AND e.einsum = s.einsums) ORDER BY "
            "s.machine, segment"
        )
    )
    assert [(row["segment"], row["einsums"], row["occurrences"]) for row in own] == 2 * [
        (1, "a", 1),
        (2, "b", 2),
        (3, "c", 1),
    ]
    assert all(
        (row["energy_pj"], row["latency_cycles"], row["occurrences"])
        == (row["energy"], row["cycles"], row["runs"])
        for row in own
    )
    sums = run.sql(
        "SELECT p.energy_pj AS energy, sum(occurrences * s.energy_pj) AS parts FROM segments s JOIN "
        "points p USING (machine, schedule) GROUP BY ALL"
    )
    assert len(sums) == 2
    assert all(row["parts"] == pytest.approx(row["energy"]) for row in sums)
    assert not [name for name in ("schedules", "segments") if (run.path / "parts" / name).exists()]


def test_other_schedules_are_stored_and_priced_again(fused: runs.Run, run: runs.Run) -> None:
    (row, _) = fused.sql("FROM schedules ORDER BY machine")
    assert (row["segments"], row["fused"], row["pipelined"], row["on_chip"]) == (3, 1, 0, "T1 at GLB")
    assert parse_schedule(row["nest"])
    segments = list(fused.sql("FROM segments WHERE machine = 0 ORDER BY segment"))
    assert [(one["segment"], one["einsums"], one["on_chip"]) for one in segments] == [
        (1, "a -> b", "T1 at GLB"),
        (2, "c", None),
        (3, "d", None),
    ]
    (point,) = fused.sql("FROM points WHERE machine = 0")
    assert sum(one["energy_pj"] for one in segments) == pytest.approx(point["energy_pj"])
    assert "GLB " in segments[0]["peak_bytes"]
    assert not list(fused.sql("FROM traffic WHERE tensor = 'T1' AND level = 'DRAM'"))
    assert list(run.sql("FROM traffic WHERE tensor = 'T1' AND level = 'DRAM'"))
    shown = fused.show(0)
    assert shown.solutions[0].energy_pj == point["energy_pj"]
    assert schedules.to_text(parse_schedule(row["nest"]), shown.solutions[0].workload) in repr(shown)
    assert "T1 at GLB" in repr(shown)


def test_show_prices_a_given_schedule_beside_what_was_found(run: runs.Run, home: Path) -> None:
    tried = run.show(1, home / "fused.txt")
    assert tried.given_schedule is not None
    assert [row[0] for row in tried.compared()] == [
        "energy_pj",
        "latency_ns",
        "initiation_interval_cycles",
        "edp_pj_ns",
    ]
    assert "the schedule found, the one given" in repr(tried)
    assert tried.given_schedule.totals["energy_pj"] != tried.solutions[0].totals["energy_pj"]
    with pytest.raises(ValueError, match=r"broken.txt: segment 1: T1 goes from a to b"):
        run.show(1, home / "broken.txt")


def test_einsums_without_a_place_are_mapped_alone_behind_what_they_read(home: Path) -> None:
    net = api.catalog.load(str(home / "net.yaml"))
    alone, part = (
        dse.map(str(home / "net.yaml"), "a3"),
        dse.map(str(home / "net.yaml"), "a3", schedule=home / "fused.txt"),
    )
    assert isinstance(part.solution, Solution)
    assert part.solution.schedule
    assert isinstance(alone.solution, Solution)
    assert [row.einsums for row in part.solution.segments] == [("a", "b"), ("c",), ("d",)]
    nests = {c.name: c.mapping for c in alone.solution.einsums}
    turn = {segment.branches[0].einsum: segment for segment in sequential(net, nests).segments}
    assert part.solution.schedule.segments[1:] == (turn["c"], turn["d"])
    given = evaluate(alone.arch, net, sequential(net, nests))
    assert isinstance(given, Solution)
    assert given.energy_pj == alone.solution.energy_pj


def test_a_network_is_printed_as_one_nest_that_simulate_reads(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    net, file = str(home / "net.yaml"), home / "whole.txt"
    for more in ([], ["--schedule", str(home / "fused.txt")]):
        assert cli.main(["map", net, "a3", "--format", "schedule", *more]) == 0
        file.write_text(capsys.readouterr().out)
        assert cli.main(["map", net, "a3", "--format", "json", *more]) == 0
        want = json.loads(capsys.readouterr().out)
        assert cli.main(["simulate", net, "a3", str(file), "--format", "json"]) == 0
        got = json.loads(capsys.readouterr().out)
        assert (got["energy_pj"], got["latency_cycles"]) == (want["energy_pj"], want["latency_cycles"])
        assert cli.main(["simulate", net, "a3", str(file), "--format", "schedule"]) == 0
        assert capsys.readouterr().out == file.read_text()
    assert cli.main(["map", net, "a3", "--schedule", str(home / "none.txt")]) == 2
    assert cli.main(["map", net, "a3", "--schedule", str(file), "--layout", "T0=m k"]) == 2
    assert [line.split(":")[0] for line in capsys.readouterr().err.splitlines()] == [
        str(home / "none.txt"),
        "layout T0=m k",
    ]


def test_traffic_has_the_energy_of_networks(home: Path) -> None:
    """All rows make the energy; hops and lanes are rows of the arrays."""
    text = STUDY.replace("{file: net.yaml, name: net}", "'gemm:m=64,n=64,k=64'").replace(
        "a3", "kapla_multi_4x4"
    )
    text = text.replace("array.x: [2, 4]", "regf.capacity: [64 B, 128 B]")
    (home / "mesh.yaml").write_text(text + "solver: {mapper: cost_descending}\n")
    run = dse.sweep(home / "mesh.yaml", out=home / "mesh", workers=0)
    rows = list(
        run.sql(
            "SELECT e.machine, e.einsum, any_value(e.occurrences * e.energy_pj) AS energy, "
            "sum(t.energy_pj) AS parts FROM einsums e JOIN traffic t USING (machine, schedule, "
            "workload, einsum) GROUP BY ALL"
        )
    )
    assert len(rows) == 2
    assert all(row["parts"] == pytest.approx(row["energy"]) for row in rows)
    assert {
        row["action"] for row in run.sql("FROM traffic WHERE level IN ('NODES', 'ARRAY') AND energy_pj > 0")
    } == {"hop", "endpoint"}
    moved = run.sql(
        "SELECT level, action, sum(energy_pj) AS pj FROM traffic WHERE machine = 0 AND action IN "
        "('hop', 'endpoint') GROUP BY ALL"
    )
    found = run.show(0).solutions[0].solution
    assert isinstance(found, Solution)
    shown = {
        (part.level, part.action): 0.0
        for c in found.einsums
        for part in c.price.parts
        if part.action in ("hop", "endpoint")
    }
    for c in found.einsums:
        for part in c.price.parts:
            if part.action in ("hop", "endpoint"):
                shown[part.level, part.action] += c.count * part.energy_pj
    assert {(row["level"], row["action"]): row["pj"] for row in moved} == pytest.approx(shown)


@pytest.mark.parametrize(
    ("machine", "solver"),
    [
        ("kapla_multi_4x4", "{schedule: pipelined, weights: pinned}"),
        ("kapla_multi_4x4", "{schedule: pipelined}"),
        ("edge_array", "{schedule: fused, factors: perfect}"),
        ("smv", "{tiling: smaug}"),
        ("tpu_edge", "{mapper: cost_descending}"),
    ],
)
def test_traffic_adds_up_to_the_energy(tmp_path: Path, machine: str, solver: str) -> None:
    """With its leakage, billed over a pipeline where there is one."""
    (tmp_path / "two.yaml").write_text(
        "extents: {m: 4, k: 8, n: 8, q: 8}\nweights: [W, V]\n"
        'einsums: ["T[m,n] += X[m,k] * W[k,n]", "Y[m,q] += T[m,n] * V[n,q]"]\n'
    )
    networks = "['conv:k=16,c=16,p=14,q=14,r=3,s=3']" if "smaug" in solver else "[{file: two.yaml}]"
    (tmp_path / "sums.yaml").write_text(
        f"name: sums\nworkloads: {networks}\nmachine: {machine}\nspace: {{clock_mhz: [300, "
        f"500]}}\nobjectives: [energy_pj]\n"
        f"search: {{method: exhaustive}}\nsolver: {solver}\n"
    )
    run = dse.sweep(tmp_path / "sums.yaml", out=tmp_path / "sums", workers=0)
    rows = run.sql(
        "SELECT machine, any_value(w.energy_pj) AS energy, sum(t.energy_pj) AS parts, sum(t.energy_pj) "
        "FILTER (action = 'leak') AS leak FROM workload_costs w JOIN traffic t USING (machine, schedule, "
        "workload) GROUP BY ALL"
    )
    assert len(rows) == 2
    for row in rows:
        assert row["parts"] == pytest.approx(row["energy"])
        assert row["leak"] > 0
    _components_and_rates_are_those_shown(run)


def _components_and_rates_are_those_shown(run: Run) -> None:
    """In SQL, also of stored rows, as on the screen; MACs per byte also by the actions that are counted."""
    shown = run.show(0).solutions[0]
    assert isinstance(shown.solution, Solution)
    parts = {
        row["component"]: (row["area_mm2"], row["dynamic_pj"], row["static_pj"])
        for row in run.sql("FROM components WHERE machine = 0")
    }
    assert parts == {
        one.name: tuple(map(pytest.approx, (one.area_mm2, one.dynamic_pj, one.static_pj)))
        for one in values.components(shown.arch, shown.solution)
    }
    (cost,) = run.sql("FROM workload_costs WHERE machine = 0")
    ratios = record.RATIOS_OF["workload_costs"]
    assert {key: cost[key] for key in ratios} == {key: shown.totals[key] for key in ratios}
    (moved,) = run.sql(
        "SELECT sum(elems) FILTER (action = 'compute') AS macs, sum(bytes) FILTER (level = "
        f"'{shown.arch.levels[0].name}') AS bytes FROM traffic WHERE machine = 0"
    )
    assert cost["main_memory_bytes"] == pytest.approx(moved["bytes"])
    assert cost["macs_per_byte"] == pytest.approx(moved["macs"] / moved["bytes"])
    for row, one in zip(run.sql("FROM einsums WHERE machine = 0"), shown.einsums, strict=True):
        assert [row[key] for key in record.RATIOS_OF["einsums"]] == [
            one[key] for key in record.RATIOS_OF["einsums"]
        ]
