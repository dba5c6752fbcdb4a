"""Inlines graphs inside of ONNX operators: the branch of an If that is taken, the body of a Loop or Scan with
a known number of trips.

A body is inlined once and repeated. The link `Step` provides what each trip reads (its slice of a scan input,
or a state), the link `Stacked` collects what the trips return. Both are of the domain LINKS and move no data:
an einsum of the body reads its operand in each trip, and writes its share of a result in each trip.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import GraphProto, NodeProto, TensorProto, helper
from onnx.reference import ReferenceEvaluator

from workloads.operators import Shape

LINKS = "dse.loop"
MAX_TRIPS = 10_000  # trips of a Loop whose condition is computed trip by trip


@dataclass(frozen=True, slots=True)
class Body:
    """A body with its links."""

    nodes: tuple[NodeProto, ...]
    constants: tuple[TensorProto, ...]  # of the body, renamed
    trips: int  # how often the body runs
    states: tuple[tuple[str, str], ...]  # (state at the start of a trip, state at its end)
    counter: str = ""  # of a Loop: the tensor with the number of the trip; "": none


def attributes(node: NodeProto) -> dict[str, Any]:
    """Returns a node's attributes by name, as Python values."""
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


def own_tensors(graph: GraphProto) -> set[str]:
    """Returns the names that a graph itself defines: its inputs, constants and results of its nodes."""
    given = {i.name for i in (*graph.input, *graph.initializer)}
    return given.union(o for n in graph.node for o in n.output if o)


def inline_graph(
    graph: GraphProto, prefix: str
) -> tuple[list[NodeProto], list[TensorProto], Callable[[str], str]]:
    """Returns nodes and constants of a graph, and the function that gives a tensor's new name. New names
    begin with the prefix.
    """
    new_names = {name: f"{prefix}/{name}" for name in own_tensors(graph)}
    constants = [deepcopy(t) for t in graph.initializer]
    for t in constants:
        t.name = new_names[t.name]
    return [_renamed(n, new_names) for n in graph.node], constants, lambda name: new_names.get(name, name)


def _renamed(node: NodeProto, names: Mapping[str, str]) -> NodeProto:
    """Returns a node that reads and makes tensors under their new names, also in its inner graphs."""
    found = deepcopy(node)
    for tensors in (found.input, found.output):
        tensors[:] = [names.get(t, t) for t in tensors]
    for attribute in found.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            graph = attribute.g
            inner = own_tensors(graph)
            outer = {a: b for a, b in names.items() if a not in inner}
            nodes = [_renamed(n, outer) for n in graph.node]
            del graph.node[:]
            graph.node.extend(nodes)
            for output in graph.output:
                output.name = outer.get(output.name, output.name)
    return found


def branch(node: NodeProto, condition: bool) -> tuple[list[NodeProto], list[TensorProto]]:
    """Returns nodes and constants of the branch that is taken, tensors named after the If, and a node per
    result that passes it on.
    """
    graph = _graph(node, "then_branch" if condition else "else_branch")
    nodes, constants, new_name = inline_graph(graph, node.output[0])
    result_nodes = [
        helper.make_node("Identity", [new_name(o.name)], [r])
        for o, r in zip(graph.output, node.output, strict=False)
    ]
    return [*nodes, *result_nodes], constants


def body(
    node: NodeProto, shapes: Mapping[str, Shape | None], values: Mapping[str, Any], opsets: Mapping[str, int]
) -> Body | None:
    """Returns the inlined body of a Loop or Scan; None: its number of trips is unknown, as it ends on a
    condition that depends on data.

    shapes, values: of tensors outside, as far as known
    opsets: domain -> version of its operator set
    """
    return _scan(node, shapes) if node.op_type == "Scan" else _loop(node, values, opsets)


def _scan(node: NodeProto, shapes: Mapping[str, Shape | None]) -> Body | None:
    attrs, graph = attributes(node), _graph(node, "body")
    scan_input_count = attrs["num_scan_inputs"]
    state_count = len(node.input) - scan_input_count
    axes = attrs.get("scan_input_axes") or [0] * scan_input_count
    lengths = {
        _length(shapes.get(name), axis) for name, axis in zip(node.input[state_count:], axes, strict=True)
    }
    if len(graph.input) != len(node.input) or len(lengths) != 1 or not (trips := lengths.pop()):
        return None
    nodes, constants, new_name = inline_graph(graph, _label(node))
    step_links = [
        _link("Step", [name], new_name(i.name), axis, 1)
        for name, i, axis in zip(node.input, graph.input, [*[None] * state_count, *axes], strict=True)
    ]
    results = [new_name(o.name) for o in graph.output]
    output_axes = attrs.get("scan_output_axes") or [0] * (len(results) - state_count)
    result_links = _result_links(results, node.output, state_count, trips, output_axes)
    loop_states = tuple(
        (new_name(i.name), result)
        for i, result in zip(graph.input[:state_count], results[:state_count], strict=True)
    )
    return Body((*step_links, *nodes, *result_links), tuple(constants), trips, loop_states)


def _loop(node: NodeProto, values: Mapping[str, Any], opsets: Mapping[str, int]) -> Body | None:
    graph = _graph(node, "body")
    trips, state_count = _trips(node, graph, values, opsets), len(node.input) - 2
    if not trips:
        return None
    nodes, constants, new_name = inline_graph(graph, _label(node))
    counter, condition, *start_states = (new_name(i.name) for i in graph.input)
    step_links = [
        _link("Step", [name], i, None, 1) for name, i in zip(node.input[2:], start_states, strict=True)
    ]
    results = [new_name(o.name) for o in graph.output[1:]]
    result_links = _result_links(results, node.output, state_count, trips, [0] * (len(results) - state_count))
    always = helper.make_tensor(condition, TensorProto.BOOL, (), [True])
    loop_states = tuple(zip(start_states, results[:state_count], strict=True))
    return Body((*step_links, *nodes, *result_links), (*constants, always), trips, loop_states, counter)


def _trips(
    node: NodeProto, graph: GraphProto, values: Mapping[str, Any], opsets: Mapping[str, int]
) -> int | None:
    """Returns how often a Loop runs; None: it depends on data. Loops may end after a number of trips, on a
    condition, or on what comes first.
    """
    limit_input, condition_input = [*node.input, ""][:2]
    if (limit_input and limit_input not in values) or (condition_input and condition_input not in values):
        return None
    if condition_input and not bool(values[condition_input]):
        return 0
    limit = int(values[limit_input]) if limit_input else None
    if _never_ends_early(graph):
        return limit
    return _trips_of_condition(node, graph, values, opsets, limit)


def _trips_of_condition(
    node: NodeProto,
    graph: GraphProto,
    values: Mapping[str, Any],
    opsets: Mapping[str, int],
    limit: int | None,
) -> int | None:
    """Returns after how many trips the condition ends a Loop, by running the part of its body that makes it
    (`while i < n: i += 1`); None: that part reads data, or it takes more than MAX_TRIPS trips.
    """
    counter, _, *states = (i.name for i in graph.input)
    condition, *results = (o.name for o in graph.output)
    after = dict(zip(states, results, strict=False))
    needed, own = _sources(graph, condition, after), own_tensors(graph)
    starts = {s: start for s, start in zip(states, node.input[2:], strict=True) if s in needed}
    outer = needed - own
    has_graph = any(a.type == onnx.AttributeProto.GRAPH for n in _made(graph, needed) for a in n.attribute)
    if has_graph or not outer.union(starts.values()) <= set(values):
        return None
    known = {name: values[name] for name in outer}
    part = _part_of(graph, needed, [counter, *starts, *known], [condition, *(after[s] for s in starts)])
    evaluator = ReferenceEvaluator(part, opsets=dict(opsets))
    state = {s: values[start] for s, start in starts.items()}
    for trip in range(MAX_TRIPS if limit is None else min(limit, MAX_TRIPS)):
        goes_on, *found = evaluator.run(None, {counter: np.array(trip), **state, **known})
        state = dict(zip(starts, found, strict=True))
        if not goes_on:
            return trip + 1
    return limit if limit is not None and limit <= MAX_TRIPS else None


def _sources(graph: GraphProto, result: str, after: Mapping[str, str]) -> set[str]:
    """Returns the tensors from which a body makes a result, over all trips. after: state -> the result that
    is its value in the next trip.
    """
    makers = {o: n for n in graph.node for o in n.output if o}
    found: set[str] = set()
    queue = [result]
    while queue:
        tensor = queue.pop()
        if tensor in found:
            continue
        found.add(tensor)
        queue += [after[tensor]] if tensor in after else []
        queue += filter(None, makers[tensor].input) if tensor in makers else []
    return found


def _made(graph: GraphProto, tensors: Collection[str]) -> list[NodeProto]:
    """Returns the nodes that make some of these tensors."""
    return [n for n in graph.node if any(o in tensors for o in n.output)]


def _part_of(
    graph: GraphProto, needed: Collection[str], inputs: Sequence[str], results: Sequence[str]
) -> GraphProto:
    """Returns the graph of the nodes and constants that make these tensors."""
    return helper.make_graph(
        _made(graph, needed),
        "part",
        [helper.make_empty_tensor_value_info(i) for i in inputs],
        [helper.make_empty_tensor_value_info(o) for o in results],
        [t for t in graph.initializer if t.name in needed],
    )


def _never_ends_early(graph: GraphProto) -> bool:
    """True if a body never ends the loop: its condition is the one passed in, or a true constant."""
    name = graph.output[0].name
    makers = {o: n for n in graph.node for o in n.output}
    while name in makers and makers[name].op_type == "Identity":
        name = makers[name].input[0]
    if name == graph.input[1].name:
        return True
    constants = [t for t in graph.initializer if t.name == name]
    if name in makers and makers[name].op_type == "Constant":
        constants = [a.t for a in makers[name].attribute if a.name == "value"]
    return bool(constants) and bool(onnx.numpy_helper.to_array(constants[0]).all())


def _result_links(
    body_results: Sequence[str],
    results: Sequence[str],
    state_count: int,
    trips: int,
    output_axes: Sequence[int],
) -> list[NodeProto]:
    """Returns links to the results. Each link also reads the states that a trip leaves: the next trip needs
    them, so the nodes that make them must not count as unread.
    """
    result_axes = [None] * state_count + list(output_axes)
    return [
        _link("Stacked", [name, *body_results[:state_count]], result, axis, trips)
        for name, result, axis in zip(body_results, results, result_axes, strict=False)
        if result
    ]


def _link(kind: str, inputs: Sequence[str], result: str, axis: int | None, trips: int) -> NodeProto:
    attrs: dict[str, Any] = {} if axis is None else {"axis": axis, "trips": trips}
    return helper.make_node(kind, list(inputs), [result], name=result, domain=LINKS, **attrs)


def shape_after_link(node: NodeProto, shape: Shape) -> Shape:
    """Returns the shape after a link: `Step` removes the axis of the trips, `Stacked` adds it."""
    attrs = attributes(node)
    if "axis" not in attrs:
        return shape
    if node.op_type == "Step":
        axis = attrs["axis"] % len(shape)
        return (*shape[:axis], *shape[axis + 1 :])
    axis = attrs["axis"] % (len(shape) + 1)
    return (*shape[:axis], attrs["trips"], *shape[axis:])


def _length(shape: Shape | None, axis: int) -> int:
    return shape[axis] if shape and -len(shape) <= axis < len(shape) else 0


def _graph(node: NodeProto, name: str) -> GraphProto:
    graph: GraphProto = next(a.g for a in node.attribute if a.name == name)
    return graph


def _label(node: NodeProto) -> str:
    return node.name or next(o for o in node.output if o)
