"""Every key of machine, study and workload files (`dse list keys`). Values and defaults come from the schemas
that check the files, units and meanings from this module.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from dse.solve.options import SolverOptions
from dse.study.plan import Limits, Stop
from dse.study.sampler import Search
from hw import machine
from hw.arch import Array, Machine, MacUnit, Memory, Rule, Tiling
from workloads.text import Entry, File


class Key(NamedTuple):
    """A key of a file."""

    file: str
    key: str
    default: str  # "": the key is required; "none": leaving it out has a meaning of its own
    meaning: str
    unit: str
    values: str  # allowed values


Meanings = Mapping[str, tuple[str, str]]  # key -> (unit, meaning)


def _energies(node: type) -> Meanings:
    """Returns the meanings of keys that declare theirs in metadata."""
    return {field.name: ("pJ", field.metadata["says"]) for field in fields(node) if "says" in field.metadata}


# Keys that dse/study/read.py reads without a schema: (values, default, unit, meaning)
STUDY: dict[str, tuple[str, str, str, str]] = {
    "name": ("letters, digits, - and _", "the file's name", "", "name of the run folder under runs/"),
    "workloads": (
        "list",
        "",
        "",
        "names as in dse list workloads, paths, or mappings with the keys below; quote names with commas",
    ),
    "workloads[].workload": ("text", "none", "", "a name or path, as in dse map"),
    "workloads[].file": (
        "path",
        "none",
        "",
        "a .onnx, .pt2, .yaml, .mtx, .npz or .json file, relative to the study; instead of workload",
    ),
    "workloads[].bind": (
        "{symbol: number}",
        "{}",
        "",
        "sizes of the symbols of an ONNX file, e.g. {N: 1}, and values of its inputs that hold one number",
    ),
    "workloads[].bits": (
        "{weights: number, activations: number}",
        "{}",
        "bits",
        "of words, instead of the machine's or the file's, e.g. {weights: 8}",
    ),
    "workloads[].weight": ("number > 0", "1", "", "of the workload in sums over the workloads"),
    "workloads[].name": ("text", "the workload's", "", "its name in objectives, constraints and tables"),
    "machine": ("name or path", "", "", "the template: a name as in dse list machines, or a .yaml file"),
    "space": (
        "{field: values}",
        "",
        "",
        "what varies: any field of the machine as a list, {from, to, step}, {linear: [from, to, count]} or "
        "{log: [from, to, count]}; workload.NAME: a list for a parameter of each workload, e.g. "
        "workload.batch: [1, 4]",
    ),
    "constraints": (
        "list of comparisons",
        "[]",
        "",
        "fields, area_mm2, leak_mw, die_cost_usd, metrics (latency_ns[net] of one workload), + - * /, "
        "< <= > >= ==",
    ),
    "objectives": (
        "list",
        "",
        "",
        "metric, {metric: sum, max, geomean or a workload}, {metric: ..., direction: max}; metrics: "
        "energy_pj, latency_ns, edp_pj_ns, power_mw, throughput, latency_cycles; area_mm2; or a cost term "
        "FILE.py:NAME (docs/exchange.md)",
    ),
    "unknown": (
        "error, movement",
        "error",
        "",
        "operators that nobody knows and that could be products: refused, or counted as data movement",
    ),
    "workers": (
        "whole number >= 0",
        "one per core",
        "",
        "actors; 0: in this process, without Ray; may change between resumes",
    ),
    "sink": (
        "driver, worker",
        "driver",
        "",
        "who writes the parts; worker: where every node reaches the run folder (shared, or on a store); may "
        "change between resumes",
    ),
}
SEARCH: Meanings = {
    "method": (
        "",
        "how machines are chosen; bounds: best first, until bounds rule out all others (docs/cluster.md); "
        "nsga2, nsga3 and tpe learn from earlier ones; optuna:NAME: a sampler of Optuna's, its arguments as "
        "further keys",
    ),
    "seed": ("", "the same seed asks for the same machines"),
    "generation": (
        "machines",
        "per generation; 0: of bounds 32, then an eighth of all before; with prune 32, doubling to 4096; "
        "else 4 of tpe, 16 of nsga2 and nsga3, 256 of the others (4096 with solver.sharing_gap)",
    ),
    "population": ("machines", "of nsga2 and nsga3"),
    "startup": ("machines", "asked by a Sobol sequence before tpe or optuna:NAME begins"),
    "prune": (
        "",
        "a machine whose bounds a schedule of an earlier generation dominates is not solved: the "
        "front stays that of all machines; method bounds does so, too",
    ),
    "gap": (
        "share",
        "with prune or method bounds: nor is a machine whose bounds are better than such a schedule by this "
        "share at most: no machine dominates the front by more in every objective",
    ),
}
STOP: Meanings = {
    "machines": ("machines", "stop after so many; none: all of the space"),
    "hours": ("h", "stop at the end of a generation after so long, all sessions together"),
    "hypervolume_gain": (
        "share",
        "stop when the front's hypervolume grew by less over the newest generations: at least 4, as many "
        "as have 64 points",
    ),
}
SOLVER: Meanings = {
    "objective": (
        "",
        "what is minimised: energy, latency, or edp, energy x latency of the whole workload; front: of each "
        "machine all unfused schedules that none dominates in energy and latency, within solver.gap "
        "(docs/solvers.md, Fronts)",
    ),
    "tiling": (
        "",
        "mapper: tiles come out of the mapper's search; smaug: SMAUG's tile optimizer and schedule",
    ),
    "host_copies": (
        "",
        "of tiling: smaug, copies by which the host cuts tensors into tiles and joins the result: counted, "
        "each element read from and written to main memory while nothing else runs; or free",
    ),
    "mapper": ("", "who finds mappings: dse list solvers"),
    "factors": ("", "of the mapper optimal: which tile sizes are tried; dse list solvers"),
    "dataflow": (
        "",
        "of the mapper optimal, also inside of nodes (schedules pipelined and kapla): what is stationary in "
        "the PEs of an array; row_stationary: rows of a window "
        "on an array of two dimensions; einsums without such a tensor are mapped without this constraint",
    ),
    "mapping": (
        "",
        "of the mapper optimal, schedules unfused, fused and best, pipelined and kapla (rules inside of a "
        "node's array): rules that mappings keep, as in a machine file "
        "(mapping[].at and the keys after it), beside the machine's own",
    ),
    "gap": (
        "share",
        "of the mapper optimal: an answer may lie this share above the optimum, and says how far at most; "
        "0: proves what it can (a gap may be left: --why says why)",
    ),
    "sharing_gap": (
        "share",
        "for objective energy, or all others unfused, in studies: machines share schedules (fused: "
        "those that differ in nothing but prices, rates and clock) or the mappings of einsums (unfused: "
        "capacities and PEs of arrays may differ, too), each machine at most this share above its own "
        "optimum, in which GOGETA's schedule does not count (docs/reuse.md, Many machines); 0: each machine "
        "is solved",
    ),
    "layout": (
        "",
        "layouts of tensors between einsums in main memory, where cache lines, rows or banks are "
        "described: dse list solvers",
    ),
    "layout_joint": (
        "",
        "of layout: sampled, costs of the stage that proposes layouts and walks loops; the different "
        "products of a workload share them evenly (ALT: 300 of an operator, 8,000 of a network)",
    ),
    "layout_loops": ("", "the same of the stage that searches loops in the layouts found (ALT: 700, 12,000)"),
    "layout_proposer": (
        "",
        "of layout: sampled, who proposes layouts: random shares of every dimension, a tree-structured "
        "Parzen estimator (tpe), or ALT's actor-critic",
    ),
    "layout_levels": ("", "of layout: sampled, levels of tiles in the layouts of outputs, 1 or 2"),
    "schedule": (
        "",
        "what may happen between einsums (fusion, pipelines, on-chip retention): dse list solvers",
    ),
    "weights": (
        "",
        "of schedules pipelined and kapla: pinned: weights are on chip before the run; streamed: "
        "loaded in every run",
    ),
    "spatial_layer_pipe": (
        "",
        "of schedules pipelined and kapla: einsums may be pipelined, each on a region of nodes",
    ),
    "temporal_layer_pipe": (
        "",
        "of schedules pipelined and kapla: stages may pass on a tensor in pipeline tiles, which one loop "
        "cuts; false: no pipeline tiles",
    ),
    "initiation_interval": (
        "cycles",
        "of schedule pipelined: upper limit of the initiation interval (without ramp-up) of the workload; "
        "0: none",
    ),
    "latency": (
        "cycles",
        "of schedule pipelined: upper limit of the latency of one run, ramp-up included; 0: none",
    ),
    "fuse_elementwise": (
        "",
        "one-to-one functions are fused into their producer and cost no traffic (docs/files.md, Workload)",
    ),
    "seed": ("", "of mappers that draw at random"),
}
LIMITS: Meanings = {
    "errors": ("machines", "a run stops after so many errors"),
    "error_fraction": ("share", "or after errors of this share of the machines"),
    "seconds": (
        "s",
        "deadline of one machine: a run keeps no answer that it cut short, which would depend on the "
        "computer (error; a resume tries again); `dse map`: the best found till then, with its gap",
    ),
    "starved_seconds": (
        "s",
        "a run stops after this time without a live actor; longer where nodes start slowly",
    ),
}
MACHINE: Meanings = {
    "name": ("", "default: the file's name"),
    "clock_mhz": ("MHz", "the one clock of the machine"),
    "nodes": ("", "memories and arrays from the outermost in, the compute last; the keys below"),
    "node_nm": ("nm", "technology node, for the tables of SRAM and logic"),
    "cell": ("", "SRAM cells: low operating power or high performance"),
    "vdd": (
        "V",
        "supply voltage of all that the tables price on chip: energy, leakage, delay and the highest clock; "
        "least: the lowest that meets the clock; none: as the tables give it, any clock",
    ),
    "word_bits": (
        "bit",
        "size of an element that names none of its own; default: the bits of the compute kind",
    ),
    "overlap": (
        "",
        "buffered: fills overlap work where a level double-buffers; free: all do, the convention of "
        "tools that take the largest busy time",
    ),
    "tiling": ("", "for solver.tiling: smaug; the keys of tiling below"),
    "mapping": ("", "rules: what mappings the hardware can do; the keys of mapping[] below"),
}
RULE: Meanings = {
    "at": ("", "a memory, or a dimension of an array; left out: the machine (for utilization)"),
    "einsums": (
        "",
        "einsums that the rule holds for, by name or kind: products (of MACs, without a window), "
        "convolutions (with one), others; []: all",
    ),
    "ranks": ("", "at a dimension: the ranks that may be unrolled over it, by name or role; []: none"),
    "factors": (
        "",
        "trip counts by rank, of spatial loops over a dimension or of temporal loops at a memory: 4, "
        "'<= 4', '>= 2', '2..4', or all, the extent of the rank",
    ),
    "keep": ("", "at a memory: tensors that must stand there, by name or role (input, weight, output)"),
    "bypass": ("", "at a memory: tensors that may not stand there, by name or role"),
    "tile": ("", "at a memory: the largest tile by tensor, in elements (1024) or bytes (2 KiB)"),
    "order": (
        "",
        "at a memory: ranks, outermost first: a temporal loop there over one of them stands above all those "
        "over later ones; '*': all ranks that are not named",
    ),
    "inside": (
        "",
        "at a memory: ranks whose temporal loops all stand inside of its tiles, so that none changes a tile "
        "there: of sums, k: they leave complete",
    ),
    "utilization": (
        "share",
        "of the PEs that must work, at least; at a dimension of the PEs along it, or as many as factors of "
        "the ranks that the rule allows there can fill, where these are fewer",
    ),
}
IN_CORE = (
    "the core that it is a part of, with all other nodes that name it: several stand beside each other below "
    "what names none"
)
MEMORY: Meanings = {
    **_energies(Memory),
    "memory": ("", "makes the node a memory; its name in capitals is the level's name in mappings"),
    "width_bits": ("bit", "moved by one action (a read or a write)"),
    "kind": (
        "",
        "selects the component table; register: flip-flops, up to 64 B, without a limit of accesses per "
        "cycle; custom: energies, bandwidth and area are all given here",
    ),
    "table": (
        "",
        "of kind custom: a function of yours that gives the numbers that do not stand here, FILE.py:NAME or "
        "PACKAGE.MODULE:NAME (docs/exchange.md)",
    ),
    "capacity": ("B", "of one instance; none: unbounded, of the outermost memory alone"),
    "banks": ("", "sram: arrays that split the capacity and are accessed in parallel"),
    "channels": ("", "DRAM: bandwidths and background powers add up"),
    "bandwidth": ("GB/s", "of one instance; none: the table's"),
    "actions_per_cycle": (
        "1/cycle",
        "bandwidth in actions of width_bits, inf: without limit; instead of bandwidth",
    ),
    "leak_mw": ("mW", "leakage of one instance, all banks; of a DRAM its background power"),
    "area_mm2": ("mm2", "of one instance, all banks"),
    "cycle_ns": ("ns", "sram: minimum time between two accesses of an array"),
    "latency_ns": ("ns", "from a request to its first word: an einsum whose inputs stand there waits once"),
    "write_bandwidth": ("GB/s", "of writes, where it is not that of reads"),
    "writes_per_cycle": ("1/cycle", "the same in actions of width_bits; instead of write_bandwidth"),
    "ports": (
        "",
        "shared: reads and writes share the bandwidth; separate: each has it; or a list of ports, each with "
        "the roles that it serves (read: [weight], write: [output]) and its rate as a multiple of the "
        "memory's (times: 2); fill and drain: [output] at a port for sums from and to the memory outside",
    ),
    "double_buffer": (
        "",
        "the next tile is filled while this one is used: tiles that change take twice their "
        "capacity; false: work inside stalls meanwhile",
    ),
    "bypass": ("", "tensors may skip this level; default: true but for the outermost"),
    "skip_first_read": (
        "",
        "the first read of an output element costs nothing: there is nothing to add to yet",
    ),
    "slow": (
        "",
        "sram whose cycle is longer than one of the clock: an access takes whole cycles of the clock "
        "(divide), or the machine is infeasible",
    ),
    "may_keep": (
        "",
        "which parts of an einsum may stand there: the first input, its other inputs (weight), the output",
    ),
    "bits": (
        "bit",
        "of an element there by role (input, weight, output), e.g. {output: 32}; other roles: as elsewhere",
    ),
    "formats": (
        "",
        "how tensors with zeros are stored there by role: dense, csr, coo, rle, bitmask or N:M, with widths "
        "{weight: {format: csr, index_bits: 8}}; other roles: as in main memory (einsums[].format)",
    ),
    "along": (
        "",
        "dimensions of arrays outside of it along which PEs share one instance, e.g. [x]: the ranks of what "
        "it may keep are not unrolled over these",
    ),
    "burst": ("B", "moved at once, a cache line or burst; layouts count where it is given"),
    "partial_write": ("", "of a line written in part: bytes are masked, or the line is read before (rmw)"),
    "row": ("B", "of DRAM, open per bank until another one is asked for"),
    "row_banks": ("", "DRAM banks; none: 1"),
    "row_interleave": ("B", "banks are interleaved every so many bytes; none: a row"),
    "row_ns": ("ns", "from one opening of a row to the next in the same bank"),
    "bank_map": (
        "",
        "sram: words are interleaved over the banks (word), rotated by the row (xor), or in blocks; "
        "bank conflicts count where it is given",
    ),
    "dma_ns": ("ns", "time of one DMA descriptor"),
    "dma_queues": ("", "descriptors at a time; none: 1"),
    "dma_strides": ("", "a descriptor repeats a run over so many strides; none: 0"),
    "in_core": ("", IN_CORE),
    "prefetch_lines": ("", "consecutive cache lines that a miss brings"),
    "prefetch_run": ("", "misses per run, as measured; with prefetch_line"),
    "prefetch_line": ("", "misses per line, as measured"),
    "miss_ns": ("ns", "time that a miss adds"),
}
ARRAY: Meanings = {
    **_energies(Array),
    "in_core": ("", IN_CORE),
    "array": ("", "makes the node an array: copies of all that follows"),
    "dims": ("", "size per dimension, e.g. {x: 16, y: 16}"),
    "multicast": (
        "",
        "multicast: one read serves all PEs along dimensions whose ranks the tensor lacks; or the "
        "dimensions in which it does",
    ),
    "reduce": (
        "",
        "spatial reduction: partial outputs of PEs are added on the way out; or the dimensions in "
        "which they are",
    ),
    "systolic": (
        "",
        "a systolic array of two dimensions, rows first, and what is stationary in it: outputs, "
        "weights, inputs",
    ),
    "injected_at": (
        "",
        "of a mesh: where on it the level outside stands; edge: along its first and last column",
    ),
    "multicast_from": (
        "",
        "of a mesh: source of a multicast word: the level outside along one tree, or the nearest PE "
        "that has it",
    ),
}
MAC_UNIT: Meanings = {
    **_energies(MacUnit),
    "compute": ("", "makes the node a compute; computes stand last, of their core or of all"),
    "kind": ("", "selects the component table; custom: all numbers are given here"),
    "ops_per_cycle": (
        "1/cycle",
        "MACs (or other operations) of one MAC unit; more than 1: as many units of the table, in area and "
        "leakage",
    ),
    "leak_mw": ("mW", "leakage of one MAC unit"),
    "area_mm2": ("mm2", "of one MAC unit"),
    "vector_lanes": (
        "",
        "width of the machine's one vector unit, which does all that is no multiply-accumulate; 0: "
        "the array's MAC units do it",
    ),
    "vector_kind": ("", "number format of the vector unit; default: kind"),
    "takes": (
        "",
        "of several computes: the einsums that this one does, by kinds (products, convolutions, others, or "
        "names of functions) and the widest operand in bits, e.g. {kinds: [products], bits: 8}; {}: all",
    ),
    "in_core": ("", IN_CORE),
    "gates": (
        "",
        "roles of the operands (input, weight) whose zeros are gated: such an operation takes cycles and no "
        "energy, nor does it access memories of the PE; those outside of arrays send every word, which PEs "
        "share as of a dense operand; zeros of others are skipped",
    ),
    "lockstep": (
        "",
        "PEs step together through the groups of an operand in N:M, the only one with zeros: those along its "
        "ranks share whole groups of another operand, and add up their sums; each gets whole slots, M / N "
        "values of a row or multiples",
    ),
}
TILING: Meanings = {
    "preference": ("", "which dimensions to cut; the first that fits is taken"),
    "minimum": (
        "",
        "smallest useful tile per operator and tensor, e.g. {convolution.inputs: [1, kernel, full, macs]}",
    ),
    "align": ("elements", "the innermost dimension is stored in multiples of it"),
    "pes": ("", "output channels in parallel; none: the array's"),
    "macs": ("", "input channels that each reduces per step; none: the array's"),
    "vector": ("", "channels per step of what is no product; none: the width of the vector unit, or 8"),
}
FILE: Meanings = {
    "name": ("", "default: the file's name"),
    "extents": ("", "size of every rank"),
    "einsums": ("", "texts, or mappings with the keys below"),
    "weights": ("", "parameters: tensors that are the same in every run"),
    "loop_state": (
        "",
        "of a loop, whose einsums are one iteration: {name read: result that the next one reads as it}",
    ),
    "iterations": ("", "of the loop of loop_state"),
}
ENTRY: Meanings = {
    "text": ("", 'e.g. "H[b,m,f] += X[b,m,d] * W[d,f]"; a convolution reads I[n,c,2*p+r,2*q+s]'),
    "name": ("", "default: the name of its output"),
    "repeat": ("", "occurrences in a row"),
    "extents": ("", "sizes of ranks for this einsum alone"),
    "sizes": ("elements", "stored shape of a tensor where padding or cropping makes it differ"),
    "bits": ("bit", "of an element, per tensor; default: the machine's word"),
    "density": ("share", "of nonzeros, per tensor; default: 1, of a compressed result what is expected"),
    "format": (
        "",
        "dense, csr, coo, rle, bitmask, or N:M (2:4), per tensor; of a result N:M only beside such an input",
    ),
    "index_bits": (
        "bit",
        "stored beside a nonzero, per tensor: a column (csr), all indices (coo), a run of zeros (rle), a "
        "position (N:M); default: the least, of rle 5",
    ),
    "pointer_bits": (
        "bit",
        "of a row pointer, per csr tensor; default: the least that hold its number of nonzeros",
    ),
}
SCHEMAS: tuple[tuple[str, str, Any, Meanings], ...] = (
    ("study", "search.", Search, SEARCH),
    ("study", "stop.", Stop, STOP),
    ("study", "solver.", SolverOptions, SOLVER),
    ("study", "limits.", Limits, LIMITS),
    ("machine", "", Machine, MACHINE),
    ("machine", "memory.", Memory, MEMORY),
    ("machine", "array.", Array, ARRAY),
    ("machine", "compute.", MacUnit, MAC_UNIT),
    ("machine", "tiling.", Tiling, TILING),
    ("machine", "mapping[].", Rule, RULE),
    ("workload", "", File, FILE),
    ("workload", "einsums[].", Entry, ENTRY),
)


def listing() -> Iterator[Key]:
    """Yields all keys of study, machine and workload files, in the order of `dse list keys`."""
    for key, (values, default, unit, meaning) in STUDY.items():
        yield Key("study", key, default, meaning, unit, values)
    for file, prefix, kind, meanings in SCHEMAS:
        schema = machine.schema() if kind is Machine else TypeAdapter(kind).json_schema(by_alias=True)
        for name, one in _properties(schema).items():
            unit, meaning = meanings.get(name, ("", ""))
            yield Key(
                file,
                prefix + name,
                "" if name in schema.get("required", ()) else _default(one),
                meaning,
                unit,
                _values(one),
            )


def schema(file: str) -> dict[str, Any]:
    """Returns a JSON Schema of machine, study or workload files, for editors, with the contents of `dse list
    keys`. `dse check` checks more, also between keys.
    """
    by_prefix = {
        prefix.rstrip(".").removesuffix("[]"): (
            machine.schema() if kind is Machine else TypeAdapter(kind).json_schema(by_alias=True),
            meanings,
        )
        for name, prefix, kind, meanings in SCHEMAS
        if name == file
    }
    if file == "study":
        top = {
            key: {"description": _description(unit, meaning)}
            for key, (_, _, unit, meaning) in STUDY.items()
            if "[]" not in key
        }
        file_schema: dict[str, Any] = {
            "type": "object",
            "properties": top,
            "additionalProperties": False,
            "required": [key for key in top if not STUDY[key][1]],
        }
        file_schema["properties"] |= {
            key: _closed_schema(one, meanings) for key, (one, meanings) in by_prefix.items()
        }
        closed = file_schema["properties"]["search"]
        named = {"properties": {"method": {"pattern": "^optuna:"}}, "required": ["method"]}
        file_schema["properties"]["search"] = {"type": "object", "if": named, "else": closed}
    else:
        file_schema = _closed_schema(*by_prefix.pop(""))
        kinds = {
            "memory": "Memory",
            "array": "Array",
            "compute": "MacUnit",
            "tiling": "Tiling",
            "mapping": "Rule",
            "einsums": "Entry",
        }
        file_schema["$defs"] |= {
            kinds[key]: _closed_schema(file_schema["$defs"][kinds[key]], meanings)
            for key, (_, meanings) in by_prefix.items()
        }
    if file == "machine":
        # inf: a text in YAML 1.1
        file_schema["$defs"]["Memory"]["properties"]["actions_per_cycle"]["anyOf"].append({"const": "inf"})
    if file == "workload":
        file_schema["properties"]["einsums"]["items"] = {
            "anyOf": [{"type": "string"}, {"$ref": "#/$defs/Entry"}]
        }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"dse {file}",
        **{key: one for key, one in file_schema.items() if key != "title"},
    }


def _closed_schema(schema: Mapping[str, Any], meanings: Meanings) -> dict[str, Any]:
    """Returns a schema with meanings instead of docstrings, in which unknown keys are faults."""
    properties = {
        name: {
            **{key: what for key, what in one.items() if key not in ("title", "description")},
            "description": _description(*meanings[name]),
        }
        for name, one in _properties(schema).items()
    }
    return {
        **{key: one for key, one in schema.items() if key not in ("title", "description")},
        "properties": properties,
        "additionalProperties": False,
    }


def _description(unit: str, meaning: str) -> str:
    return f"{meaning} ({unit})" if unit else meaning


def _properties(schema: Mapping[str, Any]) -> dict[str, Any]:
    own = schema if "properties" in schema else schema["$defs"][schema["$ref"].rpartition("/")[2]]
    # search.options is made of the further keys of method optuna:NAME
    return {name: one for name, one in own["properties"].items() if name != "options"}


def _default(property_schema: Mapping[str, Any]) -> str:
    """Returns the default in the JSON schema of a key, as YAML; "all" for a list of all allowed values."""
    default = property_schema.get("default", {"object": {}, "array": []}.get(property_schema.get("type", "")))
    choices = property_schema.get("items", {}).get("enum")
    return (
        "all"
        if choices and list(default) == choices
        else "{}"
        if isinstance(default, dict) or property_schema.get("type") == "object"
        else _show(default)
    )


def _show(value: Any) -> str:
    """Returns a value as YAML."""
    if isinstance(value, list):
        return f"[{', '.join(map(_show, value))}]"
    return (
        "none"
        if value is None
        else str(value).lower()
        if isinstance(value, bool)
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )


def _values(property_schema: Mapping[str, Any]) -> str:
    """Returns a JSON schema in few words."""
    if "enum" in property_schema:
        return ", ".join(map(str, property_schema["enum"]))
    if "anyOf" in property_schema:
        return " or ".join(text for part in property_schema["anyOf"] if (text := _values(part)))
    if "pattern" in property_schema:
        return (
            "size, e.g. 128 KiB"
            if "KiB" in property_schema["pattern"]
            else "rate, e.g. 12.8 GB/s"
            if "GB/s" in property_schema["pattern"]
            else "name"
        )
    kind = property_schema.get("type")
    if kind in ("integer", "number"):
        minimum = (
            f" > {property_schema['exclusiveMinimum']:g}"
            if "exclusiveMinimum" in property_schema
            else f" > {property_schema['gt']:g}"
            if "gt" in property_schema
            else (f" >= {property_schema['minimum']:g}" if "minimum" in property_schema else "")
        )
        return f"{'whole number' if kind == 'integer' else 'number'}{minimum}"
    if kind == "array":
        return f"list of {_values(property_schema.get('items', {})) or 'entries'}"
    return {"boolean": "true, false", "string": "text", "object": "mapping", "null": ""}.get(
        str(kind), "mapping"
    )
