"""Long work speaks: what is being done, what share of the cost is behind, how long it may still take; live on a terminal, else a line per 5 s.

All of it goes to stderr: what a command answers is alone on stdout.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn
from rich.progress import Progress as Bar

from dse.screen import safe
from dse.units import duration

T = TypeVar("T")
LINE_S = 5.0
TICK_S = 0.2
BEFORE_S = 1.0  # shorter waits need no word on a terminal


class Line:
    """One line of progress. share: of the cost, 0 to 1; None where it is not known."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False)
        self.live = self.console.is_terminal
        self.bar = Bar(BarColumn(24), TaskProgressColumn(markup=False), TextColumn("{task.description}", markup=False), console=self.console, transient=True)
        self.task = self.bar.add_task("", total=None)
        self.shown = time.monotonic()

    def show(self, text: str, share: float | None = None, last: bool = False) -> None:
        """last: said in any case, also where nobody watches a bar."""
        if self.live:
            self.bar.start()
            self.bar.update(self.task, description=safe(text), completed=share or 0.0, total=None if share is None else 1.0)
        elif last or time.monotonic() - self.shown >= LINE_S:
            self.say(text)

    def say(self, text: str) -> None:
        """At once, on a line of its own."""
        self.shown = time.monotonic()
        with suppress(BrokenPipeError, OSError):
            if self.live:
                self.bar.console.print(safe(text), markup=False, soft_wrap=True)
            else:
                print(safe(text), file=sys.stderr, flush=True)

    def close(self) -> None:
        if self.live:
            self.bar.stop()


class Steps:
    """What `waited` shows of work in steps of known weight, told from the thread that does it."""

    def __init__(self, name: str) -> None:
        self.name, self.now, self.done, self.of = name, "", 0, 0
        self.behind = self.whole = 0.0
        self.begun = self.since = time.monotonic()

    def tell(self, number: int, weights: Sequence[float], now: str) -> None:
        """Step `number` begins; weights: of all steps, in any unit of cost."""
        self.now, self.done, self.of, self.since = now, number, len(weights), time.monotonic()
        self.behind, self.whole = sum(weights[:number]), sum(weights)

    def text(self) -> str:
        if not self.of:
            return f"{self.name}: reading"
        spent, here = time.monotonic() - self.begun, time.monotonic() - self.since
        left = (self.since - self.begun) * (self.whole - self.behind) / self.behind - here if self.behind else 0.0
        about = f", about {duration(left)} left" if left > 1 else ""
        return f"{self.name}: {self.done} of {self.of} einsums in {duration(spent)}, now {self.now} for {duration(here)}{about}"


def waited(name: str, work: Callable[[Steps], T]) -> T:
    """The result of `work`, which runs beside the main thread: compiled loops let go of the interpreter, so the line moves and Ctrl-C is heard at once."""
    steps, found, line = Steps(name), [], Line()
    failed: list[BaseException] = []

    def run() -> None:
        try:
            found.append(work(steps))
        except BaseException as fault:
            failed.append(fault)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(TICK_S)
            if thread.is_alive() and time.monotonic() - steps.begun > BEFORE_S:
                line.show(steps.text(), steps.behind / steps.whole if steps.whole else None)
    except KeyboardInterrupt:
        line.close()
        print("interrupted", file=sys.stderr, flush=True)
        os._exit(130)  # a compiled loop cannot be asked to stop
    line.close()
    if failed:
        raise failed[0]
    return found[0]


class RunProgress:
    """Share done, rate and time left of a run; `show` takes each cluster.driver.Status."""

    def __init__(self, name: str) -> None:
        self.name, self.line = name, Line()

    def __enter__(self) -> RunProgress:
        return self

    def __exit__(self, *_: object) -> None:
        self.line.close()

    def show(self, status: Any) -> None:
        if status.state == "running" and status.reason:
            text = f"{self.name}: {status.reason}"
        else:
            left = "" if status.left_s is None or status.left_s != status.left_s else f", about {duration(status.left_s)} left"
            text = f"{self.name}: {status.done} of {status.planned} machines, {status.rate:.3g} machines/s, front {status.front}{left}"
        if status.reason.startswith("interrupted") and status.state == "running":
            self.line.say(text)
        else:
            self.line.show(text, status.done / status.planned if status.planned else None, last=status.state != "running")
