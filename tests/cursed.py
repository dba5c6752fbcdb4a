"""Mappers that kill their process, or fill its memory, on one machine of the study of tests/test_driver.py.

Actors import this file: it imports what they have anyway.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import fields, replace
from random import Random

from dse.mapper.baselines.cost_descending import cost_descending
from dse.mapping.nest import Infeasible
from dse.sim.einsum.evaluate import EinsumCost, Problem
from dse.solve import solve
from dse.study.study import Study, WorkloadRef

EATEN_BYTES = 3 << 30


class Curse(WorkloadRef):
    """A reference that brings this module, and with it the mappers below, into every actor."""

    __slots__ = ()


def marked(problem: Problem) -> bool:
    """Of 4 KiB that may be passed by and an array of 4 x 4: one machine of the space."""
    return (
        problem.arch.levels[1].capacity_bits == 8 * 4096
        and problem.arch.levels[1].bypass
        and [size for fanout in problem.arch.fanouts for _, size in fanout.dims] == [4, 4]
    )


def cursed(problem: Problem, rng: Random) -> list[EinsumCost] | Infeasible:
    """cost_descending, but one machine kills the process that solves it."""
    if marked(problem):
        os.kill(os.getpid(), signal.SIGKILL)
    return cost_descending(problem, rng)


def hungry(problem: Problem, rng: Random) -> list[EinsumCost] | Infeasible:
    """cost_descending, but one machine fills EATEN_BYTES first, slowly enough for a monitor to see it."""
    held = []
    while marked(problem) and sum(map(len, held)) < EATEN_BYTES:
        held.append(b"1" * (64 << 20))
        time.sleep(0.1)
    return cost_descending(problem, rng)


solve.MAPPERS_BY_NAME |= {"cursed": cursed, "hungry": hungry}


def under_curse(small: Study, mapper: str = "cursed") -> Study:
    """The study, solved by a mapper of this file."""
    refs = tuple(Curse(*(getattr(ref, f.name) for f in fields(WorkloadRef))) for ref in small.workloads)
    return replace(small, workloads=refs, solver=replace(small.solver, mapper=mapper))
