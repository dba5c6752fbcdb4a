"""What the schedule around an einsum changes of its counts and footprints (docs/model.md, Schedules).

The whole nest of an einsum is the shared loops and storage nodes, in the einsum's own names, then its own
nest. The einsum has the counts of its whole nest, with these exceptions:
* Retained tensors: a share of every element is on chip. Counts are (1 - share) times the counts of the whole
  nest, plus share times the counts of the nest without the tensor's nodes further out (`inner_nest`). At a
  level inside a fan-out, all instances hold an even part each. The nest is then unchanged, and accesses to
  the tensor's outermost node go to these instances through the network.
* Remote tensors: another stage of a pipeline makes them, and they are read from a level inside the PEs of
  that stage. The row of the parent node counts under that level's name.
* Remote sums: several PEs of this stage hold partial sums of an element, which are added up on the way to the
  first of them. Their row counts in the same way.
* Nodes that are filled once, in the first pipeline tile only. Their fills are counted on the nest of one
  pipeline tile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from math import prod

from dse.mapping.constraints import stationary
from dse.mapping.nest import Loop, Mapping, Store
from dse.sim.counts.actions import Key
from dse.sim.counts.counts import (
    Count,
    Counted,
    Elems,
    Footprint,
    busiest,
    count,
    footprints,
    in_elems,
    instance_counts,
    nest_sums,
)
from dse.sim.counts.spans import ALL, FIRST
from dse.sim.counts.terms import NestSums, resting_position, tile_count
from dse.sim.levels import network, rotation, transfer
from dse.sim.levels.network import OwnedPart
from hw.arch import Arch
from workloads.einsum import Einsum


@dataclass(frozen=True, slots=True)
class Boundary:
    """What a schedule puts around an einsum's own nest."""

    # shared loops and the storage nodes of this einsum's tensors; for a tensor that another einsum fills or
    # makes, only the innermost node
    outer: tuple[Loop | Store, ...] = ()
    # fan-out dimensions of a stage; the einsum's own nest begins with parfor loops over them
    stage_dims: tuple[str, ...] = ()
    # nodes inside this stage's PEs that another stage reads; they stand below those parfor loops
    homes: tuple[Store, ...] = ()
    # (tensor, level that it is read from, elements of the tensor / elements that its busiest PE holds)
    remote: tuple[tuple[str, str, int | Fraction], ...] = ()
    filled_once: tuple[Store, ...] = ()  # nodes that are filled in the first pipeline tile only
    copies: tuple[tuple[Store, int], ...] = ()  # (node, pipeline tiles that it holds at once)
    retained: tuple[tuple[str, str, Fraction], ...] = ()  # (tensor, level, share of every element)
    branched: bool = False  # other einsums stand below the shared part
    # other einsums run between two trips of the shared loops, so systolic arrays fill and empty once a trip
    forked: bool = False
    pinned: frozenset[str] = frozenset()  # tensors that are on chip before the run
    filled_before: tuple[Footprint, ...] = ()  # footprints of shared nodes that another einsum fills
    # (remote tensor, parts that its PEs hold), where hops are priced
    owners: tuple[tuple[str, tuple[OwnedPart, ...]], ...] = ()
    reserved_bits: tuple[tuple[str, int], ...] = ()  # (level, bits) that others occupy at the same time
    # (level, tensor, action, share that moves), where the retained share changes after this einsum
    retention_moves: tuple[tuple[str, str, str, Fraction], ...] = ()
    # retained tensors that the segment also passes on, from a node of their own
    forwarded: frozenset[str] = frozenset()
    # (output, level, as in `remote`), where several PEs hold partial sums of it
    remote_sums: tuple[tuple[str, str, int | Fraction], ...] = ()

    def key_text(self) -> str:
        """Returns what changes counts beside the nest, as text; empty if nothing does."""
        parts = (
            self.remote,
            self.filled_once,
            self.retained,
            self.forked,
            self.retention_moves,
            *([self.remote_sums] if self.remote_sums else []),
        )
        return f" {' '.join(map(str, parts))}" if any(parts) else ""

    def needs_whole_tiles(self) -> bool:
        """True if fills bring in whole tiles, whatever is known of a sparse operand's pattern
        (`terms.gathered`): where einsums share nodes or loops, and where tensors are retained, for others may
        read what one leaves out.
        """
        return replace(self, reserved_bits=(), pinned=frozenset()) != ALONE

    def has_nest_latency(self, arch: Arch) -> bool:
        """True if the latency is that of the nest, with stalls (`timed_in_part`). False for stages of a
        pipeline, and where a tensor is retained in slices over PEs, or retained and passed on: their cycles
        are busy times.
        """
        levels = {level for _, level, _ in self.retained} | {level for level, *_ in self.retention_moves}
        sliced = any(is_sliced(level, arch) for level in levels)
        return not (self.stage_dims or self.remote or self.filled_once or self.forwarded or sliced)

    def retains_parts(self) -> bool:
        """True if a tensor of the einsum is retained in part."""
        return any(share != 1 for _, _, share in self.retained)


ALONE = Boundary()


def whole_nest(b: Boundary, own: Mapping) -> Mapping:
    """Returns the whole nest of an einsum: the shared part, then its own nest `own`."""
    if b is ALONE:
        return own
    lead = next(
        (i for i, node in enumerate(own.nodes) if not (isinstance(node, Loop) and node.over in b.stage_dims)),
        len(own.nodes),
    )
    return replace(
        own,
        nodes=(*b.outer, *own.nodes[:lead], *b.homes, *own.nodes[lead:]),
        fork=len(b.outer) if b.branched else 0,
        whole_tiles=b.needs_whole_tiles(),
    )


def counted(
    b: Boundary, full_nest: Mapping, e: Einsum, arch: Arch, held: Sequence[Footprint] = ()
) -> Counted:
    """Returns the whole nest of an einsum, counted; the same as `counts.counted` where it runs alone.

    held: its footprints (`node_footprints`)
    """
    sums = nest_sums(full_nest, e, arch)
    rows, moves_more = count_rows(b, full_nest, sums, arch), bool(b.retention_moves)
    if b.has_nest_latency(arch) and b.retains_parts():
        in_part = tuple(timed_in_part(b, full_nest, sums, arch))
        return Counted(full_nest, sums, rows, held, None, moves_more=True, in_part=in_part)
    return Counted(full_nest, sums, rows, held, *timed_nest(b, full_nest, sums, arch), moves_more)


def timed_in_part(
    b: Boundary, full_nest: Mapping, sums: NestSums, arch: Arch
) -> Iterator[tuple[float, NestSums, int]]:
    """Yields the nests whose latencies, weighted, are that of an einsum with tensors retained in part, each
    as (weight, sums, restart_at): with a tensor on chip by its share, as written by the rest.

    Fills move so much less, and a latency is convex in what they move: it is at most the weighted sum.
    """
    for kept in product((True, False), repeat=len(b.retained)):
        alike = replace(
            b, retained=tuple(one for one, is_kept in zip(b.retained, kept, strict=True) if is_kept)
        )
        shares = (s if is_kept else 1 - s for (_, _, s), is_kept in zip(b.retained, kept, strict=True))
        timed, restart_at = timed_nest(alike, full_nest, sums, arch)
        if (weight := float(prod(shares))) and timed:
            yield weight, timed, restart_at


def timed_nest(b: Boundary, full_nest: Mapping, sums: NestSums, arch: Arch) -> tuple[NestSums | None, int]:
    """Returns the nest whose latency is the einsum's (None: its cycles are busy times), and a position: in
    each iteration of the loops above it, levels start empty.
    """
    if not b.has_nest_latency(arch):
        return None, 0
    for tensor, level, _ in b.retained:
        full_nest = inner_nest(full_nest, tensor, level, arch)
    timed_sums = nest_sums(full_nest, sums.formulas.e, arch) if b.retained else sums
    return timed_sums, full_nest.fork if b.forked else 0


def count_rows(b: Boundary, full_nest: Mapping, sums: NestSums, arch: Arch) -> tuple[Count, ...]:
    """Returns the counts of the whole nest, whose sums are `sums`."""
    if not b.key_text() and not full_nest.shares:
        return busiest(instance_counts(sums), sums.formulas.e, arch)
    rows = _mix(b, b.retained, full_nest, sums, arch)
    for level, tensor, action, share in b.retention_moves:
        p = next(p for p in sums.formulas.e.tensors() if p.tensor == tensor)
        words = Fraction(p.stored_bits(arch.word_bits), p.bits or arch.word_bits)
        _spread(rows, (level, tensor, action), share * words, arch)
    floats = {
        key: (float(total), [float(n) for n in per_instance]) for key, (total, per_instance) in rows.items()
    }
    return busiest(floats, sums.formulas.e, arch)


def _mix(
    b: Boundary, retained: Sequence[tuple[str, str, Fraction]], full_nest: Mapping, sums: NestSums, arch: Arch
) -> dict[Key, Elems]:
    """Returns the counts where the `retained` tensors are on chip. For each: (1 - share) times the counts
    without retention, plus share times the counts with the tensor on chip.
    """
    if not retained:
        return _without_retention(b, full_nest, sums, arch)
    (tensor, level, share), *rest = retained
    is_spread = is_sliced(level, arch)
    not_retained = _mix(b, rest, full_nest, sums, arch) if is_spread or share != 1 else {}
    if is_spread:
        retained_whole = _in_slices(not_retained, tensor, level, arch)
    else:
        inner = inner_nest(full_nest, tensor, level, arch)
        retained_whole = _mix(b, rest, inner, nest_sums(inner, sums.formulas.e, arch), arch)
    if share == 1:
        return retained_whole
    zero: Elems = (0, [0] * len(next(iter(not_retained.values()))[1]))
    pairs = {
        key: (not_retained.get(key, zero), retained_whole.get(key, zero))
        for key in not_retained | retained_whole
    }
    return {
        key: (
            (1 - share) * a[0] + share * z[0],
            [(1 - share) * x + share * y for x, y in zip(a[1], z[1], strict=True)],
        )
        for key, (a, z) in pairs.items()
    }


def is_sliced(level: str, arch: Arch) -> bool:
    """True if a level stands inside a fan-out: a tensor retained there is spread over its instances."""
    return any(f.outside <= v for v, one in enumerate(arch.levels) if one.name == level for f in arch.fanouts)


def _in_slices(not_retained: dict[Key, Elems], tensor: str, level: str, arch: Arch) -> dict[Key, Elems]:
    """Returns the rows with those of a tensor at the outermost level moved to `level`, of which each instance
    holds an even part of the tensor.
    """
    outer, found = arch.levels[0].name, dict(not_retained)
    for action in ("read", "write"):
        if row := found.pop((outer, tensor, action), None):
            _spread(found, (level, tensor, action), row[0], arch)
    return found


def _spread(rows: dict[Key, Elems], key: Key, n: float | Fraction, arch: Arch) -> None:
    """Adds n elements to a row of counts, spread evenly over all instances."""
    _add(
        rows,
        key,
        n,
        n / next(arch.instances(v) for v, level in enumerate(arch.levels) if level.name == key[0]),
    )


def _add(rows: dict[Key, Elems], key: Key, n: float | Fraction, each: float | Fraction = 0) -> None:
    """Adds n elements to a row of counts, `each` of them to each instance that may be the busiest."""
    total, per_instance = rows.get(key, (0, [0] * len(next(iter(rows.values()))[1])))
    rows[key] = total + n, [one + each for one in per_instance]


def inner_nest(full_nest: Mapping, tensor: str, level: str, arch: Arch) -> Mapping:
    """Returns the nest of a tensor that stands whole at a level: the tensor's nodes further out are dropped,
    and its node at the level moves above all loops.
    """
    order = [one.name for one in arch.levels]
    level_index = order.index(level)
    kept_nodes = [
        (i, node)
        for i, node in enumerate(full_nest.nodes)
        if not (isinstance(node, Store) and node.tensor == tensor and order.index(node.level) <= level_index)
    ]
    fork = 1 + sum(i < full_nest.fork for i, _ in kept_nodes) if full_nest.fork else 0
    return replace(
        full_nest, nodes=(Store(level, tensor), *(node for _, node in kept_nodes)), layouts=(), fork=fork
    )


def _without_retention(b: Boundary, full_nest: Mapping, sums: NestSums, arch: Arch) -> dict[Key, Elems]:
    """Returns the counts of the whole nest with remote tensors, remote sums, nodes that are filled once and
    rotation.
    """
    rows, e = instance_counts(sums), sums.formulas.e
    order, instance_count = [level.name for level in arch.levels], len(next(iter(rows.values()))[1])
    if b.filled_once:
        one_tile = {row.key: row for row in count(*one_pipeline_tile(b, full_nest, e), arch)}
        for store in b.filled_once:
            level_index = order.index(store.level)
            for key in [key for key in rows if key[1] == store.tensor and key[0] in order]:
                if order.index(key[0]) < level_index or (key[0] == store.level and key[2] == "write"):
                    rows[key] = (
                        (one_tile[key].elems, [one_tile[key].busiest_elems] * instance_count)
                        if key in one_tile
                        else (0, [0] * instance_count)
                    )
            for key in [
                (array.name, "-", "fold")
                for array in sums.formulas.wires.systolic
                if store.level in array.inside and store.tensor == stationary(e, array.systolic).tensor
            ]:
                rows[key] = one_tile[key].elems, [one_tile[key].busiest_elems] * instance_count
    if b.forked:
        trips = _trips(b, e)
        rows |= {
            key: (max(n, trips), [max(n, trips)] * instance_count)
            for key, (n, _) in rows.items()
            if key[2] == "fold"
        }
    for tensor, level, _ in b.remote:
        parents = [
            key
            for key in rows
            if key[1] == tensor and key[0] in order and order.index(key[0]) < order.index(level)
        ]
        for key in parents:
            # the other stage's port is the busy one: `remote_reads`
            _add(rows, (level, tensor, "read"), rows.pop(key)[0])
    for tensor, level, pes in b.remote_sums:
        total, _ = rows.pop((order[order.index(level) - 1], tensor, "write"))
        _add(rows, (level, tensor, "write"), total, total / pes)
    return rotation.with_rotation(rows, full_nest, e, arch)


def network_traffic(
    b: Boundary, full_nest: Mapping, sums: NestSums, arch: Arch
) -> Iterator[network.NetworkTraffic]:
    """Yields the traffic of all networks whose hops or endpoints have a price. What fills a node once crosses
    them in one pipeline tile. Raises ValueError where hops are not counted.
    """
    order = [level.name for level in arch.levels]
    filled_once = {
        (node.tensor, f.name)
        for node in b.filled_once
        for f in arch.fanouts
        if f.outside <= order.index(node.level)
    }
    for traffic in network.network_traffic(full_nest, sums, arch, b.owners):
        if traffic.action.startswith("rotate") or (traffic.tensor, traffic.network) not in filled_once:
            yield traffic
    if filled_once:
        tile, part = one_pipeline_tile(b, full_nest, sums.formulas.e)
        for traffic in network.network_traffic(tile, nest_sums(tile, part, arch), arch, b.owners):
            if not traffic.action.startswith("rotate") and (traffic.tensor, traffic.network) in filled_once:
                yield traffic


def _trips(b: Boundary, e: Einsum) -> int:
    """Returns the trips of the shared loops; trips on different PEs count once."""
    loops = [node for node in b.outer if isinstance(node, Loop)]
    return prod(
        tile_count(n, tuple((loop.tile, FIRST if loop.over else ALL) for loop in loops if loop.rank == rank))
        for rank, n in e.extents
    )


def remote_reads(b: Boundary, full_nest: Mapping, e: Einsum, arch: Arch) -> dict[str, Count]:
    """Returns, for each remote tensor, what the PEs that hold it serve to this einsum. These reads are part
    of the rows of `count_rows`.
    """
    order = [level.name for level in arch.levels]
    rows = count(full_nest, e, arch) if b.remote else ()
    found = {}
    for tensor, level, pes in b.remote:
        total = sum(
            row.elems for row in rows if row.tensor == tensor and order.index(row.level) < order.index(level)
        )
        found[tensor] = Count(level, tensor, "read", total, float(total / pes))
    return found


def one_pipeline_tile(b: Boundary, full_nest: Mapping, e: Einsum) -> tuple[Mapping, Einsum]:
    """Returns the nest and the einsum of one trip of all shared loops."""
    tiles = {node.rank: node.tile for node in b.outer if isinstance(node, Loop)}
    shared = [i for i, node in enumerate(full_nest.nodes) if isinstance(node, Loop)][
        : sum(isinstance(node, Loop) for node in b.outer)
    ]
    own_nodes = tuple(node for i, node in enumerate(full_nest.nodes) if i not in shared)
    fork = full_nest.fork - len(shared) if full_nest.fork else 0
    return replace(full_nest, nodes=own_nodes, fork=fork), replace(
        e, extents=tuple((rank, tiles.get(rank, n)) for rank, n in e.extents)
    )


def filled_each_trip(b: Boundary, e: Einsum, arch: Arch) -> frozenset[Store]:
    """Returns the shared nodes that every trip of the shared loops fills anew: those with no shared temporal
    loop of several trips below the position that the node sinks to.

    store GLB W; for m ...; store GLB T  ->  T only; W, which has no rank m, serves all trips
    """
    nest, tile, level_above = Mapping(b.outer), e.sizes(), dict[str, str]()
    tensors = {p.tensor: p for p in e.tensors()}
    has_trips = [False] * len(b.outer)  # a temporal loop of several trips stands here
    at_rest: list[tuple[Store, int]] = []
    for i, node in enumerate(b.outer):
        if isinstance(node, Loop):
            has_trips[i] = not node.over and node.tile < tile[node.rank]
            tile[node.rank] = node.tile
            continue
        parent = level_above.get(node.tensor)
        end = (
            resting_position(tensors[node.tensor], e, nest, i, parent, arch.layout_levels()) if parent else i
        )
        at_rest.append((node, end))
        level_above[node.tensor] = node.level
    return frozenset(node for node, end in at_rest if not any(has_trips[end:]))


def retained_elems(b: Boundary, e: Einsum, arch: Arch) -> tuple[tuple[str, str, int | Fraction], ...]:
    """Returns (level, tensor, elements) of what is retained of an einsum's tensors in the one instance of a
    level, which `node_footprints` leaves out; tensors that its segment passes on have nodes of their own.
    """
    word = arch.word_bits
    whole = {p.tensor: in_elems(p, p.stored_bits(word), word) for p in e.tensors()}
    return tuple(
        (level, tensor, elems.numerator if elems.denominator == 1 else elems)
        for tensor, level, share in b.retained
        if tensor in whole and tensor not in b.forwarded and not is_sliced(level, arch)
        for elems in [share * whole[tensor]]
    )


def node_footprints(b: Boundary, full_nest: Mapping, e: Einsum, arch: Arch) -> tuple[Footprint, ...]:
    """Returns the footprint of each storage node in one instance of its level, in the order of the nodes.

    Tiles of shared nodes sink no further than to the fork. A tile that is passed on is stored whole, once per
    pipeline tile under way. Tiles that rotate count as the part that one PE holds.
    """
    return tuple(rotation.rotated_footprints(_node_footprints(b, full_nest, e, arch), full_nest, e, arch))


def _node_footprints(b: Boundary, full_nest: Mapping, e: Einsum, arch: Arch) -> tuple[Footprint, ...]:
    """Returns the footprints with whole tiles in every PE, before tiles that rotate are split."""
    found = transfer.footprints(full_nest, e, arch)
    if b is ALONE:
        return found
    stores = [(i, node) for i, node in enumerate(full_nest.nodes) if isinstance(node, Store)]
    shared_footprints = footprints(Mapping(b.outer), e, arch)
    one_tile = footprints(*one_pipeline_tile(b, full_nest, e), arch)
    copies = dict(b.copies)
    on_chip = {
        (level, tensor) for tensor, level, share in b.retained if share == 1 and not is_sliced(level, arch)
    }
    remote = {tensor for tensor, _, _ in (*b.remote, *b.remote_sums)}
    filled_before = {(row.level, row.tensor): row for row in b.filled_before}
    rows = []
    for number, (i, node) in enumerate(stores):
        row = (
            filled_before.get((node.level, node.tensor), shared_footprints[number])
            if i < len(b.outer)
            else found[number]
        )
        if node in b.homes:
            row = footprints(replace(full_nest, nodes=full_nest.nodes[: i + 1]), e, arch)[-1]
        if node in b.filled_once:
            row = one_tile[number]
        if node in copies:
            row = replace(row, elems=row.elems * copies[node], is_refilled=False)
        if node.tensor in b.pinned and not any(other.tensor == node.tensor for _, other in stores[:number]):
            row = replace(row, is_refilled=False)
        if ((node.level, node.tensor) not in on_chip or node.tensor in b.forwarded) and not (
            node.tensor in remote and i < len(b.outer)
        ):
            rows.append(row)
    return tuple(rows)
