"""Loop nests over tiles: the order of kernel calls, the accelerator of each, what it loads and what it sends
back.

A nest is data; `calls` replays it. The only reuse is SMAUG's: an operand tile is not loaded if the
accelerator loaded the same one last. Accelerators take turns.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from dse.mapper.smaug.halo import Tiled
from workloads.arrays import Bools, Ints

Names = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Nest:
    """Loops over tiles. The body is one kernel call on one tile of each tensor:

    for n, for h, for m, for c:  outputs[n,h,m] += kernel(inputs[n,h,c], weights[m,c])
    """

    loops: tuple[tuple[str, int], ...]  # (name, trips), outermost first
    # per tensor and dimension, the loops whose counters add up to the number of its tile
    index: dict[str, tuple[Names, ...]]
    serial: Names = ()  # loops whose trips all run on the same accelerator
    always: Names = ()  # tensors that are loaded before every call, even if their tile is the same
    reduces: str = ""  # the loop that adds to an output tile (c above)
    last_only: bool = False  # whether results are sent back only once, after the last of all calls


@dataclass(frozen=True, slots=True)
class Calls:
    """Kernel calls in order; every array has one entry per call."""

    accelerator: Ints
    tile: dict[str, Ints]  # per tensor the number of its tile
    load: dict[str, Bools]  # per operand whether it is loaded before the call
    accumulate: Bools  # whether the call adds to the output tile
    send: Bools  # whether the output tile is sent back after the call


def nest(
    loops: dict[str, int],
    tensors: dict[str, Tiled],
    index: dict[str, str],
    serial: str = "",
    always: Names = (),
    reduces: str = "",
    last_only: bool = False,
) -> Nest:
    """A nest from texts. In index = {"inputs": "n h 0 c", "outputs": "n h 0 m+o"} there is one word per
    dimension: the loops that number its tile; 0 for none.

    A dimension that is not cut is numbered by no loop, whatever its word is.
    """
    found = {
        name: tuple(
            tuple(word.split("+")) if word != "0" and n > 1 else ()
            for word, n in zip(words.split(), tensors[name].grid(), strict=True)
        )
        for name, words in index.items()
    }
    return Nest(tuple(loops.items()), found, tuple(serial.split()), always, reduces, last_only)


def calls(n: Nest, tensors: dict[str, Tiled], accelerators: int = 1) -> Calls:
    """All kernel calls of a nest. The last tensor is the output."""
    trips = tuple(count for _, count in n.loops)
    counters = dict(
        zip((name for name, _ in n.loops), np.indices(trips).reshape(len(trips), -1), strict=True)
    )
    total = prod(trips)
    # [calls] number of the turn; trips of loops in `serial` run within one turn
    turn = np.zeros(total, np.int64)
    for name, count in n.loops:
        turn = turn if name in n.serial else turn * count + counters[name]
    accelerator = turn % accelerators
    tile = {name: _number(words, counters, tensors[name].grid(), total) for name, words in n.index.items()}
    output = list(tensors)[-1]
    load = {
        name: np.ones(total, np.bool_) if name in n.always else tile_changes(numbers, accelerator)
        for name, numbers in tile.items()
        if name != output
    }
    send = np.zeros(total, np.bool_)
    send[-1:] = True
    send = send if n.last_only else tile_changes(tile[output][::-1], accelerator[::-1])[::-1]
    accumulate = counters[n.reduces] > 0 if n.reduces else np.zeros(total, np.bool_)
    return Calls(accelerator, tile, load, accumulate, send)


def _number(words: tuple[Names, ...], counters: dict[str, Ints], grid: tuple[int, ...], total: int) -> Ints:
    """[calls] the number of the tile that each call uses."""
    number = np.zeros(total, np.int64)
    for names, n in zip(words, grid, strict=True):
        number *= n
        for name in names:
            number += counters[name]
    return number


def tile_changes(tile: Ints, accelerator: Ints) -> Bools:
    """[calls] whether a call's tile differs from that of the call before it on the same accelerator.

    >>> tile_changes(np.array([0, 0, 1, 0]), np.array([0, 1, 0, 1])).tolist()
    [True, True, True, False]
    """
    order = np.argsort(accelerator, kind="stable")
    changed = np.ones(len(tile), np.bool_)
    changed[1:] = (np.diff(tile[order]) != 0) | (np.diff(accelerator[order]) != 0)
    found = np.empty_like(changed)
    found[order] = changed
    return found


def traffic(c: Calls, tensors: dict[str, Tiled]) -> dict[str, int]:
    """Elements that each tensor moves between memory and scratchpads. Accelerators that share an output tile
    send it once together.
    """
    found = {name: int((tensors[name].elems()[c.tile[name]] * c.load[name]).sum()) for name in c.load}
    output = list(tensors)[-1]
    found[output] = int(tensors[output].elems()[np.unique(c.tile[output][c.send])].sum())
    return found
