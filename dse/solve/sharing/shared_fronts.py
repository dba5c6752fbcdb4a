"""Fronts of unfused workloads on machines of one family that share mappings (docs/reuse.md, Many machines).

Of a choice of one mapping per einsum, energy E and latency C are sums over its einsums. No choice of a
machine is below a line E + k C >= b of the least energy with k pJ more per cycle, nor below its least
latency. Lines are found as in shared_products.py; mappings found at any ratio k, on any machine, are priced
on all. Of their sums rows are listed, least energy first, so that lines rule out what no row covers:

    latency   +-----+ corner (E2, C1)     A choice that no row covers within a factor f has, for two rows
      (E1,C1) o     |                     next to each other, less than E2 / f energy and less than C1 / f
               \\    |                     latency. There is none if for some line E2 + k C1 <= f b.
                 \\  o (E2, C2)            Beyond the ends f is their energy over the least energy, and
         line     ` - . _      energy     their latency over the least latency.

Where lines cannot prove rows, as no choice is near them (of few einsums, mostly), the machine's front is
searched by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf

import numpy as np
from numpy.typing import NDArray

from dse.mapping.nest import Infeasible, Mapping
from dse.sim.einsum.evaluate import ROUNDING_GAP, EinsumCost
from dse.solve.front import Chosen, thin
from dse.solve.product_lines import Line
from dse.solve.sharing.shared_mappings import (
    MachineBatch,
    Searches,
    Sharing,
    add_first_mappings,
    add_mapping,
    cycles_on,
    energy_of,
    search_until,
    start,
)
from dse.solve.sharing.shared_products import _set_ratios, every_fits, totals
from workloads.arrays import Floats, Ints
from workloads.einsum import Einsum

MAX_ROUNDS = 12  # ratios of a machine beside energy and latency alone, at most
LINE_SHARE = 0.4  # what of the allowed gap a line may lie below the choice found, or below its neighbours'
SUM_SHARE = 0.2  # what of the allowed gap may be lost by sums that are left out


@dataclass(frozen=True, slots=True)
class SharedFronts:
    """Fronts of a workload of E einsums on n machines."""

    nests: list[list[Mapping]]  # of each einsum
    rows: list[NDArray[np.int16]]  # of each machine [schedules, E] numbers of mappings, least energy first
    gaps: Floats  # [n] every choice has a row at most so much above it in energy and in latency
    choice: NDArray[np.int16]  # [E, n] number of a mapping, NONE_FITS or NOT_SEARCHED


def find_shared_fronts(
    batch: MachineBatch,
    einsums: Sequence[Einsum],
    occurrences: Floats,
    cheapest: Sequence[Searches],
    fastest: Sequence[Searches],
    front_alone: Callable[[Sequence[int]], Sequence[Chosen | Infeasible]],
    allowed_gap: float,
) -> SharedFronts:
    """Returns the fronts of one workload on all machines, within `allowed_gap` where lines or a machine's own
    searches prove it.

    occurrences: [E] of each einsum
    cheapest, fastest: of each einsum, searches of energy and of latency
    front_alone: the fronts of some machines of the batch, searched by themselves
    allowed_gap: must be above 0
    """
    enough = allowed_gap * LINE_SHARE
    quick = start(replace(batch, objective="latency"), einsums, occurrences[None])
    shared = start(batch, einsums, occurrences[None])
    for one, searches in ((quick, fastest), (shared, cheapest)):
        add_first_mappings(one, searches)
        search_until(one, searches, enough)
    for number, mappings in enumerate(quick.mappings):
        for priced in mappings.values():
            add_mapping(shared, number, priced.cost.mapping)
    machines = np.flatnonzero(every_fits(shared) & every_fits(quick))
    lines: dict[int, list[Line]] = {i: [] for i in machines.tolist()}
    ratios = np.zeros(len(batch))
    _add_lines(quick, lines, np.full(len(batch), inf), machines)
    _add_lines(shared, lines, ratios, machines)
    for _ in range(MAX_ROUNDS):
        found = {i: ratio for i in machines.tolist() if (ratio := next_ratio(lines[i], enough))}
        if not found:
            break
        machines = np.array([*found], np.int64)
        ratios[machines] = [*found.values()]
        _set_ratios(shared, ratios, machines)
        search_until(shared, cheapest, enough)
        _add_lines(shared, lines, ratios, machines)
    return _fronts(shared, lines, front_alone, allowed_gap)


def _add_lines(shared: Sharing, lines: dict[int, list[Line]], ratios: Floats, machines: Ints) -> None:
    """Adds the lines of the ratios [n] that were searched on machines [m]."""
    energy, cycles = totals(shared)
    least = shared.occurrences[0] @ shared.bound * (1 - ROUNDING_GAP)
    for i in machines.tolist():
        corner = float(energy[i]), float(cycles[i])
        lines[i].append(Line(float(ratios[i]), float(least[i]), corner))


def next_ratio(lines: Sequence[Line], enough: float) -> float | None:
    """Returns the ratio whose line would be parallel to the chord between the corners of two neighbouring
    lines, where these cross furthest below it; None if nowhere by more than `enough`.
    """
    largest, found = enough, None
    for a, b in pairwise(sorted(lines)):
        assert a.corner
        assert b.corner
        more_pj, fewer_cycles = b.corner[0] - a.corner[0], a.corner[1] - b.corner[1]
        if fewer_cycles <= 0 or not a.ratio < (ratio := more_pj / fewer_cycles) < b.ratio:
            continue
        cycles = b.least if b.ratio == inf else (b.least - a.least) / (b.ratio - a.ratio)
        crossing = a.least + (ratio - a.ratio) * cycles
        if a.corner[0] + ratio * a.corner[1] > (1 + largest) * crossing:
            largest, found = (a.corner[0] + ratio * a.corner[1]) / crossing - 1, ratio
    return found


def _fronts(
    shared: Sharing,
    lines: dict[int, list[Line]],
    front_alone: Callable[[Sequence[int]], Sequence[Chosen | Infeasible]],
    allowed_gap: float,
) -> SharedFronts:
    """Returns the rows of all machines out of the mappings found, and of searches of single machines where
    lines do not prove them.
    """
    batch, einsums = shared.batch, len(shared.einsums)
    rows = [np.zeros((0, einsums), np.int16)] * len(batch)
    gaps = np.zeros(len(batch))
    pairs = [
        np.array(
            [
                [np.where(one.fits, of(batch, one.on_batch), inf) for of in (energy_of, cycles_on)]
                for one in mappings.values()
            ]
        ).reshape(len(mappings), 2, len(batch))
        for mappings in shared.mappings
    ]
    for i, own in lines.items():
        sums, choices = _sums([one[:, :, i] for one in pairs], shared.occurrences[0], allowed_gap)
        listed, gaps[i] = proven_rows(sums, own, allowed_gap)
        rows[i] = choices[listed]
    nests = [[one.cost.mapping for one in mappings.values()] for mappings in shared.mappings]
    numbers = [{str(one): number for number, one in enumerate(own)} for own in nests]

    def number_of(einsum: int, cost: EinsumCost) -> int:
        number = numbers[einsum].setdefault(str(cost.mapping), len(nests[einsum]))
        if number == len(nests[einsum]):
            nests[einsum].append(cost.mapping)
        return number

    unproven = [i for i in lines if gaps[i] > allowed_gap]
    for i, front in zip(unproven, front_alone(unproven) if unproven else (), strict=True):
        if not isinstance(front, Infeasible) and front[1] < gaps[i]:
            rows[i] = np.array(
                [[number_of(e, cost) for e, cost in enumerate(choice)] for choice in front[0]], np.int16
            )
            gaps[i] = front[1]
    return SharedFronts(nests, rows, gaps, shared.choice)


def _sums(
    pairs: Sequence[Floats], occurrences: Floats, allowed_gap: float
) -> tuple[Floats, NDArray[np.int16]]:
    """Returns energy and latency [N, 2] of choices of a machine, least energy first, and their mappings
    [N, E]: of each einsum one of those with energy and latency [M, 2], inf: it does not fit.
    """
    step = (1 + allowed_gap * SUM_SHARE) ** (1 / max(len(pairs) - 1, 1))
    sums, choices = np.zeros((1, 2)), np.zeros((1, 0), np.int16)
    for own, n in zip(pairs, occurrences, strict=True):
        used = thin(own, 1.0)[0].astype(np.int16)
        every = (sums[:, None, :] + n * own[None, used, :]).reshape(-1, 2)
        kept, _ = thin(every, step)
        sums, choices = every[kept], np.column_stack([choices[kept // len(used)], used[kept % len(used)]])
    return sums, choices


def proven_rows(sums: Floats, lines: Sequence[Line], allowed_gap: float) -> tuple[Ints, float]:
    """Returns the fewest rows of `sums` [N, 2], energy rising and latency falling, whose gap is allowed as
    lines prove it, both ends among them; and their gap. Where it is larger no row is left out beside.

    From a row on, the last one is taken whose corner with it is within the gap of a line.
    """
    ratios = np.array([one.ratio for one in lines if one.ratio < inf])
    least = np.array([one.least for one in lines if one.ratio < inf])
    least_cycles = max(one.least for one in lines if one.ratio == inf)
    energy, cycles = sums[:, 0], sums[:, 1]
    worst = max(energy[0] / least[ratios == 0].max(), cycles[-1] / least_cycles)
    listed, row = [0], 0
    while row < len(sums) - 1:
        # [lines] corners of this row with later ones are within the gap of a line up to this energy
        limits = (1 + allowed_gap) * least - ratios * cycles[row]
        row_before, row = row, max(row + 1, int(np.searchsorted(energy, limits.max(), "right")) - 1)
        worst = max(worst, float(((energy[row] + ratios * cycles[row_before]) / least).min()))
        listed.append(row)
    gap = worst * (1 + ROUNDING_GAP) - 1
    return np.array(listed), gap if gap > 10 * ROUNDING_GAP else 0.0
