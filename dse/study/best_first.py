"""search.method: bounds. Branch and bound over the machines of a space, best first.

The boxes are the machines themselves: bounds of 20,000 to 30,000 machines take a second (ResNet-50), so that
a space of a million is bounded whole before the first is solved. A box of several machines, whose bound mixes
the best price, rate and area of all, would rule out no more.

Machines are asked for by the sum of their scaled bounds: of two machines the one whose bounds dominate the
other's comes first (sort-filter skyline: Chomicki et al., Skyline with presorting, 2003), but for machines
that one search solves together, of which a generation has several. A generation takes machines that no
schedule of a generation <= g-2 rules out. Once none is left, all of the others are: they are asked for too,
and become rows `pruned` where they are bounded again. Then no machine of the space is missing from the front.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from dse.study.pareto import Trial
from dse.study.prune import first_dominating
from dse.study.sampler import MAX_GENERATION, MIN_GENERATION, Search
from workloads.arrays import Bools, Floats, Ints

# machines of a space, at most, whose schedules are unfused (bounded as columns), or others (one by one)
MAX_BOUNDED, MAX_BOUNDED_SLOWLY = 10_000_000, 100_000
TOGETHER = 4  # a generation has about so many structures, if there are
GROWTH = 8  # a generation has an eighth of the machines of all before it (sampler.BEST_FIRST_TEXT)


@dataclass(slots=True)
class BestFirst:
    """Machines of a space that no generation has asked for yet."""

    search: Search
    bounds: Floats  # [size, objectives] lower bounds of all machines; inf: it has no schedule
    batch_of: Ints  # [size] a number that is equal for machines that one search solves together
    is_asked: Bools = field(init=False)  # [size]
    best: Ints = field(init=False)  # machines that no known schedule rules out, best first
    held_against: set[Trial] = field(default_factory=set)  # schedules that ruled out all they can

    def __post_init__(self) -> None:
        self.is_asked = np.zeros(len(self.bounds), np.bool_)
        self.best = best_first(self.bounds)

    def drop(self, machines: Sequence[int]) -> None:
        """Takes machines out that a generation asks for."""
        self.is_asked[np.array(machines, np.int64)] = True
        self.best = self.best[~self.is_asked[self.best]]

    def candidates(self, trials: Sequence[Trial]) -> Ints:
        """Returns the machines of generation g; none once all are asked for. trials: of complete generations
        <= g-2.
        """
        new = [trial for trial in trials if trial.feasible and trial not in self.held_against]
        self.held_against.update(new)
        self.best = self.best[first_dominating(new, self.bounds[self.best], self.search.gap) < 0]
        if not len(self.best):
            return np.flatnonzero(~self.is_asked)[:MAX_GENERATION]
        grown = min(max(MIN_GENERATION, int(self.is_asked.sum()) // GROWTH), MAX_GENERATION)
        wanted = self.search.generation or grown
        return self.best[together(self.batch_of[self.best], wanted, max(1, wanted // TOGETHER))]


def best_first(bounds: Floats) -> Ints:
    """Returns the machines by the sum of the logarithms of their bounds [n, objectives], each scaled to
    0 (least) .. 1 (largest finite), so that each objective counts alike; equal sums by their numbers.

    >>> best_first(np.array([[8.0, 1.0], [np.inf, np.inf], [2.0, 2.0], [1.0, 8.0]])).tolist()
    [2, 0, 3, 1]
    """
    with np.errstate(divide="ignore"):
        logs = np.log(np.maximum(bounds, np.finfo(float).tiny))
    finite = np.isfinite(logs).all(axis=1)
    sums = np.full(len(bounds), np.inf)
    if finite.any():
        least, most = logs[finite].min(axis=0), logs[finite].max(axis=0)
        sums[finite] = ((logs[finite] - least) / np.where(most > least, most - least, 1.0)).sum(axis=1)
    return np.argsort(sums, kind="stable")


def together(batches: Ints, wanted: int, most: int) -> Ints:
    """Returns the positions of `wanted` machines, given by their batches [n], best first: batch after batch
    in the order of their first machines, of each the first `most`; all of a batch where few would be left,
    which would want a search of their own.

    >>> together(np.array([7, 5, 7, 7, 5, 3, 7]), 4, 2).tolist()
    [0, 2, 1, 4]
    >>> together(np.array([7, 5, 7, 7, 5, 3]), 4, 2).tolist()
    [0, 2, 3, 1]
    """
    _, first, which, counts = np.unique(batches, return_index=True, return_inverse=True, return_counts=True)
    by_batch, sizes = np.argsort(first[which], kind="stable"), counts[np.argsort(first)]
    place_in_batch = np.arange(len(batches)) - np.repeat(np.cumsum([0, *sizes])[:-1], sizes)
    taken = np.repeat(np.where(sizes <= most + most // 2, sizes, most), sizes)
    return np.asarray(by_batch[place_in_batch < taken][:wanted])


def proven_gap(bounds: Floats, front: Floats) -> float:
    """Returns by which share at most a schedule with one of these bounds [n, objectives] is better than each
    row of a front [m, objectives] in some objective: the front covers all of them within it. inf without a
    front; 0.0 where it dominates all.
    """
    worst = np.full(len(bounds), np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        for row in front:
            ratio = np.where(row <= bounds, 1.0, row / bounds)
            np.minimum(worst, ratio.max(axis=1), out=worst)
    return float(worst.max(initial=1.0)) - 1.0
