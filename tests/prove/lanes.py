"""The mapper `lanes_first` against every mapping of 10,000 random problems, perfect and divisor tiles; nothing is left to another search.

    python -m tests.prove lanes [--problems 10000] [--first 0] [--most 60000]
"""

from __future__ import annotations

from functools import partial
from random import Random

from dse.dataflow.search import BUDGET, lanes_first, taken
from dse.nest import Infeasible
from tests.enumeration import enumerated
from tests.problems import GROUPS, random_problem
from tests.prove.mappers import LARGE, LARGER, Told, asked, compared, over, summed


def told(seed: int, most: int) -> list[Told]:
    group, rng, found = GROUPS[seed % len(GROUPS)], Random(seed), []
    problem = random_problem(rng, group, "divisor", most * (LARGE if rng.randrange(LARGER) == 0 else 1))
    for tiles in ("perfect", "divisor"):
        if taken(problem, tiles):  # type: ignore[arg-type]
            best, ours = enumerated(problem, tiles), lanes_first(problem, rng, tiles, BUDGET)  # type: ignore[arg-type]
            lines = tuple(f"seed {seed}, {group}, {tiles} tiles, {problem.objective}: {line}\n{problem.einsum}\n{problem.arch}"
                          for line in compared(problem, best, ours, "lanes_first"))
            proven = not isinstance(ours, Infeasible) and bool(ours[0].proven)
            found.append(Told(group, tiles, best.mappings, best.mapping is not None, proven, lines))
    return found


def main() -> int:
    given = asked(__doc__, problems=10_000, first=0, most=60_000)
    return summed(over(partial(told, most=given.most), given.first, given.problems), ("perfect", "divisor"))
