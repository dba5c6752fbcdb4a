"""Computes the values of a run's report: points and machines as columns; nest, breakdown and roofline of some
points of the front; effects of parameters, reasons, progress, facts.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from analysis import report
from analysis.report import Column, Page
from dse.explain import figures, units
from dse.explain import values as explain
from dse.frontend import check, pictures, tables
from dse.frontend.pictures import Opened
from dse.mapping.nest import to_text
from dse.run import record
from dse.study import pareto
from dse.study import study as studies
from hw.space import Axis

MAX_POINTS = 150_000  # if there are more points, the front and this many others are shown
EXPLAINED = 40  # points of the front that have nest, breakdown and roofline
MAX_REASONS = 40  # rows in the table of reasons
STATES = ("ok", "infeasible", "pruned", "error", "breaks a constraint")


def document(run: Opened, others: Sequence[Opened] = (), live: Mapping[str, Any] | None = None) -> str:
    """Returns the report of a run as HTML, with the fronts of other runs beside its own. live: facts of a
    page that follows the run (`dse.frontend.serve`). Raises ValueError where the run has no rows yet.
    """
    machines = run.sql("FROM machines ORDER BY generation, machine").table
    if not len(machines):
        raise ValueError(f"{run.path}: no machine is done yet; dse status says what the run does")
    points = run.sql(
        "SELECT p.* FROM points p JOIN machines m USING (machine) ORDER BY m.generation, p.machine, "
        "p.schedule"
    ).table
    on_front = _on_front(run, points)
    shown = _shown_points(len(points), on_front)
    columns = [
        *_machine_columns(run, machines, points),
        *_point_columns(run, machines, points, on_front, shown),
    ]
    names = [o.column for o in run.study.objectives]
    facts = {
        "objectives": [{"name": o.column, "max": o.direction == "max"} for o in run.study.objectives],
        "parameters": list(studies.columns(run.study, "machines")),
        "states": list(STATES),
        "orders": [_ordered(axis) for axis in run.study.space.axes],
        "effects": {name: _effects(run, machines, points, name) for name in names},
        "reasons": _reasons(run),
        "missed": _violations(run, points),
        "progress": [asdict(one) for one in pictures.courses(run)],
        "said": _facts(run, machines, points, on_front, len(shown)),
        "study": run.study.text,
        "path": run.path.name,
        "others": [*map(_other, others)],
        **(live or {}),
    }
    html: str = report.document(Page(pictures.name_of(run), facts, columns, _details(run, points, on_front)))
    return html


def _other(run: Opened) -> dict[str, Any]:
    """Returns the front of another run: its name, and values by metric."""
    front = run.front(distinct=True).table
    names = [name for name in (*record.METRICS, "area_mm2") if name in front.column_names]
    return {"name": str(run.path), "front": {name: front[name].to_pylist() for name in names}}


def _on_front(run: Opened, points: pa.Table) -> np.ndarray:
    """Returns a mask of the points on the front: feasible, and dominated by no other feasible point."""
    found = points["feasible"].to_numpy(zero_copy_only=False).astype(bool)
    signs = np.array([-1.0 if o.direction == "max" else 1.0 for o in run.study.objectives])
    values = np.column_stack([points[o.column].to_numpy() for o in run.study.objectives]) * signs
    found[found] = pareto.front(values[found])
    return np.asarray(found)


def _shown_points(count: int, on_front: np.ndarray) -> np.ndarray:
    """Returns the indices of the points that are shown: all, or the front and others at even distances."""
    if count <= MAX_POINTS:
        return np.arange(count)
    return np.union1d(np.flatnonzero(on_front), np.linspace(0, count - 1, MAX_POINTS).astype(int))


def _machine_columns(run: Opened, machines: pa.Table, points: pa.Table) -> list[Column]:
    """Returns the columns of all machines: number, state, and parameters as indices of their values."""
    states = np.array([STATES.index(status) for status in machines["status"].to_pylist()])
    feasible = set(points.filter(points["feasible"])["machine"].to_pylist())
    is_violating = [
        status == 0 and machine not in feasible
        for status, machine in zip(states, machines["machine"].to_pylist(), strict=True)
    ]
    columns = [
        Column("machine", "machine", "machine", machines["machine"].to_numpy()),
        Column(
            "state",
            "state",
            "machine",
            np.where(is_violating, STATES.index("breaks a constraint"), states),
            STATES,
        ),
    ]
    for axis, name in zip(run.study.space.axes, studies.columns(run.study, "machines"), strict=True):
        index_of = {value: i for i, value in enumerate(axis.values)}
        codes = np.array([index_of[value] for value in machines[name].to_pylist()])
        columns.append(
            Column(
                name,
                units.label(name),
                "parameter",
                codes,
                [_choice(axis.key, value) for value in axis.values],
            )
        )
    return columns


def _choice(key: str, value: Any) -> str:
    return tables.safe(tables.fact(key, value) if not isinstance(value, bool) else str(value).lower())


def _point_columns(
    run: Opened, machines: pa.Table, points: pa.Table, on_front: np.ndarray, shown: np.ndarray
) -> list[Column]:
    """Returns the columns of the shown points. `row`: index of the point's machine in `machines`."""
    machine_row = {machine: i for i, machine in enumerate(machines["machine"].to_pylist())}
    names = list(
        dict.fromkeys(
            [
                *(o.column for o in run.study.objectives),
                *record.METRICS,
                "area_mm2",
                *record.RATIOS_OF["points"],
                "gap_to_bound",
            ]
        )
    )
    columns = [
        Column(
            "row",
            "",
            "place",
            np.array([machine_row[m] for m in points["machine"].to_pylist()], dtype=int)[shown],
        ),
        Column("schedule", "schedule", "place", points["schedule"].to_numpy()[shown]),
        Column(
            "feasible", "", "place", points["feasible"].to_numpy(zero_copy_only=False).astype(np.uint8)[shown]
        ),
        Column("front", "", "place", on_front.astype(np.uint8)[shown]),
    ]
    for name in names:
        values = points[name].to_numpy(zero_copy_only=False).astype(float)[shown]
        label = units.axis(name, [])[1].split(" (")[0] + " in cycles" * name.endswith("_cycles")
        columns.append(Column(name, label, "metric", values, (), units.steps_of(name)))
    return columns


def _ordered(axis: Axis) -> bool:
    """True if the axis has numbers, so that one step leads to a neighbour; False for choices, where it leads
    to any other value.
    """
    return not any(isinstance(value, str | bool) for value in axis.values)


def _effects(run: Opened, machines: pa.Table, points: pa.Table, objective: str) -> dict[str, Any]:
    """Returns the effects of all values of all parameters on an objective, over the feasible points."""
    good = points.filter(points["feasible"])
    machine_row = {machine: i for i, machine in enumerate(machines["machine"].to_pylist())}
    rows = pa.array([machine_row[machine] for machine in good["machine"].to_pylist()], pa.int64())
    keys = dict(
        zip(studies.columns(run.study, "machines"), (axis.key for axis in run.study.space.axes), strict=True)
    )
    found, explained = figures.effects(
        {name: machines[name].take(rows).to_pylist() for name in keys}, good[objective].to_numpy()
    )
    return {
        "explained": explained,
        "order": [name for name, _ in figures.effect_ratios(found)],
        "rows": [{**asdict(one), "value": _choice(keys[one.parameter], one.value)} for one in found],
    }


def _reasons(run: Opened) -> list[dict[str, Any]]:
    """Returns why machines have no mapping, the most frequent reason first."""
    found: list[dict[str, Any]] = (
        run.sql(f"""SELECT status, coalesce(limit_level, '') AS level, coalesce(einsum, '') AS einsum,
            count(*) AS machines, min(need_bytes) AS need_bytes, max(have_bytes) AS have_bytes,
            min(reason) AS reason
        FROM machines
        WHERE status <> 'ok'
        GROUP BY status, level, einsum, CASE WHEN limit_level IS NULL THEN reason END
        ORDER BY machines DESC, level, reason
        LIMIT {MAX_REASONS}""").table.to_pylist()
    )
    return found


def _violations(run: Opened, points: pa.Table) -> list[dict[str, Any]]:
    """Returns the modelled constraints, with the number of points that break each."""
    return [
        {
            "constraint": column.meaning.removeprefix("how far ").partition(" is missed")[0],
            "points": int((points[name].to_numpy() > 0).sum()),
        }
        for name, column in studies.columns(run.study, "points").items()
        if column.meaning.startswith("how far ")
    ]


def _facts(
    run: Opened, machines: pa.Table, points: pa.Table, on_front: np.ndarray, shown: int
) -> list[tuple[str, str]]:
    """Returns facts of the run, as text."""
    states = Counter(machines["status"].to_pylist())
    status = check.status(run.path, True)
    best = []
    for o in run.study.objectives:
        if len(own := points[o.column].to_numpy()[on_front]):
            value = float(own.max() if o.direction == "max" else own.min())
            best.append(
                f"{'highest' if o.direction == 'max' else 'lowest'} {units.label(o.column)} "
                f"{tables.fact(o.column, value)}"
            )
    study, lines = run.study, run.fusion_hints() if best else []
    weights = [f" x {ref.weight:g}" if ref.weight != 1 else "" for ref in study.workloads]
    workloads = [f"{ref.name}{weight}" for ref, weight in zip(study.workloads, weights, strict=True)]
    points_text = f"{len(points)}, {int(on_front.sum())} on the front of {len(study.objectives)} objectives"
    if shown < len(points):
        points_text += f"; {shown} of them shown"
    constraints = [c.text for c in (*study.constraints.static, *study.constraints.modelled)]
    versions = f"model {record.MODEL_VERSION}, solvers {record.SOLVER_VERSION}"
    facts = {"fusion": "; ".join(lines)} if lines else {}
    notes = (run.certificate(), run.gap_note(), run.one_mapping_note(), *run.axis_hints())
    said_of_front = [*filter(None, notes)]
    facts |= {"front": "; ".join(said_of_front)} if said_of_front else {}
    facts |= {
        "workloads": ", ".join(workloads),
        "machine": Path(study.machine).stem,
        "space": f"{study.space.size} machines",
        "done": ", ".join(f"{n} {state}" for state, n in states.most_common()),
        "state": ", ".join(str(status[key]) for key in ("state", "reason") if status.get(key)),
        "points": points_text,
        "best": ", ".join(best) or "none feasible",
        "search": f"{study.search.method}, seed {study.search.seed}",
        "solver": ", ".join(f"{key} {value}" for key, value in asdict(study.solver).items()),
        "constraints": "; ".join(constraints) or "none",
        "versions": f"{versions}, Python {sys.version.split()[0]}",
    }
    return [(key, tables.safe(value)) for key, value in facts.items()]


def _details(run: Opened, points: pa.Table, on_front: np.ndarray) -> dict[str, Any]:
    """Returns nest, breakdown and roofline for points of the front, at even distances along the first
    objective. Equal nests are stored once.
    """
    rows = np.flatnonzero(on_front)
    rows = rows[np.argsort(points[run.study.objectives[0].column].to_numpy()[rows], kind="stable")]
    shown = [int(rows[i]) for i in pictures.spread(len(rows), EXPLAINED)] if len(rows) else []
    keys = [(points["machine"][row].as_py(), points["schedule"][row].as_py()) for row in shown]
    nests: dict[str, int] = {}
    explained = {
        f"{machine}.{schedule}": [_workload(one, nests) for one in solved]
        for (machine, schedule), solved in zip(keys, run.solutions(keys), strict=True)
    }
    return {"points": explained, "nests": list(nests)}


def _workload(mapped: Any, nests: dict[str, int]) -> dict[str, Any]:
    """Returns a solved workload of a point as JSON data. nests: text of a nest -> its number; new ones are
    added.
    """
    roof = figures.roofline(mapped.arch, mapped.workload, mapped.solution)
    return {
        "name": mapped.workload.name,
        "certificate": mapped.solution.certificate,
        "energy": pictures.energy_parts(mapped.arch, mapped.solution),
        "latency": pictures.bottleneck_ns(mapped.arch, mapped.solution),
        "roofline": {
            "peak": roof.peak,
            "gb_s": roof.gb_s,
            "level": roof.level,
            "dots": [list(asdict(dot).values()) for dot in roof.dots],
            "not_drawn": roof.not_drawn,
        },
        "einsums": [
            [
                c.name,
                c.count,
                c.count * c.energy_pj,
                c.count * c.latency_cycles / mapped.arch.clock_ghz,
                c.bottleneck,
                nests.setdefault(to_text(c.mapping, e), len(nests)),
            ]
            for c, e in _costliest(mapped)
        ],
    }


def _costliest(mapped: Any) -> Sequence[tuple[Any, Any]]:
    return sorted(
        explain.costed_einsums(mapped.workload, mapped.solution),
        key=lambda pair: -pair[0].count * pair[0].energy_pj,
    )
