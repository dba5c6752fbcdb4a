"""Pictures of runs and of mapped workloads: chooses the values that each kind of picture shows.
analysis/plots.py draws them.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from analysis import plots
from analysis.plots import Picture
from dse.explain import figures, units, values
from dse.frontend import tables
from dse.frontend.screens import NothingFits
from dse.mapping.nest import Infeasible
from dse.run import folder
from dse.sim.einsum.evaluate import ProgressFn, Solution, no_progress
from dse.solve import solve
from dse.solve.options import SolverOptions
from dse.study import study as studies
from dse.study.study import Study
from hw.arch import Arch
from hw.component import closest_name
from workloads.graph import Workload

if TYPE_CHECKING:  # importing it would import SciPy
    from dse.solve.gogeta.traffic import TrafficReport

OF_RUN = ("front", "breakdown", "roofline", "sensitivity", "progress")
OF_REUSE = ("residency", "traffic-over-capacity", "traffic-per-tensor", "graph")
BREAKDOWN_LEGEND = "energy by component (static: leakage, background), latency by bottleneck"
OF_MAPPED = ("nest", "mapping", "roofline", "breakdown", "ski-slope", "residency")
CLOCK_S = 10.0  # seconds by which clocks of a file system and of a run may differ
BARS = 16  # points of the front in a breakdown, at even distances along it


class Rows(Protocol):
    """Rows, as dse.frontend.answers.Answer has them."""

    @property
    def table(self) -> pa.Table:
        """The rows as an Arrow table."""


class Solved(Protocol):
    """The part of dse.frontend.mapped.Mapped that pictures need."""

    @property
    def arch(self) -> Arch:
        """The machine that was mapped to."""

    @property
    def workload(self) -> Workload:
        """The workload that was mapped."""

    @property
    def solution(self) -> Solution | Infeasible:
        """The schedule found, or why none fits."""

    @property
    def options(self) -> SolverOptions:
        """The solver's options."""


class Opened(Protocol):
    """The part of dse.frontend.runs.Run that pictures need."""

    @property
    def path(self) -> Path:
        """The run's folder."""

    @property
    def study(self) -> Study:
        """The study that the run explores."""

    def sql(self, statement: str) -> Rows:
        """Rows of one SELECT statement over the run's views."""

    def front(
        self, objectives: Sequence[str] = (), where: str = "", by: Sequence[str] = (), distinct: bool = False
    ) -> Rows:
        """Pareto front in some objectives (none: the study's), per value of the columns `by`."""

    def show(self, point: str | int = "best") -> Any:
        """One schedule: `best`, a machine's number, or MACHINE.SCHEDULE."""

    def solutions(self, points: Sequence[tuple[int, int]]) -> Iterator[tuple[Any, ...]]:
        """Of each (machine, schedule) its solved workloads."""

    def certificate(self) -> str:
        """What is proven of the front over machines and their mappings; "": nothing."""

    def one_mapping_note(self, objectives: Sequence[str] = ()) -> str:
        """That faster (leaner) mappings are not on the front; "": they are."""

    def gap_note(self) -> str:
        """How far costs lie above their optima; "": they do not."""

    def unfinished(self) -> str:
        """How many of its machines are solved; "": the run has finished."""

    def axis_hints(self, objectives: Sequence[str] = ()) -> list[str]:
        """A line about axes at whose end all that is best in an objective lies."""

    def fusion_hints(self, point: str | int = "best") -> list[str]:
        """A line per workload that the point runs layer by layer though it exchanges much through memory."""


def of_run(
    run: Opened, kind: str, point: str | int = "best", workload: str = "", einsum: str | None = None
) -> Picture:
    """Returns a picture of a run. kind: one of OF_RUN; point, workload, einsum: whose roofline is drawn.
    Raises ValueError.
    """
    if kind not in OF_RUN:
        raise ValueError(f"KIND = {kind}: is no picture of a run; {closest_name(kind, OF_RUN)}")
    if kind == "roofline":
        return _roofline(run, point, workload, einsum)
    return {"front": _front, "breakdown": _breakdown, "sensitivity": _sensitivity, "progress": _progress}[
        kind
    ](run)


def name_of(run: Opened) -> str:
    """Returns the title of a run: study and workloads, or only workloads if the study is named after them;
    how many machines of a run that has not finished are solved.
    """
    names = ", ".join(ref.name for ref in run.study.workloads)
    title = names if names == run.study.name else f"{run.study.name}: {names}"
    return ", ".join(filter(None, (title, run.unfinished().partition(":")[0])))


def _points(run: Opened, columns: Sequence[str]) -> pa.Table:
    """Returns these columns of the feasible points, in the order in which machines were asked. Raises
    ValueError if there are none.
    """
    listed = ", ".join(f'"{name}"' for name in dict.fromkeys(columns))
    found = run.sql(
        f"SELECT {listed} FROM designs WHERE feasible ORDER BY generation, machine, schedule"
    ).table
    if not len(found):
        raise ValueError(f"{run.path}: no feasible point to draw yet; dse status says what the run has done")
    return found


def _front(run: Opened) -> Picture:
    names = [o.column for o in run.study.objectives]
    found = _points(run, [*names, "machine"])
    if len(names) < 2:
        raise ValueError(
            f"{run.path}: a front takes two objectives, the study has {names[0]} alone; dse plot RUN "
            "progress shows how it fell"
        )
    points = {name: found[name].to_numpy() for name in names}
    signs = np.array([-1.0 if o.direction == "max" else 1.0 for o in run.study.objectives])
    from dse.study import pareto

    on_front = pareto.front(np.column_stack([points[name] for name in names]) * signs)
    return plots.front(
        points,
        on_front,
        [(o.column, o.direction == "max") for o in run.study.objectives],
        found["machine"].to_numpy(),
        "\n".join([name_of(run), *_left_out(run)]),
    )


def _left_out(run: Opened) -> list[str]:
    """Returns a line with the number of points and machines that a front does not show, if any."""
    [row] = run.sql(
        "SELECT (SELECT count(*) FROM points WHERE NOT feasible) AS points, (SELECT count(*) FROM machines "
        "WHERE status = 'infeasible') AS machines"
    ).table.to_pylist()
    texts = [
        f"{row['points']} points that break a constraint",
        f"{row['machines']} machines that are infeasible",
    ]
    shown = [text for text, n in zip(texts, (row["points"], row["machines"]), strict=True) if n]
    return [f"not shown: {', '.join(shown)}"] if shown else []


def spread(count: int, max_count: int) -> list[int]:
    """Returns at most `max_count` indices of a list of `count`, at even distances, including both ends."""
    return sorted({round(i) for i in np.linspace(0, count - 1, min(count, max_count))})


def _breakdown(run: Opened) -> Picture:
    """Draws energy by component and latency by bottleneck for machines of the front, each the weighted sum
    over workloads.
    """
    rows = run.front(distinct=True).table.to_pylist()
    if not rows:
        raise ValueError(f"{run.path}: no feasible point to draw yet; dse status says what the run has done")
    energy: list[tuple[str, Mapping[str, float]]] = []
    latency: list[tuple[str, Mapping[str, float]]] = []
    area: list[tuple[str, Mapping[str, float]]] = []
    weights = run.study.weights()
    shown_rows = spread(len(rows), BARS)
    keys = [(rows[index]["machine"], rows[index]["schedule"]) for index in shown_rows]
    for (machine, schedule), solutions in zip(keys, run.solutions(keys), strict=True):
        number = f"{machine}.{schedule}"
        parts: Counter[str] = Counter()
        bottlenecks: Counter[str] = Counter()
        areas: dict[str, float] = {}
        for ref, one in zip(run.study.workloads, solutions, strict=True):
            parts.update(
                {name: weights[ref.name] * pj for name, pj in energy_parts(one.arch, one.solution).items()}
            )
            areas = dict(zip(one.arch.components(), one.arch.areas_mm2(), strict=True))
            bottlenecks.update(
                {name: weights[ref.name] * ns for name, ns in bottleneck_ns(one.arch, one.solution).items()}
            )
        energy.append((number.removesuffix(".0"), parts))
        area.append((number.removesuffix(".0"), areas))
        latency.append((number.removesuffix(".0"), bottlenecks))
    first = run.study.objectives[0]
    tied_count = sum(row["tied_designs"] for row in rows) - len(rows)
    omissions = [
        *([f"{len(shown_rows)} of {len(rows)}"] if len(shown_rows) < len(rows) else []),
        *([f"{tied_count} tied designs left out"] if tied_count else []),
    ]
    title = "; ".join(
        [
            f"{name_of(run)}: machines of the front, {'highest' if first.direction == 'max' else 'lowest'} "
            f"{units.label(first.column)} first",
            *omissions,
        ]
    )
    panels = {"energy_pj": energy, "latency_ns": latency, "area_mm2": area}
    return plots.breakdown(panels, "machine", f"{title}\n{BREAKDOWN_LEGEND}, area by component")


def energy_parts(arch: Arch, found: Solution) -> dict[str, float]:
    """Returns energy in pJ by component; static energy of all components is the entry `static`."""
    parts = values.components(arch, found)
    return {**{one.name: one.dynamic_pj for one in parts}, "static": sum(one.static_pj for one in parts)}


def bottleneck_ns(arch: Arch, found: Solution) -> dict[str, float]:
    """Returns latency in ns by bottleneck: for each component the time of the einsums that it limits."""
    total: Counter[str] = Counter()
    for c in found.einsums:
        total[f"{c.bottleneck}{plots.BOTTLENECK_SUFFIX}"] += c.count * c.latency_cycles / arch.clock_ghz  # type: ignore[assignment]
    return dict(total)


def _sensitivity(run: Opened) -> Picture:
    parameters, names = list(studies.columns(run.study, "machines")), [o.column for o in run.study.objectives]
    found = _points(run, [*parameters, *names])
    columns = {name: found[name].to_pylist() for name in parameters}
    panels = {}
    for name in names:
        effects, explained = figures.effects(columns, found[name].to_numpy())
        panels[name] = (
            effects,
            explained,
            figures.uncertainty_factor(effects, explained, found[name].to_numpy()),
        )
    return plots.sensitivity(
        panels,
        f"{name_of(run)}: what each parameter does, all else equal (log-linear fit over {len(found)} points)",
    )


def _progress(run: Opened) -> Picture:
    return plots.progress(courses(run), name_of(run))


def courses(run: Opened) -> list[figures.Course]:
    """Returns how a run went: over machines done, in the order in which they were asked; and over its time,
    in that in which they were committed, where the folder still tells.
    """
    names = [o.column for o in run.study.objectives]
    signs = np.array([-1.0 if o.direction == "max" else 1.0 for o in run.study.objectives])
    done = run.sql("SELECT machine, status FROM machines ORDER BY generation, machine").table
    machines, status = done["machine"].to_numpy(), np.array(done["status"].to_pylist(), dtype=object)
    listed = ", ".join(f'"{name}"' for name in names)
    points = run.sql(
        f"SELECT machine, {listed} FROM designs WHERE feasible ORDER BY generation, machine, schedule"
    ).table
    values = np.column_stack([points[name].to_numpy() for name in names]) * signs
    order = np.argsort(machines)
    row_of_point = order[np.searchsorted(machines, points["machine"].to_numpy(), sorter=order)]
    axes = {"machines done": np.arange(1.0, len(machines) + 1)}
    if (seconds := _seconds(run, machines)) is not None:
        steps = [(1.0, "s"), (60.0, "min"), (3600.0, "h")]
        by, unit = next(step for step in reversed(steps) if max(seconds) >= 2 * step[0] or step[0] == 1)
        axes[f"time ({unit}, without pauses)"] = seconds / by
    found = []
    for axis, x in axes.items():
        rows, point_rows = np.argsort(x, kind="stable"), np.argsort(x[row_of_point], kind="stable")
        found.append(
            figures.course(
                axis, x[rows], status[rows].tolist(), x[row_of_point][point_rows], values[point_rows]
            )
        )
    return found


def _seconds(run: Opened, machines: np.ndarray) -> np.ndarray | None:
    """Returns for each machine how long the run had taken when its rows were committed (merged groups of
    commits: when they were merged); None where files tell no times: a copy, a packed run.
    """
    stamps = [
        (row["time"].timestamp(), row["kind"])
        for row in run.sql(
            "SELECT time, kind FROM events WHERE kind IN ('start', 'resume', 'stop') ORDER BY time"
        ).table.to_pylist()
    ]
    manifest = folder.read(run.path)
    found, times = [np.empty(0, dtype=np.int64)], [np.empty(0)]
    for group in manifest.groups:
        path = run.path / folder.part_path("machines", group.name)
        if path.is_file():
            found.append(pq.read_table(path, columns=["machine"])["machine"].to_numpy())
            times.append(np.full(len(found[-1]), path.stat().st_mtime))
    committed, at = np.concatenate(found), np.concatenate(times)
    if not len(machines) or not np.all(np.isin(machines, committed)):
        return None
    last = float((folder.status(run.path, manifest.identity) or {}).get("time", 0.0))
    begins = [time for time, kind in stamps if kind != "stop"]
    # the last commit of a session is written after the event of its end; a killed one has none
    ends = [
        max((t for t in (*at, *(time for time, _ in stamps)) if begin <= t < after), default=begin)
        for begin, after in pairwise([*begins, inf])
    ]
    if not begins or max(at) > max(last, stamps[-1][0]) + CLOCK_S:
        return None
    order = np.argsort(committed)
    rows = order[np.searchsorted(committed, machines, sorter=order)]
    return figures.elapsed(at[rows], list(zip(begins, ends, strict=True)))


def _roofline(run: Opened, point: str | int, workload: str, einsum: str | None) -> Picture:
    """Draws one workload of a point; the title names those that it leaves out."""
    shown = run.show(point)
    if not shown.solutions:
        raise ValueError(
            f"{run.path}: POINT = {point}: machine {shown.machine} has no mapping ({shown.row['status']}); "
            "dse show says why"
        )
    by_name = dict(zip([ref.name for ref in run.study.workloads], shown.solutions, strict=True))
    name = workload or next(iter(by_name))
    if name not in by_name:
        raise ValueError(f"--workload = {name}: is not of {run.path}; {closest_name(name, by_name)}")
    one = by_name.pop(name)
    names = textwrap.shorten(", ".join(by_name), 70, placeholder=" ...")
    others = f"\n1 of {len(by_name) + 1} workloads; others: --workload {names}" if by_name else ""
    return plots.roofline(
        figures.roofline(one.arch, one.workload, one.solution, einsum),
        f"{name}, machine {shown.machine} of {run.study.name}{others}",
    )


def of_layout(arch: Arch, workload: Workload, tensor: str, text: str) -> Picture:
    """Returns a picture of a tensor's addresses in the layout `text`, with lines of the machine's outermost
    level.
    """
    return plots.layout(figures.layout(arch, workload, tensor, text))


def wrong_kind(kind: str) -> str:
    """Returns the message for a kind of picture that no workload on a machine has; "" for the others."""
    kinds = (*OF_MAPPED, "layout", *OF_REUSE[1:])
    if kind in kinds:
        return ""
    return f"KIND = {kind}: is no picture of a workload on a machine; {closest_name(kind, kinds)}"


def of_mapped(
    mapped: Solved, kind: str, einsum: str | None = None, progress: ProgressFn = no_progress
) -> Picture:
    """Returns a picture of one workload on one machine. kind: one of OF_MAPPED; einsum: the one of a nest,
    ski slope or roofline. Raises ValueError.
    """
    if kind not in OF_MAPPED:
        raise ValueError(wrong_kind(kind) or f"KIND = {kind}: dse plot alone draws it")
    title = f"{mapped.workload.name} on {mapped.arch.name}"
    if kind == "ski-slope":
        drawn_workload = figures.one_einsum_workload(mapped.workload, einsum) if einsum else mapped.workload
        found = solve.cached(mapped.arch, drawn_workload, mapped.options) if einsum else mapped.solution
        slope = figures.ski_slope(
            mapped.arch,
            drawn_workload,
            mapped.options,
            found[0] if isinstance(found, list) else found,
            progress,
        )
        return plots.ski_slope(slope, f"{drawn_workload.name} on {mapped.arch.name}")
    if isinstance(mapped.solution, Infeasible):
        raise NothingFits(f"{title}: infeasible: {mapped.solution}")
    draw_kind: dict[str, Callable[[Solution], Picture]] = {
        "roofline": lambda found: plots.roofline(
            figures.roofline(mapped.arch, mapped.workload, found, einsum), title
        ),
        "breakdown": lambda found: _einsums(mapped, found, title),
        "nest": lambda found: _nest(mapped, found, einsum, plots.nest, figures.nest),
        "mapping": lambda found: _nest(mapped, found, einsum, plots.mapping, figures.diagram),
        "residency": lambda found: plots.residency(
            figures.schedule_residency(mapped.arch, mapped.workload, found)
        ),
    }
    if kind == "residency" and not mapped.solution.schedule:
        raise ValueError(
            "KIND = residency: an unfused schedule retains nothing; give a schedule, --schedule "
            "FILE, or ask dse.residency"
        )
    return draw_kind[kind](mapped.solution)


def of_residency(
    arch: Arch, workload: Workload, found: TrafficReport, kind: str, progress: ProgressFn = no_progress
) -> Picture:
    """Returns a picture of reuse between operations. kind: one of OF_REUSE. Raises ValueError."""
    if kind not in OF_REUSE:
        raise ValueError(f"KIND = {kind}: of reuse between operations there are {', '.join(OF_REUSE)}")
    if kind == "residency":
        return plots.residency(figures.residency(arch, workload, found))
    from analysis import reuse_plots
    from dse.explain import reuse_figures

    if kind == "graph":
        return reuse_plots.operation_graph(reuse_figures.operation_graph(workload, found))
    if kind == "traffic-per-tensor":
        return reuse_plots.traffic_per_tensor(reuse_figures.traffic_per_tensor(arch, workload, found))
    curves = reuse_figures.traffic_over_capacity(arch, workload, found, progress)
    return reuse_plots.traffic_over_capacity(curves)


def _einsums(mapped: Solved, found: Solution, title: str) -> Picture:
    """Draws energy by component and latency of each distinct einsum."""
    pairs = sorted(
        values.costed_einsums(mapped.workload, found), key=lambda pair: -pair[0].count * pair[0].energy_pj
    )
    energy: list[tuple[str, Mapping[str, float]]] = []
    latency: list[tuple[str, Mapping[str, float]]] = []
    for c, _ in pairs:
        parts: Counter[str] = Counter(
            dict.fromkeys((part.name for part in values.components(mapped.arch, found)), 0)
        )
        for part in c.price.parts:
            parts["static" if part.action == "leak" else part.level] += c.count * part.energy_pj
        label = figures.label(c)
        energy.append((label, parts))
        latency.append(
            (
                label,
                {
                    f"{c.bottleneck}{plots.BOTTLENECK_SUFFIX}": c.count
                    * c.latency_cycles
                    / mapped.arch.clock_ghz
                },
            )
        )
    return plots.breakdown(
        {"energy_pj": energy, "latency_ns": latency},
        "",
        f"{title}: einsums, all occurrences, costliest first\n{BREAKDOWN_LEGEND}",
    )


def _nest(
    mapped: Solved,
    found: Solution,
    einsum: str | None,
    draw: Callable[..., Picture],
    values_of: Callable[..., Any],
) -> Picture:
    e, c = figures.one_einsum(mapped.workload, found, einsum)
    if c.mapping.non_nest_text:
        raise ValueError(
            f"{c.name}: its schedule is {c.mapping.non_nest_text.splitlines()[0]}; dse map shows it as text"
        )
    facts = (
        f"{tables.fact('energy_pj', c.energy_pj)}, {tables.fact('latency_cycles', c.latency_cycles)}, "
        f"bottleneck {c.bottleneck}; {values.short_certificate(c.certificate)}"
    )
    title = f"{c.name} of {mapped.workload.name} on {mapped.arch.name}"
    return draw(values_of(mapped.arch, e, c), tuple(mapped.arch.components()), title, facts)
