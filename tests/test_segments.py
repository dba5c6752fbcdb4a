"""Fused segments with several shared loops: capacity by lifetime, and the search among them."""

from __future__ import annotations

from dse.mapping.schedule import parse_schedule
from dse.sim.schedule import placed
from dse.sim.schedule.graph import required_bits
from hw import machine
from tests.test_fused import chain
from tests.test_schedule_walks import compared

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
