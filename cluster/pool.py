"""Solves leases on Ray actors: one wait loop that retries and splits leases, sends late ones to a second
actor, and replaces dead actors.

`over_ray` has the shape of the builtin `map`: leases in, results out, in the order in which they finish. A
lease is pulled when an actor can take it (at most DEPTH in flight per actor), so a slow reader slows the
actors down. A lease is executed at least once and its result is yielded exactly once.

Retries are handled here (max_task_retries=0), because Ray would repeat them without limit. Ray restarts the
actors (max_restarts=-1). Measured: one actor call costs 1 ms of CPU, twice that with Ray's ActorPool.

The file is longer than the usual 400 lines because it holds two things: the wait loop over one `Pool`, and
starting, joining and watching the cluster.
"""

from __future__ import annotations

import logging
import math
import os

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # Ray reads these variables when it is imported
os.environ["RAY_IGNORE_UNHANDLED_ERRORS"] = "1"  # errors of leases queued after a failed one are dropped here
# seconds of an attempt to join; Ray's default is 30
os.environ.setdefault("RAY_py_gcs_connect_timeout_s", "10")

import re
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from heapq import nsmallest
from pathlib import Path
from typing import Any, Protocol

import ray
from ray import cloudpickle
from ray._private import ray_constants, services
from ray._raylet import AuthenticationTokenLoader, Config
from ray.exceptions import ActorDiedError, AuthenticationError, RayError, RayTaskError
from ray.experimental import internal_kv

from cluster.run_state import Solving, WorkerStats
from cluster.store import RunFault
from cluster.worker import Done, Job, Lease, sources_digest, unpack
from dse.run.temporary import private_folder

WAITING_S = 5.0  # seconds between looks at CPUs for actors that are not live
# leases per actor: the next one waits at the actor while one is solved that takes at most QUEUED_S seconds;
# behind longer ones, or before that is known, it would keep an idle actor, or a stop, waiting
DEPTH, QUEUED_S = 2, 10.0
MAX_HOLDERS = 1 << 14  # batches of which it is known who had them last, a limit of memory
TRIES = 3  # a machine is given up when this many actors have died while solving it alone
MAX_STARTING = 16  # actors started at a time: each imports NumPy and Numba
# an idle actor also solves a lease that is late: after LATE_S seconds, and LATE_TIMES its expected time
LATE_S = 30.0
LATE_TIMES = 5.0
SCAN_S = 1.0  # seconds between looks at every actor
SHOWN_LEASES = 8  # leases in flight that a status shows at most
# seconds after which a lease's worker is asked how far it is, and that its answer may take
ASKED_S, DOING_S = 5.0, 0.5
# after a first result, `wait` sleeps GATHER_PER_CALL_S per outstanding call, at most GATHER_S, then takes all
# results that have arrived
GATHER_PER_CALL_S, GATHER_S = 5e-5, 0.05
GRACE_S = 30.0  # seconds past the deadlines of a lease's machines, after which its actor is killed
# a line that Ray's C++ code writes: [time level process thread] file:line: text
RAY_LINES = re.compile(r"^\[[^\]]*\] [\w.]+:\d+: (.+)$", re.M)
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

    def ready(self, job: list[Any], sources: str) -> tuple[int, str, str, str]:
        """Loads the job. Returns (process, host, node, fault): Ray's name of the node; the fault is empty or
        one line. job: a reference in a list, so that it is fetched after the imports are checked.
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
            fault = worker.plugin_fault(self.loaded) or worker.sink_fault(self.loaded)
        return os.getpid(), socket.gethostname(), client.get_runtime_context().get_node_id(), fault

    def solve(self, lease: Any) -> Any:
        """Returns the Packed answer of a lease; None if the actor was restarted after its last `ready` and
        has no job.
        """
        import ray as client
        from ray.experimental import internal_kv

        from cluster import worker

        key = f"dse doing {client.get_runtime_context().get_actor_id()}"

        def tell(text: str) -> None:
            internal_kv._internal_kv_put(key, f"{lease.number} {text}", overwrite=True)

        return self.loaded and worker.solve_in_actor(self.loaded, lease, tell)


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
    actor: Any  # None: it died and is replaced when its back-off is over
    node: str = ""  # where the actor last answered `ready`
    ready_ref: Any = None  # outstanding call of `ready`; None: it was answered, or the actor backs off
    flights: deque[Flight] = field(default_factory=deque)
    backoff_until: float = 0.0  # time.monotonic() before which it is not called again; 0: no back-off
    failures: int = 0  # in a row; each doubles the back-off

    def live(self) -> bool:
        """True if the actor has answered `ready` and does not back off, so that it may be sent leases."""
        return self.ready_ref is None and not self.backoff_until


class Calls(Protocol):
    """What the loop asks of a cluster. The benchmark of the driver has actors that only wait."""

    def start(self) -> Any:
        """Starts an actor."""

    def ready(self, actor: Any) -> Any:
        """Calls `Solver.ready`. Returns a reference to its answer."""

    def solve(self, actor: Any, lease: Lease) -> Any:
        """Calls `Solver.solve`. Returns a reference to its answer."""

    def wait(self, refs: list[Any], timeout_s: float) -> list[Any]:
        """Waits until an answer has arrived, at most `timeout_s`. Returns the references of all answers that
        have arrived.
        """

    def readiness(self, ref: Any) -> tuple[int, str, str, str]:
        """Returns the answer of `ready` that has arrived. Raises RayError."""

    def done(self, ref: Any, lease: Lease) -> Done | None:
        """Returns the answer of `solve` that has arrived. Raises RayError."""

    def doing(self, actor: Any, lease: Lease) -> str:
        """Returns how far an actor says that it is with a lease; "": nothing was said."""
        return ""

    def kill(self, actor: Any) -> None:
        """Ends an actor."""

    def cpus(self) -> int:
        """Returns how many CPUs the cluster has."""

    def free_cpus(self) -> int:
        """Returns how many of them nobody holds."""

    def unplaced(self) -> int:
        """Returns how many actors of this run have found no node with a free CPU yet."""

    def head_answers(self) -> bool:
        """True if the head answers."""


def _solver_class() -> Any:
    """Returns the actor class, pickled with its code, so that nodes do not import this module."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    return Solver


class RayCalls(Calls):
    """Calls of Ray's actors."""

    def __init__(self, job: Job) -> None:
        self.job, self.job_ref, self.sources = job, ray.put(job), sources_digest()

    def start(self) -> Any:  # noqa: D102
        return _solver_class().remote(ROOT)

    def ready(self, actor: Any) -> Any:  # noqa: D102
        return actor.ready.remote([self.job_ref], self.sources)

    def solve(self, actor: Any, lease: Lease) -> Any:  # noqa: D102
        return actor.solve.remote(lease)

    def wait(self, refs: list[Any], timeout_s: float) -> list[Any]:
        """Ray looks at all references at each call. So with many actors it is called less often: while their
        results gather, these actors work at their next lease (DEPTH).
        """
        arrived, _ = ray.wait(refs, num_returns=1, timeout=timeout_s)
        if arrived and len(refs) > 1:
            time.sleep(min(GATHER_S, GATHER_PER_CALL_S * len(refs)))
            arrived, _ = ray.wait(refs, num_returns=len(refs), timeout=0)
        return list(arrived)

    def readiness(self, ref: Any) -> tuple[int, str, str, str]:  # noqa: D102
        found: tuple[int, str, str, str] = ray.get(ref, timeout=30)
        return found

    def done(self, ref: Any, lease: Lease) -> Done | None:  # noqa: D102
        try:
            packed = ray.get(ref, timeout=60)
        except RayTaskError as fault:
            if isinstance(fault.cause, RunFault):  # a store that takes nothing, a damaged part
                raise PoolFault(str(fault.cause)) from fault
            raise
        return None if packed is None else unpack(self.job, lease, packed)

    def doing(self, actor: Any, lease: Lease) -> str:  # noqa: D102
        key = f"dse doing {actor._actor_id.hex()}".encode()
        with suppress(Exception):  # a head that does not answer is another one's affair
            found = internal_kv.internal_kv_get_gcs_client().internal_kv_get(key, None, timeout=DOING_S)
            number, _, text = (found or b"").decode().partition(" ")
            return text if number == str(lease.number) else ""
        return ""

    def kill(self, actor: Any) -> None:  # noqa: D102
        with suppress(RayError):
            ray.kill(actor)

    def cpus(self) -> int:  # noqa: D102
        return int(ray.cluster_resources().get("CPU", 0))

    def free_cpus(self) -> int:  # noqa: D102
        return int(ray.available_resources().get("CPU", 0))

    def unplaced(self) -> int:
        """The head gives an actor an address once a node has a process for it; it is pending until that has
        started.
        """
        job = ray.JobID.from_hex(ray.get_runtime_context().get_job_id())
        pending = ray._private.state.actors(job_id=job, actor_state_name="PENDING_CREATION")
        return sum(not one["Address"]["IPAddress"] for one in pending.values())

    def head_answers(self) -> bool:  # noqa: D102
        return _answers(ray.get_runtime_context().gcs_address)


@dataclass(slots=True)
class Pool:
    """State of one run's loop. Keys of dicts of slots are `slot.number` (of `outstanding`: Ray's references);
    all other keys and set members are `lease.number`.
    """

    calls: Calls
    deadline_s: float | None  # seconds per machine
    workers: int | None  # actors; None: one per CPU of the cluster
    log: Log
    worker_stats: WorkerStats  # counters of the session; `retries`, `live` and `busy` are counted here
    starved_s: float = math.inf  # seconds without a live actor, after which the run stops
    slots: list[ActorSlot] = field(default_factory=list)
    # slots by state (`_index`): each slot is in exactly one of these three; in none if it has DEPTH leases,
    # or if its first lease is a suspect or takes long (`_dispatch` takes it out)
    not_live: dict[int, ActorSlot] = field(default_factory=dict)
    idle: dict[int, ActorSlot] = field(default_factory=dict)
    queueable: dict[int, ActorSlot] = field(default_factory=dict)
    # node -> slots whose actors were last seen there
    on_node: dict[str, dict[int, ActorSlot]] = field(default_factory=dict)
    # batch -> the slot that was sent a lease of it last, and its node
    holders: dict[int, tuple[ActorSlot, str]] = field(default_factory=dict)
    # reference to an answer that is awaited (of `ready`, or of a slot's first lease) -> the slot
    outstanding: dict[Any, ActorSlot] = field(default_factory=dict)
    in_flight: dict[int, int] = field(default_factory=dict)  # lease without a result -> actors that have it
    queue: deque[Lease] = field(default_factory=deque)  # leases to send again
    late: deque[Lease] = field(default_factory=deque)  # leases that an idle actor is to solve too
    # leases whose actor died: perhaps they kill it, so an actor that has one gets no other lease
    suspects: set[int] = field(default_factory=set)
    # number of a suspect that is one machine -> actors that died while they had it
    tries: dict[int, int] = field(default_factory=dict)
    # leases that two actors had and whose first result was yielded
    drop_second_result: set[int] = field(default_factory=set)
    copied: set[int] = field(default_factory=set)  # late leases that a second actor solves
    pace_s: float = 0.0  # seconds per machine, moving average
    added_at: float = 0.0  # time.monotonic() when actors were last added
    scanned_at: float = 0.0  # time.monotonic() when every actor was last looked at
    last_live_at: float = 0.0  # time.monotonic() when an actor was last live
    head_answered_at: float = 0.0  # time.monotonic() when the head last answered
    asked_at: float = 0.0  # time.monotonic() when it was last asked for its free CPUs


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
        _keep_sigterm(),
        loopback() if loopback_only else nullcontext(),
        nullcontext() if address else private_folder("dse-", _short_top()) as temporary,
    ):
        try:
            if address:
                _join(address, ray_options)
            else:
                _start(num_cpus=workers or os.cpu_count(), _temp_dir=str(temporary / "ray"), **ray_options)
            _take_sigterm_back()
            yield int(ray.cluster_resources().get("CPU", 0))
        finally:
            ray.shutdown()


def servers() -> list[tuple[str, int]]:
    """(host, port) of the processes of Ray that this one cannot live without: the head, and the raylet of its
    node.
    """
    context = ray.get_runtime_context()
    host, port = _host(context.gcs_address)
    own = [node for node in ray.nodes() if node["NodeID"] == context.get_node_id()]
    return [(host, int(port)), *((node["NodeManagerAddress"], node["NodeManagerPort"]) for node in own)]


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

    def on_alarm(_signal: int, _frame: object) -> None:
        raise Unjoined

    old_handler = signal.signal(signal.SIGALRM, on_alarm) if in_main_thread else None
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
def _keep_sigterm() -> Iterator[None]:
    """Keeps this process's handler of SIGTERM, also while Ray starts: Ray's own ends the process with exit
    code 15.
    """
    set_handler = ray._private.utils.set_sigterm_handler
    ray._private.utils.set_sigterm_handler = lambda _handler: None
    try:
        yield
    finally:
        ray._private.utils.set_sigterm_handler = set_handler


def _take_sigterm_back() -> None:
    """Sets this process's handler of SIGTERM again: Ray's C++ code, once it has started, has put one before
    it that aborts the process 3 s later.
    """
    handler = signal.getsignal(signal.SIGTERM)
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)


@contextmanager
def ray_output_in(path: Path) -> Iterator[None]:
    """Appends to a file what Ray's C++ code writes to descriptor 2, and what Ray prints of lost raylets.
    Python's stderr is still written to where it was before.
    """
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o666)
    except OSError:  # the run's own writes will say why
        yield
        return
    sys.stderr.flush()
    screen, python_stderr = os.dup(2), sys.stderr
    with suppress(OSError, AttributeError, ValueError):  # under a notebook stderr is no descriptor
        if python_stderr.fileno() == 2:
            sys.stderr = os.fdopen(os.dup(screen), "w", 1, python_stderr.encoding, "backslashreplace")
    os.dup2(handle, 2)
    os.close(handle)
    print_to_screen = ray._private.worker.print_to_stdstream
    ray._private.worker.print_to_stdstream = lambda data, **_: os.write(
        2, "".join(f"{line}\n" for line in data["lines"]).encode()
    )
    try:
        yield
    finally:
        ray._private.worker.print_to_stdstream = print_to_screen
        sys.stderr.flush()
        sys.stderr = python_stderr
        os.dup2(screen, 2)
        os.close(screen)


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


def _short_top() -> str:
    """Returns a folder of temporary files with a short path: those of Unix sockets have at most 107 bytes."""
    return next(
        (d for d in (tempfile.gettempdir(), "/tmp") if len(d) < 20 and os.access(d, os.W_OK)),
        tempfile.gettempdir(),
    )


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
    job: Job, workers: int | None, log: Log, worker_stats: WorkerStats, leases: Iterator[Lease | None]
) -> Iterator[Done | None]:
    """Yields the results of all leases as they finish, from `workers` Ray actors (None: one per CPU of the
    cluster, also of nodes that join later). See `over_actors`.
    """
    starved_s = job.study.limits.starved_seconds
    return over_actors(Pool(RayCalls(job), job.deadline_s, workers, log, worker_stats, starved_s), leases)


def over_actors(pool: Pool, leases: Iterator[Lease | None]) -> Iterator[Done | None]:
    """Yields the results of all leases as they finish.

    leases: pulled when an actor is free; it yields None if no lease is available until another result is in
    yielded None: some time has passed without a result

    A machine that fails TRIES times comes back as a Done without tables and with `lost`. Raises PoolFault if
    the head is lost, no actor is alive, or a node imports other sources than the driver.

    The work of one round is proportional to the results that arrived and to the actors that are not live;
    only `_scan`, once in SCAN_S, looks at every actor.
    """
    pool.last_live_at = pool.head_answered_at = pool.asked_at = time.monotonic()
    has_more = True
    try:
        while True:
            _grow(pool)
            has_more = _dispatch(pool, leases, has_more)
            if not (has_more or pool.queue or pool.in_flight):
                return
            yield from _collect(pool)
            yield from _scan(pool)
            _watch(pool)
    finally:
        for slot in pool.slots:
            if slot.actor is not None:
                pool.calls.kill(slot.actor)


def _grow(pool: Pool) -> None:
    """Starts actors up to the wanted number, at most `MAX_STARTING` at a time. Nodes that join later raise
    the number. Actors beyond the CPUs that there are start nothing but an autoscaler, so they are asked for
    at once.
    """
    now = time.monotonic()
    if now - pool.added_at < 5.0 and pool.slots:
        return
    pool.added_at = now
    if pool.slots and (len(pool.slots) == pool.workers or not pool.calls.head_answers()):
        return  # without its head Ray does not answer how many CPUs there are
    cpus = pool.calls.cpus()
    wanted = pool.workers or max(1, cpus)
    starting = max(0, min(wanted, cpus) - len(pool.slots))
    room = max(1, MAX_STARTING - len(pool.not_live))
    for _ in range(min(starting, room) if starting > room else wanted - len(pool.slots)):
        actor = pool.calls.start()
        slot = ActorSlot(len(pool.slots) + 1, actor)
        pool.slots.append(slot)
        _call_ready(pool, slot)


def _call_ready(pool: Pool, slot: ActorSlot) -> None:
    slot.backoff_until, slot.ready_ref = 0.0, pool.calls.ready(slot.actor)
    pool.outstanding[slot.ready_ref] = slot
    _index(pool, slot)


def _index(pool: Pool, slot: ActorSlot) -> None:
    """Enters a slot in the index of its state: not live, idle, or able to queue one lease more."""
    for index in (pool.not_live, pool.idle, pool.queueable):
        index.pop(slot.number, None)
    if not slot.live():
        pool.not_live[slot.number] = slot
    elif not slot.flights:
        pool.idle[slot.number] = slot
    elif len(slot.flights) < DEPTH:
        pool.queueable[slot.number] = slot


def _dispatch(pool: Pool, leases: Iterator[Lease | None], has_more: bool) -> bool:
    """Sends leases to actors, first to idle ones, then behind the leases of others. Returns False when there
    are no further leases.
    """
    lease: Lease | None
    while pool.idle:
        lease, has_more = _next_lease(pool, leases, has_more, is_idle=True)
        if lease is None:
            return has_more
        _send(pool, _slot_for(pool, lease, pool.idle), lease)
    has_suspects = any(queued.number in pool.suspects for queued in pool.queue)
    while pool.queueable and pool.pace_s and not has_suspects:
        slot = next(iter(pool.queueable.values()))
        first = slot.flights[0].lease
        if first.number in pool.suspects or pool.pace_s * len(first.asks) > QUEUED_S:
            del pool.queueable[slot.number]
            continue
        lease, has_more = _next_lease(pool, leases, has_more, is_idle=False)
        if lease is None:
            return has_more
        _send(pool, _slot_for(pool, lease, pool.queueable), lease)
    return has_more


def _slot_for(pool: Pool, lease: Lease, free: dict[int, ActorSlot]) -> ActorSlot:
    """Returns the free slot that a lease is sent to: the one that had machines of the lease's batch last, as
    its process holds their shared mappings; else one on the same node, whose $DSE_CACHE has them; else the
    one that is free for longest. A lease whose actor died or is late goes to that one, too: its node may be
    the reason.
    """
    is_suspect_or_late = lease.number in pool.suspects or lease.number in pool.copied
    if lease.batch in pool.holders and not is_suspect_or_late:
        last_slot, node = pool.holders[lease.batch]
        for slot in (last_slot, *pool.on_node.get(node, {}).values()):
            has_suspect = slot.flights and slot.flights[0].lease.number in pool.suspects
            if slot.node == node and slot.number in free and not has_suspect:
                return slot
    return next(iter(free.values()))


def _next_lease(
    pool: Pool, leases: Iterator[Lease | None], has_more: bool, is_idle: bool
) -> tuple[Lease | None, bool]:
    """Returns (the next lease for an actor: one to send again, else a new one, else for an idle actor one
    that is late; whether `leases` may have further ones).
    """
    for queued in pool.queue:
        if _may_send(pool, queued, is_idle):
            pool.queue.remove(queued)
            return queued, has_more
    if has_more:
        try:
            if (lease := next(leases)) is not None:
                return lease, True
        except StopIteration:
            has_more = False
    while is_idle and pool.late:
        if (lease := pool.late.popleft()).number in pool.in_flight:
            return lease, has_more
    return None, has_more


def _send(pool: Pool, slot: ActorSlot, lease: Lease) -> None:
    """Calls `solve` of a slot's actor; the lease waits there behind those that the actor has."""
    flight = Flight(pool.calls.solve(slot.actor, lease), lease, time.monotonic())
    if not slot.flights:
        pool.outstanding[flight.ref] = slot
    slot.flights.append(flight)
    pool.in_flight[lease.number] = pool.in_flight.get(lease.number, 0) + 1
    if lease.batch:
        pool.holders.pop(lease.batch, None)
        pool.holders[lease.batch] = slot, slot.node
        if len(pool.holders) > MAX_HOLDERS:
            del pool.holders[next(iter(pool.holders))]
    _index(pool, slot)


def _may_send(pool: Pool, lease: Lease, is_idle: bool) -> bool:
    """True if this lease may be sent to an actor. A suspect needs an idle actor. While a suspect is on its
    last try, no other suspect is in flight: a machine that exhausts the memory of a node also kills the other
    actors there.
    """
    if lease.number not in pool.suspects:
        return True
    others = pool.suspects & pool.in_flight.keys() if is_idle else set()
    return is_idle and not (others and any(_on_last_try(pool, number) for number in (lease.number, *others)))


def _on_last_try(pool: Pool, number: int) -> bool:
    return pool.tries.get(number, 0) == TRIES - 1


def _collect(pool: Pool) -> Iterator[Done | None]:
    """Waits at most 0.5 s for an answer, then takes all that have arrived. Yields None if there is none."""
    if not pool.outstanding:
        time.sleep(0.1)
    arrived = pool.calls.wait([*pool.outstanding], 0.5) if pool.outstanding else []
    if not arrived:
        yield None
    for ref in arrived:
        slot = pool.outstanding[ref]
        if ref is slot.ready_ref:
            _on_ready(pool, slot)
        else:
            yield from _on_result(pool, slot)


def _on_ready(pool: Pool, slot: ActorSlot) -> None:
    """Takes the answer of `ready`: the actor gets leases from now on, or backs off if the call failed. Raises
    PoolFault if its node has a fault.
    """
    try:
        process, host, node, fault = pool.calls.readiness(slot.ready_ref)
    except RayError as error:
        pool.log(slot.number, f"not ready: {_last_line(error)}")
        _back_off(pool, slot, error)
        return
    if fault:
        raise PoolFault(f"node {host}: {fault}")
    pool.on_node.get(slot.node, {}).pop(slot.number, None)
    pool.on_node.setdefault(node, {})[slot.number] = slot
    slot.node = node
    pool.outstanding.pop(slot.ready_ref)
    slot.ready_ref = None
    slot.failures = 0
    _index(pool, slot)
    pool.log(slot.number, f"process {process} on {host} takes leases")


def _on_result(pool: Pool, slot: ActorSlot) -> Iterator[Done]:
    """Takes the answer of a slot's first lease. None: the actor was restarted and has no job, so its leases
    are sent again.
    """
    try:
        done = pool.calls.done(slot.flights[0].ref, slot.flights[0].lease)
    except RayError as error:
        yield from _on_lost(pool, slot, error)
        return
    if done is None:
        pool.queue.extend(_take_back(pool, slot, None))
    else:
        yield from _on_done(pool, slot, done)


def _on_done(pool: Pool, slot: ActorSlot, done: Done) -> Iterator[Done]:
    """Yields the result of a slot's first lease, unless another actor's was yielded before."""
    flight = slot.flights.popleft()
    pool.outstanding.pop(flight.ref, None)
    if slot.flights:
        slot.flights[0].since = time.monotonic()
        pool.outstanding[slot.flights[0].ref] = slot
    _index(pool, slot)
    lease = flight.lease
    if lease.asks:
        pace = done.seconds / len(lease.asks)
        pool.pace_s = pace if not pool.pace_s else 0.9 * pool.pace_s + 0.1 * pace
    shared = f", after {done.shared_s:.1f} s for what machines share" * (done.shared_s >= 0.05)
    pool.log(slot.number, f"lease {lease.number}: {len(lease.asks)} machines in {done.seconds:.3f} s{shared}")
    for line in done.warnings:
        pool.log(slot.number, line)
        logging.getLogger("dse").warning("actor %d: %s", slot.number, line)
    if lease.number not in pool.drop_second_result:
        _finish(pool, lease)
        yield done


def _finish(pool: Pool, lease: Lease) -> None:
    """Forgets a lease whose result is yielded. If another actor has it too, that result will be dropped."""
    if pool.in_flight.pop(lease.number, 0) > 1 or lease.number in pool.copied:
        pool.drop_second_result.add(lease.number)
    pool.tries.pop(lease.number, None)
    pool.suspects.discard(lease.number)


def _on_lost(pool: Pool, slot: ActorSlot, error: RayError) -> Iterator[Done]:
    """Puts the leases of a lost actor back into the queue, as suspects.

    If it had several leases, nobody knows which one it died of, since answers under way are lost too. If it
    had one lease, this is split into single machines. A lease of one machine that lost TRIES actors is given
    up.
    """
    numbers = ", ".join(str(flight.lease.number) for flight in slot.flights)
    pool.log(slot.number, f"lost with leases {numbers}: {_last_line(error)}")
    is_alone = len(slot.flights) == 1
    returned = _take_back(pool, slot, error)
    match returned if is_alone else []:
        case [lease] if len(lease.asks) > 1:
            pool.suspects.discard(lease.number)
            # numbers that no other lease has: negative, with 12 bits for the machine (driver.MAX_PER_LEASE)
            returned = [
                replace(lease, number=-(lease.number << 12) - i, asks=(ask,))
                for i, ask in enumerate(lease.asks)
            ]
        case [lease]:
            pool.tries[lease.number] = pool.tries.get(lease.number, 0) + 1
            if pool.tries[lease.number] == TRIES:
                _finish(pool, lease)
                yield Done(lease, {}, 0.0, f"its actor was lost {TRIES} times ({_last_line(error)})")
                return
    pool.worker_stats.retries += len(returned)
    pool.suspects.update(lease.number for lease in returned)
    pool.queue.extendleft(reversed(returned))


def _take_back(pool: Pool, slot: ActorSlot, error: RayError | None) -> list[Lease]:
    """Takes the leases from an actor, which backs off. Returns those to send again: neither finished, nor of
    another actor, too. So no two leases with a machine in common are ever in flight.
    """
    leases = [flight.lease for flight in slot.flights]
    _back_off(pool, slot, error)
    # of a late lease that only the other actor has now there may be a second copy again
    pool.copied.difference_update({lease.number for lease in leases} & pool.in_flight.keys())
    return [
        lease
        for lease in leases
        if lease.number not in pool.drop_second_result and lease.number not in pool.in_flight
    ]


def _scan(pool: Pool) -> Iterator[Done]:
    """Looks at every actor once in SCAN_S: kills those that are overdue, notes leases that are late, and
    those that are in flight longest.
    """
    now = time.monotonic()
    if now - pool.scanned_at < SCAN_S:
        return
    pool.scanned_at = now
    for slot in pool.slots:
        for flight in slot.flights:
            if pool.idle and _is_late(pool, flight, now):
                pool.copied.add(flight.lease.number)
                pool.late.append(flight.lease)
                pool.log(slot.number, f"lease {flight.lease.number} is late; an idle actor solves it too")
        if slot.flights and _is_overdue(pool, slot.flights[0], now):
            pool.calls.kill(slot.actor)
            yield from _on_lost(pool, slot, ActorDiedError())
    first = [(slot, slot.flights[0]) for slot in pool.slots if slot.flights]
    longest = nsmallest(SHOWN_LEASES, first, key=lambda one: one[1].since)
    started_at = time.time() - now  # time.time() at 0 of time.monotonic()
    pool.worker_stats.solving = tuple(
        Solving(
            slot.number,
            flight.lease.asks[0].machine,
            len(flight.lease.asks),
            started_at + flight.since,
            pool.calls.doing(slot.actor, flight.lease) if now - flight.since > ASKED_S else "",
        )
        for slot, flight in longest
        if flight.lease.asks
    )


def _is_late(pool: Pool, flight: Flight, now: float) -> bool:
    """True for a lease that its actor should have finished long ago (a stopped process, a swapping or
    unreachable node), and that no second actor has.
    """
    number, machines = flight.lease.number, len(flight.lease.asks)
    allowed_s = max(LATE_S, LATE_TIMES * pool.pace_s * machines * DEPTH)
    return (
        now - flight.since > allowed_s and number not in pool.copied and number not in pool.drop_second_result
    )


def _is_overdue(pool: Pool, flight: Flight, now: float) -> bool:
    """True if an actor is past the deadlines of its lease's machines. The worker checks deadlines itself, but
    cannot while it is stopped or inside compiled code.
    """
    return pool.deadline_s is not None and now - flight.since > GRACE_S + pool.deadline_s * len(
        flight.lease.asks
    )


def _last_line(error: RayError) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[-1].strip()}"[:300] if lines else type(error).__name__


def _back_off(pool: Pool, slot: ActorSlot, error: RayError | None) -> None:
    """Sends an actor no leases until it, or its replacement, answers `ready` again."""
    for ref in (slot.ready_ref, *(flight.ref for flight in slot.flights)):
        pool.outstanding.pop(ref, None)
    for flight in slot.flights:
        if (others := pool.in_flight.get(flight.lease.number, 0) - 1) > 0:
            pool.in_flight[flight.lease.number] = others
        else:
            pool.in_flight.pop(flight.lease.number, None)
    slot.flights.clear()
    slot.ready_ref = None
    slot.failures += 1
    slot.backoff_until = time.monotonic() + min(0.1 * 2**slot.failures, 10.0)
    if isinstance(error, ActorDiedError):
        slot.actor = None
    _index(pool, slot)


def _waiting_text(pool: Pool) -> str:
    """Returns a line on the workers that find no free CPU in the cluster; "" if there are none."""
    if not pool.not_live or not pool.calls.head_answers() or pool.calls.free_cpus() > 0:
        return ""
    if not (missing := pool.calls.unplaced()):
        return ""
    cpus = pool.calls.cpus()
    has = f"{cpus} CPU{'s' * (cpus > 1)}, none of them free" if cpus else "no CPUs"
    ends = pool.starved_s < math.inf and not pool.worker_stats.live
    ending = f"; ends after {pool.starved_s:g} s (limits.starved_seconds)" if ends else ""
    return (
        f"waits for CPUs for {missing} worker{'s' * (missing > 1)}: the Ray cluster has {has}; free some or "
        f"add nodes, and it goes on by itself{ending}"
    )


def _watch(pool: Pool) -> None:
    """Calls `ready` of actors whose back-off is over, replaces dead ones. Raises PoolFault if no actor was
    live for `starved_s`, or the head did not answer for HEAD_S.
    """
    now = time.monotonic()
    for slot in [slot for slot in pool.not_live.values() if slot.backoff_until and now >= slot.backoff_until]:
        if slot.actor is None:
            slot.actor = pool.calls.start()
        _call_ready(pool, slot)
    pool.worker_stats.live = len(pool.slots) - len(pool.not_live)
    pool.worker_stats.busy = pool.worker_stats.live - len(pool.idle)
    if now - pool.asked_at > WAITING_S:
        pool.worker_stats.nodes = len(pool.on_node)
        pool.worker_stats.nodes_lost = sum(
            own.keys() <= pool.not_live.keys() for own in pool.on_node.values()
        )
        pool.asked_at, pool.worker_stats.waiting = now, _waiting_text(pool)
    if pool.worker_stats.live:
        pool.last_live_at = now
    elif now - pool.last_live_at > pool.starved_s:
        raise PoolFault(
            f"no actor answered for {pool.starved_s:g} s (limits.starved_seconds); add nodes, then resume: "
            "all that was committed is safe"
        )
    if now - pool.head_answered_at > 2.0:
        if pool.calls.head_answers():
            pool.head_answered_at = now
        elif now - pool.head_answered_at > HEAD_S:
            raise PoolFault(
                f"Ray's head has not answered for {HEAD_S:.0f} s; start the cluster again if you "
                "started it by yourself, then dse resume: all that was committed is safe"
            )
