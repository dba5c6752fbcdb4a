"""How values look on a terminal: tables, and the progress of a run. All that is printed as a table goes through here."""

from __future__ import annotations

import csv
import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar
from rich.table import Table as Grid

from dse import explain
from dse.nest import Infeasible
from dse.sim.evaluate import Solution
from hw.arch import Arch
from workloads.graph import Workload, unique

LINE_S = 5.0
WIDE = 10_000  # columns when the output is no terminal: nothing is folded


def number(value: Any) -> str:
    """Seven digits are enough to tell numbers apart on a screen; files and JSON hold all of them."""
    if isinstance(value, float):
        return f"{value:.7g}"
    return "" if value is None else str(value)


def print_table(header: Sequence[str], rows: Iterable[Sequence[Any]], title: str = "") -> None:
    console = Console(width=None if sys.stdout.isatty() else WIDE, highlight=False)
    grid = Grid(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    listed = [list(row) for row in rows]
    for i, name in enumerate(header):
        numeric = bool(listed) and all(isinstance(row[i], int | float) or row[i] in (None, "") for row in listed)
        grid.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in listed:
        grid.add_row(*(number(value) for value in row))
    console.print(grid)


def print_facts(facts: Mapping[str, Any]) -> None:
    print_table(("key", "value"), [(key, _fact(key, value)) for key, value in facts.items()])


def _fact(key: str, value: Any) -> Any:
    if key == "time" and isinstance(value, float):
        return time.ctime(value)
    return "; ".join(map(str, value)) if isinstance(value, list | tuple) else value


def print_json(facts: Mapping[str, Any]) -> None:
    print(json.dumps({key: plain(value) for key, value in facts.items()}, indent=1))


def ask(prompt: str) -> str:
    """A line from the user, empty at the end of input."""
    try:
        return input(prompt)
    except EOFError:
        return ""


class Progress:
    """Share done, rate and time left of a run: a live bar on a terminal, else one line per 5 s."""

    def __init__(self, name: str) -> None:
        self.bar = Bar(TextColumn(name), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[facts]}"), console=Console(stderr=True))
        self.task = self.bar.add_task(name, total=None, facts="starting")
        self.name = name
        self.shown = 0.0

    def __enter__(self) -> Progress:
        if self.bar.console.is_terminal:
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar.console.is_terminal:  # else it would print an empty line
            self.bar.stop()

    def show(self, status: Any) -> None:
        left = "" if status.left_s is None or status.left_s != status.left_s else f", {status.left_s:.0f} s left"
        now = status.reason if status.state == "running" else ""
        facts = now or f"{status.rate:.3g} machines/s, front {status.front}{left}"
        self.bar.update(self.task, completed=status.done, total=status.planned or None, facts=facts)
        if not self.bar.console.is_terminal and (status.state != "running" or time.monotonic() - self.shown >= LINE_S):
            self.shown = time.monotonic()
            with suppress(BrokenPipeError):
                print(f"{self.name}: {status.done} of {status.planned} machines, {facts}", file=sys.stderr, flush=True)


def waiting(what: str) -> AbstractContextManager[object]:
    """A sign of life on a terminal while there is nothing to tell yet."""
    console = Console(stderr=True)
    return console.status(what) if console.is_terminal else nullcontext()


def print_end(out: str, status: Any, solved: int, built: str) -> None:
    """How a run ended, and what can be asked of it; of an empty front, why it is empty."""
    state = "nothing is left to do:" if status.state == "finished" and not solved else f"{status.state},"
    reason, _, empty = status.reason.partition("; the front is empty: ")
    print(f"{out}: {state} {reason}; {solved} machines solved now, {status.done} in all"
          f" ({status.infeasible} infeasible, {status.pruned} pruned, {status.error} errors), front {status.front}{built and f'; {built}'}")
    if status.front:
        print(f'next: dse pareto {out}   dse show {out} best   dse sql {out} "SELECT ..."')
    else:
        print(f'next: dse sql {out} "SELECT status, reason, count(*) FROM machines GROUP BY ALL"')
    if empty:
        print(f"the front is empty: {empty}")


def print_rows(header: Sequence[str], rows: list[Sequence[Any]], form: str) -> None:
    """Rows as a table, CSV, or a JSON list of objects (numbers in full; NaN and infinities as null)."""
    if form == "table":
        print_table(header, rows)
        print(f"{len(rows)} row{'s' * (len(rows) != 1)}")
    elif form == "csv":
        writer = csv.writer(sys.stdout)
        writer.writerow(header)
        writer.writerows(rows)
    else:
        print(json.dumps([dict(zip(header, map(plain, row), strict=True)) for row in rows], indent=1, default=str))


def plain(value: Any) -> Any:
    """JSON knows no infinities."""
    return None if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))) else value


def print_solution(arch: Arch, workload: Workload, found: Solution | Infeasible, name: str | None, form: str) -> int:
    """Totals, einsums, and the nest, traffic and footprints of the einsum that is named ("all"; default: the one of most energy).

    Returns the exit code.
    """
    if isinstance(found, Infeasible):
        print(json.dumps({"status": "infeasible", "reason": str(found)}) if form == "json" else f"infeasible: {found}")
        return 1
    at = {own: i for i, group in enumerate(unique(workload)) for own in group.names}
    if name not in (None, "all", *at):
        raise ValueError(f"--einsum {name}: {workload.name} has no such einsum; there are all, {', '.join(at)}")
    if form == "json":
        print(json.dumps(explain.document(arch, workload, found), indent=1))
        return 0
    for table in explain.network(arch, workload, found):
        print_table(table.header, table.rows, table.title)
    costliest = max(range(len(found.einsums)), key=lambda i: found.einsums[i].count * found.einsums[i].energy_pj)
    for i in (range(len(found.einsums)) if name == "all" else [at[name] if name else costliest]):
        nest, tables = explain.einsum(arch, unique(workload)[i].einsum, found.einsums[i])
        print(f"{nest}\n")
        for table in tables:
            print_table(table.header, table.rows, table.title)
    return 0
