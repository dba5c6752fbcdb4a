"""The least product of two sums, from lines that no choice is below: energy x latency of a workload.

Of a choice of one mapping per einsum, energy E and latency C of the workload are sums over its einsums.
E x C is quasi-concave, so the least is a corner of the convex hull of all choices (E, C), and the least
E + k C of a ratio k is a sum of the einsums' least E_i + k C_i: the least energy on a machine that leaks k pJ
per cycle more. Each k is a corner, and a line that no choice is below. Together they bound E x C by its least
value at the crossings of neighbouring lines; the next k is that of the lowest crossing.
(Outer approximation of multiplicative programs: Konno, Kuno, Linear multiplicative programming, 1992.)
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from math import inf
from typing import NamedTuple

from dse.sim.einsum.evaluate import ROUNDING_GAP, Pair, relative_gap


class Line(NamedTuple):
    """All choices have energy + ratio x latency of at least `least`; ratio inf: latency of at least it."""

    ratio: float
    least: float
    corner: Pair | None  # energy and latency of the choice that is nearest to it; None: it was not searched

    def height(self, pair: Pair) -> float:
        """Energy + ratio x latency."""
        return pair[1] if self.ratio == inf else pair[0] + self.ratio * pair[1]


@dataclass(slots=True)
class ProductLines:
    """Lines that no choice of a workload is below on one machine, and the energy and latency of the best
    choice known. The first two lines are the least energy (ratio 0) and the least latency (inf).
    """

    lines: list[Line]
    best: Pair  # inf, inf: none is known
    least_product: float = 0.0  # a lower bound that does not come from the lines

    def add(self, ratio: float, least: float, corner: Pair) -> bool:
        """Adds the line of a ratio. Returns whether its corner is a better choice than the best."""
        self.lines = [one for one in self.lines if one.ratio != ratio]
        self.lines.append(Line(ratio, least, corner))
        is_better = corner[0] * corner[1] < self.best[0] * self.best[1]
        if is_better:
            self.best = corner
        return is_better

    def lowest(self) -> tuple[float, Line, Line]:
        """Returns the least product that the lines allow, and the two lines that cross there."""
        crossings = []
        for a, b in combinations(sorted(self.lines), 2):
            latency = b.least if b.ratio == inf else (b.least - a.least) / (b.ratio - a.ratio)
            crossing = a.least - a.ratio * latency, latency
            if all(line.height(crossing) >= line.least * (1 - ROUNDING_GAP) for line in self.lines):
                crossings.append((crossing[0] * crossing[1], a, b))
        return min(crossings, key=lambda one: one[0])

    def bound(self) -> float:
        """Returns a lower bound of the product of any choice."""
        return max(self.lowest()[0], self.least_product)

    def gap(self) -> float:
        """Returns the optimality gap of the best choice."""
        gap = relative_gap(self.best[0] * self.best[1], self.bound())
        return gap if gap > 10 * ROUNDING_GAP else 0.0

    def next_ratio(self, allowed_gap: float, end_step: float = inf) -> float | None:
        """Returns the ratio to search next; None once the gap is allowed, or no ratio makes it smaller.

        end_step: how far from the line beside it a ratio lies towards an end that was not searched; inf: at
            the end
        """
        if self.gap() <= allowed_gap:
            return None
        if len(self.lines) == 2:
            return self.best[0] / self.best[1]
        _, a, b = self.lowest()
        if a.corner is None:
            ratio = (b.ratio if b.ratio < inf else self.best[0] / self.best[1]) / end_step
        elif b.corner is None:
            ratio = (a.ratio or self.best[0] / self.best[1]) * end_step
        else:
            more_pj, fewer_cycles = b.corner[0] - a.corner[0], a.corner[1] - b.corner[1]
            if fewer_cycles <= 0 or not a.ratio < (ratio := more_pj / fewer_cycles) < b.ratio:
                return None
        return None if any(one.corner and _are_near(ratio, one.ratio) for one in self.lines) else ratio


def _are_near(ratio: float, other: float) -> bool:
    return ratio == other or abs(ratio - other) <= ROUNDING_GAP * other < inf


def product_lines(least: Pair, best: Pair) -> ProductLines:
    """Returns what is known of a workload on a machine from its least energy and latency, and the energy and
    latency of the best choice known.
    """
    return ProductLines([Line(0.0, least[0], None), Line(inf, least[1], None)], best)
