"""First fills of an einsum while the einsum before still runs (docs/model.md, Schedules: `fills ahead`).

Let einsum B follow einsum A. Tiles that B takes from the outermost level, and A does not make, may come while
A works if B's levels have capacity left. Levels are filled one after the other, from the outermost inward.
F(p): time that these fills keep port p busy, summed over the levels whose fills have p as their busiest port
busy(p): time that an einsum keeps port p busy
L: latency of an einsum alone

    hidden = min(sum over p of min(F(p), L_A - busy_A(p) + first fills of B's levels further out),
                 L_A + L_B - busy_A(p) - busy_B(p) for all p)
    L      = L_A + L_B - hidden

No schedule is faster: fills ahead save B at most the time that they take alone, and A and B together take at
least the busy time of each port. Port time of B that is freed without saving B cycles is available for the
fills of the next einsum.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from dse.mapping.nest import Mapping, role
from dse.sim.counts.actions import bits_of, elem_cycles
from dse.sim.counts.counts import nest_sums
from dse.sim.counts.times import first_fills
from dse.sim.einsum import boundary
from dse.sim.einsum.evaluate import EinsumCost
from dse.sim.schedule.placed import Placed
from hw.arch import Arch

Ports = dict[tuple[int, str], float]  # (level, port) -> cycles


@dataclass(frozen=True, slots=True)
class RunningEinsum:
    """What the einsum that runs now leaves free for first fills of the next einsum."""

    free_bits: dict[str, int | None]  # free bits by level; None: unbounded
    made_tensors: Collection[str]  # tensors that it makes
    slack: Ports  # idle cycles of each port, plus those that its own fills ahead freed
    # idle cycles of each port, summed over the consecutive einsums up to this one, minus hidden cycles
    total_idle: Ports


def hidden_cycles(one: Placed, cost: EinsumCost, before: RunningEinsum | None) -> tuple[float, Ports]:
    """Returns the cycles of first fills that are hidden behind the einsum before, and the port time that is
    freed without making this einsum shorter.
    """
    nest = boundary.whole_nest(one.boundary, one.nest)
    if before is None or not _runs_as_one_nest(one):
        return 0.0, {}
    sums = nest_sums(nest, one.einsum, one.arch)
    levels = first_fills(sums, one.arch, _fitting(one, nest, before))
    fill_cycles, all_fills, outer_fills = Ports(), Ports(), Ports()
    for v, ports in levels.items():
        key = max(ports, key=lambda port: (ports[port], before.slack[port]))
        fill_cycles[key] = fill_cycles.get(key, 0.0) + ports[key]
        # the port is free during first fills of levels further out
        outer_fills[key] = sum(times.first for times in cost.price.times[:v])
        all_fills |= {port: all_fills.get(port, 0.0) + n for port, n in ports.items()}
    idle_limit = min(before.total_idle[key] + cost.latency_cycles - n for key, n in _busy(one, cost).items())
    hidden = max(
        min(sum(min(n, before.slack[key] + outer_fills[key]) for key, n in fill_cycles.items()), idle_limit),
        0.0,
    )
    return hidden, {key: max(min(n, before.slack[key]) - hidden, 0.0) for key, n in all_fills.items()}


def _runs_as_one_nest(one: Placed) -> bool:
    """True if an einsum's latency is that of its own nest, started once, with fill stalls."""
    return (
        not (one.boundary.retained or one.boundary.forked or one.boundary.retention_moves)
        and one.boundary.has_nest_latency(one.arch)
        and one.arch.overlap == "buffered"
    )


def _fitting(one: Placed, nest: Mapping, before: RunningEinsum) -> set[tuple[str, str]]:
    """Returns (level, tensor) of inputs whose first tile fits beside what the einsum before occupies."""
    bits, free_bits, found = bits_of(one.einsum, one.arch), dict(before.free_bits), set()
    inputs = {p.tensor for p in one.einsum.inputs} - set(before.made_tensors)
    for row in boundary.node_footprints(one.boundary, nest, one.einsum, one.arch):
        free, needed = free_bits.get(row.level), int(row.elems * bits[row.tensor])
        if row.tensor in inputs and row.level != one.arch.levels[0].name and (free is None or needed <= free):
            free_bits[row.level] = None if free is None else free - needed
            found.add((row.level, row.tensor))
    return found


def free_after(
    one: Placed,
    cost: EinsumCost,
    arch: Arch,
    peak: dict[str, int],
    before: RunningEinsum | None,
    hidden: float,
    freed: Ports,
) -> RunningEinsum | None:
    """Returns what an einsum leaves free for fills ahead; None if its latency is not that of a nest.

    hidden: its own hidden cycles
    freed: port time that its own fills ahead freed without saving cycles
    """
    if not _runs_as_one_nest(one) or not cost.price.times:
        return None
    free_bits = {
        level.name: None if level.capacity_bits is None else level.capacity_bits - peak.get(level.name, 0)
        for level in arch.levels
    }
    idle = {key: cost.latency_cycles - n for key, n in _busy(one, cost).items()}
    slack = {key: n + freed.get(key, 0.0) for key, n in idle.items()}
    return RunningEinsum(
        free_bits,
        {one.einsum.output.tensor},
        slack,
        {key: n - hidden + (before.total_idle[key] if before else 0.0) for key, n in idle.items()},
    )


def _busy(one: Placed, cost: EinsumCost) -> Ports:
    """Returns the busy cycles of every port, at the busiest instance."""
    bits, found = bits_of(one.einsum, one.arch), Ports()
    for v, level in enumerate(one.arch.levels):
        found |= {(v, level.port("input", action)[0]): 0.0 for action in ("read", "write")}
        for row in cost.counts:
            if row.level == level.name:
                of = role(one.einsum, row.tensor)
                cycles = elem_cycles(level, bits[row.tensor], of, row.action)
                found[v, level.port(of, row.action)[0]] += row.busiest_elems * cycles
    return found


def with_cycles(cost: EinsumCost, cycles: float, arch: Arch) -> EinsumCost:
    """Returns an einsum's cost with `cycles` fewer cycles, and less leakage."""
    leak = arch.leak_mw() * cycles / arch.clock_ghz
    parts = tuple(
        replace(part, actions=part.actions - cycles, energy_pj=part.energy_pj - leak)
        if part.action == "leak"
        else part
        for part in cost.price.parts
    )
    price = replace(
        cost.price,
        energy_pj=cost.price.energy_pj - leak,
        latency_cycles=cost.price.latency_cycles - cycles,
        parts=parts,
    )
    return replace(
        cost, energy_pj=cost.energy_pj - leak, latency_cycles=cost.latency_cycles - cycles, price=price
    )


def in_sequence(
    segments: Sequence[Sequence[Placed]],
    peaks: Sequence[dict[str, int]],
    costs: dict[str, EinsumCost],
    occurrences: dict[str, int],
    arch: Arch,
) -> dict[str, float]:
    """Returns the hidden cycles by einsum, for einsums that are alone in their segment, run once and follow
    another einsum that is alone in its segment.
    """
    found: dict[str, float] = {}
    before: RunningEinsum | None = None
    for segment, peak in zip(segments, peaks, strict=True):
        if len(segment) != 1:
            before = None
            continue
        (one,) = segment
        cost = costs[one.einsum.name]
        hidden, freed = hidden_cycles(one, cost, before) if occurrences[one.einsum.name] == 1 else (0.0, {})
        if hidden:
            found[one.einsum.name] = hidden
        before = free_after(one, cost, arch, peak, before, hidden, freed)
    return found
