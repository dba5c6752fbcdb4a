"""The search of schedule pipelined: segments of einsums that run at once on regions of nodes (docs/reuse.md,
Pipelines).

1. Ways to run each stage are collected, on about its share of the nodes and at different speeds.
2. For each of several limits on the cycles of a stage, tightest first, the cheapest choices of one way per
   stage are listed that need no more nodes than there are.
3. Regions of a choice are placed side by side, and the evaluator prices the segment.
4. The best chain of segments and einsums alone is chosen (`segments.best_chain`).

Where all weights fit on the nodes, the best schedule of pinned weights is a candidate too, each weight loaded
once by its stage (`hold`). KAPLA's published solver always runs as well. Where the unfused answer costs less
than all that, its nests are also put between segments. The best of all is returned, so it is no dearer than
KAPLA's or the unfused answer. Tests compare small workloads with an enumeration of the whole space
(`tests/enumerated_pipelines.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from heapq import heappop, heappush
from itertools import islice
from math import ceil, inf, log, log2, prod, sqrt
from typing import NamedTuple

import numpy as np

from dse.mapping.nest import Infeasible, Loop, Store
from dse.mapping.schedule import Branch, Region, Schedule, Segment, sequential
from dse.mapping.searched import Space, mappings_of, tile_counts, windowed_ranks
from dse.run import deadline
from dse.sim.counts.counts import Violated
from dse.sim.einsum.evaluate import (
    ROUNDING_GAP,
    Solution,
    certificate_text,
    gap_in_space_text,
    objective_value,
    relative_gap,
)
from dse.sim.fronts import Objective
from dse.sim.schedule.faults import faults
from dse.sim.schedule.graph import among_schedules, any_schedule, evaluate, filled_cycles
from dse.solve.kapla.published import MAX_EINSUMS, options
from dse.solve.schedules.einsum_bounds import lower_bound
from dse.solve.schedules.segments import (
    ALL_TILE_COUNTS,
    MAX_FASTER,
    MAX_STAGES,
    NO_SHARED_LOOP,
    PIPELINE_TILES,
    Option,
    PipelineSearch,
    Range,
    best_chain,
    cheaper,
    cheapest_orders,
    cheapest_placement,
    cheapest_regions,
    check,
    cost,
    fits,
    isomorphism_key,
    keeps_limits,
    leak_pj,
    members_of,
    memo_isomorphic,
    pinned,
    place_regions,
    price_by_itself,
    price_of,
    ranges_of,
    solve_alone,
    space,
    to_segment,
    value,
)
from dse.solve.schedules.stage_bounds import (
    SharingBounds,
    minimum_filled_cycles,
    minimum_filled_energy,
    sharing_bounds,
    time_of,
)
from dse.solve.schedules.stages import (
    ConstraintsOf,
    Nodes,
    Stage,
    StageContext,
    own_nest,
    rules_of,
    stage_bits,
    unconstrained,
)
from hw.arch import Arch
from workloads.einsum import Einsum, canonical_key
from workloads.graph import Workload, counts

# Limits of the search, which trade its time for quality. A "tile" is the tile of one node (`stages.tiles`), a
# "choice" is one way to run each stage of a segment, a "limit" is one on the cycles of a stage.
MAX_TRIALS = 12  # limits that are tried; stages of an einsum alone that are priced
# a looser limit is tried if the stages then need less than this fraction of the energy
SAVING_FACTOR = 0.9999
# tiles of a stage that are tried with an upper limit of the initiation interval, where regions must leave few
# nodes idle
TILES_WITH_LIMIT = 60
TILES_PER_STAGE = 20  # tiles of a stage that are tried without a limit
SHARE_FACTOR = 1.3  # nodes of a stage lie within this factor above and below its share of the nodes (about)
MIN_CAPACITY_RATIO = 1.1  # capacity of a stage's nodes over its forwarded tiles and pinned weights, at least
# operations of all nodes (with padding of uneven tiles) over operations of the stage, at most
MAX_PADDING_RATIO = 1.15
# tiles whose numbers of nodes agree to the sixth of an octave count as alike in `_tiles_for`
STEPS_PER_OCTAVE = 6
# faster nests are searched too if the cheapest one takes more than this times the fewest cycles
MIN_SLOWDOWN = 1.02
# a choice is not priced if its estimated cost is at least this times the best known cost
ESTIMATE_MARGIN = 1.1
MAX_PLACED = 200  # choices whose regions are placed, per limit
MAX_PLACED_LIMITED = 5000  # the same with an upper limit of the initiation interval
MAX_ESTIMATED = 200  # choices that are listed to see whether stages within a limit fit on the nodes
MAX_LISTED = 5000  # choices that are listed by energy, per limit
MAX_ENUMERATED = 1 << 19  # if there are at most so many choices, all are enumerated after the listed ones
# a segment is solved if its lower bound is below this share of the lower bounds of its einsums alone
MAX_BOUND_SHARE = 0.99
MAX_NODE_SEARCHES = 400  # searches of node nests after which no further segments are solved
# choices are listed by energy with these shares of what leaks in the cycles of each stage, which count in the
# ramp-up unless main memory takes longer
WAITING_SHARES = (0.0, 0.3, 1.0)
# choices that are priced per limit for chosen segments, or with an upper limit of the initiation interval;
# also shapes of an einsum alone
REFINED_CHOICES = 6
# faster nests are not searched if they save less leakage than this share of a stage's energy
MIN_LEAKAGE_SHARE = 0.03
REFINED_TILES = 2  # tiles of an einsum that are searched again with a larger budget
# nodes of a machine and operations of an einsum, at most, where stages are also tried on fewer nodes than
# their share
FEW_NODES, MAX_SMALL_OPS = 16, 2**16
# tiles of an einsum alone that are searched; of those, with the same ranks cut
TILES_ALONE, TILES_PER_RANK_SET = 16, 4
# schedules that the search itself may miss, as certificates call them
OF_KAPLA, UNFUSED, HELD = "KAPLA's schedules", "unfused mappings", "held weights"
Unfused = Callable[[float], Solution | None]


def pipelined(
    arch: Arch,
    workload: Workload,
    objective: Objective,
    weights: str = "streamed",
    spatial: bool = True,
    temporal: bool = True,
    interval_limit: float = inf,
    latency_limit: float = inf,
    unfused: Unfused | None = None,
    constraints: ConstraintsOf = unconstrained,
) -> Solution | Infeasible:
    """Returns the best schedule found. Raises ValueError if the machine has no nodes for stages.

    spatial: einsums may run at once, on regions of nodes.
    temporal: segments may run pipeline tile by pipeline tile.
    interval_limit, latency_limit: upper limits of the workload's initiation interval and latency, in cycles.
    unfused: returns the answer of schedule unfused if its objective value is below a given one, else None.
        The answer here costs no more, unless weights are pinned or the unfused one exceeds a limit.
    constraints: what nests must satisfy inside of a node.
    """
    check(arch, "pipelined")
    nodes = Nodes(arch, rules=rules_of(arch, workload.einsums, constraints))
    search = partial(PipelineSearch, arch, workload, objective, weights, nodes)

    def within(g: PipelineSearch) -> Solution | Infeasible:
        held = _held(g, spatial, temporal) if weights == "streamed" else None
        return _pipelined(g, spatial, temporal, unfused, held)

    found, limited = within(search()), search(interval_limit, latency_limit)
    return found if isinstance(found, Infeasible) or keeps_limits(limited, found) else within(limited)


def _pipelined(
    g: PipelineSearch,
    spatial: bool,
    temporal: bool,
    unfused: Unfused | None = None,
    held: Solution | None = None,
) -> Solution | Infeasible:
    """Returns the best schedule found within the limits of a search, or `held`; as `pipelined`."""
    arch, workload = g.arch, g.workload
    max_stages, kapla_stages = (MAX_STAGES, MAX_EINSUMS) if spatial else (1, 1)
    pipeline_tiles = PIPELINE_TILES if temporal else NO_SHARED_LOOP
    ranges = [r for r in ranges_of(g, max_stages, pipeline_tiles) if fits(g, r)]
    kapla_alone, segment_options, _ = options(
        g, ranges_of(g, kapla_stages, ALL_TILE_COUNTS if temporal else NO_SHARED_LOOP)
    )
    alone = [
        cheaper(g, one, kapla_option)
        for one, kapla_option in zip(solve_alone(g, _alone), kapla_alone, strict=True)
    ]
    kapla_segments = dict(segment_options)
    lower_bounds, searches_before = _lower_bounds(g, ranges), g.nodes.searches
    for r in segments_to_solve(
        *lower_bounds, costs_add_up(g), lambda: _cheapest_chain(g, alone, segment_options)
    ):
        is_over = deadline.has_passed() or g.nodes.searches > searches_before + MAX_NODE_SEARCHES
        if is_over and isomorphism_key(g, r) not in g.segment_memo:
            g.unexplored += 1
        elif option := cheaper(
            g,
            memo_isomorphic(g, r, partial(_segment, g, r, alone[r.first : r.last + 1])),
            segment_options.get(r),
        ):
            segment_options[r] = option
    solution = best_chain(g, alone, segment_options)
    if isinstance(solution, Solution) and solution.schedule:
        chosen_segments = {
            tuple(branch.einsum for branch in segment.branches): segment
            for segment in solution.schedule.segments
            if segment.pipelined
        }
        g.segment_memo = {}  # isomorphic segments are refined once
        for r, one in segment_options.items():
            chosen = chosen_segments.get(tuple(e.name for e in workload.einsums[r.first : r.last + 1]))
            for way in one.ways():
                if way.segment == chosen:
                    refine = partial(_refine_chosen, g, r, way, alone[r.first : r.last + 1])
                    segment_options[r] = cheaper(g, memo_isomorphic(g, r, refine), one) or one
        solution = best_chain(g, alone, segment_options)
    effort_text = (
        f"{len(ranges) - g.unexplored} of {len(ranges)} segments, {g.nodes.searches} nests of nodes, "
        f"{g.undominated_stages} of {g.stages_priced} stages left, {g.evaluator_calls} priced"
    )
    is_in_space = isinstance(solution, Solution) and _in_bounded_space(g, solution)
    of_kapla = best_chain(g, kapla_alone, kapla_segments)
    others = [(OF_KAPLA, of_kapla)] if isinstance(of_kapla, Solution) else []
    others += [(HELD, held)] if held else []
    beside = (OF_KAPLA, *[HELD] * bool(held), *[UNFUSED] * bool(unfused))
    searched_space = replace(
        space(g, max_stages, pipeline_tiles, mappings_of("perfect", arch)), beside=beside
    )
    if unfused and g.weights == "streamed":
        answers = [one for one in (solution, of_kapla, held) if isinstance(one, Solution)]
        turns = unfused(min((cost(g, one) for one in answers), default=inf))
        others += _with_unfused(g, alone, segment_options, turns) if turns else []
    return _to_solution(
        g, solution, others, _lower_bound(g, lower_bounds), searched_space, effort_text, is_in_space
    )


def _held(g: PipelineSearch, spatial: bool, temporal: bool) -> Solution | None:
    """Returns the best schedule of pinned weights, each loaded once as its segment begins; None if not all
    weights fit on the nodes, or that schedule exceeds a limit.
    """
    level, weights = g.arch.levels[1], dict[str, int]()
    for p in (p for e in g.workload.einsums for p in e.inputs if p.tensor in g.workload.weights):
        weights[p.tensor] = p.stored_bits(g.arch.word_bits)
    if not weights or sum(weights.values()) > g.arch.instances(1) * (level.capacity_bits or inf):
        return None
    limits = g.interval_limit, g.latency_limit
    search = PipelineSearch(g.arch, g.workload, g.objective, "pinned", g.nodes, *limits)
    of_pinned = _pipelined(search, spatial, temporal)
    if isinstance(of_pinned, Infeasible) or not of_pinned.schedule:
        return None
    loaded = Schedule(tuple(_loading(g, one) for one in of_pinned.schedule.segments))
    if faults(g.arch, g.workload, loaded):
        return None
    found = evaluate(g.arch, g.workload, loaded, g.objective, reuse=True)
    return found if isinstance(found, Solution) and keeps_limits(g, found) else None


def _loading(g: PipelineSearch, segment: Segment) -> Segment:
    """Returns a segment of pinned weights with each loaded once, as the segment begins: stages hold them."""
    outer, einsums = g.arch.levels[0].name, {e.name: e for e in g.workload.einsums}
    nodes, branches = list(segment.nodes), list[Branch]()
    for branch in segment.branches:
        weights = [p.tensor for p in einsums[branch.einsum].inputs if p.tensor in g.workload.weights]
        loads = [Store(outer, t) for t in weights]
        own = [node for node in branch.mapping.nodes if isinstance(node, Store)]
        if segment.pipelined:
            nodes = [*(one for one in loads if one not in nodes), *nodes]
            homes = (next(node for node in own if node.tensor == t) for t in weights)
            branches.append(replace(branch, filled_once=tuple(homes)))
        else:
            mapping = replace(branch.mapping, nodes=(*loads, *branch.mapping.nodes))
            branches.append(replace(branch, mapping=mapping))
    return replace(segment, nodes=tuple(nodes), branches=tuple(branches))


class Bound(NamedTuple):
    """Lower bounds of what a segment, or an einsum alone, costs."""

    energy: float  # pJ, with leakage
    cycles: float


def costs_add_up(g: PipelineSearch) -> bool:
    """True if the cost of a chain is the sum over its segments: energy alone, no pinned weights, no limit."""
    return g.objective == "energy" and g.weights == "streamed" and g.limit == inf


def segments_to_solve(
    alone: Sequence[Bound], bounds: dict[Range, Bound], is_additive: bool, cheapest_chain: Callable[[], float]
) -> Iterator[Range]:
    """Yields the segments that may be in the cheapest chain. Segments of the same einsums follow one another,
    the one without a shared loop first. They are ordered by the lowest bound of all chains through them.

    alone, bounds: lower bounds of einsums alone and of segments.
    is_additive: costs of segments add up (`costs_add_up`); else no segment is left out.
    cheapest_chain: returns the energy of the best chain known so far.
    """
    ends, begins = _chain_costs([one.energy for one in alone], {r: one.energy for r, one in bounds.items()})
    # lowest bound of all chains through each segment
    through = {r: ends[r.first] + one.energy + begins[r.last + 1] for r, one in bounds.items()}
    best_through = {
        (r.first, r.last): min(low for s, low in through.items() if (s.first, s.last) == (r.first, r.last))
        for r in through
    }
    for r in sorted(through, key=lambda r: (best_through[r.first, r.last], r.tile > 0, through[r])):
        unfused_pj = sum(one.energy for one in alone[r.first : r.last + 1])
        is_skipped = is_additive and (
            through[r] >= cheapest_chain() or bounds[r].energy >= MAX_BOUND_SHARE * unfused_pj
        )
        if through[r] < inf and not is_skipped:
            yield r


def _with_unfused(
    g: PipelineSearch, alone: Sequence[Option | None], segment_options: dict[Range, Option], unfused: Solution
) -> list[tuple[str, Solution]]:
    """Returns schedules with einsums mapped as in the unfused answer, with names for certificates: some of
    them between segments, and that answer itself unless it exceeds the limit.
    """
    turns = sequential(g.workload, {c.name: c.mapping for c in unfused.einsums})
    nests = {branch.einsum: branch.mapping for one in turns.segments for branch in one.branches}

    def in_turn(g: PipelineSearch, e: Einsum) -> Option | None:
        return (
            None
            if nests[e.name].non_nest_text
            else price_of(g, (e,), Segment((Branch(e.name, nests[e.name]),)))
        )

    unpipelined = solve_alone(replace(g, alone_memo={}), in_turn)
    mixed = [cheaper(g, one, other) for one, other in zip(alone, unpipelined, strict=True)]
    found = best_chain(g, mixed, segment_options)
    schedules = [(f"segments and {UNFUSED}", found)] if isinstance(found, Solution) else []
    if keeps_limits(g, unfused):
        schedules.append((UNFUSED, among_schedules(unfused, g.arch, g.workload, g.objective)))
    return schedules


def _cheapest_chain(
    g: PipelineSearch, alone: Sequence[Option | None], segment_options: dict[Range, Option]
) -> float:
    """Returns the lowest sum of objective values over chains of the given segments and einsums alone. Buffer
    space that pinned weights take from other segments is ignored.
    """
    return _chain_costs(
        [value(g, one) if one else inf for one in alone],
        {r: value(g, one) for r, one in segment_options.items()},
    )[0][-1]


def _alone(g: PipelineSearch, e: Einsum) -> Option | None:
    """Returns the best way found to run an einsum alone, on any number of nodes. Tiles are searched in order
    of their lower bounds, until the next bound reaches ESTIMATE_MARGIN times the best estimate.
    """
    context = StageContext(pinned=pinned(g, e))
    sharing, leak = _sharing_bounds(g, e, context), leak_pj(g)
    cycles = np.maximum(sharing.cycles, time_of([lower_bound(e, g.arch, pinned=context.pinned)], g.arch))
    lower_bounds = [
        objective_value(g.objective, energy + leak * way_cycles, way_cycles)
        for energy, way_cycles in zip(sharing.energy.tolist(), cycles.tolist(), strict=True)
    ]
    found: list[Stage] = []
    best_value = inf
    ways = [i for i, energy in enumerate(sharing.energy) if energy < inf]
    searched: dict[tuple[str, ...], int] = {}
    for way in sorted(ways, key=lambda i: lower_bounds[i]):
        ranks = tuple(sharing.tile(way, e))
        if lower_bounds[way] >= ESTIMATE_MARGIN * best_value or sum(searched.values()) == TILES_ALONE:
            break
        if searched.setdefault(ranks, 0) == TILES_PER_RANK_SET:
            continue
        searched[ranks] += 1
        found += _candidates(g, e, sharing.tile(way, e), context, best_value)
        best_value = min([best_value, *(_rough_value(g, [one], 1) for one in found)])
    if g.limit < inf:  # the fastest tiles, too
        for way in sorted(ways, key=lambda i: (cycles[i], lower_bounds[i]))[:TILES_PER_RANK_SET]:
            found += _candidates(g, e, sharing.tile(way, e), context, is_limited=True)
    # for each set of cut ranks the tile of lowest bound
    by_cut_ranks = list({tuple(rank for rank, _ in one.tile): one for one in reversed(found)}.values())[::-1]
    found.sort(key=lambda one: _rough_value(g, [one], 1))
    to_refine = {one.tile: one for one in (*found[:REFINED_TILES], *by_cut_ranks[:REFINED_TILES])}.values()
    found = sorted(
        [*found, *(refined for stage in to_refine if (refined := _refined_stage(g, e, stage.tile, context)))],
        key=lambda one: _rough_value(g, [one], 1),
    )
    tried = found[:MAX_TRIALS]
    if g.limit < inf:
        tried += sorted(found[MAX_TRIALS:], key=lambda one: one.cycles)[:MAX_FASTER]
    priced = [(one, stage) for stage in tried if (one := price_by_itself(g, e, stage, stage.shapes[0]))]
    priced.sort(key=lambda pair: value(g, pair[0]))
    best = None
    for option, _ in priced if g.limit < inf else priced[:1]:
        best = cheaper(g, best, option)
    for _, stage in priced[:2]:
        for shape in stage.shapes[1:REFINED_CHOICES]:
            best = cheaper(g, best, price_by_itself(g, e, stage, shape))
    return cheapest_orders(g, (e,), best) if best else None


def _refined_stage(
    g: PipelineSearch, e: Einsum, tile: tuple[tuple[str, int], ...], context: StageContext
) -> Stage | None:
    """Returns the stage of a tile, searched with a larger budget."""
    return g.nodes.stage(
        e, dict(tile), context, "energy" if g.objective == "energy" else "edp", thorough=True
    )


def _refine_chosen(g: PipelineSearch, r: Range, option: Option, alone: Sequence[Option | None]) -> Option:
    """Returns a segment of the best chain after a closer search: more choices priced, nests searched with a
    larger budget, regions rearranged.
    """
    refined = cheaper(g, _segment(g, r, alone, REFINED_CHOICES), option) or option
    placed = cheapest_regions(g, r, cheapest_placement(g, r, _refine(g, r, refined)))
    return cheapest_orders(g, g.workload.einsums[r.first : r.last + 1], placed)


def _refine(g: PipelineSearch, r: Range, option: Option) -> Option:
    """Returns a segment whose stages, one after the other, are searched with a larger budget in their
    regions. Each stage tries its present tile, the tile of lowest bound that cuts other ranks, and the tiles
    of lowest energy among those of lowest bounds.
    """
    einsums = g.workload.einsums[r.first : r.last + 1]
    members = members_of(g, r) or []
    outer = g.arch.levels[0].name
    (row_dim, _), (column_dim, _) = g.arch.fanouts[0].dims
    for j, (e, context) in enumerate(members):
        row_region, column_region = (
            {part.dim: part for part in option.segment.branches[j].region}[dim]
            for dim in (row_dim, column_dim)
        )
        tile: dict[str, int] = {}  # the present tile of one node, by cut rank
        for node in option.segment.branches[j].mapping.nodes:
            if isinstance(node, Loop) and node.over in (row_dim, column_dim):
                tile[node.rank] = min(node.tile, tile.get(node.rank, node.tile))
        # tile_by_ranks: cut ranks -> first tile that cuts them; the present tile comes first
        sharing, tile_by_ranks = _sharing_bounds(g, e, context), {tuple(sorted(tile)): tile}
        stages = list[Stage]()
        for way in np.argsort(
            np.where(sharing.nodes <= row_region.size * column_region.size, sharing.energy, inf),
            kind="stable",
        )[:TILES_ALONE].tolist():
            other_tile = sharing.tile(way, e)
            tile_by_ranks.setdefault(tuple(sorted(other_tile)), other_tile)
            stages += [stage] if (stage := g.nodes.stage(e, other_tile, context, "energy")) else []
        stages.sort(key=lambda one: one.energy)
        tiles = [*tile_by_ranks.values()][:REFINED_TILES] + [dict(one.tile) for one in stages[:REFINED_TILES]]
        for other_tile in [one for i, one in enumerate(tiles) if one not in tiles[:i]]:
            stage = _refined_stage(g, e, tuple(other_tile.items()), context)
            shape = (
                next(
                    (
                        s
                        for s in stage.shapes
                        if s.rows <= row_region.size and s.columns <= column_region.size
                    ),
                    None,
                )
                if stage
                else None
            )
            if stage and shape:
                branch = replace(
                    option.segment.branches[j],
                    mapping=own_nest(stage, shape, e, context, outer),
                    region=(
                        Region(row_dim, row_region.first, shape.rows),
                        Region(column_dim, column_region.first, shape.columns),
                    ),
                )
                branches = tuple(branch if i == j else b for i, b in enumerate(option.segment.branches))
                found = price_of(g, einsums, replace(option.segment, branches=branches))
                option = cheaper(g, found, option) or option
    return option


def _candidates(
    g: PipelineSearch,
    e: Einsum,
    tile: dict[str, int],
    context: StageContext,
    best_value: float = inf,
    is_limited: bool = False,
) -> list[Stage]:
    """Returns ways to run a tile: the nest of lowest energy and, if they may pay, the nests of lowest EDP and
    of lowest latency. They may pay if the first nest leaves MAC units idle, leakage or a limit on cycles
    (`is_limited`) matters, and the same energy at full speed would cost less than `best_value`.
    """
    stage = g.nodes.stage(e, tile, context, "energy")
    if not stage:
        return []
    tile_nodes, node_count = prod(-(-n // tile.get(rank, n)) for rank, n in e.extents), g.arch.instances(1)
    # cycles with all MAC units of the nodes at work
    full_speed_cycles = e.points() / tile_nodes / g.arch.instances(len(g.arch.levels)) * node_count
    leak = leak_pj(g)
    saves_little = (
        g.objective == "energy"
        and not is_limited
        and leak * (stage.cycles - full_speed_cycles) <= MIN_LEAKAGE_SHARE * stage.energy
    )
    if (
        saves_little
        or stage.cycles <= MIN_SLOWDOWN * full_speed_cycles
        or objective_value(g.objective, stage.energy + leak * full_speed_cycles, full_speed_cycles)
        >= best_value
    ):
        return [stage]
    return [
        stage,
        *(fast for objective in ("edp", "latency") if (fast := g.nodes.stage(e, tile, context, objective))),
    ]


def _rough_value(
    g: PipelineSearch, stages: Sequence[Stage], pipeline_tiles: int, min_cycles: float = 0.0
) -> float:
    """Returns an estimated objective value of stages that run at once, ramp-up included.
    min_cycles: of main memory, for all pipeline tiles.
    """
    energy = sum(one.energy for one in stages) * pipeline_tiles
    cycles = max(filled_cycles([one.cycles for one in stages], pipeline_tiles), min_cycles)
    return objective_value(g.objective, energy + leak_pj(g) * cycles, cycles)


def _stages(
    g: PipelineSearch,
    e: Einsum,
    context: StageContext,
    share: float,
    max_tiles: int = TILES_PER_STAGE,
    limit: float = inf,
) -> list[Stage]:
    """Returns the undominated ways (in energy, cycles and shapes) to run an einsum on about a share of the
    nodes within `limit` cycles. If there are none without a limit, half the share is tried.
    """
    node_count = g.arch.instances(1)
    key = (e, context, round(share * node_count), max_tiles, limit)
    if key not in g.stage_memo:
        found = [
            stage
            for tile in _tiles_for(g, e, context, share * node_count, max_tiles, limit)
            for stage in _candidates(g, e, tile, context, is_limited=limit < inf)
        ]
        g.stages_priced += len(found)
        undominated: list[Stage] = []
        for one in sorted(
            (one for one in found if one.cycles <= limit), key=lambda s: (s.energy, s.cycles, s.nodes)
        ):
            if not any(better.cycles <= one.cycles and _fits_inside(better, one) for better in undominated):
                undominated.append(one)
        g.undominated_stages += len(undominated)
        g.stage_memo[key] = undominated or (
            _stages(g, e, context, share / 2, max_tiles, limit)
            if share * node_count > 1 and limit == inf
            else []
        )
    return g.stage_memo[key]


def _stages_by_share(
    g: PipelineSearch, e: Einsum, context: StageContext, share: float, max_tiles: int, limit: float
) -> list[Stage]:
    """Returns ways to run an einsum on its share of the nodes and, for small einsums on machines of few
    nodes, on 1, 2, 4 and 8 nodes. Fewer nodes read tensors fewer times that each node needs for itself.
    """
    node_count = g.arch.instances(1)
    node_counts = (
        [n for n in (1, 2, 4, 8) if n < share * node_count / SHARE_FACTOR - 2]
        if node_count <= FEW_NODES and e.points() <= MAX_SMALL_OPS
        else []
    )
    return [
        stage
        for node_share in (share, *(n / node_count for n in node_counts))
        for stage in _stages(g, e, context, node_share, max_tiles, limit)
    ]


def _fits_inside(one: Stage, other: Stage) -> bool:
    """True if each rectangle of `other` contains a rectangle of `one`."""
    return all(any(a.rows <= b.rows and a.columns <= b.columns for a in one.shapes) for b in other.shapes)


def _tiles_for(
    g: PipelineSearch, e: Einsum, context: StageContext, wanted_nodes: float, max_tiles: int, limit: float
) -> list[dict[str, int]]:
    """Returns up to `max_tiles` tiles for about `wanted_nodes` nodes. Tiles form a class if they cut the
    same ranks, and their numbers of nodes are as far from `wanted_nodes` (to 1/STEPS_PER_OCTAVE of an
    octave). The tile with the lowest energy bound of each class comes first, then the second ones, and so on.
    Of tiles with about the same operations per node and cuts per rank only the cheapest is kept.
    """
    best_of_class: dict[tuple[object, ...], tuple[float, dict[str, int]]] = {}
    sizes, node_count, sharing = e.sizes(), g.arch.instances(1), _sharing_bounds(g, e, context)
    units_per_node = g.arch.instances(len(g.arch.levels)) / node_count
    # [ways] operations of one node
    node_ops = np.prod(sharing.tiles, axis=1) * (e.points() // prod(sizes[rank] for rank in sharing.ranks))
    is_candidate = (sharing.energy < inf) & (sharing.nodes <= round(SHARE_FACTOR * wanted_nodes) + 3)
    min_nodes = min(wanted_nodes / SHARE_FACTOR - 2, int(sharing.nodes[is_candidate].max(initial=0)))
    for way in np.flatnonzero(
        is_candidate
        & (sharing.nodes >= min_nodes)
        & (node_ops <= limit * units_per_node)
        & (node_ops * sharing.nodes <= MAX_PADDING_RATIO * e.points())
    ).tolist():
        tile = sharing.tile(way, e)
        tile_class = (
            round(50 * log(node_ops[way])),
            *((rank, round(log2(-(-sizes[rank] // t)))) for rank, t in tile.items()),
        )
        best_of_class[tile_class] = min(
            best_of_class.get(tile_class, (inf, tile)),
            (float(sharing.energy[way]), tile),
            key=lambda one: one[0],
        )
    # (place among the tiles of its class, energy bound, tile)
    ranked: list[tuple[int, float, dict[str, int]]] = []
    class_counts: dict[object, int] = {}
    for energy, tile in sorted(best_of_class.values(), key=lambda one: one[0]):
        tile_nodes = prod(-(-sizes[rank] // t) for rank, t in tile.items())
        node_class = abs(round(STEPS_PER_OCTAVE * log2(tile_nodes / wanted_nodes))), *tile
        class_counts[node_class] = class_counts.get(node_class, 0) + 1
        ranked.append((class_counts[node_class], energy, tile))
    return [tile for _, _, tile in sorted(ranked, key=lambda one: one[:2])[:max_tiles]]


def _segment(
    g: PipelineSearch, r: Range, alone: Sequence[Option | None], max_priced: int = 1
) -> Option | None:
    """Returns the best way found to run a segment; None: none fits. Without a limit, choices that are
    expected to cost more than the einsums alone are not priced. max_priced: choices that are priced per limit
    on the cycles of a stage; with a limit of the workload REFINED_CHOICES.
    """
    members = members_of(g, r)
    if members is None:
        return None
    einsums = g.workload.einsums[r.first : r.last + 1]
    tile_count = einsums[0].points() // members[0][0].points()
    best: Option | None = None
    alone_value = (
        sum(value(g, option) if option else inf for option in alone)
        if g.objective != "edp" and g.weights != "pinned"
        else inf
    )
    shares = _shares(g, members, adds_up=tile_count == 1 and g.limit == inf)
    min_cycles = tile_count * _memory_cycles(g, members)
    # with a limit, stages within it after those of the best segment without, which may keep it
    for max_cycles in sorted({g.limit, inf}, reverse=True):
        max_tiles = TILES_PER_STAGE if max_cycles == inf else TILES_WITH_LIMIT
        ways = [
            _stages_by_share(g, part, context, share, max_tiles, max_cycles / tile_count)
            for (part, context), share in zip(members, shares, strict=True)
        ]
        if not all(ways):
            continue
        for limit in _limits(ways, g.arch.instances(1)):
            priced, within = 0, [[s for s in each if s.cycles <= limit] for each in ways]
            for rough_value, choice in _choices(g, within, tile_count, min_cycles, max_cycles < inf):
                # dearer ones may be faster: with a limit none is left out
                if (
                    g.objective == "energy"
                    and g.limit == inf
                    and rough_value >= ESTIMATE_MARGIN * min(alone_value, value(g, best) if best else inf)
                ):
                    break
                if regions := place_regions(g, choice):
                    contexts = [context for _, context in members]
                    segment = to_segment(g, r, einsums, choice, regions, contexts)
                    best = cheaper(g, price_of(g, einsums, segment), best)
                    priced = priced + 1
                    if priced == (max_priced if g.limit == inf else REFINED_CHOICES):
                        break
    return best


def _choices(
    g: PipelineSearch,
    stages_of: Sequence[Sequence[Stage]],
    tile_count: int,
    min_cycles: float,
    is_limited: bool,
) -> list[tuple[float, list[Stage]]]:
    """Returns choices of a way per stage that are tried, with their estimated objective values, best first:
    those of lowest energy, also with shares of what leaks in a stage's cycles (WAITING_SHARES). With a limit:
    those of lowest energy, in this order.

    min_cycles: of main memory, for all pipeline tiles; is_limited: whether stages keep to a limit
    """
    found = dict[tuple[tuple[int, int], ...], list[Stage]]()
    for waiting in (0.0,) if g.limit < inf else WAITING_SHARES:
        cycle_pj = waiting * leak_pj(g) / tile_count
        waited = [[replace(s, energy=s.energy + cycle_pj * s.cycles) for s in stages] for stages in stages_of]
        at = {id(s): (i, j) for i, stages in enumerate(waited) for j, s in enumerate(stages)}
        for choice in islice(
            _combinations(waited, g.arch.instances(1)), MAX_PLACED_LIMITED if is_limited else MAX_PLACED
        ):
            key = tuple(at[id(s)] for s in choice)
            found[key] = [stages_of[i][j] for i, j in key]
    rated = [(_rough_value(g, choice, tile_count, min_cycles), choice) for choice in found.values()]
    return rated if g.limit < inf else sorted(rated, key=lambda one: one[0])


def _memory_cycles(g: PipelineSearch, members: Sequence[tuple[Einsum, StageContext]]) -> float:
    """Returns a lower bound on the cycles of main memory for one pipeline tile of a segment."""
    bounds = [
        lower_bound(e, g.arch, a.forwarded, a.pinned, a.forwards and not a.spilled, skip_registers=True)
        for e, a in members
    ]
    return time_of([replace(one, compute=0.0) for one in bounds], g.arch)


def _shares(
    g: PipelineSearch, members: Sequence[tuple[Einsum, StageContext]], adds_up: bool = False
) -> list[float]:
    """Returns the share of the nodes of each stage, so that all stages take equally long, at least as long as
    main memory takes. A stage gets more nodes if its forwarded tiles and pinned weights need them.

    adds_up: stages run one after the other (one pipeline tile), so their cycles together are least, at least
        as many as main memory takes: nodes in proportion to the root of a stage's work
    """
    node_count = g.arch.instances(1)
    node_bits = g.arch.levels[1].capacity_bits or inf
    work = [float(e.points()) for e, _ in members]
    if adds_up:
        work = [sqrt(n) * sum(map(sqrt, work)) for n in work]
    min_nodes = [
        ceil(MIN_CAPACITY_RATIO * stage_bits(e, context, g.arch) / node_bits)
        if context.forwards or context.pinned
        else 0
        for e, context in members
    ]
    memory = _memory_cycles(g, members)
    # operations that one node does while all stages run
    node_ops = max(sum(work) / node_count, memory * g.arch.instances(len(g.arch.levels)) / node_count)
    # stages that need more nodes than their work asks for leave fewer to the others, which may then be short
    for _ in members:
        is_short = [n > w / node_ops for n, w in zip(min_nodes, work, strict=True)]
        free_nodes = node_count - sum(n for n, short in zip(min_nodes, is_short, strict=True) if short)
        node_ops = max(
            node_ops,
            sum(w for w, short in zip(work, is_short, strict=True) if not short) / max(free_nodes, 1),
        )
    return [max(n, w / node_ops) / node_count for n, w in zip(min_nodes, work, strict=True)]


def _limits(stages_of: Sequence[Sequence[Stage]], nodes: int) -> list[float]:
    """Returns up to MAX_TRIALS limits on the cycles of a stage, tightest first. Within each all stages fit on
    the nodes together, and cost less energy than within the tighter ones.
    """
    lowest, found = inf, list[float]()
    for limit in sorted({stage.cycles for stages in stages_of for stage in stages}):
        within_limit = [[s for s in stages if s.cycles <= limit] for stages in stages_of]
        energy = sum(min((s.energy for s in stages), default=inf) for stages in within_limit)
        if energy < lowest * SAVING_FACTOR:
            energy = sum(s.energy for s in next(_combinations(within_limit, nodes, MAX_ESTIMATED), [])) or inf
        if energy < lowest * SAVING_FACTOR:
            found, lowest = [*found, limit], energy
    picked = (
        sorted({round(i) for i in np.geomspace(1, len(found), min(MAX_TRIALS, len(found)))}) if found else []
    )
    return [found[i - 1] for i in picked]


def _combinations(
    stages_of: Sequence[Sequence[Stage]], nodes: int, max_listed: int = MAX_LISTED
) -> Iterator[list[Stage]]:
    """Yields choices of a way per stage that need no more nodes than there are.

    First those that `_cheapest` lists, by energy. Then, where the listed ones may all need too many nodes:
    every choice by energy, if there are at most MAX_ENUMERATED; else the cheapest choice of each number of
    nodes.
    """
    yield from _cheapest(stages_of, nodes, max_listed)
    if prod(map(len, stages_of)) <= MAX_ENUMERATED:
        # of every choice: arrays with one axis per stage, over its ways
        energy, node_counts = (
            sum(
                np.ix_(*(np.array([getattr(s, name) for s in stages], float) for stages in stages_of)),
                np.zeros(()),
            )
            for name in ("energy", "nodes")
        )
        for indices in sorted(
            np.argwhere(node_counts <= nodes).tolist(), key=lambda indices: (energy[tuple(indices)], indices)
        ):
            yield [stages[i] for stages, i in zip(stages_of, indices, strict=True)]
        return
    # best[n]: the cheapest choice on at most n nodes, with its energy
    best: list[tuple[float, list[Stage]]] = [(0.0, [])] * (nodes + 1)
    for stages in stages_of:
        previous, no_choice = best, (inf, list[Stage]())
        best = [
            min(
                (
                    (previous[n - s.nodes][0] + s.energy, [*previous[n - s.nodes][1], s])
                    for s in stages
                    if s.nodes <= n
                ),
                key=lambda one: one[0],
                default=no_choice,
            )
            for n in range(nodes + 1)
        ]
    yield from (
        choice
        for n, (energy, choice) in enumerate(best)
        if energy < inf and (n == 0 or energy < best[n - 1][0])
    )


def _cheapest(
    stages_of: Sequence[Sequence[Stage]], nodes: int, max_choices: int = MAX_LISTED
) -> Iterator[list[Stage]]:
    """Yields choices of a way per stage that need no more nodes than there are, lowest energy first, among
    the first `max_choices` choices by energy.
    """
    ranked = [sorted(stages, key=lambda s: (s.energy, s.nodes)) for stages in stages_of]
    first = (0,) * len(ranked)
    queue, seen = [(0.0, first)] if all(ranked) else [], {first}
    while queue:
        _, indices = heappop(queue)
        choice = [stages[i] for stages, i in zip(ranked, indices, strict=True)]
        if sum(s.nodes for s in choice) <= nodes:
            yield choice
        for j, i in enumerate(indices):
            next_indices = (*indices[:j], i + 1, *indices[j + 1 :])
            if i + 1 < len(ranked[j]) and next_indices not in seen and len(seen) < max_choices:
                seen.add(next_indices)
                heappush(
                    queue,
                    (
                        sum(stages[k].energy for stages, k in zip(ranked, next_indices, strict=True)),
                        next_indices,
                    ),
                )


def _sharing_bounds(g: PipelineSearch, e: Einsum, context: StageContext) -> SharingBounds:
    """Returns the lower bounds of a stage, computed once for equal stages."""
    inside = tuple((p.tensor in context.forwarded, p.tensor in context.pinned) for p in e.inputs)
    key = (
        canonical_key(e),
        tuple(e.sizes()),
        inside,
        replace(context, forwarded=frozenset(), pinned=frozenset()),
    )
    if key not in g.sharing_bounds:
        g.sharing_bounds[key] = sharing_bounds(e, g.arch, context)
    return g.sharing_bounds[key]


def _segment_bound(
    g: PipelineSearch, members: Sequence[tuple[Einsum, StageContext]], tile_count: int
) -> Bound:
    """Returns the lower bounds of a segment of `tile_count` pipeline tiles."""
    bounds = [lower_bound(e, g.arch, a.forwarded, a.pinned, a.forwards and not a.spilled) for e, a in members]
    work = [one.compute for one in bounds]
    cycles = max(tile_count * time_of(bounds, g.arch), minimum_filled_cycles(work, tile_count))
    sharing = [_sharing_bounds(g, e, context) for e, context in members]
    energy = minimum_filled_energy(sharing, g.arch.instances(1), tile_count, cycles, sum(work), leak_pj(g))
    return Bound(energy, cycles)


def _lower_bounds(g: PipelineSearch, ranges: Sequence[Range]) -> tuple[list[Bound], dict[Range, Bound]]:
    """Returns lower bounds of every einsum alone, and of segments."""
    w = g.workload
    alone = []
    for e, n in zip(w.einsums, counts(w), strict=True):
        energy, cycles = _segment_bound(g, [(e, StageContext(pinned=pinned(g, e)))], 1)
        alone.append(Bound(n * energy, n * cycles))
    segment_bounds = {}
    for r in ranges:
        if members := members_of(g, r):
            segment_bounds[r] = _segment_bound(
                g, members, w.einsums[r.first].points() // members[0][0].points()
            )
    return alone, segment_bounds


def _chain_costs(
    alone: Sequence[float], segment_options: dict[Range, float]
) -> tuple[list[float], list[float]]:
    """Returns two lists, by position of an einsum: the lowest cost of all chains that end before it, and of
    all that begin with it. alone, segment_options: costs of einsums alone and of segments.
    """
    n = len(alone)
    ends, begins = [0.0] + [inf] * n, [inf] * n + [0.0]
    for i in range(n):
        ends[i + 1] = min(
            [
                ends[i] + alone[i],
                *(ends[r.first] + value for r, value in segment_options.items() if r.last == i),
            ]
        )
    for i in reversed(range(n)):
        begins[i] = min(
            [
                begins[i + 1] + alone[i],
                *(begins[r.last + 1] + value for r, value in segment_options.items() if r.first == i),
            ]
        )
    return ends, begins


def _lower_bound(g: PipelineSearch, lower_bounds: tuple[list[Bound], dict[Range, Bound]]) -> float:
    """Returns a lower bound on the objective value of all schedules of the space, from the cheapest chains
    for energy and for cycles.
    """
    alone, segment_bounds = lower_bounds
    energy, cycles = (
        _chain_costs([bound[i] for bound in alone], {r: bound[i] for r, bound in segment_bounds.items()})[0][
            -1
        ]
        for i in (0, 1)
    )
    return objective_value(g.objective, energy, cycles)


def _in_bounded_space(g: PipelineSearch, solution: Solution) -> bool:
    """True if a schedule lies in the space of the lower bounds. Schedules of KAPLA's solver and of the
    mapper may lie outside: other numbers of pipeline tiles, more ranks or windows cut over nodes, uneven
    temporal loops, weights that are loaded once, tiles that are shared out.
    """
    branches = (
        [b for segment in solution.schedule.segments for b in segment.branches] if solution.schedule else []
    )
    nests = {b.einsum: b.mapping for b in branches} or {c.name: c.mapping for c in solution.einsums}
    dims = [name for name, _ in g.arch.fanouts[0].dims]
    sizes = {e.name: e.sizes() for e in g.workload.einsums}
    for segment in solution.schedule.segments if solution.schedule else ():
        shared = [
            (sizes[segment.branches[0].einsum][node.rank], node.tile)
            for node in segment.nodes
            if isinstance(node, Loop)
        ]
        if any(n // tile not in tile_counts(n, PIPELINE_TILES) for n, tile in shared):
            return False
    if any(b.filled_once for b in branches) or any(nest.shares for nest in nests.values()):
        return False
    windows = {e.name: windowed_ranks(e) for e in g.workload.einsums}
    for name, nest in nests.items():
        tile_of = sizes[name]
        cut = {node.rank for node in nest.nodes if isinstance(node, Loop) and node.over in dims}
        for node in nest.nodes:
            if isinstance(node, Loop):
                if (
                    len(cut) > 2
                    or cut & windows[name]
                    or (node.over not in dims and tile_of[node.rank] % node.tile)
                ):
                    return False
                tile_of[node.rank] = node.tile
    return True


def _to_solution(
    g: PipelineSearch,
    solution: Solution | Infeasible,
    others: Sequence[tuple[str, Solution]],
    space_bound: float,
    searched_space: Space,
    effort_text: str,
    is_in_space: bool = True,
) -> Solution | Infeasible:
    """Returns the best schedule of a search and of `others`, with its optimality gap to the searched space.
    The certificate names that of `others` which was taken.
    space_bound: lower bound of that space; is_in_space: whether `solution` lies in it.
    """
    if (
        isinstance(solution, Solution)
        and space_bound > cost(g, solution) * (1 + ROUNDING_GAP)
        and is_in_space
    ):
        raise Violated(
            f"{g.workload.name} on {g.arch.name}: lower bound {space_bound} above the cost "
            f"{cost(g, solution)} of\n{solution.schedule}"
        )
    if isinstance(solution, Infeasible) and not others:
        return solution
    # the schedule of the search where costs are equal
    own = [("", solution)] if isinstance(solution, Solution) else []
    name, best = min([*own, *others], key=lambda one: cost(g, one[1]))
    gap = min(relative_gap(cost(g, best), space_bound), best.gap_to_bound)
    gap = gap if gap > ROUNDING_GAP else 0.0
    assumptions = "; ".join(
        part for part in best.certificate.split("; ") if part.startswith(("weights", "cycles", "leakage"))
    )
    # a schedule of `others` may lie outside of the space, below its lower bound
    is_in_space &= best is solution
    is_above_bound = is_in_space and cost(g, best) >= space_bound * (1 - ROUNDING_GAP)
    taken = f", taken: {name}" if name else ""
    text = certificate_text(
        f"{gap_in_space_text(gap, is_above_bound)} ({effort_text}{taken})",
        best.gap_to_bound,
        any_schedule(g.workload, g.weights == "pinned"),
        searched_space,
    )
    return replace(
        best,
        optimality_gap=gap,
        certificate=f"{assumptions}; {text}" if assumptions else text,
        space=searched_space,
    )
