"""Time and energy of counted actions on one machine (docs/model.md, Energy and Time)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dse.nest import Infeasible
from dse.sim.counts import Count, Footprint
from hw.arch import Arch, Fanout, Level
from workloads.einsum import Einsum


@dataclass(frozen=True, slots=True)
class Part:
    """One row of the energy sum: tensor "-" for compute and leakage; energy in pJ, actions of the level's width."""

    level: str
    tensor: str
    action: str
    actions: float
    energy_pj: float


@dataclass(frozen=True, slots=True)
class Price:
    """Cost of one einsum: totals are sums of parts; busy_cycles per component; bound_by attains the largest."""

    energy_pj: float
    latency_cycles: float
    bound_by: str
    parts: tuple[Part, ...]
    busy_cycles: tuple[tuple[str, float], ...]


def bits_of(e: Einsum, arch: Arch) -> dict[str, int]:
    """Bits per element of every tensor."""
    return {p.tensor: p.bits or arch.word_bits for p in e.tensors()}


def op_pj(e: Einsum, arch: Arch) -> float:
    """Energy of one operation of the einsum's kind; moving data computes nothing."""
    return {"mac": arch.compute.mac_pj, "copy": 0.0}.get(e.kind, arch.compute.alu_pj)


def op_cycles(ops: float, busiest_ops: float, e: Einsum, arch: Arch) -> float:
    """Cycles of operations: of the busiest lane, or of the machine's one vector unit if it has one and the kind is no MAC."""
    rate = arch.compute.alu_per_cycle
    return busiest_ops / arch.compute.ops_per_cycle if rate is None or e.kind == "mac" else ops / rate


def price(rows: Sequence[Count], e: Einsum, arch: Arch) -> Price:
    """Energy and latency of counted actions: energy = actions * pJ + leakage; latency = largest busy time of a component.

    A level with transfer "same" works on the tile that the inside waits for: its busy time is added to what lies inside of it.
    """
    bits = bits_of(e, arch)
    levels = {level.name: level for level in arch.levels}
    parts: list[Part] = []
    busy = {level.name: {"read": 0.0, "write": 0.0} for level in arch.levels}
    compute = 0.0
    for row in rows:
        if row.action == "compute":
            parts.append(Part(row.level, row.tensor, row.action, row.elems, row.elems * op_pj(e, arch)))
            compute += op_cycles(row.elems, row.busiest_elems, e, arch)
            continue
        if row.action == "enter":
            fill = fill_cycles(next(f for f in arch.fanouts if f.name == row.level), e, arch)
            compute += max(row.busiest_elems * fill - 1, 0.0)
            continue
        level = levels[row.level]
        per_elem = bits[row.tensor] / level.width_bits
        pj = level.read_pj if row.action == "read" else level.write_pj
        parts.append(Part(row.level, row.tensor, row.action, row.elems * per_elem, row.elems * per_elem * pj))
        busy[row.level][row.action] += row.busiest_elems * per_elem
    cycles = [(level.name, _port_cycles(level, busy[level.name])) for level in arch.levels] + [("MAC", compute)]
    bound_by = max(cycles, key=lambda item: item[1])[0]
    latency = compute
    for level, (_, own) in zip(reversed(arch.levels), reversed(cycles[:-1]), strict=True):
        latency = max(latency, own) if level.transfer == "next" else latency + own
    leak = arch.leak_mw() * latency / arch.clock_ghz
    if leak:
        parts.append(Part("-", "-", "leak", latency, leak))
    return Price(sum(part.energy_pj for part in parts), latency, bound_by, tuple(parts), tuple(cycles))


def fill_cycles(f: Fanout, e: Einsum, arch: Arch) -> int:
    """Cycles per fold that a systolic array R x C takes to fill and empty, less 1 in all; none for what the vector unit does.

    R + C - 2 output-stationary, 2 R + C - 2 otherwise.
    Source: SCALE-Sim (Samajdar et al. 2020), as run in data/systolic_cycles_cases.json.
    """
    if e.kind != "mac" and arch.compute.alu_per_cycle is not None:
        return 0
    rows, columns = f.dims[0][1], f.dims[1][1]
    return (rows if f.ramp == "os" else 2 * rows) + columns - 2


def _port_cycles(level: Level, actions: dict[str, float]) -> float:
    reads, writes = actions["read"], actions["write"]
    return (max(reads, writes) if level.ports == "separate" else reads + writes) / level.bandwidth


def room_bits(f: Footprint, e: Einsum, arch: Arch) -> int:
    """What one node takes of one instance of its level."""
    level = next(level for level in arch.levels if level.name == f.level)
    return f.elems * bits_of(e, arch)[f.tensor] * (2 if level.double_buffer and f.moving else 1)


def overflow(held: Sequence[Footprint], e: Einsum, arch: Arch, taken: Sequence[tuple[str, int]] = ()) -> Infeasible | None:
    """The outermost level whose tiles do not fit, or None. taken: bits of levels that others hold meanwhile."""
    for level in arch.levels:
        need = sum(room_bits(f, e, arch) for f in held if f.level == level.name) + dict(taken).get(level.name, 0)
        if level.capacity_bits is not None and need > level.capacity_bits:
            return Infeasible(level.name, -(-need // 8), level.capacity_bits // 8, e.name)
    return None
