"""Machines that differ in prices and rates alone, searched together: of each the answer that it gets alone,
mapping for mapping.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf
from random import Random

import numpy as np
import pytest

from dse.frontend import api
from dse.mapper.exact import optimal as mapper
from dse.mapper.exact import search
from dse.mapper.exact.optimal import optimal, optimal_on
from dse.mapping.constraints import Factors, dataflow
from dse.mapping.nest import Infeasible
from dse.sim.einsum.evaluate import EinsumCost, Problem
from hw import machine, space
from hw.arch import COST_ROLES, ROLES, Arch, Compute, Fanout, Level, slots
from tests.amount import amount
from tests.problems import GROUPS, OBJECTIVES, random_problem
from tests.prove import together
from workloads import catalog
from workloads.einsum import einsum

FACTORS = (0.05, 0.3, 1.0, 1.0, 3.0, 20.0)


def priced_anew(arch: Arch, rng: Random) -> Arch:
    """Other prices, rates and clock, each by itself; what is for nothing or takes no time stays so."""
    at = slots(arch, *COST_ROLES)
    return arch.with_values(at, [value and value * rng.choice(FACTORS) for value in arch.values(at)])


def told(found: EinsumCost | Infeasible) -> tuple[object, ...]:
    if isinstance(found, Infeasible):
        return (str(found),)
    return (
        str(found.mapping),
        found.energy_pj,
        found.latency_cycles,
        found.bottleneck,
        found.optimality_gap,
        found.space,
        found.price.initiation_interval_cycles,
    )


def alone(problem: Problem, factors: Factors, near: float = 0.0) -> EinsumCost | Infeasible:
    found = optimal(problem, factors, allowed_gap=near)
    return found if isinstance(found, Infeasible) else found[0]


def machines(seed: int) -> tuple[list[Problem], Factors, float]:
    """Two kinds of machines, several of each in other prices, in turn."""
    rng = Random(seed)
    group, tiles = rng.choice(GROUPS), rng.choice(["perfect", "imperfect_spatial", "imperfect_spatial"])
    first = random_problem(rng, group, tiles, 3000)
    arch = replace(first.arch, overlap=rng.choice(["free", "buffered"]))
    levels = [
        level if level.capacity_bits is None else replace(level, capacity_bits=level.capacity_bits * 2)
        for level in arch.levels
    ]
    kinds = (arch, replace(arch, levels=tuple(levels)))
    return (
        [replace(first, arch=priced_anew(kinds[i % 3 == 2], rng)) for i in range(rng.choice([2, 5, 11]))],
        tiles,
        rng.choice([0.0, 0.01, 0.05]),
    )


@pytest.mark.parametrize("seed", range(amount(60)))
def test_each_machine_gets_the_answer_that_it_gets_alone(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With gaps too, which leave imperfect factors out on some machines of a batch."""
    monkeypatch.setattr(mapper, "MAX_UNROLLINGS", 0)
    problems, tiles, near = machines(seed)
    found = optimal_on(problems, tiles, allowed_gap=near)
    assert [told(one) for one in found] == [told(alone(problem, tiles, near)) for problem in problems]


def test_machines_of_one_kind_are_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no two kinds at once: sizes, words and what is for nothing tell them apart."""
    (problems, tiles, _), asked = machines(3), list[int]()
    whole = mapper.search_on
    monkeypatch.setattr(
        mapper,
        "search_on",
        lambda several, *rest, **more: asked.append(len(several)) or whole(several, *rest, **more),
    )
    optimal_on(problems, tiles)
    arch, e = problems[0].arch, problems[0].einsum
    assert asked
    assert max(asked) < len(problems)
    assert sum(asked) <= len(problems)
    wider = replace(arch, word_bits=16)
    cheap = replace(arch, levels=(replace(arch.levels[0], read_pj=0.0), *arch.levels[1:]))
    larger = replace(arch, levels=(*arch.levels[:-1], replace(arch.levels[-1], capacity_bits=1 << 20)))
    assert (
        len(
            {
                search.same_structure(Problem(one, e, "energy"))
                for one in (arch, priced_anew(arch, Random(1)), wider, cheap, larger)
            }
        )
        == 4
    )


def test_what_needs_more_than_its_share_is_solved_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    problems, tiles, near = machines(3)
    expected = [told(alone(problem, tiles, near)) for problem in problems]
    monkeypatch.setattr(mapper, "SHARED_BUDGET", 0)
    assert [told(one) for one in optimal_on(problems, tiles, allowed_gap=near)] == expected


@pytest.mark.parametrize("name", ["weight_stationary", "output_stationary"])
def test_under_the_rules_of_a_dataflow(name: str) -> None:
    rng = Random(7)
    first = random_problem(rng, "array", "imperfect_spatial", 3000)
    problems = [replace(first, arch=priced_anew(first.arch, rng)) for _ in range(6)]
    rules = dataflow(name, first.einsum, first.arch)  # type: ignore[arg-type]
    found = [optimal(problem, "imperfect_spatial", rules) for problem in problems]
    assert [told(one) for one in optimal_on(problems, "imperfect_spatial", rules)] == [
        told(one if isinstance(one, Infeasible) else one[0]) for one in found
    ]


def test_figures_of_a_search_are_those_of_each_machine() -> None:
    """Floors too, which no mapping is below."""
    problems, tiles, _ = machines(11)
    problems = [
        problem
        for problem in problems
        if search.same_structure(problem) == search.same_structure(problems[0])
    ]
    several, each = search.search_on(problems, tiles), [search.search(problem, tiles) for problem in problems]
    assert [one.mapping for one in several] == [one.mapping for one in each]
    assert np.allclose([one.lower_bound for one in several], [one.lower_bound for one in each], rtol=1e-12)


def twins(rng: Random) -> list[Problem]:
    """Square products on machines where both inputs cost the same, and on others where one of them costs
    more: there what may change places is no equal.
    """
    n, words, both, pj = (
        rng.choice([4, 6, 8]),
        rng.choice([3, 4, 6, 8]),
        rng.choice([6, 9, 12]),
        rng.choice([0.5, 1.0, 3.0]),
    )
    e = einsum("C[m,n] += A[m,k] * B[k,n]", {"m": n, "n": n, "k": rng.choice([2, 3, 4])})
    own = [
        Level(f"{role}s", 8 * words, 8, pj, pj, inf, bypass=rng.random() < 0.7, may_keep=(role,))
        for role in ROLES[:2]
    ]
    shared = Level("L1", 8 * both, 8, 2.0, 2.0, inf, may_keep=rng.choice([ROLES, ROLES[:2]]))
    dims = rng.choice([(("X", 2),), (("X", 4),), (("X", 3), ("Y", 2))])
    lanes = Fanout("array", rng.choice([1, 2, 4]), dims, (True,) * len(dims), (True,) * len(dims))
    outer = Level("DRAM", None, 8, 50.0, 50.0, rng.choice([inf, 1.0]), bypass=False)
    alike, objective = (
        Arch("twins", (outer, shared, *own), (lanes,), Compute(1.0, 1.0), 1.0, 8, overlap="free"),
        rng.choice(OBJECTIVES),
    )
    return [
        Problem(rng.choice([alike, priced_anew(alike, rng), priced_anew(alike, rng)]), e, objective)
        for _ in range(12)
    ]


@pytest.mark.parametrize("seed", range(amount(40)))
def test_of_equals_the_first_is_the_answer_whatever_is_looked_at_first(seed: int) -> None:
    """Other machines lead to other lanes and levels first; a cost that is known before leaves fewer to be
    looked at.
    """
    problems = twins(Random(seed))
    for tiles in ("perfect", "imperfect_spatial"):
        found = search.search_on(problems, tiles)
        each = [search.search(problem, tiles) for problem in problems]
        assert [one.mapping for one in found] == [one.mapping for one in each]
        for problem, one in zip(problems, each, strict=True):
            assert (
                one.mapping
                == search.search(problem, tiles, cutoff=(one.lower_bound * (1 + 1e-6), inf, inf)).mapping
            )


@pytest.mark.parametrize(("draw", "place"), [(297, 13), (630, 10)])
def test_choices_that_are_equal_but_for_rounding_are_not_forgotten(draw: int, place: int) -> None:
    """Latencies of 648 cycles and of 1e-13 less: the order of choices is exact, the cost of the fifth is no
    bound of the sixth.
    """
    whole = space.parse(machine.load("edge_array"), together.RATES | together.SIZES)
    problem = Problem(together.drawn(Random(draw), whole)[place], together.einsum_of("product"), "latency")
    assert search.search(problem, "perfect").mapping == search.search_on([problem] * 2, "perfect")[0].mapping


def test_a_gap_does_not_depend_on_which_machines_are_searched_together() -> None:
    """To the last digit: of nests that cost the same but for rounding, the search alone met another one
    first.
    """
    (e,) = catalog.load("gemm:m=64,n=32,k=48").einsums
    sizes = {"array.x": 16, "array.y": 12, "gbuf.capacity": "16 KiB", "regf.capacity": "256 B"}
    problems = [
        Problem(
            api.map(
                "gemm:m=64,n=32,k=48", "edge_array", **sizes, **{"dram.kind": kind, "clock_mhz": mhz}
            ).arch,
            e,
            "energy",
        )
        for kind in ("lpddr4", "lpddr5", "gddr6")
        for mhz in (250, 500)
    ]

    def gaps(numbers: list[int]) -> list[float]:
        found = optimal_on([problems[i] for i in numbers], "imperfect_spatial", allowed_gap=0.01)
        return [one.optimality_gap for one in found if isinstance(one, EinsumCost)]

    whole = gaps([*range(6)])
    assert len({*whole}) > 1
    assert gaps([*range(5)]) + gaps([5]) == whole
    assert [one for i in range(6) for one in gaps([i])] == whole
