"""SMAUG's tiling on smv beside the best mapping: python -m bench.smaug [--budget NODES] [--networks a,b]
[--most POINTS] [--workers N] [--layers].

All convolutions and inner products of the ONNX networks. Per layer energy and latency over the optimum of the
ragged space (temporal tiles too, nodes of the scratchpads in any order), each found and proven by a search of
its own (dse/mapper/exact/ragged.py); where a search passes its budget of visited nodes, over the lower bound
(dse/sim/einsum/bounds.py). A schedule that is no nest may lie below the optimum of nests, not below the
bound. Exit 1 if a nest is below its floor. Then the time to tile one operator.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from math import exp, log
from multiprocessing import get_context
from random import Random
from statistics import median

from dse.mapper.exact.ragged import BUDGET, solve_ragged
from dse.mapper.smaug.factor import unit
from dse.mapper.smaug.mapper import smaug
from dse.mapper.smaug.reading import read
from dse.mapper.smaug.smaug import tile
from dse.mapping.nest import Infeasible
from dse.sim.einsum import bounds
from dse.sim.einsum.evaluate import EinsumCost, Problem
from hw import machine
from hw.arch import Arch
from workloads import catalog
from workloads.einsum import Einsum, canonical_key, show
from workloads.graph import unique

CLOSE = 1e-9  # ratios that miss 1 by less are 1
HEADER = (
    "| network | layers | nests | energy: mean, worst | latency: mean, worst | not nests | energy: mean, "
    "worst | latency: mean, worst | not tiled | floors proven | host copies |"
)


@dataclass(frozen=True, slots=True)
class Line:
    """One layer: ratios of energy and latency to their floors (0: not tiled), how many of the two are proven
    optima, why it is no nest or not tiled.
    """

    network: str
    layer: str
    energy: float
    latency: float
    proven: int
    why: str
    copies: int = 0


# by layer and objective: the optimum if it is proven, else the lower bound, and which
Floors = dict[tuple[str, str], tuple[float, bool]]


def tiled_by_smaug(e: Einsum, arch: Arch) -> list[EinsumCost] | Infeasible:
    return smaug(Problem(arch, e, "energy"), Random(0), host_copies_cost=False)


def line(network: str, e: Einsum, arch: Arch, floors: Floors) -> Line:
    found = tiled_by_smaug(e, arch)
    if isinstance(found, Infeasible):
        return Line(network, show(e), 0.0, 0.0, 0, str(found))
    (energy, proven), (cycles, also) = floors[canonical_key(e), "energy"], floors[canonical_key(e), "latency"]
    why, _, _ = found[0].mapping.non_nest_text.partition("\n")
    return Line(
        network,
        show(e),
        found[0].energy_pj / energy,
        found[0].latency_cycles / cycles,
        proven + also,
        why,
        found[0].host_copies or 0,
    )


def searched(layers: Iterable[Einsum], arch: Arch, budget: int, workers: int) -> Iterator[tuple[str, Floors]]:
    """Layer by layer in their order the floors of those that SMAUG tiles, layers that are alike once; a
    process each gives its memory back.
    """
    unlike = {canonical_key(e): e for e in layers}
    tiled = {key: e for key, e in unlike.items() if not isinstance(tiled_by_smaug(e, arch), Infeasible)}
    tasks = [(key, Problem(arch, e, "energy"), budget) for key, e in tiled.items()]
    if workers < 2:
        yield from map(_floors, tasks)
        return
    with ProcessPoolExecutor(workers, get_context("spawn"), max_tasks_per_child=1) as pool:
        yield from pool.map(_floors, tasks)


def _floors(task: tuple[str, Problem, int]) -> tuple[str, Floors]:
    key, problem, budget = task
    return key, {
        (key, objective): _floor(replace(problem, objective=objective), budget)
        for objective in ("energy", "latency")
    }


def _floor(problem: Problem, budget: int) -> tuple[float, bool]:
    by_energy = problem.objective == "energy"
    found = solve_ragged(problem, budget, ties=False) if budget else []
    if found and not isinstance(found, Infeasible) and found[0].proven:
        return found[0].energy_pj if by_energy else found[0].latency_cycles, True
    return (bounds.energy_pj if by_energy else bounds.latency_cycles)(problem.einsum, problem.arch), False


def table(lines: list[Line]) -> Iterator[str]:
    """Markdown, a row per network: geometric means and worst ratios over nests and over other schedules, and
    what cannot be tiled.
    """
    yield HEADER
    yield "|---" * HEADER.count(" | ") + "|---|"
    for network in dict.fromkeys(ln.network for ln in lines):
        mine = [ln for ln in lines if ln.network == network]
        tiled = [ln for ln in mine if ln.energy]
        nests, others = [ln for ln in tiled if not ln.why], [ln for ln in tiled if ln.why]
        cells = (
            network,
            len(mine),
            len(nests),
            _mean(nests, lambda ln: ln.energy),
            _mean(nests, lambda ln: ln.latency),
            len(others),
            _mean(others, lambda ln: ln.energy),
            _mean(others, lambda ln: ln.latency),
            len(mine) - len(tiled),
            f"{sum(ln.proven for ln in tiled)} of {2 * len(tiled)}",
            sum(ln.copies for ln in tiled),
        )
        yield f"| {' | '.join(map(str, cells))} |"


def _mean(lines: list[Line], ratio: Callable[[Line], float]) -> str:
    found = [ratio(ln) for ln in lines]
    return f"{exp(sum(map(log, found)) / len(found)):.2f}, {max(found):.2f}" if found else "-"


def below(lines: list[Line]) -> list[Line]:
    """Nests that cost less than their floor: then one of the two is wrong."""
    return [ln for ln in lines if ln.energy and not ln.why and min(ln.energy, ln.latency) < 1 - CLOSE]


def speed(layers: list[Einsum], arch: Arch) -> tuple[float, float, float]:
    """CPU milliseconds: median and largest to tile one operator, median to read, tile, schedule and price one
    einsum.
    """
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
        tiled_by_smaug(e, arch)
        tiled.append(1e3 * (between - start))
        whole.append(1e3 * (time.process_time() - between))
    return median(tiled), max(tiled), median(whole)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--budget",
        type=int,
        default=BUDGET,
        help="nodes that a search may visit per order of storage nodes; 0: lower bounds only",
    )
    parser.add_argument("--networks", default=",".join(catalog.MODELS))
    parser.add_argument(
        "--most",
        type=int,
        default=2**63,
        metavar="POINTS",
        help="only layers of at most so many multiply-accumulates",
    )
    parser.add_argument("--workers", type=int, default=1, help="processes that search; 1: this one")
    parser.add_argument("--layers", action="store_true", help="print every layer")
    given = parser.parse_args()
    # as SMAUG counts; the search of ragged tiles knows no waits
    arch = replace(machine.load_arch("smv"), overlap="free")
    layers = [
        (name, u.einsum)
        for name in given.networks.split(",")
        for u in unique(catalog.load(name))
        if u.einsum.kind == "mac" and u.einsum.points() <= given.most
    ]
    lines, floors = [], dict[tuple[str, str], tuple[float, bool]]()
    waiting = searched((e for _, e in layers), arch, given.budget, given.workers)
    for name, e in layers:
        tiled = not isinstance(tiled_by_smaug(e, arch), Infeasible)
        while tiled and (canonical_key(e), "energy") not in floors:
            floors |= next(waiting)[1]
        lines.append(ln := line(name, e, arch, floors))
        if given.layers:
            print(
                f"{name:13} {ln.layer:60.60} {ln.energy:6.2f} {ln.latency:6.2f} {ln.proven} proven "
                f"{ln.copies:8} {ln.why}",
                flush=True,
            )
    print("\n".join(table(lines)))
    for why, n in Counter(_short(ln) for ln in lines if ln.why).items():
        print(f"{n:4} {why}")
    middle, largest, whole = speed([e for _, e in layers], arch)
    print(
        f"tiling one operator: {middle:.2f} ms CPU median, {largest:.2f} ms largest; with schedule "
        f"and price {whole:.2f} ms median"
    )
    for ln in below(lines):
        print(
            f"BELOW ITS FLOOR: {ln.network} {ln.layer}: energy {ln.energy:.9f}, latency {ln.latency:.9f}",
            file=sys.stderr,
        )
    return 1 if below(lines) else 0


def _short(ln: Line) -> str:
    if not ln.energy:
        return f"not tiled: {ln.network} {ln.why}"
    return (
        f"{ln.why.partition(':')[0]}: the input with its padding would not fit"
        if "would need" in ln.why
        else ln.why
    )


if __name__ == "__main__":
    sys.exit(main())
