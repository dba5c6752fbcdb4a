"""What follows from other columns of points is left out and filled in again, to the last bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from cluster import worker
from cluster.worker import Ask, Lease
from dse.study import packed_columns
from tests.test_driver import HEAVY, LIGHT, study

NUMBERS = ("latency_ns", "edp_pj_ns", "power_mw", "throughput", "area_mm2", "gap_to_bound")


def bits(table: pa.Table) -> list[tuple[object, ...]]:
    return [
        tuple(np.float64(x).tobytes() if isinstance(x, float) else x for x in row.values())
        for row in table.to_pylist()
    ]


@pytest.mark.parametrize(("workloads", "gone"), [(LIGHT, NUMBERS), (HEAVY, ("area_mm2",))])
def test_points_are_what_they_were(tmp_path: Path, workloads: str, gone: tuple[str, ...]) -> None:
    job = worker.job_of(study(tmp_path, workloads=workloads))
    tables = worker.solve_lease(
        job, Lease(1, tuple(Ask(m, 0, "exhaustive") for m in range(150, 300, 7)))
    ).tables
    points, machines = (pa.Table.from_batches([tables[name]]) for name in ("points", "machines"))
    short = packed_columns.pack(points, machines)
    assert points.num_rows > 10
    assert all(short[name].null_count == len(short) for name in gone)
    assert short.schema.equals(points.schema, check_metadata=True)
    assert bits(packed_columns.unpack(short, machines)) == bits(points)
    assert packed_columns.unpack(points, machines) is points


@pytest.mark.parametrize("name", NUMBERS)
def test_what_differs_in_the_last_bit_stays(name: str) -> None:
    rng, n = np.random.default_rng(5), 500
    of_machines = {
        "clock_ghz": rng.choice([0.25, 0.3, 1.0], n),
        "area_mm2": rng.random(n),
        "bound_energy_pj": rng.random(n),
    }
    machines = pa.table({"machine": rng.permutation(n), **of_machines})
    values = {"energy_pj": 1 + rng.random(n), "latency_cycles": rng.integers(1, 1000, n).astype(float)}
    points = pa.table(
        {"machine": np.arange(n), **values, **dict.fromkeys(NUMBERS, pa.nulls(n, pa.float64()))}
    )
    whole = packed_columns.unpack(points, machines)
    right = whole[name].to_numpy()
    moved = rng.random(n) < 0.5
    other = whole.set_column(
        whole.column_names.index(name), name, pa.array(np.where(moved, np.nextafter(right, 9e99), right))
    )
    short = packed_columns.pack(other, machines)
    assert short[name].is_null().to_pylist() == (~moved).tolist()
    assert bits(packed_columns.unpack(short, machines)) == bits(other)


def test_machines_that_take_no_time_and_cost_nothing() -> None:
    zero = pa.table(
        {"machine": [0], "energy_pj": [0.0], "latency_cycles": [0.0], **{name: [1.5] for name in NUMBERS}}
    )
    machines = pa.table({"machine": [0], "clock_ghz": [1.0], "area_mm2": [0.0], "bound_energy_pj": [0.0]})
    assert bits(packed_columns.pack(zero, machines)) == bits(zero)
    none = zero.drop(["gap_to_bound"]).append_column("gap_to_bound", pa.array([0.0]))
    assert packed_columns.pack(none, machines)["gap_to_bound"].to_pylist() == [None]
