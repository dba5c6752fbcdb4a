"""Layouts of graphs: against all choices of labels, priced one by one; the order of ALT's ablations; what a
conversion is worth.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache, partial
from itertools import product
from math import isclose
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import pytest
from yaml import safe_dump, safe_load

from dse.explain import values as explain
from dse.frontend import runs
from dse.frontend.cli import main
from dse.layout.address import row_major
from dse.layout.text import show
from dse.mapper.exact.layout_aware import PricedMappings, priced_mappings
from dse.mapping.constraints import FREE
from dse.mapping.nest import Infeasible, TensorLayout
from dse.mapping.schedule import Branch, Schedule, Segment, load, rename
from dse.run import cache as kept_answers
from dse.sim.einsum.evaluate import EinsumCost, Problem, Solution, einsum_cost, objective_value
from dse.sim.levels.transfer import dim_names
from dse.sim.schedule.graph import evaluate
from dse.solve import solve as stack
from dse.solve.elimination import join
from dse.solve.layouts import layouts as graphs
from dse.solve.layouts.convert import Conversions
from dse.solve.layouts.layouts import LAYOUT_POLICIES, assign_layouts, interface_tensors
from dse.solve.layouts.sampled import sampled_mapping
from dse.study import study
from hw import machine
from hw.arch import Arch
from tests.amount import some
from workloads.einsum import Einsum, canonical_key, einsum
from workloads.graph import Workload, unique

EDGE = machine.arch(machine.load("burst_edge"))
SMALL = replace(
    EDGE,
    levels=(
        replace(EDGE.levels[0], access=replace(EDGE.levels[0].access, line_bits=256)),  # type: ignore[type-var]
        # no matrix fits on chip whole
        replace(EDGE.levels[1], capacity_bits=8 * 1024),
        *EDGE.levels[2:],
    ),
)
OBJECTIVES = ("energy", "latency", "edp")


def network(rng: Random) -> Workload:
    """Products, sums and copies of small matrices, some read twice, some readers repeated, so that copies may
    pay.
    """
    n = {"m": rng.choice([32, 64]), "n": rng.choice([32, 96])}
    found = [einsum("T0[m,n] += A[m,k] * W[k,n]", {**n, "k": 12}, "e0")]
    for i in range(1, rng.randint(2, 3)):
        before = f"T{rng.randrange(i)}"
        kind = rng.choice(["mac", "down", "sum", "turn"])
        own = dict(zip("mn", (n["m"], n["n"]), strict=True))
        if kind == "mac":
            found.append(einsum(f"T{i}[m,n] += {before}[m,k] * W{i}[k,n]", {**own, "k": own["n"]}, f"e{i}"))
        elif kind == "down":
            found.append(einsum(f"T{i}[m,n] += {before}[k,n] * W{i}[m,k]", {**own, "k": own["m"]}, f"e{i}"))
        elif kind == "sum":
            found.append(einsum(f"T{i}[m,n] = {before}[m,n] + T{rng.randrange(i)}_again[m,n]", own, f"e{i}"))
        else:
            found.append(einsum(f"T{i}[m,n] = {before}[m,n]", own, f"e{i}"))
    if rng.random() < 0.5:  # a reader that sees the first one in another shape, row-major
        found.append(einsum("U[u] += T0[v] * V[u,v]", {"u": 4, "v": n["m"] * n["n"]}, "flat"))
    return Workload(
        "random",
        tuple(found),
        repeats=tuple(rng.choice([1, 500]) if e.name not in ("e0", "flat") else 1 for e in found),
    )


def solve(arch: Arch, net: Workload, objective: str) -> dict[str, PricedMappings]:
    apart = interface_tensors(net)
    found = {
        group.key: priced_mappings(
            Problem(arch, group.einsum, objective), "perfect", FREE, 0.01, apart[group.key]
        )
        for group in unique(net)
    }
    return {key: one for key, one in found.items() if not isinstance(one, Infeasible)}


def enumerated(
    arch: Arch,
    net: Workload,
    objective: str,
    solved: dict[str, PricedMappings],
    share: float = 1.0,
    policy: str = "alt",
) -> float:
    """The least over all labels of all nodes and all mappings that a policy (alt, wp) has, all by the
    evaluator. share: of what a copy costs.
    """
    g = graphs.Layouts(arch, net, objective, solved)  # type: ignore[arg-type]
    nodes = {use.node: one for one in g.interface for use in (one.maker, *one.readers)}
    cost: dict[tuple[object, ...], list[tuple[float, float]]] = {}

    def of(i: int, e: Einsum, chosen: dict[str, int]) -> list[tuple[float, float]]:
        at = tuple(
            chosen[g.nodes[i, x][1].node] if (i, x) in g.nodes else -1 for x in range(len(e.tensors()))
        )
        if (i, at) not in cost:
            cost[i, at] = []
            for n, one in enumerate(solved[canonical_key(e)].mappings):
                first = next(f for f in net.einsums if canonical_key(f) == canonical_key(e))
                laid = {place: show(layout) for place, layout in g.free_layouts[canonical_key(e)][n].items()}
                for x, p in enumerate(first.tensors()):
                    if at[x] >= 0 and not g.nodes[i, x][1].is_view:
                        layout = g.nodes[i, x][0].labels[at[x]]
                        laid["DRAM", p.tensor] = show(replace(layout, names=dim_names(p)))
                found = einsum_cost(
                    Problem(arch, first, objective),
                    replace(
                        one.mapping, layouts=tuple(TensorLayout(*place, text) for place, text in laid.items())
                    ),
                )
                assert isinstance(found, EinsumCost)
                cost[i, at].append((found.energy_pj, found.latency_cycles))
        return cost[i, at]

    copied: dict[tuple[graphs.Layout, graphs.Layout], tuple[float, float]] = {}

    def copy(a: graphs.Layout, b: graphs.Layout) -> tuple[float, float]:
        if (a, b) not in copied:
            e = graphs.copy_einsum(a.shape, None)
            laid = tuple(
                TensorLayout("DRAM", p.tensor, show(replace(own, names=dim_names(p))))
                for p, own in zip(e.tensors(), (a, b), strict=True)
            )
            nest = g.conversions.cost(None, a, b).mapping
            found = einsum_cost(Problem(arch, e, objective), replace(nest, layouts=(*laid, *nest.layouts)))
            assert isinstance(found, EinsumCost)
            copied[a, b] = share * found.energy_pj, share * found.latency_cycles
        return copied[a, b]

    best = float("inf")
    views = {use.node for one in g.interface for use in one.readers if use.is_view}
    for at in product(*((0,) if node in views else range(len(one.labels)) for node, one in nodes.items())):
        chosen = dict(zip(nodes, at, strict=True))
        passes = [(one, *passed(net, one, chosen, policy)) for one in g.interface]
        if not all(allowed for _, allowed, _ in passes):
            continue
        copies = [
            (*copy(one.labels[chosen[one.maker.node]], one.labels[to]), g.occurrences[one.maker.einsum])
            for one, _, wanted in passes
            for to in wanted
        ]
        for mapped in product(*(of(i, e, chosen) for i, e in enumerate(net.einsums))):
            rows = [*((*own, n) for own, n in zip(mapped, g.occurrences, strict=True)), *copies]
            best = min(
                best,
                objective_value(
                    objective,
                    sum(n * energy for energy, _, n in rows),
                    sum(n * cycles for _, cycles, n in rows),
                ),
            )
    return best


def passed(
    net: Workload, one: graphs.InterfaceTensor, chosen: dict[str, int], policy: str
) -> tuple[bool, set[int]]:
    """(whether a policy has these labels, labels that the tensor is written in once more). Under wp the
    functions fused into a product keep the tensor's own layout, else one pass over the tensor writes what
    readers want; no other copies.
    """
    written, wanted = chosen[one.maker.node], {chosen[use.node] for use in one.readers}
    if policy == "alt":
        return True, wanted - {written}
    products = [net.einsums[use.einsum].kind == "mac" for use in (one.maker, *one.readers)]
    own = one.labels.index(own_layout(net, one))
    if any(use.is_view for use in one.readers):
        return {written} | wanted == {0}, set()
    if not products[0] or one.tensor not in dict(net.stored_as).values():
        return wanted == {written} and (any(products) or written == own), set()
    has_one_result = len(wanted) == 1 and (any(products[1:]) or wanted == {own})
    return has_one_result, set() if {written} | wanted == {own} else wanted


def own_layout(net: Workload, one: graphs.InterfaceTensor) -> graphs.Layout:
    """Rows innermost where a product's weights have the rows (`down`, and what is as large), else columns."""
    text = net.einsums[one.maker.einsum].name
    e = next(e for e in net.einsums if e.name == text)
    while e.kind != "mac":
        before = e.inputs[0].tensor
        e = next(own for own in net.einsums if own.output.tensor == before)
    weights = e.inputs[1].ranks()
    names = one.labels[0].names
    return graphs.parse(" ".join(names if "m" not in weights else names[::-1]), names, one.labels[0].shape)


def with_epilogues(net: Workload) -> Workload:
    """The network in which every product has an element-wise function fused into it."""
    made = (e.output.tensor for e in net.einsums if e.kind == "mac")
    return replace(net, stored_as=tuple((f"{name}_relu", name) for name in made))


def cheaper(share: float) -> Any:
    """Copies at a share of their cost, so that many pay."""
    cost, floor = Conversions.cost, Conversions.lower_bound

    def scaled(self: Conversions, *asked: Any) -> Any:
        found = cost(self, *asked)
        return replace(found, energy=share * found.energy, cycles=share * found.cycles)

    return patch.multiple(
        Conversions,
        cost=scaled,
        lower_bound=lambda self, *asked: tuple(share * n for n in floor(self, *asked)),
    )


@pytest.mark.parametrize("seed", some(range(4), 1))
def test_cheap_copies_are_made_where_they_pay(seed: int) -> None:
    rng = Random(seed)
    net, objective = network(rng), rng.choice(["energy", "latency"])
    with patch.object(graphs, "MAX_LABELS", 3), cheaper(1e-3):
        solved = solve(SMALL, net, objective)
        found = assign_layouts(SMALL, net, objective, "alt", solved)  # type: ignore[arg-type]
        assert not isinstance(found, Infeasible)
        assert isclose(found.value, enumerated(SMALL, net, objective, solved, 1e-3), rel_tol=1e-9)
        assert all(one.saved >= -1e-9 * found.value for one in found.conversions)


def test_choices_say_how_far_copies_may_lie_above_the_least() -> None:
    """A choice is exact over the candidate layouts only where its copies cannot cost less."""
    said = set[bool]()
    for seed in range(8):
        net = network(Random(seed))
        found = assign_layouts(SMALL, net, "energy", "ind", solve(SMALL, net, "energy"))
        assert not isinstance(found, Infeasible)
        certificate, exact = (
            found.solution.certificate,
            "exact over the candidate layouts" in found.solution.certificate,
        )
        assert bool(found.conversions) == ("above the optimum of its space" in certificate)
        one = Conversions(SMALL, "energy")
        assert exact == all(
            copy.energy_pj
            <= one.lower_bound(
                None, (net.einsums[0].output.dims[0].size, net.einsums[0].output.dims[1].size)
            )[0]
            * (1 + 1e-6)
            for copy in found.conversions
        )
        said.add(exact)
        if len(said) == 2:
            return
    raise AssertionError(said)


@pytest.mark.parametrize("seed", some(range(6), 1))
def test_the_graph_engine_finds_the_least_of_all_choices(seed: int) -> None:
    rng = Random(seed)
    net, objective = network(rng), rng.choice(OBJECTIVES)
    with patch.object(graphs, "MAX_LABELS", 3):
        solved = solve(SMALL, net, objective)
        found = {
            pick: assign_layouts(SMALL, net, objective, pick, solved)
            for pick in LAYOUT_POLICIES.keys() - {"row_major", "sampled"}
        }  # type: ignore[arg-type]
        values = {pick: one.value for pick, one in found.items() if not isinstance(one, Infeasible)}
        assert isclose(values["alt"], enumerated(SMALL, net, objective, solved), rel_tol=1e-9)
    for pick, one in found.items():
        assert not isinstance(one, Infeasible)
        assert isclose(
            objective_value(objective, one.solution.energy_pj, one.solution.latency_cycles),
            one.value,
            rel_tol=1e-9,
        ), pick
        assert one.lower_bound <= one.value * (1 + 1e-9)
        assert all(told.saved >= -1e-9 * one.value for told in one.conversions if pick == "alt")
    assert all(values["alt"] <= other * (1 + 1e-9) for other in values.values())
    assert values["wp"] <= values["ol"] * (1 + 1e-9)
    assert values["bf"] <= min(values["ol"], values["nohw"]) * (1 + 1e-9)
    assert values["neocpu"] <= values["ansor"] * (1 + 1e-9)


@pytest.mark.parametrize("seed", some(range(-1, 12), 0, 6))
def test_a_function_in_another_layout_than_its_product_takes_a_pass(seed: int) -> None:
    """Cheap copies, so that passes are chosen, with equal layouts on both sides among them (seed 5); and a
    tensor that two products want in two layouts, of which the pass writes one (seed -1).
    """
    rng = Random(seed)
    net, objective = with_epilogues(network(rng)), rng.choice(OBJECTIVES)
    if seed < 0:
        sizes, objective = {"m": 128, "n": 128, "q": 8}, "latency"
        net = with_epilogues(
            Workload(
                "two ways",
                (
                    einsum("T[m,n] += A[m,k] * B[k,n]", {"m": 128, "n": 128, "k": 4}, "make"),
                    einsum("U[n,q] += T[m,n] * V[m,q]", sizes, "columns"),
                    einsum("X[m,q] += T[m,n] * Y[n,q]", sizes, "rows"),
                ),
                repeats=(1, 500, 500),
            )
        )
    with patch.object(graphs, "MAX_LABELS", 3), cheaper(1e-3):
        solved = solve(SMALL, net, objective)
        free, found = (
            assign_layouts(SMALL, one, objective, "wp", solved)
            for one in (replace(net, stored_as=()), net)  # type: ignore[arg-type]
        )
        assert not isinstance(found, Infeasible)
        assert not isinstance(free, Infeasible)
        least = enumerated(SMALL, net, objective, solved, 1e-3, "wp")
    assert isclose(found.value, least, rel_tol=1e-9)
    assert found.value >= free.value * (1 - 1e-9) or found.conversions


def test_channels_are_what_weights_have() -> None:
    """Also of operators between, and of groups; products without weights have none."""
    net = Workload(
        "net",
        (
            einsum("T[n,k,p] += I[n,c,p+r] * W[k,c,r]", {"n": 2, "k": 6, "c": 3, "p": 5, "r": 3}, "conv"),
            einsum("D[n,g,p] += T[n,g,p] * V[g]", {"n": 2, "g": 6, "p": 5}, "depthwise"),
            einsum("S[n,g,p] = add(D[n,g,p], T[n,g,p])", {"n": 2, "g": 6, "p": 5}, "sum"),
            einsum("U[n,m] += S[n,g,p] * X[m,g,p]", {"n": 2, "g": 6, "p": 5, "m": 4}, "dense"),
            einsum("G[n,m] += U[n,k] * U_again[m,k]", {"n": 2, "k": 4, "m": 2}, "self"),
        ),
        frozenset("WVX"),
    )
    found = graphs.channel_dims(net)
    assert found == {"T": (1,), "D": (1,), "S": (1,), "U": (1,), "G": ()}
    assert graphs.channel_texts(("N", "K", "P"), (2, 48, 5), (1,), 32) == ("N P K", "N K/24 P k24")
    assert graphs.channel_texts(("N", "K", "P"), (2, 48, 5), (1,), 64) == ("N P K", "N P K")
    assert graphs.channel_texts(("N", "G", "K"), (2, 3, 8), (1, 2), 4) == ("N G K", "N G K/4 k4")
    assert graphs.channel_texts(("H", "M", "N"), (2, 3, 8), (), 4) == ("H M N", "H M N")


def chained(middle: str) -> Workload:
    """Two products, and an operator between."""
    return Workload(
        "chain",
        (
            einsum("T[m,n] += W[k,m] * A[n,k]", {"m": 64, "n": 96, "k": 12}, "first"),
            einsum(middle, {"m": 64, "n": 96}, "middle"),
            einsum("Y[m,q] += U[m,n] * V[n,q]", {"m": 64, "n": 96, "q": 16}, "last"),
        ),
        frozenset("WV"),
    )


@pytest.mark.parametrize("objective", some(("energy", "latency"), 1))
def test_loops_first_takes_the_mapping_that_is_best_before_weights_are_packed(objective: str) -> None:
    net = Workload(
        "long rows",
        (
            einsum("T[m,n] += A[m,k] * W[n,k]", {"m": 16, "n": 48, "k": 300}, "first"),
            einsum("U[m,n] = relu(T[m,n])", {"m": 16, "n": 48}, "second"),
        ),
        frozenset("W"),
    )
    solved = solve(SMALL, net, objective)
    g = graphs.Layouts(SMALL, net, objective, solved)  # type: ignore[arg-type]
    sums = [0.0, 0.0]
    for i, e in enumerate(net.einsums):
        rows = []
        for n, one in enumerate(solved[canonical_key(e)].mappings):
            inner = {at: own for at, own in g.free_layouts[canonical_key(e)][n].items() if at[0] != "DRAM"}
            own = {
                ("DRAM", p.tensor): replace(
                    g.nodes[i, x][0].labels[g.nodes[i, x][0].blocked], names=dim_names(p)
                )
                for x, p in enumerate(e.tensors())
                if (i, x) in g.nodes
            }
            packed = g.free_layouts[canonical_key(e)][n] | own
            costs = []
            for laid in (inner | own, packed):
                texts = tuple(TensorLayout(*at, show(layout)) for at, layout in laid.items())
                found = einsum_cost(Problem(SMALL, e, objective), replace(one.mapping, layouts=texts))
                assert isinstance(found, EinsumCost)
                costs.append((found.energy_pj, found.latency_cycles))
            rows.append((objective_value(objective, *costs[0]), costs[1]))
        energy, cycles = min(rows, key=lambda row: row[0])[1]
        sums = [sums[0] + energy, sums[1] + cycles]
    told = assign_layouts(SMALL, net, objective, "ansor", solved)  # type: ignore[arg-type]
    assert not isinstance(told, Infeasible)
    assert told.value == pytest.approx(objective_value(objective, *sums), rel=1e-9)


@pytest.mark.parametrize("middle", ["U[m,n] = relu(T[m,n])", "U[m,n] = copy(T[m,n])"])
def test_published_layouts_are_passed_on_by_what_stands_between(middle: str) -> None:
    """The operator between writes what the second product wants and reads what the first one writes; without
    the second product an element-wise one writes what it reads, and others channels innermost.
    """
    net = chained(middle)
    for own in (net, replace(net, einsums=(*net.einsums[:2], replace(net.einsums[2], kind="max")))):
        g = graphs.Layouts(SMALL, own, "energy", solve(SMALL, own, "energy"))
        (rule,) = g.rules("alt-published")
        at = {node: labels[0] for node, labels in rule.allowed.items() if len(labels) == 1}
        first, second = g.interface
        wanted = g.preferred_label(first.maker)
        assert at[first.maker.node] == at[first.readers[0].node] == wanted
        written = second.labels[at[second.maker.node]]
        if own.einsums[2].kind == "mac":
            assert at[second.maker.node] == at[second.readers[0].node]
            assert at[second.maker.node] == g.preferred_label(second.readers[0])
        elif "relu" in middle and first.labels[wanted] in second.labels:
            assert written == first.labels[wanted]
        else:
            assert written == second.labels[second.channels_last]


def test_what_two_stages_find_is_kept() -> None:
    """A product alone costs what its search found; in a network its tensors are copied to what it found."""
    net = chained("U[m,n] = relu(T[m,n])")
    found = solve(SMALL, replace(net, einsums=net.einsums[1:2]), "energy")
    for e in net.einsums[::2]:
        one = sampled_mapping(Problem(SMALL, e, "energy"), "random", 1, 12, 8, 1)
        assert not isinstance(one, Infeasible)
        found[canonical_key(e)] = one
    for own in (net, replace(net, einsums=net.einsums[:1])):
        keys = {canonical_key(e) for e in own.einsums}
        told = assign_layouts(SMALL, own, "energy", "sampled", {key: found[key] for key in keys})
        assert not isinstance(told, Infeasible)
        assert "mappings drawn with layouts" in told.solution.certificate
        for e in own.einsums:
            if e.kind == "mac":
                cost = next(c for c in told.solution.einsums if c.name == e.name)
                assert cost.energy_pj == pytest.approx(found[canonical_key(e)].costs[0].energy_pj, rel=1e-12)


def test_a_conversion_pays_and_forbidding_it_never_helps() -> None:
    """A tensor whose rows one product reads and whose columns many do; a copy in between is a copy einsum
    that the evaluator prices.
    """
    net = Workload(
        "two ways",
        (
            einsum("T[m,n] += A[m,k] * B[k,n]", {"m": 64, "n": 512, "k": 8}, "make"),
            einsum("U[n] += T[m,n] * V[m]", {"m": 64, "n": 512}, "columns"),
        ),
    )
    found = assign_layouts(EDGE, net, "energy", "ind", solve(EDGE, net, "energy"))
    best = assign_layouts(EDGE, net, "energy", "alt", solve(EDGE, net, "energy"))
    assert not isinstance(found, Infeasible)
    assert not isinstance(best, Infeasible)
    assert best.value <= found.value
    assert len(found.workload.einsums) == 2 + len(found.conversions)
    assert all(one.saved >= 0 for one in best.conversions)


def test_a_tensor_seen_in_another_shape_is_row_major_there() -> None:
    net = Workload(
        "view",
        (
            einsum("T[c,p,q] += A[d,p,q] * B[c,d]", {"c": 16, "d": 8, "p": 4, "q": 4}, "conv"),
            einsum("U[n] += T[k] * W[k,n]", {"k": 256, "n": 32}, "dense"),
        ),
    )
    found = assign_layouts(EDGE, net, "energy", "alt", solve(EDGE, net, "energy"))
    assert not isinstance(found, Infeasible)
    dense = next(one for one in found.solution.einsums if one.name == "dense")
    assert not any(laid.level == "DRAM" and laid.tensor.startswith("T") for laid in dense.mapping.layouts)
    assert isinstance(row_major(("K",), (256,)).stored_elems(), int)


def test_map_takes_a_pick_and_prints_conversions(capsys) -> None:  # type: ignore[no-untyped-def]
    for pick in ("alt", "ind"):
        assert (
            main(
                [
                    "map",
                    "gemm:m=16,n=64,k=32",
                    "burst_edge",
                    "--set",
                    f"solver.layout={pick}",
                    "--format",
                    "json",
                ]
            )
            == 0
        )
        assert (
            f"layouts {pick} (exact over the candidate layouts)"
            in json.loads(capsys.readouterr().out)["certificate"]
        )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["map", "gemm:m=8,n=8,k=8", "burst_edge", "--set", "solver.layout=best"], "solver.layout"),
        (
            ["map", "gemm:m=8,n=8,k=8", "edge_array", "--set", "solver.layout=alt"],
            "describes no lines, rows or banks",
        ),
        (
            [
                "map",
                "gemm:m=8,n=8,k=8",
                "burst_edge",
                "--set",
                "solver.layout=alt",
                "--set",
                "solver.mapper=random",
            ],
            "needs the mapper optimal",
        ),
        (
            ["map", "gemm:m=8,n=8,k=8", "burst_edge", "--set", "solver.layout=alt", "--layout", "A=M K"],
            "leave one of both out",
        ),
    ],
)
def test_a_bad_pick_is_one_line(words: list[str], said: str, capsys) -> None:  # type: ignore[no-untyped-def]
    assert main(words) == 2
    lines = capsys.readouterr().err.splitlines()
    assert said in lines[-1], lines


def test_schedules_of_a_pick_are_priced_by_the_evaluator() -> None:
    """The same nests, given as a schedule, cost the same."""
    net = Workload("one", (einsum("C[m,n] += A[m,k] * B[k,n]", {"m": 16, "n": 32, "k": 24}, "e"),))
    found = assign_layouts(EDGE, net, "energy", "alt", solve(EDGE, net, "energy"))
    assert not isinstance(found, Infeasible)
    nest = rename(found.solution.einsums[0].mapping, net.einsums[0], net.einsums[0])
    again = evaluate(EDGE, net, Schedule((Segment((Branch("e", nest),)),)))
    assert not isinstance(again, Infeasible)
    assert again.energy_pj == found.solution.energy_pj


@cache
def with_a_twin(seed: int) -> tuple[Workload, str, dict[str, PricedMappings]]:
    """A network, the objective, and what its einsums may be; with odd seeds the first product once more, for
    a reader of its own.
    """
    net, objective = network(Random(seed)), OBJECTIVES[seed % 3]
    if seed % 2:
        m, n, k = (net.einsums[0].sizes()[rank] for rank in "mnk")
        twin = (
            einsum("S0[m,n] += A[m,k] * W[k,n]", {"m": m, "n": n, "k": k}, "twin"),
            einsum("S1[m,q] += S0[m,n] * V[n,q]", {"m": m, "n": n, "q": 16}, "last"),
        )
        net = replace(net, einsums=(*net.einsums, *twin), repeats=(*net.repeats, 1, 1))
    return net, objective, solve(SMALL, net, objective)


@pytest.mark.xdist_group("twins")
@pytest.mark.parametrize("pick", ["alt", "ind"])
def test_what_is_written_is_read_back(pick: str, tmp_path: Path) -> None:
    """As a schedule and as mappings, with conversions and equal einsums in layouts of their own, to the last
    bit.
    """
    copies = apart = 0
    for seed in some(range(16), 1, 5, 6, 9):
        net, objective, solved = with_a_twin(seed)
        found = assign_layouts(SMALL, net, objective, pick, solved)  # type: ignore[arg-type]
        assert not isinstance(found, Infeasible)
        copies += len(found.conversions)
        apart += len(explain.mappings(found.workload, found.solution, found.schedule)) - len(
            unique(found.workload)
        )
        for text in (
            str(found.schedule),
            safe_dump(explain.mappings(found.workload, found.solution, found.schedule)),
        ):
            (tmp_path / "file").write_text(text)
            workload, given = load(tmp_path / "file", net)
            assert workload == found.workload
            again = evaluate(SMALL, workload, given, objective)
            assert isinstance(again, Solution)
            assert (again.energy_pj, again.latency_cycles) == (
                found.solution.energy_pj,
                found.solution.latency_cycles,
            )
    assert apart > 0
    assert copies > 2 or pick == "alt"


def test_a_tensor_lies_in_one_layout_between_einsums(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What its maker writes its reader reads: another layout takes a copy."""
    (tmp_path / "two.yaml").write_text(
        'einsums: ["T[m,n] += A[m,k] * B[k,n]", "U[m,q] += T[m,n] * C[n,q]"]\nextents: {m: 16, n: '
        "32, k: 8, q: 4}\n"
    )
    asked = str(tmp_path / "two.yaml"), "burst_edge"
    assert main(["map", *asked, "--format", "yaml"]) == 0
    plain = capsys.readouterr().out
    (tmp_path / "both.yaml").write_text(plain)
    assert main(["simulate", *asked, str(tmp_path / "both.yaml")]) == 0
    nests = safe_load(plain)
    rest = [one for one in nests["T"] if not ("layout" in one and one["tensor"] == "T")]
    nests["T"] = [{"layout": "N M", "level": "DRAM", "tensor": "T"}, *rest]
    (tmp_path / "one.yaml").write_text(safe_dump(nests))
    for words in (
        ["simulate", *asked, str(tmp_path / "one.yaml")],
        ["map", *asked, "--schedule", str(tmp_path / "one.yaml")],
    ):
        capsys.readouterr()
        assert main(words) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert (
            line == f'{tmp_path / "one.yaml"}: layout DRAM T: T writes "N M", U reads row-major; give both '
            "the same, or add a copy"
        )


def test_a_run_keeps_layouts_and_conversions(tmp_path: Path) -> None:
    """A study with a pick: rows of conversions, `dse show` costs the schedule anew and prints them, traffic
    knows the copies.
    """
    text = """einsums: ["T[m,n] += A[m,k] * B[k,n]", "U[n] += T[m,n] * V[m]"]
extents: {m: 64, n: 512, k: 8}
"""
    (tmp_path / "two.yaml").write_text(text)
    (tmp_path / "study.yaml").write_text("""name: layouts
workloads: [two.yaml]
machine: burst_edge
space: {gbuf.capacity: [1 KiB], dram.burst: [64 B, 256 B]}
objectives: [energy_pj]
search: {method: exhaustive}
solver: {layout: ind}
""")
    run = runs.sweep(tmp_path / "study.yaml", tmp_path / "run", workers=0)
    best = runs.sweep(tmp_path / "study.yaml", tmp_path / "alt", workers=0, solver={"layout": "alt"})
    values = [
        {row["machine"]: row["energy_pj"] for row in one.sql("SELECT machine, energy_pj FROM points")}
        for one in (run, best)
    ]
    assert all(values[1][machine] <= own * (1 + 1e-9) for machine, own in values[0].items())
    assert len(values[0]) == 2
    rows = list(run.sql("FROM conversions ORDER BY machine, position"))
    assert rows
    for row in rows:
        name = f"convert_{row['tensor']}_as_{row['position']}"
        ((energy,),) = run.sql(
            f"SELECT energy_pj FROM einsums WHERE machine = {row['machine']} AND einsum = '{name}'"
        ).rows()
        assert energy == row["energy_pj"]
    for number, value in values[0].items():
        point = run.show(number)
        assert len(point.solutions[0].conversions) == sum(row["machine"] == number for row in rows)
        assert "conversions" in point.text() or not point.solutions[0].conversions
        assert point.solutions[0].energy_pj == value


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        ({"machine": "edge_array"}, "edge_array describes no lines, rows or banks"),
        ({"solver": {"layout": "alt", "mapper": "random"}}, "needs the mapper optimal"),
        ({"solver": {"layout": "alt", "layout_joint": 5}}, "is a choice of solver.layout: sampled"),
        ({"solver": {"layout": "sampled", "factors": "perfect"}}, "with its own factors"),
        ({"solver": {"layout": "sampled", "layout_joint": 0}}, "must be at least 1"),
        (
            {"solver": {"layout": "wp", "schedule": "fused"}},
            "needs the mapper optimal, without solver.schedule",
        ),
    ],
)
def test_a_study_with_a_pick_that_cannot_be_is_one_line(
    sets: dict[str, Any], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(
        json.dumps(
            {
                "name": "s",
                "workloads": ["gemm:m=8,n=8,k=8"],
                "machine": "burst_edge",
                "space": {"gbuf.capacity": ["1 KiB"]},
                "objectives": ["energy_pj"],
                "search": {"method": "exhaustive"},
                "solver": {"layout": "alt"},
            }
            | sets
        )
    )
    with pytest.raises(ValueError, match=said):
        study.load(path)


def test_a_tensor_that_an_einsum_reads_twice_is_converted_once() -> None:
    """T + T: both operands read the copy, under two names."""
    net = Workload(
        "twice",
        (
            einsum("T[m,n] += A[m,k] * W[k,n]", {"m": 64, "n": 96, "k": 12}, "make"),
            einsum("U[m,n] = T[m,n] + T_again[m,n]", {"m": 64, "n": 96}, "sum"),
        ),
    )
    copies = (graphs.Conversion("T", "M N", "N M", ("sum.0", "sum.1"), 1.0, 1.0, 0.0),)
    whole = graphs.with_conversions(net, copies)
    assert [p.tensor for p in whole.einsums[2].inputs] == ["T_as_1", "T_as_1_again"]
    assert whole.einsums[1].output.tensor == "T_as_1"
    rng = Random(38)
    net, objective = network(rng), rng.choice(OBJECTIVES)
    with patch.object(graphs, "MAX_LABELS", 3):
        found = assign_layouts(SMALL, net, objective, "ind", solve(SMALL, net, objective))  # type: ignore[arg-type]
    assert not isinstance(found, Infeasible)
    assert found.conversions


def test_layouts_of_a_graph_are_kept_and_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The second question is answered from $DSE_CACHE, without a search; a kept answer that claims too much
    is dropped.
    """
    monkeypatch.setenv("DSE_CACHE", str(tmp_path))
    rng = Random(38)
    net, objective = network(rng), rng.choice(OBJECTIVES)
    options = stack.SolverOptions(objective=objective, layout="ind")  # type: ignore[arg-type]
    first = stack.cached_layouts(SMALL, net, options)
    (kept,) = tmp_path.glob("layout_*.json")
    with patch.object(stack, "in_best_layouts", None):
        again = stack.cached_layouts(SMALL, net, options)
    assert again == first
    assert not isinstance(first, Infeasible)
    assert first.conversions
    known = json.loads(kept.read_bytes()[kept_answers.DIGEST_BYTES :])
    kept_answers.write(kept, json.dumps(known | {"gap": 1e9}).encode())
    assert stack.cached_layouts(SMALL, net, options) == first
    assert "removed, built anew" in caplog.text


def patched(asked: Any, most: int, *words: Any) -> Any:
    with patch.object(graphs, "join", partial(join, max_rows=most)):
        return asked(*words)


def test_what_a_beam_cuts_is_said() -> None:
    """A choice that may not be the least of its labels says how far it may be off, instead of "exact"."""
    net = network(Random(9))
    solved = solve(SMALL, net, "energy")
    for most, said in (
        (1 << 20, "exact over the candidate layouts"),
        (4, "above the optimum over the candidate layouts"),
    ):
        assert said in patched(assign_layouts, most, SMALL, net, "energy", "alt", solved).solution.certificate


def test_the_floor_of_a_pick_is_that_of_all_its_rules() -> None:
    """All row-major, which is exact, wins over a beam that misses the least of all labels: the answer has a
    gap all the same.
    """
    net = network(Random(96))
    solved = solve(SMALL, net, "energy")
    every = next(graphs.Layouts(SMALL, net, "energy", solved).rules("alt"))
    row_major_only = graphs.Rule(dict.fromkeys(every.allowed, (0,)))
    with patch.object(graphs.Layouts, "rules", lambda *_: iter([row_major_only, every])):
        least, cut = (
            patched(assign_layouts, most, SMALL, net, "energy", "bf", solved) for most in (1 << 20, 2)
        )
    assert least.lower_bound == pytest.approx(least.value) == pytest.approx(cut.lower_bound)
    assert least.value < cut.value
