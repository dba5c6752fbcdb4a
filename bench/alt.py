"""ALT's figures on machines that feel layouts: python -m bench.alt [CASE...] | fig9 MACHINE COUNT [JOINT
LOOPS] | fig11 MACHINE... | fig12 JOINT LOOPS CASE... | sampled JOINT LOOPS CASE... | gaps COUNT
[MACHINE...] | first MACHINE...

CASE is machine,network,objective. Ratios of the paper stand beside ours, which are costs in a model, not
times on its computers.

CASE      what each pick of `solver.layout` costs over `alt`, how far alt may lie above any mappings in any
          layouts, conversions, and CPU seconds of the mappings (`priced_mappings`), of the graph, and of
          the graph again where counts of layouts are known (ALT, Fig. 10). The options' spaces nest, so alt
          above any of them, or wp or bf above ol, is an error. "=": the pick is no farther from alt than
          the gap, so that the two are not separated. Below: what the traffic of main memory leaves to
          layouts
fig9      nine operators in COUNT random sizes, channels of 3 to 1,280, batches of 1 to 16: the better of
          N O H W and N H W O, and the two-stage search (300 + 700 costs, or JOINT + LOOPS; none at 0 0),
          over the exact answer
fig11     two products with a function between (subgraphs 1 and 2): layouts passed forward (fp), backward
          (bp), conversions where products want other layouts (alt-published), and the best (alt), over
          ansor
fig12     the two-stage search with one level of tiles, with two, and with two and half as many costs again
sampled   the two-stage search of whole networks (ALT: 8,000 + 12,000 costs) by proposer, over alt
gaps      the operators of fig9 in COUNT smaller sizes, energy and latency: how far the answer may lie above
          any mapping in any layouts, by operator, and its CPU seconds over those of the machine without
          lines (exit 1: the median is above 5 % or one above 15 %)
first     the first layer of ResNet-18 (ALT, Table 3): the paper's layouts (ht 4, wt 16, ot 16) in the
          mappings found, beside those found; and the best ot over the lanes
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from itertools import product
from math import inf
from random import Random
from statistics import geometric_mean, median
from typing import Literal, cast

from dse.layout.text import parse
from dse.mapper.exact.layout_aware import PricedMappings, best_layouts, layout_aware, priced_mappings
from dse.mapper.exact.optimal import optimal
from dse.mapping.constraints import FREE
from dse.mapping.nest import Infeasible
from dse.sim.einsum.evaluate import Problem
from dse.sim.levels import transfer
from dse.solve import solve
from dse.solve.layouts import layouts
from dse.solve.layouts.layouts import LayoutAssignment, assign_layouts, interface_tensors
from dse.solve.layouts.sampled import PROPOSERS, sampled
from dse.solve.options import LayoutPolicy, LayoutProposer, SolverOptions
from hw import machine
from hw.arch import Arch
from workloads import catalog, cnn, hpc
from workloads.einsum import Einsum, einsum, squeezed
from workloads.graph import Workload, fuse_into_producers, unique

Objective = Literal["energy", "latency", "edp"]
OPTIONS: tuple[LayoutPolicy, ...] = (
    "alt",
    "ansor",
    "neocpu",
    "nohw",
    "ol",
    "wp",
    "bf",
    "ind",
    "alt-published",
    "fp",
    "bp",
)
FIG11: tuple[LayoutPolicy, ...] = ("ansor", "fp", "bp", "alt-published", "alt")
CASES = (
    "burst_edge,resnet18,energy",
    "burst_edge,resnet18,latency",
    "burst_edge,mobilenet_v2,energy",
    "cpu_like,resnet18,latency",
    "gpu_like,resnet18,latency",
)


# ALT (Xu et al. 2023), sections 7.1 and 7.2: its speed over Ansor's, in the mean over operators and networks
PAPER = {"cpu_like": (1.6, 1.47), "gpu_like": (1.5, 1.39), "arm_like": (1.4, 1.46)}
CHANNELS = (3, 16, 32, 64, 512, 960, 1280)  # section 7.1


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


def two_stage(
    arch: Arch, workload: Workload, objective: Objective, proposer: str, joint: int, loops: int, levels: int
) -> float:
    """Cost of a network whose products lie and loop as ALT's two-stage search of each finds."""
    options = SolverOptions(
        objective,
        layout="sampled",
        layout_joint=joint,
        layout_loops=loops,
        layout_proposer=cast(LayoutProposer, proposer),
        layout_levels=cast(Literal[1, 2], levels),
    )
    found = solve.in_best_layouts(arch, workload, options)
    assert not isinstance(found, Infeasible), found
    return found.value


def whole(case: str, joint: int, loops: int) -> None:
    """Prints the cost of the two-stage search by each proposer over that of alt."""
    name, net, given = case.split(",")
    arch, workload, objective = machine.load_arch(name), catalog.load(net), cast(Objective, given)
    best = assign_layouts(arch, workload, objective, "alt", mapped(arch, workload, objective))
    assert not isinstance(best, Infeasible), best
    for proposer in PROPOSERS:
        begun = time.process_time()
        value = two_stage(arch, workload, objective, proposer, joint, loops, 1)
        beaten = ", BELOW THE EXACT ANSWER" if value < best.value * (1 - 1e-9) else ""
        print(
            f"{case}: {proposer}, {joint} + {loops} costs: {value / best.value:.3f} x alt{beaten}; "
            f"{time.process_time() - begun:.0f} CPU s",
            flush=True,
        )


def fig12(case: str, joint: int, loops: int) -> None:
    """Prints costs of the two-stage search over those with one level of tiles; paper: 1.15 and 0.94."""
    name, net, given = case.split(",")
    arch, workload, objective = machine.load_arch(name), catalog.load(net), cast(Objective, given)
    costs = [
        two_stage(arch, workload, objective, "actor-critic", more * joint // 2, more * loops // 2, levels)
        for levels, more in ((1, 2), (2, 2), (2, 3))
    ]
    print(
        f"{case}: {joint} + {loops} costs, one level 1; two levels {costs[1] / costs[0]:.3f} (paper 1.15), "
        f"with half as many again {costs[2] / costs[0]:.3f} (paper 0.94)",
        flush=True,
    )


def fig11(name: str) -> None:
    """Prints latencies of two convolutions with a function between over those of `ansor`."""
    arch = machine.load_arch(name)
    for number, (size, filters) in enumerate(((7, 512), (14, 2048)), 1):
        net = fuse_into_producers(
            Workload(
                f"subgraph{number}",
                (
                    einsum(
                        "T[k,p,q] += X[c,p+r-1,q+s-1] * V[k,c,r,s]",
                        {"k": 512, "c": 512, "p": size, "q": size, "r": 3, "s": 3},
                        "first",
                        sizes={"X": (512, size, size)},
                    ),
                    einsum("U[k,p,q] = relu(T[k,p,q])", {"k": 512, "p": size, "q": size}, "relu"),
                    einsum(
                        "Y[k,p,q] += U[c,p,q] * W[k,c]",
                        {"k": filters, "c": 512, "p": size, "q": size},
                        "second",
                    ),
                ),
                frozenset(("V", "W")),
            )
        )
        solved = mapped(arch, net, "latency")
        told = {pick: assign_layouts(arch, net, "latency", pick, solved) for pick in FIG11}
        value = {pick: one.value for pick, one in told.items() if isinstance(one, LayoutAssignment)}
        best = cast(LayoutAssignment, told["alt"])
        print(
            f"{name}, subgraph {number}, latency over ansor's, gap "
            f"{100 * (best.value / best.lower_bound - 1):.1f} %: "
            + ", ".join(f"{pick} {value[pick] / value['ansor']:.3f}" for pick in FIG11[1:])
            + f" ({len(cast(LayoutAssignment, told['alt-published']).conversions)} conversions; "
            "paper: ALT below fp and bp)",
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


def operators(rng: Random, channels: Sequence[int] = (), batches: Sequence[int] = (1,)) -> dict[str, Einsum]:
    """ALT's nine operators in random sizes: 2-D, grouped, depth-wise, dilated, 3-D, 1-D convolutions,
    products, transposed 2-D and 3-D convolutions. channels: of inputs; multiples of 16 up to 128 by default.
    """

    def draw() -> int:
        return rng.choice(channels) if channels else 16 * rng.randint(1, 8)

    k, c, p, r, n = draw(), draw(), 7 * rng.choice((1, 2, 4)), rng.choice((1, 3)), rng.choice(batches)
    k = max(k, 16)  # three channels are an image's
    made = {
        "C2D": cnn.conv(k, c, p, p, r, r, rng.choice((1, 2)), n=n),
        "GRP": cnn.conv(2 * k, 2 * c, p, p, r, r, groups=2, n=n),
        "DEP": cnn.depthwise(c, p, p, 3, 3, n=n),
        "DIL": cnn.conv(k, c, p, p, 3, 3, dilation=2, n=n),
        "C3D": cnn.conv3d(k, c, p, p, 4, 3, 3, 3, n=n),
        "C1D": cnn.conv1d(k, c, 16 * p, 3, n=n),
        "GMM": hpc.gemm(k, 16 * p * n, c),
        "T2D": cnn.conv_transpose(k, c, p, p, 3, 3, 2, n=n),
        "T3D": cnn.conv_transpose3d(k, c, p, p, 4, 3, 3, 3, 2, n=n),
    }
    return {name: squeezed(found[0]) for name, found in made.items()}


def in_channels_last(one: Problem) -> float:
    """Latency of the mappings found with inputs and output in the layout with channels innermost."""
    e, home = one.einsum, one.arch.levels[0].name
    found = priced_mappings(one, "imperfect_spatial", FREE, 0.01, frozenset(p.tensor for p in e.tensors()))
    assert not isinstance(found, Infeasible), found
    weights = {rank for q in e.inputs[1:] for rank in q.ranks()}
    given = {}
    for p in (e.output, e.inputs[0]):
        names = transfer.dim_names(p)
        shape = tuple(d.size for d in p.dims)
        channels = [k for k, d in enumerate(p.dims) if len(d.terms) == 1 and d.terms[0][0] in weights]
        given[home, p.tensor] = parse(layouts.channel_texts(names, shape, channels, 1)[0], names, shape)
    return min(
        best_layouts(mapping, {at: own for at, own in given.items() if at in mapping.links})[1]
        for mapping in found.mappings
    )


def fig9(name: str, count: int, joint: int = 300, loops: int = 700) -> None:
    arch, over = machine.load_arch(name), dict[str, dict[str, list[float]]]()
    for seed in range(count):
        for kind, e in operators(Random(seed), CHANNELS, (1, 2, 4, 8, 16)).items():
            one = Problem(arch, e, "latency")
            plain, best = (
                layout_aware(one, allowed_gap=0.01, interface=frozenset(fixed))
                for fixed in ((p.tensor for p in e.tensors()), ())
            )
            assert not isinstance(plain, Infeasible)
            assert not isinstance(best, Infeasible)
            own, exact = over.setdefault(kind, {}), best[0].latency_cycles
            library = min(plain[0].latency_cycles, in_channels_last(one))
            own.setdefault("library", []).append(library / exact)
            own.setdefault("gap", []).append(1 + best[0].optimality_gap)
            for said, propose in PROPOSERS.items() if joint + loops else ():
                found = sampled(one, Random(seed), propose(seed), joint, loops)
                own.setdefault(said, []).append(
                    inf if isinstance(found, Infeasible) else found[0].latency_cycles / exact
                )
    heads = ("library", *(PROPOSERS if joint + loops else ()), "gap")
    print(
        f"{name}, {count} sizes, {joint} + {loops} costs, latency over the exact answer's, geometric means; "
        "library: the better of N O H W and N H W O; gap: of the answer to its floor"
    )
    print(f"{'':6}" + " ".join(f"{head:>12}" for head in heads))
    means = {head: geometric_mean(v for own in over.values() for v in own[head]) for head in heads}
    rows = {kind: {head: geometric_mean(own[head]) for head in heads} for kind, own in over.items()}
    for kind, means_of in (rows | {"all": means}).items():
        print(f"{kind:6}" + " ".join(f"{means_of[head]:12.3f}" for head in heads), flush=True)
    if name in PAPER:
        print(f"paper: ALT {PAPER[name][0]} x as fast as Ansor on such a machine")


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


def networks(cases: Sequence[str]) -> int:
    """Prints every pick of each case over alt (`row`); the number of violations of the order."""
    print(
        f"{'machine,network,objective':32} {'gap %':>7} {'copies':>6} "
        + " ".join(f"{pick:>6.6}" for pick in OPTIONS[1:])
        + "  mappings s  graph s  again s  (paper: ansor 1.39 to 1.47, wp 1.3, ol 1.1 over wp)"
    )
    broken = 0
    for case in cases:
        over, alt, (mapped, graph, again), why = row(case)
        gap = alt.value / alt.lower_bound - 1
        marks = {pick: f"{over[pick]:.3f}"[:5] + ("=" if over[pick] - 1 <= gap else " ") for pick in over}
        print(
            f"{case:32} {100 * gap:7.2f} {len(alt.conversions):6} "
            + " ".join(f"{marks[pick]:>6}" for pick in OPTIONS[1:])
            + f"  {mapped:10.1f} {graph:8.1f} {again:8.1f}\n  {why}",
            flush=True,
        )
        broken += (
            sum(one < 1 - 1e-9 for one in over.values())
            + (over["wp"] > over["ol"] * (1 + 1e-9))
            + (over["bf"] > min(over["ol"], over["nohw"]) * (1 + 1e-9))
            + (over["neocpu"] > over["ansor"] * (1 + 1e-9))
        )
    print(f"{broken} violations of the order")
    return broken


def main(words: Sequence[str]) -> int:
    command, rest = (words[0], words[1:]) if words and "," not in words[0] else ("", words)
    match command:
        case "fig9":
            fig9(rest[0], *map(int, rest[1:]))
        case "gaps":
            return gaps(int(rest[0]), rest[1:] or MACHINES)
        case "sampled" | "fig12":
            for case in rest[2:]:
                (whole if command == "sampled" else fig12)(case, int(rest[0]), int(rest[1]))
        case "fig11" | "first":
            for name in rest:
                (fig11 if command == "fig11" else first)(name)
        case "":
            return int(networks(rest or CASES) > 0)
        case _:
            print(__doc__)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
