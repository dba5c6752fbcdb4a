"""Solves leases on Ray actors: one wait loop that handles retries, splits, copies and replacements.

`over_ray` has the shape of the builtin `map`: leases in, results out, in the order in which they finish. A
lease is pulled when an actor can take it (at most DEPTH in flight per actor), so a slow reader slows the
actors down. A lease is executed at least once and its result is yielded exactly once.

Retries are handled here (max_task_retries=0), because Ray would repeat them without limit. Ray restarts the
actors (max_restarts=-1). Measured: one actor call costs 1 ms of CPU, twice that with Ray's ActorPool. Longer
than 400 lines: the loop over one state, and the cluster that it starts, joins and watches.
"""

from __future__ import annotations

import logging
import os

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # Ray reads these variables when it is imported
os.environ["RAY_IGNORE_UNHANDLED_ERRORS"] = "1"  # errors of leases queued after a failed one are dropped here
# seconds of an attempt to join; Ray's default is 30
os.environ.setdefault("RAY_py_gcs_connect_timeout_s", "10")

import fcntl
import re
import shutil
import signal
import socket
import stat
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ray
from ray import cloudpickle
from ray._private import ray_constants, services
from ray._raylet import AuthenticationTokenLoader, Config
from ray.exceptions import ActorDiedError, AuthenticationError, RayError

from cluster.store import RunFault
from cluster.worker import Done, Job, Lease, sources_digest

DEPTH = 2  # leases per actor: the next one waits at the actor while one is solved
TRIES = 3  # a machine is given up when so many actors have died while solving it alone
MAX_STARTING = 16  # actors started at a time: each imports NumPy and Numba
# an idle actor also solves a lease that is late: after LATE_S seconds, and LATE_TIMES its expected time
LATE_S = 30.0
LATE_TIMES = 5.0
GRACE_S = 30.0  # seconds past the deadlines of a lease's machines, after which its actor is killed
# a line that Ray's C++ code writes: [time level process thread] file:line: text
RAY_LINES = re.compile(r"^\[[^\]]*\] [\w.]+:\d+: (.+)$", re.M)
STARVED_S = 300.0  # seconds without a live actor, after which the run stops
JOIN_S = 40.0  # seconds to join a running cluster; a busy machine takes 20
# value and name of the environment variable that limits Ray's attempts to join, one per second: fewer than
# JOIN_S, so that Ray itself reports why a server refuses
JOIN_ATTEMPTS, JOIN_ATTEMPTS_VAR = "10", "RAY_gcs_server_port_wait_time_s"
HEAD_S = (
    15.0  # seconds without an answer from the head, after which the run stops; Ray ends the process at 60
)
TOKEN_ADVICE = "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN (or ~/.ray/auth_token) to the cluster's token"
SAME_SOURCES_ADVICE = (
    "install the same sources on every node, and change none during a run; then resume: all that was "
    "committed is safe"
)
OBJECT_STORE_BYTES = 256 << 20
# variables that ray.init sets and leaves set for the whole process (see `_restore_ray_access`)
RAY_SETS = ("RAY_AUTH_MODE", "RAY_CLIENT_MODE", "PYTHONBREAKPOINT")
LOCALHOSTS = ("127.0.0.1", "localhost", "::1")
# an environment variable; "0": Ray's daemons listen on 127.0.0.1 only, else on every address of the machine
RAY_CLUSTERS_VAR = ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR
LOCK_FILE = ".dse"  # file in the folder of a local cluster, locked while the cluster runs
ROOT = str(Path(__file__).resolve().parent.parent)
Log = Callable[[int, str], None]  # (number of the actor, line)


class PoolFault(RunFault):
    """The cluster cannot continue."""


@ray.remote(num_cpus=1, max_restarts=-1, max_task_retries=0)
class Solver:
    """An actor that solves leases.

    The class is pickled by value and imports late. A folder `cluster` in the user's directory is therefore
    not found first.
    """

    def __init__(self, root: str) -> None:
        import os
        import sys

        self.loaded: Any = None
        if os.path.isfile(os.path.join(root, "cluster", "worker.py")):
            sys.path.insert(0, root)

    def ready(self, job: list[Any], sources: str) -> tuple[int, str, str]:
        """Loads the job. Returns (process, node, fault); the fault is empty or one line. job: a reference in
        a list, so that it is fetched after the imports are checked.
        """
        import os
        import socket

        import ray as client

        from cluster import worker
        from dse.run import installed

        fault = installed.shadowing_fault() or (
            ""
            if worker.sources_digest() == sources
            else f"{worker.__file__}: this dse is not the driver's; {SAME_SOURCES_ADVICE}"
        )
        if not fault:
            worker.settle_process()
            self.loaded = client.get(job[0])
        return os.getpid(), socket.gethostname(), fault

    def solve(self, lease: Any) -> Any:
        """Returns the Done of a lease; None if the actor was restarted after its last `ready` and has no
        job.
        """
        from cluster import worker

        return self.loaded and worker.solve_lease(self.loaded, lease)


@dataclass(slots=True)
class Flight:
    """A lease that an actor has."""

    ref: Any  # Ray's reference to the result
    lease: Lease
    since: float  # time.monotonic() when it was sent, or when the lease before it finished


@dataclass(slots=True)
class ActorSlot:
    """A place for one actor, whose number and logs go on when the actor dies and is replaced."""

    number: int
    actor: Any  # None: it died and is replaced after the rest
    ready_ref: Any  # outstanding call of `ready`; None: it was answered, or the actor rests
    flights: deque[Flight] = field(default_factory=deque)
    rests_until: float = 0.0  # time.monotonic() before which it is not called again; 0: it does not rest
    failures: int = 0  # in a row; each doubles the rest

    def live(self) -> bool:
        """True if the actor has answered `ready` and does not rest, so that it may be sent leases."""
        return self.ready_ref is None and not self.rests_until


@dataclass(slots=True)
class Pool:
    """State of one run's loop. Sets and keys are numbers of leases."""

    job_ref: Any  # the job in Ray's object store
    job: Job
    workers: int | None  # actors; None: one per CPU of the cluster
    log: Log
    sources: str = ""  # digest of the driver's code, which every node must have
    slots: list[ActorSlot] = field(default_factory=list)
    queue: deque[Lease] = field(default_factory=deque)  # leases to send again
    # leases whose actor died; an actor that has one gets no other lease
    suspects: set[int] = field(default_factory=set)
    # number of a suspect that is one machine -> actors that died while they had it
    tries: dict[int, int] = field(default_factory=dict)
    finished: set[int] = field(default_factory=set)  # leases whose result was yielded
    copied: set[int] = field(default_factory=set)  # late leases that a second actor solves
    pace_s: float = 0.0  # seconds per machine, moving average
    actors_started: int = 0  # actors started so far
    added_at: float = 0.0  # time.monotonic() when actors were last added
    last_live_at: float = 0.0  # time.monotonic() when an actor was last live
    head_answered_at: float = 0.0  # time.monotonic() when the head last answered


class Unjoined(BaseException):
    """Raised when JOIN_S have passed. A BaseException, because Ray's attempts to join swallow every
    Exception.
    """


@contextmanager
def cluster(address: str | None, workers: int | None) -> Iterator[int]:
    """Joins the cluster at `address`, or starts one on this machine. Yields the number of its CPUs, and shuts
    down on exit.

    Raises PoolFault if no cluster answers at the address, or this process cannot join it.
    """
    loopback_only = not address
    if address and address != "auto":
        loopback_only = _loopback_only(address)
        if not loopback_only and not _answers(address):
            raise PoolFault(
                f"--address {address}: no Ray cluster answers there; start one with `ray start --head` (one "
                "on 127.0.0.1 is reached from its own machine only), or leave --address out"
            )
    ray_options = {
        "namespace": f"dse-{os.getpid()}-{time.monotonic_ns()}",
        "log_to_driver": False,
        "logging_level": logging.ERROR,
    }
    with (
        _restore_ray_access(),
        loopback() if loopback_only else nullcontext(),
        nullcontext() if address else private_folder() as temporary,
    ):
        try:
            if address:
                _join(address, ray_options)
            else:
                _start(num_cpus=workers or os.cpu_count(), _temp_dir=temporary, **ray_options)
            yield int(ray.cluster_resources().get("CPU", 0))
        finally:
            ray.shutdown()


def _start(**ray_options: Any) -> None:
    """Starts a cluster on this machine. Raises PoolFault, in one line, if any part of it fails to start."""
    try:
        ray.init(
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
            _node_ip_address="127.0.0.1",
            **ray_options,
        )
    except (RayError, Exception) as fault:  # Ray raises bare Exceptions when a daemon of its own dies
        why = next((line.strip() for line in str(fault).splitlines() if line.strip()), type(fault).__name__)
        raise PoolFault(
            f"Ray did not start on this machine ({why[:200]}); resume tries again, --workers 0 runs "
            "without Ray"
        ) from fault


def _join(address: str, ray_options: dict[str, Any]) -> None:
    """Joins a cluster within JOIN_S seconds. Ray itself would wait for minutes if the head cannot be reached,
    or if the cluster has no node on this machine. Raises PoolFault with Ray's last message.
    """
    ray_messages: list[str] = []
    in_main_thread = threading.current_thread() is threading.main_thread()

    def ring(_signal: int, _frame: object) -> None:
        raise Unjoined

    old_handler = signal.signal(signal.SIGALRM, ring) if in_main_thread else None
    try:
        if in_main_thread:
            signal.setitimer(signal.ITIMER_REAL, JOIN_S)
        with _capture_output(ray_messages), restore_environment((JOIN_ATTEMPTS_VAR,)):
            os.environ.setdefault(JOIN_ATTEMPTS_VAR, JOIN_ATTEMPTS)
            ray.init(address=address, **ray_options)
    except AuthenticationError as fault:
        raise PoolFault(
            f"--address {address}: Ray says: {fault.message.partition('. ')[0]}; {TOKEN_ADVICE}"
        ) from fault
    except (Unjoined, RuntimeError, ConnectionError) as fault:
        raise PoolFault(_join_fault(address, ray_messages, isinstance(fault, ConnectionError))) from fault
    finally:
        if in_main_thread:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, old_handler)


@contextmanager
def _capture_output(ray_messages: list[str]) -> Iterator[None]:
    """Captures what Ray's C++ code writes to file descriptor 2, one line per second of a failing attempt. On
    exit the messages are appended to `ray_messages`.
    """
    sys.stderr.flush()
    stderr_copy = os.dup(2)
    with tempfile.TemporaryFile() as captured:
        try:
            os.dup2(captured.fileno(), 2)
            yield
        finally:
            sys.stderr.flush()
            os.dup2(stderr_copy, 2)
            os.close(stderr_copy)
            captured.seek(0)
            ray_messages += RAY_LINES.findall(captured.read().decode(errors="replace"))


@contextmanager
def _restore_ray_access() -> Iterator[None]:
    """Restores access settings on exit. A local cluster of Ray 2.60 turns tokens on for the whole process; a
    cluster that is joined later may use none and would drop this process without a message.
    """
    try:
        with restore_environment(RAY_SETS):
            yield
    finally:
        Config.initialize("")  # reads the environment again
        AuthenticationTokenLoader.instance().reset_cache()


@contextmanager
def restore_environment(names: Iterable[str]) -> Iterator[None]:
    """Restores these variables of the environment on exit."""
    old_values = {name: os.environ.get(name) for name in names}
    try:
        yield
    finally:
        for name, value in old_values.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


@contextmanager
def loopback() -> Iterator[None]:
    """Restricts a cluster that is started in the body to this machine, in both directions.

    Ray 2.60 uses `_node_ip_address` as a name only, not as the address to listen on. Its dashboard starts
    even if it is not wanted (include_dashboard=False), and asks for the cloud's metadata (169.254.169.254)
    even if usage reports are off. Both are patched here.
    """
    enabled = ray_constants.ENABLE_RAY_CLUSTER  # read from `RAY_CLUSTERS_VAR` when ray was imported
    dashboard = services.start_api_server
    with restore_environment((RAY_CLUSTERS_VAR,)):
        try:
            os.environ[RAY_CLUSTERS_VAR] = "0"
            ray_constants.ENABLE_RAY_CLUSTER = False
            services.start_api_server = lambda *_, **__: ("", None)
            yield
        finally:
            ray_constants.ENABLE_RAY_CLUSTER = enabled
            services.start_api_server = dashboard


def _join_fault(address: str, ray_messages: Sequence[str], ray_gave_up: bool) -> str:
    """Returns one line with Ray's last message and advice. ray_gave_up: Ray gave up by itself before JOIN_S
    were over.
    """
    last_message = ray_messages[-1].strip()[:300] if ray_messages else ""
    if any(word in last_message for word in ("Unauthenticated", "InvalidAuthToken")):
        return f"--address {address}: Ray says: {last_message}; {TOKEN_ADVICE}"
    ray_says = f" (Ray says: {last_message})" if last_message else ""
    if ray_gave_up and address == "auto":
        return (
            f"--address {address}: no Ray cluster is found here{ray_says}; start one with `ray start "
            "--head`, or leave --address out"
        )
    if ray_gave_up:
        return (
            f"--address {address}: a server listens there, but does not let this process "
            f"join{ray_says}; if the "
            "cluster has a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN to it; if it has none, set "
            "RAY_AUTH_MODE=disabled"
        )
    return (
        f"--address {address}: a server listens there, but this process could not join a cluster within "
        f"{JOIN_S:.0f} s{ray_says}; this machine must be a node of it (`ray start "
        f"--address={address}` here), "
        "and the head must listen where its nodes reach it (`ray start --head --node-ip-address=...`, not "
        "127.0.0.1)"
    )


@contextmanager
def private_folder() -> Iterator[str]:
    """Yields a folder for a cluster's files that no other user can enter (Ray makes its own readable for
    all). Its path is short, because the paths of Unix sockets have at most 107 bytes.

    Folders of killed runs are removed: those of this user in which no process locks the file `LOCK_FILE`. A
    process number in the folder's name would not tell, as numbers are reused.
    """
    top = next(
        (d for d in (tempfile.gettempdir(), "/tmp") if len(d) < 20 and os.access(d, os.W_OK)),
        tempfile.gettempdir(),
    )
    for old in Path(top).glob("dse-*"):
        if (lock := _lock_folder(old, os.O_RDWR)) is not None:
            shutil.rmtree(old, ignore_errors=True)
            os.close(lock)
    path = Path(tempfile.mkdtemp(prefix="dse-", dir=top))
    lock = _lock_folder(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        yield str(path / "ray")
    finally:
        shutil.rmtree(path, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _lock_folder(folder: Path, flags: int) -> int | None:
    """Locks the file `LOCK_FILE` in a folder. Returns its descriptor; None if the folder is not a private one
    of this user, or if another process has the lock.
    """
    with suppress(OSError):
        status = folder.lstat()
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077:
            lock = os.open(folder / LOCK_FILE, flags | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return lock
            except OSError:
                os.close(lock)
    return None


def _answers(address: str) -> bool:
    """True if a server listens at host:port; for localhost also at the machine's outer address. Ray itself
    would wait for minutes.
    """
    host, port = _host(address)
    return _listens(host, port) or (host in LOCALHOSTS and _listens(ray.util.get_node_ip_address(), port))


def _loopback_only(address: str) -> bool:
    """True if a cluster listens on localhost only, as `loopback` makes it. Ray would look for it at the outer
    address.
    """
    host, port = _host(address)
    return host in LOCALHOSTS and _listens(host, port) and not _listens(ray.util.get_node_ip_address(), port)


def _host(address: str) -> tuple[str, str]:
    host, _, port = address.removeprefix("ray://").rpartition(":")
    return host.strip("[]"), port


def _listens(host: str, port: str) -> bool:
    with (
        suppress(OSError, ValueError, OverflowError),
        socket.create_connection((host, int(port)), timeout=2.0),
    ):
        return True
    return False


def over_ray(
    job: Job, workers: int | None, log: Log, leases: Iterator[Lease | None]
) -> Iterator[Done | None]:
    """Yields the results of all leases as they finish, from `workers` actors (None: one per CPU of the
    cluster, also of nodes that join later).

    leases: pulled when an actor is free; a None in it means that no lease is available before a further
        result
    yielded None: some time has passed without a result

    A machine that fails TRIES times comes back as a Done without tables and with `lost`. Raises PoolFault if
    the head is lost, no actor is alive, or a node imports other sources than the driver.
    """
    now = time.monotonic()
    pool = Pool(ray.put(job), job, workers, log, sources_digest(), last_live_at=now, head_answered_at=now)
    has_more = True
    try:
        while True:
            _grow(pool)
            has_more = _dispatch(pool, leases, has_more)
            if not (
                has_more
                or pool.queue
                or any(
                    flight.lease.number not in pool.finished for slot in pool.slots for flight in slot.flights
                )
            ):
                return
            yield from _collect(pool)
            yield from _kill_overdue(pool)
            _watch(pool)
    finally:
        for slot in pool.slots:
            if slot.actor is not None:
                with suppress(RayError):
                    ray.kill(slot.actor)


def _grow(pool: Pool) -> None:
    """Starts actors up to the wanted number, at most `MAX_STARTING` at a time. Nodes that join later raise
    the number.
    """
    now = time.monotonic()
    if now - pool.added_at < 5.0 and pool.slots:
        return
    pool.added_at = now
    wanted = pool.workers or int(ray.cluster_resources().get("CPU", 1))
    waiting = sum(not slot.live() for slot in pool.slots)
    for _ in range(min(wanted - len(pool.slots), max(1, MAX_STARTING - waiting))):
        pool.slots.append(_start_actor(pool))


def _start_actor(pool: Pool) -> ActorSlot:
    pool.actors_started += 1
    actor = _solver_class().remote(ROOT)
    return ActorSlot(pool.actors_started, actor, actor.ready.remote([pool.job_ref], pool.sources))


def _solver_class() -> Any:
    """Returns the actor class, pickled with its code, so that nodes do not import this module."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    return Solver


def _dispatch(pool: Pool, leases: Iterator[Lease | None], has_more: bool) -> bool:
    """Sends leases to actors with free slots, evenly. Returns False when there are no further leases."""
    for depth in range(1, DEPTH + 1):
        for slot in pool.slots:
            if not _may_queue(pool, slot, depth):
                continue
            lease = next((queued for queued in pool.queue if _may_send(pool, slot, queued)), None)
            if lease is not None:
                pool.queue.remove(lease)
            elif has_more:
                try:
                    lease = next(leases)
                except StopIteration:
                    has_more = False
            if lease is None and not slot.flights:
                lease = _late_lease(pool)
            if lease is not None:
                slot.flights.append(Flight(slot.actor.solve.remote(lease), lease, time.monotonic()))
    return has_more


def _may_queue(pool: Pool, slot: ActorSlot, depth: int) -> bool:
    """True if an actor may get one lease more. No lease is queued behind a suspect. While a suspect waits, no
    lease is queued behind any other either, so that an actor becomes idle for the suspect.
    """
    if not slot.live() or len(slot.flights) >= depth:
        return False
    return not slot.flights or not any(
        lease.number in pool.suspects for lease in (slot.flights[0].lease, *pool.queue)
    )


def _may_send(pool: Pool, slot: ActorSlot, lease: Lease) -> bool:
    """True if this lease may be sent to this actor. A suspect needs an idle actor. While a suspect is on its
    last try, no other suspect is in flight: a machine that exhausts the memory of a node also kills the other
    actors there.
    """
    if lease.number not in pool.suspects:
        return True
    others = [
        number
        for slot in pool.slots
        for flight in slot.flights
        if (number := flight.lease.number) in pool.suspects
    ]
    return not slot.flights and not (
        others and any(_on_last_try(pool, number) for number in (lease.number, *others))
    )


def _on_last_try(pool: Pool, number: int) -> bool:
    return pool.tries.get(number, 0) == TRIES - 1


def _late_lease(pool: Pool) -> Lease | None:
    """Returns a lease that its actor should have finished long ago (stopped, swapped out, cut off), to be
    solved by a second actor; None: there is none.
    """
    now = time.monotonic()
    for slot in pool.slots:
        for flight in slot.flights:
            is_late = now - flight.since > max(
                LATE_S, LATE_TIMES * pool.pace_s * len(flight.lease.asks) * DEPTH
            )
            if is_late and flight.lease.number not in pool.copied | pool.finished:
                pool.copied.add(flight.lease.number)
                pool.log(slot.number, f"lease {flight.lease.number} is late; an idle actor solves it too")
                return flight.lease
    return None


def _collect(pool: Pool) -> Iterator[Done | None]:
    """Waits 0.5 s for one answer, then takes all that have arrived. Yields None if there is none."""
    ready_calls = {slot.ready_ref: slot for slot in pool.slots if slot.ready_ref is not None}
    solve_calls = {slot.flights[0].ref: slot for slot in pool.slots if slot.flights}
    refs = [*ready_calls, *solve_calls]
    if not refs:
        time.sleep(0.1)
    arrived = ray.wait(refs, num_returns=1, timeout=0.5)[0] if refs else []
    if not arrived:
        yield None
    else:
        arrived, _ = ray.wait(refs, num_returns=len(refs), timeout=0)
    for ref in arrived:
        if ref in ready_calls:
            _on_ready(pool, ready_calls[ref])
        else:
            yield from _on_result(pool, solve_calls[ref])


def _on_ready(pool: Pool, slot: ActorSlot) -> None:
    """Takes the answer of `ready`: the actor gets leases from now on, or rests if the call failed. Raises
    PoolFault if its node has a fault.
    """
    try:
        process, node, fault = ray.get(slot.ready_ref, timeout=30)
    except RayError as error:
        pool.log(slot.number, f"not ready: {_last_line(error)}")
        _rest(pool, slot, error)
        return
    if fault:
        raise PoolFault(f"node {node}: {fault}")
    slot.ready_ref = None
    slot.failures = 0
    pool.log(slot.number, f"process {process} on {node} takes leases")


def _on_result(pool: Pool, slot: ActorSlot) -> Iterator[Done]:
    try:
        done: Done | None = ray.get(slot.flights[0].ref, timeout=60)
    except RayError as error:
        yield from _on_lost(pool, slot, error)
        return
    if done is None:
        pool.queue.extend(flight.lease for flight in slot.flights)
        _rest(pool, slot, None)
    else:
        yield from _on_done(pool, slot, done)


def _on_done(pool: Pool, slot: ActorSlot, done: Done) -> Iterator[Done]:
    lease = slot.flights.popleft().lease
    if slot.flights:
        slot.flights[0].since = time.monotonic()
    pace = done.seconds / len(lease.asks)
    pool.pace_s = pace if not pool.pace_s else 0.9 * pool.pace_s + 0.1 * pace
    pool.log(slot.number, f"lease {lease.number}: {len(lease.asks)} machines in {done.seconds:.3f} s")
    if lease.number not in pool.finished:
        pool.finished.add(lease.number)
        pool.tries.pop(lease.number, None)
        yield done


def _on_lost(pool: Pool, slot: ActorSlot, error: RayError) -> Iterator[Done]:
    """Puts the leases of a lost actor back into the queue, as suspects.

    If it had several leases, nobody knows which one it died of, since answers under way are lost too. If it
    had one lease, that is split into single machines. A lease of one machine that lost TRIES actors is given
    up.
    """
    returned = [flight.lease for flight in slot.flights]
    _rest(pool, slot, error)
    pool.log(
        slot.number,
        f"lost with leases {', '.join(str(lease.number) for lease in returned)}: {_last_line(error)}",
    )
    match returned:
        case [lease] if len(lease.asks) > 1:
            # numbers that no other lease has: negative, with 12 bits for the machine (driver.MAX_PER_LEASE)
            returned = [
                replace(lease, number=-(lease.number << 12) - i, asks=(ask,))
                for i, ask in enumerate(lease.asks)
            ]
        case [lease]:
            pool.tries[lease.number] = pool.tries.get(lease.number, 0) + 1
            if pool.tries[lease.number] == TRIES and lease.number not in pool.finished:
                pool.finished.add(lease.number)
                yield Done(lease, {}, 0.0, f"its actor was lost {TRIES} times ({_last_line(error)})")
    pool.suspects.update(lease.number for lease in returned)
    pool.queue.extendleft(lease for lease in reversed(returned) if lease.number not in pool.finished)


def _kill_overdue(pool: Pool) -> Iterator[Done]:
    """Kills actors that are past the deadlines of their machines. They did not notice them, as a process that
    is stopped, or in compiled code, does not.
    """
    if pool.job.deadline_s is None:
        return
    now = time.monotonic()
    for slot in pool.slots:
        if slot.flights and now - slot.flights[0].since > GRACE_S + pool.job.deadline_s * len(
            slot.flights[0].lease.asks
        ):
            ray.kill(slot.actor)
            yield from _on_lost(pool, slot, ActorDiedError())


def _last_line(error: RayError) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[-1].strip()}"[:300] if lines else type(error).__name__


def _rest(pool: Pool, slot: ActorSlot, error: RayError | None) -> None:
    """Sends an actor no leases until it, or its replacement, answers `ready` again."""
    slot.flights.clear()
    slot.ready_ref = None
    slot.failures += 1
    slot.rests_until = time.monotonic() + min(0.1 * 2**slot.failures, 10.0)
    if isinstance(error, ActorDiedError):
        slot.actor = None


def _watch(pool: Pool) -> None:
    """Calls `ready` of actors whose rest is over, replaces dead ones. Raises PoolFault if no actor is left or
    the head is gone.
    """
    now = time.monotonic()
    for slot in pool.slots:
        if slot.rests_until and now >= slot.rests_until:
            if slot.actor is None:
                slot.actor = _solver_class().remote(ROOT)
            slot.rests_until, slot.ready_ref = 0.0, slot.actor.ready.remote([pool.job_ref], pool.sources)
    if any(slot.live() for slot in pool.slots):
        pool.last_live_at = now
    elif now - pool.last_live_at > STARVED_S:
        raise PoolFault(
            f"no actor answered for {STARVED_S:.0f} s; add nodes, then resume: all that was committed is safe"
        )
    if now - pool.head_answered_at > 2.0:
        if _answers(ray.get_runtime_context().gcs_address):
            pool.head_answered_at = now
        elif now - pool.head_answered_at > HEAD_S:
            raise PoolFault(
                f"Ray's head has not answered for {HEAD_S:.0f} s; start the cluster again if you "
                "started it by yourself, then dse resume: all that was committed is safe"
            )
