"""Reads an ONNX file as a Workload, in two passes over its graph.

Pass 1 (workloads/facts.py) finds every shape, every constant, and the small values that shapes depend on.
Weights are never computed, only their shapes. Pass 2 (`_emit`) turns each remaining node into one einsum
(workloads/operators.py), or into none:

* Reshape, Flatten, Squeeze, Unsqueeze, Identity, Dropout are free: the elements stay where they are, and
  readers see the producer's tensor, under its name, in the new shape. A Transpose that moves only dimensions
  of size 1 is free too.
* Transpose, Concat, Slice, Split, Gather, Pad, Expand, and every unknown operator, are data movement (kind
  copy): they read their inputs and write their output. A Concat could be free if its producers wrote into its
  slices; the default layout does not assume that.
* Quantised tensors are stored quantised: DequantizeLinear is a view of its integers, QuantizeLinear is fused
  into its producer. Element types become bits (`_typed`).
* An unknown operator that could be a product is data movement too, and listed in Workload.unknown.
* Constant biases of products are part of these products. One-to-one operators are einsums here;
  `graph.fuse_into_producers` fuses them into their producers, for all file formats.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path

import onnx
import onnx.inliner
from google.protobuf.message import DecodeError  # type: ignore[import-untyped, unused-ignore]
from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from workloads import document
from workloads.bodies import LINKS, attributes
from workloads.einsum import Einsum, Projection, WorkloadError, refuse, squeezed
from workloads.facts import (
    FREE,
    RECURRENT,
    Facts,
    Walk,
    deciding_input,
    facts_of,
    feeds_of,
    live_nodes,
    ordered,
    reads,
    reason,
    title,
    value_advice,
)
from workloads.graph import AGAIN, Workload, fuse_into_producers, in_order
from workloads.operators import (
    MOVES,
    NO_PRODUCT,
    OPERATORS,
    PRODUCTS,
    Op,
    Shape,
    attention,
    by_channel,
    by_name,
    elementwise,
    movement,
    recurrent,
    rowwise,
    stft,
)
from workloads.rebind import Batch, check_per_sample

VIEW_IF_SAME_SHAPE = {"Expand", "Tile", "Pad", "Resize", "Upsample"}
# operator -> positions of the inputs that are multiplied; the others are scales and zero points
OPERANDS = {"QLinearConv": (0, 3), "QLinearMatMul": (0, 3)}
# Limits of files, which may come from anywhere: operators after inlining of functions, elements of a tensor
# (exact as floats), nested function calls.
MAX_NODES, MAX_ELEMS, MAX_DEPTH = 100_000, 1 << 53, 50
# operator -> positions of inputs that are not trained: running
# statistics, masks, angles, scales, states, conditions
UNTRAINED = {
    "BatchNormalization": (3, 4),
    "Attention": (3,),
    "RotaryEmbedding": (1, 2),
    "Resize": (1, 2, 3),
    "Upsample": (1,),
    "Where": (0,),
    "QuantizeLinear": (1, 2),
    "DequantizeLinear": (1, 2),
    "LSTM": (4, 5, 6),
    "GRU": (4, 5),
    "RNN": (4, 5),
    "Clip": (1, 2),
    "STFT": (1, 2, 3),
    "DFT": (1, 2),
}
WIDTHS = {  # bits of an element -> ONNX types
    4: "INT4 UINT4 FLOAT4E2M1",
    8: "INT8 UINT8 FLOAT8E4M3FN FLOAT8E4M3FNUZ FLOAT8E5M2 FLOAT8E5M2FNUZ",
    16: "INT16 UINT16 FLOAT16 BFLOAT16",
    32: "INT32 UINT32 FLOAT",
    64: "DOUBLE",
}
BITS = {int(TensorProto.DataType.Value(name)): bits for name, bits in by_name(WIDTHS).items()}


@dataclass(slots=True)
class Draft:
    """The workload under construction."""

    facts: Facts
    read_tensors: Collection[str]  # ONNX tensors that an operator or the user reads
    names: dict[str, str] = field(default_factory=dict)  # ONNX tensor -> workload tensor
    einsums: list[Einsum] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)  # operators that are data movement
    unknown: list[str] = field(default_factory=list)  # einsums of unknown operators that could be products
    types: dict[str, int] = field(default_factory=dict)  # workload tensor -> ONNX type in which it is stored
    repeats: dict[str, int] = field(default_factory=dict)  # einsum -> how often it runs, if more than once
    names_in_use: set[str] = field(default_factory=set)  # of tensors and einsums

    def fresh_name(self, wanted: str) -> str:
        """Returns an unused identifier similar to the wanted name."""
        stem = re.sub(r"\W", "_", wanted)
        stem = stem if re.match(r"[A-Za-z_]", stem) else f"t_{stem}"
        name, n = stem, 1
        while name in self.names_in_use:
            name, n = f"{stem}_{n}", n + 1
        self.names_in_use.add(name)
        return name

    def name(self, tensor: str) -> str:
        """Returns the identifier of an ONNX tensor, the same one every time."""
        if tensor not in self.names:
            self.names[tensor] = self.fresh_name(tensor)
        return self.names[tensor]

    def name_with_type(self, tensor: str) -> str:
        """Returns the identifier of an ONNX tensor, and records its type on first use."""
        name = self.name(tensor)
        self.types.setdefault(name, self.facts.stored_type(tensor))
        return name

    def shapes(self, tensors: Iterable[str]) -> tuple[Shape, ...]:
        """Returns the shapes of ONNX tensors; () for one that is not known, or left out."""
        return tuple(self.facts.shape(tensor) or () for tensor in tensors)


def load(
    source: str | Path | ModelProto,
    bind: Mapping[str, int] | None = None,
    batch: int | None = None,
    fuse_elementwise: bool = True,
    name: str = "",
) -> Workload:
    """Reads an ONNX model (path or loaded) as a workload.

    bind: size of each symbolic dimension of the inputs, by symbol ("N"), or "input[2]" where it has no name;
        value of an input of one number, by the input's name
    batch: new size of the first dimension of the inputs
    fuse_elementwise: fuse one-to-one element-wise operators into their producers

    Raises WorkloadError, one line per fault: no ONNX file, unbound symbols, a cycle, shapes that depend on
    data or do not fit.
    """
    label = name or (Path(source).stem if isinstance(source, (str, Path)) else source.graph.name or "model")
    where = str(source) if isinstance(source, (str, Path)) else label
    model = source if isinstance(source, ModelProto) else _read(Path(source))
    faults = dict.fromkeys((*_function_faults(model), *_tensor_faults(model.graph)))
    refuse(f"{where}: {line}" for line in faults)
    if model.functions:
        model = onnx.inliner.inline_local_functions(model)
    nodes = ordered(where, model.graph)
    feeds, file_feeds, values = feeds_of(where, model.graph, dict(bind or {}), batch)
    walk = Walk(where, model, nodes, bound_values=values)
    facts, nodes = facts_of(walk, feeds if file_feeds is None else file_feeds)
    if file_feeds is not None:
        file_nodes, walk.file_facts, walk.batch = (
            nodes,
            facts,
            Batch(next(iter(file_feeds.values()))[0], batch or 1),
        )
        facts, nodes = facts_of(walk, feeds)
    facts.warnings += _declared_warnings(walk, facts if file_feeds is None else walk.file_facts)
    results = [o.name for o in model.graph.output]
    live = live_nodes(nodes, facts, results)
    if not live:
        raise WorkloadError(f"{where}: no operator lies between the inputs and the outputs")
    found = _emit(where, label, live, facts, results, fuse_elementwise)
    if walk.batch is not None and all(i in walk.batch.positions for i in feeds):
        live = live_nodes(file_nodes, walk.file_facts, results)
        file_workload = _emit(where, label, live, walk.file_facts, results, fuse_elementwise)
        check_per_sample(where, file_workload.macs(), found.macs(), walk.batch)
    return found


def _declared_warnings(walk: Walk, facts: Facts) -> Iterator[str]:
    """Yields a warning for each output, or tensor between operators, whose declared shape differs from the
    one that the operators make. A declared size that is a name fits any size.
    """
    makers = {o: node for node in walk.nodes for o in node.output if o}
    graph = walk.model.graph
    declared = {v.name: ("tensor", v.type) for v in graph.value_info if v.name in makers}
    declared |= {v.name: ("output", v.type) for v in graph.output}
    for name, (what, kind) in declared.items():
        if (shape := facts.shape(name)) is None or not kind.tensor_type.HasField("shape"):
            continue
        declared_dims = [
            d.dim_value if d.dim_value > 0 else d.dim_param or "?" for d in kind.tensor_type.shape.dim
        ]
        if len(declared_dims) != len(shape) or any(
            isinstance(d, int) and d != size for d, size in zip(declared_dims, shape, strict=True)
        ):
            by_text = f"of {title(makers[name])} " if name in makers else ""
            yield (
                f"{walk.where}: {what} {name} {by_text}is declared as "
                f"[{', '.join(map(str, declared_dims))}], "
                f"and its operators make {list(shape)}, which counts; export the file again"
            )


def _read(path: Path) -> ModelProto:
    try:
        model = onnx.load(path, load_external_data=False)
    except DecodeError:
        raise WorkloadError(
            f"{path}: not an ONNX file, or a truncated one; export or copy it again"
        ) from None
    except OSError as fault:
        raise WorkloadError(
            f"{path}: {document.unreadable(path, fault, 'an ONNX file, or a name of dse list')}"
        ) from None
    if not model.graph.node or not model.graph.output:
        raise WorkloadError(f"{path}: the ONNX graph has no operator or no output; is the file truncated?")
    return model


# Checks of files, which may come from anywhere


def _function_faults(model: ModelProto) -> Iterator[str]:
    """Yields a fault if functions call themselves, or expand to more than MAX_NODES operators."""
    functions = {(f.domain, f.name): f for f in model.functions}
    sizes: dict[tuple[str, str], int] = {}

    def size(node: NodeProto, callers: tuple[tuple[str, str], ...]) -> int:
        key = node.domain, node.op_type
        if key not in functions:
            return 1
        if key in callers or len(callers) > MAX_DEPTH:
            return MAX_NODES + 1
        if key not in sizes:
            sizes[key] = sum(size(n, (*callers, key)) for n in functions[key].node)
        return sizes[key]

    if sum(size(n, ()) for n in model.graph.node) > MAX_NODES:
        yield (
            f"its functions call themselves, or stand for more than {MAX_NODES:,} operators; export it "
            "without functions"
        )


def _tensor_faults(graph: GraphProto) -> Iterator[str]:
    """Yields faults of constants: impossible sizes, or values stored outside of the file's folder. Values are
    never read, but such a path is a sign of a malicious file.
    """
    attributes = [a for node in graph.node for a in node.attribute]
    attr_tensors = [t for a in attributes for t in (*((a.t,) if a.HasField("t") else ()), *a.tensors)]
    for t in (*graph.initializer, *attr_tensors):
        location = next((entry.value for entry in t.external_data if entry.key == "location"), "")
        if location.startswith(("/", "\\")) or ".." in re.split(r"[/\\]", location):
            yield (
                f"constant {t.name}: its values lie at {location}, which leads out of the folder; put them "
                "beside the file"
            )
        if any(dim < 0 for dim in t.dims) or prod(t.dims) > MAX_ELEMS:
            yield f"constant {t.name}: no tensor has the shape {list(t.dims)}; export the file again"
    if any(t.data_location == TensorProto.EXTERNAL for t in attr_tensors):
        yield "the value of a Constant lies outside of the file, only weights may; export it again"
    for a in attributes:
        for subgraph in (*((a.g,) if a.HasField("g") else ()), *a.graphs):
            yield from _tensor_faults(subgraph)


def _emit(
    where: str, label: str, nodes: Sequence[NodeProto], facts: Facts, results: Sequence[str], fuse: bool
) -> Workload:
    """Returns the workload of nodes whose facts are known (pass 2). results: outputs of the graph."""
    refuse(dict.fromkeys(_faults(where, nodes, facts, results)))
    nodes = [n for n in nodes if not all(_is_empty(o, facts) for o in n.output if o)]
    draft = Draft(facts, {*results, *(i for node in nodes for i in reads(node))})
    for node in nodes:
        first = len(draft.einsums)
        _add_node(where, node, draft)
        if (trips := facts.trips.get(node.output[0], 1)) > 1:
            for e in draft.einsums[first:]:
                draft.repeats[e.name] = trips * draft.repeats.get(e.name, 1)
    weights = {draft.names[t] for t in facts.constants if t in draft.names}
    read = {p.tensor for e in draft.einsums for p in e.inputs}
    ordered = _typed(in_order(where, draft.einsums), draft.types)
    found = Workload(
        label,
        ordered,
        frozenset(weights & read),
        tuple(draft.repeats.get(e.name, 1) for e in ordered) if draft.repeats else (),
        _parameters(nodes, facts),
        moved=tuple(draft.moved),
        unknown=tuple(draft.unknown),
        warnings=tuple(dict.fromkeys(facts.warnings)),
    )
    wanted = [draft.names[t] for t in (*results, *facts.loop_state) if t in draft.names]
    sized = _in_words(fuse_into_producers(found, fuse, wanted))
    return replace(sized, types=_widths_of_types(sized, draft.types))


def _add_node(where: str, node: NodeProto, draft: Draft) -> None:
    """Adds the einsums of a node. A node that moves no data adds none: its result is its operand's tensor."""
    result = node.output[0]
    if node.domain == LINKS and node.op_type == "Step":
        draft.name_with_type(result)  # a new tensor, which every trip reads
    elif _is_view(node, draft.facts):
        facts = draft.facts
        source = next((i for i in reads(node) if i not in facts.constants and not _is_empty(i, facts)), "")
        draft.names[result] = draft.name_with_type(source)
    else:
        add = _add_einsums
        if node.op_type in RECURRENT and node.domain in ("", "ai.onnx", "aten"):
            add = _add_recurrent
        elif node.op_type == "Attention" and node.domain in ("", "ai.onnx"):
            add = _add_attention
        elif node.op_type == "STFT" and node.domain in ("", "ai.onnx"):
            add = _add_stft
        try:
            add(node, draft)
        # faults that the operator's own shape rule does not find
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as fault:
            raise WorkloadError(
                f"{where}: {title(node)}: its attributes and shapes do not fit: {reason(fault)}"
            ) from None


def _typed(einsums: Sequence[Einsum], types: Mapping[str, int]) -> tuple[Einsum, ...]:
    """Returns einsums with every tensor in the bits of its type. T_again, a second access of T, has T's."""

    def sized(p: Projection) -> Projection:
        return replace(p, bits=BITS.get(types.get(p.tensor, types.get(AGAIN.sub("", p.tensor), 0))))

    return tuple(e.map_projections(sized) for e in einsums)


def _in_words(workload: Workload) -> Workload:
    """Returns the workload without bits if all its products are of 32-bit or 64-bit floats: no width was
    chosen then, so tensors have the machine's word.
    """
    if {p.bits for e in workload.einsums if e.kind == "mac" for p in e.tensors()} - {None, 32, 64}:
        return workload
    einsums = (e.map_projections(lambda p: replace(p, bits=None)) for e in workload.einsums)
    return replace(workload, einsums=tuple(einsums))


def _widths_of_types(workload: Workload, types: Mapping[str, int]) -> tuple[tuple[str, int | None], ...]:
    """Returns (element type of tensors, as numpy calls it, bits that they count), floats first."""
    named = {"FLOAT": "float32", "DOUBLE": "float64"}
    widths = {
        (named.get(name, name.lower()), p.bits)
        for e in workload.einsums
        for p in e.tensors()
        if (known := types.get(p.tensor, 0)) and (name := TensorProto.DataType.Name(known))
    }
    return tuple(sorted(widths, key=lambda one: ("float" not in one[0], one[0], one[1] or 0)))


def _faults(where: str, nodes: Sequence[NodeProto], facts: Facts, results: Collection[str]) -> Iterator[str]:
    read = {*results, *(i for node in nodes for i in reads(node))}
    for node in nodes:
        for tensor in (*reads(node), *(o for o in node.output if o in read)):
            yield from _shape_fault(where, node, tensor, facts, results)
    for node in nodes:
        if node.op_type in FREE and (fault := _elements_fault(where, node, facts)):
            yield fault


def _shape_fault(
    where: str, node: NodeProto, tensor: str, facts: Facts, results: Collection[str]
) -> Iterator[str]:
    shape = facts.shape(tensor)
    is_standard = onnx.defs.has(node.op_type, "" if node.domain == "ai.onnx" else node.domain)
    if shape is None and is_standard:
        # report only the first unknown shape, not those that follow from it
        if tensor in node.output and all(facts.shape(i) is not None for i in reads(node)):
            yield f"{where}: {title(node)}: the shape of {tensor} is not known: " + (
                facts.refusals.get(tensor)
                or value_advice(where, deciding_input(node, facts))
                or "it depends on data; give fixed shapes"
            )
    elif shape is None:
        yield (
            f"{where}: {title(node)} is an unknown operator: declare the shape of {tensor} in the "
            "model's value_info"
        )
    elif 0 in shape and (tensor in results or not _is_unused_empty(node, tensor, facts)):
        yield (
            f"{where}: {title(node)}: tensor {tensor} of shape {list(shape)} is empty; bind sizes of at "
            "least 1"
        )


def _elements_fault(where: str, node: NodeProto, facts: Facts) -> str:
    """Returns the fault of an operator that moves no data and whose result has another number of elements
    than its input, which ONNX's rule for Reshape does not notice; "": none.
    """
    shape, result = facts.shape(node.input[0]), facts.shape(node.output[0])
    if shape is None or result is None or prod(shape) == prod(result):
        return ""
    source_text = f"{node.input[0]} {list(shape)} has {prod(shape)} elements"
    result_text = f"{node.output[0]} {list(result)} {prod(result)}"
    return f"{where}: {title(node)}: {source_text}, {result_text}; export the file again"


def _is_unused_empty(node: NodeProto, tensor: str, facts: Facts) -> bool:
    """True for an empty tensor without effect: an optional input given as empty (the roi of Resize), an empty
    piece of a Concat, Slice or Split, and what is made of empty tensors. In a product or recurrent layer an
    empty tensor is a fault: some size is too small.
    """
    if node.op_type in PRODUCTS or node.op_type in RECURRENT:
        return False
    if all(_is_empty(o, facts) for o in node.output if o):
        return node.op_type in ("Slice", "Split") or any(_is_empty(i, facts) for i in reads(node))
    if tensor in node.output:
        return node.op_type == "Split"
    optional = node.op_type in ("Resize", "Upsample") and tensor in facts.constants
    return optional or node.op_type == "Concat"


def _is_empty(tensor: str, facts: Facts) -> bool:
    return 0 in (facts.shape(tensor) or ())


def _is_view(node: NodeProto, facts: Facts) -> bool:
    """True if a node moves no data: its result is its operand's tensor."""
    is_single = node.op_type == "Concat" and sum(not _is_empty(i, facts) for i in node.input) == 1
    if is_single or node.op_type in FREE | {"DequantizeLinear"} or node.domain == LINKS:
        return True
    shape, result = facts.shape(next(i for i in reads(node) if i)), facts.shape(node.output[0])
    if node.op_type == "Transpose" and shape is not None:
        axes = [a for a in attributes(node).get("perm", range(len(shape))[::-1]) if shape[a] > 1]
        return axes == sorted(axes)
    return node.op_type in VIEW_IF_SAME_SHAPE and shape == result


def _add_einsums(node: NodeProto, draft: Draft) -> None:
    """Adds one einsum per output that is read, and one more for a bias that is not constant."""
    facts, attrs, positions = draft.facts, attributes(node), OPERANDS.get(node.op_type)
    inputs = (
        [node.input[i] for i in positions]
        if positions
        else [i for i in reads(node) if 0 not in (facts.shape(i) or ())]
    )
    has_bias = node.op_type in ("Conv", "Gemm", "ConvTranspose") and len(node.input) > 2
    bias = node.input[2] if has_bias and node.input[2] not in facts.constants else ""
    constants = {i for i in inputs if i in facts.constants}
    split_offset = 0
    for result in node.output:
        shape = facts.shape(result)
        if result in draft.read_tensors and shape is not None:
            names, values = tuple(map(draft.name_with_type, inputs)), tuple(map(facts.values.get, inputs))
            op = Op(
                node.op_type,
                names,
                draft.shapes(inputs),
                draft.name_with_type(result),
                shape,
                attrs,
                values,
                split_offset,
            )
            name = node.name if node.name and result == node.output[0] else result
            name = name if node.op_type.lower() in name.lower() else f"{node.op_type}_{name}"
            _add(op, name, draft, bias, constants)
        split_offset += shape[attrs.get("axis", 0)] if shape and node.op_type == "Split" else 0


def _add_attention(node: NodeProto, draft: Draft) -> None:
    """Adds two products and a softmax between them; before them the past with the new rows appended. A mask
    is an operand of the softmax unless it is constant.

    Without a past, the outputs of keys and values equal the inputs; they are copied if an operator reads
    these outputs.
    """
    slots, results = [*node.input, *[""] * 6][:6], [*node.output, *[""] * 4][:4]
    slots[3] = "" if slots[3] in draft.facts.constants else slots[3]
    names = tuple(draft.name_with_type(t) if t else "" for t in slots)
    label, attrs = draft.fresh_name(node.name or results[0]), attributes(node)
    present_k, present_v = (
        draft.name(r) if r else draft.fresh_name(f"{label}_{x}")
        for r, x in zip(results[1:3], "KV", strict=True)
    )
    (shape,) = draft.shapes(results[:1])
    op = Op("Attention", names, draft.shapes(slots), draft.name(results[0]), shape, attrs)
    scores = draft.name(results[3]) if results[3] else draft.fresh_name(f"{label}_scores")
    for e in attention(op, scores, (present_k, present_v)):
        draft.einsums.append(replace(squeezed(e), name=draft.fresh_name(f"{label}_{e.kind}")))
        draft.types[e.output.tensor] = draft.facts.stored_type(results[0])
        if e.kind == "copy":
            draft.moved.append(f"Attention {draft.einsums[-1].name}")
    for source, result in zip(slots[1:3], results[1:3], strict=True):
        if result in draft.read_tensors and not slots[4]:
            shape, result_shape = draft.shapes((source, result))
            perm = (0, 1, 2, 3)
            if len(shape) == 3:
                heads = attrs["kv_num_heads"]
                shape, perm = (*shape[:2], heads, shape[2] // heads), (0, 2, 1, 3)
            move = Op(
                "Transpose", (draft.name(source),), (shape,), draft.name(result), result_shape, {"perm": perm}
            )
            _add(move, f"{label}_{result}", draft)


def _add_stft(node: NodeProto, draft: Draft) -> None:
    """Adds the frames of a short-time Fourier transform, and their transforms."""
    slots, (result, *_) = [*node.input, *[""] * 4][:4], node.output
    names = tuple(draft.name_with_type(t) if t else "" for t in slots)
    values = tuple(draft.facts.values.get(t) for t in slots)
    (shape,) = draft.shapes((result,))
    label = draft.fresh_name(node.name or result)
    op = Op("STFT", names, draft.shapes(slots), draft.name_with_type(result), shape, {}, values)
    for e in stft(op, draft.fresh_name(f"{label}_frames")):
        name = draft.fresh_name(f"{label}_{'dft' if e.kind == 'dft' else 'frames'}")
        draft.einsums.append(replace(squeezed(e), name=name))
        draft.types[e.output.tensor] = draft.facts.stored_type(result)
        draft.moved += [f"STFT {name}"] * (e.kind == "copy")


def _add_recurrent(node: NodeProto, draft: Draft) -> None:
    """Adds a recurrent layer: the product of all inputs, and the einsums that are repeated every step. Its
    final states are rows of the tensor that the steps write.
    """
    slots, results = [*node.input, *[""] * 7][:7], [o for o in node.output if o in draft.read_tensors]
    operand_labels = {0: "", 1: "", 2: "", 5: "first"} | ({6: "cell"} if node.op_type == "LSTM" else {})
    label, attrs = draft.fresh_name(node.name or results[0]), attributes(node)
    names = [
        draft.name_with_type(slots[i]) if slots[i] else draft.fresh_name(f"{label}_{x}")
        for i, x in operand_labels.items()
    ]
    out = draft.fresh_name(f"{label}_states")
    x, w, r = draft.shapes(slots[:3])
    steps, batch = x[:2][::-1] if attrs.get("layout") else x[:2]
    state = draft.facts.shape(slots[5])
    if state is not None and batch not in state[:-1]:
        raise ValueError(f"its first state {list(state)} is of another batch than its input {list(x)}")
    op = Op(node.op_type, (*names, *[""] * 5)[:5], (x, w, r), out, attrs=attrs)
    for e in recurrent(op, RECURRENT[node.op_type]):
        is_input_product = e.output.tensor == f"{out}_x"
        part = e.kind if e.kind != "mac" else "inputs" if is_input_product else "step"
        name = draft.fresh_name(f"{label}_{part}")
        draft.einsums.append(replace(squeezed(e), name=name))
        draft.types[e.output.tensor] = draft.facts.stored_type(slots[0])
        draft.repeats[name] = 1 if is_input_product else steps
    draft.names.update(dict.fromkeys(results, out))


def _add(op: Op, name: str, draft: Draft, bias: str = "", constants: Collection[str] = ()) -> None:
    """Adds the einsum of an operator, and one that adds the bias if there is one."""
    make = OPERATORS.get(op.kind)
    op = _distinct(op, make, {draft.names[i] for i in constants}, draft)
    translated = make(op) if make else None
    e = replace(squeezed(translated or movement(op)), name=draft.fresh_name(name))
    if e.kind == "copy":
        is_known = translated is not None or op.kind in MOVES | NO_PRODUCT
        draft.moved.append(f"{op.kind} {e.name}{'' if is_known else ' (unknown operator)'}")
        draft.unknown += [] if is_known else [e.name]
    if bias:
        partial = draft.fresh_name(f"{op.output}_unbiased")
        draft.einsums.append(replace(e, output=replace(e.output, tensor=partial)))
        draft.types[partial] = draft.types.get(op.output, 0)
        total = Op("Add", (partial, draft.name(bias)), (op.out_shape, op.shapes[2]), op.output, op.out_shape)
        summed = (elementwise if op.kind == "Gemm" else by_channel)(total)
        e = replace(squeezed(summed), name=draft.fresh_name(f"{name}_bias"))
    draft.einsums.append(e)


def _distinct(op: Op, make: Callable[[Op], Einsum | None] | None, constants: set[str], draft: Draft) -> Op:
    """Returns the operator with a new name (T_again) for a second access of a tensor T. Element-wise
    operators and data movements lose operands that cost nothing: constants of one element, parameters of a
    data movement, a second access to the same elements.
    """
    keeps_all = make not in (None, elementwise, rowwise, by_channel)
    positions: list[int] = []
    names: list[str] = []
    for i, (tensor, shape) in enumerate(zip(op.inputs, op.shapes, strict=True)):
        is_free = tensor in constants and (prod(shape) == 1 or (op.kind in MOVES and i > 0))
        is_repeated = any(op.inputs[k] == tensor and op.shapes[k] == shape for k in positions)
        if keeps_all or not (is_free or is_repeated):
            positions.append(i)
            names.append(draft.fresh_name(f"{tensor}_again") if tensor in names else tensor)
    return replace(
        op,
        inputs=tuple(names),
        shapes=tuple(op.shapes[i] for i in positions),
        values=tuple(value for i, value in enumerate(op.values) if i in positions),
    )


def _is_table(node: NodeProto, tensor: str, softmax_inputs: set[str], facts: Facts) -> bool:
    """True for masks and tables of angles, constants of two or more dimensions (sizes of 1 not counted).
    Masks are added before a Softmax, angles scale every element of a tensor.
    """
    is_matrix = sum(size > 1 for size in facts.shape(tensor) or ()) > 1
    scales_all = all(
        facts.shape(i) == facts.shape(node.output[0]) for i in node.input if i not in facts.constants
    )
    return is_matrix and (
        (node.op_type in ("Add", "Sub", "Where", "Mul") and node.output[0] in softmax_inputs)
        or (node.op_type == "Mul" and scales_all)
    )


def _parameters(nodes: Sequence[NodeProto], facts: Facts) -> int:
    """Returns how many trained numbers there are: constants that operators compute with, except running
    statistics, masks, angles, scalars and indices.
    """
    found: dict[str, int] = {}
    softmax_inputs = {i for n in nodes if n.op_type == "Softmax" for i in n.input}
    for node in nodes:
        operands = OPERANDS.get(node.op_type, range(len(node.input)))
        is_product = node.op_type in PRODUCTS or node.op_type in RECURRENT
        for position, tensor in enumerate(node.input):
            if (
                tensor not in facts.constants
                or position in UNTRAINED.get(node.op_type, ())
                or _is_table(node, tensor, softmax_inputs, facts)
            ):
                continue
            base = facts.view_of.get(tensor, tensor)
            size = prod(facts.shape(base) or ())
            if size > 1 and (facts.is_float(tensor) or (is_product and position in operands)):
                found[base] = size
    return sum(found.values())
