"""The solver stack: which methods there are, and solve(arch, workload, picks) -> schedules with certificates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Literal

from dse.dataflow.annealing import annealing
from dse.dataflow.cost_descending import cost_descending
from dse.dataflow.exhaustive import exhaustive
from dse.dataflow.optimal import optimal
from dse.dataflow.random import random
from dse.nest import OUTSIDE, Infeasible, parse
from dse.sim.evaluate import EinsumCost, Problem, Solution, evaluate, in_turn
from dse.tiling.mapper import smaug
from hw.arch import Arch
from workloads.graph import Workload, unique

Mapper = Callable[[Problem, Random], list[EinsumCost] | Infeasible]

DATAFLOW: dict[str, Mapper] = {"cost_descending": cost_descending, "exhaustive": exhaustive, "random": random, "annealing": annealing, "optimal": optimal}
TILING: dict[str, Mapper | None] = {"mapper": None, "smaug": smaug}  # None: tiles come out of the mapper's own search


@dataclass(frozen=True, slots=True)
class Picks:
    """The `solver:` block of a study. tiling smaug: its tiles and schedule, no mapper is asked.

    fuse_elementwise: one-to-one element-wise operators ride on their producer's output.
    """

    objective: Literal["energy", "latency", "edp"] = "energy"
    tiling: Literal["mapper", "smaug"] = "mapper"
    mapper: str = "cost_descending"
    fuse_elementwise: bool = True
    seed: int = 0


def solve(arch: Arch, workload: Workload, picks: Picks) -> list[Solution] | Infeasible:
    """Schedules of a workload on a machine, best first: einsums in sequence, equal ones solved once."""
    groups = unique(workload)
    tiler = TILING[picks.tiling]
    costs: list[EinsumCost | Infeasible] = []
    unnested = 0
    for group in groups:
        found = (tiler or DATAFLOW[picks.mapper])(Problem(arch, group.einsum, picks.objective), Random(f"{picks.seed}/{group.key}"))
        if isinstance(found, Infeasible):
            return found
        costs.append(found[0])
        unnested += bool(found[0].mapping.outside)
    by = (picks.tiling if tiler else picks.mapper) + (f"; {unnested} of {len(groups)} einsums {OUTSIDE}" if unnested else "")
    total = in_turn(costs, groups, Problem(arch, groups[0].einsum, picks.objective), by)
    return total if isinstance(total, Infeasible) else [total]


def again(arch: Arch, workload: Workload, picks: Picks, nests: Mapping[str, str]) -> Solution | Infeasible:
    """A stored schedule priced anew, from its nests by einsum name. A tiling that needs no search is made anew: it need not be a nest."""
    if TILING[picks.tiling]:
        found = solve(arch, workload, picks)
        return found if isinstance(found, Infeasible) else found[0]
    return evaluate(arch, workload, {name: parse(text) for name, text in nests.items()}, picks.objective)
