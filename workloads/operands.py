"""Checks that the operands of an ONNX operator fit together. ONNX's own shape rule checks only some of them,
and none if the result's shape is declared.

RULES has one rule per operator: the dimensions of each operand as letters. Equal letters must have equal
sizes, `B?` may also be 1, `_` is any size. A rule may fix the sizes of letters, from attributes or other
operands. Operators without a rule have no second operand, or ONNX's own shape rule checks all operands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

Shape = tuple[int, ...]
Slots = Sequence[Shape | None]  # shapes of an operator's inputs, by position; None: left out or unknown
Attributes = Mapping[str, Any]
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


@dataclass(frozen=True, slots=True)
class Agreement:
    """What the shapes of an operator's operands must be."""

    dims: Mapping[int, str]  # position of an input -> letters of its dimensions
    preset: Mapping[str, int] = field(default_factory=dict)  # sizes of letters that are known in advance
    fault: str = ""  # a fault found already; "": none


Rule = Callable[[Slots, Attributes], Agreement | None]


def disagreement(kind: str, names: Sequence[str], shapes: Slots, attrs: Attributes) -> str:
    """Returns which operands do not fit together, with their shapes; "" if all fit, or too few shapes are
    known.

    kind: of the operator
    names, shapes: of its inputs; shape None: unknown
    >>> disagreement("MatMul", ["a", "b"], [(8, 400), (201, 80)], {})
    'a [8, 400] and b [201, 80] do not fit: K is 400 and 201'
    """
    padded = [*shapes, *[None] * 10]
    rule = RULES.get(kind)
    agreement = rule(padded, attrs) if rule else None
    if agreement is None:
        return ""
    if agreement.fault:
        shape_texts = [
            f"{name} {list(shape)}" for name, shape in zip(names, shapes, strict=True) if name and shape
        ]
        return f"{', '.join(shape_texts)}: {agreement.fault}"
    return _clash(agreement, names, padded)


def _clash(agreement: Agreement, names: Sequence[str], shapes: Slots) -> str:
    sizes: dict[str, tuple[int, str]] = {letter: (size, "") for letter, size in agreement.preset.items()}
    for position, text in agreement.dims.items():
        shape = shapes[position] if position < len(names) and names[position] else None
        letters = text.split()
        if shape is None:
            continue
        operand = f"{names[position]} {list(shape)}"
        if len(shape) != len(letters):
            return f"{operand} must have {len(letters)} dimensions: {text.replace('?', '') or 'none'}"
        for size, letter in zip(shape, letters, strict=True):
            bare = letter.removesuffix("?")
            if letter == "_" or (letter != bare and size == 1):
                continue
            other_size, other_operand = sizes.setdefault(bare, (size, operand))
            if other_size != size:
                return (
                    f"{other_operand} and {operand} do not fit: {bare} is {other_size} and {size}"
                    if other_operand
                    else f"{operand} does not fit: {bare} is {size}, not {other_size}"
                )
    return ""


def _conv(x_at: int, w_at: int, bias_at: int, transposed: bool = False) -> Rule:
    """Returns the rule of a convolution: x [N, C, image], w [K, C / groups, kernel], bias [K]; transposed:
    w [C, K / groups, kernel].
    """

    def rule(s: Slots, attrs: Attributes) -> Agreement | None:
        x, w = s[x_at], s[w_at]
        if x is None or w is None or len(w) < 3:
            return None
        groups, rank = attrs.get("group", 1), len(w) - 2
        kernel = tuple(attrs.get("kernel_shape") or w[2:])
        if kernel != w[2:] or w[0] % groups:
            return _faulty(f"group = {groups} and kernel_shape = {list(kernel)} do not fit these weights")
        image = " _" * rank
        if transposed:
            return Agreement({w_at: f"C _{image}", x_at: f"_ C{image}", bias_at: "K"}, {"K": w[1] * groups})
        if len(x) == len(w) and x[1] != w[1] * groups:
            where = f" in each of {groups} groups" if groups > 1 else ""
            return _faulty(f"C is {x[1]} and {w[1]}{where}")
        return Agreement({x_at: f"_ C{image}", **({bias_at: "K"} if bias_at >= 0 else {})}, {"K": w[0]})

    return rule


def _faulty(wrong: str) -> Agreement:
    return Agreement({}, fault=wrong)


def _deform(s: Slots, attrs: Attributes) -> Agreement | None:
    """Rule of a deformable convolution: as a convolution, and offsets [N, offset groups x kernel x
    dimensions, output], mask [N, offset groups x kernel, output].
    """
    base = _conv(0, 1, 3)(s, attrs)
    if base is None or base.fault or s[0] is None or s[1] is None:
        return base
    rank, taps = len(s[1]) - 2, attrs.get("offset_group", 1) * prod(s[1][2:])
    image = " ".join(f"P{i}" for i in range(rank))
    dims = {0: "N C" + " _" * rank, 2: f"N OFFSETS {image}", 4: f"N MASKS {image}", 3: "K"}
    return Agreement(
        dims, {**base.preset, "OFFSETS": taps * rank, "MASKS": taps, **_deform_output_sizes(s, attrs)}
    )


def _deform_output_sizes(s: Slots, attrs: Attributes) -> dict[str, int]:
    """Returns the spatial output sizes of a deformable convolution by letter: P0, P1, ..."""
    image, kernel = (s[0] or ())[2:], (s[1] or ())[2:]
    n = len(kernel)
    strides, dilations, pads = (
        attrs.get(key) or [default] * count
        for key, default, count in (("strides", 1, n), ("dilations", 1, n), ("pads", 0, 2 * n))
    )
    if len(image) != n:
        return {}
    return {
        f"P{i}": (image[i] + pads[i] + pads[i + n] - dilations[i] * (kernel[i] - 1) - 1) // strides[i] + 1
        for i in range(n)
    }


def _gemm(s: Slots, attrs: Attributes) -> Agreement | None:
    bias = ["M?", "N?"][2 - len(s[2]) :] if s[2] is not None and len(s[2]) <= 2 else ["M?", "N?"]
    left, right = "K M" if attrs.get("transA") else "M K", "N K" if attrs.get("transB") else "K N"
    return Agreement({0: left, 1: right, 2: " ".join(bias)})


def _matmul(a_at: int, b_at: int) -> Rule:
    """Returns the rule of a matrix product. Leading dimensions are batches and broadcast; a vector has no M
    or no N. FusedMatMul: operands may be transposed.
    """

    def rule(s: Slots, attrs: Attributes) -> Agreement | None:
        a, b = s[a_at], s[b_at]
        if a is None or b is None or not a or not b:
            return None
        left = _matrix(len(a), "M K", attrs.get("transA"), attrs.get("transBatchA"))
        right = _matrix(len(b), "K N", attrs.get("transB"), attrs.get("transBatchB"))
        return Agreement({a_at: "K" if len(a) == 1 else left, b_at: "K" if len(b) == 1 else right})

    return rule


def _matrix(rank: int, last: str, transposed: Any, rows_first: Any) -> str:
    """Returns the letters of an operand: batches, numbered from the last, then the matrix. rows_first: rows
    come before the batches.
    """
    first, second = last.split()[:: -1 if transposed else 1]
    batches = [f"B{i}?" for i in range(rank - 3, -1, -1)]
    return " ".join([first, *batches, second] if rows_first else [*batches, first, second])


def _einsum(s: Slots, attrs: Attributes) -> Agreement | None:
    equation = attrs.get("equation", b"")
    text = (equation.decode() if isinstance(equation, bytes) else equation).replace(" ", "")
    if not text:
        return None
    dims = {}
    for at, part in enumerate(text.partition("->")[0].split(",")):
        shape = s[at] if at < len(s) else None
        if shape is None:
            continue
        extra = [f"...{i}?" for i in range(len(shape) - len(part.replace("...", "")) - 1, -1, -1)]
        before, dots, after = part.partition("...")
        dims[at] = " ".join([*(f"{c}?" for c in before), *(extra if dots else []), *(f"{c}?" for c in after)])
    return Agreement(dims)


def _recurrent(kind: str) -> Rule:
    """Returns the rule of a recurrent layer: X [steps, batch, inputs], W [directions, gates x hidden,
    inputs], R [directions, gates x hidden, hidden], bias, lengths, states.
    """

    def rule(s: Slots, attrs: Attributes) -> Agreement | None:
        r = s[2]
        if r is None or len(r) != 3:
            return None
        hidden, directions = (
            attrs.get("hidden_size", r[2]),
            2 if attrs.get("direction") == b"bidirectional" else 1,
        )
        rows, state = ("B _ I", "B D H") if attrs.get("layout") else ("_ B I", "D B H")
        gates = GATES[kind] * hidden
        sizes = {"D": directions, "H": hidden, "GATES": gates, "BIASES": 2 * gates, "PEEPHOLES": 3 * hidden}
        operands = (rows, "D GATES I", "D GATES H", "D BIASES", "B", state, state, "D PEEPHOLES")
        return Agreement(dict(enumerate(operands)), sizes)

    return rule


def _attention(s: Slots, attrs: Attributes) -> Agreement | None:
    """Rule of attention: queries, keys and values [batch, heads, length, width] or [batch, length, heads x
    width]; mask; past keys and values.
    """
    q, k, v = s[:3]
    if q is None or k is None or v is None or {len(q), len(k), len(v)} not in ({3}, {4}):
        return None
    flat = len(q) == 3
    heads, kv_heads = (attrs.get("q_num_heads", 0), attrs.get("kv_num_heads", 0)) if flat else (q[1], k[1])
    if not heads or not kv_heads or heads % kv_heads or (flat and (q[2] % heads or v[2] % kv_heads)):
        return _faulty(f"{heads} heads of queries and {kv_heads} of keys and values do not fit")
    key_width, value_width = (q[2] // heads, v[2] // kv_heads) if flat else (q[3], v[3])
    past = s[4][2] if s[4] is not None and len(s[4]) == 4 else 0
    length = k[1 if flat else 2]
    key_count = length + past
    rows = ("B? Q _", "B? T KD", "B? T _") if flat else ("B? _ Q D", "B? H T D", "B? H T _")
    dims = dict(enumerate(rows)) | {4: "B? H P D", 5: "B? H P E", 6: "B"}
    if (mask := s[3]) is not None:
        # a mask may be shorter than past and new keys together, but not longer
        last = "KEYS?" if mask and mask[-1] > key_count else "_"
        dims[3] = " ".join(("B?", "HEADS?", "Q?", last)[4 - min(len(mask), 4) :])
    sizes = {
        "D": key_width,
        "E": value_width,
        "H": kv_heads,
        "KD": kv_heads * key_width,
        "HEADS": heads,
        "KEYS": key_count,
        "T": length,
    }
    return Agreement(dims, sizes)


def _per_channel(*at: int) -> Rule:
    """Returns the rule of vectors with an element per channel (dimension 1) of the first operand."""

    def rule(s: Slots, attrs: Attributes) -> Agreement | None:
        x = s[0]
        return None if x is None or len(x) < 2 else Agreement(dict.fromkeys(at, "C"), {"C": x[1]})

    return rule


def _per_row(*at: int) -> Rule:
    """Returns the rule of operands that are broadcast to the last dimensions of the first operand."""

    def rule(s: Slots, attrs: Attributes) -> Agreement | None:
        x = s[0]
        if x is None:
            return None
        letters = [f"D{i}" for i in range(len(x))]
        dims = {
            i: " ".join(f"{c}?" for c in letters[len(x) - len(operand) :])
            for i in at
            if (operand := s[i]) is not None and len(operand) <= len(x)
        }
        return Agreement(dims, dict(zip(letters, x, strict=True)))

    return rule


RULES: dict[str, Rule] = {
    "Conv": _conv(0, 1, 2),
    "ConvInteger": _conv(0, 1, -1),
    "QLinearConv": _conv(0, 3, 8),
    "ConvTranspose": _conv(0, 1, 2, transposed=True),
    "DeformConv": _deform,
    "Gemm": _gemm,
    "MatMul": _matmul(0, 1),
    "MatMulInteger": _matmul(0, 1),
    "FusedMatMul": _matmul(0, 1),
    "QLinearMatMul": _matmul(0, 3),
    "Einsum": _einsum,
    **{kind: _recurrent(kind) for kind in GATES},
    "Attention": _attention,
    "BatchNormalization": _per_channel(1, 2, 3, 4),
    "InstanceNormalization": _per_channel(1, 2),
    "LayerNormalization": _per_row(1, 2),
    "RMSNormalization": _per_row(1),
    "PRelu": _per_row(1),
}
