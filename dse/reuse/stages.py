"""One stage of a pipeline: how a rectangle of nodes shares an einsum out, and what each node does (docs/reuse.md, Pipelines).

    spatial m over NX in tiles of 32        ranks of the output that no window cuts, shared out over rows and columns of nodes, as evenly as can be
      spatial n over NY in tiles of 28
        spatial n over NX in tiles of 7
          (the nest of one node)            the mapper's, of a machine that is one node: exact, in the room that what is handed on and pinned leave

What a node takes from outside of it costs there what it costs at its source and on the way, shared out over the nodes that take it at once; a word that comes
to a lane inside of the node, what the array charges for it. These prices rank nests only: the evaluator prices what is found.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from math import inf, log2, prod

from dse.dataflow.search import search, taken
from dse.dataflow.space import Constraints
from dse.nest import Loop, Mapping, Store, holdable
from dse.reuse.nests import BELOW
from dse.schedule import renamed
from dse.sim import bounds
from dse.sim.cost import overflow
from dse.sim.counts import count, footprints, held_elems
from dse.sim.evaluate import EinsumCost, Problem, figure, priced
from dse.sim.parts import bits_of
from hw.arch import Arch
from workloads.einsum import Einsum, Projection, canonical_key

ROOMS = 512  # rooms of nodes are asked for in steps of such a part of all
PLACED = 4_000  # nodes of a nest that a search places at most
WASTE = 1.25  # lanes of a rectangle over those that work, at most


@dataclass(frozen=True, slots=True)
class Around:
    """What a stage finds: tensors that another stage hands to it, weights that are there before the run, whether it hands its result on, in how many copies."""

    handed: frozenset[str] = frozenset()
    pinned: frozenset[str] = frozenset()
    hands: bool = False
    copies: int = 1


@dataclass(frozen=True, slots=True)
class Shape:
    """Lanes of a rectangle, as loops over its dimensions, outermost first."""

    rows: int
    columns: int
    loops: tuple[Loop, ...]


@dataclass(frozen=True, slots=True)
class Stage:
    """A way to run an einsum: the part of one node, its nest, and rectangles that do it; energy as estimated, without the way between nodes."""

    tile: tuple[tuple[str, int], ...]
    nest: Mapping
    shapes: tuple[Shape, ...]
    energy: float
    cycles: float

    @property
    def nodes(self) -> int:
        return min(shape.rows * shape.columns for shape in self.shapes)


def split_ranks(e: Einsum) -> list[str]:
    """Ranks that nodes may share out: of the result, and of no window, whose hops are not counted."""
    sizes = e.sizes()
    windows = {rank for p in e.tensors() for d in p.dims for rank in d.ranks() if len(d.terms) > 1 or d.terms[0][1] != 1 or d.offset or d.size < sizes[rank]}
    return [rank for rank, n in e.extents if n > 1 and rank in e.output.full() and rank not in windows]


def tiles(e: Einsum, most: int) -> Iterator[dict[str, int]]:
    """Parts of one node, at most two ranks cut, on at most so many nodes; of parts that leave as many lanes the smallest."""
    sizes = e.sizes()
    ranks = split_ranks(e)
    yield {}
    for rank in ranks:
        yield from ({rank: t} for t in _even(sizes[rank], most) if t < sizes[rank])
    for a, b in combinations(ranks, 2):
        for first in _even(sizes[a], most):
            lanes = -(-sizes[a] // first)
            if first < sizes[a]:
                yield from ({a: first, b: t} for t in _even(sizes[b], most // lanes) if t < sizes[b])


def _even(n: int, most: int) -> list[int]:
    return sorted({-(-n // parts) for parts in range(1, min(n, most) + 1)})


def shapes(e: Einsum, tile: dict[str, int], arch: Arch) -> list[Shape]:
    """Rectangles whose lanes do the parts: one rank along a side, the other one along the rest of it and the other side."""
    (ny, rows), (nx, columns) = arch.fanouts[0].dims
    sizes, found = e.sizes(), dict[tuple[int, int], Shape]()
    many = {rank: -(-sizes[rank] // t) for rank, t in tile.items()}
    for along in [*tile] if len(tile) > 1 else [""]:
        a = many.get(along, 1)
        rest = next((rank for rank in tile if rank != along), "")
        for side, other, length, breadth in ((ny, nx, rows, columns), (nx, ny, columns, rows)):
            if a > length:
                continue
            first: tuple[Loop, ...] = (Loop(along, tile[along], side),) if a > 1 else ()
            for wide in range(1, length // a + 1) if rest else (1,):
                deep, loops = 1, first
                if rest:
                    outer = min(wide * tile[rest], sizes[rest])
                    deep, wide = -(-sizes[rest] // outer), -(-outer // tile[rest])
                    loops += (Loop(rest, outer, other),) * (deep > 1) + (Loop(rest, tile[rest], side),) * (wide > 1)
                shape = (a * wide, deep) if side == ny else (deep, a * wide)
                if deep <= breadth and prod(shape) <= WASTE * prod(many.values()):
                    found.setdefault(shape, Shape(*shape, loops))
    return sorted(found.values(), key=lambda one: (one.rows * one.columns, abs(one.rows - one.columns), one.rows))


Inside = Callable[[Problem], list[Mapping]]  # nests that a mapper offers, for a node by itself


@dataclass(slots=True)
class Nodes:
    """Answers of the mapper for one node, by its part of the einsum and what stands around it. inside: None, the exact one."""

    arch: Arch
    inside: Inside | None = None
    known: dict[tuple[object, ...], tuple[Einsum, EinsumCost | None]] = field(default_factory=dict)
    searches: int = 0

    def stage(self, e: Einsum, tile: dict[str, int], around: Around, objective: str) -> Stage | None:
        """The best nest of a node, None: none fits, or no rectangle does the parts."""
        return self.on(e, tile, around, objective, own) if (own := shapes(e, tile, self.arch)) else None

    def on(self, e: Einsum, tile: dict[str, int], around: Around, objective: str, own: Sequence[Shape]) -> Stage | None:
        """The same on given rectangles."""
        part = replace(e, extents=tuple((rank, tile.get(rank, n)) for rank, n in e.extents))
        lanes = prod(-(-n // tile.get(rank, n)) for rank, n in e.extents)
        room = self._room(part, around)
        if room < 0:
            return None
        room -= room % max((self.arch.levels[1].capacity_bits or 0) // ROOMS, 1)
        price = self._price(e, tile, around, lanes)
        order = [p.tensor for p in (e.output, *e.inputs)]
        homes = frozenset(order.index(t) for t in (*around.pinned, *([e.output.tensor] if around.hands else [])))
        key = (canonical_key(part), homes, room, price, objective)
        if key not in self.known:
            self.known[key] = part, self._searched(part, frozenset(order[i] for i in homes), room, price, objective)
        first, found = self.known[key]
        if found is None:
            return None
        nest = renamed(found.mapping, first, part)
        return Stage(tuple(sorted(tile.items())), nest, tuple(own), lanes * found.energy_pj, found.latency_cycles)

    def _room(self, part: Einsum, around: Around) -> int:
        """Bits of a node that its nest has for itself."""
        bits, level = bits_of(part, self.arch), self.arch.levels[1]
        taken = sum(held_elems(p, part.sizes()) * bits[p.tensor] for p in part.inputs if p.tensor in around.pinned)
        if around.hands:
            taken += held_elems(part.output, part.sizes()) * bits[part.output.tensor] * around.copies
        return (level.capacity_bits or 1 << 60) - taken

    def _price(self, e: Einsum, tile: dict[str, int], around: Around, lanes: int) -> float:
        """Of a word that a node takes from outside, on the average of its tensors; in steps of an eighth of an octave, so that few searches differ."""
        outer, level, f = *self.arch.levels[:2], self.arch.fanouts[0]
        cost = words = 0.0
        for p in e.tensors():
            if p.tensor in around.pinned or (p is e.output and around.hands):
                continue
            at_once = prod(-(-e.sizes()[rank] // t) for rank, t in tile.items() if rank not in p.ranks())
            source = level.read_pj if p.tensor in around.handed else outer.write_pj if p is e.output else outer.read_pj
            hops = (at_once + sum(n for _, n in f.dims) / 4) * f.hop_pj * (p.bits or self.arch.word_bits)
            n = held_elems(p, {rank: tile.get(rank, size) for rank, size in e.extents})
            cost, words = cost + n * (source + hops) / at_once, words + n
        return float(2 ** (round(8 * log2(max(cost / words, 1e-3))) / 8)) if words else 0.0

    def _searched(self, part: Einsum, homes: frozenset[str], room: int, price: float, objective: str) -> EinsumCost | None:
        self.searches += 1
        arch, outer = self.arch, self.arch.levels[0]
        nodes = arch.instances(1)
        inner = [sum(f.lane_pj * level.width_bits for f in arch.fanouts[1:] if f.outside == v) for v, level in enumerate(arch.levels)]
        levels = tuple(replace(level, write_pj=level.write_pj + more, leak_mw=0.0, access=None) for level, more in zip(arch.levels, inner, strict=True))
        levels = (replace(outer, read_pj=price, write_pj=price, bandwidth=inf, leak_mw=arch.leak_mw() / nodes, access=None),
                  replace(levels[1], capacity_bits=room), *levels[2:])
        node = replace(arch, levels=levels, fanouts=tuple(replace(f, hop_pj=0.0, lane_pj=0.0) for f in arch.fanouts[1:]))
        asked = [level for v, level in enumerate(levels) if inner[v]]  # what lanes take and do not hold would be charged nowhere
        kept = tuple((level.name, t) for level in asked for t in holdable(part, level))
        constraints = Constraints(homes=tuple(sorted((t, levels[1].name) for t in homes)), kept=kept, name="a node")
        problem = Problem(node, part, objective, BELOW)
        if self.inside:
            return _best(problem, [_whole(nest, homes, outer.name) for nest in self.inside(problem)], homes)
        found = search(problem, "ragged_lanes", constraints, PLACED) if taken(part, "ragged_lanes") else None
        return None if found is None or found.mapping is None else _best(problem, [found.mapping], homes)


def _whole(nest: Mapping, homes: Collection[str], outer: str) -> Mapping:
    """A nest in which some tensors stay: no node at the outermost level, their outermost one above all loops."""
    first = {node.tensor: node for node in reversed(nest.nodes) if isinstance(node, Store) and node.tensor in homes and node.level != outer}
    rest = [node for node in nest.nodes if not (isinstance(node, Store) and (node == first.get(node.tensor) or (node.tensor in homes and node.level == outer)))]
    lead = next((i for i, node in enumerate(rest) if not (isinstance(node, Store) and node.level == outer)), len(rest))
    return replace(nest, nodes=(*rest[:lead], *first.values(), *rest[lead:]))


def _best(problem: Problem, nests: Sequence[Mapping], homes: Collection[str]) -> EinsumCost | None:
    """The cheapest of those that fit beside what is kept."""
    e, arch = problem.einsum, problem.arch
    costs = []
    for nest in nests:
        rows = footprints(nest, e)
        if not overflow([row for row in rows if not (row.tensor in homes and row.level == arch.levels[1].name)], e, arch):
            costs.append(priced(problem, nest, count(nest, e, arch), rows))
    return min(costs, key=lambda c: (figure(problem.objective, c.energy_pj, c.latency_cycles), str(c.mapping)), default=None)


def own_nest(stage: Stage, shape: Shape, e: Einsum, around: Around, outer: str) -> Mapping:
    """What a stage does below the shared nodes: its lanes, then the nest of a node, without what stands above."""
    home = _first(stage.nest, e.output.tensor) if around.hands else None
    nodes = [node for node in stage.nest.nodes if not (isinstance(node, Store) and (node.level == outer or node == home))]
    return Mapping((*shape.loops, *nodes))


def _first(nest: Mapping, tensor: str) -> Store:
    return next(one for one in nest.nodes if isinstance(one, Store) and one.tensor == tensor)


def floor(e: Einsum, arch: Arch, inside: Sequence[Projection]) -> tuple[float, float]:
    """Energy and cycles that no stage of an einsum goes below. inside: tensors that need not come from, or go to, the outermost level."""
    n = bounds.needs(e)
    operands = tuple((0.0 if p in inside else words, bits, written) for p, (words, bits, written) in zip(e.tensors(), n.operands, strict=True))
    return bounds.floor(replace(n, operands=operands), bounds.rates(arch))
