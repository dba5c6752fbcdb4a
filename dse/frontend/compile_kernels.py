"""Compiles all kernels into their caches on disk, in two processes, so that no command waits for them. Takes
a minute or two: python -m dse.frontend.compile_kernels
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np

from dse.mapper.exact import ragged
from dse.mapper.exact.optimal import optimal
from dse.sim.counts import spans
from dse.sim.einsum import bound_kernels
from dse.sim.einsum.evaluate import Problem
from dse.solve.sharing import anchors, shared_mappings
from hw import machine, space
from hw.columns import Table
from workloads import catalog


def problem(machine_name: str) -> Problem:
    """Returns a small GEMM (4 x 4 x 4) at lowest energy on a built-in machine."""
    return Problem(machine.load_arch(machine_name), catalog.load("gemm:m=4,n=4,k=4").einsums[0], "energy")


def compile_search() -> None:
    """Compiles the kernels of the search, local search included: the part that takes longest."""
    optimal(problem("edge_array"))
    optimal(problem("edge_array"), budget=1)


def compile_others() -> None:
    """Compiles all kernels that `compile_search` does not."""
    one, columns = (
        problem("edge_array"),
        Table(space.parse(machine.load("edge_array"), {"clock_mhz": [100, 200]})).columns(np.arange(2))[1],
    )
    bound_kernels.sequential([(one.einsum, 1)], columns)
    batch = shared_mappings.machine_batch(one.arch, columns, lambda _: one.arch)
    shared = shared_mappings.start(batch, [one.einsum], np.ones((1, 1)))
    anchors.raise_bounds(0, shared.anchors, shared.prices, shared.seen, shared.bound)
    spans.span_sum(0, 4, np.array([[1, 4, 0, 1]]), np.array([[2, spans.ALL]]), True, False)  # padding
    ragged.solve_ragged(problem("smv"))


def main() -> None:
    """Compiles both parts in two processes. Raises what failed in either."""
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        for done in [pool.submit(part) for part in (compile_search, compile_others)]:
            done.result()


if __name__ == "__main__":
    main()
