"""Small joint spaces of machines and mappings: some machines, two einsums, every choice of one mapping of
each, priced one by one. Shares only the evaluator with the searches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from random import Random

import numpy as np
from numpy.typing import NDArray

from dse.mapper.exact.optimal import optimal_on
from dse.mapper.exact.search import supports
from dse.mapping.constraints import FREE
from dse.mapping.nest import Infeasible
from dse.sim.counts.counts import counted, footprints
from dse.sim.einsum.cost import batch_arch, overflow, price
from dse.sim.einsum.evaluate import EinsumCost, Problem, fanout_overflow
from dse.solve.front import fronts_on, lower_products
from dse.solve.options import SolverOptions
from hw.arch import Arch
from tests.enumeration import mappings
from tests.problems import GROUPS, random_problem
from workloads.einsum import Einsum, canonical_key
from workloads.graph import Unique

CLOSE = 1e-8
Figures = NDArray[np.float64]  # [N, 2] energy and latency


@dataclass(frozen=True)
class Joint:
    """Machines, and the einsums of a workload with their occurrences."""

    arches: tuple[Arch, ...]
    groups: tuple[Unique, ...]
    tiles: str

    def options(self, gap: float) -> SolverOptions:
        return SolverOptions(objective="front", factors=self.tiles, gap=gap)  # type: ignore[arg-type]


def joint_space(seed: int, machines: int, most: int, overlap: str) -> Joint:
    """Machines that differ in prices and rates, half of them with other capacities too."""
    rng = Random(seed)
    tiles, group = rng.choice(["perfect", "imperfect_spatial"]), rng.choice(GROUPS)
    first = random_problem(rng, group, tiles, most, "tensors")
    base = replace(first.arch, overlap=overlap)
    einsums = [first.einsum]
    kinds = "two levels" if group == "array" else group  # of any einsum: `array_of` makes its own machine
    einsums.append(random_problem(rng, kinds, tiles, most, "tensors", lambda *_: base).einsum)
    groups = tuple(
        Unique(canonical_key(e), replace(e, name=f"e{i}"), (f"e{i}",), rng.choice([1, 1, 2, 5]))
        for i, e in enumerate(einsums)
    )
    other = replace(
        base,
        levels=tuple(
            replace(level, capacity_bits=level.capacity_bits * rng.choice([1, 2, 3]))
            if level.capacity_bits
            else level
            for level in base.levels
        ),
    )
    return Joint(tuple(_varied((base, other)[i % 2], rng) for i in range(machines)), groups, tiles)


def _varied(arch: Arch, rng: Random) -> Arch:
    def factor() -> float:
        return rng.choice([0.25, 0.5, 1.0, 1.0, 2.0, 4.0])

    return replace(
        arch,
        levels=tuple(
            replace(
                level,
                read_pj=level.read_pj * factor(),
                write_pj=level.write_pj * factor(),
                bandwidth=level.bandwidth * factor(),
                leak_mw=rng.choice([0.0, 0.0, 1.0, 8.0]),
            )
            for level in arch.levels
        ),
        clock_ghz=rng.choice([0.5, 1.0, 1.5]),
    )


def every_mapping(joint: Joint) -> list[list[Figures]]:
    """Energy and latency of all mappings that fit, by machine and einsum. A mapping is counted once: of what
    counts, machines differ in capacities alone; and priced on all machines at once.
    """
    found: list[list[Figures]] = [[] for _ in joint.arches]
    first, together = joint.arches[0], batch_arch(joint.arches)
    for group in joint.groups:
        e, rows = group.einsum, []
        for mapping in mappings(Problem(first, e, "energy"), joint.tiles, "tensors"):
            held = footprints(mapping, e, first)
            fits = [not overflow(held, e, arch) for arch in joint.arches[:2]]
            if not any(fits) or fanout_overflow(mapping, e, first):
                continue
            c = counted(mapping, e, first, held)
            cost = price(c.rows, e, together, c.timed)
            row = np.empty((len(joint.arches), 2))
            row[:, 0], row[:, 1] = cost.energy_pj, cost.latency_cycles
            for i, its in enumerate(fits):
                row[i::2] = row[i::2] if its else np.inf
            rows.append(row)
        every = np.array(rows).reshape(len(rows), len(joint.arches), 2)
        for j, own in enumerate(found):
            own.append(np.unique(every[np.isfinite(every[:, j, 0]), j], axis=0))
    return found


def sums(joint: Joint, figures: Sequence[Figures]) -> Figures:
    """Energy and latency of every choice of one mapping per einsum."""
    first, second = (
        group.occurrences * _least(own) for group, own in zip(joint.groups, figures, strict=True)
    )
    return np.asarray((first[:, None, :] + second[None, :, :]).reshape(-1, 2))


def _least(rows: Figures) -> Figures:
    """Of mappings of equal energy the fastest: the others add nothing to a front."""
    return rows[np.unique(rows[:, 0], return_index=True)[1]]


def faults(seed: int, machines: int, most: int, gap: float, overlap: str) -> Iterator[str]:
    """What fronts and least products of a joint space claim and do not hold; a line each."""
    joint = joint_space(seed, machines, most, overlap)
    every = every_mapping(joint)
    fronts = fronts_on(joint.arches, joint.groups, joint.options(gap))
    answers = {
        objective: [
            optimal_on(
                [Problem(arch, group.einsum, objective) for arch in joint.arches], joint.tiles, FREE, gap
            )  # type: ignore[arg-type]
            for group in joint.groups
        ]
        for objective in ("energy", "latency", "edp")
    }
    supported = overlap == "free" and all(
        supports(group.einsum, joint.tiles) and not _strides_over_edges(group.einsum)  # type: ignore[arg-type]
        for group in joint.groups
    )
    for j, (found, figures) in enumerate(zip(fronts, every, strict=True)):
        name = f"seed {seed}, machine {j}"
        if isinstance(found, Infeasible):
            if all(len(own) for own in figures):
                yield f"{name}: infeasible, but mappings fit"
            continue
        choices, proven = found
        exact = supported and all(
            isinstance(one[j], EinsumCost) and one[j].optimality_gap <= gap + CLOSE
            for listed in answers.values()
            for one in listed
        )
        rows, all_rows = _totals(joint, choices), sums(joint, figures)
        if exact and proven > gap + CLOSE:
            yield f"{name}: gap {proven} proven, not {gap}"
        worse = np.array([np.max(row / all_rows, axis=1) for row in rows]).min(axis=0)
        if worse.max() > (1 + proven) * (1 + CLOSE):
            yield f"{name}: a choice is not covered within {proven}: {worse.max() - 1}"
        beaten = [np.max(all_rows / row, axis=1).min() for row in rows]
        if gap == 0 and proven == 0 and min(beaten) < 1 - CLOSE:
            yield f"{name}: a row of the front is dominated: {min(beaten)}"
        if min(beaten) < (1 - CLOSE) / (1 + proven):
            yield f"{name}: a row is worse in both by more than {proven}: {min(beaten)}"
        ends = rows[:, 0].min() / all_rows[:, 0].min(), rows[:, 1].min() / all_rows[:, 1].min()
        if exact and max(ends) > (1 + gap) * (1 + CLOSE):
            yield f"{name}: the ends of the front are {ends} of the least"
        if not (np.diff(rows[:, 0]) > 0).all() or not (np.diff(rows[:, 1]) < 0).all():
            yield f"{name}: rows do not rise in energy and fall in latency"
        costs = [one[j] for one in answers["edp"]]
        for line in _product_faults(joint, j, costs, all_rows.prod(axis=1).min(), gap if exact else inf):
            yield f"{name}: {line}"


def _strides_over_edges(e: Einsum) -> bool:
    """True if windows that leave gaps stride over the edge of what is stored: the search may count them
    lower, so that its bounds prove less than was asked for.
    """

    def leaves_gaps(terms: Sequence[tuple[str, int]]) -> bool:
        rank, stride = max(terms, key=lambda term: term[1])
        return stride > 1 + sum(n * (e.sizes()[other] - 1) for other, n in terms if other != rank)

    dims = [dim for one in e.inputs for dim in one.dims if dim.terms]
    return any(dim.offset < 0 and leaves_gaps(dim.terms) for dim in dims)


def _optimal(joint: Joint, group: Unique, objective: str, gap: float) -> list[EinsumCost | Infeasible]:
    problems = [Problem(arch, group.einsum, objective) for arch in joint.arches]
    return optimal_on(problems, joint.tiles, FREE, gap)  # type: ignore[arg-type]


def _totals(joint: Joint, choices: Sequence[Sequence[EinsumCost]]) -> Figures:
    return np.array(
        [
            [
                sum(g.occurrences * getattr(one, name) for g, one in zip(joint.groups, choice, strict=True))
                for name in ("energy_pj", "latency_cycles")
            ]
            for choice in choices
        ]
    )


def _product_faults(
    joint: Joint, j: int, found: Sequence[EinsumCost | Infeasible], least: float, gap: float
) -> Iterator[str]:
    """What is claimed of the least energy x latency on machine j, and does not hold. found: the least of each
    einsum by itself; least: that of all choices; gap: that must be proven.
    """
    costs = [one for one in found if isinstance(one, EinsumCost)]
    first, options = _totals(joint, [costs]).prod(), replace(joint.options(gap), objective="edp")
    if gap == inf:
        options = replace(options, gap=0.01)
    ((choice, proven),) = lower_products([joint.arches[j]], joint.groups, options, [costs])
    value = _totals(joint, [choice]).prod()
    if value > first * (1 + CLOSE):
        yield f"product {value} above the {first} of each einsum's least"
    if value > least * (1 + proven) * (1 + CLOSE):
        yield f"product {value}, not within {proven} of {least}"
    if proven > gap + CLOSE:
        yield f"gap of the product {proven}, not {gap}"
