"""One workload on one machine, solved: what dse.map and dse.simulate return, and each workload of a point
of a run. It imports no solver.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from dse.explain import values as explain
from dse.frontend import screens, tables
from dse.frontend.answers import Answer, answer, attribute, html_table, item, section
from dse.mapping.constraints import FREE, ruled
from dse.mapping.conversion import Conversion
from dse.mapping.nest import Infeasible
from dse.mapping.schedule import Schedule
from dse.sim.einsum.evaluate import ProgressFn, Solution, no_progress
from dse.sim.schedule.faults import broken_rules
from dse.solve.options import SolverOptions
from hw.arch import Arch
from workloads.graph import Workload

if TYPE_CHECKING:
    from analysis.plots import Picture


@dataclass(frozen=True, slots=True)
class Mapped:
    """One workload on one machine, solved."""

    arch: Arch
    workload: Workload
    solution: Solution | Infeasible  # its schedule, or why there is none
    options: SolverOptions = SolverOptions()
    conversions: tuple[Conversion, ...] = ()  # copies of tensors to other layouts
    # the whole schedule, where `solution` (one mapping per distinct einsum) does not say all of it; else None
    plan: Schedule | None = None

    def plot(
        self, kind: str = "nest", einsum: str | None = None, progress: ProgressFn = no_progress
    ) -> Picture:
        """Returns a picture, which a notebook shows and `.save("x.pdf")` writes.

        kind: nest, mapping, roofline, breakdown, ski-slope or residency (of a schedule)
        einsum: of nest, mapping, ski-slope or roofline; None: the costliest; for ski-slope and roofline the
            whole workload

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
    def broken_rules(self) -> list[str]:
        """How a given schedule breaks rules of the machine (`mapping`), one line each; no cost depends on it.
        A line names those that run at once with others, or with tensors that are retained in part: these are
        not compared with rules.
        """
        if not self.arch.mapping or self.plan is None:
            return []
        lines, unchecked = broken_rules(
            self.arch, self.workload, self.plan, lambda e, own: ruled(FREE, own.mapping, e, own)
        )
        beside = [
            "not compared with the rules of `mapping`, as they run at once with others, or with tensors "
            f"retained in part: {', '.join(unchecked)}"
        ]
        return lines + (beside if unchecked else [])

    @property
    def einsums(self) -> Answer:
        """A row per distinct einsum, with its nest in `mapping` and the area of the machine that runs it."""
        if isinstance(self.solution, Infeasible):
            return answer([])
        rows = explain.document(self.arch, self.workload, self.solution, self.plan)["einsums"]
        return answer([row | {"area_mm2": self.arch.area_mm2()} for row in rows])

    @property
    def components(self) -> Answer:
        """Area and energy of each component of the machine."""
        if isinstance(self.solution, Infeasible):
            return answer([])
        return answer([asdict(one) for one in explain.components(self.arch, self.solution)])

    @property
    def machine(self) -> Answer:
        """What the machine consists of: a row per component, main memory first."""
        return answer(explain.machine(self.arch))

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
        return attribute(self.totals, name)

    def __getitem__(self, name: str) -> Any:
        """Returns one of the totals, as in x["energy_pj"]. Raises KeyError."""
        return item(self.totals, name)

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
        given = self.arch, self.workload, self.solution, einsum, width, why, self.plan
        return screens.solution(*given, self.options.mapping) + conversions_text

    def __repr__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        title = f"{self.workload.name} on {self.arch.name}"
        if isinstance(self.solution, Infeasible):
            return section(title, self.totals)
        given = self.arch, self.workload, self.solution
        mappings = html_table(("einsum", "mapping"), [(row.name, row.mapping) for row in self.einsums])
        return (
            section(title, explain.facts(*given, why=False), explain.network(*given, False, self.plan))
            + f"<details><summary>mappings</summary>{mappings}</details>"
        )
