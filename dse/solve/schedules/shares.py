"""Lower bounds of stages by the nodes that they have: of all ways to share an einsum out, all nests and all
places (docs/reuse.md, Pipelines).

    part       ranks cut over nodes (`stages.tiles`); n_t of them share a word of tensor t, the others have
               words of their own
    a word     is read where it comes from once, written to the buffers of n_t nodes, and takes n_t - 1 links
               between these, and those to the nearest
    nearest    of G groups of nodes, which are all different, the G nodes nearest to main memory; another
               stage is one link away at least
    room       what is handed on and pinned stays in a node's buffer, beside a word of all else where none may
               pass it by

A segment: stages of different nodes, no more of them than there are. Time is that of all lanes, or of main
memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, product
from math import ceil, inf, prod

import numpy as np
from numpy.typing import NDArray

from dse.sim.counts.counts import tile_bits
from dse.sim.counts.parts import bits_of
from dse.sim.einsum import bounds
from dse.sim.levels import network
from dse.solve.schedules.floors import LowerBound, inside_pj, lower_bound
from dse.solve.schedules.registers import IMAGE, MISSED, C, K, N, Roles, kinds, roles
from dse.solve.schedules.stages import NODE_RANKS, WASTE, StageContext, may_share, pinned_bits, split_ranks
from hw.arch import Arch
from workloads.arrays import Floats, Ints
from workloads.einsum import Einsum, Projection

CLOSE = 1e-9


def tilings(e: Einsum, ranks: Sequence[str], most: int) -> Ints:
    """[W, R] tiles of the ranks, at most two of them cut, on at most so many nodes; of tiles that leave as
    many lanes the smallest.
    """
    sizes = e.sizes()
    own = {
        rank: np.array(
            sorted(
                {-(-sizes[rank] // parts) for parts in range(1, min(sizes[rank], most) + 1)} - {sizes[rank]}
            ),
            np.int64,
        )
        for rank in ranks
    }
    whole = np.array([sizes[rank] for rank in ranks], np.int64)
    found = [whole[None, :]]
    for a, rank in enumerate(ranks):
        rows = np.repeat(whole[None, :], len(own[rank]), axis=0)
        rows[:, a] = own[rank]
        found.append(rows)
    for a, b in combinations(range(len(ranks)), NODE_RANKS):
        first, second = (m.ravel() for m in np.meshgrid(own[ranks[a]], own[ranks[b]], indexing="ij"))
        few = -(-whole[a] // first) * -(-whole[b] // second) <= most
        rows = np.repeat(whole[None, :], int(few.sum()), axis=0)
        rows[:, a], rows[:, b] = first[few], second[few]
        found.append(rows)
    return np.concatenate(found)


@lru_cache(maxsize=16)
def near_links(grid: network.Place, rim: str) -> Floats:
    """[lanes + 1, G + 1] links to main memory that the nearest G nodes of a rectangle of so many lanes have
    together at least, wherever it lies; inf: no rectangle of so many.
    """
    rows, columns = grid
    corners = network.injected_at(rim, grid)
    away = np.array(
        [[min(abs(y - a) + abs(x - b) for a, b in corners) for x in range(columns)] for y in range(rows)],
        np.float64,
    )
    found = np.full((rows * columns + 1, rows * columns + 1), inf)
    for a, b in product(range(1, rows + 1), range(1, columns + 1)):
        own = np.lib.stride_tricks.sliding_window_view(away, (a, b)).reshape(-1, a * b)
        least = np.cumsum(np.sort(own, axis=1), axis=1).min(axis=0)
        for lanes in range(ceil(a * b / WASTE), a * b + 1):
            found[lanes, 0] = 0.0
            found[lanes, 1 : a * b + 1] = np.minimum(found[lanes, 1 : a * b + 1], least)
    return found


@dataclass(frozen=True, slots=True)
class SharingBounds:
    """Ways to share an einsum out, one per row. tiles [W, R] of ranks; nodes; energy, cycles: at least,
    energy without leakage, inf: does not fit.
    """

    ranks: tuple[str, ...]
    tiles: Ints
    nodes: Ints
    energy: Floats
    cycles: Floats

    def tile(self, at: int, e: Einsum) -> dict[str, int]:
        """Of ranks that are cut."""
        return {
            rank: n
            for rank, n in zip(self.ranks, self.tiles[at].tolist(), strict=True)
            if n < e.sizes()[rank]
        }


def by_nodes(w: SharingBounds, most: int, cycles: float = inf) -> Floats:
    """[nodes + 1] least energy on at most so many nodes, in so many cycles."""
    best, within = np.full(most + 1, inf), w.cycles <= cycles
    np.minimum.at(best, w.nodes[within], w.energy[within])
    return np.minimum.accumulate(best)


def sharing_bounds(e: Einsum, arch: Arch, context: StageContext) -> SharingBounds:
    """Of a stage. around: of granules, the einsum is one of them."""
    most, level, outer, f = arch.instances(1), arch.levels[1], arch.levels[0], arch.fanouts[0]
    ranks = [rank for rank in split_ranks(e, may_share(arch, context)) if rank not in context.sliding]
    sizes, bits = e.sizes(), bits_of(e, arch)
    cut = tilings(e, ranks, most)
    whole = np.array([sizes[rank] for rank in ranks], np.int64)
    lanes, even = -(-whole // cut), whole / cut
    nodes = lanes.prod(axis=1)
    energy = np.full(
        len(cut),
        lower_bound(
            e, arch, context.forwarded, context.pinned, context.forwards and not context.spilled
        ).energy,
    )
    links = near_links((f.dims[0][1], f.dims[1][1]), f.injected_at)[nodes]
    somewhere, row = np.isfinite(links[:, 1]), np.arange(len(cut))
    links = np.where(np.isfinite(links), links, 0.0)

    def of(p: Projection) -> tuple[NDArray[np.bool_], Ints, Floats]:
        own = np.array([rank in p.ranks() for rank in ranks], np.bool_)
        return own, np.where(own, 1, lanes).prod(axis=1), np.where(own, even, 1.0).prod(axis=1)

    beside = pinned_bits(e, arch)
    room = np.full(len(cut), float(sum(beside.values())))
    total = _inside(e, arch, ranks, cut)  # with what follows, another bound
    shared = all(f.multicast) and all(f.reduce)
    # what comes and goes at least once; of a word of each tensor, each time that it does
    once, again = np.zeros(len(cut)), list[Floats]()
    for p, (words, _, written) in zip(e.tensors(), bounds.needs(e, arch.word_bits).operands, strict=True):
        own, at_once, groups = of(p)
        stays = context.forwards if written else p.tensor in context.pinned
        if stays:
            copies = context.copies if written else 1
            held = tile_bits(p, sizes, arch.word_bits) * np.where(own, cut / whole, 1.0).prod(axis=1)
            room += held * copies - beside[p.tensor]
        moved, link = words * bits[p.tensor], f.hop_pj if shared else 0.0
        write, read = (pj / level.width_bits for pj in (level.write_pj, level.read_pj))
        low = np.floor(groups + CLOSE).astype(np.int64)
        part = np.maximum(groups - low, 0.0)
        near = ((1 - part) * links[row, low] + part * links[row, np.minimum(low + 1, most)]) / groups
        if not written and not stays:
            source = (
                level.read_pj / level.width_bits
                if p.tensor in context.forwarded
                else outer.read_pj / outer.width_bits
            )
            hops = at_once - 1 + (1.0 if p.tensor in context.forwarded else near)
            taken = write * at_once + source + link * hops
            once += moved * taken
        elif written:
            out = not context.forwards or context.spilled
            # operations or lanes write it there
            taken = np.asarray(at_once * read * (out | (at_once > 1)), np.float64)
            taken += link * (at_once - 1 + near * out) + outer.write_pj / outer.width_bits * out
            once += moved * taken
        again.append(np.zeros(len(cut)) if stays else bits[p.tensor] * taken / at_once)
    total += np.maximum(once, _refill_pj(e, arch, ranks, cut, again))
    if len(bits) == len(e.tensors()) and not level.bypass and not outer.bypass:
        energy = np.maximum(energy, total)
    there = (room <= (level.capacity_bits or inf)) & somewhere
    on_unit = arch.compute.alu_per_cycle is not None and e.kind != "mac"
    rest = (
        bounds.needs(e, arch.word_bits).computed
        / e.points()
        / (arch.instances(len(arch.levels)) / most)
        / arch.compute.ops_per_cycle
    )
    cycles = e.points() * (cut / whole).prod(axis=1) * rest * (not on_unit)
    return SharingBounds(tuple(ranks), cut, nodes, np.where(there, energy, inf), cycles)


def _refill_pj(e: Einsum, arch: Arch, ranks: Sequence[str], cut: Ints, pj: Sequence[Floats]) -> Floats:
    """By way: of words that come to the buffers of nodes, and leave them, again and again, since not all fit.
    pj: of a word of each tensor.

    Of the tensor whose node stands outermost among those of a buffer x * y words are held, a window's shared
    by all its pairs; what stands below serves x or y products per word at most, it as many as the part has.
    So of all x * y that fit the least of a / x + b / y.
    """
    own, r = kinds(e), roles(e)
    if (
        not own
        or not r
        or arch.levels[1].capacity_bits is None
        or any(p.format != "dense" for p in e.tensors())
    ):
        return np.zeros(len(cut))
    size, (first, second) = dict(zip(ranks, cut.T, strict=True)), e.inputs
    extents = [
        prod((size.get(rank, n) for rank, n in e.extents if own.get(rank) == kind), start=np.ones(len(cut)))
        for kind in (N, K, C)
    ]
    image = [second, first] if any(len(d.terms) > 1 for d in second.dims) else [first, second]
    alike = prod(w.p * w.r / w.words for w in r.windows)
    price = {
        MISSED[at]: pj[e.tensors().index(p)] / (alike if at == IMAGE else 1)
        for at, p in enumerate((*image, e.output))
    }
    room = arch.levels[1].capacity_bits // min(p.bits or arch.word_bits for p in e.tensors())
    best = np.full(len(cut), inf)
    for outermost, a, b in ((N, K, C), (K, N, C), (C, N, K)):
        most = np.minimum(room * (alike if outermost == MISSED[IMAGE] else 1), extents[a] * extents[b])
        x = np.clip(
            np.sqrt(most * price[a] / np.maximum(price[b], CLOSE)),
            np.maximum(most / extents[b], 1),
            extents[a],
        )
        best = np.minimum(best, price[outermost] / extents[outermost] + price[a] / x + price[b] * x / most)
    return e.points() * best


def _inside(e: Einsum, arch: Arch, ranks: Sequence[str], cut: Ints) -> Floats:
    """By way: of operations, and what lanes do for them."""
    own, r = kinds(e), roles(e)
    if not own or not r:
        return np.full(len(cut), inside_pj(e, arch)[0])
    rest = [
        [n for rank, n in e.extents if own.get(rank) == kind and rank not in ranks and n > 1]
        for kind in (N, K, C)
    ]
    which = [[i for i, rank in enumerate(ranks) if own.get(rank) == kind] for kind in (N, K, C)]

    def of(tile: Sequence[int], kind: int) -> tuple[int, ...]:
        return tuple(sorted([*rest[kind], *(tile[i] for i in which[kind] if tile[i] > 1)]))

    parts = [Roles((of(tile, N), of(tile, K), of(tile, C)), r.windows) for tile in cut.tolist()]
    different = list(dict.fromkeys(parts))
    pj = dict(
        zip(different, np.broadcast_to(inside_pj(e, arch, different), len(different)).tolist(), strict=True)
    )
    return np.array([pj[one] for one in parts])


def minimum_energy(stages: Sequence[Floats]) -> float:
    """Least energy of stages of different nodes, no more than there are."""
    found = stages[0]
    for own in stages[1:]:
        n = len(own)
        at = np.arange(n)
        spare = at[:, None] - at[None, :]
        pairs = np.where(spare >= 0, found[np.maximum(spare, 0)] + own[None, :], inf)
        found = pairs.min(axis=1)
    return float(found[-1])


def time_of(own: Sequence[LowerBound], arch: Arch) -> float:
    """Cycles of einsums that run at once: of all lanes, or of main memory."""
    words, outer = sum(one.words for one in own), arch.levels[0]
    return max(
        sum(one.compute for one in own), words / outer.bandwidth / (2 if outer.ports == "separate" else 1)
    )
