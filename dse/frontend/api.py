"""The Python interface: dse.map, dse.simulate, dse.front, dse.layout, dse.residency, dse.sweep and dse.open.
The command line prints the same values.

The file is longer than the usual 400 lines because each function stands beside the class that it returns:
Python users read it as documentation.
"""

from __future__ import annotations

import html
import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dse.explain import derived, units
from dse.explain import values as explain
from dse.frontend import check, screens, tables
from dse.mapping import directives
from dse.mapping import schedule as schedules
from dse.mapping.conversion import Conversion, with_conversions
from dse.mapping.nest import Infeasible, to_text
from dse.run import deadline, folder, pack, record
from dse.sim.directives import directed
from dse.sim.einsum.evaluate import Problem, ProgressFn, Solution, no_progress, percent
from dse.sim.schedule import outermost
from dse.sim.schedule.graph import evaluate
from dse.solve import solve
from dse.solve.gogeta.classify import CLASSIFIERS
from dse.solve.gogeta.rereads import chip_of
from dse.solve.gogeta.traffic import TrafficReport, traffic_of, with_rereads
from dse.solve.options import SolverOptions
from dse.study import pareto, prune, read
from dse.study import study as studies
from dse.study.plan import Limits
from dse.study.study import Study
from hw import component
from hw import machine as machines
from hw import space as spaces
from hw.arch import Arch, Machine
from workloads import catalog
from workloads.graph import Workload, unique

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

    from analysis.plots import Picture

NO_WRAP = ' style="white-space: nowrap"'  # of a short cell in a notebook
MAX_HTML_ROWS = 1000  # rows of an answer that a notebook shows
# a workload with at most this many einsums, and this many distinct ones, is also solved with
# solver.schedule = residency by the function `residency`, which takes seconds
MAX_SOLVED_EINSUMS, MAX_SOLVED_DISTINCT = 200, 8


class Row(dict[str, Any]):
    """A row of an answer: a dict whose columns are attributes, too (`_attribute`)."""

    def __getattr__(self, name: str) -> Any:
        return _attribute(self, name)


def _attribute(values: Mapping[str, Any], name: str) -> Any:
    """Returns the value of a column by its name (energy_pj), or by its name on screens, without the unit, if
    no other column has that (energy). Raises AttributeError.
    """
    keys = [name] if name in values else [key for key in values if _screen_name(key) == name]
    if len(keys) == 1:
        return values[keys[0]]
    what = f"is one of {', '.join(keys)}" if keys else f"is no result here; there are {', '.join(values)}"
    raise AttributeError(f"{name} {what}")


def _screen_name(key: str) -> str:
    return units.label(key).lower().replace(" ", "_")


@dataclass(frozen=True, slots=True)
class Answer:
    """Rows as an Arrow table (`table`), which prints, iterates over rows, and converts to a pandas data
    frame.
    """

    table: pa.Table

    def frame(self) -> Any:
        """Returns a pandas data frame. `.table` is the Arrow table, which Polars reads too."""
        return self.table.to_pandas()

    def unit_keys(self) -> list[str]:
        """Returns for each column the name by which its unit is looked up: of SQL results the view column
        that it was taken from ("" if it was computed), else its own name.
        """
        return [
            (field.metadata or {}).get(units.COLUMN_KEY, field.name.encode()).decode()
            for field in self.table.schema
        ]

    def rows(self) -> list[tuple[Any, ...]]:
        """Returns rows as tuples, in the order of the table's columns."""
        return list(zip(*(column.to_pylist() for column in self.table.columns), strict=True))

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __getitem__(self, at: int) -> Row:
        return Row(self.table.slice(range(len(self))[at], 1).to_pylist()[0])

    def __iter__(self) -> Iterator[Row]:
        return iter([Row(row) for row in self.table.to_pylist()])

    def __repr__(self) -> str:
        return tables.table(self.table.column_names, self.rows(), unit_keys=self.unit_keys())

    def _repr_html_(self) -> str:
        rest = f"<p>{len(self) - MAX_HTML_ROWS} more rows</p>" if len(self) > MAX_HTML_ROWS else ""
        return _html(self.table.column_names, self.rows()[:MAX_HTML_ROWS], self.unit_keys()) + rest


@dataclass(frozen=True, slots=True)
class Mapped:
    """One workload on one machine, solved."""

    arch: Arch
    workload: Workload
    solution: Solution | Infeasible  # its schedule, or why there is none
    options: SolverOptions = SolverOptions()
    conversions: tuple[Conversion, ...] = ()  # copies of tensors to other layouts
    # the whole schedule, where `solution` (one mapping per distinct einsum) does not say all of it; else None
    plan: schedules.Schedule | None = None

    def plot(
        self, kind: str = "nest", einsum: str | None = None, progress: ProgressFn = no_progress
    ) -> Picture:
        """Returns a picture, which a notebook shows and `.save("x.pdf")` writes.

        kind: nest, mapping, roofline, breakdown, ski-slope or residency (of a schedule)
        einsum: of nest, mapping or ski-slope; None: the costliest; for ski-slope the whole
            workload for ski-slope

        Raises ValueError.
        """
        from dse.frontend import pictures

        return pictures.of_mapped(self, kind, einsum, progress)

    @property
    def totals(self) -> dict[str, Any]:
        """Metrics by name, as in `dse map --format json`; status and reason where nothing fits."""
        if isinstance(self.solution, Infeasible):
            return {"status": "infeasible", "reason": str(self.solution)}
        return explain.totals(self.arch, self.workload, self.solution)

    @property
    def einsums(self) -> Answer:
        """A row per distinct einsum, with its nest in `mapping` and the area of the machine that runs it."""
        if isinstance(self.solution, Infeasible):
            return _answer([])
        rows = explain.document(self.arch, self.workload, self.solution)["einsums"]
        return _answer([row | {"area_mm2": self.arch.area_mm2()} for row in rows])

    @property
    def components(self) -> Answer:
        """Area and energy of each component of the machine."""
        if isinstance(self.solution, Infeasible):
            return _answer([])
        return _answer([asdict(one) for one in explain.components(self.arch, self.solution)])

    @property
    def machine(self) -> Answer:
        """What the machine consists of: a row per component, main memory first."""
        return _answer(explain.machine(self.arch))

    @property
    def schedule(self) -> str:
        """The schedule as one nest with a branch per einsum, as `--format schedule` prints it and `map` reads
        it; "" where nothing fits. Raises ValueError where a mapping is no nest.
        """
        if isinstance(self.solution, Infeasible):
            return ""
        return explain.nest(self.workload, self.solution, self.plan)

    def __getattr__(self, name: str) -> Any:
        """Returns one of the totals, as in x.energy_pj or x.latency_ns."""
        if name.startswith("_"):
            raise AttributeError(name)
        return _attribute(self.totals, name)

    def frame(self) -> Any:
        """Returns a pandas data frame with a row per distinct einsum."""
        return self.einsums.frame()

    def text(self, einsum: str | None = None, width: int = tables.WIDE, why: bool = False) -> str:
        """Returns what `dse map` prints. einsum: the one whose nest and traffic are printed; "all": each;
        None: the costliest. why: the certificate in full, and what was searched.
        """
        if isinstance(self.solution, Infeasible):
            return tables.safe(f"infeasible: {self.solution}\n")
        conversions_text = (
            screens.block(explain.conversions(self.conversions, self.options.single_objective), width)
            if self.conversions
            else ""
        )
        return (
            screens.solution(self.arch, self.workload, self.solution, einsum, width, why) + conversions_text
        )

    def __repr__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        title = f"{self.workload.name} on {self.arch.name}"
        if isinstance(self.solution, Infeasible):
            return _section(title, self.totals)
        given = self.arch, self.workload, self.solution
        mappings = _html(("einsum", "mapping"), [(row.name, row.mapping) for row in self.einsums])
        return (
            _section(title, explain.facts(*given, why=False), explain.network(*given, lists_all=False))
            + f"<details><summary>mappings</summary>{mappings}</details>"
        )


def map(
    workload: Any,
    machine: str,
    *,
    inputs: Sequence[Any] = (),
    objective: str = "",
    layouts: Sequence[str] = (),
    schedule: str | Path = "",
    einsum: str = "",
    progress: ProgressFn = no_progress,
    **sets: Any,
) -> Mapped:
    """Solves one workload on one machine. Answers are cached in $DSE_CACHE, so that asking again is quick.

    workload: a name of `dse list workloads`, with parameters ("resnet18:batch=4"), or a path; a
        torch.nn.Module, or a program of torch.export
    machine: a name of `dse list machines`, or a path
    inputs: of a module: example inputs, by which torch.export fixes all shapes
    objective: energy (default), latency or edp
    layouts: "TENSOR=TEXT" for the whole tensor at the outermost level, "TENSOR@LEVEL=TEXT" for its tile at
        another level
    schedule: a file with a schedule (docs/model.md, Schedules) or mappings, to be priced as given; einsums
        that are missing there are mapped by themselves
    einsum: only checked: a name that the workload lacks is refused before anything is solved
    sets: fields of the machine and keys of the solver, as in --set: **{"array.x": 12, "solver.factors":
        "perfect"}; and limits.seconds, after which searches end: the answer is then the best that was found,
        with its gap. Each distinct einsum gets an equal part of the time that is left.

    Raises ValueError with one line per fault.
    """
    seconds, sets = _deadline(sets)
    options, spec = _machine_and_options(
        machine, ({"solver.objective": objective} if objective else {}) | sets
    )
    if options.objective == "front":
        raise ValueError(
            "solver.objective = front: this prints one schedule; take dse map --front (Python: dse.front), "
            "or the objective energy, latency or edp"
        )
    if seconds and (schedule or options.schedule != "unfused" or options.layout != "row_major"):
        raise ValueError(
            f"limits.seconds = {seconds:g}: ends searches of unfused mappings, not of schedules or layouts; "
            "leave it out"
        )
    arch, loaded = machines.arch(spec), _loaded(workload, inputs, options.fuse_elementwise)
    # refuse an unknown name early, but not where layouts are chosen: copies between them become einsums too
    if options.layout == "row_major":
        screens.einsum_indices(loaded, einsum or None)
    given_layouts = [_layout(text) for text in layouts]
    if given_layouts and options.schedule != "unfused":
        raise ValueError(
            f"layout {layouts[0]}: solver.schedule = {options.schedule} counts no layouts; leave one "
            "of both out"
        )
    if schedule:
        if given_layouts:
            raise ValueError(
                f"layout {layouts[0]}: a given schedule names its layouts itself; write it into {schedule}"
            )
        return _price_schedule(arch, loaded, options, Path(schedule), progress)
    if options.layout != "row_major" and given_layouts:
        raise ValueError(
            f"layout {layouts[0]}: solver.layout = {options.layout} chooses them; leave one of both out"
        )
    if options.layout != "row_major" and options.schedule == "unfused":
        layouts_solution = solve.cached_layouts(arch, loaded, options, progress)
        found = layouts_solution if isinstance(layouts_solution, Infeasible) else [layouts_solution]
    else:
        with deadline.within(seconds, is_divided=True):
            found = solve.cached(arch, loaded, options, progress)
    if given_layouts and isinstance(found, list):
        found = solve.in_layouts(arch, loaded, options, found[0], given_layouts)
    if isinstance(found, Infeasible):
        return Mapped(arch, loaded, found, options)
    best = found[0]
    solution = replace(best, schedule=None) if best.schedule and best.schedule.is_unfused() else best
    return Mapped(
        arch, with_conversions(loaded, best.conversions), solution, options, best.conversions, best.schedule
    )


def simulate(workload: str, machine: str, mapping: str | Path, **sets: Any) -> Mapped:
    """Prices given mappings. Nothing is searched.

    workload, machine: as in `map`
    mapping: a file with a mapping of every einsum, or with a whole schedule (docs/model.md, Schedules)
    sets: fields of the machine and solver.fuse_elementwise, as in --set

    Raises ValueError with one line per fault.
    """
    fuse = bool(sets.pop("solver.fuse_elementwise", True))
    arch = machines.arch(spaces.override(machines.load(machine), sets))
    path, loaded = Path(mapping), catalog.load(workload, fuse_elementwise=fuse)
    # cost of directives that no nest expresses; None: the file has none
    if (directive_cost := directed.evaluate_file(path, loaded, arch)) is not None:
        return Mapped(arch, loaded, directive_cost)
    scheduled, plan = directives.load(path, loaded, arch)
    try:
        return Mapped(arch, scheduled, evaluate(arch, scheduled, plan), plan=plan)
    except ValueError as fault:
        raise ValueError("\n".join(f"{path}: {line}" for line in str(fault).splitlines())) from None


def _loaded(workload: Any, inputs: Sequence[Any], fuse_elementwise: bool) -> Workload:
    """Returns the workload of a name or path, of a module of torch, or of a program of torch.export."""
    if isinstance(workload, str):
        if inputs:
            raise ValueError(f"{workload}: inputs are of a torch.nn.Module; give parameters after a colon")
        return catalog.load(workload, fuse_elementwise=fuse_elementwise)
    from workloads import torch as programs

    return programs.load(programs.exported(workload, inputs), type(workload).__name__, fuse_elementwise)


def front(workload: str, machine: str, *, einsum: str = "", **sets: Any) -> Answer:
    """Returns a front, lowest energy first. The column `certificate` says what is proven.

    Of a workload of several distinct einsums: a row per unfused schedule, so that every choice of mappings
    has a row within solver.gap of it in energy and latency.
    Of one einsum: a row per mapping that none dominates in energy, latency and capacity used of the outermost
    bounded memory.

    workload, machine, sets: as in `map`
    einsum: one of the workload's

    Raises ValueError with one line per fault.
    """
    from dse.mapper.exact import pareto_mappings

    options, spec = _machine_and_options(machine, sets)
    arch, loaded = machines.arch(spec), catalog.load(workload, fuse_elementwise=options.fuse_elementwise)
    groups = unique(loaded)
    if len(groups) > 1 and not einsum:
        own_options, _ = _machine_and_options(machine, {**sets, "solver.objective": "front"})
        return _workload_front(arch, loaded, own_options)
    if options.schedule != "unfused" or options.mapper != "optimal":
        raise ValueError(
            "a front is of single einsums, each by the exact search; leave solver.schedule and "
            "solver.mapper out"
        )
    einsums = [group.einsum for group in groups if not einsum or einsum in group.names]
    if not einsums:
        names = ", ".join(
            [*(group.einsum.name for group in groups[:6]), *(["..."] if len(groups) > 6 else [])]
        )
        raise ValueError(
            f"{workload}: no einsum {einsum}; name one, or none for the front of the workload: {names}"
        )
    (e,) = einsums
    solve.check_rules(arch, loaded, options)
    found = pareto_mappings.front(Problem(arch, e, "energy"), options.factors, options.constraints(e, arch))
    if isinstance(found, Infeasible):
        raise screens.NothingFits(f"{workload} on {arch.name}: infeasible: {found}")
    rows = [
        {
            "energy_pj": one.cost.energy_pj,
            "latency_cycles": one.cost.latency_cycles,
            f"{pareto.slug(found.level)}_bytes": one.capacity_bytes,
            "nest": to_text(one.cost.mapping, e),
            "certificate": found.certificate,
        }
        for one in found.members
    ]
    return _answer(rows)


def _workload_front(arch: Arch, workload: Workload, options: SolverOptions) -> Answer:
    """Returns the front of a workload's unfused schedules, each as the text that `simulate` takes."""
    found = solve.solve(arch, workload, options)
    if isinstance(found, Infeasible):
        raise screens.NothingFits(f"{workload.name} on {arch.name}: infeasible: {found}")
    return _answer(
        [
            {
                "energy_pj": one.energy_pj,
                "latency_cycles": one.latency_cycles,
                "latency_ns": one.latency_cycles / arch.clock_ghz,
                "edp_pj_ns": one.energy_pj * one.latency_cycles / arch.clock_ghz,
                "schedule": str(schedules.sequential(workload, {c.name: c.mapping for c in one.einsums})),
                "certificate": one.certificate,
            }
            for one in found
        ]
    )


def layout(workload: str, machine: str, text: str, **sets: Any) -> Picture:
    """Returns a picture of where the elements of a tensor are in the outermost level. Nothing is solved.
    text: "TENSOR=TEXT" as in `map`. Raises ValueError.
    """
    from dse.frontend import pictures

    _, spec = _machine_and_options(machine, sets)
    tensor, _, layout_text = _layout(text)
    return pictures.of_layout(machines.arch(spec), catalog.load(workload), tensor, layout_text)


def _price_schedule(
    arch: Arch, workload: Workload, options: SolverOptions, path: Path, progress: ProgressFn = no_progress
) -> Mapped:
    """Returns the schedule of a file, priced. Einsums that it leaves out are mapped by themselves."""
    scheduled, given_schedule = directives.load(path, workload, arch, allow_missing=True)
    try:
        found, plan = solve.price_schedule(arch, scheduled, options, given_schedule, progress)
        return Mapped(arch, scheduled, found, options, plan=plan)
    except ValueError as fault:
        raise ValueError("\n".join(f"{path}: {line}" for line in str(fault).splitlines())) from None


def _layout(text: str) -> tuple[str, str, str]:
    """Returns (tensor, level, layout) of TENSOR[@LEVEL]=TEXT."""
    match = re.fullmatch(r"\s*(\w+)(?:@(\w+))?\s*=\s*(\S.*)", text)
    if not match:
        raise ValueError(f'layout {text}: write TENSOR=TEXT or TENSOR@LEVEL=TEXT, e.g. I="N H W/16 C w16"')
    return match[1], (match[2] or "").upper(), match[3]


def _deadline(sets: Mapping[str, Any]) -> tuple[float | None, dict[str, Any]]:
    """Returns limits.seconds of --set (None: no deadline), and the keys outside of `limits`. Raises
    ValueError for other keys of `limits`, which only studies have.
    """
    faults = read.Faults([])
    limit_values = {
        key.removeprefix("limits."): value for key, value in sets.items() if key.startswith("limits.")
    }
    for key in limit_values.keys() & {"errors", "error_fraction"}:
        faults.add(
            f"limits.{key}: counts machines of a study that fail, or their share; here is one machine; "
            "leave it out"
        )
    limits = read.block(Limits, limit_values, "limits", faults)
    if faults.lines:
        raise ValueError("\n".join(faults.lines))
    return limits.seconds, {key: value for key, value in sets.items() if not key.startswith("limits.")}


def _machine_and_options(machine: str, sets: Mapping[str, Any]) -> tuple[SolverOptions, Machine]:
    """Returns solver options and machine with these keys set, as in --set."""
    faults = read.Faults([])
    options = read.solver(
        {key.removeprefix("solver."): value for key, value in sets.items() if key.startswith("solver.")},
        faults,
    )
    if options.sharing_gap:
        faults.add(
            f"solver.sharing_gap = {options.sharing_gap:g}: machines of a study share schedules, "
            "this is one machine; leave it out"
        )
    spec = machines.load(machine)
    for line in component.rule_faults(options.mapping, spec.nodes, "solver.mapping"):
        faults.add(line)
    if faults.lines:
        raise ValueError("\n".join(faults.lines))
    return options, spaces.override(
        spec, {key: value for key, value in sets.items() if not key.startswith("solver.")}
    )


@dataclass(frozen=True, slots=True)
class Residency:
    """On-chip retention of one workload on one machine, between its operations."""

    arch: Arch
    workload: Workload
    reuse: TrafficReport

    @property
    def configurations(self) -> Answer:
        """Main-memory traffic of GOGETA's configurations and of the optimum, a row each."""
        first_table = explain.residency(self.arch, self.workload, self.reuse)[1][0]
        return _answer([dict(zip(first_table.header, row, strict=True)) for row in first_table.rows])

    def plot(self, kind: str = "residency", progress: ProgressFn = no_progress) -> Picture:
        """Returns a picture.

        kind: residency: which tensor is retained when, in the optimum; traffic-over-capacity: main-memory
            traffic of each configuration over the capacity on chip; graph: operations and what they pass on
        """
        from dse.frontend import pictures

        return pictures.of_residency(self.arch, self.workload, self.reuse, kind, progress)

    def document(self) -> dict[str, Any]:
        """Returns what `dse residency --format json` prints."""
        facts, listed = explain.residency(self.arch, self.workload, self.reuse)
        names = [e.name.partition("@")[0] for e in self.reuse.operations]
        # edges from operations of one period: of several (iterations of the loop) the second, since unlike
        # the first it follows another one
        first_listed = self.operations_per_period if len(names) > self.operations_per_period else 0
        edges = [
            {
                "source": names[e.source],
                "target": names[e.target],
                "tensor": e.tensor.partition("@")[0],
                "pattern": e.pattern,
                "transitive": e.transitive,
                "multicast": e.multicast,
                "to_next_period": e.target // self.operations_per_period
                > e.source // self.operations_per_period,
            }
            for e in self.reuse.edges
            if first_listed <= e.source < first_listed + self.operations_per_period
        ]
        return {
            **facts,
            **{
                key: [dict(zip(t.header, row, strict=True)) for row in t.rows]
                for key, t in zip(("configurations", "phases", "retained"), listed, strict=True)
            },
            "edges": edges,
        }

    @property
    def operations_per_period(self) -> int:
        """Number of operations in a period: one iteration of the workload's loop, or everything if it has
        none.
        """
        return sum(len(stage) for phase in self.reuse.phases for stage in phase.stages)

    def orders(self) -> dict[str, Any]:
        """Returns loop orders of the operations and edges that are swizzled or give up pipelining, as
        `dse residency --orders --format json` prints them. Raises ValueError where their search ends.
        """
        from dse.explain.orders import loop_order_tables

        facts, listed = loop_order_tables(self.arch, self.workload, self.reuse)
        rows = [[dict(zip(t.header, row, strict=True)) for row in t.rows] for t in listed]
        return {**facts, "loop_orders": rows[0], "edges": rows[1]}

    def text(self, width: int = tables.WIDE) -> str:
        """Returns what `dse residency` prints."""
        return screens.residency(self.arch, self.workload, self.reuse, width)

    def __repr__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return _section(
            f"{self.workload.name} on {self.arch.name}",
            *explain.residency(self.arch, self.workload, self.reuse),
        )


def residency(workload: str, machine: str, *, method: str = "corrected", **sets: Any) -> Residency:
    """Returns on-chip retention between the operations of a workload, in the first level inside of main
    memory: GOGETA's configurations (arXiv 2303.11499) and the optimum.

    method: how edges are classified and counted. corrected: by GOGETA's rules without the errors of the
        paper; gogeta-published: edges as the paper prints it, counts as its figures do (docs/reuse.md)
    sets: fields of the machine and `solver.fuse_elementwise`, as in `map`

    Raises ValueError with one line per fault.
    """
    options, spec = _machine_and_options(machine, sets)
    arch, loaded = machines.arch(spec), catalog.load(workload, fuse_elementwise=options.fuse_elementwise)
    if method not in CLASSIFIERS:
        raise ValueError(f"method = {method} must be {' or '.join(CLASSIFIERS)}")
    if len(arch.levels) < 2 or not (bits := arch.levels[1].capacity_bits):
        raise ValueError(
            f"{machine}: needs a bounded memory below main memory; give its second memory a capacity"
        )
    if overflow := outermost.overflow_of_any(arch, loaded):
        raise ValueError(f"{machine}: {overflow}; give {overflow.level} more capacity")
    found = traffic_of(loaded, int(bits * arch.instances(1) // arch.word_bits), arch.word_bits, method)
    if found.overfull_operations:
        with_rereads_counted = with_rereads(found, loaded, chip_of(arch))
        found = replace(with_rereads_counted, schedule_words=_schedule_words(arch, loaded, options))
    return Residency(arch, loaded, found)


def _schedule_words(arch: Arch, workload: Workload, options: SolverOptions) -> float:
    """Returns the main-memory words that the schedule of `solver.schedule = residency` moves; 0.0 where its
    search would take long (`MAX_SOLVED_EINSUMS`) or does not apply.
    """
    if (
        arch.layout_sensitive()
        or workload.repeats
        or len(workload.einsums) > MAX_SOLVED_EINSUMS
        or len(unique(workload)) > MAX_SOLVED_DISTINCT
    ):
        return 0.0
    solved = solve.solve(arch, workload, replace(options, schedule="residency"))
    return solved[0].memory.moved_words if isinstance(solved, list) and solved[0].memory else 0.0


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
        """Returns what `dse show` prints. einsum, why: as of a mapping."""
        head = tables.facts(
            {key: value for key, value in self.row.items() if key not in HIDDEN_COLUMNS},
            self.why_chosen,
            width,
        )
        if self.given_schedule is None:
            return "\n".join([head, *(one.text(einsum, width, why) for one in self.solutions)])
        rows = [(units.label(metric), *cells) for metric, *cells in self.compared()]
        comparison = tables.table(
            ("metric", "found", "given", "change"),
            rows,
            f"{self.given_schedule.workload.name}: the schedule found, the one given",
        )
        return "\n".join([head, comparison, self.given_schedule.text(einsum, width, why)])

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
        return _section(self.why_chosen, shown) + "".join(one._repr_html_() for one in self.solutions)


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

    def __repr__(self) -> str:
        return tables.facts(self._summary(), str(self.path))

    def _summary(self) -> dict[str, Any]:
        return {key: value for key, value in self.status().items() if key in SUMMARY}

    def _repr_html_(self) -> str:
        metrics = [o.column for o in self.study.objectives]
        names = ["machine", *metrics, *studies.columns(self.study, "machines"), "gap_to_bound"]
        front = Answer(self.front(distinct=True).table.select(list(dict.fromkeys(names))))
        return f"{_section(str(self.path), self._summary())}<p>front</p>{front._repr_html_()}"

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
            return Answer(ask(self.con))
        except (db.Stopped, KeyboardInterrupt):
            self.con = connection(self.path, self.study, skip_damaged=self.skip_damaged, memory=self.memory)
            raise

    def status(self) -> dict[str, Any]:
        """Returns state, rate and progress as `dse status --format json` prints them."""
        return check.status(self.path, self.skip_damaged)

    def objectives(self) -> list[str]:
        """Returns the study's objectives as `column:direction`, in order."""
        return [f"{o.column}:{o.direction}" for o in self.study.objectives]

    def front(
        self,
        objectives: Sequence[str] = (),
        where: str = "",
        by: Sequence[str] = (),
        distinct: bool = False,
        epsilon: float | None = None,
        knee: bool = False,
    ) -> Answer:
        """Returns the non-dominated feasible points, best in the first objective first: their rows of
        `designs`.

        objectives: columns of points; "-x" or "x:max" maximises; (): the study's
        where: SQL condition over points and machines
        by: one front for each value of these columns
        distinct: one point, the first, of points with equal objectives; `tied_designs` is how many there are
        epsilon: few points, so that each of the front has one that is worse by at most this share
        knee: the point of least sum of objectives, each scaled to 0 (best on the front) .. 1 (worst)
        """
        from analysis import db

        own = objectives or self.objectives()
        return self._answer(lambda con: db.front(con, own, where, by, distinct, self.seconds, epsilon, knee))

    def hypervolume(self, objectives: Sequence[str] = (), reference: Sequence[float] = ()) -> float:
        """Returns the hypervolume of the front of feasible points, as `status` has it: in the box of these
        points, up to `hypervolume_reference`. objectives: as of `front`. reference: a value of each objective
        in its own unit; then the volume up to there in these units.
        """
        listed = ", ".join("'" + o.replace("'", "''") + "'" for o in objectives or self.objectives())
        values = ", ".join(repr(float(one)) for one in reference)
        rows = self.sql(
            f"FROM hypervolume('(FROM points WHERE feasible)', [{listed}], reference := [{values}]::DOUBLE[])"
        )
        return float(rows[0]["hypervolume"] or 0.0)

    def axis_hints(self) -> list[str]:
        """Returns a line for each axis of three numbers or more at whose end all that is best in an objective
        lies: wider, it may have better ones. Area is left out, as less of anything is smaller.
        """
        axes = [
            axis
            for axis in self.study.space.axes
            if len(axis.values) > 2 and all(isinstance(v, int | float) and v is not True for v in axis.values)
        ]
        found: dict[str, list[str]] = {}  # where on which axis -> objectives
        for objective in self.study.objectives:
            if objective.metric == "area_mm2":
                continue
            column, is_max = objective.column, objective.direction == "max"
            best = self.sql(
                f'FROM designs WHERE feasible AND "{column}" = '
                f'(SELECT {"max" if is_max else "min"}("{column}") FROM points WHERE feasible)'
            )
            for axis in axes:
                at = {row[pareto.slug(axis.key)] for row in best}
                for end, name in ((min(axis.values), "smallest"), (max(axis.values), "largest")):
                    if at == {end}:
                        place = f"at the {name} {axis.key}, {tables.fact(axis.key, end)}"
                        found.setdefault(place, []).append(
                            f"the {'highest' if is_max else 'lowest'} {units.label(column)}"
                        )
        return [
            f"{' and '.join(names)} {'lie' if len(names) > 1 else 'lies'} {place}: widen that axis"
            for place, names in found.items()
        ]

    def plot(self, kind: str = "front", point: str | int = "best", workload: str = "") -> Picture:
        """Returns a picture, which a notebook shows and `.save("x.pdf")` writes: front, breakdown, roofline
        (of `point` and `workload`, a name; "": the first), sensitivity or progress.
        """
        from dse.frontend import pictures

        return pictures.of_run(self, kind, point, workload)

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
            self._reprice(arch, machine, schedule_number, str(point))
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

    def _with_totals(self, row: dict[str, Any], schedule: int) -> dict[str, Any]:
        """Returns a row of the table machines, extended by the schedule's costs over all workloads (weighted)
        and the constraints that it breaks, each with by how much.
        """
        points = self.sql(
            f"FROM points WHERE machine = {row['machine']} AND schedule = {schedule}"
        ).table.to_pylist()
        if not points:
            return row
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
        return {**head, "broken_constraints": broken or None, **scope, **totals, **row}

    def certificate(self) -> str:
        """Returns what is proven of the front of all evaluated machines and their mappings; "" unless
        solver.objective is front and objectives are sums of energy, latency, EDP and area, minimised.
        """
        objectives = self.study.objectives
        if self.study.solver.objective != "front" or prune.unbounded_objective(objectives):
            return ""
        gap, failed, evaluated = (
            self.sql(
                "SELECT (SELECT max(optimality_gap) FROM points), count_if(status = 'error'), count(*) "
                "FROM machines"
            )
            .table.to_pylist()[0]
            .values()
        )
        if gap is None:
            return ""
        gap = (1 + gap) ** 2 - 1 if any(o.metric == "edp_pj_ns" for o in objectives) else gap
        every = evaluated == self.study.space.size and not failed
        of_what = "this study" if every else f"the {evaluated - failed:,} machines evaluated"
        near_limits = ", unless it meets a constraint by less than that"
        return (
            f"no machine of {of_what} with any choice of one mapping per distinct einsum dominates this "
            f"front by more than {percent(gap)} in every objective"
            + (near_limits if self.study.constraints.modelled else "")
        )

    def fusion_hints(self, point: str | int = "best") -> list[str]:
        """Returns lines about workloads that a point runs layer by layer although fusion may save much
        traffic between their einsums (`explain.unfused_hint`): one for each such workload.
        """
        if self.study.solver.schedule != "unfused":
            return []
        solved = self.show(point).solutions
        command = f"dse run {self.path / 'study.yaml'} --out NEW"
        lines = [
            (one.workload.name, explain.unfused_hint(one.arch, one.workload, one.solution, command))
            for one in solved
            if isinstance(one.solution, Solution)
        ]
        return [f"{name}, {line}" if len(solved) > 1 else line for name, line in lines if line]

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
        parameters = spaces.values(self.study.space, number).items() if number is not None else ()
        set_options = (
            " ".join(f"--set {key}={_quote(key, value)}" for key, value in parameters)
            or "--set of its parameters"
        )
        ended = str(status["reason"]).partition("; the front is empty")[0]
        return (
            f"the run ended before it ({ended}); dse run with a larger stop (such as stop.machines) "
            f"continues it, dse map WORKLOAD MACHINE {set_options} solves that machine alone"
        )

    def _price_given_schedule(self, arch: Arch, path: Path) -> Mapped:
        """Prices a given schedule, for the first workload that has its einsums."""
        faults = []
        for workload in self._workloads():
            try:
                return _price_schedule(arch, workload, self.study.solver, path)
            except ValueError as fault:
                faults.append(str(fault))
        raise ValueError(faults[0])

    def _workloads(self) -> list[Workload]:
        """Returns the study's workloads; those of files bear the study's name for them, not that of the file
        in the run's folder.
        """
        named = zip(self.study.workloads, studies.workloads_of(self.study), strict=True)
        return [replace(w, name=ref.name) if ref.path else w for ref, w in named]

    def _reprice(self, arch: Arch, number: int, schedule: int, point: str) -> Iterator[Mapped]:
        """Yields for each workload its stored schedule, costed again. number: of the machine; point: as the
        user wrote it. Raises AnswerDiffers if a stored cost differs.
        """
        for ref, workload in zip(self.study.workloads, self._workloads(), strict=True):
            name = ref.name.replace("'", "''")
            condition = f"WHERE machine = {number} AND schedule = {schedule} AND workload = '{name}'"
            nests = self.sql(
                "SELECT einsum, nest, optimality_gap, certificate FROM einsums JOIN mappings USING "
                f"(mapping_key, einsum_key) {condition}"
            )
            costs = self.sql(
                f"SELECT energy_pj, latency_cycles, certificate FROM workload_costs {condition}"
            ).table.to_pylist()
            stored = [{key: row[key] for key in ("energy_pj", "latency_cycles")} for row in costs]
            certificates = [row["certificate"] for row in costs]
            if not nests:
                raise ValueError(
                    f"{self.path}: POINT = {point}: machine {number} has no schedule {schedule}; try "
                    f"{number}.0"
                )
            conversions = tuple(
                Conversion(**{**row, "readers": tuple(row["readers"].split(", "))})
                for row in self.sql(
                    'SELECT tensor, layout, "to", readers, energy_pj, latency_cycles, saved_cost AS '
                    f"saved FROM conversions {condition} ORDER BY position"
                ).table.to_pylist()
            )
            workload = with_conversions(workload, conversions)
            schedule_texts = (
                self.sql(f"SELECT nest FROM schedules {condition} AND nest IS NOT NULL")
                .table["nest"]
                .to_pylist()
            )
            plan = schedules.parse_schedule(schedule_texts[0]) if schedule_texts else None
            nest_texts = {row["einsum"]: row["nest"] for row in nests}
            proofs = {
                row["einsum"]: (row["optimality_gap"] or 0.0, row["certificate"] or "") for row in nests
            }
            found = (
                evaluate(arch, workload, plan, self.study.solver.single_objective)
                if plan
                else solve.reprice(arch, workload, self.study.solver, nest_texts, proofs)
            )
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
            front = self.front(names)
            if not len(front):
                raise ValueError(
                    f"POINT = {text}: the front is empty; dse sql can tell why (SELECT status, "
                    "reason FROM machines)"
                )
            row, first_column = next(iter(front)), db.column_of(names[0])
            extreme = "highest" if db.maximised(names[0]) else "lowest"
            why = (
                f"{extreme} {units.label(first_column)} of all feasible machines "
                f"({tables.fact(first_column, row[first_column])})"
            )
            return row["machine"], row["schedule"], f"{text}: machine {row['machine']}, {why}"
        if found := re.fullmatch(r"([0-9]{1,18})(?:\.([0-9]{1,9}))?", text):
            return int(found[1]), int(found[2] or 0), f"machine {int(found[1])}"
        raise ValueError(f"POINT = {text}: give MACHINE, MACHINE.SCHEDULE, best or best:COLUMN")

    def neighbours(self, number: int) -> Answer:
        """Returns the one-at-a-time sensitivity of a machine: how the objectives change with one step of each
        parameter, among machines that the run has solved. One step leads to a neighbouring number; for a
        parameter that is no number, to any other value.
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
        return _answer(rows)


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
        return Answer(db.query_tables(found, statement, first.seconds, first.memory))


class AnswerDiffers(ValueError):
    """A stored cost that the evaluator no longer confirms."""

    exit_code = 1


def _quote(key: str, value: Any) -> str:
    """Returns a value as --set takes it, in a shell."""
    text = (
        f"{value:g} GB/s"
        if key.endswith(".bandwidth")
        else tables.fact(key, value)
        if key.endswith(".capacity")
        else str(value)
    )
    return f"'{text}'" if " " in text else text


def _steps(values: Sequence[Any], own: Any) -> list[Any]:
    """Returns the values one step from `own`, one of `values`: its neighbours on an axis of numbers, else all
    other values.
    """
    if any(isinstance(value, str | bool) for value in values):
        return [value for value in values if value != own]
    i = values.index(own)
    return [values[k] for k in (i - 1, i + 1) if 0 <= k < len(values)]


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
    path = pack.unpacked(check.local(path))
    study = study_of(path)
    return Run(
        path,
        study,
        connection(path, study, skip_damaged=skip_damaged, memory=memory),
        skip_damaged,
        memory,
        seconds,
    )


def connection(
    path: str | Path, study: Study, *, skip_damaged: bool = False, memory: str = "4GB"
) -> DuckDBPyConnection:
    """Returns a connection to the views of a run, including those that are computed on demand."""
    from analysis import computed, db

    schemas = {table: record.schema(table, studies.columns(study, table)) for table in record.STORED}
    context = derived.RunContext(Path(path), study)
    con: DuckDBPyConnection = db.connect(
        path,
        schemas,
        computed.Computed(derived.functions(context), derived.uniques(context), derived.ratios()),
        skip_damaged=skip_damaged,
        memory=memory,
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
    study = studies.load(path, within=root)
    if lines := folder.other_study_faults(root, manifest, studies.identity(study)):
        raise folder.Damaged("\n".join(lines))
    if manifest.groups and folder.env(root, manifest) is None:
        logging.getLogger("dse").warning(
            "%s: lost, damaged or of another run; %s", root / folder.ENV, folder.advice(root)
        )
    return study


def _answer(rows: Sequence[Mapping[str, Any]]) -> Answer:
    return Answer(pa.Table.from_pylist(rows))


def _section(title: str, facts: Mapping[str, Any], found: Sequence[explain.Table] = ()) -> str:
    """Returns facts and tables under a heading, as HTML."""
    parts = [f"<h4>{html.escape(title)}</h4>", _html(("key", "value"), tables.labelled(facts))]
    for one in found:
        heads = [units.label(name) for name in one.header]
        note = f"<p>{html.escape(one.note)}</p>" if one.note else ""
        parts.append(f"<p>{html.escape(one.title)}</p>{_html(heads, one.rows, one.header)}{note}")
    return "".join(parts)


def _html(header: Sequence[str], rows: Sequence[Sequence[Any]], unit_keys: Sequence[str] = ()) -> str:
    """Returns an HTML table. Cells are escaped text. unit_keys: as in `tables.table`."""
    columns = [
        tables.cells(unit_key, [row[i] for row in rows]) for i, unit_key in enumerate(unit_keys or header)
    ]
    heads = "".join(f"<th>{html.escape(tables.safe(name))}</th>" for name in header)
    body = "".join(
        "<tr>"
        + "".join(
            f"<td><pre>{html.escape(cell)}</pre></td>"
            if "\n" in cell
            else f"<td{NO_WRAP * (len(cell) <= tables.MAX_NAME_WIDTH)}>{html.escape(cell)}</td>"
            for cell in line
        )
        + "</tr>"
        for line in zip(*columns, strict=True)
    )
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"
