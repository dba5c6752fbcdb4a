"""Two revisions, the same answers? `make replay BASE=COMMIT` compares this commit with another one.

    python -m tests.replay BASE [--groups mappers,fused,...] [--share 1.0]

Each revision is cloned into build/replay and answers in an environment of its own (tests/replay/answers.py of
that revision: the case files, random problems of the mapper, of fused schedules and of pipelines, networks of
the catalog on four machines, fronts, published methods, residency, small studies). Exits 1 and prints the
first differences where any figure or mapping is another, to the last bit.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

from workloads.renamed import value_now

ROOT = Path(__file__).parents[2]
HOME = ROOT / "build" / "replay"
SHOWN = 10


def revision(name: str) -> str:
    return subprocess.run(
        ["git", "rev-parse", "--short=12", f"{name}^{{commit}}"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()


def clone(commit: str) -> Path:
    """A revision in a folder of its own, with its environment; kept for the next time."""
    folder = HOME / commit
    if not (folder / ".venv" / "ready").exists():
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run(["git", "clone", "-q", str(ROOT), str(folder)], check=True)
        subprocess.run(["git", "checkout", "-q", commit], cwd=folder, check=True)
        subprocess.run(["make", "-s", ".venv/ready"], cwd=folder, check=True)
    shared = HOME / "shared"
    if not shared.exists() and (ROOT.parent / "shared").exists():
        shared.symlink_to(ROOT.parent / "shared")
    return folder


def answers(commit: str, options: list[str]) -> dict[str, str]:
    """Every answer of a revision, as text, by its question."""
    folder = clone(commit)
    file = HOME / f"{commit}.jsonl"
    command = [str(folder / ".venv/bin/python"), "-m", "tests.replay.answers", str(file), *options]
    subprocess.run(command, cwd=folder, check=True)
    return {today(key): json.dumps(value) for key, value in map(json.loads, file.read_text().splitlines())}


def today(question: str) -> str:
    """A question of an earlier revision, a method by the name that it has now."""
    group, _, rest = question.partition(": ")
    method, colon, on = rest.partition(": ")
    return (
        f"{group}: {value_now('solver.schedule', method) or method}{colon}{on}"
        if group == "methods"
        else question
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("base", help="the commit to compare with")
    given, options = parser.parse_known_args()
    base, head = revision(given.base), revision("HEAD")
    before, after = answers(base, options), answers(head, options)
    other = [key for key in before | after if before.get(key) != after.get(key)]
    for key in other[:SHOWN]:
        print(
            f"  {key}\n    {base}: {before.get(key, 'not asked')[:300]}\n    {head}: "
            f"{after.get(key, 'not asked')[:300]}"
        )
    asked = Counter(key.partition(":")[0] for key in after)
    raised = sum(value.startswith('["raised"') for value in after.values())
    print(
        f"  {base} against {head}: {len(after)} answers "
        f"({', '.join(f'{n} {group}' for group, n in asked.items())}; {raised} errors): {len(other)} differ"
    )
    return int(bool(other))


if __name__ == "__main__":
    sys.exit(main())
