"""One machine: solve every workload on it and lay the answer out as rows. The same function in an actor and in-process.

Rows are a pure function of the study and the machine: no clock, no worker count, nothing of the machines before it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import signal
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dse import record
from dse.nest import Infeasible
from dse.sim import bounds
from dse.sim.evaluate import EinsumCost, Solution, Violated
from dse.stack import solve
from dse.study import pareto
from dse.study import study as studies
from dse.study.study import Study
from hw.arch import Arch
from hw.space import Unbuildable, decode
from workloads.graph import Unique, Workload, unique

VIOLATED = "violated:"  # how the reason of such a machine begins; it stops the run
PACKAGES = ("workloads", "hw", "dse", "cluster", "analysis")
MOST_SCHEDULES = 4096  # combinations of the workloads' fronts that one machine's own front is taken from
Row = dict[str, Any]
Rows = dict[str, list[Row]]


@dataclass(frozen=True, slots=True)
class Ask:
    machine: int
    generation: int
    source: str


@dataclass(frozen=True, slots=True)
class Lease:
    """Machines that are solved together; number: its name in logs and retries."""

    number: int
    asks: tuple[Ask, ...]


@dataclass(frozen=True, slots=True)
class Job:
    """What a worker is told once, and what follows from it for every machine.

    uniques: per workload; schemas: per table; key: of all that shapes a row but the machine; deadline_s: per machine.
    """

    study: Study
    workloads: tuple[Workload, ...]
    uniques: tuple[tuple[Unique, ...], ...]
    schemas: Mapping[str, pa.Schema]
    key: str
    deadline_s: float | None


@dataclass(frozen=True, slots=True)
class Done:
    """A solved lease: rows per table, seconds that it took. lost: why there are none, if its actors died of it."""

    lease: Lease
    tables: Mapping[str, pa.Table]
    seconds: float
    lost: str = ""


class Overdue(Exception):
    """The deadline of a machine has passed."""


def job_of(study: Study) -> Job:
    """Loads the workloads, once per run."""
    workloads = studies.workloads_of(study)
    uniques = tuple(tuple(unique(workload)) for workload in workloads)
    schemas = {table: record.schema(table, studies.columns(study, table)) for table in record.TABLES}
    shapes = {key: value for key, value in studies.identity(study).items() if not key.startswith(("space.", "search."))}
    content = [sorted(shapes.items()), [[group.key for group in groups] for groups in uniques]]
    return Job(study, workloads, uniques, schemas, json.dumps(content), study.limits.seconds)


def solve_lease(job: Job, lease: Lease) -> Done:
    started = time.perf_counter()
    rows: Rows = {}
    for ask in lease.asks:
        for table, new in solve_machine(job, ask).items():
            rows.setdefault(table, []).extend(new)
    return Done(lease, tables_of(job, rows), time.perf_counter() - started)


def solve_machine(job: Job, ask: Ask) -> Rows:
    """All rows of one machine. What goes wrong inside becomes an `error` row, its traceback an event."""
    try:
        with _within(job.deadline_s):
            return _solved(job, ask)
    except Overdue:
        return failed(job, ask, f"deadline: not solved within {job.deadline_s:g} s; a resume tries again")
    except Violated as fault:
        return failed(job, ask, f"{VIOLATED} machine {ask.machine}: {str(fault).splitlines()[0]}", str(fault))
    except Exception as fault:  # any fault of a solver or plug-in is this machine's, not the run's (DESIGN.md, 3)
        last = traceback.format_exception_only(fault)[-1].strip().splitlines()
        return failed(job, ask, last[0] if last else type(fault).__name__, "".join(traceback.format_exception(fault)))


def failed(job: Job, ask: Ask, reason: str, trace: str = "") -> Rows:
    """The `error` row of a machine, and its event."""
    return {"machines": [{**_head(job, ask), "status": "error", "reason": reason}], "events": [event("error", trace or reason, ask.machine)]}


def pruned(job: Job, ask: Ask, reason: str) -> Rows:
    """The row of a machine that broke a constraint before it was solved."""
    return {"machines": [{**_head(job, ask), "status": "pruned", "reason": reason}]}


def event(kind: str, text: str, machine: int | None = None) -> Row:
    return {"time": datetime.now(UTC), "kind": kind, "machine": machine, "text": text}


def tables_of(job: Job, rows: Rows) -> dict[str, pa.Table]:
    """Arrow tables in the columns of record.py and of the study; a mapping's rows once."""
    tables = {}
    for table, new in rows.items():
        schema = job.schemas[table]
        if table in ("mappings", "counts"):
            new = _once(new)
        columns = [pa.array([row.get(field.name) for row in new], field.type) for field in schema]
        tables[table] = pa.Table.from_arrays(columns, schema=schema)
    return tables


def _once(rows: list[Row]) -> list[Row]:
    """First occurrence of each row; a mapping comes whole, so equal rows are equal mappings."""
    seen: set[tuple[Any, ...]] = set()
    return [row for row in rows if not ((key := tuple(row.values())) in seen or seen.add(key))]  # type: ignore[func-returns-value]


@contextmanager
def _within(seconds: float | None) -> Iterator[None]:
    """Raises Overdue inside after so many seconds; without effect outside of the main thread (the pool has its own limit)."""
    if seconds is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(_signal: int, _frame: object) -> None:
        raise Overdue

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _solved(job: Job, ask: Ask) -> Rows:
    study = job.study
    head = _head(job, ask)
    arch = decode(study.space, ask.machine)
    if isinstance(arch, Unbuildable):
        return {"machines": [{**head, "status": "infeasible", "reason": arch.reason}]}
    head |= {"area_mm2": arch.area_mm2(), "clock_ghz": arch.clock_ghz}
    head |= _bounds(job, arch)
    prices = _prices(arch, ask.machine)
    fronts: list[list[Solution]] = []
    for ref, workload in zip(study.workloads, job.workloads, strict=True):
        found = solve(arch, workload, study.solver)
        if isinstance(found, Infeasible):
            return {"machines": [{**head, "status": "infeasible", "workload": ref.name, **_limit(found)}], "prices": prices}
        fronts.append(found)
    rows: Rows = {"machines": [{**head, "status": "ok"}], "prices": prices}
    for schedule, (point, choice) in enumerate(_schedules(study, ask.machine, arch, fronts)):
        _lay_out(rows, job, arch, {"machine": ask.machine, "schedule": schedule}, point, choice)
    return rows


def _head(job: Job, ask: Ask) -> Row:
    parameters = studies.parameters(job.study, ask.machine)
    key = hashlib.sha256(f"{job.key}{json.dumps(parameters, sort_keys=True)}".encode()).hexdigest()[:16]
    return {"machine": ask.machine, "key": key, "generation": ask.generation, "source": ask.source, **_VERSIONS, **parameters}


_VERSIONS = {"model_version": record.MODEL_VERSION, "solver_version": record.SOLVER_VERSION}


def _limit(found: Infeasible) -> Row:
    """In bytes where the limit is a capacity; a fan-out's lanes stand in the reason."""
    sizes = {"need_bytes": found.need_bytes, "have_bytes": found.have_bytes} if found.unit == "bytes" else {}
    return {"limit_level": found.level, "einsum": found.einsum, "reason": str(found), **sizes}


def _bounds(job: Job, arch: Arch) -> Row:
    """Of the whole weighted set, one workload after another."""
    energy = cycles = 0.0
    for ref, groups in zip(job.study.workloads, job.uniques, strict=True):
        for group in groups:
            energy += ref.weight * group.count * bounds.energy_pj(group.einsum, arch)
            cycles += ref.weight * group.count * bounds.latency_cycles(group.einsum, arch)
    return {"bound_energy_pj": energy, "bound_latency_ns": cycles / arch.clock_ghz}


def _schedules(study: Study, machine: int, arch: Arch, fronts: Sequence[Sequence[Solution]]) -> list[tuple[Row, tuple[Solution, ...]]]:
    """The machine's own front over all combinations of the workloads' schedules, with the points columns of each."""
    area = arch.area_mm2()
    found: list[tuple[Row, tuple[Solution, ...]]] = []
    for choice in product(*fronts):
        if len(found) == MOST_SCHEDULES:
            break
        costs = {ref.name: _cost(solution, arch) for ref, solution in zip(study.workloads, choice, strict=True)}
        found.append((studies.point(study, machine, area, costs), choice))
    if len(found) == 1:
        return found
    signs = [-1.0 if o.direction == "max" else 1.0 for o in study.objectives]
    values = np.array([[point[o.column] for o in study.objectives] for point, _ in found]) * signs
    return [one for one, best in zip(found, pareto.front(values), strict=True) if best]


def _cost(solution: Solution, arch: Arch) -> pareto.Cost:
    return pareto.Cost(solution.energy_pj, solution.latency_cycles, solution.latency_cycles / arch.clock_ghz, solution.steady_cycles / arch.clock_ghz)


def _lay_out(rows: Rows, job: Job, arch: Arch, at: Row, point: Row, choice: tuple[Solution, ...]) -> None:
    """Add the rows of one schedule."""
    worst = max(choice, key=lambda solution: solution.gap)
    rows.setdefault("points", []).append({**at, **point, "area_mm2": arch.area_mm2(), "gap": worst.gap, "certificate": worst.certificate, **_VERSIONS})
    for ref, workload, groups, solution in zip(job.study.workloads, job.workloads, job.uniques, choice, strict=True):
        here = {**at, "workload": ref.name}
        costs = pareto.metrics(_cost(solution, arch))
        own = {"weight": ref.weight, "macs": workload.macs(), "gap": solution.gap, "certificate": solution.certificate}
        rows.setdefault("workload_costs", []).append({**here, **costs, **own})
        for cost, group in zip(solution.einsums, groups, strict=True):
            rows.setdefault("einsums", []).append({**here, **_einsum(cost, group)})
            rows.setdefault("mappings", []).append({"mapping_key": cost.mapping_key, "einsum_key": cost.key, "nest": str(cost.mapping)})
            rows.setdefault("counts", []).extend(_counts(cost, group))


def _einsum(cost: EinsumCost, group: Unique) -> Row:
    return {"einsum": cost.name, "einsum_key": cost.key, "kind": group.einsum.kind, "count": cost.count, "mapping_key": cost.mapping_key,
            "energy_pj": cost.energy_pj, "latency_cycles": cost.latency_cycles, "bound_by": cost.bound_by, "gap": cost.gap}


def _counts(cost: EinsumCost, group: Unique) -> list[Row]:
    bits = {p.tensor: p.bits for p in group.einsum.tensors()}
    return [{"mapping_key": cost.mapping_key, "level": c.level, "tensor": c.tensor, "action": c.action, "elems": c.elems,
             "busiest_elems": c.busiest_elems, "bits": bits.get(c.tensor)} for c in cost.counts]


def _prices(arch: Arch, machine: int) -> list[Row]:
    rows: list[Row] = [
        {"machine": machine, "level": level.name, "read_pj": level.read_pj, "write_pj": level.write_pj, "width_bits": level.width_bits,
         "bandwidth": level.bandwidth, "leak_mw": level.leak_mw, "capacity_bits": level.capacity_bits, "instances": arch.instances(v),
         "word_bits": arch.word_bits}
        for v, level in enumerate(arch.levels)]
    lane = arch.compute
    return [*rows, {"machine": machine, "level": "MAC", "mac_pj": lane.mac_pj, "alu_pj": lane.alu_pj, "bandwidth": lane.ops_per_cycle,
                    "leak_mw": lane.leak_mw, "instances": arch.instances(len(arch.levels))}]


def shadowing() -> str:
    """One line if a package found here is not of this installation, e.g. a folder `hw` in the user's directory; else empty."""
    root = Path(__file__).resolve().parent.parent
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        found = Path(spec.origin).resolve() if spec and spec.origin else Path(next(iter(spec.submodule_search_locations or ()), "?")) if spec else None
        if found is None or root not in found.parents:
            return f"{found or name}: shadows the package {name} of dse in {root}; rename it, or start from another folder"
    return ""


def calm() -> None:
    """In an actor: one thread, and Ctrl-C is the driver's."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pa.set_cpu_count(1)
