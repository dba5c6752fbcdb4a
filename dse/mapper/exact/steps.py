"""Placements as steps: which nodes stand in which order, and which ranks may be cut between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from dse.mapping.space import Constraints, Placement, placements
from hw.arch import Arch
from workloads.einsum import Einsum

NODE, GAP, LANES, MAC = 0, 1, 2, 3  # kinds of steps


@dataclass(frozen=True, slots=True)
class Step:
    """Loops in time of the allowed ranks, then a node of a tensor at a level (by number; parent: the level
    that fills it, -1: none), lanes (parent -1: no loop stands above), or compute.
    """

    kind: int
    allowed: frozenset[str]
    level: int = -1
    tensor: int = -1
    parent: int = -1


def programs(e: Einsum, arch: Arch, rules: Constraints) -> Iterator[tuple[Placement, list[Step]]]:
    """The step lists of all placements. Double buffering holds a tile once if it is filled once: there an
    outermost node may also stand above all loops.
    """
    for placement in placements(e, arch, rules):
        twice = [
            x
            for x in range(len(e.tensors()))
            for level in [next(i for i, own in enumerate(placement) if x in own)]
            if arch.levels[level].double_buffer and arch.levels[level].capacity_bits is not None
        ]
        for n in range(len(twice) + 1):
            for raised in combinations(twice, n):
                yield placement, steps_of(e, arch, rules, placement, raised)


def steps_of(
    e: Einsum, arch: Arch, rules: Constraints, placement: Placement, raised: Sequence[int]
) -> list[Step]:
    """The steps of a placement with the ranks whose loops may gain something in each gap; no loop stands
    above the first node.

    A tensor's outermost node costs nothing and holds least after all loops of its level; it stands first
    where nothing bounds it, or if it is raised.
    """
    tensors, every, borders = e.tensors(), frozenset(long_ranks(e)), {f.outside for f in arch.fanouts}
    full, part = [p.full() for p in tensors], [p.partial() for p in tensors]
    outermost = {x: min(v for v, own in enumerate(placement) if x in own) for own in placement for x in own}
    parent = dict.fromkeys(range(len(tensors)), -1)
    found: list[Step] = []
    above: Step | None = None

    def gap(below: int = -1) -> frozenset[str]:
        """The ranks that may loop between the node above and the node below. Left out where another gap
        serves at least as well:

            store L A       for m                       for k           store L B
            for m       ->  store L A                   store L B   ->  for k
            m fully relevant to A: the same fetches     k irrelevant to B: fewer fetches
            of smaller tiles                            of the same tile

        m stays allowed if A is double-buffered (a tile that is filled again is held twice, so sinking may
        need more room), if A is the stationary tensor (its node must stand above the loops), or in the last
        dimension of a compressed A (every tile has row pointers of its own: more fetches). k stays allowed if
        A sees it (A sinks through that loop only if B does not stand between), or if B has a window (the loop
        over k would stand between B and the loop that slides it).
        """
        allowed = every
        filled = above is not None and above.parent >= 0
        if above is not None and filled:
            x = tensors[above.tensor]
            if not arch.levels[above.level].double_buffer and x.tensor != rules.stationary:
                allowed -= full[above.tensor] - (
                    frozenset(x.dims[-1].ranks()) if x.format == "csr" else frozenset()
                )
        if below >= 0 and not part[below]:
            allowed &= full[below] | (
                full[above.tensor] | part[above.tensor] if above is not None and filled else frozenset()
            )
        return allowed

    for v, own in enumerate((*placement, ())):
        if v in borders:
            if found:
                found.append(Step(GAP, gap()))
            found.append(Step(LANES, every, v, parent=0 if found else -1))
            above = None
        tops = [x for x in own if outermost[x] == v]
        free = v < len(arch.levels) and arch.levels[v].capacity_bits is None
        first = [x for x in tops if free or x in raised or (not found and x == tops[0])]
        for x in first:
            found.append(above := Step(NODE, frozenset(), v, x))
            parent[x] = v
        for x in own:
            if outermost[x] < v:
                found.append(above := Step(NODE, gap(x), v, x, parent[x]))
                parent[x] = v
        if len(first) < len(tops):
            found.append(Step(GAP, gap()))
            for x in (x for x in tops if x not in first):
                found.append(above := Step(NODE, frozenset(), v, x))
                parent[x] = v
    return [*found, Step(MAC, every)]


def long_ranks(e: Einsum) -> list[str]:
    """Ranks of more than one value; of none the first, for the kernels walk one at least."""
    return [rank for rank, n in e.extents if n > 1] or [rank for rank, _ in e.extents[:1]]
