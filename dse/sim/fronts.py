"""What is minimised, and Pareto dominance among a few rows.

For many rows at once see `dse/study/pareto.py` (points of a run) and `dse/solve/elimination.py` (partial
choices).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

Objective = Literal["energy", "latency", "edp"]


def undominated(rows: Sequence[Sequence[float]]) -> list[int]:
    """Returns the indices of rows that no other row dominates, in order; of equal rows the first.

    rows: objective values of each, all to be minimised. Row b dominates row a if none of its values is
        larger.
    >>> undominated([(1, 5), (2, 2), (2, 2), (3, 2), (4, 1)])
    [0, 1, 4]
    """
    points = [tuple(row) for row in rows]

    def dominates(j: int, i: int) -> bool:
        return (points[j] != points[i] or j < i) and all(
            b <= a for b, a in zip(points[j], points[i], strict=True)
        )

    return [i for i in range(len(points)) if not any(dominates(j, i) for j in range(len(points)))]
