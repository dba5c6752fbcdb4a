"""The optimal mapper of one einsum on one machine: what the search found, as an answer with its certificate (docs/design.md, decision 3)."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from random import Random

from dse.dataflow.cost_descending import cost_descending
from dse.dataflow.improve import improved
from dse.dataflow.search import BUDGET, CLOSER, Found, search, taken
from dse.dataflow.space import FREE, Constraints, Tiles, least, named
from dse.nest import Infeasible, Mapping
from dse.sim import cost
from dse.sim.counts import count, footprints
from dse.sim.evaluate import PRECISE, EinsumCost, Problem, above, figure, priced
from hw.arch import Arch


def optimal(problem: Problem, tiles: Tiles = "ragged_lanes", constraints: Constraints = FREE, budget: int = BUDGET,
            near: float = 0.0) -> list[EinsumCost] | Infeasible:
    """Best first: one solution with its certificate: the optimum of the space, or how far it may be from it; ties by energy, then latency.

    near: what is proven to be above the optimum by no more than this share is not searched further. budget: nodes placed at most. If it ends first, and where
    the search does not take the einsum (`search.taken`): the best of what was found and, without constraints, of `cost_descending`, each improved by a local
    search.
    """
    e, arch, space = problem.einsum, problem.arch, named(tiles, problem.arch, constraints)
    found = search(problem, tiles, constraints, budget) if taken(e, tiles) else Found(None, 0, 0.0)
    if found.mapping and partly_named(constraints, arch):  # the search holds all lanes that share alike to the constraints
        found = replace(found, floor=0.0)
    if found.floor == inf:
        return _nothing(problem, constraints)
    if found.mapping and found.floor > 0 and found.visited <= budget and _fits(problem, found.mapping, constraints):
        return [_certified(problem, found, tiles, constraints, near)]
    starts = [found.mapping] if found.mapping else []
    if constraints == FREE:
        other = cost_descending(problem, Random(0))
        starts += [other[0].mapping] if isinstance(other, list) else [] if starts else [least(e, arch)]
    fits = [start for start in starts if _fits(problem, start, constraints)]
    if not fits:
        return Infeasible("the search", found.visited, budget, e.name, "nodes") if constraints != FREE else _nothing(problem, constraints)
    best = min((_priced(problem, improved(problem, start, tiles, constraints)) for start in fits), key=lambda one: _rank(problem, one))
    return [_told(problem, best, found.floor, found.visited, "every space" if best.gap_to_bound <= PRECISE else space)]


def _certified(problem: Problem, found: Found, tiles: Tiles, constraints: Constraints, near: float) -> EinsumCost:
    """What the search found; where its cycles are fewer than the evaluator's, what others find below it that count first and last tiles too."""
    assert found.mapping is not None
    best, floor, visited = _priced(problem, found.mapping), found.floor, found.visited
    if above(_rank(problem, best)[0], floor) > max(near, PRECISE) and problem.arch.overlap == "buffered":
        value, energy, cycles, _ = _rank(problem, best)
        closer = search(problem, tiles, constraints, CLOSER, ends=True, than=(value / (1 + near), energy, cycles))
        floor, visited = max(floor, closer.floor), visited + closer.visited
        others = [_priced(problem, closer.mapping)] if closer.mapping and _fits(problem, closer.mapping, constraints) else []
        best = min([best, *others], key=lambda one: _rank(problem, one))
    return _told(problem, best, floor, visited, named(tiles, problem.arch, constraints))


def _told(problem: Problem, one: EinsumCost, floor: float, visited: int, space: str) -> EinsumCost:
    gap = min(one.gap_to_bound, above(_rank(problem, one)[0], floor))
    proven = gap <= PRECISE
    return replace(one, gap_in_space=0.0 if proven else gap, space=space if proven or floor > 0 else "", visited=visited)


def partly_named(constraints: Constraints, arch: Arch) -> bool:
    """Whether constraints name some dimensions and leave out others of the same fan-out, in whose lanes they would allow everything."""
    named = dict(constraints.spatial)
    inside = constraints.inside is not None or constraints.stationary != ""
    return inside and any(0 < sum(name in named for name, _ in f.dims) < len(f.dims) for f in arch.fanouts)


def _nothing(problem: Problem, constraints: Constraints) -> Infeasible:
    """No mapping of the space fits."""
    e, arch = problem.einsum, problem.arch
    smallest = footprints(least(e, arch), e)
    return cost.overflow(smallest, e, arch) or Infeasible("the space" if constraints == FREE else "constraints", 1, 0, e.name, "mappings")


def _fits(problem: Problem, mapping: Mapping, constraints: Constraints) -> bool:
    held = [row for row in footprints(mapping, problem.einsum) if (row.tensor, row.level) not in constraints.homes]
    return not cost.overflow(held, problem.einsum, problem.arch)


def _priced(problem: Problem, mapping: Mapping) -> EinsumCost:
    return priced(problem, mapping, count(mapping, problem.einsum, problem.arch), footprints(mapping, problem.einsum))


def _rank(problem: Problem, one: EinsumCost) -> tuple[float, float, float, str]:
    return figure(problem.objective, one.energy_pj, one.latency_cycles), one.energy_pj, one.latency_cycles, str(one.mapping)
