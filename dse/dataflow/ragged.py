"""The optimum over ragged tiles, in time and in space, of one einsum on a machine with one array (specs/dataflow.md, 4).

Per order of the storage nodes a mapping is one chain of tiles per rank. Every count, footprint and number of lanes in use is a product over groups of
ranks (ranks that share a dimension of a tensor are one group) of numbers that the group's chains fix, and a mapping gets no cheaper if one of them rises,
but for skipped reads, which are subtracted. So of a group's chains only those matter that no other one equals or beats in every number; branch and bound
takes one vector of numbers per group. Where a rank is long, chains of many elements per lane are represented by one vector of bounds, which is opened if
the best choice has it. Which gaps a rank may be cut in is what optimal.py argues (4.1); a register inside the array holds one element per lane, for it
sinks below all loops of its own ranks.

Neighbouring levels that hold no tensor in common may stand in any order: a wider space than exhaustive.py's, which nests of SMAUG are in.
Long, because the products of a program, the vectors of a group and the way back to a nest stand in one place beside the compiled half; `program` is, since
every action of the model has its line there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations, product
from math import comb, inf, prod

import numpy as np
from numpy.typing import NDArray

from dse.dataflow import ragged_kernels as kernels
from dse.dataflow.optimal_kernels import OBJECTIVES
from dse.dataflow.ragged_kernels import COUNT, FIRST, TOTAL
from dse.dataflow.space import FREE, least
from dse.dataflow.steps import LANES, NODE, Step, programs
from dse.nest import Infeasible, Loop, Mapping, Store, holdable
from dse.sim import cost
from dse.sim.cost import bits_of, op_cycles, op_pj
from dse.sim.counts import count, footprints, hull, nonzero
from dse.sim.evaluate import EinsumCost, Problem, priced
from hw.arch import Arch
from workloads.einsum import Dim, Einsum, Projection

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Window = tuple[tuple[int, ...], int, int]  # coefficient per rank of a group, offset, size
ROOM = 1 << 12  # chains of a short rank, at first
FEW = 64  # elements that lanes share out in every way
MANY = (20_000, 40_000)  # vectors of groups of one and of two ranks that are not compared with each other
BUDGET = 30_000_000  # vectors visited per order of storage nodes, some seconds
MOST = (100_000, 10_000_000)  # chains of temporal tiles of a rank, and pairs of chains of two ranks, that are made
CHOICES = 10_000  # choices of blocks of vectors that are gone through one by one
QUICK = 1_000_000  # vectors for a first mapping of a program


@dataclass(frozen=True, slots=True)
class Role:
    """What a product sees of a rank: gap >= 0: the number of its tiles at this gap; else a column of the lanes (what, mask); what -1: its extent; -2: nothing.
    """

    gap: int
    what: int = -1
    mask: int = 0


@dataclass(frozen=True, slots=True)
class Term:
    """One product. roles: per rank; windows: dimensions of several ranks or with padding, whose hulls are summed over the tiles at gap `at`."""

    sign: int
    floor: float
    parts: tuple[float, ...]
    roles: tuple[Role, ...]
    windows: tuple[Dim, ...] = ()
    at: int = -1
    whole: int = -1


@dataclass(frozen=True, slots=True)
class Node:
    """A storage node that is filled, at the gap above it; parent: the level that fills it."""

    level: int
    tensor: int
    parent: int


@dataclass(frozen=True, slots=True)
class Program:
    """One order of nodes outside the array, gaps (one above each, one above the array) with the ranks that may be cut there, the node inside or None."""

    nodes: tuple[Node, ...]
    allowed: tuple[frozenset[str], ...]
    inside: Node | None
    terms: tuple[Term, ...]
    start: tuple[float, ...]


def uncovered(e: Einsum, arch: Arch) -> str:
    """Why this search does not know an einsum or a machine, "" if it does."""
    levels, border = arch.levels, arch.fanouts[0].outside if arch.fanouts else 0
    if len(arch.fanouts) != 1 or border == 0 or arch.fanouts[0].ramp:
        return "it has not one array, that is not systolic, below a level"
    if levels[0].bypass or levels[0].capacity_bits is not None or len(holdable(e, levels[0])) < len(e.tensors()):
        return "its outermost level does not hold all tensors"
    if any(level.double_buffer and level.capacity_bits is not None for level in levels):
        return "it buffers twice"
    held = [p for level in levels[border:] for p in e.tensors() if p.tensor in holdable(e, level)]
    if len(held) > 1 or any(p.partial() or p is e.output for p in held):
        return "more than one input, or one with windows, may stand inside the array"
    if any(p.format != "dense" for p in e.tensors()) or e.output.partial():
        return "the einsum is compressed or its output has windows"
    plain = [(dim, n) for p in e.tensors() for dim in p.dims for rank, n in e.extents if rank in dim.ranks() and len(dim.terms) == 1 and dim.terms[0][1] == 1]
    if any(dim.offset or dim.size < n for dim, n in plain) or any(c < 0 or len(dim.terms) > 2 for p in e.tensors() for dim in p.dims for _, c in dim.terms):
        return "a dimension is padded without a window, runs backwards or has more than two ranks"
    if any(len(group) > 2 for group in groups_of(e)):
        return "more than two ranks share dimensions"
    return ""


def groups_of(e: Einsum) -> list[tuple[str, ...]]:
    """Ranks of more than one value (of none the first), those that share a dimension together."""
    ranks = [rank for rank, n in e.extents if n > 1] or [e.extents[0][0]]
    group = {rank: rank for rank in ranks}
    for own in [d.ranks() for p in e.tensors() for d in p.dims]:
        first = [group[rank] for rank in own if rank in group]
        group = {rank: first[0] if g in first else g for rank, g in group.items()}
    return [tuple(rank for rank in ranks if group[rank] == g) for g in dict.fromkeys(group.values())]


def orders(arch: Arch) -> Iterator[Arch]:
    """The machine with its neighbouring levels in any order that neither a tensor nor a cost notices: those that hold none in common and wait alike."""
    border = arch.fanouts[0].outside if arch.fanouts else len(arch.levels)
    runs: list[list[int]] = []
    for v in range(1, border):
        own = arch.levels[v]
        if runs and all(own.transfer == other.transfer and not set(own.holds) & set(other.holds) for other in (arch.levels[w] for w in runs[-1])):
            runs[-1].append(v)
        else:
            runs.append([v])
    for choice in product(*(permutations(run) for run in runs)):
        inner = [v for run in choice for v in run]
        yield replace(arch, levels=tuple(arch.levels[v] for v in (0, *inner, *range(border, len(arch.levels)))))


def program(e: Einsum, arch: Arch, steps: Sequence[Step]) -> Program:
    """What a placement's steps cost, as products."""
    at = next(i for i, s in enumerate(steps) if s.kind == LANES)
    filled = [s for s in steps[:at] if s.kind == NODE and s.parent >= 0]
    nodes = tuple(Node(s.level, s.tensor, s.parent) for s in filled)
    allowed = (*(s.allowed for s in filled), steps[at - 1].allowed)
    inside = next((Node(s.level, s.tensor, s.parent) for s in steps[at:] if s.kind == NODE), None)
    terms: dict[tuple[object, ...], list[float]] = {}
    wholes: dict[tuple[object, ...], tuple[object, ...]] = {}  # of skipped reads: all reads of the link
    latest: list[tuple[object, ...]] = [()]
    parts, ports = 2, []
    for level in arch.levels:
        ports.append((parts, parts + (level.ports == "separate")))
        parts = ports[-1][1] + 1
    bits, tensors = bits_of(e, arch), e.tensors()
    dims = [(multicast, reduce) for f in arch.fanouts for multicast, reduce in zip(f.multicast, f.reduce, strict=True)]
    size = [n for f in arch.fanouts for _, n in f.dims]
    full_mask = (1 << len(dims)) - 1
    ops = e.points() * nonzero(e)
    start = [0.0] * parts
    start[0], start[1] = ops * op_pj(e, arch), op_cycles(ops, 0.0, e, arch)

    def add(sign: int, scale: float, uses: Sequence[tuple[int, int, str, bool, bool]], roles: tuple[Role, ...], windows: tuple[Dim, ...] = (), gap: int = -1,
            floor: float = 0.0) -> None:
        key = (sign, floor, roles, windows, gap)
        own = terms.setdefault(key, [0.0] * parts)
        wholes.setdefault(key, key if sign > 0 else latest[0])
        latest[0] = key
        for x, v, action, energy, cycles in uses:
            level, per = arch.levels[v], scale * bits[tensors[x].tensor] / arch.levels[v].width_bits
            own[0] += energy * per * (level.read_pj if action == "read" else level.write_pj)
            own[ports[v][action == "write"]] += cycles * per / level.bandwidth

    parent = dict.fromkeys(range(len(tensors)), 0)
    for gap, node in enumerate(nodes):
        p, out = tensors[node.tensor], tensors[node.tensor] is e.output
        windows = tuple(d for d in p.dims if not (len(d.terms) == 1 and d.terms[0][1] == 1) and any(e.sizes()[rank] > 1 for rank in d.ranks()))
        stored = float(all(0 <= d.offset < d.size for d in p.dims if d not in windows))  # a dimension of ranks of one value may be padding
        roles = tuple(Role(-1) if rank in p.full() else Role(-1, -2) if rank in p.ranks() else Role(gap) for rank, _ in e.extents)
        uses = [(node.tensor, node.parent, "read", True, True), (node.tensor, node.level, "write", True, True)]
        more = [(node.tensor, node.parent, "write", True, True), (node.tensor, node.level, "read", True, True)] if out else []
        add(1, stored, [*uses, *more], roles, windows, gap)
        if out and arch.levels[node.parent].skip_first_read:
            add(-1, 1.0, uses, tuple(Role(-1) if rank in p.ranks() else Role(-1, -2) for rank, _ in e.extents), floor=inf)
        parent[node.tensor] = node.level
    for x, p in enumerate(tensors):
        mask = sum(1 << d for d, shares in enumerate(dims) if shares[p is e.output])
        actions = ("read", "write") if p is e.output else ("read",)
        within = inside is not None and inside.tensor == x
        if within and inside is not None:
            one = tuple(Role(-1) if rank in p.ranks() else Role(-1, COUNT, mask) for rank, _ in e.extents)
            every = tuple(Role(-1) if rank in p.ranks() else Role(-1, COUNT, 0) for rank, _ in e.extents)
            busy = tuple(Role(-1, TOTAL if rank in p.ranks() else COUNT, full_mask) for rank, _ in e.extents)
            add(1, 1.0, [(x, parent[x], "read", True, True)], one)
            add(1, 1.0, [(x, inside.level, "write", True, False)], every)
            add(1, 1.0, [(x, inside.level, "write", False, True)], busy)
            own = arch.levels[inside.level]
            start[0] += ops * bits[p.tensor] / own.width_bits * own.read_pj
            add(1, nonzero(e), [(x, inside.level, "read", False, True)], tuple(Role(-1, TOTAL, full_mask) for _ in e.extents))
            continue
        roles = tuple(Role(-1) if rank in p.ranks() else Role(-1, TOTAL, mask) for rank, _ in e.extents)
        spread = prod(n for d, n in enumerate(size) if (mask >> d) & 1) if any(rank not in p.ranks() for rank, n in e.extents if n > 1) else 1
        add(1, nonzero(e), [(x, parent[x], action, True, True) for action in actions], roles, floor=e.points() / spread)
        if p is e.output and arch.levels[parent[x]].skip_first_read:
            roles = tuple(Role(-1) if rank in p.ranks() else Role(-1, FIRST, mask) for rank, _ in e.extents)
            own_lanes = prod(n for d, n in enumerate(size) if not (mask >> d) & 1)
            add(-1, nonzero(e), [(x, parent[x], "read", True, True)], roles, floor=float(own_lanes * prod(n for rank, n in e.extents if rank in p.ranks())))
    key = (1, e.points() / prod(size), tuple(Role(-1, TOTAL, full_mask) for _ in e.extents), (), -1)
    terms.setdefault(key, [0.0] * parts)[1] += op_cycles(0.0, nonzero(e), e, arch)
    numbers = {k: i for i, k in enumerate(terms)}
    found = [Term(k[0], k[1], tuple(own), k[2], k[3], k[4], numbers[wholes.get(k, k)]) for k, own in terms.items()]  # type: ignore[arg-type]
    return Program(nodes, allowed, inside, tuple(found), tuple(start))


@dataclass(frozen=True, slots=True)
class Group:
    """What the vectors of a group of ranks depend on. terms: per product the ranks' roles, its windows within the group and the gap; held: per bounded node
    its gap and its dimensions within the group as (coefficients, whether a window)."""

    extents: tuple[int, ...]
    allowed: tuple[tuple[bool, ...], ...]
    lanes: tuple[int, ...]
    terms: tuple[tuple[int, tuple[Role, ...], tuple[Window, ...], int], ...]
    held: tuple[tuple[int, tuple[tuple[tuple[int, ...], bool], ...]], ...]


@dataclass(frozen=True, slots=True)
class Vectors:
    """Rows of a group: tiles [N, R, E + D]; products [N, T]; held [N, B, 2]; lanes [N, D]."""

    tiles: Ints
    products: Floats
    held: Floats
    lanes: Floats


def group(p: Program, e: Einsum, arch: Arch, ranks: tuple[str, ...]) -> Group:
    sizes, names = e.sizes(), [rank for rank, _ in e.extents]

    def coefs(dim: Dim) -> tuple[int, ...]:
        return tuple(dict(dim.terms).get(rank, 0) for rank in ranks)

    terms = tuple((t.sign, tuple(t.roles[names.index(rank)] for rank in ranks),
                   tuple((coefs(d), d.offset, d.size) for d in t.windows if any(coefs(d))), t.at if any(any(coefs(d)) for d in t.windows) else -1)
                  for t in p.terms)
    held = tuple((gap, tuple((coefs(d), not (len(d.terms) == 1 and d.terms[0][1] == 1)) for d in e.tensors()[node.tensor].dims if any(coefs(d))))
                 for gap, node in bounded(p, arch))
    return Group(tuple(sizes[rank] for rank in ranks), tuple(tuple(rank in own for own in p.allowed) for rank in ranks),
                 tuple(n for f in arch.fanouts for _, n in f.dims), terms, held)


def bounded(p: Program, arch: Arch) -> list[tuple[int, Node]]:
    return [(gap, node) for gap, node in enumerate(p.nodes) if arch.levels[node.level].capacity_bits is not None]


@dataclass(frozen=True, slots=True)
class Scope:
    """Which chains are wanted: all, or of tiles ceil(extent / n) only; those that may lead below `best` if the other groups give `rest` per product."""

    prices: kernels.Prices
    best: Floats
    rest: Floats
    coarse: bool


def vectors(g: Group, scope: Scope) -> Vectors | None:
    """Vectors of a group that no other one equals or beats in every number, and that may lead below the best; None if there are too many to make."""
    if not scope.coarse and len(g.extents) > 1 and max(comb(n + sum(may) - 1, sum(may)) for n, may in zip(g.extents, g.allowed, strict=True)) > MOST[0]:
        return None
    ranks = range(len(g.extents))
    reach = max([own[3] for own in g.terms if own[2]] + [gap + 1 for gap, dims in g.held if any(window for _, window in dims)], default=-1)
    keys = min(reach + 1, len(g.allowed[0]))
    lows = np.array([[_low(role, n) for (_, roles, _, _) in g.terms for role in [roles[r]]] for r, n in enumerate(g.extents)])
    touched = np.array([prod(_touched(w, g.extents) for w in own[2]) for own in g.terms])
    singles = [_chains(g, r, keys, replace(scope, rest=scope.rest * touched * np.prod(lows[[i for i in ranks if i != r]], axis=0))) for r in ranks]
    if any(len(rows) == 0 for rows, _ in singles):
        return Vectors(np.zeros((0, len(g.extents), 1), np.int64), np.zeros((0, len(g.terms))), np.zeros((0, len(g.held), 2)), np.zeros((0, len(g.lanes))))
    if len(g.extents) == 2:
        singles[0] = _widely(g, singles, replace(scope, rest=scope.rest * lows[1]))
    shape = [len(rows) for rows, _ in singles]
    if prod(shape) > MOST[1]:
        return None
    found = _vectors(g, singles, [index.ravel() for index in np.indices(shape)])
    found = _taken(found, np.flatnonzero(kernels.hopeful(found.products, scope.rest, scope.prices, scope.best)))
    if not 0 < len(found.products) <= MANY[len(ranks) - 1]:
        return found
    signed = found.products * [own[0] for own in g.terms]
    return _taken(found, _front(np.concatenate([signed, found.held.reshape(len(found.held), -1), found.lanes], axis=1), _real(found.tiles)))


def _taken(v: Vectors, rows: Ints) -> Vectors:
    return Vectors(v.tiles[rows], v.products[rows], v.held[rows], v.lanes[rows])


def _real(tiles: Ints) -> Bools:
    """Rows that are chains, not bounds for many."""
    found: Bools = np.all(tiles.reshape(len(tiles), -1, tiles.shape[-1])[:, :, -1] > 0, axis=1)
    return found


def _low(role: Role, extent: int) -> float:
    """The least that a rank gives to a product (the most, of skipped reads)."""
    return float(extent) if role.gap < 0 and role.what == -1 else inf if role.what == FIRST else 1.0


def _lows(g: Group) -> Floats:
    """The least that a group gives to each product (the most, of skipped reads)."""
    return np.array([prod(_touched(w, g.extents) for w in own[2]) * prod(_low(role, n) for role, n in zip(own[1], g.extents, strict=True)) for own in g.terms])


def _front(values: Floats, real: Bools) -> Ints:
    """Rows that no other equals or beats in every column."""
    varied = np.ascontiguousarray(values[:, np.ptp(values, axis=0) > 0]) if len(values) > 1 else values[:, :0]
    scale = np.log2(1 + varied - varied.min(axis=0)).sum(axis=1) if varied.size else np.zeros(len(values))
    return np.flatnonzero(kernels.front(varied, np.argsort(scale + 1e-9 * ~real, kind="stable"), real))


Columns = dict[tuple[str, int, int], Floats]  # (count, gap, 0), (tile, gap, 0), (lanes, what, mask), (trips, dimension, 0)


def _chains(g: Group, r: int, keys: int, scope: Scope, fixed: Sequence[int] = ()) -> tuple[Ints, Columns]:
    counts = sorted({own[1][r].gap for own in g.terms if own[1][r].gap >= 0})
    lane = sorted({(own[1][r].what, own[1][r].mask) for own in g.terms if own[1][r].what >= 0})
    tiles = sorted({gap + more for gap, dims in g.held for coefs, window in dims if coefs[r] for more in range(1 + window)})
    last = max((j for j, may in enumerate(g.allowed[r]) if may), default=-1)
    large = any(j >= last for j in counts) or any(what == COUNT for what, _ in lane) or any(own[3] >= last for own in g.terms if own[2]) or len(g.lanes) > 2
    names = [*(("count", j, 0) for j in counts), *(("tile", j, 0) for j in tiles), *(("lanes", what, mask) for what, mask in lane),
             *(("trips", d, 0) for d in range(len(g.lanes)))]
    column = [names.index(("count", role.gap, 0)) if role.gap >= 0 else names.index(("lanes", role.what, role.mask)) if role.what >= 0 else -1
              for role in (own[1][r] for own in g.terms)]
    n = g.extents[r]
    ends = np.array([n if role.gap < 0 and role.what == -1 else 1 for role in (own[1][r] for own in g.terms)])
    sizes = np.array(sorted({-(-n // m) for m in range(1, n + 1)}) if scope.coarse else range(1, n + 1), np.int64)
    hope, room, enough = kernels.Hope(scope.prices, scope.best, np.array(column, np.int64), scope.rest * ends), ROOM * (1 if n < 200 else 1 << 5), False
    while not enough:
        room *= 4
        rows, values, enough = kernels.chains(
            n, np.array(g.allowed[r]), sizes, np.array(fixed or [0] * len(g.allowed[r]), np.int64), np.array(g.lanes, np.int64), np.array(counts, np.int64),
            np.array(tiles, np.int64), np.array(lane, np.int64).reshape(-1, 2), keys, 0 if large or fixed or len(g.extents) > 1 else FEW, hope, room)
    columns = {name: values[:, i] * (-1 if name[:2] == ("lanes", FIRST) else 1) for i, name in enumerate(names)}
    return rows, columns


def _hulls(g: Group, window: Window, gap: int, rows: Sequence[Ints]) -> tuple[Floats, list[Ints]]:
    """Table of the summed hulls over the different chains of each rank up to a gap, and which of them each row has."""
    (coefs, offset, size), (unique, which) = window, ([], [])
    for own in rows:
        a, b = np.unique(own[:, :gap + 1], axis=0, return_inverse=True)
        unique.append(np.ascontiguousarray(a))
        which.append(b.ravel())
    if len(rows) == 1:
        unique.append(np.ones((1, 1), np.int64))
    two = (*g.extents, 1)[1]
    return kernels.hulls(g.extents[0], unique[0], coefs[0], two, unique[1], (*coefs, 0)[1], offset, size), which


def _widely(g: Group, singles: Sequence[tuple[Ints, Columns]], scope: Scope) -> tuple[Ints, Columns]:
    """Chains of the first rank that no other beats whatever the chain of the second one is."""
    (rows, columns), other = singles[0], singles[1][0]
    values = [own * (-1 if name[:2] == ("lanes", FIRST) else 1) for name, own in columns.items()]
    for window, gap in sorted({(window, own[3]) for own in g.terms for window in own[2]}):
        table, (which, _) = _hulls(g, window, gap, [rows, other])
        values += list(table[which].T)
    least = np.ones((len(rows), len(g.terms)))
    for k, (_, roles, windows, gap) in enumerate(g.terms):
        role = roles[0]
        name = ("count", role.gap, 0) if role.gap >= 0 else ("lanes", role.what, role.mask)
        least[:, k] = columns[name] if role.gap >= 0 or role.what >= 0 else g.extents[0] if role.what == -1 else 1.0
        for window in windows:
            table, (which, _) = _hulls(g, window, gap, [rows, other])
            least[:, k] *= table.min(axis=1)[which]
    keep = np.flatnonzero(kernels.hopeful(least, scope.rest, scope.prices, scope.best))
    if 0 < len(keep) <= 10 * MANY[1]:
        keep = keep[_front(np.stack(values, axis=1)[keep], _real(rows[keep]))]
    return rows[keep], {name: own[keep] for name, own in columns.items()}


def _vectors(g: Group, singles: Sequence[tuple[Ints, Columns]], pick: Sequence[Ints]) -> Vectors:
    """The vectors of chosen chains."""
    n = len(pick[0])
    products, held, lanes = np.ones((n, len(g.terms))), np.ones((n, len(g.held), 2)), np.ones((n, len(g.lanes)))
    for k, (_, roles, windows, gap) in enumerate(g.terms):
        for r, role in enumerate(roles):
            if role.gap >= 0:
                products[:, k] *= singles[r][1]["count", role.gap, 0][pick[r]]
            elif role.what >= 0:
                products[:, k] *= singles[r][1]["lanes", role.what, role.mask][pick[r]]
            elif role.what == -1:
                products[:, k] *= g.extents[r]
        for window in windows:
            table, which = _hulls(g, window, gap, [rows for rows, _ in singles])
            products[:, k] *= table[which[0][pick[0]], which[1][pick[1]] if len(pick) > 1 else 0]
    for b, (gap, dims) in enumerate(g.held):
        def length(moved: int, gap: int = gap, dims: tuple[tuple[tuple[int, ...], bool], ...] = dims) -> Floats:
            total = np.ones(n)
            for coefs, window in dims:
                own = np.ones(n)
                for r, c in enumerate(coefs):
                    if c:
                        own += c * (singles[r][1]["tile", gap + (window and r == moved), 0][pick[r]] - 1)
                total *= own
            return total
        held[:, b, 0] = length(-1)
        held[:, b, 1] = np.min([length(r) for r in (-1, *range(len(pick)))], axis=0)
    for d in range(len(g.lanes)):
        for r in range(len(pick)):
            lanes[:, d] *= singles[r][1]["trips", d, 0][pick[r]]
    keep = np.flatnonzero((lanes <= np.array(g.lanes)).all(axis=1))
    tiles = np.stack([singles[r][0][pick[r]] for r in range(len(pick))], axis=1)
    return Vectors(tiles[keep], products[keep], held[keep], lanes[keep])


def prices(p: Program, problem: Problem, ties: bool) -> kernels.Prices:
    arch, e = problem.arch, problem.einsum
    parts, ports = 2, []
    for level in arch.levels:
        ports.append((parts, parts + (level.ports == "separate"), level.transfer == "same"))
        parts = ports[-1][1] + 1
    bits, nodes = bits_of(e, arch), [node for _, node in bounded(p, arch)]
    ops = e.points() * nonzero(e)
    least_ops = -(-e.points() // arch.instances(len(arch.levels))) * nonzero(e)
    return kernels.Prices(
        np.array([t.parts for t in p.terms]), np.array([float(t.sign) for t in p.terms]), np.array([t.floor for t in p.terms]),
        np.array([t.whole for t in p.terms], np.int64), np.array(p.start), np.array(ports, np.int64),
        np.array([arch.leak_mw() / arch.clock_ghz, op_cycles(ops, least_ops, e, arch)]), OBJECTIVES[problem.objective], ties,
        np.array([float(bits[e.tensors()[node.tensor].tensor]) for node in nodes]), np.array([node.level for node in nodes], np.int64),
        np.array([inf if level.capacity_bits is None else float(level.capacity_bits) for level in arch.levels]),
        np.array([float(n) for f in arch.fanouts for _, n in f.dims]))


def sets(found: Sequence[Vectors]) -> kernels.Sets:
    return kernels.Sets(np.cumsum([0, *(len(v.products) for v in found)]), np.concatenate([v.products for v in found]),
                        np.concatenate([v.held for v in found]), np.concatenate([v.lanes for v in found]))


def ideal(p: Program, problem: Problem, t: kernels.Prices) -> Floats:
    """At least what a program costs: [objective, energy, latency]."""
    value = np.ones(len(p.terms))
    e = problem.einsum
    for k, term in enumerate(p.terms):
        for (_, n), role in zip(e.extents, term.roles, strict=True):
            if (role.what == -1 and role.gap < 0) or role.what == FIRST:
                value[k] *= n
        for d in term.windows:
            value[k] *= _touched((tuple(c for _, c in d.terms), d.offset, d.size), [e.sizes()[rank] for rank, _ in d.terms])
        value[k] = max(value[k], term.floor) if term.sign > 0 else min(value[k], term.floor, value[term.whole])
    out = np.zeros(3)
    kernels.figure(value, t, np.zeros(len(p.start)), out)
    return out


def _touched(window: Window, extents: Sequence[int]) -> int:
    """Different stored indices of a dimension."""
    coefs, offset, size = window
    index = np.array([offset])
    for c, n in zip(coefs, extents, strict=True):
        index = np.unique(np.add.outer(index, c * np.arange(n)))
    return int(((index >= 0) & (index < size)).sum())


def solved(problem: Problem, budget: int = BUDGET, ties: bool = True) -> list[EinsumCost] | Infeasible:
    """The optimum over ragged tiles, if `ties` by energy and latency among equals, else any of them.

    budget: vectors visited at most per order of nodes. Without a certificate if it ends, or if a window has too many chains of tiles to make (MOST): then
    it is the best of few tile sizes at least. Neighbouring levels that hold no tensor in common stand in any order.
    Raises ValueError where `uncovered` says why.
    """
    e = problem.einsum
    if why := uncovered(e, problem.arch):
        raise ValueError(f"{e.name} on {problem.arch.name}: {why}; take another search of ragged tiles")
    todo = _programs(problem, ties)
    best, answer, visited, proven = np.full(3, inf), None, 0, True
    for coarse in (True, False):  # first a good mapping of few tile sizes, from most nodes to fewest; then all, from fewest chains to most
        for low, p, own in sorted(todo, key=lambda one: -len(one[1].nodes) - (one[1].inside is not None) if coarse else _chains_of(one[1], e)):
            if kernels.below(low, best):
                found, n = _best(p, own, best, coarse, ties, QUICK if coarse else budget)
                visited, proven = visited + min(n, budget), proven and (coarse or n <= budget)
                answer = (p, own.arch, found) if found else answer
    if answer is None:
        smallest = least(e, problem.arch)
        return cost.overflow(footprints(smallest, e), e, problem.arch) or Infeasible("constraints", 1, 0, e.name, "mappings")
    mapping = nest(e, *answer)
    one = priced(problem, mapping, count(mapping, e, problem.arch), footprints(mapping, e))
    return [replace(one, gap=0.0 if proven else one.gap, certificate="optimal(ragged)" if proven else "", visited=visited)]


def _programs(problem: Problem, ties: bool) -> list[tuple[Floats, Program, Problem]]:
    """All orders of nodes, each with at least what it costs and the problem on the machine in its order of levels."""
    found: dict[tuple[tuple[str, int], ...], tuple[Floats, Program, Problem]] = {}
    for arch in orders(problem.arch):
        own = replace(problem, arch=arch)
        for _, steps in programs(problem.einsum, arch, FREE):
            p = program(problem.einsum, arch, steps)
            name = tuple((arch.levels[n.level].name, n.tensor) for n in (*p.nodes, *([p.inside] if p.inside else [])))
            if name not in found:
                found[name] = ideal(p, own, prices(p, own, ties)), p, own
    return list(found.values())


def _chains_of(p: Program, e: Einsum) -> int:
    """How many chains of tiles there are at most, to see to the programs with few of them first."""
    return sum(n ** sum(rank in own for own in p.allowed) for rank, n in e.extents)


def _best(p: Program, problem: Problem, best: Floats, coarse: bool, ties: bool, budget: int) -> tuple[list[Ints] | None, int]:
    """The best of a program below `best`, which it lowers, and nodes visited."""
    t = prices(p, problem, ties)
    specs = [group(p, problem.einsum, problem.arch, ranks) for ranks in groups_of(problem.einsum)]
    low = [_lows(g) for g in specs]
    found: list[Vectors | None] = [None] * len(specs)
    for g in sorted(range(len(specs)), key=lambda g: (len(specs[g].extents), specs[g].extents)):
        rest = np.prod([np.ones(len(p.terms)), *(own for h, own in enumerate(low) if h != g)], axis=0)
        twin = next((v for h, v in enumerate(found) if v is not None and specs[h] == specs[g]), None)
        own = vectors(specs[g], Scope(t, best, rest, coarse)) if twin is None else _taken(
            twin, np.flatnonzero(kernels.hopeful(twin.products, rest, t, best)))
        if own is None or not len(own.products):
            return None, budget + 1 if own is None else 0
        found[g], low[g] = own, np.where(t.sign > 0, own.products.min(axis=0), own.products.max(axis=0))
    every = [v for v in found if v is not None]
    if problem.objective == "latency":  # what lanes do outweighs what stands outside the array
        return _of_rows(specs, every, t, best, low, budget)
    blocks = [_blocks(g, v, t) for g, v in zip(specs, every, strict=True)]
    return _of_blocks(specs, every, blocks, t, best, low, budget)


def _of_blocks(specs: Sequence[Group], every: Sequence[Vectors], blocks: Sequence[tuple[Vectors, list[Ints]]], t: kernels.Prices, best: Floats,
               low: Sequence[Floats], budget: int) -> tuple[list[Ints] | None, int]:
    """The best choice of rows: blocks of rows first, each with the least of its rows; then the rows of those choices of blocks that may be best, in order."""
    answer, visited, goal = None, 0, best.copy()
    room, none = np.zeros((0, len(specs)), np.int64), np.zeros((0, 3))
    s, chosen = sets([block for block, _ in blocks]), np.full(len(specs), -1, np.int64)
    n, _ = kernels.search(s, t, goal, chosen, room, none, budget)
    visited += n
    if chosen[0] < 0:
        return None, visited
    todo, bounds = chosen[None, :], goal[None, :]
    for turn in range(2):
        if turn:
            todo, bounds = np.zeros((CHOICES, len(specs)), np.int64), np.zeros((CHOICES, 3))
            n, number = kernels.search(s, t, best, chosen, todo, bounds, budget)
            visited += n
            if n > budget:  # too many to go through: rows at once
                better, n = _of_rows(specs, every, t, best, low, budget)
                return better or answer, n
            order = np.argsort(bounds[:number, 0], kind="stable")
            todo, bounds = todo[:number][order], bounds[:number][order]
        for choice, bound in zip(todo, bounds, strict=True):
            if visited <= budget and kernels.below(bound, best):
                rows = [_taken(v, own[i - s.start[g]]) for g, (v, (_, own), i) in enumerate(zip(every, blocks, choice, strict=True))]
                better, n = _of_rows(specs, rows, t, best, low, budget)
                answer, visited = better or answer, visited + n
    return answer, visited


def _blocks(g: Group, v: Vectors, t: kernels.Prices) -> tuple[Vectors, list[Ints]]:
    """Rows that products outside the array cannot tell apart together: per block the least of its rows in every number, and which they are."""
    outside = [k for k, own in enumerate(g.terms) if all(role.what < 0 for role in own[1])]
    _, which = np.unique(v.products[:, outside], axis=0, return_inverse=True)
    rows = np.split(np.argsort(which.ravel(), kind="stable"), np.cumsum(np.bincount(which.ravel()))[:-1])
    least = [(np.where(t.sign > 0, v.products[own].min(axis=0), v.products[own].max(axis=0)), v.held[own].min(axis=0), v.lanes[own].min(axis=0))
             for own in rows]
    products, held, lanes = (np.stack(own) for own in zip(*least, strict=True))
    return Vectors(np.zeros((len(rows), 1, 1), np.int64), products, held, lanes), rows


def _of_rows(specs: Sequence[Group], rows: Sequence[Vectors], t: kernels.Prices, best: Floats, low: Sequence[Floats],
             budget: int) -> tuple[list[Ints] | None, int]:
    """The best choice of rows below `best`, which it lowers. A row that stands for many chains is opened if the best choice has it."""
    found, visited = list(rows), 0
    room, none = np.zeros((0, len(specs)), np.int64), np.zeros((0, 3))
    while True:
        s, chosen, goal = sets(found), np.full(len(found), -1, np.int64), best.copy()
        n, _ = kernels.search(s, t, goal, chosen, room, none, budget)
        visited += n
        if chosen[0] < 0:
            return None, visited
        picked = [v.tiles[i - s.start[g]] for g, (v, i) in enumerate(zip(found, chosen, strict=True))]
        bounds = [g for g, row in enumerate(picked) if row[0, -1] == 0]
        if not bounds:
            best[:] = goal
            return picked, visited
        for g in bounds:
            rest = np.prod([np.ones(len(t.sign)), *(own for h, own in enumerate(low) if h != g)], axis=0)
            found[g] = _opened(specs[g], found[g], picked[g][0], Scope(t, best, rest, False))


def _opened(g: Group, v: Vectors, bound: Ints, scope: Scope) -> Vectors:
    """Vectors with those chains in place of a row that stood for all that are cut alike outside."""
    fixed = [int(n) for n in bound[: len(g.allowed[0])]]
    single = _chains(g, 0, 0, scope, fixed)
    more = _vectors(g, [single], [np.arange(len(single[0]))])
    alike = _real(v.tiles) | (v.tiles[:, 0, : len(fixed)] != fixed).any(axis=1)
    return Vectors(*(np.concatenate([getattr(v, name)[alike], getattr(more, name)]) for name in ("tiles", "products", "held", "lanes")))


def nest(e: Einsum, p: Program, arch: Arch, chosen: Sequence[Ints]) -> Mapping:
    """The mapping of one chain per rank."""
    names, dims = [x.tensor for x in e.tensors()], [name for f in arch.fanouts for name, _ in f.dims]
    chain = dict(zip([rank for ranks in groups_of(e) for rank in ranks], [row for rows in chosen for row in rows.tolist()], strict=True))
    nodes: list[Loop | Store] = [Store(arch.levels[0].name, name) for name in names]
    left = e.sizes()
    for gap in range(len(p.nodes) + 1):
        new = left | {rank: own[gap] for rank, own in chain.items()}
        above = e.tensors()[p.nodes[gap - 1].tensor] if gap else None
        nodes += [Loop(rank, new[rank]) for rank in _gap(e, above, left, new)]
        left = new
        if gap < len(p.nodes):
            nodes.append(Store(arch.levels[p.nodes[gap].level].name, names[p.nodes[gap].tensor]))
    for d, name in enumerate(dims):
        new = left | {rank: own[len(p.nodes) + 1 + d] for rank, own in chain.items()}
        nodes += [Loop(rank, new[rank], name) for rank in chain if new[rank] < left[rank]]
        left = new
    ones = dict.fromkeys(left, 1)
    if p.inside is None:
        return Mapping((*nodes, *(Loop(rank, 1) for rank in left if left[rank] > 1)))
    inner = e.tensors()[p.inside.tensor]
    return Mapping((*nodes, Store(arch.levels[p.inside.level].name, inner.tensor), *(Loop(rank, 1) for rank in _gap(e, inner, left, ones))))


def _gap(e: Einsum, above: Projection | None, left: dict[str, int], new: dict[str, int]) -> list[str]:
    """Ranks that are cut, in the order that lets the node above sink furthest."""
    cut = [rank for rank in left if new[rank] < left[rank]]
    if above is None:
        return cut
    windows = [rank for rank in cut if rank in above.partial()]
    best = min(windows, key=lambda w: hull(above, {rank: new[rank] if rank == w or rank in above.full() else left[rank] for rank in left}), default="")
    return sorted(cut, key=lambda rank: (rank not in above.full(), rank != best))
