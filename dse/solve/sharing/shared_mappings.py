"""Einsums in turn on machines that differ in prices, rates and clock only: mappings are found on some of them
and taken by all (docs/reuse.md, Many machines).

    energy = words . prices + leakage per cycle * cycles        words: of a mapping; cycles: of it at the
                                                                times of ports and operations

What fits one of the machines fits all. Of machine k nothing costs less than F_k, nor than G_k without
leakage, at prices p_k, leakage l_k per cycle, times t_k. On another machine (p, l, t) prices are at least a
p_k, a = min(p / p_k), and cycles of any mapping at least b = min(1, t / t_k) of those at t_k: they grow with
every time, and by a factor where all times do. So with c = l b / l_k nothing costs less there than

    c F_k + (a - c) G_k + (p - a p_k) . U             if c <= a
    a F_k + (l - a l_k / b) C + (p - a p_k) . U       else

U: actions of each kind that every mapping has; C: cycles that none beats on the machine. Every machine that
was solved bounds all others this way.
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
from dse.sim.counts.parts import action_pj
from dse.sim.einsum import bound_kernels
from dse.sim.einsum.bounds import lower_bound, needs, rates
from dse.sim.einsum.cost import cycles_of, elapsed_cycles, ports
from dse.sim.einsum.evaluate import PRECISE, EinsumCost, Violated
from dse.solve.sharing.shared_schedules import prices, times, unit
from hw.arch import Arch, FieldRole, Slot, slots
from hw.columns import Columns, alike
from workloads.arrays import Floats, Ints
from workloads.einsum import Einsum

# an einsum on each machine, at least energy
Solve = Callable[[Sequence[Arch]], list[EinsumCost | Infeasible]]
Bound = Callable[[Sequence[Arch]], list[float]]  # energy that no mapping costs less than, 0: not known
ROUND = 16  # machines that are solved together
STEPS = 128  # gaps are said in parts of the share, rounded up: few different numbers take little room
FINEST = 1 << 13  # parts of a whole
UNKNOWN = (1 << 16) - 1  # parts: nothing is known of a gap as large
MANY = 2048  # kinds of machines that a mapping is priced on at a time: what that takes of memory
Parts = NDArray[np.uint16]
GroupOf = NDArray[np.int32]


def batch_columns(arch: Arch, columns: Columns) -> Arch:
    """As `cost.batch_arch`, of machines that differ from one in prices, rates and clock alone. Leakage stands
    where one number says that of all instances.
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
    """Machines that are alike in something. columns: one of each kind; wide: the same, so many at a time as
    one machine of arrays; of [n]: the kind of every machine.
    """

    columns: Columns
    wide: list[Arch]
    of: GroupOf


@dataclass(frozen=True)
class MachineBatch:
    """n machines of one structure. first: one of them; arch: the i-th, on its own; leak_mw, clock_ghz [n].

    by_energy, by_rate: kinds of machines by energies per action, and by times of ports and operations. There
    are far fewer of either than machines, and what follows from them alone is found once for each.
    """

    first: Arch
    arch: Callable[[int], Arch]
    leak_mw: Floats
    clock_ghz: Floats
    by_energy: MachineGroups
    by_rate: MachineGroups

    @cached_property
    def prices(self) -> Floats:
        """[kinds, actions] per action."""
        return np.concatenate([_stack_columns(prices(some)[:-1]) for some in self.by_energy.wide])

    @cached_property
    def times(self) -> Floats:
        """[kinds, parts] of an action per level, of operations, and of what takes a cycle."""
        return np.concatenate([_stack_columns(times(some)) for some in self.by_rate.wide])

    @cached_property
    def digest(self) -> str:
        """Of all that an answer for these machines depends on."""
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
        """Machine i of the batch, built.

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
    """Of machines of one structure as columns. Raises ValueError where these do not say all that costs."""
    if first.layout_sensitive():
        raise ValueError(
            f"{first.name} describes lines, rows, banks or hops, which shared mappings do not price; "
            "leave out solver.sharing_gap"
        )

    def kinds(role: FieldRole) -> MachineGroups:
        rows = np.column_stack([columns.at(one) for one in slots(first, role)])
        some, of = alike(np.nan_to_num(rows, nan=-1.0))
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
    """Of one mapping, or of bounds: energy without leakage by the kind of prices, cycles by the kind of
    times.
    """

    pj: Floats
    cycles: Floats


def cost_on(c: MachineBatch, e: Einsum, found: EinsumCost) -> BatchCost:
    """As the evaluator has it, on all kinds of machines."""
    counted = [row for row in found.counts if row.action != "fold"]
    cycles = np.empty(len(c.times))
    pj = np.empty(len(c.prices))
    for i, some in enumerate(c.by_rate.wide):
        cycles[i * MANY : (i + 1) * MANY] = cycles_of(found.mapping, e, some)
    for i, some in enumerate(c.by_energy.wide):
        pj[i * MANY : (i + 1) * MANY] = sum(
            row.elems * action_pj((row.level, row.tensor, row.action), e, some) for row in counted
        )
    return BatchCost(pj, cycles)


def steady_on(c: MachineBatch, e: Einsum, found: EinsumCost) -> Floats:
    """Cycles of one of many equal einsums, by the kind of times."""
    return np.concatenate(
        [
            np.broadcast_to(
                elapsed_cycles(*ports(found.mapping, found.counts, e, some), steady=True),
                np.shape(some.clock_ghz),
            )
            for some in c.by_rate.wide
        ]
    )


def lower_bound_on(c: MachineBatch, e: Einsum) -> BatchCost:
    """What no mapping beats."""
    unleaking, runs = replace(c.by_energy.columns, leak_mw=np.zeros(len(c.prices))), ((e, 1.0),)
    return BatchCost(
        bound_kernels.sequential(runs, unleaking)[0], bound_kernels.sequential(runs, c.by_rate.columns)[1]
    )


def energy_of(c: MachineBatch, one: BatchCost) -> Floats:
    """[n]."""
    return np.asarray(one.pj[c.by_energy.of] + c.leak_mw * one.cycles[c.by_rate.of] / c.clock_ghz)


@dataclass(frozen=True, slots=True)
class SharedMappings:
    """What machines of a cell do with an einsum. mappings: as found on one of them; choice [n] of these; gaps
    [n]: how far above the optimum of the space, in parts of the share.
    """

    einsum: Einsum
    mappings: tuple[EinsumCost, ...]
    choice: NDArray[np.int16]
    gaps: Parts


def find_shared_mappings(
    c: MachineBatch, e: Einsum, solve: Solve, lower_bounds: Bound, share: float
) -> SharedMappings | Infeasible:
    """Mappings of an einsum for all machines: more are solved, the one furthest above what it might cost and
    others that are too far, until none is, by more than a share (above 0), but those that were solved. Which
    are follows from the list of machines alone.
    """
    least = lower_bound_on(c, e)
    bound = energy_of(c, least) * (1 - PRECISE)
    best = np.full(len(c), np.inf)
    choice = np.zeros(len(c), np.int16)
    found: dict[str, EinsumCost] = {}
    asked, rng, unleaking = np.zeros(len(c), np.bool_), Random(0), dict[int, float]()
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
            if (kind := int(c.by_energy.of[i])) not in unleaking
        }
        unleaking |= zip(new, lower_bounds(list(new.values())) if new else (), strict=True)
        for i, one in zip(own, answers, strict=True):
            assert isinstance(one, EinsumCost)
            known = one.energy_pj / (1 + one.optimality_gap), unleaking[int(c.by_energy.of[i])]
            raise_bounds(c, bound, i, *known, units, least.cycles)
    gaps = _relative_gap(best, bound)
    gaps[gaps <= 2 * PRECISE] = 0.0  # bounds are rounded down
    used, of_used = np.unique(choice, return_inverse=True)
    return SharedMappings(
        e, tuple(list(found.values())[k] for k in used), of_used.astype(np.int16), parts_of(gaps, share)
    )


def part_of(share: float) -> float:
    """In which gaps are said."""
    return share / min(STEPS, max(1, int(share * FINEST)))


def parts_of(gaps: Floats, share: float) -> Parts:
    """Gaps in parts, rounded up; those up to the share stay there."""
    return np.minimum(np.ceil(gaps / part_of(share)), UNKNOWN).astype(np.uint16)


def gap_of(parts: Parts, share: float) -> Floats:
    """The gaps that parts say."""
    return np.where(parts == UNKNOWN, np.inf, parts * part_of(share))


def units_of(c: MachineBatch, e: Einsum) -> Floats:
    """[actions] that every mapping has of each."""
    return np.array(
        [
            lower_bound(needs(e, c.first.word_bits), rates(unit(c.first, kind)))[0]
            for kind in range(c.prices.shape[1])
        ]
    )


def _relative_gap(value: Floats, lower: Floats) -> Floats:
    """As `evaluate.relative_gap`."""
    some, bounded = np.broadcast_to(lower, value.shape) > 0, np.where(value > 0, np.inf, 0.0)
    return np.where(
        some, np.maximum(np.divide(value, lower, out=np.ones_like(value), where=some) - 1, 0.0), bounded
    )


def raise_bounds(
    c: MachineBatch, bound: Floats, k: int, lower: float, unleaking: float, units: Floats, cycles: Floats
) -> None:
    """Raises bounds [n] of all machines to what nothing costs less than on each, from what nothing costs less
    than on the k-th, with and without leakage. cycles: that none beats, by the kind of times.
    """
    of, at = c.prices[c.by_energy.of[k]], c.times[c.by_rate.of[k]]
    asks, takes = of > 0, at > 0
    a = np.min(c.prices[:, asks] / of[asks], axis=1) if asks.any() else np.zeros(len(c.prices))
    rest = np.maximum(c.prices - a[:, None] * of, 0.0) @ units
    b = np.minimum(1.0, np.min(c.times[:, takes] / at[takes], axis=1))
    _raise(
        bound, c.leak_mw / c.clock_ghz, c.by_energy.of, c.by_rate.of, a, b, rest, cycles, k, lower, unleaking
    )


@njit(cache=True, nogil=True, error_model="numpy")
def _raise(
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
    unleaking: float,
) -> None:
    for i in range(len(bound)):
        share, slower = a[by_energy[i]], b[by_rate[i]]
        c = leak[i] * slower / leak[k] if leak[k] > 0 else np.inf
        if c <= share:
            more = c * lower + (share - c) * unleaking
        else:
            more = (
                share * lower
                + (max(leak[i] - share * leak[k] / slower, 0.0) if leak[k] > 0 else leak[i])
                * cycles[by_rate[i]]
            )
        bound[i] = max(bound[i], (more + rest[by_energy[i]]) * (1 - PRECISE))


@dataclass(frozen=True, slots=True)
class LowerBounds:
    """What none of a workload's E different einsums in turn costs less than on a cell. occurrences: how often
    each runs; pj, cycles [E, kinds]: as in `BatchCost`.
    """

    einsums: tuple[Einsum, ...]
    occurrences: tuple[int, ...]
    pj: Floats
    cycles: Floats

    def total(self, each: Floats) -> Floats:
        """Of numbers [E, n]."""
        return np.asarray(sum(n * one for n, one in zip(self.occurrences, each, strict=True)))

    def at(self, c: MachineBatch, at: Ints) -> tuple[Floats, Floats]:
        """Energy and cycles [E, n] of some machines."""
        cycles = self.cycles[:, c.by_rate.of[at]]
        return self.pj[:, c.by_energy.of[at]] + c.leak_mw[at] * cycles / c.clock_ghz[at], cycles


def lower_bounds_of(c: MachineBatch, einsums: Sequence[Einsum], runs: Sequence[int]) -> LowerBounds:
    """Lower bounds of some einsums for a batch of machines. runs: occurrences of each."""
    each = [lower_bound_on(c, e) for e in einsums]
    return LowerBounds(
        tuple(einsums),
        tuple(runs),
        np.stack([one.pj for one in each]),
        np.stack([one.cycles for one in each]),
    )


@dataclass(frozen=True, slots=True)
class Table:
    """A workload in turn on a cell. mappings: M of all einsums; pj, cycles, steady [M, kinds]: as in
    `BatchCost`, steady where there is one einsum alone; choice [E, n] of all mappings; gaps [E, n], in parts
    of the share.
    """

    lower_bounds: LowerBounds
    mappings: tuple[EinsumCost, ...]
    pj: Floats
    cycles: Floats
    steady: Floats
    choice: NDArray[np.int16]
    gaps: Parts
    share: float


def table(c: MachineBatch, lower: LowerBounds, each: Sequence[SharedMappings], share: float) -> Table:
    """The workload's costs with shared mappings, each costed on every machine of the batch.

    lower, each: bounds and mappings of the E different einsums; share: the relative gap that was allowed.
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
    # others stand between equal einsums of a network
    steady = np.stack([steady_on(c, e, one) for e, one in mappings]) if len(each) == 1 else cycles
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
    """Of a workload in turn on some machines, as `evaluate.sequential` adds up: totals [n], what none beats
    [n], gaps of its different einsums [E, n].
    """

    energy_pj: Floats
    latency_cycles: Floats
    initiation_interval_cycles: Floats
    bound_pj: Floats
    bound_cycles: Floats
    optimality_gap: Floats
    gap_to_bound: Floats
    gaps: Floats


def sums_at(c: MachineBatch, t: Table, at: Ints) -> Sums:
    """Raises Violated where a bound is above a cost."""
    choice, priced, paced, total = t.choice[:, at], c.by_energy.of[at], c.by_rate.of[at], t.lower_bounds.total
    cycles, (least, least_cycles) = t.cycles[choice, paced], t.lower_bounds.at(c, at)
    energy = t.pj[choice, priced] + c.leak_mw[at] * cycles / c.clock_ghz[at]
    if (wrong := np.flatnonzero((least > energy * (1 + PRECISE)).any(axis=1))).size:
        raise Violated(f"{t.lower_bounds.einsums[wrong[0]].name}: lower bound above the cost")
    to_bound = _relative_gap(energy, least)
    gaps = np.minimum(gap_of(t.gaps[:, at], t.share), to_bound)
    whole, whole_cycles, whole_least = total(energy), total(cycles), total(least)
    steady = whole_cycles if len(t.lower_bounds.einsums) > 1 else total(t.steady[choice, paced])
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
