"""What is minimised, and Pareto dominance of a few rows of figures.

Of many rows at once: `dse/study/pareto.py` (points of a run), `dse/solve/elimination.py` (partial choices).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

Objective = Literal["energy", "latency", "edp"]


def undominated(rows: Sequence[Sequence[float]]) -> list[int]:
    """Places of the rows that no other one dominates, in their order; of equal rows the first.

    rows: figures of each, all to be small. b dominates a if it is no larger in any of them.
    >>> undominated([(1, 5), (2, 2), (2, 2), (3, 2), (4, 1)])
    [0, 1, 4]
    """
    own = [tuple(row) for row in rows]

    def dominates(j: int, i: int) -> bool:
        return (own[j] != own[i] or j < i) and all(b <= a for b, a in zip(own[j], own[i], strict=True))

    return [i for i in range(len(own)) if not any(dominates(j, i) for j in range(len(own)))]
