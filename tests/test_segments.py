"""Fused segments with several shared loops: capacity by lifetime, and the search among them."""

from __future__ import annotations

import pytest

from dse.mapping.schedule import parse_schedule
from dse.mapping.searched import covers
from dse.mapping.space import FREE
from dse.sim.einsum.evaluate import Solution
from dse.sim.schedule import placed
from dse.sim.schedule.graph import evaluate, required_bits
from dse.solve.schedules.fused import fused
from hw import machine
from tests.test_fused import chain
from tests.test_schedule_walks import compared
from workloads.einsum import einsum
from workloads.graph import Workload

A2S = machine.arch(machine.load("a2s"))

LIVES = """
segment
  store DRAM T0 W0 W1 W2 T3
  store GLB W1
  for m tile 2
    store GLB T1 T2 W0
    einsum MM0
      for m tile 1
        for n1 tile 1
          for n0 tile 1
            mac
    einsum MM1
      for m tile 1
        for n2 tile 1
          for n1 tile 1
            mac
    einsum MM2
      for m tile 1
        for n3 tile 1
          for n2 tile 1
            mac
"""


def test_a_shared_tile_takes_capacity_from_its_first_branch_to_its_last() -> None:
    """Bytes: W1 (16) stands above the loop, so all the time; T1 and T2 (2 x 4) from maker to reader; W0 (16),
    which every trip fetches anew, in its own branch.
    """
    workload, schedule = chain(3, 8, 4), parse_schedule(LIVES)
    (own,) = placed.placed(A2S, workload, schedule)
    needs = [need["GLB"] // 8 for need in required_bits(schedule.segments[0], own, A2S)]
    assert needs == [16 + 8 + 16, 16 + 8 + 8, 16 + 8]
    assert compared(A2S, workload, schedule) == []


def attention() -> Workload:
    """Products of one attention layer: 4 heads, 128 queries, 128 keys of 32 elements."""
    sizes = {"h": 4, "m": 128, "p": 128, "e": 32, "f": 32}
    own = tuple(
        einsum(text, {rank: sizes[rank] for rank in ranks}, text[0])
        for text, ranks in (
            ("S[h,m,p] += Q[h,m,e] * K[h,p,e]", "hmpe"),
            ("O[h,m,f] += S[h,m,p] * V[h,p,f]", "hmpf"),
        )
    )
    return Workload("attention", own)


def gated_mlp() -> Workload:
    """G and U from the same X, H from both, Y from H."""
    sizes = {"m": 128, "k": 64, "f": 128, "n": 64}
    own = tuple(
        einsum(text, {rank: sizes[rank] for rank in ranks}, text[0])
        for text, ranks in (
            ("G[m,f] += X[m,k] * Wg[k,f]", "mkf"),
            ("U[m,f] += X[m,k] * Wu[k,f]", "mkf"),
            ("H[m,f] = swiglu(G[m,f], U[m,f])", "mf"),
            ("Y[m,n] += H[m,f] * Wd[f,n]", "mfn"),
        )
    )
    return Workload("gated_mlp", own, frozenset({"Wg", "Wu", "Wd"}))


@pytest.mark.parametrize(
    ("workload", "energy"),
    [
        (attention(), 42369024.0),  # loops over h, m and p, which O sums up; listed by AccelForge
        (chain(4), 22921216.0),  # inner weights above the loop; listed by AccelForge
        (chain(8), 44998656.0),  # fits by lifetimes alone; listed by AccelForge
        (gated_mlp(), 35586048.0),  # X read once for two einsums, Y summed up in the buffer
    ],
    ids=["attention", "chain4", "chain8", "gated_mlp"],
)
def test_several_shared_loops_are_searched_exactly(workload: Workload, energy: float) -> None:
    found = fused(A2S, workload, "energy", "perfect", lambda _: FREE)
    assert isinstance(found, Solution)
    assert found.schedule is not None
    assert found.space is not None
    assert (found.energy_pj, found.optimality_gap) == (energy, 0.0)
    assert covers(found.space, found.schedule, workload, A2S) is None
    again = evaluate(A2S, workload, parse_schedule(str(found.schedule)))
    assert isinstance(again, Solution)
    assert again.energy_pj == energy
