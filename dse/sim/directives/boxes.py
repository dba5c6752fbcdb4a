"""Counts of directives that are no nest, whose tiles overlap (docs/model.md, Directives).

A buffer holds a box of each tensor. Its first index is the sum of the shifts (stacks) and steps (updates)
taken so far, at this level and further out; the box is clipped to the box of the level outside. Each
iteration of the updates fetches the elements that the box did not hold before. A buffer starts empty when an
update of a level further out advances.

    before, as a nest: for p tile 1, store REGF I      all of the window in each trip
    after: stack, update(p+=1) on I[p+r]               one column of it

A step moves one rank, and a rank occurs in at most one dimension of a tensor. So boxes, and intersections of
boxes, are products of intervals; sums over all buffers and iterations are products of sums per dimension.
Elements that several buffers request at once count once: the union of the new boxes, without each element
that all buffers whose new box has it held before. The elements left out are a product over dimensions, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from math import prod

from dse.mapping.directives import (
    COMPUTE,
    Layer,
    Moves,
    TensorTile,
    index,
    loop_of,
    shift_text,
    size,
    stack_dims,
)
from dse.mapping.nest import may_keep, role
from dse.sim.counts.actions import Key
from dse.sim.counts.counts import Elems, Footprint, takes_capacity
from hw.arch import Arch
from workloads.einsum import Dim, Einsum, Projection

MAX_POSITIONS = 1 << 20  # positions of a box along one dimension, at most; they are listed one by one
# how buffers of a stack count. ALL: each by itself; TOGETHER: an element that several request at once counts
# once; 0 or more: only the buffer at this position counts
ALL, TOGETHER = -1, -2
StackRule = Callable[["Turn"], int]


@dataclass(frozen=True, slots=True)
class Turn:
    """A step of the directives (a stack or an update), as a loop with its number of trips."""

    level: int  # index in Program.levels
    rank: str  # "": moves nothing
    moves: Moves
    trips: int
    over: str = ""  # fan-out dimension of a stack; "": an update

    def shift(self, d: Dim) -> int:
        """Returns the elements by which one trip moves along a dimension; 0: none."""
        return dict(self.moves).get(index(d), 0)


@dataclass(frozen=True, slots=True)
class Program:
    """The directives of an einsum, ready to be counted."""

    e: Einsum
    levels: tuple[str, ...]  # names, outermost first
    tiles: tuple[tuple[TensorTile, ...], ...]  # tiles at each level
    turns: tuple[Turn, ...]  # outermost first; of a level, stacks before updates

    def levels_of(self, p: Projection) -> list[int]:
        """Returns the levels where a tensor stands."""
        return [v for v, held in enumerate(self.tiles) if any(one.tensor == p.tensor for one in held)]

    def length(self, p: Projection, v: int, d: Dim) -> int:
        """Returns the elements along a dimension of the tensor's tile at level v, where it must stand."""
        return next(dict(one.size)[index(d)] for one in self.tiles[v] if one.tensor == p.tensor)


def program(layer: Layer, e: Einsum, arch: Arch) -> Program:
    """Returns the directives of a layer with trips. Raises ValueError in one line where they cannot be
    counted.
    """
    where = f"directives of {e.name}"
    buffers = [b for b in reversed(layer.buffers) if b.level != COMPUTE]
    if any(step.repl for b in layer.buffers if b.level == COMPUTE for step in b.steps):
        raise ValueError(
            f"{where}, {COMPUTE}: MAC units without buffers are counted as nests only; give them a "
            "level of their own"
        )
    if any(p.density < 1 or p.format != "dense" for p in e.tensors()):
        raise ValueError(f"{where}: a tensor with zeros is counted in nests only")
    if window_dims := [d for d in e.output.dims if len(d.terms) != 1 or d.terms[0][1] != 1]:
        raise ValueError(
            f"{where}: tensor{{{e.output.tensor}}} is written through {index(window_dims[0])}; overlapping "
            "results are counted in nests only"
        )
    tiles = tuple(b.tensors for b in buffers)
    for b in buffers:
        for one in b.tensors:
            p = next((p for p in e.tensors() if p.tensor == one.tensor), None)
            if p is None or {dim for dim, _ in one.size} != {index(d) for d in p.dims}:
                dims = (
                    f"has {', '.join(index(d) for d in p.dims)}"
                    if p
                    else f"is none of its tensors; it has {', '.join(q.tensor for q in e.tensors())}"
                )
                raise ValueError(f"{where}, {b.level}: tensor{{{one.tensor}}} {dims}")
    _check_levels([b.level for b in buffers], tiles, e, arch, where)
    g = Program(e, tuple(b.level for b in buffers), tiles, ())
    turns: list[Turn] = []
    for v, b in enumerate(buffers):
        stack_names = iter(
            [
                step.over or name
                for step, name in zip(
                    [step for step in b.steps if step.repl], stack_dims(b, arch, where), strict=True
                )
            ]
        )
        # (rank that a step moves or "", the step, fan-out dimension of a stack or "")
        steps = [
            (
                loop_of(step, e, f"{where}, {b.level}").rank if step.moves or not step.repl else "",
                step,
                next(stack_names) if step.repl else "",
            )
            for step in b.steps
        ]
        if steps and not v:
            raise ValueError(
                f"{where}, {b.level}: no level further out brings what steps of the outermost level move; "
                "write them one level further in"
            )
        trips_of = {i: step.repl for i, (_, step, _) in enumerate(steps) if step.repl}
        # updates with small steps first: how far they get decides the trips of larger ones
        for i in sorted(range(len(steps)), key=lambda i: max([n for _, n in steps[i][1].moves], default=0)):
            if i not in trips_of:
                trips_of[i] = _trips(
                    g,
                    v,
                    steps[i][1].moves,
                    [(step.moves, trips_of.get(j, 1)) for j, (_, step, _) in enumerate(steps) if j != i],
                    where,
                )
        turns += [
            Turn(v, rank, step.moves, trips_of[i], over) for i, (rank, step, over) in enumerate(steps) if over
        ]
        turns += [
            Turn(v, steps[i][0], steps[i][1].moves, trips_of[i])
            for i in reversed(range(len(steps)))
            if not steps[i][2]
        ]
        g = replace(g, turns=tuple(turns))
    if doubled := [turn for turn in turns if turn.trips > 1 and turns.count(turn) > 1]:
        raise ValueError(
            f"{where}, {g.levels[doubled[0].level]}: a step of {shift_text(doubled[0].moves)} stands "
            "twice; leave one out"
        )
    _check_stacks(g, arch, where)
    values_per_buffer(g)
    return g


def _check_levels(
    levels: Sequence[str], tiles: Sequence[Sequence[TensorTile]], e: Einsum, arch: Arch, where: str
) -> None:
    """Raises ValueError where levels or tensors of the directives do not match the machine or the einsum."""
    order = [level.name for level in arch.levels]
    if unknown := [level for level in levels if level not in order]:
        raise ValueError(f"{where}: {unknown[0]} is no level of {arch.name}; it has {', '.join(order)}")
    if (
        not levels
        or [order.index(level) for level in levels] != sorted({order.index(level) for level in levels})
        or levels[0] != order[0]
    ):
        raise ValueError(f"{where}: levels must stand innermost first and end with {order[0]}")
    full_sizes = {p.tensor: dict(size(p, e.sizes())) for p in e.tensors()}
    for tensor, dims in full_sizes.items():
        if [dict(one.size) for one in tiles[0] if one.tensor == tensor] != [dims]:
            raise ValueError(
                f"{where}, {levels[0]}: all of tensor{{{tensor}}} must stand there: "
                f"{', '.join(f'{dim}={n}' for dim, n in dims.items())}"
            )
    for level in arch.levels:
        tensors_there = [
            one.tensor
            for name, level_tiles in zip(levels, tiles, strict=True)
            if name == level.name
            for one in level_tiles
        ]
        if repeated := [tensor for tensor in tensors_there if tensors_there.count(tensor) > 1]:
            raise ValueError(f"{where}, {level.name}: tensor{{{repeated[0]}}} stands twice")
        if barred := [tensor for tensor in tensors_there if role(e, tensor) not in level.may_keep]:
            raise ValueError(
                f"{where}, {level.name}: holds no tensor{{{barred[0]}}}, only {', '.join(level.may_keep)}"
            )
        if not level.bypass and (
            missing := [tensor for tensor in may_keep(e, level) if tensor not in tensors_there]
        ):
            raise ValueError(
                f"{where}: tensor{{{missing[0]}}} does not stand at {level.name}, which no tensor may bypass"
            )


def _trips(g: Program, v: int, moves: Moves, others: Sequence[tuple[Moves, int]], where: str) -> int:
    """Returns the trips of an update: the fewest with which boxes reach the end of every tensor that has a
    dimension. If it moves several dimensions, the minimum over them.

    1 if w < t, else 1 + ceil((w - max(t, s)) / s)
    s: the step
    w: how far the update must get: the extent of the box outside or, if that is less, a larger step of this
        level or of a level between that bypasses the tensor, which then moves the box on. Where there is a
        larger step, dimensions that are a sum of ranks are ignored: those of the single ranks decide.
    t: extent of the tensor at this level, plus what smaller steps, or a stack of the same shift, move it by

    Source: KAPLA's solver, as run, which has one step per dimension.
    """
    found = dict[str, int]()
    for p in g.e.tensors():
        levels = [w for w in g.levels_of(p) if w <= v]
        for d in p.dims if v in levels else ():
            s = dict(moves).get(index(d), 0)
            steps = [(dict(other).get(index(d), 0), n, other == moves) for other, n in others]
            larger = [n for n, _, _ in steps if n > s]
            larger += [
                turn.shift(d)
                for turn in g.turns
                if levels[levels.index(v) - 1] < turn.level < v and turn.shift(d)
            ]
            if not s or (larger and len(d.terms) > 1):
                continue
            w = min([g.length(p, levels[levels.index(v) - 1], d), *larger])
            t = g.length(p, v, d) + sum(n * (trips - 1) for n, trips, same in steps if n < s or same)
            n = 1 if w < t else 1 - (max(t, s) - w) // s
            found[index(d)] = max(n, found.get(index(d), 0))
    if not found:
        raise ValueError(
            f"{where}, {g.levels[v]}: update({shift_text(moves)}) moves no tensor that stands there"
        )
    return min(found.values())


def _check_stacks(g: Program, arch: Arch, where: str) -> None:
    """Raises ValueError unless stacks lie on PEs of the machine, and each result is summed up in one
    buffer.
    """
    order = [level.name for level in arch.levels]
    outside_of = {name: f.outside for f in arch.fanouts for name, _ in f.dims}
    for turn in g.turns:
        if turn.over and not order.index(g.levels[turn.level - 1]) < outside_of.get(
            turn.over, -1
        ) <= order.index(g.levels[turn.level]):
            level_dims = [
                name
                for name, v in outside_of.items()
                if order.index(g.levels[turn.level - 1]) < v <= order.index(g.levels[turn.level])
            ]
            raise ValueError(
                f"{where}, {g.levels[turn.level]}: stack over {turn.over}: buffers of this level lie "
                f"along {', '.join(level_dims) or 'no dimension'}"
            )
    for v in g.levels_of(g.e.output)[1:]:
        for d in g.e.output.dims:
            if overlaps(g, g.e.output, d, v):
                raise ValueError(
                    f"{where}, {g.levels[v]}: tensor{{{g.e.output.tensor}}} overlaps along "
                    f"{index(d)}: one result would be added up in two places"
                )


def moving_turns(g: Program, p: Projection, d: Dim, v: int) -> list[Turn]:
    """Returns the turns with more than one trip, at level v or further out, that move a tensor along a
    dimension.

    Raises ValueError for more than MAX_POSITIONS positions, which are listed one by one.
    """
    found = [turn for turn in g.turns if turn.level <= v and turn.shift(d) and turn.trips > 1]
    if prod(turn.trips for turn in found) > MAX_POSITIONS:
        raise ValueError(
            f"directives of {g.e.name}, {g.levels[v]}: tensor{{{p.tensor}}} stands at more than "
            f"{MAX_POSITIONS} places along {index(d)}"
        )
    return found


def box(
    g: Program, p: Projection, d: Dim, v: int, turns: Sequence[Turn], iterations: Sequence[int]
) -> tuple[int, int]:
    """Returns (first index, one past the last) of a box along one dimension; empty if first >= last.

    turns: turns that move the dimension
    iterations: their iterations
    """
    low, high = 0, d.size
    for w in g.levels_of(p):
        if w <= v:
            start = d.offset + sum(
                i * turn.shift(d) for turn, i in zip(turns, iterations, strict=True) if turn.level <= w
            )
            low, high = max(low, start), min(high, start + g.length(p, w, d))
    return low, high


def overlaps(g: Program, p: Projection, d: Dim, v: int) -> bool:
    """True if two boxes of a tensor at a level, for any buffers and iterations, have indices of a dimension
    in common.
    """
    turns = moving_turns(g, p, d, v)
    boxes = [
        box(g, p, d, v, turns, iterations) for iterations in product(*(range(turn.trips) for turn in turns))
    ]
    return sum(max(high - low, 0) for low, high in boxes) != union_size(boxes)


def union_size(boxes: Sequence[tuple[int, int]]) -> int:
    """Returns the number of indices in at least one interval."""
    total, end = 0, None
    for low, high in sorted(box for box in boxes if box[0] < box[1]):
        start = low if end is None else max(low, end)
        total += max(high - start, 0)
        end = high if end is None else max(end, high)
    return total


def fills(g: Program, p: Projection, v: int, stack_rule: StackRule) -> int:
    """Returns the elements that are fetched to a level: all elements of the first boxes, and in each
    iteration the new elements.
    """
    updates = [turn for turn in g.turns if turn.level == v and not turn.over and turn.trips > 1]
    return sum(_fills(g, p, v, updates, i, stack_rule) for i in range(-1, len(updates)))


def _fills(g: Program, p: Projection, v: int, updates: Sequence[Turn], i: int, stack_rule: StackRule) -> int:
    """Returns the elements that are fetched in all iterations in which update i advances: updates outside of
    it stand still, and updates inside of it start again. i = -1: in the first iterations.

    updates: updates of level v, outermost first
    """

    def steps(turn: Turn) -> list[tuple[int, int]]:
        return (
            [(stack_rule(turn), stack_rule(turn))]
            if turn.over and stack_rule(turn) >= 0
            else steps_of(turn, v, updates, i)
        )

    idle_turns = [
        turn
        for turn in g.turns
        if turn.level <= v and turn.trips > 1 and not any(turn.shift(d) for d in p.dims)
    ]
    times = prod(1 if turn.over and stack_rule(turn) == TOGETHER else len(steps(turn)) for turn in idle_turns)
    product_now, product_before = 1, 1
    for d in p.dims if times else ():
        held, held_before = _index_counts(g, p, d, v, steps, stack_rule)
        product_now, product_before = product_now * held, product_before * held_before
    return times * (product_now if i < 0 else product_now - product_before)


def steps_of(turn: Turn, v: int, updates: Sequence[Turn], i: int) -> list[tuple[int, int]]:
    """Returns (iteration before, iteration after) pairs of a turn for the advances of update i of level v;
    for a stack, all its positions.
    """
    j = updates.index(turn) if turn.level == v and not turn.over else -1
    if turn.over or turn.level < v or j < i:
        return [(n, n) for n in range(turn.trips)]
    return (
        [(0, 0)]
        if i < 0
        else [(n, n + 1) for n in range(turn.trips - 1)]
        if j == i
        else [(turn.trips - 1, 0)]
    )


def _index_counts(
    g: Program,
    p: Projection,
    d: Dim,
    v: int,
    steps: Callable[[Turn], list[tuple[int, int]]],
    stack_rule: StackRule,
) -> tuple[int, int]:
    """Returns the number of indices of a dimension in the boxes after a step, and how many of these every
    buffer whose box has them now held before; both summed over all steps and over buffers that count by
    themselves.
    """
    turns = moving_turns(g, p, d, v)
    separate, joint = (
        [turn for turn in turns if bool(turn.over and stack_rule(turn) == TOGETHER) == both]
        for both in (False, True)
    )
    order, total, held_before = [*separate, *joint], 0, 0
    for outer in product(*map(steps, separate)):
        after, new_boxes = [], []
        for inner in product(*map(steps, joint)):
            (low, high), (old_low, old_high) = (
                box(g, p, d, v, order, [pair[side] for pair in (*outer, *inner)]) for side in (1, 0)
            )
            after.append((low, high))
            new_boxes += (
                [(low, min(high, old_low)), (max(low, old_high), high)]
                if old_low < old_high
                else [(low, high)]
            )
        held = union_size(after)
        total, held_before = total + held, held_before + held - union_size(new_boxes)
    return total, held_before


def first_reads(g: Program, p: Projection, v: int, stack_rule: StackRule) -> int:
    """Returns the elements that buffers ever hold, once per buffer."""
    idle_stacks = [
        turn for turn in g.turns if turn.level <= v and turn.over and not any(turn.shift(d) for d in p.dims)
    ]
    found = prod(turn.trips for turn in idle_stacks if stack_rule(turn) == ALL)
    for d in p.dims:
        turns = moving_turns(g, p, d, v)
        separate = [turn for turn in turns if turn.over and stack_rule(turn) == ALL]
        joint = [turn for turn in turns if turn not in separate]
        positions = [
            [stack_rule(turn)] if turn.over and stack_rule(turn) >= 0 else range(turn.trips) for turn in joint
        ]
        found *= sum(
            union_size(
                [box(g, p, d, v, [*separate, *joint], [*outer, *inner]) for inner in product(*positions)]
            )
            for outer in product(*(range(turn.trips) for turn in separate))
        )
    return found


def values_per_buffer(g: Program) -> dict[str, dict[tuple[int, ...], int]]:
    """Returns, per rank, how many of its values each buffer works on, by the buffer's position in the stacks
    that move the rank. Where boxes overlap, the box that begins first works on the value.

    Raises ValueError where a value is in no buffer, or not together with all operands that it is multiplied
    with.
    """
    tiles = [_rank_tiles(g, v) for v in range(len(g.levels))]
    found = {}
    for rank, extent in g.e.extents:
        turns = [turn for turn in g.turns if turn.rank == rank and turn.trips > 1]
        if prod(turn.trips for turn in turns) > MAX_POSITIONS:
            raise ValueError(f"directives of {g.e.name}: {rank} stands at more than {MAX_POSITIONS} places")
        stack_indices = [i for i, turn in enumerate(turns) if turn.over]
        steps = [values_per_trip(turn, g.e) for turn in turns]
        per_buffer: dict[tuple[int, ...], int] = {}
        done = bytearray(extent)  # per value, 1: a box that begins earlier works on it
        for iterations in sorted(
            product(*(range(turn.trips) for turn in turns)),
            key=lambda iterations: (sum(i * n for i, n in zip(iterations, steps, strict=True)), iterations),
        ):
            low, high = 0, extent
            for v, tile in enumerate(tiles):
                start = sum(
                    i * n for i, n, turn in zip(iterations, steps, turns, strict=True) if turn.level <= v
                )
                low, high = max(low, start), min(high, start + tile.get(rank, extent))
            value_count = max(high - low, 0) - sum(done[low:high])
            if value_count > 0:
                position = tuple(iterations[i] for i in stack_indices)
                per_buffer[position] = per_buffer.get(position, 0) + value_count
                done[low:high] = b"\1" * (high - low)
        if (missing := done.find(0)) >= 0:
            raise ValueError(
                f"directives of {g.e.name}: what stands at {rank} = {missing} comes to no buffer together "
                "with all that it is multiplied with; take smaller steps, more buffers or larger tensors"
            )
        found[rank] = per_buffer
    return found


def values_per_trip(turn: Turn, e: Einsum) -> int:
    """Returns by how many values a turn moves its rank."""
    return next(
        turn.shift(d) // c for p in e.tensors() for d in p.dims for rank, c in d.terms if rank == turn.rank
    )


def _rank_tiles(g: Program, v: int) -> dict[str, int]:
    """Returns the values of each rank that a buffer can work on at once, from the tiles of its tensors. A
    rank that none of the tensors has gets its smallest step; ranks without an entry are complete.

    Raises ValueError where the tile of a window is too small, or does not define the tile of each rank.
    """
    dims = [(p, d, g.length(p, v, d)) for p in g.e.tensors() if v in g.levels_of(p) for d in p.dims]
    found: dict[str, int] = {}
    for _, d, n in dims:
        if len(d.terms) == 1:
            ((rank, c),) = d.terms
            found[rank] = min(found.get(rank, n), (n - 1) // c + 1)
    found = {rank: min(n, g.e.sizes()[rank]) for rank, n in found.items()}
    for p, d, n in dims:
        unset = [(rank, c) for rank, c in d.terms if rank not in found]
        remaining = n - 1 - sum(c * (found[rank] - 1) for rank, c in d.terms if rank in found)
        if remaining < 0 or len(unset) > 1:
            why = (
                f"but the other tensors need {n - remaining}; make it larger"
                if remaining < 0
                else "a sum of ranks, and no other tensor there says how much of each; give it one that does"
            )
            raise ValueError(
                f"directives of {g.e.name}, {g.levels[v]}: tensor{{{p.tensor}}} has {index(d)}={n}, {why}"
            )
        found |= {rank: min(remaining // c + 1, g.e.sizes()[rank]) for rank, c in unset}
    steps = [(turn.rank, values_per_trip(turn, g.e)) for turn in g.turns if turn.level == v and turn.rank]
    return {rank: min(n for other, n in steps if other == rank) for rank, _ in steps} | found


def footprints(g: Program) -> tuple[Footprint, ...]:
    """Returns the footprints that directives state; one part where buffers share a tile out. At the outermost
    level all stored elements count.
    """
    tensors = {p.tensor: p for p in g.e.tensors()}
    outermost = [
        Footprint(g.levels[0], one.tensor, p.stored_elems() * takes_capacity(p, g.e), False)
        for one in g.tiles[0]
        for p in [tensors[one.tensor]]
    ]
    moving = [
        any(not turn.over and turn.trips > 1 and turn.level <= v for turn in g.turns)
        for v in range(len(g.levels))
    ]
    return (
        *outermost,
        *(
            Footprint(level, one.tensor, -(-prod(n for _, n in one.size) // one.shares), moves)
            for level, tiles, moves in zip(g.levels[1:], g.tiles[1:], moving[1:], strict=True)
            for one in tiles
        ),
    )


def count_rows(g: Program, arch: Arch) -> dict[Key, Elems]:
    """Returns elements per (level, tensor, action): of all buffers, and of each buffer that may be the
    busiest: the first of each stack, and the second where padding cuts the first.
    """
    stacks = [turn for turn in g.turns if turn.over]
    padded_dims = {index(d) for p in g.e.tensors() for d in p.dims if d.offset}
    candidate_positions = [
        range(2 if turn.trips > 1 and padded_dims & {dim for dim, _ in turn.moves} else 1) for turn in stacks
    ]
    total = _tally(g, arch, None)
    by_buffer = [
        _tally(g, arch, dict(zip(stacks, positions, strict=True)))
        for positions in product(*candidate_positions)
    ]
    return {key: (n, [counts.get(key, 0) for counts in by_buffer]) for key, n in total.items() if n}


def _tally(g: Program, arch: Arch, buffer: Mapping[Turn, int] | None) -> dict[Key, float]:
    """Returns elements per (level, tensor, action) of the buffer at one position of every stack; None: of all
    buffers.
    """
    values_of, found = values_per_buffer(g), dict[Key, float]()
    multicast, reduce = (
        {
            name: flags[i]
            for f in arch.fanouts
            for i, (name, _) in enumerate(f.dims)
            for flags in ((f.reduce if sums else f.multicast),)
        }
        for sums in (False, True)
    )
    skips = {level.name for level in arch.levels if level.skip_first_read}

    def stack_rule(boundary: int, inside: Callable[[Turn], int]) -> StackRule:
        """Returns how stacks count: stacks down to level `boundary` by the buffer in question, stacks further
        inside by `inside`.
        """
        return lambda turn: inside(turn) if turn.level > boundary else own(turn)

    def own(turn: Turn) -> int:
        return ALL if buffer is None else buffer[turn]

    def add(v: int, p: Projection, action: str, n: float) -> None:
        key = g.levels[v], p.tensor, action
        found[key] = found.get(key, 0) + n

    for p in g.e.tensors():
        output, levels = p is g.e.output, g.levels_of(p)
        joins = reduce if output else multicast

        # for traffic between levels: PEs along a dimension with multicast (or reduction) share an access
        def together(turn: Turn, joins: Mapping[str, bool] = joins) -> int:
            return TOGETHER if joins[turn.over] else ALL

        # for accesses of compute: of PEs that share an access, since the tensor lacks their rank, the first
        def first(turn: Turn, joins: Mapping[str, bool] = joins, p: Projection = p) -> int:
            return 0 if joins[turn.over] and turn.rank not in p.ranks() else ALL

        # for first reads at a memory: of PEs that add to the same element, the first
        def once(turn: Turn, p: Projection = p) -> int:
            return 0 if turn.rank not in p.ranks() else ALL

        for outer, v in pairwise(levels):
            united = stack_rule(outer, lambda _: TOGETHER)
            for end, into, outof in ((v, "write", "read"), (outer, "read", "write")):
                rule = stack_rule(end, together)
                n = fills(g, p, v, rule)
                if output:
                    add(end, p, outof, n)
                if output and g.levels[outer] in skips:  # each buffer once; a memory once for all of them
                    n -= first_reads(g, p, v, rule if end == v else united)
                add(end, p, into, n)
            if output and buffer is None:
                all_fills, united_fills = fills(g, p, v, lambda _: ALL), fills(g, p, v, united)
                found["MAC", p.tensor, "merge"] = (
                    found.get(("MAC", p.tensor, "merge"), 0) + all_fills - united_fills
                )
        product_count, _ = products(g, values_of, stack_rule(levels[-1], first))
        if output:
            add(levels[-1], p, "write", product_count)
        if output and g.levels[levels[-1]] in skips:
            product_count -= products(g, values_of, stack_rule(levels[-1], once))[1]
        add(levels[-1], p, "read", product_count)
    found["MAC", "-", "compute"] = products(g, values_of, own)[0]
    return found


def products(
    g: Program, values_of: Mapping[str, Mapping[tuple[int, ...], int]], stack_rule: StackRule
) -> tuple[int, int]:
    """Returns the products that the counted buffers compute, and the results that each of these buffers adds
    to, summed over them.

    values_of: rank -> values per position in its stacks (`values_per_buffer`)
    """
    product_count, result_count = 1, 1
    for rank, values_at in values_of.items():
        turns = [turn for turn in g.turns if turn.rank == rank and turn.trips > 1 and turn.over]
        counted = [
            n
            for position, n in values_at.items()
            if all(stack_rule(turn) in (ALL, i) for turn, i in zip(turns, position, strict=True))
        ]
        product_count, result_count = (
            product_count * sum(counted),
            result_count * (sum(counted) if rank in g.e.output.ranks() else len(counted)),
        )
    copies = [
        turn for turn in g.turns if turn.over and not turn.rank
    ]  # of equal buffers the first one computes
    return (0, 0) if any(stack_rule(turn) > 0 for turn in copies) else (product_count, result_count)
