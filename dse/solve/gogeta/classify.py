"""Classifies how the tensor of each edge of a graph of operations can be reused: the patterns of GOGETA
(arXiv 2303.11499, section 4) and multicast.

`classify` is the corrected method; `classify_published` is Algorithm 2 to the letter, with its defects. The
rank that dominates an operation decides whether its consumer can start on partial results. Transitive edges
decide which tensors must be retained for later operations.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

from dse.solve.gogeta.operations import Graph
from workloads.einsum import BY_TENSOR, Einsum, Projection

# The extent of a dominant rank is above MIN_DOMINANT, and above SKEW times that of every other rank. An
# operation is balanced if each group of ranks (`dominance`) has at least MIN_BALANCED indices.
MIN_DOMINANT, MIN_SKEW, MIN_BALANCED = 1000, 100, 50
Label = Literal["U", "C", "bal", "small"]
Pattern = Literal["sequential", "pipelineable", "pipeline_with_writeback", "pipeline_with_hold"]
PIPELINED = ("pipelineable", "pipeline_with_hold")


@dataclass(frozen=True, slots=True)
class Dominance:
    """Which rank dominates an operation."""

    # U: an uncontracted rank dominates; C: a contracted rank does; bal: none does, and all are large; small:
    # none does, and one is small
    label: Label
    rank: str = ""  # the dominant rank; "": none


@dataclass(frozen=True, slots=True)
class Edge:
    """A result of operation `source` that operation `target` reads."""

    source: int
    target: int
    tensor: str
    reads: tuple[Projection, ...]  # one per input of the target that is this tensor
    transitive: bool = False  # another path leads from source to target
    delayed: bool = False  # the levels of source and target differ by more than one
    multicast: bool = False  # several direct edges leave the source
    pattern: Pattern = "sequential"


def effective_extents(e: Einsum) -> dict[str, float]:
    """Returns the extents of ranks; for a rank that CSR compresses, the average number of nonzeros of a
    row.
    """
    extents = {rank: float(n) for rank, n in e.extents}
    for p in e.inputs:
        if p.format != "dense":
            extents |= {rank: extents[rank] * p.density for rank in p.dims[-1].ranks()}
    return extents


def dominance(e: Einsum) -> Dominance:
    """Returns the dominant rank of an operation. Without one, balanced or small is decided on the equivalent
    matrix product: ranks that index the same tensors count as one rank (rows, columns or depth).
    """
    extents = effective_extents(e)
    rank = next((r for r, n in extents.items() if _dominates(r, extents)), "")
    if rank:
        return Dominance("U" if rank in e.output.ranks() else "C", rank)
    extents_by_tensors: dict[frozenset[int], list[float]] = defaultdict(list)
    for r, n in extents.items():
        extents_by_tensors[frozenset(i for i, p in enumerate(e.tensors()) if r in p.ranks())].append(n)
    return Dominance(
        "bal" if min(map(prod, extents_by_tensors.values()), default=0) >= MIN_BALANCED else "small"
    )


def _dominates(rank: str, extents: Mapping[str, float]) -> bool:
    n = extents[rank]
    return n > MIN_DOMINANT and all(n > MIN_SKEW * other for r, other in extents.items() if r != rank)


def barrier(e: Einsum) -> frozenset[str]:
    """Returns the ranks that an operation must iterate completely before it can pass on any of its output.
    The output is passed on in steps along the other ranks.

    A softmax or norm needs a whole row, so rows are passed on one by one. A sum needs all ranks that it
    contracts. An inverse needs all ranks.
    """
    return e.whole_ranks() | (e.sizes().keys() - e.output.ranks())


def _can_start_early(e: Einsum, source: Dominance) -> bool:
    """True if a consumer can begin before the operation ends. source: dominance of the operation.

    If a contracted rank dominates, results are incomplete for most of the time. A consumer can then begin
    early only if, without that rank, an uncontracted rank would dominate.
    """
    steps = e.output.ranks() - barrier(e)
    if source.label == "C":
        other_extents = {r: n for r, n in effective_extents(e).items() if r != source.rank}
        return any(_dominates(r, other_extents) for r in steps)
    return bool(steps)


def edges(graph: Graph) -> list[Edge]:
    """Returns all edges in order of their sources, with transitive, delayed and multicast ones marked, and
    without patterns.
    """
    makers, reads = graph.makers(), defaultdict(list)
    for target, e in enumerate(graph.operations):
        for p in e.inputs:
            if p.tensor in makers:
                reads[makers[p.tensor], target].append(p)
    unmarked = [
        Edge(s, t, graph.operations[s].output.tensor, tuple(found)) for (s, t), found in sorted(reads.items())
    ]
    targets_of: list[list[int]] = [[] for _ in graph.operations]
    level = [0] * len(graph.operations)  # length of the longest path to each operation
    for edge in unmarked:  # sources ascend
        targets_of[edge.source].append(edge.target)
        level[edge.target] = max(level[edge.target], level[edge.source] + 1)
    dependents = _dependents(targets_of)
    marked = [
        replace(
            e,
            transitive=any(dependents[v] >> e.target & 1 for v in targets_of[e.source] if v != e.target),
            delayed=level[e.target] - level[e.source] > 1,
        )
        for e in unmarked
    ]
    return _with_multicast(marked, lambda e: not e.transitive and not e.delayed)


def _with_multicast(found: list[Edge], is_direct: Callable[[Edge], bool]) -> list[Edge]:
    """Returns the edges with multicasts marked: the edges of a source for which `is_direct` is true, if it
    has several.
    """
    direct_edges: dict[int, int] = defaultdict(int)
    for e in found:
        direct_edges[e.source] += is_direct(e)
    return [replace(e, multicast=is_direct(e) and direct_edges[e.source] > 1) for e in found]


def _dependents(targets_of: Sequence[Sequence[int]]) -> list[int]:
    """Returns for every operation the set of operations that depend on it, as bits of an integer."""
    dependents = [0] * len(targets_of)
    for v in reversed(range(len(targets_of))):
        for target in targets_of[v]:
            dependents[v] |= 1 << target | dependents[target]
    return dependents


def classify(graph: Graph) -> list[Edge]:
    """Returns all edges with patterns, by the corrected method. The first rule that applies decides:

    1. The source cannot pass on results before it ends: sequential.
    2. The rank that dominates the target does not index the tensor, so each step of the target needs the
       whole tensor: sequential.
    3. The edge is transitive: pipeline_with_hold if all edges of the longest paths to the target can be
       pipelined and no operation on the way contracts its dominant rank; else pipeline_with_writeback.
    4. The edge is delayed and not transitive: sequential; on-chip retention is decided later.
    5. Otherwise: pipelineable.
    """
    dominances = [dominance(e) for e in graph.operations]
    direct_patterns = [
        replace(e, pattern="sequential") if e.delayed and not e.transitive else e for e in unbarred(graph)
    ]
    edges_into: dict[int, list[Edge]] = defaultdict(list)
    for e in direct_patterns:
        edges_into[e.target].append(e)
    return [
        replace(
            e,
            pattern="pipeline_with_hold"
            if _can_hold(e, edges_into, dominances)
            else "pipeline_with_writeback",
        )
        if e.transitive and e.pattern == "pipelineable"
        else e
        for e in direct_patterns
    ]


def unbarred(graph: Graph) -> list[Edge]:
    """Returns all edges by the first two rules of `classify` alone: pipelineable, unless the source cannot
    pass on results before it ends, or each step of the target needs the whole tensor.
    """
    dominances = [dominance(e) for e in graph.operations]

    def is_barred(e: Edge) -> bool:
        rank = dominances[e.target].rank
        return not _can_start_early(graph.operations[e.source], dominances[e.source]) or (
            rank != "" and not all(rank in p.ranks() for p in e.reads)
        )

    return [replace(e, pattern="sequential" if is_barred(e) else "pipelineable") for e in edges(graph)]


def _can_hold(edge: Edge, edges_into: Mapping[int, Sequence[Edge]], dominances: Sequence[Dominance]) -> bool:
    """True if on every longest path from source to target all edges can be pipelined, and no operation
    between contracts its dominant rank.
    """
    # operation -> length of the longest path to it from the source; whether all paths of that length can be
    # pipelined
    longest = {edge.source: (0, True)}
    for v in range(edge.source + 1, edge.target + 1):
        arrivals = [
            (
                longest[e.source][0] + 1,
                longest[e.source][1]
                and e.pattern == "pipelineable"
                and (v == edge.target or dominances[v].label != "C"),
            )
            for e in edges_into[v]
            if e.source in longest
        ]
        if arrivals:
            max_length = max(length for length, _ in arrivals)
            longest[v] = (
                max_length,
                all(is_pipelined for length, is_pipelined in arrivals if length == max_length),
            )
    return longest[edge.target][1]


def classify_published(graph: Graph) -> list[Edge]:
    """Returns all edges with patterns, by Algorithm 2 as printed. It has four defects:

    1. Only edges that skip operations of the one longest path of the whole graph are transitive.
    2. A later rule overwrites `sequential` on transitive edges.
    3. A target with label bal or small has no dominant rank, so its direct edges are always sequential.
    4. Whether an edge is pipeline_with_hold depends on the operations of a path, not on its edges.
    """
    dominances = [dominance(e) for e in graph.operations]
    critical = _longest_path(graph)
    path_position = {v: i for i, v in enumerate(critical)}

    def skips_path(e: Edge) -> bool:
        return (
            e.source in path_position
            and e.target in path_position
            and path_position[e.target] - path_position[e.source] > 1
        )

    found = _with_multicast(
        [replace(e, transitive=skips_path(e), delayed=False) for e in edges(graph)],
        lambda e: not e.transitive,
    )

    def pattern(e: Edge) -> Pattern:
        source = dominances[e.source].label
        if source != "C" and e.transitive:
            between = critical[path_position[e.source] + 1 : path_position[e.target]]
            return (
                "pipeline_with_writeback"
                if any(dominances[v].label == "C" for v in between)
                else "pipeline_with_hold"
            )
        rank = dominances[e.target].rank
        is_barred = (
            source == "C"
            or graph.operations[e.source].kind in BY_TENSOR
            or not rank
            or not any(rank in p.ranks() for p in e.reads)
        )
        return "sequential" if is_barred else "pipelineable"

    return [replace(e, pattern=pattern(e)) for e in found]


def _longest_path(graph: Graph) -> list[int]:
    """Returns the operations of the longest path, of the first one if there are several."""
    previous: dict[int, int] = {}
    level = [0] * len(graph.operations)
    for e in edges(graph):
        if level[e.source] + 1 > level[e.target]:
            level[e.target], previous[e.target] = level[e.source] + 1, e.source
    path = [max(range(len(level)), key=level.__getitem__)]
    while path[-1] in previous:
        path.append(previous[path[-1]])
    return path[::-1]


CLASSIFIERS: dict[str, Callable[[Graph], list[Edge]]] = {
    "corrected": classify,
    "gogeta-published": classify_published,
}
