"""What every tiling must keep, walked element by element; and tiled operators run call by call in NumPy."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dse.mapper.smaug.factor import Unit
from dse.mapper.smaug.halo import Tiled
from dse.mapper.smaug.schedule import Calls, calls
from dse.mapper.smaug.smaug import Operator, Tiling


def stored(shape: tuple[int, ...], align: int) -> int:
    inner = shape[-1] if not align else -(-shape[-1] // align) * align
    return int(np.prod(shape[:-1], dtype=np.int64)) * inner


def broken(t: Tiling, u: Unit, faithful: bool = False) -> Iterator[str]:
    """Invariants that do not hold: capacities, outputs partitioned, inputs cover what outputs need, legal
    schedule, everything sent once; unless faithful, every tile used.
    """
    for name, tiled in t.tensors.items():
        worst = max(stored(tuple(max(tiled.extents(d)) for d in range(len(tiled.shape))), u.align), 0)
        if worst > u.tile_bytes // u.elem_bytes:
            yield f"{name}: a tile holds {worst} elements"
    outputs = t.tensors["outputs"]
    for dim, (size, pieces) in enumerate(zip(outputs.shape, outputs.cuts, strict=True)):
        seen = np.zeros(size, int)
        for origin, extent in pieces:
            if origin < 0 or origin + extent > size:
                yield f"outputs: a piece of dimension {dim} lies outside"
            seen[max(origin, 0) : origin + extent] += 1
        # rows of a transposed convolution are added to by neighbours
        if (seen != 1).any() and not (t.operator.kind == "transposed" and dim == 1 and (seen > 0).all()):
            yield f"outputs: dimension {dim} is not partitioned"
    yield from _uncovered(t)
    made = calls(t.nest, t.tensors, u.accelerators)
    yield from illegal(t, made)
    for name, tiled in t.tensors.items() if not faithful else ():
        if (idle := int(np.prod(tiled.grid())) - len(set(made.tile[name].tolist()))) > 0:
            yield f"{name}: no call uses {idle} of its tiles"


def _uncovered(t: Tiling) -> Iterator[str]:
    if len(t.operator.shape) != 4 or t.operator.kind not in ("convolution", "depthwise", "pooling"):
        return
    for dim, w in enumerate(t.operator.windows(), 1):
        size, ins, outs = t.operator.shape[dim], t.tensors["inputs"].cuts[dim], t.tensors["outputs"].cuts[dim]
        if len(outs) > len(ins):
            yield f"dimension {dim}: {len(outs)} output pieces of {len(ins)} input pieces"
        for i, (origin, extent) in enumerate(outs):
            first = origin * w.step - w.lead
            start, length = ins[min(i, len(ins) - 1)] if len(outs) > 1 or len(ins) == 1 else (0, size)
            if len(outs) == 1 and len(ins) > 1 and w.outputs(size) > 1 and ins[0][1] < size:
                start, length = ins[0]
            apart, taps = t.operator.dilation[dim - 1], t.operator.kernel[dim - 1]
            reads = {first + p * w.step + r * apart for p in range(extent) for r in range(taps)}
            if not {x for x in reads if 0 <= x < size} <= set(range(start, start + length)):
                yield f"dimension {dim}: input piece {i} does not hold what its output needs"
                return
            pad_before = w.lead if i == 0 else 0
            if start - pad_before != first:
                yield (
                    f"dimension {dim}: piece {i} starts at {start - pad_before}, its first window at {first}"
                )
                return


def illegal(t: Tiling, c: Calls) -> Iterator[str]:
    """Loads, sends and the channel rules of section 10."""
    for name, tiled in t.tensors.items():
        count = int(np.prod(tiled.grid()))
        if c.tile[name].min() < 0 or c.tile[name].max() >= count:
            yield f"{name}: a call names a tile that is not there"
    sent = c.tile["outputs"][c.send]
    if set(sent.tolist()) != set(range(int(np.prod(t.tensors["outputs"].grid())))):
        yield "outputs: not every tile is sent back"
    for a in np.unique(c.accelerator):
        own = sent[c.accelerator[c.send] == a]
        if len(own) != len(set(own.tolist())):
            yield "outputs: a tile is sent back twice"
    if t.operator.kind in ("convolution", "inner_product"):
        ci, wc = t.tensors["inputs"].grid()[-1], t.tensors["weights"].grid()[-1]
        wn, co = t.tensors["weights"].grid()[0], t.tensors["outputs"].grid()[-1]
        if not (
            ci in (wc, 1)
            and (wn == co or (wn == 1 and co > 1) or (co == 1 and t.operator.kind == "inner_product"))
        ):
            yield f"channels: {ci} input, {wc} weight, {wn} kernel and {co} output tiles cannot be scheduled"
    for name, load in c.load.items():
        for a in np.unique(c.accelerator):
            last = -1
            for number, loads in zip(
                c.tile[name][c.accelerator == a].tolist(), load[c.accelerator == a].tolist(), strict=True
            ):
                if number != last and not loads:
                    yield f"{name}: a call needs a tile that its accelerator does not hold"
                    return
                last = number


def _piece(tiled: Tiled, array: np.ndarray, number: int) -> tuple[tuple[int, ...], np.ndarray]:
    origin, shape = tiled.at(number)
    return origin, array[tuple(slice(o, o + n) for o, n in zip(origin, shape, strict=True))]


def run(t: Tiling, arrays: dict[str, np.ndarray], accelerators: int = 1) -> np.ndarray:
    """The output, computed tile by tile with what the scratchpads of each accelerator hold; NaN where nothing
    was sent.
    """
    c = calls(t.nest, t.tensors, accelerators)
    out = np.full(t.tensors["outputs"].shape, np.nan)
    held: dict[tuple[int, str], tuple[tuple[int, ...], np.ndarray]] = {}
    pads: dict[int, np.ndarray] = {}
    where: dict[int, int] = {}
    for i, a in enumerate(c.accelerator.tolist()):
        for name in c.load:
            if c.load[name][i]:
                held[a, name] = _piece(t.tensors[name], arrays[name], int(c.tile[name][i]))
        number = int(c.tile["outputs"][i])
        origin, shape = t.tensors["outputs"].at(number)
        if where.get(a) != number:
            pads[a], where[a] = np.full(shape, np.nan), number
            if t.operator.kind == "transposed":  # rows that a neighbour has sent come back
                sent = out[tuple(slice(o, o + n) for o, n in zip(origin, shape, strict=True))]
                pads[a] = np.where(np.isnan(sent), 0.0, sent)
        KERNELS[t.operator.kind](t, held, a, pads[a], origin, bool(c.accumulate[i]), i, c)
        if c.send[i]:
            view = out[tuple(slice(o, o + n) for o, n in zip(origin, shape, strict=True))]
            view[...] = np.where(np.isnan(pads[a]), view, pads[a])
    return out


def _padded(t: Tiling, x: np.ndarray, number: int) -> np.ndarray:
    """An input tile with the padding that its call is told: above only for the first row of tiles, below only
    for the one that ends the tensor.
    """
    tiled = t.tensors["inputs"]
    origin, shape = tiled.at(number)
    rows, columns = t.operator.windows()
    ends = [
        (w.lead if origin[d] == 0 else 0, w.trail if origin[d] + shape[d] == tiled.shape[d] else 0)
        for d, w in ((1, rows), (2, columns))
    ]
    return np.pad(x, ((0, 0), *ends, (0, 0)), constant_values=-np.inf if t.operator.kind == "pooling" else 0)


def _windows(op: Operator, x: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """[n, rows, columns, c, kh, kw]"""
    (down, right), (kh, kw) = op.dilation, op.kernel
    spans = (kh - 1) * down + 1, (kw - 1) * right + 1
    view = np.lib.stride_tricks.sliding_window_view(x, spans, axis=(1, 2))[..., ::down, ::right]
    return view[:, :: op.stride[0], :: op.stride[1]][:, :rows, :columns]


def _conv_call(t: Tiling, held, a: int, pad: np.ndarray, origin, accumulate: bool, i: int, c: Calls) -> None:
    (xo, x), (wo, w) = held[a, "inputs"], held[a, "weights"]
    start = wo[3] - xo[3]  # input channels that are done already
    kernel = origin[3] - wo[0] if pad.shape[3] < w.shape[0] else 0
    x = _padded(t, x[..., start : start + w.shape[3]], int(c.tile["inputs"][i]))
    view = _windows(t.operator, x, *pad.shape[1:3])
    part = np.einsum("npqcrs,krsc->npqk", view, w[kernel : kernel + pad.shape[3]], optimize=True)
    if part.shape == pad.shape:
        pad[...] = pad + part if accumulate else part


def _fc_call(t: Tiling, held, a: int, pad: np.ndarray, origin, accumulate: bool, i: int, c: Calls) -> None:
    (xo, x), (wo, w) = held[a, "inputs"], held[a, "weights"]
    start, kernel = wo[1] - xo[1], max(origin[1] - wo[0], 0)
    part = x[:, start : start + w.shape[1]] @ w[kernel : kernel + pad.shape[1]].T
    at = max(wo[0] - origin[1], 0)  # finished neurons
    view = pad[:, at : at + part.shape[1]]
    view[...] = view + part if accumulate else part


def _pool_call(t: Tiling, held, a: int, pad: np.ndarray, origin, accumulate: bool, i: int, c: Calls) -> None:
    xo, x = held[a, "inputs"]
    view = _windows(t.operator, _padded(t, x, int(c.tile["inputs"][i])), *pad.shape[1:3]).max(axis=(4, 5))
    target = pad[..., xo[3] - origin[3] : xo[3] - origin[3] + x.shape[3]]
    if target.shape == view.shape:
        target[...] = view


def _spread(op: Operator, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """A transposed convolution that nothing crops: [n, h, w, c] with [m, kh, kw, c]."""
    (n, h, q, _), (m, kh, kw, _), (sh, sw), (dh, dw) = x.shape, w.shape, op.stride, op.dilation
    out = np.zeros((n, (h - 1) * sh + (kh - 1) * dh + 1, (q - 1) * sw + (kw - 1) * dw + 1, m))
    for i in range(h):
        for j in range(q):
            for r in range(kh):
                for s in range(kw):
                    out[:, i * sh + r * dh, j * sw + s * dw] += x[:, i, j] @ w[:, r, s].T
    return out


def _transposed_call(
    t: Tiling, held, a: int, pad: np.ndarray, origin, accumulate: bool, i: int, c: Calls
) -> None:
    (xo, x), (wo, w) = held[a, "inputs"], held[a, "weights"]
    start, kernel = wo[3] - xo[3], origin[3] - wo[0] if pad.shape[3] < w.shape[0] else 0
    found = _spread(t.operator, x[..., start : start + w.shape[3]], w[kernel : kernel + pad.shape[3]])
    top, left = origin[1] - (xo[1] * t.operator.stride[0] - t.operator.pads[0]), t.operator.pads[2]
    pad += found[:, top : top + pad.shape[1], left : left + pad.shape[2]]


def _depthwise_call(
    t: Tiling, held, a: int, pad: np.ndarray, origin, accumulate: bool, i: int, c: Calls
) -> None:
    x, w = _padded(t, held[a, "inputs"][1], int(c.tile["inputs"][i])), held[a, "weights"][1]
    pad[...] = np.einsum("npqcrs,rsc->npqc", _windows(t.operator, x, *pad.shape[1:3]), w[0])


def _norm_call(t: Tiling, held, a: int, pad: np.ndarray, origin, accumulate: bool, i: int, c: Calls) -> None:
    (xo, x), (wo, w) = held[a, "inputs"], held[a, "weights"]
    # weights cut, activations not: the weights' slice of the row
    if w.shape[1] < x.shape[-1]:
        pad[..., wo[1] : wo[1] + w.shape[1]] = _normal(x[..., wo[1] : wo[1] + w.shape[1]], w)
    else:
        pad[...] = _normal(x, w[:, xo[-1] - wo[1] : xo[-1] - wo[1] + x.shape[-1]])


def _normal(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    return (x - w[0]) / np.sqrt(w[1] + 1) * w[2] + w[3]


def _add_call(t: Tiling, held, a: int, pad: np.ndarray, origin, accumulate: bool, i: int, c: Calls) -> None:
    pad[...] = sum(x for (owner, _), (_, x) in held.items() if owner == a)


def _softmax_call(
    t: Tiling, held, a: int, pad: np.ndarray, origin, accumulate: bool, i: int, c: Calls
) -> None:
    e = np.exp(held[a, "inputs"][1])
    pad[...] = e / e.sum(axis=1, keepdims=True)


def _attention_call(
    t: Tiling, held, a: int, pad: np.ndarray, origin, accumulate: bool, i: int, c: Calls
) -> None:
    """One pass over the context: sums are rescaled when a larger score comes."""
    q, k, v = (held[a, name][1][0] for name in ("inputs", "keys", "values"))
    scores = q @ k.T
    top, total, sums = (
        STATE[a] if accumulate else (np.full(len(q), -np.inf), np.zeros(len(q)), np.zeros(q.shape))
    )
    higher = np.maximum(top, scores.max(axis=1))
    e, shrink = np.exp(scores - higher[:, None]), np.exp(top - higher)
    STATE[a] = higher, total * shrink + e.sum(axis=1), sums * shrink[:, None] + e @ v
    pad[0] = STATE[a][2] / STATE[a][1][:, None]


# running maximum, sum of exponentials, weighted values per accelerator
STATE: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
KERNELS = {
    "attention": _attention_call,
    "convolution": _conv_call,
    "inner_product": _fc_call,
    "pooling": _pool_call,
    "depthwise": _depthwise_call,
    "batch_norm": _norm_call,
    "unary": _add_call,
    "elementwise": _add_call,
    "softmax": _softmax_call,
    "rows": _add_call,
    "transposed": _transposed_call,
}


def arrays(t: Tiling, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Whole numbers for every input; flat tensors as they are stored."""
    return {
        name: np.abs(rng.integers(-4, 5, tiled.shape)).astype(float)
        if t.operator.kind == "batch_norm"
        else rng.integers(-4, 5, tiled.shape).astype(float)
        for name, tiled in t.tensors.items()
        if name != "outputs"
    }


def wrong(t: Tiling, accelerators: int = 1, seed: int = 0) -> bool:
    """Whether the tiled operator differs from the untiled one."""
    given = arrays(t, np.random.default_rng(seed))
    return not np.allclose(run(t, given, accelerators), whole(t.operator, given))


def whole(op: Operator, arrays: dict[str, np.ndarray]) -> np.ndarray:
    """The same operator, not tiled."""
    x = arrays["inputs"]
    if op.kind in ("convolution", "depthwise", "pooling"):
        rows, columns = op.windows()
        padded = np.pad(
            x,
            ((0, 0), op.pads[:2], op.pads[2:], (0, 0)),
            constant_values=-np.inf if op.kind == "pooling" else 0,
        )
        view = _windows(op, padded, rows.outputs(x.shape[1]), columns.outputs(x.shape[2]))
        if op.kind == "pooling":
            return view.max(axis=(4, 5))
        if op.kind == "depthwise":
            return np.einsum("npqcrs,rsc->npqc", view, arrays["weights"][0])
        return np.einsum("npqcrs,krsc->npqk", view, arrays["weights"], optimize=True)
    if op.kind == "transposed":
        top, bottom, left, right = op.pads
        found = _spread(op, x, arrays["weights"])
        return found[:, top : found.shape[1] - bottom, left : found.shape[2] - right]
    if op.kind == "inner_product":
        return x @ arrays["weights"].T
    if op.kind == "batch_norm":
        return _normal(x, arrays["weights"])
    if op.kind == "attention":
        e = np.exp(x @ arrays["keys"].transpose(0, 2, 1))
        return e / e.sum(axis=2, keepdims=True) @ arrays["values"]
    if op.kind == "softmax":
        return np.exp(x) / np.exp(x).sum(axis=1, keepdims=True)
    return sum(a for name, a in arrays.items() if name != "outputs")
