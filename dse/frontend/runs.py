"""The Python interface of runs: dse.sweep, dse.open, dse.open_all. The command line prints the same values.

Stored values need no solver, simulator or workload, so that answers come fast; what needs these imports them.
The file is longer than the usual 400 lines because one class has all that a run answers.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache as cache_in_memory
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsFloat, TypeVar

import numpy as np
import pyarrow as pa

from dse.explain import functions, units
from dse.frontend import check, tables
from dse.frontend.answers import Answer, answer, attribute, item, section
from dse.mapping import schedule as schedules
from dse.mapping.conversion import Conversion, with_conversions
from dse.mapping.nest import Infeasible
from dse.run import cache, folder, pack, record
from dse.study import pareto, prune
from dse.study import study as studies
from dse.study.study import Study
from hw import space as spaces
from hw.arch import Arch
from hw.component import closest_name
from hw.machine import arch as build_arch
from workloads.graph import Workload
from workloads.meant import meant

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

    from analysis.plots import Picture
    from dse.explain.derived import RunContext
    from dse.frontend.mapped import Mapped

T = TypeVar("T")
FETCHES = 4  # attempts to read a copy that its driver is changing
MAX_FUSED = 1000  # machines of a run that is advised to be run again with another schedule, at most
NO_WRAP = ' style="white-space: nowrap"'  # of a short cell in a notebook
LEAST_GAP = 1e-5  # the least that the certificate of a front says, above rounding
MAX_STEPS = 16  # values of an axis whose neighbours alone are one step away
MAX_HTML_ROWS = 1000  # rows of an answer that a notebook shows
# view -> its columns from which a schedule is costed again, and what follows FROM view
STORED = {
    "einsums": (
        "einsum, nest, optimality_gap, certificate",
        "JOIN mappings USING (mapping_key, einsum_key) WHERE [machines]",
    ),
    "workload_costs": ("energy_pj, latency_cycles, certificate", "WHERE [machines]"),
    "conversions": (
        'tensor, layout, "to", readers, energy_pj, latency_cycles, saved_cost AS saved',
        "WHERE [machines] ORDER BY position",
    ),
    "schedules": ("nest", "WHERE [machines] AND nest IS NOT NULL"),
}
Stored = dict[str, dict[tuple[int, int, str], list[dict[str, Any]]]]


def sweep(
    study: str | Path,
    out: str | Path | None = None,
    *,
    workers: int | None = None,
    address: str | None = None,
    progress: Callable[[Any], None] | None = None,
    **sets: Any,
) -> Run:
    """Runs a study, or continues it, and opens its folder.

    out: the folder (default: runs/<name>), or a URL (docs/cluster.md)
    workers: actors; 0: in this process, without Ray; None: one per CPU
    progress: called about every second with done, planned, rate, left_s and the other fields of `dse status`
    sets: keys of the study, as in --set: **{"stop.machines": 60}

    Raises ValueError with one line per fault of the study, or one line if the run cannot continue.
    """
    from cluster import driver, objects

    loaded = studies.load(study, [f"{key}={json.dumps(value)}" for key, value in sets.items()])
    with objects.run_folder(str(out or f"runs/{loaded.name}")) as place:
        driver.run(loaded, place.path, workers, address, progress, publisher=place.publisher)
        return open(place.path)


@dataclass(frozen=True, slots=True)
class Point:
    """One schedule of one machine of a run, explained."""

    machine: int
    schedule: int  # its number among the machine's schedules, from 0
    why_chosen: str  # the machine, and why it was chosen
    row: Mapping[str, Any]  # its row of the table machines
    solutions: tuple[Mapped, ...]  # per workload, costed again
    # a schedule of one of the workloads from a file, on the same machine, to compare
    given_schedule: Mapped | None = None

    def text(self, einsum: str | None = None, width: int = tables.WIDE, why: bool = False) -> str:
        """Returns what `dse show` prints. einsum, why: as of a mapping. Totals that a single workload
        has, too, are not printed twice.
        """
        shown = self.solutions if self.given_schedule is None else ()
        totals = shown[0].totals if len(shown) == 1 else {}
        rest = {key: value for key, value in self.row.items() if key not in HIDDEN_COLUMNS}
        rest = {key: value for key, value in rest.items() if key not in totals or totals[key] != value}
        if not why and "certificate" in rest:
            from dse.explain.values import short_certificate

            rest["certificate"] = short_certificate(rest["certificate"])
        head = tables.facts(rest, self.why_chosen, width)
        if self.given_schedule is None:
            return "\n".join([head, *(one.text(einsum, width, why) for one in self.with_einsum(einsum))])
        rows = [(units.label(metric), *cells) for metric, *cells in self.compared()]
        comparison = tables.table(
            ("metric", "found", "given", "change"),
            rows,
            f"{self.given_schedule.workload.name}: the schedule found, the one given",
        )
        return "\n".join([head, comparison, self.given_schedule.text(einsum, width, why)])

    def with_einsum(self, name: str | None) -> tuple[Mapped, ...]:
        """Returns the solutions whose workload has this einsum; all for None and "all". Raises ValueError."""
        if name in (None, "all") or not self.solutions:
            return self.solutions
        names = [[own.name for own in one.workload.einsums] for one in self.solutions]
        if not any(name in own for own in names):
            advice = closest_name(str(name), ["all", *dict.fromkeys(chain.from_iterable(names))])
            raise ValueError(f"--einsum {name}: no workload of the run has such an einsum; {advice}")
        return tuple(one for one, own in zip(self.solutions, names, strict=True) if name in own)

    def __getattr__(self, name: str) -> Any:
        """Returns one of the columns of `row`, as in x.energy_pj or x.certificate; of a point of one workload
        also its other totals, as x.space.
        """
        if name.startswith("_"):
            raise AttributeError(name)
        return attribute(self._values(), name)

    def __getitem__(self, name: str) -> Any:
        """Returns what `__getattr__` does, as in x["energy_pj"]. Raises KeyError."""
        return item(self._values(), name)

    def _values(self) -> dict[str, Any]:
        """Returns `row`, and of a point of one workload its other totals."""
        totals = self.solutions[0].totals if len(self.solutions) == 1 else {}
        return {**totals, **self.row}

    def compared(self) -> list[tuple[str, str, str, str]]:
        """Returns (metric, found schedule, given schedule, change); [] if either does not fit."""
        if self.given_schedule is None or "energy_pj" not in self.given_schedule.totals:
            return []
        found_totals = next(
            one for one in self.solutions if one.workload.name == self.given_schedule.workload.name
        ).totals
        return [
            (
                key,
                tables.fact(key, found_totals[key]),
                tables.fact(key, self.given_schedule.totals[key]),
                _change(found_totals[key], self.given_schedule.totals[key]),
            )
            for key in ("energy_pj", "latency_ns", "initiation_interval_cycles", "edp_pj_ns")
            if key in found_totals
        ]

    def __repr__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        shown = {key: value for key, value in self.row.items() if key not in HIDDEN_COLUMNS}
        return section(self.why_chosen, shown) + "".join(one._repr_html_() for one in self.solutions)


# columns of a machine's row that are not printed
HIDDEN_COLUMNS = ("key", "generation", "source", "model_version", "solver_version")
# what a run prints of its status
SUMMARY = ("state", "reason", "done", "ok", "infeasible", "pruned", "error", "front", "hypervolume")


@dataclass(slots=True)
class Run:
    """A run's folder, also during the run: each question sees the rows committed so far."""

    path: Path
    study: Study
    con: DuckDBPyConnection  # replaced after each statement that was stopped
    skip_damaged: bool = False
    memory: str = "4GB"  # memory limit of DuckDB
    seconds: float = 60.0  # limit of a statement
    url: str = ""  # of a run on a store, of which `path` is a copy

    def __repr__(self) -> str:
        return tables.facts(self._summary(), str(self.path))

    def _summary(self) -> dict[str, Any]:
        return {key: value for key, value in self.status().items() if key in SUMMARY}

    def _repr_html_(self) -> str:
        metrics = [o.column for o in self.study.objectives]
        names = ["machine", *metrics, *studies.columns(self.study, "machines"), "gap_to_bound"]
        front = Answer(self.front(distinct=True).table.select(list(dict.fromkeys(names))))
        return f"{section(str(self.path), self._summary())}<p>front</p>{front._repr_html_()}"

    def sql(self, statement: str) -> Answer:
        """Returns the rows of one read-only statement over the views: `FROM designs`, ... Raises ValueError
        in one line.
        """
        from analysis import db

        return self._answer(lambda con: db.query(con, statement, self.seconds))

    def _answer(self, ask: Callable[[DuckDBPyConnection], pa.Table]) -> Answer:
        """Returns the connection's answer. After a statement was stopped the connection is replaced, because
        the old one may be busy for long.
        """
        from analysis import db

        try:
            return Answer(_fetched_again(self.url, lambda: ask(self.con)))
        except (db.Stopped, KeyboardInterrupt):
            self.con = connection(self.path, self.study, skip_damaged=self.skip_damaged, memory=self.memory)
            raise

    def status(self) -> dict[str, Any]:
        """Returns state, rate and progress as `dse status --format json` prints them."""
        return check.status(self.path, self.skip_damaged)

    def unfinished(self) -> str:
        """Returns how many of its machines a run that has not finished has solved, in one line; "" of one
        that has, and where its status is lost.
        """
        with suppress(ValueError):
            status = check.status(self.path, skip_damaged=True)
            state, done, planned = (status.get(key) for key in ("state", "done", "planned"))
            if state in ("finished", "not started") or planned is None:
                return ""
            goes_on = "" if state == "running" else f"; dse resume {self.url or self.path} goes on"
            return (
                f"{done:,} of {planned:,} machines solved ({state}): fronts, best values and counts are of "
                f"these{goes_on}"
            )
        return ""

    def _is_sample(self) -> bool:
        """True if machines of the space are left that the run has not asked for."""
        with suppress(ValueError):
            status = check.status(self.path, skip_damaged=True)
            return bool(status.get("done", 0) < self.study.space.size)
        return False

    def objectives(self) -> list[str]:
        """Returns the study's objectives as `column:direction`, in order."""
        return [f"{o.column}:{o.direction}" for o in self.study.objectives]

    def front(
        self,
        objectives: str | Sequence[str] = (),
        where: str = "",
        by: str | Sequence[str] = (),
        distinct: bool = False,
        epsilon: float | None = None,
        knee: bool = False,
        columns: str | Sequence[str] | None = None,
    ) -> Answer:
        """Returns the non-dominated feasible points, best in the first objective first: their rows of
        `designs`.

        objectives: columns of points; "-x" or "x:max" maximises; (): the study's
        where: SQL condition over points and machines
        by: one front for each value of these columns
        distinct: one point, the first, of points with equal objectives; `tied_designs` is how many there are
        epsilon: few points, so that each of the front has one that is worse by at most this share
        knee: the point of least sum of objectives, each scaled to 0 (best on the front) .. 1 (worst), of
            equal sums that whose worst objective is best; `tied_designs` as with `distinct`
        columns: those behind machine, schedule and objectives; None: all

        A text is a list of names with commas between them. Raises ValueError.
        """
        from analysis import db

        own, by = _names(objectives) or self.objectives(), _names(by)
        columns = None if columns is None else _names(columns)
        epsilon = None if epsilon is None else _number("epsilon", epsilon, "a share, such as 0.05 for 5 %")
        of_study = {*map(db.objective, own)} == {*self.objectives()}
        return self._answer(
            lambda con: db.front(
                con, own, where, by, distinct, self.seconds, epsilon, knee, of_study, columns
            )
        )

    def hypervolume(self, objectives: str | Sequence[str] = (), reference: Sequence[float] = ()) -> float:
        """Returns the hypervolume of the front of feasible points, as `status` has it: in the box of these
        points, up to `hypervolume_reference`. objectives: as of `front`. reference: a value of each objective
        in its own unit; then the volume up to there in these units.
        """
        listed = ", ".join("'" + o.replace("'", "''") + "'" for o in _names(objectives) or self.objectives())
        values = ", ".join(repr(_number("reference", one, "a value of each objective")) for one in reference)
        rows = self.sql(
            f"FROM hypervolume('(FROM points WHERE feasible)', [{listed}], reference := [{values}]::DOUBLE[])"
        )
        return float(rows[0]["hypervolume"] or 0.0)

    def what_if(self, factors: Mapping[str, float], machines: Sequence[int] | None = None) -> Answer:
        """Returns the points at other prices, each multiplied by a factor, with the mapping of each einsum
        chosen again among all of the run (docs/sql.md, 16). factors: {"dram_pj": 0.5}; machines: of these
        alone (None: of all). Raises ValueError.
        """
        return self.sql(f"FROM what_if({_struct(factors)}{_machines(machines)}) ORDER BY machine")

    def robust(
        self,
        spreads: Mapping[str, float],
        samples: int = 100,
        seed: int = 0,
        machines: Sequence[int] | None = None,
    ) -> Answer:
        """Returns for each point the share of samples of prices in which it is on the front, mappings chosen
        again, then its row of `designs`; the largest share first. spreads: {"dram_pj": 0.2} multiplies the
        price by 1.2 ** z, z of a standard normal distribution; machines: on the front of these alone (None:
        of all). Raises ValueError.
        """
        count, start = (
            int(_number(*one, "a whole number")) for one in (("samples", samples), ("seed", seed))
        )
        asked = f"{_struct(spreads)}, {count}, seed := {start}{_machines(machines)}"
        return self.sql(f"FROM robust({asked}) ORDER BY share_on_front DESC, machine")

    def axis_hints(self, objectives: Sequence[str] = ()) -> list[str]:
        """Returns a line for each group of objectives whose best points all lie at ends of axes of numbers:
        wider, these may have better ones. Area is left out (less of anything is smaller), and so are axes of
        which the run has one value yet. Of a run that has not finished, or ended with machines of its space
        left, it returns none: its machines need not be spread evenly. objectives: of the study's these alone;
        (): all.
        """
        from analysis import db

        if self.unfinished() or self._is_sample():
            return []

        axes = [
            axis
            for axis in self.study.space.axes
            if len(axis.values) > 1
            and all(isinstance(v, int | float) and v is not True for v in axis.values)
            and not spaces.is_least(self.study.space, axis.key)
        ]
        asked = {*map(db.objective, objectives or self.objectives())}
        measured = [
            o
            for o in self.study.objectives
            if o.metric != "area_mm2" and f"{o.column}:{o.direction}" in asked
        ]
        if not axes or not measured:
            return []
        columns = [
            f'"{name}"' for name in (*(pareto.slug(a.key) for a in axes), *(o.column for o in measured))
        ]
        ends = ", ".join(
            f'{"max" if o.direction == "max" else "min"}("{o.column}") AS best{i}'
            for i, o in enumerate(measured)
        )
        # of each axis how many values it has, then of each objective the least and the greatest value where
        # the objective is best
        counted = [f"count(DISTINCT {name})" for name in columns[: len(axes)]] + [
            f"{end}({name}) FILTER ({columns[len(axes) + i]} = best{i})"
            for i in range(len(measured))
            for name in columns[: len(axes)]
            for end in ("min", "max")
        ]
        row = self.sql(
            f"WITH found AS MATERIALIZED (SELECT {', '.join(columns)} FROM designs WHERE feasible) "
            f"SELECT {', '.join(counted)} FROM found, (SELECT {ends} FROM found)"
        ).rows()[0]
        at = iter(row[len(axes) :])
        found: dict[str, list[str]] = {}  # where on which axis -> objectives
        for objective in measured:
            for axis, count in zip(axes, row, strict=False):
                least, greatest = next(at), next(at)
                for end, name in ((min(axis.values), "smallest"), (max(axis.values), "largest")):
                    if count > 1 and least == greatest == end and _goes_on(self.study.space, axis, end):
                        place = f"at the {name} {axis.key}, {tables.fact(axis.key, end)}"
                        found.setdefault(place, []).append(
                            f"the {'highest' if objective.direction == 'max' else 'lowest'} "
                            f"{units.label(objective.column)}"
                        )
        places: dict[tuple[str, ...], list[str]] = {}  # objectives -> where
        for place, names in found.items():
            places.setdefault(tuple(names), []).append(place)
        return [
            f"{' and '.join(names)} {'lie' if len(names) > 1 else 'lies'} {', and '.join(where)}: widen "
            + ("that axis" if len(where) == 1 else "these axes")
            for names, where in places.items()
        ]

    def worst_gap(self) -> float | None:
        """Returns the largest optimality gap of feasible points; None without one."""
        gap: float | None = self.sql("SELECT max(optimality_gap) FROM points WHERE feasible").rows()[0][0]
        return gap

    def gap_note(self) -> str:
        """Returns how far costs of shared mappings lie above their optima, within which points may change
        places; "" where they do not, and where the certificate says it.
        """
        if self.study.solver.objective == "front" or not self.study.solver.sharing_gap:
            return ""
        gap = self.worst_gap()
        return (
            f"costs are up to {tables.fact('gap', gap)} above their optima (solver.sharing_gap): points "
            "that differ by less, on the front or behind it, may change places in a closer search"
            if gap
            else ""
        )

    def plot(
        self, kind: str = "front", point: str | int = "best", workload: str = "", einsum: str | None = None
    ) -> Picture:
        """Returns a picture, which a notebook shows and `.save("x.pdf")` writes: front, breakdown, roofline
        (of `point` and `workload`, a name; "": the first; of `einsum`; None: all), sensitivity or progress.
        """
        from dse.frontend import pictures

        return pictures.of_run(self, kind, point, workload, einsum)

    def report(self, path: str | Path, others: Sequence[Run] = ()) -> None:
        """Writes the run as one HTML file that needs no network, with the fronts of other runs beside its
        own. Raises ValueError.
        """
        from dse.frontend import report_data

        text = report_data.document(self, others)
        try:
            Path(path).write_text(text, encoding="utf-8")
        except OSError as fault:
            raise ValueError(f"{path}: cannot be written ({fault.strerror}); give another name") from None

    def to_optuna(self, target: str) -> int:
        """Writes the run as a study of Optuna's: a trial per point, a failed one per machine without points.
        Returns how many. target: a journal file, or the URL of a database (sqlite:///run.db). Raises
        ValueError.
        """
        from dse.study import optuna_storage

        objectives = {o.column: o.direction for o in self.study.objectives}
        broken = [prune.violation_column(c) for c in self.study.constraints.modelled]
        columns = ", ".join(f'"{name}"' for name in (*objectives, *broken))
        points: dict[int, list[Mapping[str, Any]]] = {}
        for row in self.sql(f"SELECT machine, {columns} FROM points ORDER BY machine, schedule"):
            points.setdefault(row["machine"], []).append(row)
        rows: list[optuna_storage.Row] = []
        for machine in self.sql("SELECT machine FROM machines ORDER BY generation, machine"):
            parameters = spaces.values(self.study.space, machine["machine"])
            own = points.get(machine["machine"], [])
            rows += [
                (parameters, [row[name] for name in objectives], {name: row[name] for name in broken})
                for row in own
            ] or [(parameters, None, {})]
        optuna_storage.write(target, self.study.name, self.study.space.axes, objectives, rows)
        return len(rows)

    def show(self, point: str | int = "best", schedule: str | Path = "") -> Point:
        """Returns a point explained. Its mappings are costed again; ValueError if a stored cost differs.

        point: MACHINE, "MACHINE.SCHEDULE", "best" or "best:COLUMN"
        schedule: a file as in `map`, priced on the point's machine; einsums that are missing there are mapped
            by themselves
        """
        machine, schedule_number, why_chosen = self._point(str(point))
        rows = self.sql(f"FROM machines WHERE machine = {machine}").table.to_pylist()
        if not rows:
            size = self.study.space.size
            why = (
                f"is not solved: {self.why_unsolved(machine)}"
                if machine < size
                else f"is not in the space, which has machines 0 to {size - 1}"
            )
            raise ValueError(f"{self.path}: POINT = {point}: machine {machine} {why}")
        arch = spaces.decode(self.study.space, machine)
        solved = tuple(
            self._reprice(arch, machine, schedule_number, str(point), self._stored([machine]))
            if rows[0]["status"] == "ok" and isinstance(arch, Arch)
            else ()
        )
        return Point(
            machine,
            schedule_number,
            why_chosen,
            self._with_totals(rows[0], schedule_number),
            solved,
            self._price_given_schedule(arch, Path(schedule)) if schedule and isinstance(arch, Arch) else None,
        )

    def solutions(self, points: Sequence[tuple[int, int]]) -> Iterator[tuple[Mapped, ...]]:
        """Yields for each (machine, schedule) its `solutions`, as of `show`; what is stored of all of them is
        asked for at once.
        """
        stored = self._stored([machine for machine, _ in points])
        for machine, schedule in points:
            arch = spaces.decode(self.study.space, machine)
            name = f"{machine}.{schedule}"
            yield tuple(
                self._reprice(arch, machine, schedule, name, stored) if isinstance(arch, Arch) else ()
            )

    def _stored(self, machines: Sequence[int]) -> Stored:
        """Returns by view, then by (machine, schedule, workload), the rows of which schedules of machines are
        costed again.
        """
        listed = ", ".join(map(str, machines))
        condition = f"machine = {listed}" if len(machines) == 1 else f"machine IN ({listed})"
        found: Stored = {}
        for view, (columns, rest) in STORED.items():
            asked = f"SELECT machine, schedule, workload, {columns} FROM {view} {rest}"
            rows = self.sql(asked.replace("[machines]", condition)).table.to_pylist() if machines else ()
            by_point = found.setdefault(view, defaultdict(list))
            for row in rows:
                by_point[row.pop("machine"), row.pop("schedule"), row.pop("workload")].append(row)
        return found

    def _with_totals(self, row: dict[str, Any], schedule: int) -> dict[str, Any]:
        """Returns a row of the table machines, extended by the schedule's costs over all workloads
        (weighted), what is proven of them, and the constraints that it breaks, each with by how much.
        """
        points = self.sql(
            f"FROM points WHERE machine = {row['machine']} AND schedule = {schedule}"
        ).table.to_pylist()
        if not points:
            return row
        from dse.mapping.searched import claim

        weights = self.study.weights()
        names = dict.fromkeys(
            (*pareto.METRICS, *record.RATIOS_OF["points"], *(o.column for o in self.study.objectives))
        )
        broken = [
            f"{c.text} (by "
            f"{units.quantity(c.text.partition('[')[0].split()[0], points[0][prune.violation_column(c)])})"
            for c in self.study.constraints.modelled
            if points[0][prune.violation_column(c)] > 0
        ]
        totals = {name: points[0][name] for name in names if name not in row}
        weighted_names = [name if weights[name] == 1 else f"{weights[name]:g} x {name}" for name in weights]
        head = {key: row[key] for key in ("machine", "status")}
        scope = (
            {"cost_of": " + ".join(weighted_names)}
            if len(weighted_names) > 1 or max(weights.values()) != 1
            else {}
        )
        gaps = {
            name: points[0][name] if math.isfinite(points[0][name]) else None
            for name in ("optimality_gap", "gap_to_bound")
        }
        proof = {**gaps, "certificate": claim(points[0]["certificate"])}
        return {**head, "broken_constraints": broken or None, **scope, **totals, **proof, **row}

    def one_mapping_note(self, objectives: Sequence[str] = ()) -> str:
        """Returns that faster (leaner) mappings of machines are missing, where mappings are chosen for energy
        (latency) alone and a front in these objectives counts the other; else "". (): the study's.
        """
        measured = {one.strip("-").partition(":")[0] for one in objectives or self.objectives()}
        goal = self.study.solver.objective
        if goal not in ("energy", "latency"):
            return ""
        other, better, also = (
            ("latency", "faster", "latency_ns") if goal == "energy" else ("energy", "leaner", "energy_pj")
        )
        return (
            f"each machine has one mapping, that of least {goal}: its {better} ones are not on this "
            f"front, and {other} is of whichever mapping that is; solver.objective = front has them too"
            if {also, "throughput", "power_mw", "edp_pj_ns"} & measured
            else ""
        )

    def certificate(self) -> str:
        """Returns what is proven of the front, in one line: of all machines of the space where bounds rule
        out those that are not solved (search.prune, method bounds), and of all their mappings where
        solver.objective is front. "": nothing of either; objectives that are no sums of energy, latency, EDP
        and area, minimised, have no bounds.
        """
        study, search = self.study, self.study.search
        is_front = study.solver.objective == "front"
        if not (is_front or search.prune) or prune.unbounded_objective(study.objectives):
            return ""
        of_mappings, done, solved, ruled_out = (
            self.sql(
                "SELECT (SELECT max(optimality_gap) FROM points), count_if(status <> 'error'), "
                "count_if(status IN ('ok', 'infeasible')), count(dominated_by) FROM machines"
            )
            .table.to_pylist()[0]
            .values()
        )
        if of_mappings is None:
            return ""
        from dse.sim.einsum.evaluate import ROUNDING_GAP, percent

        gap, size = search.gap, study.space.size
        if is_front:
            squared = any(o.metric == "edp_pj_ns" for o in study.objectives)
            gap = max(gap, (1 + of_mappings) ** 2 - 1 if squared else of_mappings)
        every, by_bounds = done == size, search.method == "bounds"
        if by_bounds and not every:
            gap = max(gap, self._unsolved_gap())
        of_what = "this study" if every or by_bounds else f"the {done:,} machines evaluated"
        claim = (
            f"no machine of {of_what} with "
            + (
                "any choice of one mapping per distinct einsum"
                if is_front
                else f"its schedule of least {study.solver.objective}"
            )
            + (
                f" dominates this front by more than {percent(max(gap, LEAST_GAP))} in every objective"
                if gap > ROUNDING_GAP
                else " dominates this front"
                if is_front
                else " is missing from this front"
            )
        )
        near_limits = ", unless it meets a constraint by less than that"
        counts = f"; {solved:,} are solved, {ruled_out:,} ruled out by bounds"
        counts += f", {done - solved - ruled_out:,} break a constraint" if done > solved + ruled_out else ""
        return (
            claim
            + (near_limits if is_front and study.constraints.modelled else "")
            + (counts if search.prune else "")
            + (f", {size - done:,} bounded" if by_bounds and not every else "")
        )

    def _unsolved_gap(self) -> float:
        """Returns the gap within which the front covers all schedules of machines without an answer, from
        their lower bounds.
        """
        from cluster.worker import job_of
        from dse.study.best_first import proven_gap

        columns = [o.column for o in self.study.objectives]
        front = self.front(columns, columns=()).table.select(columns)
        done = self.sql("SELECT machine FROM machines WHERE status <> 'error'").table["machine"].to_numpy()
        study = replace(self.study, loaded_workloads=studies.workloads_of(self.study))
        bounds = job_of(study).pruner.objective_bounds(np.setdiff1d(np.arange(self.study.space.size), done))
        values = np.column_stack([column.to_numpy() for column in front.columns])
        return proven_gap(bounds[np.isfinite(bounds).all(axis=1)], values)

    def fusion_hints(self, point: str | int = "best") -> list[str]:
        """Returns lines about workloads that a point runs layer by layer although fusion may save much
        traffic between their einsums (`values.unfused_hint`): one for each such workload. They are kept in
        $DSE_CACHE: workload and evaluator take seconds to load.
        """
        if self.study.solver.schedule != "unfused":
            return []
        manifest, (machine, schedule, _) = folder.read(self.path), self._point(str(point))
        question = str(self.path.resolve()), str(self.path), manifest.identity, manifest.generation
        path = cache.answer_path("hint", (*question, machine, schedule), ".json")
        found = cache.read_decoded(path, lambda answer: [str(line) for line in json.loads(answer)])
        if found is None:
            found = self._fusion_hints(f"{machine}.{schedule}")
            cache.write(path, json.dumps(found).encode())
        return found

    def _fusion_hints(self, point: str) -> list[str]:
        from dse.explain import values
        from dse.sim.einsum.evaluate import Solution

        shown, study = self.show(point), self.study
        solved, set_options = shown.solutions, self._set_options(shown.machine)
        objective = f" --objective {study.solver.objective}" * (study.solver.objective != "energy")
        is_small = self.status()["done"] <= MAX_FUSED

        def command(text: str) -> str:  # that fuses: of a large study, the einsums of this machine
            if is_small:
                return f"dse run {self.path / 'study.yaml'} --out NEW"
            return f"dse map {text} {study.machine}{objective} {set_options}"

        lines = [
            (one.workload.name, values.unfused_hint(one.arch, one.workload, one.solution, command(ref.text)))
            for ref, one in zip(study.workloads, solved, strict=True)
            if isinstance(one.solution, Solution)
        ]
        return [f"{name}, {line}" if len(solved) > 1 else line for name, line in lines if line]

    def _set_options(self, number: int) -> str:
        """Returns the options of `dse map` that make a machine of the study's machine."""
        parameters = spaces.values(self.study.space, number).items()
        return " ".join(f"--set {key}={_quote(key, value)}" for key, value in parameters)

    def why_unsolved(self, number: int | None = None) -> str:
        """Returns why a machine of the space has no row, and what to do. number: the machine, for a command
        that solves it by itself.
        """
        status = self.status()
        if status["state"] != "finished":
            return (
                f"the run is {status['state']}; dse status {self.path} says how far it is, dse resume "
                f"{self.path} goes on with one that has stopped"
            )
        set_options = self._set_options(number) if number is not None else "--set of its parameters"
        ended = str(status["reason"]).partition("; the front is empty")[0]
        return (
            f"the run ended before it ({ended}); dse run with a larger stop (such as stop.machines) "
            f"continues it, dse map WORKLOAD MACHINE {set_options} solves that machine alone"
        )

    def _price_given_schedule(self, arch: Arch, path: Path) -> Mapped:
        """Prices a given schedule, for the first workload that has its einsums."""
        from dse.frontend.api import price_schedule

        faults = []
        for workload in self._workloads():
            try:
                return price_schedule(arch, workload, self.study.solver, path)
            except ValueError as fault:
                faults.append(str(fault))
        raise ValueError(faults[0])

    def _workloads(self) -> list[Workload]:
        """Returns the study's workloads; those of files bear the study's name for them, not that of the file
        in the run's folder.
        """
        named = zip(self.study.workloads, studies.workloads_of(self.study), strict=True)
        return [replace(w, name=ref.name) if ref.path else w for ref, w in named]

    def _reprice(
        self, arch: Arch, number: int, schedule: int, point: str, stored_rows: Stored
    ) -> Iterator[Mapped]:
        """Yields for each workload its stored schedule, costed again. number: of the machine; point: as the
        user wrote it. Raises AnswerDiffers if a stored cost differs.
        """
        from dse.frontend.mapped import Mapped
        from dse.sim.schedule.graph import evaluate
        from dse.solve.stored import reprice

        for ref, workload in zip(self.study.workloads, self._workloads(), strict=True):
            key = number, schedule, ref.name
            nests, costs, copies, texts = (stored_rows[view].get(key, []) for view in STORED)
            stored = [{key: row[key] for key in ("energy_pj", "latency_cycles")} for row in costs]
            certificates = [row["certificate"] for row in costs]
            if not nests:
                raise ValueError(
                    f"{self.path}: POINT = {point}: machine {number} has no schedule {schedule}; try "
                    f"{number}.0"
                )
            conversions = tuple(
                Conversion(**{**row, "readers": tuple(row["readers"].split(", "))}) for row in copies
            )
            workload = with_conversions(workload, conversions)
            plan = schedules.parse_schedule(texts[0]["nest"]) if texts else None
            nest_texts = {row["einsum"]: row["nest"] for row in nests}
            proofs = {
                row["einsum"]: (row["optimality_gap"] or 0.0, row["certificate"] or "") for row in nests
            }
            if plan:
                found = evaluate(arch, workload, plan, self.study.solver.single_objective)
            elif self.study.solver.tiling == "mapper":
                found = reprice(arch, workload, self.study.solver, nest_texts, proofs)
            else:  # a tile optimizer, whose answer need not be a nest, is asked again
                from dse.solve.solve import solve

                answers = solve(arch, workload, self.study.solver)
                found = answers if isinstance(answers, Infeasible) else answers[0]
            if isinstance(found, Infeasible) or stored != [
                {"energy_pj": found.energy_pj, "latency_cycles": found.latency_cycles}
            ]:
                raise AnswerDiffers(
                    f"{self.path}: machine {number}: the stored cost {stored} is not what its "
                    "mappings cost now"
                )
            solution = replace(found, certificate=certificates[0]) if plan else found
            yield Mapped(arch, workload, solution, self.study.solver, conversions, plan)

    def _point(self, text: str) -> tuple[int, int, str]:
        """Returns (machine, schedule, which machine it is and why it was chosen)."""
        from analysis import db

        word, colon, column = text.partition(":")
        if word == "best":
            names = [column] if colon else self.objectives()
            first = self._answer(lambda con: db.best(con, names, self.seconds, of_study=not colon))
            if not len(first):
                raise ValueError(
                    f"POINT = {text}: the front is empty; dse sql can tell why (SELECT status, "
                    "reason FROM machines)"
                )
            row, first_column = first[0], db.column_of(names[0])
            extreme = "highest" if db.maximised(names[0]) else "lowest"
            why = (
                f"{extreme} {units.label(first_column)} of all feasible machines "
                f"({tables.fact(first_column, row[first_column])})"
            )
            return row["machine"], row["schedule"], f"{text}: machine {row['machine']}, {why}"
        if found := re.fullmatch(r"([0-9]{1,18})(?:\.([0-9]{1,9}))?", text):
            return int(found[1]), int(found[2] or 0), f"machine {int(found[1])}"
        forms = "give MACHINE, MACHINE.SCHEDULE, best or best:COLUMN"
        advice = "did you mean best?" if meant(word, ["best"]) else forms
        raise ValueError(f"POINT = {text}: {advice}")

    def neighbours(self, number: int) -> Answer:
        """Returns the one-at-a-time sensitivity of a machine: how the objectives change with one step of each
        parameter, among machines that the run has solved. One step leads to a neighbouring number, on a long
        axis also to one a sixteenth of it further; for a parameter that is no number, to any other value.
        """
        columns = [o.column for o in self.study.objectives]
        base_values = spaces.values(self.study.space, number)
        steps = [
            (axis.key, value, spaces.index_of(self.study.space, base_values | {axis.key: value}))
            for axis in self.study.space.axes
            for value in _steps(axis.values, base_values[axis.key])
        ]
        machine_list = ", ".join(str(index) for index in (number, *(index for _, _, index in steps)))
        points = {
            row["machine"]: row
            for row in self.sql(f"FROM points WHERE machine IN ({machine_list}) AND schedule = 0")
        }
        states = {
            row["machine"]: row["status"]
            for row in self.sql(f"SELECT machine, status FROM machines WHERE machine IN ({machine_list})")
        }
        own_point = points.get(number)
        rows = []
        for key, value, index in steps:
            other = points.get(index)
            status = (
                states.get(index, "not solved")
                if other is None or other["feasible"]
                else "breaks a constraint"
            )
            changes = {
                f"{name}_change": _change(own_point[name], other[name]) if own_point and other else None
                for name in columns
            }
            rows.append(
                {
                    "parameter": key,
                    "from": tables.fact(key, base_values[key]),
                    "to": tables.fact(key, value),
                    "machine": index,
                    **changes,
                    "status": status,
                }
            )
        return answer(rows)


@dataclass(frozen=True, slots=True)
class Runs:
    """Several runs, asked together: each table has the rows of all, and names the run in the column `run`."""

    runs: Mapping[str, Run]  # by the name of the folder, or its path where two have the same name

    def sql(self, statement: str) -> Answer:
        """Returns the rows of one read-only statement. Tables that it names are read whole."""
        from analysis import db

        named = {word.lower() for word in re.findall(r"\w+", statement)}
        first = next(iter(self.runs.values()))
        found = {}
        for view in db.views(first.con):
            limit = "" if view in named else " LIMIT 0"
            rows = {name: run.sql(f"FROM {view}{limit}").table for name, run in self.runs.items()}
            found[view] = pa.concat_tables(
                [one.add_column(0, "run", [[name] * len(one)]) for name, one in rows.items()],
                promote_options="permissive",
            )
        axes = dict.fromkeys(
            chain.from_iterable(studies.columns(run.study, "machines") for run in self.runs.values())
        )
        return Answer(
            db.query_tables(
                found, statement, first.seconds, first.memory, ["run", *axes], functions.OF_ANY_RUN
            )
        )


class AnswerDiffers(ValueError):
    """A stored cost that the evaluator no longer confirms."""

    exit_code = 1


def _struct(numbers: Mapping[str, float]) -> str:
    """Returns numbers by name as SQL writes a structure."""
    if not numbers:
        raise ValueError('no price is given; write {"dram_pj": 0.5}')
    names = [
        (name.replace("'", "''"), _number(name, number, "a number, such as 0.5"))
        for name, number in numbers.items()
    ]
    return "{" + ", ".join(f"'{name}': {number!r}::DOUBLE" for name, number in names) + "}"


def _machines(machines: Sequence[int] | None) -> str:
    """Returns the argument `machines` of a macro of SQL; "": all machines."""
    if machines is None:
        return ""
    if not isinstance(machines, Iterable) or isinstance(machines, str):
        raise ValueError(f"machines = {machines!r}: give a list of numbers, such as [17, 18]")
    return f", machines := {[int(_number('machines', one, 'numbers of machines')) for one in machines]}"


def _names(given: str | Sequence[str]) -> list[str]:
    """Returns names that are given as a list, or as a text with commas between them."""
    return [name.strip() for name in given.split(",")] if isinstance(given, str) and given else [*given]


def _number(name: str, value: Any, what: str) -> float:
    """Returns a number that is given for `name`. Raises ValueError: what: what may be given."""
    if isinstance(value, str) or not isinstance(value, SupportsFloat):
        raise ValueError(f"{name} = {value!r}: give {what}")
    return float(value)


def _quote(key: str, value: Any) -> str:
    """Returns a value as --set takes it, in a shell."""
    text = (
        f"{value:g} GB/s"
        if key.endswith((".bandwidth", ".write_bandwidth"))
        else tables.fact(key, value)
        if key.endswith(".capacity")
        else str(value)
    )
    return f"'{text}'" if " " in text else text


def _steps(values: Sequence[Any], own: Any) -> list[Any]:
    """Returns the values one step from `own`, one of `values`: its neighbours on an axis of numbers, of more
    than MAX_STEPS numbers also those a MAX_STEPS-th of all further; else all other values.
    """
    if any(isinstance(value, str | bool) for value in values):
        return [value for value in values if value != own]
    i, far = values.index(own), max(1, len(values) // MAX_STEPS)
    return [values[k] for k in sorted({i - far, i - 1, i + 1, i + far}) if 0 <= k < len(values)]


def _goes_on(space: spaces.Space, axis: spaces.Axis, end: Any) -> bool:
    """True if machines exist one step beyond an end of an axis of numbers: no table of parts ends there."""
    own = sorted(float(value) for value in axis.values)
    beyond = 2 * end - (own[1] if end == own[0] else own[-2])
    beyond = beyond if beyond > 0 else end / 2
    try:
        given = {axis.key: int(beyond) if isinstance(end, int) else beyond}
        build_arch(spaces.override(space.template, given))
    except ValueError:
        return False
    return True


def _change(before: float, after: float) -> str:
    return f"{100 * (after / before - 1):+.1f} %" if before else ""


def open_all(paths: Sequence[str | Path], **limits: Any) -> Runs:
    """Returns several runs, for .sql() over all of them. limits: as of `open`. Raises ValueError."""
    raise_if_repeated(paths)
    names = [Path(path).name for path in paths]
    return Runs(
        {
            name if names.count(name) == 1 else str(path): open(path, **limits)
            for name, path in zip(names, paths, strict=True)
        }
    )


def raise_if_repeated(paths: Sequence[str | Path]) -> None:
    """Raises ValueError if two paths are of one run."""
    places = [str(path) if folder.is_url(path) else str(Path(path).resolve()) for path in paths]
    for i, path in enumerate(paths):
        if places[i] in places[:i]:
            raise ValueError(f"{path}: this run is given twice; name each run once")


def open(path: str | Path, *, skip_damaged: bool = False, memory: str = "4GB", seconds: float = 60.0) -> Run:
    """Returns the run in a folder, or in a file of `dse pack`: .sql(), .front(), .show(), .neighbours(),
    .status().

    path: the folder or file, or the folder's URL: then what is in its newest head now
    skip_damaged: leave out parts that are not byte for byte what was committed
    memory: limit of DuckDB
    seconds: limit of a statement

    Raises ValueError if there is no run, or if one of its files is damaged.
    """
    url = str(path) if folder.is_url(path) else ""

    def opened() -> Run:
        own = pack.unpacked(check.local(path))
        study = study_of(own)
        con = connection(own, study, skip_damaged=skip_damaged, memory=memory)
        return Run(own, study, con, skip_damaged, memory, seconds, url)

    return _fetched_again(url, opened)


def _fetched_again(url: str, ask: Callable[[], T]) -> T:
    """Returns ask(). Of a run on a store whose driver runs on this host the copy is the driver's own: parts
    that it has named meanwhile are fetched.
    """
    for fetches_left in reversed(range(FETCHES)):
        try:
            return ask()
        except folder.Damaged:
            if not (url and fetches_left):
                raise
            check.local(url)
    raise AssertionError("the last attempt returns or raises")


def connection(
    path: str | Path, study: Study, *, skip_damaged: bool = False, memory: str = "4GB"
) -> DuckDBPyConnection:
    """Returns a connection to the views of a run, including those that are computed on demand."""
    from analysis import computed, db

    @cache_in_memory
    def context() -> RunContext:
        from dse.explain import derived

        return derived.RunContext(Path(path), study)

    def compute(name: str, *columns: pa.Array) -> pa.Array:
        from dse.explain import derived

        if name in ("what_if_of", "robust_of"):  # these load what shares mappings
            from dse.explain import repriced

            return repriced.FUNCTIONS[name](context(), *columns)
        return derived.computed(context(), name, *columns)

    schemas = {table: record.schema(table, studies.columns(study, table)) for table in record.STORED}
    con: DuckDBPyConnection = db.connect(
        path,
        schemas,
        computed.Computed(functions.functions(study, compute), functions.ratios()),
        skip_damaged=skip_damaged,
        memory=memory,
        axes=[*studies.columns(study, "machines")],
    )
    return con


def study_of(text: str | Path) -> Study:
    """Returns the study of a run. Raises ValueError if the folder's rows do not belong to it."""
    root = Path(text)
    path = root / folder.STUDY
    folder.raise_if_no_run(root)
    manifest = folder.read(root)
    if lines := folder.faults_of_inputs(root, manifest) or (
        [] if path.exists() else [f"{path}: missing; {folder.advice(root)}"]
    ):
        raise folder.Damaged("\n".join(lines))
    env = folder.env(root, manifest) if manifest.groups else None
    identity = env["identity"] if env and manifest.identity else {}  # its digest is that of the manifest
    digests = {
        key.removeprefix("workloads."): str(text).partition(" x ")[0]
        for key, text in identity.items()
        if key.startswith("workloads.")
    }
    study = studies.load(path, within=root, digests=digests)
    folder.raise_if_other_study(root, manifest, studies.identity(study))
    if manifest.groups and env is None:
        logging.getLogger("dse").warning(
            "%s: lost, damaged or of another run; %s", root / folder.ENV, folder.advice(root)
        )
    return study
