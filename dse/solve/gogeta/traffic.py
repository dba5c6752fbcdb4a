"""Main-memory words of a workload under GOGETA's configurations (arXiv 2303.11499, table 3) and at the
optimum; words between clusters; intensity.

Words of single accesses are those of operations that read each operand once and write their result once:
traffic between operations, not within them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import prod

from dse.solve.gogeta import optimum, residency, retention
from dse.solve.gogeta.accesses import AccessList, Phase, access_list, one_by_one, phase_list, pipelined
from dse.solve.gogeta.classify import CLASSIFIERS, Edge, dominance, effective
from dse.solve.gogeta.operations import SMALL, Graph, graph, words
from dse.solve.gogeta.optimum import BufferLevel, Optimum
from dse.solve.gogeta.rereads import Chip, Rereads, of_order
from dse.solve.gogeta.residency import Traffic
from dse.solve.gogeta.sequence import search_order
from workloads.einsum import Einsum
from workloads.graph import Workload


@dataclass(frozen=True, slots=True)
class Reuse:
    """What the configurations of a workload move, in words of main memory.

    seq_flex: every operation begins and ends there. seq_overflow: what finds room stays. gogeta: pipelined,
    what is needed latest goes first; df and map alike. ideal: inputs and outputs once. bound_gogeta: the
    optimum of GOGETA's own accesses. optimal: of the best order found; best_policy: what the policy moves in
    the order that is best for it, where reads may evict if that helps. edges, operations: of one period, or
    of the first three of a loop; phases, order: of one. published: of lists of single accesses, with small
    results for nothing (`Counting`). overfull_operations: operations of a period that cannot read each
    operand once; rereads: what these read beyond that at least, if it was asked for; schedule_words: words
    that a schedule moves (`solver.schedule = residency`), alike, else 0.
    """

    capacity_words: int
    seq_flex: int
    seq_overflow: Traffic
    gogeta: Traffic
    ideal: int
    bound_gogeta: Optimum
    optimal: Optimum
    best_policy: Traffic
    edges: tuple[Edge, ...]
    operations: tuple[Einsum, ...]
    phases: tuple[Phase, ...]
    order: tuple[Phase, ...]
    published: bool = False
    overfull_operations: int = 0
    rereads: Rereads = Rereads(0.0, 0)
    schedule_words: float = 0.0

    def gap(self) -> float:
        """How far the policy stays above the optimum, each in the best order found for it."""
        return self.best_policy.words() / self.optimal.cost - 1

    def bound(self) -> float:
        """Words that no schedule in the order of the optimum is below: of the list, and what operations read
        again.
        """
        return self.optimal.bound + self.rereads.words


@dataclass(frozen=True, slots=True)
class Counting:
    """How lists of phases are counted. As published (GOGETA's figures rest on it): access by access, an
    operand's room is free once it was read, results of up to SMALL words take none and are never counted.
    Else phase by phase (`retention`): every tensor is counted and takes room.
    """

    published: bool = False

    def listed(self, one: Graph, phases: Sequence[Phase], word_bits: int | None) -> AccessList:
        """The buffer accesses of a schedule. word_bits None: every element counts as one word."""
        return (access_list if self.published else phase_list)(one, phases, word_bits)

    def policy(
        self, listed: AccessList, capacity_words: int, replace: bool = True, reads_evict: bool = False
    ) -> Traffic:
        """Words moved under the replacement policy (what is needed latest leaves first).

        replace False: only free room is filled (SEQ-Overflow); reads_evict: what is read may evict, too.
        """
        return (residency.policy if self.published else retention.policy)(
            listed, capacity_words, replace, reads_evict
        )

    def steady(self, lists: Callable[[int], AccessList], periods: int, capacity_words: int) -> Optimum:
        """The optimum of `periods` equal periods from that of a few; lists(n): accesses of n periods."""
        return (
            optimum.steady(lists, periods, [BufferLevel(capacity_words)])
            if self.published
            else retention.steady(lists, periods, capacity_words)
        )

    @property
    def small(self) -> int:
        """Words up to which a tensor takes no room."""
        return SMALL if self.published else 0


def counting(method: str) -> Counting:
    """How a configuration counts: as published for gogeta-published, else phase by phase."""
    return Counting(method == "gogeta-published")


def reuse(
    workload: Workload,
    capacity_words: int,
    word_bits: int | None = None,
    method: str = "corrected",
    count: Counting | None = None,
) -> Reuse:
    """All configurations with a buffer of so many words. method: of CLASSIFIERS; count: as it is counted, by
    default as the method says.
    """
    one, by = graph(workload, 3), count or counting(method)
    edges = CLASSIFIERS[method](one)
    phases = pipelined(one, edges, capacity_words, word_bits, by.small)
    periods = _periods(workload)

    def listed(order: Sequence[Phase], times: int) -> AccessList:
        return by.listed(unrolled(times), order, word_bits)

    @cache
    def unrolled(times: int) -> Graph:
        return graph(workload, times)

    def least(order: Sequence[Phase]) -> Optimum:
        return by.steady(lambda times: listed(order, times), periods, capacity_words)

    def cost(order: Sequence[Phase]) -> float:
        return round(least(order).cost, 3)

    def moved(order: Sequence[Phase]) -> Traffic:
        here = listed(order, periods)
        return min(
            (by.policy(here, capacity_words, reads_evict=also) for also in (True, False)), key=Traffic.words
        )

    narrower = (
        pipelined(one, edges, limit, word_bits, by.small)
        for limit in (capacity_words // 2, capacity_words // 4, capacity_words // 8, capacity_words // 16, 0)
    )
    # what pipelines hold cannot be kept for later
    alike = [phases, one_by_one(one), *(narrower if any(phase.resident_words for phase in phases) else ())]
    alone, given = listed(one_by_one(one), periods), listed(phases, periods)
    best = search_order(unrolled(1), min(alike, key=cost), cost, alone.compulsory())
    kept = min(
        (
            moved(
                search_order(unrolled(1), start, lambda order: moved(order).words(), least(best).cost + 0.5)
            )
            for start in (best, phases)
        ),
        key=Traffic.words,
    )
    return Reuse(
        capacity_words,
        alone.streamed(),
        by.policy(alone, capacity_words, replace=False),
        by.policy(given, capacity_words),
        given.compulsory(),
        least(phases),
        least(best),
        kept,
        tuple(edges),
        one.operations,
        tuple(phases),
        tuple(best),
        by.published,
        overfull_operations(one.operations[: one.per], capacity_words, word_bits),
    )


def with_rereads(found: Reuse, workload: Workload, chip: Chip) -> Reuse:
    """With what operations read again at least, where some cannot read each operand once."""
    one = graph(workload, _periods(workload))
    numbers = [
        v
        for v in range(one.per)
        if overfull_operations(one.operations[v : v + 1], found.capacity_words, chip.word_bits)
    ]
    return replace(found, rereads=of_order(one, found.order, numbers, chip))


def pipelines(one: Graph, capacity_words: int, word_bits: int, method: str) -> list[Phase]:
    """GOGETA's phases."""
    return pipelined(one, CLASSIFIERS[method](one), capacity_words, word_bits, counting(method).small)


def optimal_order(workload: Workload, capacity_words: int, word_bits: int) -> tuple[Sequence[Phase], float]:
    """The phases of `Reuse.optimal` in their order, and its words."""
    found = reuse(workload, capacity_words, word_bits)
    return found.order, found.optimal.words


def _periods(workload: Workload) -> int:
    return max(workload.repeats, default=1) if workload.loop_state else 1


def between_clusters(
    graph: Graph, edges: Sequence[Edge], operations: Sequence[int], clusters: int
) -> tuple[int, int]:
    """Words between clusters of operations that run as one pipeline: (each in a cluster of its own, as
    GOGETA-df; all sliced over all, as GOGETA-map).

    In clusters of their own, a tensor that is handed over crosses once, one hop. Sliced by the rank that
    dominates (else the largest), only tensors without that rank cross: those that are read are broadcast,
    those that are made are reduced, over clusters - 1 links each. What a compressed operand gathers comes
    through the buffer.
    """
    size = graph.words()
    handed = sum(size[e.tensor] for e in edges if e.source in operations and e.target in operations)
    shared: dict[str, int] = {}
    for e in (graph.operations[v] for v in operations):
        extents = effective(e)
        rank = dominance(e).rank or max(extents, key=extents.__getitem__)
        gathered = {r for p in e.inputs if p.format == "csr" for r in p.dims[-1].ranks()}
        shared |= {
            p.tensor: size[p.tensor]
            for p in e.tensors()
            if rank not in p.ranks() and not gathered & p.ranks()
        }
    return handed, (clusters - 1) * sum(shared.values())


def overfull_operations(
    operations: Sequence[Einsum], capacity_words: int, word_bits: int | None = None
) -> int:
    """Operations that cannot read each operand once and write their result once with so many words of room.

    Inside of the loops over ranks that all tensors have, some loop is the outermost one: tensors without its
    rank come again in each of its trips, or stay.
    """
    return sum(_min_buffer_words(e, word_bits) > capacity_words for e in operations)


def _min_buffer_words(e: Einsum, word_bits: int | None) -> float:
    extents, tensors = e.sizes(), {p.tensor: p for p in e.tensors()}.values()
    common = frozenset.intersection(*(p.full() for p in tensors))
    share = prod(extents[rank] for rank in common)
    rest = [rank for rank, n in extents.items() if rank not in common and n > 1]
    return min(
        (
            sum(words(p, extents, word_bits) for p in tensors if rank not in p.ranks()) / share
            for rank in rest
        ),
        default=0.0,
    )


def intensity(e: Einsum) -> float:
    """Multiplications per word that one operation must move."""
    return e.macs() / sum(words(p, e.sizes()) for p in e.tensors())
