"""What a nest asks of one level, element by element: boxes in the order of time, their addresses by the
layout's primitives, and what lines, rows and banks make of them. Shares nothing with dse/layout/address.py,
dse/layout/count.py and dse/sim/levels/transfer.py; also layouts and descriptions drawn at random.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, product
from math import prod
from random import Random

from dse.layout.primitive import Index, Primitive, Unfold, apply, shapes
from dse.layout.text import MAX_COPIES, primitives
from dse.mapping.nest import Loop, Mapping, Store, TensorLayout
from hw.arch import Access, Arch
from workloads.einsum import Einsum, Projection

Lane = dict[str, tuple[int, int]]  # rank -> (first, how many)


def random_text(rng: Random, names: Sequence[str], shape: Sequence[int]) -> str:
    """A legal layout of the shape, by no means canonical: parts of several levels, tiles that overlap,
    padding, guests, groups, fused dimensions.
    """
    names, shape, head = list(names), list(shape), ""
    if len(names) > 1 and rng.random() < 0.15:
        a = rng.randrange(len(names) - 1)
        b = rng.randrange(a + 1, len(names))
        head = f"e_v={'*'.join(names[a : b + 1])} | "
        names, shape = (
            [*names[:a], "E_V", *names[b + 1 :]],
            [*shape[:a], prod(shape[a : b + 1]), *shape[b + 1 :]],
        )
    tokens = [token for name, n in zip(names, shape, strict=True) for token in _parts(rng, name, n)]
    if rng.random() < 0.7:
        rng.shuffle(tokens)
    tokens = [
        token
        + (f"+{rng.randint(1, 3)}" if rng.random() < 0.1 else "")
        + ("&bias" if rng.random() < 0.03 else "")
        for token in tokens
    ]
    if len(tokens) > 2 and rng.random() < 0.2:
        a = rng.randrange(len(tokens) - 1)
        b = rng.randrange(a + 1, len(tokens))
        tokens[a], tokens[b] = f"({tokens[a]}", f"{tokens[b]})"
    return head + " ".join(tokens)


def _parts(rng: Random, name: str, n: int) -> list[str]:
    draw = rng.random()
    if draw < 0.45:
        return [name]
    if draw < 0.85:
        moduli = [rng.choice([1, 2, 4, 8, rng.randint(1, n + 2)])]
        while moduli[-1] > 1 and rng.random() < 0.4:
            moduli.append(rng.choice([f for f in range(1, moduli[-1] + 1) if moduli[-1] % f == 0]))
        inner = [f"{name.lower()}{a}/{b}" for a, b in pairwise(moduli)]
        return [f"{name}/{moduli[0]}", *inner, f"{name.lower()}{moduli[-1]}"]
    size = rng.randint(1, n)
    stride = rng.randint(-(-size // MAX_COPIES), size)
    return [f"{name}/{stride}", f"{name.lower()}{stride}~{size}"]


def random_access(rng: Random, capacity_bits: int = 0) -> Access:
    """Lines, rows and banks, or an SRAM's words and banks; mostly powers of two, as memories are."""
    element = 8
    line = element * rng.choice([1, 2, 4, 8, 16, 3])
    if capacity_bits:
        banks = rng.choice([1, 2, 4, 8])
        return Access(
            line,
            banks=banks,
            bank_map=rng.choice(["word", "word", "xor", "block"]),
            capacity_bits=line * banks * rng.choice([4, 64]),
        )
    row = line * rng.choice([2, 4, 8])
    return Access(line, row, rng.choice([1, 2, 4]), rng.choice([row, row, line, 2 * line]), 1.0, 1.0)


def described(rng: Random, arch: Arch) -> Arch:
    """The machine with a description at every level outside of its arrays."""
    border = min((f.outside for f in arch.fanouts), default=len(arch.levels))
    return replace(
        arch,
        levels=tuple(
            replace(level, access=random_access(rng, 1 if v else 0)) if v < border else level
            for v, level in enumerate(arch.levels)
        ),
    )


def with_layouts(
    rng: Random, mapping: Mapping, e: Einsum, arch: Arch, names: dict[str, tuple[str, ...]]
) -> Mapping:
    """Random layouts of most tensors at described levels."""
    laid = []
    for i, node in enumerate(mapping.nodes):
        if (
            isinstance(node, Store)
            and next(level for level in arch.levels if level.name == node.level).access
            and rng.random() < 0.85
        ):
            p = next(p for p in e.tensors() if p.tensor == node.tensor)
            laid.append(
                TensorLayout(
                    node.level, node.tensor, random_text(rng, names[p.tensor], lies(mapping, i, e, p, arch))
                )
            )
    return replace(mapping, layouts=tuple(laid))


def lies(mapping: Mapping, at: int, e: Einsum, p: Projection, arch: Arch) -> tuple[int, ...]:
    """The shape of what stands at the node at position `at`."""
    if mapping.nodes[at] == Store(arch.levels[0].name, p.tensor):
        return tuple(d.size for d in p.dims)
    tile = e.sizes()
    for node in mapping.nodes[:at]:
        if isinstance(node, Loop):
            tile[node.rank] = node.tile
    return tuple(1 + sum(c * (tile[rank] - 1) for rank, c in d.terms) for d in p.dims)


@dataclass(slots=True)
class Stream:
    """Totals of all that one tensor moves at one level in one direction. held: elements that one instance of
    the next node has at once, at most: a transfer is of no use where these have no room.
    """

    elems: int = 0
    runs: int = 0
    lines: int = 0
    activations: int = 0
    conflict: int = 0
    held: int = 0
    open: dict[int, int] = field(default_factory=dict)

    def box(self, addresses: set[int], bits: int, a: Access) -> None:
        """One transfer, its addresses in ascending order; in bits, so that an element may lie in two
        lines."""
        touched = sorted(
            {bit // a.line_bits for at in addresses for bit in (at * bits, at * bits + bits - 1)}
            | {
                line
                for at in addresses
                for line in range(at * bits // a.line_bits, (at * bits + bits - 1) // a.line_bits)
            }
        )
        self.elems += len(addresses)
        self.runs += sum(at - 1 not in addresses for at in addresses)
        self.lines += len(touched)
        if a.row_bits:
            for granule in sorted({line * a.line_bits // a.interleave_bits for line in touched}):
                bank, row = granule % a.row_banks, granule * a.interleave_bits // (a.row_bits * a.row_banks)
                self.activations += self.open.get(bank) != row
                self.open[bank] = row
        if a.banks:
            deep = a.capacity_bits // a.line_bits // a.banks
            arrays = [
                w // deep % a.banks
                if a.bank_map == "block"
                else (w ^ (w // a.banks)) % a.banks
                if a.bank_map == "xor"
                else w % a.banks
                for w in touched
            ]
            self.conflict += max(map(arrays.count, arrays))


def streams(
    mapping: Mapping, e: Einsum, arch: Arch, level: str, p: Projection, names: Sequence[str]
) -> dict[str, Stream]:
    """By action, what one tensor moves between a level and the next node inward (or compute)."""
    at = mapping.nodes.index(Store(level, p.tensor))
    child = next(
        (
            i
            for i in range(at + 1, len(mapping.nodes))
            if isinstance(n := mapping.nodes[i], Store) and n.tensor == p.tensor
        ),
        len(mapping.nodes),
    )
    home = level == arch.levels[0].name
    own = next(one for one in arch.levels if one.name == level)
    a, bits, shape = own.access, p.bits or arch.word_bits, lies(mapping, at, e, p, arch)
    assert a is not None
    text = next((one.text for one in mapping.layouts if (one.level, one.tensor) == (level, p.tensor)), None)
    places = Places(shape, primitives(text, names, shape) if text else [])
    output = p is e.output
    found, written = (
        {action: Stream() for action in (("write", "read") if output else ("read",))},
        set[Index](),
    )
    for corner, box, again, held in _boxes(mapping, e, arch, p, at, child):
        for one in found.values():
            one.held = max(one.held, held)
        index = {tuple(x - (0 if home else c) for x, c in zip(i, corner, strict=True)) for i in box}
        if not output:
            found["read"].box(places.read(index), bits, a)
            continue
        if not own.skip_first_read or again or box & written:
            found["read"].box(places.read(index), bits, a)
        found["write"].box(places.written(index), bits, a)
        written |= box
    return found


def _boxes(
    mapping: Mapping, e: Einsum, arch: Arch, p: Projection, at: int, child: int
) -> Iterator[tuple[Index, set[Index], bool, int]]:
    """(corner of the tile at the node, global indices asked for, not for the first time, the most that one
    lane holds then) of each transfer, in the order of time.
    """
    shared = {
        name: reduce if p is e.output else multicast
        for f in arch.fanouts
        for (name, _), multicast, reduce in zip(f.dims, f.multicast, f.reduce, strict=True)
    }
    home, seen = mapping.nodes[at] == Store(arch.levels[0].name, p.tensor), p.ranks()

    def corner(lane: Lane) -> Index:
        return tuple(d.offset + sum(c * lane[rank][0] for rank, c in d.terms) for d in p.dims)

    def new(
        group: tuple[int, ...], lanes: list[tuple[tuple[int, ...], Lane]]
    ) -> Iterator[tuple[set[Index], int]]:
        """What a node asks for, and holds then: all of its tile; of a window that slides along the loop
        below, in every trip what was not there in the trip before.
        """
        own = [lane for g, lane in lanes if g == group]
        loop = mapping.nodes[child + 1] if child + 1 < len(mapping.nodes) else None
        dims = [d.terms for d in p.dims if isinstance(loop, Loop) and loop.rank in d.ranks()]
        if (
            child == len(mapping.nodes)
            or not isinstance(loop, Loop)
            or loop.over
            or p is e.output
            or len(dims) != 1
            or dims[0] == ((loop.rank, 1),)
        ):
            tiles = [set(_hull(p, lane, home)) for lane in own]
            yield set[Index]().union(*tiles), max(map(len, tiles))
            return
        held: list[set[Index]] = [set() for _ in own]
        for t in range(max(-(-lane[loop.rank][1] // loop.tile) for lane in own)):
            asked = set[Index]()
            for k, lane in enumerate(own):
                first, n = lane[loop.rank]
                if n > t * loop.tile:
                    window = set(
                        _hull(
                            p,
                            lane | {loop.rank: (first + t * loop.tile, min(loop.tile, n - t * loop.tile))},
                            home,
                        )
                    )
                    asked, held[k] = asked | window - held[k], window
            yield asked, max(map(len, held))

    def run(
        i: int, lanes: list[tuple[tuple[int, ...], Lane]], base: Index, again: bool
    ) -> Iterator[tuple[Index, set[Index], bool, int]]:
        if i == at:
            assert len(lanes) == 1
            base = corner(lanes[0][1])
        if i == child:
            for group in dict.fromkeys(g for g, _ in lanes):
                for box, most in new(group, lanes):
                    if box:
                        yield base, box, again, most
            return
        node = mapping.nodes[i]
        if not isinstance(node, Loop):
            yield from run(i + 1, lanes, base, again)
            return
        trips = max(-(-lane[node.rank][1] // node.tile) for _, lane in lanes)
        apart = bool(node.over) and node.rank not in seen and not shared[node.over]
        cut = [
            [
                (
                    (*g, t) if apart else g,
                    lane | {node.rank: (first + t * node.tile, min(node.tile, n - t * node.tile))},
                )
                for g, lane in lanes
                for first, n in [lane[node.rank]]
                if n > t * node.tile
            ]
            for t in range(trips)
        ]
        if node.over:
            yield from run(i + 1, [one for several in cut for one in several], base, again)
        else:
            for t, several in enumerate(cut):
                yield from run(i + 1, several, base, again or (t > 0 and node.rank not in seen))

    yield from run(0, [((), {rank: (0, n) for rank, n in e.extents})], (), False)


def _hull(p: Projection, lane: Lane, home: bool) -> Iterator[Index]:
    """Indices between the first and the last of each dimension; none that is not stored, where the whole
    tensor lies.
    """
    spans = []
    for d in p.dims:
        low = d.offset + sum(c * lane[rank][0] for rank, c in d.terms)
        high = low + sum(c * (lane[rank][1] - 1) for rank, c in d.terms)
        spans.append(range(max(low, 0), min(high, d.size - 1) + 1) if home else range(low, high + 1))
    return product(*spans)


class Places:
    """Addresses of elements, one primitive after the other."""

    def __init__(self, shape: tuple[int, ...], prims: Sequence[Primitive]) -> None:
        self.prims, self.shapes, self.known = (
            prims,
            shapes(shape, prims),
            dict[tuple[Index, tuple[int, ...]], int](),
        )
        self.unfolds = [(k, p) for k, p in enumerate(prims) if isinstance(p, Unfold)]

    def at(self, index: Index, tiles: tuple[int, ...]) -> int:
        """With the given tile of each unfold."""
        if (index, tiles) not in self.known:
            i, chosen = index, iter(tiles)
            for p, shape in zip(self.prims, self.shapes, strict=False):
                if isinstance(p, Unfold):
                    tile = next(chosen)
                    i = (*i[: p.dim], tile, i[p.dim] - tile * p.stride, *i[p.dim + 1 :])
                else:
                    found = apply(p, shape, i)
                    assert found is not None
                    i = found
            where = 0
            for n, x in zip(self.shapes[-1], i, strict=True):
                where = where * n + x
            self.known[index, tiles] = where
        return self.known[index, tiles]

    def _unfolded(self, index: Index) -> list[tuple[int, Unfold, int]]:
        """(value, unfold, tiles) of every unfolded dimension of an element."""
        found, i = [], index
        for k, p in enumerate(self.prims):
            if isinstance(p, Unfold):
                found.append((i[p.dim], p, self.shapes[k + 1][p.dim]))
            i = apply(p, self.shapes[k], i) or i
        return found

    def written(self, box: set[Index]) -> set[int]:
        return {
            self.at(i, tiles)
            for i in box
            for tiles in product(
                *(
                    [t for t in range(n) if 0 <= x - t * p.stride < p.tile_size]
                    for x, p, n in self._unfolded(i)
                )
            )
        }

    def read(self, box: set[Index]) -> set[int]:
        """From the first tile that holds the last index of the box, and what that tile does not hold from
        canonical copies.
        """
        of = {i: self._unfolded(i) for i in box}
        last = [max(values) for values in zip(*([x for x, _, _ in own] for own in of.values()), strict=True)]
        ends = [
            next(t for t in range(n) if top - t * p.stride < p.tile_size)
            for top, (_, p, n) in zip(last, next(iter(of.values())), strict=True)
        ]
        return {
            self.at(
                i,
                tuple(
                    end if x >= end * p.stride else min(x // p.stride, n - 1)
                    for end, (x, p, n) in zip(ends, own, strict=True)
                ),
            )
            for i, own in of.items()
        }
