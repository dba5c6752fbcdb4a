"""A run that dies at some of its system calls, with the power gone; the proof at every one of them is
tests/prove/crashes.py.
"""

from __future__ import annotations

from pathlib import Path

from tests.amount import some
from tests.prove import crashes
from tests.prove.corruption import forked

# fsyncs left out: of a part, of the folder that it is renamed in, of the manifest's
MUTANTS = (r"/parts/\w+/[^/]*\.tmp$", r"/parts/\w+$", r"/run$")


def test_a_run_that_dies_with_the_power_is_resumed_and_without_an_fsync_it_is_not(tmp_path: Path) -> None:
    def deaths() -> tuple[list[str], list[str]]:
        crashes.calm()
        bases, whole = crashes.prepared(tmp_path)
        found, missed = [], []
        for name in crashes.SESSIONS[:2]:
            calls = crashes.one(bases, whole, name, 1 << 40, "killed")
            found += [
                crashes.one(bases, whole, name, len(calls) - back, "unsynced")
                for back in (3, len(calls) // 2)
            ]
        for crashes.Power.left_out in some(MUTANTS, 1):
            calls = crashes.one(bases, whole, "start", 1 << 40, "killed")
            missed += (
                []
                if any(
                    crashes.one(bases, whole, "start", stop, "unsynced") for stop in range(len(calls), 0, -5)
                )
                else [crashes.Power.left_out]
            )
        return found, missed

    found, missed = eval(forked(deaths))
    assert found == [""] * 4
    assert missed == []
