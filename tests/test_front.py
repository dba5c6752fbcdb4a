"""Fronts of workloads on one machine, and least energy x delay: against every choice of mappings of small
joint spaces, and against the answers of one objective on networks.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dse.mapping.nest import Infeasible
from dse.solve.front import covering_rows, thin
from dse.solve.options import SolverOptions
from dse.solve.solve import solve, solve_unfused_on
from hw import machine
from hw.arch import Arch
from tests.amount import amount
from tests.joint import faults
from workloads import catalog


@pytest.mark.parametrize("seed", range(amount(24, 4)))
def test_a_front_is_that_of_all_choices(seed: int) -> None:
    assert not list(faults(seed, machines=3, most=150, gap=0.0, overlap="free"))


@pytest.mark.parametrize("seed", range(200, 200 + amount(24, 4)))
def test_a_front_covers_all_choices_within_its_gap(seed: int) -> None:
    gap, overlap = (0.02, 0.1)[seed % 2], ("buffered", "free", "buffered")[seed % 3]
    assert not list(faults(seed, machines=3, most=300, gap=gap, overlap=overlap))


@pytest.mark.parametrize("step", [1.0, 1.001, 1.05])
def test_thinned_sums_cover_the_others(step: float) -> None:
    rng = np.random.default_rng(1)
    sums = np.exp(rng.normal(size=(60_000, 1)) * [1.0, -1.0] + 0.02 * rng.random((60_000, 2)))
    kept, factor = thin(sums, step)
    assert len(kept) < len(sums)
    assert factor == step
    energy, latency = sums[kept].T
    assert (np.diff(energy) > 0).all()
    assert (np.diff(latency) < 0).all()
    assert (energy[0], latency[-1]) == tuple(sums.min(axis=0))
    for row in sums[:2000]:
        assert np.maximum(energy / row[0], latency / row[1]).min() <= factor * (1 + 1e-12)


@pytest.mark.parametrize("gap", [0.0, 0.01, 0.2])
def test_rows_that_cover_a_front_are_few(gap: float) -> None:
    rng = np.random.default_rng(2)
    sums = np.column_stack([np.sort(1 + rng.random(400)), -np.sort(-(1 + 3 * rng.random(400)))])
    rows = covering_rows(sums, gap)
    assert {0, 399} <= set(rows.tolist())
    assert all(np.max(sums[rows] / row, axis=1).min() <= (1 + gap) * (1 + 1e-12) for row in sums)
    assert len(rows) == 400 if gap == 0 else len(rows) <= 2 + np.log(2) / np.log1p(gap)


@pytest.fixture(scope="module")
def arches() -> list[Arch]:
    """Machines that one search takes together, and one of other capacities."""
    base = machine.arch(machine.load("edge_array"))
    slow = replace(base, levels=tuple(replace(level, read_pj=3 * level.read_pj) for level in base.levels))
    small = machine.arch(machine.load("a2"))
    return [base, slow, small]


def test_a_front_has_the_ends_and_products_of_one_objective(arches: list[Arch]) -> None:
    workload = catalog.load("mlp_s:batch=64")
    answers = {
        objective: solve_unfused_on(arches, workload, SolverOptions(objective=objective))  # type: ignore[arg-type]
        for objective in ("energy", "latency", "edp", "front")
    }
    for j, arch in enumerate(arches):
        alone = solve(arch, workload, SolverOptions(objective="front"))
        one = answers["front"][j]
        assert isinstance(one, list)
        assert isinstance(alone, list)
        assert [(s.energy_pj, s.latency_cycles, s.optimality_gap) for s in one] == [
            (s.energy_pj, s.latency_cycles, s.optimality_gap) for s in alone
        ]
        least = {}
        for objective in ("energy", "latency", "edp"):
            found = answers[objective][j]
            assert isinstance(found, list)
            least[objective] = found[0]
        assert one[0].energy_pj <= least["energy"].energy_pj * (1 + 1e-9)
        assert one[-1].latency_cycles <= least["latency"].latency_cycles * (1 + 1e-9)
        product = least["edp"].energy_pj * least["edp"].latency_cycles
        assert product <= (1 + least["edp"].optimality_gap) * min(s.energy_pj * s.latency_cycles for s in one)
        assert all("has a schedule of the front" in s.certificate for s in one)


def test_a_workload_that_does_not_fit_has_no_front() -> None:
    arch = machine.arch(machine.load("edge_array"))
    last = replace(arch.levels[-1], capacity_bits=8, bypass=False)
    tiny = replace(arch, levels=(*arch.levels[:-1], last))
    found = solve(tiny, catalog.load("mlp_s:batch=64"), SolverOptions(objective="front"))
    assert isinstance(found, Infeasible)
