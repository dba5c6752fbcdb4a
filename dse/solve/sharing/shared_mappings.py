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
from dse.sim.counts.counts import reading
from dse.sim.einsum import bound_kernels
from dse.sim.einsum.bounds import lower_bound, needs, rates
from dse.sim.einsum.cost import cycles_of, ports
from dse.sim.einsum.evaluate import PRECISE, EinsumCost, Violated
from dse.solve.sharing.shared_schedules import prices, times, unit
from hw.arch import Arch, FieldRole, Slot, slots
from hw.columns import Columns, group_equal_rows
from workloads.arrays import Floats, Ints
from workloads.einsum import Einsum

# returns the mapping of lowest energy of an einsum on each machine
Solve = Callable[[Sequence[Arch]], list[EinsumCost | Infeasible]]
# returns a lower bound on the energy of an einsum on each machine, 0: none is known
Bound = Callable[[Sequence[Arch]], list[float]]
ROUND = 16  # machines that are solved together
# Gaps are stored as whole numbers of parts, rounded up, which compress well: the allowed gap has STEPS
# parts, or fewer if a part would be smaller than 1 / FINEST.
STEPS = 128
FINEST = 1 << 13
UNKNOWN = (1 << 16) - 1  # this number of parts stands for an unknown gap
MANY = 2048  # kinds of machines on which a mapping is priced together, which limits memory
Parts = NDArray[np.uint16]
GroupOf = NDArray[np.int32]


def batch_columns(arch: Arch, columns: Columns) -> Arch:
    """Returns one machine whose prices, rates and clock are arrays, as `cost.batch_arch` does, from columns
    of machines that differ from `arch` in these alone. The whole leakage is given to the vector unit.
    """
    at = [
        one
        for one, value in zip(
            slots(arch, "price", "rate"), arch.values(slots(arch, "price", "rate")), strict=True
        )
        if value is not None
    ]
    total = [*at, Slot("compute", 0, "vector_leak_mw"), *slots(arch, "clock")]
    return arch.without("leakage").with_values(
        total, [*map(columns.at, at), columns.leak_mw, columns.clock_ghz]
    )


@dataclass(frozen=True, slots=True)
class MachineGroups:
    """Machines grouped into kinds: machines of one kind have equal prices (or equal rates)."""

    columns: Columns  # one machine per kind
    wide: list[Arch]  # the same kinds, up to KINDS_PER_STEP of them as one machine of arrays
    of: GroupOf  # [n] kind of every machine


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
        return np.concatenate([_stack_columns(prices(some)[:-1]) for some in self.by_energy.wide])

    @cached_property
    def times(self) -> Floats:
        """[kinds of rates, parts] cycles of an action per level, of an operation, and of one cycle (1.0)."""
        return np.concatenate([_stack_columns(times(some)) for some in self.by_rate.wide])

    @cached_property
    def digest(self) -> str:
        """Returns a hash of all inputs on which answers for these machines depend."""
        found = hashlib.sha256(repr(self.first.structure()).encode())
        for part in (
            self.leak_mw,
            self.clock_ghz,
            self.prices,
            self.by_energy.of,
            self.times,
            self.by_rate.of,
        ):
            found.update(np.ascontiguousarray(part).tobytes())
        return found.hexdigest()

    def __len__(self) -> int:
        return len(self.leak_mw)

    def machine(self, i: int) -> Arch:
        """Returns machine i of the batch.

        Raises ValueError if it differs in structure from the first: mappings may not be shared then.
        """
        found = self.arch(i)
        if found.structure() != self.first.structure():
            raise ValueError(
                f"{found.name} differs from machines that it shares mappings with in more than "
                "prices, rates and clock; leave out solver.sharing_gap"
            )
        return found


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
        rows = np.column_stack([columns.at(one) for one in slots(first, role)])
        some, of = group_equal_rows(np.nan_to_num(rows, nan=-1.0))
        own = columns.take(some)
        return MachineGroups(
            own,
            [
                batch_columns(first, own.take(np.arange(at, min(at + MANY, len(some)))))
                for at in range(0, len(some), MANY)
            ],
            of.astype(np.int32),
        )

    return MachineBatch(first, arch, columns.leak_mw, columns.clock_ghz, kinds("price"), kinds("rate"))


@dataclass(frozen=True, slots=True)
class BatchCost:
    """Cost of a mapping on all machines, or a lower bound."""

    pj: Floats  # [kinds of prices] energy without leakage
    cycles: Floats  # [kinds of rates]


def cost_on(c: MachineBatch, e: Einsum, found: EinsumCost) -> BatchCost:
    """Returns the evaluator's cost of a mapping on all kinds of machines."""
    counted = [row for row in found.counts if row.action != "fold"]
    cycles = np.empty(len(c.times))
    pj = np.empty(len(c.prices))
    at = reading(found.mapping, e, c.first)
    for i, some in enumerate(c.by_rate.wide):
        cycles[i * MANY : (i + 1) * MANY] = cycles_of(at, some)
    for i, some in enumerate(c.by_energy.wide):
        pj[i * MANY : (i + 1) * MANY] = sum(row.elems * action_pj(row.key, e, some) for row in counted)
    return BatchCost(pj, cycles)


def initiation_intervals_on(c: MachineBatch, e: Einsum, found: EinsumCost) -> Floats:
    """Returns the initiation interval in cycles of an einsum that runs back to back, by kind of rates."""
    at = reading(found.mapping, e, c.first)
    return np.concatenate(
        [
            np.broadcast_to(
                elapsed_cycles(*ports(found.counts, e, some, at), steady=True), np.shape(some.clock_ghz)
            )
            for some in c.by_rate.wide
        ]
    )


def lower_bound_on(c: MachineBatch, e: Einsum) -> BatchCost:
    """Returns lower bounds of all mappings of an einsum on all kinds of machines."""
    without_leakage, runs = replace(c.by_energy.columns, leak_mw=np.zeros(len(c.prices))), ((e, 1.0),)
    return BatchCost(
        bound_kernels.sequential(runs, without_leakage)[0],
        bound_kernels.sequential(runs, c.by_rate.columns)[1],
    )


def energy_of(c: MachineBatch, one: BatchCost) -> Floats:
    """Returns the energy with leakage on each machine [n]."""
    return np.asarray(one.pj[c.by_energy.of] + c.leak_mw * one.cycles[c.by_rate.of] / c.clock_ghz)


@dataclass(frozen=True, slots=True)
class SharedMappings:
    """Mappings of an einsum that a batch of machines shares."""

    einsum: Einsum
    mappings: tuple[EinsumCost, ...]  # each priced on one of the machines
    choice: NDArray[np.int16]  # [n] mapping of each machine
    gaps: Parts  # [n] optimality gap on each machine, in parts (`from_parts`)


def find_shared_mappings(
    c: MachineBatch, e: Einsum, solve: Solve, lower_bounds: Bound, share: float
) -> SharedMappings | Infeasible:
    """Returns mappings of an einsum for all machines.

    Each round solves up to ROUND_MACHINES of the unsolved machines whose best known mapping may lie above the
    optimum by more than `share`: the one with the largest gap, and others drawn with a fixed seed. The rounds
    end when no such machine is left. share: must be above 0.
    """
    least = lower_bound_on(c, e)
    bound = energy_of(c, least) * (1 - PRECISE)
    best = np.full(len(c), np.inf)
    choice = np.zeros(len(c), np.int16)
    found: dict[str, EinsumCost] = {}
    asked, rng, without_leakage = np.zeros(len(c), np.bool_), Random(0), dict[int, float]()
    units = units_of(c, e)

    while (open_ := np.flatnonzero(~asked & ((far := _relative_gap(best, bound)) > share))).size:
        worst = int(open_[np.argmax(far[open_])]) if found else int(open_[0])
        own = [worst, *(i for i in rng.sample(open_.tolist(), min(ROUND, open_.size)) if i != worst)][:ROUND]
        asked[own] = True
        arches = [c.machine(i) for i in own]
        answers = solve(arches)
        for one in answers:
            if isinstance(one, Infeasible):
                return one
            if str(one.mapping) not in found:
                energy = energy_of(c, cost_on(c, e, one))
                better = energy < best
                best[better], choice[better] = energy[better], len(found)
                found[str(one.mapping)] = one
        new = {
            kind: arch.without("leakage")
            for i, arch in zip(own, arches, strict=True)
            if (kind := int(c.by_energy.of[i])) not in without_leakage
        }
        without_leakage |= zip(new, lower_bounds(list(new.values())) if new else (), strict=True)
        for i, one in zip(own, answers, strict=True):
            assert isinstance(one, EinsumCost)
            known = one.energy_pj / (1 + one.optimality_gap), without_leakage[int(c.by_energy.of[i])]
            raise_bounds(c, bound, i, *known, units, least.cycles)
    gaps = _relative_gap(best, bound)
    gaps[gaps <= 2 * PRECISE] = 0.0  # bounds are rounded down by PRECISE
    used, of_used = np.unique(choice, return_inverse=True)
    return SharedMappings(
        e, tuple(list(found.values())[k] for k in used), of_used.astype(np.int16), to_parts(gaps, share)
    )


def part_size(share: float) -> float:
    """Returns the size of a part: gaps are stored in whole parts."""
    return share / min(STEPS, max(1, int(share * FINEST)))


def to_parts(gaps: Floats, share: float) -> Parts:
    """Returns gaps in parts, rounded up. A gap of at most `share` stays at most `share`."""
    return np.minimum(np.ceil(gaps / part_size(share)), UNKNOWN).astype(np.uint16)


def from_parts(parts: Parts, share: float) -> Floats:
    """Returns gaps from their numbers of parts, inf for UNKNOWN."""
    return np.where(parts == UNKNOWN, np.inf, parts * part_size(share))


def units_of(c: MachineBatch, e: Einsum) -> Floats:
    """Returns the least number of actions of each kind [actions] in any mapping."""
    return np.array(
        [
            lower_bound(needs(e, c.first.word_bits), rates(unit(c.first, kind)))[0]
            for kind in range(c.prices.shape[1])
        ]
    )


def _relative_gap(value: Floats, lower: Floats) -> Floats:
    """Returns the relative gaps of values to lower bounds, elementwise `evaluate.relative_gap`."""
    some, bounded = np.broadcast_to(lower, value.shape) > 0, np.where(value > 0, np.inf, 0.0)
    return np.where(
        some, np.maximum(np.divide(value, lower, out=np.ones_like(value), where=some) - 1, 0.0), bounded
    )


def raise_bounds(
    c: MachineBatch,
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
    of, at = c.prices[c.by_energy.of[k]], c.times[c.by_rate.of[k]]
    asks, takes = of > 0, at > 0
    a = np.min(c.prices[:, asks] / of[asks], axis=1) if asks.any() else np.zeros(len(c.prices))
    rest = np.maximum(c.prices - a[:, None] * of, 0.0) @ units
    b = np.minimum(1.0, np.min(c.times[:, takes] / at[takes], axis=1))
    _raise_kernel(
        bound,
        c.leak_mw / c.clock_ghz,
        c.by_energy.of,
        c.by_rate.of,
        a,
        b,
        rest,
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
    for i in range(len(bound)):
        share, slower = a[by_energy[i]], b[by_rate[i]]
        c = leak[i] * slower / leak[k] if leak[k] > 0 else np.inf
        if c <= share:
            more = c * lower + (share - c) * without_leakage
        else:
            more = (
                share * lower
                + (max(leak[i] - share * leak[k] / slower, 0.0) if leak[k] > 0 else leak[i])
                * cycles[by_rate[i]]
            )
        bound[i] = max(bound[i], (more + rest[by_energy[i]]) * (1 - PRECISE))


@dataclass(frozen=True, slots=True)
class LowerBounds:
    """Lower bounds of a workload's E distinct einsums on a batch of machines."""

    einsums: tuple[Einsum, ...]
    occurrences: tuple[int, ...]  # of each einsum
    pj: Floats  # [E, kinds of prices] energy without leakage
    cycles: Floats  # [E, kinds of rates]

    def total(self, each: Floats) -> Floats:
        """Returns sums [n] over all occurrences of numbers [E, n] per einsum."""
        return np.asarray(sum(n * one for n, one in zip(self.occurrences, each, strict=True)))

    def at(self, c: MachineBatch, at: Ints) -> tuple[Floats, Floats]:
        """Returns energy with leakage, and cycles, [E, n] of the machines at positions `at`."""
        cycles = self.cycles[:, c.by_rate.of[at]]
        return self.pj[:, c.by_energy.of[at]] + c.leak_mw[at] * cycles / c.clock_ghz[at], cycles


def lower_bounds_of(c: MachineBatch, einsums: Sequence[Einsum], runs: Sequence[int]) -> LowerBounds:
    """Returns lower bounds of einsums on a batch of machines. runs: occurrences of each einsum."""
    each = [lower_bound_on(c, e) for e in einsums]
    return LowerBounds(
        tuple(einsums),
        tuple(runs),
        np.stack([one.pj for one in each]),
        np.stack([one.cycles for one in each]),
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
    share: float  # relative gap that was allowed


def table(c: MachineBatch, lower: LowerBounds, each: Sequence[SharedMappings], share: float) -> Table:
    """Returns the costs of a workload with shared mappings on every kind of machine.

    lower, each: lower bounds and shared mappings of its E distinct einsums.
    share: the relative gap that was allowed.
    """
    mappings = [(own.einsum, one) for own in each for one in own.mappings]
    choice, begun = np.empty((len(each), len(c)), np.int16), 0
    pj, cycles = np.empty((len(mappings), len(c.prices))), np.empty((len(mappings), len(c.times)))
    for i, own in enumerate(each):
        choice[i] = own.choice + begun
        begun += len(own.mappings)
    for i, (e, one) in enumerate(mappings):
        cost = cost_on(c, e, one)
        pj[i], cycles[i] = cost.pj, cost.cycles
    # with several distinct einsums, equal ones do not run back to back
    steady = (
        np.stack([initiation_intervals_on(c, e, one) for e, one in mappings]) if len(each) == 1 else cycles
    )
    return Table(
        lower,
        tuple(one for _, one in mappings),
        pj,
        cycles,
        steady,
        choice,
        np.stack([own.gaps for own in each]),
        share,
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


def sums_at(c: MachineBatch, t: Table, at: Ints) -> Sums:
    """Returns the totals on the machines at positions `at`.

    Raises Violated if a lower bound exceeds a cost.
    """
    choice, priced, paced, total = t.choice[:, at], c.by_energy.of[at], c.by_rate.of[at], t.lower_bounds.total
    cycles, (least, least_cycles) = t.cycles[choice, paced], t.lower_bounds.at(c, at)
    energy = t.pj[choice, priced] + c.leak_mw[at] * cycles / c.clock_ghz[at]
    if (wrong := np.flatnonzero((least > energy * (1 + PRECISE)).any(axis=1))).size:
        raise Violated(f"{t.lower_bounds.einsums[wrong[0]].name}: lower bound above the cost")
    to_bound = _relative_gap(energy, least)
    gaps = np.minimum(from_parts(t.gaps[:, at], t.share), to_bound)
    whole, whole_cycles, whole_least = total(energy), total(cycles), total(least)
    steady = whole_cycles if len(t.lower_bounds.einsums) > 1 else total(t.initiation_intervals[choice, paced])
    whole_to_bound = _relative_gap(whole, whole_least)
    gap = np.minimum(_relative_gap(whole, total(energy / (1 + gaps))), whole_to_bound)
    return Sums(
        whole,
        whole_cycles,
        steady,
        whole_least,
        total(least_cycles),
        np.where(gap > PRECISE, gap, 0.0),
        whole_to_bound,
        gaps,
    )
