"""Fused tiles and kept tensors from the text of docs/model.md alone: own counts and an own list of all
schedules, sharing nothing with dse but how it is asked.

Two levels, no lanes, energy. Of an einsum at a place all nests are listed: which tensors have a node at GLB,
in which order, in which tiles; loops between two nodes as lets the upper one sink furthest. Workloads:
chains, residual edges, branches, shared inputs; products of weights and of results, sums, windows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations, permutations, product
from math import inf, prod
from random import Random

from dse.mapping.constraints import FREE
from dse.sim.einsum.evaluate import Solution
from dse.solve.schedules.fused import fused
from hw.arch import Arch, Compute, Level
from workloads.einsum import einsum
from workloads.graph import Workload

KINDS = ("chain", "residual", "branch", "shared", "any")
MOST = 64  # tiles of an einsum
WORD = 8


@dataclass(frozen=True)
class Access:
    """Ranks of every dimension; several of one are added up."""

    tensor: str
    dims: tuple[tuple[str, ...], ...]

    def elems(self, tile: dict[str, int]) -> int:
        return prod(1 + sum(tile[rank] - 1 for rank in dim) for dim in self.dims)

    def full(self) -> set[str]:
        return {dim[0] for dim in self.dims if len(dim) == 1}

    def windows(self) -> set[str]:
        return {rank for dim in self.dims if len(dim) > 1 for rank in dim}

    def __str__(self) -> str:
        return f"{self.tensor}[{','.join('+'.join(dim) for dim in self.dims)}]"


@dataclass(frozen=True)
class Operation:
    out: Access
    ins: tuple[Access, ...]
    sizes: dict[str, int]
    kind: str

    def all(self) -> tuple[Access, ...]:
        return (self.out, *self.ins)

    def text(self) -> str:
        right = {"mac": " * ".join, "add": " + ".join, "map": lambda own: f"relu({next(own)})"}[self.kind](
            map(str, self.ins)
        )
        return f"{self.out} {'+=' if self.kind == 'mac' else '='} {right}"


def divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


def subsets(items: Sequence[Access] | Sequence[str]) -> Iterator[tuple]:
    return chain.from_iterable(combinations(items, n) for n in range(len(items) + 1))


@dataclass
class Everything:
    """prices: of a word read and written at DRAM, at GLB."""

    operations: list[Operation]
    words: int
    prices: tuple[float, float, float, float]
    nests: dict[object, list[tuple[int, float]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.made = {o.out.tensor: i for i, o in enumerate(self.operations)}
        self.size = {a.tensor: a.elems(o.sizes) for o in self.operations for a in o.all()}
        self.readers = {
            t: [i for i, o in enumerate(self.operations) if t in {a.tensor for a in o.ins}] for t in self.made
        }

    def best(self) -> float:
        return min(
            self.rest(0, frozenset(kept), {}) for kept in subsets([t for t in self.made if self.readers[t]])
        )

    def rest(self, first: int, kept: frozenset[str], known: dict[int, float]) -> float:
        if first == len(self.operations):
            return 0.0
        if first not in known:
            known[first] = min(
                self.segment(range(first, last), kept) + self.rest(last, kept, known)
                for last in range(first + 1, len(self.operations) + 1)
            )
        return known[first]

    def segment(self, own: range, kept: frozenset[str]) -> float:
        room = self.words - sum(
            self.size[t] for t in kept if self.made[t] < own.stop and max(self.readers[t]) >= own.start
        )
        handed = [
            self.operations[i].out.tensor
            for i in own
            if {*own} & {*self.readers[self.operations[i].out.tensor]}
        ]
        if len(own) == 1:
            return self.nest(own[0], "", 0, kept, room)
        if not handed or kept & {*handed}:
            return inf
        return min(
            (
                self.fused(own, axes, handed, kept, room)
                for axes in product(*(sorted(self.operations[i].out.full()) for i in own))
            ),
            default=inf,
        )

    def fused(
        self, own: range, axes: tuple[str, ...], handed: list[str], kept: frozenset[str], room: int
    ) -> float:
        """The least with a loop over one rank of each. A handed-on tile is alive from its maker to its last
        reader.
        """
        read, write, _, fill = self.prices
        members, least = [(self.operations[i], rank) for i, rank in zip(own, axes, strict=True)], inf
        cut = {
            (a.tensor, tuple(k for k, dim in enumerate(a.dims) if dim == (rank,)))
            for o, rank in members
            for a in o.all()
            if a.tensor in handed
        }
        if (
            len({o.sizes[rank] for o, rank in members}) > 1
            or len(cut) > len(handed)
            or not all(places for _, places in cut)
        ):
            return inf
        names = [a.tensor for o, _ in members for a in o.all()]
        may = [
            a.tensor
            for o, rank in members
            for a in o.all()
            if not any(rank in dim for dim in a.dims)
            and names.count(a.tensor) == 1
            and a.tensor not in kept
            and a.tensor not in handed
        ]
        out = sum(self.size[t] * (write + self.prices[2]) for t in handed if not {*self.readers[t]} <= {*own})
        for tile in divisors(members[0][0].sizes[axes[0]])[:-1]:
            alive = [
                sum(
                    o.out.elems(o.sizes | {rank: tile})
                    for k, (o, rank) in zip(own, members, strict=True)
                    if o.out.tensor in handed
                    and k <= i <= max(j for j in self.readers[o.out.tensor] if j in own)
                )
                for i in own
            ]
            for held in subsets(may):
                left = room - sum(self.size[t] for t in held)
                if left >= max(alive):
                    near = frozenset({*handed, *held}) | kept
                    nests = sum(
                        self.nest(i, rank, tile, near, left - words)
                        for i, rank, words in zip(own, axes, alive, strict=True)
                    )
                    least = min(least, out + sum(self.size[t] for t in held) * (read + fill) + nests)
        return least

    def nest(self, i: int, rank: str, tile: int, near: frozenset[str], room: int) -> float:
        """Of an einsum, all trips of the shared loop; near: tensors whose home is GLB."""
        o = self.operations[i]
        key = (i, rank, tile, near & {a.tensor for a in o.all()})
        if key not in self.nests:
            self.nests[key] = list(self.listed(o, rank, tile, near))
        return min((energy for words, energy in self.nests[key] if words <= room), default=inf)

    def listed(self, o: Operation, rank: str, tile: int, near: frozenset[str]) -> Iterator[tuple[int, float]]:
        """(words at GLB, energy) of all nests, dominated ones left out."""
        start = o.sizes | ({rank: tile} if rank else {})
        times = o.sizes[rank] // tile if rank else 1
        tiles = [
            dict(zip(start, own, strict=True)) for own in product(*(divisors(n) for n in start.values()))
        ]
        inner = [[i for i, b in enumerate(tiles) if all(a[r] % b[r] == 0 for r in a)] for a in tiles]
        moved = {
            a: [self.moved(o, a, b, times * prod(start[r] // b[r] for r in b)) for b in tiles]
            for a in o.all()
        }
        found: dict[int, float] = {}
        for nodes in subsets([a for a in o.all() if a.tensor not in near]):
            compute = sum(self.computed(o, a, a in nodes or a.tensor in near) for a in o.all())
            for order in permutations(nodes):
                states = {(tiles.index(start), 0): compute}  # (tile of the last node, words) -> energy
                for k, a in enumerate(order):
                    new: dict[tuple[int, int], float] = {}
                    for (at, words), energy in states.items():
                        for b in inner[at]:
                            more = words + (self.held(order[k - 1], tiles[at], tiles[b]) if k else 0)
                            if more <= self.words and energy + moved[a][b] < new.get((b, more), inf):
                                new[b, more] = energy + moved[a][b]
                    states = new
                for (at, words), energy in states.items():
                    last = words + (self.held(order[-1], tiles[at], dict.fromkeys(start, 1)) if order else 0)
                    found[last] = min(found.get(last, inf), energy)
        least = inf
        for words in sorted(found):
            if found[words] < least:
                least = found[words]
                yield words, least

    def computed(self, o: Operation, a: Access, near: bool) -> float:
        """Operands per operation; a result is read and written, but for the first read of each element."""
        read, write = self.prices[2:] if near else self.prices[:2]
        points = prod(o.sizes.values())
        return (points - a.elems(o.sizes)) * read + points * write if a is o.out else points * read

    def moved(self, o: Operation, a: Access, tile: dict[str, int], trips: int) -> float:
        """A node at GLB: its tile once per trip of all loops above it; of a result out, and in but for the
        first time.
        """
        read, write, give, take = self.prices
        words = a.elems(tile) * trips
        return (
            words * (write + give) + (words - a.elems(o.sizes)) * (read + take)
            if a is o.out
            else words * (read + take)
        )

    def held(self, a: Access, tile: dict[str, int], after: dict[str, int]) -> int:
        """Words of a node that sinks through loops that cut it alone, and into one that moves a window."""
        sunk = tile | {rank: after[rank] for rank in a.full()}
        return min(a.elems(sunk | ({rank: after[rank]} if rank else {})) for rank in ("", *a.windows()))


def random_operations(rng: Random, extents: Sequence[int]) -> tuple[str, list[Operation], frozenset[str]]:
    """(kind, einsums, weights)."""
    shapes, weights, found, kind = (
        {"X": (rng.choice(extents), rng.choice(extents))},
        set[str](),
        list[Operation](),
        rng.choice(KINDS),
    )
    for i in range(rng.randint(2, 4)):
        made, before = [t for t in shapes if t[0] == "T"], f"T{i - 1}" if i else "X"
        others = {
            "branch": [before, *made],
            "shared": ["X", before],
            "any": [t for t in shapes if t not in weights],
        }
        a = rng.choice(others.get(kind, [before]))
        (rows, columns), wide = shapes[a], rng.choice(extents)
        m, n, k = (f"{rank}{i}" if rng.random() < 0.5 else rank for rank in "mnk")
        alike = [t for t in shapes if shapes[t] == shapes[a] and t != a and t not in weights]
        way, what = (
            "mac",
            rng.choice(["gemm", "gemm", "left", "map", "add", "window", *["add"] * 4 * (kind == "residual")]),
        )
        if what == "add" and alike:
            way, ins, out, sizes = (
                "add",
                (Access(a, ((m,), (n,))), Access(rng.choice(alike), ((m,), (n,)))),
                ((m,), (n,)),
                {m: rows, n: columns},
            )
        elif what == "map":
            way, ins, out, sizes = "map", (Access(a, ((m,), (n,))),), ((m,), (n,)), {m: rows, n: columns}
        elif what == "window" and columns > 2:
            r = 2 if columns < 4 else rng.choice([2, 3])
            ins, out, sizes = (
                (Access(a, ((m,), (n, k))), Access(f"W{i}", ((k,),))),
                ((m,), (n,)),
                {m: rows, n: columns - r + 1, k: r},
            )
        elif what == "left":
            ins, out, sizes = (
                (Access(f"W{i}", ((n,), (k,))), Access(a, ((k,), (m,)))),
                ((n,), (m,)),
                {n: wide, m: columns, k: rows},
            )
        else:  # by weights of its own, by those of another one, by another result
            fits = [t for t in shapes if shapes[t][0] == columns and t not in (a, "X")]
            b = rng.choice(fits) if fits and rng.random() < 0.35 else f"W{i}"
            weights |= {b} if b[0] == "W" else set()
            _, wide = shapes.setdefault(b, (columns, wide))
            ins, out, sizes = (
                (Access(a, ((m,), (k,))), Access(b, ((k,), (n,)))),
                ((m,), (n,)),
                {m: rows, n: wide, k: columns},
            )
        weights |= {f"W{i}"} & {one.tensor for one in ins}
        found.append(Operation(Access(f"T{i}", out), ins, sizes, way))
        shapes[f"T{i}"] = tuple(sizes[dim[0]] for dim in out)  # type: ignore[assignment]
    return kind, found, frozenset(weights)


def wrong(seed: int, extents: Sequence[int] = (2, 3, 4, 6)) -> list[str]:
    """What the engine says otherwise of one random graph, of one shared loop per segment; or that several
    loops cost more.
    """
    rng = Random(seed)
    while True:
        kind, operations, weights = random_operations(rng, extents)
        if all(prod(len(divisors(n)) for n in o.sizes.values()) <= MOST for o in operations):
            break
    prices = (rng.choice([20.0, 200.0]), rng.choice([20.0, 100.0, 200.0]), 2.0, 3.0)
    largest = max(a.elems(o.sizes) for o in operations for a in o.all())
    words = rng.choice([4, largest // 2 + 2, largest, largest + 5, 2 * largest, 3 * largest])
    levels = (
        Level("DRAM", None, WORD, *prices[:2], 4.0, bypass=False),
        Level("GLB", words * WORD, WORD, *prices[2:], 4.0),
    )
    workload = Workload(
        "w", tuple(einsum(o.text(), o.sizes, f"e{i}") for i, o in enumerate(operations)), weights
    )
    arch = Arch("hand", levels, (), Compute(0.0, 0.0), 1.0, WORD, overlap="free")
    one_loop, several = (
        fused(arch, workload, "energy", "perfect", lambda _: FREE, several_loops=many)
        for many in (False, True)
    )
    best = Everything(operations, words, prices).best()
    said = one_loop.energy_pj if isinstance(one_loop, Solution) else inf
    floor = said / (1 + one_loop.optimality_gap) if isinstance(one_loop, Solution) else inf
    most = several.energy_pj if isinstance(several, Solution) else inf
    right = floor * (1 - 1e-9) <= best <= said * (1 + 1e-9) or said == best
    if right and most <= said * (1 + 1e-9):
        return []
    texts = [f"{o.text()} {o.sizes}" for o in operations]
    line = f"seed {seed}, {kind}, {words} words, {prices}: {said}, floor {floor}, several loops {most}"
    return [f"{line}, by hand {best} of {texts}"]
