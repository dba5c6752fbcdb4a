"""The linear program of what stays on chip: against every schedule of single words, two levels against every
whole choice, periods against the whole loop.
"""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from dse.solve.gogeta.accesses import Access, AccessList, access_list, one_by_one, pipelined_phases
from dse.solve.gogeta.classify import classify
from dse.solve.gogeta.operations import SMALL_WORDS, graph
from dse.solve.gogeta.optimum import optimum, steady
from dse.solve.gogeta.residency import policy
from tests.amount import amount
from tests.residents import exhaustive, periods, small
from workloads import catalog, hpc
from workloads.solvers import SOLVERS

CLOSE = 1e-6


@pytest.mark.parametrize("first", range(0, 300, 50))
def test_no_schedule_of_single_words_is_cheaper(first: int) -> None:
    """Lists on which the policies differ from the optimum are among them."""
    better = 0
    for seed in range(first, first + 50):
        listed, room = small(seed)
        found = optimum(listed, room)
        assert abs(found.cost - exhaustive(listed, room)) < CLOSE, f"seed {seed}"
        assert abs(found.bound - found.cost) < CLOSE
        if not any(a.resident_words for a in listed.accesses):
            moved = min(
                policy(listed, room, *how).words() for how in ((False, False), (True, False), (True, True))
            )
            assert found.cost <= moved + CLOSE, f"seed {seed}"
            better += found.cost < moved - CLOSE
    assert better > 0


def test_what_stays_is_told() -> None:
    """Read A, make S, read A, read S with 3 words of room: S (2 words) stays whole, for a word of it that
    does not is written and read; a word of A stays.
    """
    listed = AccessList(
        (Access(("A",)), Access((), ("S",)), Access(("A",)), Access(("S",))), {"A": 2, "S": 2}, frozenset()
    )
    found = optimum(listed, 3)
    assert found.cost == 2 + 1
    assert found.saved_per_word == 1.0
    assert {(stay.tensor, stay.first, stay.last, stay.words) for stay in found.spans} == {
        ("A", 0, 2, 1.0),
        ("S", 1, 3, 2.0),
    }
    assert optimum(listed, 4).cost == 2
    assert optimum(listed, 0).cost == 2 + 2 + 2 + 2


def test_more_room_never_costs_more_and_its_price_is_the_slope() -> None:
    g = graph(hpc.cg(matrix="aft02", n=8, iterations=4))
    listed = access_list(g, pipelined_phases(g, classify(g), small_words=SMALL_WORDS))
    costs = [optimum(listed, words) for words in range(0, 600_000, 20_000)]
    for less, more in pairwise(costs):
        assert less.cost >= more.cost
        # convex: the slope only falls
        assert more.saved_per_word * 20_000 - 1 <= less.cost - more.cost <= less.saved_per_word * 20_000 + 1
    assert costs[-1].cost == listed.compulsory_words()
    assert costs[0].saved_per_word > 0 == costs[-1].saved_per_word


@pytest.mark.parametrize("seed", range(amount(60)))
def test_periods_cost_what_the_whole_loop_costs(seed: int) -> None:
    """And are proven without unrolling, all of these."""
    rng = Random(seed)
    lists = periods(rng, rng.randint(2, 4), rng.randint(3, 8), rng.randint(1, 9))
    room = rng.randint(0, 14)
    for count in (3, 5, 6, 9, 14):
        whole, found = optimum(lists(count), room), steady(lists, count, room)
        assert abs(found.cost - whole.cost) < CLOSE
        assert abs(found.bound - whole.cost) < CLOSE


@pytest.mark.parametrize(
    ("matrix", "n", "mib"),
    [("aft02", 1, 1), ("ecology1", 8, 4), ("barth5", 16, 1), ("nasa4704", 8, 1), ("ecology1", 1, 16)],
)
@pytest.mark.parametrize("solver", ["cg", "bicgstab"])
def test_a_thousand_iterations_of_a_solver_are_proven(solver: str, matrix: str, n: int, mib: int) -> None:
    w, room = (SOLVERS[solver](matrix=matrix, n=n, iterations=1000, form="periodic"), mib * 2**18)
    one = graph(w, 3)
    phases = pipelined_phases(one, classify(one), small_words=SMALL_WORDS)

    def lists(count: int) -> AccessList:
        return access_list(graph(w, count), phases)

    found = steady(lists, 1000, room)
    assert found.cost - found.bound <= 1e-9 * found.cost
    assert steady(lists, 12, room).cost == pytest.approx(optimum(lists(12), room).cost, rel=1e-12)
    unrolled = graph(SOLVERS[solver](matrix=matrix, n=n, iterations=12))
    whole = access_list(unrolled, pipelined_phases(unrolled, classify(unrolled), small_words=SMALL_WORDS))
    assert optimum(whole, room).cost == pytest.approx(optimum(lists(12), room).cost, rel=1e-12)


@pytest.mark.parametrize(
    "name",
    [
        "resnet18",
        "bert_tiny",
        "gcn",
        "graphsage",
        "mlp_m",
        "lstm:sequence=2",
        "gmres:matrix=barth5,m=4",
        "moe_block",
        "train:net=mlp_s,batch=8",
        "squeezenet",
    ],
)
def test_optimum_bounds_the_policies_of_any_workload(name: str) -> None:
    g = graph(catalog.load(name))
    for room in (2**12, 2**16, 2**20):
        for phases in (one_by_one(g), pipelined_phases(g, classify(g), room)):
            listed = access_list(g, phases)
            found = optimum(listed, room)
            assert listed.compulsory_words() <= found.cost + CLOSE <= listed.unbuffered_words() + 2 * CLOSE
            assert found.bound == pytest.approx(found.cost)
            assert all(
                found.cost <= policy(listed, room, *how).words() + CLOSE
                for how in ((False, False), (True, False), (True, True))
            )
