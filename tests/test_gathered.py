"""A dense operand that is read through the columns of a sparse one: counts against a walk over the places of
its nonzeros, and the exact search against every mapping.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Literal

import numpy as np
import pytest
import scipy.io
import scipy.sparse

from dse.mapper.baselines.exhaustive import enumerated, mapspace_size
from dse.mapper.exact.optimal import optimal
from dse.mapper.exact.search import Exposed, search
from dse.mapping.nest import Mapping, Store
from dse.sim.counts.counts import count
from dse.sim.counts.terms import gathered, gathers
from dse.sim.einsum import bounds
from dse.sim.einsum.boundary import Boundary
from dse.sim.einsum.evaluate import Infeasible, Problem, einsum_cost, objective_value
from hw import machine
from hw.arch import Arch, Fanout
from tests.amount import amount
from tests.gathering import KINDS, divides, matrix, product, walked
from tests.nests import random_arch, random_mapping
from tests.problems import arch_of
from workloads import catalog
from workloads.einsum import Einsum, canonical_key, csr, einsum


def arch_for(rng: Random) -> Arch:
    """A random machine whose fills bring in parts of tiles: no array of it is systolic."""
    found = random_arch(rng)
    return replace(found, fanouts=tuple(replace(f, systolic="") for f in found.fanouts))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(amount(400, 10)))
def test_counts_are_those_of_a_walk_over_the_nonzeros(kind: str, seed: int) -> None:
    rng = Random(f"{kind}{seed}")
    rows = rng.choice([8, 12, 16, 18, 24])
    a = matrix(kind, rows, seed, width=3)
    e, arch = product(a, rng.randint(1, 3)), arch_for(rng)
    mapping = next(m for m in iter(lambda: random_mapping(rng, e, arch), None) if divides(m, e))
    walk = walked(mapping, e, arch, a)
    rows_of = {row.key: row.elems for row in count(mapping, e, arch) if row.tensor == "X"}
    levels = [node.level for node in mapping.nodes if isinstance(node, Store) and node.tensor == "X"]
    for parent, child in pairwise(levels):
        each, together = (walk.parents[parent, child, way] for way in ("each", "together"))
        union = sum(len(found) for (p, c, *_), found in walk.served.items() if (p, c) == (parent, child))
        assert rows_of[child, "X", "write"] == pytest.approx(each)
        assert rows_of[parent, "X", "read"] == pytest.approx(min(each, together))
        assert union <= min(each, together)  # PEs share at most so much


@pytest.mark.parametrize("seed", range(amount(600, 10)))
def test_no_mapping_costs_more_than_by_counts_alone_nor_less_than_the_bound(seed: int) -> None:
    rng = Random(seed)
    a = matrix(rng.choice(KINDS), rng.randint(4, 20), seed, width=3)
    if seed % 3 == 0:
        a[:, : len(a) // 3] = False  # columns that nothing reads
    e, plain = product(a, 3), product(a, 3, known=False)
    arch = arch_for(rng)
    mapping = random_mapping(rng, e, arch)
    cost, before = (einsum_cost(Problem(arch, one, "energy"), mapping) for one in (e, plain))
    assert cost.energy_pj <= before.energy_pj * (1 + 1e-9)
    assert cost.latency_cycles <= before.latency_cycles * (1 + 1e-9)
    energy, cycles = bounds.lower_bounds([e], arch)[0]
    assert energy <= cost.energy_pj * (1 + 1e-9)
    assert cycles <= cost.latency_cycles * (1 + 1e-9)
    segment = Boundary(outer=tuple(Store(arch.levels[0].name, p.tensor) for p in e.tensors()), branched=True)
    inner = replace(mapping, nodes=tuple(node for node in mapping.nodes if node not in segment.outer))
    assert costs_alike(arch, e, plain, segment, inner)
    reserved = einsum_cost(Problem(arch, e, "energy", Boundary(reserved_bits=(("L1", 8),))), mapping)
    assert (reserved.energy_pj, reserved.latency_cycles) == (cost.energy_pj, cost.latency_cycles)


def costs_alike(arch: Arch, e: Einsum, plain: Einsum, around: Boundary, mapping: Mapping) -> bool:
    own, other = (einsum_cost(Problem(arch, one, "energy", around), mapping) for one in (e, plain))
    return (own.energy_pj, own.latency_cycles) == (other.energy_pj, other.latency_cycles)


@pytest.mark.parametrize("seed", range(amount(40, 8)))
def test_where_tiles_are_whole_the_search_takes_them_to_be(seed: int) -> None:
    rng = Random(seed)
    a = matrix(KINDS[seed % len(KINDS)], rng.choice([6, 8, 12]), seed, width=3)
    arch = arch_of(rng, "array", 2)
    arch = replace(arch, fanouts=(Fanout("pes", 1, (("x", 2), ("y", 2)), (True, True), (True, True), "os"),))
    own, plain = (
        optimal(Problem(arch, product(a, 2, known), "energy"), "perfect") for known in (True, False)
    )
    assert isinstance(own, Infeasible) == isinstance(plain, Infeasible)
    if not isinstance(own, Infeasible):
        assert (own[0].energy_pj, own[0].optimality_gap) == (plain[0].energy_pj, plain[0].optimality_gap)


def listable(rng: Random, factors: str, draw: Callable[[Random], tuple[Einsum, Arch]]) -> Problem:
    """The first drawn problem whose mappings can be listed."""
    while True:
        e, arch = draw(rng)
        problem = Problem(arch, e, rng.choice(["energy", "latency", "edp"]))
        if mapspace_size(e, arch, factors) <= 20_000:  # type: ignore[arg-type]
            return problem


def drawn(rng: Random) -> tuple[Einsum, Arch]:
    a = matrix(rng.choice(KINDS), rng.choice([4, 6, 7, 8, 12]), rng.randrange(10**6), width=3)
    arch = arch_of(rng, rng.choice(["array", "holds", "two fan-outs"]), rng.choice([1, 1, 2]))
    fanouts = tuple(replace(f, systolic="") for f in arch.fanouts)
    overlap: Literal["free", "buffered"] = rng.choice(["free", "buffered"])
    return product(a, rng.choice([1, 2])), replace(arch, fanouts=fanouts, overlap=overlap)


def rows_that_end_empty(rng: Random) -> tuple[Einsum, Arch]:
    """The last row reads nothing, so that the columns of an imperfect tile are estimated as too many: two
    rows at a time seem to read more of X than one at a time.
    """
    a = np.eye(rows := rng.choice([5, 7]), dtype=bool)
    a[-1] = False
    a[rng.randrange(rows - 1), rng.randrange(rows)] = True
    arch = arch_of(rng, "array", 1)
    pes = Fanout("pes", rng.choice([1, 2]), (("x", rng.choice([3, 4])),), (rng.random() < 0.5,), (True,))
    return product(a, rng.choice([1, 2])), replace(arch, fanouts=(pes,))


def finds_the_best_listed(problem: Problem, factors: str) -> bool:
    listed, found = enumerated(problem, factors), optimal(problem, factors)  # type: ignore[arg-type]
    if isinstance(listed, Infeasible) or isinstance(found, Infeasible):
        return isinstance(listed, Infeasible) and isinstance(found, Infeasible)
    value, best = (
        objective_value(problem.objective, one.energy_pj, one.latency_cycles) for one in (found[0], listed[0])
    )
    return value <= best * (1 + found[0].optimality_gap) * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(amount(400, 20)))
@pytest.mark.parametrize("factors", ["perfect", "imperfect_spatial"])
def test_the_search_finds_what_listing_every_mapping_finds(factors: str, seed: int) -> None:
    assert finds_the_best_listed(listable(Random(seed), factors, drawn), factors)


@pytest.mark.parametrize("seed", range(amount(400, 20)))
def test_the_search_takes_no_larger_tile_to_move_less(seed: int) -> None:
    problem = listable(Random(seed), "imperfect_spatial", rows_that_end_empty)
    assert finds_the_best_listed(problem, "imperfect_spatial")


def test_files_of_equal_counts_cost_what_their_places_say(tmp_path: Path) -> None:
    """Two matrices with as many nonzeros: a band costs less than one spread evenly, a matrix given by its
    size what whole tiles cost; all three have keys of their own, so that caches and rows tell them apart.
    """
    rows = 64
    band = matrix("banded", rows, 0)
    places = np.random.default_rng(0).permutation(rows * rows)[: band.sum()]
    evenly = np.zeros(rows * rows, bool)
    evenly[places] = True
    costs, keys = [], []
    for name, a in (("band", band), ("evenly", evenly.reshape(rows, rows))):
        scipy.io.mmwrite(tmp_path / f"{name}.mtx", scipy.sparse.coo_array(a.astype(int)))
        (e,) = catalog.load(f"{tmp_path}/{name}.mtx:solver=spmm_chain,length=1,n=4").einsums
        costs.append(least(e))
        keys.append(canonical_key(e))
    (e,) = catalog.load(f"spmm_chain:rows={rows},nnz={band.sum()},n=4,length=1").einsums
    assert costs[0] < costs[1] <= least(e)
    assert len({*keys, canonical_key(e)}) == 3
    with open(tmp_path / "e", "wb") as file:
        pickle.dump(e, file)
    assert pickle.loads((tmp_path / "e").read_bytes()) == e


def least(e: Einsum) -> float:
    """Energy on a machine whose buffer holds a part of X."""
    small = machine.load_arch("a2")
    glb = replace(small.levels[1], capacity_bits=8 * 128)
    arch = replace(small, levels=(small.levels[0], glb))
    found = optimal(Problem(arch, e, "energy"))
    assert not isinstance(found, Infeasible)
    return found[0].energy_pj


def test_tiles_are_whole_where_parts_are_not_counted() -> None:
    """Lines, systolic arrays and priced hops; a part of the rows; an operand that has the rows of A."""
    e = product(matrix("banded", 12, 0), 2)
    assert gathered(e) is not None
    assert [gathers(machine.load_arch(name)) for name in ("a2", "edge_array", "gogeta_clusters")] == [
        True
    ] * 3
    assert [gathers(machine.load_arch(n)) for n in ("cpu_like", "datacenter", "simba")] == [False] * 3
    assert gathered(e.without_pattern()) is None
    assert gathered(replace(e, extents=(("m", 6), *e.extents[1:]))) is None
    transposed = einsum("Y[k,n] += A[m,k] * X[m,n]", e.sizes(), **csr("A", 0.2))
    a = replace(transposed.inputs[0], tile_columns=e.inputs[0].tile_columns)
    assert gathered(replace(transposed, inputs=(a, transposed.inputs[1]))) is None


@pytest.mark.parametrize("exposed", ["least", "ends"])
@pytest.mark.parametrize("seed", [*range(amount(320, 8)), 227, 302])
def test_the_search_counts_no_more_than_the_evaluator(exposed: Exposed, seed: int) -> None:
    """Energy to the last digit, where nothing leaks; cycles, at most as many."""
    rng = Random(seed)
    a = matrix(KINDS[seed % len(KINDS)], rng.choice([8, 12, 16]), seed, rng.choice([3, 6]))
    arch = arch_of(rng, "array", 2)
    pes = Fanout("pes", rng.choice([1, 2]), (("x", 4),), (rng.random() < 0.5,), (True,))
    levels = tuple(
        replace(level, double_buffer=v > 0 and rng.random() < 0.5) for v, level in enumerate(arch.levels)
    )
    arch = replace(
        arch,
        levels=levels,
        fanouts=(pes,),
        compute=replace(arch.compute, leak_mw=0.0),
        overlap=rng.choice(["free", "buffered"]),
    )
    problem = Problem(arch, product(a, 2), rng.choice(["energy", "latency"]))
    found = search(problem, "perfect", exposed=exposed)
    if found.mapping is None:
        assert isinstance(optimal(problem, "perfect"), Infeasible)
        return
    cost = einsum_cost(problem, found.mapping)
    assert found.cycles <= cost.latency_cycles * (1 + 1e-9)
    if problem.objective == "energy":
        assert found.lower_bound == pytest.approx(cost.energy_pj, rel=1e-9)


def test_the_least_that_moves_of_an_operand_is_its_columns_with_a_nonzero() -> None:
    a = matrix("banded", 12, 0)
    a[:, :5] = False
    e = product(a, 3)
    assert bounds.words(e.inputs[1], e, 32) == pytest.approx(3 * a.any(axis=0).sum())
