"""From graphs to accesses: GOGETA's lists of conjugate gradients, which operations run as one pipeline, what
a pipeline holds, what is overwritten.
"""

from __future__ import annotations

import pytest

from dse.solve.gogeta.accesses import Access, access_list, one_by_one, pipelined_phases
from dse.solve.gogeta.classify import classify
from dse.solve.gogeta.operations import Graph, accessed_words, graph
from workloads import hpc
from workloads.einsum import WorkloadError, csr, einsum
from workloads.graph import Workload


def said(a: Access) -> str:
    """ "read A", "write S", "update RX", tensors by their first letter."""
    first = "".join(sorted(t[0] for t in (a.read or a.written)))
    return f"{'update' if a.read and a.written else 'read' if a.read else 'write'} {first}"


SEQ = [
    "read A",
    "read P",
    "write S",
    "read P",
    "read S",
    "read P",
    "update X",
    "read S",
    "update R",
    "read R",
    "read R",
    "read R",
    "update P",
]
GOGETA = ["read A", "read P", "write S", "read P", "read P", "read S", "update RX", "read R", "update P"]


@pytest.mark.parametrize("n", [1, 8, 16])
@pytest.mark.parametrize("matrix", hpc.MATRICES)
def test_conjugate_gradients(matrix: str, n: int) -> None:
    """As GOGETA has them: 15 and 12 tensors of M x N words per iteration, and the matrix."""
    unrolled = graph(hpc.cg(matrix=matrix, n=n, iterations=3))
    periodic = graph(hpc.cg(matrix=matrix, n=n, iterations=3, form="periodic"))
    for g in (unrolled, periodic):
        alone, joined = access_list(g, one_by_one(g)), access_list(g, pipelined_phases(g, classify(g), 2**18))
        assert [said(a) for a in alone.accesses] == 3 * SEQ
        assert [said(a) for a in joined.accesses] == 3 * GOGETA
        m = hpc.MATRICES[matrix]
        a, t = 2 * m.nnz + m.rows, m.rows * n
        assert alone.unbuffered_words() == 3 * (a + 15 * t)
        assert joined.unbuffered_words() == 3 * (a + 12 * t)
        assert joined.compulsory_words() == alone.compulsory_words() == a + 6 * t
        assert {t.partition("@")[0][0] for t in joined.outputs} == {"P", "X", "R"}
    once = access_list(unrolled, pipelined_phases(unrolled, classify(unrolled)), reads_once=True)
    assert [said(a) for a in once.accesses] == 3 * [x for i, x in enumerate(GOGETA) if i != 3]


def block(*texts: str, **extents: int) -> Graph:
    named = [einsum(text, extents) for text in texts]
    return Graph(tuple(named), frozenset({named[-1].output.tensor}))


MLP = block("H[r,f] += X[r,m] * U[m,f]", "Y[r,n] += H[r,f] * V[f,n]", r=4096, m=512, f=2048, n=512)


def test_a_pipeline_holds_the_weights_that_do_not_stream() -> None:
    """Row by row U and V stay whole, beside a row of H but for a word in a register; by columns of H what
    stays is X and Y, which every column adds to: U and V are less.
    """
    edges = classify(MLP)
    step = 2047
    v = 2 * 2048 * 512 + step
    assert [(p.stages, p.resident_words) for p in pipelined_phases(MLP, edges)] == [(((0,), (1,)), v)]
    assert [p.resident_words for p in pipelined_phases(MLP, edges, v)] == [v]
    assert [p.stages for p in pipelined_phases(MLP, edges, v - 1)] == [((0,),), ((1,),)]
    listed = access_list(MLP, pipelined_phases(MLP, edges, v))
    assert [said(a) for a in listed.accesses] == ["read X", "read U", "read V", "write Y"]
    assert all(a.resident_words == v - step for a in listed.accesses)


def test_a_group_has_no_way_out_and_back() -> None:
    """T -> X -> Y -> U -> V pipelines and T waits for V on the way, but V also waits for Z, which needs all
    of T by way of W: V is no part of T's pipeline.
    """
    texts = (
        "T[m,n] += A[m,k] * B[k,n]",
        "X[m,n] = f(T[m,n])",
        "Y[m,n] = f(X[m,n])",
        "U[m,n] = f(Y[m,n])",
        "W[q,n] += C[q,m] * T[m,n]",
        "Z[n] += W[q,n]",
        "V[m,n] = g(U[m,n], T[m,n], Z[n])",
    )
    g = block(*texts, m=512, n=64, k=64, q=1_000_000)
    edges = classify(g)
    assert {(e.source, e.target): e.pattern for e in edges}[0, 6] == "pipeline_with_hold"
    assert [phase.stages for phase in pipelined_phases(g, edges)] == [
        ((0,), (1,), (2,), (3,)),
        ((4,), (5,)),
        ((6,),),
    ]


def test_results_of_a_pipeline_leave_it_only_if_they_are_needed() -> None:
    g = block("Z[m,n] += A[m,k] * X[k,n]", "Y[m,o] += Z[m,n] * W[n,o]", m=4096, n=64, k=64, o=64)
    edges = classify(g)
    assert [said(a) for a in access_list(g, pipelined_phases(g, edges)).accesses] == [
        "read A",
        "read X",
        "read W",
        "write Y",
    ]
    kept = Graph(g.operations, frozenset({"Y", "Z"}))
    assert [said(a) for a in access_list(kept, pipelined_phases(kept, edges)).accesses] == [
        "read A",
        "read X",
        "write Z",
        "read W",
        "write Y",
    ]


def test_what_is_overwritten_is_read_for_the_last_time() -> None:
    """Y takes the place of T, not of X from outside; not where T is read again; not where its rows are
    others.
    """
    texts = ("T[m,n] = f(X[m,n])", "Y[m,n] = g(T[m,n])", "Z[m,n] = h(Y[m,n], X[m,n])")
    g = block(*texts, m=64, n=64)
    assert [said(a) for a in access_list(g, one_by_one(g)).accesses] == [
        "read X",
        "write T",
        "update T",
        "read X",
        "update Y",
    ]
    again = block(*texts[:2], "Z[m,n] = h(Y[m,n], T[m,n])", m=64, n=64)
    assert [said(a) for a in access_list(again, one_by_one(again)).accesses] == [
        "read X",
        "write T",
        "read T",
        "write Y",
        "read T",
        "update Y",
    ]
    twice = block(texts[0], "Y[m,n] = T[m,n] * T_again[m,n]", m=64, n=64)
    twice = graph(Workload("twice", twice.operations))  # one of its two reads is the update
    assert [said(a) for a in access_list(twice, one_by_one(twice)).accesses] == [
        "read X",
        "write T",
        "read T",
        "update T",
    ]
    turned = block(texts[0], "Y[m,n] = g(T[n,m])", m=64, n=64)
    assert [said(a) for a in access_list(turned, one_by_one(turned)).accesses] == [
        "read X",
        "write T",
        "read T",
        "write Y",
    ]


def test_small_results_stay_in_registers_weights_do_not() -> None:
    g = block("S[n,k] += X[m,n] * X2[m,k]", "Y[m,k] += Z[m,n] * S[n,k]", m=4096, n=32, k=32)
    assert [said(a) for a in access_list(g, one_by_one(g)).accesses] == [
        "read X",
        "read X",
        "read Z",
        "write Y",
    ]
    wide = block("S[n,k] += X[m,n] * X2[m,k]", "Y[m,k] += Z[m,n] * S[n,k]", m=4096, n=33, k=32)
    assert "write S" in [said(a) for a in access_list(wide, one_by_one(wide)).accesses]
    g = block("Y[m,k] += Z[m,n] * S[n,k]", m=4096, n=2, k=2)
    assert "read S" in [said(a) for a in access_list(g, one_by_one(g)).accesses]


def test_words_of_tensors() -> None:
    """CSR: value and column per nonzero, pointer per row; a table by the rows that are read; 8-bit weights on
    a machine of 32-bit words.
    """
    e = einsum(
        "Y[m,n] += A[m,k] * X[k,n]",
        {"m": 100, "n": 4, "k": 100},
        density={"A": 0.05},
        format={"A": "csr"},
        bits={"X": 8},
    )
    assert [accessed_words(p, e.sizes()) for p in e.tensors()] == [2 * 500 + 100, 400, 400]
    assert accessed_words(e.inputs[1], e.sizes(), 32) == 100
    assert accessed_words(e.inputs[0], e.sizes(), 32) == -(-(500 * (32 + 7) + 100 * 9) // 32)
    assert accessed_words(e.inputs[0], e.sizes(), 8) == -(-(500 * (8 + 7) + 100 * 9) // 8)
    wide = einsum("Y[m,n] += A[m,k] * X[k,n]", e.sizes(), **csr("A", 0.05, index_bits=32, pointer_bits=32))
    assert accessed_words(wide.inputs[0], e.sizes(), 32) == 2 * 500 + 100  # as published
    gather = einsum("Y[t,d] = copy(T[t,d], X[t])", {"t": 16, "d": 8}, sizes={"T": (5000, 8)})
    assert accessed_words(gather.inputs[0], gather.sizes()) == 16 * 8


def test_periods_chain_their_states() -> None:
    g = graph(hpc.cg(matrix="aft02", n=8, iterations=1000, form="periodic"), 3)
    assert (g.periods, g.operations_per_period) == (3, 8)
    assert g.operations[0].inputs[1].tensor == "P_0"
    assert [g.operations[8 * t].inputs[1].tensor for t in (1, 2)] == ["P_1@0", "P_1@1"]
    assert "X_1@2" in g.outputs
    assert "X_1@1" not in g.outputs
    assert graph(hpc.cg(matrix="aft02", n=8, iterations=7, form="periodic")).periods == 7


def test_other_repetitions_are_refused_in_one_line() -> None:
    loops = Workload("net", (einsum("Y[m] += A[m,k] * X[k]", {"m": 8, "k": 8}, "y"),), repeats=(3,))
    with pytest.raises(
        WorkloadError,
        match=r"^net: einsum y runs 3 times, .* write each run as an einsum of its own \(ONNX: unroll .*\)$",
    ):
        graph(loops)
