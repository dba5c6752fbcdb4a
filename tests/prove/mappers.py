"""The optimal mapper equals the enumeration of the whole mapspace on 1,000 random problems, and no lower bound is above the optimum."""

from __future__ import annotations

from math import isclose
from random import Random

from dse.dataflow.exhaustive import enumerated
from dse.dataflow.optimal import solved
from dse.nest import Infeasible
from dse.sim.evaluate import figure, lower_bound
from tests.small import small_problem

PROBLEMS = 1_000
MAPPINGS = 30_000  # of a problem at most
TILES = ("divisor", "divisor", "perfect", "ragged")


def main() -> int:
    wrong = feasible = 0
    for seed in range(PROBLEMS):
        rng = Random(seed)
        objective, tiles = rng.choice(["energy", "latency", "edp"]), rng.choice(TILES)
        problem = small_problem(rng, objective, MAPPINGS, tiles=tiles)
        every, ours = enumerated(problem, tiles), solved(problem, tiles)
        if isinstance(every, Infeasible) or isinstance(ours, Infeasible):
            same = isinstance(every, Infeasible) and isinstance(ours, Infeasible)
            lines = [] if same else [f"{every} against {ours}"]
        else:
            feasible += 1
            lowest, found = (figure(objective, one[0].energy_pj, one[0].latency_cycles) for one in (every, ours))
            lines = [] if isclose(lowest, found, rel_tol=1e-9) else [f"enumerated {lowest}, optimal {found}"]
            lines += [] if lower_bound(problem) <= lowest * (1 + 1e-9) else [f"bound {lower_bound(problem)} above {lowest}"]
        wrong += bool(lines)
        for line in lines:
            print(f"  seed {seed}, {objective}, {tiles} tiles: {line}\n{problem.einsum}\n{problem.arch}")
    print(f"  {PROBLEMS} problems, {feasible} of them feasible: {wrong} where optimal is not the enumerated optimum or a bound is above it")
    return int(wrong > 0)
