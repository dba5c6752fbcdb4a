"""Mappings of tools in which each level has a block of loops, as nests of ours, and back.

In a **blocked** mapping (Timeloop) every tensor that a level keeps stands above that level's block of
temporal loops, an array's block of spatial loops stands between its levels, and reuse is **implied**: a tile
stays where the loops next outside of it do not move its tensor, and a window slides with the loop next to it
(a tile is compared with the one before at the innermost loop outside). A nest of ours says reuse by position,
so the storage node is raised above those loops:

    for m (DRAM)                        store GLB B        (m does not move B)
      store GLB A B          ->         for m
      for n                               store GLB A
                                          for n

Spatial loops that stand in between are raised with a node, unless a node of a level outside of their array
stands there, too. Then no nest says it, and the tile is fetched again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from math import prod

from dse.mapping.nest import Loop, Mapping, Store
from hw.arch import Arch
from workloads.einsum import Einsum, Projection


class Inexpressible(ValueError):
    """A mapping that the other form cannot say: one line, what stands in the way."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A loop by its trips. residual: trips in the last iteration of all loops outside, if fewer."""

    rank: str
    trips: int
    over: str = ""  # fan-out dimension; "": temporal
    residual: int = 0  # 0: as many


@dataclass(frozen=True, slots=True)
class Block:
    """What one level or array contributes, outermost first: nodes of a level, then its loops."""

    stores: tuple[Store, ...] = ()
    turns: tuple[Turn, ...] = ()


@dataclass(frozen=True, slots=True)
class Kept:
    """A tile that is fetched again by our nest where the blocked mapping keeps it."""

    level: str
    tensor: str
    rank: str


def nest_of(
    blocks: Sequence[Block], e: Einsum, arch: Arch, rigid: Collection[str] = ()
) -> tuple[Mapping, list[Kept]]:
    """Returns the nest of a blocked mapping, and what it cannot say. Raises ValueError where the loops do not
    make up the extents.

    rigid: levels at which windows do not slide: a nest that lets one slide holds all that it slides over
    """
    nodes: list[Turn | Store] = []
    for block in blocks:
        nodes += [*block.stores, *block.turns]
    _check_extents([node for node in nodes if isinstance(node, Turn)], e)
    nodes = [node for node in nodes if isinstance(node, Store) or node.trips > 1]
    kept: list[Kept] = []
    for store in [node for node in nodes if isinstance(node, Store)]:
        nodes, blocked = _raised(nodes, store, e, arch, rigid)
        kept += blocked
    return Mapping(tuple(_with_tiles(nodes, e))), kept


def _check_extents(turns: Sequence[Turn], e: Einsum) -> None:
    """Raises ValueError where trips do not make up a rank: the last position of each loop, in steps of what
    is inside, must be the rank's last one.
    """
    for rank, extent in e.extents:
        inside, last = 1, 0
        for turn in reversed([turn for turn in turns if turn.rank == rank]):
            last += ((turn.residual or turn.trips) - 1) * inside
            inside *= turn.trips
        if last + 1 != extent:
            raise ValueError(f"the factors of {rank} make up {last + 1}, its extent is {extent}")


def by_tile(nodes: Sequence[Turn | Store], e: Einsum) -> Iterator[Loop | Store]:
    """Returns the nodes, outermost first, with loops by the tile that they leave."""
    inside = dict.fromkeys(e.sizes(), 1)
    found: list[Loop | Store] = []
    for node in reversed(nodes):
        if isinstance(node, Turn):
            found.append(Loop(node.rank, inside[node.rank], node.over))
            inside[node.rank] *= node.trips
        else:
            found.append(node)
    return reversed(found)


def _with_tiles(nodes: Sequence[Turn | Store], e: Einsum) -> Iterator[Loop | Store]:
    """Yields the nodes with loops by the tile that they leave, those of one trip left out."""
    left = e.sizes()
    for one in by_tile(nodes, e):
        if isinstance(one, Loop):
            if one.tile >= left[one.rank]:  # one trip only, where the extent ends inside of the tile
                continue
            left[one.rank] = one.tile
        yield one


def _raised(
    nodes: Sequence[Turn | Store], store: Store, e: Einsum, arch: Arch, rigid: Collection[str]
) -> tuple[list[Turn | Store], list[Kept]]:
    """Returns the nodes with one storage node raised as far as reuse is implied, and what bars its way."""
    at = nodes.index(store)
    target = _implied_place(nodes, at, e)
    first = target + 1 if store.level in rigid and _slides_at(nodes, target, store, e) else target
    blocked = _first_free(nodes, first, at, e, arch)
    kept = [
        Kept(store.level, store.tensor, node.rank)
        for node in nodes[target:blocked]
        if isinstance(node, Turn) and not node.over
    ]
    between = nodes[blocked:at]
    spatial = [node for node in between if isinstance(node, Turn) and node.over]
    rest = [node for node in between if not (isinstance(node, Turn) and node.over)]
    if all(isinstance(node, Store) for node in rest):
        return [*nodes], kept
    return [*nodes[:blocked], *spatial, store, *rest, *nodes[at + 1 :]], kept


def _implied_place(nodes: Sequence[Turn | Store], at: int, e: Einsum) -> int:
    """Returns the index above which a storage node is raised: of the outermost temporal loop that does not
    move its tensor; or of the loop next outside of it, where that one slides a window.
    """
    store = nodes[at]
    assert isinstance(store, Store)
    p = next(p for p in e.tensors() if p.tensor == store.tensor)
    found = at
    for i in range(at - 1, -1, -1):
        node = nodes[i]
        if isinstance(node, Store):
            if node.tensor == store.tensor:
                break
        elif not node.over:
            if node.rank in p.ranks():
                return i if found == at and _slides(node.rank, p, e) else found
            found = i
    return found


def _slides(rank: str, p: Projection, e: Einsum) -> bool:
    return p is not e.output and rank in p.partial_ranks()


def _slides_at(nodes: Sequence[Turn | Store], at: int, store: Store, e: Einsum) -> bool:
    node = nodes[at]
    p = next(p for p in e.tensors() if p.tensor == store.tensor)
    return isinstance(node, Turn) and not node.over and node.rank in p.ranks()


def _first_free(nodes: Sequence[Turn | Store], target: int, at: int, e: Einsum, arch: Arch) -> int:
    """Returns the outermost index from `target` on to which a node at `at` may rise with the spatial loops in
    between: below all nodes of levels outside of their arrays, and below temporal loops of their ranks, where
    tiles would be other ones.
    """
    outside = {dim: f.outside for f in arch.fanouts for dim, _ in f.dims}
    level = arch.level_index()
    free = at
    border, ranks = 0, set[str]()
    windows = {rank for p in e.tensors() for rank in p.partial_ranks()}
    for i in range(at - 1, target - 1, -1):
        node = nodes[i]
        if isinstance(node, Store):
            if level[node.level] < border:
                return free
        elif node.over:
            border = max(border, outside[node.over])
            ranks.add(node.rank)
        elif node.rank in ranks and (node.rank in windows or not _is_perfect(nodes, node.rank, e)):
            return free
        free = i
    return free


def _is_perfect(nodes: Sequence[Turn | Store], rank: str, e: Einsum) -> bool:
    trips = [node.trips for node in nodes if isinstance(node, Turn) and node.rank == rank]
    return prod(trips) == e.sizes()[rank]


def blocks_of(mapping: Mapping, e: Einsum, arch: Arch) -> list[Block]:
    """Returns the blocks of a nest in the order of `places`. Raises Inexpressible where it has none.

    Whether the blocks mean the same as the nest is not looked at: `nest_of` gives the nest that they mean.
    """
    if mapping.non_nest_text:
        raise Inexpressible("is no loop nest")
    if mapping.layouts or mapping.shares:
        raise Inexpressible("says layouts or shared tiles; only loops and storage nodes can be carried over")
    turns = _turns(mapping, e)
    temporal = [turn for turn in turns if not turn.over]
    borders = _borders(mapping, e, arch, temporal)
    found: list[Block] = []
    for level, fanout in places(arch):
        if level is None:
            dims = {dim for dim, _ in arch.fanouts[fanout].dims}
            found.append(Block((), tuple(turn for turn in turns if turn.over in dims)))
        else:
            own = temporal[borders[level] : borders[level + 1]]
            name = arch.levels[level].name
            stores = tuple(
                Store(name, p.tensor) for p in e.tensors() if Store(name, p.tensor) in mapping.nodes
            )
            found.append(Block(stores, tuple(own)))
    return found


def places(arch: Arch) -> Iterator[tuple[int | None, int]]:
    """Yields levels (index, 0) and arrays (None, index), outermost first."""
    for v in range(len(arch.levels) + 1):
        yield from ((None, i) for i, fanout in enumerate(arch.fanouts) if fanout.outside == v)
        if v < len(arch.levels):
            yield v, 0


def _turns(mapping: Mapping, e: Einsum) -> list[Turn]:
    """Returns the loops by their trips, those of one trip left out. Raises Inexpressible for tiles that do
    not divide one another: only the end of a rank may be ragged.
    """
    tile, left, found = e.sizes(), e.sizes(), []
    for node in mapping.nodes:
        if not isinstance(node, Loop):
            continue
        outer, inner = tile[node.rank], node.tile
        trips = -(-outer // inner)
        if outer % inner and outer != e.sizes()[node.rank]:
            raise Inexpressible(
                f"cuts {node.rank} into tiles of {inner} inside tiles of {outer}; one must divide the other"
            )
        last = -(-left[node.rank] // inner)
        left[node.rank] -= (last - 1) * inner
        tile[node.rank] = inner
        if trips > 1:
            found.append(Turn(node.rank, trips, node.over, 0 if last == trips else last))
    return found


def _borders(mapping: Mapping, e: Einsum, arch: Arch, temporal: Sequence[Turn]) -> list[int]:
    """Returns for each level how many temporal loops stand outside of its block; last: all loops. Raises
    Inexpressible where every choice gives a level two loops over one rank.

    A node may stand further in than the nest has it: below loops that move its tensor, through which its tile
    sinks, and below loops that do not, across which its reuse is implied. The innermost places are tried
    first, for there tiles are smallest.
    """
    ranges = _ranges(mapping, e, arch)
    found = _chosen([0], ranges, temporal)
    if found is None:
        own = temporal[: ranges[0][-1]] if ranges else temporal
        ranks = [turn.rank for turn in (own if len({turn.rank for turn in own}) < len(own) else temporal)]
        twice = next(rank for rank in ranks if ranks.count(rank) > 1)
        raise Inexpressible(f"needs two loops over {twice} at a level; a level has one")
    return found


def _chosen(borders: list[int], ranges: Sequence[range], temporal: Sequence[Turn]) -> list[int] | None:
    """Returns borders of all levels, the outer ones given, that give no level two loops over one rank."""
    options = (
        ranges[len(borders) - 1] if len(borders) <= len(ranges) else range(len(temporal), len(temporal) + 1)
    )
    for border in reversed(options):
        ranks = [turn.rank for turn in temporal[borders[-1] : border]]
        if border < borders[-1] or len(set(ranks)) < len(ranks):
            continue
        if len(borders) > len(ranges):
            return [*borders, border]
        if (found := _chosen([*borders, border], ranges, temporal)) is not None:
            return found
    return None


def _ranges(mapping: Mapping, e: Einsum, arch: Arch) -> list[range]:
    """Returns for each level inside of the outermost one how many temporal loops may stand outside of it."""
    trips = _trips(mapping, e)
    loops = [
        i for i, node in enumerate(mapping.nodes) if isinstance(node, Loop) and not node.over and trips[i] > 1
    ]
    found = []
    for level in arch.levels[1:]:
        own = [
            i for i, node in enumerate(mapping.nodes) if isinstance(node, Store) and node.level == level.name
        ]
        lowest = max((sum(i < at for i in loops) for at in own), default=0)
        deepest = min((_deepest(mapping, at, loops, e) for at in own), default=len(loops))
        found.append(range(min(lowest, deepest), deepest + 1))
    return found


def _trips(mapping: Mapping, e: Einsum) -> dict[int, int]:
    tile, found = e.sizes(), {}
    for i, node in enumerate(mapping.nodes):
        if isinstance(node, Loop):
            found[i] = -(-tile[node.rank] // node.tile)
            tile[node.rank] = node.tile
    return found


def _deepest(mapping: Mapping, at: int, loops: Sequence[int], e: Einsum) -> int:
    """Returns the number of temporal loops above the innermost place at which a node means the same."""
    store = mapping.nodes[at]
    assert isinstance(store, Store)
    p = next(p for p in e.tensors() if p.tensor == store.tensor)
    own = [i for i, node in enumerate(mapping.nodes) if isinstance(node, Store) and node.tensor == p.tensor]
    end = min((i for i in own if i > at), default=len(mapping.nodes))
    passed_still, passed_window = False, False
    found = sum(i < at for i in loops)
    for i in loops:
        node = mapping.nodes[i]
        assert isinstance(node, Loop)
        if at < i < end:
            if passed_window or (passed_still and node.rank in p.ranks()):
                break
            if node.rank not in p.ranks():
                passed_still = True
            else:
                passed_window = _slides(node.rank, p, e)
            found += 1
    return found
