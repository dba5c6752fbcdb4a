"""Closed forms against the oracle on random nests: every count, of all instances and of the busiest, and every footprint."""

from __future__ import annotations

from collections.abc import Sequence
from math import isclose
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from dse.nest import faults
from dse.sim.counts import count, footprints
from tests.nests import KINDS, random_case
from tests.oracle import walk


def mismatch(seed: int, kinds: Sequence[str] = (*KINDS, "spmm", "spmv")) -> str:
    """Empty if closed form and oracle agree on the seed's nest, else what differs. Whole numbers exactly, expected ones to 1e-9."""
    e, arch, mapping = random_case(Random(seed), kinds)
    assert faults(mapping, e, arch) == []
    sparse = any(p.density != 1 for p in e.inputs)
    tally = walk(mapping, e, arch)
    rows = count(mapping, e, arch)
    total = {(r.level, r.tensor, r.action): r.elems for r in rows if r.elems}
    busiest = {(r.level, r.tensor, r.action): r.busiest_elems for r in rows if r.busiest_elems}
    held = {(f.level, f.tensor): f.elems for f in footprints(mapping, e)}
    for name, ours, walked in (("total", total, tally.total), ("busiest", busiest, tally.busiest), ("held", held, tally.held)):
        walked = {key: n for key, n in walked.items() if n}
        if ours.keys() != walked.keys() or any(not isclose(n, walked[key], rel_tol=1e-9 if sparse else 0) for key, n in ours.items()):
            return f"seed {seed} {name}: {sorted(set(ours.items()) ^ set(walked.items()))}\n{e}\n{arch.fanouts}\n{mapping}"
    return ""


@settings(max_examples=500, deadline=None)
@given(st.integers(0, 2**32))
def test_closed_form_equals_oracle(seed: int) -> None:
    assert mismatch(seed) == ""
