"""Dataflows as constraint sets: what they allow, what they refuse, and that a row-stationary set fits its
array.
"""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dse.mapping.constraints import Constraints, row_stationary, violations, window
from dse.mapping.nest import Mapping, parse
from dse.sim.counts.counts import count
from dse.sim.einsum.evaluate import fanout_overflow
from hw.arch import Arch, Compute, Fanout, Level
from tests.array_dataflows import gemm_ranks, pe_set, row_stationary_loops, systolic, used_pes
from workloads.einsum import Einsum, einsum

GEMM = einsum("C[m,n] += A[m,k] * B[k,n]", {"m": 64, "n": 32, "k": 48})
NEST = """store DRAM A B C
for m tile 16
for n tile 8
parfor m tile 1 over ROW
parfor n tile 1 over COL
store REG C
for k tile 1
mac"""


def conv(k: int, c: int, p: int, q: int, r: int, s: int, stride: int = 1) -> Einsum:
    return einsum(
        f"O[n,k,p,q] += I[n,c,{stride}*p+r,{stride}*q+s] * W[k,c,r,s]",
        {"n": 2, "k": k, "c": c, "p": p, "q": q, "r": r, "s": s},
    )


def grid(rows: int, columns: int, ramp: str = "") -> Fanout:
    return Fanout("ARRAY", 1, (("ROW", rows), ("COL", columns)), (True, True), (True, True), ramp)


def machine(f: Fanout) -> Arch:
    return Arch(
        "one", (Level("DRAM", None, 8, 1, 1), Level("REG", None, 8, 1, 1)), (f,), Compute(1, 1), 1.0, 8
    )


@pytest.mark.parametrize(
    ("ramp", "spatial", "time", "still"),
    [
        ("os", (("ROW", ("m",)), ("COL", ("n",))), ("k",), "C"),
        ("ws", (("ROW", ("k",)), ("COL", ("n",))), ("m",), "B"),
        ("is", (("ROW", ("k",)), ("COL", ("m",))), ("n",), "A"),
    ],
)
def test_systolic_sets(ramp: str, spatial: tuple, time: tuple, still: str) -> None:
    assert systolic(GEMM, grid(16, 8, ramp)) == Constraints(spatial, time, still)


def test_a_convolution_is_a_product_too() -> None:
    assert gemm_ranks(conv(4, 3, 8, 8, 3, 3)) == {"m": ("n", "p", "q"), "n": ("k",), "k": ("c", "r", "s")}
    attention = einsum("S[b,h,m,w] += Q[b,h,m,d] * K[b,h,w,d]", {"b": 2, "h": 3, "m": 4, "w": 5, "d": 6})
    assert gemm_ranks(attention) == {"m": ("m",), "n": ("w",), "k": ("d",)}
    with pytest.raises(ValueError, match="has 1 inputs; a systolic dataflow multiplies two tensors"):
        gemm_ranks(einsum("O[m] max= I[m,k]", {"m": 2, "k": 2}))


def test_broken_names_what_the_dataflow_refuses() -> None:
    limits = systolic(GEMM, grid(16, 8, "os"))
    assert violations(limits, parse(NEST)) == []
    assert violations(
        limits,
        parse(
            NEST.replace("over ROW", "over R")
            .replace("over COL", "over ROW")
            .replace("over R\n", "over COL\n")
        ),
    ) == ["parfor m over COL: the dataflow allows n", "parfor n over ROW: the dataflow allows m"]
    assert violations(limits, parse(NEST.replace("for k tile 1", "for m tile 1"))) == [
        "for m stands inside the array; the dataflow allows k"
    ]
    assert violations(
        limits, parse(NEST.replace("store REG C\nfor k tile 1", "for k tile 1\nstore REG C"))
    ) == ["C moves inside the array; store it above for k"]
    assert violations(limits, parse(NEST.replace("store REG C\n", ""))) == [
        "C moves inside the array; store it above for k"
    ]


def test_kept_tensors() -> None:
    kept = Constraints(must_keep=(("REG", "C"), ("REG", "A")))
    assert violations(kept, parse(NEST)) == [
        "A is not stored at REG, where the dataflow needs it; add a storage node"
    ]
    assert violations(Constraints(), parse(NEST)) == []


def test_parts_of_a_window() -> None:
    found = window(conv(4, 3, 8, 8, 3, 3))
    assert (found.p, found.q, found.r, found.s, found.c, found.k) == ("p", "q", "r", "s", "c", "k")
    pool = window(
        einsum("O[n,k,p,q] max= I[n,k,2*p+r,2*q+s]", {"n": 8, "k": 4, "p": 5, "q": 5, "r": 3, "s": 3})
    )
    assert (pool.p, pool.r, pool.c, pool.k) == ("p", "r", "", "k")
    depthwise = window(
        einsum("O[n,g,p,q] += I[n,g,p+r,q+s] * W[g,r,s]", {"n": 8, "g": 4, "p": 5, "q": 5, "r": 3, "s": 3})
    )
    assert (depthwise.r, depthwise.c, depthwise.k) == ("r", "", "g")
    product = window(GEMM)
    assert (product.p, product.r, product.c, product.k) == ("", "", "k", "n")


def test_filters_taller_than_the_array_fold() -> None:
    unit = pe_set(conv(8, 8, 10, 10, 11, 11), 4, 14)
    assert (unit.fold_h, unit.rows, unit.repl_h, unit.replication) == (3, 4, 1, 1)


@pytest.mark.parametrize(
    ("shape", "active"),
    [
        ((96, 3, 55, 55, 11, 11, 4), 151.25),
        ((256, 48, 27, 27, 5, 5), 135),
        ((384, 256, 13, 13, 3, 3), 156),
        ((256, 192, 13, 13, 3, 3), 156),
    ],
)
def test_the_evaluator_sees_the_pes_of_eyeriss_at_work(shape: tuple[int, ...], active: float) -> None:
    """AlexNet on 12 x 14 PEs: MACs per step of the nest are the utilisation of the set times the array."""
    e, f = conv(*shape), grid(12, 14)
    work = next(row for row in count(placed(e, f), e, machine(f)) if row.action == "compute")
    assert work.elems / work.busiest_elems == used_pes(pe_set(e, 12, 14), e) == active


def placed(e: Einsum, f: Fanout) -> Mapping:
    time, space = row_stationary_loops(e, f)
    return parse(
        "\n".join(
            [
                "store DRAM I W O",
                *(f"for {x.rank} tile {x.tile}" for x in time),
                *(f"parfor {x.rank} tile {x.tile} over {x.over}" for x in space),
                "store REG W\nfor n tile 1\nfor q tile 1\nstore REG I O\nfor s tile 1\nmac",
            ]
        )
    )


@given(
    st.tuples(*[st.integers(1, 9)] * 2, *[st.integers(1, 40)] * 2, *[st.integers(1, 7)] * 2),
    st.integers(1, 16),
    st.integers(1, 16),
)
def test_a_set_fits_its_array_and_works_on_every_point(
    shape: tuple[int, ...], rows: int, columns: int
) -> None:
    """Its nest obeys the constraint set, no lane is missing, and the busiest PE does the work of all folds
    (the oracle of the closed form).
    """
    e, f = conv(*shape), grid(rows, columns)
    unit = pe_set(e, rows, columns)
    mapping, arch = placed(e, f), machine(f)
    assert violations(row_stationary(e, f), mapping) == []
    assert fanout_overflow(mapping, e, arch) is None
    work = next(row for row in count(mapping, e, arch) if row.action == "compute")
    k, c, p, q, r, s = shape
    folds = unit.fold_h * unit.fold_w * -(-c // unit.c) * -(-k // min(unit.k_rows * unit.k_columns, k))
    assert work.elems == e.points()
    assert work.busiest_elems == folds * 2 * q * s
    assert unit.rows * unit.columns >= r * p / (unit.fold_h * unit.fold_w)
    assert used_pes(unit, e) <= unit.active <= rows * columns
    assert prod((unit.c, unit.k_rows, unit.k_columns)) <= unit.replication


def test_the_empty_nest_breaks_nothing() -> None:
    assert violations(Constraints(stationary="C"), Mapping(())) == []
