"""One stage of a pipeline: how a rectangle of nodes shares an einsum out, and what each node does
(docs/reuse.md, Pipelines).

    parfor m tile 32 over NX                ranks that no window cuts, shared out over rows and columns of
                                            nodes, as evenly as can be; of sums that nodes share, each adds up
                                            its part, and all go to the first of them
      parfor n tile 28 over NY
        parfor n tile 7 over NX
          (the nest of one node)            the mapper's, of a machine that is one node: exact, in the room
                                            that what is handed on and pinned leave

What a node takes from outside of it costs there what it costs at its source and on the way, shared out over
the nodes that take it at once; a word that comes to a lane inside of the node, what the array charges for it.
These prices rank nests only: the evaluator prices what is found.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from math import inf, log2, prod

from dse.mapper.exact.search import search, supports
from dse.mapping.nest import Loop, Mapping, Store, may_keep
from dse.mapping.schedule import rename
from dse.mapping.searched import windowed
from dse.mapping.space import Constraints
from dse.sim.counts.counts import count, footprints, tile_bits, tile_words
from dse.sim.counts.parts import bits_of
from dse.sim.einsum.cost import overflow
from dse.sim.einsum.evaluate import (
    EinsumCost,
    Problem,
    evaluate_fitting,
    evaluate_fitting_alone,
    objective_value,
)
from dse.solve.schedules.nests import BELOW
from hw.arch import Arch
from workloads.einsum import Einsum, canonical_key

ROOMS = 512  # rooms of nodes are asked for in steps of such a part of all
PLACED = 2000  # nodes of a nest that a search places at most, where parts are compared
# the same of parts that are taken, asked again for so much less until nothing is found
CLOSER, BETTER, ROUNDS = 12_000, 0.98, 4
WASTE = 1.25  # lanes of a rectangle over those that work, at most
NODE_RANKS = 2  # that nodes share out, at most


@dataclass(frozen=True, slots=True)
class StageContext:
    """What a stage finds: tensors that another stage hands to it, weights that are there before the run,
    whether it hands its result on, in how many copies, and whether main memory gets it too. sliding: ranks of
    it over which a reader slides windows, whose hops are not counted where nodes share them out.
    """

    forwarded: frozenset[str] = frozenset()
    pinned: frozenset[str] = frozenset()
    forwards: bool = False
    copies: int = 1
    spilled: bool = False
    sliding: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Shape:
    """Lanes of a rectangle, as loops over its dimensions, outermost first."""

    rows: int
    columns: int
    loops: tuple[Loop, ...]


@dataclass(frozen=True, slots=True)
class Stage:
    """A way to run an einsum: the part of one node, its nest, and rectangles that do it; energy as estimated,
    without the way between nodes.
    """

    tile: tuple[tuple[str, int], ...]
    nest: Mapping
    shapes: tuple[Shape, ...]
    energy: float
    cycles: float

    @property
    def nodes(self) -> int:
        """Nodes of the smallest region that runs the stage."""
        return min(shape.rows * shape.columns for shape in self.shapes)


def split_ranks(e: Einsum, sums: bool = False) -> list[str]:
    """Ranks that nodes may share out: of the result, or of its sums too, and of no window, whose hops are not
    counted.
    """
    windows = windowed(e)
    return [
        rank
        for rank, n in e.extents
        if n > 1 and rank not in windows and (rank in e.output.full() or (sums and e.kind == "mac"))
    ]


def may_share(arch: Arch, context: StageContext) -> bool:
    """Whether nodes may share sums: they are added up on their way, and what stays with the nodes does not
    leave them too.
    """
    return (
        all(arch.fanouts[0].reduce)
        and arch.levels[0].skip_first_read
        and not (context.forwards and context.spilled)
    )


def tiles(e: Einsum, most: int, sums: bool = False) -> Iterator[dict[str, int]]:
    """Parts of one node, at most two ranks cut, on at most so many nodes; of parts that leave as many lanes
    the smallest.
    """
    sizes = e.sizes()
    ranks = split_ranks(e, sums)
    yield {}
    for rank in ranks:
        yield from ({rank: t} for t in _even(sizes[rank], most) if t < sizes[rank])
    for a, b in combinations(ranks, NODE_RANKS):
        for first in _even(sizes[a], most):
            lanes = -(-sizes[a] // first)
            if first < sizes[a]:
                yield from ({a: first, b: t} for t in _even(sizes[b], most // lanes) if t < sizes[b])


def part_of(e: Einsum, tile: dict[str, int]) -> Einsum:
    """What one node does."""
    return replace(e, extents=tuple((rank, tile.get(rank, n)) for rank, n in e.extents))


def _even(n: int, most: int) -> list[int]:
    return sorted({-(-n // parts) for parts in range(1, min(n, most) + 1)})


def shapes(e: Einsum, tile: dict[str, int], arch: Arch) -> list[Shape]:
    """Rectangles whose lanes do the parts: one rank along a side, the other one along the rest of it and the
    other side.
    """
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
                    loops += (Loop(rest, outer, other),) * (deep > 1) + (Loop(rest, tile[rest], side),) * (
                        wide > 1
                    )
                shape = (a * wide, deep) if side == ny else (deep, a * wide)
                if deep <= breadth and prod(shape) <= WASTE * prod(many.values()):
                    found.setdefault(shape, Shape(*shape, loops))
    return sorted(
        found.values(), key=lambda one: (one.rows * one.columns, abs(one.rows - one.columns), one.rows)
    )


def stage_bits(e: Einsum, context: StageContext, arch: Arch) -> int:
    """What stands in the buffers of an einsum all the time: pinned weights, and its result if that is handed
    on.
    """
    taken = sum(tile_bits(p, e.sizes(), arch.word_bits) for p in e.inputs if p.tensor in context.pinned)
    return taken + tile_bits(e.output, e.sizes(), arch.word_bits) * context.copies * context.forwards


def pinned_bits(e: Einsum, arch: Arch) -> dict[str, int]:
    """Of each tensor what a buffer has beside what stands there: a word, none where it may be passed by."""
    bits = bits_of(e, arch)
    return dict.fromkeys(bits, 0) if arch.levels[1].bypass else bits


Inside = Callable[[Problem], list[Mapping]]  # nests that a mapper offers, for a node by itself


@dataclass(slots=True)
class Nodes:
    """Answers of the mapper for one node, by its part of the einsum and what stands around it. inside: None,
    the exact one, which is asked too where inside offers nothing that fits.
    """

    arch: Arch
    inside: Inside | None = None
    memo: dict[tuple[object, ...], tuple[Einsum, EinsumCost | None]] = field(default_factory=dict)
    searches: int = 0

    def stage(
        self, e: Einsum, tile: dict[str, int], context: StageContext, objective: str, closer: bool = False
    ) -> Stage | None:
        """The best nest of a node, None: none fits, or no rectangle does the parts."""
        return (
            self.on_tile(e, tile, context, objective, own, closer)
            if (own := shapes(e, tile, self.arch))
            else None
        )

    def on_tile(
        self,
        e: Einsum,
        tile: dict[str, int],
        context: StageContext,
        objective: str,
        own: Sequence[Shape],
        closer: bool = False,
    ) -> Stage | None:
        """The same on given rectangles."""
        part = part_of(e, tile)
        lanes = prod(-(-n // tile.get(rank, n)) for rank, n in e.extents)
        room = self.free_bits(part, context)
        if room < 0:
            return None
        room -= room % max((self.arch.levels[1].capacity_bits or 0) // ROOMS, 1)
        price = self._price(e, tile, context)
        order = [p.tensor for p in (e.output, *e.inputs)]
        homes = frozenset(
            order.index(t) for t in (*context.pinned, *([e.output.tensor] if context.forwards else []))
        )
        key = (canonical_key(part), homes, room, price, objective, closer)
        if key not in self.memo:
            self.memo[key] = (
                part,
                self._search(part, frozenset(order[i] for i in homes), room, price, objective, closer),
            )
        first, found = self.memo[key]
        if found is None:
            return None
        nest = rename(found.mapping, first, part)
        return Stage(
            tuple(sorted(tile.items())),
            nest,
            tuple(own),
            lanes * found.energy_pj + self.partial_sums(e, tile, context),
            found.latency_cycles,
        )

    def partial_sums(self, e: Einsum, tile: dict[str, int], context: StageContext) -> float:
        """Energy to bring parts of sums that are handed on to one node of those that have them."""
        many = prod(-(-e.sizes()[rank] // t) for rank, t in tile.items() if rank not in e.output.ranks())
        level = self.arch.levels[1]
        word = (
            many * level.read_pj
            + level.write_pj
            + (many - 1) * self.arch.fanouts[0].hop_pj * level.width_bits
        )
        return (
            tile_bits(e.output, e.sizes(), self.arch.word_bits) / level.width_bits * word
            if context.forwards and many > 1
            else 0.0
        )

    def free_bits(self, part: Einsum, context: StageContext) -> int:
        """Bits of a node that its nest has for itself."""
        return (self.arch.levels[1].capacity_bits or 1 << 60) - stage_bits(part, context, self.arch)

    def _price(self, e: Einsum, tile: dict[str, int], context: StageContext) -> float:
        """Of a word that a node takes from outside, on the average of its tensors; in steps of an eighth of
        an octave, so that few searches differ.
        """
        cost, words = self.outside(e, tile, context)
        return float(2 ** (round(8 * log2(max(cost / words, 1e-3))) / 8)) if words else 0.0

    def outside(self, e: Einsum, tile: dict[str, int], context: StageContext) -> tuple[float, float]:
        """Energy of what a node takes from outside, each word once, and the words."""
        outer, level, f = *self.arch.levels[:2], self.arch.fanouts[0]
        cost = words = 0.0
        for p in e.tensors():
            if p.tensor in context.pinned or (p is e.output and context.forwards):
                continue
            alike = all(f.reduce) if p is e.output else all(f.multicast)  # else each node moves its own
            at_once = prod(
                -(-e.sizes()[rank] // t) for rank, t in tile.items() if rank not in p.ranks() and alike
            )
            source = (
                level.read_pj
                if p.tensor in context.forwarded
                else outer.write_pj
                if p is e.output
                else outer.read_pj
            )
            hops = (at_once + sum(n for _, n in f.dims) / 4) * f.hop_pj * (p.bits or self.arch.word_bits)
            n = float(
                tile_words(p, {rank: tile.get(rank, size) for rank, size in e.extents}, self.arch.word_bits)
            )
            cost, words = cost + n * (source + hops) / at_once, words + n
        return cost, words

    def _search(
        self, part: Einsum, homes: frozenset[str], free_bits: int, price: float, objective: str, closer: bool
    ) -> EinsumCost | None:
        """A node by itself. What comes to lanes is charged to the level that takes it while nests are
        searched, sums that leave lanes to none: so a nest whose lanes share sums is also asked for where no
        sums are added up on the way, and the cheaper one taken.
        """
        self.searches += 1
        arch, outer = self.arch, self.arch.levels[0]
        own = arch.without("leakage", "layout").levels
        own = (
            replace(
                own[0],
                read_pj=price,
                write_pj=price,
                bandwidth=inf,
                leak_mw=arch.leak_mw() / arch.instances(1),
            ),
            replace(own[1], capacity_bits=free_bits),
            *own[2:],
        )
        node = replace(arch.without("leakage"), levels=own, fanouts=arch.fanouts[1:])
        inner = [
            sum(f.endpoint_pj * level.width_bits for f in node.fanouts if f.outside == v)
            for v, level in enumerate(own)
        ]
        asked = replace(
            node.without("network"),
            levels=tuple(
                replace(level, write_pj=level.write_pj + more) for level, more in zip(own, inner, strict=True)
            ),
        )
        # else charged nowhere
        kept = tuple(
            (level.name, t)
            for level, more in zip(own, inner, strict=True)
            if more
            for t in may_keep(part, level)
        )
        constraints = Constraints(
            homes=tuple(sorted((t, own[1].name) for t in homes)), must_keep=kept, name="a node"
        )
        if self.inside:
            offered = [
                with_homes(nest, homes, outer.name)
                for nest in self.inside(Problem(asked, part, objective, BELOW))
                if homes <= _in(nest, own[1].name)
            ]
            if best := _best(Problem(node, part, objective, BELOW), offered, homes):
                return best
        nests = []
        for machine in (
            asked,
            replace(asked, fanouts=tuple(replace(f, reduce=(False,) * len(f.dims)) for f in asked.fanouts)),
        ):
            problem = Problem(machine, part, objective, BELOW)
            nests += list(_search(problem, constraints, closer)) if supports(part, "perfect") else []
            if not any(
                isinstance(n, Loop) and n.over and n.rank not in part.output.ranks()
                for nest in nests
                for n in nest.nodes
            ):
                break
        return _best(Problem(node, part, objective, BELOW), nests, homes)


def _in(nest: Mapping, level: str) -> set[str]:
    return {node.tensor for node in nest.nodes if isinstance(node, Store) and node.level == level}


def _search(problem: Problem, constraints: Constraints, closer: bool) -> Iterator[Mapping]:
    """Better and better nests. closer: a search that knows what to beat leaves out early what the one before
    spent its budget on.
    """
    found = search(problem, "perfect", constraints, CLOSER if closer else PLACED)
    for _ in range(ROUNDS * closer):
        if not found.mapping:
            return
        yield found.mapping
        cost = evaluate_fitting_alone(problem, found.mapping)
        top = BETTER * objective_value(problem.objective, cost.energy_pj, cost.latency_cycles)
        found = search(problem, "perfect", constraints, CLOSER, cutoff=(top, inf, inf))
    if found.mapping:
        yield found.mapping


def with_homes(nest: Mapping, homes: Collection[str], outer: str, nodes: Collection[str] = ()) -> Mapping:
    """A nest in which some tensors stay: no node at the outermost level, their outermost one above all loops
    but those with which it begins over nodes.
    """
    first = {
        node.tensor: node
        for node in reversed(nest.nodes)
        if isinstance(node, Store) and node.tensor in homes and node.level != outer
    }
    rest = [
        node
        for node in nest.nodes
        if not (
            isinstance(node, Store)
            and (node == first.get(node.tensor) or (node.tensor in homes and node.level == outer))
        )
    ]
    lead = next(
        (
            i
            for i, node in enumerate(rest)
            if (node.over not in nodes if isinstance(node, Loop) else node.level != outer)
        ),
        len(rest),
    )
    return replace(nest, nodes=(*rest[:lead], *first.values(), *rest[lead:]))


def _best(problem: Problem, nests: Sequence[Mapping], homes: Collection[str]) -> EinsumCost | None:
    """The cheapest of those that fit beside what is kept."""
    e, arch = problem.einsum, problem.arch
    costs = []
    for nest in nests:
        rows = footprints(nest, e, arch)
        if not overflow(
            [row for row in rows if not (row.tensor in homes and row.level == arch.levels[1].name)], e, arch
        ):
            costs.append(evaluate_fitting(problem, nest, count(nest, e, arch), rows))
    return min(
        costs,
        key=lambda c: (objective_value(problem.objective, c.energy_pj, c.latency_cycles), str(c.mapping)),
        default=None,
    )


def own_nest(stage: Stage, shape: Shape, e: Einsum, context: StageContext, outer: str) -> Mapping:
    """What a stage does below the shared nodes: its lanes, then the nest of a node, without what stands
    above.
    """
    home = _first(stage.nest, e.output.tensor) if context.forwards else None
    nodes = [
        node
        for node in stage.nest.nodes
        if not (isinstance(node, Store) and (node.level == outer or node == home))
    ]
    return Mapping((*shape.loops, *nodes))


def _first(nest: Mapping, tensor: str) -> Store:
    return next(one for one in nest.nodes if isinstance(one, Store) and one.tensor == tensor)
