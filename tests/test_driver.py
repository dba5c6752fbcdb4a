"""The loop in-process: exactly once, extended, refused, interrupted, with errors, on a damaged folder. Real
einsums, real machines.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dse
from cluster import driver
from cluster import store as stores
from cluster.run_state import RunState
from cluster.store import RunFault
from dse.frontend import check
from dse.mapper.baselines.cost_descending import cost_descending
from dse.mapping.nest import Infeasible
from dse.run import folder, record
from dse.sim.einsum.evaluate import EinsumCost, Problem, Violated
from dse.solve import solve
from dse.solve.options import SolverOptions
from dse.study import packed_columns
from dse.study import study as studies
from dse.study.study import Study
from tests.cursed import marked

pytestmark = pytest.mark.xdist_group("driver")

STUDY = """
name: small
workloads: [{workloads}]
machine: a2
space:
  glb.capacity: [1 B, 2 B, 128 B, 512 B, 1 KiB, 2 KiB, 4 KiB, 8 KiB, 16 KiB, 32 KiB]
  array.x: [1, 2, 4, 8, 16]
  array.y: [2, 4, 8]
  glb.bypass: [true, false]
constraints: ["array.x >= array.y / 4", "latency_ns <= 2e6"]
objectives: [energy_pj, latency_ns]
search: {{method: {method}, seed: 7, generation: {generation}}}
solver: {{mapper: cost_descending}}
stop: {{{stop}}}
"""
LIGHT = "'gemm:m=64,n=32,k=48'"
HEAVY = "'gemm:m=256,n=192,k=320', 'gemm:m=96,n=512,k=224', 'gemm:m=448,n=72,k=144'"
SIZE = 300
Rows = dict[str, list[tuple[object, ...]]]


def study(
    folder: Path, method: str = "exhaustive", generation: int = 40, stop: str = "", workloads: str = LIGHT
) -> Study:
    path = folder / f"{method}.yaml"
    path.write_text(STUDY.format(workloads=workloads, method=method, generation=generation, stop=stop))
    return studies.load(path)


def rows(out: Path) -> Rows:
    """All published rows but events and copies of points, sorted; fails on a key that stands twice (mappings
    and counts may repeat equal rows).
    """
    listed = json.loads((out / "manifest.json").read_text())["parts"]
    found: Rows = {}
    for table in record.STORED:
        if table in ("events", record.NONDOMINATED) or not listed.get(table):
            continue
        whole = pa.concat_tables([pq.read_table(out / path) for path in listed[table]])
        lines = [tuple(row.values()) for row in whole.to_pylist()]
        if table in ("mappings", "counts"):
            lines = list(set(lines))
        at = [whole.column_names.index(name) for name in record.KEYS[table]]
        keys = [tuple(line[i] for i in at) for line in lines]
        assert len(keys) == len(set(keys)), f"{table}: duplicate keys"
        found[table] = sorted(lines, key=repr)
    return found


def front(out: Path, **options: Any) -> list[tuple[int, int]]:
    """The front, as (machine, schedule), read from what commits list of it; equal to that of all points."""
    run = dse.open(out, **options)
    listed, of_all = run.front().table, run.front(where="true").table
    assert listed.to_pylist() == of_all.to_pylist()
    return list(zip(listed["machine"].to_pylist(), listed["schedule"].to_pylist(), strict=True))


def table(out: Path, name: str) -> list[dict[str, Any]]:
    """Published rows of one table, with what follows."""
    listed = json.loads((out / "manifest.json").read_text())["parts"]
    found = [pq.read_table(out / path) for path in listed.get(name, [])]
    if name == "points" and found:
        machines = pa.concat_tables(
            [
                pq.read_table(out / path, columns=["machine", *packed_columns.MACHINE_INPUTS])
                for path in listed["machines"]
            ]
        )
        found = [packed_columns.unpack(one, machines) for one in found]
    return [row for one in found for row in one.to_pylist()]


def events(out: Path, kind: str) -> list[str]:
    return [row["text"] for row in table(out, "events") if row["kind"] == kind]


def statuses(out: Path) -> dict[str, int]:
    found = [row[list(record.TABLES["machines"]).index("status")] for row in rows(out)["machines"]]
    return {str(status): found.count(status) for status in set(found)}


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    """Of the study as it is, solved at once."""
    home = tmp_path_factory.mktemp("whole")
    driver.run(study(home), home / "run", workers=0)
    return rows(home / "run")


@pytest.mark.parametrize("method", ["exhaustive", "random", "nsga2", "tpe"])
def test_a_run_solves_everything_once_and_a_second_call_nothing(tmp_path: Path, method: str) -> None:
    seen: list[driver.Status] = []
    steered = method in ("nsga2", "tpe")
    small = study(tmp_path, method, 16 if steered else 40, "machines: 48" if steered else "")
    first = driver.run(small, tmp_path / "run", workers=0, progress=seen.append)
    assert first.exit_code == 0
    assert seen[-1].state == "finished"
    assert first.solved + first.status.pruned == first.status.done == len(rows(tmp_path / "run")["machines"])
    assert first.solved == 48 if steered else first.status.done == SIZE
    again = driver.run(small, tmp_path / "run", workers=0)
    assert again.solved == 0
    assert again.exit_code == 0
    assert again.status.front == first.status.front
    at = list(record.TABLES["points"]).index("optimality_gap")
    worst = max(row[at] for row in rows(tmp_path / "run")["points"])
    assert first.status.worst_gap == again.status.worst_gap == worst > 0  # type: ignore[operator]


def test_every_infeasible_machine_says_which_level_lacks_how_much(whole: Rows) -> None:
    names = list(record.TABLES["machines"])
    lacking = [dict(zip(names, row, strict=False)) for row in whole["machines"]]
    lacking = [row for row in lacking if row["status"] == "infeasible"]
    assert lacking
    assert all(
        row["need_bytes"] > row["have_bytes"] > 0 and row["limit_level"] == "GLB" and row["einsum"]
        for row in lacking
    )


@pytest.mark.parametrize("method", ["exhaustive", "nsga2", "tpe"])
def test_more_points_go_on_as_if_they_had_been_there_from_the_start(tmp_path: Path, method: str) -> None:
    driver.run(study(tmp_path, method, 16, "machines: 70"), tmp_path / "whole", workers=0)
    driver.run(study(tmp_path, method, 16, "machines: 21"), tmp_path / "parts", workers=0)
    driver.run(study(tmp_path, method, 16, "machines: 50"), tmp_path / "parts", workers=0)
    out = driver.run(study(tmp_path, method, 16, "machines: 70"), tmp_path / "parts", workers=0)
    assert out.solved == 20
    assert rows(tmp_path / "parts") == rows(tmp_path / "whole")


def test_an_env_json_of_an_earlier_session_takes_no_rows_with_it(tmp_path: Path) -> None:
    """It says that fewer machines are wanted, and that study.yaml is not what the run wrote."""
    run, env = tmp_path / "run", tmp_path / "run" / folder.ENV
    driver.run(study(tmp_path, stop="machines: 5"), run, workers=0)
    earlier = env.read_bytes()
    driver.run(study(tmp_path, stop="machines: 8"), run, workers=0)
    whole, later = rows(run), env.read_bytes()
    env.write_bytes(earlier)
    sorted((run / "parts" / "points").iterdir())[-1].unlink()
    (line,) = folder.faults_of_inputs(run, folder.read(run))
    assert line.startswith(f"{env}: older than manifest.json; `dse resume")
    out = driver.resume(run, workers=0)
    assert any("env.json: older than manifest.json; written anew" in line for line in out.status.notes)
    assert rows(run) == whole
    assert env.read_bytes() == later


def test_a_changed_study_is_refused_with_the_key(tmp_path: Path) -> None:
    driver.run(study(tmp_path, stop="machines: 5"), tmp_path / "run", workers=0)
    before = rows(tmp_path / "run")
    changed = studies.load(tmp_path / "exhaustive.yaml", ["space.array.x=[1, 2]", "solver.objective=latency"])
    with pytest.raises(
        ValueError, match=r"solver.objective: energy -> latency; give another --out\n.*space.array.x"
    ):
        driver.run(changed, tmp_path / "run", workers=0)
    assert rows(tmp_path / "run") == before


def test_a_folder_moved_and_resumed_without_the_study_file(tmp_path: Path) -> None:
    driver.run(study(tmp_path, "nsga2", 16, "machines: 40"), tmp_path / "whole", workers=0)
    driver.run(
        study(tmp_path, "nsga2", 16, "machines: 40"), tmp_path / "run", workers=0, progress=_stop_after(20)
    )
    shutil.move(tmp_path / "run", tmp_path / "moved")
    (tmp_path / "nsga2.yaml").unlink()
    assert driver.resume(tmp_path / "moved", workers=0).exit_code == 0
    assert rows(tmp_path / "moved") == rows(tmp_path / "whole")


def test_no_run_in_the_folder_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no run is there") as fault:
        driver.resume(tmp_path)
    assert "\n" not in str(fault.value)


def _stop_after(machines: int, number: int = signal.SIGINT):  # type: ignore[no-untyped-def]
    """A progress callback that presses Ctrl-C once, or sends another signal."""

    def pressed(status: driver.Status) -> None:
        if status.state == "running" and status.done >= machines:
            os.kill(os.getpid(), number)

    return pressed


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report after every lease, a commit with every third."""
    monkeypatch.setattr(driver, "REPORT_S", 0.0)
    monkeypatch.setattr(driver, "COMMIT_ROWS", 150)
    monkeypatch.setattr(driver, "LEASE_S", 0.02)


@pytest.mark.usefixtures("reports")
def test_ctrl_c_commits_what_is_solved_and_resume_completes_it(tmp_path: Path, whole: Rows) -> None:
    first = driver.run(study(tmp_path), tmp_path / "run", workers=0, progress=_stop_after(120))
    assert first.status.state == "interrupted"
    assert first.exit_code == 130
    assert 120 <= first.status.done < SIZE
    assert len(rows(tmp_path / "run")["machines"]) == first.status.done
    second = driver.resume(tmp_path / "run", workers=0)
    assert first.solved + second.solved + second.status.pruned == SIZE == second.status.done
    assert rows(tmp_path / "run") == whole


@pytest.mark.usefixtures("reports")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_run_that_a_signal_ends_says_so_in_its_exit_code(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    small = study(tmp_path, stop="machines: 40")
    before = signal.signal(number, signal.SIG_DFL)  # whatever started the tests, nohup too
    try:
        ended = driver.run(small, tmp_path / "run", workers=0, progress=_stop_after(8, number))
    finally:
        signal.signal(number, before)
    assert (ended.status.state, ended.exit_code) == ("interrupted", code)


@pytest.mark.usefixtures("reports")
def test_a_hang_up_that_nohup_ignores_ends_nothing(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        small = study(tmp_path, stop="machines: 40")
        ended = driver.run(small, tmp_path / "run", workers=0, progress=_stop_after(8, signal.SIGHUP))
    finally:
        signal.signal(signal.SIGHUP, before)
    assert ended.status.state == "finished"


def test_the_rate_is_that_of_the_last_minute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A slow start is forgotten; where little came in since, the mean of the session counts."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    run = SimpleNamespace(recent=deque(), solved=0, slots=2)
    rates = []
    for second in range(200):
        run.solved += 5 if 60 <= second < 130 else 0
        rates.append(driver._rate(run, second + 1.0))  # type: ignore[arg-type]
        now[0] += 1
    assert rates[20] == 0
    assert rates[125] == pytest.approx(5, rel=0.02)
    assert rates[125] > 1.8 * 330 / 126
    assert rates[199] == pytest.approx(350 / 200)


@pytest.mark.usefixtures("reports")
@pytest.mark.parametrize("method", ["exhaustive", "tpe"])
def test_damage_anywhere_is_put_away_and_redone(
    tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a part for each lease: how many there are is no matter of speed
    monkeypatch.setattr(driver, "COMMIT_ROWS", 1)
    small = study(tmp_path, method, 16, "machines: 60")
    driver.run(small, tmp_path / "whole", workers=0)
    driver.run(small, tmp_path / "run", workers=0)
    rng = random.Random(5)
    parts = sorted((tmp_path / "run" / "parts" / "machines").iterdir())
    assert len(parts) > 2
    victim = rng.choice(parts)
    victim.write_bytes(victim.read_bytes()[: -rng.randrange(1, 200)])
    asks = sorted((tmp_path / "run" / "asks").iterdir())
    asks[1].write_text(asks[1].read_text().replace("1", "2", 1))
    out = driver.run(small, tmp_path / "run", workers=0)
    assert out.exit_code == 0
    assert out.solved > 0
    assert len([n for n in out.status.notes if "quarantine" in n]) >= 2
    assert rows(tmp_path / "run") == rows(tmp_path / "whole")
    assert driver.run(small, tmp_path / "run", workers=0).solved == 0


def faulty(problem: Problem, rng: Random) -> list[EinsumCost] | Infeasible:
    """cost_descending, but for one machine of the space."""
    if marked(problem):
        raise RuntimeError("this machine is cursed")
    return cost_descending(problem, rng)


def broken(problem: Problem, rng: Random) -> list[EinsumCost] | Infeasible:
    raise RuntimeError("never works")


def slow(problem: Problem, rng: Random) -> list[EinsumCost] | Infeasible:
    if marked(problem):
        time.sleep(300)
    return cost_descending(problem, rng)


def with_mapper(small: Study, monkeypatch: pytest.MonkeyPatch, mapper: solve.Mapper) -> Study:
    """The study solved by an own mapper, entered in the table of mappers under the default's name."""
    monkeypatch.setitem(solve.MAPPERS_BY_NAME, small.solver.mapper, mapper)
    return small


def test_an_exception_in_one_machine_is_a_row_and_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = driver.run(with_mapper(study(tmp_path), monkeypatch, faulty), tmp_path / "run", workers=0)
    assert out.exit_code == 1
    assert out.status.state == "finished"
    assert out.status.done == SIZE
    assert statuses(tmp_path / "run")["error"] == 1
    assert len(events(tmp_path / "run", "error")) == 1
    assert "this machine is cursed" in events(tmp_path / "run", "error")[0]
    assert "Traceback" in events(tmp_path / "run", "error")[0]


def test_many_errors_stop_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = driver.run(with_mapper(study(tmp_path), monkeypatch, broken), tmp_path / "run", workers=0)
    assert out.exit_code == 1
    assert out.status.state == "failed"
    assert "error" in out.status.reason
    assert out.status.error < 40


def contradicts(problem: Problem, rng: Random) -> list[EinsumCost] | Infeasible:
    raise Violated("lower bound 2 above the cost 1 of\nstore DRAM A")


def test_a_violated_invariant_stops_the_run_at_once_and_names_the_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = driver.run(with_mapper(study(tmp_path), monkeypatch, contradicts), tmp_path / "run", workers=0)
    assert out.exit_code == 1
    assert out.status.state == "failed"
    assert out.status.reason.startswith("violated: machine 0: lower bound 2")
    assert "store DRAM A" in events(tmp_path / "run", "error")[0]


def test_a_deadline_leaves_a_machine_undone_and_resume_redoes_it(
    tmp_path: Path, whole: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = study(tmp_path)
    hasty = replace(small, limits=replace(small.limits, seconds=6.0))
    with monkeypatch.context() as patch:
        out = driver.run(with_mapper(hasty, patch, slow), tmp_path / "run", workers=0)
    assert out.exit_code == 1
    assert statuses(tmp_path / "run")["error"] == 1
    assert "deadline" in events(tmp_path / "run", "error")[0]
    assert driver.resume(tmp_path / "run", workers=0).solved == 1
    assert rows(tmp_path / "run") == whole


def hungry(problem: Problem, rng: Random) -> list[EinsumCost] | Infeasible:
    """Asks for more than any machine has."""
    if marked(problem):
        bytearray(1 << 60)
    return cost_descending(problem, rng)


def test_a_machine_without_memory_is_left_undone_and_resume_redoes_it(
    tmp_path: Path, whole: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        out = driver.run(with_mapper(study(tmp_path), patch, hungry), tmp_path / "run", workers=0)
    assert out.exit_code == 1
    assert out.status.done == SIZE
    assert statuses(tmp_path / "run")["error"] == 1
    assert "MemoryError" in events(tmp_path / "run", "error")[0]
    assert driver.resume(tmp_path / "run", workers=0).solved == 1
    assert rows(tmp_path / "run") == whole


def test_a_second_run_into_the_folder_is_refused_while_the_first_goes_on(tmp_path: Path) -> None:
    small, told = study(tmp_path), []

    def intrude(status: driver.Status) -> None:
        with pytest.raises(driver.RunFault, match="another run writes into this folder") as fault:
            driver.run(small, tmp_path / "run", workers=0)
        told.append(str(fault.value))

    assert driver.run(small, tmp_path / "run", workers=0, progress=intrude).exit_code == 0
    assert told
    assert all("\n" not in line for line in told)


@pytest.mark.usefixtures("reports")
def test_a_clock_set_back_is_one_line_and_changes_nothing(
    tmp_path: Path, whole: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, back = time.time, threading.Event()
    monkeypatch.setattr(time, "time", lambda: real() - 86_400 * back.is_set())
    out = driver.run(
        study(tmp_path),
        tmp_path / "run",
        workers=0,
        progress=lambda status: back.set() if status.done > 99 else None,
    )
    assert [note for note in out.status.notes if "clock" in note] == [
        "the clock was set back by 86400 s; order and durations do not depend on it"
    ]
    assert 0 < out.status.seconds < 600
    assert rows(tmp_path / "run") == whole
    out_identity = folder.read(tmp_path / "run").identity
    (tmp_path / "run" / "status.json").write_bytes(
        folder.seal("status", {"time": real() + 9e4, "seconds": 1.0, "identity": out_identity})
    )
    again = driver.run(study(tmp_path), tmp_path / "run", workers=0)
    assert again.solved == 0
    assert sum("clock" in note for note in again.status.notes) == 1


@pytest.mark.usefixtures("reports")
def test_a_clock_that_jumps_ahead_changes_nothing(
    tmp_path: Path, whole: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, ahead = time.time, threading.Event()
    monkeypatch.setattr(time, "time", lambda: real() + 86_400 * ahead.is_set())
    out = driver.run(
        study(tmp_path),
        tmp_path / "run",
        workers=0,
        progress=lambda status: ahead.set() if status.done > 99 else None,
    )
    assert ahead.is_set()
    assert (out.exit_code, out.status.notes) == (0, ())
    assert 0 < out.status.seconds < 600
    assert rows(tmp_path / "run") == whole


COMMITTING = """
import sys, time
from pathlib import Path
from cluster import driver, store
from dse.study import study as studies
driver.COMMIT_S, driver.LEASE_S, store.FAN_IN = 0.0, 0.0, 4
driver.run(studies.load(Path(sys.argv[1])), Path(sys.argv[2]), workers=0, progress=lambda _: time.sleep(0.01))
"""


def test_a_folder_that_is_copied_while_its_run_goes_on_is_one_that_resumes(tmp_path: Path) -> None:
    """File by file, as `cp -r` does, so that a copy has files of several commits."""
    small = study(tmp_path, stop="machines: 60")
    driver.run(small, tmp_path / "whole", workers=0)
    expected = rows(tmp_path / "whole")
    given = [str(tmp_path / "exhaustive.yaml"), str(tmp_path / "run")]
    child = subprocess.Popen([sys.executable, "-c", COMMITTING, *given], cwd=Path(__file__).parents[1])
    copies = []
    try:
        while child.poll() is None:
            if (folder.status(tmp_path / "run", "") or {}).get("done", 0) > 20 * len(copies):
                copies.append(tmp_path / f"copy-{len(copies)}")
                with suppress(shutil.Error):  # of files that were removed meanwhile
                    shutil.copytree(tmp_path / "run", copies[-1])
            time.sleep(0.01)
    finally:
        child.kill()
        child.wait()
    assert rows(tmp_path / "run") == expected
    assert len(copies) > 2
    for copy in copies:
        assert driver.run(small, copy, workers=0).exit_code == 0
        assert rows(copy) == expected, copy


FULL = """
import resource, signal, sys
from pathlib import Path
from cluster import driver
from dse.study import study as studies
driver.COMMIT_ROWS = 3000
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
small = studies.load(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (9000, resource.RLIM_INFINITY))
try: driver.run(small, Path(sys.argv[2]), workers=0)
except driver.RunFault as fault: print(fault)
"""


def test_a_full_disk_stops_with_one_line_and_loses_nothing(tmp_path: Path, whole: Rows) -> None:
    """The limit on a file's size stands for the disk."""
    small = study(tmp_path)
    said = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path / "exhaustive.yaml"), str(tmp_path / "run")],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert said.stdout.count("\n") == 1
    assert "disk full" in said.stdout
    assert not said.stderr
    assert driver.run(small, tmp_path / "run", workers=0).exit_code == 0
    assert rows(tmp_path / "run") == whole


FILLED = """
import sys
from contextlib import suppress
from pathlib import Path
from cluster import driver
from dse.frontend import check
from dse.study import study as studies
path, disk = map(Path, sys.argv[1:])
driver.REPORT_S, driver.COMMIT_S = 0.0, 1e9
def fill(status):
    if status.done > 100:
        driver.COMMIT_S = 0.0
        with suppress(OSError), open(disk / "filler", "ab", 0) as filler:
            while True: filler.write(bytes(1 << 12))
try: driver.run(studies.load(path), disk / "run", workers=0, progress=fill)
except driver.RunFault as fault: print(fault)
found = check.status(disk / "run", False)
print(found["state"], found["done"] + found.get("uncommitted", 0) > 100)
"""
IN_NAMESPACE = ("unshare", "-rm", "sh", "-c")


@pytest.mark.skipif(
    subprocess.run([*IN_NAMESPACE, "mount -t tmpfs none /tmp"], check=False, capture_output=True).returncode,
    reason="no namespace in which a small disk can be mounted",
)
def test_a_disk_without_a_byte_left_holds_the_last_status(tmp_path: Path) -> None:
    """The state is `failed`, not that of a killed run."""
    study(tmp_path)
    disk, path = tmp_path / "disk", tmp_path / "exhaustive.yaml"
    disk.mkdir()
    mounted = f'mount -t tmpfs -o size=2m none {disk} && exec {sys.executable} -c "$FILLED" {path} {disk}'
    said = subprocess.run(
        [*IN_NAMESPACE, mounted],
        env={**os.environ, "FILLED": FILLED, "PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    line, state = said.stdout.splitlines()
    assert "disk full; free space, then" in line
    assert state == "failed True"


def test_a_failed_run_counts_the_machines_that_were_committed(tmp_path: Path) -> None:
    out = tmp_path / "run"
    driver.run(study(tmp_path, stop="machines: 40"), out, workers=0)
    found = check.status(out, False)
    facts = {**found, "state": "failed", "done": found["done"] + 7, "identity": folder.read(out).identity}
    folder.write_bytes(out / folder.STATUS, folder.seal("status", facts))
    again = check.status(out, False)
    assert (again["done"], again["uncommitted"], "front" in again) == (found["done"], 7, False)


def test_a_dry_run_solves_its_probes_and_writes_nothing(tmp_path: Path) -> None:
    facts = driver.dry_run(study(tmp_path))
    assert facts["machines_in_space"] == SIZE
    assert facts["unique_einsums"] == 1
    assert facts["whole_s"] > facts["core_s"] / 4 > 0
    assert facts["disk_mb"] > 0
    assert facts["probes"].startswith("20: ")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["exhaustive.yaml"]


def test_a_dry_run_of_slow_machines_tries_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "PROBE_S", -1.0)
    facts = driver.dry_run(study(tmp_path))
    assert " 1 solved, 0 infeasible or failed" in facts["probes"]
    assert "left out after" in facts["probes"]
    assert facts["machine_s"] > 0


def test_a_dry_run_does_not_wait_long_for_its_first_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "PREPARE_S", 0.0)
    facts = driver.dry_run(study(tmp_path, workloads=HEAVY))
    assert facts["machines_to_solve"] <= facts["machines_in_space"] == SIZE
    said = "none: no answer of a machine within 0 s; a run says more after a minute"
    assert facts["probes"] == f"{said}; with solver.sharing_gap machines share searches"
    asked = replace(study(tmp_path), solver=SolverOptions(objective="edp", schedule="fused"))
    assert driver._no_answer(asked) == f"{said}; objective edp searches three times, energy once"
    assert "whole_s" not in facts


def test_a_dry_run_solves_batches_of_machines_that_share_mappings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each batch once; what all batches take follows from their machines."""
    asked = replace(study(tmp_path), solver=SolverOptions(sharing_gap=0.1))
    found = list[driver.Batch]()
    probe = driver._probe_batches
    monkeypatch.setattr(driver, "_probe_batches", lambda job, asks, _: probe(job, asks[:3], found))
    monkeypatch.setattr(driver, "_within", lambda _, call: call())
    facts = driver.dry_run(asked)
    assert facts["probes"].startswith("none: no answer of what machines share within 80 s")
    machines = [ask.machine for batch in found for ask in batch.lease.lease.asks]
    assert sorted(set(machines)) == sorted(machines)
    assert [batch.machines for batch in found] == [len(batch.lease.lease.asks) for batch in found]
    monkeypatch.setattr(driver, "_probe_batches", lambda job, asks, batches: batches.extend(found[:1]))
    facts = driver.dry_run(asked)
    assert facts["shared_s"] == pytest.approx(found[0].seconds * SIZE / found[0].machines, rel=0.01)
    started = driver.START_CORE_S + driver.DRIVER_S * SIZE
    of_batches = found[0].cpu_s * SIZE / found[0].machines
    assert facts["core_s"] == pytest.approx(started + of_batches, rel=0.01)
    assert found[0].cpu_s > 0
    assert facts["probes"].startswith("1 batches of ")


@pytest.mark.parametrize("method", ["random", "qmc", "tpe"])
def test_as_many_leases_as_workers_want_where_nothing_is_learned(tmp_path: Path, method: str) -> None:
    """Of tpe two generations of 16 are in flight; of the others each of 100 workers has a machine."""
    store, _ = stores.open_run(tmp_path / "run")
    run = driver._open(study(tmp_path, method, 16), store, [])
    run.slots = 100
    leases = driver._leases(run)
    taken = [next(leases) for _ in range(100)]
    machines = [ask.machine for lease in taken if lease for ask in lease.asks]
    assert len(machines) == len(set(machines)) == (32 if method == "tpe" else 100)
    assert next(leases) is None  # until the pace is known each worker has one machine
    stores.close(store)


@pytest.mark.parametrize("solver", ["{mapper: optimal}", "{sharing_gap: 0.01}"])
def test_leases_of_one_batch_bear_one_number_in_all_generations(tmp_path: Path, solver: str) -> None:
    """And those of other batches another one: so those of a batch find who has solved others of it."""
    study(tmp_path, generation=7)
    path = tmp_path / "exhaustive.yaml"
    text = path.read_text().replace("  glb.bypass", "  clock_mhz: [500.0, 1000.0]\n  glb.bypass")
    path.write_text(text.replace("{mapper: cost_descending}", solver))
    store, _ = stores.open_run(tmp_path / "run")
    run = driver._open(studies.load(path), store, [])
    run.slots = 1000
    batch_of: dict[tuple[int, ...], set[int]] = {}
    assert run.structural_axes
    for lease in takewhile(bool, driver._leases(run)):
        for digits in run.job.pruner.table.digits(np.array([ask.machine for ask in lease.asks])):
            batch_of.setdefault(tuple(digits[run.structural_axes].tolist()), set()).add(lease.batch)
    assert len(run.generations) > 2
    assert len(batch_of) == len(set().union(*batch_of.values())) > 1
    assert max(map(len, batch_of.values())) == 1
    stores.close(store)


def test_a_machine_has_rows_of_one_generation(tmp_path: Path) -> None:
    """What two generations ask for stops the run before it is published."""
    known = RunState(study(tmp_path, "nsga2", 8))
    row = {
        "status": "infeasible",
        "reason": "x",
        "need_bytes": 1,
        "have_bytes": 0,
        "area_mm2": 1.0,
        "clock_ghz": 1.0,
        "bound_energy_pj": 1.0,
    }
    known.learn(
        pa.Table.from_pylist(
            [{"machine": 3, "generation": 0, **row}, {"machine": 4, "generation": 0, **row}]
        ),
        None,
    )
    with pytest.raises(RunFault, match="machine 4 has rows of generations 1 and 0"):
        known.learn(pa.Table.from_pylist([{"machine": 4, "generation": 1, **row}]), None)


def test_a_run_that_waits_for_its_first_worker_ends_when_it_is_told_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No worker pulls a lease, so nothing is in flight that it would have to wait for."""
    rounds = 0

    @driver.contextmanager
    def lease_map(run: Any, *_: Any) -> Iterator[Any]:
        def nothing(leases: Iterator[Any]) -> Iterator[None]:
            nonlocal rounds
            for rounds in range(9):
                if rounds == 3:
                    run.halt_reason = "interrupted; told to"
                yield None

        yield nothing

    monkeypatch.setattr(driver, "_lease_map", lease_map)
    out = driver.run(study(tmp_path), tmp_path / "run", workers=1)
    assert (rounds, out.status.reason) == (3, "interrupted; told to")
