"""Expected counts of compressed operands against drawn matrices: a nest is walked over the nonzeros that a
matrix has.

A matrix of so many nonzeros is shifted in both dimensions through all of its places, so that each is a
nonzero equally often: the mean over all shifts is the expected count, exactly, whatever was drawn. The walk
knows what hardware knows: a compressed matrix is read nonzero by nonzero, value and column, row after row
with a pointer each, before anything is known of the other operand; of that one only what stands at a nonzero
is read, by each lane at its own, and each lane adds its products to the sums of its own nonzeros.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from itertools import product
from math import isclose
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dse.mapping.nest import Loop, Mapping, Store
from dse.sim.counts.counts import count
from hw.arch import Arch, Compute, Fanout, Level
from tests.amount import amount
from tests.nests import random_arch, random_mapping
from workloads.einsum import Einsum, einsum

Matrix = frozenset[tuple[int, int]]  # places of nonzeros
SPMV, SPMM = "Y[m] += A[m,k] * X[k]", "Y[m,n] += A[m,k] * X[k,n]"


def product_of(text: str, sizes: dict[str, int], nonzeros: int) -> Einsum:
    return einsum(text, sizes, density={"A": nonzeros / (sizes["m"] * sizes["k"])}, format={"A": "csr"})


def shifts(drawn: Matrix, rows: int, columns: int) -> list[Matrix]:
    return [
        frozenset(((i + down) % rows, (j + right) % columns) for i, j in drawn)
        for down, right in product(range(rows), range(columns))
    ]


def walked(mapping: Mapping, e: Einsum, arch: Arch, nonzeros: Matrix) -> Counter:
    """Words per (level, tensor, action) with one matrix; first reads of sums are read, too."""
    found: Counter = Counter()
    holders: dict[str, list[tuple[int, str]]] = {}
    together = {
        name: flags
        for f in arch.fanouts
        for (name, _), *flags in zip(f.dims, f.multicast, f.reduce, strict=True)
    }
    ranks = {p.tensor: [dim.terms[0][0] for dim in p.dims] for p in e.tensors()}
    a = next(p for p in e.inputs if p.tensor == "A")
    nonzero, pointer = 1 + Fraction(a.index_bits, arch.word_bits), Fraction(a.pointer_bits, arch.word_bits)

    def words(tensor: str, env: dict[str, range]) -> int | Fraction:
        places = list(product(*(env[rank] for rank in ranks[tensor])))
        return (
            nonzero * len(nonzeros & set(places)) + pointer * len({row for row, _ in places})
            if tensor == "A"
            else len(places)
        )

    def served_by_another(
        tensor: str, parent_at: int, lanes: list[tuple[int, Loop, int]], own: set[str]
    ) -> bool:
        return any(
            lane > 0 and at > parent_at and loop.rank not in own and together[loop.over][tensor == "Y"]
            for at, loop, lane in lanes
        )

    def store(at: int, node: Store, env: dict[str, range], lanes: list[tuple[int, Loop, int]]) -> None:
        chain = holders.setdefault(node.tensor, [])
        for action, other in (
            (("write", "read"), ("read", "write"))[: 2 if node.tensor == "Y" else 1] if chain else ()
        ):
            parent_at, parent = chain[-1]
            found[node.level, node.tensor, action] += words(node.tensor, env)
            if not served_by_another(node.tensor, parent_at, lanes, set(ranks[node.tensor])):
                found[parent, node.tensor, other] += words(node.tensor, env)
        chain.append((at, node.level))
        go(at + 1, env, lanes)
        chain.pop()

    def multiply(at: dict[str, int], lanes: list[tuple[int, Loop, int]]) -> None:
        there = (at["m"], at["k"]) in nonzeros
        found["MAC", "-", "compute"] += there
        for tensor, (parent_at, level) in ((tensor, chain[-1]) for tensor, chain in holders.items()):
            # lanes at different rows or columns of the matrix are at different nonzeros
            each_lanes_own = {"m", "k"} if tensor != "A" else set()
            if served_by_another(tensor, parent_at, lanes, set(ranks[tensor]) | each_lanes_own):
                continue
            found[level, tensor, "read"] += (
                nonzero * there + pointer * (at["k"] == 0) if tensor == "A" else there
            )
            found[level, tensor, "write"] += there if tensor == "Y" else 0

    def go(at: int, env: dict[str, range], lanes: list[tuple[int, Loop, int]]) -> None:
        if at == len(mapping.nodes):
            return multiply({rank: own[0] for rank, own in env.items()}, lanes)
        node = mapping.nodes[at]
        if isinstance(node, Store):
            return store(at, node, env, lanes)
        own = env[node.rank]
        for lane, begin in enumerate(range(own.start, own.stop, node.tile)):
            go(
                at + 1,
                env | {node.rank: range(begin, min(begin + node.tile, own.stop))},
                [*lanes, (at, node, lane)] if node.over else lanes,
            )

    go(0, {rank: range(n) for rank, n in e.extents}, [])
    return found


def unlike(mapping: Mapping, e: Einsum, arch: Arch, drawn: Matrix) -> str:
    """Where the counts are not those of the drawn matrix, shifted through all of its places."""
    arch = replace(arch, levels=tuple(replace(level, skip_first_read=False) for level in arch.levels))
    sizes, total = e.sizes(), Counter()
    every = shifts(drawn, sizes["m"], sizes["k"])
    for matrix in every:
        total.update(walked(mapping, e, arch, matrix))
    want = {key: n / len(every) for key, n in total.items() if n}
    got = {
        (row.level, row.tensor, row.action): row.elems
        for row in count(mapping, e, arch)
        if row.action not in ("merge", "fold")
    }
    return (
        ""
        if want.keys() == got.keys() and all(isclose(n, want[key], rel_tol=1e-9) for key, n in got.items())
        else f"{got}\nwalked {want}\n{e}\n{mapping}"
    )


@settings(max_examples=amount(150), deadline=None)
@given(st.integers(0, 2**32))
def test_expected_counts_are_those_of_drawn_matrices(seed: int) -> None:
    """Of matrices with a nonzero per row and more: below that zeros of the result are written
    (tests/test_counts.py).
    """
    rng = Random(seed)
    text = rng.choice([SPMV, SPMM])
    sizes = {"m": rng.randint(1, 5), "k": rng.randint(1, 5)} | (
        {"n": rng.randint(1, 4)} if text == SPMM else {}
    )
    places = list(product(range(sizes["m"]), range(sizes["k"])))
    drawn = frozenset(rng.sample(places, rng.randint(sizes["m"], max(len(places) - 1, sizes["m"]))))
    e, arch = product_of(text, sizes, len(drawn)), random_arch(rng)
    mapping = random_mapping(rng, e, arch)
    if len(drawn) < len(places):
        assert unlike(mapping, e, arch, drawn) == ""


def straight_from_memory(rank: str) -> tuple[Mapping, Einsum, Arch]:
    """8 x 10, 20 nonzeros, on four lanes along a rank that all read main memory."""
    e = product_of(SPMV, {"m": 8, "k": 10}, 20)
    arch = Arch(
        "lanes",
        (Level("DRAM", None, 8, 1.0, 1.0),),
        (Fanout("lanes", 1, (("X", 4),), (True,), (True,)),),
        Compute(1.0, 1.0),
        1.0,
        8,
    )
    tile = {"m": 2, "k": 3}[rank]
    return (
        Mapping((*(Store("DRAM", t) for t in "AXY"), Loop(rank, tile, "X"), Loop("m", 1), Loop("k", 1))),
        e,
        arch,
    )


@pytest.mark.parametrize("rank", ["m", "k"])
def test_a_matrix_read_straight_from_memory_comes_with_columns_and_rows(rank: str) -> None:
    """20 values of 8 bits, 20 columns of 4, 8 rows of 5; each of the 20 products reads its own element of X,
    and is added to its own element of Y.
    """
    mapping, e, arch = straight_from_memory(rank)
    found = {(row.tensor, row.action): row.elems for row in count(mapping, e, arch)}
    assert (found["A", "read"], found["X", "read"], found["Y", "write"]) == (
        pytest.approx(20 * 12 / 8 + 8 * 5 / 8),
        pytest.approx(20),
        pytest.approx(20),
    )
    drawn = frozenset(Random(rank).sample(list(product(range(8), range(10))), 20))
    assert unlike(mapping, e, arch, drawn) == ""
