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

from cluster.pruning import BoundPruner, at_latency
from dse.mapping.nest import Infeasible
from dse.mapping.searched import Mappings, encoded
from dse.sim.einsum.evaluate import (
    ANY_MAPPING,
    UNFUSED,
    EinsumCost,
    Problem,
    Solution,
    certificate_text,
    einsum_cost,
    gap_in_space_text,
    unfused,
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
from hw.columns import Columns, group_equal_rows, joined
from hw.space import decode
from workloads.arrays import Floats, Ints
from workloads.graph import Unique

MAX_MACHINES = 1 << 18  # machines that share mappings at most: larger batches are split into parts
PART = 1 << 15  # machines that are decoded into columns at a time, to limit memory
BYTES = 200  # memory that the tables of one machine take, roughly
SHARE = 1 / 3  # share of a node's memory that the tables of all its processes may take


@dataclass(slots=True)
class BatchAnswers:
    """A batch (or a part of one) of n machines, and its solution. machines: [n] their numbers, ascending;
    area_mm2: [n]; lower_bounds: per workload; tables: per workload, which mapping each machine uses, up to
    the first workload that does not fit, whose Infeasible is the last entry ([]: not solved yet).
    """

    machines: Ints
    batch: MachineBatch
    area_mm2: Floats
    pruner: BoundPruner
    lower_bounds: list[LowerBounds]
    tables: list[Table | Infeasible] = field(default_factory=list)

    def solved_tables(self) -> list[Table | Infeasible]:
        """Returns `tables`; the first call solves them."""
        if not self.tables:
            first, found = dict[str, Unique](), list[Table | Infeasible]()
            each = (outermost.sequential(self.batch.first, workload) for workload in self.pruner.study.loaded)
            place, short = next(
                ((i, one) for i, one in enumerate(each) if one), (len(self.pruner.uniques), None)
            )
            for group in chain.from_iterable(self.pruner.uniques[:place]):
                first.setdefault(group.key, group)
            own = find_shared_mappings_of(self.batch, list(first.values()), self.pruner.study.solver)
            for groups, least in zip(self.pruner.uniques[:place], self.lower_bounds, strict=False):
                found.append(_table(self.batch, groups, least, own, self.pruner.study.solver.sharing_gap))
                if isinstance(found[-1], Infeasible):
                    break
            else:
                found += [short] if short else []
            self.tables = found
        return self.tables

    def place(self, machine: int) -> int:
        """Returns the row of a machine of this batch in its arrays [n]."""
        return int(np.searchsorted(self.machines, machine))

    def solution(self, machine: int, workload: int) -> list[Solution] | Infeasible:
        """One machine's solution of a workload as objects, equal to what `columns_of` gives as arrays."""
        own = self.solved_tables()[workload]
        if isinstance(own, Infeasible):
            return own
        at, options, costs = self.place(machine), self.pruner.study.solver, []
        arch = self.batch.machine(at)
        for e, choice, gap in zip(
            own.lower_bounds.einsums,
            own.choice[:, at].tolist(),
            from_parts(own.gaps[:, at], own.share).tolist(),
            strict=True,
        ):
            cost = einsum_cost(Problem(arch, e, options.objective), own.mappings[choice].mapping)
            assert isinstance(cost, EinsumCost)
            costs.append(replace(cost, optimality_gap=gap, space=sequential_space(arch, e, options)))
        return sequential_solution(arch, self.pruner.uniques[workload], options, costs)


def _table(
    c: MachineBatch,
    groups: Sequence[Unique],
    least: LowerBounds,
    known: Mapping[str, SharedMappings | Infeasible],
    share: float,
) -> Table | Infeasible:
    """Returns the table of one workload. Mappings get the names of its own einsums; Infeasible if one of them
    has no mapping.
    """
    each = []
    for group in groups:
        one = known[group.key]
        if isinstance(one, Infeasible):
            return replace(one, einsum=group.einsum.name)
        each.append(rename(c, one, group.einsum))
    return table(c, least, each, share)


@dataclass(slots=True)
class BatchIndex:
    """All batches of a study, made when they are first asked for. structural_axes: indices of the axes that
    change more of a machine than prices, rates and clock (worker.structural_axes); memo: batches by key
    (`batches`), the one used last at the end.
    """

    pruner: BoundPruner
    structural_axes: Sequence[int]
    memo: dict[tuple[int, ...], list[BatchAnswers]] = field(default_factory=dict)

    def batches(self, machines: Ints) -> tuple[Ints, Ints]:
        """Returns (for each of `machines` [n] the number of its batch, from 0; the key of each of these
        batches [batches, k]: indices of its values on the structural axes, then which part of the batch).
        """
        space, digits = self.pruner.study.space, self.pruner.table.digits(machines)
        rank = np.zeros(len(machines), np.int64)
        for at, axis in enumerate(space.axes):
            if at not in self.structural_axes:
                rank = rank * len(axis.values) + digits[:, at]
        names = np.column_stack([digits[:, list(self.structural_axes)], rank // self._part()])
        first, which = group_equal_rows(names)
        return which, names[first]

    def _part(self) -> int:
        """Returns how many machines a part of a batch has: at most MAX_MACHINES, as equal as possible."""
        many = self._many()
        return -(-many // -(-many // MAX_MACHINES))

    def _many(self) -> int:
        return prod(
            len(axis.values)
            for at, axis in enumerate(self.pruner.study.space.axes)
            if at not in self.structural_axes
        )

    def of(self, machines: Ints) -> Iterator[tuple[BatchAnswers, Ints]]:
        """Yields the batches that hold some of these machines, each with the indices of these in `machines`.
        Only lower bounds are computed here. Machines that cannot be built are in no batch.
        """
        which, names = self.batches(machines)
        for i, name in enumerate(map(tuple, names.tolist())):
            rows = np.flatnonzero(which == i)
            for block in self._cached(name):
                at = np.searchsorted(block.machines, machines[rows])
                own = rows[
                    (at < len(block.machines))
                    & (block.machines[np.minimum(at, len(block.machines) - 1)] == machines[rows])
                ]
                if len(own):
                    yield block, own

    def _cached(self, name: tuple[int, ...]) -> list[BatchAnswers]:
        if name in self.memo:
            self.memo[name] = self.memo.pop(name)
        else:
            node_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
            room = 0 if self._in_order_of_numbers() else SHARE * node_bytes / (os.cpu_count() or 1) / BYTES
            while self.memo and sum(len(one.machines) for own in self.memo.values() for one in own) > room:
                del self.memo[next(iter(self.memo))]
            self.memo[name] = self._make(name)
        return self.memo[name]

    def _in_order_of_numbers(self) -> bool:
        """True if the search visits batch after batch: machines in ascending order, structural axes slowest.
        No batch is needed again then, so that the memo holds one only.
        """
        several = [at for at, axis in enumerate(self.pruner.study.space.axes) if len(axis.values) > 1]
        outermost = [at for at in several if at in self.structural_axes]
        return self.pruner.study.search.method == "exhaustive" and several[: len(outermost)] == outermost

    def _make(self, name: tuple[int, ...]) -> list[BatchAnswers]:
        space = self.pruner.study.space
        part = self._part()
        fixed = dict(zip(self.structural_axes, name, strict=False))
        rank = np.arange(name[-1] * part, min((name[-1] + 1) * part, self._many()), dtype=np.int64)
        numbers, stride = np.zeros(len(rank), np.int64), 1
        for at in range(len(space.axes) - 1, -1, -1):
            many = len(space.axes[at].values)
            if at in fixed:
                numbers += fixed[at] * stride
            else:
                rank, digit = np.divmod(rank, many)
                numbers += digit * stride
            stride *= many
        some = [self.pruner.table.columns(numbers[at : at + PART]) for at in range(0, len(numbers), PART)]
        numbers = numbers[np.concatenate([built for built, _ in some])]
        columns = joined([own for _, own in some])
        # structural axes are found from a sample of values: machines may still differ in more than prices
        first, kind = group_equal_rows(columns.shape)
        kinds = (np.flatnonzero(kind == i) for i in range(len(first)))
        return [_batch_answers(numbers[rows], columns.take(rows), self.pruner) for rows in kinds]


def _batch_answers(machines: Ints, columns: Columns, pruner: BoundPruner) -> BatchAnswers:
    def built(i: int) -> Arch:
        found = decode(pruner.study.space, int(machines[i]))
        assert isinstance(found, Arch)
        return found

    own = machine_batch(built(0), columns, built)
    least = [
        lower_bounds_of(own, [one.einsum for one in groups], [one.occurrences for one in groups])
        for groups in pruner.uniques
    ]
    return BatchAnswers(machines, own, columns.area_mm2, pruner, least)


def columns_of(
    block: BatchAnswers, at: Ints
) -> tuple[dict[str, pa.Array], dict[str, pa.Array], list[dict[str, pa.Array]]]:
    """Returns columns for m machines of a batch in which all workloads fit: of the table machines (without
    generation and source), of points, and of chosen, one set per workload.

    at: [m], rows of these machines in the batch
    """
    pruner, study = block.pruner, block.pruner.study
    clock = block.batch.clock_ghz[at]
    area = block.area_mm2[at]
    costs = dict[str, pareto.Cost]()
    floors = dict[str, pareto.Cost]()
    chosen = []
    worst: list[tuple[float, float, str]] = []
    for ref, own, groups in zip(study.workloads, block.solved_tables(), pruner.uniques, strict=True):
        assert isinstance(own, Table)
        sums = sums_at(block.batch, own, at)
        costs[ref.name] = _cost(sums.energy_pj, sums.latency_cycles, sums.initiation_interval_cycles, clock)
        floors[ref.name] = at_latency(sums.bound_pj, sums.bound_cycles, clock)
        spaces = [sequential_space(block.batch.first, e, study.solver) for e in own.lower_bounds.einsums]
        proof = _proofs(spaces, sums, sum(group.occurrences for group in groups) == 1)
        pairs = zip(worst or proof, proof, strict=True)
        worst = [max(pair, key=lambda one: one[1]) for pair in pairs]
        chosen.append(_choices(own, [encoded(space) for space in spaces], sums, at))
    machines, proof_columns = block.machines[at], ("optimality_gap", "gap_to_bound", "certificate")
    columns = studies.points(study, machines, area, costs) | {"machine": machines}
    columns |= dict(zip(proof_columns, zip(*worst, strict=True), strict=True))
    points = {name: pa.array(column) for name, column in columns.items()}
    return pruner.head(machines, area, clock, floors), points, chosen


def _cost(pj: Floats, cycles: Floats, steady: Floats, clock_ghz: Floats) -> pareto.Cost:
    return pareto.Cost(pj, cycles, cycles / clock_ghz, steady / clock_ghz)  # type: ignore[arg-type]


def infeasible_columns(block: BatchAnswers, at: Ints) -> dict[str, pa.Array]:
    """Returns columns of the table machines (without generation, source and why) for machines of a batch in
    which a workload does not fit. at: their rows in the batch.
    """
    clock, floors = block.batch.clock_ghz[at], dict[str, pareto.Cost]()
    for ref, own in zip(block.pruner.study.workloads, block.lower_bounds, strict=True):
        floors[ref.name] = at_latency(*map(own.total, own.at(block.batch, at)), clock)
    return block.pruner.head(block.machines[at], block.area_mm2[at], clock, floors)


def _proofs(spaces: Sequence[Mappings], sums: Sums, alone: bool) -> list[tuple[float, float, str]]:
    """Returns (optimality_gap, gap_to_bound, certificate) of each machine, as evaluate.sequential gives them.
    alone: the workload is a single einsum.
    """
    space, over = unfused(spaces, alone), ANY_MAPPING if alone else UNFUSED
    return [
        (gap, bound, certificate_text(gap_in_space_text(gap), bound, over, space))
        for gap, bound in zip(sums.optimality_gap.tolist(), sums.gap_to_bound.tolist(), strict=True)
    ]


def _choices(own: Table, spaces: Sequence[str], sums: Sums, at: Ints) -> dict[str, pa.Array]:
    """Returns columns of the table chosen, without those of its key. They hold the mapping of each einsum;
    `space`, the searched space that is common to most einsums proven optimal; and of einsums with a gap or
    another space: their indices (`places`), gaps and spaces.

    spaces: searched space of each einsum
    at: where the machines are in the batch
    """
    first, kind = group_equal_rows(sums.gaps.T > 0)
    whole = []
    for left in (sums.gaps.T[first] > 0).tolist():
        proven = [s for s, open_ in zip(spaces, left, strict=True) if not open_]
        whole.append(max(sorted(set(proven)), default="", key=proven.count))
    space = np.array(whole, object)[kind]
    listed = (sums.gaps.T > 0) | (np.array(spaces, object)[None, :] != space[:, None])
    ends, none = np.concatenate([[0], np.cumsum(listed.sum(axis=1))]), ~listed.any(axis=1)
    machine, place = np.nonzero(listed)
    lists = {
        "places": pa.array(place, pa.int32()),
        "gaps": pa.array(sums.gaps.T[machine, place]),
        "spaces": pa.DictionaryArray.from_arrays(pa.array(place, pa.int32()), pa.array(spaces)).cast(
            pa.string()
        ),
    }
    found = {
        name: pa.ListArray.from_arrays(pa.array(ends, pa.int32()), values, mask=pa.array(none))
        for name, values in lists.items()
    }
    named = pa.array([one.mapping_key for one in own.mappings])
    keys = {studies.chosen(i): named.take(pa.array(choice)) for i, choice in enumerate(own.choice[:, at])}
    return {**keys, "space": pa.array(space, pa.string()), **found}


def mappings(block: BatchAnswers, at: Ints) -> list[tuple[EinsumCost, Unique]]:
    """Returns the distinct mappings that machines of a batch use, each with its einsum. at: where they are in
    the batch.
    """
    found: dict[str, tuple[EinsumCost, Unique]] = {}
    for own, groups in zip(block.solved_tables(), block.pruner.uniques, strict=False):
        for choice, group in zip(own.choice[:, at] if isinstance(own, Table) else (), groups, strict=False):
            for k in np.unique(choice).tolist():
                found.setdefault(own.mappings[k].mapping_key, (own.mappings[k], group))
    return list(found.values())
