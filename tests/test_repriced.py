"""Points at other prices (SQL what_if, robust): against every known mapping that is priced by itself, and
against runs with these prices.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cluster import driver
from dse.frontend import cli, runs
from dse.mapping.nest import parse
from dse.sim.einsum.evaluate import EinsumCost, Problem, einsum_cost
from dse.study import pareto
from dse.study import study as studies
from hw.arch import Arch
from hw.space import decode
from workloads.arrays import Floats
from workloads.graph import unique

pytestmark = pytest.mark.xdist_group("repriced")

STUDY = """
name: prices
workloads: ["gemm:m=256,n=256,k=128", {workload: "mlp_s:batch=4", weight: 2}]
machine: edge_array
space: {array.x: [4, 8], gbuf.capacity: [4 KiB, 32 KiB], regf.capacity: [64 B, 256 B], dram.read_pj: [300],
  dram.write_pj: [300], clock_mhz: [200, 500], mac.mac_pj: [0.2]}
constraints: ["latency_ns <= 2.235e5"]
objectives: [energy_pj, latency_ns]
solver: {gap: 0}
"""
NAMES = ["energy_pj", "latency_ns"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> runs.Run:
    folder = tmp_path_factory.mktemp("prices")
    (folder / "study.yaml").write_text(STUDY)
    driver.run(studies.load(folder / "study.yaml"), folder / "run", workers=0)
    return runs.open(folder / "run")


def scaled(arch: Arch, dram: float = 1.0, sram: float = 1.0, mac: float = 1.0) -> Arch:
    """The machine with the prices of main memory, of both srams, and of a multiplication changed."""
    factors = (dram, sram, sram)
    levels = tuple(
        replace(level, read_pj=level.read_pj * f, write_pj=level.write_pj * f)
        for level, f in zip(arch.levels, factors, strict=True)
    )
    return replace(arch, levels=levels, compute=replace(arch.compute, mac_pj=arch.compute.mac_pj * mac))


def by_hand(run: runs.Run, **factors: float) -> tuple[list[int], Floats]:
    """The machines of a run, and the values of their points: each einsum with the mapping of least energy
    among all of the run that fit, one after the other.
    """
    nests = {
        row["mapping_key"]: (row["einsum_key"], parse(row["nest"]))
        for row in run.sql("SELECT mapping_key, einsum_key, nest FROM mappings")
    }
    machines = [row["machine"] for row in run.sql("SELECT machine FROM points ORDER BY machine")]
    rows = []
    for machine in machines:
        arch = decode(run.study.space, machine)
        assert isinstance(arch, Arch)
        energy = cycles = 0.0
        for ref, workload in zip(run.study.workloads, studies.workloads_of(run.study), strict=True):
            for group in unique(workload):
                problem = Problem(scaled(arch, **factors), group.einsum, "energy")
                costs = [
                    cost
                    for key, nest in nests.values()
                    if key == group.key and isinstance(cost := einsum_cost(problem, nest), EinsumCost)
                ]
                best = min(costs, key=lambda cost: (cost.energy_pj, cost.latency_cycles))
                energy += ref.weight * group.occurrences * best.energy_pj
                cycles += ref.weight * group.occurrences * best.latency_cycles
        rows.append((energy, cycles / arch.clock_ghz))
    return machines, np.array(rows)


@pytest.mark.parametrize(
    ("prices", "factors"),
    [
        ({}, {"dram_pj": 1.0}),
        ({"dram": 0.1}, {"dram_pj": 0.1}),
        ({"dram": 0.02, "sram": 3.0}, {"dram.read_pj": 0.02, "dram.write_pj": 0.02, "sram_pj": 3.0}),
        ({"sram": 5.0, "mac": 0.0}, {"gbuf_pj": 5.0, "regf_pj": 5.0, "mac_pj": 0.0}),
    ],
)
def test_other_prices_choose_mappings_anew(
    run: runs.Run, prices: dict[str, float], factors: dict[str, float]
) -> None:
    machines, expected = by_hand(run, **prices)
    found = run.what_if(factors)
    assert [row["machine"] for row in found] == machines
    values = np.array([[row[name] for name in NAMES] for row in found])
    np.testing.assert_allclose(values, expected, rtol=1e-12)
    assert [row["feasible"] for row in found] == (expected[:, 1] <= 2.235e5).tolist()
    old = np.array([[row[n] for n in NAMES] for row in run.sql("FROM points ORDER BY machine")])
    if prices:
        assert sum(row["remapped"] for row in found) > 0
    else:
        np.testing.assert_allclose(values, old, rtol=1e-12)
        rows = run.sql("SELECT machine, max(optimality_gap) AS gap FROM einsums GROUP BY machine")
        proven = {row["machine"]: row["gap"] for row in rows}
        assert all(row["optimality_gap"] <= proven[row["machine"]] + 1e-8 for row in found)


def test_points_at_other_prices_have_the_units_of_points(
    run: runs.Run, capsys: pytest.CaptureFixture[str]
) -> None:
    for rows in ("what_if({dram_pj: 0.5})", "robust({dram_pj: 0.2}, 3)"):
        columns = "energy_pj, latency_ns AS slow, optimality_gap"
        for text in (f"FROM {rows}", f"FROM pareto('(FROM {rows})', ['energy_pj'])"):
            assert cli.main(["sql", str(run.path), f"SELECT {columns} {text} LIMIT 1"]) == 0
            assert re.search(r"\n *[0-9.]+ [pnum]J  +[0-9.]+ [num]?s  +[0-9.]+ %\n", capsys.readouterr().out)


def test_a_run_with_the_price_is_within_the_gap(run: runs.Run, tmp_path: Path) -> None:
    sets = {"space.dram.read_pj": [30], "space.dram.write_pj": [30]}
    other = runs.sweep(run.path / "study.yaml", tmp_path / "other", workers=0, **sets)
    solved = {row["machine"]: row for row in other.sql("FROM points")}
    found = run.what_if({"dram_pj": 0.1})
    assert len(found) == len(solved)
    for row in found:
        optimum = solved[row["machine"]]["energy_pj"]
        assert optimum <= row["energy_pj"] * (1 + 1e-9)
        assert row["energy_pj"] <= optimum * (1 + row["optimality_gap"]) * (1 + 1e-9)
        assert row["optimality_gap"] < 0.25
    # what the old mappings cost at the new price, which the choice is not above
    stale = run.sql(
        "SELECT machine, sum(weight * t.energy_pj * CASE WHEN level = 'DRAM' AND action <> 'leak' THEN 0.1 "
        "ELSE 1 END) AS energy_pj FROM traffic t JOIN (SELECT DISTINCT workload, weight FROM "
        "workload_costs) USING (workload) GROUP BY machine ORDER BY machine"
    )
    for new, old in zip(found, stale, strict=True):
        assert new["energy_pj"] <= old["energy_pj"] * (1 + 1e-9)
    front = run.sql(
        "SELECT machine FROM pareto('(FROM what_if({dram_pj: 0.1}) WHERE feasible)', "
        "['energy_pj', 'latency_ns'], grp := ['clock_mhz']) ORDER BY machine"
    )
    assert [row["machine"] for row in front]


def test_robust_counts_the_samples_in_which_a_point_is_on_the_front(run: runs.Run) -> None:
    spreads, samples, seed = {"dram_pj": 3.0, "sram_pj": 1.0}, 12, 5
    z = np.random.default_rng(seed).standard_normal((samples, 2))
    counts = np.zeros(0)
    for dram, sram in np.array([4.0, 2.0]) ** z:
        machines, values = by_hand(run, dram=dram, sram=sram)
        values[values[:, 1] > 2.235e5] = np.nan
        counts = (counts if counts.size else np.zeros(len(machines))) + pareto.front(values)
    shares = {row["machine"]: row["share_on_front"] for row in run.robust(spreads, samples, seed)}
    assert [shares[machine] for machine in machines] == (counts / samples).tolist()
    assert {0.0, 1.0} < set(shares.values())
    rows = run.sql(
        "SELECT machine, share_on_front, array_x FROM robust({dram_pj: 3, sram_pj: 1}, 12, seed := 5)"
    )
    assert {row["machine"]: row["share_on_front"] for row in rows} == shares


def test_machines_that_are_named_have_the_rows_of_all(run: runs.Run) -> None:
    """Rows with a gap, which others bound; and no other machine is priced, but MAX_ANCHORS of each family."""
    factors = {"dram_pj": 0.1, "sram_pj": 2.0}
    every = {row["machine"]: row for row in run.what_if(factors)}
    some = [*every][1::3]
    assert [*run.what_if(factors, some)] == [every[machine] for machine in some]
    assert len(run.what_if(factors, [])) == 0
    assert [*run.what_if(factors, [10**9, some[0]])] == [every[some[0]]]
    said = "1 of the 2 machines are left out: machine 1000000000 is not in this run"
    assert run.what_if(factors, [10**9, some[0]]).note == said
    assert run.what_if(factors, some).note == ""
    assert [*run.what_if({"DRAM_pj": 0.1, "SRAM_PJ": 2.0}, some[:1])] == [every[some[0]]]
    text = "FROM what_if({dram_pj: 0.1, sram_pj: 2}, machines := (SELECT list(machine) FROM designs WHERE "
    found = run.sql(f"{text}array_x = 8)) ORDER BY machine")
    assert [*found] == [row for row in every.values() if row["array_x"] == 8]
    assert len(run.sql(f"{text}array_x = 9))")) == 0


def test_the_front_of_named_machines_is_among_them(run: runs.Run) -> None:
    spreads = {"dram_pj": 3.0, "sram_pj": 1.0}
    feasible = [row["machine"] for row in run.sql("FROM points WHERE feasible")]
    (alone,) = run.robust(spreads, 5, machines=feasible[:1])
    assert (alone["machine"], alone["share_on_front"]) == (feasible[0], 1.0)
    assert [*run.robust(spreads, 5, machines=feasible)] == [*run.robust(spreads, 5)][: len(feasible)]


@pytest.mark.parametrize(
    ("asked", "line"),
    [
        ("what_if({dramm_pj: 0.5})", "price dramm_pj: no such one; did you mean dram_pj?"),
        ("what_if({dram_pj: -1})", "what_if: dram_pj = -1; give a factor, such as 0.5, of at least 0"),
        ("what_if({dram_pj: 'x'})", "what_if: dram_pj = x; give a factor, such as 0.5, of at least 0"),
        ("what_if(0.5)", "what_if(0.5): give prices with numbers, such as what_if({dram_pj: 0.5})"),
        (
            "what_if({gbuf_pj: 2, sram_pj: 2})",
            "prices gbuf_pj and sram_pj have read_pj of a memory in common",
        ),
        (
            "what_if({dram_pj: 2}, machines := ['a'])",
            'what_if: machines := ["a"]: give numbers, such as machines := [17, 18] or machines := (SELECT ',
        ),
        ("what_if({'GBUF.raed_pj': 2})", "price GBUF.raed_pj: no such one; did you mean gbuf.read_pj?"),
        (
            "what_if({dram_pj: 2}, machines := [999999])",
            "machines := [999999]: the run has a schedule on none of them",
        ),
        (
            "robust({dram_pj: 0.2}, machines := [1])",
            "robust: samples missing; write robust({dram_pj: 0.2}, 100); it may have seed := 0 and machines",
        ),
        ("robust({dram_pj: 0.2}, 0)", "robust: 0 samples; take 1 to 100,000"),
    ],
)
def test_what_cannot_be_priced_is_one_line(
    run: runs.Run, capsys: pytest.CaptureFixture[str], asked: str, line: str
) -> None:
    assert cli.main(["sql", str(run.path), f"FROM {asked}"]) == 2
    said = capsys.readouterr().err.strip()
    assert said.startswith(line)
    assert len(said.splitlines()) == 1


def test_runs_of_other_objectives_are_refused(run: runs.Run, tmp_path: Path) -> None:
    other = runs.sweep(
        run.path / "study.yaml",
        tmp_path / "edp",
        workers=0,
        **{"solver.objective": "edp", "stop.machines": 1},
    )
    with pytest.raises(
        ValueError, match=r"in runs of solver\.objective = energy, schedule = unfused; this is"
    ):
        other.what_if({"dram_pj": 0.5})
