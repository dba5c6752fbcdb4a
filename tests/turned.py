"""Random studies whose machines share mappings, many at once and each alone: tests/test_turns.py, make prove
PART=share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np
import pytest

from cluster import worker
from cluster.worker import Ask, Job, Lease
from dse.mapping.nest import Infeasible
from dse.sim.einsum.evaluate import ROUNDING_GAP, Solution, objective_value
from dse.solve.options import SolverOptions
from dse.solve.solve import solve
from dse.study import study as studies
from dse.study.read import StudyError
from dse.study.study import Study
from hw import machine
from hw.arch import Arch, Array
from hw.space import decode, keys
from tests.pruned import KINDS, OBJECTIVES, THREE, VALUES

STUDY = """
name: turned
workloads: [{{file: three.yaml, name: one, weight: {weight}}},
  {{workload: "conv:k=8,c=16,p=14,q=14,r=3,s=3,pad=1", name: two}}]
machine: {machine}
space: {{{space}}}
constraints: [{constraints}]
objectives: [{objectives}]
search: {{method: exhaustive, seed: {seed}}}
solver: {{objective: {objective}, sharing_gap: {share}, factors: {tiles}, gap: {near}}}
"""
# machines on which a search to the end takes no minute
SMALL = ("a2", "a2s", "a3", "a3nb", "edge_array", "eyeriss", "smv")
CONSTRAINTS = ["", '"latency_ns <= 60000"', '"energy_pj[two] <= 1e8", "latency_ns * clock_mhz >= 1e6"']


GOALS = ("energy", "latency", "edp")


def drawn(folder: Path, seed: int, clocks: int = 128, goals: Sequence[str] = GOALS) -> Study:
    """A machine's fields of two values each, of those that shape mappings and others, and many clocks. goals:
    objectives to draw from
    """
    rng = Random(seed)
    (folder / "three.yaml").write_text(THREE)
    while True:
        name = rng.choice(SMALL)
        template = machine.load(name)
        nodes, given = (
            {node.name: node for node in template.nodes},
            {"clock_mhz": str(sorted(rng.sample(range(50, 2100), clocks)))},
        )
        for key in rng.sample(sorted(keys(template)), min(rng.randint(3, 7), len(keys(template)))):
            owner, _, field = key.rpartition(".")
            known = (
                KINDS[type(nodes[owner])]
                if field == "kind"
                else VALUES.get(field, [2, 4, 7] if isinstance(nodes.get(owner), Array) else [])
            )
            if len(known) > 1 and key != "clock_mhz" and field not in ("burst", "bank_map", "hop_pj"):
                given[key] = (
                    str(rng.sample(known, 2))
                    .replace("'", '"')
                    .replace("True", "true")
                    .replace("False", "false")
                    .replace('"inf"', ".inf")
                )
        path = folder / f"{seed}.yaml"
        path.write_text(
            STUDY.format(
                weight=rng.choice([1, 2.5]),
                machine=name,
                space=", ".join(f"{key}: {value}" for key, value in given.items()),
                seed=seed,
                objectives=", ".join(rng.sample(OBJECTIVES, 2)),
                constraints=rng.choice(CONSTRAINTS),
                share=rng.choice([0.02, 0.1, 0.4]),
                tiles=rng.choice(["perfect", "imperfect_spatial"]),
                near=rng.choice([0, 0.01]),
                objective=rng.choice(goals),
            )
        )
        try:
            found = studies.load(path)
        except StudyError:
            continue
        if sum(isinstance(decode(found.space, rng.randrange(found.space.size)), Arch) for _ in range(16)) > 8:
            return found


def unlike(job: Job, machines: list[int]) -> tuple[list[str], Counter[str]]:
    """What of the rows of machines differs between the array way and each alone, and how many machines have
    which status.
    """
    asks = tuple(Ask(number, 0, "exhaustive") for number in machines)
    many = _rows(job, asks)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "_solve_sharing_mappings", lambda job, asks, _: ([], list(asks), {}, 0.0))
        alone = _rows(job, asks)
    wrong = [
        f"{job.study.space.template.name}: {name}: {row}"
        for name in sorted(many.keys() | alone.keys())
        for row in sorted(many.get(name, set()) ^ alone.get(name, set()))
    ]
    status = Counter(
        str(row["status"]) for row in worker.solve_lease(job, Lease(0, asks)).tables["machines"].to_pylist()
    )
    return wrong, status


def _rows(job: Job, asks: tuple[Ask, ...]) -> dict[str, set[str]]:
    return {
        name: {repr(row) for row in table.to_pylist()}
        for name, table in worker.solve_lease(job, Lease(0, asks)).tables.items()
    }


def too_near(job: Job, machines: list[int]) -> tuple[list[str], int]:
    """Machines of which the gap says less than a search of each alone, to the end; and how many were
    searched.
    """
    assert job.batch_index
    wrong, searched = [], 0
    options = job.study.solver
    for block, own in job.batch_index.of(np.array(machines)):
        for number in np.array(machines)[own].tolist():
            for place, workload in enumerate(job.workloads):
                arch = block.batch.machine(block.row_of(number))
                # to the end; of energy x delay and of fronts that takes minutes, and any answer holds a gap
                # to account
                gap = 0.01 if options.objective in ("edp", "front") else 0.0
                own = SolverOptions(factors=options.factors, gap=gap, objective=options.objective)
                best = solve(arch, workload, own)
                shared = block.solution(number, place)
                if isinstance(shared, Infeasible) or isinstance(best, Infeasible):
                    if isinstance(shared, list) or isinstance(best, list):
                        wrong.append(f"machine {number}, {workload.name}: {shared}, and alone {best}")
                    break  # whether later workloads fit is not asked
                searched += 1
                if options.objective == "front":
                    wrong += [
                        f"machine {number}, {workload.name}: {row} is not covered within "
                        f"{shared[0].optimality_gap}"
                        for row in pairs(best)
                        if (pairs(shared) / row).max(axis=1).min()
                        > (1 + shared[0].optimality_gap) * (1 + ROUNDING_GAP)
                    ]
                    continue
                value, optimum = (
                    objective_value(options.single_objective, one.energy_pj, one.latency_cycles)
                    for one in (shared[0], best[0])
                )
                if value > optimum * (1 + shared[0].optimality_gap) * (1 + ROUNDING_GAP):
                    wrong.append(
                        f"machine {number}, {workload.name}, {options.objective}: {value} is said to be "
                        f"{shared[0].optimality_gap} above {optimum}"
                    )
    return wrong, searched


def pairs(front: Sequence[Solution]) -> np.ndarray:
    """Energy and latency of schedules [N, 2]."""
    return np.array([(one.energy_pj, one.latency_cycles) for one in front])
