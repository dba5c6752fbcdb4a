"""A solution as values to print: totals, einsums, and one einsum's nest, traffic, footprints and
bottleneck."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from math import inf, isclose, prod
from typing import TYPE_CHECKING, Any

from dse.explain import units
from dse.mapping import matched
from dse.mapping import schedule as schedules
from dse.mapping.constraints import einsum_kind, rank_roles
from dse.mapping.conversion import Conversion
from dse.mapping.directives import directives_of, has_overlap, text
from dse.mapping.nest import Loop, bits_at, role, stored_at, to_data, to_text
from dse.mapping.schedule import Schedule, mappings_by_einsum, sequential
from dse.mapping.searched import UNDER, claim, space_words
from dse.run import record
from dse.sim.counts.actions import first_word_cycles, passes_array
from dse.sim.directives.directed import layer_of
from dse.sim.einsum.bounds import Needs, lower_bound, needs, rates
from dse.sim.einsum.evaluate import GIVEN_MAPPING, LEFT_OPEN, EinsumCost, SegmentCost, Solution, percent
from dse.sim.schedule.graph import on_chip
from dse.sim.schedule.placed import index_ranges
from dse.solve.options import SolverOptions, without_widths
from dse.solve.schedules.fusible_segments import fusing_schedules, widths_in_the_way
from hw.arch import ALL_OTHERS, Arch, Rule
from workloads.einsum import Einsum, Projection, show
from workloads.graph import (
    Workload,
    base_tensor,
    counts,
    groups_text,
    names_text,
    results_label,
    results_text,
    rows_text,
    types_text,
    unique,
)

if TYPE_CHECKING:  # importing it would import SciPy
    from dse.solve.gogeta.accesses import Phase
    from dse.solve.gogeta.optimum import RetainedSpan
    from dse.solve.gogeta.traffic import TrafficReport

LISTED_SHARE = 0.8  # share of the energy that the listed einsums make up at least
LISTED_IN_FULL = 8  # up to this many einsums, all are listed
LARGE_STATIC_SHARE = 0.5  # share of static energy above which a sentence says so
# with at least this share of the busiest component's cycles, a component is a bottleneck, too
BOTTLENECK_SHARE = 0.99
# share of the latency below which a busiest component is said to be idle meanwhile
BUSY_SHARE = 0.95
WHOLE_SHARES = ("all", "1")  # texts that mean the whole tensor
# share of energy for tensors between einsums in main memory, above which a sentence says so
LARGE_EXCHANGE = 0.1
SCREEN_NAMES = {"energy_steady_pj": "steady_state_energy_pj"}  # totals with another name on screens
WHY = "--why: the certificate in full, what was searched and what not, what may help"
BUSY_ENOUGH = 0.5  # share of the peak from which nothing is said of ports that keep MAC units waiting
PART = "part of the schedule"  # certificate of an einsum that was searched together with others
LARGE_GAP = 0.1  # above this gap to the bound a sentence says what may help
WIDE_GAP = 0.25  # above this gap to the bound a sentence says what the bound leaves out


@dataclass(frozen=True, slots=True)
class Table:
    """Rows to print under a title. A column's name ends with its unit; screens show the name without it.
    note: a sentence below the table. key: its name in JSON, where tables of a kind have titles of their own.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    note: str = ""
    key: str = ""


WORK = ("macs", "main_memory_bytes", "mac_utilization")


def work(arch: Arch, e: Einsum, c: EinsumCost) -> dict[str, Any]:
    """The columns WORK of the table einsums, from which its ratios (`record.RATIOS_OF`) are computed."""
    moved = moved_bytes(arch, e, c)[arch.levels[0].name]
    return dict(zip(WORK, (e.macs(), moved, _utilization(arch, c, e)), strict=True))


def place(arch: Arch, c: EinsumCost) -> dict[str, str | None]:
    """The compute that an einsum runs on, and the core of that; None on a machine with one compute, without
    cores.
    """
    core = arch.unit(c.mapping.unit).compute.core
    return {"core": core or None, "unit": c.mapping.unit or None}


def moved_bytes(arch: Arch, e: Einsum, c: EinsumCost) -> dict[str, float]:
    """Level -> bytes that one run of an einsum reads and writes there. At a level with
    cache lines, unused bytes of a line count, too, and so does the read of a line that is written in part
    (read-modify-write).
    """
    levels, moved_bits = {level.name: level for level in arch.levels}, dict.fromkeys(arch.level_index(), 0.0)
    for row in c.counts:
        if row.level in levels:
            moved_bits[row.level] += row.elems * bits_at(levels[row.level], row.tensor, e, arch)
    for one in c.layout_traffic:
        moved_bits[one.level] += one.unused_bits + one.modified_bits
    return {name: n / 8 for name, n in moved_bits.items()}


def main_memory_bytes(arch: Arch, costed: Sequence[tuple[EinsumCost, Einsum]]) -> float:
    """Bytes that one run of a workload reads and writes at main memory, the outermost level."""
    return sum(c.count * moved_bytes(arch, e, c)[arch.levels[0].name] for c, e in costed)


@dataclass(frozen=True, slots=True)
class Component:
    """Area and energy of a component of the machine: a level, the MAC units, the vector unit or a network;
    all instances.
    """

    name: str
    instances: int
    area_mm2: float
    dynamic_pj: float  # of moving and computing
    static_pj: float  # of leakage, and of the background power of a DRAM

    @property
    def energy_pj(self) -> float:
        """Dynamic and static energy."""
        return self.dynamic_pj + self.static_pj


def components(arch: Arch, solution: Solution) -> list[Component]:
    """The components of a machine in its order, networks with a price last. The vector unit is listed only
    if there is one.
    """
    instances = arch.components()
    dynamic_pj: dict[str, float] = defaultdict(float)
    for c in solution.einsums:
        for part in c.price.parts:
            if part.action != "leak":
                dynamic_pj[part.level] += c.count * part.energy_pj
    ns = solution.latency_cycles / arch.clock_ghz  # time during which components leak
    found = [
        Component(name, n, area, dynamic_pj[name], mw * ns)
        for (name, n), area, mw in zip(instances.items(), arch.areas_mm2(), arch.leaks_mw(), strict=True)
        if name != "VECTOR" or arch.compute.alu_per_cycle is not None
    ]
    networks = [f.name for f in arch.fanouts if f.has_price()]
    return [*found, *(Component(name, 1, 0.0, dynamic_pj[name], 0.0) for name in networks)]


def machine(arch: Arch) -> list[dict[str, Any]]:
    """A row per component of a machine, outermost first: capacity, energies, bandwidth and width of one
    instance, area and leakage of all; what a narrow screen may leave out comes last. array: what makes the
    instances of one out of the component outside. hop_pj_per_bit, endpoint_pj_per_bit: of the network of
    that array, where one has a price. merge_pj: adding a partial sum of one PE to another PE's. elements:
    their bits by role, where a memory gives them a width of their own. stored: formats of tensors with zeros
    by role, where a memory has its own. shared_along: dimensions along which
    PEs share an instance, where they do so of a memory. core, takes: of machines with cores, or several
    computes. lockstep: "yes" of computes whose PEs step together, where a machine has one.
    """
    packs = bool(arch.with_formats())
    has_widths, has_sharing = arch.narrows_or_widens(), bool(arch.with_sharing())
    has_links, has_vector = any(f.has_price() for f in arch.fanouts), arch.compute.alu_per_cycle is not None
    paths = arch.units or (arch,)
    has_lockstep = any(path.compute.lockstep for path in paths)
    before: dict[str, str] = {}  # component -> arrays that stand right outside of it
    links: dict[str, dict[str, float | None]] = {}  # component -> prices of the network of these arrays
    core_of: dict[str, str] = {}
    for path in paths:
        unit = path.compute
        for v, name in enumerate((*(level.name for level in path.levels), unit.name)):
            arrays = [f for f in path.fanouts if f.outside == v]
            before[name] = ", ".join(f"{f.name} {' x '.join(str(n) for _, n in f.dims)}" for f in arrays)
            priced = next((f for f in arrays if f.has_price()), None)
            links[name] = {
                "hop_pj_per_bit": priced.hop_pj if priced else None,
                "endpoint_pj_per_bit": priced.endpoint_pj if priced else None,
            }
            # what paths of several cores have stands outside of all
            core_of[name] = unit.core if core_of.get(name, unit.core) == unit.core else ""
    rows: list[dict[str, Any]] = [
        {
            "component": level.name,
            **({"core": core_of[level.name]} if arch.cores() else {}),
            "array": before[level.name],
            "instances": 0,
            "capacity_bytes": None if level.capacity_bits is None else level.capacity_bits / 8,
            "read_pj": level.read_pj,
            "write_pj": level.write_pj,
            "area_mm2": 0.0,
            "leak_mw": 0.0,
            "compute_pj": None,
            **({"alu_pj": None, "takes": ""} if arch.units else {}),
            "bytes_per_cycle": level.bandwidth * level.width_bits / 8,
            "width_bits": level.width_bits,
            **({"elements": ", ".join(f"{of} {n} bit" for of, n in level.bits)} if has_widths else {}),
            **({"stored": ", ".join(f"{one.role} {one.form}" for one in level.formats)} if packs else {}),
            **(
                {
                    "shared_along": ", ".join(
                        dim for f in arch.fanouts for dim, _ in f.dims if dim in f.shared_along(level.name)
                    )
                }
                if has_sharing
                else {}
            ),
            "read_pj_per_bit": level.read_pj / level.width_bits,
            "write_pj_per_bit": level.write_pj / level.width_bits,
            **({} if arch.units else {"alu_pj": None}),
            "merge_pj": None,
            **({"lockstep": ""} if has_lockstep else {}),
            **(links[level.name] if has_links else {}),
        }
        for level in arch.levels
    ]
    for path in paths:
        unit, takes = path.compute, {"takes": str(path.compute.takes)} if arch.units else {}
        core = {"core": unit.core} if arch.cores() else {}
        row = {"component": unit.name, **core, "array": before[unit.name], "compute_pj": unit.mac_pj}
        row |= {"lockstep": "yes" if unit.lockstep else ""} if has_lockstep else {}
        prices = {"merge_pj": unit.merge_pj} | (links[unit.name] if has_links else {})
        rows.append({**row, **takes, "alu_pj": unit.alu_pj if takes or not has_vector else None, **prices})
    if not arch.units:
        rows.append({"component": "VECTOR", "array": "", "compute_pj": arch.compute.alu_pj})
    sizes = zip(arch.components().values(), arch.areas_mm2(), arch.leaks_mw(), strict=True)
    for row, (instances, area_mm2, leak_mw) in zip(rows, sizes, strict=True):
        row.update(instances=instances, area_mm2=area_mm2, leak_mw=leak_mw)
    return rows if arch.units or has_vector else rows[:-1]


def totals(arch: Arch, workload: Workload, solution: Solution) -> dict[str, Any]:
    """The metrics of a solved workload by name; a name ends with its unit."""
    ns = solution.latency_cycles / arch.clock_ghz
    costed = costed_einsums(workload, solution)
    ratio_inputs = {
        "latency_ns": ns,
        "energy_pj": solution.energy_pj,
        "macs": sum(c.count * e.macs() for c, e in costed),
        "main_memory_bytes": main_memory_bytes(arch, costed),
        "peak_tops": arch.peak_tops(),
    }
    return {
        "energy_pj": solution.energy_pj,
        "latency_cycles": solution.latency_cycles,
        "latency_ns": ns,
        "initiation_interval_cycles": solution.initiation_interval_cycles,
        "energy_steady_pj": solution.energy_steady_pj,
        "edp_pj_ns": solution.energy_pj * ns,
        "area_mm2": arch.area_mm2(),
        **({} if arch.vdd is None else {"vdd": arch.vdd}),
        **({"slower_than_the_clock": ", ".join(slow)} if (slow := arch.slow_levels()) else {}),
        **record.ratios(ratio_inputs, record.RATIOS_OF["workload_costs"]),
        "status": "ok",
        "optimality_gap": _finite(solution.optimality_gap),
        "gap_to_bound": _finite(solution.gap_to_bound),
        "certificate": claim(solution.certificate),
        "space": space_words(solution.certificate),
    }


def _finite(gap: float) -> float | None:
    """The gap; None for infinity (the bound is 0, so the gap is not known), which JSON cannot write."""
    return gap if gap < inf else None


def mac_units_used(c: EinsumCost, e: Einsum) -> int:
    """MAC units that work, over all fan-outs; 0 where the mapping is neither a nest nor directives."""
    if c.mapping.non_nest_text:
        layer = layer_of(c.mapping)
        return prod(b.parallel for b in layer.buffers) if layer else 0
    used, tile_of = 1, e.sizes()
    for node in c.mapping.nodes:
        if isinstance(node, Loop):
            used *= -(-tile_of[node.rank] // node.tile) if node.over else 1
            tile_of[node.rank] = node.tile
    return used


def _utilization(arch: Arch, c: EinsumCost, e: Einsum) -> float | None:
    """Share of the MAC units that work; None where the mapping is neither a nest nor directives, and on the
    vector unit.
    """
    arch = arch.unit(c.mapping.unit)
    if not passes_array(e, arch):
        return None
    return mac_units_used(c, e) / arch.instances(len(arch.levels)) or None


def _ratios(arch: Arch, e: Einsum, c: EinsumCost) -> dict[str, float | None]:
    """The ratios of one occurrence of an einsum."""
    row = work(arch, e, c) | {
        "energy_pj": c.energy_pj,
        "latency_cycles": c.latency_cycles,
        "clock_ghz": arch.clock_ghz,
        "peak_tops": arch.peak_tops(),
    }
    return record.ratios(row, record.RATIOS_OF["einsums"])


def exchanged_share(arch: Arch, workload: Workload, solution: Solution) -> float:
    """Share of the energy of an unfused solution that is spent at the outermost level on tensors that one
    einsum makes and another one reads.
    """
    made = {e.output.tensor for e in workload.einsums}
    occurrences_of = dict(zip((e.name for e in workload.einsums), counts(workload), strict=True))
    exchanged_tensors = {base_tensor(p.tensor, made) for e in workload.einsums for p in e.inputs} & made
    einsums = {e.name: e for e in workload.einsums}
    names_of = {group.key: group.names for group in unique(workload)}
    total = 0.0
    # equal einsums have one cost but exchange different tensors: c.count is split by their occurrences
    for c in solution.einsums:
        energy_of: dict[str, float] = {}
        for part in c.price.parts:
            if part.level == arch.levels[0].name and part.action != "leak":
                energy_of[part.tensor] = energy_of.get(part.tensor, 0.0) + part.energy_pj
        first, group_occurrences = einsums[c.name], sum(occurrences_of[name] for name in names_of[c.key])
        for name in names_of[c.key]:
            base_of = {
                p.tensor: base_tensor(q.tensor, made)
                for p, q in zip(first.tensors(), einsums[name].tensors(), strict=True)
            }
            total += (
                c.count
                * occurrences_of[name]
                / group_occurrences
                * sum(energy_of.get(t, 0.0) for t, base in base_of.items() if base in exchanged_tensors)
            )
    return total / (solution.energy_pj or 1)


def unfused_hint(arch: Arch, workload: Workload, solution: Solution, command: str = "dse map ...") -> str:
    """A sentence for an unfused solution in which tensors between einsums take more than a tenth of the
    energy in main memory: their share, and the command that fuses the einsums. Empty for other solutions.
    command: the command that gave the solution.
    """
    fusing = solution.space and (solution.space.fused > 1 or solution.space.pipelined > 1)
    if solution.schedule or fusing or (share := exchanged_share(arch, workload, solution)) <= LARGE_EXCHANGE:
        return ""
    line = (
        f"unfused (layer by layer): tensors between einsums, through {arch.levels[0].name}, take "
        f"{100 * share:.0f} % of all energy"
    )
    from dse.solve import solve  # its compiled functions take long to load, and `dse check` needs none

    known = [*fusing_schedules(arch, workload)]
    names = (name for name in known if solve.is_taken(arch, workload, SolverOptions(schedule=name)))
    if not (schedule_name := next(names, "")):
        without = without_widths(widths_in_the_way(arch, workload))
        one_width = f" in memories that narrow or widen elements ({without}: without)" if without else ""
        rules = " under the rules of its `mapping`" * bool(known and arch.mapping)
        return f"{line}; no solver fuses them on {arch.name}{rules or one_width}"
    # the command names no mapper where schedules were searched (the solution has a `space`), the mapping was
    # given or the mapper is optimal
    mapper_is_settled = solution.space or any(
        f"({by}" in solution.certificate for by in (GIVEN_MAPPING, "given schedule", "mapper optimal")
    )
    more_options = "" if mapper_is_settled else " --set solver.mapper=optimal --set solver.tiling=mapper"
    return (
        f"{line}; {command} --set solver.schedule={schedule_name}{more_options} fuses them where that "
        "costs less"
    )


def long_rows(arch: Arch, workload: Workload) -> str:
    """A sentence about softmaxes and norms that read rows which no level on chip can hold, so that a machine
    has to read them twice; empty where there are none.
    """
    on_chip_bits = [
        level.capacity_bits and level.capacity_bits * arch.instances(v + 1)
        for v, level in enumerate(arch.levels[1:])
    ]
    most_bits = max((bits or inf for bits in on_chip_bits), default=0)
    row_bits = {
        e.name: prod(e.sizes()[rank] for rank in e.whole_ranks()) * (e.inputs[0].bits or arch.word_bits)
        for e in workload.einsums
        if e.whole_ranks()
    }
    longest = max(row_bits, key=row_bits.__getitem__, default="")
    if not longest or row_bits[longest] <= most_bits:
        return ""
    size = units.quantity("bytes", row_bits[longest] / 8)
    return (
        f"{longest} needs whole rows of {size}, which no level on chip holds: it is priced as one pass over "
        "them, and a second one is not counted"
    )


def advice(arch: Arch, workload: Workload, solution: Solution) -> str:
    """What may bring a solution nearer to its lower bound; empty if it is at most LARGE_GAP above."""
    if solution.gap_to_bound <= LARGE_GAP or (solution.schedule and solution.saved is None):
        return ""
    if solution.saved is not None:  # a search of segments, whose einsums have no proof of their own
        return (
            f"{solution.left_out}: more seconds search the rest"
            if solution.left_out
            else _gap_and_port(arch, workload, solution)
        )
    if arch.models_layout():
        return (
            ""
            if solution.certificate.startswith("layouts ")
            else "--set solver.layout=alt chooses layouts between einsums too, which are row-major here"
        )
    if "(given mapping)" in solution.certificate:
        return "this mapping was given; dse map searches for the best one"
    if "hops not searched" in solution.certificate:
        return "mappings were searched with free hops, then priced; --set solver.mapper=optimal counts hops"
    if not all(c.space for c in solution.einsums):
        is_optimal_mapper = "(mapper optimal)" in solution.certificate
        exact = (
            "--set solver.factors=imperfect_spatial --set solver.gap=0 tries to prove all"
            if is_optimal_mapper
            else "--set solver.mapper=optimal searches exactly"
        )
        return (
            f"not every einsum is proven optimal: {exact}; extents that are smaller or have more divisors "
            "are proven sooner"
        )
    idle = [
        c.name
        for c, e in costed_einsums(workload, solution)
        for own in [arch.unit(c.mapping.unit)]
        if mac_units_used(c, e) < own.instances(len(own.levels))
    ]
    if idle and any(c.space and c.space.factors == "perfect" for c in solution.einsums):
        more = f" and {len(idle) - 1} more" if len(idle) > 1 else ""
        return (
            f"some MAC units are idle in {idle[0]}{more}: --set solver.factors=imperfect_spatial searches "
            "imperfect spatial factors too"
        )
    return _gap_and_port(arch, workload, solution)


def _gap_and_port(arch: Arch, workload: Workload, solution: Solution) -> str:
    return "; ".join(filter(None, (_gap_of_space(solution), _busiest_port(arch, workload, solution))))


def _busiest_port(arch: Arch, workload: Workload, solution: Solution) -> str:
    """What would help the einsum that takes most of the latency where a memory keeps MAC units waiting: the
    port that is busiest there, and the tensor of most of its bits; "" where MAC units are busy enough.
    """
    costed = costed_einsums(workload, solution)
    c, e = max(costed, key=lambda one: one[0].count * one[0].latency_cycles)
    own = arch.unit(c.mapping.unit)
    levels = {level.name: level for level in own.levels}
    cycles = dict(c.price.busy_cycles)
    share_of_peak = _ratios(arch, e, c)["share_of_peak"]
    names = [name for name in bottlenecks(c) if name in levels]
    if share_of_peak is None or share_of_peak >= BUSY_ENOUGH or not names:
        return ""
    level, moved = levels[names[0]], Counter[str]()
    for row in c.counts:
        if row.level == level.name:
            moved[row.tensor] += row.elems * bits_at(level, row.tensor, e, own)  # type: ignore[assignment]
    if not moved:
        return ""
    tensor, bits = moved.most_common(1)[0]
    text = (
        f"{e.name} has {percent(share_of_peak)} of the peak: the port of {level.name} works for "
        f"{percent(cycles[level.name] / c.latency_cycles)} of the latency, "
        f"{percent(bits / sum(moved.values()))} "
        f"of its bits are {tensor}'s; a wider or faster port of {level.name.lower()} helps"
    )
    inside = own.levels[own.levels.index(level) + 1 :]
    of = role(e, tensor)
    if all(of not in one.may_keep for one in inside):
        text += f", or a register in the PEs that keeps {of} (may_keep: [{of}])"
    return text


def _gap_of_space(solution: Solution) -> str:
    gap_text = (
        f"at most {percent(solution.optimality_gap)} above the optimum of its space"
        if solution.optimality_gap
        else "optimal in its searched space"
    )
    return f"{gap_text}: the lower bound counts compulsory traffic only and ignores capacities"


def document(
    arch: Arch,
    workload: Workload,
    solution: Solution,
    plan: Schedule | None = None,
    einsum_name: str | None = None,
) -> dict[str, Any]:
    """What `dse map --format json` prints. plan: as in `equal_names`; einsum_name: of the einsum, "all": of
    each distinct one, that also has the rows of its traffic, footprint and busy cycles (`einsum`).
    """
    einsums: list[dict[str, Any]] = [
        {
            "name": c.name,
            "names": list(names),
            "occurrences": c.count,
            "energy_pj": c.energy_pj,
            "latency_cycles": c.latency_cycles,
            **_ratios(arch, e, c),
            "bottleneck": c.bottleneck,
            "stall_cycles": stall_cycles(arch, c),
            "optimality_gap": _finite(c.optimality_gap),
            "gap_to_bound": _finite(c.gap_to_bound),
            "certificate": claim(_proof(solution, c)),
            "mac_units_used": mac_units_used(c, e),
            **work(arch, e, c),
            **(place(arch, c) if arch.units else {}),
            "mapping": to_text(c.mapping, e),
            "host_copies": c.host_copies,
            "host_copy_elems": c.host_copy_elems,
        }
        for (c, e), names in zip(
            costed_einsums(workload, solution), equal_names(workload, solution, plan), strict=True
        )
    ]
    for row, (c, e) in zip(einsums, costed_einsums(workload, solution), strict=True):
        if c.layout_traffic:
            row["layouts"] = layouts(arch, e, c)
        if einsum_name == "all" or einsum_name in row["names"]:
            own = next((one for one in workload.einsums if one.name == einsum_name), e)
            row |= _in_full(arch, own, renamed(c, e, own))
    found = {
        **totals(arch, workload, solution),
        "components": [asdict(one) for one in components(arch, solution)],
        "einsums": einsums,
    }
    if solution.schedule:
        found |= asdict(solution.memory) if solution.memory else {}
        found |= {
            "schedule": schedules.to_text(solution.schedule, workload),
            "on_chip": [asdict(one) for one in on_chip(solution)],
            "segments": [*map(_segment_data, solution.segments)],
        }
    return found


def _in_full(arch: Arch, e: Einsum, cost: EinsumCost) -> dict[str, list[dict[str, Any]]]:
    """Returns the tables of `einsum` as rows by the first word of their titles: traffic, footprint, busy."""
    _, tables = einsum(arch, e, cost)
    return {
        one.title.split()[0]: [dict(zip(one.header, row, strict=True)) for row in one.rows]
        for one in tables
        if one.header != LAYOUT_COLUMNS  # which each row has as `layouts`
    }


def _segment_data(row: SegmentCost) -> dict[str, Any]:
    """A segment as plain data for JSON."""
    return asdict(row) | {"on_chip": [tensor for tensor, _ in row.on_chip], "peak_bits": dict(row.peak_bits)}


def mappings(workload: Workload, solution: Solution, plan: Schedule | None = None) -> dict[str, Any]:
    """Mappings by einsum name as plain data, the YAML that `dse simulate` reads. A mapping that is not a loop
    nest is given as its text, which `dse simulate` refuses. plan: an unfused schedule that may give equal
    einsums different mappings.
    """
    nests = (
        mappings_by_einsum(workload, plan)
        if plan and plan.is_unfused()
        else {c.name: c.mapping for c in solution.einsums}
    )
    return {name: nest.non_nest_text or to_data(nest) for name, nest in nests.items()}


def nest(workload: Workload, solution: Solution, plan: Schedule | None = None) -> str:
    """The whole schedule as one nest with branches: the text that `dse simulate` and `dse map --schedule`
    read. Raises ValueError where the mapping of an einsum is not a loop nest.
    """
    if non_nests := [c for c in solution.einsums if c.mapping.non_nest_text]:
        raise ValueError(
            f"{non_nests[0].name}: its schedule is {non_nests[0].mapping.non_nest_text.splitlines()[0]}; "
            "--format text shows it"
        )
    return schedules.to_text(
        solution.schedule or plan or sequential(workload, {c.name: c.mapping for c in solution.einsums}),
        workload,
    )


def directives(workload: Workload, solution: Solution, plan: Schedule | None = None) -> str:
    """A schedule in KAPLA's directives, which `dse simulate` reads, too. plan: a given schedule. Raises
    ValueError with a line for each einsum whose mapping directives cannot express.
    """
    planned = solution.schedule or plan
    if planned and (
        not planned.is_unfused()
        or planned != sequential(workload, {c.name: c.mapping for c in solution.einsums}, True)
    ):
        return matched.to_text(planned, workload)
    by_name = {e.name: e for e in workload.einsums}
    found, wrong = [], []
    for c in solution.einsums:
        try:
            found.append(layer_of(c.mapping) or directives_of(c.mapping, by_name[c.name]))
        except ValueError as fault:
            wrong.append(str(fault))
    if wrong:
        raise ValueError("\n".join(wrong))
    # where tiles overlap (windows), a nest fetches each tile whole, KAPLA's directives only its new part; the
    # first line of the text says which
    return text(
        found,
        fetch_whole=not any(layer_of(c.mapping) for c in solution.einsums)
        and any(has_overlap(layer, by_name[layer.name]) for layer in found),
    )


def _proof(solution: Solution, c: EinsumCost) -> str:
    """Returns the certificate of an einsum; of one that was searched as part of a schedule, which has the
    certificate, PART.
    """
    return PART if solution.schedule and solution.space and not c.space else c.certificate


def short_certificate(certificate: str) -> str:
    """Returns how near the optimum a certificate says that a solution is, in one clause. The gap to the
    bound, what bounds it and what was searched are left out, but for rules that restricted it.
    """
    clauses = claim(certificate).split("; ")
    clause = next((clause for clause in clauses if "optim" in clause), clauses[0])
    if UNDER not in certificate:
        return clause
    return re.sub("(in|of) the searched space", "under the rules of mapping", clause)


def facts(arch: Arch, workload: Workload, solution: Solution, why: bool = True) -> dict[str, Any]:
    """Totals, and facts of the workload and its schedule that are in no row of a table. why: the certificate
    in full, and what may lower the gap; False: its claim in one clause.
    """
    entries = {
        SCREEN_NAMES.get(key, key): value
        for key, value in totals(arch, workload, solution).items()
        if key != "space"
    }
    if entries["steady_state_energy_pj"] == entries["energy_pj"]:  # back-to-back runs take no less energy
        del entries["steady_state_energy_pj"]
    if space_words(solution.certificate) is None and solution.optimality_gap == solution.gap_to_bound:
        del entries["optimality_gap"]  # nothing was searched: the gap to the bound says all
    if solution.memory:
        entries |= asdict(solution.memory)
    if chip := on_chip(solution):
        entries["never leave the chip"] = (
            _tensors_at_levels([(one.tensor, one.level) for one in chip if one.share in WHOLE_SHARES])
            or "no whole tensor"
        )
    if solution.saved is not None:
        left_out = f" ({solution.left_out})" if solution.left_out else ""
        entries["saved over unfused"] = f"{100 * solution.saved:.3g} %{left_out}"
    if not why and "certificate" in entries:
        entries["certificate"] = short_certificate(solution.certificate)
    if why and (left := [c for c in solution.einsums if c.left_open]):
        worst = max(left, key=lambda c: c.optimality_gap)
        more = f" and {len(left) - 1} more" if len(left) > 1 else ""
        entries["why a gap is left"] = f"{worst.name}{more}: {LEFT_OPEN[worst.left_open]}"
    if why and (hint := advice(arch, workload, solution)):
        entries["what may help"] = hint
    if types := types_text(workload, arch.word_bits):
        entries["types"] = types
    if results := results_text(workload):
        entries[results_label(workload)] = results
    if workload.fused:
        number = len(workload.fused)
        entries["fused into producers"] = f"{units.counted(number, 'operator')} (solver.fuse_elementwise)"
    if workload.moved:
        entries["counted as data movement"] = ", ".join(workload.moved)
    return entries


def notes(
    arch: Arch, workload: Workload, solution: Solution, why: bool = True, asked: Sequence[Rule] = ()
) -> list[str]:
    """Sentences below the totals: which options were searched and which not (why); what fusion may save.
    asked: the rules of solver.mapping.
    """
    words_of = space_words(solution.certificate) or {}
    of_space = [f"{key.replace('_', ' ')}: {', '.join(words)}" for key, words in words_of.items() if words]
    found = of_space if why else [WHY]
    found += _rules(arch, workload, solution, asked) if why else []
    hints = (
        _wide_gap(arch, workload, solution),
        unfused_hint(arch, workload, solution),
        rows_text(workload),
        groups_text(_stored(arch, workload)),
        long_rows(arch, workload),
        _unused_memories(arch, workload, solution),
        _narrowed_sums(arch, workload, solution),
    )
    return [*found, *filter(None, hints)]


def _stored(arch: Arch, workload: Workload) -> Iterator[Projection]:
    """Yields the tensors of a workload, in its formats and those of the machine's memories."""
    formats = ((), *(level.formats for level in arch.levels if level.formats))
    return (stored_at(own, p, e) for e in workload.einsums for p in e.tensors() for own in formats)


def _rules(arch: Arch, workload: Workload, solution: Solution, asked: Sequence[Rule]) -> list[str]:
    """A line per rule, those of the machine's block mapping first: what each einsum has for the roles that it
    names. asked: the rules of solver.mapping.
    """
    lines = []
    named_rules = [
        (f"{block}[{i}]", rule)
        for block, rules in (("mapping", arch.mapping), ("solver.mapping", asked))
        for i, rule in enumerate(rules)
    ]
    for place, rule in named_rules:
        ranks = (*(rule.ranks or ()), *(one.rank for one in rule.factors), *rule.order, *rule.inside)
        of_tensors = *rule.keep, *rule.bypass, *(one.tensor for one in rule.tile)
        texts = []
        for c, e in costed_einsums(workload, solution):
            if rule.einsums and e.name not in rule.einsums and einsum_kind(e) not in rule.einsums:
                texts.append(f"{c.name} not meant ({einsum_kind(e)})")
                continue
            sizes, roles = e.sizes(), rank_roles(e)
            own = {
                name: name if name in sizes else roles.get(name, "") for name in ranks if name != ALL_OTHERS
            }
            for name in of_tensors:
                named = [p.tensor for p in e.tensors() if name == p.tensor]
                of_role = [p.tensor for p in e.tensors() if role(e, p.tensor) == name]
                own[name] = " ".join(dict.fromkeys(named or of_role))
            resolved = ", ".join(
                name if name == found else f"{name} = {found or 'none'}" for name, found in own.items()
            )
            texts.append(f"{c.name} {resolved}".rstrip())
        lines.append(f"{place}{f' at {rule.at.lower()}' * bool(rule.at)}: {'; '.join(texts)}")
    return lines


def _wide_gap(arch: Arch, workload: Workload, solution: Solution) -> str:
    """A sentence about an unfused solution that lies far above its bound: of energy, what of the gap is main
    memory's, what is moved on chip, what is static; of latency, how busy the bottleneck is. "" of other
    solutions, and of bounds that know more than `bounds.lower_bound`.
    """
    gap = solution.gap_to_bound
    if not WIDE_GAP < gap < inf or solution.schedule or solution.segments or arch.units:
        return ""
    costed, r, outer = costed_einsums(workload, solution), rates(arch), arch.levels[0].name
    of_bound, bound_pj, bound_cycles = Counter[str](), 0.0, 0.0
    for c, e in costed:
        n = needs(e, arch.word_bits)
        pj, cycles = lower_bound(n, r)
        bound_pj, bound_cycles = bound_pj + c.count * pj, bound_cycles + c.count * cycles
        of_bound[outer] += c.count * _compulsory_pj(arch, n)  # type: ignore[assignment]
        of_bound["static"] += c.count * r.leak_mw * cycles / arch.clock_ghz  # type: ignore[assignment]
    if bound_pj and isclose(gap, solution.energy_pj / bound_pj - 1, rel_tol=1e-6):
        parts = components(arch, solution)
        own = {outer: parts[0].dynamic_pj, "static": sum(one.static_pj for one in parts)}
        above = {name: pj - of_bound[name] for name, pj in own.items()}
        above["what moves on chip"] = solution.energy_pj - bound_pj - sum(above.values())
        shares = [
            f"{name} {units.quantity('share', pj / (solution.energy_pj - bound_pj))}"
            for name, pj in above.items()
        ]
        return (
            f"gap to bound {percent(gap)}: of the energy above it {', '.join(shares)}; the bound moves each "
            f"tensor once through {outer}, whatever fits; on chip one read serves all MAC units that share it"
        )
    if isclose(gap, solution.latency_cycles / bound_cycles - 1, rel_tol=1e-6):
        c = max((c for c, _ in costed), key=lambda c: c.count * c.latency_cycles)
        busy, names = dict(c.price.busy_cycles)[c.bottleneck], bottlenecks(c)
        of = f" of {c.name}" if len(costed) > 1 else ""
        return (
            f"gap to bound {percent(gap)}: the bound is the roofline, of operations and of each tensor once "
            f"through {outer}; {', '.join(names)}, the bottleneck{of}, works for "
            f"{units.quantity('share', busy / c.latency_cycles)} of its latency"
        )
    return ""


def _compulsory_pj(arch: Arch, n: Needs) -> float:
    """Energy in pJ of moving each tensor of an einsum once through main memory."""
    outer = arch.levels[0]
    return (
        0.0
        if outer.bypass
        else sum(
            one.elems
            * (one.bits or arch.word_bits)
            / outer.width_bits
            * (outer.write_pj if one.is_output else outer.read_pj)
            for one in n.operands
        )
    )


def _unused_memories(arch: Arch, workload: Workload, solution: Solution) -> str:
    """A sentence about memories that have area and move nothing; "" if there are none."""
    moved = Counter[str]()
    for c, e in costed_einsums(workload, solution):
        moved.update(moved_bytes(arch, e, c))
    areas = dict(zip(arch.components(), arch.areas_mm2(), strict=True))
    unused = [level.name for level in arch.levels if areas[level.name] and not moved[level.name]]
    if not unused or not any(moved.values()):
        return ""
    share = sum(areas[name] for name in unused) / arch.area_mm2()
    return (
        f"{', '.join(unused)} move{'s' * (len(unused) == 1)} nothing here; "
        f"{units.quantity('area_share', share)} of the area"
    )


def _narrowed_sums(arch: Arch, workload: Workload, solution: Solution) -> str:
    """A sentence about partial sums that return from a memory which has them narrower than another one does;
    "" if there are none. What a memory reads of a result, and does not pass on outwards, returns.
    """
    if not arch.narrows_or_widens():
        return ""
    returning: dict[tuple[str, str], list[str]] = {}
    for c, e in costed_einsums(workload, solution):
        elems = {(row.level, row.action): row.elems for row in c.counts if row.tensor == e.output.tensor}
        bits = [bits_at(level, e.output.tensor, e, arch) for level in arch.levels]
        wide = [
            one.name
            for one, width in zip(arch.levels, bits, strict=True)
            if width == max(bits)
            and one.bypass
            and "output" in one.may_keep
            and (one.name, "write") not in elems
        ]
        cure = f"; bypass: false at {wide[-1]} keeps them there" if wide else ""
        passed_on = 0.0
        for level, own_bits in zip(arch.levels, bits, strict=True):
            if own_bits < max(bits) and elems.get((level.name, "read"), 0) > passed_on:
                place = f"{level.name} in {own_bits} bits"
                returning.setdefault((place, cure), []).append(e.output.tensor)
            passed_on = elems.get((level.name, "write"), 0) or passed_on
    return "; ".join(
        f"partial sums of {', '.join(dict.fromkeys(tensors))} return from {place}, narrower than elsewhere: "
        f"nothing is said of their accuracy{cure}"
        for (place, cure), tensors in returning.items()
    )


def network(
    arch: Arch, workload: Workload, solution: Solution, lists_all: bool, plan: Schedule | None = None
) -> list[Table]:
    """Where the energy goes, and the unique einsums, those with most energy first. lists_all: all of them are
    listed; else as many as make up LISTED_SHARE of the energy. plan: as in `equal_names`.
    """
    tables_shown = [
        energy(arch, solution),
        *([segments(solution)] if solution.segments else []),
        *([scheme_counts(solution)] if solution.pruned else []),
    ]
    by_energy = sorted(
        zip(costed_einsums(workload, solution), equal_names(workload, solution, plan), strict=True),
        key=lambda row: -row[0][0].count * row[0][0].energy_pj,
    )
    rows = [
        (
            names_text(names),
            *(filter(None, place(arch, c).values())),
            c.count,
            c.count * c.energy_pj,
            c.count * c.energy_pj / (solution.energy_pj or 1),
            c.count * c.latency_cycles / arch.clock_ghz,
            ", ".join(bottlenecks(c)),
            _utilization(arch, c, e),
            ratios["share_of_peak"],
            _finite(c.gap_to_bound),
            ratios["macs_per_byte"],
            c.count * c.latency_cycles,
            round(needs(e, arch.word_bits).computed) * c.count,
            short_certificate(_proof(solution, c)),
        )
        for (c, e), names in by_energy
        for ratios in [_ratios(arch, e, c)]
    ]
    places = [*(["core"] if arch.cores() else []), *(["unit"] if arch.units else [])]
    shares = [c.count * c.energy_pj / (solution.energy_pj or 1) for (c, _), _ in by_energy]
    cumulative_share = list(accumulate(shares))
    listed_count = (
        len(rows)
        if lists_all or len(rows) <= LISTED_IN_FULL
        else max(
            1, 1 + next((i for i, share in enumerate(cumulative_share) if share >= LISTED_SHARE), len(rows))
        )
    )
    omitted = shares[listed_count:]
    more = units.counted(len(omitted), "more einsum")
    makes = f"make{'s' * (len(omitted) == 1)} the other {100 * sum(omitted):.0f} %"
    note = f"{more} {makes}; --einsum all lists them" if omitted else ""
    header = (
        "einsum",
        *places,
        "occurrences",
        "energy_pj",
        "share",
        "latency_ns",
        "bottleneck",
        "mac_utilization",
        "share_of_peak",
        "gap_to_bound",
        "macs_per_byte",
        "latency_cycles",
        "computes",
        "certificate",
    )
    tables_shown.append(Table("einsums", header, tuple(rows[:listed_count]), note))
    if any(c.host_copies is not None for c in solution.einsums):
        schedule_names = [c.mapping.non_nest_text.partition("\n")[0] or "a nest" for c in solution.einsums]
        copies = tuple(
            (c.name, c.host_copies, c.host_copy_elems, schedule)
            for c, schedule in zip(solution.einsums, schedule_names, strict=True)
        )
        copy_heads = ("einsum", "host_copies", "host_copy_elems", "schedule")
        tables_shown.append(Table("tiles cut by the host, per occurrence", copy_heads, copies))
    return tables_shown


SEGMENT_COLUMNS = (
    "segment",
    "einsums",
    "pipeline_tiles",
    "energy_pj",
    "latency_cycles",
    "initiation_interval_cycles",
    "slowest_stage",
    "on_chip",
    "peak_bytes",
)


def segments(solution: Solution) -> Table:
    """The segments of a schedule: einsums that are fused (->: under shared loops, one after the other) or
    pipelined (|: stages that run at once).
    """
    rows = tuple(tuple(row[name] for name in SEGMENT_COLUMNS) for row in segment_rows(solution))
    retained = [
        f"{'all' if one.shares() == '1' else one.shares()} of {one.tensor} is retained at {one.level}"
        for one in (solution.schedule.retained if solution.schedule else ())
    ]
    # the last two clauses, the proof and the gap to the bound, are in the totals
    assumptions = claim(solution.certificate).split("; ")[:-2]
    note = (
        "->: fused, under shared loops; |: pipelined, stages that run at once; peak: occupancy of one "
        "instance"
    )
    return Table("segments", SEGMENT_COLUMNS, rows, "; ".join([*assumptions, *retained, note]))


def scheme_counts(solution: Solution) -> Table:
    """Per segment the number of schemes: all, those that may fit, and those that the search solved. Segments
    with most schemes come first.
    """
    rows = sorted(solution.pruned, key=lambda row: -row.schemes)
    note = f"{len(rows)} segments in all" if len(rows) > LISTED_IN_FULL else ""
    return Table(
        "schemes of segments",
        ("einsums", "schemes", "valid", "solved"),
        tuple((" | ".join(row.einsums), row.schemes, row.valid, row.solved) for row in rows[:LISTED_IN_FULL]),
        note,
    )


def segment_rows(solution: Solution) -> list[dict[str, Any]]:
    """Rows of the table segments, for a schedule that is not unfused. Tensors of which a share is retained
    between segments are not listed here, but with the schedule (`schedule_row`).
    """
    return [
        {
            "segment": i,
            "einsums": (" | " if row.pipeline_tiles else " -> ").join(row.einsums),
            "occurrences": 1,
            "pipeline_tiles": row.pipeline_tiles or None,
            "energy_pj": row.energy_pj,
            "latency_cycles": row.latency_cycles,
            "initiation_interval_cycles": row.initiation_interval_cycles,
            "energy_steady_pj": row.energy_steady_pj,
            "slowest_stage": row.einsums[row.stage_cycles.index(max(row.stage_cycles))]
            if row.pipeline_tiles
            else None,
            "on_chip": _tensors_at_levels(row.on_chip),
            "peak_bytes": ", ".join(f"{level} {-(-bits // 8)} B" for level, bits in row.peak_bits) or None,
        }
        for i, row in enumerate(solution.segments, 1)
    ]


def schedule_row(solution: Solution) -> dict[str, Any]:
    """The row of the table schedules, for a schedule that is not unfused."""
    assert solution.schedule is not None
    schedule_segments = solution.schedule.segments
    whole_tensors = [(one.tensor, one.level) for one in on_chip(solution) if one.share in WHOLE_SHARES]
    retained = [f"{one.shares()} of {one.tensor} at {one.level}" for one in solution.schedule.retained]
    return {
        "weights": solution.schedule.weights,
        "segments": len(schedule_segments),
        "fused": sum(len(one.branches) > 1 and not one.pipelined for one in schedule_segments),
        "pipelined": sum(one.pipelined for one in schedule_segments),
        "on_chip": _tensors_at_levels(whole_tensors),
        "retained": "; ".join(retained) or None,
        "saved_share": solution.saved,
        "nest": str(solution.schedule),
        **(asdict(solution.memory) if solution.memory else {}),
    }


def _tensors_at_levels(tensors: Sequence[tuple[str, str]]) -> str | None:
    return ", ".join(f"{tensor} at {level}" for tensor, level in tensors) or None


def costed_einsums(workload: Workload, solution: Solution) -> list[tuple[EinsumCost, Einsum]]:
    """The cost of each unique einsum, paired with the einsum."""
    by_name = {e.name: e for e in workload.einsums}
    return [(c, by_name[c.name]) for c in solution.einsums]


def equal_names(
    workload: Workload, solution: Solution, plan: Schedule | None = None
) -> list[tuple[str, ...]]:
    """Returns for each cost of a solution the names of the einsums whose cost it is, its own first.

    plan: an unfused schedule that may give equal einsums different mappings
    """
    e_of, costs = {e.name: e for e in workload.einsums}, solution.einsums
    times_of = dict(zip(e_of, counts(workload), strict=True))
    schedule, of_cost = solution.schedule or plan, {c.name: [c.name] for c in costs}
    nests = {b.einsum: b.mapping for s in schedule.segments for b in s.branches} if schedule else {}
    for group in unique(workload):
        # costs of the group that are of more einsums than the one whose name they have
        shared = [c for c in costs if c.name in group.names and c.count > times_of[c.name]]
        for name in (name for name in group.names if shared and name not in of_cost):
            same_nest = (
                c
                for c in shared
                if name in nests
                and schedules.rename(nests[name], e_of[name]) == schedules.rename(c.mapping, e_of[c.name])
            )
            of_cost[next(same_nest, shared[0]).name].append(name)
    return [tuple(of_cost[c.name]) for c in costs]


def renamed(c: EinsumCost, e: Einsum, to: Einsum) -> EinsumCost:
    """Returns the cost of an einsum in the names of an equal one. A mapping that is no nest keeps its own."""
    if to is e or c.mapping.non_nest_text:
        return c
    name_of = {p.tensor: q.tensor for p, q in zip(e.tensors(), to.tensors(), strict=True)}

    def named(rows: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(replace(row, tensor=name_of.get(row.tensor, row.tensor)) for row in rows)

    return replace(
        c,
        name=to.name,
        mapping=schedules.rename(c.mapping, e, to),
        counts=named(c.counts),
        footprint=tuple((level, name_of.get(t, t), n) for level, t, n in c.footprint),
        retained=tuple((level, name_of.get(t, t), n) for level, t, n in c.retained),
        price=replace(c.price, parts=named(c.price.parts)),
        layout_traffic=named(c.layout_traffic),
        refilled=tuple((level, name_of.get(t, t)) for level, t in c.refilled),
    )


COMPONENT_COLUMNS = (
    *("component", "instances", "area_mm2", "area_share"),
    *("dynamic_pj", "static_pj", "energy_share"),
)


def energy(arch: Arch, solution: Solution) -> Table:
    """Area and energy per component of the machine: dynamic (moving and computing) and static (leakage,
    background power of a DRAM).
    """
    found, total_mm2, total_pj = components(arch, solution), arch.area_mm2() or 1, solution.energy_pj or 1
    rows = tuple(
        (
            one.name,
            one.instances,
            one.area_mm2,
            one.area_mm2 / total_mm2,
            one.dynamic_pj,
            one.static_pj,
            one.energy_pj / total_pj,
        )
        for one in found
    )
    return Table("area and energy by component", COMPONENT_COLUMNS, rows, _static_note(arch, found, total_pj))


def _static_note(arch: Arch, found: Sequence[Component], total_pj: float) -> str:
    """A sentence where static energy makes up at least LARGE_STATIC_SHARE of all; else empty."""
    static_share = sum(one.static_pj for one in found) / total_pj
    if static_share < LARGE_STATIC_SHARE:
        return ""
    mw, name = max(zip(arch.leaks_mw(), arch.components(), strict=True), key=lambda pair: pair[0])
    return (
        f"{100 * static_share:.1f} % of the energy is static: what {name} and the others draw while idle "
        f"({name}: {mw:.4g} mW). Only a shorter run or other components lower it, no mapping of the same "
        "latency does."
    )


def bottlenecks(cost: EinsumCost) -> list[str]:
    """The components that limit the latency: the busiest one, and those within a hundredth of its cycles."""
    max_cycles = max(cycles for _, cycles in cost.price.busy_cycles)
    busiest = [name for name, cycles in cost.price.busy_cycles if cycles >= BOTTLENECK_SHARE * max_cycles]
    return [cost.bottleneck, *(name for name in busiest if name != cost.bottleneck)]


def einsum(arch: Arch, e: Einsum, cost: EinsumCost) -> tuple[str, list[Table]]:
    """(nest or other schedule as text, tables): traffic with energies, footprints against capacities, busy
    cycles of every component.
    """
    ranks = ", ".join(f"{rank}={n}" for rank, n in e.extents)
    text = "\n".join(
        [
            f"{e.name}: {show(e)}\n  {ranks}\n",
            *([cost.strategy, ""] if cost.strategy else []),
            to_text(cost.mapping, e),
        ]
    )
    traffic = Table(
        "traffic per occurrence",
        ("level", "tensor", "action", "width_bits", "actions", "energy_pj", "share"),
        tuple(_traffic_rows(arch, cost)),
        "actions = elements * bits of an element / width in bits of an action.",
    )
    in_layouts = Table(
        "layouts per occurrence",
        LAYOUT_COLUMNS,
        tuple(_layout_rows(arch, e, cost)),
        "useful: share of the bytes moved; exact: counted, else estimated between bounds.",
    )
    footprint = Table(
        "footprint of one instance",
        ("level", "tensor", "elements", "buffers", "bytes", "capacity_bytes", "share_used"),
        tuple(_footprint_rows(arch, e, cost)),
        "buffers: 2 where a double-buffered level fills the tile more than once, else 1."
        + " Tensors of other einsums that are retained meanwhile: segments, peak." * bool(cost.retained),
    )
    busy = Table(
        "busy cycles",
        ("component", "busy_cycles", "share_of_latency", "gb_per_s", "bottleneck"),
        tuple(_busy_rows(arch, cost)),
        _idle_note(arch, cost),
    )
    return text, [traffic, *([in_layouts] if cost.layout_traffic else []), footprint, busy]


def _traffic_rows(arch: Arch, cost: EinsumCost) -> Iterator[tuple[Any, ...]]:
    """Yields the rows of "traffic per occurrence", the total last."""
    width = {level.name: level.width_bits for level in arch.levels}
    for part in cost.price.parts:
        yield (
            part.level,
            part.tensor,
            part.action,
            width.get(part.level),
            None if part.action == "leak" else part.actions,
            part.energy_pj,
            part.energy_pj / (cost.energy_pj or 1),
        )
    yield "total", "", "", None, None, cost.energy_pj, None


LAYOUT_COLUMNS = (
    "level",
    "tensor",
    "action",
    "layout",
    "useful_bytes",
    "moved_bytes",
    "useful",
    "runs",
    "rows_opened",
    "busiest_bank_words",
    "exact",
)


def layouts(arch: Arch, e: Einsum, cost: EinsumCost) -> list[dict[str, Any]]:
    """The layout of each tensor at each level, and the bytes that it moves there, as plain data."""
    return [
        dict(zip(LAYOUT_COLUMNS, row, strict=True)) for row in _layout_rows(arch, e, cost) if row[1] != "all"
    ]


def _layout_rows(arch: Arch, e: Einsum, cost: EinsumCost) -> Iterator[tuple[Any, ...]]:
    """Yields rows of LAYOUT_COLUMNS; a level with several of them also has their sum, as tensor "all"."""
    for level in arch.levels:
        level_traffic = [one for one in cost.layout_traffic if one.level == level.name]
        useful = [one.elems * bits_at(level, one.tensor, e, arch) / 8 for one in level_traffic]
        moved = [one.moved_bits.n / 8 for one in level_traffic]
        for one, useful_bytes, moved_bytes in zip(level_traffic, useful, moved, strict=True):
            yield (
                one.level,
                one.tensor,
                one.action,
                one.layout,
                useful_bytes,
                moved_bytes,
                useful_bytes / (moved_bytes or 1),
                one.runs,
                one.activations.n,
                one.conflict.n,
                "yes" if one.exact else "no",
            )
        if len(level_traffic) > 1:
            yield (
                level.name,
                "all",
                "",
                "",
                sum(useful),
                sum(moved),
                sum(useful) / (sum(moved) or 1),
                None,
                None,
                None,
                "",
            )


def conversions(found: Sequence[Conversion], objective: str) -> Table:
    """Copies of tensors in other layouts, and how much more the workload costs without each of them."""
    saved_column = {"energy": "saved_pj", "latency": "saved_cycles", "edp": "saved_edp"}[objective]
    rows = tuple(
        (one.tensor, one.layout, one.to, ", ".join(one.readers), one.energy_pj, one.latency_cycles, one.saved)
        for one in found
    )
    return Table(
        "conversions",
        ("tensor", "layout", "to", "readers", "energy_pj", "latency_cycles", saved_column),
        rows,
        "saved: how much more the workload costs without the conversion.",
    )


def conversion_rows(solution: Solution) -> list[dict[str, Any]]:
    """Rows of the table conversions."""
    return [
        {
            "position": i,
            "saved_cost": one.saved,
            **{name: value for name, value in asdict(one).items() if name != "saved"},
            "readers": ", ".join(one.readers),
        }
        for i, one in enumerate(solution.conversions, 1)
    ]


def held_bytes(arch: Arch, e: Einsum, cost: EinsumCost) -> list[tuple[str, str, Any, int, float]]:
    """Returns what one instance of a level holds: (level, tensor, elements of a tile, buffers, bytes of all
    buffers); a tile that is refilled in a double-buffered level has two. What the schedule retains on chip
    stands where it is retained; at the outermost level, where the einsum moves none of it, it does not.
    """
    levels, outer = {level.name: level for level in arch.levels}, arch.levels[0].name
    retained = {tensor for _, tensor, _ in cost.retained}
    moved = {(row.level, row.tensor) for row in cost.counts if row.elems}
    tiles = [row for row in cost.footprint if row[0] != outer or row[1] not in retained or row[:2] in moved]
    rows = []
    for row, (name, tensor, elems) in enumerate([*tiles, *cost.retained]):
        is_refilled = row < len(tiles) and (name, tensor) in cost.refilled
        buffers = 2 if levels[name].double_buffer and is_refilled else 1
        tile_bytes = float(elems * bits_at(levels[name], tensor, e, arch) / 8)
        rows.append((name, tensor, elems, buffers, buffers * tile_bytes))
    return rows


def _footprint_rows(arch: Arch, e: Einsum, cost: EinsumCost) -> Iterator[tuple[Any, ...]]:
    """Yields the rows of "footprint of one instance"; a bounded level also has the sum of its tiles, as
    tensor "all".
    """
    held = held_bytes(arch, e, cost)
    for level in arch.levels:
        total_bytes = 0.0
        for name, tensor, elems, buffers, tile_bytes in held:
            if name == level.name:
                total_bytes += tile_bytes
                elements = elems if isinstance(elems, int) else float(elems)
                yield level.name, tensor, elements, buffers, tile_bytes, None, None
        if level.capacity_bits is not None:
            share = 8 * total_bytes / level.capacity_bits
            yield level.name, "all", None, None, total_bytes, level.capacity_bits / 8, share


def _busy_rows(arch: Arch, cost: EinsumCost) -> Iterator[tuple[Any, ...]]:
    """Yields the rows of "busy cycles"; gb_per_s: of all instances of a level, over the latency."""
    latency = cost.latency_cycles or 1
    bytes_per_action = {level.name: level.width_bits / 8 for level in arch.levels}
    for name, cycles in cost.price.busy_cycles:
        moved = sum(
            part.actions
            for part in cost.price.parts
            if part.level == name and part.action in ("read", "write")
        )
        rate = (
            moved * bytes_per_action[name] / (latency / arch.clock_ghz) if name in bytes_per_action else None
        )
        yield name, cycles, cycles / latency, rate, "yes" if name in bottlenecks(cost) else ""


def stall_cycles(arch: Arch, cost: EinsumCost) -> dict[str, float]:
    """Cycles in which nothing inside a level runs, for its tiles are filled or drained, by level, longest
    first: ramp-up and ramp-down, and between tiles of a level that is not double-buffered.

    Empty where the latency is the largest busy time. Ports of the level or its parent may be busy meanwhile.
    """
    found = {
        level.name: times.first + times.last + (times.returning if times.double else times.between)
        for level, times in zip(arch.unit(cost.mapping.unit).levels, cost.price.times, strict=False)
    }
    return {name: cycles for name, cycles in sorted(found.items(), key=lambda item: -item[1]) if cycles}


def _idle_note(arch: Arch, cost: EinsumCost) -> str:
    """A sentence where even the busiest component is idle for a part of the latency; else empty."""
    busiest, cycles = max(cost.price.busy_cycles, key=lambda item: item[1])
    if cycles >= BUSY_SHARE * cost.latency_cycles:
        return ""
    idle = cost.latency_cycles - cycles
    double = {level.name for level in arch.levels if level.double_buffer}
    waits = {
        level.name: first_word_cycles(level, arch)
        for level in arch.levels
        if ("-", level.name, "wait") in {row.key for row in cost.counts}
    }
    stalls = [
        f"{name} {units.quantity('cycles', n)}{' (ramp-up and ramp-down)' if name in double else ''}"
        for name, n in stall_cycles(arch, cost).items()
    ]
    causes = ["fills and drains that no work overlaps"] if stalls or not waits else []
    causes += [f"the first word of {name} ({units.quantity('cycles', n)})" for name, n in waits.items()]
    found = (
        f"{busiest}, the busiest, is idle for {100 * idle / cost.latency_cycles:.3g} % of the latency "
        f"({units.quantity('cycles', idle)}): {', '.join(causes)}"
    )
    if not stalls:
        return f"{found}."
    advice = (
        ""
        if double.issuperset(stall_cycles(arch, cost))
        else "; memory.double_buffer overlaps those between tiles"
    )
    meanwhile = "memories may be busy meanwhile"
    return f"{found}. Work inside waits for those of {', '.join(stalls)} ({meanwhile}){advice}."


SMALL_BUFFER_NOTE = "cannot read each operand only once (the buffer is too small)"
UNKNOWN_NOTE = "; no bound is known for the rereads of {} of them"
AS_PUBLISHED = (
    ", results of up to 1,024 words cost no traffic, and an operand's space is released once it was read "
    "(as published)"
)
# how the schedules run among which `Optimal` is the least (`gogeta/retention.py`)
STEP_BY_STEP = (
    " Step by step: each phase goes through one rank of each operation, its steps in any order. Once its "
    "step is over, a word that does not stay gives its place to any other; words that all steps need keep "
    "theirs until the phase ends. What one step works on takes a place of its own, but for a word of each "
    "tensor. Loops tiled over several ranks may move less."
)
# names of arXiv 2303.11499, table 3; Optimal: the lowest traffic over all orders of operations that were
# tried. The third entry is one row for two names (TrafficReport.gogeta)
NEARLY_WHOLE = 1 - 1e-6  # a tensor of which at least so much is retained is said to be whole
CONFIGURATIONS = ("SEQ-Flex", "SEQ-Overflow", "GOGETA-df, GOGETA-map", "Ideal", "Optimal")


def read_in_parts(operations: Sequence[Einsum]) -> list[str]:
    """Input tensors (no operation makes them) of which operations read different elements: different columns,
    or one operation a part and another one the whole tensor.
    """
    made = {e.output.tensor for e in operations}
    ranges_of = defaultdict[str, set[tuple[tuple[int, int], ...]]](set)
    for e in operations:
        for p in e.inputs:
            ranges_of[p.tensor].add(tuple(index_ranges(p, e)))
    return sorted(t for t, ranges in ranges_of.items() if len(ranges) > 1 and t not in made)


def _optimal_claim(report: TrafficReport) -> str:
    """What is proven of `Optimal`: nothing, that it is the optimum, or how far it is above the lower bound;
    and among which schedules: of one order, or of all. Where some operation cannot read each operand once,
    the optimum of those that do is a lower bound only, and is called that. Unless it moves no more than
    inputs and outputs, it is one of phases that run STEP_BY_STEP.
    """
    if parts := read_in_parts(report.operations):
        return (
            f"not proven: operations read different parts of {parts[0]}, which the access list takes for the "
            "same words"
        )
    best = report.optimal
    is_optimum = best.cost - best.bound <= 1e-9 * best.cost
    gap_text = (
        "" if is_optimum else f"at most {100 * (best.cost / best.bound - 1):.2g} % above the lower bound"
    )
    tried = f" (the best of {report.orders_tried} tried)" if report.orders_tried > 1 else ""
    orders = (
        "all orders and pipelines of operations" if report.is_minimum else f"its order of operations{tried}"
    )
    steps = ", step by step" if _is_step_by_step(report) else ""
    if report.overfull_operations:
        return f"{gap_text or 'lower bound'} for {orders}, each operand read once{steps}"
    return f"{gap_text or 'optimum'} for {orders}{steps}"


def _is_step_by_step(report: TrafficReport) -> bool:
    """Whether `Optimal` is proven among phases that run STEP_BY_STEP only: the looser list of the publication
    has no phases, and none moves less than inputs and outputs once.
    """
    return not report.published and report.optimal.cost > report.ideal * (1 + 1e-9)


def _gap_of_schedule(report: TrafficReport) -> str:
    excess = report.schedule_words / report.bound() - 1
    return f"{100 * excess:.3g} %" if excess >= 0 else "none: it moves less, in another order of operations"


def configuration_words(report: TrafficReport) -> tuple[float, ...]:
    """Returns the main-memory words of each of CONFIGURATIONS."""
    policies = report.seq_overflow.words(), report.gogeta.words()
    return report.seq_flex, *policies, report.ideal, report.optimal.cost


def _slices(arch: Arch) -> str:
    """Returns how many instances the capacity is of; "" if of one."""
    bits, count = arch.levels[1].capacity_bits, arch.instances(1)
    return f": {count} slices of {units.quantity('bytes', (bits or 0) / 8)}" if count > 1 else ""


def phase_text(report: TrafficReport, phase: Phase) -> str:
    """Returns a phase as text, such as "S -> D": operations that run at once beside |, stages before ->."""
    names = [[report.operations[v].name.partition("@")[0] for v in stage] for stage in phase.stages]
    return " -> ".join(" | ".join(stage) for stage in names)


def triangular_solves(arch: Arch, operations: Sequence[Einsum]) -> str:
    """Returns what the levels of triangular solves leave of the MAC units, "" if there are none.

    Levels run one after the other, each at least a cycle, so p operations in d of them keep at most p / d
    units busy in the mean, however wide each level is.
    """
    solves = [e for e in operations if e.levels() > 1]
    if not solves:
        return ""
    units, depth = arch.instances(len(arch.levels)), max(e.levels() for e in solves)
    busy = min(
        min(1.0, e.points() * prod(p.density for p in e.inputs) / (e.levels() * units)) for e in solves
    )
    return (
        f"{len(solves)} of {len(operations)} operations, {depth} levels of rows, one "
        f"after another: at most {100 * busy:.3g} % of {units} MAC units busy there; no latency counts this"
    )


WHY_NOTE = (
    "why: words that a retained word saves (a read each time, and its write if it always stays), and what "
    "its place would save for other tensors (shadow prices of the linear program); of a tensor that stays "
    "until some phases only, each share and what its place would save by then."
)


def retention_cause(spans: Sequence[RetainedSpan], phases: Sequence[str]) -> str:
    """Returns why a tensor is retained, or is not. spans: from each phase that uses it to the next that reads
    it, in one period; phases: their texts, in order.
    """
    shares = [abs(span.words) / span.size for span in spans]
    saved, price = len(spans) + spans[0].spills, sum(span.price for span in spans)
    if min(shares) >= NEARLY_WHOLE:
        return (
            f"saves {saved}, {f'its place would save {price:.3g}' if price > 1e-6 else 'and there is room'}"
        )
    if max(shares) <= 1 - NEARLY_WHOLE:
        return f"would save {saved}, its place saves {price:.3g}"
    if max(shares) - min(shares) < 1 - NEARLY_WHOLE:
        return f"what is left: saves {saved}, as its place would"
    parts = [
        f"{100 * round(share, 4):.3g} % until {phases[span.last % len(phases)]} ({span.price:.3g})"
        for span, share in zip(spans, shares, strict=True)
    ]
    return f"{', '.join(parts)}"


def residency(arch: Arch, workload: Workload, report: TrafficReport) -> tuple[dict[str, Any], list[Table]]:
    """Traffic between operations: (facts, tables); the tables are main-memory traffic per configuration,
    phases in order, and on-chip retention.
    """
    word_bytes, level, best = arch.word_bits / 8, arch.levels[1], report.optimal
    period_note = f" (one period of the loop, which has {max(workload.repeats)})" if workload.repeats else ""
    operation_count = sum(len(stage) for phase in report.order for stage in phase.stages)
    patterns = Counter(e.pattern for e in report.edges)
    facts = {
        "buffer": f"{level.name}, {report.capacity_words} words of {arch.word_bits} bits{_slices(arch)}",
        "Optimal": _optimal_claim(report),
        "one word more of buffer saves": f"{best.saved_per_word:.4g} words",
        "GOGETA in its best order": units.quantity("bytes", report.best_policy.words() * word_bytes),
        "edges": ", ".join(f"{n} {pattern}" for pattern, n in patterns.most_common()) or "none",
    }
    if solves := triangular_solves(arch, report.operations[:operation_count]):
        facts["triangular solves"] = solves
    if report.overfull_operations:
        unknown = UNKNOWN_NOTE.format(report.rereads.unknown) if report.rereads.unknown else ""
        facts["operations"] = (
            f"{report.overfull_operations} of {operation_count} {SMALL_BUFFER_NOTE}{unknown}"
        )
        facts |= (
            {"gap of the schedule to the lower bound": _gap_of_schedule(report)}
            if report.schedule_words
            else {}
        )
    rows = tuple(
        (name, n * word_bytes, report.seq_flex / max(n, 1), n / max(best.cost, 1) - 1)
        for name, n in zip(CONFIGURATIONS, configuration_words(report), strict=True)
    )
    if report.overfull_operations:
        bound = report.bound() if report.rereads.words else 0.0
        bounds = {"Lower bound with rereads": bound, "Optimal, as a schedule": report.schedule_words}
        rows += tuple(
            (name, n * word_bytes, report.seq_flex / n, n / max(best.cost, 1) - 1)
            for name, n in bounds.items()
            if n
        )
    phases = tuple((phase_text(report, phase), phase.resident_words * word_bytes) for phase in report.order)
    spans_of: dict[str, list[RetainedSpan]] = defaultdict(list)
    for span in best.spans:
        spans_of[span.tensor.partition("@")[0]].append(span)
    phase_names = [name for name, _ in phases]
    retention_rows = tuple(
        (
            name,
            spans[0].size * word_bytes,
            sum(span.size for span in spans) * word_bytes,
            sum(span.words for span in spans) / sum(span.size for span in spans),
            *(() if report.published else (retention_cause(spans, phase_names),)),
        )
        for name, spans in sorted(spans_of.items(), key=lambda item: -sum(span.words for span in item[1]))
    )
    return facts, [
        Table(
            "main memory, traffic between operations",
            ("configuration", "dram_bytes", "times_less", "gap_to_optimal"),
            rows,
            f"Every operation reads each operand once{AS_PUBLISHED if report.published else ''}; what "
            f"it moves within itself is not counted.{STEP_BY_STEP if _is_step_by_step(report) else ''}",
        ),
        Table(
            f"phases{period_note}, in the order of Optimal",
            ("operations", "held_bytes"),
            phases,
            "->: pipelined, stage after stage; |: stages that run at once; held: tensors that "
            "every pipeline tile needs whole (as weights of later stages), and what one works on, on chip "
            "while the phase runs.",
        ),
        Table(
            f"on-chip retention{period_note}",
            (
                "tensor",
                "size_bytes",
                "read_again_bytes",
                "share_on_chip",
                *(() if report.published else ("why",)),
            ),
            retention_rows,
            "" if report.published else WHY_NOTE,
        ),
    ]
