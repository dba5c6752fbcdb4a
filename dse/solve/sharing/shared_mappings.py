"""Unfused mappings that are shared by machines which differ in prices, rates and clock alone: they are
searched on some machines and used on all (docs/reuse.md, Many machines).

The energy of a mapping on a machine is

    energy = actions . prices + leakage per cycle * cycles

where its cycles follow from the times of ports and operations. A mapping that fits one of the machines fits
all. Each solved machine gives a lower bound on every other machine:

    p_k, l_k, t_k   prices, leakage per cycle and times of the solved machine k
    F_k, G_k        lower bounds of its energy with leakage, and without
    p, l, t         prices, leakage per cycle and times of another machine
    U               numbers of actions of each kind that every mapping has at least
    C               lower bound of the cycles on the other machine

Prices there are at least a p_k, with a = min(p / p_k). Cycles of any mapping there are at least b times those
on machine k, with b = min(1, t / t_k), since cycles grow with each time, and proportionally if all times
grow. With c = l b / l_k the energy of any mapping there is at least

    c F_k + (a - c) G_k + (p - a p_k) . U             if c <= a
    a F_k + (l - a l_k / b) C + (p - a p_k) . U       else
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dse.mapping.nest import Infeasible
from dse.run.compiled import njit
from dse.sim.counts.actions import action_pj, elapsed_cycles
from dse.sim.counts.counts import nest_sums
from dse.sim.einsum import bound_kernels
from dse.sim.einsum.bounds import lower_bound, needs, rates
from dse.sim.einsum.cost import cycles_of, ports
from dse.sim.einsum.evaluate import ROUNDING_GAP, EinsumCost, Violated
from dse.solve.sharing.shared_schedules import prices, times, unit
from hw.arch import Arch, FieldRole, Slot, slots
from hw.columns import Columns, group_equal_rows
from workloads.arrays import Floats, Ints
from workloads.einsum import Einsum

# returns the mapping of lowest energy of an einsum on each machine
Solve = Callable[[Sequence[Arch]], list[EinsumCost | Infeasible]]
# returns a lower bound on the energy of an einsum on each machine, 0: none is known
Bound = Callable[[Sequence[Arch]], list[float]]
ROUND_MACHINES = 16  # machines that are solved together
# Gaps are stored as whole numbers of parts, rounded up, which compress well: the allowed gap has STEPS
# parts, or fewer if a part would be smaller than 1 / FINEST.
STEPS = 128
FINEST = 1 << 13
UNKNOWN = (1 << 16) - 1  # this number of parts stands for an unknown gap
KINDS_PER_STEP = 2048  # kinds of machines on which a mapping is priced together, which limits memory
Parts = NDArray[np.uint16]
GroupOf = NDArray[np.int32]


def batch_columns(arch: Arch, columns: Columns) -> Arch:
    """Returns one machine whose prices, rates and clock are arrays, as `cost.batch_arch` does, from columns
    of machines that differ from `arch` in these alone. The whole leakage is given to the vector unit.
    """
    varying = [
        slot
        for slot, value in zip(
            slots(arch, "price", "rate"), arch.values(slots(arch, "price", "rate")), strict=True
        )
        if value is not None
    ]
    all_slots = [*varying, Slot("compute", 0, "vector_leak_mw"), *slots(arch, "clock")]
    return arch.without("leakage").with_values(
        all_slots, [*map(columns.column_at, varying), columns.leak_mw, columns.clock_ghz]
    )


@dataclass(frozen=True, slots=True)
class MachineGroups:
    """Machines grouped into kinds: machines of one kind have equal prices (or equal rates)."""

    columns: Columns  # one machine per kind
    batch_arches: list[Arch]  # the same kinds, up to KINDS_PER_STEP of them as one machine of arrays
    group_of: GroupOf  # [n] kind of every machine


@dataclass(frozen=True)
class MachineBatch:
    """n machines of one structure.

    There are far fewer kinds of prices and kinds of rates than machines. What depends on one of them alone is
    computed once per kind.
    """

    first: Arch
    arch: Callable[[int], Arch]  # returns the i-th machine
    leak_mw: Floats  # [n]
    clock_ghz: Floats  # [n]
    by_energy: MachineGroups  # kinds by energies per action
    by_rate: MachineGroups  # kinds by times of ports and operations

    @cached_property
    def prices(self) -> Floats:
        """[kinds of prices, actions] energy per action in pJ."""
        return np.concatenate([_stack_columns(prices(arch)[:-1]) for arch in self.by_energy.batch_arches])

    @cached_property
    def times(self) -> Floats:
        """[kinds of rates, parts] cycles of an action per level, of an operation, and of one cycle (1.0)."""
        return np.concatenate([_stack_columns(times(arch)) for arch in self.by_rate.batch_arches])

    @cached_property
    def digest(self) -> str:
        """Returns a hash of all inputs on which answers for these machines depend."""
        sha = hashlib.sha256(repr(self.first.structure()).encode())
        for part in (
            self.leak_mw,
            self.clock_ghz,
            self.prices,
            self.by_energy.group_of,
            self.times,
            self.by_rate.group_of,
        ):
            sha.update(np.ascontiguousarray(part).tobytes())
        return sha.hexdigest()

    def __len__(self) -> int:
        return len(self.leak_mw)

    def machine(self, i: int) -> Arch:
        """Returns machine i of the batch.

        Raises ValueError if it differs in structure from the first: mappings may not be shared then.
        """
        arch = self.arch(i)
        if arch.structure() != self.first.structure():
            raise ValueError(
                f"{arch.name} differs from machines that it shares mappings with in more than "
                "prices, rates and clock; leave out solver.sharing_gap"
            )
        return arch


def _stack_columns(columns: Sequence[Any]) -> Floats:
    return np.column_stack(np.broadcast_arrays(*columns)).astype(float)


def machine_batch(first: Arch, columns: Columns, arch: Callable[[int], Arch]) -> MachineBatch:
    """Returns the batch of machines of one structure, given as columns. Raises ValueError on machines with
    layouts or hops, whose prices are not in the columns.
    """
    if first.layout_sensitive():
        raise ValueError(
            f"{first.name} describes lines, rows, banks or hops, which shared mappings do not price; "
            "leave out solver.sharing_gap"
        )

    def kinds(role: FieldRole) -> MachineGroups:
        rows = np.column_stack([columns.column_at(slot) for slot in slots(first, role)])
        firsts, group_of = group_equal_rows(np.nan_to_num(rows, nan=-1.0))
        group_columns = columns.take(firsts)
        return MachineGroups(
            group_columns,
            [
                batch_columns(
                    first, group_columns.take(np.arange(begin, min(begin + KINDS_PER_STEP, len(firsts))))
                )
                for begin in range(0, len(firsts), KINDS_PER_STEP)
            ],
            group_of.astype(np.int32),
        )

    return MachineBatch(first, arch, columns.leak_mw, columns.clock_ghz, kinds("price"), kinds("rate"))


@dataclass(frozen=True, slots=True)
class BatchCost:
    """Cost of a mapping on all machines, or a lower bound."""

    pj: Floats  # [kinds of prices] energy without leakage
    cycles: Floats  # [kinds of rates]


def cost_on(batch: MachineBatch, e: Einsum, cost: EinsumCost) -> BatchCost:
    """Returns the evaluator's cost of a mapping on all kinds of machines."""
    count_rows = [row for row in cost.counts if row.action != "fold"]
    cycles = np.empty(len(batch.times))
    pj = np.empty(len(batch.prices))
    sums = nest_sums(cost.mapping, e, batch.first)
    for i, arch in enumerate(batch.by_rate.batch_arches):
        cycles[i * KINDS_PER_STEP : (i + 1) * KINDS_PER_STEP] = cycles_of(sums, arch)
    for i, arch in enumerate(batch.by_energy.batch_arches):
        pj[i * KINDS_PER_STEP : (i + 1) * KINDS_PER_STEP] = sum(
            row.elems * action_pj(row.key, e, arch) for row in count_rows
        )
    return BatchCost(pj, cycles)


def initiation_intervals_on(batch: MachineBatch, e: Einsum, cost: EinsumCost) -> Floats:
    """Returns the initiation interval in cycles of an einsum that runs back to back, by kind of rates."""
    sums = nest_sums(cost.mapping, e, batch.first)
    return np.concatenate(
        [
            np.broadcast_to(
                elapsed_cycles(*ports(cost.counts, e, arch, sums), steady=True), np.shape(arch.clock_ghz)
            )
            for arch in batch.by_rate.batch_arches
        ]
    )


def lower_bound_on(batch: MachineBatch, e: Einsum) -> BatchCost:
    """Returns lower bounds of all mappings of an einsum on all kinds of machines."""
    without_leakage, runs = replace(batch.by_energy.columns, leak_mw=np.zeros(len(batch.prices))), ((e, 1.0),)
    return BatchCost(
        bound_kernels.sequential(runs, without_leakage)[0],
        bound_kernels.sequential(runs, batch.by_rate.columns)[1],
    )


def energy_of(batch: MachineBatch, cost: BatchCost) -> Floats:
    """Returns the energy with leakage on each machine [n]."""
    return np.asarray(
        cost.pj[batch.by_energy.group_of]
        + batch.leak_mw * cost.cycles[batch.by_rate.group_of] / batch.clock_ghz
    )


@dataclass(frozen=True, slots=True)
class SharedMappings:
    """Mappings of an einsum that a batch of machines shares."""

    einsum: Einsum
    mappings: tuple[EinsumCost, ...]  # each priced on one of the machines
    choice: NDArray[np.int16]  # [n] mapping of each machine
    gaps: Parts  # [n] optimality gap on each machine, in parts (`from_parts`)


def find_shared_mappings(
    batch: MachineBatch, e: Einsum, solve: Solve, lower_bounds: Bound, allowed_gap: float
) -> SharedMappings | Infeasible:
    """Returns mappings of an einsum for all machines.

    Each round solves up to ROUND_MACHINES of the unsolved machines whose best known mapping may lie above the
    optimum by more than `allowed_gap`: the one with the largest gap, and others drawn with a fixed seed. The
    rounds end when no such machine is left. allowed_gap: must be above 0.
    """
    lower = lower_bound_on(batch, e)
    bound = energy_of(batch, lower) * (1 - ROUNDING_GAP)
    best_pj = np.full(len(batch), np.inf)
    choice = np.zeros(len(batch), np.int16)
    mappings: dict[str, EinsumCost] = {}
    # without_leakage: kind of prices -> lower bound of the energy without leakage
    is_solved, rng, without_leakage = np.zeros(len(batch), np.bool_), Random(0), dict[int, float]()
    units = units_of(batch, e)

    while (
        unsolved := np.flatnonzero(
            ~is_solved & ((current_gap := _relative_gap(best_pj, bound)) > allowed_gap)
        )
    ).size:
        worst = int(unsolved[np.argmax(current_gap[unsolved])]) if mappings else int(unsolved[0])
        machines = [
            worst,
            *(i for i in rng.sample(unsolved.tolist(), min(ROUND_MACHINES, unsolved.size)) if i != worst),
        ][:ROUND_MACHINES]
        is_solved[machines] = True
        arches = [batch.machine(i) for i in machines]
        answers = solve(arches)
        for answer in answers:
            if isinstance(answer, Infeasible):
                return answer
            if str(answer.mapping) not in mappings:
                energy = energy_of(batch, cost_on(batch, e, answer))
                is_better = energy < best_pj
                best_pj[is_better], choice[is_better] = energy[is_better], len(mappings)
                mappings[str(answer.mapping)] = answer
        new_kinds = {
            kind: arch.without("leakage")
            for i, arch in zip(machines, arches, strict=True)
            if (kind := int(batch.by_energy.group_of[i])) not in without_leakage
        }
        without_leakage |= zip(
            new_kinds, lower_bounds(list(new_kinds.values())) if new_kinds else (), strict=True
        )
        for i, answer in zip(machines, answers, strict=True):
            assert isinstance(answer, EinsumCost)
            anchor_bounds = (
                answer.energy_pj / (1 + answer.optimality_gap),
                without_leakage[int(batch.by_energy.group_of[i])],
            )
            raise_bounds(batch, bound, i, *anchor_bounds, units, lower.cycles)
    gaps = _relative_gap(best_pj, bound)
    gaps[gaps <= 2 * ROUNDING_GAP] = 0.0  # bounds are rounded down by ROUNDING_GAP
    used, of_used = np.unique(choice, return_inverse=True)
    return SharedMappings(
        e,
        tuple(list(mappings.values())[k] for k in used),
        of_used.astype(np.int16),
        to_parts(gaps, allowed_gap),
    )


def part_size(allowed_gap: float) -> float:
    """Returns the size of a part: gaps are stored in whole parts."""
    return allowed_gap / min(STEPS, max(1, int(allowed_gap * FINEST)))


def to_parts(gaps: Floats, allowed_gap: float) -> Parts:
    """Returns gaps in parts, rounded up. A gap of at most `allowed_gap` stays at most `allowed_gap`."""
    return np.minimum(np.ceil(gaps / part_size(allowed_gap)), UNKNOWN).astype(np.uint16)


def from_parts(parts: Parts, allowed_gap: float) -> Floats:
    """Returns gaps from their numbers of parts, inf for UNKNOWN."""
    return np.where(parts == UNKNOWN, np.inf, parts * part_size(allowed_gap))


def units_of(batch: MachineBatch, e: Einsum) -> Floats:
    """Returns the least number of actions of each kind [actions] in any mapping."""
    return np.array(
        [
            lower_bound(needs(e, batch.first.word_bits), rates(unit(batch.first, kind)))[0]
            for kind in range(batch.prices.shape[1])
        ]
    )


def _relative_gap(value: Floats, lower: Floats) -> Floats:
    """Returns the relative gaps of values to lower bounds, elementwise `evaluate.relative_gap`."""
    has_bound, unbounded_gap = np.broadcast_to(lower, value.shape) > 0, np.where(value > 0, np.inf, 0.0)
    return np.where(
        has_bound,
        np.maximum(np.divide(value, lower, out=np.ones_like(value), where=has_bound) - 1, 0.0),
        unbounded_gap,
    )


def raise_bounds(
    batch: MachineBatch,
    bound: Floats,
    k: int,
    lower: float,
    without_leakage: float,
    units: Floats,
    cycles: Floats,
) -> None:
    """Raises the lower bounds `bound` [n] of all machines by the lower bounds of machine k (formula at the
    top).

    lower, without_leakage: lower bounds of machine k with leakage and without (F_k, G_k).
    units: `units_of` (U).
    cycles: lower bounds of cycles by kind of rates (C).
    """
    anchor_prices, anchor_times = (
        batch.prices[batch.by_energy.group_of[k]],
        batch.times[batch.by_rate.group_of[k]],
    )
    has_price, has_time = anchor_prices > 0, anchor_times > 0
    a = (
        np.min(batch.prices[:, has_price] / anchor_prices[has_price], axis=1)
        if has_price.any()
        else np.zeros(len(batch.prices))
    )
    remaining_pj = np.maximum(batch.prices - a[:, None] * anchor_prices, 0.0) @ units
    b = np.minimum(1.0, np.min(batch.times[:, has_time] / anchor_times[has_time], axis=1))
    _raise_kernel(
        bound,
        batch.leak_mw / batch.clock_ghz,
        batch.by_energy.group_of,
        batch.by_rate.group_of,
        a,
        b,
        remaining_pj,
        cycles,
        k,
        lower,
        without_leakage,
    )


@njit(cache=True, nogil=True, error_model="numpy")
def _raise_kernel(
    bound: Floats,
    leak: Floats,
    by_energy: GroupOf,
    by_rate: GroupOf,
    a: Floats,
    b: Floats,
    rest: Floats,
    cycles: Floats,
    k: int,
    lower: float,
    without_leakage: float,
) -> None:
    """Raises `bound` [n], as `raise_bounds` says. a, rest: per kind of prices, the ratio a and the pJ of
    (p - a p_k) . U; b: per kind of rates. leak: pJ per cycle of each machine.
    """
    for i in range(len(bound)):
        price_ratio, cycle_ratio = a[by_energy[i]], b[by_rate[i]]
        c = leak[i] * cycle_ratio / leak[k] if leak[k] > 0 else np.inf
        if c <= price_ratio:
            raised = c * lower + (price_ratio - c) * without_leakage
        else:
            raised = (
                price_ratio * lower
                + (max(leak[i] - price_ratio * leak[k] / cycle_ratio, 0.0) if leak[k] > 0 else leak[i])
                * cycles[by_rate[i]]
            )
        bound[i] = max(bound[i], (raised + rest[by_energy[i]]) * (1 - ROUNDING_GAP))


@dataclass(frozen=True, slots=True)
class LowerBounds:
    """Lower bounds of a workload's E distinct einsums on a batch of machines."""

    einsums: tuple[Einsum, ...]
    occurrences: tuple[int, ...]  # of each einsum
    pj: Floats  # [E, kinds of prices] energy without leakage
    cycles: Floats  # [E, kinds of rates]

    def total(self, per_einsum: Floats) -> Floats:
        """Returns sums [n] over all occurrences of numbers [E, n] per einsum."""
        return np.asarray(sum(n * row for n, row in zip(self.occurrences, per_einsum, strict=True)))

    def on_machines(self, batch: MachineBatch, machines: Ints) -> tuple[Floats, Floats]:
        """Returns energy with leakage, and cycles, [E, n] of the machines at positions `machines`."""
        cycles = self.cycles[:, batch.by_rate.group_of[machines]]
        return self.pj[:, batch.by_energy.group_of[machines]] + batch.leak_mw[
            machines
        ] * cycles / batch.clock_ghz[machines], cycles


def lower_bounds_of(
    batch: MachineBatch, einsums: Sequence[Einsum], occurrences: Sequence[int]
) -> LowerBounds:
    """Returns lower bounds of einsums on a batch of machines. occurrences: occurrences of each einsum."""
    costs = [lower_bound_on(batch, e) for e in einsums]
    return LowerBounds(
        tuple(einsums),
        tuple(occurrences),
        np.stack([cost.pj for cost in costs]),
        np.stack([cost.cycles for cost in costs]),
    )


@dataclass(frozen=True, slots=True)
class Table:
    """Costs of a workload of E distinct einsums, unfused, with M shared mappings on a batch of n machines."""

    lower_bounds: LowerBounds
    mappings: tuple[EinsumCost, ...]  # of all einsums, those of one einsum next to each other
    pj: Floats  # [M, kinds of prices] energy without leakage
    cycles: Floats  # [M, kinds of rates]
    # [M, kinds of rates] initiation intervals if the workload has one distinct einsum; else equal to `cycles`
    initiation_intervals: Floats
    choice: NDArray[np.int16]  # [E, n] number of the mapping
    gaps: Parts  # [E, n] optimality gap, in parts
    allowed_gap: float  # relative gap that was allowed


def table(
    batch: MachineBatch, lower: LowerBounds, shared_mappings: Sequence[SharedMappings], allowed_gap: float
) -> Table:
    """Returns the costs of a workload with shared mappings on every kind of machine.

    lower, shared_mappings: lower bounds and shared mappings of its E distinct einsums.
    allowed_gap: the relative gap that was allowed.
    """
    mappings = [(shared.einsum, mapping) for shared in shared_mappings for mapping in shared.mappings]
    choice, offset = np.empty((len(shared_mappings), len(batch)), np.int16), 0
    pj, cycles = np.empty((len(mappings), len(batch.prices))), np.empty((len(mappings), len(batch.times)))
    for i, shared in enumerate(shared_mappings):
        choice[i] = shared.choice + offset
        offset += len(shared.mappings)
    for i, (e, mapping) in enumerate(mappings):
        cost = cost_on(batch, e, mapping)
        pj[i], cycles[i] = cost.pj, cost.cycles
    # with several distinct einsums, equal ones do not run back to back
    intervals = (
        np.stack([initiation_intervals_on(batch, e, mapping) for e, mapping in mappings])
        if len(shared_mappings) == 1
        else cycles
    )
    return Table(
        lower,
        tuple(mapping for _, mapping in mappings),
        pj,
        cycles,
        intervals,
        choice,
        np.stack([shared.gaps for shared in shared_mappings]),
        allowed_gap,
    )


@dataclass(frozen=True, slots=True)
class Sums:
    """Totals of a workload, unfused, on n machines; added up as `evaluate.sequential` does."""

    energy_pj: Floats  # [n]
    latency_cycles: Floats  # [n]
    initiation_interval_cycles: Floats  # [n]
    bound_pj: Floats  # [n] lower bound of any mappings
    bound_cycles: Floats  # [n] lower bound of any mappings
    optimality_gap: Floats  # [n]
    gap_to_bound: Floats  # [n]
    gaps: Floats  # [E, n] optimality gaps of the distinct einsums


def sums_at(batch: MachineBatch, costs: Table, machines: Ints) -> Sums:
    """Returns the totals on the machines at positions `machines`.

    Raises Violated if a lower bound exceeds a cost.
    """
    choice, price_kind, rate_kind, total = (
        costs.choice[:, machines],
        batch.by_energy.group_of[machines],
        batch.by_rate.group_of[machines],
        costs.lower_bounds.total,
    )
    cycles, (lower_pj, lower_cycles) = (
        costs.cycles[choice, rate_kind],
        costs.lower_bounds.on_machines(batch, machines),
    )
    energy = costs.pj[choice, price_kind] + batch.leak_mw[machines] * cycles / batch.clock_ghz[machines]
    if (violating := np.flatnonzero((lower_pj > energy * (1 + ROUNDING_GAP)).any(axis=1))).size:
        raise Violated(f"{costs.lower_bounds.einsums[violating[0]].name}: lower bound above the cost")
    to_bound = _relative_gap(energy, lower_pj)
    gaps = np.minimum(from_parts(costs.gaps[:, machines], costs.allowed_gap), to_bound)
    total_pj, total_cycles, total_lower_pj = total(energy), total(cycles), total(lower_pj)
    intervals = (
        total_cycles
        if len(costs.lower_bounds.einsums) > 1
        else total(costs.initiation_intervals[choice, rate_kind])
    )
    total_to_bound = _relative_gap(total_pj, total_lower_pj)
    gap = np.minimum(_relative_gap(total_pj, total(energy / (1 + gaps))), total_to_bound)
    return Sums(
        total_pj,
        total_cycles,
        intervals,
        total_lower_pj,
        total(lower_cycles),
        np.where(gap > ROUNDING_GAP, gap, 0.0),
        total_to_bound,
        gaps,
    )
