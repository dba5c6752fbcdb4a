"""Machines that bounds rule out: the front is the one of all machines, whoever solves them and however often
a run is begun.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from cluster import driver
from cluster.run_state import RunState
from dse.study import pareto
from dse.study import prune as pruning
from dse.study import study as studies
from dse.study.pareto import Trial
from dse.study.prune import dominating
from dse.study.read import StudyError
from tests.amount import some
from tests.pruned import drawn, left_out, wrong
from tests.test_driver import rows, table

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
        "extents: {m: 4, k: 16, n: 16, q: 16}\nweights: [W, V]\n"
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
        (["objectives=[energy_pj, throughput]"], "search.prune = true: no bound of throughput is known"),
        (["objectives=[power_mw]"], "search.prune = true: no bound of power_mw is known"),
    ],
)
def test_what_bounds_cannot_rule_out_is_refused(tmp_path: Path, sets: list[str], line: str) -> None:
    drawn(tmp_path, 0, True)
    with pytest.raises(StudyError, match=line):
        studies.load(tmp_path / "0_True.yaml", sets)
