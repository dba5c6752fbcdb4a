"""Workloads: a DAG of einsums, joined by the names of their tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import networkx as nx

from workloads.einsum import Einsum, WorkloadError, canonical_key


@dataclass(frozen=True, slots=True)
class Workload:
    """A network or solver: einsums in an order in which each tensor is made before it is read.

    A reader may see a tensor in another shape than its maker wrote it (ONNX Reshape): the same elements in row-major order.
    weights: tensors that are there before the run (parameters). repeats[i]: how often einsum i runs in a row.
    parameters: trained numbers of the network, also those folded into other einsums.
    folded, moved: what rides on a producer's output for free, and operators that are counted as data movement, by name.
    """

    name: str
    einsums: tuple[Einsum, ...]
    weights: frozenset[str] = frozenset()
    repeats: tuple[int, ...] = ()
    parameters: int = 0
    folded: tuple[str, ...] = ()
    moved: tuple[str, ...] = ()

    def macs(self) -> int:
        return sum(e.macs() * n for e, n in zip(self.einsums, counts(self), strict=True))


@dataclass(frozen=True, slots=True)
class Unique:
    """Equal einsums, solved once: the first of them, all their names, how often they run."""

    key: str
    einsum: Einsum
    names: tuple[str, ...]
    count: int


def counts(workload: Workload) -> tuple[int, ...]:
    return workload.repeats or (1,) * len(workload.einsums)


def unique(workload: Workload) -> list[Unique]:
    """Equal einsums gathered, in order of first appearance."""
    groups: dict[str, list[tuple[Einsum, int]]] = {}
    for e, n in zip(workload.einsums, counts(workload), strict=True):
        groups.setdefault(canonical_key(e), []).append((e, n))
    return [Unique(key, group[0][0], tuple(e.name for e, _ in group), sum(n for _, n in group)) for key, group in groups.items()]


def dag(einsums: Sequence[Einsum]) -> nx.DiGraph[str]:
    """Einsum names as nodes; an edge carries the tensor that its head reads."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    makers = {e.output.tensor: e.name for e in einsums}
    for e in einsums:
        graph.add_node(e.name)
        for p in e.inputs:
            if p.tensor in makers:
                graph.add_edge(makers[p.tensor], e.name, tensor=p.tensor)
    return graph


def in_order(name: str, einsums: Sequence[Einsum]) -> tuple[Einsum, ...]:
    """Einsums sorted so that producers come first, stable otherwise.

    Raises WorkloadError naming the fault: a tensor made twice, a name used twice, a cycle.
    """
    by_name = {e.name: e for e in einsums}
    faults = []
    made: dict[str, str] = {}
    for i, e in enumerate(einsums):
        if e.output.tensor in made:
            faults.append(f"{name}: tensor {e.output.tensor} is made by {made[e.output.tensor]} and by {e.name}; make each tensor once")
        elif e.name in [other.name for other in einsums[:i]]:
            faults.append(f"{name}: two einsums are named {e.name}; give each its own name")
        made.setdefault(e.output.tensor, e.name)
    if faults:
        raise WorkloadError("\n".join(faults))
    graph = dag(einsums)
    rank = {e.name: i for i, e in enumerate(einsums)}
    try:
        return tuple(by_name[n] for n in nx.lexicographical_topological_sort(graph, key=rank.__getitem__))
    except nx.NetworkXUnfeasible:
        cycle = " -> ".join(edge[0] for edge in nx.find_cycle(graph))
        raise WorkloadError(f"{name}: einsums form a cycle: {cycle}; a tensor must be made before it is read") from None
