"""Leases over Ray actors: a bounded wait loop that owns retries, splits, copies and replacements.

`over_ray` has the shape of the builtin `map`: leases in, results out, in the order in which they finish.
Leases are pulled when an actor has room (at most DEPTH in flight each), so a slow reader slows the actors
down. Executed at least once, yielded exactly once. Retries are ours (max_task_retries=0: Ray would rerun
without a bound); Ray restarts the actors (max_restarts=-1). Measured: one actor call costs 1 ms of CPU,
ActorPool twice that. Longer than 400 lines: the loop over one state, and the cluster that it starts, joins
and watches.
"""

from __future__ import annotations

import logging
import os

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # these are read when ray is imported
os.environ["RAY_IGNORE_UNHANDLED_ERRORS"] = "1"  # what fails behind a failed lease is dropped on purpose
# one attempt to join; Ray makes twenty, of 30 s each
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
TRIES = 3  # times that an actor may die of one machine
WAVE = 16  # actors started at a time: each imports NumPy and Numba
LATE_S = 30.0  # an idle actor takes a copy of a lease that is this late, and LATE_TIMES its expected time
LATE_TIMES = 5.0
GRACE_S = 30.0  # past the deadlines of a lease's machines, before its actor is ended from outside
# a line of Ray's C++ side: [time level process thread] file:line: what
RAY_LINES = re.compile(r"^\[[^\]]*\] [\w.]+:\d+: (.+)$", re.M)
STARVED_S = 300.0  # without one live actor
JOIN_S = 40.0  # to join a cluster that is there already: a busy machine takes 20
# of Ray to join, a second apart where it is refused: its own answer comes before JOIN_S are over
ATTEMPTS, WAIT = "10", "RAY_gcs_server_port_wait_time_s"
HEAD_S = 15.0  # the head does not answer; Ray itself ends the process after 60 s
TOKEN = "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN (or ~/.ray/auth_token) to the cluster's token"
SAME = (
    "install the same sources on every node, and change none during a run; then resume: all that was "
    "committed is safe"
)
OBJECT_STORE_BYTES = 256 << 20
# ray.init sets them; a later cluster may have no tokens
LEAKS = ("RAY_AUTH_MODE", "RAY_CLIENT_MODE", "PYTHONBREAKPOINT")
LOCAL = ("127.0.0.1", "localhost", "::1")
# "0": Ray's daemons listen on 127.0.0.1, else on every address of the machine
INNER = ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR
MARK = ".dse"  # in Ray's folder; locked while its cluster lives
ROOT = str(Path(__file__).resolve().parent.parent)
Log = Callable[[int, str], None]  # (number of the actor, line)


class PoolFault(RunFault):
    """The cluster cannot go on."""


@ray.remote(num_cpus=1, max_restarts=-1, max_task_retries=0)
class Solver:
    """Solves leases. Pickled by value and importing late: a folder `cluster` in the user's directory must not
    be found first.
    """

    def __init__(self, root: str) -> None:
        import os
        import sys

        self.loaded: Any = None
        if os.path.isfile(os.path.join(root, "cluster", "worker.py")):
            sys.path.insert(0, root)

    def ready(self, job: list[Any], sources: str) -> tuple[int, str, str]:
        """(process, node, fault); the fault is empty, or one line. job: in a list, so that it is fetched
        after the imports are checked.
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
        """Done, or None from an actor that was restarted since it was last asked whether it is ready."""
        from cluster import worker

        return self.loaded and worker.solve_lease(self.loaded, lease)


@dataclass(slots=True)
class Flight:
    """A lease that an actor works on. ref: of its future result; since: time.monotonic() when it was sent."""

    ref: Any
    lease: Lease
    since: float


@dataclass(slots=True)
class Seat:
    """One actor. ready_ref: its outstanding `ready`; None and not rests: it takes leases."""

    number: int
    actor: Any
    ready_ref: Any
    flights: deque[Flight] = field(default_factory=deque)
    rests: float = 0.0  # do not ask again before this moment
    failures: int = 0

    def live(self) -> bool:
        """True if the actor has answered `ready` and does not rest: it may be sent leases."""
        return self.ready_ref is None and not self.rests


@dataclass(slots=True)
class Pool:
    """State of one run's loop. queue: leases that came back; suspects: those whose actor died, alone with
    theirs from then on; tries: how often that happened again to a suspect of one machine.
    """

    job_ref: Any
    job: Job
    workers: int | None
    log: Log
    sources: str = ""
    seats: list[Seat] = field(default_factory=list)
    queue: deque[Lease] = field(default_factory=deque)
    suspects: set[int] = field(default_factory=set)
    tries: dict[int, int] = field(default_factory=dict)
    finished: set[int] = field(default_factory=set)
    copied: set[int] = field(default_factory=set)
    pace_s: float = 0.0  # seconds per machine, moving average
    started: int = 0
    grown: float = 0.0
    alive: float = 0.0
    answered: float = 0.0


class Unjoined(BaseException):
    """JOIN_S have passed. Ray's own attempts swallow every Exception."""


@contextmanager
def cluster(address: str | None, workers: int | None) -> Iterator[int]:
    """Joins the cluster at `address`, or starts one on this machine; gives the number of its CPUs. All is
    shut down on leaving.

    Raises PoolFault if there is no cluster at the address, or none that this process can join.
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
    """ray.init of a cluster on this machine. Raises PoolFault in one line, whatever part of it did not come
    up.
    """
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
    """ray.init for JOIN_S at most (Ray itself waits for minutes where its head is not reached, or has no node
    on this machine). What Ray says is passed on.
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
    """Takes what Ray's C++ side writes past Python, a line per second of a vain attempt; afterwards its
    messages stand in `said`.
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
    """A local cluster of Ray 2.60 turns tokens on for the whole process: one that is joined later may have
    none, and would drop us in silence.
    """
    try:
        with restore_environment(LEAKS):
            yield
    finally:
        Config.initialize("")  # reads the environment again
        AuthenticationTokenLoader.instance().reset_cache()


@contextmanager
def restore_environment(names: Iterable[str]) -> Iterator[None]:
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
    """A cluster started inside is reached from this machine only, and reaches no further. Ray 2.60 takes
    `_node_ip_address` for a name, not for where to listen; and its dashboard, started without pages as well,
    asks for the cloud (169.254.169.254) even where nothing is reported.
    """
    enabled = ray_constants.ENABLE_RAY_CLUSTER  # read from INNER when ray was imported
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
    """One line: the last that Ray said, and what helps. answered: Ray gave up by itself, before JOIN_S were
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
            "cluster has a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN to it, if it has none, "
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
    """A folder for a cluster's files that no other user can enter (Ray opens its own one to all), with a
    short path (Unix sockets hold 107 bytes).

    Those that killed runs left behind go: folders of this user with a mark that nobody holds. A number in a
    name is not enough.
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
    """The lock on the mark in a private folder of this user; None if it is none, or if somebody holds it."""
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
    """Somebody listens at host:port (of localhost also at the outer address). Ray itself would wait for
    minutes.
    """
    host, port = _host(address)
    return _listens(host, port) or (host in LOCAL and _listens(ray.util.get_node_ip_address(), port))


def _loopback_only(address: str) -> bool:
    """A cluster as `loopback` makes it: Ray would look for it at the outer address of this machine."""
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
    """Results of all leases, as they finish, from `workers` actors (None: one per CPU of the cluster, also of
    those that join later).

    leases: pulled when there is room; None says that there is nothing to do before a further result is in. A
    None among the results says that some time has passed without one. A machine that fails all its tries
    comes back as a Done without tables and with `lost`. Raises PoolFault: head lost, no actor alive, a node
    that imports other packages than ours.
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
    return Seat(pool.started, actor, actor.ready.remote([pool.job_ref], pool.sources))


def _by_value() -> Any:
    """The actor class, pickled whole: its module is not looked up on the other side."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    return Solver


def _dispatch(pool: Pool, leases: Iterator[Lease | None], more: bool) -> bool:
    """Fill the free places, evenly; False when the leases have come to their end."""
    for depth in range(1, DEPTH + 1):
        for seat in pool.seats:
            if not _room(pool, seat, depth):
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


def _room(pool: Pool, seat: Seat, depth: int) -> bool:
    """Nothing is put behind a suspect; and while one waits, behind no lease, so that an actor gets free for
    it.
    """
    if not seat.live() or len(seat.flights) >= depth:
        return False
    return not seat.flights or not any(
        lease.number in pool.suspects for lease in (seat.flights[0].lease, *pool.queue)
    )


def _may_go(pool: Pool, seat: Seat, lease: Lease) -> bool:
    """A suspect goes to an idle actor, and has its last try while no other suspect flies: one that eats the
    memory of a node kills its neighbours.
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
    """A lease that another actor should have finished long ago (stopped, swapped out, cut off), to be solved
    twice.
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
    """Wait for one answer, then take all that are there; None if there was none."""
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
    """Leases of a lost actor go back, each to be alone with an actor from now on.

    Which of several it died of is not known: it takes the answers along that are on their way. One that was
    alone is split into its machines, a machine that was alone TRIES times is given up.
    """
    back = [flight.lease for flight in seat.flights]
    _rest(pool, seat, error)
    pool.log(
        seat.number, f"lost with leases {', '.join(str(lease.number) for lease in back)}: {_last_line(error)}"
    )
    match back:
        case [lease] if len(lease.asks) > 1:
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
    """End actors that sit in compiled code, or are stopped, past the deadlines of their machines."""
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
    """Take no more leases until the actor, or the one in its place, answers again."""
    seat.flights.clear()
    seat.ready_ref = None
    seat.failures += 1
    seat.rests = time.monotonic() + min(0.1 * 2**seat.failures, 10.0)
    if isinstance(error, ActorDiedError):
        seat.actor = None


def _watch(pool: Pool) -> None:
    """Ask resting actors again, replace dead and overdue ones; stop with one line if nobody is left or the
    head is gone.
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
                f"Ray's head has not answered for {HEAD_S:.0f} s; start the cluster again if it is "
                "one of yours, then "
                "dse resume: all that was committed is safe"
            )
