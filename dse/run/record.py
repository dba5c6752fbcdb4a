"""Every table of a run: columns with type, unit and meaning, and the versions that rows carry.

A front never mixes versions. MODEL_VERSION changes with any cost, SOLVER_VERSION with any mapping that a
solver returns.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from hw.arch import OPS_PER_MAC, Access, Compute, Fanout, Level

if TYPE_CHECKING:  # imported where it is used: commands that only list columns start without it
    import pyarrow as pa

MODEL_VERSION = 21
SOLVER_VERSION = 36

STATUS = ("ok", "infeasible", "pruned", "error")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    dtype: str  # name of a pyarrow type
    unit: str  # empty for names and counts
    meaning: str


Columns = Mapping[str, Column]

MACHINE = Column("int64", "", "index of the machine in the study's space")
SCHEDULE = Column(
    "int32", "", "number of the schedule on its machine's own front, 0 first in the study's objectives"
)
WORKLOAD = Column("string", "", "name of the workload in the study")
EINSUM_KEY = Column("string", "", "content key of the einsum: equal for einsums that differ in names only")
EINSUM = Column("string", "", "name of the first of equal einsums")
POSITION = Column(
    "int32",
    "",
    "its position among the distinct einsums of the workload, in the order of their first "
    "occurrence, 1 first",
)
KIND = Column("string", "", "mac, max, add, mul, copy or a unary function")
OCCURRENCES = Column(
    "int64", "", "how often an equal einsum occurs in the workload; costs are of one occurrence"
)
MAPPING_KEY = Column("string", "", "content key of the mapping")
LEVEL = Column(
    "string",
    "",
    "storage level, MAC for compute, VECTOR for its vector unit, or array whose network is priced",
)
OPTIMALITY_GAP = Column(
    "float64", "share", "how far the objective may lie above the optimum of the searched space: 0 is proven"
)
GAP_TO_BOUND = Column(
    "float64", "share", "how far the objective may lie above the lower bound: objective / lower bound - 1"
)
POINT_GAP = Column(
    "float64",
    "share",
    "how far solver.objective, of all workloads by their weights, may lie above the optimum of the searched "
    "spaces: 0 is proven; front: above any choice of schedules, in energy and in latency",
)
POINT_GAP_TO_BOUND = Column(
    "float64",
    "share",
    "how far solver.objective, of all workloads by their weights, may lie above its lower bound: objective / "
    "lower bound - 1; front: in energy or in latency, whichever is less",
)
CERTIFICATE = Column(
    "string", "", "what is proven, at most how far above which bound; what was searched, and what not"
)
MACS = Column("int64", "", "multiply-accumulates (MACs)")
MAIN_MEMORY_BYTES = Column(
    "float64", "B", "bytes read and written at main memory, whole lines where it moves lines"
)
LATENCY_CYCLES = Column("float64", "cycles", "latency in cycles of the machine's own clock")
VERSIONS: Columns = {
    "model_version": Column("int32", "", "version of the cost model"),
    "solver_version": Column("int32", "", "version of the solvers"),
}
METRICS: Columns = {
    "energy_pj": Column("float64", "pJ", "energy, leakage included"),
    "latency_cycles": LATENCY_CYCLES,
    "latency_ns": Column("float64", "ns", "latency"),
    "edp_pj_ns": Column("float64", "pJ ns", "total energy x total latency"),
    "power_mw": Column("float64", "mW", "energy over latency"),
    "throughput": Column("float64", "1/s", "runs per second back to back: 1e9 / initiation interval in ns"),
}


# table -> what its costs are of
COSTS_OF = {
    "points": "all workloads, each times its weight",
    "workload_costs": "one run of the workload",
    "einsums": "one occurrence",
    "segments": "one occurrence",
    "conversions": "one copy",
}


def _costs(table: str, columns: Columns) -> Columns:
    """Returns cost columns of a table; their meanings say what the costs are of."""
    return {
        name: Column(c.dtype, c.unit, f"{c.meaning}; of {COSTS_OF[table]}") for name, c in columns.items()
    }


@dataclass(frozen=True, slots=True)
class Ratio:
    """A metric that is scale * numerator / denominator, both columns of its own row. No table stores it:
    views, screens and the report compute it from here.
    """

    column: Column
    scale: float
    numerator: str
    denominator: str

    def of(self, row: Mapping[str, Any]) -> float | None:
        """Returns the value for a row; None where a column is missing or the denominator is 0."""
        above, below = row.get(self.numerator), row.get(self.denominator)
        return self.scale * above / below if above is not None and below else None

    def sql(self) -> str:
        """Returns the same as an SQL expression, which rounds alike."""
        return f"{self.scale!r}::DOUBLE * {self.numerator} / nullif({self.denominator}, 0)"


RATIOS: dict[str, Ratio] = {  # one may be made of those before it
    "latency_ns": Ratio(METRICS["latency_ns"], 1.0, "latency_cycles", "clock_ghz"),
    "tops": Ratio(
        Column("float64", "TOPS", "10^12 operations per second, two per MAC"),
        OPS_PER_MAC / 1e3,
        "macs",
        "latency_ns",
    ),
    "tops_per_w": Ratio(
        Column("float64", "TOPS/W", "10^12 operations per joule, two per MAC"),
        float(OPS_PER_MAC),
        "macs",
        "energy_pj",
    ),
    "macs_per_byte": Ratio(
        Column("float64", "MAC/B", "operational intensity: MACs per byte of main-memory traffic"),
        1.0,
        "macs",
        "main_memory_bytes",
    ),
    "share_of_peak": Ratio(
        Column("float64", "share", "TOPS over those of all MAC units if each worked in every cycle"),
        1.0,
        "tops",
        "peak_tops",
    ),
}
# the ratios that a view has; the columns that they are made of are the view's or the machine's
RATIOS_OF: dict[str, tuple[str, ...]] = {
    "points": ("tops", "tops_per_w", "share_of_peak"),
    "workload_costs": ("tops", "tops_per_w", "macs_per_byte", "share_of_peak"),
    "einsums": ("latency_ns", "tops", "tops_per_w", "macs_per_byte", "share_of_peak"),
}


def ratios(row: Mapping[str, Any], names: Iterable[str]) -> dict[str, float | None]:
    """Returns the named ratios of a row of columns."""
    found = dict(row)
    for name in names:
        found[name] = RATIOS[name].of(found)
    return {name: found[name] for name in names}


def _prices(node: type) -> Columns:
    """Returns the price columns of a type of component (Level, Compute, ...), with the meanings that its
    fields declare.
    """
    return {
        price_field.name: Column("float64", "pJ", price_field.metadata["says"])
        for price_field in fields(node)
        if price_field.metadata["says"]
    }


TABLES: dict[str, Columns] = {
    "machines": {
        "machine": MACHINE,
        "key": Column("string", "", "content key of all that shapes the machine's rows"),
        "generation": Column("int32", "", "generation that asked for the machine"),
        "source": Column(
            "string",
            "",
            "who proposed it: the search method, qmc (start of a steered one), near (beside a "
            "repeat), fill (permutation)",
        ),
        "status": Column(
            "string",
            "",
            "ok, infeasible, pruned (breaks a constraint that needs no solving; another machine "
            "dominates its lower bounds), error",
        ),
        "area_mm2": Column("float64", "mm2", "silicon area of all instances"),
        "clock_ghz": Column("float64", "GHz", "clock"),
        "peak_tops": Column("float64", "TOPS", "TOPS of all MAC units if each worked in every cycle"),
        "bound_energy_pj": Column(
            "float64", "pJ", "lower bound of the energy: no mapping of the workloads costs less"
        ),
        "bound_latency_ns": Column(
            "float64", "ns", "lower bound of the latency: no mapping of the workloads is faster"
        ),
        "dominated_by": Column(
            "int64",
            "",
            "pruned by its bounds: the machine with a schedule that is better than any of this one",
        ),
        "limit_level": Column("string", "", "infeasible: level that is too small"),
        "need_bytes": Column("int64", "B", "infeasible: smallest need at that level"),
        "have_bytes": Column("int64", "B", "infeasible: what the level has"),
        "einsum": Column("string", "", "infeasible: einsum that does not fit"),
        "workload": Column("string", "", "infeasible or error: workload that it happened in"),
        "reason": Column("string", "", "one line for each status but ok"),
        **VERSIONS,
    },
    "points": {
        "machine": MACHINE,
        "schedule": SCHEDULE,
        **_costs("points", METRICS),
        "area_mm2": Column("float64", "mm2", "silicon area of all instances"),
        "feasible": Column("bool", "", "meets every constraint of the study"),
        "optimality_gap": POINT_GAP,
        "gap_to_bound": POINT_GAP_TO_BOUND,
        "certificate": CERTIFICATE,
        **VERSIONS,
    },
    "choices": {
        "machine": MACHINE,
        "schedule": SCHEDULE,
        "workload": WORKLOAD,
        "position": POSITION,
        "einsum": EINSUM,
        "einsum_key": EINSUM_KEY,
        "kind": KIND,
        "occurrences": OCCURRENCES,
        "mapping_key": MAPPING_KEY,
    },
    "workload_costs": {
        "machine": MACHINE,
        "schedule": SCHEDULE,
        "workload": WORKLOAD,
        "weight": Column("float64", "", "weight of the workload in sums over the workloads"),
        **_costs("workload_costs", {**METRICS, "macs": MACS, "main_memory_bytes": MAIN_MEMORY_BYTES}),
        "optimality_gap": OPTIMALITY_GAP,
        "gap_to_bound": GAP_TO_BOUND,
        "certificate": CERTIFICATE,
    },
    "einsums": {
        "machine": MACHINE,
        "schedule": SCHEDULE,
        "workload": WORKLOAD,
        "einsum": EINSUM,
        "position": POSITION,
        "einsum_key": EINSUM_KEY,
        "kind": KIND,
        "occurrences": OCCURRENCES,
        "mapping_key": MAPPING_KEY,
        **_costs("einsums", {"energy_pj": METRICS["energy_pj"], "latency_cycles": LATENCY_CYCLES}),
        "bottleneck": Column("string", "", "component with most busy cycles"),
        "core": Column("string", "", "core that it runs on; NULL: the machine has none"),
        "unit": Column("string", "", "compute that it runs on; NULL: the machine has one"),
        **_costs("einsums", {"macs": MACS, "main_memory_bytes": MAIN_MEMORY_BYTES}),
        "mac_utilization": Column(
            "float64", "share", "MAC units that work; NULL: the schedule is neither a nest nor directives"
        ),
        "optimality_gap": OPTIMALITY_GAP,
        "gap_to_bound": GAP_TO_BOUND,
        "certificate": CERTIFICATE,
    },
    "schedules": {
        "machine": MACHINE,
        "schedule": SCHEDULE,
        "workload": WORKLOAD,
        "weights": Column("string", "", "streamed: loaded in every run; pinned: on chip before the run"),
        "segments": Column("int32", "", "segments, equal ones counted once"),
        "fused": Column("int32", "", "segments whose einsums are fused below shared loops"),
        "pipelined": Column("int32", "", "segments whose einsums are stages of a pipeline"),
        "on_chip": Column(
            "string", "", "tensors that never leave the chip, with the level that holds them; NULL: none"
        ),
        "retained": Column(
            "string", "", "tensors of which a share is retained on chip between segments; NULL: none"
        ),
        "saved_share": Column(
            "float64", "share", "of the objective, against the best unfused schedule; NULL: not compared"
        ),
        "nest": Column(
            "string", "", "the schedule as one nest with branches; NULL: unfused, the nests are in mappings"
        ),
        "moved_words": Column(
            "float64",
            "",
            "machine words from and to main memory in one run, the sum of the next five; these NULL: unfused",
        ),
        "listed_words": Column(
            "float64",
            "",
            "of the list of accesses: each operand read once, the whole first on-chip level for "
            "retained tensors",
        ),
        "in_registers_words": Column("float64", "", "of small results that the list leaves in registers"),
        "not_fused_words": Column("float64", "", "passed on in the list, but not by a shared loop"),
        "reread_words": Column(
            "float64", "", "read more than once by the nest of an einsum, if nothing was retained"
        ),
        "capacity_words": Column(
            "float64",
            "",
            "retained in the list, but without capacity beside the working tiles; below 0: what is "
            "retained is not passed on or read again either",
        ),
        "saved_words": Column(
            "float64",
            "",
            "less of moved_words by one word more of the first on-chip level; of solver.schedule: residency",
        ),
    },
    "segments": {
        "machine": MACHINE,
        "schedule": SCHEDULE,
        "workload": WORKLOAD,
        "segment": Column("int32", "", "its position in the schedule, 1 first"),
        "einsums": Column(
            "string", "", "its einsums; ->: fused, under shared loops; |: stages of a pipeline"
        ),
        "occurrences": Column(
            "int64", "", "equal segments that the row stands for, where einsums are unfused; costs are of one"
        ),
        "pipeline_tiles": Column("int64", "", "trips of the shared loops of a pipeline; NULL: not pipelined"),
        **_costs("segments", {"energy_pj": METRICS["energy_pj"], "latency_cycles": LATENCY_CYCLES}),
        "initiation_interval_cycles": Column(
            "float64", "cycles", "cycles between two runs back to back; NULL: unfused"
        ),
        "energy_steady_pj": Column(
            "float64",
            "pJ",
            "energy of one of many runs back to back, leakage over the initiation interval; NULL: unfused",
        ),
        "slowest_stage": Column(
            "string", "", "einsum that takes longest for a pipeline tile; NULL: not pipelined"
        ),
        "on_chip": Column(
            "string",
            "",
            "tensors that it makes, reads and never lets out, with the level that holds them; NULL: none",
        ),
        "peak_bytes": Column("string", "B", "peak occupancy of one instance of each level; NULL: unfused"),
    },
    "conversions": {
        "machine": MACHINE,
        "schedule": SCHEDULE,
        "workload": WORKLOAD,
        "position": Column(
            "int32", "", "1 first: the einsum that makes the copy is convert_<tensor>_as_<position>"
        ),
        "tensor": Column("string", "", "tensor that is copied into another layout, behind its maker"),
        "layout": Column("string", "", "layout that its maker writes"),
        "to": Column("string", "", "layout of the copy"),
        "readers": Column(
            "string",
            "",
            "einsums that read the copy, each with . and the number of the operand where it reads "
            "more than one",
        ),
        **_costs("conversions", {"energy_pj": METRICS["energy_pj"], "latency_cycles": LATENCY_CYCLES}),
        "saved_cost": Column(
            "float64",
            "",
            "by how much the objective (pJ, cycles or pJ cycles of solver.objective) rises without "
            "the copy; inf: it is needed",
        ),
    },
    "mappings": {
        "mapping_key": MAPPING_KEY,
        "einsum_key": EINSUM_KEY,
        "nest": Column(
            "string",
            "",
            "the loop nest as text; of a schedule that is none, its text: outside the nest space, "
            "why, and what it does",
        ),
        "host_copies": Column(
            "int64",
            "",
            "contiguous copies by which the host cuts and joins tiles; NULL: no tile optimizer cut them",
        ),
        "host_copy_elems": Column(
            "int64", "", "elements of those copies; solver.host_copies says whether they cost"
        ),
    },
    "counts": {
        "mapping_key": MAPPING_KEY,
        "level": LEVEL,
        "tensor": Column("string", "", "tensor; - for compute"),
        "action": Column(
            "string",
            "",
            "read, write, compute, merge (partial sums of PEs added up), fold (of a systolic array); of a "
            "network hop, endpoint, rotate, rotate_endpoint; of a layout unused_read, unused_write, modify "
            "(bits), open_read, open_write (rows): model.md",
        ),
        "elems": Column(
            "float64",
            "",
            "elements, all instances, one occurrence (hop, rotate: times links; of layouts: bits, rows); "
            "expected ones where an operand is sparse",
        ),
        "busiest_elems": Column("float64", "", "elements of the busiest instance; NULL: of a network"),
        "bits": Column(
            "int32", "bit", "size of an element there; NULL: the machine's word, prices.word_bits"
        ),
    },
    "prices": {
        "machine": MACHINE,
        "level": LEVEL,
        **_prices(Level),
        **_prices(Compute),
        **_prices(Access),
        **_prices(Fanout),
        "width_bits": Column("int32", "bit", "bits of one action"),
        "word_bits": Column("int32", "bit", "size of an element that names none of its own"),
        "bandwidth": Column("float64", "1/cycle", "actions per cycle of one instance"),
        "leak_mw": Column("float64", "mW", "leakage of one instance"),
        "area_mm2": Column("float64", "mm2", "silicon area of one instance"),
        "capacity_bits": Column("int64", "bit", "capacity of one instance; NULL: unbounded"),
        "instances": Column("int64", "", "how many there are"),
        "clock_ghz": Column("float64", "GHz", "clock of the machine"),
        "vdd": Column("float64", "V", "supply voltage of the chip; NULL: the machine gives none"),
    },
    "events": {
        "time": Column("timestamp", "", "when, UTC"),
        "kind": Column(
            "string",
            "",
            "start, resume, extend, error, lost (an actor), retry, quarantine, stop, batch (a fault of many "
            "machines at once, which were then solved one by one), ...",
        ),
        "machine": MACHINE,
        "text": Column("string", "", "what happened; for an error its traceback"),
    },
}

# Points that may be on the run's front: no other of their group (one commit) dominates them. Columns: their
# key, then the study's objectives.
NONDOMINATED = "nondominated"

# Stored tables without a view. The views choices, einsums, workload_costs and prices are computed from them
# on demand (dse/explain/derived.py). Schedules that are not unfused have stored rows of einsums and
# workload_costs instead.
PACKED: dict[str, Columns] = {
    "chosen": {
        "machine": MACHINE,
        "schedule": SCHEDULE,
        "workload": WORKLOAD,
        "space": Column(
            "string",
            "",
            "what was searched of its einsums that are proven optimal, but for those at `places`, as "
            "JSON; empty: none is proven",
        ),
        "places": Column(
            "list<int32>", "", "different einsums that something else is known of, 0 first; NULL: none"
        ),
        "gaps": Column("list<float64>", "", "optimality_gap of each of them"),
        "spaces": Column(
            "list<string>", "", "what was searched of each, as JSON; empty: nothing but its bound is known"
        ),
    },
    NONDOMINATED: {"machine": MACHINE, "schedule": SCHEDULE},
}
STORED = TABLES | PACKED

# Columns that identify a row: sorted by them, the rows of two runs can be compared. Several parts may have
# equal rows of mappings and counts.
KEYS: dict[str, tuple[str, ...]] = {
    "machines": ("machine",),
    "chosen": ("machine", "schedule", "workload"),
    "choices": ("machine", "schedule", "workload", "position"),
    "points": ("machine", "schedule"),
    NONDOMINATED: ("machine", "schedule"),
    "workload_costs": ("machine", "schedule", "workload"),
    "einsums": ("machine", "schedule", "workload", "einsum_key"),
    "schedules": ("machine", "schedule", "workload"),
    "segments": ("machine", "schedule", "workload", "segment"),
    "conversions": ("machine", "schedule", "workload", "position"),
    "mappings": ("mapping_key",),
    "counts": ("mapping_key", "level", "tensor", "action"),
    "prices": ("machine", "level"),
    "events": ("time", "kind", "machine"),
}


# Views over others that have no table of their own (analysis/sql/computed.sql)
VIEWS: dict[str, Columns] = {
    "workloads": {
        "workload": WORKLOAD,
        "weight": Column("float64", "", "of the workload in sums over the workloads"),
        "samples": Column("int64", "", "batch of one run; NULL: the workload has no such parameter"),
        "tokens": Column("int64", "", "new positions of all samples of one run; NULL: it has none"),
    },
    "components": {
        "machine": MACHINE,
        "schedule": SCHEDULE,
        "workload": WORKLOAD,
        "component": LEVEL,
        "instances": Column("int64", "", "how many there are; of a network 1"),
        "area_mm2": Column("float64", "mm2", "silicon area of all instances"),
        "dynamic_pj": Column("float64", "pJ", "energy of moving and computing; of one run of the workload"),
        "static_pj": Column(
            "float64", "pJ", "energy of leakage and of a DRAM's background power; of one run of the workload"
        ),
        "energy_pj": Column(
            "float64",
            "pJ",
            "dynamic and static energy; of one run of the workload: a point's is the sum of weight (of "
            "workloads) times that of each",
        ),
    },
    **{
        table: _costs(table, {name: RATIOS[name].column for name in names})
        for table, names in RATIOS_OF.items()
    },
    "traffic": {
        "machine": MACHINE,
        "schedule": SCHEDULE,
        "workload": WORKLOAD,
        "einsum": EINSUM,
        "level": LEVEL,
        "tensor": Column("string", "", "tensor; - for compute and leakage"),
        "action": Column("string", "", "as in counts, or leak: leakage of the level"),
        "elems": Column(
            "float64",
            "",
            "elements (hop, rotate: times links; of layouts: bits, rows) of all instances and all "
            "occurrences of the einsum in one run of the workload; NULL: leak",
        ),
        "bytes": Column("float64", "B", "size of these elements: of all occurrences, too; NULL: leak"),
        "energy_pj": Column(
            "float64",
            "pJ",
            "energy of all occurrences in one run of the workload; the sum over a workload's rows is its "
            "energy_pj in workload_costs, and a point's the sum of weight (of workloads) times that",
        ),
    },
}
# a point with the columns of its machine that points do not have
VIEWS = {
    "designs": {
        **TABLES["points"],
        **VIEWS["points"],
        **{name: c for name, c in TABLES["machines"].items() if name not in TABLES["points"]},
    },
    **VIEWS,
}

# a view of several runs that are asked together
RUN = Column("string", "", "name of the run that the row is of")

STUDY_COLUMNS: dict[str, Columns] = {  # for listings: examples of columns whose names depend on the study
    "workloads": {
        "workload_batch, ...": Column("", "", "a parameter each that the study gives to a workload")
    },
    "machines": {"array_x, ...": Column("", "", "a parameter of the space each: its key, _ for the dot")},
    "points": {
        "energy_pj_sum, ...": Column(
            "float64", "", "an objective over the workloads each, that is no metric above"
        ),
        "violation_latency_ns_le_5e6, ...": Column(
            "float64", "", "a constraint on metrics each: how far it is missed, in its own unit; met if <= 0"
        ),
    },
}
STUDY_COLUMNS["designs"] = {**STUDY_COLUMNS["points"], **STUDY_COLUMNS["machines"]}


def dtype(name: str) -> pa.DataType:
    """Returns the Arrow type with this name in Column.dtype, e.g. `list<string>`. Timestamps are UTC
    microseconds.
    """
    import pyarrow as pa

    if inner := re.fullmatch(r"list<(\w+)>", name):
        return pa.list_(dtype(inner[1]))
    return pa.timestamp("us", tz="UTC") if name == "timestamp" else pa.type_for_alias(name)


def schema(table: str, extra: Columns | None = None) -> pa.Schema:
    """Returns the Arrow schema of a table, with unit and meaning in each field's metadata.

    extra: the study's own columns of that table (parameters, aggregated objectives, violations), after the
        fixed ones
    """
    import pyarrow as pa

    columns = {**STORED[table], **(extra or {})}
    return pa.schema(
        [
            pa.field(name, dtype(c.dtype), metadata={"unit": c.unit, "meaning": c.meaning})
            for name, c in columns.items()
        ]
    )
