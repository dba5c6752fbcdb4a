"""No schedule of the notation costs less than a solver claims, of a few hundred; and a claim that is too wide is
seen (`make prove PART=claims`: 20,000 schedules)."""

from __future__ import annotations

from pathlib import Path

import pytest

from dse.searched import excluded
from tests.fuzzed import (
    Case,
    Claim,
    Schedule,
    Tally,
    by_hand,
    claims,
    fuzz,
    held,
    priced,
    random_case,
    reported,
    stated,
)


@pytest.mark.parametrize(("seed", "objective"), [(0, "energy"), (1, "energy"), (4, "latency"), (5, "edp")])
def test_no_schedule_costs_less_than_a_claim_allows(seed: int, objective: str, tmp_path: Path) -> None:
    tallies: dict[str, Tally] = {}
    assert fuzz(random_case(seed, tmp_path), seed, 60, objective, stated, tallies) == 60
    assert not [line for own in tallies.values() for line in own.failures]
    assert sum(own.covered for own in tallies.values()) > 20


def test_a_claim_that_knows_no_held_weights_is_seen(tmp_path: Path) -> None:
    """As it was said: all pipelines, weights loaded once among them."""
    case, schedule, solvers = reported("tiny_held", tmp_path)
    (claim,), cost = claims(case, "energy", solvers), priced(case, schedule)
    assert cost
    for leaves_out, fails in ((stated, False), (wider("hold of weights"), True)):
        held(claim, schedule, cost, case, tally := Tally(), leaves_out)
        assert bool(tally.failures) == fails
    assert stated(claim, schedule, case) == "hold of weights"


def wider(*features: str):  # type: ignore[no-untyped-def]
    """Claims that say nothing of some features, though nothing of these was searched."""

    def leaves_out(claim: Claim, s: Schedule, case: Case) -> str | None:
        space = by_hand(claim, case)
        return (
            next(
                (what for what in excluded(space, s, case.workload, case.arch) if what not in features), None
            )
            if space
            else "nothing is searched"
        )

    return leaves_out
