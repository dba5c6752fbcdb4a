"""The vectorised twin of counts.py and cost.py: one nest, many tile sizes.

A count is a sum of products of factors, and a factor depends on the tiles of one dimension's ranks only. So mappings that
share a nest are given as one choice per rank out of that rank's options; each factor becomes a table over options, filled
by the scalar closed form, and a compiled loop gathers and multiplies. Counts are the same numbers as the scalar path's.
"""

from __future__ import annotations

from collections.abc import Mapping as Dict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dse.nest import Loop, Mapping, Store
from dse.sim.cost import bits_of, fill_cycles, op_cycles, op_pj
from dse.sim.counts import Factor, Term, recipe, shape, sink, value, wiring
from hw.arch import Arch
from workloads.einsum import Einsum, Projection

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
BLOCK = 4096  # mappings whose counts stay in the cache
Options = Dict[str, Sequence[Sequence[int]]]  # rank -> tile sizes of its loops, outermost first, per option


@dataclass(frozen=True, slots=True)
class Tables:
    """A nest compiled for one einsum, machine and set of options.

    table [N]: values of all factors, end to end; start [F]: where a factor's begin; ranks [F + 1], rank, stride [...]: its
    ranks and the step per option of each. parts [P + 1], factors [...]: the different products of factors. Counts, two per
    row (total, busiest), then per node its footprint and how often it is refilled: terms [K + 1], scale, product [...]: the
    sum of scaled products that each is.
    """

    rows: tuple[tuple[str, str, str], ...]
    held: tuple[tuple[str, str], ...]
    table: Floats
    start: Ints
    ranks: Ints
    rank: Ints
    stride: Ints
    parts: Ints
    factors: Ints
    terms: Ints
    scale: Floats
    product: Ints


@dataclass(frozen=True, slots=True)
class Costs:
    """Of C mappings: energy [C] pJ, latency [C] cycles, bits [C, V] that an instance of each level holds."""

    energy_pj: Floats
    latency_cycles: Floats
    held_bits: Floats


def mapping_at(nest: Mapping, options: Options, choice: Dict[str, int]) -> Mapping:
    """One of the mappings, as the scalar path takes it. choice: number of the option per rank."""
    left = {rank: iter(options[rank][number]) for rank, number in choice.items()}
    return Mapping(tuple(Loop(node.rank, next(left[node.rank]), node.over) if isinstance(node, Loop) else node for node in nest.nodes))


def tables(nest: Mapping, e: Einsum, arch: Arch, options: Options) -> Tables:
    """Compile a nest; tile sizes in `nest` are ignored. options: for every rank that has loops."""
    formulas = recipe(shape(nest), e, wiring(arch))
    factors = [*formulas.factors]
    counts = [terms for row in formulas.rows for terms in (row.total, row.busiest)]
    held, footprint_terms = _footprints(nest, e, factors)
    counts += footprint_terms
    ranks = [rank for rank, _ in e.extents]
    loops = _loops(nest)
    filled = [_table(factor, ranks, loops, options) for factor in factors]
    steps = [step for _, own in filled for step in own]
    terms = [term for count in counts for term in count]
    products = list(dict.fromkeys(term.factors for term in terms))
    return Tables(
        tuple((row.level, row.tensor, row.action) for row in formulas.rows), held,
        np.concatenate([values for values, _ in filled]), _offsets([len(values) for values, _ in filled])[:-1],
        _offsets([len(own) for _, own in filled]), np.array([r for r, _ in steps], np.int64), np.array([n for _, n in steps], np.int64),
        _offsets([len(product) for product in products]), np.array([f for product in products for f in product], np.int64),
        _offsets([len(count) for count in counts]), np.array([term.scale for term in terms], np.float64),
        np.array([products.index(term.factors) for term in terms], np.int64))


def count_many(compiled: Tables, choices: Ints) -> tuple[Floats, Floats, Floats, NDArray[np.bool_]]:
    """Counts of C mappings. choices [C, R]: number of the option per rank, ranks in the order of the einsum's extents.

    Returns total [C, K], busiest [C, K] in the order of compiled.rows, held [C, H] and moving [C, H] in the order of
    compiled.held; whole numbers below 2^53, equal to what `counts.count` and `counts.footprints` give.
    """
    t = compiled
    found = _gather(choices, t.table, t.start, t.ranks, t.rank, t.stride, t.parts, t.factors, t.terms, t.scale, t.product)
    k = 2 * len(compiled.rows)
    held = np.ceil(np.round(found[:, k::2], 6))  # expected sizes of compressed tiles, rounded up
    return found[:, 0:k:2], found[:, 1:k:2], held, found[:, k + 1 :: 2] > 1


def cost_many(compiled: Tables, e: Einsum, arch: Arch, choices: Ints) -> Costs:
    """Energy, latency and held bits of C mappings, as `cost.price` and `cost.overflow` have them."""
    parts = [_cost_block(compiled, e, arch, choices[at : at + BLOCK]) for at in range(0, max(len(choices), 1), BLOCK)]
    return Costs(*(np.concatenate(columns) for columns in zip(*((p.energy_pj, p.latency_cycles, p.held_bits) for p in parts), strict=True)))


def _cost_block(compiled: Tables, e: Einsum, arch: Arch, choices: Ints) -> Costs:
    total, busiest, held, moving = count_many(compiled, choices)
    bits = bits_of(e, arch)
    energy = total @ np.array([_action_pj(row, e, arch, bits) for row in compiled.rows])
    names = [level.name for level in arch.levels]
    cycles = _compute_cycles(compiled, total, busiest, e, arch)
    for v in range(len(names) - 1, -1, -1):
        level = arch.levels[v]
        reads, writes = (busiest @ _port_weights(compiled, level.name, action, bits, level.width_bits) for action in ("read", "write"))
        busy = (np.maximum(reads, writes) if level.ports == "separate" else reads + writes) / level.bandwidth
        cycles = np.maximum(cycles, busy) if level.transfer == "next" else cycles + busy
    doubled = np.array([next(v.double_buffer for v in arch.levels if v.name == level) for level, _ in compiled.held])
    holders = np.array([[bits[tensor] if level == name else 0 for name in names] for level, tensor in compiled.held], np.float64)
    return Costs(energy + arch.leak_mw() * cycles / arch.clock_ghz, cycles, (held * np.where(doubled & moving, 2, 1)) @ holders)


def _action_pj(row: tuple[str, str, str], e: Einsum, arch: Arch, bits: Dict[str, int]) -> float:
    name, tensor, action = row
    if action in ("compute", "enter"):
        return op_pj(e, arch) if action == "compute" else 0.0
    level = next(level for level in arch.levels if level.name == name)
    return bits[tensor] / level.width_bits * (level.read_pj if action == "read" else level.write_pj)


def _compute_cycles(compiled: Tables, total: Floats, busiest: Floats, e: Einsum, arch: Arch) -> Floats:
    arrays = {f.name: f for f in arch.fanouts}
    cycles = np.zeros(len(total))
    for k, (name, _, action) in enumerate(compiled.rows):
        if action == "compute":
            unit = np.array([op_cycles(1.0, 0.0, e, arch), op_cycles(0.0, 1.0, e, arch)])
            cycles += unit[0] * total[:, k] + unit[1] * busiest[:, k]
        elif action == "enter":
            cycles += np.maximum(busiest[:, k] * fill_cycles(arrays[name], e, arch) - 1, 0)
    return cycles


def _port_weights(compiled: Tables, level: str, wanted: str, bits: Dict[str, int], width: int) -> Floats:
    return np.array([bits[tensor] / width if name == level and action == wanted else 0.0 for name, tensor, action in compiled.rows])


def _loops(nest: Mapping) -> dict[str, list[int]]:
    """Rank -> numbers of its loops."""
    found: dict[str, list[int]] = {}
    for number, node in enumerate(node for node in nest.nodes if isinstance(node, Loop)):
        found.setdefault(node.rank, []).append(number)
    return found


def _table(factor: Factor, ranks: Sequence[str], loops: Dict[str, list[int]], options: Options) -> tuple[Floats, list[tuple[int, int]]]:
    """A factor's value for every combination of options of the ranks whose loops it has, and (rank, step per option) of these."""
    used = {number for _, cuts in factor.cuts for number, _ in cuts}
    own = [rank for rank in ranks if used & set(loops.get(rank, ()))]
    values = []
    for choice in product(*(options[rank] for rank in own)):
        tiles = [0] * sum(map(len, loops.values()))
        for rank, sizes in zip(own, choice, strict=True):
            for number, size in zip(loops[rank], sizes, strict=True):
                tiles[number] = size
        values.append(value(factor, tiles))
    return np.array(values, np.float64), [(ranks.index(rank), prod(len(options[other]) for other in own[i + 1 :])) for i, rank in enumerate(own)]


def _footprints(nest: Mapping, e: Einsum, factors: list[Factor]) -> tuple[tuple[tuple[str, str], ...], list[tuple[Term, ...]]]:
    """What each storage node holds: per dimension the hull of the tile in view where the node comes to rest, an added factor."""
    projections = {p.tensor: p for p in e.tensors()}
    seen: set[str] = set()
    names, terms = [], []
    for i, node in enumerate(nest.nodes):
        if isinstance(node, Store):
            p = projections[node.tensor]
            rest = sink(p, nest.nodes, i) if node.tensor in seen else i
            seen.add(node.tensor)
            names.append((node.level, node.tensor))
            terms += [_held_terms(p, e, nest, rest, factors), (Term(1, _refills(e, nest, rest, factors)),)]
    return tuple(names), terms


def _held_terms(p: Projection, e: Einsum, nest: Mapping, rest: int, factors: list[Factor]) -> tuple[Term, ...]:
    """Hull of the first tile: every loop above `rest` keeps its first trip only, nothing is clipped."""
    sizes, loops = e.sizes(), _loops(nest)
    above = sum(isinstance(node, Loop) for node in nest.nodes[:rest])
    numbers = []
    for dim in p.dims:
        cuts = tuple((sizes[rank], tuple((number, True) for number in loops.get(rank, ()) if number < above)) for rank in dim.ranks())
        numbers.append(len(factors))
        factors.append(Factor(dim, cuts))
    whole = tuple(numbers)
    return (Term(1, whole),) if p.format == "dense" else (Term(2 * p.density, whole), Term(1, whole[:-1]))


def _refills(e: Einsum, nest: Mapping, at: int, factors: list[Factor]) -> tuple[int, ...]:
    """Iterations in time of the loops above the place that a node sinks to."""
    loops = [node for node in nest.nodes[:at] if isinstance(node, Loop)]
    numbers = []
    for rank, n in e.extents:
        numbers.append(len(factors))
        factors.append(Factor(None, ((n, tuple((i, bool(loop.over)) for i, loop in enumerate(loops) if loop.rank == rank)),)))
    return tuple(numbers)


def _offsets(lengths: Sequence[int]) -> Ints:
    return np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)


@njit(cache=True, nogil=True)
def _gather(choices: Ints, table: Floats, start: Ints, ranks: Ints, rank: Ints, stride: Ints, parts: Ints, factors: Ints, terms: Ints, scale: Floats,
            product: Ints) -> Floats:
    """Counts [C, K] as Tables says: factors by look-up, their different products, sums of these."""
    found = np.empty((choices.shape[0], terms.shape[0] - 1))
    values = np.empty(start.shape[0])
    products = np.empty(parts.shape[0] - 1)
    for c in range(choices.shape[0]):
        for f in range(start.shape[0]):
            at = start[f]
            for i in range(ranks[f], ranks[f + 1]):
                at += choices[c, rank[i]] * stride[i]
            values[f] = table[at]
        for p in range(products.shape[0]):
            value = values[factors[parts[p]]] if parts[p + 1] > parts[p] else 1.0
            for i in range(parts[p] + 1, parts[p + 1]):
                value *= values[factors[i]]
            products[p] = value
        for k in range(terms.shape[0] - 1):
            total = 0.0
            for i in range(terms[k], terms[k + 1]):
                total += scale[i] * products[product[i]]
            found[c, k] = total
    return found
