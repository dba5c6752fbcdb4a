"""The best plans of a fused segment: with several shared loops (dse/solve/schedules/shared_loops.py), or with
one loop over any rank of every result, and tensors held whole above it (docs/reuse.md, Fusion).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from math import inf, sqrt

from dse.mapping.nest import role
from dse.run import deadline
from dse.sim.counts.counts import tile_bits
from dse.sim.einsum.evaluate import ROUNDING_GAP, objective_value
from dse.solve.schedules.depths import SegmentSearch, mirrors
from dse.solve.schedules.nests import Nest, Place
from dse.solve.schedules.plan import (
    FusedSegment,
    Option,
    Plan,
    forwarded_bits,
    in_order,
    may_forward,
    may_hold,
    price,
)
from dse.solve.schedules.shared_loops import search
from workloads.einsum import Einsum, canonical_key
from workloads.graph import base_tensor

MAX_HELD = 6  # tensors of a segment, the largest ones, that may be held whole
MAX_EDP_PLANS = 8  # plans of a segment that are priced for EDP, where (energy, latency) fronts are kept

# lower bound, number, places, lower bounds of nests, and nests of a plan
SolvedPlan = tuple[float, int, list[Place], list[float], list[Nest]]


@dataclass(slots=True)
class SegmentPlans:
    """The best plans of segments. Equal segments are searched once."""

    # by form of a segment: (free bits, cutoff, options found) of each search
    options: dict[tuple[object, ...], list[tuple[float, float, list[Option]]]] = field(default_factory=dict)

    def best(self, s: FusedSegment, cutoff: float) -> list[Option]:
        """Returns the answer of `_best_plans`, or that of an earlier search of an equal segment. An earlier
        answer holds if it had at least as many free bits, its plans fit into those of `s`, and it found a
        plan or had as high a `cutoff`.
        """
        searches = self.options.setdefault(_form(s), [])
        for searched_bits, searched_cutoff, found in searches:
            fits = max((option.need_bits for option in found), default=0) <= s.free_bits <= searched_bits
            highest = searched_cutoff * (1 + ROUNDING_GAP)  # equal segments of other layers: sums round
            if fits and (cutoff <= highest or any(option.energy < inf for option in found)):
                return found
        found = _best_plans(s, cutoff)
        searches.append((s.free_bits, cutoff, found))
        return found


def _form(s: FusedSegment) -> tuple[object, ...]:
    """Returns a key that is equal for equal segments, whatever their names."""
    names = in_order(s.own)
    members = tuple(
        (
            canonical_key(e),
            tuple(names.index(p.tensor) for p in e.tensors()),
            tuple(base_tensor(p.tensor, s.made) == p.tensor for p in e.tensors()),
            tuple(p.tensor in retained for p in e.tensors()),
            s.nests.limits_key(e),
        )
        for e, retained in zip(s.own, s.retained, strict=True)
    )
    loops = tuple(
        tuple(e.ranks().index(rank) for e, rank in zip(s.own, loop, strict=True)) for loop in s.members.loops
    )
    return members, loops, tuple(t in s.members.spilled for t in s.members.forwarded), s.level.name


def _best_plans(s: FusedSegment, cutoff: float) -> list[Option]:
    """Returns the best plan of a segment; for EDP the undominated ones among those that were priced.

    cutoff: plans that cost more are left out
    """
    options, lower_bound, m = list[Option](), inf, s.members
    numbers = [number for number, ranks in enumerate(m.loops) if ranks in m.axes]
    if m.classes:
        options, lower_bound = _several_loops(s, cutoff)
        cutoff = min([cutoff, *(_value(s, one) for one in options)])
        if lower_bound >= cutoff * (1 - ROUNDING_GAP):  # of loops over classes none is better
            numbers = [number for number in numbers if number >= len(m.classes)]
    mirrored = {b for _, b in mirrors(s, [m.loops[number] for number in numbers])}
    numbers = [number for at, number in enumerate(numbers) if at not in mirrored]
    if numbers or s.below_split:
        loop_options, loop_bound = _one_loop(s, numbers, cutoff)
        options, lower_bound = [*options, *loop_options], min(lower_bound, loop_bound)
    if not options:
        none = Plan(s.level.name, (), (), tuple(s.own))
        return [Option(inf, inf, lower_bound, none)] if lower_bound < inf else []
    if s.nests.objective != "edp":
        options = sorted(options, key=lambda one: (_value(s, one), one.energy, one.latency))[:1]
    return [
        replace(one, lower_bound=min(lower_bound, _additive_value(s, one)))
        for one in options
        if not any(
            (b.energy, b.latency) != (one.energy, one.latency)
            and b.energy <= one.energy
            and b.latency <= one.latency
            for b in options
        )
    ]


def _value(s: FusedSegment, one: Option) -> float:
    return objective_value(s.nests.objective, one.energy, one.latency)


def _additive_value(s: FusedSegment, one: Option) -> float:
    return sqrt(_value(s, one)) if s.nests.objective == "edp" else _value(s, one)


def _several_loops(s: FusedSegment, cutoff: float) -> tuple[list[Option], float]:
    """Returns plans with loops over classes of ranks that were priced (`shared_loops.search`), and the lower
    bound of all that cost less than `cutoff`.
    """
    options: list[Option] = []

    def priced(plan: Plan, need: int) -> float:
        option = price(s, plan, need)
        if option is None:
            return inf
        options.append(option)
        return option.energy

    lower_bound = search(SegmentSearch(s), cutoff, priced)
    return [one for one in options if one.energy < cutoff], lower_bound


def _one_loop(s: FusedSegment, numbers: Sequence[int], cutoff: float) -> tuple[list[Option], float]:
    """Returns plans with one loop, and the lower bound of all that cost less than `cutoff`: the best plan;
    for EDP the first MAX_EDP_PLANS. numbers: indices of the loops into `Members.loops`.

    Plans are solved in order of their lower bounds, until the next bound reaches the best cost found or
    `cutoff`.
    """
    single_best = s.nests.objective != "edp"
    places = Places(s)
    queue = [
        (sum(bound for _, bound in places.bounded(plan)), number, plan, used_bits)
        for number, (plan, used_bits) in enumerate(_plans(s, numbers))
    ]
    heapq.heapify(queue)
    found: list[Option] = []
    solved_plans: list[SolvedPlan] = []
    best = cutoff
    while (
        queue
        and queue[0][0] < best
        and (single_best or len(found) < MAX_EDP_PLANS)
        and not deadline.has_passed()
    ):
        _, number, plan, used_bits = heapq.heappop(queue)
        plan_places, nest_bounds = (list(each) for each in zip(*places.bounded(plan), strict=True))
        nests, solved_bounds = _nests(
            s, plan_places, [s.free_bits - bits for bits in used_bits], best, nest_bounds
        )
        if sum(solved_bounds) >= best:
            continue
        solved_plans.append((sum(solved_bounds), number, plan_places, solved_bounds, nests))
        complete_plan = replace(plan, nests=tuple(nest.mapping for nest in nests if nest.mapping))
        need = max(bits + nest.bits for bits, nest in zip(used_bits, nests, strict=True))
        if option := price(s, complete_plan, need):
            found.append(option)
            best = min(best, _value(s, option)) if single_best else best
    bound = _lower_bound(s, solved_plans, best if found else inf)
    return found, min([bound, *(one[0] for one in queue[:1] if not single_best or one[0] < best)])


@dataclass(slots=True)
class Places:
    """Places of a segment's einsums under plans with one loop, with lower bounds of their nests. Plans that
    hold the same tensors of an einsum share them.
    """

    s: FusedSegment
    names: list[set[str]] = field(init=False)  # tensors of each einsum
    memo: dict[tuple[object, ...], tuple[Place, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.names = [_names(e) for e in self.s.own]

    def bounded(self, plan: Plan) -> list[tuple[Place, float]]:
        """Returns the place of each einsum, and a lower bound of its nests there."""
        found = []
        for j, e in enumerate(self.s.own):
            key = (j, plan.loops, *(t for t, _ in plan.at if t in self.names[j]))
            if key not in self.memo:
                place = _place(self.s, j, plan)
                self.memo[key] = place, self.s.nests.lower_bound(e, place)
            found.append(self.memo[key])
        return found


def _lower_bound(s: FusedSegment, plans: list[SolvedPlan], best: float) -> float:
    """Returns the lowest lower bound of plans. Bounds below `best` are tightened by
    `Nests.padding_extra_bound`.
    """
    heapq.heapify(plans)
    while plans and plans[0][4] and plans[0][0] < best:
        _, number, places, nest_bounds, nests = plans[0]
        tightened = [
            max(nest_bound, nest.lower_bound + s.nests.padding_extra_bound(e, place))
            for e, place, nest_bound, nest in zip(s.own, places, nest_bounds, nests, strict=True)
        ]
        heapq.heapreplace(plans, (sum(tightened), number, places, tightened, []))
    return plans[0][0] if plans else inf


def _nests(
    s: FusedSegment, places: Sequence[Place], free: Sequence[float], best: float, bounds: Sequence[float]
) -> tuple[list[Nest], list[float]]:
    """Returns the nests of a plan and their lower bounds. Stops as soon as the bounds sum up to `best`; first
    it tries to prove that they do, which takes a fraction of the searches for nests.

    free: bits that are left for the nest of each einsum
    """
    nests: list[Nest] = []
    nest_bounds = [
        max(bound, s.nests.cached_bound(e, place, bits))
        for e, place, bits, bound in zip(s.own, places, free, bounds, strict=True)
    ]
    for j, (e, place, bits) in enumerate(zip(s.own, places, free, strict=True)):
        cutoff = (best - (sum(nest_bounds) - nest_bounds[j])) * (1 + ROUNDING_GAP)
        if nest_bounds[j] < cutoff:
            nest_bounds[j] = max(nest_bounds[j], s.nests.proven_bound(e, place, bits, cutoff))
    for j, (e, place, bits) in enumerate(zip(s.own, places, free, strict=True)):
        if sum(nest_bounds) >= best:
            break
        nests.append(s.nests.best(e, place, bits))
        nest_bounds[j] = max(nest_bounds[j], nests[-1].lower_bound)
    return nests, nest_bounds


def _plans(s: FusedSegment, numbers: Sequence[int]) -> Iterator[tuple[Plan, list[int]]]:
    """Yields plans without nests: a shared loop (below a split also none), its tile, and which of the tensors
    that the loop does not cut are held whole; with the bits of held tensors and forwarded tiles that are
    alive while each einsum runs, which must fit.
    """
    m, einsums, level, word_bits = s.members, s.own, s.level, s.arch.word_bits
    names = [t for e in einsums for t in sorted(_names(e))]
    if s.below_split:
        used_bits = forwarded_bits(s, [e.sizes() for e in einsums])
        if max(used_bits) <= s.free_bits and may_forward(s, ()):
            yield Plan(level.name, (), (), tuple(einsums)), used_bits
    for number, axis in ((number, m.loops[number]) for number in numbers):
        candidates = sorted(
            (-tile_bits(p, e.sizes(), word_bits), p.tensor)
            for e, rank, retained in zip(einsums, axis, s.retained, strict=True)
            for p in e.tensors()
            if p.tensor not in m.forwarded
            and p.tensor not in retained
            and rank not in p.ranks()
            and names.count(p.tensor) == 1
            and role(e, p.tensor) in level.may_keep
            and may_hold(s, p.tensor, at_outer=True)
        )[:MAX_HELD]
        n = einsums[0].sizes()[axis[0]]
        for tile in (t for t in range(1, n) if n % t == 0 and may_forward(s, [(axis, t)])):
            trips = [e.sizes() | {rank: tile} for e, rank in zip(einsums, axis, strict=True)]
            forwarded_tile_bits = forwarded_bits(s, trips)
            for held in (
                held
                for held_count in range(len(candidates) + 1)
                for held in combinations(candidates, held_count)
            ):
                used_bits = [bits - sum(size for size, _ in held) for bits in forwarded_tile_bits]
                if max(used_bits) <= s.free_bits:
                    at_level = tuple((t, 0) for _, t in held)
                    yield Plan(level.name, ((number, tile),), at_level, tuple(einsums)), used_bits


def _place(s: FusedSegment, j: int, plan: Plan) -> Place:
    """Returns the place of einsum j under a plan with one loop."""
    m, names, held = s.members, _names(s.own[j]), frozenset(t for t, _ in plan.at)
    return Place(
        plan.level,
        tuple((m.loops[number][j], tile) for number, tile in plan.loops),
        frozenset(m.forwarded) & names,
        held & names,
        s.retained[j],
        m.spilled & {s.own[j].output.tensor},
    )


def _names(e: Einsum) -> set[str]:
    return {p.tensor for p in e.tensors()}
