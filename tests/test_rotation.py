"""Tiles that lanes share out and pass round: closed forms against a walk of every word, what is refused, and
by hand.

Mutants that the walk kills: M steps per pass for M - 1, a ring without the way back, parts filled into all
lanes, passes left out.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dse.mapping.nest import Mapping, from_data, parse, to_data
from dse.mapping.schedule import parse_schedule
from dse.sim.counts.counts import nest_sums
from dse.sim.einsum import boundary
from dse.sim.einsum.boundary import ALONE
from dse.sim.einsum.evaluate import Solution
from dse.sim.levels import network, rotation
from dse.sim.schedule.graph import evaluate
from hw.arch import Arch, Compute, Fanout, Level
from tests.amount import amount
from tests.rings import Walk, links, random_ring, rounds
from tests.test_schedule import FC, NODES, PIPE, lines
from workloads.einsum import Einsum, einsum


def drawn(seed: int) -> tuple[Arch, Einsum, Mapping]:
    """A random nest whose tile can be shared."""
    rng = Random(seed)
    while True:
        arch, e, nest = random_ring(rng)
        if not rotation.faults(nest, e, arch):
            return arch, e, nest


def unlike(seed: int) -> str:
    """What closed forms and the walk say differently."""
    arch, e, nest = drawn(seed)
    walked = Walk(arch, e, nest).run()
    got = {
        (row.level, row.tensor, row.action): row.elems
        for row in boundary.counted(ALONE, nest, e, arch).rows
        if row.action in ("read", "write")
    }
    want = {key: n for key, n in walked.counts.items() if n and key[0] != "none"}
    lines = [
        f"{key}: {got.get(key, 0)}, walked {want.get(key, 0)}"
        for key in got | want
        if abs(got.get(key, 0) - want.get(key, 0)) > 1e-6
    ]
    ways = list(network.network_traffic(nest, nest_sums(nest, e, arch), arch))
    hops = {(way.tensor, way.action): way.energy_pj for way in ways if way.action in ("hop", "rotate")}
    lines += [
        f"hops {key}: {hops.get(key, 0)}, walked {walked.hops[key]}"
        for key in hops | walked.hops
        if abs(hops.get(key, 0) - walked.hops[key]) > 1e-6
    ]
    (one,) = nest.shares
    lanes = sum(way.bits / 8 for way in ways if way.tensor == one.tensor and way.action.endswith("endpoint"))
    fills, passed = (
        sum(way.bits / 8 for way in ways if way.tensor == one.tensor and way.action == action)
        for action in ("endpoint", "rotate_endpoint")
    )
    if abs(fills + passed / 2 - want.get(("BUF", one.tensor, "write"), 0)) > 1e-6:
        lines.append(f"lanes take and give {lanes}")
    (held,) = (
        row.elems
        for row in boundary.node_footprints(ALONE, nest, e, arch)
        if (row.level, row.tensor) == ("BUF", one.tensor)
    )
    lines += [f"room {held}, walked {walked.most}"] if held != walked.most else []
    return (
        "\n".join([f"seed {seed}", *walked.wrong, *lines, str(nest), str(arch.fanouts)])
        if lines or walked.wrong
        else ""
    )


@settings(max_examples=amount(200), deadline=None)
@given(st.integers(0, 10**9))
def test_shared_tiles_move_and_hold_what_a_walk_of_all_words_does(seed: int) -> None:
    assert unlike(seed) == ""


@settings(max_examples=amount(200), deadline=None)
@given(st.sets(st.integers(0, 9), min_size=1), st.sets(st.integers(0, 9), min_size=1))
def test_a_ring_has_the_links_of_all_its_steps(rows: set[int], columns: set[int]) -> None:
    way = rounds([(y, x) for y in rows for x in columns])
    assert network.ring(sorted(rows), sorted(columns)) == sum(
        len(links(a, b)) for a, b in zip(way, way[1:] + way[:1], strict=True)
    )


FREE = replace(NODES, overlap="free", fanouts=(replace(NODES.fanouts[0], hop_pj=1 / 8),))
SHARED = PIPE.replace("parfor n tile 3 over X", "share BUF W0 over X\nparfor m tile 1 over X").replace(
    "store BUF W0 T0", "store BUF T0 W0"
)


def test_a_pinned_weight_goes_round_in_every_granule() -> None:
    """Two lanes with a row each: half of the 24 words of W0 in either. Each granule passes through them once:
    12 words to either lane, over one link.
    """
    found = evaluate(FREE, FC, parse_schedule(SHARED))
    assert isinstance(found, Solution)
    counts = {
        (c.name, row.level, row.tensor, row.action): row.elems for c in found.einsums for row in c.counts
    }
    assert counts["a", "BUF", "W0", "write"] == 4 * 2 * 12
    assert counts["a", "BUF", "W0", "read"] == 8 * 6 * 4 + 4 * 2 * 12
    assert ("BUF", "W0", 12) in found.einsums[0].footprint
    assert ("a", "DRAM", "W0", "read") not in counts
    parts = {(part.tensor, part.action): part.energy_pj for part in found.einsums[0].price.parts}
    assert parts["W0", "rotate"] == 4 * 2 * 12
    assert ("W0", "hop") not in parts
    assert "share BUF W0 over X" in str(parse_schedule(SHARED))
    assert parse_schedule(str(parse_schedule(SHARED))) == parse_schedule(SHARED)


def test_room_that_copies_do_not_have_is_there_for_parts() -> None:
    small = replace(FREE, levels=(FREE.levels[0], replace(FREE.levels[1], capacity_bits=8 * 32)))
    whole, part = (
        evaluate(small, FC, parse_schedule(text))
        for text in (SHARED.replace("share BUF W0 over X\n", ""), SHARED)
    )
    assert str(whole) == "a: BUF needs 40 bytes, has 32"
    assert isinstance(part, Solution)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "share BUF W0 over X",
            "share BUF T0 over X",
            "work on the same tile of T0; split another rank there",
        ),
        (
            "share BUF W0 over X",
            "share BUF W0 over Z",
            "must name dimensions of one fan-out that the level stands inside of",
        ),
        ("share BUF W0 over X", "share BUF T1 over X", "must be a dense input of a that is stored at BUF"),
        (
            "parfor m tile 1 over X",
            "parfor m tile 2 over X",
            "work on the same tile of W0; split another rank there",
        ),
        (
            "for n tile 1\n          for k",
            "for n tile 2\n          for n tile 1\n          for k",
            "loop n makes 3 trips, which 2 PEs do not share out evenly",
        ),
    ],
)
def test_what_cannot_be_shared_is_said_in_one_line(old: str, new: str, said: str) -> None:
    assert SHARED.count(old) == 1
    (line,) = lines(SHARED.replace(old, new), FREE)
    assert line.startswith("mapping of a: share BUF")
    assert line.endswith(said)


def test_waits_for_parts_are_not_guessed() -> None:
    assert "stalls for parts that rotate" in lines(SHARED, replace(FREE, overlap="buffered"))[0]


def test_tiles_do_not_go_round_in_one_loop_twice_nor_out_of_step_with_what_lanes_fetch_together() -> None:
    e = einsum("C[m,n] += A[m,k] * B[k,n] * D[k]", {"m": 4, "n": 4, "k": 4}, "e")
    levels = tuple(Level(name, None, 8, 1.0, 1.0) for name in ("DRAM", "BUF"))
    arch = Arch(
        "mesh",
        levels,
        (Fanout("mesh", 1, (("Y", 2), ("X", 2)), (True, True), (True, True)),),
        Compute(1.0, 1.0),
        1.0,
        8,
        overlap="free",
    )
    head = "store DRAM A B C D\nparfor m tile 2 over Y\nparfor n tile 2 over X\nstore BUF C B A\n"
    tail = "for k tile 1\nfor m tile 1\nfor n tile 1\nmac"
    good = parse(
        f"share BUF B over Y\n{head.replace('C B A', 'C B A D')}for m tile "
        f"1\n{tail.replace('for m tile 1', '')}"
    )
    late = parse(f"share BUF B over Y\n{head}for m tile 1\nfor k tile 1\nstore BUF D\nfor n tile 1\nmac")
    assert rotation.faults(good, e, arch) == []
    assert rotation.faults(late, e, arch) == [
        "mapping of e: share BUF B over Y: PEs fetch D together inside of loop k, but are at different trips "
        "of it; raise its node above"
    ]
    twice = parse(
        "share BUF A over X\nshare BUF B over "
        f"Y\n{head.replace('DRAM A B C D', 'DRAM C').replace('C B A', 'C D B A')}{tail}"
    )
    assert rotation.faults(twice, e, arch) == [
        "mapping of e: share BUF B: another tile goes round in the same loop k; share one of them"
    ]
    one = parse(f"share BUF B over Y\n{head.replace('C B A', 'C D A B')}for m tile 1\nmac")
    assert rotation.faults(one, e, arch) == [
        "mapping of e: share BUF B over Y: no loop below it passes through the tile part by part"
    ]


@settings(max_examples=amount(100), deadline=None)
@given(st.integers(0, 10**9))
def test_texts_and_data_of_shared_tiles_are_read_as_they_are_printed(seed: int) -> None:
    _, _, nest = drawn(seed)
    assert parse(str(nest)) == nest
    assert from_data(to_data(nest)) == nest


def test_a_held_weight_crosses_the_mesh_once() -> None:
    """Streamed W0 of a stage: 24 words from the corner to lanes (0, 0) and (0, 1), in each of four granules,
    or in the first alone.
    """
    text = PIPE.replace("weights pinned\n", "").replace("store DRAM T0 T2", "store DRAM T0 T2 W0 W1")
    text = text.replace("parfor n tile 3 over X", "parfor m tile 1 over X")
    hops = []
    for more in ("", "hold BUF W0\n      "):
        found = evaluate(
            FREE, FC, parse_schedule(text.replace("parfor m tile 1 over X", f"{more}parfor m tile 1 over X"))
        )
        assert isinstance(found, Solution)
        hops.append(
            sum(
                part.energy_pj
                for part in found.einsums[0].price.parts
                if (part.tensor, part.action) == ("W0", "hop")
            )
        )
    assert hops == [4 * 24, 24]


def test_a_tile_that_other_einsums_read_too_is_not_shared_out() -> None:
    text = """segment
  store DRAM T0 W0 W1 T2
  for m tile 2
    store BUF T1
    parfor m tile 1 over X
      store BUF T0
      einsum a
        share BUF T0 over X
        for n tile 1
          for k tile 1
            mac
      einsum b with m = p
        for n tile 1
          for k tile 1
            mac"""
    arch = replace(
        FREE,
        levels=(FREE.levels[0], Level("GLB", None, 8, 1.0, 1.0), FREE.levels[1]),
        fanouts=(replace(FREE.fanouts[0], outside=2),),
    )
    assert lines(text.replace("store BUF T1", "store GLB T1"), arch)[0].endswith(
        "shared with other einsums of the segment; share one of the einsum's own nest"
    )
