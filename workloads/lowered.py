"""Operators of onnxruntime (domain com.microsoft, written by its optimiser) as nodes of the ONNX standard,
newest operator set.

Table LOWERED has one function per operator, which adds nodes that make the same outputs to a Site, and
returns False for forms that are not supported. Integer tensors with a scale become QDQ: DequantizeLinear
before, QuantizeLinear after the operator on real numbers. RULES are shapes of operators that stay as they
are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from onnx import NodeProto, TensorProto, helper

from workloads.bodies import attributes
from workloads.operators import Shape


@dataclass(slots=True)
class Site:
    """A node that is to be replaced, and the nodes that replace it, as far as they are added already."""

    node: NodeProto
    shapes: dict[str, Shape]  # of its inputs, as far as known
    types: dict[str, int]  # of its inputs, as far as known
    attrs: dict[str, Any]
    nodes: list[NodeProto] = field(default_factory=list)  # the nodes that replace it
    # names of parts of weights -> (type, shape)
    constants: dict[str, tuple[int, Shape]] = field(default_factory=dict)
    # fault of an operand whose shape the operator does not allow; its replacement would hide it
    fault: str = ""

    def require_shape(self, tensor: str, *shape: int) -> None:
        """Records a fault if the tensor has another shape; -1 is any size."""
        known_shape = self.shapes.get(tensor)
        if known_shape is None:
            return
        same = len(known_shape) == len(shape) and all(
            n in (-1, size) for size, n in zip(known_shape, shape, strict=True)
        )
        if not same:
            self.fault = (
                f"{tensor} {list(known_shape)} must be [{', '.join('?' if n < 0 else str(n) for n in shape)}]"
            )

    @property
    def out(self) -> str:
        """The first output of the node."""
        return str(self.node.output[0])

    def input_at(self, at: int) -> str:
        """Returns the name of input `at`; "" where it is left out."""
        return self.node.input[at] if at < len(self.node.input) else ""

    def inputs_at(self, *at: int) -> list[str]:
        """Returns the names of these inputs, without those that are left out; of all inputs, if none is
        named.
        """
        return [i for i in (map(self.input_at, at) if at else self.node.input) if i]

    def add(
        self, kind: str, inputs: Sequence[str], output: str = "", outputs: Sequence[str] = (), **attrs: Any
    ) -> str:
        """Appends a node and returns its first output. Names are generated where none is given."""
        made_names = list(outputs) or [output or f"{self.out}/{kind}_{len(self.nodes)}"]
        stem = self.node.name or self.out
        name = self.node.name if self.node.op_type.endswith(kind) else f"{stem}/{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), made_names, name=name, **attrs))
        return made_names[0]

    def add_result(self, kind: str, inputs: Sequence[str], **attrs: Any) -> bool:
        """Appends the node that makes the first output. Returns True: the operator is supported."""
        return bool(self.add(kind, inputs, self.out, **attrs))

    def dequantized(self, at: int, scale: int = -1, zero: int = -1) -> str:
        """Returns the operand at `at` as real numbers. scale, zero: positions of its scale and zero point; by
        default they follow it.
        """
        scale, zero = (scale, zero) if scale >= 0 else (at + 1, at + 2)
        return self.add("DequantizeLinear", [self.input_at(at), self.input_at(scale), *self.inputs_at(zero)])

    def product(self, a: str, b: str, bias: str) -> bool:
        """Appends a matrix product, and a bias if there is one, as the first output. Returns True."""
        if not bias:
            return self.add_result("MatMul", [a, b])
        return self.add_result("Add", [self.add("MatMul", [a, b]), bias])

    def weight_part(self, of: str, name: str, shape: Shape, type: int = 0) -> str:
        """Returns the name of a new constant that stands for a part of weight `of`, in the weight's type
        unless another one is given.
        """
        self.constants[f"{of}/{name}"] = (type or self.types.get(of, TensorProto.FLOAT), shape)
        return f"{of}/{name}"

    def int_list(self, *values: int) -> str:
        """Returns a constant list of integers."""
        return self.add("Constant", [], value_ints=list(values))


Lowering = Callable[[Site], bool]


def lowered(node: NodeProto, shapes: dict[str, Shape], types: dict[str, int]) -> Site | None:
    """Returns the replacement of an onnxruntime node; None if the operator is not supported."""
    make = LOWERED.get(node.op_type)
    if make is None or not (node.domain.startswith("com.microsoft") or node.op_type in NO_DOMAIN):
        return None
    site = Site(node, shapes, types, attributes(node))
    return site if make(site) or site.fault else None


def _add_activated(site: Site, kind: str, inputs: Sequence[str], **attrs: Any) -> bool:
    """Adds an operator and the activation that its attribute names. Returns False for an unknown
    activation.
    """
    activation = site.attrs.get("activation", b"").decode()
    if not activation:
        return site.add_result(kind, inputs, **attrs)
    return activation in ACTIVATIONS and site.add_result(activation, [site.add(kind, inputs, **attrs)])


def _select_attrs(site: Site, *names: str) -> dict[str, Any]:
    return {name: site.attrs[name] for name in names if name in site.attrs}


def _conv(site: Site) -> bool:
    attrs = _select_attrs(site, "auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
    if not site.input_at(3):
        return _add_activated(site, "Conv", site.inputs_at(), **attrs)
    return _add_activated(site, "Add", [site.add("Conv", site.inputs_at(0, 1, 2), **attrs), site.input_at(3)])


def _gemm(site: Site) -> bool:
    return _add_activated(
        site, "Gemm", site.inputs_at(), **_select_attrs(site, "alpha", "beta", "transA", "transB")
    )


def _with_bias(kind: str) -> Lowering:
    """Returns the lowering of x + bias, followed by one function."""

    def make(site: Site) -> bool:
        x, bias = site.input_at(0), site.input_at(1)
        return site.add_result(kind, [site.add("Add", [x, bias]) if bias else x])

    return make


def _skip_norm(kind: str, bias_at: int) -> Lowering:
    """Returns the lowering of a residual sum (of two tensors and perhaps a bias) and its normalisation.
    Further outputs are the sum.
    """

    def make(site: Site) -> bool:
        summed = site.add("Add", [site.input_at(0), site.input_at(1)])
        if site.input_at(bias_at):
            summed = site.add("Add", [summed, site.input_at(bias_at)])
        site.add_result(
            kind, [summed, site.input_at(2), *(site.inputs_at(3) if bias_at > 3 else [])], axis=-1
        )
        for output in filter(None, site.node.output[1:]):
            site.add("Identity", [summed], output)
        return True

    return make


def _embed_norm(site: Site) -> bool:
    """Adds the lookup of words, positions and segments, their sum, and its normalisation. Positions are
    constant.
    """
    ids, segments, words, positions, segment_table, gamma, beta = (site.input_at(i) for i in range(7))
    shape = site.shapes.get(ids)
    if shape is None or positions not in site.shapes:
        return False
    position_rows = site.weight_part(positions, f"{site.out}_rows", (1, shape[1], site.shapes[positions][1]))
    total = site.add("Add", [site.add("Gather", [words, ids]), position_rows])
    if segments:
        total = site.add("Add", [total, site.add("Gather", [segment_table, segments])])
    site.add_result("LayerNormalization", [total, gamma, beta], axis=-1)
    return not any(site.node.output[1:])


def _norm(kind: str) -> Lowering:
    """Returns the lowering of a normalisation over the last dimension, or from `axis` on."""

    def make(site: Site) -> bool:
        site.add_result(kind, site.inputs_at(), axis=site.attrs.get("axis", -1))
        return len(site.node.output) == 1

    return make


def _attention(site: Site) -> bool:
    """Adds attention with packed weights: a product each for queries, keys and values first."""
    x, w, bias = (site.input_at(i) for i in range(3))
    heads, shape = site.attrs["num_heads"], site.shapes.get(w)
    if shape is None or site.input_at(4) or any(site.node.output[1:]):  # a past has another layout here
        return False
    widths = list(site.attrs.get("qkv_hidden_sizes") or [shape[1] // 3] * 3)
    site.require_shape(w, -1, sum(widths))
    site.require_shape(bias, sum(widths))
    qkv = []
    for name, size in zip("qkv", widths, strict=True):
        projected = site.add("MatMul", [x, site.weight_part(w, name, (shape[0], size))])
        qkv.append(site.add("Add", [projected, site.weight_part(bias, name, (size,))]) if bias else projected)
    return _add_attention(site, [*qkv, site.input_at(5)], heads, heads, site.attrs.get("unidirectional", 0))


def _add_attention(site: Site, inputs: list[str], heads: int, kv_heads: int, causal: int) -> bool:
    """Adds attention. inputs: queries, keys, values, mask, past keys, past values; "" where there is none."""
    has_past = any(inputs[4:5]) or any(site.node.output[1:])
    outputs = [o for o in site.node.output if o] if has_past else [site.out]
    while not inputs[-1]:
        inputs.pop()
    attrs: dict[str, Any] = {"q_num_heads": heads, "kv_num_heads": kv_heads, "is_causal": int(bool(causal))}
    return bool(site.add("Attention", inputs, outputs=outputs, **attrs))


def _multi_head(site: Site) -> bool:
    """Adds MultiHeadAttention of three tensors [batch, length, heads * width], with or without a past."""
    q, k, v, bias = (site.input_at(i) for i in range(4))
    shapes = [site.shapes.get(t, ()) for t in (q, k, v)]
    heads = site.attrs["num_heads"]
    if len(shapes[0]) != 3 or any(len(s) not in (3, 4) for s in shapes[1:]) or site.input_at(8):
        return False
    qkv = [q, k, v]
    site.require_shape(bias, sum(shape[2] if len(shape) == 3 else shape[1] * shape[3] for shape in shapes))
    for i, (name, shape) in enumerate(zip("qkv", shapes, strict=True)):
        if bias and len(shape) == 3:
            qkv[i] = site.add("Add", [qkv[i], site.weight_part(bias, name, (shape[2],))])
    if len(shapes[1]) == 4:  # keys and values are ordered by heads: view queries like that too
        _b, length, width = shapes[0]
        if length > 1:
            return False
        qkv[0] = site.add("Reshape", [qkv[0], site.int_list(0, heads, length, width // heads)])
        out = site.add("Attention", [*qkv, *site.inputs_at(5)])
        site.add_result("Reshape", [out, site.int_list(0, length, -1)])
        return not any(site.node.output[1:])
    others = [site.input_at(i) for i in (5, 6, 7)]
    return _add_attention(site, [*qkv, *others], heads, heads, site.attrs.get("unidirectional", 0))


def _grouped_query(site: Site) -> bool:
    """Adds GroupQueryAttention of three tensors, without rotary positions and attention bias. The length of
    the past is that of its tensor: the true lengths (input 5) are values, which are not read.
    """
    q, k, v, past_k, past_v = (site.input_at(i) for i in range(5))
    if not k or not v or site.attrs.get("do_rotary") or site.input_at(10):
        return False
    if (shape := site.shapes.get(q)) is not None:
        for tensor in (k, v):
            site.require_shape(tensor, *shape[:2], -1)
        if len(site.shapes.get(site.input_at(5), ())) == 1:  # lengths of the past
            site.require_shape(site.input_at(5), shape[0])
    inputs = [q, k, v, "", past_k, past_v]
    return _add_attention(site, inputs, site.attrs["num_heads"], site.attrs["kv_num_heads"], causal=1)


def _on_integers(kind: str, operands: Sequence[int], out: int) -> Lowering:
    """Returns the lowering of an operator on integers.

    operands: their positions; each is followed by its scale and zero point
    out: position of the result's scale
    """

    def make(site: Site) -> bool:
        attrs = {k: v for k, v in site.attrs.items() if k not in ("channels_last", "opset")}
        if site.attrs.get("channels_last"):
            return False
        real_result = site.add(kind, [site.dequantized(at) for at in operands], **attrs)
        return site.add_result("QuantizeLinear", [real_result, *site.inputs_at(out, out + 1)])

    return make


def _concat(site: Site) -> bool:
    parts = [site.dequantized(at) for at in range(2, len(site.node.input), 3)]
    joined = site.add("Concat", parts, axis=site.attrs["axis"])
    return site.add_result("QuantizeLinear", [joined, *site.node.input[:2]])


def _integer_gemm(site: Site) -> bool:
    """Adds QGemm. Its result is real if the scale of the result is left out."""
    attrs = _select_attrs(site, "alpha", "transA", "transB")
    bias = [site.add("DequantizeLinear", site.inputs_at(6, 1))] if site.input_at(6) else []
    operands = [site.dequantized(0), site.dequantized(3), *bias]
    if not site.input_at(7):
        return site.add_result("Gemm", operands, **attrs)
    return site.add_result("QuantizeLinear", [site.add("Gemm", operands, **attrs), *site.inputs_at(7, 8)])


def _integer_matmul(
    scale: int, zero: int, bias_at: int, left_scale: int = -1, left_zero: int = -1
) -> Lowering:
    """Returns the lowering of DynamicQuantizeMatMul or MatMulIntegerToFloat: integer operands, real result.

    scale, zero, bias_at, left_scale, left_zero: positions of inputs; left_scale -1: A is real and is
    quantised to 8 bits
    """

    def make(site: Site) -> bool:
        if left_scale < 0:
            parts = [f"{site.out}/{x}" for x in ("a8", "a8_scale", "a8_zero")]
            site.add("DynamicQuantizeLinear", [site.input_at(0)], outputs=parts)
            a = site.add("DequantizeLinear", parts)
        else:
            a = site.dequantized(0, left_scale, left_zero)
        return site.product(a, site.dequantized(1, scale, zero), site.input_at(bias_at))

    return make


def _integer_lstm(site: Site) -> bool:
    """Adds DynamicQuantizeLSTM, whose 8-bit weights are transposed."""
    w, r = site.input_at(1), site.input_at(2)
    if w not in site.shapes or r not in site.shapes:
        return False
    if len(site.shapes[w]) != 3 or len(site.shapes[r]) != 3:
        site.require_shape(w, -1, -1, -1)
        site.require_shape(r, -1, -1, -1)
        return False
    weights = []
    for t in (w, r):
        directions, n, rows = site.shapes[t]
        parts = (
            site.weight_part(t, "turned", (directions, rows, n)),
            site.weight_part(t, "scale", (), TensorProto.FLOAT),
        )
        weights.append(site.add("DequantizeLinear", parts))
    inputs = [site.input_at(0), *weights, *(site.input_at(i) for i in range(3, 8))]
    while not inputs[-1]:
        inputs.pop()
    return bool(site.add("LSTM", inputs, outputs=list(site.node.output), **site.attrs))


def _few_bits(site: Site) -> bool:
    """Adds MatMulNBits: weights of 4 or 8 bits, packed in blocks. Scales and zero points cost nothing."""
    bits, k, n = (site.attrs.get(key, 4) for key in ("bits", "K", "N"))
    kind = {4: TensorProto.UINT4, 8: TensorProto.UINT8}.get(bits)
    block, w = site.attrs.get("block_size", 32), site.input_at(1)
    if kind is None:
        return False
    site.require_shape(w, n, -(-k // block), block * bits // 8)
    if len(site.shapes.get(site.input_at(2), ())) == 1:  # scales of all blocks may have one or two dimensions
        site.require_shape(site.input_at(2), n * -(-k // block))
    parts = site.weight_part(w, "unpacked", (k, n), kind), site.weight_part(w, "scale", (), TensorProto.FLOAT)
    return site.product(site.input_at(0), site.add("DequantizeLinear", parts), site.input_at(5))


def _unchanged(kind: str) -> Lowering:
    """Returns the lowering to ONNX's operator of the same inputs and attributes."""

    def make(site: Site) -> bool:
        site.add_result(kind, site.inputs_at(), **site.attrs)
        return len(site.node.output) == 1

    return make


def _matmul_shape(shapes: Sequence[Shape], attrs: dict[str, Any]) -> Shape | None:
    """Returns the shape of FusedMatMul: as MatMul, but the rows of an operand may come before its batches
    (transBatchA), and its last two dimensions may be swapped after that.
    """
    a, b = shapes[:2]
    if min(len(a), len(b)) < 2:
        return None
    a, b = (
        (*s[1:-1], s[0], s[-1]) if attrs.get(key) else s
        for s, key in ((a, "transBatchA"), (b, "transBatchB"))
    )
    m, k = a[-2:][::-1] if attrs.get("transA") else a[-2:]
    other, n = b[-2:][::-1] if attrs.get("transB") else b[-2:]
    outer = [(1,) * (max(len(a), len(b)) - len(s)) + s[:-2] for s in (a, b)]
    if k != other or any(x != y and 1 not in (x, y) for x, y in zip(*outer, strict=True)):
        return None
    return (*(max(x, y) for x, y in zip(*outer, strict=True)), m, n)


RULES: dict[str, Callable[[Sequence[Shape], dict[str, Any]], Shape | None]] = {"FusedMatMul": _matmul_shape}
NO_DOMAIN = ("SimplifiedLayerNormalization",)  # operators that onnxruntime writes without a domain
ACTIVATIONS = ("Relu", "Sigmoid", "Tanh", "LeakyRelu", "Clip", "HardSigmoid", "Elu", "Softplus", "Gelu")
# operators of one operand, whose form on integers is called QLinear<name>
ONE_OPERAND = ("Sigmoid", "LeakyRelu", "Softmax", "AveragePool", "GlobalAveragePool")
LOWERED: dict[str, Lowering] = {
    "FusedConv": _conv,
    "FusedGemm": _gemm,
    "GemmFastGelu": lambda site: site.add_result("Gelu", [site.add("MatMul", site.node.input[:2])]),
    **dict.fromkeys(("BiasGelu", "FastGelu"), _with_bias("Gelu")),
    "QuickGelu": _with_bias("Sigmoid"),
    "BiasSoftmax": _with_bias("Softmax"),
    "SkipLayerNormalization": _skip_norm("LayerNormalization", 4),
    "SkipSimplifiedLayerNormalization": _skip_norm("RMSNormalization", 3),
    "SimplifiedLayerNormalization": _norm("RMSNormalization"),
    "EmbedLayerNormalization": _embed_norm,
    "Attention": _attention,
    "MultiHeadAttention": _multi_head,
    "GroupQueryAttention": _grouped_query,
    "QLinearAdd": _on_integers("Add", (0, 3), 6),
    "QLinearMul": _on_integers("Mul", (0, 3), 6),
    **{f"QLinear{kind}": _on_integers(kind, (0,), 3) for kind in ONE_OPERAND},
    "QLinearConcat": _concat,
    "QGemm": _integer_gemm,
    "MatMulIntegerToFloat": _integer_matmul(3, 5, 6, 2, 4),
    "DynamicQuantizeMatMul": _integer_matmul(2, 3, 4),
    "MatMulNBits": _few_bits,
    "DynamicQuantizeLSTM": _integer_lstm,
    **{
        kind: _unchanged(kind)
        for kind in ("QuantizeLinear", "DequantizeLinear", "Gelu", "QLinearConv", "Pad", "Trilu")
    },
}
