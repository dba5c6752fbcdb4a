"""Mappings and layouts together, and layouts of graphs, against everything that they choose from.

    pairs      small problems: every mapping in every layout that is cut once; no pair costs less than the floor, the answer is the least pair or says its gap
    random     every mapping of small problems in random layouts, three objectives: none costs less than the floor
    graphs     small graphs: every label of every tensor and use, every mapping: the graph engine's answer is the least
    order      the same graphs: alt <= wp, bf, fp, bp, ind; wp, bf <= ol; what is given out is what the evaluator says
    mutants    a bound that is too high, lines counted per lane, conversions for nothing: the proofs above notice
"""

from __future__ import annotations

import os
from math import isclose
from random import Random
from statistics import median
from unittest.mock import patch

from dse.assign import convert
from dse.assign import layouts as graphs
from dse.assign.layouts import assigned
from dse.dataflow import lined as joint
from dse.dataflow import search as searched
from dse.dataflow.lined import lined
from dse.dataflow.search import search
from dse.nest import Infeasible
from dse.sim.evaluate import figure
from tests import lined as small
from tests.test_assign import OBJECTIVES, SMALL, cheaper, enumerated, network, solve

PAIRS, RANDOM, GRAPHS = 150, 150, 200
SHARE = float(os.environ.get("DSE_ASSIGN", "1"))  # of all problems


def pairs(first: int, last: int) -> tuple[list[str], list[float]]:
    """(what is wrong, distances of answers to the least pair)."""
    wrong, above = list[str](), list[float]()
    for seed in range(first, last):
        one, tiles = small.problem(seed, 60)
        best, found = small.enumerated(one, tiles), lined(one, tiles)  # type: ignore[arg-type]
        if isinstance(found, Infeasible) or best.mapping is None:
            wrong += [f"seed {seed}: {found}"] if not (isinstance(found, Infeasible) and best.mapping is None) else []
            continue
        answer = found[0]
        if answer.energy_pj / (1 + answer.gap_in_space) > best.energy * (1 + 1e-9):
            wrong.append(f"seed {seed}: floor {answer.energy_pj / (1 + answer.gap_in_space)} above {best.energy} of\n{best.mapping}")
        if joint.search(one, tiles).floor > best.energy * (1 + 1e-9):  # type: ignore[arg-type]
            wrong.append(f"seed {seed}: floor of the search above {best.energy} of\n{best.mapping}")
        above.append(max(answer.energy_pj / best.energy - 1, 0.0))
    return wrong, above


def at_random(first: int, last: int) -> tuple[list[str], int]:
    wrong, priced = list[str](), 0
    for seed in range(first, last):
        for objective in OBJECTIVES:
            one, tiles = small.problem(seed, 60, objective)
            floor = search(one, tiles).floor  # type: ignore[arg-type]
            for value, mapping in small.priced_at_random(one, tiles, Random(seed)):
                priced += 1
                if value < floor * (1 - 1e-9):
                    wrong.append(f"seed {seed} {objective}: {value} below {floor}\n{mapping}")
    return wrong, priced


def on_graphs(first: int, last: int, share: float = 1.0) -> tuple[list[str], dict[str, list[float]], int]:
    """(what is wrong, values of every pick over those of alt, conversions of alt). share: of what a copy costs."""
    wrong, over, conversions = list[str](), dict[str, list[float]](), 0
    for seed in range(first, last):
        rng = Random(seed)
        net, objective = network(rng), rng.choice(OBJECTIVES)
        with patch.object(graphs, "LABELS", 3), cheaper(share):
            solved = solve(SMALL, net, objective)
            least = enumerated(SMALL, net, objective, solved, share)
            found = {pick: assigned(SMALL, net, objective, pick, solved) for pick in ("alt", "ol", "wp", "bf", "ind", "fp", "bp")}  # type: ignore[arg-type]
        value = {pick: one.value for pick, one in found.items() if not isinstance(one, Infeasible)}
        if not isclose(value["alt"], least, rel_tol=1e-9):
            wrong.append(f"seed {seed}: {value['alt']}, all choices {least}")
        for pick, one in found.items():
            assert not isinstance(one, Infeasible)
            over.setdefault(pick, []).append(one.value / value["alt"])
            if share == 1.0 and not isclose(figure(objective, one.solution.energy_pj, one.solution.latency_cycles), one.value, rel_tol=1e-9):
                wrong.append(f"seed {seed} {pick}: told {one.value}, evaluated otherwise")
        below = {"alt": ("wp", "bf", "fp", "bp", "ind"), "wp": ("ol",), "bf": ("ol",)}
        wrong += [f"seed {seed}: {a} above {b}" for a, others in below.items() for b in others if value[a] > value[b] * (1 + 1e-9)]
        alt = found["alt"]
        assert not isinstance(alt, Infeasible)
        conversions += len(alt.conversions)
        wrong += [f"seed {seed}: {one} does not pay" for one in alt.conversions if one.saved < -1e-9 * alt.value]
    return wrong, over, conversions


def mutants(graphs_: int, pairs_: int) -> list[str]:
    """Rules changed one at a time that nothing noticed."""
    cost, floor, plain, bits = convert.Conversions.cost, convert.Conversions.floor, joint.search, searched._line_bits
    left = []
    with patch.object(convert.Conversions, "floor", lambda self, *a: 1e30 + floor(self, *a)), \
            patch.object(convert.Conversions, "cost", lambda self, *a: (cost(self, *a)[0], 0.0, 0.0)):
        left += [] if on_graphs(0, graphs_)[0] else ["conversions cost nothing"]
    with patch.object(graphs._Graph, "unconverted", lambda self, every: frozenset(use.node for one in self.shared for use in one.readers)):
        left += [] if on_graphs(0, graphs_, 1e-3)[0] else ["nothing is ever converted"]
    with patch.object(joint, "search", lambda *a, **k: joint.replace(plain(*a, **k), floor=1.05 * plain(*a, **k).floor)):  # type: ignore[attr-defined]
        left += [] if pairs(0, pairs_)[0] else ["floor 5 % too high"]
    with patch.object(searched, "_line_bits", lambda arch, v: bits(arch, v) * 9 // 8):
        left += [] if pairs(0, pairs_)[0] else ["lines longer than they are"]
    return left


def main() -> int:
    wrong, above = pairs(0, int(PAIRS * SHARE))
    exact = sum(one < 1e-9 for one in above)
    print(f"pairs: {len(above)} problems, {exact} answers are the least pair, others up to {100 * max(above):.2g} % above (median {100 * median(above):.2g} %)")
    found, priced = at_random(1000, 1000 + int(RANDOM * SHARE))
    print(f"random: {priced} pairs priced, {len(found)} below their floor")
    broken, over, conversions = on_graphs(0, int(GRAPHS * SHARE))
    print(f"graphs: {len(over['alt'])}, {conversions} conversions; " + ", ".join(f"{pick} up to {max(own):.3g} x alt" for pick, own in over.items()))
    also, over_, cheap = on_graphs(0, int(GRAPHS * SHARE) // 2, 1e-3)
    print(f"graphs with copies at a thousandth: {len(over_['alt'])}, {cheap} conversions")
    broken += also
    left = mutants(max(int(40 * SHARE), 10), max(int(40 * SHARE), 10))
    print(f"mutants: {len(left)} of 4 left: {left}")
    for line in (*wrong, *found, *broken):
        print(line)
    return int(bool(wrong or found or broken or left))
