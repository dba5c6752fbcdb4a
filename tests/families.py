"""Random families of machines, and layers of every kind, for frontiers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import inf, isclose
from random import Random

from dse.dataflow import frontier, optimal
from dse.dataflow.family import family
from dse.dataflow.space import FREE
from dse.nest import Infeasible
from dse.sim.evaluate import Problem, figure
from hw.arch import Arch, Compute, Fanout, Level
from tests.nests import searched
from workloads import catalog
from workloads.einsum import Einsum

OBJECTIVES = ("energy", "latency", "edp")
BETTER = "optimal spent its budget and returned worse"
KINDS = ("gemm", "decode", "1x1", "3x3", "strided", "depthwise")


def layer(kind: str, rng: Random) -> Einsum:
    """A layer of some hundred to some thousand operations whose extents have many divisors, as optimal proves in seconds."""
    def some(*sizes: int) -> int:
        return rng.choice(sizes)

    if kind in ("gemm", "decode"):
        return catalog.load(f"gemm:m={1 if kind == 'decode' else some(4, 6, 8, 12)},n={some(8, 12, 16)},k={some(8, 12, 24)}").einsums[0]
    channels, p = rng.choice(["k=2,c=2", "k=4,c=2", "k=2,c=3", "k=3,c=2", "k=2,c=4"]), rng.choice([2, 4])
    if kind == "depthwise":
        return catalog.load(f"depthwise:c={some(8, 12)},p={some(4, 6)},q={some(4, 6, 8)},r=3,s=3,pad=1").einsums[0]
    if kind == "1x1":
        return catalog.load(f"conv:k={some(4, 6)},c={some(2, 3, 4)},p={p},q={some(3, 4)},r=1,s=1").einsums[0]
    return catalog.load(f"conv:{channels},p={p},q=4,r=3,s=3,pad={some(0, 1)},stride={2 if kind == 'strided' else 1}").einsums[0]


def machines(rng: Random) -> list[Arch]:
    """Machines of two or three levels on a grid of capacities, array sizes, prices, bandwidths; ports, bypass and sharing at random, the same for all.

    Ports inside the array are wide: where they decide, optimal does not finish in its budget, and there is nothing to compare with.
    """
    deep, multicast, reduce = rng.random() < 0.7, rng.choice([(True, True), (True, False)]), rng.choice([(True, True), (True, False)])
    ports, bypass = rng.choice(["shared", "shared", "separate"]), rng.random() < 0.8
    first = rng.random() < 0.8
    found = []
    for room, registers, x, y, variant in product((256, 1024, 4096), (64, 256) if deep else (0,), (2, 4), (1, 3, 4), range(3)):
        rows = (("DRAM", None, 64, 500.0), ("GBUF", 8 * room, 64, 10.0), ("REGF", 8 * registers, 16, 0.3))[: 2 + deep]
        speeds = ([0.25, 1.0, 8.0], [1.0, 8.0, inf], [8.0, inf])
        levels = tuple(Level(name, bits, width, pj * rng.choice([0.3, 1.0, 4.0]), pj * rng.choice([0.5, 1.0, 2.0]), rng.choice(speeds[v]),
                             ports if v else "shared", bypass=v > 0 and bypass, skip_first_read=first,
                             leak_mw=rng.choice([0.0, 5.0, 100.0])) for v, (name, bits, width, pj) in enumerate(rows))
        arch = Arch(f"m{variant}", levels, (Fanout("array", 2, (("x", x), ("y", y)), multicast, reduce),), Compute(rng.choice([0.1, 1.0]), 0.1), 1.0, 8,
                    overlap="free")
        found.append(arch)
    return found


def differences(kind: str, seed: int, pairs: int, budget: int) -> Iterator[str]:
    """For so many machines of a random family, objectives in turn: "" where the frontier's price is what optimal returns, else a line: what differs, or BETTER:
    the price is below what optimal returns, which says that its budget of nodes ended first."""
    rng = Random(f"{kind}/{seed}")
    e = layer(kind, rng)
    archs = [searched(arch, e) for arch in machines(rng)]
    own = frontier.solved(e, family(archs))
    for n, arch in enumerate(rng.sample(archs, pairs)):
        objective = OBJECTIVES[n % len(OBJECTIVES)]
        problem = Problem(arch, e, objective)
        ours, theirs = frontier.priced(own, problem), optimal.within(problem, "perfect", FREE, budget)
        if isinstance(ours, Infeasible) or isinstance(theirs, Infeasible):
            yield "" if isinstance(ours, Infeasible) and isinstance(theirs, Infeasible) else f"{kind} {seed} {objective}: {ours} against {theirs}"
            continue
        machine = frontier.asked(own.family, arch)
        _, (cost,) = frontier.prices(own, [machine], frontier.rates([machine], [arch], e), objective)
        price, optimum = figure(objective, *cost), figure(objective, theirs[0].energy_pj, theirs[0].latency_cycles)
        same = isclose(cost[0], ours[0].energy_pj, rel_tol=1e-9) and isclose(cost[1], ours[0].latency_cycles, rel_tol=1e-9)
        if same and isclose(price, optimum, rel_tol=1e-9):
            yield ""
        else:
            better = same and not theirs[0].proven and price < optimum
            yield BETTER if better else f"{kind} {seed} {objective}: {price} against {optimum}, nest {ours[0]}\n{arch}"
