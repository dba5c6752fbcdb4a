"""KAPLA's solver as published, priced by this project's evaluator, and the searches with which its authors
compare it (arXiv 2306.15676, sections IV and VI; docs/reuse.md).

    scheme         a segment of at most 5 einsums on nodes in proportion to their work, with or without a
                   shared loop and its number of pipeline tiles
    upper level    drops schemes that need more than the buffers of their nodes; estimates the others by
                   their lower bounds; keeps the 4 cheapest chains of segments that end at each einsum
    lower level    solves the schemes of all segments in these chains, those that read least from main memory
                   first; skips a scheme that reads no less of any tensor than a solved one
    stage          each prime factor of the rows and columns of nodes cuts the rank that leaves the smallest
                   tiles per node; inside of a node the mapper is cost descending

kapla-exhaustive solves all schemes, nodes by the exact mapper, whose budget may end; what kapla solves for
less is taken as kapla solves it, so no answer is dearer than that of kapla.

Three things differ from the publication. A stage's region is a rectangle, not a stripe of nodes. Ranks are
cut over nodes before a node is mapped. The estimates of the upper level are true lower bounds here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf, prod
from random import Random

from dse.mapper.baselines.annealing import annealing
from dse.mapper.baselines.cost_descending import candidates, topology
from dse.mapper.baselines.random import random
from dse.mapper.exact.spatial import primes
from dse.mapping.nest import Infeasible, Loop, Mapping
from dse.mapping.searched import Mappings
from dse.sim.counts.counts import tile_words
from dse.sim.einsum.evaluate import NOT_PROVEN, Problem, Pruned, Solution, certificate_text, objective_value
from dse.sim.fronts import Objective
from dse.sim.schedule.graph import any_schedule
from dse.solve.schedules.einsum_bounds import lower_bound
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
    rules_of,
    split_ranks,
    stage_bits,
    unconstrained,
)
from hw.arch import Arch
from workloads.einsum import Einsum, canonical_key
from workloads.graph import Workload, counts

MAX_EINSUMS = 5  # einsums of a segment, at most
KAPLA_BEAM = 4  # chains kept by the upper level, per last einsum
SCHEME_PROBABILITY = 0.1  # kapla-random: probability that a scheme is considered
RANDOM_MAPPINGS = 100  # kapla-random: random mappings of a node that are priced
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
    "kapla-exhaustive": "the same schemes, all of them solved, nodes by the exact mapper",
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
    if name == "kapla-exhaustive":
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
    searched_space = space(g, max_einsums, tile_counts, Mappings("perfect"))
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
    alone = solve_alone(g, _alone)
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
            if option := memo_isomorphic(g, scheme.range, partial(_solve, g, scheme.range)):
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
    words = list[float]()
    for (part, context), (shape, _, _) in zip(members, regions, strict=True):
        if stage_bits(part, context, g.arch) > shape.rows * shape.columns * (
            g.arch.levels[1].capacity_bits or inf
        ):
            return None
        outer_inputs = [p for p in part.inputs if p.tensor not in context.pinned | context.forwarded]
        words += [float(tile_words(p, part.sizes(), g.arch.word_bits) * tile_count) for p in outer_inputs]
    return Scheme(r, tuple(words), *_lower_bound(g, members, tile_count))


def _lower_bound(
    g: PipelineSearch, members: Sequence[tuple[Einsum, StageContext]], tile_count: int
) -> tuple[float, float]:
    """Returns lower bounds on energy (with leakage) and cycles of stages that run `tile_count` times."""
    bounds = [
        lower_bound(
            e, g.arch, a.forwarded, a.pinned, a.forwards and not a.spilled, skip_registers=True
        ).times(tile_count)
        for e, a in members
    ]
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


def _solve(g: PipelineSearch, r: Range) -> Option | None:
    """Returns the option of a segment with nodes in proportion to work, None if a stage does not fit."""
    members = members_of(g, r)
    regions = _rectangles(g, [e.points() for e, _ in members]) if members else None
    if not members or not regions:
        return None
    stages = [
        _stage(g, part, context, shape)
        for (part, context), (shape, _, _) in zip(members, regions, strict=True)
    ]
    einsums = g.workload.einsums[r.first : r.last + 1]
    if not all(stages):
        return None
    placed = [
        region._replace(shape=stage.shapes[0]) for stage, region in zip(stages, regions, strict=True) if stage
    ]
    return price_of(
        g,
        einsums,
        to_segment(
            g, r, einsums, [stage for stage in stages if stage], placed, [context for _, context in members]
        ),
    )


def _alone(g: PipelineSearch, e: Einsum) -> Option | None:
    """Returns the option of an einsum alone on all nodes. If hops of uneven tiles cannot be counted, tiles
    are even.
    """
    (_, rows), (_, columns) = g.arch.fanouts[0].dims
    stages = (
        _stage(g, e, StageContext(pinned=pinned(g, e)), Shape(rows, columns, ()), even)
        for even in (False, True)
    )
    return next(
        (one for stage in stages if stage and (one := price_by_itself(g, e, stage, stage.shapes[0]))), None
    )


def _stage(
    g: PipelineSearch, e: Einsum, context: StageContext, nodes: Shape, even: bool = False
) -> Stage | None:
    shape, tile = spread_over_nodes(g, e, nodes, context.sliding, even)
    return g.nodes.on_tile(e, tile, context, g.objective, (shape,))


def spread_over_nodes(
    g: PipelineSearch, e: Einsum, nodes: Shape, sliding: frozenset[str] = frozenset(), even: bool = False
) -> tuple[Shape, dict[str, int]]:
    """Returns how a rectangle of nodes shares an einsum: the nodes in use with their spatial loops, and the
    tiles of one node by cut rank. Each prime factor of a side cuts the rank that leaves a node the smallest
    tiles, padding included. even: only ranks that the factor divides are cut.
    """
    tile, loops, side_nodes = e.sizes(), list[Loop](), []
    for (dim, _), side in zip(g.arch.fanouts[0].dims, (nodes.rows, nodes.columns), strict=True):
        parts = dict[str, int]()  # rank -> parts into which this side cuts it
        for prime in primes(side):

            def node_tile_if_cut(
                rank: str, prime: int = prime, parts: dict[str, int] = parts
            ) -> tuple[float, float]:
                cut_tile = {**tile, rank: -(-tile[rank] // (parts.get(rank, 1) * prime))}
                other_tiles = {r: -(-tile[r] // n) for r, n in parts.items() if r != rank}
                return sum(
                    float(tile_words(p, cut_tile | other_tiles, g.arch.word_bits)) for p in e.tensors()
                ), prod((cut_tile | other_tiles).values())

            cut = {rank: parts.get(rank, 1) * prime for rank in split_ranks(e) if rank not in sliding}
            if fitting_ranks := [
                rank for rank, n in cut.items() if tile[rank] >= n and not (even and tile[rank] % n)
            ]:
                rank = min(fitting_ranks, key=node_tile_if_cut)
                parts[rank] = parts.get(rank, 1) * prime
        trips = 1
        for rank, n in parts.items():
            extent, tile[rank] = tile[rank], -(-tile[rank] // n)
            loops += [Loop(rank, tile[rank], dim)] if extent > tile[rank] else []
            trips *= -(-extent // tile[rank])
        side_nodes.append(trips)
    return Shape(side_nodes[0], side_nodes[1], tuple(loops)), {
        rank: n for rank, n in tile.items() if n < e.sizes()[rank]
    }
