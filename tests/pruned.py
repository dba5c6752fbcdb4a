"""Studies with machines that bounds rule out, and the same with all of them solved: tests/test_prune.py, make prove PART=prune."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from cluster import driver
from dse.study import pareto
from dse.study import study as studies
from dse.study.study import Study
from tests.test_driver import table

STUDY = """
name: pruned
workloads: [{{file: three.yaml, name: one, weight: {weight}}}, {{workload: "conv:k=8,c=16,p=14,q=14,r=3,s=3,pad=1", name: two}}]
machine: {machine}
space: {{{space}}}
constraints: [{constraints}]
objectives: [{objectives}]
search: {{method: {method}, seed: {seed}, generation: {generation}, prune: {prune}}}
solver: {{mapper: cost_descending}}
"""
THREE = """
extents: {m: 64, k: 48, n: 32, q: 48, z: 32, u: 20}
einsums: ["T[m,n] += X[m,k] * W[k,n]", "V[m,q] += T[m,n] * A[n,q]", "Y[m,z] += V[m,q] * B[q,z]", "Z[m,u] += Y[m,z] * C[z,u]"]
"""
SPACES = {"a2": "glb.capacity: [1 B, 512 B, 2 KiB, 8 KiB, 32 KiB], array.x: [1, 2, 4, 8, 16], array.y: [2, 4, 8], clock_mhz: [200, 500]",
          "edge_array": "array.x: [4, 8, 16], array.y: [4, 7], gbuf.capacity: [4 KiB, 32 KiB, 64 KiB], regf.capacity: [4 B, 64 B, 256 B], "
                        "dram.kind: [ddr3, lpddr4]"}
OBJECTIVES = ["energy_pj", "latency_ns", "edp_pj_ns", "area_mm2", "{energy_pj: max}", "{latency_ns: one}", "{edp_pj_ns: geomean}", "{latency_ns: sum}"]


def drawn(folder: Path, seed: int, prune: bool) -> Study:
    rng = Random(seed)
    machine = rng.choice(list(SPACES))
    objectives = ", ".join(rng.sample(OBJECTIVES, rng.choice([1, 2, 2, 3])))
    path = folder / f"{seed}_{prune}.yaml"
    (folder / "three.yaml").write_text(THREE)
    path.write_text(STUDY.format(weight=rng.choice([1, 3]), machine=machine, space=SPACES[machine], seed=seed, prune=str(prune).lower(), objectives=objectives,
                                 constraints=rng.choice(["", '"latency_ns <= 60000"', '"array.x >= array.y"']),
                                 method=rng.choice(["exhaustive", "random", "qmc"]), generation=rng.choice([3, 8, 20])))
    return studies.load(path)


def wrong(folder: Path, seed: int) -> list[str]:
    """Of one study: machines left out whose own schedules are on the front or not below what was said to be better; other costs than without pruning."""
    study = drawn(folder, seed, True)
    for prune in (True, False):
        driver.run(drawn(folder, seed, prune), folder / f"{seed}_{prune}", workers=0)
    whole, some = ({row["machine"]: row for row in table(folder / f"{seed}_{prune}", "points")} for prune in (False, True))
    names = [o.column for o in study.objectives]
    found = [f"seed {seed}: machine {m} costs {row}, not {whole[m]}" for m, row in some.items() if row != whole[m]]
    for row in table(folder / f"{seed}_True", "machines"):
        if row["beaten_by"] is not None and (own := whole.get(row["machine"])):
            other = whole[row["beaten_by"]]
            better = all(other[n] <= own[n] for n in names) and any(other[n] < own[n] for n in names) and other["feasible"]
            found += [] if better else [f"seed {seed}: machine {row['machine']} costs {own}, not more than {other}"]
    fronts = [front(known.values(), names) for known in (whole, some)]
    return found + ([] if fronts[0] == fronts[1] else [f"seed {seed}: front {fronts[1]}, not {fronts[0]}"])


def front(points: Any, names: list[str]) -> list[tuple[float, ...]]:
    values = np.array([[row[n] for n in names] for row in points if row["feasible"]], float).reshape(-1, len(names))
    return sorted(map(tuple, values[pareto.front(values)].tolist())) if len(values) else []


def left_out(folder: Path) -> int:
    return sum(row["beaten_by"] is not None for run in folder.glob("*_True") for row in table(run, "machines"))
