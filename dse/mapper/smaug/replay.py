"""SMAUG's schedule call by call: what every kernel call does in its scratchpads, and what is loaded and sent
between calls.

The counts equal the evaluator's where the schedule is a nest (tests/test_smaug.py). Schedules that are no
nest are priced by these counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from dse.mapper.smaug.export import Schedule, einsum_tensors_of, home, kernel
from dse.mapper.smaug.halo import Tiled
from dse.mapper.smaug.schedule import Calls, calls, traffic
from dse.mapper.smaug.smaug import WINDOWED, Tiling
from dse.mapping.nest import Mapping, Store
from dse.sim.counts.counts import Count, count
from hw.arch import Arch
from workloads.arrays import Ints
from workloads.einsum import Einsum


def replay_counts(e: Einsum, arch: Arch, schedule: Schedule) -> tuple[Count, ...]:
    """The actions of a schedule, counted in two parts.

    1. Inside the scratchpads: each different kernel call is a nest, counted once and multiplied by how often
       it occurs.
    2. Between memory and scratchpads: every load and send of the calls, in order, is added up.
    """
    t, machine, repeats = schedule.tiling, schedule.accelerator, schedule.operator_view.repeats()
    kernel_calls = calls(t.nest, t.tensors, machine.accelerators)
    total: dict[tuple[str, str, str], float] = {}
    by_accelerator: list[dict[tuple[str, str, str], float]] = [{} for _ in range(machine.accelerators)]

    def add(a: int, key: tuple[str, str, str], elems: float, busiest_elems: float) -> None:
        total[key] = total.get(key, 0) + elems * repeats
        by_accelerator[a][key] = by_accelerator[a].get(key, 0) + busiest_elems * repeats

    for call, times in _distinct_calls(e, schedule, kernel_calls):
        for row in _call_counts(e, arch, schedule, call):
            add(call[0], row.key, row.elems * times, row.busiest_elems * times)
    outer, output = arch.levels[0].name, list(t.tensors)[-1]
    tensors_of, sizes = einsum_tensors_of(e, t), {p.tensor: p.stored_elems() for p in e.tensors()}
    for a in range(machine.accelerators):
        for name, words in _accelerator_traffic(t, kernel_calls, a).items():
            for tensor in tensors_of[name]:
                elems = words * sizes[tensor] / sum(sizes[other] for other in tensors_of[name])
                add(a, (outer, tensor, "write" if name == output else "read"), elems, elems)
                add(a, (home(name, machine), tensor, "read" if name == output else "write"), elems, elems)
    return tuple(
        Count(*key, n, n if key[0] == outer else max(part.get(key, 0) for part in by_accelerator))
        for key, n in total.items()
        if n
    )


def _accelerator_traffic(t: Tiling, kernel_calls: Calls, a: int) -> dict[str, float]:
    """Elements per tensor that accelerator a loads and sends. If several accelerators add to an output tile,
    each sends a share of it in proportion to its calls.
    """
    is_mine = kernel_calls.accelerator == a
    if is_mine.all():
        return {name: float(n) for name, n in traffic(kernel_calls, t.tensors).items()}
    output = list(t.tensors)[-1]
    elems = {name: tiled.elems() for name, tiled in t.tensors.items()}
    found = {
        name: float((elems[name][kernel_calls.tile[name]] * kernel_calls.load[name])[is_mine].sum())
        for name in kernel_calls.load
    }
    shared = np.bincount(kernel_calls.tile[output], minlength=len(elems[output]))
    found[output] = float((elems[output] / np.maximum(shared, 1))[kernel_calls.tile[output][is_mine]].sum())
    return found


# accelerator, whether it accumulates, size of each rank, (offset, size) of rows and columns of the input
Call = tuple[int, bool, dict[str, int], tuple[tuple[int, int], ...]]


def _distinct_calls(e: Einsum, schedule: Schedule, kernel_calls: Calls) -> Iterator[tuple[Call, int]]:
    """Yields the different kernel calls, and how often each occurs. A call is: accelerator, whether it
    accumulates, size of every rank, and for operators with windows (offset, size) of the input's rows and
    columns.
    """
    t, ranks = schedule.tiling, schedule.operator_view.ranks
    fixed = dict.fromkeys((rank for rank, _ in schedule.operator_view.repeated_ranks), 1)
    # rank -> its size in every call
    sizes_by_rank = {
        rank: np.full(len(kernel_calls.accelerator), n) for rank, n in (e.sizes() | fixed).items()
    }
    for letter, name, dim in _size_sources(t):
        if letter in ranks:
            sizes_by_rank[ranks[letter]] = _piece(t.tensors[name], kernel_calls.tile[name], dim)[1]
    if "t" in dict(t.nest.loops):  # tiles of a flattened row of elements, which the first rank stands for
        sizes_by_rank = {rank: np.ones_like(kernel_calls.accelerator) for rank in sizes_by_rank}
        sizes_by_rank[next(iter(sizes_by_rank))] = t.tensors["inputs"].elems()[kernel_calls.tile["inputs"]]
    # for rows, then columns, of the input tile: [calls] offset of the first window, [calls] size
    windows_by_call: list[Ints] = []
    for dim, w in zip((1, 2), t.operator.windows(), strict=True) if t.operator.kind in WINDOWED else ():
        origin, input_extent = _piece(t.tensors["inputs"], kernel_calls.tile["inputs"], dim)
        windows_by_call += [
            _piece(t.tensors["outputs"], kernel_calls.tile["outputs"], dim)[0] * w.step - w.lead - origin,
            input_extent,
        ]
    table = np.stack(
        [kernel_calls.accelerator, kernel_calls.accumulate, *sizes_by_rank.values(), *windows_by_call], axis=1
    )
    rows, call_counts = np.unique(table, axis=0, return_counts=True)
    for row, times in zip(rows.tolist(), call_counts.tolist(), strict=True):
        window_numbers = row[2 + len(sizes_by_rank) :]
        sizes = dict(zip(sizes_by_rank, row[2 : 2 + len(sizes_by_rank)], strict=True))
        yield (
            (row[0], bool(row[1]), sizes, tuple(zip(window_numbers[::2], window_numbers[1::2], strict=True))),
            times,
        )


def _piece(tiled: Tiled, number: Ints, dim: int) -> tuple[Ints, Ints]:
    """Origin and extent, in one dimension, of the tiles with these numbers."""
    pieces = np.array(tiled.cuts[dim])[np.unravel_index(number, tiled.grid())[dim]]
    return pieces[:, 0], pieces[:, 1]


def _size_sources(t: Tiling) -> Iterator[tuple[str, str, int]]:
    """Yields, for each dimension of a kernel call, where its size is read: (letter of the dimension, tensor
    whose tile has that size, index of the dimension in this tensor).
    """
    tensors = t.tensors
    yield "N", "outputs", 0
    if len(tensors["outputs"].shape) == 4:
        yield "H", "outputs", 1
        yield "W", "outputs", 2
    if "weights" in tensors:
        yield "M", *(("outputs", -1) if dict(t.nest.loops).get("o", 1) > 1 else ("weights", 0))
    yield "C", "weights" if "weights" in tensors and tensors["weights"].grid()[-1] > 1 else "inputs", -1


def _call_counts(e: Einsum, arch: Arch, schedule: Schedule, call: Call) -> tuple[Count, ...]:
    """The actions inside one kernel call, as a nest over its tiles.

    A call that adds to earlier sums reads all of them, also the first time (no first read is skipped). For
    windows, all elements outside of the input tile are padding.
    """
    _, accumulates, sizes, windows = call
    ranks = schedule.operator_view.ranks
    if accumulates:
        arch = replace(arch, levels=tuple(replace(level, skip_first_read=False) for level in arch.levels))
    x = e.inputs[0]
    for letters, (offset, size) in zip(("HR", "WS"), windows, strict=False):
        window_ranks = {ranks[letter] for letter in letters if letter in ranks}
        x = replace(
            x,
            dims=tuple(
                replace(d, offset=offset, size=size) if window_ranks & set(d.ranks()) else d for d in x.dims
            ),
        )
    part = replace(e, inputs=(x, *e.inputs[1:]), extents=tuple(sizes.items()))
    stores = [
        Store(home(name, schedule.accelerator), tensor)
        for name, tensors in einsum_tensors_of(e, schedule.tiling).items()
        for tensor in tensors
    ]
    return count(Mapping((*stores, *kernel(part, arch, schedule, sizes))), part, arch)
