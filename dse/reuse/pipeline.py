"""Pipelines of einsums on rectangles of nodes, and which einsums make one (KAPLA's inter-layer space; docs/reuse.md, Pipelines).

    labels    of every border between two einsums: none, or the segment that runs across it
    factors   an einsum with its borders: what it costs alone on the nodes; where a segment begins, what that costs

A segment: einsums next to each other in the order of the workload, each on a rectangle of nodes; what they hand on stays in the lanes that make it; all at
once, or in granules of one shared loop. Limits on the cycles of a stage are tried, tightest first: each stage is to cost least within the limit, all together
need no more nodes than there are (`dse/join.py`), and rectangles must lie beside each other. The evaluator prices what is found.
One search, whose steps share what was found: so one file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import inf, log, log2, prod
from typing import Literal

import numpy as np

from dse.join import Room, Table, join, table
from dse.nest import Infeasible, Loop, Store
from dse.reuse.stages import Around, Nodes, Shape, Stage, floor, own_nest, tiles
from dse.reuse.trips import runs, trips
from dse.reuse.trips import segments as looped
from dse.schedule import Branch, Lanes, Schedule, Segment
from dse.sim.evaluate import PRECISE, Solution, Violated, above, certified, figure, percent
from dse.sim.faults import faults
from dse.sim.graph import evaluate
from dse.sim.parts import bits_of
from hw.arch import Arch
from workloads.einsum import Einsum
from workloads.graph import Workload, counts, owner

MOST_STAGES = 6
GRANULES = (8, 64)  # numbers of granules; where energy is asked for, only if a segment does not fit all at once
TRIED = 12  # limits on the cycles of a stage that are tried
PARTS = 24  # parts of an einsum that are tried, those nearest to its share of the nodes
WIDE = 1.3  # nodes of a stage over its share of the work, at most; and the other way round
PADDED = 1.15  # operations that lanes have time for, over those that there are
SLOW = 1.02  # cycles of a nest over those of all lanes at work: a faster one is asked for too
PLACED = 8  # choices of stages that are laid out per limit
BUDGET = 1200  # nests of nodes that are searched; segments are looked at while there are fewer, those first that save most words of main memory
FEW = 8  # parts of an einsum that runs alone
VISITED = 4000  # places that a layout looks at
SPACE = "segments of at most 6 einsums in turn, each on a rectangle of nodes, one loop in time shared"
Objective = Literal["energy", "latency", "edp"]


@dataclass(frozen=True, slots=True)
class Range:
    """Einsums first to last. handed: made and read in it; leaving: those that others read too; ranks: of a shared loop, one per einsum, () none; tile: its."""

    first: int
    last: int
    handed: frozenset[str]
    leaving: frozenset[str]
    ranks: tuple[str, ...] = ()
    tile: int = 0


@dataclass(frozen=True, slots=True)
class Option:
    """A segment as found. energy, latency: among others; peak, pinned: bits of a node's buffer while it runs, and of its weights at all times."""

    segment: Segment
    energy: float
    latency: float
    peak: int = 0
    pinned: int = 0


@dataclass(slots=True)
class Found:
    """A search. looked, left: ways to run stages that were priced, those that no other one undercuts; evaluated: segments; undone: not looked at."""

    arch: Arch
    workload: Workload
    objective: Objective
    weights: str
    nodes: Nodes
    looked: int = 0
    left: int = 0
    evaluated: int = 0
    undone: int = 0
    known: dict[tuple[object, ...], list[Stage]] = field(default_factory=dict)


def pipelined(arch: Arch, workload: Workload, objective: Objective, weights: str = "streamed", spatial: bool = True,
              temporal: bool = True) -> Solution | Infeasible:
    """The best schedule found. spatial: einsums may run side by side; temporal: in granules. Raises ValueError where a machine has no nodes for stages."""
    if not arch.fanouts or arch.fanouts[0].outside != 1 or len(arch.fanouts[0].dims) != 2:
        raise ValueError(f"{arch.name}: solver.reuse = pipelines needs nodes in rows and columns between main memory and a buffer in each; "
                         f"take kapla_multi, or solver.reuse=none")
    if arch.described():
        raise ValueError(f"{arch.name}: solver.reuse = pipelines counts no lines, rows or banks, which this machine prices; take solver.reuse=none")
    g = Found(arch, workload, objective, weights, Nodes(arch))
    ranges = [r for r in _ranges(g) if temporal or not r.tile] if spatial else []
    n = len(workload.einsums)
    alone = [_alone(g, i) for i in range(n)]
    made: dict[Range, Option] = {}
    for r in sorted(ranges, key=lambda one: (-_saved(g, one), one.tile > 0)):
        if g.nodes.searches > BUDGET:
            g.undone += 1
            continue
        whole = objective == "energy" and r.tile and any((r.first, r.last) == (other.first, other.last) and not other.tile for other in made)
        if not whole and (option := _segment(g, r, alone[r.first:r.last + 1])):
            made[r] = option
    labels = {i: [None, *(r for r in made if r.first <= i < r.last)] for i in range(n - 1)}
    tables: list[Table] = []
    rows: list[list[Option | None]] = []
    rooms = {f"run {i}": Room(arch.levels[1].capacity_bits or inf) for i in range(n)} if weights == "pinned" else {}
    for i in range(n):
        near = [j for j in (i - 1, i) if 0 <= j < n - 1]
        found = list(_agreed(i, near, labels, alone, made))
        if not found:
            return Infeasible("the nodes", 1, 0, workload.einsums[i].name, "mappings")
        rows.append([o for _, o in found])
        costs = [[o.energy, o.latency, *_rooms(o, i, n if rooms else 0)] if o else [0.0] * (2 + len(rooms)) for o in rows[-1]]
        tables.append(table([f"border {j}" for j in near], [(at, row) for (at, _), row in zip(found, costs, strict=True)], tuple(rooms)))
    joined = join(tables, rooms, objective)
    if not joined.choices:
        return Infeasible("the nodes", 1, 0, workload.einsums[0].name, "mappings")
    best = min(joined.choices, key=lambda one: figure(objective, one.energy, one.latency))
    taken = [o for own, pick in zip(rows, best.rows, strict=True) if (o := own[pick])]
    solution = evaluate(arch, workload, Schedule(tuple(o.segment for o in taken), weights=weights), objective)
    return solution if isinstance(solution, Infeasible) else _told(g, solution, len(ranges))


def _rooms(one: Option, first: int, n: int) -> list[float]:
    """What an option takes of the buffers while each einsum runs: its peak where its own do, its pinned weights always."""
    last = first + len(one.segment.branches) - 1
    return [float(one.peak if first <= i <= last else one.pinned) for i in range(n)]


def _agreed(i: int, near: Sequence[int], labels: dict[int, list[Range | None]], alone: Sequence[Option | None],
            made: dict[Range, Option]) -> Iterator[tuple[tuple[int, ...], Option | None]]:
    """Labels of an einsum's borders that can stand together, and what it adds."""
    for at in product(*(range(len(labels[j])) for j in near)):
        option = _taken(i, {j: labels[j][k] for j, k in zip(near, at, strict=True)}, alone, made)
        if option is not False:
            yield at, option


def _taken(i: int, at: dict[int, Range | None], alone: Sequence[Option | None], made: dict[Range, Option]) -> Option | Literal[False] | None:
    """What an einsum adds with its borders: its own, the segment that begins with it, nothing within one; False: its borders do not agree."""
    left, right = at.get(i - 1), at.get(i)
    if left is None and right is None:
        return alone[i] or False
    if left is not None and right is not None:
        return None if left is right else False
    if left is not None:
        return None if left.last == i else False
    assert right is not None
    return made[right] if right.first == i else False


def _ranges(g: Found) -> list[Range]:
    """Runs of einsums in which each but the first reads what another one hands to it, and each but the last hands on; with the loops that they may share."""
    w, found = g.workload, []
    maker = {e.output.tensor: i for i, e in enumerate(w.einsums)}
    loops = {(m.first, m.last): m for m in looped(w)}
    for first, last, made, leaving in runs(w, MOST_STAGES):
        own, handed = w.einsums[first:last + 1], frozenset(made)
        reads = [{p.tensor for p in e.inputs} & handed for e in own]
        again = any(owner(p.tensor, maker) in handed and p.tensor not in handed for e in own for p in e.inputs)  # read by another name
        if again or not all(reads[1:]) or not all(e.output.tensor in handed for e in own[:-1]):
            continue
        found.append(Range(first, last, handed, leaving))
        if (first, last) in loops:
            for axis in loops[first, last].axes:
                n = own[0].sizes()[axis[0]]
                found += [Range(first, last, handed, leaving, axis, n // b) for b in GRANULES if n % b == 0 and n > b]
    return found


def _saved(g: Found, r: Range) -> float:
    """Energy of main memory that a segment saves: what it hands on is not read there, and what nobody else reads is not written."""
    outer, total = g.arch.levels[0], 0.0
    for e in g.workload.einsums[r.first:r.last + 1]:
        for p in e.tensors():
            if p.tensor in r.handed:
                pj = outer.read_pj if p is not e.output else 0.0 if p.tensor in r.leaving else outer.write_pj
                total += p.stored_elems() * (p.bits or g.arch.word_bits) / outer.width_bits * pj
    return total


def _alone(g: Found, i: int) -> Option | None:
    """An einsum on as many nodes as it likes, all others idle."""
    e, outer = g.workload.einsums[i], g.arch.levels[0].name
    around = Around(pinned=_pinned(g, e))
    best: Option | None = None
    for stage in sorted(_stages(g, e, around, 1.0, FEW), key=lambda one: _rough(g, [one], 1))[:TRIED]:
        for shape in stage.shapes[:2]:
            nest = own_nest(stage, shape, e, around, outer)
            stores = tuple(Store(outer, p.tensor) for p in e.tensors() if p.tensor not in around.pinned)
            segment = Segment((Branch(e.name, replace(nest, nodes=(*stores, *nest.nodes))),))
            found = _priced(g, (e,), segment)
            if found and (best is None or _value(g, found) < _value(g, best)):
                best = found
    if best is None:
        return None
    n = counts(g.workload)[i]
    return replace(best, energy=n * best.energy, latency=n * best.latency)


def _value(g: Found, one: Option) -> float:
    return figure(g.objective, one.energy, one.latency)


def _rough(g: Found, stages: Sequence[Stage], granules: int) -> float:
    energy, cycles = sum(one.energy for one in stages) * granules, max(one.cycles for one in stages) * granules
    return figure(g.objective, energy, cycles)


def _pinned(g: Found, e: Einsum) -> frozenset[str]:
    return frozenset(p.tensor for p in e.inputs if g.weights == "pinned" and p.tensor in g.workload.weights)


def _stages(g: Found, e: Einsum, around: Around, share: float, parts: int = PARTS) -> list[Stage]:
    """Ways to run an einsum on about so many of the nodes that no other one undercuts in energy, cycles and nodes."""
    most = g.arch.instances(1)
    key = (e, around, round(share * most), parts)
    if key not in g.known:
        found = []
        for tile in _worth(g, e, share * most, parts):
            stage = g.nodes.stage(e, tile, around, "energy")
            found += [stage] if stage else []
            lanes = prod(-(-n // tile.get(rank, n)) for rank, n in e.extents)
            if stage and stage.cycles * lanes * g.arch.instances(len(g.arch.levels)) > SLOW * e.points() * most and (
                    fast := g.nodes.stage(e, tile, around, "latency")):
                found.append(fast)
        g.looked += len(found)
        kept: list[Stage] = []
        for one in sorted(found, key=lambda s: (s.energy, s.cycles, s.nodes)):
            if not any(b.cycles <= one.cycles and b.nodes <= one.nodes for b in kept):
                kept.append(one)
        g.left += len(kept)
        g.known[key] = kept or (_stages(g, e, around, share / 2, parts) if share * most > 1 else [])
    return g.known[key]


def _worth(g: Found, e: Einsum, nodes: float, parts: int) -> list[dict[str, int]]:
    """Parts for about so many nodes; of those that leave as much work to a node (to a fiftieth), and cut one rank alike, what takes least from outside."""
    best: dict[tuple[int, ...], tuple[float, dict[str, int]]] = {}
    sizes, most = e.sizes(), g.arch.instances(1)
    given = [(prod(-(-n // tile.get(rank, n)) for rank, n in e.extents), tile) for tile in tiles(e, min(round(WIDE * nodes) + 3, most))]
    low = min(nodes / WIDE - 2, max(lanes for lanes, _ in given))
    for lanes, tile in given:
        work = prod(tile.get(rank, n) for rank, n in sizes.items())
        if lanes >= low and work * lanes <= PADDED * e.points():
            taken = sum(prod(tile.get(rank, sizes[rank]) for rank in p.ranks()) for p in e.tensors())
            cell = round(50 * log(work)), *(round(log2(-(-sizes[rank] // t))) for rank, t in tile.items())
            best[cell] = min(best.get(cell, (inf, tile)), (taken, tile), key=lambda one: one[0])
    near = sorted(best.values(), key=lambda one: (abs(log(prod(-(-sizes[rank] // t) for rank, t in one[1].items()) / nodes)), one[0]))
    return [tile for _, tile in near[:parts]]


def _segment(g: Found, r: Range, alone: Sequence[Option | None]) -> Option | None:
    """The best way to run a segment, if it is better than its einsums one after the other."""
    own = g.workload.einsums[r.first:r.last + 1]
    granule = [trips(e, rank, r.tile) for e, rank in zip(own, r.ranks, strict=True)] if r.ranks else [((e, 1),) for e in own]
    if any(len(each) > 1 for each in granule):
        return None
    many = granule[0][0][1]
    work = sum(e.points() for e in own)
    ways = []
    for j, (e, ((part, _),)) in enumerate(zip(own, granule, strict=True)):
        last = max([i for i, other in enumerate(own) if e.output.tensor in {p.tensor for p in other.inputs}], default=j)
        around = Around(frozenset(p.tensor for p in e.inputs) & r.handed, _pinned(g, e), e.output.tensor in r.handed, min(last - j + 1, many))
        ways.append((part, around, _stages(g, part, around, e.points() / work)))
    if not all(own for _, _, own in ways):
        return None
    best: Option | None = None
    bar = sum(_value(g, one) if one else inf for one in alone) if g.objective != "edp" and g.weights != "pinned" else inf
    limits = sorted({stage.cycles for _, _, own_ways in ways for stage in own_ways if stage.cycles >= max(min(s.cycles for s in w) for _, _, w in ways)})
    for limit in _some(limits):
        for choice in _chosen(g, [[s for s in own_ways if s.cycles <= limit] for _, _, own_ways in ways]):
            rough = _rough(g, choice, many)
            if rough >= min(bar, _value(g, best) if best else inf) and g.objective == "energy":
                continue
            if (places := _laid(g, choice)) is None:
                continue
            found = _priced(g, own, _written(g, r, own, choice, places, [around for _, around, _ in ways]))
            if found and (best is None or _value(g, found) < _value(g, best)):
                best = found
            break
    return best


def _some(limits: Sequence[float]) -> list[float]:
    """Limits spread over their range, the tightest first."""
    at = sorted({round(i) for i in np.geomspace(1, len(limits), min(TRIED, len(limits)))}) if limits else []
    return [limits[i - 1] for i in at]


def _chosen(g: Found, ways: Sequence[Sequence[Stage]]) -> Iterator[list[Stage]]:
    """Stages of least energy that find nodes enough, then those with a node less in all, and so on."""
    room = g.arch.instances(1)
    for _ in range(PLACED):
        tables = [Table((f"{j}",), np.arange(len(own)).reshape(len(own), 1), np.array([(s.energy, 0.0, s.nodes) for s in own]), ("nodes",))
                  for j, own in enumerate(ways)]
        found = join(tables, {"nodes": Room(room)})
        if not found.choices:
            return
        choice = [own[found.choices[0].labels[f"{j}"]] for j, own in enumerate(ways)]
        yield choice
        room = sum(s.nodes for s in choice) - 1


def _laid(g: Found, stages: Sequence[Stage]) -> list[tuple[Shape, int, int]] | None:
    """Rectangles side by side, each with its first row and column; None: none were found."""
    (_, rows), (_, columns) = g.arch.fanouts[0].dims
    visited = 0

    def put(left: list[int], taken: list[int]) -> dict[int, tuple[Shape, int, int]] | None:
        nonlocal visited
        if not left:
            return {}
        j, *rest = left
        for shape in stages[j].shapes:
            bits = (1 << shape.columns) - 1
            for y in range(rows - shape.rows + 1):
                for x in range(columns - shape.columns + 1):
                    visited += 1
                    if visited > VISITED:
                        return None
                    if not any(taken[y + i] & bits << x for i in range(shape.rows)):
                        after = [row | bits << x if y <= i < y + shape.rows else row for i, row in enumerate(taken)]
                        if (found := put(rest, after)) is not None:
                            return found | {j: (shape, y, x)}
                        break  # further right leaves no more room
                else:
                    continue
                break
        return None

    found = put(sorted(range(len(stages)), key=lambda j: -stages[j].nodes), [0] * rows)
    return [found[j] for j in range(len(stages))] if found is not None else None


def _written(g: Found, r: Range, own: Sequence[Einsum], stages: Sequence[Stage], places: Sequence[tuple[Shape, int, int]],
             arounds: Sequence[Around]) -> Segment:
    outer, level, ((ny, _), (nx, _)) = g.arch.levels[0].name, g.arch.levels[1].name, g.arch.fanouts[0].dims
    far = dict.fromkeys(p.tensor for e, around in zip(own, arounds, strict=True) for p in e.tensors()
                        if p.tensor not in around.pinned and (p.tensor not in r.handed or p.tensor in r.leaving))
    nodes: list[Loop | Store] = [Store(outer, t) for t in far]
    nodes += [Loop(r.ranks[0], r.tile)] if r.ranks else []
    nodes += [Store(level, e.output.tensor) for e in own if e.output.tensor in r.handed]
    branches = []
    for j, (e, stage, (shape, y, x), around) in enumerate(zip(own, stages, places, arounds, strict=True)):
        ranks = ((r.ranks[0], r.ranks[j]),) if r.ranks and r.ranks[j] != r.ranks[0] else ()
        branches.append(Branch(e.name, own_nest(stage, shape, e, around, outer), ranks, (Lanes(ny, y, shape.rows), Lanes(nx, x, shape.columns))))
    return Segment(tuple(branches), tuple(nodes))


def _priced(g: Found, own: Sequence[Einsum], segment: Segment) -> Option | None:
    """The evaluator's price of a segment; among others, where it fills and drains, unless it is all there is."""
    g.evaluated += 1
    names = {p.tensor for e in own for p in e.tensors()}
    part = Workload("", tuple(own), g.workload.weights & names)
    schedule = Schedule((segment,), weights=g.weights)
    if faults(g.arch, part, schedule):
        return None
    found = evaluate(g.arch, part, schedule, g.objective)
    if not isinstance(found, Solution):
        return None
    level, energy = g.arch.levels[1].name, found.energy_pj
    pinned = max(sum(elems * bits_of(e, g.arch)[t] for where, t, elems in c.footprint if where == level and t in _pinned(g, e))
                 for e, c in ((e, next(c for c in found.einsums if c.name == e.name)) for e in own))
    if segment.pipelined and len(own) < len(g.workload.einsums):
        energy += g.arch.leak_mw() / g.arch.clock_ghz * (found.latency_cycles - found.steady_cycles)
    return Option(segment, energy, found.latency_cycles, dict(found.segments[0].peak_bits).get(level, 0) if found.segments else 0, pinned)


def _least(g: Found) -> float:
    """No schedule of the space costs less: every einsum its floor, with all that another one makes, or reads behind it, on the chip."""
    made, total = {e.output.tensor for e in g.workload.einsums}, [0.0, 0.0]
    read = {owner(p.tensor, made) for e in g.workload.einsums for p in e.inputs}
    for e, n in zip(g.workload.einsums, counts(g.workload), strict=True):
        inside = [p for p in e.tensors() if (p is e.output and p.tensor in read) or (p is not e.output and owner(p.tensor, made) in made)
                  or p.tensor in _pinned(g, e)]
        total = [a + n * b for a, b in zip(total, floor(e, g.arch, inside), strict=True)]
    return figure(g.objective, *total)


def _told(g: Found, solution: Solution, ranges: int) -> Solution:
    value, least = figure(g.objective, solution.energy_pj, solution.latency_cycles), _least(g)
    if least > value * (1 + PRECISE):
        raise Violated(f"{g.workload.name} on {g.arch.name}: lower bound {least} above the cost {value} of\n{solution.schedule}")
    gap = min(above(value, least), solution.gap_to_bound)
    said = "; ".join(part for part in solution.certificate.split("; ") if part.startswith(("weights", "cycles", "leakage")))
    where = f"at most {percent(gap)} above the optimum in {SPACE}"
    tried = f"{ranges - g.undone} of {ranges} segments, {g.nodes.searches} nests of nodes, {g.left} of {g.looked} stages left, {g.evaluated} priced"
    text = f"{said}; " if said else ""
    return replace(solution, gap_in_space=gap, certificate=text + certified(f"{where} ({tried})", solution.gap_to_bound))
