"""The enumeration against a naive one, and every mapper against the enumeration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import chain, combinations, pairwise, permutations, product
from math import isclose
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dse.mapper.baselines.annealing import annealing
from dse.mapper.baselines.exhaustive import enumerated, mapspace_size
from dse.mapper.baselines.random import draw, mapping_of, random
from dse.mapping.constraints import Constraints, violations
from dse.mapping.nest import Infeasible, Loop, Mapping, Store, faults
from dse.sim.einsum.evaluate import EinsumCost, Problem, einsum_cost, objective_value
from dse.solve.solve import MAPPERS_BY_NAME
from hw.arch import Arch
from tests.amount import amount
from tests.nests import random_arch
from tests.small import small_problem
from workloads.einsum import Einsum, einsum

OBJECTIVES = ["energy", "latency", "edp"]
TINY = [
    ("C[m] += A[m,k] * B[k]", {"m": 3, "k": 2}),
    ("O[p] += I[2*p+r] * F[r]", {"p": 3, "r": 2}),
    ("O[p] += I[p+r-1] * F[r]", {"p": 2, "r": 2}),
    ("Y[a,b] = A[a,b] + B[b]", {"a": 3, "b": 2}),
]
LESS = {"random": partial(random, mappings=30), "annealing": partial(annealing, iterations=4, candidates=6)}


def tiny_problem(rng: Random, objective: str) -> Problem:
    """Two levels, at most one fan-out of one dimension, two ranks."""
    text, extents = rng.choice(TINY)
    arch = random_arch(rng, capacity_bits=8 * rng.choice([3, 4, 6, 9]))
    levels = (
        arch.levels[0],
        replace(arch.levels[1], bypass=rng.random() < 0.5, double_buffer=rng.random() < 0.3),
    )
    fanouts = tuple(
        replace(
            f,
            outside=rng.choice([1, 2]),
            dims=f.dims[:1],
            multicast=f.multicast[:1],
            reduce=f.reduce[:1],
            systolic="",
        )
        for f in arch.fanouts[:1]
    )
    return Problem(replace(arch, levels=levels, fanouts=fanouts), einsum(text, extents), objective)


def naive(e: Einsum, arch: Arch) -> Iterator[Mapping]:
    """Every mapping of dividing temporal tiles and ragged lanes, every order of loops, written down from the
    definition.
    """
    names = [p.tensor for p in e.tensors()]
    inner = (
        [names]
        if not arch.levels[1].bypass
        else [own for n in range(len(names) + 1) for own in combinations(names, n)]
    )
    for own in inner:
        for order in permutations(own):
            stores: list[Store | str] = [
                *(Store("L0", name) for name in names),
                *(Store("L1", name) for name in order),
            ]
            for f in arch.fanouts:
                stores.insert(len(names) if f.outside == 1 else len(stores), f.dims[0][0])
            yield from grown(e, arch, stores, (), e.sizes(), len(names))


def grown(
    e: Einsum,
    arch: Arch,
    rest: list[Store | str],
    nodes: tuple[Loop | Store, ...],
    tile: dict[str, int],
    outermost: int,
) -> Iterator[Mapping]:
    if not rest:
        if all(n == 1 for n in tile.values()):
            yield Mapping(nodes)
        return
    item, *rest = rest
    if isinstance(item, Store):
        starts = [((*nodes, item), tile)]
    else:
        size = dict(pair for f in arch.fanouts for pair in f.dims)[item]
        ranks = [rank for rank in tile if rank not in e.output.partial_ranks()]
        starts = [
            (
                (
                    *nodes,
                    *(Loop(r, -(-tile[r] // n), item) for r, n in zip(ranks, ways, strict=True) if n > 1),
                ),
                {**tile, **{r: -(-tile[r] // n) for r, n in zip(ranks, ways, strict=True)}},
            )
            for ways in product(range(1, size + 1), repeat=len(ranks))
        ]
    for above, left in starts:
        if isinstance(item, Store) and outermost > 1:  # unbounded: nothing is filled there
            yield from grown(e, arch, rest, above, left, outermost - 1)
            continue
        for own in chain.from_iterable(
            combinations([r for r in left if left[r] > 1], n) for n in range(len(left) + 1)
        ):
            for sizes in product(*([d for d in range(1, left[r]) if left[r] % d == 0] for r in own)):
                for order in permutations(zip(own, sizes, strict=True)):
                    yield from grown(
                        e, arch, rest, (*above, *(Loop(r, n) for r, n in order)), {**left, **dict(order)}, 0
                    )


def value(problem: Problem, one: EinsumCost) -> float:
    return objective_value(problem.objective, one.energy_pj, one.latency_cycles)


@settings(max_examples=amount(12, 8), deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(OBJECTIVES))
def test_equals_the_naive_enumeration(seed: int, objective: str) -> None:
    problem = tiny_problem(Random(seed), objective)
    e, arch = problem.einsum, problem.arch
    mappings = set(naive(e, arch))
    assert all(faults(mapping, e, arch) == [] for mapping in mappings)
    costs = [
        value(problem, one)
        for mapping in mappings
        if isinstance(one := einsum_cost(problem, mapping), EinsumCost)
    ]
    found = enumerated(problem)
    if isinstance(found, Infeasible):
        assert not costs
    else:
        assert isclose(value(problem, found[0]), min(costs), rel_tol=1e-9)


@settings(max_examples=amount(30, 8), deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(OBJECTIVES))
def test_no_mapper_is_below_it(seed: int, objective: str) -> None:
    problem = small_problem(Random(seed), objective, 5_000)
    lowest = enumerated(problem)
    # cost_descending also cuts temporal tiles that do not divide
    for name in sorted(set(MAPPERS_BY_NAME) - {"exhaustive", "cost_descending"}):
        found = LESS.get(name, MAPPERS_BY_NAME[name])(problem, Random(seed))
        if isinstance(lowest, Infeasible):
            # levels of different tensors in any order may fit, and cost less
            assert isinstance(found, Infeasible) or name == "optimal"
        else:
            assert isinstance(found, list)
            ours, least = value(problem, found[0]), value(problem, lowest[0])
            assert ours <= least * (1 + 1e-9) if name == "optimal" else ours >= least * (1 - 1e-9)


@settings(max_examples=amount(15, 8), deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(OBJECTIVES))
def test_more_tiles_cost_no_more(seed: int, objective: str) -> None:
    problem = small_problem(Random(seed), objective, 5_000, factors="imperfect")
    found = [enumerated(problem, tiles) for tiles in ("perfect", "imperfect_spatial", "imperfect")]
    costs = [value(problem, one[0]) for one in found if not isinstance(one, Infeasible)]
    assert len(costs) in (0, 3)
    assert all(a >= b * (1 - 1e-9) for a, b in pairwise(costs))


def test_keeps_constraints() -> None:
    problem = tiny_problem(Random(5), "energy")
    fixed = Constraints(must_keep=(("L1", problem.einsum.inputs[0].tensor),))
    arch = replace(
        problem.arch,
        levels=(problem.arch.levels[0], replace(problem.arch.levels[1], bypass=True, capacity_bits=1024)),
    )
    free, found = (
        enumerated(replace(problem, arch=arch)),
        enumerated(replace(problem, arch=arch), constraints=fixed),
    )
    assert isinstance(free, list)
    assert isinstance(found, list)
    assert violations(fixed, found[0].mapping) == []
    assert found[0].energy_pj >= free[0].energy_pj
    nothing = Constraints(must_keep=(("L9", "A"),))
    assert (
        str(enumerated(replace(problem, arch=arch), constraints=nothing))
        == f"{problem.einsum.name}: constraints needs 1 mappings, has 0"
    )


def test_refuses_large_problems_in_one_line() -> None:
    problem = tiny_problem(Random(1), "energy")
    with pytest.raises(
        ValueError, match="exhaustive takes at most 10; take mapper: optimal, or smaller extents"
    ) as fault:
        enumerated(problem, limit=10)
    assert "\n" not in str(fault.value)
    assert f"{mapspace_size(problem.einsum, problem.arch, 'imperfect_spatial'):,} mappings" in str(
        fault.value
    )


@settings(max_examples=amount(100), deadline=None)
@given(st.integers(0, 2**32))
def test_draws_are_well_formed_mappings_of_the_space(seed: int) -> None:
    rng = Random(seed)
    problem = small_problem(rng, "energy", 10**9)
    e, arch = problem.einsum, problem.arch
    mapping = mapping_of(e, arch, draw(e, arch, rng))
    assert faults(mapping, e, arch) == []
    tile = e.sizes()
    for node in mapping.nodes:
        if isinstance(node, Loop):
            lanes = dict(pair for f in arch.fanouts for pair in f.dims).get(node.over, 0)
            assert (
                tile[node.rank] % node.tile == 0
                if not lanes
                else node.tile in {-(-tile[node.rank] // n) for n in range(1, lanes + 1)}
            )
            tile[node.rank] = node.tile
