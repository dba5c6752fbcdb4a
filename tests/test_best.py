"""`solver.schedule: best`: never dearer than another solver, and its claim."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dse.mapping.nest import Infeasible
from dse.mapping.searched import covers
from dse.sim.einsum.evaluate import Solution, objective_value
from dse.sim.schedule.faults import faults
from dse.sim.schedule.graph import UNTIMED
from dse.solve.options import SolverOptions
from dse.solve.schedules.best import best
from dse.solve.schedules.fusible_segments import fusing_schedules
from dse.solve.solve import solve
from hw import machine
from hw.arch import Arch
from hw.space import override
from workloads import catalog
from workloads.graph import Workload

CLUSTERS = machine.arch(machine.load("gogeta_clusters"))
NODES = machine.arch(machine.load("kapla_multi_4x4"))
A2S = machine.arch(machine.load("a2s"))
CG = catalog.load("cg:iterations=1,rows=24,nnz=90,matrix=")
MLP = catalog.load("mlp_s")
pytestmark = pytest.mark.xdist_group("best")  # its tests share answers


def solved(arch: Arch, workload: Workload, schedule: str, objective: str = "energy") -> Solution:
    options = SolverOptions(objective=objective, schedule=schedule)  # type: ignore[arg-type]
    found = solve(arch, workload, options)
    assert isinstance(found, list), found
    return found[0]


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Solvers are asked once by `best` and once alone."""
    monkeypatch.setenv("DSE_CACHE", str(tmp_path_factory.getbasetemp() / "best"))


@pytest.mark.parametrize(
    ("arch", "workload", "objective", "winner"),
    [
        (CLUSTERS, CG, "energy", "residency"),
        (NODES, MLP, "energy", "unfused"),
        (A2S, catalog.load("spmm_chain:rows=24,nnz=90,n=2,length=2,matrix="), "latency", "residency"),
    ],
    ids=["clusters", "nodes", "one level"],
)
def test_best_is_no_dearer_than_any_other_solver(
    arch: Arch, workload: Workload, objective: str, winner: str
) -> None:
    found = solved(arch, workload, "best", objective)
    names = (*fusing_schedules(arch, workload), "unfused")
    costs = {}
    for name in names:
        one = solved(arch, workload, name, objective)
        if objective == "energy" or UNTIMED not in one.certificate:
            costs[name] = objective_value(objective, one.energy_pj, one.latency_cycles)
    value = objective_value(objective, found.energy_pj, found.latency_cycles)
    assert value == pytest.approx(min(costs.values()), rel=1e-12)
    assert costs[winner] == min(costs.values())
    assert found.saved == pytest.approx(1 - value / costs["unfused"], abs=1e-9)
    assert found.space
    assert found.space.beside
    if found.schedule:
        assert not faults(arch, workload, found.schedule)


def test_the_gap_is_that_to_the_bound_of_the_space_that_is_named() -> None:
    """On clusters with one buffer nothing is fused below shared loops: pipelines have the widest space."""
    pipelined, found = solved(CLUSTERS, CG, "pipelined"), solved(CLUSTERS, CG, "best")
    others = "the residency schedule", "GOGETA's schedule", "SEQ-Overflow's schedule", "unfused mappings"
    assert pipelined.space
    assert found.space == replace(pipelined.space, beside=(*pipelined.space.beside, *others))
    assert found.energy_pj < pipelined.energy_pj
    bound = pipelined.energy_pj / (1 + pipelined.optimality_gap)
    assert found.optimality_gap == pytest.approx(max(found.energy_pj / bound - 1, 0.0), abs=1e-9)
    assert found.schedule
    assert covers(found.space, found.schedule, CG, CLUSTERS)  # the residency schedule lies outside of it


def test_a_schedule_whose_stalls_are_not_counted_gives_way() -> None:
    unfused = solved(A2S, MLP, "unfused", "latency")
    untimed = replace(
        unfused, latency_cycles=unfused.latency_cycles / 2, certificate=f"{UNTIMED}; {unfused.certificate}"
    )
    found = best(A2S, MLP, "latency", {"pipelined": untimed, "unfused": unfused})
    assert isinstance(found, Solution)
    assert found.latency_cycles == unfused.latency_cycles


def test_a_timed_schedule_without_a_bound_wins_over_an_untimed_one_with_one() -> None:
    """GOGETA's schedule beside a fused one whose stalls are not counted: was no answer at all."""
    unfused = solved(A2S, MLP, "unfused", "latency")
    untimed = replace(unfused, certificate=f"{UNTIMED}; {unfused.certificate}")
    faster = replace(unfused, latency_cycles=unfused.latency_cycles * 0.99)
    found = best(A2S, MLP, "latency", {"fused": untimed, "gogeta": faster})
    assert isinstance(found, Solution)
    assert found.latency_cycles == faster.latency_cycles


def test_a_machine_that_holds_nothing_is_infeasible() -> None:
    tiny = override(machine.load("a2s"), {"dram.capacity": "64 B"})
    found = solve(machine.arch(tiny), MLP, SolverOptions(schedule="best"))
    assert isinstance(found, Infeasible)
    assert found.level == "DRAM"


def test_the_state_of_a_loop_leaves_the_chip_in_pipelines_too(tmp_path: Path) -> None:
    """A pipeline of CG kept the state that the next iteration reads on chip, and was refused as a fault."""
    found = solved(CLUSTERS, CG, "pipelined")
    assert found.schedule
    assert not faults(CLUSTERS, CG, found.schedule)
