"""Which of a few rows no other one dominates."""

from __future__ import annotations

import doctest
from itertools import product

from dse.sim import fronts
from dse.sim.fronts import undominated


def test_a_row_falls_to_one_that_is_no_larger_in_any_figure() -> None:
    """All lists of three rows of figures 0 to 2; of equal rows the first stays."""
    assert doctest.testmod(fronts).failed == 0
    for rows in product(list(product(range(3), repeat=2)), repeat=3):
        beaten = {
            i
            for i, j in product(range(3), repeat=2)
            if (rows[j] == rows[i] and j < i)
            or (rows[j] != rows[i] and rows[j][0] <= rows[i][0] and rows[j][1] <= rows[i][1])
        }
        assert undominated(rows) == sorted({0, 1, 2} - beaten)
