"""Unfused schedules of many machines that share the mappings of their einsums (`solver.sharing_gap`): from
machine numbers to columns of the tables machines, points and chosen. The rows equal those that
`BatchAnswers.solution` leads to, machine by machine.

A batch is all machines of a space that are equal in everything but prices, rates and clock.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from math import prod

import numpy as np
import pyarrow as pa

from cluster.pruning import BoundPruner, cost_without_overlap
from dse.mapping.nest import Infeasible
from dse.mapping.searched import Mappings, encoded
from dse.sim.einsum.evaluate import (
    ANY_MAPPING,
    UNFUSED_BOUND,
    EinsumCost,
    Problem,
    Solution,
    certificate_text,
    einsum_cost,
    gap_in_space_text,
    unfused_space,
)
from dse.sim.schedule import outermost
from dse.solve.sharing.shared_mappings import (
    LowerBounds,
    MachineBatch,
    SharedMappings,
    Sums,
    Table,
    from_parts,
    lower_bounds_of,
    machine_batch,
    sums_at,
    table,
)
from dse.solve.solve import find_shared_mappings_of, rename, sequential_solution, sequential_space
from dse.study import pareto
from dse.study import study as studies
from hw.arch import Arch
from hw.columns import Columns, concatenated, group_equal_rows
from hw.space import decode
from workloads.arrays import Floats, Ints
from workloads.graph import Unique

MAX_MACHINES = 1 << 18  # machines that share mappings at most: larger batches are split into parts
DECODE_CHUNK = 1 << 15  # machines that are decoded into columns at a time, to limit memory
BYTES_PER_MACHINE = 200  # memory that the tables of one machine take, roughly
MEMORY_SHARE = 1 / 3  # share of a node's memory that the tables of all its processes may take


@dataclass(slots=True)
class BatchAnswers:
    """A batch (or a part of one) of n machines, and its solution. machines: [n] their numbers, ascending;
    area_mm2, peak_tops: [n]; lower_bounds: per workload; tables: per workload, which mapping each machine
    uses, up to the first workload that does not fit, whose Infeasible is the last entry ([]: not solved yet).
    """

    machines: Ints
    batch: MachineBatch
    area_mm2: Floats
    peak_tops: Floats
    pruner: BoundPruner
    lower_bounds: list[LowerBounds]
    tables: list[Table | Infeasible] = field(default_factory=list)

    def solved_tables(self) -> list[Table | Infeasible]:
        """Returns `tables`; the first call solves them."""
        if not self.tables:
            distinct, tables = dict[str, Unique](), list[Table | Infeasible]()
            overflows = (
                outermost.overflow_unfused(self.batch.first, workload)
                for workload in self.pruner.study.loaded_workloads
            )
            fitting_count, first_overflow = next(
                ((i, overflow) for i, overflow in enumerate(overflows) if overflow),
                (len(self.pruner.uniques), None),
            )
            for group in chain.from_iterable(self.pruner.uniques[:fitting_count]):
                distinct.setdefault(group.key, group)
            shared_mappings = find_shared_mappings_of(
                self.batch, list(distinct.values()), self.pruner.study.solver
            )
            for groups, lower_bounds in zip(
                self.pruner.uniques[:fitting_count], self.lower_bounds, strict=False
            ):
                tables.append(
                    _workload_table(
                        self.batch,
                        groups,
                        lower_bounds,
                        shared_mappings,
                        self.pruner.study.solver.sharing_gap,
                    )
                )
                if isinstance(tables[-1], Infeasible):
                    break
            else:
                tables += [first_overflow] if first_overflow else []
            self.tables = tables
        return self.tables

    def row_of(self, machine: int) -> int:
        """Returns the row of a machine of this batch in its arrays [n]."""
        return int(np.searchsorted(self.machines, machine))

    def solution(self, machine: int, workload: int) -> list[Solution] | Infeasible:
        """One machine's solution of a workload as objects, equal to what `columns_of` gives as arrays."""
        mapping_table = self.solved_tables()[workload]
        if isinstance(mapping_table, Infeasible):
            return mapping_table
        row, options, costs = self.row_of(machine), self.pruner.study.solver, []
        arch = self.batch.machine(row)
        for e, choice, gap in zip(
            mapping_table.lower_bounds.einsums,
            mapping_table.choice[:, row].tolist(),
            from_parts(mapping_table.gaps[:, row], mapping_table.allowed_gap).tolist(),
            strict=True,
        ):
            cost = einsum_cost(Problem(arch, e, options.objective), mapping_table.mappings[choice].mapping)
            assert isinstance(cost, EinsumCost)
            costs.append(replace(cost, optimality_gap=gap, space=sequential_space(arch, e, options)))
        return sequential_solution(arch, self.pruner.uniques[workload], options, costs)


def _workload_table(
    batch: MachineBatch,
    groups: Sequence[Unique],
    lower_bounds: LowerBounds,
    shared_mappings: Mapping[str, SharedMappings | Infeasible],
    sharing_gap: float,
) -> Table | Infeasible:
    """Returns the table of one workload. Mappings get the names of its own einsums; Infeasible if one of them
    has no mapping.
    """
    renamed = []
    for group in groups:
        shared = shared_mappings[group.key]
        if isinstance(shared, Infeasible):
            return replace(shared, einsum=group.einsum.name)
        renamed.append(rename(batch, shared, group.einsum))
    return table(batch, lower_bounds, renamed, sharing_gap)


@dataclass(slots=True)
class BatchIndex:
    """All batches of a study, made when they are first asked for. structural_axes: indices of the axes that
    change more of a machine than prices, rates and clock (worker.structural_axes); memo: batches by key
    (`batch_numbers`), the one used last at the end.
    """

    pruner: BoundPruner
    structural_axes: Sequence[int]
    memo: dict[tuple[int, ...], list[BatchAnswers]] = field(default_factory=dict)

    def batch_numbers(self, machines: Ints) -> tuple[Ints, Ints]:
        """Returns (for each of `machines` [n] the number of its batch, from 0; the key of each of these
        batches [batches, k]: indices of its values on the structural axes, then which part of the batch).
        """
        space, digits = self.pruner.study.space, self.pruner.table.digits(machines)
        index_in_batch = np.zeros(len(machines), np.int64)
        for at, axis in enumerate(space.axes):
            if at not in self.structural_axes:
                index_in_batch = index_in_batch * len(axis.values) + digits[:, at]
        keys = np.column_stack([digits[:, list(self.structural_axes)], index_in_batch // self._part_size()])
        first, batch_of = group_equal_rows(keys)
        return batch_of, keys[first]

    def _part_size(self) -> int:
        """Returns how many machines a part of a batch has: at most MAX_MACHINES, as equal as possible."""
        machine_count = self._machines_per_batch()
        return -(-machine_count // -(-machine_count // MAX_MACHINES))

    def _machines_per_batch(self) -> int:
        """Returns how many machines have equal values on all structural axes."""
        return prod(
            len(axis.values)
            for at, axis in enumerate(self.pruner.study.space.axes)
            if at not in self.structural_axes
        )

    def of(self, machines: Ints) -> Iterator[tuple[BatchAnswers, Ints]]:
        """Yields (batch, indices in `machines` of those that are in this batch). Only lower bounds are
        computed here. Machines that cannot be built are in no batch.
        """
        batch_of, keys = self.batch_numbers(machines)
        for i, key in enumerate(map(tuple, keys.tolist())):
            rows = np.flatnonzero(batch_of == i)
            for answers in self._cached(key):
                found_rows = np.searchsorted(answers.machines, machines[rows])
                indices = rows[
                    (found_rows < len(answers.machines))
                    & (answers.machines[np.minimum(found_rows, len(answers.machines) - 1)] == machines[rows])
                ]
                if len(indices):
                    yield answers, indices

    def _cached(self, key: tuple[int, ...]) -> list[BatchAnswers]:
        """Returns the BatchAnswers of a key, from the memo if it has them. Else they are made anew, after
        batches used longest ago are dropped until the others fit into MEMORY_SHARE.
        """
        if key in self.memo:
            self.memo[key] = self.memo.pop(key)
        else:
            node_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
            max_cached_machines = (
                0
                if self._visits_in_order()
                else MEMORY_SHARE * node_bytes / (os.cpu_count() or 1) / BYTES_PER_MACHINE
            )
            while (
                self.memo
                and sum(len(part.machines) for parts in self.memo.values() for part in parts)
                > max_cached_machines
            ):
                del self.memo[next(iter(self.memo))]
            self.memo[key] = self._batches_with_bounds(key)
        return self.memo[key]

    def _visits_in_order(self) -> bool:
        """True if the search visits batch after batch: machines in ascending order, structural axes slowest.
        No batch is needed again then, so that the memo holds one only.
        """
        varying = [at for at, axis in enumerate(self.pruner.study.space.axes) if len(axis.values) > 1]
        structural = [at for at in varying if at in self.structural_axes]
        return self.pruner.study.search.method == "exhaustive" and varying[: len(structural)] == structural

    def _batches_with_bounds(self, key: tuple[int, ...]) -> list[BatchAnswers]:
        """Returns the BatchAnswers of a key: its machines that can be built, grouped by structure, with lower
        bounds.
        """
        space = self.pruner.study.space
        part_size = self._part_size()
        fixed = dict(zip(self.structural_axes, key, strict=False))
        index_in_batch = np.arange(
            key[-1] * part_size, min((key[-1] + 1) * part_size, self._machines_per_batch()), dtype=np.int64
        )
        numbers, stride = np.zeros(len(index_in_batch), np.int64), 1
        for at in range(len(space.axes) - 1, -1, -1):
            value_count = len(space.axes[at].values)
            if at in fixed:
                numbers += fixed[at] * stride
            else:
                index_in_batch, digit = np.divmod(index_in_batch, value_count)
                numbers += digit * stride
            stride *= value_count
        chunks = [
            self.pruner.table.columns(numbers[at : at + DECODE_CHUNK])
            for at in range(0, len(numbers), DECODE_CHUNK)
        ]
        numbers = numbers[np.concatenate([built for built, _ in chunks])]
        columns = concatenated([chunk for _, chunk in chunks])
        # structural axes are found from a sample of values: machines may still differ in more than prices
        first, shape_of = group_equal_rows(columns.shape)
        rows_by_shape = (np.flatnonzero(shape_of == i) for i in range(len(first)))
        return [_batch_answers(numbers[rows], columns.take(rows), self.pruner) for rows in rows_by_shape]


def _batch_answers(machines: Ints, columns: Columns, pruner: BoundPruner) -> BatchAnswers:
    """Returns machines of one structure as BatchAnswers, with lower bounds; nothing is solved yet. columns:
    of these machines.
    """

    def built(i: int) -> Arch:
        found = decode(pruner.study.space, int(machines[i]))
        assert isinstance(found, Arch)
        return found

    batch = machine_batch(built(0), columns, built)
    lower_bounds = [
        lower_bounds_of(batch, [group.einsum for group in groups], [group.occurrences for group in groups])
        for groups in pruner.uniques
    ]
    return BatchAnswers(machines, batch, columns.area_mm2, columns.peak_tops, pruner, lower_bounds)


def columns_of(
    answers: BatchAnswers, rows: Ints
) -> tuple[dict[str, pa.Array], dict[str, pa.Array], list[dict[str, pa.Array]]]:
    """Returns columns for m machines of a batch in which all workloads fit: of the table machines (without
    generation and source), of points, and of chosen, one set per workload.

    rows: [m], rows of these machines in the batch
    """
    pruner, study = answers.pruner, answers.pruner.study
    clock = answers.batch.clock_ghz[rows]
    area = answers.area_mm2[rows]
    costs = dict[str, pareto.Cost]()
    lower_bounds = dict[str, pareto.Cost]()
    chosen = []
    weakest_proofs: list[tuple[float, float, str]] = []
    for ref, mapping_table, groups in zip(
        study.workloads, answers.solved_tables(), pruner.uniques, strict=True
    ):
        assert isinstance(mapping_table, Table)
        sums = sums_at(answers.batch, mapping_table, rows)
        costs[ref.name] = _cost(sums.energy_pj, sums.latency_cycles, sums.initiation_interval_cycles, clock)
        lower_bounds[ref.name] = cost_without_overlap(sums.bound_pj, sums.bound_cycles, clock)
        spaces = [
            sequential_space(answers.batch.first, e, study.solver) for e in mapping_table.lower_bounds.einsums
        ]
        proofs = _proofs(spaces, sums, sum(group.occurrences for group in groups) == 1)
        pairs = zip(weakest_proofs or proofs, proofs, strict=True)
        weakest_proofs = [max(pair, key=lambda one: one[1]) for pair in pairs]
        chosen.append(_choices(mapping_table, [encoded(space) for space in spaces], sums, rows))
    machines, proof_columns = answers.machines[rows], ("optimality_gap", "gap_to_bound", "certificate")
    columns = studies.points(study, machines, area, costs) | {"machine": machines}
    columns |= dict(zip(proof_columns, zip(*weakest_proofs, strict=True), strict=True))
    points = {name: pa.array(column) for name, column in columns.items()}
    head = pruner.common_columns(machines, area, clock, answers.peak_tops[rows], lower_bounds)
    return head, points, chosen


def _cost(pj: Floats, cycles: Floats, interval_cycles: Floats, clock_ghz: Floats) -> pareto.Cost:
    return pareto.Cost(pj, cycles, cycles / clock_ghz, interval_cycles / clock_ghz)  # type: ignore[arg-type]


def infeasible_columns(answers: BatchAnswers, rows: Ints) -> dict[str, pa.Array]:
    """Returns columns of the table machines (without generation, source, status and reason) for m machines of
    a batch in which a workload does not fit. rows: [m], their rows in the batch.
    """
    clock, lower_bounds = answers.batch.clock_ghz[rows], dict[str, pareto.Cost]()
    for ref, workload_bounds in zip(answers.pruner.study.workloads, answers.lower_bounds, strict=True):
        lower_bounds[ref.name] = cost_without_overlap(
            *map(workload_bounds.total, workload_bounds.on_machines(answers.batch, rows)), clock
        )
    return answers.pruner.common_columns(
        answers.machines[rows], answers.area_mm2[rows], clock, answers.peak_tops[rows], lower_bounds
    )


def _proofs(spaces: Sequence[Mappings], sums: Sums, is_single_einsum: bool) -> list[tuple[float, float, str]]:
    """Returns (optimality_gap, gap_to_bound, certificate) of each machine, as evaluate.sequential gives them.
    is_single_einsum: the workload is a single einsum.
    """
    space, bound_name = (
        unfused_space(spaces, is_single_einsum),
        ANY_MAPPING if is_single_einsum else UNFUSED_BOUND,
    )
    return [
        (gap, bound, certificate_text(gap_in_space_text(gap), bound, bound_name, space))
        for gap, bound in zip(sums.optimality_gap.tolist(), sums.gap_to_bound.tolist(), strict=True)
    ]


def _choices(mapping_table: Table, spaces: Sequence[str], sums: Sums, rows: Ints) -> dict[str, pa.Array]:
    """Returns columns of the table chosen, without those of its key, for m machines. They hold the mapping of
    each einsum; `space`, the searched space of most of its einsums that are proven optimal; and of those with
    a gap or another space: their indices (`places`), gaps and spaces.

    spaces: searched space of each einsum
    rows: [m], rows of the machines in the batch
    """
    first, pattern_of = group_equal_rows(sums.gaps.T > 0)
    common_spaces = []
    for has_gap in (sums.gaps.T[first] > 0).tolist():
        proven = [s for s, gap in zip(spaces, has_gap, strict=True) if not gap]
        common_spaces.append(max(sorted(set(proven)), default="", key=proven.count))
    common_space = np.array(common_spaces, object)[pattern_of]
    is_exception = (sums.gaps.T > 0) | (np.array(spaces, object)[None, :] != common_space[:, None])
    offsets, has_none = np.concatenate([[0], np.cumsum(is_exception.sum(axis=1))]), ~is_exception.any(axis=1)
    row, einsum = np.nonzero(is_exception)
    lists = {
        "places": pa.array(einsum, pa.int32()),
        "gaps": pa.array(sums.gaps.T[row, einsum]),
        "spaces": pa.DictionaryArray.from_arrays(pa.array(einsum, pa.int32()), pa.array(spaces)).cast(
            pa.string()
        ),
    }
    list_columns = {
        name: pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values, mask=pa.array(has_none))
        for name, values in lists.items()
    }
    mapping_keys = pa.array([one.mapping_key for one in mapping_table.mappings])
    keys = {
        studies.mapping_column(i): mapping_keys.take(pa.array(choice))
        for i, choice in enumerate(mapping_table.choice[:, rows])
    }
    return {**keys, "space": pa.array(common_space, pa.string()), **list_columns}


def distinct_mappings(answers: BatchAnswers, rows: Ints) -> list[tuple[EinsumCost, Unique]]:
    """Returns the distinct mappings that m machines of a batch use, each with its einsum. rows: [m], rows of
    these machines in the batch.
    """
    found: dict[str, tuple[EinsumCost, Unique]] = {}
    for mapping_table, groups in zip(answers.solved_tables(), answers.pruner.uniques, strict=False):
        for choice, group in zip(
            mapping_table.choice[:, rows] if isinstance(mapping_table, Table) else (), groups, strict=False
        ):
            for k in np.unique(choice).tolist():
                found.setdefault(mapping_table.mappings[k].mapping_key, (mapping_table.mappings[k], group))
    return list(found.values())
