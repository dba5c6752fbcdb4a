"""Classifies how the tensor of each edge of a graph of operations can be reused: the patterns of GOGETA
(arXiv 2303.11499, section 4) and multicast.

`classify` is the corrected method; `published` is Algorithm 2 to the letter, with its defects. The rank that
dominates an operation decides whether its consumer can start on partial results. Transitive edges decide
which tensors must be retained for later operations.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

from dse.solve.gogeta.operations import Graph
from workloads.einsum import Einsum, Projection

# The extent of a dominant rank is above LARGE, and above SKEW times that of every other rank. An operation is
# balanced if each group of ranks (`dominance`) has at least LEAST indices.
LARGE, SKEW, LEAST = 1000, 100, 50
Label = Literal["U", "C", "bal", "small"]
Pattern = Literal["sequential", "pipelineable", "pipeline_with_writeback", "pipeline_with_hold"]
PIPELINED = ("pipelineable", "pipeline_with_hold")
# kinds of einsums that need all of their first input before they return any element
WHOLE = ("inverse", "topk", "nonzero", "unique")
BY_ROW = (  # kinds of einsums that need a row (the last dimension) before they return any element of it
    "softmax",
    "logsoftmax",
    "hardmax",
    "layernormalization",
    "instancenormalization",
    "groupnormalization",
    "rmsnormalization",
    "lpnormalization",
    "lrn",
    "cumsum",
    "scan",
)


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


def effective(e: Einsum) -> dict[str, float]:
    """Returns the extents of ranks; for a rank that CSR compresses, the average number of nonzeros of a
    row.
    """
    extents = {rank: float(n) for rank, n in e.extents}
    for p in e.inputs:
        if p.format == "csr":
            extents |= {rank: extents[rank] * p.density for rank in p.dims[-1].ranks()}
    return extents


def dominance(e: Einsum) -> Dominance:
    """Returns the dominant rank of an operation. Without one, balanced or small is decided on the equivalent
    matrix product: ranks that index the same tensors count as one rank (rows, columns or depth).
    """
    extents = effective(e)
    rank = next((r for r, n in extents.items() if _dominates(r, extents)), "")
    if rank:
        return Dominance("U" if rank in e.output.ranks() else "C", rank)
    alike: dict[frozenset[int], list[float]] = defaultdict(list)
    for r, n in extents.items():
        alike[frozenset(i for i, p in enumerate(e.tensors()) if r in p.ranks())].append(n)
    return Dominance("bal" if min(map(prod, alike.values()), default=0) >= LEAST else "small")


def _dominates(rank: str, extents: Mapping[str, float]) -> bool:
    n = extents[rank]
    return n > LARGE and all(n > SKEW * other for r, other in extents.items() if r != rank)


def barrier(e: Einsum) -> frozenset[str]:
    """Returns the ranks that an operation must iterate completely before it can pass on any of its output.
    The output is passed on in steps along the other ranks.

    A softmax or norm needs a whole row, so rows are passed on one by one. A sum needs all ranks that it
    contracts. An inverse needs all ranks.
    """
    if e.kind in WHOLE:
        return frozenset(e.sizes())
    row = frozenset(e.output.dims[-1].ranks()) if e.kind in BY_ROW and e.output.dims else frozenset()
    return row | (e.sizes().keys() - e.output.ranks())


def _gives_steps(e: Einsum, own: Dominance) -> bool:
    """True if a consumer can begin before the operation ends. own: dominance of the operation.

    If a contracted rank dominates, results are incomplete for most of the time. A consumer can then begin
    early only if, without that rank, an uncontracted rank would dominate.
    """
    steps = e.output.ranks() - barrier(e)
    if own.label == "C":
        rest = {r: n for r, n in effective(e).items() if r != own.rank}
        return any(_dominates(r, rest) for r in steps)
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
    bare = [
        Edge(s, t, graph.operations[s].output.tensor, tuple(found)) for (s, t), found in sorted(reads.items())
    ]
    after: list[list[int]] = [[] for _ in graph.operations]
    level = [0] * len(graph.operations)  # length of the longest path to each operation
    for edge in bare:  # sources ascend
        after[edge.source].append(edge.target)
        level[edge.target] = max(level[edge.target], level[edge.source] + 1)
    below = _below(after)
    marked = [
        replace(
            e,
            transitive=any(below[v] >> e.target & 1 for v in after[e.source] if v != e.target),
            delayed=level[e.target] - level[e.source] > 1,
        )
        for e in bare
    ]
    return _multicast(marked, lambda e: not e.transitive and not e.delayed)


def _multicast(found: list[Edge], counts: Callable[[Edge], bool]) -> list[Edge]:
    """Returns the edges with multicasts marked: the edges of a source for which `counts` is true, if it has
    several.
    """
    at: dict[int, int] = defaultdict(int)
    for e in found:
        at[e.source] += counts(e)
    return [replace(e, multicast=counts(e) and at[e.source] > 1) for e in found]


def _below(after: Sequence[Sequence[int]]) -> list[int]:
    """Returns for every operation the set of operations that depend on it, as bits of an integer."""
    below = [0] * len(after)
    for v in reversed(range(len(after))):
        for target in after[v]:
            below[v] |= 1 << target | below[target]
    return below


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
    own = [dominance(e) for e in graph.operations]
    found = edges(graph)

    def direct(e: Edge) -> Pattern:
        rank = own[e.target].rank
        bars = not _gives_steps(graph.operations[e.source], own[e.source]) or (
            rank != "" and not all(rank in p.ranks() for p in e.reads)
        )
        return "sequential" if bars or (e.delayed and not e.transitive) else "pipelineable"

    first = [replace(e, pattern=direct(e)) for e in found]
    into: dict[int, list[Edge]] = defaultdict(list)
    for e in first:
        into[e.target].append(e)
    return [
        replace(e, pattern="pipeline_with_hold" if _holds(e, into, own) else "pipeline_with_writeback")
        if e.transitive and e.pattern == "pipelineable"
        else e
        for e in first
    ]


def _holds(edge: Edge, into: Mapping[int, Sequence[Edge]], own: Sequence[Dominance]) -> bool:
    """True if on every longest path from source to target all edges can be pipelined, and no operation
    between contracts its dominant rank.
    """
    longest = {edge.source: (0, True)}
    for v in range(edge.source + 1, edge.target + 1):
        ways = [
            (
                longest[e.source][0] + 1,
                longest[e.source][1]
                and e.pattern == "pipelineable"
                and (v == edge.target or own[v].label != "C"),
            )
            for e in into[v]
            if e.source in longest
        ]
        if ways:
            most = max(length for length, _ in ways)
            longest[v] = most, all(good for length, good in ways if length == most)
    return longest[edge.target][1]


def published(graph: Graph) -> list[Edge]:
    """Returns all edges with patterns, by Algorithm 2 as printed. It has four defects:

    1. Only edges that skip operations of the one longest path of the whole graph are transitive.
    2. A later rule overwrites `sequential` on transitive edges.
    3. A target with label bal or small has no dominant rank, so its direct edges are always sequential.
    4. Whether an edge is pipeline_with_hold depends on the operations of a path, not on its edges.
    """
    own = [dominance(e) for e in graph.operations]
    critical = _critical(graph)
    place = {v: i for i, v in enumerate(critical)}

    def leaves(e: Edge) -> bool:
        return e.source in place and e.target in place and place[e.target] - place[e.source] > 1

    found = _multicast(
        [replace(e, transitive=leaves(e), delayed=False) for e in edges(graph)], lambda e: not e.transitive
    )

    def pattern(e: Edge) -> Pattern:
        source = own[e.source].label
        if source != "C" and e.transitive:
            within = critical[place[e.source] + 1 : place[e.target]]
            return (
                "pipeline_with_writeback"
                if any(own[v].label == "C" for v in within)
                else "pipeline_with_hold"
            )
        rank = own[e.target].rank
        bars = (
            source == "C"
            or graph.operations[e.source].kind in WHOLE
            or not rank
            or not any(rank in p.ranks() for p in e.reads)
        )
        return "sequential" if bars else "pipelineable"

    return [replace(e, pattern=pattern(e)) for e in found]


def _critical(graph: Graph) -> list[int]:
    """Returns the operations of the longest path, of the first one if there are several."""
    before: dict[int, int] = {}
    level = [0] * len(graph.operations)
    for e in edges(graph):
        if level[e.source] + 1 > level[e.target]:
            level[e.target], before[e.target] = level[e.source] + 1, e.source
    path = [max(range(len(level)), key=level.__getitem__)]
    while path[-1] in before:
        path.append(before[path[-1]])
    return path[::-1]


CLASSIFIERS: dict[str, Callable[[Graph], list[Edge]]] = {"corrected": classify, "gogeta-published": published}
