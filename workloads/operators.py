"""ONNX operators as einsums: one function per operator, Op -> Einsum, and the table OPERATORS of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from workloads.arrays import Array
from workloads.einsum import Einsum, einsum

Shape = tuple[int, ...]

UNARY = {
    "Relu",
    "LeakyRelu",
    "Elu",
    "Selu",
    "Celu",
    "ThresholdedRelu",
    "Sigmoid",
    "HardSigmoid",
    "HardSwish",
    "Tanh",
    "Softplus",
    "Softsign",
    "Gelu",
    "Erf",
    "Mish",
    "Swish",
    "Exp",
    "Log",
    "Sqrt",
    "Reciprocal",
    "Abs",
    "Neg",
    "Sign",
    "Floor",
    "Ceil",
    "Round",
    "Clip",
    "Cast",
    "Not",
    "Sin",
    "Cos",
    "Tan",
    "Asin",
    "Acos",
    "Atan",
    "Sinh",
    "Cosh",
    "Asinh",
    "Acosh",
    "Atanh",
    "IsNaN",
    "IsInf",
    "Shrink",
    "BitwiseNot",
}
BINARY = {
    "Add",
    "Sub",
    "Mul",
    "Div",
    "Pow",
    "PRelu",
    "Sum",
    "Max",
    "Min",
    "Mean",
    "Mod",
    "Equal",
    "Less",
    "Greater",
    "LessOrEqual",
    "GreaterOrEqual",
    "And",
    "Or",
    "Xor",
    "Where",
    "QuantizeLinear",
    "DequantizeLinear",
    "BitShift",
    "BitwiseAnd",
    "BitwiseOr",
    "BitwiseXor",
    "CastLike",
}
BY_CHANNEL = {"BatchNormalization", "InstanceNormalization", "GroupNormalization"}
ROWWISE = {
    "Softmax",
    "LogSoftmax",
    "Hardmax",
    "LayerNormalization",
    "RMSNormalization",
    "MeanVarianceNormalization",
    "LpNormalization",
    "CumSum",
}
# products of activations and weights, of any element type
PRODUCTS = {
    "Conv",
    "ConvInteger",
    "QLinearConv",
    "ConvTranspose",
    "Gemm",
    "MatMul",
    "FusedMatMul",
    "MatMulInteger",
    "QLinearMatMul",
}
MOVES = {
    "Expand",
    "Tile",
    "Resize",
    "Upsample",
    "DepthToSpace",
    "SpaceToDepth",
    "GatherElements",
    "GatherND",
    "ScatterElements",
    "ScatterND",
    "Trilu",
    "GridSample",
    "AffineGrid",
    "RoiAlign",
    "MaxRoiPool",
}
# operators without an einsum of their own that are certainly no products: they choose, order, count or fill
NO_PRODUCT = {
    "TopK",
    "NonZero",
    "OneHot",
    "Unique",
    "Compress",
    "NonMaxSuppression",
    "ReverseSequence",
    "Scatter",
    "TensorScatter",
    "CenterCropPad",
    "Col2Im",
    "EyeLike",
    "Bernoulli",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
    "Range",
    "ConstantOfShape",
    "Shape",
    "Size",
    "DynamicQuantizeLinear",
    "MaxUnpool",
    "ImageDecoder",
    "Optional",
    "Reshape",
    "Flatten",
    "Squeeze",
    "Unsqueeze",
    "Identity",
    "Dropout",
    "SplitToSequence",
    "ConcatFromSequence",
    "SequenceAt",
    "SequenceConstruct",
    "SequenceEmpty",
    "SequenceInsert",
    "SequenceErase",
    "SequenceLength",
}
OUT, KERNEL = "pqo", "rst"
NAMED = {1: ("d",), 2: ("n", "c"), 3: ("b", "m", "d"), 4: ("n", "c", "p", "q"), 5: ("n", "c", "p", "q", "o")}


@dataclass(frozen=True, slots=True)
class Op:
    """One ONNX node, as its einsum needs it."""

    kind: str
    inputs: tuple[str, ...]  # names of tensors in the workload
    shapes: tuple[Shape, ...]  # of the inputs
    values: tuple[Array | None, ...]  # small constant values of the inputs; None: unknown
    output: str  # name of the tensor in the workload
    shape: Shape  # of the output
    attrs: dict[str, Any]
    before: int = 0  # Split: elements along the axis in the outputs before this one


def _windows(op: Op, kernel: Shape, image: Shape) -> str:
    """Returns indices into a padded image: stride*p + dilation*r - pad for each spatial dimension."""
    n = len(kernel)
    strides, dilations = op.attrs.get("strides") or [1] * n, op.attrs.get("dilations") or [1] * n
    pads = list(op.attrs.get("pads") or [0] * 2 * n)
    auto = op.attrs.get("auto_pad", b"NOTSET").decode()
    parts = []
    for i in range(n):
        pad = pads[i]
        if auto.startswith("SAME"):
            total = max((op.shape[2 + i] - 1) * strides[i] + dilations[i] * (kernel[i] - 1) + 1 - image[i], 0)
            pad = total // 2 if auto == "SAME_UPPER" else total - total // 2
        parts.append(f"{strides[i]}*{OUT[i]}+{dilations[i]}*{KERNEL[i]}-{pad if auto != 'VALID' else 0}")
    return ",".join(parts)


def _spatial(letters: str, sizes: Sequence[int]) -> dict[str, int]:
    return dict(zip(letters, sizes, strict=False))


def _conv(op: Op) -> Einsum | None:
    (n, channels, *image), (filters, depth, *kernel) = op.shapes[:2]
    if len(kernel) > len(KERNEL):
        return None
    x, w = op.inputs[:2]
    g = op.attrs.get("group", 1)
    p, r = ",".join(OUT[: len(kernel)]), ",".join(KERNEL[: len(kernel)])
    text = (
        f"{op.output}[n,g,k,{p}] += {x}[n,g,c,{_windows(op, tuple(kernel), tuple(image))}] * {w}[g,k,c,{r}]"
    )
    extents = {
        "n": n,
        "g": g,
        "k": filters // g,
        "c": depth,
        **_spatial(OUT, op.shape[2:]),
        **_spatial(KERNEL, kernel),
    }
    return einsum(text, extents, sizes={x: (n, g, channels // g, *image)})


def _conv_transpose(op: Op) -> Einsum:
    """Returns the einsum of a transposed convolution: every input element is spread over a window of the
    output, whose border is cropped by the pads.
    """
    (n, channels, *image), (_, filters, *kernel) = op.shapes[:2]
    x, w = op.inputs[:2]
    g, n_dims = op.attrs.get("group", 1), len(kernel)
    strides, dilations = op.attrs.get("strides") or [1] * n_dims, op.attrs.get("dilations") or [1] * n_dims
    spread = [
        (image[i] - 1) * strides[i] + dilations[i] * (kernel[i] - 1) + 1 - op.shape[2 + i]
        for i in range(n_dims)
    ]
    pads = op.attrs.get("pads") or [max(s, 0) // 2 for s in spread]
    index = ",".join(f"{strides[i]}*{OUT[i]}+{dilations[i]}*{KERNEL[i]}-{pads[i]}" for i in range(n_dims))
    p, r = ",".join(OUT[:n_dims]), ",".join(KERNEL[:n_dims])
    extents = {
        "n": n,
        "g": g,
        "k": filters,
        "c": channels // g,
        **_spatial(OUT, image),
        **_spatial(KERNEL, kernel),
    }
    return einsum(
        f"{op.output}[n,g,k,{index}] += {x}[n,g,c,{p}] * {w}[g,c,k,{r}]",
        extents,
        sizes={op.output: (n, g, filters, *op.shape[2:])},
    )


def _deform_conv(op: Op) -> Einsum | None:
    """Returns the einsum of a deformable convolution, whose taps are read at positions given by offsets (and
    a mask). Offsets and mask are operands; the window counts as wide as without offsets.
    """
    (n, channels, *image), (filters, depth, *kernel) = op.shapes[:2]
    groups, own = op.attrs.get("group", 1), op.attrs.get("offset_group", 1)
    if len(kernel) != 2 or (groups > 1 and own > 1):
        return None
    x, w, offset = op.inputs[:3]
    taps, part = kernel[0] * kernel[1], depth // own
    c = f"{part}*u+c" if own > 1 else "c"
    extents = {
        "n": n,
        "g": groups,
        "u": own,
        "k": filters // groups,
        "c": part,
        **_spatial(OUT, op.shape[2:]),
        **_spatial(KERNEL, kernel),
    }
    group = f"{2 * taps}*u+" if own > 1 else ""
    reads = [
        f"{x}[n,g,{c},{_windows(op, tuple(kernel), tuple(image))}]",
        f"{w}[g,k,{c},r,s]",
        f"{offset}[n,{group}{2 * kernel[1]}*r+2*s,p,q]",
    ]
    sizes = {x: (n, groups, channels // groups, *image), offset: op.shapes[2]}
    for mask, shape in zip(op.inputs[3:], op.shapes[3:], strict=True):
        if len(shape) == 4:  # else a bias
            group = f"{taps}*u+" if own > 1 else ""
            reads.append(f"{mask}[n,{group}{kernel[1]}*r+s,p,q]")
            sizes[mask] = shape
    return einsum(f"{op.output}[n,g,k,p,q] += {' * '.join(reads)}", extents, sizes=sizes)


def _gemm(op: Op) -> Einsum:
    a, b = op.inputs[:2]
    left, right = "k,m" if op.attrs.get("transA") else "m,k", "n,k" if op.attrs.get("transB") else "k,n"
    k = op.shapes[0][0 if op.attrs.get("transA") else 1]
    return einsum(
        f"{op.output}[m,n] += {a}[{left}] * {b}[{right}]", {"m": op.shape[0], "n": op.shape[1], "k": k}
    )


def _matmul(op: Op) -> Einsum:
    """Returns the einsum of MatMul of any rank: leading dimensions are batches and broadcast, a vector has no
    m or no n.
    """
    (a, b), (left, right) = op.inputs[:2], op.shapes[:2]
    # FusedMatMul: swap the last two dimensions
    over, under = (bool(op.attrs.get(key)) for key in ("transA", "transB"))
    # FusedMatMul: before that, move dimension 0 behind the batches
    early = [bool(op.attrs.get(key)) for key in ("transBatchA", "transBatchB")]
    left, right = (
        (*s[1:-1], s[0], s[-1]) if first else s for s, first in zip((left, right), early, strict=True)
    )
    m, n = ["m"] * (len(left) > 1), ["n"] * (len(right) > 1)
    batches = [f"b{i}" for i in range(len(op.shape) - len(m) - len(n))]
    extents = dict(zip((*batches, *m, *n), op.shape, strict=True)) | {"k": left[-2 if over else -1]}

    def outer(shape: Shape) -> list[str]:
        shape = shape[:-2]
        return [
            rank if size > 1 else "0"
            for rank, size in zip(batches[len(batches) - len(shape) :], shape, strict=True)
        ]

    x, y = (*m, "k")[:: -1 if over else 1], ("k", *n)[:: -1 if under else 1]
    indices = [(*outer(left), *x), (*outer(right), *y)]
    i, j = (
        ",".join((index[-2], *index[:-2], index[-1]) if first else index)
        for index, first in zip(indices, early, strict=True)
    )
    return einsum(f"{op.output}[{','.join((*batches, *m, *n))}] += {a}[{i}] * {b}[{j}]", extents)


def plain(equation: str, shapes: Sequence[Shape]) -> tuple[list[str], str] | None:
    """Returns the indices of the operands and of the result of an ONNX Einsum. None if an index occurs twice
    in an operand, or an index of only one operand is summed.

    An ellipsis becomes indices; operands are aligned at its last dimension.
    >>> plain("...ij,jk", [(7, 2, 3), (3, 4)])
    (['Aij', 'jk'], 'Aik')
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    operands = left.split(",")
    if len(operands) < 2 or len(operands) != len(shapes):
        return None
    free = [c for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if c not in equation]
    dots = [
        len(shape) - len(part.replace("...", "")) if "..." in part else 0
        for part, shape in zip(operands, shapes, strict=True)
    ]
    whole = free[: max(dots)]
    parts = [
        part.replace("...", "".join(whole[len(whole) - n :])) for part, n in zip(operands, dots, strict=True)
    ]
    every = "".join(parts)
    once = "".join(sorted(c for c in every if every.count(c) == 1 and c not in whole))
    out = right.replace("...", "".join(whole)) if arrow else "".join(whole) + once
    fits = all(
        part.isalpha() and len(set(part)) == len(part) == len(shape)
        for part, shape in zip(parts, shapes, strict=True)
    )
    alone = {c for c in every if every.count(c) == 1} - set(out)
    return (
        (parts, out) if fits and len(set(out)) == len(out) and set(out) <= set(every) and not alone else None
    )


def _einsum(op: Op) -> Einsum | None:
    """Returns the einsum of an ONNX Einsum with `plain` operands, one nest for all of them; None for other
    equations.
    """
    equation = op.attrs["equation"]
    found = plain(equation.decode() if isinstance(equation, bytes) else equation, op.shapes)
    if found is None:
        return None
    parts, out = found
    sizes = [
        (c, size)
        for part, shape in zip(parts, op.shapes, strict=True)
        for c, size in zip(part, shape, strict=True)
    ]
    extents = {c: max(size for d, size in sizes if d == c) for c, _ in sizes}
    reads = []
    for tensor, part, shape in zip(op.inputs, parts, op.shapes, strict=True):
        index = ",".join(c if size == extents[c] else "0" for c, size in zip(part, shape, strict=True))
        reads.append(f"{tensor}[{index}]")
    return einsum(f"{op.output}[{','.join(out)}] += {' * '.join(reads)}", extents)


def recurrent(op: Op, gates: int) -> list[Einsum]:
    """Returns the einsums of a recurrent layer: the product of all its inputs at once; then, for each step,
    the product of the state, and the gates. The caller repeats the last two.

    op: inputs X, W, R, first state, first cell (LSTM only); its output has the states of all steps, of which
        a step writes its own row. Directions are dimension 0 of W, R and the states, or left out; layout 1: X
        has the batch first. A first state of zeros is multiplied like any other.
    """
    (x, w, r, h, c), (xs, ws, rs) = op.inputs, op.shapes[:3]
    ways, hidden = ws[0] if len(ws) == 3 else 1, rs[-1]
    steps, batch = xs[:2][::-1] if op.attrs.get("layout") else xs[:2]
    extents = {
        "t": steps,
        "b": batch,
        "d": ways,
        "z": gates * hidden,
        "i": xs[-1],
        "k": hidden,
        "g": gates,
        "h": hidden,
    }
    rows, way = ("b,t" if op.attrs.get("layout") else "t,b"), "d," if len(ws) == 3 else ""
    out, zx = op.output, (*xs[:2], ways, gates * hidden)
    step = f"{out}_x[0,b,d,{hidden}*g+h]" if rows == "t,b" else f"{out}_x[b,0,d,{hidden}*g+h]"
    memory = f", {c}[d,b,h]" if op.kind == "LSTM" else f", {h}[d,b,h]"
    found = [
        einsum(f"{out}_x[{rows},d,z] += {x}[{rows},i] * {w}[{way}z,i]", extents),
        einsum(f"{out}_h[b,d,z] += {h}[d,b,k] * {r}[{way}z,k]", extents),
    ]
    sizes = {f"{out}_x": zx, f"{out}_h": (batch, ways, gates * hidden)}
    end = f"{op.kind.lower()}({step}, {out}_h[b,d,{hidden}*g+h]{memory})"
    return [*found, einsum(f"{out}[b,d,h] = {end}", extents, sizes=sizes)]


def _pool(op: Op) -> Einsum:
    kernel, image = tuple(op.attrs["kernel_shape"]), op.shapes[0][2:]
    assign = "max=" if op.kind == "MaxPool" else "+="
    x, p = op.inputs[0], ",".join(OUT[: len(kernel)])
    extents = {"n": op.shape[0], "c": op.shape[1], **_spatial(OUT, op.shape[2:]), **_spatial(KERNEL, kernel)}
    return einsum(
        f"{op.output}[n,c,{p}] {assign} {x}[n,c,{_windows(op, kernel, image)}]",
        extents,
        sizes={x: op.shapes[0]},
    )


def _global_pool(op: Op) -> Einsum:
    return _reduced(
        replace(op, shape=(*op.shape[:2], *[1] * (len(op.shapes[0]) - 2))), set(range(2, len(op.shapes[0])))
    )


def _reduce(op: Op) -> Einsum:
    given = op.attrs.get("axes")
    if given is None and len(op.values) > 1:
        if op.values[1] is None:
            return movement(op)
        given = [int(v) for v in np.ravel(op.values[1])]
    if op.kind.startswith("Arg"):
        given = [op.attrs.get("axis", 0)]
    rank = len(op.shapes[0])
    return _reduced(op, {a % rank for a in given} if given else set(range(rank)))


def _reduced(op: Op, axes: set[int]) -> Einsum:
    ranks = _ranks(len(op.shapes[0]))
    kept = [r for i, r in enumerate(ranks) if i not in axes]
    dims = kept if len(op.shape) == len(kept) else [r if i not in axes else "0" for i, r in enumerate(ranks)]
    assign = "max=" if op.kind in ("GlobalMaxPool", "ReduceMax", "ReduceMin", "ArgMax", "ArgMin") else "+="
    return einsum(
        f"{op.output}[{','.join(dims)}] {assign} {op.inputs[0]}[{','.join(ranks)}]",
        dict(zip(ranks, op.shapes[0], strict=True)),
    )


def _layer_norm(op: Op) -> Einsum:
    """Returns the einsum of the normalised rows, or of the mean or deviation of each row."""
    if op.shape == op.shapes[0]:
        return elementwise(op)
    return _reduced(
        op, {i for i, (size, whole) in enumerate(zip(op.shape, op.shapes[0], strict=True)) if size != whole}
    )


def _rotary(op: Op) -> Einsum:
    """Returns the einsum that rotates pairs of a row's elements by an angle that depends on the position.
    Heads are dimension 1, or share a dimension with the elements.
    """
    (x, *tables), (shape, *sizes) = op.inputs[:3], op.shapes[:3]
    heads = op.attrs.get("num_heads", 0) or (shape[1] if len(shape) == 4 else 0)
    head = shape[3] if len(shape) == 4 else shape[2] // heads if heads else 0
    if not heads or op.attrs.get("rotary_embedding_dim", 0) not in (0, head):
        return movement(op)
    pair = "i,j" if op.attrs.get("interleaved") else "j,i"
    at = f"b,h,t,{pair}" if len(shape) == 4 else f"b,t,h,{pair}"
    turn = [
        f"{table}[{'b,t,i' if len(size) == 3 else 't,i'}]" for table, size in zip(tables, sizes, strict=True)
    ]
    extents = {"b": shape[0], "h": heads, "t": shape[2 if len(shape) == 4 else 1], "i": head // 2, "j": 2}
    return einsum(
        f"{op.output}[{at}] = rope({x}[{at}], {', '.join(turn)})",
        extents,
        sizes=dict(zip(tables, sizes, strict=True)),
    )


def attention(op: Op, scores: str, present: tuple[str, str]) -> list[Einsum]:
    """Returns attention as scores, softmax of their rows, and product with the values. Scale and mask are
    applied within the softmax.

    op: inputs Q, K, V, mask, past K, past V; "" where there is none. With a past, keys and values are first
        appended to it, in the tensors `present`: data movement, as the operator defines. A causal mask saves
        no MACs.
    """
    (q, k, v, mask, *past), (qs, ks, vs, ms, *ps) = op.inputs, op.shapes
    flat = len(qs) == 3  # heads share a dimension with the elements; else they are dimension 1
    kv = op.attrs["kv_num_heads"] if flat else ks[1]
    heads = op.attrs["q_num_heads"] if flat else qs[1]
    new, batch = ks[1 if flat else 2], max(qs[0], ks[0], vs[0])  # constant queries may serve all samples
    extents = {
        "b": batch,
        "g": kv,
        "h": heads // kv,
        "q": qs[1 if flat else 2],
        "t": new,
        "d": qs[-1] // heads if flat else qs[-1],
        "e": vs[-1] // kv if flat else vs[-1],
    }
    made, names, rows = [], [k, v], "b,t,g" if flat else "b,g,t"
    if past[0]:
        before = ps[0][2]
        extents["t"] += before
        for i, (tensor, rank) in enumerate(((k, "d"), (v, "e"))):
            own, names[i] = (
                (qs[0], new, kv, extents[rank]) if flat else (qs[0], kv, new, extents[rank]),
                present[i],
            )
            text = (
                f"{present[i]}[b,g,t,{rank}] = copy({past[i]}[b,g,t,{rank}], "
                f"{tensor}[{rows.replace('t', f't-{before}')},{rank}])"
            )
            made.append(einsum(text, extents, sizes={past[i]: ps[i], tensor: own}))
        rows = "b,g,t"
    b = {True: "b", False: "0"}
    whole = "b,q,g,h" if flat else "b,g,h,q"
    dims = dict(zip(("t", "q", f"{heads // kv}*g+h", "b"), ms[::-1], strict=False))
    limits = (
        f", {mask}[{','.join(rank if size > 1 else '0' for rank, size in reversed(dims.items()))}]"
        if mask
        else ""
    )
    whole_q, rows_k, rows_v = (
        b[s[0] == batch] + index[1:] for s, index in ((qs, whole), (ks, rows), (vs, rows))
    )
    made.append(einsum(f"{scores}[b,g,h,q,t] += {q}[{whole_q},d] * {names[0]}[{rows_k},d]", extents))
    made.append(einsum(f"{scores}_softmax[b,g,h,q,t] = softmax({scores}[b,g,h,q,t]{limits})", extents))
    return [
        *made,
        einsum(f"{op.output}[{whole},e] += {scores}_softmax[b,g,h,q,t] * {names[1]}[{rows_v},e]", extents),
    ]


def _lrn(op: Op) -> Einsum:
    """Returns local response normalisation: a window over channels, which includes the element itself."""
    size, ranks = op.attrs["size"], _ranks(len(op.shape))
    window = f"{ranks[1]}+w-{(size - 1) // 2}"
    text = f"{op.output}[{','.join(ranks)}] = lrn({op.inputs[0]}[{','.join((ranks[0], window, *ranks[2:]))}])"
    return einsum(
        text, dict(zip(ranks, op.shape, strict=True)) | {"w": size}, sizes={op.inputs[0]: op.shapes[0]}
    )


def _ranks(n: int) -> tuple[str, ...]:
    return NAMED.get(n) or tuple(f"d{i}" for i in range(n))


def _broadcast(ranks: Sequence[str], shape: Shape, first: int) -> str:
    """Returns the index of an operand whose dimension 0 is aligned with output dimension `first`."""
    return ",".join(rank if size > 1 else "0" for rank, size in zip(ranks[first:], shape, strict=False))


def _pointwise(op: Op, kind: str, firsts: Sequence[int]) -> Einsum:
    ranks = _ranks(len(op.shape))
    reads = [
        f"{t}[{_broadcast(ranks, s, first)}]"
        for t, s, first in zip(op.inputs, op.shapes, firsts, strict=True)
    ]
    kind = kind if len(reads) > 1 or kind not in ("add", "mul") else f"{kind}_self"
    return einsum(
        f"{op.output}[{','.join(ranks)}] = {kind}({', '.join(reads)})",
        dict(zip(ranks, op.shape, strict=True)),
    )


def elementwise(op: Op) -> Einsum:
    """Returns the einsum of any function of operands that broadcast to the output, aligned at the last
    dimension.
    """
    return _pointwise(
        op, "add" if op.kind == "Sum" else op.kind.lower(), [len(op.shape) - len(s) for s in op.shapes]
    )


def by_channel(op: Op) -> Einsum:
    """Returns the einsum of an element-wise function whose vectors are aligned at dimension 1."""
    # with statistics of the batch it is no one-to-one function, which the name tells
    trained = "_training" if op.attrs.get("training_mode") else ""
    return _pointwise(
        op, op.kind.lower() + trained, [1 if len(s) == 1 else len(op.shape) - len(s) for s in op.shapes]
    )


def _concat(op: Op) -> Einsum:
    """Returns the copy of inputs side by side along an axis. Each input has an offset in its index; where
    that leaves the stored shape, nothing is read.
    """
    ranks, axis = _ranks(len(op.shape)), op.attrs["axis"] % len(op.shape)
    offset, reads, sizes = 0, [], {}
    for tensor, shape in zip(op.inputs, op.shapes, strict=True):
        reads.append(
            f"{tensor}[{','.join(f'{r}-{offset}' if i == axis else r for i, r in enumerate(ranks))}]"
        )
        sizes[tensor] = shape
        offset += shape[axis]
    return einsum(
        f"{op.output}[{','.join(ranks)}] = copy({', '.join(reads)})",
        dict(zip(ranks, op.shape, strict=True)),
        sizes=sizes,
    )


def _transpose(op: Op) -> Einsum:
    ranks = _ranks(len(op.shape))
    source = dict(zip(op.attrs.get("perm", range(len(ranks))[::-1]), ranks, strict=True))
    index = ",".join(source[i] for i in range(len(ranks)))
    return einsum(
        f"{op.output}[{','.join(ranks)}] = {op.inputs[0]}[{index}]", dict(zip(ranks, op.shape, strict=True))
    )


def _region(op: Op, starts: Sequence[int], steps: Sequence[int]) -> Einsum:
    """Returns the copy of a strided box: output index i reads step * i + start."""
    ranks = _ranks(len(op.shape))
    index = ",".join(f"{step}*{r}{start:+d}" for r, start, step in zip(ranks, starts, steps, strict=True))
    extents = dict(zip(ranks, op.shape, strict=True))
    return einsum(
        f"{op.output}[{','.join(ranks)}] = {op.inputs[0]}[{index}]",
        extents,
        sizes={op.inputs[0]: op.shapes[0]},
    )


def _slice(op: Op) -> Einsum:
    given = [op.attrs.get("starts"), op.attrs.get("ends"), op.attrs.get("axes"), op.attrs.get("steps")]
    lists = [
        g if g is not None else None if v is None else np.ravel(v).tolist()
        for g, v in zip(given, (*op.values[1:], None, None, None, None), strict=False)
    ]
    rank = len(op.shape)
    axes, steps = lists[2] or list(range(len(lists[0] or ()))), lists[3] or [1] * len(lists[0] or ())
    if lists[0] is None or min(steps, default=1) < 1 or any(v is None for v in op.values[1:]):
        return movement(op)
    box, stride = [0] * rank, [1] * rank
    for start, axis, step in zip(lists[0], axes, steps, strict=True):
        size = op.shapes[0][axis % rank]
        box[axis % rank], stride[axis % rank] = min(start + size if start < 0 else start, size), step
    return _region(op, box, stride)


def _slice_scatter(op: Op) -> Einsum:
    """Returns the copy of a tensor in which rows are replaced by another tensor's. Both are read, the second
    one at the position of its rows.
    """
    ranks, axis, start = _ranks(len(op.shape)), op.attrs["axis"], op.attrs["start"]
    own = ",".join(f"{r}-{start}" if i == axis else r for i, r in enumerate(ranks))
    text = f"{op.output}[{','.join(ranks)}] = copy({op.inputs[1]}[{own}], {op.inputs[0]}[{','.join(ranks)}])"
    return einsum(text, dict(zip(ranks, op.shape, strict=True)), sizes={op.inputs[1]: op.shapes[1]})


def _split(op: Op) -> Einsum:
    axis = op.attrs.get("axis", 0) % len(op.shape)
    return _region(op, [op.before if i == axis else 0 for i in range(len(op.shape))], [1] * len(op.shape))


def _pad(op: Op) -> Einsum:
    pads = op.attrs.get("pads") or (
        None if len(op.values) < 2 or op.values[1] is None else [int(v) for v in op.values[1]]
    )
    if pads is None or len(pads) != 2 * len(op.shape):
        return movement(op)
    return _region(op, [-p for p in pads[: len(op.shape)]], [1] * len(op.shape))


def _gather(op: Op) -> Einsum:
    """Returns the copy of one slice of the table per index. At most the whole table is read, and the indices
    unless they are constant.
    """
    (table, ids), axis = op.shapes[:2], op.attrs.get("axis", 0) % len(op.shapes[0])
    ranks = [f"d{i}" for i in range(len(op.shape))]
    own = ranks[axis : axis + len(ids)]
    strides = [prod(ids[i + 1 :]) for i in range(len(ids))]
    row = "+".join(f"{stride}*{rank}" for rank, stride in zip(own, strides, strict=True)) or "0"
    reads = [f"{op.inputs[0]}[{','.join((*ranks[:axis], row, *ranks[axis + len(ids) :]))}]"]
    if ids and op.values[1] is None:
        reads.append(f"{op.inputs[1]}[{','.join(own)}]")
    return einsum(
        f"{op.output}[{','.join(ranks)}] = copy({', '.join(reads)})",
        dict(zip(ranks, op.shape, strict=True)),
        sizes={op.inputs[0]: table},
    )


def movement(op: Op) -> Einsum:
    """Returns an einsum that reads every input once and writes the output.

    Where shapes do not broadcast, tensors count as vectors: output element i stands for ceil(inputs /
    outputs) input elements, the last ones clipped to the stored shape.
    """
    if all(
        len(s) <= len(op.shape) and all(a in (1, b) for a, b in zip(s[::-1], op.shape[::-1], strict=False))
        for s in op.shapes
    ):
        return _pointwise(op, "copy", [len(op.shape) - len(s) for s in op.shapes])
    elems, sizes = prod(op.shape), {t: (prod(s),) for t, s in zip(op.inputs, op.shapes, strict=True)}
    per = {t: -(-size // elems) for t, (size,) in sizes.items()}
    reads = ", ".join(f"{t}[{n}*i{'+j' if n > 1 else ''}]" for t, n in per.items())
    return einsum(f"{op.output}[i] = copy({reads})", {"i": elems, "j": max(per.values())}, sizes=sizes)


OPERATORS: dict[str, Callable[[Op], Einsum | None]] = {  # they return None for forms that are not supported
    "Conv": _conv,
    "DeformConv": _deform_conv,
    "ConvInteger": _conv,
    "QLinearConv": _conv,
    "ConvTranspose": _conv_transpose,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "FusedMatMul": _matmul,
    "MatMulInteger": _matmul,
    "QLinearMatMul": _matmul,
    "Einsum": _einsum,
    "MaxPool": _pool,
    "AveragePool": _pool,
    "LpPool": _pool,
    "GlobalAveragePool": _global_pool,
    "GlobalMaxPool": _global_pool,
    "LRN": _lrn,
    "Concat": _concat,
    "Transpose": _transpose,
    "Slice": _slice,
    "SliceScatter": _slice_scatter,
    "Split": _split,
    "Pad": _pad,
    "Gather": _gather,
    **dict.fromkeys(
        (
            "ReduceMean",
            "ReduceSum",
            "ReduceMax",
            "ReduceMin",
            "ReduceProd",
            "ReduceL1",
            "ReduceL2",
            "ReduceSumSquare",
            "ReduceLogSumExp",
            "ArgMax",
            "ArgMin",
        ),
        _reduce,
    ),
    **dict.fromkeys(UNARY | BINARY | ROWWISE, elementwise),
    **dict.fromkeys(BY_CHANNEL, by_channel),
    "LayerNormalization": _layer_norm,
    "RotaryEmbedding": _rotary,
}
