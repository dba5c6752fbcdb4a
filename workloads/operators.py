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
    "Acos Atan Sinh Cosh Asinh Acosh Atanh IsNaN IsInf Shrink BitwiseNot"
)
BINARY = names_in(
    "Add Sub Mul Div Pow PRelu Sum Max Min Mean Mod Equal Less Greater LessOrEqual GreaterOrEqual And Or Xor "
    "Where QuantizeLinear DequantizeLinear BitShift BitwiseAnd BitwiseOr BitwiseXor CastLike"
)
BY_CHANNEL = names_in("BatchNormalization InstanceNormalization GroupNormalization")
ROWWISE = names_in(
    "Softmax LogSoftmax Hardmax LayerNormalization RMSNormalization MeanVarianceNormalization "
    "LpNormalization CumSum"
)
# products of activations and weights, of any element type
PRODUCTS = names_in(
    "Conv ConvInteger QLinearConv ConvTranspose Gemm MatMul FusedMatMul MatMulInteger QLinearMatMul"
)
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
    "SequenceAt SequenceConstruct SequenceEmpty SequenceInsert SequenceErase SequenceLength"
)
OUT, KERNEL = "pqo", "rst"  # ranks of up to three spatial dimensions: of the output, of the kernel
# number of dimensions -> ranks of an element-wise operator
NAMED = {1: ("d",), 2: ("n", "c"), 3: ("b", "m", "d"), 4: ("n", "c", "p", "q"), 5: ("n", "c", "p", "q", "o")}


@dataclass(frozen=True, slots=True)
class Op:
    """One ONNX node, as its einsum needs it."""

    kind: str
    inputs: tuple[str, ...]  # names of tensors in the workload
    shapes: tuple[Shape, ...]  # of the inputs
    output: str  # name of the tensor in the workload
    shape: Shape = ()  # of the output
    attrs: dict[str, Any] = field(default_factory=dict)
    values: tuple[Array | None, ...] = ()  # small constant values of the inputs; None: unknown
    before: int = 0  # Split: elements along the axis in the outputs before this one


def strided(op: Op, n: int) -> tuple[Sequence[int], Sequence[int]]:
    """Returns strides and dilations of a window over n dimensions."""
    return op.attrs.get("strides") or [1] * n, op.attrs.get("dilations") or [1] * n


def _indices(op: Op, pads: Sequence[int]) -> str:
    """Returns indices into a padded image: stride*p + dilation*r - pad for each spatial dimension."""
    steps = zip(*strided(op, len(pads)), OUT, KERNEL, pads, strict=False)
    return ",".join(f"{stride}*{p}+{dilation}*{r}-{pad}" for stride, dilation, p, r, pad in steps)


def _windows(op: Op, kernel: Sequence[int], image: Sequence[int]) -> str:
    """Returns indices into an image that is padded as the attributes say."""
    n, auto = len(kernel), op.attrs.get("auto_pad", b"NOTSET").decode()
    pads = list(op.attrs.get("pads") or [0] * n)[:n] if auto != "VALID" else [0] * n
    if auto.startswith("SAME"):
        sizes = zip(op.shape[2:], *strided(op, n), kernel, image, strict=False)
        totals = [
            max((p - 1) * stride + dilation * (r - 1) + 1 - i, 0) for p, stride, dilation, r, i in sizes
        ]
        pads = [total // 2 if auto == "SAME_UPPER" else total - total // 2 for total in totals]
    return _indices(op, pads)


def _extents(outputs: Sequence[int], kernel: Sequence[int], **others: int) -> dict[str, int]:
    """Returns the extents of a window: other ranks, outputs, kernel."""
    return others | dict(zip(OUT, outputs, strict=False)) | dict(zip(KERNEL, kernel, strict=False))


def _conv(op: Op) -> Einsum | None:
    (n, channels, *image), (filters, depth, *kernel) = op.shapes[:2]
    if len(kernel) > len(KERNEL):
        return None
    x, w = op.inputs[:2]
    g = op.attrs.get("group", 1)
    p, r = ",".join(OUT[: len(kernel)]), ",".join(KERNEL[: len(kernel)])
    text = f"{op.output}[n,g,k,{p}] += {x}[n,g,c,{_windows(op, kernel, image)}] * {w}[g,k,c,{r}]"
    extents = _extents(op.shape[2:], kernel, n=n, g=g, k=filters // g, c=depth)
    return einsum(text, extents, sizes={x: (n, g, channels // g, *image)})


def _conv_transpose(op: Op) -> Einsum:
    """Returns the einsum of a transposed convolution: every input element is spread over a window of the
    output, whose border is cropped by the pads.
    """
    (n, channels, *image), (_, filters, *kernel) = op.shapes[:2]
    x, w = op.inputs[:2]
    g, dims = op.attrs.get("group", 1), len(kernel)
    sizes = zip(image, *strided(op, dims), kernel, op.shape[2:], strict=True)
    spread = [(i - 1) * stride + dilation * (r - 1) + 1 - out for i, stride, dilation, r, out in sizes]
    pads = op.attrs.get("pads") or [max(s, 0) // 2 for s in spread]
    p, r = ",".join(OUT[:dims]), ",".join(KERNEL[:dims])
    text = f"{op.output}[n,g,k,{_indices(op, pads[:dims])}] += {x}[n,g,c,{p}] * {w}[g,c,k,{r}]"
    extents = _extents(image, kernel, n=n, g=g, k=filters, c=channels // g)
    return einsum(text, extents, sizes={op.output: (n, g, filters, *op.shape[2:])})


def _deform_conv(op: Op) -> Einsum | None:
    """Returns the einsum of a deformable convolution, whose taps are read at positions given by offsets (and
    a mask). Offsets and mask are operands. Taps are counted at their positions without offsets.
    """
    (n, channels, *image), (filters, depth, *kernel) = op.shapes[:2]
    groups, own = op.attrs.get("group", 1), op.attrs.get("offset_group", 1)
    if len(kernel) != 2 or (groups > 1 and own > 1):
        return None
    x, w, offset = op.inputs[:3]
    taps, part = kernel[0] * kernel[1], depth // own
    c = f"{part}*u+c" if own > 1 else "c"
    extents = _extents(op.shape[2:], kernel, n=n, g=groups, u=own, k=filters // groups, c=part)
    group = f"{2 * taps}*u+" if own > 1 else ""
    reads = [
        f"{x}[n,g,{c},{_windows(op, kernel, image)}]",
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
    m, n = op.shape
    return einsum(f"{op.output}[m,n] += {a}[{left}] * {b}[{right}]", {"m": m, "n": n, "k": k})


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
        own = shape[:-2]
        return [
            rank if n > 1 else "0" for rank, n in zip(batches[len(batches) - len(own) :], own, strict=True)
        ]

    x, y = (*m, "k")[:: -1 if over else 1], ("k", *n)[:: -1 if under else 1]
    indices = [(*outer(left), *x), (*outer(right), *y)]
    i, j = (
        ",".join((index[-2], *index[:-2], index[-1]) if first else index)
        for index, first in zip(indices, early, strict=True)
    )
    return einsum(f"{op.output}[{','.join((*batches, *m, *n))}] += {a}[{i}] * {b}[{j}]", extents)


def plain(equation: str, shapes: Sequence[Shape]) -> tuple[list[str], str] | None:
    """Returns the indices of the operands and of the result of an ONNX Einsum; None if the equation is not
    plain: an index occurs twice in an operand, or is summed and in only one operand.

    An ellipsis becomes indices; operands are aligned at its last dimension.
    >>> plain("...ij,jk", [(7, 2, 3), (3, 4)])
    (['Aij', 'jk'], 'Aik')
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    operands = left.split(",")
    if len(operands) < 2 or len(operands) != len(shapes):
        return None
    dots = [
        len(shape) - len(part.replace("...", "")) if "..." in part else 0
        for part, shape in zip(operands, shapes, strict=True)
    ]
    whole = "".join(c for c in ascii_uppercase if c not in equation)[: max(dots)]
    parts = [part.replace("...", whole[len(whole) - n :]) for part, n in zip(operands, dots, strict=True)]
    every = "".join(parts)
    once = {c for c in every if every.count(c) == 1}
    out = right.replace("...", whole) if arrow else whole + "".join(sorted(once.difference(whole)))
    fits = all(
        part.isalpha() and len(set(part)) == len(part) == len(shape)
        for part, shape in zip(parts, shapes, strict=True)
    )
    known = len(set(out)) == len(out) and set(out) <= set(every) and once <= set(out)
    return (parts, out) if fits and known else None


def _einsum(op: Op) -> Einsum | None:
    """Returns the einsum of an ONNX Einsum with `plain` operands, one nest for all of them; None for other
    equations.
    """
    equation = op.attrs["equation"]
    found = plain(equation.decode() if isinstance(equation, bytes) else equation, op.shapes)
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
    ways, hidden = ws[0] if len(ws) == 3 else 1, rs[-1]
    batched = bool(op.attrs.get("layout"))
    steps, batch = xs[:2][::-1] if batched else xs[:2]
    wide = gates * hidden
    extents = {
        "t": steps,
        "b": batch,
        "d": ways,
        "z": wide,
        "i": xs[-1],
        "k": hidden,
        "g": gates,
        "h": hidden,
    }
    rows, now = ("b,t", "b,0") if batched else ("t,b", "0,b")
    out, way, gate = op.output, "d," if len(ws) == 3 else "", f"{hidden}*g+h"
    memory = c if op.kind == "LSTM" else h
    sizes = {f"{out}_x": (*xs[:2], ways, wide), f"{out}_h": (batch, ways, wide)}
    end = f"{op.kind.lower()}({out}_x[{now},d,{gate}], {out}_h[b,d,{gate}], {memory}[d,b,h])"
    return [
        einsum(f"{out}_x[{rows},d,z] += {x}[{rows},i] * {w}[{way}z,i]", extents),
        einsum(f"{out}_h[b,d,z] += {h}[d,b,k] * {r}[{way}z,k]", extents),
        einsum(f"{out}[b,d,h] = {end}", extents, sizes=sizes),
    ]


def _pool(op: Op) -> Einsum:
    (x, *_), (image, *_), kernel = op.inputs, op.shapes, op.attrs["kernel_shape"]
    assign, p = "max=" if op.kind == "MaxPool" else "+=", ",".join(OUT[: len(kernel)])
    text = f"{op.output}[n,c,{p}] {assign} {x}[n,c,{_windows(op, kernel, image[2:])}]"
    n, c, *outputs = op.shape
    return einsum(text, _extents(outputs, kernel, n=n, c=c), sizes={x: image})


def _global_pool(op: Op) -> Einsum:
    rank = len(op.shapes[0])
    return _reduced(replace(op, shape=(*op.shape[:2], *[1] * (rank - 2))), range(2, rank))


def _reduce(op: Op) -> Einsum:
    given = op.attrs.get("axes")
    if given is None and len(op.values) > 1:
        if op.values[1] is None:
            return movement(op)
        given = [int(v) for v in np.ravel(op.values[1])]
    if op.kind.startswith("Arg"):
        given = [op.attrs.get("axis", 0)]
    rank = len(op.shapes[0])
    return _reduced(op, [a % rank for a in given] if given else range(rank))


def _reduced(op: Op, axes: Iterable[int]) -> Einsum:
    ranks, away = _ranks(len(op.shapes[0])), set(axes)
    gone = "" if len(op.shape) == len(ranks) - len(away) else "0"
    dims = filter(None, (gone if i in away else rank for i, rank in enumerate(ranks)))
    assign = "max=" if op.kind in ("GlobalMaxPool", "ReduceMax", "ReduceMin", "ArgMax", "ArgMin") else "+="
    text = f"{op.output}[{','.join(dims)}] {assign} {op.inputs[0]}[{','.join(ranks)}]"
    return einsum(text, dict(zip(ranks, op.shapes[0], strict=True)))


def _layer_norm(op: Op) -> Einsum:
    """Returns the einsum of the normalised rows, or of the mean or deviation of each row."""
    if op.shape == op.shapes[0]:
        return elementwise(op)
    sizes = zip(op.shape, op.shapes[0], strict=True)
    return _reduced(op, [i for i, (size, whole) in enumerate(sizes) if size != whole])


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
    turns = dict(zip(tables, sizes, strict=True))
    angles = ", ".join(f"{table}[{'b,t,i' if len(size) == 3 else 't,i'}]" for table, size in turns.items())
    extents = {"b": shape[0], "h": heads, "t": shape[2 if len(shape) == 4 else 1], "i": head // 2, "j": 2}
    return einsum(f"{op.output}[{at}] = rope({x}[{at}], {angles})", extents, sizes=turns)


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
    d, e = (qs[-1] // heads, vs[-1] // kv) if flat else (qs[-1], vs[-1])
    q_rows = qs[1 if flat else 2]
    extents = {"b": batch, "g": kv, "h": heads // kv, "q": q_rows, "t": new, "d": d, "e": e}
    made, names, rows = [], [k, v], "b,t,g" if flat else "b,g,t"
    if past[0]:
        before = ps[0][2]
        extents["t"] += before
        late = rows.replace("t", f"t-{before}")
        for i, (tensor, rank) in enumerate(((k, "d"), (v, "e"))):
            own = (qs[0], *((new, kv) if flat else (kv, new)), extents[rank])
            text = f"{present[i]}[b,g,t,{rank}] = copy({past[i]}[b,g,t,{rank}], {tensor}[{late},{rank}])"
            made.append(einsum(text, extents, sizes={past[i]: ps[i], tensor: own}))
        names, rows = list(present), "b,g,t"
    whole = "b,q,g,h" if flat else "b,g,h,q"
    dims = ("b", f"{heads // kv}*g+h", "q", "t")[4 - len(ms) :]
    limits = f", {mask}[{_broadcast(dims, ms)}]" if mask else ""
    whole_q, rows_k, rows_v = (
        index if s[0] == batch else f"0{index[1:]}" for s, index in ((qs, whole), (ks, rows), (vs, rows))
    )
    texts = (
        f"{scores}[b,g,h,q,t] += {q}[{whole_q},d] * {names[0]}[{rows_k},d]",
        f"{scores}_softmax[b,g,h,q,t] = softmax({scores}[b,g,h,q,t]{limits})",
        f"{op.output}[{whole},e] += {scores}_softmax[b,g,h,q,t] * {names[1]}[{rows_v},e]",
    )
    return [*made, *(einsum(text, extents) for text in texts)]


def _lrn(op: Op) -> Einsum:
    """Returns local response normalisation: a window over channels, which includes the element itself."""
    size, (n, c, *others) = op.attrs["size"], _ranks(len(op.shape))
    index = ",".join((n, f"{c}+w-{(size - 1) // 2}", *others))
    return _made(op, f"lrn({op.inputs[0]}[{index}])", sized=(0,), w=size)


def _ranks(n: int) -> tuple[str, ...]:
    return NAMED.get(n) or tuple(f"d{i}" for i in range(n))


def _broadcast(ranks: Sequence[str], shape: Shape) -> str:
    """Returns the index of an operand whose dimensions broadcast to the first of these ranks."""
    return ",".join(rank if size > 1 else "0" for rank, size in zip(ranks, shape, strict=False))


def _made(op: Op, right: str, ranks: Sequence[str] = (), sized: Iterable[int] = (), **others: int) -> Einsum:
    """Returns the einsum with a rank per dimension of the output. right: its right-hand side; sized: inputs
    whose indices do not say how much is stored; others: extents of further ranks.
    """
    ranks = ranks or _ranks(len(op.shape))
    extents = dict(zip(ranks, op.shape, strict=True)) | others
    sizes = {op.inputs[i]: op.shapes[i] for i in sized}
    return einsum(f"{op.output}[{','.join(ranks)}] = {right}", extents, sizes=sizes)


def _pointwise(op: Op, kind: str, vectors_at: int = -1) -> Einsum:
    """Returns the einsum of a function of operands that are aligned with the output at the last dimension.
    vectors_at: dimension at which vectors are aligned instead.
    """
    ranks, reads = _ranks(len(op.shape)), []
    for tensor, shape in zip(op.inputs, op.shapes, strict=True):
        first = vectors_at if len(shape) == 1 and vectors_at >= 0 else len(ranks) - len(shape)
        reads.append(f"{tensor}[{_broadcast(ranks[first:], shape)}]")
    kind = kind if len(reads) > 1 or kind not in ("add", "mul") else f"{kind}_self"
    return _made(op, f"{kind}({', '.join(reads)})")


def elementwise(op: Op) -> Einsum:
    """Returns the einsum of any function of operands that broadcast to the output, aligned at the last
    dimension.
    """
    return _pointwise(op, "add" if op.kind == "Sum" else op.kind.lower())


def by_channel(op: Op) -> Einsum:
    """Returns the einsum of an element-wise function whose vectors are aligned at dimension 1."""
    # in training it needs the batch's statistics and is no one-to-one function: a kind of its own
    trained = "_training" if op.attrs.get("training_mode") else ""
    return _pointwise(op, op.kind.lower() + trained, vectors_at=1)


def _concat(op: Op) -> Einsum:
    """Returns the copy of inputs side by side along an axis. Each input has an offset in its index; where
    that leaves the stored shape, nothing is read.
    """
    axis, offset, reads = op.attrs["axis"] % len(op.shape), 0, []
    for tensor, shape in zip(op.inputs, op.shapes, strict=True):
        reads.append(f"{tensor}[{_shifted(op, axis, offset)}]")
        offset += shape[axis]
    return _made(op, f"copy({', '.join(reads)})", sized=range(len(reads)))


def _shifted(op: Op, axis: int, offset: int) -> str:
    """Returns the index of a tensor that begins at an offset along an axis of the output."""
    return ",".join(f"{r}-{offset}" if i == axis else r for i, r in enumerate(_ranks(len(op.shape))))


def _transpose(op: Op) -> Einsum:
    ranks = _ranks(len(op.shape))
    source = dict(zip(op.attrs.get("perm", range(len(ranks))[::-1]), ranks, strict=True))
    return _made(op, f"{op.inputs[0]}[{','.join(source[i] for i in range(len(ranks)))}]")


def _region(op: Op, starts: Sequence[int], steps: Sequence[int]) -> Einsum:
    """Returns the copy of a strided box: output index i reads step * i + start."""
    box = zip(_ranks(len(op.shape)), starts, steps, strict=True)
    index = ",".join(f"{step}*{rank}{start:+d}" for rank, start, step in box)
    return _made(op, f"{op.inputs[0]}[{index}]", sized=(0,))


def _slice(op: Op) -> Einsum:
    given = [v if v is None else np.ravel(v).tolist() for v in (*op.values[1:], *[None] * 4)]
    starts, _, axes, steps = (
        op.attrs.get(key, value)
        for key, value in zip(("starts", "ends", "axes", "steps"), given, strict=False)
    )
    rank = len(op.shape)
    if starts is None or min(steps or [1]) < 1 or any(v is None for v in op.values[1:]):
        return movement(op)
    box, stride, count = [0] * rank, [1] * rank, len(starts)
    for start, axis, step in zip(starts, axes or range(count), steps or [1] * count, strict=True):
        size = op.shapes[0][axis % rank]
        box[axis % rank], stride[axis % rank] = min(start + size if start < 0 else start, size), step
    return _region(op, box, stride)


def _slice_scatter(op: Op) -> Einsum:
    """Returns the copy of a tensor in which rows are replaced by another tensor's. Both are read, the second
    one at the position of its rows.
    """
    whole, rows = op.inputs[:2]
    own = _shifted(op, op.attrs["axis"], op.attrs["start"])
    return _made(op, f"copy({rows}[{own}], {whole}[{','.join(_ranks(len(op.shape)))}])", sized=(1,))


def _split(op: Op) -> Einsum:
    starts = [0] * len(op.shape)
    starts[op.attrs.get("axis", 0)] = op.before
    return _region(op, starts, [1] * len(op.shape))


def _pad(op: Op) -> Einsum:
    (given, *_), rank = (*op.values[1:], None), len(op.shape)
    pads = op.attrs.get("pads") or (() if given is None else given.tolist())
    if len(pads) != 2 * rank:
        return movement(op)
    return _region(op, [-p for p in pads[:rank]], [1] * rank)


def _gather(op: Op) -> Einsum:
    """Returns the copy of one slice of the table per index. At most the whole table is read, and the indices
    unless they are constant.
    """
    ids, axis = op.shapes[1], op.attrs.get("axis", 0) % len(op.shapes[0])
    ranks = [f"d{i}" for i in range(len(op.shape))]
    own = ranks[axis : axis + len(ids)]
    strides = [prod(ids[i + 1 :]) for i in range(len(ids))]
    row = "+".join(f"{stride}*{rank}" for rank, stride in zip(own, strides, strict=True)) or "0"
    reads = [f"{op.inputs[0]}[{','.join((*ranks[:axis], row, *ranks[axis + len(ids) :]))}]"]
    if ids and op.values[1] is None:
        reads.append(f"{op.inputs[1]}[{','.join(own)}]")
    return _made(op, f"copy({', '.join(reads)})", ranks, sized=(0,))


def movement(op: Op) -> Einsum:
    """Returns an einsum that reads every input once and writes the output.

    Where shapes do not broadcast, tensors count as vectors: output element i stands for ceil(inputs /
    outputs) input elements, the last ones clipped to the stored shape.
    """
    if all(
        len(s) <= len(op.shape) and all(a in (1, b) for a, b in zip(s[::-1], op.shape[::-1], strict=False))
        for s in op.shapes
    ):
        return _pointwise(op, "copy")
    elems, sizes = prod(op.shape), {t: (prod(s),) for t, s in zip(op.inputs, op.shapes, strict=True)}
    per = {t: -(-size // elems) for t, (size,) in sizes.items()}
    reads = ", ".join(f"{t}[{n}*i{'+j' if n > 1 else ''}]" for t, n in per.items())
    return einsum(f"{op.output}[i] = copy({reads})", {"i": elems, "j": max(per.values())}, sizes=sizes)


OPERATORS: dict[str, Callable[[Op], Einsum | None]] = {  # they return None for forms that are not supported
    **dict.fromkeys(UNARY | BINARY | ROWWISE, elementwise),
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
            _global_pool: "GlobalAveragePool GlobalMaxPool",
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
                "ReduceLogSumExp ArgMax ArgMin"
            ),
            _layer_norm: "LayerNormalization",
            _rotary: "RotaryEmbedding",
        }
    ),
}
