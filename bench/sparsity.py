"""Words of a dense operand that is read through a sparse matrix: counted, and walked over the nonzeros.

python -m bench.sparsity      20 matrices of five kinds, tiles of six sizes, per kind: what the evaluator
                              counts over what a walk finds, where a PE fills its own tile, and where 4 PEs
                              share what the level outside serves
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dse.mapping.nest import Loop, Mapping, Store
from dse.sim.counts.counts import count
from hw.arch import Arch, Compute, Fanout, Level
from tests.gathering import KINDS, matrix, product
from workloads.arrays import Bools

ROWS = (240, 600, 1000, 1500)
TILES = (1, 5, 16, 40, 64, 150)  # rows of a PE's tile; some do not divide the rows
PES, VECTORS = 4, 8
MACHINE = Arch(
    "shared",
    (Level("DRAM", None, 32, 100.0, 100.0), Level("RF", None, 32, 1.0, 1.0)),
    (Fanout("pes", 1, (("x", PES),), (True,), (False,)),),
    Compute(1.0, 1.0),
    1.0,
    32,
)


def counted(a: Bools, tile: int, known: bool) -> tuple[float, float]:
    """Elements of X that PEs fill, and that main memory serves, where 4 PEs have `tile` rows each."""
    e = product(a, VECTORS, known)
    nest = Mapping(
        (
            *(Store("DRAM", p.tensor) for p in e.tensors()),
            Loop("m", min(PES * tile, len(a))),
            Loop("m", tile, "x"),
            Store("RF", "X"),
            *(Loop(rank, 1) for rank in "nkm"),
        )
    )
    found = {row.key: row.elems for row in count(nest, e, MACHINE)}
    return found["RF", "X", "write"], found["DRAM", "X", "read"]


def walked(a: Bools, tile: int) -> tuple[int, int]:
    """The same, from the places of the nonzeros."""
    each = sum(int(a[at : at + tile].any(axis=0).sum()) for at in range(0, len(a), tile))
    step = PES * tile
    union = sum(int(a[at : at + step].any(axis=0).sum()) for at in range(0, len(a), step))
    return VECTORS * each, VECTORS * union


def main() -> None:
    print("counted over walked, of matrices and tiles: least, mean and largest; without the matrix: mean")
    for kind in KINDS:
        ratios = np.array([row for i, rows in enumerate(ROWS) for row in _rows(kind, rows, i)])
        for at, name in enumerate(("filled by each PE", "tiles that divide", "served to 4 PEs")):
            own, plain = ratios[:, 2 * at], ratios[:, 2 * at + 1]
            own, plain = own[~np.isnan(own)], plain[~np.isnan(plain)]
            shown = " ".join(f"{ratio:6.3f}" for ratio in (own.min(), own.mean(), own.max()))
            print(f"{kind:10} {name:18} {shown}   {plain.mean():8.1f}")


def _rows(kind: str, rows: int, seed: int) -> Iterator[tuple[float, ...]]:
    a = matrix(kind, rows, seed)
    for tile in TILES:
        (fills, served), (plain_fills, plain_served) = (counted(a, tile, known) for known in (True, False))
        each, union = walked(a, tile)
        divides = 1.0 if rows % (PES * tile) == 0 else np.nan
        own, plain = fills / each, plain_fills / each
        yield own, plain, own * divides, plain * divides, served / union, plain_served / union


if __name__ == "__main__":
    main()
