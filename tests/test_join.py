"""The graph engine against all choices of labels, one by one."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dse.solve.elimination import Reservation, Table, join, table
from tests.amount import amount
from tests.joins import KINDS, random_problem, wrong


@settings(max_examples=amount(60), deadline=None, derandomize=True)
@given(st.integers(0, 10**9))
def test_the_engine_finds_what_an_enumeration_finds(seed: int) -> None:
    """Figures, fronts, peaks, the rows that are named. It kills: a room closed while others add to it, one
    that never is, dominance in one column only.
    """
    assert wrong(seed) == []


@settings(max_examples=amount(60), deadline=None, derandomize=True)
@given(st.integers(0, 10**9), st.sampled_from([2, 3, 5, 24]))
def test_a_beams_floor_is_never_above_the_optimum(seed: int, most: int) -> None:
    assert wrong(seed, most) == []


def test_beams_let_rows_fall_and_say_so() -> None:
    """Else the test above would say nothing: a beam of two rows misses optima, and proves others none the
    less.
    """
    gaps = []
    for seed in range(amount(40)):
        tables, rooms = random_problem(Random(seed), KINDS[seed % len(KINDS)])
        found = join(tables, rooms, "edp", 2)
        gaps += [one.energy * one.latency > found.lower_bound for one in found.choices]
    assert any(gaps)
    assert not all(gaps)


def test_what_never_fits_together_has_no_choice() -> None:
    rows = table(("a",), [((a,), (1, 1, 3)) for a in range(2)], ("r",))
    found = join([rows, rows], {"r": Reservation(5.0)})
    assert found.choices == ()
    assert found.lower_bound == np.inf


def test_rooms_of_different_times_do_not_add_up() -> None:
    """Two tensors that live one after the other: the peak is the larger one."""
    early, late = table(("a",), [((0,), (1, 1, 3))], ("g@1",)), table(("b",), [((0,), (1, 1, 4))], ("g@2",))
    found = join([early, late], {"g@1": Reservation(4.0, "g"), "g@2": Reservation(4.0, "g")}, "front")
    assert [one.peaks for one in found.choices] == [(("g", 4.0),)]


def test_negative_costs_are_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        join([Table(("a",), np.zeros((1, 1), np.int64), np.array([[-1.0, 0.0]]))])
