"""Proof: random corruptions of every kind of file of a run folder and of the cache; every command says the
right thing, or in one line what is wrong.

    python -m tests.prove corruption [--cases 1000] [--seed 1] [--workers 2]

One file of a sound folder is changed (bits flipped, cut, emptied, zeroed, lengthened, deleted, swapped with
another one or overwritten by it), or several at once are those of another run (of another seed; of the same
study, written in other groups) or go back together to what they were some sessions before. Then `status`,
`sql`, `pareto`, `show`, `resume` and `sql` again run on it, and for a file of the cache `map`. An answer must
be the one of the sound folder, a refusal one line per fault, and a resume must end with the rows of the sound
folder. Files of another seed a resume refuses, and changes nothing; once those that it names are gone it ends
with these rows too. A folder whose manifests, status.json and parts went back as a whole is one that was
killed then: it answers as it did. Each case in a process of its own. A reader that checks no checksum, a seal
without its kind or its study, a manifest that is not held against its parts or a cache without its digest
fails within some dozen cases.
"""

from __future__ import annotations

import argparse
import io
import os
import random
import re
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path

from cluster import store as stores
from dse.frontend import cli
from tests.test_driver import Rows, rows

STUDY = """
name: small
workloads: [{file: net.yaml, name: net}, "gemm:m=8,n=8,k=8"]
machine: edge_array
space:
  array.x: [2, 4]
  gbuf.capacity: [4 KiB, 8 KiB]
  dram.kind: [lpddr4, lpddr5, gddr6]
objectives: [energy_pj, latency_ns]
search: {method: nsga2, seed: 7, generation: 4}
stop: {machines: 12}
"""
NET = """
extents: {m: 12, n: 8, k: 10}
einsums: ["C[m,n] += A[m,k] * B[k,n]", "D[m,n] = relu(C[m,n])"]
"""
SQL = "SELECT * FROM (FROM machines JOIN points USING (machine)) ORDER BY machine"
TABLES = ("machines", "points", "workload_costs", "einsums", "mappings", "counts", "prices")
SUMS = (
    " UNION ALL ".join(
        f"SELECT '{table}' AS t, count(*) AS n, sum(hash(x)) AS h FROM {table} x" for table in TABLES
    )
    + " ORDER BY t"
)
KINDS = (
    "manifest.json",
    "manifest.before.json",
    "env.json",
    "status.json",
    "study.yaml",
    "inputs",
    "asks",
    ".lock",
    "log",
    "machines",
    "points",
    "chosen",
    "mappings",
    "counts",
    "events",
    "map",
)
# several files at once, in a third of the cases
MIXED = ("another seed", "the same study", "rolled back", "rolled back", "another seed")
# with both of them a folder is the other run's: study.yaml is mended from env.json
HEADS = ("env.json", "manifest.json")
MOST = 4000  # characters of a refusal of one file; of several it has more lines
VOUCH = ("manifest.json", "manifest.before.json", "status.json")
POINTS = (5, 9, 12)  # of the sessions of a run
READERS = {
    "status": ["status"],
    "sql": ["sql", SQL, "--format", "csv"],
    "sums": ["sql", SUMS, "--format", "csv"],
    "pareto": ["pareto", "--format", "csv"],
    "show": ["show", "best"],
}
MAP = ["map", "gemm:m=8,n=8,k=8", "edge_array"]
SHM = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # an fsync costs nothing there
Said = tuple[int, str, str]


def kind_of(path: Path) -> str:
    """Of a file by its path in run/ or cache/."""
    names = path.parts
    if names[0] == "cache":
        return names[1].partition("_")[0]
    return names[2] if names[1] == "parts" else names[1]


def command(*words: str) -> Said:
    """Exit code, output and errors of a command of `dse`; a traceback is code -1."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code = cli.main(words)
        except SystemExit as fault:
            code = int(fault.code or 0)
        except BaseException:
            traceback.print_exc()
            code = -1
    return code, out.getvalue(), err.getvalue()


def ask(words: list[str], folder: Path) -> Said:
    code, out, err = command(words[0], str(folder), *words[1:])
    return code, out.replace(str(folder), "DIR"), err


def made(base: Path) -> None:
    """base/run and base/cache: a finished run of three sessions, with merged parts, and a mapping; base/at5,
    at9, at12: after each session; base/seed: of another seed; base/twin: of the same study, in one session.
    """
    (base / "net.yaml").write_text(NET)
    (base / "small.yaml").write_text(STUDY)
    os.environ["DSE_CACHE"] = str(base / "cache")
    for points in POINTS:
        started(base, "run", f"stop.machines={points}")
        shutil.copytree(base / "run", base / f"at{points}")
    started(base, "seed", "search.seed=8")
    started(base, "twin")
    store, _ = stores.open_run(base / "run")
    stores.close(stores.compact(store, fan_in=4))
    assert command("resume", str(base / "run"), "--workers", "0")[0] == 0  # takes the merged parts away
    (base / "run" / "log" / "actor-0001.log").write_text("a line\n")
    assert command(*MAP)[0] == 0


def started(base: Path, name: str, *sets: str) -> None:
    assert (
        command(
            "run",
            str(base / "small.yaml"),
            "--out",
            str(base / name),
            "--workers",
            "0",
            *(word for one in sets for word in ("--set", one)),
        )[0]
        == 0
    )


def relative(run: Path) -> set[str]:
    """Files of a run folder, by their path in it."""
    return {path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file()} - {".lock"}


def mixed(rng: random.Random, kind: str, run: Path, base: Path) -> tuple[str, int]:
    """Makes some files of `run`, a copy of base/at12, those of another folder; (what was done, points of the
    state that all of it went back to, or 12).
    """
    source = base / {"another seed": "seed", "the same study": "twin"}.get(
        kind, f"at{rng.choice(POINTS[:-1])}"
    )
    differ = sorted(
        name
        for name in relative(run) | relative(source)
        if not (
            (run / name).exists()
            and (source / name).exists()
            and (run / name).read_bytes() == (source / name).read_bytes()
        )
    )
    if kind != "rolled back":
        differ = [name for name in differ if (source / name).exists()]
    chosen = set(rng.sample(differ, min(rng.randint(1, 9), len(differ) - 1)))
    if rng.random() < 0.5:
        chosen |= {name for name in VOUCH if name in differ}
    if kind == "another seed" and chosen.issuperset(HEADS):
        chosen.remove(rng.choice(HEADS))
    for name in chosen:
        (run / name).unlink(missing_ok=True)
        if (source / name).exists():
            (run / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source / name, run / name)
    whole = kind == "rolled back" and chosen.issuperset(name for name in VOUCH if name in differ)
    return f"{kind}, from {source.name}: {', '.join(sorted(chosen))}", int(
        source.name[2:]
    ) if whole else POINTS[-1]


def harm(rng: random.Random, path: Path, others: list[Path]) -> str:
    data = path.read_bytes()
    what = rng.choice(
        ("flip", "flip", "flip", "flips", "cut", "empty", "zeros", "longer", "delete", "swap", "overwrite")
    )
    at = rng.randrange(max(len(data), 1))
    if what in ("flip", "flips") and data:
        changed = bytearray(data)
        for _ in range(1 if what == "flip" else 20):
            changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(changed)
    elif what == "delete":
        path.unlink()
    elif what in ("swap", "overwrite"):
        other = rng.choice(others)
        path.write_bytes(other.read_bytes())
        if what == "swap":
            other.write_bytes(data)
        what += f" with {other.name}"
    else:
        zeros = data[:at] + bytes(min(512, len(data) - at)) + data[at + 512 :]
        path.write_bytes({"cut": data[:at], "zeros": zeros, "longer": data + b"\0{}"}.get(what, b""))
    return what


def faults_of(name: str, said: Said, right: Said, most: int = MOST) -> Iterator[str]:
    """What is wrong with what a reader said of a folder with a damaged file, and how to count it."""
    code, out, err = said
    if code == -1 or "Traceback" in err or "Traceback" in out:
        yield f"{name}: traceback\n{err}"
    elif code == 0 and out != right[1]:
        yield f"{name}: a wrong answer\n{out}\n{err}"
    elif code != 0 and (out or not err.strip()):
        yield f"{name}: code {code} with an answer, or without a line\n{out}\n{err}"
    elif len(err) > most or re.search(r"[\x00-\x08\x0b-\x1f]", err):
        yield f"{name}: errors that nobody can read\n{err[:3000]}"


def several(
    base: Path, number: int, seed: int, right: dict[int, dict[str, Said]], wholes: dict[int, Rows]
) -> tuple[str, str, list[str], list[str]]:
    """`case` of several files at once. right, wholes: of each state, by its points."""
    rng = random.Random(f"{seed}/{number}")
    kind = MIXED[number // 3 % len(MIXED)]
    folder = Path(tempfile.mkdtemp(prefix="dse-corrupt-", dir=SHM))
    try:
        shutil.copytree(base / "at12", folder / "run")
        shutil.copytree(base / "cache", folder / "cache")
        os.environ["DSE_CACHE"] = str(folder / "cache")
        what, state = mixed(rng, kind, folder / "run", base)
        outcomes, wrong = [], []
        for name, own in READERS.items():
            said = ask(own, folder / "run")
            older = said[0] == 0 and said[1] == right[state][name][1] != right[POINTS[-1]][name][1]
            wrong += () if older else faults_of(name, said, right[POINTS[-1]][name], 4 * MOST)
            outcomes.append(f"{name} {'refused' if said[0] else 'as it was then' if older else 'right'}")
        code, out, err, lines = resumed(folder / "run", base / "seed" if kind == "another seed" else None)
        wrong += faults_of("resume", (code, out if code == 0 else "", err), (0, out, ""), 4 * MOST)
        wrong += lines
        outcomes.append(f"resume {'refused' if code else 'right'}")
        least = int(re.search(r"machines: (\d+)", (folder / "run" / "study.yaml").read_text())[1])  # type: ignore[index]
        if code == 0 and rows(folder / "run") not in [
            one for points, one in wholes.items() if points >= least
        ]:
            wrong.append(f"resume: rows differ\n{out}\n{err}")
        return kind, what, outcomes, wrong
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def resumed(run: Path, other: Path | None) -> tuple[int, str, str, list[str]]:
    """A resume, of files of another run too: those that a refusal names are taken away, as it says, and it is
    asked again.

    Lines: a refusal that changed a file. study.yaml and inputs may be restored before the rest is looked at.
    """
    lines: list[str] = []
    while True:
        before = contents(run)
        code, out, err = command("resume", str(run), "--workers", "0")
        listed = re.findall(
            rf"{re.escape(str(run))}/([\w./-]+\w)",
            " ".join(line for line in err.splitlines() if "nothing was changed" in line),
        )
        foreign = [
            name
            for name in listed
            if other and (other / name).is_file() and (other / name).read_bytes() == (run / name).read_bytes()
        ]
        if code != 2 or not foreign:
            return code, out, err, lines
        if contents(run) != before:
            lines.append(f"resume: refused, and changed the folder\n{err}")
        for name in set(foreign):
            (run / name).unlink()


def contents(run: Path) -> dict[str, bytes]:
    names = {name for name in relative(run) if not name.startswith(("study.yaml", "inputs/", "quarantine/"))}
    return {name: (run / name).read_bytes() for name in names}


def case(
    base: Path, number: int, seed: int, right: dict[str, Said], whole: Rows
) -> tuple[str, str, list[str], list[str]]:
    """(kind, harm, outcome per command, faults)."""
    rng = random.Random(f"{seed}/{number}")
    folder = Path(tempfile.mkdtemp(prefix="dse-corrupt-", dir=SHM))
    try:
        shutil.copytree(base / "run", folder / "run")
        shutil.copytree(base / "cache", folder / "cache")
        os.environ["DSE_CACHE"] = str(folder / "cache")
        files = sorted(
            path for path in folder.rglob("*") if path.is_file() and "quarantine" not in path.parts
        )
        kind = KINDS[number // 3 * 2 % len(KINDS) + number % 3 - 1]
        victims = [path for path in files if kind_of(path.relative_to(folder)) == kind]
        path = rng.choice(victims)
        peers = [other for other in (victims if rng.random() < 0.5 else files) if other != path] or [
            other for other in files if other != path
        ]
        what = f"{path.relative_to(folder)}: {harm(rng, path, peers)}"
        outcomes, wrong = [], []
        if kind == "map":
            said = command(*MAP)
            wrong += faults_of("map", said, right["map"])
            outcomes.append(f"map {'refused' if said[0] else 'right'}")
        else:
            for name, own in READERS.items():
                said = ask(own, folder / "run")
                wrong += faults_of(name, said, right[name])
                outcomes.append(f"{name} {'refused' if said[0] else 'right'}")
            code, out, err = command("resume", str(folder / "run"), "--workers", "0")
            wrong += faults_of("resume", (code, out if code == 0 else "", err), (0, out, ""))
            outcomes.append(f"resume {'refused' if code else 'right'}")
            if code == 0 and rows(folder / "run") != whole:
                wrong.append(f"resume: rows differ\n{out}\n{err}")
            if code == 0:
                said = ask(READERS["sums"], folder / "run")
                wrong += [f"sql after the resume: {said}"] if said[:2] != right["sums"][:2] else []
        return kind, what, outcomes, wrong
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def forked(work: Callable[[], object]) -> str:
    """repr of what a child process finds."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            text = repr(work())
        except BaseException:
            text = repr(("", "", [], [traceback.format_exc()]))
        with os.fdopen(writer, "w") as out:
            out.write(text)
        sys.stdout.flush()
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as said:
        text = said.read()
    os.waitpid(child, 0)
    return text


def answered(run: Path) -> dict[str, Said]:
    """What the readers say of a sound folder."""
    right: dict[str, Said] = {name: eval(forked(partial(ask, words, run))) for name, words in READERS.items()}
    assert all(said[0] == 0 for said in right.values()), [said for said in right.values() if said[0]]
    return right


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    given, _ = parser.parse_known_args()
    counts: dict[str, Counter[str]] = {kind: Counter() for kind in (*KINDS, *MIXED)}
    faults = 0
    with (
        tempfile.TemporaryDirectory(prefix="dse-corruption-", dir=SHM) as top,
        ThreadPoolExecutor(given.workers) as pool,
    ):
        base = Path(top)
        made(base)
        states = {points: base / f"at{points}" for points in POINTS}
        wholes = {points: rows(path) for points, path in states.items()}
        answers = {points: answered(path) for points, path in states.items()}
        whole, right = rows(base / "run"), answered(base / "run") | {"map": command(*MAP)}
        assert right["map"][0] == 0
        assert whole == wholes[POINTS[-1]]

        def tried(n: int) -> str:
            return forked(
                lambda: (
                    several(base, n, given.seed, answers, wholes)
                    if n % 3 == 0
                    else case(base, n, given.seed, right, whole)
                )
            )

        for text in pool.map(tried, range(given.cases)):
            kind, what, outcomes, wrong = eval(text)
            counts[kind or KINDS[0]].update(outcomes or ["no outcome"])
            for line in wrong:
                faults += 1
                print(f"{what}: {line}", flush=True)
    for kind, found in counts.items():
        print(f"{kind}: {', '.join(f'{n} {outcome}' for outcome, n in sorted(found.items()))}")
    print(
        f"{given.cases} corruptions, {faults} silent wrong answers, tracebacks or differing rows", flush=True
    )
    return int(faults > 0)
