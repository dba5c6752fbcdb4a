"""The search of schedule pipelined: segments of einsums that run at once on regions of nodes (docs/reuse.md,
Pipelines).

1. Ways to run each stage are collected, on about its share of the nodes and at different speeds.
2. For each of several limits on the cycles of a stage, tightest first, the cheapest choices of one way per
   stage are listed that need no more nodes than there are.
3. Regions of a choice are placed side by side, and the evaluator prices the segment.
4. The best chain of segments and einsums alone is chosen (`segments.best_chain`).

KAPLA's published solver always runs as well. On few nodes, einsums of little work are also mapped without
pipelining. The best of all is returned. Tests compare small workloads with an enumeration of the whole space
(`tests/enumerated_pipelines.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from heapq import heappop, heappush
from itertools import islice
from math import ceil, inf, log, log2, prod

import numpy as np

from dse.mapper.exact.optimal import optimal
from dse.mapping.nest import Infeasible, Loop
from dse.mapping.schedule import Branch, Region, Segment
from dse.mapping.searched import Space, mappings_of, tile_counts
from dse.sim.einsum.evaluate import (
    PRECISE,
    Problem,
    Solution,
    Violated,
    certificate_text,
    gap_in_space_text,
    objective_value,
    relative_gap,
)
from dse.sim.fronts import Objective
from dse.sim.schedule.graph import any_schedule
from dse.solve.kapla.published import MAX_EINSUMS, options
from dse.solve.schedules.einsum_bounds import lower_bound
from dse.solve.schedules.segments import (
    EVERY,
    MAX_STAGES,
    ONE,
    PIPELINE_TILES,
    Option,
    PipelineSearch,
    Range,
    best_chain,
    cheapest_placement,
    check,
    fits,
    isomorphism_key,
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
from dse.solve.schedules.stage_bounds import SharingBounds, by_nodes, minimum_energy, sharing_bounds, time_of
from dse.solve.schedules.stages import Nodes, Stage, StageContext, own_nest, stage_bits, with_homes
from hw.arch import Arch
from workloads.einsum import Einsum, canonical_key
from workloads.graph import Workload, counts

# Limits of the search, which trade its time for quality. A "tile" is the tile of one node (`stages.tiles`), a
# "choice" is one way to run each stage of a segment, a "limit" is one on the cycles of a stage.
TRIED = 12  # limits that are tried; stages of an einsum alone that are priced
LESS = 0.9999  # a looser limit is tried if the stages then need less than this fraction of the energy
# tiles of a stage that are tried with an upper limit of the initiation interval, where regions must leave few
# nodes idle
TIGHT = 60
PARTS = 20  # tiles of a stage that are tried without a limit
WIDE = 1.3  # nodes of a stage lie within this factor above and below its share of the nodes (about)
NODES_SCARCE = 1.1  # capacity of a stage's nodes over its forwarded tiles and pinned weights, at least
PADDED = 1.15  # operations of all nodes (with padding of uneven tiles) over operations of the stage, at most
STEP = 6  # tiles whose numbers of nodes agree to the sixth of an octave count as alike in `_tiles_for`
SLOW = 1.02  # faster nests are searched too if the cheapest one takes more than this times the fewest cycles
STEPS, SLOWER = 12, 1.15  # steps of cycles in `_segment_bound`, and the factor from one to the next
ROUGHLY = 1.1  # a choice is not priced if its estimated cost is at least this times the best known cost
PLACED = 200  # choices whose regions are placed, per limit
FULL_BUFFERS = 5000  # the same with an upper limit of the initiation interval
ESTIMATED = 200  # choices that are listed to see whether stages within a limit fit on the nodes
LISTED = 5000  # choices that are listed by energy, per limit
SEVERAL = 1 << 19  # if there are at most so many choices, all are enumerated after the listed ones
# a segment is solved if its lower bound is below this share of the lower bounds of its einsums alone
WORTH = 0.99
BUDGET = 400  # searches of node nests after which no further segments are solved
# choices that are priced per limit for chosen segments, or with an upper limit of the initiation interval;
# also shapes of an einsum alone
CLOSER = 6
LITTLE = 0.03  # faster nests are not searched if they save less leakage than this share of a stage's energy
FINAL = 2  # tiles of an einsum that are searched again with a larger budget
# einsums mapped without pipelining: budget of a search, in nest nodes placed; operations of an einsum at most
ALONE, LITTLE_WORK = 12_000, 2**16
# nodes of a machine, at most, on which small einsums are also mapped without pipelining, and tried on fewer
# nodes than their share
FEW_NODES = 16
FEW, ALIKE = 16, 4  # tiles of an einsum alone that are searched; of those, with the same ranks cut
BESIDE = "KAPLA's schedules", "unfused mappings of small einsums"  # the schedules of `_others`


def pipelined(
    arch: Arch,
    workload: Workload,
    objective: Objective,
    weights: str = "streamed",
    spatial: bool = True,
    temporal: bool = True,
    interval_limit: float = inf,
) -> Solution | Infeasible:
    """Returns the best schedule found. Raises ValueError if the machine has no nodes for stages.

    spatial: einsums may run at once, on regions of nodes.
    temporal: segments may run pipeline tile by pipeline tile.
    interval_limit: upper limit of the initiation interval, in cycles.
    """
    check(arch, "pipelined")
    g = PipelineSearch(arch, workload, objective, weights, Nodes(arch), interval_limit)
    most, theirs_most = (MAX_STAGES, MAX_EINSUMS) if spatial else (1, 1)
    pipeline_tiles = PIPELINE_TILES if temporal else ONE
    ranges = [r for r in ranges_of(g, most, pipeline_tiles) if fits(g, r)]
    first, made, _ = options(g, ranges_of(g, theirs_most, EVERY if temporal else ONE))
    alone = [_better(g, one, known) for one, known in zip(solve_alone(g, _alone), first, strict=True)]
    theirs = {r: one for r, one in made.items() if one.initiation_interval <= g.limit}
    made = dict(theirs)
    floors, before = _lower_bounds(g, ranges), g.nodes.searches
    for r in segments_to_solve(*floors, add_up(g), lambda: _cheapest_chain(g, alone, made)):
        if g.nodes.searches > before + BUDGET and isomorphism_key(g, r) not in g.solved:
            g.unexplored += 1
        elif option := _better(
            g, memo_isomorphic(g, r, partial(_segment, g, r, alone[r.first : r.last + 1])), made.get(r)
        ):
            made[r] = option
    solution = best_chain(g, alone, made)
    if isinstance(solution, Solution) and solution.schedule:
        taken = {
            tuple(branch.einsum for branch in segment.branches): segment
            for segment in solution.schedule.segments
            if segment.pipelined
        }
        g.solved = {}  # isomorphic segments are refined once
        for r, one in made.items():
            if taken.get(tuple(e.name for e in workload.einsums[r.first : r.last + 1])) == one.segment:
                made[r] = (
                    memo_isomorphic(g, r, partial(_refine_chosen, g, r, one, alone[r.first : r.last + 1]))
                    or one
                )
        solution = best_chain(g, alone, made)
    tried = (
        f"{len(ranges) - g.unexplored} of {len(ranges)} segments, {g.nodes.searches} nests of nodes, "
        f"{g.stages_left} of {g.stages_priced} stages left, {g.evaluated} priced"
    )
    searched = replace(space(g, most, pipeline_tiles, mappings_of("perfect", arch)), beside=BESIDE)
    bounded = isinstance(solution, Solution) and _in_bounded_space(g, solution)
    return _to_solution(
        g, solution, _others(g, alone, made, first, theirs), _lower_bound(g, floors), searched, tried, bounded
    )


def add_up(g: PipelineSearch) -> bool:
    """True if the cost of a chain is the sum over its segments: energy alone, no pinned weights, no limit."""
    return g.objective == "energy" and g.weights == "streamed" and g.limit == inf


def segments_to_solve(
    alone: Sequence[tuple[float, float]],
    bounds: dict[Range, tuple[float, float]],
    plain: bool,
    cheapest_chain: Callable[[], float],
) -> Iterator[Range]:
    """Yields the segments that may be in the cheapest chain. Segments of the same einsums follow one another,
    the one without a shared loop first. They are ordered by the lowest bound of all chains through them.

    alone, bounds: lower bounds (energy, cycles) of einsums alone and of segments.
    plain: costs of segments add up (`add_up`); else no segment is left out.
    cheapest_chain: returns the energy of the best chain known so far.
    """
    low = _chains([energy for energy, _ in alone], {r: energy for r, (energy, _) in bounds.items()})
    through = {r: low[0][r.first] + energy + low[1][r.last + 1] for r, (energy, _) in bounds.items()}
    ends = {
        (r.first, r.last): min(one for s, one in through.items() if (s.first, s.last) == (r.first, r.last))
        for r in through
    }
    for r in sorted(through, key=lambda r: (ends[r.first, r.last], r.tile > 0, through[r])):
        apart = sum(energy for energy, _ in alone[r.first : r.last + 1])
        passed = plain and (through[r] >= cheapest_chain() or bounds[r][0] >= WORTH * apart)
        if through[r] < inf and not passed:
            yield r


def _others(
    g: PipelineSearch,
    alone: Sequence[Option | None],
    segment_options: dict[Range, Option],
    first: Sequence[Option | None],
    theirs: dict[Range, Option],
) -> list[Solution]:
    """Returns schedules that the search itself may miss: KAPLA's published ones (`first`, `theirs`), which
    may fit where cheaper segments do not; and schedules with small einsums mapped without pipelining.
    """
    each = [(first, theirs)]
    if any(plain := solve_alone(replace(g, alone={}), _by_mapper)):
        each += [
            ([_better(g, one, other) for one, other in zip(alone, plain, strict=True)], segment_options),
            (plain, {}),
        ]
    return [found for own, segments in each if isinstance(found := best_chain(g, own, segments), Solution)]


def _by_mapper(g: PipelineSearch, e: Einsum) -> Option | None:
    """Returns the optimum of the exact mapper for a small einsum on few nodes, found as if hops cost nothing
    and then priced with hops. None for larger einsums and machines.
    """
    few = g.arch.instances(1) <= FEW_NODES and e.points() <= LITTLE_WORK
    found = optimal(Problem(g.arch.ideal(), e, g.objective), budget=ALONE) if few else None
    if not isinstance(found, list):
        return None
    nest = with_homes(
        found[0].mapping, pinned(g, e), g.arch.levels[0].name, [name for name, _ in g.arch.fanouts[0].dims]
    )
    return price_of(g, (e,), Segment((Branch(e.name, nest),)))


def _cheapest_chain(
    g: PipelineSearch, alone: Sequence[Option | None], segment_options: dict[Range, Option]
) -> float:
    """Returns the lowest sum of objective values over chains of the given segments and einsums alone. Buffer
    space that pinned weights take from other segments is ignored.
    """
    return _chains(
        [value(g, one) if one else inf for one in alone],
        {r: value(g, one) for r, one in segment_options.items()},
    )[0][-1]


def _alone(g: PipelineSearch, e: Einsum) -> Option | None:
    """Returns the best way found to run an einsum alone, on any number of nodes. Tiles are searched in order
    of their lower bounds, until the next bound reaches ESTIMATE_MARGIN times the best estimate.
    """
    context = StageContext(pinned=pinned(g, e))
    own, leak = _sharing_bounds(g, e, context), g.arch.leak_mw() / g.arch.clock_ghz
    cycles = np.maximum(own.cycles, time_of([lower_bound(e, g.arch, pinned=context.pinned)], g.arch))
    floors = [
        objective_value(g.objective, energy + leak * slow, slow)
        for energy, slow in zip(own.energy.tolist(), cycles.tolist(), strict=True)
    ]
    found: list[Stage] = []
    bar = inf
    tried: dict[tuple[str, ...], int] = {}
    for at in sorted((i for i, energy in enumerate(own.energy) if energy < inf), key=lambda i: floors[i]):
        ranks = tuple(own.tile(at, e))
        if floors[at] >= ROUGHLY * bar or sum(tried.values()) == FEW:
            break
        if tried.setdefault(ranks, 0) == ALIKE:
            continue
        tried[ranks] += 1
        found += _candidates(g, e, own.tile(at, e), context, bar)
        bar = min([bar, *(_rough_value(g, [one], 1) for one in found)])
    # for each set of cut ranks the tile of lowest bound
    unlike = list({tuple(rank for rank, _ in one.tile): one for one in reversed(found)}.values())[::-1]
    found.sort(key=lambda one: _rough_value(g, [one], 1))
    last = {one.tile: one for one in (*found[:FINAL], *unlike[:FINAL])}.values()
    found = sorted(
        [*found, *(near for stage in last if (near := _closer(g, e, stage.tile, context)))],
        key=lambda one: _rough_value(g, [one], 1),
    )
    priced = [
        (one, stage) for stage in found[:TRIED] if (one := price_by_itself(g, e, stage, stage.shapes[0]))
    ]
    priced.sort(key=lambda pair: value(g, pair[0]))
    best = priced[0][0] if priced else None
    for _, stage in priced[:2]:
        for shape in stage.shapes[1:CLOSER]:
            best = _better(g, best, price_by_itself(g, e, stage, shape))
    return best


def _closer(
    g: PipelineSearch, e: Einsum, tile: tuple[tuple[str, int], ...], context: StageContext
) -> Stage | None:
    """Returns the stage of a tile, searched with a larger budget."""
    return g.nodes.stage(e, dict(tile), context, "energy" if g.objective == "energy" else "edp", closer=True)


def _refine_chosen(g: PipelineSearch, r: Range, one: Option, alone: Sequence[Option | None]) -> Option:
    """Returns a segment of the best chain after a closer search: more choices priced, nests searched with a
    larger budget, regions rearranged.
    """
    closer = _better(g, _segment(g, r, alone, CLOSER), one) or one
    return cheapest_placement(g, r, _refine(g, r, closer))


def _refine(g: PipelineSearch, r: Range, one: Option) -> Option:
    """Returns a segment whose stages, one after the other, are searched with a larger budget in their
    regions. Each stage tries its present tile and the tile of lowest bound that cuts other ranks.
    """
    own = g.workload.einsums[r.first : r.last + 1]
    members = members_of(g, r) or []
    outer = g.arch.levels[0].name
    (ny, _), (nx, _) = g.arch.fanouts[0].dims
    for j, (e, context) in enumerate(members):
        y, x = ({part.dim: part for part in one.segment.branches[j].region}[dim] for dim in (ny, nx))
        tile: dict[str, int] = {}
        for node in one.segment.branches[j].mapping.nodes:
            if isinstance(node, Loop) and node.over in (ny, nx):
                tile[node.rank] = min(node.tile, tile.get(node.rank, node.tile))
        every, unlike = _sharing_bounds(g, e, context), {tuple(sorted(tile)): tile}
        for at in np.argsort(np.where(every.nodes <= y.size * x.size, every.energy, inf), kind="stable")[
            :FEW
        ].tolist():
            other = every.tile(at, e)
            unlike.setdefault(tuple(sorted(other)), other)
        for other in [*unlike.values()][:FINAL]:
            stage = _closer(g, e, tuple(other.items()), context)
            shape = (
                next((s for s in stage.shapes if s.rows <= y.size and s.columns <= x.size), None)
                if stage
                else None
            )
            if stage and shape:
                branch = replace(
                    one.segment.branches[j],
                    mapping=own_nest(stage, shape, e, context, outer),
                    region=(Region(ny, y.first, shape.rows), Region(nx, x.first, shape.columns)),
                )
                branches = tuple(branch if i == j else b for i, b in enumerate(one.segment.branches))
                found = price_of(g, own, replace(one.segment, branches=branches))
                one = (
                    _better(g, found if found and found.initiation_interval <= g.limit else None, one) or one
                )
    return one


def _candidates(
    g: PipelineSearch, e: Einsum, tile: dict[str, int], context: StageContext, bar: float = inf
) -> list[Stage]:
    """Returns ways to run a tile: the nest of lowest energy and, if they may pay, the nests of lowest EDP and
    of lowest latency. They may pay if the first nest leaves MAC units idle, leakage matters, and the same
    energy at full speed would cost less than `bar`.
    """
    stage = g.nodes.stage(e, tile, context, "energy")
    if not stage:
        return []
    tile_nodes, most = prod(-(-n // tile.get(rank, n)) for rank, n in e.extents), g.arch.instances(1)
    fastest = e.points() / tile_nodes / g.arch.instances(len(g.arch.levels)) * most
    leak = g.arch.leak_mw() / g.arch.clock_ghz
    little = (
        g.objective == "energy"
        and g.limit == inf
        and leak * (stage.cycles - fastest) <= LITTLE * stage.energy
    )
    if (
        little
        or stage.cycles <= SLOW * fastest
        or objective_value(g.objective, stage.energy + leak * fastest, fastest) >= bar
    ):
        return [stage]
    return [
        stage,
        *(fast for objective in ("edp", "latency") if (fast := g.nodes.stage(e, tile, context, objective))),
    ]


def _better(g: PipelineSearch, one: Option | None, other: Option | None) -> Option | None:
    """Returns the option of lower objective value, None if there is none."""
    return min((each for each in (one, other) if each), key=lambda each: value(g, each), default=None)


def _rough_value(g: PipelineSearch, stages: Sequence[Stage], pipeline_tiles: int) -> float:
    """Returns an estimated objective value of stages that run at once: the slowest one sets the cycles."""
    energy = sum(one.energy for one in stages) * pipeline_tiles
    cycles = max(one.cycles for one in stages) * pipeline_tiles
    return objective_value(g.objective, energy + g.arch.leak_mw() / g.arch.clock_ghz * cycles, cycles)


def _stages(
    g: PipelineSearch, e: Einsum, context: StageContext, share: float, parts: int = PARTS, limit: float = inf
) -> list[Stage]:
    """Returns the undominated ways (in energy, cycles and shapes) to run an einsum on about a share of the
    nodes within `limit` cycles. If there are none without a limit, half the share is tried.
    """
    most = g.arch.instances(1)
    key = (e, context, round(share * most), parts, limit)
    if key not in g.memo:
        found = [
            stage
            for tile in _tiles_for(g, e, context, share * most, parts, limit)
            for stage in _candidates(g, e, tile, context)
        ]
        g.stages_priced += len(found)
        kept: list[Stage] = []
        for one in sorted(
            (one for one in found if one.cycles <= limit), key=lambda s: (s.energy, s.cycles, s.nodes)
        ):
            if not any(b.cycles <= one.cycles and _smaller(b, one) for b in kept):
                kept.append(one)
        g.stages_left += len(kept)
        g.memo[key] = kept or (
            _stages(g, e, context, share / 2, parts, limit) if share * most > 1 and limit == inf else []
        )
    return g.memo[key]


def _on_fewer(
    g: PipelineSearch, e: Einsum, context: StageContext, share: float, parts: int, limit: float
) -> list[Stage]:
    """Returns ways to run an einsum on its share of the nodes and, for small einsums on machines of few
    nodes, on 1, 2, 4 and 8 nodes. Fewer nodes read tensors fewer times that each node needs for itself.
    """
    most = g.arch.instances(1)
    fewer = (
        [n for n in (1, 2, 4, 8) if n < share * most / WIDE - 2]
        if most <= FEW_NODES and e.points() <= LITTLE_WORK
        else []
    )
    return [
        stage
        for part in (share, *(n / most for n in fewer))
        for stage in _stages(g, e, context, part, parts, limit)
    ]


def _smaller(one: Stage, other: Stage) -> bool:
    """True if each rectangle of `other` contains a rectangle of `one`."""
    return all(any(a.rows <= b.rows and a.columns <= b.columns for a in one.shapes) for b in other.shapes)


def _tiles_for(
    g: PipelineSearch, e: Einsum, context: StageContext, nodes: float, parts: int, limit: float
) -> list[dict[str, int]]:
    """Returns up to `parts` tiles for about `nodes` nodes, lowest energy bound first. Numbers of nodes (to
    1/STEPS_PER_OCTAVE of an octave) and sets of cut ranks are represented equally. Of tiles with about the
    same work per node and cuts per rank only the cheapest is kept.
    """
    best: dict[tuple[object, ...], tuple[float, dict[str, int]]] = {}
    sizes, most, all_ = e.sizes(), g.arch.instances(1), _sharing_bounds(g, e, context)
    own = g.arch.instances(len(g.arch.levels)) / most
    works = np.prod(all_.tiles, axis=1) * (e.points() // prod(sizes[rank] for rank in all_.ranks))
    few = (all_.energy < inf) & (all_.nodes <= round(WIDE * nodes) + 3)
    low = min(nodes / WIDE - 2, int(all_.nodes[few].max(initial=0)))
    for at in np.flatnonzero(
        few & (all_.nodes >= low) & (works <= limit * own) & (works * all_.nodes <= PADDED * e.points())
    ).tolist():
        tile = all_.tile(at, e)
        cell = (
            round(50 * log(works[at])),
            *((rank, round(log2(-(-sizes[rank] // t)))) for rank, t in tile.items()),
        )
        best[cell] = min(best.get(cell, (inf, tile)), (float(all_.energy[at]), tile), key=lambda one: one[0])
    ranked: list[tuple[int, float, dict[str, int]]] = []
    near: dict[object, int] = {}
    for taken, tile in sorted(best.values(), key=lambda one: one[0]):
        tile_nodes = prod(-(-sizes[rank] // t) for rank, t in tile.items())
        kind = abs(round(STEP * log2(tile_nodes / nodes))), *tile
        near[kind] = near.get(kind, 0) + 1
        ranked.append((near[kind], taken, tile))
    return [tile for _, _, tile in sorted(ranked, key=lambda one: one[:2])[:parts]]


def _segment(g: PipelineSearch, r: Range, alone: Sequence[Option | None], most: int = 1) -> Option | None:
    """Returns the best way found to run a segment; None: none fits. Choices that are expected to cost more
    than the einsums alone are not priced. most: choices that are priced per limit.
    """
    members = members_of(g, r)
    if members is None:
        return None
    own = g.workload.einsums[r.first : r.last + 1]
    many = own[0].points() // members[0][0].points()
    best: Option | None = None
    if g.limit < inf:  # the best segment without the limit may meet it
        limit, g.limit = g.limit, inf
        free, g.limit = _segment(g, r, alone, CLOSER), limit
        best = free if free and free.initiation_interval <= limit else None
    parts = TIGHT if g.limit < inf else PARTS
    ways = [
        (part, context, _on_fewer(g, part, context, share, parts, g.limit / many))
        for (part, context), share in zip(members, _shares(g, members), strict=True)
    ]
    if not all(own for _, _, own in ways):
        return best
    bar = (
        sum(value(g, one) if one else inf for one in alone)
        if g.objective != "edp" and g.weights != "pinned"
        else inf
    )
    contexts = [context for _, context, _ in ways]
    for limit in _limits([own_ways for _, _, own_ways in ways], g.arch.instances(1)):
        priced = 0
        for choice in islice(
            _combinations(
                [[s for s in own_ways if s.cycles <= limit] for _, _, own_ways in ways], g.arch.instances(1)
            ),
            PLACED if g.limit == inf else FULL_BUFFERS,
        ):
            if g.objective == "energy" and _rough_value(g, choice, many) >= ROUGHLY * min(
                bar, value(g, best) if best else inf
            ):
                break
            if places := place_regions(g, choice):
                found = price_of(g, own, to_segment(g, r, own, choice, places, contexts))
                best = _better(g, found if found and found.initiation_interval <= g.limit else None, best)
                priced = priced + 1
                if priced == (most if g.limit == inf else CLOSER):
                    break
    return best


def _shares(g: PipelineSearch, members: Sequence[tuple[Einsum, StageContext]]) -> list[float]:
    """Returns the share of the nodes of each stage, so that all stages take equally long, at least as long as
    main memory takes. A stage gets more nodes if its forwarded tiles and pinned weights need them.
    """
    most = g.arch.instances(1)
    each = g.arch.levels[1].capacity_bits or inf
    held = [e.points() for e, _ in members]
    need = [
        ceil(NODES_SCARCE * stage_bits(e, context, g.arch) / each)
        if context.forwards or context.pinned
        else 0
        for e, context in members
    ]
    memory = time_of(
        [
            replace(lower_bound(e, g.arch, a.forwarded, a.pinned, a.forwards and not a.spilled), compute=0.0)
            for e, a in members
        ],
        g.arch,
    )
    # in units of (operation of one node)
    cycles = max(sum(held) / most, memory * g.arch.instances(len(g.arch.levels)) / most)
    for _ in members:
        short = [n > w / cycles for n, w in zip(need, held, strict=True)]
        left = most - sum(n for n, less in zip(need, short, strict=True) if less)
        cycles = max(cycles, sum(w for w, less in zip(held, short, strict=True) if not less) / max(left, 1))
    return [max(n, w / cycles) / most for n, w in zip(need, held, strict=True)]


def _limits(stages_of: Sequence[Sequence[Stage]], nodes: int) -> list[float]:
    """Returns up to MAX_TRIALS limits on the cycles of a stage, tightest first. Within each all stages fit on
    the nodes together, and cost less energy than within the tighter ones.
    """
    least, found = inf, list[float]()
    for limit in sorted({stage.cycles for own in stages_of for stage in own}):
        within = [[s for s in own if s.cycles <= limit] for own in stages_of]
        energy = sum(min((s.energy for s in own), default=inf) for own in within)
        if energy < least * LESS:
            energy = sum(s.energy for s in next(_combinations(within, nodes, ESTIMATED), [])) or inf
        if energy < least * LESS:
            found, least = [*found, limit], energy
    at = sorted({round(i) for i in np.geomspace(1, len(found), min(TRIED, len(found)))}) if found else []
    return [found[i - 1] for i in at]


def _combinations(
    stages_of: Sequence[Sequence[Stage]], nodes: int, most: int = LISTED
) -> Iterator[list[Stage]]:
    """Yields choices of a way per stage that need no more nodes than there are.

    First those that `_cheapest` lists, by energy. Then, where the listed ones may all need too many nodes:
    every choice by energy, if there are at most MAX_ENUMERATED; else the cheapest choice of each number of
    nodes.
    """
    yield from _cheapest(stages_of, nodes, most)
    if prod(map(len, stages_of)) <= SEVERAL:
        energy, needed = (
            sum(
                np.ix_(*(np.array([getattr(s, name) for s in own], float) for own in stages_of)), np.zeros(())
            )
            for name in ("energy", "nodes")
        )
        for at in sorted(np.argwhere(needed <= nodes).tolist(), key=lambda at: (energy[tuple(at)], at)):
            yield [own[i] for own, i in zip(stages_of, at, strict=True)]
        return
    best: list[tuple[float, list[Stage]]] = [(0.0, [])] * (nodes + 1)
    for own in stages_of:
        before, none = best, (inf, list[Stage]())
        best = [
            min(
                (
                    (before[n - s.nodes][0] + s.energy, [*before[n - s.nodes][1], s])
                    for s in own
                    if s.nodes <= n
                ),
                key=lambda one: one[0],
                default=none,
            )
            for n in range(nodes + 1)
        ]
    yield from (
        choice
        for n, (energy, choice) in enumerate(best)
        if energy < inf and (n == 0 or energy < best[n - 1][0])
    )


def _cheapest(stages_of: Sequence[Sequence[Stage]], nodes: int, most: int = LISTED) -> Iterator[list[Stage]]:
    """Yields choices of a way per stage that need no more nodes than there are, lowest energy first, among
    the first `most` choices by energy.
    """
    ranked = [sorted(own, key=lambda s: (s.energy, s.nodes)) for own in stages_of]
    first = (0,) * len(ranked)
    queue, seen = [(0.0, first)] if all(ranked) else [], {first}
    while queue:
        _, at = heappop(queue)
        choice = [own[i] for own, i in zip(ranked, at, strict=True)]
        if sum(s.nodes for s in choice) <= nodes:
            yield choice
        for j, i in enumerate(at):
            after = (*at[:j], i + 1, *at[j + 1 :])
            if i + 1 < len(ranked[j]) and after not in seen and len(seen) < most:
                seen.add(after)
                heappush(queue, (sum(own[k].energy for own, k in zip(ranked, after, strict=True)), after))


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
    g: PipelineSearch, members: Sequence[tuple[Einsum, StageContext]], many: int
) -> tuple[float, float]:
    """Returns lower bounds on energy, with leakage, and cycles of a segment. many: its pipeline tiles; of an
    einsum alone its occurrences.
    """
    most, leak, energy = g.arch.instances(1), g.arch.leak_mw() / g.arch.clock_ghz, inf
    cycles = many * time_of(
        [lower_bound(e, g.arch, a.forwarded, a.pinned, a.forwards and not a.spilled) for e, a in members],
        g.arch,
    )
    own, slower = [_sharing_bounds(g, e, context) for e, context in members], cycles
    # a step bounds the segments that take between two consecutive limits on the cycles
    for step in range(STEPS + 1):
        within = SLOWER ** (step + 1) * cycles if step < STEPS else inf
        energy = min(
            energy,
            many * minimum_energy([by_nodes(one, most, within / many * (1 + PRECISE)) for one in own])
            + leak * slower,
        )
        slower = within
    return energy, cycles


def _lower_bounds(
    g: PipelineSearch, ranges: Sequence[Range]
) -> tuple[list[tuple[float, float]], dict[Range, tuple[float, float]]]:
    """Returns lower bounds (energy, cycles) of every einsum alone, and of segments."""
    w = g.workload
    alone = [
        _segment_bound(g, [(e, StageContext(pinned=pinned(g, e)))], n)
        for e, n in zip(w.einsums, counts(w), strict=True)
    ]
    made = {}
    for r in ranges:
        if members := members_of(g, r):
            made[r] = _segment_bound(g, members, w.einsums[r.first].points() // members[0][0].points())
    return alone, made


def _chains(alone: Sequence[float], segment_options: dict[Range, float]) -> tuple[list[float], list[float]]:
    """Returns for each position the lowest cost of all chains that end before it, and of all that begin with
    it. alone, segment_options: costs of einsums alone and of segments.
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


def _lower_bound(
    g: PipelineSearch, lower_bounds: tuple[list[tuple[float, float]], dict[Range, tuple[float, float]]]
) -> float:
    """Returns a lower bound on the objective value of all schedules of the space, from the cheapest chains
    for energy and for cycles.
    """
    alone, made = lower_bounds
    energy, cycles = (
        _chains([own[i] for own in alone], {r: own[i] for r, own in made.items()})[0][-1] for i in (0, 1)
    )
    return objective_value(g.objective, energy, cycles)


def _in_bounded_space(g: PipelineSearch, solution: Solution) -> bool:
    """True if a schedule lies in the space of the lower bounds. Schedules of KAPLA's solver and of the
    mapper may lie outside: other numbers of pipeline tiles, more ranks cut over nodes, uneven temporal loops.
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
    for name, nest in nests.items():
        left = sizes[name]
        cut = {node.rank for node in nest.nodes if isinstance(node, Loop) and node.over in dims}
        for node in nest.nodes:
            if isinstance(node, Loop):
                if len(cut) > 2 or (node.over not in dims and left[node.rank] % node.tile):
                    return False
                left[node.rank] = node.tile
    return True


def _to_solution(
    g: PipelineSearch,
    found: Solution | Infeasible,
    others: Sequence[Solution],
    lower: float,
    searched: Space,
    tried: str,
    bounded: bool = True,
) -> Solution | Infeasible:
    """Returns the best schedule of a search and of `others`, with its optimality gap to the searched space.
    lower: lower bound of that space; bounded: whether `found` lies in it.
    """

    def cost(one: Solution) -> float:
        return objective_value(g.objective, one.energy_pj, one.latency_cycles)

    if isinstance(found, Solution) and lower > cost(found) * (1 + PRECISE) and bounded:
        raise Violated(
            f"{g.workload.name} on {g.arch.name}: lower bound {lower} above the cost {cost(found)} "
            f"of\n{found.schedule}"
        )
    if isinstance(found, Infeasible) and not others:
        return found
    # the schedule of the search where costs are equal
    best = min((one for one in (found, *others) if isinstance(one, Solution)), key=cost)
    gap = min(relative_gap(cost(best), lower), best.gap_to_bound)
    gap = gap if gap > PRECISE else 0.0
    said = "; ".join(
        part for part in best.certificate.split("; ") if part.startswith(("weights", "cycles", "leakage"))
    )
    # a schedule of `others` may lie outside of the space, below its lower bound
    inside = best is found and cost(best) >= lower * (1 - PRECISE)
    text = certificate_text(
        f"{gap_in_space_text(gap, inside)} ({tried})",
        best.gap_to_bound,
        any_schedule(g.workload, g.weights == "pinned"),
        searched,
    )
    return replace(best, optimality_gap=gap, certificate=f"{said}; {text}" if said else text, space=searched)
