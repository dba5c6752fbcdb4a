"""What a run knows of its machines: counts by status, reasons, and the trials that samplers, stop criteria
and bounds read.

Memory does not grow over a long run where only the front is needed: of complete generations only counts and
their trials on the front are stored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cluster.store import RunFault
from cluster.worker import UNDONE, VIOLATED
from dse.study import packed_columns, pareto, prune
from dse.study import study as studies
from dse.study.pareto import Trial, Values
from dse.study.study import Study
from workloads.arrays import Bools, Ints

# columns of machines read
MACHINE_COLUMNS = ("machine", "generation", "status", "reason", "need_bytes", "have_bytes")
MAX_REASONS = 1000  # distinct reasons that are counted, a limit of memory
MAX_FEASIBLE = (
    10_000  # feasible points in memory; beyond it, points off the front are dropped, if they are as many
)


@dataclass(frozen=True, slots=True)
class Solving:
    """A lease that a worker has."""

    worker: int  # number of its log; 0: the run's own process
    machine: int  # the first one of the lease
    machines: int
    since: float  # seconds since 1970
    doing: str = ""  # how far the worker is with it; "": it did not say


@dataclass(slots=True)
class WorkerStats:
    """Counters of what workers did in a session, and what they work at."""

    live: int = 0  # workers that answer now
    busy: int = 0  # those of them that have a lease
    nodes: int = 0  # nodes whose workers took leases
    nodes_lost: int = 0  # those of them that had no worker that answers when last looked at
    waiting: str = ""  # what the others wait for; "": nothing
    solving: tuple[Solving, ...] = ()  # leases that workers have longest, these first
    busy_s: float = 0.0  # seconds that workers spent on leases
    retries: int = 0  # leases sent again because their actor was lost
    cache_hits: int = 0  # answers found in $DSE_CACHE
    cache_misses: int = 0  # answers that were not there, and were solved


@dataclass(slots=True)
class RunState:
    """Counts, reasons and trials of a run's machines."""

    study: Study
    counts: Counter[str] = field(default_factory=Counter)  # machines by status
    reasons: Counter[str] = field(default_factory=Counter)  # machines without a schedule, by reason
    worst_gap: float = 0.0  # largest optimality gap of a point
    contradiction: str = ""  # reason of the first machine whose cost contradicts the model; "": none
    # generation -> its machines that have rows, for incomplete generations
    open_generations: dict[int, set[int]] = field(default_factory=dict)
    # complete generations: all their machines have rows
    closed_generations: set[int] = field(default_factory=set)
    # generation -> trials that samplers do not see yet (`release_trials`)
    hidden_trials: dict[int, list[Trial]] = field(default_factory=dict)
    # trials that samplers, stop criteria and bounds see; only the front if no more is needed
    visible_trials: list[Trial] = field(default_factory=list)
    # generation -> front known before it; holds for later generations too, up to the next entry
    fronts: dict[int, tuple[Trial, ...]] = field(default_factory=dict)
    # [n, objectives] values of feasible points; once there are many, distinct ones, and only those on the
    # front or with the worst value of an objective
    feasible_values: Values = field(init=False)
    # [n] how many points have these values
    feasible_counts: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    max_feasible: int = (
        MAX_FEASIBLE  # rows of `feasible_values` beyond which points off the front are dropped
    )

    def __post_init__(self) -> None:
        self.feasible_values = np.empty((0, len(self.study.objectives)))

    def needs_all_trials(self) -> bool:
        """True if a sampler or stop criterion reads every trial; False if only the front matters."""
        return self.study.search.learns() or self.study.stop.hypervolume_gain is not None

    def mark_done(self, generation: int, machine: int) -> None:
        """Notes that a machine of an open generation has a row, which `learn` is given later."""
        self.open_generations.setdefault(generation, set()).add(machine)

    def is_done(self, generation: int, machine: int) -> bool:
        """True if a machine of a generation has a row, or its generation is closed."""
        return generation in self.closed_generations or machine in self.open_generations.get(generation, ())

    def columns(self) -> dict[str, Sequence[str]]:
        """Returns the columns of machines and points that `learn` reads."""
        violations = [prune.violation_column(c) for c in self.study.constraints.modelled]
        of_points = dict.fromkeys(
            [
                "machine",
                "schedule",
                "feasible",
                "optimality_gap",
                *packed_columns.FORMULA_INPUTS[:2],
                *(o.column for o in self.study.objectives),
                *violations,
            ]
        )
        return {"machines": [*MACHINE_COLUMNS, *packed_columns.MACHINE_INPUTS], "points": list(of_points)}

    def close(self, generation: int) -> None:
        """Marks a generation as complete: all of its machines have rows."""
        self.closed_generations.add(generation)
        self.open_generations.pop(generation, None)

    def learn(self, machines: pa.Table, points: pa.Table | None) -> None:
        """Adds rows of machines, each machine once, and of their schedules. Raises RunFault for a machine
        that already has rows in another open generation.
        """
        points = packed_columns.unpack(points, machines) if points is not None else None
        self.counts.update(dict(count_values(machines["status"])))
        for reason, n in count_values(machines["reason"].filter(pc.is_valid(machines["reason"]))):
            if reason in self.reasons or len(self.reasons) < MAX_REASONS:
                self.reasons[reason] += n
            if reason.startswith(VIOLATED):
                self.contradiction = self.contradiction or reason
        for generation in pc.unique(machines["generation"]).to_pylist():
            if generation not in self.closed_generations:
                numbers = set(
                    machines["machine"].filter(pc.equal(machines["generation"], generation)).to_pylist()
                )
                if repeated := [
                    (m, other)
                    for other, done in self.open_generations.items()
                    if other != generation
                    for m in done & numbers
                ]:
                    raise RunFault(
                        f"machine {repeated[0][0]} has rows of generations {generation} and "
                        f"{repeated[0][1]}: a fault of dse, these rows are not published"
                    )
                self.open_generations.setdefault(generation, set()).update(numbers)
        if points is not None and points.num_rows:
            self.worst_gap = max(self.worst_gap, pc.max(points["optimality_gap"]).as_py() or 0.0)
            feasible = points.filter(points["feasible"])
            self.feasible_values = np.concatenate(
                [
                    self.feasible_values,
                    np.column_stack([feasible[o.column].to_numpy() for o in self.study.objectives]),
                ]
            )
            self.feasible_counts = np.append(
                self.feasible_counts, np.ones(feasible.num_rows, self.feasible_counts.dtype)
            )
        if len(self.feasible_values) > self.max_feasible:
            self._drop_dominated()
            # a front may be large: so that each point is looked at a few times, not at every call
            self.max_feasible = max(MAX_FEASIBLE, 2 * len(self.feasible_values))
        if self.needs_all_trials() or self.study.search.prune:
            trial_machines = (
                machines if self.needs_all_trials() else machines.filter(pc.equal(machines["status"], "ok"))
            )
            for trial in studies.trials(
                self.study, trial_machines.to_pylist(), points.to_pylist() if points is not None else []
            ):
                self.hidden_trials.setdefault(trial.generation, []).append(trial)

    def release_trials(self, last: int) -> None:
        """Lets samplers see the trials of all generations up to `last`, which are complete."""
        for generation in sorted(g for g in self.hidden_trials if g <= last):
            trials = sorted(self.hidden_trials.pop(generation), key=_trial_order)
            if self.study.search.prune:
                # the last two fronts are still needed by machines in flight, which are of earlier generations
                older = dict(sorted(self.fronts.items())[-2:])
                self.fronts = {
                    **older,
                    generation + 2: self._front_of([*self.front_before(generation + 1), *trials]),
                }
            self.visible_trials.extend(trials)
        if not self.needs_all_trials():
            self.visible_trials = list(self._front_of(self.visible_trials))

    def front_before(self, number: int) -> tuple[Trial, ...]:
        """Returns the front over all generations <= number - 2, which are complete when `number` is asked.

        Trials of generation number - 1 are left out even if they are known. So the same schedules prune a
        machine, no matter which actor solves it, and when.
        """
        released = self.fronts.get(max((n for n in self.fronts if n <= number), default=0), ())
        later = [
            t
            for generation, trials in sorted(self.hidden_trials.items())
            if generation <= number - 2
            for t in sorted(trials, key=_trial_order)
        ]
        return self._front_of([*released, *later]) if later else released

    def _front_of(self, trials: Iterable[Trial]) -> tuple[Trial, ...]:
        feasible = [t for t in trials if t.feasible]
        mask = pareto.front(pareto.minimised(feasible, self.study.objectives)) if feasible else []
        return tuple(t for t, on_front in zip(feasible, mask, strict=True) if on_front)

    def front(self) -> tuple[int, float, Values]:
        """Returns the size of the front of all feasible points, its hypervolume, and the reference of it."""
        if not len(self.feasible_values):
            return 0, 0.0, np.empty(0)
        on_front = self._drop_dominated()
        values = self.feasible_values * pareto.signs(self.study.objectives)
        reference = pareto.scaler(values).reference() * pareto.signs(self.study.objectives)
        size = int(self.feasible_counts[on_front].sum())
        return size, pareto.boxed_hypervolume(values[on_front], values), reference

    def _drop_dominated(self) -> Bools:
        """Drops points off the front, except those with the worst value of an objective, which span the box
        of the hypervolume; of equal values one row is left. Returns [n], which of the rows are on the front.
        """
        values = self.feasible_values * pareto.signs(self.study.objectives)
        on_front = pareto.front(values)
        kept = on_front.copy()
        kept[values.argmax(axis=0)] = True
        distinct, first, which = np.unique(
            self.feasible_values[kept], axis=0, return_index=True, return_inverse=True
        )
        counts = np.zeros(len(distinct), np.int64)
        np.add.at(counts, which.reshape(-1), self.feasible_counts[kept])
        self.feasible_values, self.feasible_counts = distinct, counts
        return np.asarray(on_front[kept][first])

    def why_empty(self) -> str:
        """Returns why there is no feasible point: the constraints, if some machine has a schedule; else the
        most common reason.
        """
        if self.counts["ok"]:
            return f"no schedule meets {' and '.join(c.text for c in self.study.constraints.modelled)}"
        counts = ", ".join(f"{n} {status}" for status, n in sorted(self.counts.items()))
        return counts + "".join(f", most often {reason}" for reason, _ in self.reasons.most_common(1))


def undone_rows(machines: pa.Table) -> pa.Array:
    """Returns a mask of the rows that a deadline, memory or a lost actor left undone."""
    return pc.fill_null(
        pc.and_(
            pc.equal(machines["status"], "error"),
            pc.match_substring_regex(machines["reason"], f"^({'|'.join(UNDONE)})"),
        ),
        False,
    )


def count_values(column: pa.ChunkedArray) -> list[tuple[Any, int]]:
    """Returns the distinct values of a column, each with its number of rows."""
    return [(pair["values"], pair["counts"]) for pair in pc.value_counts(column).to_pylist()]


def _trial_order(trial: Trial) -> tuple[int, tuple[float, ...]]:
    return trial.machine, trial.values or ()
