"""Einsums of a schedule with their boundaries (docs/model.md, Schedules)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import inf, prod

from dse.mapping.nest import Loop, Mapping, Store
from dse.mapping.schedule import Branch, Retained, Schedule, Segment
from dse.sim.counts.counts import Footprint
from dse.sim.counts.terms import nonzero_share
from dse.sim.einsum import boundary, bounds
from dse.sim.einsum.boundary import ALONE, Boundary, whole_nest
from dse.sim.levels import network
from hw.arch import Arch, Fanout
from workloads.einsum import Einsum, Projection
from workloads.graph import Workload, base_tensor


@dataclass(frozen=True, slots=True)
class Placed:
    """An einsum of a segment, ready to be costed."""

    einsum: Einsum
    arch: Arch  # the machine; for a stage of a pipeline, its region of the machine
    boundary: Boundary
    nest: Mapping  # its own nest, below the boundary


@dataclass(frozen=True, slots=True)
class Graph:
    """Which einsums make and read each tensor. A second access (T_again) counts as the tensor itself."""

    einsums: dict[str, Einsum]
    makers: dict[str, str]  # tensor -> name of the einsum that makes it
    readers: dict[str, list[str]]  # tensor -> names of the einsums that read it
    position: dict[str, tuple[int, int]]  # einsum -> (segment, index in it)
    # tensors that are read and also leave the chip, since a loop carries them to its next iteration
    results: frozenset[str] = frozenset()


def graph(workload: Workload, schedule: Schedule) -> Graph:
    """Returns makers and readers of all tensors, and every einsum's position in the schedule."""
    made = {e.output.tensor: e.name for e in workload.einsums}
    readers: dict[str, list[str]] = {}
    for e in workload.einsums:
        for p in e.inputs:
            readers.setdefault(base_tensor(p.tensor, made), []).append(e.name)
    position = {
        branch.einsum: (i, j)
        for i, segment in enumerate(schedule.segments)
        for j, branch in enumerate(segment.branches)
    }
    return Graph(
        {e.name: e for e in workload.einsums},
        made,
        readers,
        position,
        frozenset(after for after, _ in workload.loop_state),
    )


def begin(tensor: str, g: Graph) -> tuple[int, int]:
    """Returns the position of the einsum that makes a tensor; for a tensor from outside, of the first einsum
    that reads it.
    """
    return (
        g.position[g.makers[tensor]]
        if tensor in g.makers
        else min(g.position[name] for name in g.readers[tensor])
    )


def share_at(one: Retained, at: tuple[int, ...], g: Graph) -> Fraction:
    """Returns the share of a tensor that the einsum at position `at` finds retained; `at` with the segment
    alone: the share when the segment begins.
    """
    first = begin(one.tensor, g)
    if at < first or (at == first and one.tensor not in g.makers):
        return Fraction(0)
    return next((share for name, share in reversed(one.later_shares) if g.position[name] < at), one.share)


def share_after(one: Retained, at: tuple[int, int], g: Graph) -> Fraction:
    """Returns the share of a tensor that is retained once the einsum at a position has made or read it."""
    return next((share for name, share in reversed(one.later_shares) if g.position[name] <= at), one.share)


def always_retained(one: Retained, g: Graph) -> Fraction:
    """Returns the share of a tensor that no reader takes from further out; 0 for a result."""
    return (
        Fraction(0)
        if one.tensor in g.results
        else min(share_at(one, g.position[name], g) for name in g.readers[one.tensor])
    )


def live_segments(tensor: str, g: Graph) -> range:
    """Returns the segments from the one that makes a tensor, or first reads it, to the last that reads it."""
    return range(begin(tensor, g)[0], max(g.position[name] for name in g.readers[tensor])[0] + 1)


def most_retained(one: Retained, segment: int, g: Graph) -> Fraction:
    """Returns the largest share of a tensor that is retained at any time while a segment runs."""
    users = [
        g.position[name]
        for name in (*([g.makers[one.tensor]] if one.tensor in g.makers else []), *g.readers[one.tensor])
    ]
    last = max(users)
    if not begin(one.tensor, g)[0] <= segment <= last[0]:
        return Fraction(0)
    return max(
        [
            share_at(one, (segment,), g),
            *(share_after(one, at, g) for at in users if at[0] == segment and at != last),
        ]
    )


def retained_bits(i: int, schedule: Schedule, g: Graph, arch: Arch) -> dict[str, int]:
    """Returns the bits of retained tensors in one instance of each level while a segment runs. A tensor that
    replaces another one element by element reuses its space.
    """
    bits_of = {
        one.tensor: _retained_bits(one, share, g, arch)
        for one in schedule.retained
        if (share := most_retained(one, i, g))
    }
    found: dict[str, int] = {}
    alive: dict[str, dict[str, Retained]] = {}  # by level and tensor
    for one in (one for one in schedule.retained if bits_of.get(one.tensor)):
        found[one.level] = found.get(one.level, 0) + bits_of[one.tensor]
        alive.setdefault(one.level, {})[one.tensor] = one
    for level, own in alive.items():
        for old, new in overwritten(own, lambda old, new: reuses_space(old, new, schedule.segments[i], g)):
            left = _retained_bits(own[old], share_at(own[old], (i,), g), g, arch)
            found[level] -= min(left, bits_of[new])
    return found


def _retained_bits(one: Retained, share: Fraction, g: Graph, arch: Arch) -> int:
    """Returns the bits of one instance of the level that a share of a tensor takes."""
    bits = max(p.stored_bits(arch.word_bits) for p in accesses(one.tensor, g))
    n = next(arch.instances(v) for v, level in enumerate(arch.levels) if level.name == one.level)
    word = max(p.bits or arch.word_bits for p in accesses(one.tensor, g))
    return -(-share.numerator * bits // (share.denominator * word * n)) * word


def accesses(tensor: str, g: Graph) -> list[Projection]:
    """Returns the projection that a tensor is written with; for a tensor from outside, the projections that
    it is read with.
    """
    if tensor in g.makers:
        return [g.einsums[g.makers[tensor]].output]
    return [
        p
        for name in dict.fromkeys(g.readers[tensor])
        for p in g.einsums[name].inputs
        if base_tensor(p.tensor, g.makers) == tensor
    ]


def overwritten(
    retained: Collection[str], may_overwrite: Callable[[str, str], bool]
) -> Iterator[tuple[str, str]]:
    """Yields which retained tensors others overwrite, as (old, new), each old one once."""
    left = list(retained)
    for new in retained:
        if old := next((old for old in left if may_overwrite(old, new)), None):
            left.remove(old)
            yield old, new


def reuses_space(old: str, new: str, segment: Segment, g: Graph) -> bool:
    """True if a tensor that a segment makes may overwrite one that the segment reads for the last time: each
    old element has been read when the new element at the same position is made.

    All readers must come before the maker, or the maker must be element-wise. Shared loops must cut both
    tensors alike, so that a trip reads and makes the same part.
    """
    branches = {branch.einsum: branch for branch in segment.branches}
    if (
        old == new
        or g.makers.get(new) not in branches
        or g.makers.get(old) in branches
        or max(g.position[name] for name in g.readers[old]) > g.position[g.makers[new]]
    ):
        return False
    maker = g.einsums[g.makers[new]]
    out, cut = maker.output, _cut(maker.output, branches[maker.name], segment)
    for name in {name for name in g.readers[old] if name in branches}:
        for p in g.einsums[name].inputs:
            if base_tensor(p.tensor, g.makers) != old:
                continue
            if name == maker.name and (
                p.dims != out.dims or maker.kind == "mac" or maker.sizes().keys() != out.ranks()
            ):
                return False
            if (
                [d.size for d in p.dims] != [d.size for d in out.dims]
                or (p.bits, p.format) != (out.bits, out.format)
                or p.format != "dense"
            ):
                return False
            if cut is None or _cut(p, branches[name], segment) != cut:
                return False
    return True


def _cut(p: Projection, branch: Branch, segment: Segment) -> tuple[int, ...] | None:
    """Returns, for each shared loop, the index of the tensor's dimension that it cuts; None if one of the
    loops cuts no dimension that consists of its rank alone.
    """
    dim_of = {
        d.terms[0][0]: i
        for i, d in enumerate(p.dims)
        if len(d.terms) == 1 and d.terms[0][1] == 1 and not d.offset
    }
    found = [dim_of.get(rank_in_branch(loop.rank, branch)) for loop in shared_loops(segment)]
    return None if None in found else tuple(at for at in found if at is not None)


def stage_array(segment: Segment, arch: Arch) -> Fanout | None:
    """Returns the fan-out whose PEs the stages of a pipeline divide; None: branches run one after the
    other.
    """
    dims = {one.dim for branch in segment.branches for one in branch.region}
    return next((f for f in arch.fanouts if dims & {name for name, _ in f.dims}), None)


def shared_loops(segment: Segment) -> list[Loop]:
    """Returns the loops above all branches of a segment, outermost first."""
    return [node for node in segment.nodes if isinstance(node, Loop)]


def rank_in_branch(rank: str, branch: Branch) -> str:
    """Returns the name that a branch's einsum has for the rank of a shared loop."""
    return dict(branch.ranks).get(rank, rank)


def homes(segment: Segment) -> dict[str, Store]:
    """Returns the innermost shared node of every tensor that has one. Einsums of the segment read the tensor
    from there.
    """
    return {node.tensor: node for node in segment.nodes if isinstance(node, Store)}


def runs_back_to_back(schedule: Schedule, part: bool) -> bool:
    """True if runs can follow back to back: the schedule is one pipeline, and no part of a longer
    schedule.
    """
    return not part and len(schedule.segments) == 1 and schedule.segments[0].pipelined


def placed_segments(
    arch: Arch, workload: Workload, schedule: Schedule, part: bool = False
) -> list[list[Placed]]:
    """Returns every einsum with its boundary, by segment; `graph.with_reservations` adds the capacity that
    others take.

    The schedule must have passed all checks except those of the nests. part: it is a part of a longer
    schedule.
    """
    g, back_to_back = graph(workload, schedule), runs_back_to_back(schedule, part)
    found = []
    for segment in schedule.segments:
        segment_einsums: list[Placed] = []
        # shared node -> footprint in the first einsum that has its tensor
        footprint_of: dict[Store, Footprint] = {}
        members = _members(segment, g)
        for j in range(len(segment.branches)):
            one = _place(j, segment, members, schedule, workload, g, arch, back_to_back)
            shared = [node for node in one.boundary.outer if isinstance(node, Store)]
            filled_before = tuple(row for node in shared if (row := _first_footprint(node, footprint_of, g)))
            one = (
                replace(one, boundary=replace(one.boundary, filled_before=filled_before))
                if filled_before
                else one
            )
            segment_einsums.append(one)
            if segment.nodes and len(segment.branches) > 1:
                rows = boundary.node_footprints(
                    one.boundary, whole_nest(one.boundary, one.nest), one.einsum, one.arch
                )
                footprint_of = {Store(row.level, row.tensor): row for row in rows} | footprint_of
        found.append(segment_einsums)
    return found


def _first_footprint(node: Store, footprint_of: dict[Store, Footprint], g: Graph) -> Footprint | None:
    """Returns the footprint of a shared node in the first einsum that has its tensor. Under a second name
    (T_again) it takes no capacity.
    """
    row = footprint_of.get(replace(node, tensor=base_tensor(node.tensor, g.makers)))
    return row if row is None or row.tensor == node.tensor else replace(row, tensor=node.tensor, elems=0)


@dataclass(frozen=True, slots=True)
class _Members:
    """What the branches of a segment have in common."""

    home: dict[str, Store]  # `homes`
    tensors_of: list[set[str]]  # tensors of each branch
    # tensor with a shared node -> indices of the branches that have it
    users: dict[str, list[int]]
    made: set[str]  # tensors that branches make


def _members(segment: Segment, g: Graph) -> _Members:
    home = homes(segment)
    tensors_of = [
        {base_tensor(p.tensor, g.makers) for p in g.einsums[b.einsum].tensors()} for b in segment.branches
    ]
    users: dict[str, list[int]] = {tensor: [] for tensor in home}
    for i, tensors in enumerate(tensors_of):
        for tensor in tensors & home.keys():
            users[tensor].append(i)
    return _Members(home, tensors_of, users, {g.einsums[b.einsum].output.tensor for b in segment.branches})


def _place(
    j: int,
    segment: Segment,
    members: _Members,
    schedule: Schedule,
    workload: Workload,
    g: Graph,
    arch: Arch,
    back_to_back: bool,
) -> Placed:
    """Returns branch j of a segment with its boundary. back_to_back: runs follow back to back."""
    branch = segment.branches[j]
    e = g.einsums[branch.einsum]
    f = stage_array(segment, arch)
    order = {level.name: v for v, level in enumerate(arch.levels)}
    home, tensors_of, users = members.home, members.tensors_of, members.users
    outer: list[Loop | Store] = []
    home_nodes: list[Store] = []
    remote: list[tuple[str, str, int | Fraction]] = []
    remote_sums: list[tuple[str, str, int | Fraction]] = []
    for node in segment.nodes:
        if isinstance(node, Loop):
            outer.append(replace(node, rank=rank_in_branch(node.rank, branch)))
        elif j not in users[node.tensor] or (users[node.tensor][0] != j and node is not home[node.tensor]):
            continue
        elif f and order[node.level] >= f.outside:
            # inside the PEs of the stage that makes it; others read it through the level outside of the PEs
            maker = segment.branches[users[node.tensor][0]]
            maker_einsum = g.einsums[maker.einsum]
            is_maker = users[node.tensor][0] == j
            shares_sums = any(loop.rank not in maker_einsum.output.ranks() for loop in stage_loops(maker, f))
            if is_maker:
                home_nodes.append(node)
            if is_maker and not shares_sums:
                continue
            # a reader fetches it under each name that it reads it by
            names = [p.tensor for p in e.inputs if base_tensor(p.tensor, g.makers) == node.tensor]
            for name in [node.tensor] if is_maker else names:
                outer.append(Store(arch.levels[f.outside - 1].name, name))
                (remote_sums if is_maker else remote).append(
                    (name, node.level, _stage_spread(maker, shared_loops(segment), maker_einsum, f))
                )
        else:
            outer += [
                replace(node, tensor=p.tensor)
                for p in e.tensors()
                if base_tensor(p.tensor, g.makers) == node.tensor
            ]
    # a pipeline tile stands there from its first user's stage to its last one's: as many at once as there are
    # stages from the one to the other, at most all tiles of a run; runs back to back have no last tile
    max_held = inf if back_to_back else pipeline_tiles(segment, g)
    copies = [
        (home[t], int(min(user_indices[-1] - user_indices[0] + 1, max_held)))
        for t, user_indices in users.items()
        if f and user_indices[0] == j and len(user_indices) > 1 and order[home[t].level]
    ]
    forwarded = {
        t
        for t, user_indices in users.items()
        if len(user_indices) > 1 and order[home[t].level] and t in members.made
    }
    retained_here = [one for one in schedule.retained if one.tensor in tensors_of[j]]
    retained = [
        (p.tensor, one.level, share)
        for one in retained_here
        for p in e.tensors()
        if p is e.output or base_tensor(p.tensor, g.makers) not in forwarded
        if base_tensor(p.tensor, g.makers) == one.tensor and (share := share_at(one, g.position[e.name], g))
    ]
    moves = [row for one in retained_here for row in _retention_moves(one, e, g, arch)]
    first_level = {
        node.tensor: node.level
        for node in reversed([*segment.nodes, *branch.mapping.nodes])
        if isinstance(node, Store)
    }
    pinned = {
        p.tensor
        for p in e.inputs
        if p.tensor in workload.weights
        and schedule.weights == "pinned"
        and order.get(first_level.get(p.tensor, ""), 0)
    }
    found = Boundary(
        outer=tuple(outer),
        stage_dims=tuple(name for name, _ in f.dims) if f else (),
        homes=tuple(home_nodes),
        remote=tuple(remote),
        filled_once=branch.filled_once,
        copies=tuple(copies),
        retained=tuple(retained),
        branched=len(segment.branches) > 1 and bool(segment.nodes),
        forked=len(segment.branches) > 1 and bool(shared_loops(segment)),
        pinned=frozenset(pinned),
        retention_moves=tuple(moves),
        forwarded=frozenset(forwarded & {tensor for tensor, _, _ in retained}),
        remote_sums=tuple(remote_sums),
    )
    if f and f.hop_pj:
        found = replace(
            found,
            owners=tuple(
                (t, _owners(base_tensor(t, g.makers), segment, g, f)) for t, _, _ in (*remote, *remote_sums)
            ),
        )
    return Placed(e, _stage_arch(branch, f, arch), ALONE if found == ALONE else found, branch.mapping)


def _retention_moves(one: Retained, e: Einsum, g: Graph, arch: Arch) -> list[tuple[str, str, str, Fraction]]:
    """Returns the transfers (level, tensor, action, share) that retention causes and no nest has: a share
    that is made and not found retained later is written out; a share that is retained from now on is
    written at its level.
    """
    if one.tensor == e.output.tensor and one.share > always_retained(one, g):
        spilled = one.share - always_retained(one, g)
        return [(one.level, one.tensor, "read", spilled), (arch.levels[0].name, one.tensor, "write", spilled)]
    at, names = (
        g.position[e.name],
        [p.tensor for p in e.inputs if base_tensor(p.tensor, g.makers) == one.tensor],
    )
    if (
        names
        and at != max(g.position[name] for name in g.readers[one.tensor])
        and (added := share_after(one, at, g) - share_at(one, at, g)) > 0
    ):
        return [(one.level, names[0], "write", added)]
    return []


def bypasses_retained(tensor: str, branch: Branch, segment: Segment, g: Graph, outer: str) -> bool:
    """True if an einsum that reads a tensor from the outermost level fetches less of it than a later einsum
    reads. Three cases: its indices touch fewer elements; they touch other elements (another column); or
    compute reads the tensor directly from there and skips elements that meet zeros of another input.
    """
    e = g.einsums[branch.einsum]
    einsum_accesses = [p for p in e.inputs if base_tensor(p.tensor, g.makers) == tensor]
    nodes = {
        n.tensor for n in (*segment.nodes, *branch.mapping.nodes) if isinstance(n, Store) and n.level != outer
    }
    reads_directly = any(p.format == "dense" and not nodes & {p.tensor, tensor} for p in einsum_accesses)
    later = [
        (p, reader)
        for name in g.readers[tensor]
        if g.position[name] > g.position[e.name]
        for reader in [g.einsums[name]]
        for p in reader.inputs
        if base_tensor(p.tensor, g.makers) == tensor
    ]
    most = max((bounds.used_elems(p, reader.extents) for p, reader in later), default=0)
    fewer = most > max(bounds.used_elems(p, e.extents) for p in einsum_accesses)
    other_elems = any(
        not any(_within(index_ranges(p, reader), index_ranges(q, e)) for q in einsum_accesses)
        for p, reader in later
    )
    return fewer or other_elems or (bool(later) and reads_directly and nonzero_share(e) < 1)


def index_ranges(p: Projection, e: Einsum) -> list[tuple[int, int]]:
    """Returns, per dimension, the first and last stored index that an einsum reads."""
    sizes, found = e.sizes(), []
    for d in p.dims:
        reach = [c * (sizes[rank] - 1) for rank, c in d.terms]
        low, high = d.offset + sum(min(n, 0) for n in reach), d.offset + sum(max(n, 0) for n in reach)
        found.append((max(low, 0), min(high, d.size - 1)))
    return found


def _within(inner: Sequence[tuple[int, int]], outer: Sequence[tuple[int, int]]) -> bool:
    return all(a >= low and b <= high for (a, b), (low, high) in zip(inner, outer, strict=True))


def stage_loops(branch: Branch, f: Fanout) -> list[Loop]:
    """Returns the loops over the stage's PEs with which a nest begins."""
    names, found = {name for name, _ in f.dims}, list[Loop]()
    for node in branch.mapping.nodes:
        if not isinstance(node, Loop) or node.over not in names:
            break
        found.append(node)
    return found


def _stage_spread(branch: Branch, loops: Sequence[Loop], e: Einsum, f: Fanout) -> int | Fraction:
    """Returns the number of PEs that a stage's result is spread over, where of PEs that share sums only the
    first counts: all elements over those of the largest share, which need not be whole.
    """
    tile_of = e.sizes() | {rank_in_branch(loop.rank, branch): loop.tile for loop in loops}
    pe_count = Fraction(1)
    for loop in stage_loops(branch, f):
        if loop.rank in e.output.ranks():
            pe_count, tile_of[loop.rank] = pe_count * Fraction(tile_of[loop.rank], loop.tile), loop.tile
    return int(pe_count) if pe_count.denominator == 1 else pe_count


def _owners(tensor: str, segment: Segment, g: Graph, f: Fanout) -> tuple[network.OwnedPart, ...]:
    """Returns the PEs of the stage that makes a tensor, and what each holds of a pipeline tile."""
    makers = [b for b in segment.branches if g.einsums[b.einsum].output.tensor == tensor]
    if not makers:
        raise ValueError(
            f"segment of {', '.join(b.einsum for b in segment.branches)}: {tensor} is made by none of them, "
            "and cannot lie in the region of one; store it at the outermost level, or in each nest"
        )
    maker, e = makers[0], g.einsums[makers[0].einsum]
    pipeline_tile = e.sizes() | {
        rank_in_branch(loop.rank, maker): loop.tile for loop in shared_loops(segment)
    }
    stage = replace(e, extents=tuple(pipeline_tile.items()))
    return network.owners(
        Mapping(tuple(stage_loops(maker, f))), stage, stage.output, _stage_fanout(maker, f), pipeline_tile
    )


def _stage_fanout(branch: Branch, f: Fanout) -> Fanout:
    """Returns the part of a fan-out that a stage has."""
    region_of = {one.dim: one for one in branch.region}
    return replace(
        f,
        dims=tuple((name, region_of[name].size if name in region_of else n) for name, n in f.dims),
        mesh_region=tuple((region_of[name].first if name in region_of else 0, n) for name, n in f.dims),
    )


def _stage_arch(branch: Branch, f: Fanout | None, arch: Arch) -> Arch:
    """Returns the part of the machine that a stage has."""
    if f is None:
        return arch
    return replace(
        arch, fanouts=tuple(_stage_fanout(branch, one) if one is f else one for one in arch.fanouts)
    )


def pipeline_tiles(segment: Segment, g: Graph) -> int:
    """Returns the number of pipeline tiles: trips of the shared loops of a pipeline."""
    e, branch = g.einsums[segment.branches[0].einsum], segment.branches[0]
    tile_of, trips = e.sizes(), []
    for loop in shared_loops(segment):
        rank = rank_in_branch(loop.rank, branch)
        trips.append(-(-tile_of[rank] // loop.tile))
        tile_of[rank] = loop.tile
    return prod(trips)
