"""The search of ragged tiles against every mapping of 2,000 random problems, on machines with one array.

    python -m tests.prove ragged [--problems 2000] [--first 0] [--most 60000]

Neighbouring levels that hold no tensor in common may stand in any order there: the enumeration goes through all of them.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from random import Random

from dse.dataflow.ragged import solved
from dse.dataflow.ragged_program import orders, uncovered
from dse.nest import Infeasible
from tests.enumeration import Best, enumerated
from tests.problems import random_problem
from tests.prove.mappers import Told, asked, compared, confirmed, over, summed

KINDS = ("array", "one level", "two levels", "windows", "holds")


def told(seed: int, most: int) -> list[Told]:
    group, rng = KINDS[seed % len(KINDS)], Random(seed)
    while uncovered((problem := random_problem(rng, group, "ragged", most)).einsum, problem.arch):
        pass
    every = [enumerated(replace(problem, arch=arch), "ragged") for arch in orders(problem.arch)]
    cheapest = min(every, key=lambda best: best.cost)
    best = Best(cheapest.cost, cheapest.mapping, sum(one.mappings for one in every))
    ours = solved(problem)
    wrong = [*confirmed(problem, best), *compared(problem, best, ours, "ragged")]
    lines = tuple(f"seed {seed}, {group}, ragged tiles, {problem.objective}: {line}\n{problem.einsum}\n{problem.arch}" for line in wrong)
    proven = not isinstance(ours, Infeasible) and bool(ours[0].proven)
    return [Told(group, "ragged", best.mappings, best.mapping is not None, proven, lines)]


def main() -> int:
    given = asked(__doc__, problems=2_000, first=0, most=60_000)
    return summed(over(partial(told, most=given.most), given.first, given.problems), ("ragged",))
