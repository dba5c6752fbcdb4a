"""Dataflows of arrays in closed form: constraint sets of systolic arrays; the row-stationary set of an
einsum, and its nest.

Mappers search the whole constraint set (`dse.mapping.constraints.row_stationary`); `pe_set` is nn_dataflow's
one choice of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from dse.mapping.constraints import Constraints, stationary, window
from dse.mapping.nest import Loop
from hw.arch import Fanout
from workloads.einsum import Einsum

# rows, columns, time of a systolic array
ROLES = {"os": ("m", "n", "k"), "ws": ("k", "n", "m"), "is": ("k", "m", "n")}


@dataclass(frozen=True, slots=True)
class PeSet:
    """A row-stationary set on an array: filter rows down, output rows across.

    rows, columns: of the set after folding it fold_h and fold_w times in time; its columns stand in `strips`
    pieces above each other. repl_h, repl_w: copies of the set; of these, c work on input channels and k_rows
    x k_columns on output channels.
    """

    rows: int
    columns: int
    strips: int
    fold_h: int
    fold_w: int
    repl_h: int
    repl_w: int
    c: int
    k_rows: int
    k_columns: int

    @property
    def replication(self) -> int:
        return self.repl_h * self.repl_w

    @property
    def active(self) -> int:
        """PEs of all copies of the set."""
        return self.rows * self.columns * self.replication


def pe_set(e: Einsum, rows: int, columns: int) -> PeSet:
    """Fold or replicate the logical set of filter rows x output rows on an array of rows x columns.

    Copies go to channels so that the fewest passes are left. Source: nn_dataflow's MapStrategyEyeriss; Chen
    et al. (Eyeriss), ISCA 2016.
    """
    w, sizes = window(e), e.sizes()
    high, wide, c, k = (sizes.get(rank, 1) for rank in (w.r, w.p, w.c, w.k))
    fold_h, repl_h = -(-high // rows), max(rows // high, 1)
    fold_w, repl_w = -(-wide // columns), max(columns // wide, 1)
    strips = min(repl_h, fold_w)
    fold_w, repl_h = -(-fold_w // strips), repl_h // strips
    pairs = [(a, repl_h // a) for a in range(1, repl_h + 1) if repl_h % a == 0]
    a, b = min(pairs, key=lambda pair: -(-c // min(pair[0], c)) * -(-k // min(pair[1] * repl_w, k)))
    k_rows = min(b, k)
    return PeSet(
        -(-high // fold_h),
        -(-wide // fold_w),
        strips,
        fold_h,
        fold_w,
        repl_h,
        repl_w,
        min(a, c),
        k_rows,
        min(repl_w, -(-k // k_rows)),
    )


def used_pes(unit: PeSet, e: Einsum) -> float:
    """PEs that work on average over the folds: utilisation times the size of the array."""
    w, sizes = window(e), e.sizes()
    return sizes.get(w.r, 1) * sizes.get(w.p, 1) * unit.replication / (unit.fold_h * unit.fold_w)


def row_stationary_loops(e: Einsum, f: Fanout) -> tuple[tuple[Loop, ...], tuple[Loop, ...]]:
    """(loops in time above the array, loops in space) of the set that `pe_set` places on f; what is left
    iterates inside a PE.
    """
    w, (down, high), (across, wide) = window(e), *f.dims
    unit = pe_set(e, high, wide)
    kernels = min(unit.k_rows * unit.k_columns, e.sizes().get(w.k, 1))
    time = ((w.c, unit.c), (w.k, kernels), (w.p, unit.columns), (w.r, unit.rows))
    space = (
        (w.p, -(-unit.columns // unit.strips), down),
        (w.c, 1, down),
        (w.k, unit.k_columns, down),
        (w.r, 1, down),
        (w.k, 1, across),
        (w.p, 1, across),
    )
    return tuple(Loop(rank, tile) for rank, tile in time if rank), tuple(
        Loop(*loop) for loop in space if loop[0]
    )


def gemm_ranks(e: Einsum) -> dict[str, tuple[str, ...]]:
    """Ranks of a product by their part in a matrix multiplication: m of output and first input, n of output
    and second, k of neither output.

    Ranks of all three tensors (batches, groups) are in none. Raises ValueError for an einsum that has not two
    inputs.
    """
    if len(e.inputs) != 2:
        raise ValueError(f"{e.name}: has {len(e.inputs)} inputs; a systolic dataflow multiplies two tensors")
    (first, second), out = (p.ranks() for p in e.inputs), e.output.ranks()
    parts = {"m": (out & first) - second, "n": (out & second) - first, "k": (first & second) - out}
    return {part: tuple(rank for rank, _ in e.extents if rank in found) for part, found in parts.items()}


def systolic(e: Einsum, f: Fanout) -> Constraints:
    """The mapspace of a systolic array f (f.systolic os, ws or is): ranks on its rows and columns, ranks in
    time, and what stays still.

    Source: SCALE-Sim: rows, columns, time = (M, N, K), (K, N, M), (K, M, N). Raises ValueError for an einsum
    that has not two inputs.
    """
    ranks = gemm_ranks(e)
    rows, columns, time = ROLES[f.systolic]
    still = stationary(e, f.systolic).tensor
    return Constraints(((f.dims[0][0], ranks[rows]), (f.dims[1][0], ranks[columns])), ranks[time], still)
