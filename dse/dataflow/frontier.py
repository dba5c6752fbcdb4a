"""Solve once, price many: all mappings of one einsum that could be the best one on some machine of a family, and the best one on a given machine.

A family is machines with the same levels and fan-outs; their prices, bandwidths, capacities and array sizes differ. Over perfect factors (every loop divides)
the search of optimal.py runs once for all of them: costs are compared part by part (bits moved at a level, cycles of a port and of compute), so a mapping
goes only if another one is cheaper at all prices of the family. What is left is small: pricing a machine is one scan of it (docs/design.md, decision 3).
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from io import BytesIO
from itertools import product
from math import inf, isclose
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dse import cache
from dse.dataflow import frontier_kernels as kernels
from dse.dataflow import optimal, optimal_kernels
from dse.dataflow.family import CELLS, Family, NoFrontier, cell, family, shape_of, topology
from dse.dataflow.formula import Formulas, formulas, ranges
from dse.dataflow.optimal import Join, Search
from dse.dataflow.space import FREE, named
from dse.dataflow.steps import NODE
from dse.nest import Infeasible, Mapping, faults
from dse.sim.cost import overflow, price
from dse.sim.counts import Footprint, count, footprints
from dse.sim.evaluate import EinsumCost, Problem, lanes_overflow, optimum
from dse.sim.evaluate import priced as costed
from dse.sim.parts import bits_of, op_cycles, op_pj
from dse.sim.terms import nonzero, within
from hw.arch import Arch
from workloads.einsum import Einsum

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
MOST = 1 << 16  # members
CHAINS, LABELS = 1 << 22, 1 << 22
ARRAYS = ("counts", "rows", "shapes", "programs", "states")


@dataclass(frozen=True, slots=True)
class Frontier:
    """Members N: counts [N, 4 V + 1] as kernels.cheapest has them; rows [N, P + V + 1] and shapes [N] as kernels.Front has them; programs [N, 2] outer and
    inner steps, states [N, ., R] of the ranks after them. cells, told: what was asked before, members by capacities and shape, and costs by member and shape,
    whose counts hold on all machines. fits: members that were seen to fit the capacities and shape of a cell."""

    family: Family
    counts: Floats
    rows: Floats
    shapes: Ints
    programs: Ints
    states: Ints
    cells: dict[int, Ints] = field(default_factory=dict, compare=False)
    told: dict[tuple[int, tuple[int, ...]], tuple[EinsumCost, tuple[Footprint, ...]]] = field(default_factory=dict, compare=False)
    fits: set[tuple[int, int]] = field(default_factory=set, compare=False)


def frontier(e: Einsum, f: Family) -> Frontier:
    """The members for one einsum, from $DSE_CACHE if they are there. Raises NoFrontier."""
    path = place(e, f)
    if (data := cache.read(path)) is not None:
        try:
            return _stored_before(e, f, data)
        except (ValueError, KeyError, TypeError, OSError, EOFError, MemoryError, zlib.error, zipfile.BadZipFile, NotImplementedError) as fault:
            cache.drop(path, " ".join(str(fault).split())[:200] or type(fault).__name__)
    found, file = solved(e, f), BytesIO()
    np.savez_compressed(file, **{name: getattr(found, name) for name in ARRAYS})
    cache.keep(path, file.getvalue())
    return found


def question(e: Einsum, f: Family) -> tuple[object, ...]:
    """All that the members depend on: the einsum, what its machines share (levels, fan-outs, bits of a word), and the ranges of what they do not."""
    bare, word_bits = topology(f.arch)
    return replace(e, name=""), replace(f, arch=bare), word_bits


def place(e: Einsum, f: Family) -> Path:
    """Where the frontier of an einsum is kept."""
    return cache.place("frontier", question(e, f), ".npz")


def _stored_before(e: Einsum, f: Family, data: bytes) -> Frontier:
    """Members from a file of the cache, of which nothing is run and whose arrays have the sizes that the kernels take for granted. Raises ValueError."""
    archive = zipfile.ZipFile(BytesIO(data))
    if sum(entry.file_size for entry in archive.infolist()) > cache.LARGEST:
        raise ValueError("its arrays are too large")
    found = {name: np.load(BytesIO(archive.read(f"{name}.npy")), allow_pickle=False) for name in ARRAYS}
    depth, ranks, n = len(f.arch.levels), len(formulas(e, f.arch, "perfect", FREE).ranks), len(found["shapes"])
    sizes = {"counts": (n, 4 * depth + 1), "rows": (n, len(_cone(f).middle) + depth + 1), "shapes": (n,), "programs": (n, 2),
             "states": (n, found["states"].shape[1], ranks)}
    for name, array in found.items():
        if array.shape != sizes[name] or array.dtype != (np.float64 if name in ("counts", "rows") else np.int64) or n > MOST:
            raise ValueError(f"{name} is {array.dtype} {array.shape}, not {sizes[name]}")
        if not np.isfinite(array).all():
            raise ValueError(f"{name} holds a number that is none")
    return Frontier(f, **found)


def solved(e: Einsum, f: Family) -> Frontier:
    """The members, computed. Raises NoFrontier if they are too many, or padding makes another lane than the first the busiest."""
    border = min(fanout.outside for fanout in f.arch.fanouts)
    if any(f.limited[border:]) and not all(within(dim, [e.sizes()[rank] for rank in dim.ranks()]) for p in e.tensors() for dim in p.dims):
        raise NoFrontier(f"{e.name}: takes padding only where no level inside the array has a bandwidth")
    own = formulas(e, f.arch, "perfect", FREE)
    s = Search(Problem(f.arch, e, "energy"), own, "perfect", FREE, None)
    join = optimal.joined(e, f.arch, FREE, "perfect")
    most = max(len(own_rooms) for own_rooms in f.rooms)
    rooms = np.array([[*own_rooms, *[inf] * (most - len(own_rooms))] if own_rooms else [inf] * most for own_rooms in f.rooms] or [[inf]])
    cone = _cone(f)
    t, weight = optimal.tables(s, _columns(own, e, f), rooms)
    grid, bound, _ = optimal.grid_bounds(s, join, t, weight)
    outer, numbers, spans = _outer(join, grid, t)
    inside = _inside(join, own, grid, bound, f, outer.parts[numbers], outer.need[numbers], spans)
    firsts = np.array([inside.kind.tolist().index(kind) for kind in range(int(inside.kind.max()) + 1)], np.int64)
    chains = kernels.chains_of(CHAINS, firsts, _moved(own, f), _rigid(e, own, len(f.arch.levels)), join.ins.steps.shape[1], len(grid.states), len(t.room))
    members = kernels.front_of(MOST, len(t.start) + len(t.room) + 1, len(own.ranks), len(bound))
    w = optimal_kernels.walk(join.ins.steps.shape[1], t)
    if not kernels.joined(inside, cone, chains, grid, _order(join, bound, inside, cone, grid.canonical), t, w, members):
        raise NoFrontier(f"{e.name}: more than {MOST:,} mappings, or {CHAINS:,} chains of tiles")
    return _stored(e, f, own, s, join, grid, inside, chains, members, outer, numbers)


def _columns(own: Formulas, e: Einsum, f: Family) -> Floats:
    """[T, P] of every product, the parts that are compared: per level the energies at both ends of the shares, then, if bandwidths count, the cycles of its
    ports, then operations of the busiest lane, if lanes do them."""
    border, counted, found = f.arch.fanouts[0].outside, _counted(own, e, f.arch), []
    for v, shares in enumerate(f.shares):
        found += [counted[:, 4 * v: 4 * v + 2] @ (1 - share, share) for share in dict.fromkeys(shares)]
    for v, separate in enumerate(f.separate):
        port = counted[:, 4 * v: 4 * v + 2] if v < border else counted[:, 4 * v + 2: 4 * v + 4]
        found += [] if not f.limited[v] else [port[:, 0], port[:, 1]] if separate else [port.sum(axis=1)]
    return np.stack([*found, counted[:, -1] * (e.kind == "mac" or f.arch.compute.alu_per_cycle is None)], axis=1)


def _cone(f: Family) -> kernels.Cone:
    """How those parts are compared."""
    width = [len(set(shares)) for shares in f.shares]
    ends = np.array([(sum(width[:v]), sum(width[:v]) + n - 1) for v, n in enumerate(width)], np.int64)
    owner = [v for v, separate in enumerate(f.separate) if f.limited[v] for _ in range(1 + separate)] + [len(width)]
    middle = np.zeros(sum(width) + len(owner))
    middle[ends[:, 0]] = np.cumprod([float(np.sqrt(low * high)) for low, high in f.ratios])
    return kernels.Cone(ends, np.array(f.ratios), middle, np.arange(sum(width), len(middle)), np.ascontiguousarray(np.array(f.hides)[np.ix_(owner, owner)]))


def _counted(own: Formulas, e: Einsum, arch: Arch) -> Floats:
    """[T, 4 V + 1] what a unit of each product adds to the counts of kernels.cheapest."""
    per = [bits_of(e, arch)[p.tensor] for p in e.tensors()]
    found = np.zeros((len(own.products), 4 * len(arch.levels) + 1))
    for t, p in enumerate(own.products):
        for use in p.uses:
            at = -1 if use.tensor < 0 else 4 * use.v + 2 * use.busiest + (use.action == "write")
            found[t, at] += use.scale * (1 if use.tensor < 0 else per[use.tensor])
    return found


def _outer(join: Join, grid: optimal_kernels.Grid, t: optimal_kernels.Tables) -> tuple[optimal_kernels.Heads, Ints, Ints]:
    """All labels; numbers [L] of those that enter the array, and per (signature, U) which of these [sigs, G, 2]."""
    levels, parts, sigs = len(t.room), len(t.start), int(join.signature.max()) + 1
    heads = optimal_kernels.Heads(np.empty((LABELS, parts)), np.empty((LABELS, levels)), *(np.empty(LABELS, np.int64) for _ in range(4)))
    ends, best = np.full((sigs, len(grid.states)), -1, np.int64), np.full(3, inf)
    w = optimal_kernels.walk(1, t)
    if optimal_kernels.outward(join.outs, join.signature, grid, np.zeros((sigs, len(grid.states), parts)), t, best, heads, ends, w, 1 << 60) > 1 << 60:
        raise NoFrontier(f"more than {LABELS:,} ways to fill the levels outside the array")
    _, numbers, spans = optimal_kernels.collected(ends, heads)
    return heads, numbers, spans


def _inside(join: Join, own: Formulas, grid: optimal_kernels.Grid, bound: Floats, f: Family, heads: Floats, rooms: Floats, spans: Ints) -> kernels.Inside:
    kinds: dict[tuple[tuple[int, int], ...], int] = {}
    kind = [kinds.setdefault(tuple((step.level, step.tensor) for step in steps), len(kinds)) for steps in join.in_steps]
    most = max(map(len, join.pair_links))
    links = np.array([[*own_links, *[-1] * (most - len(own_links))] for own_links in join.pair_links], np.int64)
    serves = np.array([not any(own.products[p].inner for p in range(*span)) for span in own.links])
    ranks, states = len(own.ranks), max(len(w.cuts) for w in own.walks)
    down, digit = np.full((ranks, states, int(grid.digit.max()) + 1), -1, np.int64), np.full((ranks, states), -1, np.int64)
    for r, w in enumerate(own.walks):
        digits = {w.tile(int(s)): int(d) for s, d in zip(grid.states[:, r], grid.digit[:, r], strict=True)}
        for s, follow in enumerate(w.time):
            digit[r, s] = digits[w.tile(s)]
            down[r, s, [digits[w.tile(after)] for after in follow]] = follow
    return kernels.Inside(join.ins, join.pair_programs, join.pair_signature, links, np.unique(links[links >= 0]), serves, np.array(kind, np.int64), bound, down,
                          digit, heads, rooms, spans, np.array(f.shapes, np.int64))


def _moved(own: Formulas, f: Family) -> Floats:
    """[K, ., G] products of every link for tiles before any lane. Raises NoFrontier if what is subtracted depends on the tile: then chains do not compare."""
    found = np.zeros((len(own.links), max(last - first for first, last in own.links), len(own.grid.states)))
    for link, span in enumerate(own.links):
        for c, p in enumerate(range(*span)):
            if own.products[p].sign > 0:
                found[link, c] = own.grid.rows[own.grid.exact[p]]
            elif np.ptp(own.grid.rows[own.grid.exact[p]]) > 0:
                raise NoFrontier("first reads of an output that are skipped depend on its tiles")
    return found


def _rigid(e: Einsum, own: Formulas, depth: int) -> NDArray[np.bool_]:
    """[K, R] ranks of windows that padding cuts: what the busiest lane moves there is no share of what all move."""
    pairs, sizes = depth * (depth + 1) // 2, e.sizes()
    found = np.zeros((len(own.links), len(own.ranks)), np.bool_)
    for x, p in enumerate(e.tensors()):
        for dim in p.dims:
            cut = dim.offset < 0 or dim.offset + sum(c * (sizes[rank] - 1) for rank, c in dim.terms) >= dim.size
            for rank in dim.ranks():
                if cut and len(dim.terms) > 1 and rank in own.ranks:
                    found[x * pairs: (x + 1) * pairs, own.ranks.index(rank)] = True
    return found


def _order(join: Join, bound: Floats, inside: kernels.Inside, cone: kernels.Cone, canonical: NDArray[np.bool_]) -> Ints:
    """Tiles U that can be reached, the most promising first: by the least that energy and operations together may be, each over its least anywhere."""
    least = np.full((len(inside.spans), *bound.shape[1:]), inf)
    for sig, i in zip(*np.nonzero(inside.spans[..., 1] > inside.spans[..., 0]), strict=True):
        least[sig, i] = inside.heads[slice(*inside.spans[sig, i])].min(axis=0)
    total = bound + least[join.pair_signature]
    reached = np.isfinite(total[..., -1]) & canonical
    both = np.where(reached, [np.where(reached[..., None], total, 0.0) @ cone.middle, total[..., -1]], inf)
    lowest = np.maximum(both.min(axis=(1, 2), keepdims=True), np.finfo(float).tiny)
    score = (both / lowest).sum(axis=0).min(axis=0)
    order: Ints = np.argsort(score, kind="stable")
    return order[: int((score < inf).sum())]


def _stored(e: Einsum, f: Family, own: Formulas, s: Search, join: Join, grid: optimal_kernels.Grid, inside: kernels.Inside, chains: kernels.Chains,
            members: kernels.Front, outer: optimal_kernels.Heads, numbers: Ints) -> Frontier:
    """Members in the order of what they cost, with their counts and their states after every step."""
    n = int(members.size[0])
    order = np.lexsort(members.rows[:n].T[::-1])
    rows, shapes, order = members.rows[order], members.shapes[order], members.number[order]
    steps = max(map(len, join.out_steps)) + max(map(len, join.in_steps))
    links = np.full((n, steps + int(join.ins.ordered.max())), -1, np.int64)
    places = np.zeros((*links.shape, len(own.ranks)), np.int64)
    states, programs = np.zeros((n, steps, len(own.ranks)), np.int64), np.zeros((n, 2), np.int64)
    ones = grid.digit[-1]
    for row, m in enumerate(order):
        at, inner, lanes = int(numbers[members.outer[m]]), int(members.program[m]), members.lanes[m]
        programs[row] = outer.program[at], inner
        walked: list[Ints] = []
        while outer.back[at] >= 0:
            walked.insert(0, grid.states[outer.at[at]])
            at = int(outer.back[at])
        chain = [grid.digit[place] for place in chains.place[members.chain[m], 1: len(join.in_steps[inner]) - 1]]
        tiles = [inside.down[np.arange(len(lanes)), lanes, digit] for digit in (*chain, ones)]
        walked += [lanes, *tiles]
        states[row, : len(walked)] = walked
        done = [step.parent >= 0 and step.kind == NODE for step in (*join.out_steps[programs[row, 0]], *join.in_steps[inner])]
        moving = [link for k, own_steps in ((join.outs, programs[row, 0]), (join.ins, inner)) for link in k.order[own_steps, : k.ordered[own_steps]]]
        where = [after for after, settles in zip(walked, done, strict=True) if settles]
        where += [tiles[-1]] * (len(moving) - len(where))
        links[row, : len(moving)], places[row, : len(moving)] = moving, where
    t, _ = optimal.tables(s, _counted(own, e, f.arch))
    return Frontier(f, kernels.totals(links, places, t), rows, shapes, programs, states)


class Machine(NamedTuple):
    """What prices need of a machine, whatever the einsum: number of its cell, rates of its levels and leakage as `rates` has them; per level whether reads
    and writes have ports of their own, and whether fills wait."""

    cell: int
    rates: list[float]
    leak: float
    ports: NDArray[np.bool_]
    waits: NDArray[np.bool_]


def asked(f: Family, arch: Arch) -> Machine:
    """A machine that the family covers."""
    row: list[float] = []
    for level in arch.levels:
        cycles = 1 / (level.width_bits * level.bandwidth)
        row += [level.read_pj / level.width_bits, level.write_pj / level.width_bits, cycles, cycles]
    return Machine(cell(f, arch), row, arch.leak_mw() / arch.clock_ghz, np.array([level.ports == "separate" for level in arch.levels]),
                   np.zeros(len(arch.levels), np.bool_))


def rates(machines: Sequence[Machine], archs: Sequence[Arch], e: Einsum) -> Floats:
    """[M, 4 V + 4] what kernels.cheapest multiplies counts with."""
    ops = e.points() * nonzero(e)
    return np.array([[*m.rates, ops * op_pj(e, arch), op_cycles(ops, 0.0, e, arch), op_cycles(0.0, 1.0, e, arch), m.leak]
                     for m, arch in zip(machines, archs, strict=True)])


def members(own: Frontier, number: int) -> Ints:
    """Those that fit a cell, without those that another one of the cell beats on all its machines."""
    if number not in own.cells:
        rest, fits = number, np.ones(len(own.counts), np.bool_)
        for v in range(len(own.family.rooms) - 1, -1, -1):
            rest, room = divmod(rest, max(len(own.family.rooms[v]), 1))
            fits &= own.rows[:, v - 1 - len(own.family.rooms)] <= room
        found = np.flatnonzero(fits & (own.shapes >> rest & 1 > 0))
        own.cells[number] = found[kernels.undominated(own.rows[found], _cone(own.family))]
    return own.cells[number]


def prices(own: Frontier, machines: Sequence[Machine], numbers: Floats, objective: str) -> tuple[Ints, Floats]:
    """Per machine the best member (-1: none fits) and [M, 2] its energy in pJ and latency in cycles. numbers [M, .] of `rates`; all have the ports and
    transfers of the first machine."""
    cells = list(dict.fromkeys(m.cell for m in machines))
    place, lists = {number: i for i, number in enumerate(cells)}, [members(own, number) for number in cells]
    best, out = np.zeros(len(machines), np.int64), np.zeros((len(machines), 2))
    kernels.cheapest(own.counts, ranges(map(len, lists)), np.concatenate(lists), np.array([place[m.cell] for m in machines]), numbers, machines[0].ports,
                     machines[0].waits, optimal_kernels.OBJECTIVES[objective], best, out)
    return best, out


def priced(own: Frontier, problem: Problem, machine: Machine | None = None) -> list[EinsumCost] | Infeasible:
    """The best mapping of the frontier's einsum on a machine of its family: what optimal.solved finds over perfect factors. machine: as `asked` gives it."""
    e, arch = problem.einsum, problem.arch
    machine = machine or asked(own.family, arch)
    best, out = prices(own, [machine], rates([machine], [arch], e), problem.objective)
    if best[0] < 0:
        return optimal.solved(problem, "perfect")
    n, shape = int(best[0]), shape_of(arch)
    if (n, shape) not in own.told:
        mapping = _mapping(own, n, e, arch)
        held = footprints(mapping, e)
        answer = costed(problem, mapping, count(mapping, e, arch), held)
        own.told[n, shape] = optimum(answer, named("perfect", arch), 0), held
    known, held = own.told[n, shape]
    p = price(known.mapping, known.counts, e, arch)
    if (n, machine.cell) not in own.fits:
        if broken := lanes_overflow(known.mapping, e, arch) or overflow(held, e, arch):
            raise Forged(f"{e.name} on {arch.name}: member {n} does not fit: {broken}; {EMPTY}")
        own.fits.add((n, machine.cell))
    if not isclose(p.energy_pj, out[0, 0], rel_tol=1e-9) or not isclose(p.latency_cycles, out[0, 1], rel_tol=1e-9):
        raise Forged(f"{e.name} on {arch.name}: member {n} costs {p.energy_pj} pJ and {p.latency_cycles} cycles, its counts say {out[0].tolist()}; {EMPTY}")
    return [replace(known, energy_pj=p.energy_pj, latency_cycles=p.latency_cycles, bound_by=p.bound_by, price=p)]


class Forged(RuntimeError):
    """A frontier that is not what `solved` makes, though its file is whole."""


EMPTY = "a frontier of the cache is not what dse wrote: remove $DSE_CACHE, then resume"


def _mapping(own: Frontier, n: int, e: Einsum, arch: Arch) -> Mapping:
    """As nest_of, of a member that may come from anywhere. Raises Forged."""
    try:
        mapping = nest_of(own, n, e, arch)
        lines = faults(mapping, e, arch)
    except (IndexError, KeyError, ValueError, AssertionError) as fault:
        lines = [f"{type(fault).__name__} {fault}"]
    if lines:
        raise Forged(f"{e.name}: member {n}: {lines[0]}; {EMPTY}")
    return mapping


def nest_of(own: Frontier, n: int, e: Einsum, arch: Arch) -> Mapping:
    """Member n on a machine that it fits; e is the frontier's einsum."""
    join = optimal.joined(e, own.family.arch, FREE, "perfect")
    steps = (*join.out_steps[own.programs[n, 0]], *join.in_steps[own.programs[n, 1]])
    return optimal.nest(formulas(e, own.family.arch, "perfect", FREE), e, arch, steps, own.states[n, : len(steps)])


def front(e: Einsum, arch: Arch) -> list[EinsumCost]:
    """Mappings over perfect factors that no other one equals or beats in energy, latency and room at every level, by energy. Room counts in halves of a
    capacity. Raises NoFrontier."""
    rooms = [level.capacity_bits for level in arch.levels]
    halvings = min(8, int(CELLS ** (1 / max(sum(room is not None for room in rooms), 1))))
    sizes = [[None] if room is None else sorted({max(room >> n, arch.word_bits) for n in range(halvings)}) for room in rooms]
    own = solved(e, family([replace(arch, levels=tuple(replace(level, capacity_bits=bits) for level, bits in zip(arch.levels, choice, strict=True)))
                            for choice in product(*sizes)]))
    found = []
    for n, row in enumerate(own.rows):
        mapping = nest_of(own, n, e, arch)
        one = costed(Problem(arch, e, "energy"), mapping, count(mapping, e, arch), footprints(mapping, e))
        found.append((one, np.array([one.energy_pj, one.latency_cycles, *row[-1 - len(rooms): -1]])))
    kept: list[tuple[EinsumCost, Floats]] = []
    for one, costs in sorted(found, key=lambda pair: tuple(pair[1])):
        if not any((other <= costs * kernels.CLOSE).all() for _, other in kept):
            kept.append((one, costs))
    return [one for one, _ in kept]
