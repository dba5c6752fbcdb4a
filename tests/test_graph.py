"""Workloads: order, equal einsums, faults; the einsum YAML file."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dse.frontend import check
from workloads import catalog
from workloads.einsum import WorkloadError, compulsory_elems, einsum
from workloads.graph import Workload, counts, dag, fuse_into_producers, in_order, unique, warnings, with_bits
from workloads.text import load, workload

FFN = workload(
    {"b": 2, "m": 8, "d": 16, "f": 32, "g": 16},
    "H[b,m,f] += X[b,m,d] * W1[d,f]",
    "A[b,m,f] = gelu(H[b,m,f])",
    "Y[b,m,g] += A[b,m,f] * W2[f,g]",
    name="ffn",
    weights=["W1", "W2"],
)


def test_workload_from_texts() -> None:
    assert [e.name for e in FFN.einsums] == ["H", "A", "Y"]
    assert list(dag(FFN.einsums).edges) == [("H", "A"), ("A", "Y")]
    assert FFN.macs() == 2 * 2 * 8 * 16 * 32
    assert FFN.parameters == 2 * 16 * 32
    assert FFN.weights == {"W1", "W2"}
    assert pickle.loads(pickle.dumps(FFN)) == FFN


@given(st.permutations(range(6)))
def test_order_follows_the_tensors(order: list[int]) -> None:
    chain = [einsum(f"T{i + 1}[m] = f(T{i}[m])", {"m": 4}) for i in range(6)]
    assert [e.name for e in in_order("chain", [chain[i] for i in order])] == [f"T{i + 1}" for i in range(6)]


def test_a_second_access_depends_on_the_maker_of_its_tensor() -> None:
    """The gradient of one operand of a square reads the other one alone."""
    e = {"m": 4, "j": 4, "n": 4}
    gram, grad, other = (
        einsum(text, e)
        for text in (
            "G[j,n] += R[m,j] * R_again[m,n]",
            "D[m,j] += d_G[j,n] * R_again_1[m,n]",
            "Q[m,n] = f(T_again[m,n])",
        )
    )
    source = einsum("R[m,n] = f(X[m,n])", e)
    assert set(dag([source, gram, grad, other]).edges) == {("R", "G"), ("R", "D")}  # nothing makes T
    assert {t for _, _, t in dag([source, gram, grad]).edges.data("tensor")} == {"R"}
    assert [x.name for x in in_order("net", [grad, gram, source])] == ["R", "D", "G"]
    apart = einsum("R_again[m,n] = f(Z[m,n])", e)  # a tensor of its own
    assert set(dag([source, apart, gram]).edges) == {("R", "G"), ("R_again", "G")}


def test_a_second_access_rides_with_its_tensor() -> None:
    net = workload(
        {"m": 4, "k": 4, "j": 4, "n": 4},
        "C[m,n] += A[m,k] * W[k,n]",
        "D[m,n] = relu(C[m,n])",
        "G[j,n] += D[m,j] * D_again[m,n]",
        weights=["W"],
    )
    ridden = fuse_into_producers(net)
    assert ridden.fused == ("relu D -> C",)
    assert [p.tensor for p in ridden.einsums[1].inputs] == ["C", "C_again"]
    assert list(dag(ridden.einsums).edges) == [("C", "G")]


LARGE = {"m": 4, "k": 3, "n": 5}
FUSED = [  # what stands behind C[m,n] += A[m,k] * W[k,n], weights, is it fused into that product
    ("D[m,n] = gelu(C[m,n])", "", True),
    ("D[m,n] = C[m,n] + B[n]", "B", True),
    ("D[m,n] = B[n] * C[m,n]", "B", True),
    ("D[m,n] = bias(C[m,n], B[n])", "B", True),
    ("D[m,n] = clip(C[m,n])", "", True),
    ("D[m,n] = C[m,n] + B[]", "B", True),
    ("D[m,n] = C[m,n] + B[m,n]", "B", False),  # as large as what it is added to: it is read
    ("D[m,n] = C[m,n] + B[n]", "", False),
    ("D[n,m] = relu(C[m,n])", "", False),
    ("D[m,n] = softmax(C[m,n])", "", False),
    ("D[m] = sqrt(C[m,n])", "", False),
    ("D[m,n] = relu(C[m,0])", "", False),
    ("D[m,n] += C[m,n] * B[n]", "B", False),
    ("D[m,n] = C[m,n]", "", False),
    ("D[m,n] = my_own(C[m,n])", "", False),
]


@pytest.mark.parametrize(("text", "weights", "fused"), FUSED)
def test_what_is_fused_into_its_producer(text: str, weights: str, fused: bool) -> None:
    """One operand varies, element by element, and the others are weights smaller than the result."""
    after, own = (["E[m,k] += D[m,n] * V[n,k]"], ["V"]) if text.startswith("D[m,n]") else ([], [])
    w = fuse_into_producers(
        workload(LARGE, "C[m,n] += A[m,k] * W[k,n]", text, *after, weights=["W", *own, *weights])
    )
    assert len(w.fused) == int(fused)
    assert ("B" in w.weights) == (not fused and weights == "B")
    if fused:
        assert [e.inputs[0].tensor for e in w.einsums] == ["A", "C"]
        assert w.stored_as == (("D", "C"),)


def test_a_vector_is_fused_into_a_product_alone() -> None:
    """Behind anything else it may be as large as all that moves."""
    for first, fused in (("C[n] += A[k] * W[k,n]", True), ("C[n] max= A[k,n]", False)):
        w = fuse_into_producers(
            workload(
                {"k": 3, "n": 5}, first, "D[n] = C[n] + B[n]", weights=["B", *(["W"] if "W" in first else [])]
            )
        )
        assert len(w.fused) == int(fused)


def test_a_fused_result_is_stored_as_it_says() -> None:
    """In its bits and density, under its producer's name; either name may be given bits. Where its operand is
    read twice, runs more often or is carried on, it stands alone.
    """
    e = {"m": 4, "k": 3, "n": 5}
    product, reader = einsum("C[m,n] += A[m,k] * W[k,n]", e), einsum("E[m,n] = f(D[m,n])", e)
    act = einsum("D[m,n] = relu(C[m,n])", e, bits={"D": 4}, density={"D": 0.5})
    w = fuse_into_producers(Workload("net", (product, act, reader), frozenset("W")))
    assert [x.name for x in w.einsums] == ["C", "E"]
    assert (w.einsums[0].output.bits, w.einsums[0].output.density) == (4, 0.5)
    assert [with_bits(w, {name: 2}).einsums[0].output.bits for name in "CD"] == [2, 2]
    both = einsum("E[m,n] = f(C[m,n], D[m,n])", e)
    apart = [
        fuse_into_producers(Workload("net", (product, act, both))),
        fuse_into_producers(Workload("net", (product, act), repeats=(1, 3))),
        fuse_into_producers(Workload("net", (product, act), loop_state=(("C", "A"),))),
        fuse_into_producers(Workload("net", (product, act)), results=["C"]),
    ]
    assert [len(x.fused) for x in apart] == [0] * 4
    assert fuse_into_producers(
        Workload("net", (product, act), repeats=(3, 3), loop_state=(("D", "A"),))
    ).loop_state == (("C", "A"),)


def test_equal_einsums_are_counted_once() -> None:
    w = workload(
        {"m": 4, "k": 4, "n": 4, "z": 5},
        "B[m,n] += A[m,k] * V[k,n]",
        "C[z,n] += B2[z,k] * W[k,n]",
        "D[m,k] += B[m,n] * X[n,k]",
    )
    assert [(u.names, u.occurrences) for u in unique(w)] == [(("B", "D"), 2), (("C",), 1)]


def test_faults_of_the_graph() -> None:
    m = {"m": 2}
    with pytest.raises(WorkloadError) as caught:
        workload(m, "B[m] = f(A[m])", "B[m] = g(A[m])", "C[m] = f(A[m])", "C[m] = g(A[m])", name="net")
    assert str(caught.value).split("\n") == [
        f"net: tensor {t} is made by {t} and by {t}; make each tensor once" for t in "BC"
    ]
    with pytest.raises(
        WorkloadError,
        match=r"^net: einsums form a cycle: (B -> A|A -> B); a tensor must be made before it is read, and",
    ):
        workload(m, "B[m] = f(A[m])", "A[m] = f(B[m])", name="net")
    with pytest.raises(
        WorkloadError, match=r"^net: weights: B is made by an einsum, so it is no weight; drop it$"
    ):
        workload(m, "B[m] = f(A[m])", name="net", weights=["B"])


GOOD = """
name: ffn
extents: {b: 2, m: 8, d: 16, f: 32}
einsums:
  - "H[b,m,f] += X[b,m,d] * W1[d,f]"
  - {text: "P[b,m,f] += H[b,m+r-1,f] * K[r]", name: smooth, repeat: 3, extents: {r: 3}}
  - {text: "Y[b,m,d] += P[b,m,f] * W2[f,d]", bits: {W2: 4}, density: {W2: 0.5}, extents: {d: 4}}
weights: [W1, W2, K]
"""


def test_file(tmp_path: Path) -> None:
    path = tmp_path / "ffn.yaml"
    path.write_text(GOOD)
    w = load(path)
    assert w.name == "ffn"
    assert [e.name for e in w.einsums] == ["H", "smooth", "Y"]
    assert counts(w) == (1, 3, 1)
    assert w.macs() == 2 * 8 * 16 * 32 + 3 * 2 * 8 * 32 * 3 + 2 * 8 * 32 * 4 // 2  # half of W2 is zero
    assert w.parameters == 16 * 32 + 3 * 3 + 32 * 4
    smooth, last = w.einsums[1:]
    # the border is padding: H stores 8 rows
    assert compulsory_elems(smooth.inputs[0], smooth.sizes()) == 2 * 8 * 32
    assert (last.inputs[1].bits, last.inputs[1].density) == (4, 0.5)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("extents: {m: 4}\neinsums: ['B[m] = A[m]']\nnam: x", ["nam is no key here; do you mean name?"]),
        (
            "extents: {m: -4, n: two}\neinsums: ['B[m] = A[m]', {txt: 'C[m] = B[m]', repeat: 0}, 7, "
            "'D[m = B[m]']",
            [
                "extents.m = -4: input should be greater than or equal to 1",
                "extents.n = 'two' must be a whole number; write e.g. 16",
                "einsums[1].text is missing; add it",
                "einsums[1].repeat = 0: input should be greater than or equal to 1",
                "einsums[1].txt is no key here; do you mean text?",
                "einsums[2] = 7 must be an einsum text, or keys with text among them",
                'einsums[3]: einsum "D[m = B[m]": the left side of "=" must be one output, Name[ranks]',
            ],
        ),
        (
            "extents: {m: 4}\neinsums: ['B[m] = A[z]', 'C[m] A[m]']\nweights: [Q]",
            [
                'einsums[0]: einsum "B[m] = A[z]": rank z of tensor A has no extent; known: m',
                'einsums[1]: einsum "C[m] A[m]": no "=", "+=" or "max="; write e.g. "C[m,n] += '
                'A[m,k] * B[k,n]"',
            ],
        ),
        (
            "extents: {m: 4}\neinsums: ['B[m] = Abc[m]']\nweights: [Abd, B]",
            [
                "weights: Abd is read by no einsum; do you mean Abc?",
                "weights: B is made by an einsum, so it is no weight; drop it",
            ],
        ),
        (
            "extents: {1: 4, m: 99999999999999999999}\neinsums: ['B[m] = f(A[m])']",
            [
                "key 1 of extents must be a name, not a number; give the rank a letter",
                "extents.m = 99999999999999999999: input should be less than or equal to 9007199254740992",
            ],
        ),
        ("extents: {m: 4}\neinsums: []", ["einsums is empty; give at least one"]),
        ("einsums: ['B[m] = A[m]']", ["extents is missing; add it"]),
    ],
)
def test_faults_of_the_file_all_at_once(tmp_path: Path, text: str, lines: list[str]) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(WorkloadError) as caught:
        load(path)
    assert str(caught.value).replace(f"{path}: ", "").split("\n") == lines
    assert all(line.startswith(f"{path}: ") for line in str(caught.value).split("\n"))


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"a: [1", "line 2: no YAML"),
        (b"- 1", "must hold keys"),
        (b"\xff\xfe\x00", "not UTF-8 text"),
        (b"extents: {m: 4, m: 5}\neinsums: []", "line 1: key m stands twice; keep one"),
        (b"[" * 3000, "nested deeper than 40"),
        (b"extents: {m: 2020-99-99}\neinsums: []", "no YAML"),
        (b"extents: !!python/name:os.system", "no YAML"),
    ],
)
def test_what_is_no_workload_file(tmp_path: Path, content: bytes, fault: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_bytes(content)
    with pytest.raises(WorkloadError, match=fault) as caught:
        load(path)
    assert "\n" not in str(caught.value)
    with pytest.raises(WorkloadError, match=r"cannot be read \(No such file"):
        load(tmp_path / "absent.yaml")


# Borders that nobody told

WINDOW = {"k": 4, "h": 28, "w": 28, "r": 3, "s": 3, "p": 112, "t": 7}


def test_extents_may_be_given_beside_the_file(tmp_path: Path) -> None:
    path = tmp_path / "ffn.yaml"
    path.write_text(
        "extents: {m: 8, d: 6, f: 10}\neinsums: ['H[m,f] += X[m,d] * W[d,f]', 'A[m,f] = relu(H[m,f])']"
    )
    found = catalog.load(f"{path}:m=3,f=5")
    assert (found.name, found.macs()) == ("ffn:m=3,f=5", 3 * 6 * 5)
    assert catalog.load(str(path)).macs() == 8 * 6 * 10
    for asked, fault in (
        ("k=2", "no parameter is named k; parameters are form, iterations, m, d, f"),
        ("m=0", "extents.m = 0: input should be greater than or equal to 1"),
        ("m=2,form=unrolled", "form and iterations are of loops"),
    ):
        with pytest.raises(WorkloadError, match=fault):
            catalog.load(f"{path}:{asked}")


def lines(extents: dict[str, int], *texts: str) -> list[str]:
    """Warnings without the place of their einsum."""
    return [line.partition("]: ")[2] for line in warnings(workload(extents, *texts))]


def test_a_border_that_nobody_told_is_a_warning() -> None:
    """All that the indices reach from 0 on, against the size that they leave on both sides alike; a stride
    may leave less at the end.
    """
    assert lines(WINDOW, "O[k,h,w] += I[h+r-1,w+s-1] * W[k,r,s]") == [
        "I[h+r-1,w+s-1] is stored as 29 x 29; with equal padding on both sides it is 28 x 28; say which with "
        "sizes: {I: [28, 28]}, or [29, 29] to keep it"
    ]
    assert lines(WINDOW, "O[k,p] += I[2*p+t-3] * W[k,t]") == [
        "I[2*p+t-3] is stored as 226; with equal padding on both sides it is 223 to 224; say which with "
        "sizes: {I: [224]}, or [226] to keep it"
    ]
    assert lines(WINDOW, "O[2*h+r-1] += I[h] * W[r]")[0].startswith(
        "O[2*h+r-1] is stored as 56; with equal padding on both sides it is 55; "
    )
    assert lines(WINDOW, "O[k,h] += I[h+r] * W[k,r]") == lines(WINDOW, "O[h] = I[h+4]") == []


def test_a_size_that_is_told_or_made_is_no_warning(tmp_path: Path) -> None:
    """Of an einsum before, or in the file; but indices that leave it at the end more than at the start
    are."""
    for index in ("h+r-1", "h+r-2"):  # on both sides, or all at the start (causal)
        assert lines(WINDOW, "A[h] = f(X[h])", f"O[h] += A[{index}] * W[r]") == []
    assert lines(WINDOW, "A[h] = f(X[h])", "O[h] += A[h+r] * W[r]") == [
        "A[h+r] is stored as 28; with equal padding on both sides it is 30; say which with sizes: {A: "
        "[30]} where it is made, or [28] here to keep it"
    ]
    (tmp_path / "w.yaml").write_text(
        'extents: {h: 28, r: 3}\neinsums: [{text: "O[h] += I[h+r-1] * W[r]", sizes: {I: [29]}}]\n'
    )
    assert load(tmp_path / "w.yaml").warnings == ()
    (tmp_path / "v.yaml").write_text('extents: {h: 28, r: 3}\neinsums: ["O[h] += I[h+r-1] * W[r]"]\n')
    assert "\nwarning: " in check.file(str(tmp_path / "v.yaml"))[0]
    assert "warning" not in check.file(str(tmp_path / "w.yaml"))[0]
    (tmp_path / "u.yaml").write_text(
        'extents: {h: 28, r: 3}\neinsums: [{text: "A[h] = f(X[h])", sizes: {A: [30]}}, "O[h] += '
        'A[h+r] * W[r]"]\n'
    )
    assert load(tmp_path / "u.yaml").warnings == ()
    many = workload(WINDOW, *(f"O{i}[h] += I{i}[h+r-1] * W{i}[r]" for i in range(9)), name="net")
    assert len(many.warnings) == 9
    assert len(warnings(many)) == 6
    assert warnings(many)[-1] == "net: 4 more warnings of this kind"


def test_a_misspelt_intermediate_is_a_warning() -> None:
    """An input that is spelt nearly like a result that nothing reads; but no result that follows from the
    input, none of another size, no weight and no state of a loop.
    """
    sizes = {"m": 8, "n": 6, "d": 4}
    scores = "S[m,n] += Q[m,d] * K[n,d]"
    assert warnings(workload(sizes, scores, "P[m,n] = softmax(S1[m,n])", name="net")) == [
        "net: P reads S1, which no einsum writes, so it is an input; S is written, but never read: do you "
        "mean S?"
    ]
    assert not warnings(workload(sizes, scores, "P[m,n] = softmax(S[m,n])"))
    assert not warnings(workload(sizes, "S1[m,n] = relu(S[m,n])", "S2[m,n] = relu(S1[m,n])"))
    assert not warnings(workload(sizes, scores, "P[n] = relu(S1[n])"))
    assert not warnings(workload(sizes, scores, "P[m,n] = relu(S1[m,n])", weights=["S1"]))
    loop = {"loop_state": {"S1": "S"}, "iterations": 3}
    assert not warnings(workload(sizes, scores, "P[m,n] = relu(S1[m,n])", **loop))  # type: ignore[arg-type]


# A tensor stands in memory once

CSR = "density: {A: 0.5}, format: {A: csr}"
STORED = {
    "bits": (
        "bits: {A: 8}",
        "bits: {A: 16}",
        "tensor A has bits = 8 in P, and has bits = 16 in Q; give both the same bits",
    ),
    "unsaid": (
        "",
        "bits: {A: 4}",
        "tensor A has bits = the machine word in P, and has bits = 4 in Q; say bits: {A: 4} in both",
    ),
    "format": (
        "",
        CSR,
        "tensor A has format = dense in P, and has format = csr in Q; a tensor is stored in one format",
    ),
    "density": (
        CSR,
        CSR.replace("0.5", "0.6"),
        "tensor A has density = 0.5 in P, and has density = 0.6 in Q; give both the same density",
    ),
    "index": (
        CSR,
        f"{CSR}, index_bits: {{A: 9}}",
        "tensor A has index_bits = 2 in P, and has index_bits = 9 in Q; give both",
    ),
    "pointer": (
        CSR,
        f"{CSR}, pointer_bits: {{A: 9}}",
        "tensor A has pointer_bits = 4 in P, and has pointer_bits = 9 in Q",
    ),
}


@pytest.mark.parametrize("name", STORED)
def test_a_tensor_is_stored_in_one_way(name: str, tmp_path: Path) -> None:
    first, second, line = STORED[name]
    path = tmp_path / "w.yaml"
    path.write_text(
        f'extents: {{m: 4, k: 4}}\neinsums: [{{text: "P[m] += A[m,k] * X[k]", {first}}}, {{text: '
        f'"Q[m] += A[m,k] * X[k]", {second}}}]'
    )
    with pytest.raises(WorkloadError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}: {line}")
    assert "\n" not in str(caught.value)


def test_how_a_maker_stores_it_holds_for_its_readers() -> None:
    """Also under `T_again`, and in bits that a study gives; of a dense tensor a reader may say its own share
    of nonzeros.
    """
    e = {"m": 4, "k": 4}
    maker = einsum("T[m,k] = f(A[m,k])", e, bits={"T": 8})
    wide, packed = (
        einsum("Y[m] += T[m,k] * T_again[k,m]", e, **how)
        for how in (
            {"bits": {"T": 8, "T_again": 16}},
            {"bits": {"T": 8, "T_again": 8}, "density": {"T": 0.5}, "format": {"T": "csr"}},
        )
    )
    for reader, line in ((wide, "T_again has bits = 16 in Y"), (packed, "T has format = csr in Y")):
        with pytest.raises(WorkloadError) as caught:
            in_order("net", [reader, maker])
        assert str(caught.value).startswith("net: tensor T")
        assert line.split(" ", 1)[1] in str(caught.value)
    gated = einsum("Y[m] += T[m,k] * T_again[k,m]", e, bits={"T": 8, "T_again": 8}, density={"T": 0.5})
    assert in_order("net", [gated, maker]) == (maker, gated)
    with pytest.raises(
        WorkloadError, match="net: bits: tensor T_again has bits = 8 in T, and has bits = 2 in Y"
    ):
        with_bits(Workload("net", (maker, gated)), {"T_again": 2})


# Makers and readers of a tensor in a file

SIZES = "extents: {h: 2, m: 4, n: 8, k: 6, p: 3}\neinsums: ["
APART = {
    "more dimensions": (
        '"A[m] = f(X[m])", "C[m,n] += A[m,k] * B[k,n]"',
        "A[m,k] as 4 x 6, but einsums[0]: A makes A[m] as 4; give both as many elements",
    ),
    "fewer dimensions": (
        '"A[m,k] = f(X[m,k])", "C[m] = g(A[m])"',
        "A[m] as 4, but einsums[0]: A makes A[m,k] as 4 x 6; give both as many elements",
    ),
    "further": (
        '"A[m,k] = f(X[m,k])", {text: "C[m] += A[m,k]", extents: {m: 9}}',
        "A[m,k] with m = 9, but einsums[0]: A makes A[m,k] as 4 x 6; give both one",
    ),
    "less": (
        '"A[m,k] = f(X[m,k])", {text: "C[m] += A[m,k]", extents: {k: 5}}',
        "A[m,k] with k = 5, but einsums[0]: A makes A[m,k] as 4 x 6; give both one",
    ),
    "another rank": (
        '"A[m] = f(X[m])", "C[p] = g(A[p])"',
        "A[p] with p = 3, but einsums[0]: A makes A[m] as 4; give both one extent",
    ),
    "again": (
        '"A[m] = f(X[m])", "C[m] += A[m] * A_again[p]"',
        "A_again[p] with p = 3, but einsums[0]: A makes A[m] as 4; give both one extent",
    ),
    "told": (
        '"A[m] = f(X[m])", {text: "C[m] = g(A[m])", sizes: {A: [7]}}',
        "A[m] as 7, but einsums[0]: A makes A[m] as 4; give both as many elements",
    ),
    "repeated": (
        '{text: "A[m] = f(X[m])", repeat: 3}, "C[m] += A[m,k]"',
        "A[m,k] as 4 x 6, but einsums[0]: A makes A[m] as 4; give both as many elements",
    ),
    "outside": (
        '"C[m] = g(B[m-9])"',
        "index m-9 of B[m-9] runs from -9 to -6, all of it outside of the stored 0 to 0; correct the offset",
    ),
    "beyond": (
        '{text: "C[m] += B[m,2*n+k+40]", sizes: {B: [4, 30]}}',
        "index 2*n+k+40 of B[m,2*n+k+40] runs from 40 to 59, all of it outside of the stored 0 to 29",
    ),
    "nothing written": (
        '"C[m-4] = g(B[m])"',
        "index m-4 of C[m-4] runs from -4 to -1, all of it outside of the stored 0 to 0; correct the offset",
    ),
}


@pytest.mark.parametrize("kind", APART)
def test_what_is_read_in_another_size_than_it_is_made_is_one_line(kind: str, tmp_path: Path) -> None:
    """Both einsums and both sizes; an index of which nothing lies inside its tensor."""
    text, line = APART[kind]
    (tmp_path / "w.yaml").write_text(f"{SIZES}{text}]\n")
    with pytest.raises(WorkloadError) as fault:
        load(tmp_path / "w.yaml")
    assert line in str(fault.value)
    assert "\n" not in str(fault.value)


@pytest.mark.parametrize(
    "text",
    [
        '"A[m,k] = f(X[m,k])", {text: "C[q] = g(A[q])", extents: {q: 24}}',
        '"A[m,k] = f(X[m,k])", {text: "C[m] += A[m,k]", extents: {k: 5}, sizes: {A: [4, 6]}}',
        '"A[m,k] = f(X[m,k])", {text: "C[m] += A[m,k]", extents: {m: 9}, sizes: {A: [4, 6]}}',
        '{text: "A[m] = f(X[m])", repeat: 6}, "C[m] += A[m,k]"',
        '"A[m,k] = f(X[m,k])", "C[m] = g(A[m,0])"',
        '"A[k,m] = f(X[k,m])", {text: "C[m,k] = g(A[m,k])", sizes: {A: [4, 6]}}',
        '"A[h,m] = f(X[h,m])", "C[n] = g(A[n])"',
        '"A[m] = f(X[m])", "C[m] += A[m+p-1] * W[p]"',
        '"A[k] = f(X[k])", "C[p] += A[2*p+h]"',
    ],
)
def test_views_shares_and_parts_that_are_told_are_read(text: str, tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_text(f"{SIZES}{text}]\n")
    assert len(load(tmp_path / "w.yaml").einsums) == 2


def test_a_second_access_sees_what_is_made() -> None:
    """Not the hull of its indices, which reach into padding."""
    net = workload({"m": 8, "r": 3}, "A[m] = f(X[m])", "C[m] += A[m] * A_again[m+r-1]")
    assert net.einsums[1].inputs[1].dims[0].size == 8


MEANINGLESS = {
    "copy": ("{m: 4, k: 2}", '"Y[m] = A[m,k]"', "Y[m] lacks rank k; write += to add up over it"),
    "extent": (
        "{m: 4, k: 2}",
        '{text: "Y[m] += A[m,k]", extents: {q: 4}}',
        "extents: q is no rank of Y[m] += A[m,k]; ranks are m, k",
    ),
    "again": (
        "{m: 4, i: 1, k: 6}",
        '"N[i] += Y[m] * Y_again[k]"',
        "Y_again[k] is 6, but einsums[0]: Y[m], the same tensor, is 4; give both one size",
    ),
}


@pytest.mark.parametrize("name", MEANINGLESS)
def test_ranks_that_mean_nothing_are_one_line(name: str, tmp_path: Path) -> None:
    extents, text, says = MEANINGLESS[name]
    (tmp_path / "w.yaml").write_text(f"extents: {extents}\neinsums:\n- {text}\n")
    with pytest.raises(WorkloadError) as fault:
        load(tmp_path / "w.yaml")
    assert says in str(fault.value)
    assert "\n" not in str(fault.value)


def test_ranks_that_mean_something_are_taken(tmp_path: Path) -> None:
    """A copy over a rank of one element, a part of a tensor that is read twice and says so."""
    text = 'extents: {m: 4, k: 1, i: 1}\neinsums:\n- "Y[m] = A[m,k]"\n- {text: "N[i] += X[m] * X_again[m]"}\n'
    (tmp_path / "w.yaml").write_text(text)
    assert len(load(tmp_path / "w.yaml").einsums) == 2
