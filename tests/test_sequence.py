"""Orders of phases: valid, never worse, the best of all where all are tried; conjugate gradients reach the
optimum.
"""

from __future__ import annotations

from itertools import permutations, product

import pytest

from dse.solve.gogeta.accesses import Phase, pipelined_phases
from dse.solve.gogeta.classify import classify
from dse.solve.gogeta.operations import Graph, graph
from dse.solve.gogeta.sequence import search_order
from dse.solve.gogeta.traffic import CountingRule, traffic_of
from tests.amount import some
from workloads import catalog, hpc
from workloads.einsum import einsum


def flat(order: list[Phase]) -> list[int]:
    return [v for phase in order for stage in phase.stages for v in stage]


def valid(g: Graph, order: list[Phase]) -> bool:
    place, makers = {v: i for i, v in enumerate(flat(order))}, g.makers()
    return sorted(place) == list(range(len(g.operations))) and all(
        place[makers[p.tensor]] < place[v]
        for v in place
        for p in g.operations[v].inputs
        if p.tensor in makers
    )


def diamond() -> Graph:
    """One source, four independent operations, one that reads them all."""
    texts = [
        "S[m] = f(X[m])",
        *(f"T{i}[m] = f(S[m])" for i in range(4)),
        "Y[m] = g(T0[m], T1[m], T2[m], T3[m])",
    ]
    return Graph(tuple(einsum(text, {"m": 8}) for text in texts), frozenset({"Y"}))


@pytest.mark.parametrize("wanted", list(permutations((1, 2, 3, 4)))[::5])
@pytest.mark.parametrize("tried", [200, 20])
def test_the_best_order_is_found(wanted: tuple[int, ...], tried: int) -> None:
    """All 24 orders are tried; with fewer tries phases move one by one. The judge counts pairs out of the
    wanted order.
    """
    g = diamond()

    def judge(order: list[Phase]) -> float:
        assert valid(g, order)
        place = {v: i for i, v in enumerate(flat(order))}
        return sum(place[a] > place[b] for i, a in enumerate(wanted) for b in wanted[i + 1 :])

    found = search_order(g, [Phase(((v,),)) for v in range(6)], judge, -1.0, tried)
    assert valid(g, found)
    assert judge(found) == 0 if tried == 200 else judge(found) <= judge([Phase(((v,),)) for v in range(6)])


def test_operations_side_by_side_are_taken_apart() -> None:
    g = graph(hpc.cg(matrix="barth5", n=16, iterations=3, form="periodic"))
    seen = set()

    def judge(order: list[Phase]) -> float:
        assert valid(graph(hpc.cg(matrix="barth5", n=16, iterations=1, form="periodic")), order)
        seen.add(tuple(v for v in flat(order) if v in (3, 4, 5)))
        return 0.0

    search_order(
        graph(hpc.cg(matrix="barth5", n=16, iterations=1, form="periodic")),
        pipelined_phases(g, classify(g)),
        judge,
        -1.0,
    )
    assert seen == {(3, 4, 5), (4, 5, 3)}


@pytest.mark.parametrize(
    ("matrix", "n", "mib"),
    some(
        [
            at
            for at in product(hpc.MATRICES, (1, 8, 16), (1, 4))
            if at[0] in ("barth5", "ecology1") or at[2] == 1
        ],
        *range(0, 18, 2),
    ),
)
def test_conjugate_gradients_reach_the_optimum(matrix: str, n: int, mib: int) -> None:
    """Counted as published. The policy, as GOGETA orders lines 3 to 5 up to 11 % above it, attains it after
    the search of orders: tests/prove/reuse.py has all 36 points.
    """
    found = traffic_of(
        hpc.cg(matrix=matrix, n=n, form="periodic"), mib * 2**18, count=CountingRule(as_published=True)
    )
    assert found.best_policy.words() == pytest.approx(found.optimal.cost, rel=1e-9)
    assert found.optimal.bound == pytest.approx(found.optimal.cost, rel=1e-9)
    assert found.ideal - 1 <= found.optimal.cost <= found.bound_gogeta.cost + 1 <= found.gogeta.words() + 2


@pytest.mark.parametrize(
    "name",
    some(
        [
            "resnet18",
            "bert_tiny",
            "gcn",
            "bicgstab:matrix=barth5,n=8,form=periodic",
            "squeezenet",
            "gmres:matrix=aft02,m=5",
        ],
        0,
        2,
        3,
    ),
)
def test_the_optimum_is_below_every_configuration(name: str) -> None:
    for room in (2**14, 2**18, 2**20):
        found = traffic_of(catalog.load(name), room)
        assert found.ideal - 1 <= found.optimal.cost
        assert found.optimal.bound == pytest.approx(found.optimal.cost, rel=1e-9)
        assert (
            found.optimal.cost
            <= min(
                found.gogeta.words(), found.seq_overflow.words(), found.best_policy.words(), found.seq_flex
            )
            + 1
        )
