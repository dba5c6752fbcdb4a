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
from cluster.worker import Done, Job, Lease, sources

DEPTH = 2  # leases per actor: the next one waits at the actor while one is solved
TRIES = 3  # a machine is given up when so many actors have died while solving it alone
WAVE = 16  # actors started at a time: each imports NumPy and Numba
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
ATTEMPTS, WAIT = "10", "RAY_gcs_server_port_wait_time_s"
HEAD_S = (
    15.0  # seconds without an answer from the head, after which the run stops; Ray ends the process at 60
)
TOKEN = "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN (or ~/.ray/auth_token) to the cluster's token"
SAME = (
    "install the same sources on every node, and change none during a run; then resume: all that was "
    "committed is safe"
)
OBJECT_STORE_BYTES = 256 << 20
# variables that ray.init sets and leaves set for the whole process (see `_own_access`)
LEAKS = ("RAY_AUTH_MODE", "RAY_CLIENT_MODE", "PYTHONBREAKPOINT")
LOCAL = ("127.0.0.1", "localhost", "::1")
# an environment variable; "0": Ray's daemons listen on 127.0.0.1 only, else on every address of the machine
INNER = ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR
MARK = ".dse"  # file in the folder of a local cluster, locked while the cluster runs
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

        fault = installed.shadowing() or (
            "" if worker.sources() == sources else f"{worker.__file__}: this dse is not the driver's; {SAME}"
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
class Seat:
    """A place for one actor, whose number and logs go on when the actor dies and is replaced."""

    number: int
    actor: Any  # None: it died and is replaced after the rest
    ready_ref: Any  # outstanding call of `ready`; None: it was answered, or the actor rests
    flights: deque[Flight] = field(default_factory=deque)
    rests: float = 0.0  # time.monotonic() before which it is not called again; 0: it does not rest
    failures: int = 0  # in a row; each doubles the rest

    def live(self) -> bool:
        """True if the actor has answered `ready` and does not rest, so that it may be sent leases."""
        return self.ready_ref is None and not self.rests


@dataclass(slots=True)
class Pool:
    """State of one run's loop. Sets and keys are numbers of leases."""

    job_ref: Any  # the job in Ray's object store
    job: Job
    workers: int | None  # actors; None: one per CPU of the cluster
    log: Log
    sources: str = ""  # digest of the driver's code, which every node must have
    seats: list[Seat] = field(default_factory=list)
    queue: deque[Lease] = field(default_factory=deque)  # leases to send again
    # leases whose actor died; an actor that has one gets no other lease
    suspects: set[int] = field(default_factory=set)
    # number of a suspect that is one machine -> actors that died while they had it
    tries: dict[int, int] = field(default_factory=dict)
    finished: set[int] = field(default_factory=set)  # leases whose result was yielded
    copied: set[int] = field(default_factory=set)  # late leases that a second actor solves
    pace_s: float = 0.0  # seconds per machine, moving average
    started: int = 0  # actors started so far
    grown: float = 0.0  # time.monotonic() when actors were last added
    alive: float = 0.0  # time.monotonic() when an actor was last live
    answered: float = 0.0  # time.monotonic() when the head last answered


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
    inner = not address
    if address and address != "auto":
        inner = _loopback_only(address)
        if not inner and not _answers(address):
            raise PoolFault(
                f"--address {address}: no Ray cluster answers there; start one with `ray start --head` (one "
                "on 127.0.0.1 is reached from its own machine only), or leave --address out"
            )
    space = {
        "namespace": f"dse-{os.getpid()}-{time.monotonic_ns()}",
        "log_to_driver": False,
        "logging_level": logging.ERROR,
    }
    with (
        _own_access(),
        loopback() if inner else nullcontext(),
        nullcontext() if address else own_folder() as temporary,
    ):
        try:
            if address:
                _join(address, space)
            else:
                _start(num_cpus=workers or os.cpu_count(), _temp_dir=temporary, **space)
            yield int(ray.cluster_resources().get("CPU", 0))
        finally:
            ray.shutdown()


def _start(**given: Any) -> None:
    """Starts a cluster on this machine. Raises PoolFault, in one line, if any part of it fails to start."""
    try:
        ray.init(
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
            _node_ip_address="127.0.0.1",
            **given,
        )
    except (RayError, Exception) as fault:  # Ray raises bare Exceptions when a daemon of its own dies
        why = next((line.strip() for line in str(fault).splitlines() if line.strip()), type(fault).__name__)
        raise PoolFault(
            f"Ray did not start on this machine ({why[:200]}); resume tries again, --workers 0 runs "
            "without Ray"
        ) from fault


def _join(address: str, space: dict[str, Any]) -> None:
    """Joins a cluster within JOIN_S seconds. Ray itself would wait for minutes if the head cannot be reached,
    or if the cluster has no node on this machine. Raises PoolFault with Ray's last message.
    """
    said: list[str] = []
    main = threading.current_thread() is threading.main_thread()

    def ring(_signal: int, _frame: object) -> None:
        raise Unjoined

    before = signal.signal(signal.SIGALRM, ring) if main else None
    try:
        if main:
            signal.setitimer(signal.ITIMER_REAL, JOIN_S)
        with _capture_output(said), restore_environment((WAIT,)):
            os.environ.setdefault(WAIT, ATTEMPTS)
            ray.init(address=address, **space)
    except AuthenticationError as fault:
        raise PoolFault(
            f"--address {address}: Ray says: {fault.message.partition('. ')[0]}; {TOKEN}"
        ) from fault
    except (Unjoined, RuntimeError, ConnectionError) as fault:
        raise PoolFault(_join_fault(address, said, isinstance(fault, ConnectionError))) from fault
    finally:
        if main:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


@contextmanager
def _capture_output(said: list[str]) -> Iterator[None]:
    """Captures what Ray's C++ code writes to file descriptor 2, one line per second of a failing attempt. On
    exit the messages are appended to `said`.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as taken:
        try:
            os.dup2(taken.fileno(), 2)
            yield
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
            taken.seek(0)
            said += RAY_LINES.findall(taken.read().decode(errors="replace"))


@contextmanager
def _own_access() -> Iterator[None]:
    """Restores access settings on exit. A local cluster of Ray 2.60 turns tokens on for the whole process; a
    cluster that is joined later may use none and would drop this process without a message.
    """
    try:
        with restore_environment(LEAKS):
            yield
    finally:
        Config.initialize("")  # reads the environment again
        AuthenticationTokenLoader.instance().reset_cache()


@contextmanager
def restore_environment(names: Iterable[str]) -> Iterator[None]:
    """Restores these variables of the environment on exit."""
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
    """Restricts a cluster that is started in the body to this machine, in both directions.

    Ray 2.60 uses `_node_ip_address` as a name only, not as the address to listen on. Its dashboard starts
    even if it is not wanted (include_dashboard=False), and asks for the cloud's metadata (169.254.169.254)
    even if usage reports are off. Both are patched here.
    """
    enabled = ray_constants.ENABLE_RAY_CLUSTER  # read from `INNER` when ray was imported
    dashboard = services.start_api_server
    with restore_environment((INNER,)):
        try:
            os.environ[INNER] = "0"
            ray_constants.ENABLE_RAY_CLUSTER = False
            services.start_api_server = lambda *_, **__: ("", None)
            yield
        finally:
            ray_constants.ENABLE_RAY_CLUSTER = enabled
            services.start_api_server = dashboard


def _join_fault(address: str, said: Sequence[str], answered: bool) -> str:
    """Returns one line with Ray's last message and advice. answered: Ray gave up by itself before JOIN_S were
    over.
    """
    last = said[-1].strip()[:300] if said else ""
    if any(word in last for word in ("Unauthenticated", "InvalidAuthToken")):
        return f"--address {address}: Ray says: {last}; {TOKEN}"
    words = f" (Ray says: {last})" if last else ""
    if answered and address == "auto":
        return (
            f"--address {address}: no Ray cluster is found here{words}; start one with `ray start "
            "--head`, or leave --address out"
        )
    if answered:
        return (
            f"--address {address}: a server listens there, but does not let this process join{words}; if the "
            "cluster has a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN to it; if it has none, set "
            "RAY_AUTH_MODE=disabled"
        )
    return (
        f"--address {address}: a server listens there, but this process could not join a cluster within "
        f"{JOIN_S:.0f} s{words}; this machine must be a node of it (`ray start --address={address}` here), "
        "and the head must listen where its nodes reach it (`ray start --head --node-ip-address=...`, not "
        "127.0.0.1)"
    )


@contextmanager
def own_folder() -> Iterator[str]:
    """Yields a folder for a cluster's files that no other user can enter (Ray makes its own readable for
    all). Its path is short, because the paths of Unix sockets have at most 107 bytes.

    Folders of killed runs are removed: those of this user in which no process locks the file `MARK`. A
    process number in the folder's name would not tell, as numbers are reused.
    """
    top = next(
        (d for d in (tempfile.gettempdir(), "/tmp") if len(d) < 20 and os.access(d, os.W_OK)),
        tempfile.gettempdir(),
    )
    for old in Path(top).glob("dse-*"):
        if (mark := _lock_mark(old, os.O_RDWR)) is not None:
            shutil.rmtree(old, ignore_errors=True)
            os.close(mark)
    path = Path(tempfile.mkdtemp(prefix="dse-", dir=top))
    mark = _lock_mark(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        yield str(path / "ray")
    finally:
        shutil.rmtree(path, ignore_errors=True)
        if mark is not None:
            os.close(mark)


def _lock_mark(folder: Path, flags: int) -> int | None:
    """Locks the file `MARK` in a folder. Returns its descriptor; None if the folder is not a private one of
    this user, or if another process has the lock.
    """
    with suppress(OSError):
        found = folder.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077:
            mark = os.open(folder / MARK, flags | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return mark
            except OSError:
                os.close(mark)
    return None


def _answers(address: str) -> bool:
    """True if a server listens at host:port; for localhost also at the machine's outer address. Ray itself
    would wait for minutes.
    """
    host, port = _host(address)
    return _listens(host, port) or (host in LOCAL and _listens(ray.util.get_node_ip_address(), port))


def _loopback_only(address: str) -> bool:
    """True if a cluster listens on localhost only, as `loopback` makes it. Ray would look for it at the outer
    address.
    """
    host, port = _host(address)
    return host in LOCAL and _listens(host, port) and not _listens(ray.util.get_node_ip_address(), port)


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
    pool = Pool(ray.put(job), job, workers, log, sources(), alive=now, answered=now)
    more = True
    try:
        while True:
            _grow(pool)
            more = _dispatch(pool, leases, more)
            if not (
                more
                or pool.queue
                or any(
                    flight.lease.number not in pool.finished for seat in pool.seats for flight in seat.flights
                )
            ):
                return
            yield from _collect(pool)
            yield from _overdue(pool)
            _watch(pool)
    finally:
        for seat in pool.seats:
            if seat.actor is not None:
                with suppress(RayError):
                    ray.kill(seat.actor)


def _grow(pool: Pool) -> None:
    """Starts actors up to the wanted number, at most `WAVE` at a time. Nodes that join later raise the
    number.
    """
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
    return Seat(pool.started, actor, actor.ready.remote([pool.job_ref], pool.sources))


def _by_value() -> Any:
    """Returns the actor class, pickled with its code, so that nodes do not import this module."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    return Solver


def _dispatch(pool: Pool, leases: Iterator[Lease | None], more: bool) -> bool:
    """Sends leases to actors with free slots, evenly. Returns False when there are no further leases."""
    for depth in range(1, DEPTH + 1):
        for seat in pool.seats:
            if not _may_queue(pool, seat, depth):
                continue
            lease = next((back for back in pool.queue if _may_go(pool, seat, back)), None)
            if lease is not None:
                pool.queue.remove(lease)
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


def _may_queue(pool: Pool, seat: Seat, depth: int) -> bool:
    """True if an actor may get one lease more. No lease is queued behind a suspect. While a suspect waits, no
    lease is queued behind any other either, so that an actor becomes idle for the suspect.
    """
    if not seat.live() or len(seat.flights) >= depth:
        return False
    return not seat.flights or not any(
        lease.number in pool.suspects for lease in (seat.flights[0].lease, *pool.queue)
    )


def _may_go(pool: Pool, seat: Seat, lease: Lease) -> bool:
    """True if this lease may be sent to this actor. A suspect needs an idle actor. While a suspect is on its
    last try, no other suspect is in flight: a machine that exhausts the memory of a node also kills the other
    actors there.
    """
    if lease.number not in pool.suspects:
        return True
    others = [
        number
        for seat in pool.seats
        for flight in seat.flights
        if (number := flight.lease.number) in pool.suspects
    ]
    return not seat.flights and not (
        others and any(_at_last(pool, number) for number in (lease.number, *others))
    )


def _at_last(pool: Pool, number: int) -> bool:
    return pool.tries.get(number, 0) == TRIES - 1


def _late(pool: Pool) -> Lease | None:
    """Returns a lease that its actor should have finished long ago (stopped, swapped out, cut off), to be
    solved by a second actor; None: there is none.
    """
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
    """Waits 0.5 s for one answer, then takes all that have arrived. Yields None if there is none."""
    asked = {seat.ready_ref: seat for seat in pool.seats if seat.ready_ref is not None}
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
            yield from _on_result(pool, flying[ref])


def _welcome(pool: Pool, seat: Seat) -> None:
    """Takes the answer of `ready`: the actor gets leases from now on, or rests if the call failed. Raises
    PoolFault if its node has a fault.
    """
    try:
        process, node, fault = ray.get(seat.ready_ref, timeout=30)
    except RayError as error:
        pool.log(seat.number, f"not ready: {_last_line(error)}")
        _rest(pool, seat, error)
        return
    if fault:
        raise PoolFault(f"node {node}: {fault}")
    seat.ready_ref = None
    seat.failures = 0
    pool.log(seat.number, f"process {process} on {node} takes leases")


def _on_result(pool: Pool, seat: Seat) -> Iterator[Done]:
    try:
        done: Done | None = ray.get(seat.flights[0].ref, timeout=60)
    except RayError as error:
        yield from _on_lost(pool, seat, error)
        return
    if done is None:
        pool.queue.extend(flight.lease for flight in seat.flights)
        _rest(pool, seat, None)
    else:
        yield from _on_done(pool, seat, done)


def _on_done(pool: Pool, seat: Seat, done: Done) -> Iterator[Done]:
    lease = seat.flights.popleft().lease
    if seat.flights:
        seat.flights[0].since = time.monotonic()
    pace = done.seconds / len(lease.asks)
    pool.pace_s = pace if not pool.pace_s else 0.9 * pool.pace_s + 0.1 * pace
    pool.log(seat.number, f"lease {lease.number}: {len(lease.asks)} machines in {done.seconds:.3f} s")
    if lease.number not in pool.finished:
        pool.finished.add(lease.number)
        pool.tries.pop(lease.number, None)
        yield done


def _on_lost(pool: Pool, seat: Seat, error: RayError) -> Iterator[Done]:
    """Puts the leases of a lost actor back into the queue, as suspects.

    If it had several leases, nobody knows which one it died of, since answers under way are lost too. If it
    had one lease, that is split into single machines. A lease of one machine that lost TRIES actors is given
    up.
    """
    back = [flight.lease for flight in seat.flights]
    _rest(pool, seat, error)
    pool.log(
        seat.number, f"lost with leases {', '.join(str(lease.number) for lease in back)}: {_last_line(error)}"
    )
    match back:
        case [lease] if len(lease.asks) > 1:
            # numbers that no other lease has: negative, with 12 bits for the machine (driver.MAX_PER_LEASE)
            back = [
                replace(lease, number=-(lease.number << 12) - i, asks=(ask,))
                for i, ask in enumerate(lease.asks)
            ]
        case [lease]:
            pool.tries[lease.number] = pool.tries.get(lease.number, 0) + 1
            if pool.tries[lease.number] == TRIES and lease.number not in pool.finished:
                pool.finished.add(lease.number)
                yield Done(lease, {}, 0.0, f"its actor was lost {TRIES} times ({_last_line(error)})")
    pool.suspects.update(lease.number for lease in back)
    pool.queue.extendleft(lease for lease in reversed(back) if lease.number not in pool.finished)


def _overdue(pool: Pool) -> Iterator[Done]:
    """Kills actors that are past the deadlines of their machines. They did not notice them, as a process that
    is stopped, or in compiled code, does not.
    """
    if pool.job.deadline_s is None:
        return
    now = time.monotonic()
    for seat in pool.seats:
        if seat.flights and now - seat.flights[0].since > GRACE_S + pool.job.deadline_s * len(
            seat.flights[0].lease.asks
        ):
            ray.kill(seat.actor)
            yield from _on_lost(pool, seat, ActorDiedError())


def _last_line(error: RayError) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[-1].strip()}"[:300] if lines else type(error).__name__


def _rest(pool: Pool, seat: Seat, error: RayError | None) -> None:
    """Sends an actor no leases until it, or its replacement, answers `ready` again."""
    seat.flights.clear()
    seat.ready_ref = None
    seat.failures += 1
    seat.rests = time.monotonic() + min(0.1 * 2**seat.failures, 10.0)
    if isinstance(error, ActorDiedError):
        seat.actor = None


def _watch(pool: Pool) -> None:
    """Calls `ready` of actors whose rest is over, replaces dead ones. Raises PoolFault if no actor is left or
    the head is gone.
    """
    now = time.monotonic()
    for seat in pool.seats:
        if seat.rests and now >= seat.rests:
            if seat.actor is None:
                seat.actor = _by_value().remote(ROOT)
            seat.rests, seat.ready_ref = 0.0, seat.actor.ready.remote([pool.job_ref], pool.sources)
    if any(seat.live() for seat in pool.seats):
        pool.alive = now
    elif now - pool.alive > STARVED_S:
        raise PoolFault(
            f"no actor answered for {STARVED_S:.0f} s; add nodes, then resume: all that was committed is safe"
        )
    if now - pool.answered > 2.0:
        if _answers(ray.get_runtime_context().gcs_address):
            pool.answered = now
        elif now - pool.answered > HEAD_S:
            raise PoolFault(
                f"Ray's head has not answered for {HEAD_S:.0f} s; start the cluster again if you "
                "started it by yourself, then dse resume: all that was committed is safe"
            )
