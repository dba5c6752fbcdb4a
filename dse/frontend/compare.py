"""What `dse compare` and `dse runs` print: two runs, or two mappings of a workload, compared; the runs
under a folder.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from dse.explain import units, values
from dse.explain.values import Table
from dse.frontend import check, tables
from dse.frontend.answers import REPR_WIDTH, Row
from dse.frontend.mapped import Mapped
from dse.frontend.runs import Run
from dse.mapping.nest import Infeasible
from dse.run import folder
from dse.sim.einsum.evaluate import EinsumCost
from dse.study import pareto
from dse.study import study as studies
from hw import machine, space
from workloads import document
from workloads.graph import names_text

METRICS = ("energy_pj", "latency_cycles", "latency_ns", "initiation_interval_cycles", "edp_pj_ns")
COUNTS = ("state", "done", "ok", "infeasible", "pruned", "error", "front")
HYPERVOLUME = "hypervolume"
TAGS = "tags.json"  # in a run's folder
RUN_COLUMNS = ("run", "state", "study", "machines", "front", "hypervolume", "tags", "time")


def growth(before: float | None, after: float | None) -> float | None:
    """Returns the share by which a value grew; None where one is missing or nothing changed.

    >>> growth(8.0, 10.0), growth(8.0, 8.0), growth(None, 8.0)
    (0.25, None, None)
    """
    return after / before - 1 if before and after is not None and before != after else None


def _growth_text(share: float | None) -> str:
    return "" if share is None else f"{100 * share:+.1f} %"


def mappings(a: Mapped, b: Mapped) -> list[Table]:
    """Returns what differs between two schedules of one workload: totals, energy by component, cost per
    einsum, and bytes moved and energy per einsum and level, the largest differences of energy first. Each row
    of einsums is of those whose mappings are equal in both, of all their occurrences.
    """
    totals_a, totals_b = a.totals, b.totals
    totals = [(key, totals_a[key], totals_b[key], growth(totals_a[key], totals_b[key])) for key in METRICS]
    costs_a, costs_b = _costs(a), _costs(b)
    names = [e.name for e in a.workload.einsums if e.name in costs_a or e.name in costs_b]
    names += [name for name in costs_b if name not in names]
    equal: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    firsts_a, firsts_b = _firsts(a), _firsts(b)
    for name in names:
        equal[firsts_a.get(name, ""), firsts_b.get(name, "")].append(name)
    groups = [*map(tuple, equal.values())]
    rows = [
        (own, *_pair(costs_a, costs_b, own, "energy_pj"), *_pair(costs_a, costs_b, own, "latency_cycles"))
        for own in groups
    ]
    title = f"{a.workload.name} on {a.arch.name}"
    levels = tuple(_largest_first(_level_rows(a, b, costs_a, costs_b, groups), 5))
    return [
        Table(title, ("metric", "A", "B", "change"), tuple(totals), key="totals"),
        Table("energy by component", COMPONENT_COLUMNS, tuple(_component_rows(a, b)), key="components"),
        Table("einsums", EINSUM_COLUMNS, tuple(_largest_first(rows, 1)), key="einsums"),
        Table(
            "traffic and energy that differ, per einsum and level"
            if levels
            else "no traffic or energy differs",
            LEVEL_COLUMNS,
            levels,
            "Levels at which nothing changed are left out; moved: bytes read and written.",
            "traffic",
        ),
    ]


COMPONENT_COLUMNS = ("component", "energy", "energy_pj A", "energy_pj B", "change")
EINSUM_COLUMNS = (
    *("einsums", "energy_pj A", "energy_pj B", "energy change"),
    *("latency_cycles A", "latency_cycles B", "latency change"),
)
LEAKAGE = "leakage"  # level of what all components draw while an einsum runs
LEVEL_COLUMNS = (
    "einsums",
    "level",
    "moved_bytes A",
    "moved_bytes B",
    "moved change",
    "energy_pj A",
    "energy_pj B",
)


def _largest_first(rows: Iterable[tuple[Any, ...]], at: int) -> list[tuple[Any, ...]]:
    """Returns rows by how far the values in the columns `at` and `at` + 1 lie apart."""
    return sorted(rows, key=lambda row: -abs((row[at] or 0.0) - (row[at + 1] or 0.0)))


def _component_rows(a: Mapped, b: Mapped) -> list[tuple[Any, ...]]:
    """Returns the rows of COMPONENT_COLUMNS, without those of no energy."""
    found: defaultdict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for i, one in enumerate((a, b)):
        for part in () if isinstance(one.solution, Infeasible) else values.components(one.arch, one.solution):
            found[part.name, "dynamic"][i] = part.dynamic_pj
            found[part.name, "static"][i] = part.static_pj
    return _largest_first(((*key, *pair, growth(*pair)) for key, pair in found.items() if any(pair)), 2)


def _costs(one: Mapped) -> dict[str, EinsumCost]:
    """Returns the cost of each einsum by its name, its own occurrences as `count`."""
    if isinstance(one.solution, Infeasible):
        return {}
    times_of = {e.name: n for e, n in one.workload.runs()}
    groups = values.equal_names(one.workload, one.solution, one.plan)
    return {
        name: replace(c, count=times_of[name] if len(names) > 1 else c.count)
        for c, names in zip(one.solution.einsums, groups, strict=True)
        for name in names
    }


def _firsts(one: Mapped) -> dict[str, str]:
    """Returns for each einsum the first of those that have its mapping and cost."""
    if isinstance(one.solution, Infeasible):
        return {}
    groups = values.equal_names(one.workload, one.solution, one.plan)
    return {name: names[0] for names in groups for name in names}


def _pair(
    a: dict[str, EinsumCost], b: dict[str, EinsumCost], names: Sequence[str], metric: str
) -> tuple[float | None, float | None, float | None]:
    """Returns (A, B, change) of a metric of all occurrences of equal einsums; None where one lacks them."""
    before, after = (
        sum(costs[name].count * getattr(costs[name], metric) for name in names) if names[0] in costs else None
        for costs in (a, b)
    )
    return before, after, growth(before, after)


def _level_rows(
    a: Mapped,
    b: Mapped,
    costs_a: dict[str, EinsumCost],
    costs_b: dict[str, EinsumCost],
    groups: Sequence[tuple[str, ...]],
) -> Iterator[tuple[Any, ...]]:
    """Yields the rows of LEVEL_COLUMNS in which A and B differ."""
    for names in groups:
        levels_a, levels_b = (
            _levels(one, [costs[name] for name in names if name in costs])
            for one, costs in ((a, costs_a), (b, costs_b))
        )
        for level in dict.fromkeys([*levels_a, *levels_b]):
            (bytes_a, energy_a), (bytes_b, energy_b) = levels_a[level], levels_b[level]
            if (bytes_a, energy_a) != (bytes_b, energy_b):
                moved = (None, None) if level == LEAKAGE else (bytes_a, bytes_b)
                yield names, level, *moved, growth(*moved), energy_a, energy_b


def _levels(one: Mapped, costs: Sequence[EinsumCost]) -> defaultdict[str, tuple[float, float]]:
    """Returns level -> (bytes read and written, dynamic energy in pJ) of all occurrences of equal einsums,
    and what leaks meanwhile.
    """
    found: defaultdict[str, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    if not costs:
        return found
    cost, occurrences = costs[0], sum(own.count for own in costs)
    e = next(e for e in one.workload.einsums if e.name == cost.name)
    for name, moved in values.moved_bytes(one.arch, e, cost).items():
        found[name] = occurrences * moved, 0.0
    for part in cost.price.parts:
        name = LEAKAGE if part.action == "leak" else part.level
        moved, energy = found[name]
        found[name] = moved, energy + occurrences * part.energy_pj
    return found


def machines(a: str, b: str, sets: Mapping[str, Any]) -> list[Table]:
    """Returns what differs between two machines, given by name or file, each with the fields `sets`: size,
    rate and area, then every field, and every number that the tables give. Raises ValueError.
    """
    specs = [space.override(machine.load(one), sets) for one in (a, b)]
    archs = [machine.arch(spec) for spec in specs]
    totals = [
        {
            "mac_units": arch.instances(len(arch.levels)),
            "clock_ghz": arch.clock_ghz,
            "peak_tops": arch.peak_tops(),
            "area_mm2": arch.area_mm2(),
            "leak_mw": arch.leak_mw(),
        }
        for arch in archs
    ]
    built = [space.built_values(*pair) for pair in zip(specs, archs, strict=True)]
    names = [{node.name for node in spec.nodes} for spec in specs]
    rows = [(key, *_pair_of(*(one.get(key) for one in built))) for key in {**built[0], **built[1]}]
    differing = [
        row
        for row in rows
        if row[1] != row[2] and row[0] not in space.TOTALS and row[0].split(".")[0] not in names[0] ^ names[1]
    ]
    differing += [
        (name, "there" if name in names[0] else "absent", "there" if name in names[1] else "absent", None)
        for name in (node.name for spec in specs for node in spec.nodes)
        if name in names[0] ^ names[1]
    ]
    says = "Energies, areas and leakage that a file leaves out are those of the tables."
    absent = " dse check MACHINE prints components that only one has." if names[0] != names[1] else ""
    return [
        Table(
            f"{specs[0].name} (A), {specs[1].name} (B)",
            ("metric", "A", "B", "change"),
            tuple((key, *_pair_of(totals[0][key], totals[1][key])) for key in totals[0]),
            key="totals",
        ),
        Table("fields that differ", ("field", "A", "B", "change"), tuple(differing), says + absent, "fields")
        if differing
        else Table("no field differs", ("field", "A", "B", "change"), (), key="fields"),
    ]


def _pair_of(a: Any, b: Any) -> tuple[Any, Any, float | None]:
    """Returns (A, B, change) of a field; None where a machine has none."""
    a, b = (None if one != one else one for one in (a, b))
    are_numbers = all(isinstance(one, int | float) and not isinstance(one, bool) for one in (a, b))
    return a, b, growth(a, b) if are_numbers else None


def points(run: Run, a: str, b: str) -> list[Table]:
    """Returns what differs between two points of a run, named as for `dse show`: columns of its machines,
    then what `mappings` says of each workload. Raises ValueError.
    """
    from analysis import db

    shown = [run.show(one) for one in (a, b)]
    if lacking := [one for one in shown if not one.solutions]:
        raise ValueError(f"{run.path}: machine {lacking[0].machine} has no mapping; dse show says why")
    keys = dict.fromkeys(
        [*studies.columns(run.study, "machines"), "area_mm2", *map(db.column_of, run.objectives())]
    )
    pairs = [(key, shown[0].row.get(key), shown[1].row.get(key)) for key in keys]
    gaps = [one.row.get("optimality_gap") for one in shown]
    differing = [(key, *_pair_of(*pair)) for key, *pair in pairs if pair[0] != pair[1]]
    title = f"machine {shown[0].machine} (A), machine {shown[1].machine} (B){'' if differing else ': equal'}"
    header = ("metric", "A", "B", "change")
    found = [Table(title, header, tuple(differing), _gap_note(gaps), "machines")]
    for first, second in zip(shown[0].solutions, shown[1].solutions, strict=True):
        totals, *others = mappings(first, second)
        name = first.workload.name
        found.append(replace(totals, title=name, key=f"{name}.{totals.key}"))
        found += [replace(one, title=f"{name}: {one.title}", key=f"{name}.{one.key}") for one in others]
    return found


def _gap_note(gaps: Sequence[float | None]) -> str:
    """Returns how far the costs of A and B may lie above their optima; "" where neither does."""
    if not any(gaps):
        return ""
    texts = [tables.fact("gap", gap or 0.0) for gap in gaps]
    return (
        f"costs are up to {texts[0]} (A) and {texts[1]} (B) above their optima (solver.gap, "
        "sharing_gap): a smaller change may be one of searches"
    )


def other_work(a: Run, b: Run) -> str:
    """Returns a line for two runs that solve different workloads; "" where they are the same."""
    works = [{ref.name: (ref.digest, ref.weight) for ref in run.study.workloads} for run in (a, b)]
    if works[0] == works[1]:
        return ""
    names = [", ".join(work) for work in works]
    how = f"{names[0]} and {names[1]}" if names[0] != names[1] else f"{names[0]}, not the same in both"
    return f"the runs solve different workloads ({how}): their costs and hypervolumes are of different work"


def runs(a: Run, b: Run) -> list[Table]:
    """Returns the progress of two runs, the keys in which their studies differ, and the best value of each
    objective that both have.
    """
    status_a, status_b = a.status(), b.status()
    counts = [(key, status_a.get(key), status_b.get(key)) for key in COUNTS]
    old, new = (
        studies.identity(one.study)
        | {f"stop.{key}": str(own) for key, own in asdict(one.study.stop).items() if own is not None}
        for one in (a, b)
    )
    keys = [key for key in dict.fromkeys([*old, *new]) if old.get(key) != new.get(key)]
    best = [_best(a, b, key) for key in a.objectives() if key in b.objectives()]
    notes = list[str]()
    if a.objectives() == b.objectives() and (both := _hypervolumes(a, b)):
        (before, after), note = both
        best.append((HYPERVOLUME, before, after, growth(before, after)))
        notes.append(note)
    gaps = a.worst_gap(), b.worst_gap()
    notes += filter(None, [_gap_note(gaps)])
    counts.append(("worst_gap", *gaps))
    return [
        Table("runs", ("key", "A", "B"), tuple(counts), key="runs"),
        Table(
            "best of the feasible machines",
            ("objective", "A", "B", "change"),
            tuple(best),
            "; ".join(notes),
            "objectives",
        ),
        Table(
            "keys of the studies that differ",
            ("key", "A", "B"),
            tuple((key, old.get(key), new.get(key)) for key in keys),
            key="study_keys",
        ),
    ]


class Comparison(dict[str, list[Row]]):
    """Rows by name of the table; prints as the tables of `dse compare`."""

    def __init__(self, found: Sequence[Table]) -> None:
        super().__init__({name: [*map(Row, rows)] for name, rows in to_json(found).items()})
        self.found = found

    def __repr__(self) -> str:
        return "\n\n".join(text(one, REPR_WIDTH) for one in self.found)


def compare(run: Run, a: Run | str | int, b: str | int = "best") -> Comparison:
    """Returns what `dse compare` prints of two points of a run (named as for `show`), or of this run and
    another one. Raises ValueError.
    """
    return Comparison(runs(run, a) if isinstance(a, Run) else points(run, str(a), str(b)))


def to_json(comparison: Sequence[Table]) -> dict[str, list[dict[str, Any]]]:
    """Returns the rows of each table by its key, with names of columns as in `energy_pj_a`."""
    return {
        one.key: [
            {head.lower().replace(" ", "_"): cell for head, cell in zip(one.header, row, strict=True)}
            for row in one.rows
        ]
        for one in comparison
    }


def _shown(table: Table) -> Table:
    """Returns a table with its cells as text: values of A and B in one unit per row, by the name in the first
    column or of their own, shares of growth in percent, long texts cut.
    """
    missing = "none" if table.header[0] in ("key", "objective") else ""  # of runs; of machines
    header = table.header
    columns_a = [i for i, head in enumerate(header) if head == "A" or head.endswith(" A")]

    def cells(row: Sequence[Any]) -> Iterator[Any]:
        pairs = {
            i: _pair_texts(header[i].removesuffix("A").strip() or str(row[0]), *row[i : i + 2])
            for i in columns_a
        }
        for i, value in enumerate(row):
            if i in pairs or i - 1 in pairs:
                text = pairs[i][0] if i in pairs else pairs[i - 1][1]
                yield missing if text is None else text
            elif "change" in header[i]:
                a, b = row[i - 2 : i]
                yield "equal" if a is not None and a == b else _growth_text(value)
            else:
                text = names_text(value) if isinstance(value, tuple) else value
                yield f"{text} (one box)" if text == HYPERVOLUME else text

    names = tuple("einsum" if name == "einsums" else name for name in header)  # as `dse map` has it
    return replace(table, header=names, rows=tuple(tuple(cells(row)) for row in table.rows))


def text(one: Table, width: int) -> str:
    """Returns a table of a comparison as `dse compare` prints it, at most `width` columns wide: the unit of a
    column such as `energy_pj A` is in its cells.
    """
    if not one.rows:
        return one.title
    one = _shown(one)
    keys = [name.removesuffix(" A").removesuffix(" B") for name in one.header]
    heads = [units.label(key) + name[len(key) :] for key, name in zip(keys, one.header, strict=True)]
    is_metric = one.header[0] == "metric"
    rows = [(units.label(row[0]), *row[1:]) if is_metric else row for row in one.rows]
    found = tables.table(heads, rows, one.title, (), width, keys).rstrip("\n")
    return f"{found}\n\n{one.note}" if one.note else found


def _pair_texts(key: str, a: Any, b: Any) -> tuple[str | None, str | None]:
    """Returns a value of A and of B as text, numbers that are no whole ones in one unit; None: no value."""
    name = key.partition(":")[0]
    unit = " GB/s" if name.endswith((".bandwidth", ".write_bandwidth")) else ""
    shared = (
        units.column(name, [a, b]) if isinstance(a, float) and isinstance(b, float) and not unit else None
    )
    if shared and not name.endswith(("_s", "seconds", "time")):
        return shared[0], shared[1]
    texts = (
        None if one is None else _short(one) if isinstance(one, str) else tables.fact(name, one) + unit
        for one in (a, b)
    )
    first, second = texts
    return first, second


def _hypervolumes(a: Run, b: Run) -> tuple[list[float], str] | None:
    """Returns the hypervolumes of two runs with the same objectives in the box of both, and what to say of
    it; None without a point.
    """
    objectives = a.study.objectives
    names, signs = [o.column for o in objectives], pareto.signs(objectives)
    statement = f"SELECT {', '.join(names)} FROM points WHERE feasible"
    found = [
        np.column_stack([column.to_numpy() for column in run.sql(statement).table.columns]) * signs
        for run in (a, b)
    ]
    box = np.concatenate(found)
    if not len(box):
        return None
    reference = dict(zip(names, pareto.scaler(box).reference() * signs, strict=True))
    at = tables.fact("", reference)
    note = f"hypervolume: in one box, that of the feasible points of both; reference {at}"
    return [pareto.boxed_hypervolume(one, box) for one in found], note


def _best(a: Run, b: Run, objective: str) -> tuple[str, float | None, float | None, float | None]:
    """Returns (objective, best value of run A, of run B, growth)."""
    from analysis import db

    least = f'{"max" if db.maximised(objective) else "min"}("{db.column_of(objective)}")'
    asked = f"SELECT {least} FROM designs WHERE feasible"
    before, after = (run.sql(asked).rows()[0][0] for run in (a, b))
    return objective, before, after, growth(before, after)


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."


def under(root: Path) -> list[tuple[Any, ...]]:
    """Returns a row (RUN_COLUMNS) for each run below a folder, by path. Raises ValueError if there is no
    such folder.
    """
    if not root.is_dir():
        raise ValueError(f"{root}: no such folder; give one that holds runs, e.g. runs")
    rows = []
    for place, folders, files in os.walk(root):
        if folder.MANIFEST in files or (folder.STUDY in files and "parts" in folders):
            folders.clear()
            rows.append(_run_row(Path(place)))
        folders.sort()
    return rows


def tag(root: Path, tags: str) -> None:
    """Gives a run these tags, separated by commas, in place of those that it has. Raises ValueError."""
    folder.raise_if_no_run(root)
    words = [word.strip() for word in tags.split(",")]
    value = {"tags": ", ".join(filter(None, words))}
    folder.write_bytes(root / TAGS, folder.seal("tags", value))


def _run_row(root: Path) -> tuple[Any, ...]:
    """Returns the row of RUN_COLUMNS of a run. A damaged one has no counts."""
    data, _ = document.read(root / folder.STUDY)
    name = str(data.get("name", root.name)) if isinstance(data, dict) else ""
    tags = str((folder.unseal(root / TAGS, "tags") or {}).get("tags", ""))
    try:
        facts = check.status(root, skip_damaged=True)
    except ValueError:
        return str(root), "damaged", name, None, None, None, tags, ""
    time = tables.fact("time", facts["time"]) if "time" in facts else ""
    counts = (facts["done"], facts.get("front"), facts.get("hypervolume"))
    versions = check.other_model(root)
    state = facts["state"] + f" (by {versions}: other costs)" * bool(versions)
    return str(root), state, name, *counts, tags, time
