"""Solvers that move less per step of progress, as einsums: several steps of a Krylov method at once, and
multigrid. `SOLVERS` has all solvers, those of workloads/hpc.py too.

Functions of these texts (any name is one; tests/test_hpc.py has each in NumPy): gram: all inner products of
vectors, in one pass; add_combination(X, c, V, ...): X plus the vectors times the numbers c.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise, zip_longest
from typing import Literal

from workloads.einsum import GOGETA_BITS, WorkloadError
from workloads.graph import Workload
from workloads.hpc import Line, bicgstab, cg, gmres, loop_of, pipelined_cg, sddmm, spgemm, spmm_chain, system
from workloads.loops import Form
from workloads.matrix import Matrix

Powers = Literal["products", "kernel"]


def s_step_cg(
    matrix: str = "ecology1",
    rows: int = 0,
    nnz: int = 0,
    n: int = 1,
    s: int = 4,
    powers: Powers = "products",
    iterations: int = 10,
    form: Form = "unrolled",
    index_bits: int = GOGETA_BITS,
    pointer_bits: int = GOGETA_BITS,
) -> Workload:
    """s-step (communication-avoiding) conjugate gradients on n right-hand sides, each with its own scalars.

    matrix, rows, nnz, index_bits, pointer_bits: as in `cg`
    s: steps of CG in an iteration
    powers: of A times P and times R: products, one after the other; kernel: one operation that reads A once
        for all of them (matrix powers kernel)
    iterations: of s steps

    Chronopoulos and Gear 1989; CA-CG as by Carson and Demmel (SIAM J. Matrix Anal. Appl. 35, 2014), monomial
    basis: an iteration makes V = P, A P, ..., A^s P, R, A R, ..., A^(s-1) R and the inner products G of V,
    runs s steps of CG on 2 s + 1 coordinates (coordinates_x, _r, _p: one small loop, whose three results are
    three einsums), and combines X, R and P from V once. The kernel counts no rows that tiles of rows would
    compute twice: at least as much moves.
    """

    def step(t: int) -> list[Line]:
        u = t + 1
        of_p, basis_p = _powers(f"P_{t}", f"V_{t}", "v", s, powers)
        of_r, basis_r = _powers(f"R_{t}", f"U_{t}", "u", s - 1, powers)
        basis = ", ".join((*basis_p, *basis_r))
        made = {x: f"c{x}_{t}[b,n]" for x in "xrp"}
        return [
            *(line for pair in zip_longest(of_p, of_r) for line in pair if line),
            ("g", f"G_{t}[b,c,n] = gram({basis})"),
            *((f"c{x}", f"{c} = coordinates_{x}(G_{t}[b,c,n])") for x, c in made.items()),
            ("x", f"X_{u}[m,n] = add_combination(X_{t}[m,n], {made['x']}, {basis})"),
            ("r", f"R_{u}[m,n] = combination({made['r']}, {basis})"),
            ("p", f"P_{u}[m,n] = combination({made['p']}, {basis})"),
        ]

    a, width = system("s_step_cg", matrix, rows, nnz), 2 * s + 1
    extents = {"b": width, "c": width, "v": s, "u": max(s - 1, 1)}
    return loop_of("s_step_cg", {"A": a}, n, step, iterations, form, (index_bits, pointer_bits), extents)


def ca_gmres(
    matrix: str = "ecology1",
    rows: int = 0,
    nnz: int = 0,
    n: int = 1,
    s: int = 4,
    powers: Powers = "products",
    iterations: int = 10,
    form: Form = "unrolled",
    index_bits: int = GOGETA_BITS,
    pointer_bits: int = GOGETA_BITS,
) -> Workload:
    """Communication-avoiding GMRES on n right-hand sides: cycles of s steps of GMRES from one basis.

    matrix, rows, nnz, index_bits, pointer_bits: as in `cg`
    s, powers: steps of a cycle, and powers of A times the residual, as in `s_step_cg`
    iterations: cycles of s steps

    CA-GMRES(s, 1) of Hoemmen (thesis, Berkeley 2010; Mohiyuddin et al., SC 2009), monomial basis V = R, A R,
    ..., A^s R, made orthogonal by the Cholesky factor of its inner products instead of TSQR. So the least
    squares problem of the cycle needs these products alone (least_squares), and X adds up V once: all but
    A^s R, which the one tensor of the kernel has too.
    """

    def cycle(t: int) -> list[Line]:
        lines, basis = _powers(f"R_{t}", f"V_{t}", "v", s, powers)
        combined = ", ".join(basis[:-1] if powers == "products" else basis)  # all but A^s R
        return [
            ("y", f"Y_{t}[m,n] += A[m,k] * X_{t}[k,n]"),
            ("r", f"R_{t}[m,n] = sub(B[m,n], Y_{t}[m,n])"),
            *lines,
            ("g", f"G_{t}[b,c,n] = gram({', '.join(basis)})"),
            ("c", f"c_{t}[v,n] = least_squares(G_{t}[b,c,n])"),
            ("x", f"X_{t + 1}[m,n] = add_combination(X_{t}[m,n], c_{t}[v,n], {combined})"),
        ]

    a = system("ca_gmres", matrix, rows, nnz)
    extents = {"b": s + 1, "c": s + 1, "v": s}
    return loop_of("ca_gmres", {"A": a}, n, cycle, iterations, form, (index_bits, pointer_bits), extents)


def v_cycle(
    matrix: str = "ecology1",
    rows: int = 0,
    nnz: int = 0,
    n: int = 1,
    grids: int = 4,
    coarsening: int = 4,
    interpolation: int = 9,
    sweeps: int = 1,
    iterations: int = 10,
    form: Form = "unrolled",
    index_bits: int = GOGETA_BITS,
    pointer_bits: int = GOGETA_BITS,
) -> Workload:
    """Multigrid V-cycles on n right-hand sides (Briggs, Henson and McCormick, A Multigrid Tutorial, 2000,
    chapter 3), smoothed by damped Jacobi sweeps.

    matrix, rows, nnz, index_bits, pointer_bits: of the finest grid, as in `cg`
    grids: of which each has 1 / coarsening of the rows of the one before, and as many nonzeros per row
    interpolation: nonzeros per coarse row of the restriction Re and of the interpolation In (9: bilinear)
    sweeps: before and after the coarser grids; on the coarsest one twice as many, instead of a direct solve
    iterations: V-cycles

    W is the damped inverse of the diagonal; jacobi(X, W, B, Q) is X + W (B - Q).
    """
    if coarsening < 2:
        raise WorkloadError(f"v_cycle: coarsening = {coarsening} must be at least 2")
    a = system("v_cycle", matrix, rows, nnz)
    sizes = [a.rows]
    for _ in range(grids - 1):
        sizes.append(-(-sizes[-1] // coarsening))
        if sizes[-1] < interpolation:
            raise WorkloadError(
                f"v_cycle: grids = {grids}: a grid of {sizes[-1]} rows is left, fewer than interpolation = "
                f"{interpolation}; give fewer grids"
            )

    def smooth(t: int, g: int, x: str, first: int, last: int) -> Iterator[Line]:
        for i in range(first, last):
            after = f"X_{t + 1}" if not g and i == 2 * sweeps - 1 else f"S{g}_{t}_{i}_s"
            at = f"[m{g},n]"
            if x:
                yield f"q{g}_{i}", f"Q{g}_{t}_{i}_s{at} += A{g}[m{g},k{g}] * {x}[k{g},n]"
                of = f"{x}{at}, W{g}[m{g}], B{g}{f'_{t}' if g else ''}{at}, Q{g}_{t}_{i}_s{at}"
                yield f"s{g}_{i}", f"{after}{at} = jacobi({of})"
            else:  # from zero
                yield f"s{g}_{i}", f"{after}{at} = W{g}[m{g}] * B{g}_{t}{at}"
            x = after

    def cycle(t: int) -> Iterator[Line]:
        x, last = f"X_{t}", grids - 1
        for g in range(last):
            yield from smooth(t, g, x, 0, sweeps)
            smoothed, at, c, x = f"S{g}_{t}_{sweeps - 1}_s", f"[m{g},n]", g + 1, ""
            yield f"q{g}", f"Q{g}_{t}_r{at} += A{g}[m{g},k{g}] * {smoothed}[k{g},n]"
            yield f"t{g}", f"T{g}_{t}{at} = sub(B{g}{f'_{t}' if g else ''}{at}, Q{g}_{t}_r{at})"
            yield f"b{c}", f"B{c}_{t}[m{c},n] += Re{c}[m{c},k{g}] * T{g}_{t}[k{g},n]"
        yield from smooth(t, last, x, 0, 2 * sweeps)
        for g in reversed(range(last)):
            smoothed, at, c = f"S{g}_{t}_{sweeps - 1}_s", f"[m{g},n]", g + 1
            yield f"e{g}", f"E{g}_{t}{at} += In{c}[m{g},k{c}] * S{c}_{t}_{2 * sweeps - 1}_s[k{c},n]"
            yield f"x{g}", f"C{g}_{t}{at} = {smoothed}{at} + E{g}_{t}{at}"
            yield from smooth(t, g, f"C{g}_{t}", sweeps, 2 * sweeps)

    matrices = {"A0": a}
    for g, (fine, coarse) in enumerate(pairwise(sizes), 1):
        matrices[f"A{g}"] = Matrix(
            a.name, coarse, coarse, max(coarse, min(a.nnz * coarse // a.rows, coarse**2))
        )
        matrices[f"Re{g}"] = Matrix(a.name, coarse, fine, interpolation * coarse)
        matrices[f"In{g}"] = Matrix(a.name, fine, coarse, interpolation * coarse)
    extents = {f"{rank}{g}": size for g, size in enumerate(sizes) for rank in "mk"}
    return loop_of("v_cycle", matrices, n, cycle, iterations, form, (index_bits, pointer_bits), extents)


SOLVERS: dict[str, Callable[..., Workload]] = {
    f.__name__: f
    for f in (cg, pipelined_cg, s_step_cg, bicgstab, gmres, ca_gmres, v_cycle, spmm_chain, sddmm, spgemm)
}


def _powers(x: str, name: str, rank: str, count: int, powers: Powers) -> tuple[list[Line], list[str]]:
    """Returns the einsums of A x, ..., A^count x, and all accesses to x and these. rank: the one that counts
    the powers of a kernel.
    """
    if not count:
        return [], [f"{x}[m,n]"]
    if powers == "kernel":
        whole = f"{name}_all[{rank},m,n]"
        return [(rank, f"{whole} = powers(A[m,k], {x}[k,n])")], [f"{x}[m,n]", whole]
    names = [x, *(f"{name}_{i}_v" for i in range(1, count + 1))]
    lines = [(f"{rank}{i}", f"{names[i]}[m,n] += A[m,k] * {names[i - 1]}[k,n]") for i in range(1, count + 1)]
    return lines, [f"{one}[m,n]" for one in names]
