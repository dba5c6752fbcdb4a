"""The optimal mapper against full enumeration and against the optima that a peer proved."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from math import inf, isclose
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dse.mapper.baselines.cost_descending import cost_descending
from dse.mapper.baselines.exhaustive import enumerated, is_lower
from dse.mapper.exact.local_search import improve
from dse.mapper.exact.optimal import optimal
from dse.mapper.exact.search import search
from dse.mapping.constraints import (
    FREE,
    Constraints,
    Dataflow,
    Factors,
    dataflow,
    minimal_mapping,
    row_stationary,
    violations,
)
from dse.mapping.nest import Infeasible, faults, parse
from dse.mapping.searched import ALL_MAPPINGS
from dse.sim.counts.counts import count
from dse.sim.einsum.evaluate import EinsumCost, Problem, einsum_cost, lower_bound, objective_value
from dse.solve.solve import DATAFLOWS
from hw import component, machine
from hw.arch import Arch, Compute, Fanout, Level
from tests.amount import amount, full_only, some
from tests.enumeration import enumerated as enumerated_anew
from tests.prove.mappers import GROUPS, answers, buffered_of, compared, confirmed, priced_all, told
from tests.small import small_problem
from tests.told_apart import TOLD
from workloads import catalog
from workloads.einsum import einsum

OBJECTIVES = ["energy", "latency", "edp"]
FILE = json.loads((Path(__file__).parent / "data" / "optimal_mapping_cases.json").read_text())
KNOWN = [case for case in FILE["cases"] if case["id"] in ("O01", "O03", "O17", "O27")]


def ranked(problem: Problem, one: EinsumCost) -> tuple[float, float, float]:
    return (
        objective_value(problem.objective, one.energy_pj, one.latency_cycles),
        one.energy_pj,
        one.latency_cycles,
    )


def agree(problem: Problem, factors: Factors, constraints: Constraints = Constraints()) -> None:
    """Not above the mapper `exhaustive`, whose levels stand in order, by a mapping that the evaluator takes;
    proven, and not below the bound.
    """
    found, want = optimal(problem, factors, constraints), enumerated(problem, factors, constraints)
    if isinstance(found, Infeasible):
        assert isinstance(want, Infeasible)
        return
    assert faults(found[0].mapping, problem.einsum, problem.arch) == []
    assert violations(constraints, found[0].mapping) == []
    assert einsum_cost(problem, found[0].mapping) == found[0]
    a = ranked(problem, found[0])
    if not found[0].proven:  # constraints that name some dimensions of a fan-out only
        assert found[0].optimality_gap <= found[0].gap_to_bound
        assert constraints.spatial
        assert isinstance(want, Infeasible) or ranked(problem, want[0])[0] >= a[0] / (
            1 + found[0].optimality_gap
        ) * (1 - 1e-9)
        return
    if not isinstance(want, Infeasible):  # that levels in order do not fit says nothing
        assert not is_lower(b := ranked(problem, want[0]), a), (
            f"{a} is above {b}\n{found[0].mapping}\n{want[0].mapping}"
        )
    assert found[0].proven.factors in (factors, "all")
    assert found[0].optimality_gap == 0
    assert lower_bound(problem) <= a[0] * (1 + 1e-9)


@settings(max_examples=amount(60, 8), deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(OBJECTIVES), st.sampled_from(["imperfect_spatial", "perfect"]))
def test_is_not_above_the_mapper_exhaustive(seed: int, objective: str, factors: Factors) -> None:
    agree(small_problem(Random(seed), objective, 4_000, factors=factors), factors)


@settings(max_examples=amount(25, 8), deadline=None)
@given(st.integers(0, 2**32))
@example(164340549)  # loops directly inside an idle array: no rank may have its lanes
def test_keeps_constraints(seed: int) -> None:
    rng = Random(seed)
    problem = small_problem(rng, rng.choice(OBJECTIVES), 4_000)
    e, arch = problem.einsum, problem.arch
    ranks = [rank for rank, _ in e.extents]
    dims = [name for f in arch.fanouts for name, _ in f.dims]
    rules = Constraints(
        tuple(
            (name, tuple(rng.sample(ranks, rng.randint(0, len(ranks)))))
            for name in dims
            if rng.random() < 0.6
        ),
        tuple(rng.sample(ranks, rng.randint(1, len(ranks)))) if rng.random() < 0.5 else None,
        rng.choice([e.output.tensor, e.inputs[0].tensor, "", ""]),
        ((arch.levels[-1].name, e.inputs[0].tensor),) if rng.random() < 0.3 else (),
    )
    agree(problem, "imperfect_spatial", rules)


def test_constraints_on_some_lanes_of_an_array_leave_the_others_free() -> None:
    """Y is to stand still inside of lanes over X0, where no rank may be: lanes over Y0 are free, and share
    what they read of B. Of equal latency 57.625 pJ were answered; where lanes of both were held to the
    constraints, so it was the best.
    """
    e = einsum("Y[a] = A[a] + B[b]", {"a": 5, "b": 1})
    levels = tuple(
        Level(name, room, width, 6.0, 7.0, inf, bypass=name == "L1", skip_first_read=name == "L1")
        for name, room, width in (("L0", None, 16), ("L1", 160, 64))
    )
    array = Fanout("array", 1, (("X0", 4), ("Y0", 4)), (True, True), (False, False))
    problem = Problem(Arch("m", levels, (array,), Compute(1.0, 0.5), 1.0, 8, overlap="free"), e, "energy")
    rules = Constraints((("X0", ()),), ("a",), "Y")
    (found,) = optimal(problem, constraints=rules)  # type: ignore[misc]
    assert "over Y0" in str(found.mapping)
    assert found.optimality_gap == 0
    assert found.proven
    agree(problem, "imperfect_spatial", rules)
    longer = replace(problem, einsum=einsum("Y[a] = A[a] + B[b]", {"a": 40, "b": 1}))
    still = Constraints((("X0", ("a",)),), (), "")  # what is best without: lanes over X0, a loop inside
    wide, kept = (optimal(longer, constraints=own)[0] for own in (replace(still, inside=None), still))  # type: ignore[index]
    assert violations(still, wide.mapping)
    assert not violations(still, kept.mapping)


@settings(max_examples=amount(25, 8), deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([name for name in DATAFLOWS if name != "free"]))
def test_dataflows(seed: int, name: Dataflow) -> None:
    """What stands still does, optimally, and costs no less than what is free."""
    problem = small_problem(Random(seed), "energy", 4_000)
    try:
        rules = dataflow(name, problem.einsum, problem.arch)
    except ValueError as fault:
        assert name == "row_stationary"
        assert "two dimensions" in str(fault)
        return
    agree(problem, "imperfect_spatial", rules)
    found, free = optimal(problem, constraints=rules), optimal(problem)
    assert isinstance(found, Infeasible) or (
        isinstance(free, list) and not is_lower(ranked(problem, found[0]), ranked(problem, free[0]))
    )
    assert (
        isinstance(found, Infeasible)
        or rules == FREE
        or not found[0].proven
        or found[0].proven == ALL_MAPPINGS
        or found[0].proven.dataflow == name
    )


@pytest.mark.parametrize(
    ("name", "still"), [("weight_stationary", "B"), ("input_stationary", "A"), ("output_stationary", "C")]
)
def test_what_stands_still(name: Dataflow, still: str) -> None:
    """On four lanes each with room for one word of a tensor, the stationary one is fetched once per lane."""
    e = einsum("C[m,n] += A[m,k] * B[k,n]", {"m": 8, "n": 8, "k": 8})
    arch = replace(
        one_array(),
        levels=(one_array().levels[0], Level("DRAM2", None, 8, 10.0, 10.0), Level("L1", 8, 8, 1.0, 1.0)),
        fanouts=(Fanout("array", 2, (("X", 4),), (True,), (True,)),),
    )
    rules = dataflow(name, e, arch)
    found = optimal(Problem(arch, e, "energy"), constraints=rules)
    assert rules.stationary == still
    assert isinstance(found, list)
    assert violations(rules, found[0].mapping) == []
    assert found[0].proven
    assert found[0].proven.dataflow == name


def one_array(flag: bool = True) -> Arch:
    levels = (Level("DRAM", None, 8, 100.0, 100.0, bypass=False), Level("L1", 64, 8, 1.0, 1.0))
    return Arch(
        "four lanes",
        levels,
        (Fanout("array", 1, (("X", 4),), (flag,), (flag,)),),
        Compute(1.0, 1.0),
        1.0,
        8,
        overlap="free",
    )


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_constraints_hold_whatever_the_objective(objective: str) -> None:
    """5 items over 3 lanes loop in time inside the array, which cost infinite energy but no cycles: the
    fastest mapping did what was forbidden.
    """
    agree(
        Problem(one_array(), einsum("C[m] += A[m,k] * B[k]", {"m": 5, "k": 2}), objective),
        "imperfect_spatial",
        Constraints(inside=("k",)),
    )


@pytest.mark.parametrize("flag", [True, False])
def test_a_local_search_gives_lanes_no_rank_through_which_they_share_outputs(flag: bool) -> None:
    """Where a node comes or goes, loops may fall to lanes."""
    e, arch = einsum("C[p+r] += A[p] * B[r]", {"p": 4, "r": 2}), one_array(flag)
    assert (
        faults(improve(Problem(arch, e, "latency"), minimal_mapping(e, arch), "imperfect_spatial"), e, arch)
        == []
    )


@pytest.mark.parametrize("case", KNOWN, ids=lambda case: case["id"])
def test_is_not_above_the_proven_optimum(case: dict) -> None:
    arch = component.build(machine.load(case["arch"].lower()))
    objective = {"ENERGY": "energy", "LATENCY": "latency", "ENERGY_DELAY_PRODUCT": "edp"}[case["objective"]]
    problem = Problem(arch, einsum(case["workload"]["einsum"], case["workload"]["bounds"]), objective)
    found = optimal(problem, "perfect")
    assert isinstance(found, list)
    value = ranked(problem, found[0])[0]
    if case["id"] == "O17":  # beaten: k over 8 x 6 lanes
        assert isclose(value, 1_708_288)
    else:
        assert isclose(value, case["optimum"][objective][0], rel_tol=1e-5)


def test_a_spent_budget_is_no_certificate() -> None:
    arch = component.build(machine.load("a3"))
    problem = Problem(arch, catalog.load("conv:k=16,c=16,p=14,q=14,r=3,s=3").einsums[0], "energy")
    found, other = optimal(problem, budget=3), cost_descending(problem, Random(0))
    assert isinstance(found, list)
    assert isinstance(other, list)
    assert found[0].proven is None
    assert 0 < found[0].optimality_gap <= found[0].gap_to_bound
    assert found[0].energy_pj <= other[0].energy_pj


def test_infeasible_names_the_level() -> None:
    problem = small_problem(Random(7), "energy", 4_000)
    tight = replace(
        problem.arch,
        levels=(
            problem.arch.levels[0],
            *(replace(level, capacity_bits=8, bypass=False) for level in problem.arch.levels[1:]),
        ),
    )
    found = optimal(replace(problem, arch=tight))
    assert isinstance(found, Infeasible)
    assert found.level == problem.arch.levels[1].name
    assert found.have_bytes == 1


def test_a_budget_that_ends_before_a_mapping_keeps_to_the_constraints_is_said() -> None:
    e, arch = (
        catalog.load("conv:k=2,c=2,p=4,q=4,r=3,s=3").einsums[0],
        machine.arch(machine.load("edge_array")),
    )
    problem, rules = Problem(arch, e, "energy"), row_stationary(e, arch.fanouts[0])
    for own in (rules, Constraints(min_pes=2)):
        assert str(optimal(problem, constraints=own, budget=0)) == "conv: the search needs 1 nodes, has 0"
    assert isinstance(optimal(problem, budget=0), list)
    (one,) = optimal(problem, constraints=rules)
    assert one.space
    assert one.space.dataflow == "constraints"
    assert violations(rules, one.mapping) == []


@full_only
def test_a_search_that_ends_its_budget_answers_as_well_as_a_climb() -> None:
    """The label or the heuristic alone had 11.5 M cycles; what reaches the bound is proven after all."""
    arch, e = machine.arch(machine.load("nvdla")), catalog.load("gemm:m=256,n=1024,k=1024").einsums[0]
    (one,) = optimal(Problem(arch, e, "latency"), "perfect", budget=300)
    assert one.latency_cycles <= 2_097_152
    assert faults(one.mapping, e, arch) == []
    assert (
        (one.optimality_gap == 0)
        == bool(one.proven)
        == (one.latency_cycles <= lower_bound(Problem(arch, e, "latency")))
    )


@pytest.mark.parametrize("factors", ["perfect", "imperfect_spatial"])
def test_bounds_of_room_and_lanes_leave_no_optimum_out(factors: Factors) -> None:
    """What serves compute directly has no room to pay for: 63,256 pJ was certified."""
    outer, inner = (
        Level(name, bits, 8, pj, pj, bypass=bits is not None)
        for name, bits, pj in (("DRAM", None, 200.0), ("REGF", 24, 1.0))
    )
    arch = Arch(
        "four lanes",
        (outer, inner),
        (Fanout("array", 1, (("X", 4),), (True,), (True,)),),
        Compute(1.0, 1.0),
        1.0,
        8,
    )
    problem = Problem(arch, einsum("C[m,n] += A[m,k] * B[k,n]", {"m": 11, "n": 4, "k": 6}), "energy")
    (one,) = optimal(problem, factors)
    assert (
        one.energy_pj
        == enumerated_anew(problem, factors).cost[0]
        == {"perfect": 58548.0, "imperfect_spatial": 50788.0}[factors]
    )


@pytest.mark.parametrize("seed", range(amount(24, 8)))
def test_equals_an_enumeration_that_shares_the_evaluator_only(seed: int) -> None:
    assert [line for row in told(seed, 6_000) for line in row.wrong] == []


@pytest.mark.parametrize("seed", range(1007, 1063, 8))
def test_equals_the_enumeration_where_operands_have_zeros(seed: int) -> None:
    assert GROUPS[seed % len(GROUPS)] == "sparse"
    assert [line for row in told(seed, 2_000) for line in row.wrong] == []


def test_zeros_that_are_written_are_searched_for() -> None:
    """tests/data/reported/sparse_result.yaml: 12 elements, of whose products 0.72 are expected to be
    nonzero."""
    e = einsum("T[m,n] += A[m,k] * B[k,n]", {"m": 4, "n": 3, "k": 6}, density={"A": 0.01})
    (found,) = optimal(Problem(machine.arch(machine.load("a2")), e, "energy"))  # type: ignore[misc]
    rows = {
        (row.level, row.action): row.elems
        for row in count(found.mapping, e, machine.arch(machine.load("a2")))
        if row.tensor == "T"
    }
    assert found.proven
    assert rows["DRAM", "write"] == pytest.approx(12)
    assert ("DRAM", "read") not in rows


@pytest.mark.parametrize("seed", some(range(12, 28), 0, 5, 8, 15))
def test_no_mapping_on_single_and_double_buffers_is_below_what_was_proven(seed: int) -> None:
    """Cycles of the search are at most the evaluator's, by which every mapping of the space is priced."""
    assert [line for row in answers(seed, "buffered", buffered_of(seed)) for line in row.wrong] == []


def test_where_exchanges_of_single_buffers_do_not_overlap_they_are_searched_in_turn() -> None:
    """Outputs leave the lanes for DRAM when a round ends, inputs come from the buffer within it: taken at
    their busiest port together, 17,397 was best.
    """
    arch = component.build(machine.load("edge_array"))
    e = next(e for e in catalog.load("mobilenet_v2").einsums if e.name == "conv6_1_dw")
    (one,) = optimal(Problem(arch, e, "latency"))
    assert one.latency_cycles == 14062.5
    assert one.optimality_gap < 0.1


def test_smaller_tiles_outside_wait_less_for_their_first_ones() -> None:
    """A loop below a single-buffered node was left out with all its tiles where the first tiles of double
    buffers outside were dear: 2,927 was certified.
    """

    def level(v: int, bits: int | None, double: bool, bandwidth: float) -> Level:
        return Level(
            f"L{v}",
            bits,
            64 if v < 3 else 8,
            *((200, 200), (6, 7), (2, 0.5), (0.5, 2))[v],
            bandwidth,
            bypass=False,
            double_buffer=double,
        )

    levels = (
        level(0, None, False, 2),
        level(1, 512, True, 1),
        level(2, 1024, False, 0.5),
        level(3, 64, True, 2),
    )
    e = einsum("C[k,p] max= A[k,p+2*r]", {"k": 1, "p": 2, "r": 1}, sizes={"A": (99, 2)}, bits={"C": 24})
    problem = Problem(Arch("two doubled", levels, (), Compute(1.0, 0.5, 2.0, leak_mw=3.0), 1.0, 8), e, "edp")
    (one,) = optimal(problem, "perfect")
    assert one.energy_pj * one.latency_cycles == priced_all(problem, "perfect").cost[0] == 2814.0


@pytest.mark.parametrize("reduce", [True, False])
@pytest.mark.parametrize("merge_pj", [0.5, 50.0])
def test_sums_that_lanes_hold_are_merged_at_a_price(merge_pj: float, reduce: bool) -> None:
    """Of 4 lanes along k that drain 6 sums each, 3 are added to another one's; of a csr result, of stored
    elements alone.
    """
    levels = (
        Level("DRAM", None, 8, 20.0, 20.0, bypass=False),
        Level("REGF", 8 * 40, 8, 1.0, 1.0, bypass=False),
    )
    arch = Arch(
        "merged",
        levels,
        (Fanout("array", 1, (("X", 4),), (True,), (reduce,)),),
        Compute(1.0, 1.0, merge_pj=merge_pj),
        1.0,
        8,
        overlap="free",
    )
    e = einsum("C[m,n] += A[m,k] * B[k,n]", {"m": 2, "n": 3, "k": 4})
    split = parse(
        "store DRAM A B C\nparfor k tile 1 over X\n  store REGF A B C\n  for m tile 1\n    for n "
        "tile 1\n      mac"
    )
    cost = einsum_cost(Problem(arch, e, "energy"), split)
    assert isinstance(cost, EinsumCost)
    parts = {(part.tensor, part.action): part for part in cost.price.parts if part.level == "MAC"}
    assert parts["C", "merge"].actions == 6 * 3
    assert parts["C", "merge"].energy_pj == 18 * merge_pj
    for objective in ("energy", "latency", "edp"):
        problem = Problem(arch, e, objective)
        (one,) = optimal(problem)
        assert [
            *compared(problem, enumerated_anew(problem, "imperfect_spatial", "tensors"), [one], "merged")
        ] == []
        assert one.proven
    csr = einsum("C[m,n] += A[m,k] * B[k,n]", e.sizes(), density={"A": 0.5, "C": 0.25}, format={"C": "csr"})
    for result, ruled in product((e, csr), (FREE, Constraints((("X", ("k",)),), min_pes=4))):
        found = search(Problem(arch, result, "energy"), "perfect", ruled)
        assert found.mapping
        again = einsum_cost(Problem(arch, result, "energy"), found.mapping)
        assert isinstance(again, EinsumCost)
        assert isclose(found.lower_bound, again.energy_pj)


@pytest.mark.parametrize(
    ("overlap", "registers"), some([("free", False), ("free", True), ("buffered", True)], 0)
)
def test_tiles_that_do_not_divide_a_prime(overlap: Any, registers: bool) -> None:
    """13 x 13 x 13 and room for 60 words: tiles of 1 or 13 waste it, with or without what the search of
    ragged tiles does not take (registers of outputs).
    """
    levels = (
        Level("DRAM", None, 8, 20.0, 20.0, 8.0, bypass=False),
        Level("GLB", 8 * 60, 8, 1.0, 1.0, 8.0),
        Level("REGF", 8 * 3, 8, 0.1, 0.1, 8.0),
    )
    fanout = Fanout("array", 2, (("X", 4),), (True,), (True,))
    arch = Arch("prime", levels[: 2 + registers], (fanout,), Compute(1.0, 1.0), 1.0, 8, overlap=overlap)
    problem = Problem(arch, einsum("C[m,n] += A[m,k] * B[k,n]", {"m": 13, "n": 13, "k": 13}), "energy")
    (even,), (ragged,) = optimal(problem, "imperfect_spatial"), optimal(problem, "imperfect")
    assert even.proven
    assert ragged.energy_pj < 0.9 * even.energy_pj
    assert bool(ragged.proven) == (overlap == "free" and not registers)
    assert faults(ragged.mapping, problem.einsum, arch) == []
    assert einsum_cost(problem, ragged.mapping) is not None


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=amount(15, 8))
def test_ragged_tiles_are_never_worse_than_ragged_lanes(seed: int) -> None:
    problem = buffered_of(seed)
    even, ragged = optimal(problem, "imperfect_spatial"), optimal(problem, "imperfect")
    assert isinstance(even, list) == isinstance(ragged, list)
    if isinstance(even, list) and isinstance(ragged, list):
        values = [
            objective_value(problem.objective, one.energy_pj, one.latency_cycles)
            for one in (even[0], ragged[0])
        ]
        again = einsum_cost(problem, ragged[0].mapping)
        assert values[1] <= values[0] * (1 + 1e-9)
        assert isinstance(again, EinsumCost)
        assert again.energy_pj == ragged[0].energy_pj
        assert values[1] <= lower_bound(problem) * (1 + ragged[0].optimality_gap) * (1 + 1e-9)


@pytest.mark.parametrize("name", TOLD)
def test_problems_that_tell_rules_of_the_search_apart(name: str) -> None:
    tiles, problem = TOLD[name]
    best, found = enumerated_anew(problem, tiles, "tensors"), optimal(problem, tiles)
    assert isinstance(found, list)
    assert found[0].proven
    assert [*confirmed(problem, best), *compared(problem, best, found, name)] == []


def test_levels_of_different_tensors_stand_in_any_order() -> None:
    """The weights stand still outside of where inputs move: 1.1096e8 pJ where all nodes of a level stand
    above those inside.
    """
    problem = Problem(
        replace(machine.arch(machine.load("smv")), overlap="free"),
        catalog.load("gemm:m=64,n=64,k=4096").einsums[0],
        "energy",
    )
    (one,) = optimal(problem)
    assert one.proven
    assert one.energy_pj <= 9.355e7
    assert one.latency_cycles <= 82_560


def test_a_machine_on_which_nothing_costs() -> None:
    """No price and no bandwidth: nothing but operations is counted, and only their cycles."""
    levels = tuple(Level(name, bits, 8, 0.0, 0.0) for name, bits in (("DRAM", None), ("REGF", 24)))
    arch = Arch(
        "free", levels, (Fanout("array", 1, (("X", 4),), (True,), (True,)),), Compute(0.0, 0.0), 1.0, 8
    )
    (one,) = optimal(Problem(arch, einsum("C[m,n] += A[m,k] * B[k,n]", {"m": 4, "n": 4, "k": 6}), "latency"))
    assert (one.energy_pj, one.latency_cycles) == (0.0, 24.0)


def test_what_stands_still_above_loops_inside_an_idle_array_fits() -> None:
    """7 words of A stand still in 8: the answer had no loop in space between A and p, so A sank into its
    window, 5 words, held twice.
    """
    levels = (
        Level("DRAM", None, 8, 100.0, 100.0, bypass=False),
        Level("GLB", 64, 8, 0.0, 0.0, double_buffer=True),
        Level("REG", 8, 8, 0.0, 0.0),
    )
    arch = Arch(
        "idle",
        levels,
        (Fanout("array", 2, (("X", 2),), (True,), (True,)),),
        Compute(1.0, 1.0),
        1.0,
        8,
        overlap="free",
    )
    systolic = replace(
        arch.fanouts[0], dims=(("X", 2), ("Y", 2)), multicast=(True, True), reduce=(True, True), systolic="ws"
    )
    for fanout in (arch.fanouts[0], systolic):
        problem = Problem(
            replace(arch, fanouts=(fanout,)), einsum("C[p] max= A[p+2*r]", {"p": 3, "r": 3}), "energy"
        )
        (one,) = optimal(problem, "perfect")
        assert isinstance(einsum_cost(problem, one.mapping), EinsumCost)
        assert one.optimality_gap == 0
