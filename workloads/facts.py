"""Pass 1 over an ONNX graph (workloads/onnx.py): the shape of every tensor, which tensors are constant, and
the values of small constants that shapes may depend on. Weights are never computed.

Longer than most files, as all of this is one walk over the graph: it infers shapes, folds constants, replaces
operators of onnxruntime by ONNX's own (workloads/lowered.py), takes the branch of an If whose condition is
constant, and, where another batch is asked for than the file fixes, changes the constants that contain the
old batch (workloads/rebind.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import onnx
from onnx import (
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    TensorShapeProto,
    TypeProto,
    helper,
    numpy_helper,
    shape_inference,
)
from onnx.reference import ReferenceEvaluator

from workloads import bodies
from workloads.arrays import Array
from workloads.bodies import attributes
from workloads.einsum import WorkloadError, closest, refuse
from workloads.lowered import RULES, lowered
from workloads.operands import disagreement
from workloads.operators import Shape, names_in
from workloads.rebind import SCALAR_OUTPUTS, SHAPE_INPUTS, Batch

# operators that move no data: their result is the tensor that they read, in another shape
FREE = {"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout"}
# operators that shapes are computed with: evaluated where the values of all inputs are known
SHAPE_OPERATORS = names_in(
    "Gather Concat Unsqueeze Squeeze Slice Cast Add Sub Mul Div Floor Ceil Min Max Mod Neg Abs Range Equal "
    "Less Greater Not And Or Where Expand Reshape Identity ReduceProd ReduceSum ReduceMax ReduceMin "
    "Transpose Flatten Split"
)
RECURRENT = {"LSTM": 4, "GRU": 3, "RNN": 1}  # operator -> its gates
FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16)
UNSIGNED = (TensorProto.BOOL, TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64)
INTEGERS = (*UNSIGNED, TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64)
NUMBERS = (*INTEGERS, TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)
QUANTISED = ("QuantizeLinear", "DequantizeLinear")
SMALL_INTS, SMALL_FLOATS = 4096, 16  # elements of the largest constants whose values are kept
NEWEST_OPSET = onnx.defs.onnx_opset_version()
Types = dict[str, TypeProto]


@dataclass(slots=True)
class Facts:
    """Types, constants and small values of tensors.

    from_shapes: tensors computed from the shape of another one
    view_of: constant -> the constant of which it is a view (Reshape, ...)
    refusals: tensor -> why its shape is not known
    warnings: what the file has that the ONNX standard does not know
    trips: first output of a node in a loop -> how often the node runs
    loop_state: states that one trip of a loop leaves to the next
    stored_types: tensor -> the element type in which it is stored, where it is computed in another one
    decided_by: tensor -> the one-element graph input whose value decides it, which the user has not bound
    """

    types: dict[str, TypeProto] = field(default_factory=dict)
    constants: set[str] = field(default_factory=set)
    values: dict[str, Array] = field(default_factory=dict)
    from_shapes: set[str] = field(default_factory=set)
    view_of: dict[str, str] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    trips: dict[str, int] = field(default_factory=dict)
    loop_state: set[str] = field(default_factory=set)
    stored_types: dict[str, int] = field(default_factory=dict)
    decided_by: dict[str, str] = field(default_factory=dict)

    def declare(self, tensor: str, kind: int, shape: Sequence[int]) -> None:
        """Records the element type and the shape of a tensor."""
        self.types[tensor] = helper.make_tensor_type_proto(kind, shape)

    def kind(self, tensor: str) -> int:
        """Element type of a tensor, whose type must be known."""
        return self.types[tensor].tensor_type.elem_type

    def stored_type(self, tensor: str) -> int:
        """Element type in which a tensor is stored; 0: not known."""
        return self.stored_types.get(tensor, self.kind(tensor) if tensor in self.types else 0)

    def shape(self, tensor: str) -> Shape | None:
        """Shape of a tensor; None unless every dimension is known."""
        kind = self.types.get(tensor)
        if kind is None or not kind.HasField("tensor_type") or not kind.tensor_type.HasField("shape"):
            return None
        dims = kind.tensor_type.shape.dim
        return tuple(d.dim_value for d in dims) if all(d.HasField("dim_value") for d in dims) else None

    def is_float(self, tensor: str) -> bool:
        """True if a tensor is of a floating-point type; its type must be known."""
        return self.kind(tensor) in FLOATS

    def shapes_text(self, tensors: Iterable[str]) -> str:
        """Tensors and their shapes, as far as known, for messages."""
        shapes = ((t, self.shape(t)) for t in tensors)
        return ", ".join(f"{t} {list(shape)}" for t, shape in shapes if shape is not None)


def deciding_input(node: NodeProto, facts: Facts) -> str:
    """The one-element graph input, not bound yet, whose value decides what a node makes; "": none."""
    return next((facts.decided_by[i] for i in reads(node) if i in facts.decided_by), "")


def reads(node: NodeProto) -> list[str]:
    """Tensors that a node reads, those that its subgraphs take from outside included."""
    names = [i for i in node.input if i]
    for graph in (a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH):
        inner = bodies.own_tensors(graph)
        names += [i for n in graph.node for i in reads(n) if i not in inner]
    return names


def title(node: NodeProto) -> str:
    """Operator and name of a node, for messages; its first output where it has no name."""
    return f"{node.op_type} {node.name or next((o for o in node.output if o), '?')}"


def value_advice(where: str, name: str) -> str:
    """The advice to bind the value of input `name`, on which something depends; "" if name is ""."""
    if not name:
        return ""
    key = name if re.fullmatch(r"\w+", name) else f'"{name}"'
    return (
        f"it depends on the value of input {name}; bind it, e.g. {Path(where).name}:{name}=1, or "
        f"bind: {{{key}: 1}} in a study"
    )


def reason(fault: Exception) -> str:
    """An exception's message as words; a message that is a bare name gets the exception's meaning.

    >>> reason(KeyError("axis"))
    "'axis' is missing"
    """
    text = " ".join(str(fault).split())[:200]
    if isinstance(fault, KeyError):
        return f"{text} is missing"
    return text if " " in text else f"{type(fault).__name__} {text}".rstrip()


def ordered(where: str, graph: GraphProto) -> list[NodeProto]:
    """Nodes, producers first. Raises for tensors made twice or never, and for cycles."""
    damaged = [
        i
        for i, n in enumerate(graph.node)
        if any(isinstance(t, bytes) for t in (n.op_type, n.domain, n.name, *n.input, *n.output))
    ]
    if damaged:
        raise WorkloadError(
            f"{where}: operator number {damaged[0]} has a name that is no text; the file is damaged, "
            "export it again"
        )
    given = {i.name for i in (*graph.input, *graph.initializer)}
    given |= {i.values.name for i in graph.sparse_initializer}
    makers: dict[str, int] = {}
    faults = []
    for i, node in enumerate(graph.node):
        for tensor in filter(None, node.output):
            if tensor in makers or tensor in given:
                faults.append(f"{where}: tensor {tensor} is made twice, the second time by {title(node)}")
            makers[tensor] = i
    order: nx.DiGraph[int] = nx.DiGraph()
    order.add_nodes_from(range(len(graph.node)))
    for i, node in enumerate(graph.node):
        for tensor in reads(node):
            if tensor in makers:
                order.add_edge(makers[tensor], i)
            elif tensor not in given:
                faults.append(f"{where}: {title(node)} reads tensor {tensor}, which nothing makes")
    faults += [
        f"{where}: output {o.name} is made by no operator"
        for o in graph.output
        if o.name not in makers and o.name not in given
    ]
    refuse(faults)
    try:
        return [graph.node[i] for i in nx.lexicographical_topological_sort(order)]
    except nx.NetworkXUnfeasible:
        cycle = " -> ".join(title(graph.node[edge[0]]) for edge in nx.find_cycle(order))
        raise WorkloadError(f"{where}: operators form a cycle: {cycle}") from None


# names that exporters give to any dimension
ANONYMOUS = {"", "?", "*", "-1", "None", "none", "unk", "unknown", "dynamic"}


def _dimension(d: TensorShapeProto.Dimension, label: str) -> int | str:
    """Size of a dimension, or its symbol; `label` where it has no symbol of its own."""
    if d.HasField("dim_value") and d.dim_value > 0:
        return int(d.dim_value)
    return label if d.dim_param in ANONYMOUS else str(d.dim_param)


def feeds_of(
    where: str, graph: GraphProto, bind: dict[str, int], batch: int | None
) -> tuple[dict[str, Shape], dict[str, Shape] | None, dict[str, int]]:
    """Returns (shapes of the inputs to use; their shapes at the batch that the file fixes if `batch` is
    another one, else None; values of one-element inputs that `bind` names).
    """
    weights = {i.name for i in graph.initializer}
    dims: dict[str, list[int | str]] = {}
    faults = []
    for i in (i for i in graph.input if i.name not in weights):
        if not i.type.HasField("tensor_type"):
            faults.append(f"{where}: input {i.name} is no tensor; only tensors can be costed")
        shape = i.type.tensor_type.shape.dim
        dims[i.name] = [_dimension(d, f"{i.name}[{at}]") for at, d in enumerate(shape)]
    symbols = list(dict.fromkeys(d for shape in dims.values() for d in shape if isinstance(d, str)))
    values = {name: value for name, value in bind.items() if name in dims and name not in symbols}
    bind = {symbol: size for symbol, size in bind.items() if symbol not in values}
    first_dim = next((shape[0] for name, shape in dims.items() if shape and name not in values), None)
    faults += _value_faults(where, graph, values, dims)
    faults += _bind_faults(where, bind, symbols, batch, first_dim)
    bound = bind if batch is None or not isinstance(first_dim, str) else {first_dim: batch, **bind}
    for s in (s for s in symbols if s not in bound):
        key = s if re.fullmatch(r"\w+", s) else f'"{s}"'
        faults.append(
            f'{where}: size of symbol "{s}" is not bound; bind it, e.g. {Path(where).name}:{s}=1, or '
            f"bind: {{{key}: 1}} in a study"
        )
    refuse(faults)
    file_shapes = {
        i: tuple(bound[d] if isinstance(d, str) else d for d in shape) for i, shape in dims.items()
    }
    if batch is None or first_dim == batch or not isinstance(first_dim, int):
        return file_shapes, None, values
    batched = {i for i in dims if dims[i][:1] == [first_dim] and i not in values}
    new_shapes = {i: (batch, *shape[1:]) if i in batched else shape for i, shape in file_shapes.items()}
    return new_shapes, file_shapes, values


def _value_faults(
    where: str, graph: GraphProto, values: Mapping[str, int], dims: Mapping[str, Sequence[int | str]]
) -> Iterator[str]:
    kinds = {i.name: i.type.tensor_type.elem_type for i in graph.input}
    for name, value in values.items():
        if any(d != 1 for d in dims[name]) or kinds[name] not in NUMBERS:
            yield (
                f"{where}: bind {name} = {value!r} would be the value of input {name} "
                f"[{', '.join(map(str, dims[name]))}]; only an input of one number has a value to bind"
            )
        elif type(value) is not int or (value < 0 and kinds[name] in UNSIGNED):
            yield f"{where}: bind {name} = {value!r} must be a whole number that input {name} can be"


def _bind_faults(
    where: str, bind: dict[str, int], symbols: list[str], batch: int | None, first_dim: int | str | None
) -> Iterator[str]:
    for symbol, size in bind.items():
        if symbol not in symbols:
            hint_else = f"symbols are: {', '.join(symbols) or 'none, all sizes are given'}"
            hint = closest(symbol, symbols, hint_else)
            yield f'{where}: bind names "{symbol}", which no input has; {hint}'
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            yield f"{where}: bind {symbol} = {size!r} must be a whole number of at least 1"
    if batch is None:
        return
    if not isinstance(batch, int) or isinstance(batch, bool) or batch < 1:
        yield f"{where}: batch = {batch!r} must be a whole number of at least 1"
    elif first_dim is None:
        yield f"{where}: batch = {batch}, but no input has a first dimension to rebind"
    elif isinstance(first_dim, str) and bind.get(first_dim, batch) != batch:
        yield (
            f"{where}: batch = {batch} and bind {first_dim} = {bind[first_dim]} both size the first "
            "dimension of the inputs; drop one"
        )


@dataclass(slots=True)
class Walk:
    """A walk over the graph, and the facts that it collects.

    file_facts: facts at the batch that the file fixes, if another one is asked for
    batch: that other batch; None: the file's
    bound_values: values of inputs of one element
    opsets: domain -> version of its operator set; "" is ONNX's own domain
    """

    where: str
    model: ModelProto
    nodes: list[NodeProto]
    facts: Facts = field(default_factory=Facts)
    file_facts: Facts = field(default_factory=Facts)
    batch: Batch | None = None
    bound_values: Mapping[str, int] = field(default_factory=dict)
    opsets: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        imports = self.model.opset_import
        self.opsets = {o.domain if o.domain != "ai.onnx" else "": o.version for o in imports}

    def fault(self, node: NodeProto, why: str) -> WorkloadError:
        """The exception that says what is wrong with a node."""
        return WorkloadError(f"{self.where}: {title(node)}: {why}")

    def declared(self) -> dict[str, TypeProto]:
        """Types that the model declares of outputs and inner tensors; none when the batch is changed."""
        graph = self.model.graph
        return {} if self.batch else {v.name: v.type for v in (*graph.output, *graph.value_info)}


def facts_of(walk: Walk, feeds: Mapping[str, Shape]) -> tuple[Facts, list[NodeProto]]:
    """Walk the graph with the given input shapes: its facts, and the nodes after branches, loops and
    operators of onnxruntime are replaced.
    """
    facts, graph = Facts(), walk.model.graph
    walk.facts = facts
    for i in graph.input:
        if i.name in feeds:
            facts.declare(i.name, i.type.tensor_type.elem_type, feeds[i.name])
            _input_value(walk, i.name, feeds[i.name])
            file_shape = walk.file_facts.shape(i.name)
            if walk.batch and file_shape and file_shape != feeds[i.name]:
                walk.batch.inherit(i.name, 0, file_shape, iter(()))
    for s in graph.sparse_initializer:
        facts.declare(s.values.name, s.values.data_type, s.dims)
        facts.constants.add(s.values.name)
    return facts, _walk_graph(walk, walk.nodes, graph.initializer, walk.declared())


def _input_value(walk: Walk, name: str, shape: Shape) -> None:
    """Records the bound value of an input, which is constant then, or that a value could be bound."""
    facts = walk.facts
    if name in walk.bound_values:
        kind = helper.tensor_dtype_to_np_dtype(facts.kind(name))
        facts.values[name] = np.full(shape, walk.bound_values[name]).astype(kind)
        facts.constants.add(name)
    elif prod(shape) == 1 and facts.kind(name) in INTEGERS:
        facts.decided_by[name] = name


def _constant(where: str, t: TensorProto, facts: Facts) -> None:
    facts.declare(t.name, t.data_type, t.dims)
    if t.data_location != TensorProto.EXTERNAL and _is_small(t.data_type, prod(t.dims)):
        facts.values[t.name] = _array(where, t)
    facts.constants.add(t.name)


def _expand_node(walk: Walk, node: NodeProto, declared: Types) -> list[NodeProto]:
    """The nodes that stand for a node: itself, the branch of an If whose condition is constant, the body of a
    loop, or ONNX's own operators for one of onnxruntime.
    """
    facts = walk.facts
    if node.op_type == "If" and (condition := facts.values.get(node.input[0])) is not None:
        return _walk_graph(walk, *bodies.branch(node, bool(condition)), declared)
    if node.domain == bodies.LINKS:
        _record_link(node, facts)
        return [node]
    if node.op_type in ("Loop", "Scan") and walk.batch is None:
        try:
            body = bodies.body(node, {i: facts.shape(i) for i in node.input}, facts.values, walk.opsets)
        except (
            ArithmeticError,
            AttributeError,
            LookupError,
            RuntimeError,
            StopIteration,
            TypeError,
            ValueError,
        ):
            raise walk.fault(node, "its body does not fit its inputs; export it again") from None
        if body is not None:
            return _walk_loop(walk, node, body, declared)
    if node.op_type in ("If", "Loop") and (decided := deciding_input(node, facts)):
        facts.warnings.append(f"{walk.where}: {title(node)}: {value_advice(walk.where, decided)}")
    typed_inputs = [i for i in node.input if i in facts.types]
    shapes = {i: shape for i in typed_inputs if (shape := facts.shape(i)) is not None}
    if (site := lowered(node, shapes, {i: facts.kind(i) for i in typed_inputs})) is not None:
        if site.fault:
            raise walk.fault(node, site.fault)
        for name, (kind, size) in site.constants.items():
            facts.declare(name, kind, size)
            facts.constants.add(name)
        newest_walk = copy(walk)
        newest_walk.opsets = walk.opsets | {"": NEWEST_OPSET}
        return _walk_graph(newest_walk, site.nodes, (), declared)
    if walk.batch is None or not any(i in walk.batch.positions for i in reads(node)):
        _infer(walk, node, declared)
    else:
        node = _rebound(walk, walk.batch, node)
    _fold(walk, node)
    return [node]


def _walk_graph(
    walk: Walk, nodes: Iterable[NodeProto], constants: Iterable[TensorProto], declared: Types
) -> list[NodeProto]:
    """Walk the constants and nodes of the whole graph, or of a graph inside an operator (a branch or body).
    Returns the nodes, which in the second case replace the operator.
    """
    for t in constants:
        _constant(walk.where, t, walk.facts)
    return [n for part in nodes for n in _expand_node(walk, part, declared)]


def _record_link(node: NodeProto, facts: Facts) -> None:
    """Records the type of a link's result. It is never marked constant: even if the first trip reads a
    constant through the link, later trips may not.
    """
    source, shape = node.input[0], facts.shape(node.input[0])
    if shape is not None:
        facts.declare(node.output[0], facts.kind(source), bodies.shape_after_link(node, shape))


def _walk_loop(walk: Walk, node: NodeProto, body: bodies.Body, declared: Types) -> list[NodeProto]:
    """The nodes of a loop's body, with how often each of them runs recorded. Raises where a state changes its
    shape from trip to trip.
    """
    facts = walk.facts
    if body.counter:
        facts.declare(body.counter, TensorProto.INT64, ())
    nodes = _walk_graph(walk, body.nodes, body.constants, declared)
    for before, after in body.states:
        if facts.shape(before) != facts.shape(after):
            shapes = f"{list(facts.shape(before) or ())} to {list(facts.shape(after) or ())}"
            raise walk.fault(node, f"its state {after} changes from {shapes} in a trip; unroll it on export")
    for n in nodes:
        facts.trips[n.output[0]] = facts.trips.get(n.output[0], 1) * body.trips
    facts.loop_state.update(after for _, after in body.states)
    return nodes


def _rebound(walk: Walk, batch: Batch, node: NodeProto) -> NodeProto:
    """Infers the types of a node's outputs at the new batch; returns the node, with one of its constants
    adapted if that is needed. Raises if no adaptation gives outputs that grow with the batch.
    """
    types = walk.facts.types
    sources = [(i, shape) for i in reads(node) if (shape := walk.file_facts.shape(i)) is not None]
    outputs = [o for o in node.output if o]
    if node.op_type in ("Shape", "Size"):
        _infer(walk, node, {})
        return node
    for position in SCALAR_OUTPUTS.get(node.op_type, ()):
        batch.scalars.update(node.output[position : position + 1])
    for version in _versions(node, walk, batch):
        old_types = {o: types.pop(o, None) for o in outputs}
        try:
            _infer(walk, version, {})
        except WorkloadError:
            types.update({o: t for o, t in old_types.items() if t is not None})
            continue
        if all(_grew(o, walk, batch, sources) for o in outputs):
            return version
    raise WorkloadError(
        f"{walk.where}: batch = {batch.new}: {title(node)}: the batch {batch.old} that the file fixes cannot "
        f"be replaced here (at batch {batch.old} it reads "
        f"{walk.file_facts.shapes_text(reads(node))}); export the model "
        f"with batch {batch.new}, or with a symbolic batch"
    )


def _grew(output: str, walk: Walk, batch: Batch, sources: Sequence[tuple[str, Shape]]) -> bool:
    """True if an output's shape is right for the new batch: grown in the batch's dimension, which is
    recorded; unchanged where it is one number per tensor.
    """
    before, after = walk.file_facts.shape(output), walk.facts.shape(output)
    if output in batch.scalars:
        return before == after
    if before is None or after is None:
        return before is after
    if output in batch.positions:  # of a Reshape, for which `_versions` has recorded it
        return batch.grown_axis(before, after) == batch.positions[output].axis
    axis = batch.grown_axis(before, after)
    if axis is not None:
        batch.inherit(output, axis, before, iter(sources))
    return axis is not None


def _versions(node: NodeProto, walk: Walk, batch: Batch) -> Iterator[NodeProto]:
    """The versions of a node to try: as it is, then with one constant grown in one dimension (or one number
    of it, where it is a shape). A Reshape has one version only: the batch stays in its dimension.
    """
    facts = walk.facts
    if node.op_type == "Reshape" and node.input[0] in batch.positions:
        old, result = walk.file_facts.shape(node.input[0]), walk.file_facts.shape(node.output[0])
        if old is not None and result is not None:
            new = batch.reshaped(node.input[0], node.output[0], old, result)
            if new is not None and prod(new) == prod(facts.shape(node.input[0]) or ()):
                yield _with_constant(node, 1, np.array(new, np.int64), facts)
        return
    if node.op_type in RECURRENT:  # ONNX's shape rule does not check the initial states
        for position, tensor in enumerate(node.input):
            state = facts.shape(tensor) if position in (5, 6) and tensor in facts.constants else None
            if state is not None and len(state) == 3 and state[1] == batch.old:
                node = _with_constant(
                    node, position, (state[0], batch.scaled(state[1]) or 0, state[2]), facts
                )
        yield node
        return
    yield node
    for position, tensor in enumerate(node.input):
        shape, value = facts.shape(tensor), facts.values.get(tensor)
        if tensor not in facts.constants or shape is None:
            continue
        if position not in SHAPE_INPUTS.get(node.op_type, ()):
            for grown in _each_scaled(shape, batch):
                yield _with_constant(node, position, grown, facts)
        elif value is not None and value.ndim == 1 and value.dtype.kind == "i":
            for grown in _each_scaled(value.tolist(), batch):
                yield _with_constant(node, position, np.array(grown, value.dtype), facts)


def _each_scaled(sizes: Sequence[int], batch: Batch) -> Iterator[Shape]:
    """Per size, the sizes with this one at the new batch, if that is a whole number."""
    for i, size in enumerate(sizes):
        if size > 0 and (new := batch.scaled(size)):
            yield (*sizes[:i], new, *sizes[i + 1 :])


def _with_constant(node: NodeProto, position: int, given: Array | Shape, facts: Facts) -> NodeProto:
    """The node with a new constant as input `position`. given: its values; its shape if they are unknown."""
    old, name = node.input[position], f"{node.input[position]}:{node.output[0]}"
    facts.declare(name, facts.kind(old), given if isinstance(given, tuple) else given.shape)
    if not isinstance(given, tuple):
        facts.values[name] = given
    facts.constants.add(name)
    facts.view_of[name] = facts.view_of.get(old, old)
    if old in facts.stored_types:
        facts.stored_types[name] = facts.stored_types[old]
    changed = deepcopy(node)
    changed.input[position] = name
    return changed


def _array(where: str, t: TensorProto) -> Array:
    try:
        return numpy_helper.to_array(t)
    except (KeyError, TypeError, ValueError):
        raise WorkloadError(
            f"{where}: constant {t.name} is damaged: its values do not fit its type and shape "
            f"{list(t.dims)}; export the file again"
        ) from None


def _is_small(elem_type: int, elems: int) -> bool:
    return elem_type != TensorProto.STRING and elems <= (SMALL_FLOATS if elem_type in FLOATS else SMALL_INTS)


def _infer(walk: Walk, node: NodeProto, declared: Types) -> None:
    """Types of a node's outputs: from ONNX's or onnxruntime's shape rule; where that gives none, from what
    the file declares.

    Raises WorkloadError where the operands do not fit together, whatever the file declares.
    """
    facts, domain = walk.facts, node.domain if node.domain != "ai.onnx" else ""
    is_standard = onnx.defs.has(node.op_type, walk.opsets.get(domain, 1), domain)
    shapes = [facts.shape(i) if i else None for i in node.input]
    is_checked = domain == "" or domain.startswith("com.microsoft")
    if is_checked and (wrong := _disagreement(node, shapes)):
        raise walk.fault(node, wrong)
    if is_standard and all(i in facts.types for i in node.input if i):
        _infer_standard(walk, node, domain, declared)
    elif (rule := RULES.get(node.op_type)) and domain.startswith("com.microsoft"):
        known_shapes = [s for s in shapes if s is not None]
        shape = rule(known_shapes, attributes(node)) if len(known_shapes) == len(shapes) else None
        if shape is not None:
            facts.declare(node.output[0], facts.kind(node.input[0]), shape)
    for output in filter(None, node.output):
        if facts.shape(output) is None and is_standard and not _has_graph(node):
            facts.refusals[output] = _second_opinion(node, facts, walk.model)
        if facts.shape(output) is None and output in declared and not facts.refusals.get(output):
            facts.types[output] = declared[output]


def _disagreement(node: NodeProto, shapes: Sequence[Shape | None]) -> str:
    try:
        return disagreement(node.op_type, node.input, shapes, attributes(node))
    # a damaged file may have attributes of any type and size
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as fault:
        seen = [f"{i} {list(s)}" for i, s in zip(node.input, shapes, strict=True) if s is not None]
        return f"its attributes and shapes do not fit ({type(fault).__name__}): {', '.join(seen)}"


def _infer_standard(walk: Walk, node: NodeProto, domain: str, declared: Types) -> None:
    """Types of a node's outputs by ONNX's shape rule. The rule may fail for an operator with a subgraph if
    the file declares all its outputs.
    """
    facts = walk.facts
    schema = onnx.defs.get_schema(node.op_type, walk.opsets.get(domain, 1), domain)
    inputs = [i for i in node.input if i]
    types = {i: facts.types[i] for i in inputs}
    data = {i: numpy_helper.from_array(np.asarray(facts.values[i]), i) for i in inputs if i in facts.values}
    imports = [helper.make_opsetid(name, version) for name, version in walk.opsets.items()]
    try:
        relaxed, types, warnings = _relaxed(schema, _explicit(node, facts), types)
        found = shape_inference.infer_node_outputs(
            schema, relaxed, types, data, opset_imports=imports, ir_version=walk.model.ir_version
        )
    except (onnx.checker.ValidationError, shape_inference.InferenceError, KeyError, ValueError) as fault:
        if _has_graph(node) and all(o in declared for o in node.output if o):
            return
        seen = facts.shapes_text(inputs) or "tensors of shapes that are not known"
        why = reason(fault).replace("[ShapeInferenceError]", "").strip()
        raise walk.fault(node, f"{why}; it reads {seen}") from None
    # element type that `_relaxed` replaced by float, to be given back to the results
    elem_type = next((facts.kind(i) for i in inputs if types[i] is not facts.types[i]), None)
    for name, inferred in found.items():
        if elem_type is not None and inferred.tensor_type.elem_type == TensorProto.FLOAT:
            inferred.tensor_type.elem_type = elem_type
        facts.types[name] = inferred
    facts.warnings += [f"{walk.where}: {title(node)}: {line}" for line in warnings]


def _relaxed(schema: Any, node: NodeProto, types: Types) -> tuple[NodeProto, Types, list[str]]:
    """A node and its input types, changed so that ONNX's shape rule accepts them, and a warning per change.
    Attributes that the standard does not know are left out; element types that it does not allow become
    float, which changes no shape.
    """
    unknown_attrs = [
        a.name for a in node.attribute if isinstance(a.name, str) and a.name not in schema.attributes
    ]
    warnings = [
        f"attribute {name}: the standard has none of that name for {node.op_type}; it is left out"
        for name in unknown_attrs
    ]
    if unknown_attrs:
        known_attrs = [a for a in node.attribute if a.name not in unknown_attrs]
        node = deepcopy(node)
        del node.attribute[:]
        node.attribute.extend(known_attrs)
    count = len(schema.inputs)
    parameters = [schema.inputs[min(at, count - 1)] for at in range(len(node.input))] if count else []
    type_params = [parameter.type_str if parameter.is_homogeneous else "" for parameter in parameters]
    input_types = {
        i: f"tensor({_type_name(types[i])})" for i in node.input if i and types[i].HasField("tensor_type")
    }
    for constraint in schema.type_constraints:
        allowed = set(constraint.allowed_type_strs)
        members = [
            i
            for i, type_param in zip(node.input, type_params, strict=True)
            if type_param == constraint.type_param_str and i in input_types
        ]
        kinds = {input_types[i] for i in members}
        if (kinds <= allowed and len(kinds) <= 1) or "tensor(float)" not in allowed:
            continue
        warnings.append(
            f"{', '.join(f'{i} {input_types[i]}' for i in members)}: types that the standard does "
            "not allow for "
            f"{node.op_type}; counted as they are"
        )
        types = types | {i: _as_float(types[i]) for i in members}
    return node, types, warnings


def _as_float(kind: TypeProto) -> TypeProto:
    real = deepcopy(kind)
    real.tensor_type.elem_type = TensorProto.FLOAT
    return real


def _type_name(kind: TypeProto) -> str:
    return str(TensorProto.DataType.Name(kind.tensor_type.elem_type)).lower()


def _has_graph(node: NodeProto) -> bool:
    return any(a.type == onnx.AttributeProto.GRAPH for a in node.attribute)


def _explicit(node: NodeProto, facts: Facts) -> NodeProto:
    """The node with an attribute written out that ONNX's shape rule needs: onesided = 1 of a STFT;
    hidden_size of a recurrent layer, as its weights R [directions, gates x hidden, hidden] have it.
    """
    attrs, default = attributes(node), {}
    if node.op_type == "STFT":
        default = {"onesided": 1}
    elif node.op_type in RECURRENT and len(node.input) > 2 and (weights := facts.shape(node.input[2])):
        default = {"hidden_size": weights[-1]}
    missing = {name: value for name, value in default.items() if name not in attrs}
    changed = deepcopy(node) if missing else node
    changed.attribute.extend(helper.make_attribute(name, value) for name, value in missing.items())
    return changed


def _second_opinion(node: NodeProto, facts: Facts, model: ModelProto) -> str:
    """Records the output types that ONNX infers for a graph of this node alone, which works for operators
    that are defined as functions. Returns the error if that fails, else "".
    """
    graph = _single_node_graph(node, facts, [i for i in reads(node) if i in facts.types])
    single = helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    try:
        found = shape_inference.infer_shapes(single, strict_mode=True)
    except shape_inference.InferenceError as fault:
        return str(fault).strip().splitlines()[-1].rpartition("] ")[2]
    new = [o for o in found.graph.output if facts.shape(o.name) is None and o.type.HasField("tensor_type")]
    facts.types.update({o.name: o.type for o in new})
    return ""


def _single_node_graph(node: NodeProto, facts: Facts, inputs: Iterable[str]) -> GraphProto:
    """A graph of one node."""
    given = [helper.make_value_info(i, facts.types[i]) for i in dict.fromkeys(inputs)]
    results = [helper.make_empty_tensor_value_info(o) for o in node.output if o]
    return helper.make_graph([node], "one", given, results)


def _fold(walk: Walk, node: NodeProto) -> None:
    """Mark outputs as constant, and keep small values that shapes may depend on. The result of
    DequantizeLinear, or of a Cast of a constant, counts as stored in the type of its input; so do its views.
    """
    facts, operands = walk.facts, reads(node)
    if node.op_type in SHAPE_OPERATORS and (decided := deciding_input(node, facts)):
        facts.decided_by.update((o, decided) for o in node.output)
    constant = all(i in facts.constants for i in operands)
    if operands and (
        node.op_type == "DequantizeLinear"
        or (node.op_type in FREE | {"Transpose"} and node.input[0] in facts.stored_types)
        or (constant and node.op_type in ("Cast", *QUANTISED))
    ):
        typed_by = node.output if node.op_type == "QuantizeLinear" else node.input
        facts.stored_types[node.output[0]] = facts.stored_type(typed_by[0])
    reads_shape = node.op_type in ("Shape", "Size") and facts.shape(node.input[0]) is not None
    if not reads_shape and not constant:
        return
    facts.constants.update(o for o in node.output if o)
    if reads_shape or any(i in facts.from_shapes for i in operands):
        facts.from_shapes.update(node.output)
    output, source = node.output[0], next((i for i in operands if i in facts.types), "")
    shape = facts.shape(output)
    if source and shape is not None and prod(facts.shape(source) or (0,)) == prod(shape):
        facts.view_of[output] = facts.view_of.get(source, source)
    if reads_shape:
        dims, attrs = facts.shape(node.input[0]) or (), attributes(node)
        part = dims[attrs.get("start", 0) : attrs.get("end", len(dims))]
        facts.values[output] = np.array(part if node.op_type == "Shape" else prod(dims), dtype=np.int64)
    elif shape is not None and _is_small(facts.kind(output), prod(shape)) and _may_shape_need(node, facts):
        try:
            results = _evaluate(walk, node)
        except Exception as fault:  # the evaluator does not check the file: any exception may come
            why = f"its value cannot be computed ({reason(fault)}); export it again"
            raise walk.fault(node, why) from None
        outputs = [o for o in node.output if o]
        facts.values.update({o: np.asarray(r) for o, r in zip(outputs, results, strict=False)})


def _evaluate(walk: Walk, node: NodeProto) -> Sequence[Any]:
    """Values of a node's outputs. The node is evaluated as a graph of the file's operator sets: for a node by
    itself the reference evaluator takes the newest version of the operator, which may have other attributes.
    """
    inputs = [i for i in node.input if i]
    evaluator = ReferenceEvaluator(_single_node_graph(node, walk.facts, inputs), opsets=dict(walk.opsets))
    return list(evaluator.run(None, {i: walk.facts.values[i] for i in inputs}))


def _may_shape_need(node: NodeProto, facts: Facts) -> bool:
    """True if a shape may depend on this constant, so that its values are needed. No shape depends on floats
    that a ConstantOfShape fills in.
    """
    if node.op_type == "ConstantOfShape":
        return not facts.is_float(node.output[0]) and node.input[0] in facts.values
    known = all(i in facts.values for i in node.input if i)
    return node.op_type == "Constant" or (node.op_type in SHAPE_OPERATORS and known)


def live_nodes(nodes: Sequence[NodeProto], facts: Facts, results: Sequence[str]) -> list[NodeProto]:
    """Nodes that are not constant and that an output of the graph needs."""
    wanted, live = set(results), []
    for node in reversed(nodes):
        if any(o in wanted and o not in facts.constants for o in node.output):
            live.append(node)
            wanted.update(reads(node))
    return live[::-1]
