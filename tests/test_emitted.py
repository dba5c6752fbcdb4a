"""Configurations of reuse as schedules: they move the words that what stays says, as a walk of every element
does, and the optimum moves least.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dse.frontend import api, runs
from dse.mapper.exact.optimal import optimal
from dse.mapping.nest import Infeasible
from dse.mapping.nest import Mapping as Nest
from dse.mapping.schedule import Schedule
from dse.sim.einsum.evaluate import Memory, Problem, Solution
from dse.sim.schedule.faults import faults
from dse.solve import solve
from dse.solve.gogeta import emitted
from dse.solve.gogeta import residency_plan as room
from dse.solve.gogeta.clusters import between_clusters
from dse.solve.gogeta.emitted import moved_words
from dse.solve.gogeta.gogeta_configs import cause_text
from dse.solve.gogeta.residency_plan import Lifetime, ResidencyProblem
from dse.solve.options import SolverOptions
from hw.arch import Arch, Compute, Fanout, Level
from tests.amount import amount, some
from tests.test_schedule_walks import compared
from workloads import hpc
from workloads.einsum import Einsum, einsum
from workloads.graph import Workload

ROOT = Path(__file__).parents[1]
NAMES = ("seq-flex", "seq-overflow", "gogeta", "gogeta-df", "residency")
GOGETA_MAP = {"solver.schedule": "gogeta", "solver.factors": "perfect"}
FLAT = Arch(
    "flat",
    (Level("DRAM", None, 8, 100.0, 100.0, 4.0, bypass=False), Level("GLB", 8 * 200, 8, 1.0, 1.0)),
    (),
    Compute(0.5, 0.5),
    1.0,
    8,
)
SLICES = replace(
    FLAT,
    levels=(FLAT.levels[0], replace(FLAT.levels[1], capacity_bits=8 * 60)),
    fanouts=(Fanout("clusters", 1, (("C", 4),), (True,), (True,)),),
)


def solved(arch: Arch, w: Workload, name: str) -> Solution:
    found = solve.solve(arch, w, SolverOptions(schedule=name, factors="perfect"))  # type: ignore[arg-type]
    assert isinstance(found, list), found
    return found[0]


def dram(solution: Solution) -> float:
    return sum(
        c.count * row.elems
        for c in solution.einsums
        for row in c.counts
        if row.level == "DRAM" and row.action in ("read", "write")
    )


@pytest.mark.parametrize(
    ("arch", "words"), some([(arch, n) for arch in (FLAT, SLICES) for n in (16, 48, 120, 400)], 4)
)
def test_a_solver_moves_what_a_walk_of_its_schedule_moves(arch: Arch, words: int) -> None:
    """Two iterations of CG on 24 rows and two columns, from room for next to nothing to room for all."""
    arch = replace(
        arch, levels=(arch.levels[0], replace(arch.levels[1], capacity_bits=8 * words // arch.instances(1)))
    )
    w = hpc.cg(rows=24, nnz=72, n=2, iterations=2)
    found = {name: solved(arch, w, name) for name in NAMES}
    for name, one in found.items():
        memory = one.memory
        assert memory is not None
        assert memory.moved_words == pytest.approx(dram(one))
        parts = (
            memory.listed_words,
            memory.in_registers_words,
            memory.not_fused_words,
            memory.reread_words,
            memory.capacity_words,
        )
        assert memory.moved_words == pytest.approx(sum(parts))
        assert f"schedule {name}" in one.certificate
        if one.schedule:
            assert compared(arch, w, one.schedule) == []
    assert dram(found["residency"]) <= min(map(dram, found.values())) + 1e-6
    assert any(
        one.schedule and any(segment.nodes for segment in one.schedule.segments) for one in found.values()
    )


def random_network(seed: int) -> Workload:
    """A chain of products with sums over what came before, as in residual networks; weights may be used
    twice.
    """
    rng = Random(seed)
    m, n = rng.choice([4, 6, 8, 12]), rng.choice([2, 3, 4])
    found, there, weights = [], ["X"], set()
    for i in range(rng.randint(2, 6)):
        a = rng.choice(there[-2:])
        if i and rng.random() < 0.4:
            found.append(
                einsum(
                    f"T{i}[m,n] = {a}[m,n] + {rng.choice([t for t in [*there, 'Z'] if t != a])}[m,n]",
                    {"m": m, "n": n},
                    f"e{i}",
                )
            )
        else:
            weight = f"W{rng.randint(0, 2)}"
            weights.add(weight)
            found.append(einsum(f"T{i}[m,n] += {a}[m,k] * {weight}[k,n]", {"m": m, "n": n, "k": n}, f"e{i}"))
        there.append(f"T{i}")
    return Workload("random", tuple(found), frozenset(weights))


def listed_and_moved(arch: Arch, w: Workload) -> str:
    """What a schedule moves is what its list of phases does, and more by causes that are told: the optimum is
    at no time below the bound of its list, which no other configuration's schedule undercuts; SEQ-Flex hides
    no operand and no result.
    """
    found = {name: solved(arch, w, name) for name in NAMES}
    memory = {name: one.memory for name, one in found.items() if one.memory}
    least = memory["residency"].listed_words
    below = [
        f"{name} moves {one.moved_words}, the optimal list {least}"
        for name, one in memory.items()
        if one.moved_words < least - 1e-6
    ]
    below += [
        f"{name}: {one.in_registers_words} words are left out of the list"
        for name, one in memory.items()
        if one.in_registers_words
    ]
    below += [
        f"{name} moves {one.moved_words}, its list {one.listed_words}, in no word"
        for name, one in memory.items()
        if abs(one.moved_words - one.listed_words) > 0.01 * one.listed_words
        and "in the list of phases: " not in found[name].certificate
    ]
    # where the list and the schedules rank two of them otherwise, a cause beyond the list is as large as the
    # difference
    for a, b in combinations(memory, 2):
        lists, moves = (
            (memory[a].listed_words - memory[b].listed_words),
            (memory[a].moved_words - memory[b].moved_words),
        )
        causes = sum(
            abs(getattr(memory[a], cause) - getattr(memory[b], cause))
            for cause in ("not_fused_words", "reread_words", "capacity_words")
        )
        below += (
            [f"{a} and {b} rank otherwise: {lists}, {moves}, {causes}"]
            if lists * moves < 0 and causes < abs(lists - moves) - 1e-6
            else []
        )
    return f"{w}: {below}" if below else ""


@pytest.mark.parametrize("seed", some(range(8), 0, 1, 2))
def test_no_schedule_moves_less_than_the_list_says(seed: int) -> None:
    words = Random(seed).randint(12, 150)
    arch = replace(FLAT, levels=(FLAT.levels[0], replace(FLAT.levels[1], capacity_bits=8 * words)))
    assert listed_and_moved(arch, random_network(seed)) == ""


@settings(max_examples=amount(40, 8), deadline=None)
@given(st.integers(0, 10**9), st.integers(12, 150), st.booleans())
def test_networks_move_what_a_walk_of_their_schedules_moves(seed: int, words: int, sliced: bool) -> None:
    arch = SLICES if sliced else FLAT
    arch = replace(
        arch,
        levels=(
            arch.levels[0],
            replace(arch.levels[1], capacity_bits=8 * max(words // arch.instances(1), 6)),
        ),
    )
    w = random_network(seed)
    found = {name: solved(arch, w, name) for name in ("gogeta", "residency")}
    for one in found.values():
        assert one.memory is not None
        assert one.memory.moved_words == pytest.approx(dram(one))
        assert not one.schedule or compared(arch, w, one.schedule) == []
    assert dram(found["residency"]) <= dram(found["gogeta"]) + 1e-6


def random_rooms(rng: Random) -> ResidencyProblem:
    count = rng.randint(2, 5)
    lives = []
    for i in range(rng.randint(1, 3)):
        stops = tuple(sorted(rng.sample(range(count), rng.randint(2, min(3, count)))))
        made, size = rng.random() < 0.6, rng.randint(1, 3)
        moves = tuple(float(size * rng.randint(1, 3)) for _ in stops)
        lives.append(
            Lifetime(
                f"T{i}",
                stops,
                "a",
                ("a",) * len(stops),
                size,
                1,
                float(size),
                moves,
                made,
                made and rng.random() < 0.2,
            )
        )
    heirs = []
    for at in range(count):
        dying, born = (
            [one for one in lives if one.stops[-1] == at],
            [one for one in lives if one.is_produced and one.stops[0] == at],
        )
        if dying and born and rng.random() < 0.7:
            heirs.append((at, dying[0].tensor, born[0].tensor))
    tiles = [
        (at, one.tensor, rng.randint(1, 2))
        for one in lives
        for at in one.stops[0 if one.is_produced else 1 :]
        if rng.random() < 0.3
    ]
    return ResidencyProblem(
        tuple(lives), tuple(rng.randint(0, 5) for _ in range(count)), tuple(heirs), tuple(tiles)
    )


def whole(rooms: ResidencyProblem, gaps: room.RetainedElems, tensor: str, at: int) -> bool:
    one = next(one for one in rooms.lives if one.tensor == tensor)
    return gaps[tensor][max(one.stops.index(at) - 1, 0)] == one.size


def fits(rooms: ResidencyProblem, gaps: room.RetainedElems, tiles: bool = True) -> bool:
    for at, free in enumerate(rooms.free_bits):
        held = {}
        for one in rooms.lives:
            there = [
                n for n, a, b in zip(gaps[one.tensor], one.stops, one.stops[1:], strict=False) if a <= at <= b
            ]
            held[one.tensor] = max(there, default=0)
        free += sum(
            bits
            for where, t, bits in rooms.spared_tiles
            if where == at and tiles and whole(rooms, gaps, t, at)
        )
        for where, old, new in rooms.heirs:
            if where == at:
                held[new], held[old] = max(held[old], held[new]), 0
        if sum(held.values()) > free:
            return False
    return True


@settings(max_examples=amount(150), deadline=None)
@given(st.integers(0, 10**9))
def test_what_stays_is_the_best_of_all_ways(seed: int) -> None:
    """It kills: a spill that costs nothing, an heir that takes room of its own, a segment at either end that
    is left out, a tile given back for a part.
    """
    rooms = random_rooms(Random(seed))
    spaces = [
        [list(each) for each in product(range(one.size + 1), repeat=len(one.stops) - 1)]
        for one in rooms.lives
    ]
    names = [one.tensor for one in rooms.lives]
    least = min(
        room.moved_words(rooms, gaps)
        for each in product(*spaces)
        if fits(rooms, gaps := dict(zip(names, each, strict=True)))
    )
    found = room.minimum(rooms)
    assert found.words <= least + 1e-6
    full = {one.tensor: found.retained.get(one.tensor, [0] * (len(one.stops) - 1)) for one in rooms.lives}
    assert fits(rooms, full)
    assert room.moved_words(rooms, full) >= found.words - 1e-6
    if found.words > least - 1e-6:
        return
    # a part of a word may stay: rounded down
    assert room.moved_words(rooms, full) <= least + sum(one.words for one in rooms.lives)


@settings(max_examples=amount(150), deadline=None)
@given(st.integers(0, 10**9))
def test_policies_fit_and_move_no_less_than_the_optimum(seed: int) -> None:
    rooms = random_rooms(Random(seed))
    for keeper in (room.seq_flex, room.seq_overflow, room.gogeta):
        gaps = {one.tensor: keeper(rooms).get(one.tensor, [0] * (len(one.stops) - 1)) for one in rooms.lives}
        assert fits(rooms, gaps, tiles=False)
        assert room.moved_words(rooms, gaps) >= room.minimum(rooms).words - 1e-6


def test_a_kept_schedule_moves_what_its_rooms_say() -> None:
    w = hpc.cg(rows=40, nnz=160, n=2, iterations=3)
    one = solved(
        replace(FLAT, levels=(FLAT.levels[0], replace(FLAT.levels[1], capacity_bits=8 * 150))), w, "residency"
    )
    assert one.schedule
    assert one.memory
    assert one.memory.saved_words > 0
    assert sum(moved_words(FLAT, w, one.schedule).values()) == pytest.approx(one.memory.moved_words)


def test_a_sweep_keeps_schedules_and_what_a_word_more_would_save(tmp_path: Path) -> None:
    study = tmp_path / "cg.yaml"
    text = (ROOT / "studies" / "hpc_cg.yaml").read_text()
    study.write_text(
        re.sub(
            r"workloads: .*",
            'workloads: [{workload: "cg:rows=600,nnz=2000,n=1,iterations=2", name: cg}]',
            text,
        )
    )
    space = {"sram.capacity": some(["2 KiB", "4 KiB", "64 KiB"], 0, 2), "clusters.cluster": [4]}
    run = runs.sweep(
        study,
        tmp_path / "run",
        workers=0,
        space=space,
        solver={"mapper": "cost_descending", "schedule": "residency"},
    )
    rows = list(
        run.sql(
            "SELECT m.sram_capacity AS bytes, s.* FROM schedules s JOIN machines m USING (machine) "
            "ORDER BY bytes"
        )
    )
    assert len(rows) == len(space["sram.capacity"])
    assert all(row["moved_words"] >= 0 for row in rows)
    for row in rows:
        parts = (
            row[f"{name}_words"] for name in ("listed", "in_registers", "not_fused", "reread", "capacity")
        )
        assert row["moved_words"] == pytest.approx(sum(parts))
        assert row["nest"].count("einsum ") == 22
    assert rows[0]["saved_words"] > 0 == rows[-1]["saved_words"]
    assert rows[0]["moved_words"] > rows[-1]["moved_words"]
    point = run.show("best")
    assert "schedule residency: lowest main-memory traffic" in point.text()
    assert all(
        row["bound_energy_pj"] <= row["energy_pj"]
        for row in run.sql("FROM machines JOIN points USING (machine)")
    )


def test_what_a_machine_or_workload_cannot_reuse_says_one_line() -> None:
    options = SolverOptions(schedule="residency")
    with pytest.raises(
        ValueError,
        match=r"^flat: solver.schedule = residency needs a bounded memory below main memory; give its "
        r"second memory a capacity$",
    ):
        solve.solve(replace(FLAT, levels=FLAT.levels[:1]), hpc.cg(rows=24, nnz=72), options)
    with pytest.raises(ValueError, match=r"needs each repetition as einsums of its own; take form=unrolled$"):
        solve.solve(FLAT, hpc.cg(rows=24, nnz=72, form="periodic"), options)
    with pytest.raises(
        ValueError,
        match=r"^layout C=N M: solver.schedule = residency counts no layouts; leave one of both out$",
    ):
        api.map("gemm:m=4,n=4,k=4", "edge_array", layouts=["C=N M"], **{"solver.schedule": "residency"})
    with pytest.raises(
        ValueError,
        match=r'^solver\.schedule = "residency" needs the nests of a mapper; leave out solver\.tiling$',
    ):
        api.map("gemm:m=4,n=4,k=4", "smv", **{"solver.schedule": "residency", "solver.tiling": "smaug"})


def test_what_a_given_schedule_leaves_out_runs_in_turn(tmp_path: Path) -> None:
    (tmp_path / "first.txt").write_text(
        "segment\neinsum 0.1\nstore DRAM A P_0 S_0\nfor m tile 1\nfor n tile 1\nfor k tile 1\nmac\n"
    )
    found = [
        api.map(
            "cg:rows=24,nnz=72,n=2,iterations=1", "edge_array", schedule=tmp_path / "first.txt", **sets
        ).energy_pj
        for sets in ({}, {"solver.schedule": "residency"})
    ]
    assert found[0] == found[1]


def test_features_in_time_below_rows_over_clusters_reach_the_list() -> None:
    """GCN on cora: no loop over rows or features alone holds what it needs in a slice. Rows over clusters,
    features in time: each cluster has the features' columns of X0, A and the sums of its rows.
    """
    for schedule in ("gogeta", "residency"):
        sets = {"solver.schedule": schedule, "solver.factors": "perfect"}
        memory = api.map("gcn", "gogeta_clusters", **sets).solution.memory
        assert memory.moved_words == memory.listed_words
        assert memory.not_fused_words == 0


def test_two_products_read_the_features_once() -> None:
    """GraphSAGE: A X0 W and X0 V in steps of features; their sum, which has none, follows alone."""
    sets = {"solver.schedule": "gogeta", "solver.factors": "perfect"}
    found = api.map("graphsage", "gogeta_clusters", **sets)
    words = moved_words(found.arch, found.workload, found.solution.schedule)
    features = next(p for p in found.workload.einsums[0].inputs if p.tensor == "X0")
    assert sum(n for (_, tensor), n in words.items() if tensor == "X0") == features.stored_elems()
    assert [len(s.branches) for s in found.solution.schedule.segments] == [3, 1]


def test_what_moves_more_in_a_pipeline_runs_one_by_one() -> None:
    """CG in 32 KiB a slice: P does not stand in a slice beside tiles of A, so S = A P passed on to P S would
    read an element of P per nonzero of A; alone the product reads P once.
    """
    sets = {"sram.capacity": "32 KiB", "solver.schedule": "gogeta", "solver.factors": "perfect"}
    memory = api.map("cg:matrix=aft02,iterations=1", "gogeta_clusters", **sets).solution.memory
    assert memory.moved_words == memory.listed_words


def test_a_product_passes_its_result_on_where_its_operand_is_retained() -> None:
    """CG on ecology1 in 512 KiB a slice: S = A P, then S P. Unless P is on chip, a product that passes S
    on in tiles reads P once per tile, and none was: 35,863,102 words.
    """
    sets = {"sram.capacity": "512 KiB", "solver.schedule": "residency", "solver.factors": "perfect"}
    found = api.map("cg:matrix=ecology1,iterations=2", "gogeta_clusters", **sets).solution
    assert ["1.1", "1.2a"] in [[b.einsum for b in s.branches] for s in found.schedule.segments]
    assert "P_1" in [one.tensor for one in found.schedule.retained if one.share == 1]
    assert found.memory.moved_words < 34_500_000


@pytest.mark.parametrize("name", ["gogeta", "gogeta-df"])
def test_parts_that_differ_in_names_alone_are_solved_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of CG are alike: fewer runs are solved than there are, and the schedule is the one in which each
    is solved by itself.
    """
    arch = replace(SLICES, levels=(SLICES.levels[0], replace(SLICES.levels[1], capacity_bits=8 * 48)))
    w, count = hpc.cg(rows=24, nnz=72, n=2, iterations=4), 0
    shared = solved(arch, w, name)
    key = emitted._part_key
    solve_run = emitted._run

    def own_key(task: emitted.Task, part: emitted.Phase, *rest: Any) -> tuple[object, ...]:
        return (key(task, part, *rest), part)

    def counted(task: emitted.Task, run: emitted.Phase) -> Any:
        nonlocal count
        count += 1
        return solve_run(task, run)

    monkeypatch.setattr(emitted, "_run", counted)
    monkeypatch.setattr(emitted, "_part_key", own_key)
    alone = solved(arch, w, name)
    assert str(shared.schedule) == str(alone.schedule)
    of_all, count = count, 0
    monkeypatch.setattr(emitted, "_part_key", key)
    solved(arch, w, name)
    assert count < of_all / 1.3


def test_stages_pass_each_word_through_one_link() -> None:
    """T of 4 x 12 goes from the first cluster to the second one; in slices of rows nothing goes between."""
    texts = ("T[m,n] = relu(X[m,n])", "Y[m,n] = gelu(T[m,n])")
    w = Workload("pair", tuple(einsum(text, {"m": 12, "n": 4}, f"e{i}") for i, text in enumerate(texts)))
    two = replace(SLICES, fanouts=(Fanout("clusters", 1, (("C", 2),), (True,), (True,)),))
    words, moved = {}, {}
    for name in ("gogeta", "gogeta-df"):
        one = solved(two, w, name)
        assert one.schedule is not None
        assert compared(two, w, one.schedule) == []
        words[name], moved[name] = between_clusters(two, w, one.schedule), dram(one)
        (segment,) = one.schedule.segments
        assert segment.pipelined == (name == "gogeta-df")
    assert words == {"gogeta": 0, "gogeta-df": 48}
    assert moved == {"gogeta": 96, "gogeta-df": 96}


def test_slices_of_rows_send_small_matrices_round_as_in_figure_12() -> None:
    """Lines 4 and 5 of CG on 16 clusters: L to all of them, and sums of G from all: 15 links each."""
    found = api.map("cg:matrix=ecology1,n=8,iterations=1", "gogeta_clusters", **GOGETA_MAP)
    assert found.solution.schedule is not None
    lines = next(s for s in found.solution.schedule.segments if s.branches[0].einsum.endswith(".4"))
    names = [branch.einsum for branch in lines.branches]
    own = replace(
        found.workload, einsums=tuple(e for e in found.workload.einsums if e.name in names), repeats=()
    )
    alone = replace(found.solution.schedule, segments=(lines,), retained=())
    assert [name.partition(".")[2] for name in names] == ["4", "4u", "5"]
    assert between_clusters(found.arch, own, alone) == 2 * 8 * 8 * 15


def test_a_stage_reads_twice_what_another_one_passes_to_it() -> None:
    """Lines 4 and 5 of CG: R = R - S L goes to G = R R' under both of its names."""
    arch = replace(SLICES, levels=(SLICES.levels[0], replace(SLICES.levels[1], capacity_bits=8 * 30)))
    w = hpc.cg(rows=24, nnz=72, n=2, iterations=1)
    one = solved(arch, w, "gogeta-df")
    assert one.schedule is not None
    (stages,) = (segment for segment in one.schedule.segments if segment.branches[0].einsum == "0.4")
    assert stages.pipelined
    assert [branch.einsum for branch in stages.branches] == ["0.4", "0.4u", "0.5"]
    assert compared(arch, w, one.schedule) == []


def test_what_a_schedule_retains_otherwise_than_its_list_is_told_by_sign_and_stages() -> None:
    w = hpc.cg(rows=24, nnz=72, n=2, iterations=2)
    staged, alone = (solved(SLICES, w, name).schedule for name in ("gogeta-df", "gogeta"))
    assert staged
    assert any(segment.pipelined for segment in staged.segments)
    less, more = (Memory(10.0 + n, 10.0, 0.0, 0.0, 0.0, n, 0.0) for n in (5.0, -5.0))
    fits = "what its list retains and does not fit beside the working tiles"
    assert cause_text(less, "capacity_words", alone) == fits
    assert "with stages retains nothing" in cause_text(less, "capacity_words", staged)
    assert "beyond its list" in cause_text(more, "capacity_words", alone)
    assert "nests read more than once" in cause_text(less, "reread_words", staged)


def test_equal_parts_whose_results_others_read_or_not_are_no_equal_parts() -> None:
    """T -> Y twice, and the second T is read again in a later phase: it leaves the chip, the first not."""
    bodies = ("T[m] = relu(X[m])", "Y[m] = gelu(T[m])", "U[m] = relu(V[m])", "W[m] = gelu(U[m])")
    texts = (*bodies, "Z[m] = exp(U[m])")
    w = Workload("twice", tuple(einsum(text, {"m": 48}, f"e{i}") for i, text in enumerate(texts)))
    by_name = {e.name: e for e in w.einsums}

    def nests(machine: Arch, e: Einsum) -> Nest | Infeasible:
        found = optimal(Problem(machine, e, "energy"), "perfect")
        return found if isinstance(found, Infeasible) else found[0].mapping

    task = emitted.Task(FLAT, w, by_name, {name: i for i, name in enumerate(by_name)}, nests, 8 * 60)
    found = emitted.segments(task, [(("e0",), ("e1",)), (("e2",), ("e3",)), (("e4",),)], {})
    assert isinstance(found, list)
    assert [len(s.branches) for s in found] == [2, 2, 1]
    assert not faults(FLAT, w, Schedule(tuple(found)))
