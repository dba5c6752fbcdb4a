"""Energy and latency of counted actions on one machine (docs/model.md, Energy and Time)."""

from __future__ import annotations

from collections.abc import Mapping as Dict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dse.mapping.nest import Infeasible, Mapping, bits_at
from dse.sim.counts.actions import (
    NO_DELAYS,
    UNPRICED,
    Busy,
    Delay,
    Key,
    accesses_per_elem,
    action_pj,
    busy,
    compute_component,
    elapsed_cycles,
)
from dse.sim.counts.counts import Count, Footprint, added_up, busiest, counted, instance_counts, steps
from dse.sim.counts.latency import Number, PortTimes, any_nonzero, largest
from dse.sim.counts.terms import NestSums
from dse.sim.counts.times import port_times
from hw.arch import COST_ROLES, Arch, Level, slots
from workloads.einsum import Einsum


@dataclass(frozen=True, slots=True)
class Part:
    """One row of the energy sum."""

    level: str
    tensor: str  # "-" for compute and leakage
    action: str
    actions: Number  # accesses of the level's width; operations; cycles of leakage
    energy_pj: Number


@dataclass(frozen=True, slots=True)
class Price:
    """Energy and latency of one einsum, with the parts that they are summed from.

    On a machine of `batch_arch` each number is an array with one entry per machine; `bottleneck` is then an
    array of names.
    """

    energy_pj: Number
    latency_cycles: Number
    bottleneck: Any  # the component with most busy cycles
    parts: tuple[Part, ...]
    # per component, compute last; MAC includes the ramps of systolic arrays
    busy_cycles: tuple[tuple[str, Number], ...]
    initiation_interval_cycles: Number  # of one of many equal einsums back to back
    # port times per level, outermost first; empty where the latency is the largest busy time
    times: tuple[PortTimes, ...] = ()


def batch_arch(arches: Sequence[Arch]) -> Arch:
    """Returns one machine whose prices, rates, leakage and clock are arrays, one number per machine."""
    cost_slots = slots(arches[0], *COST_ROLES)
    columns = zip(*(arch.values(cost_slots) for arch in arches), strict=True)
    return arches[0].with_values(
        cost_slots, [None if column[0] is None else np.array(column) for column in columns]
    )


def price(
    rows: Sequence[Count],
    e: Einsum,
    arch: Arch,
    timed: NestSums | None = None,
    restart_at: int = 0,
    moves_more: bool = False,
    before: Sequence[Count] = (),
    in_part: Sequence[tuple[float, NestSums, int]] = (),
    delays: Dict[Key, Delay] = NO_DELAYS,
) -> Price:
    """Returns energy and latency of counted actions: energy = actions * pJ + leakage.

    The latency is the largest busy time of a component; with `overlap: buffered`, latency.py adds stalls.
    timed: sums of the nest whose stalls count; None: none do
    restart_at: levels start empty in every iteration of the loops above this position; they are shared with
        other einsums, which run in between
    moves_more: rows have transfers that `timed` has not (`Counted.moves_more`)
    before: transfers of levels while the nest does not run; their time is added to the latency
    in_part: `Counted.in_part`, instead of `timed`
    delays: by (level, tensor, action) of rows, what layouts add
    """
    usage, times = ports(rows, e, arch, timed, restart_at, delays=delays)
    unit = compute_component(e, arch)
    components = [*zip((level.name for level in arch.levels), usage.levels, strict=True), (unit, usage.steps)]
    weighted = [(1.0, times)]
    if in_part and arch.overlap == "buffered":
        weighted = [
            (weight, port_times(nest, arch, start, True, delays)[0]) for weight, nest, start in in_part
        ]
    cycles, steady = (
        sum(weight * elapsed_cycles(usage, own_times, steady=is_steady) for weight, own_times in weighted)
        for is_steady in (False, True)
    )
    if moves_more:
        cycles, steady = (largest(one, elapsed_cycles(usage, ())) for one in (cycles, steady))
    if before:
        alone = ports(before, e, arch)[0].levels
        cycles, steady = cycles + sum(alone), steady + sum(alone)
        components = [
            (name, busy_cycles + more)
            for (name, busy_cycles), more in zip(components, (*alone, 0.0), strict=True)
        ]
    level_of = {level.name: level for level in arch.levels}

    def accesses(row: Count) -> float:
        level = level_of.get(row.level)
        return accesses_per_elem(level, bits_at(level, row.tensor, e, arch)) if level else 1

    parts = [
        Part(
            unit if row.level == "MAC" else row.level,
            row.tensor,
            row.action,
            row.elems * accesses(row),
            row.elems * action_pj(row.key, e, arch),
        )
        for row in added_up(rows, before)
        if row.action not in UNPRICED
    ]
    leak = arch.leak_mw() * cycles / arch.clock_ghz
    if any_nonzero(leak):
        parts.append(Part("-", "-", "leak", cycles, leak))
    with_ramp = (*components[:-1], (unit, usage.steps + usage.ramp))
    return Price(
        sum(part.energy_pj for part in parts),
        cycles,
        _bottleneck(components),
        tuple(parts),
        with_ramp,
        steady,
        tuple(times),
    )


def price_mapping(mapping: Mapping, e: Einsum, arch: Arch) -> Price:
    """Returns energy and latency of a mapping of an einsum that runs alone."""
    c = counted(mapping, e, arch)
    return price(c.rows, e, arch, c.timed)


def _bottleneck(components: Sequence[tuple[str, Number]]) -> Any:
    """Returns the name of the first component with most busy cycles; for arrays, one name per machine."""
    if not any(isinstance(cycles, np.ndarray) for _, cycles in components):
        return max(components, key=lambda item: item[1])[0]
    return np.array([name for name, _ in components])[
        np.argmax(np.stack(np.broadcast_arrays(*(cycles for _, cycles in components))), axis=0)
    ]


def ports(
    rows: Sequence[Count],
    e: Einsum,
    arch: Arch,
    timed: NestSums | None = None,
    restart_at: int = 0,
    wants_interval: bool = True,
    delays: Dict[Key, Delay] = NO_DELAYS,
) -> tuple[Busy, list[PortTimes]]:
    """Returns busy cycles of all components and, where fills may stall (`overlap: buffered`), port times per
    level of the nest `timed`. Rates of the machine may be arrays, one number per machine.

    wants_interval: False leaves out what only the initiation interval needs
    delays: by (level, tensor, action) of rows, what layouts add
    """
    usage = busy([(row.key, row.elems, [row.busiest_elems]) for row in rows], e, arch, delays)
    return usage, port_times(timed, arch, restart_at, wants_interval, delays)[
        0
    ] if timed and arch.overlap == "buffered" else []


def cycles_of(timed: NestSums, arch: Arch) -> Number:
    """Returns the latency that `price` gives of a nest alone, without the energy.

    With `overlap: buffered`, port times contain all transfers, so only compute steps and ramps are counted.
    """
    s = timed.formulas
    rows = steps(timed) if arch.overlap == "buffered" else busiest(instance_counts(timed), s.e, arch)
    return elapsed_cycles(*ports(rows, s.e, arch, timed, wants_interval=False))


def node_bits(f: Footprint, level: Level, e: Einsum, arch: Arch) -> int:
    """Returns the bits that one storage node takes of one instance of its level, twice the tile if it is
    double-buffered.
    """
    return int(f.elems * bits_at(level, f.tensor, e, arch)) * (
        2 if level.double_buffer and f.is_refilled else 1
    )


def occupied_bits(footprints: Sequence[Footprint], level: Level, e: Einsum, arch: Arch) -> int:
    """Returns the bits that all storage nodes take of one instance of a level."""
    return sum(node_bits(f, level, e, arch) for f in footprints if f.level == level.name)


def overflow(
    footprints: Sequence[Footprint], e: Einsum, arch: Arch, reserved_bits: Sequence[tuple[str, int]] = ()
) -> Infeasible | None:
    """Returns the outermost level whose tiles do not fit, or None.

    reserved_bits: (level, bits) that other einsums occupy at the same time
    """
    others = dict(reserved_bits)
    for level in arch.levels:
        need = occupied_bits(footprints, level, e, arch) + others.get(level.name, 0)
        if level.capacity_bits is not None and need > level.capacity_bits:
            return Infeasible(level.name, -(-need // 8), level.capacity_bits // 8, e.name)
    return None
