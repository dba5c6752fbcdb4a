"""Which phase comes when: orders of the phases of a period, searched with the optimum of their accesses as
the judge.

What stays on chip depends on the order more than on the rule of eviction: CG that updates R before X lets the
policy reach the optimum.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

from dse.solve.gogeta.accesses import Phase
from dse.solve.gogeta.operations import Graph

Judge = Callable[[Sequence[Phase]], float]  # what an order costs
TRIED = 120  # orders that a search looks at
PHASES = 12_000  # in all of these together: fewer orders of thousands of phases, but FEWEST
FEWEST = 4


def search_order(
    graph: Graph, phases: Sequence[Phase], judge: Judge, lower: float, tried: int = TRIED
) -> list[Phase]:
    """The best order found of the phases, as they are or with operations side by side taken apart; never
    worse than the one given.

    All orders, if there are at most `tried` in all; else phases move one at a time as long as that helps,
    from the best of the first orders. Of long graphs fewer are tried. lower: no order costs less; one that
    costs no more ends the search.
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
    """One phase at a time goes to another place, as long as an order gets better and there are orders to
    try."""
    improved = True
    while improved and tried > 0 and least > lower:
        improved = False
        for at, to in _moves(_before(graph, best)):
            order = [*best[:at], *best[at + 1 :]]
            order.insert(to, best[at])
            tried -= 1
            if (cost := judge(order)) < least:
                best, least, improved = order, cost, True
                break
            if tried <= 0:
                break
    return best


def _moves(before: Sequence[set[int]]) -> Iterator[tuple[int, int]]:
    """(place, new place) of every phase that may move: behind all that it reads from, before all that read
    from it.
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
    """The pipelines of a phase that hand nothing to each other, each as a phase."""
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
    """The phases that each phase of a period reads from."""
    makers = graph.makers()
    home = {v: i for i, phase in enumerate(phases) for stage in phase.stages for v in stage}
    found: list[set[int]] = [set() for _ in phases]
    for v, i in home.items():
        found[i] |= {
            home[makers[p.tensor]] for p in graph.operations[v].inputs if makers.get(p.tensor) in home
        } - {i}
    return found


def _orders(phases: Sequence[Phase], before: Sequence[set[int]]) -> Iterator[list[Phase]]:
    """Every order in which each phase comes after those that it reads from; the one given first, if it is
    one. Without recursion: phases may be thousands.
    """
    after: list[list[int]] = [[] for _ in phases]
    for i, needs in enumerate(before):
        for j in needs:
            after[j].append(i)
    missing = [len(needs) for needs in before]
    ready = [i for i, n in enumerate(missing) if not n]  # ascending
    chosen: list[int] = []
    at = 0  # of the next candidate in `ready`
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
