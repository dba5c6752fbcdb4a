"""The optimal mapper of one einsum: branch and bound over placements and tile sizes, exact and certified (specs/dataflow.md, 4).

The traffic of a tensor at a node depends only on the tiles in view there, whatever the loops that led to them; so a mapping is a walk of
every rank from its extent to 1, and costs add up node by node. Three moves cost nothing and leave one walk of each kind (4.1): a node
sinks below loops that are fully relevant to it, rises above loops that are irrelevant to it, and a tensor's outermost node stands last.
Long, because the readable side of the search (steps, tables, bounds, the way back to a nest) stands in one place beside its compiled half.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations, product
from math import inf, prod
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dse.dataflow import optimal_kernels as kernels
from dse.dataflow.optimal_kernels import GAP, LANES, MAC, NODE
from dse.dataflow.space import Constraints, Placement, Tiles, Walks, placements, walks
from dse.nest import Infeasible, Loop, Mapping, Store
from dse.sim import cost
from dse.sim.cost import bits_of, op_cycles, op_pj
from dse.sim.counts import count, dim_sum, footprints, hull, nonzero, tile_count
from dse.sim.evaluate import EinsumCost, Problem, priced
from hw.arch import Arch
from workloads.einsum import Dim, Einsum, Projection

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
BUDGET = 3_000_000  # visited nodes, a few seconds
OBJECTIVES = {"energy": 0, "latency": 1, "edp": 2}
FREE = Constraints()


@dataclass(frozen=True, slots=True)
class Step:
    """Loops in time of the allowed ranks, then a node of a tensor at a level (by number; parent: the level that fills it, -1: none), lanes
    (parent -1: no loop stands above), or compute."""

    kind: int
    allowed: frozenset[str]
    level: int = -1
    tensor: int = -1
    parent: int = -1


def optimal(problem: Problem, rng: Random) -> list[EinsumCost] | Infeasible:
    """Best first: one solution, the optimum over dividing temporal tiles and ragged lanes. Deterministic: rng is not used."""
    return solved(problem)


def solved(problem: Problem, tiles: Tiles = "divisor", constraints: Constraints = FREE, budget: int = BUDGET) -> list[EinsumCost] | Infeasible:
    """The optimum of one einsum; ties by energy, then latency, within a relative 1e-10. budget: nodes visited at most."""
    e, arch = problem.einsum, problem.arch
    space = Space(problem, tiles, constraints)
    if space.borders and space.borders[0] > 0 and not arch.levels[0].bypass and tiles != "ragged":
        found, visited = _split(space, budget)
    else:
        found, visited = _every_placement(space, budget)
    proven = visited <= budget
    least = _least(e, arch)
    if found is None and (proven or cost.overflow(footprints(least, e), e, arch)):
        return cost.overflow(footprints(least, e), e, arch) or Infeasible("constraints", 1, 0, e.name, "mappings")
    mapping = nest(space, *found) if found else least
    answer = priced(problem, mapping, count(mapping, e, arch), footprints(mapping, e))
    return [replace(answer, gap=0.0 if proven else answer.gap, certificate=f"optimal({tiles})" if proven else "", visited=visited)]


def _every_placement(space: Space, budget: int) -> tuple[tuple[Sequence[Step], Ints] | None, int]:
    """(steps and states of the best, nodes visited) without a split: machines without fan-outs, or tiles that do not divide."""
    best, visited = np.full(3, inf), 0
    found = None
    for _, steps in programs(space):
        chosen, n = _searched(space, steps, best, budget - visited)
        visited += n
        if chosen is not None:
            found = steps, chosen
    return found, visited


def _split(space: Space, budget: int) -> tuple[tuple[Sequence[Step], Ints] | None, int]:
    """(steps and states of the best, nodes visited), outer and inner steps apart: see kernels.split."""
    border = space.borders[0]
    outer: dict[tuple[Step, ...], tuple[int, ...]] = {}
    inner: dict[tuple[tuple[Step, ...], tuple[int, ...]], tuple[int, ...]] = {}
    for placement, steps in programs(space):
        at = next(i for i, s in enumerate(steps) if s.kind == LANES)
        parents = tuple(max((v for v in range(border) if x in placement[v]), default=-1) for x in range(len(space.tensors)))
        outer[tuple(steps[:at])] = parents
        last = tuple(max(v for v, own in enumerate(placement) if x in own) for x in range(len(space.tensors)))
        inner[tuple(steps[at:]), last] = parents
    sigs = {parents: i for i, parents in enumerate(dict.fromkeys(outer.values()))}
    outs = [program(space, steps, {}) for steps in outer]
    ins = [program(space, steps, dict(enumerate(last))) for steps, last in inner]
    pairs: dict[tuple[int, tuple[int, ...]], int] = {}
    in_pair = [pairs.setdefault((sigs[parents], tuple(sorted(p.order))), len(pairs)) for p, parents in zip(ins, inner.values(), strict=True)]
    pair_links = _padded([np.array(order, np.int64) for _, order in pairs])
    joint = [[t for link in order for t in range(*space.links[link]) if t in space.accesses] for _, order in pairs]
    joint = [own if sum(space.accesses[t].sum() for t in own) == len(np.flatnonzero(sum(space.accesses[t] for t in own))) else [] for own in joint]
    unseen = np.zeros((len(space.products), len(space.ranks)), np.bool_)
    for t, ranks in space.accesses.items():
        unseen[t] = ranks
    states = [[s for s, cuts in enumerate(space.walks[rank].cuts) if all(d < 0 for _, d in cuts)] for rank in space.ranks]
    units = np.array([space.walks[rank].unit[0] for rank in space.ranks], np.int64)
    a, b = _stacked(outs), _stacked(ins)
    best, choice = np.full(3, inf), np.full(2, -1, np.int64)
    width = a[0].shape[1]
    chosen = np.zeros((width + b[0].shape[1], len(space.ranks)), np.int64)
    run: Any = kernels.split
    visited = run(*a, np.array([sigs[parents] for parents in outer.values()], np.int64), *b, np.array(in_pair, np.int64),
                            np.array([sig for sig, _ in pairs], np.int64), pair_links, np.array([len(order) for _, order in pairs], np.int64),
                            np.array([(*own, *[-1] * (len(space.tensors) + 1 - len(own))) for own in joint], np.int64), unseen,
                            float(prod(dim[1] for dim in space.dims)), float(space.e.points()), units,
                            _padded([np.array(own, np.int64) for own in states]), np.array([len(own) for own in states], np.int64), np.array(space.start),
                            *space.packed, best, chosen, choice, budget)
    if choice[0] < 0:
        return None, int(visited)
    first, second = outs[choice[0]].steps, ins[choice[1]].steps
    return ((*first, *second), np.concatenate((chosen[: len(first)], chosen[width : width + len(second)]))), int(visited)


def _padded(rows: Sequence[NDArray[Any]]) -> NDArray[Any]:
    shape = np.max([row.shape for row in rows], axis=0)
    found = np.zeros((len(rows), *shape), rows[0].dtype)
    for own, row in zip(found, rows, strict=True):
        own[tuple(slice(n) for n in row.shape)] = row
    return found


def _stacked(programs: Sequence[Program]) -> tuple[NDArray[Any], ...]:
    return (_padded([p.rows for p in programs]), np.array([len(p.rows) for p in programs], np.int64), _padded([p.order for p in programs]),
            _padded([p.rest for p in programs]), _padded([p.allowed for p in programs]), _padded([p.border_dims for p in programs]),
            _padded([p.ramp for p in programs]))


def _least(e: Einsum, arch: Arch) -> Mapping:
    """What must be held, one element at a time: the mapping that needs least space inside."""
    names = [p.tensor for p in e.tensors()]
    inner = [Store(level.name, name) for level in arch.levels[1:] if not level.bypass for name in names]
    return Mapping((*(Store(arch.levels[0].name, name) for name in names), *(Loop(rank, 1) for rank, n in e.extents if n > 1), *inner))


class Space:
    """The formulas of one einsum on one machine: factor tables over the ranks' states, products of them, links as weighted sums of products."""

    def __init__(self, problem: Problem, tiles: Tiles, constraints: Constraints) -> None:
        self.e, self.arch, self.tiles, self.rules = problem.einsum, problem.arch, tiles, constraints
        self.objective = OBJECTIVES[problem.objective]
        self.tensors = self.e.tensors()
        self.full_ranks = [p.full() for p in self.tensors]
        self.partial_ranks = [p.partial() for p in self.tensors]
        self.ranks = [rank for rank, n in self.e.extents if n > 1] or [rank for rank, _ in self.e.extents[:1]]
        self.dims = [(name, size, f.outside, multicast, reduce) for f in self.arch.fanouts
                     for (name, size), multicast, reduce in zip(f.dims, f.multicast, f.reduce, strict=True)]
        self.borders = sorted({f.outside for f in self.arch.fanouts})
        taken = dict(constraints.spatial)
        self.walks = {rank: walks(n, tuple(tuple((d, dim[1]) for d, dim in enumerate(self.dims) if dim[2] == border and dim[1] > 1
                                                 and rank not in self.e.output.partial() and rank in taken.get(dim[0], (rank,)))
                                           for border in self.borders), len(self.dims), tiles) for rank, n in self.e.extents}
        self.parts = self._ports()
        self.factors: dict[object, int] = {}
        self.values: list[tuple[Floats, Floats, Floats]] = []
        self.spans: list[list[tuple[int, int]]] = []
        self.products: list[tuple[int, ...]] = []
        self.weights: list[list[float]] = []
        self.floors: list[float] = []
        self.accesses: dict[int, NDArray[np.bool_]] = {}
        self.links: list[tuple[int, int]] = []
        self.numbers: dict[tuple[int, int, int], int] = {}
        for x in range(len(self.tensors)):
            for parent in range(len(self.arch.levels)):
                for child in range(parent + 1, len(self.arch.levels) + 1):
                    self._link(x, parent, child)
        self._compute_link()
        self._pack()

    def _ports(self) -> list[tuple[int, int]]:
        """Per level the numbers of its read and write parts; 0 is energy, 1 compute."""
        found, n = [], 2
        for level in self.arch.levels:
            found.append((n, n + (level.ports == "separate")))
            n = found[-1][1] + 1
        self.part_count = n
        return found

    def _link(self, x: int, parent: int, child: int) -> None:
        """What moves between a tensor's nodes at two levels (child: the number of levels for compute), as counts.recipe has it."""
        p, depth = self.tensors[x], len(self.arch.levels)
        output, seen = p is self.e.output, p.ranks()
        shared = [dim[4] if output else dim[3] for dim in self.dims]
        above = [dim[2] <= parent for dim in self.dims]
        inner = child < depth
        first = len(self.products)

        def add(sign: float, name: int, actions: Sequence[str], v: int, lanes: Callable[[str, int], bool], busiest: bool, skip: bool) -> None:
            weight = [0.0] * (self.part_count + 1)
            level = self.arch.levels[v]
            per = bits_of(self.e, self.arch)[p.tensor] / level.width_bits
            for action in actions:
                if busiest:
                    weight[self.parts[v][action == "write"]] += sign * per / level.bandwidth
                else:
                    weight[0] += sign * per * (level.read_pj if action == "read" else level.write_pj)
            if any(weight):
                weight[-1] = sign
                spread = prod(dim[1] for d, dim in enumerate(self.dims) if any(rank not in seen and lanes(rank, d) for rank in self.ranks))
                for scale, factors in self._terms(p, lanes, inner, skip):
                    at = next((i for i in range(first, len(self.products)) if self.products[i] == factors and self.weights[i][-1] == sign), None)
                    if at is None:
                        self.products.append(factors)
                        self.weights.append([w * scale for w in weight[:-1]] + [sign])
                        self.floors.append(self.e.points() / spread if not inner and not busiest and not skip else 0.0)
                        if not inner and not busiest and not skip and parent < self.borders[0] if self.borders else False:
                            self.accesses[len(self.products) - 1] = np.array([rank not in seen for rank in self.ranks])
                    else:
                        self.weights[at] = [old + w * scale for old, w in zip(self.weights[at][:-1], weight[:-1], strict=True)] + [sign]

        for busiest in (False, True):
            def served(rank: str, d: int, busiest: bool = busiest) -> bool:
                return busiest if above[d] else rank not in seen and shared[d]

            def filled(rank: str, d: int, busiest: bool = busiest) -> bool:
                return busiest

            skips = output and self.arch.levels[parent].skip_first_read
            add(1.0, parent, ("read", "write") if output else ("read",), parent, served, busiest, False)
            if skips:
                add(-1.0, parent, ("read",), parent, served, busiest, True)
            if inner:
                add(1.0, child, ("write", "read") if output else ("write",), child, filled, busiest, False)
                if skips:
                    add(-1.0, child, ("write",), child, filled, busiest, True)
        self.numbers[x, parent, child] = len(self.links)
        self.links.append((first, len(self.products)))

    def _terms(self, p: Projection, lanes: Callable[[str, int], bool], inner: bool, skip: bool) -> list[tuple[float, tuple[int, ...]]]:
        """Scaled products of factors (counts._terms)."""
        seen = p.ranks()

        def flags(rank: str) -> tuple[bool, ...]:
            return (*(lanes(rank, d) for d in range(len(self.dims))), skip and rank not in seen)

        dims = tuple(self._factor(dim, tuple((rank, flags(rank)) for rank in dim.ranks()), inner, skip) for dim in p.dims)
        outer = tuple(self._factor(None, ((rank, flags(rank)),), inner, False) for rank, _ in self.e.extents if rank not in seen)
        if not inner:
            return [(nonzero(self.e), (*dims, *outer))]
        if p.format == "dense":
            return [(1.0, (*dims, *outer))]
        rows = (*dims[:-1], *(self._factor(None, ((rank, flags(rank)),), inner, False) for rank in p.dims[-1].ranks()))
        return [(2 * p.density, (*dims, *outer)), (1.0, (*rows, *outer))]

    def _factor(self, dim: Dim | None, ranks: tuple[tuple[str, tuple[bool, ...]], ...], inner: bool, distinct: bool) -> int:
        key = (dim, ranks, inner, distinct)
        if key in self.factors:
            return self.factors[key]
        tables = [[(self.walks[rank].extent, tuple((tile, flags[d]) for tile, d in cuts)) for cuts in self.walks[rank].cuts] for rank, flags in ranks]
        exact = np.array([tile_count(*own[0]) if dim is None else dim_sum(dim, own, inner, distinct) for own in product(*tables)], np.float64)
        exact = exact.reshape([len(own) for own in tables])
        low, high = exact, exact
        for axis, (rank, _) in enumerate(ranks):
            low, high = (_reached(self.walks[rank], table, axis, pick, inner) for table, pick in ((low, np.minimum), (high, np.maximum)))
        content = (tuple(rank for rank, _ in ranks), inner, exact.tobytes())
        if content in self.factors:
            self.factors[key] = self.factors[content]
            return self.factors[content]
        self.factors[key] = self.factors[content] = number = len(self.values)
        self.values.append((exact.ravel(), low.ravel(), high.ravel()))
        steps, stride = [], 1
        for rank, own in reversed(list(zip((rank for rank, _ in ranks), tables, strict=True))):
            if rank in self.ranks:
                steps.append((self.ranks.index(rank), stride))
            stride *= len(own)
        self.spans.append(steps)
        return number

    def _compute_link(self) -> None:
        """Operations of the busiest lane."""
        e, arch = self.e, self.arch
        ops = e.points() * nonzero(e)
        self.start = [0.0] * self.part_count
        self.start[0] = ops * op_pj(e, arch)
        self.start[1] = op_cycles(ops, 0.0, e, arch)
        unit = op_cycles(0.0, 1.0, e, arch) * nonzero(e)
        first = len(self.products)
        all_first = (True,) * len(self.dims) + (False,)
        if unit:
            self.products.append(tuple(self._factor(None, ((rank, all_first),), False, False) for rank, _ in e.extents))
            self.weights.append([0.0, unit] + [0.0] * (self.part_count - 2) + [1.0])
            self.floors.append(e.points() / arch.instances(len(arch.levels)))
        self.numbers[-1, -1, -1] = len(self.links)
        self.links.append((first, len(self.products)))
        self.ramps = []
        at = 0
        for f in arch.fanouts:
            if f.ramp and not (e.kind != "mac" and arch.compute.alu_per_cycle is not None):
                rows, columns = f.dims[0][1], f.dims[1][1]
                self.ramps.append((f.outside, len(self.products), at, at + len(f.dims), (rows if f.ramp == "os" else 2 * rows) + columns - 2))
                self.products.append(tuple(self._factor(None, ((rank, all_first),), False, False) for rank, _ in e.extents))
                self.weights.append([0.0] * (self.part_count + 1))
                self.floors.append(0.0)
            at += len(f.dims)

    def _pack(self) -> None:
        """Everything as arrays for the kernels, in the order of their arguments."""
        bits = bits_of(self.e, self.arch)
        levels = self.arch.levels
        machine = np.array([self.arch.leak_mw() / self.arch.clock_ghz, _compute_floor(self.e, self.arch)])
        named = {name for name, _ in self.rules.spatial}
        inside = [self.rules.inside is None or rank in self.rules.inside for rank in self.ranks]
        still = [p.tensor for p in self.tensors].index(self.rules.stationary) if self.rules.stationary else -1
        rules = np.array([still, self.rules.least_lanes, *inside, *(not named or dim[0] in named for dim in self.dims)], np.int64)
        self.packed: tuple[Any, ...] = (np.array([inf if level.capacity_bits is None else float(level.capacity_bits) for level in levels]),
                       np.array([level.double_buffer for level in levels], np.bool_), np.array([bits[p.tensor] for p in self.tensors], np.float64),
                       *self._moves(), *self._shapes(), *self._formulas(), np.array([r[4] for r in self.ramps], np.float64),
                       np.array([(*self.parts[v], level.transfer == "same") for v, level in enumerate(levels)], np.int64), machine, self.objective, rules)

    def _formulas(self) -> tuple[NDArray[Any], ...]:
        """Links, weights, products, then the factors that they multiply: a row per use, and the tables end to end with their bounds."""
        starts = np.concatenate(([0], np.cumsum([len(v[0]) for v in self.values])))[:-1]
        rows = [f for own in self.products for f in own]
        factors = np.column_stack([starts, *_ranges(map(len, self.spans)).T])[rows].astype(np.int64)
        steps = [step for span in self.spans for step in span] or [(0, 0)]
        tables = (np.concatenate([v[i] for v in self.values]) for i in range(3))
        return (np.array(self.links, np.int64), np.array(self.weights, np.float64), _ranges(map(len, self.products)), factors,
                *(np.array(column, np.int64) for column in zip(*steps, strict=True)), *tables, np.array(self.floors))

    def _moves(self) -> tuple[NDArray[Any], ...]:
        """Successors of every state: in time, to tiles of 1, both directly below lanes (canonical: only where these are ragged), over each border."""
        alone = (1,) * len(self.dims)
        own = [self.walks[rank] for rank in self.ranks]
        states = [range(len(w.cuts)) for w in own]
        time = [[[(s, alone) for s in w.time[i]] for i in n] for w, n in zip(own, states, strict=True)]
        unit = [[[(w.unit[i], alone)] for i in n] for w, n in zip(own, states, strict=True)]
        below = [[after if w.ragged(i) else after[:1] for i, after in enumerate(rows)] for w, rows in zip(own, time, strict=True)]
        last = [[after if w.ragged(i) or w.tile(i) == 1 else [] for i, after in enumerate(rows)] for w, rows in zip(own, unit, strict=True)]
        lanes = [[[[*w.lanes[i][b]] for i in n] for w, n in zip(own, states, strict=True)] for b in range(len(self.borders))]
        most = max(map(len, states), default=1)
        start = np.zeros((4 + len(lanes), len(own), most + 1), np.int64)
        tile = np.ones((len(own), most), np.int64)
        moves: list[tuple[int, tuple[int, ...]]] = []
        for g, by_rank in enumerate((time, unit, below, last, *lanes)):
            for r, by_state in enumerate(by_rank):
                for s, after in enumerate(by_state):
                    start[g, r, s] = len(moves)
                    moves += after
                    start[g, r, s + 1] = len(moves)
        for r, w in enumerate(own):
            tile[r, : len(w.cuts)] = [w.tile(s) for s in states[r]]
        trips = np.array([t for _, t in moves], np.int64).reshape(len(moves), len(self.dims))
        return start, np.array([s for s, _ in moves], np.int64), trips, np.array([dim[1] for dim in self.dims], np.int64), tile

    def _shapes(self) -> tuple[NDArray[Any], ...]:
        """What footprints are made of: full, seen [X, R]; dimensions of every tensor; (rank, coefficient) of every dimension; 2 * density if csr, else 0."""
        full, seen = (np.array([[rank in own for rank in self.ranks] for own in sets], np.bool_).reshape(len(self.tensors), len(self.ranks))
                      for sets in (self.full_ranks, [p.ranks() for p in self.tensors]))
        terms = [[(self.ranks.index(rank), c) for rank, c in dim.terms if rank in self.ranks] for p in self.tensors for dim in p.dims]
        csr = np.array([0.0 if p.format == "dense" else 2 * p.density for p in self.tensors])
        return (full, seen, _ranges(len(p.dims) for p in self.tensors), _ranges(map(len, terms)),
                np.array([t for own in terms for t in own] or [(0, 0)], np.int64), csr)


def _ranges(lengths: Iterable[int]) -> Ints:
    """[N, 2] from, to of runs that stand end to end."""
    ends = np.cumsum([0, *lengths])
    return np.column_stack([ends[:-1], ends[1:]]).astype(np.int64)


@lru_cache(maxsize=256)
def _later(w: Walks) -> tuple[tuple[Ints, Ints], tuple[Ints, Ints]]:
    """States that may follow every state, itself included, end to end, and where those of a state begin: all of them, and those of tiles of 1."""
    n = len(w.cuts)
    follows = np.eye(n, dtype=np.bool_)
    for s in sorted(range(n), key=w.tile):
        for after in {*w.time[s], *(state for border in w.lanes[s] for state, _ in border)} - {s}:
            follows[s] |= follows[after]
    single = follows & np.array([w.tile(s) == 1 for s in range(n)])
    (_, every), (_, last) = np.nonzero(follows), np.nonzero(single)
    starts = [np.concatenate(([0], np.cumsum(own.sum(axis=1))))[:-1] for own in (follows, single)]
    return (every, starts[0]), (last, starts[1])


def _reached(w: Walks, table: Floats, axis: int, pick: np.ufunc, inner: bool) -> Floats:
    """Least (or largest) value over all states that follow, of nodes (inner) or of compute, which is reached with tiles of 1 only."""
    later, starts = _later(w)[not inner]
    return np.moveaxis(pick.reduceat(np.moveaxis(table, axis, 0)[later], starts, axis=0), 0, axis)


def _compute_floor(e: Einsum, arch: Arch) -> float:
    """Cycles of operations if all lanes work all the time."""
    ops = e.points() * nonzero(e)
    return op_cycles(ops, -(-e.points() // arch.instances(len(arch.levels))) * nonzero(e), e, arch)


def programs(space: Space) -> Iterator[tuple[Placement, list[Step]]]:
    """The step lists of all placements. Double buffering spares tiles that no loop moves: there an outermost node may also stand above all loops."""
    for placement in placements(space.e, space.arch, space.rules):
        twice = [x for x in range(len(space.tensors)) for level in [next(i for i, own in enumerate(placement) if x in own)]
                 if space.arch.levels[level].double_buffer and space.arch.levels[level].capacity_bits is not None]
        for n in range(len(twice) + 1):
            for raised in combinations(twice, n):
                yield placement, steps_of(space, placement, raised)


def steps_of(space: Space, placement: Placement, raised: Sequence[int]) -> list[Step]:
    """The steps of a placement with the ranks whose loops may gain something in each gap; no loop stands above the first node.

    A tensor's outermost node costs nothing and holds least after all loops of its level; it stands first where nothing bounds it, or if it is raised.
    """
    arch, every, full, part = space.arch, frozenset(space.ranks), space.full_ranks, space.partial_ranks
    outermost = {x: min(v for v, own in enumerate(placement) if x in own) for own in placement for x in own}
    parent = dict.fromkeys(range(len(space.tensors)), -1)
    found: list[Step] = []
    above: Step | None = None

    def gap(below: int = -1) -> frozenset[str]:
        """Not the ranks below which the node above sinks for free, nor those above which the node below rises for free."""
        allowed = every
        filled = above is not None and above.parent >= 0
        if above is not None and filled:
            x = space.tensors[above.tensor]
            if not arch.levels[above.level].double_buffer and x.tensor != space.rules.stationary:
                allowed -= full[above.tensor] - (frozenset(x.dims[-1].ranks()) if x.format == "csr" else frozenset())
        if below >= 0 and not part[below]:
            allowed &= full[below] | (full[above.tensor] | part[above.tensor] if above is not None and filled else frozenset())
        return allowed

    for v, own in enumerate((*placement, ())):
        if v in space.borders:
            if found:
                found.append(Step(GAP, gap()))
            found.append(Step(LANES, every, v, parent=0 if found else -1))
            above = None
        tops = [x for x in own if outermost[x] == v]
        free = v < len(arch.levels) and arch.levels[v].capacity_bits is None
        first = [x for x in tops if free or x in raised or (not found and x == tops[0])]
        for x in first:
            found.append(above := Step(NODE, frozenset(), v, x))
            parent[x] = v
        for x in own:
            if outermost[x] < v:
                found.append(above := Step(NODE, gap(x), v, x, parent[x]))
                parent[x] = v
        if len(first) < len(tops):
            found.append(Step(GAP, gap()))
            for x in (x for x in tops if x not in first):
                found.append(above := Step(NODE, frozenset(), v, x))
                parent[x] = v
    return [*found, Step(MAC, every)]


@dataclass(frozen=True, slots=True)
class Program:
    """Steps as arrays for the kernel: rows [n, 5] of kind, level, tensor, link, group of successors; links in the order that they are settled."""

    steps: tuple[Step, ...]
    rows: Ints
    order: Ints
    rest: Ints
    allowed: NDArray[np.bool_]
    border_dims: NDArray[np.bool_]
    ramp: Ints


def program(space: Space, steps: Sequence[Step], last: dict[int, int]) -> Program:
    """last: per tensor the level of its innermost node."""
    depth, ranks = len(space.arch.levels), space.ranks
    order = [space.numbers[s.tensor, s.parent, s.level] for s in steps if s.kind == NODE and s.parent >= 0]
    nodes = len(order)
    if steps[-1].kind == MAC:
        order += [space.numbers[x, v, depth] for x, v in sorted(last.items())] + [space.numbers[-1, -1, -1]]
    narrow = {border for border in space.borders if space.tiles != "ragged" and not any(f.ramp and f.outside == border for f in space.arch.fanouts)}
    rows, rest, done = [], [(0, len(order))], 0
    for i, s in enumerate(steps):
        settles = s.kind == NODE and s.parent >= 0
        above = steps[i - 1] if i else s  # lanes share out a tile: what divides it may as well be looped above
        after = above.kind == LANES and above.level in narrow and s.kind != LANES and above.parent >= 0
        group = 4 + space.borders.index(s.level) if s.kind == LANES else 2 * after + (s.kind == MAC)
        rows.append((s.kind, s.level, s.tensor, order[done] if settles else nodes if s.kind == MAC else -1, group))
        done += settles
        rest.append((len(order) if s.kind == MAC else done, len(order)))
    at = {s.level: i for i, s in enumerate(steps) if s.kind == LANES}
    ramp = [(at.get(outside, -1), number, low, high) for outside, number, low, high, _ in space.ramps]
    allowed = [[rank in s.allowed for rank in ranks] for s in steps]
    border_dims = [[s.kind == LANES and dim[2] == s.level for dim in space.dims] for s in steps]
    return Program(tuple(steps), np.array(rows, np.int64), np.array(order, np.int64), np.array(rest, np.int64), np.array(allowed, np.bool_),
                   np.array(border_dims, np.bool_).reshape(len(steps), len(space.dims)), np.array(ramp, np.int64).reshape(-1, 4))


def _searched(space: Space, steps: list[Step], best: Floats, budget: int) -> tuple[Ints | None, int]:
    """States after every step of the best mapping of a placement that is better than `best`, which it replaces; nodes visited."""
    p = program(space, steps, {s.tensor: s.level for s in steps if s.kind == NODE})
    n, ranks = len(steps), len(space.ranks)
    chosen, before = np.zeros((n, ranks), np.int64), best.copy()
    none = np.full(ranks, -1, np.int64)
    run: Any = kernels.search
    visited, _ = run(p.rows, n, p.order, p.rest, p.allowed, p.border_dims, p.ramp, none, np.zeros(ranks, np.int64), np.array(space.start),
                                np.zeros(space.part_count), *space.packed, best, chosen, np.zeros((0, space.part_count)),
                                np.zeros((0, n + 1, ranks), np.int64), 0, budget)
    return (None if np.array_equal(before, best) else chosen), int(visited)


def nest(space: Space, steps: Sequence[Step], chosen: Ints) -> Mapping:
    """The mapping of the states after every step: loops of a gap in the order that lets the node above sink furthest."""
    nodes: list[Loop | Store] = []
    state = dict.fromkeys(space.ranks, 0)
    above: Step | None = None
    for s, after in zip(steps, chosen, strict=True):
        new = dict(zip(space.ranks, (int(n) for n in after), strict=True))
        changed = [rank for rank in space.ranks if new[rank] != state[rank]]
        if s.kind == LANES:
            for rank in changed:
                old = len(space.walks[rank].cuts[state[rank]])
                nodes += [Loop(rank, tile, space.dims[d][0]) for tile, d in space.walks[rank].cuts[new[rank]][old:]]
        else:
            nodes += [Loop(rank, space.walks[rank].tile(new[rank])) for rank in _gap_order(space, above, state, new, changed)]
        if s.kind == NODE:
            nodes.append(Store(space.arch.levels[s.level].name, space.tensors[s.tensor].tensor))
        above, state = s if s.kind == NODE else None, new
    return Mapping(tuple(nodes))


def _gap_order(space: Space, above: Step | None, state: dict[str, int], new: dict[str, int], changed: list[str]) -> list[str]:
    if above is None or above.parent < 0:
        return changed
    p = space.tensors[above.tensor]

    def held(window: str) -> int:
        return hull(p, {rank: w.tile((new if rank in p.full() or rank == window else state).get(rank, 0)) for rank, w in space.walks.items()})

    windows = [rank for rank in changed if rank in p.partial()]
    best = min(windows, key=held) if windows else ""
    return sorted(changed, key=lambda rank: (rank not in p.full(), rank != best))
