"""Steps of the walkers."""

from __future__ import annotations

from random import Random

import pytest

from dse.mapper.baselines.annealing import annealing
from dse.sim.einsum.evaluate import Problem
from tests.amount import some
from tests.nests import random_arch
from workloads.einsum import einsum


@pytest.mark.parametrize("seed", some(range(4), 0))
def test_an_einsum_of_one_iteration_has_no_loops_to_move(seed: int) -> None:
    problem = Problem(
        random_arch(Random(seed)), einsum("C[m,n] += A[m,k] * B[k,n]", {"m": 1, "n": 1, "k": 1}), "energy"
    )
    assert isinstance(annealing(problem, Random(seed), iterations=6, candidates=6), list)
