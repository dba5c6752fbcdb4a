"""What pictures of reuse between operations show, as plain values: traffic over capacity, and the graph."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from dse.explain.values import CONFIGURATIONS, configuration_words
from dse.sim.einsum.evaluate import ProgressFn, no_progress
from dse.solve.gogeta.accesses import Access, Phase, one_by_one
from dse.solve.gogeta.loop_orders import LoopOrders, best_orders
from dse.solve.gogeta.operations import graph
from dse.solve.gogeta.optimum import EDGE_PERIODS
from dse.solve.gogeta.traffic import CountingRule, TrafficReport, traffic_of
from hw.arch import Arch
from workloads.graph import Workload

DOUBLINGS = 4  # of the capacity, below and above the machine's


@dataclass(frozen=True, slots=True)
class TrafficCurves:
    """Main-memory traffic between operations over the capacity of the first level inside of main memory."""

    title: str
    level: str
    capacities: tuple[float, ...]  # bytes, all instances, ascending
    traffic: dict[str, tuple[float, ...]]  # configuration -> bytes at each capacity
    machine_capacity: float  # bytes


def traffic_over_capacity(
    arch: Arch, workload: Workload, report: TrafficReport, progress: ProgressFn = no_progress
) -> TrafficCurves:
    """Returns the main-memory traffic of each of GOGETA's configurations and of the optimum, at capacities
    from a sixteenth of the machine's to sixteen times it.
    """
    word_bytes = arch.word_bits / 8
    method = "gogeta-published" if report.published else "corrected"
    words = [max(1, report.capacity_words * 2**i >> DOUBLINGS) for i in range(2 * DOUBLINGS + 1)]
    found: dict[str, list[float]] = {}
    for number, capacity in enumerate(words):
        progress(number, [1.0] * len(words), f"{capacity} words")
        one = traffic_of(workload, capacity, arch.word_bits, method, orders_for_policy=False)
        for name, moved in zip(CONFIGURATIONS, configuration_words(one), strict=True):
            found.setdefault(name, []).append(moved * word_bytes)
    return TrafficCurves(
        f"{workload.name} on {arch.name}: main-memory traffic between operations",
        arch.levels[1].name,
        tuple(n * word_bytes for n in words),
        {name: tuple(moved) for name, moved in found.items()},
        report.capacity_words * word_bytes,
    )


@dataclass(frozen=True, slots=True)
class TensorTraffic:
    """Main-memory traffic of each tensor, of a loop in one of its middle iterations, in bytes."""

    title: str
    rows: tuple[tuple[str, float, float], ...]  # tensor, SEQ-Flex, Optimal; most of SEQ-Flex first


def traffic_per_tensor(arch: Arch, workload: Workload, report: TrafficReport) -> TensorTraffic:
    """Returns what each tensor moves if nothing is retained, and in the optimum. Reads that find words on
    chip move the rest; of a result that is read again and is no output the words are written that some read
    does not find there.
    """
    few = 2 * EDGE_PERIODS + 2
    loops = max(workload.repeats, default=1) if workload.loop_state else 1
    op_graph = graph(workload, min(loops, few))
    period = min(EDGE_PERIODS, loops - 1) if loops >= few else 0
    counting = CountingRule(report.published)

    def accesses(order: Sequence[Phase]) -> Sequence[Access]:
        listed = counting.to_access_list(op_graph, order, arch.word_bits)
        per = listed.accesses_per_period
        return listed.accesses[period * per : (period + 1) * per] if loops >= few else listed.accesses

    listed = counting.to_access_list(op_graph, report.order, arch.word_bits)
    found_on_chip, least = defaultdict[str, float](float), dict[str, float]()
    for span in report.optimal.spans:
        name = span.tensor.partition("@")[0]
        found_on_chip[name] += span.words
        least[name] = min(span.words, least.get(name, span.words))
    alone, moved = Counter[str](), defaultdict[str, float](float)
    sizes = op_graph.words(arch.word_bits)
    for a in accesses(one_by_one(op_graph)):
        for t in (*a.read, *a.written):
            alone[t.partition("@")[0]] += sizes[t]
    for a in accesses(report.order):
        for t in a.read:
            moved[t.partition("@")[0]] += sizes[t]
        for t in a.written:
            name = t.partition("@")[0]
            kept = 0 if t in listed.outputs else least.get(name, 0)
            moved[name] += sizes[t] - kept
    word_bytes = arch.word_bits / 8
    return TensorTraffic(
        f"{workload.name} on {arch.name}: main-memory traffic per tensor{', one iteration' * (loops > 1)}",
        tuple(
            (name, words * word_bytes, (moved[name] - found_on_chip[name]) * word_bytes)
            for name, words in alone.most_common()
        ),
    )


@dataclass(frozen=True, slots=True)
class GraphNode:
    """An operation of one period. layer: longest path to it."""

    name: str
    layer: int
    order: str  # its loops, outermost first; "": not known


@dataclass(frozen=True, slots=True)
class GraphEdge:
    """A tensor that one operation makes and another reads. source, target: numbers of nodes."""

    source: int
    target: int
    tensor: str
    pattern: str
    swizzled: bool
    to_next_period: bool


@dataclass(frozen=True, slots=True)
class OperationGraph:
    """The operations of a period, and their edges."""

    title: str
    nodes: tuple[GraphNode, ...]
    edges: tuple[GraphEdge, ...]


def operation_graph(workload: Workload, report: TrafficReport) -> OperationGraph:
    """Returns GOGETA's graph of one period with the patterns of its edges, and loop orders and swizzles where
    their search finds some.
    """
    whole = graph(workload, 3)
    n = whole.operations_per_period
    first = n if len(whole.operations) > n else 0  # the second period, which follows another one
    chosen: LoopOrders | None
    try:
        chosen = best_orders(whole, report.edges)
    except ValueError:
        chosen = None
    own = [e for e in report.edges if first <= e.source < first + n]
    layers = [0] * n
    for e in own:  # in the order of their sources
        if e.target < first + n:
            layers[e.target - first] = max(layers[e.target - first], layers[e.source - first] + 1)
    nodes = tuple(
        GraphNode(e.name.partition("@")[0], layers[i], " ".join(chosen.orders[i]) if chosen else "")
        for i, e in enumerate(whole.operations[first : first + n])
    )
    edges = tuple(
        GraphEdge(
            e.source - first,
            (e.target - first) % n,
            e.tensor.partition("@")[0],
            e.pattern,
            chosen is not None and e in chosen.swizzled,
            e.target >= first + n,
        )
        for e in own
    )
    return OperationGraph(f"{workload.name}: operations and what they pass on", nodes, edges)
