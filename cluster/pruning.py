"""Pruning by lower bounds: a machine is ruled out if a schedule on a known front is better than any schedule
that the machine may have.

RunningBound checks one machine while it is solved. BoundPruner checks many machines before they are solved,
and returns columns of the table machines equal to the rows that RunningBound leads to.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dse.sim.einsum import bound_kernels, bounds
from dse.sim.einsum.evaluate import EinsumCost
from dse.sim.schedule import graph, outermost
from dse.solve.options import PIPELINED_SCHEDULES
from dse.study import pareto, prune
from dse.study.pareto import Cost, Trial, slug
from dse.study.study import Study
from hw.arch import Arch
from hw.columns import Columns, Table
from hw.component import has_units
from hw.space import decode
from workloads.arrays import Floats, Ints
from workloads.graph import Unique

BOUNDED_AT_ONCE = 1 << 16  # machines whose bounds are computed at once


class Dominated(Exception):
    """Raised when a schedule of another machine dominates all schedules of the machine at hand."""

    def __init__(self, machine: int, reason: str) -> None:
        self.machine, self.reason = machine, reason


@dataclass(slots=True)
class BoundPruner:
    """Lower bounds of a study's machines. One object serves all leases."""

    study: Study
    uniques: tuple[tuple[Unique, ...], ...]  # per workload: its distinct einsums
    # text before a machine's parameters; the digest of both is the machine's key (worker.Job)
    key_prefix: str
    table: Table = field(init=False)
    # per axis in the order of column names: its index, and the JSON text `name: value` of each value
    axis_texts: list[tuple[int, list[str]]] = field(init=False)

    def __post_init__(self) -> None:
        space = self.study.space
        self.table = Table(space)
        named = sorted((slug(axis.key), at) for at, axis in enumerate(space.axes))
        self.axis_texts = [
            (at, [f"{json.dumps(name)}: {json.dumps(value)}" for value in space.axes[at].values])
            for name, at in named
        ]

    def applies(self) -> bool:
        """True if the study prunes machines, its schedules are unfused and machines have one compute: only
        then bounds of many machines are computed at once, as columns.
        """
        return self.study.search.prune and self.bounds_are_columns()

    def bounds_are_columns(self) -> bool:
        """True if bounds of many machines are computed at once; False: machine by machine."""
        return self.study.solver.schedule == "unfused" and not has_units(self.study.space.template.nodes)

    def reason(self, solved: str = "") -> str:
        """Returns why a machine is ruled out. solved: how much of it was solved, with a space behind."""
        gap = self.study.search.gap
        within = f" within search.gap = {gap:g}" if gap else ""
        return f"bounds: {solved}dominated{within} by a schedule of another machine (dominated_by)"

    def objective_bounds(self, machines: Ints) -> Floats:
        """Returns [n, objectives], lower bounds over all schedules of each machine; inf where there is none:
        it cannot be built, or its outermost level is too small.
        """
        study = self.study
        found = np.full((len(machines), len(study.objectives)), np.inf)
        if not self.bounds_are_columns():
            for i, machine in enumerate(machines.tolist()):
                arch = decode(study.space, machine)
                if isinstance(arch, Arch) and not self.exceeds_capacity(arch):
                    lower = RunningBound(self, arch, ()).lower_bounds()
                    found[i] = prune.objective_bounds(
                        study.objectives, lower, study.weights(), arch.area_mm2()
                    )
            return found
        for first in range(0, len(machines), BOUNDED_AT_ONCE):
            built, columns = self.table.columns(machines[first : first + BOUNDED_AT_ONCE])
            lower_bounds = self.lower_bounds(columns)
            values = prune.objective_bounds_of_many(
                study.objectives, lower_bounds, study.weights(), columns.area_mm2
            )
            values[self.exceeds_capacity_of(columns)] = np.inf
            found[first + np.flatnonzero(built)] = values
        return found

    def exceeds_capacity(self, arch: Arch) -> bool:
        """True if the outermost level is too small for a workload. Such a machine is infeasible, whatever its
        bounds are.
        """
        if self.study.solver.schedule == "unfused":
            return any(outermost.overflow_unfused(arch, workload) for workload in self.study.loaded_workloads)
        return any(
            outermost.overflow_of_any(arch, workload, self.pinned())
            for workload in self.study.loaded_workloads
        )

    def pinned(self) -> bool:
        """True if weights stay on chip from one sample to the next."""
        options = self.study.solver
        return options.schedule in PIPELINED_SCHEDULES and options.weights == "pinned"

    def exceeds_capacity_of(self, columns: Columns) -> NDArray[np.bool_]:
        """Returns [n], `exceeds_capacity` of n machines, for unfused schedules."""
        found = np.zeros(len(columns.word_bits), np.bool_)
        for word in np.unique(columns.word_bits).tolist():
            need_bits = max(
                outermost.peak(outermost.lifetimes(one, word), len(one.einsums))[1]
                for one in self.study.loaded_workloads
            )
            found |= (columns.word_bits == word) & (columns.capacity_bits[:, 0] < need_bits)
        return found

    def rows(self, machines: Ints, front: Sequence[Trial]) -> tuple[NDArray[np.bool_], dict[str, pa.Array]]:
        """Returns [n] which machines the front rules out, and their columns of the table machines, except
        generation and source.
        """
        # `columns`, `lower_bounds` and `front_index` have one entry per buildable machine
        is_buildable, columns = self.table.columns(machines)
        lower_bounds = self.lower_bounds(columns)
        front_index = prune.first_dominating(
            front,
            prune.objective_bounds_of_many(
                self.study.objectives, lower_bounds, self.study.weights(), columns.area_mm2
            ),
            self.study.search.gap,
        )
        if np.isfinite(columns.capacity_bits[:, 0]).any():
            front_index = np.where(self.exceeds_capacity_of(columns), -1, front_index)
        is_dominated = np.zeros(len(machines), np.bool_)
        is_dominated[is_buildable] = front_index >= 0
        return is_dominated, self.columns_of(
            machines[is_buildable], columns, lower_bounds, front, front_index
        )

    def lower_bounds(self, columns: Columns) -> dict[str, Cost]:
        """Returns RunningBound.lower_bounds of n machines: costs by workload, each number a column [n]."""
        found = {}
        for ref, groups in zip(self.study.workloads, self.uniques, strict=True):
            pj, cycles = bound_kernels.sequential(
                ((group.einsum, group.occurrences) for group in groups), columns
            )
            found[ref.name] = cost_without_overlap(pj, cycles, columns.clock_ghz)
        return found

    def columns_of(
        self,
        machines: Ints,
        columns: Columns,
        lower_bounds: Mapping[str, Cost],
        front: Sequence[Trial],
        front_index: Ints,
    ) -> dict[str, pa.Array]:
        """Returns the columns of the dominated ones of n machines. front_index: [n], index of the front's
        schedule that dominates a machine; -1: none.
        """
        is_dominated = front_index >= 0
        dominated_bounds = {}
        for name, c in lower_bounds.items():
            parts = (c.energy_pj, c.latency_cycles, c.latency_ns, c.interval_ns)
            dominated_bounds[name] = Cost(*(np.asarray(part)[is_dominated] for part in parts))
        head = self.common_columns(
            machines[is_dominated],
            columns.area_mm2[is_dominated],
            columns.clock_ghz[is_dominated],
            columns.peak_tops[is_dominated],
            dominated_bounds,
        )  # type: ignore[arg-type]
        dominating = np.array([trial.machine for trial in front], np.int64)[front_index[is_dominated]]
        texts = constant_columns(len(dominating), status="pruned", reason=self.reason())
        return head | texts | {"dominated_by": pa.array(dominating)}

    def common_columns(
        self,
        machines: Ints,
        area_mm2: Floats,
        clock_ghz: Floats,
        peak_tops: Floats,
        lower_bounds: Mapping[str, Cost],
    ) -> dict[str, pa.Array]:
        """Returns the columns of the table machines that every machine has, pruned or not, except generation
        and source.
        """
        digits = self.table.digits(machines)
        total_bound = pareto.total(list(lower_bounds.values()), [ref.weight for ref in self.study.workloads])
        numbers = {
            "machine": machines,
            "area_mm2": area_mm2,
            "clock_ghz": clock_ghz,
            "peak_tops": peak_tops,
            "bound_energy_pj": total_bound.energy_pj,
            "bound_latency_ns": total_bound.latency_ns,
        }
        parameters = {
            slug(axis.key): pa.array(axis.values).take(pa.array(digits[:, at]))
            for at, axis in enumerate(self.study.space.axes)
        }
        columns = {name: pa.array(column) for name, column in numbers.items()}
        return columns | parameters | {"key": pa.array(self.keys(digits))}

    def keys(self, digits: Ints) -> list[str]:
        """Returns the content key of each machine. digits: [n, axes], index of its value on every axis."""
        prefix_hash, found = hashlib.sha256(self.key_prefix.encode()), []
        for row in digits[:, [at for at, _ in self.axis_texts]].tolist():
            machine_hash = prefix_hash.copy()
            pairs = [text[digit] for (_, text), digit in zip(self.axis_texts, row, strict=True)]
            machine_hash.update(f"{{{', '.join(pairs)}}}".encode())
            found.append(machine_hash.hexdigest()[:16])
        return found


@dataclass(slots=True)
class RunningBound:
    """Lower bound of a machine's costs, which rises while its einsums are solved, and the front of other
    machines' schedules that may dominate it.
    """

    pruner: BoundPruner
    arch: Arch
    front: Sequence[Trial]
    # unfused schedules: [workload][einsum] (energy, cycles), bounds until the einsum is solved, then its
    # costs; []: other schedules
    einsums: list[list[tuple[float, float]]] = field(init=False)
    solved_einsums: int = 0  # over all workloads

    def __post_init__(self) -> None:
        is_unfused = self.pruner.study.solver.schedule == "unfused"
        self.einsums = (
            [
                bounds.lower_bounds((group.einsum for group in groups), self.arch)
                for groups in self.pruner.uniques
            ]
            if is_unfused
            else []
        )

    def lower_bounds(self) -> dict[str, Cost]:
        """Returns a lower bound of each workload's cost. interval_ns is set to the latency and is no bound.

        Unfused: the sum over its einsums. Other schedules: a bound over all of them.
        """
        study, found = self.pruner.study, {}
        for i, (ref, workload, groups) in enumerate(
            zip(study.workloads, study.loaded_workloads, self.pruner.uniques, strict=True)
        ):
            pj, cycles = (
                bounds.weighted_sum([group.occurrences for group in groups], self.einsums[i])
                if self.einsums
                else graph.schedule_lower_bound(self.arch, workload, self.pruner.pinned())
            )
            found[ref.name] = cost_without_overlap(pj, cycles, self.arch.clock_ghz)
        return found

    def raise_if_dominated(self, solved: str = "") -> None:
        """Raises Dominated if a schedule of the front is better than any that the machine may have. solved:
        as of `BoundPruner.reason`.
        """
        study = self.pruner.study
        if self.front and (
            better := prune.dominating(
                self.front,
                prune.objective_bounds(
                    study.objectives, self.lower_bounds(), study.weights(), self.arch.area_mm2()
                ),
                study.search.gap,
            )
        ):
            raise Dominated(better.machine, self.pruner.reason(solved))

    def on_einsum(self, workload: int, einsum: int, cost: EinsumCost) -> None:
        """Replaces the bound of an einsum by its cost, and raises Dominated as `raise_if_dominated` does.
        After the last einsum nothing is checked: the machine has its answer.
        """
        self.einsums[workload][einsum] = cost.energy_pj, cost.latency_cycles
        self.solved_einsums += 1
        if self.solved_einsums < (einsum_count := sum(map(len, self.einsums))):
            self.raise_if_dominated(f"after {self.solved_einsums} of {einsum_count} einsums ")


def cost_without_overlap(pj: Any, cycles: Any, clock_ghz: Any) -> Cost:
    """Returns the cost of runs that do not overlap: the initiation interval is the latency. Arguments are
    numbers, or columns [n].
    """
    return Cost(pj, cycles, cycles / clock_ghz, cycles / clock_ghz)


def constant_columns(rows: int, **values: object) -> dict[str, pa.Array]:
    """Returns columns that hold one value each, in all rows."""
    return {name: pa.repeat(pa.scalar(value), rows) for name, value in values.items()}


def table_of(schema: pa.Schema, columns: Mapping[str, pa.Array], rows: int) -> pa.Table:
    """Returns a table in this schema. Columns that are not given are NULL."""
    return pa.Table.from_arrays(
        [columns[f.name].cast(f.type) if f.name in columns else pa.nulls(rows, f.type) for f in schema],
        schema=schema,
    )
