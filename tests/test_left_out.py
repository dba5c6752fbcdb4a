"""What searches of pipelines leave out without looking, and answer from memory: against all of it, at sizes
where each rule fires.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, product
from math import inf
from random import Random

import pytest

from dse.mapping.nest import Infeasible, Loop, Mapping, Store
from dse.mapping.schedule import Branch, Segment
from dse.solve.kapla import published
from dse.solve.kapla.published import Scheme
from dse.solve.schedules import pipeline, segments, stage_bounds
from dse.solve.schedules.pipeline import _sharing_bounds, pipelined
from dse.solve.schedules.segments import Option, PipelineSearch, Range
from dse.solve.schedules.stages import Nodes, Shape, Stage, StageContext
from hw import machine
from hw.arch import Arch, Compute, Fanout, Level
from tests.amount import FULL, amount
from tests.enumerated_pipelines import enumerated
from workloads.einsum import einsum
from workloads.graph import Workload

MULTI = machine.arch(machine.load("kapla_multi_4x4"))


def chain(sizes: Sequence[int], weights: frozenset[str] = frozenset()) -> Workload:
    return Workload(
        "chain",
        tuple(
            einsum(f"T{i + 1}[m,n] += T{i}[m,k] * W{i}[k,n]", {"m": 4, "k": k, "n": n}, f"e{i}")
            for i, (k, n) in enumerate(pairwise(sizes))
        ),
        weights,
    )


LAYERS = chain((6, 8, 10, 12, 14, 15), frozenset(f"W{i}" for i in range(5)))


def found(
    workload: Workload = LAYERS, weights: str = "streamed", objective: segments.Objective = "energy"
) -> PipelineSearch:
    return PipelineSearch(MULTI, workload, objective, weights, Nodes(MULTI))


def cost(energy: float, *names: str) -> Option:
    return Option(Segment(tuple(Branch(name, Mapping(())) for name in names)), energy, energy, energy)


def chains(first: int, n: int, made: list[Range]) -> list[list[Range]]:
    """All ways to run einsums from one on in segments; what is in none runs alone."""
    if first >= n:
        return [[]]
    return chains(first + 1, n, made) + [
        [r, *rest] for r in made if r.first == first for rest in chains(r.last + 1, n, made)
    ]


def least(alone: list[float], made: dict[Range, float]) -> float:
    return min(
        sum(made[r] for r in taken)
        + sum(own for i, own in enumerate(alone) if not any(r.first <= i <= r.last for r in taken))
        for taken in chains(0, len(alone), list(made))
    )


def test_segments_that_are_passed_over_are_in_no_cheaper_chain() -> None:
    """Costs are drawn above floors that are drawn: those of the cheapest chain are always asked for. Other
    figures do not add up, so nothing is passed over.
    """
    passed, ranges = 0, segments.ranges_of(found())
    for seed in range(60):
        rng = Random(seed)
        floors = [rng.uniform(1, 9) for _ in range(5)]
        alone = [one * rng.uniform(1, 1.2) for one in floors]
        low = {r: rng.uniform(0.6, 1.1) * sum(floors[r.first : r.last + 1]) for r in ranges}
        dear = {r: one * rng.uniform(1, 1.2) for r, one in low.items()}
        bounds = (
            [pipeline.Bound(one, one) for one in floors],
            {r: pipeline.Bound(one, one) for r, one in low.items()},
        )
        asked: dict[Range, float] = {}
        known = lambda alone=alone, asked=asked: least(alone, asked)
        for r in pipeline.segments_to_solve(*bounds, True, known):
            asked[r] = dear[r]
        assert least(alone, asked) == pytest.approx(least(alone, dear), rel=1e-12)
        assert set(pipeline.segments_to_solve(*bounds, False, known)) == set(ranges)
        passed += len(dear) - len(asked)
    assert passed > 500


def test_segments_add_up_where_only_energy_is_asked_for() -> None:
    """Not cycles, nor where pinned weights take room in all segments, nor to a limit."""
    others = found(objective="latency"), found(objective="edp"), found(weights="pinned")
    assert pipeline.costs_add_up(found())
    assert not any(map(pipeline.costs_add_up, (*others, replace(found(), interval_limit=9.0))))


def test_segments_that_are_no_candidates_hold_more_than_all_buffers() -> None:
    """240 words of weights and 2 * 32 of what is handed on, run after run, on 16 nodes."""
    one = chain((12, 8, 18), frozenset({"W0", "W1"}))
    for words, few in ((18, True), (19, False)):
        arch = replace(
            MULTI,
            levels=(MULTI.levels[0], replace(MULTI.levels[1], capacity_bits=16 * words), MULTI.levels[2]),
        )
        g = PipelineSearch(arch, one, "energy", "pinned", Nodes(arch))
        whole = next(r for r in segments.ranges_of(g) if not r.tile)
        assert segments.fits(g, whole) == (not few)


def test_equal_einsums_of_which_one_is_pinned_are_solved_each(monkeypatch: pytest.MonkeyPatch) -> None:
    same = chain((6,) * 5, frozenset({"W0", "W1"}))
    asked: list[str] = []

    def solve(_: PipelineSearch, e: object) -> Option:
        asked.append(e.name)  # type: ignore[attr-defined]
        return cost(1.0, asked[-1])

    segments.solve_alone(found(same, "pinned"), solve)  # type: ignore[arg-type]
    assert asked == ["e0", "e2"]
    segments.solve_alone(found(same), solve)  # type: ignore[arg-type]
    assert asked == ["e0", "e2", "e0"]


def test_segments_alike_are_so_in_all_that_costs() -> None:
    """Four pairs of equal einsums: as it is; its middle tensor leaves, for another one reads it; a pinned
    weight; the other rank shared, another granule.
    """

    def pair(i: int) -> list[str]:
        return [f"A{i}[m,n] += X{i}[m,k] * W{i}[k,n]", f"B{i}[m,n] += A{i}[m,k] * V{i}[k,n]"]

    texts = [*pair(0), *pair(1), *pair(2), *pair(3), "Z[m,n] += A1[m,k] * U[k,n]"]
    w = Workload(
        "pairs",
        tuple(einsum(text, {"m": 8, "k": 8, "n": 8}, f"e{i}") for i, text in enumerate(texts)),
        frozenset({"V2"}),
    )
    g = found(w, "pinned")
    own = {r: segments.isomorphism_key(g, r) for r in segments.ranges_of(g, pipeline_tiles=(2, 4))}
    pairs = {
        first: {one for r, one in own.items() if (r.first, r.last) == (first, first + 1)}
        for first in (0, 2, 4, 6)
    }
    assert pairs[0] == pairs[6]
    assert len(pairs[0]) == 3
    assert not pairs[0] & pairs[2]
    assert not pairs[0] & pairs[4]
    assert not pairs[2] & pairs[4]
    tall = Range(0, 1, frozenset({"A0"}), frozenset(), ("m", "m"), 4)
    assert (
        segments.isomorphism_key(g, tall)
        != segments.isomorphism_key(g, replace(tall, ranks=("k", "m")))
        != segments.isomorphism_key(g, replace(tall, tile=2))
    )


def test_bounds_of_stages_are_told_apart_by_what_they_are_handed() -> None:
    g, e = found(), LAYERS.einsums[1]
    cases = StageContext(), StageContext(forwarded=frozenset({"T1"})), StageContext(pinned=frozenset({"W1"}))
    free, handed, pinned = (float(_sharing_bounds(g, e, around).energy.min()) for around in cases)
    assert len({free, handed, pinned}) == 3
    assert max(handed, pinned) < free
    assert float(_sharing_bounds(g, e, StageContext(forwards=True, copies=2)).energy.min()) < free


def test_nodes_are_asked_anew_for_other_rooms_homes_and_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, ...]] = []
    monkeypatch.setattr(Nodes, "_search", lambda _, *given: asked.append(given))
    nodes, e = Nodes(MULTI), LAYERS.einsums[1]
    cases = [
        (e, StageContext(), "energy"),
        (e, StageContext(), "latency"),
        (e, StageContext(pinned=frozenset({"W1"})), "energy"),
        (e, StageContext(forwards=True), "energy"),
        (replace(e, extents=(("m", 4), ("k", 8), ("n", 9))), StageContext(), "energy"),
    ]
    for _ in range(2):
        for one, around, objective in cases:
            nodes.stage(one, {}, around, objective)
    assert len(asked) == len(cases)
    price = nodes._price
    monkeypatch.setattr(Nodes, "_price", lambda *given: 2 * price(*given[1:]))
    nodes.stage(e, {}, StageContext(), "energy")
    assert len(asked) == len(cases) + 1


def test_published_schemes_that_are_skipped_read_no_less_than_a_solved_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    skipped = 0
    for seed in range(amount(40)):
        rng = Random(seed)
        words = {t: tuple(float(rng.randrange(4)) for _ in range(3)) for t in range(1, 9)}
        fails = {t for t in words if rng.random() < 0.4}
        ranges = [Range(0, 1, frozenset({"T1"}), frozenset(), ("m", "m"), t) for t in words]
        asked: list[int] = []

        def solve(
            _: PipelineSearch, r: Range, __: object, asked: list[int] = asked, fails: set[int] = fails
        ) -> Option | None:
            asked.append(r.tile)
            return None if r.tile in fails else cost(1.0)

        monkeypatch.setattr(
            published, "_scheme", lambda _, r, words=words: Scheme(r, words[r.tile], 1.0, 1.0)
        )
        monkeypatch.setattr(published, "memo_isomorphic", solve)
        monkeypatch.setattr(published, "_alone", lambda _, e: cost(9.0, e.name))
        _, made, (row,) = published.options(found(), ranges, "kapla")
        assert {r.tile for r in made} == {t for t in asked if t not in fails}
        assert row.solved == len(asked)
        for t in words.keys() - set(asked):
            assert any(
                all(a <= b for a, b in zip(words[other], words[t], strict=True))
                for other in set(asked) - fails
            )
        least_read = [
            t
            for t in words
            if not any(o != t and all(a <= b for a, b in zip(words[o], words[t], strict=True)) for o in words)
        ]
        assert set(least_read) <= set(asked)
        skipped += len(words) - len(asked)
    assert skipped > amount(50)


def test_published_segments_are_those_of_the_cheapest_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    ranges = [r for r in segments.ranges_of(found(), 5) if not r.tile]
    for seed in range(amount(40)):
        rng = Random(seed)
        alone = [rng.uniform(1, 9) for _ in range(5)]
        made = {r: rng.uniform(0.5, 1.2) * sum(alone[r.first : r.last + 1]) for r in ranges}
        monkeypatch.setattr(
            published,
            "_lower_bound",
            lambda _, members, n, alone=alone: (alone[int(members[0][0].name[1:])], 0.0),
        )
        ranked = sorted(
            chains(0, 5, ranges),
            key=lambda taken: (
                sum(made[r] for r in taken)
                + sum(own for i, own in enumerate(alone) if not any(r.first <= i <= r.last for r in taken))
            ),
        )
        for kept in (1, 2, 4):
            wanted = {(r.first, r.last) for taken in ranked[:kept] for r in taken}
            assert (
                published._in_chains(found(), [Scheme(r, (), one, one) for r, one in made.items()], kept)
                == wanted
            )


def test_a_nest_that_has_a_home_in_registers_only_is_none() -> None:
    e = einsum("C[m,n] += A[m,k] * B[k,n]", {"m": 2, "k": 2, "n": 2}, "e")
    far, near = tuple(Store("DRAM", t) for t in "CAB"), tuple(Store("GBUF", t) for t in "CA")
    for offered, taken in ((Store("REGF", "B"), False), (Store("GBUF", "B"), True)):
        nest = Mapping((*far, *near, offered, Loop("n", 1), Loop("k", 1), Loop("m", 1), Store("REGF", "C")))
        stage = Nodes(MULTI, lambda _, nest=nest: [nest]).stage(
            e, {}, StageContext(pinned=frozenset({"B"})), "energy"
        )  # type: ignore[misc]
        assert stage
        assert Store("GBUF", "B") in stage.nest.nodes
        # the exact mapper spreads it over lanes
        assert taken == (not any(isinstance(node, Loop) and node.over for node in stage.nest.nodes))


def test_stages_side_by_side_take_the_longer_of_all_work_and_all_words() -> None:
    """One waits for its lanes, the other one for main memory."""
    slow = replace(MULTI, levels=(replace(MULTI.levels[0], bandwidth=200.0), *MULTI.levels[1:]))
    g = replace(found(), arch=slow)
    # 256 cycles, 12,288 words: 61.44
    heavy = einsum("C[m,n] += A[m,k] * B[k,n]", {"m": 64, "k": 64, "n": 64}, "heavy")
    # 32 cycles, 33,152 words: 165.76
    light = einsum("F[m,n] += D[m,k] * E[k,n]", {"m": 1, "k": 128, "n": 256}, "light")
    _, cycles = published._lower_bound(g, [(heavy, StageContext()), (light, StageContext())], 3)
    assert cycles == pytest.approx(3 * (256 + 32))  # not 256 + 165.76


def test_parts_that_bounds_know_are_the_smallest_of_as_many_lanes() -> None:
    e = einsum("C[m,n] += A[m,k] * B[k,n]", {"m": 7, "k": 3, "n": 10}, "e")
    known = {tuple(row) for row in stage_bounds.tilings(e, ["m", "n"], 16).tolist()}
    best: dict[tuple[int, int], tuple[int, int]] = {}
    for m, n in product(range(7, 0, -1), range(10, 0, -1)):
        if -(-7 // m) * -(-10 // n) <= 16:
            best[-(-7 // m), -(-10 // n)] = m, n
    assert known == set(best.values())
    assert len(known) > 20


def test_a_part_has_room_if_a_word_of_all_else_stands_beside_what_stays() -> None:
    # 240 words of B: 15 on each node
    e = einsum("C[m,n] += A[m,k] * B[k,n]", {"m": 4, "k": 12, "n": 20}, "e")
    for words in (16, 17):
        arch = replace(
            MULTI,
            levels=(MULTI.levels[0], replace(MULTI.levels[1], capacity_bits=16 * words), MULTI.levels[2]),
        )
        low = float(stage_bounds.sharing_bounds(e, arch, StageContext(pinned=frozenset("B"))).energy.min())
        assert (low < inf) == (words == 17)


def test_choices_are_found_where_nearly_all_need_too_many_nodes() -> None:
    """Each einsum has many ways that cost less the more nodes they take: the first that fit together lie
    behind all that are listed by energy.
    """
    rng = Random(3)
    for _ in range(amount(20, 8)):
        nodes, ways = (
            rng.choice([12, 16, 20]),
            [[stage(n, 100.0 / n + rng.random() * 0.1) for n in range(2, 18)] for _ in range(5)],
        )
        ways = [
            [*own, *(stage(n, one.energy * 1.0001) for n in (16, 17) for one in own[-2:] for _ in range(20))]
            for own in ways
        ]
        listed = list(pipeline._combinations(ways, nodes, max_listed=50))
        assert listed
        assert all(sum(one.nodes for one in choice) <= nodes for choice in listed)
        best = min(
            sum(one.energy for one in choice)
            for choice in product(*(own[:12] for own in ways))
            if sum(one.nodes for one in choice) <= nodes
        )
        assert min(sum(one.energy for one in choice) for choice in listed) <= best * 1.01


def stage(nodes: int, energy: float) -> Stage:
    return Stage((), Mapping(()), (Shape(1, nodes, ()),), energy, 1.0)


def test_nests_that_ask_other_nodes_less_often_are_not_left_out() -> None:
    """Two words go over one link once where the reader stores them, and with every result where it does not,
    though its buffer is read less then.
    """
    near = Level("GBUF", 4096, 16, 3.0, 5.0, 8.0, "separate", skip_first_read=False)
    mesh = Fanout(
        "NODES",
        1,
        (("NY", 2), ("NX", 2)),
        (True, True),
        (True, True),
        hop_pj=20.0,
        injected_at="edge",
        multicast_from="same_level",
    )
    arch = Arch(
        "mesh",
        (Level("DRAM", None, 16, 400.0, 400.0, 8.0, bypass=False), near),
        (mesh,),
        Compute(1.0, 0.5),
        0.5,
        16,
        overlap="buffered",
    )
    maker, reader = (
        einsum("H[b,m] += X[b,k] * W1[k,m]", {"b": 1, "k": 3, "m": 2}, "H"),
        einsum("Y[b,n] += H[b,m] * W2[m,n]", {"b": 1, "m": 2, "n": 3}, "Y"),
    )
    two = Workload("two", (maker, reader), frozenset(("W1", "W2")))
    least, found = 8024.0, pipelined(arch, two, "energy")
    if FULL:
        best = enumerated(arch, two, "energy")
        assert not isinstance(best, Infeasible)
        assert best.energy_pj == pytest.approx(least)
    # 8,984 are found, in turn
    assert not isinstance(found, Infeasible)
    assert found.energy_pj / (1 + found.optimality_gap) <= least * (1 + 1e-9)
    assert least <= found.energy_pj * (1 + 1e-9)
