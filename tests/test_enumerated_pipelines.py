"""The listing of all pipelines of a small workload: what it cuts by bound, or leaves out for another nest, is
no better than what it finds.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dse.sim.einsum.evaluate import EinsumCost, Solution, objective_value
from dse.sim.schedule.placed import Placed
from dse.solve.schedules import segments
from tests import enumerated_pipelines as listing
from tests.enumerated_pipelines import enumerated
from tests.piped import random_case
from workloads.einsum import einsum
from workloads.graph import Workload

PAIR = Workload(
    "pair",
    (
        einsum("A[m,n] += X[m,k] * W[k,n]", {"m": 2, "k": 2, "n": 2}, "a"),
        einsum("B[m,n] += A[m,k] * V[k,n]", {"m": 2, "k": 2, "n": 1}, "b"),
    ),
    frozenset({"W", "V"}),
)
FEW = Workload(
    "few",
    (
        einsum("A[m,n] += X[m,k] * W[k,n]", {"m": 2, "k": 2, "n": 1}, "a"),
        einsum("B[m,n] += A[m,k] * V[k,n]", {"m": 2, "k": 1, "n": 2}, "b"),
    ),
    frozenset({"W", "V"}),
)


@pytest.mark.parametrize("objective", ["energy", "latency"])
def test_what_is_cut_is_no_better(objective: segments.Objective, monkeypatch: pytest.MonkeyPatch) -> None:
    """On two nodes that leak: with nothing cut by bound, and with no nest left out for another one."""
    arch, _, _ = random_case(4)
    arch = replace(
        arch,
        levels=(replace(arch.levels[0], leak_mw=100.0), *arch.levels[1:]),
        fanouts=(replace(arch.fanouts[0], dims=(("NY", 1), ("NX", 2)), hop_pj=0.5),),
    )
    found = enumerated(arch, FEW, objective)
    with monkeypatch.context() as patch:
        patch.setattr("tests.enumerated_pipelines.limit", lambda *_: np.inf)
        uncut = enumerated(arch, FEW, objective)
    number = iter(range(1 << 30))
    monkeypatch.setattr(
        "tests.enumerated_pipelines.moved_of", lambda *_: np.array([i := next(number), -i], np.float64)
    )
    for other in (uncut, enumerated(arch, FEW, objective)):
        assert isinstance(found, Solution)
        assert isinstance(other, Solution)
        assert objective_value(objective, found.energy_pj, found.latency_cycles) <= objective_value(
            objective, other.energy_pj, other.latency_cycles
        ) * (1 + 1e-9)


def test_energies_of_stages_add_up_to_that_of_their_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever they lie; links are dear."""
    arch, _, _ = random_case(4)
    arch = replace(arch, fanouts=(replace(arch.fanouts[0], hop_pj=8.0),))
    monkeypatch.setattr("tests.enumerated_pipelines.limit", lambda *_: np.inf)
    sums: list[float] = []
    price = listing._Search.price

    def compared_(search: listing._Search, at: list[listing.At], nests: list[listing.Priced]) -> None:
        before, search.best = search.best, None
        price(search, at, nests)
        if search.best:
            sums.append(search.best.energy - sum(one.energy for one in nests))
        search.best = before

    monkeypatch.setattr(listing._Search, "price", compared_)
    enumerated(arch, PAIR, "energy")
    assert len(sums) > 20
    assert max(map(abs, sums)) < 1e-6


@pytest.mark.parametrize("seed", [0, 4, 7])
def test_nests_that_may_be_best_somewhere_are_left(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    left: set[int] = set()
    found = listing.segment

    def asked(
        known: listing.Known, r: segments.Range, best: segments.Option | None
    ) -> segments.Option | None:
        answer = found(known, r, best)
        left.update(len(base) for base in known.bases.values())
        return answer

    def moved(at: Placed, c: EinsumCost) -> np.ndarray:
        seen.add(tuple(count(at, c).tolist()))
        return count(at, c)

    count, seen = listing.moved_of, set[tuple[float, ...]]()
    monkeypatch.setattr("tests.enumerated_pipelines.segment", asked)
    monkeypatch.setattr("tests.enumerated_pipelines.moved_of", moved)
    arch, workload, weights = random_case(seed)
    enumerated(arch, workload, "energy", weights)
    assert max(left) > 1
    assert len(seen) > 1
