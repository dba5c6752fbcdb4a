"""ALT's two-stage search: its template, its budgets, that it never beats the floor of the exact search."""

from __future__ import annotations

from itertools import product
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.reference.sampled import Actor, Proposer, Uniform, factor, sampled, text
from dse.layout.text import parse
from dse.mapper.exact.layout_aware import layout_aware
from dse.mapping.nest import Infeasible
from dse.sim.einsum.evaluate import Problem, objective_value
from dse.sim.levels.transfer import dim_names
from hw import machine
from tests.amount import amount, some
from workloads.einsum import einsum

EDGE = machine.arch(machine.load("burst_edge"))
CONV = einsum("O[k,p,q] += I[c,p+r,q] * W[k,c,r]", {"k": 32, "c": 16, "p": 14, "q": 14, "r": 3})


@given(st.integers(1, 300), st.floats(0.001, 0.999))
def test_factors_divide(size: int, share: float) -> None:
    """Eq. 2 of ALT: 32 at 0.5 is 16."""
    assert (
        size % factor(size, share) == 0 and factor(32, 0.5) == 16 and factor(size, 0.999) == size
    ) or size > 300


@settings(max_examples=amount(50))
@given(st.lists(st.floats(0.001, 0.999), min_size=3, max_size=3))
def test_the_template_is_a_layout_of_the_same_room(shares: list[float]) -> None:
    p = CONV.output
    shape = tuple(d.size for d in p.dims)
    factors = [factor(n, share) for n, share in zip(shape, shares, strict=True)]
    assert parse(text(p, factors), dim_names(p), shape).stored_elems() == 32 * 14 * 14
    assert text(p, (16, 7, 1)) == "K/16 P/7 Q k16 p7"
    assert text(p, (32, 14, 14)) == "K P Q"


@pytest.mark.parametrize(
    ("objective", "proposer"),
    some(product(("energy", "latency"), (Uniform(Random(1)), Actor(np.random.default_rng(1)))), 0, 3),
)
def test_budgets_are_kept_and_the_floor_holds(proposer: Proposer, objective: str) -> None:
    one = Problem(EDGE, CONV, objective)
    (best,) = layout_aware(one)  # type: ignore[misc]
    found = sampled(one, Random(3), proposer, 60, 40)
    assert not isinstance(found, Infeasible)
    assert len(found[1]) <= 100
    assert found[1][-1] == min(found[1])
    value, exact = (objective_value(objective, c.energy_pj, c.latency_cycles) for c in (found[0], best))
    assert value >= exact / (1 + best.optimality_gap) * (1 - 1e-9)


def test_an_actor_learns_what_pays() -> None:
    """The reward is the share of the first dimension: shares grow."""
    actor = Actor(np.random.default_rng(0))
    first = [0.0, 0.0]
    for n in range(400):
        shares = actor.ask((64, 64))
        first[n >= 350] += shares[0] / (350 if n < 350 else 50)
        actor.tell(-(1.1 - shares[0]))
    assert first[1] > 0.8


def test_same_seed_same_answer() -> None:
    found = [
        sampled(Problem(EDGE, CONV, "energy"), Random(5), Actor(np.random.default_rng(5)), 30, 20)
        for _ in range(2)
    ]
    assert found[0] == found[1]
