"""How many machines bounds will leave to be solved, foreseen after each generation of a run."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from cluster import driver
from cluster.run_state import RunState
from cluster.time_left import PrunedPace
from cluster.worker import job_of
from dse.study import study as studies
from tests.test_driver import table

PRUNED = """
name: pruned
workloads: ["gemm:m=64,n=96,k=128"]
machine: edge_array
space:
  array.x: [2, 4, 8, 16]
  array.y: [2, 4, 8, 16]
  gbuf.capacity: [4 KiB, 8 KiB, 16 KiB, 32 KiB, 64 KiB]
  regf.capacity: [16 B, 32 B, 64 B, 128 B]
  dram.kind: [ddr3, ddr4, lpddr4, lpddr5, gddr6]
  node_nm: [22, 32, 45]
  clock_mhz: {from: 100, to: 800, step: 100}
objectives: [energy_pj, latency_ns, area_mm2]
search: {method: random, seed: SEED, prune: true}
stop: {machines: 1500}
"""


@pytest.mark.parametrize("seed", [1, 2])
def test_what_bounds_leave_is_foreseen_within_a_factor_of_two(tmp_path: Path, seed: int) -> None:
    """The pace of the first generations, none of which is pruned, would foresee five times as many."""
    (tmp_path / "pruned.yaml").write_text(PRUNED.replace("SEED", str(seed)))
    study = studies.load(tmp_path / "pruned.yaml")
    driver.run(study, tmp_path / "run", workers=0)
    machines = table(tmp_path / "run", "machines")
    points = table(tmp_path / "run", "points")
    trials = studies.trials(study, [row for row in machines if row["status"] == "ok"], points)
    state = RunState(study)

    def front_of(number: int) -> tuple[studies.Trial, ...]:
        return state._front_of(one for one in trials if one.generation <= number - 2)

    pace, ratios = PrunedPace(job_of(study).pruner), []
    for generation in range(max(row["generation"] for row in machines)):
        later = [row for row in machines if row["generation"] > generation]
        queue = [(row["machine"], row["generation"]) for row in later if row["generation"] == generation + 1]
        pace.look(front_of(generation + 2), len(machines) - len(later))
        foreseen = pace.to_solve(queue, 0, len(later) - len(queue), generation + 2, front_of)
        ratios.append(foreseen / sum(row["reason"] != pace.pruner.reason() for row in later))
    assert len(ratios) > 4
    assert all(0.5 < ratio < 2 for ratio in ratios), ratios


def test_seconds_of_machines_that_are_solved_and_of_those_that_bounds_rule_out(tmp_path: Path) -> None:
    (tmp_path / "pruned.yaml").write_text(PRUNED.replace("SEED", "1"))
    pace = PrunedPace(job_of(studies.load(tmp_path / "pruned.yaml")).pruner)

    def lease(solved: int, ruled_out: int, seconds: float) -> None:
        reasons = pa.array([None] * solved + [pace.pruner.reason()] * ruled_out, pa.string())
        pace.learn(pa.table({"reason": reasons}), seconds)

    lease(0, 1000, 1.0)
    assert pace.bounds_s == pytest.approx(1e-3)
    lease(4, 0, 4.0)
    lease(4, 100, 2.1)
    assert pace.solved_s == pytest.approx(0.75), "the mean of 1 and 0.5"
    for _ in range(40):
        lease(4, 0, 1.0)
    assert pace.solved_s == pytest.approx(0.25, rel=0.1), "what was long ago is forgotten"
