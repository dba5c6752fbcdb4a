"""First fills of an einsum while the one before still runs (docs/model.md, Schedules: `fills ahead`).

Of two einsums A and B that run in turn, tiles that B takes from the outermost level, and A does not make, may come while A works, where its levels have room
left. With F(p) the time that these fills keep port p busy, F the largest, busy(p) what A keeps it busy with, and L the latencies of each alone:

    hidden = min(F, L_A - busy_A(p) for the port of F, L_A + L_B - busy_A(p) - busy_B(p) for all)              L = L_A + L_B - hidden

No schedule is faster: what has come ahead, x(p) of each port, saves B at most the largest x, the time to bring it alone, and A then takes busy_A(p) + x(p) at
least.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from dse.nest import Mapping
from dse.sim import boundary
from dse.sim.counts import reading
from dse.sim.evaluate import EinsumCost
from dse.sim.parts import bits_of, elem_cycles, port
from dse.sim.placed import Placed
from dse.sim.times import first_fills
from hw.arch import Arch

Ports = dict[tuple[int, str], float]  # (level, port) -> cycles


@dataclass(frozen=True, slots=True)
class Waiting:
    """The einsum that runs now. left: bits free meanwhile by level, None: unbounded; made: what it makes; slack: idle cycles of each port."""

    left: dict[str, int | None]
    made: Collection[str]
    slack: Ports


def hidden(one: Placed, cost: EinsumCost, before: Waiting | None) -> tuple[float, Ports]:
    """Cycles of first fills that come while the einsum before runs; how long these fills keep each port busy."""
    nest = boundary.joined(one.boundary, one.nest)
    if before is None or one.boundary.begun() != 0 or one.arch.overlap != "buffered":
        return 0.0, {}
    cycles = first_fills(reading(nest, one.einsum, one.arch), nest, one.einsum, one.arch, _fitting(one, nest, before))
    if not cycles or max(cycles.values()) <= 0:
        return 0.0, {}
    most = max(cycles.values())
    idle = max(before.slack[key] for key, n in cycles.items() if n == most)
    both = min(before.slack[key] + cost.latency_cycles - n for key, n in _busy(one, cost).items())
    return max(min(most, idle, both), 0.0), cycles


def _fitting(one: Placed, nest: Mapping, before: Waiting) -> set[tuple[str, str]]:
    """(level, tensor) of inputs whose first tile has room beside what the einsum before holds."""
    bits, left, found = bits_of(one.einsum, one.arch), dict(before.left), set()
    inputs = {p.tensor for p in one.einsum.inputs} - set(before.made)
    for row in boundary.held(one.boundary, nest, one.einsum, one.arch):
        room, need = left.get(row.level), row.elems * bits[row.tensor]
        if row.tensor in inputs and row.level != one.arch.levels[0].name and (room is None or need <= room):
            left[row.level] = None if room is None else room - need
            found.add((row.level, row.tensor))
    return found


def waiting(one: Placed, cost: EinsumCost, arch: Arch, peak: dict[str, int], saved: float, moved: Ports) -> Waiting | None:
    """What an einsum leaves free; None where its time is not that of a nest. saved, moved: of its own fills that came ahead."""
    if one.boundary.begun() != 0 or arch.overlap != "buffered" or not cost.price.times:
        return None
    left = {level.name: None if level.capacity_bits is None else level.capacity_bits - peak.get(level.name, 0) for level in arch.levels}
    slack = {key: cost.latency_cycles - n + moved.get(key, 0.0) - saved for key, n in _busy(one, cost).items()}
    return Waiting(left, {one.einsum.output.tensor}, slack)


def _busy(one: Placed, cost: EinsumCost) -> Ports:
    """What an einsum keeps every port busy with, of the instance that is the busiest."""
    bits, found = bits_of(one.einsum, one.arch), Ports()
    for v, level in enumerate(one.arch.levels):
        found |= {(v, port(level, action)): 0.0 for action in ("read", "write")}
        for row in cost.counts:
            if row.level == level.name:
                found[v, port(level, row.action)] += row.busiest_elems * elem_cycles(level, bits[row.tensor])
    return found


def sooner(cost: EinsumCost, cycles: float, arch: Arch) -> EinsumCost:
    """An einsum's cost with so many cycles less."""
    leak = arch.leak_mw() * cycles / arch.clock_ghz
    parts = tuple(replace(part, actions=part.actions - cycles, energy_pj=part.energy_pj - leak) if part.action == "leak" else part for part in cost.price.parts)
    price = replace(cost.price, energy_pj=cost.price.energy_pj - leak, latency_cycles=cost.price.latency_cycles - cycles, parts=parts)
    return replace(cost, energy_pj=cost.energy_pj - leak, latency_cycles=cost.latency_cycles - cycles, price=price)


def in_sequence(segments: Sequence[Sequence[Placed]], peaks: Sequence[dict[str, int]], priced: dict[str, EinsumCost], runs: dict[str, int],
                arch: Arch) -> dict[str, float]:
    """Cycles hidden, by einsum: those that stand alone in a segment, run once, and follow another one in a segment of its own."""
    found: dict[str, float] = {}
    before: Waiting | None = None
    for own, peak in zip(segments, peaks, strict=True):
        if len(own) != 1:
            before = None
            continue
        (one,) = own
        saved, moved = hidden(one, priced[one.einsum.name], before) if runs[one.einsum.name] == 1 else (0.0, {})
        if saved:
            found[one.einsum.name] = saved
        before = waiting(one, priced[one.einsum.name], arch, peak, saved, moved)
    return found
