"""Finds machines that need no solving: a known schedule dominates their lower bounds, or they break a static
constraint, which is on numbers known in advance. The other constraints (modelled) are evaluated on every
schedule.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dse.study.pareto import METRICS, Cost, Objective, Trial, metrics, slug, total, value
from hw.columns import Table
from hw.component import has_units
from hw.space import (
    TOTALS,
    Constraint,
    Space,
    Unbuildable,
    Value,
    decode,
    is_least,
    static_values,
    values,
    violation,
)
from workloads.arrays import Floats, Ints

COMPARISONS = (("<=", " le "), (">=", " ge "), ("==", " eq "), ("<", " lt "), (">", " gt "))


@dataclass(frozen=True, slots=True)
class Constraints:
    """The constraints of a study."""

    static: tuple[Constraint, ...] = ()  # over the machine's fields, area_mm2 and leak_mw only
    modelled: tuple[Constraint, ...] = ()  # with a metric in it


def violation_column(constraint: Constraint) -> str:
    """Returns the name of the column of points that holds by how much a constraint is missed.

    >>> from hw.space import constraint
    >>> violation_column(constraint("latency_ns[net] <= 5e6"))
    'violation_latency_ns_net_le_5e6'
    """
    text = constraint.text
    for sign, word in COMPARISONS:
        text = text.replace(sign, word)
    return f"violation_{slug(text)}"


def known_values(space: Space, machine: int, constraints: Sequence[Constraint]) -> Mapping[str, Value] | None:
    """Returns values of a machine by name, which include all that the constraints may name except metrics;
    None if the machine cannot be built.
    """
    chosen = values(space, machine)
    if all(name in chosen and not is_least(space, name) for c in constraints for name in c.names):
        return chosen
    arch = decode(space, machine)
    return None if isinstance(arch, Unbuildable) else static_values(space, machine, arch)


def static_violations(space: Space, machine: int, constraints: Constraints) -> tuple[float, ...]:
    """Returns a number per static constraint, met if <= 0. A machine that cannot be built passes: its row
    will say why it is infeasible.
    """
    fields = known_values(space, machine, constraints.static) if constraints.static else {}
    if fields is None:
        return (0.0,) * len(constraints.static)
    return tuple(violation(c, fields) for c in constraints.static)


def static_violations_of_many(
    table: Table, machines: Ints, constraints: Constraints
) -> list[tuple[float, ...]]:
    """Returns `static_violations` of n machines, computed as columns if constraints name only axes, area_mm2
    and leak_mw, else machine by machine, as where machines have several computes.
    """
    space = table.space
    axes = {axis.key: at for at, axis in enumerate(space.axes) if not is_least(space, axis.key)}
    names = {name for c in constraints.static for name in c.names}
    if not names <= {*axes, *TOTALS} or not names or has_units(space.template.nodes):
        return [static_violations(space, machine, constraints) for machine in machines.tolist()]
    digits, no_violations = table.digits(machines), (0.0,) * len(constraints.static)
    value_columns: dict[str, Sequence[Value]] = {
        name: [space.axes[at].values[digit] for digit in digits[:, at].tolist()]
        for name, at in axes.items()
        if name in names
    }
    built = np.ones(len(machines), np.bool_)
    if names & {*TOTALS}:
        built, columns = table.columns(machines)
        for name in names & {*TOTALS}:
            total = np.zeros(len(machines))
            total[built] = getattr(columns, name)
            value_columns[name] = total.tolist()
    rows = (
        dict(zip(value_columns, values, strict=True)) for values in zip(*value_columns.values(), strict=True)
    )
    return [
        tuple(violation(c, row) for c in constraints.static) if is_built else no_violations
        for is_built, row in zip(built.tolist(), rows, strict=True)
    ]


def meets(space: Space, machine: int, constraints: Constraints) -> bool | None:
    """True if a machine meets all static constraints; None if it cannot be built."""
    fields = known_values(space, machine, constraints.static)
    return None if fields is None else all(violation(c, fields) <= 0 for c in constraints.static)


def reason(constraints: Constraints, violations: Sequence[float]) -> str:
    """Returns which static constraints a machine breaks, in one line."""
    return "breaks " + " and ".join(
        c.text for c, v in zip(constraints.static, violations, strict=True) if v > 0
    )


def modelled_violations(
    space: Space,
    machine: int,
    constraints: Constraints,
    costs: Mapping[str, Cost],
    weights: Mapping[str, float],
) -> dict[str, float]:
    """Returns column -> violation for each modelled constraint. A metric is that of all workloads,
    `metric[workload]` that of one.
    """
    if not constraints.modelled:
        return {}
    metric_values: dict[str, Value] = dict(
        metrics(total(list(costs.values()), [weights[name] for name in costs]))
    )
    metric_values |= {
        f"{metric}[{name}]": value for name, cost in costs.items() for metric, value in metrics(cost).items()
    }
    without_metrics = [Constraint(c.text, c.names - metric_values.keys()) for c in constraints.modelled]
    fields = known_values(space, machine, without_metrics) if any(c.names for c in without_metrics) else {}
    return {
        violation_column(c): violation(c, {**(fields or {}), **metric_values}) for c in constraints.modelled
    }


# metrics with a lower bound: they rise with energy and cycles, or are known in advance
BOUNDED = ("energy_pj", "latency_ns", "latency_cycles", "edp_pj_ns", "area_mm2")
ROUNDING = 1e-9  # relative difference by which rounding may raise a bound above the cost


def unbounded_objective(objectives: Sequence[Objective]) -> str:
    """Returns the first objective without a lower bound from energy and cycles; "": all have one."""
    return next((o.column for o in objectives if o.metric not in BOUNDED or o.direction == "max"), "")


def objective_bounds(
    objectives: Sequence[Objective],
    lower_bounds: Mapping[str, Cost],
    weights: Mapping[str, float],
    area_mm2: float,
) -> tuple[float, ...]:
    """Returns a lower bound of every objective over all schedules of a machine. lower_bounds: of each
    workload's cost.
    """
    factor = 1 - ROUNDING
    lower = {
        name: Cost(
            factor * c.energy_pj, factor * c.latency_cycles, factor * c.latency_ns, factor * c.interval_ns
        )
        for name, c in lower_bounds.items()
    }
    return tuple(value(o, lower, weights, area_mm2) for o in objectives)


def dominating(front: Sequence[Trial], lower: Sequence[float], gap: float = 0.0) -> Trial | None:
    """Returns the first schedule of the front that is no worse than these bounds in any objective and better
    in one, so that it dominates every schedule of the machine; None if there is none. gap: or worse by this
    share of them at most, so that no schedule of the machine is better by more in every objective.
    """
    limits = [(1 + gap) * low for low in lower]
    for trial in front:
        values = trial.values or ()
        if all(v <= limit for v, limit in zip(values, limits, strict=True)) and any(
            v < limit for v, limit in zip(values, limits, strict=True)
        ):
            return trial
    return None


def objective_bounds_of_many(
    objectives: Sequence[Objective],
    lower_bounds: Mapping[str, Cost],
    weights: Mapping[str, float],
    area_mm2: Floats,
) -> Floats:
    """Returns [n, objectives], `objective_bounds` of n machines. lower_bounds: columns [n]."""
    return np.stack(objective_bounds(objectives, lower_bounds, weights, area_mm2), axis=1)  # type: ignore[arg-type]


def first_dominating(front: Sequence[Trial], lower: Floats, gap: float = 0.0) -> Ints:
    """Returns [n], the index in the front of the first schedule that dominates a machine (`dominating`), or
    -1. lower: [n, objectives].
    """
    limits = (1 + gap) * lower
    found, undominated = np.full(len(lower), -1, np.int64), np.arange(len(lower))
    for index, trial in enumerate(front):
        their_bounds, values = limits[undominated], np.array(trial.values)
        is_dominated = (values <= their_bounds).all(axis=1) & (values < their_bounds).any(axis=1)
        if is_dominated.any():
            found[undominated[is_dominated]] = index
            undominated = undominated[~is_dominated]
    return found


def metric_of(name: str) -> tuple[str, str]:
    """Returns ("latency_ns", "net") for "latency_ns[net]"; ("", "") for a name that is no metric."""
    match = re.fullmatch(r"(\w+)(?:\[([^\]]*)\])?", name)
    return (match[1], match[2] or "") if match and match[1] in METRICS else ("", "")
