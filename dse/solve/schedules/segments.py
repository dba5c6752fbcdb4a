"""Pipelined segments: their enumeration, their text in a schedule, their costs, and the best chain of them
(KAPLA's inter-layer space; docs/reuse.md, Pipelines).

A segment is a run of adjacent einsums of the workload. Each einsum runs on a rectangle of nodes, all at the
same time. Forwarded tensors stand in the nodes that make them, whole or in pipeline tiles of one shared loop.

The best chain is a choice of labels (`dse/solve/elimination.py`):

    label of a boundary between two adjacent einsums    none, or the segment that crosses it
    factor of an einsum and its two boundaries          its cost alone on the nodes, or the cost of the
                                                        segment that begins with it
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, permutations, product
from math import ceil, floor, inf
from typing import Literal, NamedTuple

import numpy as np

from dse.mapper.baselines.cost_descending import smallest_mapping
from dse.mapping.classes import reads_as_written
from dse.mapping.constraints import FREE
from dse.mapping.nest import Infeasible, Loop, Store
from dse.mapping.schedule import Branch, Region, Schedule, Segment, rename, rename_segment
from dse.mapping.searched import Mappings, Space, encoded, mappings_of, tile_counts
from dse.mapping.trips import trips
from dse.sim.counts.actions import bits_of
from dse.sim.einsum.evaluate import Solution, objective_value
from dse.sim.fronts import Objective
from dse.sim.levels.network import injected_at
from dse.sim.schedule.graph import evaluate
from dse.solve.elimination import Reservation, Table, join, table
from dse.solve.schedules.fusible_segments import Span, agreeing_labels, has_nodes, runs
from dse.solve.schedules.fusible_segments import segments as looped
from dse.solve.schedules.stage_bounds import SharingBounds
from dse.solve.schedules.stages import (
    NODE_RANKS,
    WASTE,
    Nodes,
    Shape,
    Stage,
    StageContext,
    may_share,
    min_tensor_bits,
    own_nest,
    part_of,
    shapes,
    stage_bits,
    tiles,
)
from hw.arch import Arch
from workloads.einsum import Einsum, canonical_key
from workloads.graph import Workload, base_tensor, counts

MAX_STAGES = 6
# numbers of pipeline tiles that are searched, if they divide the extent of the shared loop; of an extent
# below the first one all divisors (`searched.tile_counts`)
PIPELINE_TILES = (8, 64)
ALL_TILE_COUNTS: tuple[int, ...] = ()  # instead of PIPELINE_TILES: all divisors
NO_SHARED_LOOP = (1,)  # instead of PIPELINE_TILES: no shared loop
MAX_ARRANGEMENTS = 24  # arrangements of a chosen segment's rectangles that are priced
MAX_REGIONS = 8  # rectangles of a stage, near main memory, that are priced
MAX_POSITIONS = 4000  # positions of rectangles that one call of `place_regions` tries
MAX_FASTER = 15  # faster, dearer ways to run a segment that are kept, with a limit


class PlacedShape(NamedTuple):
    """The region of a stage: a rectangle of nodes."""

    shape: Shape
    row: int  # its first row
    column: int  # its first column


@dataclass(frozen=True, slots=True)
class Range(Span):
    """A segment that is not solved yet: a run of einsums and its shared loop."""

    forwarded: frozenset[str]  # tensors that are made and read in it
    spilled: frozenset[str]  # forwarded tensors that einsums outside of it read too
    ranks: tuple[str, ...] = ()  # rank of the shared loop in each einsum; (): no shared loop
    tile: int = 0  # of the shared loop


@dataclass(frozen=True, slots=True)
class Option:
    """A solved segment. Its costs include fills and drains between other segments, unless it is the whole
    schedule.
    """

    segment: Segment
    energy: float  # pJ
    latency: float  # cycles
    initiation_interval: float  # cycles
    peak_bits: int = 0  # most bits in a node's buffer while the segment runs
    pinned_bits: int = 0  # bits in a node's buffer that its pinned weights take at all times
    # with a limit: ways to run it that cost more and take less of what is limited (`cheaper`)
    faster: tuple[Option, ...] = ()

    def ways(self) -> tuple[Option, ...]:
        """Returns itself and the faster ways, each by itself."""
        return (replace(self, faster=()), *self.faster)

    def changed(self, change: Callable[[Option], Option]) -> Option:
        """Returns it with each of its ways changed."""
        return replace(change(self), faster=tuple(map(change, self.faster)))


@dataclass(slots=True)
class PipelineSearch:
    """A search for the best pipelined schedule: its task, counters, and memos."""

    arch: Arch
    workload: Workload
    objective: Objective
    weights: str  # streamed or pinned
    nodes: Nodes  # mapper of one node
    interval_limit: float = inf  # upper limit of the initiation interval of the workload, in cycles
    latency_limit: float = inf  # upper limit of its latency, in cycles
    stages_priced: int = 0
    undominated_stages: int = 0  # priced stages that no other one dominates
    evaluator_calls: int = 0  # calls of the evaluator
    min_interval: float = inf  # shortest initiation interval of the whole workload that was priced
    unexplored: int = 0  # segments that were not solved
    stage_memo: dict[tuple[object, ...], list[Stage]] = field(default_factory=dict)  # of `pipeline._stages`
    # of `solve_alone`: the first einsum of equal ones, and its option
    alone_memo: dict[tuple[object, ...], tuple[Einsum, Option | None]] = field(default_factory=dict)
    # of `memo_isomorphic`: the first segment of isomorphic ones, and its option
    segment_memo: dict[tuple[object, ...], tuple[Range, Option | None]] = field(default_factory=dict)
    sharing_bounds: dict[tuple[object, ...], SharingBounds] = field(default_factory=dict)

    @property
    def limit(self) -> float:
        """The tightest limit, in cycles; inf: there is none."""
        return min(self.interval_limit, self.latency_limit)


def check(arch: Arch, schedule_name: str) -> None:
    """Raises ValueError if a machine has no nodes for stages, or describes cache lines, rows or banks, which
    pipelined schedules do not count. schedule_name: the value of `solver.schedule`.
    """
    if not has_nodes(arch):
        raise ValueError(
            f"{arch.name}: solver.schedule = {schedule_name} needs nodes in rows and columns between "
            "main memory and "
            "a buffer in each; take the machine kapla_multi, or solver.schedule=unfused"
        )
    if arch.models_layout():
        raise ValueError(
            f"{arch.name}: solver.schedule = {schedule_name} counts no lines, rows or banks, which this "
            "machine prices; take solver.schedule=unfused"
        )


def leak_pj(g: PipelineSearch) -> float:
    """Returns what the machine leaks in one cycle, in pJ."""
    return g.arch.leak_mw() / g.arch.clock_ghz


def pinned(g: PipelineSearch, e: Einsum) -> frozenset[str]:
    """Returns the weights of an einsum that are pinned: all of them or none, by `g.weights`."""
    return frozenset(p.tensor for p in e.inputs if g.weights == "pinned" and p.tensor in g.workload.weights)


def ranges_of(
    g: PipelineSearch, max_einsums: int = MAX_STAGES, pipeline_tiles: Sequence[int] = PIPELINE_TILES
) -> list[Range]:
    """Returns all segments of 2 to `max_einsums` einsums: in each, every einsum but the first reads a
    forwarded tensor, and every einsum but the last makes one. A run of einsums occurs without a shared loop,
    and once for each loop that it can share and each number of pipeline tiles (`searched.tile_counts`).
    """
    w, found = g.workload, []
    makers = {e.output.tensor: i for i, e in enumerate(w.einsums)}
    loops = {(m.first, m.last): m for m in looped(w)}
    for first, last, forwarded_order, spilled in runs(w, max_einsums):
        einsums, forwarded = w.einsums[first : last + 1], frozenset(forwarded_order)
        reads = [{p.tensor for p in e.inputs} & forwarded for e in einsums]
        # whether an einsum reads a forwarded tensor under a second name (T_again)
        reads_again = any(
            base_tensor(p.tensor, makers) in forwarded and p.tensor not in forwarded
            for e in einsums
            for p in e.inputs
        )
        reads_views = any(
            p.tensor in forwarded and not reads_as_written(p, w.einsums[makers[p.tensor]].output)
            for e in einsums
            for p in e.inputs
        )
        if (
            reads_again
            or reads_views
            or not all(reads[1:])
            or not all(e.output.tensor in forwarded for e in einsums[:-1])
        ):
            continue
        found.append(Range(first, last, forwarded, spilled))
        if (first, last) in loops:
            for axis in loops[first, last].axes:
                n = einsums[0].sizes()[axis[0]]
                found += [
                    Range(first, last, forwarded, spilled, axis, n // tile_count)
                    for tile_count in tile_counts(n, pipeline_tiles)
                ]
    return found


def space(g: PipelineSearch, max_einsums: int, pipeline_tiles: Sequence[int], mappings: Mappings) -> Space:
    """Returns the searched space: segments of `ranges_of`, with `mappings` on each node, under the
    constraints of each einsum.
    """
    weights: Literal["loaded", "pinned"] = "pinned" if g.weights == "pinned" else "loaded"
    rules = [mappings_of("perfect", g.arch, g.nodes.rules.get(e.name, FREE)) for e in g.workload.einsums]
    ruled = (replace(mappings, dataflow=one.dataflow, rules=one.rules) for one in rules)
    own = {encoded(one): one for one in ruled}
    distinct = tuple(own[key] for key in sorted(own))
    found = Space(distinct, "given", weights=weights, node_ranks=NODE_RANKS, waste=WASTE)
    if max_einsums < 2:
        return found
    return replace(
        found,
        pipelined=max_einsums,
        padded=True,
        tiles=tuple(pipeline_tiles),
        levels=(g.arch.levels[1].name,),
    )


def members_of(g: PipelineSearch, r: Range) -> list[tuple[Einsum, StageContext]] | None:
    """Returns for every einsum of a segment the einsum of one pipeline tile, and its context. None: pipeline
    tiles of an einsum differ from each other (padding).
    """
    einsums = g.workload.einsums[r.first : r.last + 1]
    pipeline_tile = (
        [trips(e, rank, r.tile) for e, rank in zip(einsums, r.ranks, strict=True)]
        if r.ranks
        else [((e, 1),) for e in einsums]
    )
    if any(len(trip_kinds) > 1 for trip_kinds in pipeline_tile):
        return None
    # pipeline tiles of the segment; endless if it is the whole workload, whose runs follow back to back
    tile_count, found = inf if len(einsums) == len(g.workload.einsums) else pipeline_tile[0][0][1], []
    for j, (e, ((part, _),)) in enumerate(zip(einsums, pipeline_tile, strict=True)):
        last_reader = max(
            [i for i, other in enumerate(einsums) if e.output.tensor in {p.tensor for p in other.inputs}],
            default=j,
        )
        inputs = frozenset(p.tensor for p in e.inputs)
        views = [
            p for other in einsums if other is not e for p in other.inputs if p.tensor == e.output.tensor
        ]
        sliding = frozenset(
            rank
            for p in views
            for made_dim, d in zip(e.output.dims, p.dims, strict=True)
            if len(d.terms) > 1
            for rank in made_dim.ranks()
        )
        found.append(
            (
                part,
                StageContext(
                    inputs & r.forwarded,
                    pinned(g, e),
                    e.output.tensor in r.forwarded,
                    int(min(last_reader - j + 1, tile_count)),
                    e.output.tensor in r.spilled,
                    sliding,
                ),
            )
        )
    return found


def fits(g: PipelineSearch, r: Range) -> bool:
    """True if all pipeline tiles of an einsum are equal, and the buffers of all nodes together hold forwarded
    tiles and pinned weights.
    """
    members = members_of(g, r)
    return members is not None and sum(
        stage_bits(e, context, g.arch) for e, context in members
    ) <= g.arch.instances(1) * (g.arch.levels[1].capacity_bits or inf)


def place_regions(
    g: PipelineSearch, stages: Sequence[Stage], in_order: Sequence[int] = (), corners_first: bool = False
) -> list[PlacedShape] | None:
    """Returns the region of each stage, in one of its shapes; None if none is found.

    Rectangles are placed one by one, the largest first or `in_order`. Each is tried where rows and columns of
    the grid begin or earlier rectangles end.

    corners_first: rectangles may also end where rows and columns end; positions at corners of the grid, near
        main memory, are tried first.
    """
    (_, rows), (_, columns) = g.arch.fanouts[0].dims
    order, visited = in_order or sorted(range(len(stages)), key=lambda j: -stages[j].nodes), 0

    def places(shape: Shape, placed: Sequence[PlacedShape]) -> list[tuple[int, int]]:
        far_corner = [(rows - shape.rows, columns - shape.columns)] * corners_first
        positions = product(
            sorted({0, *(row + one.rows for one, row, _ in placed), *(y for y, _ in far_corner)}),
            sorted({0, *(column + one.columns for one, _, column in placed), *(x for _, x in far_corner)}),
        )
        return (
            sorted(
                positions,
                key=lambda p: (
                    min(p[0], abs(far_corner[0][0] - p[0])) + min(p[1], abs(far_corner[0][1] - p[1]))
                ),
            )
            if corners_first
            else list(positions)
        )

    def place_rest(placed: list[PlacedShape]) -> list[PlacedShape] | None:
        nonlocal visited
        if len(placed) == len(order):
            return placed
        for shape in stages[order[len(placed)]].shapes:
            for y, x in places(shape, placed):
                visited += 1
                if visited > MAX_POSITIONS:
                    return None
                is_free = all(
                    y >= row + one.rows
                    or row >= y + shape.rows
                    or x >= column + one.columns
                    or column >= x + shape.columns
                    for one, row, column in placed
                )
                if (
                    is_free
                    and y + shape.rows <= rows
                    and x + shape.columns <= columns
                    and (found := place_rest([*placed, PlacedShape(shape, y, x)]))
                ):
                    return found
        return None

    found = place_rest([])
    return [found[order.index(j)] for j in range(len(stages))] if found else None


def cheapest_placement(g: PipelineSearch, r: Range, option: Option) -> Option:
    """Returns the cheapest among up to MAX_ARRANGEMENTS other arrangements of a segment's rectangles: placed
    in another order, or mirrored. Arrangements differ in hops from main memory and between stages, so in
    energy, not in cycles.
    """
    (row_dim, rows), (column_dim, columns) = g.arch.fanouts[0].dims
    branches, einsums = option.segment.branches, g.workload.einsums[r.first : r.last + 1]
    region_by_dim = [{part.dim: part for part in branch.region} for branch in branches]
    stages = [
        Stage((), branch.mapping, (Shape(region_of[row_dim].size, region_of[column_dim].size, ()),), 0.0, 0.0)
        for branch, region_of in zip(branches, region_by_dim, strict=True)
    ]
    seen, best = (
        {tuple((region_of[row_dim].first, region_of[column_dim].first) for region_of in region_by_dim)},
        option,
    )
    for order, corners_first in islice(
        product(permutations(range(len(branches))), (False, True)), 2 * MAX_ARRANGEMENTS
    ):
        regions_found = place_regions(g, stages, order, corners_first) or ()
        for mirror_rows, mirror_columns in product((False, True), repeat=2):
            corners = tuple(
                (rows - y - s.rows if mirror_rows else y, columns - x - s.columns if mirror_columns else x)
                for s, y, x in regions_found
            )
            if regions_found and corners not in seen and len(seen) <= MAX_ARRANGEMENTS:
                seen.add(corners)
                regions = [
                    (Region(row_dim, y, s.rows), Region(column_dim, x, s.columns))
                    for (s, _, _), (y, x) in zip(regions_found, corners, strict=True)
                ]
                moved_branches = tuple(
                    replace(branch, region=region) for branch, region in zip(branches, regions, strict=True)
                )
                found = price_of(g, einsums, replace(option.segment, branches=moved_branches))
                best = found if found and value(g, found) < value(g, best) else best
    return best


def cheapest_regions(g: PipelineSearch, r: Range, option: Option) -> Option:
    """Returns the cheapest among other rectangles of the same nodes' tiles, one einsum after the other: of
    each, up to MAX_REGIONS that overlap no other stage's and whose nodes lie nearest to main memory.
    """
    (row_dim, rows), (column_dim, columns) = g.arch.fanouts[0].dims
    ports = injected_at(g.arch.fanouts[0].injected_at, (rows, columns))
    einsums, members = g.workload.einsums[r.first : r.last + 1], members_of(g, r) or []

    def mean_links(place: PlacedShape) -> float:
        at = product(range(place.shape.rows), range(place.shape.columns))
        return sum(
            min(abs(place.row + y - a) + abs(place.column + x - b) for a, b in ports) for y, x in at
        ) / (place.shape.rows * place.shape.columns)

    for j, (e, _) in enumerate(members):
        branch = option.segment.branches[j]
        own = [
            node
            for node in branch.mapping.nodes
            if isinstance(node, Loop) and node.over in {row_dim, column_dim}
        ]
        taken = [
            {part.dim: part for part in b.region} for i, b in enumerate(option.segment.branches) if i != j
        ]
        edges = [
            sorted(
                {0, *(one[dim].first + one[dim].size for one in taken), *(one[dim].first for one in taken), n}
            )
            for dim, n in ((row_dim, rows), (column_dim, columns))
        ]
        places = set[PlacedShape]()
        tile = {node.rank: min(n.tile for n in own if n.rank == node.rank) for node in own}
        for shape in shapes(e, tile, g.arch):
            firsts = (
                {at for n in edge for at in (n, n - side) if 0 <= at <= end - side}
                for edge, side, end in zip(edges, (shape.rows, shape.columns), (rows, columns), strict=True)
            )
            places |= {PlacedShape(shape, y, x) for y, x in product(*firsts)}
        free = [
            one
            for one in places
            if all(
                one.row >= other[row_dim].first + other[row_dim].size
                or other[row_dim].first >= one.row + one.shape.rows
                or one.column >= other[column_dim].first + other[column_dim].size
                or other[column_dim].first >= one.column + one.shape.columns
                for other in taken
            )
        ]
        free.sort(key=lambda one: (mean_links(one), one.shape.rows, one.row, one.column))
        for shape, y, x in free[:MAX_REGIONS]:
            branches = [*option.segment.branches]
            branches[j] = replace(
                branch,
                mapping=replace(branch.mapping, nodes=(*shape.loops, *branch.mapping.nodes[len(own) :])),
                region=(Region(row_dim, y, shape.rows), Region(column_dim, x, shape.columns)),
            )
            found = price_of(g, einsums, replace(option.segment, branches=tuple(branches)))
            option = cheaper(g, option, found) or option
    return option


def cheapest_orders(g: PipelineSearch, einsums: Sequence[Einsum], option: Option) -> Option:
    """Returns the cheapest among orders of the loops over nodes of each einsum, one einsum after the other.
    Loops of one rank keep their order, so every node keeps its share and its nest, at another position: nodes
    that read the same words lie closer together or further apart.
    """
    dims = [name for name, _ in g.arch.fanouts[0].dims]
    for j in range(len(option.segment.branches)):
        branch = option.segment.branches[j]
        nodes = branch.mapping.nodes
        at = [i for i, node in enumerate(nodes) if isinstance(node, Loop) and node.over in dims]
        loops = [node for node in nodes if isinstance(node, Loop) and node.over in dims]
        seen = {tuple(tuple(n for n in loops if n.over == d) for d in dims)}
        for order in permutations(loops) if at and len(loops) == at[-1] - at[0] + 1 else ():
            placed = tuple(tuple(n for n in order if n.over == d) for d in dims)
            of_ranks = [[n for n in each if n.rank == loop.rank] for loop in loops for each in (order, loops)]
            if placed in seen or of_ranks[::2] != of_ranks[1::2]:
                continue
            seen.add(placed)
            moved = replace(branch.mapping, nodes=(*nodes[: at[0]], *order, *nodes[at[-1] + 1 :]))
            branches = [*option.segment.branches]
            branches[j] = replace(branch, mapping=moved)
            found = price_of(g, einsums, replace(option.segment, branches=tuple(branches)))
            option = cheaper(g, option, found) or option
    return option


def to_segment(
    g: PipelineSearch,
    r: Range,
    einsums: Sequence[Einsum],
    stages: Sequence[Stage],
    regions_found: Sequence[PlacedShape],
    contexts: Sequence[StageContext],
) -> Segment:
    """Returns a pipelined segment: the nodes that all stages share, then one branch per einsum.

    regions_found, contexts: region and context of each stage.
    """
    outer, level, ((row_dim, _), (column_dim, _)) = (
        g.arch.levels[0].name,
        g.arch.levels[1].name,
        g.arch.fanouts[0].dims,
    )
    outer_tensors = dict.fromkeys(
        p.tensor
        for e, context in zip(einsums, contexts, strict=True)
        for p in e.tensors()
        if p.tensor not in context.pinned and (p.tensor not in r.forwarded or p.tensor in r.spilled)
    )
    nodes: list[Loop | Store] = [Store(outer, t) for t in outer_tensors]
    nodes += [Loop(r.ranks[0], r.tile)] if r.ranks else []
    nodes += [Store(level, e.output.tensor) for e in einsums if e.output.tensor in r.forwarded]
    branches = []
    for j, (e, stage, (shape, y, x), context) in enumerate(
        zip(einsums, stages, regions_found, contexts, strict=True)
    ):
        branches.append(
            Branch(
                e.name,
                own_nest(stage, shape, e, context, outer),
                _loop_names(r, j),
                (Region(row_dim, y, shape.rows), Region(column_dim, x, shape.columns)),
            )
        )
    return Segment(tuple(branches), tuple(nodes))


def price_by_itself(g: PipelineSearch, e: Einsum, stage: Stage, shape: Shape) -> Option | None:
    """Returns the price of an einsum alone in its segment, None if it does not fit."""
    outer, context = g.arch.levels[0].name, StageContext(pinned=pinned(g, e))
    nest = own_nest(stage, shape, e, context, outer)
    stores = tuple(Store(outer, p.tensor) for p in e.tensors() if p.tensor not in context.pinned)
    return price_of(g, (e,), Segment((Branch(e.name, replace(nest, nodes=(*stores, *nest.nodes))),)))


def price_of(g: PipelineSearch, einsums: Sequence[Einsum], segment: Segment) -> Option | None:
    """Returns the evaluator's price of a segment; None if it does not fit or its hops cannot be counted. A
    segment that is not the whole workload stands between others: it fills and drains in every run.
    """
    g.evaluator_calls += 1
    names = {p.tensor for e in einsums for p in e.tensors()}
    part = Workload("", tuple(einsums), g.workload.weights & names)
    schedule = Schedule((segment,), weights=g.weights)
    is_whole = len(einsums) == len(g.workload.einsums)  # else other segments run between two runs of this one
    try:
        found = evaluate(g.arch, part, schedule, g.objective, part=not is_whole)
    except ValueError:  # hops of such a nest are not counted
        return None
    if not isinstance(found, Solution):
        return None
    level = g.arch.levels[1].name
    pinned_bits = max(
        sum(
            int(elems * bits_of(e, g.arch)[t])
            for level_name, t, elems in c.footprint
            if level_name == level and t in pinned(g, e)
        )
        for e, c in ((e, next(c for c in found.einsums if c.name == e.name)) for e in einsums)
    )
    peak = dict(found.segments[0].peak_bits).get(level, 0) if found.segments else 0
    g.min_interval = min(g.min_interval, found.initiation_interval_cycles if is_whole else inf)
    return Option(
        segment, found.energy_pj, found.latency_cycles, found.initiation_interval_cycles, peak, pinned_bits
    )


def solve_alone(
    g: PipelineSearch, solve: Callable[[PipelineSearch, Einsum], Option | None]
) -> list[Option | None]:
    """Returns the option of every einsum alone in its segment. Equal einsums are solved once."""
    found: list[Option | None] = []
    for e, n in zip(g.workload.einsums, counts(g.workload), strict=True):
        key = canonical_key(e), *(p.tensor in pinned(g, e) for p in e.inputs)
        if key not in g.alone_memo:
            g.alone_memo[key] = e, solve(g, e)
        first, option = g.alone_memo[key]
        if option:
            (branch,) = option.segment.branches
            option = replace(
                repeat_option(option, n), segment=Segment((Branch(e.name, rename(branch.mapping, first, e)),))
            )
        found.append(option)
    return found


def isomorphism_key(g: PipelineSearch, r: Range) -> tuple[object, ...]:
    """Returns a key that is the same for segments that differ in names only."""
    einsums = g.workload.einsums[r.first : r.last + 1]
    names = list(dict.fromkeys(p.tensor for e in einsums for p in e.tensors()))
    members = tuple(
        (
            canonical_key(e),
            tuple(names.index(p.tensor) for p in e.tensors()),
            tuple(p.tensor in pinned(g, e) for p in e.inputs),
        )
        for e in einsums
    )
    axis = tuple(e.ranks().index(rank) for e, rank in zip(einsums, r.ranks, strict=False))
    return (
        members,
        tuple((e.output.tensor in r.forwarded, e.output.tensor in r.spilled) for e in einsums),
        axis,
        r.tile,
        len(einsums) == len(g.workload.einsums),
    )


def memo_isomorphic(g: PipelineSearch, r: Range, solve: Callable[[], Option | None]) -> Option | None:
    """Returns the option of a segment. Of segments that differ in names only the first is solved, and its
    option is renamed for the others.
    """
    key = isomorphism_key(g, r)
    if key not in g.segment_memo:
        g.segment_memo[key] = r, solve()
    solved_range, option = g.segment_memo[key]
    if solved_range == r or not option:
        return option
    solved_einsums, einsums = (g.workload.einsums[each.first : each.last + 1] for each in (solved_range, r))

    def renamed(way: Option) -> Option:
        segment = rename_segment(way.segment, solved_einsums, einsums)
        return replace(
            way,
            segment=Segment(
                tuple(replace(branch, ranks=_loop_names(r, j)) for j, branch in enumerate(segment.branches)),
                tuple(
                    replace(node, rank=r.ranks[0]) if isinstance(node, Loop) else node
                    for node in segment.nodes
                ),
            ),
        )

    return option.changed(renamed)


def _loop_names(r: Range, j: int) -> tuple[tuple[str, str], ...]:
    """Returns (rank of the shared loop, name of that rank in einsum j) if the names differ, else ()."""
    return ((r.ranks[0], r.ranks[j]),) if r.ranks and r.ranks[j] != r.ranks[0] else ()


def repeat_option(option: Option, n: int) -> Option:
    """Returns an option with energy, latency and initiation interval of n occurrences one after the other."""
    return option.changed(
        lambda way: replace(
            way,
            energy=n * way.energy,
            latency=n * way.latency,
            initiation_interval=n * way.initiation_interval,
        )
    )


def value(g: PipelineSearch, option: Option) -> float:
    """Returns the objective value of an option."""
    return objective_value(g.objective, option.energy, option.latency)


def cheaper(g: PipelineSearch, one: Option | None, other: Option | None) -> Option | None:
    """Returns the option of lower objective value, the first of equal ones; None if there is none. With a
    limit, of those within it if there are any; those that take less of what is limited stay as its `faster`
    ways, at most MAX_FASTER, the fastest one among them: the slower others may be, the less they cost.
    """
    ways = [way for option in (one, other) if option for way in option.ways()]
    if not ways:
        return None
    limits = [limit for limit in (g.interval_limit, g.latency_limit) if limit < inf]
    within = [way for way in ways if all(a <= b for a, b in zip(_limited(g, way), limits, strict=True))]
    within = within or [min(ways, key=lambda way: _limited(g, way))]
    kept = [*_undominated(g, sorted(within, key=lambda way: value(g, way)))]
    faster = [kept[int(i)] for i in np.linspace(1, len(kept) - 1, min(len(kept) - 1, MAX_FASTER))]
    return replace(kept[0], faster=tuple(faster))


def _undominated(g: PipelineSearch, ways: Iterable[Option]) -> Iterator[Option]:
    """Yields the first of some ways, and each that takes less of something limited than all before it."""
    before: list[list[float]] = []
    for way in ways:
        taken = _limited(g, way)
        if not any(all(a <= b for a, b in zip(other, taken, strict=True)) for other in before):
            before.append(taken)
            yield way


def _limited(g: PipelineSearch, option: Option) -> list[float]:
    """Returns the cycles that an option adds to each of what is limited."""
    return [option.initiation_interval] * (g.interval_limit < inf) + [option.latency] * (
        g.latency_limit < inf
    )


def best_chain(
    g: PipelineSearch, alone: Sequence[Option | None], segment_options: dict[Range, Option]
) -> Solution | Infeasible:
    """Returns the schedule of the best chain of solved segments and einsums alone; Infeasible, with the
    resource that is too small, if no chain fits.

    Cycles of segments add up to no less than the schedule takes, which may ramp up a segment behind the one
    before it. So with a limit the cheapest chain and the fastest one are priced too, and one whose sums may
    exceed the limit by what the best one so far stays below it.
    """
    if g.limit == inf:
        return _best_of_sums(g, alone, segment_options)
    unlimited = replace(g, interval_limit=inf, latency_limit=inf)
    cheapest = _best_of_sums(unlimited, alone, segment_options)
    if isinstance(cheapest, Infeasible) or keeps_limits(g, cheapest):
        return cheapest
    best = _best_of_sums(g, alone, segment_options)
    if isinstance(best, Infeasible):
        best = _best_of_sums(replace(unlimited, objective="latency"), alone, segment_options)
        if isinstance(best, Infeasible) or not keeps_limits(g, best):
            return best if isinstance(best, Infeasible) else _over_limit(g, best)
    slack = min(g.interval_limit / best.initiation_interval_cycles, g.latency_limit / best.latency_cycles)
    relaxed = replace(g, interval_limit=g.interval_limit * slack, latency_limit=g.latency_limit * slack)
    other = _best_of_sums(relaxed, alone, segment_options)
    is_better = isinstance(other, Solution) and keeps_limits(g, other) and cost(g, other) < cost(g, best)
    return other if is_better else best


def keeps_limits(g: PipelineSearch, solution: Solution) -> bool:
    """True if an answer takes no more cycles than `g` allows."""
    return (
        solution.initiation_interval_cycles <= g.interval_limit and solution.latency_cycles <= g.latency_limit
    )


def cost(g: PipelineSearch, solution: Solution) -> float:
    """Returns the objective value of an answer."""
    return objective_value(g.objective, solution.energy_pj, solution.latency_cycles)


def _over_limit(g: PipelineSearch, fastest: Solution) -> Infeasible:
    """Returns which limit the fastest chain exceeds."""
    key, cycles, limit = (
        ("latency", fastest.latency_cycles, g.latency_limit)
        if fastest.latency_cycles > g.latency_limit
        else (
            "initiation_interval",
            min(g.min_interval, fastest.initiation_interval_cycles),
            g.interval_limit,
        )
    )
    resource = f"the fastest run that was found (solver.{key})"
    return Infeasible(resource, ceil(cycles), floor(limit), g.workload.name, "cycles")


def _best_of_sums(
    g: PipelineSearch, alone: Sequence[Option | None], segment_options: dict[Range, Option]
) -> Solution | Infeasible:
    """Returns the schedule of the chain whose segments' costs add up to the least, within the limits."""
    arch, workload, objective, n = g.arch, g.workload, g.objective, len(g.workload.einsums)
    # boundary (position of the einsum left of it) -> its labels: none, or a segment that crosses it
    labels = {i: [None, *(r for r in segment_options if r.first <= i < r.last)] for i in range(n - 1)}
    tables: list[Table] = []
    chosen_from: list[list[Option | None]] = []
    reservations = (
        {f"run {i}": Reservation(arch.levels[1].capacity_bits or inf) for i in range(n)}
        if g.weights == "pinned"
        else {}
    )
    limits = {"initiation interval": g.interval_limit, "latency": g.latency_limit}
    reservations |= {name: Reservation(limit) for name, limit in limits.items() if limit < inf}
    for i in range(n):
        combinations = [
            (at, way)
            for at, option in _labelled(i, labels, alone[i], segment_options)
            for way in (option.ways() if option else (None,))
        ]
        if not combinations:
            e = workload.einsums[i]
            return (
                infeasible
                if isinstance(infeasible := smallest_mapping(e, arch), Infeasible)
                else _why_infeasible(g, [e], e.name)
            )
        chosen_from.append([way for _, way in combinations])
        rows = [
            (
                at,
                [way.energy, way.latency, *_reservations(g, way, i)]
                if way
                else [0.0] * (2 + len(reservations)),
            )
            for at, way in combinations
        ]
        tables.append(table([f"border {j}" for j in (i - 1, i) if j in labels], rows, tuple(reservations)))
    joined = join(tables, reservations, objective)
    if not joined.choices:
        return _why_infeasible(g, workload.einsums, workload.name)
    best = min(joined.choices, key=lambda one: objective_value(objective, one.energy, one.latency))
    chosen = [way for ways, row in zip(chosen_from, best.rows, strict=True) if (way := ways[row])]
    return evaluate(
        arch,
        workload,
        Schedule(tuple(_in_workload_names(g, o.segment) for o in chosen), weights=g.weights),
        objective,
        reuse=True,
    )


def _in_workload_names(g: PipelineSearch, segment: Segment) -> Segment:
    """Returns a segment with tensors named as the whole workload names them: T_again, a second name under
    which an einsum reads T, becomes T, and equal storage nodes are merged.
    """
    produced = {e.output.tensor for e in g.workload.einsums}
    nodes = [
        replace(node, tensor=base_tensor(node.tensor, produced)) if isinstance(node, Store) else node
        for node in segment.nodes
    ]
    return replace(segment, nodes=tuple(node for i, node in enumerate(nodes) if node not in nodes[:i]))


def _why_infeasible(g: PipelineSearch, einsums: Sequence[Einsum], name: str) -> Infeasible:
    """Returns why einsums do not run on the nodes: the bytes that some buffer needs at least, however pinned
    weights are spread over the nodes; or that the search found no schedule.
    """
    level, node_count = g.arch.levels[1], g.arch.instances(1)
    contexts = [StageContext(pinned=pinned(g, e)) for e in einsums]
    other_bits = [
        sum(n for t, n in min_tensor_bits(e, g.arch).items() if t not in context.pinned)
        for e, context in zip(einsums, contexts, strict=True)
    ]
    # a node of each einsum holds its part beside the other tensors; some node the mean of all weights
    part_bits = [
        others
        + min(
            stage_bits(part_of(e, tile), context, g.arch)
            for tile in tiles(e, node_count, may_share(g.arch, context))
        )
        for e, context, others in zip(einsums, contexts, other_bits, strict=True)
    ]
    weight_bits = sum(stage_bits(e, context, g.arch) for e, context in zip(einsums, contexts, strict=True))
    min_bits = max(*part_bits, min(other_bits) - (-weight_bits // node_count))
    if weight_bits and min_bits > (level.capacity_bits or inf):
        return Infeasible(
            f"{level.name} with pinned weights", -(-min_bits // 8), (level.capacity_bits or 0) // 8, name
        )
    condition = (
        f"with its weights pinned at {level.name}"
        if any(context.pinned for context in contexts)
        else "on the nodes"
    )
    return Infeasible("the search", 1, 0, name, f"schedule {condition} among those it tried")


def _reservations(g: PipelineSearch, option: Option, first: int) -> list[float]:
    """Returns what an option adds to each reservation of `best_chain`. With pinned weights: bits of a buffer
    while each einsum of the workload runs, the option's peak for its own einsums and its pinned weights for
    all others. With limits: the cycles of what is limited.
    """
    last = first + len(option.segment.branches) - 1
    bits = (
        [
            float(option.peak_bits if first <= i <= last else option.pinned_bits)
            for i in range(len(g.workload.einsums))
        ]
        if g.weights == "pinned"
        else []
    )
    return bits + _limited(g, option)


def _labelled(
    i: int, labels: dict[int, list[Range | None]], alone: Option | None, segment_options: dict[Range, Option]
) -> Iterator[tuple[tuple[int, ...], Option | None]]:
    """Yields the labels of an einsum's boundaries that agree, each with the option that the einsum adds: the
    einsum alone, or the segment that begins with it; None further inside of a segment.
    """
    left, right = (labels.get(j, [None]) for j in (i - 1, i))
    if alone:
        yield (0,) * sum(j in labels for j in (i - 1, i)), alone
    for pair in agreeing_labels(i, left, right):
        begins = right[pair[1]] if pair[0] == 0 else None
        own = tuple(at for j, at in zip((i - 1, i), pair, strict=True) if j in labels)
        yield own, segment_options[begins] if begins else None
