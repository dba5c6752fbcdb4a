"""A lease as tables: rows of choices, mappings and counts are those of the solutions; a machine that fails
leaves none of them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from cluster import worker
from cluster.worker import Ask, Job, Lease
from dse.mapper.baselines.cost_descending import cost_descending
from dse.mapping.nest import Infeasible
from dse.sim.einsum import bounds
from dse.sim.einsum.evaluate import EinsumCost, Problem, Solution, einsum_cost
from dse.solve import solve as stack
from dse.study import study as studies
from hw.arch import Arch
from hw.space import decode
from tests.test_driver import HEAVY, faulty, study, with_mapper
from workloads.graph import unique

pytestmark = pytest.mark.xdist_group("worker")

SOME = (100, 150, 200, 219, 250, 299)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    return worker.job_of(
        study(tmp_path_factory.mktemp("worker"), workloads=f"{HEAVY}, 'gemm:m=64,n=32,k=48'")
    )


def solve(job: Job, *machines: int) -> dict[str, pa.RecordBatch]:
    return dict(worker.solve_lease(job, Lease(1, tuple(Ask(m, 3, "exhaustive") for m in machines))).tables)


def test_an_answer_arrives_as_it_was_sent(job: Job) -> None:
    lease = Lease(1, tuple(Ask(m, 3, "exhaustive") for m in SOME))
    done = worker.solve_lease(job, lease)
    arrived = worker.unpack(job, lease, worker.pack(done))
    assert arrived.tables.keys() == done.tables.keys()
    assert all(table.equals(done.tables[name], check_metadata=True) for name, table in arrived.tables.items())
    assert replace(arrived, tables={}) == replace(done, tables={})


def machine(job: Job, number: int) -> tuple[Arch, list[Solution]]:
    arch = decode(job.study.space, number)
    assert isinstance(arch, Arch)
    found = [stack.solve(arch, workload, job.study.solver) for workload in job.workloads]
    return arch, [one[0] for one in found if not isinstance(one, Infeasible)]


def test_rows_are_those_of_the_solutions(job: Job) -> None:
    tables = solve(job, *SOME)
    for table, found in tables.items():
        assert found.schema.equals(job.schemas[table], check_metadata=True)
        assert found.num_rows
    rows, nests = (
        tables["chosen"].to_pylist(),
        {row["mapping_key"]: row["nest"] for row in tables["mappings"].to_pylist()},
    )
    counts: dict[str, list[dict[str, object]]] = {}
    for row in tables["counts"].to_pylist():
        counts.setdefault(row["mapping_key"], []).append(row)
    at = iter(rows)
    for number in SOME:
        for ref, solution in zip(job.study.workloads, machine(job, number)[1], strict=True):
            row = next(at)
            assert (row["machine"], row["schedule"], row["workload"]) == (number, 0, ref.name)
            for place, cost in enumerate(solution.einsums):
                key = row[studies.mapping_column(place)]
                assert (key, nests[key]) == (cost.mapping_key, str(cost.mapping))
                assert [(c["level"], c["tensor"], c["elems"]) for c in counts[key]] == [
                    (c.level, c.tensor, c.elems) for c in cost.counts
                ]
    assert next(at, None) is None


def test_a_mapping_stands_once_in_a_lease(job: Job) -> None:
    once, twice = solve(job, *SOME), solve(job, *SOME, *SOME)
    for table in ("mappings", "counts"):
        assert sorted(once[table].to_pylist(), key=repr) == sorted(twice[table].to_pylist(), key=repr)
    assert twice["chosen"].num_rows == 2 * once["chosen"].num_rows
    assert len(set(once["mappings"]["mapping_key"].to_pylist())) == once["mappings"].num_rows


def test_counts_that_differ_have_keys_that_differ(job: Job) -> None:
    arch, [solution, *_] = machine(job, 100)
    problem, nest = Problem(arch, unique(job.workloads[0])[0].einsum, "energy"), solution.einsums[0].mapping
    fanouts = tuple(replace(f, multicast=tuple(not flag for flag in f.multicast)) for f in arch.fanouts)
    wide, alone = (
        einsum_cost(replace(problem, arch=other), nest)
        for other in (replace(arch, word_bits=2 * arch.word_bits), replace(arch, fanouts=fanouts))
    )
    found = [one for one in (einsum_cost(problem, nest), wide, alone) if isinstance(one, EinsumCost)]
    assert len(found) > 1
    assert len({one.mapping_key for one in found}) == len(found)


def test_a_lease_is_the_machines_of_it(job: Job) -> None:
    """No row depends on what is solved beside it."""
    whole = solve(job, *SOME)
    for table in ("machines", "points", "chosen"):
        assert whole[table].to_pylist() == [row for m in SOME for row in solve(job, m)[table].to_pylist()]


def test_bounds_are_those_of_the_weighted_set(job: Job) -> None:
    row = solve(job, 299)["machines"].to_pylist()[0]
    arch, _ = machine(job, 299)
    groups = [
        (ref.weight * g.occurrences, g.einsum)
        for ref, found in zip(job.study.workloads, job.uniques, strict=True)
        for g in found
    ]
    assert row["bound_energy_pj"] == pytest.approx(sum(n * bounds.energy_pj(e, arch) for n, e in groups))
    assert row["bound_latency_ns"] == pytest.approx(
        sum(n * bounds.latency_cycles(e, arch) for n, e in groups) / arch.clock_ghz
    )


def late(problem: Problem, rng: Random) -> list[EinsumCost] | Infeasible:
    """Fails at the second workload, when the first is solved."""
    return faulty(problem, rng) if problem.einsum.sizes()["m"] == 96 else cost_descending(problem, rng)


def test_a_machine_that_fails_halfway_leaves_one_row_and_its_neighbours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heavy = worker.job_of(study(tmp_path, workloads=HEAVY))
    cursed = next(m for m in range(studies.grid(heavy.study).size) if marked(heavy, m))
    with_mapper(heavy.study, monkeypatch, late)
    tables = solve(heavy, cursed, 299)
    assert [row["status"] for row in tables["machines"].to_pylist()] == ["error", "ok"]
    assert (
        set(tables["chosen"]["machine"].to_pylist()) == set(tables["points"]["machine"].to_pylist()) == {299}
    )
    assert "this machine is cursed" in tables["events"].to_pylist()[0]["text"]


def marked(job: Job, number: int) -> bool:
    values = studies.parameters(job.study, number)
    return (
        values["glb_capacity"] == 4096
        and values["glb_bypass"] is True
        and values["array_x"] == values["array_y"] == 4
    )
