"""Fronts of unfused workloads on one machine: choices of one mapping per distinct einsum, by total energy and
total latency (docs/solvers.md).

Both are sums over the einsums, weighed by occurrences; leakage over the latency of an einsum is part of its
energy. So covers of the einsums add up: what covers each einsum within a gap covers the workload within it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, log, sqrt

import numpy as np

from dse.mapper.exact.covers import Cover, covers_on
from dse.mapper.exact.optimal import optimal_on
from dse.mapping.constraints import Constraints
from dse.mapping.nest import Infeasible
from dse.run import deadline
from dse.sim.einsum import bounds
from dse.sim.einsum.evaluate import ROUNDING_GAP, EinsumCost, Pair, Problem, evaluate_unfused, relative_gap
from dse.solve.options import SolverOptions
from dse.solve.product_lines import ProductLines, product_lines
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

    Ratios of energy and latency are searched one after the other (product_lines.py).
    """
    states = [_product(arch, groups, list(own)) for arch, own in zip(arches, found, strict=True)]
    for _ in range(rounds):
        ratios = {
            j: ratio
            for j, state in enumerate(states)
            if (ratio := state.lines.next_ratio(options.gap)) is not None
        }
        if not ratios or deadline.has_passed():
            break
        for objective in ("energy", "latency"):
            now = [j for j, ratio in ratios.items() if (ratio == inf) == (objective == "latency")]
            own_arches = [
                arches[j].with_more_leakage(ratios[j]) if objective == "energy" else arches[j] for j in now
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
    return [(state.best, state.lines.gap()) for state in states]


@dataclass(slots=True)
class _Product:
    """The choice of least energy x latency on one machine so far, and lines that no choice is below."""

    groups: Sequence[Unique]
    best: list[EinsumCost]
    lines: ProductLines

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
        if self.lines.add(ratio, least, _totals(self.groups, choice)):
            self.best = choice


def _totals(groups: Sequence[Unique], choice: Sequence[EinsumCost]) -> Pair:
    """Returns energy and latency of a choice."""
    pairs = list(zip(groups, choice, strict=True))
    return (
        sum(group.occurrences * one.energy_pj for group, one in pairs),
        sum(group.occurrences * one.latency_cycles for group, one in pairs),
    )


def _product(arch: Arch, groups: Sequence[Unique], best: list[EinsumCost]) -> _Product:
    """Returns what is known before any search for the workload: its energy and latency are bounded by those
    of any mapping, and the product by the least products of the einsums: (sum E)(sum L) >= (sum sqrt(E L))^2
    (Cauchy and Schwarz).
    """
    ends = bounds.lower_bounds((group.einsum for group in groups), arch)
    least_pj, least_cycles = (
        sum(group.occurrences * one[i] for group, one in zip(groups, ends, strict=True)) for i in range(2)
    )
    lines = product_lines((least_pj, least_cycles), _totals(groups, best))
    roots = (
        group.occurrences * sqrt(one.energy_pj * one.latency_cycles / (1 + one.optimality_gap))
        for group, one in zip(groups, best, strict=True)
    )
    lines.least_product = sum(roots) ** 2
    return _Product(groups, best, lines)
