"""Solvers for one system, by what they move until a residual is ten times smaller: python -m bench.solvers
[--side 300] [SOLVER ...].

The system is a grid of side x side points, five per row, with random right-hand side; each solver is run by
NumPy until its residual is a millionth of the first, or for 2,000 products with the matrix. Words of an
iteration are those of `dse residency` (loops of 40 iterations) on gogeta_clusters with 64 KiB a slice, energy
is that of their bits in main memory.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from math import log10

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as spl

from bench.gogeta import table
from dse.frontend import api

Vector = np.ndarray
MOST, TARGET, LOOPS = 2000, 1e-6, 40  # products that are run; residual at the end; iterations of a loop
MACHINE, SETS = "gogeta_clusters", {"sram.capacity": "64 KiB"}


def grid(side: int) -> sp.csr_array:
    line = sp.diags_array([[-1.0] * (side - 1), [2.0] * side, [-1.0] * (side - 1)], offsets=[-1, 0, 1])
    return sp.csr_array(sp.kronsum(line, line))


def cg(a: sp.csr_array, b: Vector, precondition: Callable[[Vector], Vector]) -> Iterator[Vector]:
    """Yields the residual after each iteration, as all of these functions do."""
    r, z = b, precondition(b)
    p, rz = z, b @ z
    while True:
        q = a @ p
        alpha = rz / (p @ q)
        r = r - alpha * q
        yield r
        z = precondition(r)
        rz, before = r @ z, rz
        p = z + rz / before * p


def s_step_cg(a: sp.csr_array, b: Vector, s: int) -> Iterator[Vector]:
    x, r, p = np.zeros_like(b), b, b
    width, shift = 2 * s + 1, np.zeros((2 * s + 1, 2 * s + 1))
    for j in (*range(s), *range(s + 1, 2 * s)):
        shift[j + 1, j] = 1
    while True:
        v = np.array([*powers(a, p, s), *powers(a, r, s - 1)])
        g = v @ v.T
        cx, cr, cp = np.zeros(width), np.eye(width)[s + 1], np.eye(width)[0]
        for _ in range(s):
            q = shift @ cp
            alpha = cr @ g @ cr / (cp @ g @ q)
            cx, after = cx + alpha * cp, cr - alpha * q
            cp, cr = after + (after @ g @ after) / (cr @ g @ cr) * cp, after
        x, r, p = x + cx @ v, cr @ v, cp @ v
        yield b - a @ x


def powers(a: sp.csr_array, x: Vector, count: int) -> list[Vector]:
    found = [x]
    for _ in range(count):
        found.append(a @ found[-1])
    return found


def gmres(a: sp.csr_array, b: Vector, m: int) -> Iterator[Vector]:
    x = np.zeros_like(b)
    while True:
        x, _ = spl.gmres(a, b, x, restart=m, maxiter=1, rtol=1e-30, atol=0.0)
        yield b - a @ x


def ca_gmres(a: sp.csr_array, b: Vector, s: int) -> Iterator[Vector]:
    x = np.zeros_like(b)
    while True:
        v = np.array(powers(a, b - a @ x, s))
        g = v @ v.T
        x = x + np.linalg.solve(g[1:, 1:], g[1:, 0]) @ v[:-1]
        yield b - a @ x


def v_cycle(a: sp.csr_array, b: Vector, grids: int) -> Iterator[Vector]:
    matrices, transfers = [a], []
    for _ in range(grids - 1):
        side = round(matrices[-1].shape[0] ** 0.5)
        coarse = side // 2
        at = 2 * np.arange(coarse) + 1
        line = sp.lil_array((side, coarse))
        for i, row in enumerate(at):
            for step, weight in ((-1, 0.5), (0, 1.0), (1, 0.5)):
                if 0 <= row + step < side:
                    line[row + step, i] = weight
        transfers.append(sp.csr_array(sp.kron(line, line)))
        matrices.append(sp.csr_array(transfers[-1].T @ matrices[-1] @ transfers[-1]))
    weights = [2 / 3 / m.diagonal() for m in matrices]

    def cycle(x: Vector, right: Vector, g: int) -> Vector:
        coarsest = g == grids - 1
        for _ in range(1 + coarsest):
            x = x + weights[g] * (right - matrices[g] @ x)
        if coarsest:
            return x
        below = transfers[g].T @ (right - matrices[g] @ x)
        x = x + transfers[g] @ cycle(np.zeros_like(below), below, g + 1)
        return x + weights[g] * (right - matrices[g] @ x)

    x = np.zeros_like(b)
    while True:
        x = cycle(x, b, 0)
        yield b - a @ x


def symmetric_sweep(a: sp.csr_array) -> Callable[[Vector], Vector]:
    exact = {"permc_spec": "NATURAL", "diag_pivot_thresh": 0.0}
    low, up = (spl.splu(sp.csc_matrix(half), **exact) for half in (sp.tril(a), sp.triu(a)))
    diagonal = a.diagonal()
    return lambda r: up.solve(diagonal * low.solve(r))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", type=int, default=300)
    parser.add_argument("solvers", nargs="*", help="these alone")
    given = parser.parse_args()
    side = given.side
    a = grid(side)
    b = np.random.default_rng(0).normal(size=side * side)
    size, grids = f"rows={side * side},nnz={a.nnz},form=periodic,iterations={LOOPS}", 6
    diagonal = a.diagonal()
    rows = (
        ("cg", "", 1, cg(a, b, lambda r: r)),
        ("cg", "preconditioner=jacobi", 1, cg(a, b, lambda r: r / diagonal)),
        ("cg", f"preconditioner=symgs,levels={2 * side - 1}", 1, cg(a, b, symmetric_sweep(a))),
        ("pipelined_cg", "", 1, cg(a, b, lambda r: r)),
        ("s_step_cg", "s=4", 4, s_step_cg(a, b, 4)),
        ("s_step_cg", "s=4,powers=kernel", 4, s_step_cg(a, b, 4)),
        ("gmres", "m=4", 4, gmres(a, b, 4)),
        ("ca_gmres", "s=4", 4, ca_gmres(a, b, 4)),
        ("ca_gmres", "s=4,powers=kernel", 4, ca_gmres(a, b, 4)),
        ("v_cycle", f"grids={grids}", 1, v_cycle(a, b, grids)),
    )
    header = ("solver", "iterations a digit", "SEQ-Flex", "GOGETA", "Optimal", "Ideal", "uJ an iteration")
    print("\n".join(table((*header, "mJ a digit", "CPU s"))))
    for name, more, products, residuals in rows:
        if given.solvers and name not in given.solvers:
            continue
        norms = [float(np.linalg.norm(b))]
        for r in islice(residuals, MOST // products):
            norms.append(float(np.linalg.norm(r)))
            if norms[-1] <= TARGET * norms[0]:
                break
        done = len(norms) - 1
        digits = log10(norms[0] / norms[-1])
        started = time.process_time()
        found = api.residency(f"{name}:{size}{',' if more else ''}{more}", MACHINE, **SETS)
        spent, report, outer = time.process_time() - started, found.reuse, found.arch.levels[0]
        millions = [
            n / LOOPS / 1e6
            for n in (report.seq_flex, report.gogeta.words(), report.optimal.cost, report.ideal)
        ]
        uj = millions[2] * found.arch.word_bits * outer.read_pj / outer.width_bits
        reached = f"{done / digits:.1f}"
        if norms[-1] > TARGET * norms[0]:
            reached += f" (of {digits:.1f} digits)"
        row = (
            f"`{name}{':' if more else ''}{more}`",
            reached,
            *millions,
            uj,
            uj * done / digits / 1e3,
            spent,
        )
        print("\n".join(list(table((), row))[2:]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
