"""The walk in time: a small nest, executed with ports as resources and tiles as transfers. Shares no code
with dse/sim.

What docs/model.md says is taken as it stands there. What it leaves open is decided by what a real machine
with single and double buffers does:

* Lanes run in lockstep, as an array under one sequencer does: all are in the same iteration of the temporal
  loops, and the lanes that a ragged tile leaves idle wait. A tile of a node is one transfer of all lanes:
  every lane reads its own words from its parent instance (once for all lanes where the fan-out multicasts),
  writes them at its own port.
* A transfer streams: it uses every port on its way at once, and lasts as long as the slowest. What it leaves
  of a faster port serves others. Where two want the same port, it serves first what the nest needs first:
  operands of the steps that run, the fill of the next tile, a drain when its room is needed again; word by
  word, so no time is lost by switching.
* Compute steps between two changes of any tile are one stream of operand accesses and operations; pipeline
  registers smooth it, so it lasts as long as its slowest port, or as its steps. The pipeline's own depth is
  the systolic ramp, not here.
* Tiles are stored and forwarded: nothing is read from a tile before all of it is there. A level announces a
  round (all that starts at one place of the nest) when the last of its fills has arrived; nothing inside the
  level that belongs to the round starts before, also no fill that bypasses the level: control goes from the
  outside in.
* Single-buffered: a round starts when all inside has ended, drains included. Drains and fills then go side by
  side as ports allow, a tile's fill after the drain of the same tensor. Nothing inside runs meanwhile; levels
  outside do.
* Double-buffered: per tensor two tiles, ping and pong. The next tile is filled after this one, into the room
  of the one before as soon as that was read for the last time (by compute, or by the fills of the level
  inside) and, of an output, has drained. A drain starts when the last step on the tile has been done and the
  level inside has drained into it; drains go in order.
* A partial sum is read back after it has been written: a fill of elements that the tile before still drains
  waits for that drain.
* First words of levels come one level after the other, before all else; all later requests were sent ahead.
* A tile with nothing to fetch (padding, a first partial sum) needs its room when it is first written; no
  other transfer waits. Dense tensors only; systolic ramps and the vector unit are left to the closed form.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from random import Random

from tests.unrolled import Node, Port, Program, Tile, Work


@dataclass(slots=True)
class Activity:
    """A transfer, a block of steps, or (no work) a gate: it starts when all it waits for has ended.

    need: the block that cannot start before it has ended; of a block itself. left: share still to do.
    """

    work: Work
    waits: int
    need: int
    next: list[int] = field(default_factory=list)
    left: Fraction = Fraction(1)


class Schedule:
    """Activities in program order with their dependences."""

    def __init__(self) -> None:
        self.all: list[Activity] = []

    def add(self, work: Work, after: Iterable[int | None], need: int = 0) -> int:
        before = {i for i in after if i is not None}
        self.all.append(Activity(work, len(before), need))
        for i in before:
            self.all[i].next.append(len(self.all) - 1)
        return len(self.all) - 1

    def run(self, rng: Random | None = None) -> tuple[Fraction, bool]:
        """Cycles until all has ended, and whether an activity ever waited for a port that another one used.
        rng: ports serve in random order.
        """
        ready = sorted(i for i, one in enumerate(self.all) if not one.waits)
        now, contended = Fraction(0), False
        while ready:
            rates = self.rates(ready, rng)
            contended = contended or any(
                rate < lone(self.all[i].work) for i, rate in rates.items() if rate is not None
            )
            done = [i for i in ready if rates[i] is None]
            if not done:
                step = min(self.all[i].left / rate for i, rate in rates.items() if rate)
                now += step
                for i, rate in rates.items():
                    self.all[i].left -= rate * step if rate else 0
                done = [i for i in ready if not self.all[i].left]
            ready = [i for i in ready if i not in done]
            for i in done:
                for j in self.all[i].next:
                    self.all[j].waits -= 1
                    if not self.all[j].waits:
                        ready.append(j)
            ready.sort()
        assert not any(one.waits for one in self.all), "the program waits for itself"
        return now, contended

    def rates(self, ready: list[int], rng: Random | None) -> dict[int, Fraction | None]:
        """Share per cycle of each activity, ports given first to what is needed first; None: nothing to
        move."""
        free: dict[Port, Fraction] = {}
        found: dict[int, Fraction | None] = {}
        for i in sorted(ready, key=lambda i: (rng.random() if rng else self.all[i].need, i)):
            work = self.all[i].work
            found[i] = min(
                (free.get(port, Fraction(1)) / cycles for port, cycles in work.items()), default=None
            )
            for port, cycles in work.items():
                free[port] = free.get(port, Fraction(1)) - (found[i] or 0) * cycles
        return found


def lone(work: Work) -> Fraction:
    return 1 / max(work.values())


class Planner:
    """Lays down the activities of a program, boundary by boundary: drains from the inside out, fills from the
    outside in, a block of steps.
    """

    def __init__(
        self,
        p: Program,
        s: Schedule | None = None,
        after: int | None = None,
        early: int | None = None,
        ready: Collection[tuple[int, str]] = (),
        base: int = 0,
    ) -> None:
        """after: what all wait for, the end of the nest before; but the first fills of the nodes (level,
        tensor) in `ready` for `early` only.
        """
        self.p, self.s, self.after, self.early, self.ready, self.base = (
            p,
            s or Schedule(),
            after,
            early,
            ready,
            base,
        )
        self.levels = sorted({node.level for node in p.nodes})
        self.child = {node.parent_at: node.at for node in p.nodes}
        self.starts = {(node.at, tile.start): r for node in p.nodes for r, tile in enumerate(node.tiles)}
        self.ends = {(node.at, tile.end): r for node in p.nodes for r, tile in enumerate(node.tiles)}
        self.block: dict[int, int] = {}
        # per level: its last round is announced (double-buffered), or is in place (single)
        self.gate: dict[int, int] = {}
        self.announced: dict[tuple[int, int], int] = {}  # (level, boundary): the gate then
        self.filled: dict[int, dict[int, int]] = {node.at: {} for node in p.nodes}  # by boundary
        self.drains: dict[int, list[int]] = {node.at: [] for node in p.nodes}
        for v, cycles in enumerate(p.begins):
            self.after = self.s.add({(v, (), "first word"): cycles}, [self.after])
        for b in range(len(p.blocks) + 1):
            opened = self.drain(b)
            rooms = self.fill(b, opened)
            if b < len(p.blocks):
                self.block[b] = self.add(p.blocks[b], [self.block.get(b - 1), *self.gate.values(), *rooms], b)

    def add(self, work: Work, waits: Iterable[int | None], need: int = 0) -> int:
        return self.s.add(work, [*waits, self.after], need + self.base)

    def drain(self, b: int) -> dict[int, int]:
        """Drains of tiles that end at a boundary; per single-buffered level that changes there the gate at
        which all inside has ended.
        """
        opened: dict[int, int] = {}
        for v in reversed(self.levels):
            here = [
                node
                for node in self.p.nodes
                if node.level == v and ((node.at, b) in self.starts or (node.at, b) in self.ends)
            ]
            if here and not self.p.double[v]:
                inner = [
                    self.drains[node.at][-1]
                    for node in self.p.nodes
                    if node.level > v and self.drains[node.at]
                ]
                opened[v] = self.add({}, [self.block.get(b - 1), self.gate.get(v), *inner])
            for node in here:
                if not node.output or (node.at, b) not in self.ends:
                    continue
                r, own = self.ends[node.at, b], self.drains[node.at]
                inner = self.drains[self.child[node.at]][-1:] if node.at in self.child else []
                need = (
                    b
                    if not self.p.double[v]
                    else node.tiles[r + 1].end
                    if r + 1 < len(node.tiles)
                    else len(self.p.blocks)
                )
                own.append(
                    self.add(
                        node.tiles[r].drain,
                        [self.block[b - 1], opened.get(v), *inner, *own[-1:], *self.place(node)],
                        need,
                    )
                )
        return opened

    def fill(self, b: int, opened: dict[int, int]) -> list[int]:
        """Fills of tiles that start at a boundary. With nothing to fetch, into a double-buffered level, only
        what writes the tile waits: the steps for those returned, else drains of the level inside.
        """
        rooms: list[int] = []
        for v in self.levels:
            fills: list[int] = []
            for node in self.p.nodes:
                if node.level == v and (node.at, b) in self.starts:
                    tile = node.tiles[self.starts[node.at, b]]
                    outer = [self.gate[u] for u in self.levels if u < v and u in self.gate]
                    parent = self.place(node) if tile.fill else []
                    room = (
                        [opened[v], *self.drains[node.at][-1:]]
                        if v in opened
                        else self.room(node, self.starts[node.at, b])
                    )
                    ready = not b and (v, node.tensor.tensor) in self.ready
                    self.filled[node.at][b] = (
                        self.s.add(tile.fill, [self.early], self.base)
                        if ready
                        else self.add(tile.fill, [*outer, *parent, *room], b)
                    )
                    if tile.fill or v in opened:
                        fills.append(self.filled[node.at][b])
                    elif node.at not in self.child:
                        rooms.append(self.filled[node.at][b])
            if v in opened:
                fills += [
                    opened[v],
                    *(
                        self.drains[node.at][-1]
                        for node in self.p.nodes
                        if node.level == v and self.drains[node.at]
                    ),
                ]
            if fills:
                self.gate[v] = self.add({}, [*fills, self.gate.get(v)])
            if v in self.gate:
                self.announced[v, b] = self.gate[v]
        return rooms

    def place(self, node: Node) -> list[int]:
        """The parent's tile."""
        return list(self.filled.get(node.parent_at, {}).values())[-1:]

    def room(self, node: Node, r: int) -> list[int | None]:
        """What a double-buffered node's fill waits for: the round of the tile before, and the room of the one
        before that.
        """
        if not r:
            return []
        last, drained = node.tiles[r - 1], self.drains[node.at]
        free = [*self.readers(node, node.tiles[r - 2]), *drained[r - 2 : r - 1]] if r > 1 else []
        return [
            self.announced.get((node.level, last.start)),
            *free,
            *(drained[r - 1 : r] if node.tiles[r].read & last.drained else []),
        ]

    def readers(self, node: Node, tile: Tile) -> list[int]:
        """What reads a tile: the fills of the next node inward, or compute."""
        if node.at not in self.child:
            return [self.block[tile.end - 1]]
        inner = self.filled[self.child[node.at]]
        return [inner[b] for b in range(tile.start, tile.end) if b in inner]


def walk_ahead(
    programs: Sequence[tuple[Program, Collection[tuple[int, str]]]], rng: Random | None = None
) -> Fraction:
    """Cycles of nests in turn, where the first fills of some nodes may come as soon as the nest before
    starts; ports serve the running nest first.
    """
    s, ends, base = Schedule(), list[int | None]([None, None]), 0
    for p, ready in programs:
        first = len(s.all)
        Planner(p, s, ends[-1], ends[-2], ready, base)
        ends.append(s.add({}, [ends[-1], *range(first, len(s.all))], base))
        base += len(p.blocks) + 2
    return s.run(rng)[0]


def walk(p: Program, rng: Random | None = None) -> tuple[Fraction, bool]:
    """Cycles of a nest on a machine, and whether transfers, or a transfer and compute, ever wanted the same
    port at once.

    rng: ports serve what waits in random order, newly drawn at every event.
    """
    return Planner(p).s.run(rng)


def alike(p: Program) -> bool:
    """Whether all rounds are: the same tiles and steps in each, and none whose partial sums wait for two
    rooms.

    A partial sum that is read back into a double-buffered level keeps its room from its fill to its drain,
    steps included: rounds last half of that at least, which no port time says.
    """
    back = any(
        tile.read for node in p.nodes if node.output and p.double[node.level] for tile in node.tiles[1:]
    )
    same = all(
        len({(tile.end - tile.start, *sorted(work.items())) for tile in node.tiles for work in [of(tile)]})
        == 1
        for node in p.nodes
        for of in (lambda tile: tile.fill, lambda tile: tile.drain)
    )
    return same and not back and all(block == p.blocks[0] for block in p.blocks)
