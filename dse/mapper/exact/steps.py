"""Placements as lists of steps: the order of storage nodes, and which ranks may loop between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from dse.mapping.constraints import Constraints, Placement, placements
from hw.arch import Arch
from workloads.einsum import Einsum

NODE, GAP, ARRAY, MAC = 0, 1, 2, 3  # kinds of steps: storage node, loops alone, PEs, compute


@dataclass(frozen=True, slots=True)
class Step:
    """Temporal loops of the allowed ranks, followed by a storage node, the PEs of a fan-out boundary, or
    compute.
    """

    kind: int  # NODE, GAP, ARRAY or MAC
    allowed: frozenset[str]  # ranks that may loop there
    level: int = -1  # NODE: index of its level; ARRAY: number of levels outside of it
    tensor: int = -1  # number of the node's tensor
    # NODE: index of the level that fills it, -1: none. ARRAY, no level: 0 if loops may stand above it,
    # else -1
    parent: int = -1


def step_lists(e: Einsum, arch: Arch, rules: Constraints) -> Iterator[tuple[Placement, list[Step]]]:
    """Yields each placement with its list of steps. A double-buffered level stores a tile once if the tile
    is filled once. So a tensor's outermost node at such a level may also stand above the loops of its level,
    which gives a placement further lists.
    """
    for placement in placements(e, arch, rules):
        may_rise = [
            x
            for x in range(len(e.tensors()))
            for level in [next(i for i, held in enumerate(placement) if x in held)]
            if arch.levels[level].double_buffer and arch.levels[level].capacity_bits is not None
        ]
        for n in range(len(may_rise) + 1):
            for raised in combinations(may_rise, n):
                yield placement, steps_of(e, arch, rules, placement, raised)


def steps_of(
    e: Einsum, arch: Arch, rules: Constraints, placement: Placement, raised: Sequence[int]
) -> list[Step]:
    """The steps of a placement, with the ranks whose loops may gain something in each gap. No loop stands
    above the first node.

    A tensor's outermost node costs nothing. By default it stands below all loops of its level, where it holds
    least. Where capacity has no limit, or the tensor's index is in `raised`, it stands above them.
    """
    tensors, every = e.tensors(), frozenset(long_ranks(e))
    first_levels_inside = {f.outside for f in arch.fanouts}  # levels directly inside a fan-out boundary
    full, part = [p.full_ranks() for p in tensors], [p.partial_ranks() for p in tensors]
    outermost = {
        x: min(v for v, held in enumerate(placement) if x in held) for held in placement for x in held
    }
    parent = dict.fromkeys(range(len(tensors)), -1)
    found: list[Step] = []
    above: Step | None = None

    def gap(below: int = -1) -> frozenset[str]:
        """The ranks that may loop between the node above and the node below. A rank is left out where another
        gap serves at least as well:

        store L A       for m                       for k           store L B
        for m       ->  store L A                   store L B   ->  for k
        m fully relevant to A: the same fetches     k irrelevant to B: fewer fetches
        of smaller tiles                            of the same tile

        m stays allowed in three cases:

        1. A is double-buffered: a tile that is filled again is stored twice, so sinking may need more
           capacity.
        2. A is the stationary tensor: its node must stand above the loops.
        3. m is in the last dimension of a compressed A: every tile has its own row pointers, so there are
           more fetches.

        k stays allowed in two cases:

        1. A has k: A sinks through that loop only if B does not stand between.
        2. B has a window: the loop over k would stand between B and the loop that slides the window.
        """
        allowed = every
        filled = above is not None and above.parent >= 0
        if above is not None and filled:
            x = tensors[above.tensor]
            if not arch.levels[above.level].double_buffer and x.tensor != rules.stationary:
                allowed -= full[above.tensor] - (
                    frozenset(x.dims[-1].ranks()) if x.format != "dense" else frozenset()
                )
        if below >= 0 and not part[below]:
            allowed &= full[below] | (
                full[above.tensor] | part[above.tensor] if above is not None and filled else frozenset()
            )
        return allowed

    for v, held in enumerate((*placement, ())):
        if v in first_levels_inside:
            if found:
                found.append(Step(GAP, gap()))
            found.append(Step(ARRAY, every, v, parent=0 if found else -1))
            above = None
        # tensors whose outermost node is at level v
        outermost_here = [x for x in held if outermost[x] == v]
        unlimited = v < len(arch.levels) and arch.levels[v].capacity_bits is None
        above_loops = [
            x for x in outermost_here if unlimited or x in raised or (not found and x == outermost_here[0])
        ]
        for x in above_loops:
            found.append(above := Step(NODE, frozenset(), v, x))
            parent[x] = v
        for x in held:
            if outermost[x] < v:
                found.append(above := Step(NODE, gap(x), v, x, parent[x]))
                parent[x] = v
        if len(above_loops) < len(outermost_here):
            found.append(Step(GAP, gap()))
            for x in (x for x in outermost_here if x not in above_loops):
                found.append(above := Step(NODE, frozenset(), v, x))
                parent[x] = v
    return [*found, Step(MAC, every)]


def long_ranks(e: Einsum) -> list[str]:
    """Ranks of more than one value. If there are none, the first rank: the kernels need at least one."""
    return [rank for rank, n in e.extents if n > 1] or [rank for rank, _ in e.extents[:1]]
