"""Small graphs, read as einsums and executed in NumPy (tests/numeric.py): their numbers against torch's, from
a .pt2 program and from an ONNX file.

Biases and scalars cost nothing and are left out of einsums, so the graphs have none; a mean is a sum, so
pools are of sums.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch import nn
from torch.ao.quantization.fx import _decomposed  # noqa: F401
from torch.nn import functional as F  # noqa: N812

from tests import numeric
from tests.prove.models.run import quiet
from workloads import onnx as onnx_files
from workloads import torch as programs
from workloads.graph import Workload

numeric.POINTS.update(
    {
        "quantizelinear": lambda x, *_: np.clip(np.rint(x), -128, 127),
        "where": lambda c, a, b: np.where(c, a, b),
        "swish": numeric.POINTS["silu"],
        "sub": lambda a, b: a - b,
        "exp": np.exp,
        "leakyrelu": lambda x: np.where(x > 0, x, 0.01 * x),
        "cos": np.cos,
        "sin": np.sin,
        "cast": lambda x: x,
        "mul_self": lambda x: x * x,
        "add_self": lambda x: x + x,
        "max": np.maximum,
        "min": np.minimum,
        "abs": np.abs,
        "reciprocal": lambda x: 1 / x,
        "hardswish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
        "div": lambda a, b: a / b,
        "not": np.logical_not,
        "less": lambda a, b: a < b,
        "greater": lambda a, b: a > b,
    }
)


def _softmax(x: Any, mask: Any = 0.0) -> Any:
    shown = np.broadcast_to(np.where(mask, 0.0, -np.inf) if np.asarray(mask).dtype == bool else mask, x.shape)
    p = np.exp(x + shown - (x + shown).max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


numeric.WHOLE["softmax"] = _softmax


class Call(nn.Module):
    """A function of the inputs and of the weights given."""

    def __init__(self, f: Callable[..., Any], *weights: tuple[int, ...]) -> None:
        super().__init__()
        self.f, self.weights = f, nn.ParameterList([torch.randn(shape) for shape in weights])

    def forward(self, *inputs: Any) -> Any:
        return self.f(*inputs, *self.weights)


def conv(dims: int, transposed: bool = False, **how: Any) -> Callable[..., Any]:
    return lambda x, w: getattr(F, f"conv{'_transpose' if transposed else ''}{dims}d")(x, w, **how)


def attention(x: Any, q: Any, k: Any, v: Any) -> Any:
    """Two heads of four."""
    b, s, w = x.shape
    parts = [(x @ m).view(b, s, 2, w // 2).transpose(1, 2) for m in (q, k, v)]
    return (
        (torch.softmax(parts[0] @ parts[1].transpose(-1, -2), -1) @ parts[2]).transpose(1, 2).reshape(b, s, w)
    )


def in_place(x: Any, w: Any) -> Any:
    y = x @ w
    y.mul_(y)
    y += x
    return y.relu_()


def rows_in_place(x: Any, w: Any) -> Any:
    y = x @ w
    y[:, 1:3] = x[:, :2]
    return y @ w


def cached(x: Any, past_k: Any, past_v: Any, w: Any) -> Any:
    k, v = torch.cat([past_k, x @ w], 1), torch.cat([past_v, x], 1)
    return torch.softmax(x @ k.transpose(1, 2), -1) @ v, k


def quantised(x: Any, w: Any) -> Any:
    """Integers of the inputs times real weights: a rounding that rides on a product is left out of its
    einsum, so there is none.
    """
    ops, how = torch.ops.quantized_decomposed, (1.0, 0, -128, 127, torch.int8)
    return F.relu(F.conv2d(ops.dequantize_per_tensor(ops.quantize_per_tensor(x, *how), *how), w))


def chosen(x: Any, w: Any) -> Any:
    return torch.where(x < w, x, w) @ w.t()


# Their ONNX files scale by constants or scatter by indices, which einsums do not hold
PROGRAM_ONLY = {"sdpa", "sdpa_mask", "rows_in_place", "quantised"}
GRAPHS: dict[str, tuple[Callable[[], nn.Module], tuple[tuple[int, ...], ...]]] = {
    "asymmetric_pads": (
        lambda: Call(lambda x, w: F.conv2d(F.pad(x, (0, 2, 1, 0)), w), (4, 3, 3, 3)),
        ((2, 3, 7, 6),),
    ),
    "dilation": (lambda: Call(conv(2, dilation=2), (4, 3, 3, 3)), ((2, 3, 9, 8),)),
    "dilation_stride_pad": (
        lambda: Call(conv(2, dilation=(2, 1), stride=(1, 3), padding=(2, 1)), (4, 3, 3, 3)),
        ((2, 3, 9, 8),),
    ),
    "groups": (lambda: Call(conv(2, groups=2), (6, 2, 3, 3)), ((2, 4, 6, 6),)),
    "depthwise": (lambda: Call(conv(2, groups=4, padding=1, stride=2), (8, 1, 3, 3)), ((2, 4, 7, 7),)),
    "conv1d": (lambda: Call(conv(1, stride=2, padding=1), (4, 3, 3)), ((2, 3, 11),)),
    "conv3d": (lambda: Call(conv(3, padding=(0, 1, 1)), (4, 2, 2, 3, 3)), ((1, 2, 4, 5, 5),)),
    "same_even": (lambda: Call(lambda x, w: F.conv2d(x, w, padding="same"), (4, 3, 3, 3)), ((2, 3, 6, 6),)),
    "transposed": (lambda: Call(conv(2, True), (3, 4, 2, 2)), ((2, 3, 5, 5),)),
    "transposed_stride": (
        lambda: Call(conv(2, True, stride=2, padding=1, output_padding=1), (3, 4, 3, 3)),
        ((2, 3, 5, 5),),
    ),
    "transposed_groups": (lambda: Call(conv(2, True, stride=2, groups=2), (4, 3, 2, 2)), ((2, 4, 5, 5),)),
    "transposed_1d": (lambda: Call(conv(1, True, stride=3, padding=1), (3, 4, 4)), ((2, 3, 6),)),
    "transposed_3d": (lambda: Call(conv(3, True, stride=2), (2, 3, 2, 2, 2)), ((1, 2, 3, 3, 3),)),
    "max_pool": (lambda: Call(lambda x: F.max_pool2d(x, 3, 2, 1)), ((2, 3, 8, 8),)),
    "max_pool_ceil": (lambda: Call(lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True)), ((2, 3, 8, 8),)),
    "max_pool_1d": (lambda: Call(lambda x: F.max_pool1d(x, 2)), ((2, 3, 8),)),
    "max_pool_3d": (lambda: Call(lambda x: F.max_pool3d(x, 2)), ((1, 2, 4, 4, 4),)),
    "max_pool_dilated": (lambda: Call(lambda x: F.max_pool2d(x, 2, 1, dilation=2)), ((1, 2, 6, 6),)),
    "sum_pool": (lambda: Call(lambda x: F.avg_pool2d(x, 2, 2, divisor_override=1)), ((2, 3, 8, 8),)),
    "linear": (lambda: nn.Linear(5, 7, bias=False), ((3, 5),)),
    "linear_of_rows": (lambda: nn.Linear(5, 7, bias=False), ((2, 3, 5),)),
    "batched": (lambda: Call(lambda a, b: a @ b), ((2, 3, 4, 5), (2, 3, 5, 6))),
    "broadcast": (lambda: Call(lambda a, b: a @ b), ((2, 1, 4, 5), (3, 5, 6))),
    "vector": (lambda: Call(lambda a, b: a @ b), ((4, 5), (5,))),
    "einsum": (
        lambda: Call(lambda a, b: torch.einsum("bqhd,bkhd->bhqk", a, b)),
        ((2, 4, 3, 5), (2, 6, 3, 5)),
    ),
    "einsum_dots": (lambda: Call(lambda a, b: torch.einsum("...ij,jk->...ki", a, b)), ((2, 3, 4, 5), (5, 6))),
    "bilinear": (
        lambda: Call(lambda a, b, w: torch.einsum("bi,bo->bio", a, b).flatten(1) @ w, (12, 5)),
        ((2, 3), (2, 4)),
    ),
    "attention": (lambda: Call(attention, (8, 8), (8, 8), (8, 8)), ((2, 5, 8),)),
    "cross_attention": (
        lambda: Call(lambda x, y, w: torch.softmax((x @ w) @ y.transpose(1, 2), -1) @ y, (6, 6)),
        ((2, 3, 6), (2, 5, 6)),
    ),
    "additive_mask": (
        lambda: Call(lambda q, k, m: torch.softmax(q @ k.transpose(-1, -2) + m, -1) @ k),
        ((2, 3, 4, 5), (2, 3, 6, 5), (4, 6)),
    ),
    "sdpa": (
        lambda: Call(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=1.0)),
        ((2, 3, 4, 5), (2, 3, 6, 5), (2, 3, 6, 5)),
    ),
    "sdpa_mask": (
        lambda: Call(lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m, scale=1.0)),
        ((2, 3, 4, 5), (2, 3, 6, 5), (2, 3, 6, 5), (4, 6)),
    ),
    "kv_cache": (lambda: Call(cached, (6, 6)), ((2, 1, 6), (2, 4, 6), (2, 4, 6))),
    "tied": (lambda: Call(lambda x, w: torch.relu(x @ w) @ w.t(), (5, 7)), ((3, 5),)),
    "twice": (lambda: Call(lambda x, w: torch.relu(x @ w) @ w, (5, 5)), ((3, 5),)),
    "square": (lambda: Call(lambda x: x * x), ((3, 5),)),
    "gram": (lambda: Call(lambda x: x @ x.t()), ((3, 5),)),
    "in_place": (lambda: Call(in_place, (6, 6)), ((2, 4, 6),)),
    "rows_in_place": (lambda: Call(rows_in_place, (6, 6)), ((2, 4, 6),)),
    "strided_slice": (lambda: Call(lambda x, w: x[:, 1::2] @ w, (5, 3)), ((2, 7, 5),)),
    "negative_slice": (lambda: Call(lambda x, w: x[:, -3:, :] @ w, (5, 3)), ((2, 7, 5),)),
    "chunks": (lambda: Call(lambda x: x.chunk(2, -1)[0] * torch.sigmoid(x.chunk(2, -1)[1])), ((3, 8),)),
    "concat": (lambda: Call(lambda x, y, w: torch.cat([x, y], 1) @ w, (5, 3)), ((2, 2), (2, 3))),
    "permuted": (lambda: Call(lambda x, w: x.permute(0, 2, 1) @ w, (4, 3)), ((2, 4, 5),)),
    "unfolded_view": (
        lambda: Call(lambda x, w: x.reshape(2, 2, 2, 6).transpose(1, 2).reshape(2, 4, 6) @ w, (6, 3)),
        ((2, 4, 6),),
    ),
    "sums": (lambda: Call(lambda x, w: (x * w).sum(-1) + x.amax(-1), (3, 5)), ((3, 5),)),
    "chosen": (lambda: Call(chosen, (3, 5)), ((3, 5),)),
    "residual": (lambda: Call(lambda x, a, b: x + torch.relu(x @ a) @ b, (5, 7), (7, 5)), ((3, 5),)),
    "quantised": (lambda: Call(quantised, (4, 3, 3, 3)), ((2, 3, 6, 6),)),
}


def results(w: Workload, data: dict[str, np.ndarray]) -> list[np.ndarray]:
    """All that the einsums make."""
    made = numeric.run(w.einsums, data)
    return [made[e.output.tensor] for e in w.einsums]


def far(wanted: Any, found: list[np.ndarray]) -> float:
    """How far the nearest result is from what torch gives, of the largest number in it."""
    y = wanted.detach().numpy()
    same = [x for x in found if x.size == y.size]
    return min(
        (float(np.abs(x.ravel() - y.ravel()).max() / max(np.abs(y).max(), 1e-9)) for x in same),
        default=float("inf"),
    )


def _constants(program: Any, data: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Values of the nodes that depend on parameters alone."""
    found = {n: torch.from_numpy(x) for n, x in data.items() if n not in program.graph_signature.user_inputs}
    for node in program.graph.nodes:
        if node.op == "call_function" and all(n.name in found for n in node.all_input_nodes):
            args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: found[n.name])
            found[node.name] = node.target(*args, **kwargs)
    return {n: x.detach().numpy() for n, x in found.items() if isinstance(x, torch.Tensor)}


def of_program(module: nn.Module, inputs: tuple[Any, ...]) -> list[np.ndarray]:
    program = torch.export.export(module, inputs)
    signature = program.graph_signature
    data = {
        n: program.state_dict[t].detach().numpy()
        for n, t in (signature.inputs_to_parameters | signature.inputs_to_buffers).items()
    }
    data |= {n: x.numpy() for n, x in zip(signature.user_inputs, inputs, strict=True)}
    data |= _constants(program.run_decompositions({}), data)
    return results(programs.load(program, fuse_elementwise=False), data)


def of_file(module: nn.Module, inputs: tuple[Any, ...]) -> list[np.ndarray]:
    buffer = io.BytesIO()
    names = [f"input{i}" for i in range(len(inputs))]
    with quiet():
        torch.onnx.export(module, inputs, buffer, dynamo=False, opset_version=17, input_names=names)
    model = onnx.load_from_string(buffer.getvalue())
    data = {
        "".join(c if c.isalnum() else "_" for c in t.name): numpy_helper.to_array(t)
        for t in model.graph.initializer
    }
    for node in model.graph.node:
        if node.op_type == "Constant":
            data["".join(c if c.isalnum() else "_" for c in node.output[0])] = numpy_helper.to_array(
                node.attribute[0].t
            )
    data |= {n: x.numpy() for n, x in zip(names, inputs, strict=True)}
    data |= {f"t_{k}": v for k, v in data.items() if not k[0].isalpha()}
    return results(onnx_files.load(model, fuse_elementwise=False), data)


def main(only: tuple[str, ...] = ()) -> int:
    """Prints what differs; 1 if anything does."""
    wrong, equal, none = 0, 0, []
    for name, (make, shapes) in ((n, g) for n, g in GRAPHS.items() if not only or n in only):
        torch.manual_seed(0)
        module, inputs = make().eval(), tuple(torch.randn(s) for s in shapes)
        outputs = module(*inputs)
        for form, read in (("pt2", of_program), ("onnx", of_file))[: 1 if name in PROGRAM_ONLY else 2]:
            try:
                found = read(module, inputs)
            except torch.onnx.errors.OnnxExporterError as fault:
                none.append(f"{name}: {str(fault).splitlines()[0][:80]}")
                continue
            except Exception as fault:
                print(f"  {name}.{form}: {type(fault).__name__}: {str(fault)[:200]}")
                wrong += 1
                continue
            off = max(far(y, found) for y in (outputs if isinstance(outputs, tuple) else (outputs,)))
            equal, wrong = equal + (off <= 1e-5), wrong + (off > 1e-5)
            if off > 1e-5:
                print(f"  {name}.{form}: off by {off:.2g} of its largest number")
    listed = "; ".join(none) or "none"
    print(
        f"{len(GRAPHS)} small graphs, {equal + wrong} readings executed: {equal} equal torch to "
        f"1e-5, {wrong} differ; not exported: {listed}"
    )
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
