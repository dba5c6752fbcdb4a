"""Random problems small enough to enumerate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from math import prod
from random import Random

from dse.mapper.baselines.exhaustive import chains, nests, placements, rank_loops
from dse.mapping.constraints import Factors
from dse.sim.einsum.evaluate import Problem
from hw.arch import Arch
from tests.nests import KINDS, limited, random_arch, random_einsum, searched
from workloads.einsum import Einsum


def has_at_most(most: int, e: Einsum, arch: Arch, factors: Factors) -> bool:
    """Whether `mapspace_size` is `most` or less; what is far larger is not counted to its end."""
    sizes = (
        prod(
            len(chains(e.sizes()[rank], loops, factors)) for rank, loops in rank_loops(e, arch, nest).items()
        )
        for placement in placements(e, arch)
        for nest in nests(e, arch, placement)
    )
    return all(total <= most for total in accumulate(sizes))


def small_problem(
    rng: Random,
    objective: str,
    mappings: int,
    kinds: Sequence[str] = KINDS,
    factors: Factors = "imperfect_spatial",
) -> Problem:
    """A problem of 2 or 3 levels whose whole mapspace has at most so many mappings: bypass, fan-outs,
    windows, capacities at random.
    """
    while True:
        e, arch = (
            random_einsum(rng, kinds),
            random_arch(rng, capacity_bits=8 * rng.choice([2, 6, 20, 100, 1000])),
        )
        e = replace(e, extents=tuple((rank, min(n, rng.randint(1, 6))) for rank, n in e.extents))
        free = rng.random() < 0.6
        levels = (
            arch.levels[0],
            *(replace(level, bypass=free, double_buffer=rng.random() < 0.2) for level in arch.levels[1:]),
        )
        arch = replace(arch, levels=levels)
        if len(levels) <= 3 and prod(n for _, n in e.extents) > 1 and has_at_most(mappings, e, arch, factors):
            return Problem(limited(searched(arch, e), e), e, objective)
