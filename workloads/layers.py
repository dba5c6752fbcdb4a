"""What networks are written with: cascades from texts, renamed and stacked; feature maps and the layers
between them.

Networks state everything that they compute: biases, normalisations and activations are einsums of their own.
`graph.fuse_into_producers` decides later which of them are fused.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple

from workloads.einsum import Einsum, WorkloadError, einsum, squeezed
from workloads.graph import Workload, in_order
from workloads.operators import OPERATORS, Op, Shape, by_channel, elementwise

Cascade = tuple[Einsum, ...]


def cascade(extents: Mapping[str, int], *texts: str, sizes: Mapping[str, Shape] | None = None) -> Cascade:
    """Returns einsums that share rank sizes, each with the name of its output. sizes: tensor -> stored
    shape.
    """

    def sized(text: str) -> dict[str, Shape]:
        return {t: shape for t, shape in (sizes or {}).items() if re.search(rf"\b{t}\[", text)}

    return tuple(einsum(text, extents, sizes=sized(text)) for text in texts)


def with_names(einsums: Cascade, prefix: str, names: Mapping[str, str]) -> Cascade:
    """Returns the einsums with other names of tensors and einsums: names in `names` get their new name, all
    others the prefix.
    """

    def new(name: str) -> str:
        return names.get(name, prefix + name)

    return tuple(
        e.map_projections(lambda p: replace(p, tensor=new(p.tensor)), name=new(e.name)) for e in einsums
    )


def stack(blocks: Sequence[Cascade], first: str, last: str, shared: Collection[str] = ()) -> Cascade:
    """Returns blocks (tensor X -> tensor Y) one after the other, from tensor `first` to tensor `last`. All
    share the tensors `shared`.

    Layers are written out. That costs no time: equal einsums are solved once.
    """
    ends = [first, *(f"l{i}_Y" for i in range(len(blocks) - 1)), last]
    shared_names = {t: t for t in shared}
    return tuple(
        e
        for i, block in enumerate(blocks)
        for e in with_names(block, f"l{i}_", shared_names | {"X": ends[i], "Y": ends[i + 1]})
    )


def chain(block: Cascade, layers: int, first: str, last: str, shared: Collection[str] = ()) -> Cascade:
    """Returns a stack of equal blocks, one per layer."""
    return stack([block] * layers, first, last, shared)


def network(
    name: str, einsums: Sequence[Einsum], data: Collection[str], tables: Collection[str] = ()
) -> Workload:
    """Returns the workload in which every tensor that no einsum makes is a weight, except `data` (inputs,
    caches).

    tables: constants that are not counted as parameters; running means and variances never are
    """
    outputs = {e.output.tensor for e in einsums}
    weight_elems = {
        p.tensor: p.stored_elems()
        for e in einsums
        for p in e.inputs
        if p.tensor not in outputs and p.tensor not in data
    }
    statistics = {p.tensor for e in einsums if e.kind == "batchnormalization" for p in e.inputs[3:]}
    parameter_count = sum(n for tensor, n in weight_elems.items() if tensor not in statistics.union(tables))
    return Workload(
        name,
        in_order(name, [squeezed(e) for e in einsums]),
        frozenset(weight_elems),
        parameters=parameter_count,
    )


# Feature maps: a layer appends its einsums to the network's list and returns the map that it makes


class Map(NamedTuple):
    """A feature map: a tensor of a network, of shape (batch, channels, spatial dimensions ...)."""

    name: str
    shape: Shape


Net = list[Einsum]


def _node(
    net: Net, kind: str, inputs: Sequence[Map], out: Map, attrs: Mapping[str, object] | None = None
) -> Map:
    """Appends the einsum of an ONNX operator, or of a bias. Returns its output."""
    names, shapes = (tuple(each) for each in zip(*inputs, strict=True))
    op = Op(kind, names, shapes, out.name, out.shape, dict(attrs or {}))
    make = OPERATORS.get(kind, elementwise) if kind != "bias" else by_channel
    net.append(replace(make(op) or elementwise(op), name=out.name))
    return out


def conv(
    net: Net,
    name: str,
    x: Map,
    filters: int,
    kernel: int | Shape,
    stride: int | Shape = 1,
    pad: int | Shape = 0,
    groups: int = 1,
    norm: bool = False,
    act: str = "",
    bias: bool = True,
) -> Map:
    """Adds a convolution over every spatial dimension; then batch normalisation (norm) or a bias; then the
    activation.

    Raises WorkloadError where the kernel does not fit into the padded map.
    """
    rank = len(x.shape) - 2
    kernel, stride, pad = _per_dim(kernel, rank), _per_dim(stride, rank), _per_dim(pad, rank)
    attrs = {"strides": stride, "pads": (*pad, *pad), "group": groups}
    shape = (x.shape[0], filters, *_outputs(name, x.shape[2:], kernel, stride, pad))
    weights = Map(f"{name}_W", (filters, x.shape[1] // groups, *kernel))
    y = _node(net, "Conv", (x, weights), Map(name, shape), attrs)
    if norm:
        vectors = [Map(f"{name}_{x}", (filters,)) for x in "GBMV"]
        y = _node(net, "BatchNormalization", (y, *vectors), Map(f"{name}_norm", shape))
    elif bias:
        y = _biased(net, name, y)
    return _activated(net, name, y, act)


def _biased(net: Net, name: str, x: Map) -> Map:
    return _node(net, "bias", (x, Map(f"{name}_B", x.shape[1:2])), Map(f"{name}_bias", x.shape))


def _activated(net: Net, name: str, x: Map, act: str) -> Map:
    return _node(net, act, (x,), Map(f"{name}_{act}", x.shape)) if act else x


def upconv(net: Net, name: str, x: Map, filters: int, kernel: int) -> Map:
    """Adds a transposed convolution whose stride is its kernel, with a bias."""
    n, c, *image = x.shape
    window = [kernel] * len(image)
    out = Map(name, (n, filters, *(kernel * size for size in image)))
    weights = Map(f"{name}_W", (c, filters, *window))
    return _biased(net, name, _node(net, "ConvTranspose", (x, weights), out, {"strides": window}))


def dense(net: Net, name: str, x: Map, units: int, act: str = "", bias: bool = True) -> Map:
    """Adds a fully connected layer on the flattened map."""
    rows, depth = x.shape[0], prod(x.shape[1:])
    operands = Map(x.name, (rows, depth)), Map(f"{name}_W", (units, depth))
    y = _node(net, "Gemm", operands, Map(name, (rows, units)), {"transB": 1})
    return _activated(net, name, _biased(net, name, y) if bias else y, act)


def pool(net: Net, name: str, x: Map, kernel: int, stride: int, pad: int = 0, round_up: bool = False) -> Map:
    """Adds max pooling. round_up: the last window may extend past the border, so that no row is left out."""
    rank = len(x.shape) - 2
    kernels, strides, pads = _per_dim(kernel, rank), _per_dim(stride, rank), _per_dim(pad, rank)
    image = tuple(size + (kernel - size) % stride for size in x.shape[2:]) if round_up else x.shape[2:]
    out = Map(name, (*x.shape[:2], *_outputs(name, image, kernels, strides, pads)))
    attrs = {"kernel_shape": kernels, "strides": strides, "pads": (*pads, *pads)}
    return _node(net, "MaxPool", (x,), out, attrs)


def global_pool(net: Net, name: str, x: Map, pad_after: int = 0) -> Map:
    """Adds the mean over all positions; its factor is fused into the output. pad_after: rows and columns of
    zeros after the map, which the window covers too.
    """
    rank = len(x.shape) - 2
    kernel, pads = tuple(size + pad_after for size in x.shape[2:]), (*[0] * rank, *[pad_after] * rank)
    out = Map(name, (*x.shape[:2], *[1] * rank))
    return _node(net, "AveragePool", (x,), out, {"kernel_shape": kernel, "pads": pads})


def add(net: Net, name: str, a: Map, b: Map, act: str = "") -> Map:
    """Adds the element-wise sum of two feature maps of one shape. act: activation after it, "": none."""
    return _activated(net, name, _node(net, "Add", (a, b), Map(name, a.shape)), act)


def concat(net: Net, name: str, parts: Sequence[Map]) -> Map:
    """Adds a concatenation along the channels: data movement."""
    shape = (parts[0].shape[0], sum(p.shape[1] for p in parts), *parts[0].shape[2:])
    return _node(net, "Concat", parts, Map(name, shape), {"axis": 1})


def lrn(net: Net, name: str, x: Map, size: int = 5) -> Map:
    """Adds local response normalisation over `size` channels."""
    return _node(net, "LRN", (x,), Map(name, x.shape), {"size": size})


def softmax(net: Net, name: str, x: Map) -> Map:
    """Adds a softmax over the last dimension as one einsum, like that of an imported classifier."""
    return _node(net, "Softmax", (x,), Map(name, x.shape))


def _per_dim(value: int | Shape, rank: int) -> Shape:
    return (value,) * rank if isinstance(value, int) else value


def _outputs(name: str, image: Shape, kernel: Shape, stride: Shape, pad: Shape) -> Shape:
    """Returns the size of the output. Windows that would extend past the padded border are left out."""
    sizes = tuple((i + 2 * p - k) // s + 1 for i, k, s, p in zip(image, kernel, stride, pad, strict=True))
    if min(sizes) < 1:
        raise WorkloadError(
            f"{name}: a map of {' x '.join(map(str, image))} is too small for a kernel of "
            f"{' x '.join(map(str, kernel))}; give a larger image"
        )
    return sizes
