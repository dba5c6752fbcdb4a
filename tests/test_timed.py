"""Cycles: the closed form of dse/sim/counts/latency.py against the walk in time of tests/timed.py, and what
the walk itself must do.

Mutants that these tests kill: the first lane taken for the busiest, a fill that overlaps without room (a
single-buffered level timed as a double-buffered one, in the closed form and in the walk), and three of
`double_buffer_cycles`, each one of its conditions left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from math import inf
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dse.mapping.nest import Loop, Mapping, faults, parse
from dse.sim.counts.counts import count
from dse.sim.counts.latency import PortTimes, double_buffer_cycles, latency
from hw.arch import Arch, Compute, Fanout, Level
from tests.amount import amount
from tests.nests import KINDS, ported, random_einsum, random_mapping, sliced_padding, widened
from tests.port_times import closed_form, first_lane, moves, port_times, rounds, trip_sizes
from tests.streams import described
from tests.timed import alike, walk
from tests.unrolled import Program, program, words
from workloads.einsum import Einsum, einsum

POINTS = 400  # iterations of a nest at most


def random_machine(rng: Random) -> Arch:
    """One to three on-chip levels, each single- or double-buffered, up to two fan-outs; ports of all kinds of
    speed.
    """
    depth = rng.randint(2, 4)
    levels = tuple(
        Level(
            f"L{v}",
            None,
            8,
            1.0,
            1.0,
            rng.choice([inf, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0]),
            rng.choice(["shared", "separate"]),
            double_buffer=v > 0 and rng.random() < 0.5,
            bypass=v > 0,
            skip_first_read=rng.random() < 0.8,
        )
        for v in range(depth)
    )
    fanouts = []
    for i, outside in enumerate(sorted(rng.sample(range(1, depth + 1), rng.randint(0, 2)))):
        dims = tuple((f"{axis}{i}", rng.randint(2, 3)) for axis in "XY"[: rng.choice((1, 1, 2))])
        fanouts.append(
            Fanout(
                f"array{i}",
                outside,
                dims,
                tuple(rng.random() < 0.6 for _ in dims),
                tuple(rng.random() < 0.6 for _ in dims),
            )
        )
    return Arch("random", levels, tuple(fanouts), Compute(1.0, 0.5, rng.choice([1.0, 1.0, 2.0, 0.5])), 1.0, 8)


def random_nest(seed: int) -> tuple[Einsum, Arch, Mapping]:
    rng = Random(seed)
    while True:
        e, arch = random_einsum(rng, KINDS), random_machine(rng)
        if e.points() <= POINTS:
            mapping = random_mapping(rng, e, arch)
            own = described(rng, arch) if seed % 4 == 3 else ported(widened(arch, e, 3), e, 3)
            return e, own, mapping


@settings(max_examples=amount(100), deadline=None)
@given(st.integers(0, 2**32))
def test_first_fills_and_last_drains_are_products_over_ranks(seed: int) -> None:
    """Loops below the restarts of a level and above where its tile rests make their first or their last trip
    only; all others all.
    """
    e, arch, mapping = random_nest(seed)
    p = program(
        mapping,
        e,
        replace(
            arch,
            levels=tuple(replace(level, bandwidth=1.0, ports="separate", bits=()) for level in arch.levels),
        ),
    )
    periods, begun = [(0, len(p.blocks))], 0
    for v in range(len(arch.levels)):
        for node in (
            node
            for node in p.nodes
            if node.level == v and not node.tensor.partial_ranks() and not sliced_padding(e)
        ):
            expected = 1
            for rank, extent in e.extents:
                trips = "last" if node.output else "first"
                cuts = [
                    (loop.tile, "lanes" if loop.over else trips if i >= begun else "all")
                    for i, loop in enumerate(mapping.nodes[: node.rest])
                    if isinstance(loop, Loop) and loop.rank == rank
                ]
                sizes = trip_sizes(extent, cuts)
                expected *= (
                    sum(size * n for size, n in sizes.items())
                    if rank in node.tensor.ranks()
                    else sizes.total()
                )
            moved = moves([node], periods).last if node.output else moves([node], periods).first
            own = sum(cycles for work in moved for (level, _, _), cycles in work.items() if level == v)
            assert own == expected
        if not p.double[v]:
            periods = [piece for period in periods for piece in rounds(p, v, period)]
            begun = max([begun, *(node.rest for node in p.nodes if node.level == v)])


@dataclass(frozen=True, slots=True)
class Compared:
    """One nest, timed twice. contended: some port was wanted by two at once; even: no, and all rounds are
    alike.
    """

    walked: Fraction
    closed: Fraction
    contended: bool
    even: bool
    fault: str = ""


def compared(seed: int) -> Compared:
    """Both times of a seed's nest; fault: what must not be."""
    e, arch, mapping = random_nest(seed)
    assert faults(mapping, e, arch) == []
    p = program(mapping, e, arch)
    cycles, contended = walk(p)
    closed, even = closed_form(p), not contended and alike(p)
    anyhow, _ = walk(p, Random(seed))
    levels, steps = port_times(p)
    wrong = {
        "above the walk": closed > cycles,
        f"above that with ports in random order, {float(anyhow)}": closed > anyhow,
        "below the walk where nothing contends": even and closed < cycles,
        "below that of free overlap": closed < max(steps, *(level.busy for level in levels)),
        "below that of a steady run": closed < latency(levels, steps, steady=True),
    }
    lines = [
        f"seed {seed}: closed form {float(closed)} {name}, {float(cycles)}\n{e}\n{arch}\n{mapping}"
        for name, holds in wrong.items()
        if holds
    ]
    return Compared(cycles, closed, contended, even, "\n".join(lines))


@settings(max_examples=amount(150), deadline=None, derandomize=True)
@given(st.integers(0, 2**32))
def test_closed_form_is_never_above_the_walk_and_equal_where_nothing_contends(seed: int) -> None:
    assert compared(seed).fault == ""


@settings(max_examples=amount(100), deadline=None)
@given(st.integers(0, 2**32))
def test_a_walk_moves_what_the_counts_say(seed: int) -> None:
    e, arch, mapping = random_nest(seed)
    names = [level.name for level in arch.levels]
    rows = Counter(
        {
            (names.index(r.level), r.tensor, r.action): r.elems
            for r in count(mapping, e, arch)
            if r.level in names
        }
    )
    moved = {key: n for key, n in words(program(mapping, e, arch).moved).items() if n}
    assert moved == {key: n for key, n in rows.items() if n}  # rows of ports alone have no elements


def row_by_row(bandwidth: float, double: bool, ports: str, bits: int = 8) -> Program:
    """Five rows of A through a buffer; four steps each; fill 4 / bandwidth, drain bits / 8 / bandwidth
    cycles.
    """
    e = einsum("C[m,n] += A[m,k] * B[k,n]", {"m": 5, "n": 1, "k": 4}, bits={"C": bits})
    levels = (
        Level("DRAM", None, 8, 1.0, 1.0, bandwidth, ports),
        Level("GLB", None, 8, 1.0, 1.0, double_buffer=double),
    )  # type: ignore[arg-type]
    nest = "store DRAM A C\nstore GLB B\nfor m tile 1\n store GLB A C\n for n tile 1\n for k tile 1\n mac"
    return program(parse(nest), e, Arch("rows", levels, (), Compute(1.0, 1.0), 1.0, 8))


@pytest.mark.parametrize(
    ("bandwidth", "double", "ports", "bits", "cycles"),
    [
        (1.0, True, "separate", 8, 4 + 5 * 4 + 1),  # compute hides all but the first fill and the last drain
        # fills follow each other; the last row is computed and drained after them
        (0.5, True, "separate", 8, 5 * 8 + 4 + 2),
        (1.0, True, "separate", 96, 4 + 4 + 5 * 12),  # drains follow each other, after the first row
        # the port never rests, but for the last row's steps beyond the drain before it
        (0.5, True, "shared", 8, 5 * (8 + 2) + 4 - 2),
        (1.0, False, "shared", 8, 5 * (4 + 4 + 1)),  # one after the other
        (1.0, False, "separate", 8, 4 + 5 * 4 + 4 * 4 + 1),  # a row leaves while the next one comes
    ],
)
def test_one_buffer(bandwidth: float, double: bool, ports: str, bits: int, cycles: int) -> None:
    p = row_by_row(bandwidth, double, ports, bits)
    assert (walk(p)[0], closed_form(p)) == (cycles, cycles)


def test_a_level_inside_a_single_buffered_one_starts_anew_in_every_round() -> None:
    """GLB holds a row of 4 words (single), RF a word (double); a word is used for 2 steps. Per row 4 + (1 +
    8), with no last drain.
    """
    e = einsum("C[m,n] += A[m,k] * B[k,n]", {"m": 3, "n": 2, "k": 4})
    levels = (
        Level("DRAM", None, 8, 1.0, 1.0, 1.0, "separate"),
        Level("GLB", None, 8, 1.0, 1.0, 1.0, "separate"),
        Level("RF", None, 8, 1.0, 1.0, double_buffer=True),
    )
    nest = (
        "store RF B C\nstore DRAM A\nfor m tile 1\n store GLB A\n for k tile 4\n for k tile 1\n store RF "
        "A\n for n tile 1\n mac"
    )
    arch = Arch("rows", levels, (), Compute(1.0, 1.0), 1.0, 8)
    p = program(parse(nest), e, arch)
    single = closed_form(p)
    assert walk(p)[0] == single
    q = replace(p, double=(True, True, True))
    assert walk(q)[0] == closed_form(q) < single


def padded() -> Program:
    """Three lanes of a padded row: the first and the last see three words of the input, the one between
    four."""
    e = einsum("O[p] += I[p+r-1] * F[r]", {"p": 6, "r": 3}, sizes={"I": (6,)})
    levels = Level("DRAM", None, 8, 1.0, 1.0), Level("RF", None, 8, 1.0, 1.0, 0.25, "separate")
    nest = "store DRAM I F O\nparfor p tile 2 over X\n store RF I\n for r tile 1\n for p tile 1\n mac"
    return program(
        parse(nest),
        e,
        Arch(
            "padded", levels, (Fanout("array", 1, (("X", 3),), (True,), (True,)),), Compute(1.0, 1.0), 1.0, 8
        ),
    )


def test_the_first_lane_is_not_the_busiest() -> None:
    p = padded()
    assert closed_form(p) == walk(p)[0] == 4 * 4 + 6 * 4
    assert closed_form(first_lane(p)) < closed_form(p)


def test_a_fill_that_overlaps_without_room() -> None:
    honest = row_by_row(1.0, False, "shared")
    wrong = replace(honest, double=(False, True))
    assert closed_form(wrong) < walk(honest)[0]
    assert closed_form(honest) > walk(wrong)[0]


def hierarchy() -> Program:
    """GLB holds outputs (double), LB inputs and outputs (single): the inputs of the last round are there
    before the drains leave room for its outputs.
    """
    e = einsum("Y[a,b] = A[b,a]", {"a": 4, "b": 9})
    levels = (
        Level("DRAM", None, 8, 1.0, 1.0, 1.0, "separate"),
        Level("GLB", None, 8, 1.0, 1.0, 1.0, "separate", double_buffer=True),
        Level("LB", None, 8, 1.0, 1.0, 8.0),
    )
    nest = (
        "store DRAM A Y\nstore LB A\nfor a tile 1\n store GLB Y\n store LB Y\n parfor b tile 3 over X\n "
        "for b tile 1\n mac"
    )
    return program(
        parse(nest),
        e,
        Arch(
            "hierarchy",
            levels,
            (Fanout("array", 3, (("X", 3),), (True,), (True,)),),
            Compute(1.0, 1.0),
            1.0,
            8,
        ),
    )


MUTANTS: dict[str, tuple[Callable[[], Program], Callable[..., float]]] = {
    "fills of the inside wait for drains": (
        hierarchy,
        lambda between, drains, before, head, tail, steps: double_buffer_cycles(
            between, drains, before, head, tail, tail
        ),
    ),
    "no drain beside the last round": (
        lambda: row_by_row(0.5, True, "shared"),
        lambda between, drains, before, head, tail, steps: between + tail,
    ),
    "no fill beside the first round": (
        lambda: row_by_row(0.5, True, "shared"),
        lambda between, drains, before, head, tail, steps: head + between,
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_condition_left_out_is_above_the_walk(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, mutant = MUTANTS[name]
    p = make()
    assert closed_form(p) <= walk(p)[0]
    monkeypatch.setattr("tests.port_times.double_buffer_cycles", mutant)
    assert closed_form(p) > walk(p)[0]


def test_steady_runs_hide_first_fills_only_with_room() -> None:
    double, single = (
        PortTimes(
            is_double,
            1,
            busy=9,
            serve=0,
            first=4,
            last=1,
            between=4,
            all_transfers=9,
            one_port=4,
            double_buffer_time=4,
        )
        for is_double in (True, False)
    )
    assert [
        latency([level], 20, steady=steady) for level in (double, single) for steady in (False, True)
    ] == [25, 20, 29, 29]
