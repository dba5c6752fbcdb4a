"""The one search: the optimal mapping of one einsum on one machine, lanes first; its loops are search_kernels.py.

    for lanes s of all ranks that fit the array, by bound:            # what lanes share is a constant from here on
        for levels that hold the tensors, by bound:                   # every term at the largest tile that may stand there
            nodes from compute outwards, loops below each, largest tiles first; cut by bound and by room

What a tensor moves depends on the tile at its node alone (docs/model.md, Counts), so the cost of a nest is a sum over its nodes, known as each is placed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, product
from math import inf, prod
from random import Random

import numpy as np
from numpy.typing import NDArray

from dse.dataflow import search_kernels as kernels
from dse.dataflow.lanes import Options, options, wired
from dse.dataflow.optimal import solved
from dse.dataflow.space import FREE, Constraints, Tiles, least, named
from dse.dataflow.steps import long_ranks
from dse.nest import Infeasible, Loop, Mapping, Store, holdable
from dse.sim.cost import overflow
from dse.sim.counts import count, footprints, hull
from dse.sim.evaluate import EinsumCost, Problem, optimum, priced
from dse.sim.parts import bits_of, fill_cycles, op_cycles, op_pj
from dse.sim.terms import nonzero
from hw.arch import Arch, Fanout
from workloads.einsum import Einsum

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
BUDGET = 20_000_000  # nodes placed, some ten seconds
OBJECTIVES = {"energy": kernels.ENERGY, "latency": kernels.LATENCY, "edp": kernels.EDP}


def lanes_first(problem: Problem, rng: Random, tiles: Tiles = "divisor", budget: int = BUDGET) -> list[EinsumCost] | Infeasible:
    """Best first: one solution, the optimum over the space of solver.tiles, with its certificate; of an einsum or machine that this search does not take
    (`taken`), and past its budget of placed nodes, what `optimal` answers. Deterministic: rng is not used."""
    if not taken(problem, tiles):
        return solved(problem, tiles)
    e, arch = problem.einsum, problem.arch
    mapping, visited = search(problem, tiles, budget=budget)
    if visited > budget:
        return solved(problem, tiles)
    if mapping is None:
        return overflow(footprints(smallest := least(e, arch), e), e, arch) or Infeasible("the space", 1, 0, f"{e.name}; not even {smallest}", "mappings")
    found = priced(problem, mapping, count(mapping, e, arch), footprints(mapping, e))
    return [optimum(found, named(tiles, arch), visited)]


def taken(problem: Problem, tiles: Tiles) -> bool:
    """Not: ragged tiles in time; outputs through windows; more than two ranks added up; padding under two borders of lanes."""
    e = problem.einsum
    sizes = e.sizes()
    dims = [dim for p in e.tensors() for dim in p.dims]
    plain = all(sum(sizes[rank] > 1 for rank, _ in dim.terms) <= 2 for dim in dims)
    clipped = any(dim.offset < 0 or dim.offset + sum(abs(c) * (sizes[rank] - 1) for rank, c in dim.terms) >= dim.size or min(c for _, c in dim.terms) < 0
                  for dim in dims if dim.terms)
    return tiles != "ragged" and not e.output.partial() and plain and (not clipped or len({f.outside for f in problem.arch.fanouts}) < 2)


def search(problem: Problem, tiles: Tiles, constraints: Constraints = FREE, budget: int = BUDGET) -> tuple[Mapping | None, int]:
    """The best mapping, None if nothing fits; and how many nodes were placed, above the budget if it ended first."""
    e, arch = problem.einsum, problem.arch
    own = _tables(e, arch.fanouts, tiles, constraints.spatial)
    machine = _machine(problem, own)
    parts = int(machine.ports[:, :2].max()) + 1
    terms = _terms(problem, own, machine.ports, parts, [_keeps(e, arch, constraints, p) for p in own.tensors])
    inside = np.array([constraints.inside is None or rank in constraints.inside for rank in own.ranks])
    still = own.tensors.index(constraints.stationary) if constraints.stationary in own.tensors else -1
    rules = kernels.Rules(np.any(own.einsum.part, axis=1, keepdims=True)[:, 0], own.sinks, inside, still, False)
    w = _work(len(own.tensors) * len(arch.levels) + len(machine.ramps), len(own.ranks), len(arch.levels), parts, own, len(terms.quantity), budget)
    kernels.search(terms, own.einsum, own.pool, machine, rules, own.memo, w, constraints.least_lanes, np.full(3, inf))
    return _nest(own, e, arch, w) if w.best_count[0] >= 0 else None, int(w.tally[1])


def _work(nodes: int, ranks: int, levels: int, parts: int, own: Tables, quantities: int, budget: int) -> kernels.Work:
    def whole(*shape: int) -> Ints:
        return np.zeros(shape, np.int64)

    d = nodes + 2
    return kernels.Work(whole(d, ranks), np.zeros((d, parts)), np.zeros((d, levels)), whole(own.pool.span.shape[1], ranks), whole(d), whole(d), whole(d),
                        whole(d, ranks), whole(d), whole(d), whole(d, ranks), whole(d, ranks), np.zeros((d, ranks), np.bool_), whole(d, ranks), whole(ranks),
                        whole(nodes, 4), np.array([0, 0, budget]), np.zeros(quantities), np.zeros(parts), np.zeros(3), np.full(1, -1, np.int64),
                        whole(ranks), whole(nodes, 4), whole(nodes, ranks))


@dataclass(frozen=True, slots=True)
class Tables:
    """What the search reads of an einsum on machines with the same fan-outs. tensors: names, the output last."""

    ranks: tuple[str, ...]
    tensors: tuple[str, ...]
    choices: tuple[Options, ...]
    einsum: kernels.Einsum
    pool: kernels.Pool
    memo: kernels.Memo
    sinks: NDArray[np.bool_]


@lru_cache(maxsize=64)
def _tables(e: Einsum, fanouts: tuple[Fanout, ...], tiles: Tiles, spatial: tuple[tuple[str, tuple[str, ...]], ...]) -> Tables:
    dims, groups = wired(fanouts)
    names = [name for f in sorted(fanouts, key=lambda f: f.outside) for name, _ in f.dims]
    outside, taken = sorted({g.outside for g in groups}), dict(spatial)
    borders = len(outside)
    ranks, sizes = tuple(long_ranks(e)), e.sizes()
    own = tuple(options(sizes[rank], tuple(lane for lane in dims if lane.size > 1 and rank not in e.output.partial()
                                           and rank in taken.get(names[lane.number], (rank,))), len(dims), borders, len(groups), tiles) for rank in ranks)
    tensors = (*e.inputs, e.output)
    seen, full, part = (np.array([[rank in has for rank in ranks] for has in sets], np.bool_).reshape(len(tensors), len(ranks))
                        for sets in ([p.ranks() for p in tensors], [p.full() for p in tensors], [p.partial() for p in tensors]))
    sinks = full.copy()
    for x, p in enumerate(tensors):
        if p.format == "csr":
            sinks[x] &= [rank not in p.dims[-1].ranks() for rank in ranks]
    kind, offset, stored, rank_of, coef = [], [], [], [], []
    for p in tensors:
        for dim in p.dims:
            terms = [(ranks.index(rank), c) for rank, c in dim.terms if rank in ranks]
            if len(terms) > 2:
                raise ValueError(f"{e.name}: a dimension of {p.tensor} adds up more than two ranks")
            inside = dim.offset >= 0 and dim.offset + sum(abs(c) * (sizes[rank] - 1) for rank, c in dim.terms) < dim.size
            alone = inside and len(terms) == 1 and terms[0][1] == 1
            kind.append(kernels.ALONE if alone else kernels.HULL if inside and all(c > 0 for _, c in terms) else kernels.CLIPPED)
            offset.append(dim.offset)
            stored.append(dim.size)
            padded = [*terms, (-1, 0), (-1, 0)][:2]
            rank_of.append([r for r, _ in padded])
            coef.append([c for _, c in padded])
    first = np.cumsum([0, *(len(p.dims) for p in tensors)])
    array = kernels.Einsum(seen, full, part, first, np.array(kind, np.int64), np.array(offset, np.int64), np.array(stored, np.int64),
                           np.array(rank_of, np.int64).reshape(-1, 2), np.array(coef, np.int64).reshape(-1, 2),
                           np.array([0.0 if p.format == "dense" else 2 * p.density for p in tensors]))
    pool = _pool(own, [sum(1 << g for g, group in enumerate(groups) if group.outside in outside[:n]) for n in range(borders + 1)])
    return Tables(ranks, tuple(p.tensor for p in tensors), own, array, pool, _memo(own, array, borders + 1), sinks)


def _pool(own: Sequence[Options], prefix: Sequence[int]) -> kernels.Pool:
    base = np.cumsum([0, *(len(o.size) for o in own)])
    first = np.cumsum([0, *(len(o.ways) for o in own)])
    ways = [way for o in own for many in o.ways for way in many]
    counts = np.cumsum([0, *(len(many) for o in own for many in o.ways)])
    depth = max(o.cuts.shape[1] for o in own)
    cuts = np.concatenate([np.pad(o.cuts, ((0, 0), (0, depth - o.cuts.shape[1]))) for o in own])
    out = np.concatenate([np.where(o.out >= 0, o.out + b, -1) for o, b in zip(own, base, strict=False)])
    span = np.concatenate([o.span + b for o, b in zip(own, base, strict=False)])
    last = np.zeros(int(base[-1]), np.int64)
    for begin, end in span.reshape(-1, 2):
        last[begin:end] = end - 1
    return kernels.Pool(first, span, np.concatenate([o.size for o in own]),
                        np.concatenate([o.pieces for o in own]), np.concatenate([o.elems for o in own]), out, np.concatenate([o.whole for o in own]),
                        np.concatenate([o.lanes for o in own]), cuts, np.column_stack([counts[:-1], counts[1:]]),
                        np.array(ways, np.int64).reshape(len(ways), -1), base, last, np.array(prefix, np.int64))


def _memo(own: Sequence[Options], e: kernels.Einsum, positions: int) -> kernels.Memo:
    clipped = np.flatnonzero(e.kind == kernels.CLIPPED)
    row = np.full(len(e.kind), -1, np.int64)
    row[clipped] = np.arange(len(clipped))
    tiles = [max([len(own[r].size) for r in e.rank[clipped, side] if r >= 0], default=1) for side in (0, 1)]
    hulls = np.full((2, len(clipped), *tiles), np.nan)
    sides = [max([len(own[r].ways) for dim in range(len(e.kind)) for r in e.rank[dim, side:side + 1] if r >= 0 and e.kind[dim] != kernels.ALONE], default=1)
             for side in (0, 1)]
    return kernels.Memo(hulls, row, np.full((positions, len(e.kind), *sides, positions), np.nan),
                        np.zeros((2, 2, max(o.extent for o in own)), np.int64), np.zeros(len(own), np.int64))


def _machine(problem: Problem, own: Tables) -> kernels.Machine:
    e, arch = problem.einsum, problem.arch
    bits, (dims, groups) = bits_of(e, arch), wired(arch.fanouts)
    outside = sorted({g.outside for g in groups})
    ports, parts = [], 2
    for level in arch.levels:
        ports.append((parts, parts + (level.ports == "separate"), False))
        parts = ports[-1][1] + 1
    ramps = []
    for f in arch.fanouts:
        if f.ramp and fill_cycles(f, e, arch):
            mine = {lane.group for lane in dims if lane.number in _numbers(arch, f.name)}
            ramps.append((outside.index(f.outside) + 1, sum(1 << g for g in range(len(groups)) if g not in mine), fill_cycles(f, e, arch)))
    return kernels.Machine(
        np.array([inf if level.capacity_bits is None else float(level.capacity_bits) for level in arch.levels]),
        np.array([bits[t] for t in own.tensors], np.float64), np.array([level.double_buffer for level in arch.levels]), np.array(ports, np.int64),
        np.array([sum(b <= v for b in outside) for v in range(len(arch.levels) + 1)]), np.array([lane.size for lane in dims], np.int64),
        arch.leak_mw() / arch.clock_ghz, np.ascontiguousarray(np.array(ramps, np.float64).reshape(-1, 3)), OBJECTIVES[problem.objective])


Quantity = tuple[int, int, int, int, int]  # kind, tensor, position, masks
Row = dict[Quantity, Floats]  # quantity -> what a unit of it adds to every part


def _terms(problem: Problem, own: Tables, ports: Ints, parts: int, keeps: Sequence[Sequence[int]]) -> kernels.Terms:
    """Coefficients of all links and of all sets of levels on one machine."""
    e, arch = problem.einsum, problem.arch
    depth, tensors = len(arch.levels), len(own.tensors)
    links: dict[tuple[int, int, int], Row] = {}
    for x, parent in product(range(tensors), range(depth)):
        for child in range(parent + 1, depth + 1):
            links[x, parent, child] = _link(problem, own, ports, parts, x, parent, child)
    _, groups = wired(arch.fanouts)
    ops = e.points() * nonzero(e)
    base = np.zeros(parts)
    base[0] = ops * op_pj(e, arch)
    base[1] = op_cycles(ops, 0.0, e, arch) + sum(fill_cycles(f, e, arch) - 1 for f in arch.fanouts if f.ramp and fill_cycles(f, e, arch))
    every = (1 << len(groups)) - 1
    busiest = np.zeros(parts)
    busiest[1] = 0.0 if op_cycles(ops, 0.0, e, arch) else op_cycles(0.0, nonzero(e), e, arch)
    sums: list[Row] = []
    for x, masks in enumerate(keeps):
        for mask in masks:
            levels = [*(v for v in range(depth) if mask >> v & 1), depth]
            total: Row = {(kernels.POINTS, 0, max(len({g.outside for g in groups}), 0), every, every): busiest} if x == 0 else {}
            for parent, child in zip(levels, levels[1:], strict=False):
                for q, coef in links[x, parent, child].items():
                    total[q] = total.get(q, 0.0) + coef
            sums.append(total)
    quantities = {q: i for i, q in enumerate(dict.fromkeys(q for row in (*links.values(), *sums) for q in row))}
    link = np.zeros((tensors, depth, depth + 1, 2), np.int64)
    of: list[int] = []
    rows: list[Floats] = []
    for (x, parent, child), row in links.items():
        link[x, parent, child] = len(of), len(of) + len(row)
        of += [quantities[q] for q in row]
        rows += row.values()
    ends = np.cumsum([0, *map(len, sums)])
    return kernels.Terms(
        np.array(list(quantities), np.int64), link, np.array(of, np.int64), np.array(rows), np.cumsum([0, *map(len, keeps)]),
        np.array([mask for masks in keeps for mask in masks], np.int64), np.column_stack([ends[:-1], ends[1:]]),
        np.array([quantities[q] for row in sums for q in row], np.int64), np.array([coef for row in sums for coef in row.values()]), base)


def _link(problem: Problem, own: Tables, ports: Ints, parts: int, x: int, parent: int, child: int) -> Row:
    """What moves between a tensor's nodes at two levels (child: the number of levels for compute), in all and at the busiest instance.

    reads = R - S + W', writes = W + R' - S' (docs/model.md, Counts): R, W what the parent serves; R', W' what the child fetches and drains; S, S' first
    reads, which are skipped.
    """
    e, arch = problem.einsum, problem.arch
    levels, output, word = arch.levels, x == len(own.tensors) - 1, bits_of(e, arch)[own.tensors[x]]
    _, groups = wired(arch.fanouts)
    outside = sorted({g.outside for g in groups})
    k, compute = sum(b <= child for b in outside), child == len(levels)
    mask = {v: sum(1 << g for g, group in enumerate(groups) if group.outside <= v) for v in (parent, child)}
    shared = sum(1 << g for g, group in enumerate(groups) if parent < group.outside <= child and (group.reduce if output else group.multicast))
    found: Row = {}

    def add(v: int, action: str, kind: int, own_lanes: int, merged: int, scale: float) -> None:
        """In all: lanes that share an access merge; busiest: the first lane of all groups outside of v."""
        level = levels[v]
        unit = word / level.width_bits * scale
        pj, port = (level.read_pj, ports[v, 0]) if action == "read" else (level.write_pj, ports[v, 1])
        for q, row in (((kind, x, k, merged, 0), (0, unit * pj)), ((kind, x, k, own_lanes | merged, own_lanes), (port, unit / level.bandwidth))):
            if row[1]:
                coef = found.setdefault(q, np.zeros(parts))
                coef[row[0]] += row[1]

    csr = 0.0 if (p := (*e.inputs, e.output)[x]).format == "dense" else 2 * p.density
    amounts = [(kernels.POINTS, nonzero(e))] if compute else [(kernels.WORDS, csr), (kernels.ROWS, 1.0)] if csr else [(kernels.WORDS, 1.0)]
    skips = [(kernels.STARTED, -(nonzero(e) if compute else 1.0))] if output and levels[parent].skip_first_read else []
    for kind, scale in (*amounts, *skips):
        add(parent, "read", kind, mask[parent], shared, scale)
        if not compute:
            add(child, "write", kind, mask[child], 0, scale)
    for kind, scale in amounts if output else ():
        add(parent, "write", kind, mask[parent], shared, scale)
        if not compute:
            add(child, "read", kind, mask[child], 0, scale)
    return found


def _numbers(arch: Arch, name: str) -> set[int]:
    found, n = {}, 0
    for f in sorted(arch.fanouts, key=lambda f: f.outside):
        found[f.name] = set(range(n, n + len(f.dims)))
        n += len(f.dims)
    return found[name]


def _keeps(e: Einsum, arch: Arch, c: Constraints, tensor: str) -> list[int]:
    """Sets of levels that may hold a tensor, as masks; never none."""
    may = [v for v, level in enumerate(arch.levels) if tensor in holdable(e, level)]
    must = {v for v in may if not arch.levels[v].bypass or (arch.levels[v].name, tensor) in c.kept}
    return [sum(1 << v for v in own) for n in range(1, len(may) + 1) for own in combinations(may, n) if must <= set(own)]


def _nest(own: Tables, e: Einsum, arch: Arch, w: kernels.Work) -> Mapping:
    """The best nest that the kernels found: loops of a gap in the order that lets the node above sink furthest."""
    at = {rank: int(own.pool.size[own.choices[0].span[0, 0, 0]]) for rank in own.ranks} | e.sizes()
    chosen = [int(o) - int(f) for o, f in zip(w.best_option, own.pool.first, strict=False)]
    outside = sorted({f.outside for f in arch.fanouts})
    nodes: list[Loop | Store] = [Store(arch.levels[0].name, t) for t in _tops(own, w)]
    steps = [(*w.best_nodes[i].tolist(), w.best_at[i]) for i in range(int(w.best_count[0]) - 1, -1, -1)]
    position, above = 0, ""
    ways = _ways(own, chosen, arch)
    for x, level, _, k, tile in steps:
        at, above, position = _inward(own, e, arch, nodes, at, above, position, k, {r: int(t) for r, t in zip(own.ranks, tile, strict=True)}, ways)
        nodes += _loops(own, e, above, at, {r: int(own.pool.size[t]) for r, t in zip(own.ranks, tile, strict=True)})
        at = at | {r: int(own.pool.size[t]) for r, t in zip(own.ranks, tile, strict=True)}
        if x >= 0:
            nodes.append(Store(arch.levels[level].name, own.tensors[x]))
            above = own.tensors[x]
    last = {r: int(own.pool.span[o, len(outside), 0]) for r, o in zip(own.ranks, w.best_option, strict=True)}
    at, above, position = _inward(own, e, arch, nodes, at, above, position, len(outside), last, ways)
    nodes += _loops(own, e, above, at, dict.fromkeys(own.ranks, 1))
    return Mapping(tuple(nodes))


def _tops(own: Tables, w: kernels.Work) -> list[str]:
    inner = {int(n[0]) for n in w.best_nodes[: int(w.best_count[0])] if n[2] < 0}
    return [t for x, t in enumerate(own.tensors) if x not in inner]


def _inward(own: Tables, e: Einsum, arch: Arch, nodes: list[Loop | Store], at: dict[str, int], above: str, position: int, k: int, tile: dict[str, int],
            ways: Sequence[Sequence[tuple[int, str, int]]]) -> tuple[dict[str, int], str, int]:
    """Loops and lanes from one position to another: the tile that enters the lanes, then the lanes."""
    enter = [tile]
    for _ in range(k - position):
        enter.append({r: int(own.pool.out[t]) for r, t in enter[-1].items()})
    for step, target in enumerate(reversed(enter[1:])):
        goal = {r: int(own.pool.size[t]) for r, t in target.items()}
        nodes += _loops(own, e, above, at, goal)
        at, above = at | goal, ""
        border = position + step
        for rank, way in zip(own.ranks, ways, strict=True):
            for dim, name, n in way:
                if dim == border and n > 1:
                    at[rank] = -(-at[rank] // n)
                    nodes.append(Loop(rank, at[rank], name))
    return at, above, k


def _ways(own: Tables, chosen: Sequence[int], arch: Arch) -> list[list[tuple[int, str, int]]]:
    """Per rank (border, dimension, trips): the first ways that fit into the fan-out dimensions together."""
    dims, _ = wired(arch.fanouts)
    names = [name for f in sorted(arch.fanouts, key=lambda f: f.outside) for name, _ in f.dims]
    for choice in product(*(o.ways[i] for o, i in zip(own.choices, chosen, strict=True))):
        if all(prod(way[d] for way in choice) <= lane.size for d, lane in enumerate(dims)):
            return [[(lane.border, names[d], way[d]) for d, lane in enumerate(dims)] for way in choice]
    raise AssertionError("lanes that were counted do not fit")


def _loops(own: Tables, e: Einsum, above: str, at: dict[str, int], goal: dict[str, int]) -> list[Loop]:
    changed = [rank for rank in own.ranks if goal[rank] != at[rank]]
    p = next((p for p in e.tensors() if p.tensor == above), None)
    if p is None:
        return [Loop(rank, goal[rank]) for rank in changed]

    def held(window: str) -> int:
        return hull(p, {rank: goal.get(rank, 1) if rank in p.full() or rank == window else at.get(rank, 1) for rank, _ in e.extents})

    windows = [rank for rank in changed if rank in p.partial()]
    best = min(windows, key=held) if windows else ""
    return [Loop(rank, goal[rank]) for rank in sorted(changed, key=lambda rank: (rank not in p.full(), rank != best))]
