"""Leases over real Ray actors: the same rows as in-process, machines that kill their actor, decoys, Ctrl-C,
no cluster.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, pairwise, repeat
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ray.exceptions import ActorDiedError
from ray.experimental import internal_kv

from cluster import driver, objects, pool, worker
from cluster import store as stores
from cluster.run_state import WorkerStats
from cluster.store import RunFault
from cluster.worker import Ask, Done, Lease
from dse.frontend import progress
from dse.run import doing, folder
from dse.run.installed import PACKAGES
from dse.study import study as studies
from tests.amount import FULL, amount, some
from tests.cursed import under_curse
from tests.test_driver import HEAVY, SIZE, events, rows, statuses, study

pytestmark = pytest.mark.xdist_group("ray")

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("method", some(["exhaustive", "tpe"], 1))
def test_rows_are_the_same_with_no_one_and_two_workers(tmp_path: Path, head: str, method: str) -> None:
    small = study(tmp_path, method, 8, "machines: 32" if method == "tpe" else "")
    expected = None
    for workers in some((0, 1, 2), 0, 2):
        assert driver.run(small, tmp_path / f"{workers}", workers=workers, address=head).exit_code == 0
        found = rows(tmp_path / f"{workers}")
        assert found == (expected := expected or found)
    assert list((tmp_path / "2" / "log").glob("actor-*.log"))


def test_rows_that_actors_write_are_those_that_the_driver_writes(
    tmp_path: Path, head: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Into a folder, and onto a store; merged by actors, too."""
    monkeypatch.setenv("DSE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(stores, "FAN_IN", 3)
    monkeypatch.setattr(driver, "COMMIT_S", 0.0)  # a merge is planned however fast the machines are
    small = study(tmp_path, stop="" if FULL else "machines: 40")
    driver.run(small, tmp_path / "driver", workers=0)
    for place in some((str(tmp_path / "run"), f"file://{tmp_path}/store"), 1):
        with objects.run_folder(place) as out:
            ended = driver.run(
                replace(small, sink="worker"), out.path, 1, address=head, publisher=out.publisher
            )
            assert ended.exit_code == 0
            assert not out.publisher or not list(out.path.glob("parts/points/*"))
        found = objects.fetched(place) if out.publisher else out.path
        assert rows(found) == rows(tmp_path / "driver")
        assert any(group.is_by_worker() and group.level for group in folder.read(found).groups)


def test_a_machine_that_kills_its_actor_is_split_out(
    tmp_path: Path, head: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = 3 if FULL else 2
    monkeypatch.setattr(pool, "TRIES", tries)
    study(tmp_path)
    few = ["glb.capacity=[2 KiB, 4 KiB]", "array.x=[1, 2, 4]", "array.y=[4]"]
    small = studies.load(tmp_path / "exhaustive.yaml", [f"space.{axis}" for axis in few])
    workers = 2 if FULL else 1
    out = driver.run(under_curse(small), tmp_path / "run", workers=workers, address=head)
    assert out.exit_code == 1
    assert out.status.done == small.space.size == 12
    assert statuses(tmp_path / "run")["error"] == 1
    assert "lost" in events(tmp_path / "run", "error")[0]
    assert all(line.startswith("actor ") for line in events(tmp_path / "run", "lost"))
    assert len(events(tmp_path / "run", "lost")) >= tries


class Boxes(pool.Calls):
    """Actors, on two nodes in turn, whose leases lie there until the test answers them or lets the actor
    die.
    """

    def readiness(self, ref: int) -> tuple[int, str, str, str]:
        return ref, "host", f"node {ref % 2}", ""

    def solve(self, actor: object, lease: Lease) -> object:
        return object()

    def doing(self, actor: object, lease: Lease) -> str:
        return f"{lease.number} of 3"


def loop_of(actors: int) -> pool.Pool:
    loop = pool.Pool(Boxes(), None, actors, lambda actor, line: None, WorkerStats())
    for n in range(actors):
        loop.slots.append(pool.ActorSlot(n, object(), ready_ref=n))
        loop.outstanding[n] = loop.slots[n]
        pool._on_ready(loop, loop.slots[n])
    return loop


@given(st.integers(0, 2**32))
@settings(max_examples=amount(500), deadline=None)
def test_only_a_machine_that_kills_its_actor_is_given_up(seed: int) -> None:
    """Leases over actors, answered in any order; no answer that is on its way leaves an actor that dies.

    deadly machines end their own actor; the glutton eats the memory of the node, so that every busy actor is
    ended. Any lease may be late, so that a second actor gets it.
    """
    rng = Random(seed)
    deadly, glutton = set(rng.sample(range(24), rng.randrange(4))), rng.randrange(48)
    ends = [*sorted(rng.sample(range(1, 24), rng.randrange(24))), 24]
    leases = iter(
        [
            Lease(n + 1, tuple(Ask(m, 0, "") for m in range(low, high)), batch=rng.randrange(3))
            for n, (low, high) in enumerate(pairwise([0, *ends]))
        ]
    )
    loop = loop_of(3)
    solved: list[int] = []
    lost: list[int] = []
    more = True
    while (more := pool._dispatch(loop, leases, more)) or any(seat.flights for seat in loop.slots):
        busy = [seat for seat in loop.slots if seat.flights]
        seat = rng.choice(busy)
        late = rng.choice(seat.flights).lease
        if late.number not in loop.copied | loop.drop_second_result and rng.random() < 0.3:
            loop.copied.add(late.number)
            loop.late.append(late)
        inside = {ask.machine for flight in seat.flights for ask in flight.lease.asks}
        dying = busy if glutton in inside else [seat] if inside & deadly else []
        found = [done for one in dying for done in pool._on_lost(loop, one, ActorDiedError())]
        found += [] if dying else pool._on_done(loop, seat, Done(seat.flights[0].lease, {}, 1.0))
        for done in found:
            (lost if done.lost else solved).extend(ask.machine for ask in done.lease.asks)
        for one in dying:
            one.actor, one.backoff_until = object(), 0.0
            pool._index(loop, one)
    assert not any((loop.queue, loop.in_flight, loop.outstanding, loop.suspects))
    assert sorted(solved + lost) == list(range(24))
    assert set(lost) == deadly | ({glutton} & set(range(24)))


def test_warnings_of_an_actor_s_process_reach_the_driver(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def damaged(_job: object, lease: Lease) -> Done:
        logging.getLogger("dse").warning("%s: truncated", "shared.npz")
        doing.say(lambda: "half of it")
        return Done(lease, {}, 1.0, shared_s=31.5)

    monkeypatch.setattr(worker, "solve_lease", damaged)
    monkeypatch.setattr(doing, "SAY_S", 0.0)
    lease, said, far = Lease(1, (Ask(1, 0, ""),)), list[str](), list[str]()
    packed = worker.solve_in_actor(None, lease, far.append)  # type: ignore[arg-type]
    doing.say(lambda: "nobody listens now")
    assert far == ["half of it"]
    caplog.clear()
    loop = loop_of(1)
    loop.log = lambda _actor, line: said.append(line)
    loop.slots[0].flights.append(pool.Flight(1, lease, 0.0))
    done = worker.unpack(SimpleNamespace(schemas={}, sink=None), lease, packed)  # type: ignore[arg-type]
    assert [*pool._on_done(loop, loop.slots[0], done)] == [done]
    told = "lease 1: 1 machines in 1.000 s, after 31.5 s for what machines share"
    assert said == [told, "shared.npz: truncated"]
    assert caplog.messages == ["actor 0: shared.npz: truncated"]


def test_what_an_actor_says_is_of_the_lease_that_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing was said, or the head does not answer in time, nothing is shown."""
    answers: list[bytes | None] = [b"7 3 of 9", b"6 3 of 9", None]
    client = SimpleNamespace(internal_kv_get=lambda *_, timeout: answers.pop(0))
    monkeypatch.setattr(internal_kv, "internal_kv_get_gcs_client", lambda: client)
    actor, lease = SimpleNamespace(_actor_id=SimpleNamespace(hex=lambda: "1a")), Lease(7, ())
    calls = object.__new__(pool.RayCalls)
    assert [calls.doing(actor, lease) for _ in range(4)] == ["3 of 9", "", "", ""]


def test_idle_actors_cost_nothing() -> None:
    """A thousand of them, and no lease at hand: it is asked for once."""
    loop, asked = loop_of(1000), []

    def leases() -> Iterator[Lease | None]:
        while True:
            asked.append(len(asked))
            yield Lease(len(asked), (Ask(len(asked), 0, ""),)) if len(asked) <= 7 else None

    assert pool._dispatch(loop, leases(), True)
    assert len(asked) == 8
    assert len(loop.outstanding) == len(loop.in_flight) == len(loop.queueable) == 7


def sent(loop: pool.Pool, *leases: Lease) -> list[int]:
    """Dispatches leases. Returns the numbers of the actors that they were sent to."""
    assert pool._dispatch(loop, chain(leases, repeat(None)), True)
    return [
        next(slot.number for slot in loop.slots if lease in [flight.lease for flight in slot.flights])
        for lease in leases
    ]


def answered(loop: pool.Pool, actor: int) -> None:
    """An actor answers all of its leases, and is idle."""
    while flights := loop.slots[actor].flights:
        assert list(pool._on_done(loop, loop.slots[actor], Done(flights[0].lease, {}, 1.0)))


def test_a_lease_goes_to_the_process_or_the_node_that_had_others_of_its_batch() -> None:
    """But it waits for none, and goes elsewhere if it is late there."""

    def lease(number: int, batch: int) -> Lease:
        return Lease(number, (Ask(number, 0, ""),), batch=batch)

    loop = loop_of(6)
    assert sent(loop, lease(1, 7), lease(2, 8)) == [0, 1]
    answered(loop, 0)
    answered(loop, 1)
    assert list(loop.idle) == [2, 3, 4, 5, 0, 1]
    assert sent(loop, lease(3, 8), lease(4, 8), lease(5, 7), lease(6, 7), lease(7, 0)) == [1, 3, 0, 2, 4]
    assert sent(loop, lease(8, 7)) == [5], "the only idle one, of the other node"
    assert sent(loop, lease(9, 7), lease(10, 8)) == [5, 3], "behind the lease of the one that had the batch"
    late = lease(12, 7)
    assert sent(loop, lease(11, 7), late) == [1, 0], "1 is of the node of 5, then no actor of it is free"
    answered(loop, 4)
    answered(loop, 2)
    loop.copied.add(late.number)
    loop.late.append(late)
    assert sent(loop) == []
    assert [slot.number for slot in loop.slots if late in [f.lease for f in slot.flights]] == [0, 4]


@pytest.mark.parametrize(("pace_s", "count"), [(1.0, 4), (60.0, 2), (0.0, 2)])
def test_no_lease_waits_behind_one_of_minutes(pace_s: float, count: int) -> None:
    """An actor that comes later, or a stop, would wait for it. Those in flight longest are shown."""
    loop = loop_of(2)
    loop.pace_s = pace_s
    leases = [Lease(n, (Ask(10 * n, 0, ""), Ask(10 * n + 1, 0, ""))) for n in range(1, 5)]
    assert pool._dispatch(loop, chain(leases, repeat(None)), True)
    assert len(loop.in_flight) == count
    loop.slots[1].flights[0].since -= 100.0
    assert list(pool._scan(loop)) == []
    shown = loop.worker_stats.solving
    assert [(one.worker, one.machine, one.machines) for one in shown] == [(1, 20, 2), (0, 10, 2)]
    assert [one.doing for one in shown] == ["2 of 3", ""]  # those of a moment are not asked
    assert [round(time.time() - one.since, -1) for one in shown] == [100.0, 0.0]


class Nodes(Boxes):
    """Nodes with some CPUs, whose actors never answer."""

    def __init__(self, cpus: int) -> None:
        self.number, self.started, self.answers, self.free = cpus, 0, True, 0

    def cpus(self) -> int:
        assert self.answers, "Ray ends the process after a minute"
        return self.number

    def start(self) -> object:
        self.started += 1
        return object()

    def free_cpus(self) -> int:
        return self.free

    def unplaced(self) -> int:
        return self.started

    def ready(self, actor: object) -> object:
        return object()

    def head_answers(self) -> bool:
        return self.answers


@pytest.mark.parametrize(
    ("cpus", "wanted", "first"), [(4, 1000, 1000), (40, 1000, 16), (40, None, 16), (4, 3, 3)]
)
def test_actors_beyond_the_cpus_are_asked_for_at_once(cpus: int, wanted: int | None, first: int) -> None:
    """So that an autoscaler sees them; those that find a CPU start MAX_STARTING at a time."""
    nodes = Nodes(cpus)
    loop = pool.Pool(nodes, None, wanted, lambda actor, line: None, WorkerStats())
    pool._grow(loop)
    assert nodes.started == first
    for _ in range(60):
        loop.added_at = 0.0
        pool._grow(loop)
    assert nodes.started == (wanted or cpus)
    nodes.answers, loop.added_at = False, 0.0
    pool._grow(loop)


def test_live_and_busy_workers_are_counted() -> None:
    loop = loop_of(3)
    loop.head_answered_at = time.monotonic()
    pool._dispatch(loop, iter([Lease(1, (Ask(1, 0, ""),)), None]), True)
    pool._watch(loop)
    assert (loop.worker_stats.live, loop.worker_stats.busy) == (3, 1)
    dying = next(slot for slot in loop.slots if slot.flights)
    assert list(pool._on_lost(loop, dying, ActorDiedError())) == []
    pool._watch(loop)
    assert (loop.worker_stats.live, loop.worker_stats.busy) == (2, 0)


def test_nodes_that_joined_and_were_lost_are_counted() -> None:
    """Actors 0 and 2 are on one node, 1 on another: a node is lost with the last of its workers, and back
    with the first that answers.
    """
    loop = loop_of(3)
    loop.calls = Nodes(0)
    loop.head_answered_at = time.monotonic()

    def counted() -> tuple[int, int]:
        loop.asked_at = 0.0
        pool._watch(loop)
        return loop.worker_stats.nodes, loop.worker_stats.nodes_lost

    found = [counted()]
    for number in (0, 1, 2):
        assert list(pool._on_lost(loop, loop.slots[number], ActorDiedError())) == []
        found.append(counted())
    loop.slots[2].actor, loop.slots[2].ready_ref, loop.slots[2].backoff_until = object(), 3, 0.0
    loop.outstanding[3] = loop.slots[2]
    pool._on_ready(loop, loop.slots[2])  # on the node of actor 1
    found.append(counted())
    assert found == [(2, 0), (2, 0), (2, 1), (2, 2), (2, 1)]


def test_a_run_without_actors_ends_when_the_study_says() -> None:
    loop = pool.Pool(Nodes(0), None, 2, lambda actor, line: None, WorkerStats(), starved_s=60.0)
    loop.last_live_at, loop.head_answered_at = time.monotonic() - 59.0, time.monotonic()
    pool._grow(loop)
    pool._watch(loop)
    loop.last_live_at -= 2.0
    with pytest.raises(pool.PoolFault, match=r"no actor answered for 60 s \(limits.starved_seconds\)"):
        pool._watch(loop)


@pytest.mark.parametrize(("cpus", "has"), [(0, "no CPUs"), (1, "1 CPU, none"), (4, "4 CPUs, none")])
def test_a_run_says_that_it_waits_for_cpus(cpus: int, has: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Not while a worker that has its CPU starts, nor once it answers."""
    nodes = Nodes(cpus)
    loop = pool.Pool(nodes, None, 2, lambda actor, line: None, WorkerStats(), starved_s=60.0)
    loop.last_live_at = loop.head_answered_at = time.monotonic()
    pool._grow(loop)
    pool._watch(loop)
    waiting = loop.worker_stats.waiting
    assert waiting.startswith(f"waits for CPUs for 2 workers: the Ray cluster has {has}")
    assert "ends after 60 s (limits.starved_seconds)" in waiting
    status = SimpleNamespace(
        notes=(),
        done=0,
        planned=9,
        state="running",
        reason="",
        waiting=waiting,
        workers_live=0,
        rate=0.0,
        solving=(),
    )
    with progress.RunProgress("net") as screen:
        screen.line.shown_at = -9.0
        screen.show(status)
    assert f"net: 0 of 9 machines (0 %), {waiting}" in capfd.readouterr().err
    nodes.free, loop.asked_at = 1, 0.0
    pool._watch(loop)
    assert not loop.worker_stats.waiting


SCRIPT = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[5:]
from cluster import driver
from dse.study import study as studies
path, out, workers, address = sys.argv[1:5]
small = studies.load(Path(path))
try: print(driver.run(small, Path(out), workers=int(workers), address=address or None).status.done)
except ValueError as fault: print(fault)
"""


def script(folder: Path) -> Path:
    (folder / "bin").mkdir(exist_ok=True)
    (folder / "bin" / "start.py").write_text(SCRIPT)
    return folder / "bin" / "start.py"


def test_decoy_packages_in_the_users_folder_do_not_break_a_run(tmp_path: Path, head: str) -> None:
    study(tmp_path, stop="machines: 40")
    for name in ("analysis", "cluster", "hw", "workloads", "tests", "dse"):
        (tmp_path / "home" / name).mkdir(parents=True)
        (tmp_path / "home" / name / "__init__.py").write_text("raise SystemExit('decoy')")
    start = [sys.executable, str(script(tmp_path)), str(tmp_path / "exhaustive.yaml")]
    inside = {
        "cwd": tmp_path / "home",
        "env": {**os.environ, "PYTHONPATH": str(ROOT)},
        "capture_output": True,
        "text": True,
        "timeout": 300,
    }
    if FULL:  # by default such a run is that of tests/test_sockets.py
        said = subprocess.run([*start, str(tmp_path / "run"), "1", head], **inside)  # type: ignore[call-overload]
        assert int(said.stdout) >= 40
        assert said.stderr == ""
    (tmp_path / "first" / "analysis").mkdir(parents=True)
    (tmp_path / "first" / "analysis" / "__init__.py").write_text("")
    said = subprocess.run([*start, str(tmp_path / "other"), "1", head, str(tmp_path / "first")], **inside)  # type: ignore[call-overload]
    assert said.stdout.count("\n") == 1
    assert str(tmp_path / "first" / "analysis") in said.stdout
    assert "shadows" in said.stdout


def test_no_cluster_at_the_address_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(RunFault, match=r"127.0.0.1:1: no Ray cluster answers there") as fault:
        driver.run(study(tmp_path), tmp_path / "run", address="127.0.0.1:1")
    assert "\n" not in str(fault.value)
    assert not (tmp_path / "run").exists()


JOIN = """
import sys
from cluster import pool
pool.JOIN_S = float(sys.argv[2])
try:
    with pool.cluster(sys.argv[1], 1) as cpus: print(cpus)
except pool.PoolFault as fault: print(fault)
"""


def joined(address: str, seconds: float, **own: str) -> str:
    """What a process says that starts as a user's does: Ray's own defaults, but for the variables `own`."""
    env = {
        **{name: value for name, value in os.environ.items() if name != pool.RAY_CLUSTERS_VAR},
        "PYTHONPATH": str(ROOT),
        "RAY_py_gcs_connect_timeout_s": "1",
        **own,
    }
    return subprocess.run(
        [sys.executable, "-c", JOIN, address, str(seconds)],
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    ).stdout


def test_a_cluster_on_loopback_is_joined_from_its_own_machine(head: str) -> None:
    assert joined(head, 250.0) == "2\n"


def test_a_server_that_is_no_cluster_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        attempts = {pool.JOIN_ATTEMPTS_VAR: "2"}  # a second each; the product makes ten
        said = joined(f"127.0.0.1:{silent.getsockname()[1]}", 3.0, **attempts)
    assert said.count("\n") == 1
    assert "could not join" in said
    assert "ray start --address" in said


def test_what_ray_says_is_passed_on() -> None:
    """The last message of its C++ side, in one line, and what helps (make prove PART=tokens asks a real
    head).
    """
    timed = (
        "[2026-11-26 04:48:33,356 W 26182 26182] gcs_client.cc:210: Failed to get cluster ID from GCS "
        "server: TimedOut: Timed out."
    )
    token = (
        "[2026-11-26 04:49:37,098 W 2 2] gcs_client.cc:210: Failed to get cluster ID from GCS server: "
        "Unauthenticated: RPC error: InvalidAuthToken: ..."
    )
    said = pool.RAY_LINES.findall(f"{timed}\nsomething else\n{token}\n")
    assert [line.split(": ")[1] for line in said] == ["TimedOut", "Unauthenticated"]
    for answered in (True, False):
        line = pool._join_fault("head:6379", said, answered)
        assert "Ray says: Failed to get cluster ID from GCS server: Unauthenticated" in line
        assert "RAY_AUTH_TOKEN" in line
        assert "node of it" not in line
    assert (
        "(Ray says: Failed to get cluster ID from GCS server: TimedOut: Timed out.); this machine must be"
        in pool._join_fault("head:6379", said[:1], False)
    )
    assert "does not let this process join; if the cluster has a token" in pool._join_fault(
        "head:6379", [], True
    )


def test_a_cluster_is_joined_after_one_of_our_own(tmp_path: Path, head: str) -> None:
    """Ray starts its own with a token, and keeps it."""
    for i, address in enumerate([None, head]):
        assert (
            driver.run(
                study(tmp_path, stop="machines: 20"), tmp_path / f"run{i}", workers=1, address=address
            ).exit_code
            == 0
        )


def test_actors_of_another_installation_are_refused(
    tmp_path: Path, head: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in PACKAGES:
        shutil.copytree(ROOT / name, tmp_path / "other" / name, ignore=shutil.ignore_patterns("__pycache__"))
    with open(tmp_path / "other" / "dse" / "run" / "record.py", "a") as changed:
        changed.write("# another version\n")
    monkeypatch.setattr(pool, "ROOT", str(tmp_path / "other"))
    with pytest.raises(
        RunFault, match=r"other/cluster/worker.py: this dse is not the driver's; install the same"
    ) as fault:
        driver.run(study(tmp_path), tmp_path / "run", workers=1, address=head)
    assert "\n" not in str(fault.value)


def children(pid: int) -> list[int]:
    """Processes that descend from pid and live."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text().rsplit(") ", 1)[1].split()
            except OSError:
                continue
            if stat[0] != "Z":
                parents.setdefault(int(stat[1]), []).append(int(entry.name))
    found, todo = [], [pid]
    while todo:
        new = parents.get(todo.pop(), [])
        found += new
        todo += new
    return found


@pytest.mark.parametrize(
    ("number", "presses"), some([(signal.SIGINT, 1), (signal.SIGINT, 2), (signal.SIGTERM, 1)], 1, 2)
)
def test_ctrl_c_and_sigterm_leave_nothing_behind(
    tmp_path: Path, number: signal.Signals, presses: int
) -> None:
    """Ctrl-C reaches the whole group. Ray's handler of SIGTERM, which aborts the process after 3 s, is never
    called.
    """
    study(tmp_path, workloads=HEAVY)
    child = subprocess.Popen(
        [
            sys.executable,
            str(script(tmp_path)),
            str(tmp_path / "exhaustive.yaml"),
            str(tmp_path / "run"),
            "2" if FULL else "1",
            "",
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_for(
        lambda: (
            any((tmp_path / "run" / "log").glob("*.log"))
            and "machines in" in next((tmp_path / "run" / "log").glob("*.log")).read_text()
        )
    )
    family = children(child.pid)
    for _ in range(presses):
        (os.killpg if number == signal.SIGINT else os.kill)(child.pid, number)
        time.sleep(0.3)
    said, _ = child.communicate(timeout=300)
    assert 0 < int(said) < SIZE
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in family))
    assert "SIGTERM received" not in (tmp_path / "run/log/ray.log").read_text()
    assert len(family) > 3
    assert len(rows(tmp_path / "run")["machines"]) == int(said)
    more = studies.load(tmp_path / "exhaustive.yaml", [f"stop.machines={int(said) + 4}"])
    assert driver.run(more, tmp_path / "run", workers=0).exit_code == 0
    assert len(rows(tmp_path / "run")["machines"]) >= min(int(said) + 4, SIZE)


def wait_for(true, seconds: float = 300.0) -> None:  # type: ignore[no-untyped-def]
    """Until the condition holds; fails after so many seconds."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.05)
