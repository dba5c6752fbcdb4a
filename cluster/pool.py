"""Leases over Ray actors: a bounded wait loop that owns retries, splits, copies and replacements.

`over_ray` has the shape of the builtin `map`: leases in, results out, in the order in which they finish. Leases are pulled
when an actor has room (at most DEPTH in flight each), so a slow reader slows the actors down. Executed at least once,
yielded exactly once. Retries are ours (max_task_retries=0: Ray would rerun without a bound); Ray restarts the actors
(max_restarts=-1). Measured in specs/substrate.md, 1: one actor call costs 1 ms of CPU, ActorPool twice that.
"""

from __future__ import annotations

import logging
import os

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # these are read when ray is imported
os.environ["RAY_IGNORE_UNHANDLED_ERRORS"] = "1"  # what fails behind a failed lease is dropped on purpose

import shutil
import socket
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ray
from ray import cloudpickle
from ray._private import ray_constants
from ray.exceptions import ActorDiedError, RayError

from cluster.store import RunFault
from cluster.worker import Done, Job, Lease

DEPTH = 2  # leases per actor: the next one waits at the actor while one is solved
TRIES = 3  # per lease, then once more per machine of it
WAVE = 16  # actors started at a time: each imports NumPy and Numba
LATE_S = 30.0  # an idle actor takes a copy of a lease that is this late, and LATE_TIMES its expected time
LATE_TIMES = 5.0
GRACE_S = 30.0  # past the deadlines of a lease's machines, before its actor is ended from outside
STARVED_S = 300.0  # without one live actor
HEAD_S = 15.0  # the head does not answer; Ray itself ends the process after 60 s
OBJECT_STORE_BYTES = 256 << 20
LEAKS = ("RAY_AUTH_MODE", "RAY_CLIENT_MODE", "PYTHONBREAKPOINT")  # ray.init sets them; a later cluster may have no tokens
INNER = ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR  # "0": Ray's daemons listen on 127.0.0.1, else on every address of the machine
ROOT = str(Path(__file__).resolve().parent.parent)
Log = Callable[[int, str], None]  # (number of the actor, line)


class PoolFault(RunFault):
    """The cluster cannot go on."""


@ray.remote(num_cpus=1, max_restarts=-1, max_task_retries=0)
class Solver:
    """Solves leases. Pickled by value and importing late: a folder `cluster` in the user's directory must not be found first."""

    def __init__(self, root: str) -> None:
        import os
        import sys

        self.loaded: Any = None
        if os.path.isfile(os.path.join(root, "cluster", "worker.py")):
            sys.path.insert(0, root)

    def ready(self, job: list[Any]) -> tuple[int, str, str]:
        """(process, node, fault); the fault is empty, or one line. job: in a list, so that it is fetched after the imports are checked."""
        import os
        import socket

        import ray as client

        from cluster import worker

        fault = worker.shadowing()
        if not fault:
            worker.calm()
            self.loaded = client.get(job[0])
        return os.getpid(), socket.gethostname(), fault

    def solve(self, lease: Any) -> Any:
        """Done, or None from an actor that was restarted since it was last asked whether it is ready."""
        from cluster import worker

        return self.loaded and worker.solve_lease(self.loaded, lease)


@dataclass(slots=True)
class Flight:
    ref: Any
    lease: Lease
    since: float


@dataclass(slots=True)
class Seat:
    """One actor. asked: its outstanding `ready`; None and not rests: it takes leases."""

    number: int
    actor: Any
    asked: Any
    flights: deque[Flight] = field(default_factory=deque)
    rests: float = 0.0  # do not ask again before this moment
    failures: int = 0

    def live(self) -> bool:
        return self.asked is None and not self.rests


@dataclass(slots=True)
class Pool:
    """State of one run's loop. queue: leases that came back, with the tries they have had."""

    job_ref: Any
    job: Job
    workers: int | None
    log: Log
    seats: list[Seat] = field(default_factory=list)
    queue: deque[Lease] = field(default_factory=deque)
    tries: dict[int, int] = field(default_factory=dict)
    finished: set[int] = field(default_factory=set)
    copied: set[int] = field(default_factory=set)
    pace_s: float = 0.0  # seconds per machine, moving average
    started: int = 0
    grown: float = 0.0
    alive: float = 0.0
    answered: float = 0.0


@contextmanager
def cluster(address: str | None, workers: int | None) -> Iterator[int]:
    """Joins the cluster at `address`, or starts one on this machine; gives the number of its CPUs. All is shut down on leaving.

    Raises PoolFault if there is no cluster at the address.
    """
    if address and address != "auto" and not _answers(address):
        raise PoolFault(f"--address {address}: no Ray cluster answers there; start one with `ray start --head`, or leave --address out")
    space = f"dse-{os.getpid()}-{time.monotonic_ns()}"
    temporary = None if address else _own_folder()
    with restored(LEAKS), nullcontext() if address else loopback():
        try:
            if address:
                with _silent():
                    ray.init(address=address, namespace=space, log_to_driver=False, logging_level=logging.ERROR)
            else:
                ray.init(num_cpus=workers or os.cpu_count(), include_dashboard=False, object_store_memory=OBJECT_STORE_BYTES,
                         _node_ip_address="127.0.0.1", _temp_dir=temporary, namespace=space,
                         log_to_driver=False, logging_level=logging.ERROR)
            yield int(ray.cluster_resources().get("CPU", 0))
        except ConnectionError as fault:
            raise PoolFault(_refused(address or "")) from fault
        finally:
            ray.shutdown()
            if temporary:
                shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def _silent() -> Iterator[None]:
    """Without what Ray's C++ side writes past Python, a line per second of a vain attempt; the exception says it."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


@contextmanager
def restored(names: Iterable[str]) -> Iterator[None]:
    """Variables of the environment are afterwards what they are now."""
    before = {name: os.environ.get(name) for name in names}
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


@contextmanager
def loopback() -> Iterator[None]:
    """A cluster started inside is reached from this machine only. Ray 2.60 takes `_node_ip_address` for a name, not for where to listen."""
    enabled = ray_constants.ENABLE_RAY_CLUSTER  # read from INNER when ray was imported
    with restored((INNER,)):
        try:
            os.environ[INNER] = "0"
            ray_constants.ENABLE_RAY_CLUSTER = False
            yield
        finally:
            ray_constants.ENABLE_RAY_CLUSTER = enabled


def _refused(address: str) -> str:
    """Ray says the same of a wrong token and of a server that is none of its own."""
    if address == "auto":
        return f"--address {address}: no Ray cluster is found here; start one with `ray start --head`, or leave --address out"
    return (f"--address {address}: a server listens there, but does not let this process join; if the cluster has a token, set RAY_AUTH_MODE=token"
            " and RAY_AUTH_TOKEN to it, if it has none, RAY_AUTH_MODE=disabled")


def _own_folder() -> str:
    """A folder with a short path (Unix sockets hold 107 bytes); those that killed runs left behind go."""
    top = next((d for d in (tempfile.gettempdir(), "/tmp") if len(d) < 24 and os.access(d, os.W_OK)), tempfile.gettempdir())
    for old in Path(top).glob("dse-*-*"):
        owner = old.name.split("-")[1]
        if owner.isdigit() and not os.path.exists(f"/proc/{owner}") and os.path.exists("/proc/self") and old.stat().st_uid == os.getuid():
            shutil.rmtree(old, ignore_errors=True)
    return tempfile.mkdtemp(prefix=f"dse-{os.getpid()}-", dir=top)


def _answers(address: str) -> bool:
    """Somebody listens at host:port (of localhost also at the outer address). Ray itself would wait for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    outer = [ray.util.get_node_ip_address()] if host in ("127.0.0.1", "localhost") else []
    for name in (host.strip("[]"), *outer):
        with suppress(OSError, ValueError), socket.create_connection((name, int(port)), timeout=2.0):
            return True
    return False


def over_ray(job: Job, workers: int | None, log: Log, leases: Iterator[Lease | None]) -> Iterator[Done | None]:
    """Results of all leases, as they finish, from `workers` actors (None: one per CPU of the cluster, also of those that join later).

    leases: pulled when there is room; None says that there is nothing to do before a further result is in. A None among the
    results says that some time has passed without one.
    A machine that fails all its tries comes back as a Done without tables and with `lost`.
    Raises PoolFault: head lost, no actor alive, a node that imports other packages than ours.
    """
    now = time.monotonic()
    pool = Pool(ray.put(job), job, workers, log, alive=now, answered=now)
    more = True
    try:
        while True:
            _grow(pool)
            more = _dispatch(pool, leases, more)
            if not (more or pool.queue or any(flight.lease.number not in pool.finished for seat in pool.seats for flight in seat.flights)):
                return
            yield from _collect(pool)
            yield from _overdue(pool)
            _watch(pool)
    finally:
        for seat in pool.seats:
            with suppress(RayError):
                ray.kill(seat.actor)


def _grow(pool: Pool) -> None:
    """Actors up to the number wanted, in waves; a node that joins brings more."""
    now = time.monotonic()
    if now - pool.grown < 5.0 and pool.seats:
        return
    pool.grown = now
    wanted = pool.workers or int(ray.cluster_resources().get("CPU", 1))
    waiting = sum(not seat.live() for seat in pool.seats)
    for _ in range(min(wanted - len(pool.seats), max(1, WAVE - waiting))):
        pool.seats.append(_seat(pool))


def _seat(pool: Pool) -> Seat:
    pool.started += 1
    actor = _by_value().remote(ROOT)
    return Seat(pool.started, actor, actor.ready.remote([pool.job_ref]))


def _by_value() -> Any:
    """The actor class, pickled whole: its module is not looked up on the other side."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    return Solver


def _dispatch(pool: Pool, leases: Iterator[Lease | None], more: bool) -> bool:
    """Fill the free places, evenly; False when the leases have come to their end."""
    for depth in range(1, DEPTH + 1):
        for seat in pool.seats:
            if not seat.live() or len(seat.flights) >= depth:
                continue
            lease: Lease | None = None
            if pool.queue:
                lease = pool.queue.popleft()
            elif more:
                try:
                    lease = next(leases)
                except StopIteration:
                    more = False
            if lease is None and not seat.flights:
                lease = _late(pool)
            if lease is not None:
                seat.flights.append(Flight(seat.actor.solve.remote(lease), lease, time.monotonic()))
    return more


def _late(pool: Pool) -> Lease | None:
    """A lease that another actor should have finished long ago (stopped, swapped out, cut off), to be solved twice."""
    now = time.monotonic()
    for seat in pool.seats:
        for flight in seat.flights:
            late = now - flight.since > max(LATE_S, LATE_TIMES * pool.pace_s * len(flight.lease.asks) * DEPTH)
            if late and flight.lease.number not in pool.copied | pool.finished:
                pool.copied.add(flight.lease.number)
                pool.log(seat.number, f"lease {flight.lease.number} is late; an idle actor solves it too")
                return flight.lease
    return None


def _collect(pool: Pool) -> Iterator[Done | None]:
    """Wait for one answer, then take all that are there; None if there was none."""
    asked = {seat.asked: seat for seat in pool.seats if seat.asked is not None}
    flying = {seat.flights[0].ref: seat for seat in pool.seats if seat.flights}
    refs = [*asked, *flying]
    if not refs:
        time.sleep(0.1)
    first = ray.wait(refs, num_returns=1, timeout=0.5)[0] if refs else []
    if not first:
        yield None
    else:
        first, _ = ray.wait(refs, num_returns=len(refs), timeout=0)
    for ref in first:
        if ref in asked:
            _welcome(pool, asked[ref])
        else:
            yield from _landed(pool, flying[ref])


def _welcome(pool: Pool, seat: Seat) -> None:
    try:
        process, node, fault = ray.get(seat.asked, timeout=30)
    except RayError as error:
        _fallen(pool, seat, error)
        return
    if fault:
        raise PoolFault(f"node {node}: {fault}")
    seat.asked = None
    seat.failures = 0
    pool.log(seat.number, f"process {process} on {node} takes leases")


def _landed(pool: Pool, seat: Seat) -> Iterator[Done]:
    flight = seat.flights[0]
    try:
        done: Done | None = ray.get(flight.ref, timeout=60)
    except RayError as error:
        yield from _failed(pool, seat, error)
        return
    if done is None:
        pool.queue.extend(flight.lease for flight in seat.flights)
        _fallen(pool, seat, None)
        return
    seat.flights.popleft()
    if seat.flights:
        seat.flights[0].since = time.monotonic()
    pace = done.seconds / len(flight.lease.asks)
    pool.pace_s = pace if not pool.pace_s else 0.9 * pool.pace_s + 0.1 * pace
    pool.log(seat.number, f"lease {flight.lease.number}: {len(flight.lease.asks)} machines in {done.seconds:.3f} s")
    if flight.lease.number not in pool.finished:
        pool.finished.add(flight.lease.number)
        pool.tries.pop(flight.lease.number, None)
        yield done


def _failed(pool: Pool, seat: Seat, error: RayError) -> Iterator[Done]:
    """The oldest lease of the actor has had a try; what queued behind it goes back as it was."""
    first, *rest = seat.flights
    _fallen(pool, seat, error)
    back = [flight.lease for flight in rest]
    lease = first.lease
    tries = pool.tries.get(lease.number, 0) + 1
    pool.tries[lease.number] = tries
    pool.log(seat.number, f"lease {lease.number} failed, try {tries} of {TRIES}: {_last_line(error)}")
    if tries < TRIES:
        back.insert(0, lease)
    elif len(lease.asks) > 1:
        back[:0] = [replace(lease, number=-(lease.number << 12) - i, asks=(ask,)) for i, ask in enumerate(lease.asks)]
    elif lease.number not in pool.finished:
        pool.finished.add(lease.number)
        yield Done(lease, {}, 0.0, f"its actor was lost {TRIES} times ({_last_line(error)})")
    pool.queue.extendleft(lease for lease in reversed(back) if lease.number not in pool.finished)


def _overdue(pool: Pool) -> Iterator[Done]:
    """End actors that sit in compiled code, or are stopped, past the deadlines of their machines."""
    if pool.job.deadline_s is None:
        return
    now = time.monotonic()
    for seat in pool.seats:
        if seat.flights and now - seat.flights[0].since > GRACE_S + pool.job.deadline_s * len(seat.flights[0].lease.asks):
            ray.kill(seat.actor)
            yield from _failed(pool, seat, ActorDiedError())


def _last_line(error: RayError) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[-1].strip()}"[:300] if lines else type(error).__name__


def _fallen(pool: Pool, seat: Seat, error: RayError | None) -> None:
    """Take no more leases until the actor, or the one in its place, answers again."""
    seat.flights.clear()
    seat.asked = None
    seat.failures += 1
    seat.rests = time.monotonic() + min(0.1 * 2**seat.failures, 10.0)
    if isinstance(error, ActorDiedError):
        seat.actor = None


def _watch(pool: Pool) -> None:
    """Ask resting actors again, replace dead and overdue ones; stop with one line if nobody is left or the head is gone."""
    now = time.monotonic()
    for seat in pool.seats:
        if seat.rests and now >= seat.rests:
            if seat.actor is None:
                seat.actor = _by_value().remote(ROOT)
            seat.rests, seat.asked = 0.0, seat.actor.ready.remote([pool.job_ref])
    if any(seat.live() for seat in pool.seats):
        pool.alive = now
    elif now - pool.alive > STARVED_S:
        raise PoolFault(f"no actor answered for {STARVED_S:.0f} s; add nodes, then resume: all that was committed is safe")
    if now - pool.answered > 2.0:
        if _answers(ray.get_runtime_context().gcs_address):
            pool.answered = now
        elif now - pool.answered > HEAD_S:
            raise PoolFault(f"the head of the cluster has not answered for {HEAD_S:.0f} s; start it again, then resume: all that was committed is safe")
