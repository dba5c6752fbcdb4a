"""Loop orders of all operations of a graph that pipeline where they can and read tensors as they were
written: GOGETA's Algorithm 3 (arXiv 2303.11499).

A tensor is swizzled if its consumer walks its stored dimensions in another order than its producer. So P[m,n]
read as P[k,n] with k outside n is not swizzled, whichever of the two is called a transpose. All assignments
of the least penalty can be listed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count, islice, permutations, product

from dse.solve.gogeta.classify import PIPELINED, Edge, barrier
from dse.solve.gogeta.operations import Graph, matching_dims
from workloads.einsum import BY_TENSOR, Dim, Einsum, Projection

MAX_TRIED = 1_000_000  # orders of operations that `best_orders` tries in all
MAX_COUNTED = 1000  # assignments that it counts
Order = tuple[str, ...]  # ranks, outermost first
Walk = tuple[int, ...]  # dimensions of a tensor, slowest first


@dataclass(frozen=True, slots=True)
class _Way:
    """Orders of an operation that are alike for all its edges: outermost rank, walks of the output and of
    each input; beside: per input, its dimensions among the ranks that it lacks (-1), which operations that
    share it must have in common. Empty: a walk that no edge asks for.
    """

    orders: tuple[Order, ...]
    outermost: str
    written: Walk
    read: tuple[Walk, ...]
    beside: tuple[Walk, ...]


@dataclass(frozen=True, slots=True)
class _Link:
    """An edge of a period, its ends as operations of the period, its reads as inputs of the target. pairs:
    per read, runs of dimensions as written and read.
    """

    edge: Edge
    source: int
    target: int
    inputs: tuple[int, ...]
    pairs: tuple[list[tuple[Walk, Walk]] | None, ...]


@dataclass(frozen=True, slots=True)
class _Orders:
    """The orders of the operations of a period, and its edges; hard: which of them have to pipeline."""

    operations: tuple[Einsum, ...]
    ways: list[list[_Way]]
    links: list[_Link]
    hard: list[bool]


@dataclass(frozen=True, slots=True)
class LoopOrders:
    """Loop orders with the fewest edges that give up pipelining, then the fewest swizzles. orders: by
    operation of the period, of the first such assignment; given_up, swizzled: its edges that do not pipeline
    though their pattern says so, and those whose tensor is read in another order than it is written.
    assignments: how many there are of as few of both, counted up to MAX_COUNTED; is_all: whether that is all.
    """

    operations: tuple[Einsum, ...]
    orders: tuple[Order, ...]
    given_up: tuple[Edge, ...]
    swizzled: tuple[Edge, ...]
    assignments: int
    is_all: bool


class TooManyOrders(ValueError):
    """A search for loop orders that was given up."""


def best_orders(graph: Graph, edges: Sequence[Edge], max_tried: int = MAX_TRIED) -> LoopOrders:
    """Returns the loop orders of GOGETA's Algorithm 3. Raises TooManyOrders where `max_tried` orders of
    operations were tried without an assignment, and ValueError as `fewest_swizzles`.
    """
    tries = iter(range(max_tried))
    _, _, every = fewest_swizzles(graph, edges, tries)
    chosen, found, is_all = next(every), 1, True
    try:
        found += sum(1 for _ in islice(every, MAX_COUNTED - 1))
    except TooManyOrders:
        is_all = False
    period = _orders_of(graph, edges)
    ways = [
        next(way for way in own if order in way.orders)
        for own, order in zip(period.ways, chosen, strict=True)
    ]
    given_up, swizzled = [], []
    for link, strict in zip(period.links, period.hard, strict=True):
        source, target = ways[link.source], ways[link.target]
        if strict and _pipes(period.operations, link, source, target):
            continue
        given_up += [link.edge] if strict else []
        swizzled += [link.edge] if _is_swizzled(link, source, target) else []
    is_all = is_all and found < MAX_COUNTED
    return LoopOrders(period.operations, chosen, tuple(given_up), tuple(swizzled), found, is_all)


def orders(
    graph: Graph, edges: Sequence[Edge], penalty: int, lost: int = 0, tries: Iterator[int] | None = None
) -> Iterator[tuple[Order, ...]]:
    """Every assignment of loop orders to the operations of a period that swizzles at most so many edges that
    do not pipeline.

    An edge pipelines if the producer's outermost rank leaves its output step by step, the consumer's
    outermost rank is one of the tensor, and nothing is swizzled. All edges whose pattern says so do, but for
    those that do under no pair of orders, and at most `lost` others. Consumers of a multicast share their
    order. What an operation needs whole (the matrix that it inverts) may lie in any order. tries: ends when
    no further order of an operation may be tried, which raises TooManyOrders; None: never.
    """
    period = _orders_of(graph, edges)
    due: dict[int, list[tuple[_Link, bool]]] = defaultdict(list)
    for link, strict in zip(period.links, period.hard, strict=True):
        due[max(link.source, link.target)].append((link, strict))
    together: dict[int, list[_Link]] = defaultdict(list)
    for link in period.links:
        if link.edge.multicast:
            together[link.source].append(link)
    multicasts = list(together.values())
    return _assigned(period.operations, period.ways, due, multicasts, penalty, lost, tries or count())


def _orders_of(graph: Graph, edges: Sequence[Edge]) -> _Orders:
    """Orders and edges of the second period, which follows another one; of the only one if there is one."""
    at = min(1, graph.periods - 1) * graph.operations_per_period
    operations = graph.operations[at : at + graph.operations_per_period]
    links = [
        link
        for e in edges
        if at <= e.source < at + graph.operations_per_period and (link := _link(graph, e, at)).inputs
    ]
    sources = {link.source for link in links}
    read, shared = (
        {(link.target, i) for link in links if link.edge.multicast or not only for i in link.inputs}
        for only in (False, True)
    )
    ways = [
        _order_choices(
            e, v in sources, *({i for target, i in seen if target == v} for seen in (read, shared))
        )
        for v, e in enumerate(operations)
    ]
    hard = [
        link.edge.pattern in PIPELINED
        and any(_pipes(operations, link, a, b) for a in ways[link.source] for b in ways[link.target])
        for link in links
    ]
    return _Orders(tuple(operations), ways, links, hard)


def _assigned(
    operations: Sequence[Einsum],
    ways: Sequence[Sequence[_Way]],
    due: Mapping[int, Sequence[tuple[_Link, bool]]],
    together: Sequence[Sequence[_Link]],
    penalty: int,
    lost: int,
    tries: Iterator[int],
) -> Iterator[tuple[Order, ...]]:
    """Depth first with a stack of its own: operations may be thousands. due: edges whose later end each
    operation is.

    What follows depends on what may still be swizzled and given up and on the ways of operations that share
    an edge or a multicast with later ones; where it holds no assignment once, it is not tried again.
    """
    chosen: list[_Way] = []
    waiting = _waiting(len(operations), list(chain.from_iterable(due.values())), together)
    dead, yielded = set[tuple[object, ...]](), 0
    # per operation: ways to try, what may still be swizzled and given up, assignments before, what decides
    stack: list[tuple[Iterator[_Way], int, int, int, tuple[object, ...]]] = [
        (iter(ways[0]), penalty, lost, 0, ())
    ]
    while stack:
        untried, left, losses, before, state = stack[-1]
        del chosen[len(stack) - 1 :]
        if next(tries, None) is None:
            raise TooManyOrders(
                f"loop orders of {len(operations)} operations: the search has found none and ends; give "
                "fewer operations (form=periodic of a loop)"
            )
        way = next(untried, None)
        if way is None:
            stack.pop()
            if yielded == before:
                dead.add(state)
            continue
        chosen.append(way)
        swizzles, broken = _penalty(operations, chosen, due.get(len(stack) - 1, ()))
        if swizzles > left or broken > losses or not all(_alike(chosen, links) for links in together):
            continue
        if len(chosen) == len(operations):
            yielded += 1
            yield from product(*(each.orders for each in chosen))
            continue
        left, losses = left - swizzles, losses - broken
        asked = tuple(
            chosen[v] if whole else (chosen[v].outermost, chosen[v].written)
            for v, whole in waiting[len(chosen)]
        )
        state = (len(chosen), left, losses, asked)
        if state not in dead:
            stack.append((iter(ways[len(chosen)]), left, losses, yielded, state))


def _waiting(
    n: int, due: Sequence[tuple[_Link, bool]], together: Sequence[Sequence[_Link]]
) -> list[list[tuple[int, bool]]]:
    """Per operation: those before it that share an edge or a multicast with it or a later one, and whether
    more of them is asked than how they write.
    """
    found: list[dict[int, bool]] = [{} for _ in range(n)]

    def wait(v: int, until: int, whole: bool) -> None:
        for depth in range(v + 1, until + 1):
            found[depth][v] = found[depth].get(v, False) or whole

    for link, _ in due:
        first, last = sorted((link.source, link.target))
        wait(first, last, link.target == first)
    for links in together:
        last = max(link.target for link in links)
        for link in links:
            wait(link.target, last, True)
    return [list(each.items()) for each in found]


def fewest_swizzles(
    graph: Graph, edges: Sequence[Edge], tries: Iterator[int] | None = None
) -> tuple[int, int, Iterator[tuple[Order, ...]]]:
    """The fewest edges that have to give up pipelining, then the least penalty, and all assignments that have
    both.

    Exhaustive. tries: as in `orders`. Raises ValueError where consumers of a multicast have no order in
    common.
    """
    links = len(_orders_of(graph, edges).links)

    def is_possible(penalty: int, lost: int) -> bool:
        return next(orders(graph, edges, penalty, lost, tries), None) is not None

    least = next((n for n in range(links + 1) if is_possible(links, n)), None)
    if least is None:
        raise ValueError(
            f"no loop orders of {graph.operations_per_period} operations: some that read a tensor at once "
            "have no order of it in common"
        )
    penalty = next(n for n in range(links + 1) if is_possible(n, least))
    return least, penalty, orders(graph, edges, penalty, least, tries)


def _order_choices(e: Einsum, is_read: bool, read: set[int], shared: set[int]) -> list[_Way]:
    """is_read: whether an edge leads on from its output; read, shared: inputs that come along an edge, and
    those of a multicast.
    """
    found: dict[tuple[object, ...], list[Order]] = defaultdict(list)
    for order in permutations(rank for rank, _ in e.extents):
        place = {rank: i for i, rank in enumerate(order)}
        key = (
            order[0] if order else "",
            _walk(e.output, place) if is_read else (),
            tuple(_walk(p, place) if i in read else () for i, p in enumerate(e.inputs)),
            tuple(_beside(p, order) if i in shared else () for i, p in enumerate(e.inputs)),
        )
        found[key].append(order)
    return [_Way(tuple(alike), *key) for key, alike in found.items()]  # type: ignore[arg-type]


def _walk(p: Projection, place: Mapping[str, int]) -> Walk:
    """Dimensions by their outermost rank, slowest first."""
    return tuple(
        sorted(
            (i for i, d in enumerate(p.dims) if d.terms),
            key=lambda i: min(place[rank] for rank in p.dims[i].ranks()),
        )
    )


def _beside(p: Projection, order: Order) -> Walk:
    at = {rank: i for i, d in enumerate(p.dims) for rank in d.ranks()}
    places = [at.get(rank, -1) for rank in order]
    return tuple(i for n, i in enumerate(places) if n == 0 or i != places[n - 1])


def _link(graph: Graph, edge: Edge, at: int) -> _Link:
    target, written = graph.operations[edge.target], graph.operations[edge.source].output
    first = 1 if target.kind in BY_TENSOR else 0
    inputs = tuple(i for i, p in enumerate(target.inputs) if p.tensor == edge.tensor and i >= first)
    pairs = tuple(_significant(written.dims, target.inputs[i].dims) for i in inputs)
    return _Link(edge, edge.source - at, (edge.target - at) % graph.operations_per_period, inputs, pairs)


def _significant(written: Sequence[Dim], read: Sequence[Dim]) -> list[tuple[Walk, Walk]] | None:
    """Runs of dimensions that ranks walk through."""
    found = matching_dims(written, read)
    return (
        None
        if found is None
        else [
            (tuple(i for i in a if written[i].terms), tuple(j for j in b if read[j].terms)) for a, b in found
        ]
    )


def _is_swizzled(link: _Link, source: _Way, target: _Way) -> bool:
    """Runs come in one order, and inside a run the dimensions in theirs."""
    for i, pairs in zip(link.inputs, link.pairs, strict=True):
        if pairs is None:
            return True
        runs = sorted(((a, b) for a, b in pairs if a and b), key=lambda run: source.written.index(run[0][0]))
        if (
            tuple(d for a, _ in runs for d in a) != source.written
            or tuple(d for _, b in runs for d in b) != target.read[i]
        ):
            return True
    return False


def _pipes(operations: Sequence[Einsum], link: _Link, source: _Way, target: _Way) -> bool:
    producer, consumer = operations[link.source], operations[link.target]
    return (
        source.outermost in producer.output.ranks() - barrier(producer)
        and all(target.outermost in consumer.inputs[i].ranks() for i in link.inputs)
        and not _is_swizzled(link, source, target)
    )


def _penalty(
    operations: Sequence[Einsum], chosen: Sequence[_Way], due: Sequence[tuple[_Link, bool]]
) -> tuple[int, int]:
    """Among edges whose ends are chosen: those that are swizzled, and those that give up pipelining."""
    swizzles = broken = 0
    for link, strict in due:
        source, target = chosen[link.source], chosen[link.target]
        if not strict or not _pipes(operations, link, source, target):
            swizzles += _is_swizzled(link, source, target)
            broken += strict
    return swizzles, broken


def _alike(chosen: Sequence[_Way], links: Sequence[_Link]) -> bool:
    """Whether the consumers of a multicast, as far as they are chosen, walk it alike."""
    return (
        len(
            {
                chosen[link.target].beside[i]
                for link in links
                if link.target < len(chosen)
                for i in link.inputs
            }
        )
        <= 1
    )
