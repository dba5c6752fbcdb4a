"""ALT's two-stage search of one einsum, beside the exact answer (dse/mapper/exact/layout_aware.py): layouts
proposed and loops walked, then loops alone.

    joint stage    a proposer gives a split of every dimension of every tensor; a random walk over loops is
                   taken in these layouts; the best cost that it finds is the proposer's reward
    loop-only      layouts as in the best; walkers step by the predictions of gradient-boosted trees, the best
                   of each batch are costed

Source: Xu et al., ALT (EuroSys 2023): the one-level template (N H/h W/w O/o h w o), Eq. 2 (factor = round(D
a), here brought to the nearest divisor), Eq. 3 (reward = U - cost), random walks over loops, a learned cost
model with top-k. The space is a part of the exact one: layouts of one split per dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import log2
from random import Random
from typing import Protocol

import numpy as np

from dse.layout.address import row_major
from dse.layout.text import parse
from dse.mapper.baselines.annealing import features, fit_model, neighbour
from dse.mapper.baselines.random import ATTEMPTS, Choices, draw, mapping_of
from dse.mapper.exact.spatial import divisors
from dse.mapping.nest import Infeasible, Mapping, TensorLayout
from dse.sim.counts.counts import footprints
from dse.sim.einsum import cost
from dse.sim.einsum.evaluate import EinsumCost, Problem, einsum_cost, objective_value
from dse.sim.levels import transfer
from workloads.arrays import Floats
from workloads.einsum import Projection

WALK = 10  # costs of loops per layout
BATCH = 32  # neighbours that the model ranks
TOP = 8  # of them that are costed
# of PPO: ratio, step, passes over a batch, hidden units, episodes per batch
CLIP, RATE, EPOCHS, WIDTH, EPISODES = 0.2, 3e-3, 4, 32, 8


class Proposer(Protocol):
    """Splits of dimensions: sizes in, a share in (0, 1) for each out; then what they led to, more is
    better."""

    def ask(self, sizes: Sequence[int]) -> list[float]:
        """A share in (0, 1) for each dimension, by its size in elements."""

    def tell(self, reward: float) -> None:
        """The reward (more is better) of the shares that `ask` gave last."""


@dataclass(slots=True)
class Uniform:
    """Shares at random."""

    rng: Random

    def ask(self, sizes: Sequence[int]) -> list[float]:
        """Independent uniform shares; the sizes do not matter."""
        return [self.rng.random() for _ in sizes]

    def tell(self, reward: float) -> None:
        """Nothing is learned."""


def factor(size: int, share: float) -> int:
    """Eq. 2, at the nearest divisor."""
    wanted = max(1, round(size * share))
    return min(divisors(size), key=lambda d: (abs(d - wanted), d))


def text(p: Projection, factors: Sequence[int]) -> str:
    """The one-level template: all dimensions in order, then their tiles in order."""
    rows = [(name, d.size, f) for name, d, f in zip(transfer.dim_names(p), p.dims, factors, strict=True)]
    outer = [f"{name}/{f}" if f > 1 else name for name, n, f in rows if f < n or n == 1]
    return " ".join([*outer, *(f"{name.lower()}{f}" if f < n else name for name, n, f in rows if f > 1)])


@dataclass(slots=True)
class _Search:
    """best: figure, mapping with its layouts; curve: the best figure after each cost that was asked for."""

    problem: Problem
    rng: Random
    curve: list[float] = field(default_factory=list)
    best: tuple[float, EinsumCost | None] = (float("inf"), None)
    rows: list[Floats] = field(default_factory=list)
    logs: list[float] = field(default_factory=list)

    def cost(self, mapping: Mapping, layouts: tuple[TensorLayout, ...]) -> float:
        value = self._cost(mapping, layouts)
        self.curve.append(self.best[0])
        return value

    def _cost(self, mapping: Mapping, layouts: tuple[TensorLayout, ...]) -> float:
        found = einsum_cost(self.problem, replace(mapping, layouts=layouts))
        if isinstance(found, Infeasible):
            return float("inf")
        value = objective_value(self.problem.objective, found.energy_pj, found.latency_cycles)
        self.rows.append(features(self.problem.einsum, self.problem.arch, mapping))
        self.logs.append(log2(value))
        if value < self.best[0]:
            self.best = value, found
        return value

    def fitting(self, choices: Choices) -> Mapping | None:
        e, arch = self.problem.einsum, self.problem.arch
        mapping = mapping_of(e, arch, choices)
        return None if cost.overflow(footprints(mapping, e, arch), e, arch) else mapping

    def start(self) -> tuple[Choices, Mapping] | None:
        for _ in range(ATTEMPTS):
            choices = draw(self.problem.einsum, self.problem.arch, self.rng)
            if mapping := self.fitting(choices):
                return choices, mapping
        return None

    def step(self, choices: Choices) -> tuple[Choices, Mapping] | None:
        new = neighbour(self.problem.einsum, self.problem.arch, choices, self.rng)
        mapping = self.fitting(new)
        return (new, mapping) if mapping else None


def sampled(
    problem: Problem, rng: Random, proposer: Proposer | None = None, joint: int = 300, loops: int = 700
) -> tuple[EinsumCost, list[float]] | Infeasible:
    """(the best that was found, the best figure after each cost that was asked for), row-major inside of the
    machine. proposer: random shares by default.
    """
    search = _Search(problem, rng)
    proposer = proposer or Uniform(rng)
    e = problem.einsum
    home = problem.arch.levels[0].name
    sizes = [d.size for p in e.tensors() for d in p.dims]
    place: tuple[float, tuple[TensorLayout, ...], Choices | None] = (float("inf"), (), None)
    while len(search.curve) < joint:
        factors = [factor(n, share) for n, share in zip(sizes, proposer.ask(sizes), strict=True)]
        laid = _tensor_layouts(e.tensors(), factors, home)
        value, choices = _walk(search, laid, min(WALK, joint - len(search.curve)), place[2])
        proposer.tell(-value if value < float("inf") else -1e30)
        if value < place[0]:
            place = value, laid, choices
    if place[2] is None:
        return Infeasible("mappings", 1, 0, e.name, "draws")
    here, value = place[2], place[0]
    while len(search.curve) < joint + loops:
        model = fit_model(search.rows, search.logs)
        near = [one for _ in range(BATCH) if (one := search.step(here))] or [
            one for one in [search.start()] if one
        ]
        told: Sequence[float] | Floats = (
            model(np.array([features(e, problem.arch, mapping) for _, mapping in near])) if near else ()
        )
        for i in np.argsort(told, kind="stable")[: min(TOP, joint + loops - len(search.curve))]:
            if (found := search.cost(near[i][1], place[1])) < value:
                here, value = near[i][0], found
        if not near:
            break
    assert search.best[1]
    return search.best[1], search.curve


def _tensor_layouts(
    tensors: Sequence[Projection], factors: Sequence[int], home: str
) -> tuple[TensorLayout, ...]:
    found, at = [], 0
    for p in tensors:
        own = text(p, factors[at : at + len(p.dims)])
        at += len(p.dims)
        names, shape = transfer.dim_names(p), tuple(d.size for d in p.dims)
        if parse(own, names, shape) != row_major(names, shape):
            found.append(TensorLayout(home, p.tensor, own))
    return tuple(found)


def _walk(
    search: _Search, layouts: tuple[TensorLayout, ...], most: int, before: Choices | None
) -> tuple[float, Choices | None]:
    """The best cost of a walk in given layouts: the best of a batch (the best loops so far among it), then
    from neighbour to neighbour.
    """
    batch = [one for one in [search.start() for _ in range(most // 2)] if one]
    if before is not None and (mapping := search.fitting(before)):
        batch = [(before, mapping), *batch[: max(most // 2 - 1, 0)]]
    costs = [(search.cost(mapping, layouts), i) for i, (_, mapping) in enumerate(batch)]
    if not costs:
        search.curve += [search.best[0]] * most  # draws that do not fit are asked for, too
        return float("inf"), None
    value, i = min(costs)
    here = batch[i][0]
    for _ in range(most - len(costs)):
        if (one := search.step(here)) is None:
            search.curve.append(search.best[0])
        elif (found := search.cost(one[1], layouts)) <= value:
            here, value = one[0], found
    return value, here


@dataclass(slots=True)
class Actor:
    """Proximal policy optimisation: an actor that gives a share per dimension, one after the other, and a
    critic that all of them share.

    State: log2 of the parts of every dimension so far, and which one is next. Reward of an episode: that of
    its layout, Eq. 3, in units of its spread.
    """

    rng: np.random.Generator
    actor: list[Floats] = field(default_factory=list)
    critic: list[Floats] = field(default_factory=list)
    spread: float = 0.5
    steps: list[tuple[Floats, float]] = field(default_factory=list)
    done: list[tuple[list[tuple[Floats, float]], float]] = field(default_factory=list)

    def ask(self, sizes: Sequence[int]) -> list[float]:
        """Shares drawn from the policy, dimension by dimension; each sees the parts split before it."""
        n = len(sizes)
        if not self.actor:
            self.actor, self.critic = (_net(self.rng, 3 * n) for _ in range(2))
        state, self.steps, shares = np.concatenate([np.log2(sizes), np.zeros(n)]), [], []
        for k, size in enumerate(sizes):
            seen = np.concatenate([state / 8, np.eye(n)[k]])
            raw = float(_out(self.actor, seen)[0]) + self.spread * float(self.rng.standard_normal())
            self.steps.append((seen, raw))
            shares.append(float(1 / (1 + np.exp(-raw))))
            f = factor(size, shares[-1])
            state[k], state[n + k] = np.log2(size / f), np.log2(f)
        return shares

    def tell(self, reward: float) -> None:
        """Record the episode with reward -log2 of the cost; learn after every EPISODES of them."""
        self.done.append((self.steps, -log2(max(-reward, 1e-30))))
        if len(self.done) % EPISODES == 0:
            self._learn(self.done[-EPISODES:])

    def _learn(self, episodes: Sequence[tuple[list[tuple[Floats, float]], float]]) -> None:
        seen = np.array([state for steps, _ in episodes for state, _ in steps])
        raw = np.array([raw for steps, _ in episodes for _, raw in steps])
        known = np.array([reward for _, reward in self.done])
        reward = (np.array([reward for steps, reward in episodes for _ in steps]) - known.mean()) / (
            known.std() + 1e-6
        )
        before = _out(self.actor, seen)
        gain = reward - _out(self.critic, seen)
        for _ in range(EPOCHS):
            mean = _out(self.actor, seen)
            ratio = np.exp(((raw - before) ** 2 - (raw - mean) ** 2) / (2 * self.spread**2))
            kept = np.where(gain > 0, ratio < 1 + CLIP, ratio > 1 - CLIP)
            _down(self.actor, seen, -gain * ratio * kept * (raw - mean) / self.spread**2)
            _down(self.critic, seen, _out(self.critic, seen) - reward)
        self.spread = max(0.98 * self.spread, 0.1)


def _net(rng: np.random.Generator, inputs: int) -> list[Floats]:
    return [
        rng.standard_normal((inputs, WIDTH)) / inputs**0.5,
        np.zeros(WIDTH),
        rng.standard_normal(WIDTH) / WIDTH**0.5 * 0.1,
        np.zeros(1),
    ]


def _out(net: list[Floats], seen: Floats) -> Floats:
    a, b, c, d = net
    return np.asarray(np.tanh(np.atleast_2d(seen) @ a + b) @ c + d, np.float64)


def _down(net: list[Floats], seen: Floats, slope: Floats) -> None:
    """One step against the gradient; slope: of the loss by the output of each row."""
    a, b, c, d = net
    hidden = np.tanh(seen @ a + b)
    inner = slope[:, None] * c * (1 - hidden**2)
    n = len(seen)
    for one, grad in (
        (a, seen.T @ inner),
        (b, inner.sum(axis=0)),
        (c, hidden.T @ slope),
        (d, slope.sum(keepdims=True)),
    ):
        one -= RATE * 10 * grad / n
