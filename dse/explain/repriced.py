"""Points of a run at other prices: the mapping of each einsum is chosen again among those of the run's tables
that fit the machine (SQL: what_if, robust).

A mapping does the same actions on every machine of a family (`shared_mappings`), and its energy is linear in
prices: energy = rest + sum over the prices that change of factor x part. So mappings are priced once, and
each sample of prices is a sum. What a search at the new prices may find beside is bounded by what the
searches of the run proved at theirs (`anchors`), and by the lower bounds of all mappings.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import inf
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dse.explain.derived import RunContext, nests_by_key, stored_choices
from dse.explain.functions import point_columns
from dse.mapping.nest import parse
from dse.sim.einsum.evaluate import ROUNDING_GAP, EinsumCost, Problem, einsum_cost
from dse.solve.sharing.anchors import no_anchors, raise_bounds, with_anchor
from dse.solve.sharing.shared_mappings import (
    MachineBatch,
    cost_on,
    energy_of,
    fits_on,
    initiation_intervals_on,
    lower_bound_on,
    machine_batch,
    pj_on,
    prices_of,
)
from dse.study import pareto
from dse.study import study as studies
from dse.study.study import Study
from hw.arch import Arch, Compute, Level, Memory, fields_of
from hw.columns import Columns, Table, concatenated, group_equal_rows
from hw.component import closest_name, has_units
from hw.space import decode
from workloads.arrays import Bools, Floats, Ints
from workloads.graph import Unique

MAX_MACHINES = 4096  # machines that are priced together, at most
MAX_ANCHORS = 16  # of them, machines whose bounds are compared with those of all
MAX_SAMPLES = 100_000  # of prices
MAX_LISTED = 3  # machines that a message lists
SRAM = "sram_pj"  # the name of the prices of all memories of this kind


@dataclass(frozen=True, slots=True)
class Choices:
    """Mappings that the run knows of one einsum, on the n machines of a batch."""

    occurrences: int
    own: Ints  # [n] the run's choice of the K mappings
    # [1 + C, K, n] energy that no changed price is part of, inf where a mapping does not fit; that of each of
    # C changed prices
    pj: Floats
    cycles: Floats  # [K, n]
    intervals: Floats  # [K, n] initiation interval, of a workload with one distinct einsum; else cycles

    def best(self, factors: Floats) -> Ints:
        """Returns [n], the mapping of least energy at these factors [C] of prices; of equal ones the fastest,
        then the first key.
        """
        energy = np.tensordot(np.append(1.0, factors), self.pj, 1)
        fastest = np.where(energy <= energy.min(axis=0), self.cycles, inf)
        return np.asarray(fastest.argmin(axis=0))


@dataclass(frozen=True, slots=True)
class Group:
    """n machines of one family, with what the run knows for them."""

    machines: Ints
    is_asked: Bools  # [n] of the machines; the others bound their costs (`_einsum_bounds`)
    anchors: Ints  # indices of these others, and of those that do both
    columns: Columns  # of the machines, at the run's prices
    first: Arch
    rows: list[pa.Table]  # per workload, rows of the table chosen, of each machine
    choices: list[list[Choices]]  # per workload, of each distinct einsum


@dataclass(frozen=True, slots=True)
class Repriced:
    """A run's machines with a schedule, ready to be priced at any factors of some prices."""

    context: RunContext
    names: tuple[str, ...]  # of the changed prices
    groups: list[Group]

    def points(self, factors: Floats) -> dict[str, NDArray[Any]]:
        """Returns the columns of the table points that costs decide, and `machine` and `remapped`, how many
        distinct einsums get another mapping; a row per machine asked for, ascending. factors: [C].
        """
        study, parts = self.context.study, []
        for group in self.groups:
            picked = [[one.best(factors) for one in own] for own in group.choices]
            costs = {
                ref.name: _cost(own, best, factors, group.columns.clock_ghz)
                for ref, own, best in zip(study.workloads, group.choices, picked, strict=True)
            }
            columns = studies.points(study, group.machines, group.columns.area_mm2, costs)
            remapped = sum(
                best != one.own
                for own, bests in zip(group.choices, picked, strict=True)
                for one, best in zip(own, bests, strict=True)
            )
            columns |= {"machine": group.machines, "remapped": np.asarray(remapped)}
            parts.append({name: column[group.is_asked] for name, column in columns.items()})
        if not parts:
            return {}
        joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        order = np.argsort(joined["machine"])
        return {name: column[order] for name, column in joined.items()}


def repriced(context: RunContext, names: Sequence[str], asked: Collection[int] | None = None) -> Repriced:
    """Returns the machines of the run that have a schedule, with all mappings of the run priced on them.
    names: prices that will change (`price_columns`); asked: of these machines alone, which changes no row
    (None: all). Raises ValueError in one line.
    """
    if line := _refusal(context.study):
        raise ValueError(line)
    changed: dict[tuple[str, int], str] = {}
    for name in names:
        for one in price_columns(context.study, name):
            if (other := changed.setdefault(one, name)) != name:
                raise ValueError(
                    f"prices {other} and {name} have {one[0]} of a memory in common; leave one out"
                )
    stored = stored_choices(context)
    numbers = np.asarray(next(iter(stored.values()))["machine"]) if stored else np.zeros(0, np.int64)
    if asked and not np.isin([*asked], numbers).any():
        listed = ", ".join(map(str, [*asked][:MAX_LISTED])) + ", ..." * (len(asked) > MAX_LISTED)
        raise ValueError(f"machines := [{listed}]: the run has a schedule on none of them")
    groups, costs = list[Group](), dict[str, dict[tuple[str, str], EinsumCost]]()
    for all_machines, all_columns, first in _families(context.study, numbers):
        is_asked = np.isin(all_machines, [*asked]) if asked is not None else all_machines >= 0
        if not is_asked.any():
            continue
        anchors = np.unique(np.linspace(0, len(all_machines) - 1, MAX_ANCHORS).astype(int))
        kept = np.union1d(np.flatnonzero(is_asked), anchors)
        machines, columns = all_machines[kept], all_columns.take(kept)
        known = [rows.take(np.searchsorted(numbers, all_machines)) for rows in stored.values()]
        of_family = costs.setdefault(str(first.family()), {})
        choices = _choices(context, machines, columns, first, known, kept, names, of_family)
        own = [rows.take(kept) for rows in known]
        at = np.searchsorted(kept, anchors)
        groups.append(Group(machines, is_asked[kept], at, columns, first, own, choices))
    return Repriced(context, tuple(names), groups)


def _refusal(study: Study) -> str:
    """Returns why points cannot be priced again; "": they can."""
    solver = study.solver
    if solver.objective != "energy" or solver.schedule != "unfused" or solver.tiling != "mapper":
        return (
            "what_if and robust: mappings are chosen again in runs of solver.objective = energy, schedule = "
            f"unfused; this is one of objective = {solver.objective}, schedule = {solver.schedule}, tiling = "
            f"{solver.tiling}"
        )
    if has_units(study.space.template.nodes):
        return "what_if and robust: machines with one compute are priced again, and this has several"
    return ""


def price_columns(study: Study, name: str) -> list[tuple[str, int]]:
    """Returns the prices that a name stands for, as (field of Level or Compute, index of the level):
    `gbuf.read_pj`, `mac_pj`, `gbuf_pj` (all of that memory), `dram_pj` (of the outermost one), `sram_pj` (of
    all memories of that kind); in either case, as levels are named in upper case. Raises ValueError.
    """
    memories = [node for node in study.space.template.nodes if isinstance(node, Memory)]
    level_fields, compute_fields = (fields_of(kind, "price") for kind in (Level, Compute))
    known = {f"{node.name}_pj": [(f, v) for f in level_fields] for v, node in enumerate(memories)}
    known |= {f"{node.name}.{f}": [(f, v)] for v, node in enumerate(memories) for f in level_fields}
    known |= {f: [(f, 0)] for f in compute_fields}
    known.setdefault("dram_pj", known[f"{memories[0].name}_pj"])
    may_be_sram = [v for v in range(len(memories)) if "sram" in _kinds(study, v)[1]]
    known[SRAM] = [(f, v) for v in may_be_sram for f in level_fields]
    priced = [one for one in known if known[one]]
    found = name if name in priced else next((one for one in priced if one.lower() == name.lower()), "")
    if not found:
        raise ValueError(f"price {name}: no such one; {closest_name(name.lower(), priced)}")
    return known[found]


def _kinds(study: Study, level: int) -> tuple[int | None, list[str]]:
    """Returns the axis that sets the kind of a memory (None: none), and the kinds on it."""
    node = [node for node in study.space.template.nodes if isinstance(node, Memory)][level]
    for at, axis in enumerate(study.space.axes):
        if axis.key == f"{node.name}.kind":
            return at, [str(value) for value in axis.values]
    return None, [node.kind]


def _scaled(study: Study, machines: Ints, columns: Columns, factors: Mapping[str, float]) -> Columns:
    """Returns the columns with prices multiplied by factors."""
    levels = {name: column.copy() for name, column in columns.levels.items()}
    compute = dict(columns.compute)
    digits = Table(study.space).digits(machines)
    for name, factor in factors.items():
        for field, v in price_columns(study, name):
            if field in compute:
                compute[field] = compute[field] * factor
                continue
            rows = np.ones(len(machines), np.bool_)
            if name.lower() == SRAM:
                at, kinds = _kinds(study, v)
                rows = np.array([kind == "sram" for kind in kinds])[0 if at is None else digits[:, at]]
            levels[field][:, v] *= np.where(rows, factor, 1.0)
    return replace(columns, levels=levels, compute=compute)


def _families(study: Study, machines: Ints) -> Iterator[tuple[Ints, Columns, Arch]]:
    """Yields machines among which mappings are exchanged, MAX_MACHINES at most: of one family and
    outermost capacity; under rules of one structure, since rules may ask for a number of PEs.
    """
    if not len(machines):
        return
    built, columns = Table(study.space).columns(machines)
    assert built.all()  # they have schedules
    has_rules = study.solver.dataflow != "free" or study.solver.mapping or study.space.template.mapping
    kinds = columns.structure if has_rules else np.column_stack([columns.family, columns.capacity_bits[:, 0]])
    first, which = group_equal_rows(kinds)
    for number in range(len(first)):
        rows = np.flatnonzero(which == number)
        for at in range(0, len(rows), MAX_MACHINES):
            own = rows[at : at + MAX_MACHINES]
            arch = decode(study.space, int(machines[own[0]]))
            assert isinstance(arch, Arch)
            yield machines[own], columns.take(own), arch


def _batch(first: Arch, columns: Columns) -> MachineBatch:
    def unbuilt(i: int) -> Arch:
        raise AssertionError("nothing is searched")

    return machine_batch(first, columns, unbuilt)


def _choices(
    context: RunContext,
    machines: Ints,
    columns: Columns,
    first: Arch,
    known: Sequence[pa.Table],
    kept: Ints,
    names: Sequence[str],
    costs: dict[tuple[str, str], EinsumCost],
) -> list[list[Choices]]:
    """Returns the mappings of each workload's distinct einsums on these machines.

    known: per workload, rows of the table chosen of machines of the family; kept: the rows of these machines
    costs: of mappings that were evaluated before on machines of the family, by keys of einsum and mapping
    """
    zeros, found = dict.fromkeys(names, 0.0), []
    whole = _batch(first, columns)
    batches = [  # at prices of 0 of all that change, then of all but one
        _batch(first, _scaled(context.study, machines, columns, zeros | dict.fromkeys(priced, 1.0)))
        for priced in ((), *((name,) for name in names))
    ]
    for rows, uniques in zip(known, context.groups.values(), strict=True):
        keys = [rows[studies.mapping_column(i)].to_pylist() for i in range(len(uniques))]
        texts = nests_by_key(context, set(chain.from_iterable(keys)))
        choices = list[Choices]()
        for unique, column in zip(uniques, keys, strict=True):
            known_keys, own = np.unique(column, return_inverse=True)
            nests = {key: texts[key] for key in known_keys.tolist()}
            choices.append(_on(whole, batches, unique, nests, own[kept], len(uniques) == 1, costs))
        found.append(choices)
    return found


def _on(
    whole: MachineBatch,
    batches: Sequence[MachineBatch],
    unique: Unique,
    nests: Mapping[str, str],
    own: Ints,
    is_single: bool,
    costs: dict[tuple[str, str], EinsumCost],
) -> Choices:
    """Returns mappings of one einsum on the machines of a batch.

    whole: at the run's prices; batches: without those that change, and with each of them alone
    nests: texts of the mappings by key
    own: the run's choice of these on each machine
    """
    e, by_rate = unique.einsum, whole.by_rate.group_of
    pj, cycles, intervals = [], [], []
    for key, text in nests.items():
        mapping = parse(text)
        if (cost := costs.get((unique.key, key))) is None:
            found = einsum_cost(Problem(whole.largest, e, "energy"), mapping)
            assert isinstance(found, EinsumCost)  # it fits machines of the run
            cost = costs[unique.key, key] = found
        on_whole = cost_on(whole, e, cost)
        energies = [pj_on(batch, e, cost)[batch.by_energy.group_of] for batch in batches]
        leakage = whole.leak_mw * on_whole.cycles[by_rate] / whole.clock_ghz
        rest = np.where(fits_on(whole, e, mapping), energies[0] + leakage, inf)
        pj.append([rest, *(energy - energies[0] for energy in energies[1:])])
        cycles.append(on_whole.cycles[by_rate])
        intervals.append(initiation_intervals_on(whole, e, cost)[by_rate] if is_single else cycles[-1])
    return Choices(
        unique.occurrences, own, np.array(pj).transpose(1, 0, 2), np.array(cycles), np.array(intervals)
    )


def _cost(own: Sequence[Choices], best: Sequence[Ints], factors: Floats, clock_ghz: Floats) -> pareto.Cost:
    """Returns the cost of a workload with these mappings of its distinct einsums, as columns [n]."""
    energy, cycles, interval = np.zeros((3, len(clock_ghz)))
    for one, chosen in zip(own, best, strict=True):
        at = chosen, np.arange(len(chosen))
        energy = energy + one.occurrences * (np.append(1.0, factors) @ one.pj[:, *at])
        cycles = cycles + one.occurrences * one.cycles[at]
        interval = interval + one.occurrences * one.intervals[at]
    return pareto.Cost(energy, cycles, cycles / clock_ghz, interval / clock_ghz)  # type: ignore[arg-type]


def _einsum_bounds(context: RunContext, group: Group, workload: int, factors: Mapping[str, float]) -> Floats:
    """Returns [n], a lower bound of a workload's energy at these factors of prices: with any mappings, and
    with those of the searched space by what the run proved at its own prices, on the machine itself and on
    the anchors of its group.
    """
    uniques, n = [*context.groups.values()][workload], len(group.machines)
    both = _batch(
        group.first,
        concatenated([group.columns, _scaled(context.study, group.machines, group.columns, factors)]),
    )
    lower = [lower_bound_on(both, unique.einsum) for unique in uniques]
    bound_pj = np.array([energy_of(both, one) for one in lower]) * (1 - ROUNDING_GAP)
    prices = prices_of(both, [unique.einsum for unique in uniques], lower)
    anchors = no_anchors(len(uniques), both.capacity_bits.shape[1], both.pes.shape[1])
    gaps = _gaps(group.rows[workload], len(uniques))
    own, new, no_less = np.arange(n), np.arange(n, 2 * n), min(1.0, *factors.values())
    for i, choices in enumerate(group.choices[workload]):
        proven_pj = choices.pj[:, choices.own, own].sum(axis=0) / (1 + gaps[i])
        # no price falls by more than to `no_less`; what is left above that, any mapping pays at least once
        least_left = (
            prices.least_pj[i, prices.kind[new]]
            - no_less * prices.least_pj[i, prices.kind[own]]
            + (1 - no_less) * prices.leak_pj[own] * prices.least_cycles[i, prices.rate_kind[own]]
        )
        at_new_prices = (no_less * proven_pj + least_left) * (1 - ROUNDING_GAP)
        bound_pj[i, new] = np.maximum(bound_pj[i, new], np.where(proven_pj > 0, at_new_prices, 0.0))
        for j in group.anchors.tolist():
            if proven_pj[j] > 0:
                sizes = both.capacity_bits[j], both.pes[j]
                anchors = with_anchor(anchors, i, j, prices.leak_pj[j], proven_pj[j], *sizes)
    seen = np.zeros(bound_pj.shape, np.int64)
    for j in new[group.is_asked].tolist():
        raise_bounds(j, anchors, prices, seen, bound_pj)
    return np.array([unique.occurrences for unique in uniques]) @ bound_pj[:, n:]


def _gaps(rows: pa.Table, einsums: int) -> Floats:
    """Returns [E, n] the optimality gap of each einsum on each machine; inf where nothing is proven.
    rows: of the table chosen.
    """
    is_proven = np.asarray(pc.not_equal(pc.fill_null(rows["space"], ""), ""))
    gaps = np.tile(np.where(is_proven, 0.0, inf), (einsums, 1))
    of_machine = np.asarray(pc.list_parent_indices(rows["places"]))
    places, own_gaps, spaces = (pc.list_flatten(rows[name]) for name in ("places", "gaps", "spaces"))
    has_space = np.asarray(pc.not_equal(spaces, ""))
    gaps[np.asarray(places), of_machine] = np.where(has_space, np.asarray(own_gaps), inf)
    return gaps


def what_if(
    context: RunContext, factors: Mapping[str, float], asked: Collection[int] | None = None
) -> dict[str, NDArray[Any]]:
    """Returns the columns of `points` with prices multiplied by factors, a row per machine with a schedule
    (asked: of these machines alone; None: of all);
    `remapped`: how many distinct einsums got another mapping; `optimality_gap`: by which share at most a
    search at these prices finds less energy in the space that the run searched. Raises ValueError.
    """
    _check_numbers("what_if", factors, "a factor, such as 0.5, of at least 0", 0.0)
    run, own = repriced(context, [*factors], asked), np.array([*factors.values()])
    columns, weights = run.points(own), context.study.weights()
    bounds = dict[int, float]()
    for group in run.groups:
        total = sum(
            weights[name] * _einsum_bounds(context, group, workload, factors)
            for workload, name in enumerate(context.groups)
        )
        bounds |= dict(zip(group.machines.tolist(), np.asarray(total).tolist(), strict=True))
    if columns:
        least = np.array([bounds[machine] for machine in columns["machine"].tolist()])
        gap = np.divide(columns["energy_pj"], least, out=np.full(len(least), inf), where=least > 0) - 1
        columns["optimality_gap"] = np.where(gap > 10 * ROUNDING_GAP, gap, 0.0)
    return columns


def robust(
    context: RunContext,
    spreads: Mapping[str, float],
    samples: int,
    seed: int,
    asked: Collection[int] | None = None,
) -> dict[str, NDArray[Any]]:
    """Returns `machine` and `share_on_front`: of samples of prices, the share in which the machine's point is
    on the front of the run (asked: of these machines alone; None: of all), mappings chosen again. A sample
    multiplies each price by (1 + spread) ** z, with z of a standard normal distribution: two thirds of the
    factors are within 1 + spread. Raises ValueError.
    """
    _check_numbers("robust", spreads, "a share, such as 0.2, of at least 0", 0.0)
    if not 1 <= samples <= MAX_SAMPLES:
        raise ValueError(f"robust: {samples} samples; take 1 to {MAX_SAMPLES:,}")
    run, objectives = repriced(context, [*spreads], asked), context.study.objectives
    z = np.random.default_rng(seed).standard_normal((samples, len(spreads)))
    on_front: Any = 0.0
    columns: dict[str, NDArray[Any]] = {}
    for factors in (1 + np.array([*spreads.values()])) ** z:
        columns = run.points(factors)
        if not columns:
            break
        values = np.column_stack([columns[o.column] for o in objectives]) * pareto.signs(objectives)
        values[~columns["feasible"]] = np.nan  # on no front
        on_front = on_front + pareto.front(values)
    return {"machine": columns["machine"], "share_on_front": on_front / samples} if columns else {}


def _what_if_rows(context: RunContext, changes: Any, machines: Any) -> pa.Array:
    """Returns, per JSON texts of factors and machines, the list of rows of the macro what_if."""
    names = ["machine", "remapped", "feasible", "optimality_gap", *point_columns(context.study)]
    found = [
        what_if(context, _numbers("what_if", text), _asked("what_if", own))
        for text, own in zip(changes.to_pylist(), machines.to_pylist(), strict=True)
    ]
    return _lists(found, names)


def _robust_rows(context: RunContext, changes: Any, samples: Any, seeds: Any, machines: Any) -> pa.Array:
    """Returns, per JSON texts of spreads and machines, the list of rows of the macro robust."""
    calls = zip(*(one.to_pylist() for one in (changes, samples, seeds, machines)), strict=True)
    found = [
        robust(context, _numbers("robust", text), count, seed, _asked("robust", own))
        for text, count, seed, own in calls
    ]
    return _lists(found, ["machine", "share_on_front"])


def _asked(what: str, text: str) -> list[int] | None:
    """Returns the machines of the argument `machines` of a macro; None: all."""
    found = json.loads(text)
    if found == "all":
        return None
    if not isinstance(found, list) or not all(type(one) is int for one in found):
        raise ValueError(
            f"{what}: machines := {text}: give numbers, such as machines := [17, 18] or machines := "
            "(SELECT list(machine) FROM designs WHERE ...)"
        )
    return found


def _numbers(what: str, text: str) -> dict[str, float]:
    found = json.loads(text or "null")
    if not isinstance(found, dict) or not found:
        raise ValueError(f"{what}({text}): give prices with numbers, such as {what}({{dram_pj: 0.5}})")
    return found


def _lists(tables: Sequence[Mapping[str, NDArray[Any]]], names: Sequence[str]) -> pa.Array:
    """Returns a list of structures per table, one for each row."""
    kinds = {"machine": np.int64, "remapped": np.int64, "feasible": np.bool_}
    no_row: dict[str, NDArray[Any]] = {name: np.zeros(0, kinds.get(name, np.float64)) for name in names}
    found = [no_row, *(one for one in tables if one)]
    arrays = [pa.array(np.concatenate([np.asarray(one[name]) for one in found])) for name in names]
    offsets = np.cumsum([0, *(len(one["machine"]) if one else 0 for one in tables)])
    return pa.ListArray.from_arrays(
        pa.array(offsets, pa.int32()), pa.StructArray.from_arrays(arrays, names=list(names))
    )


# functions of SQL (dse/explain/functions.py) by name: Arrow columns in, one column out
FUNCTIONS: dict[str, Callable[..., pa.Array]] = {"what_if_of": _what_if_rows, "robust_of": _robust_rows}


def _check_numbers(what: str, given: Mapping[str, object], meaning: str, least: float) -> None:
    for name, number in given.items():
        if not isinstance(number, int | float) or not least <= number < inf:
            raise ValueError(f"{what}: {name} = {number}; give {meaning}")
