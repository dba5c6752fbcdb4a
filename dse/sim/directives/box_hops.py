"""Hops on a mesh of directives that are no nest: each word travels to all buffers that request it at once
(docs/model.md, Directives and Networks).

As in boxes.py, the buffers that request a word are a product over dimensions: buffers whose boxes contain its
index now, without those that had it before. Indices of a dimension are therefore grouped by the buffers that
have and had them. Each combination of groups is one set of PEs, whose tree network.py measures.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import prod

from dse.sim.directives.boxes import Program, Turn, box, moving, steps_of, union_size
from dse.sim.levels import network
from hw.arch import Arch, Fanout
from workloads.einsum import Dim, Projection

At = frozenset[tuple[int, ...]]  # positions in some stacks over the mesh
# links to all PEs at the given positions of the given stacks
Reach = Callable[[Sequence[Turn], Sequence[tuple[int, ...]]], float]


@dataclass(frozen=True, slots=True)
class Mesh:
    """The stacks of a program over one fan-out."""

    f: Fanout
    stacks: tuple[Turn, ...]  # stacks over the mesh, innermost first
    strides: tuple[tuple[int, int], ...]  # per stack, PEs (rows, columns) from one position to the next
    parted: tuple[Turn, ...] = ()  # stacks whose buffers share out a tile

    def pe_at(self, at: dict[Turn, int]) -> tuple[int, int]:
        """Returns (row, column) of the PE at the given position in every stack."""
        y, x = (first for first, _ in (self.f.mesh_region or ((0, 0), (0, 0)))[:2])
        return (
            y + sum(down * at[turn] for turn, (down, _) in zip(self.stacks, self.strides, strict=True)),
            x + sum(right * at[turn] for turn, (_, right) in zip(self.stacks, self.strides, strict=True)),
        )


def mesh(g: Program, f: Fanout, parted: Sequence[Turn] = ()) -> Mesh:
    """Returns the stacks of a program over one fan-out, with their strides.

    parted: stacks whose buffers share out a tile
    """
    names = [name for name, _ in f.dims]
    stacks = [
        turn
        for v in reversed(range(len(g.levels)))
        for turn in g.turns
        if turn.level == v and turn.over in names
    ]
    strides = []
    for i, turn in enumerate(stacks):
        inside = prod(other.trips for other in stacks[:i] if other.over == turn.over)
        strides.append((inside, 0) if turn.over == names[0] else (0, inside))
    return Mesh(f, tuple(stacks), tuple(strides), tuple(parted))


def links(
    g: Program, f: Fanout, p: Projection, outer: int, v: int, arch: Arch, parted: Sequence[Turn] = ()
) -> float:
    """Returns words times links of a tensor from the level outside of the mesh to the level inside; for
    results, the way back, too.
    """
    m, output = mesh(g, f, parted), p is g.e.output
    if strange := [
        turn for turn in g.turns if turn.over and outer < turn.level <= v and turn not in m.stacks
    ]:
        raise ValueError(
            f"directives of {g.e.name}: tensor{{{p.tensor}}} crosses {f.name} and PEs along "
            f"{strange[0].over} at once, whose links are not counted; hold it between them"
        )
    reach = _reach(m, p, output)
    own = [turn for turn in g.turns if turn.level == v and not turn.over and turn.trips > 1]
    came = sum(_arrival_links(g, p, v, m, own, i, reach) for i in range(-1, len(own)))
    if not output:
        return came
    skips = next(level for level in arch.levels if level.name == g.levels[outer]).skip_first_read
    return 2 * came - (_first(g, p, v, m, reach) if skips else 0)


def _reach(m: Mesh, p: Projection, output: bool) -> Reach:
    """Returns a function that gives the links to all PEs at some positions of the stacks that move a tensor,
    at every position of the other stacks. Along a dimension without multicast (or spatial reduction), each
    PE is reached by a path of its own.
    """
    shared = m.f.reduce if output else m.f.multicast
    grid = tuple(n for _, n in (m.f.mesh_region or tuple((0, n) for _, n in m.f.dims))[:2])
    sources = network.injected_at(m.f.injected_at, (grid[0], grid[1]))
    known: dict[tuple[object, ...], float] = {}

    def of(moved: Sequence[Turn], places: Sequence[tuple[int, ...]]) -> float:
        key = tuple(moved), tuple(places)
        if key not in known:
            still = [turn for turn in m.stacks if turn not in moved]
            asked: dict[tuple[object, ...], set[tuple[int, int]]] = {}
            for place in places:
                for rest in product(*(range(turn.trips) for turn in still)):
                    at = dict(zip((*moved, *still), (*place, *rest), strict=True))
                    pe = m.pe_at(at)
                    alone = (
                        None if shared[0] else pe[0],
                        None if shared[1] else pe[1],
                        *(at[turn] for turn in m.parted),
                    )
                    asked.setdefault(alone, set()).add(pe)
            each = sum(
                min(network.links(m.f.multicast_from, source, frozenset(pes)) for source in sources)
                for pes in asked.values()
            )
            known[key] = each / prod(turn.trips for turn in m.parted)
        return known[key]

    return of


def _arrival_links(
    g: Program, p: Projection, v: int, m: Mesh, own: Sequence[Turn], i: int, reach: Reach
) -> float:
    """Returns words times links for all iterations in which update i advances (compare boxes._fills)."""

    def steps(turn: Turn) -> list[tuple[int, int]]:
        return steps_of(turn, v, own, i)

    still = [
        turn
        for turn in g.turns
        if turn.level <= v and turn.trips > 1 and turn not in m.stacks and not any(turn.by(d) for d in p.dims)
    ]
    times = prod(len(steps(turn)) for turn in still)
    if not times:
        return 0.0
    found, orders = [_places(g, p, d, v, m, steps) for d in p.dims], [_joint(g, p, d, v, m) for d in p.dims]
    moved = [turn for order in orders for turn in order]
    total = 0.0
    for combined in product(*(counter.items() for counter in found)):
        n = prod(count for _, count in combined)
        have = [
            tuple(x for part in place for x in part)
            for place in product(*(sorted(now) for (now, _), _ in combined))
        ]
        had = (
            {
                tuple(x for part in place for x in part)
                for place in product(*(was for (_, was), _ in combined))
            }
            if i >= 0
            else set()
        )
        if pes := [place for place in have if place not in had]:
            total += n * reach(moved, pes)
    return times * total


def _joint(g: Program, p: Projection, d: Dim, v: int, m: Mesh) -> list[Turn]:
    """Returns the stacks over the mesh that move a tensor along a dimension."""
    return [turn for turn in moving(g, p, d, v) if turn in m.stacks]


def _places(
    g: Program, p: Projection, d: Dim, v: int, m: Mesh, steps: Callable[[Turn], list[tuple[int, int]]]
) -> Counter[tuple[At, At]]:
    """Returns the number of indices of a dimension by (buffers that have the index now, buffers among them
    that had it before).
    """
    joint = _joint(g, p, d, v, m)
    alone = [turn for turn in moving(g, p, d, v) if turn not in joint]
    found = Counter[tuple[At, At]]()
    for outer in product(*map(steps, alone)):
        spans = {}
        for inner in product(*(range(turn.trips) for turn in joint)):
            spans[inner] = [
                box(g, p, d, v, [*alone, *joint], [*(pair[way] for pair in outer), *inner]) for way in (0, 1)
            ]
        edges = sorted(
            {edge for both in spans.values() for low, high in both if low < high for edge in (low, high)}
        )
        for low, high in pairwise(edges):
            now, was = (
                frozenset(pe for pe, both in spans.items() if both[way][0] <= low and high <= both[way][1])
                for way in (1, 0)
            )
            if now:
                found[now, now & was] += high - low
    return found


def _first(g: Program, p: Projection, v: int, m: Mesh, reach: Reach) -> float:
    """Returns words times links of partial sums that a buffer meets for the first time, which need not be
    fetched (compare boxes.first_reads). No two buffers along stacks that move the result have a
    partial sum in common.
    """
    orders = [_joint(g, p, d, v, m) for d in p.dims]
    counts: list[Counter[tuple[int, ...]]] = []
    for d, joint in zip(p.dims, orders, strict=True):
        turns = [turn for turn in moving(g, p, d, v) if turn not in joint]
        apart, others = [turn for turn in turns if turn.over], [turn for turn in turns if not turn.over]
        met = Counter[tuple[int, ...]]()
        times = list(product(*(range(turn.trips) for turn in others)))
        for place in product(*(range(turn.trips) for turn in joint)):
            met[place] = sum(
                union_size(
                    [box(g, p, d, v, [*joint, *apart, *others], [*place, *outer, *inner]) for inner in times]
                )
                for outer in product(*(range(turn.trips) for turn in apart))
            )
        counts.append(met)
    moved = [turn for order in orders for turn in order]
    still = prod(
        turn.trips
        for turn in g.turns
        if turn.level <= v and turn.over and turn not in m.stacks and not any(turn.by(d) for d in p.dims)
    )
    return still * sum(
        prod(n for _, n in one) * reach(moved, [tuple(x for place, _ in one for x in place)])
        for one in product(*(met.items() for met in counts))
        if all(n for _, n in one)
    )


def ring_links(m: Mesh) -> float:
    """Returns the average links from a buffer of a ring to the next."""
    pes = [
        m.pe_at(dict.fromkeys(m.stacks, 0) | dict(zip(m.parted, at, strict=True)))
        for at in product(*(range(turn.trips) for turn in m.parted))
    ]
    return network.ring(sorted({y for y, _ in pes}), sorted({x for _, x in pes})) / len(pes)


def crossing(g: Program, f: Fanout, arch: Arch) -> Iterator[tuple[Projection, int, int]]:
    """Yields the tensors that pass a fan-out, with the level outside and the level inside. Raises ValueError
    where compute reads a tensor from outside of it.
    """
    order = [level.name for level in arch.levels]
    for p in g.e.tensors():
        at = g.at(p)
        for outer, v in pairwise(at):
            if order.index(g.levels[outer]) < f.outside <= order.index(g.levels[v]):
                yield p, outer, v
        if order.index(g.levels[at[-1]]) < f.outside:
            raise ValueError(
                f"directives of {g.e.name}: compute takes tensor{{{p.tensor}}} through {f.name}, "
                "whose links are counted between levels only; hold it at a level inside"
            )
