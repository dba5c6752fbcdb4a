"""The evaluator of whole schedules: evaluate(arch, workload, schedule) -> Solution (docs/model.md,
Schedules).

Segments run one after the other, and so do the branches of a segment; their energies and latencies add up. In
a pipeline of B pipeline tiles, in which stage s takes g_s cycles for one:

    latency = max(sum of g_s + (B - 1) * largest g_s, busy cycles of what the stages share)
    steady  = max(B * largest g_s, the same)              runs back to back
    shared by stages: DRAM, levels outside of their PEs, the vector unit

Leakage is charged over the latency, for any schedule. If the whole schedule is one pipeline, runs can follow
back to back; energy and cycles of one of them are `Solution.energy_steady_pj` and
`Solution.initiation_interval_cycles`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from dse.mapping.nest import Infeasible, Store
from dse.mapping.schedule import Schedule, Segment, rename
from dse.sim.counts.actions import op_pj
from dse.sim.counts.counts import Count, Footprint, Violated
from dse.sim.counts.latency import Number, largest
from dse.sim.einsum import boundary, bounds, cost
from dse.sim.einsum.boundary import ALONE
from dse.sim.einsum.evaluate import (
    GIVEN_MAPPING,
    GIVEN_SCHEDULE,
    EinsumCost,
    Problem,
    SegmentCost,
    Solution,
    certificate_text,
    einsum_cost,
    objective_value,
    relative_gap,
    sequential,
    steady_pj,
)
from dse.sim.schedule import fills_ahead, outermost, placed
from dse.sim.schedule.faults import faults
from dse.sim.schedule.placed import Graph, Placed
from hw.arch import Arch
from workloads.einsum import canonical_key
from workloads.graph import Unique, Workload, base_tensor, counts

Bits = dict[str, int]  # level -> bits
UNTIMED = (
    "cycles of stages, and of einsums with tensors retained in slices over PEs or retained and passed on, "
    "are busy times: fill stalls are not counted"
)


def evaluate(
    arch: Arch,
    workload: Workload,
    schedule: Schedule,
    objective: str = "energy",
    reuse: bool = False,
    part: bool = False,
) -> Solution | Infeasible:
    """Returns the cost of a workload under a schedule. Equal einsums that run alone are costed once. Raises
    ValueError with one line per fault of the schedule.

    reuse: the unfused schedule is one of many, so its gap is to the bound of any schedule, not to the unfused
        bound
    part: the schedule is a part of a longer one
    """
    if lines := faults(arch, workload, schedule):
        raise ValueError("\n".join(lines))
    if overflow := outermost.overflow_of_schedule(arch, workload, schedule):
        return overflow
    segments, peaks = with_reservations(arch, workload, schedule, part)
    # by what identifies equal einsums: the first of them, its cost, the names and the occurrences of all
    costs: dict[tuple[object, ...], tuple[Placed, EinsumCost | Infeasible, list[str], int]] = {}
    times_of = dict(zip((e.name for e in workload.einsums), counts(workload), strict=True))
    for i, segment in enumerate(segments):
        for one in segment:
            # with fills ahead, equal einsums may differ in hidden cycles
            runs_alone = one.boundary == ALONE and one.arch is arch and not schedule.fills_ahead
            key = (
                (canonical_key(one.einsum), str(rename(one.nest, one.einsum)))
                if runs_alone
                else (i, one.einsum.name)
            )
            if key not in costs:
                costs[key] = (
                    one,
                    einsum_cost(Problem(one.arch, one.einsum, objective, one.boundary), one.nest),
                    [],
                    0,
                )
            first, found, names, occurrences = costs[key]
            costs[key] = (first, found, [*names, one.einsum.name], occurrences + times_of[one.einsum.name])
    if schedule.is_unfused():
        groups = [
            Unique(str(key[0]), one.einsum, tuple(names), occurrences)
            for key, (one, _, names, occurrences) in costs.items()
        ]
        unfused = sequential(
            [found for _, found, _, _ in costs.values()],
            groups,
            Problem(arch, groups[0].einsum, objective),
            GIVEN_MAPPING,
        )
        return (
            among_schedules(unfused, arch, workload, objective)
            if reuse and isinstance(unfused, Solution)
            else unfused
        )
    if infeasible := next(
        (found for _, found, _, _ in costs.values() if isinstance(found, Infeasible)), None
    ):
        return infeasible
    priced = {
        name: replace(found, count=occurrences)
        for _, found, names, occurrences in costs.values()
        if isinstance(found, EinsumCost)
        for name in names
    }
    return _solution(arch, workload, schedule, segments, peaks, priced, times_of, objective, part)


def among_schedules(sequential: Solution, arch: Arch, workload: Workload, objective: str) -> Solution:
    """Returns the unfused solution with its gap to the lower bound of any schedule."""
    to_bound = relative_gap(
        objective_value(objective, sequential.energy_pj, sequential.latency_cycles),
        objective_value(objective, *schedule_lower_bound(arch, workload)),
    )
    return replace(
        sequential,
        optimality_gap=to_bound,
        gap_to_bound=to_bound,
        certificate=certificate_text(GIVEN_SCHEDULE, to_bound, any_schedule(workload)),
        space=None,
    )


def any_schedule(workload: Workload, pinned: bool = False) -> str:
    """Returns what `schedule_lower_bound` is a bound of, in words. pinned: weights are on chip before the
    run.
    """
    return "any schedule" if pinned or not workload.weights else "any schedule that loads its weights"


def _solution(
    arch: Arch,
    workload: Workload,
    schedule: Schedule,
    segments: Sequence[Sequence[Placed]],
    peaks: Sequence[Bits],
    priced: dict[str, EinsumCost],
    times: dict[str, int],
    objective: str,
    part: bool,
) -> Solution:
    """Returns the sum of all segments, with gap and certificate.

    segments: einsums with their boundaries, by segment
    peaks: per segment, peak occupancy in bits by level
    priced: cost of every einsum by name
    times: occurrences of every einsum by name
    """
    g, back_to_back = placed.graph(workload, schedule), placed.runs_back_to_back(schedule, part)
    hidden = fills_ahead.in_sequence(segments, peaks, priced, times, arch) if schedule.fills_ahead else {}
    if hidden:
        priced = {name: fills_ahead.with_cycles(c, hidden.get(name, 0.0), arch) for name, c in priced.items()}
    rows, einsums = [], dict(priced)
    for segment, placed_einsums, peak in zip(schedule.segments, segments, peaks, strict=True):
        segment_costs = [priced[one.einsum.name] for one in placed_einsums]
        if segment.pipelined:
            segment_costs = [_without_leakage(one) for one in segment_costs]
            einsums |= {
                one.einsum.name: replace(c, count=1)
                for one, c in zip(placed_einsums, segment_costs, strict=True)
            }
        rows.append(_segment(segment, placed_einsums, segment_costs, arch, g, times, peak))
    energy, latency = sum(row.energy_pj for row in rows), sum(row.latency_cycles for row in rows)
    value = objective_value(objective, energy, latency)
    lower = schedule_lower_bound(arch, workload, schedule.weights == "pinned")
    if lower[0] > energy * (1 + 1e-9) or lower[1] > latency * (1 + 1e-9):
        raise Violated(
            f"{workload.name} on {arch.name}: lower bound {lower} above the cost {energy, latency} "
            f"of\n{schedule}"
        )
    to_bound = relative_gap(value, objective_value(objective, *lower))
    certificate = (
        f"weights pinned before the run{_loaded(arch, workload, schedule)}, never loaded; "
        if schedule.weights == "pinned"
        else ""
    )
    if arch.overlap == "buffered" and any(
        not one.boundary.has_nest_latency(one.arch) for placed_einsums in segments for one in placed_einsums
    ):
        certificate += f"{UNTIMED}; "
    certificate += (
        f"fills ahead: {sum(hidden.values()):.4g} cycles of ramp-up overlap the einsum before; "
        if hidden
        else ""
    )
    distinct = {(c.key, c.mapping_key, c.name): c for c in einsums.values()}
    steady, steady_energy = (
        (rows[0].initiation_interval_cycles, rows[0].energy_steady_pj) if back_to_back else (latency, energy)
    )
    return Solution(
        tuple(distinct.values()),
        energy,
        latency,
        steady,
        steady_energy,
        to_bound,
        to_bound,
        certificate
        + certificate_text(GIVEN_SCHEDULE, to_bound, any_schedule(workload, schedule.weights == "pinned")),
        tuple(rows),
        schedule,
    )


def _loaded(arch: Arch, workload: Workload, schedule: Schedule) -> str:
    """Returns the names of weights that nests load although weights are pinned, in words."""
    nodes = [
        node
        for segment in schedule.segments
        for node in (*segment.nodes, *(n for b in segment.branches for n in b.mapping.nodes))
    ]
    names = sorted(
        {node.tensor for node in nodes if isinstance(node, Store) and node.level == arch.levels[0].name}
        & workload.weights
    )
    return f" but for {', '.join(names)}" if names else ""


def _without_leakage(one: EinsumCost) -> EinsumCost:
    """Returns the cost of a stage of a pipeline without leakage, which the segment has."""
    parts = tuple(part for part in one.price.parts if part.action != "leak")
    energy = sum(part.energy_pj for part in parts)
    return replace(one, energy_pj=energy, price=replace(one.price, energy_pj=energy, parts=parts))


def _segment(
    segment: Segment,
    einsums: Sequence[Placed],
    costs: Sequence[EinsumCost],
    arch: Arch,
    g: Graph,
    times: dict[str, int],
    peak: Bits,
) -> SegmentCost:
    """Returns the cost of one segment.

    einsums: its einsums
    costs: their costs
    peak: peak occupancy in bits by level
    """
    names = tuple(one.einsum.name for one in einsums)
    chip_tensors = tuple(
        (t, node.level)
        for t, node in placed.homes(segment).items()
        if g.makers.get(t) in names
        and node.level != arch.levels[0].name
        and not any(
            isinstance(n, Store) and n.tensor == t and n.level == arch.levels[0].name for n in segment.nodes
        )
    )
    peak_bits = tuple(sorted(peak.items()))
    if not segment.pipelined:
        energy, cycles = (
            sum(times[name] * value for name, value in zip(names, values, strict=True))
            for values in ([c.energy_pj for c in costs], [c.latency_cycles for c in costs])
        )
        return SegmentCost(names, energy, cycles, cycles, energy, 0, (), chip_tensors, peak_bits)
    tile_count = placed.pipeline_tiles(segment, g)
    stages = [cycles / tile_count for cycles in stage_cycles(einsums, costs, segment, arch)]
    shared = shared_cycles(einsums, costs, segment, arch)
    steady, latency = max(tile_count * max(stages), shared), max(filled_cycles(stages, tile_count), shared)
    energy = sum(c.energy_pj for c in costs) + arch.leak_mw() * latency / arch.clock_ghz
    return SegmentCost(
        names,
        energy,
        latency,
        steady,
        steady_pj(energy, latency, steady, arch),
        tile_count,
        tuple(stages),
        chip_tensors,
        peak_bits,
    )


def filled_cycles(stages: Sequence[float], pipeline_tiles: int) -> float:
    """Returns the cycles of a pipeline from empty to empty.

    stages: cycles of each stage for one pipeline tile, one stage after the other in the order of the text
    """
    return sum(stages) + (pipeline_tiles - 1) * max(stages)


def stage_cycles(
    einsums: Sequence[Placed], costs: Sequence[EinsumCost], segment: Segment, arch: Arch
) -> list[float]:
    """Returns the cycles of each stage for all pipeline tiles, by its own PEs alone: compute, and the ports
    of its levels, with the reads of other stages.
    """
    f = placed.stage_array(segment, arch)
    assert f is not None
    inner = {level.name for level in arch.levels[f.outside :]}
    remote_rows: dict[str, list[Count]] = {}
    for one in einsums:
        for tensor, row in boundary.remote_reads(
            one.boundary, boundary.whole_nest(one.boundary, one.nest), one.einsum, one.arch
        ).items():
            remote_rows.setdefault(tensor, []).append(row)
    found = []
    for one, c in zip(einsums, costs, strict=True):
        rows = [
            row for row in c.counts if row.level in inner or row.action in ("compute", "merge", "fold")
        ] + remote_rows.get(one.einsum.output.tensor, [])
        found.append(cost.price(rows, one.einsum, one.arch).latency_cycles)
    return found


def shared_cycles(
    einsums: Sequence[Placed], costs: Sequence[EinsumCost], segment: Segment, arch: Arch
) -> float:
    """Returns the busy cycles of what all stages share: the levels outside of their PEs, and the vector
    unit.
    """
    f = placed.stage_array(segment, arch)
    assert f is not None
    busy = [sum(dict(c.price.busy_cycles)[level.name] for c in costs) for level in arch.levels[: f.outside]]
    vector_cycles = sum(dict(c.price.busy_cycles).get("VECTOR", 0.0) for c in costs)
    return float(max([*busy, vector_cycles]))


def with_reservations(
    arch: Arch, workload: Workload, schedule: Schedule, part: bool = False
) -> tuple[list[list[Placed]], list[Bits]]:
    """Returns the placed einsums, by segment, with the capacity that others take while they run
    (`Boundary.reserved_bits`), and per segment the peak occupancy of one instance of each level in bits.
    """
    segments = placed.placed_segments(arch, workload, schedule, part)
    if schedule.is_unfused():
        return segments, []
    found, peaks = [], []
    for segment, einsums, others_bits in zip(
        schedule.segments, segments, _reserved_bits(arch, workload, schedule, segments), strict=True
    ):
        needs, reserved = required_bits(segment, einsums, arch), []
        for one, need in zip(einsums, needs, strict=True):
            own_bits = _bits(one, _footprints(one))
            reserved_by_level = {
                level.name: need.get(level.name, 0)
                + others_bits.get(level.name, 0)
                - own_bits.get(level.name, 0)
                for level in arch.levels
            }
            reserved.append(tuple((level, bits) for level, bits in reserved_by_level.items() if bits))
        found.append(
            [
                replace(one, boundary=replace(one.boundary, reserved_bits=bits)) if bits else one
                for one, bits in zip(einsums, reserved, strict=True)
            ]
        )
        peaks.append(
            {
                level.name: bits
                for level in arch.levels[1:]
                if (bits := max(need.get(level.name, 0) for need in needs) + others_bits.get(level.name, 0))
            }
        )
    return found, peaks


def _footprints(one: Placed) -> tuple[Footprint, ...]:
    """Returns the footprints of an einsum's whole nest."""
    return boundary.node_footprints(
        one.boundary, boundary.whole_nest(one.boundary, one.nest), one.einsum, one.arch
    )


def _node_bits(row: Footprint, one: Placed) -> int:
    """Returns the bits that one node of an einsum takes."""
    return cost.node_bits(
        row, next(level for level in one.arch.levels if level.name == row.level), one.einsum, one.arch
    )


def _bits(one: Placed, rows: Iterable[Footprint]) -> Bits:
    """Returns the bits that nodes of an einsum take together, by level."""
    bits: Bits = {}
    for row in rows:
        bits[row.level] = bits.get(row.level, 0) + _node_bits(row, one)
    return bits


def required_bits(segment: Segment, einsums: Sequence[Placed], arch: Arch) -> list[Bits]:
    """Returns, per branch, the bits of one instance of every level while the branch runs: shared nodes that
    are alive then, its own nodes, and pinned weights of other branches. In a pipeline, levels that stages
    share hold the nodes of all stages.
    """
    f = placed.stage_array(segment, arch)
    outside = {level.name for level in arch.levels[: f.outside]} if f else set()
    nodes = {(node.level, node.tensor) for node in segment.nodes if isinstance(node, Store)}
    shared: dict[tuple[str, str], int] = {}
    private: list[Bits] = []
    for one in einsums:
        rows = _footprints(one)
        shared_rows = [
            row for row in rows if (row.level, row.tensor) in nodes and (not f or row.level in outside)
        ]
        for row in shared_rows:
            shared[row.level, row.tensor] = max(shared.get((row.level, row.tensor), 0), _node_bits(row, one))
        private.append(_bits(one, (row for row in rows if row not in shared_rows)))
    pinned = [_pinned_bits(one, nodes) for one in einsums]
    alive_in = {} if f else _lifetimes(segment, einsums)
    found = []
    for j, bits in enumerate(private):
        need = dict(bits)
        for other in () if f else (*pinned[:j], *pinned[j + 1 :]):
            for level, level_bits in other.items():
                need[level] = need.get(level, 0) + level_bits
        for level in outside:
            need[level] = sum(other.get(level, 0) for other in private)
        for (level, tensor), level_bits in shared.items():
            if j in alive_in.get((level, tensor), (j,)):
                need[level] = need.get(level, 0) + level_bits
        found.append(need)
    return found


def _lifetimes(segment: Segment, einsums: Sequence[Placed]) -> dict[tuple[str, str], range]:
    """Returns the branches during which the tile of a shared node (level, tensor) is alive: from the first
    branch that has the tensor to the last. Listed are nodes that every trip of the shared loops fills anew.
    All others are alive all the time: nodes above a shared loop that does not move them, and pinned weights.
    """
    names = {node.tensor for node in segment.nodes if isinstance(node, Store)}
    users: dict[str, list[int]] = {}
    for j, one in enumerate(einsums):
        for node in one.boundary.outer:
            if isinstance(node, Store):
                users.setdefault(base_tensor(node.tensor, names), []).append(j)
    found: dict[tuple[str, str], range] = {}
    for j, one in enumerate(einsums):
        outermost = {n.tensor: n for n in reversed(one.boundary.outer) if isinstance(n, Store)}
        for node in boundary.filled_each_trip(one.boundary, one.einsum, one.arch):
            user_indices = users[base_tensor(node.tensor, names)]
            if user_indices[0] == j and not (
                node.tensor in one.boundary.pinned and node == outermost[node.tensor]
            ):
                found[node.level, node.tensor] = range(j, user_indices[-1] + 1)
    return found


def _pinned_bits(one: Placed, outer_nodes: Collection[tuple[str, str]] = ()) -> Bits:
    """Returns the bits of an einsum's pinned weights, except those at the given shared nodes."""
    outermost = {row.tensor: row for row in reversed(_footprints(one)) if row.tensor in one.boundary.pinned}
    return _bits(one, (row for row in outermost.values() if (row.level, row.tensor) not in outer_nodes))


def _reserved_bits(
    arch: Arch, workload: Workload, schedule: Schedule, segments: Sequence[Sequence[Placed]]
) -> list[Bits]:
    """Returns, per segment, the bits that are occupied beside it: retained tensors that are alive, and pinned
    weights of other segments.
    """
    g = placed.graph(workload, schedule)
    found: list[Bits] = [{} for _ in segments]
    alive_of = [(one, placed.live_segments(one.tensor, g)) for one in schedule.retained]
    for i, segment_bits in enumerate(found):
        alive = replace(schedule, retained=tuple(one for one, alive_in in alive_of if i in alive_in))
        for level, level_bits in placed.retained_bits(i, alive, g, arch).items():
            segment_bits[level] = segment_bits.get(level, 0) + level_bits
    for i, einsums in enumerate(segments):
        pinned = [_pinned_bits(one) for one in einsums]
        for level in {name for bits in pinned for name in bits}:
            combine = max if schedule.segments[i].pipelined else sum
            for j, others in enumerate(found):
                if j != i:
                    others[level] = others.get(level, 0) + combine(bits.get(level, 0) for bits in pinned)
    return found


def schedule_lower_bound(arch: Arch, workload: Workload, pinned: bool = False) -> tuple[Number, Number]:
    """Returns energy in pJ and latency in cycles that no schedule of the workload beats.

    Energy is the sum of operations and of compulsory accesses to the outermost level: inputs that no einsum
    makes are read once, results that no einsum reads are written once.
    pinned: weights are on chip before the run and need not be read
    """
    made = {e.output.tensor for e in workload.einsums}
    read = {base_tensor(p.tensor, made) for e in workload.einsums for p in e.inputs}
    outer, bits, pj = arch.levels[0], {"read": 0.0, "write": 0.0}, 0.0
    input_bits: dict[str, float] = {}
    for e in workload.einsums:
        for p in e.inputs:
            if base_tensor(p.tensor, made) not in made and not (pinned and p.tensor in workload.weights):
                input_bits[p.tensor] = max(
                    input_bits.get(p.tensor, 0.0),
                    bounds.words(p, e, arch.word_bits) * (p.bits or arch.word_bits),
                )
        if e.output.tensor not in read:
            bits["write"] += bounds.words(e.output, e, arch.word_bits) * (e.output.bits or arch.word_bits)
    bits["read"] = sum(input_bits.values())
    mac_cycles, vector_cycles, mac_units = 0.0, 0.0, arch.instances(len(arch.levels))
    for e, n in zip(workload.einsums, counts(workload), strict=True):
        ops = n * bounds.needs(e, arch.word_bits).computed
        pj += ops * op_pj(e, arch)
        if e.kind == "mac" or arch.compute.alu_per_cycle is None:
            mac_cycles += ops / mac_units / arch.compute.ops_per_cycle
        else:
            vector_cycles += ops / arch.compute.alu_per_cycle
    combine = max if outer.ports == "separate" else sum
    rate = outer.bandwidth if isinstance(outer.ports, str) else outer.rates()[1]
    port_cycles = 0.0 if outer.bypass else combine(bits.values()) / outer.width_bits / rate
    cycles = largest(mac_cycles, vector_cycles, port_cycles)
    pj += (
        0.0
        if outer.bypass
        else (bits["read"] * outer.read_pj + bits["write"] * outer.write_pj) / outer.width_bits
    )
    return pj + arch.leak_mw() * cycles / arch.clock_ghz, cycles


@dataclass(frozen=True, slots=True)
class OnChip:
    """A tensor, or a share of it, that stands on chip between einsums."""

    tensor: str
    level: str
    share: str = "all"  # "all", or the retained share as text


def on_chip(solution: Solution) -> list[OnChip]:
    """Returns the tensors that are fused or pipelined on chip, then those retained between segments."""
    found = [OnChip(tensor, level) for row in solution.segments for tensor, level in row.on_chip]
    return found + [
        OnChip(one.tensor, one.level, one.shares())
        for one in (solution.schedule.retained if solution.schedule else ())
    ]
