"""Answers within a gap, and answers of searches that end early: what is said of their gaps holds."""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count, product
from math import inf
from pathlib import Path

import numpy as np
import pytest

import dse
from cluster import driver, worker
from dse.explain import values as explain
from dse.frontend import api
from dse.mapper.exact import local_search
from dse.mapper.exact import optimal as mapper
from dse.mapper.exact import search as searches
from dse.mapper.exact.optimal import Prices, optimal, sort_key
from dse.mapper.exact.search import search, search_on
from dse.mapping.constraints import FREE
from dse.mapping.nest import Infeasible
from dse.run import deadline
from dse.sim.einsum.evaluate import (
    EinsumCost,
    Problem,
    Solution,
    evaluate_unfused,
    objective_value,
    percent,
    relative_gap,
)
from dse.sim.fronts import Objective
from dse.solve import solve
from dse.solve.options import SolverOptions
from dse.study import pareto
from hw.machine import load_arch
from tests.amount import amount, some
from tests.nests import free_edge
from tests.prove.mappers import problem_of
from tests.test_driver import study
from workloads import catalog
from workloads.einsum import einsum

SLACK = 1 + 1e-9


def einsum_called(name: str) -> Problem:
    """One einsum of SqueezeNet on a machine whose fills overlap freely."""
    (e,) = (e for e in catalog.load("squeezenet").einsums if e.name == name)
    return Problem(free_edge(), e, "energy")


def answer(problem: Problem, gap: float) -> EinsumCost:
    found = optimal(problem, allowed_gap=gap)
    assert not isinstance(found, Infeasible)
    return found[0]


def no_false_gap(one: EinsumCost, best: EinsumCost) -> bool:
    return best.energy_pj <= one.energy_pj * SLACK <= best.energy_pj * (1 + one.optimality_gap) * SLACK**2


def test_imperfect_factors_count_where_they_save_more_than_the_gap() -> None:
    """Perfect factors cost 5.75 % more than imperfect ones."""
    problem = einsum_called("fire6_1x1")
    best, near, far = (answer(problem, gap) for gap in (0.0, 0.05, 0.08))
    even = optimal(problem, "perfect")
    assert not isinstance(even, Infeasible)
    assert (near.mapping, near.optimality_gap) == (best.mapping, 0.0)
    assert far.mapping == even[0].mapping
    assert far.energy_pj > best.energy_pj
    assert 0 < far.optimality_gap <= 0.08 * SLACK
    assert no_false_gap(far, best)


def test_nothing_is_searched_below_the_lower_bound_of_any_mapping() -> None:
    """An optimum of perfect factors within 1 % of it is the answer, and says that gap."""
    problem = einsum_called("fire4")
    one = answer(problem, 0.01)
    assert one.visited == search(problem, "perfect").visited
    assert one.optimality_gap == one.gap_to_bound < 0.01


def test_a_goal_depends_on_the_machine_alone() -> None:
    """What a second machine finds lowers no goal of the first."""
    problem = einsum_called("fire6_1x1")
    dear = replace(problem.arch.levels[1], read_pj=20 * problem.arch.levels[1].read_pj)
    other = replace(
        problem, arch=replace(problem.arch, levels=(problem.arch.levels[0], dear, *problem.arch.levels[2:]))
    )
    for gap in (0.01, 0.05, 0.08):
        prices = Prices([problem, other], FREE)
        several = search_on(
            [problem, other], "imperfect_spatial", goals=prices.make_goals("imperfect_spatial", gap)
        )
        for one, own in zip((problem, other), several, strict=True):
            alone = search(
                one, "imperfect_spatial", goals=Prices([one], FREE).make_goals("imperfect_spatial", gap)
            )
            assert (own.mapping, own.lower_bound) == (alone.mapping, alone.lower_bound)


@pytest.mark.parametrize("seed", range(amount(40)))
def test_no_gap_of_random_problems_is_too_small(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With gaps of 5 and 30 %, and where a few choices of spatial unrollings end the search."""
    problem = problem_of(seed, 1000)
    best = optimal(problem)
    monkeypatch.setattr(mapper, "MAX_UNROLLINGS", 0)
    for gap, choices in ((0.05, searches.MAX_CHOICES), (0.3, searches.MAX_CHOICES), (0.0, 20), (0.05, 3)):
        monkeypatch.setattr(searches, "MAX_CHOICES", choices)
        found = optimal(problem, allowed_gap=gap)
        assert isinstance(found, Infeasible) == isinstance(best, Infeasible)
        if isinstance(found, Infeasible) or isinstance(best, Infeasible):
            continue
        value, least = sort_key(problem, found[0])[0], sort_key(problem, best[0])[0]
        assert least <= value * SLACK
        assert (
            relative_gap(value, least / (1 + best[0].optimality_gap)) >= best[0].optimality_gap / SLACK - 1e-9
        )
        assert value / (1 + found[0].optimality_gap) <= least * SLACK


def test_a_search_ends_with_its_budget_of_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = einsum_called("conv1")
    best = answer(problem, 0.0)
    monkeypatch.setattr(searches, "MAX_CHOICES", 1000)
    stopped = search(problem, "imperfect_spatial")
    assert stopped.ended
    assert 0 < stopped.lower_bound <= best.energy_pj
    assert no_false_gap(answer(problem, 0.0), best)


@pytest.mark.parametrize("sizes", [{"m": 12, "n": 8, "k": 30}, {"m": 64, "n": 32, "k": 48}])
def test_what_is_left_when_choices_end_is_bounded(
    sizes: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One box was followed to its end; its mapping is not the best."""
    problem = Problem(load_arch("kapla_multi_4x4"), einsum("C[m,n] += A[m,k] * B[k,n]", sizes), "energy")
    best = search(problem, "perfect").mapping
    monkeypatch.setattr(searches, "MAX_CHOICES", 2)
    stopped = search(problem, "perfect")
    assert stopped.mapping
    assert best
    found, least = (evaluate_unfused(problem, one).energy_pj for one in (stopped.mapping, best))
    assert stopped.ended
    assert found > least * 1.01
    assert 0 < stopped.lower_bound <= least * SLACK


def test_large_products_on_large_arrays_are_answered_within_the_gap() -> None:
    """Each took minutes, or ended its budget with a gap of ten percent and more."""
    for machine, sizes in (
        ("datacenter", {"m": 4096, "n": 4096, "k": 4096}),
        ("kapla_multi", {"m": 16, "n": 13, "k": 480}),
    ):
        e = einsum("C[m,n] += A[m,k] * B[k,n]", sizes)
        found = optimal(Problem(load_arch(machine), e, "energy"), allowed_gap=0.01)
        assert isinstance(found, list)
        assert found[0].optimality_gap <= 0.011
        assert found[0].space


def test_a_batch_that_ends_early_is_solved_machine_by_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that its answers are those of each machine alone."""
    problem = einsum_called("conv1")
    level = problem.arch.levels[0]
    other = replace(level, read_pj=3 * level.read_pj)
    problems = [
        problem,
        replace(problem, arch=replace(problem.arch, levels=(other, *problem.arch.levels[1:]))),
    ]
    monkeypatch.setattr(searches, "MAX_CHOICES", 2000)
    monkeypatch.setattr(local_search, "MAX_BATCHES", 3)
    for one, own in zip(problems, mapper.optimal_on(problems, "imperfect_spatial"), strict=True):
        assert own == answer(one, 0.0)


def test_after_a_deadline_the_best_that_was_found_is_the_answer() -> None:
    problem = einsum_called("conv1")
    best = answer(problem, 0.0)
    with deadline.within(0.0):
        time.sleep(0.01)
        begun = time.perf_counter()
        one = answer(problem, 0.0)
        assert time.perf_counter() - begun < 5
        assert deadline.has_passed()
    assert not deadline.has_passed()
    assert deadline.STOP[0] == 0
    assert no_false_gap(one, best)
    assert answer(problem, 0.0) == best


def test_a_deadline_inside_of_another_ends_with_it() -> None:
    before = deadline.missed_count()
    with deadline.within(60.0, is_divided=True):
        with deadline.part(1000_000):
            time.sleep(0.01)
            assert deadline.has_passed()
        assert not deadline.has_passed()
        assert deadline.missed_count() == before + 1
    with deadline.within(60.0), deadline.part(1000_000):  # of a sweep: no row may depend on seconds
        time.sleep(0.01)
        assert not deadline.has_passed()
    assert deadline.missed_count() == before + 1


def test_answers_that_a_deadline_cut_short_are_not_cached() -> None:
    name, asked = "gemm:m=96,n=80,k=56", {"solver.gap": 0}
    short = api.map(name, "edge_array", **asked, **{"limits.seconds": 1e-6})
    whole = api.map(name, "edge_array", **asked)
    assert not isinstance(short.solution, Infeasible)
    assert not isinstance(whole.solution, Infeasible)
    assert whole.solution.energy_pj < short.solution.energy_pj
    assert short.solution.energy_pj / (1 + short.solution.optimality_gap) <= whole.solution.energy_pj * SLACK


@pytest.mark.parametrize(
    ("objective", "schedule"), some([*product(["energy", "latency", "edp"], ["fused", "best"])], 0, 1, 2)
)
def test_a_search_of_schedules_may_end_at_any_time(
    objective: Objective, schedule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers are schedules, claims hold, and nothing that is cut short is cached."""
    monkeypatch.setenv("DSE_CACHE", str(tmp_path))
    workload, a2s = catalog.load("attention:heads=2,q=32,context=64,d=16"), load_arch("a2s")
    options, seen = SolverOptions(objective=objective, schedule=schedule), count()

    def answer(polls: float) -> Solution:
        monkeypatch.setattr(deadline, "has_passed", lambda: next(seen) - begun >= polls)
        monkeypatch.setattr(deadline, "missed_count", lambda: int(deadline.has_passed()))
        begun = next(seen)
        found = solve.cached(a2s, workload, options)
        assert not isinstance(found, Infeasible)
        return found[0]

    found_by = [*map(answer, (0, 2, 10, 40, 160, 640, inf))]
    value = [
        (objective_value(objective, one.energy_pj, one.latency_cycles), one.optimality_gap)
        for one in found_by
    ]
    cut = re.fullmatch(
        r"limits.seconds ended before (\d+) of (\d+) segments were searched", found_by[0].left_out
    )
    assert cut
    assert cut[1] == cut[2]  # what is "saved" then says nothing of fusion
    assert explain.facts(a2s, workload, found_by[0])["saved over unfused"].endswith(f"% ({cut[0]})")
    assert found_by[-1].left_out == ""
    *_, (best, gap) = value
    assert value[0] > value[-1]  # something was cut
    for found, own_gap in value:
        assert best / (1 + gap) <= found * SLACK
        assert found / (1 + own_gap) <= best * SLACK


def test_a_sweep_keeps_no_row_of_a_search_that_was_cut_short(tmp_path: Path) -> None:
    """Also where no signal ends the machine: in actors, and in compiled code."""
    small = study(tmp_path)
    job = worker.job_of(replace(small, limits=replace(small.limits, seconds=1e-6)))
    with ThreadPoolExecutor(1) as pool:
        rows, _ = pool.submit(worker.solve_machine, job, worker.Ask(0, 0, "exhaustive")).result()
    assert [row["status"] for row in rows["machines"]] == ["error"]
    assert rows["machines"][0]["reason"].startswith("deadline:")
    assert not deadline.has_passed()
    out = driver.run(job.study, tmp_path / "run", workers=0)
    assert "of them not solved within limits.seconds = 1e-06 s" in out.status.reason


def test_limits_of_studies_are_none_of_one_machine() -> None:
    with pytest.raises(ValueError, match=r"limits\.errors: counts machines of a study"):
        api.map("gemm", "edge_array", **{"limits.errors": 3})
    with pytest.raises(
        ValueError, match=r"limits\.seconds = 5: ends searches of solver.schedule = unfused, fused and best"
    ):
        api.map("gemm", "edge_array", **{"limits.seconds": 5, "solver.schedule": "gogeta"})


TWO_WORKLOADS = """
name: two
workloads:
- {{workload: "gemm:m=64,n=32,k=48", name: product}}
- {{workload: "conv:k=32,c=16,p=14,q=14,r=3,s=3", name: layer, weight: 2}}
machine: edge_array
space:
  array.x: [4]
  array.y: [4]
  regf.capacity: [64 B]
  gbuf.capacity: [8 KiB, 32 KiB]
  dram.kind: [lpddr4, gddr6]
objectives: [energy_pj, latency_ns]
search: {{method: exhaustive}}
solver: {solver}
"""


@pytest.mark.parametrize(
    "solver",
    [
        "{objective: energy}",
        "{objective: energy, sharing_gap: 0.1}",
        "{objective: latency}",
        "{objective: edp}",
        "{objective: edp, sharing_gap: 0.1}",
        "{objective: front}",
    ],
)
def test_a_point_of_several_workloads_states_the_gap_of_their_sum(tmp_path: Path, solver: str) -> None:
    """From the rows of the workloads alone, with SQL: what their gaps leave, added up by weight."""
    path = tmp_path / "two.yaml"
    path.write_text(TWO_WORKLOADS.format(solver=solver))
    run = dse.sweep(path, tmp_path / "run", workers=0)
    goal = solver.partition("objective: ")[2].partition(",")[0].strip("}")
    value, of_bound, least = {
        "energy": ("energy_pj", "bound_energy_pj", "sum(weight * w.energy_pj / (1 + w.optimality_gap))"),
        "latency": ("latency_ns", "bound_latency_ns", "sum(weight * w.latency_ns / (1 + w.optimality_gap))"),
        "edp": (
            "edp_pj_ns",
            "bound_energy_pj * bound_latency_ns",
            "sum(weight * sqrt(w.edp_pj_ns / (1 + w.optimality_gap))) ** 2",
        ),
        "front": ("1.0", "NULL", "1 / (1 + max(w.optimality_gap))"),
    }[goal]
    rows = run.sql(
        "SELECT d.optimality_gap, d.gap_to_bound, d.certificate, "
        f"{value} / l.least - 1, {value} / ({of_bound})"
        " - 1, least(energy_pj / bound_energy_pj, latency_ns / bound_latency_ns) - 1 FROM designs d JOIN "
        f"(SELECT machine, schedule, {least} AS least FROM workload_costs w GROUP BY ALL) l "
        "USING (machine, schedule)"
    ).rows()
    assert len(rows) >= 4
    for gap, to_bound, certificate, expected, expected_to_bound, nearer in rows:
        assert gap == pytest.approx(expected if goal == "front" else min(expected, to_bound), abs=2e-9)
        if goal == "edp":  # of the workloads' own bounds, where they prove more than the product of the sums
            assert 0 < to_bound <= expected_to_bound + 1e-9
        else:
            assert to_bound == pytest.approx(nearer if goal == "front" else expected_to_bound, abs=1e-9)
        assert ("optimal in" in certificate or "no worse in either" in certificate) == (gap == 0)
        assert f"at most {percent(to_bound)} above " in certificate
    query = "SELECT any_value(p.energy_pj), sum(weight * c.energy_pj) FROM components c JOIN workloads USING "
    parts = run.sql(f"{query}(workload) JOIN points p USING (machine, schedule) GROUP BY machine, schedule")
    assert all(whole == pytest.approx(of_parts, rel=1e-9) for whole, of_parts in parts.rows())
    if solver == "{objective: energy}":
        assert any(row[0] > 0 for row in rows)
        (machine,) = run.sql("SELECT machine FROM points ORDER BY optimality_gap DESC").rows()[0]
        head = run.show(machine).text().partition("product on ")[0]
        assert re.search(r"optimality gap +0\.\d+ %", head)
        assert re.search(r"certificate +at most 0\.\d+ % above", head)


def test_no_choice_of_schedules_is_better_than_a_gap_of_several_workloads_allows() -> None:
    """Each workload has some schedules and takes the one of least energy x latency, or within a gap of it."""
    random = np.random.default_rng(3)
    worst = 0.0
    for _ in range(200):
        pairs, weights = random.uniform(1, 4, (3, 6, 2)), random.uniform(0.2, 3, 3)
        taken = [int(random.choice(np.argsort(one.prod(axis=1))[:2])) for one in pairs]
        own = [one[i].prod() / one.prod(axis=1).min() - 1 for one, i in zip(pairs, taken, strict=True)]
        costs = [pareto.Cost(*one[i][[0, 1, 1, 1]]) for one, i in zip(pairs, taken, strict=True)]
        gap = float(pareto.total_gap("edp", costs, weights, own))

        # of a front: what is better by each workload's own gap, in both, is no better than the gap of all
        of_front = float(pareto.total_gap("front", costs, weights, own))
        chosen = np.array([one[i] for one, i in zip(pairs, taken, strict=True)])
        better = weights @ (chosen / (1 + np.array(own)[:, None]))
        assert (weights @ chosen <= better * (1 + of_front) * SLACK).all()

        def edp(choice: tuple[int, ...]) -> float:
            return float(sum(w * one[i] for w, one, i in zip(weights, pairs, choice, strict=True)).prod())

        found = edp(tuple(taken)) / min(map(edp, product(range(6), repeat=3))) - 1
        assert found <= gap + 1e-9
        worst = max(worst, found - max(own))
    assert worst > 0  # the largest gap of a workload would state too little


def test_a_gap_that_no_smaller_solver_gap_closes_says_why() -> None:
    """DRAM's leakage over the cycles is 65 % of the energy, and the register files wait while they fill."""
    sets = {"array.x": 4, "array.y": 16, "gbuf.capacity": "32 KiB", "regf.capacity": "64 B"}
    layer = "conv:k=32,c=16,p=14,q=14,r=3,s=3"
    for _cached in (False, True):
        found = api.map(layer, "edge_array", **sets, **{"dram.kind": "lpddr4", "solver.gap": 0})
        assert 0 < found.optimality_gap < 0.01
        assert re.search(
            r"why a gap is left +conv: its bound counts fewer cycles than the model", found.text(why=True)
        )
    allowed = api.map(layer, "edge_array", **sets, **{"dram.kind": "lpddr4", "solver.gap": 0.01})
    assert "why a gap is left" not in allowed.text(why=True)
    assert "why a gap is left" not in api.map("gemm:m=8,n=8,k=8", "edge_array", **{"solver.gap": 0}).text(
        why=True
    )
