"""Lower bounds on stages by number of nodes, over all ways to share an einsum among nodes, all nests and all
regions (docs/reuse.md, Pipelines).

    tiles      ranks are cut over nodes (`stages.tiles`); n_t nodes share each word of tensor t, and G groups
               of such nodes have different words
    word       is read once at its source, written to the buffers of n_t nodes, and takes n_t - 1 links
               between these nodes, plus the links from the source to the nearest of them
    links      from main memory: the G groups reach at best the G nodes nearest to it; from another stage: one
               link at least
    capacity   forwarded tiles and pinned weights stand in a node's buffer, with one element of each other
               tensor unless buffers may be bypassed

The stages of a segment use different nodes, together no more than there are. Its time is at least that of all
MAC units at work, and that of main memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, product
from math import ceil, inf, prod

import numpy as np
from numpy.typing import NDArray

from dse.sim.counts.actions import bits_of
from dse.sim.counts.counts import tile_bits
from dse.sim.einsum import bounds
from dse.sim.levels import network
from dse.solve.schedules.einsum_bounds import LowerBound, inside_pj, lower_bound
from dse.solve.schedules.register_bounds import IMAGE, MISSED, C, K, N, Roles, kinds, roles
from dse.solve.schedules.stages import NODE_RANKS, WASTE, StageContext, may_share, pinned_bits, split_ranks
from hw.arch import Arch
from workloads.arrays import Floats, Ints
from workloads.einsum import Einsum, Projection

CLOSE = 1e-9  # rounding error that quotients may have before they are rounded down; smallest divisor


def tilings(e: Einsum, ranks: Sequence[str], most: int) -> Ints:
    """Returns tiles [W, R] of the ranks, as `stages.tiles`: at most two ranks cut, on at most `most` nodes,
    and of tiles of a rank that need equally many nodes only the smallest.
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
def near_links(grid: network.Place, injected_at: str) -> Floats:
    """Returns [n + 1, G + 1] lower bounds on the links from main memory to the G nearest nodes of a rectangle
    in which n nodes work, summed over these G nodes, wherever the rectangle lies. inf: there is no such
    rectangle.

    grid: rows and columns; injected_at: where main memory is attached (`network.injected_at`).
    """
    rows, columns = grid
    corners = network.injected_at(injected_at, grid)
    away = np.array(
        [[min(abs(y - a) + abs(x - b) for a, b in corners) for x in range(columns)] for y in range(rows)],
        np.float64,
    )
    found = np.full((rows * columns + 1, rows * columns + 1), inf)
    for a, b in product(range(1, rows + 1), range(1, columns + 1)):
        own = np.lib.stride_tricks.sliding_window_view(away, (a, b)).reshape(-1, a * b)
        least = np.cumsum(np.sort(own, axis=1), axis=1).min(axis=0)
        for pes in range(ceil(a * b / WASTE), a * b + 1):
            found[pes, 0] = 0.0
            found[pes, 1 : a * b + 1] = np.minimum(found[pes, 1 : a * b + 1], least)
    return found


@dataclass(frozen=True, slots=True)
class SharingBounds:
    """Lower bounds of W ways to share an einsum among nodes."""

    ranks: tuple[str, ...]  # that may be cut
    tiles: Ints  # [W, R] of one node
    nodes: Ints  # [W] that work
    energy: Floats  # [W] lower bound in pJ without leakage, inf: does not fit
    cycles: Floats  # [W] lower bound

    def tile(self, at: int, e: Einsum) -> dict[str, int]:
        """Returns the tiles of way `at`, by rank, of the ranks that are cut."""
        return {
            rank: n
            for rank, n in zip(self.ranks, self.tiles[at].tolist(), strict=True)
            if n < e.sizes()[rank]
        }


def by_nodes(w: SharingBounds, most: int, cycles: float = inf) -> Floats:
    """Returns best [most + 1]: best[n] is the minimum energy over ways with at most n nodes and `cycles`."""
    best, within = np.full(most + 1, inf), w.cycles <= cycles
    np.minimum.at(best, w.nodes[within], w.energy[within])
    return np.minimum.accumulate(best)


def sharing_bounds(e: Einsum, arch: Arch, context: StageContext) -> SharingBounds:
    """Returns lower bounds of all ways to share a stage. e: the einsum of one pipeline tile."""
    most, level, outer, f = arch.instances(1), arch.levels[1], arch.levels[0], arch.fanouts[0]
    ranks = [rank for rank in split_ranks(e, may_share(arch, context)) if rank not in context.sliding]
    sizes, bits = e.sizes(), bits_of(e, arch)
    cut = tilings(e, ranks, most)
    whole = np.array([sizes[rank] for rank in ranks], np.int64)
    parts, even = -(-whole // cut), whole / cut
    nodes = parts.prod(axis=1)
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
        return own, np.where(own, 1, parts).prod(axis=1), np.where(own, even, 1.0).prod(axis=1)

    beside = pinned_bits(e, arch)
    room = np.full(len(cut), float(sum(beside.values())))
    # a second bound on energy; traffic of the buffers is added below
    total = _inside(e, arch, ranks, cut)
    shared = all(f.multicast) and all(f.reduce)
    # pJ of all words if each moves once; and for each tensor, pJ per word and move
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
            # its writes to the buffer are in `_inside`
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
    """Returns lower bounds [W] on the energy of words that enter and leave the buffers of nodes, where not
    all words fit and some move repeatedly. pj: per tensor, [W] pJ of moving one word.

    Let the tensor whose storage node is outermost at the buffer hold x * y words. Each of them serves as many
    products as the tile of the node has along the ranks that this tensor lacks. A word of the other two
    tensors, which cost a and b to move, serves at most x or y products. So the bound is the minimum of
    a / x + b / y over all x * y that fit, where the words of a window are shared by all its pairs.
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
    """Returns lower bounds [W] on the energy of operations and registers, per way to share the einsum."""
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
    """Returns the minimum energy of stages on different nodes. stages: `by_nodes` of each stage; together
    they have no more nodes than its last index.
    """
    found = stages[0]
    for own in stages[1:]:
        n = len(own)
        at = np.arange(n)
        spare = at[:, None] - at[None, :]
        pairs = np.where(spare >= 0, found[np.maximum(spare, 0)] + own[None, :], inf)
        found = pairs.min(axis=1)
    return float(found[-1])


def time_of(own: Sequence[LowerBound], arch: Arch) -> float:
    """Returns a lower bound on the cycles of einsums that run at once: that of all MAC units or that of main
    memory, whichever is larger.
    """
    words, outer = sum(one.words for one in own), arch.levels[0]
    return max(
        sum(one.compute for one in own), words / outer.bandwidth / (2 if outer.ports == "separate" else 1)
    )
