"""The `solver:` block of a study, as a value. Imports no solver, so that commands that only name keys start
fast.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple, get_args

from pydantic import WithJsonSchema

from dse.mapping.constraints import Constraints, Dataflow, Factors, dataflow, ruled
from dse.sim.fronts import Objective
from hw.arch import Arch, Cost, Rules
from workloads.einsum import Einsum

Goal = Objective | Literal["front"]
LayoutPolicy = Literal[
    "row_major",
    "ol",
    "nohw",
    "neocpu",
    "ansor",
    "wp",
    "fp",
    "bp",
    "bf",
    "ind",
    "alt-published",
    "sampled",
    "alt",
]
LayoutProposer = Literal["random", "tpe", "actor-critic"]
Kapla = Literal["kapla", "kapla-exhaustive", "kapla-random", "kapla-annealing"]
# schedules that run einsums pipelined, on machines of nodes
PIPELINED_SCHEDULES = ("pipelined", *get_args(Kapla))


def without_widths(memories: Iterable[str]) -> str:
    """Returns the options by which memories give elements no width of their own (`memory.bits`)."""
    return " ".join(f"--set {name}.bits={{}}" for name in memories)


def without_formats(memories: Iterable[str]) -> str:
    """Returns the options by which memories store tensors as the workload says (`memory.formats`)."""
    return " ".join(f"--set {name}.formats={{}}" for name in memories)


def without_ports(memories: Iterable[str]) -> str:
    """Returns the options by which ports of memories serve all tensors, at one rate."""
    return " ".join(
        f"--set {name}.ports=shared --set {name}.write_bandwidth=null --set {name}.writes_per_cycle=null"
        for name in memories
    )


def without_sharing(memories: Iterable[str]) -> str:
    """Returns the options by which each PE has an instance of the memories (`memory.along`)."""
    return " ".join(f"--set {name}.along=[]" for name in memories)


def without_latency(memories: Iterable[str]) -> str:
    """Returns the options by which first words of memories take no time (`memory.latency_ns`)."""
    return " ".join(f"--set {name}.latency_ns=0" for name in memories)


class Refusal(NamedTuple):
    """Which options do not go with a key of memories."""

    schedules: tuple[str, ...]  # values of solver.schedule that do
    mappers: tuple[str, ...]  # mappers that do not
    not_done: str
    what: str
    without: Callable[[Iterable[str]], str]


# by key of a memory
REFUSED = {
    "bits": Refusal(
        ("unfused", "fused", "best"),
        (),
        "does not price elements that memories narrow or widen",
        "the widths",
        without_widths,
    ),
    "ports": Refusal(
        ("unfused", "fused", "best"),
        (),
        "does not time ports that serve some tensors, nor writes apart from reads",
        "the ports",
        without_ports,
    ),
    "formats": Refusal(
        ("unfused", "best"), (), "does not count formats of single memories", "formats", without_formats
    ),
    "latency_ns": Refusal(
        ("unfused",), (), "does not count waits for first words", "latency_ns", without_latency
    ),
    "along": Refusal(
        ("unfused",),
        ("cost_descending",),
        "does not count memories that PEs along dimensions share",
        "along",
        without_sharing,
    ),
}


# by feature of a machine: the schedules that count it
COUNTED_BY: dict[str, tuple[str, ...]] = {
    **{key: one.schedules for key, one in REFUSED.items()},
    "units": ("unfused",),
    "rules": ("unfused", "fused", "best", *PIPELINED_SCHEDULES),
    "lockstep": ("unfused",),
    "no nodes": (
        "unfused",
        "fused",
        "best",
    ),  # pipelined schedules have none to run on, or rules outside of them
}


def who_counts(features: Collection[str]) -> str:
    """Returns who counts all these features (of COUNTED_BY), for which schedules: "mappers do, for unfused
    schedules".
    """
    possible = [name for name in ("unfused", "fused", "pipelined") if _all_count(features, name)]
    who = "the mapper optimal does" if {"rules", "along"} & {*features} else "mappers do"
    kapla = " and KAPLA's" * _all_count(features, "kapla")
    return (
        f"{who}, for {', '.join(possible[:-1])}{' and ' * (len(possible) > 1)}{possible[-1]} schedules{kapla}"
    )


def _all_count(features: Collection[str], schedule: str) -> bool:
    return all(schedule in COUNTED_BY[feature] for feature in features)


@dataclass(frozen=True, slots=True)
class SolverOptions:
    """The `solver:` block of a study."""

    # front: schedules that nothing dominates in energy and latency, within `gap` (schedule unfused)
    objective: Goal = "energy"
    # smaug: SMAUG's tiles and schedule, and `mapper` is not called
    tiling: Literal["mapper", "smaug"] = "mapper"
    # tiling smaug: copies by which the host cuts and joins tiles cost energy and time of main memory
    # (counted), or nothing (free), as SMAUG's tilings are compared
    host_copies: Literal["counted", "free"] = "counted"
    mapper: str = "optimal"  # a key of MAPPERS_BY_NAME, or of a plug-in
    factors: Factors = "imperfect_spatial"  # mapper optimal: a key of FACTORS
    dataflow: Dataflow = "free"  # mapper optimal: which tensor is stationary in the PEs (a key of DATAFLOWS)
    # mapper optimal, schedules unfused, fused and best; rules inside of a node also with PIPELINED_SCHEDULES:
    # rules for mappings, beside the machine's own
    mapping: Annotated[Rules, WithJsonSchema({"type": "array", "items": {"type": "object"}})] = ()
    gap: Cost = 0.01  # mapper optimal: a search stops at this relative gap to the optimum
    # Schedules unfused and fused, in studies: machines share mappings (those of one family, `Arch.family`) or
    # schedules (those that differ in prices, rates and clock alone). No machine then costs more than this
    # relative gap above its own solution, and GOGETA's schedule is not tried. 0: each is solved by itself.
    sharing_gap: Cost = 0.0
    # layouts at the outermost level of tensors between einsums (a key of LAYOUT), on machines that describe
    # cache lines, rows or banks
    layout: LayoutPolicy = "row_major"
    # layout sampled: costs of the joint stage and of the loop-only stage, which the different products of a
    # workload share; who proposes layouts; levels of tiles in the layouts of outputs
    layout_joint: int = 300
    layout_loops: int = 700
    layout_proposer: LayoutProposer = "random"
    layout_levels: Literal[1, 2] = 1
    # what is retained on chip between einsums, and which einsums share loops (a key of SCHEDULES)
    schedule: Literal[
        "unfused",
        "fused",
        "pipelined",
        "best",
        Kapla,
        "seq-flex",
        "seq-overflow",
        "gogeta",
        "gogeta-published",
        "gogeta-df",
        "residency",
    ] = "unfused"
    # schedules of PIPELINED_SCHEDULES: weights are on chip before the run (pinned), or are loaded in each run
    # (streamed)
    weights: Literal["streamed", "pinned"] = "streamed"
    # schedules of PIPELINED_SCHEDULES: einsums may run at once, on regions of nodes
    spatial_layer_pipe: bool = True
    # schedules of PIPELINED_SCHEDULES: segments may run pipeline tile by pipeline tile
    temporal_layer_pipe: bool = True
    initiation_interval: Cost = 0.0  # schedule pipelined: upper limit in cycles, 0: none
    latency: Cost = 0.0  # schedule pipelined: upper limit in cycles, 0: none
    fuse_elementwise: bool = True  # one-to-one element-wise operators are fused into their producers
    seed: int = 0  # of mappers and schedules that draw random numbers

    @property
    def single_objective(self) -> Objective:
        """The objective by which one schedule is priced; energy for those of a front."""
        return "energy" if self.objective == "front" else self.objective

    def constraints(self, e: Einsum, arch: Arch) -> Constraints:
        """Returns what mappings of an einsum on a machine must satisfy: the dataflow, and the rules of the
        machine and of the solver.
        """
        return ruled(dataflow(self.dataflow, e, arch), (*arch.mapping, *self.mapping), e, arch)

    def refusals(self, having: Mapping[str, Sequence[object]]) -> Iterator[str]:
        """Yields why these options do not go with each feature of a machine, with the fix; "": they do.

        having: by feature (of COUNTED_BY) what has it: names of memories or of computes, rules of the machine
        """
        features = {key for key, found in having.items() if found} | ({"rules"} if self.mapping else set())
        for key in REFUSED:
            if having.get(key):
                yield self._refused(key, [str(name) for name in having[key]], features)
        if having.get("units"):
            yield self.units_refused([str(name) for name in having["units"]], features)
        if "rules" in features:
            yield self.rules_refused(bool(having.get("rules")), features)

    def _refused(self, key: str, memories: Sequence[str], features: Collection[str] = ()) -> str:
        """Returns why these options do not go with memories that have this key (of REFUSED), with the fix;
        "": they do. memories: names of those that have it, at least one; features: all of the machine.
        """
        schedules, mappers, not_done, what, without = REFUSED[key]
        option = self._first_other(*schedules)
        if not option and self.mapper in mappers:
            option = f"solver.mapper = {self.mapper}"
        if not option:
            return ""
        keys = ", ".join(f"{name}.{key}" for name in memories)
        return (
            f"{option} {not_done} ({keys}): {who_counts({key, *features})} of each machine by itself; leave "
            f"it out, or {what} ({without(memories)})"
        )

    def units_refused(self, names: Sequence[str], features: Collection[str] = ()) -> str:
        """Returns why these options do not go with a machine of several computes, with the fix; "": they do.
        names: of these computes; features: all of the machine.
        """
        refused = self._first_other("unfused")
        if not refused and self.objective == "front":
            refused = "solver.objective = front"
        if not refused:
            return ""
        return (
            f"{refused} does not choose between computes ({', '.join(names)}): "
            f"{who_counts({'units', *features})} of each machine by itself; leave it out, or give the "
            "machine one compute"
        )

    def lockstep_refused(self, compute: str, operand: str, features: Collection[str] = ()) -> str:
        """Returns why these options do not go with a machine whose PEs step together through an operand in
        N:M, with the fix; "": they do. features: all of the machine.
        """
        refused = self._first_other("unfused")
        if not refused:
            return ""
        return (
            f"{refused} does not count PEs in lockstep ({compute}.lockstep, through {operand}): "
            f"{who_counts({'lockstep', *features})} of each machine by itself; leave it out, or --set "
            f"{compute}.lockstep=false"
        )

    def _first_other(self, *schedules: str) -> str:
        """Returns the first option, with its value, that is not one of mappers of each machine by itself, of
        these values of `schedule`; "": none.
        """
        taken = {"schedule": schedules, "tiling": ("mapper",), "sharing_gap": (0.0,)}
        wrong = (name for name, values in taken.items() if getattr(self, name) not in values)
        return next((f"solver.{name} = {getattr(self, name)}" for name in wrong), "")

    def rules_refused(self, rules_of_machine: bool, features: Collection[str] = ()) -> str:
        """Returns why these options do not go with rules for mappings, with the fix; "": they do, or there
        are none. Searches that do not obey rules refuse them. features: all of the machine.
        """
        key = "solver.mapping" if self.mapping else "mapping" if rules_of_machine else ""
        taken: dict[str, Sequence[object]] = {
            "schedule": COUNTED_BY["rules"],
            "mapper": ("optimal",),
            "tiling": ("mapper",),
            "layout": ("row_major",),
            "sharing_gap": (0.0,),
        }
        wrong = [name for name, values in taken.items() if getattr(self, name) not in values]
        if self.factors == "imperfect":
            wrong.append("factors")
        if not key or not wrong:
            return ""
        fix = "take imperfect_spatial" if wrong[0] == "factors" else "leave it out"
        return (
            f"solver.{wrong[0]} = {getattr(self, wrong[0])} does not obey the rules of `{key}`: "
            f"{who_counts({'rules', *features})}; {fix}, or leave the rules out"
        )
