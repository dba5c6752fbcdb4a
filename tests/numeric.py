"""Einsums executed with NumPy from their structure alone: index arrays over the whole iteration space, one
function per kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from workloads.einsum import Einsum, Projection

Data = Mapping[str, np.ndarray]
# Operands that lie outside what is stored are NaN to a function
POINTS: dict[str, Callable[..., np.ndarray]] = {
    "exp": lambda x, m=0.0: np.exp(x - m),
    "div": lambda a, b: a / b,
    "sub": lambda a, b: a - b,
    "neg": lambda a: -a,
    "square": lambda x: x * x,
    "sqrt": np.sqrt,
    "rsqrt": lambda v: 1 / np.sqrt(v + 1e-5),
    "normalize": lambda d, r, g, b: d * r * g + b,
    "bias": lambda x, b: x + b,
    "batchnorm": lambda x, g, b, m, v: (x - m) / np.sqrt(v + 1e-5) * g + b,
    "fma": lambda a, b, c: a * b + c,
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "neg_mul": lambda a, b: -a * b,
    "sgd": lambda w, g: w - 0.1 * g,
    "hypot": np.hypot,
    "leaky_add": lambda a, s, t: np.where(a != 0, np.maximum(s + t, 0.2 * (s + t)), -np.inf),
    "elu": lambda x: np.where(x > 0, x, np.expm1(x)),
    "turn": lambda a, b, c, s: c * a + s * b,
    "turn_back": lambda a, b, c, s: c * b - s * a,
    "add_mul": lambda y, *pairs: y + sum(a * b for a, b in zip(pairs[::2], pairs[1::2], strict=True)),
    "jacobi": lambda x, w, b, q: x + w * (b - q),
    "sub_mul": lambda y, a, x: y - a * x,
    "beta": lambda new, old, alpha, omega: new / old * alpha / omega,
    "step": lambda g, d, b, a: g / (d - b * g / a),
    # derivatives, written out by hand
    "relu_grad": lambda g, y: g * (y > 0),
    "sigmoid_grad": lambda g, y: g * y * (1 - y),
    "tanh_grad": lambda g, y: g * (1 - y * y),
    "silu_grad": lambda g, x: g * (1 / (1 + np.exp(-x)) + x * np.exp(-x) / (1 + np.exp(-x)) ** 2),
    "square_grad": lambda g, x: 2 * g * x,
    "gelu_grad": lambda g, x: (
        g
        * (
            0.5 * (1 + (t := np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))))
            + 0.5 * x * (1 - t * t) * np.sqrt(2 / np.pi) * (1 + 3 * 0.044715 * x * x)
        )
    ),
    "sqrt_grad": lambda g, y: g / (2 * y),
    "rsqrt_grad": lambda g, y: -0.5 * g * y**3,
    "div_grad": lambda g, b, y: -g * y / b,
    "max_grad": lambda g, x, y: np.where(x == y, g, 0.0),
    "batchnorm_grad0": lambda g, s, v: g * s / np.sqrt(v + 1e-5),
    "batchnorm_grad1": lambda g, x, m, v: g * (x - m) / np.sqrt(v + 1e-5),
    "hinge": lambda a, b: np.maximum(a - b, 0),
    "hinge_grad0": lambda g, a, b: g * (a > b),
    "hinge_grad1": lambda g, a, b: -g * (a > b),
}


def _softmax_grad(g: np.ndarray, y: np.ndarray) -> np.ndarray:
    return y * (g - (g * y).sum(-1, keepdims=True))


def _inverse(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.linalg.solve(np.atleast_2d(a), np.atleast_2d(b)).reshape(b.shape)


def _vectors(rows: int, operands: Sequence[np.ndarray]) -> np.ndarray:
    """[rows, columns, vectors]: operands [rows] or [rows, columns], or several of these along a first
    dimension.
    """
    blocks = [
        x.reshape(-1, rows, x.size // rows) if x.shape[0] == rows else x.reshape(len(x), rows, -1)
        for x in operands
    ]
    return np.concatenate(blocks).transpose(1, 2, 0)


def _gram(*operands: np.ndarray) -> np.ndarray:
    v = _vectors(max(map(len, operands)), operands)
    return np.einsum("mnb,mnc->bcn", v, v)


def _combination(c: np.ndarray, *operands: np.ndarray) -> np.ndarray:
    """[rows, columns]: the first vectors times the numbers of c."""
    v = _vectors(max(map(len, operands)), operands)
    c = c.reshape(-1, v.shape[1])
    return np.einsum("bn,mnb->mn", c, v[:, :, : len(c)])


def _powers(count: int, a: np.ndarray, x: np.ndarray) -> np.ndarray:
    found = [x]
    for _ in range(count):
        found.append(a @ found[-1])
    return np.array(found[1:])


def _coordinates(g: np.ndarray) -> np.ndarray:
    """[3, 2 s + 1, n]: X, R and P after s steps of CG in the basis P, ..., A^s P, R, ..., A^(s-1) R."""
    width, g = len(g), g.reshape(len(g), len(g), -1)
    s, found = width // 2, []
    times_a = np.zeros((width, width))
    for j in (*range(s), *range(s + 1, width - 1)):
        times_a[j + 1, j] = 1
    for product in g.transpose(2, 0, 1):
        x, r, p = np.zeros(width), np.eye(width)[s + 1], np.eye(width)[0]
        for _ in range(s):
            q = times_a @ p
            alpha = r @ product @ r / (p @ product @ q)
            x, after = x + alpha * p, r - alpha * q
            p = after + (after @ product @ after) / (r @ product @ r) * p
            r = after
        found.append([x, r, p])
    return np.array(found).transpose(1, 2, 0)


def _least_squares(g: np.ndarray) -> np.ndarray:
    """[s, n]: the combination of A R, ..., A^s R next to R."""
    g = g.reshape(len(g), len(g), -1).transpose(2, 0, 1)
    return np.linalg.solve(g[:, 1:, 1:], g[:, 1:, :1])[:, :, 0].T


def _rescaled(x: np.ndarray, shrink: np.ndarray) -> np.ndarray:
    """Sums over the last dimension of `shrink`: after each step, total = shrink * total + x."""
    at = shrink.ndim - 1
    total = np.zeros(np.delete(x.shape, at))
    for step in range(shrink.shape[-1]):
        factor = shrink[..., step].reshape(*shrink.shape[:-1], *[1] * (x.ndim - shrink.ndim))
        total = factor * total + np.take(x, step, axis=at)
    return total


WHOLE: dict[str, Callable[..., np.ndarray]] = {  # functions of whole tensors
    "running_max": lambda x: np.maximum.accumulate(x, -1),
    "exp_of_change": lambda x: np.exp(
        np.concatenate([np.full_like(x[..., :1], -np.inf), x[..., :-1]], -1) - x
    ),
    "rescaled": _rescaled,
    "inverse": _inverse,
    "lower_solve": lambda t, b: np.linalg.solve(np.tril(t), b),
    "upper_solve": lambda t, b: np.linalg.solve(np.triu(t), b),
    "gram": _gram,
    "combination": _combination,
    "add_combination": lambda x, *rest: x + _combination(*rest).reshape(x.shape),
    **{f"coordinates_{x}": lambda g, i=i: _coordinates(g)[i] for i, x in enumerate("xrp")},
    "least_squares": _least_squares,
    "softmax": lambda x: (p := np.exp(x - x.max(-1, keepdims=True))) / p.sum(-1, keepdims=True),
    "softmax_grad": _softmax_grad,
}


def execute(e: Einsum, data: Data) -> np.ndarray:
    """The output tensor. Tensors are taken as the same elements in row-major order, whatever shape their
    maker gave them.
    """
    tensors = [data[p.tensor].reshape([d.size for d in p.dims]) for p in e.inputs]
    if e.kind == "powers":
        count = e.output.stored_elems() // e.inputs[1].stored_elems()
        return _powers(count, *tensors).reshape([d.size for d in e.output.dims])
    if (kind := e.kind.split("_levels")[0]) in WHOLE:
        return WHOLE[kind](*tensors).reshape([d.size for d in e.output.dims])
    shape, sizes = tuple(e.sizes().values()), [d.size for d in e.output.dims]
    axes = {rank: np.arange(n).reshape([-1 if r == rank else 1 for r in e.sizes()]) for rank, n in e.extents}
    values = [_gathered(x, p, axes) for x, p in zip(tensors, e.inputs, strict=True)]
    at, inside = _position(e.output, axes)
    at, sizes = at or [np.array(0)], sizes or [1]  # a scalar
    got = np.broadcast_to(_value(e.kind, values), shape)
    out = np.full(sizes, -np.inf if e.kind == "max" else 0.0)
    into = tuple(np.broadcast_to(i, shape) for i in at)
    mask = np.broadcast_to(inside, shape) & ~np.isnan(got)
    (np.maximum if e.kind == "max" else np.add).at(out, tuple(i[mask] for i in into), got[mask])
    return out.reshape([d.size for d in e.output.dims])


def _value(kind: str, values: list[np.ndarray]) -> np.ndarray:
    match kind:
        case "mac" | "mul":
            return np.nan_to_num(np.prod(np.broadcast_arrays(*values), axis=0))
        case "add":
            return np.sum(np.broadcast_arrays(*(np.nan_to_num(v) for v in values)), axis=0)
        case "max":
            return np.fmax.reduce(np.broadcast_arrays(*values))
        case "copy":
            every = np.broadcast_arrays(*values)
            return np.select([~np.isnan(v) for v in every], every, np.nan)
    return POINTS[kind](*values)


def _position(p: Projection, axes: Mapping[str, np.ndarray]) -> tuple[list[np.ndarray], np.ndarray]:
    at = [sum((c * axes[rank] for rank, c in d.terms), np.array(d.offset)) for d in p.dims]
    inside = np.array(True)
    for i, d in zip(at, p.dims, strict=True):
        inside = inside & (i >= 0) & (i < d.size)
    return [np.clip(i, 0, d.size - 1) for i, d in zip(at, p.dims, strict=True)], inside


def _gathered(x: np.ndarray, p: Projection, axes: Mapping[str, np.ndarray]) -> np.ndarray:
    at, inside = _position(p, axes)
    return np.where(inside, x[tuple(at)], np.nan)


def run(einsums: Iterable[Einsum], data: Data) -> dict[str, np.ndarray]:
    """All tensors. T_again is T."""
    known = dict(data)
    for e in einsums:
        for p in e.inputs:
            if p.tensor not in known and p.tensor.endswith("_again"):
                known[p.tensor] = known[p.tensor.removesuffix("_again")]
        known[e.output.tensor] = execute(e, known)
    return known


def given(einsums: Iterable[Einsum], seed: int = 0) -> dict[str, np.ndarray]:
    """Random data for what is read and not made, in stored shapes."""
    einsums = tuple(einsums)
    made = {e.output.tensor for e in einsums}
    read = {
        p.tensor: tuple(d.size for d in p.dims)
        for e in einsums
        for p in e.inputs
        if p.tensor not in made and not p.tensor.endswith("_again")
    }
    rng = np.random.default_rng(seed)
    return {
        tensor: np.asarray(rng.uniform(0.5, 1.5, shape) * rng.choice([-1, 1], shape))
        for tensor, shape in read.items()
    }
