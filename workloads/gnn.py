"""Graph neural networks: each layer has one sparse product (neighbours) and one dense product (weights).

The graph A (m x m, CSR) includes the normalisation: self loops and degrees are in the values of its nonzeros.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from workloads.einsum import GOGETA_BITS, Einsum, WorkloadError, closest, csr, einsum
from workloads.graph import Workload
from workloads.layers import network

Order = Literal["aggregate", "combine"]


@dataclass(frozen=True, slots=True)
class Graph:
    """Sizes of a graph, its features and its classes."""

    name: str
    nodes: int
    nnz: int
    features: int
    outputs: int
    widths: tuple[int, int] = (GOGETA_BITS, GOGETA_BITS)  # bits of a column index, and of a row pointer


# GOGETA, table 2 (protein: a batch of 64 graphs); cora_full: Cora with all its 10,556 directed edges, as Kipf
# and Welling's code and PyTorch Geometric load it
GRAPHS = {
    g.name: g
    for g in (
        Graph("cora", 2708, 9464, 1433, 7),
        Graph("protein", 3786, 14456, 29, 2),
        Graph("cora_full", 2708, 10556, 1433, 7),
    )
}


def gcn(
    graph: str = "cora_full",
    nodes: int = 0,
    nnz: int = 0,
    features: int = 0,
    outputs: int = 0,
    layers: int = 2,
    hidden: int = 16,
    order: Order = "aggregate",
    index_bits: int = GOGETA_BITS,
    pointer_bits: int = GOGETA_BITS,
) -> Workload:
    """Graph convolution (Kipf and Welling 2017): X' = relu(A X W), no relu after the last layer.

    graph: a name of GRAPHS; nodes, nnz, features and outputs, if given, replace its sizes
    hidden: width between layers
    order: aggregate: (A X) W, as in GOGETA; combine: A (X W)
    index_bits, pointer_bits: of the graph's column indices and row pointers
    """
    g = _graph("gcn", graph, nodes, nnz, features, outputs, (index_bits, pointer_bits))
    net: list[Einsum] = []
    for i, (x, in_width, out_width) in enumerate(_widths(g, layers, hidden)):
        if order == "aggregate":
            net += [
                _neighbours(g, f"Z{i}", x, in_width),
                _dense(g, f"Y{i}", f"Z{i}", f"W{i}", in_width, out_width),
            ]
        else:
            net += [
                _dense(g, f"Z{i}", x, f"W{i}", in_width, out_width),
                _neighbours(g, f"Y{i}", f"Z{i}", out_width),
            ]
        net += [_relu(g, i, out_width)] if i < layers - 1 else []
    return network(f"gcn:graph={g.name}", net, {"A", "X0"})


def graphsage(
    graph: str = "cora",
    nodes: int = 0,
    nnz: int = 0,
    features: int = 0,
    outputs: int = 0,
    layers: int = 1,
    hidden: int = 16,
    index_bits: int = GOGETA_BITS,
    pointer_bits: int = GOGETA_BITS,
) -> Workload:
    """GraphSAGE with mean aggregation (Hamilton et al. 2017): X' = relu(X V + (A X) W), no relu after the
    last layer.

    Parameters as in `gcn`.
    """
    g = _graph("graphsage", graph, nodes, nnz, features, outputs, (index_bits, pointer_bits))
    net: list[Einsum] = []
    for i, (x, in_width, out_width) in enumerate(_widths(g, layers, hidden)):
        net += [
            _neighbours(g, f"Z{i}", x, in_width),
            _dense(g, f"N{i}", f"Z{i}", f"W{i}", in_width, out_width),
            _dense(g, f"S{i}", x, f"V{i}", in_width, out_width),
            einsum(f"Y{i}[m,o] = S{i}[m,o] + N{i}[m,o]", {"m": g.nodes, "o": out_width}),
        ]
        net += [_relu(g, i, out_width)] if i < layers - 1 else []
    return network(f"graphsage:graph={g.name}", net, {"A", "X0"})


def _widths(g: Graph, layers: int, hidden: int) -> list[tuple[str, int, int]]:
    """Returns input tensor, input width and output width of every layer."""
    widths = [g.features, *[hidden] * (layers - 1), g.outputs]
    return [(f"X{i}", widths[i], widths[i + 1]) for i in range(layers)]


def _neighbours(g: Graph, out: str, x: str, width: int) -> Einsum:
    extents = {"m": g.nodes, "n": width, "k": g.nodes}
    return einsum(f"{out}[m,n] += A[m,k] * {x}[k,n]", extents, **csr("A", g.nnz / g.nodes**2, *g.widths))


def _dense(g: Graph, out: str, x: str, w: str, in_width: int, out_width: int) -> Einsum:
    return einsum(f"{out}[m,o] += {x}[m,n] * {w}[n,o]", {"m": g.nodes, "o": out_width, "n": in_width})


def _relu(g: Graph, i: int, width: int) -> Einsum:
    return einsum(f"X{i + 1}[m,n] = relu(Y{i}[m,n])", {"m": g.nodes, "n": width})


def _graph(
    name: str, graph: str, nodes: int, nnz: int, features: int, outputs: int, widths: tuple[int, int]
) -> Graph:
    if graph not in GRAPHS:
        hint = closest(graph, GRAPHS, f"there are {', '.join(GRAPHS)}")
        raise WorkloadError(f"{name}: no graph is named {graph}; {hint}")
    given: dict[str, Any] = {"nodes": nodes, "nnz": nnz, "features": features, "outputs": outputs}
    found = replace(GRAPHS[graph], widths=widths, **{size: n for size, n in given.items() if n})
    if found.nnz > found.nodes**2:
        raise WorkloadError(f"{name}: nnz = {found.nnz} must not be above nodes * nodes = {found.nodes**2}")
    return found
