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

from dse.sim.directives.boxes import Program, Turn, box, moving_turns, steps_of, union_size
from dse.sim.levels import network
from hw.arch import Arch, Fanout
from workloads.einsum import Dim, Projection

Positions = frozenset[tuple[int, ...]]  # positions in some stacks over the mesh
# links to all PEs at the given positions of the given stacks
Reach = Callable[[Sequence[Turn], Sequence[tuple[int, ...]]], float]


@dataclass(frozen=True, slots=True)
class Mesh:
    """The stacks of a program over one fan-out."""

    f: Fanout
    stacks: tuple[Turn, ...]  # stacks over the mesh, innermost first
    strides: tuple[tuple[int, int], ...]  # per stack, PEs (rows, columns) from one position to the next
    ring_stacks: tuple[Turn, ...] = ()  # stacks whose buffers share out a tile

    def pe_at(self, positions: dict[Turn, int]) -> tuple[int, int]:
        """Returns (row, column) of the PE at the given position in every stack."""
        y, x = (first for first, _ in (self.f.mesh_region or ((0, 0), (0, 0)))[:2])
        return (
            y
            + sum(down * positions[turn] for turn, (down, _) in zip(self.stacks, self.strides, strict=True)),
            x
            + sum(
                right * positions[turn] for turn, (_, right) in zip(self.stacks, self.strides, strict=True)
            ),
        )


def mesh(g: Program, f: Fanout, ring_stacks: Sequence[Turn] = ()) -> Mesh:
    """Returns the stacks of a program over one fan-out, with their strides.

    ring_stacks: stacks whose buffers share out a tile
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
    return Mesh(f, tuple(stacks), tuple(strides), tuple(ring_stacks))


def links(
    g: Program, f: Fanout, p: Projection, outer: int, v: int, arch: Arch, ring_stacks: Sequence[Turn] = ()
) -> float:
    """Returns words times links of a tensor from the level outside of the mesh to the level inside; for
    results, the way back, too.
    """
    m, output = mesh(g, f, ring_stacks), p is g.e.output
    if other_stacks := [
        turn for turn in g.turns if turn.over and outer < turn.level <= v and turn not in m.stacks
    ]:
        raise ValueError(
            f"directives of {g.e.name}: tensor{{{p.tensor}}} crosses {f.name} and PEs along "
            f"{other_stacks[0].over} at once, whose links are not counted; hold it between them"
        )
    reach = _reach(m, p, output)
    updates = [turn for turn in g.turns if turn.level == v and not turn.over and turn.trips > 1]
    arrivals = sum(_arrival_links(g, p, v, m, updates, i, reach) for i in range(-1, len(updates)))
    if not output:
        return arrivals
    skips = next(level for level in arch.levels if level.name == g.levels[outer]).skip_first_read
    return 2 * arrivals - (_first_links(g, p, v, m, reach) if skips else 0)


def _reach(m: Mesh, p: Projection, output: bool) -> Reach:
    """Returns a function that gives the links to all PEs at some positions of the stacks that move a tensor,
    at every position of the other stacks. Along a dimension without multicast (or spatial reduction), each
    PE is reached by a path of its own.
    """
    shared = m.f.reduce if output else m.f.multicast
    grid = tuple(n for _, n in (m.f.mesh_region or tuple((0, n) for _, n in m.f.dims))[:2])
    sources = network.injected_at(m.f.injected_at, (grid[0], grid[1]))
    memo: dict[tuple[object, ...], float] = {}

    # moved: stacks that move the tensor; places: positions in them, of the PEs that the words go to
    def links_to(moved: Sequence[Turn], places: Sequence[tuple[int, ...]]) -> float:
        key = tuple(moved), tuple(places)
        if key not in memo:
            other_stacks = [turn for turn in m.stacks if turn not in moved]
            pes_by_path: dict[tuple[object, ...], set[tuple[int, int]]] = {}
            for place in places:
                for others in product(*(range(turn.trips) for turn in other_stacks)):
                    positions = dict(zip((*moved, *other_stacks), (*place, *others), strict=True))
                    pe = m.pe_at(positions)
                    path = (
                        None if shared[0] else pe[0],
                        None if shared[1] else pe[1],
                        *(positions[turn] for turn in m.ring_stacks),
                    )
                    pes_by_path.setdefault(path, set()).add(pe)
            total_links = sum(
                min(network.links(m.f.multicast_from, source, frozenset(pes)) for source in sources)
                for pes in pes_by_path.values()
            )
            memo[key] = total_links / prod(turn.trips for turn in m.ring_stacks)
        return memo[key]

    return links_to


def _arrival_links(
    g: Program, p: Projection, v: int, m: Mesh, updates: Sequence[Turn], i: int, reach: Reach
) -> float:
    """Returns words times links for all iterations in which update i advances (compare boxes._fills)."""

    def steps(turn: Turn) -> list[tuple[int, int]]:
        return steps_of(turn, v, updates, i)

    idle_turns = [
        turn
        for turn in g.turns
        if turn.level <= v
        and turn.trips > 1
        and turn not in m.stacks
        and not any(turn.shift(d) for d in p.dims)
    ]
    times = prod(len(steps(turn)) for turn in idle_turns)
    if not times:
        return 0.0
    index_counts, stacks_of_dims = (
        [_index_groups(g, p, d, v, m, steps) for d in p.dims],
        [_moving_stacks(g, p, d, v, m) for d in p.dims],
    )
    moving_stacks = [turn for order in stacks_of_dims for turn in order]
    total = 0.0
    for combined in product(*(counter.items() for counter in index_counts)):
        # n elements, and the positions of the buffers that have them now and had them before
        n = prod(count for _, count in combined)
        holders = [
            tuple(x for part in place for x in part)
            for place in product(*(sorted(now) for (now, _), _ in combined))
        ]
        holders_before = (
            {
                tuple(x for part in place for x in part)
                for place in product(*(was for (_, was), _ in combined))
            }
            if i >= 0
            else set()
        )
        if new_holders := [place for place in holders if place not in holders_before]:
            total += n * reach(moving_stacks, new_holders)
    return times * total


def _moving_stacks(g: Program, p: Projection, d: Dim, v: int, m: Mesh) -> list[Turn]:
    """Returns the stacks over the mesh that move a tensor along a dimension."""
    return [turn for turn in moving_turns(g, p, d, v) if turn in m.stacks]


def _index_groups(
    g: Program, p: Projection, d: Dim, v: int, m: Mesh, steps: Callable[[Turn], list[tuple[int, int]]]
) -> Counter[tuple[Positions, Positions]]:
    """Returns the number of indices of a dimension by (buffers that have the index now, buffers among them
    that had it before).
    """
    joint = _moving_stacks(g, p, d, v, m)
    separate = [turn for turn in moving_turns(g, p, d, v) if turn not in joint]
    found = Counter[tuple[Positions, Positions]]()
    for outer in product(*map(steps, separate)):
        spans = {}
        for inner in product(*(range(turn.trips) for turn in joint)):
            spans[inner] = [
                box(g, p, d, v, [*separate, *joint], [*(pair[side] for pair in outer), *inner])
                for side in (0, 1)
            ]
        edges = sorted(
            {
                edge
                for before_after in spans.values()
                for low, high in before_after
                if low < high
                for edge in (low, high)
            }
        )
        for low, high in pairwise(edges):
            now, was = (
                frozenset(
                    position
                    for position, before_after in spans.items()
                    if before_after[side][0] <= low and high <= before_after[side][1]
                )
                for side in (1, 0)
            )
            if now:
                found[now, now & was] += high - low
    return found


def _first_links(g: Program, p: Projection, v: int, m: Mesh, reach: Reach) -> float:
    """Returns words times links of partial sums that a buffer meets for the first time, which need not be
    fetched (compare boxes.first_reads). No two buffers along stacks that move the result have a
    partial sum in common.
    """
    stacks_of_dims = [_moving_stacks(g, p, d, v, m) for d in p.dims]
    counts: list[Counter[tuple[int, ...]]] = []
    for d, joint in zip(p.dims, stacks_of_dims, strict=True):
        turns = [turn for turn in moving_turns(g, p, d, v) if turn not in joint]
        separate, updates = [turn for turn in turns if turn.over], [turn for turn in turns if not turn.over]
        elem_counts = Counter[tuple[int, ...]]()
        update_trips = list(product(*(range(turn.trips) for turn in updates)))
        for place in product(*(range(turn.trips) for turn in joint)):
            elem_counts[place] = sum(
                union_size(
                    [
                        box(g, p, d, v, [*joint, *separate, *updates], [*place, *outer, *inner])
                        for inner in update_trips
                    ]
                )
                for outer in product(*(range(turn.trips) for turn in separate))
            )
        counts.append(elem_counts)
    moving_stacks = [turn for order in stacks_of_dims for turn in order]
    idle_count = prod(
        turn.trips
        for turn in g.turns
        if turn.level <= v and turn.over and turn not in m.stacks and not any(turn.shift(d) for d in p.dims)
    )
    return idle_count * sum(
        prod(n for _, n in combination)
        * reach(moving_stacks, [tuple(x for place, _ in combination for x in place)])
        for combination in product(*(elem_counts.items() for elem_counts in counts))
        if all(n for _, n in combination)
    )


def ring_links(m: Mesh) -> float:
    """Returns the average links from a buffer of a ring to the next."""
    pes = [
        m.pe_at(dict.fromkeys(m.stacks, 0) | dict(zip(m.ring_stacks, at, strict=True)))
        for at in product(*(range(turn.trips) for turn in m.ring_stacks))
    ]
    return network.ring(sorted({y for y, _ in pes}), sorted({x for _, x in pes})) / len(pes)


def crossing(g: Program, f: Fanout, arch: Arch) -> Iterator[tuple[Projection, int, int]]:
    """Yields the tensors that pass a fan-out, with the level outside and the level inside. Raises ValueError
    where compute reads a tensor from outside of it.
    """
    order = [level.name for level in arch.levels]
    for p in g.e.tensors():
        levels = g.levels_of(p)
        for outer, v in pairwise(levels):
            if order.index(g.levels[outer]) < f.outside <= order.index(g.levels[v]):
                yield p, outer, v
        if order.index(g.levels[levels[-1]]) < f.outside:
            raise ValueError(
                f"directives of {g.e.name}: compute takes tensor{{{p.tensor}}} through {f.name}, "
                "whose links are counted between levels only; hold it at a level inside"
            )
