"""The optimal mapper of one einsum on one machine: turns results of the search into answers with certificates
(docs/design.md, decision 3).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from random import Random
from typing import Any

import numpy as np

from dse.mapper.baselines.cost_descending import cost_descending
from dse.mapper.exact import hops
from dse.mapper.exact.local_search import improve
from dse.mapper.exact.ragged import solve_ragged
from dse.mapper.exact.ragged_program import unsupported
from dse.mapper.exact.search import (
    BUDGET,
    NO_CUTOFF,
    REFINE_BUDGET,
    Goals,
    SearchResult,
    counts_alike,
    same_structure,
    search,
    search_on,
    supports,
    unrolling_count,
)
from dse.mapping.constraints import FREE, Constraints, Factors, minimal_mapping, unkeepable
from dse.mapping.nest import RULED_OUT, Infeasible, Loop, Mapping, Store, faults
from dse.mapping.searched import ALL_MAPPINGS, Mappings, mappings_of
from dse.run import deadline
from dse.sim.counts.counts import counted, footprints
from dse.sim.einsum import cost
from dse.sim.einsum.evaluate import (
    ROUNDING_GAP,
    EinsumCost,
    Problem,
    evaluate_fitting,
    evaluate_unfused,
    lower_bound,
    objective_value,
    relative_gap,
)
from dse.sim.einsum.limits import broken
from dse.sim.levels.network import Uncounted
from dse.sim.schedule import outermost
from hw.arch import Arch
from workloads.arrays import Floats
from workloads.einsum import Einsum, Projection

MAX_TOGETHER = 128  # machines that are searched together, at most
# storage nodes placed for all of them; if that is not enough, each is searched alone
SHARED_BUDGET = BUDGET // 8
# spatial unrollings up to which imperfect factors are searched to the optimum, whatever gap is allowed
MAX_UNROLLINGS = 1_000
# Extents are rounded up to multiples of these: the rounded extent has many divisors, and these are tile sizes
# that nearly divide the extent itself.
MULTIPLES = (2, 4, 8, 16)


@outermost.mapper
def optimal(
    problem: Problem,
    factors: Factors = "imperfect_spatial",
    constraints: Constraints = FREE,
    budget: int = BUDGET,
    allowed_gap: float = 0.0,
) -> list[EinsumCost] | Infeasible:
    """The optimal mapping with its certificate: the optimum of the searched space, or its optimality gap.

    Returns a list of one solution. Ties are decided by energy, then latency.

    allowed_gap: the answer may lie this relative gap above the optimum. Mappings of imperfect spatial factors
        are left out unless they are better by more than that (`Prices.make_goals`); inf: as 0, but `_refine`
        does not search again with more stalls counted, so the answer may lie above the optimum by these.
    On machines whose networks have a price the search counts the least hops of a mapping (hops.py); answers
    are priced with all, and mappings whose hops are not counted (network.Uncounted) are no answers.
    budget: storage nodes placed at most.

    Where the budget ends first, or the search does not take the einsum (`search.supports`), the answer is a
    mapping improved by a local search: that of the search, else that of `cost_descending`.
    """
    if factors == "imperfect":
        return _imperfect(problem, constraints, budget, allowed_gap)
    names_some, prices = names_some_dims(constraints, problem.arch), Prices([problem], constraints)
    goals = None if names_some else prices.make_goals(factors, allowed_gap)
    found = (
        search(problem, factors, constraints, budget, goals=goals)
        if supports(problem.einsum, factors)
        else SearchResult(None, 0, 0.0)
    )
    if supports(problem.einsum, factors) and names_some:
        return _some_dims_constrained(problem, found, factors, constraints, budget)
    return _to_answer(problem, found, factors, constraints, budget, allowed_gap, prices.costs_on(0))


def optimal_on(
    problems: Sequence[Problem], factors: Factors, constraints: Constraints = FREE, allowed_gap: float = 0.0
) -> list[EinsumCost | Infeasible]:
    """The answers of `optimal` for one einsum on many machines. Machines that differ in prices and rates
    alone are searched together, and a mapping is priced for all of them at once.
    """
    found: list[EinsumCost | Infeasible | None] = [
        outermost.overflow_of_einsum(problem.einsum, problem.arch) for problem in problems
    ]
    problems = [replace(problem, arch=problem.arch.unbounded()) for problem in problems]
    is_searched = (
        factors != "imperfect"
        and supports(problems[0].einsum, factors)
        and not problems[0].arch.layout_sensitive()
    )
    unanswered = [j for j, one in enumerate(found) if is_searched and not one]
    for positions in searched_together(problems, unanswered):
        if len(positions) > 1 and not names_some_dims(constraints, problems[positions[0]].arch):
            for j, one in _on_many(
                [problems[j] for j in positions], factors, constraints, allowed_gap
            ).items():
                found[positions[j]] = one
    one_by_one = (
        optimal(problem, factors, constraints, allowed_gap=allowed_gap) if one is None else [one]
        for problem, one in zip(problems, found, strict=True)
    )
    return [one if isinstance(one, Infeasible) else one[0] for one in one_by_one]


def searched_together(problems: Sequence[Problem], positions: Iterable[int]) -> list[list[int]]:
    """Returns the positions by batches: machines that differ in prices and rates alone, at most
    MAX_TOGETHER.
    """
    batches: dict[Any, list[int]] = {}
    for j in positions:
        batches.setdefault(same_structure(problems[j]), []).append(j)
    return [
        batch[i : i + MAX_TOGETHER] for batch in batches.values() for i in range(0, len(batch), MAX_TOGETHER)
    ]


@dataclass(frozen=True, slots=True)
class Prices:
    """Costs of mappings of one einsum on machines that differ in prices and rates alone, each priced once."""

    problems: Sequence[Problem]
    constraints: Constraints
    costs: dict[tuple[Mapping, int], EinsumCost] = field(default_factory=dict)  # by mapping and machine

    def make_goals(self, factors: Factors, allowed_gap: float) -> Goals | None:
        """Returns the function that gives the goals of a search of imperfect factors (search.Goals): from the
        optimum of perfect factors per machine, to the goal and to the lower bound of any mapping. Imperfect
        factors must beat that optimum, as the evaluator prices it, by more than the gap. None: any saving
        counts (no gap, or inf).

            goal = cost of that optimum / (1 + allowed_gap)

        So the goal is a lower bound if no mapping is found below it, and the optimum of perfect factors is an
        answer within the gap. It depends on the machine alone, not on the batch (`search.search_on`).

        Where the lower bound of any mapping reaches the goal, nothing is searched. Else, with at most
        MAX_UNROLLINGS unrollings, any saving counts (the goal is inf): to search them to the optimum takes a
        millisecond or two as a rule, seconds where tensors crowd a small buffer.

        Where networks have a price the optimum of perfect factors is always priced, as an answer to fall back
        on: hops of the imperfect one may not be counted, or be more than the search counts.
        """
        more = allowed_gap if allowed_gap < inf else 0.0

        def goals(found: Sequence[Mapping | None]) -> tuple[Floats, Floats]:
            goal, bounds = np.full(len(found), inf), np.zeros(len(found))
            for mapping, positions in _by_mapping(found).items():
                for j, one in self.price(mapping, positions).items():
                    problem = self.problems[j]
                    one = _with_bound_gap(problem, _arranged(problem, one, self.constraints))
                    self.costs[one.mapping, j], value = one, sort_key(problem, one)[0]
                    goal[j], bounds[j] = value / (1 + more), value / (1 + one.gap_to_bound)
            open_machines = goal > bounds
            if (
                open_machines.any()
                and unrolling_count(self.problems[0], factors, self.constraints) <= MAX_UNROLLINGS
            ):
                goal[open_machines] = inf
            return goal, bounds

        return goals if more > 0 or self.problems[0].arch.prices_networks() else None

    def costs_on(self, j: int) -> list[EinsumCost]:
        """The costs of all mappings that were priced on machine j."""
        return [one for (_, i), one in self.costs.items() if i == j]

    def price(self, mapping: Mapping, positions: Sequence[int]) -> dict[int, EinsumCost]:
        """The costs of a mapping by machine; none if it does not fit. positions: positions of the
        machines."""
        todo = [j for j in positions if (mapping, j) not in self.costs]
        if todo and _fits(self.problems[0], mapping, self.constraints):
            self.costs.update(((mapping, j), one) for j, one in self._price_all(mapping, todo).items())
        return {j: self.costs[mapping, j] for j in positions if (mapping, j) in self.costs}

    def _price_all(self, mapping: Mapping, positions: Sequence[int]) -> dict[int, EinsumCost]:
        """The costs of a mapping that fits; none where its hops are not counted. All machines are priced at
        once.
        """
        problems = [self.problems[j] for j in positions]
        e, arch = problems[0].einsum, problems[0].arch
        c = counted(mapping, e, arch, footprints(mapping, e, arch))
        try:
            first = evaluate_fitting(problems[0], c)
        except Uncounted:
            return {}
        if len(positions) == 1:
            return {positions[0]: first}
        p = cost.price(c.rows, e, cost.batch_arch([one.arch for one in problems]), c.timed)
        columns = (
            np.broadcast_to(one, len(positions)).tolist()
            for one in (p.energy_pj, p.latency_cycles, p.initiation_interval_cycles, p.bottleneck)
        )
        return {
            j: replace(
                first,
                energy_pj=energy,
                latency_cycles=latency,
                bottleneck=bottleneck,
                optimality_gap=inf,
                gap_to_bound=inf,
                price=cost.Price(energy, latency, bottleneck, (), (), interval),
            )
            for j, energy, latency, interval, bottleneck in zip(positions, *columns, strict=True)
        }


def _with_bound_gap(problem: Problem, one: EinsumCost) -> EinsumCost:
    """The cost with its gap to the lower bound over all mappings; computed only if it is not known yet."""
    if one.gap_to_bound < inf:
        return one
    return replace(one, gap_to_bound=relative_gap(sort_key(problem, one)[0], lower_bound(problem)))


def _by_mapping(found: Sequence[Mapping | None]) -> dict[Mapping, list[int]]:
    """Positions of the machines that each mapping was found for."""
    positions: dict[Mapping, list[int]] = {}
    for j, mapping in enumerate(found):
        if mapping:
            positions.setdefault(mapping, []).append(j)
    return positions


def _on_many(
    problems: Sequence[Problem], factors: Factors, constraints: Constraints, allowed_gap: float
) -> dict[int, EinsumCost | Infeasible]:
    """Answers by position of the machine, from one search for all machines. Left out are machines that the
    caller has to solve one by one: all of them if the search used up its budget, else those whose mapping
    does not fit or cannot be priced.
    """
    answers: dict[int, EinsumCost | Infeasible] = {}
    prices = Prices(problems, constraints)
    results = search_on(
        problems, factors, constraints, SHARED_BUDGET, goals=prices.make_goals(factors, allowed_gap)
    )
    if results[0].ended:
        return answers
    for mapping, positions in _by_mapping(
        [one.mapping if one.lower_bound > 0 else None for one in results]
    ).items():
        prices.price(mapping, positions)
    for j, one in enumerate(results):
        if one.lower_bound == inf:
            answers[j] = none_fits(problems[j], constraints)
        elif one.mapping and (one.mapping, j) in prices.costs:
            found = _refine(problems[j], one, factors, constraints, allowed_gap, prices.costs_on(j))
            answers[j] = (
                replace(found, gap_to_bound=0.0) if found.gap_to_bound == inf and found.proven else found
            )
    return answers


def _to_answer(
    problem: Problem,
    found: SearchResult,
    factors: Factors,
    constraints: Constraints,
    budget: int,
    allowed_gap: float,
    priced: Sequence[EinsumCost],
) -> list[EinsumCost] | Infeasible:
    """The result of a search as an answer with its certificate. Where the search did not finish, the answer
    comes from a local search.

    priced: costs of mappings that were priced before; one of them may be the answer.
    """
    e, arch, space = problem.einsum, problem.arch, mappings_of(factors, problem.arch, constraints)
    if found.lower_bound == inf:
        return none_fits(problem, constraints)
    if (
        found.mapping
        and found.lower_bound > 0
        and not found.ended
        and _fits(problem, found.mapping, constraints)
    ):
        return [_refine(problem, found, factors, constraints, allowed_gap, priced)]
    starts = [found.mapping] if found.mapping else []
    if constraints == FREE and (deadline.has_passed() or arch.with_sharing()):
        starts = starts or [minimal_mapping(e, arch)]
    elif constraints == FREE and not starts:
        other = cost_descending(replace(problem, arch=arch.without("network")), Random(0))
        starts = [other[0].mapping if isinstance(other, list) else minimal_mapping(e, arch)]
    fits = [start for start in starts if _fits(problem, start, constraints)]
    if not fits:
        return (
            Infeasible("the search", found.visited, budget, e.name, "nodes")
            if constraints != FREE
            else none_fits(problem, constraints)
        )
    improved = fits
    if not _is_within(problem, fits, priced, found.lower_bound, allowed_gap):
        improved = [improve(problem, start, factors, constraints) for start in fits]
    # a local search does not see which hops can be counted, so mappings before it are candidates too
    if arch.prices_networks() and constraints == FREE:
        least = minimal_mapping(e, arch)
        improved += [*fits, *([least] if _fits(problem, least, constraints) else [])]
    try:
        best = _arranged(problem, _best(problem, improved, priced), constraints)
    except Uncounted:
        return Infeasible("the search", found.visited, budget, e.name, "nodes")
    answer = _with_certificate(
        problem,
        best,
        found.lower_bound,
        found.visited,
        ALL_MAPPINGS if best.gap_to_bound <= ROUNDING_GAP else space,
    )
    return [replace(answer, left_open="ended" if found.ended and answer.optimality_gap > allowed_gap else "")]


def _is_within(
    problem: Problem,
    mappings: Sequence[Mapping],
    priced: Sequence[EinsumCost],
    lower: float,
    allowed_gap: float,
) -> bool:
    """Whether the best of some mappings and of costs that are known is within the gap, a finite one, of the
    lower bound or of that of any mapping.
    """
    try:
        best = _with_bound_gap(problem, _best(problem, mappings, priced))
    except Uncounted:
        return False
    gap = min(relative_gap(sort_key(problem, best)[0], lower), best.gap_to_bound)
    return gap <= allowed_gap < inf


def _some_dims_constrained(
    problem: Problem, found: SearchResult, factors: Factors, constraints: Constraints, budget: int
) -> list[EinsumCost] | Infeasible:
    """The answer where constraints name only some dimensions of a fan-out (`names_some_dims`). found: the
    optimum if `inside` and `stationary` held in all PEs of the fan-out.

    A search without `inside` and `stationary` covers all allowed mappings, so its optimum is a lower bound.
    It is the answer if it keeps the constraints.
    """
    relaxed = search(problem, factors, replace(constraints, inside=None, stationary=""), budget)
    if relaxed.lower_bound == inf:
        return none_fits(problem, constraints)
    visited, space = found.visited + relaxed.visited, mappings_of(factors, problem.arch, constraints)
    starts = [
        one
        for one in (relaxed.mapping, found.mapping)
        if one
        and not broken(constraints, one, problem.einsum, problem.arch)
        and _fits(problem, one, constraints)
    ]
    if not starts:
        return Infeasible("the search", visited, budget, problem.einsum.name, "nodes")
    best = _best(problem, [improve(problem, start, factors, constraints) for start in starts])
    return [
        _with_certificate(
            problem,
            best,
            relaxed.lower_bound,
            visited,
            ALL_MAPPINGS if best.gap_to_bound <= ROUNDING_GAP else space,
        )
    ]


def _imperfect(
    problem: Problem, constraints: Constraints, budget: int, allowed_gap: float
) -> list[EinsumCost] | Infeasible:
    """The answer for imperfect factors. A local search starts from the optimum with imperfect spatial
    factors, and from the optima of the einsum with extents rounded up (`MULTIPLES`). If the search of
    ragged.py takes the einsum and the machine, its answer counts too, and its certificate.
    """
    e, arch = problem.einsum, problem.arch
    spatial_only = optimal(problem, "imperfect_spatial", constraints, budget, allowed_gap)
    if isinstance(spatial_only, Infeasible):
        return spatial_only
    rounded_up = (
        dict.fromkeys(_round_up(e, multiple) for multiple in MULTIPLES) if supports(e, "perfect") else {}
    )
    rounded = (
        search(replace(problem, einsum=one), "perfect", constraints, REFINE_BUDGET).mapping
        for one in rounded_up
        if one != e
    )
    starts = [
        spatial_only[0].mapping,
        *(start for one in rounded if one and _fits(problem, start := _refit(e, one), constraints)),
    ]
    best = _best(
        problem, [improve(problem, start, "imperfect", constraints) for start in starts], spatial_only
    )
    exact = constraints == FREE and arch.overlap == "free" and not arch.prices_networks()
    if exact and not unsupported(e, arch):
        found = solve_ragged(problem, budget)
        best = min(
            [best, *(found if isinstance(found, list) else [])], key=lambda one: sort_key(problem, one)
        )
        if isinstance(found, list) and found[0].space:
            return [replace(best, optimality_gap=0.0, space=found[0].space, visited=found[0].visited)]
    return [_with_certificate(problem, best, 0.0, spatial_only[0].visited, ALL_MAPPINGS)]


def _round_up(e: Einsum, multiple: int) -> Einsum:
    """The einsum with extents rounded up to a multiple of a number; extents up to that number stay."""
    more = {rank: -n % multiple if n > multiple else 0 for rank, n in e.extents}

    def grown(p: Projection) -> Projection:
        return replace(
            p,
            dims=tuple(
                replace(dim, size=dim.size + sum(abs(c) * more[rank] for rank, c in dim.terms))
                for dim in p.dims
            ),
        )

    return replace(
        e,
        extents=tuple((rank, n + more[rank]) for rank, n in e.extents),
        output=grown(e.output),
        inputs=tuple(map(grown, e.inputs)),
    )


def _refit(e: Einsum, mapping: Mapping) -> Mapping:
    """A mapping that was found for larger extents, cut to those of e: tiles stay as large as the extents let
    them, spatial tiles are made as even as they can be.
    """
    left, nodes = e.sizes(), list[Loop | Store]()
    for node in mapping.nodes:
        if isinstance(node, Loop):
            tile = min(node.tile, left[node.rank])
            tile = -(-left[node.rank] // -(-left[node.rank] // tile)) if node.over else tile
            nodes += [Loop(node.rank, tile, node.over)] if tile < left[node.rank] else []
            left[node.rank] = tile
        else:
            nodes.append(node)
    return replace(mapping, nodes=tuple(nodes))


def _refine(
    problem: Problem,
    found: SearchResult,
    factors: Factors,
    constraints: Constraints,
    allowed_gap: float,
    priced: Sequence[EinsumCost],
) -> EinsumCost:
    """The answer of a search that finished. Where the search counts fewer cycles than the evaluator, further
    searches count more stalls (`exposed`, see `search`). "sequential", fills and drains of single buffers one
    after the other, may find a better mapping but proves no bound; "ends", also first fills and last drains,
    may find one or prove a higher bound. priced: as in `_to_answer`.

    Where "ends" counts what the first search did, it is left out: it would find the same mapping, or, below a
    goal that the first one proved, none.
    """
    assert found.mapping is not None
    arch = problem.arch
    best = _arranged(problem, _best(problem, [found.mapping], priced), constraints)
    bound = found.lower_bound
    visited = found.visited
    single_buffered = any(not level.double_buffer for level in arch.levels[1:])
    for exposed in ("sequential", "ends") if single_buffered else ("ends",):
        value, energy, cycles, _ = sort_key(problem, best)
        # a goal is a quotient, so rounding may lift a gap to it slightly above the allowed one
        if arch.overlap == "free" or relative_gap(value, bound) <= max(
            allowed_gap * (1 + ROUNDING_GAP), ROUNDING_GAP
        ):
            break
        if counts_alike(arch, exposed, "least"):
            continue
        refined = search(
            problem,
            factors,
            constraints,
            REFINE_BUDGET,
            exposed,
            NO_CUTOFF if exposed == "sequential" else (value / (1 + allowed_gap), energy, cycles),
        )
        bound, visited = max(bound, refined.lower_bound), visited + refined.visited
        if refined.mapping and _fits(problem, refined.mapping, constraints):
            best = _best(problem, [refined.mapping], [best])
    space = mappings_of(factors, problem.arch, constraints)
    answer = _with_certificate(problem, best, bound, visited, space, allowed_gap)
    return replace(answer, left_open="stalls" if answer.optimality_gap > allowed_gap else "")


def _with_certificate(
    problem: Problem, one: EinsumCost, lower: float, visited: int, space: Mappings, allowed_gap: float = 0.0
) -> EinsumCost:
    """The cost with its optimality gap to the lower bound `lower`, and with the space that the certificate
    covers. A gap that exceeds the allowed one by rounding alone is set to it.
    """
    gap = relative_gap(sort_key(problem, one)[0], lower)
    gap = allowed_gap if allowed_gap < gap <= allowed_gap * (1 + ROUNDING_GAP) else gap
    one = one if gap <= ROUNDING_GAP else _with_bound_gap(problem, one)
    gap = min(one.gap_to_bound, gap)
    proven = gap <= ROUNDING_GAP
    return replace(
        one,
        optimality_gap=0.0 if proven else gap,
        space=space if proven or lower > 0 else None,
        visited=visited,
    )


def _best(problem: Problem, mappings: Sequence[Mapping], priced: Sequence[EinsumCost] = ()) -> EinsumCost:
    """The best of some mappings that fit and of costs that are known. Raises Uncounted if hops of none are
    counted.
    """
    found, why = list(priced), None
    for mapping in mappings:
        if all(one.mapping != mapping for one in priced):
            try:
                found.append(evaluate_unfused(problem, mapping))
            except Uncounted as fault:
                why = fault
    if why and not found:
        raise why
    return min(found, key=lambda one: sort_key(problem, one))


def _arranged(problem: Problem, best: EinsumCost, constraints: Constraints) -> EinsumCost:
    """The cheapest of a mapping and its `hops.arrangements`, where links have a price: the search knows the
    least hops of all arrangements, not which of them has these.
    """
    if not hops.networks(problem.arch.fanouts) or constraints != FREE:
        return best
    others = hops.arrangements(best.mapping, problem.einsum, problem.arch)
    return _best(problem, [one for one in others if _fits(problem, one, constraints)], [best])


def names_some_dims(constraints: Constraints, arch: Arch) -> bool:
    """True if constraints on what happens inside PEs (`inside`, `stationary`) go with a `spatial` that names
    some dimensions of a fan-out and leaves out others. In PEs along the others everything is allowed.
    """
    named = dict(constraints.spatial)
    inside = constraints.inside is not None or constraints.stationary != ""
    return inside and any(0 < sum(name in named for name, _ in f.dims) < len(f.dims) for f in arch.fanouts)


def none_fits(problem: Problem, constraints: Constraints) -> Infeasible:
    """The result if no mapping of the space fits. It names rules of which no part can go without a mapping
    (`_excluding_rules`), or the level that overflows, else the constraints.
    """
    e, arch = problem.einsum, problem.arch
    if rules := _excluding_rules(problem, constraints):
        return Infeasible("; ".join(rules), 1, 0, e.name, RULED_OUT)
    smallest = footprints(minimal_mapping(e, arch), e, arch)
    return cost.overflow(smallest, e, arch) or Infeasible(
        "the space" if constraints == FREE else "constraints", 1, 0, e.name, "mappings"
    )


def _excluding_rules(problem: Problem, constraints: Constraints) -> list[str]:
    """Parts of rules that together leave no mapping, while some mapping keeps all but any one of them; [] if
    there are no rules, if no mapping fits without them, or if a search ends before it knows. Found by leaving
    out one after the other: a part is needed if some mapping is found without it. Of einsums that share
    tensors or loops nobody asks why.
    """
    if not constraints.limits or problem.boundary.branched:
        return []
    if alone := unkeepable(constraints, problem.einsum, problem.arch):
        return [alone]

    def has_mapping(texts: Sequence[str]) -> bool | None:
        kept = replace(constraints, limits=tuple(one for one in constraints.limits if one.text in texts))
        found = search(problem, "imperfect_spatial", kept, REFINE_BUDGET)
        return True if found.mapping else False if found.lower_bound == inf else None

    texts = list(constraints.rule_texts())
    if not has_mapping([]):
        return []
    for text in tuple(texts):
        fewer = [one for one in texts if one != text]
        has = has_mapping(fewer)
        if has is None:
            return []
        texts = texts if has else fewer
    return texts


def _fits(problem: Problem, mapping: Mapping, constraints: Constraints) -> bool:
    """Whether the mapping fits all capacities. Tiles whose capacity the schedule accounts for do not count
    (constraints.homes: pairs of a tensor and the level that holds it).
    """
    held = [
        row
        for row in footprints(mapping, problem.einsum, problem.arch)
        if (row.tensor, row.level) not in constraints.homes
    ]
    if problem.arch.compute.lockstep and faults(mapping, problem.einsum, problem.arch):
        return False  # cut to fewer values (`_refit`), PEs may get no whole slots
    return not cost.overflow(held, problem.einsum, problem.arch)


def sort_key(problem: Problem, one: EinsumCost) -> tuple[float, float, float, str]:
    """A key that orders answers, the best one first: objective, energy, latency, text of the mapping."""
    return (
        objective_value(problem.objective, one.energy_pj, one.latency_cycles),
        one.energy_pj,
        one.latency_cycles,
        str(one.mapping),
    )
