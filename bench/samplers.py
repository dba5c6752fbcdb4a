"""Hypervolume of steered searches against random: python -m bench.samplers [STUDY [POINTS]].

The study's space is solved whole once; each search then asks, generation by generation as a run does, and is told the stored
answers. Prints every seed's value as a share of the whole front's hypervolume (axes logarithmic, scaled to all points).
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np

from analysis import db
from bench.driver import complete
from cluster import driver
from dse import record
from dse.study import pareto
from dse.study import study as studies
from dse.study.study import Study

SEEDS = (1, 2, 3, 4, 5)
METHODS = ("random", "nsga2", "tpe")


def searched(study: Study, rows: dict[str, dict[int, list[dict]]], points: int) -> list[pareto.Trial]:
    """Trials of the first `points` machines that a search asks for, with the look-ahead of a run."""
    asked, told = [], []
    while sum(len(a.asks) for a in asked) < points:
        number = len(asked)
        asks = studies.generation(study, number, asked, [t for t in told if t.generation <= number - 2])
        if asks is None:
            break
        asked.append(asks)
        left = points - sum(len(a.asks) for a in asked[:-1])
        machines = [{**rows["machines"][m][0], "generation": number} for m, *_ in asks.asks[:left]]
        told += studies.trials(study, machines, [row for m in machines for row in rows["points"].get(m["machine"], [])])
    return told


def main(path: str, points: int) -> int:
    whole = studies.load(path, ["search.method=exhaustive"])
    with tempfile.TemporaryDirectory() as folder:
        complete(driver.run(whole, Path(folder) / "whole", workers=2))
        con = db.connect(Path(folder) / "whole", {t: record.schema(t, studies.columns(whole, t)) for t in record.TABLES})
        rows: dict[str, dict[int, list[dict]]] = {"machines": {}, "points": {}}
        for table, found in rows.items():
            for row in db.query(con, f"FROM {table} ORDER BY machine").to_pylist():
                found.setdefault(row["machine"], []).append(row)
    every = studies.trials(whole, [r[0] for r in rows["machines"].values()], [r for group in rows["points"].values() for r in group])
    scale = pareto.scaler(pareto.minimised(every, whole.objectives))
    reference = np.full(len(whole.objectives), 1.1)
    best = pareto.hypervolume(scale(pareto.minimised(every, whole.objectives)), reference)
    medians = {}
    for method in METHODS:
        values = []
        for seed in SEEDS:
            study = replace(whole, search=replace(whole.search, method=method, seed=seed))
            told = searched(study, rows, points)
            values.append(pareto.hypervolume(scale(pareto.minimised(told, study.objectives)), reference) / best)
        medians[method] = median(values)
        listed = " ".join(f"{v:.4f}" for v in values)
        print(f"{method}: {listed}, median {medians[method]:.4f} of the hypervolume of all {len(rows['machines'])} machines", flush=True)
    return int(min(medians["tpe"], medians["nsga2"]) <= medians["random"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "studies/edge_small.yaml", int(sys.argv[2]) if len(sys.argv) > 2 else 150))
