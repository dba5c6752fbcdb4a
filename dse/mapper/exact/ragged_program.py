"""Programs of the search over imperfect factors (ragged.py). A program is one order of storage nodes: its
cost as a sum of terms, each of them a product over ranks; bounds of the cost; and the loop nest for given
tiles.

`program` is long, since every action of the model has its line there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import permutations, product
from math import inf, prod
from typing import NamedTuple

import numpy as np

from dse.mapper.exact import ragged_kernels as kernels
from dse.mapper.exact.ragged_kernels import COUNT, TOTAL
from dse.mapper.exact.search import OBJECTIVES
from dse.mapper.exact.steps import ARRAY, NODE, Step
from dse.mapping.nest import Loop, Mapping, Store, may_keep
from dse.sim.counts.actions import bits_of, op_cycles, op_pj
from dse.sim.counts.counts import hull
from dse.sim.einsum.evaluate import Problem
from hw.arch import Arch
from workloads.arrays import Floats, Ints
from workloads.einsum import Dim, Einsum, Projection

NO_GAP = -1
# Kinds of Role besides COUNT and TOTAL (ragged_kernels), which are numbers for the tiles inside the PEs.
# EXTENT: the extent of the rank. ONE: 1. TILES_AT_GAP: how many tiles the rank has at a gap.
EXTENT, ONE, TILES_AT_GAP = -1, -2, -3


class Window(NamedTuple):
    """A dimension of a tensor, restricted to the ranks of a group."""

    coefs: tuple[int, ...]  # per rank of the group
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Role:
    """The factor that a rank gives to a product."""

    kind: int  # EXTENT, ONE, TILES_AT_GAP; COUNT, TOTAL
    gap: int = NO_GAP  # of TILES_AT_GAP
    mask: int = 0  # of COUNT, TOTAL: fan-out dimensions of which only the first PE counts

    def is_inside_pes(self) -> bool:
        """Whether the factor is a number for the tiles inside the PEs."""
        return self.kind in (COUNT, TOTAL)


class TermKey(NamedTuple):
    """What tells terms of a program apart: fields of `Term`. Actions with equal keys are one term."""

    sign: int
    lower: float
    roles: tuple[Role, ...]
    windows: tuple[Dim, ...]
    window_gap: int


class Use(NamedTuple):
    """An action of a level on a tensor."""

    tensor: int
    level: int
    action: str  # "read" or "write"
    costs_energy: bool = True
    costs_cycles: bool = True


@dataclass(frozen=True, slots=True)
class Term:
    """One product over ranks, a count of actions, and what it costs."""

    sign: int  # 1; -1 for skipped reads, which are subtracted
    lower: float  # lower bound of the product; upper bound if sign is -1
    parts: tuple[float, ...]  # what one unit of the product adds to each part of the cost
    roles: tuple[Role, ...]  # one per rank of the einsum
    # dimensions of several ranks, or with padding: a factor is the sum of their hulls over tiles
    windows: tuple[Dim, ...] = ()
    window_gap: int = -1  # the gap whose tiles the windows are summed over
    # index of the term that skipped reads are subtracted from; of other terms their own index
    minuend: int = -1


@dataclass(frozen=True, slots=True)
class Node:
    """A storage node that is filled. Its gap is directly above it."""

    level: int
    tensor: int
    parent: int  # the level that fills it


@dataclass(frozen=True, slots=True)
class Program:
    """One order of storage nodes outside the array."""

    nodes: tuple[Node, ...]  # outermost first
    # per gap, the ranks that may have a loop (be cut) there: one gap above each node, one above the array
    allowed: tuple[frozenset[str], ...]
    node_in_array: Node | None  # the node inside the array, if there is one
    terms: tuple[Term, ...]
    start: tuple[float, ...]  # parts of the cost that are the same for all mappings


def unsupported(e: Einsum, arch: Arch) -> str:
    """The reason why this search does not take the einsum or the machine; "" if it takes them."""
    levels, border = arch.levels, arch.fanouts[0].outside if arch.fanouts else 0
    if len(arch.fanouts) != 1 or border == 0 or arch.fanouts[0].systolic:
        return "the machine must have exactly one array, not systolic, below a level"
    if arch.narrows_or_widens():
        return "a level gives elements a width of their own"
    if arch.with_ports():
        return "ports of a level serve some tensors, or writes at another rate than reads"
    if arch.with_latency():
        return "first words of a level take time"
    if arch.with_sharing():
        return "PEs along some dimensions of the array share a memory"
    if levels[0].bypass or len(may_keep(e, levels[0])) < len(e.tensors()):
        return "the machine's outermost level does not hold all tensors"
    if any(level.double_buffer and level.capacity_bits is not None for level in levels):
        return "a level with a capacity limit is double-buffered"
    held_inside = [p for level in levels[border:] for p in e.tensors() if p.tensor in may_keep(e, level)]
    if len(held_inside) > 1 or any(p.partial_ranks() or p is e.output for p in held_inside):
        return "more than one input, or one with windows, may stand inside the array"
    if any(p.format != "dense" or p.density != 1 for p in e.tensors()) or e.output.partial_ranks():
        return "a tensor has zeros or the output has windows"
    one_rank_dims = [
        (dim, n)
        for p in e.tensors()
        for dim in p.dims
        for rank, n in e.extents
        if rank in dim.ranks() and len(dim.terms) == 1 and dim.terms[0][1] == 1
    ]
    if any(dim.offset or dim.size < n for dim, n in one_rank_dims) or any(
        c < 0 or len(dim.terms) > 2 for p in e.tensors() for dim in p.dims for _, c in dim.terms
    ):
        return "a dimension is padded without a window, runs backwards or has more than two ranks"
    if any(len(group) > 2 for group in groups_of(e)):
        return "more than two ranks share dimensions"
    return ""


def groups_of(e: Einsum) -> list[tuple[str, ...]]:
    """Ranks of more than one value (if there are none, the first rank), in groups: ranks that share a
    dimension are in one group.
    """
    ranks = [rank for rank, n in e.extents if n > 1] or [e.extents[0][0]]
    group = {rank: rank for rank in ranks}
    for dim_ranks in [d.ranks() for p in e.tensors() for d in p.dims]:
        first = [group[rank] for rank in dim_ranks if rank in group]
        group = {rank: first[0] if g in first else g for rank, g in group.items()}
    return [tuple(rank for rank in ranks if group[rank] == g) for g in dict.fromkeys(group.values())]


def orders(arch: Arch) -> Iterator[Arch]:
    """Yields the machine with neighbouring levels in every order. Only levels that hold no tensor in common
    are reordered, so no cost changes.
    """
    border = arch.fanouts[0].outside if arch.fanouts else len(arch.levels)
    runs: list[list[int]] = []
    for v in range(1, border):
        level = arch.levels[v]
        if runs and all(
            not set(level.may_keep) & set(other.may_keep) for other in (arch.levels[w] for w in runs[-1])
        ):
            runs[-1].append(v)
        else:
            runs.append([v])
    for choice in product(*(permutations(run) for run in runs)):
        inner = [v for run in choice for v in run]
        yield replace(
            arch, levels=tuple(arch.levels[v] for v in (0, *inner, *range(border, len(arch.levels))))
        )


def program(e: Einsum, arch: Arch, steps: Sequence[Step]) -> Program:
    """The program for one placement of storage nodes. steps (steps.py): nodes and the array, outermost first,
    each with the ranks that may be cut above it.
    """
    array_step = next(i for i, s in enumerate(steps) if s.kind == ARRAY)
    filled = [s for s in steps[:array_step] if s.kind == NODE and s.parent >= 0]
    nodes = tuple(Node(s.level, s.tensor, s.parent) for s in filled)
    allowed = (*(s.allowed for s in filled), steps[array_step - 1].allowed)
    inside = next((Node(s.level, s.tensor, s.parent) for s in steps[array_step:] if s.kind == NODE), None)
    terms: dict[TermKey, list[float]] = {}
    minuends: dict[TermKey, TermKey] = {}  # term of skipped reads -> term of all reads of the link
    last_added = [TermKey(1, 0.0, (), (), NO_GAP)]
    part_count, ports = 2, []
    for level in arch.levels:
        ports.append((part_count, part_count + (level.ports == "separate")))
        part_count = ports[-1][1] + 1
    bits, tensors = bits_of(e, arch), e.tensors()
    dims = [
        (multicast, reduce)
        for f in arch.fanouts
        for multicast, reduce in zip(f.multicast, f.reduce, strict=True)
    ]
    size = [n for f in arch.fanouts for _, n in f.dims]
    full_mask = (1 << len(dims)) - 1
    ops = e.points()
    start = [0.0] * part_count
    start[0], start[1] = ops * op_pj(e, arch), op_cycles(ops, 0.0, e, arch)

    def add(
        sign: int,
        scale: float,
        uses: Sequence[Use],
        roles: tuple[Role, ...],
        windows: tuple[Dim, ...] = (),
        gap: int = NO_GAP,
        bound: float = 0.0,
    ) -> None:
        """Adds what actions cost to the term of their count.

        scale: actions per unit of the product.
        bound: lower bound of the product; upper bound if sign is -1.

        Skipped reads (sign -1) are subtracted from the term that was added before them.
        """
        key = TermKey(sign, bound, roles, windows, gap)
        term_parts = terms.setdefault(key, [0.0] * part_count)
        minuends.setdefault(key, key if sign > 0 else last_added[0])
        last_added[0] = key
        for use in uses:
            level = arch.levels[use.level]
            accesses = scale * bits[tensors[use.tensor].tensor] / level.width_bits
            pj = level.read_pj if use.action == "read" else level.write_pj
            term_parts[0] += use.costs_energy * accesses * pj
            port = ports[use.level][use.action == "write"]
            term_parts[port] += use.costs_cycles * accesses / level.bandwidth

    parent = dict.fromkeys(range(len(tensors)), 0)
    for gap, node in enumerate(nodes):
        p, is_output = tensors[node.tensor], tensors[node.tensor] is e.output
        windows = tuple(
            d
            for d in p.dims
            if not (len(d.terms) == 1 and d.terms[0][1] == 1)
            and any(e.sizes()[rank] > 1 for rank in d.ranks())
        )
        # a dimension whose ranks have one value may lie in the padding: nothing is stored then, nothing moves
        stored = float(all(0 <= d.offset < d.size for d in p.dims if d not in windows))
        roles = tuple(
            Role(EXTENT)
            if rank in p.full_ranks()
            else Role(ONE)
            if rank in p.ranks()
            else Role(TILES_AT_GAP, gap)
            for rank, _ in e.extents
        )
        fills = [Use(node.tensor, node.parent, "read"), Use(node.tensor, node.level, "write")]
        drains = [Use(node.tensor, node.parent, "write"), Use(node.tensor, node.level, "read")]
        add(1, stored, [*fills, *(drains if is_output else [])], roles, windows, gap)
        if is_output and arch.levels[node.parent].skip_first_read:
            add(
                -1,
                1.0,
                fills,
                tuple(Role(EXTENT) if rank in p.ranks() else Role(ONE) for rank, _ in e.extents),
                bound=inf,
            )
        parent[node.tensor] = node.level
    for x, p in enumerate(tensors):
        mask = sum(1 << d for d, shares in enumerate(dims) if shares[p is e.output])
        actions = ("read", "write") if p is e.output else ("read",)
        is_inside = inside is not None and inside.tensor == x
        if is_inside and inside is not None:
            shared_fetches = tuple(
                Role(EXTENT) if rank in p.ranks() else Role(COUNT, mask=mask) for rank, _ in e.extents
            )
            all_fetches = tuple(
                Role(EXTENT) if rank in p.ranks() else Role(COUNT, mask=0) for rank, _ in e.extents
            )
            busiest_pe = tuple(
                Role(TOTAL if rank in p.ranks() else COUNT, mask=full_mask) for rank, _ in e.extents
            )
            add(1, 1.0, [Use(x, parent[x], "read")], shared_fetches)
            add(1, 1.0, [Use(x, inside.level, "write", costs_cycles=False)], all_fetches)
            add(1, 1.0, [Use(x, inside.level, "write", costs_energy=False)], busiest_pe)
            inside_level = arch.levels[inside.level]
            start[0] += ops * bits[p.tensor] / inside_level.width_bits * inside_level.read_pj
            add(
                1,
                1.0,
                [Use(x, inside.level, "read", costs_energy=False)],
                tuple(Role(TOTAL, mask=full_mask) for _ in e.extents),
            )
            continue
        own_ranks = p.ranks()
        roles = tuple(Role(EXTENT) if rank in own_ranks else Role(TOTAL, mask=mask) for rank, _ in e.extents)
        points = prod(n for rank, n in e.extents if rank in own_ranks)
        min_fetches = min_steps(
            tuple(n for rank, n in e.extents if rank not in own_ranks),
            tuple(n for d, n in enumerate(size) if (mask >> d) & 1),
        )
        add(1, 1.0, [Use(x, parent[x], action) for action in actions], roles, bound=points * min_fetches)
        if p is e.output and arch.levels[parent[x]].skip_first_read:
            roles = tuple(Role(EXTENT) if rank in own_ranks else Role(ONE) for rank, _ in e.extents)
            add(-1, 1.0, [Use(x, parent[x], "read")], roles, bound=float(points))
    key = TermKey(
        1,
        min_steps(tuple(n for _, n in e.extents), tuple(size)),
        tuple(Role(TOTAL, mask=full_mask) for _ in e.extents),
        (),
        NO_GAP,
    )
    terms.setdefault(key, [0.0] * part_count)[1] += op_cycles(0.0, 1.0, e, arch)
    numbers = {k: i for i, k in enumerate(terms)}
    found = [
        Term(
            k.sign, k.lower, tuple(term_parts), k.roles, k.windows, k.window_gap, numbers[minuends.get(k, k)]
        )
        for k, term_parts in terms.items()
    ]
    return Program(nodes, allowed, inside, tuple(found), tuple(start))


@lru_cache(maxsize=256)
def min_steps(extents: tuple[int, ...], pes: tuple[int, ...]) -> float:
    """A lower bound of the number of steps that the array takes, if each PE does one MAC per step: the least
    product over ranks of ceil(extent / PEs along the rank). pes: sizes of the fan-out dimensions.
    """
    steps_by_pes = {pes: 1}
    for extent in sorted(n for n in extents if n > 1):
        wider: dict[tuple[int, ...], int] = {}
        for left, steps in steps_by_pes.items():
            for use in product(*(range(1, n + 1) for n in left)):
                pes_left = tuple(n // used for n, used in zip(left, use, strict=True))
                more = steps * -(-extent // prod(use))
                wider[pes_left] = min(wider.get(pes_left, more), more)
        steps_by_pes = wider
    return float(min(steps_by_pes.values()))


def bounded_nodes(p: Program, arch: Arch) -> list[tuple[int, Node]]:
    """Storage nodes whose level has a capacity, each with its gap (position among the loops)."""
    return [
        (gap, node) for gap, node in enumerate(p.nodes) if arch.levels[node.level].capacity_bits is not None
    ]


def prices(p: Program, problem: Problem, ties: bool) -> kernels.Prices:
    """What the kernels need to cost vectors: pJ and cycles per term, capacities in bits, PEs. ties: whether
    energy, then latency decide between equal objectives.
    """
    arch, e = problem.arch, problem.einsum
    part_count, ports = 2, []
    for level in arch.levels:
        ports.append((part_count, part_count + (level.ports == "separate"), False))
        part_count = ports[-1][1] + 1
    bits, nodes = bits_of(e, arch), [node for _, node in bounded_nodes(p, arch)]
    ops = e.points()
    min_busiest_ops = -(-e.points() // arch.instances(len(arch.levels)))
    return kernels.Prices(
        weights=np.array([t.parts for t in p.terms]),
        sign=np.array([float(t.sign) for t in p.terms]),
        lower=np.array([t.lower for t in p.terms]),
        minuend=np.array([t.minuend for t in p.terms], np.int64),
        start=np.array(p.start),
        ports=np.array(ports, np.int64),
        machine=np.array([arch.leak_mw() / arch.clock_ghz, op_cycles(ops, min_busiest_ops, e, arch)]),
        objective=OBJECTIVES[problem.objective],
        break_ties=ties,
        bits=np.array([float(bits[e.tensors()[node.tensor].tensor]) for node in nodes]),
        level=np.array([node.level for node in nodes], np.int64),
        capacity=np.array(
            [inf if level.capacity_bits is None else float(level.capacity_bits) for level in arch.levels]
        ),
        pes=np.array([float(n) for f in arch.fanouts for _, n in f.dims]),
    )


def ideal(p: Program, problem: Problem, t: kernels.Prices) -> Floats:
    """A lower bound of a program's cost, whatever its tiles: [objective, energy, latency]."""
    value = np.ones(len(p.terms))
    e = problem.einsum
    for k, term in enumerate(p.terms):
        for (_, n), role in zip(e.extents, term.roles, strict=True):
            if role.kind == EXTENT:
                value[k] *= n
        for d in term.windows:
            value[k] *= touched(
                Window(tuple(c for _, c in d.terms), d.offset, d.size),
                [e.sizes()[rank] for rank, _ in d.terms],
            )
        value[k] = (
            max(value[k], term.lower) if term.sign > 0 else min(value[k], term.lower, value[term.minuend])
        )
    out = np.zeros(3)
    kernels.objective_value(value, t, np.zeros(len(p.start)), out)
    return out


def touched(window: Window, extents: Sequence[int]) -> int:
    """How many different stored indices of a dimension an einsum reads. extents: of the window's ranks."""
    index = np.array([window.offset])
    for c, n in zip(window.coefs, extents, strict=True):
        index = np.unique(np.add.outer(index, c * np.arange(n)))
    return int(((index >= 0) & (index < window.size)).sum())


def nest(e: Einsum, p: Program, arch: Arch, chosen: Sequence[Ints]) -> Mapping:
    """The mapping with the given chains of tiles (ragged_kernels), one per rank, grouped as in
    `groups_of`.
    """
    names, dims = [x.tensor for x in e.tensors()], [name for f in arch.fanouts for name, _ in f.dims]
    chain = dict(
        zip(
            [rank for ranks in groups_of(e) for rank in ranks],
            [row for rows in chosen for row in rows.tolist()],
            strict=True,
        )
    )
    nodes: list[Loop | Store] = [Store(arch.levels[0].name, name) for name in names]
    left = e.sizes()
    for gap in range(len(p.nodes) + 1):
        new = left | {rank: tiles[gap] for rank, tiles in chain.items()}
        above = e.tensors()[p.nodes[gap - 1].tensor] if gap else None
        nodes += [Loop(rank, new[rank]) for rank in _cut_ranks_in_order(e, above, left, new)]
        left = new
        if gap < len(p.nodes):
            nodes.append(Store(arch.levels[p.nodes[gap].level].name, names[p.nodes[gap].tensor]))
    for d, name in enumerate(dims):
        new = left | {rank: tiles[len(p.nodes) + 1 + d] for rank, tiles in chain.items()}
        nodes += [Loop(rank, new[rank], name) for rank in chain if new[rank] < left[rank]]
        left = new
    ones = dict.fromkeys(left, 1)
    if p.node_in_array is None:
        return Mapping((*nodes, *(Loop(rank, 1) for rank in left if left[rank] > 1)))
    inner = e.tensors()[p.node_in_array.tensor]
    return Mapping(
        (
            *nodes,
            Store(arch.levels[p.node_in_array.level].name, inner.tensor),
            *(Loop(rank, 1) for rank in _cut_ranks_in_order(e, inner, left, ones)),
        )
    )


def _cut_ranks_in_order(
    e: Einsum, above: Projection | None, left: dict[str, int], new: dict[str, int]
) -> list[str]:
    """The ranks that have a loop in a gap, in the order that lets the node above sink furthest. left, new:
    the tile of each rank above and below the gap.
    """
    cut = [rank for rank in left if new[rank] < left[rank]]
    if above is None:
        return cut
    windows = [rank for rank in cut if rank in above.partial_ranks()]
    best = min(
        windows,
        key=lambda w: hull(
            above,
            {rank: new[rank] if rank == w or rank in above.full_ranks() else left[rank] for rank in left},
        ),
        default="",
    )
    return sorted(cut, key=lambda rank: (rank not in above.full_ranks(), rank != best))
