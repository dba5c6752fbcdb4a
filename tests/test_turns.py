"""Mappings that machines share: floors that hold on machines that were not solved, and rows equal to those of
each machine alone.
"""

from __future__ import annotations

import re
from dataclasses import replace
from math import inf
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from scipy.optimize import linprog

import dse
from cluster import batch_eval, driver, worker
from cluster.worker import Ask, Job, Lease
from dse.frontend import cli
from dse.mapper.exact.optimal import optimal, optimal_on
from dse.mapper.exact.search import search_below
from dse.mapping.constraints import FREE, minimal_mapping
from dse.mapping.nest import Infeasible
from dse.run import doing
from dse.sim.einsum.evaluate import EinsumCost, Problem, einsum_cost
from dse.solve import solve
from dse.solve.front import fronts_on
from dse.solve.options import SolverOptions
from dse.solve.product_lines import ProductLines
from dse.solve.sharing import shared_mappings, shared_products
from dse.solve.sharing.anchors import best_sum, raise_bounds, with_anchor
from dse.solve.sharing.shared_mappings import MachineBatch, Searches, SharedObjective, find_shared_mappings
from dse.solve.sharing.shared_products import find_shared_products
from dse.study import study as studies
from dse.study.read import StudyError
from hw import machine, space
from hw.arch import Arch
from hw.columns import Table
from hw.space import decode
from tests import turned
from tests.amount import FULL, some
from tests.prove.mappers import problem_of
from tests.test_driver import events, rows
from workloads.einsum import Einsum, einsum
from workloads.graph import Unique

AXES = {
    "dram.kind": ["ddr3", "lpddr4", "lpddr5", "gddr6"],
    "dram.channels": [1, 2, 4],
    "node_nm": [22, 32, 45],
    "cell": ["lop", "hp"],
    "clock_mhz": [100, 150, 250, 400, 800],
}
STUDY = """
name: shared
workloads: [{workloads}]
machine: edge_array
space:
  gbuf.capacity: [2 B, 4 KiB, 64 KiB]
  dram.kind: [ddr3, lpddr5, gddr6]
  dram.channels: [1, 4]
  node_nm: [22, 45]
  clock_mhz: [100, 200, 300, 400, 800]
constraints: ["latency_ns <= 6e3"]
objectives: [energy_pj, latency_ns, area_mm2]
search: {{method: {method}, seed: 3, generation: 24{prune}}}
solver: {{sharing_gap: 0.03}}
"""
TWO = "{workload: 'gemm:m=64,n=48,k=80', name: one, weight: 2}, 'gemm:m=16,n=96,k=40'"


CHAIN = """
name: chain
einsums: ["A1[m,a] += A0[m,i] * W1[a,i]", "A2[m,b] += A1[m,a] * W2[b,a]", "A3[m,c] += A2[m,b] * W3[c,b]",
  "A4[m,d] += A3[m,c] * W4[d,c]"]
extents: {m: 6, i: 24, a: 40, b: 36, c: 48, d: 28}
"""


def cell(capacity: str = "64 KiB", objective: SharedObjective = "energy") -> MachineBatch:
    own = space.parse(machine.load("edge_array"), {**AXES, "gbuf.capacity": [capacity]})
    built, columns = Table(own).columns(np.arange(own.size))
    assert built.all()

    def arch(i: int) -> Arch:
        found = decode(own, i)
        assert isinstance(found, Arch)
        return found

    return shared_mappings.machine_batch(arch(0), columns, arch, objective)


def asked(c: MachineBatch, e: Einsum, share: float) -> shared_mappings.SharedMappings:
    searches = solve._searches(e, c.first, SolverOptions(gap=0.0, objective=c.objective))
    return find_shared_mappings(c, [e], np.ones((1, 1)), [searches], share)[0]


EINSUMS = (
    einsum("O[m,n] += A[m,k] * B[k,n]", {"m": 24, "n": 18, "k": 20}, "product"),
    einsum(
        "O[k,p,q] += I[c,p+r,q+s] * W[k,c,r,s]", {"k": 6, "c": 5, "p": 7, "q": 7, "r": 3, "s": 3}, "window"
    ),
    einsum("O[k,p] += I[k,p+r] * W[k,r]", {"k": 24, "p": 12, "r": 3}, "depthwise"),
    einsum("O[m,n] = A[m,n] * B[n]", {"m": 30, "n": 14}, "scaled"),
)


def value(c: MachineBatch, one: EinsumCost) -> float:
    return one.energy_pj if c.objective == "energy" else one.latency_cycles


CASES = [(e, share, "energy") for e in EINSUMS for share in (1e-6, 0.01, 0.1)]


@pytest.mark.parametrize(
    ("e", "share", "objective"),
    some([*CASES, *((e, 0.01, "latency") for e in EINSUMS)], 3, 8, 12, 13),
    ids=lambda of: getattr(of, "name", str(of)),
)
def test_no_machine_is_further_above_its_optimum_than_it_says(
    e: Einsum, share: float, objective: SharedObjective
) -> None:
    """Each of 72 machines of 360 (by default 18) solved on its own too; one whose own floor is near enough is
    never further than the share.
    """
    c = cell("4 KiB", objective)
    found = asked(c, e, share)
    at = np.arange(0, len(c), 5 if FULL else 20)
    own = shared_mappings.table(c, shared_mappings.lower_bounds_of(c, [e], [1]), [found], share)
    sums = shared_mappings.sums_at(c, own, at)
    for i, pj, cyc in zip(at.tolist(), sums.energy_pj.tolist(), sums.latency_cycles.tolist(), strict=True):
        problem = Problem(c.arch(i), e, objective)
        best, mine = optimal(problem), einsum_cost(problem, found.mappings[found.choice[i]].cost.mapping)
        assert isinstance(best, list)
        assert isinstance(mine, EinsumCost)
        assert (mine.energy_pj, mine.latency_cycles) == (pj, cyc)
        gap = float(shared_mappings.from_parts(found.gaps[i : i + 1], share)[0])
        assert gap <= max(share, best[0].optimality_gap + 1.01 * shared_mappings.part_size(share))
        optimum = value(c, best[0])
        assert (
            optimum / (1 + best[0].optimality_gap) * (1 - 1e-9)
            <= value(c, mine)
            <= optimum * (1 + gap) * (1 + 1e-9)
        )


def products(
    c: MachineBatch, es: list[Einsum], share: float, searches: list[Searches]
) -> tuple[shared_mappings.Sums, list[ProductLines]]:
    """Totals of a workload of einsums, once, three times, ... each, with mappings of least energy x latency
    that machines share; and the lines that prove them.
    """
    occurrences, lines = [1 + 2 * i for i in range(len(es))], dict[int, list[ProductLines]]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared_products, "_next_ratios", kept_lines(lines))
        found = find_shared_products(c, es, np.array(occurrences, float), searches, share)
    own = shared_mappings.table(c, shared_mappings.lower_bounds_of(c, es, occurrences), found, share)
    return shared_mappings.sums_at(c, own, np.arange(len(c))), lines.get(0, [])


def kept_lines(lines: dict[int, list[ProductLines]]) -> Any:
    """`_next_ratios`, which also keeps the lines."""
    next_ratios = shared_products._next_ratios

    def kept(shared: Any, found: Any, allowed: float) -> Any:
        lines[0] = found.lines
        return next_ratios(shared, found, allowed)

    return kept


@pytest.mark.parametrize(("capacity", "share"), [("4 KiB", 0.02), ("64 KiB", 0.1)])
def test_products_of_a_workload_are_no_further_above_the_least_than_they_say(
    capacity: str, share: float
) -> None:
    """The least of a machine is that of its front, within the front's gap; no line is above the front."""
    c, es = cell(capacity, "edp"), [EINSUMS[0], EINSUMS[3]]
    options = SolverOptions(gap=0.0, objective="edp")
    sums, lines = products(c, es, share, [solve._searches(e, c.first, options) for e in es])
    groups = [Unique(str(i), e, (e.name,), 1 + 2 * i) for i, e in enumerate(es)]
    options, at = SolverOptions(gap=0.0, objective="front"), range(0, len(c), 12)
    for i, front in zip(at, fronts_on([c.arch(i) for i in at], groups, options), strict=True):
        assert not isinstance(front, Infeasible)
        choices, front_gap = front
        pairs = np.array([[(one.energy_pj, one.latency_cycles) for one in choice] for choice in choices])
        energy, cycles = np.einsum("e,feo->of", [1, 3], pairs)
        for line in lines[i].lines:
            assert line.least <= min(map(line.height, zip(energy, cycles, strict=True))) * (1 + 1e-9)
        least, found = (energy * cycles).min(), sums.energy_pj[i] * sums.latency_cycles[i]
        assert least / (1 + front_gap) ** 2 * (1 - 1e-9) <= found
        assert found <= least * (1 + sums.optimality_gap[i]) * (1 + 1e-9)
    assert sums.optimality_gap.max() <= share
    assert sums.optimality_gap.max() > share / 3  # machines share: not all are proven to the end


@pytest.mark.parametrize("gap", [0.0, 0.3])
def test_a_product_of_one_einsum_is_no_further_above_the_least_than_it_says(
    gap: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Searched within a gap, without lines that prove it, it may be any mapping that is."""
    c, e = cell("4 KiB", "edp"), EINSUMS[0]
    least = [optimal(Problem(c.arch(i), e, "edp")) for i in range(0, len(c), 24)]
    searches = solve._searches(e, c.first, SolverOptions(gap=gap, objective="edp"))

    def within(arch: Arch) -> EinsumCost | Infeasible:
        one = einsum_cost(Problem(arch, e, "edp"), minimal_mapping(e, arch))
        best = optimal(Problem(arch, e, "edp"))
        assert isinstance(one, EinsumCost)
        assert isinstance(best, list)
        value = one.energy_pj * one.latency_cycles
        return replace(one, optimality_gap=value / (best[0].energy_pj * best[0].latency_cycles) - 1)

    if gap:
        searches = searches._replace(solve_product=within)
        monkeypatch.setattr(shared_products, "MAX_ROUNDS", 0)
    sums, _ = products(c, [e], 0.01, [searches])
    for i, best in zip(range(0, len(c), 24), least, strict=True):
        assert isinstance(best, list)
        value, found = (
            best[0].energy_pj * best[0].latency_cycles,
            sums.energy_pj[i] * sums.latency_cycles[i],
        )
        assert value * (1 - 1e-9) <= found <= value * (1 + sums.optimality_gap[i]) * (1 + 1e-9)
    assert gap or (sums.optimality_gap <= 0.01).all()


SIZES = {
    "array.x": [2, 3, 8],
    "array.y": [2, 7],
    "gbuf.capacity": ["1 KiB", "4 KiB", "64 KiB"],
    "regf.capacity": ["64 B", "512 B"],
    "dram.kind": ["ddr3", "lpddr5"],
}
LARGER = (
    einsum("O[m,n] += A[m,k] * B[k,n]", {"m": 64, "n": 48, "k": 80}, "product"),
    einsum(
        "O[k,p,q] += I[c,p+r,q+s] * W[k,c,r,s]", {"k": 16, "c": 8, "p": 9, "q": 9, "r": 3, "s": 3}, "window"
    ),
)


def several_sizes(objective: SharedObjective = "energy") -> MachineBatch:
    own = space.parse(machine.load("edge_array"), SIZES)
    built, columns = Table(own).columns(np.arange(own.size))
    arches = [one for i in np.flatnonzero(built).tolist() if isinstance(one := decode(own, i), Arch)]
    return shared_mappings.machine_batch(arches[0], columns, arches.__getitem__, objective)


@pytest.mark.parametrize(
    ("e", "share", "objective"),
    [
        *((e, share, "energy") for e in LARGER for share in (1e-6, 0.05)),
        *((e, 0.05, "latency") for e in LARGER),
    ],
    ids=lambda of: getattr(of, "name", str(of)),
)
def test_machines_of_several_sizes_are_no_further_above_their_optima_than_they_say(
    e: Einsum, share: float, objective: SharedObjective
) -> None:
    """Arrays, buffers and registers vary: each of 72 machines, or where it is solved every fourth."""
    c = several_sizes(objective)
    found = asked(c, e, share)
    for i in range(0, len(c), 4):
        best = optimal(Problem(c.machine(i), e, objective))
        if isinstance(best, Infeasible):
            assert found.choice[i] == shared_mappings.NONE_FITS
            continue
        mine = einsum_cost(Problem(c.machine(i), e, objective), found.mappings[found.choice[i]].cost.mapping)
        assert isinstance(mine, EinsumCost), mine
        gap = float(shared_mappings.from_parts(found.gaps[i : i + 1], share)[0])
        assert gap <= max(share, best[0].optimality_gap + 1.01 * shared_mappings.part_size(share))
        assert value(c, mine) <= value(c, best[0]) * (1 + gap) * (1 + 1e-9)
        assert value(c, mine) >= value(c, best[0]) / (1 + best[0].optimality_gap) * (1 - 1e-9)


def test_the_machine_with_the_largest_gap_is_looked_at_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also once mappings were added, or some machines turned out to fit none."""
    c, looked_at, refused, chosen = several_sizes(), list[int](), list[bool](), shared_mappings._next_einsum
    small = [i for i in range(len(c)) if c.capacity_bits[i, -1] == c.capacity_bits[:, -1].min()]
    searches = [solve._searches(e, c.first, SolverOptions()) for e in LARGER]

    def next_einsum(shared: shared_mappings.Sharing, machine: int, enough: float) -> int | None:
        gaps = shared_mappings._largest_gaps(shared)
        assert gaps[machine] == gaps.max()
        looked_at.append(machine)
        return chosen(shared, machine, enough)

    def fits_large(arch: Arch) -> EinsumCost | Infeasible:
        refused.append((arch.levels[-1].capacity_bits or inf) <= c.capacity_bits[small[0], -1])
        return Infeasible("regf", 2, 1, "product", "bytes") if refused[-1] else searches[0].solve(arch)

    monkeypatch.setattr(shared_mappings, "_next_einsum", next_einsum)
    some_fit = [searches[0]._replace(solve=fits_large), searches[1]]
    shared_mappings.find_shared_mappings(c, LARGER, np.ones((1, 2)), some_fit, 0.05)
    assert refused[:2] == [True, True]  # the smallest machine, and the first
    assert len(looked_at) > 10


def test_what_is_least_latency_is_said_of_latency() -> None:
    """Gaps of a whole workload are those of its cycles."""
    c, e, share = cell("4 KiB", "latency"), EINSUMS[0], 0.05
    found = asked(c, e, share)
    own = shared_mappings.table(c, shared_mappings.lower_bounds_of(c, [e], [2]), [found], share)
    sums = shared_mappings.sums_at(c, own, np.arange(len(c)))
    assert sums.optimality_gap.max() <= share
    to_bound = sums.latency_cycles / sums.bound_cycles - 1
    assert sums.gap_to_bound == pytest.approx(to_bound, abs=1e-9)
    assert max(sums.energy_pj / sums.bound_pj - 1) > 2 * to_bound.max()


def test_of_equal_cycles_the_mapping_of_less_energy_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    c, e = cell("4 KiB", "latency"), EINSUMS[0]
    found = [one.cost.mapping for one in asked(cell("4 KiB"), e, 1e-6).mappings]
    monkeypatch.setattr(shared_mappings, "value_of", lambda batch, *_: np.ones(len(batch)))
    shared = shared_mappings.start(c, [e], np.ones((1, 1)))
    for mapping in found:
        shared_mappings.add_mapping(shared, 0, mapping)
    pj = [shared_mappings.energy_of(c, one.on_batch) for one in shared.mappings[0].values()]
    fits = [shared_mappings.fits_on(c, e, mapping) for mapping in found]
    assert len(found) > 1
    assert (shared.choice[0] == np.where(fits, pj, inf).argmin(axis=0)).all()


def test_machines_that_are_no_larger_than_one_that_fits_no_mapping() -> None:
    c = several_sizes()
    for k in range(0, len(c), 7):
        one, no_larger = c.machine(k), c.no_larger(c.capacity_bits[k], c.pes[k])
        for i, claimed in enumerate(no_larger.tolist()):
            levels = zip(c.machine(i).levels, one.levels, strict=True)
            assert claimed == (
                all((a.capacity_bits or inf) <= (b.capacity_bits or inf) for a, b in levels)
                and all(
                    n <= m
                    for (_, n), (_, m) in zip(c.machine(i).fanouts[0].dims, one.fanouts[0].dims, strict=True)
                )
            )


@pytest.mark.parametrize("unused", [0, 2])
def test_an_einsum_that_was_not_searched_has_no_mapping(unused: int) -> None:
    """Beside machines on which none fits, and mappings that no machine uses."""
    c, e = cell("4 KiB"), EINSUMS[0]
    shared = shared_mappings.start(c, [e], np.ones((1, 1)))
    best = optimal(Problem(c.arch(0), e, "energy"))
    assert isinstance(best, list)
    one = shared_mappings.priced(c, e, best[0].mapping)
    assert not isinstance(one, Infeasible)
    shared.mappings[0] = {str(i): one for i in range(unused + 1)}
    shared.choice[0, :3] = [unused, shared_mappings.NONE_FITS, shared_mappings.NOT_SEARCHED]
    found = shared_mappings.chosen(shared, 0, shared.choice[0], np.zeros(len(c)), 0.05)
    assert found.choice[:3].tolist() == [0, shared_mappings.NONE_FITS, shared_mappings.NOT_SEARCHED]
    assert len(found.mappings) == 1


@pytest.mark.parametrize("seed", some(range(14), 0, 1, 2, 3, 5, 8, 12, 13))
def test_nothing_costs_less_than_a_search_from_a_known_cost_says(seed: int) -> None:
    """With cutoffs above and below the optimum, gaps of 0 to 20 %, and efforts that end."""
    problem = problem_of(seed, 3_000)
    problem = replace(problem, objective="energy", arch=problem.arch.without("network"))
    if seed >= 12:
        problem = Problem(machine.arch(machine.load("edge_array")), LARGER[seed - 12], "energy")
    best = optimal(problem)
    if isinstance(best, Infeasible) or best[0].optimality_gap > 0:
        return
    for factor, gap, effort in (
        (0.9, 0.0, 10**6),
        (1.0, 0.01, 10**6),
        (1.5, 0.2, 10**6),
        (inf, 0.05, 10**6),
        *((factor, 0.0, effort) for factor in (1.02, 3.0) for effort in (1, 4, 16, 64)),
    ):
        cutoff = best[0].energy_pj * factor
        found = search_below(problem, "imperfect_spatial", FREE, cutoff, gap, effort, effort)
        assert found.lower_bound <= best[0].energy_pj * (1 + 1e-9)
        if not found.ended:
            assert found.lower_bound >= min(best[0].energy_pj * (1 - 2e-2), cutoff) / (1 + gap) * (1 - 1e-9)
        if found.mapping:
            cost = einsum_cost(problem, found.mapping)
            assert isinstance(cost, EinsumCost)
            assert cost.energy_pj >= best[0].energy_pj * (1 - 1e-9)


@pytest.mark.parametrize("share", [1e-6, 3e-4, 0.01, 0.05, 0.1, 0.37, 2.0])
def test_gaps_in_parts_are_no_smaller(share: float) -> None:
    gaps = np.array([0.0, share / 3, share * (1 - 1e-9), share, share * 1.3, 1e3, np.inf])
    said = shared_mappings.from_parts(shared_mappings.to_parts(gaps, share), share)
    assert (said >= gaps * (1 - 1e-12)).all()
    assert said[0] == 0
    assert (said[:4] <= share).all()
    assert np.isinf(said[-1])
    assert (said[:5] <= gaps[:5] + shared_mappings.part_size(share) * (1 + 1e-9)).all()


@pytest.mark.parametrize("objective", ["energy", "latency"])
@pytest.mark.parametrize("seed", range(8))
def test_what_machines_say_of_another_is_never_above_its_optimum(
    seed: int, objective: SharedObjective
) -> None:
    """Prices, rates and leakage of each level by themselves, as no table has them: what none of the machines
    of a space tells apart.
    """
    rng, e, rates_vary = Random(seed), EINSUMS[seed % len(EINSUMS)], seed > 0
    base = machine.arch(machine.load("edge_array"))
    base = replace(
        base,
        levels=tuple(
            replace(level, capacity_bits=16384) if level.name == "GBUF" and seed % 2 else level
            for level in base.levels
        ),
    )

    def other() -> Arch:
        levels = tuple(
            replace(
                level,
                read_pj=level.read_pj * rng.choice([0.0, 0.2, 1, 3]),
                write_pj=level.write_pj * rng.choice([0.5, 1, 2]),
                bandwidth=level.bandwidth * (rng.choice([0.02, 0.25, 1, 4]) if rates_vary else 1),
                leak_mw=rng.choice([0.0, 30.0, 3000.0]) if rates_vary else level.leak_mw,
            )
            for level in base.levels
        )
        lane = replace(
            base.compute,
            mac_pj=rng.choice([0.0, 0.1, 4.0]),
            alu_pj=rng.choice([0.1, 0.5]),
            ops_per_cycle=rng.choice([0.1, 1.0, 2.0]) if rates_vary else 1.0,
            leak_mw=rng.choice([0.0, 1.0, 100.0]),
            vector_leak_mw=rng.choice([0.0, 30.0]),
        )
        return replace(base, levels=levels, compute=lane, clock_ghz=rng.choice([0.5, 1.0, 2.0]))

    arches = [other() for _ in range(12)]
    c = shared_mappings.machine_batch(arches[0], columns(arches), lambda i: arches[i], objective)
    values = [
        value(c, one)
        for one in optimal_on([Problem(a, e, objective) for a in arches], "imperfect_spatial")
        if isinstance(one, EinsumCost)
    ]
    anchored = 0
    for i in range(len(arches)):
        shared = shared_mappings.start(c, [e], np.ones((1, 1)))
        compulsory, known = float(shared.bound[0, i]), shared.anchors
        for k in [k for k in range(len(arches)) if k != i] + [i]:
            if k == i:  # what all others say first
                raise_bounds(i, known, shared.prices, shared.seen, shared.bound)
                anchored += shared.bound[0, i] > compulsory * (1 + 1e-6)
                assert shared.bound[0, i] <= values[i] * (1 + 1e-9), (seed, i)
            leak_pj = shared.prices.leak_pj[k]
            known = with_anchor(known, 0, k, leak_pj, values[k], c.capacity_bits[k], c.pes[k])
        raise_bounds(i, known, shared.prices, shared.seen, shared.bound)
        assert values[i] * (1 - 1e-8) <= shared.bound[0, i] <= values[i] * (1 + 1e-9)
    assert (
        anchored or seed > 0 or objective == "latency"
    )  # of some machine the others say more than what is compulsory


@pytest.mark.parametrize("seed", range(30))
def test_the_best_weights_of_anchors_are_those_of_a_linear_program(seed: int) -> None:
    rng = np.random.default_rng(seed)
    columns, rows = int(rng.integers(1, 25)), int(rng.integers(1, 9))
    shares = rng.uniform(0, 2, (columns + 2, rows)) * (rng.uniform(size=(columns + 2, rows)) < 0.8)
    shares[:, 0] += 0.1  # bounded
    gain = rng.uniform(0, 1, columns + 2)
    found = getattr(best_sum, "py_func", best_sum)(
        columns, shares, gain, np.empty((rows + 1, columns + rows + 3)), np.empty(rows, np.int64)
    )
    known = linprog(-gain[:columns], shares[:columns].T, np.ones(rows))
    assert found == pytest.approx(-known.fun, rel=1e-9)


def columns(arches: list[Arch]):  # type: ignore[no-untyped-def]
    """Of machines that no space has."""
    own = space.parse(machine.load("edge_array"), {"clock_mhz": list(range(100, 100 + len(arches)))})
    _, found = Table(own).columns(np.arange(len(arches)))
    levels = {
        name: np.array([[getattr(level, name) for level in a.levels] for a in arches])
        for name in found.levels
    }
    lanes = {name: np.array([getattr(a.compute, name) for a in arches], float) for name in found.compute}
    width_bits = np.array([[level.width_bits for level in a.levels] for a in arches])
    whole = {
        "leak_mw": np.array([a.leak_mw() for a in arches]),
        "clock_ghz": np.array([a.clock_ghz for a in arches]),
    }
    return replace(found, levels=levels, compute=lanes, width_bits=width_bits, **whole)


def study(
    folder: Path, workloads: str = TWO, method: str = "exhaustive", prune: str = "", solver: str = ""
) -> studies.Study:
    text = STUDY.format(workloads=workloads, method=method, prune=prune)
    (folder / "study.yaml").write_text(text.replace("sharing_gap: 0.03", f"sharing_gap: 0.03{solver}"))
    return studies.load(folder / "study.yaml")


def tables(job: Job, alone: bool) -> dict[str, list[str]]:
    asks = tuple(Ask(number, 0, "exhaustive") for number in range(job.study.space.size))
    with pytest.MonkeyPatch.context() as patch:
        if alone:
            patch.setattr(worker, "_solve_sharing_mappings", lambda job, asks, _: ([], list(asks), {}, 0.0))
        found = worker.solve_lease(job, Lease(0, asks))
    return {name: sorted({repr(row) for row in table.to_pylist()}) for name, table in found.tables.items()}


@pytest.mark.parametrize("objective", ["energy", "edp"])
def test_rows_of_many_machines_are_those_of_each_alone(tmp_path: Path, objective: str) -> None:
    """What does not fit, constraints and two workloads with weights, one of several einsums, among them."""
    (tmp_path / "chain.yaml").write_text(CHAIN)
    workloads = TWO if objective == "energy" else "{file: chain.yaml, weight: 2}, 'gemm:m=16,n=96,k=40'"
    job = worker.job_of(study(tmp_path, workloads, solver=f", objective: {objective}"))
    many, alone = tables(job, alone=False), tables(job, alone=True)
    assert many == alone
    asks = [Ask(i, 0, "test") for i in range(180)]
    by_batch, left, *_ = worker._solve_sharing_mappings(job, asks, [])
    # as arrays: only those that cannot be built or fit nothing are left for one by one
    assert len(by_batch) == 1
    assert len(left) == 60
    assert {name: len(own) for name, own in many.items() if name in ("machines", "points", "chosen")} == {
        "machines": 180,
        "points": 120,
        "chosen": 240,
    }
    assert objective == "edp" or 5 < sum("'feasible': False" in row for row in many["points"]) < 115
    assert job.batch_index
    [(block, own)] = job.batch_index.of(np.arange(180))
    assert own.tolist() == block.machines.tolist()
    assert len(own) == 120
    assert len({block.batch.arch(i).structure() for i in range(120)}) == 2
    assert len({block.batch.arch(i).family() for i in range(120)}) == 1


def test_a_batch_that_fails_is_an_event_and_an_error_in_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its machines are solved one by one, with equal rows: only the event says that it took longer."""
    sound, broken, said = tmp_path / "sound", tmp_path / "broken", set[str]()
    monkeypatch.setattr(doing, "SAY_S", 0.0)
    monkeypatch.setenv("DSE_CACHE", str(tmp_path / "cache"))  # other tests may have stored these answers
    driver.run(
        study(tmp_path), sound, workers=0, progress=lambda at: said.update(one.doing for one in at.solving)
    )
    assert any(re.fullmatch(r"\d+ of \d+ within the share, gap [\d.]+ % at most", one) for one in said)

    def failing(*_: object) -> None:
        raise IndexError("no such\ncolumn")

    monkeypatch.setattr(batch_eval, "columns_of", failing)
    with pytest.raises(IndexError, match="no such"):
        driver.run(study(tmp_path), tmp_path / "raised", workers=0)
    monkeypatch.delenv("DSE_RAISE")
    out = driver.run(study(tmp_path), broken, workers=0)
    assert rows(broken) == rows(sound)
    found = events(broken, "batch")
    assert events(sound, "batch") == []
    assert out.status.notes == (found[0],)
    assert re.fullmatch(
        r"IndexError: no such column \(line \d+ of test_turns.py\): a batch of \d+ machines, \d+ to \d+, was "
        "solved one by one, which takes longer",
        found[0],
    )
    assert cli.main(["status", str(broken)]) == 0
    assert "IndexError: no such column" in capsys.readouterr().out


@pytest.mark.parametrize("objective", ["energy", "latency", "edp", "front"])
def test_where_no_mapping_fits_the_smallest_machine_the_others_have_theirs(
    tmp_path: Path, objective: str
) -> None:
    (tmp_path / "small.yaml").write_text(
        f"name: small\nworkloads: [{TWO}]\nmachine: a2s\n"
        "space: {glb.capacity: [2 B, 1 KiB], glb.bypass: [false], clock_mhz: [500, 1000]}\n"
        "objectives: [energy_pj, latency_ns]\n"
        f"solver: {{objective: {objective}, sharing_gap: 0.03}}\n"
    )
    job = worker.job_of(studies.load(tmp_path / "small.yaml"))
    found = worker.solve_lease(job, Lease(0, tuple(Ask(i, 0, "exhaustive") for i in range(4))))
    status = {row["machine"]: row["status"] for row in found.tables["machines"].to_pylist()}
    assert status == {0: "infeasible", 1: "infeasible", 2: "ok", 3: "ok"}


@pytest.mark.parametrize("share", [0.01, 0.05, 0.2])
def test_no_workload_is_further_above_its_optimum_than_allowed(tmp_path: Path, share: float) -> None:
    """Gaps of einsums are stored rounded up, and so is their sum."""
    (tmp_path / "chain.yaml").write_text(CHAIN)
    (tmp_path / "study.yaml").write_text(
        "name: s\nworkloads: [chain.yaml]\nmachine: edge_array\nobjectives: [energy_pj]\n"
        f"solver: {{sharing_gap: {share}}}\nspace: {{gbuf.capacity: [1 KiB, 2 KiB, 4 KiB, 8 KiB], "
        "regf.capacity: [16 B, 32 B, 64 B], array.x: [2, 3, 5], dram.kind: [ddr3, lpddr5]}\n"
    )
    job = worker.job_of(studies.load(tmp_path / "study.yaml"))
    assert job.batch_index
    [(answers, _)] = job.batch_index.of(np.arange(72))
    [mappings] = answers.solved_tables()
    assert isinstance(mappings, shared_mappings.Table)
    gaps = shared_mappings.sums_at(answers.batch, mappings, np.arange(len(answers.machines))).optimality_gap
    assert 0.5 * share < gaps.max() <= share


def test_what_does_not_fit_is_a_row_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(
        "name: s\nworkloads: ['gemm:m=4,n=4,k=4']\nmachine: a2\nobjectives: [energy_pj]\nsolver: "
        "{sharing_gap: 0.1}\n"
        "space: {glb.bypass: [false], glb.capacity: [1 B, 4 KiB], clock_mhz: [100, 200, 400]}\n"
    )
    job = worker.job_of(studies.load(tmp_path / "study.yaml"))
    many = tables(job, alone=False)
    assert many == tables(job, alone=True)
    assert len(many["points"]) == 3
    assert sum("'limit_level': 'GLB'" in row for row in many["machines"]) == 3


ODD = (
    "name: s\nworkloads: ['gemm:m=8,n=6,k=10']\nmachine: edge_array\nobjectives: [energy_pj]\nsolver: "
    "{sharing_gap: 0.1}\n"
)


def test_machines_of_one_batch_are_of_one_family(tmp_path: Path) -> None:
    """Whatever the axes say that are taken to change families."""
    (tmp_path / "study.yaml").write_text(
        ODD
        + "space: {clock_mhz: [100, 200], gbuf.double_buffer: [true, false], gbuf.ports: [shared, separate],"
        " overlap: [free, buffered], regf.capacity: [64 B, 96 B], word_bits: [4, 8]}\n"
    )
    job = worker.job_of(studies.load(tmp_path / "study.yaml"))
    assert job.batch_index
    assert list(job.batch_index.family_axes) == [1, 2, 3, 5]
    assert list(job.batch_index.order) == [4, 0]
    job.batch_index.family_axes, job.batch_index.order = [1], [2, 3, 4, 5, 0]
    blocks = [block for block, _ in job.batch_index.of(np.arange(job.study.space.size))]
    assert len(blocks) == 16
    assert len({block.batch.first.family() for block in blocks}) == 16
    assert all(
        block.batch.arch(i).family() == block.batch.first.family() for block in blocks for i in range(4)
    )
    assert tables(job, alone=False) == tables(job, alone=True)


def test_large_cells_come_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one order whether they are met in turn or not, and none kept but the last where they are."""
    monkeypatch.setattr(batch_eval, "MAX_MACHINES", 13)
    job = worker.job_of(study(tmp_path))
    assert tables(job, alone=False) == tables(job, alone=True)
    assert job.batch_index
    assert len(job.batch_index.memo) == 1
    assert max(len(own.machines) for (own,) in job.batch_index.memo.values()) <= 12
    other = worker.job_of(study(tmp_path, method="random"))
    assert tables(other, alone=False) == tables(other, alone=True)
    assert other.batch_index
    assert len(other.batch_index.memo) == 15


def test_what_is_kept_is_found_again_and_what_is_damaged_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setenv("DSE_CACHE", str(cache))
    small = study(tmp_path)
    first = tables(worker.job_of(small), alone=False)
    [file] = cache.glob("shared_*.npz")
    whole = file.read_bytes()
    assert len(list(cache.iterdir())) == 1
    with monkeypatch.context() as patch:
        patch.setattr(solve, "find_shared_mappings", None)
        assert tables(worker.job_of(small), alone=False) == first
    other = worker.job_of(study(tmp_path, workloads="'gemm:m=64,n=48,k=80'"))
    tables(other, alone=False)
    [other_file] = set(cache.glob("shared_*.npz")) - {file}
    for damaged in (whole[:-1], whole + b"0", other_file.read_bytes(), b""):
        file.write_bytes(damaged)
        assert tables(worker.job_of(small), alone=False) == first
        assert file.read_bytes() == whole


def test_other_machines_have_other_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal but for one price: nothing of one is taken for the other."""
    monkeypatch.setenv("DSE_CACHE", str(tmp_path / "cache"))
    for price in (0.5, 50):
        (tmp_path / "study.yaml").write_text(
            ODD + f"space: {{clock_mhz: [100, 200, 400], gbuf.read_pj: [{price}]}}\n"
        )
        job = worker.job_of(studies.load(tmp_path / "study.yaml"))
        assert tables(job, alone=False) == tables(job, alone=True)
    assert len(list((tmp_path / "cache").glob("*.npz"))) == 2


def test_equal_einsums_of_other_names(tmp_path: Path) -> None:
    """Two workloads with the same product, operands called otherwise and the other way round: rows and views
    of each are its own.
    """
    (tmp_path / "names.yaml").write_text(
        'extents: {m: 16, n: 24, k: 20}\neinsums: ["A[m,n] += C[m,k] * B[k,n]"]\n'
    )
    (tmp_path / "study.yaml").write_text(
        "name: s\nmachine: edge_array\nworkloads: ['gemm:m=16,n=24,k=20', {file: names.yaml, name: other}]\n"
        "objectives: [energy_pj]\nsolver: {sharing_gap: 0.1}\nspace: {dram.kind: [ddr3, lpddr5], "
        "clock_mhz: [100, "
        "200, 400]}\n"
    )
    one = studies.load(tmp_path / "study.yaml")
    job = worker.job_of(one)
    assert tables(job, alone=False) == tables(job, alone=True)
    driver.run(one, tmp_path / "run", workers=0)
    asked_for = (
        dse.open(tmp_path / "run")
        .sql("SELECT DISTINCT workload, tensor FROM traffic WHERE level = 'DRAM' AND action = 'write'")
        .table
    )
    assert sorted(map(str, asked_for.to_pylist())) == [
        "{'workload': 'gemm:m=16,n=24,k=20', 'tensor': 'C'}",
        "{'workload': 'other', 'tensor': 'A'}",
    ]
    whole = {
        row["workload"]: row
        for row in dse.open(tmp_path / "run")
        .sql("SELECT * FROM workload_costs WHERE machine = 3")
        .table.to_pylist()
    }
    assert len(whole) == 2
    assert len({row["energy_pj"] for row in whole.values()}) == 1


def test_an_einsum_of_two_workloads_before_one_that_does_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stands before the one that does not fit is known, wherever else it stands."""
    (tmp_path / "two.yaml").write_text(
        'extents: {m: 16, n: 24, k: 20}\neinsums: ["A[m,n] += C[m,k] * B[k,n]", "D[m,k] += A[m,n] * '
        'E[n,k]"]\n'
    )
    (tmp_path / "study.yaml").write_text(
        "name: s\nmachine: edge_array\nworkloads: [{file: two.yaml, name: two}, 'gemm:m=16,n=24,k=20']\n"
        "objectives: [energy_pj]\nsolver: {sharing_gap: 0.1}\nspace: {clock_mhz: [100, 200, 400]}\n"
    )
    job, kept = worker.job_of(studies.load(tmp_path / "study.yaml")), solve._searches
    late = job.uniques[0][1].einsum.name

    def searches(e: Einsum, *given: Any) -> Searches:
        own = kept(e, *given)
        return own._replace(solve=lambda _: Infeasible("GBUF", 2, 1, late)) if e.name == late else own

    monkeypatch.setattr(solve, "_searches", searches)
    machines = tables(job, alone=False)["machines"]
    assert len(machines) == 3
    assert all("'infeasible'" in row and f"'einsum': '{late}'" in row for row in machines)


@pytest.mark.parametrize(("key", "value"), [("array.hop_pj", "[0.0, 0.1]"), ("dram.burst", "[64 B]")])
def test_machines_that_describe_more_are_refused_wherever_they_stand(
    tmp_path: Path, key: str, value: str
) -> None:
    (tmp_path / "study.yaml").write_text(ODD + f"space: {{gbuf.capacity: [1 B, 64 KiB], {key}: {value}}}\n")
    with pytest.raises(
        StudyError, match=r"solver.sharing_gap = 0.1: edge_array describes lines, rows, banks or hops"
    ):
        studies.load(tmp_path / "study.yaml")


@pytest.mark.parametrize("seed", some(range(4), 1))
def test_random_studies(tmp_path: Path, seed: int) -> None:
    job = worker.job_of(turned.drawn(tmp_path, seed))
    asked_for = Random(seed).sample(range(job.study.space.size), min(200, job.study.space.size))
    assert turned.unlike(job, asked_for)[0] == []
    assert turned.too_near(job, asked_for[:4])[0] == []


@pytest.mark.xdist_group("ray")
@pytest.mark.parametrize("prune", some(["", ", prune: true"], 1))
def test_two_workers_and_in_process_make_the_same_run(tmp_path: Path, head: str, prune: str) -> None:
    small = study(tmp_path, method="random", prune=prune)
    for workers in (0, 2):
        assert driver.run(small, tmp_path / str(workers), workers=workers, address=head).exit_code == 0
    assert rows(tmp_path / "0") == rows(tmp_path / "2")


def test_what_shares_no_mappings_is_refused_in_one_line(tmp_path: Path) -> None:
    for solver in (
        "objective: edp, schedule: fused",
        "objective: latency, schedule: fused",
        "mapper: cost_descending",
        "factors: imperfect",
        "schedule: gogeta",
    ):
        (tmp_path / "s.yaml").write_text(
            STUDY.format(workloads=TWO, method="exhaustive", prune="").replace(
                "sharing_gap: 0.03", f"sharing_gap: 0.03, {solver}"
            )
        )
        with pytest.raises(StudyError, match=r"solver.sharing_gap = 0.03: machines share mappings"):
            studies.load(tmp_path / "s.yaml")
