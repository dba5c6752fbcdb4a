"""Closed forms against the oracle on random nests: every count, of all instances and of the busiest, and every footprint."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from dse.nest import faults
from dse.sim.counts import count, footprints
from tests.nests import random_case
from tests.oracle import walk


def mismatch(seed: int) -> str:
    """Empty if closed form and oracle agree on the seed's nest, else what differs."""
    e, arch, mapping = random_case(Random(seed))
    assert faults(mapping, e, arch) == []
    tally = walk(mapping, e, arch)
    rows = count(mapping, e, arch)
    total = {(r.level, r.tensor, r.action): r.elems for r in rows if r.elems}
    busiest = {(r.level, r.tensor, r.action): r.busiest_elems for r in rows if r.busiest_elems}
    held = {(f.level, f.tensor): f.elems for f in footprints(mapping, e)}
    for name, ours, walked in (("total", total, tally.total), ("busiest", busiest, tally.busiest), ("held", held, tally.held)):
        walked = {key: n for key, n in walked.items() if n}
        if ours != walked:
            return f"seed {seed} {name}: {sorted(set(ours.items()) ^ set(walked.items()))}\n{e}\n{arch.fanouts}\n{mapping}"
    return ""


@settings(max_examples=500, deadline=None)
@given(st.integers(0, 2**32))
def test_closed_form_equals_oracle(seed: int) -> None:
    assert mismatch(seed) == ""
