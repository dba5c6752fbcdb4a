"""Loop orders: the 36 of conjugate gradients, every assignment tried by brute force on small graphs, swizzles
by walking tensors.
"""

from __future__ import annotations

from itertools import permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dse.explain.orders import loop_order_tables
from dse.solve.gogeta.classify import PIPELINED, Edge, barrier, classify
from dse.solve.gogeta.loop_orders import TooManyOrders, best_orders, fewest_swizzles, orders
from dse.solve.gogeta.operations import Graph, graph
from dse.solve.gogeta.traffic import traffic_of
from hw import machine
from tests.amount import amount
from workloads import catalog, hpc, transformer
from workloads.einsum import Einsum, Projection, einsum
from workloads.graph import Workload

# GOGETA, figure 8: 1, 2a (K N' N), 2b (N' J N), 3, 4 (P and S stationary), 5, 6, 7
PICK = ("mkn", "mjn", "jin", "mjn", "mjn", "mjn", "jin", "mjn")


@pytest.mark.parametrize(("matrix", "n"), [("aft02", 8), ("ecology1", 16), ("barth5", 2), ("nasa4704", 16)])
def test_conjugate_gradients_have_36_orders_without_a_swizzle(matrix: str, n: int) -> None:
    g = graph(hpc.cg(matrix=matrix, n=n, iterations=3, form="periodic"))
    lost, penalty, every = fewest_swizzles(g, classify(g))
    found = list(every)
    assert (lost, penalty, len(found), len(set(found))) == (0, 0, 36, 36)
    assert {found[i][0] for i in range(36)} == {("m", "k", "n")}  # line 1
    # lines 3 and 4
    assert all(order[3] == order[4] and order[3] in (("m", "j", "n"), ("m", "n", "j")) for order in found)
    assert tuple(map(tuple, PICK)) in found


def walked(p: Projection, e: Einsum, order: tuple[str, ...]) -> list[tuple[int, ...]]:
    """Elements of a tensor in the order of a loop nest's first visits."""
    sizes = e.sizes()
    seen: dict[tuple[int, ...], None] = {}
    for point in product(*(range(sizes[rank]) for rank in order)):
        at = dict(zip(order, point, strict=True))
        seen.setdefault(tuple(sum(c * at[rank] for rank, c in d.terms) for d in p.dims))
    return list(seen)


def pipes(g: Graph, edge: Edge, first: tuple[str, ...], then: tuple[str, ...]) -> tuple[bool, bool]:
    """(whether an edge pipelines, whether it is swizzled), by walking the tensor element by element."""
    source, target = g.operations[edge.source], g.operations[edge.target]
    swizzled = any(walked(p, target, then) != walked(source.output, source, first) for p in edge.reads)
    leaves = first[0] in source.output.ranks() - barrier(source)
    return leaves and not swizzled and all(then[0] in p.ranks() for p in edge.reads), swizzled


def brute(g: Graph, penalty: int) -> set[tuple[tuple[str, ...], ...]]:
    """Assignments of a graph without loop or multicast, all tried."""
    edges, every = classify(g), [list(permutations(e.sizes())) for e in g.operations]
    told = [{pair: pipes(g, e, *pair) for pair in product(every[e.source], every[e.target])} for e in edges]
    hard = [
        e.pattern in PIPELINED and any(good for good, _ in facts.values())
        for e, facts in zip(edges, told, strict=True)
    ]
    found = set()
    for chosen in product(*every):
        facts = [known[chosen[e.source], chosen[e.target]] for e, known in zip(edges, told, strict=True)]
        if (
            all(good or not must for (good, _), must in zip(facts, hard, strict=True))
            and sum(swizzled for (_, swizzled), must in zip(facts, hard, strict=True) if not must) <= penalty
        ):
            found.add(chosen)
    return found


def plain(*texts: str, **extents: int) -> Graph:
    named = [einsum(text, extents) for text in texts]
    return Graph(tuple(named), frozenset({named[-1].output.tensor}))


@settings(max_examples=amount(25), deadline=None)
@given(st.data())
def test_all_assignments_of_small_chains(data: st.DataObject) -> None:
    """Three products in a row, each reading the one before as it is or transposed; ranks of 2 and 3, so that
    balanced is small, and small pipelines too.
    """

    def read(t: str) -> str:
        return data.draw(st.sampled_from((f"{t}[a,b]", f"{t}[b,a]", f"{t}[a,c]", f"{t}[c,a]")))

    texts = [
        "T[a,b] += A[a,c] * B[c,b]",
        f"U[a,b] += {read('T')} * V[a,b,c]",
        f"W[a,b] += {read('U')} * V[a,b,c]",
    ]
    g, penalty = plain(*texts, a=3, b=3, c=3), data.draw(st.integers(0, 2))
    assert not any(e.multicast for e in classify(g))
    found = list(orders(g, classify(g), penalty))
    assert len(found) == len(set(found))
    assert set(found) == brute(g, penalty)
    best = best_orders(g, classify(g))
    facts = {e: pipes(g, e, best.orders[e.source], best.orders[e.target]) for e in classify(g)}
    assert all(facts[e][1] for e in best.swizzled)
    assert not any(facts[e][0] for e in best.given_up)
    assert {e for e, (_, swizzled) in facts.items() if swizzled} == set(best.swizzled)
    if not best.given_up:
        assert best.orders in brute(g, len(best.swizzled))
        assert not best.swizzled or not brute(g, len(best.swizzled) - 1)


def test_a_transpose_is_no_swizzle_where_it_is_read_as_it_was_written() -> None:
    g = plain("P[m,n] += A[m,k] * B[k,n]", "D[i,j] += P[q,i] * S[q,j]", m=64, n=64, k=64, q=64, i=64, j=64)
    for first, then in orders(g, classify(g), 0):
        assert (first.index("m") < first.index("n")) == (then.index("q") < then.index("i"))
        assert first[0] != "k"
        assert then[0] != "j"


def test_a_row_behind_a_softmax_keeps_its_order() -> None:
    g = graph(
        Workload(
            "rows",
            (
                *transformer.softmax(512, 64),
                einsum("O[b,d] += Y[b,n] * V[n,d]", {"b": 512, "n": 64, "d": 64}, "O"),
            ),
        )
    )
    lost, penalty, every = fewest_swizzles(g, classify(g))
    assert (lost, penalty) == (0, 0)
    assert {orders[0][0] for orders in every} == {"b"}


def test_a_tensor_read_both_ways_is_swizzled_and_priced() -> None:
    texts = "T[a,b] += A[a,c] * B[c,b]", "U[a,b] += T[a,c] * T_again[c,a]"
    sizes = {"a": 64, "b": 64, "c": 64}
    w = Workload("both ways", tuple(einsum(text, sizes, text[0]) for text in texts))
    arch = machine.load_arch("gogeta_clusters")
    facts, [chosen, edges] = loop_order_tables(arch, w, traffic_of(w, 10_000, arch.word_bits))
    assert facts["swizzles"] == len(edges.rows) == 1
    [(tensor, source, target, what, copied_bytes, copy_pj)] = edges.rows
    assert (tensor, source, target, copied_bytes) == ("T", "T", "U", 2 * 64 * 64 * 4)
    assert what.startswith("swizzled")
    outer = arch.levels[0]
    assert copy_pj == pytest.approx(64 * 64 * 32 / outer.width_bits * (outer.read_pj + outer.write_pj))
    assert [name for name, _ in chosen.rows] == ["T", "U"]


def test_a_search_that_takes_too_long_ends() -> None:
    g = graph(hpc.cg(n=8, iterations=3, form="periodic"))
    assert best_orders(g, classify(g)).assignments == 36
    with pytest.raises(TooManyOrders, match=r"^loop orders of 8 operations: [^\n]+$"):
        best_orders(g, classify(g), 5)
    found = best_orders(g, classify(g), 600)  # enough for the first one, not for all
    assert (found.is_all, found.orders) == (False, best_orders(g, classify(g)).orders)
    assert best_orders(g, classify(g)).is_all


def test_vectors_pipeline_every_other_product() -> None:
    """A product that reads a vector step by step gives its own at the end: of three edges in a row the middle
    one gives up.
    """
    g = plain(
        "a[p] += x[o] * A[o,p]",
        "b[q] += a[p] * B[p,q]",
        "c[r] += b[q] * C[q,r]",
        "d[s] += c[r] * D[r,s]",
        o=64,
        p=64,
        q=64,
        r=64,
        s=64,
    )
    lost, penalty, every = fewest_swizzles(g, classify(g))
    assert (lost, penalty) == (1, 0)
    assert [e.tensor for e in best_orders(g, classify(g)).given_up] == ["b"]
    assert [["".join(order) for order in chosen] for chosen in every] == [["po", "pq", "rq", "rs"]]


def test_orders_of_a_network_are_found() -> None:
    """Ways that lead nowhere are not tried again: of 14 operations with up to seven loops each."""
    g = graph(catalog.load("alexnet:image=67,classes=10"), 3)
    assert fewest_swizzles(g, classify(g), iter(range(400_000)))[:2] == (2, 0)
