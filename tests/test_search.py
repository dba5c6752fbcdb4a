"""The search that fixes the lanes first: equal to an enumeration that shares only the evaluator with it, on
problems at which each of its rules fires.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from math import inf, isclose
from random import Random
from typing import Any

import numpy as np
import pytest

from dse.mapper.exact import optimal as optimal_mapper
from dse.mapper.exact import search as searches
from dse.mapper.exact import spatial
from dse.mapper.exact.optimal import optimal
from dse.mapper.exact.search import search, supports, unrolling_count
from dse.mapper.exact.spatial import dims_and_groups, unrollings
from dse.mapping.constraints import FREE, Factors
from dse.mapping.nest import Infeasible, Mapping
from dse.run import deadline
from dse.sim.counts.terms import tile_sizes
from dse.sim.einsum.evaluate import Problem
from hw import machine
from hw.arch import Arch, Compute, Fanout, Level
from tests.amount import amount
from tests.nests import free_edge
from tests.prove.mappers import buffered_of, crowded, crowded_of, priced_all
from workloads import catalog


def test_large_convolutions_are_proven_and_cost_what_other_searches_proved() -> None:
    """ResNet-18's first convolution."""
    edge = free_edge()
    (first, *_) = catalog.load("resnet18").einsums
    found = optimal(Problem(edge, first, "energy"), "perfect")
    assert not isinstance(found, Infeasible)
    assert found[0].proven
    assert isclose(found[0].energy_pj, 208564072.726, rel_tol=1e-9)
    ragged = optimal(Problem(edge, catalog.load("gemm:m=127,n=31,k=47").einsums[0], "energy"))
    # one of 256 lanes where all loops divide: 41 times as much
    assert not isinstance(ragged, Infeasible)
    assert ragged[0].energy_pj < 3.5e6


def test_a_spent_budget_says_how_far_the_answer_may_be() -> None:
    gemm = Problem(
        machine.arch(machine.load("edge_array")), catalog.load("gemm:m=64,n=32,k=48").einsums[0], "energy"
    )
    (best,), stopped = optimal(gemm), search(gemm, "perfect", budget=3)  # type: ignore[misc]
    assert stopped.visited > 3
    assert 0 < stopped.lower_bound <= best.energy_pj
    assert supports(gemm.einsum, "imperfect_spatial")
    assert not supports(gemm.einsum, "imperfect")


def test_what_is_within_the_gap_is_not_improved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a search that ended. The local search takes minutes on arrays of arrays."""
    gemm = Problem(
        machine.arch(machine.load("edge_array")), catalog.load("gemm:m=64,n=32,k=48").einsums[0], "energy"
    )
    improved, improve = list[Mapping](), optimal_mapper.improve
    monkeypatch.setattr(
        optimal_mapper, "improve", lambda *given: (improved.append(given[1]), improve(*given))[1]
    )
    (near,) = optimal(gemm, budget=3, allowed_gap=100.0)  # type: ignore[misc]
    assert 0 < near.optimality_gap <= 100.0
    assert not improved
    assert optimal(gemm, budget=3, allowed_gap=1e-3)
    assert improved == [near.mapping]


@pytest.mark.parametrize(
    ("name", "seed"), [*(("edge_array", seed) for seed in (5, 6, 8, 9, 31)), ("nvdla", 1), ("nvdla", 2)]
)
def test_what_outer_levels_have_room_for_leaves_nothing_out(name: str, seed: int) -> None:
    assert [line for row in crowded(seed, 24, 1_500, name) for line in row.wrong] == []


def test_boxes_know_what_outer_levels_have_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without their bounds it takes 3,837 nodes."""
    monkeypatch.setattr(searches, "MIN_FOR_OUTER_BOUNDS", 0)
    found = search(crowded_of(57, 30), "imperfect_spatial", budget=1_000)
    assert not found.ended
    assert isclose(found.lower_bound, 195643.74103900464)


def test_a_window_that_is_cut_may_need_more_room_twice() -> None:
    """Of 2 rows of windows of 5 a level on chip has room for 6 values, once; cut, for 5, not twice."""
    arch = machine.load_arch("nvdla")
    sizes, capacities = (3, 2), (None, 128, 512, 32)
    own = tuple(replace(f, dims=(("K", sizes[0]), ("C", sizes[1]))) for f in arch.fanouts)
    levels = tuple(replace(v, capacity_bits=n) for v, n in zip(arch.levels, capacities, strict=True))
    (e,) = catalog.load("conv:k=4,c=4,p=2,q=1,r=5,s=1").einsums
    problem = Problem(replace(arch, fanouts=own, levels=levels), e, "energy")
    with_bounds, without = (search_from(problem, least) for least in (0, 1 << 62))
    assert not without.ended
    assert (with_bounds.mapping, with_bounds.lower_bound) == (without.mapping, without.lower_bound)


def test_uneven_shares_hold_less_at_a_time_than_tiles_that_divide() -> None:
    """7 rows over 2 PEs, 4 and 3, in two steps of 2 sums: vector elements come twice (2 x 5), while on one PE
    with room for 4 sums tiles that divide 7 would let them come seven times.
    """
    dram = Level("DRAM", None, 8, 100.0, 100.0, bypass=False)
    sums, elements = (
        Level(name, 8 * words, 8, 1.0, 1.0, may_keep=roles)
        for name, words, roles in (("sums", 2, ("output",)), ("elements", 1, ("input", "weight")))
    )
    pes = Fanout("array", 1, (("x", 2),), (True,), (False,))
    arch = Arch("uneven", (dram, sums, elements), (pes,), Compute(0.01, 0.01), 1.0, 8, overlap="free")
    problem = Problem(arch, catalog.load("gemm:m=7,n=1,k=5").einsums[0], "energy")
    found = search_from(problem, 0, "imperfect_spatial")
    assert isclose(found.lower_bound, priced_all(problem, "imperfect_spatial").cost[0])


def search_from(problem: Problem, least: int, factors: Factors = "perfect") -> searches.SearchResult:
    """With bounds of outer levels from so many nodes and boxes on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(searches, "MIN_FOR_OUTER_BOUNDS", least)
        return search(problem, factors, budget=20_000)


def test_what_a_short_search_found_stands_where_the_long_one_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    search_once, cut = searches.batch_search.search, list[bool]()

    def and_stop(*given: Any) -> Any:
        found = search_once(*given)
        cut.append(bool(deadline.STOP[0]))
        deadline.STOP[0] = 1
        return found

    monkeypatch.setattr(searches, "OUTER_BUDGET", 10)
    monkeypatch.setattr(searches.batch_search, "search", and_stop)
    try:
        found = search(crowded_of(57, 30), "perfect", budget=10_000)
    finally:
        deadline.STOP[0] = 0
    assert cut == [False, True]
    assert found.mapping


def test_pieces_of_ragged_lanes_are_those_of_the_counts() -> None:
    """10 over 2 x 2 lanes: 3, 2, 3, 2, whatever tile a loop cuts them into."""
    edge = machine.arch(machine.load("edge_array"))
    lanes, groups = dims_and_groups(edge.fanouts)
    own = unrollings(10, lanes, len(lanes), 1, len(groups), "imperfect_spatial")
    for o, (border,) in enumerate(own.boundaries):
        for tile in range(*own.span[o, 1]):
            cuts = (
                (
                    (border.shared_tile, False),
                    *((t, False) for _, t in border.cuts),
                    (int(own.size[tile]), False),
                )
                if border.shared_tile
                else ((int(own.size[tile]), False),)
            )
            sizes = tile_sizes(10, cuts)
            assert own.pieces[tile, 0] == sum(n for _, n in sizes)
            assert own.elems[tile, 0] == sum(size * n for size, n in sizes) == 10
    assert any(border.cuts == ((0, 5), (0, 3)) for (border,) in own.boundaries)


@pytest.mark.parametrize("name", ["edge_array", "datacenter", "cpu_like", "kapla_multi_4x4"])
def test_tables_of_an_einsum_are_those_of_one_of_two_indices(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but the operations: extents change no price of a word."""
    arch, seen = machine.load_arch(name).unbounded(), set[bool]()
    for e in (
        *catalog.load("attention:heads=2,q=6,context=8,d=4").einsums,
        *catalog.load("light_squeezenet").einsums[:3],
    ):
        own = []
        for smaller in (searches._with_fewest_indices, lambda e: e):
            with monkeypatch.context() as patch:
                patch.setattr(searches, "_with_fewest_indices", smaller)
                given = [Problem(arch, e, "energy")], FREE, "ends", searches.NO_SPREADS, inf
                own.append(searches._read_machines(*given).terms)
        seen.add(searches._with_fewest_indices(e) != e)
        for a, b in zip(arrays(own[0]), arrays(own[1]), strict=True):
            assert np.array_equal(a, b)
    assert seen == {True, False}


def test_searches_that_count_the_same_cycles_have_one_answer() -> None:
    alike = set()
    for seed in range(amount(100, 5)):
        problem = buffered_of(seed)
        own = searches.counts_alike(problem.arch, "least", "ends")
        alike.add(own)
        assert not searches.counts_alike(problem.arch, "least", "sequential")
        if own and supports(problem.einsum, "imperfect_spatial"):
            least, ends = (search(problem, "imperfect_spatial", exposed=one) for one in ("least", "ends"))
            assert least == ends
    assert alike == {True, False}


def arrays(form: object) -> list[np.ndarray]:
    """All numbers of a form."""
    if isinstance(form, tuple):
        return [found for one in form for found in arrays(one)]
    if is_dataclass(form):
        return [found for one in fields(form) for found in arrays(getattr(form, one.name))]
    return [np.asarray(form)]


def test_ways_to_unroll_are_counted_as_they_are_listed() -> None:
    rng = Random(0)
    for _ in range(amount(400, 10)):
        numbers = range(rng.choice((1, 2, 3)))
        sizes = [tuple(rng.choice((1, 2, 3, 4, 6)) for _ in range(rng.choice((1, 2)))) for _ in numbers]
        fanouts = tuple(
            Fanout(
                f"f{b}",
                b + 1,
                tuple((f"d{b}{i}", n) for i, n in enumerate(own)),
                (rng.random() < 0.5,) * len(own),
                (rng.random() < 0.5,) * len(own),
            )
            for b, own in enumerate(sizes)
        )
        dims = tuple(dim for dim in dims_and_groups(fanouts)[0] if rng.random() < 0.8)
        factors: Factors = rng.choice(("perfect", "imperfect_spatial"))
        extent, least = rng.choice((7, 12, 24, 30, 64)), rng.choice((1, 1, 2, 4))
        listed = spatial._factorizations(extent, dims, len(sizes), 0, factors, True, least)
        assert spatial.way_count(extent, dims, len(sizes), factors, least) == len(list(listed))


def test_arrays_too_large_to_share_tables_have_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over 16 x 16 chiplets of 4 x 4 PEs, which stand for all of 5 x 5 to 16 x 16, 36 has more ways."""
    (e,) = catalog.load("gemm:m=36,n=2,k=4").einsums
    problem = Problem(machine.load_arch("simba"), e, "energy")
    shared = search(problem, "imperfect_spatial")
    many = unrolling_count(problem, "imperfect_spatial", FREE)
    monkeypatch.setattr(searches, "MAX_SHARED_WAYS", 100)
    searches._table_fanouts.cache_clear()
    assert unrolling_count(problem, "imperfect_spatial", FREE) < many
    own = search(problem, "imperfect_spatial")
    searches._table_fanouts.cache_clear()
    assert (own.mapping, own.lower_bound) == (shared.mapping, shared.lower_bound)


def test_tables_that_were_used_last_are_kept() -> None:
    asked = list[int]()

    @spatial.kept_up_to(10, int)
    def kept(n: int) -> int:
        asked.append(n)
        return n

    for n in (4, 5, 4, 3, 4, 5, 20, 4, 20):
        assert kept(n) == n
    assert asked == [4, 5, 3, 5, 20, 4, 20]
    vars(kept)["cache_clear"]()
    assert kept(20) == 20
    assert asked[7:] == [20]
