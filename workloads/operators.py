"""ONNX operators as einsums: one function per operator, Op -> Einsum, and the table OPERATORS of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from string import ascii_uppercase
from typing import Any, TypeVar

import numpy as np

from workloads.arrays import Array
from workloads.einsum import Einsum, einsum

Shape = tuple[int, ...]

T = TypeVar("T")


def names_in(text: str) -> frozenset[str]:
    """Returns the names in a text, separated by blanks."""
    return frozenset(text.split())


def by_name(table: Mapping[T, str]) -> dict[str, T]:
    """Returns the inverted table: name -> the key whose text lists it.

    >>> by_name({4: "INT4 UINT4", 8: "INT8"})
    {'INT4': 4, 'UINT4': 4, 'INT8': 8}
    """
    return {name: key for key, text in table.items() for name in text.split()}


UNARY = names_in(
    "Relu LeakyRelu Elu Selu Celu ThresholdedRelu Sigmoid HardSigmoid HardSwish Tanh Softplus Softsign Gelu "
    "Erf Mish Swish Exp Log Sqrt Reciprocal Abs Neg Sign Floor Ceil Round Clip Cast Not Sin Cos Tan Asin "
    "Acos Atan Sinh Cosh Asinh Acosh Atanh IsNaN IsInf Shrink BitwiseNot BitCast"
)
BINARY = names_in(
    "Add Sub Mul Div Pow PRelu Sum Max Min Mean Mod Equal Less Greater LessOrEqual GreaterOrEqual And Or Xor "
    "Where QuantizeLinear DequantizeLinear BitShift BitwiseAnd BitwiseOr BitwiseXor CastLike SwiGLU"
)
# functions whose vector operands are aligned at dimension 1 (`by_channel`)
BY_CHANNEL = names_in("BatchNormalization InstanceNormalization GroupNormalization")
# functions of whole rows; one einsum each, like element-wise ones
ROWWISE = names_in(
    "Softmax LogSoftmax Hardmax LayerNormalization RMSNormalization MeanVarianceNormalization LpNormalization"
)
# products of activations and weights, of any element type
PRODUCTS = names_in(
    "Conv ConvInteger QLinearConv ConvTranspose Gemm MatMul FusedMatMul MatMulInteger QLinearMatMul"
)
# data movement: the result is made of copied elements (`movement`)
MOVES = names_in(
    "Expand Tile Resize Upsample DepthToSpace SpaceToDepth GatherElements GatherND ScatterElements ScatterND "
    "Trilu GridSample AffineGrid RoiAlign MaxRoiPool"
)
# operators without an einsum of their own that are certainly no products: they choose, order, count or fill
NO_PRODUCT = names_in(
    "TopK NonZero OneHot Unique Compress NonMaxSuppression ReverseSequence Scatter TensorScatter "
    "CenterCropPad Col2Im EyeLike Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform "
    "RandomUniformLike Range ConstantOfShape Shape Size DynamicQuantizeLinear MaxUnpool ImageDecoder "
    "Optional Reshape Flatten Squeeze Unsqueeze Identity Dropout SplitToSequence ConcatFromSequence "
    "SequenceAt SequenceConstruct SequenceEmpty SequenceInsert SequenceErase SequenceLength "
    "OptionalGetElement OptionalHasElement HannWindow HammingWindow BlackmanWindow MelWeightMatrix "
    "StringConcat StringNormalizer StringSplit RegexFullMatch TfIdfVectorizer"
)
# ranks of up to three spatial dimensions: of the output, of the kernel
OUT_RANKS, KERNEL_RANKS = "pqo", "rst"
# number of dimensions -> ranks of an element-wise operator
RANK_NAMES = {
    1: ("d",),
    2: ("n", "c"),
    3: ("b", "m", "d"),
    4: ("n", "c", "p", "q"),
    5: ("n", "c", "p", "q", "o"),
}


@dataclass(frozen=True, slots=True)
class Op:
    """One ONNX node, as its einsum needs it."""

    kind: str
    inputs: tuple[str, ...]  # names of tensors in the workload
    shapes: tuple[Shape, ...]  # of the inputs
    output: str  # name of the tensor in the workload
    out_shape: Shape = ()  # of the output
    attrs: dict[str, Any] = field(default_factory=dict)
    values: tuple[Array | None, ...] = ()  # small constant values of the inputs; None: unknown
    split_offset: int = 0  # Split: elements along the axis in the outputs before this one


def strided(op: Op, n: int) -> tuple[Sequence[int], Sequence[int]]:
    """Returns strides and dilations of a window over n dimensions."""
    return op.attrs.get("strides") or [1] * n, op.attrs.get("dilations") or [1] * n


def _indices(op: Op, pads: Sequence[int]) -> str:
    """Returns indices into a padded image: stride*p + dilation*r - pad for each spatial dimension."""
    steps = zip(*strided(op, len(pads)), OUT_RANKS, KERNEL_RANKS, pads, strict=False)
    return ",".join(f"{stride}*{p}+{dilation}*{r}-{pad}" for stride, dilation, p, r, pad in steps)


def _windows(op: Op, kernel: Sequence[int], image: Sequence[int]) -> str:
    """Returns indices into an image that is padded as the attributes say."""
    n, auto = len(kernel), op.attrs.get("auto_pad", b"NOTSET").decode()
    pads = list(op.attrs.get("pads") or [0] * n)[:n] if auto != "VALID" else [0] * n
    if auto.startswith("SAME"):
        sizes = zip(op.out_shape[2:], *strided(op, n), kernel, image, strict=False)
        totals = [
            max((p - 1) * stride + dilation * (r - 1) + 1 - i, 0) for p, stride, dilation, r, i in sizes
        ]
        pads = [total // 2 if auto == "SAME_UPPER" else total - total // 2 for total in totals]
    return _indices(op, pads)


def _extents(outputs: Sequence[int], kernel: Sequence[int], **others: int) -> dict[str, int]:
    """Returns the extents of a windowed operator: ranks p, q, o (outputs), r, s, t (kernel), and others."""
    return (
        others | dict(zip(OUT_RANKS, outputs, strict=False)) | dict(zip(KERNEL_RANKS, kernel, strict=False))
    )


def _conv(op: Op) -> Einsum | None:
    (n, channels, *image), (filters, depth, *kernel) = op.shapes[:2]
    if len(kernel) > len(KERNEL_RANKS):
        return None
    x, w = op.inputs[:2]
    g = op.attrs.get("group", 1)
    p, r = ",".join(OUT_RANKS[: len(kernel)]), ",".join(KERNEL_RANKS[: len(kernel)])
    text = f"{op.output}[n,g,k,{p}] += {x}[n,g,c,{_windows(op, kernel, image)}] * {w}[g,k,c,{r}]"
    extents = _extents(op.out_shape[2:], kernel, n=n, g=g, k=filters // g, c=depth)
    return einsum(text, extents, sizes={x: (n, g, channels // g, *image)})


def _conv_transpose(op: Op) -> Einsum:
    """Returns the einsum of a transposed convolution: every input element is spread over a window of the
    output, whose border is cropped by the pads.
    """
    (n, channels, *image), (_, filters, *kernel) = op.shapes[:2]
    x, w = op.inputs[:2]
    g, dims = op.attrs.get("group", 1), len(kernel)
    sizes = zip(image, *strided(op, dims), kernel, op.out_shape[2:], strict=True)
    cropped = [(i - 1) * stride + dilation * (r - 1) + 1 - out for i, stride, dilation, r, out in sizes]
    pads = op.attrs.get("pads") or [max(s, 0) // 2 for s in cropped]
    p, r = ",".join(OUT_RANKS[:dims]), ",".join(KERNEL_RANKS[:dims])
    text = f"{op.output}[n,g,k,{_indices(op, pads[:dims])}] += {x}[n,g,c,{p}] * {w}[g,c,k,{r}]"
    extents = _extents(image, kernel, n=n, g=g, k=filters, c=channels // g)
    return einsum(text, extents, sizes={op.output: (n, g, filters, *op.out_shape[2:])})


def _deform_conv(op: Op) -> Einsum | None:
    """Returns the einsum of a deformable convolution, whose taps are read at positions given by offsets (and
    a mask). Offsets and mask are operands. Taps are counted at their positions without offsets.
    """
    (n, channels, *image), (filters, depth, *kernel) = op.shapes[:2]
    groups, offset_groups = op.attrs.get("group", 1), op.attrs.get("offset_group", 1)
    if len(kernel) != 2 or (groups > 1 and offset_groups > 1):
        return None
    x, w, offset = op.inputs[:3]
    taps, group_depth = kernel[0] * kernel[1], depth // offset_groups
    c = f"{group_depth}*u+c" if offset_groups > 1 else "c"
    extents = _extents(
        op.out_shape[2:], kernel, n=n, g=groups, u=offset_groups, k=filters // groups, c=group_depth
    )
    group = f"{2 * taps}*u+" if offset_groups > 1 else ""
    reads = [
        f"{x}[n,g,{c},{_windows(op, kernel, image)}]",
        f"{w}[g,k,{c},r,s]",
        f"{offset}[n,{group}{2 * kernel[1]}*r+2*s,p,q]",
    ]
    sizes = {x: (n, groups, channels // groups, *image), offset: op.shapes[2]}
    for mask, shape in zip(op.inputs[3:], op.shapes[3:], strict=True):
        if len(shape) == 4:  # else a bias
            group = f"{taps}*u+" if offset_groups > 1 else ""
            reads.append(f"{mask}[n,{group}{kernel[1]}*r+s,p,q]")
            sizes[mask] = shape
    return einsum(f"{op.output}[n,g,k,p,q] += {' * '.join(reads)}", extents, sizes=sizes)


def _gemm(op: Op) -> Einsum:
    a, b = op.inputs[:2]
    left, right = "k,m" if op.attrs.get("transA") else "m,k", "n,k" if op.attrs.get("transB") else "k,n"
    k = op.shapes[0][0 if op.attrs.get("transA") else 1]
    m, n = op.out_shape
    return einsum(f"{op.output}[m,n] += {a}[{left}] * {b}[{right}]", {"m": m, "n": n, "k": k})


def _matmul(op: Op) -> Einsum:
    """Returns the einsum of MatMul of any rank: leading dimensions are batches and broadcast, a vector has no
    m or no n.
    """
    (a, b), (left, right) = op.inputs[:2], op.shapes[:2]
    # FusedMatMul: swap the last two dimensions
    trans_a, trans_b = (bool(op.attrs.get(key)) for key in ("transA", "transB"))
    # FusedMatMul: before that, move dimension 0 behind the batches
    rows_first = [bool(op.attrs.get(key)) for key in ("transBatchA", "transBatchB")]
    left, right = (
        (*s[1:-1], s[0], s[-1]) if first else s for s, first in zip((left, right), rows_first, strict=True)
    )
    m, n = ["m"] * (len(left) > 1), ["n"] * (len(right) > 1)
    batches = [f"b{i}" for i in range(len(op.out_shape) - len(m) - len(n))]
    extents = dict(zip((*batches, *m, *n), op.out_shape, strict=True)) | {"k": left[-2 if trans_a else -1]}

    def batch_index(shape: Shape) -> list[str]:
        leading = shape[:-2]
        return [
            rank if size > 1 else "0"
            for rank, size in zip(batches[len(batches) - len(leading) :], leading, strict=True)
        ]

    x, y = (*m, "k")[:: -1 if trans_a else 1], ("k", *n)[:: -1 if trans_b else 1]
    indices = [(*batch_index(left), *x), (*batch_index(right), *y)]
    i, j = (
        ",".join((index[-2], *index[:-2], index[-1]) if first else index)
        for index, first in zip(indices, rows_first, strict=True)
    )
    return einsum(f"{op.output}[{','.join((*batches, *m, *n))}] += {a}[{i}] * {b}[{j}]", extents)


def plain_indices(equation: str, shapes: Sequence[Shape]) -> tuple[list[str], str] | None:
    """Returns the indices of the operands and of the result of an ONNX Einsum; None if the equation is not
    plain: an index occurs twice in an operand, or is summed and in only one operand.

    An ellipsis becomes indices; operands are aligned at its last dimension.
    >>> plain_indices("...ij,jk", [(7, 2, 3), (3, 4)])
    (['Aij', 'jk'], 'Aik')
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    operands = left.split(",")
    if len(operands) < 2 or len(operands) != len(shapes):
        return None
    ellipsis_dims = [
        len(shape) - len(part.replace("...", "")) if "..." in part else 0
        for part, shape in zip(operands, shapes, strict=True)
    ]
    ellipsis = "".join(c for c in ascii_uppercase if c not in equation)[: max(ellipsis_dims)]
    parts = [
        part.replace("...", ellipsis[len(ellipsis) - n :])
        for part, n in zip(operands, ellipsis_dims, strict=True)
    ]
    all_indices = "".join(parts)
    single_use = {c for c in all_indices if all_indices.count(c) == 1}
    out = (
        right.replace("...", ellipsis)
        if arrow
        else ellipsis + "".join(sorted(single_use.difference(ellipsis)))
    )
    has_ranks = all(
        part.isalpha() and len(set(part)) == len(part) == len(shape)
        for part, shape in zip(parts, shapes, strict=True)
    )
    is_plain = len(set(out)) == len(out) and set(out) <= set(all_indices) and single_use <= set(out)
    return (parts, out) if has_ranks and is_plain else None


def _einsum(op: Op) -> Einsum | None:
    """Returns the one einsum of an ONNX Einsum, however many operands it has; None if its equation is not
    plain (`plain_indices`).
    """
    equation = op.attrs["equation"]
    found = plain_indices(equation.decode() if isinstance(equation, bytes) else equation, op.shapes)
    if found is None:
        return None
    parts, out = found
    extents: dict[str, int] = {}
    for part, shape in zip(parts, op.shapes, strict=True):
        for c, size in zip(part, shape, strict=True):
            extents[c] = max(extents.get(c, 1), size)
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
    directions, hidden = ws[0] if len(ws) == 3 else 1, rs[-1]
    batch_first = bool(op.attrs.get("layout"))
    steps, batch = xs[:2][::-1] if batch_first else xs[:2]
    gate_rows = gates * hidden
    extents = {
        "t": steps,
        "b": batch,
        "d": directions,
        "z": gate_rows,
        "i": xs[-1],
        "k": hidden,
        "g": gates,
        "h": hidden,
    }
    every_step, one_step = ("b,t", "b,0") if batch_first else ("t,b", "0,b")
    out, direction, gate_row = op.output, "d," if len(ws) == 3 else "", f"{hidden}*g+h"
    old_state = c if op.kind == "LSTM" else h
    sizes = {f"{out}_x": (*xs[:2], directions, gate_rows), f"{out}_h": (batch, directions, gate_rows)}
    gates_text = (
        f"{op.kind.lower()}({out}_x[{one_step},d,{gate_row}], {out}_h[b,d,{gate_row}], {old_state}[d,b,h])"
    )
    return [
        einsum(f"{out}_x[{every_step},d,z] += {x}[{every_step},i] * {w}[{direction}z,i]", extents),
        einsum(f"{out}_h[b,d,z] += {h}[d,b,k] * {r}[{direction}z,k]", extents),
        einsum(f"{out}[b,d,h] = {gates_text}", extents, sizes=sizes),
    ]


def _pool(op: Op) -> Einsum:
    (x, *_), (image, *_), kernel = op.inputs, op.shapes, op.attrs["kernel_shape"]
    assign, p = "max=" if op.kind == "MaxPool" else "+=", ",".join(OUT_RANKS[: len(kernel)])
    text = f"{op.output}[n,c,{p}] {assign} {x}[n,c,{_windows(op, kernel, image[2:])}]"
    n, c, *outputs = op.out_shape
    return einsum(text, _extents(outputs, kernel, n=n, c=c), sizes={x: image})


def _global_pool(op: Op) -> Einsum:
    rank = len(op.shapes[0])
    return _reduce_over(replace(op, out_shape=(*op.out_shape[:2], *[1] * (rank - 2))), range(2, rank))


def _reduce(op: Op) -> Einsum:
    axes = op.attrs.get("axes")
    if axes is None and len(op.values) > 1:
        if op.values[1] is None:
            return movement(op)
        axes = [int(v) for v in np.ravel(op.values[1])]
    if op.kind.startswith("Arg"):
        axes = [op.attrs.get("axis", 0)]
    rank = len(op.shapes[0])
    return _reduce_over(op, [a % rank for a in axes] if axes else range(rank))


def _reduce_over(op: Op, axes: Iterable[int]) -> Einsum:
    ranks, reduced_axes = _ranks(len(op.shapes[0])), set(axes)
    unit_index = "" if len(op.out_shape) == len(ranks) - len(reduced_axes) else "0"
    dims = filter(None, (unit_index if i in reduced_axes else rank for i, rank in enumerate(ranks)))
    assign = "max=" if op.kind in ("GlobalMaxPool", "ReduceMax", "ReduceMin", "ArgMax", "ArgMin") else "+="
    text = f"{op.output}[{','.join(dims)}] {assign} {op.inputs[0]}[{','.join(ranks)}]"
    return einsum(text, dict(zip(ranks, op.shapes[0], strict=True)))


def _layer_norm(op: Op) -> Einsum:
    """Returns the einsum of the normalised rows, or of the mean or deviation of each row."""
    if op.out_shape == op.shapes[0]:
        return rowwise(op)
    sizes = zip(op.out_shape, op.shapes[0], strict=True)
    return _reduce_over(op, [i for i, (size, full) in enumerate(sizes) if size != full])


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
    index = f"b,h,t,{pair}" if len(shape) == 4 else f"b,t,h,{pair}"
    angle_shapes = dict(zip(tables, sizes, strict=True))
    angles = ", ".join(
        f"{table}[{'b,t,i' if len(size) == 3 else 't,i'}]" for table, size in angle_shapes.items()
    )
    extents = {"b": shape[0], "h": heads, "t": shape[2 if len(shape) == 4 else 1], "i": head // 2, "j": 2}
    return einsum(f"{op.output}[{index}] = rope({x}[{index}], {angles})", extents, sizes=angle_shapes)


def attention(op: Op, scores: str, present: tuple[str, str]) -> list[Einsum]:
    """Returns attention as scores, softmax of their rows, and product with the values. Scale and mask are
    applied within the softmax.

    op: inputs Q, K, V, mask, past K, past V; "" where there is none. With a past, keys and values are first
        appended to it, in the tensors `present`: data movement, as the operator defines. A causal mask saves
        no MACs.
    """
    (q, k, v, mask, *past), (qs, ks, vs, ms, *ps) = op.inputs, op.shapes
    flat = len(qs) == 3  # heads share a dimension with the elements; else they are dimension 1
    kv_heads = op.attrs["kv_num_heads"] if flat else ks[1]
    heads = op.attrs["q_num_heads"] if flat else qs[1]
    new_rows, batch = ks[1 if flat else 2], max(qs[0], ks[0], vs[0])  # constant queries may serve all samples
    d, e = (qs[-1] // heads, vs[-1] // kv_heads) if flat else (qs[-1], vs[-1])
    q_rows = qs[1 if flat else 2]
    extents = {"b": batch, "g": kv_heads, "h": heads // kv_heads, "q": q_rows, "t": new_rows, "d": d, "e": e}
    appends, names, kv_index = [], [k, v], "b,t,g" if flat else "b,g,t"
    if past[0]:
        past_rows = ps[0][2]
        extents["t"] += past_rows
        shifted_index = kv_index.replace("t", f"t-{past_rows}")
        for i, (tensor, rank) in enumerate(((k, "d"), (v, "e"))):
            new_shape = (qs[0], *((new_rows, kv_heads) if flat else (kv_heads, new_rows)), extents[rank])
            text = (
                f"{present[i]}[b,g,t,{rank}] = copy({past[i]}[b,g,t,{rank}], "
                f"{tensor}[{shifted_index},{rank}])"
            )
            appends.append(einsum(text, extents, sizes={past[i]: ps[i], tensor: new_shape}))
        names, kv_index = list(present), "b,g,t"
    out_index = "b,q,g,h" if flat else "b,g,h,q"
    dims = ("b", f"{heads // kv_heads}*g+h", "q", "t")[4 - len(ms) :]
    mask_text = f", {mask}[{_broadcast(dims, ms)}]" if mask else ""
    q_index, k_index, v_index = (
        index if s[0] == batch else f"0{index[1:]}"
        for s, index in ((qs, out_index), (ks, kv_index), (vs, kv_index))
    )
    texts = (
        f"{scores}[b,g,h,q,t] += {q}[{q_index},d] * {names[0]}[{k_index},d]",
        f"{scores}_softmax[b,g,h,q,t] = softmax({scores}[b,g,h,q,t]{mask_text})",
        f"{op.output}[{out_index},e] += {scores}_softmax[b,g,h,q,t] * {names[1]}[{v_index},e]",
    )
    return [*appends, *(einsum(text, extents) for text in texts)]


def dft(op: Op) -> Einsum:
    """Returns the einsum of discrete Fourier transforms along one axis, as operators that read each number
    once and write each result once. They have no MACs: a runtime uses a fast transform, not a matrix product.

    op: input [..., samples, ..., 1 or 2], its output [..., bins, ..., 1 or 2]; 2: real and imaginary parts.
        The axis is the one whose size changes; where none does, accesses are the same for every axis.
    A one-sided transform has half as many bins as samples: each of a bin's two parts reads one sample.
    """
    x, (shape, *_), out = op.inputs[0], op.shapes, op.out_shape
    ranks = [f"d{i}" for i in range(len(out) - 1)]
    index = list(ranks)
    for i, (samples, bins) in enumerate(zip(shape[:-1], out[:-1], strict=True)):
        length = op.values[1] if len(op.values) > 1 else None
        if min(samples, samples if length is None else int(length)) > bins:
            if shape[-1] != 1:
                raise ValueError(f"a one-sided transform takes real numbers, not complex ones {list(shape)}")
            index[i] = f"2*{ranks[i]}+c"
    if "2*" in "".join(index) or shape[-1] < 2:
        index.append("0")
    else:
        index.append("c" if out[-1] == shape[-1] else "j")
    text = f"{op.output}[{','.join((*ranks, 'c'))}] = dft({x}[{','.join(index)}])"
    extents = dict(zip((*ranks, "c"), out, strict=True)) | {"j": shape[-1]}
    return einsum(text, extents, sizes={x: shape})


def stft(op: Op, frames: str) -> list[Einsum]:
    """Returns the einsums of a short-time Fourier transform: the frames, each times the window, and their
    transforms.

    op: inputs signal [batch, samples] or [batch, samples, 1 or 2], frame step, and, where they are given,
        window and frame length (else ""); output [batch, frames, bins, 2]
    frames: name of the tensor of the frames
    """
    (x, _, window, _), (shape, _, window_shape, _), (_, step, _, length) = op.inputs, op.shapes, op.values
    if step is None or (not window and length is None):
        raise ValueError("its frame step or its frame length is no constant")
    samples = int(length) if length is not None else window_shape[0]
    parts = shape[2] if len(shape) > 2 else 1
    batch, count = op.out_shape[:2]
    extents = {"b": batch, "f": count, "t": samples, "c": parts}
    signal = f"{x}[b,{int(step)}*f+t{',c' if len(shape) > 2 else ''}]"
    right = f"mul({signal}, {window}[t])" if window else f"copy({signal})"
    framed = einsum(f"{frames}[b,f,t,c] = {right}", extents, sizes={x: shape})
    frames_op = replace(op, inputs=(frames,), shapes=((batch, count, samples, parts),), values=())
    return [framed, dft(frames_op)]


def _lrn(op: Op) -> Einsum:
    """Returns local response normalisation: a window over channels, which includes the element itself."""
    size, (n, c, *others) = op.attrs["size"], _ranks(len(op.out_shape))
    index = ",".join((n, f"{c}+w-{(size - 1) // 2}", *others))
    return _output_einsum(op, f"lrn({op.inputs[0]}[{index}])", sized=(0,), w=size)


def _ranks(n: int) -> tuple[str, ...]:
    return RANK_NAMES.get(n) or tuple(f"d{i}" for i in range(n))


def _broadcast(ranks: Sequence[str], shape: Shape) -> str:
    """Returns the index of an operand whose dimensions broadcast to the first of these ranks."""
    return ",".join(rank if size > 1 else "0" for rank, size in zip(ranks, shape, strict=False))


def _output_einsum(
    op: Op, right: str, ranks: Sequence[str] = (), sized: Iterable[int] = (), **others: int
) -> Einsum:
    """Returns the einsum with a rank per dimension of the output. right: its right-hand side; sized: inputs
    whose indices do not say how much is stored; others: extents of further ranks.
    """
    ranks = ranks or _ranks(len(op.out_shape))
    extents = dict(zip(ranks, op.out_shape, strict=True)) | others
    sizes = {op.inputs[i]: op.shapes[i] for i in sized}
    return einsum(f"{op.output}[{','.join(ranks)}] = {right}", extents, sizes=sizes)


def _pointwise(op: Op, kind: str, vectors_at: int = -1) -> Einsum:
    """Returns the einsum of a function of operands that are aligned with the output at the last dimension.
    vectors_at: dimension at which vectors are aligned instead.
    """
    ranks, reads = _ranks(len(op.out_shape)), []
    for tensor, shape in zip(op.inputs, op.shapes, strict=True):
        first = vectors_at if len(shape) == 1 and vectors_at >= 0 else len(ranks) - len(shape)
        reads.append(f"{tensor}[{_broadcast(ranks[first:], shape)}]")
    # x + x, or x and a constant of one element, has one operand left (onnx.py: `_distinct`)
    kind = kind if len(reads) > 1 or kind not in ("add", "mul") else f"{kind}_self"
    return _output_einsum(op, f"{kind}({', '.join(reads)})")


def elementwise(op: Op) -> Einsum:
    """Returns the einsum of any function of operands that broadcast to the output, aligned at the last
    dimension.
    """
    return _pointwise(op, "add" if op.kind == "Sum" else op.kind.lower())


def rowwise(op: Op) -> Einsum:
    """Returns the einsum of a function of whole rows, the last dimension; of others its name says the first
    one (`BY_ROW`).
    """
    axis = op.attrs.get("axis", -1) % max(len(op.out_shape), 1)
    others = f"_axis{axis}" if axis < len(op.out_shape) - 1 else ""
    return _pointwise(op, op.kind.lower() + others)


def by_channel(op: Op) -> Einsum:
    """Returns the einsum of an element-wise function whose vectors are aligned at dimension 1."""
    # in training it needs the batch's statistics and is no one-to-one function: a kind of its own
    trained = "_training" if op.attrs.get("training_mode") else ""
    return _pointwise(op, op.kind.lower() + trained, vectors_at=1)


def _concat(op: Op) -> Einsum:
    """Returns the copy of inputs side by side along an axis. Each input has an offset in its index; where
    that leaves the stored shape, nothing is read.
    """
    axis, offset, reads = op.attrs["axis"] % len(op.out_shape), 0, []
    for tensor, shape in zip(op.inputs, op.shapes, strict=True):
        reads.append(f"{tensor}[{_shifted(op, axis, offset)}]")
        offset += shape[axis]
    return _output_einsum(op, f"copy({', '.join(reads)})", sized=range(len(reads)))


def _shifted(op: Op, axis: int, offset: int) -> str:
    """Returns the index of a tensor that begins at an offset along an axis of the output."""
    return ",".join(f"{r}-{offset}" if i == axis else r for i, r in enumerate(_ranks(len(op.out_shape))))


def _transpose(op: Op) -> Einsum:
    ranks = _ranks(len(op.out_shape))
    source = dict(zip(op.attrs.get("perm", range(len(ranks))[::-1]), ranks, strict=True))
    return _output_einsum(op, f"{op.inputs[0]}[{','.join(source[i] for i in range(len(ranks)))}]")


def _region(op: Op, starts: Sequence[int], steps: Sequence[int]) -> Einsum:
    """Returns the copy of a strided box: output index i reads step * i + start."""
    box = zip(_ranks(len(op.out_shape)), starts, steps, strict=True)
    index = ",".join(f"{step}*{rank}{start:+d}" for rank, start, step in box)
    return _output_einsum(op, f"{op.inputs[0]}[{index}]", sized=(0,))


def _slice(op: Op) -> Einsum:
    given = [v if v is None else np.ravel(v).tolist() for v in (*op.values[1:], *[None] * 4)]
    starts, _, axes, steps = (
        op.attrs.get(key, value)
        for key, value in zip(("starts", "ends", "axes", "steps"), given, strict=False)
    )
    rank = len(op.out_shape)
    if starts is None or min(steps or [1]) < 1 or any(v is None for v in op.values[1:]):
        return movement(op)
    box_starts, box_steps, count = [0] * rank, [1] * rank, len(starts)
    for start, axis, step in zip(starts, axes or range(count), steps or [1] * count, strict=True):
        size = op.shapes[0][axis % rank]
        box_starts[axis % rank], box_steps[axis % rank] = (
            min(start + size if start < 0 else start, size),
            step,
        )
    return _region(op, box_starts, box_steps)


def _slice_scatter(op: Op) -> Einsum:
    """Returns the copy of a tensor in which rows are replaced by another tensor's. Both are read, the second
    one at the position of its rows.
    """
    target, rows = op.inputs[:2]
    rows_index = _shifted(op, op.attrs["axis"], op.attrs["start"])
    return _output_einsum(
        op, f"copy({rows}[{rows_index}], {target}[{','.join(_ranks(len(op.out_shape)))}])", sized=(1,)
    )


def _split(op: Op) -> Einsum:
    starts = [0] * len(op.out_shape)
    starts[op.attrs.get("axis", 0)] = op.split_offset
    return _region(op, starts, [1] * len(op.out_shape))


def _pad(op: Op) -> Einsum:
    (given, *_), rank = (*op.values[1:], None), len(op.out_shape)
    pads = op.attrs.get("pads") or (() if given is None else given.tolist())
    if len(pads) != 2 * rank:
        return movement(op)
    return _region(op, [-p for p in pads[:rank]], [1] * rank)


def _gather(op: Op) -> Einsum:
    """Returns the copy of one slice of the table per index. At most the whole table is read, and the indices
    unless they are constant.
    """
    ids, axis = op.shapes[1], op.attrs.get("axis", 0) % len(op.shapes[0])
    ranks = [f"d{i}" for i in range(len(op.out_shape))]
    index_ranks = ranks[axis : axis + len(ids)]
    strides = [prod(ids[i + 1 :]) for i in range(len(ids))]
    row = "+".join(f"{stride}*{rank}" for rank, stride in zip(index_ranks, strides, strict=True)) or "0"
    reads = [f"{op.inputs[0]}[{','.join((*ranks[:axis], row, *ranks[axis + len(ids) :]))}]"]
    if ids and op.values[1] is None:
        reads.append(f"{op.inputs[1]}[{','.join(index_ranks)}]")
    return _output_einsum(op, f"copy({', '.join(reads)})", ranks, sized=(0,))


def movement(op: Op) -> Einsum:
    """Returns an einsum that reads every input once and writes the output.

    Where shapes do not broadcast, tensors count as vectors: output element i stands for ceil(inputs /
    outputs) input elements, the last ones clipped to the stored shape.
    """
    if all(
        len(s) <= len(op.out_shape)
        and all(a in (1, b) for a, b in zip(s[::-1], op.out_shape[::-1], strict=False))
        for s in op.shapes
    ):
        return _pointwise(op, "copy")
    elems, sizes = prod(op.out_shape), {t: (prod(s),) for t, s in zip(op.inputs, op.shapes, strict=True)}
    elems_per_point = {t: -(-size // elems) for t, (size,) in sizes.items()}
    reads = ", ".join(f"{t}[{n}*i{'+j' if n > 1 else ''}]" for t, n in elems_per_point.items())
    return einsum(
        f"{op.output}[i] = copy({reads})", {"i": elems, "j": max(elems_per_point.values())}, sizes=sizes
    )


OPERATORS: dict[str, Callable[[Op], Einsum | None]] = {  # they return None for forms that are not supported
    **dict.fromkeys(UNARY | BINARY, elementwise),
    **dict.fromkeys(ROWWISE, rowwise),
    **dict.fromkeys(BY_CHANNEL, by_channel),
    **by_name(
        {
            _conv: "Conv ConvInteger QLinearConv",
            _deform_conv: "DeformConv",
            _conv_transpose: "ConvTranspose",
            _gemm: "Gemm",
            _matmul: "MatMul FusedMatMul MatMulInteger QLinearMatMul",
            _einsum: "Einsum",
            _pool: "MaxPool AveragePool LpPool",
            _global_pool: "GlobalAveragePool GlobalMaxPool GlobalLpPool",
            dft: "DFT",
            _lrn: "LRN",
            _concat: "Concat",
            _transpose: "Transpose",
            _slice: "Slice",
            _slice_scatter: "SliceScatter",
            _split: "Split",
            _pad: "Pad",
            _gather: "Gather",
            _reduce: (
                "ReduceMean ReduceSum ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceSumSquare "
                "ReduceLogSum ReduceLogSumExp ArgMax ArgMin"
            ),
            _layer_norm: "LayerNormalization",
            _rotary: "RotaryEmbedding",
            elementwise: "CumSum CumProd",
        }
    ),
}
