"""Independent count of an ONNX graph: MACs, trained parameters, compulsory words. Shares no code with
workloads/onnx.py: shapes come from ONNX's whole-graph inference, windows are walked index by index, words are
summed node by node.
"""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import numpy_helper as nph

SAME_PLACE = ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout")
ONE_TO_ONE = (
    "Relu",
    "Sigmoid",
    "Tanh",
    "Clip",
    "LeakyRelu",
    "Add",
    "Mul",
    "Sub",
    "Div",
    "Sum",
    "BatchNormalization",
    "Erf",
    "Pow",
    "Sqrt",
    "Exp",
)


class Total(NamedTuple):
    macs: int
    parameters: int
    words: int


def span(out: int, kernel: int, stride: int, dilation: int, pad: int, size: int) -> int:
    """Stored elements from the first to the last position of a sliding window."""
    seen = [o * stride + k * dilation - pad for o in range(out) for k in range(kernel)]
    return sum(0 <= i < size for i in range(min(seen), max(seen) + 1))


class Graph:
    def __init__(self, model: onnx.ModelProto) -> None:
        graph = onnx.shape_inference.infer_shapes(model, data_prop=True, strict_mode=True).graph
        self.nodes = list(graph.node)
        self.shape: dict[str, tuple[int, ...]] = {}
        for v in (*graph.input, *graph.value_info, *graph.output):
            self.shape[v.name] = tuple(d.dim_value for d in v.type.tensor_type.shape.dim)
        self.init = {t.name: t for t in graph.initializer}
        self.shape.update({n: tuple(t.dims) for n, t in self.init.items()})
        self.fixed = set(self.init)
        for n in self.nodes:
            if n.op_type == "Shape" or all(i in self.fixed for i in n.input if i):
                self.fixed.update(n.output)
        self.graph_out = [o.name for o in graph.output]
        self.work = self._needed()

    def _needed(self) -> list[Any]:
        need, work = set(self.graph_out), []
        for n in self.nodes[::-1]:
            if need & set(n.output) and n.output[0] not in self.fixed:
                work.insert(0, n)
                need |= set(n.input)
        return work

    def size(self, tensor: str) -> int:
        return prod(self.shape[tensor])

    def uses(self, tensor: str) -> int:
        return sum(tensor in n.input for n in self.work) + self.graph_out.count(tensor)


def attr(n: Any, name: str, default: Any) -> Any:
    return next((onnx.helper.get_attribute_value(a) for a in n.attribute if a.name == name), default)


def window(g: Graph, n: Any, kernel: tuple[int, ...]) -> int:
    """Words of the image that a convolution or pooling touches (hull per dimension)."""
    image, out, d = g.shape[n.input[0]], g.shape[n.output[0]], len(kernel)
    strides, dilations, pads = (
        attr(n, "strides", [1] * d),
        attr(n, "dilations", [1] * d),
        attr(n, "pads", [0] * 2 * d),
    )
    mode = attr(n, "auto_pad", b"")
    if mode in (b"SAME_UPPER", b"SAME_LOWER"):
        gaps = [
            max(0, (out[2 + i] - 1) * strides[i] + (kernel[i] - 1) * dilations[i] + 1 - image[2 + i])
            for i in range(d)
        ]
        pads = [gap // 2 if mode == b"SAME_UPPER" else (gap + 1) // 2 for gap in gaps]
    return (
        image[0]
        * image[1]
        * prod(span(out[2 + i], kernel[i], strides[i], dilations[i], pads[i], image[2 + i]) for i in range(d))
    )


def read_words(g: Graph, n: Any) -> int:
    op = n.op_type
    if op == "Conv":
        return window(g, n, g.shape[n.input[1]][2:]) + g.size(n.input[1])
    if op in ("MaxPool", "AveragePool"):
        return window(g, n, tuple(attr(n, "kernel_shape", ())))
    if op in ("Gemm", "MatMul"):
        return g.size(n.input[0]) + g.size(n.input[1])
    if op == "Slice":
        steps = (
            nph.to_array(g.init[n.input[4]]) if len(n.input) > 4 else np.ones(len(g.shape[n.output[0]]), int)
        )
        return prod((o - 1) * int(s) + 1 for o, s in zip(g.shape[n.output[0]], steps, strict=True))
    if op == "Gather":
        words = g.size(n.input[0]) // g.shape[n.input[0]][0] * min(g.size(n.input[1]), g.shape[n.input[0]][0])
        return words + (0 if n.input[1] in g.fixed else g.size(n.input[1]))
    if op in ("ReduceMean", "ReduceSum", "ReduceMax", "Pad", "Split", "Expand"):
        return g.size(n.input[0])
    single = {i for i in n.input if i and not (i in g.fixed and g.size(i) == 1)}
    return sum(g.size(i) for i in single)


def macs(g: Graph, n: Any) -> int:
    if n.op_type == "Conv":
        return g.size(n.output[0]) * prod(g.shape[n.input[1]][1:])
    if n.op_type == "Gemm":
        return g.size(n.output[0]) * g.shape[n.input[0]][0 if attr(n, "transA", 0) else 1]
    return g.size(n.output[0]) * g.shape[n.input[0]][-1] if n.op_type == "MatMul" else 0


def unmoved(g: Graph, n: Any) -> bool:
    """Does a Transpose leave every element where it is? Walks the flat positions."""
    shape, perm = g.shape[n.input[0]], attr(n, "perm", None)
    small = [min(s, 2) for s in shape]  # two steps per dimension show any change of order
    flat = np.arange(prod(small)).reshape(small)
    return bool((flat.transpose(perm).ravel() == flat.ravel()).all())


def one_to_one(n: Any) -> bool:
    """Element by element: by its name, or a window of one element. Its shape is checked beside."""
    windows = n.op_type in (
        "MaxPool",
        "AveragePool",
        "GlobalAveragePool",
        "ReduceMean",
        "ReduceSum",
        "ReduceMax",
    )
    return n.op_type in ONE_TO_ONE or (windows and max(attr(n, "kernel_shape", (1,))) == 1)


def cheap(g: Graph, n: Any, product: bool) -> bool:
    """Are the constants of a one-to-one operator few beside its result, or a vector behind a product?"""
    fixed = [i for i in n.input if i in g.fixed and g.size(i) > 1]
    return all(g.size(i) < g.size(n.output[0]) or (product and max(g.shape[i]) == g.size(i)) for i in fixed)


def count(model: onnx.ModelProto) -> Total:
    g = Graph(model)
    private: dict[str, bool] = {}  # made by counted work and seen by one reader only, so far along its chain
    products: dict[str, bool] = {}  # where that work is a product
    total_macs = words = 0
    for n in g.work:
        out, moving = n.output[0], list(dict.fromkeys(i for i in n.input if i and i not in g.fixed))
        products[out] = n.op_type in ("Conv", "Gemm", "MatMul") or (
            bool(moving) and products.get(moving[0], False)
        )
        once = g.uses(out) == 1
        if n.op_type in SAME_PLACE or (n.op_type == "Transpose" and unmoved(g, n)):
            private[out] = private.get(moving[0], False) and once
        elif (
            one_to_one(n)
            and len(moving) == 1
            and private.get(moving[0])
            and g.shape[moving[0]] == g.shape[out]
            and cheap(g, n, products[moving[0]])
        ):
            private[out] = once
        else:
            products[out] = n.op_type in ("Conv", "Gemm", "MatMul")
            total_macs += macs(g, n)
            words += read_words(g, n) + g.size(out)
            private[out] = once
    return Total(total_macs, trained(g), words)


def trained(g: Graph) -> int:
    """Distinct constants of more than one number that work reads; statistics of BatchNormalization and shapes
    are not trained.
    """
    origin: dict[str, str] = {}
    for n in g.nodes:
        if n.op_type in ("Unsqueeze", "Reshape", "Transpose", "Identity") and n.output[0] in g.fixed:
            origin[n.output[0]] = origin.get(n.input[0], n.input[0])
    found = {}
    data_slots = {
        "BatchNormalization": (1, 2),
        "Reshape": (),
        "Slice": (),
        "Gather": (0,),
        "Squeeze": (),
        "Unsqueeze": (),
        "ReduceMean": (),
        "Pad": (),
        "Split": (),
        "Expand": (0,),
        "Clip": (),
    }
    for n in g.work:
        for slot, i in enumerate(n.input):
            if i in g.fixed and slot in data_slots.get(n.op_type, range(9)) and g.size(i) > 1:
                found[origin.get(i, i)] = g.size(i)
    return sum(found.values())


def brute_hull(dims: list[tuple[list[tuple[int, int]], int, int]]) -> int:
    """Clipped hull of affine dimensions ((coefficient, extent) terms, offset, size), by visiting every
    index."""
    result = 1
    for terms, offset, size in dims:
        seen = [
            offset + sum(c * i for (c, _), i in zip(terms, at, strict=True))
            for at in product(*(range(n) for _, n in terms))
        ]
        low, high = max(min(seen), 0), min(max(seen), size - 1)
        result *= max(0, high - low + 1)
    return result
