"""Random problems small enough to enumerate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from random import Random

from dse.mapper.baselines.exhaustive import mapspace_size
from dse.mapping.constraints import Factors
from dse.sim.einsum.evaluate import Problem
from tests.nests import KINDS, limited, random_arch, random_einsum, searched


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
        if (
            len(levels) <= 3
            and prod(n for _, n in e.extents) > 1
            and mapspace_size(e, arch, factors) <= mappings
        ):
            return Problem(limited(searched(arch, e), e), e, objective)
