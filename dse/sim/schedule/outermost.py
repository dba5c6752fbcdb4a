"""Capacity of the outermost level, which holds tensors whole (docs/model.md, Capacity).

The bits that an einsum needs at this level depend on no mapping. For a workload, the tensors that are alive
at the same time add up:
* weights: all the time
* inputs from outside: until their last read
* tensors that an einsum makes: from then until their last read
* results: from then until the end
Tensors that a schedule passes on or retains on chip take no capacity there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import update_wrapper
from math import ceil
from typing import Concatenate, ParamSpec, TypeVar

from dse.mapping.nest import Infeasible, Store
from dse.mapping.schedule import Schedule, Segment
from dse.sim.einsum.evaluate import Problem
from dse.sim.levels import transfer
from dse.sim.schedule import placed
from hw.arch import Arch
from workloads.einsum import Einsum
from workloads.graph import Workload, base_of_any

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A tensor that stands at the outermost level from step `first` to step `last` of a run, both
    included.
    """

    tensor: str
    bits: int  # of the whole tensor
    first: int
    last: int


def einsum_bits(e: Einsum, word_bits: int) -> int:
    """Returns the bits of all tensors of an einsum, stored whole. A second access (T_again) is the same
    tensor.
    """
    found: dict[str, int] = {}
    for p in e.tensors():
        name = base_of_any(p.tensor, [q.tensor for q in e.tensors()], [e.output.tensor])
        found[name] = max(found.get(name, 0), p.stored_bits(word_bits))
    return sum(found.values())


def overflow_of_einsum(e: Einsum, arch: Arch) -> Infeasible | None:
    """Returns the overflow of the outermost level by one einsum, or None."""
    return _overflow(einsum_bits(e, arch.word_bits), e.name, arch)


def overflow_unfused(arch: Arch, workload: Workload) -> Infeasible | None:
    """Returns the overflow of the outermost level by unfused einsums, or None. It names the einsum that runs
    when most bits are alive.
    """
    if arch.levels[0].capacity_bits is None:
        return None
    step, bits = peak(lifetimes(workload, arch.word_bits), len(workload.einsums))
    return _overflow(bits, workload.einsums[step].name, arch)


def overflow_of_any(arch: Arch, workload: Workload, pinned: bool = False) -> Infeasible | None:
    """Returns the overflow of the outermost level by any schedule of a workload, or None.

    Before the first einsum all inputs from outside are there, after the last one all results, and weights all
    the time. pinned: without weights, which may be on chip.
    """
    if arch.levels[0].capacity_bits is None:
        return None
    made = {e.output.tensor for e in workload.einsums}
    read = {_tensor_of(p.tensor, workload) for e in workload.einsums for p in e.inputs}
    passed_on = {t for t in made if t in read and t not in {result for result, _ in workload.loop_state}}
    rows = [
        row
        for row in lifetimes(workload, arch.word_bits)
        if row.tensor not in passed_on and not (pinned and row.tensor in workload.weights)
    ]
    end = len(workload.einsums) - 1
    before = sum(row.bits for row in rows if row.tensor not in made)
    after = sum(row.bits for row in rows if row.tensor in made or row.last == end)
    step, bits = (0, before) if before >= after else (end, after)
    return _overflow(bits, workload.einsums[step].name, arch)


def overflow_of_schedule(arch: Arch, workload: Workload, schedule: Schedule) -> Infeasible | None:
    """Returns the overflow of the outermost level by a schedule, or None. All tensors that a segment reads or
    makes are alive while it runs.
    """
    if arch.levels[0].capacity_bits is None:
        return None
    step, bits = peak(_schedule_lifetimes(arch, workload, schedule), len(schedule.segments))
    return _overflow(bits, schedule.segments[step].branches[0].einsum, arch)


def peak(rows: Sequence[Lifetime], steps: int) -> tuple[int, int]:
    """Returns the first step with the most bits alive, and these bits."""
    alive = [sum(row.bits for row in rows if row.first <= step <= row.last) for step in range(steps)]
    return alive.index(max(alive)), max(alive)


def lifetimes(workload: Workload, word_bits: int) -> list[Lifetime]:
    """Returns the lifetime of every tensor under the unfused schedule; a step is an einsum."""
    bits, users = dict[str, int](), dict[str, list[int]]()
    for i, e in enumerate(workload.einsums):
        for p in e.tensors():
            name = _tensor_of(p.tensor, workload)
            bits[name] = max(bits.get(name, 0), p.stored_bits(word_bits))
            users.setdefault(name, []).append(i)
    made, end = {e.output.tensor for e in workload.einsums}, len(workload.einsums) - 1
    kept_to_end = workload.weights | {result for result, _ in workload.loop_state}
    unread = made - {_tensor_of(p.tensor, workload) for e in workload.einsums for p in e.inputs}
    return [
        Lifetime(
            name,
            bits[name],
            users[name][0] if name in made else 0,
            end if name in kept_to_end | unread else users[name][-1],
        )
        for name in bits
    ]


def _schedule_lifetimes(arch: Arch, workload: Workload, schedule: Schedule) -> list[Lifetime]:
    """Returns the lifetimes of tensors with a node at the outermost level; a step is a segment. Of a retained
    tensor only the share counts that is not always on chip.
    """
    g, outer = placed.graph(workload, schedule), arch.levels[0].name
    tensor_bits = _tensor_bits(arch, workload, schedule, g)
    at_outermost = {
        _tensor_of(node.tensor, workload)
        for segment in schedule.segments
        for node in _stores(segment)
        if node.level == outer
    }
    always_on_chip = {
        one.tensor: placed.always_retained(one, g) for one in schedule.retained if one.tensor in g.makers
    }
    segment_of = {e.name: g.position[e.name][0] for e in workload.einsums}
    in_order = replace(workload, einsums=tuple(sorted(workload.einsums, key=lambda e: g.position[e.name])))
    found = []
    for row in lifetimes(in_order, arch.word_bits):
        if row.tensor in at_outermost:
            steps = [segment_of[in_order.einsums[i].name] for i in (row.first, row.last)]
            bits = ceil(tensor_bits[row.tensor] * (1 - always_on_chip.get(row.tensor, Fraction(0))))
            found.append(Lifetime(row.tensor, bits, steps[0], steps[1]))
    return found


def _stores(segment: Segment) -> Iterable[Store]:
    nodes = (*segment.nodes, *(node for branch in segment.branches for node in branch.mapping.nodes))
    return (node for node in nodes if isinstance(node, Store))


def _tensor_bits(arch: Arch, workload: Workload, schedule: Schedule, g: placed.Graph) -> dict[str, int]:
    """Returns the bits of every tensor, in the layouts of the schedule."""
    found = {row.tensor: row.bits for row in lifetimes(workload, arch.word_bits)}
    for segment in schedule.segments:
        for branch in segment.branches if not segment.nodes else ():
            e = g.einsums[branch.einsum]
            bits = {p.tensor: p.bits or arch.word_bits for p in e.tensors()}
            for row in transfer.footprints(branch.mapping, e, arch) if branch.mapping.layouts else ():
                if row.level == arch.levels[0].name:
                    name = _tensor_of(row.tensor, workload)
                    found[name] = max(found[name], int(row.elems * bits[row.tensor]))
    return found


def _overflow(bits: int, name: str, arch: Arch) -> Infeasible | None:
    outer = arch.levels[0]
    if outer.capacity_bits is None or bits <= outer.capacity_bits:
        return None
    return Infeasible(outer.name, -(-bits // 8), outer.capacity_bits // 8, name)


def _tensor_of(tensor: str, workload: Workload) -> str:
    """Returns the tensor of the workload that a name stands for."""
    made = {e.output.tensor for e in workload.einsums}
    return base_of_any(tensor, made.union(p.tensor for e in workload.einsums for p in e.inputs), made)


def mapper(solve: Callable[Concatenate[Problem, P], T]) -> Callable[Concatenate[Problem, P], T | Infeasible]:
    """Wraps a mapper: checks first that the einsum's tensors fit the outermost level, then calls the mapper
    on the machine without that limit, since no mapping changes whether they fit.
    """

    def solve_if_it_fits(problem: Problem, /, *args: P.args, **kwargs: P.kwargs) -> T | Infeasible:
        if problem.arch.levels[0].capacity_bits is None:
            return solve(problem, *args, **kwargs)
        unbounded_problem = replace(problem, arch=problem.arch.unbounded())
        return overflow_of_einsum(problem.einsum, problem.arch) or solve(unbounded_problem, *args, **kwargs)

    update_wrapper(solve_if_it_fits, solve)
    return solve_if_it_fits
