"""Studies with machines that bounds rule out, and the same with all of them solved: tests/test_prune.py, make
prove PART=prune.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa

from cluster import driver, pruning
from cluster.worker import VERSIONS, Ask, job_of, solve_machine, tables_of
from dse.study import pareto, prune
from dse.study import study as studies
from dse.study.pareto import Trial
from dse.study.study import Study
from hw import machine
from hw.arch import Arch, Array, MacUnit, Memory
from hw.space import Space, SpaceError, decode, keys, parse
from tests.test_driver import table

MACHINES = sorted(path.stem for path in (Path(machine.__file__).parent / "machines").glob("*.yaml"))
VALUES: dict[str, list[Any]] = {
    "clock_mhz": [100, 333.3, 1000, 3000],
    "node_nm": [22, 32, 45, 500],
    "cell": ["lop", "hp"],
    "vdd": [0.45, 0.6, 0.7, 1.0, "least"],
    "word_bits": [4, 8, 12, 16],
    "overlap": ["buffered", "free"],
    "width_bits": [8, 16, 64, 4096],
    "capacity": ["1 B", "64 B", "300 B", "4 KiB", "48 KiB", "1 MiB"],
    "banks": [1, 2, 3, 4],
    "channels": [1, 2],
    "bandwidth": ["1 GB/s", "12.8 GB/s"],
    "actions_per_cycle": [0.5, 1, "inf"],
    "read_pj": [0, 0.3, 7],
    "write_pj": [0.1, 5],
    "leak_mw": [0, 0.7, 300],
    "area_mm2": [0, 0.01],
    "cycle_ns": [0.4, 3],
    "ports": ["shared", "separate"],
    "double_buffer": [True, False],
    "slow": ["divide", "infeasible"],
    "burst": ["64 B", "1 B"],
    "bank_map": ["word", "xor"],
    "multicast": [True, False],
    "reduce": [True, False],
    "systolic": ["os", "ws"],
    "hop_pj": [0, 0.1],
    "ops_per_cycle": [0.5, 1, 2],
    "mac_pj": [0.2, 1.5],
    "alu_pj": [0.1],
    "vector_lanes": [0, 4, 16],
    "vector_kind": ["int8", "fp32"],
}
KINDS: dict[type, list[str]] = {
    Memory: ["sram", "ddr3", "lpddr5", "hbm2", "custom"],
    MacUnit: ["int4", "int8", "fp16", "custom"],
    Array: [],
}


RATE_SHARE = 0.3  # share of spaces in which the rate of a MAC unit varies
VDD_SHARE = 0.3  # and in which machines have a supply voltage, to which clock and technology belong


def space(rng: Random) -> Space:
    """Some fields of some machine, with values that may contradict each other."""
    template = machine.load(rng.choice(MACHINES))
    nodes = {node.name: node for node in template.nodes}
    while True:
        raw = {}
        chosen = rng.sample(sorted(keys(template)), min(rng.randint(2, 9), len(keys(template))))
        if rng.random() < RATE_SHARE:  # one key of a hundred, without which all MAC units are equally fast
            chosen += [key for key in sorted(keys(template)) if key.endswith(".ops_per_cycle")]
        if rng.random() < VDD_SHARE:
            chosen += ["vdd", "clock_mhz", *(["cell"] if rng.random() < 0.5 else [])]
        for key in dict.fromkeys(chosen):
            owner, _, name = key.rpartition(".")
            known = (
                KINDS[type(nodes[owner])]
                if name == "kind"
                else VALUES.get(name, [1, 2, 3, 7, 16] if isinstance(nodes.get(owner), Array) else [])
            )
            if known:
                raw[key] = rng.sample(known, rng.randint(1, len(known)))
        try:
            return parse(template, raw)
        except SpaceError:
            continue


STUDY = """
name: pruned
workloads: [{{file: three.yaml, name: one, weight: {weight}}},
  {{workload: "conv:k=8,c=16,p=14,q=14,r=3,s=3,pad=1", name: two}}]
machine: {machine}
space: {{{space}}}
constraints: [{constraints}]
objectives: [{objectives}]
search: {{method: {method}, seed: {seed}, generation: {generation}, prune: {prune}}}
solver: {{mapper: cost_descending}}
"""
THREE = """
extents: {m: 64, k: 48, n: 32, q: 48, z: 32, u: 20}
einsums: ["T[m,n] += X[m,k] * W[k,n]", "V[m,q] += T[m,n] * A[n,q]", "Y[m,z] += V[m,q] * B[q,z]",
  "Z[m,u] += Y[m,z] * C[z,u]"]
"""
SPACES = {
    "a2": "glb.capacity: [1 B, 512 B, 2 KiB, 8 KiB, 32 KiB], array.x: [1, 2, 4, 8, 16], "
    "array.y: [2, 4, 8], clock_mhz: [200, 500]",
    "edge_array": "array.x: [4, 8, 16], array.y: [4, 7], gbuf.capacity: [4 KiB, 32 KiB, 64 KiB], "
    "regf.capacity: [4 B, 64 B, 256 B], dram.kind: [ddr3, lpddr4]",
}
OBJECTIVES = [
    "energy_pj",
    "latency_ns",
    "edp_pj_ns",
    "area_mm2",
    "{energy_pj: max}",
    "{latency_ns: one}",
    "{edp_pj_ns: geomean}",
    "{latency_ns: sum}",
]


def drawn(folder: Path, seed: int, prune: bool) -> Study:
    rng = Random(seed)
    name = rng.choice(list(SPACES))
    objectives = ", ".join(rng.sample(OBJECTIVES, rng.choice([1, 2, 2, 3])))
    path = folder / f"{seed}_{prune}.yaml"
    (folder / "three.yaml").write_text(THREE)
    path.write_text(
        STUDY.format(
            weight=rng.choice([1, 3]),
            machine=name,
            space=SPACES[name],
            seed=seed,
            prune=str(prune).lower(),
            objectives=objectives,
            constraints=rng.choice(["", '"latency_ns <= 60000"', '"array.x >= array.y"']),
            method=rng.choice(["exhaustive", "random", "qmc"]),
            generation=rng.choice([3, 8, 20]),
        )
    )
    return studies.load(path)


def wrong(folder: Path, seed: int) -> list[str]:
    """Of one study: machines left out whose own schedules are on the front or not below what was said to be
    better; other costs than without pruning.
    """
    study = drawn(folder, seed, True)
    for given in (True, False):
        driver.run(drawn(folder, seed, given), folder / f"{seed}_{given}", workers=0)
    whole, some = (
        {row["machine"]: row for row in table(folder / f"{seed}_{given}", "points")}
        for given in (False, True)
    )
    names = [o.column for o in study.objectives]
    found = [
        f"seed {seed}: machine {m} costs {row}, not {whole[m]}" for m, row in some.items() if row != whole[m]
    ]
    for row in table(folder / f"{seed}_True", "machines"):
        if row["dominated_by"] is not None and (own := whole.get(row["machine"])):
            other = whole[row["dominated_by"]]
            better = (
                all(other[n] <= own[n] for n in names)
                and any(other[n] < own[n] for n in names)
                and other["feasible"]
            )
            found += (
                []
                if better
                else [f"seed {seed}: machine {row['machine']} costs {own}, not more than {other}"]
            )
    fronts = [front(known.values(), names) for known in (whole, some)]
    return found + ([] if fronts[0] == fronts[1] else [f"seed {seed}: front {fronts[1]}, not {fronts[0]}"])


def front(points: Any, names: list[str]) -> list[tuple[float, ...]]:
    values = np.array([[row[n] for n in names] for row in points if row["feasible"]], float).reshape(
        -1, len(names)
    )
    return sorted(map(tuple, values[pareto.front(values)].tolist())) if len(values) else []


MIXED = """
name: mixed
workloads: [{{file: three.yaml, name: one, weight: {weight}}},
  {{workload: "conv:k=8,c=16,p=14,q=14,r=3,s=3,pad=1", name: two}}]
machine: edge_array
space: {{array.x: [4, 8]}}
objectives: [{objectives}]
search: {{method: random, prune: true}}
"""


def unlike(folder: Path, seed: int, machines: int) -> tuple[list[str], int]:
    """Machines of a random space that are ruled out, many at once and one by one: what differs, and how many
    there are.
    """
    rng = Random(seed)
    (folder / "three.yaml").write_text(THREE)
    objectives = rng.sample([o for o in OBJECTIVES if "max}" not in o], 3)
    (folder / "mixed.yaml").write_text(
        MIXED.format(weight=rng.choice([1, 2.5]), objectives=", ".join(objectives))
    )
    given = studies.load(folder / "mixed.yaml")
    job = job_of(replace(given, space=space(rng)))
    numbers = np.array([rng.randrange(job.study.space.size) for _ in range(machines)])
    built, columns = job.pruner.table.columns(numbers)
    if not built.any():
        return [], 0
    lower = prune.objective_bounds_of_many(
        given.objectives, job.pruner.lower_bounds(columns), given.weights(), columns.area_mm2
    )
    front = tuple(
        Trial(i, 0, "ok", tuple(np.quantile(lower, rng.random() / 2, axis=0).tolist()), (0.0,))
        for i in range(4)
    )
    out, found = job.pruner.rows(numbers, front)
    of_asks = {"generation": pa.array([1] * int(out.sum())), "source": pa.array(["random"] * int(out.sum()))}
    versions = {name: pa.array([version] * int(out.sum())) for name, version in VERSIONS.items()}
    rows = iter(
        pruning.table_of(
            job.schemas["machines"], {**found, **of_asks, **versions}, int(out.sum())
        ).to_pylist()
    )
    wrong_ones = []
    for number, beaten in zip(numbers.tolist(), out.tolist(), strict=True):
        arch = decode(job.study.space, number)
        least = pruning.RunningBound(job.pruner, arch, front).lower_bounds() if isinstance(arch, Arch) else {}
        alone = (
            isinstance(arch, Arch)
            and prune.dominating(
                front, prune.objective_bounds(given.objectives, least, given.weights(), arch.area_mm2())
            )
            is not None
        )
        row = next(rows) if beaten else None
        if alone != beaten or (
            beaten
            and tables_of(job, solve_machine(job, Ask(number, 1, "random"), front)[0])["machines"].to_pylist()
            != [row]
        ):
            wrong_ones.append(f"seed {seed}: machine {number}: {row}")
    return wrong_ones, int(out.sum())


def left_out(folder: Path) -> int:
    return sum(
        row["dominated_by"] is not None for run in folder.glob("*_True") for row in table(run, "machines")
    )
