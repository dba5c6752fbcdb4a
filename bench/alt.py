"""ALT's tables on machines that feel layouts: python -m bench.alt CASE... | sampled JOINT LOOPS CASE... |
operators MACHINE COUNT [JOINT LOOPS] | gaps COUNT [MACHINE...] | first MACHINE

networks    what each pick of `solver.layout` costs over `alt`, how far alt may lie above any mappings in any
            layouts, conversions, and CPU seconds of the mappings (`priced_mappings`), of the graph, and of
            the graph again where counts of layouts are known. The options' spaces nest, so alt above any of
            them, or wp or bf above ol, is an error (ALT, Fig. 10 to 12). Below: what the traffic of main
            memory leaves to layouts
sampled     the two-stage search of whole networks (ALT: 8,000 + 12,000 costs), over alt: its different
            products share the costs evenly, other operators take conversions in as is best
operators   nine operators in COUNT random sizes: row-major layouts and the two-stage search (300 + 700 costs,
            or JOINT + LOOPS; none at 0 0) over the exact answer (ALT, Fig. 9)
gaps        the same operators in COUNT sizes on machines that feel layouts, energy and latency: how far the
            answer may lie above any mapping in any layouts, by operator, and its CPU seconds over those of
            the machine without lines (exit 1: the median is above 5 % or one above 15 %)
first       the first layer of ResNet-18: the paper's layouts (ht 4, wt 16, ot 16) in the mappings found,
beside those found; and the best ot over the lanes
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import inf
from random import Random
from statistics import geometric_mean, median
from typing import Literal, cast

import numpy as np
import optuna

from bench.reference.sampled import Actor, Proposer, Uniform, sampled
from dse.layout.address import Layout, row_major
from dse.layout.text import parse
from dse.mapper.exact.layout_aware import (
    PricedMappings,
    best_layouts,
    layout_aware,
    layout_pricing,
    priced_mappings,
)
from dse.mapper.exact.optimal import optimal
from dse.mapping.constraints import FREE
from dse.mapping.nest import Infeasible
from dse.sim.einsum.evaluate import Problem
from dse.sim.levels import transfer
from dse.solve.layouts import layouts
from dse.solve.layouts.layouts import LayoutAssignment, LayoutPolicy, assign_layouts, interface_tensors
from hw import machine
from hw.arch import Arch
from workloads import catalog, cnn, hpc
from workloads.einsum import Einsum, squeezed
from workloads.graph import Workload, unique

Objective = Literal["energy", "latency", "edp"]
OPTIONS: tuple[LayoutPolicy, ...] = ("alt", "ol", "wp", "bf", "ind", "fp", "bp")
CASES = (
    "burst_edge,resnet18,energy",
    "burst_edge,resnet18,latency",
    "burst_edge,mobilenet_v2,energy",
    "cpu_like,resnet18,latency",
    "gpu_like,resnet18,latency",
)


@dataclass(slots=True)
class Tpe:
    """Optuna's tree-structured Parzen estimator as a proposer of ALT's two-stage search."""

    study: optuna.Study
    trial: optuna.Trial | None = None

    def ask(self, sizes: Sequence[int]) -> list[float]:
        self.trial = self.study.ask()
        return [self.trial.suggest_float(f"{k}", 1e-3, 1 - 1e-3) for k in range(len(sizes))]

    def tell(self, reward: float) -> None:
        assert self.trial
        self.study.tell(self.trial, reward)


def tpe(seed: int) -> Tpe:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return Tpe(optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed)))


def traffic(found: LayoutAssignment, home: str) -> str:
    """What layouts can save at most: of the bits that main memory moves those that nobody asked for, and of
    the cycles those of einsums that wait for it.
    """
    own = [(c, one) for c in found.solution.einsums for one in c.layout_traffic if one.level == home]
    moved = sum(c.count * one.moved_bits.n for c, one in own)
    unused = sum(c.count * one.unused_bits for c, one in own)
    waits = sum(c.count * c.latency_cycles for c in found.solution.einsums if c.bottleneck == home)
    share = 100 * waits / found.solution.latency_cycles
    return f"{100 * unused / moved:.1f} % of the bits of {home} unused, {share:.0f} % of the cycles are its"


def row(case: str) -> tuple[dict[str, float], LayoutAssignment, list[float], str]:
    """(cost of every pick over alt, alt, CPU seconds of mappings, of the graph, of the graph again, traffic
    of ol and alt).
    """
    name, net, said = case.split(",")
    objective = cast(Objective, said)
    arch, workload, begun = machine.load_arch(name), catalog.load(net), time.process_time()
    solved = mapped(arch, workload, objective)
    searched, value, best, whys = time.process_time(), dict[str, float](), None, list[str]()
    for pick in OPTIONS:
        told = assign_layouts(arch, workload, objective, pick, solved)
        assert not isinstance(told, Infeasible), told
        value[pick] = told.value
        whys += [f"{pick}: {traffic(told, arch.levels[0].name)}"] if pick in ("ol", "alt") else []
        if pick == "alt":
            best, graph = told, time.process_time()
            assign_layouts(arch, workload, objective, pick, solved)
            took = [searched - begun, graph - searched, time.process_time() - graph]
    return (
        {pick: one / value["alt"] for pick, one in value.items()},
        cast(LayoutAssignment, best),
        took,
        "; ".join(whys),
    )


PROPOSERS: dict[str, Callable[[int], Proposer]] = {
    "random": lambda seed: Uniform(Random(seed)),
    "tpe": tpe,
    "actor-critic": lambda seed: Actor(np.random.default_rng(seed)),
}


def end_to_end(
    arch: Arch,
    workload: Workload,
    objective: Objective,
    solved: dict[str, PricedMappings],
    propose: Callable[[int], Proposer],
    joint: int,
    loops: int,
) -> float:
    """Cost of a network whose products lie and loop as the two-stage search of each finds; copies, and all
    other operators, as is best then.
    """
    home, products = arch.levels[0].name, [group for group in unique(workload) if group.einsum.kind == "mac"]
    own, wanted = dict(solved), dict[tuple[str, int], Layout]()
    for seed, group in enumerate(products):
        one, e = Problem(arch, group.einsum, objective), group.einsum
        found = sampled(one, Random(seed), propose(seed), joint // len(products), loops // len(products))
        assert not isinstance(found, Infeasible), found
        mapping = found[0].mapping
        own[group.key] = PricedMappings((layout_pricing(one, mapping),), (found[0],), 0.0, len(found[1]), "")
        for x, p in enumerate(e.tensors()):
            shape = tuple(d.size for d in p.dims)
            names = transfer.dim_names(p)
            own_texts = [one.text for one in mapping.layouts if (one.level, one.tensor) == (home, p.tensor)]
            layout = parse(own_texts[0], names, shape) if own_texts else row_major(names, shape)
            wanted[group.key, x] = replace(layout, names=layouts._dim_names(len(shape)))
    g = layouts.Layouts(arch, workload, objective, own)
    wants = {
        (i, x): wanted[key, x]
        for i, (key, e) in enumerate(zip(g.keys, workload.einsums, strict=True))
        for x in range(len(e.tensors()))
        if (key, x) in wanted
    }
    shared = []
    for one in g.interface:
        places = [(use.einsum, use.position) for use in (one.maker, *one.readers) if not use.view]
        labels = one.labels[0], *(wants[at] for at in places if at in wants)
        shared.append(replace(one, labels=tuple(dict.fromkeys(labels))))
    g.interface = shared
    g.nodes = {
        (use.einsum, use.position): (one, use) for one in g.interface for use in (one.maker, *one.readers)
    }
    allowed, _ = next(g.rules("alt"))
    for at, (shared_, use) in g.nodes.items():
        if at in wants and not use.is_view:
            allowed[use.node] = (shared_.labels.index(wants[at]),)
    least = g.minimum((allowed, frozenset()))
    assert least[2]
    return least[0]


def whole(case: str, joint: int, loops: int) -> None:
    name, net, given = case.split(",")
    arch, workload, objective = machine.load_arch(name), catalog.load(net), cast(Objective, given)
    solved = mapped(arch, workload, objective)
    best = assign_layouts(arch, workload, objective, "alt", solved)
    assert not isinstance(best, Infeasible), best
    for said, propose in PROPOSERS.items():
        begun = time.process_time()
        value = end_to_end(arch, workload, objective, solved, propose, joint, loops)
        beaten = ", BELOW THE EXACT ANSWER" if value < best.value * (1 - 1e-9) else ""
        print(
            f"{case}: {said}, {joint} + {loops} costs: {value / best.value:.3f} x alt{beaten}; "
            f"{time.process_time() - begun:.0f} CPU s",
            flush=True,
        )


def mapped(arch: Arch, workload: Workload, objective: Objective) -> dict[str, PricedMappings]:
    """Mappings of the different einsums of a network."""
    apart, solved = interface_tensors(workload), dict[str, PricedMappings]()
    for group in unique(workload):
        found = priced_mappings(
            Problem(arch, group.einsum, objective), "imperfect_spatial", FREE, 0.01, apart[group.key]
        )
        assert not isinstance(found, Infeasible), found
        solved[group.key] = found
    return solved


def operators(rng: Random) -> dict[str, Einsum]:
    """ALT's nine operators in random sizes: 2-D, grouped, dilated, depth-wise, 3-D, 1-D, transposed
    convolutions, products.
    """
    k, c, p, r = 16 * rng.randint(1, 8), 16 * rng.randint(1, 8), 7 * rng.choice((1, 2, 4)), rng.choice((1, 3))
    made = {
        "C2D": cnn.conv(k, c, p, p, r, r, rng.choice((1, 2))),
        "GRP": cnn.conv(2 * k, 2 * c, p, p, r, r, groups=2),
        "DIL": cnn.conv(k, c, p, p, 3, 3, dilation=2),
        "DEP": cnn.depthwise(c, p, p, 3, 3),
        "C3D": cnn.conv3d(k, c, p, p, 4, 3, 3, 3),
        "C1D": cnn.conv1d(k, c, 16 * p, 3),
        "T2D": cnn.conv_transpose(k, c, p, p, 3, 3, 2),
        "GMM": hpc.gemm(k, 16 * p, c),
        "BMM": hpc.gemm(8 * k, p, 8 * c),
    }
    return {name: squeezed(found[0]) for name, found in made.items()}


def fig9(name: str, count: int, joint: int = 300, loops: int = 700) -> None:
    arch, over = machine.load_arch(name), dict[str, dict[str, list[float]]]()
    for seed in range(count):
        for kind, e in operators(Random(seed)).items():
            one = Problem(arch, e, "latency")
            plain, best = (
                layout_aware(
                    one, interface=frozenset(p.tensor for p in e.tensors()) if fixed else frozenset()
                )
                for fixed in (True, False)
            )
            assert not isinstance(plain, Infeasible)
            assert not isinstance(best, Infeasible)
            own = over.setdefault(kind, {})
            own.setdefault("row-major", []).append(plain[0].latency_cycles / best[0].latency_cycles)
            own.setdefault("gap", []).append(1 + best[0].optimality_gap)
            for said, propose in PROPOSERS.items() if joint + loops else ():
                found = sampled(one, Random(seed), propose(seed), joint, loops)
                own.setdefault(said, []).append(
                    inf if isinstance(found, Infeasible) else found[0].latency_cycles / best[0].latency_cycles
                )
    heads = ("row-major", *(PROPOSERS if joint + loops else ()), "gap")
    print(
        f"{name}, {count} sizes, {joint} + {loops} costs, latency over the exact answer's, geometric "
        "means; gap: of that to its floor"
    )
    print(f"{'':6}" + " ".join(f"{head:>12}" for head in heads))
    for kind, own in over.items():
        print(f"{kind:6}" + " ".join(f"{geometric_mean(own[head]):12.3f}" for head in heads), flush=True)


MACHINES = ("burst_edge", "cpu_like", "gpu_like", "arm_like")


def gaps(count: int, names: Sequence[str]) -> int:
    """Prints gaps and CPU seconds of every operator, size, machine and objective; 1 if the gaps are large."""
    every = list[float]()
    print(f"{count} sizes, gap in %: median, worst; CPU s, over those without lines (in all)")
    for name, objective in product(names, ("energy", "latency")):
        arch = machine.load_arch(name)
        taken, bare, by_kind = 0.0, 0.0, dict[str, list[float]]()
        for seed in range(count):
            for kind, e in operators(Random(seed)).items():
                begun = time.process_time()
                optimal(Problem(arch.ideal(), e, cast(Objective, objective)), allowed_gap=0.01)
                between = time.process_time()
                found = layout_aware(Problem(arch, e, cast(Objective, objective)), allowed_gap=0.01)
                assert not isinstance(found, Infeasible)
                taken, bare = taken + time.process_time() - between, bare + between - begun
                by_kind.setdefault(kind, []).append(100 * found[0].optimality_gap)
        own = [gap for one in by_kind.values() for gap in one]
        every += own
        print(
            f"{name:10} {objective:8} {median(own):6.2f} {max(own):6.1f}; {taken:6.1f} s, "
            f"{taken / bare:4.0f} x | "
            + " ".join(f"{kind} {median(one):.1f},{max(one):.1f}" for kind, one in by_kind.items()),
            flush=True,
        )
    print(f"all: median {median(every):.2f} %, worst {max(every):.1f} %")
    return int(median(every) > 5 or max(every) > 15)


def first(name: str) -> None:
    """Latencies, and lines moved at main memory, of the first layer of ResNet-18 in given layouts of its
    output, in the mapping that suits them best.
    """
    arch, e = machine.load_arch(name), catalog.load("resnet18").einsums[0]
    found = priced_mappings(Problem(arch, e, "latency"), "imperfect_spatial", FREE, 0.01, frozenset())
    assert not isinstance(found, Infeasible)
    best = min(found.costs, key=lambda one: one.latency_cycles)
    home, lanes = arch.levels[0].name, max(n for f in arch.fanouts for _, n in f.dims)

    def least(texts: dict[str, str]) -> float:
        costs = []
        for one in found.mappings:
            given = {
                place: parse(
                    texts[place[1]], transfer.dim_names(link.tensor), tuple(d.size for d in link.tensor.dims)
                )
                for place, link in one.links.items()
                if place[0] == home and place[1] in texts
            }
            costs.append(best_layouts(one, given)[1])
        return min(costs)

    image, out = e.inputs[0].tensor, e.output.tensor
    paper = least({out: "P/4 Q/16 K/16 p4 q16 k16", image: "P/8 Q/32 C p8~13 q32~37"})
    ours = {one.tensor: one.text for one in best.mapping.layouts if one.level == home}
    gap = min(best.latency_cycles / found.lower_bound - 1, best.gap_to_bound)
    print(
        f"{name}: {best.latency_cycles:.4g} cycles, gap {100 * gap:.3g} %, {ours}; in the paper's "
        f"layouts {paper / best.latency_cycles:.3f} x"
    )
    ot = {f: least({out: f"K/{f} P Q k{f}"}) for f in (4, 8, 16, 32)}
    told = ", ".join(f"{f}: {v / min(ot.values()):.3f}" for f, v in ot.items())
    print(
        f"  best ot of N O/ot H W ot: {min(ot, key=lambda f: (ot[f], f))} of {lanes} lanes; {told}",
        flush=True,
    )


def main(cases: Sequence[str]) -> int:
    if cases and cases[0] == "operators":
        fig9(cases[1], *map(int, cases[2:]))
        return 0
    if cases and cases[0] == "gaps":
        return gaps(int(cases[1]), cases[2:] or MACHINES)
    if cases and cases[0] == "sampled":
        for case in cases[3:]:
            whole(case, int(cases[1]), int(cases[2]))
        return 0
    if cases and cases[0] == "first":
        for name in cases[1:]:
            first(name)
        return 0
    print(
        f"{'machine,network,objective':32} {'gap %':>7} {'copies':>6} "
        + " ".join(f"{pick:>6}" for pick in OPTIONS)
        + "  mappings s  graph s  again s"
    )
    broken = 0
    for case in cases or CASES:
        over, alt, (mapped, graph, again), why = row(case)
        print(
            f"{case:32} {100 * (alt.value / alt.lower_bound - 1):7.2f} {len(alt.conversions):6} "
            + " ".join(f"{over[pick]:6.3f}" for pick in OPTIONS)
            + f"  {mapped:10.1f} {graph:8.1f} {again:8.1f}\n  {why}",
            flush=True,
        )
        broken += (
            sum(one < 1 - 1e-9 for one in over.values())
            + (over["wp"] > over["ol"] * (1 + 1e-9))
            + (over["bf"] > over["ol"] * (1 + 1e-9))
        )
    print(f"{broken} violations of the order")
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
