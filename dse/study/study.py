"""Reads and checks a study file; a study's identity, columns, generations and trials."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from dse.mapping.constraints import computes
from dse.mapping.nest import format_faults, stored_at
from dse.run import record
from dse.run.record import Column
from dse.solve.options import SolverOptions
from dse.study import pareto, read, sampler
from dse.study.best_first import MAX_BOUNDED, MAX_BOUNDED_SLOWLY, BestFirst
from dse.study.pareto import Cost, Objective, Trial, metrics, slug, total
from dse.study.plan import Asked, Generation, Limits, Stop
from dse.study.prune import (
    Constraints,
    modelled_violations,
    reason,
    static_violations,
    static_violations_of_many,
    unbounded_objective,
    violation_column,
)
from dse.study.read import Faults, StudyError, WorkloadRef, digest
from dse.study.sampler import Grid, Search
from hw import machine as machines
from hw.arch import LAYOUT_FIELDS, TAKES_ALL, Arch, Fanout, MacUnit, Memory, Node, fields_of
from hw.columns import Table
from hw.component import has_units, rule_faults
from hw.space import Axis, Space, Value, decode, is_ever_set, values
from workloads import catalog, plugin
from workloads.arrays import Floats, Ints
from workloads.einsum import Einsum
from workloads.graph import Workload, unique
from workloads.plugin import Plugin

BLOCKS: dict[str, Any] = {"stop": Stop, "limits": Limits}
UNITS = {
    "capacity": "B",
    "bandwidth": "GB/s",
    "clock_mhz": "MHz",
    "node_nm": "nm",
    "vdd": "V",
    "_bits": "bit",
    "_pj": "pJ",
    "_mw": "mW",
    "_mm2": "mm2",
}
DTYPES = {bool: "bool", int: "int64", float: "float64", str: "string"}


@dataclass(frozen=True, slots=True)
class Study:
    """A checked study."""

    name: str
    text: str  # its YAML document with all --set merged
    machine: str  # path of the template's file
    workloads: tuple[WorkloadRef, ...]
    loaded_workloads: tuple[Workload, ...]  # in the order of `workloads`; (): `workloads_of` loads them
    space: Space
    constraints: Constraints
    objectives: tuple[Objective, ...]
    search: Search
    stop: Stop
    solver: SolverOptions
    limits: Limits
    workers: int | None  # None: one per CPU
    sink: str  # who writes the parts: driver or worker (cluster/sink.py)
    plugins: tuple[Plugin, ...] = ()  # mapper, cost terms and component tables of the user

    def weights(self) -> dict[str, float]:
        """Returns the weight of each workload in sums and means of objectives."""
        return {ref.name: ref.weight for ref in self.workloads}

    def depends_on_trials(self) -> bool:
        """True if the machines asked for, or dispatched, depend on the trials of earlier generations."""
        return self.search.learns() or self.search.prune or self.stop.hypervolume_gain is not None


def load(
    path: str | Path,
    sets: Sequence[str] = (),
    within: Path | None = None,
    digests: Mapping[str, str] = read.NO_DIGESTS,
) -> Study:
    """Reads and checks a study file.

    sets: "stop.machines=60" each, merged into the document
    within: a folder that must contain all files named by the study (a run's folder that may come from
        others); None: any
    digests: by name, of workloads that need not be loaded (`workloads_of` loads them when they are needed)

    Paths in the file are relative to it. Raises StudyError with all faults, one line each.
    """
    path, faults = Path(path), Faults([])
    document = read.document(path, sets, faults)
    if document is None:
        raise StudyError(faults.text(path))
    name = read.name(document, faults)
    solver = read.solver(document.get("solver", {}), faults, path.parent, within)
    search = sampler.for_sharing(read.search(document.get("search", {}), faults), solver.sharing_gap)
    stop, limits = (read.block(kind, document.get(key, {}), key, faults) for key, kind in BLOCKS.items())
    machine, space = read.space(document, path.parent, faults, within)
    if space:
        for line in rule_faults(solver.mapping, space.template.nodes, "solver.mapping"):
            faults.add(line)
        varied = {axis.key for axis in space.axes}
        memories = [node for node in space.template.nodes if isinstance(node, Memory)]
        special: dict[str, Sequence[object]] = {
            "bits": [one.name for one in memories if one.bits],
            "ports": [
                one.name
                for one in memories
                if not isinstance(one.ports, str)
                or (one.write_bandwidth, one.writes_per_cycle) != (None, None)
                or varied & {f"{one.name}.write_bandwidth", f"{one.name}.writes_per_cycle"}
            ],
            "latency_ns": [
                one.name for one in memories if one.latency_ns or f"{one.name}.latency_ns" in varied
            ],
            "along": [one.name for one in memories if one.along],
            "units": [node.name for node in space.template.nodes if isinstance(node, MacUnit)]
            if has_units(space.template.nodes)
            else [],
            "rules": space.template.mapping,
        }
        if (space.template.mapping or solver.mapping) and is_ever_set(space, LAYOUT_FIELDS):
            faults.add(
                f"mapping: {space.template.name} describes lines, rows or banks, and layouts are not "
                "searched under rules; leave the rules out, or burst and bank_map"
            )
    if solver.layout != "row_major" and space and not is_ever_set(space, LAYOUT_FIELDS):
        faults.add(
            f"solver.layout = {solver.layout}: {space.template.name} describes no lines, rows or "
            "banks: all layouts cost the same; leave it out"
        )
    if solver.sharing_gap and space and is_ever_set(space, (*LAYOUT_FIELDS, *fields_of(Fanout, "network"))):
        faults.add(
            f"solver.sharing_gap = {solver.sharing_gap:g}: {space.template.name} describes lines, rows, "
            "banks or hops, which shared schedules do not price; leave it out"
        )
    if (
        solver.objective == "front"
        and space
        and is_ever_set(space, (*LAYOUT_FIELDS, *fields_of(Fanout, "network")))
    ):
        faults.add(
            f"solver.objective = front: {space.template.name} describes lines, rows, banks or hops, which "
            "fronts do not search; take energy, latency or edp"
        )
    workload_items = document.get("workloads")
    pairs = read.workloads(
        workload_items,
        path.parent,
        solver.fuse_elementwise,
        faults,
        within,
        read.unknown_as_movement(document, faults),
        digests,
    )
    if space:
        einsums = [e for _, one in pairs if one for e in one.einsums]
        packing = _packing_memories(space.template.nodes, einsums)
        special["formats"] = [one.name for one in packing]
        wrong = dict.fromkeys(line for e in einsums for line in format_faults(e, packing))
        for line in filter(None, (*solver.refusals(special), *wrong)):
            faults.add(line)
    names = (
        [ref.name for ref, _ in pairs]
        if isinstance(workload_items, list) and len(pairs) == len(workload_items) > 0
        else None
    )
    clock_varies = space is not None and any(
        axis.key == "clock_mhz" and len(axis.values) > 1 for axis in space.axes
    )
    objectives = read.objectives(document.get("objectives"), names, clock_varies, faults, path.parent, within)
    template = machines.load(machine, within is None) if machine and space is None else None
    constraints = read.constraints(document.get("constraints", []), space, names, faults, template)
    if search.prune and search.learns():
        faults.add(
            f"search.prune = true: {search.method} learns from machines that are solved; take "
            "exhaustive, random or qmc"
        )
    is_best_first = search.method == "bounds"
    if search.prune and (unbounded := unbounded_objective(objectives)):
        key, instead = (
            ("method = bounds", "take another method")
            if is_best_first
            else ("prune = true", "leave prune out")
        )
        faults.add(
            f"search.{key}: no bound of {unbounded} is known; {instead}, or take objectives "
            "of energy, latency, edp and area to be minimised"
        )
    if search.gap and not search.prune:
        faults.add(
            f"search.gap = {search.gap:g}: says which machines bounds leave out; add prune: true, or take "
            "method bounds"
        )
    most = MAX_BOUNDED if solver.schedule == "unfused" else MAX_BOUNDED_SLOWLY
    if is_best_first and space and space.size > most:
        faults.add(
            f"search.method = bounds: computes bounds of all machines first, {most:,} at most, here "
            f"{space.size:,}; take fewer values, or {{method: random, prune: true}}"
        )
    if objectives and within is None and (fault := sampler.optuna_fault(search, objectives)):
        faults.add(fault)
    workers, sink = read.workers(document, faults)
    if faults.lines or space is None:
        raise StudyError(faults.text(path))
    if has_units(space.template.nodes) and isinstance(first := decode(space, 0), Arch):
        try:
            for e in (e for _, one in pairs if one for e in one.einsums):
                computes(e, first)
        except ValueError as fault:
            raise StudyError(f"{path}: {fault}") from None
    plugins = _plugins(solver, objectives, space)
    if clash := _clash(plugins):
        raise StudyError(f"{path}: {clash}")
    text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
    refs, loaded_workloads = tuple(ref for ref, _ in pairs), tuple(one for _, one in pairs if one)
    return Study(
        name,
        text,
        machine,
        refs,
        loaded_workloads if len(loaded_workloads) == len(refs) else (),
        space,
        constraints,
        objectives,
        search,
        stop,
        solver,
        limits,
        workers,
        sink,
        plugins,
    )


def _packing_memories(nodes: Sequence[Node], einsums: Sequence[Einsum]) -> list[Memory]:
    """Returns the memories that store a tensor of the einsums otherwise than the workload says."""
    return [
        one
        for one in nodes
        if isinstance(one, Memory)
        and any(stored_at(one.formats, p, e) != p for e in einsums for p in e.tensors())
    ]


def _plugins(solver: SolverOptions, objectives: Sequence[Objective], space: Space) -> tuple[Plugin, ...]:
    tables = [node.table for node in space.template.nodes if isinstance(node, Memory) and node.table]
    keys = [solver.mapper, *(o.metric for o in objectives), *tables]
    return tuple(plugin.known(key) for key in dict.fromkeys(keys) if plugin.KEY.fullmatch(key))


def _clash(plugins: Sequence[Plugin]) -> str:
    """Returns a fault where two sources have one file name: a run folder holds each by its name."""
    texts: dict[str, bytes] = {}
    for one in plugins:
        if one.is_file and texts.setdefault(Path(one.source).name, one.text) != one.text:
            return f"two plug-ins are files named {Path(one.source).name}; rename one"
    return ""


def workloads_of(study: Study) -> tuple[Workload, ...]:
    """Returns the workloads in the order of study.workloads. Raises StudyError if a stored one is not what
    was solved.
    """
    return study.loaded_workloads or tuple(
        read.stored_workload(ref, study.solver.fuse_elementwise) for ref in study.workloads
    )


def to_yaml(study: Study) -> str:
    """Returns the study as a run folder stores it, where machine and workload files are in inputs/."""
    document = yaml.safe_load(study.text)
    document["machine"] = f"inputs/{Path(study.machine).name}"
    stored = {one.key: f"inputs/{Path(one.source).name}:{one.name}" for one in study.plugins if one.is_file}
    if study.solver.mapper in stored:
        document["solver"]["mapper"] = stored[study.solver.mapper]
    for i, o in enumerate(study.objectives):
        if o.metric in stored:
            document["objectives"][i] = {stored[o.metric]: "", "direction": o.direction}
    for i, ref in enumerate(study.workloads):
        if ref.path:
            before, _, after = catalog.file_in(ref.text)
            document["workloads"][i] = {
                "workload": f"{before}{input_path(i, ref)}{after}",
                "name": ref.name,
                "bind": dict(ref.bind),
                "weight": ref.weight,
                "bits": dict(ref.bits),
            }
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True)


def files(study: Study) -> dict[str, bytes]:
    """Returns the files that make a run folder relocatable: path in the folder -> content. Loading study.yaml
    among them gives an equal study.
    """
    found = {
        "study.yaml": to_yaml(study).encode(),
        f"inputs/{Path(study.machine).name}": Path(study.machine).read_bytes(),
    }
    found |= {f"inputs/{Path(one.source).name}": one.text for one in study.plugins if one.is_file}
    return found | {
        input_path(i, ref): Path(ref.path).read_bytes() for i, ref in enumerate(study.workloads) if ref.path
    }


def identity(study: Study) -> dict[str, str]:
    """Returns everything that rows depend on, as flat key -> text. Studies with equal identities share a run
    folder.
    """
    found = {f"workloads.{ref.name}": f"{ref.digest} x {ref.weight:g}" for ref in study.workloads}
    found["workloads"] = ", ".join(ref.name for ref in study.workloads)
    # a key that a machine file does not give leaves its digest as it was before there was the key
    template = repr(study.space.template)
    empty = ("bits", "along", "gates", "order", "inside", "fill", "drain", "formats")
    none = ("vdd", "write_bandwidth", "writes_per_cycle", "latency_ns", "in_core")
    others = (f"takes={TAKES_ALL!r}", "lockstep=False")
    for absent in (*(f"{key}=()" for key in empty), *(f"{key}=None" for key in none), *others):
        template = template.replace(f", {absent}", "")
    found["machine"] = f"{study.space.template.name} {digest(template)}"
    found["space"] = ", ".join(axis.key for axis in study.space.axes)
    found |= {f"space.{axis.key}": json.dumps(axis.values) for axis in study.space.axes}
    found["constraints"] = "; ".join(c.text for c in (*study.constraints.static, *study.constraints.modelled))
    found["objectives"] = ", ".join(
        f"{o.metric if o.is_term else o.column}:{o.direction}" for o in study.objectives
    )
    found |= {f"search.{key}": str(value) for key, value in sampler.arguments(study.search).items()}
    found |= {f"solver.{key}": str(value) for key, value in asdict(study.solver).items()}
    return found | {"model_version": str(record.MODEL_VERSION), "solver_version": str(record.SOLVER_VERSION)}


def changes(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """Returns one line per key that differs."""
    keys = [*old, *(key for key in new if key not in old)]
    return [
        f"{key}: {old.get(key, 'absent')} -> {new.get(key, 'absent')}"
        for key in keys
        if old.get(key) != new.get(key)
    ]


def columns(study: Study, table: str) -> dict[str, Column]:
    """Returns the columns that the study adds to a table. machines: parameters; points: objectives and
    violations; designs: those of both; chosen: mappings.
    """
    found = {}
    if table in ("machines", "designs"):
        found = {slug(axis.key): _parameter_column(axis) for axis in study.space.axes}
    if table == "chosen":
        # a reader that has loaded no workload takes the other columns as the parts have them
        max_einsums = max((len(unique(workload)) for workload in study.loaded_workloads), default=1)
        return {
            mapping_column(i): Column("string", "", f"mapping_key of the workload's distinct einsum {i + 1}")
            for i in range(max_einsums)
        }
    if table == record.NONDOMINATED:
        return {o.column: Column("float64", "", "an objective") for o in study.objectives}
    if table not in ("points", "designs"):
        return found
    for o in study.objectives:
        if o.column not in record.TABLES["points"]:
            found[o.column] = Column(
                "float64",
                "" if o.is_term else record.METRICS[o.metric].unit,
                f"cost term {o.metric}" if o.is_term else f"{o.metric}, {o.over} over the workloads",
            )
    return found | {
        violation_column(c): Column(
            "float64", "", f"how far {c.text} is missed, in its own unit; met if <= 0"
        )
        for c in study.constraints.modelled
    }


def mapping_column(index: int) -> str:
    """Returns the column of the table chosen with the mapping of a workload's distinct einsum. index: its
    index, from 0.
    """
    return f"mapping_{index + 1}"


def parameters(study: Study, machine: int) -> dict[str, Value]:
    """Returns the parameter columns of a machine's row."""
    return {slug(key): value for key, value in values(study.space, machine).items()}


def grid(study: Study) -> Grid:
    """Returns the space as samplers see it."""
    return Grid(
        tuple(len(axis.values) for axis in study.space.axes),
        tuple(_is_ordered(axis) for axis in study.space.axes),
    )


def generation(
    study: Study,
    number: int,
    asked: Asked,
    trials: Sequence[Trial],
    table: Table | None = None,
    best_first: BestFirst | None = None,
) -> Generation | None:
    """Returns the asks of one generation, or None when no machine is left. A pure function, so that a resumed
    run may repeat it.

    asked: machines of generations 0..number-1; an enumerated search does not read them
    trials: of complete generations <= number - 2
    table: of the study's space, reused between calls
    best_first: of method bounds: what generations 0..number-1 have left
    """
    modelled_zeros = (0.0,) * len(study.constraints.modelled)
    machines = (
        best_first.candidates(trials)
        if best_first
        else sampler.generation_machines(study.search, study.space.size, number)
        if sampler.is_enumerated(study.search)
        else np.empty(0, np.int64)
    )
    static_by_machine = dict(
        zip(
            machines.tolist(),
            static_violations_of_many(table or Table(study.space), machines, study.constraints),
            strict=True,
        )
    )

    def violations_of(machine: int) -> tuple[float, ...]:
        return (
            static_by_machine[machine]
            if machine in static_by_machine
            else static_violations(study.space, machine, study.constraints)
        ) + modelled_zeros

    if best_first or sampler.is_enumerated(study.search):
        found = sampler.listed(study.search, machines, violations_of)
    else:
        directions = [o.direction for o in study.objectives]
        found = sampler.propose(
            study.search, grid(study), number, directions, trials, asked.machines, violations_of, asked.drawn
        )
    if found is None:
        return None
    static_count = len(study.constraints.static)
    pruned = tuple(
        (machine, source, reason(study.constraints, violations_of(machine)[:static_count]))
        for machine, source in found.pruned
    )
    arguments = tuple(sampler.arguments(study.search).items())
    return Generation(
        number, found.asks, pruned, found.seen, sampler.seed_of(study.search, number), arguments
    )


def point(study: Study, machine: int, area_mm2: float, costs: Mapping[str, Cost]) -> dict[str, float | bool]:
    """Returns metrics, objectives, violations and `feasible` of one schedule. costs: by workload, in the
    study's order.
    """
    violations = modelled_violations(study.space, machine, study.constraints, costs, study.weights())
    return {
        **_metric_columns(study, area_mm2, costs),
        **_terms(study, machine, area_mm2, costs),
        **violations,
        "feasible": all(v <= 0 for v in violations.values()),
    }


def points(
    study: Study, machines: Ints, area_mm2: Floats, costs: Mapping[str, Cost]
) -> dict[str, NDArray[Any]]:
    """Returns `point` of n machines as columns [n]. costs: by workload, each number a column [n]."""
    with np.errstate(divide="raise", invalid="raise"):  # as Python's floats do
        found = _metric_columns(study, area_mm2, costs)
    violations: dict[str, list[float]] = {violation_column(c): [] for c in study.constraints.modelled}
    terms: dict[str, list[float]] = {o.column: [] for o in study.objectives if o.is_term}
    for i, machine in enumerate(machines.tolist() if violations or terms else ()):
        machine_costs = {
            name: Cost(*(float(part[i]) for part in astuple(cost))) for name, cost in costs.items()
        }
        for name, violation in modelled_violations(
            study.space, machine, study.constraints, machine_costs, study.weights()
        ).items():
            violations[name].append(violation)
        for name, term in _terms(study, machine, float(area_mm2[i]), machine_costs).items():
            terms[name].append(term)
    feasible = np.logical_and.reduce(
        [np.ones(len(machines), np.bool_), *(np.array(violation) <= 0 for violation in violations.values())]
    )
    return {
        **found,
        **{name: np.array(column) for name, column in (violations | terms).items()},
        "feasible": feasible,
    }


def _metric_columns(study: Study, area_mm2: Any, costs: Mapping[str, Cost]) -> dict[str, Any]:
    """Returns metrics and objectives, of one machine or as columns."""
    weights = study.weights()
    found = {**metrics(total(list(costs.values()), [weights[name] for name in costs])), "area_mm2": area_mm2}
    return found | {
        o.column: pareto.value(o, costs, weights, area_mm2) for o in study.objectives if not o.is_term
    }


def _terms(study: Study, machine: int, area_mm2: float, costs: Mapping[str, Cost]) -> dict[str, float]:
    """Returns the objectives that are cost terms of the user, from the parameters of the machine and the
    metrics of all workloads. Raises ValueError for what is no finite number.
    """
    found: dict[str, float] = {}
    for o in study.objectives:
        if o.is_term:
            weights = study.weights()
            given = metrics(total(list(costs.values()), [weights[name] for name in costs]))
            value = plugin.function(o.metric)(values(study.space, machine), **given, area_mm2=area_mm2)
            if not isinstance(value, int | float) or not math.isfinite(value):
                raise ValueError(f"cost term {o.column}: returned {value!r}; return a finite number")
            found[o.column] = float(value)
    return found


def trials(
    study: Study, machines: Sequence[Mapping[str, Any]], points: Sequence[Mapping[str, Any]]
) -> list[Trial]:
    """Returns what samplers and stop criteria see of committed rows, ordered by generation, machine and
    schedule. Machines with status error are left out.

    machines: rows with machine, generation, status, need_bytes, have_bytes
    points: rows with machine, schedule, objectives, violations
    """
    schedules: dict[int, list[Mapping[str, Any]]] = {}
    for row in sorted(points, key=lambda row: (row["machine"], row["schedule"])):
        schedules.setdefault(row["machine"], []).append(row)
    # of a machine with schedules: no capacity shortage, and no violation of a static constraint
    capacity_and_static = (0.0,) * (1 + len(study.constraints.static))
    names = [violation_column(c) for c in study.constraints.modelled]
    found = []
    for row in sorted(machines, key=lambda row: (row["generation"], row["machine"])):
        head = row["machine"], row["generation"], row["status"]
        for schedule in schedules.get(row["machine"], []):
            objectives = tuple(float(schedule[o.column]) for o in study.objectives)
            found.append(
                Trial(*head, objectives, capacity_and_static + tuple(float(schedule[name]) for name in names))
            )
        if row["status"] == "infeasible":
            found.append(
                Trial(*head, None, (_shortage(row), *capacity_and_static[1:], *(0.0 for _ in names)))
            )
        elif row["status"] == "pruned" and study.search.learns():
            static = static_violations(study.space, row["machine"], study.constraints)
            found.append(Trial(*head, None, (0.0, *static, *(0.0 for _ in names))))
    return found


def _shortage(row: Mapping[str, Any]) -> float:
    """Returns need / capacity - 1 at the level that is too small; 1 where sizes are unknown."""
    need, have = row.get("need_bytes"), row.get("have_bytes")
    return need / have - 1.0 if need and have and need > have else 1.0


def input_path(number: int, ref: WorkloadRef) -> str:
    """Returns the path of a workload's file in the run folder. A file that comes from a run folder has the
    prefix already, so loading and storing again gives the same path.
    """
    return f"inputs/{number}_{Path(ref.path).name.removeprefix(f'{number}_')}"


def _parameter_column(axis: Axis) -> Column:
    unit = next((unit for suffix, unit in UNITS.items() if axis.key.endswith(suffix)), "")
    return Column(DTYPES[type(axis.values[0])], unit, f"parameter {axis.key} of the machine")


def _is_ordered(axis: Axis) -> bool:
    """True if neighbours on the axis are similar: numbers that only rise or only fall."""
    numbers = [v for v in axis.values if isinstance(v, (int, float)) and not isinstance(v, bool)]
    pairs = list(itertools.pairwise(numbers))
    return len(numbers) == len(axis.values) and (all(a < b for a, b in pairs) or all(a > b for a, b in pairs))
