"""Main-memory words of a workload under GOGETA's configurations (arXiv 2303.11499, table 3) and at the
optimum.

Every operation is assumed to read each operand once and to write its result once. So these words are the
traffic between operations, not within them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, islice, product
from math import inf, prod

from dse.solve.gogeta import optimum, residency, retention
from dse.solve.gogeta.accesses import (
    AccessList,
    Phase,
    access_list,
    fused_phases,
    one_by_one,
    phase_list,
    pipelined_phases,
    pipelines_within,
)
from dse.solve.gogeta.classify import CLASSIFIERS, Edge, unbarred
from dse.solve.gogeta.operations import SMALL_WORDS, Graph, accessed_words, graph
from dse.solve.gogeta.optimum import Optimum
from dse.solve.gogeta.rereads import Chip, Rereads, rereads_of
from dse.solve.gogeta.residency import Traffic
from dse.solve.gogeta.sequence import (
    MAX_PHASES,
    as_numbered,
    canonical_order,
    every_sequence,
    join_readers,
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
) -> TrafficReport:
    """Returns the words of all configurations. method: a key of CLASSIFIERS; count: how words are counted,
    None: as `counting_rule` says for the method.
    """
    op_graph, counting = graph(workload, 3), count or counting_rule(method)
    edges = CLASSIFIERS[method](op_graph)
    phases_within = pipelines_within(op_graph, edges, word_bits, counting.small_words)
    phases = phases_within(capacity_words)
    periods = _period_count(workload)

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

    # the search begins in an order that does not depend on that of the lines
    own_order = canonical_order(unrolled(1))
    own_graph = reordered(op_graph, own_order)
    own_phases_within = pipelines_within(
        own_graph, CLASSIFIERS[method](own_graph), word_bits, counting.small_words
    )
    # pipelines with fewer resident words leave more space for tensors of later phases
    parts = (1, 2, 4, 8, 16, inf) if any(phase.resident_words for phase in phases) else (1,)
    starts = [
        [as_numbered(phase, own_order) for phase in start]
        for start in (
            *(own_phases_within(capacity_words // part) for part in parts),
            one_by_one(own_graph, capacity_words),
        )
    ]
    turns = one_by_one(op_graph, capacity_words)
    single_ops, pipelined_ops = listed(turns, periods), listed(phases, periods)
    ideal = single_ops.compulsory_words()
    best = search_order(unrolled(1), min(starts, key=cost), cost, ideal)
    given = min((phases, turns), key=cost)
    if cost(given) < cost(best):
        best = search_order(unrolled(1), given, cost, ideal)
    is_minimum = cost(best) <= ideal
    if not counting.as_published and not is_minimum:
        phases_of = fused_phases(op_graph, unbarred(op_graph), capacity_words, word_bits)
        ways = chain.from_iterable(
            product(*found) if found else [()] for found in every_sequence(unrolled(1), phases_of)
        )
        per_period = op_graph.operations_per_period
        most = MAX_SEQUENCES if per_period <= 8 else min(MAX_SEQUENCES, MAX_PHASES // per_period)
        sequences = list(islice(ways, most + 1))
        is_minimum = len(sequences) <= most and () not in sequences
        if is_minimum:
            best = min(map(list, [*sequences, tuple(best)]), key=rank)
        else:
            best = join_readers(unrolled(1), best, cost, phases_of)
    best_policy = min(
        (
            policy_traffic(
                search_order(
                    unrolled(1),
                    start,
                    lambda order: policy_traffic(order).words(),
                    optimum_of(best).cost + 0.5,
                )
            )
            for start in (best, phases)
        ),
        key=Traffic.words,
    )
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
        overfull_operations(op_graph.operations[: op_graph.operations_per_period], capacity_words, word_bits),
    )


def with_rereads(found: TrafficReport, workload: Workload, chip: Chip) -> TrafficReport:
    """Returns `found` with a lower bound of the words that overfull operations must read again."""
    op_graph = graph(workload, _period_count(workload))
    overfull = [
        v
        for v in range(op_graph.operations_per_period)
        if overfull_operations(op_graph.operations[v : v + 1], found.capacity_words, chip.word_bits)
    ]
    return replace(found, rereads=rereads_of(op_graph, found.order, overfull, chip))


def pipelines(op_graph: Graph, capacity_words: int, word_bits: int, method: str) -> list[Phase]:
    """Returns GOGETA's phases of one period."""
    return pipelined_phases(
        op_graph, CLASSIFIERS[method](op_graph), capacity_words, word_bits, counting_rule(method).small_words
    )


def _period_count(workload: Workload) -> int:
    return max(workload.repeats, default=1) if workload.loop_state else 1


def overfull_operations(
    operations: Sequence[Einsum], capacity_words: int, word_bits: int | None = None
) -> int:
    """Returns the number of operations that cannot read each operand once and write their result once with a
    buffer of `capacity_words`.

    Loops over ranks that all tensors have may stand outermost. Of the other loops one is the outermost:
    tensors without its rank must fit the buffer, or are read again in each of its trips.
    """
    return sum(_min_buffer_words(e, word_bits) > capacity_words for e in operations)


def _min_buffer_words(e: Einsum, word_bits: int | None) -> float:
    """Returns the minimum words of buffer with which an operation can read each operand once."""
    extents, tensors = e.sizes(), {p.tensor: p for p in e.tensors()}.values()
    common = frozenset.intersection(*(p.full_ranks() for p in tensors))
    common_points = prod(extents[rank] for rank in common)
    other_ranks = [rank for rank, n in extents.items() if rank not in common and n > 1]
    return min(
        (
            sum(accessed_words(p, extents, word_bits) for p in tensors if rank not in p.ranks())
            / common_points
            for rank in other_ranks
        ),
        default=0.0,
    )
