"""The Python interface of one workload on one machine: dse.map, dse.simulate, dse.front, dse.layout and
dse.residency. The command line prints the same values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dse.explain import values as explain
from dse.frontend import screens, tables
from dse.frontend.answers import Answer, answer, section
from dse.frontend.mapped import Mapped
from dse.mapping import matched
from dse.mapping import schedule as schedules
from dse.mapping.conversion import with_conversions
from dse.mapping.nest import Infeasible, packing_levels, to_text
from dse.run import deadline
from dse.sim.directives import directed
from dse.sim.einsum.evaluate import Problem, ProgressFn, Solution, no_progress
from dse.sim.schedule import outermost
from dse.sim.schedule.graph import evaluate
from dse.solve import solve
from dse.solve.gogeta.classify import CLASSIFIERS
from dse.solve.gogeta.rereads import chip_of
from dse.solve.gogeta.traffic import TrafficReport, traffic_of, with_rereads
from dse.solve.options import SolverOptions
from dse.study import pareto, read
from dse.study.plan import Limits
from hw import component
from hw import machine as machines
from hw import space as spaces
from hw.arch import Arch, Machine
from workloads import catalog
from workloads.graph import Workload, unique

if TYPE_CHECKING:
    from analysis.plots import Picture

NO_WRAP = ' style="white-space: nowrap"'  # of a short cell in a notebook
MAX_HTML_ROWS = 1000  # rows of an answer that a notebook shows
# a workload with at most this many einsums, and this many distinct ones, is also solved with
# solver.schedule = residency by the function `residency`, which takes seconds
MAX_SOLVED_EINSUMS, MAX_SOLVED_DISTINCT = 200, 3


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
        with its gap. Each distinct einsum gets an equal part of the time that is left; of solver.schedule =
        "fused" these get half of it, and segments by their first einsum the rest; of "best" the
        schedule of the widest space gets what unfused mappings leave.

    Raises ValueError with one line per fault.
    """
    _check_order(workload, machine)
    seconds, sets = _deadline(sets)
    options, spec = _machine_and_options(
        machine, ({"solver.objective": objective} if objective else {}) | sets
    )
    if options.objective == "front":
        raise ValueError(
            "solver.objective = front: this prints one schedule; take dse map --front (Python: dse.front), "
            "or the objective energy, latency or edp"
        )
    if seconds and (
        schedule or options.schedule not in ("unfused", "fused", "best") or options.layout != "row_major"
    ):
        raise ValueError(
            f"limits.seconds = {seconds:g}: ends searches of solver.schedule = unfused, fused and best, not "
            "of other schedules or layouts; leave it out"
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
        return price_schedule(arch, loaded, options, Path(schedule), progress)
    if options.layout != "row_major" and given_layouts:
        raise ValueError(
            f"layout {layouts[0]}: solver.layout = {options.layout} chooses them; leave one of both out"
        )
    if options.layout != "row_major" and options.schedule == "unfused":
        layouts_solution = solve.cached_layouts(arch, loaded, options, progress)
        found = layouts_solution if isinstance(layouts_solution, Infeasible) else [layouts_solution]
    else:
        if seconds:
            solve.load_kernels()  # before the time begins
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
    _check_order(workload, machine)
    fuse = bool(sets.pop("solver.fuse_elementwise", True))
    arch = machines.arch(spaces.override(machines.load(machine), sets))
    path, loaded = Path(mapping), catalog.load(workload, fuse_elementwise=fuse)
    # cost of directives that no nest expresses; None: the file has none
    if (directive_cost := directed.evaluate_file(path, loaded, arch)) is not None:
        return Mapped(arch, loaded, directive_cost)
    scheduled, plan = matched.load(path, loaded, arch)
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

    _check_order(workload, machine)
    options, spec = _machine_and_options(machine, sets)
    arch, loaded = machines.arch(spec), catalog.load(workload, fuse_elementwise=options.fuse_elementwise)
    groups = unique(loaded)
    if arch.units:
        names = [one.compute.name.lower() for one in arch.units]
        raise ValueError(replace(options, objective="front").units_refused(names))
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
        listed = ", ".join(
            [*(group.einsum.name for group in groups[:6]), *(["..."] if len(groups) > 6 else [])]
        )
        raise ValueError(
            f"{workload}: no einsum {einsum}; name one, or none for the front of the workload: {listed}"
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
    return answer(rows)


def _workload_front(arch: Arch, workload: Workload, options: SolverOptions) -> Answer:
    """Returns the front of a workload's unfused schedules, each as the text that `simulate` takes."""
    found = solve.solve(arch, workload, options)
    if isinstance(found, Infeasible):
        raise screens.NothingFits(f"{workload.name} on {arch.name}: infeasible: {found}")
    return answer(
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

    _check_order(workload, machine)
    _, spec = _machine_and_options(machine, sets)
    tensor, _, layout_text = _layout(text)
    return pictures.of_layout(machines.arch(spec), catalog.load(workload), tensor, layout_text)


def _check_order(workload: Any, machine: str) -> None:
    """Raises ValueError where a machine or a study stands in the place of the workload, or a file of a
    workload in that of the machine.
    """
    from dse.frontend import check
    from workloads import catalog

    stem = str(machine).partition(":")[0]
    if stem.lower().endswith(catalog.SUFFIXES) and not stem.lower().endswith((".yaml", ".yml")):
        raise ValueError(f"{machine} is a workload: the machine comes second, a name or a .yaml file")
    try:
        kind = check.kind_of(workload) if isinstance(workload, str) else "workload"
        swapped = kind == "machine" and not check.is_machine(machine)
    except ValueError:  # a faulty file, said where it is read
        return
    if swapped:
        raise ValueError(f"{workload} is a machine: the machine comes second; write {machine} {workload}")
    if kind != "workload":
        cure = f"; dse run {workload}" if kind == "study" else ""
        raise ValueError(f"{workload} is a {kind}: the workload comes first, e.g. resnet50 {machine}{cure}")


def price_schedule(
    arch: Arch, workload: Workload, options: SolverOptions, path: Path, progress: ProgressFn = no_progress
) -> Mapped:
    """Returns the schedule of a file, priced. Einsums that it leaves out are mapped by themselves."""
    scheduled, given_schedule = matched.load(path, workload, arch, allow_missing=True)
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
    spec = machine_with(machine, sets)
    for line in component.rule_faults(options.mapping, spec.nodes, "solver.mapping"):
        faults.add(line)
    if faults.lines:
        raise ValueError("\n".join(faults.lines))
    return options, spec


def machine_with(machine: str, sets: Mapping[str, Any]) -> Machine:
    """Returns a machine with its fields among these keys set, as in --set. Raises ValueError."""
    own = {key: value for key, value in sets.items() if not key.startswith(("solver.", "limits."))}
    return spaces.override(machines.load(machine), own)


@dataclass(frozen=True, slots=True)
class Residency:
    """On-chip retention of one workload on one machine, between its operations."""

    arch: Arch
    workload: Workload
    reuse: TrafficReport
    options: SolverOptions = SolverOptions()

    @property
    def configurations(self) -> Answer:
        """Main-memory traffic of GOGETA's configurations and of the optimum, a row each."""
        first_table = explain.residency(self.arch, self.workload, self.reuse)[1][0]
        return answer([dict(zip(first_table.header, row, strict=True)) for row in first_table.rows])

    def plot(self, kind: str = "residency", progress: ProgressFn = no_progress) -> Picture:
        """Returns a picture.

        kind: residency: which tensor is retained when, in the optimum; traffic-over-capacity: main-memory
            traffic of each configuration over the capacity on chip; traffic-per-tensor: in the optimum and
            with nothing retained; graph: operations and what they pass on
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

    def schedules(self) -> dict[str, Any]:
        """Returns words of main memory of GOGETA's configurations and of the optimum as lists and as
        schedules, as `dse residency --schedules --format json` prints them. Takes as long as their mappings.
        """
        facts, listed = self.ranking()
        return {
            **facts,
            "schedules": [dict(zip(listed[0].header, row, strict=True)) for row in listed[0].rows],
        }

    def ranking(self) -> tuple[dict[str, Any], list[explain.Table]]:
        """Returns facts and the table of `schedules`."""
        from dse.explain.ranking import SCHEDULES, Configuration, ranking_table
        from dse.solve.gogeta.gogeta_configs import Emitted

        solved: dict[Configuration, Solution | Infeasible] = {}
        known = Emitted(report=None if self.reuse.published else self.reuse)
        for name in SCHEDULES:
            options = replace(self.options, schedule=name, factors="perfect")
            found = solve.solve_schedule(self.arch, self.workload, options, known=known)
            solved[name] = found if isinstance(found, Infeasible) else found[0]
        return ranking_table(self.arch, self.workload, solved)

    def text(self, width: int = tables.WIDE) -> str:
        """Returns what `dse residency` prints."""
        return screens.residency(self.arch, self.workload, self.reuse, width)

    def __repr__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return section(
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
    _check_order(workload, machine)
    options, spec = _machine_and_options(machine, sets)
    arch, loaded = machines.arch(spec), catalog.load(workload, fuse_elementwise=options.fuse_elementwise)
    if method not in CLASSIFIERS:
        raise ValueError(f"method = {method} must be {' or '.join(CLASSIFIERS)}")
    if len(arch.levels) < 2 or not (bits := arch.levels[1].capacity_bits):
        raise ValueError(
            f"{machine}: needs a bounded memory below main memory; give its second memory a capacity"
        )
    if arch.narrows_or_widens():
        raise ValueError(
            f"{machine}: has memories with `bits`, and retention is counted in words of one width; leave "
            "bits out"
        )
    if packing := [name for e in loaded.einsums for name in packing_levels(e, arch)]:
        raise ValueError(
            f"{machine}: has {packing[0]}.formats, and retention is counted in the workload's formats; leave "
            "formats out"
        )
    if arch.units:
        raise ValueError(
            f"{machine}: has several computes, and operations are listed for one; give it one compute"
        )
    if overflow := outermost.overflow_of_any(arch, loaded):
        raise ValueError(f"{machine}: {overflow}; give {overflow.level} more capacity")
    found = traffic_of(loaded, int(bits * arch.instances(1) // arch.word_bits), arch.word_bits, method)
    if found.overfull_operations:
        with_rereads_counted = with_rereads(found, loaded, chip_of(arch))
        found = replace(with_rereads_counted, schedule_words=_schedule_words(arch, loaded, options, found))
    return Residency(arch, loaded, found, options)


def _schedule_words(arch: Arch, workload: Workload, options: SolverOptions, found: TrafficReport) -> float:
    """Returns the main-memory words that the schedule of `solver.schedule = residency` moves; 0.0 where its
    search would take long (`MAX_SOLVED_EINSUMS`) or does not apply. found: its traffic between operations.
    """
    from dse.solve.gogeta.gogeta_configs import Emitted

    if (
        arch.layout_sensitive()
        or workload.repeats
        or len(workload.einsums) > MAX_SOLVED_EINSUMS
        or len(unique(workload)) > MAX_SOLVED_DISTINCT
    ):
        return 0.0
    known = Emitted(report=None if found.published else found)
    solved = solve.solve_schedule(arch, workload, replace(options, schedule="residency"), known=known)
    return solved[0].memory.moved_words if isinstance(solved, list) and solved[0].memory else 0.0
