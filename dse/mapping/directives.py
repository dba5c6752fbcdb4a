"""KAPLA's tensor-centric directives as a second notation of mappings (arXiv 2306.15676, section III-B).

    directives
    fc1:                                    a layer per einsum, unfused; a tensor has one name in all layers
      mac:                                  what runs inside of the innermost buffers
        update(k+=1)
      REGF:                                 buffers, innermost first
        tensor{image}(m=1, k=4)             what one buffer holds
        tensor{fc1_W}(k=4, n=2)
        tensor{fc1}(m=1, n=2)
        stack(n+=2, 8) over X               8 buffers side by side, each 2 of n further
        update(m+=1)                        temporal loops, innermost first
      GBUF:
        tensor{fc1_W}(k=4, n=16, shr=4) over NY     4 PEs along NY hold a quarter each, and pass it round
        ...

From directives to a nest, per buffer: stacks become spatial loops and updates temporal loops, and the order
is reversed to outermost first. A stack stands outside of all updates, except those over its own rank that
move further. A tensor's node is raised above the loops directly over it that do not move the tensor.
* A nest can be written in directives if its levels do not interleave and its nodes are raised in this way.
* Directives can be written as a nest if each step moves one rank, by the size of the tile inside.
* Layers in which consecutive tiles overlap are no nest: of each tile only the new part is fetched
  (dse/sim/directives/boxes.py). If the text begins with `directives whole`, each tile is fetched whole, as in
  a nest.
* Anything else is refused in one line.
A dimension whose index is a sum is named by its text, `2*p+r`, or by a name that the layer defines before its
buffers: `Xi = 2*p+r`.

Two things that section III-B leaves to the reader are said where the rules above would say another nest:
* `REGF in order:` The lines of this level, read backwards, are the nest: a tensor is brought in again by each
  iteration of every line below it, and stacks stand where they stand. A level may be listed twice.
* `update(h+=1)`, with a rank that is the index of no dimension: it moves what this rank moves, where another
  rank moves the same dimensions.
Schedules of several layers (segments, regions, matched updates): dse/mapping/matched.py.

The file is longer than the usual 400 lines because writing, reading and checking directives use the same few
formulas.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from pathlib import Path

from dse.mapping import nest
from dse.mapping.nest import Loop, Rotated, Store, sorted_shares
from dse.mapping.schedule import Region, region_of, region_text
from hw.arch import Arch
from hw.component import closest_name
from workloads import document
from workloads.einsum import Dim, Einsum, Projection
from workloads.graph import Workload, unique

PROBE_BYTES = 512  # bytes of a file that are read to recognise directives
# first line of a text of directives; WHOLE: tiles that overlap are fetched whole, as in a nest
FIRST_LINE, FIRST_LINE_WHOLE = "directives", "directives whole"
COMPUTE = "mac"
SEGMENT = "segment"
HEAD = ("weights ", "fills ", "retain ")  # lines of a whole schedule, above its segments
TENSOR = re.compile(r"^tensor\{(\w+)\}\(([^)]*)\)(?:\s+over((?:\s+\w+)+))?$")
STACK = re.compile(r"^stack\((?:([^)]*),)?\s*(\d+)\)(?:\s+over\s+(\w+))?$")
UPDATE = re.compile(r"^update\(([^)]*)\)$")
NAMED = re.compile(r"^(\w+)\s*=\s*([\w*+\- ]+)$")
# a layer: its name, and the nodes of a stage of a pipeline
LAYER = re.compile(r"^(\S+?)(?:\s+on((?:\s+\w+\[\d+:\d+\])+))?:$")
LEVEL = re.compile(r"^(\S+?)(\s+in\s+order)?:$")
# in a layer: the levels that follow, the outermost ones, are those of its whole segment
MATCHED = "matched"
HOLD = re.compile(r"\s+hold$")
Moves = tuple[tuple[str, int], ...]  # (dimension, elements that it moves by), sorted


@dataclass(frozen=True, slots=True)
class TensorTile:
    """The tile of a tensor in one buffer of a level."""

    tensor: str
    size: tuple[tuple[str, int], ...]  # (dimension as index text, elements)
    over: tuple[str, ...] = ()  # fan-out dimensions whose PEs hold a part of the tile each
    shares: int = 1  # number of parts
    hold: bool = False  # filled once, not once per pipeline tile


@dataclass(frozen=True, slots=True)
class Step:
    """A stack (repl > 0) or an update (repl 0, a temporal loop)."""

    moves: Moves  # what one trip moves
    repl: int = 0  # copies of the buffer, side by side
    over: str = ""  # fan-out dimension of a stack; "": the next free one

    def __str__(self) -> str:
        return (
            f"stack({shift_text(self.moves)}, {self.repl}) over {self.over}"
            if self.repl
            else f"update({shift_text(self.moves)})"
        )


@dataclass(frozen=True, slots=True)
class Buffer:
    """The directives of one level."""

    level: str
    tensors: tuple[TensorTile, ...]
    steps: tuple[Step, ...]  # innermost first: stacks, then updates; `in order`: as they stand
    # `in order`: number of steps inside of each tensor's node; None: tensors are raised as far as they can be
    inside: tuple[int, ...] | None = None

    @property
    def parallel(self) -> int:
        """Returns how many copies of the buffer the stacks of this level make."""
        return prod(step.repl for step in self.steps if step.repl)


@dataclass(frozen=True, slots=True)
class Layer:
    """The buffers of one einsum, innermost first."""

    name: str
    buffers: tuple[Buffer, ...]
    matched: tuple[Buffer, ...] = ()  # further out: buffers that all layers of the segment have
    segment: int = 0  # the number of its segment; 0: the text has none, layers are unfused
    region: tuple[Region, ...] = ()  # nodes of a stage of a pipeline

    def __str__(self) -> str:
        return "\n".join(_lines(self))


@dataclass(frozen=True, slots=True)
class NotANest:
    """A layer that no loop nest expresses."""

    layer: Layer
    why: str  # the reason; "" if its tiles overlap


def index(d: Dim) -> str:
    """Returns the index of a tensor's dimension as the einsum writes it.

    >>> index(Dim((("p", 2), ("r", 1)), -3, 9))
    '2*p+r'
    """
    return "+".join(f"{c}*{rank}" if c != 1 else rank for rank, c in d.terms) or "0"


def moves(e: Einsum, rank: str, by: int) -> Moves:
    """Returns the dimensions that one trip of a loop over a rank moves, and by how many elements. by: tile of
    the loop.
    """
    return tuple(
        sorted({(index(d), by * c) for p in e.tensors() for d in p.dims for r, c in d.terms if r == rank})
    )


def size(p: Projection, tile: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """Returns the hull of a tile per dimension of a tensor, as (index text, elements). tile: elements per
    rank.
    """
    return tuple((index(d), d.hull(tile)) for d in p.dims)


def directives_of(
    mapping: nest.Mapping, e: Einsum, shared: Sequence[Loop | Store] = (), held: Sequence[Store] = ()
) -> Layer:
    """Returns a nest as directives. Raises ValueError in one line where directives cannot express it.

    shared: loops and nodes around the nest that the segment shares, in the names of e
    held: nodes that are filled once, not once per pipeline tile
    """
    if mapping.non_nest_text or mapping.fork or mapping.layouts:
        what = (
            "is no nest"
            if mapping.non_nest_text
            else "shares loops with other einsums"
            if mapping.fork
            else f"names the layout of {mapping.layouts[0].tensor}"
        )
        raise ValueError(
            f"directives of {e.name}: the mapping {what}, which directives cannot express; take --format yaml"
        )
    tile_of = e.sizes()
    whole = replace(mapping, nodes=(*shared, *mapping.nodes))
    sharing_pes = _shared_counts(whole, e)
    own_levels = _levels(mapping.nodes, COMPUTE)
    outermost_own = own_levels[0][0] if own_levels else COMPUTE
    matched, buffers = (
        tuple(_buffer(level, nodes, e, tile_of, shares, sharing_pes, stores) for level, nodes in levels)[::-1]
        for levels, shares, stores in (
            (_levels(shared, outermost_own), (), ()),
            (own_levels, mapping.shares, held),
        )
    )
    layer = Layer(e.name, buffers, matched)
    try:
        read_back = mapping_of(layer, e)
    except ValueError as fault:
        raise ValueError(
            f"directives of {e.name}: directives cannot express this mapping ({fault}); take --format yaml"
        ) from None
    if read_back != replace(whole, shares=sorted_shares(whole.shares)):
        raise ValueError(
            f"directives of {e.name}: directives cannot express this mapping; take --format yaml"
        )
    return layer


def _buffer(
    level: str,
    nodes: Sequence[Loop | Store],
    e: Einsum,
    tile_of: dict[str, int],
    rotated: Sequence[Rotated],
    sharing_pes: Mapping[tuple[str, str, str], int],
    held: Sequence[Store],
) -> Buffer:
    """Returns a part of a nest as directives of its level: as section III-B has them where these mean that
    part, else in order.

    nodes: outermost first; tile_of: tile of each rank outside of them, is updated to the one inside
    sharing_pes: of `_shared_counts`
    """
    projections = {p.tensor: p for p in e.tensors()}
    shared_dims = {(one.level, one.tensor): one.dims for one in rotated}
    loops, tensor_tiles = [], []
    for node in nodes:
        if isinstance(node, Loop):
            loops.append((node, -(-tile_of[node.rank] // node.tile)))
            tile_of[node.rank] = node.tile
            continue
        over = shared_dims.get((level, node.tensor), ())
        shares = prod(sharing_pes.get((level, node.tensor, dim), 1) for dim in over)
        tile = size(projections[node.tensor], tile_of)
        tensor_tiles.append(TensorTile(node.tensor, tile, over, shares, node in held))
    plain = Buffer(level, tuple(tensor_tiles), _steps(e, loops))
    try:
        if _nodes_of(plain, e, None)[0] == list(nodes):
            return plain
    except ValueError:  # no nest as it stands; in order it is
        pass
    steps = tuple(_step(e, loop, trips) for loop, trips in reversed(loops))
    inside = [
        sum(isinstance(inner, Loop) for inner in nodes[i:])
        for i, node in enumerate(nodes)
        if isinstance(node, Store)
    ]
    order = sorted(range(len(inside)), key=lambda i: inside[i])
    return Buffer(level, tuple(tensor_tiles[i] for i in order), steps, tuple(inside[i] for i in order))


def _shared_counts(mapping: nest.Mapping, e: Einsum) -> dict[tuple[str, str, str], int]:
    """Returns, for each (level, tensor, fan-out dimension), how many PEs along that dimension have the same
    tile at the level.
    """
    tile_of, pes_since_store, counts = (
        e.sizes(),
        dict[str, dict[str, int]](),
        dict[tuple[str, str, str], int](),
    )
    ranks = {p.tensor: p.ranks() for p in e.tensors()}
    for node in mapping.nodes:
        if isinstance(node, Store):
            counts |= {
                (node.level, node.tensor, dim): n for dim, n in pes_since_store.pop(node.tensor, {}).items()
            }
        else:
            trips, tile_of[node.rank] = -(-tile_of[node.rank] // node.tile), node.tile
            for tensor in [t for t in ranks if node.over and node.rank not in ranks[t]]:
                by_dim = pes_since_store.setdefault(tensor, {})
                by_dim[node.over] = by_dim.get(node.over, 1) * trips
    return counts


def _levels(nodes: Sequence[Loop | Store], innermost: str) -> list[tuple[str, list[Loop | Store]]]:
    """Returns nodes split into (level, nodes), outermost first: those from below the level before down to the
    last storage node of this level; at the end (innermost, the loops below all levels), if there are any.
    """
    levels: list[tuple[str, list[Loop | Store]]] = []
    part: list[Loop | Store] = []
    for node in nodes:
        part.append(node)
        if isinstance(node, Store):
            if levels and levels[-1][0] == node.level:
                levels[-1][1].extend(part)
            else:
                levels.append((node.level, part))
            part = []
    return [*levels, (innermost, part)] if part else levels


def _steps(e: Einsum, loops: Sequence[tuple[Loop, int]]) -> tuple[Step, ...]:
    """Returns loops as stacks, then updates, each innermost first."""
    steps = [_step(e, loop, trips) for loop, trips in reversed(loops)]
    return (*(step for step in steps if step.repl), *(step for step in steps if not step.repl))


def _step(e: Einsum, loop: Loop, trips: int) -> Step:
    """Returns a loop as a stack or an update. It names the dimensions that the loop moves, and the rank where
    another rank moves the same ones.
    """
    step = Step(moves(e, loop.rank, loop.tile), trips if loop.over else 0, loop.over)
    named = replace(step, moves=((loop.rank, loop.tile),))
    try:
        return step if loop_of(step, e, e.name) == replace(loop, over="") else named
    except ValueError:
        return named


def mapping_of(layer: Layer, e: Einsum, arch: Arch | None = None) -> nest.Mapping:
    """Returns directives as a nest, with what the segment shares around it. Raises ValueError in one line.

    arch: machine whose fan-outs give dimensions to stacks that name none, the last dimension first
    """
    shared, own = split_mapping(layer, e, arch)
    return replace(own, nodes=(*shared, *own.nodes))


def split_mapping(
    layer: Layer, e: Einsum, arch: Arch | None = None
) -> tuple[tuple[Loop | Store, ...], nest.Mapping]:
    """Returns the nodes that the segment shares, in the names of e, and the nest below them. Raises
    ValueError in one line.
    """
    where = f"directives of {e.name}"
    shares = []
    parts = []
    for buffers in (layer.matched, layer.buffers):
        nodes: list[Loop | Store] = []
        for buffer in reversed(buffers):
            buffer_nodes, rotated = _nodes_of(buffer, e, arch)
            nodes += buffer_nodes
            shares += rotated
        parts.append(nodes)
    shared, own = parts
    if not layer.buffers or layer.buffers[0].level != COMPUTE:
        own += _omitted_loops([*shared, *own], e)
    found = nest.Mapping((*shared, *own), shares=sorted_shares(shares))
    try:
        _check(layer, found, e, where)
    except ValueError:
        if swapped := _reversed_stacks(layer, e, arch, where):
            raise ValueError(swapped) from None
        raise
    return tuple(shared), replace(found, nodes=tuple(own))


def _nodes_of(buffer: Buffer, e: Einsum, arch: Arch | None) -> tuple[list[Loop | Store], list[Rotated]]:
    """Returns the part of a nest that the directives of a level mean, outermost first, and the tiles that PEs
    share out there. Raises ValueError in one line.
    """
    where = f"directives of {e.name}"
    projections = {p.tensor: p for p in e.tensors()}
    dims = iter(stack_dims(buffer, arch, where))
    steps = [
        replace(loop_of(step, e, f"{where}, {buffer.level}"), over=next(dims) if step.repl else "")
        for step in buffer.steps
    ]
    stacks, updates = ([loop for loop in steps if bool(loop.over) == spatial] for spatial in (True, False))
    # updates from the first one that moves further than a stack over its rank stand outside of all stacks
    first_outside = next(
        (i for i, u in enumerate(updates) if any(s.rank == u.rank and u.tile > s.tile for s in stacks)),
        len(updates),
    )
    inner_updates, outside = updates[:first_outside], updates[first_outside:]
    loops = [*reversed(outside), *reversed(stacks), *reversed(inner_updates)]
    if buffer.inside is not None:
        loops = steps[::-1]
    positions, shares = [], []
    for i, tensor_tile in enumerate(buffer.tensors):
        if tensor_tile.tensor not in projections:
            raise ValueError(
                f"{where}, {buffer.level}: tensor{{{tensor_tile.tensor}}} is none of its tensors; it has "
                f"{', '.join(projections)}"
            )
        if tensor_tile.over:
            shares.append(Rotated(buffer.level, tensor_tile.tensor, tensor_tile.over))
        if buffer.inside is not None:
            positions.append((len(loops) - buffer.inside[i], tensor_tile))
            continue
        position, ranks = len(loops), projections[tensor_tile.tensor].ranks()
        while position and not loops[position - 1].over and loops[position - 1].rank not in ranks:
            position -= 1
        if stacks and position == len(outside) + len(stacks) and outside and outside[0].rank not in ranks:
            folded = outside[0].rank
            raise ValueError(
                f"{where}, {buffer.level}: tensor{{{tensor_tile.tensor}}} is stationary while "
                f"{folded} is folded "
                f"over PEs, which no nest says; give PEs neighbouring parts of {folded}: a stack that "
                "shifts further, an update inside of it"
            )
        positions.append((position, tensor_tile))
    nodes: list[Loop | Store] = []
    for i in range(len(loops) + 1):
        nodes += [
            Store(buffer.level, tensor_tile.tensor) for position, tensor_tile in positions if position == i
        ]
        nodes += loops[i : i + 1]
    return nodes, shares


def _reversed_stacks(layer: Layer, e: Einsum, arch: Arch | None, where: str) -> str:
    """Returns the message of a layer whose only fault is that stacks along one rank are listed outermost
    first; "" for others.
    """
    buffers, matched = (
        tuple(_innermost_first(b, e, where) for b in group) for group in (layer.buffers, layer.matched)
    )
    reordered = replace(layer, buffers=buffers, matched=matched)
    pairs = zip((*buffers, *matched), (*layer.buffers, *layer.matched), strict=True)
    b = next((b for b, original in pairs if b != original), None)
    if b is None:
        return ""
    try:
        mapping_of(reordered, e, arch)
    except ValueError:
        return ""
    return (
        f"{where}, {b.level}: stacks along one rank stand outermost first; write the innermost first: "
        f"{', '.join(str(s) for s in b.steps if s.repl)}"
    )


def _innermost_first(buffer: Buffer, e: Einsum, where: str) -> Buffer:
    """Returns the buffer with its stacks along each rank sorted by shift, in the positions that they had."""
    ranks = [loop_of(step, e, where).rank if step.repl else "" for step in buffer.steps]
    order = {
        rank: iter(
            sorted(
                (s for s, step_rank in zip(buffer.steps, ranks, strict=True) if step_rank == rank),
                key=lambda s: s.moves,
            )
        )
        for rank in set(ranks) - {""}
    }
    return replace(
        buffer,
        steps=tuple(
            next(order[rank]) if rank else step for step, rank in zip(buffer.steps, ranks, strict=True)
        ),
    )


def _omitted_loops(nodes: Sequence[Loop | Store], e: Einsum) -> Iterator[Loop]:
    """Yields the loops at compute that directives may omit: over each rank whose tile is not 1 yet, in the
    einsum's order.
    """
    tile_of = e.sizes() | {node.rank: node.tile for node in nodes if isinstance(node, Loop)}
    return (Loop(rank, 1) for rank, n in tile_of.items() if n > 1)


def loop_of(step: Step, e: Einsum, where: str) -> Loop:
    """Returns the loop over the one rank that a step moves, or names. Raises ValueError if there is none."""
    indices = {index(d) for p in e.tensors() for d in p.dims}
    for rank in e.sizes():
        if len(step.moves) == 1 and rank == step.moves[0][0] and rank not in indices and step.moves[0][1]:
            return Loop(rank, step.moves[0][1])
        unit_moves = dict(moves(e, rank, 1))
        tiles = {n // unit_moves[dim] for dim, n in step.moves if dim in unit_moves}
        if (
            set(unit_moves) == {dim for dim, _ in step.moves}
            and len(tiles) == 1
            and moves(e, rank, max(tiles)) == step.moves
            and max(tiles) > 0
        ):
            return Loop(rank, max(tiles))
    ranks = "; ".join(f"{rank}: {shift_text(moves(e, rank, 1))}" for rank in e.sizes())
    raise ValueError(
        f"{where}: {shift_text(step.moves) or 'no move'} is a step of no one rank, or moves its dimensions "
        f"unevenly; one step of each rank is {ranks}"
    )


def stack_dims(buffer: Buffer, arch: Arch | None, where: str) -> list[str]:
    """Returns the fan-out dimension of each stack. A stack that names none gets an unused one of the fan-out
    directly outside of the level, last dimension first.
    """
    stacks = [step for step in buffer.steps if step.repl]
    if all(step.over for step in stacks):
        return [step.over for step in stacks]
    level_index = (
        next(
            (level_index for level_index, level in enumerate(arch.levels) if level.name == buffer.level),
            len(arch.levels),
        )
        if arch
        else -1
    )
    dims = [
        name
        for f in (arch.fanouts if arch else ())
        if f.outside == level_index
        for name, _ in reversed(f.dims)
    ]
    dims = [name for name in dims if name not in {step.over for step in stacks}]
    if len(dims) < sum(not step.over for step in stacks):
        raise ValueError(
            f"{where}, {buffer.level}: stack({shift_text(stacks[0].moves)}, {stacks[0].repl}) names no "
            f"dimension of a fan-out, and there are {', '.join(dims) or 'none'} left; write e.g. "
            "stack(...) over X"
        )
    unused_dims = iter(dims)
    return [step.over or next(unused_dims) for step in stacks]


def _check(layer: Layer, mapping: nest.Mapping, e: Einsum, where: str) -> None:
    """Raises ValueError where stated sizes or numbers of buffers contradict the steps, or where steps overlap
    or leave a gap.
    """
    tile_of, sharing_pes = e.sizes(), _shared_counts(mapping, e)
    buffers = (*layer.buffers, *layer.matched)
    stated_stacks = iter(
        [(b.level, step.repl) for b in reversed(buffers) for step in reversed(b.steps) if step.repl]
    )
    # tiles of each tensor at each level, innermost first: of one that the segment shares, a layer may have a
    # part
    stated_tiles = defaultdict[tuple[str, str], list[TensorTile]](list)
    for b in buffers:
        for tensor_tile in b.tensors:
            stated_tiles[b.level, tensor_tile.tensor].append(tensor_tile)
    projections = {p.tensor: p for p in e.tensors()}
    for node in mapping.nodes:
        if isinstance(node, Store):
            stated_tile = stated_tiles[node.level, node.tensor].pop()
            implied_size, stated_size = (
                dict(size(projections[node.tensor], tile_of)),
                dict(stated_tile.size),
            )
            if implied_size != stated_size:
                dims = ", ".join(f"{dim}={n}" for dim, n in implied_size.items())
                raise ValueError(
                    f"{where}, {node.level}: tensor{{{node.tensor}}} has "
                    f"{', '.join(f'{dim}={n}' for dim, n in stated_size.items())}, where steps leave "
                    f"{dims}: tiles "
                    "that overlap, or leave gaps, are no nest"
                )
            if stated_tile.over and stated_tile.shares != (
                n := prod(sharing_pes.get((node.level, node.tensor, dim), 1) for dim in stated_tile.over)
            ):
                raise ValueError(
                    f"{where}, {node.level}: tensor{{{node.tensor}}} is divided among "
                    f"{stated_tile.shares} buffers, "
                    f"but {n} along {' '.join(stated_tile.over)} would hold the same tile; say shr={n}"
                )
            continue
        if node.tile > tile_of[node.rank]:
            raise ValueError(
                f"{where}: a step of {node.tile} along {node.rank} stands inside of one of "
                f"{tile_of[node.rank]}; steps grow outwards"
            )
        trips = -(-tile_of[node.rank] // node.tile)
        if node.over:
            level, repl = next(stated_stacks)
            if repl != trips:
                raise ValueError(
                    f"{where}, {level}: a stack of {repl} shifts of {node.tile} along {node.rank} does not "
                    f"cover {tile_of[node.rank]} without gap or overlap; say {trips}"
                )
        tile_of[node.rank] = node.tile
    if unfinished := [rank for rank, n in tile_of.items() if n > 1]:
        raise ValueError(
            f"{where}, {COMPUTE}: {unfinished[0]} ends with a tile of {tile_of[unfinished[0]]}, not 1; add "
            f"update({shift_text(moves(e, unfinished[0], 1))})"
        )


def shift_text(moved: Moves) -> str:
    """Returns moves as directives print them: `Yo+=1, Yi+=1`."""
    return ", ".join(f"{dim}+={n}" for dim, n in moved)


def _lines(layer: Layer) -> Iterator[str]:
    yield f"{layer.name}{region_text(layer.region)}:"
    for b in layer.buffers:
        yield from _buffer_lines(b)
    if layer.matched:
        yield f"  {MATCHED}"
    for b in layer.matched:
        yield from _buffer_lines(b)


def _buffer_lines(b: Buffer) -> Iterator[str]:
    yield f"  {b.level}{' in order' if b.inside is not None else ''}:"
    tensor_lines = []
    for tensor_tile in b.tensors:
        arguments = [f"{dim}={n}" for dim, n in tensor_tile.size]
        over = f" over {' '.join(tensor_tile.over)}" if tensor_tile.over else ""
        if over:
            arguments.append(f"shr={tensor_tile.shares}")
        hold = " hold" if tensor_tile.hold else ""
        tensor_lines.append(f"    tensor{{{tensor_tile.tensor}}}({', '.join(arguments)}){over}{hold}")
    inside = b.inside or (0,) * len(tensor_lines)
    for i in range(len(b.steps) + 1):
        yield from (line for line, n in zip(tensor_lines, inside, strict=True) if n == i)
        yield from (f"    {step}" for step in b.steps[i : i + 1])


def fetches_whole(source: str) -> bool:
    """True if a text says that tiles are fetched whole."""
    return source.lstrip().startswith(FIRST_LINE_WHOLE)


def has_overlap(layer: Layer, e: Einsum) -> bool:
    """True if a step moves a tensor by less than its tile. Consecutive tiles then overlap: part of the next
    tile is in the buffer already, whereas a nest would fetch all of the tile.
    """
    dims_of = {p.tensor: {index(d) for d in p.dims} for p in e.tensors()}
    return any(
        0 < by < dict(tensor_tile.size).get(dim, 0)
        for b in (*layer.buffers, *layer.matched)
        for tensor_tile in b.tensors
        for step in b.steps
        for dim, by in step.moves
        if dim in dims_of.get(tensor_tile.tensor, ())
    )


def text(layers: Iterable[Layer], fetch_whole: bool = False, head: Iterable[str] = ()) -> str:
    """Returns layers as the text of a file. fetch_whole: the first line says that tiles are fetched whole, as
    in a nest; head: lines that say something of the whole schedule.
    """
    lines = [FIRST_LINE_WHOLE if fetch_whole else FIRST_LINE, *head]
    segment = 0
    for layer in layers:
        if layer.segment != segment:
            segment = layer.segment
            lines.append(SEGMENT)
        lines.append(str(layer))
    return "\n".join(lines)


def parse(source: str) -> list[Layer]:
    """Returns the layers of a text, the inverse of `text`; indentation is free. Raises ValueError naming the
    line.
    """
    layers: list[Layer] = []
    names: dict[str, str] = {}
    is_matched, segment = False, 0
    lines = [(number, line) for number, line in content_lines(source) if not line.startswith(HEAD)]
    for (number, line), (_, following) in pairwise([*lines, (0, "")]):
        begins_layer = LEVEL.match(following) or NAMED.match(following) or following == MATCHED
        try:
            if line == SEGMENT:
                if layers and not segment:
                    raise ValueError("stands below a layer in no segment; begin with a segment")
                segment += 1
            elif (match := LAYER.match(line)) and (begins_layer or match[2]):
                if match[2] and not segment:
                    raise ValueError("has a region of nodes in no segment; write segment before it")
                layers.append(Layer(match[1], (), (), segment, region_of(match[2] or "")))
                names, is_matched = {}, False
            elif not layers:
                raise ValueError("stands in no layer; begin with NAME:, then LEVEL:")
            elif line == MATCHED:
                if is_matched or not segment:
                    raise ValueError(
                        "stands once in a layer of a segment, before the levels that all layers have"
                    )
                is_matched = True
            elif (match := NAMED.match(line)) and not layers[-1].buffers and not is_matched:
                names[match[1]] = match[2].replace(" ", "")
            else:
                layers[-1] = _with_content(layers[-1], line, names, is_matched)
        except ValueError as fault:
            raise ValueError(f'directives, line {number}: "{line}" {fault}') from None
    if empty := [layer.name for layer in layers if not layer.buffers and not layer.matched] or (
        [] if layers else ["the text"]
    ):
        raise ValueError(
            f"directives: {empty[0]} has no level; write LEVEL: and below it tensor{{T}}(dim=size, ...)"
        )
    return [
        replace(
            layer,
            buffers=tuple(_stacks_first(b) for b in layer.buffers),
            matched=tuple(_stacks_first(b) for b in layer.matched),
        )
        for layer in layers
    ]


def content_lines(source: str) -> list[tuple[int, str]]:
    """Returns (number, line) of a text without first line, remarks and empty lines."""
    lines = [
        (number, re.sub(r"(^|\s)#.*", "", line).strip()) for number, line in enumerate(source.splitlines(), 1)
    ]
    return [(number, line) for number, line in lines if line and line not in (FIRST_LINE, FIRST_LINE_WHOLE)]


def _with_content(layer: Layer, line: str, names: Mapping[str, str], is_matched: bool) -> Layer:
    """Returns the layer with one more line: a level, or a line of its last level.

    names: name -> index text; is_matched: whether the level is one of the whole segment
    """
    buffers = layer.matched if is_matched else layer.buffers
    if match := LEVEL.match(line):
        buffers = (*buffers, Buffer(match[1], (), (), () if match[2] else None))
    elif not buffers:
        raise ValueError("stands at no level; write LEVEL: before it")
    else:
        buffers = (*buffers[:-1], _with_line(buffers[-1], line, names))
    return replace(layer, matched=buffers) if is_matched else replace(layer, buffers=buffers)


def _stacks_first(b: Buffer) -> Buffer:
    """Returns the buffer with its stacks before its updates, unless it is `in order`."""
    if b.inside is not None:
        return b
    return replace(b, steps=(*(s for s in b.steps if s.repl), *(s for s in b.steps if not s.repl)))


def _with_line(buffer: Buffer, line: str, names: Mapping[str, str]) -> Buffer:
    """Returns the buffer with one more line of its text. names: name -> index text."""
    if match := TENSOR.match(HOLD.sub("", line)):
        sizes = dict(_pairs(match[2], "=", names))
        shares = sizes.pop("shr", 1)
        if shares < 1:
            raise ValueError(f"shr={shares}: a tensor is shared by one PE at least")
        if (shares > 1) != bool(match[3]):
            raise ValueError(
                "names shr and no dimensions, or dimensions and no shr; write tensor{T}(..., shr=4) over NY"
            )
        over = tuple((match[3] or "").split())
        tile = TensorTile(match[1], tuple(sizes.items()), over, shares, bool(HOLD.search(line)))
        inside = None if buffer.inside is None else (*buffer.inside, len(buffer.steps))
        return replace(buffer, tensors=(*buffer.tensors, tile), inside=inside)
    if match := STACK.match(line):
        if not int(match[2]):
            raise ValueError("stacks no buffer; say how many, at least 1")
        step = Step(tuple(sorted(_pairs(match[1] or "", "+=", names))), int(match[2]), match[3] or "")
    elif match := UPDATE.match(line):
        step = Step(tuple(sorted(_pairs(match[1], "+=", names))))
    else:
        raise ValueError(
            "is none of NAME:, LEVEL:, tensor{T}(dim=size, ...), stack(dim+=shift, ..., repl), "
            "update(dim+=step, ...)"
        )
    return replace(buffer, steps=(*buffer.steps, step))


def _pairs(arguments: str, sign: str, names: Mapping[str, str]) -> list[tuple[str, int]]:
    """Returns (dimension, number) of a list like `m=1, k=4`. names: name -> index text."""
    found = []
    for word in arguments.split(",") if arguments.strip() else ():
        dim, _, n = word.strip().rpartition(sign)
        dim = dim.strip().replace(" ", "")
        if not dim or not n.strip().isdecimal():
            raise ValueError(f'holds "{word.strip()}", which must be DIM{sign}NUMBER')
        found.append((names.get(dim, dim), int(n)))
    return found


def parse_mappings(source: str, workload: Workload, arch: Arch) -> dict[str, nest.Mapping | NotANest]:
    """Returns the mappings of a text of directives by einsum name: a nest, or NotANest. Raises ValueError
    with one line per fault.
    """
    einsums = {e.name: e for e in workload.einsums}
    by_einsum = dict[str, nest.Mapping | NotANest]()
    fault_lines = list[str]()
    levels = [*(level.name for level in arch.levels), COMPUTE]
    fetch_whole = fetches_whole(source)
    for layer in parse(source):
        if layer.name not in einsums or layer.name in by_einsum:
            what = "listed twice" if layer.name in by_einsum else f"no einsum of {workload.name}"
            fault_lines.append(
                f'directives: "{layer.name}" is {what}; give a layer each for '
                f"{', '.join(list(einsums)[:8])}{' ...' if len(einsums) > 8 else ''}"
            )
            continue
        unknown_levels = [b.level for b in layer.buffers if b.level not in levels]
        fault_lines += [
            f"directives of {layer.name}: {level} is no level of {arch.name}; {closest_name(level, levels)}"
            for level in unknown_levels
        ]
        if not fetch_whole and has_overlap(layer, einsums[layer.name]):
            by_einsum[layer.name] = NotANest(layer, "")
            continue
        try:
            by_einsum[layer.name] = mapping_of(layer, einsums[layer.name], arch)
        except ValueError as fault:
            by_einsum[layer.name] = NotANest(layer, str(fault))
            fault_lines += [str(fault)] if unknown_levels else []
    if fault_lines:
        raise ValueError("\n".join(fault_lines))
    if repeated := [name for name in by_einsum if name not in {group.names[0] for group in unique(workload)}]:
        raise ValueError(
            f"directives: {repeated[0]} is equal to an earlier einsum and takes that one's layer; "
            "leave it out"
        )
    return by_einsum


def mappings(source: str, workload: Workload, arch: Arch) -> dict[str, nest.Mapping]:
    """Returns the nests of a text of directives by einsum name. Raises ValueError with one line per fault; a
    layer that no nest expresses is a fault.
    """
    nests, wrong = dict[str, nest.Mapping](), list[str]()
    for name, layer_mapping in parse_mappings(source, workload, arch).items():
        if isinstance(layer_mapping, nest.Mapping):
            nests[name] = layer_mapping
        else:
            wrong.append(
                layer_mapping.why
                or f"directives of {name}: tiles overlap, so the layer is no nest; dse simulate prices it on "
                "its own. As a nest, which fetches every tile whole, begin the text with "
                f'"{FIRST_LINE_WHOLE}"'
            )
    if wrong:
        raise ValueError("\n".join(wrong))
    return nests


def read_if_directives(path: Path) -> str | None:
    """Returns the text of a file of directives; None for any other file. Raises ValueError naming the
    file.
    """
    begin = path.read_bytes()[:PROBE_BYTES].lstrip() if path.is_file() else b""
    if begin.partition(b"\n")[0].split() not in (
        FIRST_LINE.encode().split(),
        FIRST_LINE_WHOLE.encode().split(),
    ):
        if b"tensor{" in begin:
            raise ValueError(
                f'{path}: directives begin with the line "{FIRST_LINE}", or "{FIRST_LINE_WHOLE}"; add it'
            )
        return None
    if path.stat().st_size > document.MAX_BYTES:
        raise ValueError(f"{path}: has more than {document.MAX_BYTES} bytes")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{path}: is not UTF-8 text") from None
