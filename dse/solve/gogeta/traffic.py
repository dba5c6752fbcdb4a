"""Main-memory words of a workload under GOGETA's configurations (arXiv 2303.11499, table 3) and at the
optimum.

Every operation is assumed to read each operand once and to write its result once. So these words are the
traffic between operations, not within them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice, product
from math import inf

from dse.solve.gogeta import optimum, residency, retention
from dse.solve.gogeta.accesses import (
    AccessList,
    Phase,
    access_list,
    fused_phases,
    is_overfull,
    loosest_list,
    one_by_one,
    phase_list,
    pipelined_phases,
    pipelines_within,
)
from dse.solve.gogeta.classify import CLASSIFIERS, Edge, unbarred
from dse.solve.gogeta.operations import SMALL_WORDS, Graph, graph
from dse.solve.gogeta.optimum import Optimum
from dse.solve.gogeta.rereads import Chip, Rereads, rereads_of
from dse.solve.gogeta.residency import Traffic
from dse.solve.gogeta.sequence import (
    MAX_PHASES,
    as_numbered,
    canonical_order,
    every_sequence,
    join_readers,
    order_by_depth,
    reordered,
    search_order,
)
from workloads.einsum import Einsum
from workloads.graph import Workload

# all sequences of phases are tried, if there are at most so many; of graphs of more than 8 operations, if all
# of them together have at most MAX_PHASES
MAX_SEQUENCES = 5000


@dataclass(frozen=True, slots=True)
class TrafficReport:
    """Main-memory words of a workload under GOGETA's configurations, and at the optimum."""

    capacity_words: int  # of the buffer
    seq_flex: int  # every operand and result moves from and to main memory
    seq_overflow: Traffic  # operations one by one; tensors are retained while they fit
    # operations are pipelined, and the tensor that is needed latest is evicted first; GOGETA-df and
    # GOGETA-map, two configurations of the publication, move the same words
    gogeta: Traffic
    ideal: int  # inputs and outputs move once
    bound_gogeta: Optimum  # optimum of GOGETA's own list of accesses
    optimal: Optimum  # optimum in the best order of phases found
    # words of GOGETA's policy in the best order of phases for it; operands may evict, too, if that helps
    best_policy: Traffic
    # of a workload without a loop: all; of a loop: those of its first three iterations (periods)
    edges: tuple[Edge, ...]
    operations: tuple[Einsum, ...]  # of the same periods
    phases: tuple[Phase, ...]  # GOGETA's, of one period
    order: tuple[Phase, ...]  # the phases of `optimal`, of one period
    # whether no other order or fusion of operations moves fewer words than `optimal`, under the rules of
    # `retention`
    is_minimum: bool = False
    orders_tried: int = 0  # sequences of phases whose optimum was computed
    published: bool = False  # whether words are counted as in the publication (`CountingRule`)
    overfull_operations: int = 0  # operations of a period that cannot read each operand once
    rereads: Rereads = Rereads(0.0, 0)  # lower bound of the words that these read again; 0: not computed
    schedule_words: float = 0.0  # words of the schedule of `solver.schedule = residency`, 0: not computed

    def gap(self) -> float:
        """Returns the relative gap between the policy and the optimum, each in the best order found for
        it.
        """
        return self.best_policy.words() / self.optimal.cost - 1

    def bound(self) -> float:
        """Returns a lower bound on the words of any schedule in the order of the optimum, under the rules of
        `retention`: bound of the list of accesses, plus words that operations must read again.
        """
        return self.optimal.bound + self.rereads.words


@dataclass(frozen=True, slots=True)
class CountingRule:
    """How words of a list of phases are counted."""

    # True: access by access, as in GOGETA's published numbers. The space of an operand is free as soon as it
    # was read; results of up to SMALL_WORDS words take no space and are not counted. False: phase by phase
    # (`retention`). Every tensor takes space and is counted.
    as_published: bool = False

    def to_access_list(self, op_graph: Graph, phases: Sequence[Phase], word_bits: int | None) -> AccessList:
        """Returns the buffer accesses of a schedule. word_bits None: every element counts as one word."""
        return (access_list if self.as_published else phase_list)(op_graph, phases, word_bits)

    def policy(
        self,
        listed: AccessList,
        capacity_words: int,
        results_evict: bool = True,
        operands_evict: bool = False,
    ) -> Traffic:
        """Returns words moved under the replacement policy, which evicts the tensor that is needed latest.

        results_evict, operands_evict: whether results (operands) may evict tensors; else they only fill free
        space.
        """
        policy = residency.policy if self.as_published else retention.policy
        return policy(listed, capacity_words, results_evict, operands_evict)

    def steady(
        self, lists: Callable[[int], AccessList], periods: int, capacity_words: int, settles: bool = False
    ) -> Optimum:
        """Returns the optimum of `periods` equal periods, computed from a few. lists(n) returns the accesses
        of n periods; settles: whether few tensors are retained in part, of equal plans (not as published).
        """
        if self.as_published:
            return optimum.steady(lists, periods, capacity_words)
        return retention.steady(lists, periods, capacity_words, settles)

    @property
    def small_words(self) -> int:
        """Words up to which a result takes no space."""
        return SMALL_WORDS if self.as_published else 0


def counting_rule(method: str) -> CountingRule:
    """Returns how a configuration counts: as published for gogeta-published, else phase by phase."""
    return CountingRule(method == "gogeta-published")


def traffic_of(
    workload: Workload,
    capacity_words: int,
    word_bits: int | None = None,
    method: str = "corrected",
    count: CountingRule | None = None,
    orders_for_policy: bool = True,
) -> TrafficReport:
    """Returns the words of all configurations. method: a key of CLASSIFIERS; count: how words are counted,
    None: as `counting_rule` says for the method; orders_for_policy: whether orders are searched for GOGETA's
    policy, too (False: `best_policy` is that in its own order).
    """
    op_graph, counting = graph(workload, 3), count or counting_rule(method)
    edges = CLASSIFIERS[method](op_graph)
    phases_within = pipelines_within(op_graph, edges, capacity_words, word_bits, counting.small_words)
    phases = phases_within(capacity_words)
    periods = _period_count(workload)
    alone_within = None if counting.as_published else capacity_words

    def listed(order: Sequence[Phase], period_count: int) -> AccessList:
        return counting.to_access_list(unrolled(period_count), order, word_bits)

    @cache
    def unrolled(period_count: int) -> Graph:
        return graph(workload, period_count)

    @cache
    def optimum_in(order: tuple[Phase, ...]) -> Optimum:
        return counting.steady(lambda period_count: listed(order, period_count), periods, capacity_words)

    def optimum_of(order: Sequence[Phase]) -> Optimum:
        return optimum_in(tuple(order))

    def cost(order: Sequence[Phase]) -> float:
        return round(optimum_of(order).cost, 3)

    def at_least(ways: Sequence[Sequence[Phase]]) -> float:
        """A lower bound of the cost of all orders that take one of the ways of each phase."""
        if max(map(len, ways)) == 1:
            return cost([way for (way,) in ways])

        def loosest(period_count: int) -> AccessList:
            return loosest_list(unrolled(period_count), ways, word_bits)

        return round(counting.steady(loosest, periods, capacity_words).bound, 3)

    def rank(order: Sequence[Phase]) -> tuple[float, int, list[list[list[str]]]]:
        """Returns what is compared of orders: of equal cost fewer phases, then names of results, so that the
        order of lines decides nothing.
        """
        made = [e.output.tensor for e in op_graph.operations]
        names = [[sorted(made[v] for v in stage) for stage in phase.stages] for phase in order]
        return cost(order), len(order), names

    def policy_traffic(order: Sequence[Phase]) -> Traffic:
        accesses = listed(order, periods)
        return min(
            (
                counting.policy(accesses, capacity_words, operands_evict=operands_evict)
                for operands_evict in (True, False)
            ),
            key=Traffic.words,
        )

    # pipelines with fewer resident words leave more space for tensors of later phases
    parts = (1, 2, 4, 8, 16, inf) if any(phase.resident_words for phase in phases) else (1,)

    def cheapest_start(operations: Sequence[int]) -> list[Phase]:
        """Returns the cheapest of pipelines and single operations in an order of operations."""
        own_graph = reordered(op_graph, operations)
        within = pipelines_within(
            own_graph, CLASSIFIERS[method](own_graph), capacity_words, word_bits, counting.small_words
        )
        starts = (
            *(within(capacity_words // part) for part in parts),
            one_by_one(own_graph, alone_within, word_bits),
        )
        numbered = [[as_numbered(phase, operations) for phase in start] for start in starts]
        return min(numbered, key=cost)

    turns = one_by_one(op_graph, alone_within, word_bits)
    single_ops, pipelined_ops = listed(turns, periods), listed(phases, periods)
    ideal = single_ops.compulsory_words()
    # the search begins in an order that does not depend on that of the lines
    best = search_order(unrolled(1), cheapest_start(canonical_order(unrolled(1))), cost, ideal)
    given = min((phases, turns), key=cost)
    if cost(given) < cost(best):
        best = search_order(unrolled(1), given, cost, ideal)
    is_minimum = cost(best) <= ideal
    if not counting.as_published and not is_minimum:
        phases_of = fused_phases(op_graph, unbarred(op_graph), capacity_words, word_bits)
        per_period = op_graph.operations_per_period
        most = MAX_SEQUENCES if per_period <= 8 else min(MAX_SEQUENCES, MAX_PHASES // per_period)
        found = list(islice(every_sequence(unrolled(1), phases_of), most + 1))
        is_minimum = len(found) <= most and [] not in found
        sequences = _undercut(found, at_least, cost, cost(best)) if is_minimum else []
        is_minimum = is_minimum and () not in sequences
        if is_minimum:
            best = min(map(list, [*sequences, tuple(best)]), key=rank)
        else:
            joined = [join_readers(unrolled(1), best, cost, phases_of)]
            for start in (cheapest_start(order_by_depth(unrolled(1))), given):
                # joined before phases move, which would part operations that read a tensor at the same time
                start = join_readers(unrolled(1), start, cost, phases_of)
                start = search_order(unrolled(1), start, cost, ideal)
                joined.append(join_readers(unrolled(1), start, cost, phases_of))
            best = min(joined, key=rank)
    best_policy = counting.policy(pipelined_ops, capacity_words)
    for start in (best, phases) if orders_for_policy else ():
        order = search_order(
            unrolled(1), start, lambda order: policy_traffic(order).words(), optimum_of(best).cost + 0.5
        )
        best_policy = min(best_policy, policy_traffic(order), key=Traffic.words)
    return TrafficReport(
        capacity_words,
        single_ops.unbuffered_words(),
        counting.policy(single_ops, capacity_words, results_evict=False),
        counting.policy(pipelined_ops, capacity_words),
        pipelined_ops.compulsory_words(),
        optimum_of(phases),
        counting.steady(lambda period_count: listed(best, period_count), periods, capacity_words, True),
        best_policy,
        tuple(edges),
        op_graph.operations,
        tuple(phases),
        tuple(best),
        is_minimum,
        optimum_in.cache_info().currsize,
        counting.as_published,
        len(overfull_operations(op_graph, capacity_words, word_bits)),
    )


def _undercut(
    sequences: Sequence[list[list[Phase]]],
    at_least: Callable[[Sequence[Sequence[Phase]]], float],
    cost: Callable[[Sequence[Phase]], float],
    known: float,
) -> list[tuple[Phase, ...]]:
    """Returns orders among which the cheapest of all are: those of the sequences, each with several ways to
    run a phase, whose lower bound is not above the least cost found. known: a cost that some order has. ()
    is among them if more than MAX_SEQUENCES were to be asked.
    """
    found = list[tuple[Phase, ...]]()
    for bound, _, ways in sorted((at_least(ways), i, ways) for i, ways in enumerate(sequences)):
        if bound > known:
            break
        for order in product(*ways):
            found.append(order)
            known = min(known, cost(order))
            if len(found) > MAX_SEQUENCES:
                return [*found, ()]
    return found


def with_rereads(found: TrafficReport, workload: Workload, chip: Chip) -> TrafficReport:
    """Returns `found` with a lower bound of the words that overfull operations must read again."""
    op_graph = graph(workload, _period_count(workload))
    overfull = overfull_operations(op_graph, found.capacity_words, chip.word_bits)
    return replace(found, rereads=rereads_of(op_graph, found.order, overfull, chip))


def pipelines(op_graph: Graph, capacity_words: int, word_bits: int, method: str) -> list[Phase]:
    """Returns GOGETA's phases of one period."""
    return pipelined_phases(
        op_graph, CLASSIFIERS[method](op_graph), capacity_words, word_bits, counting_rule(method).small_words
    )


def _period_count(workload: Workload) -> int:
    return max(workload.repeats, default=1) if workload.loop_state else 1


def overfull_operations(op_graph: Graph, capacity_words: int, word_bits: int | None = None) -> list[int]:
    """Returns the operations of a period that cannot read each operand once and write their result once with
    a buffer of `capacity_words` (`accesses.is_overfull`).
    """
    words = op_graph.words(word_bits)
    return [
        v
        for v, e in enumerate(op_graph.operations[: op_graph.operations_per_period])
        if is_overfull(e, words, capacity_words)
    ]
