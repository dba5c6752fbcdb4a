"""Progress of long work: what is being done, how much is done, and an estimate of the time left. A live line
on a terminal, else a line every 5 s.

Everything goes to stderr, so that stdout has the answer only.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any, TypeVar

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.status import Status
from rich.text import Text

from dse.explain.units import counted, duration
from dse.frontend.tables import safe, solving_texts
from dse.run import compiling

T = TypeVar("T")
LINE_S = 5.0  # seconds between lines where stderr is no terminal
MAX_LINE_S = 60.0  # and at most, of a run that has no machine yet: as long as it has taken so far
TICK_S = 0.2  # seconds between updates of a live line
DELAY_S = 1.0  # seconds before the first line: shorter work shows none
LONG_S = 3.0  # seconds of one step before it is said what would shorten it
LONG_LEASE_S = 10.0  # seconds from which on it is said which machine a worker works at
NOW_COSTS = "--now gives up what is being solved, a resume solves it again"
COMPILING_TEXT = "compiling kernels, a minute or two, once per installation"


class Line:
    """One line of progress, cut to the width of the terminal."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False)
        self.live = Status("", console=self.console) if self.console.is_terminal else None
        self.shown_at = time.monotonic()

    def show(self, text: str, last: bool = False, every_s: float | None = None) -> None:
        """Updates the live line; without a terminal prints at most one line per `every_s` (None: LINE_S).
        last: the final text, which is printed in any case if there is no live line.
        """
        if self.live:
            shown, room = safe(text), self.console.width - 4
            self.live.update(Text(shown if cell_len(shown) <= room else f"{set_cell_size(shown, room - 1)}…"))
            self.live.start()
        elif last or time.monotonic() - self.shown_at >= (LINE_S if every_s is None else every_s):
            self.say(text)

    def say(self, text: str) -> None:
        """Prints immediately, on a line of its own."""
        self.shown_at = time.monotonic()
        with suppress(BrokenPipeError, OSError):
            if self.live:
                self.console.print(Text(safe(text)))
            else:
                print(safe(text), file=sys.stderr, flush=True)

    def close(self) -> None:
        """Removes the live line. Printed lines stay."""
        if self.live:
            self.live.stop()


class Steps:
    """Progress of work in steps of known cost. The thread that works updates it, `run_with_progress` shows
    it.
    """

    def __init__(self, name: str, shorten: str = "") -> None:
        """shorten: what would shorten a long step, e.g. an option; "": nothing would."""
        self.name, self.current, self.done_count, self.step_count = name, "", 0, 0
        self.step, self.steps = "einsum", "einsums"  # what a step is called
        self.shorten = shorten
        self.done_weight = self.total_weight = 0.0
        self.started_at = self.step_began_at = time.monotonic()

    def update(self, number: int, weights: Sequence[float], name: str) -> None:
        """Records that step `number`, called `name`, begins. weights: cost of all steps, in any unit."""
        self.current, self.done_count, self.step_count, self.step_began_at = (
            name,
            number,
            len(weights),
            time.monotonic(),
        )
        self.done_weight, self.total_weight = sum(weights[:number]), sum(weights)

    def text(self) -> str:
        """Returns name, steps done, time spent, and an estimate of the time left by the weights of the
        steps.
        """
        return f"{self._steps_text()}, {COMPILING_TEXT}" if compiling.now() else self._steps_text()

    def _steps_text(self) -> str:
        if not self.step_count:
            return f"{self.name}, {duration(time.monotonic() - self.started_at)}"
        spent, step_s = self.step_began_at - self.started_at, time.monotonic() - self.step_began_at
        left = (
            spent * (self.total_weight - self.done_weight) / self.done_weight - step_s
            if self.done_weight
            else 0.0
        )
        estimate = f", about {duration(left)} left" if left > 1 else ""
        return (
            f"{self.name}: {self.done_count} of {self.step_count} {self.steps}, "
            f"{duration(spent + step_s)}, now {self.step} {self.current} "
            f"({duration(step_s)}){estimate}"
        )

    def advice(self) -> str:
        """Returns what would shorten the present step, if that has taken long; else ""."""
        began_at = self.step_began_at if self.step_count else self.started_at
        return self.shorten if time.monotonic() - began_at >= LONG_S and not compiling.now() else ""


def run_with_progress(name: str, work: Callable[[Steps], T], shorten: str = "") -> T:
    """Returns the result of `work`, which runs in a second thread. Compiled loops release the interpreter
    lock, so the line is updated and Ctrl-C works at once. shorten: as of Steps; it is said once, on a
    terminal only, on a line of its own, which is not cut.
    """
    steps, results, line = Steps(name, shorten), [], Line()
    failed: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work(steps))
        except BaseException as fault:
            failed.append(fault)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(TICK_S)
            if thread.is_alive() and time.monotonic() - steps.started_at > DELAY_S:
                line.show(steps.text())
                if line.live and (advice := steps.advice()):
                    line.say(f"{name}: {advice}")
                    steps.shorten = ""
    except KeyboardInterrupt:
        line.close()
        print("interrupted", file=sys.stderr, flush=True)
        os._exit(130)  # a compiled loop cannot be asked to stop
    line.close()
    if failed:
        raise failed[0]
    return results[0]


def stopping_text(facts: Mapping[str, Any]) -> str:
    """Returns what `dse stop` waits for, how long at most, and what --now costs. facts: of status.json."""
    count, limit_s = facts.get("in_flight"), facts.get("machine_limit_s")
    if not isinstance(count, int) or not count:
        return "stopping"
    longest = "".join(f": {one}" for one in solving_texts(facts.get("solving"))[:1])
    limit = f"at most {limit_s:g} s each" if isinstance(limit_s, int | float) else "with no deadline"
    return (
        f"stopping, waits for {counted(count, 'machine')}, {limit}{longest}; limits.seconds is their "
        f"deadline; {NOW_COSTS}"
    )


class RunProgress:
    """Shows share done, rate and time left of a run: `show` is called with each cluster.driver.Status."""

    def __init__(self, name: str, note_text: Callable[[str], str] = str) -> None:
        """note_text: returns a note as it is shown."""
        self.name, self.line, self.interrupted_once, self.noted = name, Line(), False, 0
        self.note_text, self.began_at = note_text, time.monotonic()

    def __enter__(self) -> RunProgress:
        self.line.show(f"{self.name}: starting")
        return self

    def __exit__(self, *_: object) -> None:
        self.line.close()

    def show(self, status: Any) -> None:
        """Prints a run's status: machines done, rate per second, time left, size of the front, largest gap;
        and what is to be noted, once. Lines that stay have the time of day where there is no terminal.
        """
        for note in status.notes[self.noted :]:
            self.line.say(self.note_text(note))
        self.noted = len(status.notes)
        every_s, spent_s = None, time.monotonic() - self.began_at
        share = f" ({100 * status.done // status.planned} %)" if status.planned else ""
        text = f"{self.name}: {status.done} of {status.planned} machines{share}"
        solving = solving_texts([asdict(one) for one in status.solving], LONG_LEASE_S)
        interrupted = status.state == "running" and status.reason.startswith("interrupted")
        if status.state == "running" and status.reason:
            longest = "".join(f" ({one})" for one in solving[:1])
            count = counted(status.in_flight, "machine")
            ending = f"interrupted; finishing {count}{longest}, again to stop now"
            text = f"{text}, {ending if interrupted else status.reason}"
        elif status.state == "running" and status.waiting and not status.workers_live:
            text = f"{text}, {status.waiting}"
        elif status.rate:
            left = (
                ", estimating the time left" * (status.state == "running")
                if status.left_s is None or status.left_s != status.left_s
                else f", about {duration(status.left_s)} left"
            )
            gap = f"gap {100 * status.worst_gap:.2g} % at most"
            text = f"{text}, {status.rate:.3g}/s{left}, front {status.front}, {gap}"
        elif status.state == "running":
            in_flight = f", {status.in_flight} being solved" * (status.in_flight > 0)
            text = (
                f"{text}{in_flight}, none yet after {duration(spent_s)}: those that share searches end "
                "together (dse run STUDY --dry-run estimates the time)"
            )
            every_s = min(MAX_LINE_S, max(LINE_S, spent_s / 2))
        if status.state == "running" and not status.reason:
            text += "".join(f", {one}" for one in solving[:1])
        if interrupted and not self.interrupted_once:
            self.interrupted_once = True
            self.line.say(f"{self.name}: {status.reason}")
        else:
            clock = "" if self.line.live else time.strftime("%H:%M:%S ")
            self.line.show(f"{clock}{text}", status.state != "running", every_s)
