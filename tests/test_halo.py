"""Cuts, overlapping tiles, putting them together, copies of the host; and the arithmetic of windows."""

from __future__ import annotations

import doctest
from collections.abc import Callable
from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dse.layout import primitive
from dse.mapper.smaug import factor, halo, schedule
from dse.mapper.smaug.halo import (
    Tiled,
    Window,
    copies,
    cut,
    cut_outputs,
    cut_windows,
    input_range,
    is_uniform,
    take,
)
from workloads.arrays import Array


@pytest.mark.parametrize("module", [primitive, halo, schedule, factor])
def test_examples_in_docstrings(module) -> None:
    assert doctest.testmod(module).failed == 0


@st.composite
def windowed(draw) -> tuple[int, int, Window]:
    """(extent, tile, window): tiles of whole windows, as the optimizers enumerate them."""
    size, step = draw(st.integers(1, 9)), draw(st.integers(1, 6))
    extent = draw(st.integers(size, 90))
    tile = min(size + step * draw(st.integers(0, 12)), size + (extent - size) // step * step)
    return extent, tile, Window(size, step, draw(st.integers(0, size - 1)), draw(st.integers(0, size - 1)))


@given(windowed())
def test_aligned_pieces_hold_what_their_outputs_read_and_outputs_are_partitioned(
    case: tuple[int, int, Window],
) -> None:
    extent, tile, w = case
    pieces = cut_windows(extent, tile, w)
    made = cut_outputs(pieces, w)
    assert [i for origin, n in made for i in range(origin, origin + n)] == list(range(w.outputs(extent)))
    assert len(pieces) - 1 <= len(made) <= len(pieces)
    for (start, held), (origin, n) in zip(pieces, made, strict=False):
        reads = {o * w.step - w.lead + r for o in range(origin, origin + n) for r in range(w.size)} & set(
            range(extent)
        )
        assert reads <= set(range(start, start + held))
        assert held <= tile
        assert not reads or input_range((origin, n), w, extent) == (min(reads), max(reads) - min(reads) + 1)
        assert start - (w.lead if start == 0 else 0) == origin * w.step - w.lead


def test_negative_halo_leaves_elements_out() -> None:
    assert cut_windows(10, 3, Window(1, 2)) == ((0, 3), (4, 3), (8, 2))


def test_published_first_piece_is_shorter() -> None:
    w = Window(7, 2, 3, 3)
    assert [n for _, n in cut_windows(225, 9, w)] == [8, *[9] * 54, 6]
    assert [n for _, n in cut_outputs(cut_windows(225, 9, w), w)] == [3, *[2] * 55]


def test_unaligned_cuts_start_at_the_wrong_row() -> None:
    w = Window(3, 2, 1, 1)
    assert cut_windows(32, 3, w, aligned=False)[1][0] == 2
    assert cut_windows(32, 3, w)[1][0] == 1


def test_a_tile_below_one_window_is_refused() -> None:
    with pytest.raises(ValueError, match="hold no window of 5"):
        cut_windows(20, 4, Window(5, 1))


@given(windowed())
def test_tiles_without_padding_are_those_of_unfold(case: tuple[int, int, Window]) -> None:
    extent, tile, w = case
    pieces = cut_windows(extent, tile, Window(w.size, w.step))
    block, step = (
        primitive.reach(primitive.windows(tile, w.size, w.step), w.size, w.step),
        primitive.pitch(tile, w.size, w.step),
    )
    assert block == tile
    assert [origin for origin, _ in pieces] == [i * step for i in range(len(pieces))]
    assert unfolds(tile, w) == (w.step <= w.size or step <= tile)


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=4))
def test_untile_is_the_inverse_of_cutting_and_copies_are_the_contiguous_runs(
    dims: list[tuple[int, int]],
) -> None:
    shape = tuple(n for n, _ in dims)
    tiled = Tiled(shape, "", tuple(min(t, n) for n, t in dims), tuple(cut(n, t) for n, t in dims))
    whole = np.arange(prod(shape)).reshape(shape)
    tiles = [take(whole, *place) for place in tiled.tiles()]
    assert (untile(tiled, tiles.__getitem__) == whole).all()
    assert tiled.elems().tolist() == [tile.size for tile in tiles]
    assert [tiled.at(i) for i in range(len(tiles))] == list(tiled.tiles())
    runs = [n for tile in tiles for n in _runs(tile.ravel())] if len(tiles) > 1 else []
    found = copies(tiled)
    assert (found.elems, found.number) == (sum(runs), sum(_broken_runs(tiled)) if runs else 0)
    assert found.number >= len(runs)


def _runs(flat: np.ndarray) -> list[int]:
    edges = np.flatnonzero(np.diff(flat) != 1)
    return np.diff([-1, *edges.tolist(), len(flat) - 1]).tolist()


def _broken_runs(tiled: Tiled) -> list[int]:
    """Rows per tile: what lies behind the last cut dimension is whole, all before it is copied row by row."""
    inner = max(i for i, n in enumerate(tiled.grid()) if n > 1)
    return [prod(shape[:inner]) for _, shape in tiled.tiles()]


@given(st.integers(1, 40), st.integers(1, 40))
def test_plain_cuts_partition_and_are_uniform(extent: int, tile: int) -> None:
    pieces = cut(extent, tile)
    assert [i for origin, n in pieces for i in range(origin, origin + n)] == list(range(extent))
    assert is_uniform(pieces)
    assert not is_uniform(((0, 2), (2, 3)))
    assert not is_uniform(((0, 2), (2, 1), (3, 2)))


def test_untile_keeps_the_later_of_overlapping_tiles() -> None:
    tiled = Tiled((4,), "", (3,), (((0, 3), (1, 3)),))
    assert untile(tiled, lambda i: np.full(3, i)).tolist() == [0, 1, 1, 1]


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 4), st.integers(1, 4), st.integers(1, 3))
def test_replay_loads_by_the_one_entry_rule(n: int, h: int, m: int, c: int, accelerators: int) -> None:
    """Against loops written out."""
    tensors = {
        "inputs": Tiled((n, h, c), "", (1, 1, 1), (cut(n, 1), cut(h, 1), cut(c, 1))),
        "weights": Tiled((m, c), "", (1, 1), (cut(m, 1), cut(c, 1))),
        "outputs": Tiled((n, h, m), "", (1, 1, 1), (cut(n, 1), cut(h, 1), cut(m, 1))),
    }
    index = {"inputs": "n h c", "weights": "m c", "outputs": "n h m"}
    found = schedule.calls(
        schedule.nest({"n": n, "h": h, "m": m, "c": c}, tensors, index, "c", reduces="c"),
        tensors,
        accelerators,
    )
    held: dict[tuple[int, str], tuple[int, ...]] = {}
    turn, i = -1, 0
    for ni, hi, mi in product(range(n), range(h), range(m)):
        turn += 1
        a = turn % accelerators
        for ci in range(c):
            assert found.accelerator[i] == a
            assert found.accumulate[i] == (ci > 0)
            assert found.send[i] == (ci == c - 1)
            for name, tile in (("inputs", (ni, hi, ci)), ("weights", (mi, ci))):
                assert found.load[name][i] == (held.get((a, name)) != tile)
                held[a, name] = tile
            i += 1
    assert i == len(found.send)


def unfolds(tile: int, w: Window) -> bool:
    """The tiles of a windowed dimension are those of `unfold` (dse/layout/primitive.py): whole windows, none
    twice, no gap.
    """
    return (
        tile == primitive.reach(primitive.windows(tile, w.size, w.step), w.size, w.step)
        and primitive.pitch(tile, w.size, w.step) <= tile
    )


def untile(tiled: Tiled, tiles: Callable[[int], Array]) -> Array:
    """The tensor that tiles make up, each taken by its number; where they overlap the later one stands."""
    whole: Array | None = None
    for number, (origin, shape) in enumerate(tiled.tiles()):
        piece = tiles(number)
        whole = np.zeros(tiled.shape, piece.dtype) if whole is None else whole
        take(whole, origin, shape)[...] = piece
    return np.zeros(tiled.shape) if whole is None else whole
