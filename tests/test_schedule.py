"""Schedules as text and values, what is refused, and what a schedule of single einsums costs."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dse.explain import values
from dse.frontend import api
from dse.mapping.nest import Infeasible, parse
from dse.mapping.schedule import Branch, Schedule, Segment, load, parse_schedule, sequential, to_text
from dse.sim.einsum.evaluate import EinsumCost, Problem, Solution, einsum_cost
from dse.sim.schedule.graph import UNTIMED, evaluate, on_chip
from hw import machine
from hw.arch import Arch, Compute, Fanout, Level
from tests.amount import amount
from tests.nests import random_arch, random_case, random_einsum, random_mapping
from tests.schedules import random_schedule
from workloads import catalog
from workloads.einsum import Einsum, einsum
from workloads.graph import Workload

FC = Workload(
    "fc",
    (
        einsum("T1[m,n] += T0[m,k] * W0[k,n]", {"m": 8, "n": 6, "k": 4}, "a"),
        einsum("T2[p,n] += T1[p,k] * W1[k,n]", {"p": 8, "n": 2, "k": 6}, "b"),
    ),
    frozenset({"W0", "W1"}),
)
NODES = Arch(
    "nodes",
    (Level("DRAM", None, 8, 100.0, 100.0, 4.0, bypass=False), Level("BUF", 8 * 64, 8, 1.0, 1.0)),
    (Fanout("grid", 1, (("Y", 2), ("X", 4)), (True,) * 2, (True,) * 2),),
    Compute(0.5, 0.5),
    1.0,
    8,
)
FUSED = """segment
  store DRAM T0 W0 W1 T2
  for m tile 2
    store BUF T1
    einsum a
      store BUF W0
      for n tile 1
        for k tile 1
          for m tile 1
            mac
    einsum b with m = p
      store BUF T2
      for k tile 1
        for n tile 1
          for p tile 1
            mac"""
KEPT = """retain GLB T1 1/2
segment
  einsum a
    store DRAM T0 W0 T1
    for m tile 1
      for n tile 1
        for k tile 1
          mac
segment
  einsum b
    store DRAM T1 W1 T2
    for p tile 1
      for n tile 1
        for k tile 1
          mac"""
PIPE = """weights pinned
segment
  store DRAM T0 T2
  for m tile 2
    store BUF T1
    einsum a on Y[0:1] X[0:2]
      parfor n tile 3 over X
        store BUF W0 T0
        for n tile 1
          for k tile 1
            for m tile 1
              mac
    einsum b on Y[1:2] X[0:1] with m = p
      store BUF W1 T1 T2
      for k tile 1
        for n tile 1
          for p tile 1
            mac"""


def lines(text: str, arch: Arch = NODES, workload: Workload = FC) -> list[str]:
    with pytest.raises(ValueError) as fault:
        evaluate(arch, workload, parse_schedule(text))
    return str(fault.value).splitlines()


@settings(max_examples=amount(150), deadline=None)
@given(st.integers(0, 10**9))
def test_texts_are_read_as_they_are_printed(seed: int) -> None:
    _, _, schedule = random_schedule(Random(seed))
    assert parse_schedule(str(schedule)) == schedule
    assert str(parse_schedule(str(schedule))) == str(schedule)


def test_indentation_and_spaces_are_free() -> None:
    loose = "\n".join(
        f" {line.strip()}  "
        for line in PIPE.replace("m = p", "m  =p").replace("Y[1:2] X[0:1]", " Y[1:2]  X[0:1]").splitlines()
    )
    assert parse_schedule(loose) == parse_schedule(PIPE)
    assert str(parse_schedule(loose)) == PIPE


@pytest.mark.parametrize("seed", range(amount(60)))
def test_a_single_einsum_costs_what_it_costs_alone(seed: int) -> None:
    e, arch, mapping = random_case(Random(seed))
    e = replace(e, name="one")
    one = Workload("one", (e,))
    alone = einsum_cost(Problem(arch, e, "energy"), mapping)
    found = evaluate(arch, one, sequential(one, {"one": mapping}))
    assert isinstance(alone, EinsumCost)
    assert isinstance(found, Solution)
    assert found.einsums == (alone,)
    assert (found.energy_pj, found.latency_cycles, found.initiation_interval_cycles) == (
        alone.energy_pj,
        alone.latency_cycles,
        alone.price.initiation_interval_cycles,
    )
    head = next((i for i, node in enumerate(mapping.nodes) if i > seed % 5), 0)
    split = Schedule(
        (Segment((Branch("one", replace(mapping, nodes=mapping.nodes[head:])),), mapping.nodes[:head]),)
    )
    forked = evaluate(arch, one, split)
    assert isinstance(forked, Solution)
    assert (forked.energy_pj, forked.latency_cycles, forked.einsums[0].counts) == (
        alone.energy_pj,
        alone.latency_cycles,
        alone.counts,
    )


def test_equal_einsums_are_costed_once_under_names_of_their_own() -> None:
    rng = Random(3)
    e = replace(random_einsum(rng, ("gemm",)), name="a")
    twin = einsum("T[x,y] += C[x,z] * V[z,y]", dict(zip("xyz", (n for _, n in e.extents), strict=True)), "b")
    arch = random_arch(rng)
    both = (
        Workload("both", (e, twin))
        if twin.sizes() == {"x": e.sizes()["m"], "y": e.sizes()["n"], "z": e.sizes()["k"]}
        else Workload("both", (e,))
    )
    mapping = random_mapping(rng, e, arch)
    found, one = (
        evaluate(arch, both, sequential(both, {"a": mapping})),
        evaluate(arch, Workload("a", (e,)), sequential(Workload("a", (e,)), {"a": mapping})),
    )
    assert isinstance(found, Solution)
    assert isinstance(one, Solution)
    assert [c.count for c in found.einsums] == [len(both.einsums)]
    assert found.energy_pj == len(both.einsums) * one.energy_pj


def test_a_schedule_is_printed_with_its_segments() -> None:
    found = evaluate(NODES, FC, parse_schedule(PIPE))
    assert isinstance(found, Solution)
    mapped = api.Mapped(NODES, FC, found)
    text, said = mapped.text(), values.document(NODES, FC, found)
    assert "a | b" in text
    assert "T1 at BUF" in text
    assert to_text(parse_schedule(PIPE), FC) in text
    assert "for m in [0:4) tile 2" in text
    assert "steady state energy" not in text  # nothing leaks
    assert str(parse_schedule(said["schedule"])) == PIPE
    assert said["segments"][0]["pipeline_tiles"] == 4
    assert said["on_chip"] == [{"tensor": "T1", "level": "BUF", "share": "all"}]
    assert sum(one.energy_pj for one in values.components(NODES, found)) == pytest.approx(found.energy_pj)


def test_a_fused_tensor_stays_on_the_chip() -> None:
    found = evaluate(NODES, FC, parse_schedule(FUSED))
    assert isinstance(found, Solution)
    assert [(one.tensor, one.level) for one in on_chip(found)] == [("T1", "BUF")]
    moved = {
        (c.name, row.tensor, row.action): row.elems
        for c in found.einsums
        for row in c.counts
        if row.level == "DRAM"
    }
    assert not [key for key in moved if key[1] == "T1"]
    assert moved["b", "T2", "write"] == 16
    assert moved["a", "W0", "read"] == 4 * 24
    assert found.segments[0].peak_bits == (("BUF", 8 * (2 * 6 + 2 * 2)),)


def test_a_pipeline_is_billed_by_hand() -> None:
    """Four granules. Stage a: two lanes, 24 products each of a granule; stage b one lane, 24. T1 is read out
    of stage a once, and written into b's copy.
    """
    found = evaluate(NODES, FC, parse_schedule(PIPE))
    assert isinstance(found, Solution)
    assert found.segments[0].pipeline_tiles == 4
    counts = {
        (c.name, row.level, row.tensor, row.action): row.elems for c in found.einsums for row in c.counts
    }
    assert counts["a", "DRAM", "T0", "read"] == 32
    assert ("a", "DRAM", "W0", "read") not in counts
    assert counts["a", "BUF", "T0", "write"] == 64
    assert counts["b", "BUF", "T1", "write"] == 48
    assert counts["b", "BUF", "T1", "read"] == 48 + 96
    assert found.segments[0].on_chip == (("T1", "BUF"),)
    assert dict(found.segments[0].peak_bits)["BUF"] == 8 * max(2 * 6 + 12 + 8, 12 + 12 + 4)
    stages = found.segments[0].stage_cycles
    assert found.latency_cycles == max(sum(stages) + 3 * max(stages), 12.0)
    assert found.initiation_interval_cycles == 4 * max(stages)
    assert "pinned" in found.certificate


def test_the_lane_that_holds_most_is_asked_most() -> None:
    """Of each granule of T1 the first lane of stage a holds 8 words of 12, which stage b reads: its port is
    that of the stage.
    """
    slow = replace(NODES, levels=(NODES.levels[0], replace(NODES.levels[1], bandwidth=1 / 16)))
    found = evaluate(
        slow, FC, parse_schedule(PIPE.replace("parfor n tile 3 over X", "parfor n tile 4 over X"))
    )
    assert isinstance(found, Solution)
    own = sum(
        row.busiest_elems for c in found.einsums for row in c.counts if (c.name, row.level) == ("a", "BUF")
    )
    assert found.segments[0].stage_cycles[0] == 16 * (own + 4 * 8) / 4


WAITING = replace(
    NODES,
    levels=(NODES.levels[0], Level("GLB", None, 8, 10.0, 10.0, 4.0), NODES.levels[1]),
    fanouts=(replace(NODES.fanouts[0], outside=2),),
)


@pytest.mark.parametrize(("text", "says"), [(PIPE, True), (FUSED, False)])
def test_times_that_know_no_waits_are_named(text: str, says: bool) -> None:
    """On a machine whose fills wait: stages; where all overlaps nothing is left out."""
    said = "busy times: fill stalls are not counted"
    found, free = (
        evaluate(replace(WAITING, overlap=overlap), FC, parse_schedule(text))
        for overlap in ("buffered", "free")
    )
    assert isinstance(found, Solution)
    assert isinstance(free, Solution)
    assert (said in found.certificate, said in free.certificate) == (says, False)
    assert says or found.latency_cycles > free.latency_cycles


def test_of_a_tensor_retained_in_part_the_rest_waits() -> None:
    """A thousandth of T1 on chip does not end the waits for what is fetched of it, row by row."""
    rows = KEPT.replace("    for p tile 1\n      for n", "    for p tile 1\n      store GLB T1\n      for n")

    def cycles(share: str) -> dict[str, float]:
        text = rows.replace("T1 1/2", f"T1 {share}") if share else rows.partition("\n")[2]
        found = evaluate(replace(WAITING, overlap="buffered"), FC, parse_schedule(text))
        assert isinstance(found, Solution)
        assert UNTIMED not in found.certificate
        return {c.name: c.latency_cycles for c in found.einsums}

    none, whole = cycles(""), cycles("1")
    assert none["b"] > whole["b"]
    for share in ("1/1000", "1/2", "999/1000"):
        part = float(Fraction(share))
        expected = {name: (1 - part) * none[name] + part * whole[name] for name in none}
        assert cycles(share) == pytest.approx(expected)


def test_a_pipeline_may_write_back_what_it_hands_on() -> None:
    """Home of T1: 3 columns of 2 rows in each of two lanes, two granules of it, whole though loops over its
    own ranks follow.
    """
    text = PIPE.replace("weights pinned\n", "").replace("store DRAM T0 T2", "store DRAM T0 T1 T2 W0 W1")
    text = text.replace("store BUF W0 T0\n        for n tile 1", "for n tile 1\n        store BUF W0 T0")
    found = evaluate(NODES, FC, parse_schedule(text))
    assert isinstance(found, Solution)
    assert found.segments[0].on_chip == ()
    moved = {
        (c.name, row.tensor, row.action): row.elems
        for c in found.einsums
        for row in c.counts
        if row.level == "DRAM"
    }
    assert moved["a", "T1", "write"] == 48
    assert ("a", "T1", "read") not in moved
    assert not [key for key in moved if key[:2] == ("b", "T1")]
    assert ("BUF", "T1", 12) in found.einsums[0].footprint


def test_a_pinned_pipeline_of_an_mlp_on_kapla_multi() -> None:
    """DRAM: the image and the result once. MACs: all of them. Static: of the latency; of the steady cycles,
    where batches follow back to back.
    """
    mlp, arch = catalog.load("mlp_m:batch=64"), machine.arch(machine.load("kapla_multi"))
    found = evaluate(arch, *load(Path(__file__).parents[1] / "studies" / "mlp_pipeline.txt", mlp))
    assert isinstance(found, Solution)
    assert [one.tensor for one in on_chip(found)] == ["fc1", "fc2", "fc3"]
    pj: dict[str, float] = {}
    for c in found.einsums:
        for part in c.price.parts:
            pj[part.level] = pj.get(part.level, 0.0) + part.energy_pj
    word = arch.levels[0].read_pj
    assert pj["DRAM"] == pytest.approx(64 * (784 + 10) * word)
    assert pj["MAC"] == pytest.approx(mlp.macs() * 0.9984)
    assert found.energy_pj == pytest.approx(sum(pj.values()) + arch.leak_mw() * found.latency_cycles)
    assert found.energy_steady_pj == pytest.approx(
        sum(pj.values()) + arch.leak_mw() * found.initiation_interval_cycles
    )
    # tests/data/kapla_reference.json: weights streamed
    assert found.energy_pj < 0.5 * 1.1016e9
    assert found.initiation_interval_cycles < 0.25 * 62_548


@pytest.mark.parametrize(
    ("density", "near", "read", "fault"),
    [
        (0.5, False, "X[m,k]", True),
        (0.5, True, "X[m,k]", False),
        (1.0, False, "X[m,k]", False),
        (1.0, True, "X[m,0]", True),
    ],
)
def test_a_tensor_from_outside_that_stays_was_all_brought_in(
    density: float, near: bool, read: str, fault: bool
) -> None:
    """Where compute reads X straight, zeros of W keep half of it from being read; X[m,0] is a column. A later
    einsum would find what nobody brought in.
    """
    glb = Arch(
        "glb",
        (Level("DRAM", None, 8, 100.0, 100.0, 4.0, bypass=False), Level("GLB", 8 * 64, 8, 1.0, 1.0)),
        (),
        Compute(0.5, 0.5),
        1.0,
        8,
    )
    first = einsum(
        f"A[m] += {read} * W[k]", {"m": 2, "k": 3}, "a", density={"W": density}, sizes={"X": (2, 3)}
    )
    two = Workload("two", (first, einsum("B[p,q] = relu(X[p,q])", {"p": 2, "q": 3}, "b")), frozenset({"W"}))
    loops = "for m tile 1\nfor k tile 1\nmac"
    text = f"retain GLB X 1\nsegment\neinsum a\nstore DRAM X W A\n{'store GLB X' * near}\n{loops}\n"
    text += "segment\neinsum b\nstore DRAM X B\nfor p tile 1\nfor q tile 1\nmac"
    if fault:
        with pytest.raises(
            ValueError, match="retain GLB X: a brings it in, but does not read all that later einsums do"
        ):
            evaluate(glb, two, parse_schedule(text))
        return
    found = evaluate(glb, two, parse_schedule(text))
    assert isinstance(found, Solution)
    moved = {
        (c.name, row.tensor, row.action): row.elems
        for c in found.einsums
        for row in c.counts
        if row.level == "DRAM"
    }
    assert moved["a", "X", "read"] == 6
    assert ("b", "X", "read") not in moved


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "Y[0:1] X[0:2]",
            "Y[0:1] X[0:5]",
            "segment 1: einsum a on X[0:5] lies outside of the grid; X has PEs 0 to 3",
        ),
        ("Y[1:2] X[0:1]", "Y[0:2] X[1:2]", "segment 1: stages a and b share PEs of grid; give each its own"),
        (
            "Y[1:2] X[0:1]",
            "Z[1:2]",
            "segment 1: einsum b on Z: stages lie on regions of one array; take Y[0:2], X[0:4]",
        ),
        (
            "  for m tile 2",
            "  for m tile 3",
            "segment 1: unmatched pipeline tiles: tiles of 3 do not divide 8 (m); the tiles of a "
            "pipeline are equal",
        ),
        (
            " with m = p",
            "",
            "segment 1: shared loop m is no rank of b, which has p, n, k; say einsum b with m = RANK",
        ),
        (
            " with m = p",
            " with m = n",
            "segment 1: unmatched pipeline tiles: shared loop m runs over 8 in a, 2 in b; share "
            "loops over equal ranks",
        ),
        (
            "    store BUF T1\n",
            "",
            "segment 1: T1 goes from a to b, but no storage node above both holds it; add store "
            "LEVEL T1 there",
        ),
        (
            "weights pinned\n",
            "",
            "segment 1: W0 starts at BUF in a, where nothing brings it; add store DRAM W0, or say weights "
            "pinned",
        ),
        (
            "store DRAM T0 T2",
            "store DRAM T0",
            "segment 1: T2 of b never leaves BUF, but it is a result; add store DRAM T2",
        ),
        (
            "weights pinned",
            "weights pinned\nretain BUF T1 1/2",
            "retain BUF T1: BUF is inside an array: what lies spread over its PEs is not retained beside "
            "stages, nor where networks are priced; retain it outside of the array",
        ),
        (
            "store BUF W1 T1 T2",
            "hold BUF T1\nstore BUF W1 T1 T2",
            "mapping of b: hold BUF T1: must name a store of the einsum's own nest whose input no "
            "shared loop cuts",
        ),
    ],
)
def test_bad_schedules_say_one_line(old: str, new: str, said: str) -> None:
    assert PIPE.count(old) == 1
    assert said in lines(PIPE.replace(old, new))[0:1]


def test_sums_that_lanes_share_are_added_up_on_the_way_or_refused() -> None:
    parted = PIPE.replace("parfor n tile 3 over X", "parfor k tile 2 over X")
    found = evaluate(NODES, FC, parse_schedule(parted))
    assert isinstance(found, Solution)
    moved = {(row.tensor, row.action): row.elems for row in found.einsums[0].counts if row.level == "BUF"}
    size = next(e for e in FC.einsums if e.name == "a").output.stored_elems()
    whole = evaluate(NODES, FC, parse_schedule(PIPE))
    assert isinstance(whole, Solution)
    before = {(row.tensor, row.action): row.elems for row in whole.einsums[0].counts if row.level == "BUF"}
    # out of both lanes, into the first
    assert moved["T1", "read"] - before["T1", "read"] >= size
    assert moved["T1", "write"] - before["T1", "write"] >= size
    (row,) = (
        row
        for row in found.einsums[0].counts
        if (row.level, row.tensor, row.action) == ("BUF", "T1", "write")
    )
    assert row.busiest_elems == (row.elems - size) / 2 + size  # both lanes sum alike, the first one takes all
    alone = replace(NODES, fanouts=(replace(NODES.fanouts[0], reduce=(False, False)),))
    assert lines(parted, alone) == [
        "mapping of a: parfor k over X splits the sums of T1, which are not added up on the way "
        "there; split another rank"
    ]
    both = parted.replace("store DRAM T0 T2", "store DRAM T0 T1 T2")
    assert lines(both) == [
        "mapping of a: PEs share sums of T1, which leaves the chip too; split another rank"
    ]


@settings(max_examples=amount(300), deadline=None)
@given(st.integers(0, 10**9))
def test_spoilt_schedules_are_refused_in_lines(seed: int) -> None:
    """A word, a number or a line of a good schedule changed: priced, infeasible, or ValueError with lines."""
    rng = Random(seed)
    text = rng.choice([PIPE, FUSED, "retain BUF T1 1/2\n" + FUSED]).splitlines()
    for _ in range(rng.randint(1, 2)):
        at = rng.randrange(len(text))
        words = re.findall(r"\w+|\W+", text[at]) or [""]
        i = rng.randrange(len(words))
        words[i] = rng.choice(
            [
                "m",
                "n",
                "k",
                "p",
                "0",
                "1",
                "3",
                "99",
                "T1",
                "W0",
                "T2",
                "BUF",
                "DRAM",
                "X",
                "Y",
                "a",
                "b",
                "store",
                "for",
                "hold",
                "",
            ]
        )
        text[at] = "".join(words)
        text = rng.choice([text, text[:at] + text[at + 1 :], [*text[:at], text[at], *text[at:]], text])
    with suppress(ValueError):
        assert isinstance(evaluate(NODES, FC, parse_schedule("\n".join(text))), Solution | Infeasible)


def test_a_share_of_nothing_says_one_line() -> None:
    with pytest.raises(
        ValueError,
        match=r'^schedule, line 1: "retain BUF T1 1/0" share = 1/0 is no number; write e\.g\. 1/2$',
    ):
        parse_schedule("retain BUF T1 1/0\n" + FUSED)


def test_a_cyclic_schedule_says_one_line() -> None:
    a, b = (
        Segment((Branch(e.name, parse("store DRAM " + " ".join(p.tensor for p in e.tensors()) + "\nmac")),))
        for e in FC.einsums
    )
    with pytest.raises(
        ValueError,
        match=r"^schedule: cyclic, b \(segment 1\) reads T1 before a \(segment 2\) has made it; put a first$",
    ):
        evaluate(NODES, FC, Schedule((b, a)))
    with pytest.raises(ValueError, match=r"^schedule: einsum b has no place; add a segment with its nest$"):
        evaluate(NODES, FC, Schedule((a,)))


SQUARE = Workload(
    "square",
    (
        einsum("T1[m,n] += T0[m,k] * W0[k,n]", {"m": 4, "n": 4, "k": 4}, "a"),
        einsum("T2[p,n] += T1[p,k] * W1[k,n]", {"p": 4, "n": 4, "k": 4}, "b"),
    ),
    frozenset({"W0", "W1"}),
)


def test_sums_are_not_shared() -> None:
    """A trip over a part of a sum leaves no whole sum to read."""
    parts = FUSED.replace("for m tile 2\n    store", "for k tile 2\n    store").replace(" with m = p", "")
    said = (
        "segment 1: shared loop k cuts T1 into no whole tiles in a; what is passed on is tiled over "
        "ranks that stand alone in one of its dimensions"
    )
    assert said in lines(parts, workload=SQUARE)


def test_rows_are_not_read_as_columns() -> None:
    """Rows of T1 are made, columns of it read: equal extents do not make them one tile."""
    assert isinstance(evaluate(NODES, SQUARE, parse_schedule(FUSED)), Solution)
    crossed = FUSED.replace("with m = p", "with m = k").replace(
        "for k tile 1\n        for n tile 1\n          for p",
        "for p tile 1\n        for n tile 1\n          for k",
    )
    assert lines(crossed, workload=SQUARE) == [
        "segment 1: unmatched pipeline tiles: shared loops cut T1 in another way in b than in a; cut "
        "equal dimensions"
    ]


def test_a_fused_tensor_without_room_is_infeasible() -> None:
    small = replace(NODES, levels=(NODES.levels[0], replace(NODES.levels[1], capacity_bits=8 * 15)))
    found = evaluate(small, FC, parse_schedule(FUSED))
    assert isinstance(found, Infeasible)
    assert str(found) == "b: BUF needs 16 bytes, has 15"


def test_kept_words_are_not_loaded() -> None:
    nest = "store DRAM {0}\nstore GLB {0}\nfor {1} tile 1\nfor {2} tile 1\nfor {3} tile 1\nmac"
    arch = Arch("two", (NODES.levels[0], Level("GLB", None, 8, 1.0, 1.0)), (), Compute(0.5, 0.5), 1.0, 8)
    plain = sequential(
        FC, {"a": parse(nest.format("T0 W0 T1", *"mnk")), "b": parse(nest.format("T1 W1 T2", *"pnk"))}
    )
    moved = []
    for share in ("0", "1/4", "1"):
        keeps = parse_schedule(f"retain GLB T1 {share}").retained if share != "0" else ()
        found = evaluate(arch, FC, replace(plain, retained=keeps))
        assert isinstance(found, Solution)
        moved.append(
            [
                sum(
                    row.elems
                    for c in found.einsums
                    for row in c.counts
                    if (row.level, row.tensor) == ("DRAM", "T1")
                ),
                dict(found.segments[0].peak_bits)["GLB"] if found.segments else 0,
            ]
        )
    assert moved == [[96, 0], [72, 8 * (32 + 24 + 1 + 12)], [0, 8 * (32 + 24 + 48)]]


def test_a_remark_names_what_never_leaves_the_chip() -> None:
    """And only that: T0 is from outside, half of T1 leaves, and a loop carries T1 to its next iteration."""
    nest = "store DRAM {0}\nfor {1} tile 1\nfor {2} tile 1\nfor {3} tile 1\nmac"
    plain = sequential(
        FC, {"a": parse(nest.format("T0 W0 T1", *"mnk")), "b": parse(nest.format("T1 W1 T2", *"pnk"))}
    )
    carried = replace(FC, loop_state=(("T1", "T0"),))
    for line, workload, remarks in (
        ("retain GLB T1 1", FC, ["# T1 never leaves GLB: its stores further out count nothing"]),
        ("retain GLB T1 1/2", FC, []),
        ("retain GLB T1 1, 1/2 after b", FC, []),
        ("retain GLB W1 1", FC, []),
        ("retain GLB T1 1", carried, []),
    ):
        schedule = replace(plain, retained=parse_schedule(line).retained)
        text = to_text(schedule, workload)
        assert [one for one in text.splitlines() if one.startswith("#")] == remarks
        assert parse_schedule(text) == schedule


THREE = Workload(
    "three",
    (*FC.einsums, einsum("T3[m,n] += T1[m,k] * W2[k,n]", {"m": 8, "n": 3, "k": 6}, "c")),
    frozenset({"W0", "W1", "W2"}),
)
GLB = Arch("two", (NODES.levels[0], Level("GLB", None, 8, 1.0, 1.0)), (), Compute(0.5, 0.5), 1.0, 8)
NESTS = {
    name: parse(f"store DRAM {tensors}\nfor {a} tile 1\nfor {b} tile 1\nfor k tile 1\nmac")
    for name, tensors, a, b in (
        ("a", "T0 W0 T1", "m", "n"),
        ("b", "T1 W1 T2", "p", "n"),
        ("c", "T1 W2 T3", "m", "n"),
    )
}


def test_less_is_kept_for_a_later_reader() -> None:
    """48 words of T1: half stay for b, which asks 2 times for each, a quarter for c, which asks 3 times;
    three quarters are written out.
    """
    found = evaluate(
        GLB,
        THREE,
        replace(sequential(THREE, NESTS), retained=parse_schedule("retain GLB T1 1/2, 1/4 after b").retained),
    )
    assert isinstance(found, Solution)
    moved = {
        (c.name, row.level, row.action): row.elems
        for c in found.einsums
        for row in c.counts
        if row.tensor == "T1"
    }
    assert (moved["b", "DRAM", "read"], moved["b", "GLB", "read"]) == (48, 48)
    assert (moved["c", "DRAM", "read"], moved["c", "GLB", "read"]) == (108, 36)
    assert moved["a", "DRAM", "write"] == (48 * 4) / 2 + 48 / 4
    assert moved["a", "GLB", "read"] == 3 * 48 / 2 + 48 / 4
    assert [dict(row.peak_bits)["GLB"] for row in found.segments] == [8 * 24, 8 * 24, 8 * 12]
    assert str(found.schedule).startswith("retain GLB T1 1/2, 1/4 after b\n")
    assert "1/2, 1/4 after b of T1 is retained at GLB" in values.segments(found).note


def test_each_reader_finds_what_is_kept_by_then() -> None:
    four = replace(
        THREE,
        einsums=(
            *THREE.einsums,
            replace(THREE.einsums[2], name="d", output=replace(THREE.einsums[2].output, tensor="T4")),
        ),
    )
    nests = NESTS | {"d": parse(str(NESTS["c"]).replace("T3", "T4"))}
    found = evaluate(
        GLB,
        four,
        replace(
            sequential(four, nests),
            retained=parse_schedule("retain GLB T1 1, 1/2 after b, 1/4 after c").retained,
        ),
    )
    assert isinstance(found, Solution)
    moved = {
        (c.name, row.level): row.elems
        for c in found.einsums
        for row in c.counts
        if (row.tensor, row.action) == ("T1", "read")
    }
    assert [moved.get((name, "DRAM"), 0) for name in "bcd"] == [0, 144 / 2, 144 * 3 / 4]
    assert [dict(row.peak_bits)["GLB"] for row in found.segments] == [8 * 48, 8 * 48, 8 * 24, 8 * 12]


def moved_of(tensor: str, found: Solution | Infeasible) -> dict[tuple[str, str, str], float]:
    assert isinstance(found, Solution)
    return {
        (c.name, row.level, row.action): row.elems
        for c in found.einsums
        for row in c.counts
        if row.tensor == tensor
    }


def test_more_is_kept_once_a_reader_has_brought_it_in() -> None:
    """48 words of T1, all written out; b reads them there and brings half in, which c finds 3 times."""
    moved = moved_of(
        "T1",
        evaluate(
            GLB,
            THREE,
            replace(
                sequential(THREE, NESTS), retained=parse_schedule("retain GLB T1 0, 1/2 after b").retained
            ),
        ),
    )
    assert (moved["a", "DRAM", "write"], moved["b", "DRAM", "read"], moved["b", "GLB", "write"]) == (
        48 * 4,
        48 * 2,
        24,
    )
    assert (moved["c", "DRAM", "read"], moved["c", "GLB", "read"]) == (72, 72)


def test_what_comes_from_outside_is_kept_by_its_first_reader() -> None:
    """24 words of W1, read by b and once more by d, which finds all of them."""
    again = replace(THREE.einsums[1], name="d", output=replace(THREE.einsums[1].output, tensor="T4"))
    four = replace(THREE, einsums=(*THREE.einsums, again))
    nests = NESTS | {"d": parse(str(NESTS["b"]).replace("T2", "T4"))}
    found = evaluate(
        GLB, four, replace(sequential(four, nests), retained=parse_schedule("retain GLB W1 1").retained)
    )
    moved = moved_of("W1", found)
    assert moved == {("b", "DRAM", "read"): 96, ("b", "GLB", "write"): 12, ("d", "GLB", "read"): 96}
    assert isinstance(found, Solution)
    assert [dict(row.peak_bits).get("GLB", 0) for row in found.segments] == [0, 8 * 12, 8 * 12, 8 * 12]
    assert lines("weights pinned\nretain GLB W1 1\n" + str(sequential(four, nests)), GLB, four) == [
        "retain GLB W1: weights are pinned before the run; leave it out"
    ]


def test_a_result_that_is_read_again_leaves_the_chip_too() -> None:
    looped = replace(THREE, loop_state=(("T1", "T0"),))
    moved = moved_of(
        "T1",
        evaluate(
            GLB,
            looped,
            replace(sequential(looped, NESTS), retained=parse_schedule("retain GLB T1 1").retained),
        ),
    )
    assert moved["a", "DRAM", "write"] == 48
    assert ("b", "DRAM", "read") not in moved
    assert ("c", "DRAM", "read") not in moved


def test_what_is_kept_in_slices_lies_spread_over_them() -> None:
    """Eight slices: a sixth of 48 words in each; what b and c want comes through the network, as it came from
    DRAM.
    """
    plain = sequential(THREE, NESTS)
    alone, found = (
        evaluate(NODES, THREE, plain),
        evaluate(NODES, THREE, replace(plain, retained=parse_schedule("retain BUF T1 1").retained)),
    )
    far, near = moved_of("T1", alone), moved_of("T1", found)
    assert near == {(name, "BUF", action): n for (name, _, action), n in far.items()}
    assert isinstance(found, Solution)
    assert [dict(row.peak_bits)["BUF"] for row in found.segments] == [8 * 48 // 8] * 3
    ports = {
        (c.name, row.action): row.busiest_elems
        for c in found.einsums
        for row in c.counts
        if row.tensor == "T1"
    }
    assert all(n == near[name, "BUF", action] / 8 for (name, action), n in ports.items())


SUMS = Workload(
    "sums",
    (
        einsum("Y[m,n] = X[m,n] + Z[m,n]", {"m": 8, "n": 6}, "a"),
        einsum("U[m,n] = Y[m,n] + X[m,n]", {"m": 8, "n": 6}, "b"),
        einsum("V[m,n] += U[m,n] * S[m,n]", {"m": 8, "n": 6}, "c"),
    ),
)


@pytest.mark.parametrize(("change", "together"), [(lambda e: e, 48), (lambda e: replace(e, kind="mac"), 96)])
def test_a_sum_takes_the_place_of_what_it_reads_for_the_last_time(
    change: Callable[[Einsum], Einsum], together: int
) -> None:
    """X is read by a, Y by b: where b is a sum, U stands where X stood."""
    w = replace(SUMS, einsums=(SUMS.einsums[0], change(SUMS.einsums[1]), SUMS.einsums[2]))
    nests = {
        e.name: parse(
            f"store DRAM {' '.join(p.tensor for p in e.tensors())}\nfor m tile 1\nfor n tile 1\nmac"
        )
        for e in w.einsums
    }
    found = evaluate(
        GLB,
        w,
        replace(sequential(w, nests), retained=parse_schedule("retain GLB X 1\nretain GLB U 1").retained),
    )
    assert isinstance(found, Solution)
    assert [dict(row.peak_bits)["GLB"] for row in found.segments] == [8 * 48, 8 * together, 8 * 48]


def a_sum_behind_a_product(access: str, addend: str, keeps: str) -> Solution | Infeasible:
    """X is made; a and b share the loop m and make U of it; z reads U. All are 4 x 4."""
    four = dict.fromkeys("mnk", 4)
    sums = dict.fromkeys("mn", 4)
    w = Workload(
        "fused",
        (
            einsum("X[m,n] = V[m,n] + S[m,n]", sums, "x"),
            einsum(f"T[m,n] += {access} * B[k,n]", four, "a"),
            einsum(f"U[m,n] = T[m,n] + {addend}[m,n]", sums, "b"),
            einsum("Z[m,n] = U[m,n] + V[m,n]", sums, "z"),
        ),
    )
    alone = "segment\neinsum {}\nstore DRAM {}\nfor m tile 1\nfor n tile 1\nmac\n"
    tensors = " ".join(dict.fromkeys(("X", "B", addend, "U")))
    fused = (
        f"segment\nstore DRAM {tensors}\nfor m tile 1\nstore GLB T\neinsum a\nfor n tile 1\nfor k "
        "tile 1\nmac\n"
        "einsum b\nfor n tile 1\nmac\n"
    )
    return evaluate(
        GLB, w, parse_schedule(keeps + alone.format("x", "V S X") + fused + alone.format("z", "U V Z"))
    )


@pytest.mark.parametrize(("access", "together"), [("X[m,k]", 16), ("X[k,m]", 32)])
def test_no_result_takes_the_place_of_what_later_trips_read(access: str, together: int) -> None:
    """Rows of X are read in the trip that makes the rows of U; of its columns a part in every trip. A row of
    T is handed over.
    """
    found = a_sum_behind_a_product(access, "C", "retain GLB U 1\nretain GLB X 1\n")
    assert isinstance(found, Solution)
    assert dict(found.segments[1].peak_bits)["GLB"] == 8 * (together + 4)


def test_nobody_finds_what_the_same_segment_brings_in() -> None:
    with pytest.raises(ValueError) as fault:
        a_sum_behind_a_product("X[m,k]", "X", "retain GLB X 0, 1 after a\n")
    assert (
        str(fault.value)
        == "retain GLB X: b reads it in the segment that brings it in, where other trips may find "
        "nothing yet; retain it after b"
    )


@pytest.mark.parametrize(
    ("keep", "said"),
    [
        ("1/2, 1/4 after a", "a does not read T1; b, c do"),
        ("1/2, 1/2 after b", "1/2, 1/2 after b: a share does not change; name it once"),
        ("1/2, 5/4 after b", "1/2, 5/4 after b: each share must be from 0 to 1, one of them above 0"),
        ("1/2, 1/4 after c", "nobody reads it after c; leave that share out"),
        (
            "1/2, 1/4 after c, 1/8 after b",
            "the shares after einsums are not in the order of the schedule; sort them, each einsum once",
        ),
    ],
)
def test_what_is_kept_for_nobody_is_said_in_one_line(keep: str, said: str) -> None:
    with pytest.raises(ValueError) as fault:
        evaluate(
            GLB,
            THREE,
            replace(sequential(THREE, NESTS), retained=parse_schedule(f"retain GLB T1 {keep}").retained),
        )
    assert str(fault.value) == f"retain GLB T1: {said}"


def test_files_hold_either_form(tmp_path: Path) -> None:
    path = tmp_path / "fused.txt"
    path.write_text(f"{FUSED}\n# a remark\n")
    assert load(path, FC) == (FC, parse_schedule(FUSED))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="pipe: is a pipe, which cannot be read twice; give the name"):
        load(tmp_path / "pipe", FC)
    path.write_text(FUSED.replace("einsum b with m = p", "einsum b whith m = p"))
    with pytest.raises(
        ValueError, match=r'fused.txt: schedule, line 11: "einsum b whith m = p" cannot stand here'
    ):
        load(path, FC)


def test_the_first_reader_of_a_retained_tensor_has_its_stalls() -> None:
    """It brings the tensor in as it would alone; the tensor's writes to where it stays are beside that."""
    arch = machine.load_arch("edge_array")
    sizes = {"b": 64, "d": 128, "f": 128}
    products = tuple(einsum(f"{t}[b,f] += X[b,d] * W{t}[d,f]", sizes, t) for t in "GU")
    workload = Workload("two_heads", products, frozenset({"WG", "WU"}))
    segment = """segment
  einsum {t}
    store DRAM X W{t} {t}
    store GBUF X
    for f in [0:8) tile 16
      parfor f in [0:16) tile 1 over X
        for b in [0:64) tile 1
          store REGF {t}
          for d in [0:128) tile 1
            mac
"""
    text = "".join(segment.format(t=t) for t in "GU")
    (alone, retained) = (
        evaluate(arch, workload, parse_schedule(f"{first}{text}")) for first in ("", "retain GBUF X 1\n")
    )
    assert isinstance(alone, Solution)
    assert isinstance(retained, Solution)
    (first,) = (c for c in retained.einsums if c.name == "G")
    assert first.latency_cycles == alone.einsums[0].latency_cycles  # G's and U's, which are equal here
    assert first.latency_cycles > max(cycles for _, cycles in first.price.busy_cycles)
    assert retained.latency_cycles < alone.latency_cycles  # U finds X
