"""Fronts against the definition, hypervolume against counted cells, objectives against hand-made sums."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from dse.study import pareto
from dse.study.pareto import (
    Cost,
    Objective,
    Trial,
    front,
    gain,
    hypervolume,
    metrics,
    minimised,
    total,
    value,
)

SPECIAL = st.sampled_from([0.0, -0.0, 1.0, 2.0, 3.0, -1.0, np.inf, -np.inf, np.nan, 1e-300, 1e300])
COSTS = {"a": Cost(6.0, 10.0, 2.0, 1.0), "b": Cost(8.0, 40.0, 8.0, 8.0)}
WEIGHTS = {"a": 1.0, "b": 3.0}


def brute(values: np.ndarray) -> list[bool]:
    whole = ~np.isnan(values).any(axis=1)
    return [
        bool(whole[i])
        and not any(whole[j] and (b <= a).all() and (b < a).any() for j, b in enumerate(values))
        for i, a in enumerate(values)
    ]


@given(arrays(float, array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=12), elements=SPECIAL))
def test_front_is_the_definition(values: np.ndarray) -> None:
    assert front(values).tolist() == brute(values)


def test_a_front_of_many_rows_is_the_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that a pivot dominates are dropped first; its equals stay."""
    monkeypatch.setattr(pareto, "MANY", 1)
    rng = np.random.default_rng(3)
    for columns in (1, 2, 3, 4):
        for _ in range(50):
            values = rng.integers(1, 5, (30, columns)) * rng.choice([1.0, 1.0, np.inf, np.nan], (30, columns))
            assert front(values).tolist() == brute(values)


def test_front_of_nothing() -> None:
    assert front(np.empty((0, 3))).tolist() == []


@given(st.lists(st.tuples(*[st.integers(0, 6)] * 3), max_size=8))
def test_hypervolume_is_the_number_of_dominated_cells(points: list[tuple[int, int, int]]) -> None:
    cells = {
        (x, y, z)
        for x in range(5)
        for y in range(5)
        for z in range(5)
        if any(a <= x and b <= y and c <= z for a, b, c in points)
    }
    assert hypervolume(np.array(points, dtype=float).reshape(-1, 3), np.full(3, 5.0)) == pytest.approx(
        len(cells)
    )


@pytest.mark.parametrize(
    ("objective", "expected"),
    [
        (Objective("energy_pj", "sum"), 6 + 3 * 8),
        (Objective("energy_pj"), 30.0),
        (Objective("latency_ns", "max"), 8.0),
        (Objective("latency_ns", "min"), 2.0),
        (Objective("energy_pj", "geomean"), (6 * 8**3) ** 0.25),
        (Objective("latency_ns", "b"), 8.0),
        (Objective("edp_pj_ns"), 30.0 * 26.0),
        (Objective("edp_pj_ns", "sum"), 12.0 + 3 * 64.0),
        (Objective("power_mw"), 30 / 26),
        (Objective("throughput", "a", "max"), 1e9),
        (Objective("throughput", "", "max"), 1e9 / 25),
        (Objective("area_mm2"), 7.0),
        (Objective("latency_cycles"), 130.0),
    ],
)
def test_objectives_over_workloads(objective: Objective, expected: float) -> None:
    assert value(objective, COSTS, WEIGHTS, 7.0) == pytest.approx(expected)


def test_one_workload_has_one_value_whatever_the_aggregate() -> None:
    for metric, expected in metrics(COSTS["a"]).items():
        for over in ("", "sum", "max", "min", "geomean", "a"):
            assert value(Objective(metric, over), {"a": COSTS["a"]}, {"a": 1.0}, 0.0) == pytest.approx(
                expected
            )


def test_total_runs_each_workload_weight_times() -> None:
    assert total(list(COSTS.values()), list(WEIGHTS.values())) == Cost(30.0, 130.0, 26.0, 25.0)


def test_columns_of_objectives() -> None:
    assert [Objective("energy_pj").column, Objective("energy_pj", "resnet50:batch=1").column] == [
        "energy_pj",
        "energy_pj_resnet50_batch_1",
    ]


def test_infeasible_trials_are_on_no_front() -> None:
    trials = [
        Trial(0, 0, "ok", (1.0, 5.0), (0.0, -1.0)),
        Trial(1, 0, "ok", (9.0, 9.0), (0.0, 0.1)),
        Trial(2, 0, "infeasible", None, (0.3, 0.0)),
    ]
    assert minimised(trials, [Objective("energy_pj"), Objective("throughput", direction="max")]).tolist() == [
        [1.0, -5.0]
    ]


def test_gain_is_the_share_that_older_trials_lack() -> None:
    aims = [Objective("energy_pj"), Objective("latency_ns")]
    old = [Trial(m, 0, "ok", values, (0.0,)) for m, values in enumerate([(1.0, 100.0), (100.0, 1.0)])]
    new = [*old, Trial(2, 1, "ok", (10.0, 10.0), (0.0,))]
    assert gain(new, new, aims) == 0.0
    assert gain([], new, aims) == 1.0
    assert gain(old, new, aims) == pytest.approx(0.25 / (2 * 0.11 - 0.01 + 0.25), rel=0.5)
    assert gain(old, [*old, Trial(2, 1, "ok", (100.0, 100.0), (0.0,))], aims) == 0.0
    assert gain([], [], aims) == 1.0
