"""A small nest unrolled: every tile and block of compute steps in order, and how long each keeps which port.
Shares no code with dse/sim.

What tiles, windows, shared reads and first reads are is docs/model.md; how lanes go together is
tests/timed.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product
from math import inf

from dse.mapping.nest import Loop, Mapping, Store
from hw.arch import Arch
from tests.oracle import gate, width
from workloads.einsum import Einsum, Projection

Lane = tuple[int, ...]
Span = tuple[int, int]  # first, last + 1
Env = dict[str, Span]
Port = tuple[int, Lane, str]  # (level, instance, side); compute is the level inside the last
FORK = "FORK"  # a loop "over" it is none: the place where shared loops fork, which no tile sinks below
Work = dict[Port, Fraction]  # cycles that an activity needs of each port


@dataclass(slots=True)
class Tile:
    """One round of one node: blocks start..end-1 work on it; fill and drain are its transfers, read and
    drained its elements on the way.
    """

    start: int
    end: int = 0
    fill: Work = field(default_factory=dict)
    drain: Work = field(default_factory=dict)
    read: set[tuple[int, ...]] = field(default_factory=set)
    drained: set[tuple[int, ...]] = field(default_factory=set)


@dataclass(slots=True)
class Node:
    """A storage node that is filled from outside: where it stands, where its tile rests, what its parent
    is."""

    at: int
    rest: int
    level: int
    parent: int
    parent_at: int
    tensor: Projection
    output: bool
    tiles: list[Tile] = field(default_factory=list)


@dataclass(slots=True)
class Program:
    """A nest in order: blocks of compute steps between changes of tiles, and the tiles of every node. double:
    per level.
    """

    double: tuple[bool, ...]
    nodes: list[Node]
    blocks: list[Work]
    moved: Counter[tuple[int, Lane, str, str]]  # elements per (level, instance, tensor, action)
    # cycles from a request to its first word, of each level at which an operand stands
    begins: tuple[Fraction, ...] = ()


def program(mapping: Mapping, e: Einsum, arch: Arch) -> Program:
    """Everything that a nest moves and computes, in order."""
    unroller = Unroller(mapping, e, arch)
    unroller.go(0, {(): {rank: (0, n) for rank, n in e.extents}})
    unroller.close()
    return Program(
        tuple(level.double_buffer for level in arch.levels),
        unroller.nodes,
        unroller.blocks,
        unroller.moved,
        tuple(
            Fraction(level.latency_ns) * Fraction(arch.clock_ghz)
            for level in arch.levels
            if level.latency_ns and any(Store(level.name, p.tensor) in mapping.nodes for p in e.inputs)
        ),
    )


class Unroller:
    """Passes through the nest with all lanes at once."""

    def __init__(self, mapping: Mapping, e: Einsum, arch: Arch) -> None:
        self.steps, self.e, self.arch = mapping.nodes, e, arch
        self.order = {level.name: v for v, level in enumerate(arch.levels)}
        self.spatial = [
            (i, node)
            for i, node in enumerate(self.steps)
            if isinstance(node, Loop) and node.over not in ("", FORK)
        ]
        dims = [
            (name, f.multicast[d], f.reduce[d]) for f in arch.fanouts for d, (name, _) in enumerate(f.dims)
        ]
        self.shares = {name: {False: multicast, True: reduce} for name, multicast, reduce in dims}
        # dimensions along which lanes have one instance of a level
        self.one: list[set[str]] = [
            {
                name
                for f in arch.fanouts
                for (name, _), levels in zip(f.dims, f.shared, strict=False)
                if level.name in levels
            }
            for level in arch.levels
        ]
        self.nodes: list[Node] = []
        self.holder: dict[str, tuple[int, int]] = {}  # the innermost node of a tensor: (level, position)
        for i, node in enumerate(self.steps):
            if isinstance(node, Store):
                tensor = next(p for p in e.tensors() if p.tensor == node.tensor)
                if node.tensor in self.holder:
                    levels = [arch.levels[v] for v in (self.holder[node.tensor][0], self.order[node.level])]
                    whole = any(level.access for level in levels) and (tensor.format, tensor.density) == (
                        "dense",
                        1,
                    )
                    place = i + 1 + slid(self.steps, i, tensor, e) if whole else rest(self.steps, i, tensor)
                    self.nodes.append(
                        Node(
                            i,
                            place,
                            self.order[node.level],
                            *self.holder[node.tensor],
                            tensor,
                            tensor is e.output,
                        )
                    )
                self.holder[node.tensor] = self.order[node.level], i
        self.resting = [[n for n in self.nodes if n.rest == i] for i in range(len(self.steps) + 1)]
        self.seen: set[tuple[int, Lane, tuple[int, ...]]] = set()
        # (node, lane, element) that began with zero and has not drained yet
        self.begun: set[tuple[int, Lane, tuple[int, ...]]] = set()
        self.trip: dict[int, int] = {}
        self.outer: dict[int, dict[Lane, int]] = {}
        self.blocks: list[Work] = []
        self.moved: Counter[tuple[int, Lane, str, str]] = Counter()
        self.open: Counter[tuple[int, Lane, str, str]] = Counter()  # accesses of the block in the making
        self.block_steps = 0

    def close(self) -> None:
        """End the block in the making: a tile starts or ends here."""
        if self.block_steps:
            work = self.work(self.open)
            rate = Fraction(self.arch.compute.ops_per_cycle)
            work[len(self.arch.levels), (), "mac"] = self.block_steps / rate
            self.blocks.append(work)
            self.open, self.block_steps = Counter(), 0

    def work(self, moved: Counter[tuple[int, Lane, str, str]]) -> Work:
        """Elements as cycles of ports; they are tallied on the way: what arrives from outside as written,
        what leaves to it as read.
        """
        for (v, instance, tensor, action), n in moved.items():
            self.moved[v, instance, tensor, {"fill": "write", "drain": "read"}.get(action, action)] += n
        found: Work = {}
        for (v, instance, tensor, action), n in moved.items():
            level = self.arch.levels[v]
            if level.bandwidth == inf or not n:
                continue
            bits = width(level.name, tensor, self.e, self.arch)
            name, times = gate(level, tensor, action, self.e)
            if times == inf:
                continue
            port, rate = (v, instance, name), Fraction(level.bandwidth) * Fraction(times)
            found[port] = found.get(port, Fraction(0)) + Fraction(n * bits, level.width_bits) / rate
        return found

    def go(self, at: int, lanes: dict[Lane, Env]) -> None:
        if self.resting[at]:
            self.close()
            for node in self.resting[at]:
                self.begin(node, lanes)
        self.inside(at, lanes)
        if self.resting[at]:
            self.close()
            for node in self.resting[at]:
                self.finish(node, lanes)

    def inside(self, at: int, lanes: dict[Lane, Env]) -> None:
        if at == len(self.steps):
            return self.compute(lanes)
        node = self.steps[at]
        if isinstance(node, Store) or node.over == FORK:
            return self.go(at + 1, lanes)
        cut = {lane: list(pieces(env, node)) for lane, env in lanes.items()}
        if node.over:
            return self.go(
                at + 1, {(*lane, i): env for lane, envs in cut.items() for i, env in enumerate(envs)}
            )
        self.outer[at] = {lane: env[node.rank][1] for lane, env in lanes.items()}
        for trip in range(max(map(len, cut.values()))):
            self.trip[at] = trip
            self.go(at + 1, {lane: envs[trip] for lane, envs in cut.items() if trip < len(envs)})

    def begin(self, node: Node, lanes: dict[Lane, Env]) -> None:
        """A tile's fill: what a window slides over is fetched once."""
        tile = Tile(len(self.blocks))
        moved: Counter[tuple[int, Lane, str, str]] = Counter()
        skips = node.output and self.arch.levels[node.parent].skip_first_read
        for lane, env in lanes.items():
            spans = hull(node.tensor, env)
            if (slid := self.slides(node)) and self.trip[node.rest - 1]:
                d, rank = slid
                before = hull(node.tensor, {**env, rank: (env[rank][0] - 1, env[rank][0])})[d][1]
                spans[d] = before, spans[d][1]
            wanted = elements(node.tensor, spans)
            if skips:
                again = [x for x in wanted if self.fresh(node.at, lane, x)]
                self.begun.update((node.at, lane, x) for x in {*wanted} - {*again})
                wanted = again
            self.pass_on(node, lane, len(wanted), "fill", "read", moved)
            tile.read.update(wanted)
        tile.fill = self.work(moved)
        node.tiles.append(tile)

    def finish(self, node: Node, lanes: dict[Lane, Env]) -> None:
        """A tile's end: of an output the drain, of a window what the next one does not hold."""
        tile = node.tiles[-1]
        tile.end = len(self.blocks)
        moved: Counter[tuple[int, Lane, str, str]] = Counter()
        for lane, env in lanes.items() if node.output else ():
            spans = hull(node.tensor, env)
            if (slid := self.slides(node)) and env[slid[1]][1] < self.outer[node.rest - 1][lane]:
                d, rank = slid
                spans[d] = (
                    spans[d][0],
                    hull(node.tensor, {**env, rank: (env[rank][1], env[rank][1] + 1)})[d][0],
                )
            gone = elements(node.tensor, spans)
            self.pass_on(node, lane, len(gone), "drain", "write", moved)
            tile.drained.update(gone)
            begun = [x for x in gone if (node.at, lane, x) in self.begun]
            self.begun.difference_update((node.at, lane, x) for x in begun)
            if begun and not self.passed_by(node, lane):
                # added to what other lanes have drained there before
                there = self.instance(lane, node.parent_at, node.parent)
                moved[node.parent, there, node.tensor.tensor, "read"] += sum(
                    self.fresh(~node.at, there, x) for x in begun
                )
        tile.drain = self.work(moved)

    def pass_on(
        self,
        node: Node,
        lane: Lane,
        n: int,
        own: str,
        parents: str,
        moved: Counter[tuple[int, Lane, str, str]],
    ) -> None:
        if self.has_none(node, lane):
            return
        moved[node.level, self.instance(lane, node.at, node.level), node.tensor.tensor, own] += n
        if not self.passed_by(node, lane):
            instance = self.instance(lane, node.parent_at, node.parent)
            moved[node.parent, instance, node.tensor.tensor, parents] += n

    def has_none(self, node: Node, lane: Lane) -> bool:
        """Whether another lane has the instance of the level for both."""
        loops = [loop.over for _, loop in self.spatial]
        return any(i and over in self.one[node.level] for over, i in zip(loops, lane, strict=False))

    def passed_by(self, node: Node, lane: Lane) -> bool:
        """Whether another lane goes to the parent for both."""
        return self.has_none(node, lane) or self.shared(node.tensor, lane, node.parent_at, node.parent)

    def compute(self, lanes: dict[Lane, Env]) -> None:
        self.block_steps += 1
        for lane, env in lanes.items():
            for tensor in self.e.tensors():
                v, at = self.holder[tensor.tensor]
                output, there = tensor is self.e.output, self.instance(lane, at, v)
                if self.shared(tensor, lane, at, v):
                    continue
                wanted = (
                    not output
                    or not self.arch.levels[v].skip_first_read
                    or self.fresh(~len(self.steps), there, tuple(a for a, _ in hull(tensor, env)))
                )
                self.open[v, there, tensor.tensor, "read"] += wanted
                self.open[v, there, tensor.tensor, "write"] += output

    def fresh(self, at: int, lane: Lane, element: tuple[int, ...]) -> bool:
        """False the first time that a lane, or a memory (~ the position of what adds to it), meets an output
        element: it starts from zero and is not read.
        """
        if (at, lane, element) in self.seen:
            return True
        self.seen.add((at, lane, element))
        return False

    def shared(self, tensor: Projection, lane: Lane, parent_at: int, parent: int) -> bool:
        """Whether a lower lane makes this access for us, by multicast or reduction on the way from the node
        at parent_at.
        """
        below = [
            (loop, i)
            for (at, loop), i in zip(self.spatial, lane, strict=False)
            if at > parent_at or loop.over in self.one[parent]
        ]
        return any(
            i and loop.rank not in tensor.ranks() and self.shares[loop.over][tensor is self.e.output]
            for loop, i in below
        )

    def instance(self, lane: Lane, at: int, v: int) -> Lane:
        """The instance that serves a lane, of level v whose node stands at `at`."""
        loops = zip(self.spatial, lane, strict=False)
        return tuple(
            0 if loop.over in self.one[v] else own for (position, loop), own in loops if position < at
        )

    def slides(self, node: Node) -> tuple[int, str] | None:
        """(dimension, rank) of the window that a tile slides over: the loop that it entered last is partially
        relevant.
        """
        loop = self.steps[node.rest - 1]
        if node.rest - 1 == node.at or isinstance(loop, Store) or loop.rank in alone(node.tensor):
            return None
        return next((d, loop.rank) for d, dim in enumerate(node.tensor.dims) if loop.rank in dim.ranks())


def pieces(env: Env, loop: Loop) -> Iterator[Env]:
    low, high = env[loop.rank]
    for start in range(low, high, loop.tile):
        yield {**env, loop.rank: (start, min(start + loop.tile, high))}


def alone(p: Projection) -> set[str]:
    """Ranks that are fully relevant: alone in one dimension, coefficient 1."""
    return {dim.terms[0][0] for dim in p.dims if [c for _, c in dim.terms] == [1]}


def rest(nodes: tuple[Loop | Store, ...], at: int, p: Projection) -> int:
    """Position just above which a tile rests: sunk through fully relevant temporal loops and into one
    partially relevant one.
    """
    for i in range(at + 1, len(nodes)):
        node = nodes[i]
        if isinstance(node, Store) or node.over or node.rank not in p.ranks():
            return i
        if node.rank not in alone(p):
            return i + 1
    return len(nodes)


def slid(nodes: tuple[Loop | Store, ...], at: int, p: Projection, e: Einsum) -> bool:
    """Whether the loop directly below a tile that stands whole slides a window of an input."""
    loop = nodes[at + 1] if at + 1 < len(nodes) else nodes[at]
    if isinstance(loop, Store) or loop.over or p is e.output:
        return False
    return loop.rank not in alone(p) and sum(loop.rank in dim.ranks() for dim in p.dims) == 1


def hull(p: Projection, env: Env) -> list[Span]:
    """Indices that a tile spans per dimension, padding included."""
    return [
        (
            dim.offset + sum(c * env[rank][0] for rank, c in dim.terms),
            dim.offset + sum(c * (env[rank][1] - 1) for rank, c in dim.terms) + 1,
        )
        for dim in p.dims
    ]


def elements(p: Projection, spans: list[Span]) -> list[tuple[int, ...]]:
    """What is stored of a box."""
    return list(
        product(
            *(range(max(low, 0), min(high, dim.size)) for dim, (low, high) in zip(p.dims, spans, strict=True))
        )
    )


def total(works: Iterable[Work]) -> Work:
    found: Work = {}
    for work in works:
        for port, cycles in work.items():
            found[port] = found.get(port, Fraction(0)) + cycles
    return found


def words(moved: Counter[tuple[int, Lane, str, str]]) -> Counter[tuple[int, str, str]]:
    """Elements of all instances, per (level, tensor, action)."""
    found: Counter[tuple[int, str, str]] = Counter()
    for (v, _, tensor, action), n in moved.items():
        found[v, tensor, action] += n
    return found
