"""The contract of every mapper: fits, is well formed, is costed by the one evaluator, never below the bound,
same seed same answer.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dse.mapper.baselines.annealing import annealing
from dse.mapper.baselines.random import random
from dse.mapper.exact.optimal import optimal
from dse.mapping.nest import Infeasible, faults
from dse.sim.counts.counts import footprints
from dse.sim.einsum import cost
from dse.sim.einsum.evaluate import EinsumCost, Problem, einsum_cost, lower_bound, objective_value
from dse.solve.solve import MAPPERS_BY_NAME
from tests.amount import amount
from tests.nests import random_arch, random_einsum
from tests.small import small_problem


def hurried(problem: Problem, rng: Random) -> list[EinsumCost] | Infeasible:
    return optimal(problem, budget=20_000)


# budgets of a test
LESS = {
    "random": partial(random, mappings=20),
    "annealing": partial(annealing, iterations=3, candidates=5),
    "hurried": hurried,
}
MAPPERS = {**MAPPERS_BY_NAME, **LESS}
NAMES = sorted(MAPPERS)
SMALL = 20_000  # mappings that exhaustive takes here


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=amount(40, 8), deadline=None)
@given(seed=st.integers(0, 2**32), objective=st.sampled_from(["energy", "latency", "edp"]))
def test_contract(name: str, seed: int, objective: str) -> None:
    rng = Random(seed)
    if name == "exhaustive":
        problem = small_problem(rng, objective, SMALL)
    else:
        problem = Problem(
            random_arch(rng, capacity_bits=8 * rng.choice([2, 6, 20, 100, 1000])),
            random_einsum(rng),
            objective,
        )
    e, arch = problem.einsum, problem.arch
    found = MAPPERS[name](problem, Random(1))
    assert found == MAPPERS[name](problem, Random(1))
    if isinstance(found, Infeasible):
        assert found.need_bytes > found.have_bytes
        assert found.einsum == e.name
        return
    for one in found:
        assert faults(one.mapping, e, arch) == []
        assert cost.overflow(footprints(one.mapping, e, arch), e, arch) is None
        assert einsum_cost(problem, one.mapping) == one
        assert lower_bound(problem) <= objective_value(objective, one.energy_pj, one.latency_cycles) * (
            1 + 1e-9
        )


@pytest.mark.parametrize("name", NAMES)
def test_a_level_too_small_for_one_element_of_each_tensor_is_named(name: str) -> None:
    rng = Random(3)
    e, arch = random_einsum(rng, ["gemm"]), random_arch(rng)
    e = replace(e, extents=tuple((rank, min(n, 2)) for rank, n in e.extents))
    tight = replace(
        arch,
        levels=(
            arch.levels[0],
            *(
                replace(level, capacity_bits=8, bypass=False, double_buffer=False)
                for level in arch.levels[1:]
            ),
        ),
    )
    found = MAPPERS[name](Problem(tight, e, "energy"), Random(1))
    assert isinstance(found, Infeasible)
    assert found.have_bytes == 1
    assert found.need_bytes == len(e.tensors())
    assert str(found).startswith(e.name)
