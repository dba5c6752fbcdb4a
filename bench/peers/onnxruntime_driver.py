"""Runs inside onnxruntime's own environment: executes ONNX files, and counts the MACs of what was executed
from the shapes that onnxruntime had at run time. Shares no code with the reader of ONNX files.

python onnxruntime_driver.py    standard input: {name: {"path": ..., "bind": {symbol or input: number}}};
                                standard output: {name: {"macs": ..., "operators": ...} or {"fault": ...}}
"""

import json
import sys
import tempfile
from math import prod
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper

SHAPES = ("Shape", "Size")  # what a shape says is known before
RECURRENT = ("LSTM", "GRU", "RNN", "DynamicQuantizeLSTM")
MATRIX = ("MatMul", "MatMulInteger", "FusedMatMul", "QLinearMatMul")
CONVOLUTIONS = ("Conv", "ConvInteger", "QLinearConv", "DeformConv")
KNOWN = (*RECURRENT, *MATRIX, *CONVOLUTIONS, "ConvTranspose", "Gemm", "Einsum")


def number(graph, by_name):
    """Gives every node, inner ones as well, a name of its own."""
    for node in graph.node:
        node.name = f"node{len(by_name)}_"
        by_name[node.name] = node
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                number(attribute.g, by_name)


def inner(node):
    """The nodes of graphs inside a node."""
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            for own in attribute.g.node:
                yield own
                yield from inner(own)


def needed(graph, bound):
    """Names of nodes that results need, and that are not made of constants and shapes alone."""
    fixed = {*bound, *(t.name for t in graph.initializer)}
    for node in graph.node:
        inputs = [i for i in node.input if i]
        own = [i for n in inner(node) for i in n.input]
        if node.op_type in SHAPES or (not own and all(i in fixed for i in inputs)):
            fixed.update(node.output)
    wanted, found = {o.name for o in graph.output}, set()
    for node in reversed(graph.node):
        if any(o in wanted and o not in fixed for o in node.output):
            found.add(node.name)
            found.update(n.name for n in inner(node))
            wanted.update(node.input, *(n.input for n in inner(node)))
    return found


def attribute(node, name, default):
    return next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), default)


def einsum_macs(node, inputs):
    """The product of the sizes of all letters; an ellipsis is not read."""
    sizes = {}
    operands = attribute(node, "equation", b"").decode().replace(" ", "").split("->")[0].split(",")
    for letters, shape in zip(operands, inputs, strict=True):
        for letter, size in zip(letters, shape, strict=True):
            sizes[letter] = max(size, sizes.get(letter, 1))
    return prod(sizes.values())


def macs(node, inputs, output):
    """MACs of a node that read tensors of these shapes and made one of that."""
    kind = node.op_type
    if kind in CONVOLUTIONS:
        return prod(output) * prod(inputs[3 if kind == "QLinearConv" else 1][1:])
    if kind == "ConvTranspose":
        return prod(inputs[0]) * prod(inputs[1][1:])
    if kind in MATRIX:
        return prod(output) * inputs[0][-1]
    if kind == "Gemm":
        return prod(output) * inputs[0][0 if attribute(node, "transA", 0) else 1]
    if kind == "Einsum":
        return einsum_macs(node, inputs)
    if kind in RECURRENT:
        (steps, batch, width), hidden = inputs[0], attribute(node, "hidden_size", 0)
        gates = 4 if kind.endswith("LSTM") else 3 if kind == "GRU" else 1
        directions = 2 if attribute(node, "direction", b"") == b"bidirectional" else 1
        return steps * batch * directions * gates * hidden * (width + hidden)
    return 0


def given(session, bind):
    """An input of every name: zeros, ones for whole numbers without a bound value."""
    types = {t: np.dtype(t) for t in ("float32", "float64", "float16", "int64", "int32", "uint8", "bool")}
    names = {"float": "float32", "double": "float64"}
    for i in session.get_inputs():
        of = i.type.removeprefix("tensor(").removesuffix(")")
        kind = types[names.get(of, of)]
        shape = [
            d if isinstance(d, int) and d > 0 else bind.get(d, bind.get(f"{i.name}[{at}]"))
            for at, d in enumerate(i.shape)
        ]
        rows_of_edges = i.name in ("edge_index", "batch")  # positions in a graph of few nodes
        value = bind.get(i.name, 1 if kind.kind == "i" and not rows_of_edges else 0)
        yield i.name, np.full(shape, value, kind)


def executed(model, bind, folder):
    """(name of a node, shapes that it read, shape that it made), once per time that it ran."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.disable_prepacking", "1")  # else shapes of weights are left out
    options.enable_profiling = True
    options.profile_file_prefix = str(folder / "profile")
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    session.run(None, dict(given(session, bind)))
    for event in json.loads(Path(session.end_profiling()).read_text()):
        name = event["name"].removesuffix("_kernel_time")
        if event.get("cat") == "Node" and name != event["name"]:
            inputs, outputs = (
                [next(iter(t.values())) for t in event["args"][f"{end}_type_shape"]]
                for end in ("input", "output")
            )
            yield name, event["args"]["op_name"], inputs, outputs


def counted(path, bind):
    model, by_name = onnx.load(path), {}
    number(model.graph, by_name)
    live = needed(model.graph, bind)
    total = ran = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, kind, inputs, outputs in executed(model, bind, Path(folder)):
            ran += 1
            if name not in by_name and kind in KNOWN:
                raise ValueError(f"{kind} {name} is no operator of the file")
            if name in live:
                total += macs(by_name[name], inputs, outputs[0])
    return {"macs": total, "operators": ran}


def main():
    found = {}
    for name, case in json.load(sys.stdin).items():
        try:
            found[name] = counted(case["path"], case["bind"])
        except Exception as fault:  # of any file: its line says so
            found[name] = {"fault": f"{type(fault).__name__}: {' '.join(str(fault).split())[:200]}"}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
