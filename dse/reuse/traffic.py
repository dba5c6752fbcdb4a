"""Main-memory words of a workload under GOGETA's configurations (arXiv 2303.11499, table 3) and at the optimum; words between clusters; intensity.

Words of single accesses are those of operations that read each operand once and write their result once: traffic between operations, not within them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from dse.reuse.accesses import AccessList, Phase, access_list, one_by_one, pipelined
from dse.reuse.classify import CLASSIFIERS, Edge, dominance, effective
from dse.reuse.operations import Graph, graph, words
from dse.reuse.optimum import Optimum, Room, steady
from dse.reuse.residency import Traffic, policy
from dse.reuse.sequence import searched
from workloads.einsum import Einsum
from workloads.graph import Workload


@dataclass(frozen=True, slots=True)
class Reuse:
    """What the configurations of a workload move, in words of main memory.

    seq_flex: every operation begins and ends there. seq_overflow: what finds room stays. gogeta: pipelined, what is needed latest goes first; df and map alike.
    ideal: inputs and outputs once. bound_gogeta: the optimum of GOGETA's own accesses. optimal: of the best order found; kept: what the policy moves in the
    order that is best for it, where reads may evict if that helps. edges, operations: of one period, or of the first three of a loop; phases, order: of one.
    """

    room: int
    seq_flex: int
    seq_overflow: Traffic
    gogeta: Traffic
    ideal: int
    bound_gogeta: Optimum
    optimal: Optimum
    kept: Traffic
    edges: tuple[Edge, ...]
    operations: tuple[Einsum, ...]
    phases: tuple[Phase, ...]
    order: tuple[Phase, ...]

    def gap(self) -> float:
        """How far the policy stays above the optimum, each in the best order found for it."""
        return self.kept.words() / self.optimal.cost - 1


def reuse(workload: Workload, room: int, word_bits: int | None = None, method: str = "corrected") -> Reuse:
    """All configurations with a buffer of so many words. method: of CLASSIFIERS."""
    one = graph(workload, 3)
    edges = CLASSIFIERS[method](one)
    phases = pipelined(one, edges, room, word_bits)
    periods = _periods(workload)

    def listed(order: Sequence[Phase], count: int) -> AccessList:
        return access_list(unrolled(count), order, word_bits)

    @cache
    def unrolled(count: int) -> Graph:
        return graph(workload, count)

    def least(order: Sequence[Phase]) -> Optimum:
        return steady(lambda count: listed(order, count), periods, [Room(room)])

    def cost(order: Sequence[Phase]) -> float:
        return round(least(order).cost, 3)

    def moved(order: Sequence[Phase]) -> Traffic:
        here = listed(order, periods)
        return min((policy(here, room, reads_evict=also) for also in (True, False)), key=Traffic.words)

    alike = [phases, one_by_one(one), *(_narrower(one, edges, room, word_bits) if any(phase.held for phase in phases) else ())]
    alone, given = listed(one_by_one(one), periods), listed(phases, periods)
    best = searched(unrolled(1), min(alike, key=cost), cost, alone.compulsory())
    kept = min((moved(searched(unrolled(1), start, lambda order: moved(order).words(), least(best).cost + 0.5)) for start in (best, phases)), key=Traffic.words)
    return Reuse(room, alone.streamed(), policy(alone, room, replace=False), policy(given, room), given.compulsory(), least(phases), least(best),
                 kept, tuple(edges), one.operations, tuple(phases), tuple(best))


def pipelines(one: Graph, room: int, word_bits: int, method: str) -> list[Phase]:
    """GOGETA's phases."""
    return pipelined(one, CLASSIFIERS[method](one), room, word_bits)


def searched_order(workload: Workload, room: int, word_bits: int) -> tuple[Sequence[Phase], float]:
    """The phases of `Reuse.optimal` in their order, and its words."""
    found = reuse(workload, room, word_bits)
    return found.order, found.optimal.words


def _narrower(graph: Graph, edges: Sequence[Edge], room: int, word_bits: int | None) -> list[list[Phase]]:
    """Pipelines whose weights take at most a half, a quarter, ... of the room, and none at all: what they hold cannot be kept for later."""
    return [pipelined(graph, edges, limit, word_bits) for limit in (room // 2, room // 4, room // 8, room // 16, 0)]


def _periods(workload: Workload) -> int:
    return max(workload.repeats, default=1) if workload.carried else 1


def between_clusters(graph: Graph, edges: Sequence[Edge], operations: Sequence[int], clusters: int) -> tuple[int, int]:
    """Words between clusters of operations that run as one pipeline: (each in a cluster of its own, as GOGETA-df; all sliced over all, as GOGETA-map).

    In clusters of their own, a tensor that is handed over crosses once, one hop. Sliced by the rank that dominates (else the largest), only tensors without
    that rank cross: those that are read are broadcast, those that are made are reduced, over clusters - 1 links each. What a compressed operand gathers comes
    through the buffer.
    """
    size = graph.words()
    handed = sum(size[e.tensor] for e in edges if e.source in operations and e.target in operations)
    shared: dict[str, int] = {}
    for e in (graph.operations[v] for v in operations):
        extents = effective(e)
        rank = dominance(e).rank or max(extents, key=extents.__getitem__)
        gathered = {r for p in e.inputs if p.format == "csr" for r in p.dims[-1].ranks()}
        shared |= {p.tensor: size[p.tensor] for p in e.tensors() if rank not in p.ranks() and not gathered & p.ranks()}
    return handed, (clusters - 1) * sum(shared.values())


def intensity(e: Einsum) -> float:
    """Multiplications per word that one operation must move."""
    return e.macs() / sum(words(p, e.sizes()) for p in e.tensors())
