"""Einsums of a schedule where they stand: the boundary of every one (docs/model.md, Schedules)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod

from dse.nest import Loop, Mapping, Store
from dse.schedule import Branch, Keep, Schedule, Segment
from dse.sim import boundary, network
from dse.sim.boundary import ALONE, Boundary, joined
from dse.sim.counts import Footprint
from hw.arch import Arch, Fanout
from workloads.einsum import Einsum
from workloads.graph import Workload, owner


@dataclass(frozen=True, slots=True)
class Placed:
    """An einsum of a segment. arch: the machine, or of a stage what it has of it; nest: its own, below the boundary."""

    einsum: Einsum
    arch: Arch
    boundary: Boundary
    nest: Mapping


@dataclass(frozen=True, slots=True)
class Graph:
    """Who makes and who reads a tensor: names of einsums; a further access (T_again) is of the tensor itself. at: (segment, place in it) of an einsum."""

    einsums: dict[str, Einsum]
    made: dict[str, str]
    readers: dict[str, list[str]]
    at: dict[str, tuple[int, int]]


def graph(workload: Workload, schedule: Schedule) -> Graph:
    made = {e.output.tensor: e.name for e in workload.einsums}
    readers: dict[str, list[str]] = {}
    for e in workload.einsums:
        for p in e.inputs:
            readers.setdefault(owner(p.tensor, made), []).append(e.name)
    at = {branch.einsum: (i, j) for i, segment in enumerate(schedule.segments) for j, branch in enumerate(segment.branches)}
    return Graph({e.name: e for e in workload.einsums}, made, readers, at)


def share_at(one: Keep, at: tuple[int, ...], g: Graph) -> Fraction:
    """What is kept of a tensor at (segment, place in it), or when a segment begins (at: its number alone)."""
    return next((share for name, share in reversed(one.then) if g.at[name] < at), one.share)


def stage_array(segment: Segment, arch: Arch) -> Fanout | None:
    """The fan-out whose lanes the stages of a pipeline share out; None: branches run in turn."""
    dims = {one.dim for branch in segment.branches for one in branch.region}
    return next((f for f in arch.fanouts if dims & {name for name, _ in f.dims}), None)


def shared_loops(segment: Segment) -> list[Loop]:
    return [node for node in segment.nodes if isinstance(node, Loop)]


def named(rank: str, branch: Branch) -> str:
    """A shared loop's rank as an einsum calls it."""
    return dict(branch.ranks).get(rank, rank)


def homes(segment: Segment) -> dict[str, Store]:
    """The innermost shared node of every tensor that has one: what the einsums of the segment read it from."""
    return {node.tensor: node for node in segment.nodes if isinstance(node, Store)}


def placed(arch: Arch, workload: Workload, schedule: Schedule) -> list[list[Placed]]:
    """Every einsum with its boundary, by segment; room that others take is left to the evaluator. The schedule has passed all checks but those of the nests."""
    g = graph(workload, schedule)
    found = []
    for segment in schedule.segments:
        own: list[Placed] = []
        given: dict[Store, Footprint] = {}  # of each shared node, as the first einsum that has its tensor sees it
        for j in range(len(segment.branches)):
            one = _place(j, segment, schedule, workload, g, arch)
            others = tuple(given[node] for node in one.boundary.outer if isinstance(node, Store) and node in given)
            one = replace(one, boundary=replace(one.boundary, given=others)) if others else one
            own.append(one)
            if segment.nodes and len(segment.branches) > 1:
                rows = boundary.held(one.boundary, joined(one.boundary, one.nest), one.einsum, one.arch)
                given = {Store(row.level, row.tensor): row for row in rows} | given
        found.append(own)
    return found


def _place(j: int, segment: Segment, schedule: Schedule, workload: Workload, g: Graph, arch: Arch) -> Placed:
    branch = segment.branches[j]
    e, f, order = g.einsums[branch.einsum], stage_array(segment, arch), {level.name: v for v, level in enumerate(arch.levels)}
    home = homes(segment)
    users = {tensor: [i for i, b in enumerate(segment.branches) if tensor in {p.tensor for p in g.einsums[b.einsum].tensors()}] for tensor in home}
    outer: list[Loop | Store] = []
    own: list[Store] = []
    remote = []
    for node in segment.nodes:
        if isinstance(node, Loop):
            outer.append(replace(node, rank=named(node.rank, branch)))
        elif node.tensor not in {p.tensor for p in e.tensors()} or (users[node.tensor][0] != j and node is not home[node.tensor]):
            continue
        elif f and order[node.level] >= f.outside:
            maker = segment.branches[users[node.tensor][0]]
            if users[node.tensor][0] == j:
                own.append(node)
            else:
                outer.append(Store(arch.levels[f.outside - 1].name, node.tensor))
                remote.append((node.tensor, node.level, _stage_lanes(maker, shared_loops(segment), g.einsums[maker.einsum], f)))
        else:
            outer.append(node)
    copies = [(home[t], min(at[-1] - at[0] + 1, granules(segment, g))) for t, at in users.items() if f and at[0] == j and len(at) > 1 and order[home[t].level]]
    owners = {p.tensor: owner(p.tensor, g.made) for p in e.tensors()}
    own_keeps = [one for one in schedule.keeps if one.tensor in owners.values()]
    kept = [(t, one.level, share) for one in own_keeps for t, first in owners.items() if first == one.tensor and (share := share_at(one, g.at[e.name], g))]
    least = {one.tensor: share_at(one, max(g.at[name] for name in g.readers[one.tensor]), g) for one in own_keeps}
    mine = [one for one in own_keeps if one.tensor == e.output.tensor and one.share > least[one.tensor]]
    spilled = [(one.tensor, one.level, one.share - least[one.tensor]) for one in mine]
    first = {node.tensor: node.level for node in reversed([*segment.nodes, *branch.mapping.nodes]) if isinstance(node, Store)}
    pinned = {p.tensor for p in e.inputs if p.tensor in workload.weights and schedule.weights == "pinned" and order.get(first.get(p.tensor, ""), 0)}
    found = Boundary(tuple(outer), tuple(name for name, _ in f.dims) if f else (), tuple(own), tuple(remote), branch.held, tuple(copies), tuple(kept),
                     len(segment.branches) > 1 and bool(segment.nodes), len(segment.branches) > 1 and bool(shared_loops(segment)), frozenset(pinned),
                     spilled=tuple(spilled))
    if f and f.hop_pj:
        found = replace(found, owned=tuple((t, _owners(t, segment, g, f)) for t, _, _ in remote))
    return Placed(e, _stage_arch(branch, f, arch), ALONE if found == ALONE else found, branch.mapping)


def _stage_lanes(branch: Branch, loops: Sequence[Loop], e: Einsum, f: Fanout) -> int:
    """Lanes that what a stage makes is spread over."""
    left = e.sizes() | {named(loop.rank, branch): loop.tile for loop in loops}
    used, names = 1, {name for name, _ in f.dims}
    for node in branch.mapping.nodes:
        if not isinstance(node, Loop) or node.over not in names:
            break
        used, left[node.rank] = used * -(-left.get(node.rank, 1) // node.tile), node.tile
    return used


def _owners(tensor: str, segment: Segment, g: Graph, f: Fanout) -> tuple[network.Owned, ...]:
    """Lanes of the stage that makes a tensor, and what of a granule each holds."""
    maker = next(b for b in segment.branches if g.einsums[b.einsum].output.tensor == tensor)
    e = g.einsums[maker.einsum]
    granule = e.sizes() | {named(loop.rank, maker): loop.tile for loop in shared_loops(segment)}
    spatial = [isinstance(node, Loop) and node.over in {name for name, _ in f.dims} for node in maker.mapping.nodes]
    lead = maker.mapping.nodes[: spatial.index(False) if False in spatial else len(spatial)]
    stage = replace(e, extents=tuple(granule.items()))
    return network.owners(Mapping(lead), stage, stage.output, _stage_lanes_of(maker, f), granule)


def _stage_lanes_of(branch: Branch, f: Fanout) -> Fanout:
    """What of a fan-out is a stage's."""
    own = {one.dim: one for one in branch.region}
    return replace(f, dims=tuple((name, own[name].size if name in own else n) for name, n in f.dims),
                   place=tuple((own[name].first if name in own else 0, n) for name, n in f.dims))


def _stage_arch(branch: Branch, f: Fanout | None, arch: Arch) -> Arch:
    if f is None:
        return arch
    return replace(arch, fanouts=tuple(_stage_lanes_of(branch, one) if one is f else one for one in arch.fanouts))


def granules(segment: Segment, g: Graph) -> int:
    """Trips of the shared loops of a pipeline, which are equal."""
    e, branch = g.einsums[segment.branches[0].einsum], segment.branches[0]
    left, trips = e.sizes(), []
    for loop in shared_loops(segment):
        rank = named(loop.rank, branch)
        trips.append(-(-left[rank] // loop.tile))
        left[rank] = loop.tile
    return prod(trips)
