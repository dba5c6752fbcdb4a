"""kill -9 of the driver, of an actor and of a raylet of a cluster: after a resume nothing is lost, nothing
double.

The long proof, 60 kills on three raylets, is tests/prove/kills.py; it uses what stands here.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
from ray.cluster_utils import Cluster

from cluster import driver, pool
from dse.frontend import check
from dse.study import study as studies
from tests.amount import FULL, full_only, some
from tests.test_driver import HEAVY, Rows, front, rows, study
from tests.test_pool import wait_for

pytestmark = pytest.mark.xdist_group("ray")

ROOT = Path(__file__).resolve().parent.parent
LONG = HEAVY if FULL else HEAVY.rpartition(", ")[0]
STOP = "" if FULL else "machines: 200"  # long enough to be struck twice
START = """
import sys
from pathlib import Path
from cluster import driver, objects, store
from dse.study import study as studies
driver.COMMIT_S, driver.LEASE_S, store.FAN_IN = 0.15, 0.3, 8
path, place, address, workers = sys.argv[1:]
with objects.run_folder(place) as out:
    done = driver.run(
        studies.load(Path(path)), out.path, workers=int(workers), address=address, publisher=out.publisher
    )
print(done.exit_code, done.status.state)
"""


@dataclass(slots=True)
class Bed:
    """A cluster on this machine, of raylets with a core each."""

    cluster: Cluster
    folder: str
    inner: ExitStack

    def raylets(self) -> list[Any]:
        """Nodes; the first is the head."""
        return [self.cluster.head_node, *self.cluster.worker_nodes]


def bed(raylets: int = 3) -> Bed:
    folder = os.environ["RAY_TMPDIR"] = tempfile.mkdtemp(prefix="dse-bed-", dir="/tmp")
    head = {
        "num_cpus": 1,
        "include_dashboard": False,
        "node_ip_address": "127.0.0.1",
        "object_store_memory": 100 << 20,
        "_system_config": {
            "health_check_initial_delay_ms": 500,
            "health_check_period_ms": 500,
            "health_check_failure_threshold": 4,
        },
    }
    inner = ExitStack()
    inner.enter_context(pool.loopback())
    made = Bed(Cluster(initialize_head=True, head_node_args=head), folder, inner)
    for _ in range(raylets - 1):
        add(made)
    return made


def add(made: Bed) -> None:
    made.cluster.add_node(num_cpus=1, node_ip_address="127.0.0.1", object_store_memory=100 << 20)


def close(made: Bed) -> None:
    made.cluster.shutdown()
    made.inner.close()
    del os.environ["RAY_TMPDIR"]
    shutil.rmtree(made.folder, ignore_errors=True)


def start(path: Path, out: Path, made: Bed, url: str = "") -> subprocess.Popen[str]:
    """The driver as a process of its own; what it says goes to log/driver.txt. url: of a run folder on a
    store, of which `out` is the copy.
    """
    (out / "log").mkdir(parents=True, exist_ok=True)
    with open(out / "log" / "driver.txt", "a") as said:
        return subprocess.Popen(
            [
                sys.executable,
                "-c",
                START,
                str(path),
                url or str(out),
                made.cluster.address,
                str(len(made.raylets())),
            ],
            stdout=said,
            stderr=said,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), pool.RAY_CLUSTERS_VAR: "0"},
        )


def actors(out: Path) -> list[int]:
    """Processes of the run's living actors."""
    found = {
        int(pid)
        for log in (out / "log").glob("actor-*.log")
        for pid in re.findall(r"process (\d+) on", log.read_text())
    }
    return sorted(pid for pid in found if _named(pid, "ray::Solver"))


def _named(pid: int, name: str) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().startswith(name)
    except OSError:
        return False


def solved(out: Path) -> int:
    return sum(
        int(n)
        for log in (out / "log").glob("actor-*.log")
        for n in re.findall(r": (\d+) machines in", log.read_text())
    )


def committing(out: Path) -> bool:
    return next((out / "parts").glob("*/.*.tmp"), None) is not None


def strike(made: Bed, child: subprocess.Popen[str], out: Path, victim: str, rng: random.Random) -> None:
    """kill -9, and put up a new raylet where one fell. The head's raylet takes its drivers along and is
    replaced with the whole cluster.
    """
    if victim == "driver":
        child.kill()
        child.wait(timeout=300)
    elif victim == "actor":
        os.kill(rng.choice(actors(out)), signal.SIGKILL)
    else:
        node = rng.choice(made.cluster.worker_nodes and list(made.cluster.worker_nodes))
        os.kill(node.all_processes["raylet"][0].process.pid, signal.SIGKILL)
        time.sleep(0.5)
        made.cluster.remove_node(node, allow_graceful=False)
        add(made)


def finish(path: Path, out: Path, made: Bed, child: subprocess.Popen[str]) -> None:
    """Wait for the driver, resume until the run says that it is finished."""
    for _ in range(4):
        child.wait(timeout=600)
        if (out / "log" / "driver.txt").read_text().endswith("0 finished\n"):
            return
        child = start(path, out, made)
    raise AssertionError((out / "log" / "driver.txt").read_text()[-2000:])


@pytest.fixture(scope="module")
def struck(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("struck")


@pytest.fixture(scope="module")
def ground(struck: Path) -> Iterator[Bed]:
    """Its raylets keep the $DSE_CACHE that they are started with."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DSE_CACHE", str(struck))
        made = bed(3 if FULL else 2)
    yield made
    close(made)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    folder = tmp_path_factory.mktemp("whole")
    driver.run(study(folder, stop=STOP, workloads=LONG), folder / "run", workers=0)
    return rows(folder / "run")


EACH = [[["driver"], ["actor", "raylet"]], [["driver"]], [["actor"]], [["raylet"]]]


@pytest.mark.parametrize("strikes", some(EACH, 0), ids=str)
def test_killed_and_resumed_is_as_if_undisturbed(
    ground: Bed, whole: Rows, tmp_path: Path, strikes: list[list[str]]
) -> None:
    """Each stroke falls on a driver that has solved machines; what it takes along is started again."""
    study(tmp_path, stop=STOP, workloads=LONG)
    path, out, before = tmp_path / "exhaustive.yaml", tmp_path / "run", 0
    child = start(path, out, ground)
    try:
        for victims in strikes:
            if child.poll() is not None:
                child = start(path, out, ground)
            wait_for(lambda: solved(out) > before + 40)
            assert child.poll() is None
            for victim in victims:
                strike(ground, child, out, victim, random.Random(1))
            before = solved(out)
        finish(path, out, ground, child)
    finally:
        child.kill()
    assert rows(out) == whole
    front(out)


SHARING = """
name: sharing
workloads: ["conv:k=48,c=36,p=28,q=28,r=3,s=3,pad=1", "conv:k=96,c=60,p=14,q=14,r=1,s=1",
  "gemm:m=240,n=96,k=360", "gemm:m=96,n=720,k=60"]
machine: edge_array
space: {array.x: [14, 18], dram.kind: [ddr3, lpddr5, gddr6], node_nm: [22, 45],
  clock_mhz: {from: 200, to: 800, step: 20}}
objectives: [energy_pj, latency_ns, area_mm2]
search: {method: exhaustive, seed: 7, generation: 512}
solver: {sharing_gap: 0.01, gap: 0.001}
"""


def kept(cache: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in cache.glob("shared_*.npz")}


@full_only
@pytest.mark.parametrize("victim", ["actor", "raylet"])
def test_killed_while_shared_mappings_are_found(
    ground: Bed, struck: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, victim: str
) -> None:
    """The run goes on: rows and files of $DSE_CACHE are, to the byte, those of a run in process."""
    path, out = tmp_path / "sharing.yaml", tmp_path / "run"
    path.write_text(SHARING)
    monkeypatch.setenv("DSE_CACHE", str(tmp_path / "undisturbed"))
    driver.run(studies.load(path), tmp_path / "whole", workers=0)
    monkeypatch.setenv("DSE_CACHE", str(struck))
    for old in struck.iterdir():
        old.unlink()
    child = start(path, out, ground)
    try:
        wait_for(lambda: next(struck.glob("*.claim"), None) is not None)
        strike(ground, child, out, victim, random.Random(1))
        finish(path, out, ground, child)
    finally:
        child.kill()
    assert rows(out) == rows(tmp_path / "whole")
    assert kept(struck) == kept(tmp_path / "undisturbed")
    assert len(kept(struck)) == 8


def test_an_orderly_stop_of_the_cluster_is_one_line_and_a_state(ground: Bed, tmp_path: Path) -> None:
    """In the order of `ray stop`: raylets, then the head's control store. Ray ends the driver by `_exit`. The
    last test of the cluster.
    """
    study(tmp_path, workloads=HEAVY)
    path, out = tmp_path / "exhaustive.yaml", tmp_path / "run"
    child = start(path, out, ground)
    try:
        wait_for(lambda: solved(out) > 10)
        raylets = [node.all_processes["raylet"] for node in ground.raylets()]
        for daemons in (*reversed(raylets), ground.cluster.head_node.all_processes["gcs_server"]):
            for daemon in daemons:
                daemon.process.terminate()
                daemon.process.wait(timeout=60)
        assert child.wait(timeout=120) == 1
    finally:
        child.kill()
    wait_for(lambda: check.status(out, False)["state"] == "failed")  # written by what outlives the driver
    facts = check.status(out, False)
    assert "start a cluster" in facts["reason"]
    line = f"{out}: {facts['reason']}"
    assert (out / "log" / "driver.txt").read_text().splitlines() == [line]
    assert facts["done"] + facts["uncommitted"] > 0
    more = studies.load(path, [f"stop.machines={facts['done'] + facts['uncommitted'] + 4}"])
    assert driver.run(more, out, workers=0).exit_code == 0
