"""ONNX file -> Workload. Longer than most files: two passes over one graph that share what they know of it.

Pass 1 (`_facts`) walks the graph once: every shape, every constant, the small values that shapes depend on. Weights are
never computed, only their shapes. Pass 2 (`_emit`) turns each node that is left into one einsum (workloads/operators.py), or into none:
* Reshape, Flatten, Squeeze, Unsqueeze, Identity, Dropout are free: the elements stay where they are, and readers see the
  producer's tensor, under its name, in the new shape. So is a Transpose that moves dimensions of size 1 only.
* Transpose, Concat, Slice, Split, Gather, Pad, Expand, and every operator that is not known, are data movement (kind copy): they read their inputs
  and write their output. A Concat could be free if its producers wrote into its slices; the default layout does not assume that.
* What is quantised is stored so: DequantizeLinear is a view of its integers, QuantizeLinear rides on its producer; types become bits (`_bits`).
* An operator that is not known and could be a product is movement too, and in Workload.unknown.
* Biases, inference BatchNormalization with constant parameters, and (fuse_elementwise) one-to-one element-wise operators
  ride on the output of their producer if nothing else reads it. What rides is in Workload.folded; its constants cost no traffic.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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

from workloads.einsum import Einsum, Projection, WorkloadError, squeezed
from workloads.graph import AGAIN, Workload, in_order
from workloads.lowered import RULES, lowered
from workloads.operators import BINARY, MOVES, NO_PRODUCT, OPERATORS, PRODUCTS, UNARY, Array, Op, Shape, attention, by_channel, elementwise, movement, recurrent
from workloads.rebind import SCALARS, SHAPES, Batch, same_per_sample

FREE = {"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout"}
SAME_IF_SAME_SHAPE = {"Expand", "Tile", "Pad", "Resize", "Upsample"}
FOLDABLE = UNARY | BINARY | {"BatchNormalization"}
ON_SHAPES = {
    "Gather", "Concat", "Unsqueeze", "Squeeze", "Slice", "Cast", "Add", "Sub", "Mul", "Div", "Floor", "Ceil", "Min", "Max", "Mod", "Neg", "Abs", "Range",
    "Equal", "Less", "Greater", "Not", "And", "Or", "Where", "Expand", "Reshape", "Identity", "ReduceProd", "ReduceSum", "ReduceMax", "ReduceMin",
    "Transpose", "Flatten", "Split"}
OPERANDS = {"QLinearConv": (0, 3), "QLinearMatMul": (0, 3)}
RECURRENT = {"LSTM": 4, "GRU": 3, "RNN": 1}  # gates
# Running statistics, masks, angles, scales, states, conditions
UNTRAINED = {"BatchNormalization": (3, 4), "Attention": (3,), "RotaryEmbedding": (1, 2), "Resize": (1, 2, 3), "Upsample": (1,), "Where": (0,),
             "QuantizeLinear": (1, 2), "DequantizeLinear": (1, 2), "LSTM": (4, 5, 6), "GRU": (4, 5), "RNN": (4, 5), "Clip": (1, 2)}
QUANTISED = ("QuantizeLinear", "DequantizeLinear")
WIDTHS = {4: "INT4 UINT4 FLOAT4E2M1", 8: "INT8 UINT8 FLOAT8E4M3FN FLOAT8E4M3FNUZ FLOAT8E5M2 FLOAT8E5M2FNUZ",
          16: "INT16 UINT16 FLOAT16 BFLOAT16", 32: "INT32 UINT32 FLOAT", 64: "DOUBLE"}
BITS = {int(TensorProto.DataType.Value(name)): bits for bits, names in WIDTHS.items() for name in names.split()}
SMALL_INTS, SMALL_FLOATS = 4096, 16
NEWEST = onnx.defs.onnx_opset_version()


@dataclass(slots=True)
class Facts:
    """Types, constants and small values of tensors. shaped: values computed from shapes; roots: the constant that a view shows;
    refusals: why a shape is not known; stored: the type that a tensor is kept in, where it is not its own; folded: products of constants alone."""

    types: dict[str, TypeProto] = field(default_factory=dict)
    constants: set[str] = field(default_factory=set)
    values: dict[str, Array] = field(default_factory=dict)
    shaped: set[str] = field(default_factory=set)
    roots: dict[str, str] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)
    stored: dict[str, int] = field(default_factory=dict)

    def kept(self, tensor: str) -> int:
        """The type that it is stored in; 0: not known."""
        kind = self.types.get(tensor)
        return self.stored.get(tensor, kind.tensor_type.elem_type if kind is not None else 0)

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
    """The workload while it grows. names: ONNX tensor -> workload tensor; sole: an einsum's output that nothing else reads; types: how workload tensors
    are stored; repeats: einsums that run more than once."""

    names: dict[str, str] = field(default_factory=dict)
    sole: dict[str, bool] = field(default_factory=dict)
    makers: dict[str, str] = field(default_factory=dict)
    einsums: list[Einsum] = field(default_factory=list)
    folded: list[str] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    types: dict[str, int] = field(default_factory=dict)
    repeats: dict[str, int] = field(default_factory=dict)
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
    if model.functions:
        model = onnx.inliner.inline_local_functions(model)
    walk = Walk(where, model, _ordered(where, model.graph))
    feeds, old = _feeds(where, model.graph, dict(bind or {}), batch)
    facts, nodes = _facts(walk, feeds if old is None else old)
    if old is not None:
        old_nodes, walk.before, walk.batch = nodes, facts, Batch(next(iter(old.values()))[0], batch or 1)
        facts, nodes = _facts(walk, feeds)
    ends = [o.name for o in model.graph.output]
    live = _live(nodes, facts, ends)
    if not live:
        raise WorkloadError(f"{where}: no operator lies between the inputs and the outputs")
    found = _emit(where, label, live, facts, ends, fuse_elementwise)
    if walk.batch is not None and all(i in walk.batch.places for i in feeds):
        same_per_sample(where, _emit(where, label, _live(old_nodes, walk.before, ends), walk.before, ends, fuse_elementwise).macs(), found.macs(), walk.batch)
    return found


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
    faults += [f'{where}: size of symbol "{s}" is not bound; bind it, e.g. {Path(where).name}:{s}=1, or bind: {{{s}: 1}} in a study'
               for s in symbols if s not in bound]
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


@dataclass(slots=True)
class Walk:
    """What a walk over the graph needs beside its facts. before: the facts at the batch as written, where batch is another one."""

    where: str
    model: ModelProto
    nodes: list[NodeProto]
    before: Facts = field(default_factory=Facts)
    batch: Batch | None = None

    def opsets(self) -> dict[str, int]:
        return {o.domain if o.domain != "ai.onnx" else "": o.version for o in self.model.opset_import}

    def declared(self) -> dict[str, TypeProto]:
        return {v.name: v.type for v in (*self.model.graph.output, *self.model.graph.value_info)}


def _facts(walk: Walk, feeds: Mapping[str, Shape]) -> tuple[Facts, list[NodeProto]]:
    """Walk the graph with the given input shapes; the nodes as they were found to be."""
    facts, nodes = Facts(), []
    for i in walk.model.graph.input:
        if i.name in feeds:
            facts.types[i.name] = helper.make_tensor_type_proto(i.type.tensor_type.elem_type, feeds[i.name])
            old = walk.before.shape(i.name)
            if walk.batch and old and old != feeds[i.name]:
                walk.batch.inherit(i.name, 0, old, iter(()))
    for t in walk.model.graph.initializer:
        _constant(walk.where, t, facts)
    for s in walk.model.graph.sparse_initializer:
        facts.types[s.values.name] = helper.make_tensor_type_proto(s.values.data_type, s.dims)
        facts.constants.add(s.values.name)
    opsets, declared = walk.opsets(), walk.declared()
    for node in walk.nodes:
        nodes += _walked(node, walk, facts, opsets, declared)
    return facts, nodes


def _constant(where: str, t: TensorProto, facts: Facts) -> None:
    facts.types[t.name] = helper.make_tensor_type_proto(t.data_type, t.dims)
    if t.data_location != TensorProto.EXTERNAL and _small(t.data_type, prod(t.dims)):
        facts.values[t.name] = _array(where, t)
    facts.constants.add(t.name)


def _walked(node: NodeProto, walk: Walk, facts: Facts, opsets: Mapping[str, int], declared: Mapping[str, TypeProto]) -> list[NodeProto]:
    """The node, or those that stand for it: the branch of an If that a constant takes, the standard's operators for one of onnxruntime."""
    if node.op_type == "If" and (taken := facts.values.get(node.input[0])) is not None:
        return [n for part in _branch(node, bool(taken), walk.where, facts) for n in _walked(part, walk, facts, opsets, declared)]
    known = [i for i in node.input if i in facts.types]
    site = lowered(node, {i: shape for i in known if (shape := facts.shape(i)) is not None}, {i: facts.types[i].tensor_type.elem_type for i in known})
    if site is not None:
        for name, (type, shape) in site.constants.items():
            facts.types[name] = helper.make_tensor_type_proto(type, shape)
            facts.constants.add(name)
        return [n for part in site.nodes for n in _walked(part, walk, facts, {**opsets, "": NEWEST}, declared)]
    if walk.batch is None or not any(i in walk.batch.places for i in _reads(node)):
        _infer(walk, node, facts, opsets, declared if walk.batch is None else {})
    else:
        node = _rebound(walk, walk.batch, node, facts, opsets)
    _fold(node, facts, opsets)
    return [node]


def _branch(node: NodeProto, taken: bool, where: str, facts: Facts) -> list[NodeProto]:
    """Nodes of the branch that is taken, its tensors named after the If, and one that hands on each result."""
    graph = next(a.g for a in node.attribute if a.name == ("then_branch" if taken else "else_branch"))
    own = {t.name for t in graph.initializer} | {o for n in graph.node for o in n.output if o}
    names = {name: f"{node.output[0]}/{name}" for name in own}
    for t in graph.initializer:
        renamed = TensorProto()
        renamed.CopyFrom(t)
        renamed.name = names[t.name]
        _constant(where, renamed, facts)
    found = []
    for n in graph.node:
        inner = NodeProto()
        inner.CopyFrom(n)
        inner.input[:], inner.output[:] = [names.get(i, i) for i in n.input], [names.get(o, o) for o in n.output]
        found.append(inner)
    return [*found, *(helper.make_node("Identity", [names.get(o.name, o.name)], [result]) for o, result in zip(graph.output, node.output, strict=False))]


def _rebound(walk: Walk, batch: Batch, node: NodeProto, facts: Facts, opsets: Mapping[str, int]) -> NodeProto:
    """Types of the outputs at the new batch, and the node with the constants that it needs for them. Raises where none fit."""
    reads = _reads(node)
    sources = [(i, shape) for i in reads if (shape := walk.before.shape(i)) is not None]
    outputs = [o for o in node.output if o]
    if node.op_type in ("Shape", "Size"):
        _infer(walk, node, facts, opsets, {})
        return node
    for at in SCALARS.get(node.op_type, ()):
        batch.scalars.update(node.output[at:at + 1])
    for way in _ways(node, walk, batch, facts):
        tried = {o: facts.types.pop(o, None) for o in outputs}
        try:
            _infer(walk, way, facts, opsets, {})
        except WorkloadError:
            facts.types.update({o: t for o, t in tried.items() if t is not None})
            continue
        if all(_grew(o, walk, batch, facts, sources) for o in outputs):
            return way
    shapes = ", ".join(f"{i} {list(shape)}" for i, shape in sources)
    raise WorkloadError(f"{walk.where}: batch = {batch.new}: {_title(node)}: the batch {batch.old} that the file fixes cannot be replaced here (at batch "
                        f"{batch.old} it reads {shapes}); export the model with batch {batch.new}, or with a symbolic batch")


def _grew(output: str, walk: Walk, batch: Batch, facts: Facts, sources: Sequence[tuple[str, Shape]]) -> bool:
    """Has the output the samples of the new batch? Notes where."""
    before, after = walk.before.shape(output), facts.shape(output)
    if output in batch.scalars:
        return before == after
    if before is None or after is None:
        return before is after
    if output in batch.places:  # a Reshape
        return batch.grown(before, after) == batch.places[output].axis
    axis = batch.grown(before, after)
    if axis is not None:
        batch.inherit(output, axis, before, iter(sources))
    return axis is not None


def _ways(node: NodeProto, walk: Walk, batch: Batch, facts: Facts) -> Iterator[NodeProto]:
    """The node as it is, and with one constant grown in one place. A Reshape has one way: its batch stays where it lies."""
    if node.op_type == "Reshape" and node.input[0] in batch.places:
        old, result = walk.before.shape(node.input[0]), walk.before.shape(node.output[0])
        new = batch.reshaped(node.input[0], node.output[0], old, result) if old is not None and result is not None else None
        if new is not None and prod(new) == prod(facts.shape(node.input[0]) or ()):
            yield _with(node, 1, np.array(new, np.int64), facts)
        return
    if node.op_type in RECURRENT:  # its rule looks at no state
        for at in (5, 6):
            state = facts.shape(node.input[at]) if len(node.input) > at and node.input[at] in facts.constants else None
            if state is not None and len(state) == 3:
                node = _with(node, at, (state[0], batch.scaled(state[1]) or 0, state[2]), facts) if state[1] == batch.old else node
        yield node
        return
    yield node
    for at, tensor in enumerate(node.input):
        shape, value = facts.shape(tensor), facts.values.get(tensor)
        if tensor not in facts.constants or shape is None:
            continue
        if at in SHAPES.get(node.op_type, ()):
            if value is not None and value.ndim == 1 and value.dtype.kind == "i":
                for i, size in enumerate(value):
                    if size > 0 and (new_size := batch.scaled(int(size))):
                        yield _with(node, at, np.array([*value[:i], new_size, *value[i + 1:]], value.dtype), facts)
        else:
            for i, size in enumerate(shape):
                if new_size := batch.scaled(size):
                    yield _with(node, at, (*shape[:i], new_size, *shape[i + 1:]), facts)


def _with(node: NodeProto, at: int, given: Array | Shape, facts: Facts) -> NodeProto:
    """The node with a constant of its own: these values, or the same ones in another shape."""
    old, own = node.input[at], f"{node.input[at]}:{node.output[0]}"
    kind = facts.types[old].tensor_type.elem_type
    facts.types[own] = helper.make_tensor_type_proto(kind, given if isinstance(given, tuple) else given.shape)
    if not isinstance(given, tuple):
        facts.values[own] = given
    facts.constants.add(own)
    facts.roots[own] = facts.roots.get(old, old)
    if old in facts.stored:
        facts.stored[own] = facts.stored[old]
    changed = NodeProto()
    changed.CopyFrom(node)
    changed.input[at] = own
    return changed


def _array(where: str, t: TensorProto) -> Array:
    try:
        return numpy_helper.to_array(t)
    except (KeyError, TypeError, ValueError):
        raise WorkloadError(f"{where}: constant {t.name} is damaged: its values do not fit its type and shape {list(t.dims)}; export the file again") from None


def _small(elem_type: int, elems: int) -> bool:
    is_float = elem_type in (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16)
    return elem_type != TensorProto.STRING and elems <= (SMALL_FLOATS if is_float else SMALL_INTS)


def _infer(walk: Walk, node: NodeProto, facts: Facts, opsets: Mapping[str, int], declared: Mapping[str, TypeProto]) -> None:
    """Types of a node's outputs: by the operator's own rule, else as the file declares them."""
    domain = node.domain if node.domain != "ai.onnx" else ""
    if onnx.defs.has(node.op_type, opsets.get(domain, 1), domain):
        schema = onnx.defs.get_schema(node.op_type, opsets.get(domain, 1), domain)
        types = {i: facts.types[i] for i in node.input if i in facts.types}
        data = {i: numpy_helper.from_array(np.asarray(facts.values[i]), i) for i in node.input if i in facts.values}
        imports = [helper.make_opsetid(name, version) for name, version in opsets.items()]
        try:
            facts.types.update(shape_inference.infer_node_outputs(schema, node, types, data, opset_imports=imports, ir_version=walk.model.ir_version))
        except onnx.checker.ValidationError as fault:
            raise WorkloadError(f"{walk.where}: {_title(node)}: {' '.join(str(fault).split())[:200]}") from None
        except (shape_inference.InferenceError, KeyError, ValueError) as fault:
            if not all(o in declared for o in node.output if o):
                raise WorkloadError(f"{walk.where}: {_title(node)}: {str(fault).strip().splitlines()[0]}") from None
    elif (rule := RULES.get(node.op_type)) and domain.startswith("com.microsoft"):
        shapes = [facts.shape(i) for i in node.input if i]
        shape = rule([s for s in shapes if s is not None], _attributes(node)) if None not in shapes else None
        if shape is not None:
            facts.types[node.output[0]] = helper.make_tensor_type_proto(facts.types[node.input[0]].tensor_type.elem_type, shape)
    for output in filter(None, node.output):
        if facts.shape(output) is None and output in declared:
            facts.types[output] = declared[output]
        if facts.shape(output) is None:
            facts.refusals[output] = _refusal(node, facts, walk.model)


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


def _fold(node: NodeProto, facts: Facts, opsets: Mapping[str, int]) -> None:
    """Mark constants, and keep the small values that shapes may depend on. What only looks at integers with a scale is stored as they are."""
    reads = _reads(node)
    constant = all(i in facts.constants for i in reads)
    if reads and (node.op_type == "DequantizeLinear" or (node.op_type in FREE | {"Transpose"} and node.input[0] in facts.stored) or (
            constant and node.op_type in ("Cast", *QUANTISED))):
        facts.stored[node.output[0]] = facts.kept(node.output[0] if node.op_type == "QuantizeLinear" else node.input[0])
    of_shape = node.op_type in ("Shape", "Size") and facts.shape(node.input[0]) is not None
    if not of_shape and not constant:
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
        results = ReferenceEvaluator(node, opsets=dict(opsets)).run(None, {i: facts.values[i] for i in reads})
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
            draft.names[result] = _name(source, draft, facts)
            draft.sole[result] = draft.sole.get(source, False) and readers.get(result) == 1
        elif _rides(node, source, facts, draft, fuse):
            draft.names[result] = draft.name(source)
            draft.types[draft.names[result]] = facts.kept(result)
            draft.sole[result] = draft.sole[source] and readers.get(result) == 1
            draft.folded.append(f"{_title(node)} -> {draft.makers[draft.names[result]]}")
        else:
            try:
                _added(node)(node, facts, draft, readers)
            except (IndexError, KeyError, TypeError, ValueError) as fault:  # what the operator's own shape rule lets pass
                raise WorkloadError(f"{where}: {_title(node)}: its attributes and shapes do not fit: {fault}") from None
    weights = {draft.names[t] for t in facts.constants if t in draft.names}
    read = {p.tensor for e in draft.einsums for p in e.inputs}
    ordered = _bits(in_order(where, draft.einsums), draft.types)
    repeats = tuple(draft.repeats.get(e.name, 1) for e in ordered) if draft.repeats else ()
    return Workload(label, ordered, frozenset(weights & read), repeats, _parameters(nodes, facts), tuple(draft.folded), tuple(draft.moved),
                    tuple(draft.unknown))


def _name(tensor: str, draft: Draft, facts: Facts) -> str:
    """Its name in the workload; how it is stored is noted when it first appears."""
    name = draft.name(tensor)
    draft.types.setdefault(name, facts.kept(tensor))
    return name


def _bits(einsums: Sequence[Einsum], types: Mapping[str, int]) -> tuple[Einsum, ...]:
    """Tensors in the bits of their types. Where all products are of 32-bit floats, nothing was chosen: their numbers are words of the machine."""
    def type_of(p: Projection) -> int:
        return types.get(p.tensor, types.get(AGAIN.sub("", p.tensor), 0))

    widths = {BITS.get(type_of(p)) for e in einsums if e.kind == "mac" for p in e.tensors()}
    if not widths - {None, 32, 64}:
        return tuple(einsums)
    return tuple(replace(e, output=replace(e.output, bits=BITS.get(type_of(e.output))), inputs=tuple(replace(p, bits=BITS.get(type_of(p))) for p in e.inputs))
                 for e in einsums)


def _added(node: NodeProto) -> Callable[[NodeProto, Facts, Draft, Mapping[str, int]], None]:
    if node.op_type in RECURRENT and node.domain in ("", "ai.onnx", "aten"):
        return _add_recurrent
    return _add_attention if node.op_type == "Attention" and node.domain in ("", "ai.onnx") else _add_einsums


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
    if node.op_type == "DequantizeLinear" or node.op_type in FREE or (node.op_type == "Concat" and len(node.input) == 1):
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
    return fuse or node.op_type == "QuantizeLinear" or (node.op_type == "BatchNormalization" and onto_macs)


def _add_einsums(node: NodeProto, facts: Facts, draft: Draft, readers: Mapping[str, int]) -> None:
    """One einsum per output that is read; a bias that is not constant is added by one more."""
    attrs, at = _attributes(node), OPERANDS.get(node.op_type)
    inputs = [node.input[i] for i in at] if at else _reads(node)
    before = 0
    for result in node.output:
        shape = facts.shape(result)
        if readers.get(result) and shape is not None:
            op = Op(node.op_type, tuple(_name(i, draft, facts) for i in inputs), tuple(facts.shape(i) or () for i in inputs),
                    tuple(facts.values.get(i) for i in inputs), _name(result, draft, facts), shape, attrs, before)
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
    names = [_name(t, draft, facts) if t else "" for t in slots]
    label = draft.fresh(node.name or results[0])
    present = [draft.name(r) if r else draft.fresh(f"{label}_{x}") for r, x in zip(results[1:3], "KV", strict=True)]
    op = Op("Attention", tuple(names), tuple(facts.shape(t) or () if t else () for t in slots), (None,) * 6, draft.name(results[0]),
            facts.shape(results[0]) or (), _attributes(node))
    for e in attention(op, draft.name(results[3]) if results[3] else draft.fresh(f"{label}_scores"), (present[0], present[1])):
        draft.einsums.append(replace(squeezed(e), name=draft.fresh(f"{label}_{e.kind}")))
        draft.types[e.output.tensor] = facts.kept(results[0])
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


def _add_recurrent(node: NodeProto, facts: Facts, draft: Draft, readers: Mapping[str, int]) -> None:
    """A recurrent layer: the product of all inputs, and what every step repeats. Its states are rows of what the steps write."""
    slots, results = [*node.input, *[""] * 7][:7], [o for o in node.output if readers.get(o)]
    at = [0, 1, 2, 5, *([6] if node.op_type == "LSTM" else [])]
    label, attrs = draft.fresh(node.name or results[0]), _attributes(node)
    names = [_name(slots[i], draft, facts) if slots[i] else draft.fresh(f"{label}_{'first' if i == 5 else 'cell'}") for i in at]
    out = draft.fresh(f"{label}_states")
    x, w, r = ((facts.shape(slots[i]) or ()) for i in range(3))
    steps, batch = x[:2][::-1] if attrs.get("layout") else x[:2]
    state = facts.shape(slots[5]) if slots[5] else None
    if state is not None and batch not in state[-2:-1]:
        raise ValueError(f"its first state {list(state)} is of another batch than its input {list(x)}")
    op = Op(node.op_type, (*names, *[""] * 5)[:5], (x, w, r), (None,) * 3, out, (), attrs)
    for e in recurrent(op, RECURRENT[node.op_type]):
        name = draft.fresh(f"{label}_{e.kind}" if e.kind != "mac" else f"{label}_{'inputs' if e.output.tensor == f'{out}_x' else 'step'}")
        draft.einsums.append(replace(squeezed(e), name=name))
        draft.types[e.output.tensor] = facts.kept(slots[0])
        draft.repeats[name] = 1 if e.output.tensor == f"{out}_x" else steps
    for result in results:
        draft.names[result], draft.sole[result] = out, False


def _add(op: Op, name: str, draft: Draft, bias: str, constants: set[str]) -> None:
    make = OPERATORS.get(op.kind)
    op = _distinct(op, make, {draft.names[i] for i in constants}, draft)
    made = make(op) if make else None
    e = replace(squeezed(made or movement(op)), name=draft.fresh(name))
    if e.kind == "copy":
        known = made is not None or op.kind in MOVES or op.kind in NO_PRODUCT
        draft.moved.append(f"{op.kind} {e.name}{'' if known else ' (unknown operator)'}")
        draft.unknown += [] if known else [e.name]
    if bias:
        partial = draft.fresh(f"{op.output}_unbiased")
        draft.einsums.append(replace(e, output=replace(e.output, tensor=partial)))
        draft.types[partial] = draft.types.get(op.output, 0)
        total = Op("Add", (partial, draft.name(bias)), (op.shape, op.shapes[2]), (None, None), op.output, op.shape, {})
        e = replace(squeezed(elementwise(total) if op.kind == "Gemm" else by_channel(total)), name=draft.fresh(f"{name}_bias"))
    draft.einsums.append(e)
    draft.makers[op.output] = e.name


def _distinct(op: Op, make: Callable[[Op], Einsum | None] | None, constants: set[str], draft: Draft) -> Op:
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
        quantised = node.op_type in PRODUCTS or node.op_type in RECURRENT
        for at, tensor in enumerate(node.input):
            if tensor not in facts.constants or at in UNTRAINED.get(node.op_type, ()):
                continue
            root = facts.roots.get(tensor, tensor)
            size = prod(facts.shape(root) or ())
            if size > 1 and (facts.is_float(tensor) or (quantised and at in operands)):
                found[root] = size
    return sum(found.values())
