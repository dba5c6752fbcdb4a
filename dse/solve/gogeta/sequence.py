"""Searches the order of the phases of a period that has the lowest traffic.

On-chip retention depends on the order more than on the rule of eviction. An example is the conjugate gradient
method (CG): if it updates R before X, GOGETA's policy reaches the optimum.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

from dse.solve.gogeta.accesses import Phase
from dse.solve.gogeta.operations import Graph

Judge = Callable[[Sequence[Phase]], float]  # returns the cost of an order
TRIED = 120  # maximum of orders whose cost a search computes
PHASES = 12_000  # maximum of phases in all these orders together, so of long orders fewer are tried
FEWEST = 4  # number of orders that are tried however long they are


def search_order(
    graph: Graph, phases: Sequence[Phase], judge: Judge, lower: float, tried: int = TRIED
) -> list[Phase]:
    """Returns the best order found of the given phases, or of the same phases split into their unconnected
    pipelines; never worse than the given order.

    If there are at most `tried` orders, the cost of all is computed. Otherwise the first ones are tried, and
    from the best of them phases are moved one at a time as long as the cost falls. Of long orders fewer are
    tried.

    judge: returns the cost of an order
    lower: lower bound of the cost of an order; an order that reaches it ends the search
    """
    makers = graph.makers()
    tried = max(min(tried, PHASES // max(len(phases), 1)), min(tried, FEWEST))
    apart = [part for phase in phases for part in _parts(graph, makers, phase)]
    starts = [list(phases)] if len(apart) == len(phases) else [list(phases), apart]
    best, least, left = list(phases), judge(phases), tried - 1
    for start in starts:
        every = list(islice(_orders(start, _before(graph, start)), left + 1))
        for order in every[:left]:
            if least <= lower:
                return best
            if (cost := judge(order)) < least:
                best, least = order, cost
        if len(every) > left:
            return _move_phases(graph, best, least, judge, lower, tried)
        left -= len(every)
    return best


def _move_phases(
    graph: Graph, best: list[Phase], least: float, judge: Judge, lower: float, tried: int
) -> list[Phase]:
    """Returns the order after moving one phase at a time, as long as the cost falls and fewer than `tried`
    orders were tried.
    """
    improved = True
    while improved and least > lower:
        improved = False
        for at, to in islice(_moves(_before(graph, best)), max(tried, 0)):
            order = [*best[:at], *best[at + 1 :]]
            order.insert(to, best[at])
            tried -= 1
            if (cost := judge(order)) < least:
                best, least, improved = order, cost, True
                break
    return best


def _moves(before: Sequence[set[int]]) -> Iterator[tuple[int, int]]:
    """Yields (position, new position) of every allowed move of a phase: it stays after all phases from which
    it reads and before all phases that read from it. before: the phases from which each phase reads.
    """
    first = [max(needs, default=-1) + 1 for needs in before]
    last = [len(before) - 1] * len(before)
    for i, needs in enumerate(before):
        for j in needs:
            last[j] = min(last[j], i - 1)
    yield from (
        (at, to)
        for at in range(len(before))
        for to in range(first[at], last[at] + 1)
        if to not in (at, at - 1)
    )


def _parts(graph: Graph, makers: Mapping[str, int], phase: Phase) -> Iterator[Phase]:
    """Yields each unconnected pipeline of a phase as a phase of its own."""
    members = sorted(v for stage in phase.stages for v in stage)
    root = {v: v for v in members}
    for v in members:
        for p in graph.operations[v].inputs:
            source = makers.get(p.tensor, -1)
            if source in root and root[source] != root[v]:
                old, new = root[v], root[source]
                root = {w: new if r == old else r for w, r in root.items()}
    for one in dict.fromkeys(root.values()):
        stages = (tuple(v for v in stage if root[v] == one) for stage in phase.stages)
        yield Phase(tuple(stage for stage in stages if stage), phase.resident_words, phase.whole_tensors)


def _before(graph: Graph, phases: Sequence[Phase]) -> list[set[int]]:
    """Returns, for each phase of a period, the phases from which it reads."""
    makers = graph.makers()
    home = {v: i for i, phase in enumerate(phases) for stage in phase.stages for v in stage}
    found: list[set[int]] = [set() for _ in phases]
    for v, i in home.items():
        found[i] |= {
            home[makers[p.tensor]] for p in graph.operations[v].inputs if makers.get(p.tensor) in home
        } - {i}
    return found


def _orders(phases: Sequence[Phase], before: Sequence[set[int]]) -> Iterator[list[Phase]]:
    """Yields every order in which each phase comes after the phases from which it reads (before); the given
    order comes first, if it is one of them. There is no recursion, since there may be thousands of phases.
    """
    after: list[list[int]] = [[] for _ in phases]
    for i, needs in enumerate(before):
        for j in needs:
            after[j].append(i)
    missing = [len(needs) for needs in before]
    ready = [i for i, n in enumerate(missing) if not n]  # ascending
    chosen: list[int] = []
    at = 0  # position of the next candidate in `ready`
    while True:
        if at < len(ready):
            chosen.append(ready.pop(at))
            for i in after[chosen[-1]]:
                missing[i] -= 1
                if not missing[i]:
                    insort(ready, i)
            at = 0
            continue
        if len(chosen) == len(phases):
            yield [phases[i] for i in chosen]
        if not chosen:
            return
        last = chosen.pop()
        for i in after[last]:
            if not missing[i]:
                ready.remove(i)
            missing[i] += 1
        insort(ready, last)
        at = bisect_right(ready, last)
