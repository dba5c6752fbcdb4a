"""From operations to accesses to the buffer: phases (operations that run as one pipeline), and the list of
reads and writes of a schedule of phases.

A schedule is a sequence of phases, a phase a sequence of stages, and a stage a set of operations that run at
once. A tensor that a later stage of the same phase reads is passed on directly and not read again. Small
results stay in registers (`operations.SMALL_WORDS`) and are no accesses.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cache
from heapq import heapify, heappop, heappush
from itertools import chain, combinations, pairwise, product
from math import inf, prod

from dse.solve.gogeta.classify import PIPELINED, Edge, barrier, dominance
from dse.solve.gogeta.operations import SMALL_WORDS, Graph, accessed_words, matching_dims
from workloads.einsum import RUNNING, Einsum, Projection

Stages = tuple[tuple[int, ...], ...]
# tensor that each step of a pipeline needs whole -> (an operation that uses it, its number among the
# operation's tensors)
ResidentTensors = dict[str, tuple[int, int]]
# (source operation, number of one of its edges, rank that the source steps through) -> rank that the edge's
# target steps through; "": none
Step = Callable[[int, int, str], str]
# positions after all accesses, as the next use of a tensor after its last access: AFTER_END of an output,
# which is written to main memory; NEVER of any other tensor, which is no longer needed
AFTER_END, NEVER = 10**15, 10**16
MAX_JOINT_STEPS = 1000  # ways to step that are compared for operations that share reads


@dataclass(frozen=True, slots=True)
class Phase:
    """Operations that run as one pipeline, by their number in the period. whole_tensors: those that every
    step needs whole, as (operation, number among its tensors); steps: (operation, rank through which it goes
    step by step), without those that have none; step_words: `step_words` of these; resident_words: the words
    of whole_tensors and step_words, which are on chip while the phase runs, besides tensors that are retained
    for later phases.
    """

    stages: Stages
    resident_words: int = 0
    whole_tensors: tuple[tuple[int, int], ...] = ()
    steps: tuple[tuple[int, str], ...] = ()
    step_words: int = 0


@dataclass(frozen=True, slots=True)
class Access:
    """Tensors that are read and written at one time.

    In a list of single accesses (`access_list`) a read has no `written`, a write has no `read`, and an update
    replaces each tensor of `read` in place by the tensor of `written` at the same position. In a list of
    phases (`phase_list`) an access has all tensors that a phase reads and makes. whole_tensors: those of
    which resident_words counts the words; in_step: those of which each step of the phase needs a part of its
    own (`tensors_in_step`).
    """

    read: tuple[str, ...] = ()
    written: tuple[str, ...] = ()
    resident_words: int = 0
    whole_tensors: frozenset[str] = frozenset()
    in_step: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Pipeline:
    """How operations run step by step. held: what every step needs whole; steps: rank of each operation;
    step_words: `step_words` of these.
    """

    held: ResidentTensors
    steps: Mapping[int, str]
    step_words: int = 0

    def needed_words(self, words: Mapping[str, int]) -> int:
        """Words that are on chip while it runs. words: of each tensor."""
        return sum(words[t] for t in self.held) + self.step_words


@dataclass(frozen=True, slots=True)
class AccessList:
    """The accesses of a schedule to the buffer. words: size of every tensor in the list; outputs: tensors
    that are in main memory in the end; periods: number of equal periods in `accesses`.
    """

    accesses: tuple[Access, ...]
    words: Mapping[str, int]
    outputs: frozenset[str]
    periods: int = 1

    @property
    def accesses_per_period(self) -> int:
        """Accesses of one period."""
        return len(self.accesses) // self.periods

    def unbuffered_words(self) -> int:
        """Words that move if every access goes to main memory."""
        return sum(self.words[t] for a in self.accesses for t in (*a.read, *a.written))

    def compulsory_words(self) -> int:
        """Words that move with an unlimited buffer: inputs (made by no access) are read once, outputs written
        once.
        """
        outside = {t for a in self.accesses for t in a.read} - self.results()
        return sum(self.words[t] for t in outside) + sum(self.words[t] for t in self.outputs)

    def results(self) -> set[str]:
        """The tensors that an access writes."""
        return {t for a in self.accesses for t in a.written}

    def next_reads(self) -> dict[str, list[int]]:
        """By tensor: AFTER_END (of an output) or NEVER, then the numbers of the accesses that read it, latest
        first. So `pop` gives the earliest.
        """
        found = {t: [AFTER_END if t in self.outputs else NEVER] for t in self.words}
        for i in reversed(range(len(self.accesses))):
            for t in self.accesses[i].read:
                found[t].append(i)
        return found


def one_by_one(graph: Graph, capacity: float | None = None, word_bits: int | None = None) -> list[Phase]:
    """Every operation of a period in a phase of its own, in the order of the graph, in the first of its
    `single_phases`. capacity: None: as published, where operations alone hold nothing.
    """
    words, begin = graph.words(word_bits), _period_begin(graph)
    numbers = range(begin, begin + graph.operations_per_period)
    found = [
        _first_way(graph.operations[v], v)
        if capacity is None
        else _ways(graph.operations[v], v, words, capacity)[0]
        for v in numbers
    ]
    return [_to_phase(((v - begin,),), way, words, begin) for v, way in zip(numbers, found, strict=True)]


def single_phases(graph: Graph, operation: int, capacity: float, words: Mapping[str, int]) -> list[Phase]:
    """The ways to run an operation of a period alone, that which needs the fewest words first. words: of each
    tensor of the graph.
    """
    begin = _period_begin(graph)
    ways = _ways(graph.operations[operation + begin], operation + begin, words, capacity)
    return [_to_phase(((operation,),), way, words, begin) for way in ways]


def _period_begin(graph: Graph) -> int:
    """The first operation of the period that stands for all: the second one, if there is one, as it has a
    period before it.
    """
    return min(1, graph.periods - 1) * graph.operations_per_period


def _first_way(e: Einsum, operation: int) -> Pipeline:
    """An operation alone that holds nothing, through the first of its `step_ranks`."""
    return Pipeline({}, {operation: next(iter(step_ranks(e)), "")})


def is_overfull(e: Einsum, words: Mapping[str, int], capacity: float) -> bool:
    """Whether an operation, whichever of its loops stands outermost, cannot read each operand once and write
    its result once within a capacity.
    """
    return not any(way.needed_words(words) <= capacity for way in _all_ways(e, 0, words))


def _ways(e: Einsum, operation: int, words: Mapping[str, int], capacity: float) -> list[Pipeline]:
    """The ways to run an operation alone that fit the capacity, that which needs the fewest words first, then
    that with the most words in step; only that through the rank that dominates it, if it fits. Of an overfull
    operation, which must read operands again, the ways through its `step_ranks`, as if it held nothing and a
    step took no place: so its words are a lower bound.
    """
    fitting = [way for way in _all_ways(e, operation, words) if way.needed_words(words) <= capacity]
    if not fitting:
        return [Pipeline({}, {operation: rank}) for rank in step_ranks(e) or [""]]
    dominant = dominance(e).rank
    if of_dominant := [way for way in fitting if way.steps[operation] == dominant != ""]:
        return of_dominant
    in_step = {way.steps[operation]: tensors_in_step([e], [way.steps[operation]]) for way in fitting}
    left = _undominated(fitting, [in_step[way.steps[operation]] for way in fitting])
    return sorted(
        left,
        key=lambda way: (
            way.needed_words(words),
            -sum(words[t] for t in in_step[way.steps[operation]]),
            way.steps[operation],
        ),
    )


def _all_ways(e: Einsum, operation: int, words: Mapping[str, int]) -> list[Pipeline]:
    """The ways to run an operation alone: through each of its ranks, holding what is not cut by it, and what
    a nest of the other loops holds within one step; and all at once, holding all. An operation of one point
    is one step, which works on one word of each tensor.
    """
    tensors = {p.tensor: (operation, k) for k, p in enumerate(e.tensors())}
    if e.points() == 1:
        return [Pipeline({}, {operation: ""})]
    found = [Pipeline(tensors, {operation: ""})]
    for rank in e.sizes():
        whole = {p.tensor for p in e.tensors() if not is_cut(e, p, rank)}
        held = {t: at for t, at in tensors.items() if t in whole}
        found.append(Pipeline(held, {operation: rank}, step_words([e], [rank], words)))
    return found


def _nest_words(
    e: Einsum, fixed: frozenset[str], tensors: Iterable[Projection], words: Mapping[str, int]
) -> int:
    """The fewest words that the other loops of an operation hold inside of those over `fixed`, so that they
    read each word once: of the loop that stands outermost the parts of tensors that it does not cut, and
    windows that slide along it; then those of the loops inside. What all loops cut is a word in a register.
    """
    left = list(tensors)
    loops = [
        rank for rank, n in e.extents if n > 1 and rank not in fixed and any(rank in p.ranks() for p in left)
    ]

    def inside(rank: str) -> int:
        both, held, cut = fixed | {rank}, 0, list[Projection]()
        for p in left:
            if not is_cut(e, p, rank, fixed):
                held += _part_words(e, p, fixed, words[p.tensor])
            elif rank in p.partial_ranks():
                held += _part_words(e, p, both, words[p.tensor])
            else:
                cut.append(p)
        return held + (_nest_words(e, both, cut, words) if cut else 0)

    return min(map(inside, loops), default=0)


def _part_words(e: Einsum, p: Projection, fixed: Iterable[str], words: int) -> int:
    """The words of a tensor that one trip of loops over `fixed` works on. words: of all of it."""
    whole = e.sizes()
    one = whole | dict.fromkeys(fixed, 1)
    spans = [(min(d.hull(one), d.size), max(1, min(d.hull(whole), d.size))) for d in p.dims]
    return max(1, -(-words * prod(n for n, _ in spans) // prod(n for _, n in spans)))


def is_cut(e: Einsum, p: Projection, rank: str, fixed: Set[str] = frozenset()) -> bool:
    """Whether each step along a rank needs a part of a tensor of its own: not where the rank does not index
    it, or all of a row must be known first, nor columns of CSR outside of its rows. Rows of a triangular
    solve need all those before, so its result is not cut along them; they take the right-hand side row by
    row. fixed: ranks of loops outside.
    """
    if rank in e.whole_ranks():
        return False
    if e.levels() > 1 and rank in e.inputs[0].ranks():
        return p != e.output
    rows = {r for d in p.dims[:-1] for r in d.ranks()}
    by_columns = p.format != "dense" and rank in p.dims[-1].ranks() and not rows <= fixed
    return rank in p.ranks() and not by_columns


def step_words(operations: Sequence[Einsum], steps: Sequence[str], words: Mapping[str, int]) -> int:
    """Returns the words that one step of operations works on: the part of each tensor that several of them
    use, but for a word in a register, and the most that the nest of one of them holds of its others
    (`_nest_words`), as they take turns. steps: rank of each operation, "" if it has none; words: of each
    tensor.
    """
    uses = Counter(t for e in operations for t in {p.tensor for p in e.tensors()})
    part_of, in_nests = dict[str, int](), [0]
    for e, rank in zip(operations, steps, strict=True):
        whole = {p.tensor for p in e.tensors() if rank not in p.ranks() or not is_cut(e, p, rank)}
        cut = {p.tensor: p for p in e.tensors() if p.tensor not in whole}
        for t, p in cut.items():
            if uses[t] > 1:
                part_of[t] = max(part_of.get(t, 0), _part_words(e, p, [rank], words[t]))
        own = [p for t, p in cut.items() if uses[t] == 1]
        in_nests.append(0 if e.levels() > 1 else _nest_words(e, frozenset([rank]), own, words))
    return sum(max(0, part - 1) for part in part_of.values()) + max(in_nests)


def step_ranks(e: Einsum) -> list[str]:
    """Returns the ranks that an operation may step through so that several of its tensors go in step, that
    with the most words first; only the rank that dominates it, if there is one. Left out are ranks with which
    no tensor goes in step that does not with another one, columns of CSR, and ranks of which all is one step.
    """
    words = {p.tensor: accessed_words(p, e.sizes()) for p in e.tensors()}
    compressed = {rank for p in e.tensors() if p.format != "dense" for rank in p.dims[-1].ranks()}
    in_step = {
        rank: found
        for rank, size in e.sizes().items()
        if rank not in compressed
        and len(found := tensors_in_step([e], [rank])) > 1
        and (size > 1 or max(words[t] for t in found) == 1)
    }
    dominant = dominance(e).rank
    if dominant in in_step:
        return [dominant]
    largest = {found: rank for rank, found in reversed(in_step.items())}  # of equal sets the first rank
    ranks = [rank for found, rank in largest.items() if not any(found < other for other in largest)]
    return sorted(ranks, key=lambda rank: (-sum(words[t] for t in in_step[rank]), rank))


def tensors_in_step(operations: Sequence[Einsum], steps: Sequence[str]) -> frozenset[str]:
    """Returns the tensors of operations that run at once of which each step needs a part of its own: all
    operations that read or make such a tensor step through the same dimension of it. steps: rank of each
    operation, "" if it has none. An operation of one point is one step, which needs all.

    None if the steps must be taken in one order, as in a scan, a triangular solve or where windows slide:
    then parts cannot be gone through in the order that suits the buffer (`retention`).
    """
    of_tensor = defaultdict[str, set[tuple[int, int]]](set)
    for e, rank in zip(operations, steps, strict=True):
        if e.kind in RUNNING or e.levels() > 1 or any(rank in p.partial_ranks() for p in e.tensors()):
            return frozenset()
        for p in e.tensors():
            at = next((i for i, d in enumerate(p.dims) if rank in d.ranks()), -1)
            is_part = at >= 0 and is_cut(e, p, rank)
            is_all = not rank and e.points() == 1
            of_tensor[p.tensor].add((at, p.dims[at].size) if is_part else (0, 1) if is_all else (-1, 0))
    return frozenset(t for t, dims in of_tensor.items() if len(dims) == 1 and (-1, 0) not in dims)


def access_list(
    graph: Graph,
    phases: Sequence[Phase],
    word_bits: int | None = None,
    reads_once: bool = False,
    small_words: int = SMALL_WORDS,
) -> AccessList:
    """The accesses of all periods, one by one. What a step works on takes no place. reads_once: a tensor that
    several operations of a phase read is accessed once for all; small_words: results of up to so many words
    stay in registers and are not accessed.
    """
    words, makers, rows = graph.words(word_bits), graph.makers(), _rows(graph, phases)
    unlisted = {t for t, n in words.items() if n <= small_words and (t in makers or t in graph.state)}
    row_of_maker = _rows_of_makers(graph, rows)
    last_read: dict[str, tuple[int, int]] = {}
    internal = set(row_of_maker)  # results that only operations of their own phase read
    for row, (_, stages) in enumerate(rows):
        for stage_index, stage in enumerate(stages):
            for p in (p for operation in stage for p in graph.operations[operation].inputs):
                last_read[p.tensor] = (row, stage_index)
                if row_of_maker.get(p.tensor) != row:
                    internal.discard(p.tensor)
    read = {p.tensor for e in graph.operations for p in e.inputs}
    unlisted |= {t for t in internal & read if t not in graph.outputs}
    droppable = (set(makers) | graph.state) - graph.outputs - unlisted
    last_use = {t: last_read[t] for t in droppable if t in last_read}
    accesses = [
        Access(a.read, a.written, phase.resident_words - phase.step_words)
        for row, (phase, stages) in enumerate(rows)
        for a in _phase_accesses(graph, row, stages, unlisted, last_use, row_of_maker, reads_once)
    ]
    return _to_access_list(graph, accesses, words)


def _rows(graph: Graph, phases: Sequence[Phase]) -> list[tuple[Phase, Stages]]:
    """The phases of all periods, with the operations of their stages."""
    return [
        (
            phase,
            tuple(
                tuple(operation + t * graph.operations_per_period for operation in stage)
                for stage in phase.stages
            ),
        )
        for t in range(graph.periods)
        for phase in phases
    ]


def _rows_of_makers(graph: Graph, rows: Sequence[tuple[Phase, Stages]]) -> dict[str, int]:
    """Row (phase of a period, see `_rows`) that makes each result."""
    return {
        graph.operations[operation].output.tensor: row
        for row, (_, stages) in enumerate(rows)
        for operation in chain(*stages)
    }


def _to_access_list(graph: Graph, accesses: Sequence[Access], words: Mapping[str, int]) -> AccessList:
    used = {t for a in accesses for t in (*a.read, *a.written)}
    return AccessList(tuple(accesses), {t: words[t] for t in used}, graph.outputs & used, graph.periods)


def phase_list(graph: Graph, phases: Sequence[Phase], word_bits: int | None = None) -> AccessList:
    """One access per phase, over all periods, for `retention`: every tensor that the phase reads or makes,
    once, whatever its size. Tensors are left out that one operation of the phase passes to others of it, if
    no later phase reads them and they are no outputs.
    """
    words, rows = graph.words(word_bits), _rows(graph, phases)
    row_of_maker = _rows_of_makers(graph, rows)
    last_row = {
        p.tensor: row
        for row, (_, stages) in enumerate(rows)
        for operation in chain(*stages)
        for p in graph.operations[operation].inputs
    }
    # the row of the last reader is that of the maker: no later phase reads the tensor
    internal = {t for t, row in row_of_maker.items() if last_row.get(t) == row and t not in graph.outputs}
    # (phase of a period, whether it is the first one) -> tensors in step, as (operation of the phase, number)
    places_in_step = dict[tuple[int, bool], list[tuple[int, int]]]()
    found = []
    for row, (phase, stages) in enumerate(rows):
        phase_einsums, period_begin = (
            [graph.operations[operation] for operation in chain(*stages)],
            row // len(phases) * graph.operations_per_period,
        )
        read = dict.fromkeys(
            p.tensor for e in phase_einsums for p in e.inputs if row_of_maker.get(p.tensor) != row
        )
        results = tuple(e.output.tensor for e in phase_einsums if e.output.tensor not in internal)
        members = set(chain(*phase.stages))
        whole = frozenset(
            graph.operations[operation + period_begin].tensors()[k].tensor
            for operation, k in phase.whole_tensors
            if operation in members
        )
        key = row % len(phases), row < len(phases)
        if key not in places_in_step:
            steps = dict(phase.steps)
            named = tensors_in_step(phase_einsums, [steps.get(v, "") for v in chain(*phase.stages)])
            places_in_step[key] = [
                (v, k)
                for v, e in enumerate(phase_einsums)
                for k, p in enumerate(e.tensors())
                if p.tensor in named
            ]
        in_step = {phase_einsums[v].tensors()[k].tensor for v, k in places_in_step[key]}
        found.append(
            Access(
                tuple(read),
                results,
                sum(words[t] for t in whole) + phase.step_words,
                whole,
                frozenset(in_step & {*read, *results} - whole),
            )
        )
    return _to_access_list(graph, found, words)


def loosest_list(graph: Graph, ways: Sequence[Sequence[Phase]], word_bits: int | None = None) -> AccessList:
    """One access per phase (`phase_list`) that asks no more of the buffer than any way to run the phase: what
    all of them hold, what some step works on, and in step what goes so in any of them. ways: of each phase.
    """
    words = graph.words(word_bits)
    lists = [
        phase_list(graph, [of_one[min(k, len(of_one) - 1)] for of_one in ways], word_bits)
        for k in range(max(map(len, ways)))
    ]
    found = []
    for same in zip(*(listed.accesses for listed in lists), strict=True):
        whole = frozenset.intersection(*(a.whole_tensors for a in same))
        in_step = frozenset().union(*(a.in_step | a.whole_tensors for a in same)) - whole
        least = min(a.resident_words - sum(words[t] for t in a.whole_tensors - whole) for a in same)
        found.append(replace(same[0], resident_words=least, whole_tensors=whole, in_step=in_step))
    return replace(lists[0], accesses=tuple(found))


def _phase_accesses(
    graph: Graph,
    row: int,
    stages: Stages,
    unlisted: set[str],
    last_use: Mapping[str, tuple[int, int]],
    row_of_maker: Mapping[str, int],
    reads_once: bool,
) -> Iterator[Access]:
    """Accesses of a phase. Each stage has first its reads, then its writes, then one access for all its
    updates in place. unlisted: tensors without accesses; last_use: (row, stage) of the last read of tensors
    that are then no longer needed; row_of_maker: row that makes each result.
    """
    already_read: set[str] = set()
    for stage_index, stage in enumerate(stages):
        replaced_by: dict[str, str] = {}
        for e in (graph.operations[operation] for operation in stage):
            last_reads = {
                p.tensor
                for p in e.inputs
                if last_use.get(p.tensor) == (row, stage_index) and row_of_maker.get(p.tensor) != row
            } - set(replaced_by)
            if e.output.tensor not in unlisted and (old := _overwritten(e, last_reads)):
                replaced_by[old] = e.output.tensor
        replaces = {result: old for old, result in replaced_by.items()}
        for e in (graph.operations[operation] for operation in stage):
            replaced = replaces.get(e.output.tensor, "")
            for i, p in enumerate(e.inputs):
                # the first read of this operand is part of its update in place
                is_in_place = p.tensor == replaced and replaced not in {q.tensor for q in e.inputs[:i]}
                is_listed = p.tensor not in unlisted and row_of_maker.get(p.tensor) != row
                if is_listed and not is_in_place and not (reads_once and p.tensor in already_read):
                    already_read.add(p.tensor)
                    yield Access(read=(p.tensor,))
        for e in (graph.operations[operation] for operation in stage):
            if e.output.tensor not in unlisted and e.output.tensor not in replaces:
                yield Access(written=(e.output.tensor,))
        if replaced_by:
            yield Access(tuple(replaced_by), tuple(replaced_by.values()))


def _overwritten(e: Einsum, last_reads: set[str]) -> str:
    """The input in `last_reads` whose place the output takes step by step; "": none. It must have the
    output's format, bits, number of elements and outermost dimension. An input with all dimensions of the
    output is preferred.
    """
    out = e.output
    candidates = [
        p
        for p in e.inputs
        if p.tensor in last_reads
        and p.format == out.format
        and p.stored_elems() == out.stored_elems()
        and p.dims
        and out.dims
        and p.dims[0] == out.dims[0]
        and p.bits == out.bits
    ]
    return min(candidates, key=lambda p: p.dims != out.dims).tensor if candidates else ""


def pipelined_phases(
    graph: Graph,
    edges: Sequence[Edge],
    capacity: float = inf,
    word_bits: int | None = None,
    small_words: int = 0,
) -> list[Phase]:
    """The phases of `pipelines_within` for one capacity."""
    return pipelines_within(graph, edges, capacity, word_bits, small_words)(capacity)


def pipelines_within(
    graph: Graph,
    edges: Sequence[Edge],
    capacity: float = inf,
    word_bits: int | None = None,
    small_words: int = 0,
) -> Callable[[float], list[Phase]]:
    """Returns a function of a limit, at most the capacity: the phases of a period. Operations are joined
    along edges that can be pipelined, and so are the consumers of a multicast, as long as one pipeline can
    run them.

    Two groups are joined if all edges between their operations can be pipelined, no path leads out of the
    joined group and back, all operations can step through one rank, and the tensors that every step needs
    whole (weights) together are within the limit. Source: GOGETA, section 5; the limit is our addition.
    small_words: tensors of up to so many words take no capacity, and consumers of a multicast need not read
    it in step (as published: SMALL_WORDS).
    """
    period_begin = _period_begin(graph)
    period_edges = [
        e for e in edges if period_begin <= e.source and e.target < period_begin + graph.operations_per_period
    ]
    words = {t: n if n > small_words else 0 for t, n in graph.words(word_bits).items()}
    siblings: dict[int, list[int]] = defaultdict(list)
    edges_from: dict[int, list[Edge]] = defaultdict(list)
    for e in period_edges:
        edges_from[e.source].append(e)
        if e.multicast:
            siblings[e.source].append(e.target)
    pairs = [(e.source, e.target) for e in period_edges if e.pattern in PIPELINED] + [
        pair for found in siblings.values() for pair in pairwise(found)
    ]
    pairs.sort(key=max)
    step = _steps_along(graph, edges_from)
    holds = _holding(graph, words, capacity)

    @cache
    def pipeline_of(joined: tuple[int, ...]) -> Pipeline | None:
        if not _is_convex(edges_from, joined):
            return None
        found = _pipelines(graph, edges_from, joined, words, step, None if small_words else holds)
        return min(found, key=lambda one: one.needed_words(words), default=None)

    members = range(period_begin, period_begin + graph.operations_per_period)

    @cache
    def alone(v: int) -> Pipeline:
        e = graph.operations[v]
        return _first_way(e, v) if small_words else _ways(e, v, words, capacity)[0]

    def joined_phases(limit: float, checks_cycles: bool) -> list[Phase]:
        group: dict[int, tuple[int, ...]] = {v: (v,) for v in members}
        pipeline = {v: alone(v) for v in members}
        for a, b in pairs:
            if group[a] is group[b]:
                continue
            joined = tuple(sorted(group[a] + group[b]))
            found = pipeline_of(joined)
            if found is None or found.needed_words(words) > limit:
                continue
            if checks_cycles and _waits_for_itself(edges_from, group, joined):
                continue
            for v in joined:
                group[v], pipeline[v] = joined, found
        pipelines = [(g, pipeline[g[0]]) for g in {id(g): g for g in group.values()}.values()]
        return _ordered_phases(period_edges, pipelines, words, period_begin)

    def phases(limit: float) -> list[Phase]:
        found = joined_phases(limit, checks_cycles=False)
        # groups that wait for each other are in no order; few graphs have them, so only these are checked
        count = sum(len(stage) for phase in found for stage in phase.stages)
        return found if count == len(members) else joined_phases(limit, checks_cycles=True)

    return phases


def _waits_for_itself(
    edges_from: Mapping[int, Sequence[Edge]], group: Mapping[int, tuple[int, ...]], joined: tuple[int, ...]
) -> bool:
    """Whether a path through other groups, from any of their operations to any other, leads out of the joined
    operations and back.
    """
    inside, seen, left = set(joined), set(joined), list(joined)
    while left:
        v = left.pop()
        for e in edges_from.get(v, ()):
            if e.target in inside:
                if v not in inside:
                    return True
            elif e.target not in seen:
                seen.update(group.get(e.target, (e.target,)))
                left.extend(group.get(e.target, (e.target,)))
    return False


def _steps_along(graph: Graph, edges_from: Mapping[int, Sequence[Edge]]) -> Step:
    """Returns the function that says through which rank the target of an edge steps. edges_from: edges by
    their source.
    """

    @cache
    def step(source: int, edge_number: int, rank: str) -> str:
        e = edges_from[source][edge_number]
        ranks = {_reader_rank(graph.operations[source].output, p, rank) for p in e.reads}
        return ranks.pop() if len(ranks) == 1 else ""

    return step


def fused_phases(
    graph: Graph, edges: Sequence[Edge], capacity: float, word_bits: int | None = None
) -> Callable[[frozenset[int]], list[Phase]]:
    """Returns a function of a set of operations of one period: the phases in which they run as one pipeline,
    one for each way to step, that which holds the fewest words first; [] if they cannot. As in
    `pipelined_phases`, and operations may also run in step because they read the same tensor, which is then
    read once for all.

    edges: of the graph; those whose pattern is sequential only since they skip a level may pipeline
    """
    begin = _period_begin(graph)
    edges_from: dict[int, list[Edge]] = defaultdict(list)
    for e in edges:
        if begin <= e.source and e.target < begin + graph.operations_per_period:
            edges_from[e.source].append(e)
    words, step = graph.words(word_bits), _steps_along(graph, edges_from)
    holds = _holding(graph, words, capacity)

    @cache
    def phases(operations: frozenset[int]) -> list[Phase]:
        members = sorted(v + begin for v in operations)
        if len(members) == 1:
            return single_phases(graph, members[0] - begin, capacity, words)
        if not _is_convex(edges_from, members):
            return []
        inner = [e for v in members for e in edges_from[v] if e.target in members]
        ways = [
            found
            for found in _pipelines(graph, edges_from, members, words, step, holds)
            if found.needed_words(words) <= capacity
        ]
        operations_of = [graph.operations[v] for v in members]
        left = _undominated(
            ways, [tensors_in_step(operations_of, [found.steps[v] for v in members]) for found in ways]
        )
        left.sort(key=lambda found: found.needed_words(words))
        return [_to_phase(_stages(inner, members, begin), found, words, begin) for found in left]

    return phases


def _to_phase(stages: Stages, found: Pipeline, words: Mapping[str, int], period_begin: int) -> Phase:
    held = tuple((v - period_begin, k) for v, k in found.held.values())
    steps = tuple((v - period_begin, rank) for v, rank in sorted(found.steps.items()))
    return Phase(stages, found.needed_words(words), held, steps, found.step_words)


def _undominated(ways: Sequence[Pipeline], in_step: Sequence[frozenset[str]]) -> list[Pipeline]:
    """The ways to run operations without those for which another one holds no tensor more, has as many in
    step, and works on no more words; of equal ones the first.
    """
    best = dict[tuple[frozenset[str], frozenset[str], int], Pipeline]()
    for found, of_one in zip(ways, in_step, strict=True):
        best.setdefault((frozenset(found.held), of_one, found.step_words), found)
    return [
        found
        for (held, of_one, own), found in best.items()
        if not any(
            h <= held and s >= of_one and n <= own and (h, s, n) != (held, of_one, own) for h, s, n in best
        )
    ]


def _holding(graph: Graph, words: Mapping[str, int], capacity: float) -> Callable[[int], bool]:
    """Returns the function that says whether an operation holds what its steps have in common where no other
    one of its pipeline feeds it: all but overfull ones (`is_overfull`) do.
    """

    @cache
    def holds(operation: int) -> bool:
        return not is_overfull(graph.operations[operation], words, capacity)

    return holds


def _is_convex(edges_from: Mapping[int, Sequence[Edge]], members: Sequence[int]) -> bool:
    """Whether no path leads out of the group and back into it, and all edges inside of it can be pipelined.
    edges_from: edges by their source.
    """
    group, outside = set(members), set[int]()
    # operations are in order of their numbers, and edges lead to larger ones; so at v it is known whether v
    # depends on the group
    for v in range(members[0], members[-1]):
        for e in edges_from.get(v, ()) if v in group or v in outside else ():
            if v in group and e.target in group:
                if e.pattern not in PIPELINED:
                    return False
            elif e.target in group:
                return False
            else:
                outside.add(e.target)
    return True


def _pipelines(
    graph: Graph,
    edges_from: Mapping[int, Sequence[Edge]],
    members: Sequence[int],
    words: Mapping[str, int],
    step: Step,
    holds: Callable[[int], bool] | None = None,
) -> list[Pipeline]:
    """Returns the ways in which these operations run as one pipeline; [] if they cannot all step through one
    rank. edges_from: edges by their source.

    Operations that are connected by tensors that they pass on step through the same dimension of each of
    them, so the rank of one of them decides those of all. An operation holds the tensors that it needs in
    every step: inputs from outside of the pipeline that lack its rank, and a result that lacks it, to which
    every step adds. Parts that are not connected so must be connected by tensors from outside that they read
    in step or all need whole, each once for all. What is added to a sum once (`_added_once`) may also be
    passed on when all of it is made, as all steps end.

    holds: whether an operation that reads from no other one of the pipeline holds them, too. None: as
    published, where none does, a step takes no place, and parts that are not connected share nothing: each
    takes the steps with which it holds the fewest words
    """
    group = set(members)
    inner_edges = [(i, e) for v in members for i, e in enumerate(edges_from.get(v, ())) if e.target in group]
    fed: dict[int, set[str]] = defaultdict(set)
    for _, e in inner_edges:
        fed[e.target].add(e.tensor)

    def way(steps: Mapping[int, str]) -> Pipeline:
        holding = {v for v in steps if fed.get(v) or (holds and holds(v))}
        in_step = _step_words(graph, steps, words) if holds else 0
        return Pipeline(_held(graph, steps, fed, words, holding), steps, in_step)

    def ends_with_sum(steps: Mapping[int, str], e: Edge) -> bool:
        source, target = graph.operations[e.source], graph.operations[e.target]
        is_whole = not is_cut(source, source.output, steps[e.source])
        return is_whole and steps[e.target] not in target.output.ranks()

    added = [(i, e) for i, e in inner_edges if holds and _added_once(graph, e)]
    found = list[Pipeline]()
    for late in [[], added] if added else [[]]:
        links = [pair for pair in inner_edges if pair not in late]
        passed_on = [(e.source, e.target) for _, e in links]
        parts = _parts(members, passed_on)
        choices = [_step_choices(graph, links, part, step, holds is not None) for part in parts]
        if not holds:
            return _apart([list(map(way, own)) for own in choices], words) if all(choices) else []
        found += [
            way(steps)
            for steps in (_joint_steps(graph, choices) if all(choices) else ())
            if all(ends_with_sum(steps, e) for _, e in late)
            and len(_parts(members, [*passed_on, *_shared(graph, steps)])) == 1
        ]
    return found


def _added_once(graph: Graph, e: Edge) -> bool:
    """Whether the target of an edge adds the tensor to a sum over ranks that the tensor lacks, or multiplies
    the sum with it: then it needs none of it before the sum is complete.
    """
    target = graph.operations[e.target]
    summed = set(target.sizes()) - target.output.ranks()
    return target.kind == "mac" and bool(summed) and not any(p.ranks() & summed for p in e.reads)


def _apart(ways: Sequence[list[Pipeline]], words: Mapping[str, int]) -> list[Pipeline]:
    """The ways of a single part, or one way in which each part holds the fewest words."""
    if len(ways) == 1:
        return ways[0]
    held, all_steps = ResidentTensors(), dict[int, str]()
    for part_ways in ways:
        best = min(part_ways, key=lambda found: found.needed_words(words))
        held, all_steps = held | best.held, all_steps | dict(best.steps)
    return [Pipeline(held, all_steps)]


def _joint_steps(graph: Graph, choices: Sequence[Sequence[dict[int, str]]]) -> Iterator[dict[int, str]]:
    """Yields steps of all parts together. choices: of each part. All of them, if they are at most
    MAX_JOINT_STEPS; else those in which each part takes the first choice that shares a read with the first.
    """
    if prod(map(len, choices)) <= MAX_JOINT_STEPS:
        for chosen in product(*choices):
            yield {v: rank for own in chosen for v, rank in own.items()}
        return
    for first in choices[0]:
        found = [
            next((own for own in part if any(_shared_between(graph, first, own))), None)
            for part in choices[1:]
        ]
        if None not in found:
            yield {v: rank for own in (first, *found) if own for v, rank in own.items()}


def _shared_between(graph: Graph, a: Mapping[int, str], b: Mapping[int, str]) -> Iterator[bool]:
    yield from (v in a and w in b for v, w in _shared(graph, {**a, **b}))


def _parts(members: Sequence[int], links: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Returns the operations in groups that links connect."""
    part = {v: [v] for v in members}
    for a, b in links:
        if part[a] is not part[b]:
            joined = sorted(part[a] + part[b])
            for v in joined:
                part[v] = joined
    return list({id(found): found for found in part.values()}.values())


def _step_choices(
    graph: Graph, inner_edges: Sequence[tuple[int, Edge]], part: Sequence[int], step: Step, shares_reads: bool
) -> list[dict[int, str]]:
    """Returns every way in which connected operations step at once, as {operation: its rank}; an operation
    that is connected to none steps as it does alone, or, if it shares reads, through any of its ranks.

    inner_edges: (number among the edges of its source, edge)
    """
    first = graph.operations[part[0]]
    if len(part) == 1:
        if not shares_reads:
            return [dict(_first_way(first, part[0]).steps)]
        return [{part[0]: rank} for rank in sorted(first.sizes())]
    found = []
    for rank in sorted(first.output.ranks()):
        steps, links = {part[0]: rank}, [(i, e) for i, e in inner_edges if e.source in part]
        while links:
            i, e = next((i, e) for i, e in links if e.source in steps or e.target in steps)
            links.remove((i, e))
            if e.source not in steps:
                output = graph.operations[e.source].output
                steps[e.source] = next(iter({_reader_rank(p, output, steps[e.target]) for p in e.reads}))
            target_rank = step(e.source, i, steps[e.source])
            if (
                not target_rank
                or steps[e.source] in barrier(graph.operations[e.source])
                or steps.setdefault(e.target, target_rank) != target_rank
            ):
                break
        else:
            found.append(steps)
    return found


def _step_words(graph: Graph, steps: Mapping[int, str], words: Mapping[str, int]) -> int:
    return step_words([graph.operations[v] for v in steps], [*steps.values()], words)


def _held(
    graph: Graph,
    steps: Mapping[int, str],
    fed: Mapping[int, set[str]],
    words: Mapping[str, int],
    holding: Set[int],
) -> ResidentTensors:
    """Returns the tensors that operations with these steps need whole in every step. fed: tensors that each
    gets from others of the pipeline; holding: the operations that hold what they need.
    """
    return {
        p.tensor: (v, k)
        for v, rank in steps.items()
        for k, p in enumerate(graph.operations[v].tensors())
        if v in holding
        and words[p.tensor]
        and p.tensor not in fed.get(v, ())
        and not is_cut(graph.operations[v], p, rank)
    }


def _shared(graph: Graph, steps: Mapping[int, str]) -> Iterator[tuple[int, int]]:
    """Yields pairs of operations that read the same elements of a tensor in the same step, or that both need
    all of it in every step.
    """
    readers: dict[str, list[tuple[int, Projection]]] = defaultdict(list)
    for v in steps:
        for p in graph.operations[v].inputs:
            readers[p.tensor].append((v, p))
    for reads in readers.values():
        for (a, p), (b, q) in combinations(reads, 2):
            step_through = steps[a] in p.ranks(), steps[b] in q.ranks()
            in_step = all(step_through) and _reader_rank(p, q, steps[a]) == steps[b]
            if a != b and (in_step or not any(step_through)):
                yield a, b


def _reader_rank(written: Projection, read: Projection, rank: str) -> str:
    """The rank with which a reader steps through a tensor that is written step by step along `rank`; "" if
    there is none.
    """
    step_dim = next((i for i, d in enumerate(written.dims) if rank in d.ranks()), None)
    for written_dims, read_dims in matching_dims(written.dims, read.dims) or ():
        if step_dim == written_dims[0]:
            return next(iter(read.dims[read_dims[0]].ranks()), "")
    return ""


def _ordered_phases(
    edges: Sequence[Edge],
    pipelines: Sequence[tuple[Sequence[int], Pipeline]],
    words: Mapping[str, int],
    period_begin: int,
) -> list[Phase]:
    """The pipelines as phases: each after those from which it reads, otherwise in the order of their first
    operations; without those that wait for each other. pipelines: operations of each, and how they run;
    period_begin: first operation of the period.
    """
    groups = [members for members, _ in pipelines]
    group_of = {v: g for g, members in enumerate(groups) for v in members}
    before: list[set[int]] = [set() for _ in groups]
    after: list[set[int]] = [set() for _ in groups]
    inner_edges: list[list[Edge]] = [[] for _ in groups]
    for e in edges:
        a, b = group_of[e.source], group_of[e.target]
        if a == b:
            inner_edges[a].append(e)
        else:
            before[b].add(a)
            after[a].add(b)
    ready = [(members[0], g) for g, members in enumerate(groups) if not before[g]]
    heapify(ready)
    found: list[Phase] = []
    while ready:
        _, g = heappop(ready)
        stages = _stages(inner_edges[g], groups[g], period_begin)
        found.append(_to_phase(stages, pipelines[g][1], words, period_begin))
        for other in after[g]:
            before[other].discard(g)
            if not before[other]:
                heappush(ready, (groups[other][0], other))
    return found


def _stages(edges: Sequence[Edge], members: Sequence[int], period_begin: int) -> Stages:
    """Stages of a group: an operation's stage is the length of the longest path inside the group that leads
    to it.
    """
    level = dict.fromkeys(members, 0)
    for e in edges:
        level[e.target] = max(level[e.target], level[e.source] + 1)
    found: list[list[int]] = [[] for _ in range(max(level.values()) + 1)]
    for v in members:
        found[level[v]].append(v - period_begin)
    return tuple(map(tuple, found))
