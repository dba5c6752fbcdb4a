"""The optimal mapper against every mapping of 10,000 random problems, perfect and divisor tiles.

    python -m tests.prove mappers [--problems 10000] [--first 0] [--most 60000]

Prints, per group of problems, how large the enumerated spaces were and how many answers were proven. A false certificate, a machine that is called
infeasible and is not, a bound above the optimum, or a group with less than 95 % proven fails. Every WIDE-th problem is enumerated once more with the nodes of a
level above those of inner levels per tensor only: what the named space leaves out.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from math import isclose
from multiprocessing import get_context
from random import Random
from typing import Any

from dse.dataflow import optimal
from dse.nest import Infeasible, faults
from dse.sim.evaluate import EinsumCost, Problem, einsum_cost, figure, lower_bound
from tests.enumeration import Best, enumerated, size
from tests.problems import GROUPS, random_problem

PROVEN = 0.95
WIDE, WIDE_MOST = 10, 1_000_000
LARGER, LARGE = 50, 10  # of so many problems one is so many times as large


@dataclass(frozen=True)
class Told:
    """One problem in one space: mappings enumerated, whether one fits, is proven, lines that say what is wrong, and what a wider space costs, in shares."""

    group: str
    tiles: str
    mappings: int
    feasible: bool
    proven: bool
    wrong: tuple[str, ...] = ()
    wider: float | None = None


def compared(problem: Problem, best: Best, found: list[EinsumCost] | Infeasible, name: str) -> Iterator[str]:
    """What is wrong with an answer."""
    if isinstance(found, Infeasible) or best.mapping is None:
        if not (isinstance(found, Infeasible) and best.mapping is None):
            yield f"{name}: {found if isinstance(found, Infeasible) else found[0].mapping}, the enumeration has {best}"
        return
    (one,) = found
    again = einsum_cost(problem, one.mapping)
    ours = figure(problem.objective, one.energy_pj, one.latency_cycles), one.energy_pj, one.latency_cycles
    if faults(one.mapping, problem.einsum, problem.arch) or isinstance(again, Infeasible) or not isclose(again.energy_pj, one.energy_pj, rel_tol=1e-12):
        yield f"{name}: {faults(one.mapping, problem.einsum, problem.arch)} {again}"
    if one.proven and not all(isclose(a, b, rel_tol=1e-9) for a, b in zip(ours, best.cost, strict=True)):
        yield f"{name}: certified {ours}, the enumeration has {best.cost}\n{one.mapping}\n against\n{best.mapping}"


def confirmed(problem: Problem, best: Best) -> Iterator[str]:
    """What the evaluator says of the enumeration's best mapping, and of the bound."""
    if best.mapping is not None:
        one = einsum_cost(problem, best.mapping)
        same = isinstance(one, EinsumCost) and isclose(figure(problem.objective, one.energy_pj, one.latency_cycles), best.cost[0], rel_tol=1e-9)
        if faults(best.mapping, problem.einsum, problem.arch) or not same:
            yield f"enumeration: {best} is {one}, {faults(best.mapping, problem.einsum, problem.arch)}"
        if lower_bound(problem) > best.cost[0] * (1 + 1e-9):
            yield f"bound {lower_bound(problem)} above {best.cost[0]}"


def told(seed: int, most: int) -> list[Told]:
    group, rng, found = GROUPS[seed % len(GROUPS)], Random(seed), []
    problem = random_problem(rng, group, "divisor", most * (LARGE if rng.randrange(LARGER) == 0 else 1))
    for tiles in ("perfect", "divisor"):
        best, ours = enumerated(problem, tiles), optimal.solved(problem, tiles)
        wrong = [*confirmed(problem, best), *compared(problem, best, ours, "optimal")]
        wider = None
        if seed % WIDE == 0 and best.mapping is not None and size(problem.einsum, problem.arch, tiles, "tensors", WIDE_MOST) <= WIDE_MOST:
            wider = enumerated(problem, tiles, "tensors").cost[0] / best.cost[0]
        lines = tuple(f"seed {seed}, {group}, {tiles} tiles, {problem.objective}: {line}\n{problem.einsum}\n{problem.arch}" for line in wrong)
        proven = not isinstance(ours, Infeasible) and bool(ours[0].proven)
        found.append(Told(group, tiles, best.mappings, best.mapping is not None, proven, lines, wider))
    return found


def summed(rows: list[Told], spaces: Iterable[str]) -> int:
    """Prints a line per space and group; whether all are as they must be."""
    wrong = [line for row in rows for line in row.wrong]
    for line in wrong[:10]:
        print(f"  {line}")
    few = 0
    for tiles in spaces:
        for group in dict.fromkeys(row.group for row in rows):
            own = [row for row in rows if (row.group, row.tiles) == (group, tiles)]
            sizes, feasible = sorted(row.mappings for row in own), sum(row.feasible for row in own)
            proven = sum(row.proven for row in own)
            few += proven < PROVEN * feasible
            print(f"  {tiles}, {group}: {len(own)} problems, {feasible} feasible, {proven} proven ({100 * proven / max(feasible, 1):.1f} %); mappings: median "
                  f"{sizes[len(sizes) // 2]:,}, most {sizes[-1]:,}")
        if shares := [row.wider for row in rows if row.tiles == tiles and row.wider is not None]:
            better = [share for share in shares if share < 1 - 1e-9]
            print(f"  {tiles}: levels in order per tensor only: cheaper in {len(better)} of {len(shares)}, at best by {100 * (1 - min(shares)):.1f} %")
    print(f"  {len(rows)} answers, {sum(row.mappings for row in rows):,} mappings: {len(wrong)} wrong, {few} groups with less than {100 * PROVEN:.0f} % proven")
    return int(bool(wrong) or few > 0)


def over(check: Callable[[int], list[Told]], first: int, problems: int) -> list[Told]:
    """All problems, in two processes."""
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        return [row for rows in pool.map(check, range(first, first + problems), chunksize=10) for row in rows]


def asked(description: str | None, **defaults: int) -> Any:
    parser = argparse.ArgumentParser(description=description)
    for name, value in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    return parser.parse_known_args()[0]


def main() -> int:
    given = asked(__doc__, problems=10_000, first=0, most=60_000)
    return summed(over(partial(told, most=given.most), given.first, given.problems), ("perfect", "divisor"))
