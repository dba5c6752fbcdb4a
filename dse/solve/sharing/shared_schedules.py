"""Schedules that are shared by machines which differ in prices, rates and clock alone: they are searched on
some machines and priced on all (docs/reuse.md, Many machines).

The energy of a schedule on a machine is

    energy = actions . prices + leakage per cycle * cycles

where its cycles follow from the times of ports and operations. A schedule that fits one of the machines fits
all. Let F_k be the lower bounds of the machines that were solved (anchors), at prices p_k, leakage l_k per
cycle and times t_k. Then the energy of any schedule on a machine (p, l, t) is at least

    max  sum of x_k F_k + m O + c C       over x, m, c >= 0 with
                                          sum of x_k p_k + m (price of operations) <= p,
                                          sum of x_k l_k / a_k + c <= l

    a_k   min(1, t / t_k): cycles on the machine are at least a_k times those of anchor k, since cycles grow
          with each time, and proportionally if all times grow
    O     operations of each kind
    C     lower bound of the cycles on the machine

The bound holds since energy is linear in prices. An anchor with p_k = 0 and l_k = 1 was solved for latency,
one with l_k = 0 without leakage. Any feasible (x, m, c) gives a valid bound. So the linear program is solved
for a few machines only: the variables that are positive there, and the limits that are reached, are tried on
all others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from math import inf

import numpy as np
from numpy.typing import NDArray

from dse.mapping.nest import Infeasible
from dse.mapping.schedule import Schedule, rename, sequential
from dse.mapping.searched import Space
from dse.sim.counts.actions import action_pj, elapsed_cycles, op_pj
from dse.sim.counts.counts import reading
from dse.sim.einsum import boundary
from dse.sim.einsum.boundary import ALONE
from dse.sim.einsum.bounds import lower_bound, needs, rates
from dse.sim.einsum.cost import Price, batch_arch, ports
from dse.sim.einsum.evaluate import PRECISE, EinsumCost, Solution, Violated, relative_gap
from dse.sim.schedule.graph import evaluate, schedule_lower_bound, with_reservations
from dse.sim.schedule.placed import Placed
from dse.solve.schedules.fused import with_certificate
from hw.arch import Arch, slots
from workloads.arrays import Floats
from workloads.einsum import canonical_key
from workloads.graph import Workload, counts

Solve = Callable[[Arch, str], Solution | Infeasible]  # returns the best schedule for an objective
Question = tuple[list[float], list[float]]  # prices and times of the machine whose schedule is searched
SAMPLED = 256  # about so many machines, at most, whose linear programs give the lower bounds of all
NEARLY = 1e-3  # a program that raises its machine's bound by less than this is not tried on other machines
MANY = 8192  # machines that are priced or bounded together, which limits memory


def prices(arch: Arch) -> list[float]:
    """Returns prices per action in the machine's order, and as the last one leakage per cycle."""
    return [*arch.values(slots(arch, "price")), arch.leak_mw() / arch.clock_ghz]


def unit(arch: Arch, number: int) -> Arch:
    """Returns a machine of the same structure in which one price is 1 and all others are 0."""
    at = slots(arch, "price")
    return arch.structure().with_values(at, [float(i == number) for i in range(len(at))])


def times(arch: Arch) -> list[float]:
    """Returns cycles of an action per level, of an operation, and 1.0 for work that is given in cycles."""
    return [*(0.0 if rate is None else 1 / rate for rate in arch.values(slots(arch, "rate"))), 1.0]


def operations(arch: Arch) -> list[int]:
    """Returns the positions of the compute unit's prices among all prices."""
    return [i for i, at in enumerate(slots(arch, "price")) if at.nodes == "compute"]


@dataclass(frozen=True, slots=True)
class PricedSchedule:
    """A schedule, priced on all machines. A row stands for an einsum of `solution`."""

    schedule: Schedule
    solution: Solution  # priced on one of the machines
    einsums: tuple[Placed, ...]  # of each row
    members: tuple[tuple[tuple[int, int], ...], ...]  # per segment: (row, occurrences) of each einsum
    # per row: elements of each of its counts, energy per element at a price of 1, number of that price
    actions: tuple[tuple[Floats, Floats, NDArray[np.int64]], ...]
    cycles: Floats  # [rows, machines] of one run
    bottleneck: NDArray[np.int8]  # [rows, machines] number of the component
    energy_pj: Floats  # [machines] of the whole schedule


@dataclass(frozen=True, slots=True)
class Anchor:
    """Prices and times for which a schedule was searched."""

    prices: list[float]
    times: list[float]
    value: float  # cost of the schedule found
    lower_bound: float  # of all schedules


@dataclass(slots=True)
class SharedSchedules:
    """Schedules that machines of one structure share."""

    arches: list[Arch]
    wide: list[tuple[slice, Arch]]  # up to MACHINES_PER_STEP machines each, as one machine of arrays
    workload: Workload
    prices: Floats  # [machines, prices]
    times: Floats  # [machines, parts]
    bounds: Floats  # [machines, 2] lower bounds of energy and cycles of any schedule
    ops: list[float]  # operations of each kind
    space: Space = Space()  # that is searched
    questions: list[Question] = field(default_factory=list)  # that were solved
    schedules: list[PricedSchedule] = field(default_factory=list)  # each is the best known on some machine
    anchors: list[Anchor] = field(default_factory=list)
    # [distinct einsums, machines] lowest energy known of all occurrences of an einsum, unfused
    sequential_pj: Floats = field(default_factory=lambda: np.array(inf))
    choice: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))  # [machines] schedule
    lower_bounds: Floats = field(default_factory=lambda: np.zeros(0))  # [machines] energy, in the space


def find_shared_schedules(
    arches: Sequence[Arch], workload: Workload, fused: Solve, unfused: Solve, share: float
) -> SharedSchedules | Infeasible:
    """Returns schedules for machines of one structure.

    The machine whose best known schedule may lie furthest above its own solution is solved next, until no
    machine may lie above it by more than `share`. The order of machines is deterministic.
    """
    f = _start(arches, workload)
    worst: int | None = 0
    # lower bounds on the cost of each machine's own solution; they grow with each solved machine
    could = np.zeros(len(arches))
    while worst is not None:
        if (asked := _question(f, worst)) is None:
            could[worst] = inf  # all its questions were solved: what is left of its gap is rounding
        elif blocked := _solve_one(f, worst, asked, fused, unfused):
            return blocked
        used, f.choice = np.unique(
            np.argmin([known.energy_pj for known in f.schedules], axis=0), return_inverse=True
        )
        f.schedules = [f.schedules[i] for i in used]
        worst = _widest(f, could, share)
    program, f.lower_bounds = _bound_program(f, "lower_bound"), np.zeros(len(arches))
    for machine in range(0, len(arches), max(1, len(arches) // SAMPLED)):
        _raise(f.lower_bounds, program, machine)
    return f


def _widest(f: SharedSchedules, could: Floats, share: float) -> int | None:
    """Returns the machine whose best known schedule may lie furthest above its own solution, None if no
    machine's may by more than `share`. Raises `could` as far as this decision needs it.
    """
    best = np.min([known.energy_pj for known in f.schedules], axis=0)
    program = _bound_program(f, "value")
    exact = set[int]()
    while (
        worst := int(np.argmin(np.divide(could, best, out=np.ones_like(best), where=best > 0)))
    ) not in exact:
        _raise(could, program, worst)
        exact.add(worst)
    return worst if relative_gap(float(best[worst]), float(could[worst])) > share else None


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
    kinds = [unit(arches[0], number) for number in operations(arches[0])]
    ops = [
        sum(
            n * needs(e, kind.word_bits).computed * op_pj(e, kind)
            for e, n in zip(workload.einsums, counts(workload), strict=True)
        )
        for kind in kinds
    ]
    wide = [(slice(at, at + MANY), batch_arch(arches[at : at + MANY])) for at in range(0, len(arches), MANY)]
    bounds = np.concatenate(
        [np.column_stack(np.broadcast_arrays(*schedule_lower_bound(some, workload))) for _, some in wide]
    )
    return SharedSchedules(
        list(arches),
        wide,
        workload,
        np.array([prices(arch) for arch in arches]),
        np.array([times(arch) for arch in arches]),
        bounds,
        ops,
    )


def _cycles(prices: int) -> list[float]:
    """Returns prices under which energy equals cycles."""
    return [0.0] * (prices - 1) + [1.0]


def _question(f: SharedSchedules, machine: int) -> Question | None:
    """Returns the next question to solve for a machine, None if all were solved: its energy; then its
    latency; then its energy without leakage (times do not matter).
    """
    own, at = f.prices[machine].tolist(), f.times[machine].tolist()
    every = (own, at), (_cycles(len(own)), at), ([*own[:-1], 0.0], [0.0] * len(at))
    return next((one for one in every if one not in f.questions), None)


def _solve_one(
    f: SharedSchedules, machine: int, asked: Question, fused: Solve, unfused: Solve
) -> Infeasible | None:
    """Solves a question of a machine, fused and unfused, and prices both schedules on all machines. Returns
    Infeasible if there is no schedule.
    """
    arch = f.arches[machine]
    f.questions.append(asked)
    only = asked[0] == _cycles(len(asked[0]))
    twin = arch if asked[0][-1] else arch.without("leakage")
    for solve in (fused, unfused):
        found = solve(twin, "latency" if only else "energy")
        if isinstance(found, Infeasible):
            return found
        known, runs_pj = _price(
            f,
            twin,
            found.schedule or sequential(f.workload, {c.name: c.mapping for c in found.einsums}),
            found,
        )
        f.schedules.append(known)
        if solve is fused:
            f.space = f.space if f.anchors else found.space or f.space
            value = found.latency_cycles if only else found.energy_pj
            f.anchors.append(Anchor(asked[0], asked[1], value, value / (1 + found.optimality_gap)))
        else:
            f.sequential_pj = np.minimum(
                f.sequential_pj, np.array([[c.count] for c in known.solution.einsums]) * runs_pj
            )
    return None


def _price(
    f: SharedSchedules, arch: Arch, schedule: Schedule, found: Solution
) -> tuple[PricedSchedule, Floats]:
    """Returns a schedule priced on all machines, and the energy [rows, machines] of single runs."""
    base = evaluate(arch, f.workload, schedule)
    assert isinstance(base, Solution)
    segments, _ = with_reservations(arch, f.workload, schedule)
    at = {one.einsum.name: one for own in segments for one in own}
    units = [unit(arch, i) for i in range(f.prices.shape[1] - 1)]
    shape, actions = (len(base.einsums), len(f.arches)), []
    cycles, bottleneck = np.zeros(shape), np.zeros(shape, np.int8)
    for i, c in enumerate(base.einsums):
        one = at[c.name]
        counted = [row for row in c.counts if row.action != "fold"]
        each = np.array([[action_pj(row.key, one.einsum, unit) for unit in units] for row in counted])
        actions.append((np.array([row.elems for row in counted]), each.max(axis=1), np.argmax(each, axis=1)))
        sums = reading(c.mapping, one.einsum, arch)
        timed, begun = boundary.timed_nest(one.boundary, c.mapping, sums, arch)
        for some, wide in f.wide:
            own, waits = ports(c.counts, one.einsum, wide, timed, begun)
            cycles[i, some] = elapsed_cycles(own, waits)
            bottleneck[i, some] = np.argmax(
                np.vstack([np.broadcast_to(n, cycles[i, some].shape) for n in (*own.levels, own.steps)]),
                axis=0,
            )
    runs_pj = (
        np.array([(elems * each) @ f.prices.T[number] for elems, each, number in actions])
        + cycles * f.prices[:, -1]
    )
    energy = np.array([c.count for c in base.einsums]) @ runs_pj
    runs = dict(zip((e.name for e in f.workload.einsums), counts(f.workload), strict=True))
    row = _rows(base, segments)
    members = tuple(tuple((row[one.einsum.name], runs[one.einsum.name]) for one in own) for own in segments)
    return PricedSchedule(
        schedule,
        base,
        tuple(at[c.name] for c in base.einsums),
        members,
        tuple(actions),
        cycles,
        bottleneck,
        energy,
    ), runs_pj


def _rows(base: Solution, segments: Sequence[Sequence[Placed]]) -> dict[str, int]:
    """Returns the row of each einsum, by name. Equal einsums alone in their segments share the row of the
    first.
    """
    own = {c.name: i for i, c in enumerate(base.einsums)}
    first: dict[object, int] = {}
    found: dict[str, int] = {}
    for one in chain.from_iterable(segments):
        key = (
            (canonical_key(one.einsum), str(rename(one.nest, one.einsum)))
            if one.boundary == ALONE
            else one.einsum.name
        )
        found[one.einsum.name] = first.setdefault(key, own.get(one.einsum.name, -1))
    return found


@dataclass(frozen=True, slots=True)
class BoundProgram:
    """The linear program of lower bounds. Its variables are parts: operations of each kind (m), cycles (c)
    and anchors (x).
    """

    prices: Floats  # [machines, prices] limits
    consumed: Floats  # [parts, prices] what one unit of a part takes of each limit but the last
    leakage: Floats  # [machines, parts] what it takes of the last limit, leakage; inf: part is not usable
    worth: Floats  # [machines, parts] what one unit of a part adds to the bound


def _bound_program(f: SharedSchedules, of: str) -> BoundProgram:
    """Returns the program of lower bounds. of: field of the anchors, `lower_bound`; or `value`, as if costs
    found were lower bounds.
    """
    machines, kinds = f.prices.shape
    own = operations(f.arches[0])
    taken = np.vstack([np.eye(kinds)[[*own, kinds - 1]], *(a.prices for a in f.anchors)])
    leakage, worth = np.tile(taken[:, -1], (machines, 1)), np.empty((machines, len(taken)))
    worth[:, : len(own)], worth[:, len(own)] = f.ops, f.bounds[:, 1]
    for part, a in enumerate(f.anchors, len(own) + 1):
        at, worth[:, part] = np.array(a.times), getattr(a, of)
        # times of 0 at the anchor do not limit the factor
        slower = np.min(np.divide(f.times, at, out=np.ones_like(f.times), where=at > 0), axis=1)
        leakage[:, part] = np.divide(
            a.prices[-1], slower, out=np.full(machines, inf if a.prices[-1] else 0.0), where=slower > 0
        )
    return BoundProgram(f.prices, taken, leakage, worth)


def _raise(bounds: Floats, p: BoundProgram, machine: int) -> None:
    """Raises the bound of a machine to the maximum of its linear program, and the bounds of all other
    machines to what the same parts and limits give there.
    """
    from scipy.optimize import linprog  # type: ignore[attr-defined, unused-ignore]  # slow to import, and few studies share

    own, may = p.prices[machine], np.isfinite(p.leakage[machine])
    columns, values = np.column_stack([p.consumed[may, :-1], p.leakage[machine, may]]), p.worth[machine, may]
    scale = np.where(own > 0, own, 1.0)
    weights = np.max(columns / scale, axis=1)
    weights[weights == 0] = 1.0  # a part that takes nothing is worth nothing
    worth = values / weights  # parts are scaled so that one unit uses up the limit of one price
    takes = (columns / weights[:, None]).T / scale[:, None]
    found = linprog(-worth / (worth.max() or 1.0), takes, own / scale, method="highs")  # type: ignore[no-untyped-call, unused-ignore]
    if found.status != 0:
        raise RuntimeError(f"lower bound of a machine: {found.message}")
    # the solver keeps limits up to a tolerance; a valid bound must keep them exactly
    many = np.where(np.any(takes[own == 0] > 0, axis=0), 0.0, np.maximum(found.x, 0.0))
    largest = float(worth @ many) / max(1.0, float(np.max(takes @ many))) * (1 - PRECISE)
    if largest > bounds[machine] * (1 + NEARLY):  # else earlier programs gave the others about as much
        parts, limits = np.flatnonzero(may)[found.x > 0], np.flatnonzero(found.slack <= PRECISE)
        for at in range(0, len(bounds), MANY):
            some = slice(at, at + MANY)
            bounds[some] = np.maximum(
                bounds[some],
                _scaled_parts(
                    BoundProgram(p.prices[some], p.consumed, p.leakage[some], p.worth[some]), parts, limits
                ),
            )
    bounds[machine] = max(bounds[machine], largest)


def _scaled_parts(p: BoundProgram, parts: NDArray[np.int64], limits: NDArray[np.int64]) -> Floats:
    """Returns a lower bound for every machine from the given parts, chosen so that they reach the given
    limits and then scaled down until they keep all limits. The bound is tight on machines whose linear
    program has these parts and limits.
    """
    leakage = np.where(usable := np.isfinite(p.leakage[:, parts]), p.leakage[:, parts], 0.0)
    takes = np.empty((len(p.prices), p.prices.shape[1], len(parts)))
    takes[:, :-1], takes[:, -1] = p.consumed[parts, :-1].T, leakage
    scale = np.where(p.prices > 0, p.prices, 1.0)
    much = takes[:, limits] / scale[:, limits, None]
    weights = np.maximum(np.max(much, axis=1), 1e-300)
    many = (
        np.einsum(
            "mpk,mk->mp", np.linalg.pinv(much / weights[:, None]), (p.prices[:, limits] > 0).astype(float)
        )
        / weights
    )
    many = np.where(usable, np.maximum(many, 0.0), 0.0)
    used = np.einsum("mpk,mk->mp", takes, many)
    full = np.max(np.divide(used, p.prices, out=np.where(used > 0, inf, 0.0), where=p.prices > 0), axis=1)
    many /= np.where(full > 0, full, 1.0)[:, None]
    found: Floats = np.sum(p.worth[:, parts] * many, axis=1) * (1 - PRECISE)
    return found


def priced_on(f: SharedSchedules, machine: int) -> Solution:
    """Returns the best known schedule on a machine, with its optimality gap."""
    known, arch = f.schedules[f.choice[machine]], f.arches[machine]
    names = [*(level.name for level in arch.levels), "MAC"]
    einsums = tuple(
        _einsum(c, one, arch, _energy(f, machine, own, n), n, names[by])
        for c, one, own, n, by in zip(
            known.solution.einsums,
            known.einsums,
            known.actions,
            known.cycles[:, machine].tolist(),
            known.bottleneck[:, machine],
            strict=True,
        )
    )
    segments = tuple(
        replace(
            row, energy_pj=pj, energy_steady_pj=pj, latency_cycles=cycles, initiation_interval_cycles=cycles
        )
        for row, own in zip(known.solution.segments, known.members, strict=False)
        for pj in [sum(n * einsums[i].energy_pj for i, n in own)]
        for cycles in [sum(n * einsums[i].latency_cycles for i, n in own)]
    )
    if segments:
        total = sum(row.energy_pj for row in segments)
        latency = sum(row.latency_cycles for row in segments)
    else:
        total = sum(c.count * c.energy_pj for c in einsums)
        latency = sum(c.count * c.latency_cycles for c in einsums)
    least_pj, least_cycles = f.bounds[machine]
    if least_pj > total * (1 + PRECISE) or least_cycles > latency * (1 + PRECISE):
        raise Violated(
            f"{f.workload.name} on {arch.name}: lower bound {f.bounds[machine]} above the cost "
            f"{total, latency} of\n{known.schedule}"
        )
    turns = float(f.sequential_pj[:, machine].sum())
    found = replace(
        known.solution,
        einsums=einsums,
        energy_pj=total,
        latency_cycles=latency,
        initiation_interval_cycles=latency,
        energy_steady_pj=total,
        segments=segments,
        gap_to_bound=relative_gap(total, float(least_pj)),
        saved=1 - total / turns if turns else 0.0,
    )
    gap = relative_gap(total, float(f.lower_bounds[machine]))
    # bounds are rounded down by PRECISE
    return with_certificate(found, gap if gap > 2 * PRECISE else 0.0, f.space, arch, f.workload)


def _energy(
    f: SharedSchedules, machine: int, own: tuple[Floats, Floats, NDArray[np.int64]], cycles: float
) -> float:
    """Returns the energy of one run, added up in the evaluator's order, so that both agree to the bit."""
    arch, (elems, each, number) = f.arches[machine], own
    parts: list[float] = (elems * (each * f.prices[machine][number])).tolist()
    return float(sum([*parts, arch.leak_mw() * cycles / arch.clock_ghz]))


def _einsum(
    c: EinsumCost, one: Placed, arch: Arch, energy: float, cycles: float, bottleneck: str
) -> EinsumCost:
    """Returns the cost of an einsum on another machine. Gaps are to the lower bound of the einsum alone."""
    gap = (
        relative_gap(energy, lower_bound(needs(one.einsum, arch.word_bits), rates(arch))[0])
        if one.boundary == ALONE
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
