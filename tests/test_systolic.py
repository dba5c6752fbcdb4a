"""Systolic arrays: folds are what the first PE gets of the stationary tensor, wherever the loops stand;
SCALE-Sim's closed forms for every order of loops.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import ceil, inf, isclose
from pathlib import Path
from random import Random

import pytest

from dse.mapper.exact.optimal import optimal
from dse.mapper.exact.search import search
from dse.mapping.constraints import Factors
from dse.mapping.nest import Infeasible, Loop, Mapping, Store, faults, parse
from dse.sim.counts.counts import count
from dse.sim.counts.terms import wiring
from dse.sim.einsum.evaluate import EinsumCost, Problem, einsum_cost, lower_bound, objective_value
from hw import machine
from hw.arch import ROLES, Arch, Compute, Fanout, Level
from tests.amount import some
from tests.enumeration import enumerated, mappings, padded
from tests.problems import einsum_of
from workloads.einsum import Einsum, einsum

REPORTED = Path(__file__).parent / "data" / "reported"
# rows, columns, time; what stays still
RANKS = {"os": ("m", "n", "k", "C"), "ws": ("k", "n", "m", "B"), "is": ("k", "m", "n", "A")}
PLACES = (
    "rows, columns outside",
    "columns, rows outside",
    "rows outside",
    "columns outside",
    "rows, columns inside",
    "columns, rows inside",
)
SHAPES = ((8, 8, 64, 32, 16), (4, 16, 10, 33, 7), (3, 5, 7, 11, 13), (16, 2, 5, 40, 9))  # R, C, M, N, K
GEMM = "C[m,n] += A[m,k] * B[k,n]"


def array(ramp: str, rows: int, columns: int, double: bool = False, registers: int | None = 1) -> Arch:
    """Unlimited bandwidth; a register per PE for what stays still, which holds so many elements."""
    holds = {"os": "output", "ws": "weight", "is": "input"}[ramp]
    inner = (
        [Level("REG", 8 * registers * (1 + double), 8, 0.0, 0.0, double_buffer=double, may_keep=(holds,))]
        if registers
        else []
    )
    fanout = Fanout("A", 1, (("Y", rows), ("X", columns)), (True, True), (True, True), ramp)  # type: ignore[arg-type]
    return Arch(
        "systolic",
        (Level("DRAM", None, 8, 1.0, 1.0, bypass=False), *inner),
        (fanout,),
        Compute(1.0, 1.0),
        1.0,
        8,
        overlap="free",
    )


def nest(ramp: str, place: str, e: Einsum, rows: int, columns: int) -> Mapping:
    """Folds over rows and columns outside of the lanes, inside of them, or one of both; the register stands
    below all of them, time below it.
    """
    down, across, time, still = RANKS[ramp]
    sizes, size = e.sizes(), {down: rows, across: columns}
    first, second = (across, down) if place.startswith("columns, rows") else (down, across)
    outside = {
        rank
        for rank, name in ((down, "rows"), (across, "columns"))
        if name in place.partition(" outside")[0] and "outside" in place
    }
    whole = [Loop(rank, min(size[rank], sizes[rank])) for rank in (first, second) if rank in outside]
    share = {rank: 1 if rank in outside else ceil(sizes[rank] / size[rank]) for rank in (down, across)}
    lanes = [Loop(down, share[down], "Y"), Loop(across, share[across], "X")]
    rest = [Loop(rank, 1) for rank in (first, second) if rank not in outside]
    return Mapping(
        (
            *(Store("DRAM", p.tensor) for p in e.tensors()),
            *whole,
            *lanes,
            *rest,
            Store("REG", still),
            Loop(time, 1),
        )
    )


@pytest.mark.parametrize(("ramp", "place", "shape"), list(product(RANKS, PLACES, SHAPES)))
def test_closed_forms_hold_for_every_order_of_loops(ramp: str, place: str, shape: tuple[int, ...]) -> None:
    """folds * (R + C + T - 2) - 1 output-stationary, folds * (2 R + C + T - 2) - 1 otherwise; folds =
    ceil(rows / R) * ceil(columns / C).
    """
    rows, columns, m, n, k = shape
    e, arch = einsum(GEMM, {"m": m, "n": n, "k": k}, "C"), array(ramp, rows, columns)
    mapping, sizes = nest(ramp, place, e, rows, columns), e.sizes()
    assert faults(mapping, e, arch) == []
    found = einsum_cost(Problem(arch, e, "latency"), mapping)
    down, across, time, _ = RANKS[ramp]
    folds = ceil(sizes[down] / rows) * ceil(sizes[across] / columns)
    fill = (rows if ramp == "os" else 2 * rows) + columns - 2
    assert isinstance(found, EinsumCost)
    assert found.latency_cycles == folds * (fill + sizes[time]) - 1
    # the next fold is there when this one ends
    twice = einsum_cost(Problem(array(ramp, rows, columns, double=True), e, "latency"), mapping)
    assert isinstance(twice, EinsumCost)
    assert twice.latency_cycles == folds * sizes[time] + fill - 1


@pytest.mark.parametrize("name", ["ramp_outer", "ramp_inner"])
def test_both_orders_of_the_report_take_twelve_folds(name: str) -> None:
    arch, e = (
        machine.arch(machine.load(REPORTED / "ramp_machine.yaml")),
        einsum(GEMM, {"m": 256, "n": 256, "k": 768}, "C"),
    )
    found = einsum_cost(Problem(arch, e, "latency"), parse((REPORTED / f"{name}.txt").read_text()))
    assert isinstance(found, EinsumCost)
    assert found.latency_cycles == (2 * 128 + 128 + 256 - 2) * 12 - 1 == 7655


def test_what_no_register_holds_does_not_stand_still() -> None:
    """Weights straight from outside: every step has others, and is a fold; of a register that holds two,
    each.
    """
    e, small = einsum(GEMM, {"m": 4, "n": 2, "k": 2}, "C"), array("ws", 2, 2)
    straight = Mapping(
        (*(Store("DRAM", t) for t in "ABC"), Loop("k", 1, "Y"), Loop("n", 1, "X"), Loop("m", 1))
    )
    rows = {row.action: row.elems for row in count(straight, e, small) if row.level in ("A", "MAC")}
    assert rows["fold"] == 4
    assert rows["compute"] == 16
    several = Mapping(
        (*(Store("DRAM", t) for t in "ABC"), Loop("k", 1, "Y"), Store("REG", "B"), Loop("m", 1), Loop("n", 1))
    )
    assert [
        row.elems for row in count(several, e, array("ws", 2, 2, registers=2)) if row.action == "fold"
    ] == [2]


def small(seed: int) -> tuple[Problem, Factors]:
    """A product, or a sum of windows, on a small systolic array, single- or double-buffered, maybe with a
    buffer outside and prices that pull another way.
    """
    rng = Random(seed)
    kind = rng.choice(["gemm", "gemm", "gemm", "conv1d", "pool"])
    names = {"gemm": "mnk", "conv1d": "kcpr", "pool": "kpr"}[kind]
    e = einsum_of(
        kind, {rank: rng.choice([1, 2, 3] if len(names) > 3 else [1, 2, 3, 4, 5]) for rank in names}, rng
    )
    arch = array(
        rng.choice(["os", "ws", "is"]),
        rng.choice([1, 2, 3]),
        rng.choice([2, 3]),
        rng.random() < 0.3,
        rng.choice([1, 1, 2, 4]),
    )
    holds = ROLES if rng.random() < 0.3 else arch.levels[1].may_keep
    inner = replace(
        arch.levels[1],
        may_keep=holds,
        read_pj=rng.choice([0.0, 0.1]),
        bypass=rng.random() < 0.8,
        bandwidth=rng.choice([inf, 1.0]),
    )
    arch = replace(arch, compute=replace(arch.compute, alu_per_cycle=rng.choice([None, 4.0])))
    tiles: Factors = rng.choice(["perfect", "imperfect_spatial"])
    return Problem(
        replace(arch, levels=(arch.levels[0], inner)), e, rng.choice(["latency", "latency", "edp", "energy"])
    ), tiles


def differences(seed: int) -> str:
    """What the mapper and the bound say otherwise than all mappings, priced by the evaluator one by one, and
    than the enumeration's own count of folds.
    """
    problem, tiles = small(seed)
    priced = [
        one
        for mapping in mappings(problem, tiles, "tensors")
        if isinstance(one := einsum_cost(problem, mapping), EinsumCost)
    ]
    found, listed = optimal(problem, tiles), enumerated(problem, tiles, "tensors")
    if isinstance(found, Infeasible) or not priced:
        return (
            ""
            if isinstance(found, Infeasible) and not priced and listed.mapping is None
            else f"seed {seed}: {found} of {len(priced)} mappings"
        )
    least = min(objective_value(problem.objective, one.energy_pj, one.latency_cycles) for one in priced)
    ours = objective_value(problem.objective, found[0].energy_pj, found[0].latency_cycles)
    # of clipped tensors the search knows fewer folds
    proven = found[0].optimality_gap == 0 or padded(problem.einsum)
    right = (
        proven
        and least * (1 - 1e-9) <= ours
        and ours <= least * (1 + found[0].optimality_gap) * (1 + 1e-9)
        and isclose(listed.cost[0], least, rel_tol=1e-9)
    )
    floor = max(lower_bound(problem), search(problem, tiles).lower_bound)
    return (
        ""
        if right and floor <= least * (1 + 1e-9)
        else f"seed {seed}: {ours}, {found[0].certificate}, of all {least}, {listed}\n{problem}"
    )


@pytest.mark.parametrize("seed", some([1, 3, 4, 5, 8, 14, 20, 22], 0, 3, 6))
def test_the_mapper_finds_the_optimum_of_all_mappings(seed: int) -> None:
    assert differences(seed) == ""


def test_the_key_of_a_mapping_is_the_same_in_every_process() -> None:
    """Sets print in an order that each process draws anew."""
    arch = array("ws", 2, 2, double=True)
    several = replace(arch, levels=(*arch.levels, replace(arch.levels[1], name="PE")))
    assert wiring(several).systolic[0].double_buffered == ("REG", "PE")
    assert "set" not in str(wiring(several).systolic)
