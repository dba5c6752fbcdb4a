"""ALT's two-stage search: its template, its budgets, that it never beats the floor of the exact search."""

from __future__ import annotations

from itertools import product
from math import prod
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dse.layout.text import parse
from dse.mapper.exact.layout_aware import layout_aware
from dse.mapping.nest import Infeasible
from dse.sim.einsum.evaluate import Problem, objective_value
from dse.sim.levels.transfer import dim_names
from dse.solve.layouts.sampled import Actor, Proposer, Uniform, factor, sampled, template
from hw import machine
from tests.amount import amount, some
from workloads.einsum import einsum

EDGE = machine.arch(machine.load("burst_edge"))
WIDE = einsum(
    "O[n,k,p,q] += I[n,c,2*p+r,2*q+s] * W[k,c,r,s]",
    {"n": 2, "k": 64, "c": 16, "p": 32, "q": 32, "r": 3, "s": 3},
)
PRODUCT = einsum("C[m,n] += A[m,k] * B[k,n]", {"m": 64, "n": 64, "k": 32})
CONV = einsum("O[k,p,q] += I[c,p+r,q] * W[k,c,r]", {"k": 32, "c": 16, "p": 14, "q": 14, "r": 3})


@given(st.integers(1, 300), st.floats(0.001, 0.999))
def test_factors_divide(size: int, share: float) -> None:
    """Eq. 2 of ALT: 32 at 0.5 is 16."""
    assert (
        size % factor(size, share) == 0 and factor(32, 0.5) == 16 and factor(size, 0.999) == size
    ) or size > 300


@settings(max_examples=amount(30))
@given(st.lists(st.floats(0.001, 0.999), min_size=12, max_size=12), st.sampled_from([1, 2]))
def test_templates_are_layouts(shares: list[float], levels: int) -> None:
    """Outputs and weights in their own room, channels innermost; every window of a tile is in one tile of the
    input.
    """
    for e in (CONV, WIDE, PRODUCT):
        given_template = template(e, levels)
        texts = given_template.texts(shares[: len(given_template.sizes())])
        for p in e.tensors():
            shape = tuple(d.size for d in p.dims)
            layout = parse(texts[p.tensor], dim_names(p), shape)
            assert layout.stored_elems() == prod(shape) or p.tensor == "I"


@pytest.mark.parametrize(
    ("e", "levels", "texts"),
    [
        # section 5.1: ht 8 of 32, wt 16, ot 32; ot' 16, it' 8; windows of 8 and 16 outputs, stride 2
        (
            "WIDE",
            1,
            {
                "O": "N P/8 Q/16 K/32 p8 q16 k32",
                "I": "N P/16 Q/32 C/4 p16~17 q32~33 c4",
                "W": "K/16 C/8 R S c8 k16",
            },
        ),
        ("WIDE", 2, {"O": "N P/8 Q/16 K/32 p8/4 q16/4 k32/8 p4 q4 k8"}),
        ("PRODUCT", 1, {"C": "M/16 N/32 m16 n32", "A": "M/16 K/8 m16 k8", "B": "K/8 N/32 k8 n32"}),
    ],
)
def test_templates_are_the_papers(e: str, levels: int, texts: dict[str, str]) -> None:
    one = {"WIDE": WIDE, "PRODUCT": PRODUCT}[e]
    found = template(one, levels)
    wanted = {"k": [32, 8], "c": [4], "p": [8, 4], "q": [16, 4], "m": [16], "n": [32]}
    wanted |= {} if e == "WIDE" else {"k": [8]}
    shares, own = list[float](), {"k": 16, "c": 8}
    for rank, n in found.tiled.items():
        for tile in wanted[rank][: levels if rank in one.output.ranks() else 1]:
            shares.append(tile / n)
            n = tile
    shares += [own[rank] / n for rank, n in found.own.items()]
    assert {name: text for name, text in found.texts(shares).items() if name in texts} == texts


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
