"""What the driver costs: CPU of dispatch and commit per machine, and the time of a resume.

    python -m bench.driver [--machines 600] [--resume 10000]

Overhead is CPU beyond decode and solve, in the same run: these are timed where the worker calls them, all
else is rows, leases, commits and asks. With an actor, the CPU of the driver's process while it runs stands
for dispatch and commit.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from cluster import driver, worker
from cluster.driver import Outcome
from dse.study import study as studies
from dse.study.study import Study

STUDY = """
name: bench
workloads: [{workloads}]
machine: a2
space:
  glb.capacity: {{from: 1 KiB, to: 128 KiB, step: 1 KiB}}
  array.x: [1, 2, 4, 8, 16]
  array.y: [2, 4, 8, 16]
  clock_mhz: [500.0, 1000.0, 1500.0, 2000.0]
objectives: [energy_pj, latency_ns]
search: {{method: {method}, seed: 7}}
stop: {{machines: {points}}}
solver: {{mapper: cost_descending}}
"""
HEAVY = "'gemm:m=256,n=192,k=320', 'gemm:m=96,n=512,k=224', 'gemm:m=448,n=72,k=144'"
LIGHT = "'gemm:m=64,n=32,k=48'"


def study(folder: Path, method: str, points: int, workloads: str) -> Study:
    path = folder / f"{method}-{points}.yaml"
    path.write_text(STUDY.format(method=method, points=points, workloads=workloads))
    return studies.load(path)


def complete(outcome: Outcome) -> Outcome:
    """A run that was cut short measures nothing: ends the benchmark with one line."""
    status = outcome.status
    if outcome.exit_code:
        sys.exit(
            f"the run is not complete: {status.state}, {status.done} of {status.planned} machines, "
            f"{status.error} errors; {status.reason}"
        )
    return outcome


def in_process(folder: Path, machines: int) -> tuple[float, float]:
    """CPU seconds per machine: of the bare loop (decode and solve), and of all that a run does."""
    spent = 0.0
    bare = worker.decode, worker.solve

    def timed(function):  # type: ignore[no-untyped-def]
        def called(*given):  # type: ignore[no-untyped-def]
            nonlocal spent
            begun = time.process_time()
            found = function(*given)
            spent += time.process_time() - begun
            return found

        return called

    worker.decode, worker.solve = timed(worker.decode), timed(worker.solve)
    small = study(folder, "random", machines, HEAVY)
    begun = time.process_time()
    complete(driver.run(small, folder / "run0", workers=0))
    whole = time.process_time() - begun
    worker.decode, worker.solve = bare
    return spent / machines, whole / machines


def with_actors(folder: Path, machines: int, workers: int) -> float:
    """CPU seconds per machine of the driver's process, from the first report of a result to the last."""
    marks: list[tuple[int, float]] = []
    complete(
        driver.run(
            study(folder, "random", machines, HEAVY),
            folder / f"run{workers}",
            workers=workers,
            progress=lambda status: (
                marks.append((status.done, time.process_time()))
                if status.state == "running" and status.done
                else None
            ),
        )
    )
    (first, begun), (last, ended) = marks[0], marks[-1]
    return (ended - begun) / (last - first)


def resumed(folder: Path, method: str, points: int) -> tuple[float, float]:
    """Seconds of a run of so many points, and of a second call that finds nothing to do."""
    small = study(folder, method, points, LIGHT)
    times = []
    for _ in range(2):
        begun = time.perf_counter()
        complete(driver.run(small, folder / f"resume-{method}", workers=0))
        times.append(time.perf_counter() - begun)
    return times[0], times[1]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--machines", type=int, default=600)
    parser.add_argument("--resume", type=int, default=10_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dse-bench-") as name:
        folder = Path(name)
        for workers in (1, 2):  # before solving here: a driver's heap holds no solver's tables
            cost = with_actors(folder, given.machines, workers)
            print(
                f"{workers} actor(s): the driver costs {1e3 * cost:.2f} ms CPU per machine, dispatch "
                f"and commit: {100 * cost / 0.02:.1f} % of 20 ms"
            )
        solving, whole = in_process(folder, given.machines)
        print(
            f"{given.machines} machines, decode and solve {1e3 * solving:.2f} ms; in-process run "
            f"{1e3 * whole:.2f} ms: rows, asks and commits are {100 * (whole - solving) / 0.02:.1f} % of 20 "
            "ms"
        )
        for method in ("random", "nsga2"):
            if given.resume:
                first, again = resumed(folder, method, given.resume)
                print(f"{method}: {given.resume} points in {first:.1f} s, resume in {again:.1f} s")


if __name__ == "__main__":
    main()
