"""How busy workers will be: simulates a run's generations on a number of workers, machine by machine."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from itertools import cycle

from dse.study.study import Study

MAX_SIMULATED = 20_000  # machines; after them the utilization of a long run hardly changes


def foreseen_utilization(study: Study, machines: int, machine_s: Sequence[float], workers: int) -> float:
    """Returns the share of the workers' time that they spend on solving machines.

    machines: number of machines that the run solves
    machine_s: seconds of some machines, repeated in turn for all
    workers: number of workers
    """
    seconds = cycle(machine_s)
    free_at = [0.0] * workers  # heap: second at which each worker ends its machine
    complete_at: list[float] = []  # per generation: second at which it and all before it are complete
    busy_s = 0.0
    for size in _generation_sizes(study, min(machines, max(MAX_SIMULATED, 4 * workers))):
        # a generation is asked when the one two before it is complete
        begins_at = complete_at[-2] if len(complete_at) > 1 else 0.0
        end = complete_at[-1] if complete_at else 0.0
        for _ in range(size):
            own_s = next(seconds)
            done_at = max(heapq.heappop(free_at), begins_at) + own_s
            heapq.heappush(free_at, done_at)
            busy_s, end = busy_s + own_s, max(end, done_at)
        complete_at.append(end)
    return busy_s / (workers * complete_at[-1]) if complete_at and complete_at[-1] else 1.0


def _generation_sizes(study: Study, machines: int) -> Iterator[int]:
    """Yields how many machines may be dispatched together: those of a generation, or all where none needs
    results.
    """
    number, left = 0, machines
    while left > 0:
        size = min(left, study.search.generation_size(number)) if study.depends_on_trials() else left
        yield size
        number, left = number + 1, left - size
