"""Solves machines: every workload on each, answers as rows of tables. Actors and the in-process run call the
same function.

Rows depend on the study and the machine alone, not on the clock, the number of workers or machines solved
before.
"""

from __future__ import annotations

import ctypes
import gc
import hashlib
import json
import logging
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache, partial
from itertools import product
from math import prod
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from cluster import batch_eval, pruning, sink
from cluster.batch_eval import BatchAnswers, BatchIndex
from cluster.pruning import BoundPruner, Dominated, RunningBound
from cluster.sink import Sink
from dse.explain import derived
from dse.explain import values as explain
from dse.mapping.conversion import with_conversions
from dse.mapping.nest import Infeasible, role
from dse.run import cache, deadline, doing, record
from dse.run.folder import Group
from dse.run.installed import PACKAGES, ROOT
from dse.sim.einsum.evaluate import EinsumCost, Solution, Violated
from dse.sim.levels.network import ACTIONS
from dse.solve.sharing.shared_schedules import SharedSchedules, priced_on
from dse.solve.solve import find_shared_schedules_of, is_batched, solve, solve_unfused_on, thinned
from dse.study import packed_columns, pareto
from dse.study import study as studies
from dse.study.pareto import Trial
from dse.study.read import StudyError
from dse.study.study import Study
from hw.arch import Arch, Array
from hw.space import Axis, Space, Unbuildable, Value, decode, index_of, values
from workloads import plugin
from workloads.arrays import Ints
from workloads.graph import Unique, Workload, unique

# set in tests: a fault of a batch is raised; else its machines are solved one by one
RAISE_VARIABLE = "DSE_RAISE"
UNDONE = ("deadline:", "memory:", "lost:")  # starts of the reasons for which a resume solves a machine again
VIOLATED = "violated:"  # start of the reason where a result breaks an invariant; the run stops then
SAMPLED_VALUES = 64  # values of an axis that are tried to see which numbers of a machine the axis changes
SAMPLED_BASES = 1024  # machines that are tried until one can be built, whose axes are then varied
MIN_TOGETHER = 4  # machines of a lease are bounded and solved together if there are at least this many
MAX_SCHEDULES = 4096  # combinations of the workloads' schedules that one machine's front is taken from
ROW_KEYS = ("machine", "schedule", "workload")  # key columns of a ScheduleRow
Row = dict[str, Any]
Rows = dict[str, list[Row]]
Columns = dict[str, list[Any]]


@dataclass(frozen=True, slots=True)
class Ask:
    """A machine to solve."""

    machine: int  # its index in the space
    generation: int
    source: str  # what proposed it: a search method or a step of one


@dataclass(frozen=True, slots=True)
class Lease:
    """Machines that one call solves."""

    number: int  # its name in logs and retries
    asks: tuple[Ask, ...]
    # where bounds prune machines: generation -> front known before that generation
    fronts: Mapping[int, tuple[Trial, ...]] = field(default_factory=dict)
    name: str = ""  # where workers write parts: beginning of the name of the lease's group
    merge: tuple[Group, ...] = ()  # groups to merge, instead of machines
    batch: int = 0  # equal for leases whose machines may share mappings; 0: those of no other lease


class Sharing(NamedTuple):
    """A machine among those that it shares schedules with (solver.sharing_gap)."""

    schedules: SharedSchedules | Infeasible
    number: int  # index of the machine among them, from 0


@dataclass(frozen=True, slots=True)
class Job:
    """What every worker gets once per run."""

    study: Study
    workloads: tuple[Workload, ...]
    uniques: tuple[tuple[Unique, ...], ...]  # per workload: its distinct einsums
    macs: tuple[int, ...]  # per workload: its multiply-accumulates
    schemas: Mapping[str, pa.Schema]  # per table
    key: str  # what a row's key is a digest of, besides the machine's parameters (`_key`)
    deadline_s: float | None  # seconds per machine
    pruner: BoundPruner = field(compare=False, repr=False)
    # batches of machines that share mappings (solver.sharing_gap); None: machines share none
    batch_index: BatchIndex | None = field(default=None, compare=False, repr=False)
    # workload -> machine -> schedules that it shares with others; filled on demand by each process
    shared_schedules: dict[str, dict[int, Sharing]] = field(default_factory=dict, compare=False, repr=False)
    sink: Sink | None = None  # where workers write parts; None: the driver does


@dataclass(frozen=True, slots=True)
class Done:
    """A solved lease."""

    lease: Lease
    # rows by table name; if the worker wrote them, only those columns that the driver needs
    tables: Mapping[str, pa.RecordBatch]
    # time that it took, without the search for shared mappings; the driver sizes later leases by it
    seconds: float
    lost: str = ""  # why there are no rows, if its actors died; else ""
    shared_s: float = 0.0  # seconds of the search for shared mappings
    cache_hits: int = 0  # answers found in $DSE_CACHE
    cache_misses: int = 0  # answers that were not there, and were solved
    group: Group | None = None  # that the worker wrote
    batch_faults: tuple[str, ...] = ()  # a line per batch whose machines were solved one by one
    warnings: tuple[str, ...] = ()  # of an actor's process, such as of a damaged file in $DSE_CACHE


@dataclass(frozen=True, slots=True)
class Packed:
    """A Done on its way from an actor: each table as the bytes of a record batch in the job's schema, which
    the driver reads eight times as fast as a pickled table.
    """

    tables: Mapping[str, bytes]
    figures: tuple[float, float, int, int]  # seconds, shared_s, cache_hits, cache_misses
    group: Group | None
    batch_faults: tuple[str, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """One schedule of one workload on a machine, before it becomes rows. Tables are made once per lease,
    because each costs as much time as many rows.
    """

    machine: int
    schedule: int
    workload: str
    arch: Arch
    solution: Solution
    groups: tuple[Unique, ...]  # the einsum of each cost in `costs`

    @property
    def costs(self) -> tuple[EinsumCost, ...]:
        """Cost of each distinct einsum of the schedule, in the workload's order."""
        return self.solution.einsums


# answers of one machine, one per workload in their order, as far as these are solved: its schedules; or why
# there is none
MachineAnswers = list[list[Solution] | Infeasible | Dominated]


class Overdue(Exception):
    """Raised when the deadline of a machine has passed."""


def job_of(study: Study) -> Job:
    """Returns the job of a study, with everything that is derived from its workloads. Raises StudyError if a
    workload has more MACs than an int64 column takes.
    """
    workloads = studies.workloads_of(study)
    for ref, workload in zip(study.workloads, workloads, strict=True):
        if (macs_per_run := workload.macs()) >= 1 << 63:
            raise StudyError(
                f"{study.name}: workloads = {ref.name} makes {macs_per_run:,} multiply-accumulates, "
                "tables count up "
                "to 2^63; take smaller extents"
            )
    uniques = tuple(tuple(unique(workload)) for workload in workloads)
    schemas = {table: record.schema(table, studies.columns(study, table)) for table in record.STORED}
    row_identity = {
        key: value
        for key, value in studies.identity(study).items()
        if not key.startswith(("space.", "search."))
    }
    content = [sorted(row_identity.items()), [[group.key for group in groups] for groups in uniques]]
    key, macs = json.dumps(content), tuple(workload.macs() for workload in workloads)
    pruner = BoundPruner(study, uniques, key)
    batch_index = (
        BatchIndex(pruner, *batch_axes(study))
        if study.solver.sharing_gap and study.solver.schedule == "unfused"
        else None
    )
    return Job(study, workloads, uniques, macs, schemas, key, study.limits.seconds, pruner, batch_index)


def solve_lease(job: Job, lease: Lease) -> Done:
    """Solves all machines of a lease. Returns rows as Arrow tables.

    Machines that their lower bounds rule out get a row and are not solved.
    """
    started, lookups = time.perf_counter(), cache.lookups.copy()
    if lease.merge and job.sink:
        merged = sink.merge(job.sink, lease.name, lease.merge)
        return Done(lease, {}, time.perf_counter() - started, group=merged)
    rows: Rows = {}
    schedules: list[ScheduleRow] = []
    faults: list[str] = []
    pruned_tables = _ruled_out(job, lease)
    dominated = set().union(*(table["machine"].to_pylist() for table in pruned_tables))
    asks = [ask for ask in lease.asks if ask.machine not in dominated]
    batch_tables, asks, unfit, shared_s = _solve_sharing_mappings(job, asks, faults)
    answers = _solve_together(job, lease, asks, faults) | unfit
    solved = {
        i: solve_machine(
            job, asks[i], lease.fronts.get(asks[i].generation, ()), answers.get(asks[i].machine, ())
        )
        for i in _solving_order(job, lease.number, asks)
    }
    for _, (machine_rows, new_schedules) in sorted(solved.items()):
        schedules += new_schedules
        for table, new_rows in machine_rows.items():
            rows.setdefault(table, []).extend(new_rows)
    parts = [
        *({"machines": table} for table in pruned_tables),
        *batch_tables,
        tables_of(job, rows) | _einsum_tables(job, schedules),
    ]
    tables = {
        name: pa.concat_tables([part[name] for part in parts if name in part])
        for name in record.STORED
        if any(name in part for part in parts)
    }
    if job.sink and "points" in tables:
        tables[record.NONDOMINATED] = packed_columns.nondominated(
            tables["points"], job.study.objectives, job.schemas[record.NONDOMINATED]
        )
    hits, misses = (cache.lookups[name] - lookups[name] for name in ("hits", "misses"))
    group, tables = sink.write(job.sink, lease.name, tables) if job.sink else (None, tables)
    seconds = time.perf_counter() - started - shared_s
    return Done(lease, batches_of(tables), seconds, "", shared_s, hits, misses, group, tuple(faults))


class _Lines(logging.Handler):
    """Gathers the lines of warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def solve_in_actor(job: Job, lease: Lease, tell: Callable[[str], None]) -> Packed:
    """Returns what an actor sends back for a lease, with the warnings that its process gave meanwhile. tell:
    is told how far a long search is.
    """
    logger, heard = logging.getLogger("dse"), _Lines()
    logger.addHandler(heard)
    try:
        with doing.heard_by(tell):
            done = solve_lease(job, lease)
    finally:
        logger.removeHandler(heard)
    return pack(replace(done, warnings=tuple(heard.lines)))


def batches_of(tables: Mapping[str, pa.Table]) -> dict[str, pa.RecordBatch]:
    """Returns the rows of those tables that have any."""
    return {name: table.combine_chunks().to_batches()[0] for name, table in tables.items() if table.num_rows}


def pack(done: Done) -> Packed:
    """Returns what an actor sends back for a lease."""
    tables = {name: batch.serialize().to_pybytes() for name, batch in done.tables.items()}
    figures = (done.seconds, done.shared_s, done.cache_hits, done.cache_misses)
    return Packed(tables, figures, done.group, done.batch_faults, done.warnings)


def unpack(job: Job, lease: Lease, packed: Packed) -> Done:
    """Returns the Done that `pack` was given."""
    schemas = job.schemas
    if job.sink:
        schemas = {
            table: pa.schema([schemas[table].field(name) for name in names])
            for table, names in job.sink.columns.items()
        }
    tables = {
        name: pa.ipc.read_record_batch(pa.py_buffer(data), schemas[name])
        for name, data in packed.tables.items()
    }
    seconds, shared_s, hits, misses = packed.figures
    rest = packed.group, packed.batch_faults, packed.warnings
    return Done(lease, tables, seconds, "", shared_s, hits, misses, *rest)


def _ruled_out(job: Job, lease: Lease) -> list[pa.Table]:
    """Returns the rows of machines that bounds rule out, in one table per generation. Machines whose bounds
    fail here fail again in `solve_machine`, which reports the fault.
    """
    found = []
    for generation, front in lease.fronts.items():
        asks = [ask for ask in lease.asks if ask.generation == generation]
        if front and len(asks) >= (1 if job.batch_index else MIN_TOGETHER) and job.pruner.applies():
            is_dominated, columns = job.pruner.rows(np.array([ask.machine for ask in asks], np.int64), front)
            dominated = [ask for ask, flag in zip(asks, is_dominated.tolist(), strict=True) if flag]
            found.append(
                pruning.table_of(job.schemas["machines"], columns | _ask_columns(dominated), len(dominated))
            )
    return found


def _ask_columns(asks: Sequence[Ask]) -> dict[str, pa.Array]:
    """Returns the columns of the table machines that follow from the asks."""
    given = {name: pa.array([getattr(ask, name) for ask in asks]) for name in ("generation", "source")}
    return given | pruning.constant_columns(len(asks), **VERSIONS)


def _solve_sharing_mappings(
    job: Job, asks: Sequence[Ask], faults: list[str]
) -> tuple[list[dict[str, pa.Table]], list[Ask], dict[int, MachineAnswers], float]:
    """Solves machines that share mappings (solver.sharing_gap, unfused).

    Returns their tables; the machines that are left for `solve_machine` (they cannot be built, failed here,
    or an einsum does not fit); the answers of those where one does not fit; and the seconds spent on finding
    shared mappings. These are left out of Done.seconds, since later leases find the mappings in memory or in
    $DSE_CACHE. faults: a line is appended for each batch that fails (`_batch_fault`).
    """
    unfit_answers, tables_by_batch = dict[int, MachineAnswers](), list[dict[str, pa.Table]]()
    if job.batch_index is None or job.deadline_s is not None:
        return [], list(asks), {}, 0.0
    unsolved, shared_s = set(range(len(asks))), 0.0
    batches = job.batch_index.of(np.array([ask.machine for ask in asks], np.int64))
    while True:
        began, next_batch = time.perf_counter(), None
        try:
            if (next_batch := next(batches, None)) is None:
                break
            answers, indices = next_batch
            if not answers.tables:
                answers.solved_tables()  # solves the batch, and keeps its tables
                _release_memory()
            shared_s += time.perf_counter() - began
            rows = np.searchsorted(answers.machines, [asks[i].machine for i in indices.tolist()])
            fits = answers.fits(rows)
            for row in rows[~fits].tolist():
                workload, why = answers.unfit(row)
                unfit_answers[int(answers.machines[row])] = [*([] for _ in range(workload)), why]
            # the schedules of fronts are made machine by machine (`_solve_shared`)
            if fits.any() and job.study.solver.objective != "front":
                fitting = [asks[i] for i in indices[fits].tolist()]
                tables_by_batch.append(_batch_tables(job, answers, rows[fits], fitting))
                unsolved -= set(indices[fits].tolist())
        except Exception as fault:
            failed = next_batch[1].tolist() if next_batch else sorted(unsolved)
            faults.append(_batch_fault(fault, [asks[i].machine for i in failed]))
    return tables_by_batch, [asks[i] for i in sorted(unsolved)], unfit_answers, shared_s


def _batch_fault(fault: Exception, machines: Sequence[int]) -> str:
    """Returns a line about machines that were to be solved at once, and are solved one by one because of a
    fault. Where RAISE_VARIABLE is set, raises the fault: rows come out equal, only later.
    """
    if os.environ.get(RAISE_VARIABLE):
        raise fault
    at = traceback.extract_tb(fault.__traceback__)[-1]
    what = " ".join(traceback.format_exception_only(fault)[-1].split())[:200]
    return (
        f"{what} (line {at.lineno} of {os.path.basename(at.filename)}): a batch of {len(machines)} machines, "
        f"{min(machines)} to {max(machines)}, was solved one by one, which takes longer"
    )


def _release_memory() -> None:
    """Returns freed memory to the operating system, where the C library can. Many small arrays would leave it
    fragmented.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _batch_tables(job: Job, answers: BatchAnswers, rows: Ints, asks: Sequence[Ask]) -> dict[str, pa.Table]:
    """Returns the rows of machines of a solved batch, on which all workloads fit, by table, made as columns.
    rows: [m], rows of these machines in the batch.
    """
    constant = partial(pruning.constant_columns, len(asks))

    def table(name: str, columns: Mapping[str, pa.Array]) -> pa.Table:
        return pruning.table_of(job.schemas[name], columns, len(asks))

    machines, points, chosen = batch_eval.columns_of(answers, rows)
    chosen_tables = [
        table("chosen", columns | constant(schedule=0, workload=ref.name) | {"machine": machines["machine"]})
        for ref, columns in zip(job.study.workloads, chosen, strict=True)
    ]
    return {
        "machines": table("machines", machines | _ask_columns(asks) | constant(status="ok")),
        "points": table("points", points | constant(schedule=0, **VERSIONS)),
        "chosen": pa.concat_tables(chosen_tables),
        **_mapping_tables(job, batch_eval.distinct_mappings(answers, rows)),
    }


def solves_together(job: Job) -> bool:
    """True if machines that differ in prices and rates alone are solved by one search, each to its own
    optimum (`_solve_together`).
    """
    return job.deadline_s is None and not job.study.solver.sharing_gap and is_batched(job.study.solver)


def _solve_together(
    job: Job, lease: Lease, asks: Sequence[Ask], faults: list[str]
) -> dict[int, MachineAnswers]:
    """Solves those machines of a lease by one search that differ in prices and rates alone. Returns answers
    by machine; {} if anything fails: a line is appended to `faults`, and `solve_machine` solves each.
    """
    if len(asks) < MIN_TOGETHER or not solves_together(job):
        return {}
    arches = {
        ask.machine: arch for ask in asks if isinstance(arch := decode(job.study.space, ask.machine), Arch)
    }
    answers_by_machine: dict[int, MachineAnswers] = {machine: [] for machine in arches}
    try:
        running_bounds = {
            ask.machine: RunningBound(job.pruner, arches[ask.machine], front)
            for ask in asks
            if ask.machine in arches
            and (front := lease.fronts.get(ask.generation))
            and not job.pruner.exceeds_capacity(arches[ask.machine])
        }
        for machine, running_bound in running_bounds.items():
            _records_if_dominated(answers_by_machine[machine], running_bound.raise_if_dominated)
        for index, workload in enumerate(job.workloads):
            unanswered = [
                machine
                for machine, answers in answers_by_machine.items()
                if len(answers) == index and not _is_answered(answers)
            ]

            def on_einsum(
                j: int, einsum: int, cost: EinsumCost, unanswered: list[int] = unanswered, index: int = index
            ) -> bool:
                """Whether machine j is still to be solved, now that this einsum's cost is known."""
                return unanswered[j] not in running_bounds or not _records_if_dominated(
                    answers_by_machine[unanswered[j]],
                    partial(running_bounds[unanswered[j]].on_einsum, index, einsum, cost),
                )

            new_answers = solve_unfused_on(
                [arches[machine] for machine in unanswered],
                workload,
                job.study.solver,
                on_einsum if running_bounds else None,
            )
            for machine, answer in zip(unanswered, new_answers, strict=True):
                answers_by_machine[machine] += [] if answer is None else [answer]
    except Exception as fault:
        faults.append(_batch_fault(fault, [ask.machine for ask in asks]))
        return {}
    return {
        machine: answers
        for machine, answers in answers_by_machine.items()
        if len(answers) == len(job.workloads) or _is_answered(answers)
    }


def _is_answered(answers: MachineAnswers) -> bool:
    """Whether a workload has no schedule, so that the machine's other workloads need not be solved."""
    return any(isinstance(one, Infeasible | Dominated) for one in answers)


def _records_if_dominated(answers: MachineAnswers, check: Callable[[], None]) -> bool:
    """Calls check. If it raises Dominated, that becomes the machine's answer, and True is returned."""
    try:
        check()
    except Dominated as fault:
        answers.append(fault)
        return True
    return False


def _solving_order(job: Job, number: int, asks: Sequence[Ask]) -> list[int]:
    """Returns the order, as indices, in which machines of a lease are solved: those that share schedules one
    after the other, beginning with a group that depends on the lease's number.

    Thus processes begin with different groups and find the schedules of the others in $DSE_CACHE later.
    """
    structures = dict.fromkeys(range(len(asks)), "")
    if job.study.solver.sharing_gap and not job.batch_index:
        shared = [job.shared_schedules.get(workload.name, {}) for workload in job.workloads]
        for i, ask in enumerate(asks):
            if any(ask.machine not in by_machine for by_machine in shared) and isinstance(
                arch := decode(job.study.space, ask.machine), Arch
            ):
                structures[i] = str(arch.structure())
    distinct = sorted(set(structures.values()))
    return sorted(structures, key=lambda i: (distinct.index(structures[i]) - number) % len(distinct))


def solve_machine(
    job: Job,
    ask: Ask,
    front: Sequence[Trial] = (),
    answers: Sequence[list[Solution] | Infeasible | Dominated] = (),
) -> tuple[Rows, list[ScheduleRow]]:
    """Solves one machine. A fault becomes an `error` row, with its traceback as an event.

    front: schedules of other machines that may dominate all schedules of this one
    answers: answers that `_solve_together` has found, per workload
    """
    missed_before = deadline.missed_count()
    try:
        with deadline.within(job.deadline_s), _deadline(job.deadline_s):
            found = _solve(job, ask, front, answers)
            # searches were cut short, so the answer depends on the clock
            if deadline.missed_count() > missed_before:
                raise Overdue
            return found
    except Overdue:
        reason, trace = f"deadline: not solved within {job.deadline_s:g} s; a resume tries again", ""
    except MemoryError as fault:
        reason, trace = "memory: its process ran out of it; a resume tries again", _traceback(fault)
    except Violated as fault:
        trace = str(fault)
        reason = f"{VIOLATED} machine {ask.machine}: {trace.splitlines()[0]}"
    except Exception as fault:  # any fault of a solver or plug-in is this machine's, not the run's
        lines = traceback.format_exception_only(fault)[-1].strip().splitlines()
        reason, trace = lines[0] if lines else type(fault).__name__, _traceback(fault)
    return error_rows(job, ask, reason, trace), []


def _traceback(fault: BaseException) -> str:
    return "".join(traceback.format_exception(fault))


def error_rows(job: Job, ask: Ask, reason: str, trace: str = "") -> Rows:
    """Returns the `error` row of a machine and its event."""
    return {
        "machines": [{**_head(job, ask), "status": "error", "reason": reason}],
        "events": [event("error", trace or reason, ask.machine)],
    }


def pruned_rows(job: Job, ask: Ask, reason: str) -> Rows:
    """Returns the row of a machine that breaks a constraint that needs no solving."""
    return {"machines": [{**_head(job, ask), "status": "pruned", "reason": reason}]}


def event(kind: str, text: str, machine: int | None = None) -> Row:
    """Returns a row of the table events, with the present time (UTC). machine None: the event concerns the
    whole run.
    """
    return {"time": datetime.now(UTC), "kind": kind, "machine": machine, "text": text}


def tables_of(job: Job, rows: Rows) -> dict[str, pa.Table]:
    """Returns rows as Arrow tables, with the columns of record.py and of the study."""
    return {
        table: _table(job, table, {name: [row.get(name) for row in new] for name in job.schemas[table].names})
        for table, new in rows.items()
    }


def _table(job: Job, table: str, columns: Columns, values: Sequence[object] = ()) -> pa.Table:
    """Returns an Arrow table. Columns that are not given are read as attributes of `values`."""
    schema = job.schemas[table]
    cells = [columns[f.name] if f.name in columns else list(map(attrgetter(f.name), values)) for f in schema]
    arrays = [
        pa.array(_floats(values_of) if pa.types.is_floating(f.type) else values_of, f.type)
        for values_of, f in zip(cells, schema, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def _floats(cells: Sequence[Any]) -> Sequence[Any]:
    """Converts integers to floats with rounding. Arrow refuses integers that no float equals (2^53 + 1)."""
    return [None if cell is None else float(cell) for cell in cells] if isinstance(cells, list) else cells


def _einsum_tables(job: Job, schedules: Sequence[ScheduleRow]) -> dict[str, pa.Table]:
    """Returns the tables chosen (unfused schedules), einsums (all others), mappings and counts, made column
    by column. Each distinct mapping has its rows once.
    """
    found = [
        (cost, group, row.arch)
        for row in schedules
        for cost, group in zip(row.costs, row.groups, strict=True)
    ]
    if not found:
        return {}
    unfused_rows = [
        derived.chosen_columns(row.solution) | {name: getattr(row, name) for name in ROW_KEYS}
        for row in schedules
        if not row.solution.schedule
    ]
    tables = tables_of(job, {"chosen": unfused_rows}) if unfused_rows else {}
    if scheduled := [row for row in schedules if row.solution.schedule]:
        tables["einsums"] = _table(job, "einsums", *_einsum_columns(scheduled))
    first = {one[0].mapping_key: one for one in reversed(found)}
    return {**tables, **_mapping_tables(job, list(first.values()))}


def _mapping_tables(job: Job, found: Sequence[tuple[EinsumCost, Unique, Arch]]) -> dict[str, pa.Table]:
    """Returns the tables mappings and counts of distinct mappings, each with a machine that has it."""
    mappings = [cost for cost, *_ in found]
    of_mappings: Columns = {
        "einsum_key": [cost.key for cost in mappings],
        "nest": [_nest(cost.mapping) for cost in mappings],
    }
    count_rows = [(one[0], bits, *row) for one in found for row, bits in _counts(*one)]
    of_counts: Columns = {
        "mapping_key": [cost.mapping_key for cost, *_ in count_rows],
        "bits": [bits for _, bits, *_ in count_rows],
    }
    of_counts |= {
        name: [row[i] for row in count_rows]
        for i, name in enumerate(("level", "tensor", "action", "elems", "busiest_elems"), 2)
    }
    return {
        "mappings": _table(job, "mappings", of_mappings, mappings),
        "counts": _table(job, "counts", of_counts),
    }


def _einsum_columns(schedules: Sequence[ScheduleRow]) -> tuple[Columns, list[EinsumCost]]:
    """Returns (the columns of the table einsums that are no attributes of EinsumCost; the cost of each row,
    whose attributes are the other columns).
    """
    rows = [
        (schedule, position, cost, group)
        for schedule in schedules
        for position, (cost, group) in enumerate(zip(schedule.costs, schedule.groups, strict=True), 1)
    ]
    costs = [cost for _, _, cost, _ in rows]
    found: Columns = {name: [getattr(schedule, name) for schedule, *_ in rows] for name in ROW_KEYS}
    found["position"] = [position for _, position, _, _ in rows]
    found["kind"] = [group.einsum.kind for *_, group in rows]
    for name, attribute in (("einsum", "name"), ("einsum_key", "key"), ("occurrences", "count")):
        found[name] = [getattr(cost, attribute) for cost in costs]
    work = [
        explain.work(schedule.arch, group.einsum, cost) | explain.place(schedule.arch, cost)
        for schedule, _, cost, group in rows
    ]
    return found | {name: [row[name] for row in work] for name in (*explain.WORK, "core", "unit")}, costs


_nest = lru_cache(maxsize=1 << 14)(str)  # text of a mapping; later leases have many of the same mappings


def _counts(
    cost: EinsumCost, group: Unique, arch: Arch
) -> Iterator[tuple[tuple[str, str, str, float, float | None], int | None]]:
    """Yields rows of the table counts as ((level, tensor, action, elems, busiest_elems), bits of an element;
    None: the machine's word): accesses, then traffic that layouts add, then traffic on networks with a price.
    """
    own = {p.tensor: p.bits for p in group.einsum.tensors()}
    at_level = {
        (level.name, p.tensor): level.elem_bits(role(group.einsum, p.tensor), p.bits or 0) or None
        for level in arch.levels
        if level.bits
        for p in group.einsum.tensors()
    }
    for c in cost.counts:
        bits = at_level.get((c.level, c.tensor), own.get(c.tensor))
        yield (c.level, c.tensor, c.action, c.elems, c.busiest_elems), bits
    for traffic in cost.layout_traffic:
        for action, n, width in (
            (f"unused_{traffic.action}", traffic.unused_bits, 1),
            ("modify", traffic.modified_bits, 1),
            (f"open_{traffic.action}", traffic.activations.n, 0),
        ):
            if n:
                yield (traffic.level, traffic.tensor, action, n, None), width
    for part in cost.price.parts:
        if part.action in ACTIONS:
            yield (part.level, part.tensor, part.action, part.actions, None), 1


@contextmanager
def _deadline(seconds: float | None) -> Iterator[None]:
    """Raises Overdue in the body after `seconds`. Without effect outside of the main thread: in actors
    dse/run/deadline.py ends searches, and cluster/pool.py kills those that are late nevertheless.
    """
    if seconds is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_alarm(_signal: int, _frame: object) -> None:
        raise Overdue

    old_handler = signal.signal(signal.SIGALRM, on_alarm)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old_handler)


def _solve(
    job: Job, ask: Ask, front: Sequence[Trial], answers: Sequence[list[Solution] | Infeasible | Dominated]
) -> tuple[Rows, list[ScheduleRow]]:
    """Solves one machine as `solve_machine` does, but raises its faults."""
    study = job.study
    head = _head(job, ask)

    def ended(**columns: object) -> tuple[Rows, list[ScheduleRow]]:
        return {"machines": [{**head, **columns}]}, []

    arch = decode(study.space, ask.machine)
    if isinstance(arch, Unbuildable):
        return ended(status="infeasible", reason=arch.reason)
    running_bound = RunningBound(job.pruner, arch, front)
    lower_bounds = running_bound.lower_bounds()
    total_bound = pareto.total(list(lower_bounds.values()), [ref.weight for ref in study.workloads])
    head |= {
        "area_mm2": arch.area_mm2(),
        "clock_ghz": arch.clock_ghz,
        "peak_tops": arch.peak_tops(),
        "bound_energy_pj": total_bound.energy_pj,
        "bound_latency_ns": total_bound.latency_ns,
    }
    workload_fronts: list[list[Solution]] = []
    # a machine that is too small is reported as infeasible, not as dominated
    may_be_pruned = bool(front) and not job.pruner.exceeds_capacity(arch)
    try:
        if may_be_pruned:
            running_bound.raise_if_dominated()
        for index, (ref, workload) in enumerate(zip(study.workloads, job.workloads, strict=True)):
            # running_bound.einsums: () unless schedules are unfused, whose bounds rise einsum by einsum
            on_einsum = (
                partial(running_bound.on_einsum, index) if may_be_pruned and running_bound.einsums else None
            )
            found = (
                answers[index]
                if answers
                else _solve_shared(job, ask.machine, arch, workload)
                if study.solver.sharing_gap
                else solve(arch, workload, study.solver, on_einsum, doing.say_einsum)
            )
            if isinstance(found, Dominated):
                raise found
            if isinstance(found, Infeasible):
                return ended(status="infeasible", workload=ref.name, **_infeasible_columns(found))
            workload_fronts.append(found)
    except Dominated as fault:
        return ended(status="pruned", dominated_by=fault.machine, reason=fault.reason)
    rows, new_schedules = _schedule_rows(job, ask.machine, arch, total_bound, workload_fronts)
    return {"machines": [{**head, "status": "ok"}], **rows}, new_schedules


def _solve_shared(job: Job, machine: int, arch: Arch, workload: Workload) -> list[Solution] | Infeasible:
    """Returns the schedule of a machine that shares schedules or mappings with others. A process finds the
    shared ones once.
    """
    if job.batch_index and (next_batch := next(job.batch_index.of(np.array([machine])), None)):
        answers, _ = next_batch
        return answers.solution(machine, job.workloads.index(workload))
    by_machine = job.shared_schedules.setdefault(workload.name, {})
    if machine not in by_machine:
        arches = sharing_machines(job.study.space, machine, arch)
        found = find_shared_schedules_of(list(arches.values()), workload, job.study.solver)
        by_machine |= {member: Sharing(found, number) for number, member in enumerate(arches)}
    schedules, number = by_machine[machine]
    return schedules if isinstance(schedules, Infeasible) else [priced_on(schedules, number)]


def batch_axes(study: Study) -> tuple[list[int], list[int]]:
    """Returns the axes of batches that share mappings (`BatchIndex`), as indices: those that change a
    machine's family, or its structure where a dataflow is asked for; and the others, those first that change
    PEs of arrays, then those that change capacities.
    """
    space, structural = study.space, structural_axes(study.space)
    family = structural if study.solver.dataflow != "free" else structural_axes(study.space, Arch.family)
    arrays = {node.name for node in space.template.nodes if isinstance(node, Array)}
    others = [at for at in range(len(space.axes)) if at not in family]
    rank = {at: 0 if space.axes[at].key.rpartition(".")[0] in arrays else 1 for at in structural}
    return family, sorted(others, key=lambda at: rank.get(at, 2))


def structural_axes(space: Space, kind: Callable[[Arch], Arch] = Arch.structure) -> list[int]:
    """Returns the indices of the axes that change more of a machine than prices, rates and clock. Machines
    that agree on all of these axes may be solved together. kind: what must stay equal, else the structure.

    Decided from up to SAMPLED_VALUES values of each axis.
    """
    built = (
        (at, one)
        for at in range(0, space.size, -(-space.size // SAMPLED_BASES))
        if isinstance(one := decode(space, at), Arch)
    )
    if (base := next(built, None)) is None:
        return list(range(len(space.axes)))
    base_number, base_arch = base
    base_values = values(space, base_number)
    return [
        index
        for index, axis in enumerate(space.axes)
        if not _keeps(
            kind, space, base_values, base_arch, axis, axis.values[:: -(-len(axis.values) // SAMPLED_VALUES)]
        )
    ]


def _keeps(
    kind: Callable[[Arch], Arch],
    space: Space,
    base_values: Mapping[str, Any],
    base: Arch,
    axis: Axis,
    axis_values: Sequence[Value],
) -> bool:
    """True if with all these values of an axis a machine is of the same kind (`Arch.structure`, ...)."""
    variants = (decode(space, index_of(space, {**base_values, axis.key: value})) for value in axis_values)
    return all(isinstance(one, Unbuildable) or kind(one) == kind(base) for one in variants)


def sharing_machines(space: Space, machine: int, arch: Arch) -> dict[int, Arch]:
    """Returns the machines of a space that share schedules with `machine` (`arch`): all values on the axes
    that change only prices, rates and clock.
    """
    base_values, structure = values(space, machine), arch.structure()
    price_axes = [
        axis for axis in space.axes if _keeps(Arch.structure, space, base_values, arch, axis, axis.values)
    ]
    combinations = [
        base_values | dict(zip((axis.key for axis in price_axes), chosen, strict=True))
        for chosen in product(*(axis.values for axis in price_axes))
    ]
    return {
        at: one
        for at in sorted(index_of(space, one) for one in combinations)
        if isinstance(one := decode(space, at), Arch) and one.structure() == structure
    }


def _schedule_rows(
    job: Job, machine: int, arch: Arch, bound: pareto.Cost, workload_fronts: Sequence[Sequence[Solution]]
) -> tuple[Rows, list[ScheduleRow]]:
    """Returns the rows of all schedules on a machine's front, and the ScheduleRows from which tables of
    einsums and mappings are made. bound: lower bound of all workloads; workload_fronts: per workload its
    schedules.
    """
    rows: Rows = {"points": [], "workload_costs": [], "schedules": [], "segments": [], "conversions": []}
    schedule_rows: list[ScheduleRow] = []
    for schedule, (point, choice) in enumerate(_machine_front(job.study, machine, arch, workload_fronts)):
        row_key = {"machine": machine, "schedule": schedule}
        rows["points"].append({**row_key, **point, **_proof(job.study, arch, bound, choice), **VERSIONS})
        for ref, macs, groups, workload, solution in zip(
            job.study.workloads, job.macs, job.uniques, job.workloads, choice, strict=True
        ):
            # the rows of an unfused workload are derived from the table chosen on reading
            if solution.schedule:
                costed = explain.costed_einsums(with_conversions(workload, solution.conversions), solution)
                moved = explain.main_memory_bytes(arch, costed)
                workload_rows = {
                    "workload_costs": [derived.workload_row(solution, arch, ref.weight, macs, moved)],
                    "schedules": [explain.schedule_row(solution)],
                    "segments": explain.segment_rows(solution),
                    "conversions": explain.conversion_rows(solution),
                }
                for table, new in workload_rows.items():
                    rows[table] += [{**row_key, "workload": ref.name, **row} for row in new]
                groups = tuple(Unique(c.key, e, (e.name,), c.count) for c, e in costed)
            schedule_rows.append(ScheduleRow(machine, schedule, ref.name, arch, solution, groups))
    return {table: found for table, found in rows.items() if found}, schedule_rows


def _proof(study: Study, arch: Arch, bound: pareto.Cost, choice: Sequence[Solution]) -> Row:
    """Returns the columns that say what is proven of one schedule per workload, together."""
    costs = {
        ref.name: pareto.cost_of(solution, arch.clock_ghz)
        for ref, solution in zip(study.workloads, choice, strict=True)
    }
    columns = derived.proofs(
        study,
        costs,
        bound,
        [np.array([one.optimality_gap]) for one in choice],
        [np.array([one.gap_to_bound]) for one in choice],
        [[one.certificate] for one in choice],
    )
    return {name: column[0] for name, column in columns.items()}


def _head(job: Job, ask: Ask) -> Row:
    """Returns the columns of a machine's row that are known before it is solved."""
    parameters = studies.parameters(job.study, ask.machine)
    return {
        "machine": ask.machine,
        "key": _key(job, parameters),
        "generation": ask.generation,
        "source": ask.source,
        **VERSIONS,
        **parameters,
    }


def _key(job: Job, parameters: Mapping[str, Any]) -> str:
    return hashlib.sha256(f"{job.key}{json.dumps(parameters, sort_keys=True)}".encode()).hexdigest()[:16]


VERSIONS = {"model_version": record.MODEL_VERSION, "solver_version": record.SOLVER_VERSION}


def _infeasible_columns(found: Infeasible) -> Row:
    """Returns the columns that say why a machine is infeasible. Sizes are in bytes; if a fan-out is too
    small, its PEs are in the reason only.
    """
    sizes = {"need_bytes": found.need_bytes, "have_bytes": found.have_bytes} if found.unit == "bytes" else {}
    return {"limit_level": found.level, "einsum": found.einsum, "reason": str(found), **sizes}


def _machine_front(
    study: Study, machine: int, arch: Arch, workload_fronts: Sequence[Sequence[Solution]]
) -> list[tuple[Row, tuple[Solution, ...]]]:
    """Returns the machine's own front, over all combinations of one schedule per workload, the first of each
    workload first: (columns of the table points, the combination). workload_fronts: per workload its
    schedules, of which as many are left out as make at most MAX_SCHEDULES combinations (`thinned`).
    """
    area = arch.area_mm2()
    found: list[tuple[Row, tuple[Solution, ...]]] = []
    most = int(MAX_SCHEDULES ** (1 / len(workload_fronts)))
    if prod(map(len, workload_fronts)) > MAX_SCHEDULES:
        workload_fronts = [
            thinned(arch, unique(workload), study.solver, front, most)
            for workload, front in zip(study.loaded_workloads, workload_fronts, strict=True)
        ]
    for choice in product(*workload_fronts):
        costs = {
            ref.name: pareto.cost_of(solution, arch.clock_ghz)
            for ref, solution in zip(study.workloads, choice, strict=True)
        }
        found.append((studies.point(study, machine, area, costs), choice))
    if len(found) == 1:
        return found
    rows = [[point[o.column] for o in study.objectives] for point, _ in found]
    values = np.array(rows) * pareto.signs(study.objectives)
    return [one for one, best in zip(found, pareto.front(values), strict=True) if best]


def sources_digest() -> str:
    """Returns a digest of the installed code and tables. All rows of a run come from installations with one
    digest.
    """
    found = hashlib.sha256()
    for path in sorted(
        path for name in PACKAGES for path in (ROOT / name).rglob("*") if path.suffix in (".py", ".csv")
    ):
        found.update(f"{path.relative_to(ROOT).as_posix()}\0".encode() + path.read_bytes())
    return found.hexdigest()


def plugin_fault(job: Job) -> str:
    """Returns why a function that the user brings cannot be called in this process; else ""."""
    try:
        for one in job.study.plugins:
            plugin.function(one.key)
    except plugin.PluginError as fault:
        return str(fault)
    return ""


def sink_fault(job: Job) -> str:
    """Returns why this process cannot write parts where the driver reads them; else ""."""
    return sink.fault(job.sink) if job.sink else ""


def settle_process() -> None:
    """Sets up an actor's process: one Arrow thread, Ctrl-C ignored (the driver handles it), and rare garbage
    collection, because tables in memory are many small objects.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pa.set_cpu_count(1)
    gc.set_threshold(100_000)
