"""Unfused schedules of many machines that share the mappings of their einsums (`solver.sharing_gap`): from
machine numbers to columns of the tables machines, points and chosen. The rows equal those that
`BatchAnswers.solution` leads to, machine by machine.

A batch is machines of one family (`Arch.family`): equal but for prices, rates, clock, capacities and PEs of
arrays.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from math import prod

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cluster.pruning import BoundPruner, cost_without_overlap
from dse.explain import derived
from dse.mapper.exact.optimal import none_fits
from dse.mapping.constraints import dataflow
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
from dse.solve.front import Chosen
from dse.solve.sharing.shared_fronts import SharedFronts
from dse.solve.sharing.shared_mappings import (
    NONE_FITS,
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
from dse.solve.solve import (
    find_shared_fronts_of,
    find_shared_mappings_of,
    front_solutions,
    rename,
    sequential_space,
)
from dse.solve.stored import sequential_solution
from dse.study import pareto
from dse.study import study as studies
from dse.study.sampler import generation_machines, generation_range, generations_of, positions_of
from hw.arch import Arch
from hw.columns import Columns, concatenated, group_equal_rows
from hw.space import decode
from workloads.arrays import Bools, Floats, Ints
from workloads.einsum import Einsum
from workloads.graph import Unique

MAX_MACHINES = 1 << 10  # machines that share mappings at most: larger batches are split into parts
DECODE_CHUNK = 1 << 15  # machines that are decoded into columns at a time, to limit memory
BYTES_PER_MACHINE = 2_000  # memory that the tables of one machine take, roughly
MEMORY_SHARE = 1 / 3  # share of a node's memory that the tables of all its processes may take


@dataclass(slots=True)
class BatchAnswers:
    """A batch (or a part of one) of n machines, and its solution. machines: [n] their numbers, ascending;
    area_mm2, peak_tops: [n]; lower_bounds: per workload; tables: per workload, which mapping each machine
    uses, up to the first workload that fits no machine's outermost level, whose Infeasible is the last entry
    ([]: not solved yet).
    """

    machines: Ints
    batch: MachineBatch
    area_mm2: Floats
    peak_tops: Floats
    pruner: BoundPruner
    lower_bounds: list[LowerBounds]
    tables: list[Table | FrontTable | Infeasible] = field(default_factory=list)

    def solved_tables(self) -> list[Table | FrontTable | Infeasible]:
        """Returns `tables`; the first call solves them."""
        if not self.tables:
            overflows = (
                outermost.overflow_unfused(self.batch.first, workload)
                for workload in self.pruner.study.loaded_workloads
            )
            fitting_count, first_overflow = next(
                ((i, overflow) for i, overflow in enumerate(overflows) if overflow),
                (len(self.pruner.uniques), None),
            )
            fitting, options = self.pruner.uniques[:fitting_count], self.pruner.study.solver
            tables: list[Table | FrontTable | Infeasible] = []
            if options.objective == "front":
                tables += [
                    FrontTable(
                        tuple(g.einsum for g in groups), find_shared_fronts_of(self.batch, groups, options)
                    )
                    for groups in fitting
                ]
            elif fitting:
                shared = find_shared_mappings_of(self.batch, fitting, options)
                tables += [
                    _workload_table(self.batch, *of_workload, options.sharing_gap)
                    for of_workload in zip(fitting, self.lower_bounds, shared, strict=False)
                ]
            self.tables = [*tables, *([first_overflow] if first_overflow else [])]
        return self.tables

    def unfit(self, row: int) -> tuple[int, Infeasible] | None:
        """Returns the first workload of which an einsum fits no mapping on a machine, as an index, and why;
        None if all fit. row: of the machine in the batch.
        """
        options = self.pruner.study.solver
        for workload, mapping_table in enumerate(self.solved_tables()):
            if isinstance(mapping_table, Infeasible):
                return workload, mapping_table
            for i in np.flatnonzero(mapping_table.choice[:, row] == NONE_FITS).tolist():
                arch, e = self.batch.machine(row), mapping_table.einsums[i]
                return workload, none_fits(Problem(arch, e, "energy"), dataflow(options.dataflow, e, arch))
        return None

    def fits(self, rows: Ints) -> Bools:
        """Returns [m] on which machines all workloads fit. rows: [m], rows of the machines in the batch."""
        fits = [not isinstance(one, Infeasible) and one.fits[rows] for one in self.solved_tables()]
        return np.logical_and.reduce([np.broadcast_to(one, rows.shape) for one in fits])

    def row_of(self, machine: int) -> int:
        """Returns the row of a machine of this batch in its arrays [n]."""
        return int(np.searchsorted(self.machines, machine))

    def solution(self, machine: int, workload: int) -> list[Solution] | Infeasible:
        """One machine's solution of a workload as objects, equal to what `columns_of` gives as arrays."""
        row, options, costs = self.row_of(machine), self.pruner.study.solver, []
        if (unfit := self.unfit(row)) and unfit[0] <= workload:
            return unfit[1]
        mapping_table = self.solved_tables()[workload]
        assert not isinstance(mapping_table, Infeasible)
        arch = self.batch.machine(row)
        if isinstance(mapping_table, FrontTable):
            choices, gap = mapping_table.on(arch, row)
            return front_solutions(arch, self.pruner.uniques[workload], options, choices, gap)
        for e, choice, gap in zip(
            mapping_table.einsums,
            mapping_table.choice[:, row].tolist(),
            from_parts(mapping_table.gaps[:, row], mapping_table.allowed_gap).tolist(),
            strict=True,
        ):
            cost = einsum_cost(Problem(arch, e, options.objective), mapping_table.mappings[choice].mapping)
            assert isinstance(cost, EinsumCost)
            costs.append(replace(cost, optimality_gap=gap, space=sequential_space(arch, e, options)))
        return sequential_solution(arch, self.pruner.uniques[workload], options, costs)


@dataclass(frozen=True, slots=True)
class FrontTable:
    """Fronts of a workload of E distinct einsums, unfused, with shared mappings on a batch of n machines."""

    einsums: tuple[Einsum, ...]
    fronts: SharedFronts

    @property
    def choice(self) -> NDArray[np.int16]:
        """[E, n] number of a mapping, NONE_FITS or NOT_SEARCHED."""
        return self.fronts.choice

    @property
    def fits(self) -> Bools:
        """[n] on which machines every einsum has a mapping."""
        return np.asarray((self.choice >= 0).all(axis=0))

    def on(self, arch: Arch, row: int) -> Chosen:
        """Returns the choices of mappings of one machine's front, and their gap."""
        choices = self.fronts.rows[row].tolist()

        @cache
        def priced(einsum: int, number: int) -> EinsumCost:
            problem = Problem(arch, self.einsums[einsum], "energy")
            found = einsum_cost(problem, self.fronts.nests[einsum][number])
            assert isinstance(found, EinsumCost)
            return found

        return [[priced(*one) for one in enumerate(choice)] for choice in choices], float(
            self.fronts.gaps[row]
        )


def _workload_table(
    batch: MachineBatch,
    groups: Sequence[Unique],
    lower_bounds: LowerBounds,
    shared_mappings: Mapping[str, SharedMappings],
    sharing_gap: float,
) -> Table:
    """Returns the table of one workload. Mappings get the names of its own einsums."""
    renamed = [rename(batch, shared_mappings[group.key], group.einsum) for group in groups]
    return table(batch, lower_bounds, renamed, sharing_gap)


@dataclass(slots=True)
class BatchIndex:
    """All batches of a study, made when they are first asked for. family_axes, order: indices of axes that
    change a machine's family, and of the others, in the order in which batches are split into parts
    (`worker.batch_axes`); memo: batches by key (`batch_numbers`), the one used last at the end.
    """

    pruner: BoundPruner
    family_axes: Sequence[int]
    order: Sequence[int]
    memo: dict[tuple[int, ...], list[BatchAnswers]] = field(default_factory=dict)

    def batch_numbers(self, machines: Ints) -> tuple[Ints, Ints]:
        """Returns (for each of `machines` [n] the number of its batch, from 0; the key of each of these
        batches [batches, k]: its generation where machines are drawn at random, else indices of its values on
        the family axes; then which part of these).
        """
        space, search = self.pruner.study.space, self.pruner.study.search
        if search.method == "random":
            positions = positions_of(space.size, search.seed, machines)
            generations = generations_of(search, positions)
            distinct, which = np.unique(generations, return_inverse=True)
            firsts = np.array([generation_range(search, space.size, g)[0] for g in distinct.tolist()])
            keys = np.column_stack([generations, (positions - firsts[which]) // MAX_MACHINES])
        else:
            digits = self.pruner.table.digits(machines)
            index_in_batch = np.zeros(len(machines), np.int64)
            for at in self.order:
                index_in_batch = index_in_batch * len(space.axes[at].values) + digits[:, at]
            keys = np.column_stack([digits[:, list(self.family_axes)], index_in_batch // self._part_size()])
        first, batch_of = group_equal_rows(keys)
        return batch_of, keys[first]

    def _part_size(self) -> int:
        """Returns how many machines a part of a batch has: at most MAX_MACHINES, as equal as possible."""
        machine_count = self._machines_per_batch()
        return -(-machine_count // -(-machine_count // MAX_MACHINES))

    def _machines_per_batch(self) -> int:
        """Returns how many machines have equal values on all family axes."""
        return prod(len(self.pruner.study.space.axes[at].values) for at in self.order)

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
        """True if the search visits batch after batch: machines in ascending order, which is that of the
        batches. No batch is needed again then, so that the memo holds one only.
        """
        axes = self.pruner.study.space.axes
        varying = [at for at in (*self.family_axes, *self.order) if len(axes[at].values) > 1]
        return self.pruner.study.search.method == "exhaustive" and varying == sorted(varying)

    def _machines_of(self, key: tuple[int, ...]) -> Ints:
        """Returns the machines of a batch, those that cannot be built among them."""
        space, search = self.pruner.study.space, self.pruner.study.search
        if search.method == "random":
            machines = generation_machines(search, space.size, key[0])
            return machines[key[1] * MAX_MACHINES : (key[1] + 1) * MAX_MACHINES]
        part_size, digits = self._part_size(), dict(zip(self.family_axes, key, strict=False))
        index_in_batch = np.arange(
            key[-1] * part_size, min((key[-1] + 1) * part_size, self._machines_per_batch()), dtype=np.int64
        )
        for at in reversed(self.order):
            index_in_batch, digits[at] = np.divmod(index_in_batch, len(space.axes[at].values))
        numbers, stride = np.zeros(len(index_in_batch), np.int64), 1
        for at in range(len(space.axes) - 1, -1, -1):
            numbers += digits[at] * stride
            stride *= len(space.axes[at].values)
        return numbers

    def _batches_with_bounds(self, key: tuple[int, ...]) -> list[BatchAnswers]:
        """Returns the BatchAnswers of a key: its machines that can be built, grouped by family and outermost
        capacity, with lower bounds.
        """
        numbers = np.sort(self._machines_of(key))
        chunks = [
            self.pruner.table.columns(numbers[at : at + DECODE_CHUNK])
            for at in range(0, len(numbers), DECODE_CHUNK)
        ]
        numbers = numbers[np.concatenate([built for built, _ in chunks])]
        columns = concatenated([chunk for _, chunk in chunks])
        # family axes are found from a sample of values: machines may still be of several families
        kinds = np.column_stack([columns.family, columns.capacity_bits[:, 0]])
        if self.pruner.study.solver.dataflow != "free":  # its rules may ask for a number of PEs
            kinds = columns.structure
        first, family_of = group_equal_rows(kinds)
        rows_by_family = (np.flatnonzero(family_of == i) for i in range(len(first)))
        return [_batch_answers(numbers[rows], columns.take(rows), self.pruner) for rows in rows_by_family]


def _batch_answers(machines: Ints, columns: Columns, pruner: BoundPruner) -> BatchAnswers:
    """Returns machines of one family as BatchAnswers, with lower bounds; nothing is solved yet. columns:
    of these machines.
    """

    def built(i: int) -> Arch:
        found = decode(pruner.study.space, int(machines[i]))
        assert isinstance(found, Arch)
        return found

    batch = machine_batch(built(0), columns, built, pruner.study.solver.single_objective)
    lower_bounds = [
        lower_bounds_of(batch, [group.einsum for group in groups], [group.occurrences for group in groups])
        for groups in pruner.uniques
    ]
    return BatchAnswers(machines, batch, columns.area_mm2, columns.peak_tops, pruner, lower_bounds)


def columns_of(
    answers: BatchAnswers, rows: Ints
) -> tuple[dict[str, pa.Array], dict[str, pa.Array], list[dict[str, pa.Array]]]:
    """Returns columns for m machines of a batch on which all workloads fit: of the table machines (without
    generation and source), of points, and of chosen, one set per workload.

    rows: [m], rows of these machines in the batch
    """
    pruner, study = answers.pruner, answers.pruner.study
    clock = answers.batch.clock_ghz[rows]
    area = answers.area_mm2[rows]
    costs = dict[str, pareto.Cost]()
    lower_bounds = dict[str, pareto.Cost]()
    chosen = []
    gaps, gaps_to_bound, certificates = list[Floats](), list[Floats](), list[list[str]]()
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
        gaps.append(sums.optimality_gap)
        gaps_to_bound.append(sums.gap_to_bound)
        certificates.append(_certificates(spaces, sums, sum(group.occurrences for group in groups) == 1))
        chosen.append(_choices(mapping_table, [encoded(space) for space in spaces], sums, rows))
    machines = answers.machines[rows]
    bound = pareto.total([*lower_bounds.values()], [*study.weights().values()])
    columns = studies.points(study, machines, area, costs) | {"machine": machines}
    proofs = derived.proofs(study, costs, bound, gaps, gaps_to_bound, certificates)
    points = {name: pa.array(column) for name, column in (columns | proofs).items()}
    head = pruner.common_columns(machines, area, clock, answers.peak_tops[rows], lower_bounds)
    return head, points, chosen


def _cost(pj: Floats, cycles: Floats, interval_cycles: Floats, clock_ghz: Floats) -> pareto.Cost:
    return pareto.Cost(pj, cycles, cycles / clock_ghz, interval_cycles / clock_ghz)  # type: ignore[arg-type]


def _certificates(spaces: Sequence[Mappings], sums: Sums, is_single_einsum: bool) -> list[str]:
    """Returns the certificate of each machine, as evaluate.sequential gives it.
    is_single_einsum: the workload is a single einsum.
    """
    space, bound_name = (
        unfused_space(spaces, is_single_einsum),
        ANY_MAPPING if is_single_einsum else UNFUSED_BOUND,
    )
    return [
        certificate_text(gap_in_space_text(gap), bound, bound_name, space)
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


def distinct_mappings(answers: BatchAnswers, rows: Ints) -> list[tuple[EinsumCost, Unique, Arch]]:
    """Returns the distinct mappings that m machines of a batch use, each with its einsum and a machine of the
    family. rows: [m], rows of these machines in the batch.
    """
    found: dict[str, tuple[EinsumCost, Unique, Arch]] = {}
    for mapping_table, groups in zip(answers.solved_tables(), answers.pruner.uniques, strict=False):
        for choice, group in zip(
            mapping_table.choice[:, rows] if isinstance(mapping_table, Table) else (), groups, strict=False
        ):
            for k in np.unique(choice[choice >= 0]).tolist():
                cost = mapping_table.mappings[k]
                found.setdefault(cost.mapping_key, (cost, group, answers.batch.first))
    return list(found.values())
