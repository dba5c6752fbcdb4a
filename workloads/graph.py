"""Workloads: a DAG of einsums, joined by the names of their tensors."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from workloads.einsum import Einsum, Projection, WorkloadError, canonical_key, show

if TYPE_CHECKING:
    import networkx as nx

AGAIN = re.compile(r"_again(_[0-9]+)?$")


@dataclass(frozen=True, slots=True)
class Workload:
    """A network or solver: einsums in an order in which each tensor is made before it is read.

    A reader may see a tensor in another shape than its maker wrote it (ONNX Reshape): the same elements in row-major order.
    T_again (T_again_1, ...) is a further access of the tensor T.
    An einsum that repeats may write its share of a tensor each time (the steps of a recurrent layer).
    weights: tensors that are there before the run (parameters). repeats[i]: how often einsum i runs in a row.
    parameters: trained numbers of the network, also those folded into other einsums.
    folded, moved: what rides on a producer's output for free, and operators that are counted as data movement, by name.
    unknown: einsums of operators that nobody knows and that could be products: counted as data movement.
    carried: of a loop, (result, the name by which a further step reads it): what the einsums hand on, and what they begin with.
    """

    name: str
    einsums: tuple[Einsum, ...]
    weights: frozenset[str] = frozenset()
    repeats: tuple[int, ...] = ()
    parameters: int = 0
    folded: tuple[str, ...] = ()
    moved: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    carried: tuple[tuple[str, str], ...] = ()

    def macs(self) -> int:
        return sum(e.macs() * n for e, n in zip(self.einsums, counts(self), strict=True))


@dataclass(frozen=True, slots=True)
class Unique:
    """Equal einsums, solved once: the first of them, all their names, how often they run."""

    key: str
    einsum: Einsum
    names: tuple[str, ...]
    count: int


def counts(workload: Workload) -> tuple[int, ...]:
    return workload.repeats or (1,) * len(workload.einsums)


def unique(workload: Workload) -> list[Unique]:
    """Equal einsums gathered, in order of first appearance."""
    groups: dict[str, list[tuple[Einsum, int]]] = {}
    for e, n in zip(workload.einsums, counts(workload), strict=True):
        groups.setdefault(canonical_key(e), []).append((e, n))
    return [Unique(key, group[0][0], tuple(e.name for e, _ in group), sum(n for _, n in group)) for key, group in groups.items()]


def owner(tensor: str, made: Collection[str]) -> str:
    """The tensor that an access is of: T for T_again, unless a tensor of that name is made itself."""
    first = tensor if tensor in made else AGAIN.sub("", tensor)
    return first if first in made else tensor


def accessed(tensor: str, names: Collection[str], made: Collection[str]) -> str:
    """`owner` where names are of all tensors that are there: also of one from outside T for T_again, unless T_again is made itself.

    >>> accessed("A_again_1", {"A", "A_again_1"}, ()), accessed("A_again", {"A_again", "B"}, ())
    ('A', 'A_again')
    """
    first = tensor if tensor in made else AGAIN.sub("", tensor)
    return first if first in names else tensor


def dag(einsums: Sequence[Einsum]) -> nx.DiGraph[str]:
    """Einsum names as nodes; an edge carries the tensor that its head reads."""
    import networkx as nx  # here: it takes a tenth of a second, and most workloads stand in order

    graph: nx.DiGraph[str] = nx.DiGraph()
    makers = {e.output.tensor: e.name for e in einsums}
    for e in einsums:
        graph.add_node(e.name)
        for tensor in (owner(p.tensor, makers) for p in e.inputs):
            if tensor in makers:
                graph.add_edge(makers[tensor], e.name, tensor=tensor)
    return graph


def in_order(name: str, einsums: Sequence[Einsum]) -> tuple[Einsum, ...]:
    """Einsums sorted so that producers come first, stable otherwise.

    Raises WorkloadError naming the fault: a tensor made twice, a name used twice, a cycle.
    """
    by_name = {e.name: e for e in einsums}
    faults = []
    made: dict[str, str] = {}
    names: set[str] = set()
    for e in einsums:
        if e.output.tensor in made:
            faults.append(f"{name}: tensor {e.output.tensor} is made by {made[e.output.tensor]} and by {e.name}; make each tensor once")
        elif e.name in names:
            faults.append(f"{name}: two einsums are named {e.name}; give each its own name")
        names.add(e.name)
        made.setdefault(e.output.tensor, e.name)
    if faults:
        raise WorkloadError("\n".join(faults))
    seen: set[str] = set()
    for e in einsums:
        if any(tensor in made and tensor not in seen for tensor in (owner(p.tensor, made) for p in e.inputs)):
            break
        seen.add(e.output.tensor)
    else:
        return tuple(einsums)
    import networkx as nx

    graph = dag(einsums)
    rank = {e.name: i for i, e in enumerate(einsums)}
    try:
        return tuple(by_name[n] for n in nx.lexicographical_topological_sort(graph, key=rank.__getitem__))
    except nx.NetworkXUnfeasible:
        cycle = " -> ".join(edge[0] for edge in nx.find_cycle(graph))
        raise WorkloadError(f"{name}: einsums form a cycle: {cycle}; a tensor must be made before it is read") from None


# One-to-one functions that cost nothing where they are applied to an output before it is stored
ON_PRODUCTS = {"bias", "batchnormalization"}
POINTWISE = ON_PRODUCTS | {"relu", "relu6", "hardswish", "gelu", "silu", "sigmoid", "tanh", "softplus", "rsqrt", "dropout"}


def ride(workload: Workload, elementwise: bool = True) -> Workload:
    """One-to-one functions ride on their producer, as in an imported ONNX graph, and are listed in `folded`.

    A function rides if one operand varies, of the output's shape, and nothing else reads that operand: its other operands cost no
    traffic then. Biases and normalisations always ride on products (kind mac); elementwise: the others ride too.
    """
    makers = {e.output.tensor: e for e in workload.einsums}
    readers = Counter(owner(p.tensor, makers) for e in workload.einsums for p in e.inputs)
    carrier: dict[str, str] = {}
    kept, repeats, folded = [], [], []
    for e, n in zip(workload.einsums, counts(workload), strict=True):
        x = e.inputs[0]
        onto = makers.get(carrier.get(x.tensor, x.tensor))
        allowed = onto is not None and (e.kind in POINTWISE if elementwise else e.kind in ON_PRODUCTS and onto.kind == "mac")
        if onto is not None and allowed and readers[x.tensor] == 1 and x.dims == e.output.dims and all(p.tensor in workload.weights for p in e.inputs[1:]):
            carrier[e.output.tensor] = onto.output.tensor
            folded.append(f"{e.kind} {e.name} -> {onto.name}")
        else:
            firsts = [owner(p.tensor, makers) for p in e.inputs]
            inputs = (replace(p, tensor=carrier.get(t, t) + p.tensor.removeprefix(t)) for p, t in zip(e.inputs, firsts, strict=True))
            kept.append(replace(e, inputs=tuple(inputs)) if carrier.keys() & set(firsts) else e)
            repeats.append(n)
    weights = workload.weights & {p.tensor for e in kept for p in e.inputs}
    return replace(workload, einsums=tuple(kept), repeats=tuple(repeats) if workload.repeats else (), weights=weights,
                   folded=(*workload.folded, *folded))


class Layer(NamedTuple):
    """One row of a layer table: equal einsums, in words of the machine's word. All numbers are of all of them together."""

    einsum: str
    times: int
    kind: str
    extents: str
    macs: int
    weights: int
    inputs: int
    outputs: int
    text: str


def layer_table(workload: Workload) -> list[Layer]:
    """Rows of `dse check`: equal einsums once, in order of first appearance; weights, inputs, outputs are words as stored."""
    rows = []
    for u in unique(workload):
        e, stored = u.einsum, [(p.tensor in workload.weights, p.stored_words()) for p in u.einsum.inputs]
        weights, inputs = (u.count * sum(n for is_weight, n in stored if is_weight is wanted) for wanted in (True, False))
        extents = " ".join(f"{rank}={n}" for rank, n in e.extents)
        rows.append(Layer(e.name, u.count, e.kind, extents, u.count * e.macs(), weights, inputs, u.count * e.output.stored_elems(), show(e)))
    return rows


def warning(workload: Workload) -> str:
    """One line on the operators that could be products and are counted as data movement; empty if there are none."""
    if not workload.unknown:
        return ""
    wrote = sum(n * e.output.stored_elems() for e, n in zip(workload.einsums, counts(workload), strict=True) if e.name in workload.unknown)
    listed = ", ".join(workload.unknown[:5]) + (f" and {len(workload.unknown) - 5} more" if len(workload.unknown) > 5 else "")
    return (f"{workload.name}: {len(workload.unknown)} unknown operators count as data movement, their products, if they have any, as nothing: {listed}; "
            f"they write {100 * wrote / max(activations(workload), 1):.3g} % of all elements")


def with_bits(workload: Workload, bits: Mapping[str, int]) -> Workload:
    """Tensors in other widths: "weights", "activations" (all that are no weights), or a tensor by name, which goes before them.

    Raises WorkloadError for a name that no tensor has.
    """
    names = {p.tensor for e in workload.einsums for p in e.tensors()}
    if wrong := [key for key in bits if key not in ("weights", "activations") and key not in names]:
        near = difflib.get_close_matches(wrong[0], names, 1)
        hint = f"do you mean {near[0]}?" if near else "use weights or activations"
        raise WorkloadError(f"{workload.name}: bits names {wrong[0]}, which is no tensor; {hint}")

    def sized(p: Projection) -> Projection:
        own = AGAIN.sub("", p.tensor)
        width = bits.get(p.tensor, bits.get(own, bits.get("weights" if {p.tensor, own} & workload.weights else "activations")))
        return p if width is None else replace(p, bits=width)

    einsums = (replace(e, output=sized(e.output), inputs=tuple(map(sized, e.inputs))) for e in workload.einsums)
    return replace(workload, einsums=tuple(einsums))


def activations(workload: Workload) -> int:
    """Elements that the einsums write: what a run without any reuse stores once."""
    return sum(n * e.output.stored_elems() for e, n in zip(workload.einsums, counts(workload), strict=True))
