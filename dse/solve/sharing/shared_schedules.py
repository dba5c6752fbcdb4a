"""Machines that differ in prices, rates and clock only share schedules: these are found on some of them and
priced on all (docs/reuse.md, Many machines).

    energy = words . prices + leakage per cycle * cycles        words: of a schedule; cycles: of it at the
                                                                times of ports and operations

A schedule that fits one of the machines fits all. With floors F_k of what was solved, at prices p_k, leakage
l_k, times t_k, no schedule costs less on a machine (p, l, t) than

    largest sum of x_k F_k + m O + c C    over x, m, c >= 0 with
                                          sum of x_k p_k + m (price of operations) <= p,
                                          sum of x_k l_k / a_k + c <= l

for energy is linear in prices, and cycles of any schedule are at least a_k = min(1, t / t_k) of those at t_k:
they grow with every time, and by a factor where all times do. O: operations of each kind; C: cycles that no
schedule beats. p_k = 0 and l_k = 1 is a question of latency, l_k = 0 one without leakage. Any x, m, c within
the limits bounds: which of them are positive, and which limits they reach, one machine's linear program says
for many others.
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
from dse.sim.counts.parts import action_pj, op_pj
from dse.sim.einsum import boundary
from dse.sim.einsum.boundary import ALONE
from dse.sim.einsum.bounds import lower_bound, needs, rates
from dse.sim.einsum.cost import Price, batch_arch, elapsed_cycles, ports
from dse.sim.einsum.evaluate import PRECISE, EinsumCost, Solution, Violated, relative_gap
from dse.sim.schedule.graph import evaluate, schedule_lower_bound, with_reservations
from dse.sim.schedule.placed import Placed
from dse.solve.schedules.fused import with_certificate
from hw.arch import Arch, slots
from workloads.arrays import Floats
from workloads.einsum import canonical_key
from workloads.graph import Workload, counts

Solve = Callable[[Arch, str], Solution | Infeasible]  # at least energy, or latency
Question = tuple[list[float], list[float]]  # prices and times
SAMPLED = 256  # machines whose linear programs tell the floors of all
NEARLY = 1e-3  # shares that make no difference to which bound is taken
MANY = 8192  # machines that are priced or bounded at a time: what that takes of memory


def prices(arch: Arch) -> list[float]:
    """Per action, in the order of the machine's prices, and last of leakage per cycle."""
    return [*arch.values(slots(arch, "price")), arch.leak_mw() / arch.clock_ghz]


def unit(arch: Arch, number: int) -> Arch:
    """The structure of a machine, where one price is 1 and all others are 0."""
    at = slots(arch, "price")
    return arch.structure().with_values(at, [float(i == number) for i in range(len(at))])


def times(arch: Arch) -> list[float]:
    """Of an action per level, of operations, and of what takes a cycle on each of them."""
    return [*(0.0 if rate is None else 1 / rate for rate in arch.values(slots(arch, "rate"))), 1.0]


def operations(arch: Arch) -> list[int]:
    """Numbers of the prices that what computes has."""
    return [i for i, at in enumerate(slots(arch, "price")) if at.nodes == "compute"]


@dataclass(frozen=True, slots=True)
class PricedSchedule:
    """A schedule on all machines. solution: on one of them; einsums: of its rows; members: of its segments,
    rows and how often each runs.

    actions: elements of each row of counts, energy per element at a price of 1, that price's number; per
    einsum. cycles, bottleneck (number of the component) [rows, machines]: of one run; energy_pj: of all
    [machines].
    """

    schedule: Schedule
    solution: Solution
    einsums: tuple[Placed, ...]
    members: tuple[tuple[tuple[int, int], ...], ...]
    actions: tuple[tuple[Floats, Floats, NDArray[np.int64]], ...]
    cycles: Floats
    bottleneck: NDArray[np.int8]
    energy_pj: Floats


@dataclass(frozen=True, slots=True)
class Anchor:
    """A machine that was solved, at times of its own. value, lower_bound: what its schedule costs, and what
    none costs less than.
    """

    prices: list[float]
    times: list[float]
    value: float
    lower_bound: float


@dataclass(slots=True)
class SharedSchedules:
    """wide: so many machines at a time as one; prices [machines, prices], times [machines, parts], bounds
    [machines, 2] of energy and cycles; ops: operations of each kind; schedules: schedules that are best
    somewhere; sequential_pj: least energy of einsums in turn [different einsums, machines]; choice: of the
    known ones [machines]; lower_bounds: energy that none costs less than [machines].
    """

    arches: list[Arch]
    wide: list[tuple[slice, Arch]]
    workload: Workload
    prices: Floats
    times: Floats
    bounds: Floats
    ops: list[float]
    space: Space = Space()
    questions: list[Question] = field(default_factory=list)
    schedules: list[PricedSchedule] = field(default_factory=list)
    anchors: list[Anchor] = field(default_factory=list)
    sequential_pj: Floats = field(default_factory=lambda: np.array(inf))
    choice: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    lower_bounds: Floats = field(default_factory=lambda: np.zeros(0))


def find_shared_schedules(
    arches: Sequence[Arch], workload: Workload, fused: Solve, unfused: Solve, share: float
) -> SharedSchedules | Infeasible:
    """Schedules for machines of one structure: more is solved where the best known one may be furthest above
    what it would cost if all were, until that is no more than a share anywhere. What is solved follows from
    the list of machines alone.
    """
    f = _start(arches, workload)
    worst: int | None = 0
    could = np.zeros(len(arches))  # what each machine might cost: bounds that only grow with what is solved
    while worst is not None:
        if (asked := _question(f, worst)) is None:
            could[worst] = inf  # all is known of it: what is left is rounding
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
    """The machine whose best known schedule is furthest above what it might cost, if that is more than a
    share; raises `could` as far as it takes to know.
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
    if len({arch.structure() for arch in arches}) > 1:
        raise ValueError("machines of one family differ in more than prices, rates and clock")
    if arches[0].layout_sensitive():
        raise ValueError(
            f"{arches[0].name} describes lines, rows, banks or hops, which shared schedules do not price"
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
    """Prices under which energy is cycles."""
    return [0.0] * (prices - 1) + [1.0]


def _question(f: SharedSchedules, machine: int) -> Question | None:
    """What is asked next of a machine, as its prices and times: what it costs; then its least latency, what
    leakage costs per cycle; then what it costs without leakage, at any times.
    """
    own, at = f.prices[machine].tolist(), f.times[machine].tolist()
    every = (own, at), (_cycles(len(own)), at), ([*own[:-1], 0.0], [0.0] * len(at))
    return next((one for one in every if one not in f.questions), None)


def _solve_one(
    f: SharedSchedules, machine: int, asked: Question, fused: Solve, unfused: Solve
) -> Infeasible | None:
    """One answer more for a machine. Schedules are priced on all machines, those of einsums in turn too."""
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
    """A schedule of one machine on all of them, and the energy of one run of each einsum [rows, machines]."""
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
        each = np.array(
            [
                [action_pj((row.level, row.tensor, row.action), one.einsum, unit) for unit in units]
                for row in counted
            ]
        )
        actions.append((np.array([row.elems for row in counted]), each.max(axis=1), np.argmax(each, axis=1)))
        nest, begun = boundary.nest_in_time(one.boundary, c.mapping, arch)
        for some, wide in f.wide:
            own, waits = ports(nest, c.counts, one.einsum, wide, begun)
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
    """Which of the costs is an einsum's: equal ones that stand alone have one, called by the first."""
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
    """What bounds add up: cycles of leakage, operations of each kind, and what was solved. prices [machines,
    prices]: limits; consumed [parts, prices]: of them; leakage [machines, parts]: of the last price, inf
    where a part bounds nothing; worth [machines, parts].
    """

    prices: Floats
    consumed: Floats
    leakage: Floats
    worth: Floats


def _bound_program(f: SharedSchedules, of: str) -> BoundProgram:
    """of: floors, or values as if they were floors."""
    machines, kinds = f.prices.shape
    own = operations(f.arches[0])
    taken = np.vstack([np.eye(kinds)[[*own, kinds - 1]], *(a.prices for a in f.anchors)])
    leakage, worth = np.tile(taken[:, -1], (machines, 1)), np.empty((machines, len(taken)))
    worth[:, : len(own)], worth[:, len(own)] = f.ops, f.bounds[:, 1]
    for part, a in enumerate(f.anchors, len(own) + 1):
        at, worth[:, part] = np.array(a.times), getattr(a, of)
        # what takes no time there takes none more
        slower = np.min(np.divide(f.times, at, out=np.ones_like(f.times), where=at > 0), axis=1)
        leakage[:, part] = np.divide(
            a.prices[-1], slower, out=np.full(machines, inf if a.prices[-1] else 0.0), where=slower > 0
        )
    return BoundProgram(f.prices, taken, leakage, worth)


def _raise(bounds: Floats, p: BoundProgram, machine: int) -> None:
    """The largest bound of a machine, and what its parts and limits give on all others."""
    from scipy.optimize import linprog  # type: ignore[attr-defined, unused-ignore]  # slow to import, and few studies share

    own, may = p.prices[machine], np.isfinite(p.leakage[machine])
    columns, values = np.column_stack([p.consumed[may, :-1], p.leakage[machine, may]]), p.worth[machine, may]
    scale = np.where(own > 0, own, 1.0)
    weights = np.max(columns / scale, axis=1)
    weights[weights == 0] = 1.0  # what is free is worth nothing
    worth = values / weights  # of a part that takes the most of one price that there is
    takes = (columns / weights[:, None]).T / scale[:, None]
    found = linprog(-worth / (worth.max() or 1.0), takes, own / scale, method="highs")  # type: ignore[no-untyped-call, unused-ignore]
    if found.status != 0:
        raise RuntimeError(f"lower bound of a machine: {found.message}")
    # the program keeps limits nearly, a bound has to keep them
    many = np.where(np.any(takes[own == 0] > 0, axis=0), 0.0, np.maximum(found.x, 0.0))
    largest = float(worth @ many) / max(1.0, float(np.max(takes @ many))) * (1 - PRECISE)
    if largest > bounds[machine] * (1 + NEARLY):  # else others know as much already
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
    """What parts give that reach some limits, shrunk until they keep all: a bound for every machine, large
    where these are the right ones.
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
    """The best known schedule on one of the machines, with its gap."""
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
    """Of one run, added up as the evaluator does: to the bit."""
    arch, (elems, each, number) = f.arches[machine], own
    parts: list[float] = (elems * (each * f.prices[machine][number])).tolist()
    return float(sum([*parts, arch.leak_mw() * cycles / arch.clock_ghz]))


def _einsum(
    c: EinsumCost, one: Placed, arch: Arch, energy: float, cycles: float, bottleneck: str
) -> EinsumCost:
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
