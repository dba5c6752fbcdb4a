"""What turns a tensor from one layout into another: a copy that reads the one and writes the other, priced as any einsum (docs/model.md, Layouts).

Its mappings are the mapper's own for a copy, and blocks that hold lines of both layouts, staged through the level next to main memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod

from dse.conversion import copied
from dse.dataflow.lined import Felt, felt, pairs
from dse.dataflow.space import FREE
from dse.layout.address import Layout
from dse.nest import Infeasible, Loop, Mapping, Store, holdable
from dse.sim import bounds
from dse.sim.cost import overflow
from dse.sim.counts import footprints
from dse.sim.evaluate import Problem, figure
from hw.arch import Arch
from workloads.einsum import Einsum


@dataclass(slots=True)
class Conversions:
    """Costs on one machine, each asked for once."""

    arch: Arch
    objective: str
    known: dict[tuple[int | None, Layout, Layout], tuple[Mapping, float, float]] = field(default_factory=dict)
    copies: dict[tuple[tuple[int, ...], int | None], list[Felt]] = field(default_factory=dict)
    floors: dict[tuple[tuple[int, ...], int | None], tuple[float, float]] = field(default_factory=dict)

    def floor(self, bits: int | None, shape: tuple[int, ...]) -> tuple[float, float]:
        """(energy, cycles) that no copy of such a tensor falls below."""
        if (shape, bits) not in self.floors:
            e = copied(shape, bits)
            self.floors[shape, bits] = bounds.energy_pj(e, self.arch), bounds.latency_cycles(e, self.arch)
        return self.floors[shape, bits]

    def cost(self, bits: int | None, a: Layout, b: Layout) -> tuple[Mapping, float, float]:
        """(mapping, energy, cycles) of the best copy; layouts in names that all tensors of a shape share."""
        if (bits, a, b) not in self.known:
            home, found = self.arch.levels[0].name, []
            for one in self._copies(a.shape, bits):
                chosen = {(home, "A"): a, (home, "B"): b}
                found.append((*one.cost(chosen), one.mapping))
            energy, cycles, mapping = min(found, key=lambda row: (figure(self.objective, *row[:2]), str(row[2])))
            self.known[bits, a, b] = mapping, energy, cycles
        return self.known[bits, a, b]

    def _copies(self, shape: tuple[int, ...], bits: int | None) -> list[Felt]:
        if (shape, bits) not in self.copies:
            one = Problem(self.arch, copied(shape, bits), self.objective)
            found = pairs(one, "ragged_lanes", FREE, 0.01, frozenset())
            own = [] if isinstance(found, Infeasible) else list(found.mappings)
            staged = [mapping for mapping in _staged(one.einsum, self.arch) if not overflow(footprints(mapping, one.einsum, self.arch), one.einsum, self.arch)]
            self.copies[shape, bits] = [*own, *(felt(one, mapping) for mapping in staged)]
        return self.copies[shape, bits]


def _staged(e: Einsum, arch: Arch) -> Iterator[Mapping]:
    """Blocks of both tensors in the first level on chip: as large as it holds, grown from each dimension in turn, inwards first."""
    levels = [level for level in arch.levels[1:] if level.capacity_bits and {"A", "B"} <= set(holdable(e, level))][:1]
    for level in levels:
        room = (level.capacity_bits or 0) // (4 if level.double_buffer else 2) // (e.output.bits or arch.word_bits)
        for first in range(len(e.extents)):
            order = [first, *(k for k in reversed(range(len(e.extents))) if k != first)]
            tile = [1] * len(e.extents)
            for most in (16, 64, room):  # a bit of each dimension first
                for k in order:
                    n, others = e.extents[k][1], prod(tile) // tile[k]
                    tile[k] = max(tile[k], max(d for d in range(1, n + 1) if n % d == 0 and (d <= most or d == 1) and d * others <= max(room, 1)))
            outer = [Loop(rank, tile[k]) for k, (rank, n) in enumerate(e.extents) if tile[k] < n]
            inner = [Loop(rank, 1) for k, (rank, _) in enumerate(e.extents) if tile[k] > 1]
            held = [Store(other.name, t) for other in arch.levels[1:] for t in ("A", "B") if t in holdable(e, other) and (other is level or not other.bypass)]
            upper = [node for node in held if node.level == level.name]
            lower = [node for node in held if node.level != level.name]
            yield Mapping((Store(arch.levels[0].name, "A"), Store(arch.levels[0].name, "B"), *outer, *upper, *inner, *lower))
