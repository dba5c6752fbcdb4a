"""Dense and sparse linear algebra, and Krylov solvers, as einsums. Sparse matrices are given by size
(workloads/matrix.py).

Solvers start inside the loop: matrix, right-hand sides and start values come from outside. An einsum that
reads a tensor in two ways names the second access T_again. The value of x in step t is x_t. `periodic` is one
step, run `iterations` times, whose x_1 is the x_0 of the next one (`Workload.loop_state`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from types import MappingProxyType
from typing import Any, Literal

from workloads.einsum import GOGETA_BITS, Einsum, WorkloadError, closest, csr, einsum, squeezed
from workloads.graph import Workload, in_order
from workloads.layers import Cascade
from workloads.loops import Form
from workloads.matrix import MATRICES, SUFFIXES, Matrix, Pattern, is_matrix_file, read_pattern
from workloads.sparsity import level_count, product_counts, tile_columns, triangle

Line = tuple[str, str]  # name and text of an einsum
GRID_LEVELS = {"ecology1": 1999}  # of rows in their order: of a grid of 1000 x 1000 with five points


def gemm(m: int, n: int, k: int) -> Cascade:
    """Dense matrix product of [m, k] and [k, n]."""
    return (einsum("C[m,n] += A[m,k] * B[k,n]", {"m": m, "n": n, "k": k}, "gemm"),)


def bmm(b: int, m: int, n: int, k: int) -> Cascade:
    """b matrix products without shared operands."""
    return (einsum("C[b,m,n] += A[b,m,k] * B[b,k,n]", {"b": b, "m": m, "n": n, "k": k}, "bmm"),)


def spmm(m: int, k: int, n: int, nnz: int, index_bits: int = 0, pointer_bits: int = 0) -> Cascade:
    """A (m x k, nnz nonzeros, CSR) times a dense matrix: nnz * n multiplications.

    index_bits, pointer_bits: of a column index and of a row pointer; 0: the minimum for k columns and nnz
        nonzeros
    """
    sparse = csr("A", _density("spmm", m, k, nnz), index_bits, pointer_bits)
    return (einsum("Y[m,n] += A[m,k] * X[k,n]", {"m": m, "n": n, "k": k}, "spmm", **sparse),)


def spmv(m: int, k: int, nnz: int, index_bits: int = 0, pointer_bits: int = 0) -> Cascade:
    """A (m x k, nnz nonzeros, CSR) times a vector.

    Parameters as in `spmm`.
    """
    sparse = csr("A", _density("spmv", m, k, nnz), index_bits, pointer_bits)
    return (einsum("Y[m] += A[m,k] * X[k]", {"m": m, "k": k}, "spmv", **sparse),)


def inverse(n: int, b: int = 1) -> Cascade:
    """b inverses of n x n matrices by in-place Gauss-Jordan, n**3 operations each.

    Meant for matrices so small that each one stays in one memory.
    """
    return (einsum("Y[b,i,j] = inverse(A[b,i,k])", {"b": b, "i": n, "j": n, "k": n}, "inverse"),)


def _density(name: str, m: int, k: int, nnz: int) -> float:
    if nnz > m * k:
        raise WorkloadError(f"{name}: nnz = {nnz} must not be above m * k = {m * k}")
    return nnz / (m * k)


# Solvers


def cg(
    matrix: str = "ecology1",
    rows: int = 0,
    nnz: int = 0,
    n: int = 1,
    iterations: int = 10,
    form: Form = "unrolled",
    index_bits: int = GOGETA_BITS,
    pointer_bits: int = GOGETA_BITS,
    preconditioner: Literal["none", "jacobi", "symgs"] = "none",
    levels: int = 0,
) -> Workload:
    """Conjugate gradients on n right-hand sides at once (block CG, O'Leary 1980).

    matrix: a name of MATRICES or a file (Matrix Market, .npz of SciPy); rows and nnz, if given, are
        used instead
    index_bits, pointer_bits: of its column indices and row pointers
    preconditioner: jacobi divides residuals by the diagonal of A, whose inverse M comes from outside (line
        4z); symgs: a symmetric Gauss-Seidel sweep from zero, (D + U) Z = D Y with (D + L) Y = R, of the
        triangles L and U and the diagonal D of A (HPCG, Dongarra and Heroux 2013: lines 4l, 4d, 4z)
    levels: of symgs: sets of rows of a triangle, of which each needs those before (Anderson and Saad 1989);
        0: counted in the file of the matrix, or known of the grid of ecology1

    The triangles come from outside as matrices of their own, Low and Up with the diagonal each, as those of
    incomplete factors do.

    Lines are numbered as by GOGETA (arXiv 2303.11499). inverse(D, G) is inv(D) G, n**3 operations. Lines 3, 4
    and 7 are two einsums each: a product, and, with a u after the number, the sum that updates X, R or P by
    it.
    """

    def step(t: int) -> list[Line]:
        u = t + 1
        # the preconditioned residual, and how line 5 reads it beside the residual
        z, z_read = (f"R_{u}", f"R_{u}_again") if preconditioner == "none" else (f"Z_{u}", f"Z_{u}")
        preconditioned = {
            "none": [],
            "jacobi": [("4z", f"Z_{u}[m,n] = M[m] * R_{u}[m,n]")],
            "symgs": [
                ("4l", f"Y_{u}[m,n] = lower_solve_levels{depth}(Low[m,k], R_{u}[k,n])"),
                ("4d", f"DY_{u}[m,n] = D[m] * Y_{u}[m,n]"),
                ("4z", f"Z_{u}[m,n] = upper_solve_levels{depth}(Up[m,k], DY_{u}[k,n])"),
            ],
        }[preconditioner]
        return [
            ("1", f"S_{t}[m,n] += A[m,k] * P_{t}[k,n]"),
            ("2a", f"D_{t}[j,n] += P_{t}[m,j] * S_{t}[m,n]"),
            ("2b", f"L_{t}[j,n] = inverse(D_{t}[j,i], G_{t}[i,n])"),
            ("3", f"PL_{t}[m,n] += P_{t}[m,j] * L_{t}[j,n]"),
            ("3u", f"X_{u}[m,n] = X_{t}[m,n] + PL_{t}[m,n]"),
            ("4", f"SL_{t}[m,n] += S_{t}[m,j] * L_{t}[j,n]"),
            ("4u", f"R_{u}[m,n] = sub(R_{t}[m,n], SL_{t}[m,n])"),
            *preconditioned,
            ("5", f"G_{u}[j,n] += R_{u}[m,j] * {z_read}[m,n]"),
            ("6", f"F_{t}[j,n] = inverse(G_{t}[j,i], G_{u}[i,n])"),
            ("7", f"PF_{t}[m,n] += P_{t}[m,j] * F_{t}[j,n]"),
            ("7u", f"P_{u}[m,n] = {z}[m,n] + PF_{t}[m,n]"),
        ]

    a, depth = system("cg", matrix, rows, nnz), 0
    matrices = {"A": a}
    if preconditioner == "symgs":
        low, up, depth = _triangles(a, matrix, levels)
        matrices |= {"Low": low, "Up": up}
    elif levels:
        raise WorkloadError(f"cg: levels = {levels} are of preconditioner=symgs; leave them out")
    return loop_of("cg", matrices, n, step, iterations, form, (index_bits, pointer_bits))


def pipelined_cg(
    matrix: str = "ecology1",
    rows: int = 0,
    nnz: int = 0,
    n: int = 1,
    iterations: int = 10,
    form: Form = "unrolled",
    index_bits: int = GOGETA_BITS,
    pointer_bits: int = GOGETA_BITS,
) -> Workload:
    """Pipelined conjugate gradients (Ghysels and Vanroose 2014, Algorithm 3) on n right-hand sides, each with
    scalars of its own.

    matrix, rows, nnz, index_bits, pointer_bits: as in `cg`

    W is A R, S is A P, Z is A S, all by recurrences. Both sums of a step (g, d) come before its product with
    A, which needs neither. Before the first step g is infinite and a is 1.
    """

    def step(t: int) -> list[Line]:
        u = t + 1
        return [
            ("g", f"g_{u}[n] = square(R_{t}[m,n])"),
            ("d", f"d_{t}[n] += W_{t}[m,n] * R_{t}[m,n]"),
            ("q", f"Q_{t}[m,n] += A[m,k] * W_{t}[k,n]"),
            ("b", f"b_{t}[n] = div(g_{u}[n], g_{t}[n])"),
            ("a", f"a_{u}[n] = step(g_{u}[n], d_{t}[n], b_{t}[n], a_{t}[n])"),
            ("z", f"Z_{u}[m,n] = add_mul(Q_{t}[m,n], b_{t}[n], Z_{t}[m,n])"),
            ("s", f"S_{u}[m,n] = add_mul(W_{t}[m,n], b_{t}[n], S_{t}[m,n])"),
            ("p", f"P_{u}[m,n] = add_mul(R_{t}[m,n], b_{t}[n], P_{t}[m,n])"),
            ("x", f"X_{u}[m,n] = add_mul(X_{t}[m,n], a_{u}[n], P_{u}[m,n])"),
            ("r", f"R_{u}[m,n] = sub_mul(R_{t}[m,n], a_{u}[n], S_{u}[m,n])"),
            ("w", f"W_{u}[m,n] = sub_mul(W_{t}[m,n], a_{u}[n], Z_{u}[m,n])"),
        ]

    a = system("pipelined_cg", matrix, rows, nnz)
    return loop_of("pipelined_cg", {"A": a}, n, step, iterations, form, (index_bits, pointer_bits))


def bicgstab(
    matrix: str = "ecology1",
    rows: int = 0,
    nnz: int = 0,
    n: int = 1,
    iterations: int = 10,
    form: Form = "unrolled",
    index_bits: int = GOGETA_BITS,
    pointer_bits: int = GOGETA_BITS,
) -> Workload:
    """BiCGStab (van der Vorst 1992) on n right-hand sides, each with scalars of its own.

    matrix, rows, nnz, index_bits, pointer_bits: as in `cg`

    Z is the shadow residual. add_mul(Y, a, X, ...) is Y + a X + ..., sub_mul(Y, a, X) is Y - a X, with a
    scalar per column.
    """

    def step(t: int) -> list[Line]:
        u = t + 1
        return [
            ("v", f"V_{t}[m,n] += A[m,k] * P_{t}[k,n]"),
            ("zv", f"zv_{t}[n] += Z[m,n] * V_{t}[m,n]"),
            ("alpha", f"alpha_{t}[n] = div(rho_{t}[n], zv_{t}[n])"),
            ("s", f"S_{t}[m,n] = sub_mul(R_{t}[m,n], alpha_{t}[n], V_{t}[m,n])"),
            ("t", f"T_{t}[m,n] += A[m,k] * S_{t}[k,n]"),
            ("ts", f"ts_{t}[n] += T_{t}[m,n] * S_{t}[m,n]"),
            ("tt", f"tt_{t}[n] = square(T_{t}[m,n])"),
            ("omega", f"omega_{t}[n] = div(ts_{t}[n], tt_{t}[n])"),
            ("x", f"X_{u}[m,n] = add_mul(X_{t}[m,n], alpha_{t}[n], P_{t}[m,n], omega_{t}[n], S_{t}[m,n])"),
            ("r", f"R_{u}[m,n] = sub_mul(S_{t}[m,n], omega_{t}[n], T_{t}[m,n])"),
            ("rho", f"rho_{u}[n] += Z[m,n] * R_{u}[m,n]"),
            ("beta", f"beta_{t}[n] = beta(rho_{u}[n], rho_{t}[n], alpha_{t}[n], omega_{t}[n])"),
            ("back", f"back_{t}[n] = neg_mul(beta_{t}[n], omega_{t}[n])"),
            ("p", f"P_{u}[m,n] = add_mul(R_{u}[m,n], beta_{t}[n], P_{t}[m,n], back_{t}[n], V_{t}[m,n])"),
        ]

    a = system("bicgstab", matrix, rows, nnz)
    return loop_of("bicgstab", {"A": a}, n, step, iterations, form, (index_bits, pointer_bits))


def gmres(
    matrix: str = "ecology1",
    rows: int = 0,
    nnz: int = 0,
    n: int = 1,
    m: int = 10,
    iterations: int = 1,
    form: Form = "unrolled",
    index_bits: int = GOGETA_BITS,
    pointer_bits: int = GOGETA_BITS,
) -> Workload:
    """GMRES(m) (Saad and Schultz 1986) on n right-hand sides, each with a Hessenberg matrix of its own.

    matrix, rows, nnz, index_bits, pointer_bits: as in `cg`
    iterations: cycles of m steps

    Modified Gram-Schmidt, so every basis vector is read twice per step (product, update); Givens rotations
    (turn, turn_back) in every step; back substitution at the end.
    """

    def cycle(t: int) -> list[Line]:
        start = [
            ("y", f"Y_{t}[m,n] += A[m,k] * X_{t}[k,n]"),
            ("r", f"R_{t}[m,n] = sub(B[m,n], Y_{t}[m,n])"),
            ("q", f"q_{t}[n] = square(R_{t}[m,n])"),
            ("g", f"g_{t}_0[n] = sqrt(q_{t}[n])"),
            ("v", f"V_{t}_0[m,n] = div(R_{t}[m,n], g_{t}_0[n])"),
        ]
        return [*start, *(line for j in range(m) for line in _arnoldi(t, j, j == m - 1)), *_combination(t, m)]

    a = system("gmres", matrix, rows, nnz)
    return loop_of("gmres", {"A": a}, n, cycle, iterations, form, (index_bits, pointer_bits))


def spmm_chain(
    matrix: str = "ecology1",
    rows: int = 0,
    nnz: int = 0,
    n: int = 1,
    length: int = 4,
    index_bits: int = GOGETA_BITS,
    pointer_bits: int = GOGETA_BITS,
) -> Workload:
    """X_length = A ... A X_0: powers of a matrix on n vectors (propagation, polynomial filters).

    Matrix as in `cg`.
    """

    def step(t: int) -> list[Line]:
        return [("x", f"X_{t + 1}[m,n] += A[m,k] * X_{t}[k,n]")]

    a = system("spmm_chain", matrix, rows, nnz)
    return loop_of("spmm_chain", {"A": a}, n, step, length, "unrolled", (index_bits, pointer_bits))


def sddmm(
    matrix: str = "ecology1",
    rows: int = 0,
    nnz: int = 0,
    k: int = 64,
    index_bits: int = GOGETA_BITS,
    pointer_bits: int = GOGETA_BITS,
) -> Workload:
    """Sampled dense x dense product: S = A * (X Y'), of the k x nnz products that the nonzeros of A ask for.

    matrix, rows, nnz, index_bits, pointer_bits: as in `cg`; A need not be square
    k: width of X and Y

    S is stored in csr and has the pattern of A, which is known before: each nonzero is a dot product.
    """
    a = _matrix("sddmm", matrix, rows, nnz)
    sparse = csr("A", _density("sddmm", a.rows, a.columns, a.nnz), index_bits, pointer_bits, a.tile_columns)
    extents = {"m": a.rows, "n": a.columns, "k": k}
    e = einsum(
        "S[m,n] += A[m,n] * X[m,k] * Y[n,k]",
        extents,
        "sddmm",
        **with_result("S", sparse, index_bits, pointer_bits),
    )
    return Workload(f"sddmm:matrix={a.name},k={k}", (squeezed(e),))


def spgemm(
    matrix: str = "ecology1",
    rows: int = 0,
    nnz: int = 0,
    times: Literal["itself", "transpose"] = "itself",
    index_bits: int = GOGETA_BITS,
    pointer_bits: int = GOGETA_BITS,
) -> Workload:
    """Sparse x sparse product with a sparse result: C = A A, or A A'.

    matrix, rows, nnz, index_bits, pointer_bits: as in `cg`; with the transpose A need not be square

    From a file, products and nonzeros of C are counted; of a matrix given by its size they are expected of as
    many nonzeros spread evenly (`Einsum.expected_density`).
    """
    a = _matrix("spgemm", matrix, rows, nnz)
    p = read_pattern(matrix) if a.tile_columns else None
    if times == "itself":
        _check_square("spgemm", a, matrix)
    of = {"A": a.tile_columns, "A_again": None}
    density = _density("spgemm", a.rows, a.columns, a.nnz)
    sparse: dict[str, dict[str, Any]] = {}
    for tensor, columns in of.items():
        for key, value in csr(tensor, density, index_bits, pointer_bits, columns).items():
            sparse.setdefault(key, {}).update(value)
    result = with_result("C", sparse, index_bits, pointer_bits)
    extents = {"m": a.rows, "n": a.columns if times == "itself" else a.rows, "k": a.columns}
    second = "A_again[k,n]" if times == "itself" else "A_again[n,k]"
    text, name = f"C[m,n] += A[m,k] * {second}", "spgemm"
    if p:
        products, nonzeros = product_counts(p, times == "transpose")
        result["density"]["C"] = nonzeros / (extents["m"] * extents["n"])
        found = replace(einsum(text, extents, name, **result), share=products / prod(extents.values()))
    else:
        found = einsum(text, extents, name, **result)
    return Workload(f"spgemm:matrix={a.name},times={times}", (squeezed(found),))


def with_result(
    tensor: str, sparse: dict[str, dict[str, Any]], index_bits: int, pointer_bits: int
) -> dict[str, dict[str, Any]]:
    """Returns arguments of `einsum` with those of a csr result of the density that is expected of it."""
    widths = {"index_bits": index_bits, "pointer_bits": pointer_bits}
    more: dict[str, dict[str, Any]] = {
        "format": {tensor: "csr"},
        **{key: {tensor: n} for key, n in widths.items() if n},
    }
    return {key: {**sparse.get(key, {}), **more.get(key, {})} for key in {**sparse, **more}}


def _arnoldi(t: int, j: int, last: bool) -> Iterator[Line]:
    """Yields step j of a cycle: the next basis vector, column j of the rotated Hessenberg matrix (r), and the
    new rotation (c, s).
    """
    yield f"w{j}", f"W_{t}_{j}_0[m,n] += A[m,k] * V_{t}_{j}[k,n]"
    for i in range(j + 1):
        yield f"h{j}_{i}", f"h_{t}_{j}_{i}[n] += V_{t}_{i}[m,n] * W_{t}_{j}_{i}[m,n]"
        yield (
            f"w{j}_{i}",
            f"W_{t}_{j}_{i + 1}[m,n] = sub_mul(W_{t}_{j}_{i}[m,n], h_{t}_{j}_{i}[n], V_{t}_{i}[m,n])",
        )
    yield f"q{j}", f"q_{t}_{j}[n] = square(W_{t}_{j}_{j + 1}[m,n])"
    yield f"e{j}", f"e_{t}_{j}[n] = sqrt(q_{t}_{j}[n])"
    if not last:
        yield f"v{j + 1}", f"V_{t}_{j + 1}[m,n] = div(W_{t}_{j}_{j + 1}[m,n], e_{t}_{j}[n])"
    rotated = f"h_{t}_{j}_0"
    for i in range(j):
        pair = f"{rotated}[n], h_{t}_{j}_{i + 1}[n], c_{t}_{i}[n], s_{t}_{i}[n]"
        yield f"r{j}_{i}", f"r_{t}_{j}_{i}[n] = turn({pair})"
        yield f"k{j}_{i}", f"k_{t}_{j}_{i}[n] = turn_back({pair})"
        rotated = f"k_{t}_{j}_{i}"
    yield f"r{j}_{j}", f"r_{t}_{j}_{j}[n] = hypot({rotated}[n], e_{t}_{j}[n])"
    yield f"c{j}", f"c_{t}_{j}[n] = div({rotated}[n], r_{t}_{j}_{j}[n])"
    yield f"s{j}", f"s_{t}_{j}[n] = div(e_{t}_{j}[n], r_{t}_{j}_{j}[n])"
    yield f"z{j}", f"z_{t}_{j}_{j}[n] = c_{t}_{j}[n] * g_{t}_{j}[n]"
    if not last:
        yield f"g{j + 1}", f"g_{t}_{j + 1}[n] = neg_mul(s_{t}_{j}[n], g_{t}_{j}[n])"


def _combination(t: int, m: int) -> Iterator[Line]:
    """Yields the solution of r y = z, from the last row up, and the sum of X and the basis vectors times
    y.
    """
    for j in reversed(range(m)):
        for k in range(j + 1, m):
            yield (
                f"z{j}_{k}",
                f"z_{t}_{j}_{k}[n] = sub_mul(z_{t}_{j}_{k - 1}[n], r_{t}_{k}_{j}[n], y_{t}_{k}[n])",
            )
        yield f"y{j}", f"y_{t}_{j}[n] = div(z_{t}_{j}_{m - 1}[n], r_{t}_{j}_{j}[n])"
    for j in range(m):
        after = f"X_{t + 1}" if j == m - 1 else f"X_{t}_{j}"
        yield (
            f"x{j}",
            f"{after}[m,n] = add_mul({f'X_{t}_{j - 1}' if j else f'X_{t}'}[m,n], y_{t}_{j}[n], "
            f"V_{t}_{j}[m,n])",
        )


def loop_of(
    name: str,
    matrices: Mapping[str, Matrix],
    n: int,
    step: Callable[[int], Iterable[Line]],
    iterations: int,
    form: Form,
    widths: tuple[int, int],
    extents: Mapping[str, int] = MappingProxyType({}),
) -> Workload:
    """Returns the workload of a solver on n right-hand sides.

    matrices: operands in CSR by name, that of the system first; step: the einsums of an iteration; widths:
        bits of a column index and of a row pointer; extents: of ranks beside m, k, n, j, i
    """
    a = next(iter(matrices.values()))
    sparse = {
        name: csr(name, one.nnz / (one.rows * one.columns), *widths, one.tile_columns)
        for name, one in matrices.items()
    }
    known = {"m": a.rows, "n": n, "k": a.columns, "j": n, "i": n, **extents}
    steps = 1 if form == "periodic" else iterations

    def made(t: int, line: str, text: str) -> Einsum:
        operand: Mapping[str, Any] = next(
            (of for m, of in sparse.items() if re.search(rf"[ (]{m}\[", text)), {}
        )
        return squeezed(einsum(text, known, f"{t}.{line}", **operand))

    found = [made(t, line, text) for t in range(steps) for line, text in step(t)]
    label = f"{name}:matrix={a.name},n={n}"
    repeats = (iterations,) * len(found) if iterations > steps else ()
    return Workload(label, in_order(label, found), repeats=repeats, loop_state=_loop_state(found, steps))


def _triangles(a: Matrix, source: str, levels: int) -> tuple[Matrix, Matrix, int]:
    """Returns the lower and the upper triangle of a matrix, each with the whole diagonal, and the levels of
    rows of the lower one. Where only its size is known, as many nonzeros are taken to lie in either.
    """
    if a.tile_columns:
        p = read_pattern(source)
        low, up = (triangle(p, lower) for lower in (True, False))
        of = [Matrix(t.name, t.rows, t.columns, len(t.places), False, tile_columns(t)) for t in (low, up)]
        return of[0], of[1], levels or level_count(low)
    depth = levels or GRID_LEVELS.get(a.name, 0)
    if not depth:
        raise WorkloadError(
            f"cg: preconditioner=symgs on {a.name}, of which only the size is known, needs levels, the sets "
            "of rows that are solved one after another: give levels=, of a grid of x by y points x + y - 1"
        )
    if depth > a.rows:
        raise WorkloadError(f"cg: levels = {depth} must not be above the {a.rows} rows")
    half = Matrix(a.name, a.rows, a.columns, max(a.rows, (a.nnz + a.rows) // 2))
    return half, half, depth


def _loop_state(einsums: Sequence[Einsum], steps: int) -> tuple[tuple[str, str], ...]:
    """Returns (value that the last step makes, name under which the first step reads it from outside)."""
    outputs = {e.output.tensor: None for e in einsums}
    read = {p.tensor for e in einsums for p in e.inputs}.difference(outputs)
    end = f"_{steps}"
    pairs = ((after, after.removesuffix(end) + "_0") for after in outputs if after.endswith(end))
    return tuple((after, before) for after, before in pairs if before in read)


def system(name: str, matrix: str, rows: int, nnz: int) -> Matrix:
    """Returns a square real matrix by name, file, or size."""
    found = _matrix(name, matrix, rows, nnz)
    _check_square(name, found, matrix)
    return found


def _check_square(name: str, a: Matrix, matrix: str) -> None:
    if a.rows != a.columns:
        raise WorkloadError(f"{matrix}: {a.rows} x {a.columns} is not square; {name} needs a square matrix")


def _matrix(name: str, matrix: str, rows: int, nnz: int) -> Matrix:
    """Returns a real matrix by name, file, or size."""
    if rows or nnz:
        if not rows or not nnz:
            raise WorkloadError(f"{name}: rows = {rows}, nnz = {nnz}: a matrix by its size needs both")
        if nnz > rows * rows:
            raise WorkloadError(f"{name}: nnz = {nnz} must not be above rows * rows = {rows * rows}")
        return Matrix(f"{rows}x{nnz}", rows, rows, nnz)
    if matrix not in MATRICES and not is_matrix_file(matrix):
        hint = closest(
            matrix, MATRICES, f"there are {', '.join(MATRICES)}; a file ends in {', '.join(SUFFIXES)}"
        )
        raise WorkloadError(f"{name}: no matrix is named {matrix}; {hint}")
    found = MATRICES.get(matrix) or matrix_of(read_pattern(matrix))
    if found.is_complex:
        raise WorkloadError(
            f"{matrix}: complex entries; einsums count real words: write the real system of twice the size"
        )
    return found


def matrix_of(p: Pattern) -> Matrix:
    """Returns the matrix of a pattern, with the distinct columns of its tiles of rows."""
    return Matrix(p.name, p.rows, p.columns, len(p.places), p.is_complex, tile_columns(p))
