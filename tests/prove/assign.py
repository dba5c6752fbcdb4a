"""Mappings and layouts together, and layouts of graphs, against everything that they choose from.

pairs      small problems: every mapping in every layout that is cut once; no pair costs less than the
           floor, the answer is the least pair or says its gap
random     every mapping of small problems in random layouts, three objectives: none costs less than the
           floor
exchanges  mappings on machines with single buffers and slow ports: no bound with exchanges one after the
           other is above the cost of a mapping that it bounds; how many are above that of the busiest port
graphs     small graphs: every label of every tensor and use, every mapping: the graph engine's answer is
           the least
order      the same graphs: alt <= wp, bf, fp, bp, ind; wp, bf <= ol; what is given out is what the
           evaluator says
copies     small tensors between layouts: no mapping of a copy costs less than its price allows; how far
           prices lie above the least
milp       the same graphs as integer programs (HiGHS), one binary per row of a table: the same value
residual   the tables of a residual network of 54 einsums, 8 layouts per tensor: joined within 2 s, and no
           worse than 1,000 random choices improved greedily
sampled    ALT's two-stage search on 5 operators, 300 + 700 costs each (the exact one counts 9 to 51
           layouts there), random shares, TPE and an actor-critic: none beats the exact answer; how far
           they are from it after so many costs
nests      ALT's nine operators on four machines: the least of 2,000 random nests, each in its best layouts,
           is not below the answer by more than the answer's gap; how often it is below at all
moves      20 random pairs of layouts of images on four machines: how far the copy lies above the bound of
           any copy; above 5 % is counted
mutants    a bound that is too high, lines counted per lane, conversions for nothing: the proofs above
           notice

DSE_ASSIGN: share of all problems; DSE_ASSIGN_ONLY=nests, or moves: that part alone
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from itertools import product
from math import isclose
from multiprocessing import get_context
from random import Random
from statistics import geometric_mean, median
from time import process_time
from typing import Any
from unittest.mock import patch

import numpy as np
from scipy.optimize import Bounds, LinearConstraint
from scipy.optimize import milp as scipy_milp  # type: ignore[attr-defined, unused-ignore]
from scipy.sparse import lil_matrix

from bench.alt import MACHINES, operators
from dse.layout.text import parse
from dse.mapper.baselines.random import draw, mapping_of
from dse.mapper.exact import layout_aware as joint
from dse.mapper.exact import search as searched
from dse.mapper.exact.layout_aware import LayoutPricing, best_layouts, layout_aware, layout_pricing
from dse.mapper.exact.layout_aware import priced_mappings as pairs_of
from dse.mapper.exact.search import search
from dse.mapping.constraints import FREE
from dse.mapping.nest import Infeasible, Mapping
from dse.sim.counts.counts import footprints
from dse.sim.einsum.cost import overflow
from dse.sim.einsum.evaluate import Problem, objective_value
from dse.solve.elimination import Table, join
from dse.solve.layouts import convert
from dse.solve.layouts import layouts as graphs
from dse.solve.layouts.layouts import assign_layouts
from dse.solve.layouts.sampled import PROPOSERS, sampled
from hw import machine
from tests import lined as small
from tests.test_assign import EDGE, OBJECTIVES, SMALL, cheaper, enumerated, network, solve
from tests.test_convert import check as copy_above
from tests.test_lined import Stalls, exchanges, exchanges_of_all
from workloads.einsum import einsum

PAIRS, RANDOM, EXCHANGES, GRAPHS, COPIES = 150, 150, 300, 200, 60
OPERATORS = (
    (
        "O[k,p,q] += I[c,p+r-1,q+s-1] * W[k,c,r,s]",
        {"k": 64, "c": 64, "p": 28, "q": 28, "r": 3, "s": 3},
        "energy",
    ),
    ("O[k,p,q] += I[c,2*p,2*q] * W[k,c]", {"k": 128, "c": 64, "p": 28, "q": 28}, "latency"),
    ("O[c,p,q] += I[c,p+r-1,q+s-1] * W[c,r,s]", {"c": 96, "p": 28, "q": 28, "r": 3, "s": 3}, "energy"),
    ("C[m,n] += A[m,k] * B[k,n]", {"m": 128, "n": 768, "k": 768}, "latency"),
    ("C[h,m,n] += A[h,m,k] * B[h,n,k]", {"h": 12, "m": 128, "n": 128, "k": 64}, "energy"),
)
SHARE = float(os.environ.get("DSE_ASSIGN", "1"))  # of all problems
ONLY = os.environ.get("DSE_ASSIGN_ONLY", "")


def pairs(first: int, last: int) -> tuple[list[str], list[float]]:
    """(what is wrong, distances of answers to the least pair)."""
    wrong, above = list[str](), list[float]()
    for seed in range(first, last):
        one, tiles = small.problem(seed, 60)
        best, found = small.enumerated(one, tiles), layout_aware(one, tiles)  # type: ignore[arg-type]
        if isinstance(found, Infeasible) or best.mapping is None:
            wrong += (
                [f"seed {seed}: {found}"]
                if not (isinstance(found, Infeasible) and best.mapping is None)
                else []
            )
            continue
        answer = found[0]
        if answer.energy_pj / (1 + answer.optimality_gap) > best.energy * (1 + 1e-9):
            wrong.append(
                f"seed {seed}: floor {answer.energy_pj / (1 + answer.optimality_gap)} above "
                f"{best.energy} of\n{best.mapping}"
            )
        if search(one, tiles).lower_bound > best.energy * (1 + 1e-9):  # type: ignore[arg-type]
            wrong.append(f"seed {seed}: floor of the search above {best.energy} of\n{best.mapping}")
        above.append(max(answer.energy_pj / best.energy - 1, 0.0))
    return wrong, above


def at_random(first: int, last: int) -> tuple[list[str], int]:
    wrong, priced = list[str](), 0
    for seed in range(first, last):
        for objective in OBJECTIVES:
            one, tiles = small.problem(seed, 60, objective)
            floor = search(one, tiles).lower_bound  # type: ignore[arg-type]
            for value, mapping in small.priced_at_random(one, tiles, Random(seed)):
                priced += 1
                if value < floor * (1 - 1e-9):
                    wrong.append(f"seed {seed} {objective}: {value} below {floor}\n{mapping}")
    return wrong, priced


def stalls(first: int, last: int) -> list[Stalls]:
    return [kind(seed) for seed in range(first, last) for kind in (exchanges, exchanges_of_all)]


def on_graphs(first: int, last: int, share: float = 1.0) -> tuple[list[str], dict[str, list[float]], int]:
    """(what is wrong, values of every pick over those of alt, conversions of alt). share: of what a copy
    costs.
    """
    wrong, over, conversions = list[str](), dict[str, list[float]](), 0
    for seed in range(first, last):
        rng = Random(seed)
        net, objective = network(rng), rng.choice(OBJECTIVES)
        with patch.object(graphs, "MAX_LABELS", 3), cheaper(share):
            solved = solve(SMALL, net, objective)
            least = enumerated(SMALL, net, objective, solved, share)
            found = {
                pick: assign_layouts(SMALL, net, objective, pick, solved)
                for pick in ("alt", "ol", "wp", "bf", "ind", "fp", "bp")
            }  # type: ignore[arg-type]
        value = {pick: one.value for pick, one in found.items() if not isinstance(one, Infeasible)}
        if not isclose(value["alt"], least, rel_tol=1e-9):
            wrong.append(f"seed {seed}: {value['alt']}, all choices {least}")
        for pick, one in found.items():
            assert not isinstance(one, Infeasible)
            over.setdefault(pick, []).append(one.value / value["alt"])
            if share == 1.0 and not isclose(
                objective_value(objective, one.solution.energy_pj, one.solution.latency_cycles),
                one.value,
                rel_tol=1e-9,
            ):
                wrong.append(f"seed {seed} {pick}: told {one.value}, evaluated otherwise")
        below = {"alt": ("wp", "bf", "fp", "bp", "ind"), "wp": ("ol",), "bf": ("ol",)}
        wrong += [
            f"seed {seed}: {a} above {b}"
            for a, others in below.items()
            for b in others
            if value[a] > value[b] * (1 + 1e-9)
        ]
        alt = found["alt"]
        assert not isinstance(alt, Infeasible)
        conversions += len(alt.conversions)
        wrong += [
            f"seed {seed}: {one} does not pay" for one in alt.conversions if one.saved < -1e-9 * alt.value
        ]
    return wrong, over, conversions


def milp(tables: Sequence[Table], objective: str) -> float:
    """The least sum of one row per table whose labels agree, by HiGHS: binaries per row, and per label of a
    node.
    """
    column = {"energy": 0, "latency": 1}[objective]
    rows = [(t, r) for t, one in enumerate(tables) for r in range(len(one.labels))]
    at = {row: i for i, row in enumerate(rows)}
    labels = sorted(
        {
            (node, int(label))
            for one in tables
            for k, node in enumerate(one.scope)
            for label in one.labels[:, k]
        }
    )
    place = {label: len(rows) + i for i, label in enumerate(labels)}
    lines, right = list[dict[int, float]](), list[float]()
    for t, one in enumerate(tables):
        lines.append({at[t, r]: 1.0 for r in range(len(one.labels))})
        right.append(1.0)
        for k, node in enumerate(one.scope):
            for label in [label for name, label in labels if name == node]:
                lines.append(
                    {at[t, r]: 1.0 for r in range(len(one.labels)) if one.labels[r, k] == label}
                    | {place[node, label]: -1.0}
                )
                right.append(0.0)
    a = lil_matrix((len(lines), len(rows) + len(labels)))
    for i, line in enumerate(lines):
        for j, value in line.items():
            a[i, j] = value
    cost = np.concatenate([[float(tables[t].values[r, column]) for t, r in rows], np.zeros(len(labels))])
    scale = float(np.abs(cost).max())
    found = scipy_milp(
        cost / scale,
        constraints=LinearConstraint(a.tocsr(), right, right),
        integrality=np.ones(len(cost)),
        bounds=Bounds(0, 1),
        options={"mip_rel_gap": 1e-9},
    )
    assert found.status == 0, found.message
    return float(found.fun) * scale


def copies(first: int, last: int) -> tuple[list[str], list[float]]:
    """(what is wrong, distances of copies between layouts to the least of all their mappings)."""
    wrong, above = list[str](), list[float]()
    for seed in range(first, last):
        try:
            above.append(copy_above(seed, [(4, 4), (2, 6), (8, 3), (2, 2, 3)]))
        except AssertionError as fault:
            wrong.append(f"copies: seed {seed}: {fault}")
    return wrong, above


def programs(first: int, last: int) -> tuple[list[str], int]:
    """Small graphs with cheap copies, as integer programs."""
    wrong, asked = list[str](), 0
    for seed in range(first, last):
        rng = Random(seed)
        net, objective = network(rng), rng.choice(["energy", "latency"])
        with patch.object(graphs, "MAX_LABELS", 3), cheaper(rng.choice([1.0, 1e-3])):
            g = graphs.Layouts(SMALL, net, objective, solve(SMALL, net, objective))  # type: ignore[arg-type]
            rule = next(g.rules("alt"))
            found = g.minimum(rule)
            # every copy by its price, wanted or not
            g.solved_copies = {g._shape_key(one) for one in g.interface}
            priced = g.minimum(rule)
        assert found[2]
        assert priced[2]
        value, least = found[0], milp(priced[3], objective)
        asked += 1
        if not isclose(value, least, rel_tol=1e-6):
            wrong.append(f"seed {seed}: {value}, as an integer program {least}")
    return wrong, asked


def residual(blocks: int = 13, labels: int = 8) -> tuple[float, float]:
    """(CPU seconds of the join, its value over the best of 1,000 random choices made better label by label)
    of a network of `blocks` residual blocks of four einsums, and two more; costs at random.
    """
    rng = np.random.default_rng(7)
    tables, before = list[Table](), "in>"

    def factor(*scope: str) -> None:
        many = np.array(list(product(range(labels), repeat=len(scope))))
        own = rng.random(len(many)) + (
            3.0 * (many[:, 0] != many[:, -1]) * rng.random() if len(scope) == 2 else 0.0
        )
        tables.append(Table(scope, many, np.column_stack([own, own])))

    factor("in>")
    for b in range(blocks):
        names = [f"{b}.{k}" for k in range(4)]
        for k, name in enumerate(names[:3]):
            factor(f"{names[k - 1]}>" if k else before, f"{name}<")  # a copy between maker and reader
            factor(f"{name}<", f"{name}>")
        factor(f"{names[2]}>", before, f"{names[3]}>")  # the sum
        before = f"{names[3]}>"
    factor(before, "out<")
    started = process_time()
    found = join(tables, ranking="energy").choices[0]
    took = process_time() - started
    values = [
        {tuple(row): float(v) for row, v in zip(t.labels.tolist(), t.values[:, 0], strict=True)}
        for t in tables
    ]
    nodes = sorted({node for t in tables for node in t.scope})
    of = {node: [i for i, t in enumerate(tables) if node in t.scope] for node in nodes}
    least = float("inf")
    for _ in range(1000):
        at = {node: int(rng.integers(labels)) for node in nodes}
        for node in nodes:

            def local(label: int, node: str = node, at: dict[str, int] = at) -> float:
                return sum(
                    values[i][tuple(label if name == node else at[name] for name in tables[i].scope)]
                    for i in of[node]
                )

            at[node] = min(range(labels), key=local)
        least = min(least, sum(values[i][tuple(at[name] for name in t.scope)] for i, t in enumerate(tables)))
    return took, found.energy / least


def beaten(number: int, name: str, joint: int, loops: int) -> tuple[list[str], str, list[float], int]:
    """(what beats the exact answer, proposer, distances to it after each cost, layouts that the exact one
    counts) on an operator of ResNet-18, MobileNet-V2 or BERT, at its size or a part of it.
    """
    text, sizes, objective = OPERATORS[number]
    one = Problem(EDGE, einsum(text, sizes), objective)
    solved = pairs_of(one, "imperfect_spatial", FREE, 0.0, frozenset())
    assert not isinstance(solved, Infeasible)
    exact = min(objective_value(objective, best.energy_pj, best.latency_cycles) for best in solved.costs)
    looked = sum(len(mapping.transfers) for mapping in solved.mappings)
    found = sampled(one, Random(number), PROPOSERS[name](number), joint, loops)
    if isinstance(found, Infeasible):
        return [], name, [], looked
    curve = [value / exact for value in found[1]]
    return (
        [f"operator {number}, {objective}: {name} finds {curve[-1]} of the exact answer"]
        if curve[-1] < 1 - 1e-9
        else [],
        name,
        curve,
        looked,
    )


def random_nests(name: str, kind: str, count: int, seed: int = 0) -> tuple[list[str], str, float]:
    """(what is wrong, operator, least latency of random nests in their best layouts over the answer's)."""
    arch, rng = machine.load_arch(name), Random(seed)
    e = operators(Random(seed))[kind]
    one = Problem(arch, e, "latency")
    found = layout_aware(one, allowed_gap=0.01)
    assert not isinstance(found, Infeasible), found
    answer = found[0]
    drawn = dict[Mapping, LayoutPricing]()
    for _ in range(20 * count):
        nest = mapping_of(e, arch, draw(e, arch, rng))
        if len(drawn) < count and nest not in drawn and not overflow(footprints(nest, e, arch), e, arch):
            drawn[nest] = layout_pricing(one, nest)
    least = float("inf")
    # no layout costs less than none
    for cycles, pricing in sorted(((own.cost({})[1], own) for own in drawn.values()), key=lambda row: row[0]):
        if cycles >= least:
            break
        least = min(least, best_layouts(pricing, {})[1])
    floor = answer.latency_cycles / (1 + answer.optimality_gap)
    label = f"{name} {kind}, {len(drawn)} nests, gap {100 * answer.optimality_gap:.3g} %"
    wrong = [f"{label}: {least} cycles below {floor}"] if least < floor * (1 - 1e-9) else []
    return wrong, label, least / answer.latency_cycles


def cut_once(rng: Random, names: Sequence[str], shape: Sequence[int]) -> str:
    """Any order of dimensions that are whole or cut once, evenly."""
    parts = list[str]()
    for name, n in zip(names, shape, strict=True):
        tile = rng.choice([f for f in range(1, n) if n % f == 0])
        parts += [name] if tile == 1 else [f"{name}/{tile}", f"{name.lower()}{tile}"]
    rng.shuffle(parts)
    return " ".join(parts)


def moved(name: str, objective: str, count: int) -> list[float]:
    """How far copies of images between random layouts lie above the bound of any copy, in percent."""
    rng, found = Random(0), list[float]()
    copies_on = convert.Conversions(machine.load_arch(name), objective)
    while len(found) < count:
        size, channels = rng.choice((7, 14, 28, 56)), rng.choice((16, 32, 64, 128, 256))
        shape, names = (channels, size, size), ("C", "H", "W")
        a, b = (parse(cut_once(rng, names, shape), names, shape) for _ in range(2))
        if a != b:
            found.append(100 * copies_on.cost(None, a, b).gap)
    return found


MUTANTS = (
    "conversions cost nothing",
    "nothing is ever converted",
    "copies are never priced",
    "floor 5 % too high",
    "lines longer than they are",
)


def lives(mutant: str, many: int) -> bool:
    """Whether nothing notices a rule that is changed."""
    cost, plain, bits = convert.Conversions.cost, searched.search_below, searched._line_bits
    changed: list[tuple[Any, str, Any]] = {
        "conversions cost nothing": [
            (convert.Conversions, "lower_bound", lambda self, *a: (0.0, 0.0)),
            (convert.Conversions, "cost", lambda self, *a: replace(cost(self, *a), energy=0.0, cycles=0.0)),
        ],
        "nothing is ever converted": [(convert.Conversions, "lower_bound", lambda self, *a: (1e30, 1e30))],
        "copies are never priced": [
            (
                graphs.Layouts,
                "_copy",
                lambda self, one, *a: self.conversions.lower_bound(*self._shape_key(one)),
            )
        ],
        "floor 5 % too high": [
            (
                joint,
                "search_below",
                lambda *a, **k: replace(plain(*a, **k), lower_bound=1.05 * plain(*a, **k).lower_bound),
            )
        ],
        "lines longer than they are": [(searched, "_line_bits", lambda arch, v: bits(arch, v) * 9 // 8)],
    }[mutant]
    with ExitStack() as stack:
        for place, name, rule in changed:
            stack.enter_context(patch.object(place, name, rule))
        return not any(
            on_graphs(at, at + 1, 1.0 if mutant == MUTANTS[0] else 1e-3)[0]
            if mutant in MUTANTS[:3]
            else pairs(at, at + 1)[0]
            for at in range(many)
        )


def told(curves: dict[str, list[list[float]]]) -> str:
    """Of proposers: geometric means over operators of the distance after so many costs, and the range in the
    end.
    """
    lines = []
    for name, several in curves.items():
        means = {
            n: geometric_mean(own[n - 1] for own in several)
            for n in (50, 100, 200, 500, 1000, 2000)
            if all(len(own) >= n for own in several)
        }
        ends = [own[-1] for own in several]
        lines.append(
            f"{name} {min(ends):.3g} to {max(ends):.3g} x the exact answer "
            f"({', '.join(f'{n} costs: {mean:.3g}' for n, mean in means.items())})"
        )
    return "; ".join(lines)


def main() -> int:
    begun = time.monotonic()

    def said(line: str) -> None:
        print(f"{line}  [{time.monotonic() - begun:.0f} s]", flush=True)

    def machines_and_operators() -> list[str]:
        wrong, count = list[str](), max(int(2000 * SHARE), 20)
        for name in MACHINES if ONLY in ("", "nests") else ():
            rows = [random_nests(name, kind, count) for kind in operators(Random(0))]
            wrong += [line for lines, *_ in rows for line in lines]
            below = [f"{label}: {ratio:.3f}" for _, label, ratio in rows if ratio < 1]
            said(f"nests: {name}, {len(rows)} operators, least {min(r for *_, r in rows):.3f} of the answer")
            said(f"    below the answer: {below}")
        for name, objective in product(MACHINES if ONLY in ("", "moves") else (), ("energy", "latency")):
            far = moved(name, objective, 20)
            said(
                f"moves: {name}, {objective}: {sum(one > 5 for one in far)} of {len(far)} copies more than "
                f"5 % above their bound, median {median(far):.2g} %, worst {max(far):.3g} %"
            )
        return wrong

    wrong = machines_and_operators()
    if ONLY:
        print(*wrong, sep="\n")
        return int(bool(wrong))
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:

        def chunks(asked: Callable[..., Any], first: int, many: int, *more: float) -> list[Any]:
            tasks = [
                pool.submit(asked, at, min(at + 5, first + many), *more)
                for at in range(first, first + many, 5)
            ]
            return [task.result() for task in tasks]

        found = chunks(pairs, 0, int(PAIRS * SHARE))
        wrong += [line for lines, _ in found for line in lines]
        above = [value for _, own in found for value in own]
        said(
            f"pairs: {len(above)} problems, {sum(one < 1e-9 for one in above)} answers are the least pair, "
            f"others up to {100 * max(above):.2g} % above (median {100 * median(above):.2g} %)"
        )
        priced = chunks(at_random, 1000, int(RANDOM * SHARE))
        wrong += [line for lines, _ in priced for line in lines]
        said(
            f"random: {sum(n for _, n in priced)} pairs priced, {sum(len(lines) for lines, _ in priced)} "
            "below their floor"
        )
        waits = [one for own in chunks(stalls, 0, int(EXCHANGES * SHARE)) for one in own]
        wrong += [line for one in waits for line in one.wrong]
        said(
            f"exchanges: {sum(one.asked for one in waits)} mappings, {sum(one.higher for one in waits)} "
            f"above that of the busiest port, {sum(one.attained for one in waits)} of them attained, "
            f"{sum(len(one.wrong) for one in waits)} too high"
        )
        for share, many in ((1.0, int(GRAPHS * SHARE)), (1e-3, int(GRAPHS * SHARE) // 2)):
            solved = chunks(on_graphs, 0, many, share)
            wrong += [line for lines, *_ in solved for line in lines]
            worst = (
                {pick: max(max(over[pick]) for _, over, _ in solved) for pick in solved[0][1]}
                if share == 1.0
                else {}
            )
            said(
                f"graphs, copies at {share:g} of their cost: "
                f"{sum(len(over['alt']) for _, over, _ in solved)}, {sum(n for *_, n in solved)} "
                "conversions" + "".join(f", {pick} up to {most:.3g} x alt" for pick, most in worst.items())
            )
        made = chunks(copies, 0, int(COPIES * SHARE))
        wrong += [line for lines, _ in made for line in lines]
        far = [value for _, own in made for value in own]
        said(
            f"copies: {len(far)} pairs of layouts, up to {100 * max(far):.2g} % above the least "
            f"mapping (median {100 * median(far):.2g} %)"
        )
        programmed = chunks(programs, 0, max(int(GRAPHS * SHARE) // 4, 5))
        wrong += [line for lines, _ in programmed for line in lines]
        said(
            f"milp: {sum(n for _, n in programmed)} integer programs, "
            f"{sum(len(lines) for lines, _ in programmed)} of another value"
        )
        took, over_random = residual()
        said(
            f"residual: 54 einsums, 8 labels: joined in {took:.2f} CPU s, {over_random:.3f} of the "
            "best of 1,000 random choices improved label by label"
        )
        wrong += [f"residual: {took} s, {over_random}"] if took > 2 or over_random > 1 + 1e-9 else []
        asked = [
            pool.submit(beaten, number, name, int(300 * SHARE) + 20, int(700 * SHARE) + 20)
            for number in range(len(OPERATORS))
            for name in PROPOSERS
        ]
        curves = dict[str, list[list[float]]]()
        for beats, name, curve, _ in (one.result() for one in asked):
            wrong += beats
            curves.setdefault(name, []).extend([curve] if curve else [])
        said(
            "sampled (the exact search counts "
            f"{', '.join(str(one.result()[3]) for one in asked[:: len(PROPOSERS)])} layouts): {told(curves)}"
        )
        alive = [pool.submit(lives, mutant, max(int(40 * SHARE), 10)) for mutant in MUTANTS]
        left = [mutant for mutant, one in zip(MUTANTS, alive, strict=True) if one.result()]
        said(f"mutants: {len(left)} of {len(MUTANTS)} left: {left}")
    for line in wrong:
        print(line)
    return int(bool(wrong or left))
