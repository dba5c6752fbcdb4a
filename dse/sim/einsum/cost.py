"""Time and energy of counted actions on one machine (docs/model.md, Energy and Time)."""

from __future__ import annotations

from collections.abc import Mapping as Dict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dse.mapping.nest import Infeasible, Mapping
from dse.sim.counts.counts import Count, Footprint, count, reading, steps
from dse.sim.counts.latency import Number, PortTimes, any_nonzero, largest, latency
from dse.sim.counts.parts import Busy, action_pj, bits_of, busy, per_elem
from dse.sim.counts.times import port_times
from hw.arch import COSTS, Arch, Level, slots
from workloads.einsum import Einsum


@dataclass(frozen=True, slots=True)
class Part:
    """One row of the energy sum: tensor "-" for compute and leakage; energy in pJ, actions of the level's
    width.
    """

    level: str
    tensor: str
    action: str
    actions: Number
    energy_pj: Number


@dataclass(frozen=True, slots=True)
class Price:
    """Cost of one einsum: totals are sums of parts; busy_cycles per component, a ramp of systolic arrays in
    MAC; bottleneck attains the largest.

    initiation_interval_cycles: of one of many equal einsums in turn. times: per level, outermost first; empty
    where the latency is the largest busy time. On a machine whose rates and prices are arrays, one number per
    machine (`batch_arch`), these are arrays too, of bottleneck one of names.
    """

    energy_pj: Number
    latency_cycles: Number
    bottleneck: Any
    parts: tuple[Part, ...]
    busy_cycles: tuple[tuple[str, Number], ...]
    initiation_interval_cycles: Number
    times: tuple[PortTimes, ...] = ()


def batch_arch(arches: Sequence[Arch]) -> Arch:
    """One machine whose prices, rates, leakage and clock are arrays, one number per machine."""
    at = slots(arches[0], *COSTS)
    each = zip(*(arch.values(at) for arch in arches), strict=True)
    return arches[0].with_values(at, [None if own[0] is None else np.array(own) for own in each])


def price(mapping: Mapping, rows: Sequence[Count], e: Einsum, arch: Arch, begun: int = 0) -> Price:
    """Energy and latency of a mapping's counted actions: energy = actions * pJ + leakage.

    Latency where overlap is free, and of a schedule that is no nest (without nodes): the largest busy time of
    a component. Else latency.py says what is waited for. begun: the loops above this position are shared with
    other einsums, whose work stands between two iterations.
    """
    keys = [(row.level, row.tensor, row.action) for row in rows]
    own, times = ports(mapping, rows, e, arch, begun)
    components = [*zip((level.name for level in arch.levels), own.levels, strict=True), ("MAC", own.steps)]
    cycles, steady = (elapsed_cycles(own, times, steady=often) for often in (False, True))
    bits, widths = bits_of(e, arch), {level.name: level for level in arch.levels}
    parts = [
        Part(
            *key,
            row.elems * (per_elem(widths[row.level], bits[row.tensor]) if row.level in widths else 1),
            row.elems * action_pj(key, e, arch),
        )
        for key, row in zip(keys, rows, strict=True)
        if row.action != "fold"
    ]
    leak = arch.leak_mw() * cycles / arch.clock_ghz
    if any_nonzero(leak):
        parts.append(Part("-", "-", "leak", cycles, leak))
    shown = (*components[:-1], ("MAC", own.steps + own.ramp))
    return Price(
        sum(part.energy_pj for part in parts),
        cycles,
        _bottleneck(components),
        tuple(parts),
        shown,
        steady,
        tuple(times),
    )


def _bottleneck(components: Sequence[tuple[str, Number]]) -> Any:
    """The name of the first component that is busy for longest, of one machine or place by place of many."""
    if not any(isinstance(cycles, np.ndarray) for _, cycles in components):
        return max(components, key=lambda item: item[1])[0]
    return np.array([name for name, _ in components])[
        np.argmax(np.stack(np.broadcast_arrays(*(cycles for _, cycles in components))), axis=0)
    ]


def ports(
    mapping: Mapping, rows: Sequence[Count], e: Einsum, arch: Arch, begun: int = 0
) -> tuple[Busy, list[PortTimes]]:
    """What keeps components busy, and where fills wait the times of ports. Rates of the machine may be
    arrays, one number per machine.
    """
    keys = [(row.level, row.tensor, row.action) for row in rows]
    own = busy(keys, [row.elems for row in rows], [[row.busiest_elems] for row in rows], e, arch)
    return own, port_times(reading(mapping, e, arch), mapping, e, arch, begun)[
        0
    ] if arch.overlap == "buffered" and mapping.nodes else []


def cycles_of(mapping: Mapping, e: Einsum, arch: Arch) -> Number:
    """The latency of `price` without the energy. Where fills wait, port times already know what is moved;
    counts add only steps and ramps.
    """
    if arch.overlap != "buffered" or not mapping.nodes:
        return elapsed_cycles(*ports(mapping, count(mapping, e, arch), e, arch))
    rows = steps(mapping, e, arch)
    own = busy(
        [(row.level, row.tensor, row.action) for row in rows],
        [row.elems for row in rows],
        [[row.busiest_elems] for row in rows],
        e,
        arch,
    )
    return elapsed_cycles(own, port_times(reading(mapping, e, arch), mapping, e, arch, steady=False)[0])


def elapsed_cycles(own: Busy, times: Sequence[PortTimes], steady: bool = False) -> Number:
    """Latency in cycles; steady: the initiation interval of equal einsums back to back instead."""
    return (
        latency(times, own.steps, own.ramp, steady) if times else largest(own.steps, *own.levels) + own.ramp
    )


def room_bits(f: Footprint, level: Level, bits: Dict[str, int]) -> int:
    """Bits that one storage node takes of one instance of its level. bits: per element of every tensor."""
    return int(f.elems * bits[f.tensor]) * (2 if level.double_buffer and f.moving else 1)


def held_bits(held: Sequence[Footprint], level: Level, bits: Dict[str, int]) -> int:
    """Bits that one instance of a level must have room for."""
    return sum(room_bits(f, level, bits) for f in held if f.level == level.name)


def overflow(
    held: Sequence[Footprint], e: Einsum, arch: Arch, reserved_bits: Sequence[tuple[str, int]] = ()
) -> Infeasible | None:
    """The outermost level whose tiles do not fit, or None. reserved_bits: (level, bits) that other einsums
    hold meanwhile.
    """
    bits, others = bits_of(e, arch), dict(reserved_bits)
    for level in arch.levels:
        need = held_bits(held, level, bits) + others.get(level.name, 0)
        if level.capacity_bits is not None and need > level.capacity_bits:
            return Infeasible(level.name, -(-need // 8), level.capacity_bits // 8, e.name)
    return None
