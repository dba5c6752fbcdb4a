"""Objectives, trials, fronts and hypervolume.

A row with a NaN is never on a front. Infinities compare as numbers. Points with equal values are all on the
front or none is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from typing import TYPE_CHECKING

import moocore
import numpy as np
from numpy.typing import NDArray

from dse.run import record
from dse.sim.counts.latency import Number, largest

if TYPE_CHECKING:
    from dse.sim.einsum.evaluate import Solution

Values = NDArray[np.float64]
Mask = NDArray[np.bool_]

AGGREGATES = ("sum", "max", "min", "geomean")
METRICS = tuple(record.METRICS)
MAXIMISED = ("throughput",)
MANY = 1000  # rows from which on most are dropped before rows are compared with each other
REFERENCE = 1.1  # reference point of a hypervolume, on axes where the worst value is 1


@dataclass(frozen=True, slots=True)
class Objective:
    """One metric to minimise (direction "min") or maximise ("max")."""

    metric: str
    # sum, max, min or geomean over workloads (weights count in sum and geomean), or a workload's name; "":
    # all workloads run one after another, each `weight` times
    over: str = ""
    direction: str = "min"

    @property
    def column(self) -> str:
        """Name in the table points: metric, or metric_over; of a cost term its function's name."""
        return self.metric.partition("@")[0] if not self.over else f"{self.metric}_{slug(self.over)}"

    @property
    def is_term(self) -> bool:
        """True for a cost term: the key of a plug-in."""
        return "@" in self.metric


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of one run of a workload, or of all workloads by weight."""

    energy_pj: float
    latency_cycles: float
    latency_ns: float
    interval_ns: float  # initiation interval: time per run when runs follow back to back


@dataclass(frozen=True, slots=True)
class Trial:
    """One schedule of one machine, as samplers and stop criteria see it. A machine without a schedule is one
    trial without values.
    """

    machine: int
    generation: int
    status: str
    values: tuple[float, ...] | None  # in the order of the study's objectives; None: not solved
    violations: tuple[float, ...]  # capacity, static constraints, modelled constraints; met if <= 0

    @property
    def feasible(self) -> bool:
        """True if the trial was solved and breaks no constraint."""
        return self.values is not None and all(v <= 0 for v in self.violations)


def slug(text: str) -> str:
    """Returns a text with letters, digits and underscores only: fit for a column name."""
    return re.sub(r"\W+", "_", text).strip("_")


def cost_of(solution: Solution, clock_ghz: float) -> Cost:
    """Returns the cost of one solution: energy in pJ, latency in cycles and ns, initiation interval in ns."""
    return Cost(
        solution.energy_pj,
        solution.latency_cycles,
        solution.latency_cycles / clock_ghz,
        solution.initiation_interval_cycles / clock_ghz,
    )


def metrics(cost: Cost) -> dict[str, float]:
    """Returns the metrics of record.METRICS."""
    return {
        "energy_pj": cost.energy_pj,
        "latency_cycles": cost.latency_cycles,
        "latency_ns": cost.latency_ns,
        "edp_pj_ns": cost.energy_pj * cost.latency_ns,
        "power_mw": cost.energy_pj / cost.latency_ns,
        "throughput": 1e9 / cost.interval_ns,
    }


def total(costs: Sequence[Cost], weights: Sequence[float]) -> Cost:
    """Returns the cost of all workloads one after another, each `weight` times."""
    rows = list(zip(costs, weights, strict=True))
    return Cost(
        sum(w * c.energy_pj for c, w in rows),
        sum(w * c.latency_cycles for c, w in rows),
        sum(w * c.latency_ns for c, w in rows),
        sum(w * c.interval_ns for c, w in rows),
    )


def total_gap(goal: str, costs: Sequence[Cost], weights: Sequence[float], gaps: Sequence[Number]) -> Values:
    """Returns by which share at most the objective of all workloads lies above what is proven of it, from the
    gap of each workload's own objective; elementwise if these are columns. Of one workload it is its own.

    goal: energy or latency: of the sum. edp: of the product of both sums, which is at least the square of the
    sum of the square roots of the workloads' products (Cauchy-Schwarz). front: in energy and in latency, the
    largest gap of a workload.
    """
    if len(costs) == 1:
        return np.asarray(gaps[0], np.float64)
    if goal == "front":
        return np.asarray(np.max(np.broadcast_arrays(*gaps), axis=0), np.float64)
    whole = total(costs, weights)
    value, least = {
        "energy": (
            whole.energy_pj,
            sum(w * c.energy_pj / (1 + gap) for c, w, gap in zip(costs, weights, gaps, strict=True)),
        ),
        "latency": (
            whole.latency_ns,
            sum(w * c.latency_ns / (1 + gap) for c, w, gap in zip(costs, weights, gaps, strict=True)),
        ),
        "edp": (
            whole.energy_pj * whole.latency_ns,
            sum(
                w * np.sqrt(c.energy_pj * c.latency_ns / (1 + gap))
                for c, w, gap in zip(costs, weights, gaps, strict=True)
            )
            ** 2,
        ),
    }[goal]
    return _above(value, least)


def total_gap_to_bound(
    goal: str, costs: Sequence[Cost], weights: Sequence[float], gaps: Sequence[Number], bound: Cost
) -> Values:
    """Returns by which share at most the objective of all workloads lies above its lower bound: the machine's
    (`bound`: of all workloads, by their weights), or that of the workloads' own gaps where it is above that
    one. front: in energy or in latency, whichever is nearer to the machine's.
    """
    if len(costs) == 1:
        return np.asarray(gaps[0], np.float64)
    whole = total(costs, weights)
    energy, latency = _above(whole.energy_pj, bound.energy_pj), _above(whole.latency_ns, bound.latency_ns)
    if goal == "front":
        return np.minimum(energy, latency)
    of_bound = {
        "energy": energy,
        "latency": latency,
        "edp": _above(whole.energy_pj * whole.latency_ns, bound.energy_pj * bound.latency_ns),
    }[goal]
    of_gaps = total_gap(goal, costs, weights, gaps)
    return np.where(of_gaps < of_bound - 1e-9 * (1 + of_bound), of_gaps, of_bound)


def _above(value: Number, least: Number) -> Values:
    """Returns `evaluate.relative_gap`, elementwise."""
    with np.errstate(all="ignore"):
        share = np.maximum(np.divide(value, least) - 1, 0.0)
    return np.where(np.asarray(least) > 0, share, np.where(np.asarray(value) > 0, np.inf, 0.0))


def value(
    objective: Objective, costs: Mapping[str, Cost], weights: Mapping[str, float], area_mm2: Number
) -> Number:
    """Returns an objective from the costs of all workloads by name; a column if costs are columns."""
    if objective.metric == "area_mm2":
        return area_mm2
    if objective.over == "":
        return metrics(total(list(costs.values()), [weights[name] for name in costs]))[objective.metric]
    by_workload = {name: metrics(cost)[objective.metric] for name, cost in costs.items()}
    match objective.over:
        case "sum":
            return sum(weights[name] * v for name, v in by_workload.items())
        case "geomean":
            return _elementwise(
                exp,
                sum(weights[name] * _elementwise(log, v) for name, v in by_workload.items())
                / sum(weights.values()),
            )
        case "max":
            return largest(*by_workload.values())
        case "min":
            return -largest(*(-v for v in by_workload.values()))
        case workload:
            return by_workload[workload]


def _elementwise(function: Callable[[float], float], value: Number) -> Number:
    """Applies a function of one number to a number, or to each element of a column. Equal numbers give equal
    bits, which NumPy's functions of columns do not promise.
    """
    return (
        np.array([function(one) for one in value.tolist()])
        if isinstance(value, np.ndarray)
        else function(value)
    )


def front(values: Values) -> Mask:
    """Returns a mask [N] of the rows of values [N, k] (all minimised) that no other row dominates. Duplicates
    of a front row are all on it; a row with a NaN never is.
    """
    mask = np.asarray(~np.isnan(values).any(axis=1), dtype=np.bool_)
    if mask.any():
        keys = values[mask]
        # compare ranks instead, with the same dominance: moocore 0.3 is wrong with +inf, crashes with -inf
        if not np.isfinite(keys).all():
            keys = np.column_stack([np.unique(column, return_inverse=True)[1] for column in keys.T]).astype(
                float
            )
        left = _undominated_by_pivots(keys)
        left[left] = moocore.is_nondominated(keys[left], keep_weakly=True)
        mask[mask] = left
    return mask


def _undominated_by_pivots(keys: Values) -> Mask:
    """Returns [N], False for rows of keys [N, k] that one of two rows dominates, those of least sum and least
    maximum of scaled values: of many rows most. A row that is nowhere better than another is dominated by it,
    or equal.
    """
    left = np.ones(len(keys), np.bool_)
    if len(keys) > MANY:
        scaled = (keys - keys.min(axis=0)) / np.maximum(np.ptp(keys, axis=0), 1e-300)
        for pivot in (keys[scaled.sum(axis=1).argmin()], keys[scaled.max(axis=1).argmin()]):
            left &= (keys < pivot).any(axis=1) | (keys == pivot).all(axis=1)
    return left


def signs(objectives: Sequence[Objective]) -> Values:
    """Returns [k], -1 for an objective that is maximised, 1 for the others."""
    return np.array([-1.0 if o.direction == "max" else 1.0 for o in objectives])


def minimised(trials: Sequence[Trial], objectives: Sequence[Objective]) -> Values:
    """Returns the values of feasible trials, [N, k], negated where maximised."""
    rows = [t.values for t in trials if t.feasible]
    return np.asarray(np.array(rows, dtype=float).reshape(len(rows), len(objectives)) * signs(objectives))


def hypervolume(values: Values, reference: Values) -> float:
    """Returns the volume between the front of values [N, k] (minimised) and the reference [k]. Points beyond
    the reference add nothing.
    """
    return float(moocore.hypervolume(values, ref=reference)) if len(values) else 0.0


def boxed_hypervolume(values: Values, box: Values) -> float:
    """Returns the hypervolume that screens, SQL and Python show: that of values [N, k] (minimised), each axis
    scaled so that `box` [M, k] reaches from 0 (best) to 1 (worst), logarithmically where all its values have
    one sign, below the reference at REFERENCE on each axis. Rows with an infinity or a NaN count as absent.
    """
    values, box = (rows[np.isfinite(rows).all(axis=1)] for rows in (values, box))
    if not len(values):
        return 0.0
    return hypervolume(scaler(box)(values), np.full(box.shape[1], REFERENCE))


def gain(older: Sequence[Trial], newer: Sequence[Trial], objectives: Sequence[Objective]) -> float:
    """Returns the share of the newer trials' hypervolume that the older trials do not cover: 0 is no
    progress, 1 means that all of it is new.

    Both volumes are in the box of the newer feasible trials, each axis scaled to 0..1, logarithmically where
    all values have one sign.
    """
    after = minimised(newer, objectives)
    if not len(after):
        return 1.0
    return 1.0 - boxed_hypervolume(minimised(older, objectives), after) / boxed_hypervolume(after, after)


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps minimised values to 0 (best seen) .. 1 (worst seen), per axis; called like a function."""

    low: Values
    high: Values
    sign: Values  # +1 or -1: logarithm of sign * value; 0: linear

    def __call__(self, values: Values) -> Values:
        """Returns scaled values [N, axes] of minimised values [N, axes]. An axis without spread counts as 1
        wide.
        """
        span = np.where(self.high > self.low, self.high - self.low, 1.0)
        scaled: Values = (scaled_axes(values, self.sign) - self.low) / span
        return scaled

    def reference(self) -> Values:
        """Returns the reference point of hypervolumes [axes], at REFERENCE, as minimised values."""
        span = np.where(self.high > self.low, self.high - self.low, 1.0)
        on_axes = self.low + REFERENCE * span
        found: Values = np.where(self.sign != 0, self.sign * np.exp(self.sign * on_axes), on_axes)
        return found


def scaled_axes(values: Values, sign: Values) -> Values:
    """Returns values [N, axes] with the logarithm taken on axes of one sign (sign +1 or -1), unchanged where
    sign is 0.
    """
    logs = np.log(np.where(sign != 0, sign * values, 1.0)) * sign
    scaled: Values = np.where(sign != 0, logs, values)
    return scaled


def scaler(values: Values) -> Scale:
    """Returns the scale for values [N, k], which are finite, N at least 1."""
    sign = np.where((values > 0).all(axis=0), 1.0, np.where((values < 0).all(axis=0), -1.0, 0.0))
    axis_values = scaled_axes(values, sign)
    return Scale(axis_values.min(axis=0), axis_values.max(axis=0), sign)
