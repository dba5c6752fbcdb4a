"""The solver: the methods that `solver:` keys name, and `solve`, which returns schedules of a workload on a
machine, with certificates.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from io import BytesIO
from itertools import chain, count
from pathlib import Path
from random import Random
from typing import Any, Literal

import numpy as np

from dse.mapper.baselines.annealing import annealing
from dse.mapper.baselines.cost_descending import cost_descending
from dse.mapper.baselines.exhaustive import exhaustive
from dse.mapper.baselines.random import random
from dse.mapper.exact.layout_aware import PricedMappings, found_in_best_layouts, layout_aware, priced_mappings
from dse.mapper.exact.optimal import optimal, optimal_on
from dse.mapper.exact.search import search_below
from dse.mapper.plugged import plugged
from dse.mapper.smaug.mapper import smaug
from dse.mapping import schedule
from dse.mapping.constraints import FREE, Constraints, Limit, computes, einsum_kind
from dse.mapping.conversion import Conversion, with_conversions
from dse.mapping.nest import (
    Infeasible,
    Loop,
    Store,
    TensorLayout,
    compressed_width,
    faults,
    format_faults,
    in_lockstep,
    packing_levels,
    parse,
)
from dse.mapping.nest import Mapping as Nest
from dse.mapping.searched import (
    Mappings,
    Space,
    certificate_words,
    claim,
    common,
    decoded,
    encoded,
    mappings_of,
)
from dse.run import cache, deadline, doing
from dse.sim.counts.terms import in_step
from dse.sim.einsum import bounds
from dse.sim.einsum.evaluate import (
    LEFT_OPEN,
    ROUNDING_GAP,
    EinsumCost,
    Problem,
    ProgressFn,
    Pruned,
    Solution,
    certificate_text,
    einsum_cost,
    lower_bound,
    no_progress,
    objective_value,
    relative_gap,
)
from dse.sim.fronts import Objective
from dse.sim.levels import transfer
from dse.sim.schedule import outermost
from dse.sim.schedule.graph import among_schedules, any_schedule, evaluate
from dse.solve.front import ROUNDS, Chosen, covering_rows, fronts_on, lower_products
from dse.solve.gogeta.classify import dominance
from dse.solve.gogeta.gogeta_configs import CONFIGURATIONS, Emitted, solve_configuration
from dse.solve.kapla.published import KAPLA_SCHEDULES, published
from dse.solve.layouts.layouts import (
    LAYOUT_POLICIES,
    LayoutAssignment,
    Layouts,
    assign_layouts,
    interface_tensors,
)
from dse.solve.layouts.sampled import sampled_mapping
from dse.solve.options import PIPELINED_SCHEDULES, SolverOptions, without_widths
from dse.solve.schedules.best import WITH_BOUND, best
from dse.solve.schedules.fused import fused, with_certificate
from dse.solve.schedules.fusible_segments import fusing_schedules, has_nodes, widths_in_the_way
from dse.solve.schedules.parts import with_parts
from dse.solve.schedules.pipeline import pipelined
from dse.solve.sharing.shared_fronts import SharedFronts, find_shared_fronts
from dse.solve.sharing.shared_mappings import (
    NOT_SEARCHED,
    Improved,
    MachineBatch,
    Priced,
    Searches,
    SharedMappings,
    find_shared_mappings,
    priced,
)
from dse.solve.sharing.shared_products import find_shared_products
from dse.solve.sharing.shared_schedules import SharedSchedules, find_shared_schedules
from dse.solve.stored import searches_hops, sequential_solution
from hw import machine
from hw.arch import ALL_OTHERS, EINSUM_KINDS, RANK_ROLES, ROLES, Arch, Rule
from hw.component import closest_name
from workloads.einsum import Einsum, TooLong, canonical_key, einsum
from workloads.graph import Unique, Workload, base_tensor, counts, packed_results, unique

Mapper = Callable[[Problem, Random], list[EinsumCost] | Infeasible]
# arguments: position (from 0) of an einsum among the distinct ones of a workload, and its cost
EinsumCallback = Callable[[int, EinsumCost], None]
# arguments: position of a machine, of an einsum, and the cost of that einsum there; returns False to give the
# machine up
MachineCallback = Callable[[int, int, EinsumCost], bool]


def optimal_mapper(problem: Problem, _: Random) -> list[EinsumCost] | Infeasible:
    """Returns one mapping: the best one found in the space that its certificate names, with its optimality
    gap.
    """
    return optimal(problem)


MAPPERS_BY_NAME: dict[str, Mapper] = {
    "cost_descending": cost_descending,
    "exhaustive": exhaustive,
    "random": random,
    "annealing": annealing,
    "optimal": optimal_mapper,
}
# None: the mapper of `solver.mapper` chooses the tiles; else this mapper is called instead of it
TILING: dict[str, Mapper | None] = {"mapper": None, "smaug": smaug}
FACTORS = {
    "perfect": "optimal: perfect factors, every loop divides its extent",
    "imperfect_spatial": "optimal: imperfect spatial factors, as even as can be (the last PE may have less), "
    "temporal loops divide",
    "imperfect": "optimal: imperfect factors everywhere; proven where fills overlap freely on one "
    "input-stationary array, else improved from imperfect_spatial",
}
DATAFLOWS = {
    "free": "optimal: every mapping",
    "weight_stationary": "optimal: the second input (weight) is stationary in the PEs",
    "output_stationary": "optimal: the output is",
    "input_stationary": "optimal: the first input is",
    "row_stationary": "optimal: rows of a window down an array, rows of the output across; "
    "a row of weights is stationary (Eyeriss)",
}
# fields of an EinsumCost that a search sets, besides the mapping
PROOF_FIELDS = ("optimality_gap", "space", "visited")
SCHEDULES = {
    "unfused": "layer by layer: each einsum alone, every tensor between einsums through main memory",
    "pipelined": "machines of nodes: segments of einsums pipelined on regions of nodes, or each alone on "
    "a region, at lowest cost found",
    "fused": "lowest cost: tensors retained whole on chip, and fusion below up to three shared loops, "
    "or GOGETA's schedule; with layout alt layouts too",
    "best": "lowest cost of unfused, fused, pipelined, residency, gogeta and seq-overflow, of those that the "
    "machine takes",
    **KAPLA_SCHEDULES,
    **CONFIGURATIONS,
}
# pJ per read or write of the outermost level, where a search is to move as little there as possible: far
# above all other costs
FAR_PJ = 1e9
SEARCH_ENDED = "the search"  # `Infeasible.level` where a search found nothing before its budget ended
LAYOUTS_PER_TENSOR = 4  # layouts of one tensor, at most, that are chosen together with on-chip retention
LAYOUT = LAYOUT_POLICIES


def effort(e: Einsum) -> float:
    """Returns the relative search time of an einsum, without a unit: (product over ranks of twice the number
    of divisors up to the square root) ^ 1.5; a quarter of that for einsums that do not multiply.
    """
    tile_choices = math.prod(2 * sum(n % k == 0 for k in range(1, math.isqrt(n) + 1)) for _, n in e.extents)
    return math.pow(tile_choices, 1.5) * (1.0 if e.kind == "mac" else 0.25)


def solve(
    arch: Arch,
    workload: Workload,
    options: SolverOptions,
    on_einsum: EinsumCallback | None = None,
    progress: ProgressFn = no_progress,
) -> list[Solution] | Infeasible:
    """Returns schedules of a workload on a machine, best first, of the kind that `options.schedule` and
    `options.layout` name. Layouts are chosen only on machines with cache lines, rows or banks: on others all
    cost the same.

    on_einsum: called with the cost of each einsum, by schedule unfused without layouts (`solve_unfused`).
    """
    check_rules(arch, workload, options)
    if options.layout != "row_major" and options.schedule == "unfused" and arch.models_layout():
        found = in_best_layouts(arch, workload, options, progress)
        return found if isinstance(found, Infeasible) else [_with_copies(found)]
    return (
        solve_schedule(arch, workload, options, progress)
        if options.schedule != "unfused"
        else solve_unfused(arch, workload, options, progress, on_einsum)
    )


def check_rules(arch: Arch, workload: Workload, options: SolverOptions) -> None:
    """Raises ValueError, one line, where widths of elements (`bits` of a memory) would not be priced, ports
    that serve some tensors or first words not be timed, or rules for mappings (`mapping` of the machine,
    `solver.mapping`) not be obeyed: by these options, on a machine that prices layouts, or where a rule of
    the solver names nothing of the workload or tells equal einsums apart, which are mapped once.
    """
    features = _features(arch, workload, options)
    of_widths = (compressed_width(e, arch) for e in workload.einsums if arch.with_widths())
    of_formats = (
        line for e in workload.einsums if arch.with_formats() for line in format_faults(e, arch.levels)
    )
    if line := next(filter(None, (*options.refusals(features), *of_widths, *of_formats)), ""):
        raise ValueError(line)
    for one in (one for one in (arch, *arch.units) if one.compute.lockstep):
        in_steps = [e for e in workload.einsums if in_lockstep(e, one.compute)]
        stepped = [own.tensor for e in in_steps for p in e.tensors() if (own := in_step(p, e))]
        having = {key for key, found in features.items() if found}
        if stepped and (line := options.lockstep_refused(one.compute.name.lower(), stepped[0], having)):
            raise ValueError(line)
    for e in workload.einsums:
        computes(e, arch)
    if (results := packed_results(workload)) and options.schedule not in ("unfused", "best"):
        named = f"{results[0].output.tensor} of {results[0].name}"
        raise ValueError(
            f"solver.schedule = {options.schedule} does not count results in "
            f"{results[0].output.format} ({named}): mappers do, for "
            "unfused schedules; leave it out, or store the result dense"
        )
    if not arch.mapping and not options.mapping:
        return
    if arch.models_layout():
        raise ValueError(
            f"{'solver.mapping' if options.mapping else 'mapping'}: {arch.name} describes lines, rows or "
            "banks, and layouts are not searched under rules; leave burst and bank_map out, or the rules"
        )
    placed = [
        key for rule in (*arch.mapping, *options.mapping) for key in ("order", "inside") if getattr(rule, key)
    ]
    if options.schedule not in ("unfused", "best") and placed:
        raise ValueError(
            f"solver.schedule = {options.schedule} does not obey rules for where loops stand "
            f"(mapping[].{placed[0]}): schedule unfused does; leave one of both out"
        )
    if options.schedule in PIPELINED_SCHEDULES and has_nodes(arch):
        for rule in _rules_outside(arch, options):
            raise ValueError(
                f"mapping: a rule at {rule.at.lower() or 'the machine (utilization)'} does not go with "
                f"solver.schedule = {options.schedule}, which obeys rules inside of a node's array "
                f"({', '.join(name.lower() for name in _inside_nodes(arch))}); leave it out"
            )
    _check_names(arch, workload, options)
    for group in unique(workload):
        first, *others = (e for e in workload.einsums if e.name in group.names)
        limits = set(options.constraints(first, arch).limits)
        for e in others:
            if {_renamed(limit, e, first) for limit in options.constraints(e, arch).limits} != limits:
                raise ValueError(
                    f"mapping: its rules hold for {first.name} and {e.name} in different ways, but these are "
                    "equal einsums, which are mapped once; name both, or take roles of ranks and tensors"
                )


def is_taken(arch: Arch, workload: Workload, options: SolverOptions) -> bool:
    """True if `check_rules` refuses nothing of these options."""
    try:
        check_rules(arch, workload, options)
    except ValueError:
        return False
    return True


def _features(arch: Arch, workload: Workload, options: SolverOptions) -> dict[str, Sequence[object]]:
    """Returns what of a machine and of rules not all schedules count, by feature (`options.COUNTED_BY`);
    formats of memories where some tensor of the workload has zeros.
    """
    packing = [packing_levels(e, one) for e in workload.einsums for one in (arch, *arch.units)]
    return {
        "bits": arch.with_widths(),
        "ports": arch.with_ports(),
        "formats": list(dict.fromkeys(name for own in packing for name in own)),
        "latency_ns": arch.with_latency(),
        "along": arch.with_sharing(),
        "units": [one.compute.name.lower() for one in arch.units],
        "lockstep": [one.compute.name for one in (arch, *arch.units) if one.compute.lockstep],
        "rules": arch.mapping,
        "no nodes": _rules_outside(arch, options) if has_nodes(arch) else [arch.name],
    }


def _inside_nodes(arch: Arch) -> list[str]:
    """Returns the memories and dimensions inside of the nodes on which pipelined schedules run."""
    return [*(level.name for level in arch.levels[2:]), *(dim for f in arch.fanouts[1:] for dim, _ in f.dims)]


def _rules_outside(arch: Arch, options: SolverOptions) -> list[Rule]:
    """Returns the rules for mappings that are not of places inside of nodes."""
    inner = _inside_nodes(arch)
    return [rule for rule in (*arch.mapping, *options.mapping) if rule.at.upper() not in inner]


def _check_names(arch: Arch, workload: Workload, options: SolverOptions) -> None:
    """Raises ValueError if a rule of the solver names nothing of the machine or of the workload. (Rules of a
    machine file are for many workloads.)
    """
    places = {place.lower() for place in arch.level_index()}
    places |= {dim.lower() for f in arch.fanouts for dim, _ in f.dims}
    einsums = workload.einsums
    names = {
        "einsums": {*(e.name for e in einsums), *map(einsum_kind, einsums), *EINSUM_KINDS},
        "ranks": {*RANK_ROLES, *(rank for e in einsums for rank, _ in e.extents)},
        "tensors": {*ROLES, *(p.tensor for e in einsums for p in e.tensors())},
    }
    for i, rule in enumerate(options.mapping):
        named: tuple[tuple[str, Sequence[str], set[str]], ...] = (
            ("at", [rule.at.lower()] if rule.at else [], places),
            ("einsums", rule.einsums, names["einsums"]),
            ("ranks", rule.ranks or (), names["ranks"]),
            ("factors", [factor.rank for factor in rule.factors], names["ranks"]),
            ("keep", rule.keep, names["tensors"]),
            ("bypass", rule.bypass, names["tensors"]),
            ("tile", [limit.tensor for limit in rule.tile], names["tensors"]),
            ("order", rule.order, names["ranks"] | {ALL_OTHERS}),
            ("inside", rule.inside, names["ranks"]),
        )
        for key, given, known in named:
            for name in given:
                if name not in known:
                    owner = arch.name if key == "at" else workload.name
                    raise ValueError(
                        f"solver.mapping[{i}].{key} = {name} names nothing of {owner}; "
                        f"{closest_name(name, sorted(known))}"
                    )


def _renamed(limit: Limit, e: Einsum, other: Einsum) -> Limit:
    """Returns a limit of an einsum in the names of an equal one."""
    nodes = (Loop(limit.name, 1), Store("", limit.name), Loop(limit.below, 1))
    loop, store, below = schedule.rename(Nest(nodes), e, other).nodes
    is_rank = limit.kind in ("spatial", "temporal", "order", "inside")
    assert isinstance(loop, Loop)
    assert isinstance(store, Store)
    assert isinstance(below, Loop)
    return replace(limit, name=loop.rank if is_rank else store.tensor, below=below.rank)


def solve_schedule(
    arch: Arch,
    workload: Workload,
    options: SolverOptions,
    progress: ProgressFn = no_progress,
    known: Emitted | None = None,
) -> list[Solution] | Infeasible:
    """Searches a schedule as if the outermost level held everything (`_search_schedule`), and returns it if
    that level does hold it. known: what GOGETA's configurations with equal other options found.

    Otherwise GOGETA's configurations return Infeasible. All other methods return the best unfused schedule
    or, where that does not fit either, the schedule that moves least at the outermost level. Its optimality
    gap is measured from the schedule that did not fit. If none of them fits the answer is Infeasible,
    although a schedule that was not tried may fit.
    """
    check_rules(arch, workload, options)
    if overflow := outermost.overflow_of_any(
        arch, workload, options.schedule in PIPELINED_SCHEDULES and options.weights == "pinned"
    ):
        return overflow
    found = _search_schedule(arch.unbounded(), workload, options, progress, known)
    if options.objective == "edp" and options.schedule == "fused":
        found = _at_most_unfused(found, arch.unbounded(), workload, options, progress)
    if isinstance(found, Infeasible) or (overflow := _outermost_overflow(arch, workload, found[0])) is None:
        return found
    infeasible = replace(
        overflow, unit=f"bytes in the schedule that {options.schedule} found (others may fit)"
    )
    if options.schedule in CONFIGURATIONS:
        return infeasible
    unfused = solve_unfused(arch, workload, replace(options, schedule="unfused"), progress)
    if isinstance(unfused, list):
        best = replace(among_schedules(unfused[0], arch, workload, options.single_objective), saved=0.0)
        return [_replacement(best, found[0], overflow, "unfused", arch, workload, options)]
    if least_traffic := _least_outer_traffic(arch, workload, options, progress):
        return [_replacement(least_traffic, found[0], overflow, "moves least there", arch, workload, options)]
    return infeasible


def _replacement(
    best: Solution,
    oversized: Solution,
    overflow: Infeasible,
    kind: str,
    arch: Arch,
    workload: Workload,
    options: SolverOptions,
) -> Solution:
    """Returns `best` with a certificate that says why it replaces `oversized`, a schedule too large for the
    outermost level. Its optimality gap is measured from the lower bound of `oversized`. If `oversized` has
    none, the certificate states what was too small (`overflow`) and what kind of schedule `best` is (`kind`).
    """
    if oversized.space:
        return _with_bound_of(oversized, best, arch, workload, options)
    statement = (
        f"not proven optimal ({kind}: the schedule that {options.schedule} found needs {overflow.need_bytes} "
        f"bytes of {overflow.level})"
    )
    return replace(
        best,
        certificate=certificate_text(
            statement, best.gap_to_bound, any_schedule(workload, options.weights == "pinned")
        ),
    )


def _with_bound_of(
    other: Solution, best: Solution, arch: Arch, workload: Workload, options: SolverOptions
) -> Solution:
    """Returns `best` with its optimality gap measured from the lower bound of `other`, in the space of
    `other`.
    """
    value, other_value = (
        objective_value(options.single_objective, one.energy_pj, one.latency_cycles) for one in (best, other)
    )
    assert other.space
    gap = relative_gap(value, other_value / (1 + other.optimality_gap))
    return with_certificate(replace(best, left_out=other.left_out), gap, other.space, arch, workload)


class _NotBelow(Exception):
    """Ends the search of unfused mappings: they cost no less than what they are compared with."""


def _unfused_below(
    arch: Arch, workload: Workload, options: SolverOptions, progress: ProgressFn, most: float
) -> Solution | None:
    """Returns the answer of schedule unfused if its objective value is below `most`, else None. Einsums are
    mapped until their costs, and lower bounds of all others, add up to `most` (for energy x delay: all are).
    A deadline that has passed leaves the question open: None.
    """
    groups = unique(workload)
    least = [
        group.occurrences * lower_bound(Problem(arch, group.einsum, options.single_objective))
        for group in groups
    ]

    def on_einsum(index: int, one: EinsumCost) -> None:
        cost = objective_value(options.single_objective, one.energy_pj, one.latency_cycles)
        least[index] = groups[index].occurrences * cost
        if sum(least) >= most:
            raise _NotBelow

    may_be_less = options.objective == "edp" or sum(least) < most
    if deadline.has_passed() or not may_be_less:
        return None
    try:
        found = cached(arch, workload, replace(options, schedule="unfused"), progress, on_einsum)
    except _NotBelow:
        return None
    if isinstance(found, Infeasible):
        return None
    cost = objective_value(options.single_objective, found[0].energy_pj, found[0].latency_cycles)
    return found[0] if cost < most else None


def _at_most_unfused(
    found: list[Solution] | Infeasible,
    arch: Arch,
    workload: Workload,
    options: SolverOptions,
    progress: ProgressFn,
) -> list[Solution] | Infeasible:
    """Returns the unfused schedule if its energy x delay is less than that of `found`. Of unfused schedules
    the product of the whole workload's sums is searched; fused ones have of each einsum a mapping of least
    product.
    """
    if isinstance(found, Infeasible):
        return found
    unfused = solve_unfused(arch, workload, replace(options, schedule="unfused"), progress)
    if isinstance(unfused, Infeasible):
        return found
    best = replace(among_schedules(unfused[0], arch, workload, options.single_objective), saved=0.0)
    is_less = best.energy_pj * best.latency_cycles < found[0].energy_pj * found[0].latency_cycles
    return [_with_bound_of(found[0], best, arch, workload, options)] if is_less and found[0].space else found


def _least_outer_traffic(
    arch: Arch, workload: Workload, options: SolverOptions, progress: ProgressFn
) -> Solution | None:
    """Returns the schedule with the least traffic at the outermost level if it fits that level, else None.
    Tensors that stay on chip take no capacity there, so this schedule often fits where others do not.
    """
    outer = replace(arch.levels[0], capacity_bits=None, read_pj=FAR_PJ, write_pj=FAR_PJ)
    costly_arch = replace(arch, levels=(outer, *arch.levels[1:]))
    answer = _search_schedule(costly_arch, workload, replace(options, objective="energy"), progress)
    if isinstance(answer, Infeasible) or _outermost_overflow(arch, workload, answer[0]):
        return None
    solution, copies = answer[0], answer[0].conversions
    full_schedule = solution.schedule or schedule.sequential(
        workload, {c.name: c.mapping for c in solution.einsums}
    )
    priced = evaluate(
        arch, with_conversions(workload, copies), full_schedule, options.single_objective, reuse=True
    )
    return (
        replace(priced, schedule=full_schedule, conversions=copies) if isinstance(priced, Solution) else None
    )


def _outermost_overflow(arch: Arch, workload: Workload, solution: Solution) -> Infeasible | None:
    """Returns Infeasible, with the bytes needed, if a solution overflows the outermost level; else None."""
    if arch.levels[0].capacity_bits is None:
        return None
    full_schedule = solution.schedule or schedule.sequential(
        workload, {c.name: c.mapping for c in solution.einsums}
    )
    return outermost.overflow_of_schedule(
        arch, with_conversions(workload, solution.conversions), full_schedule
    )


def _search_schedule(
    arch: Arch, workload: Workload, options: SolverOptions, progress: ProgressFn, known: Emitted | None = None
) -> list[Solution] | Infeasible:
    """Returns the schedule that `options.schedule` names, searched with the capacity of the outermost level
    as `arch` has it.

    best: the answer of lowest cost of all solvers that take the machine.
    fused: `schedules.fused`, in layouts of `options.layout`, or GOGETA's schedule where that costs less.
    Raises ValueError on a machine whose memories all narrow or widen elements.
    PIPELINED_SCHEDULES: `schedules.pipeline`, or the unfused answer where it costs less; KAPLA's solvers.
    CONFIGURATIONS: GOGETA's methods; `options.mapper` maps each einsum, equal einsums once.
    """
    if options.schedule == "best":
        return _best(arch, workload, options, progress)
    widths = arch.with_widths()
    if options.schedule == "fused" and widths and "fused" not in fusing_schedules(arch, workload):
        raise ValueError(
            "solver.schedule = fused: einsums share tensors in memories of one width, inside of none that "
            f"narrows or widens elements ({', '.join(f'{name}.bits' for name in widths)}), and {arch.name} "
            "has none; give sums of other widths a memory of their own (may_keep: [output]), or leave bits "
            f"out ({without_widths(widths_in_the_way(arch, workload))})"
        )
    if options.schedule == "fused":

        def constraints(e: Einsum) -> Constraints:
            return options.constraints(e, arch)

        def layouts_for(objective: Objective) -> Layouts | Infeasible | None:
            own = replace(options, objective=objective)
            return _layouts(arch, workload, own, progress) if arch.models_layout() else None

        goal, factors, gap = options.single_objective, options.factors, options.gap
        # machines that share schedules: one shared loop, so that all bounds are of one space
        several_loops = not options.sharing_gap
        takes_parts = not options.sharing_gap and is_taken(
            arch, workload, replace(options, schedule="residency")
        )

        def parts(found: Solution) -> Solution | None:
            return with_parts(arch, workload, found, goal) if takes_parts else None

        found = fused(
            arch, workload, goal, factors, constraints, gap, layouts_for, progress, several_loops, parts
        )
        if isinstance(found, Infeasible) or options.sharing_gap:
            return found if isinstance(found, Infeasible) else [found]
        return [_with_parts_or_gogeta(arch, workload, options, found, parts(found))]
    if options.schedule in PIPELINED_SCHEDULES:
        pipe_options = (
            options.single_objective,
            options.weights,
            options.spatial_layer_pipe,
            options.temporal_layer_pipe,
        )
        if options.schedule == "pipelined":
            unfused = partial(_unfused_below, arch, workload, options, progress)
            limits = (options.initiation_interval or math.inf, options.latency or math.inf)
            pipeline = pipelined(arch, workload, *pipe_options, *limits, unfused, options.constraints)
        else:
            method, seed = options.schedule, options.seed
            pipeline = published(arch, workload, method, *pipe_options, seed, constraints=options.constraints)
        return pipeline if isinstance(pipeline, Infeasible) else [pipeline]
    known = known or Emitted()
    found_nests = known.nests

    def nests(machine: Arch, e: Einsum) -> Nest | Infeasible:
        key = machine, canonical_key(e)
        if key not in found_nests:
            found = _mapper(options, constraints_for(e, machine))(
                Problem(machine, e, options.single_objective), Random(f"{options.seed}/{key[1]}")
            )
            found_nests[key] = e, found if isinstance(found, Infeasible) else found[0].mapping
        first, nest = found_nests[key]
        return (
            replace(nest, einsum=e.name) if isinstance(nest, Infeasible) else schedule.rename(nest, first, e)
        )

    searched = {
        encoded(own): own
        for e in workload.einsums
        for own in [mappings_of(options.factors, arch, constraints_for(e, arch))]
        if options.mapper == "optimal"
    }
    solution = solve_configuration(
        arch, workload, options.schedule, nests, options.single_objective, tuple(searched.values()), known
    )
    return solution if isinstance(solution, Infeasible) else [solution]


def _best(
    arch: Arch, workload: Workload, options: SolverOptions, progress: ProgressFn
) -> list[Solution] | Infeasible:
    """Returns the schedule of lowest cost that any solver finds (`schedules.best`). Solvers that prove a
    bound run first and share the time until a deadline: that of the widest space gets what unfused mappings
    leave. Others run if time is left.
    """
    answers: dict[str, Solution | Infeasible] = {}
    known = Emitted()
    if options.layout != "row_major" and arch.models_layout():  # the other solvers choose no layouts
        answers["unfused"] = cached_layouts(arch, workload, replace(options, schedule="unfused"), progress)
        own_options = [replace(options, schedule="fused")]
    else:
        named = [replace(options, schedule=name) for name in fusing_schedules(arch, workload)]
        own_options = [own for own in named if is_taken(arch, workload, own)]
        own_options.append(replace(options, schedule="unfused"))
    proving = [own for own in reversed(own_options) if own.schedule in WITH_BOUND]
    others = [own for own in own_options if own.schedule not in WITH_BOUND]
    for group in (proving, others):
        for at, own in enumerate(group):
            if group is others and deadline.has_passed():
                break
            with deadline.part(len(group) - at, is_divided=True):
                if own.schedule in CONFIGURATIONS:
                    found = solve_schedule(arch, workload, own, progress, known)
                else:
                    found = cached(arch, workload, own, progress)
                if deadline.has_passed():  # what was cut short is no mapping for the others
                    known.clear()
            answers[own.schedule] = found if isinstance(found, Infeasible) else found[0]
    # of equal costs the answer of the widest space counts
    answers = {own.schedule: answers[own.schedule] for own in own_options if own.schedule in answers}
    answer = best(arch, workload, options.single_objective, answers)
    return answer if isinstance(answer, Infeasible) else [answer]


def _with_parts_or_gogeta(
    arch: Arch, workload: Workload, options: SolverOptions, found: Solution, parts: Solution | None
) -> Solution:
    """Returns `found`, a fused schedule; `parts`, with shares of more tensors retained, or GOGETA's schedule,
    where that costs less. GOGETA's may win since it retains parts of tensors that several einsums read from
    main memory, and shares loops over ranks that are summed up.
    """
    answers = {"fused": found} | ({"parts": parts} if parts else {})
    produced = {e.output.tensor for e in workload.einsums}
    reader_counts = Counter(
        t for e in workload.einsums for t in {base_tensor(p.tensor, produced) for p in e.inputs} - produced
    )
    reads_twice = max(reader_counts.values(), default=0) >= 2
    takes_gogeta = "gogeta" in fusing_schedules(arch, workload) and is_taken(
        arch, workload, replace(options, schedule="gogeta")
    )
    if reads_twice and takes_gogeta and not deadline.has_passed():
        gogeta = solve_schedule(arch, workload, replace(options, schedule="gogeta"))
        if not isinstance(gogeta, Infeasible) and gogeta[0].schedule:
            answers["gogeta"] = gogeta[0]
    better = best(arch, workload, options.single_objective, answers) if len(answers) > 1 else found
    assert isinstance(better, Solution)
    return better


def find_shared_schedules_of(
    arches: Sequence[Arch], workload: Workload, options: SolverOptions
) -> SharedSchedules | Infeasible:
    """Returns schedules that machines of one structure share (`options.sharing_gap`)."""
    for arch in arches:
        check_rules(arch, workload, options)
    numbers = count(1)

    def solved(schedule: Literal["fused", "unfused"], arch: Arch, objective: str) -> Solution | Infeasible:
        number = next(numbers)
        goal: Literal["latency", "energy"] = "latency" if objective == "latency" else "energy"

        def progress(index: int, efforts: Sequence[float], name: str) -> None:
            """Says which machine is searched for all, and where that is."""
            doing.say(lambda: f"search {number} for all {len(arches)}, {schedule}, {goal}: {name}")

        found = cached(arch, workload, replace(options, schedule=schedule, objective=goal), progress)
        return found if isinstance(found, Infeasible) else found[0]

    return find_shared_schedules(
        arches, workload, partial(solved, "fused"), partial(solved, "unfused"), options.sharing_gap
    )


def find_shared_mappings_of(
    batch: MachineBatch, workloads: Sequence[Sequence[Unique]], options: SolverOptions
) -> list[dict[str, SharedMappings]]:
    """Returns for each workload the mappings that a batch of machines shares (`options.sharing_gap`), by
    canonical key of the einsum: an einsum has the same in all, but with the objective edp, where the others
    of its workload decide (fronts: `find_shared_fronts_of`). Answers are stored in $DSE_CACHE.

    workloads: the distinct einsums of each
    """
    if options.objective == "edp":
        return [_shared_mappings_of(batch, [one], options) for one in workloads]
    return [_shared_mappings_of(batch, workloads, options)] * len(workloads)


def _shared_mappings_of(
    batch: MachineBatch, workloads: Sequence[Sequence[Unique]], options: SolverOptions
) -> dict[str, SharedMappings]:
    """Returns the mappings that a batch of machines shares, by canonical key of the einsum. workloads: one
    alone with the objective edp.
    """
    distinct = {group.key: group.einsum for group in reversed([*chain.from_iterable(workloads)])}
    einsums = list(distinct.values())
    occurrences = np.zeros((len(workloads), len(einsums)))
    for number, groups in enumerate(workloads):
        for group in groups:
            occurrences[number, list(distinct).index(group.key)] = group.occurrences
    path = _shared_path(batch, einsums, occurrences, options)
    found: list[SharedMappings] | None = _read_cached_on(path, batch, einsums)
    if found is None:
        searches = [_searches(e, batch.first, options) for e in einsums]
        found = (
            find_shared_products(batch, einsums, occurrences[0], searches, options.sharing_gap)
            if options.objective == "edp"
            else find_shared_mappings(batch, einsums, occurrences, searches, options.sharing_gap)
        )
        _write_cached_on(path, found)
    return dict(zip(distinct, found, strict=True))


def _shared_path(
    batch: MachineBatch, einsums: Sequence[Einsum], occurrences: Any, options: SolverOptions
) -> Path:
    """Returns the cache file of answers that a batch of machines shares. Raises ValueError under rules."""
    if line := options.rules_refused(bool(batch.first.mapping)):
        raise ValueError(line)
    own = (options.factors, options.dataflow, options.gap, options.sharing_gap, options.objective == "front")
    return cache.answer_path("shared", (batch.digest, einsums, occurrences.tolist(), *own), ".npz")


def find_shared_fronts_of(
    batch: MachineBatch, groups: Sequence[Unique], options: SolverOptions
) -> SharedFronts:
    """Returns the fronts of one workload on a batch of machines that share mappings (`options.sharing_gap`).
    Answers are stored in $DSE_CACHE.

    groups: its distinct einsums
    """
    einsums = [group.einsum for group in groups]
    occurrences = np.array([group.occurrences for group in groups], float)
    path = _shared_path(batch, einsums, occurrences, options)

    def front_alone(machines: Sequence[int]) -> Sequence[Chosen | Infeasible]:
        arches = [batch.machine(i).unbounded() for i in machines]
        return fronts_on(arches, groups, replace(options, gap=options.sharing_gap))

    def decode(data: bytes) -> SharedFronts:
        with np.load(BytesIO(data), allow_pickle=False) as archive:
            return _checked_fronts(batch, einsums, {name: archive[name] for name in archive.files})

    found: SharedFronts | None = cache.read_decoded(path, decode)
    if found is None:
        cheapest, fastest = (
            [_searches(e, batch.first, replace(options, objective=goal)) for e in einsums]
            for goal in ("energy", "latency")
        )
        found = find_shared_fronts(
            batch, einsums, occurrences, cheapest, fastest, front_alone, options.sharing_gap
        )
        _write_arrays(
            path,
            {f"nests_{i}": np.array([*map(str, own)], np.str_) for i, own in enumerate(found.nests)}
            | {"rows": np.concatenate(found.rows), "counts": np.array([*map(len, found.rows)])}
            | {"gaps": found.gaps, "choice": found.choice},
        )
    return found


def _checked_fronts(
    batch: MachineBatch, einsums: Sequence[Einsum], arrays: Mapping[str, Any]
) -> SharedFronts:
    """Returns shared fronts that were stored. Raises ValueError unless their nests are mappings; whether they
    fit is seen as they are priced.
    """
    rows, counts, gaps, choice = (arrays[name] for name in ("rows", "counts", "gaps", "choice"))
    nests = [[parse(text) for text in arrays[f"nests_{i}"].tolist()] for i in range(len(einsums))]
    shapes = rows.shape, counts.shape, gaps.shape, choice.shape
    n, lengths = len(batch), np.array([*map(len, nests)])
    if shapes != ((int(counts.sum()), len(einsums)), (n,), (n,), (len(einsums), n)):
        raise ValueError(f"fronts of {counts.shape} machines, not of {n}")
    if (rows < 0).any() or (rows >= lengths).any() or not np.isfinite(gaps).all():
        raise ValueError("a front names a nest that is not there")
    if any(faults(one, e, batch.largest) for e, own in zip(einsums, nests, strict=True) for one in own):
        raise ValueError("a nest is no mapping of the einsum")
    return SharedFronts(nests, np.split(rows, np.cumsum(counts)[:-1]), gaps, choice)


def _searches(e: Einsum, arch: Arch, options: SolverOptions) -> Searches:
    """Returns how mappings of an einsum are searched on machines of the family of `arch`."""
    rules = options.constraints(e, arch)
    goal = "energy" if options.objective == "edp" else options.objective

    def solved(goal: str, one: Arch) -> EinsumCost | Infeasible:
        found = optimal(Problem(one, e, goal), options.factors, rules, allowed_gap=options.gap)
        return found if isinstance(found, Infeasible) else found[0]

    def improved(one: Arch, below: float, effort: int) -> Improved:
        found = search_below(
            Problem(one, e, goal), options.factors, rules, below, options.gap, effort, effort
        )
        return Improved(found.mapping, found.lower_bound, found.ended)

    return Searches(partial(solved, goal), improved, partial(solved, "edp"))


def load_kernels() -> None:
    """Loads the kernels of the search, or compiles them, once per installation, by a tiny search. What is
    timed then is a search alone.
    """
    tiny = einsum("O[m,n] += A[m,k] * B[k,n]", dict.fromkeys("mnk", 4))
    optimal(Problem(machine.load_arch("edge_array"), tiny, "energy"))


def _write_cached_on(path: Path, found: Sequence[SharedMappings]) -> None:
    """Writes shared mappings to a cache file: mappings as text, choices and gaps."""
    arrays = dict[str, Any]()
    for i, shared in enumerate(found):
        arrays[f"nests_{i}"] = np.array([str(one.cost.mapping) for one in shared.mappings], np.str_)
        arrays[f"choice_{i}"], arrays[f"gaps_{i}"] = shared.choice, shared.gaps
    _write_arrays(path, arrays)


def _write_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Writes arrays to a cache file."""
    file = BytesIO()
    np.savez_compressed(file, **arrays)
    cache.write(path, file.getvalue())


def _read_cached_on(
    path: Path, batch: MachineBatch, einsums: Sequence[Einsum]
) -> list[SharedMappings] | None:
    """Returns shared mappings from a cache file, None if there is none or it is not valid. Counts and prices
    of the mappings are evaluated again.
    """

    def decode(data: bytes) -> list[SharedMappings]:
        with np.load(BytesIO(data), allow_pickle=False) as archive:
            return [
                _checked(
                    batch, e, archive[f"nests_{i}"].tolist(), archive[f"choice_{i}"], archive[f"gaps_{i}"]
                )
                for i, e in enumerate(einsums)
            ]

    return cache.read_decoded(path, decode)


def _checked(batch: MachineBatch, e: Einsum, nests: Sequence[str], choice: Any, gaps: Any) -> SharedMappings:
    """Returns shared mappings that were stored. Raises ValueError unless they are mappings that fit."""
    is_valid = choice.dtype.kind + gaps.dtype.kind == "iu" and choice.shape == gaps.shape == (len(batch),)
    if not is_valid or not NOT_SEARCHED <= choice.min() <= choice.max() < len(nests):
        raise ValueError(f"choices of {len(choice)} machines, not of {len(batch)}")
    mappings = [parse(text) for text in nests]
    costs = [priced(batch, e, mapping) for mapping in mappings if not faults(mapping, e, batch.largest)]
    found = tuple(cost for cost in costs if isinstance(cost, Priced))
    if len(found) < len(nests) or not all(one.fits[choice == k].all() for k, one in enumerate(found)):
        raise ValueError("a nest is no mapping of the einsum on these machines")
    return SharedMappings(e, found, choice.astype(np.int16), gaps.astype(np.uint16))


def rename(batch: MachineBatch, shared: SharedMappings, e: Einsum) -> SharedMappings:
    """Returns the shared mappings of an einsum for an equal one, `e`, with the names of `e`."""
    if shared.einsum == e:
        return shared
    costs = [priced(batch, e, schedule.rename(one.cost.mapping, shared.einsum, e)) for one in shared.mappings]
    return replace(shared, einsum=e, mappings=tuple(one for one in costs if isinstance(one, Priced)))


def sequential_space(arch: Arch, e: Einsum, options: SolverOptions) -> Mappings:
    """Returns the space that is searched for one unfused einsum."""
    return mappings_of(options.factors, arch, options.constraints(e, arch))


def solve_unfused(
    arch: Arch,
    workload: Workload,
    options: SolverOptions,
    progress: ProgressFn = no_progress,
    on_einsum: EinsumCallback | None = None,
) -> list[Solution] | Infeasible:
    """Returns the unfused schedule: each distinct einsum mapped alone.

    On machines with cache lines, rows or banks, tensors between two einsums are row-major and all others have
    the best layout. Mappers other than optimal search as if layouts cost nothing.

    on_einsum: called with position and cost of every einsum as soon as it is solved, in `_informative_order`.
    It may raise, which ends the search. Not called where the workload decides (`is_joint`).
    """
    check_rules(arch, workload, options)
    if overflow := outermost.overflow_unfused(arch, workload):
        return overflow
    if options.objective == "front":
        return solve_fronts([arch], workload, options)[0]
    bounded_arch, arch = arch, arch.unbounded()
    groups = unique(workload)
    on_einsum = None if is_joint(options, groups) else on_einsum
    mapper = _mapper(options)
    interfaces = interface_tensors(workload) if arch.models_layout() else {}
    costs: dict[int, EinsumCost | Infeasible] = {}

    def solve_index(index: int) -> EinsumCost | Infeasible:
        if index not in costs:
            e, key = groups[index].einsum, groups[index].key
            with deadline.part(len(groups) - len(costs)):
                costs[index] = _map_einsum(
                    Problem(arch, e, options.objective),
                    options,
                    mapper,
                    interfaces.get(key, frozenset()),
                    Random(f"{options.seed}/{key}"),
                )
        return costs[index]

    if on_einsum:
        for index in _informative_order(groups, arch):
            if isinstance(one := solve_index(index), Infeasible):
                break  # the loop below returns the first einsum, in order of the workload, that does not fit
            on_einsum(index, one)
    for index, _ in enumerate(_with_progress(groups, progress)):
        if isinstance(one := solve_index(index), Infeasible):
            return one
    found = [costs[index] for index in range(len(groups))]
    answer = sequential_solution(arch, groups, options, _jointly([arch], groups, options, [found])[0])
    return (
        answer
        if isinstance(answer, Infeasible) or not arch.models_layout()
        else _outermost_overflow(bounded_arch, workload, answer[0]) or answer
    )


def is_batched(options: SolverOptions) -> bool:
    """True if `solve_unfused_on` may solve machines together under these options."""
    return options.schedule == "unfused" and options.mapper == "optimal" and not TILING[options.tiling]


def solve_unfused_on(
    arches: Sequence[Arch],
    workload: Workload,
    options: SolverOptions,
    on_einsum: MachineCallback | None = None,
) -> list[list[Solution] | Infeasible | None]:
    """Returns the unfused schedule of each machine, as `solve_unfused`. All machines whose next einsum is the
    same are searched together.

    None stands for a machine that was given up, or that must be solved by itself since layouts or hops cost
    something there.

    on_einsum: called with machine, position and cost of every einsum as soon as it is solved, on each machine
    in `_informative_order`. If it returns False the machine is given up. Not called where the workload
    decides (`is_joint`).
    """
    for arch in arches:
        check_rules(arch, workload, options)
    if options.objective == "front":
        return [*solve_fronts(arches, workload, options)]
    groups, overflows = unique(workload), [outermost.overflow_unfused(arch, workload) for arch in arches]
    on_einsum = None if is_joint(options, groups) else on_einsum
    arches = [arch.unbounded() for arch in arches]
    costs: list[dict[int, EinsumCost | Infeasible]] = [{} for _ in arches]
    # of each machine: positions of the einsums that are not solved yet, in the order of their searches
    todo = [
        []
        if arch.layout_sensitive() or arch.units or overflow
        else _informative_order(groups, arch)
        if on_einsum
        else list(range(len(groups)))
        for arch, overflow in zip(arches, overflows, strict=True)
    ]
    while any(todo):
        # (position of an einsum, constraints on its mapping) -> machines whose next einsum it is
        requests: dict[tuple[int, Constraints], list[int]] = {}
        for j, indices in enumerate(todo):
            if indices:
                index = indices.pop(0)
                requests.setdefault((index, options.constraints(groups[index].einsum, arches[j])), []).append(
                    j
                )
        for (index, rules), machines in requests.items():
            found = optimal_on(
                [Problem(arches[j], groups[index].einsum, options.objective) for j in machines],
                options.factors,
                rules,
                options.gap,
            )
            for j, one in zip(machines, found, strict=True):
                earlier_failure = _infeasible(costs[j])
                costs[j][index] = one
                if isinstance(one, Infeasible):  # an earlier einsum may not fit either: the first one counts
                    todo[j] = sorted(other for other in todo[j] if other < index)
                elif on_einsum and not earlier_failure and not on_einsum(j, index, one):
                    todo[j], costs[j] = [], {}
    solved = [j for j, own in enumerate(costs) if own and not _infeasible(own) and not overflows[j]]
    rows = [[costs[j][index] for index in range(len(groups))] for j in solved]
    choices = dict(zip(solved, _jointly([arches[j] for j in solved], groups, options, rows), strict=True))
    return [
        overflow
        or _infeasible(own)
        or (sequential_solution(arch, groups, options, choices[j]) if own else None)
        for j, (arch, own, overflow) in enumerate(zip(arches, costs, overflows, strict=True))
    ]


def is_joint(options: SolverOptions, groups: Sequence[Unique]) -> bool:
    """True if which mapping an einsum gets depends on the other einsums: fronts, and energy x latency of
    several distinct einsums.
    """
    return options.objective == "front" or (options.objective == "edp" and len(groups) > 1)


def _jointly(
    arches: Sequence[Arch],
    groups: Sequence[Unique],
    options: SolverOptions,
    found: Sequence[Sequence[EinsumCost | Infeasible]],
) -> list[Sequence[EinsumCost | Infeasible]]:
    """Returns the costs of all einsums on each machine, from their mappings of lowest objective: with
    objective edp those of least energy x latency of the workload, which other mappers than optimal, layouts,
    hops and several computes leave as they are found. Rows with an Infeasible stay.
    """
    choices: list[Sequence[EinsumCost | Infeasible]] = list(found)
    if options.objective != "edp" or len(groups) == 1:
        return choices
    by_rounds: dict[int, list[int]] = {}
    for j, (arch, own) in enumerate(zip(arches, found, strict=True)):
        if all(isinstance(one, EinsumCost) for one in own):
            is_searched = is_batched(options) and not arch.layout_sensitive() and not arch.units
            by_rounds.setdefault(ROUNDS if is_searched else 0, []).append(j)
    for rounds, positions in by_rounds.items():
        costs = [[one for one in found[j] if isinstance(one, EinsumCost)] for j in positions]
        lowered = lower_products([arches[j] for j in positions], groups, options, costs, rounds)
        for j, (choice, gap) in zip(positions, lowered, strict=True):
            choices[j] = [replace(one, optimality_gap=gap) for one in choice]
    return choices


def solve_fronts(
    arches: Sequence[Arch], workload: Workload, options: SolverOptions
) -> list[list[Solution] | Infeasible]:
    """Returns the front of unfused schedules on each machine, least energy first (`front.fronts_on`). Raises
    ValueError for a machine that prices layouts or hops.
    """
    for arch in arches:
        if arch.layout_sensitive():
            raise ValueError(
                f"solver.objective = front: {arch.name} prices layouts or hops, which fronts do not search; "
                "take energy, latency or edp"
            )
    groups, found = unique(workload), [outermost.overflow_unfused(arch, workload) for arch in arches]
    todo = [j for j, overflow in enumerate(found) if not overflow]
    fronts = fronts_on([arches[j].unbounded() for j in todo], groups, options) if todo else []
    answers: dict[int, list[Solution] | Infeasible] = {}
    for j, front in zip(todo, fronts, strict=True):
        if isinstance(front, Infeasible):
            answers[j] = front
            continue
        choices, gap = front
        answers[j] = front_solutions(arches[j].unbounded(), groups, options, choices, gap)
    return [overflow or answers[j] for j, overflow in enumerate(found)]


def front_solutions(
    arch: Arch,
    groups: Sequence[Unique],
    options: SolverOptions,
    choices: Sequence[Sequence[EinsumCost]],
    gap: float,
) -> list[Solution]:
    """Returns the schedules of a front, from the mappings of each and the gap of all."""
    spaces = [sequential_space(arch, group.einsum, options) for group in groups]
    answers = (
        sequential_solution(
            arch,
            groups,
            options,
            [
                replace(one, optimality_gap=gap, space=space)
                for one, space in zip(choice, spaces, strict=True)
            ],
        )
        for choice in choices
    )
    return [answer[0] for answer in answers if isinstance(answer, list)]


def thinned(
    arch: Arch, groups: Sequence[Unique], options: SolverOptions, front: Sequence[Solution], most: int
) -> list[Solution]:
    """Returns `most` schedules at most that cover a front, within the gap that its certificate then says."""
    sums = np.array([(one.energy_pj, one.latency_cycles) for one in front])
    gap = options.gap or ROUNDING_GAP
    while len(rows := covering_rows(sums, gap)) > max(most, 2):
        gap *= 2
    more = (1 + front[0].optimality_gap) * (1 + gap) - 1
    return front_solutions(arch, groups, options, [front[row].einsums for row in rows.tolist()], more)


def _infeasible(costs: dict[int, EinsumCost | Infeasible]) -> Infeasible | None:
    """Returns Infeasible of the first einsum without a mapping, or None."""
    return next((one for _, one in sorted(costs.items()) if isinstance(one, Infeasible)), None)


def _informative_order(groups: Sequence[Unique], arch: Arch) -> list[int]:
    """Returns positions of einsums, largest lower bound on energy per search effort first."""
    bounds_of = bounds.lower_bounds((group.einsum for group in groups), arch)
    return sorted(
        range(len(groups)), key=lambda i: -groups[i].occurrences * bounds_of[i][0] / effort(groups[i].einsum)
    )


def _with_progress(groups: Sequence[Unique], progress: ProgressFn) -> Iterator[Unique]:
    """Yields the einsums in order, and calls `progress` before each."""
    efforts = [effort(group.einsum) for group in groups] if progress is not no_progress else ()
    for index, group in enumerate(groups):
        progress(index, efforts, group.einsum.name)
        yield group


def _map_on_unit(
    problem: Problem, options: SolverOptions, mapper: Mapper, interface: frozenset[str], rng: Random
) -> EinsumCost | Infeasible:
    """Returns the mapping of one einsum on a machine of one compute. Tensors of `interface`, which it shares
    with other einsums, are row-major at the outermost level; all others have the best layout.
    """
    arch, e = problem.arch, problem.einsum
    try:
        if arch.models_layout() and options.mapper == "optimal" and not TILING[options.tiling]:
            found = layout_aware(
                problem, options.factors, options.constraints(e, arch), options.gap, interface
            )
            return found if isinstance(found, Infeasible) else found[0]
        if searches_hops(options):
            found = mapper(problem, rng)
            return found if isinstance(found, Infeasible) else found[0]
        found = mapper(replace(problem, arch=arch.ideal()), rng)
        if isinstance(found, Infeasible):
            return found
        return (
            found_in_best_layouts(problem, found[0], interface)
            if arch.models_layout() and not found[0].mapping.non_nest_text
            else price_in_layouts(problem, found[0])
        )
    except TooLong as fault:
        raise TooLong(f"mapping of {e.name}: {fault}") from None
    except ValueError as fault:
        raise ValueError(f"mapping found for {e.name}: {fault}; try --set solver.factors=perfect") from None


def _map_einsum(
    problem: Problem, options: SolverOptions, mapper: Mapper, interface: frozenset[str], rng: Random
) -> EinsumCost | Infeasible:
    """Returns the mapping of one einsum (`_map_on_unit`): on a machine of several computes that of lowest
    objective on those that take it, each searched by itself (`Arch.units`), the one of lowest bound first.

    Its gap is to the least that any of them may cost. A compute is left out where its bound is no less than
    what was found.
    """
    if not problem.arch.units:
        return _map_on_unit(problem, options, mapper, interface, rng)
    e, arch = problem.einsum, problem.arch
    alone = [replace(problem, arch=one) for one in computes(e, arch)]
    bound_of = {one.arch.compute.name: lower_bound(one) for one in alone}
    best: tuple[float, str, EinsumCost] | None = None
    least, spaces, unfit = math.inf, list[Mappings | None](), list[Infeasible]()
    for number, own in enumerate(sorted(alone, key=lambda one: bound_of[one.arch.compute.name])):
        name = own.arch.compute.name
        if best and bound_of[name] >= best[0]:
            continue
        with deadline.part(len(alone) - number):
            found = _map_on_unit(own, options, mapper, interface, rng)
        if isinstance(found, Infeasible):
            unfit.append(found)
            least = min(least, bound_of[name] if found.level == SEARCH_ENDED else math.inf)
            continue
        value = objective_value(problem.objective, found.energy_pj, found.latency_cycles)
        least = min(least, value / (1 + found.optimality_gap) if found.space else bound_of[name])
        spaces.append(found.space)
        if best is None or value < best[0]:
            best = value, name, found
    if best is None:
        return unfit[0]
    value, name, found = best
    cost = einsum_cost(problem, replace(found.mapping, unit=name))
    assert isinstance(cost, EinsumCost)
    known = [space for space in spaces if space]
    if len(known) < len(spaces):
        return replace(cost, visited=found.visited)
    gap = relative_gap(value, min(value, least))
    return replace(
        cost,
        optimality_gap=min(gap if gap > ROUNDING_GAP else 0.0, cost.gap_to_bound),
        space=common(known, [*bound_of]),
        visited=found.visited,
    )


def in_best_layouts(
    arch: Arch, workload: Workload, options: SolverOptions, progress: ProgressFn = no_progress
) -> LayoutAssignment | Infeasible:
    """Returns a workload in the layouts that `options.layout` chooses for tensors between einsums.
    Conversions between layouts are additional einsums. Raises ValueError if the machine or the options leave
    no choice of layouts.
    """
    check_rules(arch, workload, options)
    if (
        not arch.models_layout()
        or options.mapper != "optimal"
        or options.tiling != "mapper"
        or options.schedule != "unfused"
    ):
        none = f"{arch.name} describes no lines, rows or banks: all layouts cost the same"
        why = (
            "needs the mapper optimal, without solver.schedule and solver.tiling"
            if arch.models_layout()
            else none
        )
        raise ValueError(f"solver.layout = {options.layout}: {why}; leave solver.layout out")
    if overflow := outermost.overflow_unfused(arch, workload):
        return overflow
    pairs = _mapping_pairs(arch.unbounded(), workload, options, progress)
    chosen = (
        pairs
        if isinstance(pairs, Infeasible)
        else assign_layouts(arch.unbounded(), workload, options.single_objective, options.layout, pairs)
    )
    return (
        chosen
        if isinstance(chosen, Infeasible)
        else outermost.overflow_of_schedule(arch, chosen.workload, chosen.schedule) or chosen
    )


def _mapping_pairs(
    arch: Arch, workload: Workload, options: SolverOptions, progress: ProgressFn = no_progress
) -> dict[str, PricedMappings] | Infeasible:
    """Returns pairs of mapping and layouts for every distinct einsum, by canonical key."""
    groups, interfaces, found = unique(workload), interface_tensors(workload), {}
    products = sum(group.einsum.kind == "mac" for group in groups)
    for number, group in enumerate(_with_progress(groups, progress)):
        problem = Problem(arch, group.einsum, options.single_objective)
        if options.layout == "sampled" and group.einsum.kind == "mac":
            pairs = sampled_mapping(
                problem,
                options.layout_proposer,
                options.seed + number,
                max(options.layout_joint // products, 1),
                options.layout_loops // products,
                options.layout_levels,
            )
        else:
            pairs = priced_mappings(
                problem,
                options.factors,
                options.constraints(group.einsum, arch),
                options.gap,
                interfaces[group.key],
            )
        if isinstance(pairs, Infeasible):
            return pairs
        found[group.key] = pairs
    return found


def _layouts(
    arch: Arch, workload: Workload, options: SolverOptions, progress: ProgressFn = no_progress
) -> Layouts | Infeasible:
    """Returns the layouts that a fused schedule chooses from: at most LAYOUTS_PER_TENSOR per tensor with
    `options.layout` alt, since each is combined with every choice of retained tensors; else row-major alone.
    """
    pairs = _mapping_pairs(arch, workload, options, progress)
    return (
        pairs
        if isinstance(pairs, Infeasible)
        else Layouts(
            arch,
            workload,
            options.single_objective,
            pairs,
            LAYOUTS_PER_TENSOR if options.layout == "alt" else 1,
        )
    )


def _with_copies(found: LayoutAssignment) -> Solution:
    return replace(found.solution, schedule=found.schedule, conversions=found.conversions)


def cached_layouts(
    arch: Arch, workload: Workload, options: SolverOptions, progress: ProgressFn = no_progress
) -> Solution | Infeasible:
    """Returns the answer of `in_best_layouts`, with schedule and conversions cached in $DSE_CACHE. Costs are
    evaluated again; a cached answer that contradicts a lower bound is discarded.
    """
    path = cache.answer_path(
        "layout", (arch, workload.einsums, counts(workload), workload.loop_state, options), ".json"
    )
    if remembered := cache.read_decoded(
        path, lambda data: _layout_answer(arch, workload, options, json.loads(data))
    ):
        return remembered
    found = in_best_layouts(arch, workload, options, progress)
    if isinstance(found, Infeasible):
        return found
    solution = _with_copies(found)
    answer = {
        "schedule": str(solution.schedule),
        "conversions": [asdict(copy) for copy in solution.conversions],
        "gap": solution.optimality_gap,
        "said": claim(solution.certificate),
        "space": encoded(solution.space),
        "gaps": [c.optimality_gap for c in solution.einsums],
    }
    cache.write(path, json.dumps(answer).encode())
    return solution


def _layout_answer(
    arch: Arch, workload: Workload, options: SolverOptions, stored: Mapping[str, Any]
) -> Solution:
    """Returns an answer of `cached_layouts` from its cache file, priced again. Raises ValueError if it does
    not fit the machine, or if the stored gap contradicts the gap to the lower bound.
    """
    copies, full_schedule = _copies(stored["conversions"]), schedule.parse_schedule(stored["schedule"])
    solved = evaluate(arch, with_conversions(workload, copies), full_schedule, options.single_objective)
    if (
        isinstance(solved, Solution)
        and stored["said"].isprintable()
        and 0 <= stored["gap"] <= solved.gap_to_bound * (1 + 1e-9)
    ):
        einsums = tuple(
            replace(one, optimality_gap=min(gap, one.gap_to_bound))
            for one, gap in zip(solved.einsums, stored["gaps"], strict=True)
        )
        space = decoded(Space, stored["space"])
        text = f"{stored['said']}{certificate_words(space) if space else ''}"
        return replace(
            solved,
            einsums=einsums,
            optimality_gap=stored["gap"],
            certificate=text,
            space=space,
            schedule=full_schedule,
            conversions=copies,
        )
    raise ValueError(f"{solved if isinstance(solved, Infeasible) else stored['gap']}")


def _copies(rows: Sequence[Mapping[str, Any]]) -> tuple[Conversion, ...]:
    """Returns conversions from rows of a cache file."""
    return tuple(Conversion(**{**one, "readers": tuple(one["readers"])}) for one in rows)


def constraints_for(e: Einsum, arch: Arch) -> Constraints:
    """Returns GOGETA's constraints on the mapping of an einsum: fan-outs outside of the first on-chip level
    (clusters) unroll the dominant rank only, so that tensors without that rank are multicast or reduced.
    """
    rank = dominance(e).rank
    sliced = (
        tuple((dim, (rank,)) for f in arch.fanouts if f.outside <= 1 for dim, _ in f.dims) if rank else ()
    )
    return Constraints(sliced, name="GOGETA")


def _mapper(options: SolverOptions, extra: Constraints = FREE) -> Mapper:
    """Returns the mapper that the options name. extra: further constraints, obeyed by mapper optimal
    alone."""

    def exact(problem: Problem, _: Random) -> list[EinsumCost] | Infeasible:
        base = options.constraints(problem.einsum, problem.arch)
        combined = (
            replace(
                base, spatial=(*extra.spatial, *base.spatial), must_keep=(*base.must_keep, *extra.must_keep)
            )
            if extra != FREE
            else base
        )
        return optimal(problem, options.factors, combined, allowed_gap=options.gap)

    if options.tiling == "smaug":
        return partial(smaug, host_copies_cost=options.host_copies == "counted")
    return (
        exact
        if options.mapper == "optimal"
        else MAPPERS_BY_NAME.get(options.mapper) or plugged(options.mapper)
    )


def price_in_layouts(
    problem: Problem, original: EinsumCost, layouts: Sequence[TensorLayout] = ()
) -> EinsumCost | Infeasible:
    """Returns the cost of a mapping in given layouts, and with hops priced. The mapping was found in other
    layouts, or as if layouts and hops cost nothing; its optimality gap stays valid if it costs no more now.

    Raises ValueError with one line per layout that is not valid.
    """
    if original.mapping.non_nest_text or not (layouts or problem.arch.layout_sensitive()):
        return original
    layout_keys = {(one.level, one.tensor) for one in layouts}
    mapping = replace(
        original.mapping,
        layouts=(
            *layouts,
            *(one for one in original.mapping.layouts if (one.level, one.tensor) not in layout_keys),
        ),
    )
    if lines := faults(mapping, problem.einsum, problem.arch) or transfer.faults(
        mapping, problem.einsum, problem.arch
    ):
        raise ValueError("\n".join(lines))
    try:
        cost = einsum_cost(problem, mapping)
    except ValueError as fault:
        raise ValueError(
            f"mapping found for {problem.einsum.name}: {fault}; try --set solver.factors=perfect"
        ) from None
    if isinstance(cost, Infeasible):
        return cost
    # which objectives must be no worse: both where the gap is one of the workload
    ranked = ("energy", "latency") if original.weighed_by else (problem.objective,)
    is_no_worse = all(
        objective_value(one, cost.energy_pj, cost.latency_cycles)
        <= objective_value(one, original.energy_pj, original.latency_cycles)
        for one in ranked
    )
    return (
        replace(cost, **{name: getattr(original, name) for name in PROOF_FIELDS})
        if is_no_worse
        else replace(cost, visited=original.visited)
    )


def in_layouts(
    arch: Arch,
    workload: Workload,
    options: SolverOptions,
    solution: Solution,
    layouts: Sequence[tuple[str, str, str]],
) -> list[Solution] | Infeasible:
    """Returns an unfused solution priced in given layouts: (tensor, level or "" for the outermost, text). A
    layout holds in all einsums that have the tensor. Raises ValueError if no einsum has it.
    """
    groups = unique(workload)
    tensors = list(dict.fromkeys(p.tensor for group in groups for p in group.einsum.tensors()))
    if unknown := [tensor for tensor, _, _ in layouts if tensor not in tensors]:
        tensor_list = f"{', '.join(tensors[:12])}{' ...' if tensors[12:] else ''}"
        raise ValueError(
            f"layout of {unknown[0]}: no einsum of {workload.name} has such a tensor; there are {tensor_list}"
        )
    costs = [
        price_in_layouts(
            Problem(arch, group.einsum, options.objective),
            one,
            [
                TensorLayout(level or arch.levels[0].name, tensor, text)
                for tensor, level, text in layouts
                if tensor in {p.tensor for p in group.einsum.tensors()}
            ],
        )
        for one, group in zip(solution.einsums, groups, strict=True)
    ]
    return sequential_solution(arch, groups, options, costs)


def cached(
    arch: Arch,
    workload: Workload,
    options: SolverOptions,
    progress: ProgressFn = no_progress,
    on_einsum: EinsumCallback | None = None,
) -> list[Solution] | Infeasible:
    """Returns the answer of `solve` with mappings, gaps and searched spaces cached in $DSE_CACHE. Costs are
    evaluated again. GOGETA's configurations, tiling smaug and answers that a deadline cut short are not
    cached.

    on_einsum: as of `solve_unfused`, where that is called and the machine prices no layouts
    """
    if options.schedule != "unfused":
        return (
            _cached_schedule(arch, workload, options, progress)
            if options.schedule in ("fused", *PIPELINED_SCHEDULES)
            else solve_schedule(arch, workload, options)
        )
    if overflow := outermost.overflow_unfused(arch, workload):
        return overflow
    if TILING[options.tiling] or options.objective == "front":
        return solve_unfused(arch, workload, options, progress)
    if arch.layout_sensitive() and not arch.models_layout() and not searches_hops(options):
        found = cached(arch.ideal(), workload, options, progress)
        return found if isinstance(found, Infeasible) else in_layouts(arch, workload, options, found[0], ())
    groups = unique(workload)
    path = cache.answer_path("map", (arch, [group.einsum for group in groups], options), ".json")
    costs = _read_cached(path, [Problem(arch, group.einsum, options.objective) for group in groups])
    if costs:
        return sequential_solution(arch, groups, options, costs)
    missed_before = deadline.missed_count()
    found = solve_unfused(arch, workload, options, progress, on_einsum)
    if isinstance(found, list) and deadline.missed_count() == missed_before:
        rows = [
            {
                "nest": str(c.mapping),
                "optimality_gap": c.optimality_gap,
                "space": encoded(c.space),
                "visited": c.visited,
                "left_open": c.left_open,
            }
            for c in found[0].einsums
        ]
        cache.write(path, json.dumps(rows).encode())
    return found


def _cached_schedule(
    arch: Arch, workload: Workload, options: SolverOptions, progress: ProgressFn
) -> list[Solution] | Infeasible:
    """Returns the answer of `solve_schedule`, cached unless a deadline cut it short. Schedules are fused and
    all of PIPELINED_SCHEDULES.
    """
    path = cache.answer_path(
        "reuse", (arch, workload.einsums, counts(workload), sorted(workload.weights), options), ".json"
    )
    if remembered := cache.read_decoded(
        path, lambda data: _schedule_answer(arch, workload, options, json.loads(data))
    ):
        return [remembered]
    missed_before = deadline.missed_count()
    solved = solve_schedule(arch, workload, options, progress)
    if isinstance(solved, list) and deadline.missed_count() == missed_before:
        text = str(
            solved[0].schedule
            or schedule.sequential(workload, {c.name: c.mapping for c in solved[0].einsums})
        )
        conversions = [asdict(copy) for copy in solved[0].conversions]
        pruned_rows = [(row.einsums, row.schemes, row.valid, row.solved) for row in solved[0].pruned]
        cache.write(
            path,
            json.dumps(
                {
                    "schedule": text,
                    "gap": solved[0].optimality_gap,
                    "saved": solved[0].saved,
                    "space": encoded(solved[0].space),
                    "certificate": claim(solved[0].certificate),
                    "pruned": pruned_rows,
                    "conversions": conversions,
                }
            ).encode(),
        )
    return solved


def _schedule_answer(
    arch: Arch, workload: Workload, options: SolverOptions, stored: Mapping[str, Any]
) -> Solution:
    """Returns an answer of `_cached_schedule` from its cache file, priced again. Raises ValueError if it does
    not fit the machine, or if the stored gap contradicts the gap to the lower bound.
    """
    copies, full_schedule = _copies(stored["conversions"]), schedule.parse_schedule(stored["schedule"])
    found = evaluate(
        arch, with_conversions(workload, copies), full_schedule, options.single_objective, reuse=True
    )
    if isinstance(found, Solution) and arch.models_layout():
        found = replace(found, schedule=full_schedule, conversions=copies)
    space, gap = decoded(Space, stored["space"]), float(stored["gap"])
    is_sound = stored["certificate"].isprintable() and gap >= 0
    saved = None if stored["saved"] is None else float(stored["saved"])
    if (
        isinstance(found, Solution)
        and is_sound
        and space
        and options.schedule == "fused"
        and (saved or 0.0) < 1
    ):
        answer = with_certificate(replace(found, saved=saved), gap, space, arch, workload)
        taken, separator, _ = stored["certificate"].partition("; ")
        own = f"{taken}{separator}" if taken.startswith("taken: ") else ""
        return replace(answer, certificate=f"{own}{answer.certificate}")
    if (
        isinstance(found, Solution)
        and is_sound
        and space
        and options.schedule != "fused"
        and gap <= found.gap_to_bound + ROUNDING_GAP
    ):
        rows = tuple(Pruned(tuple(names), *map(int, numbers)) for names, *numbers in stored["pruned"])
        return replace(
            found,
            optimality_gap=gap,
            certificate=f"{stored['certificate']}{certificate_words(space)}",
            pruned=rows,
            space=space,
        )
    raise ValueError(f"{found if isinstance(found, Infeasible) else stored}")


def price_schedule(
    arch: Arch,
    workload: Workload,
    options: SolverOptions,
    stated: schedule.Schedule,
    progress: ProgressFn = no_progress,
) -> tuple[Solution | Infeasible, schedule.Schedule]:
    """Returns the price of a given schedule, and the schedule with all einsums of the workload. Einsums that
    `stated` leaves out are mapped unfused, each placed after the einsums that it reads from
    (`schedule.complete`).

    Raises ValueError with one line per fault of the schedule.
    """
    if missing := schedule.unplaced(workload, stated):
        missing_einsums = [
            (e, n) for e, n in zip(workload.einsums, counts(workload), strict=True) if e.name in missing
        ]
        missing_workload = replace(
            workload,
            einsums=tuple(e for e, _ in missing_einsums),
            repeats=tuple(n for _, n in missing_einsums),
        )
        found = cached(arch.unbounded(), missing_workload, replace(options, schedule="unfused"), progress)
        if isinstance(found, Infeasible):
            return found, stated
        nests = {c.name: c.mapping for c in found[0].einsums}
        if without_nest := [name for name, nest in nests.items() if nest.non_nest_text]:
            raise ValueError(
                f"schedule: {without_nest[0]} is not in it, and the schedule that {options.tiling} finds for "
                f"{without_nest[0]} is no nest; add {without_nest[0]} to the schedule, or take "
                "solver.tiling=mapper"
            )
        stated = schedule.complete(workload, stated, schedule.sequential(missing_workload, nests))
    return evaluate(arch, workload, stated, options.single_objective), stated


def _read_cached(path: Path, problems: Sequence[Problem]) -> list[EinsumCost | Infeasible]:
    """Returns the costs of the nests in a cache file; empty unless it has a valid nest for each problem."""

    def decode(data: bytes) -> list[EinsumCost | Infeasible]:
        return [_with_proof(problem, **row) for problem, row in zip(problems, json.loads(data), strict=True)]

    return cache.read_decoded(path, decode) or []


def _with_proof(
    problem: Problem, nest: str, optimality_gap: float, space: str, visited: int, left_open: str = ""
) -> EinsumCost:
    """Returns the cost of a nest, evaluated, with its stored gap and searched space. Raises ValueError if the
    nest is not a mapping of the einsum, does not fit, or contradicts its stored gap.
    """
    mapping = parse(nest)
    if lines := faults(mapping, problem.einsum, problem.arch):
        raise ValueError(lines[0])
    found = einsum_cost(problem, mapping)
    if isinstance(found, Infeasible):
        raise ValueError(str(found))
    if not (0 <= optimality_gap <= max(found.gap_to_bound, 1e-9) and visited >= 0):
        raise ValueError(f"optimality_gap {optimality_gap}, visited {visited}")
    if left_open not in ("", *LEFT_OPEN):
        raise ValueError(f"left_open {left_open}")
    return replace(
        found,
        optimality_gap=optimality_gap,
        space=decoded(Mappings, space),
        visited=visited,
        left_open=left_open,
    )
