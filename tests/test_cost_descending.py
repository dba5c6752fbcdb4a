"""What must be held, and what double buffering doubles: infeasible is proven."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from random import Random

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dse.mapper.baselines.cost_descending import (
    bits_of_tiles,
    candidates,
    cost_descending,
    smallest_mapping,
    topology,
)
from dse.mapper.baselines.exhaustive import mapspace_size
from dse.mapping.nest import Infeasible, Loop, faults
from dse.sim.counts.counts import footprints, tile_bits
from dse.sim.einsum import cost
from dse.sim.einsum.evaluate import Problem, fanout_overflow
from hw.arch import Arch, Compute, Fanout, Level
from tests.amount import amount
from tests.enumeration import enumerated
from tests.nests import KINDS, random_arch, random_einsum
from workloads.einsum import einsum

GEMM = einsum("C[m,n] += A[m,k] * B[k,n]", {"m": 4, "n": 6, "k": 8})


def tight_problem(rng: Random, mappings: int) -> Problem:
    """A small problem on a machine whose levels hold a few elements, most of them twice."""
    while True:
        e, arch = random_einsum(rng, (*KINDS, "spmm", "spmv")), random_arch(rng)
        e = replace(e, extents=tuple((rank, min(n, rng.randint(1, 6))) for rank, n in e.extents))
        inner = (
            replace(
                level,
                bypass=rng.random() < 0.3,
                double_buffer=rng.random() < 0.85,
                capacity_bits=8 * rng.choice([2, 3, 4, 5, 6, 9, 30]),
            )
            for level in arch.levels[1:]
        )
        arch = replace(arch, levels=(arch.levels[0], *inner))
        if (
            len(arch.levels) <= 3
            and prod(n for _, n in e.extents) > 1
            and mapspace_size(e, arch, "imperfect_spatial") <= mappings
        ):
            return Problem(arch, e, "energy")


def two_levels(
    capacity_bytes: int, double_buffer: bool = True, lanes: int = 1, outermost_bytes: int | None = None
) -> Arch:
    outer = Level(
        "DRAM", outermost_bytes and 8 * outermost_bytes, 8, 200.0, 200.0, 8.0, "shared", bypass=False
    )
    inner = Level(
        "RF", 8 * capacity_bytes, 8, 1.0, 1.0, 8.0, "shared", double_buffer=double_buffer, bypass=False
    )
    return Arch(
        "small",
        (outer, inner),
        (Fanout("array", 1, (("X", lanes),), (True,), (True,), ""),),
        Compute(1.0, 0.5),
        1.0,
        8,
    )


@settings(max_examples=amount(60, 8), deadline=None)
@given(st.integers(0, 2**32))
# 3 bytes, twice each: the output stands still in its lane if the loops above it do not move it
@example(37158)
def test_infeasible_is_proven(seed: int) -> None:
    problem = tight_problem(Random(seed), 3_000)
    e, arch = problem.einsum, problem.arch
    least, found = smallest_mapping(e, arch), cost_descending(problem, Random(0))
    if isinstance(least, Infeasible):
        assert found == least
        assert least.need_bytes > least.have_bytes
        assert enumerated(problem, "imperfect_spatial", "tensors").mapping is None
        return
    assert isinstance(found, list)
    for mapping in (least, found[0].mapping):
        assert faults(mapping, e, arch) == []
        assert fanout_overflow(mapping, e, arch) is None
        assert cost.overflow(footprints(mapping, e, arch), e, arch) is None


def test_tiles_that_no_temporal_loop_moves_are_held_once() -> None:
    """2 bytes, double-buffered, for the 2 tensors of a copy; lanes for all of it."""
    levels = (
        Level("DRAM", None, 8, 100.0, 100.0),
        Level("RF", 16, 8, 1.0, 1.0, bypass=False, double_buffer=True),
    )
    array = Fanout("array", 1, (("X", 2), ("Y", 3)), (True, True), (True, True))
    arch = Arch("copies", levels, (array,), Compute(1.0, 1.0), 1.0, 8)
    found = cost_descending(Problem(arch, einsum("C[a,b] = A[a,b]", {"a": 2, "b": 3}), "energy"), Random(0))
    assert isinstance(found, list)
    assert all(node.over for node in found[0].mapping.nodes if isinstance(node, Loop))


def test_a_node_that_sinks_is_filled_again_and_held_twice() -> None:
    """6 bytes for 3 tensors that all move, one past its own ranks; with 5 bytes all lanes must cut one to the
    element that stays.
    """
    least = smallest_mapping(GEMM, two_levels(6))
    assert not isinstance(least, Infeasible)
    assert [f.is_refilled for f in footprints(least, GEMM, two_levels(6)) if f.level == "RF"] == [
        True,
        True,
        True,
    ]
    assert str(smallest_mapping(GEMM, two_levels(5, lanes=16))) == "C: RF needs 6 bytes, has 5"
    assert not isinstance(smallest_mapping(GEMM, two_levels(5, lanes=24)), Infeasible)  # C: 4 x 6 lanes
    assert str(smallest_mapping(GEMM, two_levels(2, lanes=24))) == "C: RF needs 6 bytes, has 2"


def test_an_einsum_that_fits_whole_is_not_planned_twice() -> None:
    whole = [p.stored_elems() for p in GEMM.tensors()]
    planned = candidates(GEMM, topology(two_levels(sum(whole))))
    assert not isinstance(planned, Infeasible)
    # the last of them sinks, and moves
    assert whole[:2] in [
        [f.elems for f in one.footprints if f.level == "RF" and not f.is_refilled] for one in planned
    ]


def test_an_outermost_level_that_is_too_small_is_named() -> None:
    assert (
        str(candidates(GEMM, topology(two_levels(64, outermost_bytes=100))))
        == "C: DRAM needs 104 bytes, has 100"
    )


@settings(max_examples=amount(60, 8))
@given(st.integers(0, 2**32))
def test_tiles_that_are_planned_take_what_they_take(seed: int) -> None:
    """Of many tiles at once what `counts.tile_bits` has of each, compressed ones too."""
    rng = Random(seed)
    e, arch = random_einsum(rng, ("spmm", "spmv", "gemm")), random_arch(rng)
    tiles = [{rank: rng.randint(1, n) for rank, n in e.extents} for _ in range(5)]
    for p in e.tensors():
        found = bits_of_tiles(
            p,
            {rank: np.array([tile[rank] for tile in tiles]) for rank, _ in e.extents},
            p.bits or arch.word_bits,
        )
        assert found.tolist() == [tile_bits(p, tile, arch.word_bits) for tile in tiles]
