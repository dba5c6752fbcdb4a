"""No schedule of the notation costs less than a solver claims, of a few hundred; and a claim that is too wide
is seen (`make prove PART=claims`: 20,000 schedules).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dse.mapping.schedule import Schedule, parse_schedule
from dse.mapping.searched import excluding_features
from dse.solve.schedules import fused
from tests.amount import some
from tests.fuzzed import (
    Case,
    Claim,
    Covers,
    Refusal,
    Tally,
    answers,
    case_of,
    claims,
    fitted,
    fuzz,
    held,
    priced,
    random_case,
    refusals,
    reported,
    stated,
)


@pytest.mark.parametrize(
    ("seed", "objective"), some([(0, "energy"), (1, "energy"), (4, "latency"), (5, "edp")], 0, 2)
)
def test_no_schedule_costs_less_than_a_claim_allows(seed: int, objective: str, tmp_path: Path) -> None:
    tallies: dict[str, Tally] = {}
    assert fuzz(random_case(seed, tmp_path), seed, 50, objective, stated, tallies) == 50
    assert not [line for own in tallies.values() for line in own.failures]
    assert sum(own.covered for own in tallies.values()) > 20


def wider(*features: str) -> Covers:
    """Claims that say nothing of some features, though nothing of these was searched."""

    def leaves_out(claim: Claim, s: Schedule, case: Case) -> str | None:
        assert claim.found.space
        found = excluding_features(claim.found.space, s, case.workload, case.arch)
        return next((what for what in found if what not in features), None)

    return leaves_out


def failures(claim: Claim, s: Schedule, case: Case, leaves_out: Covers) -> list[str]:
    cost, tally = priced(case, s), Tally()
    assert cost
    held(claim, s, cost, case, tally, leaves_out)
    return tally.failures


def test_a_claim_that_knows_no_held_weights_is_seen(tmp_path: Path) -> None:
    """As it was said once: all pipelines, those whose weights are loaded once among them."""
    case, schedule, solvers = reported("tiny_held", tmp_path)
    (claim,) = claims(case, "energy", solvers)
    # as a search without held weights would answer
    claim = replace(claim, found=replace(claim.found, energy_pj=1.02 * claim.found.energy_pj))
    assert not failures(claim, schedule, case, stated)
    assert stated(claim, schedule, case) == "hold of weights"
    (line,) = failures(claim, schedule, case, wider("hold of weights"))
    assert line.startswith("pipelined, energy: 1")
    assert case.graph in line
    assert case.machine in line
    assert str(schedule) in line


SUMS = """name: sums
weights: [W, V]
extents: {m: 8, n: 4, k: 2, j: 2}
einsums:
- "T[m,n] += X[m,k] * W[k,n]"
- "Y[j] += T[m,n] * V[m,j]"
"""
BUFFER = """clock_mhz: 1000
word_bits: 8
overlap: free
nodes:
- {memory: l0, kind: custom, width_bits: 8, read_pj: 100, write_pj: 100, actions_per_cycle: 1, leak_mw: 0,
  area_mm2: 0}
- {memory: l1, kind: custom, capacity: 16 B, width_bits: 8, read_pj: 3, write_pj: 3, actions_per_cycle: inf,
  leak_mw: 0, area_mm2: 0}
- {compute: mac, kind: custom, mac_pj: 1, alu_pj: 1, merge_pj: 0, leak_mw: 0, area_mm2: 0}
"""
SHARED = """segment
  store L0 X W V Y
  store L1 Y W
  for m tile 1
    store L1 T
    einsum T
      store L1 X
      for n tile 1
        for k tile 1
          mac
    einsum Y
      store L1 V
      for n tile 1
        for j tile 1
          mac
"""


def test_a_claim_that_knows_no_loops_over_summed_ranks_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T fits nowhere whole; row by row it is made and summed up, for half of the energy of all that is
    searched for energy x delay with one shared loop.
    """
    monkeypatch.setattr(fused, "searchable", lambda *_: False)  # no schedule of several loops stands beside
    case, schedule = case_of(SUMS, BUFFER, tmp_path), parse_schedule(SHARED)
    (claim,) = claims(case, "edp", [{"schedule": "fused"}])
    assert not failures(claim, schedule, case, stated)
    assert list(excluding_features(claim.found.space, schedule, case.workload, case.arch)) == [
        "shared loops over summed ranks"
    ]  # type: ignore[arg-type]
    assert failures(claim, schedule, case, wider("shared loops over summed ranks"))
    tallies: dict[str, Tally] = {}
    fuzz(
        case,
        0,
        40,
        "edp",
        wider("shared loops over summed ranks"),
        tallies,
        [schedule],
        [{"schedule": "fused"}],
    )
    assert len(tallies["fused"].failures) > 5  # and what lies near to it


MEETING = """name: meeting
weights: [W, V]
extents: {m: 4, n: 3, k: 1, l: 2}
einsums:
- "T[m,n] += X[m,k] * W[k,n]"
- "Y[m,l] += T[m,n] * V[n,l]"
"""


KEPT = """retain L1 T 1
segment
  einsum T
    store L0 X W T
    for m tile 1
      for n tile 1
        mac
segment
  einsum Y
    store L0 T V Y
    for m tile 1
      for l tile 1
        store L1 Y
        for n tile 1
          mac"""


def test_an_answer_that_nothing_fits_is_held_against_what_does(tmp_path: Path) -> None:
    """20 bytes outside and 20 within: T kept between the two fits. As if `tiles` said that nothing did, of
    any schedule.
    """
    spec = BUFFER.replace("16 B", "20 B").replace(
        "memory: l0, kind: custom,", "memory: l0, kind: custom, capacity: 20 B,"
    )
    case, tallies = case_of(MEETING, spec, tmp_path), {"fused": Tally(), "unfused": Tally()}
    schedule = parse_schedule(KEPT)
    assert priced(case, schedule)
    (apart,) = refusals(case, "energy", list(answers(case, "energy", [{"schedule": "unfused"}])))
    assert apart.found.level == "L0"
    assert apart.space
    fitted(apart, schedule, case, tallies["unfused"])
    # it speaks of einsums in turn alone
    assert (tallies["unfused"].fitting, tallies["unfused"].failures) == (1, [])
    fitted(Refusal("fused", "streamed", apart.found, None), schedule, case, tallies["fused"])
    (line,) = tallies["fused"].failures
    assert line.startswith("fused: ")
    assert "this schedule fits" in line


SKIPS = """name: skips
weights: [W, V]
extents: {m: 3, n: 3, k: 4}
einsums:
- {text: "T[m,n] += X[m,k] * W[k,n]", density: {W: 0.5}, format: {W: csr}, index_bits: {W: 8},
  pointer_bits: {W: 8}}
- "Y[m,n] += X[m,k] * V[k,n]"
"""


@pytest.mark.parametrize("reuse", ["residency", "seq-overflow", "gogeta"])
def test_no_policy_keeps_what_nobody_brings_in(reuse: str, tmp_path: Path) -> None:
    """For the least cycles T reads X straight from main memory, where W is not zero: Y would find on the chip
    what is not there.
    """
    spec = BUFFER.replace("16 B", "32 B").replace("actions_per_cycle: inf", "actions_per_cycle: 2")
    case = case_of(SKIPS, spec, tmp_path)
    (claim,) = claims(case, "latency", [{"schedule": reuse}])
    assert "retain" not in str(claim.found.schedule)
