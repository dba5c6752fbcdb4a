"""Turns GOGETA's phases into the segments of a schedule, which the evaluator prices.

The einsums of a phase share the loop over which the phase steps. A phase that no shared loop can run is split
into runs of successive operations that share one, or into single einsums. (An operation may be several
einsums: products and their sum.) Each segment works in a part of the first level below main memory. The rest
of that level is free for retained tensors (`dse/solve/gogeta/residency_plan.py`).

For example, einsums 4 (SL = S L) and 4u (R = R - SL) of the conjugate gradient method, on 16 clusters:

    parfor m tile M/16 over cluster
      store SRAM L            read in every step: held whole, multicast to all clusters
      for m tile t
        store SRAM SL         forwarded
        einsum 4 ... einsum 4u ...
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from dse.mapping.nest import Infeasible, Loop, Store, role
from dse.mapping.nest import Mapping as Nest
from dse.mapping.schedule import Branch, Schedule, Segment, rename_segment
from dse.sim.counts.counts import tile_bits
from dse.sim.einsum import boundary
from dse.sim.einsum.cost import node_bits
from dse.sim.schedule import graph, placed
from dse.sim.schedule.faults import faults
from dse.solve.gogeta.residency_plan import Lifetime, ResidencyProblem
from hw.arch import Arch
from workloads.einsum import Einsum, Projection
from workloads.graph import AGAIN, Workload, base_tensor

Nests = Callable[[Arch, Einsum], Nest | Infeasible]  # returns a nest of an einsum on a machine
Operation = tuple[str, ...]  # names of its einsums
Phase = tuple[Operation, ...]
# by (einsum, tensor): machine words that move from and to the outermost level
MovedWords = Mapping[tuple[str, str], float]
MAX_FORWARDED_SHARE = 0.5  # maximum share of a segment's bits for forwarded tiles
MAX_ONE_BY_ONE = 32  # operations of a part of a phase that join runs one by one
MAX_TILES = 6  # of a shared loop that are compared
MAX_HELD_SHARE = 0.75  # maximum share of a segment's bits for forwarded tiles and tensors held whole together


def phases_of(
    workload: Workload, operations: Sequence[Einsum], phases: Sequence[Sequence[int]]
) -> list[Phase]:
    """Returns the phases, with each operation as the names of its einsums: several where `accumulate_sums`
    joined a sum and the products that it alone reads. phases: numbers of operations.
    """
    makers = {e.output.tensor: e for e in workload.einsums}
    results = {e.output.tensor for e in operations}
    position_of = {e.name: i for i, e in enumerate(workload.einsums)}

    def own(e: Einsum) -> Iterator[str]:
        to_visit = [e]  # no recursion: a sum of sums may have thousands of einsums
        while to_visit:
            einsum = to_visit.pop()
            to_visit += [
                makers[p.tensor] for p in einsum.inputs if p.tensor in makers and p.tensor not in results
            ]
            yield einsum.name

    return [
        tuple(
            tuple(sorted(set(own(makers[operations[operation].output.tensor])), key=position_of.__getitem__))
            for operation in phase
        )
        for phase in phases
    ]


@dataclass(frozen=True, slots=True)
class Task:
    """What segments are made of."""

    arch: Arch
    workload: Workload
    by_name: Mapping[str, Einsum]
    position: Mapping[str, int]  # of an einsum in the workload, by its name
    nests: Nests
    bits: int  # of each instance of the first level below main memory, those that segments may use
    # returns the segment of operations that run at once, each on clusters of its own (`clusters.stages`);
    # None: all operations use all clusters, one after the other
    stages: Callable[[Task, Sequence[str]], Segment | None] | None = None
    # (einsum, tensor that it reads): taken to be on chip when the einsum begins, so that it moves no words
    retained: frozenset[tuple[str, str]] = frozenset()

    def named(self, names: Iterable[str]) -> list[Einsum]:
        """Returns einsums in the order of the workload."""
        return [self.by_name[name] for name in sorted(set(names), key=self.position.__getitem__)]


@dataclass(frozen=True, slots=True)
class _Run:
    """Segments of operations that may share a loop. names: of their einsums; words_apart: main-memory words
    of the operations one by one, if they do share one, else 0.
    """

    names: tuple[str, ...]
    segments: tuple[Segment, ...]
    words_apart: float = 0.0


# by (operations of a part of a phase, and what of them is taken to be retained, up to names; bits of the
# level that they may use; whether they run as stages): the einsums of the first such part, and their runs
EmittedParts = dict[tuple[object, int, bool], tuple[list[Einsum], list[_Run] | Infeasible]]


def segments(task: Task, phases: Sequence[Phase], emitted: EmittedParts) -> list[Segment] | Infeasible:
    """Returns the segments of all phases, Infeasible if an einsum does not fit. Of parts that differ in names
    only the first is solved. emitted: those found before, for the same arch, workload and nests; what is
    found is added.
    """
    found: list[Segment] = []
    made = {e.output.tensor for e in task.workload.einsums}
    readers: dict[str, set[str]] = defaultdict(set)
    for e in task.workload.einsums:
        for p in e.inputs:
            readers[base_tensor(p.tensor, made)].add(e.name)
    for part in (part for phase in phases for part in _connected_parts(phase, task.by_name)):
        key, einsums = _part_key(task, part, made, readers), task.named(_einsum_names(part))
        if (key, task.bits, False) not in emitted:
            emitted[key, task.bits, False] = einsums, _runs_of_part(task, part)
        first, runs = emitted[key, task.bits, False]
        if isinstance(runs, Infeasible):
            new_name = {e.name: to.name for e, to in zip(first, einsums, strict=True)}
            return replace(runs, einsum=new_name.get(runs.einsum, runs.einsum))
        if task.stages and (key, task.bits, True) not in emitted:
            emitted[key, task.bits, True] = first, [_staged(task, run) for run in runs]
        first, runs = emitted[key, task.bits, task.stages is not None]
        assert not isinstance(runs, Infeasible)
        found += [rename_segment(segment, first, einsums) for run in runs for segment in run.segments]
    return found


def _part_key(
    task: Task, part: Phase, made: Collection[str], readers: Mapping[str, Collection[str]]
) -> tuple[object, ...]:
    """Returns a key that is the same for operations that differ in names of einsums and tensors only. made:
    tensors that einsums of the workload make; readers: of each tensor, the einsums that read it.
    """
    einsums = task.named(_einsum_names(part))
    place, number = {e.name: i for i, e in enumerate(einsums)}, dict[str, int]()
    results = {result for result, _ in task.workload.loop_state}

    def anonymous(p: Projection) -> Projection:
        base = AGAIN.sub("", p.tensor)
        return replace(p, tensor=f"{number.setdefault(base, len(number))}{p.tensor[len(base) :]}")

    return (
        tuple(tuple(place[name] for name in names) for names in part),
        tuple(e.map_projections(anonymous, name="") for e in einsums),
        tuple(
            (
                p.tensor in made,
                p.tensor in results,
                p.tensor in task.workload.weights,
                set(place).issuperset(readers.get(p.tensor, ())),
                (e.name, p.tensor) in task.retained,
            )
            for e in einsums
            for p in e.tensors()
        ),
    )


def _runs_of_part(task: Task, part: Phase) -> list[_Run] | Infeasible:
    """Returns the segments of operations of a phase that tensors connect."""
    found: list[_Run] = []
    for run in _joined_runs(task, part):
        own = _run(task, run)
        if isinstance(own, Infeasible):
            return own
        found.append(own)
    return found


def _run(task: Task, run: Phase) -> _Run | Infeasible:
    """Returns the segments of operations that may share a loop: one of all of them, unless they move fewer
    words one by one, or none fits; then one or several of each operation.
    """
    names = tuple(_einsum_names(run))
    fused = _fused_segment(task, names)
    single: list[Segment] = []
    if fused and len(run) == 1:  # an operation alone: a product and its sum
        return _Run(names, (fused,))
    for operation in run:
        own = _fused_segment(task, operation) if len(operation) > 1 else None
        if own:
            single.append(own)
            continue
        for e in task.named(operation):
            nest = task.nests(with_capacity(task.arch, task.bits), e)
            if isinstance(nest, Infeasible):
                return _Run(names, (fused,)) if fused else nest
            single.append(Segment((Branch(e.name, nest),)))
    words_apart = _words_of(task, single)
    is_worse = fused and _words_of(task, [fused]) > words_apart
    return _Run(names, (fused,), words_apart) if fused and not is_worse else _Run(names, tuple(single))


def _staged(task: Task, run: _Run) -> _Run:
    """Returns a run with its operations as stages, if they share a loop and move no more words so than one by
    one.
    """
    staged = task.stages(task, run.names) if task.stages and run.words_apart else None
    is_better = staged and is_valid(task, staged) and _words_of(task, [staged]) <= run.words_apart
    return replace(run, segments=(staged,)) if staged and is_better else run


def _words_of(task: Task, parts: Sequence[Segment]) -> float:
    """Returns the main-memory words of segments, if nothing is retained between them but `task.retained`."""
    return sum(
        words
        for segment in parts
        for key, words in moved_words(task.arch, _of_segment(task, segment), Schedule((segment,))).items()
        if key not in task.retained
    )


def _of_segment(task: Task, segment: Segment) -> Workload:
    own = task.named(b.einsum for b in segment.branches)
    return replace(task.workload, einsums=tuple(own), repeats=())


def _einsum_names(part: Sequence[Operation]) -> list[str]:
    return [name for names in part for name in names]


def _joined_runs(task: Task, part: Phase) -> list[Phase]:
    """Returns operations in their order, grouped into runs: an operation joins the run before it if they can
    share one loop, or else its products do so without the sum that reads them. Of more than MAX_ONE_BY_ONE
    operations all are tried first.
    """
    found: list[list[Operation]] = []

    def share_a_loop(names: Sequence[str]) -> bool:
        return any(_best_loop(task, names, inside) for inside in (False, True))

    def joins(names: Operation) -> bool:
        return bool(found) and share_a_loop([*_einsum_names(found[-1]), *names])

    if len(part) > MAX_ONE_BY_ONE and share_a_loop(_einsum_names(part)):
        return [part]

    for names in part:
        if joins(names):
            found[-1].append(names)
        elif len(names) > 1 and joins(names[:-1]):
            found[-1].append(names[:-1])
            found.append([names[-1:]])
        else:
            found.append([names])
    return [tuple(run) for run in found]


def with_capacity(arch: Arch, bits: int) -> Arch:
    """Returns the machine with so many bits in each instance of the first level below main memory."""
    return replace(
        arch, levels=(arch.levels[0], replace(arch.levels[1], capacity_bits=bits), *arch.levels[2:])
    )


def _connected_parts(phase: Phase, by_name: Mapping[str, Einsum]) -> list[Phase]:
    """Returns the operations of a phase in groups that are connected by tensors that they pass on or read in
    step, in order of the workload.
    """
    found: list[Phase] = []
    made = {by_name[name].output.tensor for name in _einsum_names(phase)}
    for names in phase:
        read = {base_tensor(p.tensor, made) for name in names for p in by_name[name].inputs}
        producers = [
            part
            for part in found
            if read & {by_name[name].output.tensor for member in part for name in member}
            or loop_ranks([by_name[name] for name in (*_einsum_names(part), *names)])
        ]
        joined = (*(member for part in producers for member in part), names)
        found = [part for part in found if part not in producers] + [joined]
    return found


@dataclass(frozen=True, slots=True)
class _SharedLoop:
    """A loop that einsums share, below one that is unrolled, over the same rank or another one."""

    rank_of: Mapping[str, str]  # name of the einsum -> its rank of the loop
    dim: str  # fan-out dimension over which the outer loop is unrolled; "": none
    unrolled_of: Mapping[str, str]  # name of the einsum -> its rank of that loop
    pe_extent: int  # extent of the unrolled rank on one PE along `dim`
    extent: int  # of the rank of the loop on one PE
    tile: int  # indices of one trip
    # tensors that one of the einsums makes and another reads, or that several read in step from outside
    forwarded: tuple[str, ...]
    held_whole: tuple[str, ...]  # tensors without the rank that are held over all trips
    # (einsum, operand that all PEs of the unrolled loop read, which stands whole in the level of each)
    resident: frozenset[tuple[str, str]]
    bits: int  # of forwarded tiles and held tensors
    # main-memory words of all einsums; tensors without the rank move once per trip, unless they are held
    words: float


def _fused_segment(task: Task, names: Sequence[str]) -> Segment | None:
    """Returns the segment of einsums below one shared loop that moves fewer words: where each einsum reads
    what all PEs of the unrolled loop need from main memory, or where that stands in the level of each of
    them. None: they share no loop, or it does not fit.
    """
    einsums, found = task.named(names), list[Segment]()
    for stands_inside in (False, True):
        shared_loop = _best_loop(task, names, stands_inside)
        segment = _segment(task, einsums, shared_loop) if shared_loop else None
        if segment is None or (stands_inside and shared_loop and not shared_loop.resident):
            continue
        if is_valid(task, segment):
            found.append(segment)
    return min(found, key=lambda one: _words_of(task, [one]), default=None)


def is_valid(task: Task, segment: Segment) -> bool:
    """Whether a segment is a schedule of its einsums that fits."""
    subworkload, schedule = _of_segment(task, segment), Schedule((segment,))
    return not faults(task.arch, subworkload, schedule) and not isinstance(
        graph.evaluate(task.arch, subworkload, schedule), Infeasible
    )


def _best_loop(task: Task, names: Sequence[str], stands_inside: bool = False) -> _SharedLoop | None:
    """Returns the loop that einsums can share with the least traffic; None: there is none, or it moves more
    words than the einsums one by one. stands_inside: operands that all PEs need stand in the level.
    """
    if len(names) < 2:
        return None
    einsums = task.named(names)
    classes = loop_ranks(einsums)
    found = [
        shared_loop
        for rank_of, unrolled_of in product(classes, classes)
        if (shared_loop := _loop_over(task, einsums, rank_of, unrolled_of, stands_inside))
    ]
    best = min(found, key=lambda one: (one.words, one.unrolled_of != one.rank_of, one.bits), default=None)
    return (
        best
        if best
        and best.words
        <= sum(
            _tensor_words(p, task.arch)
            for e in einsums
            for p in e.tensors()
            if (e.name, p.tensor) not in task.retained
        )
        else None
    )


def _tensor_words(p: Projection, arch: Arch) -> float:
    return p.stored_bits(arch.word_bits) / arch.word_bits


def passed_on_by(einsums: Sequence[Einsum]) -> list[str]:
    """Returns the tensors that einsums pass to each other."""
    made = {e.output.tensor for e in einsums}
    read = {base_tensor(p.tensor, made) for e in einsums for p in e.inputs}
    return [e.output.tensor for e in einsums if e.output.tensor in read]


def loop_ranks(einsums: Sequence[Einsum]) -> list[dict[str, str]]:
    """Returns the possible shared loops, each as {name of an einsum: its rank}: the ranks index the same
    dimensions of forwarded tensors; where these do not connect all einsums, also of those that several read.
    """
    written = {e.output.tensor: (e.name, e.output) for e in einsums}
    if found := _ranks_through(einsums, written):
        return found
    first_read = {p.tensor: (e.name, p) for e in reversed(einsums) for p in e.inputs if p.format == "dense"}
    return _ranks_through(einsums, first_read | written)


def _ranks_through(
    einsums: Sequence[Einsum], written: Mapping[str, tuple[str, Projection]]
) -> list[dict[str, str]]:
    """Returns `loop_ranks` through some tensors. written: tensor -> (einsum, its access), with which those
    of all others are compared.
    """
    group = {(e.name, rank): {(e.name, rank)} for e in einsums for rank in e.sizes()}
    for e in einsums:
        for p in (p for p in e.inputs if base_tensor(p.tensor, written) in written):
            name, out = written[base_tensor(p.tensor, written)]
            for a, b in zip(out.dims, p.dims, strict=False):
                if (
                    a.size == b.size
                    and len(a.terms) == len(b.terms) == 1
                    and a.terms[0][1] == b.terms[0][1] == 1
                    and not a.offset
                    and not b.offset
                ):
                    less, more = sorted((group[name, a.terms[0][0]], group[e.name, b.terms[0][0]]), key=len)
                    more |= less
                    group |= dict.fromkeys(less, more)
    sizes, place = {e.name: e.sizes() for e in einsums}, {e.name: i for i, e in enumerate(einsums)}

    def in_order(members: Iterable[tuple[str, str]]) -> list[tuple[int, str]]:
        return sorted((place[name], rank) for name, rank in members)

    distinct = {id(members): members for members in group.values()}.values()
    return [
        {einsums[i].name: rank for i, rank in members}
        for members in sorted(map(in_order, distinct))
        if len(members) == len(einsums) == len({i for i, _ in members})
        and len({sizes[einsums[i].name][rank] for i, rank in members}) == 1
    ]


def _loop_over(
    task: Task,
    einsums: Sequence[Einsum],
    rank_of: Mapping[str, str],
    unrolled_of: Mapping[str, str],
    stands_inside: bool,
) -> _SharedLoop | None:
    """Returns the shared loop over ranks `rank_of`, below one over ranks `unrolled_of` on the PEs outside of
    the level, with the largest tile that fits, and its traffic; None: no tile fits, a forwarded tensor lacks
    a rank, or there are no PEs for another rank. stands_inside: as in `_best_loop`.
    """
    arch, bits, retained = task.arch, task.bits, task.retained
    dim, pes = max(
        ((name, size) for f in arch.fanouts if f.outside <= 1 for name, size in f.dims),
        key=lambda pair: pair[1],
        default=("", 1),
    )
    if unrolled_of != rank_of and pes < 2:
        return None
    made = passed_on_by(einsums)
    forwarded = [*made, *_read_in_step(einsums, (rank_of, unrolled_of), made)]
    if any(
        not {rank_of[e.name], unrolled_of[e.name]} <= p.full_ranks()
        for e in einsums
        for p in e.tensors()
        if base_tensor(p.tensor, forwarded) in forwarded
    ):
        return None
    # the einsum that makes or first reads each tensor
    first = {p.tensor: e for e in reversed(einsums) for p in e.inputs} | {e.output.tensor: e for e in einsums}
    buffers, name = 2 if arch.levels[1].double_buffer else 1, einsums[0].name
    pe_extent = -(-einsums[0].sizes()[unrolled_of[name]] // pes)
    extent = tile = pe_extent if unrolled_of == rank_of else einsums[0].sizes()[rank_of[name]]

    def sizes_on_pe(e: Einsum) -> dict[str, int]:
        return e.sizes() | {unrolled_of[e.name]: pe_extent}

    def forwarded_bits(tile: int) -> int:
        rows = [
            tile_bits(p, sizes_on_pe(first[t]) | {rank_of[first[t].name]: tile}, arch.word_bits)
            for t in forwarded
            for p in first[t].tensors()
            if p.tensor == t
        ]
        return buffers * sum(rows)

    # what all PEs of the unrolled loop read; what the loop does not cut is held below, if it fits
    resident = [
        (e, p)
        for e in (einsums if stands_inside and pes > 1 else ())
        for p in e.inputs
        if unrolled_of[e.name] not in p.ranks() and base_tensor(p.tensor, forwarded) not in forwarded
    ]

    def resident_bits(tile: int) -> int:
        return buffers * sum(
            tile_bits(p, e.sizes() | {rank_of[e.name]: tile}, arch.word_bits) for e, p in resident
        )

    def fits(tile: int) -> bool:
        own = forwarded_bits(tile)
        return own <= MAX_FORWARDED_SHARE * bits and own + resident_bits(tile) <= MAX_HELD_SHARE * bits

    users = defaultdict(list)
    for e in einsums:
        for p in e.tensors():
            users[base_tensor(p.tensor, forwarded)].append((e, p))

    def with_tile(tile: int) -> _SharedLoop:
        used_bits, trips = forwarded_bits(tile) + resident_bits(tile), -(-extent // tile)
        held_whole, words = list[str](), 0.0
        for tensor, uses in sorted(users.items(), key=lambda item: item[1][0][1].stored_bits(arch.word_bits)):
            uses = [(e, p) for e, p in uses if (e.name, p.tensor) not in retained]
            if not uses:
                continue
            if tensor in forwarded:
                words += _tensor_words(uses[0][1], arch) if tensor not in made else 0
                continue
            first_user, p = uses[0]
            is_cut = unrolled_of[first_user.name] in p.ranks()
            size = buffers * (
                tile_bits(p, sizes_on_pe(first_user), arch.word_bits)
                if is_cut
                else p.stored_bits(arch.word_bits)
            )
            may_hold = trips > 1 and len(uses) == 1 and rank_of[first_user.name] not in p.ranks()
            if may_hold and (first_user, p) in resident:
                used_bits -= size
            if may_hold and used_bits + size <= MAX_HELD_SHARE * bits:
                held_whole.append(tensor)
                used_bits += size
            for e, p in uses:
                reads = trips if rank_of[e.name] not in p.ranks() and tensor not in held_whole else 1
                words += _tensor_words(p, arch) * (2 * reads - 1 if p is e.output else reads)
        return _SharedLoop(
            rank_of,
            dim if pes > 1 else "",
            unrolled_of,
            pe_extent,
            extent,
            tile,
            tuple(forwarded),
            tuple(held_whole),
            frozenset((e.name, p.tensor) for e, p in resident if p.tensor not in held_whole),
            used_bits,
            words,
        )

    # powers of two, which spread evenly over PEs
    while not fits(tile) and tile > 1:
        tile = 1 << (tile - 1).bit_length() - 1
    if not fits(tile):
        return None
    found = [with_tile(tile)]
    while resident and tile > 1 and len(found) < MAX_TILES:  # smaller ones may leave space to hold others
        tile = 1 << (tile - 1).bit_length() - 1
        found.append(with_tile(tile))
    return min(found, key=lambda one: one.words)


def _read_in_step(
    einsums: Sequence[Einsum], loops: Sequence[Mapping[str, str]], made: Sequence[str]
) -> list[str]:
    """Returns the dense tensors from outside of which several einsums read the same part in each trip of the
    loops, in the order of the einsums. loops: of each, name of the einsum -> its rank.
    """
    reads: dict[str, list[tuple[Einsum, Projection]]] = defaultdict(list)
    for e in einsums:
        for p in e.inputs:
            reads[p.tensor].append((e, p))
    again = {base_tensor(t, reads) for t in reads if base_tensor(t, reads) != t}
    found = []
    for tensor, uses in reads.items():
        positions = {
            tuple(rank_of[e.name] in d.ranks() for d in p.dims for rank_of in loops) for e, p in uses
        }
        is_whole = all(
            {rank_of[e.name] for rank_of in loops} <= p.full_ranks() and p.format == "dense" for e, p in uses
        )
        own = (
            base_tensor(tensor, made) in made
            or tensor in again
            or tensor in {e.output.tensor for e in einsums}
        )
        if (
            len(uses) > 1
            and len(positions) == 1
            and is_whole
            and not own
            and base_tensor(tensor, reads) == tensor
        ):
            found.append(tensor)
    return found


def tensors_outside(workload: Workload, einsums: Sequence[Einsum], forwarded: Sequence[str]) -> list[str]:
    """Returns the tensors of einsums that move from or to main memory: all but those that these einsums pass
    to each other and none else reads.
    """
    names, inside = {e.name for e in einsums}, set(passed_on_by(einsums))
    made = {e.output.tensor for e in workload.einsums}
    read_later = {
        base_tensor(p.tensor, made) for e in workload.einsums if e.name not in names for p in e.inputs
    } | {result for result, _ in workload.loop_state}
    tensors = dict.fromkeys(base_tensor(p.tensor, {*made, *forwarded}) for e in einsums for p in e.tensors())
    return [t for t in tensors if t not in inside or t in read_later]


def _segment(task: Task, einsums: Sequence[Einsum], shared_loop: _SharedLoop) -> Segment | None:
    """Returns the segment of einsums below a shared loop, None if a nest does not fit."""
    arch, bits = task.arch, task.bits
    outer, retention_level = arch.levels[0].name, arch.levels[1].name
    outer_tensors = tensors_outside(task.workload, einsums, shared_loop.forwarded)
    rank, unrolled = (of[einsums[0].name] for of in (shared_loop.rank_of, shared_loop.unrolled_of))
    nodes: list[Loop | Store] = [Store(outer, t) for t in outer_tensors]
    nodes += [Loop(unrolled, shared_loop.pe_extent, shared_loop.dim)] if shared_loop.dim else []
    nodes += [Store(retention_level, t) for t in shared_loop.held_whole]
    nodes += [Loop(rank, shared_loop.tile)] if shared_loop.tile < shared_loop.extent else []
    nodes += [Store(retention_level, t) for t in shared_loop.forwarded]
    inner_arch = with_capacity(arch, bits - shared_loop.bits)
    inner_arch = (
        replace(inner_arch, fanouts=tuple(f for f in arch.fanouts if f.outside > 1))
        if shared_loop.dim
        else inner_arch
    )
    shared_tensors, branches = {*shared_loop.held_whole, *shared_loop.forwarded}, []
    for e in einsums:
        own = {rank: shared_loop.rank_of[e.name], unrolled: shared_loop.unrolled_of[e.name]}
        part = {own[unrolled]: shared_loop.pe_extent, own[rank]: shared_loop.tile}
        nest = task.nests(
            inner_arch, replace(e, extents=tuple((r, min(n, part.get(r, n))) for r, n in e.extents))
        )
        if isinstance(nest, Infeasible) or nest.non_nest_text:
            return None
        resident = [p.tensor for p in e.inputs if (e.name, p.tensor) in shared_loop.resident]
        inner_nodes = tuple(
            n
            for n in nest.nodes
            if not (
                isinstance(n, Store)
                and (
                    n.level == outer
                    or (
                        n.level == retention_level
                        and (
                            n.tensor in resident
                            or base_tensor(n.tensor, shared_loop.forwarded) in shared_tensors
                        )
                    )
                )
            )
        )
        inner_nodes = (*(Store(retention_level, t) for t in resident), *inner_nodes)
        names_of = tuple((r, mine) for r, mine in own.items() if mine != r)
        branches.append(Branch(e.name, Nest(inner_nodes), names_of))
    return Segment(tuple(branches), tuple(nodes))


def moved_words(arch: Arch, workload: Workload, schedule: Schedule) -> MovedWords:
    """Returns the words that move from and to the outermost level, by (einsum, tensor)."""
    return _moved_words(arch, placed.placed_segments(arch, workload, schedule))


def _moved_words(arch: Arch, placed_segments: Sequence[Sequence[placed.Placed]]) -> MovedWords:
    outer, found = arch.levels[0].name, defaultdict[tuple[str, str], float](float)
    for stage in (stage for stages in placed_segments for stage in stages):
        bits = {p.tensor: p.bits or arch.word_bits for p in stage.einsum.tensors()}
        nest = boundary.whole_nest(stage.boundary, stage.nest)
        for row in boundary.counted(stage.boundary, nest, stage.einsum, stage.arch).rows:
            if row.level == outer and row.action in ("read", "write"):
                found[stage.einsum.name, row.tensor] += row.elems * bits[row.tensor] / arch.word_bits
    return found


def residency_problem(
    arch: Arch, workload: Workload, schedule: Schedule
) -> tuple[MovedWords, ResidencyProblem, ResidencyProblem]:
    """Returns, of a schedule that retains nothing, `moved_words`, and the problem of which tensors to retain
    between its segments: without those of which a reader fetches less than a later one reads
    (`placed.bypasses_retained`), and with those of them that the workload makes, in one share.
    """
    g, level = placed.graph(workload, schedule), arch.levels[1]
    placed_segments = placed.placed_segments(arch, workload, schedule)
    unretained_words = _moved_words(arch, placed_segments)
    assert level.capacity_bits is not None
    free_bits = [
        level.capacity_bits
        - max(need.get(level.name, 0) for need in graph.required_bits(segment, stages, arch))
        for segment, stages in zip(schedule.segments, placed_segments, strict=True)
    ]
    run_once = {e.name for e, n in workload.runs() if n == 1}
    words_of: dict[tuple[str, str], float] = defaultdict(float)
    for (name, tensor), n in unretained_words.items():
        words_of[name, base_tensor(tensor, g.makers)] += n
    bypassed = {
        t
        for segment in schedule.segments
        for b in segment.branches
        for t in {base_tensor(p.tensor, g.makers) for p in g.einsums[b.einsum].inputs}
        if placed.bypasses_retained(t, b, segment, g, arch.levels[0].name)
    }
    misplaced = {  # an einsum has them in a role that may not stand there
        base_tensor(p.tensor, g.makers)
        for e in workload.einsums
        for p in e.tensors()
        if role(e, p.tensor) not in level.may_keep
    }
    every = sorted(_lives(arch, g, words_of, run_once), key=lambda life: life.tensor)
    every = [life for life in every if life.tensor not in misplaced]
    lives = [life for life in every if life.tensor not in bypassed]
    tiles = tuple(_spared_tiles(arch, placed_segments, {life.tensor for life in lives}, g))

    def problem_of(lives: Sequence[Lifetime]) -> ResidencyProblem:
        return ResidencyProblem(tuple(lives), tuple(free_bits), tuple(_heirs(lives, schedule, g)), tiles)

    in_one_share = [
        _in_one_share(life) if life.tensor in bypassed else life
        for life in every
        if life.tensor not in bypassed or life.is_produced
    ]
    problem = problem_of(lives)
    return unretained_words, problem, problem_of(in_one_share) if in_one_share != lives else problem


def _heirs(lives: Sequence[Lifetime], schedule: Schedule, g: placed.Graph) -> Iterator[tuple[int, str, str]]:
    """Yields (segment, old tensor, new tensor) where the new one may take the place of the old one."""
    for segment_index, segment in enumerate(schedule.segments):
        # `stops` of a lifetime: the segments that make or read the tensor
        last_used = [life.tensor for life in lives if life.stops[-1] == segment_index]
        for new in (life.tensor for life in lives if life.is_produced and life.stops[0] == segment_index):
            if old := next((old for old in last_used if placed.reuses_space(old, new, segment, g)), None):
                last_used.remove(old)
                yield segment_index, old, new


def _in_one_share(life: Lifetime) -> Lifetime:
    """Returns the lifetime of a tensor that is retained in one share from the einsum that makes it to the
    last that reads it: none of those between brings in more of it.
    """
    return replace(
        life,
        stops=(life.stops[0], life.stops[-1]),
        last=(life.last[0], life.last[-1]),
        moved_words=(life.moved_words[0], sum(life.moved_words[1:])),
    )


def _spared_tiles(
    arch: Arch, placed_segments: Sequence[Sequence[placed.Placed]], tensors: Collection[str], g: placed.Graph
) -> Iterator[tuple[int, str, int]]:
    """Yields (segment, tensor, bits) for segments of a single einsum: the bits of each tile at the retention
    level whose space is free if the tensor is retained whole. No tiles are yielded if the level is sliced
    over PEs, nor for the segment that is the first to load an input.
    """
    level = arch.levels[1]
    for segment_index, stages in enumerate(placed_segments):
        for stage in stages if len(stages) == 1 and not boundary.is_sliced(level.name, arch) else ():
            rows = [
                row
                for row in boundary.node_footprints(
                    stage.boundary, boundary.whole_nest(stage.boundary, stage.nest), stage.einsum, arch
                )
                if row.level == level.name
            ]
            for row in rows:
                tensor = base_tensor(row.tensor, g.makers)
                if tensor in tensors and (
                    tensor in g.makers or g.position[stage.einsum.name] > placed.begin(tensor, g)
                ):
                    yield segment_index, tensor, node_bits(row, level, stage.einsum, arch)


def _lives(
    arch: Arch, g: placed.Graph, unretained_words: MovedWords, run_once: set[str]
) -> Iterator[Lifetime]:
    """Yields the tensors that may be retained: those used in at least two segments, and only by einsums in
    `run_once` (that run once).
    """
    instances = arch.instances(1)
    for tensor, names in g.readers.items():
        users = sorted(
            {*names, *([g.makers[tensor]] if tensor in g.makers else [])}, key=g.position.__getitem__
        )
        using_segments = tuple(sorted({g.position[name][0] for name in users}))
        if len(using_segments) < 2 or not run_once.issuperset(users):
            continue
        projections = placed.accesses(tensor, g)
        bits = max(p.bits or arch.word_bits for p in projections)
        size = -(-max(p.stored_bits(arch.word_bits) for p in projections) // (bits * instances))
        users_by_segment = [
            [name for name in users if g.position[name][0] == segment_index]
            for segment_index in using_segments
        ]
        yield Lifetime(
            tensor,
            using_segments,
            users[0],
            tuple(segment_users[-1] for segment_users in users_by_segment),
            size,
            bits,
            max(_tensor_words(p, arch) for p in projections),
            tuple(
                sum(unretained_words.get((name, tensor), 0.0) for name in segment_users)
                for segment_users in users_by_segment
            ),
            tensor in g.makers,
            tensor in g.results,
        )
