"""How each edge of a graph of operations can reuse its tensor: the five patterns of GOGETA (arXiv 2303.11499,
section 4) and multicast.

`classify` is the corrected method, `published` Algorithm 2 to the letter, with its defects. Which rank
dominates an operation decides whether its consumer can work on what it has made so far; which edges are
transitive decides what has to be kept for later.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

from dse.solve.gogeta.operations import Graph
from workloads.einsum import Einsum, Projection

# a dominant rank is above LARGE and above SKEW times every other; balanced operations have no rank below
# LEAST
LARGE, SKEW, LEAST = 1000, 100, 50
Label = Literal["U", "C", "bal", "small"]
Pattern = Literal["sequential", "pipelineable", "pipeline_with_writeback", "pipeline_with_hold"]
PIPELINED = ("pipelineable", "pipeline_with_hold")
# functions that need all of their first input before they give anything
WHOLE = ("inverse", "topk", "nonzero", "unique")
BY_ROW = (
    "softmax",
    "logsoftmax",
    "hardmax",
    "layernormalization",
    "instancenormalization",
    "groupnormalization",
    "rmsnormalization",
    "lpnormalization",
    # one einsum that needs a row (the last dimension) before it gives any of it
    "lrn",
    "cumsum",
    "scan",
)


@dataclass(frozen=True, slots=True)
class Dominance:
    """label U: an uncontracted rank dominates, C: a contracted one; bal: none does, all are large; small.
    rank: the one that dominates, or empty.
    """

    label: Label
    rank: str = ""


@dataclass(frozen=True, slots=True)
class Edge:
    """A result of operation `source` that operation `target` reads, once per projection. transitive: another
    path leads there; delayed: it skips a level.
    """

    source: int
    target: int
    tensor: str
    reads: tuple[Projection, ...]
    transitive: bool = False
    delayed: bool = False
    multicast: bool = False
    pattern: Pattern = "sequential"


def effective(e: Einsum) -> dict[str, float]:
    """Extents of ranks; of one that CSR compresses, the nonzeros of an average row."""
    extents = {rank: float(n) for rank, n in e.extents}
    for p in e.inputs:
        if p.format == "csr":
            extents |= {rank: extents[rank] * p.density for rank in p.dims[-1].ranks()}
    return extents


def dominance(e: Einsum) -> Dominance:
    """Balanced or small is decided on the equivalent product of matrices: ranks that index the same tensors
    count as one (rows, columns, depth).
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
    """Ranks that an operation must have seen whole before it gives any of its output. Its output leaves in
    steps of the other ranks of the output.

    A softmax or norm bars its row, so that rows still leave one by one; a sum bars what it contracts; an
    inverse bars everything.
    """
    if e.kind in WHOLE:
        return frozenset(e.sizes())
    row = frozenset(e.output.dims[-1].ranks()) if e.kind in BY_ROW and e.output.dims else frozenset()
    return row | (e.sizes().keys() - e.output.ranks())


def _gives_steps(e: Einsum, own: Dominance) -> bool:
    """Whether a consumer can begin before the operation ends.

    Where a contracted rank dominates, there is nothing to give for most of the time, unless a second,
    uncontracted rank dominates all but that one.
    """
    steps = e.output.ranks() - barrier(e)
    if own.label == "C":
        rest = {r: n for r, n in effective(e).items() if r != own.rank}
        return any(_dominates(r, rest) for r in steps)
    return bool(steps)


def edges(graph: Graph) -> list[Edge]:
    """All edges, transitive and delayed ones marked, multicast ones too; no patterns yet. In order of their
    sources.
    """
    makers, reads = graph.makers(), defaultdict(list)
    for target, e in enumerate(graph.operations):
        for p in e.inputs:
            if p.tensor in makers:
                reads[makers[p.tensor], target].append(p)
    bare = [
        Edge(s, t, graph.operations[s].output.tensor, tuple(found)) for (s, t), found in sorted(reads.items())
    ]
    after = _after(bare, len(graph.operations))
    below, level = _below(after), _levels(bare, len(graph.operations))
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
    """Edges of one source that count are a multicast, if there are several."""
    at: dict[int, int] = defaultdict(int)
    for e in found:
        at[e.source] += counts(e)
    return [replace(e, multicast=counts(e) and at[e.source] > 1) for e in found]


def _after(bare: Sequence[Edge], count: int) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in range(count)]
    for e in bare:
        found[e.source].append(e.target)
    return found


def _below(after: Sequence[Sequence[int]]) -> list[int]:
    """Of every operation the set of those that depend on it, as bits. Operations stand in order."""
    below = [0] * len(after)
    for v in reversed(range(len(after))):
        for target in after[v]:
            below[v] |= 1 << target | below[target]
    return below


def _levels(bare: Sequence[Edge], count: int) -> list[int]:
    """Length of the longest path to every operation."""
    level = [0] * count
    for e in sorted(bare, key=lambda e: e.source):
        level[e.target] = max(level[e.target], level[e.source] + 1)
    return level


def classify(graph: Graph) -> list[Edge]:
    """The corrected method. First match wins:

    1. The source gives nothing before it ends: sequential.
    2. The rank that dominates the target does not index the tensor, so that each of its steps needs all of
       it: sequential.
    3. Transitive: hold if all edges of the longest paths to the target pipeline and contract no dominant rank
       on the way, else writeback.
    4. Delayed, not transitive: sequential; what stays on chip is the residency's question.
    5. Pipelineable.
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
    """Whether every longest path from source to target is pipelined all the way."""
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
    """Algorithm 2 as printed. Its defects: an edge is transitive only if it leaves the one longest path of
    the whole graph; a later rule overwrites `sequential` on transitive edges; a label bal or small is never a
    rank of the tensor; hold looks at operations, not at edges.
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
    """The longest path, the first one of several."""
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
