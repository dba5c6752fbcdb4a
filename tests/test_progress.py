"""Waits speak: what is being done, how much of the cost is behind, how long it may take; a line each LINE_S
where nobody watches.
"""

from __future__ import annotations

import re
import sys
import threading
import time
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import numba.extending
import pytest

from cluster.run_state import Solving
from dse.frontend import cli, progress
from dse.run import compiled


def until_said(text: str) -> None:
    """Until stderr, which capsys holds, has a text; and half a second, so that there is something to tell."""
    time.sleep(0.5)
    for _ in range(3000):
        if text in sys.stderr.getvalue():  # type: ignore[attr-defined]
            return
        time.sleep(0.1)
    raise AssertionError(f"never said: {text}")


def test_a_wait_says_what_is_solved_and_what_is_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A tenth of the cost took so long: the rest takes about nine times as long, though it is one of two
    steps.
    """
    monkeypatch.setattr(progress, "LINE_S", 0.0)
    monkeypatch.setattr(progress, "DELAY_S", 0.0)
    threads: list[bool] = []
    took: list[float] = []

    def work(steps: progress.Steps) -> str:
        threads.append(threading.current_thread() is threading.main_thread())
        steps.update(0, [1.0, 9.0], "first")
        until_said("net: 0 of 2")
        steps.update(1, [1.0, 9.0], "last[x]")
        until_said("s left")
        took.extend([steps.step_began_at - steps.started_at, time.monotonic() - steps.step_began_at])
        return "done"

    assert progress.run_with_progress("net", work) == "done"
    assert threads == [False]
    said = capsys.readouterr().err.splitlines()
    assert any(re.fullmatch(r"net: 0 of 2 einsums, .*, now einsum first \(.*\)", line) for line in said)
    left = [
        float(m[1])
        for line in said
        if (
            m := re.fullmatch(
                r"net: 1 of 2 einsums, .*, now einsum last\[x\] \(.*\), about (\d+) s left", line
            )
        )
    ]
    assert left
    assert 9 * took[0] - took[1] - 1 <= left[0] <= 9 * took[0] + 1


def test_a_wait_says_that_kernels_are_compiled() -> None:
    """While a function is compiled that no cache has, and not after it."""
    steps, said = progress.Steps("net"), list[str]()

    def typed(n):  # type: ignore[no-untyped-def]
        return n

    @numba.extending.overload(typed)
    def _typed(n):  # type: ignore[no-untyped-def]
        said.append(steps.text())  # while its caller is compiled
        return lambda n: n

    caller = compiled.njit()(lambda n: typed(n) + 1)
    before, found = steps.text(), caller(1)
    assert found == 2
    assert said
    assert all(progress.COMPILING_TEXT in text for text in said)
    assert not any(progress.COMPILING_TEXT in text for text in (before, steps.text()))


def test_a_long_step_says_what_shortens_it() -> None:
    steps = progress.Steps("net", cli._shorter({"solver.schedule": "fused"}))
    steps.update(0, [1.0], "conv")
    assert not steps.advice()
    steps.step_began_at -= progress.LONG_S
    assert steps.advice() == "--set limits.seconds=S ends its search, with a gap"
    whole = progress.Steps("net", cli._shorter({"solver.schedule": "best"}))  # whose steps are not known
    assert not whole.advice()
    whole.started_at -= progress.LONG_S
    assert whole.advice() == "--set limits.seconds=S ends its search, with a gap"
    assert cli._shorter({"solver.schedule": "pipelined"}) == cli._shorter({"limits.seconds": 9}) == ""


def test_what_shortens_a_step_is_said_once_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "DELAY_S", 0.0)
    monkeypatch.setattr(progress, "LONG_S", 0.0)
    for force, times in (("", 0), ("1", 1)):
        monkeypatch.setenv("FORCE_COLOR", force)  # of rich: a terminal
        progress.run_with_progress("net", lambda _: time.sleep(4 * progress.TICK_S), "less ends it")
        assert capsys.readouterr().err.count("net: less ends it\n") == times


def test_what_goes_wrong_in_a_wait_comes_out() -> None:
    def work(_: progress.Steps) -> None:
        raise ValueError("no such net")

    with pytest.raises(ValueError, match="no such net"):
        progress.run_with_progress("net", work)


def status(**given: Any) -> Any:
    return SimpleNamespace(
        **{
            "state": "running",
            "reason": "",
            "done": 3,
            "planned": 12,
            "rate": 0.5,
            "front": 2,
            "worst_gap": 0.0497,
            "in_flight": 0,
            "solving": (),
            "notes": (),
            "left_s": 18.0,
            "waiting": "",
        }
        | given
    )


def test_a_run_in_lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(progress, "LINE_S", 0.0)
    with progress.RunProgress("s") as shown:
        shown.show(status())
        monkeypatch.setattr(progress, "LINE_S", 1e9)
        shown.show(status())  # too early for another line
        shown.show(status(reason="interrupted; finishing 1 machine; again to stop now"))
        shown.show(status(reason="interrupted; finishing 1 machine; again to stop now"))  # once is enough
        shown.show(status(state="interrupted"))
    said = capsys.readouterr().err.splitlines()
    assert [re.sub(r"^\d\d:\d\d:\d\d ", "", line) for line in said] == [
        "s: starting",
        "s: 3 of 12 machines (25 %), 0.5/s, about 18 s left, front 2, gap 5 % at most",
        "s: interrupted; finishing 1 machine; again to stop now",
        "s: 3 of 12 machines (25 %), 0.5/s, about 18 s left, front 2, gap 5 % at most",
    ]
    assert re.match(r"\d\d:\d\d:\d\d s: 3 of 12", said[1])


def test_a_machine_of_minutes_is_named_by_those_who_wait_for_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LINE_S", 0.0)
    at = time.time() - 130
    solving = (Solving(2, 17, 3, at, "2 of 3 within the share"), Solving(1, 40, 1, at + 125))
    shown = progress.RunProgress("net")
    shown.show(status(solving=solving, left_s=None))
    shown.show(status(solving=solving[1:], left_s=None))
    long, short = capsys.readouterr().err.splitlines()
    assert long.endswith("at most, machine 17 and 2 more for 2 min (worker 2): 2 of 3 within the share")
    assert "machine 40" not in short
    facts = {"in_flight": 4, "machine_limit_s": 300, "solving": [asdict(one) for one in solving]}
    assert progress.stopping_text(facts) == (
        "stopping, waits for 4 machines, at most 300 s each: machine 17 and 2 more for 2 min (worker 2): "
        "2 of 3 within the share; limits.seconds is their deadline; --now gives up what is being solved, a "
        "resume solves it again"
    )
    assert "1 machine, with no deadline;" in progress.stopping_text({"in_flight": 1, "solving": [{"x": 1}]})
    assert progress.stopping_text({}) == "stopping"


def test_a_run_without_a_machine_yet_says_so_less_and_less_often(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two minutes: a line after 5 s, then whenever as long again has passed, each with the time so far."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    shown = progress.RunProgress("net")
    status = SimpleNamespace(
        notes=(),
        done=0,
        planned=300,
        state="running",
        reason="",
        waiting="",
        workers_live=2,
        rate=0.0,
        solving=(),
    )
    status.in_flight = 300
    for now[0] in range(121):
        shown.show(status)
    lines = capsys.readouterr().err.splitlines()
    assert 5 <= len(lines) <= 8
    times = re.findall(r"300 being solved, none yet after (\d+) s: .*--dry-run", "\n".join(lines))
    assert times[0] == "5"
    assert len(times) == len(lines)
