"""Proof: a run dies at its N-th write, fsync, rename, unlink or mkdir, for every N, and is resumed: the rows
are those of the undisturbed run.

    python -m tests.prove crashes [--every 1] [--first 0] [--workers 2]

Three sessions are enumerated: a fresh run and a mapping for the cache; a run that goes on and merges parts; a
resume that takes machines back which a lost actor left undone. Three ways to die at each call: before it
(`kill -9`); in the middle of a write (torn); and with the power: what was not synced is gone, file by file
and name by name, as POSIX allows (unsynced). After each death the folder is first read: the manifest is never
older than what a session had published, all its parts are sound, and no machine is there that the whole run
has not. Then it is resumed. Drop an fsync of store.py or folder.py, publish the manifest before a part, or
write in place, and a case fails.
"""

from __future__ import annotations

import argparse
import builtins
import io
import os
import re
import resource
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from cluster import driver, worker
from cluster import store as stores
from dse.run import folder
from dse.study import study as studies
from tests.prove.corruption import MAP, NET, SHM, STUDY, command, forked
from tests.test_driver import Rows, rows

SESSIONS = ("start", "merge", "resume")
WAYS = ("killed", "torn", "unsynced")
FAN_IN = 3
LOST = (2, 5)  # machines that the second session leaves undone


class Power:
    """Counts the calls that change a disk under `top`, and dies at one of them.

    left_out: of a mutant, whose fsyncs of such paths do nothing. Durable are contents by inode as of their
    last fsync, names by folder as of its last; the rest is lost in the way "unsynced".
    """

    left_out = ""

    def __init__(self, top: Path, stop: int, way: str) -> None:
        self.top, self.stop, self.way = str(top), stop, way
        self.calls = 0
        self.kinds = ""  # a letter per call
        self.held: list[int] = []  # every file that there was, so that no other one gets its inode
        resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
        self.files: dict[int, bytes] = {}
        self.names: dict[str, dict[str, int]] = {}
        self.real = {
            name: getattr(os, name) for name in ("fsync", "replace", "rename", "unlink", "remove", "mkdir")
        }
        for path, inner, files in os.walk(top):
            self.names[path] = {name: os.lstat(os.path.join(path, name)).st_ino for name in (*inner, *files)}
            for name in files:
                self.files[os.lstat(os.path.join(path, name)).st_ino] = Path(path, name).read_bytes()
                self.held.append(os.open(os.path.join(path, name), os.O_RDONLY))

    def mine(self, path: Any) -> bool:
        return str(path).startswith(self.top) and "/log/" not in str(path)

    def step(self, call: str, torn: Callable[[], object] | None = None) -> None:
        self.calls += 1
        self.kinds += "w" if torn else call[0]
        if self.calls != self.stop:
            return
        if self.way == "torn" and torn:
            torn()
        if self.way == "unsynced":
            self.lose()
        os._exit(86)

    def lose(self) -> None:
        """The tree as the last fsync of every file and folder left it; a file whose name is durable and whose
        content is not is empty.
        """
        kept = Path(f"{self.top}.kept")
        todo = [(self.top, kept)]
        while todo:
            path, target = todo.pop()
            self.real["mkdir"](target)
            for name, inode in self.names.get(path, {}).items():
                inner = os.path.join(path, name)
                if inner in self.names or (inode not in self.files and os.path.isdir(inner)):
                    todo.append((inner, target / name))
                else:
                    with io.open(target / name, "wb") as out:  # noqa: UP020
                        out.write(self.files.get(inode, b""))
        shutil.rmtree(self.top)
        self.real["rename"](kept, self.top)

    def synced(self, handle: int) -> None:
        found = os.fstat(handle)
        path = os.readlink(f"/proc/self/fd/{handle}")
        if os.path.isdir(path):
            with os.scandir(path) as entries:
                self.names[path] = {entry.name: entry.inode() for entry in entries}
        else:
            self.files[found.st_ino] = Path(path).read_bytes()

    def install(self) -> None:
        def fsync(handle: Any) -> None:
            number = handle if isinstance(handle, int) else handle.fileno()
            path = os.readlink(f"/proc/self/fd/{number}")
            if self.left_out and re.search(self.left_out, path):
                return
            inside = self.mine(path)
            if inside:
                self.step("fsync")
            self.real["fsync"](number)
            if inside:
                self.synced(number)

        def stepped(name: str) -> Callable[..., Any]:
            def call(path: Any, *rest: Any, **more: Any) -> Any:
                if self.mine(path):
                    self.step(name)
                return self.real[name](path, *rest, **more)

            return call

        real_open = builtins.open

        def opened(file: Any, mode: str = "r", *rest: Any, **more: Any) -> Any:
            if isinstance(file, int) or not self.mine(file) or not set(mode) & set("wxa+"):
                return real_open(file, mode, *rest, **more)
            self.step("open")
            raw = Torn(str(file), mode.replace("b", ""), self)
            return io.BufferedWriter(raw) if "b" in mode else io.TextIOWrapper(io.BufferedWriter(raw))

        os.fsync = fsync
        for name in ("replace", "rename", "unlink", "remove", "mkdir"):
            setattr(os, name, stepped(name))
        builtins.open = opened  # type: ignore[assignment]
        io.open = opened  # type: ignore[assignment]


class Torn(io.FileIO):
    """A file whose writes, as the system sees them, are counted; a torn one leaves half of its bytes."""

    def __init__(self, path: str, mode: str, power: Power) -> None:
        super().__init__(path, mode)
        self.power = power
        power.held.append(os.dup(self.fileno()))

    def write(self, data: Any) -> int:
        power, self.power = self.power, None  # type: ignore[assignment]
        power.step("write", lambda: io.FileIO.write(self, bytes(data)[: len(bytes(data)) // 2]))
        self.power = power
        return super().write(data)


def calm() -> None:
    """The same calls in the same order every time: no clock decides over leases, commits and reports."""
    driver.COMMIT_S, driver.COMMIT_ROWS, driver.REPORT_S, driver.LEASE_S, driver.MAX_PER_LEASE = (
        1e9,
        1,
        1e9,
        1e9,
        2,
    )
    real = stores.compact
    stores.compact = partial(real, fan_in=FAN_IN)  # type: ignore[assignment]


def session(top: Path, name: str) -> None:
    """One of SESSIONS in top/run, with top/cache."""
    os.environ["DSE_CACHE"] = str(top / "cache")
    if name == "merge":
        real = worker.solve_machine
        worker.solve_machine = lambda job, ask, *rest: (
            (worker.error_rows(job, ask, "lost: by design"), [])
            if ask.machine in LOST
            else real(job, ask, *rest)
        )
    points = {"start": 5, "merge": 12, "resume": 12}[name]
    study = studies.load(
        top / "small.yaml", [f"stop.machines={points}", "limits.errors=5", "limits.error_fraction=1"]
    )
    driver.run(study, top / "run", workers=0)
    if name == "start":
        command(*MAP)


def crashed(top: Path, base: Path, name: str, stop: int, way: str) -> tuple[str, int]:
    """Lets a session die at a call, in a process of its own: ("", generation that it had published before),
    or its calls if there are fewer.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        sys.stderr = sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        shutil.copytree(base, top / "disk")
        power = Power(top / "disk", stop, way)
        real = stores._publish

        def published(store: stores.Store) -> stores.Store:
            found = real(store)
            os.write(writer, f"{found.generation} ".encode())
            return found

        stores._publish = published
        power.install()
        try:
            session(top / "disk", name)
        except BaseException as fault:
            os.write(writer, f"x{fault}".encode())
            os._exit(1)
        os.write(writer, f"calls={power.kinds} ".encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as said:
        words = said.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 86), words
    if code == 0:
        return words.partition("calls=")[2].strip(), 0
    return "", max((int(word) for word in words.split()), default=0)


def judged(top: Path, name: str, whole: Rows, told: int) -> str:
    """What is wrong with a folder after a death, and after its resume; nothing if all is right."""
    run = top / "disk" / "run"
    os.environ["DSE_CACHE"] = str(top / "disk" / "cache")
    try:
        manifest, wrong = folder.verified_parts(run) if run.exists() else (folder.Manifest(), {})
    except folder.Damaged as fault:
        return f"damaged by a crash: {fault}"
    if manifest.generation < told or wrong:
        return f"generation {told} was published, {manifest.generation} is there; {wrong}"
    before = rows(run) if manifest.groups else {}
    if any(
        row not in whole["machines"] for row in before.get("machines", []) if "lost: by design" not in row
    ):
        return f"rows that are none of the whole run: {before['machines']}"
    out, err = command_of(top / "disk")
    if "built anew" in err:
        return f"a crash tore a file of the cache: {err}"
    if out:
        return f"not resumed: {out} {err}"
    if rows(run) != whole:
        return "rows differ"
    return "the mapping in the cache" if name == "start" and command(*MAP)[0] else ""


def command_of(disk: Path) -> tuple[str, str]:
    sets = [
        word
        for key in ("stop.machines=12", "limits.errors=5", "limits.error_fraction=1")
        for word in ("--set", key)
    ]
    code, out, err = command(
        "run", str(disk / "small.yaml"), "--out", str(disk / "run"), "--workers", "0", *sets
    )
    return ("" if code == 0 else f"code {code}: {out}"), err


def one(bases: dict[str, Path], whole: Rows, name: str, stop: int, way: str) -> str:
    top = Path(tempfile.mkdtemp(prefix="dse-crash-", dir=SHM))
    try:
        calls, told = crashed(top, bases[name], name, stop, way)
        if calls:
            return calls
        return f"{name}, call {stop}, {way}: {fault}" if (fault := judged(top, name, whole, told)) else ""
    finally:
        shutil.rmtree(top, ignore_errors=True)


def prepared(top: Path) -> tuple[dict[str, Path], Rows]:
    """The folder that each session begins with, and the rows of the whole run."""
    bases = {}
    disk, warm = top / "disk", top / "warm"
    for one_of in (disk, warm):
        one_of.mkdir()
        (one_of / "net.yaml").write_text(NET)
        (one_of / "small.yaml").write_text(STUDY)
    session(warm, "start")  # here: what is compiled and imported once, no death has to wait for
    for name in SESSIONS:
        bases[name] = top / name
        shutil.copytree(disk, bases[name])
        forked(lambda: session(disk, name))
    return bases, rows(disk / "run")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    given, _ = parser.parse_known_args()
    calm()
    faults = 0
    total: Counter[str] = Counter()
    with (
        tempfile.TemporaryDirectory(prefix="dse-crashes-", dir=SHM) as folder_,
        ThreadPoolExecutor(given.workers) as pool,
    ):
        bases, whole = prepared(Path(folder_))
        assert len(whole["machines"]) == 12
        for name in SESSIONS:
            calls = eval(forked(lambda: one(bases, whole, name, 1 << 40, "killed")))
            stops = range(given.first, len(calls) + 1, given.every)
            cases = [(stop, way) for stop in stops for way in WAYS if way != "torn" or calls[stop - 1] == "w"]
            for (_, way), text in zip(
                cases,
                pool.map(lambda case: forked(lambda: one(bases, whole, name, *case)), cases),
                strict=True,
            ):
                found = eval(text)
                total[way] += 1
                if found:
                    faults += 1
                    print(found, flush=True)
            print(
                f"{name}: died at {len(stops)} of {len(calls)} calls (of each kind {dict(Counter(calls))}), "
                f"{len(cases)} deaths; so far {faults} differences",
                flush=True,
            )
    print(f"{sum(total.values())} deaths, {dict(total)}: {faults} differences")
    return int(faults > 0)
