"""Graph neural networks: each layer has one sparse product (neighbours) and one dense product (weights);
with attention, weights of the edges are results in CSR in between.

The graph A (m x m, CSR) includes the normalisation: self loops and degrees are in the values of its nonzeros.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from workloads.einsum import GOGETA_BITS, Einsum, TileColumns, WorkloadError, closest, csr, einsum
from workloads.graph import Workload
from workloads.hpc import matrix_of
from workloads.layers import network
from workloads.matrix import SUFFIXES, is_matrix_file, read_pattern

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
    tile_columns: TileColumns | None = None  # of a graph in a file


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

    graph: a name of GRAPHS, or the file of a square matrix (Matrix Market, .npz of SciPy), which needs
        features and outputs; nodes, nnz, features and outputs, if given, replace its sizes
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


def gat(
    graph: str = "cora_full",
    nodes: int = 0,
    nnz: int = 0,
    features: int = 0,
    outputs: int = 0,
    layers: int = 2,
    hidden: int = 8,
    heads: int = 8,
    index_bits: int = GOGETA_BITS,
    pointer_bits: int = GOGETA_BITS,
) -> Workload:
    """Graph attention (Velickovic et al. 2018): X' = elu(softmax(A * leaky(s + t)) X W), with s and t of X W.

    graph, nodes, nnz, features, outputs, index_bits, pointer_bits: as in `gcn`
    hidden: width of a head between layers
    heads: of all layers but the last, which has one; heads of a layer are side by side

    Scores E of the edges, their exponentials P and quotients Q have the pattern of A and are stored in CSR,
    once per head; a softmax over the neighbours is its maximum, exponentials, sum and quotients.
    """
    g = _graph("gat", graph, nodes, nnz, features, outputs, (index_bits, pointer_bits))
    net: list[Einsum] = []
    for i in range(layers):
        last = i == layers - 1
        h, o = (1, g.outputs) if last else (heads, hidden)
        inputs = {"n": g.features} if i == 0 else {"g": heads, "f": hidden}
        net += _attention(g, i, inputs, h, o)
        net += [] if last else [einsum(f"X{i + 1}[m,g,f] = elu(Y{i}[m,g,f])", {"m": g.nodes, "g": h, "f": o})]
    return network(f"gat:graph={g.name}", net, {"A", "X0"})


def _attention(g: Graph, i: int, inputs: dict[str, int], heads: int, width: int) -> list[Einsum]:
    """Returns layer i. inputs: ranks of a node's features, and their extents"""
    extents, x = {"m": g.nodes, "k": g.nodes, "h": heads, "o": width, **inputs}, ",".join(inputs)
    density = g.nnz / g.nodes**2

    def edges(text: str, made: str, read: str) -> Einsum:
        sparse: dict[str, dict[str, Any]] = {}
        for tensor in (made, read):
            given = (
                csr(tensor, density, *g.widths, g.tile_columns if tensor == read else None) if tensor else {}
            )
            for key, value in given.items():
                sparse.setdefault(key, {}).update(value)
        return einsum(text, extents, made, **sparse)

    return [
        einsum(f"H{i}[m,h,o] += X{i}[m,{x}] * W{i}[{x},h,o]", extents),
        einsum(f"s{i}[m,h] += H{i}[m,h,o] * a{i}[h,o]", extents),
        einsum(f"t{i}[m,h] += H{i}[m,h,o] * b{i}[h,o]", extents),
        edges(f"E{i}[h,m,k] = leaky_add(A[m,k], s{i}[m,h], t{i}[k,h])", f"E{i}", "A"),
        edges(f"M{i}[h,m] max= E{i}[h,m,k]", "", f"E{i}"),
        edges(f"P{i}[h,m,k] = exp(E{i}[h,m,k], M{i}[h,m])", f"P{i}", f"E{i}"),
        edges(f"L{i}[h,m] += P{i}[h,m,k]", "", f"P{i}"),
        edges(f"Q{i}[h,m,k] = div(P{i}[h,m,k], L{i}[h,m])", f"Q{i}", f"P{i}"),
        edges(f"Y{i}[m,h,o] += Q{i}[h,m,k] * H{i}[k,h,o]", "", f"Q{i}"),
    ]


def _widths(g: Graph, layers: int, hidden: int) -> list[tuple[str, int, int]]:
    """Returns input tensor, input width and output width of every layer."""
    widths = [g.features, *[hidden] * (layers - 1), g.outputs]
    return [(f"X{i}", widths[i], widths[i + 1]) for i in range(layers)]


def _neighbours(g: Graph, out: str, x: str, width: int) -> Einsum:
    extents = {"m": g.nodes, "n": width, "k": g.nodes}
    return einsum(
        f"{out}[m,n] += A[m,k] * {x}[k,n]", extents, **csr("A", g.nnz / g.nodes**2, *g.widths, g.tile_columns)
    )


def _dense(g: Graph, out: str, x: str, w: str, in_width: int, out_width: int) -> Einsum:
    return einsum(f"{out}[m,o] += {x}[m,n] * {w}[n,o]", {"m": g.nodes, "o": out_width, "n": in_width})


def _relu(g: Graph, i: int, width: int) -> Einsum:
    return einsum(f"X{i + 1}[m,n] = relu(Y{i}[m,n])", {"m": g.nodes, "n": width})


def _graph(
    name: str, graph: str, nodes: int, nnz: int, features: int, outputs: int, widths: tuple[int, int]
) -> Graph:
    if graph not in GRAPHS and not is_matrix_file(graph):
        hint = closest(graph, GRAPHS, f"there are {', '.join(GRAPHS)}; a file ends in {', '.join(SUFFIXES)}")
        raise WorkloadError(f"{name}: no graph is named {graph}; {hint}")
    given: dict[str, Any] = {"nodes": nodes, "nnz": nnz, "features": features, "outputs": outputs}
    own = GRAPHS[graph] if graph in GRAPHS else _read(name, graph, features, outputs)
    found = replace(own, widths=widths, **{size: n for size, n in given.items() if n})
    if nodes or nnz:
        found = replace(found, tile_columns=None)
    if found.nnz > found.nodes**2:
        raise WorkloadError(f"{name}: nnz = {found.nnz} must not be above nodes * nodes = {found.nodes**2}")
    return found


def _read(name: str, path: str, features: int, outputs: int) -> Graph:
    """Returns the graph of a file."""
    a = matrix_of(read_pattern(path))
    if a.rows != a.columns:
        raise WorkloadError(f"{path}: {a.rows} x {a.columns} is not square; {name} needs a square matrix")
    if not features or not outputs:
        raise WorkloadError(f"{name}: {path} says nothing of features; add features=...,outputs=...")
    return Graph(a.name, a.rows, a.nnz, features, outputs, tile_columns=a.tile_columns)
