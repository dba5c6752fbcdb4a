"""A run ended from elsewhere, seen by monitors, renamed under way; what the cache holds."""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from json import loads
from pathlib import Path

import pytest

from cluster import driver, metrics, stopping
from cluster.store import RunFault, StoreFault
from cluster.utilization import foreseen_utilization
from dse.run import cache, folder
from tests.commands import dse, good
from tests.test_driver import Rows, reports, rows, study

__all__ = ["reports"]
pytestmark = pytest.mark.xdist_group("driver")
FEW = "machines: 60"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    home = tmp_path_factory.mktemp("whole")
    driver.run(study(home, stop=FEW), home / "run", workers=0)
    return rows(home / "run")


def at(machines: int, does: Callable[[], object]) -> Callable[[driver.Status], None]:
    """A progress callback that does something once, when so many machines are done."""
    todo = [does]

    def shown(status: driver.Status) -> None:
        if status.state == "running" and status.done >= machines and todo:
            todo.pop()()

    return shown


@pytest.mark.usefixtures("reports")
def test_dse_stop_ends_a_run_as_ctrl_c_does(tmp_path: Path, whole: Rows) -> None:
    run, ended = tmp_path / "run", threading.Event()

    def stop() -> None:
        thread = threading.Thread(target=lambda: (stopping.stop(run), ended.set()))
        thread.start()
        while (run / folder.STOP).exists() or not thread.is_alive():
            time.sleep(0.01)
        time.sleep(stopping.POLL_S)

    first = driver.run(study(tmp_path, stop=FEW), run, workers=0, progress=at(20, stop))
    assert first.status.state == "interrupted"
    assert 20 <= first.status.done < 60
    assert ended.wait(10.0)
    assert not (run / folder.STOP).exists()
    assert driver.resume(run, workers=0).exit_code == 0
    assert rows(run) == whole


@pytest.mark.usefixtures("reports")
def test_stop_now_counts_as_two_interrupts_also_where_one_is_taken_late(tmp_path: Path) -> None:
    """As inside ray.wait, from which no signal returns: two that come meanwhile are one."""
    run, thread = tmp_path / "run", []

    def stop() -> None:
        thread.append(threading.Thread(target=lambda: stopping.stop(run, now=True)))
        thread[0].start()
        hashlib.pbkdf2_hmac("sha256", b"", b"", 4_000_000)
        with pytest.raises(KeyboardInterrupt):
            time.sleep(10.0)
        raise KeyboardInterrupt

    first = driver.run(study(tmp_path, stop=FEW), run, workers=0, progress=at(20, stop))
    thread[0].join()
    assert first.status.state == "interrupted"


def test_a_request_of_before_does_not_end_the_next_run(tmp_path: Path) -> None:
    driver.run(study(tmp_path, stop="machines: 5"), tmp_path / "run", workers=0)
    (tmp_path / "run" / folder.STOP).write_bytes(stopping.STOP)
    out = driver.run(study(tmp_path, stop="machines: 9"), tmp_path / "run", workers=0)
    assert out.status.state == "finished"


def test_what_cannot_be_stopped_is_one_line(tmp_path: Path) -> None:
    said = dse("stop", "nowhere", folder=tmp_path)
    assert said.returncode == 2
    assert "no run is there" in said.stderr
    driver.run(study(tmp_path, stop="machines: 5"), tmp_path / "run", workers=0)
    said = dse("stop", "run", folder=tmp_path)
    assert said.returncode == 1
    assert (
        said.stderr == "run: no run writes into this folder; `dse status run` says how the last one ended\n"
    )


@pytest.mark.usefixtures("reports")
@pytest.mark.parametrize("moment", ["running", "asking"])
def test_a_folder_that_is_renamed_under_way_leaves_no_ghost(tmp_path: Path, whole: Rows, moment: str) -> None:
    run, moved = tmp_path / "run", tmp_path / "moved"

    def renamed(status: driver.Status) -> None:
        if run.exists() and status.state == "running" and (status.done > 20 or moment == "asking"):
            run.rename(moved)

    with pytest.raises(
        StoreFault, match=r"run: the folder was renamed or removed .* `dse resume` it"
    ) as fault:
        driver.run(study(tmp_path, stop=FEW), run, workers=0, progress=renamed)
    assert "\n" not in str(fault.value)
    assert not run.exists()
    assert driver.resume(moved, workers=0).exit_code == 0
    assert rows(moved) == whole


@pytest.mark.usefixtures("reports")
def test_monitors_see_a_run_on_localhost(tmp_path: Path) -> None:
    seen: dict[str, bytes] = {}
    port = 20_000 + os.getpid() % 20_000

    def look() -> None:
        for path in ("metrics", "status.json"):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=10) as answer:
                seen[path] = answer.read()

    small = study(tmp_path, stop=FEW)
    out = driver.run(small, tmp_path / "run", workers=0, progress=at(20, look), metrics_port=port)
    values = dict(line.split() for line in seen["metrics"].decode().splitlines() if line[0] != "#")
    assert values.keys() == metrics.METRICS.keys()
    status = loads(seen["status.json"])
    assert float(values["dse_machines_done_total"]) == status["done"] >= 20
    assert status["in_flight"] + status["queue"] + status["done"] >= 20
    (solving,) = status["solving"]
    assert solving["worker"] == 0
    assert solving["since"] <= status["time"]
    assert 0 < float(values["dse_utilization"]) <= 1
    assert values["dse_workers_live"] == values["dse_workers_busy"] == "1"
    assert out.status.workers_live == out.status.workers_busy == 0
    assert out.status.solving == ()
    assert out.status.queue == out.status.in_flight == out.status.retries == 0


def test_a_port_that_is_taken_leaves_no_folder(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for port in (taken.getsockname()[1], 80_000):
            with pytest.raises(RunFault, match=f"--metrics {port}: .*; give another port"):
                driver.run(study(tmp_path, stop=FEW), tmp_path / "run", workers=0, metrics_port=port)
    assert not (tmp_path / "run").exists()


def test_enumerated_machines_keep_all_workers_busy_and_learned_ones_say_that_they_do_not(
    tmp_path: Path,
) -> None:
    """Two generations of 16 machines occupy 32 workers; of an enumerated search all machines are there."""
    learned, enumerated = study(tmp_path, "tpe", 16), study(tmp_path, "random", 16)
    assert foreseen_utilization(enumerated, 20_000, [0.5], 1000) == pytest.approx(1.0)
    assert foreseen_utilization(learned, 20_000, [0.5], 1000) == pytest.approx(0.032, rel=0.05)
    assert foreseen_utilization(learned, 20_000, [0.5], 2) > 0.99
    facts = driver.dry_run(learned, workers=300)
    assert facts["utilization"] < 0.2
    assert "two generations of 16 machines at most are in flight" in facts["idle"]
    assert facts["machines_in_space"] == learned.space.size


def test_the_cache_is_shown_and_pruned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSE_CACHE", str(tmp_path / "cache"))
    path = cache.answer_path("map", "a question", ".json")
    cache.write(path, b"an answer")
    old = path.with_name(path.name.replace(cache.version(), "9.9.00000000"))
    old.write_bytes(b"x" * 100)
    os.utime(old, (0, 0))
    before = path.with_name(f"map_{'0' * 32}.json")
    before.write_bytes(b"of earlier versions")
    (path.parent / "notes.txt").write_text("not ours")
    answers = loads(good("cache", "--format", "json", folder=tmp_path))["answers"]
    assert [(one["kind"], one["version"], one["answers"]) for one in answers] == [
        ("map", cache.version(), 1),
        ("map", "9.9.00000000", 1),
        ("map", "?", 1),
    ]
    assert "100 B" in good("cache", folder=tmp_path)
    assert "1 entries removed" in good("cache", "--prune", "--older", "365", folder=tmp_path)
    assert not old.exists()
    assert before.exists()
    good("cache", "--prune", folder=tmp_path)
    assert sorted(one.name for one in path.parent.iterdir()) == sorted([path.name, "notes.txt"])
    assert cache.read(path) == b"an answer"
    good("cache", "--prune", "--all", folder=tmp_path)
    assert [one.name for one in path.parent.iterdir()] == ["notes.txt"]


TERMINATED = """
import os, signal, sys, time, threading
from pathlib import Path
from cluster import driver, pool
from dse.study import study as studies
import ray
def started(**_):  # as ray.init does, without its daemons
    ray._private.utils.set_sigterm_handler(lambda *_: sys.exit(15))
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.1)
ray.init, ray.cluster_resources = started, lambda: {"CPU": 1}
pool.over_ray, pool.servers = lambda *given: iter(()), lambda: []
out = driver.run(studies.load(Path(sys.argv[1])), Path(sys.argv[2]), workers=1)
print(out.status.reason); sys.exit(out.exit_code)
"""


def test_sigterm_while_ray_starts_is_an_interruption(tmp_path: Path) -> None:
    study(tmp_path)
    said = subprocess.run(
        [sys.executable, "-c", TERMINATED, str(tmp_path / "exhaustive.yaml"), str(tmp_path / "run")],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (said.returncode, said.stdout) == (143, "interrupted; `dse resume` goes on\n"), said.stderr


def test_what_ray_writes_to_the_screen_goes_to_the_log(tmp_path: Path) -> None:
    script = (
        "import os, sys; from pathlib import Path; from cluster import pool\n"
        "with pool.ray_output_in(Path(sys.argv[1])):\n"
        "    os.write(2, b'a raylet is lost\\n'); print('progress', file=sys.stderr)\n"
        "    lost = {'lines': ['page of it'], 'pid': 'raylet', 'is_err': False}\n"
        "    pool.ray._private.worker.print_to_stdstream(lost, ignore_prefix=False)\n"
        "os.write(2, b'after\\n')"
    )
    said = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "ray.log")], capture_output=True, text=True, timeout=300
    )
    assert (said.stdout, said.stderr) == ("", "progress\nafter\n")
    assert (tmp_path / "ray.log").read_text() == "a raylet is lost\npage of it\n"
