"""Whole schedules walked in time: every trip of the shared loops, and every einsum of it, is a nest of its
own that starts with empty levels.

Shares no code with dse/sim: the nests of the trips are cut out of the schedule here and walked by
tests/timed.py; nothing overlaps between two of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from random import Random

from dse.mapping.nest import Loop, Mapping, Store
from dse.mapping.schedule import Branch, Retained, Schedule, Segment
from dse.sim.einsum.evaluate import Solution
from dse.sim.schedule.faults import faults
from dse.sim.schedule.graph import evaluate
from hw.arch import Arch
from tests.nests import ported
from tests.schedules import own_nest, random_workload
from tests.test_timed import random_machine
from tests.timed import alike, walk
from tests.unrolled import FORK, Program, Work, program
from workloads.einsum import Einsum
from workloads.graph import Workload

POINTS = 250  # iterations of an einsum at most


def programs(arch: Arch, workload: Workload, schedule: Schedule) -> Iterator[tuple[str, Program]]:
    """(einsum, nest of a trip), all in turn."""
    einsums = {e.name: e for e in workload.einsums}
    for segment in schedule.segments:
        loops = [node for node in segment.nodes if isinstance(node, Loop)]
        stores = [node for node in segment.nodes if isinstance(node, Store)]
        users = {
            node.tensor: [
                b.einsum
                for b in segment.branches
                if node.tensor in {p.tensor for p in einsums[b.einsum].tensors()}
            ]
            for node in stores
        }
        home = {node.tensor: node for node in stores}
        own_ranks = [
            {loop.rank: dict(b.ranks).get(loop.rank, loop.rank) for loop in loops} for b in segment.branches
        ]
        first = einsums[segment.branches[0].einsum].sizes()
        for tiles in trips(loops, {rank: first[name] for rank, name in own_ranks[0].items()}):
            for b, names in zip(segment.branches, own_ranks, strict=True):
                e = einsums[b.einsum]
                part = {names[rank]: n for rank, n in tiles.items()}
                e = replace(e, extents=tuple((rank, part.get(rank, n)) for rank, n in e.extents))
                seen = [
                    node
                    for node in stores
                    if node.tensor in {p.tensor for p in e.tensors()}
                    and (users[node.tensor][0] == b.einsum or node is home[node.tensor])
                ]
                fork = [Loop(e.extents[0][0], 1, FORK)] if segment.nodes and len(segment.branches) > 1 else []
                left, nodes = e.sizes(), list[Loop | Store]()
                for node in b.mapping.nodes:
                    if isinstance(node, Loop):
                        node = replace(node, tile=min(node.tile, left[node.rank]))
                        left[node.rank] = node.tile
                    nodes.append(node)
                yield b.einsum, program(Mapping(kept(schedule, e, arch, [*seen, *fork, *nodes])), e, arch)


def kept(schedule: Schedule, e: Einsum, arch: Arch, nodes: list[Loop | Store]) -> tuple[Loop | Store, ...]:
    """What is kept whole is there, or stays: no node further out than its level, where it stands above
    all."""
    order = [level.name for level in arch.levels]
    for one in schedule.retained:
        if one.tensor in {p.tensor for p in e.tensors()}:
            far = order[: order.index(one.level) + 1]
            nodes = [
                Store(one.level, one.tensor),
                *(
                    n
                    for n in nodes
                    if not (isinstance(n, Store) and n.tensor == one.tensor and n.level in far)
                ),
            ]
    return tuple(nodes)


def trips(loops: list[Loop], sizes: dict[str, int]) -> Iterator[dict[str, int]]:
    """Sizes of the shared ranks in every trip."""
    if not loops:
        yield dict(sizes)
        return
    loop, left = loops[0], sizes[loops[0].rank]
    for low in range(0, left, loop.tile):
        yield from trips(loops[1:], {**sizes, loop.rank: min(loop.tile, left - low)})


def random_fused(rng: Random, with_ports: bool = False) -> tuple[Arch, Workload, Schedule]:
    """Two or three einsums that share loops over rows of what they hand on, with nodes below them; the rest
    of each nest is its own. with_ports: levels say which of their ports serves what
    """
    while True:
        workload = random_workload(rng, rng.randint(2, 3), False)
        if any(e.points() > POINTS for e in workload.einsums):
            continue
        arch = random_machine(rng)
        arch = ported(arch, workload.einsums[0]) if with_ports else arch
        schedule = drawn(rng, arch, workload)
        if (
            schedule
            and not faults(arch, workload, schedule)
            and isinstance(evaluate(arch, workload, schedule), Solution)
        ):
            return arch, workload, schedule


def drawn(rng: Random, arch: Arch, workload: Workload) -> Schedule | None:
    """All einsums in one segment, or the first alone."""
    part = list(workload.einsums)
    alone = [part.pop(0)] if len(part) > 2 and rng.random() < 0.5 else []
    names = [p.tensor for e in part for p in e.tensors()]
    made = {e.output.tensor for e in part}
    away = {p.tensor for e in alone for p in e.tensors()}
    read = {p.tensor for e in part for p in e.inputs}
    chip = [
        t for t in dict.fromkeys(names) if t in made and t in read and t not in away and rng.random() < 0.7
    ]
    if not all(e.output.dims[0].terms for e in part):
        return None
    rows = [e.output.dims[0].terms[0][0] for e in part]
    pairs = list(zip(part, rows, strict=True))
    if len({e.sizes()[row] for e, row in pairs}) > 1 or any(
        row in p.partial_ranks() for e, row in pairs for p in e.tensors()
    ):
        return None
    nodes: list[Loop | Store] = [Store(arch.levels[0].name, t) for t in dict.fromkeys(names) if t not in chip]
    left = {e.name: e.sizes() for e in part}
    tile = rng.randint(1, part[0].sizes()[rows[0]])
    for size in [tile, rng.randint(1, tile)][: rng.randint(1, 2)]:
        nodes.append(Loop(rows[0], size))
        for e, row in zip(part, rows, strict=True):
            left[e.name][row] = size
    order = {t: 0 for t in names if t not in chip}
    for t in dict.fromkeys(names):
        if t in chip or rng.random() < 0.25:
            order[t] = (
                rng.randint(1, len(arch.levels) - 1)
                if not arch.fanouts
                else rng.randint(1, max(arch.fanouts[0].outside - 1, 1))
            )
            nodes.append(Store(f"L{order[t]}", t))
    if arch.fanouts and any(v >= arch.fanouts[0].outside for v in order.values()):
        return None
    branches = []
    for e, row in zip(part, rows, strict=True):
        ranks = ((rows[0], row),) if row != rows[0] else ()
        branches.append(own_nest(rng, arch, e, left[e.name], order, 1, (), ranks, None, False, workload, []))
    segments = [Segment(tuple(branches), tuple(nodes))]
    for e in alone:
        own = own_nest(rng, arch, e, e.sizes(), {}, 0, (), (), None, False, workload, [])
        head = tuple(
            Store(arch.levels[0].name, p.tensor)
            for p in e.tensors()
            if Store(arch.levels[0].name, p.tensor) not in own.mapping.nodes
        )
        segments.insert(0, Segment((Branch(e.name, Mapping((*head, *own.mapping.nodes))),)))
    first = min((f.outside for f in arch.fanouts), default=len(arch.levels))
    stays = [t for e in alone for t in [e.output.tensor] if t in read and first > 1 and rng.random() < 0.7]
    return Schedule(
        tuple(segments), tuple(Retained(f"L{rng.randint(1, first - 1)}", t, Fraction(1)) for t in stays)
    )


@dataclass(frozen=True, slots=True)
class Timed:
    """walked: cycles of all nests in turn; even: all trips are alike, in each all rounds, and no port was
    wanted by two at once; shared: there are trips.
    """

    walked: Fraction
    closed: float
    contended: bool
    even: bool
    shared: bool
    fault: str = ""


def timed(seed: int, with_ports: bool = False) -> Timed:
    arch, workload, schedule = random_fused(Random(seed), with_ports)
    found = evaluate(arch, workload, schedule, "latency")
    assert isinstance(found, Solution)
    walked, anyhow, contended = dict[str, Fraction](), dict[str, Fraction](), False
    first: dict[str, list[Work]] = {}
    uneven = set()
    for name, p in programs(arch, workload, schedule):
        cycles, wanted = walk(p)
        walked[name], anyhow[name] = (
            walked.get(name, Fraction(0)) + cycles,
            anyhow.get(name, Fraction(0)) + walk(p, Random(seed))[0],
        )
        contended |= wanted
        if wanted or not alike(p) or first.setdefault(name, p.blocks) != p.blocks:  # all trips too
            uneven.add(name)
    lines = []
    for c in found.einsums:
        closed, own = c.latency_cycles, float(walked[c.name])
        wrong = {
            "above the walk": closed > own * (1 + 1e-9),
            "above that with ports in random order": closed > float(anyhow[c.name]) * (1 + 1e-9),
            "below the walk where nothing contends": c.name not in uneven and closed < own * (1 - 1e-9),
        }
        lines += [
            f"seed {seed}, {c.name}: closed form {closed} {name}, {own}\n{schedule}\n{arch}"
            for name, holds in wrong.items()
            if holds
        ]
    shared = any(isinstance(n, Loop) for s in schedule.segments for n in s.nodes)
    return Timed(
        sum(walked.values(), Fraction(0)),
        found.latency_cycles,
        contended,
        not uneven,
        shared,
        "\n".join(lines),
    )
