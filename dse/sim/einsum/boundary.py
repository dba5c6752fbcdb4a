"""What stands around an einsum's own nest in a schedule, and what it changes of counts and room
(docs/model.md, Schedules).

The whole nest of an einsum is the shared loops and storage nodes as it sees them, then its own: counts are
those of that nest, but for
* kept tensors: of every element a share lies inside, where its nodes further out do not exist: (1 - share) of
  the counts as written plus share of those; in a level inside of lanes all of them hold an even part, which
  others read and write through the network: there the nest stays, its outermost node is those;
* remote tensors: made by another stage of a pipeline and read out of the level in its lanes: the row of the
  parent, under that level's name;
* gathered tensors: sums that lanes of this stage share, added up on the way to the first of them: likewise;
* held tensors: filled in the first granule only: what moves into them is counted on the nest of one granule.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from math import prod

from dse.mapping.nest import Loop, Mapping, Store
from dse.mapping.space import stationary
from dse.sim.counts.counts import Count, Elems, Footprint, Key, busiest, count, each, footprints
from dse.sim.counts.spans import ALL, FIRST
from dse.sim.counts.terms import tile_count, wiring
from dse.sim.levels import network, sharing, transfer
from dse.sim.levels.network import OwnedPart
from hw.arch import Arch
from workloads.einsum import Einsum


@dataclass(frozen=True, slots=True)
class Boundary:
    """outer: shared loops and storage nodes of the einsum's tensors; of a tensor that another einsum brings
    in or makes, only the innermost one.

    homes: nodes that another stage of a pipeline reads, inside the lanes of this one; they stand below the
    parfor loops over `dims` with which the own nest begins. remote: (tensor, level that it is read out of,
    all of it over what the busiest of its lanes holds); remote_sums: the same of the einsum's own sums, of
    which several lanes have a part. copies: (node, granules that it holds at once). retained: (tensor, level,
    share); retention_moves: (level, tensor, action, share of it) that is moved since more or less of it stays
    afterwards; forwarded: kept ones that the segment hands on too, from a node of their own. branched: other
    einsums stand below the shared part; forked: they use the machine between two trips of the shared loops:
    systolic arrays fill and empty once a trip. pinned: tensors that are there before the run. filled_before:
    what shared nodes hold that another einsum fills; owners: lanes that hold a remote tensor, where hops are
    priced. reserved_bits: (level, bits) that others hold meanwhile.
    """

    outer: tuple[Loop | Store, ...] = ()
    dims: tuple[str, ...] = ()
    homes: tuple[Store, ...] = ()
    remote: tuple[tuple[str, str, int | Fraction], ...] = ()
    filled_once: tuple[Store, ...] = ()
    copies: tuple[tuple[Store, int], ...] = ()
    retained: tuple[tuple[str, str, Fraction], ...] = ()
    branched: bool = False
    forked: bool = False
    pinned: frozenset[str] = frozenset()
    filled_before: tuple[Footprint, ...] = ()
    owners: tuple[tuple[str, tuple[OwnedPart, ...]], ...] = ()
    reserved_bits: tuple[tuple[str, int], ...] = ()
    retention_moves: tuple[tuple[str, str, str, Fraction], ...] = ()
    forwarded: frozenset[str] = frozenset()
    remote_sums: tuple[tuple[str, str, int | Fraction], ...] = ()

    def marks(self) -> str:
        """What changes counts beside the nest, as text."""
        marks = (
            self.remote,
            self.filled_once,
            self.retained,
            self.forked,
            self.retention_moves,
            *([self.remote_sums] if self.remote_sums else []),
        )
        return f" {' '.join(map(str, marks))}" if any(marks) else ""

    def timed(self, arch: Arch) -> bool:
        """Whether its time is that of one nest: not of stages, not where a part of a tensor is kept and a
        part is not, or lies in slices in the lanes.
        """
        partly = (
            self.retention_moves
            or self.forwarded
            or any(share != 1 or is_sliced(level, arch) for _, level, share in self.retained)
        )
        return not (self.dims or self.remote or self.filled_once or partly)


ALONE = Boundary()


def nest_in_time(b: Boundary, full_nest: Mapping, arch: Arch) -> tuple[Mapping, int]:
    """The nest whose cycles are an einsum's (without nodes: there is none), and the position from which it
    finds levels empty in every iteration of the loops above.
    """
    if not b.timed(arch):
        return replace(full_nest, nodes=()), 0
    for tensor, level, _ in b.retained:
        full_nest = inner_nest(full_nest, tensor, level, arch)
    return full_nest, full_nest.fork if b.forked else 0


def whole_nest(b: Boundary, own: Mapping) -> Mapping:
    """The whole nest of an einsum."""
    if b is ALONE:
        return own
    lead = next(
        (i for i, node in enumerate(own.nodes) if not (isinstance(node, Loop) and node.over in b.dims)),
        len(own.nodes),
    )
    return replace(
        own,
        nodes=(*b.outer, *own.nodes[:lead], *b.homes, *own.nodes[lead:]),
        fork=len(b.outer) if b.branched else 0,
    )


def count_rows(b: Boundary, full_nest: Mapping, e: Einsum, arch: Arch) -> tuple[Count, ...]:
    """Rows of the whole nest; as `counts.count` where the einsum stands alone."""
    if not b.marks() and not full_nest.shares:
        return count(full_nest, e, arch)
    rows = _mix(b, b.retained, full_nest, e, arch)
    for level, tensor, action, share in b.retention_moves:
        p = next(p for p in e.tensors() if p.tensor == tensor)
        _add(
            rows,
            (level, tensor, action),
            share * Fraction(p.stored_bits(arch.word_bits), p.bits or arch.word_bits),
            arch,
        )
    return busiest(
        {key: (float(total), [float(n) for n in own]) for key, (total, own) in rows.items()}, e, arch
    )


def _mix(
    b: Boundary, retained: Sequence[tuple[str, str, Fraction]], full_nest: Mapping, e: Einsum, arch: Arch
) -> dict[Key, Elems]:
    if not retained:
        return _as_written(b, full_nest, e, arch)
    (tensor, level, share), *rest = retained
    slices = is_sliced(level, arch)
    far = _mix(b, rest, full_nest, e, arch) if slices or share != 1 else {}
    near = (
        _in_slices(far, tensor, level, arch)
        if slices
        else _mix(b, rest, inner_nest(full_nest, tensor, level, arch), e, arch)
    )
    if share == 1:
        return near
    none: Elems = (0, [0] * len(next(iter(far.values()))[1]))
    shares = {key: (far.get(key, none), near.get(key, none)) for key in far | near}
    return {
        key: (
            (1 - share) * a[0] + share * z[0],
            [(1 - share) * x + share * y for x, y in zip(a[1], z[1], strict=True)],
        )
        for key, (a, z) in shares.items()
    }


def is_sliced(level: str, arch: Arch) -> bool:
    """Whether a level stands inside of lanes, so that what is kept there lies spread over them."""
    return any(f.outside <= v for v, one in enumerate(arch.levels) if one.name == level for f in arch.fanouts)


def _in_slices(far: dict[Key, Elems], tensor: str, level: str, arch: Arch) -> dict[Key, Elems]:
    """Rows of a nest whose outermost node of a tensor is all instances of a level, an even part in each."""
    outer, found = arch.levels[0].name, dict(far)
    for action in ("read", "write"):
        if row := found.pop((outer, tensor, action), None):
            _add(found, (level, tensor, action), row[0], arch)
    return found


def _add(rows: dict[Key, Elems], key: Key, n: float | Fraction, arch: Arch) -> None:
    """So many elements more, spread over all instances."""
    own = n / next(arch.instances(v) for v, level in enumerate(arch.levels) if level.name == key[0])
    total, each_own = rows.get(key, (0, [0] * len(next(iter(rows.values()))[1])))
    rows[key] = total + n, [one + own for one in each_own]


def inner_nest(full_nest: Mapping, tensor: str, level: str, arch: Arch) -> Mapping:
    """The nest of what lies at a level: no node further out, and the level's own stands above all loops."""
    order = [one.name for one in arch.levels]
    near = order.index(level)
    rest = [
        (i, node)
        for i, node in enumerate(full_nest.nodes)
        if not (isinstance(node, Store) and node.tensor == tensor and order.index(node.level) <= near)
    ]
    fork = 1 + sum(i < full_nest.fork for i, _ in rest) if full_nest.fork else 0
    return replace(
        full_nest, nodes=(Store(level, tensor), *(node for _, node in rest)), layouts=(), fork=fork
    )


def _as_written(b: Boundary, full_nest: Mapping, e: Einsum, arch: Arch) -> dict[Key, Elems]:
    rows = each(full_nest, e, arch)
    order, many = [level.name for level in arch.levels], len(next(iter(rows.values()))[1])
    if b.filled_once:
        once = {
            (row.level, row.tensor, row.action): row
            for row in count(*one_pipeline_tile(b, full_nest, e), arch)
        }
        for store in b.filled_once:
            at = order.index(store.level)
            for key in [key for key in rows if key[1] == store.tensor and key[0] in order]:
                if order.index(key[0]) < at or (key[0] == store.level and key[2] == "write"):
                    rows[key] = (
                        (once[key].elems, [once[key].busiest_elems] * many)
                        if key in once
                        else (0, [0] * many)
                    )
            for key in [
                (array.name, "-", "fold")
                for array in wiring(arch).systolic
                if store.level in array.inside and store.tensor == stationary(e, array.systolic).tensor
            ]:
                rows[key] = once[key].elems, [once[key].busiest_elems] * many
    if b.forked:
        trips = _trips(b, e)
        rows |= {
            key: (max(n, trips), [max(n, trips)] * many) for key, (n, _) in rows.items() if key[2] == "fold"
        }
    for tensor, level, _ in b.remote:
        parents = [
            key
            for key in rows
            if key[1] == tensor and key[0] in order and order.index(key[0]) < order.index(level)
        ]
        for key in parents:
            total, _ = rows.pop(key)
            mine = rows.get((level, tensor, "read"), (0, [0] * many))
            # the other stage's port is the busy one: `remote_reads`
            rows[level, tensor, "read"] = (mine[0] + total, mine[1])
    for tensor, level, lanes in b.remote_sums:
        total, _ = rows.pop((order[order.index(level) - 1], tensor, "write"))
        mine = rows.get((level, tensor, "write"), (0, [0] * many))
        rows[level, tensor, "write"] = (mine[0] + total, [own + total / lanes for own in mine[1]])
    return sharing.with_rotation(rows, full_nest, e, arch)


@lru_cache(maxsize=256)
def network_traffic(
    b: Boundary, full_nest: Mapping, e: Einsum, arch: Arch
) -> tuple[network.NetworkTraffic, ...]:
    """What moves through priced networks; what fills a held node crosses them in one granule. Raises
    ValueError where hops are not counted.
    """
    return tuple(_network_traffic(b, full_nest, e, arch))


def _network_traffic(
    b: Boundary, full_nest: Mapping, e: Einsum, arch: Arch
) -> Iterator[network.NetworkTraffic]:
    order = [level.name for level in arch.levels]
    once = {
        (node.tensor, f.name)
        for node in b.filled_once
        for f in arch.fanouts
        if f.outside <= order.index(node.level)
    }
    for way in network.network_traffic(full_nest, e, arch, b.owners):
        if way.action.startswith("rotate") or (way.tensor, way.network) not in once:
            yield way
    for way in network.network_traffic(*one_pipeline_tile(b, full_nest, e), arch, b.owners) if once else ():
        if not way.action.startswith("rotate") and (way.tensor, way.network) in once:
            yield way


def _trips(b: Boundary, e: Einsum) -> int:
    """How often the fork is reached, lanes at once."""
    loops = [node for node in b.outer if isinstance(node, Loop)]
    return prod(
        tile_count(n, tuple((loop.tile, FIRST if loop.over else ALL) for loop in loops if loop.rank == rank))
        for rank, n in e.extents
    )


def remote_reads(b: Boundary, full_nest: Mapping, e: Einsum, arch: Arch) -> dict[str, Count]:
    """What each remote tensor's lanes serve to this einsum, by what they hold of it; part of the rows of
    `count_rows`.
    """
    order = [level.name for level in arch.levels]
    rows = count(full_nest, e, arch) if b.remote else ()
    found = {}
    for tensor, level, lanes in b.remote:
        total = sum(
            row.elems for row in rows if row.tensor == tensor and order.index(row.level) < order.index(level)
        )
        found[tensor] = Count(level, tensor, "read", total, float(total / lanes))
    return found


def one_pipeline_tile(b: Boundary, full_nest: Mapping, e: Einsum) -> tuple[Mapping, Einsum]:
    """The nest and the einsum of one trip of all shared loops."""
    tiles = {node.rank: node.tile for node in b.outer if isinstance(node, Loop)}
    shared = [i for i, node in enumerate(full_nest.nodes) if isinstance(node, Loop)][
        : sum(isinstance(node, Loop) for node in b.outer)
    ]
    rest = tuple(node for i, node in enumerate(full_nest.nodes) if i not in shared)
    fork = full_nest.fork - len(shared) if full_nest.fork else 0
    return replace(full_nest, nodes=rest, fork=fork), replace(
        e, extents=tuple((rank, tiles.get(rank, n)) for rank, n in e.extents)
    )


def node_footprints(b: Boundary, full_nest: Mapping, e: Einsum, arch: Arch) -> tuple[Footprint, ...]:
    """Room per instance, in the order of the nodes. Shared nodes sink no further than to the fork; what is
    handed on is held whole, in as many copies as there are granules under way.
    """
    return tuple(sharing.parts(_node_footprints(b, full_nest, e, arch), full_nest, e, arch))


def _node_footprints(b: Boundary, full_nest: Mapping, e: Einsum, arch: Arch) -> tuple[Footprint, ...]:
    """With whole tiles in every lane."""
    found = transfer.footprints(full_nest, e, arch)
    if b is ALONE:
        return found
    stores = [(i, node) for i, node in enumerate(full_nest.nodes) if isinstance(node, Store)]
    fork = footprints(Mapping(b.outer), e, arch)
    once = footprints(*one_pipeline_tile(b, full_nest, e), arch)
    copies = dict(b.copies)
    kept = {
        (level, tensor) for tensor, level, share in b.retained if share == 1 and not is_sliced(level, arch)
    }
    remote = {tensor for tensor, _, _ in (*b.remote, *b.remote_sums)}
    given = {(row.level, row.tensor): row for row in b.filled_before}
    rows = []
    for number, (i, node) in enumerate(stores):
        row = given.get((node.level, node.tensor), fork[number]) if i < len(b.outer) else found[number]
        if node in b.homes:
            row = footprints(replace(full_nest, nodes=full_nest.nodes[: i + 1]), e, arch)[-1]
        if node in b.filled_once:
            row = once[number]
        if node in copies:
            row = replace(row, elems=row.elems * copies[node], moving=False)
        if node.tensor in b.pinned and not any(other.tensor == node.tensor for _, other in stores[:number]):
            row = replace(row, moving=False)
        if ((node.level, node.tensor) not in kept or node.tensor in b.forwarded) and not (
            node.tensor in remote and i < len(b.outer)
        ):
            rows.append(row)
    return tuple(rows)
