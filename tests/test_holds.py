"""Levels that may hold some tensors only: placements, mapspaces and every mapper keep to it."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import product
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dse.mapper.baselines import exhaustive
from dse.mapper.baselines.annealing import annealing
from dse.mapper.baselines.random import random
from dse.mapper.exact.optimal import optimal
from dse.mapping import constraints
from dse.mapping.nest import Infeasible, Loop, Mapping, Store, faults
from dse.mapping.schedule import Retained, Schedule
from dse.sim.einsum.evaluate import Problem, einsum_cost, lower_bound, objective_value
from dse.sim.schedule.faults import faults as schedule_faults
from dse.solve.options import SolverOptions
from dse.solve.solve import MAPPERS_BY_NAME, solve
from hw import machine
from hw.arch import ROLES, Arch
from tests.amount import amount
from tests.nests import random_arch, random_einsum
from tests.small import small_problem
from workloads import catalog
from workloads.einsum import Einsum
from workloads.text import workload

# budgets of a test
LESS = {"random": partial(random, mappings=20), "annealing": partial(annealing, iterations=3, candidates=5)}
MAPPERS = {**MAPPERS_BY_NAME, **LESS}


def private(rng: Random, arch: Arch) -> Arch:
    """The machine with levels that hold some roles, the outermost all."""
    roles = [tuple(rng.sample(ROLES, rng.choice((1, 1, 2, 3)))) for _ in arch.levels[1:]]
    return replace(
        arch,
        levels=(
            arch.levels[0],
            *(replace(level, may_keep=held) for level, held in zip(arch.levels[1:], roles, strict=True)),
        ),
    )


def well_placed(e: Einsum, arch: Arch, placement: exhaustive.Placement) -> bool:
    """By the definition of a mapping: these nodes with all loops below them have no fault."""
    stores = [
        Store(level.name, tensor) for level, own in zip(arch.levels, placement, strict=True) for tensor in own
    ]
    return not faults(Mapping((*stores, *(Loop(rank, 1) for rank, n in e.extents if n > 1))), e, arch)


@pytest.mark.parametrize("seed", range(amount(60, 8)))
def test_placements_are_those_without_a_fault(seed: int) -> None:
    rng = Random(seed)
    e, arch = random_einsum(rng), random_arch(rng)
    arch = replace(
        arch,
        levels=tuple(
            replace(level, bypass=v > 0 and rng.random() < 0.7) for v, level in enumerate(arch.levels[:3])
        ),
        fanouts=(),
    )
    own, free = (
        private(rng, arch),
        replace(arch, levels=tuple(replace(level, bypass=True) for level in arch.levels)),
    )
    wanted = {p for p in exhaustive.placements(e, free) if well_placed(e, own, p)}
    names = [p.tensor for p in e.tensors()]
    assert list(exhaustive.placements(e, own))
    assert set(exhaustive.placements(e, own)) == wanted
    numbered = [
        tuple(tuple(names[x] for x in held) for held in placement)
        for placement in constraints.placements(e, own, constraints.Constraints())
    ]
    assert set(numbered) == wanted
    assert len(numbered) == len(wanted)


@pytest.mark.parametrize("seed", range(amount(40, 8)))
def test_a_dataflow_that_keeps_a_tensor_where_it_may_not_stand_has_no_placement(seed: int) -> None:
    rng = Random(seed)
    e, arch = random_einsum(rng, ["gemm"]), random_arch(rng)
    arch = replace(arch, levels=(arch.levels[0], replace(arch.levels[1], may_keep=("weight",))), fanouts=())
    kept = [
        list(
            constraints.placements(
                e, arch, constraints.Constraints(must_keep=((arch.levels[1].name, tensor),))
            )
        )
        for tensor in "AB"
    ]
    assert kept[0] == []
    assert all(placement[1] == (1,) for placement in kept[1])
    assert kept[1]


@pytest.mark.parametrize("name", sorted(MAPPERS_BY_NAME))
@settings(max_examples=amount(30, 8), deadline=None)
@given(seed=st.integers(0, 2**32), objective=st.sampled_from(["energy", "latency", "edp"]))
def test_every_mapper_keeps_to_what_levels_hold(name: str, seed: int, objective: str) -> None:
    rng = Random(seed)
    problem = small_problem(rng, objective, 4000)
    problem = replace(problem, arch=private(rng, problem.arch))
    e, arch = problem.einsum, problem.arch
    best, found = exhaustive.enumerated(problem), MAPPERS[name](problem, Random(1))
    if isinstance(best, Infeasible):
        # its levels of different tensors stand in any order
        assert isinstance(found, Infeasible) or name == "optimal"
        return
    assert isinstance(found, list)
    assert faults(found[0].mapping, e, arch) == []
    assert einsum_cost(problem, found[0].mapping) == found[0]
    low, high = (objective_value(objective, one.energy_pj, one.latency_cycles) for one in (best[0], found[0]))
    # it also cuts temporal tiles that do not divide
    low = lower_bound(problem) if name == "cost_descending" else low
    assert name == "optimal" or (low <= high * (1 + 1e-9) and (name != "exhaustive" or low == high))


@settings(max_examples=amount(40, 8), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_the_optimum_is_at_most_that_of_the_enumeration_in_order_of_levels(seed: int) -> None:
    rng = Random(seed)
    problem = small_problem(rng, "energy", 3000)
    problem = replace(problem, arch=private(rng, problem.arch))
    best, found = exhaustive.enumerated(problem), optimal(problem)
    if not isinstance(best, Infeasible):
        assert not isinstance(found, Infeasible)
        assert found[0].energy_pj <= best[0].energy_pj * (1 + found[0].optimality_gap + 1e-9)


def test_private_scratchpads_cut_the_placements_of_smv() -> None:
    arch = machine.arch(machine.load("smv"))
    e = catalog.load("conv:k=64,c=64,p=28,q=28,r=3,s=3").einsums[0]
    shared = replace(arch, levels=tuple(replace(level, may_keep=ROLES) for level in arch.levels))
    assert [
        sum(1 for _ in constraints.placements(e, where, constraints.Constraints()))
        for where in (shared, arch)
    ] == [65_536, 16]


@pytest.mark.parametrize("name", ["cost_descending", "random"])
def test_heuristics_on_private_scratchpads(name: str) -> None:
    """One block of loops for the three: no worse than twice what one shared scratchpad of the same room
    takes.
    """
    arch = machine.arch(machine.load("smv"))
    shared = replace(
        arch,
        levels=(
            arch.levels[0],
            replace(arch.levels[1], name="PAD", may_keep=ROLES, capacity_bits=3 * 2**18),
            arch.levels[4],
        ),
        fanouts=(replace(arch.fanouts[0], outside=2),),
    )
    layers = (
        "conv:k=64,c=64,p=28,q=28,r=3,s=3",
        "gemm:m=64,n=256,k=512",
        "pool:c=64,p=56,q=56,r=2,s=2,stride=2",
    )
    for source, objective in product(layers, ("energy", "latency")):
        e = catalog.load(source).einsums[0]
        private_pads, one_pad = (
            MAPPERS[name](Problem(where, e, objective), Random(1)) for where in (arch, shared)
        )
        assert isinstance(private_pads, list)
        assert isinstance(one_pad, list)
        assert faults(private_pads[0].mapping, e, arch) == []
        own, other = (
            objective_value(objective, one.energy_pj, one.latency_cycles)
            for one in (private_pads[0], one_pad[0])
        )
        assert own <= 2 * other


SIDE_BY_SIDE = """
clock_mhz: 1000
node_nm: 28
nodes:
- {memory: dram, kind: lpddr5, width_bits: 64}
- {memory: wbuf, capacity: 16 KiB, width_bits: 256, may_keep: [weight]}
- {memory: abuf, capacity: 16 KiB, width_bits: 256, may_keep: [input, output]}
- {array: pes, dims: {x: 4, y: 4}, multicast: true, reduce: true}
- {compute: mac, kind: int8}
"""


def test_nothing_is_retained_where_it_may_not_stand(tmp_path: Path) -> None:
    """A gated MLP: H is a result and the first operand of Y; U is the second one of H (a weight, by role)."""
    (tmp_path / "side.yaml").write_text(SIDE_BY_SIDE)
    arch = machine.load_arch(str(tmp_path / "side.yaml"))
    texts = "G[t,f] += X[t,d] * A[d,f]", "U[t,f] += X[t,d] * B[d,f]", "H[t,f] = G[t,f] * U[t,f]"
    sizes = {"t": 16, "d": 16, "f": 32}
    mlp = workload(sizes, *texts, "Y[t,d] += H[t,f] * C[f,d]", weights=["A", "B", "C"])
    for name in ("residency", "gogeta", "fused", "best"):
        found = solve(arch, mlp, replace(SolverOptions(), schedule=name))
        assert not isinstance(found, Infeasible)
        plan = found[0].schedule or Schedule(())  # none: nothing is retained or fused
        retained = {(one.level, one.tensor) for one in plan.retained}
        assert retained <= {("ABUF", "G"), ("ABUF", "H"), ("ABUF", "X")}
        if name == "fused":
            assert retained >= {("ABUF", "H")}
    for tensor, level, user in (("H", "WBUF", "H has it as output"), ("U", "ABUF", "H has it as weight")):
        wrong = replace(plan, retained=(Retained(level, tensor, Fraction(1)),))
        refused = schedule_faults(arch, mlp, wrong)
        assert any(
            f"retain {level} {tensor}: {user}, which may not stand at {level}" in one for one in refused
        )
