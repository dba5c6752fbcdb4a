"""Simulated annealing guided by a learned cost model: the ML baseline of KAPLA's paper, over the space that
`exhaustive` enumerates.

Walkers step through the mapspace by the predictions of gradient-boosted trees; after each round all are
costed by the evaluator, and the trees learn from it. Source: AutoTVM (Chen et al., NeurIPS 2018) as KAPLA
runs it (arXiv 2306.15676, Sec. VI: 1024 iterations that each tune a batch of 128).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import exp, log2
from random import Random

import numpy as np

from dse.mapper.baselines.cost_descending import smallest_mapping
from dse.mapper.baselines.exhaustive import is_lower, loop_orders, loop_positions, spatial_loops
from dse.mapper.baselines.random import ATTEMPTS, Choices, draw, mapping_of, objective_values
from dse.mapper.exact.spatial import primes
from dse.mapping.nest import Infeasible, Mapping, Store, may_keep
from dse.run import deadline
from dse.sim.counts.counts import footprints
from dse.sim.einsum import cost
from dse.sim.einsum.evaluate import EinsumCost, Problem, evaluate_unfused
from dse.sim.schedule import outermost
from hw.arch import Arch
from workloads.arrays import Floats
from workloads.einsum import Einsum

ITERATIONS = 1024
CANDIDATES = 128
STEPS = 4  # steps of each walker between two rounds of costing
RESTART_SHARE = 0.05  # fraction of walkers that start again at a random mapping in every round
SAMPLES = 2048  # newest costs that the model learns from
TREES = 40
HOT, COLD = 1.0, 0.02  # first and last temperature, in doublings of the cost

Walker = tuple[Choices, Mapping]
Model = Callable[[Floats], Floats]  # features [N, F] -> predicted log2 of the objective [N]


@dataclass(slots=True)
class Evaluated:
    """What the evaluator has found so far."""

    # (objective, energy, latency) by mapping
    costs: dict[Mapping, tuple[float, float, float]] = field(default_factory=dict)
    rows: list[Floats] = field(default_factory=list)  # features, in the order in which mappings were costed
    logs: list[float] = field(default_factory=list)  # log2 of the objective, in the same order


@outermost.mapper
def annealing(
    problem: Problem, rng: Random, iterations: int = ITERATIONS, candidates: int = CANDIDATES
) -> list[EinsumCost] | Infeasible:
    """The best of the mappings that walkers reach by simulated annealing, and of the smallest mapping.

    Returns a list of one solution. `candidates` walkers go through `iterations` rounds.
    """
    e, arch = problem.einsum, problem.arch
    best = smallest_mapping(e, arch)
    if isinstance(best, Infeasible):
        return best
    walkers = [walker for _ in range(candidates) if (walker := _random_walker(e, arch, rng))]
    model: Model = _unlearned
    evaluated, fitted_count = Evaluated(), 0
    _cost(problem, [best], evaluated)
    for i in range(iterations if walkers else 0):
        if deadline.has_passed():
            break
        temperature = HOT * (COLD / HOT) ** (i / iterations)
        for _ in range(STEPS):
            walkers = _step(e, arch, walkers, model, temperature, rng)
        _cost(problem, [mapping for _, mapping in walkers], evaluated)
        if len(evaluated.logs) > 1.25 * fitted_count:
            model, fitted_count = fit_model(evaluated.rows, evaluated.logs), len(evaluated.logs)
        walkers = [
            (_random_walker(e, arch, rng) if rng.random() < RESTART_SHARE else None) or walker
            for walker in walkers
        ]
    for mapping, found in evaluated.costs.items():
        best = mapping if is_lower(found, evaluated.costs[best]) else best
    return [evaluate_unfused(problem, best)]


def _random_walker(e: Einsum, arch: Arch, rng: Random) -> Walker | None:
    """A random mapping that fits."""
    for _ in range(ATTEMPTS):
        if walker := _walker_if_fits(e, arch, draw(e, arch, rng)):
            return walker
    return None


def _walker_if_fits(e: Einsum, arch: Arch, choices: Choices) -> Walker | None:
    """The choices with their mapping; None if it does not fit."""
    mapping = mapping_of(e, arch, choices)
    return None if cost.overflow(footprints(mapping, e, arch), e, arch) else (choices, mapping)


def _step(
    e: Einsum, arch: Arch, walkers: Sequence[Walker], model: Model, temperature: float, rng: Random
) -> list[Walker]:
    """Every walker proposes a neighbour that fits. It moves there if the model predicts a lower cost,
    otherwise with a probability that falls with the difference over the temperature (`temperature`).
    """
    proposals = [
        _walker_if_fits(e, arch, neighbour(e, arch, choices, rng)) or (choices, mapping)
        for choices, mapping in walkers
    ]
    rows = [
        features(e, arch, mapping) for pair in zip(walkers, proposals, strict=True) for _, mapping in pair
    ]
    logs = model(np.array(rows)).reshape(-1, 2)
    worse = np.maximum(logs[:, 1] - logs[:, 0], 0.0) / temperature
    return [
        new if rng.random() < exp(-step) else old
        for old, new, step in zip(walkers, proposals, worse.tolist(), strict=True)
    ]


def neighbour(e: Einsum, arch: Arch, choices: Choices, rng: Random) -> Choices:
    """The choices with one of them changed: a prime factor of a rank added at one loop position, and taken
    from another if it is there; the PEs of a spatial loop; the order of the loops at a position; or a node
    moved within its level, into it or out of it.
    """
    positions, orders = loop_positions(arch, choices.placement), loop_orders(e, arch, choices.placement)
    chance, trips = rng.random(), dict(choices.trips)
    open_positions = [
        position
        for position, position_orders in zip(positions, orders, strict=True)
        if position_orders != [()]
    ]
    if chance < 0.5 and open_positions:  # there are none if every rank has extent 1
        rank = rng.choice([rank for rank, n in e.extents if n > 1])
        target, source, p = (
            rng.choice(open_positions),
            rng.choice(open_positions),
            rng.choice(primes(e.sizes()[rank])),
        )
        trips[target, rank, ""] = trips.get((target, rank, ""), 1) * p
        if trips.get((source, rank, ""), 1) % p == 0:
            trips[source, rank, ""] = trips.get((source, rank, ""), 1) // p
        return replace(choices, trips=trips)
    loops = [
        (position, loop)
        for position in positions
        if isinstance(position, int)
        for loop in spatial_loops(e, arch, position)
    ]
    if chance < 0.75 and loops:
        position, loop = rng.choice(loops)
        trips[position, loop.rank, loop.over] = rng.randint(
            1, dict(pair for f in arch.fanouts for pair in f.dims)[loop.over]
        )
        return replace(choices, trips=trips)
    if chance < 0.85:
        return replace(
            choices, orders={**choices.orders, rng.choice(positions): rng.randrange(len(e.extents))}
        )
    return replace(choices, placement=_move_node(e, arch, choices, rng))


def _move_node(e: Einsum, arch: Arch, choices: Choices, rng: Random) -> tuple[tuple[str, ...], ...]:
    """The placement with one node taken out of its level, put into it, or moved within it; unchanged where
    the result would break a rule.
    """
    names = [p.tensor for p in e.tensors()]
    v, name = rng.randrange(len(arch.levels)), rng.choice(names)
    if name not in may_keep(e, arch.levels[v]):
        return choices.placement
    level_tensors = [tensor for tensor in choices.placement[v] if tensor != name]
    if name not in choices.placement[v] or not arch.levels[v].bypass or rng.random() < 0.5:
        level_tensors.insert(rng.randint(0, len(level_tensors)), name)
    changed = (*choices.placement[:v], tuple(level_tensors), *choices.placement[v + 1 :])
    return changed if all(any(name in held for held in changed) for name in names) else choices.placement


def features(e: Einsum, arch: Arch, mapping: Mapping) -> Floats:
    """The numbers that the model learns from, as log2:

    1. per level and tensor, the elements stored and how often they are filled;
    2. per fan-out dimension, the PEs in use;
    3. the trips of all temporal loops.
    """
    stored_elems = {(f.level, f.tensor): float(f.elems) for f in footprints(mapping, e, arch)}
    fills: dict[tuple[str, str], int] = {}
    used_pes = {dim: 1 for f in arch.fanouts for dim, _ in f.dims}
    tile, trips = e.sizes(), 1
    for node in mapping.nodes:
        if isinstance(node, Store):
            fills[node.level, node.tensor] = trips
            continue
        n = -(-tile[node.rank] // node.tile)
        tile[node.rank] = node.tile
        if node.over:
            used_pes[node.over] *= n
        else:
            trips *= n
    nodes = [(level.name, p.tensor) for level in arch.levels for p in e.tensors()]
    return np.array(
        [
            *(log2(stored_elems[n]) if n in stored_elems else -1.0 for n in nodes),
            *(log2(fills[n]) if n in fills else -1.0 for n in nodes),
            *(log2(n) for n in used_pes.values()),
            log2(trips),
        ]
    )


def _unlearned(rows: Floats) -> Floats:
    """The model before the first fit: all mappings are equal."""
    return np.zeros(len(rows))


def _cost(problem: Problem, mappings: Sequence[Mapping], evaluated: Evaluated) -> None:
    """Costs mappings that were not costed before, and adds them to `evaluated`."""
    for mapping in mappings:
        if mapping not in evaluated.costs:
            evaluated.costs[mapping] = objective_values(problem, mapping)
            evaluated.rows.append(features(problem.einsum, problem.arch, mapping))
            evaluated.logs.append(log2(max(evaluated.costs[mapping][0], 1e-300)))


def fit_model(rows: Sequence[Floats], logs: Sequence[float]) -> Model:
    """Trees fitted to the newest costs. rows: features; logs: log2 of the objective."""
    # imported here: it takes a second to load, and only this mapper needs it
    from sklearn.ensemble import GradientBoostingRegressor

    trees = GradientBoostingRegressor(n_estimators=TREES, max_depth=5, learning_rate=0.2, random_state=0)
    trees.fit(np.array(rows[-SAMPLES:]), np.array(logs[-SAMPLES:]))
    predict: Model = trees.predict
    return predict
