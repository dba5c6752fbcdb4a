"""Bounds of einsums on machines of nodes: never above what mappings cost, also where windows, lanes or cheap networks invite to pass registers by."""

from __future__ import annotations

from math import inf, isclose
from random import Random

from hypothesis import example, given, settings
from hypothesis import strategies as st

from dse.dataflow.random import random
from dse.nest import Infeasible
from dse.reuse.floors import filled_pj, least, roles
from dse.sim.evaluate import Problem
from hw.arch import Arch, Compute, Fanout, Level
from workloads.einsum import Einsum, einsum


def machine_of(rng: Random) -> Arch:
    levels = (Level("DRAM", None, 8, rng.choice([5.0, 50.0]), rng.choice([5.0, 60.0]), 4.0, bypass=False),
              Level("BUF", 8 * rng.choice([100, 400, 4000]), 8, 2.0, 3.0, 8.0, bypass=False),
              Level("REG", 8 * rng.choice([3, 4, 5, 8, 12, 20]), 8, rng.choice([0.05, 0.3, 1.0]), rng.choice([0.05, 0.4]), inf))
    nodes = Fanout("N", 1, (("NY", 1), ("NX", rng.choice([1, 2, 3]))), (True, True), (True, True))
    lanes = Fanout("A", 2, (("Y", rng.choice([1, 2, 4])), ("X", rng.choice([1, 2, 3]))), (True, True), (True, True), lane_pj=rng.choice([0.0, 0.1, 0.4]))
    return Arch("t", levels, (nodes, lanes), Compute(1.0, 0.5), 1.0, 8, overlap="free")


def product_of(rng: Random) -> Einsum:
    def n() -> int:
        return rng.choice([1, 2, 3, 4, 6, 8])

    p, r, c = n(), rng.choice([1, 2, 3]), rng.choice([1, 2, 3])
    return rng.choice([
        lambda: einsum("C[m,n] += A[m,k] * B[k,n]", {"m": n(), "n": n(), "k": n()}, "e"),
        lambda: einsum("C[b,m,n] += A[b,m,k] * B[b,k,n]", {"b": 2, "m": n(), "n": n(), "k": n()}, "e"),
        lambda: einsum("O[k,p] += I[c,p+r] * W[k,c,r]", {"k": n(), "c": c, "p": p, "r": r}, "e"),
        lambda: einsum("O[k,p] += I[c,p+r-1] * W[k,c,r]", {"k": n(), "c": c, "p": p + 2, "r": r}, "e", sizes={"I": (c, p + r)}),
        lambda: einsum("O[g,p,q] += I[g,p+r,q+s] * W[g,r,s]", {"g": 2, "p": p, "q": c, "r": r, "s": rng.choice([1, 2])}, "e")])()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9))
@example(21)  # a mapping that passes registers by
def test_no_mapping_costs_less(seed: int) -> None:
    rng = Random(seed)
    arch, e = machine_of(rng), product_of(rng)
    found = random(Problem(arch, e, "energy"), rng, 60)
    low = inf if isinstance(found, Infeasible) else min(one.energy_pj for one in found)
    assert least(e, arch).energy <= low * (1 + 1e-9)


def test_fetches_of_registers_are_those_of_the_best_boxes() -> None:
    """31 registers hold 5 x 5 results, 5 weights and a word of the image: each word of an input serves 5 operations, a result leaves after 1,000. 30 do not.
    Of a buffer's words four lanes ask for half as many, each input's by two of them."""
    r = roles(einsum("C[m,n] += A[m,k] * B[k,n]", {"m": 50, "n": 50, "k": 1000}, "e"))
    assert r is not None
    assert isclose(filled_pj(r, 31, (1.0, 1.0, 1.0)), 2 / 5 + 1 / 1000)
    assert isclose(filled_pj(r, 30, (1.0, 1.0, 1.0)), 1 / 4 + 1 / 6 + 1 / 1000)
    one, four = (filled_pj(r, 31, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0), lanes) for lanes in (1, 4))
    assert 0.35 < one <= 2 / 5 + 1 / 1000 and 0.4 < four / one < 0.6
