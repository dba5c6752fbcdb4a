"""A run folder of ten million machines: time and memory of the commands that read it.

    python -m bench.large [--machines 10000000] [--out DIR]

The driver's own loop writes the folder, over leases whose rows are drawn instead of solved: each machine has
the mappings of one that was solved, its own parameters, bounds and key, and an energy and latency drawn about
a curve on which one is traded for the other, so that the front is of some thousand points. With --out the
folder stays, and one that stands there is read as it is.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from bench.driver import complete
from bench.sweep import PRODUCT, STUDY
from cluster import driver, pruning
from cluster.worker import VERSIONS, Ask, Done, Job, Lease, batches_of, solve_lease
from dse.study import packed_columns
from dse.study import study as studies
from dse.study.pareto import Trial

MACHINE_S = 1e-4  # seconds of work per machine, as the driver sees it


def drawn(job: Job, solved: Done, lease: Lease | None) -> Done | None:
    """A lease's rows, drawn from its number."""
    if lease is None:
        return None
    rng, n = np.random.default_rng(lease.number), len(lease.asks)
    machines = np.array([ask.machine for ask in lease.asks])
    built, columns = job.pruner.table.columns(machines)
    assert built.all(), "the space has machines that cannot be built"
    bounds, all_of_them = job.pruner.lower_bounds(columns), np.zeros(n, np.int64)
    own = job.pruner.columns_of(machines, columns, bounds, [Trial(0, 0, "ok", (), ())], all_of_them)
    own |= pruning.constant_columns(n, status="ok", source="random", **VERSIONS)
    own |= {"reason": pa.nulls(n), "dominated_by": pa.nulls(n)}
    own["generation"] = pa.array([ask.generation for ask in lease.asks])
    traded, worse = rng.uniform(-2, 2, n), rng.exponential(0.5, n)
    points = pruning.constant_columns(n, schedule=0, feasible=True, **VERSIONS) | {
        "machine": pa.array(machines),
        "energy_pj": pa.array(1e9 * np.exp(traded + worse)),
        "latency_cycles": pa.array(np.round(1e7 * np.exp(worse - traded))),
    }
    chosen = solved.tables["chosen"].take([0] * n)
    of_machines = pruning.table_of(job.schemas["machines"], own, n)
    tables = {
        "machines": of_machines,
        "points": packed_columns.unpack(pruning.table_of(job.schemas["points"], points, n), of_machines),
        "chosen": pa.Table.from_batches([chosen]).set_column(0, chosen.schema.field(0), points["machine"]),
        **{name: pa.Table.from_batches([solved.tables[name]]) for name in ("mappings", "counts")},
    }
    return Done(lease, batches_of(tables), MACHINE_S * n)


@contextmanager
def drawing(run: driver.Run, *_: object) -> Iterator[driver.Map]:
    """In the place of driver._lease_map."""
    largest = Ask(run.job.study.space.size - 1, 0, "random")
    solved = solve_lease(run.job, Lease(0, (largest,)))
    yield partial(map, partial(drawn, run.job, solved))


def written(out: Path, machines: int) -> None:
    path = out.with_suffix(".yaml")
    text = STUDY.format(name="large", workload=PRODUCT, points=machines)
    path.write_text(text.replace(", prune: true", "").replace("from: 32 B,", "from: 64 B,"))
    driver._lease_map = drawing
    begun = time.monotonic()
    complete(driver.run(studies.load(path), out, workers=0))
    size = sum(entry.stat().st_size for entry in out.rglob("*") if entry.is_file())
    wall_s = time.monotonic() - begun
    print(f"{machines} machines: written in {wall_s:.0f} s, {size / 1e6:.0f} MB", flush=True)


def measured(*arguments: str) -> None:
    """Prints wall and CPU time and the greatest memory of a command, and what it says first."""
    begun, memory_kib = time.monotonic(), 0
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "dse", *arguments], stdout=said, stderr=subprocess.STDOUT
        )
        ended, code = 0, 0
        while not ended:
            with suppress(OSError, StopIteration):
                lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
                memory_kib = int(next(line for line in lines if line.startswith("VmHWM")).split()[1])
            time.sleep(0.02)
            ended, code, used = os.wait4(process.pid, os.WNOHANG)
        wall_s = time.monotonic() - begun
        said.seek(0)
        lines = said.read().splitlines()
    print(
        f"dse {arguments[0]}: {wall_s:.1f} s, {used.ru_utime + used.ru_stime:.1f} s of CPU, "
        f"{memory_kib / 1024:.0f} MB, exit code {os.waitstatus_to_exitcode(code)}, {len(lines)} lines: "
        f"{lines[0][:80] if lines else ''}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--machines", type=int, default=10_000_000)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dse-bench-") as folder:
        out = given.out or Path(folder) / "run"
        if not out.exists():
            written(out, given.machines)
        measured("status", str(out))
        measured("resume", str(out), "--workers", "0")
        measured("pareto", str(out), "--format", "csv")
        measured("sql", str(out), "SELECT status, count(*) FROM machines GROUP BY ALL")


if __name__ == "__main__":
    main()
