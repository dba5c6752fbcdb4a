"""Enumerates the segments whose einsums can share loops (docs/reuse.md, Fusion). With one loop:

segment                      members: adjacent einsums of the workload
  store DRAM W;  store G W   held tensor: loaded once for all trips, whole
  for m tile 8               one temporal loop, over a rank of every member's output
    store G T                forwarded tensor: made and read in the segment, tile by tile
    einsum a ...             all other tensors of a member come from the outermost level in every trip
    einsum b ...
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

from dse.mapping.classes import rank_classes, rank_of, reads_as_written, shared_tensors
from dse.mapping.trips import SplitLoop, even_splits
from dse.sim.schedule.faults import counted_one_by_one
from hw.arch import Arch, Fanout, Level
from workloads.einsum import Einsum
from workloads.graph import Workload, base_tensor, counts

MAX_MEMBERS = 10  # einsums of a segment, at most
# values of `solver.schedule`
FusingSchedule = Literal["fused", "pipelined", "residency", "gogeta", "seq-overflow"]


@dataclass(frozen=True, slots=True)
class Span:
    """A run of adjacent einsums."""

    first: int  # position of its first einsum
    last: int  # position of its last einsum


@dataclass(frozen=True, slots=True)
class Members(Span):
    """A run of einsums that can share a loop."""

    forwarded: tuple[str, ...]  # tensors that one member makes and others read
    # forwarded tensors that leave the run, too: read outside of it, or a loop's state
    spilled: frozenset[str]
    # loops that may be the only shared one; a loop is given by its rank in each member
    axes: tuple[tuple[str, ...], ...]
    # loops of which several may be shared (`classes.rank_classes`), given likewise
    classes: tuple[tuple[str, ...], ...] = ()

    @property
    def loops(self) -> tuple[tuple[str, ...], ...]:
        """Returns all loops that may be shared, classes first."""
        return (*self.classes, *(axis for axis in self.axes if axis not in self.classes))


@dataclass(frozen=True, slots=True)
class Split:
    """How a segment is divided among cores."""

    loops: tuple[SplitLoop, ...]  # one per dimension of the array
    cores: int  # in use
    einsums: tuple[Einsum, ...]  # the part of one core
    members: Members  # of these einsums


def agreeing_labels(
    i: int, left: Sequence[Span | None], right: Sequence[Span | None]
) -> list[tuple[int, int]]:
    """Returns the labels (left, right of einsum i) that agree, in order: a segment that begins or ends with i
    on one side, or the same segment on both. left, right: the segment that each label stands for, None first.
    """
    on_right = {id(m): at for at, m in enumerate(right) if m}
    begins = [(0, at) for at, m in enumerate(right) if m and m.first == i]
    crosses = [
        (at, on_right.get(id(m), 0)) for at, m in enumerate(left) if m and (m.last == i or id(m) in on_right)
    ]
    return begins + crosses


def fusing_levels(arch: Arch) -> tuple[Level, ...]:
    """Returns the levels at which fused einsums can forward tensors: on chip, outside of all arrays, for both
    inputs and outputs, and of one width: neither they nor levels outside of them narrow or widen elements.
    """
    first = min((f.outside for f in arch.fanouts), default=len(arch.levels))
    first = next((v for v, level in enumerate(arch.levels[:first]) if level.bits), first)
    return tuple(level for level in arch.levels[1:first] if {"input", "output"} <= set(level.may_keep))


def widths_in_the_way(arch: Arch, workload: Workload) -> list[str]:
    """Returns the fewest memories, outermost first, by their names in machine files, without whose `bits` a
    machine fuses einsums of a workload; all that have `bits` where it does not without any.
    """
    widths = arch.with_widths()
    for n in range(1, len(widths)):
        narrowed = [replace(one, bits=()) if one.name.lower() in widths[:n] else one for one in arch.levels]
        if "fused" in fusing_schedules(replace(arch, levels=tuple(narrowed)), workload):
            return widths[:n]
    return widths


def array_of_cores(arch: Arch) -> Fanout | None:
    """Returns the array whose PEs run fused segments, each on its part of them; None if there is none."""
    f = next(iter(arch.fanouts), None)
    if f is None or f.outside != 1 or f.systolic or f.has_price() or arch.models_layout():
        return None
    is_array = prod(n for _, n in f.dims) > 1
    return f if is_array and fusing_levels(one_core(arch, 1)) else None


def one_core(arch: Arch, cores: int) -> Arch:
    """Returns a machine of one core, with its part of all that cores share where so many are in use."""
    outer, compute = arch.levels[0], arch.compute
    core = replace(
        arch,
        levels=(replace(outer, bandwidth=outer.bandwidth / cores), *arch.levels[1:]),
        fanouts=arch.fanouts[1:],
        compute=replace(
            compute, alu_per_cycle=compute.alu_per_cycle and compute.alu_per_cycle / cores, vector_leak_mw=0.0
        ),
    )
    return core.with_more_leakage((arch.leak_mw() / cores - core.leak_mw()) / core.clock_ghz)


def has_nodes(arch: Arch) -> bool:
    """True if the machine is a grid of nodes with a buffer in each, on which pipelined schedules run."""
    return bool(arch.fanouts) and arch.fanouts[0].outside == 1 and len(arch.fanouts[0].dims) == 2


def fusing_schedules(arch: Arch, workload: Workload) -> Iterator[FusingSchedule]:
    """Yields the values of `solver.schedule` that reuse tensors between einsums on a machine, widest space
    first.
    """
    if counted_one_by_one(arch, workload):
        return
    array = array_of_cores(arch)
    pairs = (Members(*run, axes=()) for run in runs(workload, 2) if run[2])
    is_split = array and any(any(splits(workload, pair, array)) for pair in pairs)
    if fusing_levels(arch) or is_split:
        yield "fused"
    # the other solvers count elements of one width, at ports that serve all
    if arch.narrows_or_widens() or arch.with_ports():
        return
    if has_nodes(arch) and not arch.models_layout():
        yield "pipelined"
    is_bounded = len(arch.levels) > 1 and arch.levels[1].capacity_bits
    if is_bounded and not arch.layout_sensitive() and max(counts(workload)) == 1:
        yield from ("residency", "gogeta", "seq-overflow")


def splits(workload: Workload, m: Members, array: Fanout) -> Iterator[Split]:
    """Yields the splits of a segment over cores (`trips.even_splits`)."""
    einsums = workload.einsums[m.first : m.last + 1]
    made = {e.output.tensor for e in workload.einsums}
    for loops, parts in even_splits(einsums, made, array):
        sizes = parts[0].sizes()
        own = replace(
            m,
            axes=tuple(axis for axis in m.axes if sizes[axis[0]] > 1),
            classes=rank_classes(parts, made) if m.classes else (),
        )
        cores = prod(n // sizes[rank] for rank, n in einsums[0].extents)
        yield Split(loops, cores, parts, own)


# fields `first`, `last`, `forwarded` and `spilled` of Members
Run = tuple[int, int, tuple[str, ...], frozenset[str]]


def runs(workload: Workload, max_einsums: int) -> Iterator[Run]:
    """Yields all runs of 2 to `max_einsums` adjacent einsums, each of which occurs once. A tensor that a loop
    carries to its next iteration is spilled, too.
    """
    makers = {e.output.tensor: i for i, e in enumerate(workload.einsums)}
    readers: dict[str, set[int]] = {}
    for i, e in enumerate(workload.einsums):
        for p in e.inputs:
            readers.setdefault(base_tensor(p.tensor, makers), set()).add(i)
    results = {result for result, _ in workload.loop_state}
    occurs_once = [n == 1 for n in counts(workload)]
    for first in range(len(workload.einsums)):
        for last in range(first + 1, min(first + max_einsums, len(workload.einsums))):
            if not all(occurs_once[first : last + 1]):
                break
            forwarded = tuple(
                e.output.tensor
                for e in workload.einsums[first : last + 1]
                if any(first <= i <= last for i in readers.get(e.output.tensor, ()))
            )
            yield (
                first,
                last,
                forwarded,
                frozenset(
                    t for t in forwarded if t in results or any(not first <= i <= last for i in readers[t])
                ),
            )


def segments(workload: Workload) -> list[Members]:
    """Returns all runs of einsums that can share a loop, and whose first einsum makes a forwarded tensor and
    whose last one reads one: any other einsum at an end would gain nothing. A reader's windows may reach into
    padding around a forwarded tensor, in dimensions that the loop does not cut.
    """
    makers, found = {e.output.tensor: i for i, e in enumerate(workload.einsums)}, []
    for first, last, forwarded, spilled in runs(workload, MAX_MEMBERS):
        einsums = workload.einsums[first : last + 1]
        forwards_ends = einsums[0].output.tensor in forwarded and any(
            base_tensor(p.tensor, makers) in forwarded for p in einsums[-1].inputs
        )
        if forwards_ends and (axes := tuple(_axes(einsums, forwarded, makers))):
            found.append(Members(first, last, forwarded, spilled, axes))
    return found


def joined_segments(workload: Workload) -> list[Members]:
    """Returns the runs of `segments`, and those whose einsums can share several loops (`Members.classes`),
    also where all that they share is a tensor that they read. In each, the first and the last einsum have a
    tensor in common with others of the run: any other einsum at an end would gain nothing.
    """
    found = {(m.first, m.last): m for m in segments(workload)}
    produced = {e.output.tensor for e in workload.einsums}
    for first, last, forwarded, spilled in runs(workload, MAX_MEMBERS):
        einsums = workload.einsums[first : last + 1]
        users = [{i for i, _, _ in uses} for uses in shared_tensors(einsums, produced).values()]
        shares_ends = all(
            any(end in user_set and len(user_set) > 1 for user_set in users) for end in (0, len(einsums) - 1)
        )
        if shares_ends and (classes := rank_classes(einsums, produced)):
            members = found.get((first, last), Members(first, last, forwarded, spilled, ()))
            found[first, last] = replace(members, classes=classes)
    return [found[run] for run in sorted(found)]


def _axes(
    einsums: Sequence[Einsum], forwarded: Sequence[str], makers: Mapping[str, int]
) -> Iterator[tuple[str, ...]]:
    """Yields the loops that members can share, one rank per member. The loop cuts each forwarded tensor in
    the same dimension in its maker and its readers, so that a tile is complete when it is read.
    """
    users = {
        t: [p for e in einsums for p in e.tensors() if base_tensor(p.tensor, makers) == t] for t in forwarded
    }
    if all(p.tensor == t and reads_as_written(p, users[t][0]) for t in forwarded for p in users[t]):
        yield from _extended(einsums, frozenset(forwarded), (), {})


def _extended(
    einsums: Sequence[Einsum], forwarded: frozenset[str], ranks: tuple[str, ...], cut_dims: Mapping[str, int]
) -> Iterator[tuple[str, ...]]:
    """Yields all extensions of `ranks`, the loop in the first members, to all members.

    cut_dims: dimension in which these members cut each forwarded tensor. A member without any forwarded
    tensor may use any rank of equal extent. Columns of a compressed input are not cut: each trip would read
    row pointers again, which an unfused nest reads once. Rows that a softmax or norm needs whole are not cut.
    """
    if len(ranks) == len(einsums):
        yield ranks
        return
    e = einsums[len(ranks)]
    columns = {rank for p in e.inputs if p.format != "dense" for rank in p.dims[-1].ranks()}
    for rank in (
        rank
        for rank, n in e.extents
        if rank in e.output.full_ranks() - columns - e.whole_ranks()
        and n == einsums[0].sizes().get(ranks[0] if ranks else rank)
        and n > 1
    ):
        new_cuts = {
            p.tensor: next((i for i, dim in enumerate(p.dims) if rank_of(dim, e) == rank), -1)
            for p in e.tensors()
            if p.tensor in forwarded
        }
        if all(i >= 0 and cut_dims.get(t, i) == i for t, i in new_cuts.items()):
            yield from _extended(einsums, forwarded, (*ranks, rank), {**cut_dims, **new_cuts})
