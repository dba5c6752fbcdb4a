"""Bounds of einsums on machines of nodes: never above what mappings cost, also where windows, lanes or cheap
networks invite to pass registers by.
"""

from __future__ import annotations

from math import inf, isclose
from random import Random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dse.mapper.baselines.random import random
from dse.mapping.nest import Infeasible
from dse.sim.einsum.evaluate import Problem
from dse.solve.schedules.einsum_bounds import lower_bound
from dse.solve.schedules.register_bounds import fill_pj, roles
from dse.solve.schedules.stage_bounds import _returning_pj, sharing_bounds
from dse.solve.schedules.stages import StageContext
from hw.arch import Arch, Compute, Fanout, Level
from tests.amount import amount
from tests.enumeration import enumerated
from workloads.einsum import Einsum, einsum


def machine_of(rng: Random) -> Arch:
    levels = (
        Level("DRAM", None, 8, rng.choice([5.0, 50.0]), rng.choice([5.0, 60.0]), 4.0, bypass=False),
        Level("BUF", 8 * rng.choice([100, 400, 4000]), 8, 2.0, 3.0, 8.0, bypass=False),
        Level(
            "REG",
            8 * rng.choice([3, 4, 5, 8, 12, 20]),
            8,
            rng.choice([0.05, 0.3, 1.0]),
            rng.choice([0.05, 0.4]),
            inf,
        ),
    )
    nodes = Fanout("N", 1, (("NY", 1), ("NX", rng.choice([1, 2, 3]))), (True, True), (True, True))
    lanes = Fanout(
        "A",
        2,
        (("Y", rng.choice([1, 2, 4])), ("X", rng.choice([1, 2, 3]))),
        (True, True),
        (True, True),
        endpoint_pj=rng.choice([0.0, 0.1, 0.4]),
    )
    return Arch("t", levels, (nodes, lanes), Compute(1.0, 0.5), 1.0, 8, overlap="free")


def product_of(rng: Random) -> Einsum:
    def n() -> int:
        return rng.choice([1, 2, 3, 4, 6, 8])

    p, r, c = n(), rng.choice([1, 2, 3]), rng.choice([1, 2, 3])
    return rng.choice(
        [
            lambda: einsum("C[m,n] += A[m,k] * B[k,n]", {"m": n(), "n": n(), "k": n()}, "e"),
            lambda: einsum("C[b,m,n] += A[b,m,k] * B[b,k,n]", {"b": 2, "m": n(), "n": n(), "k": n()}, "e"),
            lambda: einsum("O[k,p] += I[c,p+r] * W[k,c,r]", {"k": n(), "c": c, "p": p, "r": r}, "e"),
            lambda: einsum(
                "O[k,p] += I[c,p+r-1] * W[k,c,r]",
                {"k": n(), "c": c, "p": p + 2, "r": r},
                "e",
                sizes={"I": (c, p + r)},
            ),
            lambda: einsum(
                "O[g,p,q] += I[g,p+r,q+s] * W[g,r,s]",
                {"g": 2, "p": p, "q": c, "r": r, "s": rng.choice([1, 2])},
                "e",
            ),
        ]
    )()


@settings(max_examples=amount(60, 8), deadline=None)
@given(st.integers(0, 10**9))
@example(21)  # a mapping that passes registers by
def test_no_mapping_costs_less(seed: int) -> None:
    rng = Random(seed)
    arch, e = machine_of(rng), product_of(rng)
    found = random(Problem(arch, e, "energy"), rng, 60)
    low = inf if isinstance(found, Infeasible) else min(one.energy_pj for one in found)
    assert lower_bound(e, arch).energy <= low * (1 + 1e-9)


def small_machine(rng: Random) -> Arch:
    """One node, whose buffer holds few words."""
    levels = (
        Level("DRAM", None, 8, rng.choice([5.0, 50.0]), rng.choice([5.0, 60.0]), 4.0, bypass=False),
        Level(
            "BUF",
            8 * rng.choice([6, 9, 12, 20, 40]),
            8,
            rng.choice([0.2, 2.0]),
            rng.choice([0.3, 3.0]),
            8.0,
            bypass=False,
        ),
        Level("REG", 8 * rng.choice([3, 4, 5, 8]), 8, 0.05, 0.05, inf),
    )
    nodes = Fanout("N", 1, (("NY", 1), ("NX", 1)), (True, True), (True, True))
    lanes = Fanout(
        "A",
        2,
        (("Y", rng.choice([1, 2])), ("X", 1)),
        (True, True),
        (True, True),
        endpoint_pj=rng.choice([0.0, 0.1]),
    )
    return Arch("t", levels, (nodes, lanes), Compute(0.1, 0.05), 1.0, 8, overlap="free")


def free(buffer: int, room: int, outer_pj: float = 0.0, buffer_pj: float = 0.0) -> Arch:
    """One node of one lane, in which nothing else costs."""
    levels = (
        Level("DRAM", None, 8, outer_pj, outer_pj, inf, bypass=False),
        Level("BUF", 8 * buffer, 8, buffer_pj, buffer_pj, inf, bypass=False),
        Level("REG", 8 * room, 8, 0.0, 0.0, inf),
    )
    nodes = Fanout("N", 1, (("NY", 1), ("NX", 1)), (True, True), (True, True))
    return Arch(
        "t",
        levels,
        (nodes, Fanout("A", 2, (("Y", 1), ("X", 1)), (True, True), (True, True))),
        Compute(0.0, 0.0),
        1.0,
        8,
        overlap="free",
    )


def near(seed: int) -> float:
    """Of a node by itself, over the best of many mappings."""
    rng = Random(seed)
    arch, e = small_machine(rng), product_of(rng)
    found = random(Problem(arch, e, "energy"), rng, 60)
    (low,) = sharing_bounds(e, arch, StageContext()).energy
    return (
        0.0
        if isinstance(found, Infeasible) or not low < inf
        else float(low / min(one.energy_pj for one in found))
    )


@settings(max_examples=amount(30, 8), deadline=None)
@given(st.integers(0, 10**9))
@example(13)
@example(9)
@example(7)
@example(29)
def test_no_mapping_of_a_small_buffer_costs_less(seed: int) -> None:
    assert near(seed) <= 1 + 1e-9


def test_words_that_a_buffer_takes_in_again_by_hand() -> None:
    """A buffer of 25 words holds 5 x 5 results at best: each word of an input serves 5 products at most, a
    result all 60 of k.
    """
    arch = free(25, 3, outer_pj=100.0)
    (low,) = sharing_bounds(
        einsum("C[m,n] += A[m,k] * B[k,n]", {"m": 60, "n": 60, "k": 60}, "e"), arch, StageContext()
    ).energy
    assert isclose(low, 60**3 * 100.0 * (2 / 5 + 1 / 60))


def test_sums_that_return_from_a_buffer_by_hand() -> None:
    """In 36 words a tile of 6 x 6: each word of the other input serves 6 products, a sum returns after 6 of
    60, but for its first turn. A tile of 36 weights serves all 60 of m.
    """
    e = einsum("C[m,n] += A[m,k] * B[k,n]", {"m": 60, "n": 60, "k": 60}, "e")
    words = np.array([100.0])
    (pj,) = _returning_pj(
        e,
        free(10**6, 3, buffer_pj=100.0),
        ("m", "n"),
        np.array([[60, 60]]),
        (words, words, words),
        8 * np.array([36.0]),
        np.array([3600.0]),
    )
    assert isclose(pj, 60**3 * 100.0 * (1 / 60 + 2 / 6) - 100.0 * 3600)


@pytest.mark.parametrize(
    ("sizes", "buffer", "room", "outer_pj"),
    [
        ((1, 1, 16), 6, 3, 30.0),
        ((1, 4, 8), 8, 3, 1.0),
        ((2, 2, 8), 8, 4, 30.0),
        ((3, 1, 12), 10, 6, 1.0),
        ((4, 1, 8), 14, 3, 30.0),
    ],
)
def test_no_mapping_returns_sums_for_less(
    sizes: tuple[int, int, int], buffer: int, room: int, outer_pj: float
) -> None:
    """Beside all mappings, where words of main memory and of the buffer cost."""
    e = einsum("C[m,n] += A[m,k] * B[k,n]", dict(zip("mnk", sizes, strict=True)), "e")
    arch = free(buffer, room, outer_pj, 5.0)
    best = enumerated(Problem(arch, e, "energy"), "perfect").cost[0]
    (low,) = sharing_bounds(e, arch, StageContext()).energy
    assert 0.4 * best <= low <= best * (1 + 1e-9)


WINDOWS = (
    einsum("O[p] += I[p+r] * W[r]", {"p": 4, "r": 3}, "e"),
    einsum("O[k,p] += I[2*p+r] * W[k,r]", {"k": 2, "p": 4, "r": 3}, "e"),
    einsum("O[p] += I[p+r-1] * W[r]", {"p": 4, "r": 3}, "e", sizes={"I": (4,)}),
    einsum("O[m,n] += I[m,k] * W[k,n]", {"m": 4, "n": 4, "k": 2}, "e"),
)


@pytest.mark.parametrize("e", WINDOWS, ids=range(len(WINDOWS)))
@pytest.mark.parametrize("room", [3, 5, 8])
def test_registers_ask_for_no_less_than_the_bound_and_little_more(e: Einsum, room: int) -> None:
    """Beside all mappings, where only the buffer's words cost."""
    arch = free(10**6, room, buffer_pj=1.0)
    best = enumerated(Problem(arch, e, "energy"), "perfect").cost[0]
    (low,) = sharing_bounds(e, arch, StageContext()).energy
    assert 0.6 * best <= low <= best * (1 + 1e-9)


def test_fetches_of_registers_are_those_of_the_best_boxes() -> None:
    """31 registers hold 5 x 5 results, 5 weights and a word of the image: each word of an input serves 5
    operations, a result leaves after 1,000. 30 do not, and of 50 neither 4 nor 6 are a part. Of a buffer's
    words four lanes ask for half as many, each input's by two of them.
    """
    r, odd = (roles(einsum("C[m,n] += A[m,k] * B[k,n]", {"m": n, "n": n, "k": 1000}, "e")) for n in (60, 50))
    assert r is not None
    assert odd is not None
    every = (1.0, 1.0, 1.0)
    assert isclose(fill_pj([r], 31, every)[0], 2 / 5 + 1 / 1000)
    assert isclose(fill_pj([r], 30, every)[0], 1 / 4 + 1 / 6 + 1 / 1000)
    assert isclose(fill_pj([odd], 31, every)[0], 2 / 5 + 1 / 1000)
    assert isclose(fill_pj([odd], 30, every)[0], 1 / 5 + 1 / 4 + 0.02)
    one, four = (fill_pj([r], 31, (0.0, 0.0, 0.0), every, lanes)[0] for lanes in (1, 4))
    assert 0.35 < one <= 2 / 5 + 1 / 1000
    assert 0.4 < four / one < 0.6
