"""One run: ask the sampler for machines, dispatch them to workers, commit their rows, report progress. The
map that solves leases is an argument: without Ray it is the builtin `map`, in the same loop.

Generation g is asked when all generations <= g-2 are complete, and depends on the trials of these alone. Its
asks are on disk before any of its machines is dispatched. A resume reads asks and committed machines, and
solves the machines that have no rows. The file is longer than the usual 400 lines because it is one loop
whose parts share one state.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache, partial
from importlib.metadata import PackageNotFoundError, version
from itertools import islice, takewhile
from math import prod
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cluster import metrics, stopping, witness
from cluster import store as stores
from cluster.run_state import RunState, Solving, WorkerStats, count_values, undone_rows
from cluster.sink import Sink
from cluster.store import RunFault, Store
from cluster.time_left import PrunedPace
from cluster.utilization import foreseen_utilization
from cluster.worker import (
    Ask,
    Done,
    Job,
    Lease,
    Row,
    batches_of,
    error_rows,
    event,
    job_of,
    pruned_rows,
    solve_lease,
    solves_together,
    structural_axes,
    tables_of,
)
from dse.run import doing, folder, record
from dse.run.folder import Group
from dse.run.installed import shadowing_fault
from dse.solve.solve import load_kernels
from dse.study import packed_columns, plan
from dse.study import study as studies
from dse.study.best_first import BestFirst
from dse.study.plan import Asked, Generation
from dse.study.prune import static_violations
from dse.study.sampler import generation_range, is_enumerated, optuna_fault, permutation
from dse.study.study import Study
from hw.columns import group_equal_rows
from workloads import plugin
from workloads.arrays import Ints

if TYPE_CHECKING:
    from cluster.objects import Publisher

LEASE_S = 1.0  # seconds of work per lease at least, where there are machines enough
# seconds of the driver per lease (Ray's calls 1 ms, the rest 0.4: bench/seats.py), and the share of its time
# that leases may take: with more than 333 workers (LEASE_S x DRIVER_SHARE / LEASE_COST_S), leases are longer
LEASE_COST_S, DRIVER_SHARE = 1.5e-3, 0.5
# logs are written every LOG_COST_S x actors seconds, but at least every LOG_S
LOG_COST_S, LOG_S = 0.03, 30.0
SETTLE_S = 0.1  # seconds between calls of `_settle`, which reads the rows of leases that have come in
MAX_PER_LEASE = 4096  # machines in a lease at most
# machines in a lease at least, if that many differ in prices, rates and clock alone (one batch)
MIN_BATCHED_LEASE = 32
KEYS_CHECKED = 256  # machines per row group whose keys a resume checks
COMMIT_S = 5.0  # seconds between commits
COMMIT_ROWS = 200_000  # a commit comes earlier once this many rows wait in memory
TAKEN_S = 60.0  # seconds that a signal may wait for the main thread
# the time left is estimated once each worker has solved so many machines, or this share of all is done
ESTIMATE_MACHINES, ESTIMATE_SHARE = 10, 0.05
REPORT_S = 1.0  # seconds between progress reports
# the rate is that of so many seconds, if so many machines a worker were solved in them
RATE_S, RATE_MACHINES = 60.0, 8
PROBES, PROBE_S = 20, 4.0  # machines that a dry run solves; seconds after which it begins no further one
PREPARE_S = 12.0  # seconds that a dry run waits for its first machine, and for schedules that machines share
# seconds after which a dry run begins no further batch of machines that share mappings, if it has MIN_BATCHES
# (few say little: some take five times as long as others); and after which it waits for no more
BATCHES_S, MIN_BATCHES, LAST_BATCH_S = 20.0, 12, 60.0
PROBE_THREAD = "dse probe"
MIN_UTILIZATION = 0.9  # a dry run that foresees less says what the workers wait for
START_S, START_CORE_S = 10.0, 8.0  # seconds that Ray and its actors take to start, and of all cores
DRIVER_S = 15e-6  # CPU seconds of the driver per machine, where machines are not solved one by one
RAY_MB = 35  # memory that Ray takes in a worker
ROW_BYTES = 40  # bytes on disk of one row of any table in a merged part; measured 15 to 60
# file, and its bytes, that is removed where a full disk does not take the last status.json
RESERVE, RESERVE_BYTES = ".reserve", 1 << 14
MAX_TEXT_BYTES = 1 << 18  # bytes: env.json has a copy of input files up to this size
PACKAGES = ("ray", "optuna", "duckdb", "pyarrow", "numpy", "numba", "scipy", "moocore")
Map = Callable[[Iterator[Lease | None]], Iterator[Done | None]]


@dataclass(frozen=True, slots=True)
class Status:
    """State of a run, as status.json has it."""

    study: dict[str, Any]  # name, workloads, machine, axes (key -> number of values), machines of the space
    state: str  # running, finished, interrupted or failed
    reason: str
    done: int  # machines with rows, over all sessions; the next four counts are by status
    ok: int
    infeasible: int
    pruned: int
    error: int
    planned: int  # machines that the whole run asks for
    generation: int  # generations asked so far
    workers: int  # wanted
    workers_live: int  # that answer now
    workers_busy: int  # those of them that have a lease
    nodes: int  # nodes of the Ray cluster whose workers took leases in this session
    nodes_lost: int  # those of them that had no worker that answers when last looked at
    waiting: str  # what workers that were asked for wait for; "": nothing
    solving: tuple[Solving, ...]  # leases that workers have longest, these first
    machine_limit_s: float | None  # limits.seconds
    address: str  # of the Ray cluster that the run joined; "": it started one, or solves in its own process
    rate: float  # machines per second: of the last minute, at first of this session
    left_s: float | None  # seconds left; None: unknown or not running
    seconds: float  # wall-clock seconds of all sessions
    worker_time_s: float  # seconds that workers spent on leases in this session: about their CPU seconds
    utilization: float  # share of the workers' time spent on leases in this session
    queue: int  # machines asked for, not dispatched yet
    in_flight: int  # machines dispatched that have no row yet
    retries: int  # leases sent again in this session because their actor was lost
    cache_hits: int  # answers found in $DSE_CACHE in this session
    cache_misses: int  # answers that were not there, and were solved
    worst_gap: float  # largest optimality gap of a point
    front: int  # points on the front
    hypervolume: float  # of the front (pareto.boxed_hypervolume, the box: all feasible points)
    hypervolume_reference: dict[str, float]  # of the hypervolume: column of an objective -> value
    time: float  # when it was written, seconds since 1970
    process: str
    published: int  # generation of the manifest
    notes: tuple[str, ...]  # what a user should look at: files put away, clock changes, batches that failed

    @property
    def longest_s(self) -> float:
        """Seconds since when a worker has had the lease that is in flight longest; 0: none is."""
        return max(0.0, time.time() - self.solving[0].since) if self.solving else 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended."""

    status: Status
    solved: int  # machines solved in this session
    signal: int = signal.SIGINT  # of an interrupted run: SIGINT, SIGTERM or SIGHUP

    @property
    def exit_code(self) -> int:
        """0 for a finished run without failed machines; 128 + signal for an interrupted one, as shells have
        it (130: Ctrl-C); else 1.
        """
        if self.status.state == "interrupted":
            return 128 + self.signal
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
    generations: list[Generation] = field(default_factory=list)
    # machines of the generations, unless they are enumerated or chosen by bounds
    asked: Asked = field(default_factory=Asked)
    best_first: BestFirst | None = None  # of method bounds
    asked_count: int = 0  # machines asked for
    violating: int = 0  # machines pruned because they break a constraint that needs no solving
    # machines asked for and not dispatched yet, each with its batch (`_batches`)
    todo: deque[tuple[Ask, int]] = field(default_factory=deque)
    queued: dict[int, int] = field(default_factory=dict)  # generation -> its machines in `todo`
    missing: list[int] = field(default_factory=list)  # per generation: machines that have no row yet
    complete_count: int = 0  # how many generations are complete, counted from the first one
    # per lease that has come in since the last `_settle`: its rows by table name, and the group that its
    # worker wrote; None: the driver writes the rows
    accepted: list[tuple[Mapping[str, pa.RecordBatch], Group | None]] = field(default_factory=list)
    uncommitted: list[dict[str, pa.Table]] = field(default_factory=list)  # tables to commit
    # groups that workers wrote, to commit, each with the columns of its rows that are at hand
    written: list[tuple[Group, Mapping[str, pa.Table]]] = field(default_factory=list)
    merges: deque[tuple[Group, ...]] = field(default_factory=deque)  # groups that workers are to merge
    merging: set[str] = field(default_factory=set)  # names of groups that were in `merges`
    merged: list[tuple[tuple[Group, ...], Group]] = field(default_factory=list)  # (old, new), to commit
    uncommitted_rows: int = 0  # rows in `uncommitted` and `accepted`
    events: list[Row] = field(default_factory=list)  # rows of the table events to commit
    notes: list[str] = field(default_factory=list)
    batch_faults: int = 0  # batches in this session whose machines were solved one by one
    end_reason: str = ""  # why no further generation is asked
    halt_reason: str = ""  # why nothing further is dispatched
    signal: int = signal.SIGINT  # that interrupted the run
    is_looping: bool = False  # whether leases are in flight
    lease_count: int = 0  # leases dispatched
    accepted_count: int = 0  # leases that have come in
    pace_s: float = 0.0  # seconds per machine, moving average; 0: unknown
    solved: int = 0  # machines solved in this session
    earlier_s: float = 0.0  # wall-clock seconds of earlier sessions
    started_at: float = 0.0  # time.monotonic() at the start
    # time.monotonic() when work on the first result began; actors start before; 0: none yet
    first_work_at: float = 0.0
    # time.time() - time.monotonic() at the start, to notice that the clock was set back
    clock_offset_s: float = 0.0
    worker_stats: WorkerStats = field(default_factory=WorkerStats)
    settled_at: float = 0.0  # time.monotonic() of the last `_settle`
    log_lines: dict[int, list[str]] = field(default_factory=dict)  # actor -> lines to write into its log
    logged_at: float = 0.0  # time.monotonic() when they were last written
    # (time.monotonic(), machines solved in this session) of the reports of the last RATE_S seconds
    recent: deque[tuple[float, int]] = field(default_factory=deque)
    committed_at: float = 0.0  # time.monotonic() of the last commit
    reported_at: float = 0.0  # time.monotonic() of the last report
    last_status: Status | None = None  # as last reported
    pruned_pace: PrunedPace | None = None  # where bounds rule machines out
    publisher: Publisher | None = None  # publishes the folder elsewhere
    address: str = ""  # of the Ray cluster that was joined

    def seconds(self) -> float:
        """Wall-clock seconds of the run so far, earlier sessions included."""
        return self.earlier_s + time.monotonic() - self.started_at


def run(
    study: Study,
    out: Path,
    workers: int | None = None,
    address: str | None = None,
    progress: Callable[[Status], None] | None = None,
    restored: Sequence[str] = (),
    metrics_port: int | None = None,
    publisher: Publisher | None = None,
) -> Outcome:
    """Starts a run in the folder `out`, or continues the one that is there.

    workers: actors; 0: in-process; None: the study's number, else one per CPU
    address: of a Ray cluster; None: a local one is started
    restored: lines to note, about files that were restored
    metrics_port: of 127.0.0.1, where the status is served (cluster/metrics.py); None: nowhere
    publisher: of a run folder on a store, of which `out` is a copy (cluster/objects.py)

    Raises ValueError if `out` belongs to another study (one line per key that changed) or $DSE_CACHE is a
    URL, RunFault if the run cannot continue.
    """
    if line := shadowing_fault():
        raise RunFault(line)
    plugin.cache_root()  # in time: not a fault of each machine
    for one in study.plugins:
        plugin.function(one.key)
    if line := optuna_fault(study.search, study.objectives):
        raise ValueError(line)
    _check_study(study, out)
    workers = study.workers if workers is None else workers
    latest: list[Status] = []  # at most one

    def said(status: Status) -> None:
        latest[:] = [status]
        if progress:
            progress(status)

    # before there is a folder: both may be refused
    with (
        metrics.served(metrics_port, lambda: latest[0] if latest else None),
        _joined(address, workers) as cpus,
    ):
        return _run(study, out, workers, address, cpus, said, restored, publisher)


@contextmanager
def _joined(address: str | None, workers: int | None) -> Iterator[int | None]:
    """Joins the cluster at an address. Yields the number of its CPUs; None: none is to be joined."""
    if not address or workers == 0:
        yield None
        return
    from cluster import pool

    with pool.cluster(address, workers) as cpus:
        yield cpus


def _run(
    study: Study,
    out: Path,
    workers: int | None,
    address: str | None,
    cpus: int | None,
    progress: Callable[[Status], None],
    restored: Sequence[str],
    publisher: Publisher | None,
) -> Outcome:
    """`run`, on a cluster of so many CPUs that has been joined; None: one is started if it is needed."""
    store, lines = stores.open_run(out, folder.digest(studies.identity(study)))
    try:
        run = _open(study, store, [*restored, *lines])
        run.publisher, run.address = publisher, (address or "") if workers != 0 else ""
        if study.sink == "worker":
            run.job = replace(run.job, sink=_sink(run))
        report = partial(_report, run, progress)
        with stores.as_store_fault(out):
            folder.write_bytes(out / RESERVE, os.urandom(RESERVE_BYTES), durable=False)
        try:
            _read_back(run)
        except (KeyError, TypeError, AttributeError, pa.ArrowException) as fault:
            why = " ".join(str(fault).split())[:200]
            raise stores.StoreFault(
                f"{out}: its rows are not those of this study's tables ({why}); give another --out"
            ) from fault
        report("running", "starting")
        start_text = f"stop {json.dumps(asdict(study.stop))}, {run.state.counts.total()} machines done"
        run.events.append(event("resume" if run.state.counts or run.generations else "start", start_text))
        _ask(run)
        _publish(run)
        if run.todo or not run.end_reason:
            with _interruptible(run, progress):
                report("running", "starting actors" if workers != 0 else "")
                with _lease_map(run, workers, address, cpus, report) as lease_map:
                    _loop(run, lease_map, report)
        return _finish(run, report)
    finally:
        with suppress(OSError):
            (out / RESERVE).unlink(missing_ok=True)
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


def _no_answer(study: Study) -> str:
    """Returns that no machine was solved in time, and what takes less."""
    options = study.solver
    of = "what machines share" if options.sharing_gap else "a machine"
    waited = BATCHES_S + LAST_BATCH_S if options.sharing_gap and options.schedule == "unfused" else PREPARE_S
    less = [f"none: no answer of {of} within {waited:.0f} s", "a run says more after a minute"]
    if options.objective == "edp" and options.schedule != "unfused":
        less.append("objective edp searches three times, energy once")
    may_share = options.schedule == "unfused" or (options.schedule, options.objective) == ("fused", "energy")
    if may_share and options.objective != "front" and not options.sharing_gap:
        less.append("with solver.sharing_gap machines share searches")
    return "; ".join(less)


def dry_run(study: Study, workers: int | None = None, done: int = 0) -> dict[str, Any]:
    """Estimates time, disk and memory of a run from up to PROBES random machines of the space, solved
    in-process.

    Fewer are solved if they take longer than PROBE_S, or if machines share schedules: then only those of one
    group. Where the first machine, or what its group shares, takes longer than PREPARE_S, there is no
    estimate. Where machines share mappings, whole batches of them are solved, drawn at random
    (`_probe_batches`).

    done: machines that the run's folder has already
    """
    plugin.cache_root()  # raises if it is a URL
    job, size = job_of(study), study.space.size
    workers = study.workers if workers is None else workers
    slots = (os.cpu_count() or 1) if workers is None else max(1, workers)
    chosen = permutation(size, study.search.seed, np.arange(min(PROBES, size), dtype=np.int64)).tolist()
    admitted = tuple(
        Ask(m, 0, "probe")
        for m in chosen
        if all(v <= 0 for v in static_violations(study.space, m, study.constraints))
    )
    admitted_fraction = len(admitted) / len(chosen)
    known = {
        "machines_in_space": size,
        "machines_to_solve": max(0, min(study.stop.machines or size, round(size * admitted_fraction)) - done),
        "unique_einsums": len({group.key for groups in job.uniques for group in groups}),
    }
    machines = known["machines_to_solve"]
    batches, solved, asks = list[Batch](), list[Done](), admitted
    group_count, shared_s, core_s = 0, 0.0, 0.0
    if job.batch_index:
        _within(BATCHES_S + LAST_BATCH_S, partial(_probe_batches, job, admitted, batches))
        if admitted and not batches:
            return known | {"probes": _no_answer(study), "workers": slots}
        in_batches = max(1, sum(batch.machines for batch in batches))
        group_count = -(-size * len(batches) // in_batches)
        # batches hold the machines that constraints leave out, too
        times = machines / max(admitted_fraction, 1e-9) / in_batches
        shared_s = sum(batch.seconds for batch in batches) * times
        core_s = sum(batch.cpu_s for batch in batches) * times
        timed_leases = [batch.lease for batch in batches]
    else:
        began, prepared = time.monotonic(), list[tuple[tuple[Ask, ...], int, Done | None]]()
        _within(PREPARE_S, lambda: prepared.append(_prepare(job, admitted)))
        if not prepared:
            return known | {"probes": _no_answer(study), "workers": slots}
        asks, group_count, warm_up = prepared[0]
        shared_s, began = (time.monotonic() - began) * group_count, time.monotonic()
        solved = [warm_up] if warm_up and warm_up.seconds > PROBE_S else []
        for ask in asks[len(solved) :]:
            if solved and (warm_up in solved or time.monotonic() - began > PROBE_S):
                break
            solved.append(solve_lease(job, Lease(0, (ask,))))
        timed_leases = solved
    timed_machines = max(1, sum(len(done.lease.asks) for done in timed_leases))
    machine_s = sum(done.seconds for done in timed_leases) / timed_machines
    rows_per_machine = (
        sum(part.num_rows for done in timed_leases for part in done.tables.values()) / timed_machines
    )
    feasible = sum(done.tables["machines"]["status"].to_pylist() == ["ok"] for done in solved)
    # shared mappings of a group are found by one worker, shared schedules by every worker
    repeats = 1 if job.batch_index else slots
    probes = f"{len(chosen)}: {len(chosen) - len(admitted)} pruned, {feasible} solved, "
    probes += f"{len(solved) - feasible} infeasible or failed"
    if job.batch_index:
        found = [done.tables["machines"]["status"].to_pylist().count("ok") for done in timed_leases]
        probes = f"{len(batches)} batches of {timed_machines} machines: {sum(found)} solved, "
        probes += f"{timed_machines - sum(found)} infeasible or failed"
    elif len(solved) < len(asks):
        probes += f", {len(asks) - len(solved)} left out after {PROBE_S:.0f} s"
    if not batches and len(asks) < len(admitted):
        probes += f", {len(admitted) - len(asks)} of other schedules left out"
    utilization = foreseen_utilization(
        study, machines, [done.seconds / len(done.lease.asks) for done in solved] or [machine_s], slots
    )
    shared: dict[str, Any] = {}
    if study.depends_on_trials() and utilization < MIN_UTILIZATION:
        in_generation = study.search.generation_size(0)
        shared["idle"] = (
            f"workers wait for results: two generations of {in_generation} machines at most are in flight; "
            "give fewer workers, or a larger search.generation"
        )
    if group_count:
        what, where = ("mappings", "") if job.batch_index else ("schedules", " in every worker")
        shared["shared"] = (
            f"{group_count} groups of about {size // group_count} machines share {what}, found once{where}"
        )
        shared["shared_s"] = shared_s
    return known | {
        "probes": probes,
        **shared,
        "machine_s": machine_s,
        "core_s": START_CORE_S * (workers != 0)
        + (core_s + machines * DRIVER_S if job.batch_index else shared_s * repeats + machines * machine_s),
        "workers": slots,
        "utilization": _short(utilization),
        "whole_s": START_S * (workers != 0)
        + shared_s * repeats / slots
        + machines * machine_s / (slots * utilization),
        "disk_mb": _short(machines * rows_per_machine * ROW_BYTES / 1e6),
        "memory_mb_per_process": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        + RAY_MB * (workers != 0),
    }


class Batch(NamedTuple):
    """A batch of machines that share mappings, solved by a dry run."""

    machines: int
    seconds: float  # to find what they share
    lease: Done  # of its machines, once that is known
    cpu_s: float  # of one core, for both


def _within(seconds: float, call: Callable[[], None]) -> None:
    """Calls a function, and waits so many seconds for its end. Its thread then goes on until the process
    ends. Raises what the function raised till then.
    """
    faults: list[BaseException] = []

    def called() -> None:
        try:
            call()
        except BaseException as fault:
            faults.append(fault)

    thread = threading.Thread(target=called, daemon=True, name=PROBE_THREAD)
    thread.start()
    thread.join(seconds)
    if faults:
        raise faults[0]


def _probe_batches(job: Job, asks: tuple[Ask, ...], found: list[Batch]) -> None:
    """Solves the batches of machines drawn at random, each once, and adds them to `found`; after BATCHES_S
    it begins no further one, with fewer than MIN_BATCHES after LAST_BATCH_S.
    """
    assert job.batch_index
    load_kernels()
    began, seen = time.monotonic(), set[int]()
    for ask in asks:
        enough_s = BATCHES_S if len(found) >= MIN_BATCHES else LAST_BATCH_S
        if found and time.monotonic() - began > enough_s:
            return
        of_batch, cpu_s = time.monotonic(), time.thread_time()
        for answers, _ in job.batch_index.of(np.array([ask.machine], np.int64)):
            if (first := int(answers.machines[0])) in seen:
                continue
            seen.add(first)
            answers.solved_tables()
            seconds = time.monotonic() - of_batch
            lease = Lease(0, tuple(Ask(number, 0, "probe") for number in answers.machines.tolist()))
            done = solve_lease(job, lease)
            found.append(Batch(len(answers.machines), seconds, done, time.thread_time() - cpu_s))


def _prepare(job: Job, asks: tuple[Ask, ...]) -> tuple[tuple[Ask, ...], int, Done | None]:
    """Warms up: loads the kernels by solving one machine and, where machines share schedules, finds those of
    one group.

    Returns the probes whose machines belong to that group, how many groups of its size the space has, and
    None; if machines share nothing, all probes, 0 and the machine that was solved.
    """
    warm_up = None
    load_kernels()
    for ask in asks[:1]:
        warm_up = solve_lease(job, Lease(0, (ask,)))
        if not job.study.solver.sharing_gap:
            break
        for group in job.shared_schedules.values():
            count = -(-job.study.space.size // len(group))
            return tuple(one for one in asks if one.machine in group), count, None
    return asks, 0, warm_up


def _short(value: float) -> float:
    """Rounds to three significant digits."""
    return float(f"{value:.3g}")


def _check_study(study: Study, out: Path) -> None:
    """Raises ValueError if the folder belongs to a run with another model, space or solver, by env.json.

    Where env.json is lost or belongs to another run, `stores.open_run` decides by the other files.
    """
    env, identity = stores.unseal(out / folder.ENV, "env"), studies.identity(study)
    lines = (
        studies.changes(env["identity"], identity) if env and isinstance(env.get("identity"), dict) else []
    )
    digest = folder.digest(identity)
    if not lines or digest in folder.identities(out, folder.asks_of(out)).values():
        return
    written = env["identity"] if env else {}
    if not all(written.get(name) == identity[name] for name in folder.VERSIONS):
        # keys that one version alone has make no other study
        lines = [line for line in lines if "absent" not in line and not line.startswith(folder.VERSIONS)]
        raise ValueError(
            "\n".join(
                [
                    f"{out}: written by {folder.versions_text(written)}, this is "
                    f"{folder.versions_text(identity)}, and rows of different versions are not mixed; go on "
                    f"with the dse that wrote them, or solve again: dse run {out / folder.STUDY} --out NEW",
                    *(f"{out}: {line}" for line in lines),
                ]
            )
        )
    raise ValueError("\n".join(f"{out}: {line}; give another --out" for line in lines))


def _open(study: Study, store: Store, lines: list[str]) -> Run:
    """Returns the run before its rows are read; writes env.json, study.yaml and the study's input files.
    lines: to note.
    """
    out, identity = store.path, studies.identity(study)
    if store.groups and folder.env(out, stores.manifest(store)) is None:
        lines = [*lines, f"{out / folder.ENV}: lost or damaged; written anew"]
    job = job_of(study)
    _write_head(study, identity, out)
    store, now = stores.with_study(store, folder.digest(identity)), time.monotonic()
    batch_axes = (
        job.batch_index.family_axes
        if job.batch_index
        else structural_axes(study.space)
        if solves_together(job)
        else None
    )
    run = Run(
        job,
        store,
        RunState(study),
        structural_axes=batch_axes,
        started_at=now,
        clock_offset_s=time.time() - now,
        committed_at=now,
        pruned_pace=PrunedPace(job.pruner) if job.pruner.applies() and not job.batch_index else None,
        best_first=_best_first(job) if study.search.method == "bounds" else None,
    )
    _note(run, "quarantine", *lines)
    old_status = folder.status(out, store.identity) or {}
    seconds, written_at = (
        value if isinstance(value := old_status.get(key), int | float) else 0.0 for key in ("seconds", "time")
    )
    run.earlier_s = float(seconds)
    if (behind_s := float(written_at) - time.time()) > 60:
        _note(
            run,
            "clock",
            f"the clock is {behind_s:.0f} s behind the last session's; order and durations do not "
            "depend on it",
        )
    return run


def _best_first(job: Job) -> BestFirst:
    """Returns the machines of the space, none of them asked for, with their bounds."""
    space = job.study.space
    machines = np.arange(space.size, dtype=np.int64)
    batch_of = machines
    if solves_together(job):
        batch_of = np.zeros(space.size, np.int64)
        for at in structural_axes(space):
            stride = prod(len(axis.values) for axis in space.axes[at + 1 :])
            batch_of = batch_of * len(space.axes[at].values) + machines // stride % len(space.axes[at].values)
    return BestFirst(job.study.search, job.pruner.objective_bounds(machines), batch_of)


def _sink(run: Run) -> Sink:
    """Returns where workers write parts."""
    path, publisher = run.store.path.absolute(), run.publisher
    needed = run.state.columns()
    remote, claim = (publisher.remote, publisher.claim_name) if publisher else (None, "")
    return Sink(path, run.store.identity, needed, (path / folder.LOCK).read_bytes(), remote, claim)


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
                folder.make_folder(path.parent)
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
    row_counts, violating, undone = _count_committed(run)
    if repeated := _repeated_machines(run):
        listed = ", ".join(map(str, repeated[:6])) + f", ... ({len(repeated)})" * (len(repeated) > 6)
        _note(
            run,
            "quarantine",
            f"{run.store.path}: machine {listed}: rows stand twice, of several runs perhaps; they are "
            "removed, and the machines solved again",
        )
    if undone or repeated:
        run.store = stores.retract(run.store, {*undone, *repeated})
        row_counts, violating, _ = _count_committed(run)
    study, generations = run.job.study, []
    for number in range(len(list((run.store.path / "asks").glob("*.json")))):
        first, last = generation_range(study.search, study.space.size, number)
        # the generation is complete and its machines follow from its number: its asks need not be read
        if (
            is_enumerated(study.search)
            and row_counts[number] == last - first
            and _asks_path(run, number).exists()
        ):
            run.state.close(number)
            generations.append(Generation(number, (), (), (), 0, ()))
            continue
        value = folder.unseal(_asks_path(run, number), "asks")
        generation = plan.from_data(value, study.space.size) if value else None
        if generation is None or generation.generation != number:
            break
        generations.append(generation)
    for part in stores.row_groups(run.store, run.state.columns()):
        _learn(run, part["machines"], part.get("points"))
    for generation in generations:
        _queue(
            run,
            generation,
            row_counts[generation.generation] - violating[generation.generation],
            violating[generation.generation],
        )


def _count_committed(run: Run) -> tuple[Counter[int], Counter[int], list[int]]:
    """Returns (committed machines per generation; those of them, per generation, that were pruned by a
    constraint that needs no solving; machines that a deadline, memory or a lost actor left undone).
    """
    row_counts, violating, undone = Counter[int](), Counter[int](), list[int]()
    for tables in stores.row_groups(
        run.store, {"machines": ["machine", "key", "generation", "status", "reason", "dominated_by"]}
    ):
        machines = tables["machines"]
        _check_keys(run, machines)
        is_violating = pc.and_(pc.equal(machines["status"], "pruned"), pc.is_null(machines["dominated_by"]))
        row_counts.update(dict(count_values(machines["generation"])))
        violating.update(dict(count_values(machines["generation"].filter(is_violating))))
        errors = machines.filter(pc.equal(machines["status"], "error"))
        undone += errors["machine"].filter(undone_rows(errors)).to_pylist()
    return row_counts, violating, undone


def _repeated_machines(run: Run) -> list[int]:
    """Returns the machines that have two rows with the same key in machines or points. A machine's points are
    of the same group as its row.
    """
    of_machines = stores.rows_by_part(run.store, "machines", ["machine"])
    of_points = stores.rows_by_part(run.store, "points", ["machine", "schedule"])
    repeated = set[int]()
    for rows in of_points:
        machines, schedules = (rows[name].to_numpy() for name in ("machine", "schedule"))
        repeated.update(folder.repeated_machines(machines, schedules).tolist())
    numbers = [np.empty(0, np.int64), *(rows["machine"].to_numpy() for rows in of_machines)]
    return sorted(repeated.union(folder.repeated_machines(np.concatenate(numbers)).tolist()))


def _check_keys(run: Run, machines: pa.Table) -> None:
    """Checks that rows belong to this study: each machine must have the key that the study gives it. At most
    `KEYS_CHECKED` of the rows are checked, at even distances. Raises StoreFault.
    """
    chosen = np.unique(
        np.linspace(0, machines.num_rows - 1, min(KEYS_CHECKED, machines.num_rows)).astype(np.int64)
    )
    sample = machines.select(["machine", "key"]).take(pa.array(chosen))
    numbers, keys = np.array(sample["machine"].to_pylist(), np.int64), sample["key"].to_pylist()
    in_space = bool(len(numbers)) and numbers.min() >= 0 and numbers.max() < run.job.study.space.size
    expected = run.job.pruner.keys(run.job.pruner.table.digits(numbers)) if in_space else [None] * len(keys)
    for machine, key, expected_key in zip(numbers.tolist(), keys, expected, strict=True):
        if key != expected_key:
            raise stores.StoreFault(
                f"{run.store.path}: machine {machine} has the key {key}, which is none of this study; the "
                "rows are of another one, give another --out"
            )


def _learn(run: Run, machines: pa.Table, points: pa.Table | None) -> None:
    """Takes rows into the state in memory; if they contradict it, the run halts."""
    run.state.learn(machines, points)
    run.halt_reason = run.state.contradiction or run.halt_reason


def _close_complete(run: Run) -> int:
    """Closes generations whose machines all have rows. Returns how many are complete, counted from the first
    one.
    """
    while run.complete_count < len(run.missing) and not run.missing[run.complete_count]:
        _settle(run)
        run.state.close(run.complete_count)
        if run.best_first or is_enumerated(run.job.study.search):
            run.generations[run.complete_count] = replace(
                run.generations[run.complete_count], asks=(), pruned=()
            )
        run.complete_count += 1
    return run.complete_count


def _asks_path(run: Run, number: int) -> Path:
    return run.store.path / "asks" / stores.asks_name(number)


def _ask(run: Run) -> None:
    """Asks for all generations that may be asked now; where none depends on results, for as many as the next
    lease needs.
    """
    study = run.job.study
    while not run.end_reason:
        number, complete_count = len(run.generations), _close_complete(run)
        if not run.job.study.depends_on_trials():
            if len(run.todo) >= max(_full_size(run), MIN_BATCHED_LEASE):
                return
        elif complete_count < number - 1:
            return
        else:
            run.state.release_trials(number - 2)
        trials, hours = run.state.visible_trials, run.seconds() / 3600
        run.end_reason = plan.stop_reason(study.stop, run.asked_count, trials, study.objectives, hours) or ""
        if run.end_reason:
            return
        generation = studies.generation(
            study, number, run.asked, trials, run.job.pruner.table, run.best_first
        )
        if generation is None:
            run.end_reason = "every machine of the space is evaluated"
            return
        content = {"identity": run.store.identity} | {
            name: getattr(generation, name) for name in Generation.__slots__
        }
        with stores.as_store_fault(run.store.path, is_open=True):
            folder.write_bytes(_asks_path(run, number), folder.seal("asks", content))
        _queue(run, generation)


def _queue(run: Run, generation: Generation, dispatched: int = 0, violating: int = 0) -> None:
    """Queues the machines of a generation that have no rows yet. Machines that were pruned become rows at
    once.

    dispatched, violating: of a generation that is complete already: how many machines were dispatched, and
        how many broke a constraint
    """
    machine_limit, number = run.job.study.stop.machines, generation.generation
    remaining = None if machine_limit is None else max(0, machine_limit - run.asked_count)
    is_complete = number in run.state.closed_generations
    run.asked_count += dispatched if is_complete else len(generation.asks)
    run.violating += violating if is_complete else len(generation.pruned)
    wanted = [
        Ask(machine, number, source)
        for machine, source in generation.asks[:remaining]
        if not run.state.is_done(number, machine)
    ]
    run.generations.append(generation)
    if run.best_first:
        run.best_first.drop([row[0] for row in (*generation.asks, *generation.pruned)])
    elif not is_enumerated(run.job.study.search):
        run.asked.add(generation)
    run.missing.append(len(wanted))
    which, batches = _batches(run, wanted)
    order = np.argsort(which, kind="stable")
    run.todo.extend((wanted[i], batches[which[i]]) for i in order.tolist())
    run.queued[number] = len(wanted)
    rows = [
        pruned_rows(run.job, Ask(machine, number, source), reason)["machines"][0]
        for machine, source, reason in generation.pruned
        if not run.state.is_done(number, machine)
    ]
    if rows:
        tables = tables_of(run.job, {"machines": rows})
        _learn(run, tables["machines"], None)
        run.uncommitted.append(tables)
        run.uncommitted_rows += len(rows)


def _batches(run: Run, asks: Sequence[Ask]) -> tuple[Ints, list[int]]:
    """Returns (index of each machine's batch; the batches, as numbers). Machines of a batch may be solved
    together; it has the same number in every generation, so that its leases find who has solved others of it
    (`pool._slot_for`).
    """
    if run.structural_axes is None or not asks:
        return np.zeros(len(asks), np.int64), [0]
    machines = np.array([ask.machine for ask in asks], np.int64)
    if run.job.batch_index:
        which, keys = run.job.batch_index.batch_numbers(machines)
    else:
        digits = run.job.pruner.table.digits(machines)[:, run.structural_axes]
        first, which = group_equal_rows(digits)
        keys = digits[first]
    return which, [hash(key) for key in map(tuple, keys.tolist())]


def _leases(run: Run) -> Iterator[Lease | None]:
    """Yields leases while there are machines; None while the next generation waits for results."""
    while not run.halt_reason:
        if run.merges:
            yield _merge_lease(run)
            continue
        _ask(run)
        ready_count = _ready_count(run)
        # the first leases have one machine each; until one has come in and shows the pace, each actor has one
        is_pacing = not run.pace_s and run.lease_count - run.accepted_count >= run.slots
        if ready_count and not is_pacing:
            yield _lease(run, ready_count)
        elif run.end_reason and not run.todo:
            return
        else:
            yield None


def _ready_count(run: Run) -> int:
    """Returns how many machines of the queue may be dispatched: all, or with search.prune those of
    generations that may be pruned already, as their front (`RunState.front_before`) is complete.
    """
    if not run.job.study.search.prune:
        return len(run.todo)
    last_generation = _close_complete(run) + 1
    return sum(count for number, count in run.queued.items() if number <= last_generation)


def _full_size(run: Run) -> int:
    """Returns how many machines take LEASE_S seconds (longer with many workers, see LEASE_COST_S); 1 until
    the pace is known.
    """
    lease_s = max(LEASE_S, run.slots * LEASE_COST_S / DRIVER_SHARE)
    return max(1, min(int(lease_s / run.pace_s), MAX_PER_LEASE)) if run.pace_s else 1


def _fair_size(run: Run, ready_count: int) -> int:
    """Returns the largest lease size at which every actor still gets two leases of the machines that are
    left: the ready ones, and those still to be asked if no generation waits for results.
    """
    if not run.job.study.depends_on_trials() and not run.end_reason:
        # stop.machines counts no machines that break a constraint, the size of the space does
        violating = 0 if run.job.study.stop.machines else run.violating
        ready_count += max(0, _planned(run) - run.asked_count - violating)
    return -(-ready_count // (2 * run.slots))


def _lease_size(run: Run, ready_count: int) -> int:
    """Returns how many machines the next lease has: `_full_size`, or more (MIN_BATCHED_LEASE) if they are one
    batch; but at most `_fair_size`, and at most as many as are solved so far, so that a run with too many
    errors stops before it has many more. Where batches share mappings, a lease is what is asked of one batch:
    its mappings are found by one worker, with its first machine.
    """
    if run.job.batch_index:
        batch, waiting = run.todo[0][1], islice(run.todo, min(ready_count, MAX_PER_LEASE))
        return sum(1 for _ in takewhile(lambda one: one[1] == batch, waiting))
    fair_size = max(1, min(_fair_size(run, ready_count), ready_count, run.solved))
    size, limit = min(_full_size(run), fair_size), min(MIN_BATCHED_LEASE, fair_size)
    if run.structural_axes is None or not run.pace_s or size >= limit:
        return size
    first_batch = run.todo[0][1]
    return max(size, next((i for i in range(limit) if run.todo[i][1] != first_batch), limit))


def _lease(run: Run, ready_count: int) -> Lease:
    """Takes the machines of the next lease from the queue."""
    size, batch = _lease_size(run, ready_count), run.todo[0][1]
    run.lease_count += 1
    asks = tuple(run.todo.popleft()[0] for _ in range(size))
    for number, count in Counter(ask.generation for ask in asks).items():
        run.queued[number] -= count
        if not run.queued[number]:
            del run.queued[number]
    fronts = (
        {number: run.state.front_before(number) for number in {ask.generation for ask in asks}}
        if run.job.study.search.prune
        else {}
    )
    name = stores.name_for_worker(run.store, 0, run.lease_count)
    return Lease(run.lease_count, asks, fronts, name, batch=batch)


def _merge_lease(run: Run) -> Lease:
    """Returns a lease of groups to merge instead of machines."""
    groups = run.merges.popleft()
    run.lease_count += 1
    name = stores.name_for_worker(run.store, groups[0].level + 1, run.lease_count)
    return Lease(run.lease_count, (), name=name, merge=groups)


def _plan_merges(run: Run) -> None:
    """Plans merges of groups that workers wrote and that the manifest names. One that lost all of its actors
    is not planned again.
    """
    for level in range(stores.TOP_LEVEL):
        groups = [
            g for g in run.store.groups if g.level == level and g.is_by_worker() and g.name not in run.merging
        ]
        for first in range(0, len(groups) - stores.FAN_IN + 1, stores.FAN_IN):
            run.merges.append(tuple(groups[first : first + stores.FAN_IN]))
            run.merging.update(group.name for group in run.merges[-1])


@contextmanager
def _lease_map(
    run: Run, workers: int | None, address: str | None, cpus: int | None, report: Callable[..., Status]
) -> Iterator[Map]:
    """Yields the map that solves leases: in-process the builtin one, else one over Ray actors. Only the
    latter imports Ray. cpus: as in `_run`.
    """
    if workers == 0:
        run.worker_stats.live = run.worker_stats.busy = 1

        def solve(lease: Lease) -> Done:
            """Reports what is being solved first, where that takes long."""
            if lease.asks:
                run.worker_stats.solving = (Solving(0, lease.asks[0].machine, len(lease.asks), time.time()),)
            if not run.pace_s or run.pace_s * len(lease.asks) >= REPORT_S:
                report("running")

            def tell(text: str) -> None:
                run.worker_stats.solving = tuple(replace(one, doing=text) for one in run.worker_stats.solving)
                report("running")

            with doing.heard_by(tell):
                return solve_lease(run.job, lease)

        yield lambda leases: map(solve, cast(Iterator[Lease], leases))
        return
    from cluster import pool

    out, shown = run.store.path, run.publisher.remote.shown if run.publisher else str(run.store.path)
    with (
        pool.cluster(None, workers) if cpus is None else nullcontext(cpus) as found_cpus,
        witness.watched(out.absolute(), shown, address, pool.servers()),
        pool.ray_output_in(out / "log" / "ray.log"),
    ):
        run.slots = workers or max(1, found_cpus)
        yield partial(
            pool.over_ray,
            run.job,
            workers if workers or address else run.slots,
            partial(_log, run),
            run.worker_stats,
        )


def _log(run: Run, actor: int, line: str) -> None:
    """Notes a line for an actor's log. Lines of many actors are gathered, so that their files are opened less
    often.
    """
    run.log_lines.setdefault(actor, []).append(f"{_clock_time(int(time.time()))} {line}\n")
    if line.startswith("lost "):
        run.events.append(event("lost", f"actor {actor} {line}"))


@lru_cache(maxsize=1)
def _clock_time(seconds: int) -> str:
    """Returns the local time, which costs as much as the rest of a line."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(seconds))


def _write_log(run: Run) -> None:
    lines, run.log_lines, run.logged_at = run.log_lines, {}, time.monotonic()
    for actor, own in lines.items():
        with suppress(OSError), open(run.store.path / "log" / f"actor-{actor:04d}.log", "ab", 0) as log:
            log.write("".join(own).encode())


def _loop(run: Run, lease_map: Map, report: Callable[..., Status]) -> None:
    """Accepts results as they finish. Solved machines are committed however the loop ends."""
    try:
        run.is_looping = True
        for done in lease_map(_leases(run)):
            if done is not None:
                _accept(run, done)
            if run.uncommitted_rows >= COMMIT_ROWS or time.monotonic() - run.committed_at >= COMMIT_S:
                _commit(run)
            if time.monotonic() - run.reported_at >= REPORT_S:
                report("running")
            if run.log_lines and time.monotonic() - run.logged_at >= min(LOG_S, LOG_COST_S * run.slots):
                _write_log(run)
            # no worker is there that could take the last leases, or has any
            if done is None and run.halt_reason and not run.worker_stats.live and not _in_flight(run):
                break
    except KeyboardInterrupt:
        run.halt_reason = "interrupted"
    except RunFault as fault:
        with suppress(stores.StoreFault):
            _commit(run)
        run.halt_reason = str(fault)
        report("failed")
        raise
    finally:
        run.is_looping = False
        _write_log(run)
    _commit(run)


def _accept(run: Run, done: Done) -> None:
    """Takes the rows of a lease. Machines that have rows already are left out; a group that a worker wrote is
    left out whole then: a pool solves all machines of a lease again, or none.
    """
    run.first_work_at = run.first_work_at or time.monotonic() - done.seconds - done.shared_s
    if done.lease.merge and done.group:
        run.merged.append((done.lease.merge, done.group))
    if done.lease.asks and not done.lost:
        machine_s = done.seconds / len(done.lease.asks)
        run.pace_s = machine_s if not run.pace_s else 0.8 * run.pace_s + 0.2 * machine_s
    run.accepted_count += 1
    run.worker_stats.busy_s += done.seconds + done.shared_s
    run.worker_stats.cache_hits += done.cache_hits
    run.worker_stats.cache_misses += done.cache_misses
    for line in done.batch_faults:
        run.events.append(event("batch", line))
    if done.batch_faults and not run.batch_faults:  # later ones are in the table only
        run.notes.append(done.batch_faults[0])
    run.batch_faults += len(done.batch_faults)
    if run.pruned_pace and "machines" in done.tables:
        run.pruned_pace.learn(done.tables["machines"], done.seconds)
    done_before = [ask.machine for ask in done.lease.asks if run.state.is_done(ask.generation, ask.machine)]
    if done.lease.merge or (done.group and done_before):
        return
    tables = dict(done.tables)
    if done.lost:
        error_tables = [
            error_rows(run.job, ask, f"lost: {done.lost}; a resume tries again") for ask in done.lease.asks
        ]
        rows = {
            table: [row for one in error_tables for row in one[table]] for table in ("machines", "events")
        }
        tables = batches_of(tables_of(run.job, rows))
    if done_before:
        tables = {name: _without(batch, done_before) for name, batch in tables.items()}
    for ask in done.lease.asks:
        if ask.machine not in done_before:
            run.missing[ask.generation] -= 1
            run.state.mark_done(ask.generation, ask.machine)
            run.solved += 1
    run.accepted.append((tables, done.group))
    run.uncommitted_rows += sum(batch.num_rows for batch in tables.values())
    if "events" in tables or time.monotonic() - run.settled_at >= SETTLE_S:
        _settle(run)


def _settle(run: Run) -> None:
    """Takes the rows of all leases that have come in into the state, at once, because each call costs as much
    as many rows.
    """
    run.settled_at = time.monotonic()
    if not run.accepted:
        return
    accepted, run.accepted = run.accepted, []
    run.written += [
        (group, {name: pa.Table.from_batches([batch]) for name, batch in tables.items()})
        for tables, group in accepted
        if group
    ]
    for by_worker in (False, True):
        found = [tables for tables, group in accepted if bool(group) is by_worker]
        tables = {
            name: pa.Table.from_batches([pa.concat_batches([one[name] for one in found if name in one])])
            for name in record.STORED
            if any(name in one for one in found)
        }
        if found:
            _learn(run, tables["machines"], tables.get("points"))
        if found and not by_worker:
            run.uncommitted.append(tables)
    _check_limits(run)


def _without(batch: pa.RecordBatch, machines: list[int]) -> pa.RecordBatch:
    if "machine" not in batch.schema.names:
        return batch
    return batch.filter(pc.invert(pc.is_in(batch["machine"], pa.array(machines, pa.int64()))))


def _check_limits(run: Run) -> None:
    """Halts the run once there are limits.errors errors, or more than the fraction limits.error_fraction of
    the planned machines. The fraction always allows one error.
    """
    errors = run.state.counts["error"]
    limits = run.job.study.limits
    late = sum(count for reason, count in run.state.reasons.items() if reason.startswith("deadline:"))
    late_text = f" ({late} of them not solved within limits.seconds = {limits.seconds:g} s)" if late else ""
    if errors >= limits.errors or errors > max(1.0, limits.error_fraction * _planned(run)):
        run.halt_reason = (
            run.halt_reason
            or f"{errors} machines ended in an error{late_text}; see the table events, or raise limits in "
            "the study"
        )


def _commit(run: Run) -> None:
    """Writes all tables and events that wait in memory to the store."""
    _settle(run)
    if run.events:
        run.uncommitted.append(tables_of(run.job, {"events": run.events}))
    by_worker = run.job.sink is not None
    if run.uncommitted or run.written:
        tables = [packed_columns.packed(one) for one in run.uncommitted]
        if points := [one["points"] for one in run.uncommitted if "points" in one]:
            objectives, schema = run.job.study.objectives, run.job.schemas[record.NONDOMINATED]
            best = packed_columns.nondominated(pa.concat_tables(points), objectives, schema)
            tables.append({record.NONDOMINATED: best})
        run.store = stores.commit(run.store, tables, run.written)
        run.store = stores.compact(run.store, by_worker=not by_worker)
    if run.merged:
        old = [group for groups, _ in run.merged for group in groups]
        run.store = stores.replace_groups(run.store, old, [group for _, group in run.merged])
    if by_worker:
        _plan_merges(run)
    run.written, run.merged = [], []
    run.uncommitted, run.events, run.uncommitted_rows, run.committed_at = [], [], 0, time.monotonic()
    _publish(run)


def _publish(run: Run, is_last: bool = False) -> None:
    """Publishes what is committed on a store, if the run folder is to be there."""
    if run.publisher and (line := run.publisher.publish(is_last)):
        _note(run, "store", line)


def _finish(run: Run, report: Callable[..., Status]) -> Outcome:
    """Commits the last rows, and reports how the run ended and why."""
    if not run.halt_reason and any(run.missing):  # a safeguard, never seen: a run with gaps is not finished
        run.halt_reason = f"{sum(run.missing)} of the machines asked have no row; `dse resume` solves them"
    reason = run.halt_reason or run.end_reason + (
        "" if len(run.state.feasible_values) else f"; the front is empty: {run.state.why_empty()}"
    )
    state = (
        "finished"
        if not run.halt_reason
        else "interrupted"
        if run.halt_reason.startswith("interrupted")
        else "failed"
    )
    run.events.append(event("stop", reason))
    _commit(run)
    return Outcome(report(state, reason), run.solved, run.signal)


def _note(run: Run, kind: str, *lines: str) -> None:
    run.notes.extend(lines)
    run.events.extend(event(kind, line) for line in lines)


def _planned(run: Run) -> int:
    """Returns how many machines the whole run asks for, at most."""
    stop, size = run.job.study.stop.machines, run.job.study.space.size
    return size if stop is None else min(stop, size)


def _left_s(run: Run, remaining: int, rate: float) -> float | None:
    """Returns the seconds that the remaining machines will take; None: unknown, also early in a session,
    when a few machines say little.
    """
    if run.solved < ESTIMATE_MACHINES * run.slots and run.solved < ESTIMATE_SHARE * (run.solved + remaining):
        return None
    pace = run.pruned_pace
    if not rate or not pace:
        return remaining / rate if rate else None
    last_generation = run.complete_count + 1
    pace.look(run.state.front_before(len(run.generations) + 1), run.state.counts.total())
    in_flight = sum(run.missing[run.complete_count :]) - len(run.todo)
    to_solve = pace.to_solve(
        [(ask.machine, ask.generation) for ask, _ in run.todo],
        in_flight,
        remaining - len(run.todo) - in_flight,
        len(run.generations),
        lambda number: run.state.front_before(number) if number <= last_generation else None,
    )
    busy = run.worker_stats.busy_s / ((time.monotonic() - run.first_work_at) * run.slots)
    return (to_solve * pace.solved_s + remaining * pace.bounds_s) / (run.slots * min(1.0, max(0.05, busy)))


def _rate(run: Run, session_s: float) -> float:
    """Returns machines per second of the last RATE_S seconds; of the session, `session_s`, while that is
    short, or where in these seconds few machines were solved, as where a lease takes longer.
    """
    now, rate = time.monotonic(), run.solved / session_s if session_s > 0 else 0.0
    run.recent.append((now, run.solved))
    while now - run.recent[0][0] > RATE_S:
        run.recent.popleft()
    began, solved_before = run.recent[0]
    is_known = now - began > RATE_S / 2 and run.solved - solved_before >= RATE_MACHINES * run.slots
    return (run.solved - solved_before) / (now - began) if is_known else rate


def _in_flight(run: Run) -> int:
    """Returns how many machines were dispatched and have no row yet."""
    return sum(run.missing[run.complete_count :]) - len(run.todo)


def _report(run: Run, progress: Callable[[Status], None] | None, state: str, reason: str = "") -> Status:
    """Writes status.json and calls `progress`."""
    drift = time.time() - time.monotonic() - run.clock_offset_s
    if drift < -60:
        run.clock_offset_s += drift
        _note(
            run, "clock", f"the clock was set back by {-drift:.0f} s; order and durations do not depend on it"
        )
    _settle(run)
    count, done = run.state.counts, run.state.counts.total()
    session_s = time.monotonic() - (run.first_work_at or run.started_at)
    # `done` counts machines that break a constraint, stop.machines does not
    remaining = max(0, _planned(run) - done + (run.violating if run.job.study.stop.machines else 0))
    rate = _rate(run, session_s)
    size, volume, reference = run.state.front()
    study = run.job.study
    status = Status(
        study={
            "name": study.name,
            "workloads": [ref.name for ref in study.workloads],
            "machine": study.space.template.name,
            "axes": {axis.key: len(axis.values) for axis in study.space.axes},
            "machines": study.space.size,
        },
        state=state,
        reason=reason or run.halt_reason,
        done=done,
        ok=count["ok"],
        infeasible=count["infeasible"],
        pruned=count["pruned"],
        error=count["error"],
        planned=max(_planned(run), done),
        generation=len(run.generations),
        workers=run.slots,
        workers_live=run.worker_stats.live if run.is_looping else 0,
        workers_busy=run.worker_stats.busy if run.is_looping else 0,
        nodes=run.worker_stats.nodes,
        nodes_lost=run.worker_stats.nodes_lost,
        waiting=run.worker_stats.waiting if run.is_looping else "",
        solving=run.worker_stats.solving if run.is_looping else (),
        machine_limit_s=study.limits.seconds,
        address=run.address,
        rate=rate,
        left_s=_left_s(run, remaining, rate) if state == "running" else None,
        seconds=run.seconds(),
        worker_time_s=run.worker_stats.busy_s,
        utilization=min(1.0, run.worker_stats.busy_s / (session_s * run.slots)) if session_s > 0 else 0.0,
        queue=len(run.todo),
        in_flight=_in_flight(run),
        retries=run.worker_stats.retries,
        cache_hits=run.worker_stats.cache_hits,
        cache_misses=run.worker_stats.cache_misses,
        worst_gap=run.state.worst_gap,
        front=size,
        hypervolume=volume,
        hypervolume_reference={
            o.column: float(value) for o, value in zip(run.job.study.objectives, reference, strict=False)
        },
        time=time.time(),
        process=f"{os.getpid()} on {socket.gethostname()}",
        published=run.store.generation,
        notes=tuple(run.notes),
    )
    written = {"identity": run.store.identity} | asdict(status)
    path = run.store.path / folder.STATUS
    write = partial(folder.write_bytes, path, folder.seal("status", written), durable=state != "running")
    with stores.as_store_fault(run.store.path, is_open=True):
        try:
            write()
        except OSError as fault:
            if state == "running" or fault.errno not in stores.FULL:
                raise
            path.with_name(RESERVE).unlink(missing_ok=True)
            write()
    if state != "running":
        _publish(run, is_last=True)
    run.reported_at, run.last_status = time.monotonic(), status
    if progress is not None:
        progress(status)
    return status


@contextmanager
def _interruptible(run: Run, progress: Callable[[Status], None] | None) -> Iterator[None]:
    """Handles Ctrl-C, SIGTERM, SIGHUP and `dse stop`. The first one is reported at once; leases in flight
    finish and are committed. The second one stops immediately.
    """
    hears = threading.current_thread() is threading.main_thread()
    # a closed terminal sends SIGHUP; nohup ignores it, and so does the run then
    hang_up = (signal.SIGHUP,) * (signal.getsignal(signal.SIGHUP) != signal.SIG_IGN)
    numbers = (signal.SIGINT, signal.SIGTERM, *hang_up) if hears else ()
    old_handlers = {number: signal.getsignal(number) for number in numbers}

    def on_signal(number: int, _frame: FrameType | None) -> None:
        if run.halt_reason and run.is_looping:
            raise KeyboardInterrupt
        run.signal = number
        run.halt_reason = run.halt_reason or "interrupted; `dse resume` goes on"
        if progress and run.last_status:
            in_flight = sum(run.missing[run.complete_count :]) - len(run.todo)
            next_step = (
                f"finishing {in_flight} machine{'s' * (in_flight != 1)}; again to stop now"
                if run.is_looping
                else "stopping"
            )
            # the signal may have come while another line was being printed, or since the terminal was closed
            with suppress(RuntimeError, OSError):
                progress(replace(run.last_status, reason=f"interrupted; {next_step}"))

    def on_request(is_now: bool) -> None:
        """Interrupts the run as one Ctrl-C does, or as two if it is to stop now: the second is sent once the
        first was taken, which takes a while inside compiled code.
        """
        for _ in range(2 if is_now and not run.halt_reason else 1):
            if not numbers:
                run.halt_reason = run.halt_reason or "interrupted; `dse resume` goes on"
                return
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            given_up_at = time.monotonic() + TAKEN_S
            while not run.halt_reason and time.monotonic() < given_up_at:
                time.sleep(stopping.POLL_S / 10)

    for number in numbers:
        signal.signal(number, on_signal)
    try:
        with stopping.obeyed(run.store.path, on_request):
            yield
    finally:
        for number, handler in old_handlers.items():
            signal.signal(number, handler)
