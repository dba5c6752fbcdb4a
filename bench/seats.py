"""How many workers one driver feeds: its whole loop, over seats that wait instead of solving.

    python -m bench.seats [--seats 100 1000 10000] [--leases 20] [--method random] [--machine-s 0.5] [--short]
    python -m bench.seats --ray 100

A seat answers a lease after its machines times `--machine-s`, with rows that were solved once and bear the
machine's number. The clock is the driver's CPU time, which stands still while a seat makes rows, and jumps to
the next answer where the driver would wait: so neither other work on the machine nor a slow disk is measured.
Ray's own calls are not in it; with --short leases do not grow with the seats to make up for these. A million
machines: --seats 1000 --leases 1000 --machine-s 1 --short. With --ray seats are Ray's actors, which take no
CPU and sleep; rows come from them as bytes, and seconds are those of the wall.
"""

from __future__ import annotations

import argparse
import heapq
import os
import pickle
import resource
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import ray

from bench.driver import LIGHT, STUDY
from cluster import driver, pool
from cluster.worker import Ask, Done, Job, Lease, Packed, job_of, pack, solve_lease, unpack
from dse.study import study as studies
from dse.study.study import Study

CLOCKS = (
    "[500.0, 1000.0, 1500.0, 2000.0]",
    "{from: 500.0, to: 1500.0, step: 0.1}",
)  # of bench.driver, and here


class Clock:
    """Time that passes while the driver computes, and where it waits."""

    def __init__(self) -> None:
        self.waited_s = self.not_counted_s = 0.0

    def computed_s(self) -> float:
        """CPU seconds of the driver so far."""
        return time.process_time() - self.not_counted_s

    def monotonic(self) -> float:
        """Seconds so far."""
        return time.process_time() - self.not_counted_s + self.waited_s

    def sleep(self, seconds: float) -> None:
        """Lets so many seconds pass at once."""
        self.waited_s += max(0.0, seconds)

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


@dataclass(slots=True)
class Seat:
    """An actor's place: when it has done all that it was given."""

    free_at: float = 0.0


@dataclass(eq=False, slots=True)
class Call:
    """A call of a seat, answered at `due` (time.monotonic())."""

    due: float


@dataclass(slots=True)
class Template:
    """Rows of one machine, for all. repeated: of so many machines, by (table, machines)"""

    tables: Mapping[str, pa.RecordBatch]
    repeated: dict[tuple[str, int], pa.RecordBatch] = field(default_factory=dict)

    def packed(self, lease: Lease, machine_s: float) -> Packed:
        """A lease's rows, as an actor sends them."""
        n = len(lease.asks)
        own = {
            "machine": pa.array([ask.machine for ask in lease.asks]),
            "generation": pa.array([ask.generation for ask in lease.asks], pa.int32()),
        }
        tables = {}
        for name, one in self.tables.items():
            rows = one
            if "machine" in one.schema.names and (rows := self.repeated.get((name, n))) is None:
                rows = self.repeated[name, n] = one.take([0] * n)
            arrays = [own.get(field.name, column) for field, column in zip(rows.schema, rows, strict=True)]
            tables[name] = pa.RecordBatch.from_arrays(arrays, schema=rows.schema)
        return pack(Done(lease, tables, machine_s * n))


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=0)
class Sleeper:
    """An actor that sleeps instead of solving."""

    def ready(self) -> tuple[int, str, str, str]:
        return os.getpid(), "here", "node", ""

    def solve(self, rows: bytes, seconds: float) -> bytes:
        """The rows, after so many seconds."""
        time.sleep(seconds)
        return rows[:]


class RayCalls(pool.RayCalls):
    """Calls of actors that sleep. Rows are made here, and go to the actor and back as bytes."""

    def __init__(self, job: Job, seats: int, machine_s: float, template: Template) -> None:
        super().__init__(job)
        self.seats, self.machine_s, self.template = seats, machine_s, template
        self.clock, self.leases, self.began = Clock(), 0, (0.0, 0.0)

    def start(self) -> Any:
        return Sleeper.remote()

    def ready(self, actor: Any) -> Any:
        return actor.ready.remote()

    def solve(self, actor: Any, lease: Lease) -> Any:
        self.leases += 1
        if self.leases == 1:
            self.began = self.clock.computed_s(), time.monotonic()
        begun = time.process_time()
        rows = pickle.dumps(self.template.packed(lease, self.machine_s))
        self.clock.not_counted_s += time.process_time() - begun
        return actor.solve.remote(rows, self.machine_s * len(lease.asks))

    def done(self, ref: Any, lease: Lease) -> Done:
        return unpack(self.job, lease, pickle.loads(ray.get(ref)))

    def cpus(self) -> int:
        return self.seats

    def free_cpus(self) -> int:
        return 0

    def unplaced(self) -> int:
        return 0


@dataclass(slots=True)
class StubCalls(pool.Calls):
    """Calls of seats."""

    job: Job
    seats: int
    machine_s: float
    clock: Clock
    template: Template
    due: list[float] = field(default_factory=list)  # heap of when calls are answered
    leases: int = 0
    began: tuple[float, float] = (0.0, 0.0)  # of the clock at the first lease: CPU seconds, all seconds

    def start(self) -> Seat:
        return Seat()

    def ready(self, seat: Seat) -> Call:
        return self._call(self.clock.monotonic())

    def solve(self, seat: Seat, lease: Lease) -> Call:
        self.leases += 1
        if self.leases == 1:
            self.began = self.clock.computed_s(), self.clock.monotonic()
        seat.free_at = max(seat.free_at, self.clock.monotonic()) + self.machine_s * len(lease.asks)
        return self._call(seat.free_at)

    def _call(self, due: float) -> Call:
        heapq.heappush(self.due, due)
        return Call(due)

    def wait(self, calls: list[Call], timeout_s: float) -> list[Call]:
        """As pool.RayCalls does it: until the first, a little longer, then all that are due."""
        gather_s = min(pool.GATHER_S, pool.GATHER_PER_CALL_S * len(calls))
        until = self.due[0] if self.due else self.clock.monotonic() + timeout_s
        self.clock.sleep(min(timeout_s, until - self.clock.monotonic()))
        self.clock.sleep(gather_s)
        now = self.clock.monotonic()
        while self.due and self.due[0] <= now:
            heapq.heappop(self.due)
        return [call for call in calls if call.due <= now]

    def readiness(self, _call: Call) -> tuple[int, str, str, str]:
        return 0, "stub", "node", ""

    def done(self, call: Call, lease: Lease) -> Done:
        """The rows of the template, once per machine, as they arrive from an actor."""
        begun = time.process_time()
        packed = self.template.packed(lease, self.machine_s)
        self.clock.not_counted_s += time.process_time() - begun
        return unpack(self.job, lease, packed)

    def kill(self, seat: Seat) -> None:
        pass

    def cpus(self) -> int:
        return self.seats

    def free_cpus(self) -> int:
        return 0

    def unplaced(self) -> int:
        return 0

    def head_answers(self) -> bool:
        return True


def study(folder: Path, method: str, machines: int) -> Study:
    """A study of so many machines, of a space of 25 million."""
    path = folder / f"{method}-{machines}.yaml"
    path.write_text(STUDY.format(method=method, points=machines, workloads=LIGHT).replace(*CLOCKS))
    return studies.load(path)


@contextmanager
def stub_map(calls: StubCalls | RayCalls, run: driver.Run, *_: object) -> Iterator[driver.Map]:
    """In the place of driver._lease_map."""
    run.slots = calls.seats
    loop = pool.Pool(calls, None, calls.seats, partial(driver._log, run), run.worker_stats)
    yield partial(pool.over_actors, loop)


def measured(folder: Path, method: str, seats: int, machines: int, machine_s: float, of_ray: bool) -> None:
    """Runs a study over seats, and prints how busy they were and what the driver took."""
    one = study(folder, method, machines)
    job = job_of(one)
    template = Template(solve_lease(job, Lease(0, (Ask(0, 0, method),))).tables)
    memory_mb: list[float] = []

    def look(status: driver.Status) -> None:
        """Notes the memory after each tenth of the machines."""
        if status.done * 10 >= machines * (len(memory_mb) + 1):
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            memory_mb.append(pages * resource.getpagesize() / 1e6)

    with pool.cluster(None, 1) if of_ray else nullcontext():
        calls: StubCalls | RayCalls
        if of_ray:
            calls = RayCalls(job, seats, machine_s, template)
        else:
            calls = StubCalls(job, seats, machine_s, Clock(), template)
            driver.time = pool.time = calls.clock  # type: ignore[assignment]
            pool.MAX_STARTING = seats
        driver._lease_map = partial(stub_map, calls)
        found = driver.run(one, folder / f"run-{method}-{seats}", workers=seats, progress=look)
    now_s = time.monotonic() if of_ray else calls.clock.monotonic()
    cpu_s, whole_s = calls.clock.computed_s() - calls.began[0], now_s - calls.began[1]
    print(
        f"{method}, {seats} {'actors' if of_ray else 'seats'}, {found.solved} machines of {machine_s:g} s in "
        f"{calls.leases} leases: {whole_s:.1f} s, {found.solved * machine_s / whole_s / seats:.1%} busy; the "
        f"driver computes {cpu_s:.2f} s, {1e3 * cpu_s / calls.leases:.3f} ms a lease, "
        f"{calls.leases / cpu_s:,.0f} a second; memory after each tenth "
        f"{' '.join(f'{size:.0f}' for size in memory_mb)} MB",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seats", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--leases", type=int, default=20, help="seconds of work per seat")
    parser.add_argument("--machine-s", type=float, default=0.5)
    parser.add_argument("--method", default="random")
    parser.add_argument("--short", action="store_true", help="leases of one second, whatever the seats")
    parser.add_argument("--ray", type=int, default=0, help="as many actors of Ray instead of seats")
    given = parser.parse_args()
    if given.short:
        driver.LEASE_COST_S = 0.0
    with tempfile.TemporaryDirectory(prefix="dse-bench-") as folder:
        for seats in [given.ray] if given.ray else given.seats:
            machines = int(seats * given.leases / given.machine_s)
            measured(Path(folder), given.method, seats, machines, given.machine_s, bool(given.ray))


if __name__ == "__main__":
    main()
