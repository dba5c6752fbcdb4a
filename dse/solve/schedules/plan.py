"""A fused segment, its plans, and what they cost (docs/reuse.md, Fusion)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import inf

from dse.mapping.nest import Loop, Mapping, Store
from dse.mapping.schedule import Branch, Schedule, Segment, rename
from dse.sim.counts.counts import tile_bits
from dse.sim.einsum.evaluate import EinsumCost, Problem, einsum_cost
from dse.sim.schedule import placed
from dse.solve.schedules.fusible_segments import Members
from dse.solve.schedules.nests import Nests, Place, retained_nest
from hw.arch import Arch, Level
from workloads.einsum import Einsum
from workloads.graph import Workload, base_tensor


@dataclass(slots=True)
class FusedSegment:
    """Einsums that are to run fused, with their tiles at a level, beside what is retained there."""

    arch: Arch  # the machine that prices plans; `nests` may leave row activations out
    nests: Nests
    level: Level
    own: Sequence[Einsum]  # its einsums
    members: Members
    # tensors of each einsum that stand at the level whole, at no cost here
    retained: Sequence[frozenset[str]]
    free_bits: float  # of the level, for tiles and nests
    made: Collection[str]  # all tensors that einsums of the workload make
    below_split: bool = False  # loops over cores stand above (cores.py), so that it may have none of its own


@dataclass(frozen=True, slots=True)
class Plan:
    """How a fused segment runs."""

    level: str  # where the tensors below stand; "": there are none
    loops: tuple[tuple[int, int], ...]  # index into Members.loops, tile; outermost first
    # tensors at the level, and how many of the loops stand above each
    at: tuple[tuple[str, int], ...]
    # the einsums for which the plan was found; a segment of equal einsums with other names may use the plan
    like: tuple[Einsum, ...]
    nests: tuple[Mapping, ...] = ()  # nest of each einsum of `like`, below the shared loops


@dataclass(frozen=True, slots=True)
class Option:
    """Cost of a segment, or of an einsum alone."""

    energy: float  # inf: no plan was found, though one may exist
    latency: float
    lower_bound: float  # no plan of these einsums costs less, in the unit of `Nest.lower_bound`
    plan: Plan
    need_bits: int = 0  # bits at the level: shared storage nodes and the largest branch


def in_order(own: Sequence[Einsum]) -> list[str]:
    """Returns the tensors of einsums, each once, in the order in which they stand."""
    return list(dict.fromkeys(p.tensor for e in own for p in e.tensors()))


def plan_segment(s: FusedSegment, plan: Plan) -> Segment:
    """Returns the segment of a plan, which was found for einsums that are equal but for names."""
    m, arch, own = s.members, s.arch, s.own
    outer, loops = arch.levels[0].name, [(m.loops[number], tile) for number, tile in plan.loops]
    names = dict(zip(in_order(plan.like), in_order(own), strict=True))
    nodes: list[Loop | Store] = [Store(outer, t) for t in m.forwarded if t in m.spilled]
    nodes += [Store(outer, names[t]) for t, _ in plan.at]
    for depth in range(len(loops) + 1):
        nodes += [Store(plan.level, names[t]) for t, own_depth in plan.at if own_depth == depth]
        nodes += [Loop(ranks[0], tile) for ranks, tile in loops[depth : depth + 1]]
    nodes += [Store(plan.level, t) for t in m.forwarded]
    branches = [
        Branch(
            e.name,
            retained_nest(rename(nest, like, e), arch, Place(plan.level, retained=retained)),
            tuple(sorted((ranks[0], ranks[j]) for ranks, _ in loops if ranks[j] != ranks[0])),
        )
        for j, (e, retained, nest, like) in enumerate(
            zip(own, s.retained, plan.nests, plan.like, strict=True)
        )
    ]
    return Segment(tuple(branches), tuple(nodes))


def may_hold(
    s: FusedSegment, tensor: str, at_outer: bool, loops: Sequence[tuple[tuple[str, ...], int]] = ()
) -> bool:
    """True if rules of all einsums that have a tensor let it stand at the level of a segment
    (`Nests.may_hold`).

    loops: those above it, as (rank in each einsum, tile)
    """
    return all(
        s.nests.may_hold(e, p.tensor, s.level, at_outer, [(ranks[j], tile) for ranks, tile in loops])
        for j, e in enumerate(s.own)
        if s.nests.limits.get(e.name)
        for p in e.tensors()
        if base_tensor(p.tensor, s.made) == tensor
    )


def may_forward(s: FusedSegment, loops: Sequence[tuple[tuple[str, ...], int]]) -> bool:
    """True if rules let the forwarded tensors stand at the level alone below shared loops (`may_hold`)."""
    return all(may_hold(s, t, t in s.members.spilled, loops) for t in s.members.forwarded)


def price(s: FusedSegment, plan: Plan, need: int) -> Option | None:
    """Returns the evaluator's price of a plan that needs so many bits, None if it does not fit or lacks a
    nest.
    """
    if len(plan.nests) < len(s.own):
        return None
    (members,) = placed.placed_segments(
        s.arch, Workload("", tuple(s.own)), Schedule((plan_segment(s, plan),))
    )
    energy = latency = 0.0
    for one, retained in zip(members, s.retained, strict=True):
        whole_tensors = tuple(
            (p.tensor, plan.level, Fraction(1)) for p in one.einsum.tensors() if p.tensor in retained
        )
        boundary = replace(one.boundary, retained=whole_tensors)
        key = one.einsum, boundary, one.nest  # many plans have an einsum in common
        if key not in s.nests.prices:
            s.nests.prices[key] = einsum_cost(
                Problem(s.arch, one.einsum, s.nests.objective, boundary), one.nest
            )
        cost = s.nests.prices[key]
        if not isinstance(cost, EinsumCost):
            return None
        energy, latency = energy + cost.energy_pj, latency + cost.latency_cycles
    return Option(energy, latency, inf, plan, need)


def forwarded_bits(s: FusedSegment, trips: Sequence[dict[str, int]]) -> list[int]:
    """Returns the bits of forwarded tiles that are alive while each einsum runs.

    trips: extents of each einsum in one trip of the shared loops, by rank
    """
    found, twice = [0] * len(s.own), 2 if s.level.double_buffer else 1
    for i, (e, sizes) in enumerate(zip(s.own, trips, strict=True)):
        t = e.output.tensor
        if t in s.members.forwarded:
            last = max(j for j, other in enumerate(s.own) if t in {p.tensor for p in other.inputs})
            bits = twice * tile_bits(e.output, sizes, s.arch.word_bits)
            for j in range(i, last + 1):
                found[j] += bits
    return found
