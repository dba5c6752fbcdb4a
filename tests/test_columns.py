"""Machines as columns are the machines one by one, and so are their bounds and the rows of those that are
ruled out, bit for bit.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import nan
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cluster import worker
from cluster.pruning import RunningBound
from cluster.worker import Ask, Job, Lease, job_of, solve_lease, solve_machine, tables_of
from dse.sim.einsum import bound_kernels, bounds
from dse.solve.solve import solve
from dse.study import prune
from dse.study import study as studies
from dse.study.pareto import Cost, Objective, Trial
from hw.arch import Arch, Compute, Level, fields_of
from hw.columns import Table
from hw.space import constraint, decode, static_names
from tests.amount import amount
from tests.nests import random_einsum
from tests.pruned import THREE, space
from workloads import catalog
from workloads.einsum import Einsum


def operations(rng: Random) -> list[tuple[Einsum, float]]:
    """Einsums of all kinds, some with more operands than are bounded together, words of their own, zeros."""
    text = rng.choice(
        [
            "gemm:m=48,n=20,k=36",
            "conv:k=8,c=16,p=14,q=14,r=3,s=3,pad=1",
            "conv:k=6,c=6,p=9,q=9,r=3,s=3,groups=6",
        ]
    )
    found = [catalog.load(text).einsums[0], random_einsum(rng), random_einsum(rng, ("spmm", "spmv"))]
    first = replace(
        found[0], inputs=(replace(found[0].inputs[0], bits=rng.choice([None, 4, 12])), *found[0].inputs[1:])
    )
    more = Einsum(
        **{name: getattr(found[0], name) for name in Einsum.__slots__}
        | {"inputs": (*found[0].inputs, replace(found[0].inputs[0], tensor="more"))}
    )
    others = [replace(found[0], kind=kind) for kind in ("max", "mul")]
    return [(e, rng.choice([1, 3])) for e in (first, *found[1:], more, *others)]


@settings(max_examples=amount(150, 8), deadline=None)
@given(st.integers(0, 2**32))
def test_columns_and_bounds_are_those_of_the_machines(seed: int) -> None:
    rng = Random(seed)
    s = space(rng)
    machines = np.array([rng.randrange(s.size) for _ in range(12)])
    table = Table(s)
    table.columns(machines[:5])
    built, columns = table.columns(machines)
    found = [decode(s, one) for one in machines.tolist()]
    arches = [one for one in found if isinstance(one, Arch)]
    assert built.tolist() == [isinstance(one, Arch) for one in found]
    for name in (*fields_of(Level, "price", "rate"), "width_bits"):
        assert columns.column(name).tolist() == [
            [getattr(level, name) for level in arch.levels] for arch in arches
        ]
    assert columns.sizes.tolist() == [[size for f in arch.fanouts for _, size in f.dims] for arch in arches]
    assume(not any(arch.units for arch in arches))  # columns are of machines with one compute
    assert columns.mac_units.tolist() == [arch.instances(len(arch.levels)) for arch in arches]
    assert columns.peak_tops.tolist() == [arch.peak_tops() for arch in arches]
    for name in fields_of(Compute, "price", "rate"):
        found = [getattr(arch.compute, name) for arch in arches]
        assert str(columns.column(name).tolist()) == str([nan if value is None else value for value in found])
    assert columns.area_mm2.tolist() == [arch.area_mm2() for arch in arches]
    assert columns.leak_mw.tolist() == [arch.leak_mw() for arch in arches]
    shapes = {
        one: arch.structure()
        for one, arch in zip(map(tuple, columns.structure.tolist()), arches, strict=True)
    }
    assert all(
        arch.structure() == shapes[one]
        for one, arch in zip(map(tuple, columns.structure.tolist()), arches, strict=True)
    )
    assert len(set(shapes.values())) == len(shapes)
    families = list(zip(map(tuple, columns.family.tolist()), (arch.family() for arch in arches), strict=True))
    assert len(set(families)) == len({one for one, _ in families}) == len({one for _, one in families})
    runs = operations(rng)
    pj, cycles = bound_kernels.sequential(runs, columns)
    assert list(zip(pj.tolist(), cycles.tolist(), strict=True)) == [
        bounds.sequential(runs, arch) for arch in arches
    ]


@settings(max_examples=amount(60, 8), deadline=None)
@given(st.integers(0, 2**32))
def test_constraints_of_many_are_those_of_each(seed: int) -> None:
    rng = Random(seed)
    s = space(rng)
    numbers = sorted(
        static_names(s.template)
        & {axis.key for axis in s.axes if all(isinstance(v, int | float) for v in axis.values)}
    )
    texts = [
        "area_mm2 <= 0.8",
        "leak_mw * 2 <= 30 + area_mm2",
        *(f"{name} <= {rng.choice([0.4, 4, 1000])}" for name in numbers),
    ]
    # of a field that is no axis, maybe
    names = [*numbers, "area_mm2", *(["clock_mhz"] if rng.random() < 0.3 else [])]
    chosen = rng.sample([*texts, f"{rng.choice(names)} >= {rng.choice(names)}"], 2)
    rules = prune.Constraints(tuple(constraint(text) for text in chosen[: rng.randint(0, 2)]))
    machines = [rng.randrange(s.size) for _ in range(12)]
    assert prune.static_violations_of_many(Table(s), np.array(machines), rules) == [
        prune.static_violations(s, one, rules) for one in machines
    ]


STUDY = """
name: ruled
workloads: [{file: three.yaml, name: one, weight: 3},
  {workload: "conv:k=8,c=16,p=14,q=14,r=3,s=3,pad=1", name: two}]
machine: edge_array
space: {array.x: [4, 8, 16], gbuf.capacity: [100 B, 4 KiB, 32 KiB, 48 KiB],
  regf.capacity: [4 B, 64 B, 256 B], dram.kind: [ddr3, lpddr4], clock_mhz: [200, 900]}
objectives: [energy_pj, area_mm2, {energy_pj: two}, {latency_ns: max}, {edp_pj_ns: geomean}]
search: {method: random, generation: 20, prune: true}
solver: {mapper: cost_descending}
"""


def job_in(folder: Path) -> Job:
    (folder / "three.yaml").write_text(THREE)
    (folder / "study.yaml").write_text(STUDY)
    return job_of(studies.load(folder / "study.yaml"))


def test_rows_of_machines_that_are_ruled_out_are_those_of_each_alone(tmp_path: Path) -> None:
    job = job_in(tmp_path)
    arches = [
        arch for one in range(job.study.space.size) if isinstance(arch := decode(job.study.space, one), Arch)
    ]
    lower = np.array(
        [
            prune.objective_bounds(
                job.study.objectives,
                RunningBound(job.pruner, arch, ()).lower_bounds(),
                job.study.weights(),
                arch.area_mm2(),
            )
            for arch in arches
        ]
    )
    fronts = {
        g: tuple(
            Trial(900 + i, 0, "ok", tuple(np.quantile(lower, share, axis=0).tolist()), (0.0,))
            for i, share in enumerate(shares)
        )
        for g, shares in ((2, (0.4, 0.2)), (3, (0.3,)))
    }
    asks = tuple(Ask(one, 2 + one % 2, f"source {one % 3}") for one in range(job.study.space.size))
    together = solve_lease(job, Lease(1, asks, fronts)).tables["machines"].sort_by("machine")
    alone = [solve_machine(job, ask, fronts[ask.generation])[0]["machines"][0] for ask in asks]
    assert together.equals(worker.batches_of(tables_of(job, {"machines": alone}))["machines"])
    assert 20 < sum(row["status"] == "pruned" for row in alone) < len(alone) - 20
    assert any(row["status"] == "infeasible" for row in alone)


def test_costs_take_the_place_of_bounds_as_einsums_are_solved(tmp_path: Path) -> None:
    job = job_in(tmp_path)
    arch = decode(job.study.space, 143)
    assert isinstance(arch, Arch)
    hope, before = RunningBound(job.pruner, arch, ()), 0
    for number, workload in enumerate(job.workloads):
        found = solve(arch, workload, job.study.solver, partial(hope.on_einsum, number))
        now = hope.lower_bounds()[job.study.workloads[number].name]
        assert isinstance(found, list)
        assert now.energy_pj == pytest.approx(found[0].energy_pj)
        assert now.latency_cycles == pytest.approx(found[0].latency_cycles)
        assert before < hope.solved_einsums == sum(len(groups) for groups in job.uniques[: number + 1])
        before = hope.solved_einsums


def test_one_machine_is_looked_at_alone(tmp_path: Path) -> None:
    """Columns cost more than they save, and find nothing else."""
    job = job_in(tmp_path)
    front = (Trial(900, 0, "ok", (1.0, 1e-9, 1.0, 1.0, 1.0), (0.0,)),)
    leases = [
        Lease(1, tuple(Ask(77 + i, 2, "random") for i in range(n)), {2: front})
        for n in (1, worker.MIN_TOGETHER)
    ]
    one, several = (solve_lease(job, lease).tables["machines"] for lease in leases)
    assert one.equals(several.slice(0, 1))
    assert one["dominated_by"].to_pylist() == [900]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=6),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=6),
)
def test_the_first_that_dominates_is_found_for_many(
    front: list[tuple[int, int]], lower: list[tuple[int, int]]
) -> None:
    trials = [Trial(i, 0, "ok", (float(a), float(b)), ()) for i, (a, b) in enumerate(front)]
    found = prune.first_dominating(trials, np.array(lower, float))
    alone = [prune.dominating(trials, one) for one in lower]
    assert found.tolist() == [-1 if one is None else one.machine for one in alone]


def test_least_of_many_is_least_of_each() -> None:
    rng = np.random.default_rng(1)
    columns = {name: Cost(*rng.uniform(1, 9, (4, 30))) for name in ("a", "b")}
    over = ("", "sum", "max", "min", "geomean", "b")
    objectives = [
        Objective(metric, way)
        for metric in ("energy_pj", "latency_ns", "edp_pj_ns", "area_mm2")
        for way in over
    ]
    weights, area = {"a": 2.0, "b": 0.7}, rng.uniform(1, 9, 30)
    found = prune.objective_bounds_of_many(objectives, columns, weights, area)
    for i in range(30):
        costs = {
            name: Cost(c.energy_pj[i], c.latency_cycles[i], c.latency_ns[i], c.interval_ns[i])
            for name, c in columns.items()
        }  # type: ignore[index]
        assert tuple(found[i]) == prune.objective_bounds(objectives, costs, weights, area[i])
