"""Krylov solvers as einsum chains against SciPy; sparse matrices by size, grid and MatrixMarket file."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import scipy.sparse
import scipy.sparse.linalg
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.amount import amount
from tests.numeric import run
from workloads import catalog, hpc
from workloads.einsum import WorkloadError, einsum, show
from workloads.graph import Workload, in_order, unique
from workloads.matrix import MATRICES, read_matrix, read_pattern
from workloads.solvers import SOLVERS
from workloads.sparsity import level_count, triangle

CASES = json.loads((Path(__file__).parent / "data" / "gogeta_cases.json").read_text())
ROWS = 24


def system(seed: int, n: int, definite: bool) -> tuple[scipy.sparse.csr_array, np.ndarray]:
    """A well-conditioned sparse matrix and n right-hand sides."""
    rng = np.random.default_rng(seed)
    a = scipy.sparse.random_array((ROWS, ROWS), density=0.1, rng=rng)
    a = a + a.T if definite else a
    a = scipy.sparse.csr_array(a + scipy.sparse.diags_array(np.abs(a).sum(1) + rng.uniform(1, 3, ROWS)))
    return a, rng.normal(size=(ROWS, n))


def start(w: Workload, a: scipy.sparse.csr_array, b: np.ndarray) -> dict[str, np.ndarray]:
    """Values of what comes from outside for X_0 = 0."""
    outside = {
        "A": a.toarray(),
        "B": b,
        "R_0": b,
        "P_0": b,
        "Z": b,
        "X_0": np.zeros_like(b),
        "G_0": b.T @ b,
        "rho_0": (b * b).sum(0),
    }
    diagonal = a.diagonal()
    if w.name.startswith("v_cycle"):
        outside |= grids(a)
        outside["B0"] = b
    if w.name.startswith("pipelined_cg"):  # no step before the first one
        nothing = dict.fromkeys(("Z_0", "S_0", "P_0"), np.zeros_like(b))
        ones = np.ones(b.shape[1])
        outside |= nothing | {"W_0": a @ b, "g_0": ones * np.inf, "a_0": ones}
    elif any(p.tensor == "Low" for e in w.einsums for p in e.inputs):
        z = symmetric_sweep(a, b)
        outside |= {"Low": np.tril(a.toarray()), "Up": np.triu(a.toarray()), "D": diagonal}
        outside |= {"P_0": z, "G_0": b.T @ z}
    elif any(p.tensor == "M" for e in w.einsums for p in e.inputs):
        outside |= {"M": 1 / diagonal, "P_0": b / diagonal[:, None], "G_0": b.T @ (b / diagonal[:, None])}
    read = {p.tensor for e in w.einsums for p in e.inputs}
    return {t: x for t, x in outside.items() if t in read}


def symmetric_sweep(a: scipy.sparse.csr_array, b: np.ndarray) -> np.ndarray:
    """A forward and a backward Gauss-Seidel sweep on a x = b from x = 0, row by row (HPCG)."""
    full, x = a.toarray(), np.zeros_like(b)
    for i in (*range(ROWS), *reversed(range(ROWS))):
        x[i] += (b[i] - full[i] @ x) / full[i, i]
    return x


def grids(a: scipy.sparse.csr_array) -> dict[str, np.ndarray]:
    """Operators of three grids of 24, 6 and 2 rows: interpolation that repeats a row four times, its
    transpose, the matrix between both, and 2/3 of the inverse diagonals.
    """
    found, fine = {"A0": a.toarray()}, a.toarray()
    for g, rows in enumerate((6, 2), 1):
        interpolation = np.eye(rows)[np.arange(len(fine)) * rows // len(fine)]
        fine = interpolation.T @ fine @ interpolation
        found |= {f"A{g}": fine, f"In{g}": interpolation, f"Re{g}": interpolation.T}
    return found | {f"W{g}": 2 / 3 / found[f"A{g}"].diagonal() for g in range(3)}


def v_cycle(x: np.ndarray, b: np.ndarray, of: dict[str, np.ndarray], g: int, sweeps: int) -> np.ndarray:
    """A V-cycle from grid g on."""

    def smooth(x: np.ndarray, times: int) -> np.ndarray:
        for _ in range(times):
            x = x + of[f"W{g}"][:, None] * (b - of[f"A{g}"] @ x)
        return x

    if g == 2:
        return smooth(x, 2 * sweeps)
    x = smooth(x, sweeps)
    coarse = of[f"Re{g + 1}"] @ (b - of[f"A{g}"] @ x)
    x = x + of[f"In{g + 1}"] @ v_cycle(np.zeros_like(coarse), coarse, of, g + 1, sweeps)
    return smooth(x, sweeps)


def solved(
    solver: str, a: scipy.sparse.csr_array, b: np.ndarray, steps: int, **more: int | str
) -> np.ndarray:
    w = SOLVERS[solver](rows=ROWS, nnz=a.nnz, n=b.shape[1], iterations=steps, **more)
    return run(w.einsums, start(w, a, b))[f"X_{steps}"].reshape(b.shape)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize(
    ("solver", "steps", "more"),
    [
        ("cg", 16, {}),
        ("cg", 16, {"preconditioner": "jacobi"}),
        ("pipelined_cg", 16, {}),
        ("cg", 12, {"preconditioner": "symgs", "levels": 7}),
        ("s_step_cg", 6, {"s": 3}),
        ("ca_gmres", 6, {"s": 4}),
        ("v_cycle", 30, {"grids": 3, "interpolation": 2}),
        ("bicgstab", 16, {}),
        ("gmres", 3, {"m": 6}),
        ("gmres", 1, {"m": 14}),
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_solvers_converge_to_scipys_solution(
    solver: str, steps: int, more: dict[str, int | str], n: int, seed: int
) -> None:
    a, b = system(seed, n, definite=solver.endswith("cg"))
    exact = scipy.sparse.linalg.spsolve(a, b).reshape(b.shape)
    first, last = (np.linalg.norm(solved(solver, a, b, s, **more) - exact) for s in (1, steps))
    assert last < 1e-6 * np.linalg.norm(exact)
    assert steps == 1 or last < first


@pytest.mark.parametrize("steps", [1, 2, 4, 7])
def test_every_step_is_scipys(steps: int) -> None:
    """One right-hand side: the same iterates, not only the same limit."""
    tight = {"rtol": 1e-30, "atol": 0.0}
    a, b = system(5, 1, definite=True)
    assert np.allclose(
        solved("cg", a, b, steps).ravel(), scipy.sparse.linalg.cg(a, b.ravel(), maxiter=steps, **tight)[0]
    )
    assert np.allclose(solved("pipelined_cg", a, b, steps), solved("cg", a, b, steps))
    assert np.allclose(
        solved("cg", a, b, steps, preconditioner="jacobi").ravel(),
        scipy.sparse.linalg.cg(
            a, b.ravel(), maxiter=steps, M=scipy.sparse.diags_array(1 / a.diagonal()), **tight
        )[0],
    )
    a, b = system(6, 1, definite=False)
    assert np.allclose(
        solved("bicgstab", a, b, steps).ravel(),
        scipy.sparse.linalg.bicgstab(a, b.ravel(), maxiter=steps, **tight)[0],
    )
    theirs = scipy.sparse.linalg.gmres(a, b.ravel(), restart=steps, maxiter=1, **tight)[0]
    assert np.allclose(solved("gmres", a, b, 1, m=steps).ravel(), theirs)


@pytest.mark.parametrize("powers", ["products", "kernel"])
@pytest.mark.parametrize("s", [1, 2, 4])
@pytest.mark.parametrize("n", [1, 2])
def test_several_steps_at_once_are_scipys(powers: str, s: int, n: int) -> None:
    """Two iterations of s steps: s-step CG is CG after 2 s steps; CA-GMRES is GMRES restarted once."""
    tight = {"rtol": 1e-30, "atol": 0.0}
    a, b = system(7, n, definite=True)
    columns = [scipy.sparse.linalg.cg(a, x, maxiter=2 * s, **tight)[0] for x in b.T]
    assert np.allclose(solved("s_step_cg", a, b, 2, s=s, powers=powers), np.array(columns).T, rtol=1e-6)
    a, b = system(8, n, definite=False)
    columns = [scipy.sparse.linalg.gmres(a, x, restart=s, maxiter=2, **tight)[0] for x in b.T]
    assert np.allclose(solved("ca_gmres", a, b, 2, s=s, powers=powers), np.array(columns).T, rtol=1e-6)


@pytest.mark.parametrize("steps", [1, 3])
def test_symmetric_sweeps_precondition_scipys_cg(steps: int) -> None:
    a, b = system(5, 1, definite=True)
    sweep = scipy.sparse.linalg.LinearOperator(a.shape, lambda r: symmetric_sweep(a, r.ravel()))
    theirs = scipy.sparse.linalg.cg(a, b.ravel(), maxiter=steps, M=sweep, rtol=1e-30, atol=0.0)[0]
    assert np.allclose(solved("cg", a, b, steps, preconditioner="symgs", levels=9).ravel(), theirs)


@pytest.mark.parametrize("sweeps", [1, 2])
def test_a_v_cycle_is_its_recursion(sweeps: int) -> None:
    a, b = system(3, 2, definite=True)
    x, of = np.zeros_like(b), grids(a)
    for _ in range(2):
        x = v_cycle(x, b, of, 0, sweeps)
    assert np.allclose(solved("v_cycle", a, b, 2, grids=3, interpolation=2, sweeps=sweeps), x)


def test_levels_of_a_triangle(tmp_path: Path) -> None:
    """Of a grid solved in its order the antidiagonals; of a red-black order two; counted in the file."""
    a = scipy.sparse.coo_array((lambda r, c, v: (v, (r, c)))(*five_point(7)))
    p = read_pattern(written(tmp_path / "grid.mtx", a, symmetry="symmetric"))
    assert level_count(triangle(p, lower=True)) == 2 * 7 - 1
    w = hpc.cg(matrix=str(tmp_path / "grid.mtx"), preconditioner="symgs", iterations=1)
    assert {e.levels() for e in w.einsums if "solve" in e.kind} == {13}
    low = next(p for e in w.einsums for p in e.inputs if p.tensor == "Low")
    assert round(low.density * 49**2) == np.tril(a.toarray()).astype(bool).sum()
    order = np.argsort(np.add(*divmod(np.arange(49), 7)) % 2, kind="stable")
    mixed = scipy.sparse.coo_array(a.tocsr()[order][:, order])
    p = read_pattern(written(tmp_path / "mixed.mtx", mixed, symmetry="symmetric"))
    assert level_count(triangle(p, lower=True)) == 2
    named = hpc.cg(matrix="ecology1", preconditioner="symgs", iterations=1)
    assert {e.levels() for e in named.einsums if "solve" in e.kind} == {1999}


@pytest.mark.parametrize(
    ("solver", "more"),
    [
        ("cg", {}),
        ("cg", {"preconditioner": "symgs", "levels": 5}),
        ("pipelined_cg", {}),
        ("s_step_cg", {"s": 2}),
        ("s_step_cg", {"s": 2, "powers": "kernel"}),
        ("bicgstab", {}),
        ("gmres", {"m": 3}),
        ("ca_gmres", {"s": 2}),
        ("v_cycle", {"grids": 3, "interpolation": 2}),
    ],
)
def test_a_period_run_again_is_the_unrolled_chain(solver: str, more: dict[str, int | str]) -> None:
    a, b = system(1, 2, definite=True)
    w = SOLVERS[solver](rows=ROWS, nnz=a.nnz, n=2, iterations=3, form="periodic", **more)
    whole = SOLVERS[solver](rows=ROWS, nnz=a.nnz, n=2, iterations=3, **more)
    data = start(w, a, b)
    assert set(dict(w.loop_state).values()) <= set(data)
    assert "X_0" in dict(w.loop_state).values()
    for _ in range(3):
        after = run(w.einsums, data)
        data = data | {before: after[made] for made, before in w.loop_state}
    assert np.allclose(data["X_0"], solved(solver, a, b, 3, **more))
    assert w.repeats == (3,) * len(w.einsums)
    assert w.macs() == whole.macs()
    assert len(unique(w)) == len(unique(whole))


def test_powers_of_a_matrix() -> None:
    a, b = system(2, 3, definite=False)
    assert np.allclose(
        run((w := hpc.spmm_chain(rows=ROWS, nnz=a.nnz, n=3, length=4)).einsums, {"A": a.toarray(), "X_0": b})[
            "X_4"
        ],
        a @ (a @ (a @ (a @ b))),
    )
    assert w.macs() == 4 * a.nnz * 3


@settings(max_examples=amount(40))
@given(st.integers(2, 10**6), st.integers(1, 16), st.integers(1, 3), st.data())
def test_multiplications(rows: int, n: int, steps: int, data: st.DataObject) -> None:
    nnz = data.draw(st.integers(1, min(rows * rows, 10**7)))
    of = {"rows": rows, "nnz": nnz, "n": n}
    assert hpc.cg(**of, iterations=steps).macs() == steps * (nnz * n + 5 * rows * n * n)
    assert hpc.cg(**of, iterations=steps, preconditioner="jacobi").macs() == steps * (
        nnz * n + 5 * rows * n * n
    )
    sizes = {"rows": 64, "nnz": 300, "n": n, "iterations": steps}
    # symgs, s-step and restarts: products with A alone count as multiplications
    assert hpc.cg(**sizes, preconditioner="symgs", levels=3).macs() == steps * (300 * n + 5 * 64 * n * n)
    assert SOLVERS["s_step_cg"](**sizes, s=3).macs() == steps * 5 * 300 * n
    assert SOLVERS["ca_gmres"](**sizes, s=3).macs() == steps * 4 * 300 * n
    # two grids of 64 and 16 rows: three products on the fine one, one on the coarse one, both transfers
    cycle = 3 * 300 + 75 + 2 * 9 * 16
    assert SOLVERS["v_cycle"](**sizes, grids=2).macs() == steps * (cycle * n)
    assert hpc.pipelined_cg(**of, iterations=steps).macs() == steps * (nnz * n + rows * n)
    assert hpc.bicgstab(**of, iterations=steps).macs() == steps * (2 * nnz * n + 3 * rows * n)
    m = data.draw(st.integers(1, 4))
    assert hpc.gmres(**of, m=m, iterations=steps).macs() == steps * (
        (m + 1) * nnz * n + m * (m + 1) // 2 * rows * n
    )


@pytest.mark.parametrize("case", CASES["cg"], ids=lambda c: f"{c['dataset']}-{c['N']}-{c['sram_MiB']}")
def test_traffic_of_a_chain_without_any_reuse_is_gogetas(case: dict) -> None:
    """SEQ-Flex: every einsum reads and writes main memory; a product that only its sum reads stays inside (an
    update in place); n x n is not counted.
    """
    w = catalog.load(f"cg:matrix={case['dataset']},n={case['N']}")
    matrix = MATRICES[case["dataset"]]
    assert (matrix.rows, matrix.nnz) == (case["M"], case["nnz"])
    inside = {e.output.tensor for e in w.einsums if e.output.tensor[:2] in ("PL", "SL", "PF")}
    words = 0
    for e in w.einsums:
        for p in (*e.inputs, e.output):
            if p.format == "csr":
                words += 2 * round(p.density * p.stored_elems()) + p.dims[0].size
            elif p.tensor not in inside and p.stored_elems() == case["M"] * case["N"]:
                words += p.stored_elems()
    # P, S, X, R of n = 1 are vectors of M; everything else is n x n
    assert words == case["words"]["seq_flex"]
    assert len(unique(w)) == 6


def test_lines_of_cg() -> None:
    w = catalog.load("cg:matrix=ecology1,n=8,iterations=2")
    texts = {e.name: show(e) for e in w.einsums}
    assert texts["0.1"] == "S_0[m,n] += A[m,k] * P_0[k,n]"
    assert texts["1.2b"] == "L_1[j,n] = inverse(D_1[j,i], G_1[i,n])"
    assert texts["0.7u"] == "P_1[m,n] = R_1[m,n] + PF_0[m,n]"
    assert w.einsums[0].inputs[0].format == "csr"
    assert len(w.einsums) == 22
    assert w.macs() == 2 * (4996000 * 8 + 5 * 1000000 * 64)
    assert in_order("cg", w.einsums) == w.einsums
    for e in w.einsums:
        given = {key: {p.tensor: getattr(p, key) for p in e.inputs} for key in ("density", "format")}
        # 4 bytes, as published
        widths = {
            key: {p.tensor: 32 for p in e.inputs if p.format == "csr"}
            for key in ("index_bits", "pointer_bits")
        }
        assert einsum(show(e), e.sizes(), e.name, **given, **widths) == e


def test_the_grid_is_ecology1() -> None:
    rows, columns, values = five_point(1000)
    known = MATRICES["ecology1"]
    assert rows.max() + 1 == columns.max() + 1 == known.rows == known.columns
    assert len(values) == known.nnz == 4996000
    small = scipy.sparse.csr_array((lambda r, c, v: (v, (r, c)))(*five_point(4)))
    line = scipy.sparse.diags_array([[-1.0] * 3, [2.0] * 4, [-1.0] * 3], offsets=[-1, 0, 1])
    assert np.array_equal(small.toarray(), scipy.sparse.kronsum(line, line).toarray())


# MatrixMarket


def written(path: Path, a: scipy.sparse.coo_array, **more: str) -> Path:
    scipy.io.mmwrite(path, a, **more)
    return path


@settings(max_examples=amount(30), deadline=None)
@given(
    st.integers(1, 12),
    st.integers(1, 12),
    st.sampled_from(["real", "integer", "complex", "pattern"]),
    st.integers(0, 5),
)
def test_files_of_scipy(
    tmp_path_factory: pytest.TempPathFactory, m: int, n: int, field: str, seed: int
) -> None:
    a = scipy.sparse.random_array((m, n), density=0.5, rng=np.random.default_rng(seed)).tocoo()
    if not a.nnz:
        return
    a.data = a.data * (1j if field == "complex" else 10)
    found = read_matrix(written(tmp_path_factory.mktemp("m") / "a.mtx", a, field=field, symmetry="general"))
    assert (found.name, found.rows, found.columns, found.nnz, found.is_complex) == (
        "a",
        m,
        n,
        a.nnz,
        field == "complex",
    )


@pytest.mark.parametrize(
    ("symmetry", "field"),
    [("symmetric", "real"), ("symmetric", "pattern"), ("skew-symmetric", "real"), ("hermitian", "complex")],
)
def test_symmetric_files_count_both_halves(tmp_path: Path, symmetry: str, field: str) -> None:
    a = np.triu(np.arange(36.0).reshape(6, 6) % 5, 1)
    a = (
        a - a.T
        if symmetry == "skew-symmetric"
        else (a + 1j * a) + (a - 1j * a).T
        if symmetry == "hermitian"
        else a + a.T + np.diag([1.0, 0, 2, 0, 0, 3])
    )
    path = written(tmp_path / "a.mtx", scipy.sparse.coo_array(a), symmetry=symmetry, field=field)
    assert read_matrix(path).nnz == np.count_nonzero(a) > path.read_text().count("\n") - 4


REAL, SIZE = "%%MatrixMarket matrix coordinate real general\n", "3 3 2\n"


@pytest.mark.parametrize(
    ("content", "nnz"),
    [
        (REAL + "% a comment\n%\n\n3 3 2\n1 1 2\n3 3 1\n", 2),
        (REAL + SIZE + "\n1 1 2\n\n3 3 1", 2),
        (REAL + SIZE + "1 1 2\r\n3 3 1e-3\r\n", 2),
        ("%%matrixmarket MATRIX Coordinate PATTERN general\n" + SIZE + "1 2\n2 1\n", 2),
        (REAL + SIZE + "  1   1 -0\n\t3 3 1\n\n\n", 2),
    ],
)
def test_read_right(tmp_path: Path, content: str, nnz: int) -> None:
    (path := tmp_path / "a.mtx").write_bytes(content.encode())
    assert read_matrix(path).nnz == nnz
    assert catalog.load(f"{path}:n=2,iterations=1").macs() == nnz * 2 + 5 * 3 * 4


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("", "line 1 is no MatrixMarket header"),
        ("%%MatrixMarket matrix coordinate real\n3 3 1\n", "line 1 is no MatrixMarket header"),
        ("\x89PNG\r\n\x1a\n\x00\xff", "line 1 is no MatrixMarket header"),
        ("%%MatrixMarket matrix vector real general\n3 3\n", "format vector must be coordinate or array"),
        (
            "%%MatrixMarket matrix coordinate quaternion general\n" + SIZE,
            "field quaternion must be real or double",
        ),
        (
            "%%MatrixMarket matrix coordinate real triangular\n" + SIZE,
            "symmetry triangular must be general or symmetric",
        ),
        (REAL + "% no more\n", "line 3: size line '' must be rows, columns and entries"),
        (REAL + "3 3\n1 1 2\n", "line 2: size line '3 3' must be"),
        (REAL + "3 -3 1\n1 1 1\n", "line 2: size line '3 -3 1' must be"),
        (REAL + "3 3 0\n", "line 2: size line '3 3 0' must be"),
        (REAL + "2 2 5\n", "line 2: 5 entries do not fit into 2 x 2"),
        (REAL + SIZE + "1 1 2\n4 1 3\n", "line 4: row index out of bounds; indices count from 1"),
        (
            REAL + "% c\n% c\n" + SIZE + "1 1 2\n1 0 3\n",
            "line 6: column index out of bounds; indices count from 1",
        ),
        (REAL + SIZE + "1 1 2\n1 2 x\n", "line 4: invalid floating-point value"),
        (REAL + SIZE + "1.5 1 2\n1 2 3\n", "line 3: invalid integer value"),
        (REAL + SIZE + "1 1 2\n", "holds 1 entries, but its size line names 2"),
        (REAL + SIZE + "1 1 2\n2 2 2\n3 3 3\n", "holds more entries than the 2"),
        (REAL + SIZE + "\n1 1\n2 2\n", "line 4: '1 1' must be 3 numbers, because the field is real"),
        (
            "%%MatrixMarket matrix coordinate pattern general\n" + SIZE + "1 1 5\n2 2 1\n",
            "line 3: '1 1 5' must be 2 numbers",
        ),
        (
            "%%MatrixMarket matrix coordinate real symmetric\n3 2 2\n1 1 5\n2 2 1\n",
            "line 2: 3 x 2 cannot be symmetric",
        ),
        (
            "%%MatrixMarket matrix coordinate complex general\n" + SIZE + "1 1 1 1\n2 2 1 0\n",
            "complex entries; einsums count real words",
        ),
        (REAL + "3 2 2\n1 1 5\n2 2 1\n", "3 x 2 is not square; cg needs a square matrix"),
    ],
)
def test_malformed_files(tmp_path: Path, content: str, fault: str) -> None:
    (path := tmp_path / "a.mtx").write_bytes(content.encode("latin-1"))
    with pytest.raises(WorkloadError) as caught:
        catalog.load(str(path))
    assert str(path) in str(caught.value)
    assert fault in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("cg:matrix=ecolgy1", "no matrix is named ecolgy1; do you mean ecology1?"),
        ("cg:matrix=absent.mtx", "absent.mtx: cannot be read (No such file or directory); give"),
        ("cg:rows=4", "rows = 4, nnz = 0: a matrix by its size needs both"),
        ("bicgstab:rows=4,nnz=17", "nnz = 17 must not be above rows * rows = 16"),
        ("gmres:m=0", "m = 0 must be at least 1"),
        ("cg:form=rolled", "form = rolled must be unrolled or periodic"),
        ("absent.mtx:solver=lu", "solver = lu must be cg or pipelined_cg or s_step_cg or bicgstab or gmres"),
        (
            "cg:matrix=aft02,preconditioner=symgs",
            "preconditioner=symgs on aft02, of which only the size is known",
        ),
        ("cg:matrix=aft02,preconditioner=symgs,levels=9000", "levels = 9000 must not be above the 8184 rows"),
        ("cg:matrix=aft02,levels=9", "levels = 9 are of preconditioner=symgs; leave them out"),
        ("v_cycle:rows=64,nnz=300,grids=4", "grids = 4: a grid of 4 rows is left"),
        ("v_cycle:coarsening=1", "coarsening = 1 must be at least 2"),
        ("absent.mtx:steps=2", "no parameter is named steps"),
    ],
)
def test_faults_are_one_line(source: str, fault: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        catalog.load(source)
    assert fault in str(caught.value)
    assert "\n" not in str(caught.value)


def test_names_and_files_agree(tmp_path: Path) -> None:
    a = scipy.sparse.coo_array((lambda r, c, v: (v, (r, c)))(*five_point(7)))
    path = written(tmp_path / "grid.mtx", a, symmetry="symmetric")
    for solver in ("cg", "bicgstab", "gmres"):
        w = catalog.load(f"{path}:solver={solver},n=2")
        assert w.einsums == catalog.load(f"{solver}:matrix={path},n=2").einsums
        by_counts = catalog.load(f"{solver}:rows=49,nnz=217,n=2").einsums
        assert tuple(e.without_pattern() for e in w.einsums) == by_counts


def test_ten_million_entries(tmp_path: Path) -> None:
    """Within 200 MiB above the interpreter, as a hundredth of them are distinct; a fault in the last chunk
    has the right line.
    """
    path, chunk = tmp_path / "big.mtx", io.StringIO()
    rng = np.random.default_rng(0)
    np.savetxt(
        chunk, np.column_stack((rng.integers(1, 10**6, 100_000), rng.integers(1, 10**6, 100_000))), fmt="%d"
    )
    distinct = len(set(chunk.getvalue().splitlines()))
    with path.open("w") as file:
        file.write("%%MatrixMarket matrix coordinate pattern general\n1000000 1000000 10000000\n")
        for _ in range(100):
            file.write(chunk.getvalue())
    code = (
        "import re\nfrom workloads import catalog, matrix\nimport scipy.io\n"
        "def peak(): return int(re.search(r'VmHWM:\\s*(\\d+)', open('/proc/self/status').read())[1])\n"
        "before = peak()\n"
        f"assert matrix.read_matrix({str(path)!r}).nnz == {distinct}\n"
        "print(peak() - before)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[1],
    )
    assert int(done.stdout) < 200 * 1024  # KiB
    with path.open("a") as file:
        file.write("7 1000001\n")
    with path.open("r+b") as raw:  # the size line says so
        raw.seek(len("%%MatrixMarket matrix coordinate pattern general\n1000000 1000000 "))
        raw.write(b"10000001")
    with pytest.raises(WorkloadError, match="line 10000003: column index out of bounds"):
        read_matrix(path)


def test_a_long_unrolled_solver_has_few_unique_einsums() -> None:
    w = catalog.load("gmres:matrix=ecology1,m=30,n=8")
    assert len(w.einsums) > 2000
    assert len(unique(w)) < 20


def five_point(side: int) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float64]]:
    """Laplacian of a side x side grid: rows, columns, values of its 5 * side**2 - 4 * side nonzeros. side =
    1000 is the pattern of ecology1.
    """
    at = np.arange(side * side, dtype=np.int32).reshape(side, side)
    low = np.concatenate((at[:, :-1].ravel(), at[:-1].ravel()))
    high = np.concatenate((at[:, 1:].ravel(), at[1:].ravel()))
    rows, columns = np.concatenate((at.ravel(), low, high)), np.concatenate((at.ravel(), high, low))
    return rows, columns, np.where(rows == columns, 4.0, -1.0)
