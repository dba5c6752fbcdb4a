"""Closed forms of whole schedules against a walk of every element, and of pipelines against a walk in
time."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import isclose
from random import Random

from hypothesis import example, given, settings
from hypothesis import strategies as st

from dse.mapping.nest import Infeasible, Loop, Mapping, Store
from dse.mapping.schedule import Branch, Schedule
from dse.sim.counts.counts import counted
from dse.sim.einsum.boundary import Boundary, whole_nest
from dse.sim.einsum.cost import price, price_mapping
from dse.sim.einsum.evaluate import Problem, Solution
from dse.sim.schedule.faults import faults
from dse.sim.schedule.graph import evaluate, filled_cycles
from hw.arch import Arch
from tests.amount import amount
from tests.fused_in_time import timed
from tests.nests import random_case, with_outer
from tests.oracle import Tally, port_bits, width
from tests.schedules import random_schedule, widened_schedule
from tests.test_counts import busiest_bits
from tests.walked import outermost, walk_schedule
from workloads.einsum import Einsum
from workloads.graph import Workload


def differences(seed: int) -> list[str]:
    """What the evaluator and the walk say differently of one random schedule."""
    return [f"seed {seed}: {line}" for line in compared(*random_schedule(Random(seed)))]


def compared(arch: Arch, workload: Workload, schedule: Schedule) -> list[str]:
    """The same of a schedule that fits."""
    found = evaluate(arch, workload, schedule)
    assert isinstance(found, Solution), found
    walked = walk_schedule(arch, workload, schedule)
    lines = list(walked.wrong)
    for c in found.einsums:
        tally, e = walked.tallies[c.name], next(e for e in workload.einsums if e.name == c.name)
        # the port of another stage serves the others
        own = [row for row in c.counts if row.tensor not in walked.remote]
        here = Tally(
            tally.total,
            {
                at: Counter({key: n for key, n in moved.items() if key[1] not in walked.remote})
                for at, moved in tally.lanes.items()
            },
        )
        for what, got, want in (
            ("elements", {(row.level, row.tensor, row.action): row.elems for row in c.counts}, tally.total),
            ("bits of the busiest port", busiest_bits(own, e, arch), port_bits(here, e, arch)),
        ):
            lines += [
                f"{c.name} {key}: {what} {got.get(key, 0)}, walked {float(want.get(key, 0))}"
                for key in got | want
                if abs(got.get(key, 0) - want.get(key, 0)) > 1e-6
            ]
    for i, (row, peak) in enumerate(zip(found.segments, walked.peaks, strict=False)):
        held, less = dict(row.peak_bits), walked.less[i]
        word = max(p.bits or arch.word_bits for e in workload.einsums for p in e.tensors())
        if held.keys() != peak.keys() or any(
            not peak[level] - less[level] - word * (less[level] > 0) <= held[level] <= peak[level]
            for level in peak
        ):
            lines.append(
                f"segment {i + 1} holds {held}, walked {peak}, of which one takes the place of "
                f"another: {dict(less)}"
            )
    need = max(outermost(arch, workload, schedule))
    limits = [evaluate(with_outer(arch, bits), workload, schedule) for bits in (need, need - 1)]
    short = limits[1]
    if (
        not isinstance(limits[0], Solution)
        or not isinstance(short, Infeasible)
        or short.need_bytes != -(-need // 8)
        or short.level != arch.levels[0].name
    ):
        lines.append(f"the outermost level holds {need} bits, where {limits[0]} and {short}")
    return lines


@settings(max_examples=amount(150, 8), deadline=None)
@given(st.integers(0, 10**9))
def test_schedules_move_and_hold_what_a_walk_of_all_elements_does(seed: int) -> None:
    assert differences(seed) == []


@settings(max_examples=amount(100, 8), deadline=None)
@given(st.integers(0, 10**9))
def test_schedules_hold_elements_as_wide_as_levels_have_them(seed: int) -> None:
    """Energies are those of the walked elements, each as wide as it is there."""
    arch, workload, schedule = widened_schedule(Random(seed))
    assert compared(arch, workload, schedule) == []
    found, walked = evaluate(arch, workload, schedule), walk_schedule(arch, workload, schedule)
    assert isinstance(found, Solution)
    for c in found.einsums:
        e = next(e for e in workload.einsums if e.name == c.name)
        for level in arch.levels:
            want = sum(
                n * width(level.name, tensor, e, arch) / level.width_bits * getattr(level, f"{action}_pj")
                for (name, tensor, action), n in walked.tallies[c.name].total.items()
                if name == level.name and action in ("read", "write")
            )
            got = sum(p.energy_pj for p in c.price.parts if p.level == level.name and p.action != "leak")
            assert isclose(got, want, abs_tol=1e-6)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**9), st.booleans())
def test_what_leaks_does_so_for_the_latency_whatever_the_schedule(seed: int, part: bool) -> None:
    """A pipeline costs the same whether it is the whole schedule or a part of one; what a run takes back to
    back stands beside it.
    """
    arch, workload, schedule = random_schedule(Random(seed))
    leaky, tight = (
        replace(
            arch,
            levels=(replace(arch.levels[0], leak_mw=mw), *arch.levels[1:]),
            compute=replace(arch.compute, leak_mw=0.0),
            clock_ghz=0.5,
        )
        for mw in (3.0, 0.0)
    )
    found, still = (
        evaluate(leaky, workload, schedule, part=part),
        evaluate(tight, workload, schedule, part=part),
    )
    # where runs follow back to back more must fit
    if isinstance(found, Solution) and isinstance(still, Solution):
        rest = leaky.leak_mw() - tight.leak_mw()
        assert isclose(found.energy_pj, still.energy_pj + rest * found.latency_cycles / 0.5)
        assert isclose(
            found.energy_steady_pj, still.energy_steady_pj + rest * found.initiation_interval_cycles / 0.5
        )
        assert found.energy_steady_pj <= found.energy_pj
        assert "leakage over" not in found.certificate


def shared_sums(seed: int) -> tuple[Arch, Workload, Schedule]:
    """A random pipeline of which a stage that hands its result on shares out a summed rank over lanes,
    outside of its other loops.
    """
    rng = Random(seed)
    while True:
        arch, workload, schedule = random_schedule(rng)
        if not any(segment.pipelined for segment in schedule.segments):
            continue
        f, outer = arch.fanouts[0], arch.levels[arch.fanouts[0].outside - 1].name
        arch = replace(
            arch,
            levels=tuple(
                replace(level, skip_first_read=True) if level.name == outer else level
                for level in arch.levels
            ),
            fanouts=(replace(f, reduce=(True,) * len(f.dims)), *arch.fanouts[1:]),
        )
        e = {e.name: e for e in workload.einsums}
        segments = []
        for segment in schedule.segments:
            homes = {
                node.tensor
                for node in segment.nodes
                if isinstance(node, Store) and node.level == arch.levels[f.outside].name
            }
            branches = [
                _parted(rng, branch, e[branch.einsum], dict(f.dims))
                if e[branch.einsum].output.tensor in homes and segment.pipelined
                else branch
                for branch in segment.branches
            ]
            segments.append(replace(segment, branches=tuple(branches)))
        found = replace(schedule, segments=tuple(segments))
        if (
            found != schedule
            and not faults(arch, workload, found)
            and isinstance(evaluate(arch, workload, found), Solution)
        ):
            return arch, workload, found


def _parted(rng: Random, branch: Branch, e: Einsum, dims: dict[str, int]) -> Branch:
    used = {node.over for node in branch.mapping.nodes if isinstance(node, Loop)}
    sizes = {
        name: next((one.size for one in branch.region if one.dim == name), n)
        for name, n in dims.items()
        if name not in used
    }
    ranks = [rank for rank, n in e.extents if n > 1 and rank not in e.output.ranks()]
    if not ranks or max(sizes.values(), default=1) < 2:
        return branch
    rank, dim = rng.choice(ranks), rng.choice([name for name, n in sizes.items() if n > 1])
    tile = -(-e.sizes()[rank] // rng.randint(2, sizes[dim]))
    nodes = [
        replace(node, tile=min(node.tile, tile)) if isinstance(node, Loop) and node.rank == rank else node
        for node in branch.mapping.nodes
    ]
    return replace(branch, mapping=replace(branch.mapping, nodes=(Loop(rank, tile, dim), *nodes)))


@settings(max_examples=amount(20, 8), deadline=None)
@given(st.integers(0, 10**9))
def test_sums_that_lanes_of_a_stage_share_are_added_up_once_in_the_first(seed: int) -> None:
    assert compared(*shared_sums(seed)) == []


@settings(max_examples=amount(300, 8), deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=5), st.integers(1, 12), st.data())
def test_pipelines_take_what_a_walk_of_granules_takes(
    cycles: list[int], granules: int, data: st.DataObject
) -> None:
    """A stage starts a granule when it is done with the one before, those it reads are made, and there is
    room: a tensor's home holds as many granules as there are stages from its maker to its last reader, both
    included. In a chain to the cycle; elsewhere the closed form has stages wait for others in the order of
    the text, and is never faster.
    """
    count = len(cycles)
    reads = {s: data.draw(st.sets(st.integers(0, s - 1))) if s else set() for s in range(count)}
    chain = all(s - 1 in reads[s] for s in range(1, count))
    last = {p: max([s for s in range(count) if p in reads[s]], default=p) for p in range(count)}
    done: dict[tuple[int, int], int] = {}
    for b in range(granules):
        for s in range(count):
            room = b - (last[s] - s + 1)
            waits = [
                done.get((s, b - 1), 0),
                *(done[p, b] for p in reads[s]),
                done.get((last[s], room), 0) if room >= 0 else 0,
            ]
            done[s, b] = max(waits) + cycles[s]
    walked = max(done.values())
    assert walked == filled_cycles(cycles, granules) if chain else walked <= filled_cycles(cycles, granules)


def shared_trips(seed: int) -> tuple[Problem, Mapping, list[int], list[Einsum]]:
    """A nest below shared loops in time, with no node but the outermost ones above the fork: the problem, its
    nest, and the einsum of every trip.
    """
    rng = Random(seed)
    ranks: list[str] = []
    while not ranks:  # a scalar has no rank to loop over
        e, arch, mapping = random_case(rng)
        ranks = [
            rank
            for rank in e.sizes()
            if rank in e.output.ranks() and all(rank not in p.partial_ranks() for p in e.tensors())
        ]
    arch = replace(arch, overlap="buffered", fanouts=tuple(replace(f, systolic="") for f in arch.fanouts))
    lead = next(
        i
        for i, node in enumerate(mapping.nodes)
        if not (isinstance(node, Store) and node.level == arch.levels[0].name)
    )
    rank = rng.choice(ranks)
    tile = rng.randint(1, e.sizes()[rank])
    trips = [min(tile, e.sizes()[rank] - low) for low in range(0, e.sizes()[rank], tile)]
    nest = Mapping(
        tuple(
            replace(node, tile=min(node.tile, tile)) if isinstance(node, Loop) and node.rank == rank else node
            for node in mapping.nodes[lead:]
        )
    )
    around = Boundary((*mapping.nodes[:lead], Loop(rank, tile)), forked=True)
    return (
        Problem(arch, e, "latency", around),
        nest,
        trips,
        [replace(e, extents=tuple((r, n if r == rank else had) for r, had in e.extents)) for n in trips],
    )


@settings(max_examples=amount(150, 8), deadline=None)
@given(st.integers(0, 10**9))
def test_every_trip_of_shared_loops_starts_with_empty_levels(seed: int) -> None:
    """Trips cost what each costs alone where all are alike, and never more than these: the closed form adds
    up port times of all trips.
    """
    problem, nest, trips, each = shared_trips(seed)
    whole = whole_nest(problem.boundary, nest)
    c = counted(whole, problem.einsum, problem.arch)
    found = price(c.rows, problem.einsum, problem.arch, c.timed, len(problem.boundary.outer))
    alone = Mapping(tuple(node for i, node in enumerate(whole.nodes) if i != len(problem.boundary.outer) - 1))
    cycles = [price_mapping(alone, e, problem.arch) for e in each]
    straight = price(c.rows, problem.einsum, problem.arch, c.timed)
    assert found.latency_cycles >= straight.latency_cycles * (1 - 1e-9)
    total = sum(one.latency_cycles for one in cycles)
    assert found.latency_cycles <= total * (1 + 1e-9)
    if len(set(trips)) == 1:
        assert isclose(found.latency_cycles, total)


@settings(max_examples=amount(60), deadline=None, derandomize=True)
@given(st.integers(0, 2**32))
@example(9)  # a tile that would sink below the fork: one nest of sixty has one
def test_fused_schedules_take_what_a_walk_in_time_of_all_trips_takes(seed: int) -> None:
    """Never more, and as much where nothing contends and trips are alike. It kills: tiles that sink below the
    fork, trips that find levels full.
    """
    assert timed(seed).fault == ""
    assert timed(seed, with_ports=True).fault == ""
