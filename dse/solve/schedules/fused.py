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
                                            dse/solve/schedules/segment_plans.py), split over cores where no
                                            level stands outside of them (cores.py); tensors of fused
                                            einsums are row-major
    tensor                                  copies into other layouts

Segments, plans and retained tensors are chosen together by `dse/solve/elimination.py`, which is exact. The
remaining optimality gap is that of the nests. The idea is that of FFM (arXiv 2602.15166), whose pmappings are
such labels.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from itertools import product
from math import inf, prod, sqrt
from typing import NamedTuple

from dse.mapper.exact.layout_aware import layout_pricing
from dse.mapping.constraints import Constraints, Factors, Limit
from dse.mapping.conversion import with_conversions
from dse.mapping.nest import Infeasible, Loop, Mapping, Store, role
from dse.mapping.schedule import Branch, Retained, Schedule, Segment, rename
from dse.mapping.searched import Space, covers, encoded, mappings_of
from dse.run import deadline, doing
from dse.sim.counts.counts import Violated
from dse.sim.einsum.evaluate import (
    ROUNDING_GAP,
    EinsumCost,
    Problem,
    ProgressFn,
    Solution,
    certificate_text,
    gap_in_space_text,
    no_progress,
    objective_value,
    relative_gap,
)
from dse.sim.fronts import Objective, undominated
from dse.sim.schedule import placed
from dse.sim.schedule.faults import broken_rules
from dse.sim.schedule.graph import any_schedule, evaluate
from dse.solve.elimination import Choice, Table, join, table
from dse.solve.layouts.layouts import Layouts, Rule
from dse.solve.schedules.cores import Core, all_cores
from dse.solve.schedules.fusible_segments import (
    MAX_MEMBERS,
    Members,
    Split,
    agreeing_labels,
    array_of_cores,
    fusing_levels,
    joined_segments,
    one_core,
    segments,
    splits,
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
from dse.solve.schedules.plan import FusedSegment, Option, Plan, plan_segment
from dse.solve.schedules.segment_plans import MAX_HELD, SegmentPlans
from dse.solve.schedules.shared_loops import MAX_LOOPS, searchable
from hw.arch import Arch, Fanout, Level
from workloads.einsum import Einsum, canonical_key
from workloads.graph import Workload, base_tensor, counts

# Limits of the search. Rows of a table grow as (levels + 1) ^ (tensors that may be retained), plans of a
# segment as 2 ^ (tensors that it may hold whole, at most MAX_HELD).
MAX_RETAINED = 6  # tensors that may be retained at one time
LEAST_ENERGY = "the fused schedule of least energy"  # as certificates of other objectives name it
RETAINED_NODE = "keep "  # prefix of the node of a tensor in tables


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
    array: Fanout | None  # over whose PEs (cores) fused segments are split; then `levels` is ()
    makers: dict[str, int]  # position of the einsum that makes a tensor
    members: list[Members]  # segments that may be fused
    live_ranges: list[LiveRange]  # tensors that may be retained
    layouts: Layouts | None = None  # None: plain layouts
    several_loops: bool = False  # several shared loops are searched
    is_cut: bool = False  # a deadline has passed, and what was left was not searched
    cut_segments: set[Members] = field(default_factory=set)  # those of `members` not searched for all labels
    plans: SegmentPlans = field(default_factory=SegmentPlans)  # of fused segments
    cores: dict[int, Core] = field(default_factory=dict)  # by number of cores in use
    # by first and last einsum of a segment: the tensors that may be retained meanwhile, and the least
    # objective value found by their labels
    fused_values: dict[tuple[int, int], tuple[list[str], dict[tuple[int, ...], float]]] = field(
        default_factory=dict
    )
    priced_alone: dict[tuple[object, ...], EinsumCost] = field(default_factory=dict)  # memo of `_layout_rows`
    single_rows: dict[tuple[int, ...], list[Row]] = field(default_factory=dict)  # memo of `_single`
    layout_rows: dict[tuple[object, ...], list[LayoutRow]] = field(default_factory=dict)  # the same, layouts


MakeSegment = Callable[[], Segment]


class LayoutRow(NamedTuple):
    """An einsum alone in some layouts."""

    labels: tuple[int, ...]  # of the layouts of the tensors that it shares
    energy: float
    latency: float
    nest: Mapping  # in these layouts


class Row(NamedTuple):
    """A row of a factor."""

    # one per node of the factor; in rows of `_single` those of the layouts alone (`factor_tables` prepends
    # the others)
    labels: tuple[int, ...]
    option: Option | None  # None: it costs nothing here
    # returns its segment; None: the einsum runs in a segment of another factor, or none begins here
    make: MakeSegment | None


class Reserved(NamedTuple):
    """What retained tensors take while some einsums run."""

    level_index: int  # of the level that they stand at, in Graph.levels; -1: none is retained
    free_bits: float  # what they leave there


@dataclass(slots=True)
class GraphFactors:
    """The factors of a graph."""

    tables: list[Table] = field(default_factory=list)  # costs of options that were found
    lower_bounds: list[Table] = field(default_factory=list)  # lower bounds of options that may exist
    # per table: its first einsum, and for each row a function that returns its segment (None: the einsum runs
    # in a segment of another table, or no segment begins here)
    rows: list[tuple[int, list[MakeSegment | None]]] = field(default_factory=list)

    def add(self, first: int, scope: Sequence[str], options: Sequence[Row], layout_nodes: int = 0) -> None:
        """Adds a factor. An option that may exist but was not found (energy inf) enters the lower bounds
        alone.

        layout_nodes: number of nodes at the end of the scope that are layouts. Lower bounds hold in all
            layouts, so their table leaves these nodes out.
        """
        solved, other_nodes = (
            [row for row in options if row.option is None or row.option.energy < inf],
            len(scope) - layout_nodes,
        )
        self.tables.append(
            table(scope, [(at, (o.energy, o.latency) if o else (0.0, 0.0)) for at, o, _ in solved])
        )
        bounds_by_label: dict[tuple[int, ...], float] = {}
        for at, o, _ in options:
            bounds_by_label[at[:other_nodes]] = min(
                bounds_by_label.get(at[:other_nodes], inf), o.lower_bound if o else 0.0
            )
        self.lower_bounds.append(
            table(
                scope[:other_nodes], [(at, (lower_bound, 0.0)) for at, lower_bound in bounds_by_label.items()]
            )
        )
        self.rows.append((first, [make for _, _, make in solved]))


def fused(
    arch: Arch,
    workload: Workload,
    objective: Objective,
    factors: Factors,
    constraints: Callable[[Einsum], Constraints],
    allowed_gap: float = 0.0,
    layouts: Callable[[Objective], Layouts | Infeasible | None] = lambda _: None,
    progress: ProgressFn = no_progress,
    several_loops: bool = True,
    completed: Callable[[Solution], Solution | None] = lambda _: None,
) -> Solution | Infeasible:
    """Returns the best schedule with fused segments and retained tensors. Its optimality gap is to the
    optimum of this space, in any layouts.

    EDP takes the best among the schedules found for EDP, energy and latency. Its lower bound is the minimum
    energy times the minimum latency, or the square of the sum of sqrt(energy x latency) bounds, whichever is
    larger.

    layouts: returns the layouts to choose from by objective, or None on machines where all cost the same.
    several_loops: for energy, segments have several shared loops (dse/solve/schedules/shared_loops.py). For
        other objectives the schedule of least energy with several loops stands beside those of one loop.
    completed: returns a schedule with shares of more tensors retained, if there is one. The best schedule is
        the one that costs least with them: after a search that was cut that may be every einsum by itself.
    """

    limits = {e.name: constraints(e).limits for e in workload.einsums}

    def best(goal: Objective, several: bool) -> tuple[list[Solution], float, Graph] | Infeasible:
        chosen = layouts(goal)
        if isinstance(chosen, Infeasible):
            return chosen
        nests = Nests(arch, goal, factors, constraints, allowed_gap, limits=limits)
        return _best_schedules(graph(arch, workload, goal, nests, chosen, several), objective, progress)

    answer = best(objective, several_loops and objective == "energy")
    if isinstance(answer, Infeasible):
        return answer
    priced, lower_bound, g = answer
    if objective == "edp":
        other_goals: tuple[Objective, ...] = ("energy", "latency")
        extremes = [end for goal in other_goals if isinstance(end := best(goal, several=False), tuple)]
        priced += [one for end in extremes for one in end[0]]
        lower_bound = max(
            lower_bound * lower_bound, prod(end[1] for end in extremes) if len(extremes) == 2 else 0.0
        )
    searched = space(g)
    if objective != "energy" and several_loops and not g.layouts:
        least = best("energy", several=True)
        if isinstance(least, tuple) and least[2].several_loops:
            priced += least[0]
            searched = replace(searched, beside=(LEAST_ENERGY,))
    if not priced:
        return Infeasible("the schedule", 1, 0, workload.name, "schedules")

    def cost(one: Solution) -> tuple[float, float]:
        return objective_value(objective, one.energy_pj, one.latency_cycles), one.energy_pj

    cheapest = min(priced, key=cost)
    unfused, turns = _unfused(g)
    if g.is_cut and unfused < inf and not g.layouts:
        alone = evaluate(arch, workload, turns, objective, reuse=True)
        others = [replace(alone, schedule=turns)] if isinstance(alone, Solution) else []
        cheapest = min(cheapest, *others, key=lambda one: cost(completed(one) or one))
    value = cost(cheapest)[0]
    gap = relative_gap(value, lower_bound)
    return with_certificate(
        replace(
            cheapest,
            saved=1 - value / unfused if unfused else 0.0,
            left_out=f"limits.seconds ended before {len(g.cut_segments)} of {len(g.members)} segments were "
            "searched"
            if g.cut_segments
            else "",
        ),
        gap if gap > ROUNDING_GAP else 0.0,
        searched,
        arch,
        workload,
    )


def _best_schedules(
    g: Graph, objective: Objective, progress: ProgressFn = no_progress
) -> tuple[list[Solution], float, Graph] | Infeasible:
    """Returns the best schedules of the graph, priced for `objective`; a lower bound of all its schedules
    (energy or cycles; for EDP the sum of sqrt(energy x cycles) over einsums, whose square bounds the EDP);
    and the graph.

    With layouts there are up to two schedules, the second without copies between layouts. Copies run between
    segments, where retained tensors may leave too little capacity for them.
    """
    graph_factors = factor_tables(g, progress)
    if isinstance(graph_factors, Infeasible):
        return graph_factors
    feasible, priced = False, list[Solution]()
    has_rules = any(g.nests.limits.values())
    for choice in _choices(g, graph_factors.tables):
        feasible, value = True, objective_value(g.objective, choice.energy, choice.latency)
        workload, copies, nests = (
            g.layouts.copies(choice, value, graph_factors.tables) if g.layouts else (g.workload, (), {})
        )
        full_schedule = with_copies(schedule_of(g, graph_factors, choice), g.workload, workload, nests)
        solved = evaluate(g.arch, workload, full_schedule, objective, reuse=True)
        if has_rules and (lines := broken_rules(g.arch, workload, full_schedule, g.nests.rules)[0]):
            raise Violated(f"{workload.name} on {g.arch.name}: {lines[0]}, in\n{full_schedule}")
        if isinstance(solved, Solution):
            priced.append(
                replace(solved, schedule=full_schedule, conversions=copies) if g.layouts else solved
            )
        if not copies:
            break
    if not feasible:
        why = (g.nests.why_none(e) for e in g.workload.einsums)
        return next(filter(None, why), Infeasible("the schedule", 1, 0, g.workload.name, "schedules"))
    return priced, 0.0 if g.is_cut else join(graph_factors.lower_bounds).lower_bound, g


def _choices(g: Graph, tables: Sequence[Table]) -> Iterator[Choice]:
    """Yields the cheapest choice of labels; with layouts also the cheapest one without copies."""
    if not g.layouts:
        yield from join(tables, ranking=g.objective).choices[:1]
        return
    all_labels = next(g.layouts.rules("alt")).allowed
    reader_nodes = frozenset(use.node for one in g.layouts.interface for use in one.readers)
    # nodes that must have the label of the tensor's maker: none, or all of them (no copies)
    for like_maker in (frozenset[str](), reader_nodes):
        _, _, choice, _ = g.layouts.minimum(Rule(all_labels, like_maker), tables)
        if choice:
            yield choice


def with_copies(plain: Schedule, before: Workload, workload: Workload, nests: dict[str, Mapping]) -> Schedule:
    """Returns a schedule with copies between layouts added, each in a segment of its own after the segment
    that makes the copied tensor.

    plain: schedule of `before`, the workload without copies; nests: of the copies, by name in `workload`.
    """
    einsums_before, einsums_after = {e.name: e for e in before.einsums}, {e.name: e for e in workload.einsums}
    copies_after: dict[str, list[str]] = {}
    for name in nests:
        copies_after.setdefault(einsums_after[name].inputs[0].tensor, []).append(name)
    segments = list[Segment]()
    for segment in plain.segments:
        new_names = {
            p.tensor: q.tensor
            for one in segment.branches
            for p, q in zip(
                einsums_before[one.einsum].tensors(), einsums_after[one.einsum].tensors(), strict=True
            )
        }
        nodes = tuple(
            replace(node, tensor=new_names.get(node.tensor, node.tensor)) if isinstance(node, Store) else node
            for node in segment.nodes
        )
        branches = tuple(
            replace(one, mapping=rename(one.mapping, einsums_before[one.einsum], einsums_after[one.einsum]))
            for one in segment.branches
        )
        segments += [replace(segment, nodes=nodes, branches=branches)]
        segments += [
            Segment((Branch(name, nests[name]),))
            for one in segment.branches
            for name in copies_after.get(einsums_before[one.einsum].output.tensor, ())
        ]
    return replace(plain, segments=tuple(segments))


# begins the part of a certificate that states the gap
CLAIM = re.compile(
    r"not proven|optimal in the searched space|no schedule of the searched space|at most [\d.,]+ %"
)


def with_certificate(
    solution: Solution, gap: float, space: Space, arch: Arch, workload: Workload, is_inside: bool = False
) -> Solution:
    """Returns a solution with optimality gap and certificate. space: the searched space to which the gap
    refers. The solution may lie outside of it, if it is that of one of the other solvers whose answers were
    compared (their names: `space.beside`). is_inside: it is known to be of that space.
    """
    gap = min(gap, solution.gap_to_bound)
    assumptions = CLAIM.split(solution.certificate)[0] if solution.schedule else ""
    to_check = solution.schedule if space.beside and not is_inside else None
    inside = (
        to_check is None
        or covers(space, to_check, with_conversions(workload, solution.conversions), arch) is None
    )
    text = certificate_text(
        gap_in_space_text(gap, inside), solution.gap_to_bound, any_schedule(workload), space
    )
    return replace(solution, optimality_gap=gap, certificate=assumptions + text, space=space)


def _unfused(g: Graph) -> tuple[float, Schedule]:
    """Returns the objective value of the best unfused schedule with row-major tensors between einsums, and
    the schedule; inf if an einsum does not fit.
    """
    nothing_retained = dict.fromkeys((one.tensor for one in g.live_ranges), 0)
    rows_of = [_single(g, i, nothing_retained, g.live_ranges) for i in range(len(g.workload.einsums))]
    found = [(rows[0].option, rows[0].make) for rows in rows_of if rows]
    energy = sum(option.energy for option, _ in found if option)
    latency = sum(option.latency for option, _ in found if option)
    return (
        objective_value(g.objective, energy, latency) if all(rows_of) else inf,
        Schedule(tuple(make() for _, make in found if make)),
    )


def space(g: Graph) -> Space:
    """Returns the searched space: of segments, retained tensors and mappings."""
    rules = [mappings_of(g.nests.factors, g.arch, g.nests.constraints(e)) for e in g.workload.einsums]
    own = {encoded(one): one for one in (replace(one, layouts="all") if g.layouts else one for one in rules)}
    mappings = tuple(own[key] for key in sorted(own))
    levels = fusing_levels(one_core(g.arch, 1)) if g.array else g.levels
    if not levels:
        return Space(mappings)
    return Space(
        mappings,
        "given",
        fused=MAX_MEMBERS,
        shared_loops=MAX_LOOPS if g.several_loops else 1,
        summed=g.several_loops,
        shared_reads=g.several_loops,
        depths=g.several_loops,
        uneven=g.several_loops,
        padded=True,
        held=MAX_HELD,
        levels=tuple(level.name for level in levels),
        split=g.array.name if g.array else "",
        retained=tuple(one.tensor for one in g.live_ranges),
        copies=bool(g.layouts),
    )


def graph(
    arch: Arch,
    workload: Workload,
    objective: Objective,
    nests: Nests,
    layouts: Layouts | None = None,
    several_loops: bool = False,
) -> Graph:
    """Returns the graph of fused schedules: possible segments and live ranges of tensors that may be
    retained.

    A tensor is left out where it fits no level, or where one of its einsums stands for several occurrences;
    at most MAX_RETAINED live ranges overlap (the longest and largest are dropped first). layouts None: plain
    ones. several_loops: several shared loops are searched, if lower bounds of that search hold on the machine
    (`shared_loops.searchable`: no level further out is cheaper to access).
    """
    levels = fusing_levels(arch) if layouts or not arch.models_layout() else ()
    array = array_of_cores(arch)
    makers = {e.output.tensor: i for i, e in enumerate(workload.einsums)}
    occurrences = counts(workload)
    readers: dict[str, list[int]] = {}
    for i, e in enumerate(workload.einsums):
        for t in {base_tensor(p.tensor, makers) for p in e.inputs} & set(makers):
            readers.setdefault(t, []).append(i)
    alive = [
        one
        for t, reader_indices in readers.items()
        for one in [_live_range(t, [makers[t], *reader_indices], arch, workload, makers)]
        if any(one.bits <= (level.capacity_bits or inf) for level in levels)
        and all(occurrences[i] == 1 for i in (makers[t], *reader_indices))
    ]
    for i in range(len(workload.einsums)):
        while len(overlapping := [one for one in alive if one.first <= i <= one.last]) > MAX_RETAINED:
            alive.remove(max(overlapping, key=lambda one: (one.last - one.first, one.bits, one.tensor)))
    machine = one_core(arch, 1) if array else arch
    forwarding = fusing_levels(machine) if array else levels
    several_loops = several_loops and bool(forwarding) and all(searchable(machine, one) for one in forwarding)
    members = joined_segments(workload) if several_loops else segments(workload) if forwarding else []
    return Graph(
        arch, workload, objective, nests, levels, array, makers, members, alive, layouts, several_loops
    )


def _live_range(
    t: str, users: Sequence[int], arch: Arch, workload: Workload, makers: dict[str, int]
) -> LiveRange:
    """Returns the live range of a tensor. A compressed one is never retained: its bits exceed any level.

    users: positions of its maker and its readers.
    """
    p = workload.einsums[makers[t]].output
    dense = all(
        q.format == "dense"
        for i in users
        for q in workload.einsums[i].tensors()
        if base_tensor(q.tensor, makers) == t
    )
    return LiveRange(
        t, users[0], max(users), p.stored_elems() * (p.bits or arch.word_bits) if dense else 1 << 62
    )


def factor_tables(g: Graph, progress: ProgressFn = no_progress) -> GraphFactors | Infeasible:
    """Returns all factors of a graph, Infeasible if an einsum has neither a mapping nor a possible segment.

    progress: called twice per einsum, alone and as the first of segments. Their search times are unknown
    (0.0).
    """
    n, graph_factors = len(g.workload.einsums), GraphFactors()
    # boundary (position of the einsum left of it) -> its labels: none, or a segment that crosses it
    segments_by_boundary = {i: [None, *(m for m in g.members if m.first <= i < m.last)] for i in range(n - 1)}
    segments_by_boundary = {i: labels for i, labels in segments_by_boundary.items() if len(labels) > 1}
    for i in range(n):  # half of the time for mappings of einsums without retained tensors
        doing.say_einsum(i, [0.0] * n, g.workload.einsums[i].name)
        with deadline.part(2 * (n - i)):
            _single(g, i, dict.fromkeys((one.tensor for one in g.live_ranges), 0), g.live_ranges)
    for i in range(n):
        progress(i, [0.0] * n, g.workload.einsums[i].name)
        boundaries = [j for j in (i - 1, i) if j in segments_by_boundary]
        live = [one for one in g.live_ranges if one.first <= i <= one.last]
        rows: list[Row] = []
        nodes = g.layouts.scope(i) if g.layouts else ()
        for live_labels in product(range(len(g.levels) + 1), repeat=len(live)):
            rows += [
                Row((*[0] * len(boundaries), *live_labels, *at), option, make)
                for at, option, make in _single(
                    g, i, dict(zip((one.tensor for one in live), live_labels, strict=True)), live
                )
            ]
        if not rows and not boundaries:
            e = g.workload.einsums[i]
            return g.nests.why_none(e) or Infeasible("the schedule", 1, 0, e.name, "mappings")
        left, right = (segments_by_boundary.get(j, [None]) for j in (i - 1, i))
        boundary_labels = [
            tuple(at for j, at in zip((i - 1, i), pair, strict=True) if j in boundaries)
            for pair in agreeing_labels(i, left, right)
        ]
        rows += [
            Row((*b, *live_labels, *[0] * len(nodes)), None, None)
            for b in boundary_labels
            for live_labels in product(range(len(g.levels) + 1), repeat=len(live))
        ]
        graph_factors.add(
            i,
            [*(f"border {j}" for j in boundaries), *(RETAINED_NODE + one.tensor for one in live), *nodes],
            rows,
            len(nodes),
        )
    begins = [i for i, labels in segments_by_boundary.items() if any(m and m.first == i for m in labels)]
    found: dict[int, tuple[list[LiveRange], list[Row]]] = {}
    for done, i in enumerate(reversed(begins)):  # parts of a segment before it (`_apart`)
        progress(done, [0.0] * n, f"segments from {g.workload.einsums[i].name}")
        with deadline.part(len(begins) - done):
            found[i] = _segment_rows(g, i, segments_by_boundary[i])
    for i in begins:
        live, rows = found[i]
        graph_factors.add(i, [f"border {i}", *(RETAINED_NODE + one.tensor for one in live)], rows)
    return graph_factors


def _segment_rows(g: Graph, i: int, labels: Sequence[Members | None]) -> tuple[list[LiveRange], list[Row]]:
    """Returns the rows of the segments that begin with einsum i, and the tensors whose labels they have after
    that of the boundary. labels: all segments that cross the boundary to its right.
    """
    starting = [(label, m) for label, m in enumerate(labels) if m and m.first == i]
    other_labels = [label for label, m in enumerate(labels) if m is None or m.first < i]
    live = [one for one in g.live_ranges if any(one.first <= m.last and one.last >= i for _, m in starting)]
    rows: list[Row] = []
    for live_labels in product(range(len(g.levels) + 1), repeat=len(live)):
        rows += [Row((label, *live_labels), None, None) for label in other_labels]
        for label, m in starting:
            rows += [
                Row((label, *live_labels), option, make)
                for option, make in _fused(
                    g, m, dict(zip((one.tensor for one in live), live_labels, strict=True)), live
                )
            ]
    return live, rows


def _retained(g: Graph, e: Einsum, labels: dict[str, int], v: int) -> frozenset[str]:
    """Returns the tensors of an einsum, as it names them, that are retained at level v of `g.levels`."""
    return frozenset(p.tensor for p in e.tensors() if labels.get(base_tensor(p.tensor, g.makers)) == v + 1)


def _reservation(
    g: Graph,
    labels: dict[str, int],
    alive: Sequence[LiveRange],
    first: int,
    last: int,
    overwritten: Collection[tuple[str, str]],
) -> Reserved | None:
    """Returns what tensors take that are retained while einsums first to last run. None: they do not fit, or
    stand at more than one level.

    labels: of retained tensors (0: not retained)
    overwritten: retained tensors (old, new), of which the new one may take the place of the old one
    """
    bits = {t: one.bits for t, one in _meanwhile(labels, alive, first, last).items()}
    if not bits:
        return Reserved(-1, inf)
    level_index = labels[next(iter(bits))] - 1
    pairs = placed.overwritten(bits, lambda *pair: pair in overwritten)
    taken = sum(bits.values()) - sum(min(bits[old], bits[new]) for old, new in pairs)
    free_bits = (g.levels[level_index].capacity_bits or inf) - taken
    is_one_level = all(labels[t] - 1 == level_index for t in bits)
    return Reserved(level_index, free_bits) if free_bits >= 0 and is_one_level else None


def _meanwhile(
    labels: dict[str, int], alive: Sequence[LiveRange], first: int, last: int
) -> dict[str, LiveRange]:
    """Returns the tensors that are retained while einsums first to last run, by name, sorted."""
    found = {one.tensor: one for one in alive if labels[one.tensor]}
    return {t: one for t, one in sorted(found.items()) if one.first <= last and one.last >= first}


def _replacing(
    labels: dict[str, int], alive: Sequence[LiveRange], first: int, last: int
) -> list[tuple[str, str]]:
    """Returns the retained tensors (old, new) such that einsums first to last read the old one for the last
    time and make the new one.
    """
    retained = _meanwhile(labels, alive, first, last)
    ending = [t for t, one in retained.items() if one.first < first and one.last <= last]
    return list(product(ending, (t for t, one in retained.items() if first <= one.first)))


def _overwritten(
    g: Graph, replacing: Sequence[tuple[str, str]], first: int, last: int, loop: tuple[str, ...] = ()
) -> frozenset[tuple[str, str]]:
    """Returns those of `_replacing` whose new tensor takes the place of the old one, as the evaluator has it.

    loop: that einsums first to last share, its rank in each; (): none
    """
    einsums = g.workload.einsums
    names: list[tuple[tuple[str, str], ...]] = [((loop[0], rank),) for rank in loop]
    own = zip(einsums[first : last + 1], names or [()] * (last + 1 - first), strict=True)
    branches = tuple(Branch(e.name, Mapping(()), ranks) for e, ranks in own)
    segment = Segment(branches, tuple(Loop(rank, 1) for rank in loop[:1]))
    order = placed.graph(g.workload, Schedule(tuple(_own_segment(e, Mapping(())) for e in einsums)))
    return frozenset(pair for pair in replacing if placed.reuses_space(*pair, segment, order))


def _sharing(
    g: Graph, m: Members, labels: dict[str, int], alive: Sequence[LiveRange]
) -> Iterator[tuple[Members, Reserved]]:
    """Yields what retained tensors take while a segment runs, with the loops below which they do: all loops,
    and those below which more tensors are overwritten.
    """
    replacing = _replacing(labels, alive, m.first, m.last)
    found = [_overwritten(g, replacing, m.first, m.last, loop) for loop in m.loops if replacing]
    pairs_of = dict(zip(m.loops, found or [frozenset[tuple[str, str]]()] * len(m.loops), strict=True))
    sets = {frozenset.intersection(*pairs_of.values())}
    for pairs in pairs_of.values():
        sets |= {pairs, *(pairs & other for other in sets)}
    for pairs in sorted(sets, key=sorted):
        reservation = _reservation(g, labels, alive, m.first, m.last, pairs)
        axes, classes = (
            tuple(loop for loop in loops if pairs <= pairs_of[loop]) for loops in (m.axes, m.classes)
        )
        if reservation:
            yield replace(m, axes=axes, classes=classes), reservation


def may_retain(g: Graph, e: Einsum, tensors: Collection[str], v: int) -> bool:
    """True if level v of `g.levels` may keep tensors of an einsum whole, by its roles and by rules."""
    return all(
        role(e, t) in g.levels[v].may_keep and g.nests.may_hold(e, t, g.levels[v], at_outer=False)
        for t in tensors
    )


def _single(g: Graph, i: int, labels: dict[str, int], alive: Sequence[LiveRange]) -> list[Row]:
    """Returns the rows of an einsum alone in its segment, the one with all tensors row-major first; empty if
    the einsum does not fit.
    """
    key = (i, *(labels[one.tensor] for one in alive if one.first <= i <= one.last))
    if key not in g.single_rows:
        g.single_rows[key] = list(_alone(g, i, labels, alive))
    return g.single_rows[key]


def _alone(g: Graph, i: int, labels: dict[str, int], alive: Sequence[LiveRange]) -> Iterator[Row]:
    """Yields the rows of an einsum alone in its segment (`_single`)."""
    e, replacing = g.workload.einsums[i], _replacing(labels, alive, i, i)
    overwritten = _overwritten(g, replacing, i, i) if replacing else ()
    reservation = _reservation(g, labels, alive, i, i, overwritten)
    if reservation is None:
        return
    v, free_bits = reservation
    place = Place(g.levels[v].name, retained=_retained(g, e, labels, v)) if v >= 0 else Place()
    if not may_retain(g, e, place.retained, v):
        return
    if place.level and deadline.has_passed():
        g.is_cut = True
        return
    occurrences, nodes = counts(g.workload)[i], g.layouts.scope(i) if g.layouts else ()
    nest = (
        Nest(g.layouts.pricings_of(i)[0].mapping, 0, g.layouts.lower_bound_of(i))
        if g.layouts and not place.level
        else g.nests.best(e, place, free_bits)
    )
    if nest.mapping is None:
        if nest.lower_bound < inf:
            yield Row(
                (0,) * len(nodes),
                Option(inf, inf, occurrences * nest.lower_bound, Plan("", (), (), (e,))),
                lambda: Segment(()),
            )
        return
    for at, energy, latency, nest_in_layout in _layout_rows(g, i, place, nest.mapping, free_bits):
        plan = Plan(place.level, (), (), (e,), (nest_in_layout,))
        yield Row(
            at,
            Option(occurrences * energy, occurrences * latency, occurrences * nest.lower_bound, plan),
            partial(_own_segment, e, nest_in_layout),
        )


def _own_segment(e: Einsum, nest: Mapping) -> Segment:
    return Segment((Branch(e.name, nest),))


def _layout_rows(g: Graph, i: int, place: Place, nest: Mapping, free_bits: float) -> list[LayoutRow]:
    """Returns costs of an einsum alone at `place`, where tensors of its own and of others may be retained,
    one row per choice of layouts.

    With layouts, and if none of its own tensors is retained, all nests of `g.layouts` that fit into
    `free_bits` bits are tried besides `nest`: different layouts have different best nests.
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
            LayoutRow(
                (),
                g.priced_alone[key].energy_pj,
                g.priced_alone[key].latency_cycles,
                retained_nest(nest, g.arch, place),
            )
        ]
    memo_key = (i, *key[1:], free_bits)
    if memo_key not in g.layout_rows:
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
                if own_bits(e, g.arch, place, one.mapping).get(place.level, 0) <= free_bits
            ]
            if not place.retained
            else []
        )
        g.layout_rows[memo_key] = [
            LayoutRow(at, *row)
            for at, rows in g.layouts.in_labels(i, pricings, place.retained, place.level)
            for row in _undominated(rows, g.objective)
        ]
    return g.layout_rows[memo_key]


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
) -> list[tuple[Option, MakeSegment]]:
    """Returns the best plans of a fused segment, by level, for given labels of retained tensors, and notes
    their least cost for `_apart`.
    """
    plans = list(_plans(g, m, labels, alive))
    costs = [objective_value(g.objective, option.energy, option.latency) for option, _ in plans]
    meanwhile = [one.tensor for one in alive if one.first <= m.last and one.last >= m.first]
    _, by_labels = g.fused_values.setdefault((m.first, m.last), (meanwhile, {}))
    by_labels[tuple(labels[t] for t in meanwhile)] = min(costs, default=inf)
    return plans


def _plans(
    g: Graph, m: Members, labels: dict[str, int], alive: Sequence[LiveRange]
) -> Iterator[tuple[Option, MakeSegment]]:
    """Yields the plans of `_fused`."""
    sharing = [] if any(labels.get(t) for t in m.forwarded) else list(_sharing(g, m, labels, alive))
    if not sharing:
        return
    if deadline.has_passed():
        g.is_cut = True
        g.cut_segments.add(m)
        return
    einsums, cutoff = g.workload.einsums[m.first : m.last + 1], _apart(g, m, labels, alive)
    for (own_m, reservation), (v, level) in product(sharing, enumerate(g.levels)):
        if reservation.level_index not in (-1, v) or not _may_forward(einsums, m, level):
            continue
        retained = [_retained(g, e, labels, v) for e in einsums]
        if not all(may_retain(g, e, own, v) for e, own in zip(einsums, retained, strict=True)):
            continue
        free = min(reservation.free_bits, level.capacity_bits or inf)
        s = FusedSegment(g.arch, g.nests, level, einsums, own_m, retained, free, g.makers.keys())
        for option in g.plans.best(s, cutoff):
            yield option, partial(plan_segment, s, option.plan)
    if g.array:
        yield from on_cores(g, m, g.array, cutoff)


def on_cores(g: Graph, m: Members, array: Fanout, cutoff: float) -> Iterator[tuple[Option, MakeSegment]]:
    """Yields the best plans of a segment that is split over cores, by split and level.

    cutoff: plans that cost more are left out
    """
    dims = dict(array.dims)
    for split in splits(g.workload, m, array):
        if not all(_may_split(g, m, j, split, dims) for j in range(len(split.einsums))):
            continue
        if split.cores not in g.cores:
            nests = g.nests.on(one_core(g.arch, split.cores))
            nests.limits = {name: _of_core(own, split.cores, dims) for name, own in g.nests.limits.items()}
            g.cores[split.cores] = Core(nests)
        core = g.cores[split.cores]
        # what adds up over cores, in the unit of `Nest.lower_bound`
        times = {"energy": split.cores, "latency": 1, "edp": sqrt(split.cores)}[g.objective]
        arch, none = core.nests.arch, [frozenset[str]()] * len(split.einsums)
        for level in fusing_levels(arch):
            if not _may_forward(split.einsums, m, level):
                continue
            bits, made = level.capacity_bits or inf, g.makers.keys()
            s = FusedSegment(arch, core.nests, level, split.einsums, split.members, none, bits, made, True)
            for option in core.plans.best(s, cutoff / times):
                yield (
                    replace(
                        option, energy=split.cores * option.energy, lower_bound=times * option.lower_bound
                    ),
                    partial(_split_segment, s, option.plan, split, g.arch.levels[0].name),
                )


def _may_split(g: Graph, m: Members, j: int, split: Split, dims: Collection[str]) -> bool:
    """True if the loops of a split keep the rules over the array of cores (its `dims`), for an einsum of a
    segment.
    """
    e, trips = g.workload.einsums[m.first + j], dict[tuple[str, str], int]()
    left = e.sizes()
    for axis, tile, dim in split.loops:
        trips[dim, axis[j]] = -(-left[axis[j]] // tile)
        left[axis[j]] = tile
    return all(
        one.allows(trips.get((one.at, one.name), 1))
        for one in g.nests.limits.get(e.name, ())
        if one.kind == "spatial" and one.at in dims
    )


def _of_core(limits: Sequence[Limit], cores: int, dims: Collection[str]) -> tuple[Limit, ...]:
    """Returns the limits of the part of an einsum that one of so many cores has. dims: of the array of cores,
    over which `_may_split` keeps them
    """
    return tuple(
        replace(one, least=-(-one.least // cores)) if one.kind == "pes" else one
        for one in limits
        if one.at not in dims
    )


def _split_segment(s: FusedSegment, plan: Plan, split: Split, outer: str) -> Segment:
    return all_cores(plan_segment(s, plan), split, outer, s.made)


def _apart(g: Graph, m: Members, labels: dict[str, int], alive: Sequence[LiveRange]) -> float:
    """Returns the least objective value of the members in more than one segment, with the same tensors
    retained: each alone, or in shorter fused segments that were searched before. A segment that costs more is
    never chosen. inf for EDP, which does not add up over einsums.
    """
    if g.objective == "edp":
        return inf
    own = labels | {one.tensor: labels.get(one.tensor, 0) for one in alive}
    costs = [0.0]  # of the first members
    for i in range(m.first, m.last + 1):
        single = _single(g, i, own, [one for one in alive if one.first <= i <= one.last])
        option = single[0].option if single else None
        alone = objective_value(g.objective, option.energy, option.latency) if option else inf
        least = costs[-1] + alone
        for first in range(m.first + (i == m.last), i):
            if (first, i) in g.fused_values:
                meanwhile, by_labels = g.fused_values[first, i]
                shorter = by_labels.get(tuple(own[t] for t in meanwhile), inf)
                least = min(least, costs[first - m.first] + shorter)
        costs.append(least)
    return costs[-1]


def _may_forward(einsums: Sequence[Einsum], m: Members, level: Level) -> bool:
    """True if a level may keep all tensors that einsums of a segment forward."""
    return all(role(e, t) in level.may_keep for e in einsums for t in m.forwarded if t in _names(e))


def _names(e: Einsum) -> set[str]:
    return {p.tensor for p in e.tensors()}


def schedule_of(g: Graph, graph_factors: GraphFactors, best: Choice) -> Schedule:
    """Returns the schedule of the rows that were chosen."""
    segment_by_first = {
        first: make()
        for (first, rows), row in zip(graph_factors.rows, best.rows[: len(graph_factors.rows)], strict=True)
        if (make := rows[row])
    }
    labels = {
        node.removeprefix(RETAINED_NODE): label
        for node, label in best.labels.items()
        if node.startswith(RETAINED_NODE) and label
    }
    retained = sorted((g.levels[label - 1].name, t) for t, label in labels.items())
    return Schedule(
        tuple(segment_by_first[first] for first in sorted(segment_by_first)),
        tuple(Retained(level, t, Fraction(1)) for level, t in retained),
    )
