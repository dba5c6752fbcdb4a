"""Columns of points that usually follow from other columns. They are stored as NULL where a formula gives
exactly the value, bit for bit, and computed on reading.

    latency_ns, edp_pj_ns, power_mw, throughput    from energy_pj, latency_cycles and the machine's clock
    area_mm2                                       the machine's
    gap_to_bound                                   from energy_pj and the machine's bound, where energy is the
                                                   objective

Other values are stored: sums over several workloads may differ in the last digit, and throughput differs
where the initiation interval is shorter than the latency.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dse.study import pareto
from dse.study.pareto import Cost, Values

MACHINE_INPUTS = ("clock_ghz", "area_mm2", "bound_energy_pj")
# columns that formulas read, in the order of their arguments; MACHINE_INPUTS are columns of machines
FORMULA_INPUTS = ("energy_pj", "latency_cycles", *MACHINE_INPUTS)
Formula = Callable[[Values, Values, Values, Values, Values], Values]


def _metric(name: str) -> Formula:
    """Returns the formula of a metric of one workload, whose initiation interval is its latency."""

    def metric_column(
        energy_pj: Values,
        latency_cycles: Values,
        clock_ghz: Values,
        area_mm2: Values,
        bound_energy_pj: Values,
    ) -> Values:
        ns: Any = latency_cycles / clock_ghz
        one: Any = pareto.metrics(Cost(energy_pj, latency_cycles, ns, ns))[name]  # type: ignore[arg-type]
        return np.asarray(one)

    return metric_column


def _area(
    energy_pj: Values, latency_cycles: Values, clock_ghz: Values, area_mm2: Values, bound_energy_pj: Values
) -> Values:
    return area_mm2


def _gap(
    energy_pj: Values, latency_cycles: Values, clock_ghz: Values, area_mm2: Values, bound_energy_pj: Values
) -> Values:
    """Returns `evaluate.relative_gap` of columns."""
    return np.where(
        bound_energy_pj > 0,
        np.maximum(energy_pj / bound_energy_pj - 1, 0.0),
        np.where(energy_pj > 0, inf, 0.0),
    )


FORMULAS: dict[str, Formula] = {
    name: _metric(name) for name in pareto.METRICS if name not in FORMULA_INPUTS
} | {"area_mm2": _area, "gap_to_bound": _gap}


def nondominated(points: pa.Table, objectives: Sequence[pareto.Objective], schema: pa.Schema) -> pa.Table:
    """Returns the table of this name, in its schema: the feasible points that no other of `points` dominates,
    with values in full.
    """
    feasible = points.filter(points["feasible"])
    values = np.column_stack([feasible[o.column].to_numpy() for o in objectives]) * pareto.signs(objectives)
    return feasible.filter(pareto.front(values)).select(schema.names).cast(schema)


def packed(tables: Mapping[str, pa.Table]) -> Mapping[str, pa.Table]:
    """Returns tables by name, with their points as `pack` returns them."""
    if "points" not in tables:
        return tables
    return {**tables, "points": pack(tables["points"], tables["machines"])}


def pack(points: pa.Table, machines: pa.Table) -> pa.Table:
    """Returns the points with NULL wherever the column's formula gives exactly the value."""
    with np.errstate(all="ignore"):
        inputs = _input_columns(points, machines)
        for name in FORMULAS:
            values = points[name].to_numpy(zero_copy_only=False)
            computed = np.ascontiguousarray(FORMULAS[name](*inputs), np.float64)
            equal = values.view(np.int64) == computed.view(np.int64)
            index = points.column_names.index(name)
            points = points.set_column(index, points.schema.field(index), pa.array(values, mask=equal))
    return points


def unpack(points: pa.Table, machines: pa.Table) -> pa.Table:
    """Returns the points with the NULLs computed in those columns of FORMULAS that `points` has. machines:
    rows of their machines, with MACHINE_INPUTS.
    """
    packed = [name for name in FORMULAS if name in points.column_names and points[name].null_count]
    if packed:
        with np.errstate(all="ignore"):
            inputs = _input_columns(points, machines)
            for name in packed:
                index = points.column_names.index(name)
                points = points.set_column(
                    index,
                    points.schema.field(index),
                    pc.coalesce(points[name], pa.array(FORMULAS[name](*inputs))),
                )
    return points


def _input_columns(points: pa.Table, machines: pa.Table) -> list[Values]:
    """Returns the columns FORMULA_INPUTS of each point."""
    machine_rows = pc.index_in(points["machine"].combine_chunks(), machines["machine"].combine_chunks())
    columns = [points[name] for name in FORMULA_INPUTS[:2]] + [
        machines[name].take(machine_rows) for name in MACHINE_INPUTS
    ]
    return [column.to_numpy(zero_copy_only=False).astype(np.float64) for column in columns]


def formula(name: str) -> Callable[..., pa.Array]:
    """Returns the function for SQL that computes a column from FORMULA_INPUTS."""

    def computed_column(
        energy_pj: Any, latency_cycles: Any, clock_ghz: Any, area_mm2: Any, bound_energy_pj: Any
    ) -> pa.Array:
        with np.errstate(all="ignore"):
            inputs = (energy_pj, latency_cycles, clock_ghz, area_mm2, bound_energy_pj)
            return pa.array(
                FORMULAS[name](
                    *(np.asarray(column.to_numpy(zero_copy_only=False), np.float64) for column in inputs)
                ),
                pa.float64(),
            )

    return computed_column
