"""Training steps: gradients against numerical differentiation and an independent reverse mode over the texts;
lifetimes; updates.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from math import prod
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from tests.amount import amount, some
from tests.lifetimes import lifetimes, peak_elems
from tests.numeric import given, run
from workloads import catalog, cnn, gnn, text, training, transformer
from workloads.einsum import Einsum, Projection, WorkloadError, einsum, show, squeezed
from workloads.graph import Workload, contradictions, counts, in_order, unique, with_bits
from workloads.training import Gradient, gradients, roles

RESIDUAL = text.workload(
    {"b": 2, "m": 3, "n": 3, "k": 3, "j": 3},
    "H[b,n] += X[b,m] * W[m,n]",
    "A[b,n] = relu(H[b,n])",
    "S[b,n] = A[b,n] + X[b,n]",
    "T[b,n] = S[b,n] + A[b,n]",
    "Y[b,k] += T[b,n] * W[n,k]",
    "Z[b,k] = Y[b,k] + S[b,k]",
)
SIZES = {"c": 5, "p": 3, "d": 6}
JOINED = einsum("J[c,p] = copy(B[c,p], D[c-2,p])", SIZES, sizes={"B": (2, 3)})  # D fills the rows behind B
MOVED = (
    einsum("T[c,p] = A[p,c]", SIZES),
    JOINED,
    einsum("P[d,p] = T[d-1,p]", SIZES, sizes={"T": (5, 3)}),
    einsum("F[p] += J[2*w+1,p]", {"p": 3, "w": 2}, sizes={"J": (5, 3)}),
    einsum("Q[c,p] = T[c,p] * F[p]", SIZES),
    einsum("U[p] max= Q[c,p]", SIZES),
    einsum("V[d] += P[d,p]", SIZES),
)
CUSTOM = text.workload(
    {"b": 2, "n": 4},
    "Y[b,n] = hinge(X[b,n], B[n])",
    "S[b] += square(Y[b,n])",
    "L[b] = sqrt(S[b])",
    "N[b] = neg(L[b])",
)
# d_E twice into X
SHARED = text.workload(
    {"m": 3, "n": 2}, "A[m,n] = X[m,n] + B[n]", "C[m,n] = X[m,n] + D[m,n]", "E[m,n] = A[m,n] + C[m,n]"
)
TWICE = text.workload(
    {"m": 3, "j": 2, "n": 2, "k": 3}, "R[m,n] += A[m,k] * P[k,n]", "G[j,n] += R[m,j] * R_again[m,n]"
)
# K is row 0 of every b
TOKEN = (
    einsum(
        "J[b,t,m] = copy(K[t,m], U[b,t-1,m])", {"b": 2, "t": 3, "m": 2}, sizes={"K": (1, 2), "U": (2, 2, 2)}
    ),
)
RESHAPED = (
    einsum("H[b,c,p] += X[b,c,p+r] * W[r]", {"b": 2, "c": 2, "p": 3, "r": 2}),
    einsum("Y[b,n] += H[b,k] * V[k,n]", {"b": 2, "k": 6, "n": 2}),
    einsum("Z[i] = tanh(H[i])", {"i": 12}),
)
PARTIAL = (
    einsum("H[c,p] += X[c,p] * W[c]", {"c": 3, "p": 5}),  # 4 of 5 columns are read
    einsum("Y[c,p] += H[c,2*p+r] * V[r]", {"c": 3, "p": 2, "r": 2}, sizes={"H": (3, 5)}),
)
CASES: dict[str, tuple[Einsum, ...]] = {
    "residual": RESIDUAL.einsums,
    "moved": MOVED,
    "custom": CUSTOM.einsums,
    "shared": SHARED.einsums,
    "twice": TWICE.einsums,
    "reshaped": RESHAPED,
    "partial": PARTIAL,
    "token": TOKEN,
    "pool": cnn.pool(c=2, p=2, q=3, r=3, s=2, stride=2, pad=1),
    "overlapping": cnn.pool(c=1, p=3, q=3, r=3, s=3),
    "average": cnn.pool(c=2, p=2, q=2, r=2, s=2, kind="average"),
    "softmax": transformer.softmax(b=2, n=4),
    "layernorm": transformer.layernorm(b=2, n=3),
    "rmsnorm": transformer.rmsnorm(b=2, n=3),
    "attention": transformer.attention(heads=4, kv=2, q=2, context=3, d=2),
    "batchnorm": cnn.batchnorm(c=2, p=2, q=2),
    "batchnorm_training": cnn.batchnorm(c=2, p=2, q=2, n=2, phase="training"),
    "embedding": transformer.embedding(t=3, v=4, d=2),
    "depthwise": cnn.depthwise(c=2, p=2, q=2, r=3, s=2),
    "row_softmax": (einsum("Y[b,n] = softmax(X[b,n])", {"b": 2, "n": 4}),),
    "gcn": gnn.gcn(nodes=5, nnz=9, features=3, outputs=2, layers=2, hidden=4).einsums,
    "graphsage": gnn.graphsage(nodes=4, nnz=6, features=3, outputs=2).einsums,
    **{f: cnn.unary(n=5, function=f) for f in ("relu", "sigmoid", "tanh", "gelu", "silu", "exp")},  # type: ignore[arg-type]
    **{f: cnn.binary(n=3, rows=2, function=f) for f in ("add", "sub", "mul", "div", "max")},
}  # type: ignore[arg-type]


def all_trained(einsums: tuple[Einsum, ...]) -> Workload:
    """Everything that comes from outside is a weight, and dense, so that each gradient is read by an
    update."""

    def dense(p: Projection) -> Projection:
        return replace(p, format="dense", index_bits=0, pointer_bits=0)

    ordered = in_order("case", [replace(e, inputs=tuple(map(dense, e.inputs))) for e in einsums])
    made = {e.output.tensor for e in ordered}
    outside = {p.tensor for e in ordered for p in e.inputs} - made
    return Workload("case", ordered, frozenset(t for t in outside if not t.endswith("_again")))


def check(einsums: tuple[Einsum, ...], positive: bool = False) -> None:
    forward = all_trained(einsums)
    data = {t: np.abs(x) if positive else x for t, x in given(forward.einsums).items()}
    step = training.training(forward, "sgd")
    seeds = {t: x for t, x in given(step.einsums, 1).items() if t not in data}
    ends = {t: t.removeprefix("d_") for t in seeds}
    got = run(step.einsums, data | seeds)

    def loss(changed: dict[str, np.ndarray]) -> float:
        out = run(forward.einsums, changed)
        return sum(float((out[end].ravel() * seeds[t].ravel()).sum()) for t, end in ends.items())

    updates = {
        e.inputs[0].tensor: (e.inputs[1].tensor, e.output.tensor) for e in step.einsums if e.kind == "sgd"
    }
    assert updates
    assert set(updates) <= forward.weights
    for tensor, (gradient, new) in updates.items():
        expected, h = np.zeros(data[tensor].size), 1e-6
        for i in range(len(expected)):
            sides = []
            for sign in (1, -1):
                moved = data[tensor].copy()
                moved.ravel()[i] += sign * h
                sides.append(loss(data | {tensor: moved}))
            expected[i] = (sides[0] - sides[1]) / (2 * h)
        assert np.allclose(got[gradient].ravel(), expected, rtol=1e-5, atol=1e-6), (
            tensor,
            got[gradient].ravel(),
            expected,
        )
        assert np.allclose(got[new].ravel(), data[tensor].ravel() - 0.1 * got[gradient].ravel())


@pytest.mark.parametrize("name", CASES)
def test_gradients_equal_numerical_differentiation(name: str) -> None:
    check(CASES[name], positive=name.startswith("batchnorm") or name == "div")


def test_gradients_have_the_bits_of_what_they_are_of() -> None:
    """Sums of parts, and what the loss hands over, too; a csr weight is not trained."""
    texts = [
        "A[m,n] += X[m,k] * W[k,n]",
        "C[m,n] = relu(A[m,n])",
        "D[m,n] = A[m,n] + C[m,n]",
        "Q[m,n] += X[m,k] * W[k,n]",
    ]
    w = with_bits(
        text.workload({"m": 3, "n": 2, "k": 4}, *texts, weights=["W"]),
        {"A": 4, "C": 5, "D": 6, "X": 7, "W": 2},
    )
    step = training.training(w, "adam", inputs=True)
    bits = {p.tensor: p.bits for e in step.einsums for p in e.tensors()}
    assert not list(contradictions(step.einsums))
    assert (bits["d_A"], bits["d_D"], bits["d_X"], bits["d_W"], bits["W_new"]) == (4, 6, 7, 2, 2)
    sparse = Workload(
        "net",
        (einsum(texts[0], {"m": 3, "n": 2, "k": 4}, density={"W": 0.5}, format={"W": "csr"}),),
        frozenset("W"),
    )
    with pytest.raises(
        WorkloadError,
        match="net: weight W is csr, and its update writes all elements; leave format out to train it",
    ):
        training.training(sparse)


small = st.integers(1, 3)


@settings(max_examples=amount(25, 8), deadline=None)
@drawn(
    small,
    small,
    st.integers(1, 2),
    st.lists(st.tuples(small, small), min_size=1, max_size=2),
    small,
    st.integers(1, 2),
    st.integers(0, 1),
)
def test_convolutions(
    k: int, c: int, groups: int, spatial: list, stride: int, dilation: int, pad: int
) -> None:
    pad = pad if min((p - 1) * stride + (r - 1) * dilation for p, r in spatial) >= 2 * pad else 0
    sizes = {
        name: size
        for letters, at in (("pq", 0), ("rs", 1))
        for name, size in zip(letters, [w[at] for w in spatial], strict=False)
    }
    make = {1: cnn.conv1d, 2: cnn.conv}[len(spatial)]
    cascade = make(
        k=k * groups, c=c * groups, stride=stride, dilation=dilation, groups=groups, pad=pad, **sizes
    )  # type: ignore[operator]
    check(cascade)
    check(tuple(squeezed(e) for e in cascade))


@settings(max_examples=amount(15, 8), deadline=None)
@drawn(small, small, st.integers(1, 2), small, small, small, st.integers(0, 1))
def test_transposed_convolutions(k: int, c: int, p: int, r: int, q: int, stride: int, pad: int) -> None:
    pad = pad if min((p - 1) * stride + r, (q - 1) * stride + 2) > 2 * pad else 0
    check(cnn.conv_transpose(k=k, c=c, p=p, q=q, r=r, s=2, stride=stride, pad=pad))


def test_a_third_dimension() -> None:
    check(cnn.conv3d(k=2, c=1, p=2, q=1, o=2, r=2, s=1, t=2, stride=2, pad=0))


# An independent reverse mode, over the printed texts: which operand of which product needs a gradient, of
# which shape, by how many MACs


ACCESS = re.compile(r"(\w+)\[([^\]]*)\]")


def expected_products(w: Workload) -> Counter[tuple[str, str, tuple[int, ...], int]]:
    """(einsum, operand, shape of its gradient, MACs), by reachability in the graph of tensors."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    for e in w.einsums:
        tensors = [tensor for tensor, _ in ACCESS.findall(show(e))]
        graph.add_edges_from((t, tensors[0]) for t in tensors[1:])
    read = {t for t, _ in graph.edges}
    results = {t for t in graph if graph.in_degree(t) and t not in read}
    results = {
        t for t in results if next(e for e in w.einsums if e.output.tensor == t).kind != "copy"
    } or results
    behind = set(w.weights) & set(graph)
    behind |= {t for weight in set(behind) for t in nx.descendants(graph, weight)}
    ahead = results | {t for end in results for t in nx.ancestors(graph, end)}
    found: Counter[tuple[str, str, tuple[int, ...], int]] = Counter()
    for e in (e for e in w.einsums if e.kind == "mac" and e.output.tensor in ahead):
        shapes = {p.tensor: tuple(d.size for d in p.dims) for p in e.inputs}
        for tensor, _ in ACCESS.findall(show(e))[1:]:
            if tensor in behind:
                found[e.name, tensor, shapes[tensor], prod(e.sizes().values())] += 1
    return found


NETS = [
    "vit_b",
    "light_resnet50",
    "light_squeezenet",
    "densenet121",
    "shufflenet",
    "light_bvlc_alexnet",
    "inception_v2",
    "mlp_m:batch=64",
    "vgg16",
    "bert_tiny",
    "lstm:sequence=3",
    "unet",
    "mobilenet_v2",
    "resnet3d18",
    "gpt2:context=32,layers=2",
    "googlenet",
    "llama7b:context=64,layers=2",
    "mamba_block:sequence=16",
]


@pytest.mark.parametrize("net", some(NETS, 2, 7, 9, 10, 11, 13, 14, 17))
def test_products_equal_an_independent_reverse_mode(net: str) -> None:
    stem, _, tail = net.partition(":")
    w = (
        catalog.NETWORKS[stem](**{k: int(v) for k, v in (p.split("=") for p in tail.split(",") if p)})
        if stem in catalog.NETWORKS
        else catalog.load(net)
    )
    found = gradients(w)
    by_name = {e.name: e for e in w.einsums}
    products = [g for g in found if g.forward_name and by_name[g.forward_name].kind == "mac"]
    shapes = Counter(
        (g.forward_name, g.wrt, tuple(d.size for d in g.einsum.output.dims), g.einsum.macs())
        for g in products
    )
    assert shapes == expected_products(w)
    assert shapes
    assert all(g.role == ("weight_gradient" if g.wrt in w.weights else "input_gradient") for g in products)
    step = training.training(w)
    assert in_order("step", step.einsums) == step.einsums
    assert len({e.name for e in step.einsums}) == len(step.einsums)
    sizes = {p.tensor: p.stored_elems() for e in reversed(w.einsums) for p in e.inputs}
    updates = [g.einsum.inputs[0] for g in found if g.role == "update"]
    assert len(updates) == len({p.tensor for p in updates})
    assert all(p.stored_elems() == sizes[p.tensor] for p in updates)
    made = {e.output.tensor: e.output.stored_elems() for e in step.einsums}
    assert all(p.stored_elems() == made[p.tensor] for e in step.einsums for p in e.inputs if p.tensor in made)
    for e in step.einsums:
        facts = {p.tensor: p for p in e.tensors()}
        again = einsum(
            show(e), e.sizes(), e.name, sizes={t: tuple(d.size for d in p.dims) for t, p in facts.items()}
        )
        assert again == e


def test_a_chain_trains_with_three_times_the_macs_but_for_its_first_layer() -> None:
    w = catalog.load("train:net=mlp_m,batch=64")
    forward = catalog.load("mlp_m:batch=64")
    assert w.macs() == 3 * forward.macs() - 64 * 784 * 1000
    assert w.parameters == forward.parameters
    assert catalog.load("train:net=mlp_m,batch=64,inputs=yes").macs() == 3 * forward.macs()


def test_windows_become_scattered_writes() -> None:
    w = Workload("conv", cnn.conv1d(k=2, c=2, p=3, r=3, stride=2, pad=1), frozenset({"W"}))
    texts = [show(g.einsum) for g in gradients(w, "none", inputs=True)]
    assert texts == [
        "d_I[n,g,c,2*p+r-1] += d_O[n,g,k,p] * W[g,k,c,r]",
        "d_W[g,k,c,r] += d_O[n,g,k,p] * I[n,g,c,2*p+r-1]",
    ]


def test_roles_of_kapla() -> None:
    w = Workload("conv", cnn.conv(k=2, c=2, p=3, q=3, r=3, s=3), frozenset({"W"}))
    first, second, update = gradients(w, inputs=True)
    assert (first.role, roles(first)) == ("input_gradient", {"FIL": "W", "IFM": "d_O", "OFM": "d_I"})
    assert (second.role, roles(second)) == ("weight_gradient", {"FIL": "d_W", "IFM": "I", "OFM": "d_O"})
    assert (update.role, roles(update)) == ("update", {})
    assert (first.einsum.name, second.einsum.name) == ("conv_H_I", "conv_W_W")


@pytest.mark.parametrize(("method", "moved"), [("none", 0), ("sgd", 3), ("momentum", 6), ("adam", 10)])
def test_every_weight_is_updated_once(method: training.Method, moved: int) -> None:
    w = catalog.NETWORKS["mlp_s"]()
    step = training.training(w, method)
    updates: list[Gradient] = [g for g in gradients(w, method) if g.role == "update"]
    words = sum(p.stored_elems() for g in updates for p in g.einsum.tensors())
    assert words == moved * w.parameters
    assert step.parameters == w.parameters
    state = {"none": 0, "sgd": 0, "momentum": 1, "adam": 2}[method]
    assert len(step.weights) == (1 + state) * len(w.weights)


def alive_at(w: Workload, at: int) -> int:
    """Elements that einsum `at` finds or leaves alive, from first principles."""
    sizes = {p.tensor: p.stored_elems() for e in w.einsums for p in e.tensors()} | {
        e.output.tensor: e.output.stored_elems() for e in w.einsums
    }
    made = {e.output.tensor: i for i, e in enumerate(w.einsums)}
    read: dict[str, list[int]] = {}
    for i, e in enumerate(w.einsums):
        for p in e.inputs:
            read.setdefault(p.tensor, []).append(i)
    counted = [t for t in sizes if t not in w.weights and not t.endswith("_new")]  # an update writes in place
    return sum(
        sizes[t] for t in counted if made.get(t, -1) <= at <= (max(read[t]) if t in read else len(w.einsums))
    )


@pytest.mark.parametrize("net", ["squeezenet", "bert_tiny", "mlp_s:batch=8"])
def test_activations_live_until_their_use(net: str) -> None:
    w = catalog.load(f"train:net={net.replace(':', ',')}")
    forward = catalog.load(net)
    assert peak_elems(w) == max(alive_at(w, i) for i in range(len(w.einsums))) > peak_elems(forward)
    lives, made = {x.tensor: x for x in lifetimes(w)}, {e.output.tensor: i for i, e in enumerate(w.einsums)}
    for e in w.einsums:
        assert all(lives[p.tensor].born < made[e.output.tensor] <= lives[p.tensor].dies for p in e.inputs)
    assert all(
        x.dies == len(w.einsums) or any(p.tensor == x.tensor for p in w.einsums[x.dies].inputs)
        for x in lives.values()
    )


def test_a_repeated_block_keeps_the_activations_of_every_repetition() -> None:
    block = text.workload(
        {"b": 4, "m": 8, "n": 8}, "H[b,n] += X[b,m] * W[m,n]", "Y[b,n] = relu(H[b,n])", weights=["W"]
    )
    w = replace(block, repeats=(6, 6))
    step = training.training(w)
    assert counts(step) == (6,) * len(step.einsums)
    assert step.macs() == 2 * w.macs()
    lives = {x.tensor: x.elems for x in lifetimes(step, 2)}
    assert lives["Y"] == 6 * 32
    assert lives["W"] == 6 * 64
    assert lives["d_H"] == 32
    assert lives["H"] == 32
    assert lives["d_W"] == 64
    assert len(unique(step)) == len(step.einsums)


def test_results_may_be_named() -> None:
    w = text.workload(
        {"m": 3, "n": 3, "k": 2},
        "H[m,n] += X[m,k] * W[k,n]",
        "Y[m,n] = tanh(H[m,n])",
        "Q[m,n] = relu(H[m,n])",
        weights=["W"],
    )
    assert [g.einsum.kind for g in gradients(w, results=["Q"])] == ["relu_grad", "mac", "sgd"]
    assert [g.role for g in gradients(w)] == [
        "input_gradient",
        "input_gradient",
        "sum",
        "weight_gradient",
        "update",
    ]
    with pytest.raises(
        WorkloadError, match="results: no einsum makes Z; tensors that nothing reads are Y, Q"
    ):
        gradients(w, results=["Z"])


def test_what_has_no_gradient() -> None:
    (embedding,) = transformer.embedding(t=3, v=4, d=2)
    assert {g.wrt for g in gradients(Workload("e", (embedding,), frozenset({"T"})), inputs=True)} == {"T"}
    steps = text.workload({"m": 4}, "Y[m] = floor(W[m])", weights=["W"])
    with pytest.raises(
        WorkloadError,
        match=r": Y \(floor\) has no gradient, and every way from a weight to a result leads through such",
    ):
        training.training(steps)
    lost = text.workload({"m": 4, "n": 3}, "Y[m] += A[m,n] + B[m]", weights=["B"])
    with pytest.raises(WorkloadError, match="Y: sums B over rank n, which it does not have"):
        training.training(lost)


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("train:batch=2", "parameter net is missing"),
        ("train:net=resnet50,bath=2", "no parameter is named bath; do you mean batch?"),
        ("train:net=resnet50,optimizer=adm", "optimizer = adm must be none or sgd or momentum or adam"),
        ("train:net=nope", "no workload is named nope"),
        ("train:net=softmax,b=2,n=2", "nothing to train"),
        ("train:net=mlp_s,inputs=maybe", "inputs = maybe must be no or yes"),
    ],
)
def test_faults_are_one_line(source: str, fault: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        catalog.load(source)
    assert fault in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("last", "fault"),
    [
        (
            "Y[m] = argmax(H[m,n])",
            "Y (argmax) has no gradient, and every way from a weight to a result leads through such "
            "operators, so there is nothing to train; leave it out",
        ),
        (
            "Y[m] += H[m,n] + W2[m]",
            "Y: sums W2 over rank n, which it does not have; leave that sum out to train it",
        ),
    ],
)
def test_operators_without_gradient_are_named_with_their_file(last: str, fault: str, tmp_path: Path) -> None:
    net = tmp_path / "net.yaml"
    net.write_text(
        f'extents: {{m: 8, k: 4, n: 6}}\neinsums: ["H[m,n] += X[m,k] * W[k,n]", "{last}"]\nweights: '
        f"[W{', W2' * ('W2' in last)}]\n"
    )
    with pytest.raises(WorkloadError) as caught:
        catalog.load(f"train:net={net}")
    assert str(caught.value) == f"{net}: {fault}"
