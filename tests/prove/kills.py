"""Proof: 60 kill -9 at random moments, 20 each of driver, actor and raylet, over exhaustive, nsga2 and tpe;
and 20 at the moments around a run.

    python -m tests.prove kills [--each 20] [--moments 20] [--stored 40] [--seed 1]

The moments: start-up (imports, opening the folder, joining the cluster), and a resume.

Runs of 300 machines that solve three real einsums each, on three raylets, every second one with
`sink: worker`. Half of the drivers are killed inside a commit. 40 more kills fall on runs whose workers write
onto an S3 server that fails now and then (tests/prove/objects.py). Before, one machine eats more memory than
its node has, one actor is stopped for a minute, and one head is lost. Every disturbed run, resumed, must hold
the rows of the undisturbed ones with no, one and two workers; prints one line per run.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

from ray.cluster_utils import Cluster

from cluster import driver, objects, pool
from dse.study import study as studies
from tests import test_kills as t
from tests.cursed import EATEN_BYTES, under_curse
from tests.prove.objects import SERVER, s3_server
from tests.test_driver import HEAVY, Rows, front, rows, study
from tests.test_pool import wait_for

METHODS = ("exhaustive", "nsga2", "tpe")
VICTIMS = ("driver", "actor", "raylet")


def prepared(folder: Path, method: str) -> Path:
    """A study of 300 machines: all of the space, or 300 of 900. Beside it stands the same one with
    `sink: worker`.
    """
    study(
        folder,
        method,
        16 if method != "exhaustive" else 40,
        "" if method == "exhaustive" else "machines: 300",
        HEAVY,
    )
    path = folder / f"{method}.yaml"
    if method != "exhaustive":
        path.write_text(
            path.read_text().replace("  glb.bypass", "  clock_mhz: [500.0, 1000.0, 2000.0]\n  glb.bypass")
        )
    by_workers(path).write_text(path.read_text() + "sink: worker\n")
    return path


def by_workers(path: Path) -> Path:
    """The study with `sink: worker` beside one."""
    return path.with_stem(f"{path.stem}-worker")


def undisturbed(path: Path) -> Rows:
    """Rows with no, one and two workers, which must agree."""
    found = []
    for workers in (0, 1, 2):
        out = path.parent / f"{path.stem}-{workers}"
        assert driver.run(studies.load(path), out, workers=workers).exit_code == 0
        found.append(rows(out))
    assert found[0] == found[1] == found[2], f"{path.stem}: rows depend on the number of workers"
    return found[0]


def strike(
    made: t.Bed, child: subprocess.Popen[str], out: Path, victim: str, rng: random.Random, url: str
) -> t.Bed:
    """One kill; a fallen head takes its cluster along, and a new one is made."""
    if victim == "driver" and not url and rng.random() < 0.5:
        wait_for(lambda: t.committing(out) or child.poll() is not None, 30)
    if victim != "raylet" or rng.random() < 2 / 3:
        t.strike(made, child, out, victim, rng)
        return made
    os.kill(made.cluster.head_node.all_processes["raylet"][0].process.pid, signal.SIGKILL)
    try:
        child.wait(timeout=300)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait(timeout=30)
    t.close(made)
    return t.bed()


def disturbed(
    path: Path, out: Path, made: t.Bed, victims: list[str], rng: random.Random, url: str = ""
) -> tuple[t.Bed, list[str]]:
    """One run to its end, with as many of the victims killed as it gives time for; those killed are taken off
    the list.
    """
    killed: list[str] = []
    while True:
        before = t.solved(out)
        child = t.start(path, out, made, url)
        try:
            wait_for(lambda: t.solved(out) > before or child.poll() is not None, 300)
            while victims and child.poll() is None:
                time.sleep(rng.uniform(0.0, 2.0))
                if child.poll() is None and (victims[-1] != "actor" or t.actors(out)):
                    killed.append(victims[-1])
                    made = strike(made, child, out, victims.pop(), rng, url)
            child.wait(timeout=600)
        finally:
            child.kill()
        said = (out / "log" / "driver.txt").read_text()
        if said.endswith("0 finished\n"):
            return made, killed
        assert killed, said[-2000:]


def stopped(path: Path, out: Path, made: t.Bed, whole: Rows) -> None:
    """An actor stands still for a minute: the others go on, and solve its lease too."""
    child = t.start(path, out, made)
    wait_for(lambda: t.solved(out) > 40, 60)
    process = t.actors(out)[0]
    os.kill(process, signal.SIGSTOP)
    begun = time.monotonic()
    wait_for(lambda: child.poll() is not None or time.monotonic() - begun > 60, 70)
    if process in t.actors(out):
        os.kill(process, signal.SIGCONT)
    t.finish(path, out, made, child)
    assert rows(out) == whole
    print("an actor stopped for a minute: the run went on, rows identical", flush=True)


def headless(path: Path, out: Path, made: t.Bed, whole: Rows) -> t.Bed:
    """The head is lost: the run stops with its line, and a resume on a new cluster completes it. Actors stand
    still, or they would finish without a head.
    """
    child = t.start(path, out, made)
    wait_for(lambda: t.solved(out) > 40, 300)
    for process in t.actors(out):
        os.kill(process, signal.SIGSTOP)
    os.kill(made.cluster.head_node.all_processes["gcs_server"][0].process.pid, signal.SIGKILL)
    child.wait(timeout=600)
    said = (out / "log" / "driver.txt").read_text().strip().splitlines()[-1]
    t.close(made)
    made = t.bed()
    t.finish(path, out, made, t.start(path, out, made))
    assert "head has not answered" in said, said
    assert rows(out) == whole
    print(f"head lost: {said}; resumed, rows identical", flush=True)
    return made


def starved(folder: Path) -> None:
    """Ray's monitor ends the actors of a machine that eats the memory of its node: the others are solved, a
    resume on a node with more completes the run.
    """
    folder.mkdir()
    small = under_curse(study(folder), "hungry")
    driver.run(small, folder / "whole", workers=0)
    kib = {
        line.split(":")[0]: int(line.split()[1]) for line in Path("/proc/meminfo").read_text().splitlines()
    }
    # the cluster itself takes up to 1 GiB, and another GiB is for other processes of this machine
    share = 1 - (kib["MemAvailable"] - EATEN_BYTES * 2 / 3 / 1024) / kib["MemTotal"]
    with (
        pool.loopback(),
        pool.restore_environment(["RAY_TMPDIR"]),
        tempfile.TemporaryDirectory(prefix="dse-few-", dir="/tmp") as own,
    ):
        os.environ["RAY_TMPDIR"] = own
        scarce = {"memory_usage_threshold": share, "memory_monitor_refresh_ms": 100}
        made = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 2,
                "include_dashboard": False,
                "node_ip_address": "127.0.0.1",
                "object_store_memory": 100 << 20,
                "_system_config": scarce,
            },
        )
        try:
            first = driver.run(small, folder / "run", workers=2, address=made.address).status
        finally:
            made.shutdown()
    again = driver.run(small, folder / "run", workers=2)
    assert first.error
    assert again.exit_code == 0
    assert rows(folder / "run") == rows(folder / "whole")
    print(
        f"an actor out of memory: {first.state}, {first.done} machines, {first.error} lost; resumed "
        "with more, rows identical",
        flush=True,
    )


AROUND = """
name: around
workloads: ['gemm:m=256,n=192,k=320', 'gemm:m=96,n=512,k=224', 'gemm:m=448,n=72,k=144']
machine: edge_array
space: {array.x: [2, 4, 8], array.y: [2, 4, 8], gbuf.capacity: [8 KiB, 16 KiB, 32 KiB, 64 KiB],
  dram.kind: [lpddr4, lpddr5, gddr6]}
objectives: [energy_pj, latency_ns]
"""
MOMENTS = ("start-up", "resume")


def killed_at(moment: str, path: Path, out: Path, made: t.Bed, rng: random.Random) -> bool:
    """One run that is killed at a moment, then resumed to its end; False if it was over before."""
    if moment == "resume":
        child = t.start(path, out, made)
        wait_for(lambda: t.committing(out) or child.poll() is not None, 600)
        child.kill()
        child.wait(timeout=30)
    child = t.start(path, out, made)
    time.sleep(rng.uniform(0.0, 5.0))
    over = child.poll() is not None
    if not over:
        child.kill()
    for _ in range(4):
        child.wait(timeout=500)
        if (out / "log" / "driver.txt").read_text().endswith("0 finished\n"):
            return not over
        child = t.start(path, out, made)
    raise AssertionError((out / "log" / "driver.txt").read_text()[-2000:])


def around(folder: Path, made: t.Bed, times: int, rng: random.Random) -> Counter[str]:
    """Kills at MOMENTS in turn, each on a run of its own; the rows are those of a run that nobody
    disturbed."""
    folder.mkdir()
    path = folder / "around.yaml"
    path.write_text(AROUND)
    count: Counter[str] = Counter()
    assert driver.run(studies.load(path), folder / "whole", workers=0).exit_code == 0
    whole = rows(folder / "whole")
    for number in range(times):
        moment = MOMENTS[number % len(MOMENTS)]
        out = folder / f"{moment}-{number}"
        hit = killed_at(moment, path, out, made, rng)
        assert rows(out) == whole, f"{out}: rows differ"
        front(out)
        count[moment] += hit
        print(
            f"{moment}: {'killed' if hit else 'was over'}, resumed, rows identical; so far {dict(count)}",
            flush=True,
        )
    return count


def on_a_store(
    folder: Path, made: t.Bed, times: int, rng: random.Random, options: str, whole: Rows
) -> tuple[t.Bed, Counter[str]]:
    """Kills in turn, on runs whose workers write onto a store; every second one goes on without the copy."""
    victims = [VICTIMS[n % len(VICTIMS)] for n in range(times)]
    rng.shuffle(victims)
    total: Counter[str] = Counter()
    while victims:
        url = f"s3://bucket/{times - len(victims)}?{options}"
        out = objects.copy_folder(objects.remote_at(url))
        made, killed = disturbed(by_workers(folder / "exhaustive.yaml"), out, made, victims, rng, url)
        shutil.rmtree(out)
        assert rows(objects.fetched(url)) == whole, f"{url}: rows differ after {killed}"
        total.update(f"{victim} (store)" for victim in killed)
        print(f"on a store: equal after {' '.join(killed)}; so far {dict(total)}", flush=True)
    return made, total


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--each", type=int, default=20)
    parser.add_argument("--moments", type=int, default=20, help="in turn at each of the moments")
    parser.add_argument("--stored", type=int, default=40, help="on runs on a store")
    parser.add_argument("--seed", type=int, default=1)
    given, _ = parser.parse_known_args()
    rng = random.Random(given.seed)
    total: Counter[str] = Counter()
    has_store = SERVER.exists() and given.stored > 0
    if not has_store:
        print(f"no kills on a store: {SERVER} is missing (make build/objects/ready), or --stored 0")
    with (
        tempfile.TemporaryDirectory(prefix="dse-kills-") as folder,
        s3_server(rng, []) if has_store else nullcontext(("", Path())) as (options, _),
    ):
        made = t.bed()
        try:
            starved(Path(folder) / "starved")
            total.update(around(Path(folder) / "around", made, given.moments, rng))
            for i, method in enumerate(METHODS):
                path = prepared(Path(folder), method)
                whole = undisturbed(path)
                share = given.each // len(METHODS) + (i < given.each % len(METHODS))
                victims = [victim for victim in VICTIMS for _ in range(share)]
                rng.shuffle(victims)
                if method == "exhaustive":
                    stopped(path, Path(folder) / "stopped", made, whole)
                    made = headless(path, Path(folder) / "headless", made, whole)
                    if has_store:
                        made, kills = on_a_store(Path(folder), made, given.stored, rng, options, whole)
                        total.update(kills)
                number = 0
                while victims:
                    out = Path(folder) / f"{method}-killed-{number}"
                    made, killed = disturbed(
                        by_workers(path) if number % 2 else path, out, made, victims, rng
                    )
                    assert rows(out) == whole, f"{out}: rows differ after {killed}"
                    front(out)
                    total.update(killed)
                    number += 1
                    print(
                        f"{method} run {number}: {len(whole['machines'])} machines equal after "
                        f"{' '.join(killed)}; so far {dict(total)}",
                        flush=True,
                    )
        finally:
            t.close(made)
    where = "" if has_store else " (none of runs on a store)"
    print(f"{sum(total.values())} kills{where}, {dict(total)}: 0 lost, 0 duplicate keys, rows identical")
    return 0
