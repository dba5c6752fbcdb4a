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
from workloads.graph import Workload, base_of_any

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
        makers = self.makers()
        found = {
            p.tensor: accessed_words(p, e.sizes(), word_bits) for e in self.operations for p in (e.output,)
        }
        for e in self.operations:
            for p in e.inputs:
                if p.tensor not in makers:
                    found[p.tensor] = max(found.get(p.tensor, 0), accessed_words(p, e.sizes(), word_bits))
        return found


def accessed_words(p: Projection, extents: Mapping[str, int], word_bits: int | None = None) -> int:
    """Returns the words of a tensor that an operation touches. CSR has a value and a column per nonzero and a
    pointer per row. word_bits: of the machine; None: each element, column and pointer is a word.

    Source: GOGETA (arXiv 2303.11499), eq. 10.
    """
    n = compulsory_elems(p, extents)
    if p.format != "dense":
        values, rows = round(p.stored_density() * n), n // max(p.dims[-1].size, 1)
        mask_bits = n * p.mask_bits()
        return (
            ceil((values * p.elem_bits(word_bits) + rows * p.pointer_bits + mask_bits) / word_bits)
            if word_bits
            else 2 * values + rows * (p.format == "csr")
        )
    return ceil(n * p.bits / word_bits) if p.bits and word_bits else n


def graph(workload: Workload, periods: int = 0, accumulate: bool = True) -> Graph:
    """Returns the graph of a workload.

    periods: number of periods of a loop (a workload with `repeats` and `loop_state`); 0: all repetitions.
    accumulate: a product and the sum that alone reads it become one operation.

    Raises WorkloadError if einsums repeat without a loop state: which tensor a repetition reads is unknown.
    """
    one_period = _without_again(workload.einsums)
    is_loop = bool(workload.loop_state) and bool(workload.repeats)
    if workload.repeats and not is_loop and max(workload.repeats) > 1:
        name, runs = next((e.name, n) for e, n in workload.runs() if n > 1)
        raise WorkloadError(
            f"{workload.name}: einsum {name} runs {runs} times, but the workload does not say which tensors "
            "its runs share, so on-chip retention between them is unknown; write each run as an einsum of "
            "its own (ONNX: unroll the loop or the recurrent layer)"
        )
    state_results = frozenset(after for after, _ in workload.loop_state)
    one_period = accumulate_sums(one_period, state_results) if accumulate else one_period
    period_count = (periods or workload.repeats[0]) if is_loop else 1
    operations = (
        [
            operation
            for t in range(period_count)
            for operation in _einsums_of_period(one_period, dict(workload.loop_state), t)
        ]
        if is_loop
        else one_period
    )
    final_results = {_period_name(after, period_count - 1) if is_loop else after for after in state_results}
    read = {p.tensor for e in operations for p in e.inputs}
    sinks = {e.output.tensor for e in operations} - read
    return Graph(
        tuple(operations),
        frozenset(final_results | sinks),
        frozenset(before for _, before in workload.loop_state),
        period_count,
    )


def _without_again(einsums: Sequence[Einsum]) -> list[Einsum]:
    """Returns the einsums with inputs T_again renamed to T, unless the workload has no tensor T."""
    made = {e.output.tensor for e in einsums}
    tensors = made | {p.tensor for e in einsums for p in e.inputs}

    def without_suffix(p: Projection) -> Projection:
        return replace(p, tensor=base_of_any(p.tensor, tensors, made))

    return [replace(e, inputs=tuple(map(without_suffix, e.inputs))) for e in einsums]


def _period_name(tensor: str, period: int) -> str:
    return f"{tensor}@{period}"


def _einsums_of_period(one_period: Sequence[Einsum], loop_state: Mapping[str, str], t: int) -> list[Einsum]:
    """Returns the einsums of period t. Its results carry its number in their names; in place of the loop
    state it reads the results of the period before.
    """
    made, result_of = (
        {e.output.tensor for e in one_period},
        {before: result_of for result_of, before in loop_state.items()},
    )

    def named(p: Projection) -> Projection:
        if p.tensor in made:
            return replace(p, tensor=_period_name(p.tensor, t))
        return (
            replace(p, tensor=_period_name(result_of[p.tensor], t - 1)) if t and p.tensor in result_of else p
        )

    return [e.map_projections(named, name=_period_name(e.name, t)) for e in one_period]


def accumulate_sums(einsums: Sequence[Einsum], not_joined: frozenset[str] = frozenset()) -> list[Einsum]:
    """Returns the einsums with products joined into the sums that alone read them:

    T[m,n] += A[m,j] * B[j,n]; Y[m,n] = X[m,n] + T[m,n]  ->  Y[m,n] = X[m,n] + A[m,j] * B[j,n]

    Products are added to X in place, and T is never stored. not_joined: results that must not be joined.
    """
    readers = Counter(p.tensor for e in einsums for p in e.inputs)
    open_products: dict[str, int] = {}  # position in `found` of each product that a sum may join, by result
    found: list[Einsum | None] = []
    for e in einsums:
        addend = (
            next((i for i in reversed(range(len(e.inputs))) if e.inputs[i].tensor in open_products), None)
            if e.kind in SUM_KINDS
            else None
        )
        product = found[open_products[e.inputs[addend].tensor]] if addend is not None else None
        joined = _joined(product, e, addend) if product is not None and addend is not None else None
        if joined and addend is not None:
            found[open_products.pop(e.inputs[addend].tensor)] = None
            e = joined
        if e.kind == "mac" and readers[e.output.tensor] == 1 and e.output.tensor not in not_joined:
            open_products[e.output.tensor] = len(found)
        found.append(e)
    return [e for e in found if e is not None]


def _joined(product: Einsum, total: Einsum, addend: int) -> Einsum | None:
    """Returns the product with the other addends of the sum as further inputs, in the product's ranks; None
    if the sum is not element by element. addend: position of the product among the addends.
    """
    ranks = {
        sum_rank: product_rank
        for product_rank, sum_rank in zip(
            map(_rank, product.output.dims), map(_rank, total.inputs[addend].dims), strict=False
        )
    }
    same_shape = [d.size for d in product.output.dims] == [d.size for d in total.inputs[addend].dims]
    if not same_shape or "" in ranks or "" in ranks.values() or total.sizes().keys() != ranks.keys():
        return None

    def renamed(p: Projection) -> Projection:
        return replace(
            p, dims=tuple(replace(d, terms=tuple((ranks[rank], c) for rank, c in d.terms)) for d in p.dims)
        )

    others = (p for i, p in enumerate(total.inputs) if i != addend)
    return replace(product, output=renamed(total.output), inputs=(*map(renamed, others), *product.inputs))


def _rank(d: Dim) -> str:
    """Returns the rank of a dimension; "" for a window or a constant."""
    return d.terms[0][0] if len(d.terms) == 1 and d.terms[0][1] == 1 and not d.offset else ""


def matching_dims(
    written: Sequence[Dim], read: Sequence[Dim]
) -> list[tuple[tuple[int, ...], tuple[int, ...]]] | None:
    """Returns which dimensions of a tensor as it is written correspond to which dimensions as it is read (a
    reshape): pairs of the shortest runs of dimensions with equal products of sizes. None if there are none.

    >>> def shape(*sizes): return [Dim((), 0, n) for n in sizes]
    >>> matching_dims(shape(512, 768), shape(2, 256, 12, 64))
    [((0,), (0, 1)), ((1,), (2, 3))]
    """
    found, i, j = [], 0, 0
    while i < len(written) and j < len(read):
        written_size, read_size, a, b = written[i].size, read[j].size, i + 1, j + 1
        while written_size != read_size:
            if written_size < read_size and a < len(written):
                written_size, a = written_size * written[a].size, a + 1
            elif read_size < written_size and b < len(read):
                read_size, b = read_size * read[b].size, b + 1
            else:
                return None
        found.append((tuple(range(i, a)), tuple(range(j, b))))
        i, j = a, b
    rest = [d.size for d in (*written[i:], *read[j:])]
    return None if any(n > 1 for n in rest) else found
