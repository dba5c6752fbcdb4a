"""One stage of a pipeline: how the nodes of a rectangular region share an einsum, and the nest of each node
(docs/reuse.md, Pipelines).

    parfor m tile 32 over NX      spatial loops over rows and columns of nodes, as even as possible, over
      parfor n tile 28 over NY    ranks that are in no window; where nodes share sums, each adds up its part,
        parfor n tile 7 over NX   and all parts go to the first of these nodes
          (nest of one node)      optimum of the exact mapper on a machine of one node, in the capacity that
                                  forwarded tiles and pinned weights leave

Prices for that mapper: a word from outside of the node costs its read at the source and its hops, divided
over the nodes that receive it at once. These prices only rank nests; the evaluator prices the schedule that
is found.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from math import inf, log2, prod

from dse.mapper.exact.search import search, supports
from dse.mapping.constraints import FREE, Constraints
from dse.mapping.nest import Loop, Mapping, Store
from dse.mapping.schedule import rename
from dse.mapping.searched import windowed_ranks
from dse.sim.counts.actions import bits_of
from dse.sim.counts.counts import counted, footprints, tile_bits, tile_words
from dse.sim.einsum.cost import overflow
from dse.sim.einsum.evaluate import EinsumCost, Problem, evaluate_fitting, evaluate_unfused, objective_value
from dse.sim.einsum.limits import broken
from dse.solve.schedules.nests import IN_SEGMENT
from hw.arch import Arch
from workloads.einsum import Einsum, canonical_key

# free capacities are rounded down to multiples of 1/CAPACITY_STEPS of a buffer: memo entries are reused
CAPACITY_STEPS = 512
SEARCH_BUDGET = 2000  # budget of a search of nests, in nest nodes placed, while tiles are compared
# budget of a search for tiles that were chosen; it is repeated up to REFINE_ROUNDS times, each time for a
# cost of at most CUTOFF_FACTOR times the last one
REFINE_BUDGET, CUTOFF_FACTOR, REFINE_ROUNDS = 12_000, 0.98, 4
WASTE = 1.25  # nodes of a region over its working nodes, at most
NODE_RANKS = 2  # ranks of an einsum that are unrolled over nodes, at most


@dataclass(frozen=True, slots=True)
class StageContext:
    """Where the tensors of a stage come from and go to."""

    forwarded: frozenset[str] = frozenset()  # inputs that another stage passes on
    pinned: frozenset[str] = frozenset()  # weights that are on chip before the run
    forwards: bool = False  # whether another stage reads the output from this one
    copies: int = 1  # tiles of a forwarded output that stand in its buffers at one time
    spilled: bool = False  # whether a forwarded output also goes to main memory
    # ranks of the output over which a reader slides windows; not unrolled over nodes, since hops of such
    # windows are not counted
    sliding: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Shape:
    """A rectangle of nodes, and how it shares an einsum."""

    rows: int
    columns: int
    loops: tuple[Loop, ...]  # spatial loops over its rows and columns, outermost first


@dataclass(frozen=True, slots=True)
class Stage:
    """A way to run an einsum on a region of nodes."""

    tile: tuple[tuple[str, int], ...]  # (rank, tile of one node) of the ranks that are unrolled over nodes
    nest: Mapping  # of one node
    shapes: tuple[Shape, ...]  # rectangles on which it can run
    energy: float  # pJ of all nodes, estimated with an average price per word from outside of a node
    cycles: float

    @property
    def nodes(self) -> int:
        """Nodes of the smallest region that runs the stage."""
        return min(shape.rows * shape.columns for shape in self.shapes)


def split_ranks(e: Einsum, sums: bool = False) -> list[str]:
    """Returns the ranks that may be unrolled over nodes: those of the output and, if `sums`, summed ranks.
    Ranks of windows are excluded, since their hops are not counted.
    """
    windows = windowed_ranks(e)
    return [
        rank
        for rank, n in e.extents
        if n > 1 and rank not in windows and (rank in e.output.full_ranks() or (sums and e.kind == "mac"))
    ]


def may_share(arch: Arch, context: StageContext) -> bool:
    """True if nodes may share sums: the network reduces partial sums, main memory skips the first read of an
    output, and a forwarded output does not go to main memory too.
    """
    return (
        all(arch.fanouts[0].reduce)
        and arch.levels[0].skip_first_read
        and not (context.forwards and context.spilled)
    )


def tiles(e: Einsum, max_nodes: int, sums: bool = False) -> Iterator[dict[str, int]]:
    """Yields tiles of one node (by cut rank), with at most two ranks cut and on at most `max_nodes` nodes.
    Among tiles of a rank that need equally many nodes only the smallest is yielded.
    """
    sizes = e.sizes()
    ranks = split_ranks(e, sums)
    yield {}
    for rank in ranks:
        yield from ({rank: t} for t in _even_tiles(sizes[rank], max_nodes) if t < sizes[rank])
    for a, b in combinations(ranks, NODE_RANKS):
        for first in _even_tiles(sizes[a], max_nodes):
            nodes = -(-sizes[a] // first)
            if first < sizes[a]:
                yield from (
                    {a: first, b: t} for t in _even_tiles(sizes[b], max_nodes // nodes) if t < sizes[b]
                )


def part_of(e: Einsum, tile: dict[str, int]) -> Einsum:
    """Returns the einsum that one node computes."""
    return replace(e, extents=tuple((rank, tile.get(rank, n)) for rank, n in e.extents))


def _even_tiles(n: int, max_nodes: int) -> list[int]:
    return sorted({-(-n // parts) for parts in range(1, min(n, max_nodes) + 1)})


def shapes(e: Einsum, tile: dict[str, int], arch: Arch) -> list[Shape]:
    """Returns the rectangles of nodes that compute all tiles, smallest first. One rank runs along one side;
    the other rank runs along the rest of that side and along the other side.
    """
    (row_dim, rows), (column_dim, columns) = arch.fanouts[0].dims
    sizes, found = e.sizes(), dict[tuple[int, int], Shape]()
    tile_counts = {rank: -(-sizes[rank] // t) for rank, t in tile.items()}
    for first_rank in [*tile] if len(tile) > 1 else [""]:
        first_count = tile_counts.get(first_rank, 1)
        other_rank = next((rank for rank in tile if rank != first_rank), "")
        for side, other, side_nodes, other_nodes in (
            (row_dim, column_dim, rows, columns),
            (column_dim, row_dim, columns, rows),
        ):
            if first_count > side_nodes:
                continue
            first_loops: tuple[Loop, ...] = (
                (Loop(first_rank, tile[first_rank], side),) if first_count > 1 else ()
            )
            # wide, deep: tiles of the other rank along the same side, and along the other side
            for wide in range(1, side_nodes // first_count + 1) if other_rank else (1,):
                deep, loops = 1, first_loops
                if other_rank:
                    outer = min(wide * tile[other_rank], sizes[other_rank])
                    deep, wide = -(-sizes[other_rank] // outer), -(-outer // tile[other_rank])
                    loops += (Loop(other_rank, outer, other),) * (deep > 1) + (
                        Loop(other_rank, tile[other_rank], side),
                    ) * (wide > 1)
                shape = (first_count * wide, deep) if side == row_dim else (deep, first_count * wide)
                if deep <= other_nodes and prod(shape) <= WASTE * prod(tile_counts.values()):
                    found.setdefault(shape, Shape(*shape, loops))
    return sorted(
        found.values(), key=lambda one: (one.rows * one.columns, abs(one.rows - one.columns), one.rows)
    )


def stage_bits(e: Einsum, context: StageContext, arch: Arch) -> int:
    """Returns the bits that an einsum occupies in its buffers all the time: pinned weights, and its output if
    it is forwarded.
    """
    weight_bits = sum(tile_bits(p, e.sizes(), arch.word_bits) for p in e.inputs if p.tensor in context.pinned)
    return weight_bits + tile_bits(e.output, e.sizes(), arch.word_bits) * context.copies * context.forwards


def min_tensor_bits(e: Einsum, arch: Arch) -> dict[str, int]:
    """Returns the fewest bits of each tensor in a buffer: one element; 0 if buffers may be bypassed."""
    bits = bits_of(e, arch)
    return dict.fromkeys(bits, 0) if arch.levels[1].bypass else bits


NodeMapper = Callable[[Problem], list[Mapping]]  # a mapper of one node: returns candidate nests
ConstraintsOf = Callable[[Einsum, Arch], Constraints]  # what mappings of an einsum on a machine must satisfy


def unconstrained(_e: Einsum, _arch: Arch) -> Constraints:
    """Returns no constraints."""
    return FREE


def rules_of(arch: Arch, einsums: Sequence[Einsum], constraints: ConstraintsOf) -> dict[str, Constraints]:
    """Returns what nests of a node must satisfy, by name of the einsum. Roles of ranks depend on sizes, so
    they are those of whole einsums, not of what one node computes.
    """
    return {e.name: constraints(e, node_of(arch)) for e in einsums}


def node_of(arch: Arch) -> Arch:
    """Returns the machine that is one node of `arch`, below the same main memory, without leakage."""
    return replace(arch.without("leakage"), fanouts=arch.fanouts[1:])


@dataclass(slots=True)
class Nodes:
    """The mapper for one node, with a memo of its answers."""

    arch: Arch
    # mapper of a node; None: the exact one, which is also called if `node_mapper` offers no nest that fits
    node_mapper: NodeMapper | None = None
    rules: dict[str, Constraints] = field(default_factory=dict)  # `rules_of`; FREE of einsums not named
    # (einsum of one node, its best nest or None) by einsum, context, free bits, price and objective
    memo: dict[tuple[object, ...], tuple[Einsum, EinsumCost | None]] = field(default_factory=dict)
    searches: int = 0  # searches so far

    def stage(
        self, e: Einsum, tile: dict[str, int], context: StageContext, objective: str, thorough: bool = False
    ) -> Stage | None:
        """Returns the stage with the best nest of a node; None: no nest fits, or no rectangle holds all
        tiles.
        """
        return (
            self.on_tile(e, tile, context, objective, rectangles, thorough)
            if (rectangles := shapes(e, tile, self.arch))
            else None
        )

    def on_tile(
        self,
        e: Einsum,
        tile: dict[str, int],
        context: StageContext,
        objective: str,
        rectangles: Sequence[Shape],
        thorough: bool = False,
    ) -> Stage | None:
        """Returns the stage with the best nest of a node on given rectangles; None: no nest fits."""
        part = part_of(e, tile)
        nodes = prod(-(-n // tile.get(rank, n)) for rank, n in e.extents)
        free_bits = self.free_bits(part, context)
        if free_bits < 0:
            return None
        free_bits -= free_bits % max((self.arch.levels[1].capacity_bits or 0) // CAPACITY_STEPS, 1)
        price = self._price(e, tile, context)
        tensors = [p.tensor for p in (e.output, *e.inputs)]
        homes = frozenset(
            tensors.index(t) for t in (*context.pinned, *([e.output.tensor] if context.forwards else []))
        )
        # rules name ranks and tensors, so only einsums with equal names share nests under any
        rules = self.rules.get(e.name, FREE)
        key = (canonical_key(part), homes, free_bits, price, objective, thorough, rules)
        if key not in self.memo:
            self.memo[key] = (
                part,
                self._search(
                    part, frozenset(tensors[i] for i in homes), free_bits, price, objective, thorough, rules
                ),
            )
        solved_einsum, found = self.memo[key]
        if found is None:
            return None
        nest = rename(found.mapping, solved_einsum, part)
        return Stage(
            tuple(sorted(tile.items())),
            nest,
            tuple(rectangles),
            nodes * found.energy_pj + self.partial_sums(e, tile, context),
            found.latency_cycles,
        )

    def partial_sums(self, e: Einsum, tile: dict[str, int], context: StageContext) -> float:
        """Returns the energy (pJ) that brings partial sums of a forwarded output, which several nodes share,
        to one of these nodes.
        """
        sharers = prod(-(-e.sizes()[rank] // t) for rank, t in tile.items() if rank not in e.output.ranks())
        level = self.arch.levels[1]
        word_pj = (
            sharers * level.read_pj
            + level.write_pj
            + (sharers - 1) * self.arch.fanouts[0].hop_pj * level.width_bits
        )
        return (
            tile_bits(e.output, e.sizes(), self.arch.word_bits) / level.width_bits * word_pj
            if context.forwards and sharers > 1
            else 0.0
        )

    def free_bits(self, part: Einsum, context: StageContext) -> int:
        """Returns the bits of a node's buffer that are free for its nest."""
        return (self.arch.levels[1].capacity_bits or 1 << 60) - stage_bits(part, context, self.arch)

    def _price(self, e: Einsum, tile: dict[str, int], context: StageContext) -> float:
        """Returns the average price (pJ) of a word that a node takes from outside, rounded to an eighth of an
        octave so that few searches differ.
        """
        cost, words = self.outside(e, tile, context)
        return float(2 ** (round(8 * log2(max(cost / words, 1e-3))) / 8)) if words else 0.0

    def outside(self, e: Einsum, tile: dict[str, int], context: StageContext) -> tuple[float, float]:
        """Returns energy (pJ) and number of the words that a node exchanges with its outside, each once."""
        outer, level, f = *self.arch.levels[:2], self.arch.fanouts[0]
        cost = words = 0.0
        for p in e.tensors():
            if p.tensor in context.pinned or (p is e.output and context.forwards):
                continue
            # True: nodes that use the same word share its move
            shares_moves = all(f.reduce) if p is e.output else all(f.multicast)
            sharers = prod(
                -(-e.sizes()[rank] // t) for rank, t in tile.items() if rank not in p.ranks() and shares_moves
            )
            source = (
                level.read_pj
                if p.tensor in context.forwarded
                else outer.write_pj
                if p is e.output
                else outer.read_pj
            )
            hops = (
                (sharers + sum(side for _, side in f.dims) / 4) * f.hop_pj * (p.bits or self.arch.word_bits)
            )
            tensor_words = float(
                tile_words(p, {rank: tile.get(rank, size) for rank, size in e.extents}, self.arch.word_bits)
            )
            cost, words = cost + tensor_words * (source + hops) / sharers, words + tensor_words
        return cost, words

    def _search(
        self,
        part: Einsum,
        homes: frozenset[str],
        free_bits: int,
        price: float,
        objective: str,
        thorough: bool,
        rules: Constraints,
    ) -> EinsumCost | None:
        """Returns the best nest found for a node by itself that keeps the rules, None if none fits."""
        self.searches += 1
        arch, outer = self.arch, self.arch.levels[0]
        node = node_of(arch.without("layout"))
        priced = replace(
            node.levels[0],
            read_pj=price,
            write_pj=price,
            bandwidth=inf,
            leak_mw=arch.leak_mw() / arch.instances(1),
        )
        buffer = replace(node.levels[1], capacity_bits=free_bits)
        node = replace(node, levels=(priced, buffer, *node.levels[2:]))
        problem = Problem(node, part, objective, IN_SEGMENT)
        constraints = replace(rules, homes=tuple(sorted((t, buffer.name) for t in homes)), name="a node")

        def kept(nests: Iterable[Mapping]) -> list[Mapping]:
            return [nest for nest in nests if rules == FREE or not broken(rules, nest, part, node)]

        if self.node_mapper:
            candidates = [
                with_homes(nest, homes, outer.name)
                for nest in self.node_mapper(problem)
                if homes <= _tensors_at(nest, buffer.name)
            ]
            if best := _cheapest(problem, kept(candidates), homes):
                return best
        nests = _search_nests(problem, constraints, thorough) if supports(part, "perfect") else ()
        return _cheapest(problem, kept(nests), homes)


def _tensors_at(nest: Mapping, level: str) -> set[str]:
    return {node.tensor for node in nest.nodes if isinstance(node, Store) and node.level == level}


def _search_nests(problem: Problem, constraints: Constraints, thorough: bool) -> Iterator[Mapping]:
    """Yields nests, each better than the one before. thorough: the search is repeated with a cutoff below the
    last cost, so that bounds prune earlier and the budget reaches further.
    """
    found = search(problem, "perfect", constraints, REFINE_BUDGET if thorough else SEARCH_BUDGET)
    for _ in range(REFINE_ROUNDS * thorough):
        if not found.mapping:
            return
        yield found.mapping
        cost = evaluate_unfused(problem, found.mapping)
        target = CUTOFF_FACTOR * objective_value(problem.objective, cost.energy_pj, cost.latency_cycles)
        found = search(problem, "perfect", constraints, REFINE_BUDGET, cutoff=(target, inf, inf))
    if found.mapping:
        yield found.mapping


def with_homes(nest: Mapping, homes: Collection[str], outer: str, node_dims: Collection[str] = ()) -> Mapping:
    """Returns a nest in which the tensors of `homes` stand on chip all the time. Their storage nodes at the
    outermost level are removed. The outermost of their other storage nodes is moved above all loops, except
    the leading loops over dimensions of `node_dims`.
    """
    home_nodes = {
        node.tensor: node
        for node in reversed(nest.nodes)
        if isinstance(node, Store) and node.tensor in homes and node.level != outer
    }
    other_nodes = [
        node
        for node in nest.nodes
        if not (
            isinstance(node, Store)
            and (node == home_nodes.get(node.tensor) or (node.tensor in homes and node.level == outer))
        )
    ]
    first_inner = next(
        (
            i
            for i, node in enumerate(other_nodes)
            if (node.over not in node_dims if isinstance(node, Loop) else node.level != outer)
        ),
        len(other_nodes),
    )
    return replace(nest, nodes=(*other_nodes[:first_inner], *home_nodes.values(), *other_nodes[first_inner:]))


def _cheapest(problem: Problem, nests: Sequence[Mapping], homes: Collection[str]) -> EinsumCost | None:
    """Returns the cost of the cheapest nest that fits. The tensors of `homes` are not counted at the buffer:
    its capacity was reduced by them before.
    """
    e, arch = problem.einsum, problem.arch
    costs = []
    for nest in nests:
        rows = footprints(nest, e, arch)
        if not overflow(
            [row for row in rows if not (row.tensor in homes and row.level == arch.levels[1].name)], e, arch
        ):
            costs.append(evaluate_fitting(problem, counted(nest, e, arch, rows)))
    return min(
        costs,
        key=lambda c: (objective_value(problem.objective, c.energy_pj, c.latency_cycles), str(c.mapping)),
        default=None,
    )


def own_nest(stage: Stage, shape: Shape, e: Einsum, context: StageContext, outer: str) -> Mapping:
    """Returns the branch of a stage below the shared nodes: its spatial loops over nodes, then the nest of
    one node, without storage nodes that the segment has above its branches.
    """
    home = _first_store(stage.nest, e.output.tensor) if context.forwards else None
    nodes = [
        node
        for node in stage.nest.nodes
        if not (isinstance(node, Store) and (node.level == outer or node == home))
    ]
    return Mapping((*shape.loops, *nodes))


def _first_store(nest: Mapping, tensor: str) -> Store:
    return next(one for one in nest.nodes if isinstance(one, Store) and one.tensor == tensor)
