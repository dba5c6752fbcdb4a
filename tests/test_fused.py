"""Fused tiles and kept tensors: against every schedule of small workloads, walked element by element, and
through the product.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import combinations, product
from math import inf
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest

import dse
from dse.mapping.constraints import FREE, Limit, minimal_mapping, ruled
from dse.mapping.nest import Infeasible
from dse.mapping.schedule import Branch, Retained, Schedule, Segment, parse_schedule
from dse.mapping.searched import covers, excluding_features
from dse.mapping.trips import trips
from dse.sim.einsum.evaluate import Solution, objective_value
from dse.sim.schedule import placed
from dse.sim.schedule.faults import broken_rules, faults
from dse.sim.schedule.graph import UNTIMED, evaluate
from dse.solve import solve
from dse.solve.layouts.layouts import Layouts
from dse.solve.options import SolverOptions
from dse.solve.schedules import fused
from dse.solve.schedules.fusible_segments import agreeing_labels, segments
from dse.solve.schedules.nests import Nests, Place
from hw import machine
from hw.arch import Arch, Compute, Level, read_rules
from tests import by_hand
from tests.amount import amount, full_only, some
from tests.fusions import (
    laid_case,
    networked_case,
    ported_case,
    random_case,
    ruled_case,
    sparse_case,
    unlike,
    widened_case,
    wrong,
    wrong_in_layouts,
)
from tests.test_schedule_walks import compared
from workloads import text
from workloads.einsum import einsum
from workloads.graph import Workload

A2S = machine.arch(machine.load("a2s"))


def chain(many: int, m: int = 128, n: int = 64) -> Workload:
    """Products of a matrix with weights, one after the other."""
    return Workload(
        f"chain{many}",
        tuple(
            einsum(
                f"T{i + 1}[m,n{i + 1}] += T{i}[m,n{i}] * W{i}[n{i},n{i + 1}]",
                {"m": m, f"n{i}": n, f"n{i + 1}": n},
                f"MM{i}",
            )
            for i in range(many)
        ),
        frozenset(f"W{i}" for i in range(many)),
    )


def solved(workload: Workload, objective: fused.Objective = "energy") -> tuple[Solution, fused.Graph]:
    nests = Nests(A2S, objective, "imperfect_spatial", lambda _: FREE, 0.0)
    g = fused.graph(A2S, workload, objective, nests)
    found = fused.fused(A2S, workload, objective, "imperfect_spatial", lambda _: FREE)
    assert isinstance(found, Solution)
    return found, g


@pytest.mark.parametrize("seed", some([29, 49, 52, 84, 122], 0, 2, 3))
def test_no_schedule_of_the_space_is_cheaper(seed: int) -> None:
    """29: kept tensors fill the buffer; 49: held weights; 52: rooms that grow and shrink; 84: a window reads
    padding around what is passed on; 122: an einsum between two that share a loop.
    """
    assert wrong(seed) == []


@pytest.mark.parametrize("seed", some([10, 11, 18], 0, 2))
def test_no_schedule_on_a_machine_of_several_widths_is_cheaper(seed: int) -> None:
    """10: an array above the level that widens; 11: sums alone are wider there; 18: inputs and sums are."""
    assert unlike(seed, *widened_case(seed, "free")) == []


@pytest.mark.parametrize("seed", some([3, 12, 17, 21], 0, 2, 3))
def test_no_schedule_on_a_machine_that_prices_hops_is_cheaper(seed: int) -> None:
    assert unlike(seed, *networked_case(seed, "buffered" if seed % 4 == 3 else "free")) == []


@pytest.mark.parametrize("seed", some([9, 10, 22, 28, 63], 0, 1, 2))
def test_no_schedule_that_keeps_rules_is_cheaper(seed: int) -> None:
    """9: a tensor may not be shared; 10: shared loops are trips of main memory; 22, 28: tiles that smaller
    shared ones alone keep; 63: a retained tensor is one tile.
    """
    assert unlike(seed, *ruled_case(seed, "buffered" if seed % 4 == 3 else "free")) == []


@pytest.mark.parametrize("seed", some([24, 38], 0, 1))
def test_no_schedule_at_ports_that_serve_some_tensors_is_cheaper(seed: int) -> None:
    """24, 38: moves that a bound takes off are as long as at the slowest port."""
    assert unlike(seed, *ported_case(seed)) == []


def test_no_schedule_of_a_compressed_matrix_is_cheaper() -> None:
    assert unlike(4, *sparse_case(4)) == []


@pytest.mark.parametrize(("seed", "energy"), [(71, 1986.0), (170, 17858.0)])
def test_bounds_leave_schedules_of_compressed_matrices_in(seed: int, energy: float) -> None:
    """Schedules of so much energy exist. 71: what comes anew in every trip is read at nonzeros only, but
    brought in whole; 170: a held matrix is brought in as it is stored.
    """
    arch, workload = sparse_case(seed, (8, 8))
    for several in (True, False):
        found = fused.fused(arch, workload, "energy", "perfect", lambda _: FREE, several_loops=several)
        assert isinstance(found, Solution)
        assert found.energy_pj <= energy * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(8))
def test_schedules_counted_by_hand_cost_the_same(seed: int) -> None:
    assert by_hand.wrong(seed) == []


def test_einsums_that_read_other_rows_of_a_tensor_do_not_read_it_together() -> None:
    """Constant indices choose the rows: one row brought in once does not serve both."""
    _, workload = random_case(176, "free")
    rows = [p.dims[0].offset for e in workload.einsums for p in e.inputs if p.tensor == "X"]
    assert rows == [1, 0]
    assert wrong(176, "free") == []


@full_only
def test_gaps_hold_where_fills_wait() -> None:
    assert wrong(5, "buffered") == []


@pytest.mark.parametrize("seed", range(30, 30 + amount(20, 8)))
@pytest.mark.parametrize("objective", ["energy", "latency", "edp"])
def test_schedules_are_walked_and_cost_what_their_labels_say(seed: int, objective: fused.Objective) -> None:
    arch, workload = random_case(seed, Random(seed).choice(["free", "buffered"]))
    g = fused.graph(
        arch, workload, objective, Nests(arch, objective, "imperfect_spatial", lambda _: FREE, 0.0)
    )
    tables = fused.factor_tables(g)
    if isinstance(tables, Infeasible):
        return
    joined = fused.join(tables.tables, ranking=objective)
    for best in joined.choices:
        schedule = fused.schedule_of(g, tables, best)
        assert faults(arch, workload, schedule) == []
        found = fused.evaluate(arch, workload, schedule, objective)
        assert isinstance(found, Solution), found
        assert (found.energy_pj, found.latency_cycles) == (
            pytest.approx(best.energy),
            pytest.approx(best.latency),
        )
        assert schedule.is_unfused() or compared(arch, workload, schedule) == []


def test_a_chain_of_two_is_the_published_optimum() -> None:
    """FFM's answer: rows in tiles, both weights held, the tensor between never leaves the buffer."""
    found, _ = solved(chain(2))
    assert (found.energy_pj, found.optimality_gap, found.schedule is not None) == (12304384.0, 0.0, True)
    assert found.certificate.startswith("optimal in the searched space; ")
    assert "fusion of up to 10 einsums" in found.certificate
    assert found.saved == pytest.approx(1 - 12304384 / 15679488)


def test_a_tensor_may_come_anew_in_every_trip() -> None:
    """A weight that is not held costs no more than it is read: the least of all schedules, listed by code
    that shares nothing with the product.
    """
    levels = Level("DRAM", None, 8, 50.0, 20.0, bypass=False), Level("GLB", 8 * 14, 8, 1.0, 1.0)
    arch = Arch("small", levels, (), Compute(1.0, 1.0), 1.0, 8, overlap="free")
    sizes = {"m": 4, "a": 2, "b": 3, "c": 2}
    own = tuple(
        einsum(text, {rank: n for rank, n in sizes.items() if rank in text}, name)
        for text, name in (("T[m,b] += X[m,a] * W[a,b]", "first"), ("Y[m,c] += T[m,b] * V[b,c]", "second"))
    )
    weights = frozenset("WV")
    found = fused.fused(
        arch, Workload("w", own, weights), "energy", "perfect", lambda _: FREE, several_loops=False
    )
    assert isinstance(found, Solution)
    assert (found.energy_pj, found.optimality_gap) == (2020.0, 0.0)


def test_objectives_rank_and_edp_has_a_floor() -> None:
    own = {objective: solved(chain(3, 16, 8), objective)[0] for objective in ("energy", "latency", "edp")}
    for objective, found in own.items():
        value = objective_value(objective, found.energy_pj, found.latency_cycles)
        assert all(
            value
            <= objective_value(objective, other.energy_pj, other.latency_cycles)
            * (1 + 1e-9)
            * (1 + found.optimality_gap)
            for other in own.values()
        )


def test_equal_blocks_are_solved_once() -> None:
    """A longer chain of equal products has no other segments, and asks the mapper for no more nests."""
    asked = []
    for many in (12, 13):
        workload = chain(many, 16, 8)
        g = fused.graph(
            A2S, workload, "energy", Nests(A2S, "energy", "imperfect_spatial", lambda _: FREE, 0.0)
        )
        fused.factor_tables(g)
        asked.append((g.nests.searches, len(g.plans.options)))
    assert asked[0] == asked[1]


def test_loops_are_shared_where_tiles_are_complete() -> None:
    rows, columns = (einsum(f"S[m] += T[{index}]", {"m": 4, "n": 4}, "s") for index in ("m,n", "n,m"))
    first = einsum("T[m,n] += A[m,k] * B[k,n]", {"m": 4, "n": 4, "k": 2}, "t")
    assert [m.axes for m in segments(Workload("w", (first, rows)))] == [(("m", "m"),)]  # n is summed up
    assert [m.axes for m in segments(Workload("w", (first, columns)))] == [(("n", "m"),)]
    across = einsum(
        "T[k,n] += A[m,k] * B[m,n]", {"m": 4, "n": 2, "k": 4}, "t", density={"A": 0.5}, format={"A": "csr"}
    )
    after = einsum("S[k] += T[k,n]", {"k": 4, "n": 2}, "s")
    assert segments(Workload("w", (across, after))) == []  # every trip would read pointers of its own
    window = einsum("O[p] += I[p+r-1] * W[r]", {"p": 8, "r": 3}, "o", sizes={"I": (8,)})
    assert [n for _, n in trips(window, "p", 2)] == [2, 1, 1]


def test_the_command_keeps_and_fuses_and_remembers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSE_CACHE", str(tmp_path))
    (tmp_path / "net.yaml").write_text(
        "extents: {m: 16, n: 8}\nweights: [W, V]\neinsums:\n"
        '- {name: a, extents: {m: 16, k: 8, n: 8}, text: "T[m,n] += X[m,k] * W[k,n]"}\n'
        '- {name: b, extents: {m: 16, n: 8, q: 8}, text: "Y[m,q] += T[m,n] * V[n,q]"}\n'
    )
    told: list[str] = []
    alone, first, again = (
        dse.map(
            str(tmp_path / "net.yaml"),
            "a2s",
            progress=lambda number, efforts, name: told.append(name),
            **{"solver.schedule": reuse},
        )
        for reuse in ("unfused", "fused", "fused")
    )
    # alone, a and b are one problem; what is kept is not searched again
    assert told == ["a", "a", "b", "segments from a"]
    assert first.totals == again.totals
    assert len(list(tmp_path.glob("reuse_*"))) == 1
    assert first.totals["energy_pj"] < alone.totals["energy_pj"]
    assert first.totals["certificate"].startswith("optimal in the searched space; ")
    assert "retention of 1 tensor at GLB" in first.totals["space"]["searched"]
    assert "fusion" in alone.totals["space"]["not_searched"]
    with pytest.raises(ValueError, match=r'solver.schedule = "fused" needs the mapper optimal'):
        dse.map("gemm:m=4,n=4,k=4", "a2s", **{"solver.schedule": "fused", "solver.mapper": "random"})
    with pytest.raises(
        ValueError,
        match=r"solver.sharing_gap = 0.2: machines of a study share schedules, this is one machine; leave "
        r"it out",
    ):
        dse.map("gemm:m=4,n=4,k=4", "a2s", **{"solver.schedule": "fused", "solver.sharing_gap": 0.2})


@pytest.mark.parametrize("seed", some([0, 5, 7], 0, 2))
def test_reuse_and_layouts_together_are_no_dearer_than_apart(seed: int) -> None:
    assert wrong_in_layouts(seed, "buffered" if seed == 7 else "free")[0] == []


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("objective", ["energy", "latency"])
def test_schedules_in_layouts_cost_what_their_labels_say(seed: int, objective: fused.Objective) -> None:
    arch, workload = laid_case(seed, "buffered" if seed % 2 else "free")
    chosen = solve._layouts(
        arch, workload, SolverOptions(objective, factors="perfect", gap=0.0, schedule="fused", layout="alt")
    )
    assert isinstance(chosen, Layouts)
    g = fused.graph(arch, workload, objective, Nests(arch, objective, "perfect", lambda _: FREE, 0.0), chosen)
    tables, found = fused.factor_tables(g), fused._best_schedules(g, objective)
    assert isinstance(tables, fused.GraphFactors)
    assert isinstance(found, tuple)
    every = next(chosen.rules("alt"))
    assert objective_value(objective, found[0][0].energy_pj, found[0][0].latency_cycles) == pytest.approx(
        chosen.minimum(every, tables.tables)[0]
    )


def moved(found: Solution) -> set[tuple[str, str, str]]:
    return {(one.level, one.tensor, one.action) for c in found.einsums for one in c.layout_traffic}


def test_a_kept_tensor_costs_no_lines() -> None:
    """What lies on the chip from its maker to its reader asks main memory for nothing; what is kept in part
    is not priced where lines are felt.
    """
    arch = machine.arch(machine.load("burst_edge"))
    level, workload = (
        arch.levels[1].name,
        Workload(
            "two",
            (
                einsum("T1[m,n] += T0[m,k] * W0[k,n]", {"m": 64, "n": 48, "k": 32}, "a"),
                einsum("T2[m,n] += T1[m,k] * W1[k,n]", {"m": 64, "n": 32, "k": 48}, "b"),
            ),
            frozenset({"W0", "W1"}),
        ),
    )
    own = [minimal_mapping(e, arch) for e in workload.einsums]
    plain = Schedule(
        tuple(Segment((Branch(e.name, nest),)) for e, nest in zip(workload.einsums, own, strict=True))
    )
    stays = replace(plain, retained=(Retained(level, "T1", Fraction(1)),))
    apart, kept = (evaluate(arch, workload, one) for one in (plain, stays))
    assert isinstance(apart, Solution)
    assert isinstance(kept, Solution)
    assert moved(kept) == moved(apart) - {("DRAM", "T1", "read"), ("DRAM", "T1", "write")}
    saved = sum(
        part.energy_pj
        for c in apart.einsums
        for part in c.price.parts
        if (part.level, part.tensor) == ("DRAM", "T1")
    )
    near = [
        sum(part.energy_pj for c in one.einsums for part in c.price.parts if part.level == level)
        for one in (apart, kept)
    ]
    leak = [
        sum(part.energy_pj for c in one.einsums for part in c.price.parts if part.action == "leak")
        for one in (apart, kept)
    ]
    assert kept.energy_pj == pytest.approx(apart.energy_pj - saved + near[1] - near[0] + leak[1] - leak[0])
    with pytest.raises(ValueError, match="retained parts of tensors"):
        evaluate(arch, workload, replace(plain, retained=(Retained(level, "T1", Fraction(1, 2)),)))


def test_a_sweep_stores_what_it_saves(tmp_path: Path) -> None:
    (tmp_path / "net.yaml").write_text(
        "extents: {m: 16, n: 8}\nweights: [W, V]\neinsums:\n"
        '- {name: a, extents: {m: 16, k: 8, n: 8}, text: "T[m,n] += X[m,k] * W[k,n]"}\n'
        '- {name: b, extents: {m: 16, n: 8, q: 8}, text: "Y[m,q] += T[m,n] * V[n,q]"}\n'
    )
    (tmp_path / "study.yaml").write_text(
        "name: s\nworkloads: [{file: net.yaml, name: net}]\nmachine: a2s\nspace: {array.x: [4, 8]}\n"
        "objectives: [energy_pj]\nsolver: {schedule: fused}\n"
    )
    run = dse.sweep(tmp_path / "study.yaml", out=tmp_path / "run", workers=0)
    rows = run.sql(
        "SELECT machine, fused, on_chip, retained, saved_share, nest FROM schedules ORDER BY machine"
    ).table.to_pylist()
    assert [row["machine"] for row in rows] == [0, 1]
    assert all(
        0 < row["saved_share"] < 1 and row["nest"] and (row["fused"] or row["retained"]) for row in rows
    )
    assert (
        "retention of 1 tensor at GLB"
        in f"{run.sql('SELECT certificate FROM workload_costs').table.to_pylist()}"
    )
    assert run.show("0").solutions[0].solution.energy_pj > 0  # costed anew, equal to what is stored


TWICE = Workload(
    "twice",
    (
        einsum("T0[m,n] += X[m,k] * W0[k,n]", {"m": 2, "n": 2, "k": 2}, "e0"),
        einsum("T1[m,n1] += X[m,k1] * W1[k1,n1]", {"m": 2, "n1": 2, "k1": 2}, "e1"),
    ),
    frozenset({"W0", "W1"}),
)
SLOW = Arch(
    "slow",
    (
        Level("DRAM", None, 8, 40.0, 600.0, 8.0, bypass=False, leak_mw=3000.0),
        Level("GLB", 32, 8, 0.4, 3.0, 1.0, double_buffer=True, leak_mw=3000.0),
    ),
    (),
    Compute(0.2, 1.5, 0.25, leak_mw=30.0, merge_pj=0.25),
    2.0,
    8,
)
HALF = """retain GLB X 1/2
segment
  einsum e0
    store DRAM X W0 T0
    for m tile 1
      for n tile 1
        store GLB T0
        for k tile 1
          mac
segment
  einsum e1
    store DRAM X W1 T1
    for m tile 1
      for n1 tile 1
        store GLB T1
        for k1 tile 1
          mac"""


def test_an_answer_outside_of_the_searched_space_is_not_called_its_optimum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GOGETA's schedule keeps X, which comes from outside: that, and half of it, is left out by name. From
    the cache alike.
    """
    monkeypatch.setenv("DSE_CACHE", str(tmp_path))
    for found in (solve.cached(SLOW, TWICE, SolverOptions(schedule="fused", gap=0.0)) for _ in range(2)):
        assert isinstance(found, list)
        assert found[0].space
        assert found[0].optimality_gap == 0
        assert "retain GLB X 1" in str(found[0].schedule)
        assert "no schedule of the searched space costs less; " in found[0].certificate
        assert "optimal" not in found[0].certificate
        assert list(excluding_features(found[0].space, parse_schedule(HALF), TWICE, SLOW)) == [
            "retention",
            "retention of parts",
        ]


@pytest.mark.parametrize("objective", some(["energy", "latency", "edp"], 0))
def test_gogetas_schedule_is_taken_where_it_costs_less(
    objective: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps a matrix that two products read; cycles in which waits are not counted are not compared."""
    monkeypatch.setenv("DSE_CACHE", str(tmp_path))
    asked = "gcn:nodes=60,nnz=240,features=40,outputs=7", "edge_array"
    gogeta, first, again = (
        dse.map(*asked, objective=objective, **{"solver.schedule": reuse}).solution
        for reuse in ("gogeta", "fused", "fused")
    )
    assert isinstance(gogeta, Solution)
    assert isinstance(first, Solution)
    assert isinstance(again, Solution)
    costs = [objective_value(objective, one.energy_pj, one.latency_cycles) for one in (gogeta, first, again)]
    assert costs[1] == costs[2]
    assert first.certificate == again.certificate
    assert first.saved == pytest.approx(again.saved)
    assert (
        (costs[1] <= costs[0] and "GOGETA's schedule;" in first.certificate)
        if objective == "energy"
        else UNTIMED not in first.certificate
    )
    assert isinstance(alone := dse.map(*asked, objective=objective).solution, Solution)
    assert first.saved == pytest.approx(
        1 - costs[1] / objective_value(objective, alone.energy_pj, alone.latency_cycles), abs=0.02
    )


def test_a_nest_that_fits_beside_a_retained_tensor_is_taken(tmp_path: Path) -> None:
    """ACC holds half a row of a at a time, since the rest stands in GBUF: all of a would not fit ACC."""
    (tmp_path / "npu.yaml").write_text(
        """name: npu
clock_mhz: 800
node_nm: 22
nodes:
- {memory: dram, kind: lpddr5, channels: 2, width_bits: 64}
- {memory: gbuf, capacity: 64 KiB, width_bits: 256, banks: 4, double_buffer: true}
- {memory: acc, capacity: 16 KiB, width_bits: 512, may_keep: [output], bits: {output: 32}, bypass: false}
- {array: pe, dims: {row: 16, col: 16}, multicast: true, reduce: true}
- {memory: wreg, kind: register, capacity: 2 B, width_bits: 8, may_keep: [weight]}
- {compute: mac, kind: int8}
"""
    )
    (tmp_path / "two.yaml").write_text(
        "extents: {k: 32, c: 16, p: 32, q: 32, r: 3, s: 3, o: 64, y: 16, x: 16}\neinsums:\n"
        "- {text: 'A[k,p,q] += X[c,p+r-1,q+s-1] * W[k,c,r,s]', sizes: {X: [16, 32, 32]}}\n"
        "- {text: 'B[o,y,x] += A[k,2*y+r-1,2*x+s-1] * V[o,k,r,s]', sizes: {A: [32, 32, 32]}}\n"
    )
    found = dse.map(str(tmp_path / "two.yaml"), str(tmp_path / "npu.yaml"), **{"solver.schedule": "fused"})
    assert "retain GBUF A 1" in found.schedule
    assert found.totals["optimality_gap"] < 0.02


# ranks of A and of B, what makes B of A, the bytes of the level, of which A and B take 256 each, and what is
# retained with several shared loops and with one
PLACES = {
    "alone": ("m,n", "m,n", ("B[m,n] = relu(A[m,n])",), 400, ("AB", "AB")),
    "below a loop": (
        *("m,n", "m,n"),
        ("T[m,t] += A[m,n] * G[n,t]", "B[m,n] += T[m,t] * H[t,n]"),
        *(430, ("AB", "AB")),
    ),
    "loops that cut them apart": (
        *("x,y,n", "y,x,n"),
        ("T[x,y,t] += A[x,y,n] * G[n,t]", "B[y,x,n] += T[x,y,t] * H[t,n]"),
        *(430, ("A", "A")),
    ),
    "one of the loops cuts them apart": (
        *("r,s,u", "r,u,s"),
        ("T[r,s,u,v] = A[r,s,u] * G[v]", "B[r,u,s] += T[r,s,u,v] * H[v]"),
        *(400, ("A", "")),
    ),
}


@pytest.mark.parametrize("case", PLACES)
def test_a_tensor_is_retained_in_the_place_of_one_that_is_read_for_the_last_time(case: str) -> None:
    """Einsums of other ranks stand between, so that A and B are not passed on tile by tile."""
    of_a, of_b, between, capacity, retained = PLACES[case]
    workload = text.workload(
        {"m": 64, "x": 8, "y": 8, "n": 4, "k": 4, "a": 5, "b": 7, "c": 3, "f": 4, "t": 8}
        | {"r": 16, "s": 4, "u": 4, "v": 16},
        f"A[{of_a}] += X[{of_a},k] * W[k]",
        "Z[a,b] += P[a,c] * Q[c,b]",
        *between,
        "Y[b,a] += R[b,c] * U[c,a]",
        f"C[{of_b},f] += B[{of_b}] * V[f]",
    )
    level = replace(A2S.levels[1], capacity_bits=8 * capacity)
    arch = replace(A2S, levels=(A2S.levels[0], level))
    for several, tensors in zip((True, False), retained, strict=True):
        found = fused.fused(
            arch, workload, "energy", "imperfect_spatial", lambda _: FREE, several_loops=several
        )
        assert isinstance(found, Solution)
        assert found.schedule
        assert "".join(one.tensor for one in found.schedule.retained) == tensors
        assert len(found.schedule.segments) == 5


def test_a_search_that_ends_later_costs_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Than every einsum by itself with shares retained; a half-searched schedule leaves them less room."""
    steps = (
        "S[h,m,p] += Q[h,m,e] * K[h,p,e]",
        "T[h,m,p] = scaled(S[h,m,p])",
        "O[h,m,f] += T[h,m,p] * V[h,p,f]",
    )
    workload, costs = text.workload({"h": 3, "m": 64, "p": 64, "e": 32, "f": 32}, *steps), list[float]()
    for asked in (0, 30, 45):
        times = iter(range(asked))
        monkeypatch.setattr(fused.deadline, "has_passed", lambda left=times: next(left, None) is None)
        found = solve.solve_schedule(A2S, workload, SolverOptions(schedule="fused"))
        assert isinstance(found, list)
        assert found[0].left_out or asked == 45
        costs.append(found[0].energy_pj)
    assert costs == sorted(costs, reverse=True)


def test_labels_on_both_sides_of_an_einsum_agree() -> None:
    """Against every pair: one segment on both sides, or one that begins or ends there, and no other."""
    rng = Random(5)
    for _ in range(amount(200)):
        n = rng.randint(2, 8)
        spans = [span for span in combinations(range(n), 2) if rng.random() < 0.5]
        segments = [SimpleNamespace(first=a, last=b) for a, b in spans for _ in range(rng.randint(1, 2))]
        for i in range(n):
            left, right = ([None, *(s for s in segments if s.first <= j < s.last)] for j in (i - 1, i))
            agreeing = [
                (a, b)
                for (a, x), (b, y) in product(enumerate(left), enumerate(right))
                if (x and x is y) or (x and not y and x.last == i) or (y and not x and y.first == i)
            ]
            assert agreeing_labels(i, left, right) == agreeing  # type: ignore[arg-type]


SHARED = parse_schedule("""segment
  store DRAM T0
  store GLB T0
  for m tile 2
    store GLB T1
    einsum MM0
      store DRAM W0
      for m tile 1
        for n0 tile 1
          for n1 tile 1
            mac
    einsum MM1
      store DRAM W1 T2
      for m tile 1
        for n1 tile 1
          for n2 tile 1
            mac
""")
RETAINED = parse_schedule("""retain GLB T1 1
segment
  einsum MM0
    store DRAM T1
    store GLB T1
    store DRAM T0 W0
    for m tile 1
      for n0 tile 1
        for n1 tile 1
          mac
segment
  einsum MM1
    store DRAM T1
    store GLB T1
    store DRAM W1 T2
    for m tile 1
      for n1 tile 1
        for n2 tile 1
          mac
""")


@pytest.mark.parametrize(
    ("plan", "rule", "names"),
    [
        (SHARED, {"at": "dram", "factors": {"m": 4}}, []),  # the shared loop
        (SHARED, {"at": "dram", "factors": {"m": "<= 3"}}, ["MM0", "MM1"]),
        (SHARED, {"at": "glb", "factors": {"m": 2}}, []),  # tiles of T1 are cut below it
        (SHARED, {"at": "glb", "factors": {"m": 1}}, ["MM0", "MM1"]),
        (SHARED, {"at": "glb", "tile": {"T0": 31, "T1": 8}}, ["MM0"]),  # 8 x 4 above the loop, 2 x 4 below
        (SHARED, {"at": "glb", "tile": {"T0": 32, "T1": 7}}, ["MM0", "MM1"]),
        (SHARED, {"at": "glb", "tile": {"T0": 32, "T1": 8}}, []),
        (SHARED, {"at": "glb", "bypass": ["T1"], "einsums": ["MM1"]}, ["MM1"]),
        (SHARED, {"at": "dram", "keep": ["T0"]}, []),
        (SHARED, {"at": "dram", "keep": ["T1"]}, ["MM0", "MM1"]),
        (RETAINED, {"at": "dram", "keep": ["T1"]}, ["MM0", "MM1"]),
        (RETAINED, {"at": "glb", "factors": {"m": 8}}, []),
        (RETAINED, {"at": "glb", "tile": {"T1": 31}}, ["MM0", "MM1"]),
    ],
)
def test_rules_that_a_given_schedule_breaks_are_named(
    plan: Schedule, rule: dict[str, object], names: list[str]
) -> None:
    limits, workload = read_rules([rule]), chain(2, 8, 4)
    assert faults(A2S, workload, plan) == []
    lines, unchecked = broken_rules(A2S, workload, plan, lambda e, arch: ruled(FREE, limits, e, arch))
    assert [line.partition(":")[0] for line in lines] == names
    assert unchecked == []


@pytest.mark.parametrize("room", [24, 48])
@pytest.mark.parametrize(
    "rule",
    [
        {"at": "dram", "keep": ["T1"]},
        {"at": "glb", "keep": ["W1"], "bypass": ["T0"]},
        {"at": "glb", "tile": {"T1": 4}},
        {"at": "glb", "tile": {"W0": 8, "W1": 8}},
        {"at": "dram", "factors": {"m": "<= 2"}},
    ],
)
def test_answers_keep_rules(room: int, rule: dict[str, object]) -> None:
    """24: einsums share loops; 48: T1 is retained. Whatever the rule, it costs no less than without."""
    limits, workload = read_rules([rule]), chain(2, 8, 4)
    arch = replace(A2S, levels=(A2S.levels[0], replace(A2S.levels[1], capacity_bits=8 * room)))
    free, found = (
        fused.fused(arch, workload, "energy", "perfect", own)
        for own in (lambda _: FREE, lambda e: ruled(FREE, limits, e, arch))
    )
    assert isinstance(free, Solution)
    assert isinstance(found, Solution)
    assert found.energy_pj >= free.energy_pj
    assert found.space
    assert found.space.mappings[0].rules
    assert found.gap_to_bound >= 0


def test_equal_einsums_under_other_limits_are_mapped_apart() -> None:
    """As trips of different einsums may be, of which rules name one."""
    a, b = (einsum("C[m,n] += A[m,k] * B[k,n]", dict.fromkeys("mnk", 4), name) for name in "ab")
    none = tuple(Limit("spatial", dim, rank, 1, 1, "") for dim in "XY" for rank in "mnk")
    nests = Nests(A2S, "latency", "perfect", lambda _: FREE, 0.0, limits={"b": none})
    assert nests.best(a, Place(), inf).cost < nests.best(b, Place(), inf).cost < inf


def test_a_share_of_a_tensor_fills_what_is_left() -> None:
    """Windows in both dimensions share no loop with what makes T and O. O is retained whole; of all shares of
    T that fit beside it and the nests the largest is taken, and no lower bound is claimed for shares.
    """
    workload = Workload(
        "windows",
        (
            einsum("T[a,b] = relu(X[a,b])", {"a": 5, "b": 5}, "e0"),
            einsum("O[p,q] += T[p+r,q+s] * K[r,s]", {"p": 4, "q": 4, "r": 2, "s": 2}, "e1"),
            einsum("Z[x,y] += O[x+u,y+v] * L[u,v]", {"x": 3, "y": 3, "u": 2, "v": 2}, "e2"),
        ),
        frozenset("KL"),
    )
    arch = replace(A2S, levels=(A2S.levels[0], replace(A2S.levels[1], capacity_bits=8 * 22)))
    found = solve.solve(arch, workload, SolverOptions(schedule="fused"))
    whole = fused.fused(arch, workload, "energy", "imperfect_spatial", lambda _: FREE)
    assert isinstance(found, list)
    assert isinstance(whole, Solution)
    answer = found[0]
    assert answer.schedule
    assert answer.space
    assert answer.certificate.startswith("taken: the fused schedule with shares of more tensors retained; ")
    kept = Retained("GLB", "O", Fraction(1))
    costs = [
        one.energy_pj
        for n in range(1, 26)
        for retained in [(kept, Retained("GLB", "T", Fraction(n, 25)))]
        for one in [evaluate(arch, workload, replace(answer.schedule, retained=retained))]
        if isinstance(one, Solution)
    ]
    assert kept in answer.schedule.retained
    assert 0 < len(costs) < 25
    assert answer.energy_pj == min(costs) < whole.energy_pj
    assert covers(answer.space, answer.schedule, workload, arch) == "retention"


def test_a_tensor_is_overwritten_once() -> None:
    pairs = placed.overwritten(["a", "b", "c"], lambda old, new: old == "a" != new)
    assert list(pairs) == [("a", "b")]
