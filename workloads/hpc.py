"""Dense and sparse linear algebra, and Krylov solvers, as einsums; sparse matrices by their size or from MatrixMarket files.

Solvers start inside the loop: the matrix, right-hand sides and start values come from outside. What reads one tensor in two ways gives the second
access the name T_again. A value x of step t is x_t; `periodic` is one step, run `iterations` times, whose x_1 is the next one's x_0 (`carried`).
"""

from __future__ import annotations

import difflib
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
import scipy.io
import scipy.sparse

from workloads.einsum import WorkloadError, einsum, squeezed
from workloads.graph import Workload, in_order
from workloads.layers import Cascade

Form = Literal["unrolled", "periodic"]
Line = tuple[str, str]  # name and text of an einsum
CHUNK = 1 << 22
FIELDS = {"real": 3, "double": 3, "integer": 3, "unsigned-integer": 3, "complex": 4, "pattern": 2}  # words of an entry
SYMMETRIES = ("general", "symmetric", "skew-symmetric", "hermitian")


@dataclass(frozen=True, slots=True)
class Matrix:
    """A sparse matrix as far as its cost goes. nnz counts both halves of a symmetric one."""

    name: str
    rows: int
    columns: int
    nnz: int
    is_complex: bool = False


MATRICES = {m.name: m for m in (  # GOGETA (arXiv 2303.11499), table 2, from SuiteSparse
    Matrix("aft02", 8184, 8184, 127762), Matrix("ecology1", 1000000, 1000000, 4996000), Matrix("barth5", 15606, 15606, 61484),
    Matrix("nasa4704", 4704, 4704, 104756))}


def gemm(m: int, n: int, k: int) -> Cascade:
    return (einsum("C[m,n] += A[m,k] * B[k,n]", {"m": m, "n": n, "k": k}, "gemm"),)


def bmm(b: int, m: int, n: int, k: int) -> Cascade:
    """b products of matrices, none of them shared."""
    return (einsum("C[b,m,n] += A[b,m,k] * B[b,k,n]", {"b": b, "m": m, "n": n, "k": k}, "bmm"),)


def spmm(m: int, k: int, n: int, nnz: int) -> Cascade:
    """A (m x k, nnz nonzeros, CSR: 2 * nnz + m words) times a dense matrix: nnz * n multiplications."""
    return (einsum("Y[m,n] += A[m,k] * X[k,n]", {"m": m, "n": n, "k": k}, "spmm", density={"A": _density("spmm", m, k, nnz)}, format={"A": "csr"}),)


def spmv(m: int, k: int, nnz: int) -> Cascade:
    """As `spmm`, times a vector."""
    return (einsum("Y[m] += A[m,k] * X[k]", {"m": m, "k": k}, "spmv", density={"A": _density("spmv", m, k, nnz)}, format={"A": "csr"}),)


def inverse(n: int, b: int = 1) -> Cascade:
    """b inverses of n x n matrices, n**3 operations each: Gauss-Jordan in place. Meant for matrices so small that each stays in one place."""
    return (einsum("Y[b,i,j] = inverse(A[b,i,k])", {"b": b, "i": n, "j": n, "k": n}, "inverse"),)


def _density(name: str, m: int, k: int, nnz: int) -> float:
    if nnz > m * k:
        raise WorkloadError(f"{name}: nnz = {nnz} must not be above m * k = {m * k}")
    return nnz / (m * k)


# Solvers


def cg(matrix: str = "", rows: int = 0, nnz: int = 0, n: int = 1, iterations: int = 10, form: Form = "unrolled") -> Workload:
    """Conjugate gradients on n right-hand sides at once (block CG, O'Leary 1980), lines as numbered by GOGETA (arXiv 2303.11499).

    matrix: a name of MATRICES or a MatrixMarket file; else rows and nnz. inverse(D, G) is inv(D) G, n**3 operations. Lines 3, 4
    and 7 are a product and, under the number with a u, the sum that updates X, R or P by it.
    """
    def step(t: int) -> list[Line]:
        u = t + 1
        return [
            ("1", f"S_{t}[m,n] += A[m,k] * P_{t}[k,n]"), ("2a", f"D_{t}[j,n] += P_{t}[m,j] * S_{t}[m,n]"),
            ("2b", f"L_{t}[j,n] = inverse(D_{t}[j,i], G_{t}[i,n])"),
            ("3", f"PL_{t}[m,n] += P_{t}[m,j] * L_{t}[j,n]"), ("3u", f"X_{u}[m,n] = X_{t}[m,n] + PL_{t}[m,n]"),
            ("4", f"SL_{t}[m,n] += S_{t}[m,j] * L_{t}[j,n]"), ("4u", f"R_{u}[m,n] = sub(R_{t}[m,n], SL_{t}[m,n])"),
            ("5", f"G_{u}[j,n] += R_{u}[m,j] * R_{u}_again[m,n]"), ("6", f"F_{t}[j,n] = inverse(G_{t}[j,i], G_{u}[i,n])"),
            ("7", f"PF_{t}[m,n] += P_{t}[m,j] * F_{t}[j,n]"), ("7u", f"P_{u}[m,n] = R_{u}[m,n] + PF_{t}[m,n]")]

    return _solver("cg", _system("cg", matrix, rows, nnz), n, [step(t) for t in range(iterations if form == "unrolled" else 1)], iterations, form)


def bicgstab(matrix: str = "", rows: int = 0, nnz: int = 0, n: int = 1, iterations: int = 10, form: Form = "unrolled") -> Workload:
    """BiCGStab (van der Vorst 1992) on n right-hand sides, each with scalars of its own; Z is the shadow residual. Matrix as `cg`.

    add_mul(Y, a, X, ...) is Y + a X + ..., sub_mul(Y, a, X) is Y - a X, with a scalar per column.
    """
    def step(t: int) -> list[Line]:
        u = t + 1
        return [
            ("v", f"V_{t}[m,n] += A[m,k] * P_{t}[k,n]"), ("zv", f"zv_{t}[n] += Z[m,n] * V_{t}[m,n]"), ("alpha", f"alpha_{t}[n] = div(rho_{t}[n], zv_{t}[n])"),
            ("s", f"S_{t}[m,n] = sub_mul(R_{t}[m,n], alpha_{t}[n], V_{t}[m,n])"), ("t", f"T_{t}[m,n] += A[m,k] * S_{t}[k,n]"),
            ("ts", f"ts_{t}[n] += T_{t}[m,n] * S_{t}[m,n]"), ("tt", f"tt_{t}[n] = square(T_{t}[m,n])"), ("omega", f"omega_{t}[n] = div(ts_{t}[n], tt_{t}[n])"),
            ("x", f"X_{u}[m,n] = add_mul(X_{t}[m,n], alpha_{t}[n], P_{t}[m,n], omega_{t}[n], S_{t}[m,n])"),
            ("r", f"R_{u}[m,n] = sub_mul(S_{t}[m,n], omega_{t}[n], T_{t}[m,n])"), ("rho", f"rho_{u}[n] += Z[m,n] * R_{u}[m,n]"),
            ("beta", f"beta_{t}[n] = beta(rho_{u}[n], rho_{t}[n], alpha_{t}[n], omega_{t}[n])"), ("back", f"back_{t}[n] = neg_mul(beta_{t}[n], omega_{t}[n])"),
            ("p", f"P_{u}[m,n] = add_mul(R_{u}[m,n], beta_{t}[n], P_{t}[m,n], back_{t}[n], V_{t}[m,n])")]

    steps = [step(t) for t in range(iterations if form == "unrolled" else 1)]
    return _solver("bicgstab", _system("bicgstab", matrix, rows, nnz), n, steps, iterations, form)


def gmres(matrix: str = "", rows: int = 0, nnz: int = 0, n: int = 1, m: int = 10, iterations: int = 1, form: Form = "unrolled") -> Workload:
    """GMRES(m) (Saad and Schultz 1986) on n right-hand sides, each with a Hessenberg matrix of its own; iterations counts cycles. Matrix as `cg`.

    Modified Gram-Schmidt, so every basis vector is read twice per step (product, update); Givens rotations (turn, turn_back) on the
    fly; then back substitution.
    """
    def cycle(t: int) -> list[Line]:
        start = [("y", f"Y_{t}[m,n] += A[m,k] * X_{t}[k,n]"), ("r", f"R_{t}[m,n] = sub(B[m,n], Y_{t}[m,n])"), ("q", f"q_{t}[n] = square(R_{t}[m,n])"),
                 ("g", f"g_{t}_0[n] = sqrt(q_{t}[n])"), ("v", f"V_{t}_0[m,n] = div(R_{t}[m,n], g_{t}_0[n])")]
        return [*start, *(line for j in range(m) for line in _arnoldi(t, j, j == m - 1)), *_combination(t, m)]

    return _solver("gmres", _system("gmres", matrix, rows, nnz), n, [cycle(t) for t in range(iterations if form == "unrolled" else 1)], iterations, form)


def spmm_chain(matrix: str = "", rows: int = 0, nnz: int = 0, n: int = 1, length: int = 4) -> Workload:
    """X_length = A ... A X_0: powers of a matrix on n vectors (propagation, polynomial filters). Matrix as `cg`."""
    steps = [[("x", f"X_{t + 1}[m,n] += A[m,k] * X_{t}[k,n]")] for t in range(length)]
    return _solver("spmm_chain", _system("spmm_chain", matrix, rows, nnz), n, steps, length, "unrolled")


SOLVERS = {"cg": cg, "bicgstab": bicgstab, "gmres": gmres, "spmm_chain": spmm_chain}


def _arnoldi(t: int, j: int, last: bool) -> Iterator[Line]:
    """Step j of a cycle: the next basis vector, column j of the rotated Hessenberg matrix (r), the rotation that it brings (c, s)."""
    yield f"w{j}", f"W_{t}_{j}_0[m,n] += A[m,k] * V_{t}_{j}[k,n]"
    for i in range(j + 1):
        yield f"h{j}_{i}", f"h_{t}_{j}_{i}[n] += V_{t}_{i}[m,n] * W_{t}_{j}_{i}[m,n]"
        yield f"w{j}_{i}", f"W_{t}_{j}_{i + 1}[m,n] = sub_mul(W_{t}_{j}_{i}[m,n], h_{t}_{j}_{i}[n], V_{t}_{i}[m,n])"
    yield f"q{j}", f"q_{t}_{j}[n] = square(W_{t}_{j}_{j + 1}[m,n])"
    yield f"e{j}", f"e_{t}_{j}[n] = sqrt(q_{t}_{j}[n])"
    if not last:
        yield f"v{j + 1}", f"V_{t}_{j + 1}[m,n] = div(W_{t}_{j}_{j + 1}[m,n], e_{t}_{j}[n])"
    turned = f"h_{t}_{j}_0"
    for i in range(j):
        pair = f"{turned}[n], h_{t}_{j}_{i + 1}[n], c_{t}_{i}[n], s_{t}_{i}[n]"
        yield f"r{j}_{i}", f"r_{t}_{j}_{i}[n] = turn({pair})"
        yield f"k{j}_{i}", f"k_{t}_{j}_{i}[n] = turn_back({pair})"
        turned = f"k_{t}_{j}_{i}"
    yield f"r{j}_{j}", f"r_{t}_{j}_{j}[n] = hypot({turned}[n], e_{t}_{j}[n])"
    yield f"c{j}", f"c_{t}_{j}[n] = div({turned}[n], r_{t}_{j}_{j}[n])"
    yield f"s{j}", f"s_{t}_{j}[n] = div(e_{t}_{j}[n], r_{t}_{j}_{j}[n])"
    yield f"z{j}", f"z_{t}_{j}_{j}[n] = c_{t}_{j}[n] * g_{t}_{j}[n]"
    if not last:
        yield f"g{j + 1}", f"g_{t}_{j + 1}[n] = neg_mul(s_{t}_{j}[n], g_{t}_{j}[n])"


def _combination(t: int, m: int) -> Iterator[Line]:
    """Solve r y = z from the last row up; add the basis vectors to X by y."""
    for j in reversed(range(m)):
        for k in range(j + 1, m):
            yield f"z{j}_{k}", f"z_{t}_{j}_{k}[n] = sub_mul(z_{t}_{j}_{k - 1}[n], r_{t}_{k}_{j}[n], y_{t}_{k}[n])"
        yield f"y{j}", f"y_{t}_{j}[n] = div(z_{t}_{j}_{m - 1}[n], r_{t}_{j}_{j}[n])"
    for j in range(m):
        after = f"X_{t + 1}" if j == m - 1 else f"X_{t}_{j}"
        yield f"x{j}", f"{after}[m,n] = add_mul({f'X_{t}_{j - 1}' if j else f'X_{t}'}[m,n], y_{t}_{j}[n], V_{t}_{j}[m,n])"


def _solver(name: str, a: Matrix, n: int, steps: Sequence[Sequence[Line]], iterations: int, form: Form) -> Workload:
    extents = {"m": a.rows, "n": n, "k": a.columns, "j": n, "i": n}
    sparse: dict[str, Any] = {"density": {"A": _density(name, a.rows, a.columns, a.nnz)}, "format": {"A": "csr"}}
    found = [squeezed(einsum(text, extents, f"{t}.{line}", **(sparse if " A[" in text else {}))) for t, step in enumerate(steps) for line, text in step]
    label = f"{name}:matrix={a.name},n={n}"
    return Workload(label, in_order(label, found), repeats=(iterations,) * len(found) if form == "periodic" and iterations > 1 else ())


def carried(periodic: Workload) -> dict[str, str]:
    """Results of one period, under the name by which the next one reads them."""
    read = {p.tensor for e in periodic.einsums for p in e.inputs}
    pairs = {e.output.tensor: e.output.tensor.removesuffix("_1") + "_0" for e in periodic.einsums if e.output.tensor.endswith("_1")}
    made = {e.output.tensor for e in periodic.einsums}
    return {after: before for after, before in pairs.items() if before in read - made}


# Matrices


def _system(name: str, matrix: str, rows: int, nnz: int) -> Matrix:
    """A square real matrix by name, file, or size."""
    if not matrix:
        if not rows or not nnz:
            raise WorkloadError(f"{name}: give matrix = {', '.join(MATRICES)} or a .mtx file, or rows and nnz")
        if nnz > rows * rows:
            raise WorkloadError(f"{name}: nnz = {nnz} must not be above rows * rows = {rows * rows}")
        return Matrix(f"{rows}x{nnz}", rows, rows, nnz)
    if rows or nnz:
        raise WorkloadError(f"{name}: matrix = {matrix} has its own size; drop rows and nnz")
    if matrix not in MATRICES and not matrix.lower().endswith(".mtx"):
        near = difflib.get_close_matches(matrix, MATRICES, 1)
        hint = f"do you mean {near[0]}?" if near else f"there are {', '.join(MATRICES)}; a file ends in .mtx"
        raise WorkloadError(f"{name}: no matrix is named {matrix}; {hint}")
    found = MATRICES.get(matrix) or read_matrix(matrix)
    if found.rows != found.columns:
        raise WorkloadError(f"{matrix}: {found.rows} x {found.columns} is not square; {name} needs a square matrix")
    if found.is_complex:
        raise WorkloadError(f"{matrix}: complex entries; einsums count real words: write the real system of twice the size")
    return found


def five_point(side: int) -> scipy.sparse.csr_array:
    """Laplacian of a side x side grid, [side**2, side**2], 5 * side**2 - 4 * side nonzeros: the pattern of ecology1 at side = 1000."""
    line = scipy.sparse.diags_array([-np.ones(side - 1), np.full(side, 2.0), -np.ones(side - 1)], offsets=[-1, 0, 1])
    one = scipy.sparse.eye_array(side)
    return scipy.sparse.csr_array(scipy.sparse.kron(line, one) + scipy.sparse.kron(one, line))


def read_matrix(path: str | Path) -> Matrix:
    """Shape and nonzeros of a MatrixMarket coordinate file; every entry is checked, in chunks that are dropped again.

    Stored zeros count; of a symmetric, skew-symmetric or hermitian file, entries off the diagonal count twice.
    Raises WorkloadError, one line: no such file, wrong header or size line, entry out of range or unreadable (with its line), too few or many.
    """
    try:
        with open(path, "rb") as file:
            banner, size, lines = _header(str(path), file)
            nnz = _scanned(str(path), file, banner, size, lines)
    except OSError as fault:
        raise WorkloadError(f"{path}: cannot be read: {fault.strerror}") from None
    return Matrix(Path(path).stem, size[0], size[1], nnz, banner[3] == "complex")


def _header(path: str, file: BinaryIO) -> tuple[list[str], tuple[int, int, int], int]:
    """Words of the banner, the size line, and how many lines they take."""
    banner = file.readline(1024).decode("ascii", "replace").lower().split()
    if len(banner) != 5 or banner[:2] != ["%%matrixmarket", "matrix"]:
        raise WorkloadError(f'{path}: line 1 is no MatrixMarket header; write e.g. "%%MatrixMarket matrix coordinate real general"')
    if banner[2] != "coordinate":
        raise WorkloadError(f"{path}: line 1: format {banner[2]} holds no sparse matrix; it must be coordinate")
    for what, word, known in (("field", banner[3], tuple(FIELDS)), ("symmetry", banner[4], SYMMETRIES)):
        if word not in known:
            raise WorkloadError(f"{path}: line 1: {what} {word} must be {' or '.join(known)}")
    lines, line = 2, file.readline()
    while line and (line.startswith(b"%") or not line.strip()):
        lines, line = lines + 1, file.readline()
    words = line.decode("ascii", "replace").split()
    if len(words) != 3 or not all(re.fullmatch("[0-9]{1,18}", w) for w in words) or min(int(w) for w in words) < 1:
        raise WorkloadError(f"{path}: line {lines}: size line {line.decode('ascii', 'replace').strip()[:60]!r} must be rows, columns and entries, each at least 1")
    rows, columns, entries = (int(w) for w in words)
    if entries > rows * columns:
        raise WorkloadError(f"{path}: line {lines}: {entries} entries do not fit into {rows} x {columns}")
    if banner[4] != "general" and rows != columns:
        raise WorkloadError(f"{path}: line {lines}: {rows} x {columns} cannot be {banner[4]}; write general")
    return banner, (rows, columns, entries), lines


def _scanned(path: str, file: BinaryIO, banner: list[str], size: tuple[int, int, int], line: int) -> int:
    """Nonzeros of all entries; line: of the file, before them."""
    rows, columns, entries = size
    seen = nnz = 0
    for chunk in _chunks(file):
        first = chunk.lstrip().split(b"\n", 1)[0]
        count = chunk.count(b"\n") - (len(re.findall(rb"\n[ \t\r]*(?=\n)", b"\n" + chunk)) if re.search(rb"\n[ \t\r]*\n", b"\n" + chunk[:1 << 30]) else 0)
        if first and len(first.split()) != FIELDS[banner[3]]:
            raise WorkloadError(f"{path}: line {line + 1 + chunk.count(b'\n', 0, len(chunk) - len(chunk.lstrip()))}: "
                                f"{first.decode('ascii', 'replace').strip()[:60]!r} must be {FIELDS[banner[3]]} numbers, for the field is {banner[3]}")
        if seen + count > entries:
            raise WorkloadError(f"{path}: holds more entries than the {entries} that its size line names")
        head = f"{' '.join(banner)}\n{rows} {columns} {count}\n".replace("%%matrixmarket", "%%MatrixMarket").encode()
        try:
            nnz += scipy.io.mmread(io.BytesIO(head + chunk)).nnz if count else 0
        except (ValueError, OverflowError) as fault:
            raise WorkloadError(f"{path}: {_placed(str(fault), line - 2)}") from None
        seen, line = seen + count, line + chunk.count(b"\n")
    if seen < entries:
        raise WorkloadError(f"{path}: holds {seen} entries, but its size line names {entries}; copy the file again")
    return nnz


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    """Whole lines, some MiB at a time."""
    rest = b""
    while block := file.read(CHUNK):
        whole, newline, rest = (rest + block).rpartition(b"\n")
        if newline:
            yield whole + newline
    if rest.strip():
        yield rest + b"\n"


def _placed(fault: str, before: int) -> str:
    """The reader's fault with the line of the file; an index counts from 1."""
    found = re.match(r"Line (\d+): (.*?)\.?$", fault)
    if not found:
        return f"{fault[:1].lower()}{fault[1:]}".rstrip(".")
    hint = "; indices count from 1 to the size line's" if "out of bounds" in found[2] else ""
    return f"line {int(found[1]) + before}: {found[2][:1].lower()}{found[2][1:]}{hint}"
