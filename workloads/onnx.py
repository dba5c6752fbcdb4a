"""ONNX file -> Workload. Longer than most files: two passes over one graph that share what they know of it.

Pass 1 (`_facts`) walks the graph once: every shape, every constant, the small values that shapes depend on. Weights are
never computed, only their shapes. Pass 2 (`_emit`) turns each node that is left into one einsum (workloads/operators.py), or into none:
* Reshape, Flatten, Squeeze, Unsqueeze, Identity, Dropout are free: the elements stay where they are, and readers see the
  producer's tensor, under its name, in the new shape. So is a Transpose that moves dimensions of size 1 only.
* Transpose, Concat, Slice, Split, Gather, Pad, Expand, and every operator that is not known, are data movement (kind copy): they read their inputs
  and write their output. A Concat could be free if its producers wrote into its slices; the default layout does not assume that.
* Biases, inference BatchNormalization with constant parameters, and (fuse_elementwise) one-to-one element-wise operators
  ride on the output of their producer if nothing else reads it. What rides is in Workload.folded; its constants cost no traffic.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from math import prod
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import onnx
import onnx.inliner
from google.protobuf.message import DecodeError  # type: ignore[import-untyped, unused-ignore]
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, helper, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator

from workloads.einsum import Einsum, WorkloadError, squeezed
from workloads.graph import Workload, in_order
from workloads.operators import BINARY, MOVES, OPERATORS, PRODUCTS, UNARY, Array, Op, Shape, attention, by_channel, elementwise, movement

FREE = {"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout"}
SAME_IF_SAME_SHAPE = {"Expand", "Tile", "Pad", "Resize", "Upsample"}
FOLDABLE = UNARY | BINARY | {"BatchNormalization"}
ON_SHAPES = {
    "Gather", "Concat", "Unsqueeze", "Squeeze", "Slice", "Cast", "Add", "Sub", "Mul", "Div", "Floor", "Ceil", "Min", "Max", "Mod", "Neg", "Abs", "Range",
    "Equal", "Less", "Greater", "Not", "And", "Or", "Where", "Expand", "Reshape", "Identity", "ReduceProd", "ReduceSum", "ReduceMax", "ReduceMin",
    "Transpose", "Flatten", "Split"}
OPERANDS = {"QLinearConv": (0, 3), "QLinearMatMul": (0, 3)}
UNTRAINED = {"BatchNormalization": (3, 4), "Attention": (3,), "RotaryEmbedding": (1, 2)}  # running statistics, masks, angles
SMALL_INTS, SMALL_FLOATS = 4096, 16
MOST_NODES, MOST_ELEMS, DEEPEST = 100_000, 1 << 53, 50


@dataclass(slots=True)
class Facts:
    """Types, constants and small values of tensors. shaped: values computed from shapes; roots: the constant that a view shows;
    refusals: why a shape is not known."""

    types: dict[str, TypeProto] = field(default_factory=dict)
    constants: set[str] = field(default_factory=set)
    values: dict[str, Array] = field(default_factory=dict)
    shaped: set[str] = field(default_factory=set)
    roots: dict[str, str] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)

    def shape(self, tensor: str) -> Shape | None:
        """None: not known to the last dimension."""
        kind = self.types.get(tensor)
        if kind is None or not kind.HasField("tensor_type") or not kind.tensor_type.HasField("shape"):
            return None
        dims = kind.tensor_type.shape.dim
        return tuple(d.dim_value for d in dims) if all(d.HasField("dim_value") for d in dims) else None

    def is_float(self, tensor: str) -> bool:
        return self.types[tensor].tensor_type.elem_type in (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16)


@dataclass(slots=True)
class Draft:
    """The workload while it grows. names: ONNX tensor -> workload tensor; sole: an einsum's output that nothing else reads."""

    names: dict[str, str] = field(default_factory=dict)
    sole: dict[str, bool] = field(default_factory=dict)
    makers: dict[str, str] = field(default_factory=dict)
    einsums: list[Einsum] = field(default_factory=list)
    folded: list[str] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)
    used: set[str] = field(default_factory=set)

    def fresh(self, wanted: str) -> str:
        """An identifier close to what is wanted, used once."""
        stem = re.sub(r"\W", "_", wanted)
        stem = stem if re.match(r"[A-Za-z_]", stem) else f"t_{stem}"
        name, n = stem, 1
        while name in self.used:
            name, n = f"{stem}_{n}", n + 1
        self.used.add(name)
        return name

    def name(self, tensor: str) -> str:
        if tensor not in self.names:
            self.names[tensor] = self.fresh(tensor)
        return self.names[tensor]


def load(source: str | Path | ModelProto, bind: Mapping[str, int] | None = None, batch: int | None = None, fuse_elementwise: bool = True,
         name: str = "") -> Workload:
    """Read an ONNX model (path or loaded) as a workload.

    bind: size of each symbolic dimension of the inputs, by symbol ("N"), or "input[2]" where it has no name. batch: new size
    of the first dimension of the inputs. fuse_elementwise: one-to-one element-wise operators ride on their producer.
    Raises WorkloadError, one line per fault: no ONNX file, unbound symbols, a cycle, shapes that depend on data or do not fit.
    """
    label = name or (Path(source).stem if isinstance(source, (str, Path)) else source.graph.name or "model")
    where = str(source) if isinstance(source, (str, Path)) else label
    model = source if isinstance(source, ModelProto) else _read(Path(source))
    if faults := list(dict.fromkeys((*_function_faults(model), *_tensor_faults(model.graph)))):
        raise WorkloadError("\n".join(f"{where}: {line}" for line in faults))
    if model.functions:
        model = onnx.inliner.inline_local_functions(model)
    nodes = _ordered(where, model.graph)
    feeds, old = _feeds(where, model.graph, dict(bind or {}), batch)
    before = _facts(where, model, nodes, old, None) if old is not None else None
    facts = _facts(where, model, nodes, feeds, before)
    live = _live(nodes, facts, [o.name for o in model.graph.output])
    if not live:
        raise WorkloadError(f"{where}: no operator lies between the inputs and the outputs")
    return _emit(where, label, live, facts, [o.name for o in model.graph.output], fuse_elementwise)


def _read(path: Path) -> ModelProto:
    try:
        model = onnx.load(path, load_external_data=False)
    except DecodeError:
        raise WorkloadError(f"{path}: not an ONNX file, or a truncated one; export or copy it again") from None
    except OSError as fault:
        raise WorkloadError(f"{path}: cannot be read: {fault.strerror}") from None
    if not model.graph.node or not model.graph.output:
        raise WorkloadError(f"{path}: the ONNX graph has no operator or no output; is the file truncated?")
    return model


# What a file may not do: it may come from anywhere


def _function_faults(model: ModelProto) -> Iterator[str]:
    """Functions that call themselves, or stand for more operators than anybody can wait for."""
    own = {(f.domain, f.name): f for f in model.functions}
    sizes: dict[tuple[str, str], int] = {}

    def size(key: tuple[str, str], above: tuple[tuple[str, str], ...]) -> int:
        if key in above or len(above) > DEEPEST:
            return MOST_NODES + 1
        if key not in sizes:
            sizes[key] = sum(size((n.domain, n.op_type), (*above, key)) if (n.domain, n.op_type) in own else 1 for n in own[key].node)
        return sizes[key]

    if sum(size((n.domain, n.op_type), ()) if (n.domain, n.op_type) in own else 1 for n in model.graph.node) > MOST_NODES:
        yield f"its functions call themselves, or stand for more than {MOST_NODES:,} operators; export it without functions"


def _tensor_faults(graph: GraphProto) -> Iterator[str]:
    """Constants whose sizes lie, or whose values lie elsewhere: they are never read, but a path out of the folder is no mistake."""
    attributes = [a for node in graph.node for a in node.attribute]
    inner = [t for a in attributes for t in (*((a.t,) if a.HasField("t") else ()), *a.tensors)]
    for t in (*graph.initializer, *inner):
        place = next((entry.value for entry in t.external_data if entry.key == "location"), "")
        if place.startswith(("/", "\\")) or ".." in re.split(r"[/\\]", place):
            yield f"constant {t.name}: its values lie at {place}, which leads out of the folder; put them beside the file"
        if any(dim < 0 for dim in t.dims) or prod(t.dims) > MOST_ELEMS:
            yield f"constant {t.name}: no tensor has the shape {list(t.dims)}; export the file again"
    if any(t.data_location == TensorProto.EXTERNAL for t in inner):
        yield "the value of a Constant lies outside of the file, only weights may; export it again"
    for a in attributes:
        for own in (*((a.g,) if a.HasField("g") else ()), *a.graphs):
            yield from _tensor_faults(own)


# Pass 1: shapes and constants


def _reads(node: NodeProto) -> list[str]:
    """Tensors that a node reads, those that its subgraphs take from outside included."""
    names = [i for i in node.input if i]
    for graph in (a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH):
        inner = {i.name for i in graph.input} | {i.name for i in graph.initializer} | {o for n in graph.node for o in n.output}
        names += [i for n in graph.node for i in _reads(n) if i not in inner]
    return names


def _title(node: NodeProto) -> str:
    return f"{node.op_type} {node.name or next((o for o in node.output if o), '?')}"


def _ordered(where: str, graph: GraphProto) -> list[NodeProto]:
    """Nodes, producers first. Raises for tensors made twice or never, and for cycles."""
    broken = [i for i, n in enumerate(graph.node) if any(isinstance(t, bytes) for t in (n.op_type, n.domain, n.name, *n.input, *n.output))]
    if broken:
        raise WorkloadError(f"{where}: operator number {broken[0]} has a name that is no text; the file is damaged, export it again")
    given = {i.name for i in graph.input} | {i.name for i in graph.initializer} | {i.values.name for i in graph.sparse_initializer}
    makers: dict[str, int] = {}
    faults = []
    for i, node in enumerate(graph.node):
        for tensor in filter(None, node.output):
            if tensor in makers or tensor in given:
                faults.append(f"{where}: tensor {tensor} is made twice, the second time by {_title(node)}")
            makers[tensor] = i
    order: nx.DiGraph[int] = nx.DiGraph()
    order.add_nodes_from(range(len(graph.node)))
    for i, node in enumerate(graph.node):
        for tensor in _reads(node):
            if tensor in makers:
                order.add_edge(makers[tensor], i)
            elif tensor not in given:
                faults.append(f"{where}: {_title(node)} reads tensor {tensor}, which nothing makes")
    faults += [f"{where}: output {o.name} is made by no operator" for o in graph.output if o.name not in makers and o.name not in given]
    if faults:
        raise WorkloadError("\n".join(faults))
    try:
        return [graph.node[i] for i in nx.lexicographical_topological_sort(order)]
    except nx.NetworkXUnfeasible:
        cycle = " -> ".join(_title(graph.node[edge[0]]) for edge in nx.find_cycle(order))
        raise WorkloadError(f"{where}: operators form a cycle: {cycle}") from None


def _feeds(where: str, graph: GraphProto, bind: dict[str, int], batch: int | None) -> tuple[dict[str, Shape], dict[str, Shape] | None]:
    """Shapes of the inputs, and their shapes as written where a new batch replaces a written one."""
    weights = {i.name for i in graph.initializer}
    dims: dict[str, list[int | str]] = {}
    faults = []
    for i in (i for i in graph.input if i.name not in weights):
        if not i.type.HasField("tensor_type"):
            faults.append(f"{where}: input {i.name} is no tensor; only tensors can be costed")
        shape = i.type.tensor_type.shape.dim
        dims[i.name] = [d.dim_value if d.HasField("dim_value") and d.dim_value > 0 else d.dim_param or f"{i.name}[{at}]" for at, d in enumerate(shape)]
    symbols = list(dict.fromkeys(d for shape in dims.values() for d in shape if isinstance(d, str)))
    leading = next((shape[0] for shape in dims.values() if shape), None)
    faults += _bind_faults(where, bind, symbols, batch, leading)
    bound = bind if batch is None or not isinstance(leading, str) else {leading: batch, **bind}
    faults += [f'{where}: size of symbol "{s}" is not bound; bind it, e.g. bind: {{{s}: 1}}' for s in symbols if s not in bound]
    if faults:
        raise WorkloadError("\n".join(faults))
    written = {i: tuple(bound[d] if isinstance(d, str) else d for d in shape) for i, shape in dims.items()}
    if batch is None or leading == batch or not isinstance(leading, int):
        return written, None
    return {i: (batch, *written[i][1:]) if dims[i][:1] == [leading] else written[i] for i in dims}, written


def _bind_faults(where: str, bind: dict[str, int], symbols: list[str], batch: int | None, leading: int | str | None) -> Iterator[str]:
    for symbol, size in bind.items():
        if symbol not in symbols:
            near = difflib.get_close_matches(symbol, symbols, 1)
            hint = f"; do you mean {near[0]}?" if near else f"; symbols are: {', '.join(symbols) or 'none, all sizes are given'}"
            yield f'{where}: bind names "{symbol}", which no input has{hint}'
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            yield f"{where}: bind {symbol} = {size!r} must be a whole number of at least 1"
    if batch is None:
        return
    if not isinstance(batch, int) or isinstance(batch, bool) or batch < 1:
        yield f"{where}: batch = {batch!r} must be a whole number of at least 1"
    elif leading is None:
        yield f"{where}: batch = {batch}, but no input has a first dimension to rebind"
    elif isinstance(leading, str) and bind.get(leading, batch) != batch:
        yield f'{where}: batch = {batch} and bind {leading} = {bind[leading]} both size the first dimension of the inputs; drop one'


def _facts(where: str, model: ModelProto, nodes: Sequence[NodeProto], feeds: Mapping[str, Shape], before: Facts | None) -> Facts:
    """Walk the graph with the given input shapes. before: the facts at the batch as written, to mend Reshapes that have it built in."""
    facts = Facts()
    opsets = {o.domain if o.domain != "ai.onnx" else "": o.version for o in model.opset_import}
    declared = {v.name: v.type for v in (*model.graph.value_info, *model.graph.output)}
    for i in model.graph.input:
        if i.name in feeds:
            facts.types[i.name] = helper.make_tensor_type_proto(i.type.tensor_type.elem_type, feeds[i.name])
    for t in model.graph.initializer:
        facts.types[t.name] = helper.make_tensor_type_proto(t.data_type, t.dims)
        if t.data_location != TensorProto.EXTERNAL and _small(t.data_type, prod(t.dims)):
            facts.values[t.name] = _array(where, t)
        facts.constants.add(t.name)
    for s in model.graph.sparse_initializer:
        facts.types[s.values.name] = helper.make_tensor_type_proto(s.values.data_type, s.dims)
        facts.constants.add(s.values.name)
    for node in nodes:
        mended = _mended(node, facts, before) if before is not None and node.op_type == "Reshape" else node
        _infer(where, mended, facts, model, opsets, declared)
        _fold(where, node, facts, opsets)
    return facts


def _array(where: str, t: TensorProto) -> Array:
    try:
        return numpy_helper.to_array(t)
    except (KeyError, TypeError, ValueError):
        raise WorkloadError(f"{where}: constant {t.name} is damaged: its values do not fit its type and shape {list(t.dims)}; export the file again") from None


def _small(elem_type: int, elems: int) -> bool:
    is_float = elem_type in (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16)
    return elem_type != TensorProto.STRING and elems <= (SMALL_FLOATS if is_float else SMALL_INTS)


def _mended(node: NodeProto, facts: Facts, before: Facts) -> NodeProto:
    """A Reshape to a constant shape that has the old batch built in, with the new one instead.

    The batch of the result is the axis that as many elements precede as precede the batch of the input.
    """
    target, old, new = facts.values.get(node.input[1]), before.shape(node.input[0]), facts.shape(node.input[0])
    result = before.shape(node.output[0])
    if target is None or old is None or new is None or result is None or len(old) != len(new) or node.input[1] in facts.shaped:
        return node
    batch = next((axis for axis, (a, b) in enumerate(zip(old, new, strict=True)) if a != b), None)
    if batch is None:
        return node
    ahead = accumulate(result, lambda a, b: a * b, initial=1)
    axis = next((axis for axis, elems in zip(range(len(result)), ahead, strict=False) if elems == prod(old[:batch])), None)
    if axis is None or target[axis] <= 0 or result[axis] * new[batch] % old[batch]:
        return node
    own = f"{node.input[1]}:{node.output[0]}"  # other Reshapes may share the target
    facts.types[own], facts.values[own] = facts.types[node.input[1]], target.copy()
    facts.values[own][axis] = result[axis] * new[batch] // old[batch]
    facts.constants.add(own)
    mended = NodeProto()
    mended.CopyFrom(node)
    mended.input[1] = own
    return mended


def _infer(where: str, node: NodeProto, facts: Facts, model: ModelProto, opsets: Mapping[str, int], declared: Mapping[str, TypeProto]) -> None:
    """Types of a node's outputs: by the operator's own rule, else as the file declares them."""
    domain = node.domain if node.domain != "ai.onnx" else ""
    if onnx.defs.has(node.op_type, opsets.get(domain, 1), domain):
        schema = onnx.defs.get_schema(node.op_type, opsets.get(domain, 1), domain)
        types = {i: facts.types[i] for i in node.input if i in facts.types}
        data = {i: numpy_helper.from_array(np.asarray(facts.values[i]), i) for i in node.input if i in facts.values}
        try:
            facts.types.update(shape_inference.infer_node_outputs(
                schema, node, types, data, opset_imports=list(model.opset_import), ir_version=model.ir_version))
        except onnx.checker.ValidationError as fault:
            raise WorkloadError(f"{where}: {_title(node)}: {' '.join(str(fault).split())[:200]}") from None
        except (shape_inference.InferenceError, KeyError, ValueError) as fault:
            if not all(o in declared for o in node.output if o):
                raise WorkloadError(f"{where}: {_title(node)}: {str(fault).strip().splitlines()[0]}") from None
    for output in filter(None, node.output):
        if facts.shape(output) is None and output in declared:
            facts.types[output] = declared[output]
        if facts.shape(output) is None:
            facts.refusals[output] = _refusal(node, facts, model)


def _refusal(node: NodeProto, facts: Facts, model: ModelProto) -> str:
    """Why ONNX finds no shape, in its words; empty if it has no complaint."""
    inputs = [helper.make_value_info(i, facts.types[i]) for i in dict.fromkeys(_reads(node)) if i in facts.types]
    outputs = [helper.make_empty_tensor_value_info(o) for o in node.output if o]
    single = helper.make_model(helper.make_graph([node], "one", inputs, outputs), opset_imports=model.opset_import, ir_version=model.ir_version)
    try:
        shape_inference.infer_shapes(single, strict_mode=True)
    except shape_inference.InferenceError as fault:
        return str(fault).strip().splitlines()[-1].rpartition("] ")[2]
    return ""


def _fold(where: str, node: NodeProto, facts: Facts, opsets: Mapping[str, int]) -> None:
    """Mark constants, and keep the small values that shapes may depend on."""
    reads = _reads(node)
    of_shape = node.op_type in ("Shape", "Size") and facts.shape(node.input[0]) is not None
    if not of_shape and not all(i in facts.constants for i in reads):
        return
    facts.constants.update(o for o in node.output if o)
    if of_shape or any(i in facts.shaped for i in reads):
        facts.shaped.update(node.output)
    output, first = node.output[0], next((i for i in reads if i in facts.types), "")
    shape = facts.shape(output)
    if first and shape is not None and prod(facts.shape(first) or (0,)) == prod(shape):
        facts.roots[output] = facts.roots.get(first, first)
    if of_shape:
        dims, attrs = facts.shape(node.input[0]) or (), _attributes(node)
        part = dims[attrs.get("start", 0):attrs.get("end", len(dims))]
        facts.values[output] = np.array(part if node.op_type == "Shape" else prod(dims), dtype=np.int64)
    elif shape is not None and _small(facts.types[output].tensor_type.elem_type, prod(shape)) and _wanted(node, facts):
        try:
            results = ReferenceEvaluator(node, opsets=dict(opsets)).run(None, {i: facts.values[i] for i in reads})
        except Exception as fault:  # of any kind: the evaluator trusts its file
            raise WorkloadError(f"{where}: {_title(node)}: its value cannot be computed ({' '.join(str(fault).split())[:200]}); export it again") from None
        facts.values.update({o: np.asarray(r) for o, r in zip(node.output, results, strict=False) if o})


def _wanted(node: NodeProto, facts: Facts) -> bool:
    """Can this constant matter for a shape? Weights that a ConstantOfShape fills in cannot."""
    if node.op_type == "ConstantOfShape":
        return not facts.is_float(node.output[0]) and node.input[0] in facts.values
    return node.op_type == "Constant" or (node.op_type in ON_SHAPES and all(i in facts.values for i in node.input if i))


def _attributes(node: NodeProto) -> dict[str, Any]:
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


def _live(nodes: Sequence[NodeProto], facts: Facts, results: Sequence[str]) -> list[NodeProto]:
    """Nodes that are not constant and that an output of the graph needs."""
    wanted, live = set(results), []
    for node in reversed(nodes):
        if any(o in wanted and o not in facts.constants for o in node.output):
            live.append(node)
            wanted.update(_reads(node))
    return live[::-1]


# Pass 2: einsums


def _emit(where: str, label: str, nodes: Sequence[NodeProto], facts: Facts, results: Sequence[str], fuse: bool) -> Workload:
    readers: dict[str, int] = dict.fromkeys(results, 1)
    for node in nodes:
        for i in _reads(node):
            readers[i] = readers.get(i, 0) + 1
    draft = Draft()
    faults = [f for n in nodes for t in (*_reads(n), *(o for o in n.output if o in readers)) for f in _shape_fault(where, n, t, facts)]
    if faults:
        raise WorkloadError("\n".join(dict.fromkeys(faults)))
    for node in nodes:
        source = next((i for i in _reads(node) if i not in facts.constants), "")
        result = node.output[0]
        if _is_view(node, facts):
            draft.names[result] = draft.name(source)
            draft.sole[result] = draft.sole.get(source, False) and readers.get(result) == 1
        elif _rides(node, source, facts, draft, fuse):
            draft.names[result] = draft.name(source)
            draft.sole[result] = draft.sole[source] and readers.get(result) == 1
            draft.folded.append(f"{_title(node)} -> {draft.makers[draft.names[result]]}")
        else:
            attends = node.op_type == "Attention" and node.domain in ("", "ai.onnx")
            try:
                (_add_attention if attends else _add_einsums)(node, facts, draft, readers)
            except (IndexError, KeyError, TypeError, ValueError) as fault:  # what the operator's own shape rule lets pass
                raise WorkloadError(f"{where}: {_title(node)}: its attributes and shapes do not fit: {fault}") from None
    weights = {draft.names[t] for t in facts.constants if t in draft.names}
    read = {p.tensor for e in draft.einsums for p in e.inputs}
    ordered = in_order(where, draft.einsums)
    return Workload(label, ordered, frozenset(weights & read), (), _parameters(nodes, facts), tuple(draft.folded), tuple(draft.moved))


def _shape_fault(where: str, node: NodeProto, tensor: str, facts: Facts) -> Iterator[str]:
    shape = facts.shape(tensor)
    known = onnx.defs.has(node.op_type, "" if node.domain == "ai.onnx" else node.domain)
    if shape is None and known:
        if tensor in node.output and all(facts.shape(i) is not None for i in _reads(node)):  # the first of a row of consequences
            yield f"{where}: {_title(node)}: the shape of {tensor} is not known: {facts.refusals.get(tensor) or 'it depends on data; give fixed shapes'}"
    elif shape is None:
        yield f"{where}: {_title(node)} is an unknown operator: declare the shape of {tensor} in the model's value_info"
    elif 0 in shape:
        yield f"{where}: {_title(node)}: tensor {tensor} of shape {list(shape)} is empty; bind sizes of at least 1"


def _is_view(node: NodeProto, facts: Facts) -> bool:
    shape, result = facts.shape(next(i for i in _reads(node) if i)), facts.shape(node.output[0])
    if node.op_type in FREE or (node.op_type == "Concat" and len(node.input) == 1):
        return True
    if node.op_type == "Transpose" and shape is not None:
        axes = [a for a in _attributes(node).get("perm", range(len(shape))[::-1]) if shape[a] > 1]
        return axes == sorted(axes)
    return node.op_type in SAME_IF_SAME_SHAPE and shape == result


def _rides(node: NodeProto, source: str, facts: Facts, draft: Draft, fuse: bool) -> bool:
    """Does a node ride on its producer's output? One varying input, of the output's shape, that only this node reads."""
    varying = [i for i in _reads(node) if i not in facts.constants]
    if node.op_type not in FOLDABLE or len(varying) != 1 or not draft.sole.get(source):
        return False
    if facts.shape(source) != facts.shape(node.output[0]) or _attributes(node).get("training_mode"):
        return False
    maker = draft.makers[draft.name(source)]
    onto_macs = next(e for e in reversed(draft.einsums) if e.name == maker).kind == "mac"
    return fuse or (node.op_type == "BatchNormalization" and onto_macs)


def _add_einsums(node: NodeProto, facts: Facts, draft: Draft, readers: Mapping[str, int]) -> None:
    """One einsum per output that is read; a bias that is not constant is added by one more."""
    attrs, at = _attributes(node), OPERANDS.get(node.op_type)
    inputs = [node.input[i] for i in at] if at else _reads(node)
    before = 0
    for result in node.output:
        shape = facts.shape(result)
        if readers.get(result) and shape is not None:
            op = Op(node.op_type, tuple(draft.name(i) for i in inputs), tuple(facts.shape(i) or () for i in inputs),
                    tuple(facts.values.get(i) for i in inputs), draft.name(result), shape, attrs, before)
            bias = node.input[2] if node.op_type in ("Conv", "Gemm", "ConvTranspose") and len(node.input) > 2 else ""
            name = node.name if node.name and result == node.output[0] else result
            name = name if node.op_type.lower() in name.lower() else f"{node.op_type}_{name}"
            _add(op, name, draft, bias if bias not in facts.constants else "", {i for i in inputs if i in facts.constants})
            draft.sole[result] = readers.get(result) == 1
        before += (shape[attrs.get("axis", 0)] if shape and node.op_type == "Split" else 0)


def _add_attention(node: NodeProto, facts: Facts, draft: Draft, readers: Mapping[str, int]) -> None:
    """Two products and a softmax between them; before them, the past joined to the new rows. A constant mask rides on the scores.

    Keys and values without a past are handed on as they are, moved where something reads them.
    """
    slots, results = [*node.input, *[""] * 6][:6], [*node.output, *[""] * 4][:4]
    slots[3] = "" if slots[3] in facts.constants else slots[3]
    names = [draft.name(t) if t else "" for t in slots]
    label = draft.fresh(node.name or results[0])
    present = [draft.name(r) if r else draft.fresh(f"{label}_{x}") for r, x in zip(results[1:3], "KV", strict=True)]
    op = Op("Attention", tuple(names), tuple(facts.shape(t) or () if t else () for t in slots), (None,) * 6, draft.name(results[0]),
            facts.shape(results[0]) or (), _attributes(node))
    for e in attention(op, draft.name(results[3]) if results[3] else draft.fresh(f"{label}_scores"), (present[0], present[1])):
        draft.einsums.append(replace(squeezed(e), name=draft.fresh(f"{label}_{e.kind}")))
        draft.makers[e.output.tensor] = draft.einsums[-1].name
        if e.kind == "copy":
            draft.moved.append(f"Attention {draft.einsums[-1].name}")
    for source, result in zip(slots[1:3], results[1:3], strict=True):
        if readers.get(result) and not slots[4]:
            shape = facts.shape(source) or ()
            shape = shape if len(shape) == 4 else (*shape[:2], op.attrs["kv_num_heads"], shape[2] // op.attrs["kv_num_heads"])
            move = Op("Transpose", (draft.name(source),), (shape,), (None,), draft.name(result), facts.shape(result) or (),
                      {"perm": (0, 2, 1, 3) if len(facts.shape(source) or ()) == 3 else (0, 1, 2, 3)})
            _add(move, f"{label}_{result}", draft, "", set())
    draft.sole[results[0]] = readers.get(results[0]) == 1


def _add(op: Op, name: str, draft: Draft, bias: str, constants: set[str]) -> None:
    make = OPERATORS.get(op.kind)
    op = _distinct(op, make, {draft.names[i] for i in constants}, draft)
    e = replace(squeezed((make or movement)(op)), name=draft.fresh(name))
    if e.kind == "copy":
        draft.moved.append(f"{op.kind} {e.name}{'' if make or op.kind in MOVES else ' (unknown operator)'}")
    if bias:
        partial = draft.fresh(f"{op.output}_unbiased")
        draft.einsums.append(replace(e, output=replace(e.output, tensor=partial)))
        total = Op("Add", (partial, draft.name(bias)), (op.shape, op.shapes[2]), (None, None), op.output, op.shape, {})
        e = replace(squeezed(elementwise(total) if op.kind == "Gemm" else by_channel(total)), name=draft.fresh(f"{name}_bias"))
    draft.einsums.append(e)
    draft.makers[op.output] = e.name


def _distinct(op: Op, make: Callable[[Op], Einsum] | None, constants: set[str], draft: Draft) -> Op:
    """Drop operands that cost nothing (constants of one element, parameters of a move, a second look at the same elements);
    a second access of a tensor in another way gets a name of its own."""
    anyhow = make not in (None, elementwise, by_channel)
    kept: list[int] = []
    names: list[str] = []
    for i, (tensor, shape) in enumerate(zip(op.inputs, op.shapes, strict=True)):
        free = tensor in constants and (prod(shape) == 1 or (op.kind in MOVES and i > 0))
        again = any(op.inputs[k] == tensor and op.shapes[k] == shape for k in kept)
        if anyhow or not (free or again):
            kept.append(i)
            names.append(draft.fresh(f"{tensor}_again") if tensor in names else tensor)
    return replace(op, inputs=tuple(names), shapes=tuple(op.shapes[i] for i in kept), values=tuple(op.values[i] for i in kept))


def _parameters(nodes: Sequence[NodeProto], facts: Facts) -> int:
    """Trained numbers: constants that operators compute with. Not running statistics, masks, angles, scalars, indices."""
    found: dict[str, int] = {}
    for node in nodes:
        operands = OPERANDS.get(node.op_type, range(len(node.input)))
        for at, tensor in enumerate(node.input):
            if tensor not in facts.constants or at in UNTRAINED.get(node.op_type, ()):
                continue
            size = prod(facts.shape(tensor) or ())
            if size > 1 and (facts.is_float(tensor) or (node.op_type in PRODUCTS and at in operands)):
                found[facts.roots.get(tensor, tensor)] = size
    return sum(found.values())
