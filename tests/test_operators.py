"""Operators of the catalog: their einsums, executed point by point, equal NumPy; their counts equal direct
formulas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import sliding_window_view

from tests.amount import amount
from workloads import catalog, cnn, hpc, training, transformer
from workloads.cnn import Cascade
from workloads.einsum import Einsum, Projection, canonical_key, compulsory_elems, einsum, show, squeezed

FUNCTIONS: dict[str, Callable[..., float]] = {
    "exp": lambda x, m=0.0: np.exp(x - m),
    "div": lambda a, b: a / b,
    "sub": lambda a, b: a - b,
    "square": lambda x: x * x,
    "rsqrt": lambda v: 1 / np.sqrt(v + 1e-5),
    "normalize": lambda d, r, g, b: d * r * g + b,
    "batchnorm": lambda x, g, b, m, v: (x - m) / np.sqrt(v + 1e-5) * g + b,
    "relu": lambda x: max(x, 0.0),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "sgd": lambda w, g: w - 0.1 * g,
    "momentum": lambda u, g: 0.9 * u + g,
    "moment": lambda m, g: 0.9 * m + 0.1 * g,
    "moment_of_square": lambda v, g: 0.99 * v + 0.01 * g * g,
    "adam": lambda w, m, v: w - 0.1 * m / (np.sqrt(v) + 1e-8),
}


def value(e: Einsum, operands: list[float | None]) -> float | None:
    """One iteration. An operand outside what is stored is None: zero to a sum or product, nothing to a
    maximum or a copy.
    """
    inside = [x for x in operands if x is not None]
    match e.kind:
        case "mac" | "mul":
            return prod(inside) if len(inside) == len(operands) else 0.0
        case "add":
            return sum(inside)
        case "max":
            return max(inside, default=None)
        case "copy":
            return inside[0] if inside else None
    return FUNCTIONS[e.kind](*operands)


def position(p: Projection, env: Mapping[str, int]) -> tuple[int, ...] | None:
    at = tuple(d.offset + sum(c * env[rank] for rank, c in d.terms) for d in p.dims)
    return at if all(0 <= i < d.size for i, d in zip(at, p.dims, strict=True)) else None


def execute(e: Einsum, data: Mapping[str, np.ndarray]) -> np.ndarray:
    """The einsum by its text: walk all iterations, accumulate by the kind."""
    for p in e.inputs:
        assert data[p.tensor].shape == tuple(d.size for d in p.dims), p.tensor
    out = np.full([d.size for d in e.output.dims], -np.inf if e.kind == "max" else 0.0)
    for point in product(*(range(n) for _, n in e.extents)):
        env = dict(zip(e.sizes(), point, strict=True))
        places = [position(p, env) for p in e.inputs]
        got = value(
            e,
            [
                None if at is None else float(data[p.tensor][at])
                for p, at in zip(e.inputs, places, strict=True)
            ],
        )
        at = position(e.output, env)
        if at is not None and got is not None:
            out[at] = max(out[at], got) if e.kind == "max" else out[at] + got
    return out


def run(
    cascade: Cascade, data: Mapping[str, np.ndarray], rides: Mapping[str, float] | None = None
) -> dict[str, np.ndarray]:
    """All tensors after a cascade. rides: constant factor on the output of an einsum, as the docstrings name
    it.
    """
    known = dict(data)
    for e in cascade:
        assert e.output.tensor not in known
        known[e.output.tensor] = execute(e, known) * (rides or {}).get(e.output.tensor, 1.0)
    return known


def numbers(seed: int, *shape: int) -> np.ndarray:
    """Whole numbers: sums of products are exact."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(float)


def reals(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def inputs(cascade: Cascade, make: Callable[..., np.ndarray] = numbers) -> dict[str, np.ndarray]:
    """Data for everything that a cascade reads and does not make, in the stored shapes."""
    made = {e.output.tensor for e in cascade}
    read = {
        p.tensor: tuple(d.size for d in p.dims) for e in cascade for p in e.inputs if p.tensor not in made
    }
    return {tensor: make(i, *shape) for i, (tensor, shape) in enumerate(read.items())}


def windows(
    x: np.ndarray, kernel: tuple[int, ...], stride: int, dilation: int, pad: int, fill: float = 0.0
) -> np.ndarray:
    """[..., outputs, kernel]: all windows over the last dimensions of a padded image."""
    dims = len(kernel)
    padded = np.pad(x, [(0, 0)] * (x.ndim - dims) + [(pad, pad)] * dims, constant_values=fill)
    view = sliding_window_view(
        padded, [(r - 1) * dilation + 1 for r in kernel], axis=tuple(range(x.ndim - dims, x.ndim))
    )
    steps = (slice(None, None, stride),) * dims + (slice(None, None, dilation),) * dims
    return view[(slice(None),) * (x.ndim - dims) + steps]


small = st.integers(1, 3)
SHAPES = st.tuples(
    small,
    small,
    st.integers(1, 2),
    st.integers(1, 2),
    st.lists(st.tuples(small, small), min_size=1, max_size=3),
    small,
    st.integers(1, 2),
    st.integers(0, 1),
)
CONVS = {1: cnn.conv1d, 2: cnn.conv, 3: cnn.conv3d}


@settings(max_examples=amount(60))
@given(SHAPES)
def test_convolutions(shape: tuple) -> None:
    k, c, groups, n, spatial, stride, dilation, pad = shape
    pad = pad if min((p - 1) * stride + (r - 1) * dilation for p, r in spatial) >= 2 * pad else 0
    sizes = {
        name: size
        for letters, at in (("pqo", 0), ("rst", 1))
        for name, size in zip(letters, [w[at] for w in spatial], strict=False)
    }
    cascade = CONVS[len(spatial)](
        k=k * groups, c=c * groups, stride=stride, dilation=dilation, groups=groups, n=n, pad=pad, **sizes
    )
    data = inputs(cascade)
    image = tuple((p - 1) * stride + (r - 1) * dilation + 1 - 2 * pad for p, r in spatial)
    assert data["I"].shape == (n, groups, c, *image)
    assert data["W"].shape == (groups, k, c, *(r for _, r in spatial))
    assert cascade[0].macs() == n * groups * k * c * prod(p * r for p, r in spatial)
    cut = windows(data["I"], tuple(r for _, r in spatial), stride, dilation, pad)
    out, kernel = "pqo"[: len(spatial)], "rst"[: len(spatial)]
    assert np.array_equal(
        run(cascade, data)["O"], np.einsum(f"ngc{out}{kernel},gkc{kernel}->ngk{out}", cut, data["W"])
    )


@settings(max_examples=amount(20))
@given(small, small, small, small, small, st.integers(1, 2))
def test_depthwise(c: int, p: int, q: int, r: int, stride: int, dilation: int) -> None:
    cascade = cnn.depthwise(c=c, p=p, q=q, r=r, s=2, stride=stride, dilation=dilation)
    data = inputs(cascade)
    assert cascade[0].macs() == c * p * q * r * 2
    assert data["W"].size == c * r * 2
    cut = windows(data["I"][:, :, 0], (r, 2), stride, dilation, 0)
    assert np.array_equal(
        run(cascade, data)["O"][:, :, 0], np.einsum("ncpqrs,crs->ncpq", cut, data["W"][:, 0, 0])
    )


@settings(max_examples=amount(60))
@given(
    small,
    small,
    st.integers(1, 2),
    st.tuples(small, small),
    st.tuples(small, small),
    small,
    st.integers(1, 2),
    st.integers(0, 1),
    st.integers(0, 1),
)
def test_transposed_convolution(
    k: int, c: int, groups: int, image: tuple, kernel: tuple, stride: int, dilation: int, pad: int, more: int
) -> None:
    """Against its definition: a plain convolution of the input with zeros between its elements and the kernel
    turned round.
    """
    (p, q), (r, s) = image, kernel
    more = min(more, max(stride, dilation) - 1)
    whole = [(size - 1) * stride + (w - 1) * dilation + 1 for size, w in zip(image, kernel, strict=True)]
    pad = pad if min(whole) > 2 * pad else 0
    cascade = cnn.conv_transpose(
        k=k * groups,
        c=c * groups,
        p=p,
        q=q,
        r=r,
        s=s,
        stride=stride,
        dilation=dilation,
        groups=groups,
        n=2,
        pad=pad,
        output_pad=more,
    )
    data = inputs(cascade)
    spread = np.zeros((2, groups, c, (p - 1) * stride + 1, (q - 1) * stride + 1))
    spread[..., ::stride, ::stride] = data["I"]
    spread = np.pad(spread, [(0, 0)] * 3 + [((w - 1) * dilation,) * 2 for w in kernel])
    full = np.einsum(
        "ngcpqrs,gckrs->ngkpq", windows(spread, kernel, 1, dilation, 0), data["W"][..., ::-1, ::-1]
    )
    full = np.pad(full, [(0, 0)] * 3 + [(0, more)] * 2)
    expected = full[..., pad : pad + whole[0] - 2 * pad + more, pad : pad + whole[1] - 2 * pad + more]
    assert cascade[0].macs() == 2 * groups * k * c * p * q * r * s
    assert np.array_equal(run(cascade, data)["O"], expected)


def test_transposed_convolution_over_three_dimensions() -> None:
    """Every input element is spread over a window of the output."""
    sizes = {"k": 2, "c": 3, "p": 2, "q": 3, "o": 2, "r": 2, "s": 1, "t": 3}
    cascade = cnn.conv_transpose3d(**sizes, stride=2, pad=1)
    data = inputs(cascade)
    full = np.zeros((1, 1, 2, 4, 5, 5))
    for p, q, o, r, s, t in product(*(range(sizes[rank]) for rank in "pqorst")):
        full[0, 0, :, 2 * p + r, 2 * q + s, 2 * o + t] += (
            data["W"][0, :, :, r, s, t].T @ data["I"][0, 0, :, p, q, o]
        )
    assert np.array_equal(run(cascade, data)["O"], full[..., 1:-1, 1:-1, 1:-1])


@settings(max_examples=amount(40))
@given(
    small,
    small,
    small,
    st.tuples(small, small),
    st.integers(1, 2),
    st.integers(0, 1),
    st.sampled_from(["max", "average"]),
)
def test_pooling(c: int, p: int, q: int, kernel: tuple, stride: int, pad: int, kind: str) -> None:
    pad = (
        pad
        if min((p - 1) * stride + kernel[0], (q - 1) * stride + kernel[1]) > 2 * pad and min(kernel) > pad
        else 0
    )
    cascade = cnn.pool(c=c, p=p, q=q, r=kernel[0], s=kernel[1], kind=kind, stride=stride, n=2, pad=pad)
    data = inputs(cascade)
    cut = windows(data["I"], kernel, stride, 1, pad, -np.inf if kind == "max" else 0.0)
    expected = cut.max(axis=(-1, -2)) if kind == "max" else cut.mean(axis=(-1, -2))
    got = run(cascade, data, {} if kind == "max" else {"O": 1 / prod(kernel)})["O"]
    assert np.allclose(got, expected)
    assert cascade[0].macs() == 0
    assert cascade[0].points() == 2 * c * p * q * prod(kernel)


@settings(max_examples=amount(20))
@given(small, small, small, small)
def test_matrix_products(b: int, m: int, n: int, k: int) -> None:
    for cascade, macs in ((hpc.gemm(m=m, n=n, k=k), m * n * k), (hpc.bmm(b=b, m=m, n=n, k=k), b * m * n * k)):
        data = inputs(cascade)
        assert np.array_equal(run(cascade, data)["C"], data["A"] @ data["B"])
        assert cascade[0].macs() == macs


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("relu", lambda x: np.maximum(x, 0)),
        ("sigmoid", lambda x: 1 / (1 + np.exp(-x))),
        ("tanh", np.tanh),
        ("exp", np.exp),
    ],
)
def test_unary(name: str, function: Callable[[np.ndarray], np.ndarray]) -> None:
    cascade = cnn.unary(n=7, function=name)  # type: ignore[arg-type]
    data = inputs(cascade, reals)
    assert np.allclose(run(cascade, data)["Y"], function(data["X"]))
    assert cascade[0].kind == name
    assert cascade[0].points() == 7


@pytest.mark.parametrize(
    ("name", "function"),
    [("add", np.add), ("sub", np.subtract), ("mul", np.multiply), ("div", np.divide), ("max", np.maximum)],
)
def test_binary(name: str, function: Callable[..., np.ndarray]) -> None:
    cascade = cnn.binary(n=5, rows=3, function=name)  # type: ignore[arg-type]
    data = inputs(cascade, reals)
    assert np.allclose(run(cascade, data)["Y"], function(data["A"], data["B"]))
    assert cascade[0].inputs[1].stored_elems() == 5
    assert catalog.load(f"binary:n=5,function={name}").einsums[0].kind == name


def normalized(x: np.ndarray, axis: int | tuple[int, ...]) -> np.ndarray:
    return (x - x.mean(axis, keepdims=True)) / np.sqrt(x.var(axis, keepdims=True) + 1e-5)


@settings(max_examples=amount(15))
@given(small, st.integers(1, 6))
def test_row_wise_cascades(b: int, n: int) -> None:
    data = inputs(transformer.softmax(b=b, n=n), reals)
    powers, got = np.exp(data["X"]), run(transformer.softmax(b=b, n=n), data)
    assert np.allclose(got["Y"], powers / powers.sum(1, keepdims=True))
    assert np.array_equal(got["M"], data["X"].max(1))
    data = inputs(transformer.layernorm(b=b, n=n), reals)
    got = run(transformer.layernorm(b=b, n=n), data, {"M": 1 / n, "V": 1 / n})["Y"]
    assert np.allclose(got, normalized(data["X"], 1) * data["G"] + data["B"])
    data = inputs(transformer.rmsnorm(b=b, n=n), reals)
    rms = np.sqrt((data["X"] ** 2).mean(1, keepdims=True) + 1e-5)
    assert np.allclose(
        run(transformer.rmsnorm(b=b, n=n), data, {"V": 1 / n})["Y"], data["X"] / rms * data["G"]
    )


@settings(max_examples=10)
@given(small, small, small, small)
def test_batchnorm(c: int, p: int, q: int, n: int) -> None:
    cascade, column = cnn.batchnorm(c=c, p=p, q=q, n=n, phase="training"), (slice(None), None, None)
    data, share = inputs(cascade, reals), 1 / (n * p * q)
    got = run(cascade, data, {"M": share, "V": share})["Y"]
    assert np.allclose(got, normalized(data["X"], (0, 2, 3)) * data["G"][column] + data["B"][column])
    cascade = cnn.batchnorm(c=c, p=p, q=q, n=n)
    data = {t: np.abs(x) if t == "V" else x for t, x in inputs(cascade, reals).items()}
    scale = data["G"] / np.sqrt(data["V"] + 1e-5)
    assert np.allclose(
        run(cascade, data)["Y"], (data["X"] - data["M"][column]) * scale[column] + data["B"][column]
    )


@settings(max_examples=amount(20))
@given(
    st.integers(1, 2),
    st.integers(1, 2),
    st.integers(1, 2),
    st.integers(1, 3),
    st.integers(0, 3),
    st.integers(1, 3),
)
def test_attention(b: int, kv: int, group: int, q: int, before: int, d: int) -> None:
    """Against head by head: query head j reads the keys and values of head j // group."""
    heads, context = kv * group, q + before
    cascade = transformer.attention(heads=heads, kv=kv, q=q, context=context, d=d, b=b)
    data = inputs(cascade, reals)
    got = run(cascade, data, {"S": 1 / np.sqrt(d)})
    query, keys, values = data["Q"].reshape(b, q, heads, d), data["K"], data["V"]
    for i, j in product(range(b), range(heads)):
        powers = np.exp(query[i, :, j] @ keys[i, :, j // group].T / np.sqrt(d))
        assert np.allclose(got["M"].reshape(b, heads, q)[i, j], np.log(powers).max(1))
        assert np.allclose(
            got["O"].reshape(b, q, heads, d)[i, :, j],
            powers / powers.sum(1, keepdims=True) @ values[i, :, j // group],
        )
    assert np.array_equal(got["K_rows"], data["K_new"])
    assert np.array_equal(got["V_rows"], data["V_new"])
    assert sum(e.macs() for e in cascade) == 2 * b * heads * q * context * d
    assert [data[t].shape for t in ("K", "V", "K_new", "V_new")] == [(b, context, kv, d)] * 2 + [
        (b, q, kv, d)
    ] * 2


def test_decode_of_llama_70b() -> None:
    w = catalog.load("attention:b=4,heads=64,kv=8,q=1,context=2048,d=128")
    assert w.macs() == 2 * 4 * 64 * 2048 * 128
    assert w.weights == frozenset()
    assert w.parameters == 0
    caches = {p.tensor: p.stored_elems() for e in w.einsums for p in e.inputs if p.tensor in "KV"}
    moved = sum(e.points() for e in w.einsums if e.kind == "copy")
    assert caches == dict.fromkeys("KV", 4 * 8 * 2048 * 128)
    assert moved == 2 * 4 * 8 * 128
    assert catalog.load("attention:heads=12,q=64,context=64,d=64").macs() == 2 * 12 * 64 * 64 * 64


@settings(max_examples=amount(15))
@given(small, st.integers(0, 3), small)
def test_embedding(t: int, more: int, d: int) -> None:
    (e,) = transformer.embedding(t=t, v=t + more, d=d)
    data = inputs((e,))
    assert np.array_equal(execute(e, data), data["T"][:t])
    assert e.kind == "copy"
    assert e.macs() == 0
    assert e.inputs[0].stored_elems() == (t + more) * d
    assert [compulsory_elems(p, e.sizes()) for p in e.tensors()] == [t * d, t, t * d]
    assert compulsory_elems(transformer.embedding(t=9, v=4, d=d)[0].inputs[0], {"t": 9, "d": d}) == 4 * d


def csr(a: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values, column indices, row pointers without the leading 0."""
    rows, columns = np.nonzero(a)
    return a[rows, columns], columns, np.cumsum(np.bincount(rows, minlength=len(a)))


@settings(max_examples=amount(40))
@given(st.integers(1, 5), st.integers(1, 5), small, st.data())
def test_sparse_products(m: int, k: int, n: int, data: st.DataObject) -> None:
    nnz = data.draw(st.integers(1, m * k))
    dense = np.zeros(m * k)
    dense[np.random.default_rng(nnz).permutation(m * k)[:nnz]] = np.arange(1, nnz + 1)
    values, columns, ends = csr(dense.reshape(m, k))
    x, done = numbers(1, k, n), 0
    expected = np.zeros((m, n))
    for row in range(m):
        for i in range(ends[row - 1] if row else 0, ends[row]):
            expected[row] += values[i] * x[columns[i]]
            done += n
    (matrix,), (vector,) = hpc.spmm(m=m, k=k, n=n, nnz=nnz), hpc.spmv(m=m, k=k, nnz=nnz)
    assert np.array_equal(execute(matrix, {"A": dense.reshape(m, k), "X": x}), expected)
    assert matrix.macs() == done == nnz * n
    assert np.array_equal(execute(vector, {"A": dense.reshape(m, k), "X": x[:, 0]}), expected[:, 0])
    assert vector.macs() == nnz
    for e in (matrix, vector, squeezed(matrix), squeezed(vector)):
        a = e.inputs[0]
        rows = prod(d.size for d in a.dims[:-1])
        assert a.format == "csr"
        assert e.macs() == round(nnz * e.points() / (m * k))
        assert 2 * round(a.density * a.stored_elems()) + rows == len(values) + len(columns) + len(ends)


@given(st.integers(1, 10**7), st.integers(1, 10**7), st.integers(1, 4096), st.data())
def test_sparse_counts_are_whole_and_exact(m: int, k: int, n: int, data: st.DataObject) -> None:
    nnz = data.draw(st.integers(1, min(m * k, 10**8)))
    (e,) = hpc.spmm(m=m, k=k, n=n, nnz=nnz)
    assert e.macs() == nnz * n
    assert round(e.inputs[0].density * m * k) == nnz
    dense = einsum(show(e), e.sizes())
    assert dense.macs() == m * k * n
    assert canonical_key(dense) != canonical_key(einsum(show(e), e.sizes(), format={"A": "csr"}))


@settings(max_examples=amount(20))
@given(small, st.integers(1, 4))
def test_inverse(b: int, n: int) -> None:
    """Gauss-Jordan in place takes as many operations as the einsum has iterations."""
    (e,) = hpc.inverse(n=n, b=b)
    a, done = reals(n, b, n, n) + 4 * np.eye(n), 0
    inverted = a.copy()
    for matrix in inverted:
        for pivot in range(n):
            by = 1 / matrix[pivot, pivot]
            matrix[pivot, pivot] = 1.0
            matrix[pivot] *= by
            done += n
            for row in set(range(n)) - {pivot}:
                factor, matrix[row, pivot] = matrix[row, pivot], 0.0
                matrix[row] -= factor * matrix[pivot]
                done += n
    assert np.allclose(inverted @ a, np.eye(n))
    assert e.kind == "inverse"
    assert e.points() == done == b * n**3
    assert e.macs() == 0
    assert (
        [p.stored_elems() for p in e.tensors()]
        == [b * n * n] * 2
        == [compulsory_elems(p, e.sizes()) for p in e.tensors()]
    )


@pytest.mark.parametrize(("method", "reads", "writes"), [("sgd", 2, 1), ("momentum", 4, 2), ("adam", 7, 3)])
def test_optimizer(method: str, reads: int, writes: int) -> None:
    cascade = training.optimizer(n=5, method=method)  # type: ignore[arg-type]
    data = {t: np.abs(x) if t == "V" else x for t, x in inputs(cascade, reals).items()}
    w, g = data["W"], data["G"]
    u = 0.9 * data.get("U", 0) + g
    m, v = 0.9 * data.get("M", 0) + 0.1 * g, 0.99 * data.get("V", 0) + 0.01 * g**2
    expected = {"sgd": w - 0.1 * g, "momentum": w - 0.1 * u, "adam": w - 0.1 * m / (np.sqrt(v) + 1e-8)}
    assert np.allclose(run(cascade, data)["W_new"], expected[method])
    assert sum(p.stored_elems() for e in cascade for p in e.inputs) == 5 * reads
    assert sum(e.output.stored_elems() for e in cascade) == 5 * writes
    assert catalog.load(f"optimizer:n=5,method={method}").parameters == 5
