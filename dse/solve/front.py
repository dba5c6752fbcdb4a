"""Fronts of unfused workloads on one machine: choices of one mapping per distinct einsum, by total energy and
total latency (docs/solvers.md).

Both are sums over the einsums, weighed by occurrences; leakage over the latency of an einsum is part of its
energy. So covers of the einsums add up: what covers each einsum within a gap covers the workload within it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf, log, sqrt

import numpy as np

from dse.mapper.exact.covers import Cover, covers_on
from dse.mapper.exact.optimal import optimal_on
from dse.mapping.constraints import Constraints, dataflow
from dse.mapping.nest import Infeasible
from dse.mapping.searched import ALL_MAPPINGS
from dse.run import deadline
from dse.sim.einsum.evaluate import ROUNDING_GAP, EinsumCost, Problem, evaluate_unfused, relative_gap
from dse.solve.options import SolverOptions
from hw.arch import Arch
from workloads.arrays import Floats, Ints
from workloads.graph import Unique

MAX_EXACT = 2_000  # partial sums up to which none is left out, unless another one dominates it
MAX_SUMS = 50_000  # partial sums, at most
ROUNDS = 8  # rounds of `lower_products`, at most
Chosen = tuple[list[list[EinsumCost]], float]  # choices, each one mapping per einsum; their gap


def fronts_on(
    arches: Sequence[Arch], groups: Sequence[Unique], options: SolverOptions
) -> list[Chosen | Infeasible]:
    """Returns the front of a workload on each of many machines, least energy first: for every choice of one
    mapping per distinct einsum out of the searched spaces, a choice of the front has at most (1 + gap) times
    its energy and at most (1 + gap) times its latency.

    Half of the gap (in logarithms) is for the covers of the einsums, half for sums that are left out.
    """
    parts = [(1 + options.gap) ** share - 1 for share in (1 / 2, 1 / 4, 1 / 4)]
    covers: list[list[Cover]] = [[] for _ in arches]
    infeasible: dict[int, Infeasible] = {}
    for group in groups:
        for rules, positions in _by_constraints(arches, group, options).items():
            own = [j for j in positions if j not in infeasible]
            problems = [Problem(arches[j], group.einsum, "energy") for j in own]
            for j, one in zip(
                own, covers_on(problems, options.factors, rules, parts[0]) if own else (), strict=True
            ):
                if isinstance(one, Infeasible):
                    infeasible[j] = one
                else:
                    covers[j].append(one)
    return [
        infeasible[j] if j in infeasible else _sums(own, [group.occurrences for group in groups], *parts[1:])
        for j, own in enumerate(covers)
    ]


def _by_constraints(
    arches: Sequence[Arch], group: Unique, options: SolverOptions
) -> dict[Constraints, list[int]]:
    """Positions of the machines by the constraints that a dataflow sets on an einsum's mappings there."""
    found: dict[Constraints, list[int]] = {}
    for j, arch in enumerate(arches):
        found.setdefault(dataflow(options.dataflow, group.einsum, arch), []).append(j)
    return found


def _sums(covers: Sequence[Cover], occurrences: Sequence[int], of_sums: float, of_rows: float) -> Chosen:
    """The choices that cover all sums of the covers' members, and their gap: that of the covers, then
    `of_sums` at most of partial sums that are left out, then `of_rows` at most of rows that are.
    """
    step = (1 + of_sums) ** (1 / max(len(covers) - 1, 1))
    sums, choices, left_out = np.zeros((1, 2)), np.zeros((1, 0), np.int64), 1.0
    for cover, n in zip(covers, occurrences, strict=True):
        own = n * np.array([(one.energy_pj, one.latency_cycles) for one in cover.costs])
        pairs = (sums[:, None, :] + own[None, :, :]).reshape(-1, 2)
        kept, factor = thin(pairs, step)
        sums, left_out = pairs[kept], left_out * factor
        choices = np.column_stack([choices[kept // len(own)], kept % len(own)])
    listed = covering_rows(sums, of_rows)
    rows = [
        [cover.costs[i] for cover, i in zip(covers, row, strict=True)] for row in choices[listed].tolist()
    ]
    rest = left_out * (1 + (of_rows if len(listed) < len(sums) else 0.0))
    gap = (1 + covers_gap(covers, occurrences)) * rest - 1
    return rows, gap if gap > 10 * ROUNDING_GAP else 0.0


def covers_gap(covers: Sequence[Cover], occurrences: Sequence[int]) -> float:
    """Returns the gap within which sums of covers' members cover all sums of mappings: the largest gap of the
    covers; or what their members take more than any mapping at most, over the least that all mappings take.
    """

    def share(more: Sequence[float], least: Sequence[float]) -> float:
        total_more, total_least = (
            sum(n * one for n, one in zip(occurrences, column, strict=True)) for column in (more, least)
        )
        return relative_gap(total_least + total_more, total_least)

    return min(
        max(one.gap for one in covers),
        max(
            share([one.more_pj for one in covers], [one.least_pj for one in covers]),
            share([one.more_cycles for one in covers], [one.least_cycles for one in covers]),
        ),
    )


def thin(sums: Floats, step: float) -> tuple[Ints, float]:
    """Returns which sums [N, 2] are kept, least energy first, and a factor: each of the others has at least
    1 / factor of the energy, and of the latency, of a kept one.

    Up to MAX_EXACT that nothing dominates are all kept (factor 1). Of more, the cheapest of those whose
    latencies are within `step` of each other, or the fastest of those whose energies are, whichever leaves
    fewer; within larger steps where these are more than MAX_SUMS.
    """
    order = np.lexsort((sums[:, 1], sums[:, 0]))
    latency = sums[order, 1]
    kept = order[np.r_[True, latency[1:] < np.minimum.accumulate(latency)[:-1]]]
    limit = MAX_EXACT if step > 1 else MAX_SUMS
    if len(kept) <= limit:
        return kept, 1.0
    step = max(step, 1 + 1e-6)
    while True:
        energy_cell, latency_cell = (np.floor(np.log(sums[kept, i]) / log(step)) for i in range(2))
        cheapest = np.r_[True, latency_cell[1:] != latency_cell[:-1]]
        fastest = np.r_[energy_cell[1:] != energy_cell[:-1], True]
        mask = cheapest if cheapest.sum() < fastest.sum() else fastest
        mask[[0, -1]] = True  # the ends of the front
        if mask.sum() <= MAX_SUMS:
            return kept[mask], step
        step = step**2


def covering_rows(sums: Floats, gap: float) -> Ints:
    """Returns the fewest rows of a front that cover it within a gap, and its two ends.

    sums: [N, 2] energy and latency, by rising energy and falling latency. From the cheapest on, the fastest
    row is taken whose energy is at most (1 + gap) times that of the first row not covered yet.
    """
    energy, latency, last = sums[:, 0], sums[:, 1], len(sums) - 1
    listed, first = [0], 0
    while first <= last:
        row = int(np.searchsorted(energy, energy[first] * (1 + gap), "right")) - 1
        covered = int(np.searchsorted(-latency, -latency[row] / (1 + gap), "right"))
        listed.append(row)
        first = max(covered, row + 1)
    return np.unique([*listed, last])


def lower_products(
    arches: Sequence[Arch],
    groups: Sequence[Unique],
    options: SolverOptions,
    found: Sequence[Sequence[EinsumCost]],
    rounds: int = ROUNDS,
) -> list[list[EinsumCost]]:
    """Returns choices of least energy x latency of the workload, never above those found, with the gaps of
    their einsums (`EinsumCost.weighed_by`), on machines that price neither layouts nor hops.

    found: of each machine, the mapping of least energy x latency of each einsum by itself
    rounds: at most; 0: the choices found, with their gaps

    A choice of energy E and latency L is replaced by one with less E + k L, where k = E / L:

        E' + k L' <= E + k L = 2 E    =>    E' L' <= (E' + k L')^2 / (4 k) <= E L

    The least E_i + k L_i of an einsum is the least energy on a machine that leaks k pJ per cycle more. Where
    a choice is its own replacement these minima bound all others (`evaluate._gap_of_sum`). Where that bound
    is more than the gap below, the least product on the front counts, and what the front proves.
    """
    states = [_Product(groups, list(own)) for own in found]
    for _ in range(rounds):
        now = [j for j, one in enumerate(states) if one.improves]
        if not now or deadline.has_passed():
            break
        leaky = {j: _with_leakage(arches[j], states[j].set_ratio()) for j in now}
        answers: dict[int, list[EinsumCost | Infeasible]] = {j: [] for j in now}
        for group in groups:
            for rules, positions in _by_constraints([arches[j] for j in now], group, options).items():
                own = [now[position] for position in positions]
                problems = [Problem(leaky[j], group.einsum, "energy") for j in own]
                for j, one in zip(
                    own, optimal_on(problems, options.factors, rules, options.gap), strict=True
                ):
                    answers[j].append(one)
        for j in now:
            states[j].replace_by(arches[j], answers[j])
    wide = [j for j, one in enumerate(states) if one.gap() > options.gap * (1 + ROUNDING_GAP)]
    if wide and rounds and not deadline.has_passed():
        own_options = replace(options, gap=(1 + options.gap) ** 0.5 - 1)
        for j, front in zip(wide, fronts_on([arches[j] for j in wide], groups, own_options), strict=True):
            if not isinstance(front, Infeasible):
                states[j].take_front(*front)
    return [one.choice() for one in states]


@dataclass(slots=True)
class _Product:
    """The choice of least energy x latency on one machine so far, and bounds on what others cost."""

    groups: Sequence[Unique]
    best: list[EinsumCost]
    ratio: float = 0.0  # pJ per cycle, at which `least` holds
    least: list[float] = field(default_factory=list)  # lower bounds on E_i + ratio L_i
    uniform_gap: float = inf  # of the product, as a front proves it
    improves: bool = True  # whether the last round found a lower product

    def totals(self, choice: Sequence[EinsumCost]) -> tuple[float, float]:
        """Energy and latency of a choice."""
        pairs = list(zip(self.groups, choice, strict=True))
        return (
            sum(group.occurrences * one.energy_pj for group, one in pairs),
            sum(group.occurrences * one.latency_cycles for group, one in pairs),
        )

    def set_ratio(self) -> float:
        """Sets the ratio to that of the best choice, and bounds by the products of the einsums found first:
        E_i + k L_i >= 2 sqrt(k E_i L_i). Returns the ratio.
        """
        energy, cycles = self.totals(self.best)
        old_ratio, self.ratio = self.ratio, energy / cycles
        self.least = (
            [one * min(1.0, self.ratio / old_ratio) for one in self.least]
            if old_ratio
            else [
                2 * sqrt(self.ratio * one.energy_pj * one.latency_cycles / (1 + one.optimality_gap))
                for one in self.best
            ]
        )
        return self.ratio

    def replace_by(self, arch: Arch, answers: Sequence[EinsumCost | Infeasible]) -> None:
        """Replaces mappings of the best choice by those of less E + ratio L, if the product is lower then.

        answers: of each einsum, the mapping of least energy on the machine with more leakage
        """
        choice, least = list(self.best), list(self.least)
        for i, (answer, old) in enumerate(zip(answers, self.best, strict=True)):
            if isinstance(answer, Infeasible):
                continue
            least[i] = max(least[i], answer.energy_pj / (1 + answer.optimality_gap))
            space = answer.space if old.space == ALL_MAPPINGS else old.space  # the smaller one
            self.best[i] = choice[i] = replace(old, space=space)
            if answer.mapping != old.mapping and answer.energy_pj < self.weighed(old):
                new = evaluate_unfused(Problem(arch, self.groups[i].einsum, "edp"), answer.mapping)
                choice[i] = replace(new, space=answer.space, visited=answer.visited)
        self.least = least
        products = [energy * cycles for energy, cycles in map(self.totals, (choice, self.best))]
        self.improves = products[0] < products[1] * (1 - ROUNDING_GAP)
        self.best = choice if self.improves else self.best

    def weighed(self, one: EinsumCost) -> float:
        """E_i + ratio L_i of a mapping."""
        return one.energy_pj + self.ratio * one.latency_cycles

    def gap(self) -> float:
        """Returns the gap of the product that the bounds prove."""
        self.set_ratio()
        energy, _ = self.totals(self.best)
        least = sum(group.occurrences * one for group, one in zip(self.groups, self.least, strict=True))
        return relative_gap((2 * energy) ** 2, least**2)

    def take_front(self, rows: Sequence[Sequence[EinsumCost]], gap: float) -> None:
        """Takes the least product on a front that is within a gap in energy and latency."""
        products = [energy * cycles for energy, cycles in map(self.totals, rows)]
        lowest, (energy, cycles) = min(range(len(rows)), key=products.__getitem__), self.totals(self.best)
        bound = products[lowest] / (1 + gap) ** 2
        if products[lowest] < energy * cycles:
            self.best = list(rows[lowest])
            self.set_ratio()
        self.uniform_gap = relative_gap(min(energy * cycles, products[lowest]), bound)

    def choice(self) -> list[EinsumCost]:
        """Returns the best choice with the gap of each einsum in E + k L, k = E / L of the workload: the
        gaps that the bounds prove, or equal ones that the front does.
        """
        if self.uniform_gap < self.gap():
            gaps = [sqrt(1 + self.uniform_gap) - 1] * len(self.best)
        else:
            gaps = [
                relative_gap(self.weighed(one), least)
                for one, least in zip(self.best, self.least, strict=True)
            ]
        return [
            replace(one, optimality_gap=gap if gap > ROUNDING_GAP else 0.0)
            for one, gap in zip(self.best, gaps, strict=True)
        ]


def _with_leakage(arch: Arch, pj_per_cycle: float) -> Arch:
    """The machine with more leakage, by so many pJ per cycle."""
    more_mw = pj_per_cycle * arch.clock_ghz
    return replace(arch, compute=replace(arch.compute, vector_leak_mw=arch.compute.vector_leak_mw + more_mw))
