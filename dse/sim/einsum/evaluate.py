"""The one evaluator of an einsum: (machine, einsum, mapping) -> cost; einsums in turn. Whole schedules:
dse/sim/schedule/graph.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import inf

from dse.mapping.conversion import Conversion
from dse.mapping.nest import Infeasible, Loop, Mapping, mapping_key
from dse.mapping.schedule import Schedule
from dse.mapping.searched import Mappings, Space, certificate_words, encoded
from dse.sim.counts.counts import Count, Footprint, count, footprints
from dse.sim.counts.terms import wiring
from dse.sim.einsum import boundary, bounds, cost
from dse.sim.einsum.boundary import ALONE, Boundary
from dse.sim.levels import transfer
from hw.arch import Arch
from workloads.einsum import Einsum, canonical_key
from workloads.graph import Unique

PRECISE = 1e-9  # gaps below come from rounding
NOT_PROVEN = "not proven optimal"
GIVEN_MAPPING = "given mapping"  # nothing was searched
GIVEN_SCHEDULE = f"{NOT_PROVEN} (given schedule)"
ANY_MAPPING = "any mapping"  # what a bound is of
UNFUSED = "the unfused lower bound"  # of einsums layer by layer; other schedules may cost less
# (einsum that is begun, efforts of all, 0: unknown, its name)
ProgressFn = Callable[[int, Sequence[float], str], None]


@dataclass(frozen=True, slots=True)
class EinsumCost:
    """Cost of one unique einsum on a machine. count: its occurrences; energy in pJ and latency in cycles are
    of one occurrence.

    optimality_gap, gap_to_bound: how far the objective may lie above the optimum of the space searched, and
    above the lower bound, as shares of these. space: the mappings that optimality_gap is of, None where
    nothing but the bound is known; visited: nodes that the search for it visited. strategy: how a tile
    optimizer cut the tensors, as text; host_copies: contiguous copies that the host makes for it, of
    host_copy_elems elements; None: no tensor is cut beforehand. layout_traffic: what layouts make of the
    traffic, at levels that describe lines, rows or banks.
    """

    name: str
    key: str
    count: int
    mapping: Mapping
    mapping_key: str
    counts: tuple[Count, ...]
    footprint: tuple[tuple[str, str, int | Fraction], ...]
    energy_pj: float
    latency_cycles: float
    bottleneck: str
    optimality_gap: float = field(compare=False)
    gap_to_bound: float = field(compare=False)
    price: cost.Price
    space: Mappings | None = field(default=None, compare=False)
    visited: int = field(default=0, compare=False)
    strategy: str = field(default="", compare=False)
    host_copies: int | None = None
    host_copy_elems: int | None = None
    layout_traffic: tuple[transfer.Transfer, ...] = ()
    refilled: tuple[tuple[str, str], ...] = ()  # (level, tensor) of tiles that are filled more than once

    @property
    def proven(self) -> Mappings | None:
        """The mappings among which it is proven optimal, None if it is not."""
        return self.space if self.optimality_gap == 0 else None

    @property
    def certificate(self) -> str:
        """What is proven of this cost, in one line: both gaps and the searched space."""
        return certificate_text(
            gap_in_space_text(self.optimality_gap) if self.space else NOT_PROVEN,
            self.gap_to_bound,
            ANY_MAPPING,
            self.space,
        )


@dataclass(frozen=True, slots=True)
class SegmentCost:
    """Einsums that share loops or lanes. pipeline_tiles: of a pipeline, 0 where branches run in turn;
    stage_cycles: of each stage, for one granule. energy_steady_pj: of one of many runs back to back, as
    initiation_interval_cycles (`steady_pj`).

    on_chip: (tensor, level) of what it makes, reads and never lets out; peak_bits: (level, most that one
    instance holds meanwhile), all that is alive included.
    """

    einsums: tuple[str, ...]
    energy_pj: float
    latency_cycles: float
    initiation_interval_cycles: float
    energy_steady_pj: float
    pipeline_tiles: int
    stage_cycles: tuple[float, ...]
    on_chip: tuple[tuple[str, str], ...]
    peak_bits: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Memory:
    """Machine words of main memory that a schedule with reuse moves, as a sum: listed_words +
    in_registers_words + not_fused_words + reread_words + capacity_words.

    listed: of its list of accesses, each operand read once, all of the level for what stays. small: results
    that the list leaves in registers; apart: handed over there, but not by a shared loop; again: operands
    read more than once by their einsum's nest, if nothing stayed; room: stays there, but not here, where
    nests work in a part of the level (below 0: what stays is not handed over or read again either). saved:
    moved less by one more word of the level; 0 where no linear program says so.
    """

    moved_words: float
    listed_words: float
    in_registers_words: float
    not_fused_words: float
    reread_words: float
    capacity_words: float
    saved_words: float


@dataclass(frozen=True, slots=True)
class Pruned:
    """What a search of segments left out of one: its schemes, those that may fit, those that were solved."""

    einsums: tuple[str, ...]
    schemes: int
    valid: int
    solved: int


@dataclass(frozen=True, slots=True)
class Solution:
    """A scheduled workload: einsums in turn, equal ones costed once and counted. segments, schedule: none
    where that is all there is to it.

    memory: where reuse was asked for. saved: share of the objective that the schedule saves over the best
    einsums in turn, None where these were not asked for. conversions: copies of tensors in other layouts,
    which are einsums of the schedule (`conversion.with_conversions`). space: schedules that optimality_gap is
    of; None: nothing was searched, or nothing but the bound is known.

    energy_pj, latency_cycles: of one run, from empty to empty, what leaks meanwhile included;
    initiation_interval_cycles, energy_steady_pj: of one of many, back to back. Of a pipeline the einsums'
    latencies are of each one alone, and their energies without leakage, which is the segment's.
    """

    einsums: tuple[EinsumCost, ...]
    energy_pj: float
    latency_cycles: float
    initiation_interval_cycles: float
    energy_steady_pj: float
    optimality_gap: float
    gap_to_bound: float
    certificate: str
    segments: tuple[SegmentCost, ...] = ()
    schedule: Schedule | None = None
    memory: Memory | None = None
    saved: float | None = None
    pruned: tuple[Pruned, ...] = ()
    conversions: tuple[Conversion, ...] = ()
    space: Space | None = None


def no_progress(_number: int, _efforts: Sequence[float], _name: str) -> None:
    """Library code says nothing."""


def certificate_text(
    what: str, gap_to_bound: float, bound: str, space: Mappings | Space | None = None
) -> str:
    """A certificate in the words that all answers use. what: what is proven; bound: in words what the
    answer is at most `gap_to_bound` above (e.g. any mapping).
    """
    above_it = f"at most {percent(gap_to_bound)} above {bound}" if gap_to_bound < inf else "no bound known"
    return f"{what}; {above_it}{certificate_words(space) if space else ''}"


def gap_in_space_text(gap: float, inside: bool = True) -> str:
    """What is proven of an answer against the searched space. inside: it is of that space; else variants of
    it may cost less.
    """
    if gap:
        return f"at most {percent(gap)} above the optimum of the searched space"
    return "optimal in the searched space" if inside else "no schedule of the searched space costs less"


def percent(share: float) -> str:
    """A share as a percentage: three digits below 1000 %, whole above."""
    return f"{100 * share:.3g} %" if share < 10 else f"{100 * share:,.0f} %"


def relative_gap(value: float, lower: float) -> float:
    """Optimality gap (value - lower) / lower of a value to its lower bound."""
    return max(value / lower - 1, 0.0) if lower > 0 else inf if value > 0 else 0.0


def lower_bound(problem: Problem) -> float:
    """Lower bound on the objective; 0 for an einsum within a schedule, for which no bound is known."""
    if problem.boundary != ALONE:
        return 0.0
    energy = bounds.energy_pj(problem.einsum, problem.arch)
    cycles = bounds.latency_cycles(problem.einsum, problem.arch)
    return objective_value(problem.objective, energy, cycles)


def objective_value(objective: str, energy_pj: float, latency_cycles: float) -> float:
    """The number that an objective ranks by."""
    return {"energy": energy_pj, "latency": latency_cycles, "edp": energy_pj * latency_cycles}[objective]


class Violated(RuntimeError):
    """A contradiction in the model, after which no result can be trusted. Its text names einsum, machine and
    mapping.
    """


@dataclass(frozen=True, slots=True)
class Problem:
    """What a mapper solves: one einsum on one machine. objective: energy, latency or edp; boundary: what
    stands around it in a schedule.
    """

    arch: Arch
    einsum: Einsum
    objective: str
    boundary: Boundary = ALONE


def einsum_cost(problem: Problem, mapping: Mapping) -> EinsumCost | Infeasible:
    """Cost of one well-formed mapping (`nest.faults` says what is not)."""
    e, arch = problem.einsum, problem.arch
    around = problem.boundary
    whole = boundary.whole_nest(around, mapping)
    if blocked := fanout_overflow(whole, e, arch):
        return blocked
    held = boundary.node_footprints(around, whole, e, arch)
    # of a schedule that room is asked for once (outermost.py)
    limits = arch if around == ALONE else arch.unbounded()
    return cost.overflow(held, e, limits, around.reserved_bits) or evaluate_fitting(
        problem, whole, boundary.count_rows(around, whole, e, arch), held
    )


def evaluate_fitting(
    problem: Problem, mapping: Mapping, rows: tuple[Count, ...], held: tuple[Footprint, ...]
) -> EinsumCost:
    """Cost of a mapping that fits and is counted already."""
    e, arch = problem.einsum, problem.arch
    counted = {(row.level, row.tensor, row.action) for row in rows}
    moved = {key: one for key, one in transfer.transfers(mapping, e, arch).items() if key in counted}
    nest, begun = boundary.nest_in_time(problem.boundary, mapping, arch)
    p = cost.price(nest, rows, e, transfer.slow_levels(arch, rows, e, moved), begun)
    extra = [cost.Part(*one) for one in transfer.parts(moved, arch)]
    extra += [
        cost.Part(way.network, way.tensor, way.action, way.bits, way.energy_pj)
        for way in boundary.network_traffic(problem.boundary, mapping, e, arch)
    ]
    if extra:
        p = replace(
            p, energy_pj=p.energy_pj + sum(part.energy_pj for part in extra), parts=(*p.parts, *extra)
        )
    gap = _gap(
        e.name,
        arch,
        objective_value(problem.objective, p.energy_pj, p.latency_cycles),
        lower_bound(problem),
        mapping,
    )
    key, number = canonical_key(e), key_of(problem, mapping, bool(moved))
    held_rows = tuple((f.level, f.tensor, f.elems) for f in held)
    return EinsumCost(
        name=e.name,
        key=key,
        count=1,
        mapping=mapping,
        mapping_key=number,
        counts=rows,
        footprint=held_rows,
        energy_pj=p.energy_pj,
        latency_cycles=p.latency_cycles,
        bottleneck=p.bottleneck,
        optimality_gap=gap,
        gap_to_bound=gap,
        price=p,
        layout_traffic=tuple(moved.values()),
        refilled=tuple((f.level, f.tensor) for f in held if f.moving),
    )


def evaluate_fitting_alone(problem: Problem, mapping: Mapping) -> EinsumCost:
    """Cost of a mapping that fits, of an einsum that nothing stands around."""
    return evaluate_fitting(
        problem,
        mapping,
        count(mapping, problem.einsum, problem.arch),
        footprints(mapping, problem.einsum, problem.arch),
    )


def _gap(name: str, arch: Arch, value: float, lower: float, mapping: Mapping) -> float:
    """How far a cost lies above its bound. Raises Violated where it lies below."""
    if lower > value * (1 + PRECISE):
        raise Violated(f"{name} on {arch.name}: lower bound {lower} above the cost {value} of\n{mapping}")
    return relative_gap(value, lower)


def key_of(problem: Problem, mapping: Mapping, layout_sensitive: bool = False) -> str:
    """What a mapping is called: equal keys, equal counts. What lanes share and how wide words are is part of
    its rows, and where layouts are felt (`layout_sensitive`) how levels lay words out.
    """
    e, arch = problem.einsum, problem.arch
    wires = wiring(arch)
    nets = [
        (f.name, f.dims, f.injected_at, f.multicast_from, f.place)
        for f in arch.fanouts
        if f.hop_pj or f.endpoint_pj
    ]
    marks = f"{problem.boundary.marks()}{f' {nets} {problem.boundary.owners}' if nets else ''}"
    laid = [
        (v, a.line_bits, a.row_bits, a.row_banks, a.granule_bits, a.rmw)
        for v, level in enumerate(arch.levels)
        if layout_sensitive and (a := level.access)
    ]
    marks += f" {laid}" if laid else ""
    return mapping_key(
        f"{canonical_key(e)} {arch.word_bits} {wires.dims} {sorted(wires.skips)} {wires.systolic}{marks}",
        mapping,
    )


def fanout_overflow(mapping: Mapping, e: Einsum, arch: Arch) -> Infeasible | None:
    """The fan-out dimension on which a mapping needs more PEs than there are, or None."""
    left = e.sizes()
    used: dict[str, int] = {}
    for node in mapping.nodes:
        if isinstance(node, Loop):
            if node.over:
                used[node.over] = used.get(node.over, 1) * -(-left[node.rank] // node.tile)
            left[node.rank] = node.tile
    for f in arch.fanouts:
        for name, size in f.dims:
            if used.get(name, 1) > size:
                return Infeasible(f"{f.name}.{name}", used[name], size, e.name, "PEs")
    return None


def sequential(
    costs: Sequence[EinsumCost | Infeasible], groups: Sequence[Unique], problem: Problem, by: str
) -> Solution | Infeasible:
    """The unfused solution: energies and latencies of the einsums add up. by: the method that found the
    mappings, for what is not proven; GIVEN: the user gave them.
    """
    solved: list[EinsumCost] = []
    floors = bounds.each((group.einsum for group in groups), problem.arch)
    for one, group, least in zip(costs, groups, floors, strict=True):
        if isinstance(one, Infeasible):
            return one
        value = objective_value(problem.objective, one.energy_pj, one.latency_cycles)
        gap = _gap(one.name, problem.arch, value, objective_value(problem.objective, *least), one.mapping)
        solved.append(
            replace(
                one,
                count=group.occurrences,
                optimality_gap=min(one.optimality_gap, gap) if one.space else gap,
                gap_to_bound=gap,
            )
        )
    energy = sum(c.count * c.energy_pj for c in solved)
    cycles = sum(c.count * c.latency_cycles for c in solved)
    # others stand between equal einsums of a network
    steady = cycles if len(solved) > 1 else sum(c.count * c.price.initiation_interval_cycles for c in solved)
    value = objective_value(problem.objective, energy, cycles)
    floor = objective_value(
        problem.objective,
        *(sum(c.count * least[i] for c, least in zip(solved, floors, strict=True)) for i in range(2)),
    )
    to_bound = relative_gap(value, floor)
    gap = min(relative_gap(value, _minimum_in(solved, problem.objective)), to_bound)
    gap, alone = gap if gap > PRECISE else 0.0, sum(c.count for c in solved) == 1
    space = unfused([c.space for c in solved], alone)
    certificate = certificate_text(
        _sequential_proof(solved, gap, by), to_bound, ANY_MAPPING if alone else UNFUSED, space
    )
    again = steady_pj(energy, cycles, steady, problem.arch)
    return Solution(tuple(solved), energy, cycles, steady, again, gap, to_bound, certificate, space=space)


def steady_pj(energy: float, latency: float, steady: float, arch: Arch) -> float:
    """Energy in pJ of one of many runs back to back. energy, latency: of a run by itself; steady: the
    initiation interval in cycles.

    It moves and computes the same; what leaks does so for the steady cycles.
    """
    return energy - arch.leak_mw() * (latency - steady) / arch.clock_ghz


def unfused(spaces: Sequence[Mappings | None], alone: bool) -> Space | None:
    """What was searched of einsums layer by layer, in these mappings each; None: nothing is known of any.
    alone: it is one einsum.
    """
    own = {encoded(space): space for space in spaces if space}
    return Space(tuple(own[key] for key in sorted(own)), alone=alone) if own else None


def _minimum_in(solved: Sequence[EinsumCost], objective: str) -> float:
    """No choice of mappings in the spaces of the einsums costs less in all.

    Energies and latencies add up. A product of sums is at least the square of the sum of roots: (sum E)(sum
    L) >= (sum sqrt(E L))^2 (Cauchy and Schwarz).
    """
    least = [
        (c.count, objective_value(objective, c.energy_pj, c.latency_cycles) / (1 + c.optimality_gap))
        for c in solved
    ]
    return (
        sum(n * one for n, one in least)
        if objective != "edp"
        else float(sum(n * one**0.5 for n, one in least) ** 2)
    )


def _sequential_proof(solved: Sequence[EinsumCost], optimality_gap: float, by: str) -> str:
    """Of einsums of which nothing is known the bound counts."""
    if open_ := sum(not c.space for c in solved):
        others = f"{open_} of {len(solved)} einsums {NOT_PROVEN}, the others {gap_in_space_text(0.0)}"
        return f"{NOT_PROVEN} ({by})" if open_ == len(solved) else others
    return gap_in_space_text(optimality_gap)
