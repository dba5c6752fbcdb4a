"""Hops on a mesh, between the PEs of a fan-out and to the memory at its edge (docs/model.md, Networks).

A word for one PE travels along the row of its source, then along the column. A word for many PEs takes a
tree:
* `multicast_from: next_level`: along the source's row past all columns of these PEs, and in each such column
  past all their rows
* `multicast_from: same_level`: from PE to nearest PE

Sums that are reduced on the way take the same tree inwards.

PEs that want the same words occupy some positions in each dimension of the mesh; all pairs of these positions
want them. Where PEs have unequal shares of a rank (the last ones less, or nothing), such groups of PEs are
counted one by one: words are those of an einsum whose extents are the share of one PE; likewise where
padding cuts the windows of some. Where hops have a price, two kinds of nest are refused: nests that cut over
a mesh windows that another stage passes on, of results, of sparse tensors, or with padding below a loop over
their rank; and nests in which shares differ from round to round.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from itertools import pairwise, product
from math import prod

from dse.mapping.nest import Loop, Mapping, Store
from dse.mapping.trips import trip_at
from dse.sim.counts.counts import Delivery, deliveries, nest_sums
from dse.sim.counts.terms import NestSums
from dse.sim.levels import rotation
from hw.arch import Arch, Fanout
from workloads.einsum import Dim, Einsum, Projection

ACTIONS = ("hop", "endpoint", "rotate", "rotate_endpoint")  # actions of networks; `NetworkTraffic.action`
MeshPosition = tuple[int, int]  # (row, column)
IndexRange = tuple[int, int]  # (first index, one past the last)


class Uncounted(ValueError):
    """Hops of a nest are not counted; the message names the loop and what to do instead."""


def tree(source: MeshPosition, rows: Sequence[int], columns: Sequence[int]) -> int:
    """Returns the number of links of the tree from a source to all PEs of these rows and columns.

    >>> tree((0, 0), (1, 2), (1, 3))
    7
    """
    return _reach(source[1], columns) + len(columns) * _reach(source[0], rows)


def _reach(start: int, places: Sequence[int]) -> int:
    """Returns the links along one dimension that cover a start and all positions."""
    return max(start, *places) - min(start, *places)


def injected_at(kind: str, mesh_size: MeshPosition) -> tuple[MeshPosition, ...]:
    """Returns the positions where memory is attached: the corners, or the whole left and right edge.

    mesh_size: (rows, columns)
    """
    rows = range(mesh_size[0]) if kind == "edge" else sorted({0, mesh_size[0] - 1})
    return tuple((row, column) for row in rows for column in sorted({0, mesh_size[1] - 1}))


def _sources(f: Fanout, mesh_size: MeshPosition, enters_anywhere: bool) -> Sequence[MeshPosition]:
    """Returns the positions where a word may enter a mesh of (rows, columns)."""
    if enters_anywhere:
        return list(product(range(mesh_size[0]), range(mesh_size[1])))
    return injected_at(f.injected_at, mesh_size)


def chain(source: MeshPosition, rows: Sequence[int], columns: Sequence[int]) -> int:
    """Returns the number of links of a spanning tree: from a source to the nearest PE of these rows and
    columns, and from PE to nearest PE until all have the word.

    Gaps between neighbouring rows and columns are closed shortest first. A gap between rows is crossed once
    per group that the columns still form, and vice versa.
    >>> chain((0, 0), (1, 11), (1, 2, 3))
    16
    """
    gaps = sorted((b - a, axis) for axis, places in enumerate((rows, columns)) for a, b in pairwise(places))
    group_counts = [len(rows), len(columns)]
    links = min(abs(source[0] - y) for y in rows) + min(abs(source[1] - x) for x in columns)
    for gap, axis in gaps:
        links += gap * group_counts[1 - axis]
        group_counts[axis] -= 1
    return links


TREES = {"next_level": tree, "same_level": chain}


def links(kind: str, source: MeshPosition, pes: frozenset[MeshPosition]) -> int:
    """Returns the number of links of the tree of a kind (`multicast_from`) from a source to any PEs.

    >>> nodes = frozenset({(1, 0), (1, 1), (2, 0)})
    >>> links("next_level", (0, 0), nodes), links("same_level", (0, 0), nodes)
    (4, 3)
    """
    rows, columns = sorted({y for y, _ in pes}), sorted({x for _, x in pes})
    if len(pes) == len(rows) * len(columns):
        return TREES[kind](source, rows, columns)
    if kind == "next_level":
        return _reach(source[1], columns) + sum(
            _reach(source[0], [y for y, x in pes if x == column]) for column in columns
        )
    # nearest PE first (Prim): distance of each PE to the source, then to the nearest PE that has the word
    distance, total = {pe: abs(source[0] - pe[0]) + abs(source[1] - pe[1]) for pe in pes}, 0
    first = True
    while distance:
        pe = min(distance, key=distance.__getitem__)
        total += distance.pop(pe)
        distance = {
            other: n
            if n < (new_distance := abs(other[0] - pe[0]) + abs(other[1] - pe[1])) and not first
            else new_distance
            for other, n in distance.items()
        }
        first = False
    return total


def ring(rows: Sequence[int], columns: Sequence[int]) -> int:
    """Returns the number of links once round all PEs of these rows and columns and back: row by row, every
    other row backwards, or column by column if that is shorter.

    >>> ring((0, 1), (0, 1, 2)), ring((0,), (2, 5))
    (6, 6)
    """
    down, right = rows[-1] - rows[0], columns[-1] - columns[0]
    by_rows = len(rows) * right + 2 * down + right * (len(rows) % 2)
    return min(by_rows, len(columns) * down + 2 * right + down * (len(columns) % 2))


@dataclass(frozen=True, slots=True)
class Cut:
    """A parfor loop over the mesh."""

    rank: str
    dim: int  # 0: rows, 1: columns
    stride: int  # PEs from one trip to the next
    trips: int
    tile: int  # indices of the rank per trip
    extent: int = 0  # indices of the rank that the loop cuts


def cuts(mapping: Mapping, e: Einsum, f: Fanout) -> list[Cut]:
    """Returns the loops over a mesh, outermost first. Raises Uncounted where the shares of PEs differ from
    round to round.
    """
    dims = [name for name, _ in f.dims]
    tile_of, found, uneven_ranks = e.sizes(), list[Cut](), set[str]()
    for node in mapping.nodes:
        if not isinstance(node, Loop):
            continue
        uneven_ranks |= {node.rank} if not node.over and tile_of[node.rank] % node.tile else set()
        if node.over in dims:
            if node.rank in uneven_ranks:
                raise Uncounted(
                    f"parfor {node.rank} over {node.over} gives PEs of {f.name} other shares in the last "
                    "round: hops are not counted; take tiles that divide"
                )
            trips, dim = -(-tile_of[node.rank] // node.tile), dims.index(node.over)
            found = [replace(c, stride=c.stride * trips) if c.dim == dim else c for c in found]
            found.append(Cut(node.rank, dim, 1, trips, node.tile, tile_of[node.rank]))
        tile_of[node.rank] = node.tile
    return found


@dataclass(frozen=True, slots=True)
class Group:
    """PEs that want the same words."""

    rows: tuple[int, ...]
    columns: tuple[int, ...]
    trips: tuple[int, ...]  # per cut, the trip that these PEs work on; 0 where `distinct` is False
    distinct: tuple[bool, ...]  # per cut, whether PEs along it want different words


def groups(loops: Sequence[Cut], distinct: Sequence[bool], first: MeshPosition) -> list[Group]:
    """Returns the groups of PEs that want the same words.

    distinct: per cut, whether PEs along it want different words: the tensor has its rank, or PEs share no
        access along its dimension
    first: position of the first PE
    """
    found = []
    for trips in product(
        *(range(c.trips) if is_distinct else (0,) for c, is_distinct in zip(loops, distinct, strict=True))
    ):
        positions = [[first[0]], [first[1]]]
        for c, is_distinct, i in zip(loops, distinct, trips, strict=True):
            positions[c.dim] = [
                place + c.stride * n
                for place in positions[c.dim]
                for n in ((i,) if is_distinct else range(c.trips))
            ]
        found.append(Group(tuple(positions[0]), tuple(positions[1]), trips, tuple(distinct)))
    return found


@dataclass(frozen=True, slots=True)
class OwnedPart:
    """What one PE holds of a tensor that its stage makes."""

    place: MeshPosition
    spans: tuple[IndexRange, ...]  # indices of each dimension


def owners(
    mapping: Mapping, e: Einsum, p: Projection, f: Fanout, pipeline_tile: dict[str, int]
) -> tuple[OwnedPart, ...]:
    """Returns the PEs of a stage and what each holds of a pipeline tile of its output. Of PEs that share
    sums, the first holds them.

    mapping: the stage's nest, whose spatial loops stand first
    pipeline_tile: rank -> extent in a pipeline tile
    """
    loops = cuts(mapping, e, f)
    return tuple(
        OwnedPart(
            (group.rows[0], group.columns[0]), tuple(_produced(p, d, share, pipeline_tile) for d in p.dims)
        )
        for group in groups(loops, [c.rank in p.ranks() for c in loops], _first_pe(f))
        if (share := _share(loops, group.trips)) is not None
    )


def _produced(
    p: Projection, d: Dim, share: dict[str, IndexRange], pipeline_tile: dict[str, int]
) -> IndexRange:
    """Returns the indices of a dimension that a PE makes; all indices where several ranks make the dimension,
    or one rank with a stride.
    """
    rank, step = d.terms[0] if d.terms else ("", 0)
    if (step, len(d.terms), d.offset) == (1, 1, 0):
        return share.get(rank, (0, pipeline_tile[rank]))
    if cut := [rank for rank, _ in d.terms if rank in share]:
        raise Uncounted(
            f"parfor {cut[0]} cuts windows of {p.tensor}, whose hops are not counted; split another rank"
        )
    return 0, 1 << 60  # all


def _share(loops: Sequence[Cut], trips: Sequence[int]) -> dict[str, IndexRange] | None:
    """Returns the indices that a PE has of each rank that is cut; None: nothing is left for it.

    trips: the PE's trip of each cut
    """
    found: dict[str, IndexRange] = {}
    for c, i in zip(loops, trips, strict=True):
        low, high = found.get(c.rank, (0, c.extent))
        found[c.rank] = low + i * c.tile, min(low + (i + 1) * c.tile, high)
        if low + i * c.tile >= high:
            return None
    return found


def _part(extent: int, rank: str, loops: Sequence[Cut], group: Group) -> IndexRange:
    """Returns the indices that a group of PEs has of a rank; all of them where no cut distributes the
    rank.
    """
    low = 0
    for c, i, n in zip(loops, group.trips, group.distinct, strict=True):
        if c.rank == rank and n:
            low, extent = low + i * c.tile, c.tile
    return low, low + extent


def _mesh_region(f: Fanout) -> tuple[MeshPosition, MeshPosition]:
    """Returns two pairs, for rows and for columns: (index in the mesh of the fan-out's first one, how many
    the mesh has).
    """
    rows, columns = (f.mesh_region or tuple((0, n) for _, n in f.dims))[:2]
    return rows, columns


def _first_pe(f: Fanout) -> MeshPosition:
    """Returns the position of the first PE of a fan-out."""
    rows, columns = _mesh_region(f)
    return rows[0], columns[0]


@dataclass(frozen=True, slots=True)
class NetworkTraffic:
    """What one tensor moves through a network."""

    network: str
    tensor: str
    # hop: bits times links, from and to outside; endpoint: bits that PEs take or give; rotate,
    # rotate_endpoint: the same for parts that rotate in a ring
    action: str
    bits: float
    energy_pj: float


def network_traffic(
    mapping: Mapping, sums: NestSums, arch: Arch, remote: Sequence[tuple[str, tuple[OwnedPart, ...]]] = ()
) -> Iterator[NetworkTraffic]:
    """Yields the traffic of every network that has a price. Raises Uncounted where hops are not counted.

    sums: the sums of the mapping
    remote: (tensor, parts that PEs of another stage hold)
    """
    e = sums.formulas.e
    rings = rotation.rings(mapping, e, arch)
    for f in arch.fanouts:
        if not f.has_price():
            continue
        ring_of = {one.tensor.tensor: one for one in rings if one.fanout is f}
        for one in deliveries(sums, arch, f):
            ring_ = ring_of.get(one.tensor.tensor)
            if f.endpoint_pj:
                bits = one.at_pes * one.bits / (ring_.pes if ring_ else 1)
                yield NetworkTraffic(f.name, one.tensor.tensor, "endpoint", bits, bits * f.endpoint_pj)
            if f.hop_pj:
                hops = (
                    one.at_source
                    * one.bits
                    * _mean_links(one, mapping, e, arch, f, dict(remote), ring_.rotated.dims if ring_ else ())
                )
                yield NetworkTraffic(f.name, one.tensor.tensor, "hop", hops, hops * f.hop_pj)
        for tensor, ring_ in ring_of.items():
            bits = rotation.rotated_words(ring_, mapping, e, arch)[0] * (ring_.tensor.bits or arch.word_bits)
            if f.endpoint_pj:
                yield NetworkTraffic(f.name, tensor, "rotate_endpoint", 2 * bits, 2 * bits * f.endpoint_pj)
            if f.hop_pj:
                hops = bits * _step(ring_, mapping, e, f)
                yield NetworkTraffic(f.name, tensor, "rotate", hops, hops * f.hop_pj)


def words_between(
    mapping: Mapping,
    sums: NestSums,
    arch: Arch,
    f: Fanout,
    remote: Sequence[tuple[str, tuple[OwnedPart, ...]]],
) -> Iterator[tuple[str, float]]:
    """Yields (tensor, bits times links between PEs of a fan-out) of a nest: what PEs pass to each other if
    each of them has its own way to the level outside. A word from there enters at one of the PEs that want
    it, so multicasts and sums cross links, parts for one PE alone none. Arguments and errors: as
    `network_traffic`.
    """
    for one in deliveries(sums, arch, f):
        links_each = _mean_links(one, mapping, sums.formulas.e, arch, f, dict(remote), (), True)
        yield one.tensor.tensor, one.at_source * one.bits * links_each


def _step(ring_: rotation.Ring, mapping: Mapping, e: Einsum, f: Fanout) -> float:
    """Returns the average number of links from a PE of a ring to the next; all rings are equal."""
    dims = [name for name, _ in f.dims]
    loops = cuts(mapping, e, f)
    distinct = [c.rank in ring_.tensor.ranks() or dims[c.dim] not in ring_.rotated.dims for c in loops]
    if any(c.extent % c.tile for c in loops):
        raise Uncounted(
            f"PEs of {f.name} have unequal shares: hops of a rotating tile are not counted; take "
            "tiles that divide"
        )
    first = groups(loops, distinct, _first_pe(f))[0]
    return ring(first.rows, first.columns) / ring_.pes


def _mean_links(
    delivery: Delivery,
    mapping: Mapping,
    e: Einsum,
    arch: Arch,
    f: Fanout,
    remote: dict[str, tuple[OwnedPart, ...]],
    ring_dims: Sequence[str],
    enters_anywhere: bool = False,
) -> float:
    """Returns the average number of links that a word takes.

    ring_dims: dimensions along which PEs share a tile out, so that each word goes to one of them
    enters_anywhere: each PE has its own way to the level outside; False: that is attached at `injected_at`
    """
    p, loops, (rows, columns) = delivery.tensor, cuts(mapping, e, f), _mesh_region(f)
    beyond = {rank for d in p.dims for rank in d.ranks() if d.size < e.sizes()[rank]}
    window_ranks = [c.rank for c in loops if c.rank in p.partial_ranks() | beyond]
    clipped_ranks = {rank for d in p.dims if _is_clipped(d, e) for rank in d.ranks()} & set(window_ranks)
    if window_ranks and (p is e.output or p.tensor in remote or not delivery.is_dense):
        raise Uncounted(
            f"parfor {window_ranks[0]} cuts windows of {p.tensor}, whose hops are not counted; split "
            f"another rank over {f.name}"
        )
    shared = f.reduce if p is e.output else f.multicast
    distinct = [
        c.rank in delivery.unshared or not shared[c.dim] or f.dims[c.dim][0] in ring_dims for c in loops
    ]
    if p.tensor in remote:
        _check_windows(p, remote[p.tensor])
    if any(c.extent % c.tile or c.rank in clipped_ranks for c in loops):
        return (
            _uneven_links(
                delivery,
                loops,
                distinct,
                mapping,
                e,
                arch,
                f,
                remote.get(p.tensor),
                clipped_ranks,
                enters_anywhere,
            )
            / delivery.at_source
            if delivery.at_source
            else 0.0
        )
    wanted_groups = groups(loops, distinct, _first_pe(f))
    if p.tensor not in remote:
        sources = _sources(f, (rows[1], columns[1]), enters_anywhere)
        return sum(
            min(TREES[f.multicast_from](source, group.rows, group.columns) for source in sources)
            for group in wanted_groups
        ) / len(wanted_groups)
    return sum(_from_owners(group, remote[p.tensor], p, loops, f) for group in wanted_groups) / len(
        wanted_groups
    )


def _check_windows(p: Projection, parts: Sequence[OwnedPart]) -> None:
    """Raises Uncounted if PEs that hold a tensor split a dimension that is read in windows."""
    split = [
        d for d, *spans in zip(p.dims, *(part.spans for part in parts), strict=True) if len(set(spans)) > 1
    ]
    if windows := [d.terms[0][0] for d in split if d.terms and (len(d.terms) != 1 or d.terms[0][1] != 1)]:
        raise Uncounted(
            f"{p.tensor} is read in windows over {windows[0]}, which the PEs that hold it split: "
            "hops are not counted; split another rank"
        )


def _uneven_links(
    delivery: Delivery,
    loops: Sequence[Cut],
    distinct: Sequence[bool],
    mapping: Mapping,
    e: Einsum,
    arch: Arch,
    f: Fanout,
    parts: Sequence[OwnedPart] | None,
    windows: Set[str],
    enters_anywhere: bool,
) -> float:
    """Returns the sum of words times links where shares are unequal, or padding cuts windows of some.

    windows: ranks shared out that cut windows with padding
    A group receives as many words as one PE receives in the einsum of its share alone (`_share_nest`). This
    holds only if all PEs of a group fetch equally often: no loop inside of the PEs and above the tensor's
    node may be over a rank that is shared out unequally and along which PEs share accesses. Raises Uncounted
    otherwise.
    """
    p, mesh_region = delivery.tensor, _mesh_region(f)
    if between := _between(mapping, e, f):
        raise Uncounted(
            f"for {between} stands between loops over PEs of {f.name}, whose shares are unequal: "
            "hops are not counted; take tiles that divide"
        )
    child = next(
        (
            i
            for i, node in enumerate(mapping.nodes)
            if isinstance(node, Store) and node.tensor == p.tensor and i > _last_cut(mapping, f)
        ),
        len(mapping.nodes),
    )
    for c in loops:
        if (
            c.extent % c.tile
            and c.rank not in delivery.unshared
            and (trip_count := _inner_trips(c.rank, mapping, f, child))
        ):
            raise Uncounted(
                f"parfor {c.rank} over {f.dims[c.dim][0]} gives PEs of {f.name} unequal shares, and "
                f"{p.tensor} comes {trip_count} times in some: hops are not counted; take tiles that divide"
            )
    if outside := next(
        (
            node.rank
            for node, rank_tile in _loops_outside(mapping, e, f)
            if node.rank in windows and node.tile < rank_tile
        ),
        "",
    ):
        raise Uncounted(
            f"for {outside} stands outside of loops over PEs of {f.name} that cut windows of {p.tensor} with "
            "padding: hops are not counted; put it inside, or split another rank"
        )
    # PEs that want the same words, and their share, by their trips of the cuts that give PEs different words
    pes_of: dict[tuple[int, ...], set[MeshPosition]] = {}
    shares: dict[tuple[int, ...], dict[str, IndexRange]] = {}
    for trips in product(*(range(c.trips) for c in loops)):
        if (share := _share(loops, trips)) is not None:
            key = tuple(i for i, is_distinct in zip(trips, distinct, strict=True) if is_distinct)
            y, x = (
                first + sum(c.stride * i for c, i in zip(loops, trips, strict=True) if c.dim == dim)
                for dim, first in enumerate(_first_pe(f))
            )
            pes_of.setdefault(key, set()).add((y, x))
            shares.setdefault(key, {rank: span for rank, span in share.items() if rank in delivery.unshared})
    nest_of: dict[tuple[tuple[str, int], ...], tuple[Mapping, Einsum]] = {}  # by the size of a group's share
    words_of: dict[tuple[Mapping, Einsum], float] = {}
    total = 0.0
    for key, pes in pes_of.items():
        size = tuple((rank, high - low) for rank, (low, high) in shares[key].items())
        if size not in nest_of:
            nest_of[size] = _share_nest(loops, dict(size), mapping, e, f)
        nest, part = nest_of[size]
        for rank, n in size:
            part = trip_at(part, rank, n, shares[key][rank][0]) if rank in windows else part
        if (nest, part) not in words_of:
            share_sums = nest_sums(nest, part, arch, e)
            words_of[nest, part] = next(
                other.at_source * delivery.access / other.access
                for other in deliveries(share_sums, arch, f)
                if other.tensor.tensor == p.tensor
            )
        words_here = words_of[nest, part]
        if parts is None:
            min_links = min(
                links(f.multicast_from, source, frozenset(pes))
                for source in _sources(f, (mesh_region[0][1], mesh_region[1][1]), enters_anywhere)
            )
            total += words_here * min_links
            continue
        wanted_ranges = [
            shares[key].get(d.terms[0][0], (0, 1 << 60)) if d.terms else (d.offset, d.offset + 1)
            for d in p.dims
        ]
        words = [(prod(map(_common, wanted_ranges, other.spans)), other.place) for other in parts]
        word_links = sum(n * links(f.multicast_from, place, frozenset(pes)) for n, place in words if n)
        total += words_here * word_links / max(sum(n for n, _ in words), 1)
    return total


def _is_clipped(d: Dim, e: Einsum) -> bool:
    """True if indices of a dimension fall on padding around it."""
    last = d.offset + sum(c * (e.sizes()[rank] - 1) for rank, c in d.terms)
    return d.offset < 0 or last >= d.size


def _loops_outside(mapping: Mapping, e: Einsum, f: Fanout) -> Iterator[tuple[Loop, int]]:
    """Yields the temporal loops outside of the last loop over PEs of a mesh, each with the tile around it."""
    tile_of = e.sizes()
    for node in mapping.nodes[: _last_cut(mapping, f)]:
        if isinstance(node, Loop):
            if not node.over:
                yield node, tile_of[node.rank]
            tile_of[node.rank] = node.tile


def _between(mapping: Mapping, e: Einsum, f: Fanout) -> str:
    """Returns the rank of a temporal loop between loops over PEs of a mesh, or ""."""
    tile_of, after_pes, end = e.sizes(), False, _last_cut(mapping, f)
    for node in mapping.nodes[:end]:
        if isinstance(node, Loop):
            if after_pes and not node.over and tile_of[node.rank] > node.tile:
                return node.rank
            after_pes, tile_of[node.rank] = after_pes or node.over in {name for name, _ in f.dims}, node.tile
    return ""


def _last_cut(mapping: Mapping, f: Fanout) -> int:
    """Returns the position of the last loop over PEs of a fan-out."""
    names = {name for name, _ in f.dims}
    return max(i for i, node in enumerate(mapping.nodes) if isinstance(node, Loop) and node.over in names)


def _inner_trips(rank: str, mapping: Mapping, f: Fanout, end: int) -> int:
    """Returns the trips of loops over a rank inside of the PEs, down to position `end`; 0 if there is one
    trip.
    """
    first, trips, tile = _last_cut(mapping, f), 1, 0
    for i, node in enumerate(mapping.nodes[:end]):
        if isinstance(node, Loop) and node.rank == rank:
            trips, tile = trips * -(-tile // node.tile) if i > first else trips, node.tile
    return trips if trips > 1 else 0


def _share_nest(
    loops: Sequence[Cut], size: dict[str, int], mapping: Mapping, e: Einsum, f: Fanout
) -> tuple[Mapping, Einsum]:
    """Returns the nest and the einsum as if there were one PE: the extent of each rank that the mesh cuts,
    and its tiles outside of the mesh, are scaled from what all PEs have to the PE's share.

    size: rank -> the PE's share; a rank that is not named keeps a full tile
    """
    names, sizes = {name for name, _ in f.dims}, e.sizes()
    share_of = {
        c.rank: (size.get(c.rank, c.tile), next(one.extent for one in loops if one.rank == c.rank))
        for c in loops
    }
    nodes, inside = [], set[str]()
    for node in mapping.nodes:
        if isinstance(node, Loop) and node.rank in share_of:
            share, extent = share_of[node.rank]
            inside |= {node.rank} if node.over in names else set()
            node = replace(
                node, tile=min(node.tile, share) if node.rank in inside else node.tile // extent * share
            )
        nodes.append(node)
    extents = tuple(
        (rank, n // share_of[rank][1] * share_of[rank][0] if rank in share_of else n)
        for rank, n in sizes.items()
    )
    return replace(mapping, nodes=tuple(nodes), shares=()), replace(e, extents=extents)


def _from_owners(
    group: Group, parts: Sequence[OwnedPart], p: Projection, loops: Sequence[Cut], f: Fanout
) -> float:
    """Returns the average number of links over the words of a group; each word comes from the PE that
    holds it.
    """
    total, words = 0, 0
    for part in parts:
        wanted = (
            _part(1 << 60, d.terms[0][0], loops, group) if d.terms else (d.offset, d.offset + 1)
            for d in p.dims
        )
        common = prod(_common(span, other) for span, other in zip(part.spans, wanted, strict=True))
        words += common
        total += common * TREES[f.multicast_from](part.place, group.rows, group.columns) if common else 0
    return total / max(words, 1)  # 1: only padding, no word is wanted


def _common(a: IndexRange, b: IndexRange) -> int:
    """Returns how many indices two spans share."""
    return max(min(a[1], b[1]) - max(a[0], b[0]), 0)
