"""Frontiers before a sweep: built once for all machines, side by side, interrupted, refused; rows do not depend on how they came about."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from multiprocessing import active_children
from pathlib import Path

import pytest

from cluster import build, driver, worker
from cluster.store import RunFault
from cluster.worker import Job
from dse import stack
from dse.dataflow.family import covers, family
from dse.sim.evaluate import Solution
from dse.study import study as studies
from dse.study.study import Study
from hw.arch import Arch
from hw.space import decode
from tests.test_driver import events, rows
from workloads import catalog

STUDY = """
name: priced
workloads: [{workload: "gemm:m=16,n=8,k=12", name: one}, {workload: "gemm:m=16,n=8,k=12", name: again}, {workload: "gemm:m=8,n=12,k=6", name: two}]
machine: edge_array
space:
  overlap: [free]
  gbuf.double_buffer: [false]
  regf.double_buffer: [false]
  array.x: [2, 4]
  array.y: [2, 4]
  gbuf.capacity: [4 KiB, 8 KiB]
  regf.capacity: [64 B, 128 B]
  dram.kind: [ddr4, lpddr5, gddr6]
  clock_mhz: [250, 500]
objectives: [energy_pj, latency_ns]
solver: {mapper: optimal}
"""
SIZE = 96


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An own $DSE_CACHE for this file."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DSE_CACHE", str(folder))
        yield folder


def study(folder: Path, *sets: str, text: str = STUDY) -> Study:
    (folder / "priced.yaml").write_text(text)
    return studies.load(folder / "priced.yaml", sets)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return worker.job_of(study(tmp_path))


def never(_: build.Stage) -> bool:
    return False


def figures(found: object) -> list[tuple[str, float, float]]:
    assert isinstance(found, list) and isinstance(found[0], Solution)
    return [(cost.name, cost.energy_pj, cost.latency_cycles) for cost in found[0].einsums]


def test_a_machine_costs_what_solving_it_alone_finds(job: Job) -> None:
    priced = build.frontiers(job, 0, never).job
    for number in range(0, SIZE, 5):
        arch = decode(job.study.space, number)
        assert isinstance(arch, Arch)
        for workload, known in zip(job.workloads, priced.frontiers, strict=True):
            assert known
            found, alone = (stack.solve(arch, workload, job.study.solver, *more) for more in ((known,), ()))
            for one, other in zip(figures(found), figures(alone), strict=True):
                assert one == (other[0], pytest.approx(other[1], rel=1e-9), pytest.approx(other[2], rel=1e-9))
            assert isinstance(found, list)
            stored = {cost.name: str(cost.mapping) for cost in found[0].einsums}
            again = stack.again(arch, workload, job.study.solver, stored)
            assert isinstance(again, Solution) and again.einsums == found[0].einsums


def test_a_machine_outside_the_family_is_solved_on_its_own(job: Job, tmp_path: Path) -> None:
    [known, *_] = build.frontiers(job, 0, never).job.frontiers
    other = decode(study(tmp_path, "space.array.x=[3]").space, 0)
    assert isinstance(other, Arch) and not any(covers(front.family, other) for front in known.values())
    assert stack.solve(other, job.workloads[0], job.study.solver, known) == stack.solve(other, job.workloads[0], job.study.solver)


def test_processes_side_by_side_build_the_same_and_are_gone_afterwards(job: Job, cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    here = build.frontiers(job, 0, never)
    monkeypatch.setenv("DSE_CACHE", str(tmp_path / "cache"))
    beside = build.frontiers(job, 2, never)
    assert here.count == beside.count == 2 and active_children() == []
    ask = worker.Lease(0, tuple(worker.Ask(m, 0, "exhaustive") for m in range(0, SIZE, 7)))
    one, other = (worker.solve_lease(found.job, ask).tables for found in (here, beside))
    assert one == other and one["einsums"].num_rows == 3 * 14
    assert sorted(p.name for p in cache.iterdir()) == sorted(p.name for p in (tmp_path / "cache").iterdir())


def test_told_to_stop_it_leaves_no_process_and_no_frontier(job: Job, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DSE_CACHE", str(tmp_path / "cache"))
    for workers in (0, 2):
        found = build.frontiers(job, workers, lambda _: True)
        assert found.count == 0 and not any(found.job.frontiers) and active_children() == []


def test_a_process_that_dies_is_one_line(job: Job, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DSE_CACHE", str(tmp_path / "cache"))

    def kill(_: build.Stage) -> bool:
        for child in active_children():
            os.kill(child.pid or 0, signal.SIGKILL)
        return False

    with pytest.raises(RunFault, match="a process died while it built frontiers") as fault:
        build.frontiers(job, 1, kill)
    assert "\n" not in str(fault.value) and active_children() == []


def test_a_family_of_a_sample_covers_all_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wide = study(tmp_path, "space.gbuf.capacity={from: 4 KiB, to: 64 KiB, step: x2}", "space.node_nm=[22, 32, 45, 65]", "space.cell=[lop, hp]",
                 "space.regf.width_bits=[16, 32]", "space.clock_mhz=[100, 200, 300]")
    monkeypatch.setattr(build, "SAMPLE", 130)
    chosen = build.machines(wide)
    assert len(chosen) < wide.space.size // 4
    shared, seen = family(chosen), [decode(wide.space, number) for number in range(0, wide.space.size, 11)]
    assert all(covers(shared, arch) for arch in seen if isinstance(arch, Arch)) and any(isinstance(arch, Arch) for arch in seen)


def test_a_sweep_builds_once_and_its_rows_do_not_know_how(tmp_path: Path, cache: Path) -> None:
    small = study(tmp_path)
    whole = driver.run(small, tmp_path / "whole", workers=0)
    assert whole.exit_code == 0 and whole.built.startswith("2 frontiers in ") and events(tmp_path / "whole", "frontiers") == [whole.built]
    driver.run(study(tmp_path, "stop.points=30"), tmp_path / "parts", workers=0)
    for part in cache.iterdir():
        part.unlink()
    rest = driver.run(small, tmp_path / "parts", workers=0)
    assert rest.solved == SIZE - 30 and rest.built and rows(tmp_path / "parts") == rows(tmp_path / "whole")
    for part in cache.iterdir():
        part.unlink()
    assert driver.run(small, tmp_path / "parts", workers=0).built == "" and not list(cache.iterdir())


def test_ctrl_c_while_frontiers_are_built_ends_the_run_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(driver, "REPORT_S", 0.0)
    said: list[str] = []

    def press(status: driver.Status) -> None:
        said.append(status.reason)
        if status.reason.startswith("1 of 2 frontiers") and "interrupted; stopping" not in said:
            os.kill(os.getpid(), signal.SIGINT)

    first = driver.run(study(tmp_path), tmp_path / "run", workers=0, progress=press)
    assert any(", now gemm" in reason for reason in said) and "interrupted; stopping" in said
    assert first.status.state == "interrupted" and first.solved == 0
    assert len(list((tmp_path / "cache").iterdir())) == 1
    assert driver.resume(tmp_path / "run", workers=0).exit_code == 0


@pytest.mark.parametrize("sets", [["solver.tiles=divisor"], ["solver.mapper=cost_descending"], ["space.gbuf.capacity=[4 KiB]"], ["solver.tiling=smaug"]])
def test_who_needs_none(tmp_path: Path, sets: list[str]) -> None:
    assert build.wanted(study(tmp_path)) and not build.wanted(study(tmp_path, *sets))


def test_machines_of_two_topologies_are_solved_one_by_one(tmp_path: Path) -> None:
    both = study(tmp_path, "space.gbuf.bypass=[true, false]", "stop.points=4")
    out = driver.run(both, tmp_path / "run", workers=0)
    assert out.solved == 4 and out.built == "" and out.status.notes == ("every machine is solved on its own: the machines have 2 different topologies",)


def test_a_dry_run_counts_frontiers_and_what_it_builds_stays(tmp_path: Path) -> None:
    fresh = driver.dry_run(study(tmp_path))
    assert fresh["frontiers_in_cache"] + fresh["frontiers_to_build"] == fresh["unique_einsums"] == 2
    again = driver.dry_run(study(tmp_path))
    assert again["frontiers_to_build"] == 0 and again["frontiers_core_s"] == 0.0 and again["core_s"] == again["machines_to_solve"] * again["machine_s"]
    assert "frontiers_to_build" not in driver.dry_run(study(tmp_path, "solver.mapper=cost_descending"))


def test_frontiers_that_are_not_built_are_foreseen_by_their_effort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One is built to tell; the estimate of the rest is in proportion to their effort."""
    monkeypatch.setattr(build, "PROBE_S", 0.0)
    shared = family(build.machines(study(tmp_path)))
    small, *large = (catalog.load(f"gemm:m={m},n=9,k=5").einsums[0] for m in (7, 16, 16))
    assert build.missing([small, *large], shared) == [small, *large]
    seconds, built = build.foreseen([small, *large], shared)
    assert built == 1 and build.missing([small, *large], shared) == large and 0 < seconds < 60
    assert build.foreseen([small], shared) == (0.0, 1)
