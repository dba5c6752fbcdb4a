"""SMAUG's tiling on smv beside the best mapping: python -m bench.smaug [--budget NODES] [--networks a,b].

All convolutions and inner products of the ONNX networks. Per layer energy and latency over their floors: the optimal mapping of the
ragged space where the search proves it within its budget of visited nodes, else the lower bound (dse/sim/bounds.py). Layers whose schedule lies
outside the nest space, or that SMAUG cannot tile, say why. Then the time to tile one operator.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import exp, log
from random import Random
from statistics import median

from dse.dataflow.optimal import solved
from dse.nest import Infeasible
from dse.sim import bounds
from dse.sim.evaluate import Problem
from dse.tiling.factor import unit
from dse.tiling.mapper import host_copies, plan, smaug
from dse.tiling.reading import read
from dse.tiling.smaug import tile
from hw import machine
from hw.arch import Arch
from workloads import catalog
from workloads.einsum import Einsum, show
from workloads.graph import unique


@dataclass(frozen=True, slots=True)
class Line:
    """One layer: ratios of energy and latency to their floor (0: not tiled), which floor, why it is no nest, copies of the host."""

    network: str
    layer: str
    energy: float
    latency: float
    floor: str
    note: str
    copies: int = 0


def line(network: str, e: Einsum, arch: Arch, budget: int) -> Line:
    problem = Problem(arch, e, "energy")
    found, priced = plan(e, arch), smaug(problem, Random(0))
    if isinstance(found, Infeasible) or isinstance(priced, Infeasible):
        return Line(network, show(e), 0.0, 0.0, "-", str(found if isinstance(found, Infeasible) else priced))
    energy, proven = _floor(problem, bounds.energy_pj(e, arch), budget)
    cycles, also = _floor(replace(problem, objective="latency"), bounds.latency_cycles(e, arch), budget)
    ratios = priced[0].energy_pj / energy, priced[0].latency_cycles / cycles
    if not found.outside and min(ratios) < 1 - 1e-9:
        raise ValueError(f"{network} {e.name}: SMAUG is below the floor: {ratios}\n{found.mapping}")
    made = host_copies(found)
    return Line(network, show(e), *ratios, "optimum" if proven and also else "bound", found.outside, sum(c.number for c in made.values()))


def _floor(problem: Problem, bound: float, budget: int) -> tuple[float, bool]:
    """The optimum if it is proven, else the bound."""
    if not budget:
        return bound, False
    found = solved(problem, "ragged", budget=budget)
    if isinstance(found, Infeasible) or not found[0].certificate:
        return bound, False
    return found[0].energy_pj if problem.objective == "energy" else found[0].latency_cycles, True


def table(lines: list[Line]) -> list[str]:
    """Markdown: per network the geometric means over layers inside and outside the nest space, and what cannot be tiled."""
    rows = ["| network | layers | inside | energy / floor: mean, max | latency / floor: mean, max | outside | energy, latency | not tiled | host copies |",
            "|---|---|---|---|---|---|---|---|---|"]
    for network in dict.fromkeys(ln.network for ln in lines):
        mine = [ln for ln in lines if ln.network == network]
        tiled = [ln for ln in mine if ln.energy]
        inside, outside = [ln for ln in tiled if not ln.note], [ln for ln in tiled if ln.note]
        shown = [_mean(inside, lambda ln: ln.energy), _mean(inside, lambda ln: ln.latency), _mean(outside, lambda ln: ln.energy),
                 _mean(outside, lambda ln: ln.latency)]
        rows.append(f"| {network} | {len(mine)} | {len(inside)} | {shown[0]} | {shown[1]} | {len(outside)} | {shown[2]}; {shown[3]} | "
                    f"{len(mine) - len(tiled)} | {sum(ln.copies for ln in tiled)} |")
    return rows


def _mean(lines: list[Line], ratio: Callable[[Line], float]) -> str:
    found = [ratio(ln) for ln in lines]
    return f"{exp(sum(map(log, found)) / len(found)):.2f}, {max(found):.2f}" if found else "-"


def speed(layers: list[Einsum], arch: Arch) -> tuple[float, float, float]:
    """CPU milliseconds: median and largest to tile one operator, median to read, tile, schedule and price one einsum."""
    tiled, whole = [], []
    u = unit(arch, arch.word_bits)
    assert u is not None
    for e in layers:
        reading = read(e)
        if isinstance(reading, Infeasible):
            continue
        start = time.process_time()
        tile(reading.operator, u)
        between = time.process_time()
        smaug(Problem(arch, e, "energy"), Random(0))
        tiled.append(1e3 * (between - start))
        whole.append(1e3 * (time.process_time() - between))
    return median(tiled), max(tiled), median(whole)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", type=int, default=0, help="nodes that the optimal mapper may visit per layer and objective; 0: lower bounds only")
    parser.add_argument("--networks", default=",".join(catalog.MODELS))
    parser.add_argument("--layers", action="store_true", help="print every layer")
    given = parser.parse_args()
    arch = machine.arch(machine.load("smv"))
    layers = {name: [u.einsum for u in unique(catalog.load(name)) if u.einsum.kind == "mac"] for name in given.networks.split(",")}
    lines = []
    for name, einsums in layers.items():
        for e in einsums:
            lines.append(line(name, e, arch, given.budget))
            if given.layers:
                ln = lines[-1]
                print(f"{ln.network:13} {ln.layer:60.60} {ln.energy:6.2f} {ln.latency:6.2f} {ln.floor:8} {ln.copies:8} {ln.note}", flush=True)
    print("\n".join(table(lines)))
    print(f"floors: {dict(Counter(ln.floor for ln in lines))}")
    for note, n in Counter(_short(ln) for ln in lines if ln.note).items():
        print(f"{n:4} {note}")
    middle, largest, whole = speed([e for einsums in layers.values() for e in einsums], arch)
    print(f"tiling one operator: {middle:.2f} ms CPU median, {largest:.2f} ms largest; with schedule and price {whole:.2f} ms median")


def _short(ln: Line) -> str:
    if not ln.energy:
        return f"not tiled: {ln.network} {ln.note}"
    return f"outside the nest space: {'the input with its padding would not fit' if 'would need' in ln.note else ln.note}"


if __name__ == "__main__":
    main()
