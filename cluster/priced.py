"""Machines that share mappings of einsums in turn (`solver.share`), many at once: from their numbers to columns of the tables machines, points and chosen, with
rows equal to those of each alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cluster.ruled import Ruler
from dse.nest import Infeasible
from dse.reuse.turns import Cell, Shared, Sums, summed_at
from dse.sim.evaluate import EinsumCost, Problem, Solution, certified, einsum_cost, in_space
from dse.stack import shared_on, space_of_turns, summed
from dse.study import pareto
from dse.study import study as studies
from hw.arch import Arch
from hw.columns import Columns, Ints
from hw.space import decode
from workloads.graph import Unique

MOST = 1 << 18  # machines that share mappings
Known = tuple[Shared, ...] | Infeasible  # of a workload's different einsums


@dataclass(frozen=True)
class Block:
    """Machines that share mappings, by number. known: per workload, up to the first one that does not fit."""

    machines: Ints
    cell: Cell
    ruler: Ruler

    @cached_property
    def known(self) -> list[Known]:
        by_key: dict[str, Shared | Infeasible] = {}
        found: list[Known] = []
        for groups in self.ruler.uniques:
            own = shared_on(self.cell, groups, self.ruler.study.solver, by_key)
            found.append(own)
            if isinstance(own, Infeasible):
                break
        return found

    def place(self, machine: int) -> int:
        return int(np.searchsorted(self.machines, machine))

    def solution(self, machine: int, workload: int) -> list[Solution] | Infeasible:
        """As the array way has it: the readable twin."""
        own = self.known[workload]
        if isinstance(own, Infeasible):
            return own
        at, picks, costs = self.place(machine), self.ruler.study.solver, []
        arch = self.cell.solved(at)
        for one in own:
            cost = einsum_cost(Problem(arch, one.einsum, picks.objective), one.mappings[one.choice[at]].mapping)
            assert isinstance(cost, EinsumCost)
            costs.append(one.proven(at, space_of_turns(arch, one.einsum, picks), cost))
        return summed(arch, self.ruler.uniques[workload], picks, costs)


@dataclass(slots=True)
class Blocks:
    """Of a study's machines, made as they are asked for. shaping: places of the axes that change more than prices, rates and clock (worker.shaping)."""

    ruler: Ruler
    shaping: Sequence[int]
    made: dict[bytes, list[Block]] = field(default_factory=dict)

    def of(self, machine: int) -> Block | None:
        """None: it cannot be built."""
        digits = self.ruler.table.digits(np.array([machine]))
        key = digits[0, self.shaping].tobytes()
        if key not in self.made:
            self.made[key] = list(self._blocks(digits))
        return next((one for one in self.made[key] if (at := one.place(machine)) < len(one.machines) and one.machines[at] == machine), None)

    def _blocks(self, digits: Ints) -> Iterator[Block]:
        space, numbers, stride = self.ruler.study.space, np.zeros(1, np.int64), 1
        for at in range(len(space.axes) - 1, -1, -1):
            several = digits[:, at] if at in self.shaping else np.arange(len(space.axes[at].values))
            numbers, stride = np.add.outer(several * stride, numbers).ravel(), stride * len(space.axes[at].values)
        built, columns = self.ruler.table.columns(numbers)
        numbers, shapes = numbers[built], _shapes(columns) if built.any() else np.zeros(0, np.int64)
        for kind in np.unique(shapes):
            rows = np.flatnonzero(shapes == kind)
            rows = rows[np.argsort(numbers[rows])]
            for begin in range(0, len(rows), MOST):
                own = rows[begin:begin + MOST]
                yield _block(numbers[own], columns.take(own), self.ruler)


def _block(machines: Ints, columns: Columns, ruler: Ruler) -> Block:
    def built(i: int) -> Arch:
        found = decode(ruler.study.space, int(machines[i]))
        assert isinstance(found, Arch)
        return found

    return Block(machines, Cell(built(0), columns, built), ruler)


def _shapes(c: Columns) -> NDArray[np.int64]:
    """A number per machine, equal where columns that are no prices, rates or clock are."""
    whole = (c.width_bits, c.separate, c.sizes, c.shares, c.word_bits, np.isnan(c.alu_per_cycle))
    rows = np.column_stack([part.reshape(len(part), -1).astype(np.int64) for part in whole])
    return np.unique(rows, axis=0, return_inverse=True)[1].reshape(len(rows))


def columns_of(block: Block, at: Ints) -> tuple[dict[str, pa.Array], dict[str, list[object]], list[dict[str, pa.Array]]]:
    """Columns of machines (but for generation and source), of points, and of chosen per workload, of some places of a block that is feasible."""
    ruler, study = block.ruler, block.ruler.study
    machines, columns = block.machines[at], block.cell.columns.take(at)
    costs, worst, chosen = [], None, []
    for own, groups in zip(block.known, ruler.uniques, strict=True):
        assert not isinstance(own, Infeasible)
        sums = summed_at(block.cell, [(one, group.count) for one, group in zip(own, groups, strict=True)], at)
        clock = columns.clock_ghz
        costs.append([part.tolist() for part in (sums.energy_pj, sums.latency_cycles, sums.latency_cycles / clock, sums.steady_cycles / clock)])
        spaces = [space_of_turns(block.cell.first, one.einsum, study.solver) for one in own]
        proof = _proofs(spaces, sums)
        worst = proof if worst is None else [max(a, b, key=lambda one: one[1]) for a, b in zip(worst, proof, strict=True)]
        chosen.append(_choices(own, spaces, sums, at))
    names, areas = [ref.name for ref in study.workloads], columns.area_mm2.tolist()
    points = [studies.point(study, machine, area, {name: pareto.Cost(*(part[i] for part in cost)) for name, cost in zip(names, costs, strict=True)})
              | dict(zip(("gap_in_space", "gap_to_bound", "certificate"), worst[i], strict=True))
              for i, (machine, area) in enumerate(zip(machines.tolist(), areas, strict=True))]
    of_points: dict[str, list[object]] = {name: [row[name] for row in points] for name in points[0]}
    return ruler.head(machines, columns, ruler.floors(columns)), of_points | {"machine": machines.tolist()}, chosen


def _proofs(spaces: Sequence[str], sums: Sums) -> list[tuple[float, float, str]]:
    """gap_in_space, gap_to_bound and certificate of each machine, as evaluate.in_turn has them."""
    where = " and ".join(sorted(set(spaces)))
    return [(gap, bound, certified(in_space(gap, where), bound)) for gap, bound in zip(sums.gap_in_space.tolist(), sums.gap_to_bound.tolist(), strict=True)]


def _choices(own: Sequence[Shared], spaces: Sequence[str], sums: Sums, at: Ints) -> dict[str, pa.Array]:
    """Columns of `chosen` but for its names: what asked.packed says of a solution."""
    open_ = sums.gaps > 0
    kinds, kind = np.unique(open_.T, axis=0, return_inverse=True)
    whole = [max(sorted({s for s, left in zip(spaces, some, strict=True) if not left}), default="",
                 key=[s for s, left in zip(spaces, some, strict=True) if not left].count) for some in kinds]
    space = np.array(whole, object)[kind.reshape(-1)]
    listed = (open_ | (np.array(spaces, object)[:, None] != space[None, :])).T
    ends, none = np.concatenate([[0], np.cumsum(listed.sum(axis=1))]), ~listed.any(axis=1)
    machine, place = np.nonzero(listed)
    lists = {"places": pa.array(place, pa.int32()), "gaps": pa.array(sums.gaps.T[machine, place]),
             "spaces": pa.array(np.array(spaces, object)[place], pa.string())}
    found = {name: pa.ListArray.from_arrays(pa.array(ends, pa.int32()), values, mask=pa.array(none)) for name, values in lists.items()}
    keys = {studies.chosen(i): pa.array([c.mapping_key for c in one.mappings]).take(pa.array(one.choice[at])) for i, one in enumerate(own)}
    return {**keys, "space": pa.array(space, pa.string()), **found}


def mappings(block: Block, at: Ints) -> list[tuple[EinsumCost, Unique]]:
    """What some places of a block chose, each mapping once."""
    found: dict[str, tuple[EinsumCost, Unique]] = {}
    for own, groups in zip(block.known, block.ruler.uniques, strict=True):
        for one, group in zip(own if isinstance(own, tuple) else (), groups, strict=False):
            for k in np.unique(one.choice[at]):
                found.setdefault(one.mappings[k].mapping_key, (one.mappings[k], group))
    return list(found.values())
