"""Covers of one einsum's mappings in energy and latency: a few mappings, so that for any mapping of the
searched space one of them is not much worse in both (docs/solvers.md).

The first searches find the least energy and the least latency. Each next one finds the least energy in fewer
cycles than those that the mappings found so far cover, until the fastest mapping covers the rest. This is the
epsilon-constraint method (Haimes, Lasdon, Wismer, On a bicriterion formulation ..., 1971), with steps as wide
as the gap.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import NamedTuple

import numpy as np

from dse.mapper.exact.optimal import SHARED_BUDGET, Prices, names_some_dims, optimal_on, searched_together
from dse.mapper.exact.pareto_mappings import FASTER
from dse.mapper.exact.search import Exposed, SearchResult, search, search_on, supports
from dse.mapping.constraints import Constraints, Factors
from dse.mapping.nest import Infeasible
from dse.sim.einsum.evaluate import ROUNDING_GAP, EinsumCost, Problem, relative_gap
from dse.sim.fronts import undominated

MAX_SEARCHES = 400  # searches by cycles per einsum and machine, at most


@dataclass(frozen=True, slots=True)
class Cover:
    """Mappings of one einsum that none of them dominates, least energy first. For every mapping of the
    searched space one of them has at most (1 + gap) times its energy and (1 + gap) times its latency; and at
    most `more_pj` and `more_cycles` more than it.
    """

    costs: tuple[EinsumCost, ...]
    gap: float
    more_pj: float
    more_cycles: float
    least_pj: float  # lower bounds over all mappings
    least_cycles: float


class Ask(NamedTuple):
    """A search for the least energy below `max_pj` in at most `max_cycles`."""

    max_cycles: float
    max_pj: float


class Interval(NamedTuple):
    """Mappings that take more than `above` cycles, and no more than the interval before, cost at least
    `least_pj`.
    """

    above: float
    least_pj: float


# asks for searches, gets their results with the cost of the mapping, and returns the cover
Covering = Generator[Ask, tuple[SearchResult, EinsumCost | None], Cover]


def covers_on(
    problems: Sequence[Problem], factors: Factors, constraints: Constraints, gap: float
) -> list[Cover | Infeasible]:
    """Returns the cover of one einsum's mappings on each of many machines, within a relative gap where the
    searches prove it; else with the gap that they prove. Machines that differ in prices and rates alone are
    searched together.

    A cover has the answers of `optimal_on` of least energy and of least latency, or better ones.
    """
    cheapest, fastest = (
        optimal_on(
            [replace(one, objective=objective) for one in problems], factors, constraints, allowed_gap=gap
        )
        for objective in ("energy", "latency")
    )
    problems = [replace(one, arch=one.arch.unbounded(), objective="energy") for one in problems]
    is_searched = supports(problems[0].einsum, factors)
    found: dict[int, Cover | Infeasible] = {}
    asks: dict[int, Ask] = {}
    coverings: dict[int, Covering] = {}

    def take(j: int, result: tuple[SearchResult, EinsumCost | None] | None) -> None:
        try:
            asks[j] = coverings[j].send(result) if result else next(coverings[j])
        except StopIteration as end:
            found[j] = end.value

    for j, (one, other, problem) in enumerate(zip(cheapest, fastest, problems, strict=True)):
        if isinstance(one, Infeasible) or isinstance(other, Infeasible):
            found[j] = one if isinstance(one, Infeasible) else other  # type: ignore[assignment]
            continue
        searches = MAX_SEARCHES if is_searched and not names_some_dims(constraints, problem.arch) else 0
        coverings[j] = _covering(one, other, gap, searches)
        take(j, None)
    while asks:
        now, asks = asks, {}
        for j, result in _searched(problems, now, factors, constraints).items():
            take(j, result)
    return [found[j] for j in range(len(problems))]


def _covering(cheapest: EinsumCost, fastest: EinsumCost, gap: float, searches: int) -> Covering:
    """Asks for one search after the other, and returns the cover. searches: how many at most.

    With `bound` on the energy of all mappings of at most `limit` cycles, a mapping found of energy E and
    latency L covers the mappings from L / (1 + gap) to `limit` cycles if E <= (1 + gap) bound:

        bound |----------[ covered by (E, L) ]
              0     L / (1 + gap)     L    limit     cycles

    A search counts at most the cycles of the evaluator, so its bound holds for all mappings of at most
    `limit` cycles, and what it finds may take more than `limit`. Then the limit falls by the gap
    nevertheless, and the interval proves less.
    """
    found, limit, intervals = [cheapest, fastest], inf, list[Interval]()
    bound = cheapest.energy_pj / (1 + cheapest.optimality_gap)
    least_cycles = fastest.latency_cycles / (1 + fastest.optimality_gap)
    for _ in range(searches):
        allowed_pj = bound * (1 + gap) * (1 + ROUNDING_GAP)
        covering = [one.latency_cycles for one in found if one.energy_pj <= allowed_pj]
        limit = min(limit, *(covering or [cheapest.latency_cycles])) / (1 + gap) * FASTER
        intervals.append(Interval(max(limit, least_cycles), bound))
        if limit < least_cycles:
            break
        result, cost = yield Ask(limit, fastest.energy_pj / (1 + gap))
        if result.lower_bound == inf:  # no mapping takes so few cycles
            least_cycles = limit
            break
        bound = max(bound, result.lower_bound)
        if cost is None:  # either the fastest mapping covers the rest, or the budget has ended
            break
        found.append(cost)
    if limit > least_cycles:
        intervals.append(Interval(least_cycles, bound))
    return _cover(found, intervals, least_cycles)


def _cover(found: Sequence[EinsumCost], intervals: Sequence[Interval], least_cycles: float) -> Cover:
    """The mappings that none of them dominates, and what the intervals prove of them."""

    def gap(one: EinsumCost, interval: Interval) -> float:
        return max(
            relative_gap(one.energy_pj, interval.least_pj), relative_gap(one.latency_cycles, interval.above)
        )

    pairs = [(min(found, key=lambda one: gap(one, interval)), interval) for interval in intervals]
    proven = max(gap(one, interval) for one, interval in pairs)
    best = undominated([(one.energy_pj, one.latency_cycles) for one in found])
    return Cover(
        tuple(sorted((found[i] for i in best), key=lambda one: one.energy_pj)),
        proven if proven > 10 * ROUNDING_GAP else 0.0,
        max(max(one.energy_pj - interval.least_pj, 0.0) for one, interval in pairs),
        max(max(one.latency_cycles - interval.above, 0.0) for one, interval in pairs),
        intervals[0].least_pj,
        least_cycles,
    )


def _searched(
    problems: Sequence[Problem], asks: Mapping[int, Ask], factors: Factors, constraints: Constraints
) -> dict[int, tuple[SearchResult, EinsumCost | None]]:
    """The results of searches by machine, with the cost of the mapping found; None: none was found. Searches
    on machines of one structure are one; where its budget ends, each machine is searched alone.
    """
    found: dict[int, tuple[SearchResult, EinsumCost | None]] = {}
    for positions in searched_together(problems, asks):
        own = [problems[j] for j in positions]
        exposed: Exposed = "least" if own[0].arch.overlap == "free" else "ends"
        limits = [asks[j].max_cycles for j in positions]
        cutoffs = [(asks[j].max_pj, 0.0, 0.0) for j in positions]
        results = (
            search_on(
                own,
                factors,
                constraints,
                SHARED_BUDGET,
                exposed,
                np.array(cutoffs),
                max_cycles=np.array(limits),
            )
            if len(own) > 1
            else []
        )
        if not results or results[0].ended:
            results = [
                search(problem, factors, constraints, exposed=exposed, cutoff=cutoff, max_cycles=limit)
                for problem, cutoff, limit in zip(own, cutoffs, limits, strict=True)
            ]
        prices = Prices(own, constraints)
        for k, (j, result) in enumerate(zip(positions, results, strict=True)):
            cost = prices.price(result.mapping, [k]).get(k) if result.mapping else None
            found[j] = result, cost
    return found
