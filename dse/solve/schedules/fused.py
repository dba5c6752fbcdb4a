"""Fused schedules: tensors retained whole on chip, and einsums fused below shared loops, chosen together as
labels and factors of a graph (docs/reuse.md, Fusion).

Nodes and their labels:

    boundary between two adjacent einsums   none, or the fused segment that crosses it
    tensor that fits on chip                written to the outermost level, or retained at a level
    tensor and einsum that makes or reads   its layout, on machines with cache lines, rows or banks
    it                                      (dse/solve/layouts/layouts.py)

Factors and their costs:

    einsum alone                            its best nest, by which of its tensors are retained, the capacity
                                            that other retained tensors leave, and its layouts
    segments that begin with an einsum      the best plan of each (shared loops, tiles, depths of tensors:
                                            dse/solve/schedules/shared_loops.py), row-major
    tensor                                  copies into other layouts

Segments, plans and retained tensors are chosen together by `dse/solve/elimination.py`, which is exact. The
remaining optimality gap is that of the nests. The idea is that of FFM (arXiv 2602.15166), whose pmappings are
such labels.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from itertools import combinations, product
from math import inf, prod, sqrt

from dse.mapper.exact.layout_aware import layout_pricing
from dse.mapping.constraints import Constraints, Factors
from dse.mapping.conversion import with_conversions
from dse.mapping.nest import Infeasible, Loop, Mapping, Store, role
from dse.mapping.schedule import Branch, Retained, Schedule, Segment, rename
from dse.mapping.searched import Space, covers, encoded, mappings_of
from dse.sim.counts.counts import tile_bits
from dse.sim.einsum.evaluate import (
    PRECISE,
    EinsumCost,
    Problem,
    ProgressFn,
    Solution,
    certificate_text,
    einsum_cost,
    gap_in_space_text,
    no_progress,
    objective_value,
    relative_gap,
)
from dse.sim.fronts import Objective, undominated
from dse.sim.schedule import placed
from dse.sim.schedule.graph import any_schedule, evaluate
from dse.solve.elimination import Choice, Table, join, table
from dse.solve.layouts.layouts import Layouts
from dse.solve.schedules.fusible_segments import (
    MAX_MEMBERS,
    Members,
    fusing_levels,
    joined_segments,
    segments,
)
from dse.solve.schedules.nests import (
    Nest,
    Nests,
    Place,
    own_bits,
    price_alone,
    retained_boundary,
    retained_nest,
)
from dse.solve.schedules.shared_loops import MOST_LOOPS, Plan, SegmentSearch, search, searchable
from hw.arch import Arch, Level
from workloads.einsum import Einsum, canonical_key
from workloads.graph import Workload, counts, owner

# Limits of the search. Rows of a table grow as (levels + 1) ^ retained, plans of a segment as 2 ^ held.
MAX_RETAINED = 6  # tensors that may be retained at one time
MAX_HELD = 6  # tensors of a segment, the largest ones, that may be held whole
EVALUATED = 8  # plans of a segment that are priced for EDP, where (energy, latency) fronts are kept
RETAINED_NODE = "keep "  # prefix of the node of a tensor in tables


@dataclass(frozen=True, slots=True)
class Option:
    """Cost of a segment, or of an einsum alone."""

    energy: float  # inf: no plan was found, though one may exist
    latency: float
    lower_bound: float  # no plan of these einsums costs less, in the unit of `Nest.lower_bound`
    plan: Plan
    need: int = 0  # bits at the level: shared storage nodes and the largest branch


@dataclass(frozen=True, slots=True)
class LiveRange:
    """A tensor that may be retained, and while which einsums it stands on chip."""

    tensor: str
    first: int  # position of the einsum that makes it
    last: int  # position of the last einsum that reads it
    bits: int


@dataclass(slots=True)
class Graph:
    """The choices of a workload on a machine, and memos of what was solved."""

    arch: Arch
    workload: Workload
    objective: Objective
    nests: Nests
    levels: tuple[Level, ...]  # where tensors may be retained or forwarded
    makers: dict[str, int]  # position of the einsum that makes a tensor
    members: list[Members]  # segments that may be fused
    live_ranges: list[LiveRange]  # tensors that may be retained
    layouts: Layouts | None = None  # None: plain layouts
    several: bool = False  # several shared loops are searched
    # by form of a segment: (free bits, upper limit of the objective value, options found) of each search
    options: dict[tuple[object, ...], list[tuple[float, float, list[Option]]]] = field(default_factory=dict)
    priced_alone: dict[tuple[object, ...], EinsumCost] = field(default_factory=dict)  # memo of `_layout_rows`
    single_rows: dict[tuple[int, ...], list[Row]] = field(default_factory=dict)  # memo of `_single`
    layout_rows: dict[tuple[object, ...], list[LayoutRow]] = field(default_factory=dict)  # the same, layouts
    plans: int = 0  # plans priced


MakeSegment = Callable[[], Segment]
# labels of layouts, energy, latency, the nest in these layouts
LayoutRow = tuple[tuple[int, ...], float, float, Mapping]
# labels of layouts of the tensors that an einsum shares, its cost in these layouts, its segment
Row = tuple[tuple[int, ...], Option, MakeSegment]


@dataclass(slots=True)
class GraphFactors:
    """The factors of a graph."""

    tables: list[Table] = field(default_factory=list)  # costs of options that were found
    lower_bounds: list[Table] = field(default_factory=list)  # lower bounds of options that may exist
    # per table: its first einsum, and for each row a function that returns its segment (None: the einsum runs
    # in a segment of another table, or no segment begins here)
    rows: list[tuple[int, list[MakeSegment | None]]] = field(default_factory=list)

    def add(
        self,
        first: int,
        scope: Sequence[str],
        found: Sequence[tuple[tuple[int, ...], Option | None, MakeSegment | None]],
        nodes: int = 0,
    ) -> None:
        """Adds a factor. An option that may exist but was not found (energy inf) enters the lower bounds
        alone.

        nodes: so many nodes at the end of the scope are layouts; a lower bound holds in all layouts.
        """
        real, most = [row for row in found if row[1] is None or row[1].energy < inf], len(scope) - nodes
        self.tables.append(
            table(scope, [(at, (o.energy, o.latency) if o else (0.0, 0.0)) for at, o, _ in real])
        )
        floors: dict[tuple[int, ...], float] = {}
        for at, o, _ in found:
            floors[at[:most]] = min(floors.get(at[:most], inf), o.lower_bound if o else 0.0)
        self.lower_bounds.append(table(scope[:most], [(at, (floor, 0.0)) for at, floor in floors.items()]))
        self.rows.append((first, [make for _, _, make in real]))


def fused(
    arch: Arch,
    workload: Workload,
    objective: Objective,
    factors: Factors,
    constraints: Callable[[Einsum], Constraints],
    allowed_gap: float = 0.0,
    layouts: Callable[[Objective], Layouts | Infeasible | None] = lambda _: None,
    progress: ProgressFn = no_progress,
    several: bool = True,
) -> Solution | Infeasible:
    """Returns the best schedule with fused segments and retained tensors. Its optimality gap is to the
    optimum of this space, in any layouts.

    EDP takes the best among the schedules found for EDP, energy and latency. Its lower bound is the minimum
    energy times the minimum latency, or the square of the sum of sqrt(energy x latency) bounds, whichever is
    larger.

    layouts: returns the layouts to choose from by objective, or None on machines where all cost the same.
    several: for energy, segments have several shared loops (dse/solve/schedules/shared_loops.py).
    """

    def best(each: Objective) -> tuple[list[Solution], float, Graph] | Infeasible:
        chosen = layouts(each)
        if isinstance(chosen, Infeasible):
            return chosen
        nests = Nests(arch, each, factors, constraints, allowed_gap)
        return _best(
            graph(arch, workload, each, nests, chosen, several and objective == "energy"), objective, progress
        )

    found = best(objective)
    if isinstance(found, Infeasible):
        return found
    priced, floor, g = found
    if objective == "edp":
        own: tuple[Objective, ...] = ("energy", "latency")
        ends = [end for each in own if isinstance(end := best(each), tuple)]
        priced += [one for end in ends for one in end[0]]
        floor = max(floor * floor, prod(end[1] for end in ends) if len(ends) == 2 else 0.0)
    if not priced:
        return Infeasible("the schedule", 1, 0, workload.name, "schedules")
    least = min(
        priced, key=lambda one: (objective_value(objective, one.energy_pj, one.latency_cycles), one.energy_pj)
    )
    value = objective_value(objective, least.energy_pj, least.latency_cycles)
    gap = relative_gap(value, floor)
    unfused = _unfused_optimum(g)
    return with_certificate(
        replace(least, saved=1 - value / unfused if unfused else 0.0),
        gap if gap > PRECISE else 0.0,
        space(g),
        arch,
        workload,
    )


def _best(
    g: Graph, objective: Objective, progress: ProgressFn = no_progress
) -> tuple[list[Solution], float, Graph] | Infeasible:
    """Returns the best schedules of the graph, priced for `objective`; the graph's lower bound in the unit of
    `Nest.lower_bound`; and the graph.

    With layouts there are up to two schedules, the second without copies between layouts. Copies run between
    segments, where retained tensors may leave too little capacity for them.
    """
    found = factors(g, progress)
    if isinstance(found, Infeasible):
        return found
    feasible, priced = False, list[Solution]()
    for choice in _choices(g, found.tables):
        feasible, value = True, objective_value(g.objective, choice.energy, choice.latency)
        workload, copies, nests = (
            g.layouts.copies(choice, value, found.tables) if g.layouts else (g.workload, (), {})
        )
        given = with_copies(schedule(g, found, choice), g.workload, workload, nests)
        solved = evaluate(g.arch, workload, given, objective, reuse=True)
        if isinstance(solved, Solution):
            priced.append(replace(solved, schedule=given, conversions=copies) if g.layouts else solved)
        if not copies:
            break
    return (
        (priced, join(found.lower_bounds).lower_bound, g)
        if feasible
        else Infeasible("the schedule", 1, 0, g.workload.name, "schedules")
    )


def _choices(g: Graph, tables: Sequence[Table]) -> Iterator[Choice]:
    """Yields the cheapest choice of labels; with layouts also the cheapest one without copies."""
    if not g.layouts:
        yield from join(tables, ranking=g.objective).choices[:1]
        return
    every = next(g.layouts.rules("alt"))[0]
    nodes = frozenset(use.node for one in g.layouts.shared for use in one.readers)
    for same in (frozenset[str](), nodes):
        _, _, choice, _ = g.layouts.minimum((every, same), tables)
        if choice:
            yield choice


def with_copies(plan: Schedule, before: Workload, workload: Workload, nests: dict[str, Mapping]) -> Schedule:
    """Returns a schedule with copies between layouts added, each in a segment of its own after the segment
    that makes the copied tensor.

    plan: schedule of the workload `before`, which has no copies; nests: of the copies, by name in `workload`.
    """
    old, new = {e.name: e for e in before.einsums}, {e.name: e for e in workload.einsums}
    behind: dict[str, list[str]] = {}
    for name in nests:
        behind.setdefault(new[name].inputs[0].tensor, []).append(name)
    segments = list[Segment]()
    for segment in plan.segments:
        names = {
            p.tensor: q.tensor
            for one in segment.branches
            for p, q in zip(old[one.einsum].tensors(), new[one.einsum].tensors(), strict=True)
        }
        nodes = tuple(
            replace(node, tensor=names.get(node.tensor, node.tensor)) if isinstance(node, Store) else node
            for node in segment.nodes
        )
        branches = tuple(
            replace(one, mapping=rename(one.mapping, old[one.einsum], new[one.einsum]))
            for one in segment.branches
        )
        segments += [replace(segment, nodes=nodes, branches=branches)]
        segments += [
            Segment((Branch(name, nests[name]),))
            for one in segment.branches
            for name in behind.get(old[one.einsum].output.tensor, ())
        ]
    return replace(plan, segments=tuple(segments))


# begins the part of a certificate that states the gap
CLAIM = re.compile(
    r"not proven|optimal in the searched space|no schedule of the searched space|at most [\d.,]+ %"
)


def with_certificate(found: Solution, gap: float, space: Space, arch: Arch, workload: Workload) -> Solution:
    """Returns a solution with optimality gap and certificate. space: the searched space to which the gap
    refers. The solution may lie outside of it if another solver found it (`space.beside`).
    """
    gap = min(gap, found.gap_to_bound)
    said = CLAIM.split(found.certificate)[0] if found.schedule else ""
    beside = found.schedule if space.beside else None
    inside = (
        beside is None or covers(space, beside, with_conversions(workload, found.conversions), arch) is None
    )
    text = certificate_text(gap_in_space_text(gap, inside), found.gap_to_bound, any_schedule(workload), space)
    return replace(found, optimality_gap=gap, certificate=said + text, space=space)


def _unfused_optimum(g: Graph) -> float:
    """Returns the objective value of the best unfused schedule, inf if an einsum does not fit."""
    own = [
        _single(g, i, dict.fromkeys((one.tensor for one in g.live_ranges), 0), g.live_ranges)[:1]
        for i in range(len(g.workload.einsums))
    ]
    energy, latency = (
        sum(option.energy if first else option.latency for rows in own for _, option, _ in rows)
        for first in (True, False)
    )
    return objective_value(g.objective, energy, latency) if all(own) else inf


def space(g: Graph) -> Space:
    """Returns the searched space: of segments, retained tensors and mappings."""
    rules = [mappings_of(g.nests.factors, g.arch, g.nests.constraints(e)) for e in g.workload.einsums]
    own = {encoded(one): one for one in (replace(one, layouts="all") if g.layouts else one for one in rules)}
    mappings = tuple(own[key] for key in sorted(own))
    if not g.levels:
        return Space(mappings)
    return Space(
        mappings,
        "given",
        fused=MAX_MEMBERS,
        shared_loops=MOST_LOOPS if g.several else 1,
        summed=g.several,
        shared_reads=g.several,
        depths=g.several,
        held=MAX_HELD,
        levels=tuple(level.name for level in g.levels),
        retained=tuple(one.tensor for one in g.live_ranges),
        copies=bool(g.layouts),
    )


def graph(
    arch: Arch,
    workload: Workload,
    objective: Objective,
    nests: Nests,
    layouts: Layouts | None = None,
    several: bool = False,
) -> Graph:
    """Returns the graph of fused schedules: possible segments and live ranges of tensors that may be
    retained.

    A tensor is left out where it fits no level, or where one of its einsums stands for several occurrences;
    at most MAX_RETAINED live ranges overlap (the longest and largest are dropped first). layouts None: plain
    ones. several: several shared loops are searched, where the machine lets them be bounded.
    """
    levels = fusing_levels(arch) if layouts or not arch.layout_sensitive() else ()
    made = {e.output.tensor: i for i, e in enumerate(workload.einsums)}
    times = counts(workload)
    readers: dict[str, list[int]] = {}
    for i, e in enumerate(workload.einsums):
        for t in {owner(p.tensor, made) for p in e.inputs} & set(made):
            readers.setdefault(t, []).append(i)
    alive = [
        one
        for t, own in readers.items()
        for one in [_live_range(t, [made[t], *own], arch, workload, made)]
        if any(one.bits <= (level.capacity_bits or inf) for level in levels)
        and all(times[i] == 1 for i in (made[t], *own))
    ]
    for i in range(len(workload.einsums)):
        while len(here := [one for one in alive if one.first <= i <= one.last]) > MAX_RETAINED:
            alive.remove(max(here, key=lambda one: (one.last - one.first, one.bits, one.tensor)))
    several = several and bool(levels) and all(searchable(arch, level) for level in levels)
    members = joined_segments(workload) if several else segments(workload) if levels else []
    return Graph(arch, workload, objective, nests, levels, made, members, alive, layouts, several)


def _live_range(
    t: str, users: Sequence[int], arch: Arch, workload: Workload, makers: dict[str, int]
) -> LiveRange:
    """Returns the live range of a tensor; a compressed tensor gets more bits than any level has."""
    p = workload.einsums[makers[t]].output
    dense = all(
        q.format == "dense"
        for i in users
        for q in workload.einsums[i].tensors()
        if owner(q.tensor, makers) == t
    )
    return LiveRange(
        t, users[0], max(users), p.stored_elems() * (p.bits or arch.word_bits) if dense else 1 << 62
    )


def factors(g: Graph, progress: ProgressFn = no_progress) -> GraphFactors | Infeasible:
    """Returns all factors of a graph, Infeasible if an einsum has neither a mapping nor a possible segment.

    progress: called twice per einsum, alone and as the first of segments. Their search times are unknown
    (0.0).
    """
    n, found = len(g.workload.einsums), GraphFactors()
    across = {i: [None, *(m for m in g.members if m.first <= i < m.last)] for i in range(n - 1)}
    across = {i: labels for i, labels in across.items() if len(labels) > 1}
    for i in range(n):
        progress(i, [0.0] * n, g.workload.einsums[i].name)
        near = [j for j in (i - 1, i) if j in across]
        kept = [one for one in g.live_ranges if one.first <= i <= one.last]
        rows: list[tuple[tuple[int, ...], Option | None, MakeSegment | None]] = []
        nodes = g.layouts.scope(i) if g.layouts else ()
        for own in product(range(len(g.levels) + 1), repeat=len(kept)):
            rows += [
                ((*[0] * len(near), *own, *at), option, make)
                for at, option, make in _single(
                    g, i, dict(zip((one.tensor for one in kept), own, strict=True)), kept
                )
            ]
        if not rows and not near:
            return Infeasible("the schedule", 1, 0, g.workload.einsums[i].name, "mappings")
        boundary_labels = [
            b
            for b in product(*(range(len(across[j])) for j in near))
            if any(b) and _labels_agree(i, {j: across[j][at] for j, at in zip(near, b, strict=True)})
        ]
        rows += [
            ((*b, *own, *[0] * len(nodes)), None, None)
            for b in boundary_labels
            for own in product(range(len(g.levels) + 1), repeat=len(kept))
        ]
        found.add(
            i,
            [*(f"border {j}" for j in near), *(RETAINED_NODE + one.tensor for one in kept), *nodes],
            rows,
            len(nodes),
        )
    for i, labels in across.items():
        if any(m and m.first == i for m in labels):
            progress(i, [0.0] * n, f"segments from {g.workload.einsums[i].name}")
            _add_segments(g, i, labels, found)
    return found


def _labels_agree(i: int, at: dict[int, Members | None]) -> bool:
    """True if the labels on both sides of einsum i agree: the same segment on both sides, or a segment that
    begins or ends with it on one side. at: segment (None: none) by the einsum left of a boundary.
    """
    left, right = at.get(i - 1), at.get(i)
    if left and right:
        return left is right
    return (left is not None and left.last == i) or (right is not None and right.first == i)


def _add_segments(g: Graph, i: int, labels: Sequence[Members | None], found: GraphFactors) -> None:
    """Adds the factor of the segments that begin with einsum i. labels: all segments that cross the boundary
    to its right.
    """
    starting = [(label, m) for label, m in enumerate(labels) if m and m.first == i]
    others = [label for label, m in enumerate(labels) if m is None or m.first < i]
    kept = [one for one in g.live_ranges if any(one.first <= m.last and one.last >= i for _, m in starting)]
    rows: list[tuple[tuple[int, ...], Option | None, MakeSegment | None]] = []
    for own in product(range(len(g.levels) + 1), repeat=len(kept)):
        rows += [((label, *own), None, None) for label in others]
        for label, m in starting:
            rows += [
                ((label, *own), *option)
                for option in _fused(g, m, dict(zip((one.tensor for one in kept), own, strict=True)), kept)
            ]
    found.add(i, [f"border {i}", *(RETAINED_NODE + one.tensor for one in kept)], rows)


def _retained(g: Graph, e: Einsum, labels: dict[str, int], v: int) -> frozenset[str]:
    """Returns the tensors of an einsum, as it names them, that are retained at level v of `g.levels`."""
    return frozenset(p.tensor for p in e.tensors() if labels.get(owner(p.tensor, g.makers)) == v + 1)


def _reservation(
    g: Graph, labels: dict[str, int], alive: Sequence[LiveRange], first: int, last: int
) -> tuple[int, float] | None:
    """Returns the level at which tensors are retained while einsums first to last run (-1: none are), and the
    bits that they leave free there. None: they do not fit, or stand at more than one level.
    """
    taken = [
        (labels[one.tensor] - 1, one.bits)
        for one in alive
        if labels[one.tensor] and one.first <= last and one.last >= first
    ]
    if not taken:
        return -1, inf
    v = taken[0][0]
    left = (g.levels[v].capacity_bits or inf) - sum(bits for _, bits in taken)
    return (v, left) if left >= 0 and all(u == v for u, _ in taken) else None


def _single(g: Graph, i: int, labels: dict[str, int], alive: Sequence[LiveRange]) -> list[Row]:
    """Returns the rows of an einsum alone in its segment, row-major first; empty if it does not fit."""
    key = (i, *(labels[one.tensor] for one in alive if one.first <= i <= one.last))
    if key not in g.single_rows:
        g.single_rows[key] = list(_alone(g, i, labels, alive))
    return g.single_rows[key]


def _alone(g: Graph, i: int, labels: dict[str, int], alive: Sequence[LiveRange]) -> Iterator[Row]:
    """Yields the rows of an einsum alone in its segment (`_single`)."""
    e, room = g.workload.einsums[i], _reservation(g, labels, alive, i, i)
    if room is None:
        return
    v, left = room
    place = Place(g.levels[v].name, retained=_retained(g, e, labels, v)) if v >= 0 else Place()
    if any(role(e, t) not in g.levels[v].may_keep for t in place.retained):
        return
    times, nodes = counts(g.workload)[i], g.layouts.scope(i) if g.layouts else ()
    nest = (
        Nest(g.layouts.pricings_of(i)[0].mapping, 0, g.layouts.lower_bound_of(i))
        if g.layouts and not place.level
        else g.nests.best(e, place, left)
    )
    if nest.mapping is None:
        if nest.lower_bound < inf:
            yield (
                (0,) * len(nodes),
                Option(inf, inf, times * nest.lower_bound, Plan("", (), (), (e,))),
                lambda: Segment(()),
            )
        return
    for at, energy, latency, own in _layout_rows(g, i, place, nest.mapping, left):
        plan = Plan(place.level, (), (), (e,), (own,))
        yield (
            at,
            Option(times * energy, times * latency, times * nest.lower_bound, plan),
            partial(_own_segment, e, own),
        )


def _own_segment(e: Einsum, nest: Mapping) -> Segment:
    return Segment((Branch(e.name, nest),))


def _layout_rows(g: Graph, i: int, place: Place, nest: Mapping, left: float) -> list[LayoutRow]:
    """Returns costs of an einsum alone while others' tensors are retained, one row per choice of layouts.

    With layouts, and if none of its own tensors is retained, all nests of `g.layouts` that fit into `left`
    bits are tried besides `nest`: different layouts have different best nests.
    """
    e = g.workload.einsums[i]
    key = (
        canonical_key(e),
        place.level,
        tuple(p.tensor in place.retained for p in e.tensors()),
        str(rename(nest, e)),
    )
    if not g.layouts:
        if key not in g.priced_alone:
            g.priced_alone[key] = price_alone(g.arch, e, g.objective, place, nest)
        return [
            (
                (),
                g.priced_alone[key].energy_pj,
                g.priced_alone[key].latency_cycles,
                retained_nest(nest, g.arch, place),
            )
        ]
    asked = (i, *key[1:], left)
    if asked not in g.layout_rows:
        pricings = (
            [
                layout_pricing(
                    Problem(g.arch, e, g.objective, retained_boundary(e, place)),
                    retained_nest(nest, g.arch, place),
                )
            ]
            if place.level
            else []
        )
        pricings += (
            [
                one
                for one in g.layouts.pricings_of(i)
                if own_bits(e, g.arch, place, one.mapping).get(place.level, 0) <= left
            ]
            if not place.retained
            else []
        )
        g.layout_rows[asked] = [
            (at, *row)
            for at, rows in g.layouts.in_labels(i, pricings, place.retained, place.level)
            for row in _undominated(rows, g.objective)
        ]
    return g.layout_rows[asked]


def _undominated(
    rows: Sequence[tuple[float, float, Mapping]], objective: Objective
) -> list[tuple[float, float, Mapping]]:
    """Returns the best row for energy or latency; all undominated rows for EDP."""
    ranked = sorted(rows, key=lambda row: (objective_value(objective, *row[:2]), row[0], row[1], str(row[2])))
    if objective != "edp":
        return ranked[:1]
    return [ranked[i] for i in undominated([row[:2] for row in ranked])]


def _fused(
    g: Graph, m: Members, labels: dict[str, int], alive: Sequence[LiveRange]
) -> Iterator[tuple[Option, MakeSegment]]:
    """Yields the best plans of a fused segment, by level, for given labels of retained tensors."""
    room = _reservation(g, labels, alive, m.first, m.last)
    if room is None or any(labels.get(t) for t in m.forwarded):
        return
    own = g.workload.einsums[m.first : m.last + 1]
    for v, level in enumerate(g.levels):
        if room[0] not in (-1, v) or any(
            role(e, t) not in level.may_keep for e in own for t in m.forwarded if t in _names(e)
        ):
            continue
        kept = [_retained(g, e, labels, v) for e in own]
        if any(role(e, t) not in level.may_keep for e, has in zip(own, kept, strict=True) for t in has):
            continue
        for option in _memo_plans(
            g, m, level, kept, min(room[1], level.capacity_bits or inf), _unfused_value(g, m, labels, alive)
        ):
            yield option, partial(_segment, g.arch, m, own, option.plan, kept)


def _unfused_value(g: Graph, m: Members, labels: dict[str, int], alive: Sequence[LiveRange]) -> float:
    """Returns the objective value of the members unfused, with the same tensors retained. A segment that
    costs more is never chosen. inf for EDP, which does not add up over einsums.
    """
    if g.objective == "edp":
        return inf
    own = labels | {one.tensor: labels.get(one.tensor, 0) for one in alive}
    total = 0.0
    for i in range(m.first, m.last + 1):
        single = _single(g, i, own, [one for one in alive if one.first <= i <= one.last])
        total += objective_value(g.objective, single[0][1].energy, single[0][1].latency) if single else inf
    return total


def _names(e: Einsum) -> set[str]:
    return {p.tensor for p in e.tensors()}


def _in_order(own: Sequence[Einsum]) -> list[str]:
    return list(dict.fromkeys(p.tensor for e in own for p in e.tensors()))


def _memo_plans(
    g: Graph,
    m: Members,
    level: Level,
    retained: Sequence[frozenset[str]],
    free_bits: float,
    unfused_value: float,
) -> list[Option]:
    """Returns the answer of `_best_plans`, or that of an earlier search of an equal segment. An earlier
    answer holds if it had at least as many free bits, its plans fit into `free_bits`, and it found a plan or
    had as high an `unfused_value`.
    """
    own = g.workload.einsums[m.first : m.last + 1]
    names = _in_order(own)
    members = tuple(
        (
            canonical_key(e),
            tuple(names.index(p.tensor) for p in e.tensors()),
            tuple(owner(p.tensor, g.makers) == p.tensor for p in e.tensors()),
            tuple(p.tensor in has for p in e.tensors()),
        )
        for e, has in zip(own, retained, strict=True)
    )
    known = g.options.setdefault((members, tuple(t in m.spilled for t in m.forwarded), level.name), [])
    for asked, limit, found in known:
        fits = max((option.need for option in found), default=0) <= free_bits <= asked
        if fits and (unfused_value <= limit or any(option.energy < inf for option in found)):
            return found
    found = _best_plans(g, m, own, level, retained, free_bits, unfused_value)
    known.append((free_bits, unfused_value, found))
    return found


def _best_plans(
    g: Graph,
    m: Members,
    own: Sequence[Einsum],
    level: Level,
    retained: Sequence[frozenset[str]],
    free_bits: float,
    unfused_value: float,
) -> list[Option]:
    """Returns the best plan of a segment; for EDP the undominated ones among those that were priced.

    unfused_value: cost of the einsums unfused; plans that cost more are left out
    """
    found, floor = list[Option](), inf
    numbers = [number for number, ranks in enumerate(m.loops) if ranks in m.axes]
    if m.classes:
        found, floor = _several_loops(g, m, own, level, retained, free_bits, unfused_value)
        unfused_value = min(
            [unfused_value, *(objective_value(g.objective, one.energy, one.latency) for one in found)]
        )
        if floor >= unfused_value * (1 - PRECISE):  # of loops over classes none is better
            numbers = [number for number in numbers if number >= len(m.classes)]
    if numbers:
        more, least = _one_loop(g, m, numbers, own, level, retained, free_bits, unfused_value)
        found, floor = [*found, *more], min(floor, least)
    if not found:
        return [Option(inf, inf, floor, Plan(level.name, (), (), tuple(own)))] if floor < inf else []
    if g.objective != "edp":
        found = sorted(
            found,
            key=lambda one: (objective_value(g.objective, one.energy, one.latency), one.energy, one.latency),
        )[:1]
    return [
        replace(one, lower_bound=min(floor, _additive_value(g, one)))
        for one in found
        if not any(
            (b.energy, b.latency) != (one.energy, one.latency)
            and b.energy <= one.energy
            and b.latency <= one.latency
            for b in found
        )
    ]


def _several_loops(
    g: Graph,
    m: Members,
    own: Sequence[Einsum],
    level: Level,
    retained: Sequence[frozenset[str]],
    free_bits: float,
    bar: float,
) -> tuple[list[Option], float]:
    """Returns plans with loops over classes of ranks that were priced (`shared_loops.search`), and the lower
    bound of all that cost less than `bar`.
    """
    found: list[Option] = []

    def price(plan: Plan, need: int) -> float:
        option = _price(g, m, own, plan, retained, need)
        if option is None:
            return inf
        found.append(option)
        return option.energy

    s = SegmentSearch(g.nests, level, own, m, retained, free_bits, g.makers.keys())
    floor = search(s, bar, price)
    return [one for one in found if one.energy < bar], floor


def _one_loop(
    g: Graph,
    m: Members,
    numbers: Sequence[int],
    own: Sequence[Einsum],
    level: Level,
    retained: Sequence[frozenset[str]],
    free_bits: float,
    bar: float,
) -> tuple[list[Option], float]:
    """Returns plans with one loop, and the lower bound of all that cost less than `bar`: the best plan; for
    EDP the first EVALUATED. numbers: indices of the loops into `m.loops`.

    Plans are solved in order of their lower bounds, until the next bound reaches the best cost found or
    `bar`.
    """
    ranked = g.objective != "edp"
    names, known = [_names(e) for e in own], dict[tuple[object, ...], tuple[Place, float]]()

    def bounded(plan: Plan) -> list[tuple[Place, float]]:
        """Returns the place of each member, and a lower bound of its nests there. They are shared by plans
        that hold the same tensors of a member.
        """
        found = []
        for j, e in enumerate(own):
            key = (j, plan.loops, *(t for t, _ in plan.at if t in names[j]))
            if key not in known:
                place = _place(m, j, e, plan, retained[j])
                known[key] = place, g.nests.lower_bound(e, place)
            found.append(known[key])
        return found

    left = [
        (sum(bound for _, bound in bounded(plan)), number, plan, bits)
        for number, (plan, bits) in enumerate(_plans(g, m, numbers, own, level, retained, free_bits))
    ]
    heapq.heapify(left)
    found: list[Option] = []
    asked: list[tuple[float, int, list[Place], list[float], list[Nest]]] = []
    best = bar
    while left and left[0][0] < best and (ranked or len(found) < EVALUATED):
        _, number, plan, bits = heapq.heappop(left)
        places, bounds = (list(each) for each in zip(*bounded(plan), strict=True))
        nests, floors = _nests(g, own, places, free_bits - bits, best, bounds)
        if sum(floors) >= best:
            continue
        asked.append((sum(floors), number, places, floors, nests))
        whole = replace(plan, nests=tuple(nest.mapping for nest in nests if nest.mapping))
        if len(whole.nests) == len(own) and (
            option := _price(g, m, own, whole, retained, bits + max(nest.bits for nest in nests))
        ):
            found.append(option)
            best = min(best, objective_value(g.objective, option.energy, option.latency)) if ranked else best
    floor = min(
        [
            _lower_bound(g, own, asked, best if found else inf),
            *(one[0] for one in left[:1] if not ranked or one[0] < best),
        ]
    )
    return found, floor


def _lower_bound(
    g: Graph,
    own: Sequence[Einsum],
    plans: list[tuple[float, int, list[Place], list[float], list[Nest]]],
    best: float,
) -> float:
    """Returns the lowest lower bound of plans. Bounds below `best` are tightened by
    `Nests.padding_extra_bound`.
    """
    heapq.heapify(plans)
    while plans and plans[0][4] and plans[0][0] < best:
        _, number, places, floors, nests = plans[0]
        closer = [
            max(floor, nest.lower_bound + g.nests.padding_extra_bound(e, place))
            for e, place, floor, nest in zip(own, places, floors, nests, strict=True)
        ]
        heapq.heapreplace(plans, (sum(closer), number, places, closer, []))
    return plans[0][0] if plans else inf


def _nests(
    g: Graph,
    own: Sequence[Einsum],
    places: Sequence[Place],
    free_bits: float,
    best: float,
    bounds: Sequence[float],
) -> tuple[list[Nest], list[float]]:
    """Returns the nests of a plan and their lower bounds. Stops as soon as the bounds sum up to `best`."""
    found: list[Nest] = []
    floors = [
        max(bound, g.nests.cached_bound(e, place, free_bits))
        for e, place, bound in zip(own, places, bounds, strict=True)
    ]
    for j, (e, place) in enumerate(zip(own, places, strict=True)):
        if sum(floors) >= best:
            break
        found.append(g.nests.best(e, place, free_bits))
        floors[j] = max(floors[j], found[-1].lower_bound)
    return found, floors


def _additive_value(g: Graph, one: Option) -> float:
    value = objective_value(g.objective, one.energy, one.latency)
    return sqrt(value) if g.objective == "edp" else value


def _plans(
    g: Graph,
    m: Members,
    numbers: Sequence[int],
    own: Sequence[Einsum],
    level: Level,
    retained: Sequence[frozenset[str]],
    free_bits: float,
) -> Iterator[tuple[Plan, int]]:
    """Yields plans without nests: a shared loop, its tile, and which of the tensors that the loop does not
    cut are held whole; with the bits of forwarded tiles and held tensors, which must fit into `free_bits`.
    """
    names = [t for e in own for t in sorted(_names(e))]
    for number, axis in ((number, m.loops[number]) for number in numbers):
        may = sorted(
            (-tile_bits(p, e.sizes(), g.arch.word_bits), p.tensor)
            for e, rank, has in zip(own, axis, retained, strict=True)
            for p in e.tensors()
            if p.tensor not in m.forwarded
            and p.tensor not in has
            and rank not in p.ranks()
            and names.count(p.tensor) == 1
            and role(e, p.tensor) in level.may_keep
        )[:MAX_HELD]
        n = own[0].sizes()[axis[0]]
        for tile in (t for t in range(1, n) if n % t == 0):
            tiles = sum(
                tile_bits(e.output, e.sizes() | {rank: tile}, g.arch.word_bits)
                for e, rank in zip(own, axis, strict=True)
                if e.output.tensor in m.forwarded
            ) * (2 if level.double_buffer else 1)
            for held in (held for many in range(len(may) + 1) for held in combinations(may, many)):
                if (bits := tiles - sum(size for size, _ in held)) <= free_bits:
                    whole = tuple((t, 0) for _, t in held)
                    yield Plan(level.name, ((number, tile),), whole, tuple(own)), bits


def _place(m: Members, j: int, e: Einsum, plan: Plan, retained: frozenset[str]) -> Place:
    """Returns the place of member j under a plan with one loop."""
    held = frozenset(t for t, _ in plan.at)
    return Place(
        plan.level,
        tuple((m.loops[number][j], tile) for number, tile in plan.loops),
        frozenset(m.forwarded) & _names(e),
        held & _names(e),
        retained,
        m.spilled & {e.output.tensor},
    )


def _segment(
    arch: Arch, m: Members, own: Sequence[Einsum], plan: Plan, retained: Sequence[frozenset[str]]
) -> Segment:
    """Returns the segment of a plan for einsums `own`, which are equal to `plan.like` but for names."""
    outer, loops = arch.levels[0].name, [(m.loops[number], tile) for number, tile in plan.loops]
    names = dict(zip(_in_order(plan.like), _in_order(own), strict=True))
    nodes: list[Loop | Store] = [Store(outer, t) for t in m.forwarded if t in m.spilled]
    nodes += [Store(outer, names[t]) for t, _ in plan.at]
    for depth in range(len(loops) + 1):
        nodes += [Store(plan.level, names[t]) for t, own_depth in plan.at if own_depth == depth]
        nodes += [Loop(ranks[0], tile) for ranks, tile in loops[depth : depth + 1]]
    nodes += [Store(plan.level, t) for t in m.forwarded]
    branches = [
        Branch(
            e.name,
            retained_nest(rename(nest, like, e), arch, Place(plan.level, retained=has)),
            tuple(sorted((ranks[0], ranks[j]) for ranks, _ in loops if ranks[j] != ranks[0])),
        )
        for j, (e, has, nest, like) in enumerate(zip(own, retained, plan.nests, plan.like, strict=True))
    ]
    return Segment(tuple(branches), tuple(nodes))


def _price(
    g: Graph, m: Members, own: Sequence[Einsum], plan: Plan, retained: Sequence[frozenset[str]], need: int
) -> Option | None:
    """Returns the evaluator's price of a segment, None if it does not fit or a nest was not found."""
    g.plans += 1
    if len(plan.nests) < len(own):
        return None
    (members,) = placed.placed(
        g.arch, Workload("", tuple(own)), Schedule((_segment(g.arch, m, own, plan, retained),))
    )
    energy = latency = 0.0
    for one, has in zip(members, retained, strict=True):
        retained_here = tuple(
            (p.tensor, plan.level, Fraction(1)) for p in one.einsum.tensors() if p.tensor in has
        )
        cost = einsum_cost(
            Problem(g.arch, one.einsum, g.objective, replace(one.boundary, retained=retained_here)), one.nest
        )
        if not isinstance(cost, EinsumCost):
            return None
        energy, latency = energy + cost.energy_pj, latency + cost.latency_cycles
    return Option(energy, latency, inf, plan, need)


def schedule(g: Graph, found: GraphFactors, best: Choice) -> Schedule:
    """Returns the schedule of the rows that were chosen."""
    made = {
        first: make()
        for (first, rows), pick in zip(found.rows, best.rows[: len(found.rows)], strict=True)
        if (make := rows[pick])
    }
    labels = {
        node.removeprefix(RETAINED_NODE): label
        for node, label in best.labels.items()
        if node.startswith(RETAINED_NODE) and label
    }
    keeps = sorted((g.levels[label - 1].name, t) for t, label in labels.items())
    return Schedule(
        tuple(made[first] for first in sorted(made)),
        tuple(Retained(level, t, Fraction(1)) for level, t in keeps),
    )
