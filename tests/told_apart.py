"""Problems that tell a rule of the search from the same rule made slightly wrong (tests/prove/mutants.py),
each as small as it still does: written out, so that they stay what they are whatever random problems become.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

from dse.mapping.constraints import Factors
from dse.sim.einsum.evaluate import Problem
from hw.arch import Arch, Compute, Fanout, Level
from workloads.einsum import Einsum, csr, einsum


def level(
    words: int | None = None,
    pj: float = 0.0,
    bandwidth: float = inf,
    bypass: bool = True,
    double_buffer: bool = False,
) -> Level:
    """Words of 8 bits; None: unbounded."""
    return Level("", words and 8 * words, 8, pj, pj, bandwidth, double_buffer=double_buffer, bypass=bypass)


def array(outside: int, *sizes: int, multicast: bool = True, reduce: bool = True) -> Fanout:
    """So many levels outside of it; lanes per dimension."""
    many, dims = len(sizes), tuple((f"{axis}{outside}", n) for axis, n in zip("XY", sizes, strict=False))
    return Fanout(f"A{outside}", outside, dims, (multicast,) * many, (reduce,) * many)


def on(objective: str, e: Einsum, *parts: Level | Fanout) -> Problem:
    levels = [
        replace(part, name=f"L{v}", bypass=part.bypass and v > 0)
        for v, part in enumerate(p for p in parts if isinstance(p, Level))
    ]
    return Problem(
        Arch(
            "told",
            tuple(levels),
            tuple(p for p in parts if isinstance(p, Fanout)),
            Compute(1.0, 1.0),
            1.0,
            8,
            overlap="free",
        ),
        e,
        objective,
    )


MATRIX, VECTOR, WINDOW, POOL = (
    "C[m,n] += A[m,k] * B[k,n]",
    "C[n] += A[k] * B[k,n]",
    "C[p] += A[p+r] * B[r]",
    "C[p] max= A[p+r]",
)
CSR = csr("B", 1 / 3, index_bits=8, pointer_bits=8)
TOLD: dict[str, tuple[Factors, Problem]] = {
    "later ranks bring their least": (
        "perfect",
        on("energy", einsum("C[b] = A[b]", {"b": 2}), level(pj=1), array(1, 2)),
    ),
    "later ranks have the lanes that are left; skipped reads are no cost": (
        "imperfect_spatial",
        on(
            "energy",
            einsum("C[b,m] += A[b,m,k] * B[b,k]", {"b": 3, "m": 2, "k": 2}),
            level(pj=1),
            array(1, 4, 2),
        ),
    ),
    "lanes may use the dimensions in several ways, which leave different ones": (
        "imperfect_spatial",
        on("edp", einsum(VECTOR, {"n": 3, "k": 3}), level(pj=100), array(1, 3, 2)),
    ),
    "later ranks may use what is left in several ways": (
        "imperfect_spatial",
        on("energy", einsum(MATRIX, {"m": 3, "n": 3, "k": 2}), level(pj=1, bandwidth=1), array(1, 3, 4)),
    ),
    "a group of options is as low as its lowest": (
        "imperfect_spatial",
        on(
            "latency",
            einsum("C[m] += A[m,k] * B[k]", {"m": 5, "k": 3}),
            level(),
            array(1, 8),
            level(bandwidth=0.5, bypass=False),
            array(2, 2),
        ),
    ),
    "hulls of ranks without lanes yet are the least": (
        "imperfect_spatial",
        on("edp", einsum(WINDOW, {"p": 10, "r": 2}), level(pj=100), array(1, 2), level(), array(2, 3)),
    ),
    "first reads come off at their most: larger tiles touch what lies between indices": (
        "perfect",
        on("latency", einsum("C[2*p+2*r] += A[p] * B[p,r]", {"p": 2, "r": 3}), level(bandwidth=1), level()),
    ),
    "strides leave gaps between small tiles": (
        "perfect",
        on("energy", einsum("C[p] += A[3*p] * B[]", {"p": 3}, sizes={"A": (3,)}), level(pj=100), level()),
    ),
    "smaller tiles of a window may be fetched less": (
        "perfect",
        on(
            "energy",
            einsum("C[p] += A[3*p+2*r] * B[r]", {"p": 2, "r": 2}, sizes={"A": (2,)}),
            level(pj=100),
            level(),
        ),
    ),
    "what does not fit says nothing of smaller tiles": (
        "perfect",
        on("energy", einsum(VECTOR, {"n": 3, "k": 4}), level(pj=100), level(3)),
    ),
    "what stands still is held once, what sinks twice": (
        "perfect",
        on("energy", einsum(POOL, {"p": 3, "r": 3}), level(), level(7, 1, bypass=False, double_buffer=True)),
    ),
    "loops stay below a node for the sake of rows outside, which a loop would turn into tiles held twice": (
        "perfect",
        on(
            "energy",
            einsum(MATRIX, {"m": 2, "n": 2, "k": 2}, **CSR),
            level(pj=100),
            level(10, 1, bypass=False, double_buffer=True),
        ),
    ),
    "tiles that sink are held twice": (
        "perfect",
        on("energy", einsum(POOL, {"p": 2, "r": 2}), level(), level(4, bypass=False, double_buffer=True)),
    ),
    "rows of compressed tiles do not sink, and take their own width": (
        "perfect",
        on(
            "energy",
            einsum(VECTOR, {"n": 4, "k": 2}, **csr("B", 1 / 3, index_bits=8, pointer_bits=16)),
            level(),
            level(6, 1, bypass=False),
        ),
    ),
    "a node does not rise above loops of its own": (
        "perfect",
        on("energy", einsum(VECTOR, {"n": 2, "k": 2}), level(pj=100), level()),
    ),
    "a node stays below a loop that the one outside sinks through": (
        "perfect",
        on(
            "latency",
            einsum("C[k,p] += A[p+r] * B[k,r]", {"k": 2, "p": 4, "r": 2}),
            level(),
            level(6, bandwidth=1, bypass=False),
            array(2, 2),
        ),
    ),
    "loops directly inside a border let a window outside stand still": (
        "perfect",
        on(
            "energy",
            einsum(POOL, {"p": 6, "r": 5}),
            level(pj=100),
            level(10, double_buffer=True),
            array(2, 2),
            level(1, 0.5),
        ),
    ),
    "nodes in a row change places unless the last one sinks": (
        "perfect",
        on("latency", einsum(WINDOW, {"p": 2, "r": 2}), level(bandwidth=1), level(5)),
    ),
    "inside a border: energy counts": (
        "perfect",
        on(
            "energy",
            einsum("C[p] += A[p+2*r] * B[r]", {"p": 3, "r": 3}, bits={"C": 16}),
            level(pj=100),
            level(pj=1),
            array(2, 2),
            level(4, bypass=False),
        ),
    ),
    "inside a border: cycles count": (
        "perfect",
        on(
            "latency",
            einsum(WINDOW, {"p": 2, "r": 2}),
            level(),
            level(bandwidth=1, bypass=False),
            array(2, 2),
            level(5),
        ),
    ),
    "the padding of the first lane is that of the tiles that enter the lanes": (
        "perfect",
        on(
            "latency",
            einsum("C[p] += A[p+2*r-2] * B[r]", {"p": 6, "r": 3}),
            level(),
            array(1, 2),
            level(3, bandwidth=1, bypass=False),
        ),
    ),
    "windows first, other ranks at their largest": (
        "perfect",
        on(
            "latency",
            einsum("C[k,p] += A[c,p+r] * B[k,c,r]", {"k": 2, "c": 1, "p": 1, "r": 2}),
            level(),
            level(4, bandwidth=1, bypass=False),
        ),
    ),
    "a node sinks into one window": (
        "perfect",
        on(
            "energy",
            einsum("C[p,q] += A[p+r,q] * B[r]", {"p": 2, "q": 3, "r": 2}),
            level(pj=100),
            array(1, 3),
            level(3),
        ),
    ),
    "lanes fit in every dimension": (
        "perfect",
        on("latency", einsum("C[k,p] += A[p] * B[k]", {"k": 2, "p": 3}), level(), array(1, 2, 3)),
    ),
    "of two ways over the lanes one stays": (
        "perfect",
        on("latency", einsum("C[q] += A[q] * B[]", {"q": 2}), level(), array(1, 2, 2, reduce=False)),
    ),
    "ragged lanes share out a part of a rank": (
        "imperfect_spatial",
        on("latency", einsum("C[m] = A[m]", {"m": 9}), level(), level(6, bypass=False), array(2, 2)),
    ),
    "ragged lanes of two borders": (
        "imperfect_spatial",
        on(
            "energy",
            einsum("C[] += A[k] * B[k]", {"k": 3}),
            level(),
            array(1, 2),
            level(pj=1, bypass=False),
            array(2, 2, reduce=False),
        ),
    ),
    "cuts over one group that do not divide": (
        "imperfect_spatial",
        on(
            "energy",
            einsum("C[] += A[k] * B[k]", {"k": 9}),
            level(pj=100),
            array(1, 2, 2, multicast=False, reduce=False),
        ),
    ),
    "what lanes share is read once": (
        "perfect",
        on("energy", einsum("C[n] = A[] * B[n]", {"n": 8}), level(pj=100), level(pj=1), array(2, 4)),
    ),
    "energy x delay": ("perfect", on("edp", einsum("C[] += A[k] * B[k]", {"k": 2}), level())),
}
