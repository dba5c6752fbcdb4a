"""The searched space of a solver as one value: `Space` of schedules, `Mappings` of one einsum. Certificates,
JSON and `covers` are derived from it.

A solver fills the value from the options that it enumerates. FEATURES lists what the notation of schedules
can express (dse/mapping/schedule.py, dse/mapping/nest.py). Each feature has the fields of the notation that
express it, the words of certificates for what is searched and not searched, and a test: does the space
exclude a schedule because of this feature?

    covers(space, schedule, workload, arch)     None: the schedule is in the space, so claims about the space
                                                hold for it; else the name of a feature that excludes it
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from itertools import combinations, takewhile
from math import inf, prod
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from dse.mapping.classes import cut_alike, rank_classes, shared_tensors, uneven_tiles
from dse.mapping.constraints import FREE, Constraints, Dataflow, Factors, dataflow, violations
from dse.mapping.conversion import COPY_NAME
from dse.mapping.nest import Loop, Mapping, Store
from dse.mapping.schedule import Branch, Schedule, Segment
from dse.mapping.trips import even_splits
from hw.arch import Arch
from workloads.einsum import Einsum
from workloads.graph import Workload, base_tensor

SearchedFactors = Literal["perfect", "imperfect_spatial", "imperfect", "all"]
NodeOrder = Literal["all", "arrays", "levels"]  # from all to fewest
Layouts = Literal["alike", "row_major", "all"]
T = TypeVar("T", "Space", "Mappings")
UNDER = "under the constraints "  # first words about rules; between two of them RULES_BETWEEN
RULES_BETWEEN = " and "
ON_EACH = "on each of "  # first words about computes; between two of them a space
RULES_BROKEN = "mappings that break these constraints"
DATAFLOWS: dict[str, Dataflow] = {name: name for name in get_args(Dataflow)}


@dataclass(frozen=True, slots=True)
class Mappings:
    """The searched mappings of one einsum. All loop orders are searched, and all bypasses that the machine
    allows.
    """

    # perfect: all trip counts divide; imperfect_spatial: n elements over f PEs leave tiles of ceil(n / f),
    # temporal trip counts divide; imperfect: temporal tiles of any size, too; all: any tiles
    factors: SearchedFactors = "perfect"
    dataflow: str = "free"  # a name of `constraints.Dataflow`, or of other constraints
    # order of storage nodes of different tensors. all: any; levels: outer levels stand above inner ones;
    # arrays: levels outside of a fan-out stand above levels inside, also if no loop uses the fan-out
    node_order: NodeOrder = "all"
    one_trip: bool = False  # loops of one trip are searched, too
    cut_twice: bool = True  # strided ranks may have several loops between two fetches
    layouts: Layouts = "alike"  # alike: the machine prices no layout; row_major: only row-major; all: any
    shares: bool = False  # tiles may be divided among PEs that pass the parts round (`share`)
    # loops over PEs of a network whose links have a price may cut windows; False only where there is one
    mesh_windows: bool = True
    rules: tuple[str, ...] = ()  # of a machine or a study: parts that set limits (`constraints.Limit`)
    # computes of a machine with several, on each of which the einsum was mapped or bounded: all that take it
    units: tuple[str, ...] = ()


# the space that a lower bound covers
ALL_MAPPINGS = Mappings("all", one_trip=True, layouts="all", shares=True)


def mappings_of(factors: Factors, arch: Arch, c: Constraints = FREE) -> Mappings:
    """Returns the mappings that the optimal mapper searches (dse/mapper/exact/search.py).

    Nodes of a tensor stand in the order of levels; nodes of different tensors in any order. But levels
    outside of a fan-out stand above levels inside of it, even if no loop uses the fan-out. This excludes
    nothing if only the outermost level is outside: its nodes may stand above all loops without loss.
    """
    inner_levels = range(1, len(arch.levels))
    is_split_by_array = any(
        v < f.outside <= inner for f in arch.fanouts for v in inner_levels for inner in inner_levels
    )
    return Mappings(
        factors,
        "free" if c.unlimited() == FREE else c.name,
        "arrays" if is_split_by_array else "all",
        layouts="row_major" if arch.models_layout() else "alike",
        mesh_windows=not any(f.hop_pj for f in arch.fanouts),
        rules=c.rule_texts(),
    )


def common(spaces: Sequence[Mappings], units: Sequence[str]) -> Mappings:
    """Returns what was searched on each of several computes, from what was searched on single ones of them;
    on the others nothing was left to search. units: names of all.
    """
    kinds, orders = get_args(SearchedFactors), get_args(NodeOrder)
    return replace(
        spaces[0],
        factors=min((one.factors for one in spaces), key=kinds.index),
        node_order=max((one.node_order for one in spaces), key=orders.index),
        dataflow=next((one.dataflow for one in spaces if one.dataflow != "free"), "free"),
        one_trip=all(one.one_trip for one in spaces),
        cut_twice=all(one.cut_twice for one in spaces),
        layouts="all" if all(one.layouts == "all" for one in spaces) else "alike",
        shares=all(one.shares for one in spaces),
        mesh_windows=all(one.mesh_windows for one in spaces),
        rules=tuple(dict.fromkeys(text for one in spaces for text in one.rules)),
        units=tuple(units),
    )


@dataclass(frozen=True, slots=True)
class Space:
    """The searched schedules: what may happen between einsums, each in one of the searched mappings. The
    default is unfused.
    """

    mappings: tuple[Mappings, ...] = ()  # the searched mappings of the einsums, each value once
    # orders of einsums that were searched: all, some, or only the given one
    order: Literal["any", "some", "given"] = "any"
    fused: int = 1  # maximum of einsums in a fused segment; 1: no fusion
    shared_loops: int = 0  # maximum of shared loops in a fused segment, all with perfect factors
    summed: bool = False  # shared loops may also be over ranks that a member reduces
    windows: bool = False  # shared loops may also be over ranks that cut a forwarded tensor into windows
    shared_reads: bool = False  # a tensor that several members read may be fetched once for all
    # several shared loops over classes of ranks (`_over_rank_classes`), with any tensor at any depth among
    # them. Over other ranks there is one shared loop, and `held` limits the tensors above it
    depths: bool = False
    # if a segment has a single such loop, its last tile may be smaller, with tiles of `classes.uneven_tiles`
    uneven: bool = False
    # maximum of tensors that stand whole above the one shared loop: each of one member, without the loop's
    # rank
    held: int = 0
    levels: tuple[str, ...] = ()  # levels for forwarded and retained tensors; a schedule uses one of them
    # array over whose PEs all fused segments are split evenly (`_of_one_core`); "": over none
    split: str = ""
    padded: bool = False  # tensors may be forwarded with padding around them
    retained: tuple[str, ...] = ()  # tensors that may be retained whole
    parts: bool = False  # tensors may also be retained in part
    pipelined: int = 1  # maximum of einsums in a pipeline; 1: no pipelines
    tiles: tuple[int, ...] = ()  # numbers of pipeline tiles of a segment; (): any number that divides
    node_ranks: int = 0  # maximum of ranks of an einsum that are distributed over nodes; 0: no nodes
    waste: float = 0.0  # maximum of (nodes that an einsum occupies / nodes that work); 0: no limit
    hold: bool = False  # weights may be loaded once per run, not once per pipeline tile
    weights: Literal["loaded", "pinned"] = "loaded"  # loaded in every run, or pinned before the run
    ahead: bool = False  # first fills of an einsum may come while the einsum before runs
    copies: bool = False  # tensors may be copied into other layouts between einsums
    alone: bool = False  # the space is that of a single einsum
    # other solvers whose answers were compared with those of this space; nothing is claimed about theirs
    beside: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Member:
    """An einsum of a segment."""

    branch: Branch
    einsum: Einsum
    nodes: tuple[Loop | Store, ...]  # the shared part in the einsum's names, then its own nest
    shared: int  # how many of `nodes`, counted from the first, are shared


@dataclass(frozen=True, slots=True)
class Part:
    """A segment of a schedule on a machine, with its einsums resolved."""

    segment: Segment
    members: tuple[Member, ...]
    makers: dict[str, str]  # tensor -> einsum of the workload that makes it
    arch: Arch
    is_split: bool = False  # it is what one core runs of a segment (`_of_one_core`)

    @property
    def forwarded(self) -> frozenset[str]:
        """Returns the tensors that one member makes and another one reads."""
        names = {m.einsum.name for m in self.members}
        read = {self.owner(p.tensor) for m in self.members for p in m.einsum.inputs}
        return frozenset(t for t in read if self.makers.get(t) in names)

    @property
    def loops(self) -> tuple[Loop, ...]:
        """Shared loops of the segment, outermost first."""
        return tuple(n for n in self.segment.nodes if isinstance(n, Loop))

    def owner(self, tensor: str) -> str:
        """Returns the tensor that a second access (T_again) reads; for any other tensor its own name."""
        return base_tensor(tensor, self.makers)

    def users(self, tensor: str) -> list[Member]:
        """Returns the members that read or write a tensor, in execution order."""
        return [m for m in self.members if tensor in {self.owner(p.tensor) for p in m.einsum.tensors()}]


@dataclass(frozen=True, slots=True)
class ScheduleView:
    """A schedule of a workload on a machine, segment by segment."""

    schedule: Schedule
    workload: Workload
    arch: Arch
    parts: tuple[Part, ...]

    @property
    def members(self) -> Iterator[tuple[Part, Member]]:
        """All einsums in execution order, each with its segment."""
        return ((part, m) for part in self.parts for m in part.members)


def resolve(schedule: Schedule, workload: Workload, arch: Arch) -> ScheduleView:
    """Returns a schedule with every branch's einsum and tensors resolved. All einsums must be the
    workload's.
    """
    einsums = {e.name: e for e in workload.einsums}
    makers = {e.output.tensor: e.name for e in workload.einsums}
    parts = (
        Part(s, tuple(_member(s, b, einsums[b.einsum], makers) for b in s.branches), makers, arch)
        for s in schedule.segments
    )
    return ScheduleView(schedule, workload, arch, tuple(parts))


def _member(segment: Segment, branch: Branch, e: Einsum, makers: dict[str, str]) -> Member:
    """Returns a branch with the shared part in its own names. Shared loops over ranks that the einsum lacks,
    and nodes of tensors that it lacks, are left out.
    """
    names, ranks, sizes = {base_tensor(p.tensor, makers) for p in e.tensors()}, dict(branch.ranks), e.sizes()
    loops = (replace(n, rank=ranks.get(n.rank, n.rank)) if isinstance(n, Loop) else n for n in segment.nodes)
    shared = tuple(n for n in loops if (n.rank in sizes if isinstance(n, Loop) else n.tensor in names))
    return Member(branch, e, (*shared, *branch.mapping.nodes), len(shared))


def covers(space: Space, schedule: Schedule, workload: Workload, arch: Arch) -> str | None:
    """Returns None if claims about a space hold for a legal schedule, otherwise the name of the first feature
    that excludes it.
    """
    return next(excluding_features(space, schedule, workload, arch), None)


def excluding_features(space: Space, schedule: Schedule, workload: Workload, arch: Arch) -> Iterator[str]:
    """Returns the names of all features that exclude a schedule from a space."""
    view = resolve(schedule, workload, arch)
    if space.split:  # what is said of a segment holds for the part of one core
        view = replace(view, parts=tuple(_of_one_core(space, part) or part for part in view.parts))
    return (feature.name for feature in FEATURES if feature.leaves_out(space, view))


def _of_one_core(space: Space, part: Part) -> Part | None:
    """Returns the part of a fused segment that one PE of the array `space.split` runs; None if the segment is
    not split as was searched (`trips.even_splits`), above all other shared loops and nodes on chip.
    """
    array = next(f for f in part.arch.fanouts if f.name == space.split)
    inner = [n for n in part.segment.nodes if isinstance(n, Loop) or n.level != part.arch.levels[0].name]
    lead = [n for n in takewhile(lambda n: isinstance(n, Loop) and n.over, inner) if isinstance(n, Loop)]
    own = tuple(
        (tuple(dict(m.branch.ranks).get(n.rank, n.rank) for m in part.members), n.tile, n.over) for n in lead
    )
    splits = even_splits([m.einsum for m in part.members], part.makers, array) if _is_fused(part) else ()
    einsums = next((parts for loops, parts in splits if loops == own), None)
    if einsums is None:
        return None
    nodes = tuple(n for n in part.segment.nodes if n not in lead)
    segment = replace(part.segment, nodes=nodes)
    members = (_member(segment, m.branch, e, part.makers) for m, e in zip(part.members, einsums, strict=True))
    return replace(part, segment=segment, members=tuple(members), is_split=True)


# Features of mappings. A rule tells whether an einsum's mapping is outside of the searched `Mappings`. A
# space does not say which of its `mappings` belong to which einsum. So a schedule is excluded if any of its
# einsums is outside of any of them.

Rule = Callable[[Mappings, Part, Member], bool]


def _breaks(rule: Rule) -> Callable[[Space, ScheduleView], bool]:
    """Returns the test of a feature of mappings: True if the rule holds for some einsum and some of the
    searched mappings.
    """
    return lambda space, view: any(
        rule(searched, part, m) for searched in space.mappings for part, m in view.members
    )


def _factors(space: Space, view: ScheduleView) -> bool:
    """True if an einsum has factors that were not searched. Tiles of a rank that is distributed over nodes
    (pipelines) may be imperfect, but must be as even as possible.
    """
    nodes = _node_dims(view.arch) if space.node_ranks else frozenset[str]()
    return any(
        _uneven(searched, m, nodes, m.shared if space.uneven and _is_fused(part) else 0)
        or _out_of_order(searched, m, view.arch)
        for searched in space.mappings
        for part, m in view.members
    )


def _uneven(searched: Mappings, m: Member, nodes: frozenset[str], shared: int) -> bool:
    """True if a tile does not divide the tile outside of it, and such factors were not searched. The first
    `shared` nodes are left to the feature of shared loops.
    """
    tile_of = m.einsum.sizes()
    for i, loop in ((i, n) for i, n in enumerate(m.nodes) if isinstance(n, Loop)):
        trips = -(-tile_of[loop.rank] // loop.tile)
        is_even = loop.tile == -(-tile_of[loop.rank] // trips)
        spatial_allowed = searched.factors in ("imperfect_spatial", "imperfect") or loop.over in nodes
        is_allowed = (
            searched.factors == "all"
            or (searched.factors == "imperfect" and not loop.over)
            or (spatial_allowed and loop.over and is_even)
        )
        if tile_of[loop.rank] % loop.tile and not is_allowed and i >= shared:
            return True
        tile_of[loop.rank] = loop.tile
    return False


def _out_of_order(searched: Mappings, m: Member, arch: Arch) -> bool:
    """True if imperfect spatial loops of a rank at one fan-out boundary are not one per dimension in the
    machine's order, or a temporal loop of the rank stands between them.
    """
    order = {
        name: (f.outside, d, i) for d, f in enumerate(arch.fanouts) for i, (name, _) in enumerate(f.dims)
    }
    sizes = m.einsum.sizes()
    for rank in sizes:
        loops = [n for n in m.nodes if isinstance(n, Loop) and n.rank == rank]
        # positions in `loops` of the imperfect spatial ones
        uneven = [
            a for a, n in enumerate(loops) if n.over and (loops[a - 1].tile if a else sizes[rank]) % n.tile
        ]
        for a in uneven:
            at_boundary = [
                b for b, n in enumerate(loops) if n.over and order[n.over][0] == order[loops[a].over][0]
            ]
            dim_order = [order[loops[b].over] for b in at_boundary]
            if dim_order != sorted(set(dim_order)) or at_boundary != list(
                range(at_boundary[0], at_boundary[-1] + 1)
            ):
                return searched.factors != "all"
    return False


def _node_dims(arch: Arch) -> frozenset[str]:
    """Returns the dimensions of the outermost fan-out, whose PEs are the nodes of the machine."""
    return frozenset(name for name, _ in arch.fanouts[0].dims) if arch.fanouts else frozenset()


def _dataflow(searched: Mappings, part: Part, m: Member) -> bool:
    """True if the mapping breaks the dataflow. Constraints of another name belong to a solver and count as
    broken.
    """
    if searched.dataflow == "free":
        return False
    name = DATAFLOWS.get(searched.dataflow)
    return name is None or bool(violations(dataflow(name, m.einsum, part.arch), Mapping(m.nodes)))


def _rules(searched: Mappings, part: Part, m: Member) -> bool:
    """True if there are rules: the words of a space do not say which mappings keep them."""
    return bool(searched.rules)


def _units(searched: Mappings, part: Part, m: Member) -> bool:
    """True if the mapping runs on a compute that was not searched."""
    return bool(searched.units) and m.branch.mapping.unit not in searched.units


def _node_order(searched: Mappings, part: Part, m: Member) -> bool:
    """True if a node at a level outside of a boundary stands below a node at a level inside of it, which was
    not searched. Boundaries are fan-outs (`arrays`) or lie between any two levels (`levels`).
    """
    order = part.arch.level_index()
    levels = [order[n.level] for n in m.nodes if isinstance(n, Store)]
    boundaries = (
        {f.outside for f in part.arch.fanouts} if searched.node_order == "arrays" else set(order.values())
    )
    is_crossed = any(b < boundary <= a for boundary in boundaries for a, b in combinations(levels, 2))
    return searched.node_order != "all" and is_crossed


def _one_trip(searched: Mappings, part: Part, m: Member) -> bool:
    """True if a one-trip loop over a rank that slides a window was not searched. Over other ranks such a loop
    changes nothing.
    """
    tile_of, slides_window = m.einsum.sizes(), False
    partial = {rank for p in m.einsum.tensors() for rank in p.partial_ranks()}
    for n in m.nodes:
        if isinstance(n, Loop):
            slides_window |= n.tile == tile_of[n.rank] and n.rank in partial
            tile_of[n.rank] = n.tile
    return slides_window and not searched.one_trip


def _cut_twice(searched: Mappings, part: Part, m: Member) -> bool:
    """True if a strided rank has two temporal loops between storage nodes and these were not searched."""
    strided = {
        rank
        for p in m.einsum.tensors()
        for d in p.dims
        if any(c > 1 for _, c in d.terms)
        for rank in d.ranks()
    }
    cut_ranks: set[str] = set()
    for n in m.nodes:
        if isinstance(n, Store):
            cut_ranks = set()
        elif not n.over and n.rank in strided:
            if n.rank in cut_ranks:
                return not searched.cut_twice
            cut_ranks.add(n.rank)
    return False


def _layouts(searched: Mappings, part: Part, m: Member) -> bool:
    return searched.layouts == "row_major" and bool(m.branch.mapping.layouts)


def _shares(searched: Mappings, part: Part, m: Member) -> bool:
    return bool(m.branch.mapping.shares) and not searched.shares


def _mesh_windows(searched: Mappings, part: Part, m: Member) -> bool:
    """True if a loop over PEs cuts windows where links have a price, and this was not searched."""
    priced = {name for f in part.arch.fanouts if f.hop_pj for name, _ in f.dims}
    over = {n.rank for n in m.nodes if isinstance(n, Loop) and n.over in priced}
    return not searched.mesh_windows and bool(over & cut_windows(m.einsum))


def _no_nest(searched: Mappings, part: Part, m: Member) -> bool:
    return bool(m.branch.mapping.non_nest_text) and replace(searched, units=()) != ALL_MAPPINGS


# Features between einsums.


def _is_fused(part: Part) -> bool:
    """True if a segment is fused: several einsums below shared nodes, but no pipeline. Branches without
    shared nodes count as segments of their own.
    """
    return len(part.members) > 1 and bool(part.segment.nodes) and not part.segment.pipelined


def _over_rank_classes(space: Space, part: Part, view: ScheduleView) -> bool:
    """True if a fused segment was searched as one with several shared loops: each loop is over a class of
    ranks of its own, all shared nodes are at one level, each forwarded tensor has a node, and each result
    that a shared loop sums up (it runs over a reduced rank) has a node or is retained.
    """
    if (
        not (space.depths and _is_fused(part))
        or _unsearched_loops(part, space.shared_loops, space.uneven)
        or part.is_split != bool(space.split)
    ):
        return False
    einsums = [m.einsum for m in part.members]
    classes = rank_classes(einsums, part.makers)
    ranks_by_member = [[n.rank for n in m.nodes[: m.shared] if isinstance(n, Loop)] for m in part.members]
    ranks_by_loop = list(zip(*ranks_by_member, strict=True))
    stores = [n for _, n in _inner_stores(part)]
    stored, levels = {n.tensor for n in stores}, {n.level for n in stores}
    tensors = shared_tensors(einsums, part.makers)
    readers_cut_alike = all(
        n.tensor in part.forwarded or cut_alike(users, classes)
        for n in stores
        for users in [tensors.get(n.tensor, [])]
        if users
    )
    on_chip = stored | {one.tensor for one in view.schedule.retained}
    sums_on_chip = all(
        m.einsum.output.tensor in on_chip or ranks <= m.einsum.output.ranks()
        for m, ranks in zip(part.members, map(set, ranks_by_member), strict=True)
    )
    is_distinct = (
        len(set(ranks_by_loop)) == len(ranks_by_loop)
        and set(ranks_by_loop) <= set(classes)
        and len(stored) == len(stores)
    )
    return (
        is_distinct
        and readers_cut_alike
        and sums_on_chip
        and stored >= part.forwarded
        and len(levels) == 1
        and levels <= set(space.levels)
    )


def _other_segments(space: Space, view: ScheduleView) -> tuple[Space, list[Part]]:
    """Returns the space with the rules that hold for segments that are not `_over_rank_classes`, and these
    segments.
    """
    single_loop_space = replace(
        space,
        shared_loops=min(space.shared_loops, 1),
        summed=False,
        shared_reads=False,
        depths=False,
        uneven=False,
    )
    return single_loop_space if space.depths else space, [
        part for part in view.parts if not _over_rank_classes(space, part, view)
    ]


def _order(space: Space, view: ScheduleView) -> bool:
    """True if einsums are in an order that was not searched."""
    names = [b.einsum for s in view.schedule.segments for b in s.branches]
    return space.order != "any" and names != [e.name for e in view.workload.einsums]


def _fusion(space: Space, view: ScheduleView) -> bool:
    """True if a fused segment has too many einsums, a copy between layouts, or a forwarded tensor that is
    read in another shape.
    """

    def is_excluded(part: Part) -> bool:
        copies = any(COPY_NAME.match(m.einsum.name) for m in part.members)
        return len(part.members) > space.fused or copies or any(_reshaped_reads(part))

    return any(_is_fused(part) and is_excluded(part) for part in view.parts)


def _reshaped_reads(part: Part) -> Iterator[bool]:
    """Yields, for each reader of a forwarded tensor, whether it reads the tensor under another name, size,
    word width or format.
    """
    outputs = {m.einsum.output.tensor: m.einsum.output for m in part.members}
    for p in (p for m in part.members for p in m.einsum.inputs if part.owner(p.tensor) in outputs):
        q = outputs[part.owner(p.tensor)]
        same_words = (p.tensor, p.bits, p.format) == (q.tensor, q.bits, q.format) and p.format == "dense"
        yield not same_words or [d.size for d in p.dims] != [d.size for d in q.dims]


def _padded(space: Space, view: ScheduleView) -> bool:
    """True if a forwarded tensor is read with padding around it and this was not searched."""

    def offset(part: Part) -> bool:
        outputs = {m.einsum.output.tensor: m.einsum.output for m in part.members}
        pairs = [
            pair
            for m in part.members
            for p in m.einsum.inputs
            if p.tensor in outputs
            for pair in zip(p.dims, outputs[p.tensor].dims, strict=False)
        ]
        return any(read.terms and read.offset != written.offset for read, written in pairs)

    return not space.padded and any(len(part.members) > 1 and offset(part) for part in view.parts)


def _shared_loops(space: Space, view: ScheduleView) -> bool:
    """True if a fused segment has shared loops that were not searched: too many, spatial, imperfect, of one
    trip, over a rank that a member lacks, or over compressed columns.
    """
    rules, parts = _other_segments(space, view)
    return any(
        _is_fused(part)
        and (_unsearched_loops(part, rules.shared_loops) or part.is_split != bool(space.split))
        for part in parts
    )


def _unsearched_loops(part: Part, max_loops: int, uneven: bool = False) -> bool:
    """False if there are 1 to `max_loops` shared loops (below a split also none), all of them temporal and
    perfect, of several trips, and over ranks that every member has. uneven: one loop alone may be one of
    `uneven_tiles`.
    """
    loops = part.loops
    if (not loops and not part.is_split) or len(loops) > max_loops or any(loop.over for loop in loops):
        return True
    for m in part.members:
        member_loops = [n for n in m.nodes[: m.shared] if isinstance(n, Loop)]
        columns = {rank for p in m.einsum.inputs if p.format != "dense" for rank in p.dims[-1].ranks()}
        tile_of = m.einsum.sizes()
        if len(member_loops) < len(loops) or any(n.rank in columns for n in member_loops):
            return True
        for n in member_loops:
            searched = uneven and len(loops) == 1 and n.tile in uneven_tiles(tile_of[n.rank])
            if (tile_of[n.rank] % n.tile and not searched) or tile_of[n.rank] == n.tile:
                return True
            tile_of[n.rank] = n.tile
    return False


def _summed(space: Space, view: ScheduleView) -> bool:
    rules, parts = _other_segments(space, view)
    return not rules.summed and any(
        rank not in m.einsum.output.ranks() for part, m, rank in _shared_ranks(parts)
    )


def _windows(space: Space, view: ScheduleView) -> bool:
    """True if a shared loop cuts a forwarded tensor or a result in windows, and this was not searched."""

    def slides(part: Part, m: Member, rank: str) -> bool:
        cut = [
            p for p in m.einsum.tensors() if part.owner(p.tensor) in part.forwarded or p is m.einsum.output
        ]
        return any(
            rank in p.partial_ranks()
            or any(rank in d.ranks() and (d.terms != ((rank, 1),) or d.offset) for d in p.dims)
            for p in cut
        )

    _, parts = _other_segments(space, view)
    return not space.windows and any(slides(part, m, rank) for part, m, rank in _shared_ranks(parts))


def _shared_ranks(parts: Sequence[Part]) -> Iterator[tuple[Part, Member, str]]:
    """Yields (segment, member, rank in the member's names) of the shared loops of fused segments and
    pipelines.
    """
    for part in parts:
        for m in part.members if len(part.members) > 1 else ():
            yield from ((part, m, n.rank) for n in m.nodes[: m.shared] if isinstance(n, Loop))


def _inner_stores(part: Part) -> Iterator[tuple[int, Store]]:
    """Yields the shared on-chip storage nodes with their positions."""
    outer = part.arch.levels[0].name
    return ((i, n) for i, n in enumerate(part.segment.nodes) if isinstance(n, Store) and n.level != outer)


def _shared_reads(space: Space, view: ScheduleView) -> bool:
    """True if several members read a tensor from one shared node, none of them makes it, and this was not
    searched.
    """
    rules, parts = _other_segments(space, view)
    shared = (part for part in parts if len(part.members) > 1)
    return not rules.shared_reads and any(
        n.tensor not in part.forwarded and len(part.users(n.tensor)) > 1
        for part in shared
        for _, n in _inner_stores(part)
    )


def _depths(space: Space, view: ScheduleView) -> bool:
    """True if shared nodes stand at depths that were not searched. Searched are forwarded tensors below the
    shared loop, and tensors of one member whole above it.
    """
    rules, parts = _other_segments(space, view)
    return not rules.depths and any(
        len(part.members) > 1 and _unsearched_depths(rules, part) for part in parts
    )


def _unsearched_depths(space: Space, part: Part) -> bool:
    """`_depths` for one segment, in which all shared loops count as one."""
    loop_positions = [i for i, n in enumerate(part.segment.nodes) if isinstance(n, Loop)]
    above_loops, levels = set[str](), set[str]()
    for i, n in _inner_stores(part):
        levels.add(n.level)
        is_above = bool(loop_positions) and i < loop_positions[0]
        if n.tensor in part.forwarded:
            if is_above or (loop_positions and i < loop_positions[-1]):
                return True
        elif is_above:
            above_loops.add(n.tensor)
    forwarded_nodes = [n.tensor for _, n in _inner_stores(part) if n.tensor in part.forwarded]
    other_levels = (
        len(levels) > 1 or not levels <= set(space.levels) or len(forwarded_nodes) > len(set(forwarded_nodes))
    )
    # a tensor is forwarded through main memory, or whole (no shared loop)
    not_forwarded = set(forwarded_nodes) != part.forwarded or (
        not loop_positions and not part.segment.pipelined and not part.is_split
    )
    return other_levels or not_forwarded or _too_many_held(space, part, above_loops)


def _too_many_held(space: Space, part: Part, held: set[str]) -> bool:
    """True if this choice of tensors above the shared loop was not searched: more than `space.held` tensors
    of the segment could stand there, or one that stands there has the loop's rank or is forwarded.
    """
    if not held:
        return False
    may_stand_above = [
        part.owner(p.tensor)
        for m in part.members
        for p in m.einsum.tensors()
        if not {n.rank for n in m.nodes[: m.shared] if isinstance(n, Loop)} & p.ranks()
        and part.owner(p.tensor) not in part.forwarded
    ]
    return part.segment.pipelined or len(may_stand_above) > space.held or not held <= set(may_stand_above)


def _retention(space: Space, view: ScheduleView) -> bool:
    """True if a tensor is retained for which this was not searched, or at a level that was not, or if tensors
    are retained and forwarded at more than one level.
    """
    forwarding_levels = {
        n.level for part in view.parts if len(part.members) > 1 for _, n in _inner_stores(part)
    }
    levels = {one.level for one in view.schedule.retained}
    return any(
        one.tensor not in space.retained or one.level not in space.levels for one in view.schedule.retained
    ) or (bool(levels) and len(levels | forwarding_levels) > 1)


def _partial_retention(space: Space, view: ScheduleView) -> bool:
    return not space.parts and any(one.share != 1 or one.later_shares for one in view.schedule.retained)


def _pipelines(space: Space, view: ScheduleView) -> bool:
    return any(part.segment.pipelined and _unsearched_pipeline(space, part) for part in view.parts)


def _unsearched_pipeline(space: Space, part: Part) -> bool:
    """True if a pipeline was not searched: too many stages; a stage that receives nothing, or forwards
    nothing; spatial, several or unequal shared loops.
    """
    stages, forwarded = part.members, part.forwarded
    if len(stages) > space.pipelined or any(
        set(dict(part.arch.fanouts[0].dims)) != {one.dim for one in m.branch.region} for m in stages
    ):
        return True
    reads = [{p.tensor for p in m.einsum.inputs} & forwarded for m in stages]
    is_reshaped = any(_reshaped_reads(part))
    is_chain = all(reads[1:]) and all(m.einsum.output.tensor in forwarded for m in stages[:-1])
    return (
        is_reshaped
        or not is_chain
        or (bool(part.loops) and (_unsearched_loops(part, 1) or any(map(_clipped, stages))))
    )


def _clipped(m: Member) -> bool:
    """True if padding cuts windows along a shared loop, so that pipeline tiles are not equal."""
    ranks, sizes = {n.rank for n in m.nodes[: m.shared] if isinstance(n, Loop)}, m.einsum.sizes()
    dims = [d for p in m.einsum.tensors() for d in p.dims if ranks & set(d.ranks())]
    return not all(d.is_stored(sizes) for d in dims)


def _tiles(space: Space, view: ScheduleView) -> bool:
    """True if the number of pipeline tiles of a segment was not searched."""
    pipelines = (part for part in view.parts if part.segment.pipelined and part.loops and space.tiles)
    return any(
        trips not in tile_counts(n, space.tiles) for part in pipelines for n, trips in _trips(part.members[0])
    )


def tile_counts(n: int, tiles: Sequence[int]) -> list[int]:
    """Returns the numbers of pipeline tiles above 1 into which a loop over n indices may be cut: those of
    `tiles` that divide n, or all divisors of n if `tiles` is empty or n is below all of them.
    """
    return [b for b in (tiles if tiles and n >= min(tiles) else range(2, n + 1)) if b > 1 and n % b == 0]


def _trips(m: Member) -> Iterator[tuple[int, int]]:
    """Yields (extent, trips) of each shared loop."""
    tile_of = m.einsum.sizes()
    for n in m.nodes[: m.shared]:
        if isinstance(n, Loop):
            yield tile_of[n.rank], -(-tile_of[n.rank] // n.tile)
            tile_of[n.rank] = n.tile


def _nodes(space: Space, view: ScheduleView) -> bool:
    """True if the distribution over nodes was not searched: too many ranks, a rank of a window, too many idle
    nodes, or a temporal loop outside of the nodes.
    """
    return space.node_ranks > 0 and any(_unsearched_nodes(space, part, m) for part, m in view.members)


def _unsearched_nodes(space: Space, part: Part, m: Member) -> bool:
    """`_nodes` for one einsum. Reduced ranks are searched only where nodes add partial sums up on the way to
    main memory, whose first read of an output costs nothing.
    """
    shared_count = m.shared if part.segment.pipelined else 0
    dims, own_loops = _node_dims(part.arch), [n for n in m.nodes[shared_count:] if isinstance(n, Loop)]
    node_loop_count = next((i for i, n in enumerate(own_loops) if n.over not in dims), len(own_loops))
    ranks = {n.rank for n in own_loops[:node_loop_count]}
    tile_of = m.einsum.sizes()
    for n in m.nodes[:shared_count]:
        if isinstance(n, Loop):
            tile_of[n.rank] = n.tile
    stage_tile, nodes_used = dict(tile_of), dict.fromkeys(dims, 1)
    for n in own_loops[:node_loop_count]:
        nodes_used[n.over] *= -(-tile_of[n.rank] // n.tile)
        tile_of[n.rank] = n.tile
    nodes_needed = prod(-(-stage_tile[rank] // tile_of[rank]) for rank in ranks)
    too_many_ranks = len(ranks) > space.node_ranks
    too_many_idle = prod(nodes_used.values()) > (space.waste or inf) * nodes_needed
    if (
        any(n.over in dims for n in own_loops[node_loop_count:])
        or too_many_ranks
        or too_many_idle
        or ranks & windowed_ranks(m.einsum)
    ):
        return True
    summed = ranks - m.einsum.output.ranks()
    return bool(summed) and not (
        m.einsum.kind == "mac" and all(part.arch.fanouts[0].reduce) and part.arch.levels[0].skip_first_read
    )


def windowed_ranks(e: Einsum) -> frozenset[str]:
    """Returns the ranks that, in a dimension of some tensor, are added to another rank, have a stride or an
    offset, or run beyond the dimension's size (padding).
    """
    sizes = e.sizes()
    dims = [d for p in e.tensors() for d in p.dims]
    return frozenset(
        rank
        for d in dims
        for rank in d.ranks()
        if len(d.terms) > 1 or d.terms[0][1] != 1 or d.offset or d.size < sizes[rank]
    )


def cut_windows(e: Einsum) -> frozenset[str]:
    """Returns the ranks that cut some tensor into windows, or run beyond one of its dimensions."""
    sizes = e.sizes()
    beyond = {rank for p in e.tensors() for d in p.dims for rank in d.ranks() if d.size < sizes[rank]}
    return frozenset(beyond).union(*(p.partial_ranks() for p in e.tensors()))


def _hold(space: Space, view: ScheduleView) -> bool:
    return not space.hold and any(m.branch.filled_once for _, m in view.members)


def _weights(space: Space, view: ScheduleView) -> bool:
    return {"streamed": "loaded", "pinned": "pinned"}[view.schedule.weights] != space.weights


def _ahead(space: Space, view: ScheduleView) -> bool:
    return view.schedule.fills_ahead and not space.ahead


def _copies(space: Space, view: ScheduleView) -> bool:
    """True if there are copies into other layouts, and these were not searched."""
    return not space.copies and any(COPY_NAME.match(e.name) for e in view.workload.einsums)


# Words of certificates: for each feature what was searched and what was not.

Words = tuple[str, str]  # (searched, not searched); "": nothing to say


def _searched_words(searched: bool, what: str, absent: bool = False) -> Words:
    """Returns `what` as the words for searched, or for not searched. absent: neither has words."""
    return ("", "") if absent else (what, "") if searched else ("", what)


def _of_mappings(words: Callable[[Mappings], Words]) -> Callable[[Space], Words]:
    """Returns the words of all searched mappings of a space, each word once."""

    def joined(space: Space) -> Words:
        word_pairs = [words(one) for one in space.mappings]
        searched, not_searched = (
            (
                " or ".join(dict.fromkeys(filter(None, alternatives)))
                for alternatives in zip(*word_pairs, strict=True)
            )
            if word_pairs
            else ("", "")
        )
        return searched, not_searched

    return joined


def _factor_words(mappings: Mappings) -> Words:
    return {
        "perfect": ("perfect factors", "imperfect factors"),
        "imperfect_spatial": (
            "perfect temporal and imperfect spatial factors (as even as can be)",
            "other imperfect factors",
        ),
        "imperfect": ("imperfect factors (spatial ones as even as can be)", "uneven spatial factors"),
        "all": ("all factors", ""),
    }[mappings.factors]


def _order_words(mappings: Mappings) -> Words:
    return "all loop orders and bypasses", {
        "all": "",
        "levels": "inner levels above outer ones",
        "arrays": "inner levels above outer ones around an unused array",
    }[mappings.node_order]


def _dataflow_words(mappings: Mappings) -> Words:
    if mappings.dataflow == "free":
        return "all dataflows", ""
    named = (
        mappings.dataflow.replace("_", "-") if mappings.dataflow in DATAFLOWS else f"{mappings.dataflow}'s"
    )
    return f"{named} dataflow", "other dataflows"


def _rule_words(mappings: Mappings) -> Words:
    if not mappings.rules:
        return "", ""
    return f"{UNDER}{RULES_BETWEEN.join(mappings.rules)}", RULES_BROKEN


@dataclass(frozen=True, slots=True)
class Feature:
    """Something that the notation of schedules can express."""

    name: str
    notation: tuple[str, ...]  # fields and keywords of the notation that express it
    words: Callable[[Space], Words]  # what of it is searched and what is not, in a few words
    # True if a schedule has the feature in a way that the space excludes
    leaves_out: Callable[[Space, ScheduleView], bool]


def _loop_words(space: Space) -> Words:
    """Returns the words about shared loops. Stages of a pipeline share one loop at most."""
    max_loops = max(space.shared_loops, int(space.pipelined > 1))
    one_loop = " (or one that leaves a remainder where divisors are far apart)" if space.uneven else ""
    below = f" below an even split over {space.split}" if space.split else ""
    not_searched = (
        f"more shared loops{' or other remainders' if space.uneven else ''}"
        f"{f' or splits over {space.split}' if space.split else ''}"
    )
    if space.depths:
        return (
            f"{max_loops} shared loops over different ranks that tensors connect{one_loop}{below}",
            not_searched,
        )
    return (
        ("", "")
        if _is_unfused(space)
        else (f"{max_loops} shared loop{'s' * (max_loops != 1)}{one_loop}{below}", not_searched)
    )


def _retained_words(space: Space) -> Words:
    if not space.retained:
        return "", "retention"
    plural = "s" * (len(space.retained) > 1)
    searched = f"retention of {len(space.retained)} tensor{plural} at {' or '.join(space.levels)}"
    return searched, "retention of other tensors"


def _tile_words(space: Space) -> Words:
    if space.pipelined == 1:
        return "", ""
    if not space.tiles or space.tiles == (1,):
        return (
            ("1 pipeline tile", "other numbers of pipeline tiles")
            if space.tiles
            else ("any number of pipeline tiles", "")
        )
    counts = " or ".join(map(str, space.tiles))
    return (
        f"{counts} pipeline tiles (any number of a loop of fewer than {min(space.tiles)})",
        "other numbers of pipeline tiles",
    )


def _weight_words(space: Space) -> Words:
    loaded = "weights per pipeline tile" if space.pipelined > 1 else ""
    return (
        ("weights pinned before the run", loaded)
        if space.weights == "pinned"
        else (loaded, "weights pinned before the run")
    )


def _node_words(space: Space) -> Words:
    return (
        (f"up to {space.node_ranks} ranks over nodes", "others over nodes") if space.node_ranks else ("", "")
    )


def _order_of_einsums(space: Space) -> Words:
    return {
        "any": ("", ""),
        "given": ("", "other orders of einsums"),
        "some": ("some orders of einsums", "all of them"),
    }[space.order]


def _is_unfused(space: Space) -> bool:
    """True if no einsums run together."""
    return space.fused == space.pipelined == 1


WITHIN = (  # features within an einsum
    Feature(
        "imperfect factors",
        ("for", "parfor", "Loop.tile", "Loop.trips"),
        _of_mappings(_factor_words),
        _factors,
    ),
    Feature("dataflow", ("Loop.rank", "Loop.over"), _of_mappings(_dataflow_words), _breaks(_dataflow)),
    Feature("rules", ("Mapping.nodes",), _of_mappings(_rule_words), _breaks(_rules)),
    Feature(
        "computes",
        ("mac", "Mapping.unit"),
        _of_mappings(lambda own: (f"{ON_EACH}{' '.join(own.units)}" if own.units else "", "")),
        _breaks(_units),
    ),
    Feature(
        "order of storage nodes",
        ("store", "mac", "Store.level", "Store.tensor", "Mapping.nodes"),
        _of_mappings(_order_words),
        _breaks(_node_order),
    ),
    Feature(
        "loops of one trip",
        ("Loop.tile",),
        _of_mappings(lambda own: _searched_words(own.one_trip, "loops of one trip")),
        _breaks(_one_trip),
    ),
    Feature(
        "strided ranks cut twice",
        ("Loop.tile",),
        _of_mappings(
            lambda own: _searched_words(
                own.cut_twice, "strided ranks cut twice between fetches", own.cut_twice
            )
        ),
        _breaks(_cut_twice),
    ),
    Feature(
        "layouts",
        ("layout", "TensorLayout.level", "TensorLayout.tensor", "TensorLayout.text", "Mapping.layouts"),
        _of_mappings(
            lambda own: _searched_words(own.layouts == "all", "all layouts", own.layouts == "alike")
        ),
        _breaks(_layouts),
    ),
    Feature(
        "share of buffers",
        ("share", "Rotated.level", "Rotated.tensor", "Rotated.dims", "Mapping.shares"),
        _of_mappings(lambda own: _searched_words(own.shares, "tiles shared out among PEs")),
        _breaks(_shares),
    ),
    Feature(
        "windows over networks",
        ("Loop.over", "Loop.rank"),
        _of_mappings(
            lambda own: _searched_words(
                own.mesh_windows, "windows cut over a network whose links have a price", own.mesh_windows
            )
        ),
        _breaks(_mesh_windows),
    ),
    Feature(
        "mappings that are no nest",
        ("Mapping.non_nest_text",),
        _of_mappings(
            lambda own: _searched_words(replace(own, units=()) == ALL_MAPPINGS, "mappings that are no nest")
        ),
        _breaks(_no_nest),
    ),
)
BETWEEN = (  # features between einsums
    Feature("weights", ("weights", "Schedule.weights"), _weight_words, _weights),
    Feature(
        "hold of weights",
        ("hold", "Branch.filled_once"),
        lambda s: _searched_words(s.hold, "weights once (hold)", s.pipelined == 1),
        _hold,
    ),
    Feature(
        "fills ahead",
        ("fills", "Schedule.fills_ahead"),
        lambda s: _searched_words(s.ahead, "fills ahead"),
        _ahead,
    ),
    Feature(
        "order of einsums",
        ("segment", "einsum", "Branch.einsum", "Branch.mapping", "Schedule.segments"),
        _order_of_einsums,
        _order,
    ),
    Feature(
        "fusion",
        ("Segment.branches",),
        lambda s: _searched_words(
            s.fused > 1, f"fusion of up to {s.fused} einsums" if s.fused > 1 else "fusion"
        ),
        _fusion,
    ),
    Feature(
        "pipelines",
        ("Branch.region", "Region.dim", "Region.first", "Region.size"),
        lambda s: _searched_words(
            s.pipelined > 1,
            f"pipelines of up to {s.pipelined} einsums on regions of nodes"
            if s.pipelined > 1
            else "pipelines",
        ),
        _pipelines,
    ),
    Feature(
        "shared loops over summed ranks",
        ("Segment.nodes",),
        lambda s: (
            ("shared loops over summed ranks", "partial sums that pass their level by")
            if s.summed
            else _searched_words(False, "shared loops over summed ranks", _is_unfused(s))
        ),
        _summed,
    ),
    Feature(
        "shared loops over windows",
        ("Segment.nodes",),
        lambda s: _searched_words(s.windows, "shared loops over windows", _is_unfused(s)),
        _windows,
    ),
    Feature("shared loops", ("Segment.nodes", "Branch.ranks", "Mapping.fork"), _loop_words, _shared_loops),
    Feature(
        "shared reads",
        ("Segment.nodes",),
        lambda s: _searched_words(s.shared_reads, "reads shared by einsums", _is_unfused(s)),
        _shared_reads,
    ),
    Feature(
        "padding",
        ("Segment.nodes",),
        lambda s: _searched_words(s.padded, "padding of what is passed on", _is_unfused(s)),
        _padded,
    ),
    Feature(
        "depths of tensors",
        ("Segment.nodes",),
        lambda s: _searched_words(s.depths, "tensors at other depths", _is_unfused(s)),
        _depths,
    ),
    Feature(
        "retention",
        ("retain", "Retained.level", "Retained.tensor", "Schedule.retained"),
        _retained_words,
        _retention,
    ),
    Feature(
        "retention of parts",
        ("Retained.share", "Retained.later_shares"),
        lambda s: _searched_words(s.parts, "retention of parts", not s.retained),
        _partial_retention,
    ),
    Feature("pipeline tiles", ("Segment.nodes",), _tile_words, _tiles),
    Feature("ranks over nodes", ("Loop.over", "Loop.rank"), _node_words, _nodes),
    Feature(
        "copies between layouts",
        ("layout",),
        lambda s: _searched_words(
            s.copies, "copies between layouts", all(own.layouts == "alike" for own in s.mappings)
        ),
        _copies,
    ),
    Feature("other solvers", (), lambda s: (" and ".join(s.beside), ""), lambda space, at: False),
)
FEATURES = (*BETWEEN, *WITHIN)


SEARCHED, NOT_SEARCHED = "; searched: ", "; not searched: "  # in a certificate, before the words of each list


@lru_cache(maxsize=1 << 10)
def words(space: Space | Mappings) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns (words for what was searched, words for what was not), a few words per feature. A space of a
    single einsum has no words about features between einsums, except weights.
    """
    full_space = space if isinstance(space, Space) else Space((space,))
    between = () if isinstance(space, Mappings) else BETWEEN[:1] if full_space.alone else BETWEEN
    word_pairs = [feature.words(full_space) for feature in (*WITHIN, *between)]
    searched, not_searched = (
        tuple(filter(None, feature_words)) for feature_words in zip(*word_pairs, strict=True)
    )
    return searched, not_searched


def certificate_words(space: Space | Mappings) -> str:
    """Returns the words of a space as certificates append them to their claim."""
    searched, not_searched = words(space)
    return f"{SEARCHED}{', '.join(searched)}{NOT_SEARCHED}{', '.join(not_searched) or 'nothing'}"


def common_words(certificates: Sequence[str]) -> str:
    """Returns the words of several answers' spaces as one certificate appends them: searched is what was
    searched for each of them, not searched what was not for one. "": none of them has a space.
    """
    spaces = [found for one in certificates if (found := space_words(one)) is not None]
    if not spaces:
        return ""
    skipped = dict.fromkeys(word for one in spaces for word in one["not_searched"])
    searched = [
        word
        for word in spaces[0]["searched"]
        if word not in skipped and all(word in one["searched"] for one in spaces)
    ]
    return f"{SEARCHED}{', '.join(searched)}{NOT_SEARCHED}{', '.join(skipped) or 'nothing'}"


def claim(certificate: str) -> str:
    """Returns what a certificate claims, without the words for what was searched."""
    return certificate.partition(SEARCHED)[0]


def space_words(certificate: str) -> dict[str, list[str]] | None:
    """Returns the words of a certificate for what was searched and what was not; None if it has none."""
    _, separator, word_lists = certificate.partition(SEARCHED)
    searched, _ended, not_searched = word_lists.partition(NOT_SEARCHED)
    if not separator:
        return None
    return {
        "searched": searched.split(", "),
        "not_searched": [] if not_searched == "nothing" else not_searched.split(", "),
    }


@lru_cache(maxsize=1)
def _by_words() -> dict[str, Mappings]:
    """Returns every value of `Mappings` with a named dataflow, by its words."""
    every = [
        Mappings(f, d, n, False, cut, lay)
        for f in get_args(SearchedFactors)
        for d in DATAFLOWS
        for n in get_args(NodeOrder)
        for cut in (True, False)
        for lay in get_args(Layouts)
    ]
    return {certificate_words(one): one for one in (*every, ALL_MAPPINGS)}


def mappings_in(certificate: str) -> Mappings | None:
    """Returns the mappings that were searched according to the certificate of an einsum; None if it names no
    searched space. Raises ValueError if its words are those of no value of `Mappings`.
    """
    words_ = certificate[len(claim(certificate)) :]
    lists = space_words(certificate) or {"searched": []}
    rule_words, unit_words = (
        next((one for one in lists["searched"] if one.startswith(start)), "") for start in (UNDER, ON_EACH)
    )
    rules = tuple(rule_words.removeprefix(UNDER).split(RULES_BETWEEN)) if rule_words else ()
    units = tuple(unit_words.removeprefix(ON_EACH).split())
    if rules or units:
        searched, not_searched = (
            ", ".join(one for one in words_list if one not in (rule_words, unit_words, RULES_BROKEN))
            for words_list in lists.values()
        )
        words_ = f"{SEARCHED}{searched}{NOT_SEARCHED}{not_searched or 'nothing'}"
    if words_ and words_ not in _by_words():
        raise ValueError(f'certificate: "{words_[2:]}" describes no searched space')
    return replace(_by_words()[words_], rules=rules, units=units) if words_ else None


def encoded(space: Space | Mappings | None) -> str:
    """Returns a space as text that `decoded` reads: JSON of the fields that differ from the default. None:
    empty text.
    """
    return json.dumps(_data(space), sort_keys=True, separators=(",", ":")) if space is not None else ""


def _data(space: Space | Mappings) -> dict[str, Any]:
    """Returns a space as JSON data: only fields that differ from their default."""
    found = {f.name: getattr(space, f.name) for f in fields(space) if getattr(space, f.name) != f.default}
    return {
        name: [_data(mappings) for mappings in value] if name == "mappings" else value
        for name, value in found.items()
    }


@lru_cache(maxsize=1 << 10)
def decoded(kind: type[T], text: str) -> T | None:
    """Returns the space of a text, the inverse of `encoded`. Raises ValueError if the text is not exactly
    what `encoded` writes.
    """
    try:
        found = _read(kind, json.loads(text)) if text else None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as fault:
        raise ValueError(f"searched space: {text[:200]}: {fault}") from None
    if encoded(found) != text or not text.isprintable():
        raise ValueError(f"searched space: {text[:200]}: is not written as dse writes it")
    return found


def _read(kind: type[Any], data: dict[str, Any]) -> Any:
    hints = get_type_hints(kind)
    return kind(**{name: _checked(hints[name], value) for name, value in data.items()})


def _checked(hint: Any, value: Any) -> Any:
    """Returns the value of a field if it has the field's type. Raises TypeError otherwise."""
    if get_origin(hint) is tuple:
        (item_type, _), items = get_args(hint), list(value)
        return tuple(
            _read(item_type, one) if item_type is Mappings else _checked(item_type, one) for one in items
        )
    is_valid = value in get_args(hint) if get_origin(hint) is Literal else type(value) is hint
    if not is_valid:
        raise TypeError(f"{value!r} is no {hint}")
    return value
