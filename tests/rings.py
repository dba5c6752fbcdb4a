"""Tiles that lanes of a mesh share out and pass round, walked word by word: who holds what at every step,
what it takes and gives, and over which links.

Shares no code with dse/sim but the einsum's text. Lanes go through the nest step by step; in the loop that a
tile goes round in, each lane is at the trips of the part that it holds, and all work on what they need has to
be in the part that is there.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import product
from random import Random

from dse.mapping.nest import Loop, Mapping, Rotated, Store
from hw.arch import Arch, Compute, Fanout, Level
from workloads.einsum import Einsum, einsum

Place = tuple[int, int]


def links(source: Place, lane: Place) -> set[frozenset[Place]]:
    """Of a word's way: along the row, then along the column."""
    (y, x), (row, column), found = source, lane, set()
    while x != column:
        step = 1 if column > x else -1
        found.add(frozenset({(y, x), (y, x + step)}))
        x += step
    while y != row:
        step = 1 if row > y else -1
        found.add(frozenset({(y, x), (y + step, x)}))
        y += step
    return found


def walked_tree(source: Place, lanes: set[Place]) -> int:
    return len(set().union(*(links(source, lane) for lane in lanes)))


def walked_chain(source: Place, lanes: set[Place]) -> int:
    """To the nearest lane, then again and again from a lane that has the word to the nearest one that has
    not.
    """
    distance = lambda a, b: abs(a[0] - b[0]) + abs(a[1] - b[1])
    nearest = min(lanes, key=lambda lane: distance(source, lane))
    total, near = distance(source, nearest), {lane: distance(nearest, lane) for lane in lanes - {nearest}}
    while near:
        lane = min(near, key=lambda one: near[one])
        total += near.pop(lane)
        near = {other: min(n, distance(lane, other)) for other, n in near.items()}
    return total


WALKED = {"next_level": walked_tree, "same_level": walked_chain}


def rounds(lanes: list[Place]) -> list[Place]:
    """The lanes of a ring one after the other: row by row, or column by column, every other one backwards;
    whichever is shorter.
    """
    rows, columns = sorted({y for y, _ in lanes}), sorted({x for _, x in lanes})
    by_rows = [(y, x) for i, y in enumerate(rows) for x in (columns[::-1] if i % 2 else columns)]
    by_columns = [(y, x) for i, x in enumerate(columns) for y in (rows[::-1] if i % 2 else rows)]
    return min(
        by_rows,
        by_columns,
        key=lambda way: sum(len(links(a, b)) for a, b in zip(way, way[1:] + way[:1], strict=True)),
    )


def random_ring(rng: Random) -> tuple[Arch, Einsum, Mapping]:
    """A product on a part of a mesh: A or B goes round over one dimension or both; some of the loops that
    need not stand there.
    """
    sizes = {rank: rng.choice([1, 2, 4, 4, 6, 8]) for rank in "mnk"}
    third = rng.choice(["", "", " * D[k]", " * D[k,n]"])
    e = einsum(f"C[m,n] += A[m,k] * B[k,n]{third}", sizes, "e")
    tensors = [p.tensor for p in e.tensors()]
    grid = (rng.randint(1, 6), rng.randint(2, 10))
    first = (rng.randint(0, grid[0] - 1), rng.choice([0, rng.randint(0, grid[1] - 2)]))
    own = (
        rng.choice([grid[0] - first[0], rng.randint(1, grid[0] - first[0])]),
        rng.choice([grid[1] - first[1], rng.randint(2, grid[1] - first[1])]),
    )
    flags = (rng.random() < 0.8, rng.random() < 0.8)
    f = Fanout(
        "mesh",
        1,
        (("Y", own[0]), ("X", own[1])),
        flags,
        (rng.random() < 0.7, rng.random() < 0.7),
        "",
        1 / 8,
        1 / 16,
        rng.choice(["corners", "edge"]),
        rng.choice(["next_level", "same_level"]),
        ((first[0], grid[0]), (first[1], grid[1])),
    )  # type: ignore[arg-type]
    levels = tuple(Level(name, None, 8, 1.0, 1.0, skip_first_read=False) for name in ("DRAM", "BUF", "REG"))
    arch = Arch("mesh", levels, (f,), Compute(1.0, 1.0), 1.0, 8, overlap="free")
    tensor = rng.choice("AB")
    left, nodes, room = (
        dict(sizes),
        [Store("DRAM", t) for t in tensors if t != tensor or rng.random() < 0.7],
        dict(f.dims),
    )

    def loop(rank: str, over: str = "") -> None:
        tiles = [
            n
            for n in range(1, left[rank] + 1)
            if left[rank] % n == 0 and (not over or left[rank] // n <= room[over])
        ]
        tile = rng.choice(tiles[:-1] or tiles if over else tiles)
        if over:
            room[over] //= left[rank] // tile
        nodes.append(Loop(rank, tile, over))
        left[rank] = tile

    for _ in range(rng.choice([0, 0, 1, 2])):
        loop(rng.choice("mnk"))
    for _ in range(rng.randint(1, 3)):
        loop(rng.choice("mnk" + ("n" if tensor == "A" else "m") * 3), rng.choice("YX"))
    stores = [tensor, *(t for t in rng.sample(tensors, len(tensors)) if t != tensor)]
    if rng.random() < 0.3:
        rng.shuffle(stores)
    for t in stores:
        if t == tensor or rng.random() < 0.8:
            nodes.append(Store("BUF", t))
        while rng.random() < 0.3:
            loop(rng.choice("mnk" + ("n" if tensor == "A" else "m") * 2))
    while rng.random() < 0.5:
        loop(rng.choice("mnk"))
    if rng.random() < 0.4:
        nodes.append(Store("REG", tensor))
    dims = rng.choice([("Y",), ("X",), ("Y", "X"), ("Y", "X")])
    return (
        arch,
        e,
        Mapping(
            (*nodes, *(Loop(rank, 1) for rank in rng.sample("mnk", 3))),
            shares=(Rotated("BUF", tensor, dims),),
        ),
    )


@dataclass
class Lane:
    place: Place
    trips: tuple[int, ...]  # of the loops over lanes
    env: dict[str, tuple[int, int]]


@dataclass
class Walk:
    """counts: words per (level, tensor, action); hops: per (tensor, hop or rotate); most: words of the shared
    tile that a lane held at one time.
    """

    arch: Arch
    e: Einsum
    nest: Mapping
    counts: Counter = field(default_factory=Counter)
    hops: Counter = field(default_factory=Counter)
    most: int = 0
    wrong: list = field(default_factory=list)
    parts: dict = field(default_factory=dict)  # place -> (number, words) that a lane holds
    ring: dict = field(default_factory=dict)  # place -> the lanes of its ring in order

    def __post_init__(self) -> None:
        (self.one,) = self.nest.shares
        self.f = self.arch.fanouts[0]
        (self.y0, rows), (self.x0, columns) = self.f.mesh_region
        self.sources = [
            (y, x)
            for y in range(rows)
            for x in range(columns)
            if x in (0, columns - 1) and (self.f.injected_at == "edge" or y in (0, rows - 1))
        ]
        self.chain = {
            p.tensor: [n for n in self.nest.nodes if isinstance(n, Store) and n.tensor == p.tensor]
            for p in self.e.tensors()
        }
        self.at = next(i for i, n in enumerate(self.nest.nodes) if n == Store("BUF", self.one.tensor))

    def run(self) -> Walk:
        self.go(0, [Lane((0, 0), (), {rank: (0, n) for rank, n in self.e.extents})])
        return self

    def words(self, tensor: str, env: dict) -> set:
        p = next(p for p in self.e.tensors() if p.tensor == tensor)
        return set(product(*(range(*env[d.terms[0][0]]) for d in p.dims)))

    def where(self, place: Place) -> Place:
        return self.y0 + place[0], self.x0 + place[1]

    def cross(self, tensor: str, wanted: list[tuple[Place, set]], parent: str, level: str) -> None:
        """Words from the outer level to lanes, or back: those that lanes want at once, where they share, go
        over one tree.
        """
        output = tensor == self.e.output.tensor
        shared = self.f.reduce if output else self.f.multicast
        asked = defaultdict(set)
        for (y, x), words in wanted:
            for word in words:
                asked[word, None if shared[0] else y, None if shared[1] else x].add(self.where((y, x)))
        hops = sum(
            min(WALKED[self.f.multicast_from](source, places) for source in self.sources)
            for places in asked.values()
        )
        self.hops[tensor, "hop"] += hops * (2 if output else 1)
        self.counts[parent, tensor, "read"] += len(asked)
        self.counts[parent, tensor, "write"] += len(asked) * output
        self.counts[level, tensor, "write"] += sum(len(words) for _, words in wanted)
        self.counts[level, tensor, "read"] += sum(len(words) for _, words in wanted) * output

    def store(self, node: Store, lanes: list[Lane]) -> None:
        chain = self.chain[node.tensor]
        number = chain.index(node)
        wanted = [(lane.place, self.words(node.tensor, lane.env)) for lane in lanes]
        if node == Store(self.one.level, self.one.tensor):
            wanted = self.share_out(lanes)
        if not number:
            return
        if chain[number - 1].level == "DRAM" and node.level != "DRAM":
            return self.cross(node.tensor, wanted, "DRAM", node.level)
        for action, level in (("read", chain[number - 1].level), ("write", node.level)):
            self.counts[level, node.tensor, action] += sum(len(words) for _, words in wanted)

    def share_out(self, lanes: list[Lane]) -> list[tuple[Place, set]]:
        """A part each: cut over the rank of the loop that the parts go round in."""
        dims = [i for i, (name, _) in enumerate(self.f.dims) if name in self.one.dims]
        groups = defaultdict(list)
        for lane in lanes:
            groups[
                frozenset(self.words(self.one.tensor, lane.env)),
                *(c for i, c in enumerate(lane.place) if i not in dims),
            ].append(lane)
        rank, self.turn = self.turning(lanes[0].env)
        for group in groups.values():
            ring = rounds([lane.place for lane in group])
            low, high = group[0].env[rank]
            step = (high - low) // len(ring)
            for j, place in enumerate(ring):
                self.ring[place] = ring
                self.parts[place] = (
                    j,
                    self.words(
                        self.one.tensor, {**group[0].env, rank: (low + j * step, low + (j + 1) * step)}
                    ),
                )
                self.most = max(self.most, len(self.parts[place][1]))
        return [(lane.place, self.parts[lane.place][1]) for lane in lanes]

    def turning(self, env: dict) -> tuple[str, int]:
        """The first loop with trips below the tile that moves it, the loops that it sinks through aside."""
        sinks, left = (
            self.chain[self.one.tensor][0] != self.nest.nodes[self.at],
            {rank: high - low for rank, (low, high) in env.items()},
        )
        mine = {d.terms[0][0] for p in self.e.inputs if p.tensor == self.one.tensor for d in p.dims}
        for i in range(self.at + 1, len(self.nest.nodes)):
            node = self.nest.nodes[i]
            if isinstance(node, Store) or node.rank not in mine:
                sinks = False
            if isinstance(node, Loop):
                if not sinks and node.rank in mine and left[node.rank] > node.tile:
                    return node.rank, i
                left[node.rank] = node.tile
        raise AssertionError("nothing goes round")

    def resting(self, i: int) -> list[Store]:
        """Nodes whose tiles come to rest just above position i; they sink through loops of their own
        ranks."""
        found = []
        for j, node in enumerate(self.nest.nodes):
            if isinstance(node, Store):
                rest = j
                if self.chain[node.tensor][0] != node:
                    mine = {
                        d.terms[0][0] for p in self.e.tensors() if p.tensor == node.tensor for d in p.dims
                    }
                    rest = j + 1
                    while (
                        rest < len(self.nest.nodes)
                        and isinstance(loop := self.nest.nodes[rest], Loop)
                        and not loop.over
                        and loop.rank in mine
                    ):
                        rest += 1
                if rest == i:
                    found.append(node)
        return found

    def go(self, at: int, lanes: list[Lane]) -> None:
        for node in self.resting(at):
            self.store(node, lanes)
        if at == len(self.nest.nodes):
            return self.compute(lanes)
        node = self.nest.nodes[at]
        if isinstance(node, Store):
            return self.go(at + 1, lanes)
        low, high = lanes[0].env[node.rank]
        trips = (high - low) // node.tile
        if node.over:
            d = [name for name, _ in self.f.dims].index(node.over)
            inner = [
                Lane(
                    tuple(c * (trips if i == d else 1) + n * (i == d) for i, c in enumerate(lane.place)),
                    (*lane.trips, n),
                    self.trip(lane, node, n),
                )
                for lane in lanes
                for n in range(trips)
            ]
            return self.go(at + 1, inner)
        if at == getattr(self, "turn", -1):
            return self.turned(at, node, trips, lanes)
        for n in range(trips):
            self.go(at + 1, [Lane(lane.place, lane.trips, self.trip(lane, node, n)) for lane in lanes])

    def trip(self, lane: Lane, node: Loop, n: int) -> dict:
        low = lane.env[node.rank][0] + n * node.tile
        return {**lane.env, node.rank: (low, low + node.tile)}

    def turned(self, at: int, node: Loop, trips: int, lanes: list[Lane]) -> None:
        """One pass: all work on the parts that they hold, then all parts go on to the lane before, but after
        the last.
        """
        seen = defaultdict(set)
        many = len(self.ring[lanes[0].place])
        for turn in range(many):
            for step in range(trips // many):
                at_once = [
                    Lane(
                        lane.place,
                        lane.trips,
                        self.trip(lane, node, self.parts[lane.place][0] * (trips // many) + step),
                    )
                    for lane in lanes
                ]
                for lane in at_once:
                    needs = self.words(self.one.tensor, lane.env)
                    seen[lane.place] |= needs
                    if not needs <= self.parts[lane.place][1]:
                        self.wrong.append(f"{lane.place} needs {needs} and holds {self.parts[lane.place]}")
                self.go(at + 1, at_once)
            if turn < many - 1:
                self.pass_on()
        for lane in lanes:
            if seen[lane.place] != self.words(self.one.tensor, lane.env):
                self.wrong.append(f"{lane.place} saw {seen[lane.place]} in a pass")

    def pass_on(self) -> None:
        before = dict(self.parts)
        for ring in {tuple(ring) for ring in self.ring.values()}:
            for taker, giver in zip(ring, ring[1:] + ring[:1], strict=True):
                self.parts[taker] = before[giver]
                n = len(before[giver][1])
                self.hops[self.one.tensor, "rotate"] += n * len(links(self.where(giver), self.where(taker)))
                self.counts["BUF", self.one.tensor, "read"] += n
                self.counts["BUF", self.one.tensor, "write"] += n

    def compute(self, lanes: list[Lane]) -> None:
        for p in self.e.tensors():
            wanted = [(lane.place, self.words(p.tensor, lane.env)) for lane in lanes]
            last, output = self.chain[p.tensor][-1].level, p is self.e.output
            if last == "DRAM":
                self.cross(p.tensor, wanted, "DRAM", "none")
            else:
                self.counts[last, p.tensor, "read"] += len(lanes)
                self.counts[last, p.tensor, "write"] += len(lanes) * output
