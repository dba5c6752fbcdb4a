"""Einsums in turn on machines that differ in prices, rates and clock only: mappings are found on some of them and taken by all (docs/reuse.md, Many machines).

    energy = words . prices + leakage per cycle * cycles        words: of a mapping; cycles: of it at the times of ports and operations

What fits one of the machines fits all. Of machine k nothing costs less than F_k, nor than G_k without leakage, at prices p_k, leakage l_k per cycle, times t_k.
On another machine (p, l, t) prices are at least a p_k, a = min(p / p_k), and cycles of any mapping at least b = min(1, t / t_k) of those at t_k: they grow with
every time, and by a factor where all times do. So with c = l b / l_k nothing costs less there than

    c F_k + (a - c) G_k + (p - a p_k) . U             if c <= a
    a F_k + (l - a l_k / b) C + (p - a p_k) . U       else

U: actions of each kind that every mapping has; C: cycles that none beats on the machine. Every machine that was solved bounds all others this way.
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

from dse.nest import Infeasible
from dse.reuse.family import prices, still, structure, times, unit
from dse.sim import bound_kernels
from dse.sim.bounds import floor, needs, rates
from dse.sim.cost import ports, taken
from dse.sim.evaluate import PRECISE, EinsumCost, Violated
from dse.sim.parts import action_pj
from hw.arch import Arch
from hw.columns import Columns, Floats, Ints, alike
from workloads.einsum import Einsum

Solve = Callable[[Sequence[Arch]], list[EinsumCost | Infeasible]]  # an einsum on each machine, at least energy
Bound = Callable[[Sequence[Arch]], list[float]]  # energy that no mapping costs less than, 0: not known
ROUND = 16  # machines that are solved together
STEPS = 1024  # gaps are said in parts of this, rounded up: few different numbers take little room


def widened(arch: Arch, columns: Columns) -> Arch:
    """As `cost.together`, of machines that differ from one in prices, rates and clock alone. Leakage stands where one number says that of all instances."""
    def several(part: Any, **given: object) -> Any:
        return replace(part, **given)

    levels = tuple(several(level, **{name: getattr(columns, name)[:, v] for name in ("read_pj", "write_pj", "bandwidth")}, leak_mw=0.0)
                   for v, level in enumerate(arch.levels))
    names = ["mac_pj", "alu_pj", "merge_pj", "ops_per_cycle", *(["alu_per_cycle"] if arch.compute.alu_per_cycle else [])]
    lane = several(arch.compute, **{name: getattr(columns, name) for name in names}, leak_mw=0.0, vector_leak_mw=columns.leak_mw)
    found: Arch = several(arch, levels=levels, compute=lane, clock_ghz=columns.clock_ghz)
    return found


@dataclass(frozen=True, slots=True)
class Kinds:
    """Machines that are alike in something. wide: one of each kind, as one machine of arrays; columns: of these; of [n]: the kind of every machine."""

    wide: Arch
    columns: Columns
    of: NDArray[np.int32]


@dataclass(frozen=True)
class Cell:
    """n machines of one structure. first: one of them; arch: the i-th, on its own; leak_mw, clock_ghz [n].

    priced, paced: kinds of machines by energies per action, and by times of ports and operations. There are far fewer of either than machines, and what follows
    from them alone is found once for each.
    """

    first: Arch
    arch: Callable[[int], Arch]
    leak_mw: Floats
    clock_ghz: Floats
    priced: Kinds
    paced: Kinds

    @cached_property
    def prices(self) -> Floats:
        """[kinds, actions] per action."""
        return _stacked(prices(self.priced.wide)[:-1])

    @cached_property
    def times(self) -> Floats:
        """[kinds, parts] of an action per level, of operations, and of what takes a cycle."""
        return _stacked(times(self.paced.wide))

    @cached_property
    def digest(self) -> str:
        """Of all that an answer for these machines depends on."""
        found = hashlib.sha256(repr(structure(self.first)).encode())
        for part in (self.leak_mw, self.clock_ghz, self.prices, self.priced.of, self.times, self.paced.of):
            found.update(np.ascontiguousarray(part).tobytes())
        return found.hexdigest()

    def __len__(self) -> int:
        return len(self.leak_mw)

    def solved(self, i: int) -> Arch:
        found = self.arch(i)
        if structure(found) != structure(self.first):
            raise ValueError(f"{found.name} differs from machines that it shares mappings with in more than prices, rates and clock; leave out solver.share")
        return found


def _stacked(columns: Sequence[Any]) -> Floats:
    return np.column_stack(np.broadcast_arrays(*columns)).astype(float)


def cell(first: Arch, columns: Columns, arch: Callable[[int], Arch]) -> Cell:
    """Of machines of one structure as columns."""
    def kinds(*names: str) -> Kinds:
        rows = np.column_stack([getattr(columns, name) for name in names])
        some, of = alike(np.nan_to_num(rows, nan=-1.0))
        own = columns.take(some)
        return Kinds(widened(first, own), own, of.astype(np.int32))

    return Cell(first, arch, columns.leak_mw, columns.clock_ghz, kinds("read_pj", "write_pj", "mac_pj", "alu_pj", "merge_pj"),
                kinds("bandwidth", "ops_per_cycle", "alu_per_cycle"))


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one mapping, or of bounds: energy without leakage by the kind of prices; cycles, and those of one of many equal einsums, by the kind of times."""

    pj: Floats
    cycles: Floats
    steady: Floats


def cost_on(c: Cell, e: Einsum, found: EinsumCost) -> Cost:
    """As the evaluator has it, on all kinds of machines."""
    own, waits = ports(found.mapping, found.counts, e, c.paced.wide)
    cycles, steady = (np.broadcast_to(taken(own, waits, steady=often), len(c.times)) for often in (False, True))
    pj = sum(row.elems * action_pj((row.level, row.tensor, row.action), e, c.priced.wide) for row in found.counts if row.action != "enter")
    return Cost(np.broadcast_to(np.asarray(pj, float), len(c.prices)), cycles, steady)


def least_on(c: Cell, e: Einsum) -> Cost:
    """What no mapping beats."""
    still_ = replace(c.priced.columns, leak_mw=np.zeros(len(c.prices)))
    cycles = bound_kernels.in_turn(((e, 1.0),), c.paced.columns)[1]
    return Cost(bound_kernels.in_turn(((e, 1.0),), still_)[0], cycles, cycles)


def energy_of(c: Cell, one: Cost) -> Floats:
    """[n]."""
    return np.asarray(one.pj[c.priced.of] + c.leak_mw * one.cycles[c.paced.of] / c.clock_ghz)


@dataclass(frozen=True, slots=True)
class Shared:
    """What machines of a cell do with an einsum. mappings: as found on one of them; choice [n] of these; gaps [n]: how far above the optimum of the space, in
    parts of STEPS."""

    einsum: Einsum
    mappings: tuple[EinsumCost, ...]
    choice: NDArray[np.int16]
    gaps: NDArray[np.uint32]


def shared(c: Cell, e: Einsum, solve: Solve, floors: Bound, share: float) -> Shared | Infeasible:
    """Mappings of an einsum for all machines: more are solved, the one furthest above what it might cost and others that are too far, until none is, by more
    than a share, but those that were solved. Which are follows from the list of machines alone."""
    least = least_on(c, e)
    bound, best, choice = energy_of(c, least) * (1 - PRECISE), np.full(len(c), np.inf), np.zeros(len(c), np.int16)
    found: dict[str, EinsumCost] = {}
    asked, rng, unleaking = np.zeros(len(c), np.bool_), Random(0), dict[int, float]()
    units = units_of(c, e)

    while (open_ := np.flatnonzero(~asked & ((far := _above(best, bound)) > share))).size:
        worst = int(open_[np.argmax(far[open_])]) if found else int(open_[0])
        own = [worst, *(i for i in rng.sample(open_.tolist(), min(ROUND, open_.size)) if i != worst)][:ROUND]
        asked[own] = True
        arches = [c.solved(i) for i in own]
        answers = solve(arches)
        for one in answers:
            if isinstance(one, Infeasible):
                return one
            if str(one.mapping) not in found:
                energy = energy_of(c, cost_on(c, e, one))
                better = energy < best
                best[better], choice[better] = energy[better], len(found)
                found[str(one.mapping)] = one
        new = {kind: still(arch) for i, arch in zip(own, arches, strict=True) if (kind := int(c.priced.of[i])) not in unleaking}
        unleaking |= zip(new, floors(list(new.values())) if new else (), strict=True)
        for i, one in zip(own, answers, strict=True):
            assert isinstance(one, EinsumCost)
            known = one.energy_pj / (1 + one.gap_in_space), unleaking[int(c.priced.of[i])]
            np.maximum(bound, bounded(c, i, *known, units, least.cycles) * (1 - PRECISE), out=bound)
    gaps = _above(best, bound)
    gaps[gaps <= 2 * PRECISE] = 0.0  # bounds are rounded down
    used, of_used = np.unique(choice, return_inverse=True)
    return Shared(e, tuple(list(found.values())[k] for k in used), of_used.astype(np.int16), np.ceil(gaps * STEPS).astype(np.uint32))


def units_of(c: Cell, e: Einsum) -> Floats:
    """[actions] that every mapping has of each."""
    return np.array([floor(needs(e), rates(unit(structure(c.first), kind)))[0] for kind in range(c.prices.shape[1])])


def _above(value: Floats, least: Floats) -> Floats:
    """As `evaluate.above`."""
    some, bounded = np.broadcast_to(least, value.shape) > 0, np.where(value > 0, np.inf, 0.0)
    return np.where(some, np.maximum(np.divide(value, least, out=np.ones_like(value), where=some) - 1, 0.0), bounded)


def bounded(c: Cell, k: int, least: float, unleaking: float, units: Floats, cycles: Floats) -> Floats:
    """What nothing costs less than on each machine [n], from what nothing costs less than on the k-th, with and without leakage. cycles: that none beats, by
    the kind of times."""
    of, at = c.prices[c.priced.of[k]], c.times[c.paced.of[k]]
    asks, takes, leak = of > 0, at > 0, c.leak_mw[k] / c.clock_ghz[k]
    of_prices = np.min(c.prices[:, asks] / of[asks], axis=1) if asks.any() else np.zeros(len(c.prices))
    rest = np.maximum(c.prices - of_prices[:, None] * of, 0.0) @ units
    a, b = of_prices[c.priced.of], np.minimum(1.0, np.min(c.times[:, takes] / at[takes], axis=1))[c.paced.of]
    leaks = c.leak_mw / c.clock_ghz
    with np.errstate(divide="ignore", invalid="ignore"):
        of_leak = leaks * b / leak if leak > 0 else np.full(len(c), np.inf)
        more = np.where(of_leak <= a, of_leak * least + (a - of_leak) * unleaking,
                        a * least + np.maximum(leaks - a * leak / b, 0.0) * cycles[c.paced.of])
    return np.asarray(np.nan_to_num(more, posinf=0.0) + rest[c.priced.of])


@dataclass(frozen=True, slots=True)
class Least:
    """What none of a workload's E different einsums in turn costs less than on a cell. runs: how often each runs; pj, cycles [E, kinds]: as in `Cost`."""

    einsums: tuple[Einsum, ...]
    runs: tuple[int, ...]
    pj: Floats
    cycles: Floats

    def total(self, each: Floats) -> Floats:
        """Of numbers [E, n]."""
        return np.asarray(sum(n * one for n, one in zip(self.runs, each, strict=True)))

    def at(self, c: Cell, at: Ints) -> tuple[Floats, Floats]:
        """Energy and cycles [E, n] of some machines."""
        cycles = self.cycles[:, c.paced.of[at]]
        return self.pj[:, c.priced.of[at]] + c.leak_mw[at] * cycles / c.clock_ghz[at], cycles


def least_of(c: Cell, einsums: Sequence[Einsum], runs: Sequence[int]) -> Least:
    each = [least_on(c, e) for e in einsums]
    return Least(tuple(einsums), tuple(runs), np.stack([one.pj for one in each]), np.stack([one.cycles for one in each]))


@dataclass(frozen=True, slots=True)
class Table:
    """A workload in turn on a cell. mappings: M of all einsums; pj, cycles, steady [M, kinds]: as in `Cost`; choice [E, n] of all mappings; gaps [E, n] in
    parts of STEPS."""

    least: Least
    mappings: tuple[EinsumCost, ...]
    pj: Floats
    cycles: Floats
    steady: Floats
    choice: NDArray[np.int16]
    gaps: NDArray[np.uint32]


def table(c: Cell, least: Least, each: Sequence[Shared]) -> Table:
    costs = [cost_on(c, own.einsum, one) for own in each for one in own.mappings]
    begun = np.cumsum([0, *(len(own.mappings) for own in each)])[:-1]
    choice = np.stack([(own.choice + at).astype(np.int16) for own, at in zip(each, begun.tolist(), strict=True)])
    pj, cycles, steady = (np.stack([getattr(one, name) for one in costs]) for name in ("pj", "cycles", "steady"))
    return Table(least, tuple(one for own in each for one in own.mappings), pj, cycles, steady, choice, np.stack([own.gaps for own in each]))


@dataclass(frozen=True, slots=True)
class Sums:
    """Of a workload in turn on some machines, as `evaluate.in_turn` adds up: totals [n], what none beats [n], gaps of its different einsums [E, n]."""

    energy_pj: Floats
    latency_cycles: Floats
    steady_cycles: Floats
    least_pj: Floats
    least_cycles: Floats
    gap_in_space: Floats
    gap_to_bound: Floats
    gaps: Floats


def summed_at(c: Cell, t: Table, at: Ints) -> Sums:
    """Raises Violated where a bound is above a cost."""
    choice, priced, paced, total = t.choice[:, at], c.priced.of[at], c.paced.of[at], t.least.total
    cycles, (least, least_cycles) = t.cycles[choice, paced], t.least.at(c, at)
    energy = t.pj[choice, priced] + c.leak_mw[at] * cycles / c.clock_ghz[at]
    if (wrong := np.flatnonzero((least > energy * (1 + PRECISE)).any(axis=1))).size:
        raise Violated(f"{t.least.einsums[wrong[0]].name}: lower bound above the cost")
    to_bound = _above(energy, least)
    gaps = np.minimum(t.gaps[:, at] / STEPS, to_bound)
    whole, whole_cycles, whole_least = total(energy), total(cycles), total(least)
    steady = whole_cycles if len(t.least.einsums) > 1 else total(t.steady[choice, paced])
    whole_to_bound = _above(whole, whole_least)
    gap = np.minimum(_above(whole, total(energy / (1 + gaps))), whole_to_bound)
    return Sums(whole, whole_cycles, steady, whole_least, total(least_cycles), np.where(gap > PRECISE, gap, 0.0), whole_to_bound, gaps)
