"""Hypervolume of steered searches against random: python -m bench.samplers [STUDY [POINTS [KEY=VALUE...]]].

The study's space is solved whole once; each search then asks, generation by generation as a run does, and is
told the stored answers; Optuna's own samplers, as its users write the loop (ask, tell, nothing repeated is
moved, no look-ahead), stand beside ours. Prints every seed's value as a share of the whole front's
hypervolume (axes logarithmic, scaled to all points).
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import optuna

from analysis import db
from bench.driver import complete
from cluster import driver
from dse.frontend import runs
from dse.study import pareto, plan
from dse.study import study as studies
from dse.study.sampler import machine_at
from dse.study.study import Study

SEEDS = (1, 2, 3, 4, 5)
METHODS = ("random", "nsga2", "tpe")
Rows = dict[str, dict[int, list[dict]]]  # table -> machine -> its rows
PLAIN: dict[str, Callable[[int], optuna.samplers.BaseSampler]] = {
    "optuna random": lambda seed: optuna.samplers.RandomSampler(seed=seed),
    "optuna nsga2": lambda seed: optuna.samplers.NSGAIISampler(seed=seed),
    "optuna tpe": lambda seed: optuna.samplers.TPESampler(seed=seed, multivariate=True),
}


def searched(study: Study, rows: Rows, points: int) -> list[pareto.Trial]:
    """Trials of the first `points` machines that a search asks for, with the look-ahead of a run."""
    asked, told, before = [], [], plan.Asked()
    while sum(len(a.asks) for a in asked) < points:
        number = len(asked)
        asks = studies.generation(study, number, before, [t for t in told if t.generation <= number - 2])
        if asks is None:
            break
        asked.append(asks)
        before.add(asks)
        left = points - sum(len(a.asks) for a in asked[:-1])
        machines = [{**rows["machines"][m][0], "generation": number} for m, *_ in asks.asks[:left]]
        told += studies.trials(
            study, machines, [row for m in machines for row in rows["points"].get(m["machine"], [])]
        )
    return told


def plain(study: Study, rows: Rows, points: int, sampler: optuna.samplers.BaseSampler) -> list[pareto.Trial]:
    """Trials of Optuna's plain loop over the same axes: one machine after the other, a repeated one costs an
    ask as it does there.
    """
    grid, told = studies.grid(study), []
    names = [axis.key for axis in study.space.axes]
    loop = optuna.create_study(
        directions=["maximize" if o.direction == "max" else "minimize" for o in study.objectives],
        sampler=sampler,
    )
    for number in range(points):
        trial = loop.ask()
        at = [
            trial.suggest_int(n, 0, size - 1) if ordered else trial.suggest_categorical(n, range(size))
            for n, size, ordered in zip(names, grid.sizes, grid.ordered, strict=True)
        ]
        machine = rows["machines"][machine_at(grid, at)][0]
        found = [
            t
            for t in studies.trials(
                study, [{**machine, "generation": number}], rows["points"].get(machine["machine"], [])
            )
            if t.values is not None
        ]
        loop.tell(
            trial, found[0].values if found else None, state=None if found else optuna.trial.TrialState.FAIL
        )
        told += found
    return told


def main(path: str, points: int, sets: list[str]) -> int:
    whole = studies.load(path, ["search.method=exhaustive", *sets])
    with tempfile.TemporaryDirectory() as folder:
        complete(driver.run(whole, Path(folder) / "whole", workers=2))
        con = runs.connection(Path(folder) / "whole", whole)
        rows: Rows = {"machines": {}, "points": {}}
        for table, found in rows.items():
            for row in db.query(con, f"FROM {table} ORDER BY machine").to_pylist():
                found.setdefault(row["machine"], []).append(row)
    every = studies.trials(
        whole,
        [r[0] for r in rows["machines"].values()],
        [r for group in rows["points"].values() for r in group],
    )
    scale = pareto.scaler(pareto.minimised(every, whole.objectives))
    reference = np.full(len(whole.objectives), 1.1)
    best = pareto.hypervolume(scale(pareto.minimised(every, whole.objectives)), reference)
    medians = {}

    def ours(seed: int, **search: Any) -> list[pareto.Trial]:
        return searched(replace(whole, search=replace(whole.search, seed=seed, **search)), rows, points)

    def theirs(make: Callable[[int], optuna.samplers.BaseSampler], seed: int) -> list[pareto.Trial]:
        return plain(whole, rows, points, make(seed))

    searches: dict[str, Callable[[int], list[pareto.Trial]]] = {
        **{m: partial(ours, method=m) for m in METHODS},
        "tpe, 16 at a time": partial(ours, method="tpe", generation=16),
        **{name: partial(theirs, make) for name, make in PLAIN.items()},
    }
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    print(
        f"share of the hypervolume of all {len(rows['machines'])} machines, {points} asked, seeds "
        f"{', '.join(map(str, SEEDS))}"
    )
    for name, search in searches.items():
        values = [
            pareto.hypervolume(scale(pareto.minimised(search(seed), whole.objectives)), reference) / best
            for seed in SEEDS
        ]
        medians[name] = median(values)
        print(
            f"| {name} | {' '.join(f'{v:.4f}' for v in values)} | mean {mean(values):.4f} | median "
            f"{medians[name]:.4f} |",
            flush=True,
        )
    return int(min(medians["tpe"], medians["nsga2"]) <= medians["random"])


if __name__ == "__main__":
    sys.exit(
        main(
            sys.argv[1] if len(sys.argv) > 1 else "studies/edge_small.yaml",
            int(sys.argv[2]) if len(sys.argv) > 2 else 150,
            sys.argv[3:],
        )
    )
