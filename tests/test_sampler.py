"""Proposals: pure functions, nothing asked twice, everything asked in the end, pruned machines put aside,
better than chance.
"""

import random
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dse.study import sampler
from dse.study.pareto import Objective, Trial, hypervolume, minimised
from dse.study.sampler import Grid, Proposal, Search, coordinates, machine_at, permutation, propose, window
from tests.amount import FULL, amount, some

pytestmark = pytest.mark.xdist_group("sampler")

METHODS = ("exhaustive", "random", "qmc", "nsga2", "nsga3", "tpe")
AIMS = ("min", "max")
GRIDS = st.lists(st.tuples(st.integers(1, 6), st.booleans()), min_size=1, max_size=4).map(
    lambda axes: Grid(*map(tuple, zip(*axes, strict=True)))
)


def metrics(grid: Grid, machine: int) -> tuple[float, float]:
    """The first axis trades the minimised value for the maximised one, the others have an optimum."""
    first, *rest = [p / max(1, n - 1) for p, n in zip(coordinates(grid, machine), grid.sizes, strict=True)]
    lost = sum((x - 0.4) ** 2 for x in rest)
    return 1.0 + first + 2 * lost, 1.0 + first**0.5 - lost


def solved(grid: Grid, asks: Proposal, generation: int) -> list[Trial]:
    """Trials as a run commits them: every fifth machine does not fit, one in seven breaks a modelled
    constraint.
    """
    found = []
    for machine, _ in asks.asks:
        if machine % 5 == 4:
            found.append(Trial(machine, generation, "infeasible", None, (0.5 + machine % 3, 0.0, 0.0)))
        else:
            found.append(
                Trial(
                    machine,
                    generation,
                    "ok",
                    metrics(grid, machine),
                    (0.0, 0.0, 1.0 if machine % 7 == 6 else -1.0),
                )
            )
    return found + [
        Trial(machine, generation, "pruned", None, (0.0, *admit(machine))) for machine, _ in asks.pruned
    ]


def admit(machine: int) -> tuple[float, ...]:
    return (1.0 if machine % 11 == 10 else -1.0, 0.0)


def run(search: Search, grid: Grid, generations: int, shuffle: int | None = None) -> list[Proposal]:
    """Generation g sees the trials of generations <= g - 2, in an order that must not matter."""
    proposals: list[Proposal] = []
    for g in range(generations):
        trials = [t for number, p in enumerate(proposals[: max(0, g - 1)]) for t in solved(grid, p, number)]
        asked = [m for p in proposals for m, _ in (*p.asks, *p.pruned)]
        # it may begin anywhere before the first machine that it has not drawn yet
        drawn = sum(source == "qmc" for p in proposals for _, source in (*p.asks, *p.pruned))
        if shuffle is not None:
            random.Random(shuffle).shuffle(trials)
            drawn = random.Random(shuffle).randint(0, drawn)
        found = propose(search, grid, g, AIMS, trials, set(asked), admit, drawn)
        if found is None:
            break
        proposals.append(found)
    return proposals


@given(GRIDS, st.data())
def test_coordinates_invert_machine_at(grid: Grid, data: st.DataObject) -> None:
    machine = data.draw(st.integers(0, grid.size - 1))
    assert machine_at(grid, coordinates(grid, machine)) == machine


@given(st.integers(1, 3000), st.integers(0, 2**31))
def test_permutation_is_one(size: int, seed: int) -> None:
    whole = permutation(size, seed, np.arange(size))
    assert sorted(whole.tolist()) == list(range(size))
    part = np.arange(size)[:: max(1, size // 7)]
    assert permutation(size, seed, part).tolist() == whole[part].tolist()


@pytest.mark.parametrize("size", [10**9, 10**9 + 7, 2**40, 2**62])
def test_permutation_of_a_huge_space_is_quick_and_even(size: int) -> None:
    found = permutation(size, 3, np.arange(20_000))
    assert len(set(found.tolist())) == 20_000
    assert found.min() >= 0
    assert abs(float((found / size).mean()) - 0.5) < 0.02
    assert abs(float(np.corrcoef(found[:-1], found[1:])[0, 1])) < 0.05


@settings(max_examples=amount(12), deadline=None)
@given(st.sampled_from(METHODS), GRIDS, st.integers(0, 99))
def test_every_machine_is_asked_once(method: str, grid: Grid, seed: int) -> None:
    """Exhaustive covers each index once in order; the others cover the space without repeats, and then say
    so.
    """
    search = Search(method=method, seed=seed, generation=16, population=4, startup=4)
    proposals = run(search, grid, grid.size + 5)
    asked = [m for p in proposals for m, _ in p.asks]
    pruned = [m for p in proposals for m, _ in p.pruned]
    assert sorted(asked + pruned) == list(range(grid.size))
    assert all(max(admit(m)) <= 0 for m in asked)
    assert all(max(admit(m)) > 0 for m in pruned)
    if method == "exhaustive":
        assert asked == sorted(asked)


@cache
def steady(method: str, shuffle: int | None = None, seed: int = 5) -> list[Proposal]:
    search = Search(method=method, seed=seed, generation=8, population=8, startup=8)
    return run(search, Grid((7, 5, 6, 4), (True, True, False, True)), 7, shuffle)


@pytest.mark.parametrize("method", METHODS)
def test_proposals_do_not_depend_on_order(method: str) -> None:
    here = steady(method)
    assert steady(method, shuffle=1) == here
    assert steady(method, seed=6) != here or method == "exhaustive"


@pytest.mark.parametrize("hash_seed", some(["1", "2"], 0))
def test_proposals_do_not_depend_on_the_process(hash_seed: str) -> None:
    code = "from tests.test_sampler import *; print([steady(method) for method in METHODS])"
    there = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],
        env={"PYTHONHASHSEED": hash_seed},
    )
    assert there.stdout.strip() == str([steady(method) for method in METHODS]), there.stderr


@pytest.mark.parametrize("method", sampler.LEARNING_METHODS)
def test_a_proposal_uses_what_it_saw_and_says_so(method: str) -> None:
    search, grid = (
        Search(method=method, seed=5, generation=8, population=8, startup=8),
        Grid((9, 9, 9, 9), (True,) * 4),
    )
    first = run(search, grid, 4)
    assert [p.seen for p in first[:2]] == [(), ()]
    assert set(first[2].seen) == {m for m, _ in (*first[0].asks, *first[0].pruned)}
    assert {source for _, source in first[0].asks} == {"qmc"}
    assert {source for _, source in first[3].asks} <= {method, "near", "fill"}
    asked = {m for p in first for m, _ in (*p.asks, *p.pruned)}
    trials = [t for number, p in enumerate(first[:3]) for t in solved(grid, p, number)]
    turned = [replace(t, values=None if t.values is None else (-t.values[0], -t.values[1])) for t in trials]
    assert propose(search, grid, 4, AIMS, trials, asked, admit) != propose(
        search, grid, 4, AIMS, turned, asked, admit
    )


def test_window_holds_the_front_and_the_newest() -> None:
    trials = [Trial(m, m // 10, "ok", (float(m), 1.0), (0.0,)) for m in range(500)]
    found = window(trials[::-1], ("min", "min"), 100)
    assert [t.machine for t in found] == [0, *range(401, 500)]
    broken = [replace(t, violations=(1.0,)) if t.machine == 0 else t for t in trials]
    assert window(broken, ("min", "min"), 100)[0].machine == 1
    assert window(trials, ("max", "min"), 100)[0].machine == 400
    assert window(trials[:50], ("min", "min"), 100) == trials[:50]


@pytest.mark.parametrize("method", METHODS)
def test_a_space_that_is_all_pruned_ends(method: str) -> None:
    search, grid, asked = Search(method=method, generation=4), Grid((9, 9), (True, True)), []
    for g in range(100):
        found = propose(search, grid, g, AIMS, [], set(asked), lambda _: (1.0, 0.0))
        if found is None:
            break
        assert not found.asks
        asked += [m for m, _ in found.pruned]
    assert sorted(asked) == list(range(81))


def test_steered_searches_beat_random() -> None:
    """Median hypervolume over 3 seeds, in full 5, at 160 of 20,736 machines of a smooth space with infeasible
    and pruned ones.
    """
    grid = Grid((12, 12, 12, 12), (True,) * 4)
    aims = (Objective("energy_pj"), Objective("throughput", direction="max"))

    def volume(method: str, seed: int) -> float:
        search = Search(method=method, seed=seed, generation=0 if method != "random" else 16)
        proposals = run(search, grid, 160 // search.generation_size(0))
        trials = [t for g, p in enumerate(proposals) for t in solved(grid, p, g)]
        return hypervolume(minimised(trials, aims), np.array([3.0, 0.0]))

    seeds = range(5 if FULL else 3)
    medians = {
        method: float(np.median([volume(method, seed) for seed in seeds]))
        for method in ("random", "nsga2", "nsga3", "tpe")
    }
    assert all(volume > medians["random"] for method, volume in medians.items() if method != "random"), (
        medians
    )


def test_every_sampler_argument_is_written_with_the_asks() -> None:
    assert sampler.arguments(Search(method="tpe"))["multivariate"] is True
    assert sampler.arguments(Search(method="nsga2"))["mutation_prob"] is None
    assert sampler.arguments(Search()) == {"method": "exhaustive", "seed": 0, "generation": 256}


def test_a_long_qmc_search_makes_its_sequence_a_few_times() -> None:
    """Not once a generation, which took a time that grew with the square of the machines."""
    sampler._sobol_machines.cache_clear()
    search, grid, asked = Search(method="qmc", generation=64), Grid((64,) * 8, (True,) * 8), set[int]()
    for g in range(100):
        found = propose(search, grid, g, AIMS, [], asked, admit, len(asked))
        assert found
        asked |= {machine for machine, _ in (*found.asks, *found.pruned)}
    assert len(asked) >= 6400
    assert sampler._sobol_machines.cache_info().misses <= 10
