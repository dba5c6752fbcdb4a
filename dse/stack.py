"""The solver stack: which methods there are, and solve(arch, workload, picks) -> schedules with certificates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Literal

from dse.dataflow.annealing import annealing
from dse.dataflow.cost_descending import cost_descending
from dse.dataflow.exhaustive import exhaustive
from dse.dataflow.optimal import optimal
from dse.dataflow.random import random
from dse.nest import Infeasible
from dse.sim.evaluate import EinsumCost, Problem, Solution, in_turn
from hw.arch import Arch
from workloads.graph import Workload, unique

Mapper = Callable[[Problem, Random], list[EinsumCost] | Infeasible]

DATAFLOW: dict[str, Mapper] = {"cost_descending": cost_descending, "exhaustive": exhaustive, "random": random, "annealing": annealing, "optimal": optimal}


@dataclass(frozen=True, slots=True)
class Picks:
    """The `solver:` block of a study. fuse_elementwise: one-to-one element-wise operators ride on their producer's output."""

    objective: Literal["energy", "latency", "edp"] = "energy"
    mapper: str = "cost_descending"
    fuse_elementwise: bool = True
    seed: int = 0


def solve(arch: Arch, workload: Workload, picks: Picks) -> list[Solution] | Infeasible:
    """Schedules of a workload on a machine, best first: einsums in sequence, equal ones solved once."""
    groups = unique(workload)
    costs: list[EinsumCost | Infeasible] = []
    for group in groups:
        found = DATAFLOW[picks.mapper](Problem(arch, group.einsum, picks.objective), Random(f"{picks.seed}/{group.key}"))
        if isinstance(found, Infeasible):
            return found
        costs.append(found[0])
    total = in_turn(costs, groups, Problem(arch, groups[0].einsum, picks.objective), picks.mapper)
    return total if isinstance(total, Infeasible) else [total]
