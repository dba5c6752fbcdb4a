"""Machines that bounds rule out: the front is the one of all machines, whoever solves them and however often
a run is begun.
"""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster import driver
from cluster.pruning import RunningBound
from cluster.run_state import RunState
from cluster.worker import job_of
from dse.frontend import runs
from dse.sim.einsum.evaluate import percent
from dse.study import pareto
from dse.study import prune as pruning
from dse.study import study as studies
from dse.study.best_first import best_first
from dse.study.pareto import Trial
from dse.study.prune import dominating
from dse.study.read import StudyError
from dse.study.study import Study
from hw.arch import Arch
from hw.space import decode
from tests.amount import some
from tests.pruned import drawn, front, left_out, wrong
from tests.test_driver import rows, table
from workloads.arrays import Floats

pytestmark = pytest.mark.xdist_group("prune")


@pytest.fixture(scope="module")
def solved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runs of seed 4, with bounds (4_True) and without (4_False)."""
    folder = tmp_path_factory.mktemp("solved")
    for prune in (True, False):
        driver.run(drawn(folder, 4, prune), folder / f"4_{prune}", workers=0)
    return folder


def test_the_front_is_that_of_all_machines(solved: Path) -> None:
    assert [line for seed in some((4, 7, 9), 0) for line in wrong(solved, seed)] == []
    assert left_out(solved) > 50


@pytest.mark.parametrize(
    ("seed", "mutant"),
    some(
        [
            (4, lambda front, lower: dominating(front, [1.2 * low for low in lower])),  # bounds that are none
            # one objective is enough
            (7, lambda front, lower: next((t for t in front if (t.values or ())[0] < lower[0]), None)),
        ],
        0,
    ),
)
def test_a_bound_made_wrong_is_told(
    solved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, mutant: Any
) -> None:
    shutil.copytree(solved / "4_False", tmp_path / "4_False")
    monkeypatch.setattr(pruning, "dominating", mutant)
    assert wrong(tmp_path, seed)


def test_pinned_weights_are_below_no_bound(tmp_path: Path) -> None:
    """They are not loaded: a bound that loads them rules out what is best."""
    (tmp_path / "two.yaml").write_text(
        "extents: {m: 4, k: 8, n: 8, q: 8}\nweights: [W, V]\n"
        'einsums: ["T[m,n] += X[m,k] * W[k,n]", "Y[m,q] += T[m,n] * V[n,q]"]\n'
    )
    text = (
        "name: pinned\nworkloads: [{file: two.yaml}]\nmachine: kapla_multi_4x4\nspace: "
        "{dram.read_pj: [200.0, 199.0]}\n"
        "objectives: [energy_pj, latency_ns]\nsearch: {method: exhaustive, generation: 1, prune: "
        "true}\nsolver: {schedule: pipelined, weights: pinned}\n"
    )
    (tmp_path / "study.yaml").write_text(text)
    driver.run(studies.load(tmp_path / "study.yaml"), tmp_path / "run", workers=0)
    costs = {row["machine"]: row for row in table(tmp_path / "run", "points")}
    for row in table(tmp_path / "run", "machines"):
        own = costs[row["machine"]]
        assert row["bound_energy_pj"] <= own["energy_pj"] * (1 + 1e-9)
        assert row["bound_latency_ns"] <= own["latency_ns"] * (1 + 1e-9)


STUDY = """
name: best
workloads: ["gemm:m=64,n=32,k=48", {workload: "gemm:m=24,n=40,k=36", weight: 2}]
machine: edge_array
space: {array.x: [4, 8], array.y: [4, 7, 8], gbuf.capacity: [4 KiB, 32 KiB], clock_mhz: [200, 500],
  regf.capacity: [32 B, 64 B, 256 B], dram.kind: [ddr3, lpddr4, lpddr5]}
constraints: ["array.x >= array.y - 3", "latency_ns <= 2.5e4"]
objectives: [energy_pj, latency_ns, area_mm2]
search: {method: exhaustive, generation: 8}
"""
NAMES = ["energy_pj", "latency_ns", "area_mm2"]
BEST_FIRST = "search.method=bounds"
RANDOM = ("search.method=random", "search.prune=true")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a study, and its run over all machines."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "study.yaml").write_text(STUDY)
    ran(folder, "all")
    return folder


def ran(folder: Path, name: str, *sets: str) -> tuple[runs.Run, Floats]:
    """The study's run, by the first who asks, and the values of its front [N, 3]."""
    driver.run(studies.load(folder / "study.yaml", sets), folder / name, workers=0)
    return runs.open(folder / name), np.array(front(table(folder / name, "points"), NAMES))


def covered(front: Floats, values: Floats) -> float:
    """By which factor the worst covered of these values is better than the front."""
    return max(float((front / one).max(axis=1).min()) for one in values)


def feasible(folder: Path) -> Floats:
    return np.array([[row[n] for n in NAMES] for row in table(folder, "points") if row["feasible"]])


def bound_of(study: Study, machine: int) -> Floats | None:
    """Bounds of the objectives of one machine, one einsum after the other; None: it cannot be built."""
    arch = decode(study.space, machine)
    if not isinstance(arch, Arch):
        return None
    lower = RunningBound(job_of(study).pruner, arch, ()).lower_bounds()
    return np.array(pruning.objective_bounds(study.objectives, lower, study.weights(), arch.area_mm2()))


def test_best_first_ends_with_the_front_of_all_machines(whole: Path) -> None:
    """Sooner than in a random order; each machine has a row, and what rules it out is better."""
    run, found = ran(whole, "exact1", BEST_FIRST)
    _, shuffled = ran(whole, "exact2", *RANDOM)
    every = {row["machine"]: row for row in table(whole / "all", "points")}
    assert found.tolist() == shuffled.tolist() == [list(v) for v in front(every.values(), NAMES)]
    counts, others = (
        Counter(row["status"] for row in table(whole / name, "machines")) for name in ("exact1", "exact2")
    )
    assert counts.total() == run.study.space.size
    assert counts["ok"] < 0.8 * others["ok"] < 0.5 * len(every)
    ruled_out = [row for row in table(whole / "exact1", "machines") if row["dominated_by"] is not None]
    for row in ruled_out:
        own, other = every[row["machine"]], every[row["dominated_by"]]
        assert other["feasible"]
        assert all(other[name] <= own[name] for name in NAMES)
    assert run.certificate() == (
        "no machine of this study with its schedule of least energy is missing from this front; "
        f"{counts['ok'] + counts['infeasible']} are solved, {len(ruled_out)} ruled out by bounds, "
        f"{counts['pruned'] - len(ruled_out)} break a constraint"
    )


@pytest.mark.parametrize("schedule", ["unfused", "fused"])
def test_bounds_of_all_machines_are_those_of_each(whole: Path, schedule: str) -> None:
    """Also where a machine has no schedule: a register file too small to build, a main memory too small."""
    small = "space={dram.capacity: [1 KiB, 1 GiB], regf.capacity: [32 B, 64 B], clock_mhz: [200, 500]}"
    study = studies.load(
        whole / "study.yaml", [small, f"solver.schedule={schedule}", "constraints=[]", BEST_FIRST]
    )
    pruner = job_of(study).pruner
    found = pruner.objective_bounds(np.arange(study.space.size))
    assert np.isfinite(found).all(axis=1).sum() == study.space.size // 4
    for machine, own in enumerate(found):
        if (alone := bound_of(study, machine)) is None or np.isinf(own).all():
            arch = decode(study.space, machine)
            assert not isinstance(arch, Arch) or pruner.exceeds_capacity(arch)
        else:
            assert own.tolist() == alone.tolist()


def test_best_first_cut_short_goes_on_as_if_it_had_not_been(whole: Path) -> None:
    ran(whole, "exact1", BEST_FIRST)
    for machines in (3, 9, 10, 31):
        ran(whole, "parts", BEST_FIRST, f"stop.machines={machines}")
    ran(whole, "parts", BEST_FIRST)
    assert rows(whole / "parts") == rows(whole / "exact1")


@pytest.mark.parametrize("order", [(BEST_FIRST,), RANDOM])
def test_a_front_within_a_gap_covers_all_machines(whole: Path, order: tuple[str, ...]) -> None:
    exact, _ = ran(whole, f"exact{len(order)}", *order)
    near, found = ran(whole, f"near{len(order)}", *order, "search.gap=0.1")
    assert near.status()["ok"] < 0.9 * exact.status()["ok"]
    assert 1 < covered(found, feasible(whole / "all")) <= 1.1
    assert "dominates this front by more than 10 % in every objective" in near.certificate()
    study = studies.load(whole / "study.yaml", order)
    values = {row["machine"]: np.array([row[n] for n in NAMES]) for row in table(near.path, "points")}
    looser = 0
    for row in table(near.path, "machines"):
        if row["reason"] and row["reason"].startswith("bounds: dominated within search.gap = 0.1 by"):
            bound, better = bound_of(study, row["machine"]), values[row["dominated_by"]]
            assert bound is not None
            assert (better <= 1.1 * bound).all()
            looser += bool((better > bound).any())
    assert looser


def test_a_run_cut_short_says_how_near_its_front_is(whole: Path) -> None:
    """The largest factor by which bounds of a machine without an answer are below the front, by hand."""
    run, found = ran(whole, "cut", BEST_FIRST, "stop.machines=12")
    rest = set(range(run.study.space.size)) - {row["machine"] for row in table(run.path, "machines")}
    study = studies.load(whole / "study.yaml", [BEST_FIRST])
    bounds = [bound for one in rest if (bound := bound_of(study, one)) is not None]
    worst = covered(found, np.array(bounds))
    text = run.certificate()
    assert f"dominates this front by more than {percent(worst - 1)} in every objective; " in text
    assert text.endswith(f"{len(rest)} bounded")
    assert 1 < covered(found, feasible(whole / "all")) <= worst


@given(st.lists(st.tuples(*[st.floats(0, 1e9) | st.just(np.inf)] * 2), min_size=1, max_size=12))
def test_what_dominates_is_asked_first(bounds: list[tuple[float, float]]) -> None:
    values = np.array(bounds)
    order = best_first(values).tolist()
    assert sorted(order) == list(range(len(bounds)))
    at = {machine: place for place, machine in enumerate(order)}
    for a in range(len(bounds)):
        for b in range(len(bounds)):
            far = all(x * 1.001 < y for x, y in zip(values[a], values[b], strict=True))  # beyond rounding
            assert not (np.isfinite(values[a]).all() and far) or at[a] < at[b]


def test_equal_machines_stay_on_the_front() -> None:
    """A bound that is reached, but for rounding, leaves a tie possible."""
    objectives = (pareto.Objective("energy_pj"), pareto.Objective("area_mm2"))
    known = [Trial(7, 0, "ok", (100.0, 2.0), (0.0,))]
    for pj, area, by in (
        (100.0 * (1 + 1e-12), 2.0, None),
        (101.0, 2.0, known[0]),
        (100.0, 2.1, known[0]),
        (99.0, 2.1, None),
        (101.0, 1.9, None),
    ):
        lower = pruning.objective_bounds(objectives, {"w": pareto.Cost(pj, 1.0, 1.0, 1.0)}, {"w": 1.0}, area)
        assert (dominating(known, lower) is not None) == (
            (by is not None and pj > 100 * (1 + 1e-9)) or (area > 2 and pj >= 100 * (1 + 2e-9))
        )


def test_a_generation_is_held_against_the_same_front_whenever_it_is_dispatched(tmp_path: Path) -> None:
    """Of generations up to the second before it, also when what comes between is known and better."""
    given = (
        (5, 0, (4.0, 4.0)),
        (3, 0, (9.0, 1.0)),
        (8, 1, (2.0, 2.0)),
        (1, 2, (1.0, 3.0)),
        (9, 3, (1.0, 1.0)),
    )
    trials = [Trial(machine, generation, "ok", values, (0.0,)) for machine, generation, values in given]
    expected = {0: [], 1: [], 2: [3, 5], 3: [3, 8], 4: [3, 8, 1], 5: [9]}
    for last in range(-1, 4):
        known = RunState(
            drawn(tmp_path, 4, True),
            hidden_trials={g: [t for t in reversed(trials) if t.generation == g] for g in range(4)},
        )
        for settled in range(last + 1):
            known.release_trials(settled)
        for number in range(max(last + 1, 0), 6):
            assert [t.machine for t in known.front_before(number)] == expected[number]
        once = RunState(
            known.study, hidden_trials={g: [t for t in trials if t.generation == g] for g in range(4)}
        )
        once.release_trials(last)
        assert [once.front_before(number) for number in (last + 1, last + 2)] == [
            known.front_before(number) for number in (last + 1, last + 2)
        ]


def test_a_run_cut_short_goes_on_as_if_it_had_not_been(solved: Path, tmp_path: Path) -> None:
    drawn(tmp_path, 4, True)
    for points in (5, 21, 22, 60, None):
        cut = studies.load(tmp_path / "4_True.yaml", [f"stop.machines={points}"] if points else [])
        driver.run(cut, tmp_path / "parts", workers=0)
    assert rows(tmp_path / "parts") == rows(solved / "4_True")


@pytest.mark.parametrize(
    ("sets", "line"),
    [
        (
            ["search.method=nsga2"],
            "search.prune = true: nsga2 learns from machines that are solved; take exhaustive, random or qmc",
        ),
        (
            ["search.method=bounds", "objectives=[power_mw]"],
            "search.method = bounds: no bound of power_mw is known; take another method, or take objectives",
        ),
        (["search.prune=false", "search.gap=0.1"], "search.gap = 0.1: says which machines bounds leave out"),
        (
            [
                "search.method=bounds",
                "machine=a2",
                "space={clock_mhz: {linear: [1, 9, 4000]}, "
                "glb.capacity: {from: 1 KiB, to: 4 MiB, step: 1 KiB}}",
            ],
            "search.method = bounds: computes bounds of all machines first, 10,000,000 at most, here 16,384",
        ),
        (["objectives=[energy_pj, throughput]"], "search.prune = true: no bound of throughput is known"),
        (["objectives=[power_mw]"], "search.prune = true: no bound of power_mw is known"),
    ],
)
def test_what_bounds_cannot_rule_out_is_refused(tmp_path: Path, sets: list[str], line: str) -> None:
    drawn(tmp_path, 0, True)
    with pytest.raises(StudyError, match=line):
        studies.load(tmp_path / "0_True.yaml", sets)
