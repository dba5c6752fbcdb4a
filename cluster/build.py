"""Frontiers of a study's einsums, built before its machines are priced: side by side, in processes of their own.

A finished frontier is in the cache ($DSE_CACHE) at once, so what stops the building loses the unfinished ones only. Which einsums have one is a function
of the study alone: no row depends on how many machines were left to do, nor on what the cache held.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from itertools import islice, product
from multiprocessing import active_children, connection, get_context, parent_process
from types import ModuleType

import numpy as np

from cluster.store import RunFault
from cluster.worker import Job, calm
from dse.dataflow.family import Family, NoFrontier, family
from dse.dataflow.frontier import Frontier, frontier, place
from dse.stack import effort, prices
from dse.study.prune import static_violations
from dse.study.sampler import permutation
from dse.study.study import Study
from hw.arch import Arch
from hw.space import Space, decode
from workloads.einsum import Einsum

FEW = 64  # machines of a space that are solved one by one
SAMPLE = 5000  # machines that a family is made of, and as many again per component of the machine
WAIT_S = 0.2
PROBE_S = 3.0


@dataclass(frozen=True, slots=True)
class Stage:
    """How far the building is. share: of the effort of those that were not in the cache; now: einsums that are being solved."""

    done: int
    of: int
    share: float
    now: tuple[str, ...]


Tell = Callable[[Stage], bool]  # -> whether to stop


@dataclass(frozen=True, slots=True)
class Built:
    """The job with its frontiers; how many, in what time, and one line per reason why an einsum has none."""

    job: Job
    count: int
    seconds: float
    lines: tuple[str, ...]


def wanted(study: Study) -> bool:
    return prices(study.solver) and study.space.size > FEW


def frontiers(job: Job, workers: int, tell: Tell) -> Built:
    """All frontiers of a job, read or built in so many processes (0: in this one); none if `tell` asks to stop.

    Raises RunFault where a process died.
    """
    started = time.monotonic()
    try:
        shared = family(machines(job.study))
    except NoFrontier as why:
        return Built(job, 0, 0.0, (f"every machine is solved on its own: {why}",))
    largest = einsums(job)
    efforts = {_nameless(e): effort(e) for e in missing(largest, shared)}
    found: dict[Einsum, Frontier | str] = {}

    def stage() -> Stage:
        open_now = [e for e in largest if _nameless(e) in efforts and _nameless(e) not in found]
        left = sum(efforts[_nameless(e)] for e in open_now)
        return Stage(len(found), len(largest), 1 - left / sum(efforts.values()) if efforts else 1.0, tuple(e.name for e in open_now[:max(1, workers)]))

    if tell(stage()):
        return Built(job, 0, 0.0, ())
    for one in _side_by_side(largest, shared, workers) if workers else ((e, _one(e, shared)) for e in largest):
        if one:
            found[_nameless(one[0])] = one[1]
        if tell(stage()):
            return Built(job, 0, time.monotonic() - started, ())
    lines = tuple(dict.fromkeys(f"machines are searched: {one}" for one in found.values() if isinstance(one, str)))
    fronts = {e: one for e, one in found.items() if isinstance(one, Frontier)}
    own = tuple({g.key: _own(fronts[_nameless(g.einsum)], shared) for g in groups if _nameless(g.einsum) in fronts} for groups in job.uniques)
    return Built(replace(job, frontiers=own), len(fronts), time.monotonic() - started, lines)


def einsums(job: Job) -> list[Einsum]:
    """All different ones of a study, the longest search first: what is begun last is short."""
    return sorted({_nameless(group.einsum): group.einsum for groups in job.uniques for group in groups}.values(), key=effort, reverse=True)


def missing(wanted: Sequence[Einsum], shared: Family) -> list[Einsum]:
    """Those whose frontier is not in the cache."""
    return [e for e in wanted if not place(e, shared).exists()]


def foreseen(wanted: Sequence[Einsum], shared: Family) -> tuple[float, int]:
    """(core-seconds that frontiers take, how many were built to tell): the least ones, PROBE_S long, which the cache keeps; the others by their effort."""
    begun, spent, known = time.monotonic(), 0.0, 0.0
    rising = sorted(wanted, key=effort)
    for built, e in enumerate(rising):
        if built and time.monotonic() - begun > PROBE_S:
            return spent / known * sum(map(effort, rising[built:])), built
        started = time.process_time()
        _one(e, shared)
        spent, known = 0.5 * spent + time.process_time() - started, 0.5 * known + effort(e)  # the last ones count most: small ones take time for nothing
    return 0.0, len(rising)


def _one(e: Einsum, shared: Family) -> Frontier | str:
    try:
        return frontier(e, shared)
    except NoFrontier as why:
        return str(why)


def _nameless(e: Einsum) -> Einsum:
    return replace(e, name="")


def _own(f: Frontier, shared: Family) -> Frontier:
    """For one workload: answers told once hold the name of its einsum."""
    return replace(f, family=shared, cells={}, told={}, fits=set())


def machines(study: Study) -> list[Arch]:
    """What a family is made of: all machines that no constraint prunes, or SAMPLE of them and those that differ in one component only.

    Tables are read component by component, so these show every capacity, and the least and largest of each price.
    """
    space = study.space
    chosen = np.arange(space.size) if space.size <= SAMPLE else permutation(space.size, 0, np.arange(SAMPLE, dtype=np.int64))
    numbers = dict.fromkeys(chosen.tolist()) if space.size <= SAMPLE else dict.fromkeys([*chosen.tolist(), *_by_component(space)])
    archs = (decode(space, number) for number in numbers if all(v <= 0 for v in static_violations(space, number, study.constraints)))
    return [arch.ideal() for arch in archs if isinstance(arch, Arch)]


def _by_component(space: Space) -> Iterator[int]:
    """All values of the axes of one component and of the whole machine, the other axes at their first, middle or last value."""
    owners = [axis.key.rpartition(".")[0] for axis in space.axes]
    sizes = [len(axis.values) for axis in space.axes]
    for owner in dict.fromkeys(owners):
        for share in (0.0, 0.5, 1.0):
            lists = [range(n) if own in ("", owner) else [round(share * (n - 1))] for own, n in zip(owners, sizes, strict=True)]
            for digits in islice(product(*lists), SAMPLE):
                yield reduce(lambda number, at: number * at[0] + at[1], zip(sizes, digits, strict=True), 0)


def _side_by_side(einsums: Sequence[Einsum], shared: Family, workers: int) -> Iterator[tuple[Einsum, Frontier | str] | None]:
    """As they finish; None: some time has passed without one. On any way out no process is left."""
    before = active_children()
    pool = ProcessPoolExecutor(min(workers, len(einsums)), get_context("spawn"), _begin)
    asked: dict[Future[Frontier | str], Einsum] = {}
    try:
        with _no_main():
            asked |= {pool.submit(_one, e, shared): e for e in einsums}
        while asked:
            done, _ = wait(asked, WAIT_S, FIRST_COMPLETED)
            yield from ((asked.pop(one), one.result()) for one in done)
            if not done:
                yield None
    except BrokenProcessPool as fault:
        raise RunFault(f"a process died while it built frontiers (of {', '.join(e.name for e in asked.values())}); out of memory? try fewer workers, "
                       "solver.tiles: divisor or another mapper") from fault
    finally:
        for child in active_children():
            if asked and child not in before:
                child.terminate()
        pool.shutdown(cancel_futures=True)


@contextmanager
def _no_main() -> Iterator[None]:
    """Processes started inside do not run the user's script again, as they would where it guards nothing by its name."""
    kept = sys.modules["__main__"]
    try:
        sys.modules["__main__"] = ModuleType("__main__")
        yield
    finally:
        sys.modules["__main__"] = kept


def _begin() -> None:
    """Of a process that builds: it ends with the one that started it, also if that is killed."""
    calm()

    def watch() -> None:
        parent = parent_process()
        connection.wait([parent.sentinel] if parent else [])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
