"""Searches the order of the phases of a period that has the lowest traffic.

On-chip retention depends on the order more than on the rule of eviction. An example is the conjugate gradient
method (CG): if it updates R before X, GOGETA's policy reaches the optimum.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from itertools import chain, islice

from dse.solve.gogeta.accesses import Phase
from dse.solve.gogeta.operations import Graph

CostOfOrder = Callable[[Sequence[Phase]], float]  # returns the cost of an order
MAX_ORDERS = 120  # maximum of orders whose cost a search computes
MAX_PHASES = 12_000  # maximum of phases in all these orders together, so of long orders fewer are tried
# maximum of operations of which all sequences are tried, and of sets that are asked whether they are a phase
MAX_OPERATIONS, MAX_SETS = 100, 4_000
MIN_ORDERS = 4  # number of orders that are tried however long they are


def search_order(
    graph: Graph,
    phases: Sequence[Phase],
    cost_of: CostOfOrder,
    lower_bound: float,
    max_orders: int = MAX_ORDERS,
) -> list[Phase]:
    """Returns the best order found of the given phases, or of the same phases split into their unconnected
    pipelines; never worse than the given order.

    If there are at most `max_orders` orders, the cost of all is computed. Otherwise the first ones are tried,
    and from the best of them phases are moved one at a time as long as the cost falls. Of long orders fewer
    are tried.

    cost_of: returns the cost of an order
    lower_bound: lower bound of the cost of an order; an order that reaches it ends the search
    """
    makers = graph.makers()
    max_orders = max(min(max_orders, MAX_PHASES // max(len(phases), 1)), min(max_orders, MIN_ORDERS))
    split_phases = [part for phase in phases for part in _unconnected_parts(graph, makers, phase)]
    starts = [list(phases)] if len(split_phases) == len(phases) else [list(phases), split_phases]
    best, min_cost, orders_left = list(phases), cost_of(phases), max_orders - 1
    for start in starts:
        orders = list(islice(_orders(start, _predecessors(graph, start)), orders_left + 1))
        for order in orders[:orders_left]:
            if min_cost <= lower_bound:
                return best
            if (cost := cost_of(order)) < min_cost:
                best, min_cost = order, cost
        if len(orders) > orders_left:
            return _move_phases(graph, best, min_cost, cost_of, lower_bound, max_orders)
        orders_left -= len(orders)
    return best


def canonical_order(graph: Graph) -> list[int]:
    """Returns the operations of a period in an order that does not depend on that of the lines of a file: of
    those whose operands are made, next the one after which the fewest words are still needed; of equal ones
    the one whose result comes first by name.
    """
    per = graph.operations_per_period
    operations, makers, words = graph.operations[:per], graph.makers(), graph.words()
    readers = defaultdict[str, set[int]](set)
    for v, e in enumerate(operations):
        for p in e.inputs:
            readers[p.tensor].add(v)
    waits = [{makers[p.tensor] for p in e.inputs if makers.get(p.tensor, per) < per} for e in operations]

    def entry(v: int) -> tuple[int, str, int]:
        """Words that are needed after an operation beyond those before it, its result, its number."""
        e = operations[v]
        dropped = sum(words[t] for t in {p.tensor for p in e.inputs} if readers[t] == {v})
        return words[e.output.tensor] - dropped, e.output.tensor, v

    ready, left, found = [entry(v) for v in range(per) if not waits[v]], set(range(per)), list[int]()
    heapify(ready)
    while ready:
        v = heappop(ready)[-1]
        if v not in left:
            continue
        left.discard(v)
        found.append(v)
        for t in {p.tensor for p in operations[v].inputs}:
            readers[t].discard(v)
            # the last reader of a tensor drops it: fewer words are needed after it than were said
            for u in readers[t] if len(readers[t]) == 1 else ():
                if not waits[u]:
                    heappush(ready, entry(u))
        for u in readers[operations[v].output.tensor]:
            waits[u].discard(v)
            if not waits[u]:
                heappush(ready, entry(u))
    return found


def order_by_depth(graph: Graph) -> list[int]:
    """Returns the operations of a period by how many others must run before them, one after the other, and
    those of the same depth by the names of their results. So operations that read a tensor at the same depth
    stand next to each other; the order does not depend on that of the lines of a file.
    """
    per, makers, depth = graph.operations_per_period, graph.makers(), list[int]()
    for e in graph.operations[:per]:
        needs = (makers.get(p.tensor, per) for p in e.inputs)
        depth.append(1 + max((depth[v] for v in needs if v < per), default=0))
    return sorted(range(per), key=lambda v: (depth[v], graph.operations[v].output.tensor))


def reordered(graph: Graph, order: Sequence[int]) -> Graph:
    """Returns the graph with the operations of each period in this order."""
    per = graph.operations_per_period
    operations = tuple(graph.operations[t * per + v] for t in range(graph.periods) for v in order)
    return replace(graph, operations=operations)


def as_numbered(phase: Phase, order: Sequence[int]) -> Phase:
    """Returns a phase of a reordered graph with the numbers that operations have without `order`."""
    return replace(
        phase,
        stages=tuple(tuple(order[v] for v in stage) for stage in phase.stages),
        whole_tensors=tuple((order[v], k) for v, k in phase.whole_tensors),
        steps=tuple(sorted((order[v], rank) for v, rank in phase.steps)),
    )


def every_sequence(
    graph: Graph, phases_of: Callable[[frozenset[int]], list[Phase]], max_sets: int = MAX_SETS
) -> Iterator[list[list[Phase]]]:
    """Yields every way to run the operations of a period as phases, one after the other, each as the phases
    that differ in steps only. phases_of: the phases of a set of operations, [] if they cannot run as one
    (`accesses.fused_phases`).

    Exponential: for graphs of some ten operations at most, unless they have few orders. Yields [] and ends
    after `max_sets` sets of operations, and of more than MAX_OPERATIONS operations.
    """
    makers, count = graph.makers(), graph.operations_per_period
    needs = [
        sum({1 << makers[p.tensor] for p in e.inputs if makers.get(p.tensor, count) < count})
        for e in graph.operations[:count]
    ]
    sets_left = max_sets if count <= MAX_OPERATIONS else 0

    def next_phases(ran: int) -> Iterator[tuple[int, list[Phase]]]:
        """Sets of operations that may run after others as one phase, in both as bits."""
        nonlocal sets_left
        # sets grow by an operation whose operands are made before or by the set; so each is seen once
        to_grow, seen = [0], {0}
        while to_grow and sets_left > 0:
            members = to_grow.pop()
            for v in range(count):
                grown = members | 1 << v
                if (ran | members) >> v & 1 or needs[v] & ~(ran | members) or grown in seen:
                    continue
                seen.add(grown)
                to_grow.append(grown)
            sets_left -= 1
            if members and (ways := phases_of(frozenset(v for v in range(count) if members >> v & 1))):
                yield members, ways

    to_visit: list[tuple[int, list[list[Phase]]]] = [(0, [])]  # operations that ran, as bits; their phases
    known = dict[int, list[tuple[int, list[Phase]]]]()  # by operations that ran
    while to_visit and sets_left > 0:
        ran, phases = to_visit.pop()
        if ran == (1 << count) - 1:
            yield phases
            continue
        if ran not in known:
            known[ran] = list(next_phases(ran))
        to_visit += [(ran | members, [*phases, ways]) for members, ways in known[ran]]
    if sets_left <= 0:
        yield []


def join_readers(
    graph: Graph,
    best: list[Phase],
    cost_of: CostOfOrder,
    phases_of: Callable[[frozenset[int]], list[Phase]],
    max_orders: int = MAX_ORDERS,
) -> list[Phase]:
    """Returns the order after joining pairs of phases that read the same tensor, each where that lowers the
    cost. At most `max_orders` joins are tried, of long orders fewer, each in its first way to step.
    phases_of: as in `every_sequence`.
    """
    min_cost, orders_left = cost_of(best), min(max_orders, MAX_PHASES // max(len(best), 1))
    read = [{p.tensor for p in e.inputs} for e in graph.operations]

    def reads_of(phase: Phase) -> set[str]:
        return set().union(*(read[v] for v in chain(*phase.stages)))

    at, reads = 0, [reads_of(phase) for phase in best]
    while at < len(best) and orders_left > 0:
        for i in reversed(range(at)):
            if reads[i].isdisjoint(reads[at]):
                continue
            ways = phases_of(frozenset(chain(*best[i].stages, *best[at].stages)))
            if not ways:
                continue
            phase = ways[0]
            others = [*best[:i], *best[i + 1 : at]]
            order = next(
                (
                    order
                    for order in (
                        [*others, phase, *best[at + 1 :]],
                        [*best[:i], phase, *others[i:], *best[at + 1 :]],
                    )
                    if _is_valid(graph, order)
                ),
                None,
            )
            orders_left -= order is not None
            if order and (cost := cost_of(order)) < min_cost:
                best, min_cost, at = order, cost, at - 1
                reads = [reads_of(phase) for phase in best]
                break
            if orders_left <= 0:
                break
        at += 1
    return best


def _move_phases(
    graph: Graph,
    best: list[Phase],
    min_cost: float,
    cost_of: CostOfOrder,
    lower_bound: float,
    orders_left: int,
) -> list[Phase]:
    """Returns the order after moving one phase at a time, as long as the cost falls and fewer than
    `orders_left` orders were tried.
    """
    improved = True
    while improved and min_cost > lower_bound:
        improved = False
        for at, to in islice(_moves(_predecessors(graph, best)), max(orders_left, 0)):
            order = [*best[:at], *best[at + 1 :]]
            order.insert(to, best[at])
            orders_left -= 1
            if (cost := cost_of(order)) < min_cost:
                best, min_cost, improved = order, cost, True
                break
    return best


def _is_valid(graph: Graph, order: Sequence[Phase]) -> bool:
    """Returns whether each phase comes after all phases from which it reads."""
    return all(max(needs, default=-1) < k for k, needs in enumerate(_predecessors(graph, order)))


def _moves(predecessors: Sequence[set[int]]) -> Iterator[tuple[int, int]]:
    """Yields (position, new position) of every allowed move of a phase: it stays after all phases from which
    it reads and before all phases that read from it. predecessors: the phases from which each phase reads.
    """
    first = [max(needs, default=-1) + 1 for needs in predecessors]
    last = [len(predecessors) - 1] * len(predecessors)
    for i, needs in enumerate(predecessors):
        for j in needs:
            last[j] = min(last[j], i - 1)
    yield from (
        (at, to)
        for at in range(len(predecessors))
        for to in range(first[at], last[at] + 1)
        if to not in (at, at - 1)
    )


def _unconnected_parts(graph: Graph, makers: Mapping[str, int], phase: Phase) -> Iterator[Phase]:
    """Yields each unconnected pipeline of a phase as a phase of its own."""
    members = sorted(v for stage in phase.stages for v in stage)
    root = {v: v for v in members}
    for v in members:
        for p in graph.operations[v].inputs:
            source = makers.get(p.tensor, -1)
            if source in root and root[source] != root[v]:
                old, new = root[v], root[source]
                root = {w: new if r == old else r for w, r in root.items()}
    for part_root in dict.fromkeys(root.values()):
        stages = (tuple(v for v in stage if root[v] == part_root) for stage in phase.stages)
        yield replace(phase, stages=tuple(stage for stage in stages if stage))


def _predecessors(graph: Graph, phases: Sequence[Phase]) -> list[set[int]]:
    """Returns, for each phase of a period, the phases from which it reads."""
    makers = graph.makers()
    phase_of = {v: i for i, phase in enumerate(phases) for stage in phase.stages for v in stage}
    found: list[set[int]] = [set() for _ in phases]
    for v, i in phase_of.items():
        found[i] |= {
            phase_of[makers[p.tensor]] for p in graph.operations[v].inputs if makers.get(p.tensor) in phase_of
        } - {i}
    return found


def _orders(phases: Sequence[Phase], predecessors: Sequence[set[int]]) -> Iterator[list[Phase]]:
    """Yields every order in which each phase comes after the phases from which it reads; the given
    order comes first, if it is one of them. There is no recursion, since there may be thousands of phases.
    """
    successors: list[list[int]] = [[] for _ in phases]
    for i, needs in enumerate(predecessors):
        for j in needs:
            successors[j].append(i)
    missing_counts = [len(needs) for needs in predecessors]
    ready = [i for i, n in enumerate(missing_counts) if not n]  # ascending
    chosen: list[int] = []
    at = 0  # position of the next candidate in `ready`
    while True:
        if at < len(ready):
            chosen.append(ready.pop(at))
            for i in successors[chosen[-1]]:
                missing_counts[i] -= 1
                if not missing_counts[i]:
                    insort(ready, i)
            at = 0
            continue
        if len(chosen) == len(phases):
            yield [phases[i] for i in chosen]
        if not chosen:
            return
        last = chosen.pop()
        for i in successors[last]:
            if not missing_counts[i]:
                ready.remove(i)
            missing_counts[i] += 1
        insort(ready, last)
        at = bisect_right(ready, last)
