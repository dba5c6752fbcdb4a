"""Schedules that machines share: priced as the evaluator prices them, and floors that hold on machines that
were not solved.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

import dse
from cluster import worker
from cluster.worker import Ask, sharing_machines
from dse.mapping.nest import Infeasible
from dse.sim.einsum.evaluate import Solution
from dse.sim.schedule.graph import evaluate
from dse.solve import solve
from dse.solve.options import SolverOptions
from dse.solve.sharing.shared_schedules import SharedSchedules, find_shared_schedules, priced_on
from dse.study import study
from hw import machine
from hw.arch import Arch
from hw.space import decode
from tests import rates
from tests.amount import amount, some
from tests.fusions import random_case
from workloads.graph import Workload

NET = (
    "extents: {m: 16, n: 8}\nweights: [W, V]\neinsums:\n"
    '- {name: a, extents: {m: 16, k: 8, n: 8}, text: "T[m,n] += X[m,k] * W[k,n]"}\n'
    '- {name: b, extents: {m: 16, n: 8, q: 8}, text: "Y[m,q] += T[m,n] * V[n,q]"}\n'
)
OPTIONS = SolverOptions(schedule="fused", sharing_gap=0.05)


def relatives(arch: Arch, rng: Random, many: int) -> list[Arch]:
    """Machines of one structure; some prices and rates are those of another one."""

    def other() -> Arch:
        levels = tuple(
            replace(
                level,
                read_pj=level.read_pj * rng.choice([0.2, 1, 3]),
                write_pj=level.write_pj * rng.choice([0.5, 1, 2]),
                bandwidth=level.bandwidth * rng.choice([0.25, 1, 1, 2]),
            )
            for level in arch.levels
        )
        lane = replace(arch.compute, mac_pj=rng.choice([0.1, 1.0, 4.0]), alu_pj=rng.choice([0.1, 0.5]))
        return rates.alike(replace(arch, levels=levels, compute=lane), rng)

    return [arch, *(other() for _ in range(many - 1))]


def solved(
    arch: Arch, workload: Workload, objective: str = "energy", reuse: str = "fused"
) -> Solution | Infeasible:
    """As machines that share schedules ask: without GOGETA's schedule beside, which is of no searched
    space."""
    found = solve.solve(arch, workload, replace(OPTIONS, objective=objective, schedule=reuse, gap=0.0))  # type: ignore[arg-type]
    return found if isinstance(found, Infeasible) else found[0]


def shared(arches: list[Arch], workload: Workload, share: float) -> SharedSchedules | Infeasible:
    return find_shared_schedules(
        arches,
        workload,
        lambda arch, objective: solved(arch, workload, objective),
        lambda arch, objective: solved(arch, workload, objective, "unfused"),
        share,
    )


@pytest.mark.parametrize("seed", range(amount(12, 8)))
def test_what_is_claimed_of_shared_schedules_holds_where_machines_are_solved(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not above the optimum by more than the gap, and priced as the evaluator does; also where one machine's
    linear program bounds all.
    """
    rng = Random(seed)
    monkeypatch.setattr("dse.solve.sharing.shared_schedules.SAMPLED_MACHINES", 1 if seed % 2 else 256)
    arch, workload = random_case(seed, rng.choice(["free", "buffered"]))
    arches = relatives(arch, rng, 16)
    found = shared(arches, workload, share := rng.choice([0.02, 0.3]))
    if isinstance(found, Infeasible):
        assert isinstance(solved(arches[-1], workload), Infeasible)
        return
    for i, one in enumerate(arches):
        best, mine = solved(one, workload), priced_on(found, i)
        assert isinstance(best, Solution)
        assert mine.certificate.count(" the searched space; ") == 1
        assert "not proven" not in mine.certificate
        assert mine.space == found.space
        assert mine.energy_pj <= (1 + mine.optimality_gap) * best.energy_pj * (1 + 1e-9)
        assert best.energy_pj / (1 + best.optimality_gap) <= mine.energy_pj * (1 + 1e-9)
        assert mine.energy_pj <= (1 + share) * best.energy_pj * (1 + 1e-6) or best.optimality_gap > 0
        again = evaluate(one, workload, found.schedules[found.choice[i]].schedule)
        assert isinstance(again, Solution)
        assert (mine.energy_pj, mine.latency_cycles) == (again.energy_pj, again.latency_cycles)
        for a, b in zip(mine.einsums, again.einsums, strict=True):
            assert (a.name, a.count, a.mapping_key, a.bottleneck) == (
                b.name,
                b.count,
                b.mapping_key,
                b.bottleneck,
            )
            assert (a.energy_pj, a.latency_cycles) == (b.energy_pj, b.latency_cycles)
        for c, d in zip(mine.segments, again.segments, strict=True):
            assert (c.einsums, c.on_chip, c.peak_bits) == (d.einsums, d.on_chip, d.peak_bits)
            assert (c.energy_pj, c.latency_cycles) == (d.energy_pj, d.latency_cycles)


def free(arch: Arch, leak_mw: float = 0.0) -> Arch:
    """The machine with nothing to pay but leakage."""
    levels = tuple(replace(level, leak_mw=leak_mw) for level in arch.levels)
    return replace(arch, levels=levels, compute=arch.without("leakage").compute).map_fields(
        ["price"], lambda *_: 0.0
    )


@pytest.mark.parametrize("seed", some(range(4), 3))
def test_prices_of_nothing(seed: int) -> None:
    """A machine that costs nothing, and machines that pay for time alone, less than 1 pJ a cycle, in every
    order.
    """
    arch, workload = random_case(seed, "buffered")
    several = [free(arch), free(arch, 0.01), *relatives(arch, Random(seed), 3), free(arch, 7.0)]
    Random(seed).shuffle(several)
    for arches in (several, [free(arch)]):
        found = shared(arches, workload, 0.1)
        assert isinstance(found, SharedSchedules)
        for i, one in enumerate(arches):
            best, mine = solved(one, workload), priced_on(found, i)
            assert isinstance(best, Solution)
            assert found.space_bounds_pj[i] <= best.energy_pj
            assert mine.energy_pj <= (1 + mine.optimality_gap) * best.energy_pj * (1 + 1e-9)


def test_a_share_below_rounding_is_reached() -> None:
    arch, workload = random_case(3)
    found = shared(relatives(arch, Random(0), 4), workload, 1e-12)
    assert isinstance(found, SharedSchedules)
    assert all(priced_on(found, i).optimality_gap <= 1e-6 for i in range(4))


def test_machines_that_feel_layouts_do_not_share(tmp_path: Path) -> None:
    """Shared schedules are priced by words alone: lines and rows would cost nothing."""
    (tmp_path / "net.yaml").write_text(NET)
    (tmp_path / "study.yaml").write_text(
        "name: s\nworkloads: [{file: net.yaml, name: net}]\nmachine: burst_edge\nspace: "
        "{mac.leak_mw: [0.01, 0.02]}\n"
        "objectives: [energy_pj]\nsolver: {schedule: fused, sharing_gap: 0.2}\n"
    )
    with pytest.raises(
        ValueError,
        match=r"solver.sharing_gap = 0.2: burst_edge describes lines, rows, banks or hops.*leave it out",
    ):
        study.load(tmp_path / "study.yaml")
    with pytest.raises(ValueError, match="shared schedules do not price"):
        shared([machine.arch(machine.load("burst_edge"))], random_case(3)[1], 0.1)


def test_few_machines_are_solved() -> None:
    arch, workload = random_case(3)
    found = shared(relatives(arch, Random(0), 60), workload, 0.2)
    assert isinstance(found, SharedSchedules)
    assert len(found.anchors) < 30


def test_machines_of_another_structure_are_refused() -> None:
    arch, workload = random_case(3)
    with pytest.raises(ValueError, match="differ in more than prices"):
        shared([arch, replace(arch, word_bits=16)], workload, 0.1)


@pytest.mark.xdist_group("ray")
def test_a_sweep_shares_and_rows_do_not_depend_on_order_or_workers(
    tmp_path: Path, head: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DSE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "net.yaml").write_text(NET)
    text = (
        "name: s\nworkloads: [{file: net.yaml, name: net}]\nmachine: edge_array\nspace: "
        "{gbuf.capacity: [64 KiB, 128 KiB], dram.kind: [ddr4, lpddr5], node_nm: [22, 45], clock_mhz: [200, "
        "400]}\nobjectives: [energy_pj]\nsolver: {schedule: fused, sharing_gap: 0.1}\n"
    )
    (tmp_path / "study.yaml").write_text(text)
    space = study.load(tmp_path / "study.yaml").space
    alike = {
        machine: sharing_machines(space, machine, arch)
        for machine in (3, 9)
        if isinstance(arch := decode(space, machine), Arch)
    }
    assert len(alike[3]) == 8
    assert len({arch.structure() for arch in alike[9].values()}) == 1
    columns = "machine, energy_pj, latency_cycles, optimality_gap, certificate"
    rows = []
    ways = [(0, "exhaustive"), (0, "random"), (1, "random"), (2, "exhaustive"), (2, "random")]
    for i, (workers, method) in enumerate(some(ways, 0, 2)):
        run = dse.sweep(
            tmp_path / "study.yaml",
            out=tmp_path / f"run{i}",
            workers=workers,
            address=head,
            **{"search.method": method},
        )
        rows.append(
            (
                run.sql(f"SELECT {columns} FROM workload_costs ORDER BY machine").table.to_pylist(),
                run.sql(
                    "SELECT machine, saved_share, nest, retained FROM schedules ORDER BY machine"
                ).table.to_pylist(),
                run.sql(
                    "SELECT machine, einsum, energy_pj, mapping_key FROM einsums ORDER BY ALL"
                ).table.to_pylist(),
            )
        )
    assert all(one == rows[0] for one in rows)
    assert len(rows[0][0]) == 16
    assert all(0 <= row["saved_share"] < 1 for row in rows[0][1])
    assert rows[0][1]
    assert run.show("0").solutions[0].solution.energy_pj > 0  # costed anew, equal to what is stored


def test_leases_begin_with_schedules_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes do not find the same schedules side by side; rows keep the order of the lease."""
    monkeypatch.setenv("DSE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "net.yaml").write_text(NET)
    (tmp_path / "study.yaml").write_text(
        "name: s\nworkloads: [{file: net.yaml, name: net}]\nmachine: edge_array\n"
        "space: {dram.kind: [ddr4, lpddr5], gbuf.capacity: [64 KiB, 128 KiB]}\n"
        "objectives: [energy_pj]\nsolver: {schedule: fused, sharing_gap: 0.1}\n"
    )
    asks, begun, real = (
        tuple(Ask(number, 0, "") for number in (0, 1, 2, 3)),
        list[list[int]](),
        worker.solve_machine,
    )
    monkeypatch.setattr(
        worker,
        "solve_machine",
        lambda job, ask, *rest: begun[-1].append(ask.machine) or real(job, ask, *rest),
    )  # type: ignore[func-returns-value]
    tables = []
    for number in (0, 1, 2):
        begun.append([])
        job = worker.job_of(study.load(tmp_path / "study.yaml"))
        tables.append(
            worker.solve_lease(job, worker.Lease(number, asks))
            .tables["machines"]
            .column("machine")
            .to_pylist()
        )
        begun.append([])
        worker.solve_lease(job, worker.Lease(1, asks))
    sizes = [
        [
            arch.structure().levels[1].capacity_bits
            for machine in one
            if isinstance(arch := decode(job.study.space, machine), Arch)
        ]
        for one in begun
    ]
    assert tables == [[0, 1, 2, 3]] * 3
    assert sizes[0][0] == sizes[0][1] == sizes[2][2] == sizes[2][3] != sizes[2][0]
    assert sizes[4] == sizes[0]
    assert begun[1] == begun[3] == [0, 1, 2, 3]  # all is known: nothing to be sorted


def test_shared_schedules_go_with_their_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Machine 0 of one space is machine 1 of the other one, in the same process."""
    monkeypatch.setenv("DSE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "net.yaml").write_text(NET)
    found = []
    for i, kinds in enumerate(("ddr4, lpddr5", "lpddr5, ddr4")):
        (tmp_path / f"{i}.yaml").write_text(
            f"name: s\nworkloads: [{{file: net.yaml, name: net}}]\nmachine: edge_array\nspace: "
            f"{{dram.kind: [{kinds}]}}\n"
            "objectives: [energy_pj]\nsolver: {schedule: fused, sharing_gap: 0.1}\n"
        )
        run = dse.sweep(tmp_path / f"{i}.yaml", out=tmp_path / f"run{i}", workers=0)
        found.append(
            [
                row["energy_pj"]
                for row in run.sql("SELECT energy_pj FROM points ORDER BY machine").table.to_pylist()
            ]
        )
    assert found[0] == found[1][::-1]
    assert found[0][0] != found[0][1]


def test_share_is_refused_where_nothing_is_shared(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(
        "name: s\nworkloads: ['gemm:m=4,n=4,k=4']\nmachine: a2s\nspace: {array.x: [4]}\nobjectives: "
        "[energy_pj]\n"
        "solver: {sharing_gap: 0.1, objective: edp, schedule: fused}\n"
    )
    with pytest.raises(
        ValueError,
        match=r"solver.sharing_gap = 0.1: machines share mappings \(schedule unfused\) and schedules",
    ):
        study.load(tmp_path / "study.yaml")
