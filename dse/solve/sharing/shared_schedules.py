"""Schedules that are shared by machines which differ in prices, rates and clock alone: they are searched on
some machines and priced on all (docs/reuse.md, Many machines).

The energy of a schedule on a machine is

    energy = actions . prices + leakage per cycle * cycles

where its cycles follow from the times of ports and operations. A schedule that fits one of the machines fits
all. An anchor k is a machine that was solved: F_k is its lower bound over all schedules, at prices p_k,
leakage l_k per cycle and times t_k. Then the energy of any schedule on a machine (p, l, t) is at least

    max  sum of x_k F_k + m O + c C       over x, m, c >= 0 with, for each price,
                                          sum of x_k p_k + m_j (at the price of operation kind j) <= p,
                                          and for leakage
                                          sum of x_k l_k / a_k + c <= l

    a_k   min(1, t / t_k), the least over all times: cycles on the machine are at least a_k times those of
          anchor k, since cycles grow with each time, and proportionally if all times grow
    m O   sum of m_j O_j: m_j energy per operation of kind j, of which there are O_j
    C     lower bound of the cycles on the machine

The bound holds since energy is linear in prices: x_k times the cost of a schedule on anchor k, plus m_j per
operation and c per cycle, is at most what the schedule costs on the machine. An anchor with p_k = 0 and
l_k = 1 was solved for latency, one with l_k = 0 without leakage. Any feasible (x, m, c) gives a valid bound.
So the linear program is solved for a few machines only: the variables that are positive there, and the limits
that are reached, are tried on all others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dse.mapping.nest import Infeasible
from dse.mapping.schedule import Schedule, rename, sequential
from dse.mapping.searched import Space
from dse.sim.counts.actions import UNPRICED, action_pj, compute_component, elapsed_cycles, op_pj
from dse.sim.counts.counts import Violated, nest_sums
from dse.sim.einsum import boundary
from dse.sim.einsum.boundary import ALONE
from dse.sim.einsum.bounds import lower_bound, needs, rates
from dse.sim.einsum.cost import Price, batch_arch, ports
from dse.sim.einsum.evaluate import ROUNDING_GAP, EinsumCost, Solution, relative_gap
from dse.sim.schedule.graph import evaluate, schedule_lower_bound, with_reservations
from dse.sim.schedule.placed import Placed
from dse.solve.schedules.fused import with_certificate
from hw.arch import Arch, slots
from workloads.arrays import Floats
from workloads.einsum import canonical_key
from workloads.graph import Workload, counts

Solve = Callable[[Arch, str], Solution | Infeasible]  # returns the best schedule for an objective
SAMPLED_MACHINES = 256  # about so many machines, at most, whose linear programs give the lower bounds of all
# a program that raises its machine's bound by less than this is not tried on other machines
MIN_RELATIVE_GAIN = 1e-3
MACHINES_PER_STEP = 8192  # machines that are priced or bounded together, which limits memory


class ScheduleQuery(NamedTuple):
    """The machine for which a schedule of lowest energy is searched."""

    prices: list[float]  # as `prices` returns them
    times: list[float]  # as `times` returns them


class ActionRows(NamedTuple):
    """The counts of one einsum, an entry each, and what prices them: elems * unit_pj * (the machine's
    price).
    """

    elems: Floats
    unit_pj: Floats  # energy per element at a price of 1
    price: NDArray[np.int64]  # number of that price


class Member(NamedTuple):
    """An einsum of a segment."""

    row: int  # of a PricedSchedule
    occurrences: int


def prices(arch: Arch) -> list[float]:
    """Returns prices per action in the machine's order, and as the last one leakage per cycle."""
    return [*arch.values(slots(arch, "price")), arch.leak_mw() / arch.clock_ghz]


def unit(arch: Arch, number: int) -> Arch:
    """Returns a machine of the same structure in which one price is 1 and all others are 0."""
    price_slots = slots(arch, "price")
    return arch.structure().with_values(price_slots, [float(i == number) for i in range(len(price_slots))])


def times(arch: Arch) -> list[float]:
    """Returns the cycles that a unit of work takes at each rate of the machine (of levels and compute; 0: the
    rate has no limit), and 1.0 for work that is given in cycles.
    """
    return [*(0.0 if rate is None else 1 / rate for rate in arch.values(slots(arch, "rate"))), 1.0]


def op_price_indices(arch: Arch) -> list[int]:
    """Returns the positions of the compute unit's prices, one per kind of operation, among all prices."""
    return [i for i, slot in enumerate(slots(arch, "price")) if slot.nodes == "compute"]


@dataclass(frozen=True, slots=True)
class PricedSchedule:
    """A schedule, priced on all machines. A row stands for an einsum of `solution`; equal einsums may share
    one (`_rows`).
    """

    schedule: Schedule
    solution: Solution  # priced on one of the machines
    einsums: tuple[Placed, ...]  # of each row
    members: tuple[tuple[Member, ...], ...]  # per segment its einsums
    actions: tuple[ActionRows, ...]  # of each row
    cycles: Floats  # [rows, machines] of one occurrence
    bottleneck: NDArray[np.int8]  # [rows, machines] number of the component: a level, last compute
    energy_pj: Floats  # [machines] of the whole schedule


@dataclass(frozen=True, slots=True)
class Anchor:
    """A query that was solved with fusion (`_solve_one`)."""

    query: ScheduleQuery
    value: float  # cost of the schedule found
    lower_bound: float  # of all schedules


@dataclass(slots=True)
class SharedSchedules:
    """Schedules that machines of one structure share."""

    arches: list[Arch]
    batches: list[tuple[slice, Arch]]  # up to MACHINES_PER_STEP machines each, as one machine of arrays
    workload: Workload
    prices: Floats  # [machines, prices]
    times: Floats  # [machines, .] as `times` returns them
    schedule_bounds: Floats  # [machines, 2] lower bounds of energy and cycles, of schedules of any space
    ops: list[float]  # operations of each kind
    space: Space = Space()  # that is searched
    queries: list[ScheduleQuery] = field(default_factory=list)  # that were solved
    schedules: list[PricedSchedule] = field(default_factory=list)  # each is the best known on some machine
    anchors: list[Anchor] = field(default_factory=list)
    # [distinct einsums, machines] lowest energy known of an einsum, unfused, all its occurrences together
    sequential_pj: Floats = field(default_factory=lambda: np.array(inf))
    # [machines] index of the best known schedule
    choice: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    space_bounds_pj: Floats = field(default_factory=lambda: np.zeros(0))  # [machines] over the searched space


def find_shared_schedules(
    arches: Sequence[Arch], workload: Workload, fused: Solve, unfused: Solve, allowed_gap: float
) -> SharedSchedules | Infeasible:
    """Returns schedules for machines of one structure. fused, unfused: solve a workload on a machine with and
    without fusion.

    The machine whose best known schedule may cost most above what the solver would find for that machine
    alone is solved next, until no such gap may exceed `allowed_gap`. The order of machines is deterministic.
    """
    shared = _start(arches, workload)
    worst: int | None = 0
    # lower bounds of what the solver would find for each machine alone; they rise with each solved machine
    alone_bounds = np.zeros(len(arches))
    while worst is not None:
        if (query := _next_query(shared, worst)) is None:
            alone_bounds[worst] = inf  # all its queries were solved: what is left of its gap is rounding
        elif infeasible := _solve_one(shared, worst, query, fused, unfused):
            return infeasible
        used, shared.choice = np.unique(
            np.argmin([priced.energy_pj for priced in shared.schedules], axis=0), return_inverse=True
        )
        shared.schedules = [shared.schedules[i] for i in used]
        worst = _widest_gap(shared, alone_bounds, allowed_gap)
    program, shared.space_bounds_pj = _bound_program(shared, "lower_bound"), np.zeros(len(arches))
    for machine in range(0, len(arches), max(1, len(arches) // SAMPLED_MACHINES)):
        _raise_bound(shared.space_bounds_pj, program, machine)
    return shared


def _widest_gap(shared: SharedSchedules, alone_bounds: Floats, allowed_gap: float) -> int | None:
    """Returns the machine whose best known schedule may lie furthest above what the solver would find for
    that machine alone; None if no machine's may by more than `allowed_gap`. Raises `alone_bounds` (lower
    bounds of the latter) as far as this decision needs it.
    """
    best = np.min([priced.energy_pj for priced in shared.schedules], axis=0)
    program = _bound_program(shared, "value")
    tightened = set[int]()
    while (
        worst := int(np.argmin(np.divide(alone_bounds, best, out=np.ones_like(best), where=best > 0)))
    ) not in tightened:
        _raise_bound(alone_bounds, program, worst)
        tightened.add(worst)
    return worst if relative_gap(float(best[worst]), float(alone_bounds[worst])) > allowed_gap else None


def _start(arches: Sequence[Arch], workload: Workload) -> SharedSchedules:
    """Returns the state before any machine is solved. Raises ValueError if machines differ in structure."""
    if len({arch.structure() for arch in arches}) > 1:
        raise ValueError(
            "machines that share schedules differ in more than prices, rates and clock; leave out "
            "solver.sharing_gap"
        )
    if arches[0].layout_sensitive():
        raise ValueError(
            f"{arches[0].name} describes lines, rows, banks or hops, which shared schedules do not price; "
            "leave out solver.sharing_gap"
        )
    unit_arches = [unit(arches[0], number) for number in op_price_indices(arches[0])]
    ops = [
        sum(
            n * needs(e, unit_arch.word_bits).computed * op_pj(e, unit_arch)
            for e, n in zip(workload.einsums, counts(workload), strict=True)
        )
        for unit_arch in unit_arches
    ]
    batches = [
        (slice(begin, begin + MACHINES_PER_STEP), batch_arch(arches[begin : begin + MACHINES_PER_STEP]))
        for begin in range(0, len(arches), MACHINES_PER_STEP)
    ]
    schedule_bounds = np.concatenate(
        [np.column_stack(np.broadcast_arrays(*schedule_lower_bound(batch, workload))) for _, batch in batches]
    )
    return SharedSchedules(
        list(arches),
        batches,
        workload,
        np.array([prices(arch) for arch in arches]),
        np.array([times(arch) for arch in arches]),
        schedule_bounds,
        ops,
    )


def _latency_prices(price_count: int) -> list[float]:
    """Returns prices under which energy equals cycles: only leakage has one, of 1 per cycle."""
    return [0.0] * (price_count - 1) + [1.0]


def _next_query(shared: SharedSchedules, machine: int) -> ScheduleQuery | None:
    """Returns the next query to solve for a machine, None if all were solved: its energy; then its latency;
    then its energy without leakage (times do not matter).
    """
    machine_prices, machine_times = shared.prices[machine].tolist(), shared.times[machine].tolist()
    candidates = (
        ScheduleQuery(machine_prices, machine_times),
        ScheduleQuery(_latency_prices(len(machine_prices)), machine_times),
        ScheduleQuery([*machine_prices[:-1], 0.0], [0.0] * len(machine_times)),
    )
    return next((query for query in candidates if query not in shared.queries), None)


def _solve_one(
    shared: SharedSchedules, machine: int, query: ScheduleQuery, fused: Solve, unfused: Solve
) -> Infeasible | None:
    """Solves a query of a machine, fused and unfused, and prices both schedules on all machines. The fused
    one becomes an anchor. Returns Infeasible if there is no schedule.
    """
    arch = shared.arches[machine]
    shared.queries.append(query)
    for_latency = query.prices == _latency_prices(len(query.prices))
    searched_arch = arch if query.prices[-1] else arch.without("leakage")
    for solve in (fused, unfused):
        solution = solve(searched_arch, "latency" if for_latency else "energy")
        if isinstance(solution, Infeasible):
            return solution
        priced, occurrence_pj = _price(
            shared,
            searched_arch,
            solution.schedule or sequential(shared.workload, {c.name: c.mapping for c in solution.einsums}),
            solution,
        )
        shared.schedules.append(priced)
        if solve is fused:
            shared.space = shared.space if shared.anchors else solution.space or shared.space
            value = solution.latency_cycles if for_latency else solution.energy_pj
            shared.anchors.append(Anchor(query, value, value / (1 + solution.optimality_gap)))
        else:
            shared.sequential_pj = np.minimum(
                shared.sequential_pj, np.array([[c.count] for c in priced.solution.einsums]) * occurrence_pj
            )
    return None


def _price(
    shared: SharedSchedules, arch: Arch, schedule: Schedule, found: Solution
) -> tuple[PricedSchedule, Floats]:
    """Returns a schedule priced on all machines, and the energy [rows, machines] of one occurrence of each
    einsum. found: its solution on `arch`.
    """
    base = evaluate(arch, shared.workload, schedule)
    assert isinstance(base, Solution)
    segments, _ = with_reservations(arch, shared.workload, schedule)
    placed_by_name = {placed.einsum.name: placed for segment in segments for placed in segment}
    units = [unit(arch, i) for i in range(shared.prices.shape[1] - 1)]
    shape, actions = (len(base.einsums), len(shared.arches)), list[ActionRows]()
    cycles, bottleneck = np.zeros(shape), np.zeros(shape, np.int8)
    for i, c in enumerate(base.einsums):
        placed = placed_by_name[c.name]
        count_rows = [row for row in c.counts if row.action not in UNPRICED]
        # [counts, prices] a count has at most one price: no more than one entry of its row is above 0
        unit_pj = np.array(
            [[action_pj(row.key, placed.einsum, unit) for unit in units] for row in count_rows]
        )
        actions.append(
            ActionRows(
                np.array([row.elems for row in count_rows]), unit_pj.max(axis=1), np.argmax(unit_pj, axis=1)
            )
        )
        sums = nest_sums(c.mapping, placed.einsum, arch)
        timed_sums, begun = boundary.timed_nest(placed.boundary, c.mapping, sums, arch)
        for machines, batch in shared.batches:
            busy, waits = ports(c.counts, placed.einsum, batch, timed_sums, begun)
            cycles[i, machines] = elapsed_cycles(busy, waits)
            components = [np.broadcast_to(n, cycles[i, machines].shape) for n in (*busy.levels, busy.steps)]
            bottleneck[i, machines] = np.argmax(np.vstack(components), axis=0)
    occurrence_pj = (
        np.array([(rows.elems * rows.unit_pj) @ shared.prices.T[rows.price] for rows in actions])
        + cycles * shared.prices[:, -1]
    )
    energy = np.array([c.count for c in base.einsums]) @ occurrence_pj
    occurrences = dict(zip((e.name for e in shared.workload.einsums), counts(shared.workload), strict=True))
    row_of = _rows(base, segments)
    members = tuple(
        tuple(Member(row_of[placed.einsum.name], occurrences[placed.einsum.name]) for placed in segment)
        for segment in segments
    )
    return PricedSchedule(
        schedule,
        base,
        tuple(placed_by_name[c.name] for c in base.einsums),
        members,
        tuple(actions),
        cycles,
        bottleneck,
        energy,
    ), occurrence_pj


def _rows(base: Solution, segments: Sequence[Sequence[Placed]]) -> dict[str, int]:
    """Returns the row of each einsum, by name. Equal einsums with equal nests that stand alone in their
    segments share the row of the first.
    """
    index_of = {c.name: i for i, c in enumerate(base.einsums)}
    first: dict[object, int] = {}
    found: dict[str, int] = {}
    for placed in chain.from_iterable(segments):
        key = (
            (canonical_key(placed.einsum), str(rename(placed.nest, placed.einsum)))
            if placed.boundary == ALONE
            else placed.einsum.name
        )
        found[placed.einsum.name] = first.setdefault(key, index_of.get(placed.einsum.name, -1))
    return found


@dataclass(frozen=True, slots=True)
class BoundProgram:
    """The linear program of lower bounds (above), one per machine: its variables are operations of each kind
    (m), cycles (c) and anchors (x), in this order; its limits are the machine's prices, the last one leakage
    per cycle. Maximised is worth . variables.
    """

    prices: Floats  # [machines, prices] limits
    consumed: Floats  # [variables, prices] what one unit of a variable takes of each limit but the last
    leakage: Floats  # [machines, variables] what it takes of the last limit; inf: the variable must be 0
    worth: Floats  # [machines, variables] what one unit of a variable adds to the bound


def _bound_program(shared: SharedSchedules, anchor_field: str) -> BoundProgram:
    """Returns the program of lower bounds. anchor_field: the field of Anchor that is taken for F_k.
    `lower_bound`: for bounds of any schedule of the space. `value`, the cost of the schedule found: for
    bounds of what the solver itself would find, proven or not, which `sharing_gap` is measured against.
    """
    machines, price_count = shared.prices.shape
    op_prices = op_price_indices(shared.arches[0])
    consumed = np.vstack(
        [np.eye(price_count)[[*op_prices, price_count - 1]], *(a.query.prices for a in shared.anchors)]
    )
    leakage, worth = np.tile(consumed[:, -1], (machines, 1)), np.empty((machines, len(consumed)))
    worth[:, : len(op_prices)], worth[:, len(op_prices)] = shared.ops, shared.schedule_bounds[:, 1]
    for variable, a in enumerate(shared.anchors, len(op_prices) + 1):
        anchor_times, worth[:, variable] = np.array(a.query.times), getattr(a, anchor_field)
        # a_k per machine; times of 0 at the anchor do not limit it
        cycle_ratios = np.min(
            np.divide(shared.times, anchor_times, out=np.ones_like(shared.times), where=anchor_times > 0),
            axis=1,
        )
        leak = a.query.prices[-1]
        leakage[:, variable] = np.divide(
            leak, cycle_ratios, out=np.full(machines, inf if leak else 0.0), where=cycle_ratios > 0
        )
    return BoundProgram(shared.prices, consumed, leakage, worth)


def _raise_bound(bounds: Floats, program: BoundProgram, machine: int) -> None:
    """Raises the bound of a machine to the maximum of its linear program, and the bounds of all other
    machines to what the same positive variables and reached limits give there.
    """
    from scipy.optimize import linprog  # type: ignore[attr-defined, unused-ignore]  # slow to import, and few studies share

    machine_prices, is_usable = program.prices[machine], np.isfinite(program.leakage[machine])
    columns, values = (
        np.column_stack([program.consumed[is_usable, :-1], program.leakage[machine, is_usable]]),
        program.worth[machine, is_usable],
    )
    scale = np.where(machine_prices > 0, machine_prices, 1.0)
    weights = np.max(columns / scale, axis=1)
    weights[weights == 0] = 1.0  # a variable that takes nothing is worth nothing
    worth = values / weights  # variables are scaled so that one unit uses up the limit of one price
    scaled_use = (columns / weights[:, None]).T / scale[:, None]
    solution = linprog(-worth / (worth.max() or 1.0), scaled_use, machine_prices / scale, method="highs")  # type: ignore[no-untyped-call, unused-ignore]
    if solution.status != 0:
        raise RuntimeError(f"lower bound of a machine: {solution.message}")
    # the solver keeps limits up to a tolerance; a valid bound must keep them exactly
    amounts = np.where(np.any(scaled_use[machine_prices == 0] > 0, axis=0), 0.0, np.maximum(solution.x, 0.0))
    largest = float(worth @ amounts) / max(1.0, float(np.max(scaled_use @ amounts))) * (1 - ROUNDING_GAP)
    # if the bound rises by little, the other machines got about as much from earlier programs already
    if largest > bounds[machine] * (1 + MIN_RELATIVE_GAIN):
        variables, limits = (
            np.flatnonzero(is_usable)[solution.x > 0],
            np.flatnonzero(solution.slack <= ROUNDING_GAP),
        )
        for begin in range(0, len(bounds), MACHINES_PER_STEP):
            chunk = slice(begin, begin + MACHINES_PER_STEP)
            bounds[chunk] = np.maximum(
                bounds[chunk],
                _bounds_from_basis(
                    BoundProgram(
                        program.prices[chunk], program.consumed, program.leakage[chunk], program.worth[chunk]
                    ),
                    variables,
                    limits,
                ),
            )
    bounds[machine] = max(bounds[machine], largest)


def _bounds_from_basis(
    program: BoundProgram, variables: NDArray[np.int64], limits: NDArray[np.int64]
) -> Floats:
    """Returns a lower bound [machines]: the worth of the given variables, all others 0, with values that
    reach the given limits and are then scaled down until they keep all limits. So they are feasible on every
    machine, and optimal where these variables are positive and these limits reached at the optimum.
    """
    leakage = np.where(
        is_usable := np.isfinite(program.leakage[:, variables]), program.leakage[:, variables], 0.0
    )
    consumed = np.empty((len(program.prices), program.prices.shape[1], len(variables)))
    consumed[:, :-1], consumed[:, -1] = program.consumed[variables, :-1].T, leakage
    scale = np.where(program.prices > 0, program.prices, 1.0)
    scaled_use = consumed[:, limits] / scale[:, limits, None]
    weights = np.maximum(np.max(scaled_use, axis=1), 1e-300)
    amounts = (
        np.einsum(
            "mpk,mk->mp",
            np.linalg.pinv(scaled_use / weights[:, None]),
            (program.prices[:, limits] > 0).astype(float),
        )
        / weights
    )
    amounts = np.where(is_usable, np.maximum(amounts, 0.0), 0.0)
    used = np.einsum("mpk,mk->mp", consumed, amounts)
    overuse = np.max(
        np.divide(used, program.prices, out=np.where(used > 0, inf, 0.0), where=program.prices > 0), axis=1
    )
    amounts /= np.where(overuse > 0, overuse, 1.0)[:, None]
    lower_bounds: Floats = np.sum(program.worth[:, variables] * amounts, axis=1) * (1 - ROUNDING_GAP)
    return lower_bounds


def priced_on(shared: SharedSchedules, machine: int) -> Solution:
    """Returns the best known schedule on a machine, with its optimality gap."""
    priced, arch = shared.schedules[shared.choice[machine]], shared.arches[machine]
    names = [level.name for level in arch.levels]
    einsums = tuple(
        _einsum_cost(c, placed, arch, _energy(shared, machine, rows, cycles), cycles, bottleneck)
        for c, placed, rows, cycles, component in zip(
            priced.solution.einsums,
            priced.einsums,
            priced.actions,
            priced.cycles[:, machine].tolist(),
            priced.bottleneck[:, machine],
            strict=True,
        )
        for bottleneck in [[*names, compute_component(placed.einsum, arch)][component]]
    )
    segments = tuple(
        replace(
            row, energy_pj=pj, energy_steady_pj=pj, latency_cycles=cycles, initiation_interval_cycles=cycles
        )
        for row, members in zip(priced.solution.segments, priced.members, strict=False)
        for pj in [sum(n * einsums[i].energy_pj for i, n in members)]
        for cycles in [sum(n * einsums[i].latency_cycles for i, n in members)]
    )
    if segments:
        total = sum(row.energy_pj for row in segments)
        latency = sum(row.latency_cycles for row in segments)
    else:
        total = sum(c.count * c.energy_pj for c in einsums)
        latency = sum(c.count * c.latency_cycles for c in einsums)
    lower_pj, lower_cycles = shared.schedule_bounds[machine]
    if lower_pj > total * (1 + ROUNDING_GAP) or lower_cycles > latency * (1 + ROUNDING_GAP):
        raise Violated(
            f"{shared.workload.name} on {arch.name}: lower bound {shared.schedule_bounds[machine]} above the "
            f"cost {total, latency} of\n{priced.schedule}"
        )
    unfused_pj = float(shared.sequential_pj[:, machine].sum())
    solution = replace(
        priced.solution,
        einsums=einsums,
        energy_pj=total,
        latency_cycles=latency,
        initiation_interval_cycles=latency,
        energy_steady_pj=total,
        segments=segments,
        gap_to_bound=relative_gap(total, float(lower_pj)),
        saved=1 - total / unfused_pj if unfused_pj else 0.0,
    )
    gap = relative_gap(total, float(shared.space_bounds_pj[machine]))
    # bounds are rounded down by ROUNDING_GAP
    return with_certificate(
        solution, gap if gap > 2 * ROUNDING_GAP else 0.0, shared.space, arch, shared.workload
    )


def _energy(shared: SharedSchedules, machine: int, rows: ActionRows, cycles: float) -> float:
    """Returns the energy of one occurrence, added up in the evaluator's order, so that both agree to the
    bit.
    """
    arch = shared.arches[machine]
    parts: list[float] = (rows.elems * (rows.unit_pj * shared.prices[machine][rows.price])).tolist()
    return float(sum([*parts, arch.leak_mw() * cycles / arch.clock_ghz]))


def _einsum_cost(
    c: EinsumCost, placed: Placed, arch: Arch, energy: float, cycles: float, bottleneck: str
) -> EinsumCost:
    """Returns the cost of an einsum on another machine. Gaps are to the lower bound of the einsum alone; inf
    in a fused segment, which shares loops or nodes with others.
    """
    gap = (
        relative_gap(energy, lower_bound(needs(placed.einsum, arch.word_bits), rates(arch))[0])
        if placed.boundary == ALONE
        else inf
    )
    price = Price(energy, cycles, bottleneck, (), (), cycles)
    return replace(
        c,
        energy_pj=energy,
        latency_cycles=cycles,
        bottleneck=bottleneck,
        optimality_gap=gap,
        gap_to_bound=gap,
        price=price,
    )
