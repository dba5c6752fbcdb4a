"""What a run knows of its machines: how many ended how and why, and the trials that samplers, stops and
bounds ask for. Flat over a long run: of complete generations only counts stay, and of their trials what is
asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cluster.store import RunFault
from cluster.worker import UNDONE, VIOLATED
from dse.study import packed_columns, pareto, prune
from dse.study import study as studies
from dse.study.pareto import Trial, Values
from dse.study.sampler import STEERED
from dse.study.study import Study

LEARNT = ("machine", "generation", "status", "reason", "need_bytes", "have_bytes")  # columns of machines
MOST_REASONS = 1000  # different ones that are counted
LOOSE = 10_000  # points from which on those that no front needs are dropped


@dataclass(slots=True)
class RunState:
    """counts: machines by status. reasons: why machines have no schedule; violated: the first one that breaks
    a bound. open_generations: machines with rows, of generations that are not `closed_generations`, which
    have them all. settled: trials of complete generations. fronts: before a generation and those behind it,
    as far as trials are settled. feasible [n, objectives]: of points, without those that no front needs.
    """

    study: Study
    counts: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    violated: str = ""
    open_generations: dict[int, set[int]] = field(default_factory=dict)
    closed_generations: set[int] = field(default_factory=set)
    trials: dict[int, list[Trial]] = field(default_factory=dict)
    settled: list[Trial] = field(default_factory=list)
    fronts: dict[int, tuple[Trial, ...]] = field(default_factory=dict)
    feasible: Values = field(init=False)

    def __post_init__(self) -> None:
        self.feasible = np.empty((0, len(self.study.objectives)))

    def all_trials(self) -> bool:
        """Whether every trial counts, not only those of the front."""
        return self.study.search.method in STEERED or self.study.stop.hypervolume_gain is not None

    def is_done(self, generation: int, machine: int) -> bool:
        """True if a machine of a generation has a row already, or its generation is closed."""
        return generation in self.closed_generations or machine in self.open_generations.get(generation, ())

    def columns(self) -> dict[str, Sequence[str]]:
        """What `learn` reads of committed rows."""
        missed = [prune.column(c) for c in self.study.constraints.modelled]
        own = dict.fromkeys(
            [
                "machine",
                "schedule",
                "feasible",
                *packed_columns.GIVEN[:2],
                *(o.column for o in self.study.objectives),
                *missed,
            ]
        )
        return {"machines": [*LEARNT, *packed_columns.OF_MACHINES], "points": list(own)}

    def close(self, generation: int) -> None:
        """All of its machines have rows."""
        self.closed_generations.add(generation)
        self.open_generations.pop(generation, None)

    def learn(self, machines: pa.Table, points: pa.Table | None) -> None:
        """Rows of machines, each once, and of their schedules. Raises RunFault for a machine that another
        open generation has rows of.
        """
        points = packed_columns.unpack(points, machines) if points is not None else None
        for status, n in _count_values(machines["status"]):
            self.counts[status] += n
        for reason, n in _count_values(machines["reason"].filter(pc.is_valid(machines["reason"]))):
            if reason in self.reasons or len(self.reasons) < MOST_REASONS:
                self.reasons[reason] += n
            if reason.startswith(VIOLATED):
                self.violated = self.violated or reason
        for generation in pc.unique(machines["generation"]).to_pylist():
            if generation not in self.closed_generations:
                own = set(
                    machines["machine"].filter(pc.equal(machines["generation"], generation)).to_pylist()
                )
                if twice := [
                    (m, other)
                    for other, known in self.open_generations.items()
                    if other != generation
                    for m in known & own
                ]:
                    raise RunFault(
                        f"machine {twice[0][0]} has rows of generations {generation} and "
                        f"{twice[0][1]}: a fault of dse, nothing of it is published"
                    )
                self.open_generations.setdefault(generation, set()).update(own)
        if points is not None and points.num_rows:
            met = points.filter(points["feasible"])
            self.feasible = np.concatenate(
                [self.feasible, np.column_stack([met[o.column].to_numpy() for o in self.study.objectives])]
            )
        if len(self.feasible) > LOOSE:
            self.front()
        if self.all_trials() or self.study.search.prune:
            wanted = machines if self.all_trials() else machines.filter(pc.equal(machines["status"], "ok"))
            for trial in studies.trials(
                self.study, wanted.to_pylist(), points.to_pylist() if points is not None else []
            ):
                self.trials.setdefault(trial.generation, []).append(trial)

    def settle(self, last: int) -> None:
        """Trials of generations up to `last` are complete."""
        for generation in sorted(g for g in self.trials if g <= last):
            own = sorted(self.trials.pop(generation), key=_trial_order)
            if self.study.search.prune:
                # machines of the generation before may still wait for theirs
                older = dict(sorted(self.fronts.items())[-2:])
                self.fronts = {
                    **older,
                    generation + 2: self._best([*self.front_before(generation + 1), *own]),
                }
            self.settled.extend(own)
        if not self.all_trials():
            self.settled = list(self._best(self.settled))

    def front_before(self, number: int) -> tuple[Trial, ...]:
        """Of all generations <= number - 2, which are complete: whoever solves a machine, and when, it is
        pruned by the same schedules, though those of the generation in between, which may undercut them, may
        be known by then.
        """
        begun = self.fronts.get(max((n for n in self.fronts if n <= number), default=0), ())
        later = [
            t
            for generation, own in sorted(self.trials.items())
            if generation <= number - 2
            for t in sorted(own, key=_trial_order)
        ]
        return self._best([*begun, *later]) if later else begun

    def _best(self, trials: Iterable[Trial]) -> tuple[Trial, ...]:
        feasible = [t for t in trials if t.feasible]
        kept = pareto.front(pareto.minimised(feasible, self.study.objectives)) if feasible else []
        return tuple(t for t, best in zip(feasible, kept, strict=True) if best)

    def front(self) -> tuple[int, float]:
        """Size of the front of all feasible points, and its hypervolume. Of the others only those that span
        the box are kept.
        """
        if not len(self.feasible):
            return 0, 0.0
        values = self.feasible * np.array(
            [-1.0 if o.direction == "max" else 1.0 for o in self.study.objectives]
        )
        kept = pareto.front(values)
        best = values[kept]
        kept[values.argmax(axis=0)] = True
        self.feasible = self.feasible[kept]
        return len(best), pareto.hypervolume(pareto.scaler(values)(best), np.full(values.shape[1], 1.1))

    def why_empty(self) -> str:
        """Commonest reason of the machines without a schedule; where some have one, the constraints that none
        meets.
        """
        if self.counts["ok"]:
            return f"no schedule meets {' and '.join(c.text for c in self.study.constraints.modelled)}"
        counts = ", ".join(f"{n} {status}" for status, n in sorted(self.counts.items()))
        return counts + "".join(f", most often {reason}" for reason, _ in self.reasons.most_common(1))


def undone_rows(machines: pa.Table) -> pa.Array:
    """Which rows a deadline, memory or a lost actor left undone."""
    return pc.fill_null(
        pc.and_(
            pc.equal(machines["status"], "error"),
            pc.match_substring_regex(machines["reason"], f"^({'|'.join(UNDONE)})"),
        ),
        False,
    )


def _count_values(column: pa.ChunkedArray) -> list[tuple[str, int]]:
    return [(pair["values"], pair["counts"]) for pair in pc.value_counts(column).to_pylist()]


def _trial_order(trial: Trial) -> tuple[int, tuple[float, ...]]:
    return trial.machine, trial.values or ()
