"""A solution as values to print: totals, einsums, and one einsum's nest, traffic, footprints and what binds it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Any

from dse.nest import Loop, to_data
from dse.sim.cost import bits_of
from dse.sim.evaluate import EinsumCost, Solution
from hw.arch import Arch
from workloads.einsum import Einsum, show
from workloads.graph import Workload, unique

SPACE = "single einsums in sequence, weights streamed"
EINSUMS = ("einsum", "runs", "operations", "energy_pj", "latency_cycles", "bound_by", "lanes", "gap_in_space", "gap_to_bound", "certificate")
FAR = 0.1  # gaps above say what may help


@dataclass(frozen=True, slots=True)
class Table:
    """Rows to print under a title; units stand in the header. Numbers are right-aligned by who prints them."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


def totals(arch: Arch, solution: Solution) -> dict[str, Any]:
    """The metrics of a solved workload by name, units at the end of the names."""
    ns = solution.latency_cycles / arch.clock_ghz
    return {"energy_pj": solution.energy_pj, "latency_cycles": solution.latency_cycles, "latency_ns": ns, "steady_cycles": solution.steady_cycles,
            "edp_pj_ns": solution.energy_pj * ns, "area_mm2": arch.area_mm2(), "status": "ok", "gap_in_space": _known(solution.gap_in_space),
            "gap_to_bound": _known(solution.gap_to_bound), "certificate": solution.certificate, "space": SPACE}


def _known(gap: float) -> float | None:
    """JSON knows no infinities: where the bound is 0, nothing is known."""
    return gap if gap < inf else None


def lanes_used(c: EinsumCost, e: Einsum) -> int:
    """Lanes that work, of all fan-outs; 0: no nest says."""
    if c.mapping.outside:
        return 0
    used, left = 1, e.sizes()
    for node in c.mapping.nodes:
        if isinstance(node, Loop):
            used *= -(-left[node.rank] // node.tile) if node.over else 1
            left[node.rank] = node.tile
    return used


def helps(arch: Arch, workload: Workload, solution: Solution) -> str:
    """What may bring an answer nearer to its bound, if it is more than a tenth above."""
    if solution.gap_to_bound <= FAR:
        return ""
    if not all(c.proven for c in solution.einsums):
        return "not all is proven: --set solver.mapper=optimal searches exactly, smaller or rounder extents are proven sooner"
    idle = [c.name for c, group in zip(solution.einsums, unique(workload), strict=True) if lanes_used(c, group.einsum) < arch.instances(len(arch.levels))]
    if idle and any(c.proven.startswith("perfect") for c in solution.einsums):
        return f"lanes stand idle in {idle[0]}{f' and {len(idle) - 1} more' if len(idle) > 1 else ''}: --set solver.tiles=divisor takes ragged lanes too"
    return "proven in its space: the bound counts what must move once, and knows no capacity"


def document(arch: Arch, workload: Workload, solution: Solution) -> dict[str, Any]:
    """What `dse map --format json` prints."""
    einsums = [{"name": c.name, "count": c.count, "energy_pj": c.energy_pj, "latency_cycles": c.latency_cycles, "bound_by": c.bound_by,
                "gap_in_space": _known(c.gap_in_space), "gap_to_bound": _known(c.gap_to_bound), "certificate": c.certificate,
                "lanes": lanes_used(c, group.einsum), "mapping": str(c.mapping), "host_copies": c.host_copies, "host_copy_elems": c.host_copy_elems}
               for c, group in zip(solution.einsums, unique(workload), strict=True)]
    return {**totals(arch, solution), "einsums": einsums}


def schedule(solution: Solution) -> dict[str, Any]:
    """Mappings by einsum name as plain data: the YAML that `dse simulate` reads; of a schedule that is no nest, which it refuses, the text."""
    return {c.name: c.mapping.outside or to_data(c.mapping) for c in solution.einsums}


def network(arch: Arch, workload: Workload, solution: Solution) -> list[Table]:
    """Totals and the table of unique einsums."""
    every = arch.instances(len(arch.levels))
    rows = tuple((c.name, c.count, group.einsum.points() * c.count, c.count * c.energy_pj, c.count * c.latency_cycles, c.bound_by,
                  f"{lanes_used(c, group.einsum) or '-'} of {every}", c.gap_in_space, c.gap_to_bound, c.certificate.partition(";")[0])
                 for c, group in zip(solution.einsums, unique(workload), strict=True))
    facts = list(totals(arch, solution).items())
    if hint := helps(arch, workload, solution):
        facts.append(("what may help", hint))
    if workload.folded:
        facts.append(("rides on producers (fuse_elementwise)", f"{len(workload.folded)} operators"))
    if workload.moved:
        facts.append(("counted as data movement", ", ".join(workload.moved)))
    found = [Table(f"{workload.name} on {arch.name}", ("metric", "value"), tuple(facts)),
             Table("einsums", EINSUMS, rows)]
    if any(c.host_copies is not None for c in solution.einsums):
        found.append(Table("tiles cut by the host, of one run", ("einsum", "host_copies", "host_copy_elems", "schedule"),
                           tuple((c.name, c.host_copies, c.host_copy_elems, c.mapping.outside.partition("\n")[0] or "a nest") for c in solution.einsums)))
    return found


def einsum(arch: Arch, e: Einsum, cost: EinsumCost) -> tuple[str, list[Table]]:
    """(nest or other schedule as text, tables): traffic with energies, footprints against capacities, busy cycles of every component."""
    ranks = ", ".join(f"{rank}={n}" for rank, n in e.extents)
    text = "\n".join([f"{e.name}: {show(e)}\n  {ranks}\n", *([cost.strategy, ""] if cost.strategy else []), str(cost.mapping)])
    return text, [
        Table("traffic of one run", ("level", "tensor", "action", "actions", "energy_pj", "share"), tuple(_traffic(cost))),
        Table("footprint of one instance", ("level", "tensor", "elements", "bytes", "capacity_bytes", "used"), tuple(_held(arch, e, cost))),
        Table("busy cycles", ("component", "cycles", "of the latency"), tuple(_busy(cost))),
    ]


def _traffic(cost: EinsumCost) -> Iterator[tuple[Any, ...]]:
    for part in cost.price.parts:
        yield part.level, part.tensor, part.action, part.actions, part.energy_pj, f"{100 * part.energy_pj / (cost.energy_pj or 1):.1f} %"
    yield "total", "", "", "", cost.energy_pj, ""


def _held(arch: Arch, e: Einsum, cost: EinsumCost) -> Iterator[tuple[Any, ...]]:
    bits = bits_of(e, arch)
    for level in arch.levels:
        whole = 0.0
        for name, tensor, elems in cost.footprint:
            if name == level.name:
                held = elems * bits[tensor] / 8
                whole += held
                yield level.name, tensor, elems, held, "", ""
        if level.capacity_bits is not None:
            yield level.name, "all", "", whole, level.capacity_bits / 8, f"{800 * whole / level.capacity_bits:.1f} %"


def _busy(cost: EinsumCost) -> Iterator[tuple[Any, ...]]:
    for name, cycles in cost.price.busy_cycles:
        binds = ", binds" if name == cost.bound_by else ""
        yield name, cycles, f"{100 * cycles / (cost.latency_cycles or 1):.1f} %{binds}"
