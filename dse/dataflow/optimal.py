"""The optimal mapper of one einsum: branch and bound over placements and tile sizes, exact and certified (docs/design.md, decision 3).

The traffic of a tensor at a node depends only on the tiles in view there, whatever the loops that led to them; so a mapping is a walk of
every rank from its extent to 1, and costs add up node by node. Three rewrites never cost more, so one walk stands for all that they join
(steps.py draws the first two): a node sinks below loops that are fully relevant to it, rises above loops that are irrelevant to it, and a
tensor's outermost node stands last.
What stands outside the first fan-out meets what stands inside only in the tile U that enters it and in the levels that fill the inside.
Long, because the readable side of the search (steps, programs, bounds, the way back to a nest) stands in one place beside its compiled half.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations, product
from math import inf, prod
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dse.dataflow import optimal_kernels as kernels
from dse.dataflow.cost_descending import cost_descending, least_held
from dse.dataflow.formula import Formulas, fanout_dims, formulas, link_number, ranges, weights
from dse.dataflow.improve import improved
from dse.dataflow.optimal_kernels import OBJECTIVES
from dse.dataflow.space import FREE, Constraints, Tiles, least, named
from dse.dataflow.steps import LANES, MAC, NODE, Step, long_ranks, programs
from dse.dataflow.walks import lanes
from dse.nest import Infeasible, Loop, Mapping, Store
from dse.sim import cost
from dse.sim.counts import count, footprints, hull
from dse.sim.evaluate import PRECISE, EinsumCost, Problem, figure, lower_bound, optimum, priced
from dse.sim.parts import bits_of, fill_cycles, op_cycles, op_pj
from dse.sim.terms import nonzero
from hw.arch import ROLES, Arch, Compute
from workloads.einsum import Dim, Einsum, Projection

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
BUDGET = 4_000_000  # visited nodes, some seconds
LABELS = 1 << 20
WINDOWS = tuple(1.08**n for n in range(1, 40))  # first limits on the figure, as multiples of the lower bound


def optimal(problem: Problem, rng: Random) -> list[EinsumCost] | Infeasible:
    """Best first: one solution, the optimum over the space of solver.tiles, with its certificate. Deterministic: rng is not used."""
    return solved(problem)


def solved(problem: Problem, tiles: Tiles = "divisor", constraints: Constraints = FREE, budget: int = BUDGET) -> list[EinsumCost] | Infeasible:
    """The optimum of one einsum; ties by energy, then latency, within a relative 1e-10. budget: nodes visited at most.

    If the budget ends first: the best of what was found and, without constraints, of `cost_descending`, each improved by a local search; not certified.
    """
    return best_known(problem, searched(problem, tiles, constraints, budget), tiles, constraints)


def best_known(problem: Problem, found: list[EinsumCost] | Infeasible, tiles: Tiles, constraints: Constraints = FREE) -> list[EinsumCost] | Infeasible:
    """What `searched` found if that is proven, else the best of it and of what heuristics find."""
    if isinstance(found, Infeasible) or found[0].proven:
        return found
    starts = [found[0].mapping]
    if constraints == FREE and isinstance(other := cost_descending(problem, Random(0)), list):
        starts.append(other[0].mapping)
    return [min((_improved(problem, found[0], start, tiles, constraints) for start in starts), key=lambda one: _rank(problem, one))]


def _improved(problem: Problem, found: EinsumCost, start: Mapping, tiles: Tiles, constraints: Constraints) -> EinsumCost:
    mapping = improved(problem, start, tiles, constraints)
    one = priced(problem, mapping, count(mapping, problem.einsum, problem.arch), footprints(mapping, problem.einsum))
    return optimum(one, "every space", found.visited) if one.gap_to_bound <= PRECISE else replace(one, visited=found.visited)


def _rank(problem: Problem, one: EinsumCost) -> tuple[float, float, float, str]:
    return figure(problem.objective, one.energy_pj, one.latency_cycles), one.energy_pj, one.latency_cycles, str(one.mapping)


def within(problem: Problem, tiles: Tiles, constraints: Constraints, budget: int) -> list[EinsumCost] | Infeasible:
    """As `solved`, of this space only: what the search found is improved, no heuristic steps in."""
    found = searched(problem, tiles, constraints, budget)
    return found if isinstance(found, Infeasible) or found[0].proven else [_improved(problem, found[0], found[0].mapping, tiles, constraints)]


def searched(problem: Problem, tiles: Tiles, constraints: Constraints, budget: int) -> list[EinsumCost] | Infeasible:
    """The optimum with its certificate; without one, where the budget ended first, the best mapping found, or the smallest one if none was.

    Infeasible too if the budget ended before any mapping was found that keeps to constraints.
    """
    e, arch = problem.einsum, problem.arch
    first_level = arch.levels[0]  # where it holds everything, what the other levels must hold at least is known without a search
    if constraints == FREE and first_level.capacity_bits is None and first_level.holds == ROLES and isinstance(none := least_held(e, arch), Infeasible):
        return none
    whole = not arch.fanouts or min(f.outside for f in arch.fanouts) == 0 or arch.levels[0].bypass or tiles == "ragged"
    first = searched(problem, "perfect", constraints, budget // 2) if tiles == "divisor" and not whole else None
    s = Search(problem, formulas(e, arch, tiles, constraints), tiles, constraints, first[0] if isinstance(first, list) else None)
    spent = s.known.visited if s.known else 0
    found, visited = (_every_placement if whole else _split)(s, budget - spent)
    proven, visited = visited <= budget - spent, visited + spent
    smallest = least(e, arch)
    if found is None and s.known:
        return [optimum(s.known, named(tiles, arch, constraints), visited) if proven else _open(s.known, visited)]
    if found is None and (proven or cost.overflow(footprints(smallest, e), e, arch)):
        return cost.overflow(footprints(smallest, e), e, arch) or Infeasible("constraints", 1, 0, e.name, "mappings")
    if found is None and constraints != FREE:
        return Infeasible("the search", visited, budget, e.name, "nodes")
    mapping = nest(s.own, e, arch, *found) if found else smallest
    answer = priced(problem, mapping, count(mapping, e, arch), footprints(mapping, e))
    return [optimum(answer, named(tiles, arch, constraints), visited) if proven else _open(answer, visited)]


def _open(one: EinsumCost, visited: int) -> EinsumCost:
    """One as an answer that nothing is proven of but the bound."""
    return replace(one, gap_in_space=one.gap_to_bound, proven="", visited=visited)


@dataclass(frozen=True, slots=True)
class Search:
    """What both ways to search share. known: a mapping of a smaller space, to be beaten."""

    problem: Problem
    own: Formulas
    tiles: Tiles
    rules: Constraints
    known: EinsumCost | None


Found = tuple[Sequence[Step], Ints]  # steps of a placement and the ranks' states after each


def _every_placement(s: Search, budget: int) -> tuple[Found | None, int]:
    """Without a split: machines without fan-outs, or tiles that do not divide."""
    t, _ = tables(s)
    ranks, best, visited = len(s.own.ranks), np.full(3, inf), 0
    heads = t.start[None, :]
    found = None
    for steps, compiled in _whole(*_bare(s.problem.einsum, s.rules), bare_arch(s.problem.arch), s.tiles):
        n = len(steps)
        chosen, choice, w = np.zeros((n, ranks), np.int64), np.full(3, -1, np.int64), kernels.walk(n, t)
        visited += kernels.search(compiled, 0, 0, heads, 0, 1, t, best, chosen, choice, w, budget - visited)
        if choice[1] >= 0:
            found = steps, chosen
    return found, int(visited)


def _split(s: Search, budget: int) -> tuple[Found | None, int]:
    """Limits on the figure that widen until something is found: then nothing below it was left out. None if nothing beats what is known."""
    e, arch = s.problem.einsum, s.problem.arch
    join = joined(e, arch, s.rules, s.tiles)
    found, visited, goal = None, 0, np.full(3, inf)
    if s.known:
        goal[:] = figure(s.problem.objective, s.known.energy_pj, s.known.latency_cycles), s.known.energy_pj, s.known.latency_cycles
    elif s.problem.objective == "latency":  # ties are many: a good energy among them first
        found, visited = _split(replace(s, problem=replace(s.problem, objective="edp")), budget)
        if found is None or visited > budget:
            return found, visited
        mapping = nest(s.own, e, arch, *found)
        p = cost.price(mapping, count(mapping, e, arch), e, arch)
        goal[:] = p.latency_cycles, p.energy_pj, p.latency_cycles
    floor, (t, weight) = lower_bound(s.problem), tables(s)
    bounds, crowd = grid_bounds(s, join, t, weight), _crowd(e, arch, join, t, min(f.outside for f in arch.fanouts))
    w = kernels.walk(join.ins.steps.shape[1], t)
    limits = [floor * window for window in WINDOWS if 0 < floor * window < goal[0]] if s.problem.objective != "latency" else []
    for limit in (*limits, inf):
        best = np.array([limit, inf, inf]) if limit < inf else goal
        better, n = _best_below(join, crowd, t, bounds, best, w, budget - visited)
        found, visited = better or found, visited + n
        if better or visited > budget:
            break
    return found, visited


def _best_below(join: Join, crowd: kernels.Crowd, t: kernels.Tables, bounds: tuple[kernels.Grid, Floats, Floats], best: Floats, w: kernels.Walk,
                budget: int) -> tuple[Found | None, int]:
    """The best mapping below `best`, which it lowers."""
    grid, inside, tails = bounds
    (size, ranks), levels, parts = grid.states.shape, len(t.room), len(t.start)
    labels = min(LABELS, 64 * size * len(join.outs.length) + 64)
    heads = kernels.Heads(np.empty((labels, parts)), np.empty((labels, levels)), *(np.empty(labels, np.int64) for _ in range(4)))
    ends = np.full((len(tails), size), -1, np.int64)
    visited = kernels.outward(join.outs, join.signature, grid, tails, t, best, heads, ends, w, budget)
    if visited > budget:
        return None, int(visited)
    own, numbers, spans = kernels.collected(ends, heads)
    chosen, choice = np.zeros((join.ins.steps.shape[1], ranks), np.int64), np.full(3, -1, np.int64)
    visited += kernels.inward(join.ins, join.pair_programs, join.pair_signature, inside, grid,
                              crowd, own, spans, t, best, chosen, choice, w, budget - visited)
    if choice[1] < 0:
        return None, int(visited)
    at, states = int(numbers[choice[0]]), []
    first = join.out_steps[heads.program[at]]
    for _ in first:
        states.append(grid.states[heads.at[at]])
        at = heads.back[at]
    second = join.in_steps[choice[1]]
    return ((*first, *second), np.concatenate((np.array(states[::-1]), chosen[: len(second)]))), int(visited)


def grid_bounds(s: Search, join: Join, t: kernels.Tables, weight: Floats) -> tuple[kernels.Grid, Floats, Floats]:
    """The grid with what links cost there; [pairs, G, P] at least what the inside costs, [sigs, G, P] the same whatever stands inside."""
    units, spans = s.own.grid, np.array(s.own.links, np.int64)
    floor = np.array([p.floor for p in s.own.products])
    plus = np.array([all(p.sign > 0 or not weight[n].any() for n, p in enumerate(s.own.products[first:last], first)) for first, last in s.own.links])
    every, outer = np.isin(np.arange(len(spans)), join.links), np.isin(np.arange(len(spans)), list(join.outer_links))
    exact = kernels.linked(units.rows, units.exact, floor, weight, spans, outer, ~every)
    plain = kernels.linked(units.rows, units.bound, floor, weight, spans, every, ~every)
    low = kernels.linked(units.rows, units.bound, floor, weight, spans, every, plus)
    sets = [tuple(p for link in links for p in range(*s.own.links[link]) if p in s.own.access) for links in join.pair_links]
    joint = {own: _joint(s, t, own, low, weight) for own in dict.fromkeys(sets)}
    inside, tails = kernels.summed(low, _padded([np.array(links) for links in join.pair_links], -1), join.pair_signature, np.stack(list(joint.values())),
                                   np.array([list(joint).index(own) for own in sets]))
    once = canonical(s.problem.einsum, s.own, units.digit) if s.rules == FREE else np.ones(len(units.states), np.bool_)
    return kernels.Grid(units.states, units.digit, units.stride, units.after_start, units.after, once, exact, low, plain), inside, tails


def canonical(e: Einsum, own: Formulas, digit: Ints) -> NDArray[np.bool_]:
    """[G] places of the grid to look at: ranks that may change places, as the rows and columns of a square convolution, give every cost twice."""
    def shape(turn: dict[str, str]) -> list[frozenset[tuple[frozenset[tuple[str, int]], int, int]]]:
        return [frozenset((frozenset((turn.get(rank, rank), c) for rank, c in dim.terms), dim.offset, dim.size) for dim in p.dims) for p in e.tensors()]

    sizes, dense = e.sizes(), all(p.format == "dense" for p in e.tensors())
    twins = [(a, b) for a, b in combinations(own.ranks, 2) if sizes[a] == sizes[b]]
    for swaps in (*((one,) for one in twins), *combinations(twins, 2)):
        turn = {a: b for pair in swaps for a, b in (pair, pair[::-1])}
        if dense and len(turn) == 2 * len(swaps) and shape(turn) == shape({}):
            sides = [[digit[:, own.ranks.index(pair[side])] for pair in swaps] for side in (0, 1)]
            found = np.ones(len(digit), np.bool_)
            for a, b in zip(*map(reversed, sides), strict=True):
                found = (a < b) | ((a == b) & found)
            return found
    return np.ones(len(digit), np.bool_)


def _joint(s: Search, t: kernels.Tables, own: Sequence[int], low: Floats, weight: Floats) -> Floats:
    """[G] energy that accesses of compute to several tensors (products own) cost above the bounds of their links, low [K, G, P]: they share the lanes.

    Argument: compute reads tensor i points / L_i times at least, L_i the lanes over the ranks that it does not see. Where no two tensors miss the same rank,
    the L_i together are at most all lanes L; so the costs w_i points / L_i have at least the product prod(w_i points) / L, and their sum is at least n times
    its n-th root. What else these links cost (first reads that are skipped come off) is bounded product by product.
    """
    size = len(s.own.grid.states)
    if len(own) < 2 or np.sum([s.own.access[p] for p in own], axis=0).max() > 1:
        return np.zeros(size)
    together = len(own) * prod((float(weight[p, 0]) * s.problem.einsum.points()) ** (1 / len(own)) for p in own)
    apart = np.zeros(size)
    for link, (first, last) in enumerate(s.own.links):
        if any(first <= p < last for p in own):
            others = [p for p in range(first, last) if p not in own and weight[p, 0]]
            apart += low[link, :, 0] - sum(weight[p, 0] * s.own.grid.rows[s.own.grid.bound[p]] for p in others)
    found: Floats = np.maximum(together / prod(float(n) for n in t.lane_size) ** (1 / len(own)) - apart, 0.0)
    return found


def _crowd(e: Einsum, arch: Arch, join: Join, t: kernels.Tables, border: int) -> kernels.Crowd:
    """Room and order at the first level inside the border."""
    tensors, depth, dims = e.tensors(), len(t.room), fanout_dims(arch.fanouts)
    words = np.array([t.room[border] / t.bits[x] if border < depth and t.csr[x] == 0 else inf for x in range(len(tensors))])
    once = [[sum(rank in dim.ranks() for dim in p.dims) < 2 for rank in long_ranks(e)] for p in tensors]
    paid = t.seen[:, None, :] & ~t.seen[None, :, :] & np.array(once)[:, None, :]
    first = [steps[1].tensor if steps[1].kind == NODE and steps[1].level == border and steps[1].parent >= 0 else -1 for steps in join.in_steps]
    shares = [all(dim[4] if p is e.output else dim[3] for dim in dims) for p in tensors]
    links = [(x, parent, child) for x in range(len(tensors)) for parent in range(depth) for child in range(parent + 1, depth + 1)]
    tensor = [x if parent < border <= child else -1 for x, parent, child in links]
    direct = [x if parent < border and child == depth and shares[x] else -1 for x, parent, child in links]
    serves = np.array([child == depth for _, _, child in links] + [True])
    return kernels.Crowd(words, paid, np.array(first, np.int64), np.array([*tensor, -1], np.int64), serves, np.array([*direct, -1], np.int64))


@dataclass(frozen=True, slots=True)
class Join:
    """Outer and inner programs. A signature: which level fills each tensor's inside; a pair: a signature and the links inside, whose programs stand together
    [from, to)."""

    outs: kernels.Programs
    ins: kernels.Programs
    out_steps: tuple[tuple[Step, ...], ...]
    in_steps: tuple[tuple[Step, ...], ...]
    signature: Ints
    pair_signature: Ints
    pair_programs: Ints
    pair_links: tuple[tuple[int, ...], ...]
    outer_links: frozenset[int]
    links: tuple[int, ...]


def joined(e: Einsum, arch: Arch, rules: Constraints, tiles: Tiles) -> Join:
    """All placements, outer and inner steps once each. The machine has one border or more below its first level."""
    return _joined(*_bare(e, rules), bare_arch(arch), tiles)


@lru_cache(maxsize=64)
def _joined(e: Einsum, rules: Constraints, arch: Arch, tiles: Tiles) -> Join:
    border = min(f.outside for f in arch.fanouts)
    outer: dict[tuple[Step, ...], tuple[int, ...]] = {}
    inner: dict[tuple[tuple[Step, ...], tuple[int, ...]], tuple[int, ...]] = {}
    tensors = range(len(e.tensors()))
    for placement, steps in programs(e, arch, rules):
        at = next(i for i, s in enumerate(steps) if s.kind == LANES)
        parents = tuple(max((v for v in range(border) if x in placement[v]), default=-1) for x in tensors)
        outer[tuple(steps[:at])] = parents
        inner[tuple(steps[at:]), tuple(max(v for v, own in enumerate(placement) if x in own) for x in tensors)] = parents
    sigs = {parents: i for i, parents in enumerate(dict.fromkeys(outer.values()))}
    outs = [_program(e, arch, tiles, steps, {}) for steps in outer]
    ins = [(sigs[parents], _program(e, arch, tiles, steps, dict(enumerate(last))), steps) for (steps, last), parents in inner.items()]
    pairs: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    for i, (sig, p, _) in enumerate(ins):
        pairs.setdefault((sig, tuple(sorted(p[1].tolist()))), []).append(i)
    order = [i for own in pairs.values() for i in own]
    return Join(_stacked(outs), _stacked([ins[i][1] for i in order]), tuple(outer), tuple(ins[i][2] for i in order),
                np.array([sigs[parents] for parents in outer.values()], np.int64), np.array([sig for sig, _ in pairs], np.int64),
                ranges(map(len, pairs.values())), tuple(links for _, links in pairs), frozenset(int(link) for p in outs for link in p[1]),
                tuple(sorted({int(link) for p in (*outs, *(p for _, p, _ in ins)) for link in p[1]})))


@lru_cache(maxsize=16)
def _whole(e: Einsum, rules: Constraints, arch: Arch, tiles: Tiles) -> tuple[tuple[tuple[Step, ...], kernels.Programs], ...]:
    """Every placement of a bare einsum on a bare machine with its program."""
    return tuple((tuple(steps), _stacked([_program(e, arch, tiles, steps, {s.tensor: s.level for s in steps if s.kind == NODE})]))
                 for _, steps in programs(e, arch, rules))


def _bare(e: Einsum, rules: Constraints) -> tuple[Einsum, Constraints]:
    """An einsum without names and sizes, and its rules on placements: what programs depend on."""
    ranks = {rank: f"r{i}" for i, (rank, _) in enumerate(e.extents)}
    tensors = {p.tensor: f"t{i}" for i, p in enumerate(e.tensors())}

    def slim(p: Projection) -> Projection:
        dims = tuple(Dim(tuple((ranks[rank], 1) for rank, _ in dim.terms), 0, 1) for dim in p.dims)
        return replace(p, tensor=tensors[p.tensor], dims=dims, bits=None, density=1.0)

    kept = tuple((level, tensors[tensor]) for level, tensor in rules.kept if tensor in tensors)
    extents = tuple((ranks[rank], min(n, 2)) for rank, n in e.extents)
    return (replace(e, name="", kind="", output=slim(e.output), inputs=tuple(slim(p) for p in e.inputs), extents=extents),
            Constraints(kept=kept, stationary=tensors.get(rules.stationary, "")))


def bare_arch(arch: Arch) -> Arch:
    """The machine without its prices and sizes."""
    levels = tuple(replace(level, capacity_bits=None if level.capacity_bits is None else 1, width_bits=1, read_pj=0.0, write_pj=0.0, bandwidth=1.0,
                           ports="shared", leak_mw=0.0, area_mm2=0.0, access_cycles=1) for level in arch.levels)
    return replace(arch, name="", levels=levels, compute=Compute(0.0, 0.0, alu_per_cycle=arch.compute.alu_per_cycle and 1.0), clock_ghz=1.0, word_bits=1)


def _padded(rows: Sequence[NDArray[Any]], fill: int = 0) -> NDArray[Any]:
    shape = np.max([row.shape for row in rows], axis=0)
    found = np.full((len(rows), *shape), fill, rows[0].dtype)
    for own, row in zip(found, rows, strict=True):
        own[tuple(slice(n) for n in row.shape)] = row
    return found


def _stacked(own: Sequence[tuple[NDArray[Any], ...]]) -> kernels.Programs:
    rows, order, rest, allowed, dims, ramp = zip(*own, strict=True)
    return kernels.Programs(_padded(rows), np.array([len(p) for p in rows], np.int64), _padded(order, -1), np.array([len(p) for p in order], np.int64),
                            _padded(rest), _padded(allowed), _padded(dims), _padded(ramp, -1))


def tables(s: Search, columns: Floats | None = None, rooms: Floats | None = None) -> tuple[kernels.Tables, Floats]:
    """Everything for the kernels, and [T, P] what a unit of each product costs: energy, compute cycles, cycles of every port.

    columns, rooms: the same for all machines of a family, whose parts are compared one by one (frontier.py).
    """
    e, arch, own = s.problem.einsum, s.problem.arch, s.own
    levels, tensors, bits = arch.levels, e.tensors(), bits_of(e, arch)
    ports, parts = [], 2
    for level in levels:
        ports.append((parts, parts + (level.ports == "separate")))
        parts = ports[-1][1] + 1
    ops = e.points() * nonzero(e)
    start = np.zeros(parts)
    start[0], start[1] = ops * op_pj(e, arch), op_cycles(ops, 0.0, e, arch)
    dims = fanout_dims(arch.fanouts)
    named = {name for name, _ in s.rules.spatial}
    inside = [s.rules.inside is None or rank in s.rules.inside for rank in own.ranks]
    still = [p.tensor for p in tensors].index(s.rules.stationary) if s.rules.stationary else -1
    least_ops = -(-e.points() // arch.instances(len(levels))) * nonzero(e)
    full, seen = (np.array([[rank in has for rank in own.ranks] for has in sets], np.bool_).reshape(len(tensors), len(own.ranks))
                  for sets in ([p.full() for p in tensors], [p.ranks() for p in tensors]))
    terms = [[(own.ranks.index(rank), c) for rank, c in dim.terms if rank in own.ranks] for p in tensors for dim in p.dims]
    succ_start, succ, succ_ways, fewest, way_list, ways, tile = own.moves
    weight = weights(own, e, arch, ports, parts) if columns is None else columns
    room = np.array([inf if level.capacity_bits is None else float(level.capacity_bits) for level in levels])
    links, rows, spans, floors = _priced(own, weight)
    factors = own.flat
    return kernels.Tables(
        room=room, rooms=room[:, None] if rooms is None else rooms,
        doubled=np.array([level.double_buffer for level in levels]), bits=np.array([bits[p.tensor] for p in tensors], np.float64),
        succ_start=succ_start, succ=succ, succ_ways=succ_ways, fewest=fewest, even=own.even, way_list=way_list, ways=ways,
        lane_size=np.array([dim[1] for dim in dims], np.int64), tile=tile, full=full, seen=seen, dim_start=ranges(len(p.dims) for p in tensors),
        dim_rank=ranges(map(len, terms)), dim_coef=np.array([t for has in terms for t in has] or [(0, 0)], np.int64),
        csr=np.array([0.0 if p.format == "dense" else 2 * p.density for p in tensors]), links=links, weights=rows, products=spans,
        factor_start=factors[1], factor_rank=factors[2], factor_stride=factors[3], table=factors[4], low=factors[5], high=factors[6], floor=floors,
        start=start if columns is None else np.zeros(columns.shape[1]),
        folds=np.array([fill_cycles(f, e, arch) for f in arch.fanouts if f.ramp and fill_cycles(f, e, arch)], np.float64),
        port=np.array([(*own, False) for own in ports], np.int64),
        machine=np.array([arch.leak_mw() / arch.clock_ghz, op_cycles(ops, least_ops, e, arch)]),
        objective=OBJECTIVES[s.problem.objective] if columns is None else kernels.ALL,
        rules=np.array([still, s.rules.least_lanes, *inside, *(not named or dim[0] in named for dim in dims)], np.int64)), weight


def _priced(own: Formulas, weight: Floats) -> tuple[Ints, Floats, Ints, Floats]:
    """Links, weights with sign, factors and floors of the products that cost something; those of one value are one product of a link."""
    constant = [all(np.ptp(own.factors[f].exact) == 0 for f in p.factors) for p in own.products]
    spans: list[Ints] = []
    rows: list[list[float]] = []
    links, floors = [], []
    for first, last in own.links:
        begin, fixed = len(rows), np.zeros(weight.shape[1] + 1)
        fixed[-1] = 1.0
        for t in range(first, last):
            if constant[t]:
                fixed[:-1] += weight[t] * prod(float(own.factors[f].exact.flat[0]) for f in own.products[t].factors)
            elif weight[t].any():
                rows.append([*weight[t], own.products[t].sign])
                spans.append(own.flat[0][t])
                floors.append(own.products[t].floor)
        if fixed[:-1].any():
            rows.append(list(fixed))
            spans.append(np.zeros(2, np.int64))
            floors.append(0.0)
        links.append((begin, len(rows)))
    return np.array(links, np.int64), np.array(rows, np.float64), np.array(spans, np.int64), np.array(floors)


def _program(e: Einsum, arch: Arch, tiles: Tiles, steps: Sequence[Step], last: dict[int, int]) -> tuple[NDArray[Any], ...]:
    """Arrays of kernels.Programs for one. last: per tensor the level of its innermost node."""
    depth, ranks, dims = len(arch.levels), long_ranks(e), fanout_dims(arch.fanouts)
    borders = sorted({dim[2] for dim in dims})
    order = [link_number(s.tensor, s.parent, s.level, depth) for s in steps if s.kind == NODE and s.parent >= 0]
    nodes = len(order)
    if steps[-1].kind == MAC:
        order += [link_number(x, v, depth, depth) for x, v in sorted(last.items())] + [link_number(len(e.tensors()), 0, 1, depth)]
    narrow = {border for border in borders if tiles != "ragged" and not any(f.ramp and f.outside == border for f in arch.fanouts)}
    rows, rest, done = [], [(0, len(order))], 0
    for i, s in enumerate(steps):
        settles = s.kind == NODE and s.parent >= 0
        above = steps[i - 1] if i else s  # lanes share out a tile: what divides it may as well be looped above
        after = above.kind == LANES and above.level in narrow and s.kind != LANES and above.parent >= 0
        group = 4 + borders.index(s.level) if s.kind == LANES else 2 * after + (s.kind == MAC)
        rows.append((s.kind, s.level, s.tensor, order[done] if settles else nodes if s.kind == MAC else -1, group))
        done += settles
        rest.append((len(order) if s.kind == MAC else done, len(order)))
    at = {s.level: i for i, s in enumerate(steps) if s.kind == LANES}
    systolic = [f for f in arch.fanouts if f.ramp]
    first = [sum(len(g.dims) for g in arch.fanouts[: arch.fanouts.index(f)]) for f in systolic]
    ramp = [(at.get(f.outside, -1), low, low + len(f.dims)) for f, low in zip(systolic, first, strict=True)]
    allowed = [[rank in s.allowed for rank in ranks] for s in steps]
    border_dims = [[s.kind == LANES and dim[2] == s.level for dim in dims] for s in steps]
    return (np.array(rows, np.int64), np.array(order, np.int64), np.array(rest, np.int64), np.array(allowed, np.bool_),
            np.array(border_dims, np.bool_).reshape(len(steps), len(dims)), np.array(ramp, np.int64).reshape(-1, 3))


def nest(own: Formulas, e: Einsum, arch: Arch, steps: Sequence[Step], chosen: Ints) -> Mapping:
    """The mapping of the states after every step: loops of a gap in the order that lets the node above sink furthest."""
    nodes: list[Loop | Store] = []
    state = dict.fromkeys(own.ranks, 0)
    above: Step | None = None
    used = [1] * len(fanout_dims(arch.fanouts))
    for s, after in zip(steps, chosen, strict=True):
        new = dict(zip(own.ranks, (int(n) for n in after), strict=True))
        if s.kind == LANES:
            nodes += _lanes(own, arch, s.level, state, new, used)
        else:
            changed = [rank for rank in own.ranks if new[rank] != state[rank]]
            nodes += [Loop(rank, _tile(own, rank, new)) for rank in _gap_order(own, e, above, state, new, changed)]
        if s.kind == NODE:
            nodes.append(Store(arch.levels[s.level].name, e.tensors()[s.tensor].tensor))
        above, state = s if s.kind == NODE else None, new
    return Mapping(tuple(nodes))


def _tile(own: Formulas, rank: str, states: dict[str, int]) -> int:
    return own.walks[own.ranks.index(rank)].tile(states[rank]) if rank in own.ranks else 1


def _lanes(own: Formulas, arch: Arch, level: int, state: dict[str, int], new: dict[str, int], used: list[int]) -> list[Loop | Store]:
    """Spatial loops over a border: the first ways of the ranks that fit into the fan-out dimensions together. Adds to the lanes used."""
    dims = fanout_dims(arch.fanouts)
    border = sorted({dim[2] for dim in dims}).index(level)
    ways = [lanes(w, state[rank], border)[new[rank]] for rank, w in zip(own.ranks, own.walks, strict=True)]
    for choice in product(*ways):
        total = [prod(trips[d] for trips, _ in choice) * used[d] for d in range(len(dims))]
        if all(n <= dim[1] for n, dim in zip(total, dims, strict=True)):
            used[:] = total
            return [Loop(rank, tile, dims[d][0]) for rank, (_, loops) in zip(own.ranks, choice, strict=True) for tile, d in loops]
    raise AssertionError("lanes that were counted do not fit")


def _gap_order(own: Formulas, e: Einsum, above: Step | None, state: dict[str, int], new: dict[str, int], changed: list[str]) -> list[str]:
    if above is None or above.parent < 0:
        return changed
    p = e.tensors()[above.tensor]

    def held(window: str) -> int:
        return hull(p, {rank: _tile(own, rank, new if rank in p.full() or rank == window else state) for rank, _ in e.extents})

    windows = [rank for rank in changed if rank in p.partial()]
    best = min(windows, key=held) if windows else ""
    return sorted(changed, key=lambda rank: (rank not in p.full(), rank != best))
