"""Walks nests of a sparse product over the places of a matrix, and matrices to walk over. Shares no code with
dse/sim.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from dse.mapping.nest import Loop, Mapping
from hw.arch import Arch
from tests.oracle import Walk
from workloads.arrays import Bools
from workloads.einsum import Einsum, csr, einsum
from workloads.matrix import Pattern
from workloads.sparsity import tile_columns

KINDS = ("banded", "power law", "blocks", "evenly", "arrow")


def matrix(kind: str, rows: int, seed: int, width: int = 5) -> Bools:
    """A matrix of a kind, as many columns as rows, some `width` nonzeros a row; no column of it is empty."""
    rng = np.random.default_rng(seed)
    i, j = np.indices((rows, rows))
    at_random = rng.random((rows, rows))
    found: Bools = {
        "banded": (abs(i - j) <= width // 2) & (at_random < 0.9),
        "power law": at_random < width * rows**0.5 / 2 / (1 + np.maximum(rng.permutation(rows)[i], j)) / 2,
        "blocks": i // width == j // width,
        "evenly": at_random < width / rows,
        "arrow": (i < width // 2) | (j < width // 2),
    }[kind]
    return found | (i == j)


def product(a: Bools, n: int, known: bool = True) -> Einsum:
    """The product of a matrix and n vectors; known: with what its pattern says of tiles."""
    rows, columns = a.shape
    p = Pattern("drawn", rows, columns, np.flatnonzero(a.ravel()))
    found = tile_columns(p) if known else None
    sparse = csr("A", len(p.places) / a.size, tile_columns=found)
    return einsum("Y[m,n] += A[m,k] * X[k,n]", {"m": rows, "n": n, "k": columns}, **sparse)


def divides(mapping: Mapping, e: Einsum) -> bool:
    """Whether every tile divides the one that it is cut from."""
    tile = e.sizes()
    for node in mapping.nodes:
        if isinstance(node, Loop):
            if tile[node.rank] % node.tile:
                return False
            tile[node.rank] = node.tile
    return True


@dataclass
class Gathering(Walk):
    """Brings in of each tile of X the rows that are columns of a nonzero of A in the rows of the moment."""

    a: Bools = field(default_factory=lambda: np.ones((1, 1), bool))
    envs: dict = field(default_factory=dict)  # position -> ranges of the ranks there
    parents: Counter = field(default_factory=Counter)  # (level, way of sharing) -> elements of X it serves
    served: dict = field(default_factory=dict)  # (level, moment) -> elements of X that PEs want there

    def go(self, at: int, env: dict) -> None:
        self.envs[at] = env
        super().go(at, env)

    def moment(self, at: int, parent_at: int) -> tuple:
        """Trips of all loops, but of those whose PEs share what the parent serves."""
        flags = {
            name: shared
            for f in self.arch.fanouts
            for (name, _), shared in zip(f.dims, f.multicast, strict=True)
        }
        loops = [(i, node) for i, node in enumerate(self.mapping.nodes[:at]) if isinstance(node, Loop)]
        return tuple(
            (self.envs[i + 1][loop.rank][0] - self.envs[i][loop.rank][0]) // loop.tile
            for i, loop in loops
            if not (loop.rank == "m" and i > parent_at and flags.get(loop.over, False))
        )

    def fill(self, at, node, tensor, parent, elements, output):  # type: ignore[no-untyped-def]
        if tensor.tensor != "X":
            return super().fill(at, node, tensor, parent, elements, output)
        parent_at, level = parent
        rows = slice(*self.envs[at]["m"])
        wanted = [(k, *rest) for k, *rest in elements if self.a[rows, k].any()]
        self.add(at, node.level, "X", "write", len(wanted))
        self.parents[level, node.level, "each"] += len(wanted)
        if not self.share(tensor, parent):
            self.parents[level, node.level, "together"] += len(elements)
        self.served.setdefault((level, node.level, at, self.moment(at, parent_at)), set()).update(wanted)
        return []


def walked(mapping: Mapping, e: Einsum, arch: Arch, a: Bools) -> Gathering:
    """The walk of a whole nest."""
    found = Gathering(mapping, e, arch, a=a)
    found.go(0, {rank: (0, n) for rank, n in e.extents})
    return found
