"""Workloads: a DAG of einsums, connected by the names of their tensors."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from workloads.einsum import Einsum, Projection, WorkloadError, canonical_key, closest, nonzeros, refuse, show
from workloads.meant import STRUCTURED
from workloads.operators import BINARY, UNARY, names_in

if TYPE_CHECKING:
    import networkx as nx

# end of the name of a further access of a tensor by one einsum
AGAIN = re.compile(r"_again(_[0-9]+)?$")


@dataclass(frozen=True, slots=True)
class Workload:
    """A network or solver.

    A tensor's reader may see it in another shape than its producer wrote (ONNX Reshape): the same elements in
    row-major order. T_again (T_again_1, ...) is a further access of the tensor T by the same einsum. A
    repeated einsum may write another part of its output each time (the steps of a recurrent layer).
    """

    name: str
    einsums: tuple[Einsum, ...]  # in an order in which each tensor is made before it is read
    weights: frozenset[str] = frozenset()  # tensors that exist before the run (parameters)
    repeats: tuple[int, ...] = ()  # [i]: how often einsum i runs in a row; (): once each
    parameters: int = 0  # trained numbers of the network, also those folded into other einsums
    fused: tuple[str, ...] = ()  # operators fused into their producers, at no cost, as text
    moved: tuple[str, ...] = ()  # names of operators that are counted as data movement
    # einsums of unknown operators that could be products; counted as data movement
    unknown: tuple[str, ...] = ()
    # of a loop: (result, name under which the next iteration reads it)
    loop_state: tuple[tuple[str, str], ...] = ()
    # (result of a function fused into its producer, name of the producer's tensor, which stores it)
    stored_as: tuple[tuple[str, str], ...] = ()
    warnings: tuple[str, ...] = ()  # what a user should know about the file, one line each
    # (type of elements that a file gives its tensors, bits that they count; None: the machine's word)
    types: tuple[tuple[str, int | None], ...] = ()

    def runs(self) -> Iterator[tuple[Einsum, int]]:
        """Yields each einsum and how often it runs in a row."""
        yield from zip(self.einsums, counts(self), strict=True)

    def macs(self) -> int:
        """Returns the MACs of all occurrences. Einsums without multiplications count 0."""
        return sum(e.macs() * n for e, n in self.runs())


@dataclass(frozen=True, slots=True)
class Unique:
    """Equal einsums, which are solved once."""

    key: str
    einsum: Einsum  # the first of them
    names: tuple[str, ...]  # of all of them
    occurrences: int  # how often they run in all


def counts(workload: Workload) -> tuple[int, ...]:
    """Returns the occurrences of each einsum, in order."""
    return workload.repeats or (1,) * len(workload.einsums)


def unique(workload: Workload) -> list[Unique]:
    """Returns the groups of equal einsums, in order of first appearance."""
    groups: dict[str, list[tuple[Einsum, int]]] = {}
    for e, n in workload.runs():
        groups.setdefault(canonical_key(e), []).append((e, n))
    return [
        Unique(key, group[0][0], tuple(e.name for e, _ in group), sum(n for _, n in group))
        for key, group in groups.items()
    ]


def base_tensor(tensor: str, makers: Collection[str]) -> str:
    """Returns the tensor that an access belongs to: T for T_again, unless an einsum makes a tensor named
    T_again.
    """
    base = tensor if tensor in makers else AGAIN.sub("", tensor)
    return base if base in makers else tensor


def base_of_any(tensor: str, names: Collection[str], makers: Collection[str]) -> str:
    """Returns the tensor that an access belongs to, like `base_tensor`, but resolves T_again also where no
    einsum makes T. names: of all tensors.

    >>> base_of_any("A_again_1", {"A", "A_again_1"}, ()), base_of_any("A_again", {"A_again", "B"}, ())
    ('A', 'A_again')
    """
    base = tensor if tensor in makers else AGAIN.sub("", tensor)
    return base if base in names else tensor


def dag(einsums: Sequence[Einsum]) -> nx.DiGraph[str]:
    """Returns the graph of einsum names. An edge's `tensor` is what its second einsum reads."""
    import networkx as nx  # imported here: that takes 0.1 s, and most workloads are in order as they are

    graph: nx.DiGraph[str] = nx.DiGraph()
    makers = {e.output.tensor: e.name for e in einsums}
    for e in einsums:
        graph.add_node(e.name)
        for tensor in (base_tensor(p.tensor, makers) for p in e.inputs):
            if tensor in makers:
                graph.add_edge(makers[tensor], e.name, tensor=tensor)
    return graph


def follows(einsums: Sequence[Einsum], later: Einsum, e: Einsum) -> bool:
    """True if `later` is e, or reads what follows from the result of e."""
    import networkx as nx

    return bool(nx.has_path(dag(einsums), e.name, later.name))


def in_order(name: str, einsums: Sequence[Einsum]) -> tuple[Einsum, ...]:
    """Returns einsums sorted so that producers come first, otherwise in the order given.

    Raises WorkloadError for a tensor that is made twice or stored in two ways, a name that is used twice, or
    a cycle.
    """
    faults = []
    makers: dict[str, str] = {}
    names: set[str] = set()
    for e in einsums:
        tensor = e.output.tensor
        if tensor in makers:
            faults.append(
                f"tensor {tensor} is made by {makers[tensor]} and by {e.name}; make each tensor once"
            )
        elif e.name in names:
            faults.append(f"two einsums are named {e.name}; give each its own name")
        names.add(e.name)
        makers.setdefault(tensor, e.name)
    refuse(f"{name}: {line}" for line in faults or contradictions(einsums))
    seen: set[str] = set()
    for e in einsums:
        if any(t in makers and t not in seen for t in (base_tensor(p.tensor, makers) for p in e.inputs)):
            break
        seen.add(e.output.tensor)
    else:
        return tuple(einsums)
    import networkx as nx

    graph = dag(einsums)
    position = {e.name: i for i, e in enumerate(einsums)}
    try:
        ordered = nx.lexicographical_topological_sort(graph, key=position.__getitem__)
        return tuple(einsums[position[n]] for n in ordered)
    except nx.NetworkXUnfeasible:
        cycle = " -> ".join(edge[0] for edge in nx.find_cycle(graph))
        raise WorkloadError(
            f"{name}: einsums form a cycle: {cycle}; a tensor must be made before it is read, and what the "
            "iteration before leaves has a name of its own (loop_state)"
        ) from None


def contradictions(einsums: Sequence[Einsum]) -> Iterator[str]:
    """Yields a line for each tensor that einsums access in another width or format than its first access,
    which is the one that makes it if any does.

    A tensor has one form in memory. The density of a csr tensor is part of that form. A dense tensor stores
    all elements, and each reader may state how many of them it expects to be nonzero.
    """
    outputs = {e.output.tensor for e in einsums}
    names = {p.tensor for e in einsums for p in e.tensors()}
    accesses = [(e, e.output) for e in einsums] + [(e, p) for e in einsums for p in e.inputs]
    first: dict[str, tuple[Einsum, Projection]] = {}
    for e, p in accesses:
        maker, stored = first.setdefault(base_of_any(p.tensor, names, outputs), (e, p))
        if key := differing_key(stored, p):
            yield (
                f"tensor {p.tensor} {setting(stored, key)} in {maker.name}, and {setting(p, key)} in "
                f"{e.name}; {_advice(stored, p, key)}"
            )


def differing_key(a: Projection, b: Projection) -> str:
    """Returns the key in which two accesses of a tensor differ; "" if they agree."""
    keys = (
        ("format", "bits")
        if "dense" in (a.format, b.format)
        else ("format", "bits", "density", "index_bits", "pointer_bits")
    )
    return next((key for key in keys if getattr(a, key) != getattr(b, key)), "")


def differing_format(a: Projection, b: Projection) -> bool:
    """True if two tensors are stored in different formats, or compressed with other nonzeros or widths."""
    keys = ("format", "density", "index_bits", "pointer_bits") if {a.format, b.format} != {"dense"} else ()
    return any(getattr(a, key) != getattr(b, key) for key in keys)


def setting(p: Projection, key: str) -> str:
    """Returns what an access says of a key, for messages."""
    value = getattr(p, key)
    return f"has {key} = {'the machine word' if value is None else value}"


def _advice(stored: Projection, p: Projection, key: str) -> str:
    """Returns what to write so that both accesses agree."""
    if key == "format":
        return "a tensor is stored in one format, dense if an einsum makes it; give both that one"
    if key == "bits" and None in (stored.bits, p.bits):
        return f"say bits: {{{(stored if p.bits else p).tensor}: {stored.bits or p.bits}}} in both"
    return f"give both the same {key}"


# One-to-one functions, by einsum kind, for all file formats: element i of the result depends on element i of
# one operand, and on weights.
FUSED_INTO_PRODUCTS = {"bias", "batchnormalization"}
ELEMENTWISE = (
    {name.lower() for name in UNARY | BINARY}
    | FUSED_INTO_PRODUCTS
    # the last two are x + x and x * x, or with a constant of one element
    | names_in("relu6 silu rsqrt square dropout add_self mul_self")
)


def fuse_into_producers(
    workload: Workload, elementwise: bool = True, results: Collection[str] = ()
) -> Workload:
    """Returns the workload with one-to-one functions fused into their producers (epilogues). They are listed
    in `fused`.

    An einsum is fused if its kind is in ELEMENTWISE, exactly one operand is not a weight, that operand has
    the result's shape and no other reader, and the weights are smaller than the result (or, on a product,
    vectors). It costs no traffic then. The producer's tensor stores the result, in the result's bits, under
    the producer's name.

    elementwise: False: fuse only quantisation, and biases and normalisations of products
    results: tensors that are needed after the run, so that they count as read
    """
    makers = {e.output.tensor: e for e in workload.einsums}
    reader_count = Counter(base_tensor(p.tensor, makers) for e in workload.einsums for p in e.inputs)
    reader_count.update([*results, *(result for result, _ in workload.loop_state)])
    stored_in: dict[str, str] = {}  # result of a fused function -> the producer's tensor that stores it
    remaining: dict[str, Einsum] = {}  # output tensor -> einsum that is not fused
    repeats: dict[str, int] = {}
    fused = []
    for e, n in workload.runs():
        x = _fusible_operand(e, workload.weights)
        source = base_tensor(x.tensor, makers) if x else ""
        producer = remaining.get(stored_in.get(source, source))
        is_only_reader = (
            producer is not None and reader_count[source] == 1 and repeats[producer.output.tensor] == n
        )
        if x and producer and is_only_reader and _fits_producer(e, x, producer, elementwise):
            name = producer.output.tensor
            stored = replace(producer.output, bits=e.output.bits, density=e.output.density)
            remaining[name] = replace(producer, output=stored)
            stored_in[e.output.tensor] = name
            fused.append(f"{e.kind} {e.name} -> {producer.name}")
        else:
            remaining[e.output.tensor], repeats[e.output.tensor] = _with_stored_names(e, makers, stored_in), n
    weights = workload.weights & {p.tensor for e in remaining.values() for p in e.inputs}
    loop_state = tuple((stored_in.get(result, result), name) for result, name in workload.loop_state)
    return replace(
        workload,
        einsums=tuple(remaining.values()),
        repeats=tuple(repeats.values()) if workload.repeats else (),
        weights=weights,
        fused=(*workload.fused, *fused),
        loop_state=loop_state,
        stored_as=(*workload.stored_as, *stored_in.items()),
    )


def _fusible_operand(e: Einsum, weights: frozenset[str]) -> Projection | None:
    """Returns the one operand that is not a weight if its element i alone makes element i of the result;
    None: the einsum is no one-to-one function.
    """
    varying = [p for p in e.inputs if not {p.tensor, AGAIN.sub("", p.tensor)} & weights]
    if e.kind not in ELEMENTWISE or len(varying) != 1 or e.points() != e.output.stored_elems():
        return None
    same = varying[0].dims == e.output.dims and e.output.ranks() == set(e.sizes())
    same = same and not differing_format(varying[0], e.output)
    return varying[0] if same or varying[0].stored_elems() == e.points() == 1 else None


def _fits_producer(e: Einsum, x: Projection, producer: Einsum, elementwise: bool) -> bool:
    """True if a one-to-one function of x may be applied where `producer` makes x. Its weights must be small,
    because large ones have to be read.
    """
    is_product = producer.kind == "mac"
    if not elementwise and not (e.kind == "quantizelinear" or (is_product and e.kind in FUSED_INTO_PRODUCTS)):
        return False
    parameters = [p for p in e.inputs if p is not x]
    elems = e.output.stored_elems()
    small = all(p.stored_words() < elems or (is_product and len(p.dims) <= 1) for p in parameters)
    return small and x.stored_elems() == producer.output.stored_elems()


def _with_stored_names(e: Einsum, makers: Mapping[str, Einsum], stored_in: Mapping[str, str]) -> Einsum:
    """Returns an einsum that is not fused, its operands renamed to the producers' tensors that store them."""
    bases = [base_tensor(p.tensor, makers) for p in e.inputs]
    if not stored_in.keys() & set(bases):
        return e
    named = (
        replace(p, tensor=stored_in.get(t, t) + p.tensor.removeprefix(t))
        for p, t in zip(e.inputs, bases, strict=True)
    )
    return replace(e, inputs=tuple(named))


def names_text(names: Sequence[str], most: int = 4) -> str:
    """Returns names as text, of many the first ones and how many more there are.

    >>> names_text(["a", "b"]), names_text("abcdefg")
    ('a, b', 'a, b, c, d and 3 more')
    """
    more = f" and {len(names) - most} more" if len(names) > most + 1 else ""
    return ", ".join(names[: most if more else None]) + more


class Layer(NamedTuple):
    """One row of a layer table: equal einsums, all named in `einsum` and `einsums`; extents and text are the
    first's. All numbers are totals over them; sizes are in words.
    """

    einsum: str
    occurrences: int
    kind: str
    extents: str
    macs: int
    computes: int  # operations that are priced, MACs included; of copies elements, which cost no energy
    weights: int
    inputs: int
    outputs: int
    text: str
    einsums: tuple[str, ...]


def layer_table(workload: Workload) -> list[Layer]:
    """Returns the rows of `dse check`: a row per distinct einsum, in order of first appearance. weights,
    inputs and outputs are stored words.
    """
    rows, einsums = [], {e.name: (e, n) for e, n in workload.runs()}
    for u in unique(workload):
        # operand_words: words of weights (True), of other operands (False); equal einsums may differ in which
        # of their operands are weights
        e, operand_words = u.einsum, {True: 0, False: 0}
        for own, n in map(einsums.__getitem__, u.names):
            for p in own.inputs:
                operand_words[p.tensor in workload.weights] += n * p.stored_words()
        rows.append(
            Layer(
                ", ".join(u.names),
                u.occurrences,
                e.kind,
                " ".join(f"{rank}={size}" for rank, size in e.extents),
                u.occurrences * e.macs(),
                u.occurrences * (e.macs() if e.kind == "mac" else e.points()),
                operand_words[True],
                operand_words[False],
                u.occurrences * e.output.stored_elems(),
                show(e),
                u.names,
            )
        )
    return rows


def warning(workload: Workload) -> str:
    """Returns one line about operators that could be products but are counted as data movement; "" if there
    are none.
    """
    if not workload.unknown:
        return ""
    elems = sum(n * e.output.stored_elems() for e, n in workload.runs() if e.name in workload.unknown)
    percent, unknown_count = 100 * elems / max(written_elems(workload), 1), len(workload.unknown)
    listed = ", ".join(workload.unknown[:5]) + (f" and {unknown_count - 5} more" if unknown_count > 5 else "")
    return (
        f"{workload.name}: {unknown_count} unknown operators count as data movement, without the MACs "
        f"that they may have: {listed}; they write {percent:.3g} % of all elements"
    )


def warnings(workload: Workload) -> list[str]:
    """Returns the warnings that are shown for a workload: unknown operators, and the first five warnings
    about its file.
    """
    more = len(workload.warnings) - 5
    last = f"{workload.name}: {more} more warnings of this kind" if more > 0 else ""
    return [line for line in (warning(workload), *workload.warnings[:5], last) if line]


def rows_text(workload: Workload) -> str:
    """Returns a line about einsums that stand for several passes over a row (softmax, norms) and are priced
    as one operation per element; "" where there is none.

    >>> from workloads.einsum import einsum
    >>> rows_text(Workload("w", (einsum("P[q,k] = softmax(S[q,k])", {"q": 2, "k": 3}, "soft"),)))[:60]
    'softmax (soft) is priced as one operation (alu_pj) per eleme'
    """
    of_kind: dict[str, list[str]] = {}
    for e in workload.einsums:
        if e.whole_ranks():
            of_kind.setdefault(e.kind, []).append(e.name)
    if not of_kind:
        return ""
    listed = ", ".join(
        f"{kind} ({names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''})"
        for kind, names in of_kind.items()
    )
    are = "is" if len(of_kind) == 1 else "are"
    return (
        f"{listed} {are} priced as one operation (alu_pj) per element, in one pass; einsums of its steps "
        "(max=, exp, +=, div) are priced each (docs/how-to.md, 18)"
    )


def types_text(workload: Workload, word_bits: int | None = None) -> str:
    """Returns how many bits the element types of a file count; "" where no file gives types.

    word_bits: of the machine, where there is one

    >>> types_text(Workload("net", (), types=(("float32", None), ("int8", 8))), 16)
    "float32 counts as the machine's word (16 bit here), int8 as 8 bit"
    """
    word = "the machine's word" + (f" ({word_bits} bit here)" if word_bits else "")
    widths = [f"{name} as {f'{bits} bit' if bits else word}" for name, bits in workload.types]
    return ", ".join(widths).replace(" as ", " counts as ", 1)


def packed_results(workload: Workload) -> list[Einsum]:
    """Returns the einsums whose result is stored compressed."""
    return [e for e in workload.einsums if e.output.format != "dense"]


def groups_text(tensors: Iterable[Projection]) -> str:
    """Returns along which rank the groups of tensors in N:M lie; "" where there is none.

    >>> from workloads.einsum import einsum
    >>> e = einsum("Y[m,n] += A[m,k] * B[k,n]", {"m": 4, "n": 4, "k": 8}, format={"B": "2:4"})
    >>> groups_text(e.inputs)
    'B has 2 nonzeros in each 4 neighbours along n, its last dimension'
    """
    texts = dict.fromkeys(
        f"{p.tensor} has {groups[1]} nonzeros in each {groups[2]} neighbours along "
        f"{' + '.join(p.dims[-1].ranks())}, its last dimension"
        for p in tensors
        if (groups := STRUCTURED.fullmatch(p.format))
    )
    return "; ".join(texts)


def results_text(workload: Workload) -> str:
    """Returns the nonzeros of compressed results and where they come from; "" where there is none."""
    return ", ".join(
        f"{e.output.tensor} {nonzeros(e.output.density, e.output.stored_elems())} nonzeros, {_source(e)}"
        for e in packed_results(workload)
    )


def results_label(workload: Workload) -> str:
    """Returns what `results_text` is of: "csr results"."""
    return f"{', '.join(dict.fromkeys(e.output.format for e in packed_results(workload)))} results"


def _source(e: Einsum) -> str:
    """Returns where the density of a compressed output comes from."""
    if e.share:
        return "counted from the matrix"
    if e.expected_density() != e.output.density:
        return "as given"
    reduces = any(p.density < 1 and p.ranks() - e.output.ranks() for p in e.inputs)
    of = next(p.tensor for p in e.inputs if p.density < 1)
    return "expected of nonzeros spread evenly" if reduces else f"those of {of}"


def with_bits(workload: Workload, bits: Mapping[str, int]) -> Workload:
    """Returns the workload with other widths. bits: "weights", "activations" (all other tensors), or a tensor
    by name, which has precedence.

    The result of a fused function may be named too. Raises WorkloadError for a name that no tensor has.
    """
    names = {p.tensor for e in workload.einsums for p in e.tensors()}
    stored = dict(workload.stored_as)
    bits = {stored.get(key, key): n for key, n in bits.items()}
    if wrong := [key for key in bits if key not in ("weights", "activations") and key not in names]:
        hint = closest(wrong[0], names, "use weights or activations")
        raise WorkloadError(f"{workload.name}: bits names {wrong[0]}, which is no tensor; {hint}")

    def sized(p: Projection) -> Projection:
        base = AGAIN.sub("", p.tensor)
        kind = "weights" if {p.tensor, base} & workload.weights else "activations"
        width = next((bits[name] for name in (p.tensor, base, kind) if name in bits), p.bits)
        return replace(p, bits=width)

    einsums = tuple(e.map_projections(sized) for e in workload.einsums)
    refuse(f"{workload.name}: bits: {line}" for line in contradictions(einsums))
    return replace(workload, einsums=einsums, types=())


def written_elems(workload: Workload) -> int:
    """Returns the elements that the einsums write, over all occurrences."""
    return sum(n * e.output.stored_elems() for e, n in workload.runs())
