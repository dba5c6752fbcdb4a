"""Turns GOGETA's phases into the segments of a schedule, which the evaluator prices.

The einsums of a phase share the loop over which the phase steps. A phase that no shared loop can run is split
into runs of successive operations that share one, or into single einsums. (An operation may be several
einsums: products and their sum.) Each segment works in a part of the first level below main memory. The rest
of that level is free for retained tensors (`dse/solve/gogeta/residency_plan.py`).

    phase 4 -> 4u, 16 slices           parfor m tile M over cluster / 16
                                         store SRAM L            read in every step: held, multicast
                                         for m tile t
                                           store SRAM SL         forwarded
                                           einsum 4 ... einsum 4u ...
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from dse.mapping.nest import Infeasible, Loop, Store
from dse.mapping.nest import Mapping as Nest
from dse.mapping.schedule import Branch, Schedule, Segment
from dse.sim.counts.actions import bits_of
from dse.sim.counts.counts import tile_bits
from dse.sim.einsum import boundary
from dse.sim.einsum.cost import node_bits
from dse.sim.schedule import graph, placed
from dse.sim.schedule.faults import faults
from dse.solve.gogeta.residency_plan import Life, ResidencyProblem
from hw.arch import Arch
from workloads.einsum import Einsum, Projection
from workloads.graph import Workload, owner

Nests = Callable[[Arch, Einsum], Nest | Infeasible]  # returns a nest of an einsum on a machine
Operation = Sequence[str]  # names of its einsums
Phase = Sequence[Operation]
# by (einsum, tensor): machine words that move from and to the outermost level
MovedWords = Mapping[tuple[str, str], float]
FORWARDED = 0.5  # maximum share of a segment's bits for forwarded tiles
HELD_WHOLE = 0.75  # maximum share of a segment's bits for forwarded tiles and tensors held whole together


def phases_of(
    workload: Workload, operations: Sequence[Einsum], phases: Sequence[Sequence[int]]
) -> list[Phase]:
    """Returns the phases, with each operation as the names of its einsums: several where `accumulate_sums`
    joined a sum and the products that it alone reads. phases: numbers of operations.
    """
    makers = {e.output.tensor: e for e in workload.einsums}
    results = {e.output.tensor for e in operations}
    place = {e.name: i for i, e in enumerate(workload.einsums)}

    def own(e: Einsum) -> Iterator[str]:
        left = [e]  # no recursion: a sum of sums may have thousands of einsums
        while left:
            one = left.pop()
            left += [makers[p.tensor] for p in one.inputs if p.tensor in makers and p.tensor not in results]
            yield one.name

    return [
        [sorted(set(own(makers[operations[at].output.tensor])), key=place.__getitem__) for at in phase]
        for phase in phases
    ]


def segments(
    arch: Arch, workload: Workload, phases: Sequence[Phase], bits: int, nests: Nests
) -> list[Segment] | Infeasible:
    """Returns the segments of all phases, Infeasible if an einsum does not fit. bits: of each instance of the
    first level below main memory, those that the segments may use.
    """
    by_name, found = {e.name: e for e in workload.einsums}, list[Segment]()
    runs = (
        run
        for phase in phases
        for part in _parts(phase, by_name)
        for run in _join(arch, workload, part, bits)
    )
    for names in (names for run in runs for names in _shared(arch, workload, run, bits, nests)):
        fused = _fused(arch, workload, names, bits, nests)
        found += [fused] if fused else []
        for name in () if fused else names:
            nest = nests(_with_buffer(arch, bits), by_name[name])
            if isinstance(nest, Infeasible):
                return nest
            found.append(Segment((Branch(name, nest),)))
    return found


def _shared(arch: Arch, workload: Workload, run: Phase, bits: int, nests: Nests) -> Sequence[Operation]:
    """Returns all einsums of a run as one group if their segment fits, else one group per operation."""
    return [_names(run)] if len(run) < 2 or _fused(arch, workload, _names(run), bits, nests) else run


def _names(part: Phase) -> list[str]:
    return [name for names in part for name in names]


def _join(arch: Arch, workload: Workload, part: Phase, bits: int) -> list[Phase]:
    """Returns operations in their order, grouped into runs: an operation joins the run before it if they can
    share one loop.
    """
    found: list[list[Operation]] = []
    for names in part:
        if found and _loop(arch, workload, [*_names(found[-1]), *names], bits):
            found[-1].append(names)
        else:
            found.append([names])
    return list(found)


def _with_buffer(arch: Arch, bits: int) -> Arch:
    return replace(
        arch, levels=(arch.levels[0], replace(arch.levels[1], capacity_bits=bits), *arch.levels[2:])
    )


def _parts(phase: Phase, by_name: Mapping[str, Einsum]) -> list[list[Operation]]:
    """Returns the operations of a phase in groups that are connected by tensors, in order of the workload."""
    found: list[list[Operation]] = []
    for names in phase:
        made = {by_name[name].output.tensor for own in phase for name in own}
        read = {owner(p.tensor, made) for name in names for p in by_name[name].inputs}
        near = [
            part for part in found if read & {by_name[name].output.tensor for own in part for name in own}
        ]
        joined = [own for part in near for own in part] + [names]
        found = [part for part in found if part not in near] + [joined]
    return found


@dataclass(frozen=True, slots=True)
class _Cut:
    """A loop that einsums share."""

    axis: Mapping[str, str]  # name of the einsum -> its rank of the loop
    dim: str  # fan-out dimension over which the loop is unrolled; "": none
    per: int  # extent of the loop on one PE along `dim`
    tile: int  # indices of one trip
    forwarded: tuple[str, ...]  # tensors that one of the einsums makes and another reads
    held_whole: tuple[str, ...]  # tensors without the rank that are held over all trips
    bits: int  # of forwarded tiles and held tensors
    # main-memory words of all einsums; tensors without the rank move once per trip, unless they are held
    words: float


def _fused(arch: Arch, workload: Workload, names: Sequence[str], bits: int, nests: Nests) -> Segment | None:
    """Returns the segment of einsums below one shared loop; None: they share no loop, or it does not fit."""
    einsums, cut = _of(workload, names), _loop(arch, workload, names, bits)
    segment = _segment(arch, workload, einsums, cut, bits, nests) if cut else None
    if segment is None:
        return None
    alone, schedule = replace(workload, einsums=tuple(einsums), repeats=()), Schedule((segment,))
    if faults(arch, alone, schedule):
        return None
    return None if isinstance(graph.evaluate(arch, alone, schedule), Infeasible) else segment


def _of(workload: Workload, names: Sequence[str]) -> list[Einsum]:
    return [e for e in workload.einsums if e.name in names]


def _loop(arch: Arch, workload: Workload, names: Sequence[str], bits: int) -> _Cut | None:
    """Returns the loop that einsums can share with the least traffic; None: there is none, or it moves more
    words than the einsums one by one.
    """
    einsums = _of(workload, names)
    if len(einsums) < 2 or max(n for e, n in workload.runs() if e.name in names) > 1:
        return None
    found = [cut for axis in _axes(einsums) if (cut := _cut(arch, einsums, axis, bits))]
    best = min(found, key=lambda cut: (cut.words, cut.bits), default=None)
    return best if best and best.words <= sum(_words(p, arch) for e in einsums for p in e.tensors()) else None


def _words(p: Projection, arch: Arch) -> float:
    return p.stored_bits(arch.word_bits) / arch.word_bits


def _forwarded(einsums: Sequence[Einsum]) -> list[str]:
    made = {e.output.tensor for e in einsums}
    read = {owner(p.tensor, made) for e in einsums for p in e.inputs}
    return [e.output.tensor for e in einsums if e.output.tensor in read]


def _axes(einsums: Sequence[Einsum]) -> list[dict[str, str]]:
    """Returns the possible shared loops, each as {name of an einsum: its rank}: the ranks index the same
    dimensions of forwarded tensors.
    """
    group = {(e.name, rank): {(e.name, rank)} for e in einsums for rank in e.sizes()}
    written = {e.output.tensor: (e.name, e.output) for e in einsums}
    for e in einsums:
        for p in (p for p in e.inputs if owner(p.tensor, written) in written):
            name, out = written[owner(p.tensor, written)]
            for a, b in zip(out.dims, p.dims, strict=False):
                if (
                    a.size == b.size
                    and len(a.terms) == len(b.terms) == 1
                    and a.terms[0][1] == b.terms[0][1] == 1
                    and not a.offset
                    and not b.offset
                ):
                    joined = group[name, a.terms[0][0]] | group[e.name, b.terms[0][0]]
                    for member in joined:
                        group[member] = joined
    sizes = {e.name: e.sizes() for e in einsums}
    found = {tuple(sorted(members)) for members in group.values()}
    return [
        dict(members)
        for members in sorted(found)
        if len(members) == len(einsums) == len({name for name, _ in members})
        and len({sizes[name][rank] for name, rank in members}) == 1
    ]


def _cut(arch: Arch, einsums: Sequence[Einsum], axis: Mapping[str, str], bits: int) -> _Cut | None:
    """Returns the shared loop over ranks `axis` with the largest tile that fits, and its traffic; None: no
    tile fits, or a forwarded tensor lacks the rank.
    """
    handed = _forwarded(einsums)
    if any(
        axis[e.name] not in p.full()
        for e in einsums
        for p in e.tensors()
        if owner(p.tensor, handed) in handed
    ):
        return None
    extent, twice = einsums[0].sizes()[axis[einsums[0].name]], 2 if arch.levels[1].double_buffer else 1
    dim, pes = max(
        ((name, size) for f in arch.fanouts if f.outside <= 1 for name, size in f.dims),
        key=lambda pair: pair[1],
        default=("", 1),
    )
    per = tile = -(-extent // pes)

    def room(tile: int) -> int:
        rows = [
            tile_bits(e.output, e.sizes() | {axis[e.name]: tile}, arch.word_bits)
            for e in einsums
            if e.output.tensor in handed
        ]
        return twice * sum(rows)

    while room(tile) > FORWARDED * bits and tile > 1:  # powers of two, which spread evenly over PEs
        tile = 1 << (tile - 1).bit_length() - 1
    taken, trips, held, words = room(tile), -(-per // tile), [], 0.0
    if taken > FORWARDED * bits:
        return None
    users = defaultdict(list)
    for e in einsums:
        for p in e.tensors():
            users[owner(p.tensor, handed)].append((e, p))
    for tensor, own in sorted(users.items(), key=lambda item: item[1][0][1].stored_bits(arch.word_bits)):
        if tensor in handed:
            continue
        size = twice * own[0][1].stored_bits(arch.word_bits)
        whole = trips > 1 and len(own) == 1 and axis[own[0][0].name] not in own[0][1].ranks()
        if whole and taken + size <= HELD_WHOLE * bits:
            held.append(tensor)
            taken += size
        for e, p in own:
            again = trips if axis[e.name] not in p.ranks() and tensor not in held else 1
            words += _words(p, arch) * (2 * again - 1 if p is e.output else again)
    return _Cut(axis, dim if pes > 1 else "", per, tile, tuple(handed), tuple(held), taken, words)


def _segment(
    arch: Arch, workload: Workload, einsums: Sequence[Einsum], cut: _Cut, bits: int, nests: Nests
) -> Segment | None:
    """Returns the segment of einsums below a shared loop, None if a nest does not fit."""
    outer, inner = arch.levels[0].name, arch.levels[1].name
    names = {e.name for e in einsums}
    made = {e.output.tensor for e in workload.einsums}
    wanted = {owner(p.tensor, made) for e in workload.einsums if e.name not in names for p in e.inputs} | {
        after for after, _ in workload.loop_state
    }
    there = dict.fromkeys(
        t
        for e in einsums
        for p in e.tensors()
        if (t := owner(p.tensor, cut.forwarded)) not in cut.forwarded or t in wanted
    )
    rank = cut.axis[einsums[0].name]
    nodes: list[Loop | Store] = [Store(outer, t) for t in there]
    nodes += [Loop(rank, cut.per, cut.dim)] if cut.dim else []
    nodes += [Store(inner, t) for t in cut.held_whole]
    nodes += [Loop(rank, cut.tile)] if cut.tile < cut.per else []
    nodes += [Store(inner, t) for t in cut.forwarded]
    small = _with_buffer(arch, bits - cut.bits)
    small = replace(small, fanouts=tuple(f for f in arch.fanouts if f.outside > 1)) if cut.dim else small
    shared, branches = {*cut.held_whole, *cut.forwarded}, []
    for e in einsums:
        own = cut.axis[e.name]
        nest = nests(
            small, replace(e, extents=tuple((r, min(n, cut.tile) if r == own else n) for r, n in e.extents))
        )
        if isinstance(nest, Infeasible) or nest.outside:
            return None
        rest = tuple(
            n
            for n in nest.nodes
            if not (
                isinstance(n, Store)
                and (n.level == outer or (n.level == inner and owner(n.tensor, cut.forwarded) in shared))
            )
        )
        branches.append(Branch(e.name, Nest(rest), ((rank, own),) if own != rank else ()))
    return Segment(tuple(branches), tuple(nodes))


def moved_words(arch: Arch, workload: Workload, schedule: Schedule) -> MovedWords:
    """Returns the words that move from and to the outermost level, by (einsum, tensor)."""
    outer, found = arch.levels[0].name, defaultdict[tuple[str, str], float](float)
    for one in (one for own in placed.placed(arch, workload, schedule) for one in own):
        bits = {p.tensor: p.bits or arch.word_bits for p in one.einsum.tensors()}
        whole = boundary.whole_nest(one.boundary, one.nest)
        for row in boundary.counted(one.boundary, whole, one.einsum, one.arch).rows:
            if row.level == outer and row.action in ("read", "write"):
                found[one.einsum.name, row.tensor] += row.elems * bits[row.tensor] / arch.word_bits
    return found


def residency_problem(
    arch: Arch, workload: Workload, schedule: Schedule, far: MovedWords
) -> ResidencyProblem:
    """Returns the problem of which tensors to retain between the segments of a schedule that retains none.
    far: `moved_words` of that schedule.
    """
    g, level = placed.graph(workload, schedule), arch.levels[1]
    assert level.capacity_bits is not None
    free = [
        level.capacity_bits - max(need.get(level.name, 0) for need in graph.required_bits(segment, own, arch))
        for segment, own in zip(schedule.segments, placed.placed(arch, workload, schedule), strict=True)
    ]
    once = {e.name for e, n in workload.runs() if n == 1}
    own_words: dict[tuple[str, str], float] = defaultdict(float)
    for (name, tensor), n in far.items():
        own_words[name, owner(tensor, g.makers)] += n
    short = {
        t
        for segment in schedule.segments
        for b in segment.branches
        for t in g.readers
        if b.einsum in g.readers[t] and placed.bypasses_retained(t, b, segment, g, arch.levels[0].name)
    }
    lives = [one for one in _lives(arch, g, own_words, once) if one.tensor not in short]
    lives.sort(key=lambda one: one.tensor)
    heirs: list[tuple[int, str, str]] = []
    for at, segment in enumerate(schedule.segments):
        dying = [one.tensor for one in lives if one.stops[-1] == at]
        for new in (one.tensor for one in lives if one.produced and one.stops[0] == at):
            if old := next((old for old in dying if placed.reuses_space(old, new, segment, g)), None):
                dying.remove(old)
                heirs.append((at, old, new))
    tiles = _tiles(arch, workload, schedule, {one.tensor for one in lives}, g)
    return ResidencyProblem(tuple(lives), tuple(free), tuple(heirs), tuple(tiles))


def _tiles(
    arch: Arch, workload: Workload, schedule: Schedule, tensors: Collection[str], g: placed.Graph
) -> Iterator[tuple[int, str, int]]:
    """Yields (segment, tensor, bits) of tiles that the one einsum of a segment does not need if the tensor is
    retained whole. No tiles are yielded if the level is sliced over PEs, nor for the segment that is the
    first to load an input.
    """
    level = arch.levels[1]
    for at, (segment, own) in enumerate(
        zip(schedule.segments, placed.placed(arch, workload, schedule), strict=True)
    ):
        for one in own if len(segment.branches) == 1 and not boundary.is_sliced(level.name, arch) else ():
            rows = [
                row
                for row in boundary.node_footprints(
                    one.boundary, boundary.whole_nest(one.boundary, one.nest), one.einsum, arch
                )
                if row.level == level.name
            ]
            for row in rows:
                tensor = owner(row.tensor, g.makers)
                if tensor in tensors and (
                    tensor in g.makers or g.at[one.einsum.name] > placed.begin(tensor, g)
                ):
                    yield at, tensor, node_bits(row, level, bits_of(one.einsum, arch))


def _lives(arch: Arch, g: placed.Graph, far: MovedWords, once: set[str]) -> Iterator[Life]:
    """Yields the tensors that may be retained: those used in at least two segments, and only by einsums in
    `once` (that run once).
    """
    instances = arch.instances(1)
    for tensor, names in g.readers.items():
        users = sorted({*names, *([g.makers[tensor]] if tensor in g.makers else [])}, key=g.at.__getitem__)
        stops = tuple(sorted({g.at[name][0] for name in users}))
        if len(stops) < 2 or not once.issuperset(users):
            continue
        forms = placed.accesses(tensor, g)
        bits = max(p.bits or arch.word_bits for p in forms)
        size = -(-max(p.stored_bits(arch.word_bits) for p in forms) // (bits * instances))
        there = [[name for name in users if g.at[name][0] == stop] for stop in stops]
        yield Life(
            tensor,
            stops,
            users[0],
            tuple(own[-1] for own in there),
            size,
            bits,
            max(_words(p, arch) for p in forms),
            tuple(sum(far.get((name, tensor), 0.0) for name in own) for own in there),
            tensor in g.makers,
            tensor in g.results,
        )
