"""Machines that bounds rule out, many at once: from their numbers to columns of the table machines. The twin of what worker.py does with one machine before it
is solved, with equal rows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dse.sim import bound_kernels
from dse.study import pareto, prune
from dse.study.pareto import Cost, Trial, slug
from dse.study.study import Study
from hw.columns import Columns, Ints, Table
from workloads.graph import Unique

BEATEN = "bounds: another machine has a schedule that is better than any of this one (beaten_by)"  # reason of a machine that was not solved


@dataclass(slots=True)
class Ruler:
    """What bounds of a study's machines need, kept from lease to lease. key: of all that shapes a row but the machine (worker.Job)."""

    study: Study
    uniques: tuple[tuple[Unique, ...], ...]
    key: str
    table: Table = field(init=False)
    texts: list[tuple[int, list[str]]] = field(init=False)  # place and values of each axis as JSON, in the order of names

    def __post_init__(self) -> None:
        space = self.study.space
        self.table = Table(space)
        named = sorted((slug(axis.key), at) for at, axis in enumerate(space.axes))
        self.texts = [(at, [f"{json.dumps(name)}: {json.dumps(value)}" for value in space.axes[at].values]) for name, at in named]

    def applies(self) -> bool:
        """Whether bounds are those of einsums in turn."""
        return self.study.search.prune and self.study.solver.reuse == "none"

    def rows(self, machines: Ints, front: Sequence[Trial]) -> tuple[NDArray[np.bool_], dict[str, pa.Array]]:
        """Which machines are ruled out by the front, and their columns of `machines`, but for generation and source."""
        built, columns = self.table.columns(machines)
        floors = self._floors(columns)
        lower = prune.least_of_many(self.study.objectives, floors, self.study.weights(), columns.area_mm2)
        first = prune.first_dominating(front, lower)
        out = np.zeros(len(machines), np.bool_)
        out[built] = first >= 0
        beaten, kept = machines[out], first >= 0
        whole = pareto.total(list(floors.values()), [ref.weight for ref in self.study.workloads])
        digits = self.table.digits(beaten)
        numbers = {"machine": beaten, "area_mm2": columns.area_mm2[kept], "clock_ghz": columns.clock_ghz[kept],
                   "bound_energy_pj": np.asarray(whole.energy_pj)[kept], "bound_latency_ns": np.asarray(whole.latency_ns)[kept],
                   "beaten_by": np.array([trial.machine for trial in front], np.int64)[first[kept]]}
        texts = {"key": pa.array(self.keys(digits)), "status": _all("pruned", len(beaten)), "reason": _all(BEATEN, len(beaten))}
        given = {slug(axis.key): pa.array(axis.values).take(pa.array(digits[:, at])) for at, axis in enumerate(self.study.space.axes)}
        return out, {name: pa.array(column) for name, column in numbers.items()} | texts | given

    def keys(self, digits: Ints) -> list[str]:
        """worker.machine_key of each machine, from its place on every axis."""
        begun, found = hashlib.sha256(self.key.encode()), []
        for own in digits[:, [at for at, _ in self.texts]].tolist():
            whole = begun.copy()
            whole.update(("{" + ", ".join([text[digit] for (_, text), digit in zip(self.texts, own, strict=True)]) + "}").encode())
            found.append(whole.hexdigest()[:16])
        return found

    def _floors(self, columns: Columns) -> dict[str, Cost]:
        """As worker._floors, a column each."""
        found = {}
        for ref, groups in zip(self.study.workloads, self.uniques, strict=True):
            pj, cycles = bound_kernels.in_turn(((group.einsum, group.count) for group in groups), columns)
            found[ref.name] = Cost(pj, cycles, cycles / columns.clock_ghz, cycles / columns.clock_ghz)  # type: ignore[arg-type]
        return found


def table_of(schema: pa.Schema, columns: Mapping[str, pa.Array], rows: int) -> pa.Table:
    """Columns that are not given are NULL."""
    return pa.Table.from_arrays([columns[f.name].cast(f.type) if f.name in columns else pa.nulls(rows, f.type) for f in schema], schema=schema)


def _all(text: str, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(text), rows)
