"""The outermost level holds tensors whole, and all that is alive: by every mapper, in schedules, and by every
way of a sweep.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from cluster import worker
from cluster.worker import Ask, Job, Lease
from dse.mapping.nest import Infeasible, parse
from dse.sim.counts.counts import footprints
from dse.sim.einsum.evaluate import EinsumCost, Problem, Solution, einsum_cost
from dse.sim.schedule import graph, outermost
from dse.solve import solve as stack
from dse.solve.options import SolverOptions
from dse.solve.solve import MAPPERS_BY_NAME, solve
from dse.study import study as studies
from dse.study.pareto import Trial
from hw import machine
from hw.arch import Arch
from tests.nests import stored_bits, with_outer
from workloads import catalog
from workloads.einsum import einsum
from workloads.graph import Workload

REPORTED = Path(__file__).parent / "data" / "reported"
EDGE = machine.arch(machine.load("edge_array"))
A2 = machine.arch(machine.load("a2"))
SMALL = einsum("C[m,n] += A[m,k] * B[k,n]", {"m": 4, "n": 3, "k": 5}, "C")
CHAIN = Workload(
    "chain",
    (
        einsum("T[m,n] += X[m,k] * W[k,n]", {"m": 4, "k": 5, "n": 6}, "T"),
        einsum("U[m,n] = relu(T[m,n])", {"m": 4, "n": 6}, "U"),
        einsum("Y[m,l] += U[m,n] * V[n,l]", {"m": 4, "n": 6, "l": 2}, "Y"),
    ),
    frozenset({"W", "V"}),
)


def test_a_memory_smaller_than_the_tensors_has_no_mapping() -> None:
    """T, A, B and W are there while T is made: 12 + 24 + 18 + 15 bytes of 10."""
    ram, two = machine.arch(machine.load(REPORTED / "sram.yaml")), catalog.load(str(REPORTED / "two.yaml"))
    assert (
        solve(ram, two, SolverOptions())
        == stack.cached(ram, two, SolverOptions())
        == Infeasible("RAM", 69, 10, "T")
    )
    (found,) = solve(with_outer(ram, 8 * 69), two, SolverOptions())  # type: ignore[misc]
    assert [held for c in found.einsums for held in c.footprint] == [
        ("RAM", "A", 24),
        ("RAM", "B", 18),
        ("RAM", "T", 12),
        ("RAM", "T", 12),
        ("RAM", "W", 15),
        ("RAM", "Y", 20),
    ]


def test_a_dram_of_a_kilobyte_maps_no_large_product() -> None:
    found = solve(with_outer(EDGE, 8 * 1024), catalog.load("gemm:m=1024,n=1024,k=1024"), SolverOptions())
    assert str(found) == "gemm: DRAM needs 3145728 bytes, has 1024"


def test_weights_of_all_einsums_stand_all_the_time() -> None:
    """Each layer fits a MiB, all weights do not."""
    net = catalog.load("mlp_m:batch=1")
    weights = {p.tensor: p.stored_words() for e in net.einsums for p in e.inputs if p.tensor in net.weights}
    assert max(weights.values()) < 2**20 < sum(weights.values())
    found = outermost.overflow_unfused(with_outer(A2, 8 * 2**20), net)
    assert isinstance(found, Infeasible)
    assert sum(weights.values()) < found.need_bytes < sum(weights.values()) + 5000
    assert outermost.overflow_unfused(with_outer(A2, 8 * found.need_bytes), net) is None


def test_what_is_alive_is_added_up() -> None:
    """X until T is made, T until U is, weights always, Y to the end: at T 20 + 24, at U 24 + 24, at Y 24 + 8,
    each beside 30 + 12 of weights.
    """
    assert outermost.lifetimes(CHAIN, 8) == [
        outermost.Lifetime("X", 160, 0, 0),
        outermost.Lifetime("W", 240, 0, 2),
        outermost.Lifetime("T", 192, 0, 1),
        outermost.Lifetime("U", 192, 1, 2),
        outermost.Lifetime("V", 96, 0, 2),
        outermost.Lifetime("Y", 64, 2, 2),
    ]
    assert outermost.overflow_unfused(with_outer(A2, 8 * 90 - 1), CHAIN) == Infeasible("DRAM", 90, 89, "U")
    assert outermost.overflow_unfused(with_outer(A2, 8 * 90), CHAIN) is None
    # X and weights, whatever stays on the chip
    assert outermost.overflow_of_any(with_outer(A2, 8 * 61), CHAIN) == Infeasible("DRAM", 62, 61, "T")
    assert outermost.overflow_of_any(with_outer(A2, 8 * 62), CHAIN) is None


def test_a_further_access_is_of_the_same_tensor() -> None:
    e = einsum("Y[m,n] += X[m,k] * X_again[n,k]", {"m": 4, "n": 4, "k": 3}, "Y")
    assert outermost.einsum_bits(e, 8) == 8 * (12 + 16)
    nest = parse("store DRAM X X_again Y\nfor m tile 1\nfor n tile 1\nfor k tile 1\nmac")
    assert [(row.tensor, row.elems) for row in footprints(nest, e, A2)] == [
        ("X", 12),
        ("X_again", 0),
        ("Y", 16),
    ]


@pytest.mark.parametrize("below", ["", "for m tile 2\nfor n tile 1\n"])
def test_a_node_of_the_outermost_level_holds_all_wherever_it_stands(below: str) -> None:
    nest = parse(f"store DRAM A\n{below}store DRAM B C\nfor m tile 1\nfor n tile 1\nfor k tile 1\nmac")
    assert [row.elems for row in footprints(nest, SMALL, A2)] == [20, 15, 12]
    full = einsum_cost(Problem(with_outer(A2, 8 * 47 - 1), SMALL, "energy"), nest)
    assert full == Infeasible("DRAM", 47, 46, "C")
    assert isinstance(einsum_cost(Problem(with_outer(A2, 8 * 47), SMALL, "energy"), nest), EinsumCost)


@pytest.mark.parametrize("name", MAPPERS_BY_NAME)
def test_every_mapper_asks_for_that_room_and_no_more(name: str) -> None:
    need, plain = stored_bits(SMALL, 8), replace(A2, fanouts=())
    assert MAPPERS_BY_NAME[name](
        Problem(with_outer(plain, need - 1), SMALL, "energy"), Random(1)
    ) == Infeasible("DRAM", need // 8, need // 8 - 1, "C")
    if name == "annealing":  # takes its time
        return
    fits, free = (
        MAPPERS_BY_NAME[name](Problem(with_outer(plain, bits), SMALL, "energy"), Random(1))
        for bits in (need, None)
    )
    assert isinstance(fits, list)
    assert isinstance(free, list)
    assert [c.mapping for c in fits] == [c.mapping for c in free]


@pytest.mark.parametrize("reuse", ["fused", "gogeta"])
def test_what_stays_on_the_chip_takes_no_room_outside(reuse: str) -> None:
    """T and U never leave it: 20 + 42 bytes before, 8 + 42 after; a byte less holds no schedule."""
    options = SolverOptions(schedule=reuse)  # type: ignore[arg-type]
    (free,) = solve(A2, CHAIN, options)  # type: ignore[misc]
    at = next(
        bytes_
        for bytes_ in range(50, 120)
        if not outermost.overflow_of_schedule(with_outer(A2, 8 * bytes_), CHAIN, free.schedule)
    )
    assert at < 90
    (same,) = solve(with_outer(A2, 8 * at), CHAIN, options)  # type: ignore[misc]
    assert (same.energy_pj, same.optimality_gap) == (free.energy_pj, free.optimality_gap)
    short = solve(with_outer(A2, 8 * 61), CHAIN, options)
    assert isinstance(short, Infeasible)
    assert (short.level, short.have_bytes) == ("DRAM", 61)


def test_einsums_in_turn_are_the_answer_where_the_best_schedule_needs_more() -> None:
    """A kept input and the result of the last einsum are alive together in a segment; in turn they are not.
    The gap is to what was found without the limit.
    """
    free, limit = stack.solve_schedule(A2, CHAIN, SolverOptions(schedule="fused")), with_outer(A2, 8 * 90)
    assert isinstance(free, list)
    assert free[0].schedule
    crowded = outermost.Lifetime("all", 1 << 30, 0, 99)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outermost, "_schedule_lifetimes", lambda *_: [crowded])  # as if it did not fit
        found = stack.solve_schedule(limit, CHAIN, SolverOptions(schedule="fused"))
    assert isinstance(found, list)
    assert not found[0].schedule
    assert found[0].optimality_gap == pytest.approx(
        found[0].energy_pj / free[0].energy_pj * (1 + free[0].optimality_gap) - 1
    )
    assert found[0].energy_pj == stack.solve_unfused(limit, CHAIN, SolverOptions())[0].energy_pj  # type: ignore[index]


MEETING = Workload(
    "meeting",
    (
        einsum("T[m,n] += X[m,k] * W[k,n]", {"m": 4, "n": 3, "k": 1}, "T"),
        einsum("Y[m,l] += T[m,n] * V[n,l]", {"m": 4, "l": 2, "n": 3}, "Y"),
    ),
    frozenset({"W", "V"}),
)


def test_what_a_search_found_is_not_all_that_may_fit() -> None:
    """X, W, V and Y meet in a fused segment, 21 bytes at DRAM. Where T stays whole between the two they do
    not: 17. The answer says of whose schedules it speaks, and gives no need that a study might take for the
    machine's.
    """

    def small(bytes_: int) -> Arch:
        levels = (
            replace(A2.levels[0], capacity_bits=8 * bytes_),
            replace(A2.levels[1], capacity_bits=160, bypass=False),
        )
        return replace(A2, levels=levels, fanouts=())

    found = [solve(small(n), MEETING, SolverOptions(schedule="fused")) for n in (20, 21, 16)]
    assert str(found[0]) == "T: DRAM needs 21 bytes in the schedule that fused found (others may fit), has 20"
    assert isinstance(found[1], list)
    assert isinstance(found[2], Infeasible)
    assert found[2].unit == "bytes"


def test_what_moves_least_outside_is_the_answer_where_all_else_needs_more() -> None:
    """The on-chip memory is dear and the outermost one cheap: T and U go through the latter in what costs
    least, 90 bytes. Of 80 bytes they stay on the chip, priced as on any machine; the gap is to what was found
    without the limit.
    """
    outer, inner = (
        replace(A2.levels[0], read_pj=0.01, write_pj=0.01),
        replace(A2.levels[1], read_pj=50.0, write_pj=50.0),
    )
    cheap, options = replace(A2, levels=(outer, inner)), SolverOptions(schedule="fused")
    limit = with_outer(cheap, 8 * 80)
    (free,), (found,) = (
        stack.solve_schedule(cheap, CHAIN, options),
        stack.solve_schedule(limit, CHAIN, options),
    )  # type: ignore[misc]
    assert str(stack.solve_unfused(limit, CHAIN, SolverOptions())) == "U: DRAM needs 90 bytes, has 80"
    assert not free.schedule
    assert found.schedule
    assert outermost.overflow_of_schedule(limit, CHAIN, found.schedule) is None
    again = graph.evaluate(limit, CHAIN, found.schedule, reuse=True)
    assert isinstance(again, Solution)
    assert found.energy_pj == again.energy_pj > 40 * free.energy_pj
    assert found.optimality_gap == pytest.approx(
        found.energy_pj / free.energy_pj * (1 + free.optimality_gap) - 1
    )


STUDY = """
name: dram
workloads: ['gemm:m=16,n=16,k=16', {{file: chain.yaml, name: chain}}]
machine: a2
space: {{dram.capacity: [100 B, 1000 B, 64 KiB], glb.capacity: [64 B, 64 KiB], clock_mhz: [100, 200, 400]}}
objectives: [energy_pj, latency_ns]
search: {{method: random, generation: 8, prune: {prune}}}
solver: {{sharing_gap: {share}}}
"""


def job_in(folder: Path, share: float = 0.0, prune: bool = False) -> Job:
    (folder / "chain.yaml").write_text(
        'extents: {m: 16, k: 16, n: 16, l: 16}\neinsums: ["T[m,n] += X[m,k] * W[k,n]", "Y[m,l] += '
        'T[m,n] * V[n,l]"]\n'
    )
    (folder / "study.yaml").write_text(STUDY.format(share=share, prune=str(prune).lower()))
    return worker.job_of(studies.load(folder / "study.yaml"))


def statuses(job: Job, front: tuple[Trial, ...] = (), alone: bool = False) -> dict[int, tuple[object, ...]]:
    asks = tuple(Ask(number, 2, "random") for number in range(job.study.space.size))
    with pytest.MonkeyPatch.context() as patch:
        if alone:
            patch.setattr(worker, "MIN_TOGETHER", 1 << 30)
            patch.setattr(worker, "_solve_sharing_mappings", lambda job, asks, _: ([], list(asks), {}, 0.0))
        rows = (
            worker.solve_lease(job, Lease(0, asks, {2: front} if front else {}))
            .tables["machines"]
            .to_pylist()
        )
    return {
        row["machine"]: (
            row["status"],
            row["workload"],
            row["limit_level"],
            row["need_bytes"],
            row["have_bytes"],
            row["reason"],
        )
        for row in rows
    }


def test_a_machine_without_that_room_is_infeasible_whichever_way(tmp_path: Path) -> None:
    """Each alone, together, shared, and where a known front rules out all others. With 1,000 bytes every
    einsum fits, the second workload does not.
    """
    job = job_in(tmp_path)
    plain = statuses(job, alone=True)
    assert [row[:5] for row in plain.values() if row[4] == 100] == [
        ("infeasible", "gemm:m=16,n=16,k=16", "DRAM", 768, 100)
    ] * 6
    assert [row[:5] for row in plain.values() if row[4] == 1000] == [
        ("infeasible", "chain", "DRAM", 1024, 1000)
    ] * 6
    assert sum(row[0] == "ok" for row in plain.values()) == 6
    assert (
        statuses(job)
        == statuses(job_in(tmp_path, share=0.1))
        == statuses(job_in(tmp_path, share=0.1), alone=True)
        == plain
    )
    front = (Trial(900, 0, "ok", (1e-3, 1e-3), ()),)
    for share in (0.0, 0.1):
        for alone in (False, True):
            pruned = statuses(job_in(tmp_path, share, prune=True), front, alone)
            assert {machine for machine, row in pruned.items() if row[0] == "pruned"} == {
                machine for machine, row in plain.items() if row[0] == "ok"
            }
            assert {machine: row for machine, row in pruned.items() if row[0] == "infeasible"} == {
                machine: row for machine, row in plain.items() if row[0] == "infeasible"
            }
