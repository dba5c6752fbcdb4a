"""Computes what a run does not store because it follows from stored choices: costs of einsums and workloads
of unfused schedules, and prices of levels, for the machines asked for.

A machine's choice is one mapping per distinct einsum. Rows with the same mapping are costed together, as
NumPy arrays through the same formulas (`cost.price`), however much their machines differ in sizes, prices and
rates. The results equal those of each machine by itself. Machines with costs of layouts or hops, or with
several computes, are costed one by one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dse.explain import values
from dse.explain.functions import EINSUMS_FIELDS, MACHINE_FIELDS, PRICES_FIELDS, WORKLOADS_FIELDS, list_array
from dse.mapping.nest import Infeasible, parse
from dse.mapping.nest import Mapping as Nest
from dse.mapping.searched import Mappings, claim, common_words, decoded, encoded
from dse.run import folder
from dse.sim.counts.counts import count, nest_sums
from dse.sim.einsum import cost
from dse.sim.einsum.cost import Price, batch_arch
from dse.sim.einsum.evaluate import (
    NOT_PROVEN,
    ROUNDING_GAP,
    EinsumCost,
    Problem,
    Solution,
    certificate_text,
    einsum_cost,
    gap_in_space_text,
    key_of,
)
from dse.sim.schedule.graph import among_schedules
from dse.solve.stored import sequential_solution
from dse.study import pareto
from dse.study import study as studies
from dse.study.study import Study
from hw.arch import Arch, Compute, Fanout, Level, fields_of
from hw.space import decode
from workloads.arrays import Floats
from workloads.einsum import canonical_key
from workloads.graph import Unique, Workload, unique

MAX_DECODED = 1 << 16  # decoded machines, and nests, in memory
# attributes of EinsumCost
COST_FIELDS = [
    name
    for name in EINSUMS_FIELDS
    if name not in ("position", "kind", "einsum_key", "einsum", "occurrences", "core", "unit", *values.WORK)
]


class ChosenRow(NamedTuple):
    """A row of the table `chosen`: one workload in one unfused schedule of a machine. Einsums that are not
    among `einsum_indices` are proven optimal in `space`. The last four fields are the columns space, places,
    gaps and spaces.
    """

    machine: int
    workload: str
    keys: Sequence[str]  # mapping_key of each distinct einsum
    space: str = ""  # JSON of what was searched; "": nothing is proven
    # indices, from 0, of the einsums that have a gap or a space of their own
    einsum_indices: Sequence[int] = ()
    gaps: Sequence[float] = ()  # optimality gap of each of these
    spaces: Sequence[str] = ()  # JSON of what was searched for each of these; "": only its bound is known


class EqualChoices(NamedTuple):
    """Rows that have the same mapping of the same einsum, on machines that can be costed together."""

    rows: list[int]  # indices of the rows
    einsum_index: int  # index of the einsum
    nest: Nest
    cost: EinsumCost
    price: Price  # numbers, or arrays in the order of the rows


class DecodedMachine(NamedTuple):
    """A machine. Rows with equal mappings are costed together if their machines are of one kind."""

    arch: Arch
    kind: int


class RowGroup(NamedTuple):
    """Rows with the same mapping of the same einsum, on machines of one kind."""

    rows: list[int]  # indices of the rows
    einsum_index: int
    mapping_key: str
    nest: Nest
    arches: list[Arch]  # machine of each row


@dataclass(slots=True)
class RunContext:
    """A run's folder and study, and what was decoded from them."""

    root: Path
    study: Study
    groups: dict[str, tuple[Unique, ...]] = field(init=False)  # distinct einsums by workload
    machines: dict[int, DecodedMachine | None] = field(default_factory=dict)  # None: it cannot be built
    kinds: dict[Arch, int] = field(default_factory=dict)  # `_costing_structure` -> number of the kind
    nests: dict[str, str] = field(default_factory=dict)  # mapping_key -> text of the nest
    lock: Lock = field(default_factory=Lock)  # DuckDB calls functions from several threads

    def __post_init__(self) -> None:
        named = zip(self.study.workloads, studies.workloads_of(self.study), strict=True)
        self.groups = {ref.name: tuple(unique(workload)) for ref, workload in named}


def chosen_columns(solution: Solution) -> dict[str, Any]:
    """Returns the columns of the table `chosen` for an unfused solution, except machine, schedule and
    workload.
    """
    spaces = [encoded(c.space) for c in solution.einsums]
    proven_spaces = [space for c, space in zip(solution.einsums, spaces, strict=True) if c.proven]
    common_space = max(sorted(set(proven_spaces)), key=proven_spaces.count, default="")
    exceptions = [
        (i, c.optimality_gap if space else 0.0, space)
        for i, (c, space) in enumerate(zip(solution.einsums, spaces, strict=True))
        if space != common_space or (space and c.optimality_gap)
    ]
    keys = {studies.mapping_column(i): c.mapping_key for i, c in enumerate(solution.einsums)}
    return {
        **keys,
        "space": common_space,
        **dict(zip(("places", "gaps", "spaces"), map(list, zip(*exceptions, strict=True)), strict=False)),
    }


def workload_row(
    found: Solution, arch: Arch, weight: float, macs: int, main_memory_bytes: float
) -> dict[str, Any]:
    """Returns a row of `workload_costs`, except machine, schedule and workload."""
    return {
        **pareto.metrics(pareto.cost_of(found, arch.clock_ghz)),
        **proof(found),
        "weight": weight,
        "macs": macs,
        "main_memory_bytes": main_memory_bytes,
    }


def proof(found: Solution) -> dict[str, Any]:
    """Returns the columns that say what is proven of a solution."""
    return {
        "optimality_gap": found.optimality_gap,
        "gap_to_bound": found.gap_to_bound,
        "certificate": found.certificate,
    }


def proofs(
    study: Study,
    costs: Mapping[str, pareto.Cost],
    bound: pareto.Cost,
    gaps: Sequence[Floats],
    gaps_to_bound: Sequence[Floats],
    certificates: Sequence[Sequence[str]],
) -> dict[str, list[Any]]:
    """Returns the columns of n points that say what is proven of them, from what is proven of each workload:
    of `solver.objective`, of all workloads by their weights (`pareto.total_gap`).

    costs: by workload, each number a column [n]; bound: the machines' lower bound, columns [n]
    gaps, gaps_to_bound, certificates: [workloads][n]
    """
    goal, weights, all_costs = study.solver.objective, [*study.weights().values()], [*costs.values()]
    to_bound = np.atleast_1d(pareto.total_gap_to_bound(goal, all_costs, weights, gaps_to_bound, bound))
    gap = np.atleast_1d(pareto.total_gap(goal, all_costs, weights, gaps))
    if len(all_costs) > 1:
        gap = gap if goal == "front" else np.minimum(gap, to_bound)
        gap = np.where(gap > ROUNDING_GAP, gap, 0.0)
    found: dict[str, list[Any]] = {"optimality_gap": gap.tolist(), "gap_to_bound": to_bound.tolist()}
    own_gaps = zip(*(one.tolist() for one in gaps), strict=True)
    columns = zip(*found.values(), own_gaps, zip(*certificates, strict=True), strict=True)
    return found | {"certificate": [_joint_certificate(goal, *row) for row in columns]}


def _joint_certificate(
    goal: str, gap: float, to_bound: float, own_gaps: Sequence[float], certificates: Sequence[str]
) -> str:
    """Returns the certificate of several workloads on one machine, from the certificates of each."""
    if len(certificates) == 1:
        return certificates[0]
    clauses = [claim(one).split("; ") for one in certificates]
    assumptions = dict.fromkeys(clause for one in clauses for clause in one[:-2])
    proven = [own for one, own in zip(clauses, own_gaps, strict=True) if NOT_PROVEN not in one[-2]]
    inside = not any(one[-2] == gap_in_space_text(0.0, inside=False) for one in clauses)
    if len(proven) == len(clauses):
        proof = gap_in_space_text(gap, inside, "front" if goal == "front" else "")
    else:
        proof = f"{len(clauses) - len(proven)} of {len(clauses)} workloads {NOT_PROVEN}"
        if proven:
            proof += f", the others {gap_in_space_text(max(proven), inside)}"
    bounds = dict.fromkeys(one[-1].partition(" above ")[2] for one in clauses)
    text = certificate_text(proof, to_bound, " and ".join(filter(None, bounds)))
    return "; ".join([*assumptions, text]) + common_words(certificates)


def solutions(context: RunContext, rows: Sequence[ChosenRow]) -> list[Solution]:
    """Returns the stored solutions of the rows, costed again."""
    costs: list[list[EinsumCost | Infeasible]] = [[] for _ in rows]
    # mappings of a tile optimizer are made again (`_to_solution`), all others are read and costed
    if context.study.solver.tiling == "mapper":
        costs = [[None] * len(row.keys) for row in rows]  # type: ignore[list-item]
        for choices in _equal_choices(context, rows):
            for i, row in enumerate(choices.rows):
                exceptions = dict(
                    zip(
                        rows[row].einsum_indices,
                        zip(rows[row].gaps, rows[row].spaces, strict=True),
                        strict=True,
                    )
                )
                gap, space = exceptions.get(choices.einsum_index, (0.0, rows[row].space))
                costs[row][choices.einsum_index] = _cost_of_row(choices, i, gap, space)
    return [_to_solution(context, row, row_costs) for row, row_costs in zip(rows, costs, strict=True)]


def _cost_of_row(choices: EqualChoices, i: int, gap: float, space: str) -> EinsumCost:
    """Returns the cost of the i-th row of a group of equal choices. If `space` is "" (no search proved
    anything), the optimality gap of `choices.cost` is kept: there it is the gap to the lower bound.
    """
    p = choices.price
    if isinstance(p.latency_cycles, np.ndarray):
        pj, cycles, interval = (
            float(np.broadcast_to(one, len(choices.rows))[i])
            for one in (p.energy_pj, p.latency_cycles, p.initiation_interval_cycles)
        )
        p = Price(pj, cycles, str(np.broadcast_to(p.bottleneck, len(choices.rows))[i]), (), (), interval)
    found = replace(
        choices.cost, energy_pj=p.energy_pj, latency_cycles=p.latency_cycles, bottleneck=p.bottleneck, price=p
    )
    return replace(found, optimality_gap=gap, space=decoded(Mappings, space)) if space else found


def _to_solution(context: RunContext, row: ChosenRow, costs: Sequence[EinsumCost | Infeasible]) -> Solution:
    """Returns the solution of a row. costs: of its einsums; []: a tile optimizer makes the mappings."""
    arch, options = _machine_or_raise(context, row.machine).arch, context.study.solver
    found = (
        sequential_solution(arch, context.groups[row.workload], options, costs)
        if costs
        else _solve_tiling(context, row)
    )
    if isinstance(found, Infeasible):
        raise ValueError(
            f"{context.root}: machine {row.machine}: {found.einsum}: its mapping does not fit ({found})"
        )
    return (
        found[0]
        if options.schedule == "unfused"
        else among_schedules(found[0], arch, _workload(context, row), options.single_objective)
    )


def _workload(context: RunContext, row: ChosenRow) -> Workload:
    return studies.workloads_of(context.study)[list(context.groups).index(row.workload)]


def _solve_tiling(context: RunContext, row: ChosenRow) -> list[Solution] | Infeasible:
    """Returns the solution of a tile optimizer, which needs no search. Raises ValueError if its mapping
    differs from the stored one.
    """
    from dse.solve.solve import solve  # imported here: that is slow, and no other stored answer needs it

    found = solve(_machine_or_raise(context, row.machine).arch, _workload(context, row), context.study.solver)
    if isinstance(found, list) and (
        differs := [c.name for c, key in zip(found[0].einsums, row.keys, strict=True) if c.mapping_key != key]
    ):
        raise ValueError(
            f"{context.root}: machine {row.machine}: {differs[0]}: the tile optimizer finds "
            "another mapping now than the stored one"
        )
    return found


def _machine_or_raise(context: RunContext, number: int) -> DecodedMachine:
    found = _machine_or_none(context, number)
    if found is None:
        raise ValueError(f"{context.root}: machine {number} cannot be built, but has a schedule")
    return found


def _machine_or_none(context: RunContext, number: int) -> DecodedMachine | None:
    """Returns a machine; None if there is no such machine or it cannot be built."""
    with context.lock:
        if number not in context.machines:
            if len(context.machines) >= MAX_DECODED:
                context.machines.clear()
            arch = decode(context.study.space, number) if 0 <= number < context.study.space.size else None
            context.machines[number] = (
                DecodedMachine(arch, context.kinds.setdefault(_costing_structure(arch), len(context.kinds)))
                if isinstance(arch, Arch)
                else None
            )
        return context.machines[number]


def _costing_structure(arch: Arch) -> Arch:
    """Returns the machine without all that may differ between machines that are costed together.

    Capacities only decide what fits, which is settled for stored mappings. Sizes of PE arrays matter for
    leakage and for the ramp of systolic arrays; `_with_array_sizes` puts them back, one per machine.
    """
    return arch if arch.layout_sensitive() or arch.units else arch.structure().sizeless()


def _with_array_sizes(batch: Arch, arches: Sequence[Arch]) -> Arch:
    """Returns `batch` with the size of every fan-out dimension as a NumPy array [machines], one per machine
    of `arches`.
    """

    def dims(fanout_index: int) -> tuple[tuple[str, Any], ...]:
        return tuple(
            (name, np.array([arch.fanouts[fanout_index].dims[d][1] for arch in arches]))
            for d, (name, _) in enumerate(batch.fanouts[fanout_index].dims)
        )

    return replace(
        batch,
        fanouts=tuple(replace(f, dims=dims(fanout_index)) for fanout_index, f in enumerate(batch.fanouts)),
    )


def _groups_of_equal(context: RunContext, rows: Sequence[ChosenRow]) -> Iterator[RowGroup]:
    """Yields the rows in groups, each row once per einsum."""
    nests = nests_by_key(context, {key for row in rows for key in row.keys})
    groups: dict[tuple[str, int, str, int], list[int]] = {}
    for i, row in enumerate(rows):
        kind = _machine_or_raise(context, row.machine).kind
        for einsum_index, key in enumerate(row.keys):
            groups.setdefault((row.workload, einsum_index, key, kind), []).append(i)
    for (_, einsum_index, key, _), row_indices in groups.items():
        yield RowGroup(
            row_indices,
            einsum_index,
            key,
            parse(nests[key]),
            [_machine_or_raise(context, rows[i].machine).arch for i in row_indices],
        )


def _equal_choices(context: RunContext, rows: Sequence[ChosenRow]) -> Iterator[EqualChoices]:
    """Yields all choices of the rows with their costs, equal choices together."""
    for row_indices, einsum_index, key, nest, arches in _groups_of_equal(context, rows):
        e = context.groups[rows[row_indices[0]].workload][einsum_index].einsum
        is_scalar = len(row_indices) == 1 or arches[0].layout_sensitive() or bool(arches[0].units)
        problem = Problem(arches[0], e, context.study.solver.objective)
        group_cost = einsum_cost(problem, nest) if is_scalar else _without_costs(problem, nest)
        if isinstance(group_cost, Infeasible) or group_cost.mapping_key != key:
            raise ValueError(
                f"{context.root}: machine {rows[row_indices[0]].machine}: mapping {key} is not a "
                f"mapping of {e.name} on this machine, or does not fit"
            )
        yield EqualChoices(
            row_indices,
            einsum_index,
            nest,
            group_cost,
            group_cost.price
            if is_scalar
            else cost.price(
                group_cost.counts,
                e,
                _with_array_sizes(batch_arch(arches), arches),
                nest_sums(nest, e, arches[0]),
            ),
        )


def _without_costs(problem: Problem, nest: Nest) -> EinsumCost:
    """Returns the counts of a mapping, which are the same on all machines of its group, as an EinsumCost with
    costs of 0: the caller prices the counts for all these machines at once.
    """
    e = problem.einsum
    no_price = Price(0.0, 0.0, "", (), (), 0.0)
    return EinsumCost(
        e.name,
        canonical_key(e),
        1,
        nest,
        key_of(problem, nest),
        count(nest, e, problem.arch),
        (),
        0.0,
        0.0,
        "",
        0.0,
        0.0,
        no_price,
    )


def nests_by_key(context: RunContext, keys: Collection[str]) -> dict[str, str]:
    """Returns the texts of nests by mapping_key. Reads only those row groups of the table `mappings` that may
    have the keys. Raises ValueError if a key is missing.
    """
    with context.lock:
        if len(context.nests) > MAX_DECODED:
            context.nests.clear()
        _read_nests(context, keys)
        return {key: context.nests[key] for key in keys}


def stored_choices(context: RunContext) -> dict[str, pa.Table]:
    """Returns, by workload, all rows of the table chosen that the manifest names, of groups without damaged
    parts; a row per machine, ascending.
    """
    manifest, faulty_groups = folder.verified_parts(context.root)
    paths = [
        context.root / folder.part_path(part.table, group.name)
        for group in manifest.groups
        for part in (group.parts if group.name not in faulty_groups else ())
        if part.table == "chosen"
    ]
    parts = [pq.read_table(path, page_checksum_verification=True) for path in paths]
    if not parts:
        return {}
    rows = pa.concat_tables(parts, promote_options="permissive").sort_by("machine").combine_chunks()
    return {name: rows.filter(pc.equal(rows["workload"], name)) for name in context.groups}


def _read_nests(context: RunContext, keys: Collection[str]) -> None:
    """Adds the texts of nests of these keys to context.nests, as far as they are missing there."""
    wanted = sorted(set(keys) - context.nests.keys())
    if wanted:
        manifest, faulty_groups = folder.verified_parts(context.root)
        for group in manifest.groups:
            for part in group.parts if group.name not in faulty_groups else ():
                if part.table == "mappings" and wanted:
                    context.nests |= _nests(context.root / folder.part_path(part.table, group.name), wanted)
                    wanted = [key for key in wanted if key not in context.nests]
    if wanted:
        raise ValueError(
            f"{context.root}: mapping {wanted[0]} is not in its table mappings; {folder.advice(context.root)}"
        )


def _nests(path: Path, keys: list[str]) -> dict[str, str]:
    """Returns mapping_key -> text of the nest, for those of `keys` (sorted) that one file of the table
    has.
    """
    found: dict[str, str] = {}
    with pq.ParquetFile(path, page_checksum_verification=True) as part:
        key_column = part.schema_arrow.names.index("mapping_key")
        for number in range(part.num_row_groups):
            key_range = part.metadata.row_group(number).column(key_column).statistics
            first = bisect_left(keys, key_range.min) if key_range and key_range.has_min_max else 0
            if first < len(keys) and not (
                key_range and key_range.has_min_max and keys[first] > key_range.max
            ):
                rows = part.read_row_group(number, columns=["mapping_key", "nest"])
                rows = rows.filter(pc.is_in(rows["mapping_key"], pa.array(keys)))
                found |= dict(zip(rows["mapping_key"].to_pylist(), rows["nest"].to_pylist(), strict=True))
    return found


def _chosen_rows(*columns: Any) -> list[ChosenRow]:
    """Returns the rows of Arrow columns. NULL keys are removed: they pad the lists of workloads with fewer
    einsums.
    """
    return [
        ChosenRow(machine, workload, [key for key in keys if key is not None], *rest)
        for machine, workload, keys, *rest in zip(*(column.to_pylist() for column in columns), strict=True)
    ]


def _cycles(context: RunContext, machines: Any, workloads: Any, keys: Any) -> pa.Array:
    """Returns, per row, the latency in cycles of each einsum; nan where its mapping does not fit."""
    rows = _chosen_rows(machines, workloads, keys)
    if context.study.solver.tiling != "mapper":
        return pa.array(
            [[c.latency_cycles for c in found.einsums] for found in solutions(context, rows)],
            pa.list_(pa.float64()),
        )
    offsets = np.cumsum([0, *(len(row.keys) for row in rows)])
    flat = np.empty(offsets[-1])
    for row_indices, einsum_index, _, nest, arches in _groups_of_equal(context, rows):
        e, is_scalar = (
            context.groups[rows[row_indices[0]].workload][einsum_index].einsum,
            arches[0].layout_sensitive() or bool(arches[0].units),
        )
        scalar_cost = (
            einsum_cost(Problem(arches[0], e, context.study.solver.objective), nest) if is_scalar else None
        )
        flat[offsets[row_indices] + einsum_index] = (
            scalar_cost.latency_cycles
            if isinstance(scalar_cost, EinsumCost)
            else np.nan
            if isinstance(scalar_cost, Infeasible)
            else cost.cycles_of(
                nest_sums(nest, e, arches[0]),
                _with_array_sizes(batch_arch(arches), arches) if len(row_indices) > 1 else arches[0],
            )
        )
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(flat))


def _einsums(
    context: RunContext,
    machines: Any,
    workloads: Any,
    keys: Any,
    space: Any,
    places: Any,
    gaps: Any,
    spaces: Any,
) -> pa.Array:
    """Returns, per row of `chosen`, the list of its rows of the view einsums."""
    rows = _chosen_rows(machines, workloads, keys, space, places, gaps, spaces)
    found = [
        [
            _einsum_row(position, c, group, arch) | of_machine
            for position, (c, group) in enumerate(
                zip(solution.einsums, context.groups[row.workload], strict=True), 1
            )
        ]
        for row, solution in zip(rows, solutions(context, rows), strict=True)
        for arch in [_machine_or_raise(context, row.machine).arch]
        for of_machine in [_machine_fields(arch)]
    ]
    return list_array("einsums", [*EINSUMS_FIELDS, *MACHINE_FIELDS], found)


def _machine_fields(arch: Arch) -> dict[str, float]:
    return dict(zip(MACHINE_FIELDS, (arch.clock_ghz, arch.peak_tops()), strict=True))


def _einsum_row(position: int, c: EinsumCost, group: Unique, arch: Arch) -> dict[str, Any]:
    """Returns a row of the view `einsums`, except machine, schedule and workload."""
    return {
        "position": position,
        "kind": group.einsum.kind,
        "einsum_key": group.key,
        "einsum": c.name,
        "occurrences": c.count,
        **{name: getattr(c, name) for name in COST_FIELDS},
        **values.work(arch, group.einsum, c),
        **values.place(arch, c),
    }


def _workloads(
    context: RunContext,
    machines: Any,
    workloads: Any,
    keys: Any,
    space: Any,
    places: Any,
    gaps: Any,
    spaces: Any,
) -> pa.Array:
    """Returns, per row of `chosen`, a list of its one row of the view workload_costs."""
    rows = _chosen_rows(machines, workloads, keys, space, places, gaps, spaces)
    refs = {ref.name: ref for ref in context.study.workloads}
    macs = dict(
        zip(
            context.groups, (workload.macs() for workload in studies.workloads_of(context.study)), strict=True
        )
    )
    found = []
    for row, solution in zip(rows, solutions(context, rows), strict=True):
        arch = _machine_or_raise(context, row.machine).arch
        einsums = (group.einsum for group in context.groups[row.workload])
        moved = values.main_memory_bytes(arch, list(zip(solution.einsums, einsums, strict=True)))
        weight = refs[row.workload].weight
        one = workload_row(solution, arch, weight, macs[row.workload], moved)
        found.append([one | _machine_fields(arch)])
    return list_array("workload_costs", [*WORKLOADS_FIELDS, *MACHINE_FIELDS], found)


def _prices(context: RunContext, machines: Any) -> pa.Array:
    """Returns, per machine, the list of its rows of the view prices."""
    return list_array(
        "prices",
        PRICES_FIELDS,
        [
            price_rows(decoded_machine.arch) if (decoded_machine := _machine_or_none(context, number)) else []
            for number in machines.to_pylist()
        ],
    )


def price_rows(arch: Arch) -> list[dict[str, Any]]:
    """Returns the rows of the view prices of one machine: levels, fan-outs, vector unit and MAC units
    (of several computes each).
    """

    def own_prices(node: Level | Fanout | Compute) -> dict[str, Any]:
        return {name: getattr(node, name) for name in fields_of(type(node), "price", "network")}

    rows: list[dict[str, Any]] = [
        {
            "level": level.name,
            **own_prices(level),
            "width_bits": level.width_bits,
            "bandwidth": level.bandwidth,
            "leak_mw": level.leak_mw,
            "area_mm2": level.area_mm2,
            "capacity_bits": level.capacity_bits,
            "instances": arch.instances(v),
            "word_bits": arch.word_bits,
            "row_pj": level.access.row_pj if level.access else 0.0,
        }
        for v, level in enumerate(arch.levels)
    ]
    rows += [
        {"level": f.name, **own_prices(f), "word_bits": arch.word_bits, "instances": 1}
        for f in arch.fanouts
        if any(own_prices(f).values())
    ]
    if not arch.units and arch.compute.alu_per_cycle is not None:
        vector = {"leak_mw": arch.compute.vector_leak_mw, "area_mm2": arch.compute.vector_area_mm2}
        rows.append({"level": "VECTOR", **vector, "instances": 1})
    for one in arch.units or (arch,):
        unit = one.compute
        rows.append(
            {
                "level": unit.name,
                **own_prices(unit),
                "bandwidth": unit.ops_per_cycle,
                "leak_mw": unit.leak_mw,
                "area_mm2": unit.area_mm2,
                "instances": one.instances(len(one.levels)),
            }
        )
    return [{**row, "clock_ghz": arch.clock_ghz, "vdd": arch.vdd} for row in rows]


# functions of SQL (dse/explain/functions.py) by name: Arrow columns in, one column out
FUNCTIONS: dict[str, Callable[..., pa.Array]] = {
    "cycles_of": _cycles,
    "einsums_of": _einsums,
    "workload_of": _workloads,
    "levels_of": _prices,
}


def computed(context: RunContext, name: str, *columns: Any) -> pa.Array:
    """Returns the result of a function by its name."""
    return FUNCTIONS[name](context, *columns)
