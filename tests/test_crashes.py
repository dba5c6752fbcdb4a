"""A run that dies at some of its system calls, with the power gone; the proof at every one of them is
tests/prove/crashes.py.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.amount import some
from tests.prove import crashes

ROOT = Path(__file__).parents[1]
# fsyncs left out: of a part, of the folder that it is renamed in, of the manifest's
MUTANTS = (r"/parts/\w+/[^/]*\.tmp$", r"/parts/\w+$", r"/run$")


def deaths(folder: Path) -> tuple[list[str], list[str]]:
    """What is wrong after deaths, and the fsyncs that no death misses."""
    crashes.calm()
    bases, whole = crashes.prepared(folder)
    found, missed = [], []
    for name in crashes.SESSIONS[:2]:
        calls = crashes.one(bases, whole, name, 1 << 40, "killed")
        found += [
            crashes.one(bases, whole, name, len(calls) - back, "unsynced") for back in (3, len(calls) // 2)
        ]
    for crashes.Power.left_out in some(MUTANTS, 1):
        calls = crashes.one(bases, whole, "start", 1 << 40, "killed")
        missed += (
            []
            if any(crashes.one(bases, whole, "start", stop, "unsynced") for stop in range(len(calls), 0, -5))
            else [crashes.Power.left_out]
        )
    return found, missed


def test_a_run_that_dies_with_the_power_is_resumed_and_without_an_fsync_it_is_not(tmp_path: Path) -> None:
    """In a process of its own: one that dies is a fork, and threads that other tests left behind may hold
    locks, which no fork gets back.
    """
    script = (
        "import sys; from pathlib import Path; from tests.test_crashes import deaths; "
        "print(deaths(Path(sys.argv[1])))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    found, missed = eval(done.stdout.splitlines()[-1])
    assert found == [""] * 4
    assert missed == []
