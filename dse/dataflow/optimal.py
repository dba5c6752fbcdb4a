"""The optimal mapper of one einsum on one machine: what the search found, as an answer with its certificate (docs/design.md, decision 3)."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from dse.dataflow.cost_descending import cost_descending
from dse.dataflow.improve import improved
from dse.dataflow.search import BUDGET, Found, search, taken
from dse.dataflow.space import FREE, Constraints, Tiles, least, named
from dse.nest import Infeasible, Mapping
from dse.sim import cost
from dse.sim.counts import count, footprints
from dse.sim.evaluate import PRECISE, EinsumCost, Problem, above, figure, optimum, priced
from hw.arch import Arch


def optimal(problem: Problem, tiles: Tiles = "ragged_lanes", constraints: Constraints = FREE, budget: int = BUDGET) -> list[EinsumCost] | Infeasible:
    """Best first: one solution, the optimum of the space with its certificate; ties by energy, then latency.

    budget: nodes placed at most. If it ends first, and where the search does not take the einsum (`search.taken`): the best of what was found and, without
    constraints, of `cost_descending`, each improved by a local search; gap_in_space says how far it may be from the optimum.
    """
    e, arch = problem.einsum, problem.arch
    found = search(problem, tiles, constraints, budget) if taken(e, tiles) else Found(None, 0, 0.0)
    if found.mapping and _partly_named(constraints, arch):  # the search holds all lanes that share alike to the constraints
        found = replace(found, floor=0.0)
    if found.floor == float("inf"):
        if found.mapping is None:
            return _nothing(problem, constraints)
        return [optimum(_priced(problem, found.mapping), named(tiles, arch, constraints), found.visited)]
    starts = [found.mapping] if found.mapping else []
    if constraints == FREE:
        other = cost_descending(problem, Random(0))
        starts += [other[0].mapping] if isinstance(other, list) else [] if starts else [least(e, arch)]
    fits = [start for start in starts if not cost.overflow(footprints(start, e), e, arch)]
    if not fits:
        return Infeasible("the search", found.visited, budget, e.name, "nodes") if constraints != FREE else _nothing(problem, constraints)
    best = min((_priced(problem, improved(problem, start, tiles, constraints)) for start in fits), key=lambda one: _rank(problem, one))
    if best.gap_to_bound <= PRECISE:
        return [optimum(best, "every space", found.visited)]
    gap = min(best.gap_to_bound, above(_rank(problem, best)[0], found.floor))
    return [replace(best, gap_in_space=gap, visited=found.visited)]


def _partly_named(constraints: Constraints, arch: Arch) -> bool:
    """Whether constraints name some dimensions and leave out others of the same fan-out, in whose lanes they would allow everything."""
    named = dict(constraints.spatial)
    inside = constraints.inside is not None or constraints.stationary != ""
    return inside and any(0 < sum(name in named for name, _ in f.dims) < len(f.dims) for f in arch.fanouts)


def _nothing(problem: Problem, constraints: Constraints) -> Infeasible:
    """No mapping of the space fits."""
    e, arch = problem.einsum, problem.arch
    smallest = footprints(least(e, arch), e)
    return cost.overflow(smallest, e, arch) or Infeasible("the space" if constraints == FREE else "constraints", 1, 0, e.name, "mappings")


def _priced(problem: Problem, mapping: Mapping) -> EinsumCost:
    return priced(problem, mapping, count(mapping, problem.einsum, problem.arch), footprints(mapping, problem.einsum))


def _rank(problem: Problem, one: EinsumCost) -> tuple[float, float, float, str]:
    return figure(problem.objective, one.energy_pj, one.latency_cycles), one.energy_pj, one.latency_cycles, str(one.mapping)
