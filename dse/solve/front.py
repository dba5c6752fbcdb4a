"""Fronts of unfused workloads on one machine: choices of one mapping per distinct einsum, by total energy and
total latency (docs/solvers.md).

Both are sums over the einsums, weighed by occurrences; leakage over the latency of an einsum is part of its
energy. So covers of the einsums add up: what covers each einsum within a gap covers the workload within it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from math import inf, log, sqrt
from typing import NamedTuple

import numpy as np

from dse.mapper.exact.covers import Cover, covers_on
from dse.mapper.exact.optimal import optimal_on
from dse.mapping.constraints import Constraints
from dse.mapping.nest import Infeasible
from dse.run import deadline
from dse.sim.einsum import bounds
from dse.sim.einsum.evaluate import ROUNDING_GAP, EinsumCost, Pair, Problem, evaluate_unfused, relative_gap
from dse.solve.options import SolverOptions
from hw.arch import Arch
from workloads.arrays import Floats, Ints
from workloads.graph import Unique

MAX_EXACT = 2_000  # partial sums up to which none is left out, unless another one dominates it
MAX_SUMS = 50_000  # partial sums, at most
ROUNDS = 12  # searches of `lower_products` per einsum, at most
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
        found.setdefault(options.constraints(group.einsum, arch), []).append(j)
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
) -> list[tuple[list[EinsumCost], float]]:
    """Returns choices of least energy x latency of the workload on each of many machines, never above those
    found, and their optimality gaps, on machines that price neither layouts nor hops.

    found: of each machine, the mapping of least energy x latency of each einsum by itself
    rounds: searches per einsum, at most; 0: the choices found, with their gaps

    E x L is quasi-concave, so the least is a corner of the convex hull of all choices (E, L), and the least
    E + k L of a ratio k is a sum of the einsums' least E_i + k L_i: the least energy on a machine that leaks
    k pJ per cycle more. Each k is a corner, and a line that no choice is below. Together they bound E x L by
    its least value at the crossings of neighbouring lines; the next k is that of the lowest crossing.
    (Outer approximation of multiplicative programs: Konno, Kuno, Linear multiplicative programming, 1992.)
    """
    states = [_Product(groups, list(own)) for own in found]
    for state, arch in zip(states, arches, strict=True):
        state.bound_ends(arch)
    for _ in range(rounds):
        ratios = {
            j: ratio for j, state in enumerate(states) if (ratio := state.next_ratio(options.gap)) is not None
        }
        if not ratios or deadline.has_passed():
            break
        for objective in ("energy", "latency"):
            now = [j for j, ratio in ratios.items() if (ratio == inf) == (objective == "latency")]
            own_arches = [
                _with_leakage(arches[j], ratios[j]) if objective == "energy" else arches[j] for j in now
            ]
            answers: list[list[EinsumCost | Infeasible]] = [[] for _ in now]
            for group in groups if now else ():
                for rules, positions in _by_constraints(own_arches, group, options).items():
                    problems = [Problem(own_arches[i], group.einsum, objective) for i in positions]
                    solved = optimal_on(problems, options.factors, rules, options.gap / 4)
                    for i, one in zip(positions, solved, strict=True):
                        answers[i].append(one)
            for j, own in zip(now, answers, strict=True):
                priced = [
                    one
                    if isinstance(one, Infeasible)
                    else evaluate_unfused(Problem(arches[j], group.einsum, "edp"), one.mapping)
                    for one, group in zip(own, groups, strict=True)
                ]
                states[j].add(ratios[j], own, priced)
    return [(state.best, state.gap()) for state in states]


class _Line(NamedTuple):
    """All choices have energy + ratio x latency of at least `least`; ratio inf: latency of at least it."""

    ratio: float
    least: float
    corner: Pair | None  # energy and latency of the choice that is nearest to it; None: it was not searched

    def height(self, pair: Pair) -> float:
        """Energy + ratio x latency."""
        return pair[1] if self.ratio == inf else pair[0] + self.ratio * pair[1]


@dataclass(slots=True)
class _Product:
    """The choice of least energy x latency on one machine so far, and lines that no choice is below."""

    groups: Sequence[Unique]
    best: list[EinsumCost]
    lines: list[_Line] = field(default_factory=list)
    least_product: float = 0.0  # a lower bound

    def totals(self, choice: Sequence[EinsumCost]) -> Pair:
        """Energy and latency of a choice."""
        pairs = list(zip(self.groups, choice, strict=True))
        return (
            sum(group.occurrences * one.energy_pj for group, one in pairs),
            sum(group.occurrences * one.latency_cycles for group, one in pairs),
        )

    def bound_ends(self, arch: Arch) -> None:
        """Bounds energy and latency by those of any mapping, and the product by the least products of the
        einsums: (sum E)(sum L) >= (sum sqrt(E L))^2 (Cauchy and Schwarz).
        """
        ends = bounds.lower_bounds((group.einsum for group in self.groups), arch)
        for i, ratio in enumerate((0.0, inf)):
            least = sum(g.occurrences * one[i] for g, one in zip(self.groups, ends, strict=True))
            self.lines.append(_Line(ratio, least, None))
        roots = (
            group.occurrences * sqrt(one.energy_pj * one.latency_cycles / (1 + one.optimality_gap))
            for group, one in zip(self.groups, self.best, strict=True)
        )
        self.least_product = sum(roots) ** 2

    def lowest(self) -> tuple[float, _Line, _Line]:
        """Returns the least product that the lines allow, and the two lines that cross there."""
        crossings = []
        for a, b in combinations(sorted(self.lines), 2):
            latency = b.least if b.ratio == inf else (b.least - a.least) / (b.ratio - a.ratio)
            crossing = a.least - a.ratio * latency, latency
            if all(line.height(crossing) >= line.least * (1 - ROUNDING_GAP) for line in self.lines):
                crossings.append((crossing[0] * crossing[1], a, b))
        return min(crossings, key=lambda one: one[0])

    def gap(self) -> float:
        """Returns the optimality gap of the best choice."""
        energy, cycles = self.totals(self.best)
        gap = relative_gap(energy * cycles, max(self.lowest()[0], self.least_product))
        return gap if gap > 10 * ROUNDING_GAP else 0.0

    def next_ratio(self, allowed_gap: float) -> float | None:
        """Returns the ratio to search next; None once the gap is allowed, or no ratio makes it smaller."""
        if self.gap() <= allowed_gap:
            return None
        energy, cycles = self.totals(self.best)
        if len(self.lines) == 2:
            return energy / cycles
        _, a, b = self.lowest()
        if a.corner is None or b.corner is None:
            return a.ratio if a.corner is None else b.ratio
        more_pj, fewer_cycles = b.corner[0] - a.corner[0], a.corner[1] - b.corner[1]
        if fewer_cycles <= 0 or not a.ratio < (ratio := more_pj / fewer_cycles) < b.ratio:
            return None
        return (
            ratio
            if all(abs(ratio / one.ratio - 1) > ROUNDING_GAP for one in self.lines if one.ratio)
            else None
        )

    def add(
        self,
        ratio: float,
        answers: Sequence[EinsumCost | Infeasible],
        priced: Sequence[EinsumCost | Infeasible],
    ) -> None:
        """Adds the line of a ratio, and takes its corner if the product is lower there.

        answers: of each einsum, the mapping of least energy on the machine with more leakage, or of least
            latency
        priced: these mappings on the machine itself
        """
        choice, least = list[EinsumCost](), 0.0
        for answer, one, group, old in zip(answers, priced, self.groups, self.best, strict=True):
            if isinstance(answer, Infeasible) or isinstance(one, Infeasible):
                choice.append(old)
                continue
            value = answer.latency_cycles if ratio == inf else answer.energy_pj
            least += group.occurrences * value / (1 + answer.optimality_gap)
            choice.append(replace(one, space=answer.space, visited=answer.visited))
        corner = self.totals(choice)
        self.lines = [one for one in self.lines if one.ratio != ratio]
        self.lines.append(_Line(ratio, least, corner))
        energy, cycles = self.totals(self.best)
        if corner[0] * corner[1] < energy * cycles:
            self.best = choice


def _with_leakage(arch: Arch, pj_per_cycle: float) -> Arch:
    """The machine with more leakage, by so many pJ per cycle."""
    more_mw = pj_per_cycle * arch.clock_ghz
    return replace(arch, compute=replace(arch.compute, vector_leak_mw=arch.compute.vector_leak_mw + more_mw))
