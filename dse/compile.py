"""Compile all kernels into their caches on disk, a minute or two, so that no command waits for it: python -m dse.compile"""

from __future__ import annotations

import numpy as np

from dse.dataflow import ragged
from dse.dataflow.optimal import optimal
from dse.sim import bound_kernels
from dse.sim.evaluate import Problem
from hw import machine, space
from hw.columns import Table
from workloads import catalog


def main() -> None:
    e = catalog.load("gemm:m=4,n=4,k=4").einsums[0]
    problem = Problem(machine.arch(machine.load("edge_array")), e, "energy")
    optimal(problem)
    optimal(problem, budget=1)  # the local search, too
    few = Table(space.parse(machine.load("edge_array"), {"array.x": [4, 8]}))
    bound_kernels.in_turn([(e, 1)], few.columns(np.arange(2))[1])
    ragged.solved(Problem(machine.arch(machine.load("smv")), e, "energy"))


if __name__ == "__main__":
    main()
