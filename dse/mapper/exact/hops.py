"""Least hops: the links that a word takes at least through a network whose links have a price
(dse/sim/levels/network.py), as part of the price that the search sees.

Hops of a tensor are words at the outer side times their average number of links. A word group is the PEs of a
network that want the same words. With the spatial unrollings of all ranks fixed, the PEs in use form g word
groups of n PEs each. A word takes at least

    n - 1 links                   to reach n PEs, once it has reached the first
    + distance to the first one   word groups have no PE in common: on average at least the mean of the g
                                  smallest distances between a PE of the network and memory

Word groups are unequal if the last PEs have less than a full share. Such a group has at most as many words as
a full one, and counts in g only as the share of a full one that it has at least (`_proportional`). The PEs
lie in a rectangle that the loops span, so the g smallest distances are those inside of it (`near`). Where
shares are equal, all PEs that are used stand side by side, which says more (`_along`).

"Group" alone is a spatial.Group: fan-out dimensions at one boundary that multicast and reduce alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product
from math import inf, prod
from typing import NamedTuple

import numpy as np

from dse.mapper.exact.kernels import state
from dse.mapper.exact.spatial import FanoutBoundary, SpatialUnrollings, dims_and_groups, divisors
from dse.mapping.constraints import Constraints, Factors
from dse.mapping.nest import Loop, Mapping
from dse.mapping.searched import cut_windows
from dse.sim.counts.latency import any_nonzero
from dse.sim.counts.terms import nonzero_share, unshared
from dse.sim.levels.network import injected_at
from hw.arch import Arch, Fanout
from workloads.arrays import Floats, Ints
from workloads.einsum import Einsum

MAX_PES = 1 << 14  # PEs of a network up to which links are tabulated; of larger ones none are counted
# PEs up to which the minimum over all larger (n, g) is tabulated ([PEs + 1]^2 numbers, `_least_of_larger`);
# above, a weaker bound
MAX_MINIMUM_PES = 1 << 11
MAX_ARRANGED = 64  # nests that `arrangements` gives at most

Spatial = tuple[tuple[str, tuple[str, ...]], ...]  # as Constraints.spatial


def networks(fanouts: Sequence[Fanout]) -> tuple[int, ...]:
    """Returns the positions of the fan-outs whose links have a price, and which stand alone at their
    boundary. Prices may be arrays.
    """
    return tuple(
        i
        for i, f in enumerate(fanouts)
        if any_nonzero(f.hop_pj) and sum(other.outside == f.outside for other in fanouts) == 1
    )


def pair_of(fanouts: Sequence[Fanout], tensors: int, i: int, x: int, compute: bool) -> int:
    """Returns the number of a pair of state.Hops, network and receiver: fan-out i, and a node of tensor x
    inside of it or (compute) the PEs' compute. -1: its links are not counted.
    """
    priced = networks(fanouts)
    return 2 * (priced.index(i) * tensors + x) + compute if i in priced else -1


def countable(e: Einsum, arch: Arch, constraints: Constraints) -> Spatial:
    """Returns constraints.spatial without ranks of windows, and without ranks with more values than their
    dimension stores, on networks whose links have a price: the search does not bound their hops.
    """
    sizes, allowed_ranks = e.sizes(), dict(constraints.spatial)
    uncounted = cut_windows(e)
    for f in arch.fanouts if uncounted else ():
        for name, _ in f.dims if f.hop_pj else ():
            allowed_ranks[name] = tuple(
                rank for rank in allowed_ranks.get(name, tuple(sizes)) if rank not in uncounted
            )
    return tuple(allowed_ranks.items())


def tables(
    e: Einsum,
    fanouts: tuple[Fanout, ...],
    choices: Sequence[SpatialUnrollings],
    ranks: Sequence[str],
    factors: Factors,
    lockstep: bool,
) -> state.Hops:
    """Returns the tables of the networks among the fan-outs of a machine.

    choices: spatial unrollings of each rank, in the order of `ranks`
    lockstep: as of `terms.unshared`
    """
    boundaries = sorted({f.outside for f in fanouts})
    # one entry per pair of network and receiver
    word_group_rows, pes, first, links = list[Floats](), list[int](), list[Ints](), list[Floats]()
    near_first, nears = list[int](), list[Floats]()
    for f in (fanouts[i] for i in networks(fanouts)):
        b, grid = boundaries.index(f.outside), _grid(f)
        # ANY: no bound while ranks are open. Inside of another boundary (b > 0) PEs may share what is an
        # unequal share already, and their links are not counted (`_word_groups`)
        kind = state.EVEN if factors == "perfect" else state.UNEVEN if b == 0 else state.ANY
        for x, p in enumerate((*e.inputs, e.output)):
            sharing_groups = _sharing_groups(fanouts, f, p is e.output)
            for compute in (False, True):
                # along these ranks PEs want different words
                splitting_ranks = unshared(p, e, lockstep) if compute else p.ranks()
                word_group_rows.append(
                    np.concatenate(
                        [
                            _word_groups(o, b, sharing_groups, rank not in splitting_ranks)
                            for o, rank in zip(choices, ranks, strict=True)
                        ]
                    )
                )
                proportional = _proportional(e, x, compute)
                begin, table = least_links(grid, proportional, kind)
                first.append(begin + sum(one.shape[1] for one in links))
                pes.append(len(begin) - 1)
                links.append(table)
                has_near = proportional and b == 0 and pes[-1] <= MAX_MINIMUM_PES
                near_first.append(sum(map(len, nears)) if has_near else -1)
                nears += [near(grid)] if has_near else []
    rows = np.stack(word_group_rows, axis=1) if word_group_rows else np.zeros((0, 0, 4))
    width = max(map(len, first), default=0)
    return state.Hops(
        np.ascontiguousarray(rows[..., 0]),
        np.ascontiguousarray(rows[..., 1]),
        np.ascontiguousarray(rows[..., 2] > 0),
        np.ascontiguousarray(rows[..., 3].astype(np.int64)),
        np.array(pes, np.int64),
        np.array([np.pad(one, (0, width - len(one))) for one in first], np.int64).reshape(len(first), width),
        np.concatenate(links, axis=1) if links else np.zeros((3, 0)),
        np.array(near_first, np.int64),
        np.concatenate(nears) if nears else np.zeros(0),
    )


def _sharing_groups(fanouts: tuple[Fanout, ...], f: Fanout, output: bool) -> frozenset[int]:
    """Returns the groups of a fan-out (spatial.dims_and_groups) whose PEs share words."""
    groups = dims_and_groups(fanouts)[1]
    return frozenset(
        g
        for g, one in enumerate(groups)
        if one.outside == f.outside and (one.reduce if output else one.multicast)
    )


def _proportional(e: Einsum, x: int, compute: bool) -> bool:
    """Returns whether a PE with a share s of a full one has at least s times its words. It may have fewer
    with padding, with a rank in two dimensions (words grow with its square), and with first reads that are
    skipped whatever the share (the same number is subtracted).
    """
    p, sizes = (*e.inputs, e.output)[x], e.sizes()
    stored = all(
        d.offset >= 0 and d.offset + sum(c * (sizes[rank] - 1) for rank, c in d.terms) < d.size
        for d in p.dims
    )
    named = [rank for d in p.dims for rank, _ in d.terms]
    return (
        stored and len(named) == len(set(named)) and not (compute and p is e.output and nonzero_share(e) < 1)
    )


def _word_groups(
    unrollings: SpatialUnrollings, b: int, sharing_groups: frozenset[int], same_words: bool
) -> Floats:
    """Returns [O, 4] of one rank at boundary b: columns `word_group_pes`, `word_groups`, `unequal`,
    `rectangle_pes` of state.Hops.

    sharing_groups: groups of the fan-out (spatial.dims_and_groups) whose PEs can share words
    same_words: whether PEs along the rank want the same words
    """
    return np.array(
        [
            (0.0, 1.0, True, 1)  # inside of PEs whose shares may be unequal: 0 PEs, so no links are counted
            if option[b].cuts and any(outer.shared_tile for outer in option[:b])
            else (
                *_least_word_groups(option[b], sharing_groups, same_words),
                option[b].shared_tile > 0,
                rectangle,
            )
            for option, rectangle in zip(
                unrollings.boundaries, unrollings.rectangle_pes[:, b].tolist(), strict=True
            )
        ],
        np.float64,
    )


def _least_word_groups(
    one: FanoutBoundary, sharing_groups: frozenset[int], same_words: bool
) -> tuple[float, float]:
    """Returns (PEs of a word group, number of word groups) along one rank at one boundary, both at least. If
    word groups are unequal, a full one counts 1 and the last one its share of a full one, so the number need
    not be whole.
    """
    if not one.shared_tile:
        n = prod(pes for group, pes in one.cuts if same_words and group in sharing_groups)
        return float(n), float(one.pes // n)
    split_groups = {group for group, _ in one.cuts}
    if not same_words or not split_groups & sharing_groups:
        return 1.0, one.shared_tile / one.cuts[-1][1]
    return (float(one.pes), 1.0) if split_groups <= sharing_groups else (1.0, 1.0)


class Grid(NamedTuple):
    """A network: its PEs, and where memory is attached."""

    size: tuple[int, ...]  # PEs of each dimension: rows, columns
    region: tuple[tuple[int, int], ...]  # as Fanout.mesh_region
    injected_at: str
    multicast_from: str


def _grid(f: Fanout) -> Grid:
    return Grid(tuple(n for _, n in f.dims), f.mesh_region[:2], f.injected_at, f.multicast_from)


@lru_cache(maxsize=256)
def least_links(grid: Grid, proportional: bool, kind: int) -> tuple[Ints, Floats]:
    """Returns (begin [P + 1], links [3, .]) of a network of P PEs. Column begin[n] + g of `links` is the
    least links of a word with g word groups of n PEs each; its rows are EVEN, UNEVEN, ANY (state.py).

    proportional: as `_proportional`
    kind: what row ANY (some ranks are not unrolled yet) is made of. EVEN: the least of row EVEN over all
        larger n and g; UNEVEN: row UNEVEN; ANY: 0, no bound
    """
    pes = prod(grid.size)
    if pes > MAX_PES:
        return np.array([0, -1]), np.zeros((3, 1))
    rows = pes // np.arange(1, pes + 1)
    begin = np.concatenate(([0], np.cumsum(rows) - rows - 1))
    n, g = np.repeat(np.arange(1, pes + 1), rows), np.arange(rows.sum()) - np.repeat(begin[1:], rows)
    near = np.sort(_distances(grid))
    mean = np.cumsum(near) / np.arange(1, pes + 1)
    links_anywhere = n - 1 + mean[g - 1]  # word groups may lie anywhere, but have no PE in common
    even = (
        links_anywhere
        if grid.region
        else np.maximum(links_anywhere, _side_by_side(grid, begin, len(n), links_anywhere))
    )
    uneven = links_anywhere if proportional else n - 1.0
    any_links = uneven if kind == state.UNEVEN else np.zeros(len(n))
    if kind == state.EVEN:
        any_links = _least_of_larger(even, n, g, pes) if pes <= MAX_MINIMUM_PES else links_anywhere
    return begin, np.array([even, uneven, any_links], np.float64)


@lru_cache(maxsize=16)
def near(grid: Grid) -> Floats:
    """Returns a table of a network of P PEs: at p * (P + 1) + g the least mean distance from memory of g PEs,
    of all rectangles of at most p PEs at its first PE; inf where g > p.
    """
    rows, columns = grid.size
    distances, pes = _distances(grid).reshape(rows, columns), rows * columns
    found = np.full((pes + 1, pes + 1), inf)
    for height in range(1, rows + 1):
        for width in range(1, columns + 1):
            inside = np.sort(distances[:height, :width].ravel())
            row = found[height * width, 1 : len(inside) + 1]
            np.minimum(row, np.cumsum(inside) / np.arange(1, len(inside) + 1), out=row)
    table: Floats = np.minimum.accumulate(found, axis=0).ravel()
    return table


def _distances(grid: Grid) -> Floats:
    """Returns, per PE, the links to the nearest place where memory is attached. A region lies in a larger
    mesh (Fanout.mesh_region), whose memory it uses.
    """
    (y, rows), (x, columns) = grid.region or tuple((0, n) for n in grid.size)
    down, right = np.meshgrid(y + np.arange(grid.size[0]), x + np.arange(grid.size[1]), indexing="ij")
    found = np.full(down.size, inf)
    for row, column in injected_at(grid.injected_at, (rows, columns)):
        found = np.minimum(found, (abs(down - row) + abs(right - column)).ravel())
    return found


def _side_by_side(grid: Grid, begin: Ints, width: int, default: Floats) -> Floats:
    """Returns [width], at begin[n] + g, the least links of a word with equal shares: over all n = n_y n_x and
    g = g_y g_x (PEs of a word group, and word groups, along a column and along a row); `default` where there
    is no such split. t_y, t_x: the least links along a column and along a row (`_along`).

    next_level (a tree): t_x links along the row, then t_y links in each of the n_x columns
    same_level (a chain from PE to PE): t_x + t_y links for one row and one column, and at least a link for
        each other PE, of which there are (n_x - 1) (n_y - 1)
    """
    rows, columns = grid.size
    n_y, g_y, t_y = _along(rows, grid.injected_at == "edge")
    n_x, g_x, t_x = _along(columns, False)
    links = (
        t_x[None] + n_x[None] * t_y[:, None]
        if grid.multicast_from == "next_level"
        else t_x[None] + t_y[:, None] + (n_x[None] - 1) * (n_y[:, None] - 1)
    )
    found = np.full(width, inf)
    np.minimum.at(found, begin[n_y[:, None] * n_x[None]] + g_y[:, None] * g_x[None], links)
    return np.where(found < inf, found, default)


def _along(size: int, anywhere: bool) -> tuple[Ints, Ints, Floats]:
    """Returns three arrays, one entry per split n g <= size: n, g, and a lower bound of the links that a word
    takes along one dimension of `size` PEs, to reach all n PEs of its word group, on average over the g word
    groups. anywhere: memory is attached all along the dimension; else at its two ends.

    A word group from PE d to PE d + s, with s >= n - 1, takes s links inside and min(d, size - 1 - d - s)
    from the nearer end. With the middle m = (size - 1) / 2 and the group's centre c = d + s / 2 that is

        (s + size - 1) / 2 - |c - m|

    Loops put the PEs of all word groups at 0 .. n g - 1, each once, and the mean of a group's PEs is its
    centre. So the mean of |c - m| is at most that of |p - m| over all these PEs p.
    """
    n, g = (
        np.array(one, np.int64)
        for one in zip(*((n, g) for n in range(1, size + 1) for g in range(1, size // n + 1)), strict=True)
    )
    span = np.asarray(n - 1, np.float64)
    if anywhere:
        return n, g, span
    away: Floats = np.cumsum(abs(np.arange(size) - (size - 1) / 2)) / np.arange(1, size + 1)
    links: Floats = np.maximum(span, (n + size - 2) / 2 - away[n * g - 1])
    return n, g, links


def _least_of_larger(links: Floats, n: Ints, g: Ints, pes: int) -> Floats:
    """Returns, per entry (n, g), the least links of all entries (n', g') with n' >= n and g' >= g."""
    by_split = np.full((pes + 1, pes + 1), inf)
    by_split[n, g] = links
    for axis in (0, 1):
        by_split = np.flip(np.minimum.accumulate(np.flip(by_split, axis), axis), axis)
    found: Floats = by_split[n, g]
    return found


def arrangements(mapping: Mapping, e: Einsum, arch: Arch) -> list[Mapping]:
    """Returns `mapping` and nests that differ from it only in how ranks are split over the rows and columns
    of networks whose links have a price, MAX_ARRANGED at most. All tiles stay as they are. A rank whose loops
    do not divide it moves as a whole.
    """
    found = [mapping]
    for f in (arch.fanouts[i] for i in networks(arch.fanouts)):
        if len(f.dims) == 2:
            found = [other for one in found for other in _arranged_on(one, e, f)][:MAX_ARRANGED]
    return found


def _arranged_on(mapping: Mapping, e: Einsum, f: Fanout) -> list[Mapping]:
    """`arrangements` on one network of two dimensions; `mapping` comes first."""
    dims, sizes = dict(f.dims), e.sizes()
    at = [i for i, n in enumerate(mapping.nodes) if isinstance(n, Loop) and n.over in dims]
    if not at or at[-1] - at[0] >= len(at):  # none, or other loops stand between them
        return [mapping]
    outside, inside = mapping.nodes[: at[0]], mapping.nodes[at[-1] + 1 :]
    sizes |= {n.rank: n.tile for n in outside if isinstance(n, Loop)}
    own: dict[str, list[Loop]] = {}
    for n in mapping.nodes[at[0] : at[-1] + 1]:
        if isinstance(n, Loop):
            own.setdefault(n.rank, []).append(n)
    found = [mapping]
    for choice in product(*(_splits(sizes[rank], loops, tuple(dims)) for rank, loops in own.items())):
        loops, used, left = sum(choice, ()), dict.fromkeys(dims, 1), dict(sizes)
        for loop in loops:
            used[loop.over] *= -(-left[loop.rank] // loop.tile)
            left[loop.rank] = loop.tile
        if all(used[dim] <= dims[dim] for dim in dims):
            found.append(replace(mapping, nodes=(*outside, *loops, *inside)))
    return found


def _splits(size: int, loops: Sequence[Loop], dims: tuple[str, ...]) -> list[tuple[Loop, ...]]:
    """The ways to split what `loops` over one rank of `size` values do over two dimensions."""
    rows, columns = dims
    rank, tile = loops[-1].rank, loops[-1].tile
    pes = -(-size // tile)
    if size == pes * tile:
        pairs = [(n, pes // n) for n in divisors(pes)]
    else:
        pairs = [(pes, 1), (1, pes)] if len(loops) == 1 else []
    return [
        (
            *([Loop(rank, tile * across, rows)] if down > 1 else []),
            *([Loop(rank, tile, columns)] if across > 1 else []),
        )
        for down, across in pairs
    ] or [tuple(loops)]
