"""Rules for mappings (`mapping` of a machine, `solver.mapping`): the search under them against a list of
every mapping of small problems, from which those that break a rule are struck out one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from math import inf, isclose
from random import Random

import pytest

from dse.mapper.exact.optimal import optimal
from dse.mapper.exact.search import search_below
from dse.mapping.constraints import FREE, rank_roles, ruled
from dse.mapping.nest import Infeasible, Mapping, faults, role
from dse.sim.einsum.evaluate import EinsumCost, Problem, einsum_cost, fanout_overflow
from dse.sim.einsum.limits import broken
from hw.arch import Rule, read_rules
from tests.amount import amount
from tests.enumeration import mappings
from tests.nests import KINDS
from tests.small import small_problem

SIMPLE = [kind for kind in KINDS if kind not in ("csr", "sparse")]


@lru_cache(maxsize=4)
def listed(seed: int) -> tuple[Problem, str, tuple[tuple[float, Mapping], ...]]:
    """A random problem, its factors, and (energy, mapping) of all mappings that fit, cheapest first."""
    rng = Random(seed)
    factors = rng.choice(["perfect", "imperfect_spatial"])
    while True:
        problem = small_problem(rng, "energy", amount(2_500, 900), SIMPLE)
        problem = replace(problem, arch=problem.arch.without("leakage"))
        found = []
        for one in mappings(problem, factors, "tensors"):
            if faults(one, problem.einsum, problem.arch) or fanout_overflow(
                one, problem.einsum, problem.arch
            ):
                continue
            cost = einsum_cost(problem, one)
            if isinstance(cost, EinsumCost):
                found.append((cost.energy_pj, one))
        if len(found) > 20:
            return problem, factors, tuple(sorted(found, key=lambda row: row[0]))


def a_rule(rng: Random, problem: Problem) -> Rule | None:
    """One rule of a random kind; None where the machine has nothing that it could stand at."""
    e, arch = problem.einsum, problem.arch
    dims = [name for f in arch.fanouts for name, _ in f.dims]
    inner = [level.name for level in arch.levels[1:]]
    ranks = [rank for rank, n in e.extents if n > 1]
    roles = {rank: name for name, rank in rank_roles(e).items()}
    tensors = [rng.choice([p.tensor, role(e, p.tensor)]) for p in e.tensors()]

    def factors(most: int) -> dict[str, object]:
        chosen = rng.sample(ranks, min(len(ranks), rng.choice([1, 1, 2])))
        n = rng.randint(1, most)
        return {
            rng.choice([rank, roles.get(rank, rank)]): rng.choice(
                [n, f"<= {n}", f">= {n}", f"{n}..{n + 1}", "all"]
            )
            for rank in chosen
        }

    kind = rng.choice(["ranks", "spatial", "keep", "bypass", "tile", "utilization", "temporal", "temporal"])
    if kind in ("ranks", "spatial") and not dims:
        return None
    entry: dict[str, object] = {
        "ranks": lambda: {"at": rng.choice(dims), "ranks": rng.sample(ranks, rng.randint(0, len(ranks)))},
        "spatial": lambda: {"at": rng.choice(dims), "factors": factors(3)},
        "keep": lambda: {"at": rng.choice(inner), "keep": rng.sample(tensors, 1)},
        "bypass": lambda: {"at": rng.choice(inner), "bypass": rng.sample(tensors, 1)},
        "tile": lambda: {
            "at": rng.choice(inner),
            "tile": {rng.choice(tensors): rng.choice([1, 2, 3, 6, "1 B", "2 B"])},
        },
        "utilization": lambda: {"utilization": rng.choice([0.3, 0.5, 0.75, 1.0])},
        "temporal": lambda: {"at": rng.choice(arch.levels).name, "factors": factors(4)},
    }[kind]()
    if rng.random() < 0.1:
        entry["einsums"] = ["other_einsum"]
    return read_rules([entry])[0]


def rule_sets(rng: Random, problem: Problem, count: int) -> Iterator[tuple[Rule, ...]]:
    """Sets of one to three random rules."""
    for _ in range(count):
        rules = [a_rule(rng, problem) for _ in range(rng.choice([1, 1, 2, 3]))]
        yield tuple(rule for rule in rules if rule)


@pytest.mark.parametrize("seed", range(amount(120, 24)))
def test_the_search_under_rules_equals_a_list_of_all_mappings(seed: int) -> None:
    problem, factors, every = listed(seed)
    e, arch = problem.einsum, problem.arch
    for rules in rule_sets(Random(f"rules/{seed}"), problem, 8):
        limits = ruled(FREE, rules, e, arch)
        best = next((cost for cost, one in every if not broken(limits, one, e, arch)), inf)
        found = optimal(problem, factors, limits)
        if isinstance(found, Infeasible):
            assert best == inf, (rules, str(found))
            continue
        (one,) = found
        assert broken(limits, one.mapping, e, arch) == [], (rules, str(one.mapping))
        assert one.proven
        assert one.proven.rules == limits.rule_texts()
        assert isclose(one.energy_pj, best, rel_tol=1e-9), (rules, str(one.mapping), best)
        below = search_below(problem, factors, limits, best * 1.01, 0.0, 100_000)
        assert isclose(below.lower_bound, best, rel_tol=1e-9), rules
