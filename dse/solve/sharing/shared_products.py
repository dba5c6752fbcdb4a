"""Unfused mappings of least energy x latency of a workload that machines of one family share (docs/reuse.md,
Many machines).

The least product is bounded by lines that no choice of mappings is below (dse/solve/product_lines.py): for a
ratio k, the least energy E + k C if each of the C cycles costs k pJ more. So a line of a machine is sought as
mappings of least energy are (shared_mappings.py); mappings found at one ratio are priced at all others, and
what was proven at one ratio bounds others (anchors.py). Each machine has a ratio of its own at a time: first
that of the best choice known, then that of the lowest crossing of its lines.

What lines cannot prove, as no choice is near them (of one einsum alone, mostly), is searched as energy x
latency of that einsum, machine by machine.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dse.mapping.nest import Infeasible
from dse.sim.einsum.evaluate import ROUNDING_GAP
from dse.solve.product_lines import ProductLines, product_lines
from dse.solve.sharing.shared_mappings import (
    NONE_FITS,
    MachineBatch,
    Searches,
    SharedMappings,
    Sharing,
    add_first_mappings,
    add_mapping,
    choose,
    chosen,
    cycles_on,
    energy_of,
    search_until,
    start,
    stored_gap,
    value_of,
)
from workloads.arrays import Bools, Floats, Ints
from workloads.einsum import Einsum

MAX_ROUNDS = 12  # ratios of a machine, at most
LINE_SHARE = 0.4  # what of the allowed gap a line may lie below the choice found
END_STEP = 8.0  # factor between a ratio and the next one towards energy or latency alone


@dataclass(slots=True)
class _Products:
    """The least products found and proven on n machines."""

    lines: list[ProductLines]  # of each machine
    choice: NDArray[np.int16]  # [E, n] mappings of the best choice


def find_shared_products(
    batch: MachineBatch,
    einsums: Sequence[Einsum],
    occurrences: Floats,
    searches: Sequence[Searches],
    allowed_gap: float,
) -> list[SharedMappings]:
    """Returns mappings of the E einsums of one workload for all machines; the gap of each einsum is that of
    the workload's energy x latency. Of several einsums it may stay above `allowed_gap`, where no line proves
    it.

    occurrences: [E] of each einsum
    searches: of each einsum
    allowed_gap: must be above 0
    """
    shared, allowed = start(batch, einsums, occurrences[None]), stored_gap(allowed_gap)
    least = [
        occurrences @ np.array([of(batch, one) for one in shared.lower]) for of in (energy_of, cycles_on)
    ]
    _set_ratios(shared, least[0] / least[1], np.arange(len(batch)))
    add_first_mappings(shared, searches)
    search_until(shared, searches, sys.float_info.max)  # where those do not fit: a first one
    pairs = zip(*(one.tolist() for one in (*least, *totals(shared))), strict=True)
    products = _Products(
        [product_lines((pj * (1 - ROUNDING_GAP), cycles), (e, c)) for pj, cycles, e, c in pairs],
        shared.choice.copy(),
    )
    for _ in range(MAX_ROUNDS):
        machines, ratios = _next_ratios(shared, products, allowed)
        if not len(machines):
            break
        _set_ratios(shared, ratios, machines)
        search_until(shared, searches, allowed * LINE_SHARE)
        _add_lines(shared, products, machines)
    if len(einsums) == 1:
        _search_products(shared, searches[0], products, allowed)
    gaps = np.array([lines.gap() for lines in products.lines])
    fits = every_fits(shared)
    products.choice[:, ~fits] = shared.choice[:, ~fits]
    return [
        chosen(shared, i, own, np.where(fits, gaps, 0.0), allowed_gap)
        for i, own in enumerate(products.choice)
    ]


def every_fits(shared: Sharing) -> Bools:
    """Returns [n] on which machines every einsum has a mapping."""
    return np.asarray((shared.choice >= 0).all(axis=0))


def _next_ratios(shared: Sharing, products: _Products, allowed: float) -> tuple[Ints, Floats]:
    """Returns machines [m] whose gaps are above `allowed`, and the ratio [n] to search next on each."""
    ratios, fits = np.zeros(len(shared.batch)), every_fits(shared)
    machines = []
    for i, lines in enumerate(products.lines):
        if fits[i] and (ratio := lines.next_ratio(allowed, END_STEP)) is not None:
            machines.append(i)
            ratios[i] = ratio
    return np.array(machines, np.int64), ratios


def _set_ratios(shared: Sharing, ratios: Floats, machines: Ints) -> None:
    """Sets what a cycle costs beside leakage, pJ [n], on `machines` [m]. There mappings are chosen anew,
    bounds begin with those of any mapping, and the ladder of searches with its first step.
    """
    batch = shared.batch
    shared.pj_per_cycle[machines] = ratios[machines]
    shared.prices.leak_pj[machines] = (batch.leak_mw / batch.clock_ghz + shared.pj_per_cycle)[machines]
    shared.best[:, machines], shared.best_pj[:, machines] = np.inf, np.inf
    for number, lower in enumerate(shared.lower):
        bound = value_of(batch, lower, shared.pj_per_cycle)
        shared.bound[number, machines] = bound[machines] * (1 - ROUNDING_GAP)
        for index, one in enumerate(shared.mappings[number].values()):
            choose(shared, number, index, one)
    shared.seen[:, machines], shared.step[:, machines] = 0, 0
    shared.is_closed[machines] = (shared.choice[:, machines] == NONE_FITS).any(axis=0)


def totals(shared: Sharing) -> tuple[Floats, Floats]:
    """Returns energy and cycles [n] of the workload with the chosen mappings; inf where one is missing."""
    totals = np.zeros((2, len(shared.batch)))
    for choice, mappings, n in zip(shared.choice, shared.mappings, shared.occurrences[0], strict=True):
        own = np.full(totals.shape, np.inf)
        for number, one in enumerate(mappings.values()):
            its = choice == number
            own[:, its] = [of(shared.batch, one.on_batch)[its] for of in (energy_of, cycles_on)]
        totals += n * own
    return totals[0], totals[1]


def _add_lines(shared: Sharing, products: _Products, machines: Ints) -> None:
    """Adds the lines of the present ratios of machines [m], and takes choices whose product is lower."""
    energy, cycles = totals(shared)
    least = shared.occurrences[0] @ shared.bound * (1 - ROUNDING_GAP)
    for i in machines[every_fits(shared)[machines]].tolist():
        corner = float(energy[i]), float(cycles[i])
        if products.lines[i].add(float(shared.pj_per_cycle[i]), float(least[i]), corner):
            products.choice[:, i] = shared.choice[:, i]


def _search_products(shared: Sharing, searches: Searches, products: _Products, allowed: float) -> None:
    """Searches the only einsum's least energy x latency on machines whose gap is above `allowed`, largest gap
    first. Every mapping found counts on all machines.
    """
    batch, n = shared.batch, float(shared.occurrences[0, 0])
    best = np.array([lines.best for lines in products.lines])
    bound = np.array([lines.bound() for lines in products.lines])
    is_left, known = every_fits(shared), 0
    while True:
        gaps = np.where(is_left, best[:, 0] * best[:, 1] / bound - 1, 0.0)
        machine = int(np.argmax(gaps))
        if gaps[machine] <= allowed:
            return
        is_left[machine] = False
        answer = searches.solve_product(batch.machine(machine))
        if isinstance(answer, Infeasible):
            continue
        least = n * n * answer.energy_pj * answer.latency_cycles / (1 + answer.optimality_gap)
        products.lines[machine].least_product = least * (1 - ROUNDING_GAP)
        add_mapping(shared, 0, answer.mapping)
        found = list(shared.mappings[0].values())
        for number, one in enumerate(found[known:], known):
            pairs = n * np.array([energy_of(batch, one.on_batch), cycles_on(batch, one.on_batch)]).T
            is_better = one.fits & (pairs[:, 0] * pairs[:, 1] < best[:, 0] * best[:, 1])
            best[is_better], products.choice[0, is_better] = pairs[is_better], number
            for i in np.flatnonzero(is_better).tolist():
                products.lines[i].best = float(pairs[i, 0]), float(pairs[i, 1])
        known = len(found)
