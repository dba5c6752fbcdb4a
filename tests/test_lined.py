"""Mappings and layouts together: against every pair of small problems, against random pairs, and what stands
in the answer.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf
from random import Random
from typing import NamedTuple

import pytest

from dse.layout.text import show
from dse.mapper.exact.layout_aware import fitting, in_layouts, layout_aware, layout_pricing, lowered
from dse.mapper.exact.search import search
from dse.mapping.nest import Infeasible, Loop, Store, parse
from dse.sim.einsum.evaluate import EinsumCost, Problem, einsum_cost, objective_value
from dse.sim.levels.transfer import dim_names
from dse.solve import solve
from dse.solve.options import SolverOptions
from hw import machine
from tests import lined as pairs
from tests.amount import some
from tests.enumeration import mappings
from tests.problems import OBJECTIVES, random_problem
from tests.streams import with_layouts
from workloads import catalog
from workloads.einsum import einsum

EDGE = machine.arch(machine.load("burst_edge"))


@pytest.mark.parametrize("seed", some(range(4), 0, 3))
def test_no_pair_of_a_mapping_and_layouts_costs_less_than_the_floor(seed: int) -> None:
    one, tiles = pairs.problem(seed, 60)
    best, found = pairs.enumerated(one, tiles), layout_aware(one, tiles)  # type: ignore[arg-type]
    assert isinstance(found, Infeasible) == (best.mapping is None)
    if not isinstance(found, Infeasible):
        assert found[0].energy_pj / (1 + found[0].optimality_gap) <= best.energy * (1 + 1e-9), (
            f"{found[0].mapping}\nagainst\n{best.mapping}"
        )
        assert found[0].proven is None or found[0].energy_pj <= best.energy * (1 + 1e-9)


@pytest.mark.parametrize("objective", ["latency", "edp", "energy"])
@pytest.mark.parametrize("seed", range(100, 103))
def test_no_random_pair_costs_less_than_the_floor(seed: int, objective: str) -> None:
    one, tiles = pairs.problem(seed, 60, objective)
    floor = search(one, tiles).lower_bound  # type: ignore[arg-type]
    for value, mapping in pairs.priced_at_random(one, tiles, Random(seed)):
        assert value >= floor * (1 - 1e-9), str(mapping)


class Stalls(NamedTuple):
    """What was found of bounds with exchanges one after the other."""

    wrong: list[str]
    asked: int
    higher: int  # bounds above those of the busiest port
    attained: int  # of these, whose mapping takes no more cycles


def exchanges(seed: int, count: int = 12) -> Stalls:
    """Of random mappings, each alone with those that have the same trips: no bound is above the cost of one
    of them in row-major and random layouts, and what is counted of the mapping found is no more than the
    evaluator's cycles.
    """
    (one, tiles), rng, found = pairs.stalled(seed), Random(seed), Stalls([], 0, 0, 0)
    names = {p.tensor: dim_names(p) for p in one.einsum.tensors()}
    for mapping in pairs.some_mappings(one, tiles, rng, count):
        laid = [mapping, *(with_layouts(rng, mapping, one.einsum, one.arch, names) for _ in range(3))]
        costs = [cost for own in laid if isinstance(cost := einsum_cost(one, own), EinsumCost)]
        rules = pairs.alike(one, mapping)
        ours, least = (search(one, tiles, rules, exposed=way) for way in ("exchanges", "least"))  # type: ignore[arg-type]
        value = min(
            (objective_value(one.objective, cost.energy_pj, cost.latency_cycles) for cost in costs),
            default=inf,
        )
        own = ours.mapping and einsum_cost(one, ours.mapping)
        cycles = own.latency_cycles if isinstance(own, EinsumCost) else inf
        if max(ours.lower_bound, least.lower_bound) > value * (1 + 1e-9):
            found.wrong.append(
                f"seed {seed}: {ours.lower_bound}, {least.lower_bound} above {value}\n{mapping}"
            )
        if ours.mapping and ours.cycles > cycles * (1 + 1e-9):
            found.wrong.append(f"seed {seed}: {ours.cycles} cycles, {cycles} are taken\n{ours.mapping}")
        higher = ours.lower_bound > least.lower_bound * (1 + 1e-9)
        attained = higher and ours.cycles > cycles * (1 - 1e-9)
        found = Stalls(found.wrong, found.asked + 1, found.higher + higher, found.attained + attained)
    return found


def exchanges_of_all(seed: int, most: int = 600) -> Stalls:
    """The same of all mappings of a small problem together."""
    rng, found = Random(seed), Stalls([], 0, 0, 0)
    tiles = rng.choice(["perfect", "imperfect_spatial"])
    one = random_problem(rng, "waits", tiles, most, "tensors", pairs.stalling)
    costs = [
        cost
        for own in mappings(one, tiles, "tensors")
        if isinstance(cost := einsum_cost(one, own), EinsumCost)
    ]
    for objective in OBJECTIVES if costs else ():
        ours, least = (
            search(replace(one, objective=objective), tiles, exposed=way).lower_bound  # type: ignore[arg-type]
            for way in ("exchanges", "least")
        )
        value = min(objective_value(objective, cost.energy_pj, cost.latency_cycles) for cost in costs)
        if max(ours, least) > value * (1 + 1e-9):
            found.wrong.append(f"seed {seed} {objective}: {ours}, {least} above {value}")
        higher = ours > least * (1 + 1e-9)
        found = Stalls(found.wrong, found.asked + len(costs), found.higher + higher, 0)
    return found


@pytest.mark.parametrize("seed", some(range(40), 13, 16, 21))
def test_exchanges_are_never_more_than_the_evaluator_counts(seed: int) -> None:
    found = exchanges(seed)
    assert not found.wrong, found.wrong[0]


def test_a_request_of_padding_misses_nothing() -> None:
    """One operand is padding alone, one level prefetches, the other has banks: the bound is attained."""
    one, tiles = pairs.problem(220, 60, "latency")
    best = min(value for value, _ in pairs.priced_at_random(one, tiles, Random(220)))
    assert search(one, tiles).lower_bound == pytest.approx(best)  # type: ignore[arg-type]


def test_mappings_are_chosen_with_lines_in_view() -> None:
    """Sums of 56 x 56 x 64: where layouts cost nothing compute reads main memory, 16 bytes a time; with
    bursts of 256 bytes tiles go through registers.
    """
    e = einsum("C[c,p,q] = A[c,p,q] + B[c,p,q]", {"c": 64, "p": 56, "q": 56}, "sum")
    before = solve.price_in_layouts(
        Problem(EDGE, e, "energy"), solve.optimal_mapper(Problem(EDGE.ideal(), e, "energy"), Random(0))[0]
    )  # type: ignore[index]
    (found,) = layout_aware(Problem(EDGE, e, "energy"))  # type: ignore[misc]
    assert isinstance(before, EinsumCost)
    assert before.energy_pj > 10 * found.energy_pj
    assert found.optimality_gap < 0.02
    assert einsum_cost(Problem(EDGE, e, "energy"), found.mapping).energy_pj == found.energy_pj  # type: ignore[union-attr]
    assert "all layouts" in found.certificate


@pytest.mark.parametrize(
    ("name", "objective"),
    some(
        [
            ("burst_edge", "energy"),
            ("burst_edge", "latency"),
            ("burst_edge", "edp"),
            ("cpu_like", "energy"),
            ("gpu_like", "latency"),
        ],
        2,
        4,
    ),
)
def test_never_worse_than_a_mapping_found_where_layouts_cost_nothing(name: str, objective: str) -> None:
    arch = machine.arch(machine.load(name))
    layers = (
        ("C[m,n] += A[m,k] * B[k,n]", {"m": 24, "n": 32, "k": 40}),
        ("C[k,p,q] += A[c,p+r,q] * B[k,c,r]", {"k": 8, "c": 8, "p": 8, "q": 8, "r": 3}),
    )
    for text, sizes in layers:
        one = Problem(arch, einsum(text, sizes), objective)
        before = solve.price_in_layouts(
            one, solve.optimal_mapper(Problem(arch.ideal(), one.einsum, objective), Random(0))[0]
        )  # type: ignore[index]
        shared = frozenset(p.tensor for p in one.einsum.tensors())
        assert isinstance(before, EinsumCost)
        for own in (frozenset[str](), shared):
            found = layout_aware(one, interface=own)[0]  # type: ignore[index]
            assert objective_value(objective, found.energy_pj, found.latency_cycles) <= objective_value(
                objective, before.energy_pj, before.latency_cycles
            ) * (1 + 1e-9)
            assert layout_aware(one, interface=own)[0].mapping == found.mapping  # type: ignore[index]
            assert not any(
                laid.level == arch.levels[0].name and laid.tensor in own for laid in found.mapping.layouts
            )


@pytest.mark.parametrize("objective", ["energy", "latency"])
def test_a_wider_space_answers_no_worse(objective: str) -> None:
    """Any tiles in time hold those that divide: these alone are searched with lines in view (1,440 nJ for 210
    before).
    """
    one = Problem(
        EDGE,
        einsum("C[k,p,q] += A[c,p+r,q] * B[k,c,r]", {"k": 5, "c": 7, "p": 11, "q": 13, "r": 3}),
        objective,
    )
    even, any_tiles = (layout_aware(one, tiles)[0] for tiles in ("imperfect_spatial", "imperfect"))  # type: ignore[arg-type, index]
    assert objective_value(objective, any_tiles.energy_pj, any_tiles.latency_cycles) <= objective_value(
        objective, even.energy_pj, even.latency_cycles
    )


def test_a_mapping_found_without_lines_is_lowered_until_it_fits() -> None:
    """Where lines cost nothing A sinks below both of its loops; here its node goes below them, a window above
    the loop that slides it.
    """
    e = einsum("C[k,p] += A[c,p+r] * B[k,c,r]", {"k": 2, "c": 64, "p": 2000, "r": 3})
    nest = parse(
        "store DRAM A B C\nstore GBUF A\nfor c tile 8\nfor p tile 10\nfor k tile 1\nfor c tile 1\n"
        "for p tile 1\nfor r tile 1\nmac"
    )
    problem = Problem(EDGE, e, "energy")
    assert isinstance(einsum_cost(problem, nest), Infeasible)
    assert isinstance(einsum_cost(replace(problem, arch=EDGE.ideal()), nest), EinsumCost)
    below = lowered(nest, e, EDGE)
    assert str(below).split("\n")[1:4] == ["for c tile 8", "  store GBUF A", "  for p tile 10"]
    assert isinstance(einsum_cost(problem, below), EinsumCost)
    assert lowered(below, e, EDGE) == below
    assert fitting(problem, nest) == below
    assert lowered(nest, e, EDGE.ideal()) == nest


def test_what_a_tensor_moves_is_counted_one_by_one() -> None:
    """The sums of a mapping in layouts are the evaluator's."""
    e = einsum("C[m,n] += A[m,k] * B[k,n]", {"m": 12, "n": 16, "k": 20})
    for objective in ("energy", "latency"):
        one = Problem(EDGE, e, objective)
        (found,) = layout_aware(one)  # type: ignore[misc]
        again = layout_pricing(one, found.mapping)
        moved = {(t.level, t.tensor): t for t in found.layout_traffic}
        assert set(again.links) == set(moved)
        assert again.mapping.layouts == ()
        assert {type(node) for node in again.mapping.nodes} <= {Loop, Store}


def test_what_two_einsums_share_is_row_major() -> None:
    net = catalog.load("mlp_s")
    shared = solve.interface_tensors(net)
    assert all(own for own in shared.values())
    found = solve.solve(EDGE, net, SolverOptions())
    assert isinstance(found, list)
    for cost in found[0].einsums:
        assert not any(laid.tensor in shared[cost.key] for laid in cost.mapping.layouts)


def test_layouts_of_windows_that_slide_fit() -> None:
    """The first layer of ResNet-18 on `cpu_like`: the image slides through L1 in strips, and a layout other
    than row-major would lay it out there whole.
    """
    first = catalog.load("resnet18").einsums[0]
    nest = parse("""store DRAM image conv1_W conv1
store L2 conv1_W
store L1 image
for p tile 2
  parfor k tile 32 over LANE
    parfor p tile 1 over LANE
      parfor q tile 14 over LANE
        for k tile 1
          store REGS conv1
          for c tile 1
            for r tile 1
              for s tile 1
                store REGS conv1_W
                for q tile 1
                  mac""")
    one = layout_pricing(Problem(machine.arch(machine.load("cpu_like")), first, "energy"), nest)
    assert len(one.candidates(("L1", "image"))) < len(one.candidates(("DRAM", "image")))
    for place in one.links:
        for layout in one.candidates(place):
            if place[0] != "DRAM":
                assert isinstance(einsum_cost(one.problem, in_layouts(nest, {place: layout})), EinsumCost), (
                    place,
                    show(layout),
                )


def test_lanes_in_uneven_tiles_read_lines() -> None:
    """500 columns tile 125, tile 8 over lanes: what lanes ask for at once is 8 apart, and lies side by side
    in `n8 .. N/8` only. Rows opened are no part of what the search sees of time: a mapping of fewer lines,
    found for energy, takes fewer.
    """
    e = einsum("C[n] += A[k] * B[k,n]", {"n": 500, "k": 784}, "fc")
    (found,) = layout_aware(Problem(EDGE, e, "latency"))  # type: ignore[misc]
    assert found.optimality_gap < 0.11
    nest = parse(
        "store DRAM A B C\nstore GBUF C A\nfor k tile 16\nfor n tile 125\nparfor n tile 8 over Y\n"
        "parfor k tile 1 over X\nfor n tile 1\nmac"
    )
    one = layout_pricing(Problem(EDGE, e, "latency"), nest)
    lines = {
        show(layout): sum(t.moved_bits.n for t in one.moves(("DRAM", "B"), layout).values())
        for layout in one.candidates(("DRAM", "B"))
    }
    assert min(lines, key=lines.get) == "K/16 n8 N/8 k16"
    assert min(lines.values()) < lines["K N"] / 4
