"""First fills while the einsum before runs: closed form against a walk in time, by hand, and where there is
no room.

Mutants killed: slack of a port left out, room of the einsum before left out, what it makes brought ahead; in
the long proof also ports taken together.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dse.mapping.schedule import parse_schedule
from dse.sim.einsum.evaluate import Solution
from dse.sim.schedule.graph import evaluate
from hw.arch import Arch, Compute, Level
from tests.ahead import compared
from tests.amount import amount
from workloads.einsum import einsum
from workloads.graph import Workload

NET = Workload(
    "net",
    (einsum("P[m] = relu(A[m])", {"m": 4}, "a"), einsum("Q[m] += B[m,k] * V[k]", {"m": 3, "k": 6}, "b")),
    frozenset({"V"}),
)
TEXT = """fills ahead
segment
  einsum a
    store DRAM A P
    for m tile 1
      mac
segment
  einsum b
    store DRAM B V Q
    store BUF V B
    for m tile 1
      for k tile 1
        mac"""


def machine(words: int | None = None, leak_mw: float = 0.0) -> Arch:
    """A word per cycle and port of DRAM; an operation takes two cycles; a buffer that is filled at once."""
    levels = (
        Level("DRAM", None, 8, 1.0, 1.0, 1.0, "separate", leak_mw=leak_mw),
        Level("BUF", None if words is None else 8 * words, 8, 1.0, 1.0),
    )
    return Arch("one", levels, (), Compute(1.0, 1.0, 0.5), 1.0, 8)


@settings(max_examples=amount(40), deadline=None, derandomize=True)
@given(st.integers(0, 2**32))
def test_fills_ahead_are_never_faster_than_a_walk_of_all_einsums(seed: int) -> None:
    assert compared(seed).fault == ""


def cycles(text: str, words: int | None = None) -> float:
    found = evaluate(machine(words), NET, parse_schedule(text))
    assert isinstance(found, Solution), found
    return found.latency_cycles


def test_by_hand() -> None:
    """a: 4 operations in 8 cycles, 4 words in, so DRAM has 4 cycles left to read for b, which waits 7 for V
    and its first word of B, 17 for the others, and works 36. With words of A in BUF, a waits 4 for them: 8
    cycles are left, and room for V and B, or for V alone.
    """
    assert cycles(TEXT.replace("ahead", "in turn")) == 8 + 7 + 17 + 36
    assert cycles(TEXT) == 8 + 3 + 17 + 36
    held = TEXT.replace("store DRAM A P", "store DRAM A P\n    store BUF A")
    assert cycles(held.replace("ahead", "in turn")) == 12 + 60
    assert [cycles(held, words) for words in (None, 8, 7)] == [12 + 60 - 7, 12 + 60 - 7, 12 + 60 - 6]


def test_what_is_hidden_is_said_and_leaks_no_more() -> None:
    ahead, turn = (
        evaluate(machine(leak_mw=2.0), NET, parse_schedule(text))
        for text in (TEXT, TEXT.replace("ahead", "in turn"))
    )
    assert isinstance(ahead, Solution)
    assert isinstance(turn, Solution)
    assert "fills ahead: 4 cycles of ramp-up overlap the einsum before" in ahead.certificate
    assert turn.schedule is None
    assert ahead.energy_pj == pytest.approx(turn.energy_pj - 4 * 2.0)
    assert sum(c.energy_pj for c in ahead.einsums) == pytest.approx(ahead.energy_pj)
    assert str(parse_schedule(TEXT)) == TEXT


def test_what_the_einsum_before_makes_does_not_come_ahead() -> None:
    net = Workload(
        "net", (NET.einsums[0], einsum("Q[m] += P[m] * V[k]", {"m": 4, "k": 2}, "b")), frozenset({"V"})
    )
    text = TEXT.replace("store DRAM B V Q", "store DRAM P V Q").replace("store BUF V B", "store BUF V P")
    found = [
        evaluate(machine(), net, parse_schedule(one)) for one in (text, text.replace("ahead", "in turn"))
    ]
    assert [one.latency_cycles for one in found if isinstance(one, Solution)] == [8 + 4 + 16, 8 + 6 + 16]


def test_equal_einsums_hide_what_is_their_own() -> None:
    """Three equal layers: nothing comes before the first, V of each other one behind the one before."""
    layers = tuple(einsum(f"T{i + 1}[m] += T{i}[k] * W{i}[k,m]", {"m": 4, "k": 4}, f"e{i}") for i in range(3))
    net = Workload("net", layers, frozenset({"W0", "W1", "W2"}))
    nests = (
        f"segment\neinsum e{i}\nstore DRAM T{i} W{i} T{i + 1}\nstore BUF W{i} T{i}\nfor m tile "
        "1\nfor k tile 1\nmac"
        for i in range(3)
    )
    text = "\n".join(["fills ahead", *nests])
    found, turn = (
        evaluate(machine(leak_mw=1.0), net, parse_schedule(one))
        for one in (text, text.replace("ahead", "in turn"))
    )
    assert isinstance(found, Solution)
    assert isinstance(turn, Solution)
    first, *others = (row.latency_cycles for row in found.segments)
    assert 3 * first == turn.latency_cycles
    assert others[0] == others[1] < first
    assert [c.count for c in found.einsums] == [1, 1, 1]
    hidden = turn.latency_cycles - found.latency_cycles
    assert (
        sum(c.energy_pj for c in found.einsums)
        == pytest.approx(found.energy_pj)
        == pytest.approx(turn.energy_pj - hidden)
    )
