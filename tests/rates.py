"""Rates and leakage, drawn beside all else of a random machine: lanes of less than one operation a cycle, and
static power that is more than all that moves.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hw.arch import Arch

RATES = (0.25, 0.6, 1.0, 1.0, 2.0)  # operations per cycle
LEAKS = (0.0, 0.0, 30.0, 3000.0)  # mW


def alike(arch: Arch, rng: Random) -> Arch:
    """A machine of the same structure with other rates of what computes, another clock, and, one time in two,
    levels that leak.
    """
    vector = None if arch.compute.alu_per_cycle is None else rng.choice(RATES)
    lane = replace(
        arch.compute,
        ops_per_cycle=rng.choice(RATES),
        alu_per_cycle=vector,
        leak_mw=rng.choice(LEAKS),
        vector_leak_mw=rng.choice(LEAKS),
    )
    leaks = (
        [rng.choice(LEAKS) for _ in arch.levels]
        if rng.random() < 0.5
        else [level.leak_mw for level in arch.levels]
    )
    levels = tuple(replace(level, leak_mw=leak) for level, leak in zip(arch.levels, leaks, strict=True))
    return replace(arch, levels=levels, compute=lane, clock_ghz=rng.choice([arch.clock_ghz, 0.5, 2.0]))


def drawn(arch: Arch, rng: Random) -> Arch:
    """The same, now and then with a vector unit."""
    unit = rng.choice([None, None, 1.0])
    return alike(replace(arch, compute=replace(arch.compute, alu_per_cycle=unit)), rng)
