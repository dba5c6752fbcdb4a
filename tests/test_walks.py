"""The compiled walks of a rank against a plain enumeration of the same cuts."""

from __future__ import annotations

from collections import deque
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dse.dataflow.space import Tiles
from dse.dataflow.walks import LANES, TIME, TIME_RAGGED, UNIT, UNIT_RAGGED, Dim, Walks, lanes, walks

Cuts = tuple[tuple[int, int], ...]
Ways = dict[tuple[int, ...], Cuts]  # trips per dimension, and the loops


def cut(own: Cuts, tile: int, of: int) -> Cuts:
    """One more cut; the last one goes if it is of the same class and the new one divides it."""
    return (*own[:-1], (tile, of)) if own and own[-1][1] == of and own[-1][0] % tile == 0 else (*own, (tile, of))


def over(own: Cuts, tile: int, border: tuple[Dim, ...], dims: int, tiles: Tiles) -> dict[Cuts, Ways]:
    """What may follow over a border, with the ways there that need fewest lanes."""
    found: list[tuple[Cuts, int, tuple[int, ...], Cuts]] = [(own, tile, (1,) * dims, ())]
    for d, size, of in border if max((d for _, d in own), default=-1) < min((d[2] for d in border), default=0) else ():
        for c, n, trips, loops in list(found):
            for inner in sorted({-(-n // f) for f in range(2, size + 1) if tiles != "perfect" or n % f == 0} - {n}, reverse=True):
                found.append((cut(c, inner, of), inner, (*trips[:d], -(-n // inner), *trips[d + 1:]), (*loops, (inner, d))))
    ways: dict[Cuts, Ways] = {}
    for c, _, trips, loops in found:
        ways.setdefault(c, {}).setdefault(trips, loops)

    def needless(trips: tuple[int, ...], others: Ways) -> bool:
        return any(other != trips and all(a <= b for a, b in zip(other, trips, strict=True)) for other in others)

    return {c: {trips: loops for trips, loops in found_ways.items() if not needless(trips, found_ways)} for c, found_ways in ways.items()}


def enumerated(extent: int, borders: tuple[tuple[Dim, ...], ...], dims: int, tiles: Tiles) -> tuple[list[Cuts], list[list[Cuts]], list[list[dict[Cuts, Ways]]]]:
    """States in the order in which they are met, what follows each in time, and over every border."""
    queue, states, time, lanes_of = deque[Cuts]([()]), dict[Cuts, None]({(): None}), [], []
    while queue:
        own = queue.popleft()
        tile = own[-1][0] if own else extent
        time.append([own, *(cut(own, n, -1) for n in range(tile - 1, 0, -1) if tiles == "ragged" or tile % n == 0)])
        lanes_of.append([over(own, tile, border, dims, tiles) for border in borders])
        for after in (*time[-1], *(c for found in lanes_of[-1] for c in found)):
            if after not in states:
                states[after] = None
                queue.append(after)
    return list(states), time, lanes_of


def successors(w: Walks, group: int, state: int) -> list[int]:
    return [int(s) for s in w.after[w.start[group, state]:w.start[group, state + 1]]]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 36), st.lists(st.integers(1, 9), min_size=1, max_size=3), st.integers(0, 3), st.booleans(),
       st.sampled_from(["divisor", "perfect", "ragged"]))
def test_walks_equal_a_plain_enumeration(extent: int, sizes: list[int], inner: int, merge: bool, tiles: Tiles) -> None:
    extent = min(extent, 12) if tiles == "ragged" else extent
    split = len(sizes) - min(inner, len(sizes) - 1)  # the dimensions from here on stand at an inner border
    numbered = [(d, size, (0 if d < split else split) if merge else d) for d, size in enumerate(sizes)]
    borders = tuple(tuple(own) for own in (numbered[:split], numbered[split:]) if own)
    w, (states, time, lanes_of) = walks(extent, borders, len(sizes), tiles), enumerated(extent, borders, len(sizes), tiles)
    assert [tuple(w.cuts_of(s)) for s in range(len(w.tiles))] == states
    number = {own: s for s, own in enumerate(states)}
    for s in range(len(states)):
        assert successors(w, TIME, s) == [number[own] for own in time[s]] and successors(w, UNIT, s) == [number[time[s][-1]]]
        for b in range(len(borders)):
            found = lanes(w, s, b)
            assert {states[after]: dict(ways) for after, ways in found.items()} == lanes_of[s][b]
            assert_grouped(w, s, b)


def assert_grouped(w: Walks, s: int, b: int) -> None:
    """States that leave a lane the same tile stand together, those that need fewest lanes first; the last group has one state for each."""
    after = successors(w, LANES + b, s)
    fewest = [min(prod(trips) for trips, _ in lanes(w, s, b)[a]) for a in after]
    assert w.fewest[w.start[LANES + b, s]:w.start[LANES + b, s + 1]].tolist() == fewest
    tiles = [w.tile(a) for a in after]
    first = [i for i, tile in enumerate(tiles) if tile not in tiles[:i]]
    assert all(tiles[i] != tiles[i - 1] or fewest[i - 1] <= fewest[i] for i in range(1, len(after)))
    assert sum(tiles[i] != tiles[i - 1] for i in range(1, len(after))) == len(first) - 1
    if b == 0:
        assert successors(w, len(w.start) - 1, s) == [after[i] for i in first]


def test_a_loop_directly_below_lanes_needs_a_ragged_tile() -> None:
    w = walks(12, (((0, 5, 0),),), 1, "divisor")
    for s in range(len(w.tiles)):
        even = all(tile % inner == 0 for tile, inner in zip([12, *(t for t, _ in w.cuts_of(s))], [t for t, _ in w.cuts_of(s)], strict=False))
        if even or w.cuts_of(s)[-1][1] < 0:
            assert successors(w, TIME_RAGGED, s) == [s] and successors(w, UNIT_RAGGED, s) == ([s] if w.tile(s) == 1 else [])
        else:
            assert successors(w, TIME_RAGGED, s) == successors(w, TIME, s)


def test_too_many_ways_are_refused() -> None:
    with pytest.raises(ValueError, match="more than 30,000 ways; take tiles: divisor"):
        walks(64, (((0, 16, 0), (1, 16, 0)),), 2, "ragged")
