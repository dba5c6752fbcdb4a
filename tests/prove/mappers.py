"""The optimal mapper against every mapping of 5,000 random problems, perfect tiles and ragged lanes.

    python -m tests.prove mappers [--problems 5000] [--first 0] [--most 20000] [--networks 1000]
        [--crowded 1000] [--widths 1000] [--ports 1000] [--shared 1000] [--waits 250]
        [--formats 500] [--rules 1000]

Each problem is answered with gaps of 0, 1 and 5 % (under rules with one of these), and once more with a
budget of a few choices of spatial unrollings, which ends most searches: what such an answer says of its gap
must hold as well.

Machines whose fills overlap freely are enumerated with formulas of their own; of every fifth problem there is
a small one more, on a machine of single and double buffers, all of whose mappings the evaluator prices. So it
does where links and endpoints of networks have a price: each mapping with the loops over PEs in two orders.
Larger problems on machines with little capacity are searched with and without bounds of outer levels: a
search that ends answers alike, and with a gap of 1 or 5 % its bound is no higher. Levels that narrow or widen
elements are enumerated like the others, every fourth problem with buffers, every fifth on a network with
prices; so are levels that say which port serves what, every third problem with buffers, and memories of which
PEs along dimensions share instances, every fourth. Where memories let an einsum wait for first words or store
tensors with zeros in formats of their own (every third with buffers), and under rules for mappings (these on
machines that have some of all of that, widths, shared memories and PEs that do not reduce), the evaluator
prices all mappings of small problems.
Prints, per group of problems, how large the enumerated spaces were and how many answers were proven. Ties are
compared where cycles of the search are the evaluator's: fills overlap freely, and no padding makes another
lane busier than the first. A false certificate, a gap too small, a machine that is called infeasible and is
not, a bound above the optimum, or a group with less than 95 % proven fails.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from math import inf, isclose
from multiprocessing import get_context
from random import Random
from typing import Any
from unittest.mock import patch

from dse.mapper.baselines.exhaustive import mapspace_size
from dse.mapper.exact import optimal as mapper
from dse.mapper.exact import search
from dse.mapper.exact.optimal import optimal
from dse.mapping.constraints import FREE, Constraints, Factors, ruled
from dse.mapping.nest import Infeasible, Loop, Mapping, faults, format_faults
from dse.sim.einsum.evaluate import EinsumCost, Problem, einsum_cost, lower_bound, objective_value
from dse.sim.einsum.limits import broken
from dse.sim.levels.network import Uncounted
from hw import machine
from tests.enumeration import Best, enumerated, in_orders, is_clipped, mappings, padded
from tests.nests import (
    RESULTS,
    compressed_result,
    in_a_format,
    in_other_formats,
    packed,
    ported,
    shared,
    slow_to_answer,
    split_roles,
    widened,
)
from tests.problems import GROUPS, OBJECTIVES, random_problem, with_networks
from tests.test_limits import rule_sets
from workloads import catalog

PROVEN = {
    "buffered": 0.0,
    "buffered, widths": 0.0,
    "buffered, ports": 0.0,
    "buffered, shared": 0.0,
    "buffered, first words": 0.0,
    "buffered, formats": 0.0,
    "networks": 0.0,
    "rules": 0.0,
}  # else 0.95: with buffers the search counts less than the evaluator
BUFFERED, SMALL = 5, 600
LARGER, LARGE = 50, 10  # of so many problems one is so many times as large
GAPS = (0.0, 0.01, 0.05)
CHOICES = (1, 10, 100)  # of these budgets one
BUDGET, SHARE = search.OUTER_BUDGET, 20  # of bounds of outer levels


@dataclass(frozen=True)
class Told:
    """One problem in one space: mappings enumerated, whether one fits, is proven, and lines that say what is
    wrong.
    """

    group: str
    tiles: str
    mappings: int
    feasible: bool
    proven: bool
    wrong: tuple[str, ...] = ()


def compared(
    problem: Problem, best: Best, found: list[EinsumCost] | Infeasible, name: str, allowed: float = 0.0
) -> Iterator[str]:
    """What is wrong with an answer. allowed: the gap that was asked for, inf: the budget may have ended."""
    if isinstance(found, Infeasible) or best.mapping is None:
        # where the budget ended, the answer may say so, or leave a space in which nothing fits
        ended = found.level == "the search" if isinstance(found, Infeasible) else best.mapping is None
        if not (isinstance(found, Infeasible) and best.mapping is None) and not (ended and allowed == inf):
            yield (
                f"{name}: {found if isinstance(found, Infeasible) else found[0].mapping}, the "
                f"enumeration has {best}"
            )
        return
    (one,) = found
    again = einsum_cost(problem, one.mapping)
    ours = (
        objective_value(problem.objective, one.energy_pj, one.latency_cycles),
        one.energy_pj,
        one.latency_cycles,
    )
    if (
        faults(one.mapping, problem.einsum, problem.arch)
        or isinstance(again, Infeasible)
        or not isclose(again.energy_pj, one.energy_pj, rel_tol=1e-12)
    ):
        yield f"{name}: {faults(one.mapping, problem.einsum, problem.arch)} {again}"
    above = allowed < inf and best.cost[0] > ours[0] * (1 + 1e-9)  # a local search may leave the space
    if above or best.cost[0] < ours[0] * (1 - 1e-9) / (1 + one.optimality_gap):
        yield (
            f"{name}: {one.certificate}: {ours}, the enumeration has {best.cost}\n{one.mapping}\n "
            f"against\n{best.mapping}"
        )
    whole = problem.arch.overlap == "free" and not padded(problem.einsum)
    close = whole and not (one.left_open == "stalls" and clips_folds(problem))
    if close and one.space and 0 < allowed < one.optimality_gap * (1 - 1e-9):
        yield f"{name}: a gap of {one.optimality_gap}, asked was {allowed}"
    tied = all(isclose(a, b, rel_tol=1e-9) for a, b in zip(ours, best.cost, strict=True))
    if one.proven and whole and not tied and not allowed:
        yield (
            f"{name}: ties of {ours}, the enumeration has {best.cost}\n{one.mapping}\n "
            f"against\n{best.mapping}"
        )


def clips_folds(problem: Problem) -> bool:
    """Whether folds of systolic arrays may be more than their bound: clipped elements do not count there
    (`search._folds`).
    """
    sizes = problem.einsum.sizes()
    return any(f.systolic for f in problem.arch.fanouts) and any(
        is_clipped(d, sizes) for p in problem.einsum.tensors() for d in p.dims
    )


def confirmed(problem: Problem, best: Best) -> Iterator[str]:
    """What the evaluator says of the enumeration's best mapping, and of the bound."""
    if best.mapping is not None:
        one = einsum_cost(problem, best.mapping)
        same = isinstance(one, EinsumCost) and isclose(
            objective_value(problem.objective, one.energy_pj, one.latency_cycles), best.cost[0], rel_tol=1e-9
        )
        if faults(best.mapping, problem.einsum, problem.arch) or not same:
            yield f"enumeration: {best} is {one}, {faults(best.mapping, problem.einsum, problem.arch)}"
        if lower_bound(problem) > best.cost[0] * (1 + 1e-9):
            yield f"bound {lower_bound(problem)} above {best.cost[0]}"


def problem_of(seed: int, most: int) -> Problem:
    rng = Random(seed)
    return random_problem(
        rng,
        GROUPS[seed % len(GROUPS)],
        "imperfect_spatial",
        most * (LARGE if rng.randrange(LARGER) == 0 else 1),
        "tensors",
    )


def buffered_of(seed: int) -> Problem:
    """A small problem whose levels hold tiles once or twice."""
    rng = Random(seed)
    problem = random_problem(rng, rng.choice(GROUPS), "imperfect_spatial", SMALL, "tensors")
    levels = tuple(
        replace(
            level,
            double_buffer=v > 0 and rng.random() < 0.6,
            bandwidth=rng.choice([1.0, 2.0, 0.5, level.bandwidth]),
            capacity_bits=level.capacity_bits and 2 * level.capacity_bits,
        )
        for v, level in enumerate(problem.arch.levels)
    )
    return replace(
        problem,
        arch=replace(problem.arch, levels=levels, overlap="buffered"),
        objective=rng.choice(OBJECTIVES),
    )


def networked_of(seed: int, most: int = SMALL) -> Problem:
    """A small problem on a machine with fan-outs, whose links or endpoints have a price."""
    rng = Random(seed)
    while True:
        group = rng.choice([group for group in GROUPS if group != "sparse"] * 2 + ["sparse"])
        problem = random_problem(rng, group, "imperfect_spatial", most, "tensors")
        if problem.arch.fanouts:
            objective = rng.choice(("energy", "energy", "edp"))
            return with_networks(rng, replace(problem, objective=objective))


def reordered(mapping: Mapping) -> Mapping:
    """The mapping with loops over PEs that follow each other in the opposite order, those of equal ranks
    apart: no count but that of hops changes.
    """
    nodes = list(mapping.nodes)
    for begin in range(len(nodes)):
        for at in range(len(nodes) - 1, begin, -1):
            one, two = nodes[at - 1], nodes[at]
            both = isinstance(one, Loop) and isinstance(two, Loop) and one.over and two.over
            if both and one.rank < two.rank:
                nodes[at - 1], nodes[at] = two, one
    return replace(mapping, nodes=tuple(nodes))


def priced_in_orders(problem: Problem, factors: Factors) -> Best:
    """The least cost of all mappings of a small problem whose hops are counted and that cut no windows over a
    network whose links have a price, which the mapper leaves out and says so.
    """
    found, many, e = Best((inf, inf, inf), None, 0), 0, problem.einsum
    priced = {name for f in problem.arch.fanouts if f.hop_pj for name, _ in f.dims}
    windowed = {
        rank
        for p in e.tensors()
        for d in p.dims
        for rank, factor in d.terms
        if len(d.terms) > 1 or factor != 1 or d.offset or d.size < e.sizes()[rank]
    }
    for mapping in mappings(problem, factors, "tensors"):
        if any(isinstance(n, Loop) and n.over in priced and n.rank in windowed for n in mapping.nodes):
            continue
        many += 1
        for own in dict.fromkeys((mapping, reordered(mapping))):
            try:
                one = einsum_cost(problem, own)
            except Uncounted:
                continue
            if isinstance(one, EinsumCost):
                value = objective_value(problem.objective, one.energy_pj, one.latency_cycles)
                if value < found.cost[0]:
                    found = Best((value, one.energy_pj, one.latency_cycles), own, 0)
    return replace(found, mappings=many)


def networked(seed: int, most: int = SMALL) -> list[Told]:
    return on_network(seed, networked_of(seed, most))


def on_network(seed: int, problem: Problem) -> list[Told]:
    """What is wrong with the answers of a problem whose networks have a price: their gaps must hold."""
    found = list[Told]()
    tiles: Factors
    for tiles in ("perfect", "imperfect_spatial"):
        best, wrong = priced_in_orders(problem, tiles), list[str]()
        with (
            patch.object(search, "MIN_FOR_OUTER_BOUNDS", 0 if seed % 2 else search.MIN_FOR_OUTER_BOUNDS),
            patch.object(mapper, "MAX_UNROLLINGS", 0),
        ):
            for gap in GAPS:
                ours = optimal(problem, tiles, allowed_gap=gap)
                wrong += compared(problem, best, ours, f"networks, gap {gap}", inf)
            with patch.object(search, "MAX_CHOICES", CHOICES[seed % len(CHOICES)]):
                wrong += compared(problem, best, optimal(problem, tiles), "networks, few choices", inf)
        lines = tuple(
            f"seed {seed}, networks, {tiles}, {problem.objective}: {line}\n{problem.einsum}\n{problem.arch}"
            for line in wrong
        )
        close = not isinstance(ours, Infeasible) and ours[0].optimality_gap <= GAPS[-1] * (1 + 1e-9)
        found.append(Told("networks", tiles, best.mappings, best.mapping is not None, close, lines))
    return found


def cheaper(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    """Whether a cost is less: its objective, then energy, then latency."""
    return next((a < b for a, b in zip(one, other, strict=True) if not isclose(a, b, rel_tol=1e-10)), False)


def priced_all(problem: Problem, factors: Factors, limits: Constraints = FREE) -> Best:
    """The least cost by the evaluator of all mappings of a small problem that keep the limits of rules."""
    found, many = Best((inf, inf, inf), None, 0), 0
    in_order = any(limit.kind == "order" for limit in limits.limits)
    listed = mappings(problem, factors, "tensors")
    for mapping in chain.from_iterable(map(in_orders, listed)) if in_order else listed:
        many += 1
        if limits is not FREE and broken(limits, mapping, problem.einsum, problem.arch):
            continue
        one = einsum_cost(problem, mapping)
        if isinstance(one, EinsumCost):
            value = objective_value(problem.objective, one.energy_pj, one.latency_cycles)
            if cheaper(cost := (value, one.energy_pj, one.latency_cycles), found.cost):
                found = Best(cost, mapping, 0)
    return replace(found, mappings=many)


def told(seed: int, most: int) -> list[Told]:
    asked = [(GROUPS[seed % len(GROUPS)], problem_of(seed, most))] + (
        [("buffered", buffered_of(seed))] if seed % BUFFERED == 0 else []
    )
    return [one for group, problem in asked for one in answers(seed, group, problem)]


def answers(seed: int, group: str, problem: Problem) -> list[Told]:
    found: list[Told] = []
    tiles: Factors
    for tiles in ("perfect", "imperfect_spatial"):
        best = (
            enumerated(problem, tiles, "tensors")
            if problem.arch.overlap == "free"
            and not problem.arch.with_latency()
            and not problem.arch.with_formats()
            and problem.einsum.output.format in ("dense", "csr")
            else priced_all(problem, tiles)
        )
        wrong = [*confirmed(problem, best)]
        # these problems have fewer nodes and unrollings than searches that take long
        with (
            patch.object(search, "MIN_FOR_OUTER_BOUNDS", 0 if seed % 2 else search.MIN_FOR_OUTER_BOUNDS),
            patch.object(mapper, "MAX_UNROLLINGS", 0),
        ):
            ours, *near = (optimal(problem, tiles, allowed_gap=gap) for gap in GAPS)
            with patch.object(search, "MAX_CHOICES", CHOICES[seed % len(CHOICES)]):
                ended = optimal(problem, tiles, allowed_gap=GAPS[seed % len(GAPS)])
        for one, gap in zip((ours, *near), GAPS, strict=True):
            wrong += compared(problem, best, one, f"optimal, gap {gap}", gap)
        wrong += compared(problem, best, ended, "optimal, few choices", inf)
        lines = tuple(
            f"seed {seed}, {group}, {tiles}, {problem.objective}: {line}\n{problem.einsum}\n{problem.arch}"
            for line in wrong
        )
        proven = not isinstance(ours, Infeasible) and bool(ours[0].proven)
        found.append(Told(group, tiles, best.mappings, best.mapping is not None, proven, lines))
    return found


def with_widths(rng: Random, problem: Problem) -> Problem:
    """The problem on a machine whose levels inside narrow or widen elements, with room for some of them."""
    arch = widened(problem.arch, problem.einsum)
    more = rng.choice([1, 2, 2, 3])
    levels = tuple(
        replace(level, capacity_bits=level.capacity_bits and more * level.capacity_bits)
        for level in arch.levels[1:]
    )
    return replace(problem, arch=replace(arch, levels=(arch.levels[0], *levels)))


def widths(seed: int, most: int = SMALL) -> list[Told]:
    """What is wrong with the answers of a problem whose levels narrow or widen elements."""
    rng = Random(f"widths/{seed}")
    if seed % 5 == 4:
        return on_network(seed, with_widths(rng, networked_of(seed)))
    buffered = seed % 4 == 3
    problem = with_widths(rng, buffered_of(seed) if buffered else problem_of(seed, most))
    return answers(seed, "buffered, widths" if buffered else "widths", problem)


def with_ports(seed: int, most: int = SMALL) -> list[Told]:
    """What is wrong with the answers of a problem whose levels say which of their ports serves what."""
    buffered = seed % 3 == 2
    problem = buffered_of(seed) if buffered else problem_of(seed, most)
    problem = replace(
        problem,
        arch=ported(problem.arch, problem.einsum),
        objective=Random(f"ports/{seed}").choice(["latency", "latency", "edp", "energy"]),
    )
    return answers(seed, "buffered, ports" if buffered else "ports", problem)


def with_sharing(seed: int, most: int = SMALL) -> list[Told]:
    """What is wrong with the answers of a problem on a machine of whose memories PEs along dimensions share
    instances.
    """
    rng, buffered = Random(f"sharing/{seed}"), seed % 4 == 3
    for more in range(1000):
        problem = buffered_of(seed + 100_003 * more) if buffered else problem_of(seed + 100_003 * more, most)
        arch = shared(split_roles(problem.arch, rng) if rng.random() < 0.6 else problem.arch, rng)
        if arch.with_sharing():
            break
    return answers(seed, "buffered, shared" if buffered else "shared", replace(problem, arch=arch))


def with_latency(seed: int, most: int = SMALL) -> list[Told]:
    """What is wrong with the answers of a problem on a machine whose memories let an einsum wait for first
    words.
    """
    problem, rng = buffered_of(seed) if seed % 2 else problem_of(seed, most), Random(f"first words/{seed}")
    problem = replace(
        problem,
        arch=slow_to_answer(problem.arch, rng),
        objective=rng.choice(["latency", "latency", "edp", "energy"]),
    )
    return answers(seed, "buffered, first words" if seed % 2 else "first words", problem)


def formatted_of(seed: int, most: int = 3000) -> Problem:
    """A small problem whose tensors have zeros, on a machine whose levels store them in other formats, or
    which gates zeros of operands.
    """
    rng = Random(f"formats of levels/{seed}")
    while True:
        base = problem_of(rng.randrange(10**6) * 8 + 7, most)  # of the group "sparse"
        e = compressed_result(rng, rng.choice([*RESULTS]), 4) if rng.random() < 0.5 else base.einsum
        e = in_other_formats(rng, e) if e.output.format != "dense" and rng.random() < 0.7 else e
        e = in_a_format(rng, e) if e.output.format == "dense" and e.inputs[0].dims else e
        gates = rng.choice([(), (), ("input",), ("weight",), ("input", "weight")])
        is_packed = rng.random() < (0.4 if gates else 0.85)
        arch = packed(base.arch, e, rng) if is_packed else base.arch
        arch = replace(arch, compute=replace(arch.compute, gates=gates))
        if seed % 3 == 2:
            levels = [
                replace(one, double_buffer=v > 0 and rng.random() < 0.6) for v, one in enumerate(arch.levels)
            ]
            arch = replace(arch, levels=tuple(levels), overlap="buffered")
        more = rng.choice([1, 2, 4])
        room = [one.capacity_bits and more * one.capacity_bits for one in arch.levels]
        arch = replace(
            arch,
            levels=tuple(replace(one, capacity_bits=n) for one, n in zip(arch.levels, room, strict=True)),
        )
        is_small = mapspace_size(e, arch, "imperfect_spatial") <= most
        if is_small and arch.levels[0].capacity_bits is None and not any(format_faults(e, arch.levels)):
            return replace(base, einsum=e, arch=arch, objective=rng.choice(OBJECTIVES))


def with_formats(seed: int) -> list[Told]:
    """What is wrong with the answers of a problem whose levels store tensors with zeros in other formats."""
    return answers(seed, "buffered, formats" if seed % 3 == 2 else "formats", formatted_of(seed))


def featured_of(seed: int) -> Problem:
    """A small problem on a machine that has some of what machines may have, mostly several of it."""
    rng = Random(f"rules/{seed}")
    while True:
        number = rng.randrange(10**6)
        problem = buffered_of(number) if rng.random() < 0.3 else problem_of(number, SMALL)
        if problem.einsum.points() > 1:  # else no rule has a rank to name
            break
    if rng.random() < 0.5:
        problem = with_widths(rng, problem)
    arch = problem.arch
    if rng.random() < 0.5:
        arch = shared(split_roles(arch, rng) if rng.random() < 0.6 else arch, rng)
    if rng.random() < 0.3:
        arch = slow_to_answer(arch, rng)
    if rng.random() < 0.5:
        no = tuple(
            replace(f, reduce=tuple(flag and rng.random() < 0.5 for flag in f.reduce)) for f in arch.fanouts
        )
        arch = replace(arch, fanouts=no)
    return replace(problem, arch=arch)


def with_rules(seed: int) -> list[Told]:
    """What is wrong with the answers of such a problem under one to three random rules."""
    problem, found = featured_of(seed), list[Told]()
    (rules,) = rule_sets(Random(f"rules of {seed}"), problem, 1)
    limits = ruled(FREE, rules, problem.einsum, problem.arch)
    tiles: Factors
    for tiles in ("perfect", "imperfect_spatial"):
        best, gap = priced_all(problem, tiles, limits), GAPS[seed % len(GAPS)]
        ours = optimal(problem, tiles, limits, allowed_gap=gap)
        wrong = [*confirmed(problem, best), *compared(problem, best, ours, f"rules, gap {gap}", gap)]
        if not isinstance(ours, Infeasible) and broken(limits, ours[0].mapping, problem.einsum, problem.arch):
            wrong.append(f"{ours[0].mapping} breaks them")
        lines = tuple(
            f"seed {seed}, {rules}, {tiles}, {problem.objective}: {line}\n{problem.einsum}\n{problem.arch}"
            for line in wrong
        )
        proven = not isinstance(ours, Infeasible) and bool(ours[0].proven)
        found.append(Told("rules", tiles, best.mappings, best.mapping is not None, proven, lines))
    return found


def crowded_of(seed: int, most: int, name: str = "edge_array") -> Problem:
    """A problem larger than what can be enumerated, on a machine with little capacity."""
    rng = Random(f"crowded/{seed}")
    arch = machine.arch(machine.load(name))
    fanouts = tuple(
        replace(
            f,
            dims=tuple(
                (of, rng.choice(few))
                for (of, _), few in zip(f.dims, ((2, 3, 4, 8), (1, 2, 4, 6)), strict=True)
            ),
        )
        for f in arch.fanouts
    )
    buffers, registers = (64, 128, 256, 512, 1024, 4096), (3, 4, 8, 16, 32)
    on_chip = [8 * rng.choice(few) for few in (*[buffers] * (len(arch.levels) - 2), registers)]
    levels = tuple(
        replace(level, capacity_bits=bits) for level, bits in zip(arch.levels, (None, *on_chip), strict=True)
    )
    m, n, k = (rng.randint(2, most) for _ in range(3))
    p, q, r, s = rng.randint(2, 9), rng.randint(2, 9), rng.choice((1, 3)), rng.choice((1, 2))
    source = rng.choice((f"gemm:m={m},n={n},k={k}", f"conv:k={m},c={k},p={p},q={q},r={r},s={s}"))
    (e,) = catalog.load(source).einsums
    return Problem(replace(arch, levels=levels, fanouts=fanouts), e, rng.choice(("energy", "energy", "edp")))


def crowded(seed: int, most: int = 150, budget: int = 20_000, name: str = "edge_array") -> list[Told]:
    """What the bounds of outer levels leave out of a search that ends without them."""
    problem, found = crowded_of(seed, most, name), list[Told]()
    tiles: Factors
    for tiles in ("perfect", "imperfect_spatial"):
        answers = []
        for least in (budget**2, 0):
            with (
                patch.object(search, "MIN_FOR_OUTER_BOUNDS", least),
                patch.object(search, "OUTER_BUDGET", budget // 100 if least == 0 and seed % 2 else BUDGET),
                patch.object(search, "OUTER_SHARE", SHARE),  # so every other one is searched twice
            ):
                answers.append(search.search(problem, tiles, budget=budget))
        without, ours = answers
        claims = [ours, *(near_of(problem, budget, GAPS[1 + seed % 2]) if tiles != "perfect" else ())]
        higher = any(one.lower_bound > without.lower_bound * (1 + 1e-9) for one in claims)
        alike = ours.mapping == without.mapping and isclose(ours.lower_bound, without.lower_bound)
        same = not higher and (ours.ended or alike)
        lines = (f"seed {seed}, {name}, crowded, {tiles}: {ours} instead of {without}",)
        found.append(
            Told(
                "crowded", tiles, 0, not without.ended, not ours.ended, () if same or without.ended else lines
            )
        )
    return found


def near_of(problem: Problem, budget: int, gap: float) -> list[search.SearchResult]:
    """The search for what is better than the optimum of perfect factors by more than the gap."""
    with patch.object(mapper, "MAX_UNROLLINGS", 0):
        goals = mapper.Prices([problem], FREE).make_goals("imperfect_spatial", gap)
        return [search.search(problem, "imperfect_spatial", budget=budget, goals=goals)]


def summed(rows: list[Told], spaces: Iterable[str]) -> int:
    """Prints a line per space and group; whether all are as they must be."""
    wrong = [line for row in rows for line in row.wrong]
    few = 0
    for tiles in spaces:
        for group in dict.fromkeys(row.group for row in rows):
            own = [row for row in rows if (row.group, row.tiles) == (group, tiles)]
            sizes, feasible = sorted(row.mappings for row in own), sum(row.feasible for row in own)
            proven = sum(row.proven for row in own)
            few += proven < PROVEN.get(group, 0.95) * feasible
            print(
                f"  {tiles}, {group}: {len(own)} problems, {feasible} feasible, {proven} proven "
                f"({100 * proven / max(feasible, 1):.1f} %); mappings: median {sizes[len(sizes) // 2]:,}, "
                f"most {sizes[-1]:,}"
            )
    print(
        f"  {len(rows)} answers, {sum(row.mappings for row in rows):,} mappings: {len(wrong)} wrong, "
        f"{few} groups with too few proven"
    )
    return int(bool(wrong) or few > 0)


def over(check: Callable[[int], list[Told]], first: int, problems: int) -> list[Told]:
    """All problems, in two processes; says after every thousandth how many lines are wrong so far."""
    found: list[Told] = []
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        for number, rows in enumerate(pool.map(check, range(first, first + problems), chunksize=10), 1):
            found += rows
            for line in (line for row in rows for line in row.wrong):
                print(f"  {line}", flush=True)
            if number % 1000 == 0:
                print(f"  {number} problems: {sum(len(row.wrong) for row in found)} wrong so far", flush=True)
    return found


def asked(description: str | None, **defaults: int) -> Any:
    parser = argparse.ArgumentParser(description=description)
    for name, value in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    return parser.parse_known_args()[0]


def main() -> int:
    given = asked(
        __doc__,
        problems=5_000,
        first=0,
        most=20_000,
        networks=1_000,
        crowded=1_000,
        widths=1_000,
        ports=1_000,
        shared=1_000,
        waits=250,
        formats=500,
        rules=1_000,
    )
    rows = over(partial(told, most=given.most), given.first, given.problems)
    rows += over(networked, given.first, given.networks)
    rows += over(crowded, given.first, given.crowded)
    for name in ("nvdla", "kapla_multi"):  # two outer levels, both double-buffered; none but the outermost
        rows += over(partial(crowded, name=name), given.first, given.crowded // 4)
    rows += over(partial(widths, most=given.most), given.first, given.widths)
    rows += over(partial(with_ports, most=given.most), given.first, given.ports)
    rows += over(partial(with_sharing, most=given.most), given.first, given.shared)
    rows += over(with_latency, given.first, given.waits)
    rows += over(with_formats, given.first, given.formats)
    rows += over(with_rules, given.first, given.rules)
    return summed(rows, ("perfect", "imperfect_spatial"))
