"""The evaluator of one einsum, (machine, einsum, mapping) -> cost, and the sum over unfused einsums.

Schedules with fusion, pipelines or retention are evaluated in dse/sim/schedule/graph.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import inf

from dse.mapping.conversion import Conversion
from dse.mapping.nest import Infeasible, Loop, Mapping, mapping_key, packing_levels
from dse.mapping.schedule import Schedule
from dse.mapping.searched import Mappings, Space, certificate_words, encoded
from dse.sim.counts.counts import Count, Counted, Violated, added_up, counted, footprints
from dse.sim.counts.terms import wiring
from dse.sim.einsum import boundary, bounds, cost
from dse.sim.einsum.boundary import ALONE, Boundary
from dse.sim.levels import transfer
from hw.arch import Arch
from workloads.einsum import Einsum, canonical_key
from workloads.graph import Unique

ROUNDING_GAP = 1e-9  # relative gaps below this come from rounding of floats
NOT_PROVEN = "not proven optimal"
GIVEN_MAPPING = "given mapping"  # the user gave the mapping; nothing was searched
GIVEN_SCHEDULE = f"{NOT_PROVEN} (given schedule)"
ANY_MAPPING = "any mapping"  # what a lower bound of one einsum holds for
# what a lower bound of several einsums holds for; fused schedules may cost less
UNFUSED_BOUND = "the unfused lower bound"
# what the optimality gap of an einsum is of (`EinsumCost.weighed_by`), in front of its certificate
WEIGHED_TEXT = {"": "", "edp": "in the EDP of the workload ", "front": "in the front of the workload "}
# why a search leaves a larger gap than asked for (`EinsumCost.left_open`)
LEFT_OPEN = {
    "stalls": "its bound counts fewer cycles than the model, which adds waits at single buffers, ramp-up and "
    "ramp-down; a smaller solver.gap proves no more",
    "ended": "the search ended at its budget or at limits.seconds, with what it had proven",
}
# (number of the einsum that a search begins, effort of each einsum with 0 for unknown, its name)
ProgressFn = Callable[[int, Sequence[float], str], None]
Pair = tuple[float, float]  # energy and latency


@dataclass(frozen=True, slots=True)
class EinsumCost:
    """Cost of one unique einsum on a machine. Energy and latency are for one occurrence."""

    name: str
    key: str
    count: int  # occurrences
    mapping: Mapping
    mapping_key: str
    counts: tuple[Count, ...]
    footprint: tuple[tuple[str, str, int | Fraction], ...]  # (level, tensor, elements) of each storage node
    energy_pj: float
    latency_cycles: float
    bottleneck: str  # the component with most busy cycles
    # share by which the objective may exceed the optimum of `space`, or what `weighed_by` names instead
    optimality_gap: float = field(compare=False)
    gap_to_bound: float = field(compare=False)  # share by which the objective may exceed the lower bound
    price: cost.Price
    # the searched mappings; None: only the lower bound is known
    space: Mappings | None = field(default=None, compare=False)
    visited: int = field(default=0, compare=False)  # nodes that the search of `space` visited
    strategy: str = field(default="", compare=False)  # how a tile optimizer cut the tensors, as text
    host_copies: int | None = None  # contiguous copies that the host makes beforehand; None: no tensor is cut
    host_copy_elems: int | None = None  # elements of these copies
    # traffic at levels that describe lines, rows or banks, by the tensors' layouts
    layout_traffic: tuple[transfer.Transfer, ...] = ()
    refilled: tuple[tuple[str, str], ...] = ()  # (level, tensor) of tiles that are filled more than once
    # (level, tensor, elements) of what the schedule retains of its tensors on chip, beside `footprint`
    retained: tuple[tuple[str, str, int | Fraction], ...] = ()
    # What optimality_gap is of, where the workload decides which mapping an einsum gets: "edp": the energy x
    # delay of the workload; "front": its front; "": the einsum's own objective
    weighed_by: str = field(default="", compare=False)
    # why optimality_gap is more than `solver.gap` allows: a key of LEFT_OPEN; "": it is not, or not known
    left_open: str = field(default="", compare=False)

    @property
    def proven(self) -> Mappings | None:
        """The mappings among which this one is proven optimal; None if it is not proven."""
        return self.space if self.optimality_gap == 0 else None

    @property
    def certificate(self) -> str:
        """What is proven of this cost, in one line: both gaps and the searched space."""
        proof = gap_in_space_text(self.optimality_gap, goal=self.weighed_by) if self.space else NOT_PROVEN
        return certificate_text(
            f"{WEIGHED_TEXT[self.weighed_by]}{proof}",
            self.gap_to_bound,
            bound_name(ANY_MAPPING, self.weighed_by),
            self.space,
        )


@dataclass(frozen=True, slots=True)
class SegmentCost:
    """Cost of a segment: einsums that share loops, or the stages of a pipeline."""

    einsums: tuple[str, ...]
    energy_pj: float
    latency_cycles: float
    initiation_interval_cycles: float  # cycles from one run to the next, back to back
    energy_steady_pj: float  # energy of one of many runs back to back (`steady_pj`)
    pipeline_tiles: int  # how many a pipeline has; 0 where the branches run one after the other
    stage_cycles: tuple[float, ...]  # of each stage, for one pipeline tile
    # (tensor, level): made and read in the segment, never sent to main memory
    on_chip: tuple[tuple[str, str], ...]
    # (level, peak occupancy of one instance during the segment), with tensors retained for other segments
    peak_bits: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Memory:
    """Main-memory traffic of a schedule with reuse, in machine words, split by cause.

    moved_words = listed_words + in_registers_words + not_fused_words + reread_words + capacity_words
    """

    moved_words: float
    # by the method's list of accesses: each operand is read once, and retained tensors may use the whole
    # level
    listed_words: float
    in_registers_words: float  # results that the list leaves in registers
    not_fused_words: float  # tensors that the list passes on, but that no shared loop fuses
    reread_words: float  # operands that their einsum's nest reads more than once, if nothing were retained
    # tensors that the list retains and this schedule does not, since nests work in a part of the level;
    # negative: retained tensors also save words of the two causes above
    capacity_words: float
    saved_words: float  # words that one more word of the level would save; 0 where no linear program says it


@dataclass(frozen=True, slots=True)
class Pruned:
    """How many schemes of one segment a search of segments looked at."""

    einsums: tuple[str, ...]
    schemes: int  # all schemes of the segment
    valid: int  # schemes that may fit
    solved: int  # schemes that were solved


@dataclass(frozen=True, slots=True)
class Solution:
    """A scheduled workload. Equal einsums that run alone are costed once, with their number of occurrences.

    In a pipeline the latency of an einsum is that of the einsum alone, and its energy excludes leakage, which
    the segment has.
    """

    einsums: tuple[EinsumCost, ...]
    energy_pj: float  # of one run, from empty to empty, with leakage
    latency_cycles: float  # of the same run
    initiation_interval_cycles: float  # cycles from one run to the next, back to back
    energy_steady_pj: float  # energy of one of many runs back to back
    optimality_gap: float  # share by which the objective may exceed the optimum of `space`
    gap_to_bound: float  # share by which the objective may exceed the lower bound
    certificate: str
    segments: tuple[SegmentCost, ...] = ()  # empty for the unfused schedule
    schedule: Schedule | None = None  # None for the unfused schedule
    # main-memory traffic by cause, where a method with a list of accesses was asked for
    memory: Memory | None = None
    # share of the objective saved over the best unfused schedule; None: that one was not searched
    saved: float | None = None
    # what a deadline left out of the search that `saved` is of, in words; "": nothing
    left_out: str = field(default="", compare=False)
    pruned: tuple[Pruned, ...] = ()
    # copies of tensors in other layouts; they are einsums of the schedule (`conversion.with_conversions`)
    conversions: tuple[Conversion, ...] = ()
    # the searched schedules, of which optimality_gap speaks; None: only the lower bound is known
    space: Space | None = None


def no_progress(_number: int, _efforts: Sequence[float], _name: str) -> None:
    """The default progress callback: reports nothing."""


def certificate_text(
    what: str, gap_to_bound: float, bound: str, space: Mappings | Space | None = None
) -> str:
    """Returns a certificate in the words that all answers use.

    what: the proof against the searched space, in words
    bound: name of the bound that the answer is at most `gap_to_bound` above (e.g. any mapping)
    """
    gap_text = f"at most {percent(gap_to_bound)} above {bound}" if gap_to_bound < inf else "no bound known"
    return f"{what}; {gap_text}{certificate_words(space) if space else ''}"


def gap_in_space_text(gap: float, inside: bool = True, goal: str = "") -> str:
    """Returns the proof of an answer against the searched space, in words.

    inside: the answer itself lies in that space; False: variants of it may cost less
    goal: "front": the answer is a schedule of a front, with one mapping of each distinct einsum
    """
    if goal == "front":
        above = f"at most {percent(gap)} above it in energy and in latency" if gap else "no worse in either"
        return f"every choice of one mapping per distinct einsum has a schedule of the front {above}"
    if gap:
        return f"at most {percent(gap)} above the optimum of the searched space"
    return "optimal in the searched space" if inside else "no schedule of the searched space costs less"


def bound_name(name: str, goal: str) -> str:
    """Returns the name of a lower bound in certificates; of a front (goal) it holds for one of both."""
    return f"{name} in energy or in latency" if goal == "front" else name


def percent(share: float) -> str:
    """Returns a share as a percentage: three digits below 1000 %, whole above."""
    return f"{100 * share:.3g} %" if share < 10 else f"{100 * share:,.0f} %"


def relative_gap(value: float, lower: float) -> float:
    """Returns the relative gap of a value to its lower bound: (value - lower) / lower."""
    return max(value / lower - 1, 0.0) if lower > 0 else inf if value > 0 else 0.0


def lower_bound(problem: Problem) -> float:
    """Returns a lower bound on the objective; 0 for an einsum within a schedule, for which no bound is
    known.
    """
    if problem.boundary != ALONE:
        return 0.0
    return objective_value(problem.objective, *bounds.lower_bounds([problem.einsum], problem.arch)[0])


def objective_value(objective: str, energy_pj: float, latency_cycles: float) -> float:
    """Returns energy, latency or energy * latency, whichever the objective ranks by."""
    return {"energy": energy_pj, "latency": latency_cycles, "edp": energy_pj * latency_cycles}[objective]


@dataclass(frozen=True, slots=True)
class Problem:
    """What a mapper solves: one einsum on one machine."""

    arch: Arch
    einsum: Einsum
    objective: str  # energy, latency, edp or front
    boundary: Boundary = ALONE  # what the schedule around the einsum changes


def einsum_cost(problem: Problem, mapping: Mapping) -> EinsumCost | Infeasible:
    """Returns the cost of a well-formed mapping, or the first level or fan-out that it overflows.
    `nest.faults` lists what is not well-formed.

    A mapping that fits is counted once (`Counted`) and then priced (`evaluate_fitting`): on a machine of
    several computes on the one that it names, its gap to the bound of all.
    """
    found = _cost_on_unit(replace(problem, arch=problem.arch.unit(mapping.unit)), mapping)
    if not problem.arch.units or isinstance(found, Infeasible):
        return found
    pair = found.energy_pj, found.latency_cycles
    gap = gap_above(problem.objective, pair, bounds.lower_bounds([problem.einsum], problem.arch)[0])
    return replace(found, optimality_gap=gap, gap_to_bound=gap)


def _cost_on_unit(problem: Problem, mapping: Mapping) -> EinsumCost | Infeasible:
    """Returns `einsum_cost` on a machine of one compute."""
    e, arch = problem.einsum, problem.arch
    around = problem.boundary
    whole = boundary.whole_nest(around, mapping)
    if blocked := fanout_overflow(whole, e, arch):
        return blocked
    held = boundary.node_footprints(around, whole, e, arch)
    # in a schedule, outermost.py checks the capacity of the outermost level once for all einsums
    limits = arch if around == ALONE else arch.unbounded()
    return cost.overflow(held, e, limits, around.reserved_bits) or evaluate_fitting(
        problem, boundary.counted(around, whole, e, arch, held)
    )


def evaluate_fitting(problem: Problem, c: Counted) -> EinsumCost:
    """Returns the cost of a mapping that fits. c: its whole nest, counted, with footprints."""
    e, arch = problem.einsum, problem.arch
    if negative := next((row for row in c.rows if row.elems < -ROUNDING_GAP * e.points()), None):
        raise Violated(
            f"{e.name} on {arch.name}: {negative.elems} {negative.action}s of {negative.tensor} at "
            f"{negative.level}, in\n{c.mapping}"
        )
    keys = {row.key for row in c.rows}
    transfer_of = {key: one for key, one in transfer.transfers(c, arch).items() if key in keys}
    delays = transfer.delays(transfer_of, e, arch)
    p = cost.price(c.rows, e, arch, c.timed, c.restart_at, c.moves_more, c.before, c.in_part, delays)
    extra_parts = [cost.Part(*one) for one in transfer.layout_energy(transfer_of, arch)]
    extra_parts += [
        cost.Part(traffic.network, traffic.tensor, traffic.action, traffic.bits, traffic.energy_pj)
        for traffic in boundary.network_traffic(problem.boundary, c.mapping, c.sums, arch)
    ]
    if extra_parts:
        p = replace(
            p,
            energy_pj=p.energy_pj + sum(part.energy_pj for part in extra_parts),
            parts=(*p.parts, *extra_parts),
        )
    lower = bounds.lower_bounds([e], arch)[0] if problem.boundary == ALONE else (0.0, 0.0)
    gap = _gap(e.name, arch, problem.objective, (p.energy_pj, p.latency_cycles), lower, c.mapping)
    return EinsumCost(
        name=e.name,
        key=canonical_key(e),
        count=1,
        mapping=c.mapping,
        mapping_key=key_of(problem, c.mapping, bool(transfer_of)),
        counts=tuple(
            replace(row, level=arch.compute.name) if row.level == "MAC" else row
            for row in added_up(c.rows, c.before)
        ),
        footprint=tuple((f.level, f.tensor, f.elems) for f in c.footprints),
        energy_pj=p.energy_pj,
        latency_cycles=p.latency_cycles,
        bottleneck=p.bottleneck,
        optimality_gap=gap,
        gap_to_bound=gap,
        price=p,
        layout_traffic=tuple(transfer_of.values()),
        refilled=tuple((f.level, f.tensor) for f in c.footprints if f.is_refilled),
        retained=boundary.retained_elems(problem.boundary, e, arch),
    )


def evaluate_unfused(problem: Problem, mapping: Mapping) -> EinsumCost:
    """Returns the cost of a mapping that fits, for an einsum that runs alone."""
    e, arch = problem.einsum, problem.arch
    return evaluate_fitting(problem, counted(mapping, e, arch, footprints(mapping, e, arch)))


def _gap(name: str, arch: Arch, objective: str, cost: Pair, lower: Pair, mapping: Mapping) -> float:
    """Returns the relative gap of a cost to its lower bound (`gap_above`). Raises Violated if the cost lies
    below the bound.

    cost, lower: energy and latency
    """
    for single in ("energy", "latency") if objective == "front" else (objective,):
        value, least = objective_value(single, *cost), objective_value(single, *lower)
        if least > value * (1 + ROUNDING_GAP):
            raise Violated(f"{name} on {arch.name}: lower bound {least} above the cost {value} of\n{mapping}")
    return gap_above(objective, cost, lower)


def gap_above(objective: str, cost: Pair, lower: Pair) -> float:
    """Returns by which share a cost may be above the best, from lower bounds. Both are (energy, latency).

    front: no mapping is better by more than this share in both.
    """
    if objective == "front":
        return min(relative_gap(value, least) for value, least in zip(cost, lower, strict=True))
    return relative_gap(objective_value(objective, *cost), objective_value(objective, *lower))


def key_of(problem: Problem, mapping: Mapping, layout_sensitive: bool = False) -> str:
    """Returns the key of a mapping: mappings with equal keys have equal counts.

    The key covers what counts depend on beside the nest: which fan-out dimensions share accesses, word widths
    (of single levels, too) and, where hops or endpoints have a price, the network. layout_sensitive: it
    covers lines, rows and banks of the levels, too.
    """
    e, arch = problem.einsum, problem.arch
    wires = wiring(arch)
    nets = [
        (f.name, f.dims, f.injected_at, f.multicast_from, f.mesh_region)
        for f in arch.fanouts
        if f.has_price()
    ]
    suffix = f"{problem.boundary.key_text()}{f' {nets} {problem.boundary.owners}' if nets else ''}"
    layout_sizes = [
        (v, a.line_bits, a.row_bits, a.row_banks, a.interleave_bits, a.rmw)
        for v, level in enumerate(arch.levels)
        if layout_sensitive and (a := level.access)
    ]
    suffix += f" {layout_sizes}" if layout_sizes else ""
    widths = [(level.name, level.bits) for level in arch.levels if level.bits]
    suffix += f" {widths}" if widths else ""
    suffix += f" {wires.packing}" if packing_levels(e, arch) else ""
    return mapping_key(
        f"{canonical_key(e)} {arch.word_bits} {wires.dims} {sorted(wires.skips)} {wires.systolic}{suffix}",
        mapping,
    )


def pes_used(mapping: Mapping, e: Einsum) -> dict[str, int]:
    """Returns how many PEs a mapping uses along each dimension of an array that it unrolls a rank over."""
    tile_of, used = e.sizes(), dict[str, int]()
    for node in mapping.nodes:
        if isinstance(node, Loop):
            if node.over:
                used[node.over] = used.get(node.over, 1) * -(-tile_of[node.rank] // node.tile)
            tile_of[node.rank] = node.tile
    return used


def fanout_overflow(mapping: Mapping, e: Einsum, arch: Arch) -> Infeasible | None:
    """Returns the first fan-out dimension on which a mapping needs more PEs than there are, or None."""
    used = pes_used(mapping, e)
    for f in arch.fanouts:
        for name, size in f.dims:
            if used.get(name, 1) > size:
                return Infeasible(f"{f.name}.{name}", used[name], size, e.name, "PEs")
    return None


def sequential(
    costs: Sequence[EinsumCost | Infeasible], groups: Sequence[Unique], problem: Problem, method: str
) -> Solution | Infeasible:
    """Returns the unfused solution, in which energies and latencies of the einsums add up; or the first
    Infeasible of `costs`.

    method: the method that found the mappings, for the certificate; GIVEN_MAPPING: the user gave them
    """
    found = [one for one in costs if isinstance(one, EinsumCost)]
    if len(found) < len(costs):
        return next(one for one in costs if isinstance(one, Infeasible))
    objective, lower_bounds = (
        problem.objective,
        bounds.lower_bounds((group.einsum for group in groups), problem.arch),
    )
    energy = sum(group.occurrences * one.energy_pj for one, group in zip(found, groups, strict=True))
    cycles = sum(group.occurrences * one.latency_cycles for one, group in zip(found, groups, strict=True))
    weighed_by = objective if objective == "front" or (objective == "edp" and len(found) > 1) else ""
    solved: list[EinsumCost] = []
    for one, group, bound in zip(found, groups, lower_bounds, strict=True):
        pair = one.energy_pj, one.latency_cycles
        to_own_bound = _gap(one.name, problem.arch, objective, pair, bound, one.mapping)
        own_gap = one.optimality_gap if weighed_by else min(one.optimality_gap, to_own_bound)
        solved.append(
            replace(
                one,
                count=group.occurrences,
                optimality_gap=own_gap if one.space else to_own_bound,
                gap_to_bound=to_own_bound,
                weighed_by=weighed_by,
            )
        )
    # with several unique einsums, equal ones do not follow back to back
    steady = cycles if len(solved) > 1 else sum(c.count * c.price.initiation_interval_cycles for c in solved)
    lower = tuple(
        sum(c.count * bound[i] for c, bound in zip(solved, lower_bounds, strict=True)) for i in range(2)
    )
    to_bound = gap_above(objective, (energy, cycles), (lower[0], lower[1]))
    gap = (
        max((c.optimality_gap for c in solved if c.space), default=to_bound)
        if weighed_by
        else _sum_gap(solved, objective)
    )
    gap, is_single = gap if objective == "front" else min(gap, to_bound), sum(c.count for c in solved) == 1
    gap = gap if gap > ROUNDING_GAP else 0.0
    space = unfused_space([c.space for c in solved], is_single)
    certificate = certificate_text(
        _sequential_proof(solved, gap, method, objective),
        to_bound,
        bound_name(ANY_MAPPING if is_single else UNFUSED_BOUND, objective),
        space,
    )
    steady_energy = steady_pj(energy, cycles, steady, problem.arch)
    return Solution(
        tuple(solved), energy, cycles, steady, steady_energy, gap, to_bound, certificate, space=space
    )


def steady_pj(energy: float, latency: float, steady: float, arch: Arch) -> float:
    """Returns the energy in pJ of one of many runs back to back.

    Accesses and operations are the same as in a single run; leakage counts for the initiation interval alone.
    energy, latency: of a single run, pJ and cycles
    steady: the initiation interval in cycles
    """
    return energy - arch.leak_mw() * (latency - steady) / arch.clock_ghz


def unfused_space(spaces: Sequence[Mappings | None], is_single: bool) -> Space | None:
    """Returns the searched space of the unfused schedule, from the searched mappings of each einsum; None if
    none of them was searched.

    is_single: the workload is one einsum
    """
    space_of = {encoded(space): space for space in spaces if space}
    return Space(tuple(space_of[key] for key in sorted(space_of)), alone=is_single) if space_of else None


def _sum_gap(solved: Sequence[EinsumCost], objective: str) -> float:
    """Returns the gap of a sum over einsums to the sum of what their gaps allow."""
    values = [objective_value(objective, c.energy_pj, c.latency_cycles) for c in solved]
    value = sum(c.count * one for c, one in zip(solved, values, strict=True))
    lower = sum(c.count * one / (1 + c.optimality_gap) for c, one in zip(solved, values, strict=True))
    return relative_gap(value, lower)


def _sequential_proof(
    solved: Sequence[EinsumCost], optimality_gap: float, method: str, objective: str
) -> str:
    """Returns the proof of the unfused answer against the searched spaces, in words. Einsums that were not
    searched count as not proven optimal.
    """
    if unproven := sum(not c.space for c in solved):
        if unproven == len(solved):
            return f"{NOT_PROVEN} ({method})"
        searched = [c for c in solved if c.space]
        gap = (
            max(c.optimality_gap for c in searched)
            if searched[0].weighed_by
            else _sum_gap(searched, objective)
        )
        proof = gap_in_space_text(gap if gap > ROUNDING_GAP else 0.0)
        return f"{unproven} of {len(solved)} einsums {NOT_PROVEN}, the others {proof}"
    return gap_in_space_text(optimality_gap, goal=solved[0].weighed_by)
