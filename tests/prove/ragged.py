"""The search of ragged tiles against every mapping of 2,000 random problems, on machines with one array.

    python -m tests.prove ragged [--problems 2000] [--first 0] [--most 60000]

Neighbouring levels that hold no tensor in common may stand in any order there: the enumeration goes through
all of them. It also cuts strided ranks twice between fetches; where the certificate says that the search does
not, it may be below, which is printed and not held against the answer.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import inf
from random import Random

from dse.mapper.exact.ragged import solve_ragged
from dse.mapper.exact.ragged_program import orders, unsupported
from dse.mapping.nest import Infeasible
from dse.sim.einsum.evaluate import objective_value
from hw.arch import ROLES, Arch
from tests.enumeration import Best, enumerated
from tests.problems import arch_of, random_problem
from tests.prove.mappers import Told, asked, compared, confirmed, over, summed

KINDS = ("scratchpads", "one level", "two levels", "windows", "holds")


def scratchpads(rng: Random, group: str, levels: int) -> Arch:
    """What the search takes: one array below a level, in it nothing or one input; group "scratchpads": a
    private level per operand outside of it.
    """
    arch = arch_of(rng, group, levels)
    while not arch.fanouts:
        arch = arch_of(rng, group, levels)
    border = rng.choice([levels, levels + 1])
    private = (
        {v: (role,) for v, role in zip(range(1, border), rng.sample(ROLES, len(ROLES)), strict=False)}
        if group == "scratchpads"
        else {}
    )
    own = tuple(
        replace(
            level,
            double_buffer=False,
            bandwidth=inf if rng.random() < 0.3 else level.bandwidth,
            may_keep=("weight",) if v >= border else private.get(v, level.may_keep),
        )
        for v, level in enumerate(arch.levels)
    )
    return replace(arch, levels=own, fanouts=(replace(arch.fanouts[0], outside=border, systolic=""),))


def told(seed: int, most: int) -> list[Told]:
    group, rng = KINDS[seed % len(KINDS)], Random(seed)
    while unsupported(
        (problem := random_problem(rng, group, "imperfect", most, arch=scratchpads)).einsum, problem.arch
    ):
        pass
    every = [enumerated(replace(problem, arch=arch), "imperfect") for arch in orders(problem.arch)]
    cheapest = min(every, key=lambda best: best.cost)
    best = Best(cheapest.cost, cheapest.mapping, sum(one.mappings for one in every))
    ours = solve_ragged(problem)
    own = None if isinstance(ours, Infeasible) else ours[0].proven
    # the enumeration cuts strided ranks twice, too: it may be below
    narrow = own is not None and not own.cut_twice
    if narrow:
        one = ours[0]
        cost = objective_value(problem.objective, one.energy_pj, one.latency_cycles)
        if best.cost[0] < cost * (1 - 1e-9):
            print(
                f"  seed {seed}: two cuts in a row cost {100 * (1 - best.cost[0] / cost):.2f} % less",
                flush=True,
            )
        best = (
            best
            if best.cost[0] > cost * (1 + 1e-9)
            else Best((cost, one.energy_pj, one.latency_cycles), one.mapping, best.mappings)
        )
    wrong = [*confirmed(problem, best), *compared(problem, best, ours, "imperfect")]
    lines = tuple(
        f"seed {seed}, {group}, ragged tiles, {problem.objective}: {line}\n{problem.einsum}\n{problem.arch}"
        for line in wrong
    )
    proven = not isinstance(ours, Infeasible) and bool(ours[0].proven)
    return [Told(group, "imperfect", best.mappings, best.mapping is not None, proven, lines)]


def main() -> int:
    given = asked(__doc__, problems=2_000, first=0, most=60_000)
    return summed(over(partial(told, most=given.most), given.first, given.problems), ("imperfect",))
