"""The best pipelines of a small workload, of all: every part, place and nest of a node, cut by bound; what
`dse/solve/schedules/pipeline.py` is held against.

    for stages, one after the other
      for loops over nodes, and places that overlap none before      at most two loops, all tiles; every
          corner of the grid
        for nests of a node, least energy without hops first         all that
            dse/mapper/baselines/exhaustive.py lists
          (cut: what is placed, and the least of what is not, cost no less than the best known)

A stage's energy depends on its own nest and lanes, and on the lanes that hold what it reads: so it is asked
for once for all that differ elsewhere. What is left at the end the evaluator prices. Workloads are small
where einsums have few nests on few nodes (`small`). The space is wider than that of the search: tiles need
not be the smallest of as many lanes, and every number of granules that divides a loop is tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from math import inf, nan

import numpy as np
from numpy.typing import NDArray

from dse.mapper.baselines.exhaustive import (
    chains,
    mapspace_size,
    nests,
    placements,
    rank_loops,
    without_unit_loops,
)
from dse.mapping.nest import Infeasible, Loop, Mapping, Store
from dse.mapping.schedule import Branch, Schedule, Segment
from dse.sim.counts.actions import bits_of
from dse.sim.counts.counts import nest_sums
from dse.sim.counts.vectorized import mapping_at
from dse.sim.einsum import boundary
from dse.sim.einsum.evaluate import EinsumCost, Problem, Solution, einsum_cost
from dse.sim.schedule import placed
from dse.sim.schedule.faults import nest_faults
from dse.sim.schedule.graph import filled_cycles
from dse.sim.schedule.placed import Placed
from dse.solve.schedules.segments import (
    ALL_TILE_COUNTS,
    Objective,
    Option,
    PipelineSearch,
    Range,
    best_chain,
    fits,
    members_of,
    memo_isomorphic,
    pinned,
    price_by_itself,
    price_of,
    ranges_of,
    solve_alone,
    to_segment,
    value,
)
from dse.solve.schedules.stages import (
    Nodes,
    Shape,
    Stage,
    StageContext,
    may_share,
    own_nest,
    part_of,
    split_ranks,
    with_homes,
)
from hw.arch import Arch
from workloads.einsum import Einsum
from workloads.graph import Workload

Floats = NDArray[np.float64]
NESTS = 400  # of a node, at most
WAYS = 2000  # nests of all parts
NODES = 16
POINTS = 4096  # operations of an einsum
SAME = 1e-12


@dataclass(frozen=True, slots=True)
class Cut:
    """How nodes share an einsum out."""

    tile: tuple[tuple[str, int], ...]
    shape: Shape


At = tuple[Cut, int, int]  # a cut, first row and column of its rectangle
NOWHERE: At = (Cut((), Shape(1, 1, ())), 0, 0)


@dataclass(frozen=True, slots=True)
class Priced:
    """A nest of a node where it stands. energy: without leakage; cycles: busy in its own lanes at least;
    shared: of what all stages share.
    """

    energy: float
    cycles: float
    shared: float
    nest: Mapping


@dataclass(slots=True)
class Listed:
    """Nests of a stage at a place, by their energy without hops; priced: as far as they were asked for."""

    base: Sequence[tuple[float, Mapping]]
    at: Placed
    done: int = 0
    priced: list[Priced] = field(default_factory=list)

    def below(self, limit: float) -> list[Priced]:
        """Those of less energy than a limit, the least first."""
        begun = self.done
        while self.done < len(self.base) and self.base[self.done][0] < limit:
            found = _priced(self.at, self.base[self.done][1])
            self.priced += [found] if found else []
            self.done += 1
        if self.done > begun:
            self.priced.sort(key=lambda one: one.energy)
        return [one for one in self.priced if one.energy < limit]


def enumerated(
    arch: Arch, workload: Workload, objective: Objective, weights: str = "streamed"
) -> Solution | Infeasible:
    """The best of all schedules whose segments run side by side or alone; of energy or cycles, which add
    up."""
    g = PipelineSearch(arch, workload, objective, weights, Nodes(arch))
    known = Known(g)
    each = solve_alone(g, lambda _, e: alone(known, e))
    made = {
        r: one
        for r in ranges_of(g, pipeline_tiles=ALL_TILE_COUNTS)
        if fits(g, r) and (one := memo_isomorphic(g, r, partial(segment, known, r, None)))
    }
    return best_chain(g, each, made)


def small(g: PipelineSearch, ways: int = WAYS) -> bool:
    """Whether every einsum has few nests, in all parts no more than so many, and there are few nodes."""
    node = replace(g.arch, fanouts=g.arch.fanouts[1:])
    if g.arch.instances(1) > NODES or any(
        e.points() > POINTS or mapspace_size(e, node, "perfect") > NESTS for e in g.workload.einsums
    ):
        return False
    return all(
        len(cuts(e, g.arch, StageContext())) * mapspace_size(e, node, "perfect") <= ways
        for e in g.workload.einsums
    )


def cuts(e: Einsum, arch: Arch, around: StageContext) -> list[Cut]:
    """All loops over nodes, at most two, of any tiles; none over ranks that a reader slides windows over."""
    (ny, rows), (nx, columns) = arch.fanouts[0].dims
    ranks, sizes = (
        [rank for rank in split_ranks(e, may_share(arch, around)) if rank not in around.sliding],
        e.sizes(),
    )
    found = [Cut((), Shape(1, 1, ()))]
    firsts = [Loop(rank, t, dim) for dim in (ny, nx) for rank in ranks for t in range(1, sizes[rank])]
    for loops in [
        *((a,) for a in firsts),
        *(
            (a, b)
            for a in firsts
            for b in firsts
            if a.rank != b.rank or (a.over != b.over and b.tile < a.tile)
        ),
    ]:
        left, used = dict(sizes), {ny: 1, nx: 1}
        for loop in loops:
            used[loop.over] *= -(-left[loop.rank] // loop.tile)
            left[loop.rank] = loop.tile
        if used[ny] <= rows and used[nx] <= columns:
            found.append(
                Cut(
                    tuple((rank, n) for rank, n in left.items() if n < sizes[rank]),
                    Shape(used[ny], used[nx], loops),
                )
            )
    return found


def nests_of(part: Einsum, arch: Arch, homes: frozenset[str]) -> list[Mapping]:
    """All nests of a node, each once; tensors that stay there stand above all loops."""
    node, outer = replace(arch, fanouts=arch.fanouts[1:]), arch.levels[0].name
    found: dict[str, Mapping] = {}
    for placement in placements(part, node):
        for nest in nests(part, node, placement):
            own = rank_loops(part, node, nest)
            options = {rank: chains(n, own.get(rank, ()), "perfect") for rank, n in part.extents}
            for numbers in product(*(range(len(each)) for each in options.values())):
                one = with_homes(
                    without_unit_loops(
                        mapping_at(nest, options, dict(zip(options, numbers, strict=True))), part
                    ),
                    homes,
                    outer,
                )
                found.setdefault(str(one), one)
    return [
        one
        for one in found.values()
        if homes <= {node.tensor for node in one.nodes if isinstance(node, Store)}
    ]


def _priced(at: Placed, nest: Mapping) -> Priced | None:
    cost = _cost(at, nest)
    return _told(at, cost, nest) if cost else None


def _cost(at: Placed, nest: Mapping) -> EinsumCost | None:
    """None: it does not fit, or its hops are not counted."""
    try:
        cost = einsum_cost(Problem(at.arch, at.einsum, "energy", at.boundary), nest)
    except ValueError:
        return None
    return cost if isinstance(cost, EinsumCost) else None


def _told(at: Placed, c: EinsumCost, nest: Mapping) -> Priced:
    busy, inner = dict(c.price.busy_cycles), [level.name for level in at.arch.levels[1:]]
    return Priced(
        sum(part.energy_pj for part in c.price.parts if part.action != "leak"),
        max(busy[name] for name in (*inner, "MAC")),
        busy[at.arch.levels[0].name],
        nest,
    )


def even(cut: Cut, e: Einsum) -> bool:
    """Whether nodes have equal parts."""
    left = e.sizes()
    for loop in cut.shape.loops:
        if left[loop.rank] % loop.tile:
            return False
        left[loop.rank] = loop.tile
    return True


@dataclass(slots=True)
class Known:
    """What is known of stages: nests of parts, and their energy without hops."""

    g: PipelineSearch
    nests: dict[tuple[Einsum, frozenset[str]], list[Mapping]] = field(default_factory=dict)
    bases: dict[tuple[object, ...], list[tuple[float, Mapping]]] = field(default_factory=dict)

    def inner(self, part: Einsum, around: StageContext) -> list[Mapping]:
        """Nests of a node."""
        homes = frozenset((*around.pinned, *([part.output.tensor] if around.forwards else [])))
        if (part, homes) not in self.nests:
            self.nests[part, homes] = nests_of(part, self.g.arch, homes)
        return self.nests[part, homes]

    def based(
        self, key: tuple[object, ...], at: Placed, own: Sequence[Mapping], equal: bool
    ) -> list[tuple[float, Mapping]]:
        """Those that fit, the least energy first, hops left out. Where nodes have equal parts a word takes as
        many hops whatever the nest: one that another undercuts in energy, in what every port moves and in
        what links carry of every tensor is left out.
        """
        if key not in self.bases:
            calm = replace(
                at, arch=replace(at.arch, fanouts=tuple(replace(f, hop_pj=0.0) for f in at.arch.fanouts))
            )
            priced = [(cost, nest) for nest in own if (cost := _cost(calm, nest))]
            kept: list[tuple[float, Mapping, Floats]] = []
            for energy, _, nest, moved in sorted(
                ((_told(at, c, nest).energy, i, nest, moved_of(at, c)) for i, (c, nest) in enumerate(priced)),
                key=lambda row: (row[0], float(row[3].sum()), row[1]),
            ):
                undercut = equal and any((other <= moved).all() for _, _, other in kept)
                if not undercut and not list(nest_faults(replace(at, nest=nest))):
                    kept.append((energy, nest, moved))
            self.bases[key] = [(energy, nest) for energy, nest, _ in kept]
        return self.bases[key]


def moved_of(at: Placed, c: EinsumCost) -> Floats:
    """Bits through every port, in all and at the busiest instance; of what comes from outside, by tensor;
    what links carry of each: counts do not tell what a lane reads of another from what it reads of itself.
    Where hops are not counted nothing is known: such a nest undercuts none.
    """
    remote, bits = {t for t, _, _ in at.boundary.remote}, bits_of(at.einsum, at.arch)
    ports = [
        (level.name, t, action)
        for level in at.arch.levels
        for action in ("read", "write")
        for t in ("", *bits)
    ]
    found = {
        key: np.zeros(2) for key in (*ports, *(("", "", action) for action in ("compute", "merge", "fold")))
    }
    for row in c.counts:
        apart = row.level == at.arch.levels[0].name or row.tensor in remote
        key = (
            (row.level, row.tensor if apart else "", row.action)
            if row.action in ("read", "write")
            else ("", "", row.action)
        )
        found[key] += np.array([row.elems, row.busiest_elems]) * bits.get(row.tensor, 1)
    carried = dict.fromkeys(bits, 0.0)
    try:
        for way in boundary.network_traffic(
            at.boundary, c.mapping, nest_sums(c.mapping, at.einsum, at.arch), at.arch
        ):
            carried[way.tensor] += float(way.bits)
    except ValueError:
        carried = dict.fromkeys(bits, nan)
    return np.concatenate([*found.values(), np.array([*carried.values()])])


def alone(known: Known, e: Einsum) -> Option | None:
    """The best way to run an einsum by itself."""
    g, around, best = known.g, StageContext(pinned=pinned(known.g, e)), None
    outer = g.arch.levels[0].name
    stores = tuple(Store(outer, p.tensor) for p in e.tensors() if p.tensor not in around.pinned)
    for cut in cuts(e, g.arch, around):
        own = {
            Mapping((*stores, *own_nest(_stage(nest), cut.shape, e, around, outer).nodes)): nest
            for nest in known.inner(part_of(e, dict(cut.tile)), around)
        }
        if not own:
            continue
        at = _alone_at(g, e, next(iter(own)))
        for one in Listed(known.based((e.name, cut), at, list(own), even(cut, e)), at).below(
            limit(g, best, 0.0, 0.0)
        ):
            if one.energy < limit(g, best, 0.0, max(one.cycles, one.shared)):
                found = price_by_itself(g, e, _stage(own[one.nest]), cut.shape)
                best = found if found and (best is None or value(g, found) < value(g, best)) else best
    return best


def _stage(nest: Mapping) -> Stage:
    return Stage((), nest, (), 0.0, 0.0)


def _alone_at(g: PipelineSearch, e: Einsum, nest: Mapping) -> Placed:
    names = {p.tensor for p in e.tensors()}
    part, schedule = (
        Workload("", (e,), g.workload.weights & names),
        Schedule((Segment((Branch(e.name, nest),)),), weights=g.weights),
    )
    return placed.placed_segments(g.arch, part, schedule)[0][0]


def limit(g: PipelineSearch, best: Option | None, energy: float, cycles: float) -> float:
    """Energy beside this one, without leakage, from which on what takes so many cycles at least is no better
    than the best.
    """
    if best is None:
        return inf
    top = value(g, best) * (1 - SAME)
    if g.objective == "latency":
        return inf if cycles < top else -inf
    return (
        (top if g.objective == "energy" else top / max(cycles, SAME))
        - g.arch.leak_mw() / g.arch.clock_ghz * cycles
        - energy
    )


def segment(known: Known, r: Range, best: Option | None) -> Option | None:
    """The best way to run a segment, `best` if none is better."""
    members = members_of(known.g, r)
    return _Search(known, r, members, best).found() if members else best


@dataclass(slots=True)
class _Search:
    """One segment. lists: nests of a stage at a place."""

    known: Known
    r: Range
    members: Sequence[tuple[Einsum, StageContext]]
    best: Option | None
    lists: dict[tuple[object, ...], Listed] = field(default_factory=dict)

    def found(self) -> Option | None:
        ways = []
        for j, (part, around) in enumerate(self.members):
            bases = [
                (self.listed(j, [*[NOWHERE] * j, self.apart(j, cut)]).base, cut)
                for cut in cuts(part, self.known.g.arch, around)
            ]
            ways.append(sorted(((base[0][0], cut) for base, cut in bases if base), key=lambda one: one[0]))
        if all(ways):
            self.go_on([], [], ways, [sum(own[0][0] for own in ways[j:]) for j in range(len(ways) + 1)])
        return self.best

    def apart(self, j: int, cut: Cut) -> At:
        """A place for a stage that is not the one of those before it (NOWHERE): what comes from other nodes
        costs more than what is there already, so nests that ask for it more often are not told apart from
        others where it is.
        """
        (_, rows), (_, columns) = self.known.g.arch.fanouts[0].dims
        return (cut, rows - cut.shape.rows, columns - cut.shape.columns) if j else (cut, 0, 0)

    def go_on(
        self,
        at: list[At],
        nests: list[Priced],
        ways: Sequence[Sequence[tuple[float, Cut]]],
        rest: Sequence[float],
    ) -> None:
        """All that can follow stages that are placed. rest: energy of those from one on, at least."""
        j = len(at)
        if j == len(self.members):
            self.price(at, nests)
            return
        (_, rows), (_, columns) = self.known.g.arch.fanouts[0].dims
        energy = sum(one.energy for one in nests) + rest[j + 1]
        for low, cut in ways[j]:
            if low >= limit(self.known.g, self.best, energy, self.cycles(nests)):
                break
            shape = cut.shape
            for y, x in product(range(rows - shape.rows + 1), range(columns - shape.columns + 1)):
                if any(
                    y < b + one.shape.rows
                    and b < y + shape.rows
                    and x < c + one.shape.columns
                    and c < x + shape.columns
                    for one, b, c in at
                ):
                    continue
                there = [*at, (cut, y, x)]
                for own in self.listed(j, there).below(
                    limit(self.known.g, self.best, energy, self.cycles(nests))
                ):
                    if own.energy < limit(self.known.g, self.best, energy, self.cycles([*nests, own])):
                        self.go_on(there, [*nests, own], ways, rest)

    def cycles(self, nests: Sequence[Priced]) -> float:
        """That stages take, and leak for, at least: from empty to empty."""
        own, shared = [one.cycles for one in nests] or [0.0], sum(one.shared for one in nests)
        whole, (part, _) = self.known.g.workload.einsums[self.r.first], self.members[0]
        granules = whole.points() // part.points()
        return max(filled_cycles([one / granules for one in own], granules), shared)

    def price(self, at: Sequence[At], nests: Sequence[Priced]) -> None:
        g, text = self.known.g, self.text(at)
        branches = tuple(
            replace(branch, mapping=one.nest) for branch, one in zip(text.branches, nests, strict=True)
        )
        found = price_of(
            g, g.workload.einsums[self.r.first : self.r.last + 1], replace(text, branches=branches)
        )
        if (
            found
            and found.initiation_interval <= g.interval_limit
            and (self.best is None or value(g, found) < value(g, self.best) * (1 - SAME))
        ):
            self.best = found

    def text(self, at: Sequence[At]) -> Segment:
        """Stages in their lanes, with any nests."""
        own = self.known.g.workload.einsums[self.r.first : self.r.last + 1]
        stages = [
            _stage(self.known.inner(part_of(e, dict(cut.tile)), around)[0])
            for (cut, _, _), (e, around) in zip(at, self.members, strict=True)
        ]
        return to_segment(
            self.known.g,
            self.r,
            own,
            stages,
            [(cut.shape, y, x) for cut, y, x in at],
            [around for _, around in self.members],
        )

    def listed(self, j: int, at: Sequence[At]) -> Listed:
        """Stage j at its place. Of those before it only the lanes that hold what it reads are asked for, of
        those behind it nothing.
        """
        g, (part, around) = self.known.g, self.members[j]
        own = g.workload.einsums[self.r.first : self.r.last + 1]
        key = j, at[j], tuple(at[i] for i in range(j) if own[i].output.tensor in around.forwarded)
        if key not in self.lists:
            cut, names = at[j][0], {p.tensor for e in own for p in e.tensors()}
            text = self.text([*at, *[NOWHERE] * (len(own) - len(at))])
            few, alone = Workload("", own, g.workload.weights & names), Schedule((text,), weights=g.weights)
            there = placed.placed_segments(g.arch, few, alone, part=len(own) < len(g.workload.einsums))[0][j]
            nests = [
                own_nest(_stage(nest), cut.shape, part, around, g.arch.levels[0].name)
                for nest in self.known.inner(part_of(part, dict(cut.tile)), around)
            ]
            base = self.known.based(
                (own[j].name, around, self.r.ranks, self.r.tile, cut), there, nests, even(cut, part)
            )
            self.lists[key] = Listed(base, there)
        return self.lists[key]
