"""ALT's two-stage search of one einsum: layouts proposed and loops walked, then loops alone.

    joint stage    a proposer gives the tiles of the paper's template; a random walk over loops is taken in
                   these layouts; the best cost that it finds is the proposer's reward
    loop-only      layouts as in the best; walkers step by the predictions of gradient-boosted trees, the best
                   of each batch are costed

Source: Xu et al., ALT (EuroSys 2023): the templates of section 5.1 (`template`), Eq. 2 (factor = round(D a),
here brought to the nearest divisor), Eq. 3 (reward = U - cost), random walks over loops, a learned cost model
with top-k. Proposers are random shares, a tree-structured Parzen estimator, and the paper's actor-critic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Mapping as Dict
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import log2
from random import Random
from typing import Any, Protocol

import numpy as np

from dse.layout.address import row_major
from dse.layout.primitive import LayoutError
from dse.layout.text import parse
from dse.mapper.baselines.annealing import features, fit_model, neighbour
from dse.mapper.baselines.random import ATTEMPTS, Choices, draw, mapping_of
from dse.mapper.exact.layout_aware import PricedMappings, layout_pricing
from dse.mapper.exact.spatial import divisors
from dse.mapping.constraints import FREE
from dse.mapping.nest import Infeasible, Mapping, TensorLayout
from dse.mapping.searched import mappings_of
from dse.sim.counts.counts import footprints
from dse.sim.einsum import cost
from dse.sim.einsum.evaluate import EinsumCost, Problem, einsum_cost, objective_value
from dse.sim.levels import transfer
from workloads.arrays import Floats
from workloads.einsum import Dim, Einsum, Projection

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


@dataclass(frozen=True, slots=True)
class Template:
    """The paper's template of a product (section 5.1): which ranks the layouts of its tensors tile.

    output         N H/ht W/wt O/ot ht wt ot, or a second level of tiles between
    first operand  N H/ht W/wt I/it (windows of ht rows) (of wt columns) it
    weights        O/ot' I/it' KH KW it' ot', where tiles are their own; of products of matrices
                   K/kt N/nt kt nt, where they are the other tensors'
    """

    e: Einsum
    tiled: dict[str, int]  # extents of the ranks that output and first operand tile
    own: dict[str, int]  # of those that weights tile by themselves
    levels: int  # levels of tiles of the output

    def sizes(self) -> list[int]:
        """The sizes that are split, one share each."""
        return [n for rank, n in self.tiled.items() for _ in range(self._levels(rank))] + [*self.own.values()]

    def _levels(self, rank: str) -> int:
        return self.levels if rank in self.e.output.ranks() else 1

    def texts(self, shares: Sequence[float]) -> dict[str, str]:
        """The text of each tensor's layout. shares: one for each of `sizes()`."""
        left, tiles = iter(shares), dict[str, list[int]]()
        for rank, n in self.tiled.items():
            tiles[rank] = []
            for _ in range(self._levels(rank)):
                n = factor(n, next(left))
                tiles[rank].append(n)
        own = {rank: [factor(n, next(left))] for rank, n in self.own.items()}
        weights = _weight_ranks(self.e)
        found = {p.tensor: self._text(p, tiles, weights) for p in (self.e.output, *self.e.inputs[:1])}
        return found | {p.tensor: self._text(p, tiles | own, frozenset()) for p in self.e.inputs[1:]}

    def _text(self, p: Projection, tiles: Dict[str, list[int]], channels: frozenset[str]) -> str:
        """Outer parts of all dimensions, those of channels last, then the parts inside of them. channels: of
        weights, none: those of the output are last inside.
        """
        rows = []
        for name, d in zip(transfer.dim_names(p), p.dims, strict=True):
            rank = d.terms[0][0] if len(d.terms) == 1 else ""
            is_whole = d.size == self.e.sizes().get(rank)  # else a part of it is padding, which is not stored
            chain = tiles.get(rank, []) if is_whole and d.terms[0][1] == 1 else []
            if p.tensor != self.e.output.tensor:
                chain = chain[:1]
            is_windowed = not rank or d.terms[0][1] > 1
            parts = self._window(p, name, d, tiles) if d.terms and is_windowed else split(name, d.size, chain)
            rows.append((rank in channels, rank in self.e.output.ranks(), bool(chain), parts))
        outer = rows if not channels else sorted(rows, key=lambda row: row[0])
        if not channels:
            outer = sorted(rows, key=lambda row: not row[2])
        inner = outer if channels else sorted(rows, key=lambda row: row[1])
        depth = max((len(parts) for *_, parts in rows), default=1)
        groups = [
            [parts[k] for *_, parts in (inner if k else outer) if k < len(parts) and parts[k]]
            for k in range(depth)
        ]
        return " ".join(part for group in groups for part in group)

    def _window(self, p: Projection, name: str, d: Dim, tiles: Dict[str, list[int]]) -> list[str]:
        """Parts of a dimension that a window slides along: the rows that a tile of the output reads."""
        steps = {rank: step for rank, step in d.terms if rank in tiles and rank in self.e.output.ranks()}
        if p.tensor == self.e.output.tensor or len(steps) != 1:
            return [name]
        ((rank, stride),) = steps.items()
        tile = tiles[rank][0]
        size = max(d.hull(self.e.sizes() | {rank: tile}), stride * tile)
        if tile == 1 or size >= d.size:
            return [name] if tile == 1 else ["", name]
        unfolded = f"~{size}" if size > stride * tile else ""
        return [f"{name}/{stride * tile}", f"{name.lower()}{stride * tile}{unfolded}"]


def _weight_ranks(e: Einsum) -> frozenset[str]:
    return frozenset(rank for p in e.inputs[1:] for rank in p.ranks())


def template(e: Einsum, levels: int = 1) -> Template:
    """The template of a product. levels: of tiles of its output."""
    weights, sizes = _weight_ranks(e), e.sizes()
    windowed = {rank for p in e.tensors() for d in p.dims if len(d.terms) > 1 for rank in d.ranks()}
    first = e.output.dims[0].ranks() if len(e.output.dims) > 2 else ()
    batch = {rank for rank in first if rank not in weights | windowed}
    tiled = {
        rank: n
        for rank, n in sizes.items()
        if n > 1 and rank not in batch and not (rank in windowed and rank in weights)
    }
    has_own = bool(windowed) or len(e.output.dims) > 2
    return Template(e, tiled, {rank: n for rank, n in tiled.items() if has_own and rank in weights}, levels)


def split(name: str, size: int, tiles: Sequence[int]) -> list[str]:
    """The parts of a dimension by level, outermost first; "": none at that level.

    >>> split("H", 32, [8, 4]), split("H", 32, [32]), split("H", 32, [1]), split("H", 32, [])
    (['H/8', 'h8/4', 'h4'], ['', 'H'], ['H', ''], ['H'])
    """
    ends, found = [size, *tiles, 1], list[str]()
    for outer, inner in pairwise(ends):
        start = name if outer == size else f"{name.lower()}{outer}"
        found.append("" if outer == inner else f"{start}/{inner}" if inner > 1 else start)
    return found if any(found) else [name]


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
    problem: Problem,
    rng: Random,
    proposer: Proposer | None = None,
    joint: int = 300,
    loops: int = 700,
    levels: int = 1,
) -> tuple[EinsumCost, list[float]] | Infeasible:
    """(the best that was found, the best figure after each cost that was asked for), row-major inside of the
    machine. proposer: random shares by default; joint, loops: costs of the two stages; levels: of tiles of
    the output (`template`).
    """
    search = _Search(problem, rng)
    proposer = proposer or Uniform(rng)
    e = problem.einsum
    home = problem.arch.levels[0].name
    given = template(e, levels)
    sizes = given.sizes()
    place: tuple[float, tuple[TensorLayout, ...], Choices | None] = (float("inf"), (), None)
    while len(search.curve) < joint:
        laid = _tensor_layouts(e, given.texts(proposer.ask(sizes)), home)
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


def _tensor_layouts(e: Einsum, texts: Dict[str, str], home: str) -> tuple[TensorLayout, ...]:
    """The layouts that are not row-major. A text that no part of a tensor fits is row-major too."""
    found = []
    for p in e.tensors():
        names, shape = transfer.dim_names(p), tuple(d.size for d in p.dims)
        with suppress(LayoutError):
            if parse(texts[p.tensor], names, shape) != row_major(names, shape):
                found.append(TensorLayout(home, p.tensor, texts[p.tensor]))
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


@dataclass(slots=True)
class Tpe:
    """Optuna's tree-structured Parzen estimator."""

    study: Any
    trial: Any = None

    def ask(self, sizes: Sequence[int]) -> list[float]:
        """Shares of the next trial."""
        self.trial = self.study.ask()
        return [self.trial.suggest_float(f"{k}", 1e-3, 1 - 1e-3) for k in range(len(sizes))]

    def tell(self, reward: float) -> None:
        """The reward of that trial."""
        self.study.tell(self.trial, reward)


def tpe(seed: int) -> Tpe:
    """A proposer that learns densities of good and of bad shares."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return Tpe(optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed)))


def sampled_mapping(
    problem: Problem, proposer: str, seed: int, joint: int, loops: int, levels: int
) -> PricedMappings | Infeasible:
    """What `sampled` finds, as the one mapping of an einsum; its cost has the layouts. proposer: key of
    PROPOSERS. Nothing is proven: the lower bound is 0.
    """
    found = sampled(problem, Random(seed), PROPOSERS[proposer](seed), joint, loops, levels)
    if isinstance(found, Infeasible):
        return found
    cost, curve = found
    pricing = layout_pricing(problem, cost.mapping)
    space = mappings_of("imperfect_spatial", problem.arch, FREE)
    return PricedMappings((pricing,), (cost,), 0.0, len(curve), space)


# by value of solver.layout_proposer, from a seed
PROPOSERS: dict[str, Callable[[int], Proposer]] = {
    "random": lambda seed: Uniform(Random(seed)),
    "tpe": tpe,
    "actor-critic": lambda seed: Actor(np.random.default_rng(seed)),
}
