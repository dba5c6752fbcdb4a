"""Unfused mappings that machines of one family share (`Arch.family`: equal but for prices, rates, clock,
capacities and PEs of arrays): they are searched on some machines and used on all (docs/reuse.md, Many
machines).

A mapping costs the same actions on every machine of a family that it fits: those with at least its
capacities and PEs. Its energy there is

    energy = actions . prices + leakage per cycle * cycles

where its cycles follow from the times of ports and operations. With the objective latency, its cost is its
cycles: no price, and 1 per cycle; with edp a cycle costs more than the leakage (shared_products.py). So each
mapping found is priced on all machines at once, and each lower bound found is one on all machines with at
most the capacities and PEs of the machine it was found for, once prices and times are compared (anchors.py).

What is asked for is the gap of a whole workload on each machine, (cost - bound) / bound of the sums over its
einsums. The machine with the largest gap is looked at next (`find_shared_mappings`), and of its einsums the
one that promises most for its effort: a search for a mapping that is cheaper than the best known one, or for
the proof that there is none (`search_below`). Searches are short at first, and longer where that was not
enough; the first is for the machine with the capacities of the largest one, so that its bound holds for all.
A short search that was of no use on one machine is not repeated on others with the same PEs and rates. What
is found depends on the machines given alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dse.mapping.constraints import minimal_mapping
from dse.mapping.nest import Infeasible, Mapping
from dse.run import doing
from dse.sim.counts.actions import UNPRICED, action_pj, elapsed_cycles
from dse.sim.counts.counts import Violated, footprints, nest_sums
from dse.sim.einsum import bound_kernels
from dse.sim.einsum.bounds import lower_bound, needs, rates
from dse.sim.einsum.cost import cycles_of, occupied_bits, ports
from dse.sim.einsum.evaluate import ROUNDING_GAP, EinsumCost, Problem, einsum_cost, pes_used
from dse.solve.sharing.anchors import Anchors, Prices, distinct_prices, no_anchors, raise_bounds, with_anchor
from dse.solve.sharing.shared_schedules import prices, times, unit
from hw.arch import Arch, FieldRole, Slot, slots
from hw.columns import Columns, group_equal_rows
from workloads.arrays import Bools, Floats, Ints
from workloads.einsum import Einsum

SharedObjective = Literal["energy", "latency", "edp"]  # what of shared mappings is least


class Improved(NamedTuple):
    """What a search for something cheaper than a known mapping found. Costs are pJ, or cycles with the
    objective latency.
    """

    mapping: Mapping | None  # a cheaper mapping; None: none was found
    bound: float  # lower bound of the cost of all mappings; 0: nothing is proven; inf: none fits
    ended: bool  # whether the effort ended before the search did


class Searches(NamedTuple):
    """How mappings of one einsum are searched on one machine."""

    # the mapping of lowest cost, with its certificate
    solve: Callable[[Arch], EinsumCost | Infeasible]
    # (machine, cost to beat, effort): effort counts storage nodes placed, and boxes bounded, at most
    improve: Callable[[Arch, float, int], Improved]
    # the mapping of least energy x latency of this einsum alone
    solve_product: Callable[[Arch], EinsumCost | Infeasible]


class Step(NamedTuple):
    """One search of the ladder that an einsum climbs on a machine."""

    of_largest: bool  # on a machine with this one's prices and PEs, and the largest capacities of all
    effort: int


LADDER = (Step(True, 400), *(Step(False, 1_600 * 4**i) for i in range(4)))
USEFUL_RISE = 0.05  # a search that finds no mapping is of use if it raises its bound by this share
FULL_EFFORT = 1_000_000  # what `Searches.solve`, the last step, counts as when steps are compared
# A search looks for mappings that are cheaper than the best known one by this share of the allowed gap:
# proofs of small gaps leave room for einsums whose proofs are hard. From LONG_EFFORT on it is the whole gap.
SHARE_OF_GAP = 0.25
LONG_EFFORT = 10_000
# Gaps are stored as whole numbers of parts, rounded up, which compress well: the allowed gap has STEPS
# parts, or fewer if a part would be smaller than 1 / FINEST.
STEPS = 128
FINEST = 1 << 13
UNKNOWN = (1 << 16) - 1  # this number of parts stands for an unknown gap
# choices of machines without a mapping of an einsum: none fits; it was not searched, as another does not fit
NONE_FITS, NOT_SEARCHED = -1, -2
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
    """n machines of one family, with V levels and D array dimensions.

    There are fewer kinds of prices and kinds of rates than machines. What depends on one of them alone is
    computed once per kind.
    """

    first: Arch
    arch: Callable[[int], Arch]  # returns the i-th machine
    leak_mw: Floats  # [n]
    clock_ghz: Floats  # [n]
    capacity_bits: Floats  # [n, V] inf where unbounded
    pes: Ints  # [n, D]
    by_energy: MachineGroups  # kinds by energies per action, and PEs
    by_rate: MachineGroups  # kinds by times of ports and operations, and PEs
    objective: SharedObjective = "energy"
    machines: dict[int, Arch] = field(default_factory=dict)  # by index, those built so far

    @cached_property
    def largest(self) -> Arch:
        """A machine with the largest capacities and PEs of all, on which every mapping fits."""
        return self.first.with_sizes(self.capacity_bits.max(axis=0), self.pes.max(axis=0))

    @cached_property
    def smallest(self) -> Arch:
        """A machine with the smallest capacities and PEs of all: what fits there fits on every machine."""
        return self.first.with_sizes(self.capacity_bits.min(axis=0), self.pes.min(axis=0))

    def no_larger(self, capacity_bits: Floats, pes: Ints) -> Bools:
        """Returns [n] which machines have at most these capacities [V] and PEs [D]."""
        return np.asarray((self.capacity_bits <= capacity_bits).all(axis=1) & (self.pes <= pes).all(axis=1))

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
        sha = hashlib.sha256(repr((self.first.family(), self.objective)).encode())
        for part in (
            self.leak_mw,
            self.clock_ghz,
            self.capacity_bits,
            self.pes,
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

        Raises ValueError if it is of another family than the first: mappings may not be shared then.
        """
        if i not in self.machines:
            arch = self.arch(i)
            if arch.family() != self.first.family():
                raise ValueError(
                    f"{arch.name} differs from machines that it shares mappings with in more than prices, "
                    "rates, clock, capacities and PEs; leave out solver.sharing_gap"
                )
            self.machines[i] = arch
        return self.machines[i]


def _stack_columns(columns: Sequence[Any]) -> Floats:
    return np.column_stack(np.broadcast_arrays(*columns)).astype(float)


def machine_batch(
    first: Arch, columns: Columns, arch: Callable[[int], Arch], objective: SharedObjective = "energy"
) -> MachineBatch:
    """Returns the batch of machines of one family, given as columns. Raises ValueError on machines with
    layouts or hops, whose prices are not in the columns.
    """
    if first.layout_sensitive():
        raise ValueError(
            f"{first.name} describes lines, rows, banks or hops, which shared mappings do not price; "
            "leave out solver.sharing_gap"
        )

    def kinds(role: FieldRole) -> MachineGroups:
        rows = np.column_stack([*(columns.column_at(slot) for slot in slots(first, role)), columns.sizes])
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

    return MachineBatch(
        first,
        arch,
        columns.leak_mw,
        columns.clock_ghz,
        columns.capacity_bits,
        columns.sizes,
        kinds("price"),
        kinds("rate"),
        objective,
    )


@dataclass(frozen=True, slots=True)
class BatchCost:
    """Cost of a mapping on all machines, or a lower bound."""

    pj: Floats  # [kinds of prices] energy without leakage
    cycles: Floats  # [kinds of rates]


def cost_on(batch: MachineBatch, e: Einsum, cost: EinsumCost) -> BatchCost:
    """Returns the evaluator's cost of a mapping on all kinds of machines."""
    cycles, sums = np.empty(len(batch.times)), nest_sums(cost.mapping, e, batch.largest)
    for i, arch in enumerate(batch.by_rate.batch_arches):
        cycles[i * KINDS_PER_STEP : (i + 1) * KINDS_PER_STEP] = cycles_of(sums, arch)
    return BatchCost(pj_on(batch, e, cost), cycles)


def pj_on(batch: MachineBatch, e: Einsum, cost: EinsumCost) -> Floats:
    """Returns the energy of a mapping without leakage, by kind of prices."""
    count_rows, pj = [row for row in cost.counts if row.action not in UNPRICED], np.empty(len(batch.prices))
    for i, arch in enumerate(batch.by_energy.batch_arches):
        pj[i * KINDS_PER_STEP : (i + 1) * KINDS_PER_STEP] = sum(
            row.elems * action_pj(row.key, e, arch) for row in count_rows
        )
    return pj


def fits_on(batch: MachineBatch, e: Einsum, mapping: Mapping) -> Bools:
    """Returns [n] on which machines a mapping fits all capacities and PEs."""
    arch, used = batch.largest, pes_used(mapping, e)
    placed = footprints(mapping, e, arch)
    capacity = np.array([occupied_bits(placed, level, e, arch) for level in arch.levels], float)
    pes = np.array([used.get(name, 1) for f in arch.fanouts for name, _ in f.dims], np.int64)
    return np.asarray((capacity <= batch.capacity_bits).all(axis=1) & (pes <= batch.pes).all(axis=1))


def initiation_intervals_on(batch: MachineBatch, e: Einsum, cost: EinsumCost) -> Floats:
    """Returns the initiation interval in cycles of an einsum that runs back to back, by kind of rates."""
    sums = nest_sums(cost.mapping, e, batch.largest)
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


def cycles_on(batch: MachineBatch, cost: BatchCost) -> Floats:
    """Returns the cycles on each machine [n]."""
    return cost.cycles[batch.by_rate.group_of]


def value_of(batch: MachineBatch, cost: BatchCost, pj_per_cycle: Floats) -> Floats:
    """Returns the cost on each machine [n]: cycles with the objective latency, else energy; and what cycles
    cost beside leakage, pj_per_cycle [n] (`Sharing`).
    """
    cycles = cycles_on(batch, cost)
    return (cycles if batch.objective == "latency" else energy_of(batch, cost)) + pj_per_cycle * cycles


class Priced(NamedTuple):
    """A mapping with its costs."""

    cost: EinsumCost  # on `MachineBatch.largest`
    on_batch: BatchCost
    fits: Bools  # [n] on which machines


def priced(batch: MachineBatch, e: Einsum, mapping: Mapping) -> Priced | Infeasible:
    """Returns a mapping of an einsum with its costs, or why it fits no machine of the batch."""
    cost = einsum_cost(Problem(batch.largest, e, batch.objective), mapping)
    if isinstance(cost, Infeasible):
        return cost
    return Priced(cost, cost_on(batch, e, cost), fits_on(batch, e, mapping))


@dataclass(frozen=True, slots=True)
class SharedMappings:
    """Mappings of an einsum that a batch of machines shares."""

    einsum: Einsum
    mappings: tuple[Priced, ...]
    choice: NDArray[np.int16]  # [n] mapping of each machine, NONE_FITS or NOT_SEARCHED
    gaps: Parts  # [n] optimality gap on each machine, in parts (`from_parts`)


@dataclass(slots=True)
class Sharing:
    """What is known while mappings of E einsums are searched for n machines and W workloads."""

    batch: MachineBatch
    einsums: Sequence[Einsum]
    occurrences: Floats  # [W, E] of each einsum in each workload
    lower: Sequence[BatchCost]  # lower bounds of each einsum, any mapping
    pj_per_cycle: Floats  # [n] what a cycle costs beside leakage: 0 but for the objective edp
    prices: Prices  # what anchors are compared by
    anchors: Anchors  # lower bounds found by searches
    seen: Ints  # [E, n] how many of an einsum's anchors `bound` has taken in
    best: Floats  # [E, n] cost of the best known mapping; inf: none is known
    best_pj: Floats  # [E, n] its energy, which decides between equal costs
    bound: Floats  # [E, n] lower bound of the cost of all mappings of the searched space
    choice: NDArray[np.int16]  # [E, n] the best known mapping, NONE_FITS or NOT_SEARCHED
    step: NDArray[np.uint8]  # [E, n] the next step of the ladder; more than len(LADDER): none is left
    is_closed: Bools  # [n] nothing is left to search, or something does not fit
    mappings: list[dict[str, Priced]]  # per einsum, by text


def find_shared_mappings(
    batch: MachineBatch,
    einsums: Sequence[Einsum],
    occurrences: Floats,
    searches: Sequence[Searches],
    allowed_gap: float,
) -> list[SharedMappings]:
    """Returns mappings of E einsums for all machines.

    The first mappings are those of the smallest machine, which fit on all. The machine whose gap is largest
    is looked at next (`_next_einsum`, `_take_step`), until no gap, as it is stored, is above `allowed_gap`,
    or nothing is left to search on machines where one is.

    occurrences: [W, E] of each einsum in each workload; the gap of each workload counts.
    searches: of each einsum.
    allowed_gap: must be above 0.
    """
    shared = start(batch, einsums, occurrences)
    add_first_mappings(shared, searches)
    search_until(shared, searches, stored_gap(allowed_gap))
    return [
        chosen(shared, number, shared.choice[number], gaps, allowed_gap)
        for number, gaps in enumerate(relative_gaps(shared.best, shared.bound))
    ]


def stored_gap(allowed_gap: float) -> float:
    """Returns the gap that is at most `allowed_gap` when it is stored, rounded up; of one part all is
    allowed.
    """
    return allowed_gap - part_size(allowed_gap) or allowed_gap


def add_first_mappings(shared: Sharing, searches: Sequence[Searches]) -> None:
    """Adds the mappings of the smallest machine, which fit on all."""
    smallest = shared.batch.smallest.with_more_leakage(float(shared.pj_per_cycle[0]))
    for number, of_einsum in enumerate(searches):
        for_all = of_einsum.solve(smallest)
        if isinstance(for_all, EinsumCost):
            add_mapping(shared, number, for_all.mapping)


def search_until(shared: Sharing, searches: Sequence[Searches], enough: float) -> None:
    """Searches on the machine whose gap is largest until no gap is above `enough`, or nothing is left to
    search on machines where one is.
    """
    gaps = _largest_gaps(shared)

    def far() -> str:
        within = int((gaps <= enough).sum())
        return f"{within} of {len(gaps)} within the share, gap {100 * gaps.max():.3g} % at most"

    while gaps[machine := int(np.argmax(gaps))] > enough:
        doing.say(far)
        # what anchors say is worked out for one machine at a time: it makes gaps smaller only
        if raise_bounds(machine, shared.anchors, shared.prices, shared.seen, shared.bound):
            gaps[machine] = _largest_gaps(shared, slice(machine, machine + 1))[0]
        elif (einsum := _next_einsum(shared, machine, enough)) is None:
            shared.is_closed[machine], gaps[machine] = True, 0.0
        else:
            known = len(shared.mappings[einsum])
            _take_step(shared, searches[einsum], machine, einsum, enough)
            # bounds of others are raised when they are looked at
            if len(shared.mappings[einsum]) > known or shared.choice[einsum, machine] == NONE_FITS:
                gaps = _largest_gaps(shared)


def start(batch: MachineBatch, einsums: Sequence[Einsum], occurrences: Floats) -> Sharing:
    """Returns what is known before any search."""
    shape, levels, dims = (len(einsums), len(batch)), batch.capacity_bits.shape[1], batch.pes.shape[1]
    lower = [lower_bound_on(batch, e) for e in einsums]
    fits = np.array([fits_on(batch, e, minimal_mapping(e, batch.first)) for e in einsums])
    return Sharing(
        batch,
        einsums,
        occurrences,
        lower,
        np.zeros(len(batch)),
        prices_of(batch, einsums, lower),
        no_anchors(len(einsums), levels, dims),
        np.zeros(shape, np.int64),
        np.full(shape, inf),
        np.full(shape, inf),
        np.array([value_of(batch, one, np.zeros(len(batch))) for one in lower]) * (1 - ROUNDING_GAP),
        np.where(fits, NOT_SEARCHED, NONE_FITS).astype(np.int16),
        np.zeros(shape, np.uint8),
        np.asarray(~fits.all(axis=0)),
        [{} for _ in einsums],
    )


def prices_of(batch: MachineBatch, einsums: Sequence[Einsum], lower: Sequence[BatchCost]) -> Prices:
    """Returns what anchors of einsums are compared by. lower: lower bounds of each einsum."""
    priced = batch.objective != "latency"
    kinds = len(batch.prices)
    return Prices(
        batch.by_energy.group_of.astype(np.int64),
        batch.by_rate.group_of.astype(np.int64),
        batch.leak_mw / batch.clock_ghz if priced else np.ones(len(batch)),
        batch.capacity_bits,
        batch.pes,
        distinct_prices(batch.prices) if priced else np.zeros((kinds, 0)),
        batch.times,
        np.stack([batch.prices @ units_of(batch, e) if priced else np.zeros(kinds) for e in einsums]),
        np.stack([one.cycles for one in lower]),
    )


def _largest_gaps(shared: Sharing, machines: slice = slice(None)) -> Floats:
    """Returns [n] the largest gap of any workload on each of the machines, 0 where nothing is left to do."""
    return np.where(shared.is_closed[machines], 0.0, _gaps_of_workloads(shared, machines).max(axis=0))


def _gaps_of_workloads(shared: Sharing, machines: slice = slice(None)) -> Floats:
    """Returns [W, n] the gap of each workload on each of the machines."""
    best, bound = shared.best[:, machines], shared.bound[:, machines]
    gaps = np.empty((len(shared.occurrences), best.shape[1]))
    for workload, occurrences in enumerate(shared.occurrences):
        its = np.flatnonzero(occurrences)  # 0 times an unknown energy (inf) would be no number
        gaps[workload] = relative_gaps(occurrences[its] @ best[its], occurrences[its] @ bound[its])
    return gaps


def _next_einsum(shared: Sharing, machine: int, allowed_gap: float) -> int | None:
    """Returns the einsum to search next on a machine: where the workload with the largest gap may gain most
    of what it lacks, for the effort of the next step; one without a mapping first. None: no step is left.
    """
    best, bound = shared.best[:, machine], shared.bound[:, machine]
    workload = int(np.argmax(_gaps_of_workloads(shared, slice(machine, machine + 1))))
    its = np.flatnonzero(shared.occurrences[workload])
    excess = np.zeros(len(best))
    excess[its] = shared.occurrences[workload, its] * (best[its] - bound[its])
    may_gain = np.where(shared.step[:, machine] <= len(LADDER), excess, 0.0)
    if (may_gain <= 0).all():
        return None
    if np.isinf(may_gain).any():
        return int(np.argmax(may_gain))
    lacks = excess.sum() - allowed_gap * (shared.occurrences[workload, its] @ bound[its])
    efforts = np.array([*(step.effort for step in LADDER), FULL_EFFORT, FULL_EFFORT], float)
    return int(np.argmax(np.minimum(may_gain, 2 * lacks) / efforts[shared.step[:, machine]]))


def _take_step(shared: Sharing, searches: Searches, machine: int, einsum: int, allowed_gap: float) -> None:
    """Searches an einsum on a machine by the next step of the ladder. A first mapping is searched to the end,
    and so is what all steps before did not bring within the gap.
    """
    batch, step = shared.batch, int(shared.step[einsum, machine])
    best, leak_pj = float(shared.best[einsum, machine]), float(shared.prices.leak_pj[machine])
    arch = batch.machine(machine)
    if shared.pj_per_cycle[machine]:
        arch = arch.with_more_leakage(float(shared.pj_per_cycle[machine]))
    own_bits, pes = batch.capacity_bits[machine], batch.pes[machine]
    if best == inf or step == len(LADDER):
        shared.step[einsum, machine] = step if step < len(LADDER) else step + 1
        answer = searches.solve(arch)
        if isinstance(answer, Infeasible):
            too_small = batch.no_larger(own_bits, pes)
            shared.is_closed |= too_small
            shared.choice[einsum, too_small] = NONE_FITS
            return
        add_mapping(shared, einsum, answer.mapping)
        bound = answer.latency_cycles if batch.objective == "latency" else answer.energy_pj
        bound /= 1 + answer.optimality_gap
        shared.anchors = with_anchor(shared.anchors, einsum, machine, leak_pj, bound, own_bits, pes)
        return
    of_largest, effort = LADDER[step]
    capacity_bits = batch.capacity_bits.max(axis=0) if of_largest else own_bits
    share = SHARE_OF_GAP if effort < LONG_EFFORT else 1.0
    found = searches.improve(arch.with_sizes(capacity_bits, pes), best / (1 + share * allowed_gap), effort)
    is_useful = found.mapping is not None or found.bound >= (1 + USEFUL_RISE) * float(
        shared.bound[einsum, machine]
    )
    # what ended by itself on this machine finds no more with more effort
    is_done = not found.ended and bool((capacity_bits == own_bits).all())
    shared.step[einsum, machine] = len(LADDER) if is_done else step + 1
    if found.ended and not is_useful and step + 1 < len(LADDER):
        alike = batch.by_rate.group_of == batch.by_rate.group_of[machine]
        shared.step[einsum, alike] = np.maximum(shared.step[einsum, alike], step + 1)
    if found.mapping is not None:
        add_mapping(shared, einsum, found.mapping)
    if 0 < found.bound < inf:
        shared.anchors = with_anchor(
            shared.anchors, einsum, machine, leak_pj, found.bound, capacity_bits, pes
        )


def add_mapping(shared: Sharing, einsum: int, mapping: Mapping) -> None:
    """Prices a mapping that is not known yet on all machines. It becomes the choice where it costs least."""
    known, e, batch = shared.mappings[einsum], shared.einsums[einsum], shared.batch
    if (text := str(mapping)) in known:
        return
    one = priced(batch, e, mapping)
    if isinstance(one, Infeasible):
        raise ValueError(f"a mapping of {e.name} does not fit: {one}")
    known[text] = one
    choose(shared, einsum, len(known) - 1, one)


def choose(shared: Sharing, einsum: int, number: int, one: Priced) -> None:
    """Chooses a mapping, by its number, on those machines where it fits and costs least."""
    batch = shared.batch
    energy = energy_of(batch, one.on_batch)
    value = value_of(batch, one.on_batch, shared.pj_per_cycle)
    best, best_pj = shared.best[einsum], shared.best_pj[einsum]
    is_better = one.fits & ((value < best) | ((value == best) & (energy < best_pj)))
    best[is_better], best_pj[is_better] = value[is_better], energy[is_better]
    shared.choice[einsum, is_better] = number


def chosen(
    shared: Sharing, einsum: int, choice: NDArray[np.int16], gaps: Floats, allowed_gap: float
) -> SharedMappings:
    """Returns the mappings of an einsum that machines use. choice, gaps: [n] by machine."""
    gaps = np.where(gaps <= 2 * ROUNDING_GAP, 0.0, gaps)  # bounds are rounded down by ROUNDING_GAP
    choice, costs = choice.copy(), list(shared.mappings[einsum].values())
    used, number = np.unique(choice[choice >= 0], return_inverse=True)
    choice[choice >= 0] = number
    return SharedMappings(
        shared.einsums[einsum], tuple(costs[k] for k in used), choice, to_parts(gaps, allowed_gap)
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


def objective_values(objective: SharedObjective, energy_pj: Floats, cycles: Floats) -> Floats:
    """Returns energies, latencies or their products, elementwise `evaluate.objective_value`."""
    return {"energy": energy_pj, "latency": cycles, "edp": energy_pj * cycles}[objective]


def relative_gaps(value: Floats, lower: Floats) -> Floats:
    """Returns the relative gaps of values to lower bounds, elementwise `evaluate.relative_gap`."""
    has_bound, unbounded_gap = np.broadcast_to(lower, value.shape) > 0, np.where(value > 0, np.inf, 0.0)
    return np.where(
        has_bound,
        np.maximum(np.divide(value, lower, out=np.ones_like(value), where=has_bound) - 1, 0.0),
        unbounded_gap,
    )


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
    """Costs of a workload of E distinct einsums, unfused, with shared mappings on a batch of n machines."""

    lower_bounds: LowerBounds
    mappings: tuple[EinsumCost, ...]  # of all einsums, those of one einsum next to each other
    choice: NDArray[np.int16]  # [E, n] number of the mapping, NONE_FITS or NOT_SEARCHED
    pj: Floats  # [E, n] energy of the chosen mapping without leakage; 0 where there is none
    cycles: Floats  # [E, n]
    # [E, n] initiation intervals if the workload has one distinct einsum; else equal to `cycles`
    initiation_intervals: Floats
    gaps: Parts  # [E, n] optimality gap, in parts
    allowed_gap: float  # relative gap that was allowed

    @property
    def einsums(self) -> tuple[Einsum, ...]:
        """[E] the distinct einsums."""
        return self.lower_bounds.einsums

    @property
    def fits(self) -> Bools:
        """[n] on which machines every einsum has a mapping."""
        return np.asarray((self.choice >= 0).all(axis=0))


def table(
    batch: MachineBatch, lower: LowerBounds, shared_mappings: Sequence[SharedMappings], allowed_gap: float
) -> Table:
    """Returns the costs of a workload with shared mappings on every machine.

    lower, shared_mappings: lower bounds and shared mappings of its E distinct einsums.
    allowed_gap: the relative gap that was allowed.
    """
    shape, offset = (len(shared_mappings), len(batch)), 0
    choice, (pj, cycles, intervals) = np.empty(shape, np.int16), np.zeros((3, *shape))
    for i, shared in enumerate(shared_mappings):
        choice[i] = shared.choice
        for k, mapping in enumerate(shared.mappings):
            machines = np.flatnonzero(shared.choice == k)
            choice[i, machines] = offset + k
            by_rate = batch.by_rate.group_of[machines]
            pj[i, machines] = mapping.on_batch.pj[batch.by_energy.group_of[machines]]
            cycles[i, machines] = mapping.on_batch.cycles[by_rate]
            # with several distinct einsums, equal ones do not run back to back
            if len(shared_mappings) == 1:
                intervals[i, machines] = initiation_intervals_on(batch, shared.einsum, mapping.cost)[by_rate]
        offset += len(shared.mappings)
    return Table(
        lower,
        tuple(mapping.cost for shared in shared_mappings for mapping in shared.mappings),
        choice,
        pj,
        cycles,
        intervals if len(shared_mappings) == 1 else cycles,
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
    total, cycles = costs.lower_bounds.total, costs.cycles[:, machines]
    lower_pj, lower_cycles = costs.lower_bounds.on_machines(batch, machines)
    energy = costs.pj[:, machines] + batch.leak_mw[machines] * cycles / batch.clock_ghz[machines]
    value, lower = (
        objective_values(batch.objective, *pair) for pair in ((energy, cycles), (lower_pj, lower_cycles))
    )
    if (violating := np.flatnonzero((lower > value * (1 + ROUNDING_GAP)).any(axis=1))).size:
        raise Violated(f"{costs.lower_bounds.einsums[violating[0]].name}: lower bound above the cost")
    gaps = from_parts(costs.gaps[:, machines], costs.allowed_gap)
    is_joint = batch.objective == "edp" and len(costs.lower_bounds.einsums) > 1
    if not is_joint:
        gaps = np.minimum(gaps, relative_gaps(value, lower))
    total_pj, total_cycles = total(energy), total(cycles)
    total_lower_pj, total_lower_cycles = total(lower_pj), total(lower_cycles)
    intervals = (
        total_cycles
        if len(costs.lower_bounds.einsums) > 1
        else total(costs.initiation_intervals[:, machines])
    )
    to_bound = relative_gaps(
        objective_values(batch.objective, total_pj, total_cycles),
        objective_values(batch.objective, total_lower_pj, total_lower_cycles),
    )
    # occurrences first, then the quotient, as `evaluate._sum_gap` does: equal to the last digit
    occurrences = np.array(costs.lower_bounds.occurrences)[:, None]
    least = np.asarray(sum(occurrences * value / (1 + gaps)))
    gap = gaps.max(axis=0) if is_joint else relative_gaps(total(value), least)
    gap = np.minimum(gap, to_bound)
    return Sums(
        total_pj,
        total_cycles,
        intervals,
        total_lower_pj,
        total_lower_cycles,
        np.where(gap > ROUNDING_GAP, gap, 0.0),
        to_bound,
        gaps,
    )
