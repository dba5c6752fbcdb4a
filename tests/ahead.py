"""Einsums in turn whose first fills may come while the one before runs: closed form against a walk in time of
all of them together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from dse.mapping.nest import Infeasible, Loop, Mapping, Store
from dse.mapping.schedule import Branch, Schedule, Segment
from dse.sim.einsum.evaluate import Solution
from dse.sim.schedule.graph import evaluate
from hw.arch import Arch
from tests.nests import random_mapping
from tests.schedules import random_workload
from tests.test_timed import random_machine
from tests.timed import alike, walk, walk_ahead
from tests.unrolled import Program, Work, hull, program, rest, total
from workloads.einsum import Einsum
from workloads.graph import Workload

POINTS = 250


@dataclass(frozen=True, slots=True)
class Ahead:
    """turn: cycles without; closed, walked: with first fills ahead; even: nothing contends in any nest and
    all rounds are alike.
    """

    turn: float
    closed: float
    walked: float
    even: bool
    fault: str = ""


def drawn(rng: Random) -> tuple[Arch, Workload, Schedule]:
    while True:
        workload = random_workload(rng, rng.randint(2, 3), False)
        if any(e.points() > POINTS for e in workload.einsums):
            continue
        arch = random_machine(rng)
        # the walk of a nest names instances by its own loops
        if any(f.outside < len(arch.levels) for f in arch.fanouts):
            continue
        nests = [random_mapping(rng, e, arch) for e in workload.einsums]
        heads = [
            tuple(
                Store(arch.levels[0].name, p.tensor)
                for p in e.tensors()
                if not any(n == Store(arch.levels[0].name, p.tensor) for n in nest.nodes)
            )
            for e, nest in zip(workload.einsums, nests, strict=True)
        ]
        segments = tuple(
            Segment((Branch(e.name, Mapping((*head, *nest.nodes))),))
            for e, head, nest in zip(workload.einsums, heads, nests, strict=True)
        )
        if rng.random() < 0.5:
            arch = replace(
                arch,
                levels=(
                    arch.levels[0],
                    *(replace(level, capacity_bits=8 * rng.randint(4, 120)) for level in arch.levels[1:]),
                ),
            )
        schedule = Schedule(segments, fills_ahead=True)
        if not isinstance(evaluate(arch, workload, schedule), Infeasible):
            return arch, workload, schedule


def held(nest: Mapping, e: Einsum, arch: Arch) -> list[tuple[int, str, int, int]]:
    """(level, tensor, bits of one tile, bits of all that stands for it) of every node."""
    order, found, seen = {level.name: v for v, level in enumerate(arch.levels)}, [], set()
    for i, node in enumerate(nest.nodes):
        if isinstance(node, Store):
            p = next(p for p in e.tensors() if p.tensor == node.tensor)
            at = rest(nest.nodes, i, p) if node.tensor in seen else i
            seen.add(node.tensor)
            env, moving = {rank: (0, n) for rank, n in e.extents}, False
            for loop in nest.nodes[:at]:
                if isinstance(loop, Loop):
                    moving |= not loop.over and loop.tile < env[loop.rank][1]
                    env[loop.rank] = (0, loop.tile)
            bits = arch.word_bits
            for low, high in hull(p, env):
                bits *= high - low
            found.append(
                (
                    order[node.level],
                    node.tensor,
                    bits,
                    bits * (2 if arch.levels[order[node.level]].double_buffer and moving else 1),
                )
            )
    return found


def ready(
    nest: Mapping, e: Einsum, before: list[tuple[int, str, int, int]], made: str, arch: Arch, p: Program
) -> set[tuple[int, str]]:
    """First tiles from the outermost level that fit beside what the einsum before holds; not of what it
    makes, nor inside a level that starts anew.
    """
    found: set[tuple[int, str]] = set()
    deepest = next(
        (
            v
            for v in range(1, len(arch.levels))
            if not arch.levels[v].double_buffer and any(n.level == v and len(n.tiles) > 1 for n in p.nodes)
        ),
        len(arch.levels),
    )
    fed = {
        (n.level, n.tensor.tensor) for n in p.nodes if n.parent == 0 and not n.output and n.level <= deepest
    }
    left = {
        v: None
        if level.capacity_bits is None
        else level.capacity_bits - sum(room for u, _, _, room in before if u == v)
        for v, level in enumerate(arch.levels)
    }
    for v, tensor, bits, _ in held(nest, e, arch):
        room = left[v]
        if (v, tensor) in fed and tensor != made and (room is None or bits <= room):
            left[v] = None if room is None else room - bits
            found.add((v, tensor))
    return found


def every(p: Program) -> list[Work]:
    """All that keeps ports busy."""
    return [*p.blocks, *(work for node in p.nodes for tile in node.tiles for work in (tile.fill, tile.drain))]


def compared(seed: int) -> Ahead:
    arch, workload, schedule = drawn(Random(seed))
    found = evaluate(arch, workload, schedule, "latency")
    turn = evaluate(arch, workload, replace(schedule, fills_ahead=False), "latency")
    assert isinstance(found, Solution)
    assert isinstance(turn, Solution)
    programs, even, before, made = [], True, None, ""
    for e, segment in zip(workload.einsums, schedule.segments, strict=True):
        nest = segment.branches[0].mapping
        p = program(nest, e, arch)
        even = even and not walk(p)[1] and alike(p)
        programs.append((p, ready(nest, e, before, made, arch, p) if before is not None else set()))
        before, made = held(nest, e, arch), e.output.tensor
    walked, anyhow = float(walk_ahead(programs)), float(walk_ahead(programs, Random(seed)))
    closed = found.latency_cycles
    wrong = {
        "above the walk": closed > walked * (1 + 1e-9),
        "above that with ports in random order": closed > anyhow * (1 + 1e-9),
        "below what a port is busy": closed
        < max(map(float, total(work for p, _ in programs for work in every(p)).values())) * (1 - 1e-9),
        "above einsums in turn": closed > turn.latency_cycles * (1 + 1e-9),
    }
    lines = [
        f"seed {seed}: {closed} {name}, {walked} {anyhow}, in turn {turn.latency_cycles}\n{schedule}\n{arch}"
        for name, holds in wrong.items()
        if holds
    ]
    return Ahead(turn.latency_cycles, closed, walked, even, "\n".join(lines))
