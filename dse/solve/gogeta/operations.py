"""GOGETA's graph of a workload: operations, the tensors between them, and several periods of a loop.

A product and a sum that alone reads it are one operation. A workload names the second access of an einsum to
a tensor T as T_again; here it is named T, so an operation may have a tensor twice among its inputs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil

from workloads.einsum import Dim, Einsum, Projection, WorkloadError, compulsory_elems
from workloads.graph import Workload, accessed

SUM_KINDS = ("add", "sub")
# up to so many words (32 x 32) a result or loop-carried tensor is assumed to stay in registers, as GOGETA's n
# x n tensors
SMALL_WORDS = 1024


@dataclass(frozen=True, slots=True)
class Graph:
    """A graph of operations."""

    # operations of all periods; each tensor is made before it is read
    operations: tuple[Einsum, ...]
    outputs: frozenset[str]  # tensors that must be in main memory in the end
    # initial loop state: inputs that are overwritten, as results are
    state: frozenset[str] = frozenset()
    periods: int = 1  # number of periods in `operations`, all equal

    @property
    def operations_per_period(self) -> int:
        """Operations of one period."""
        return len(self.operations) // self.periods

    def makers(self) -> dict[str, int]:
        """Position of the operation that makes each tensor."""
        return {e.output.tensor: at for at, e in enumerate(self.operations)}

    def words(self, word_bits: int | None = None) -> dict[str, int]:
        """Returns the words of every tensor: of a result all of it, of an input the largest part that one
        operation reads (such as some rows of a table).
        """
        made = self.makers()
        found = {p.tensor: words(p, e.sizes(), word_bits) for e in self.operations for p in (e.output,)}
        for e in self.operations:
            for p in e.inputs:
                if p.tensor not in made:
                    found[p.tensor] = max(found.get(p.tensor, 0), words(p, e.sizes(), word_bits))
        return found


def words(p: Projection, extents: Mapping[str, int], word_bits: int | None = None) -> int:
    """Returns the words of a tensor that an operation touches. CSR has a value and a column per nonzero and a
    pointer per row. word_bits: of the machine; None: each element, column and pointer is a word.

    Source: GOGETA (arXiv 2303.11499), eq. 10.
    """
    n = compulsory_elems(p, extents)
    if p.format == "csr":
        nonzeros, rows = round(p.density * n), n // max(p.dims[-1].size, 1)
        return (
            ceil((nonzeros * p.elem_bits(word_bits) + rows * p.pointer_bits) / word_bits)
            if word_bits
            else 2 * nonzeros + rows
        )
    return ceil(n * p.bits / word_bits) if p.bits and word_bits else n


def graph(workload: Workload, periods: int = 0, accumulate: bool = True) -> Graph:
    """Returns the graph of a workload.

    periods: number of periods of a loop (a workload with `repeats` and `loop_state`); 0: all repetitions.
    accumulate: a product and the sum that alone reads it become one operation.

    Raises WorkloadError if einsums repeat without a loop state: which tensor a repetition reads is unknown.
    """
    once = _without_again(workload.einsums)
    loops = bool(workload.loop_state) and bool(workload.repeats)
    if workload.repeats and not loops and max(workload.repeats) > 1:
        name, runs = next((e.name, n) for e, n in workload.runs() if n > 1)
        raise WorkloadError(
            f"{workload.name}: einsum {name} runs {runs} times, but the workload does not say which tensors "
            "its runs share, so on-chip retention between them is unknown; write each run as an einsum of "
            "its own (ONNX: unroll the loop or the recurrent layer)"
        )
    kept = frozenset(after for after, _ in workload.loop_state)
    once = accumulate_sums(once, kept) if accumulate else once
    count = (periods or workload.repeats[0]) if loops else 1
    every = (
        [again for t in range(count) for again in _period(once, dict(workload.loop_state), t)]
        if loops
        else once
    )
    last = {_in_period(after, count - 1) if loops else after for after in kept}
    read = {p.tensor for e in every for p in e.inputs}
    sinks = {e.output.tensor for e in every} - read
    return Graph(
        tuple(every), frozenset(last | sinks), frozenset(before for _, before in workload.loop_state), count
    )


def _without_again(einsums: Sequence[Einsum]) -> list[Einsum]:
    """Returns the einsums with inputs T_again renamed to T, unless the workload has no tensor T."""
    made = {e.output.tensor for e in einsums}
    named = made | {p.tensor for e in einsums for p in e.inputs}

    def own(p: Projection) -> Projection:
        return replace(p, tensor=accessed(p.tensor, named, made))

    return [replace(e, inputs=tuple(map(own, e.inputs))) for e in einsums]


def _in_period(tensor: str, period: int) -> str:
    return f"{tensor}@{period}"


def _period(once: Sequence[Einsum], loop_state: Mapping[str, str], t: int) -> list[Einsum]:
    """Returns the einsums of period t. Its results carry its number in their names; in place of the loop
    state it reads the results of the period before.
    """
    made, after = {e.output.tensor for e in once}, {before: after for after, before in loop_state.items()}

    def named(p: Projection) -> Projection:
        if p.tensor in made:
            return replace(p, tensor=_in_period(p.tensor, t))
        return replace(p, tensor=_in_period(after[p.tensor], t - 1)) if t and p.tensor in after else p

    return [e.replaced(named, name=_in_period(e.name, t)) for e in once]


def accumulate_sums(einsums: Sequence[Einsum], kept: frozenset[str] = frozenset()) -> list[Einsum]:
    """Returns the einsums with products joined into the sums that alone read them:

    T[m,n] += A[m,j] * B[j,n]; Y[m,n] = X[m,n] + T[m,n]  ->  Y[m,n] = X[m,n] + A[m,j] * B[j,n]

    Products are added to X in place, and T is never stored. kept: results that must not be joined.
    """
    readers = Counter(p.tensor for e in einsums for p in e.inputs)
    waiting: dict[str, int] = {}  # position in `found` of each product that a sum may join, by result
    found: list[Einsum | None] = []
    for e in einsums:
        at = (
            next((i for i in reversed(range(len(e.inputs))) if e.inputs[i].tensor in waiting), None)
            if e.kind in SUM_KINDS
            else None
        )
        product = found[waiting[e.inputs[at].tensor]] if at is not None else None
        joined = _joined(product, e, at) if product is not None and at is not None else None
        if joined and at is not None:
            found[waiting.pop(e.inputs[at].tensor)] = None
            e = joined
        if e.kind == "mac" and readers[e.output.tensor] == 1 and e.output.tensor not in kept:
            waiting[e.output.tensor] = len(found)
        found.append(e)
    return [e for e in found if e is not None]


def _joined(product: Einsum, total: Einsum, at: int) -> Einsum | None:
    """Returns the product with the other addends of the sum as further inputs, in the product's ranks; None
    if the sum is not element by element. at: position of the product among the addends.
    """
    ranks = {
        theirs: ours
        for ours, theirs in zip(
            map(_rank, product.output.dims), map(_rank, total.inputs[at].dims), strict=False
        )
    }
    same = [d.size for d in product.output.dims] == [d.size for d in total.inputs[at].dims]
    if not same or "" in ranks or "" in ranks.values() or total.sizes().keys() != ranks.keys():
        return None

    def renamed(p: Projection) -> Projection:
        return replace(
            p, dims=tuple(replace(d, terms=tuple((ranks[rank], c) for rank, c in d.terms)) for d in p.dims)
        )

    others = (p for i, p in enumerate(total.inputs) if i != at)
    return replace(product, output=renamed(total.output), inputs=(*map(renamed, others), *product.inputs))


def _rank(d: Dim) -> str:
    """Returns the rank of a dimension; "" for a window or a constant."""
    return d.terms[0][0] if len(d.terms) == 1 and d.terms[0][1] == 1 and not d.offset else ""


def blocks(
    written: Sequence[Dim], read: Sequence[Dim]
) -> list[tuple[tuple[int, ...], tuple[int, ...]]] | None:
    """Returns which dimensions of a tensor as it is written correspond to which dimensions as it is read (a
    reshape): pairs of the shortest runs of dimensions with equal products of sizes. None if there are none.

    >>> def shape(*sizes): return [Dim((), 0, n) for n in sizes]
    >>> blocks(shape(512, 768), shape(2, 256, 12, 64))
    [((0,), (0, 1)), ((1,), (2, 3))]
    """
    found, i, j = [], 0, 0
    while i < len(written) and j < len(read):
        left, right, a, b = written[i].size, read[j].size, i + 1, j + 1
        while left != right:
            if left < right and a < len(written):
                left, a = left * written[a].size, a + 1
            elif right < left and b < len(read):
                right, b = right * read[b].size, b + 1
            else:
                return None
        found.append((tuple(range(i, a)), tuple(range(j, b))))
        i, j = a, b
    rest = [d.size for d in (*written[i:], *read[j:])]
    return None if any(n > 1 for n in rest) else found
