"""A mapper that the user brings: its mappings are checked and priced here, so it cannot err in a cost."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from random import Random

from dse.mapping.nest import Infeasible, Mapping, faults, parse
from dse.sim.einsum.evaluate import EinsumCost, Problem, einsum_cost, objective_value
from dse.sim.schedule import outermost
from workloads import plugin

Mapper = Callable[[Problem, Random], list[EinsumCost] | Infeasible]


@cache
def plugged(key: str) -> Mapper:
    """Returns the mapper of a plug-in, `(problem, rng) -> list of mappings` (text or values) `or Infeasible`.

    The answer is what fits of the list, best first. Raises ValueError for mappings that are not legal.
    """
    name = plugin.known(key).name

    @outermost.mapper
    def mapper(problem: Problem, rng: Random) -> list[EinsumCost] | Infeasible:
        given = plugin.function(key)(problem, rng)
        if isinstance(given, Infeasible):
            return given
        if not isinstance(given, list) or not given:
            raise ValueError(
                f"{name}: returned {type(given).__name__}; return a list of mappings, or Infeasible"
            )
        costs = [_cost(name, problem, parse(one) if isinstance(one, str) else one) for one in given]
        fitting = [cost for cost in costs if isinstance(cost, EinsumCost)]
        overflow = next((cost for cost in costs if isinstance(cost, Infeasible)), None)
        return sorted(fitting, key=lambda c: _value(problem, c)) or overflow or []

    return mapper


def _value(problem: Problem, cost: EinsumCost) -> float:
    return objective_value(problem.objective, cost.energy_pj, cost.latency_cycles)


def _cost(name: str, problem: Problem, mapping: Mapping) -> EinsumCost | Infeasible:
    if not isinstance(mapping, Mapping):
        raise ValueError(f"{name}: {type(mapping).__name__} is no mapping; return texts or values of Mapping")
    if lines := faults(mapping, problem.einsum, problem.arch):
        raise ValueError("\n".join(f"{name}: {line}" for line in lines))
    return einsum_cost(problem, mapping)
