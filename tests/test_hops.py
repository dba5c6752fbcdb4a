"""Least hops in the search: never above the links of any arrangement, and gaps that hold on networks."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from random import Random

import numpy as np
import pytest

from dse.mapper.exact import hops, search
from dse.mapper.exact.kernels import state
from dse.mapper.exact.optimal import optimal
from dse.mapper.exact.spatial import FanoutBoundary
from dse.mapping.nest import Loop, Mapping, Store
from dse.mapping.schedule import sequential
from dse.mapping.searched import Space, covers
from dse.sim.counts.counts import deliveries, nest_sums
from dse.sim.einsum.evaluate import EinsumCost, Problem, einsum_cost
from dse.sim.levels import network
from dse.solve.options import SolverOptions
from dse.solve.solve import solve_unfused
from hw.arch import Fanout
from hw.machine import load_arch
from tests.prove.mappers import networked
from tests.test_network import random_mesh
from workloads.catalog import load
from workloads.einsum import Einsum, einsum
from workloads.graph import Workload

SEEDS = (1, 2, 5)


def arranged(rng: Random, grid: hops.Grid) -> tuple[list[network.Cut], list[bool]]:
    """Random loops over the PEs of a network, and along which of them PEs want different words."""
    loops, used = list[network.Cut](), [1, 1]
    for _ in range(rng.randint(0, 6)):
        dim, trips = rng.randint(0, 1), rng.choice([1, 2, 2, 3, 4, 5])
        if used[dim] * trips <= grid.size[dim]:
            used[dim] *= trips
            loops = [replace(c, stride=c.stride * trips) if c.dim == dim else c for c in loops]
            loops.append(network.Cut("r", dim, 1, trips, 1, trips))
    return loops, [rng.random() < 0.5 for _ in loops]


@pytest.mark.parametrize("kind", ["next_level", "same_level"])
@pytest.mark.parametrize("rim", ["corners", "edge"])
def test_no_arrangement_has_fewer_links(kind: str, rim: str) -> None:
    rng = Random(f"{kind} {rim}")
    for _ in range(200):
        size = rng.randint(1, 9), rng.randint(1, 9)
        grid = hops.Grid(size, (), rim, kind)
        loops, own = arranged(rng, grid)
        groups, sources = network.groups(loops, own, (0, 0)), network.injected_at(rim, size)
        near = [min(network.TREES[kind](at, one.rows, one.columns) for at in sources) for one in groups]
        n = prod(c.trips for c, mine in zip(loops, own, strict=True) if not mine)
        begin, links = hops.least_links(grid, True, state.EVEN)
        even, uneven, some = links[:, begin[n] + len(groups)]
        assert max(uneven, some) <= even + 1e-9
        assert even <= sum(near) / len(near) + 1e-9, (grid, loops, own)


def test_a_region_of_a_mesh_is_not_nearer_than_its_first_lane() -> None:
    whole = hops.Grid((2, 2), (), "corners", "same_level")
    far = whole._replace(region=((3, 8), (3, 8)))
    begin, links = hops.least_links(far, True, state.EVEN)
    assert links[state.EVEN, begin[1] + 1] == 6
    begin, links = hops.least_links(whole, True, state.EVEN)
    assert links[state.EVEN, begin[1] + 1] == 0


def unrolled(mapping: Mapping, e: Einsum, f: Fanout) -> dict[str, FanoutBoundary] | None:
    """The PEs of a network that each rank takes, as shares of one tile; None where a loop in time stands
    between, which the search has not.
    """
    found = dict[str, FanoutBoundary]()
    for c in network.cuts(mapping, e, f):
        one = found.get(c.rank, FanoutBoundary(1, c.extent, ()))
        if one.cuts and one.cuts[-1][1] != c.extent:
            return None
        found[c.rank] = FanoutBoundary(
            -(-one.shared_tile // c.tile), one.shared_tile, (*one.cuts, (c.dim, c.tile))
        )
    return found


def test_unequal_shares_have_no_fewer_hops() -> None:
    some = nearer = 0
    for seed in range(120):
        arch, e, mapping = random_mesh(Random(seed), ragged=True)
        f, at = arch.fanouts[0], nest_sums(mapping, e, arch)
        try:
            true = {one.tensor: one.bits for one in network.network_traffic(mapping, at, arch)}
        except network.Uncounted:
            continue
        ways = unrolled(mapping, e, f)
        begin, links = hops.least_links(hops._grid(f), True, state.UNEVEN)
        if ways is None:
            continue
        for one in deliveries(at, arch, f):
            flags = f.reduce if one.tensor is e.output else f.multicast
            shared = frozenset(dim for dim, flag in enumerate(flags) if flag)
            rows = [
                hops._least_word_groups(way, shared, rank not in one.unshared) for rank, way in ways.items()
            ]
            n, g = (int(prod(row[i] for row in rows) + 1e-9) for i in (0, 1))
            pes, spanned = prod(hops._grid(f).size), prod(c.trips for c in network.cuts(mapping, e, f))
            inside = n - 1 + hops.near(hops._grid(f))[spanned * (pes + 1) + g]
            for least in (links[state.UNEVEN, begin[n] + g], inside):
                assert one.at_source * 8 * least <= true[one.tensor.tensor] * (1 + 1e-9), seed
            some += true[one.tensor.tensor] > 0
            nearer += inside > links[state.UNEVEN, begin[n] + g]
    assert some > 90
    assert nearer > 20


@pytest.mark.parametrize("seed", SEEDS)
def test_gaps_hold_where_links_and_endpoints_have_a_price(seed: int) -> None:
    assert [line for one in networked(seed, 60) for line in one.wrong] == []


def test_endpoints_are_counted_to_the_last() -> None:
    arch = load_arch("kapla_multi_4x4")
    arch = replace(arch, fanouts=(replace(arch.fanouts[0], hop_pj=0.0), arch.fanouts[1]))
    found = optimal(Problem(arch, load("gemm:m=64,n=64,k=64").einsums[0], "energy"), "perfect")
    assert isinstance(found, list)
    assert found[0].proven
    assert any(part.action == "endpoint" for part in found[0].price.parts)


def test_hops_are_part_of_the_price_that_the_search_sees() -> None:
    """Before, this gap was that to the bound of any mapping, and the mapping that of free hops."""
    arch, e = load_arch("kapla_multi_4x4"), load("gemm:m=512,n=512,k=512").einsums[0]
    found = optimal(Problem(arch, e, "energy"), "perfect")
    assert isinstance(found, list)
    assert found[0].space
    assert found[0].optimality_gap < 0.01
    blind = optimal(Problem(arch.ideal(), e, "energy"), "perfect")
    assert isinstance(blind, list)
    before = einsum_cost(Problem(arch, e, "energy"), blind[0].mapping)
    assert isinstance(before, EinsumCost)
    assert before.energy_pj > found[0].energy_pj * 1.05


def test_windows_stay_off_networks_whose_links_have_a_price() -> None:
    """The mapper has no bound of their hops: such nests are not searched, and certificates say so."""
    e = einsum("C[p,k] += A[p+r,c] * B[r,c,k]", {"p": 16, "r": 3, "c": 2, "k": 2})
    found = optimal(Problem(load_arch("kapla_multi_4x4"), e, "energy"), "perfect", allowed_gap=0.01)
    assert isinstance(found, list)
    assert "parfor p" not in str(found[0].mapping).split("store GBUF")[0]
    cut = Mapping((*(Store("DRAM", t) for t in "ABC"), Loop("p", 4, "NY")))
    workload, arch = Workload("one", (e,)), load_arch("kapla_multi_4x4")
    assert found[0].space
    space = Space((found[0].space,), alone=True)
    assert covers(space, sequential(workload, {e.name: found[0].mapping}), workload, arch) is None
    assert covers(space, sequential(workload, {e.name: cut}), workload, arch) == "windows over networks"


def test_no_optimum_is_left_out_because_of_the_rectangle_of_its_pes(monkeypatch: pytest.MonkeyPatch) -> None:
    arch = load_arch("kapla_multi_4x4")
    problems = [
        Problem(arch, einsum("C[m,n] += A[m,k] * B[k,n]", {"m": m, "n": n, "k": k}), "energy")
        for m, n, k in ((13, 7, 5), (11, 13, 3), (7, 19, 2), (17, 3, 5))
    ]
    close = [search.search(problem, "imperfect_spatial") for problem in problems]
    monkeypatch.setattr(hops, "near", lambda grid: np.zeros((prod(grid.size) + 1) ** 2))
    search._hops.cache_clear()
    far = [search.search(problem, "imperfect_spatial") for problem in problems]
    search._hops.cache_clear()
    assert not any(one.ended for one in far)
    assert [one.mapping for one in close] == [one.mapping for one in far]


def test_ranks_are_split_over_rows_and_columns_as_costs_least() -> None:
    """Four nodes in a square are nearer to a corner than four in a row, which the mapper took before."""
    arch = load_arch("kapla_multi")
    e = einsum("C[b,n] += A[b,n]", {"b": 64, "n": 96})
    found = optimal(Problem(arch, e, "energy"), "perfect")
    assert isinstance(found, list)
    assert found[0].proven
    priced = [
        one.energy_pj
        for mapping in hops.arrangements(found[0].mapping, e, arch)
        if isinstance(one := einsum_cost(Problem(arch, e, "energy"), mapping), EinsumCost)
    ]
    assert len(priced) > 2
    assert min(priced) >= found[0].energy_pj * (1 - 1e-12)


def test_the_certificate_says_what_was_searched() -> None:
    arch, workload = load_arch("kapla_multi_4x4"), load("gemm:m=64,n=64,k=64")
    exact = solve_unfused(arch, workload, SolverOptions(factors="perfect"))
    other = solve_unfused(arch, workload, SolverOptions(mapper="cost_descending"))
    assert isinstance(exact, list)
    assert isinstance(other, list)
    assert "hops not searched" not in exact[0].certificate
    assert "hops not searched" in other[0].certificate
    assert exact[0].energy_pj <= other[0].energy_pj
