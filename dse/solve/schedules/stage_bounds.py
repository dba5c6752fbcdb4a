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
from itertools import combinations, pairwise, product
from math import ceil, inf, prod, sqrt

import numpy as np
from numpy.typing import NDArray

from dse.sim.counts.actions import bits_of
from dse.sim.counts.counts import tile_bits
from dse.sim.einsum import bounds
from dse.sim.levels import network
from dse.solve.schedules.einsum_bounds import LowerBound, inside_pj, lower_bound
from dse.solve.schedules.register_bounds import IMAGE, MISSED, C, K, N, Roles, kinds, roles
from dse.solve.schedules.stages import (
    NODE_RANKS,
    WASTE,
    StageContext,
    may_share,
    min_tensor_bits,
    split_ranks,
)
from hw.arch import Arch
from workloads.arrays import Floats, Ints
from workloads.einsum import Einsum, Projection

# of `minimum_filled_energy`: ranges of cycles; their last limit is STEP_FACTOR**BOUND_STEPS times the least,
# the first one at least TINY times (where operations take none)
BOUND_STEPS, STEP_FACTOR, TINY = 12, 1.15, 1e-6
FILLED_SHARES = (0.0, 0.1, 0.2, 0.3, 0.5, 1.0)  # shares s of `minimum_filled_energy`
ROUNDING_ERROR = 1e-9  # rounding error that quotients may have before they are rounded down; smallest divisor


def tilings(e: Einsum, ranks: Sequence[str], max_nodes: int) -> Ints:
    """Returns tiles [W, R] of the ranks, as `stages.tiles`: at most two ranks cut, on at most `max_nodes`
    nodes, and of tiles of a rank that need equally many nodes only the smallest.
    """
    sizes = e.sizes()
    tiles_of = {
        rank: np.array(
            sorted(
                {-(-sizes[rank] // parts) for parts in range(1, min(sizes[rank], max_nodes) + 1)}
                - {sizes[rank]}
            ),
            np.int64,
        )
        for rank in ranks
    }
    full_tile = np.array([sizes[rank] for rank in ranks], np.int64)
    found = [full_tile[None, :]]
    for a, rank in enumerate(ranks):
        rows = np.repeat(full_tile[None, :], len(tiles_of[rank]), axis=0)
        rows[:, a] = tiles_of[rank]
        found.append(rows)
    for a, b in combinations(range(len(ranks)), NODE_RANKS):
        first, second = (
            m.ravel() for m in np.meshgrid(tiles_of[ranks[a]], tiles_of[ranks[b]], indexing="ij")
        )
        fits = -(-full_tile[a] // first) * -(-full_tile[b] // second) <= max_nodes
        rows = np.repeat(full_tile[None, :], int(fits.sum()), axis=0)
        rows[:, a], rows[:, b] = first[fits], second[fits]
        found.append(rows)
    return np.concatenate(found)


@lru_cache(maxsize=16)
def near_links(grid: network.MeshPosition, injected_at: str) -> Floats:
    """Returns [n + 1, G + 1] lower bounds on the links from main memory to the G nearest nodes of a rectangle
    in which n nodes work, summed over these G nodes, wherever the rectangle lies. inf: there is no such
    rectangle.

    grid: rows and columns; injected_at: where main memory is attached (`network.injected_at`).
    """
    rows, columns = grid
    corners = network.injected_at(injected_at, grid)
    links_to = np.array(
        [[min(abs(y - a) + abs(x - b) for a, b in corners) for x in range(columns)] for y in range(rows)],
        np.float64,
    )
    found = np.full((rows * columns + 1, rows * columns + 1), inf)
    for a, b in product(range(1, rows + 1), range(1, columns + 1)):
        windows = np.lib.stride_tricks.sliding_window_view(links_to, (a, b)).reshape(-1, a * b)
        lowest = np.cumsum(np.sort(windows, axis=1), axis=1).min(axis=0)
        for working_nodes in range(ceil(a * b / WASTE), a * b + 1):
            found[working_nodes, 0] = 0.0
            found[working_nodes, 1 : a * b + 1] = np.minimum(found[working_nodes, 1 : a * b + 1], lowest)
    return found


@dataclass(frozen=True, slots=True)
class SharingBounds:
    """Lower bounds of W ways to share an einsum among nodes."""

    ranks: tuple[str, ...]  # that may be cut
    tiles: Ints  # [W, R] of one node
    nodes: Ints  # [W] that work
    energy: Floats  # [W] lower bound in pJ without leakage, inf: does not fit
    cycles: Floats  # [W] lower bound

    def tile(self, way: int, e: Einsum) -> dict[str, int]:
        """Returns the tiles of way `way`, by rank, of the ranks that are cut."""
        return {
            rank: n
            for rank, n in zip(self.ranks, self.tiles[way].tolist(), strict=True)
            if n < e.sizes()[rank]
        }


def by_nodes(sharing: SharingBounds, max_nodes: int, cycles: float = inf, cycle_pj: float = 0.0) -> Floats:
    """Returns best [max_nodes + 1]: best[n] is the minimum energy over ways with at most n nodes and at most
    `cycles` cycles. cycle_pj: added for each cycle of a way.
    """
    best, is_fast_enough = np.full(max_nodes + 1, inf), sharing.cycles <= cycles
    energy = sharing.energy + cycle_pj * sharing.cycles
    np.minimum.at(best, sharing.nodes[is_fast_enough], energy[is_fast_enough])
    return np.minimum.accumulate(best)


def sharing_bounds(e: Einsum, arch: Arch, context: StageContext) -> SharingBounds:
    """Returns lower bounds of all ways to share a stage. e: the einsum of one pipeline tile."""
    node_count, level, outer, f = arch.instances(1), arch.levels[1], arch.levels[0], arch.fanouts[0]
    ranks = [rank for rank in split_ranks(e, may_share(arch, context)) if rank not in context.sliding]
    sizes, bits = e.sizes(), bits_of(e, arch)
    tiles = tilings(e, ranks, node_count)
    full_tile = np.array([sizes[rank] for rank in ranks], np.int64)
    # [W, R] nodes along each rank; the same, not rounded
    parts, even = -(-full_tile // tiles), full_tile / tiles
    nodes = parts.prod(axis=1)
    energy = np.full(
        len(tiles),
        lower_bound(
            e, arch, context.forwarded, context.pinned, context.forwards and not context.spilled
        ).energy,
    )
    links = near_links((f.dims[0][1], f.dims[1][1]), f.injected_at)[nodes]
    has_rectangle, row = np.isfinite(links[:, 1]), np.arange(len(tiles))
    links = np.where(np.isfinite(links), links, 0.0)

    def sharing_of(p: Projection) -> tuple[NDArray[np.bool_], Ints, Floats]:
        """Returns [R] whether the tensor has each rank; [W] the nodes that share one of its words (n_t), and
        [W] the groups of such nodes (G, not rounded).
        """
        has_rank = np.array([rank in p.ranks() for rank in ranks], np.bool_)
        return has_rank, np.where(has_rank, 1, parts).prod(axis=1), np.where(has_rank, even, 1.0).prod(axis=1)

    min_bits = min_tensor_bits(e, arch)
    buffer_bits = np.full(len(tiles), float(sum(min_bits.values())))
    # a second bound on energy; traffic of the buffers is added below
    total_pj = _node_pj(e, arch, ranks, tiles)
    shares_moves = all(f.multicast) and all(f.reduce)
    # pJ of all words if each moves once; and for each tensor, pJ per word and move
    once_pj, again_pj, result_pj = np.zeros(len(tiles)), list[Floats](), np.zeros(len(tiles))
    for p, (words, _, is_output) in zip(e.tensors(), bounds.needs(e, arch.word_bits).operands, strict=True):
        has_rank, sharers, groups = sharing_of(p)
        is_resident = context.forwards if is_output else p.tensor in context.pinned
        if is_resident:
            copies = context.copies if is_output else 1
            tile_bits_each = tile_bits(p, sizes, arch.word_bits) * np.where(
                has_rank, tiles / full_tile, 1.0
            ).prod(axis=1)
            buffer_bits += tile_bits_each * copies - min_bits[p.tensor]
        moved_bits, link_pj = words * bits[p.tensor], f.hop_pj if shares_moves else 0.0
        write_bit_pj, read_bit_pj = (pj / level.width_bits for pj in (level.write_pj, level.read_pj))
        whole_groups = np.floor(groups + ROUNDING_ERROR).astype(np.int64)
        fraction = np.maximum(groups - whole_groups, 0.0)
        near_links_each = (
            (1 - fraction) * links[row, whole_groups]
            + fraction * links[row, np.minimum(whole_groups + 1, node_count)]
        ) / groups
        if not is_output and not is_resident:
            source_bit_pj = (
                level.read_pj / level.width_bits
                if p.tensor in context.forwarded
                else outer.read_pj / outer.width_bits
            )
            hops = sharers - 1 + (1.0 if p.tensor in context.forwarded else near_links_each)
            bit_pj = write_bit_pj * sharers + source_bit_pj + link_pj * hops
            once_pj += moved_bits * bit_pj
        elif is_output:
            leaves = not context.forwards or context.spilled
            # its writes to the buffer are in `_node_pj`
            bit_pj = np.asarray(sharers * read_bit_pj * (leaves | (sharers > 1)), np.float64)
            bit_pj += (
                link_pj * (sharers - 1 + near_links_each * leaves)
                + outer.write_pj / outer.width_bits * leaves
            )
            result_pj = moved_bits * bit_pj
            once_pj += result_pj
        again_pj.append(np.zeros(len(tiles)) if is_resident else bits[p.tensor] * bit_pj / sharers)
    free_bits = float(level.capacity_bits or inf) + sum(min_bits.values()) - buffer_bits
    words, sharers = bounds.needs(e, arch.word_bits).operands[-1][0], sharing_of(e.output)[1]
    sums = np.asarray(words * sharers, np.float64)
    returning_pj = result_pj + _returning_pj(e, arch, ranks, tiles, again_pj, free_bits, sums)
    total_pj += np.maximum(np.maximum(once_pj, returning_pj), _refill_pj(e, arch, ranks, tiles, again_pj))
    if len(bits) == len(e.tensors()) and not level.bypass and not outer.bypass:
        energy = np.maximum(energy, total_pj)
    is_feasible = (buffer_bits <= (level.capacity_bits or inf)) & has_rectangle
    on_vector_unit = arch.compute.alu_per_cycle is not None and e.kind != "mac"
    cycles_per_point = (
        bounds.needs(e, arch.word_bits).computed
        / e.points()
        / (arch.instances(len(arch.levels)) / node_count)
        / arch.compute.ops_per_cycle
    )
    cycles = e.points() * (tiles / full_tile).prod(axis=1) * cycles_per_point * (not on_vector_unit)
    return SharingBounds(tuple(ranks), tiles, nodes, np.where(is_feasible, energy, inf), cycles)


def _refill_pj(e: Einsum, arch: Arch, ranks: Sequence[str], tiles: Ints, pj: Sequence[Floats]) -> Floats:
    """Returns lower bounds [W] on the energy of words that enter and leave the buffers of nodes, where not
    all words fit and some move repeatedly. pj: per tensor, [W] pJ of moving one word.

    Let the tensor whose storage node is outermost at the buffer hold x * y words. Each of them serves as many
    products as the tile of the node has along the ranks that this tensor lacks. A word of the other two
    tensors, which cost a and b to move, serves at most x or y products. So the bound is the minimum of
    a / x + b / y over all x * y that fit, where the words of a window are shared by all its pairs.
    """
    kind_of, r = kinds(e), roles(e)
    if (
        not kind_of
        or not r
        or arch.levels[1].capacity_bits is None
        or any(p.format != "dense" for p in e.tensors())
    ):
        return np.zeros(len(tiles))
    extents, price, window_reuse = _by_kind(e, ranks, tiles, pj)
    buffer_words = arch.levels[1].capacity_bits // min(p.bits or arch.word_bits for p in e.tensors())
    best = np.full(len(tiles), inf)
    for outermost, a, b in ((N, K, C), (K, N, C), (C, N, K)):
        max_words = np.minimum(
            buffer_words * (window_reuse if outermost == MISSED[IMAGE] else 1), extents[a] * extents[b]
        )
        x = np.clip(
            np.sqrt(max_words * price[a] / np.maximum(price[b], ROUNDING_ERROR)),
            np.maximum(max_words / extents[b], 1),
            extents[a],
        )
        best = np.minimum(
            best, price[outermost] / extents[outermost] + price[a] / x + price[b] * x / max_words
        )
    return e.points() * best


def _by_kind(
    e: Einsum, ranks: Sequence[str], tiles: Ints, pj: Sequence[Floats]
) -> tuple[list[Floats], dict[int, Floats], float]:
    """Returns by kind of rank (N, K, C) of a product: the extents [W] of a node; pJ [W] of moving one word of
    the tensor that lacks them, per pair that it serves in a window. And how often windows use a word.
    """
    tile_of, (first, second) = dict(zip(ranks, tiles.T, strict=True)), e.inputs
    kind_of, r = kinds(e) or {}, roles(e)
    extents = [
        prod(
            (tile_of.get(rank, n) for rank, n in e.extents if kind_of.get(rank) == kind),
            start=np.ones(len(tiles)),
        )
        for kind in (N, K, C)
    ]
    image = [second, first] if any(len(d.terms) > 1 for d in second.dims) else [first, second]
    window_reuse = prod(w.p * w.r / w.words for w in r.windows) if r else 1.0
    price = {
        MISSED[at]: pj[e.tensors().index(p)] / (window_reuse if at == IMAGE else 1)
        for at, p in enumerate((*image, e.output))
    }
    return extents, price, window_reuse


def _returning_pj(
    e: Einsum,
    arch: Arch,
    ranks: Sequence[str],
    tiles: Ints,
    pj: Sequence[Floats],
    free_bits: Floats,
    sums: Floats,
) -> Floats:
    """Returns lower bounds [W] on the energy of inputs that enter the buffers of nodes, and of partial sums
    that return from there to PEs.

    pj: as of `_refill_pj`. free_bits: [W] of a buffer, beside what stays there and one word of all else.
    sums: [W] result words of all nodes; each goes to PEs once without a read.

    Of the two inputs let the outer one's storage node at the buffer hold x words along the ranks that the
    other one lacks, and y along summed ranks: a word of the other one serves x products at most. A PE adds up
    within that tile, so y products at most before its sum leaves, to return for the next ones. With prices a
    and b of the other input and of a returning sum the bound is the minimum of a / x + b / y over all x * y
    that fit. Where the outer one is pinned y words of the other one stand beside it, so the bound with the
    other one outermost holds.
    """
    kind_of, r, level = kinds(e), roles(e), arch.levels[1]
    if (
        not kind_of
        or not r
        or len(arch.levels) != 3
        or level.bypass
        or level.capacity_bits is None
        or bounds.needs(e, arch.word_bits).share < 1
        or any(p.format != "dense" for p in e.tensors())
    ):
        return np.zeros(len(tiles))
    extents, price, window_reuse = _by_kind(e, ranks, tiles, pj)
    bits = bits_of(e, arch)
    sum_pj = bits[e.output.tensor] * (
        level.read_pj / level.width_bits + sum(f.endpoint_pj for f in arch.fanouts if f.outside == 2)
    )
    words, best = np.maximum(free_bits / min(bits.values()), 1.0), np.full(len(tiles), inf)
    for outer, inner in ((N, K), (K, N)):
        # the outer input lacks `outer`; its tile: ranks that the other one lacks, and summed ones
        max_words = np.minimum(
            words * (window_reuse if outer == MISSED[IMAGE] else 1), extents[inner] * extents[C]
        )
        x = np.clip(
            np.sqrt(max_words * price[inner] / max(sum_pj, ROUNDING_ERROR)),
            np.maximum(max_words / extents[C], 1),
            extents[inner],
        )
        best = np.minimum(best, price[outer] / extents[outer] + price[inner] / x + sum_pj * x / max_words)
    return e.points() * best - sum_pj * sums


def _node_pj(e: Einsum, arch: Arch, ranks: Sequence[str], tiles: Ints) -> Floats:
    """Returns lower bounds [W] on the energy of operations and registers, per way to share the einsum."""
    kind_of, r = kinds(e), roles(e)
    if not kind_of or not r:
        return np.full(len(tiles), inside_pj(e, arch)[0])
    uncut = [
        [n for rank, n in e.extents if kind_of.get(rank) == kind and rank not in ranks and n > 1]
        for kind in (N, K, C)
    ]
    cut_index = [[i for i, rank in enumerate(ranks) if kind_of.get(rank) == kind] for kind in (N, K, C)]

    def extents_of(tile: Sequence[int], kind: int) -> tuple[int, ...]:
        return tuple(sorted([*uncut[kind], *(tile[i] for i in cut_index[kind] if tile[i] > 1)]))

    parts = [
        Roles((extents_of(tile, N), extents_of(tile, K), extents_of(tile, C)), r.windows)
        for tile in tiles.tolist()
    ]
    distinct = list(dict.fromkeys(parts))
    pj = dict(
        zip(distinct, np.broadcast_to(inside_pj(e, arch, distinct), len(distinct)).tolist(), strict=True)
    )
    return np.array([pj[part] for part in parts])


def minimum_energy(stages: Sequence[Floats]) -> float:
    """Returns the minimum energy of stages on different nodes. stages: `by_nodes` of each stage; together
    they have no more nodes than its last index.
    """
    best = stages[0]
    for stage_energy in stages[1:]:
        n = len(stage_energy)
        nodes = np.arange(n)
        spare = nodes[:, None] - nodes[None, :]
        pairs = np.where(spare >= 0, best[np.maximum(spare, 0)] + stage_energy[None, :], inf)
        best = pairs.min(axis=1)
    return float(best[-1])


def minimum_filled_cycles(work: Sequence[float], tile_count: int) -> float:
    """Returns a lower bound on the cycles of a pipeline, ramp-up included: those of all stages for one tile,
    and those of the slowest stage for each other one.

    work: cycles w_j of each stage for one tile on all N nodes; on n_j nodes they are w_j N / n_j. With sum of
        n_j <= N their sum is at least (sum of w_j^(1/2))^2, and the largest at least the sum of w_j.
    """
    return sum(map(sqrt, work)) ** 2 + (tile_count - 1) * sum(work)


def minimum_filled_energy(
    stages: Sequence[SharingBounds],
    max_nodes: int,
    tile_count: int,
    min_cycles: float,
    min_slowest: float,
    leak_pj: float,
) -> float:
    """Returns a lower bound on the energy of a pipeline of stages on different nodes, with leakage (`leak_pj`
    per cycle of the pipeline).

    min_cycles: lower bound L of the pipeline's cycles. min_slowest: of the slowest stage's for one tile.

    The pipeline takes at least L cycles, and sum c_j + (tiles - 1) m for stages of c_j cycles, of which m is
    the largest. For each of several ranges of m the energy is at least, for any share s between 0 and 1,

        min of sum E_j + leakage (s (sum c_j + (tiles - 1) least m) + (1 - s) max(L, tiles least m))
    """
    energy = inf
    # limits of the ranges of m
    scale = max(min_cycles, ROUNDING_ERROR) / tile_count
    steps = np.geomspace(max(min_slowest, TINY * scale), STEP_FACTOR**BOUND_STEPS * scale, BOUND_STEPS + 1)
    for least, most in pairwise([min_slowest, *steps[1:].tolist(), inf]):
        of_range = 0.0
        for share in FILLED_SHARES:
            parts = [
                by_nodes(one, max_nodes, most * (1 + ROUNDING_ERROR), share * leak_pj / tile_count)
                for one in stages
            ]
            cycles = share * (tile_count - 1) * least + (1 - share) * max(min_cycles, tile_count * least)
            of_range = max(of_range, tile_count * minimum_energy(parts) + leak_pj * cycles)
        energy = min(energy, of_range)
    return energy


def time_of(lower_bounds: Sequence[LowerBound], arch: Arch) -> float:
    """Returns a lower bound on the cycles of einsums that run at once: that of all MAC units or that of main
    memory, whichever is larger.
    """
    words, outer = sum(bound.words for bound in lower_bounds), arch.levels[0]
    return max(
        sum(bound.compute for bound in lower_bounds),
        words / outer.bandwidth / (2 if outer.ports == "separate" else 1),
    )
