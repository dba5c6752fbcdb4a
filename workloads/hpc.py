"""Dense and sparse linear algebra as einsums."""

from __future__ import annotations

from workloads.cnn import Cascade
from workloads.einsum import WorkloadError, einsum


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
