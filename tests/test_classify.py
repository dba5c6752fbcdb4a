"""Patterns of edges: conjugate gradients, residual blocks and graph convolutions as GOGETA has them, its
pseudo-code with its defects, row-wise barriers.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dse.solve.gogeta.classify import barrier, classify, classify_published, dominance, edges
from dse.solve.gogeta.operations import Graph, accumulate_sums, graph
from tests.amount import amount
from workloads import catalog, gnn, hpc, transformer
from workloads.einsum import Einsum, einsum
from workloads.graph import Workload

SEQ, PIPE, BACK, HOLD = "sequential", "pipelineable", "pipeline_with_writeback", "pipeline_with_hold"
# (source, target), ' marks the second iteration: tensor, transitive, multicast, pattern; arXiv 2303.11499,
# sections 4.1 to 4.3, and the same rules on the edges between iterations
CG = {
    ("1", "2"): ("S", False, False, PIPE),
    ("1", "4"): ("S", True, False, BACK),
    ("2", "3"): ("L", False, True, SEQ),
    ("2", "4"): ("L", False, True, SEQ),
    ("4", "5"): ("R", False, False, PIPE),
    ("4", "7"): ("R", True, False, BACK),
    ("5", "6"): ("G", False, False, SEQ),
    ("6", "7"): ("F", False, False, SEQ),
    ("7", "1'"): ("P", False, False, SEQ),
    ("7", "2'"): ("P", True, False, BACK),
    ("7", "3'"): ("P", True, False, BACK),
    ("7", "7'"): ("P", True, False, BACK),
    ("3", "3'"): ("X", False, False, SEQ),
    ("4", "4'"): ("R", True, False, BACK),
    ("5", "2'"): ("G", True, False, SEQ),
    ("5", "6'"): ("G", True, False, SEQ),
}
LABELS = {"1": "U", "2": "C", "3": "U", "4": "U", "5": "C", "6": "small", "7": "U"}


def by_lines(matrix: str, n: int) -> Graph:
    """Two iterations of conjugate gradients with line 2 as one operation: both its products and the inverse
    between them.
    """
    g = graph(hpc.cg(matrix=matrix, n=n, iterations=2))
    rows = g.operations[0].sizes()["m"]
    found: list[Einsum] = []
    for e in g.operations:
        if e.name.endswith("2b"):
            t, dense = e.name[0], {"m": rows, "j": n, "n": n, "i": n}
            text = (
                f"L_{t}[j,n] += P_{t}[m,j] * S_{t}[m,i] * G_{t}[i,n]"
                if n > 1
                else f"L_{t}[] += P_{t}[m] * S_{t}[m] * G_{t}[]"
            )
            found.append(einsum(text, dense, f"{t}.2"))
        elif not e.name.endswith("2a"):
            found.append(e)
    return replace(g, operations=tuple(found))


def line(g: Graph, at: int) -> str:
    step, _, name = g.operations[at].name.partition(".")
    return name + "'" * int(step)


@pytest.mark.parametrize("n", [1, 8, 16])
@pytest.mark.parametrize("matrix", hpc.MATRICES)
def test_conjugate_gradients(matrix: str, n: int) -> None:
    g = by_lines(matrix, n)
    assert {e.name[2:]: dominance(e).label for e in g.operations} == LABELS
    assert all(dominance(e).rank == ("m" if LABELS[e.name[2:]] != "small" else "") for e in g.operations)
    found = {
        (line(g, e.source), line(g, e.target)): (e.tensor[0], e.transitive, e.multicast, e.pattern)
        for e in classify(g)
    }
    assert {pair: fact for pair, fact in found.items() if not pair[0].endswith("'")} == CG
    assert [pair for pair, (_, transitive, _, _) in found.items() if pair == ("3", "3'") and not transitive]
    assert [e.delayed for e in classify(g) if (line(g, e.source), line(g, e.target)) == ("3", "3'")] == [True]


def test_the_printed_algorithm_has_its_defects() -> None:
    """X->3' and P->3' come out pipelineable, P gets a false multicast, P->2' is held over the sequential edge
    7->1'.
    """
    g = by_lines("aft02", 8)
    found = {(line(g, e.source), line(g, e.target)): e for e in classify_published(g)}
    assert found["3", "3'"].pattern == found["7", "3'"].pattern == PIPE
    assert found["7", "1'"].multicast
    assert found["7", "3'"].multicast
    assert not found["7", "2'"].multicast
    assert found["7", "2'"].pattern == HOLD
    assert found["7", "1'"].pattern == SEQ
    assert found["7", "7'"].pattern == BACK
    agree = [("1", "2"), ("1", "4"), ("2", "3"), ("2", "4"), ("4", "5"), ("4", "7"), ("5", "6"), ("6", "7")]
    assert all(found[pair].pattern == CG[pair][3] for pair in agree)


def block(*texts: str, **extents: int) -> Graph:
    named = [einsum(text, extents) for text in texts]
    return Graph(tuple(named), frozenset({named[-1].output.tensor}))


RESIDUAL = block(
    "c0[m,a] += I[m,k] * W0[k,a]",
    "c1[m,b] += c0[m,a] * W1[a,b]",
    "c2[m,a] += c1[m,b] * W2[b,a]",
    "add[m,a] = c2[m,a] + c0[m,a]",
    m=784,
    k=512,
    a=256,
    b=128,
)


def patterns(g: Graph, how=classify) -> dict[tuple[str, str], str]:
    return {(g.operations[e.source].name, g.operations[e.target].name): e.pattern for e in how(g)}


def test_residual_block() -> None:
    assert {dominance(e).label for e in RESIDUAL.operations} == {"bal"}
    assert patterns(RESIDUAL) == {
        ("c0", "c1"): PIPE,
        ("c1", "c2"): PIPE,
        ("c2", "add"): PIPE,
        ("c0", "add"): HOLD,
    }
    # bal is no rank
    assert patterns(RESIDUAL, classify_published) == {
        ("c0", "c1"): SEQ,
        ("c1", "c2"): SEQ,
        ("c2", "add"): SEQ,
        ("c0", "add"): HOLD,
    }


def test_residual_blocks_of_a_network() -> None:
    """Convolutions are balanced as the products of matrices that they are."""
    g = graph(catalog.load("resnet50"), accumulate=False)
    found = {(g.operations[e.source].name, g.operations[e.target].name): e for e in classify(g)}
    assert {dominance(e).label for e in g.operations if e.name.startswith("res3_1")} == {"bal"}
    skips = [
        e
        for (_, target), e in found.items()
        if e.transitive and target.startswith(("res3_1", "res3_2", "res4_2"))
    ]
    assert len(skips) == 3
    assert {e.pattern for e in skips} == {HOLD}
    assert found["res3_1_a", "res3_1_b"].pattern == found["res3_1_b", "res3_1_c"].pattern == PIPE


def test_graph_convolutions() -> None:
    for name, labels in (("protein", ["U", "U"]), ("cora", ["small", "small"])):
        g = graph(gnn.gcn(name, layers=1))
        assert [dominance(e).label for e in g.operations] == labels
        assert [e.pattern for e in classify(g)] == [PIPE]
    # the label small is no rank
    assert [e.pattern for e in classify_published(graph(gnn.gcn("cora", layers=1)))] == [SEQ]


def test_a_sparse_operand_counts_with_its_nonzeros() -> None:
    """Ten nonzeros per row: the compressed rank is none that could dominate."""
    dense = einsum("Y[m,n] += A[m,k] * X[k,n]", {"m": 50_000, "n": 4, "k": 50_000})
    sparse = einsum(
        "Y[m,n] += A[m,k] * X[k,n]",
        {"m": 50_000, "n": 4, "k": 50_000},
        density={"A": 2e-4},
        format={"A": "csr"},
    )
    assert dominance(dense).label == "small"
    assert (dominance(sparse).label, dominance(sparse).rank) == ("U", "m")


def test_a_contracted_rank_bars_only_itself() -> None:
    """A second, uncontracted rank that dominates all others still pipelines; without it the source is a
    barrier.
    """
    for rows, pattern in ((30_000, PIPE), (8, SEQ)):
        g = block("D[m,n] += A[k,m] * B[k,n]", "Y[m,o] += D[m,n] * W[n,o]", m=rows, n=8, k=4_000_000, o=8)
        assert dominance(g.operations[0]).label == "C"
        assert patterns(g)["D", "Y"] == pattern


def test_softmax_and_norms_bar_their_row_only() -> None:
    """Rows leave one by one: the product behind a softmax pipelines row by row."""
    net = [
        *transformer.softmax(4096, 64),
        einsum("O[b,d] += Y[b,n] * V[n,d]", {"b": 4096, "n": 64, "d": 64}, "O"),
    ]
    g = graph(Workload("rows", tuple(net)))
    assert patterns(g)["Y", "O"] == PIPE
    assert patterns(g)["E", "S"] == PIPE
    assert patterns(g)["S", "Y"] == PIPE
    assert barrier(g.operations[g.makers()["S"]]) == {"n"}
    one = einsum("Y[b,n] = softmax(X[b,n])", {"b": 256, "n": 256})
    assert barrier(one) == {"n"}
    assert barrier(einsum("Y[b,n] = gelu(X[b,n])", {"b": 256, "n": 256})) == set()
    alone = einsum("Y[n] = softmax(X[n])", {"n": 256})
    g = Graph((alone, einsum("Z[n] = gelu(Y[n])", {"n": 256})), frozenset({"Z"}))
    assert barrier(alone) == {"n"}
    assert patterns(g)["Y", "Z"] == SEQ


@settings(max_examples=amount(60))
@given(st.integers(2, 9), st.data())
def test_transitive_edges_are_those_that_a_reduction_drops(count: int, data: st.DataObject) -> None:
    """As networkx reduces the same graph."""
    import networkx as nx

    net = []
    for v in range(count):
        before = data.draw(st.lists(st.integers(0, v - 1), max_size=3, unique=True)) if v else []
        net.append(
            einsum(
                f"T{v}[m,n] = f({', '.join(f'T{u}[m,n]' for u in before) or 'X[m,n]'})",
                {"m": 64, "n": 64},
                f"{v}",
            )
        )
    g = Graph(tuple(net), frozenset())
    whole = nx.DiGraph([(e.source, e.target) for e in edges(g)])
    kept = set(nx.transitive_reduction(whole).edges) if whole else set()
    assert {(e.source, e.target) for e in edges(g) if not e.transitive} == kept
    depth = {
        v: max((nx.dag_longest_path_length(whole.subgraph(nx.ancestors(whole, v) | {v})),), default=0)
        if v in whole
        else 0
        for v in range(count)
    }
    assert all(e.delayed == (depth[e.target] - depth[e.source] > 1) for e in edges(g))


def test_a_result_that_is_needed_is_not_accumulated_away() -> None:
    texts = ("T[m,n] += A[m,j] * B[j,n]", "Y[m,n] = X[m,n] + T[m,n]")
    e = [einsum(text, {"m": 8, "n": 8, "j": 8}) for text in texts]
    assert [x.output.tensor for x in accumulate_sums(e)] == ["Y"]
    assert accumulate_sums(e, frozenset({"T"})) == e
