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

from collections.abc import Callable, Iterable, Sequence
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
from dse.sim.cost import Price, price
from dse.sim.evaluate import PRECISE, EinsumCost, Violated
from hw.arch import Arch
from hw.columns import Columns, Floats, Ints
from workloads.einsum import Einsum

Solve = Callable[[Sequence[Arch]], list[EinsumCost | Infeasible]]  # an einsum on each machine, at least energy
Bound = Callable[[Sequence[Arch]], list[float]]  # energy that no mapping costs less than, 0: not known
ROUND = 16  # machines that are solved together
STEPS = 4096  # gaps are said in parts of this, rounded up: few different numbers take little room


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


@dataclass(frozen=True)
class Cell:
    """n machines of one structure. first: one of them; arch: the i-th, on its own."""

    first: Arch
    columns: Columns
    arch: Callable[[int], Arch]

    @cached_property
    def prices(self) -> Floats:
        """[n, kinds + 1] per action, and last of leakage per cycle."""
        return np.column_stack(np.broadcast_arrays(*prices(widened(self.first, self.columns)))).astype(float)

    @cached_property
    def times(self) -> Floats:
        """[n, parts] of an action per level, of operations, and of what takes a cycle."""
        return np.column_stack(np.broadcast_arrays(*times(widened(self.first, self.columns)))).astype(float)

    def solved(self, i: int) -> Arch:
        found = self.arch(i)
        if structure(found) != structure(self.first):
            raise ValueError(f"{found.name} differs from machines that it shares mappings with in more than prices, rates and clock; leave out solver.share")
        return found


@dataclass(frozen=True, slots=True)
class Shared:
    """What machines of a cell do with an einsum. mappings: as found on one of them; choice [n] of these; gaps [n]: how far above the optimum of the space."""

    einsum: Einsum
    mappings: tuple[EinsumCost, ...]
    choice: NDArray[np.int16]
    gaps: NDArray[np.float32]

    def proven(self, i: int, space: str, cost: EinsumCost) -> EinsumCost:
        """What the i-th machine's choice costs, with what is known of it."""
        return replace(cost, gap_in_space=float(self.gaps[i]), space=space)


def shared(cell: Cell, e: Einsum, solve: Solve, floors: Bound, share: float) -> Shared | Infeasible:
    """Mappings of an einsum for all machines: more are solved, the one furthest above what it might cost and others that are too far, until none is, by more
    than a share, but those that were solved. Which are follows from the list of machines alone."""
    least_pj, least_cycles = bound_kernels.in_turn(((e, 1.0),), cell.columns)
    bound, best, choice = least_pj * (1 - PRECISE), np.full(len(least_pj), np.inf), np.zeros(len(least_pj), np.int16)
    found: dict[str, EinsumCost] = {}
    asked, rng, unleaking = np.zeros(len(bound), np.bool_), Random(0), dict[bytes, float]()
    units = units_of(cell, e)

    while (open_ := np.flatnonzero(~asked & (_above(best, bound) > share))).size:
        worst = int(open_[np.argmax(_above(best, bound)[open_])]) if found else int(open_[0])
        own = [worst, *(i for i in rng.sample(open_.tolist(), min(ROUND, open_.size)) if i != worst)][:ROUND]
        asked[own] = True
        arches = [cell.solved(i) for i in own]
        answers = solve(arches)
        for one in answers:
            if isinstance(one, Infeasible):
                return one
            if str(one.mapping) not in found:
                energy = np.broadcast_to(_price(cell.first, cell.columns, e, one).energy_pj, len(best))
                better = energy < best
                best[better], choice[better] = energy[better], len(found)
                found[str(one.mapping)] = one
        new = {key: still(arch) for i, arch in zip(own, arches, strict=True) if (key := cell.prices[i, :-1].tobytes()) not in unleaking}
        unleaking |= zip(new, floors(list(new.values())) if new else (), strict=True)
        for i, one in zip(own, answers, strict=True):
            assert isinstance(one, EinsumCost)
            known = one.energy_pj / (1 + one.gap_in_space), unleaking[cell.prices[i, :-1].tobytes()]
            np.maximum(bound, bounded(cell, i, *known, units, least_cycles) * (1 - PRECISE), out=bound)
    gaps = _above(best, bound)
    gaps[gaps <= 2 * PRECISE] = 0.0  # bounds are rounded down
    return Shared(e, tuple(found.values()), choice, np.ceil(gaps * STEPS).astype(np.float32) / np.float32(STEPS))


def units_of(cell: Cell, e: Einsum) -> Floats:
    """[kinds] actions that every mapping has of each."""
    return np.array([floor(needs(e), rates(unit(structure(cell.first), kind)))[0] for kind in range(cell.prices.shape[1] - 1)])


def _above(value: Floats, least: Floats) -> Floats:
    """As `evaluate.above`."""
    some, bounded = np.broadcast_to(least, value.shape) > 0, np.where(value > 0, np.inf, 0.0)
    return np.where(some, np.maximum(np.divide(value, least, out=np.ones_like(value), where=some) - 1, 0.0), bounded)


def bounded(cell: Cell, k: int, least: float, unleaking: float, units: Floats, cycles: Floats) -> Floats:
    """What nothing costs less than on each machine, from what nothing costs less than on the k-th, with and without leakage."""
    of, leak = cell.prices[:, :-1], cell.prices[:, -1]
    asks, takes = of[k] > 0, cell.times[k] > 0
    a = np.min(of[:, asks] / of[k, asks], axis=1) if asks.any() else np.zeros(len(of))
    b = np.minimum(1.0, np.min(cell.times[:, takes] / cell.times[k, takes], axis=1))
    with np.errstate(divide="ignore", invalid="ignore"):
        c = leak * b / leak[k] if leak[k] > 0 else np.full(len(of), np.inf)
        more = np.where(c <= a, c * least + (a - c) * unleaking, a * least + np.maximum(leak - a * leak[k] / b, 0.0) * cycles)
    return np.asarray(np.nan_to_num(more, posinf=0.0) + np.maximum(of - a[:, None] * of[k], 0.0) @ units)


def _price(first: Arch, columns: Columns, e: Einsum, one: EinsumCost) -> Price:
    return price(one.mapping, one.counts, e, widened(first, columns))


@dataclass(frozen=True, slots=True)
class Sums:
    """Of a workload in turn on some machines, as `evaluate.in_turn` adds up: totals [n], gaps of its different einsums [einsums, n]."""

    energy_pj: Floats
    latency_cycles: Floats
    steady_cycles: Floats
    gap_in_space: Floats
    gap_to_bound: Floats
    gaps: Floats


def summed_at(cell: Cell, runs: Sequence[tuple[Shared, int]], at: Ints) -> Sums:
    """runs: how often each of the different einsums runs. Raises Violated where a bound is above a cost."""
    columns, found = cell.columns.take(at), []
    for own, often in runs:
        energy, cycles, steady = priced_at(cell, own, at)
        least, _ = bound_kernels.in_turn(((own.einsum, 1.0),), columns)
        to_bound = _above(energy, least)
        if (least > energy * (1 + PRECISE)).any():
            raise Violated(f"{own.einsum.name}: lower bound above the cost")
        found.append((often, energy, cycles, steady, least, to_bound, np.minimum(own.gaps[at].astype(float), to_bound)))

    def total(parts: Iterable[Floats]) -> Floats:
        return np.asarray(sum(parts))

    energy, cycles = total(n * pj for n, pj, *_ in found), total(n * own for n, _, own, *_ in found)
    steady = cycles if len(found) > 1 else total(n * own for n, _, _, own, *_ in found)
    to_bound = _above(energy, total(n * least for n, *_, least, _, _ in found))
    gap = np.minimum(_above(energy, total(n * (pj / (1 + own)) for n, pj, *_, own in found)), to_bound)
    return Sums(energy, cycles, steady, np.where(gap > PRECISE, gap, 0.0), to_bound, np.array([own for *_, own in found]))


def priced_at(cell: Cell, own: Shared, at: Ints) -> tuple[Floats, Floats, Floats]:
    """Energy, cycles, and cycles of one of many equal einsums, of what some machines chose: as the evaluator prices each."""
    found = np.empty((3, len(at)))
    for k in np.unique(own.choice[at]):
        rows = np.flatnonzero(own.choice[at] == k)
        p = _price(cell.first, cell.columns.take(at[rows]), own.einsum, own.mappings[k])
        found[:, rows] = p.energy_pj, p.latency_cycles, p.steady_cycles
    return found[0], found[1], found[2]
