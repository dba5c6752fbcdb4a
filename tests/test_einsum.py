"""Einsum text: parse and show are inverse, equal einsums share a key, hulls equal a walk over all indices."""

from __future__ import annotations

import pickle
from dataclasses import replace
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.amount import amount
from tests.onnx_count import brute_hull
from workloads.einsum import (
    SCALAR,
    Dim,
    Einsum,
    Projection,
    WorkloadError,
    canonical_key,
    compulsory_elems,
    csr,
    einsum,
    show,
    squeezed,
)

RANKS = ["a", "b", "c", "d", "e"]


@st.composite
def projections(draw: st.DrawFn, name: str, extents: dict[str, int], must: bool = False) -> Projection:
    ranks = draw(st.permutations(RANKS))[: draw(st.integers(1 if must else 0, 5))]
    dims = []
    while ranks:
        take = draw(st.integers(1, min(2, len(ranks))))
        terms = tuple((rank, draw(st.integers(1, 3))) for rank in ranks[:take])
        ranks = ranks[take:]
        dims.append(Dim(terms, draw(st.integers(-3, 3)), draw(st.integers(1, 12))))
    if draw(st.booleans()):
        dims.append(Dim((), draw(st.integers(-1, 2)), draw(st.integers(1, 3))))
    may_be_csr = bool(dims) and not must and dims[-1].is_stored(extents)  # `padded_rows_fault`
    return Projection(
        name,
        tuple(dims),
        draw(st.sampled_from([None, 4, 16])),
        draw(st.sampled_from([1.0, 0.25])),
        draw(st.sampled_from(["dense", "csr"])) if may_be_csr else "dense",
    )


@st.composite
def einsums(draw: st.DrawFn) -> Einsum:
    extents = {rank: draw(st.integers(1, 5)) for rank in RANKS}
    kind = draw(st.sampled_from(["mac", "max", "add", "mul", "copy", "gelu", "div"]))
    out = draw(projections("Out", extents, must=True))
    inputs = tuple(draw(projections(name, extents)) for name in ("A", "B", "C")[: draw(st.integers(1, 3))])
    used = {rank for p in (out, *inputs) for rank in p.ranks()}
    return Einsum("e", kind, out, inputs, tuple((rank, extents[rank]) for rank in RANKS if rank in used))


def reparsed(text: str, e: Einsum) -> Einsum:
    tensors = e.tensors()
    return einsum(
        text,
        e.sizes(),
        e.name,
        sizes={p.tensor: tuple(d.size for d in p.dims) for p in tensors},
        bits={p.tensor: p.bits for p in tensors if p.bits},
        density={p.tensor: p.density for p in tensors},
        format={p.tensor: p.format for p in tensors},
    )


@settings(max_examples=amount(400))
@given(einsums())
def test_parse_inverts_show(e: Einsum) -> None:
    assert reparsed(show(e), e) == e
    assert pickle.loads(pickle.dumps(e)) == e


def renamed(p: Projection, ranks: dict[str, str]) -> Projection:
    return replace(
        p,
        tensor=f"{p.tensor}_new",
        dims=tuple(replace(d, terms=tuple((ranks[r], c) for r, c in d.terms)) for d in p.dims),
    )


@settings(max_examples=amount(200))
@given(einsums(), st.permutations(RANKS))
def test_key_forgets_names_only(e: Einsum, order: list[str]) -> None:
    ranks = dict(zip(RANKS, order, strict=True))
    other = Einsum(
        "other",
        e.kind,
        renamed(e.output, ranks),
        tuple(renamed(p, ranks) for p in e.inputs),
        tuple((ranks[r], n) for r, n in e.extents),
    )
    assert canonical_key(other) == canonical_key(e)


@st.composite
def changed(draw: st.DrawFn, e: Einsum) -> Einsum:
    """One change that matters: an extent, a coefficient, an offset, a size, bits, density, format, the kind,
    an input more, a width of a compressed tensor.
    """
    what = draw(
        st.sampled_from(
            [
                "extent",
                "kind",
                "offset",
                "size",
                "coefficient",
                "bits",
                "density",
                "format",
                "inputs",
                "index_bits",
                "pointer_bits",
            ]
        )
    )
    if what == "extent":
        at = draw(st.integers(0, len(e.extents) - 1))
        return replace(e, extents=tuple((r, n + (i == at)) for i, (r, n) in enumerate(e.extents)))
    if what == "kind":
        return replace(e, kind=f"{e.kind}x")
    if what.endswith("_bits") and any(p.format == "csr" for p in e.inputs):
        return replace(
            e,
            inputs=tuple(
                replace(p, **{what: getattr(p, what) + 1}) if p.format == "csr" else p for p in e.inputs
            ),
        )
    if what == "inputs" or what.endswith("_bits"):
        return replace(e, inputs=(*e.inputs, Projection("More", e.output.dims)))
    if what == "format":
        return replace(
            e, inputs=tuple(replace(p, format="csr" if p.format == "dense" else "dense") for p in e.inputs)
        )
    if what in ("bits", "density"):
        p = (
            replace(e.output, bits=(e.output.bits or 1) + 1)
            if what == "bits"
            else replace(e.output, density=e.output.density / 2)
        )
        return replace(e, output=p)
    at = draw(st.integers(0, len(e.output.dims) - 1))
    d = e.output.dims[at]
    terms = tuple((r, c + 1) for r, c in d.terms) if what == "coefficient" else d.terms
    d = replace(
        d, terms=terms, offset=d.offset + (what == "offset" or not d.terms), size=d.size + (what == "size")
    )
    return replace(e, output=replace(e.output, dims=(*e.output.dims[:at], d, *e.output.dims[at + 1 :])))


@settings(max_examples=amount(300))
@given(st.data())
def test_key_tells_every_change_of_shape(data: st.DataObject) -> None:
    e = data.draw(einsums())
    other = data.draw(changed(e))
    assert other != e
    assert canonical_key(other) != canonical_key(e)


def test_key_tells_which_ranks_are_shared() -> None:
    extents = {"m": 4, "n": 4, "k": 4}
    texts = [
        "C[m,n] += A[m,k] * B[k,n]",
        "C[m,n] += A[m,k] * B[n,k]",
        "C[m,n] += A[k,m] * B[k,n]",
        "C[m,n] += A[m,n] * B[k,n]",
    ]
    assert len({canonical_key(einsum(t, extents)) for t in texts}) == 4


@settings(max_examples=amount(300))
@given(einsums())
def test_hull_equals_a_walk(e: Einsum) -> None:
    sizes = e.sizes()
    for p in e.tensors():
        walked = brute_hull([([(c, sizes[r]) for r, c in d.terms], d.offset, d.size) for d in p.dims])
        assert compulsory_elems(p, sizes) == walked <= p.stored_elems()


@settings(max_examples=amount(300))
@given(einsums())
def test_squeezed_counts_the_same(e: Einsum) -> None:
    slim = squeezed(e)
    assert (slim.points(), slim.macs()) == (e.points(), e.macs())
    assert [n for _, n in slim.extents if n == 1] == [] or len(slim.extents) == 1
    for before, after in zip(e.tensors(), slim.tensors(), strict=True):
        assert compulsory_elems(after, slim.sizes()) == compulsory_elems(before, e.sizes())
        assert after.stored_elems() == before.stored_elems()
        assert after.tensor == before.tensor
        # rows of a csr
        assert before.format == "dense" or prod(d.size for d in after.dims[:-1]) == prod(
            d.size for d in before.dims[:-1]
        )
    assert reparsed(show(slim), slim) == slim


def test_strided_padded_convolution() -> None:
    e = einsum(
        "O[n,k,p,q] += I[n,c,2*p+r-3,2*q+s-3] * W[k,c,r,s]",
        {"n": 1, "k": 64, "c": 3, "p": 112, "q": 112, "r": 7, "s": 7},
        sizes={"I": (1, 3, 224, 224)},
    )
    assert e.kind == "mac"
    assert e.macs() == 118_013_952
    assert e.inputs[0].dims[2] == Dim((("p", 2), ("r", 1)), -3, 224)
    assert e.inputs[0].partial_ranks() == {"p", "q", "r", "s"}
    assert e.inputs[1].full_ranks() == {"k", "c", "r", "s"}
    assert [compulsory_elems(p, e.sizes()) for p in e.tensors()] == [
        3 * 224 * 224,
        64 * 3 * 49,
        64 * 112 * 112,
    ]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("O[m] max= X[m,k]", "max"),
        ("Y[m] = X[m] + Z[m]", "add"),
        ("Y[m] += X[m,k]", "add"),
        ("Y[m] = X[m] * Z[m]", "mul"),
        ("Y[m] = gelu(X[m])", "gelu"),
        ("Y[m,k] = X[k,m]", "copy"),
        ("Y[m] = copy(X[m], Z[m-2])", "copy"),
        ("Y[m]=X[ m ]*Z[]", "mul"),
    ],
)
def test_kinds(text: str, kind: str) -> None:
    e = einsum(text, {"m": 4, "k": 3})
    assert e.kind == kind
    assert e.macs() == 0


@pytest.mark.parametrize(
    ("text", "extents", "fault"),
    [
        ("C[m,n] A[m]", {"m": 2, "n": 2}, 'no "=", "+=" or "max="'),
        ("C[m] = ", {"m": 2}, "no product, sum or function"),
        ("= A[m]", {"m": 2}, "must be one output"),
        ("C[m] D[m] = A[m]", {"m": 2}, "must be one output"),
        ("C[m] = A[m] B[m]", {"m": 2}, "no product, sum"),
        ("C[m] = A[m] / B[m]", {"m": 2}, "no product, sum"),
        ("C[m] = A[m] * B[m] + D[m]", {"m": 2}, "no product, sum"),
        ("C[m] = f(A[m] B[m])", {"m": 2}, "no product, sum"),
        ("C[m] = A[z]", {"m": 2}, "rank z of tensor A has no extent; known: m"),
        ("C[m] = A[m]", {"m": 0}, "extent of rank m is 0"),
        ("C[m] = A[m]", {"m": "4"}, "extent of rank m is '4'"),
        ("C[m] = A[m]", {"m": 2.0}, "extent of rank m is 2.0"),
        ("C[m] = A[m]", {"m": True}, "extent of rank m is True"),
        ("C[m] = A[m,]", {"m": 2}, "empty index"),
        ("C[m] = A[m^2]", {"m": 2}, "is not a sum like"),
        ("C[m] = A[m*2]", {"m": 2}, "is not a sum like"),
        ("C[m] = A[-m]", {"m": 2}, "negative coefficient"),
        ("C[m] = A[0*m]", {"m": 2}, "coefficient 0"),
        ("C[m] = A[m,m]", {"m": 2}, "stands twice in tensor A"),
        ("C[m] = A[m+m]", {"m": 2}, "stands twice in tensor A"),
        ("C[m] = A[m] * A[m]", {"m": 2}, "a tensor stands twice, A; name its second access A_again"),
        ("C[m] = A[m] * C[m]", {"m": 2}, "a tensor stands twice, C; give the result a name of its own"),
    ],
)
def test_faults_are_one_clear_line(text: str, extents: dict[str, int], fault: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        einsum(text, extents)
    line = str(caught.value)
    assert line.startswith(f'einsum "{text}": ')
    assert fault in line
    assert "\n" not in line
    assert str(pickle.loads(pickle.dumps(caught.value))) == line


def test_faults_of_sizes_bits_and_density() -> None:
    def parse(**given: object) -> None:
        einsum("C[m] = A[m]", {"m": 2}, **given)  # type: ignore[arg-type]

    for given_, fault in [
        ({"sizes": {"A": (2, 2)}}, "has 1 dimensions, its size names 2"),
        ({"sizes": {"Z": (2,)}}, "size names tensor Z"),
        ({"bits": {"B": 8}}, "bits names tensor B"),
        ({"sizes": {"A": (0,)}}, "sizes and bits of at least 1"),
        ({"bits": {"A": 0}}, "sizes and bits of at least 1"),
        ({"density": {"A": 1.5}}, "0 < density <= 1"),
        ({"density": {"A": float("nan")}}, "0 < density <= 1"),
        ({"format": {"Z": "csr"}}, "format names tensor Z"),
        (
            {"format": {"A": "cco"}},
            "format of tensor A is 'cco'; it must be dense, csr, coo, rle, bitmask, or N:M",
        ),
        (
            {"format": {"C": "csr"}},
            "tensor C cannot be csr; its zeros are those of inputs: give one a density below 1",
        ),
        (
            {"index_bits": {"A": 9}},
            "index_bits names tensor A, which is dense; only a csr, coo, rle or N:M tensor has them",
        ),
        ({"index_bits": {"Z": 9}}, "index_bits names tensor Z, which it does not have"),
        (
            {**csr("A", 1.0), "pointer_bits": {"A": 1}},
            "pointer_bits of tensor A is 1; its 2 nonzeros need at least 2",
        ),
        (
            {**csr("A", 1.0), "index_bits": {"A": 0}},
            "index_bits of tensor A is 0; its 2 columns need at least 1",
        ),
    ]:
        with pytest.raises(WorkloadError, match=fault):
            parse(**given_)


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.data())
def test_widths_hold_the_columns_and_the_nonzeros_and_no_bit_less_does(
    m: int, k: int, data: st.DataObject
) -> None:
    """Columns 0 .. k - 1; pointers 0 .. nnz."""
    nnz = data.draw(st.integers(1, min(m * k, 10**8)))
    a = einsum("Y[m] += A[m,k] * X[k]", {"m": m, "k": k}, **csr("A", nnz / (m * k))).inputs[0]
    assert 2**a.index_bits >= k
    assert a.index_bits == 1 or 2 ** (a.index_bits - 1) < k
    assert 2**a.pointer_bits >= nnz + 1 > 2 ** (a.pointer_bits - 1)
    assert a.stored_bits(8) == nnz * (8 + a.index_bits) + m * a.pointer_bits
    none = einsum("Y[m] += A[m,k] * X[k]", {"m": m, "k": k}, **csr("A", 1e-8 / (m * k))).inputs[0]
    assert none.pointer_bits == 1
    assert none.stored_bits(8) == m
    dense = replace(a, format="dense")
    assert (dense.index_bits, dense.pointer_bits, dense.stored_bits(8)) == (0, 0, 8 * m * k)


def test_eight_bits_do_not_hold_ten_thousand_columns() -> None:
    """Bits of a tile are those of the whole tensor's indices: a tile of one column has them too."""
    text, sizes = "Y[m] += A[m,k] * X[k]", {"m": 4, "k": 10_000}
    a = einsum(text, sizes, bits={"A": 8}, **csr("A", 0.01)).inputs[0]
    assert (a.index_bits, a.pointer_bits, a.stored_bits(16)) == (14, 9, 400 * (8 + 14) + 4 * 9)
    assert replace(a, dims=(a.dims[0], replace(a.dims[1], size=1))).index_bits == 14
    with pytest.raises(
        WorkloadError, match="index_bits of tensor A is 8; its 10000 columns need at least 14"
    ):
        einsum(text, sizes, **csr("A", 0.01, index_bits=8))


def test_an_operation_of_scalars_has_one_iteration() -> None:
    e = einsum("S[] = div(A[], B[])", {"k": 6}, "s")
    assert e.points() == 1
    assert e.ranks() == (SCALAR,)
    assert einsum(show(e), {}).extents == e.extents
    assert squeezed(e) == e
    assert canonical_key(e) == canonical_key(einsum("T[] = div(X[], Y[])", {}))


def test_ranks_of_equal_einsums_match_by_place() -> None:
    a, b = (
        einsum("C[m,n] += A[m,k] * B[k,n]", {"m": 2, "k": 3, "n": 4}),
        einsum("Z[j,i] += X[j,l] * Y[l,i]", {"i": 4, "j": 2, "l": 3}),
    )
    assert (a.ranks(), b.ranks()) == (("m", "n", "k"), ("j", "i", "l"))
    assert canonical_key(a) == canonical_key(b)
