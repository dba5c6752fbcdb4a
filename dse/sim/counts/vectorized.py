"""The vectorised twin of the evaluator: one nest, many tile sizes.

A count is a sum of products of factors, and a factor depends on the tiles of one dimension's ranks only.
Mappings that share a nest are therefore given as one option per rank. Each factor becomes a table over
options, filled by the scalar closed form. Counts and port times are then computed by the code of the scalar
path, on arrays of one number per mapping.
"""

from __future__ import annotations

from collections.abc import Mapping as Dict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod

import numpy as np

from dse.mapping.nest import Loop, Mapping, Store, bits_at, stored_at
from dse.sim.counts.actions import action_pj, busy, elapsed_cycles
from dse.sim.counts.counts import Violated, recipe, takes_capacity
from dse.sim.counts.spans import FIRST, INSTANCE_PE
from dse.sim.counts.terms import (
    Factor,
    Formulas,
    NestSums,
    Term,
    instances,
    passes,
    value,
    wiring,
    without_tile_sizes,
)
from dse.sim.counts.times import port_times
from hw.arch import Arch
from workloads.arrays import Floats, Ints
from workloads.einsum import Einsum, Projection

ROUNDING = 1e-9  # counts below 0 by less than this share of the iterations come from rounding of floats
BLOCK = 4096  # mappings per block, so that their counts stay in the cache
# rank -> tile sizes of its loops, outermost first, per option
TileOptions = Dict[str, Sequence[Sequence[int]]]
PeIndices = tuple[tuple[int, int], ...]  # (index of the spatial loop, PE along it)


@dataclass(slots=True)
class Tables:
    """A nest compiled for one einsum, machine and set of options. Sizes and refills are sums of
    products of factors.
    """

    formulas: Formulas
    options: TileOptions
    instances: list[dict[int, int]]  # instances that may be the busiest in some of the mappings
    nodes: tuple[str, ...]  # level of every storage node
    # per node, what it holds: (number of items, rounded up; bits of each)
    sizes: list[list[tuple[Term, int]]]
    refills: list[list[Term]]  # per node, how often it is filled
    # values of a factor over the options of its ranks, and (rank, step) of each rank; filled on demand
    memo: dict[tuple[Factor, PeIndices], tuple[Floats, list[tuple[int, int]]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs of C mappings."""

    energy_pj: Floats  # [C]
    latency_cycles: Floats  # [C]
    occupied_bits: Floats  # [C, V] bits that one instance of each level holds


def mapping_at(nest: Mapping, options: TileOptions, choice: Dict[str, int]) -> Mapping:
    """Returns one of the mappings, for the scalar path. choice: number of the option per rank."""
    remaining = {rank: iter(options[rank][number]) for rank, number in choice.items()}
    return Mapping(
        tuple(
            Loop(node.rank, next(remaining[node.rank]), node.over) if isinstance(node, Loop) else node
            for node in nest.nodes
        )
    )


def tables(nest: Mapping, e: Einsum, arch: Arch, options: TileOptions) -> Tables:
    """Returns the compiled nest; tile sizes in `nest` are ignored. options: for every rank that has loops."""
    s = recipe(without_tile_sizes(nest), e, wiring(arch), e)
    tiles = []
    # options are taken cyclically, so that every option of every rank occurs in one of these rows
    for i in range(max(len(rank_options) for rank_options in options.values())):
        remaining = {
            rank: iter(rank_options[i % len(rank_options)])
            for rank, rank_options in options.items()
            if rank_options
        }
        tiles.append([next(remaining[loop.rank]) for _, loop in s.loops])
    projections, levels = {p.tensor: p for p in e.tensors()}, {level.name: level for level in arch.levels}
    resting_positions = {link.child_at: link.rests_at for link in s.links}
    node_levels, sizes, refills = [], [], []
    for i, node in enumerate(nest.nodes):
        if isinstance(node, Store):
            p, rests_at = projections[node.tensor], resting_positions.get(i, i)
            node_levels.append(node.level)
            outermost = node.level == arch.levels[0].name
            sizes.append(
                [(Term(1, ()), p.stored_bits(arch.word_bits) * takes_capacity(p, e))]
                if outermost
                else _tile_terms(
                    s,
                    stored_at(levels[node.level].formats, p, e),
                    rests_at,
                    bits_at(levels[node.level], p.tensor, e, arch),
                )
            )
            refills.append([Term(1, () if outermost else passes(s, rests_at, all_pes=False))])
    return Tables(s, options, instances(s, tiles), tuple(node_levels), sizes, refills)


def _tile_terms(s: Formulas, p: Projection, rests_at: int, bits: int) -> list[tuple[Term, int]]:
    """Returns the hull of the first tile as (amount, bits of each): each loop above `rest` counts its first
    trip, and nothing is clipped. bits: of an element at the level of the node
    """
    cuts: dict[str, tuple[tuple[int, int], ...]] = {}
    for number, (i, loop) in enumerate(s.loops):
        if i < rests_at:
            cuts[loop.rank] = (*cuts.get(loop.rank, ()), (number, FIRST))
    whole = s.of_dims(p, cuts, clip=False)
    return (
        [(Term(1, whole), bits)]
        if p.format == "dense"
        else [
            (Term(p.stored_density(), whole), bits + p.index_bits),
            (Term(1, whole[:-1]), p.pointer_bits),
            *([(Term(1, whole), p.mask_bits())] if p.mask_bits() else []),
        ]
    )


def cost_many(compiled: Tables, e: Einsum, arch: Arch, choices: Ints) -> Costs:
    """Returns energy, latency and held bits of C mappings, as `cost.price` and `cost.occupied_bits` compute
    them. Raises Violated where a count is negative.

    choices: [C, R], number of the option per rank, ranks in the order of the einsum's extents
    """
    parts = [
        _block(compiled, e, arch, choices[at : at + BLOCK]) for at in range(0, max(len(choices), 1), BLOCK)
    ]
    return Costs(
        *(
            np.concatenate(columns)
            for columns in zip(
                *((p.energy_pj, p.latency_cycles, p.occupied_bits) for p in parts), strict=True
            )
        )
    )


def nest_sums(t: Tables, choices: Ints) -> NestSums:
    """Returns the sums of C mappings at once."""
    ranks = [rank for rank, _ in t.formulas.e.extents]

    def factor_values(factor: Factor, pes: dict[int, int]) -> Floats:
        spatial_loops = {
            number for _, cuts in factor.cuts for number, counted in cuts if counted == INSTANCE_PE
        }
        key = factor, tuple((number, k) for number, k in pes.items() if number in spatial_loops)
        if key not in t.memo:
            t.memo[key] = _table(t, factor, dict(key[1]), ranks)
        values, steps = t.memo[key]
        if not steps:
            return values  # one number for all
        index = choices[:, steps[0][0]] * steps[0][1]
        for r, step in steps[1:]:
            index = index + choices[:, r] * step
        per_mapping: Floats = values[index]
        return per_mapping

    return NestSums(t.formulas, factor_values, t.instances)


def _table(
    t: Tables, factor: Factor, pes: dict[int, int], ranks: Sequence[str]
) -> tuple[Floats, list[tuple[int, int]]]:
    """Returns the values of a factor for every combination of options of the ranks whose loops it has, and
    (rank, step per option) of each such rank.
    """
    loops: dict[str, list[int]] = {}
    for number, (_, loop) in enumerate(t.formulas.loops):
        loops.setdefault(loop.rank, []).append(number)
    used = {number for _, cuts in factor.cuts for number, _ in cuts}
    used_ranks = [rank for rank in ranks if used & set(loops.get(rank, ()))]
    values, tiles = [], [0] * len(t.formulas.loops)
    for choice in product(*(t.options[rank] for rank in used_ranks)):
        for rank, sizes in zip(used_ranks, choice, strict=True):
            for number, size in zip(loops[rank], sizes, strict=True):
                tiles[number] = size
        values.append(value(tiles, factor, pes))
    return np.array(values, np.float64), [
        (ranks.index(rank), prod(len(t.options[other]) for other in used_ranks[i + 1 :]))
        for i, rank in enumerate(used_ranks)
    ]


def _block(t: Tables, e: Einsum, arch: Arch, choices: Ints) -> Costs:
    """Returns the costs of at most BLOCK mappings."""
    sums, rows, ones = nest_sums(t, choices), t.formulas.rows, np.ones(len(choices))
    totals = [sums.total(row.total) * ones for row in rows]
    for row, total in zip(rows, totals, strict=True):
        if total.min(initial=0.0) < -ROUNDING * e.points():
            level, tensor, action = row.key
            raise Violated(
                f"{e.name} on {arch.name}: {total.min()} {action}s of {tensor} at {level}, in\n"
                f"{t.formulas.nest} with options {choices[int(total.argmin())].tolist()} of {t.options}"
            )
    energy = sum(total * action_pj(row.key, e, arch) for row, total in zip(rows, totals, strict=True))
    components = busy(
        [
            (row.key, total, sums.by_instance(row.one_instance))
            for row, total in zip(rows, totals, strict=True)
        ],
        e,
        arch,
    )
    times = port_times(sums, arch, wants_interval=False)[0] if arch.overlap == "buffered" else []
    cycles = elapsed_cycles(components, times) * ones
    return Costs(
        energy + arch.leak_mw() * cycles / arch.clock_ghz,
        cycles,
        _occupied_bits(t, sums, arch) * ones[:, None],
    )


def _occupied_bits(t: Tables, sums: NestSums, arch: Arch) -> Floats:
    """Returns bits per level, [C, V]. Expected sizes of compressed tiles are rounded up; tiles that are
    refilled count twice at a double-buffered level.
    """
    order, zeros = arch.level_index(), np.zeros(1)
    columns = [zeros] * len(arch.levels)
    for name, size, refills in zip(t.nodes, t.sizes, t.refills, strict=True):
        level = arch.levels[order[name]]
        bits = sum(
            np.ceil(np.round(sums.total([amount]) + zeros, 6)) * elem_bits for amount, elem_bits in size
        )
        columns[order[name]] = columns[order[name]] + bits * (
            1 + (level.double_buffer & (sums.total(refills) + zeros > 1))
        )
    return np.stack(np.broadcast_arrays(*columns), axis=1)
