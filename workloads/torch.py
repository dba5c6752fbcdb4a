"""Reads a torch.export program as a Workload: ATen operators become nodes of an ONNX graph without weights,
which workloads/onnx.py reads.

Thus a network costs the same as .onnx and as .pt2: views are free, one-to-one functions are fused, and an
unknown operator is data movement, named in Workload.moved.

The program is decomposed first (run_decompositions): operators in the tables below stay, all others become
core ATen, in-place operators too, and all einsums if one of them is not plain (`plain_indices`). Nodes have
ONNX names in another domain, so that ONNX infers nothing: their shapes are those that torch recorded
(node.meta["val"]). Only Attention is ONNX's own operator.
"""

from __future__ import annotations

import logging
import os
import re
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from io import BytesIO
from math import prod
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from workloads import document, onnx
from workloads.einsum import WorkloadError, refuse
from workloads.graph import Workload
from workloads.operators import Shape, by_name, plain_indices
from workloads.rebind import check_per_sample
from workloads.retrace import retrace, tensors_of

TYPES = {  # torch type -> ONNX type; all others count as INT64 (`_type`)
    "torch.float32": TensorProto.FLOAT,
    "torch.float16": TensorProto.FLOAT16,
    "torch.bfloat16": TensorProto.BFLOAT16,
    "torch.float64": TensorProto.DOUBLE,
    "torch.bool": TensorProto.BOOL,
    "torch.int8": TensorProto.INT8,
    "torch.uint8": TensorProto.UINT8,
    "torch.int16": TensorProto.INT16,
    "torch.int32": TensorProto.INT32,
    "torch.float8_e4m3fn": TensorProto.FLOAT8E4M3FN,
}
# Exceptions that torch.export.load was seen to raise on archives with changed bytes
TORCH_ERRORS = (
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    UnpicklingError,
    ValueError,
    zipfile.BadZipFile,
)
# without it torch.export.load falls back on pickles, which run code
SAFE_LOAD_VAR = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
MAX_UNPACK_RATIO = 64  # an archive may unpack to so many times its size
OPSET = 23  # the first operator set with Attention
OnnxOp = tuple[str, dict[str, Any]]  # operator of ONNX, its attributes


@dataclass(frozen=True, slots=True)
class Call:
    """One ATen operator."""

    kind: str
    arguments: Mapping[str, Any]  # arguments by name
    inputs: tuple[str, ...]  # names of its tensors
    shapes: tuple[Shape, ...]  # of its tensors
    outputs: tuple[str, ...]
    results: tuple[Shape, ...]  # shapes of its outputs
    type: int  # ONNX type of its outputs

    def dim(self) -> int:
        """Returns its argument `dim`, counted from the front; 0 where it has none."""
        return int(self.arguments.get("dim", 0)) % len(self.shapes[0])


@dataclass(slots=True)
class Graph:
    """The ONNX graph under construction."""

    nodes: list[NodeProto] = field(default_factory=list)
    values: dict[str, ValueInfoProto] = field(default_factory=dict)
    # torch node -> ONNX tensor; further outputs of a node are named NODE__1, NODE__2, ...
    names: dict[str, str] = field(default_factory=dict)

    def add(
        self,
        kind: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        shapes: Sequence[Shape],
        type: int,
        domain: str = "aten",
        **attrs: Any,
    ) -> str:
        """Appends an operator with the shapes and ONNX type of its outputs. Returns the first output."""
        for output, shape in zip(outputs, shapes, strict=True):
            self.values[output] = helper.make_tensor_value_info(output, type, shape)
        self.nodes.append(
            helper.make_node(kind, inputs, outputs, f"{kind}_{outputs[0]}", domain=domain, **attrs)
        )
        return outputs[0]

    def view(self, tensor: str, shape: Shape, type: int, output: str = "") -> str:
        """Appends a reshape. Returns its output, by default TENSOR__NUMBER."""
        return self.add("Reshape", [tensor], [output or f"{tensor}__{len(self.nodes)}"], [shape], type)

    def row(self, tensor: str, output: str, shape: Shape, type: int, at: int, dim: int) -> str:
        """Appends the slice of row `at` along a dimension. Returns its output."""
        box: dict[str, Any] = {"starts": [at], "ends": [at + 1], "axes": [dim]}
        return self.add("Slice", [tensor], [output], [shape], type, **box)


def load(source: Any, name: str = "", fuse_elementwise: bool = True, batch: int | None = None) -> Workload:
    """Reads an ExportedProgram, or its .pt2 file, as a workload. Parameters are those of the program's
    signature that it uses.

    batch: new size of the first dimension of the inputs
    fuse_elementwise: as in `onnx.load`

    Raises WorkloadError, one line per fault: no torch, no such file, sizes that are not fixed, control flow.
    """
    from_file = isinstance(source, (str, Path))
    where = str(source) if from_file else name or "program"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of torch about itself
        program = _decomposed(where, _read(Path(source)) if from_file else source)
    model, parameters = _model(where, program)
    found = onnx.load(model, fuse_elementwise=fuse_elementwise, name=where)
    if batch is not None and (changed := retrace(where, program, batch)) is not None:
        before, (model, _) = found, _model(where, program)
        found = onnx.load(model, fuse_elementwise=fuse_elementwise, name=where)
        check_per_sample(where, before.macs(), found.macs(), changed)
    return replace(found, name=name or (Path(source).stem if from_file else where), parameters=parameters)


def exported(module: Any, inputs: Sequence[Any]) -> Any:
    """Returns the program of a torch.nn.Module in evaluation mode, by example inputs; a program as it is.

    Raises WorkloadError in one line: no torch, no module, no inputs, whatever torch.export refuses.
    """
    name = type(module).__name__
    try:
        import torch
    except ImportError:
        raise WorkloadError(f"{name}: needs torch: pip install 'dse[torch]'") from None
    if isinstance(module, torch.export.ExportedProgram):
        return module
    if not isinstance(module, torch.nn.Module):
        raise WorkloadError(f"{name}: is no workload; give a name, a path, a torch.nn.Module or its export")
    if not inputs:
        raise WorkloadError(f"{name}: inputs are missing; give e.g. inputs=(torch.zeros(1, 3, 224, 224),)")
    was_training = module.training
    try:
        return torch.export.export(module.eval(), tuple(inputs))
    except Exception as fault:  # torch.export raises of many kinds
        line = " ".join(str(fault).split())[:300]
        raise WorkloadError(f"{name}: torch.export refuses it ({line})") from None
    finally:
        module.train(was_training)


def _read(path: Path) -> Any:
    try:
        import torch
    except ImportError:
        raise WorkloadError(f"{path}: needs torch: pip install 'dse[torch]'") from None
    try:
        archive = BytesIO(path.read_bytes())
    except OSError as fault:
        raise WorkloadError(f"{path}: {document.unreadable(path, fault, 'a .pt2 file')}") from None
    old_setting, level = os.environ.get(SAFE_LOAD_VAR), logging.root.manager.disable
    with suppress(ImportError):
        # registers the operators quantized_decomposed
        from torch.ao.quantization.fx import _decomposed  # noqa: F401
    try:
        _check_archive(archive)
        os.environ[SAFE_LOAD_VAR] = "1"
        # torch logs the traceback of its new reader where that fails, then tries an older one
        logging.disable(logging.ERROR)
        return torch.export.load(archive)
    except TORCH_ERRORS as fault:
        # torch's message may quote the file
        why = str(fault) if isinstance(fault, _BadArchive) else type(fault).__name__
        raise WorkloadError(f"{path}: not a program of torch.export.save, or a damaged one: {why}") from None
    finally:
        logging.disable(level)
        os.environ.pop(SAFE_LOAD_VAR, None)
        if old_setting is not None:
            os.environ[SAFE_LOAD_VAR] = old_setting


class _BadArchive(ValueError):
    """An archive in a form that torch.export.save does not write."""


def _check_archive(archive: BytesIO) -> None:
    """Raises _BadArchive for an archive that unpacks to more than MAX_UNPACK_RATIO times its size, or outside
    of its folder. torch.export.save stores weights uncompressed.
    """
    with zipfile.ZipFile(archive) as packed:
        entries = packed.infolist()
    if sum(entry.file_size for entry in entries) > MAX_UNPACK_RATIO * archive.getbuffer().nbytes + (1 << 20):
        raise _BadArchive(f"it unpacks to more than {MAX_UNPACK_RATIO} times its size")
    if any(entry.filename.startswith("/") or ".." in entry.filename.split("/") for entry in entries):
        raise _BadArchive("an entry of it leads out of the archive")
    archive.seek(0)


def _model(where: str, program: Any) -> tuple[ModelProto, int]:
    """Returns the ONNX graph, and how many parameters it has."""
    signature, nodes = program.graph_signature, list(program.graph.nodes)
    refuse(_faults(where, nodes))
    mutated = set(signature.buffers_to_mutate.values())
    buffers = {n for n, target in signature.inputs_to_buffers.items() if target not in mutated}
    constants = buffers.union(signature.inputs_to_parameters, signature.inputs_to_lifted_tensor_constants)
    graph, inputs, weights = Graph(), [], []
    for node in nodes:
        tensors = tensors_of(node.meta.get("val"))
        if node.op == "placeholder" and tensors:
            graph.names[node.name] = node.name
            shape, type = tuple(tensors[0].shape), _type(tensors[0])
            if node.name in constants:
                tensor_fields = {"name": node.name, "data_type": type, "dims": shape}
                weights.append(TensorProto(**tensor_fields, data_location=TensorProto.EXTERNAL))
            else:
                inputs.append(helper.make_tensor_value_info(node.name, type, shape))
        elif node.op == "call_function" and tensors:
            _translate(node, tensors, graph)
    tensor_names = {*graph.values, *(i.name for i in inputs), *(w.name for w in weights)}
    results = [graph.names[o] for o in signature.user_outputs if graph.names.get(str(o)) in tensor_names]
    outputs = [graph.values.get(o) or helper.make_empty_tensor_value_info(o) for o in dict.fromkeys(results)]
    value_info = list(graph.values.values())
    onnx_graph = helper.make_graph(graph.nodes, where, inputs, outputs, weights, value_info=value_info)
    model = helper.make_model(onnx_graph, opset_imports=[helper.make_opsetid("", OPSET)])
    return model, _parameters(program, nodes)


def _decomposed(where: str, program: Any) -> Any:
    """Returns the program in operators without in-place writes, with operators of our tables preserved."""
    import torch

    refuse(_unfixed_sizes(where, list(program.graph.nodes)))  # decomposition would not fix these sizes
    decompositions = torch.export.default_decompositions()
    einsums = [n for n in program.graph.nodes if n.op == "call_function" and _kind(n.target) == "einsum"]
    has_unplain_einsum = any(
        plain_indices(n.args[0], [tuple(t.meta["val"].shape) for t in n.args[1]]) is None for n in einsums
    )
    for op in list(decompositions):
        if _kind(op) in TRANSLATED and not (has_unplain_einsum and _kind(op) == "einsum"):
            del decompositions[op]
    try:
        return program.run_decompositions(decompositions)
    except TORCH_ERRORS as fault:
        why = next(iter(str(fault).splitlines()), type(fault).__name__)
        raise WorkloadError(
            f"{where}: torch cannot decompose it: {why[:160]}; export a program without that "
            "operator, or with this version of torch"
        ) from None


def _kind(target: Any) -> str:
    """Returns the name of an operator: for ATen without its overload, else with its library."""
    library, _, rest = str(target).partition(".")
    if library == "quantized_decomposed":
        return rest.split(".")[0]
    return rest.split(".")[0].rstrip("_") if library == "aten" else str(target).removesuffix(".default")


def _parameters(program: Any, nodes: Sequence[Any]) -> int:
    """Returns how many numbers the used parameters have. A parameter with two names (tied weights) counts
    once.
    """
    found: dict[object, int] = {}
    for node in nodes:
        target = program.graph_signature.inputs_to_parameters.get(node.name) if node.users else None
        if target is not None:
            shape = tuple(node.meta["val"].shape)
            address = program.state_dict[target].data_ptr()  # 0 on the meta device
            found[(address, shape) if address else target] = prod(shape)
    return sum(found.values())


def _unfixed_sizes(where: str, nodes: Sequence[Any]) -> Iterator[str]:
    """Yields faults for sizes that are not fixed: of every input that has one, else of the first operator."""
    unfixed = [
        (node, t.shape)
        for node in nodes
        for t in tensors_of(node.meta.get("val"))
        if not all(isinstance(size, int) for size in t.shape)
    ]
    first_shape = dict(reversed(unfixed))  # node -> its first shape that is not fixed
    inputs = [node for node in nodes if node in first_shape and node.op == "placeholder"]
    for node in inputs or [node for node, _ in unfixed[:1]]:
        yield (
            f"{where}: {node.name} has shape [{', '.join(map(str, first_shape[node]))}]; export the "
            "program with "
            "fixed sizes, without dynamic_shapes"
        )


def _faults(where: str, nodes: Sequence[Any]) -> Iterator[str]:
    """Yields faults for sizes that are not fixed, and for remaining branches and loops."""
    yield from _unfixed_sizes(where, nodes)
    for node in nodes:
        if node.op == "get_attr" and node.users and not tensors_of(node.meta.get("val")):
            yield (
                f"{where}: {node.name} is a program inside the program (control flow); export a program "
                "without it"
            )


def _type(tensor: Any) -> int:
    return int(TYPES.get(str(tensor.dtype), TensorProto.INT64))


def _translate(node: Any, tensors: Sequence[Any], graph: Graph) -> None:
    if getattr(node.target, "__name__", "") == "getitem":
        source, number = node.args
        graph.names[node.name] = _output(graph.names[source.name], number)
        return
    arguments, kind = _arguments(node), _kind(node.target)
    operands = [n for n in _nodes([*arguments.values()]) if n.name in graph.names]
    shapes = tuple(tuple(tensors_of(n.meta["val"])[0].shape) for n in operands)
    graph.names[node.name] = node.name
    inputs = tuple(graph.names[n.name] for n in operands)
    outputs = tuple(_output(node.name, i) for i in range(len(tensors)))
    results = tuple(tuple(t.shape) for t in tensors)
    call = Call(kind, arguments, inputs, shapes, outputs, results, _type(tensors[0]))
    if kind in EXPANDED:
        EXPANDED[kind](call, graph)
    # no inputs: it uses the shape or type of its input, not the values
    elif SAME_ATTRIBUTES.get(kind) == "ConstantOfShape":
        graph.add("filled", [], call.outputs, call.results, call.type)
    else:
        make = WITH_ATTRIBUTES.get(kind)
        onnx_kind, attrs = make(call) if make else (SAME_ATTRIBUTES.get(kind, kind), {})
        graph.add(onnx_kind, call.inputs, call.outputs, call.results, call.type, **attrs)


def _arguments(node: Any) -> dict[str, Any]:
    """Returns arguments by name, defaults included; by number where an operator has no schema."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return {**{str(i): value for i, value in enumerate(node.args)}, **node.kwargs}
    names = [a.name for a in schema.arguments]
    return {
        **{a.name: a.default_value for a in schema.arguments},
        **dict(zip(names, node.args, strict=False)),
        **node.kwargs,
    }


def _output(name: str, number: int) -> str:
    return f"{name}__{number}" if number else name


def _nodes(values: Sequence[Any]) -> Iterator[Any]:
    """Yields the torch nodes in arguments, which may be nested lists."""
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _nodes(value)
        elif hasattr(value, "meta"):
            yield value


# Operators whose attributes differ from ONNX's


def _per_dim(value: Any, n: int) -> list[int]:
    """Returns n numbers, one per spatial dimension: those of a list, or one number n times."""
    found = list(value) if isinstance(value, (list, tuple)) else [value]
    return found * n if len(found) == 1 else found


def _conv(call: Call) -> OnnxOp:
    n, arguments = len(call.shapes[1]) - 2, call.arguments
    padding = arguments.get("padding", 0)
    pads = (
        {"auto_pad": "VALID" if padding == "valid" else "SAME_UPPER"}
        if isinstance(padding, str)
        else {"pads": _per_dim(padding, n) * 2}
    )
    transposed = arguments.get("transposed") or "transpose" in call.kind
    return "ConvTranspose" if transposed else "Conv", {
        "strides": _per_dim(arguments["stride"], n),
        "dilations": _per_dim(arguments["dilation"], n),
        "group": arguments["groups"],
        **pads,
    }


def _pool(call: Call) -> OnnxOp:
    n = _spatial_dims(call)
    kernel = _per_dim(call.arguments["kernel_size"], n)
    return "MaxPool" if "max" in call.kind else "AveragePool", {
        "kernel_shape": kernel,
        "strides": _per_dim(call.arguments["stride"] or kernel, n),
        "pads": _per_dim(call.arguments["padding"], n) * 2,
        "dilations": _per_dim(call.arguments.get("dilation", 1), n),
    }


def _spatial_dims(call: Call) -> int:
    return int(re.sub(r".*(\d)d.*", r"\1", call.kind))


def _adaptive(call: Call) -> OnnxOp:
    """Returns adaptive pooling with windows that do not overlap. With other windows the operator stays
    unknown.
    """
    n = _spatial_dims(call)
    image, out = call.shapes[0][-n:], call.results[0][-n:]
    if any(size % parts for size, parts in zip(image, out, strict=True)):
        return call.kind, {}
    kernel = [size // parts for size, parts in zip(image, out, strict=True)]
    pool = "MaxPool" if "max" in call.kind else "AveragePool"
    return (f"Global{pool}", {}) if set(out) == {1} else (pool, {"kernel_shape": kernel, "strides": kernel})


def _batch_norm(call: Call) -> OnnxOp:
    return "BatchNormalization", {"training_mode": int(bool(call.arguments.get("training")))}


REDUCED = by_name(
    {
        "ReduceMean": "mean",
        "ReduceSum": "sum",
        "ReduceMax": "amax any argmax max",
        "ReduceMin": "amin all argmin min",
        "ReduceProd": "prod",
        "ReduceLogSumExp": "logsumexp",
        "ReduceSumSquare": "var std",
        "ReduceL2": "linalg_vector_norm",
    }
)


def _reduce(call: Call) -> OnnxOp:
    dims, kind = call.arguments.get("dim"), REDUCED[call.kind]
    return kind, {"axes": _per_dim(dims, 1)} if dims not in (None, []) else {}


def _transpose(call: Call) -> OnnxOp:
    perm = list(range(len(call.shapes[0])))
    if call.kind == "permute":
        perm = [d % len(perm) for d in call.arguments["dims"]]
    else:
        # aten.t has no such arguments: dimensions 0 and 1
        a, b = (call.arguments.get(k, k == "dim1") for k in ("dim0", "dim1"))
        perm[a], perm[b] = perm[b], perm[a]
    return ("Transpose", {"perm": perm}) if len(perm) > 1 else ("Identity", {})


def _slice(call: Call) -> OnnxOp:
    if call.shapes[0] == call.results[0]:
        return "Identity", {}
    size, start = call.shapes[0][call.dim()], call.arguments["start"] or 0
    start = min(start % size if start < 0 else start, size)
    return "Slice", {
        "starts": [start],
        "ends": [size],
        "axes": [call.dim()],
        "steps": [call.arguments["step"]],
    }


def _pad(call: Call) -> OnnxOp:
    """Returns padding in ONNX's order. torch gives pairs (before, after), the last dimension first."""
    pads, rank = call.arguments["pad"], len(call.shapes[0])
    pairs = [(pads[2 * i], pads[2 * i + 1]) if 2 * i < len(pads) else (0, 0) for i in range(rank)][::-1]
    return "Pad", {"pads": [before for before, _ in pairs] + [after for _, after in pairs]}


def _slice_scatter(call: Call) -> OnnxOp:
    start, size = call.arguments["start"] or 0, call.shapes[0][call.dim()]
    if call.arguments["step"] != 1:
        return "ScatterND", {}
    return "SliceScatter", {"axis": call.dim(), "start": max(start + size if start < 0 else start, 0)}


def _einsum(call: Call) -> OnnxOp:
    return "Einsum", {"equation": call.arguments["equation"]}


def _split(call: Call) -> OnnxOp:
    return "Split", {"axis": call.dim()}


def _rows(call: Call) -> OnnxOp:
    """Returns a softmax along a dimension, or a norm over the last dimensions."""
    if "softmax" in call.kind:
        return ("LogSoftmax" if "log" in call.kind else "Softmax"), {"axis": call.dim()}
    spanned = len(call.arguments["normalized_shape"])
    return ("RMSNormalization" if "rms" in call.kind else "LayerNormalization"), {"axis": -spanned}


def _cat(call: Call) -> OnnxOp:
    return "Concat", {"axis": call.dim()}


def _quantised(call: Call) -> OnnxOp:
    return "QuantizeLinear" if call.kind.startswith("quantize") else "DequantizeLinear", {}


# Operators that become several ONNX nodes


def _linear(call: Call, graph: Graph) -> None:
    (x, *rest), shape, result = call.inputs, call.shapes[0], call.results[0]
    if len(shape) == 2:
        graph.add("Gemm", call.inputs, call.outputs, call.results, call.type, transB=1)
        return
    flat, out = graph.view(x, (prod(shape[:-1]), shape[-1]), call.type), f"{call.outputs[0]}__flat"
    graph.add("Gemm", [flat, *rest], [out], [(prod(shape[:-1]), result[-1])], call.type, transB=1)
    graph.view(out, result, call.type, call.outputs[0])


def _addmm(call: Call, graph: Graph) -> None:
    bias, a, b = call.inputs
    graph.add("Gemm", [a, b, bias], call.outputs, call.results, call.type)


def _addmv(call: Call, graph: Graph) -> None:
    bias, a, x = call.inputs
    product = graph.add("MatMul", [a, x], [f"{call.outputs[0]}__product"], call.results, call.type)
    graph.add("Add", [bias, product], call.outputs, call.results, call.type)


def _attention(call: Call, graph: Graph) -> None:
    """Adds attention; leading dimensions become batch and heads, as ONNX requires."""

    def shape_4d(shape: Shape) -> Shape:
        return (prod(shape[:-3]), *((1, *shape)[-3:]))

    views = [
        t if len(s) == 4 else graph.view(t, shape_4d(s), call.type)
        for t, s in zip(call.inputs[:3], call.shapes, strict=False)
    ]
    out, shape = f"{call.outputs[0]}__heads", shape_4d(call.results[0])
    causal = int(bool(call.arguments["is_causal"]))
    inputs = [*views, *call.inputs[3:4]]
    graph.add("Attention", inputs, [out], [shape], call.type, domain="", is_causal=causal)
    graph.view(out, call.results[0], call.type, call.outputs[0])


def _copied(call: Call, graph: Graph) -> None:
    """Adds copy_(to, from), which reads only the second operand."""
    kind = "Identity" if call.shapes[-1] == call.results[0] else "Expand"
    graph.add(kind, call.inputs[-1:], call.outputs, call.results, call.type)


def _fake_quantised(call: Call, graph: Graph) -> None:
    """Adds quantisation to 8 bits and back, which training for 8 bits leaves in a program."""
    q = f"{call.outputs[0]}__q"
    graph.add("QuantizeLinear", call.inputs, [q], call.results[:1], TensorProto.INT8)
    graph.add("DequantizeLinear", [q], call.outputs[:1], call.results[:1], call.type)


def _unbind(call: Call, graph: Graph) -> None:
    dim, rows = call.dim(), [f"{o}__row" for o in call.outputs]
    shapes = [(*s[:dim], 1, *s[dim:]) for s in call.results]
    graph.add("Split", call.inputs, rows, shapes, call.type, axis=dim)
    for row, output, shape in zip(rows, call.outputs, call.results, strict=True):
        graph.view(row, shape, call.type, output)


def _select(call: Call, graph: Graph) -> None:
    dim, shape = call.dim(), call.results[0]
    index, row = call.arguments["index"] % call.shapes[0][dim], f"{call.outputs[0]}__row"
    graph.row(call.inputs[0], row, (*shape[:dim], 1, *shape[dim:]), call.type, index, dim)
    graph.view(row, shape, call.type, call.outputs[0])


def _recurrent(call: Call, graph: Graph) -> None:
    """Adds a node per layer and direction; results of both directions are concatenated. The final states
    count as copies of one row of the last layer's result.
    """
    param_names = [n.name for n in _nodes([call.arguments["params"]])]
    directions, layers = 1 + bool(call.arguments["bidirectional"]), call.arguments["num_layers"]
    cell_params, layout = len(param_names) // (directions * layers), int(bool(call.arguments["batch_first"]))
    shapes = dict(zip(call.inputs, call.shapes, strict=True))
    names = [graph.names[name] for name in param_names]
    states = [i for i in call.inputs[1:] if i not in names]
    x, x_shape = call.inputs[0], call.shapes[0]
    hidden, kind = shapes[names[1]][1], call.kind.partition("_")[0].upper()
    for layer in range(layers):
        out = call.outputs[0] if layer == layers - 1 else f"{call.outputs[0]}__layer{layer}"
        outputs = []
        for direction in range(directions):
            cell = layer * directions + direction
            w, r, *rest = names[cell * cell_params :][:cell_params]
            bias = rest[0] if len(rest) > 1 else ""
            first_states = [  # the row of this layer and direction
                graph.row(s, f"{s}__{cell}_{call.outputs[0]}", (1, *shapes[s][1:]), call.type, cell, 0)
                for s in states
            ]
            inputs, output = (
                [x, w, r, bias, "", *first_states],
                out if directions == 1 else f"{out}__way{direction}",
            )
            outputs.append(
                graph.add(kind, inputs, [output], [(*x_shape[:2], hidden)], call.type, layout=layout)
            )
        if directions > 1:
            graph.add("Concat", outputs, [out], [(*x_shape[:2], hidden * directions)], call.type, axis=2)
        x = out
    for output, shape in zip(call.outputs[1:], call.results[1:], strict=True):
        row = graph.row(x, f"{output}__rows", (1, shape[1], hidden * directions), call.type, 0, layout)
        graph.add("Tile", [row], [output], [shape], call.type)


# ATen operators by the ONNX operator that each becomes, with the same attributes
SAME_ATTRIBUTES = by_name(
    {
        "MatMul": "mv dot vdot _int_mm mm bmm matmul",
        "Gather": "embedding",
        "Add": "add",
        "Sub": "sub rsub",
        "Mul": "mul",
        "Div": "div atan2",
        "Pow": "pow square",
        "Max": "maximum",
        "Min": "minimum",
        "Where": "where masked_fill",
        "Relu": "relu",
        "Gelu": "gelu",
        "Swish": "silu",
        "Sigmoid": "sigmoid",
        "Tanh": "tanh",
        "Clip": "hardtanh relu6 clamp",
        "HardSwish": "hardswish",
        "HardSigmoid": "hardsigmoid",
        "LeakyRelu": "leaky_relu",
        "Elu": "elu",
        "Softplus": "softplus",
        "Mish": "mish",
        "Exp": "exp expm1 exp2 logit erfinv relu_squared",
        "Log": "log log1p log2 log10",
        "Sqrt": "sqrt",
        "Neg": "neg",
        "Abs": "abs",
        "Erf": "erf",
        "Sin": "sin",
        "Cos": "cos",
        "Reciprocal": "reciprocal rsqrt",
        "Equal": "eq ne",
        "Less": "lt",
        "Greater": "gt",
        "LessOrEqual": "le",
        "GreaterOrEqual": "ge",
        "Mod": "fmod remainder",
        "And": "bitwise_and logical_and __and__",
        "Or": "bitwise_or logical_or __or__",
        "Xor": "bitwise_xor logical_xor",
        "Not": "bitwise_not logical_not",
        "IsNaN": "isnan",
        "IsInf": "isinf",
        "Floor": "floor trunc",
        "Ceil": "ceil",
        "Round": "round",
        "Sign": "sign",
        "CumSum": "cumsum",
        "Expand": "fill expand",
        "Tan": "tan",
        "Asin": "asin",
        "Acos": "acos",
        "Atan": "atan",
        "Sinh": "sinh",
        "Cosh": "cosh",
        "GatherND": "index",
        "GatherElements": "gather index_select take",
        "NonZero": "masked_select nonzero bincount unique unique_consecutive searchsorted bucketize histc",
        "ScatterND": (
            "index_put scatter scatter_add scatter_reduce index_add index_copy select_scatter "
            "diagonal_scatter as_strided_scatter masked_scatter"
        ),
        "TopK": "topk sort kthvalue median mode",
        "Trilu": "triu tril",
        "OneHot": "one_hot",
        "Tile": (
            "flip roll unfold diagonal as_strided pixel_shuffle pixel_unshuffle channel_shuffle im2col "
            "repeat_interleave repeat"
        ),
        "RandomUniformLike": "rand_like randn_like bernoulli multinomial native_dropout",
        "ConstantOfShape": (
            "full_like zeros_like ones_like empty_like new_zeros new_ones new_full new_empty empty_permuted "
            "empty"
        ),
        "Cast": "to _to_copy type_as",
        "GroupNormalization": "group_norm native_group_norm",
        "InstanceNormalization": "instance_norm",
        "GridSample": "grid_sampler grid_sampler_2d grid_sampler_3d",
        "Resize": (
            "upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_nearest_exact1d "
            "upsample_nearest_exact2d upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d "
            "upsample_bicubic2d upsample_trilinear3d upsample_bilinear2d_aa upsample_bicubic2d_aa"
        ),
        "Reshape": "view _unsafe_view reshape flatten unflatten unsqueeze squeeze",
        "Identity": "clone contiguous alias detach lift_fresh_copy dropout",
    }
)
SAME_ATTRIBUTES |= {
    f"_{name}": kind for name, kind in SAME_ATTRIBUTES.items() if name.startswith("upsample_")
}
WITH_ATTRIBUTES: dict[str, Callable[[Call], OnnxOp]] = dict.fromkeys(REDUCED, _reduce) | by_name(
    {
        _rows: (
            "softmax _softmax _safe_softmax log_softmax _log_softmax layer_norm native_layer_norm rms_norm"
        ),
        _conv: "conv1d conv2d conv3d convolution conv_transpose1d conv_transpose2d conv_transpose3d",
        _pool: (
            "max_pool1d max_pool2d max_pool3d max_pool2d_with_indices max_pool3d_with_indices avg_pool1d "
            "avg_pool2d avg_pool3d"
        ),
        _adaptive: (
            "adaptive_avg_pool1d adaptive_avg_pool2d _adaptive_avg_pool2d adaptive_avg_pool3d "
            "adaptive_max_pool2d"
        ),
        _batch_norm: "batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training",
        _transpose: "permute transpose t",
        _pad: "pad constant_pad_nd",
        _slice: "slice",
        _slice_scatter: "slice_scatter",
        _einsum: "einsum",
        _quantised: ("quantize_per_tensor quantize_per_channel dequantize_per_tensor dequantize_per_channel"),
        _split: "split split_with_sizes chunk",
        _cat: "cat",
    }
)
EXPANDED: dict[str, Callable[[Call, Graph], None]] = by_name(
    {
        _linear: "linear",
        _addmm: "addmm",
        _addmv: "addmv",
        _attention: "scaled_dot_product_attention _scaled_dot_product_flash_attention_for_cpu",
        _fake_quantised: "fake_quantize_per_tensor_affine fake_quantize_per_channel_affine",
        _copied: "copy",
        _unbind: "unbind",
        _select: "select",
        _recurrent: "lstm gru rnn_tanh rnn_relu",
    }
)
TRANSLATED = {*SAME_ATTRIBUTES, *WITH_ATTRIBUTES, *EXPANDED}
