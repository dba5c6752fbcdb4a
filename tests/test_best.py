"""`solver.schedule: best`: never dearer than another solver, and its claim."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dse.mapping.nest import Infeasible
from dse.mapping.searched import covers
from dse.sim.einsum.evaluate import Solution, no_progress, objective_value
from dse.sim.schedule.faults import faults
from dse.sim.schedule.graph import UNTIMED
from dse.solve.options import SolverOptions
from dse.solve.schedules.best import best
from dse.solve.schedules.fusible_segments import fusing_schedules
from dse.solve.solve import _at_most_unfused, _unfused_below, solve
from hw import machine
from hw.arch import Arch
from hw.space import override
from tests.amount import some
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
        (NODES, MLP, "energy", "pipelined"),
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


@pytest.mark.parametrize(
    ("name", "network"),
    some(
        [
            ("simba", "mlp_s"),
            ("gogeta_clusters", "mlp_s"),
            ("kapla_single", "mlp_s"),
            ("kapla_multi_4x4", "mlp_s:batch=1"),
            ("kapla_multi", "mlp_s:batch=1"),
            ("kapla_multi_4x4", "lstm:inputs=8,hidden=8,layers=1"),
            ("simba", "alexnet:image=67,classes=10"),
            ("gogeta_clusters", "squeezenet:image=32,classes=10"),
            ("kapla_single", "mobilenet_v1:image=32,width=25,classes=10"),
        ],
        *range(3),
    ),
)
@pytest.mark.parametrize("objective", some(["energy", "latency", "edp"], 0))
def test_pipelines_cost_no_more_than_kapla_or_unfused_mappings(
    name: str, network: str, objective: str
) -> None:
    arch, workload = machine.load_arch(name), catalog.load(network)
    costs = {
        schedule: objective_value(objective, one.energy_pj, one.latency_cycles)
        for schedule in ("kapla", "unfused", "pipelined", "best")
        for one in [solved(arch, workload, schedule, objective)]
    }
    assert costs["pipelined"] <= min(costs["kapla"], costs["unfused"]) * (1 + 1e-12)
    assert costs["best"] <= costs["pipelined"] * (1 + 1e-12)


def test_the_answer_says_whose_it_is() -> None:
    """On these machines unfused mappings are cheaper than all pipelines, alone or between segments."""
    found = solved(CLUSTERS, catalog.load("mlp_s:batch=1"), "pipelined")
    assert "taken: segments and unfused mappings" in found.certificate
    assert solved(CLUSTERS, CG, "best").certificate.startswith("taken: the residency schedule; ")


@pytest.mark.parametrize("most", [0.999, 1.0, 1.001])
def test_unfused_mappings_are_asked_while_they_may_cost_less(most: float) -> None:
    """Bounds of einsums that are not mapped yet leave nothing out."""
    cost = solved(NODES, MLP, "unfused").energy_pj
    found = _unfused_below(NODES, MLP, SolverOptions(schedule="pipelined"), no_progress, most * cost)
    assert found is None if most <= 1 else found and found.energy_pj == cost


def test_energy_x_delay_of_a_fused_schedule_is_at_most_that_of_unfused_mappings() -> None:
    options = SolverOptions(schedule="fused", objective="edp")
    fused = solved(A2S, MLP, "fused", "edp")
    dearer = replace(fused, energy_pj=2 * fused.energy_pj, optimality_gap=3.0)
    answer = _at_most_unfused([dearer], A2S, MLP, options, no_progress)
    assert isinstance(answer, list)
    (found,) = answer
    unfused = solved(A2S, MLP, "unfused", "edp")
    assert found.energy_pj * found.latency_cycles == unfused.energy_pj * unfused.latency_cycles
    assert found.optimality_gap < dearer.optimality_gap


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
