"""One run: ask the sampler for machines, dispatch them to workers, commit their rows, report progress. The
map that solves leases is an argument: without Ray it is the builtin `map`, in the same loop.

Generation g is asked when all generations <= g-2 are complete, and depends on the trials of these alone. Its
asks are on disk before any of its machines is dispatched. A resume reads asks and committed machines, and
solves the machines that have no rows. Longer than 400 lines: one loop whose parts share one state.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import signal
import socket
import threading
import time
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import FrameType
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cluster import store as stores
from cluster.run_state import RunState, count_values, undone_rows
from cluster.store import RunFault, Store
from cluster.worker import (
    Ask,
    Done,
    Job,
    Lease,
    Row,
    event,
    failed,
    is_batched_job,
    job_of,
    pruned,
    solve_lease,
    structural_axes,
    tables_of,
)
from dse.run import folder
from dse.run.installed import shadowing
from dse.study import packed_columns, plan
from dse.study import study as studies
from dse.study.plan import Asks
from dse.study.prune import static_violations
from dse.study.sampler import block, enumerated, permutation
from dse.study.study import Study
from hw.columns import group_equal_rows
from workloads.arrays import Ints

LEASE_S = 1.0  # seconds of work per lease: the call of an actor costs 1 ms (cluster/pool.py)
MAX_PER_LEASE = 4096  # machines
BATCH = 32  # machines in a lease at least, where that many differ in prices, rates and clock alone
SAMPLED = 256  # machines per row group whose keys a resume checks
COMMIT_S = 5.0  # seconds between commits
COMMIT_ROWS = 200_000  # a commit comes earlier once so many rows wait in memory
REPORT_S = 1.0  # seconds between progress reports
PROBES, PROBE_S = 20, 30.0  # machines that a dry run solves; seconds after which it begins no further one
START_S = 10.0  # seconds that Ray and its actors take to start
ROW_BYTES = 40  # bytes on disk of one row of any table in a merged part; measured 15 to 60
MAX_TEXT_BYTES = 1 << 18  # bytes: env.json has a copy of input files up to this size
PACKAGES = ("ray", "optuna", "duckdb", "pyarrow", "numpy", "numba", "scipy", "moocore")
Map = Callable[[Iterator[Lease | None]], Iterator[Done | None]]


@dataclass(frozen=True, slots=True)
class Status:
    """State of a run, as status.json has it."""

    state: str  # running, finished, interrupted or failed
    reason: str
    done: int  # machines with rows, over all sessions; the next four counts are by status
    ok: int
    infeasible: int
    pruned: int
    error: int
    planned: int  # machines that the whole run asks for
    generation: int  # generations asked so far
    workers: int
    rate: float  # machines per second in this session
    left_s: float | None  # seconds left; None: unknown or not running
    seconds: float  # wall-clock seconds of all sessions
    front: int  # points on the front
    hypervolume: float  # of the front, in the box of all feasible points, on logarithmic axes
    time: float  # when it was written, seconds since 1970
    process: str
    published: int  # generation of the manifest
    notes: tuple[str, ...]  # what a user should look at: files put away, clock changes


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended."""

    status: Status
    solved: int  # machines solved in this session

    @property
    def exit_code(self) -> int:
        """0 for a finished run without failed machines, else 1."""
        return 0 if self.status.state == "finished" and not self.status.error else 1


@dataclass(slots=True)
class Run:
    """State of the loop."""

    job: Job
    store: Store
    state: RunState
    slots: int = 1  # actors, or 1 in-process
    # axes on which machines must agree to be solved together; None: each is solved by itself
    structural_axes: list[int] | None = None
    # generations in order; complete ones that can be recomputed are stored without machines
    asks: list[Asks] = field(default_factory=list)
    asked: int = 0  # machines asked for
    violating: int = 0  # machines pruned because they break a constraint that needs no solving
    todo: deque[Ask] = field(default_factory=deque)  # asked for, not dispatched yet
    missing: list[int] = field(default_factory=list)  # per generation: machines that have no row yet
    complete: int = 0  # how many generations are complete, counted from the first one
    # tables that are not committed yet, one mapping (name -> table) per lease
    batches: list[dict[str, pa.Table]] = field(default_factory=list)
    rows: int = 0  # rows in these tables
    events: list[Row] = field(default_factory=list)  # rows of the table events to commit
    notes: list[str] = field(default_factory=list)
    end: str = ""  # why no further generation is asked
    halt: str = ""  # why nothing further is dispatched
    looping: bool = False  # whether leases are in flight
    leases: int = 0  # leases dispatched
    pace_s: float = 0.0  # seconds per machine, moving average; 0: unknown
    solved: int = 0  # machines solved in this session
    before_s: float = 0.0  # wall-clock seconds of earlier sessions
    started: float = 0.0  # time.monotonic() at the start
    # time.monotonic() when work on the first result began; actors start before; 0: none yet
    last_done: float = 0.0
    clock: float = 0.0  # time.time() - time.monotonic() at the start, to notice that the clock was set back
    committed: float = 0.0  # time.monotonic() of the last commit
    reported: float = 0.0  # time.monotonic() of the last report
    last_note: Status | None = None  # as last reported

    def seconds(self) -> float:
        """Wall-clock seconds of the run so far, earlier sessions included."""
        return self.before_s + time.monotonic() - self.started


def run(
    study: Study,
    out: Path,
    workers: int | None = None,
    address: str | None = None,
    progress: Callable[[Status], None] | None = None,
    restored: Sequence[str] = (),
) -> Outcome:
    """Starts a run in the folder `out`, or continues the one that is there.

    workers: actors; 0: in-process; None: the study's number, else one per CPU
    address: of a Ray cluster; None: a local one is started
    restored: lines to note, about files that were restored

    Raises ValueError if `out` belongs to another study (one line per key that changed), RunFault if the run
    cannot continue.
    """
    if line := shadowing():
        raise RunFault(line)
    _same_study(study, out)
    store, lines = stores.open_run(out, folder.digest(studies.identity(study)))
    try:
        run = _open(study, store, [*restored, *lines])
        report = partial(_report, run, progress)
        try:
            _read_back(run)
        except (KeyError, TypeError, AttributeError, pa.ArrowException) as fault:
            why = " ".join(str(fault).split())[:200]
            raise stores.StoreFault(
                f"{out}: its rows are not those of this study's tables ({why}); give another --out"
            ) from fault
        report("running", "starting")
        begun = f"stop {json.dumps(asdict(study.stop))}, {run.state.counts.total()} machines done"
        run.events.append(event("resume" if run.state.counts or run.asks else "start", begun))
        _ask(run)
        workers = study.workers if workers is None else workers
        if run.todo or not run.end:
            with _interruptible(run, progress) as listen:
                report("running", "starting actors" if workers != 0 else "")
                with _mapper(run, workers, address) as mapped:
                    listen()  # again: Ray takes SIGTERM when it starts
                    _loop(run, mapped, report)
        return _finish(run, report)
    finally:
        stores.close(store)


def resume(
    out: Path,
    workers: int | None = None,
    address: str | None = None,
    progress: Callable[[Status], None] | None = None,
) -> Outcome:
    """Continues the run in a folder, with the study that is stored there."""
    restored = stores.mend(out)
    return run(studies.load(out / folder.STUDY, within=out), out, workers, address, progress, restored)


def dry_run(study: Study, workers: int | None = None) -> dict[str, Any]:
    """Estimates time, disk and memory of a run from up to PROBES random machines of the space, solved
    in-process.

    Fewer are solved if they take longer than PROBE_S, or if machines share mappings or schedules: then only
    those of one group.
    """
    job, size = job_of(study), study.space.size
    chosen = permutation(size, study.search.seed, np.arange(min(PROBES, size), dtype=np.int64)).tolist()
    may = tuple(
        Ask(m, 0, "probe")
        for m in chosen
        if all(v <= 0 for v in static_violations(study.space, m, study.constraints))
    )
    kept, began = len(may) / len(chosen), time.monotonic()
    asks, tables = _prepare(job, may)
    prepared, began = (time.monotonic() - began) * tables, time.monotonic()
    solved: list[Done] = []
    for ask in asks:
        if solved and time.monotonic() - began > PROBE_S:
            break
        solved.append(solve_lease(job, Lease(0, (ask,))))
    points = study.stop.machines
    machines = round(size * kept) if points is None else min(points, round(size * kept))
    # where machines are priced as arrays, the time of a single one says little: solve a full lease
    timed = [_many(job, asks[0].machine)] if job.batches and tables else solved
    probed = max(1, sum(len(done.lease.asks) for done in timed))
    each_s = sum(done.seconds for done in timed) / probed
    rows = sum(table.num_rows for done in timed for table in done.tables.values()) / probed
    feasible = sum(done.tables["machines"]["status"].to_pylist() == ["ok"] for done in solved)
    slots = workers or study.workers or os.cpu_count() or 1
    # shared mappings of a group are found by one worker, shared schedules by every worker
    times = 1 if job.batches else slots
    probes = f"{len(chosen)}: {len(chosen) - len(may)} pruned, {feasible} solved, "
    probes += f"{len(solved) - feasible} infeasible or failed"
    if len(solved) < len(asks):
        probes += f", {len(asks) - len(solved)} left out after {PROBE_S:.0f} s"
    if len(asks) < len(may):
        probes += f", {len(may) - len(asks)} of other schedules left out"
    shared: dict[str, Any] = {}
    if tables:
        what, where = ("mappings", "") if job.batches else ("schedules", " in every worker")
        shared["shared"] = (
            f"{tables} groups of about {size // tables} machines share {what}, found once{where}"
        )
        shared["shared_s"] = prepared
    return {
        "machines_in_space": size,
        "machines_to_solve": machines,
        "unique_einsums": len({group.key for groups in job.uniques for group in groups}),
        "probes": probes,
        **shared,
        "machine_s": each_s,
        "core_s": prepared * times + machines * each_s,
        "workers": slots,
        "whole_s": START_S * (workers != 0) + prepared * times / slots + machines * each_s / slots,
        "disk_mb": _short(machines * rows * ROW_BYTES / 1e6),
        "memory_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


def _prepare(job: Job, asks: tuple[Ask, ...]) -> tuple[tuple[Ask, ...], int]:
    """Warms up: loads the kernels by solving one machine and, where machines share mappings or schedules,
    finds those of one group.

    Returns the probes whose machines belong to that group, and how many groups of its size the space has; all
    probes and 0 if machines share nothing.
    """
    for ask in asks:
        solve_lease(job, Lease(0, (ask,)))
        if not job.study.solver.sharing_gap:
            break
        if job.batches and (found := list(job.batches.of(np.array([one.machine for one in asks], np.int64)))):
            block, own = max(found, key=lambda one: len(one[1]))
            block.solved_tables()
            return tuple(asks[i] for i in own.tolist()), -(-job.study.space.size // len(block.machines))
        for known in job.shared_schedules.values():
            return tuple(one for one in asks if one.machine in known), -(-job.study.space.size // len(known))
    return asks, 0


def _many(job: Job, machine: int) -> Done:
    """Solves a lease of machines that share mappings with `machine`."""
    assert job.batches
    block, _ = next(job.batches.of(np.array([machine])))
    return solve_lease(
        job, Lease(0, tuple(Ask(one, 0, "probe") for one in block.machines[:MAX_PER_LEASE].tolist()))
    )


def _short(value: float) -> float:
    """Rounds to three significant digits."""
    return float(f"{value:.3g}")


def _same_study(study: Study, out: Path) -> None:
    """Raises ValueError if the folder belongs to a run with another model, space or solver, by env.json.

    Where env.json is lost or belongs to another run, `stores.open_run` decides by the other files.
    """
    known, identity = stores.unseal(out / folder.ENV, "env"), studies.identity(study)
    lines = (
        studies.changes(known["identity"], identity)
        if known and isinstance(known.get("identity"), dict)
        else []
    )
    own = folder.digest(identity)
    if lines and own not in folder.identities(out, own).values():
        raise ValueError("\n".join(f"{out}: {line}; give another --out" for line in lines))


def _open(study: Study, store: Store, lines: list[str]) -> Run:
    out, identity = store.path, studies.identity(study)
    if store.groups and folder.env(out, stores.manifest(store)) is None:
        lines = [*lines, f"{out / folder.ENV}: lost or damaged; written anew"]
    job = job_of(study)
    _write_head(study, identity, out)
    store, now = stores.with_identity(store, folder.digest(identity)), time.monotonic()
    alike = (
        job.batches.structural_axes
        if job.batches
        else structural_axes(study.space)
        if is_batched_job(job)
        else None
    )
    run = Run(
        job,
        store,
        RunState(study),
        structural_axes=alike,
        started=now,
        clock=time.time() - now,
        committed=now,
    )
    _note(run, "quarantine", *lines)
    last = folder.status(out, store.identity) or {}
    seconds, then = (
        value if isinstance(value := last.get(key), int | float) else 0.0 for key in ("seconds", "time")
    )
    run.before_s = float(seconds)
    if (behind := float(then) - time.time()) > 60:
        _note(
            run,
            "clock",
            f"the clock is {behind:.0f} s behind the last session's; order and durations do not depend on it",
        )
    return run


def _write_head(study: Study, identity: dict[str, str], out: Path) -> None:
    """Writes env.json, study.yaml and the study's input files, each only if its content differs. env.json has
    the length, checksum and (of text) a copy of each file.
    """
    files = studies.files(study)
    listed = {name: [len(data), zlib.crc32(data), _text(data)] for name, data in files.items()}
    env = {
        "identity": identity,
        "files": listed,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": _versions(),
    }
    with stores.as_store_fault(out):
        for name, data in {folder.ENV: folder.seal("env", env), **files}.items():
            path = out / name
            if not path.exists() or path.read_bytes() != data:
                folder.make(path.parent)
                folder.write_bytes(path, data)


def _text(data: bytes) -> str | None:
    """Returns a file's text as env.json stores it; None if it is too large or binary."""
    with suppress(UnicodeDecodeError):
        return data.decode() if len(data) <= MAX_TEXT_BYTES else None
    return None


def _versions() -> dict[str, str]:
    found = {}
    for name in ("dse", *PACKAGES):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _read_back(run: Run) -> None:
    """Restores the state from committed rows and asks. Rows of machines that a deadline, memory or a lost
    actor left undone are retracted, and so are machines with duplicate rows.
    """
    rows, broken, left = _count_committed(run)
    if twice := _repeated(run):
        listed = ", ".join(map(str, twice[:6])) + f", ... ({len(twice)})" * (len(twice) > 6)
        _note(
            run,
            "quarantine",
            f"{run.store.path}: machine {listed}: rows stand twice, of several runs perhaps; they are "
            "removed, and the machines solved again",
        )
    if left or twice:
        run.store = stores.retract(run.store, {*left, *twice})
        rows, broken, _ = _count_committed(run)
    study, asked = run.job.study, []
    for number in range(len(list((run.store.path / "asks").glob("*.json")))):
        first, last = block(study.search, study.space.size, number)
        # a complete generation whose machines follow from its number: its asks need not be read
        if enumerated(study.search) and rows[number] == last - first and _asks_path(run, number).exists():
            run.state.close(number)
            asked.append(Asks(number, (), (), (), 0, ()))
            continue
        value = folder.unseal(_asks_path(run, number), "asks")
        asks = plan.from_data(value, study.space.size) if value else None
        if asks is None or asks.generation != number:
            break
        asked.append(asks)
    for part in stores.batches(run.store, run.state.columns()):
        _learn(run, part["machines"], part.get("points"))
    for asks in asked:
        _queue(run, asks, rows[asks.generation] - broken[asks.generation], broken[asks.generation])


def _count_committed(run: Run) -> tuple[Counter[int], Counter[int], list[int]]:
    """Returns (committed machines per generation; those of them, per generation, that were pruned by a
    constraint that needs no solving; machines that a deadline, memory or a lost actor left undone).
    """
    rows, broken, left = Counter[int](), Counter[int](), list[int]()
    for part in stores.batches(
        run.store, {"machines": ["machine", "key", "generation", "status", "reason", "dominated_by"]}
    ):
        machines = part["machines"]
        _same_keys(run, machines)
        of_constraints = pc.and_(pc.equal(machines["status"], "pruned"), pc.is_null(machines["dominated_by"]))
        rows.update(dict(count_values(machines["generation"])))
        broken.update(dict(count_values(machines["generation"].filter(of_constraints))))
        failed = machines.filter(pc.equal(machines["status"], "error"))
        left += failed["machine"].filter(undone_rows(failed)).to_pylist()
    return rows, broken, left


def _repeated(run: Run) -> list[int]:
    """Returns the machines that have two rows with the same key in machines or points."""
    machines, twice = [np.empty(0, np.int64)], set[int]()
    for part in stores.batches(run.store, {"machines": ["machine"], "points": ["machine", "schedule"]}):
        machines.append(part["machines"]["machine"].to_numpy())
        if "points" in part:
            twice.update(stores.repeated_machines("points", [part["points"]]))
    numbers = np.sort(np.concatenate(machines))
    return sorted(twice.union(numbers[1:][numbers[1:] == numbers[:-1]].tolist()))


def _same_keys(run: Run, machines: pa.Table) -> None:
    """Checks that rows belong to this study: each machine must have the key that the study gives it. Of many
    rows `SAMPLED` are checked. Raises StoreFault.
    """
    chosen = np.unique(
        np.linspace(0, machines.num_rows - 1, min(SAMPLED, machines.num_rows)).astype(np.int64)
    )
    own = machines.select(["machine", "key"]).take(pa.array(chosen))
    numbers, keys = np.array(own["machine"].to_pylist(), np.int64), own["key"].to_pylist()
    inside = bool(len(numbers)) and numbers.min() >= 0 and numbers.max() < run.job.study.space.size
    expected = run.job.pruner.keys(run.job.pruner.table.digits(numbers)) if inside else [None] * len(keys)
    for machine, key, right in zip(numbers.tolist(), keys, expected, strict=True):
        if key != right:
            raise stores.StoreFault(
                f"{run.store.path}: machine {machine} has the key {key}, which is none of this study; the "
                "rows are of another one, give another --out"
            )


def _learn(run: Run, machines: pa.Table, points: pa.Table | None) -> None:
    run.state.learn(machines, points)
    run.halt = run.state.violated or run.halt


def _completed(run: Run) -> int:
    """Closes generations whose machines all have rows. Returns how many are complete, counted from the first
    one.
    """
    while run.complete < len(run.missing) and not run.missing[run.complete]:
        run.state.close(run.complete)
        if enumerated(run.job.study.search):
            run.asks[run.complete] = replace(run.asks[run.complete], asks=(), pruned=())
        run.complete += 1
    return run.complete


def _asks_path(run: Run, number: int) -> Path:
    return run.store.path / "asks" / stores.asks_name(number)


def _ask(run: Run) -> None:
    """Asks for all generations that may be asked now."""
    study = run.job.study
    while not run.end:
        number = len(run.asks)
        if _completed(run) < number - 1:
            return
        run.state.settle(number - 2)
        settled, hours = run.state.settled, run.seconds() / 3600
        run.end = plan.stop_reason(study.stop, run.asked, settled, study.objectives, hours) or ""
        if run.end:
            return
        asks = studies.generation(study, number, run.asks, settled, run.job.pruner.table)
        if asks is None:
            run.end = "every machine of the space is evaluated"
            return
        written = {"identity": run.store.identity} | {name: getattr(asks, name) for name in Asks.__slots__}
        with stores.as_store_fault(run.store.path):
            folder.write_bytes(_asks_path(run, number), folder.seal("asks", written))
        _queue(run, asks)


def _queue(run: Run, asks: Asks, asked: int = 0, broken: int = 0) -> None:
    """Queues the machines of a generation that have no rows yet. Machines that were pruned become rows at
    once.

    asked, broken: of a generation that is complete already: how many machines were dispatched, and how many
        broke a constraint
    """
    points, number = run.job.study.stop.machines, asks.generation
    left = None if points is None else max(0, points - run.asked)
    complete = number in run.state.closed_generations
    run.asked += asked if complete else len(asks.asks)
    run.violating += broken if complete else len(asks.pruned)
    wanted = [
        Ask(machine, number, source)
        for machine, source in asks.asks[:left]
        if not run.state.is_done(number, machine)
    ]
    run.asks.append(asks)
    run.missing.append(len(wanted))
    run.todo.extend(wanted[i] for i in np.argsort(_batches(run, wanted), kind="stable").tolist())
    rows = [
        pruned(run.job, Ask(machine, number, source), reason)["machines"][0]
        for machine, source, reason in asks.pruned
        if not run.state.is_done(number, machine)
    ]
    if rows:
        tables = tables_of(run.job, {"machines": rows})
        _learn(run, tables["machines"], None)
        _add(run, tables)


def _batches(run: Run, asks: Sequence[Ask]) -> Ints:
    """Returns a number per machine, equal for machines that may be solved together."""
    if run.structural_axes is None or not asks:
        return np.zeros(len(asks), np.int64)
    machines = np.array([ask.machine for ask in asks], np.int64)
    if run.job.batches:
        return run.job.batches.batches(machines)[0]
    return group_equal_rows(run.job.pruner.table.digits(machines)[:, run.structural_axes])[1]


def _leases(run: Run) -> Iterator[Lease | None]:
    """Yields leases while there are machines; None while the next generation waits for results."""
    while not run.halt:
        _ask(run)
        ready = _ready(run)
        if ready:
            yield _lease(run, ready)
        elif run.end and not run.todo:
            return
        else:
            yield None


def _ready(run: Run) -> int:
    """Returns how many machines of the queue may be dispatched. Where bounds prune machines, these are the
    machines of generations whose front is known.
    """
    if not run.job.study.search.prune:
        return len(run.todo)
    known = _completed(run) + 1
    return next((i for i, ask in enumerate(run.todo) if ask.generation > known), len(run.todo))


def _lease(run: Run, ready: int) -> Lease:
    """Takes a lease from the queue: about LEASE_S of work.

    It has more machines where these are solved together, fewer if otherwise not every actor could get two
    leases, and one until the pace is known.
    """
    fair = -(-ready // (2 * run.slots))
    size = max(1, min(fair, int(LEASE_S / run.pace_s) if run.pace_s else 1, MAX_PER_LEASE))
    if run.structural_axes is not None and run.pace_s and size < (most := min(fair, BATCH)):
        cells = _batches(run, [run.todo[i] for i in range(most)])
        size = max(size, int((cells == cells[0]).argmin()) or most)
    run.leases += 1
    asks = tuple(run.todo.popleft() for _ in range(size))
    fronts = (
        {number: run.state.front_before(number) for number in {ask.generation for ask in asks}}
        if run.job.study.search.prune
        else {}
    )
    return Lease(run.leases, asks, fronts)


@contextmanager
def _mapper(run: Run, workers: int | None, address: str | None) -> Iterator[Map]:
    """Yields the map that solves leases: in-process the builtin one, else one over Ray actors. Only the
    latter imports Ray.
    """
    if workers == 0:
        yield lambda leases: map(partial(solve_lease, run.job), cast(Iterator[Lease], leases))
        return
    from cluster import pool

    with pool.cluster(address, workers) as cpus:
        run.slots = workers or max(1, cpus)
        yield partial(
            pool.over_ray, run.job, workers if workers or address else run.slots, partial(_log, run)
        )


def _log(run: Run, actor: int, line: str) -> None:
    with suppress(OSError), open(run.store.path / "log" / f"actor-{actor:04d}.log", "a") as log:
        log.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {line}\n")


def _loop(run: Run, mapped: Map, report: Callable[..., Status]) -> None:
    """Accepts results as they finish. Solved machines are committed however the loop ends."""
    try:
        run.looping = True
        for done in mapped(_leases(run)):
            if done is not None:
                _accept(run, done)
            if run.rows >= COMMIT_ROWS or time.monotonic() - run.committed >= COMMIT_S:
                _commit(run)
            if time.monotonic() - run.reported >= REPORT_S:
                report("running")
    except KeyboardInterrupt:
        run.halt = "interrupted"
    except RunFault as fault:
        with suppress(stores.StoreFault):
            _commit(run)
        run.halt = str(fault)
        report("failed")
        raise
    finally:
        run.looping = False
    _commit(run)


def _accept(run: Run, done: Done) -> None:
    """Takes the rows of a lease. Machines that have rows already are left out."""
    seconds = done.seconds / len(done.lease.asks)
    run.last_done = run.last_done or time.monotonic() - done.seconds
    if not done.lost:
        run.pace_s = seconds if not run.pace_s else 0.8 * run.pace_s + 0.2 * seconds
    again = [ask.machine for ask in done.lease.asks if run.state.is_done(ask.generation, ask.machine)]
    tables = dict(done.tables)
    if done.lost:
        each = [failed(run.job, ask, f"lost: {done.lost}; a resume tries again") for ask in done.lease.asks]
        rows = {table: [row for one in each for row in one[table]] for table in ("machines", "events")}
        tables = tables_of(run.job, rows)
    if again:
        tables = {name: _without(table, again) for name, table in tables.items()}
    for ask in done.lease.asks:
        if ask.machine not in again:
            run.missing[ask.generation] -= 1
            run.solved += 1
    _learn(run, tables["machines"], tables.get("points"))
    _add(run, tables)
    _limit(run)


def _without(table: pa.Table, machines: list[int]) -> pa.Table:
    if "machine" not in table.column_names:
        return table
    return table.filter(pc.invert(pc.is_in(table["machine"], pa.array(machines, pa.int64()))))


def _add(run: Run, tables: dict[str, pa.Table]) -> None:
    if "points" in tables:
        tables = tables | {"points": packed_columns.pack(tables["points"], tables["machines"])}
    run.batches.append(tables)
    run.rows += sum(table.num_rows for table in tables.values())


def _limit(run: Run) -> None:
    """Stops the run after limits.errors errors, or a fraction limits.error_fraction of the planned machines.
    By the fraction alone, one error is always allowed.
    """
    errors = run.state.counts["error"]
    limits = run.job.study.limits
    if errors >= limits.errors or errors > max(1.0, limits.error_fraction * _planned(run)):
        run.halt = (
            run.halt
            or f"{errors} machines ended in an error; see the table events, or raise limits in the study"
        )


def _commit(run: Run) -> None:
    if run.events:
        run.batches.append(tables_of(run.job, {"events": run.events}))
    if run.batches:
        run.store = stores.compact(stores.commit(run.store, run.batches))
    run.batches, run.events, run.rows, run.committed = [], [], 0, time.monotonic()


def _finish(run: Run, report: Callable[..., Status]) -> Outcome:
    if not run.halt and any(run.missing):  # a safeguard, never seen: a run with gaps is not finished
        run.halt = f"{sum(run.missing)} of the machines asked have no row; `dse resume` solves them"
    reason = run.halt or run.end + (
        "" if len(run.state.feasible) else f"; the front is empty: {run.state.why_empty()}"
    )
    state = "finished" if not run.halt else "interrupted" if run.halt.startswith("interrupted") else "failed"
    run.events.append(event("stop", reason))
    _commit(run)
    return Outcome(report(state, reason), run.solved)


def _note(run: Run, kind: str, *lines: str) -> None:
    run.notes.extend(lines)
    run.events.extend(event(kind, line) for line in lines)


def _planned(run: Run) -> int:
    stop, size = run.job.study.stop.machines, run.job.study.space.size
    return size if stop is None else min(stop, size)


def _report(run: Run, progress: Callable[[Status], None] | None, state: str, reason: str = "") -> Status:
    """Writes status.json and calls `progress`."""
    drift = time.time() - time.monotonic() - run.clock
    if drift < -60:
        run.clock += drift
        _note(
            run, "clock", f"the clock was set back by {-drift:.0f} s; order and durations do not depend on it"
        )
    count, done = run.state.counts, run.state.counts.total()
    here = time.monotonic() - (run.last_done or run.started)
    left = max(0, _planned(run) - done + (run.violating if run.job.study.stop.machines else 0))
    rate = run.solved / here if here > 0 else 0.0
    size, volume = run.state.front()
    status = Status(
        state=state,
        reason=reason or run.halt,
        done=done,
        ok=count["ok"],
        infeasible=count["infeasible"],
        pruned=count["pruned"],
        error=count["error"],
        planned=_planned(run),
        generation=len(run.asks),
        workers=run.slots,
        rate=rate,
        left_s=left / rate if rate and state == "running" else None,
        seconds=run.seconds(),
        front=size,
        hypervolume=volume,
        time=time.time(),
        process=f"{os.getpid()} on {socket.gethostname()}",
        published=run.store.generation,
        notes=tuple(run.notes),
    )
    written = {"identity": run.store.identity} | asdict(status)
    with stores.as_store_fault(run.store.path):
        folder.write_bytes(
            run.store.path / folder.STATUS, folder.seal("status", written), durable=state != "running"
        )
    run.reported, run.last_note = time.monotonic(), status
    if progress is not None:
        progress(status)
    return status


@contextmanager
def _interruptible(run: Run, progress: Callable[[Status], None] | None) -> Iterator[Callable[[], None]]:
    """Handles Ctrl-C and SIGTERM. The first one is reported at once; leases in flight finish and are
    committed. The second one stops immediately.

    Yields a function that installs the handlers again.
    """
    numbers = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.getsignal(number) for number in numbers}

    def on_signal(_signal: int, _frame: FrameType | None) -> None:
        if run.halt and run.looping:
            raise KeyboardInterrupt
        run.halt = run.halt or "interrupted; `dse resume` goes on"
        if progress and run.last_note:
            flying = sum(run.missing) - len(run.todo)
            what = (
                f"finishing {flying} machine{'s' * (flying != 1)}; again to stop now"
                if run.looping
                else "stopping"
            )
            with suppress(RuntimeError):  # the signal may have come while another line was being printed
                progress(replace(run.last_note, reason=f"interrupted; {what}"))

    def listen() -> None:
        for number in numbers:
            signal.signal(number, on_signal)

    listen()
    try:
        yield listen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
