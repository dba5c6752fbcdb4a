"""Asks survive their file; stops name their key."""

import json
from dataclasses import asdict

from hypothesis import given
from hypothesis import strategies as st

from dse.study.pareto import Objective, Trial
from dse.study.plan import Generation, Stop, from_data, stop_reason

MACHINES = st.integers(0, 2**62)
ASKS = st.builds(
    Generation,
    generation=st.integers(0, 999),
    asks=st.lists(st.tuples(MACHINES, st.sampled_from(["tpe", "near", "fill"]))).map(tuple),
    pruned=st.lists(st.tuples(MACHINES, st.just("qmc"), st.text())).map(tuple),
    seen=st.lists(MACHINES).map(tuple),
    seed=st.integers(0, 2**32 - 1),
    sampler=st.lists(st.tuples(st.text(), st.one_of(st.text(), st.booleans(), st.integers(), st.none()))).map(
        tuple
    ),
)
AIMS = (Objective("energy_pj"), Objective("latency_ns"))


@given(ASKS)
def test_json_round_trip(value: Generation) -> None:
    raw = json.loads(json.dumps(asdict(value)))
    assert from_data(raw, 1 << 63) == value
    machines = [machine for machine, *_ in (*value.asks, *value.pruned)]
    assert from_data(raw, max(machines, default=0)) == (None if machines else value)
    assert from_data({**raw, "asks": [["x", "random"]]}, 1 << 63) is None
    assert from_data({}, 1) is None


def test_stop_by_points_and_hours_name_their_key() -> None:
    assert stop_reason(Stop(), 4, [], AIMS, 1e9) is None
    assert stop_reason(Stop(machines=5), 4, [], AIMS, 0) is None
    assert stop_reason(Stop(machines=4), 4, [], AIMS, 0) == "stop.machines = 4 reached"
    assert stop_reason(Stop(hours=2), 4, [], AIMS, 1.9) is None
    assert stop_reason(Stop(hours=2), 4, [], AIMS, 2) == "stop.hours = 2 reached"


def test_stop_by_gain_waits_for_four_generations_without_progress() -> None:
    def trials(generations: int, better_in: int) -> list[Trial]:
        rows = [
            Trial(16 * g + i, g, "ok", (1.0 + i, 20.0 - i), (0.0,))
            for g in range(generations)
            for i in range(16)
        ]
        return [*rows, Trial(9999, better_in, "ok", (0.5, 0.5), (0.0,))]

    stop = Stop(hypervolume_gain=1e-3)
    assert stop_reason(stop, 0, trials(4, 0), AIMS, 0) is None
    assert stop_reason(stop, 0, trials(8, 7), AIMS, 0) is None
    assert stop_reason(stop, 0, trials(8, 4), AIMS, 0) is None
    assert "stop.hypervolume_gain" in (stop_reason(stop, 0, trials(8, 3), AIMS, 0) or "")
    infeasible = [Trial(g, g, "infeasible", None, (1.0,)) for g in range(100)]
    assert stop_reason(stop, 0, infeasible, AIMS, 0) is None
