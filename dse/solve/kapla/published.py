"""KAPLA's solver as published, priced by this project's evaluator, and the searches with which its authors
compare it (arXiv 2306.15676, sections IV and VI; docs/reuse.md).

    scheme         a segment of at most 5 einsums on nodes in proportion to their work, with or without a
                   shared loop and its number of pipeline tiles
    upper level    drops schemes that need more than the buffers of their nodes; estimates the others by
                   their lower bounds; keeps the 4 cheapest chains of segments that end at each einsum
    lower level    solves the schemes of all segments in these chains, those that read least from main memory
                   first; skips a scheme that reads no less of any tensor than a solved one
    stage          each prime factor of the rows and columns of nodes cuts the rank that leaves the smallest
                   tiles per node, with or without parts of feature maps (each with its halo); inside of a
                   node the mapper is cost descending
    weights        what the loop of pipeline tiles does not cut is loaded once where that fits and costs less
    sharing        tiles that nodes hold copies of are shared out among them where that costs less

kapla-exhaustive solves all schemes; all ways to cut ranks over nodes, least bound first, until no other one
can be estimated lower; nodes by the exact mapper, whose budget may end. What kapla solves for less is taken
as kapla solves it, so no answer is dearer than that of kapla.

Three things differ from the publication. A stage's region is a rectangle, not a stripe of nodes. Ranks are
cut over nodes before a node is mapped. The estimates of the upper level are true lower bounds here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, product
from math import inf, prod
from random import Random

from dse.mapper.baselines.annealing import annealing
from dse.mapper.baselines.cost_descending import candidates, topology
from dse.mapper.baselines.random import random
from dse.mapper.exact.spatial import primes
from dse.mapping.nest import Infeasible, Loop, Mapping, Rotated, Store
from dse.mapping.schedule import Segment
from dse.mapping.searched import Mappings, cut_windows
from dse.sim.counts.counts import tile_bits, tile_words
from dse.sim.einsum.evaluate import NOT_PROVEN, Problem, Pruned, Solution, certificate_text, objective_value
from dse.sim.fronts import Objective
from dse.sim.schedule.graph import any_schedule
from dse.solve.schedules.einsum_bounds import LowerBound, inside_pj, lower_bound
from dse.solve.schedules.segments import (
    ALL_TILE_COUNTS,
    NO_SHARED_LOOP,
    Option,
    PipelineSearch,
    PlacedShape,
    Range,
    best_chain,
    cheaper,
    check,
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
)
from dse.solve.schedules.stage_bounds import time_of
from dse.solve.schedules.stages import (
    ConstraintsOf,
    NodeMapper,
    Nodes,
    Shape,
    Stage,
    StageContext,
    part_of,
    rules_of,
    split_ranks,
    stage_bits,
    unconstrained,
)
from hw.arch import Arch
from workloads.einsum import Einsum, canonical_key
from workloads.graph import Workload, counts

EXHAUSTIVE = "kapla-exhaustive"
MAX_EINSUMS = 5  # einsums of a segment, at most
KAPLA_BEAM = 4  # chains kept by the upper level, per last einsum
SCHEME_PROBABILITY = 0.1  # kapla-random: probability that a scheme is considered
RANDOM_MAPPINGS = 100  # kapla-random: random mappings of a node that are priced
MAX_SHARED = 27  # ways to share out what the stages of a segment hold that are priced, at most
# estimates round the price of a word by up to a sixteenth of an octave: so far they may lie below the bound
SPREAD_MARGIN = 2 ** (1 / 16)
PRICED_ALONE = 4  # ways to cut an einsum over all nodes that are priced, best estimate first
ANNEALING_ROUNDS = (16, 32)  # kapla-annealing: iterations, mappings per iteration; published: 1024, 128


@dataclass(frozen=True, slots=True)
class Method:
    """How a solver chooses the schemes that it solves."""

    beam: int | None = None  # chains kept by the upper level; None: all segments are solved
    chance: float = 1.0  # probability that a scheme is considered
    skips: bool = False  # whether schemes that read no less than a solved one are skipped


METHODS = {
    "kapla": Method(KAPLA_BEAM, skips=True),
    "kapla-exhaustive": Method(),
    "kapla-random": Method(chance=SCHEME_PROBABILITY),
    "kapla-annealing": Method(),
}
KAPLA_SCHEDULES = {
    "kapla": "machines of nodes: KAPLA's solver as published (conservative pruning, 4 chains, "
    "cost descending)",
    "kapla-exhaustive": "the same schemes, all of them solved, more ways to cut ranks over nodes, nodes by "
    "the exact mapper",
    "kapla-random": "the same schemes, one of ten looked at, nodes by random mappings",
    "kapla-annealing": "the same schemes, all of them solved, nodes by annealing",
}


@dataclass(frozen=True, slots=True)
class Scheme:
    """A segment as the upper level sees it."""

    range: Range
    words: tuple[float, ...]  # read from main memory, per tensor
    energy: float  # lower bound in pJ
    cycles: float  # lower bound


def published(
    arch: Arch,
    workload: Workload,
    name: str,
    objective: Objective,
    weights: str = "streamed",
    spatial: bool = True,
    temporal: bool = True,
    seed: int = 0,
    beam: int | None = None,
    constraints: ConstraintsOf = unconstrained,
) -> Solution | Infeasible:
    """Returns the schedule that a method of METHODS finds. Raises ValueError if the machine has no nodes for
    stages. beam: number of chains instead of the published one; all other arguments as in
    `pipeline.pipelined`. Of the nests that a mapper of nodes offers those count that keep the constraints.
    """
    check(arch, name)
    nodes = Nodes(arch, rules=rules_of(arch, workload.einsums, constraints))
    g = PipelineSearch(arch, workload, objective, weights, nodes)
    max_einsums, tile_counts = MAX_EINSUMS if spatial else 1, ALL_TILE_COUNTS if temporal else NO_SHARED_LOOP
    ranges = ranges_of(g, max_einsums, tile_counts)
    alone, segment_options, pruned_rows = options(g, ranges, name, seed, beam)
    solution = best_chain(g, alone, segment_options)
    if name == EXHAUSTIVE:
        solution = _with_kapla(g, ranges, seed, alone, segment_options, solution)
    if isinstance(solution, Infeasible):
        return solution
    scheme_count, valid_count, solved_count = (
        (
            sum(column)
            for column in zip(*((row.schemes, row.valid, row.solved) for row in pruned_rows), strict=True)
        )
        if pruned_rows
        else (0, 0, 0)
    )
    effort_text = (
        f"{scheme_count} schemes of {len(pruned_rows)} segments, {valid_count} valid, {solved_count} solved"
    )
    assumptions = "".join(
        f"{part}; "
        for part in solution.certificate.split("; ")
        if part.startswith(("weights", "cycles", "leakage"))
    )
    searched_space = replace(
        space(g, max_einsums, tile_counts, Mappings("perfect", shares=True)),
        hold=max_einsums > 1 and tile_counts != NO_SHARED_LOOP,
    )
    text = certificate_text(
        f"{NOT_PROVEN} ({name}, {effort_text})",
        solution.gap_to_bound,
        any_schedule(workload, weights == "pinned"),
        searched_space,
    )
    return replace(solution, certificate=assumptions + text, pruned=tuple(pruned_rows), space=searched_space)


def _with_kapla(
    g: PipelineSearch,
    ranges: Sequence[Range],
    seed: int,
    alone: Sequence[Option | None],
    segment_options: dict[Range, Option],
    solution: Solution | Infeasible,
) -> Solution | Infeasible:
    """Returns the best schedule of the options of kapla-exhaustive and those of kapla, alone and together.
    The exact mapper of a node ends with its budget, so kapla's nest of a node may cost less.
    """
    other_alone, others, _ = options(g, ranges, "kapla", seed)
    mixed = [cheaper(g, one, other) for one, other in zip(alone, other_alone, strict=True)]
    segments = {r: one for r in ranges if (one := cheaper(g, segment_options.get(r), others.get(r)))}
    answers = [solution, best_chain(g, mixed, segments), best_chain(g, other_alone, others)]
    found = [one for one in answers if isinstance(one, Solution)]
    return min(
        found,
        key=lambda one: objective_value(g.objective, one.energy_pj, one.latency_cycles),
        default=solution,
    )


def options(
    search: PipelineSearch,
    ranges: Sequence[Range],
    name: str = "kapla",
    seed: int = 0,
    beam: int | None = None,
) -> tuple[list[Option | None], dict[Range, Option], list[Pruned]]:
    """Returns the options that a method finds for einsums alone and for segments, and for each run of einsums
    how many schemes there are, how many of them are valid, and how many were solved.
    """
    method = replace(METHODS[name], beam=beam) if beam else METHODS[name]
    nodes = replace(search.nodes, node_mapper=_node_mapper(name, seed), memo={}, searches=0)
    g = replace(search, nodes=nodes, alone_memo={}, segment_memo={})
    solver = StageSolver(g, name == EXHAUSTIVE)
    alone = solve_alone(g, lambda _, e: _alone(solver, e))
    rng, segment_options, rows = Random(f"{seed}/{name}"), dict[Range, Option](), []
    valid = [scheme for r in ranges if (scheme := _scheme(g, r))]
    considered = [scheme for scheme in valid if rng.random() < method.chance] if method.chance < 1 else valid
    chain_ends = (
        _in_chains(g, considered, method.beam)
        if method.beam
        else {_ends(scheme.range) for scheme in considered}
    )
    for ends in dict.fromkeys(map(_ends, ranges)):
        solved: list[Scheme] = []
        tried = 0
        for scheme in sorted(
            (one for one in considered if _ends(one.range) == ends and ends in chain_ends),
            key=lambda one: (one.words, one.energy),
        ):
            if method.skips and any(
                all(a <= b for a, b in zip(other.words, scheme.words, strict=True)) for other in solved
            ):
                continue
            tried += 1
            if option := memo_isomorphic(g, scheme.range, partial(_solve, solver, scheme.range)):
                segment_options[scheme.range] = option
                solved.append(scheme)
        names = tuple(e.name for e in g.workload.einsums[ends[0] : ends[1] + 1])
        rows.append(
            Pruned(
                names,
                sum(_ends(r) == ends for r in ranges),
                sum(_ends(scheme.range) == ends for scheme in valid),
                tried,
            )
        )
    return alone, segment_options, rows


def _node_mapper(name: str, seed: int) -> NodeMapper | None:
    """Returns the mapper of a node; None: the exact mapper."""

    def descend(problem: Problem) -> list[Mapping]:
        found = candidates(problem.einsum, topology(problem.arch))
        return [] if isinstance(found, Infeasible) else [one.mapping for one in found]

    def sample(problem: Problem) -> list[Mapping]:
        rng = Random(f"{seed}/{canonical_key(problem.einsum)}")
        found = (
            random(problem, rng, RANDOM_MAPPINGS)
            if name == "kapla-random"
            else annealing(problem, rng, *ANNEALING_ROUNDS)
        )
        return [] if isinstance(found, Infeasible) else [one.mapping for one in found]

    return {"kapla": descend, "kapla-exhaustive": None}.get(name, sample)


def _ends(r: Range) -> tuple[int, int]:
    return r.first, r.last


def _scheme(g: PipelineSearch, r: Range) -> Scheme | None:
    """Returns the scheme of a segment, or None if it cannot fit: regions cannot be placed, or forwarded tiles
    and pinned weights exceed the buffers of a region. The check is conservative: it assumes even use of the
    nodes and no second copies, so no scheme that fits is dropped.
    """
    members = members_of(g, r)
    regions = _rectangles(g, [e.points() for e, _ in members]) if members else None
    if not members or not regions:
        return None
    tile_count = g.workload.einsums[r.first].points() // members[0][0].points()
    words, once = list[float](), list[frozenset[str]]()
    for (part, context), rank, (shape, _, _) in zip(
        members, r.ranks or ("",) * len(members), regions, strict=True
    ):
        room = shape.rows * shape.columns * (g.arch.levels[1].capacity_bits or inf) - stage_bits(
            part, context, g.arch
        )
        if room < 0:
            return None
        once.append(_holdable(part, context, rank, g.arch, room))
        words += [
            float(tile_words(p, part.sizes(), g.arch.word_bits) * (1 if p.tensor in once[-1] else tile_count))
            for p in part.inputs
            if p.tensor not in context.pinned | context.forwarded
        ]
    return Scheme(r, tuple(words), *_lower_bound(g, members, tile_count, once))


def _holdable(
    part: Einsum, context: StageContext, rank: str, arch: Arch, room: float = inf
) -> frozenset[str]:
    """Returns the inputs of a stage that may be loaded once, not once per pipeline tile (`hold`): those that
    the shared loop does not cut, and that fit.

    rank: the shared loop's rank in the einsum; "": there is no loop, so nothing comes twice
    room: bits of all buffers of its region that are free
    """
    return frozenset(
        p.tensor
        for p in part.inputs
        if rank
        and rank not in p.ranks()
        and p.tensor not in context.pinned | context.forwarded
        and tile_bits(p, part.sizes(), arch.word_bits) <= room
    )


def _lower_bound(
    g: PipelineSearch,
    members: Sequence[tuple[Einsum, StageContext]],
    tile_count: int,
    once: Sequence[frozenset[str]] = (),
) -> tuple[float, float]:
    """Returns lower bounds on energy (with leakage) and cycles of stages that run `tile_count` times.

    once: per stage the inputs that may be loaded once for all of these runs
    """
    outer, bounds = g.arch.levels[0], []
    for (e, a), held in zip(members, once or (frozenset(),) * len(members), strict=True):
        each = lower_bound(
            e, g.arch, a.forwarded, a.pinned | held, a.forwards and not a.spilled, skip_registers=True
        )
        bits = sum(tile_bits(p, e.sizes(), g.arch.word_bits) for p in e.inputs if p.tensor in held)
        words = 0.0 if outer.bypass else bits / outer.width_bits
        bounds.append(each.times(tile_count) + LowerBound(words * outer.read_pj, 0.0, words))
    cycles = time_of(bounds, g.arch)
    return sum(one.energy for one in bounds) + g.arch.leak_mw() / g.arch.clock_ghz * cycles, cycles


def _in_chains(g: PipelineSearch, schemes: Sequence[Scheme], beam: int) -> set[tuple[int, int]]:
    """Returns (first, last) of the segments in the chains of lowest estimated cost. beam: number of chains
    that are kept per last einsum.
    """
    ends: dict[int, list[Scheme]] = {}
    for (_, last), same_ends in _by_ends(schemes).items():
        ends.setdefault(last, []).append(
            min(same_ends, key=lambda one: objective_value(g.objective, one.energy, one.cycles))
        )
    best: list[list[tuple[float, float, tuple[tuple[int, int], ...]]]] = [[(0.0, 0.0, ())]]
    for i, (e, n) in enumerate(zip(g.workload.einsums, counts(g.workload), strict=True)):
        energy, cycles = _lower_bound(g, [(e, StageContext(pinned=pinned(g, e)))], n)
        chains = [(a + energy, b + cycles, chain_ends) for a, b, chain_ends in best[i]]
        for one in ends.get(i, ()):
            chains += [
                (a + one.energy, b + one.cycles, (*chain_ends, _ends(one.range)))
                for a, b, chain_ends in best[one.range.first]
            ]
        best.append(
            sorted(chains, key=lambda chain: (objective_value(g.objective, chain[0], chain[1]), chain[2]))[
                :beam
            ]
        )
    return {segment for _, _, chain_ends in best[-1] for segment in chain_ends}


def _by_ends(schemes: Iterable[Scheme]) -> dict[tuple[int, int], list[Scheme]]:
    """Returns the schemes by first and last einsum."""
    found: dict[tuple[int, int], list[Scheme]] = {}
    for one in schemes:
        found.setdefault(_ends(one.range), []).append(one)
    return found


def _rectangles(g: PipelineSearch, work: Sequence[int]) -> list[PlacedShape] | None:
    """Returns a region for each stage, None if they cannot be placed. A region has at most the share of the
    nodes that is proportional to the stage's work, and at least half of that; larger ones are tried first.
    """
    (_, rows), (_, columns) = g.arch.fanouts[0].dims
    stages = []
    for n in work:
        share = max(rows * columns * n / sum(work), 1.0)
        fitting = [
            Shape(a, b, ())
            for a in range(1, rows + 1)
            for b in range(1, columns + 1)
            if share / 2 <= a * b <= share
        ]
        fitting.sort(key=lambda one: (-one.rows * one.columns, abs(one.rows - one.columns), one.rows))
        stages.append(Stage((), Mapping(()), tuple(fitting), 0.0, 0.0))
    return place_regions(g, stages) if all(stage.shapes for stage in stages) else None


@dataclass(frozen=True, slots=True)
class StageSolver:
    """How the lower level solves stages."""

    g: PipelineSearch
    exhaustive: bool = False  # whether all ways to cut ranks over nodes are compared


def _solve(s: StageSolver, r: Range) -> Option | None:
    """Returns the option of a segment with nodes in proportion to work, None if a stage does not fit.

    Where pipeline tiles follow one another there are up to three ways, of which the evaluator takes the
    cheapest: what a loop does not cut is loaded per pipeline tile; loaded once by stages that hold it;
    loaded once by all stages, whose nodes share it out where it does not fit each of them.
    """
    g = s.g
    members = members_of(g, r)
    regions = _rectangles(g, [e.points() for e, _ in members]) if members else None
    if not members or not regions:
        return None
    held = [
        _holdable(part, context, rank, g.arch)
        for (part, context), rank in zip(members, r.ranks or ("",) * len(members), strict=True)
    ]
    plain = [
        _cheapest(s, part, context, shape)
        for (part, context), (shape, _, _) in zip(members, regions, strict=True)
    ]
    if not all(plain):
        return None
    streamed = [SolvedStage(stage) for stage in plain if stage]
    best = _priced(g, r, streamed, regions, members)
    if not any(held):
        return best
    holding, shared = list[SolvedStage](), list[SolvedStage]()
    for (part, context), (shape, _, _), tensors, one in zip(members, regions, held, streamed, strict=True):
        around = replace(context, pinned=context.pinned | tensors)
        stage = _cheapest(s, part, around, shape) if tensors else None
        holding.append(SolvedStage(stage, tensors) if stage else one)
        shared.append(holding[-1] if stage or not tensors else SolvedStage(one.stage, tensors, tensors))
    for way in (holding, shared) if shared != holding else (holding,):
        best = cheaper(g, best, _priced(g, r, way, regions, members))
    return best


@dataclass(frozen=True, slots=True)
class SolvedStage:
    """A stage, what it loads once, and what its nodes share out."""

    stage: Stage
    held: frozenset[str] = frozenset()
    shared: frozenset[str] = frozenset()


def _cheapest(s: StageSolver, e: Einsum, context: StageContext, nodes: Shape) -> Stage | None:
    """Returns the stage on a rectangle of nodes that is estimated to cost least; None: none fits."""
    return min(_stages(s, e, context, nodes), key=lambda one: _estimate(s.g, one), default=None)


def _estimate(g: PipelineSearch, stage: Stage) -> float:
    """Returns the estimated objective value of a stage, with the leakage of nodes that it leaves idle."""
    idle = 1 - stage.nodes / g.arch.instances(1)
    leak_pj = g.arch.leak_mw() / g.arch.clock_ghz * idle * stage.cycles
    return objective_value(g.objective, stage.energy + leak_pj, stage.cycles)


def _priced(
    g: PipelineSearch,
    r: Range,
    stages: Sequence[SolvedStage],
    regions: Sequence[PlacedShape],
    members: Sequence[tuple[Einsum, StageContext]],
) -> Option | None:
    """Returns the price of a segment; None: it does not fit."""
    einsums = g.workload.einsums[r.first : r.last + 1]
    placed = [region._replace(shape=one.stage.shapes[0]) for one, region in zip(stages, regions, strict=True)]
    segment = to_segment(
        g, r, einsums, [one.stage for one in stages], placed, [context for _, context in members]
    )
    level = g.arch.levels[1].name
    branches = tuple(
        replace(branch, filled_once=tuple(Store(level, t) for t in sorted(one.held)))
        for branch, one in zip(segment.branches, stages, strict=True)
    )
    ways = []
    for branch, e, one in zip(branches, einsums, stages, strict=True):
        nests = [branch.mapping]
        for t in sorted(one.shared):
            nests = [raised for nest in nests for raised in _sharing(g, nest, e, t, to_top=True)]
        ways.append([replace(branch, mapping=nest) for nest in nests])
    best: Option | None = None
    for way in islice(product(*ways), MAX_SHARED):
        best = cheaper(g, best, price_of(g, einsums, replace(segment, branches=way)))
    return best


def _sharing(
    g: PipelineSearch, nest: Mapping, e: Einsum, tensor: str, to_top: bool = False
) -> Iterator[Mapping]:
    """Yields nests whose nodes share out a tile of a tensor that they would hold copies of, along rows, along
    columns, or along both. The tile is raised above one or more temporal loops, so that it grows and these
    loops pass through it:

        for k tile 8  store GBUF W  ->  share GBUF W over NX; store GBUF W  for k tile 8

    to_top: above all of them
    """
    store, dims = Store(g.arch.levels[1].name, tensor), [name for name, _ in g.arch.fanouts[0].dims]
    ranks = next(p.ranks() for p in e.inputs if p.tensor == tensor)
    along = {n.over for n in nest.nodes if isinstance(n, Loop) and n.rank not in ranks}
    if store not in nest.nodes:
        return
    at = nest.nodes.index(store)
    others = (*nest.nodes[:at], *nest.nodes[at + 1 :])
    temporal = [i for i, node in enumerate(others[:at]) if isinstance(node, Loop) and node.over not in dims]
    for i in temporal[:1] if to_top else temporal:
        for over in ((*dims,), *((d,) for d in dims)):
            if along >= set(over):
                raised = (*others[:i], store, *others[i:])
                yield replace(nest, nodes=raised, shares=(*nest.shares, Rotated(store.level, tensor, over)))


def _alone(s: StageSolver, e: Einsum) -> Option | None:
    """Returns the option of an einsum alone on all nodes, the cheapest one for the evaluator: with tiles of
    nodes as they come or even, each copied or shared out among nodes.
    """
    g = s.g
    (_, rows), (_, columns) = g.arch.fanouts[0].dims
    context, nodes = StageContext(pinned=pinned(g, e)), Shape(rows, columns, ())
    best: Option | None = None
    for even in (False, True):
        stages = sorted(_stages(s, e, context, nodes, even), key=lambda one: _estimate(g, one))
        for stage in stages[:PRICED_ALONE]:
            best = cheaper(g, best, price_by_itself(g, e, stage, stage.shapes[0]))
        if best:
            break
    for p in e.inputs if best else ():  # one tensor after the other
        assert best
        (branch,) = best.segment.branches
        for nest in _sharing(g, branch.mapping, e, p.tensor):
            best = cheaper(g, best, price_of(g, (e,), Segment((replace(branch, mapping=nest),))))
    return best


def _stages(
    s: StageSolver, e: Einsum, context: StageContext, nodes: Shape, even: bool = False
) -> list[Stage]:
    """Returns the stages of an einsum on a rectangle of nodes, one per way to cut ranks over the nodes: as
    `spread_over_nodes` cuts them, with and without parts of feature maps; if exhaustive in all ways.
    """
    ranks, maps = split_ranks(e), _map_ranks(e, context)
    ranks = [rank for rank in ranks if rank not in context.sliding]
    if s.exhaustive:
        spread = _every_spread(s.g, e, nodes, [*ranks, *maps], even)
    else:
        spread = (
            spread_over_nodes(s.g, e, nodes, own, even) for own in dict.fromkeys([(*ranks,), (*ranks, *maps)])
        )
    found, least, seen = list[Stage](), inf, set[Shape]()
    bounds = [(_bound(s.g, e, tile, context), i, shape, tile) for i, (shape, tile) in enumerate(spread)]
    for bound, _, shape, tile in sorted(bounds, key=lambda one: one[:2]):
        if s.exhaustive and (bound >= SPREAD_MARGIN * least):
            break
        if shape not in seen and (stage := s.g.nodes.on_tile(e, tile, context, s.g.objective, (shape,))):
            found.append(stage)
            least = min(least, _estimate(s.g, stage))
        seen.add(shape)
    return found


def _map_ranks(e: Einsum, context: StageContext) -> list[str]:
    """Returns the ranks of windows that nodes may share out: parts of feature maps, whose halos come to
    each node. Of a tensor that another stage passes on, their hops are not counted.
    """
    windows = cut_windows(e)
    passed_on = {rank for p in e.inputs if p.tensor in context.forwarded for rank in p.ranks()}
    return [
        rank
        for rank, n in e.extents
        if n > 1 and rank in windows & e.output.full_ranks() and rank not in context.sliding | passed_on
    ]


def _bound(g: PipelineSearch, e: Einsum, tile: dict[str, int], context: StageContext) -> float:
    """Returns the least objective value of nodes with these tiles: each word from outside once, operations,
    registers, leakage while all PEs of these nodes work.
    """
    part, arch = part_of(e, tile), g.arch
    nodes = prod(-(-n // tile.get(rank, n)) for rank, n in e.extents)
    cycles = part.points() * arch.instances(1) / arch.instances(len(arch.levels)) / arch.compute.ops_per_cycle
    energy = nodes * (g.nodes.outside(e, tile, context)[0] + float(inside_pj(part, arch)[0]))
    return objective_value(g.objective, energy + arch.leak_mw() / arch.clock_ghz * cycles, cycles)


def spread_over_nodes(
    g: PipelineSearch, e: Einsum, nodes: Shape, ranks: Sequence[str], even: bool = False
) -> tuple[Shape, dict[str, int]]:
    """Returns how a rectangle of nodes shares an einsum: the nodes in use with their spatial loops, and the
    tiles of one node by cut rank. Each prime factor of a side cuts the rank that leaves a node the smallest
    tiles, padding included.

    ranks: those that may be cut
    even: only ranks that the factor divides are cut
    """
    tile, parts_of_sides = e.sizes(), list[dict[str, int]]()
    for side in (nodes.rows, nodes.columns):
        parts = dict[str, int]()  # rank -> parts into which this side cuts it
        for prime in primes(side):

            def node_tile_if_cut(
                rank: str, prime: int = prime, parts: dict[str, int] = parts, tile: dict[str, int] = tile
            ) -> tuple[float, float]:
                cut_tile = {**tile, rank: -(-tile[rank] // (parts.get(rank, 1) * prime))}
                other_tiles = {r: -(-tile[r] // n) for r, n in parts.items() if r != rank}
                return sum(
                    float(tile_words(p, cut_tile | other_tiles, g.arch.word_bits)) for p in e.tensors()
                ), prod((cut_tile | other_tiles).values())

            cut = {rank: parts.get(rank, 1) * prime for rank in ranks}
            if fitting_ranks := [
                rank for rank, n in cut.items() if tile[rank] >= n and not (even and tile[rank] % n)
            ]:
                rank = min(fitting_ranks, key=node_tile_if_cut)
                parts[rank] = parts.get(rank, 1) * prime
        parts_of_sides.append(parts)
        tile = {rank: -(-n // parts.get(rank, 1)) for rank, n in tile.items()}
    return _cut(g, e, parts_of_sides)


def _every_spread(
    g: PipelineSearch, e: Einsum, nodes: Shape, ranks: Sequence[str], even: bool
) -> Iterator[tuple[Shape, dict[str, int]]]:
    """Yields all ways to share an einsum in which each prime factor of a side cuts one of the ranks, or none
    (then nodes are left out).
    """
    ways_of_sides = []
    for side in (nodes.rows, nodes.columns):
        choices = product(("", *ranks), repeat=len(primes(side)))
        ways = dict[tuple[tuple[str, int], ...], None]()
        for choice in choices:
            parts = dict[str, int]()
            for rank, prime in zip(choice, primes(side), strict=True):
                if rank:
                    parts[rank] = parts.get(rank, 1) * prime
            ways[tuple(sorted(parts.items()))] = None
        ways_of_sides.append([dict(way) for way in ways])
    for rows, columns in product(*ways_of_sides):
        parts = {rank: rows.get(rank, 1) * columns.get(rank, 1) for rank in {*rows, *columns}}
        if all(e.sizes()[rank] >= n and not (even and e.sizes()[rank] % n) for rank, n in parts.items()):
            yield _cut(g, e, (rows, columns))


def _cut(
    g: PipelineSearch, e: Einsum, parts_of_sides: Sequence[dict[str, int]]
) -> tuple[Shape, dict[str, int]]:
    """Returns the nodes in use, with their spatial loops, and the tiles of one node by cut rank.

    parts_of_sides: rank -> parts into which rows of nodes cut it, and columns
    """
    tile, loops, side_nodes = e.sizes(), list[Loop](), []
    for (dim, _), parts in zip(g.arch.fanouts[0].dims, parts_of_sides, strict=True):
        trips = 1
        for rank, n in parts.items():
            extent, tile[rank] = tile[rank], -(-tile[rank] // n)
            loops += [Loop(rank, tile[rank], dim)] if extent > tile[rank] else []
            trips *= -(-extent // tile[rank])
        side_nodes.append(trips)
    return Shape(side_nodes[0], side_nodes[1], tuple(loops)), {
        rank: n for rank, n in tile.items() if n < e.sizes()[rank]
    }
