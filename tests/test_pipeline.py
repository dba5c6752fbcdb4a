"""Pipelines on rectangles of nodes: never below, and their bound never above, what lists all of them; what
they cannot do is said in one line.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product
from math import ceil, inf
from pathlib import Path
from random import Random

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from dse.frontend import api, cli
from dse.mapping.constraints import Constraints, Limit
from dse.mapping.nest import Infeasible, Loop, Mapping
from dse.mapping.schedule import Segment, parse_schedule, sequential
from dse.sim.einsum.evaluate import Solution, Violated, objective_value
from dse.sim.einsum.limits import broken
from dse.sim.schedule.graph import evaluate, filled_cycles
from dse.solve import solve
from dse.solve.kapla.published import (
    StageSolver,
    _every_spread,
    _scheme,
    _stages,
    options,
    published,
    spread_over_nodes,
)
from dse.solve.options import SolverOptions
from dse.solve.schedules import pipeline, segments, stage_bounds
from dse.solve.schedules.einsum_bounds import lower_bound
from dse.solve.schedules.pipeline import pipelined
from dse.solve.schedules.stage_bounds import SharingBounds, minimum_filled_cycles, minimum_filled_energy
from dse.solve.schedules.stages import Nodes, Shape, Stage, StageContext, node_of, shapes, split_ranks, tiles
from hw import machine
from hw.arch import Arch, read_rules
from tests.amount import FULL, amount, some
from tests.fuzzed import reported
from tests.piped import cheaper, compared, enumerated_case, random_case
from tests.test_schedule_walks import compared as walked
from workloads.einsum import Einsum, einsum
from workloads.graph import Workload

MULTI = machine.arch(machine.load("kapla_multi_4x4"))


def chain_of(m: int) -> Workload:
    """Two products of m rows, with 240 and 120 words of weights."""
    return Workload(
        "chain",
        (
            einsum("A[m,n] += X[m,k] * W[k,n]", {"m": m, "k": 12, "n": 20}, "a"),
            einsum("B[m,n] += A[m,k] * V[k,n]", {"m": m, "k": 20, "n": 6}, "b"),
        ),
        frozenset({"W", "V"}),
    )


CHAIN = chain_of(8)


@pytest.mark.parametrize(
    ("seed", "hop_pj"),
    some([(0, -1.0), (4, -1.0), (7, -1.0), (17, -1.0), (0, 8.0), (4, 8.0), (17, 8.0)], 3, 5),
)
def test_small_chains_cost_what_the_best_of_all_costs(seed: int, hop_pj: float) -> None:
    """The one search, which networks get too, against a listing of everything; its gap, and more so its
    bound, holds.
    """
    found = compared(seed, hop_pj)
    assert (found.wrong, found.above) == ("", 0.0)
    assert found.gap < 0.15


@pytest.mark.parametrize("seed", some([2, 7, 10, 13, 14, 19, 21, 22], 3, 6))
def test_small_graphs_cost_what_the_best_of_all_costs(seed: int) -> None:
    """Gated, residual, summed over what is shared, in windows; on grids that leak, by energy or cycles."""
    found = enumerated_case(seed)
    assert (found.wrong, found.above) == ("", 0.0)


FEW_WORDS = """name: few words
clock_mhz: 500
word_bits: 16
nodes:
- {memory: dram, kind: custom, %(dram)s, read_pj: %(dram_pj)s, write_pj: %(dram_pj)s, area_mm2: 0}
- {array: nodes, dims: {ny: 2, nx: 1}, multicast: true, reduce: %(reduce)s, hop_pj: 0, injected_at: edge,
  multicast_from: same_level}
- {memory: gbuf, kind: custom, width_bits: 16, %(gbuf)s, read_pj: 3, write_pj: 5, leak_mw: 0, area_mm2: 0}
- {array: pe, dims: %(lanes)s, multicast: true, reduce: true}
- {memory: regf, kind: custom, capacity: 6 B, width_bits: 16, actions_per_cycle: inf, read_pj: 0.1,
  write_pj: 0.1, leak_mw: 0, area_mm2: 0}
- {compute: mac, kind: custom, mac_pj: 1, alu_pj: 0.5, merge_pj: 0.5, leak_mw: 0, area_mm2: 0}
"""
GATED = Workload(
    "gated",
    (
        einsum("H[b,m] += X[b,k] * U[k,m]", {"b": 3, "k": 5, "m": 3}, "h"),
        einsum("G[b,m] += X[b,k] * V[k,m]", {"b": 3, "k": 5, "m": 3}, "g"),
        einsum("Y[b,m] = H[b,m] * G[b,m]", {"b": 3, "m": 3}, "y"),
    ),
    frozenset({"U", "V"}),
)


# dram_pj, reduce, capacity, bypass
TIGHT_BUFFERS = [(3, "false", "96 B", "false"), (3, "true", "4 B", "true"), (400, "true", "64 B", "true")]


def few_words(
    folder: Path,
    gbuf: str,
    dram_pj: int = 400,
    dram: str = "width_bits: 64, actions_per_cycle: 8, leak_mw: 5",
    reduce: str = "true",
    lanes: str = "{y: 2, x: 1}",
) -> Arch:
    (path := folder / "few.yaml").write_text(
        FEW_WORDS % {"gbuf": gbuf, "dram": dram, "dram_pj": dram_pj, "reduce": reduce, "lanes": lanes}
    )
    return machine.arch(machine.load(str(path)))


def answered(
    arch: Arch, workload: Workload, objective: segments.Objective, weights: str = "streamed"
) -> Solution | Infeasible | str:
    """What is found, or the bound that it breaks."""
    try:
        return pipelined(arch, workload, objective, weights)
    except Violated as fault:
        return f"{fault}"


@pytest.mark.parametrize(
    ("objective", "buffers"), some(product(("energy", "latency", "edp"), TIGHT_BUFFERS), 0, 4, 8)
)
def test_no_dearer_than_einsums_in_turn_or_the_published_solver(
    objective: segments.Objective, buffers: tuple[int, str, str, str], tmp_path: Path
) -> None:
    """On buffers of a few words, which nests may pass by, the mapper without reuse finds what a search of
    parts of nodes does not.
    """
    dram_pj, reduce, capacity, bypass = buffers
    arch = few_words(
        tmp_path, f"capacity: {capacity}, actions_per_cycle: 1, bypass: {bypass}", dram_pj, reduce=reduce
    )
    for workload in (GATED, CHAIN):
        for weights in ("streamed", "pinned"):
            others = [published(arch, workload, "kapla", objective, weights)]
            if weights == "streamed":
                turn = solve.solve(arch, workload, SolverOptions(objective=objective))
                others += turn if isinstance(turn, list) else []
            options = SolverOptions(objective=objective, schedule="pipelined", weights=weights)
            own = solve.solve(arch, workload, options)
            found = own[0] if isinstance(own, list) else own
            costs = [
                objective_value(objective, one.energy_pj, one.latency_cycles)
                for one in others
                if isinstance(one, Solution)
            ]
            assert isinstance(found, Solution) or not costs
            if isinstance(found, Solution):
                assert objective_value(objective, found.energy_pj, found.latency_cycles) <= min(
                    costs, default=np.inf
                ) * (1 + 1e-9)


def test_what_the_published_solver_finds_outside_of_the_space_breaks_no_bound(tmp_path: Path) -> None:
    """Nine granules, where bounds are of 8 and 64: cheaper than all that is in the space, so no optimum of
    it.
    """
    arch = few_words(
        tmp_path,
        "capacity: 64 B, actions_per_cycle: 2, skip_first_read: false",
        dram="width_bits: 16, actions_per_cycle: 1, leak_mw: 0",
        lanes="{y: 1, x: 2}",
    )
    first, then = {"b": 9, "c": 1, "o": 3, "p": 5}, {"b": 9, "g": 2, "o": 3, "z": 4}
    windows = Workload(
        "windows",
        (
            einsum("A[b,o,p] += I[b,c,p] * W[o,c]", first, "A"),
            einsum("Y[b,o,z] += A[b,o,z+g] * V[o,g]", then, "Y"),
        ),
        frozenset({"W", "V"}),
    )
    found = answered(arch, windows, "energy")
    assert isinstance(found, Solution)
    assert found.optimality_gap == 0
    assert "no schedule of the searched space costs less (" in found.certificate


def test_floors_of_parts_by_hand() -> None:
    """m over two nodes at a corner: half of X and of A takes a link, a word of W one from node to node. W
    pinned, 240 words: nodes of 60 hold it in five parts at least.
    """
    e = CHAIN.einsums[0]
    dear, free = (
        stage_bounds.sharing_bounds(
            e,
            replace(MULTI, fanouts=(replace(MULTI.fanouts[0], hop_pj=pj), *MULTI.fanouts[1:])),
            StageContext(),
        )
        for pj in (1.0, 0.0)
    )
    at = next(
        i
        for i, row in enumerate(dear.tiles.tolist())
        if row == [{"m": 4}.get(rank, e.sizes()[rank]) for rank in dear.ranks]
    )
    assert np.isclose(dear.energy[at] - free.energy[at], 16 * (0.5 * 8 * 12 + 1.0 * 12 * 20 + 0.5 * 8 * 20))
    small = replace(
        MULTI, levels=(MULTI.levels[0], replace(MULTI.levels[1], capacity_bits=16 * 60), MULTI.levels[2])
    )
    own = stage_bounds.sharing_bounds(e, small, StageContext(pinned=frozenset({"W"})))
    assert own.nodes[own.energy < np.inf].min(initial=99) == 5


@pytest.mark.parametrize("seed", some([0, 3, 4], 0))
def test_nothing_that_is_drawn_is_better_where_machines_leak(seed: int) -> None:
    line, many = cheaper(seed, 100)
    assert line == ""
    assert many > 10


@pytest.mark.parametrize("seed", [0, 4, 7, 11, 17, 26])
def test_the_bound_is_below_the_best_of_small_workloads(seed: int) -> None:
    arch, workload, weights = random_case(seed)
    found = pipelined(arch, workload, "energy", weights)
    assert isinstance(found, Solution)
    g = segments.PipelineSearch(arch, workload, "energy", weights, Nodes(arch))
    least = pipeline._lower_bound(
        g, pipeline._lower_bounds(g, segments.ranges_of(g, pipeline_tiles=segments.ALL_TILE_COUNTS))
    )
    assert 0.3 * found.energy_pj < least <= found.energy_pj * (1 + 1e-9)


@pytest.mark.parametrize("steps", [0, 1, 12])
def test_the_floor_of_a_segment_is_below_what_is_found(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With no limits on cycles, and the least of them: what leaks at least; each limit more raises the floor,
    and never above what is found.
    """
    g = segments.PipelineSearch(MULTI, CHAIN, "energy", "streamed", Nodes(MULTI))
    r = next(r for r in segments.ranges_of(g) if not r.tile)
    members = segments.members_of(g, r)
    found = pipeline._segment(g, r, [None, None])
    assert members
    assert found
    monkeypatch.setattr("dse.solve.schedules.stage_bounds.BOUND_STEPS", steps)
    assert 0.5 * found.energy < pipeline._segment_bound(g, members, 1)[0] <= found.energy


@pytest.mark.parametrize("seed", range(amount(200)))
def test_no_choice_of_stages_costs_less_than_the_floor_of_its_pipeline(seed: int) -> None:
    """Ways of stages are drawn; every choice of them is priced as the evaluator does, ramp-up included."""
    rng, nodes = Random(seed), 6
    tiles, leak = rng.choice([1, 2, 8]), rng.choice([0.0, 0.3, 3.0])
    work = [rng.choice([0.0, 1.0, 4.0, 9.0]) for _ in range(rng.randint(1, 3))]
    stages = []
    for w in work:
        n = np.array([rng.randint(1, nodes) for _ in range(4)])
        energy = np.array([rng.uniform(1, 60) for _ in range(4)])
        stages.append(SharingBounds((), n[:, None], n, energy, w * nodes / n * rng.choice([1.0, 1.3])))
    shared = rng.choice([0.0, 10.0, 100.0])
    least = minimum_filled_cycles(work, tiles)
    bound = minimum_filled_energy(stages, nodes, tiles, max(shared, least), sum(work), leak)
    best = np.inf
    for choice in product(range(4), repeat=len(stages)):
        cycles = [float(one.cycles[i]) for one, i in zip(stages, choice, strict=True)]
        if sum(int(one.nodes[i]) for one, i in zip(stages, choice, strict=True)) <= nodes:
            assert filled_cycles(cycles, tiles) >= least * (1 - 1e-9)
            pj = sum(float(one.energy[i]) for one, i in zip(stages, choice, strict=True))
            best = min(best, tiles * pj + leak * max(filled_cycles(cycles, tiles), shared))
    assert bound <= best * (1 + 1e-9)
    assert bound >= 0.4 * best or best == np.inf


@pytest.mark.parametrize("seed", range(amount(12, 8)))
def test_no_stage_costs_less_than_the_floor_of_its_part(seed: int) -> None:
    """Chains of two and einsums alone, in any parts, all at once or in granules, weights streamed or
    pinned."""
    rng, seen = Random(seed), 0
    m, k, n, o = (rng.choice([4, 6, 8, 12, 20]) for _ in range(4))
    chain = Workload(
        "chain",
        (
            einsum("A[m,n] += X[m,k] * W[k,n]", {"m": m, "k": k, "n": n}, "a"),
            einsum("B[m,n] += A[m,k] * V[k,n]", {"m": m, "k": n, "n": o}, "b"),
        ),
        frozenset({"W", "V"}),
    )
    g = segments.PipelineSearch(MULTI, chain, "energy", rng.choice(["streamed", "pinned"]), Nodes(MULTI))
    r = rng.choice(segments.ranges_of(g, pipeline_tiles=segments.ALL_TILE_COUNTS))
    members = segments.members_of(g, r)
    assert members
    many, own = (
        chain.einsums[0].points() // members[0][0].points(),
        [pipeline._sharing_bounds(g, e, around) for e, around in members],
    )
    for _ in range(40):
        at = [rng.choice(np.flatnonzero(ways.energy < np.inf).tolist()) for ways in own]
        stages = [
            g.nodes.stage(e, ways.tile(i, e), around, "energy")
            for (e, around), ways, i in zip(members, own, at, strict=True)
        ]
        if not all(stages) or not (places := segments.place_regions(g, stages)):  # type: ignore[arg-type]
            continue
        text = segments.to_segment(g, r, chain.einsums, stages, places, [around for _, around in members])  # type: ignore[arg-type]
        found = segments.price_of(g, chain.einsums, text)
        cycles = many * max(float(ways.cycles[i]) for ways, i in zip(own, at, strict=True))
        assert found is None or (
            many * sum(float(ways.energy[i]) for ways, i in zip(own, at, strict=True))
            <= found.energy * (1 + 1e-9)
            and cycles <= found.initiation_interval * (1 + 1e-9)
        )
        seen += found is not None
    assert seen


@settings(max_examples=amount(60), deadline=None, report_multiple_bugs=False)
@given(st.integers(0, 10**9))
def test_rectangles_do_all_the_parts(seed: int) -> None:
    """Every index of the result in exactly one lane, no lane outside of the rectangle, no part larger than
    said.
    """
    rng = Random(seed)
    e = einsum(
        "C[b,m,n] += A[b,m,k] * B[b,k,n]",
        {"b": rng.randint(1, 9), "m": rng.randint(1, 30), "n": rng.randint(1, 40), "k": 2},
        "e",
    )
    tile = rng.choice(list(tiles(e, 16)))
    for shape in shapes(e, tile, MULTI):
        used = {"NY": 1, "NX": 1}
        parts = {rank: [(0, n)] for rank, n in e.extents}
        for loop in shape.loops:
            used[loop.over] *= max(-(-(high - low) // loop.tile) for low, high in parts[loop.rank])
            parts[loop.rank] = [
                (at, min(at + loop.tile, high))
                for low, high in parts[loop.rank]
                for at in range(low, high, loop.tile)
            ]
        assert used["NY"] <= shape.rows <= 4
        assert used["NX"] <= shape.columns <= 4
        for rank, n in e.extents:
            assert [i for low, high in parts[rank] for i in range(low, high)] == list(range(n))
            assert max(high - low for low, high in parts[rank]) <= tile.get(rank, n)


def test_stages_lie_beside_each_other() -> None:
    g = segments.PipelineSearch(MULTI, CHAIN, "energy", "streamed", Nodes(MULTI))
    rng = Random(3)
    seen = 0
    for _ in range(200):
        sides = [(rng.randint(1, 4), rng.randint(1, 4)) for _ in range(rng.randint(1, 5))]
        stages = [Stage((), Mapping(()), (Shape(y, x, ()),), 1.0, 1.0) for y, x in sides]
        found = segments.place_regions(g, stages)
        if found is None:
            assert sum(y * x for y, x in sides) > 16 or len(sides) > 1
            continue
        seen += 1
        lanes = [
            (y + i, x + j)
            for shape, y, x in found
            for i, j in product(range(shape.rows), range(shape.columns))
        ]
        assert len(lanes) == len(set(lanes)) == sum(y * x for y, x in sides)
        assert all(0 <= y < 4 and 0 <= x < 4 for y, x in lanes)
    assert seen > 20


@cache
def pinned_chain() -> Solution | Infeasible:
    return pipelined(MULTI, CHAIN, "energy", "pinned")


@pytest.mark.xdist_group("pinned_chain")
def test_a_chain_side_by_side_moves_nothing_but_its_ends() -> None:
    found = pinned_chain()
    assert isinstance(found, Solution)
    assert len(found.segments) == 1
    assert found.segments[0].on_chip == (("A", "GBUF"),)
    moved = {
        (row.tensor, row.action): row.elems for c in found.einsums for row in c.counts if row.level == "DRAM"
    }
    assert moved == {("X", "read"): moved["X", "read"], ("B", "write"): 48}
    assert "pinned" in found.certificate
    assert "pipelines of up to 6 einsums" in found.certificate
    assert found.optimality_gap < 2
    if FULL:
        again = pipelined(MULTI, CHAIN, "energy", "pinned")
        assert isinstance(again, Solution)
        assert str(again.schedule) == str(found.schedule)


@pytest.mark.xdist_group("pinned_chain")
def test_cycles_of_a_run_back_to_back_keep_to_a_limit() -> None:
    free = pinned_chain()
    assert isinstance(free, Solution)
    limit = free.initiation_interval_cycles
    found = pipelined(MULTI, CHAIN, "energy", "pinned", interval_limit=limit)
    assert isinstance(found, Solution)
    assert found.initiation_interval_cycles <= limit
    assert found.energy_pj <= free.energy_pj * 1.1
    assert found.latency_cycles >= found.initiation_interval_cycles
    none = pipelined(MULTI, CHAIN, "energy", "pinned", interval_limit=1.0)
    assert isinstance(none, Infeasible)
    assert str(none).startswith("chain: the fastest run that was found (solver.initiation_interval) needs ")
    assert str(none).endswith(" cycles, has 1")


@pytest.mark.parametrize("of", ["interval_limit", "latency_limit"])
def test_under_a_limit_a_faster_way_of_one_einsum_is_weighed_against_that_of_another(of: str) -> None:
    """Against every choice of a way per einsum; which one has to be faster is not told by its own costs."""
    fast_memory = replace(MULTI.levels[0], bandwidth=4000.0, leak_mw=10.0)
    arch, w = replace(MULTI, levels=(fast_memory, *MULTI.levels[1:])), chain_of(32)
    free = segments.PipelineSearch(arch, w, "energy", "streamed", Nodes(arch))
    slowest = sum(one.latency for one in segments.solve_alone(free, pipeline._alone) if one)
    weighed = 0
    for share in (0.5, 0.65, 0.8, 0.95):
        g = replace(free, alone_memo={}, **{of: share * slowest})
        alone = segments.solve_alone(g, pipeline._alone)
        choices = [*product(*(one.ways() for one in alone if one))]
        sums = [(sum(way.energy for way in ways), sum(way.latency for way in ways)) for ways in choices]
        within = [one for one in sums if one[1] <= share * slowest]
        found = segments.best_chain(g, alone, {})
        if isinstance(found, Infeasible):
            assert not within
            continue
        assert found.latency_cycles <= share * slowest
        assert found.energy_pj <= min(within, default=(np.inf,))[0] * (1 + 1e-9)
        weighed += min(within)[0] > min(sums)[0]
    assert weighed


def test_of_two_limits_a_way_that_takes_less_of_either_is_kept() -> None:
    g = replace(
        segments.PipelineSearch(MULTI, CHAIN, "energy", "streamed", Nodes(MULTI)),
        interval_limit=9.0,
        latency_limit=9.0,
    )
    ways = {"cheap": (1.0, 8, 8), "soon": (2.0, 9, 5), "often": (3.0, 4, 9), "worse": (4.0, 5, 9)}
    ways |= {"late": (0.5, 4, 10), "both": (5.0, 3, 3)}
    option = None
    for energy, interval, latency in ways.values():
        found = segments.Option(Segment(()), energy, latency, interval)
        option = segments.cheaper(g, option, found)
    assert option
    assert [way.energy for way in option.ways()] == [1, 2, 3, 5]


@pytest.mark.parametrize("name", some(["tiny_held", "chain3_held"], 0))
def test_weights_that_fit_are_loaded_once(name: str, tmp_path: Path) -> None:
    """Schedules that were reported with held weights, where the search without them found dearer ones."""
    case, given_schedule, _ = reported(name, tmp_path)
    given_cost = evaluate(case.arch, case.workload, given_schedule)
    found = solve.solve(case.arch, case.workload, SolverOptions(schedule="pipelined"))
    assert isinstance(given_cost, Solution)
    assert isinstance(found, list)
    assert found[0].energy_pj <= given_cost.energy_pj
    assert "taken: held weights)" in found[0].certificate
    assert "hold GBUF W1" in str(found[0].schedule)


def test_what_is_read_with_padding_around_it_is_handed_on_too() -> None:
    """Image by image; equal to a walk of every element."""
    n, c, p = 4, 2, 4
    chain = Workload(
        "padded",
        tuple(
            einsum(
                f"T{i}[n,k,p] += T{i - 1}[n,c,p+r-1] * W{i}[k,c,r]",
                {"n": n, "k": c, "c": c, "p": p, "r": 3},
                f"e{i}",
                sizes={f"T{i - 1}": (n, c, p)},
            )
            for i in (1, 2)
        ),
        frozenset({"W1", "W2"}),
    )
    g = segments.PipelineSearch(MULTI, chain, "energy", "streamed", Nodes(MULTI))
    assert [
        r.tile
        for r in segments.ranges_of(g, pipeline_tiles=segments.ALL_TILE_COUNTS)
        if r.ranks[:1] == ("n",)
    ] == [2, 1]
    found = pipelined(MULTI, chain, "energy")
    assert isinstance(found, Solution)
    assert found.schedule
    assert found.segments[0].on_chip == (("T1", "GBUF"),)
    assert not walked(
        replace(MULTI, fanouts=tuple(replace(f, hop_pj=0.0, endpoint_pj=0.0) for f in MULTI.fanouts)),
        chain,
        found.schedule,
    )


def test_equal_segments_are_solved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    solved: list[int] = []
    monkeypatch.setattr("dse.solve.schedules.pipeline._segment", lambda g, r, *rest: solved.append(r.first))
    for many in (4, 9) if FULL else (7,):
        layers = tuple(
            einsum(f"T{i}[m,n] += T{i - 1}[m,k] * W{i}[k,n]", {"m": 4, "n": 6, "k": 6}, f"e{i}")
            for i in range(1, many + 1)
        )
        pipelined(MULTI, Workload("deep", layers, frozenset()), "energy", temporal=False)
    assert len(solved) <= 2 * segments.MAX_STAGES


def test_switches_keep_einsums_in_turn_or_whole() -> None:
    alone = pipelined(MULTI, CHAIN, "latency", "streamed", spatial=False)
    assert (isinstance(alone, Solution) and alone.schedule is None) or not any(
        s.pipelined for s in alone.schedule.segments
    )  # type: ignore[union-attr]
    whole = pipelined(MULTI, CHAIN, "latency", "streamed", temporal=False)
    assert isinstance(whole, Solution)
    assert all(row.pipeline_tiles in (0, 1) for row in whole.segments)


def test_where_nothing_fits_the_answer_says_so() -> None:
    tiny = replace(
        MULTI, levels=(MULTI.levels[0], replace(MULTI.levels[1], capacity_bits=16), MULTI.levels[2])
    )
    found = pipelined(tiny, CHAIN, "energy")
    assert isinstance(found, Infeasible)
    assert str(found) == "a: GBUF needs 6 bytes, has 2"
    assert published(tiny, CHAIN, "kapla", "energy") == found


@pytest.mark.parametrize("steady", some([np.inf, 1.0], 0))
@pytest.mark.parametrize(
    ("words", "says"),
    some(
        [
            (12, "a: GBUF with pinned weights needs 34 bytes, has 24"),
            (24, "chain: GBUF with pinned weights needs 49 bytes, has 48"),
        ],
        1,
    ),
)
def test_weights_that_the_nodes_cannot_hold_are_told_with_what_they_need(
    words: int, says: str, steady: float
) -> None:
    """W has 240 words: 15 on each of 16 nodes beside one of X and A each. V has 120: 22.5 in the mean."""
    tight = replace(
        MULTI, levels=(MULTI.levels[0], replace(MULTI.levels[1], capacity_bits=16 * words), MULTI.levels[2])
    )
    assert str(pipelined(tight, chain_of(2), "energy", "pinned", interval_limit=steady)) == says


def test_a_buffer_that_may_be_passed_needs_room_for_what_stays_alone() -> None:
    tight = replace(
        MULTI,
        levels=(
            MULTI.levels[0],
            replace(MULTI.levels[1], capacity_bits=16 * 12, bypass=True),
            MULTI.levels[2],
        ),
    )
    assert (
        str(pipelined(tight, CHAIN, "energy", "pinned"))
        == "a: GBUF with pinned weights needs 30 bytes, has 24"
    )


def test_lanes_that_leak_are_billed_once() -> None:
    """As on gogeta_clusters: a bound that has what lanes leak twice lies above the cost, which stops a
    run."""
    leaky = replace(MULTI, compute=replace(MULTI.compute, leak_mw=50.0))
    assert lower_bound(CHAIN.einsums[0], leaky) == lower_bound(CHAIN.einsums[0], MULTI)
    for arch in (leaky, machine.arch(machine.load("gogeta_clusters"))):
        for found in (pipelined(arch, CHAIN, "energy"), published(arch, CHAIN, "kapla", "energy")):
            assert isinstance(found, Solution)
            assert found.optimality_gap < 2.5


def test_weights_stay_in_buffers_that_may_be_passed_by() -> None:
    """Descended and drawn nests may leave out the buffer that pinned weights stand in: these are none, and
    the exact mapper is asked.
    """
    past = replace(
        MULTI,
        levels=(
            MULTI.levels[0],
            replace(MULTI.levels[1], bypass=True),
            replace(MULTI.levels[2], bypass=True),
        ),
    )
    for name in ("kapla", "kapla-random"):
        found = published(past, NETWORK, name, "energy", "pinned")
        assert isinstance(found, Solution)
        where = {(level, t) for c in found.einsums for level, t, _ in c.footprint}
        assert {("GBUF", "W"), ("GBUF", "V"), ("GBUF", "U")} <= where


def test_parts_are_equal_where_hops_of_unequal_ones_are_not_counted() -> None:
    """A drawn nest brings X in twice in some of its lanes of 250 and 232."""
    e = einsum("Z[b,z] += X[b,i] * W[z,i]", {"b": 64, "z": 4000, "i": 1000}, "z")
    multi = machine.arch(machine.load("kapla_multi"))
    found = published(multi, Workload("z", (e,), frozenset({"W"})), "kapla-random", "energy")
    assert isinstance(found, Solution)
    g = segments.PipelineSearch(multi, CHAIN, "energy", "streamed", Nodes(multi))
    (uneven, _), (even, _) = (
        spread_over_nodes(g, e, Shape(16, 16, ()), split_ranks(e), either) for either in (False, True)
    )
    cut = [[(loop.rank, loop.tile) for loop in shape.loops] for shape in (uneven, even)]
    assert ("z", 250) in cut[0]
    assert ("z", 32) in cut[0]
    assert cut[1] == [("z", 250), ("z", 125), ("b", 8)]
    assert (even.rows, even.columns) == (16, 16)


def test_a_segments_estimate_is_below_what_it_is_solved_for() -> None:
    """Of stages side by side the longest decides, not their sum: the upper level of the published solver
    drops by a bound.
    """
    for objective in ("energy", "latency"):
        g = segments.PipelineSearch(MULTI, NETWORK, objective, "streamed", Nodes(MULTI))  # type: ignore[arg-type]
        known = {
            r: scheme for r in segments.ranges_of(g, 5, segments.ALL_TILE_COUNTS) if (scheme := _scheme(g, r))
        }
        _, made, _ = options(g, list(known), "kapla-exhaustive")
        assert made
        assert all(
            known[r].energy <= one.energy * (1 + 1e-9) and known[r].cycles <= one.latency * (1 + 1e-9)
            for r, one in made.items()
        )


@pytest.mark.parametrize(
    ("sets", "says"),
    [
        (
            {"solver.schedule": "pipelined"},
            "needs nodes in rows and columns between main memory and a buffer in each",
        ),
        (
            {"solver.schedule": "kapla"},
            "solver.schedule = kapla needs nodes in rows and columns between main memory and a "
            "buffer in each",
        ),
        ({"solver.schedule": "kapla", "solver.mapper": "annealing"}, "needs the mapper optimal"),
        (
            {
                "solver.schedule": "kapla-random",
                "solver.spatial_layer_pipe": False,
                "solver.temporal_layer_pipe": True,
            },
            "needs stages that run at once",
        ),
        (
            {"solver.schedule": "kapla", "solver.initiation_interval": 6000.0},
            "is a choice of solver.schedule: pipelined; take that, or leave it out",
        ),
        (
            {"solver.weights": "pinned"},
            "is a choice of solver.schedule: pipelined; take that, or leave it out",
        ),
        ({"solver.schedule": "pipelined", "solver.mapper": "annealing"}, "needs the mapper optimal"),
        (
            {
                "solver.schedule": "pipelined",
                "solver.spatial_layer_pipe": False,
                "solver.temporal_layer_pipe": True,
            },
            "needs stages that run at once",
        ),
        (
            {"solver.schedule": "pipelined", "solver.factors": "perfect"},
            'solver.factors = "perfect" is a choice of unfused and fused schedules: segments of',
        ),
        (
            {"solver.schedule": "kapla", "solver.factors": "perfect"},
            'solver.schedule = "kapla" do not obey it; leave it out',
        ),
        (
            {"solver.schedule": "pipelined", "solver.gap": 0.0},
            "solver.gap = 0.0 is a choice of unfused and fused schedules: segments of",
        ),
    ],
)
def test_contradicting_choices_are_one_line(sets: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says) as fault:
        api.map("gemm:m=8,n=8,k=8", "edge_array", **sets)
    assert len(str(fault.value).splitlines()) == 1


def test_the_command_prints_segments_and_their_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        cli.main(
            [
                "map",
                "gemm:m=16,n=32,k=8",
                "kapla_multi_4x4",
                "--set",
                "solver.schedule=pipelined",
                "--format",
                "schedule",
            ]
        )
        == 0
    )
    assert capsys.readouterr().out.startswith("segment")


NETWORK = Workload(
    "network",
    (*CHAIN.einsums, einsum("C[m,n] += B[m,k] * U[k,n]", {"m": 8, "k": 6, "n": 9}, "c")),
    frozenset({"W", "V", "U"}),
)


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("kapla", "streamed"),
        ("kapla", "pinned"),
        ("kapla-exhaustive", "streamed"),
        ("kapla-random", "streamed"),
        ("kapla-annealing", "pinned"),
    ],
)
def test_published_methods_find_schedules_and_say_what_they_left_out(
    name: str, weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for of, fewer in (("RANDOM_MAPPINGS", 4), ("ANNEALING_ROUNDS", (1, 2)), ("ALL_TILE_COUNTS", (8,))):
        monkeypatch.setattr(f"dse.solve.kapla.published.{of}", fewer)
    found = published(MULTI, NETWORK, name, "energy", weights)
    assert isinstance(found, Solution)
    assert f"not proven optimal ({name}, " in found.certificate
    assert [row.einsums for row in found.pruned] == [("a", "b"), ("a", "b", "c"), ("b", "c")]
    assert all(row.schemes == 2 and row.schemes >= row.valid >= row.solved for row in found.pruned)
    if FULL or name == "kapla-random":
        again = published(MULTI, NETWORK, name, "energy", weights)
        assert isinstance(again, Solution)
        assert str(again.schedule) == str(found.schedule)
        assert again.energy_pj == found.energy_pj
    if name == "kapla" and FULL:
        whole = pipelined(MULTI, NETWORK, "energy", weights)
        assert isinstance(whole, Solution)
        assert whole.energy_pj <= found.energy_pj * (1 + 1e-9)


@pytest.mark.parametrize("objective", some(["energy", "latency", "edp"], 0))
def test_exhaustive_search_costs_no_more_than_the_published_one(
    objective: segments.Objective, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the exact mapper of a node ends with the first nest it places."""
    monkeypatch.setattr("dse.solve.kapla.published.ALL_TILE_COUNTS", (8,))
    monkeypatch.setattr("dse.solve.schedules.stages.SEARCH_BUDGET", 3)
    own, other = (published(MULTI, NETWORK, name, objective) for name in ("kapla-exhaustive", "kapla"))
    assert isinstance(own, Solution)
    assert isinstance(other, Solution)
    costs = [objective_value(objective, one.energy_pj, one.latency_cycles) for one in (own, other)]
    assert costs[0] <= costs[1] * (1 + 1e-12)


CONVOLVED = Workload(
    "convolved",
    (
        einsum(
            "A[k,p,q] += X[c,p+r,q+s] * W[k,c,r,s]", {"k": 8, "p": 4, "q": 4, "c": 4, "r": 3, "s": 3}, "a"
        ),
        einsum("B[n,p,q] += A[k,p,q] * V[n,k]", {"n": 8, "p": 4, "q": 4, "k": 8}, "b"),
    ),
    frozenset({"W", "V"}),
)


@pytest.mark.parametrize(
    ("name", "options", "method"),
    some(
        [
            (name, options, method)
            for name, options in (
                ("kapla_multi_rs", {}),
                ("kapla_edge_tpu", {}),
                ("kapla_multi_4x4", {"dataflow": "row_stationary"}),
            )
            for method in ("pipelined", "kapla", "kapla-exhaustive", "kapla-random", "kapla-annealing")
        ],
        *(1, 5, 11),
    ),
)
def test_nests_of_nodes_keep_the_rules_of_the_array(
    name: str, options: dict[str, str], method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row-stationary and systolic arrays, by rules of a machine or a dataflow; without them some are broken,
    or nothing is lost.
    """
    for of, fewer in (("RANDOM_MAPPINGS", 8), ("ANNEALING_ROUNDS", (1, 8)), ("ALL_TILE_COUNTS", (2,))):
        monkeypatch.setattr(f"dse.solve.kapla.published.{of}", fewer)
    arch = machine.load_arch(name)
    given = SolverOptions(schedule=method, **options)  # type: ignore[arg-type]
    own, free = (
        solve.solve(one, CONVOLVED, some_options)
        for one, some_options in ((arch, given), (replace(arch, mapping=()), replace(given, dataflow="free")))
    )
    assert isinstance(own, list)
    assert isinstance(free, list)

    def broken_by(found: Solution) -> list[str]:
        turns = sequential(CONVOLVED, {c.name: c.mapping for c in found.einsums})
        schedule = found.schedule or turns
        nests = {b.einsum: b.mapping for segment in schedule.segments for b in segment.branches}
        rules = {e.name: given.constraints(e, node_of(arch)) for e in CONVOLVED.einsums}
        return [line for e in CONVOLVED.einsums for line in broken(rules[e.name], nests[e.name], e, arch)]

    assert not broken_by(own[0])
    assert broken_by(free[0]) or method != "pipelined" or own[0].energy_pj == free[0].energy_pj
    if method == "pipelined":
        assert own[0].energy_pj >= free[0].energy_pj / (1 + free[0].optimality_gap) * (1 - 1e-9)
        assert own[0].space
        assert any(one.rules or one.dataflow == "row_stationary" for one in own[0].space.mappings)


def test_nodes_are_asked_once_per_rule() -> None:
    """Equal parts of two einsums, of which a rule names one."""

    limits = tuple(Limit("spatial", at, rank, 1, 1, "") for at in "YX" for rank in "mn")
    nodes = Nodes(MULTI, rules={"a": Constraints(limits=limits)})
    nests = [
        stage.nest
        for name in "ab"
        for e in [einsum("C[m,n] += A[m,k] * B[k,n]", {"m": 8, "n": 8, "k": 4}, name)]
        if (stage := nodes.stage(e, {}, StageContext(), "energy"))
    ]
    spatial = [{n.rank for n in nest.nodes if isinstance(n, Loop) and n.over} for nest in nests]
    assert not spatial[0] & {"m", "n"}
    assert spatial[1] & {"m", "n"}


@pytest.mark.parametrize(
    "rule", ["{at: ny, ranks: [m]}", "{at: dram, factors: {m: 1}}", "{utilization: 0.5}"]
)
def test_rules_outside_of_nodes_are_refused_in_one_line(rule: str) -> None:
    rules = read_rules([yaml.safe_load(rule)])
    options = SolverOptions(schedule="pipelined", mapping=rules)
    with pytest.raises(ValueError, match=r"does not go with solver.schedule = pipelined, .*\(regf, y, x\)"):
        solve.solve(MULTI, CHAIN, options)


def test_what_cannot_fit_falls_and_nothing_that_does() -> None:
    """A pinned weight of 240 words on 16 nodes of 8 words each fits no way; with 70 words each it fits,
    though no single node holds it.
    """

    def left(words: int) -> list[int]:
        small = replace(
            MULTI,
            levels=(MULTI.levels[0], replace(MULTI.levels[1], capacity_bits=16 * words), MULTI.levels[2]),
        )
        g = segments.PipelineSearch(small, CHAIN, "energy", "pinned", Nodes(small))
        return [r.tile for r in segments.ranges_of(g, 5, segments.ALL_TILE_COUNTS) if _scheme(g, r)]

    assert left(8) == []
    assert left(70) == [0, 4, 2, 1]


def test_a_method_that_finds_nothing_speaks_of_what_it_tried() -> None:
    """Weights of 240 words, cut as KAPLA cuts them, leave no room on nodes of 36; it does not follow that
    nothing fits.
    """
    small = replace(
        MULTI, levels=(MULTI.levels[0], replace(MULTI.levels[1], capacity_bits=16 * 36), MULTI.levels[2])
    )
    found = published(small, CHAIN, "kapla", "energy", "pinned")
    assert (
        str(found)
        == "a: the search needs 1 schedule with its weights pinned at GBUF among those it tried, has 0"
    )


def test_more_chains_are_no_worse_and_all_of_them_are_all_segments() -> None:
    found = [published(MULTI, NETWORK, "kapla", "energy", beam=kept) for kept in (1, 2, 4, 64)]
    energies = [one.energy_pj for one in found if isinstance(one, Solution)]
    assert energies == sorted(energies, reverse=True)
    assert len(energies) == 4
    assert sum(row.solved > 0 for row in found[-1].pruned) >= sum(row.solved > 0 for row in found[0].pruned)  # type: ignore[union-attr]


def test_an_answer_is_kept_with_what_was_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSE_CACHE", str(tmp_path))
    options = SolverOptions(schedule="kapla")
    first = solve.cached(MULTI, NETWORK, options)
    monkeypatch.setattr(solve, "solve_schedule", lambda *_: pytest.fail("asked again"))
    assert first == solve.cached(MULTI, NETWORK, options)
    assert isinstance(first, list)
    assert first[0].pruned


def room_for(words: int) -> Arch:
    level = replace(MULTI.levels[1], capacity_bits=16 * words)
    return replace(MULTI, levels=(MULTI.levels[0], level, MULTI.levels[2]))


def alone_with(monkeypatch: pytest.MonkeyPatch, arch: Arch, e: Einsum, **without: object) -> segments.Option:
    """The published solver's way to run an einsum alone, with functions of it replaced."""
    workload = Workload("one", (e,), frozenset({"W"}))
    with monkeypatch.context() as patched:
        for name, other in without.items():
            patched.setattr(f"dse.solve.kapla.published.{name}", other)
        g = segments.PipelineSearch(arch, workload, "energy", "streamed", Nodes(arch))
        (found,), _, _ = options(g, [])
    assert found
    return found


def test_the_published_solver_loads_what_fits_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not once per pipeline tile, where that costs less; other nodes' weights stay where they are, too."""
    products = tuple(
        einsum(f"T{i + 1}[m,n] += T{i}[m,k] * W{i}[n,k]", {"m": 64, "k": 8, "n": 8}, f"e{i}")
        for i in range(2)
    )
    workload = Workload("chain", products, frozenset({"W0", "W1"}))
    arch = room_for(48)
    g = segments.PipelineSearch(arch, workload, "energy", "streamed", Nodes(arch))
    known = {
        r: scheme for r in segments.ranges_of(g, 5, segments.ALL_TILE_COUNTS) if (scheme := _scheme(g, r))
    }
    _, made, _ = options(g, list(known), "kapla-exhaustive")
    assert all(known[r].energy <= one.energy for r, one in made.items())  # estimates are lower bounds
    found = published(arch, workload, "kapla", "energy")
    monkeypatch.setattr("dse.solve.kapla.published._holdable", lambda *_: frozenset())
    loaded = published(arch, workload, "kapla", "energy")
    assert isinstance(found, Solution)
    assert isinstance(loaded, Solution)
    assert "hold GBUF W" in str(found.schedule)
    assert found.energy_pj < 0.97 * loaded.energy_pj
    assert evaluate(arch, workload, parse_schedule(str(found.schedule))).energy_pj == found.energy_pj  # type: ignore[union-attr]


def test_the_published_solver_shares_out_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    e = einsum("C[m,n] += A[m,k] * W[n,k]", {"m": 32, "k": 64, "n": 256}, "e")
    copied = alone_with(monkeypatch, room_for(512), e, _sharing=lambda *_, **__: ())
    shared = alone_with(monkeypatch, room_for(512), e)
    assert shared.segment.branches[0].mapping.shares
    assert shared.energy < 0.98 * copied.energy


def test_the_published_solver_splits_feature_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    """An image of 16 x 16 and two channels keeps 16 nodes at work, each with its halo."""
    e = einsum(
        "O[k,p,q] += I[c,p+r-1,q+s-1] * W[k,c,r,s]",
        {"k": 2, "c": 2, "p": 16, "q": 16, "r": 3, "s": 3},
        "e",
        sizes={"I": (2, 16, 16)},
    )
    whole = alone_with(monkeypatch, MULTI, e, _map_ranks=lambda *_: [])
    split = alone_with(monkeypatch, MULTI, e)
    cut = {n.rank for n in split.segment.branches[0].mapping.nodes if isinstance(n, Loop) and n.over == "NX"}
    assert cut <= {"p", "q"}
    assert cut
    assert split.latency < 0.3 * whole.latency
    assert split.energy < whole.energy


def test_all_ways_to_cut_ranks_over_nodes_are_those_of_a_listing() -> None:
    e = einsum("C[m,n] += A[m,k] * W[n,k]", {"m": 6, "k": 4, "n": 5}, "e")
    g = segments.PipelineSearch(MULTI, CHAIN, "energy", "streamed", Nodes(MULTI))
    ways = [way for way in product((1, 2, 4), repeat=2) if way[0] * way[1] <= 4]  # parts of m, of n
    for even in (False, True):
        found = {
            tuple(tile.get(rank, n) for rank, n in (("m", 6), ("n", 5)))
            for _, tile in _every_spread(g, e, Shape(4, 4, ()), "mn", even)
        }
        assert found == {
            tuple(ceil(ceil(n / down) / across) for n, down, across in zip((6, 5), *way, strict=True))
            for way in product(ways, repeat=2)
            if all(
                down * across <= n and not (even and n % (down * across))
                for n, down, across in zip((6, 5), *way, strict=True)
            )
        }


def test_what_exhaustive_search_does_not_cut_costs_no_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ways to cut an einsum over nodes are left out once their bound is above the best estimate."""
    for m, k, n in ((16, 24, 8), (8, 8, 40)):
        e = einsum("C[m,n] += A[m,k] * W[n,k]", {"m": m, "k": k, "n": n}, "e")
        g = segments.PipelineSearch(MULTI, CHAIN, "energy", "streamed", Nodes(MULTI))
        solver, around = StageSolver(g, True), (StageContext(), Shape(4, 4, ()))
        some_ways = _stages(solver, e, *around)
        with monkeypatch.context() as patched:
            patched.setattr("dse.solve.kapla.published._bound", lambda *_: -inf)
            all_ways = _stages(solver, e, *around)
        assert len(some_ways) < len(all_ways)
        assert min(one.energy for one in some_ways) == min(one.energy for one in all_ways)
