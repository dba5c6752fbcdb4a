"""Schedules of several layers in directives: what is printed is read back to the same price, and layers that
do not match are refused in one line.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dse.explain import values
from dse.frontend import api
from dse.mapping import matched
from dse.mapping.schedule import Schedule, parse_schedule
from dse.sim.einsum.evaluate import Solution
from dse.sim.schedule.graph import evaluate
from hw import machine
from hw.arch import Arch
from tests.amount import amount
from tests.schedules import random_schedule
from workloads.einsum import einsum
from workloads.graph import Workload

SEEDS = st.integers(0, 2**32)
ARCH = machine.arch(machine.load("kapla_multi"))
CHAIN = Workload(
    "chain",
    (
        einsum("T[m,n] += X[m,k] * V[k,n]", {"m": 8, "n": 6, "k": 4}, "a"),
        einsum("Y[p,q] += T[p,r] * W[r,q]", {"p": 8, "q": 3, "r": 6}, "b"),
    ),
    frozenset({"V", "W"}),
)
# two stages that hand on tiles of two rows; V is loaded once, W once per tile
PIPELINE = """segment
  store DRAM X V W Y
  for m tile 2
    store GBUF T
    einsum a on NY[0:1] NX[0:2]
      hold GBUF V
      parfor n tile 3 over NX
        store GBUF X V
        store REGF X V T
        for m tile 1
          for n tile 1
            for k tile 1
              mac
    einsum b on NY[1:2] NX[0:1] with m = p
      store GBUF W Y
      store REGF T W Y
      for p tile 1
        for q tile 1
          for r tile 1
            mac
"""


def costs(arch: Arch, workload: Workload, schedule: Schedule) -> tuple[float, float, list[float]]:
    found = evaluate(arch, workload, schedule)
    assert isinstance(found, Solution)
    return found.energy_pj, found.latency_cycles, [one.energy_pj for one in found.einsums]


@given(SEEDS)
@settings(max_examples=amount(30), deadline=None)
def test_a_drawn_schedule_is_read_back_to_the_same_price(seed: int) -> None:
    arch, workload, schedule = random_schedule(Random(seed))
    text = matched.to_text(schedule, workload)
    again = matched.schedule_of(text, workload, arch)
    assert costs(arch, workload, again) == costs(arch, workload, schedule)
    assert matched.to_text(again, workload) == text


def test_a_pipeline_is_said_layer_by_layer() -> None:
    schedule = parse_schedule(PIPELINE)
    text = matched.to_text(schedule, CHAIN)
    assert matched.schedule_of(text, CHAIN, ARCH) == schedule
    for line in ("a on NY[0:1] NX[0:2]:", "tensor{V}(k=4, n=3) hold", "update(m+=2)", "update(p+=2)"):
        assert line in text, text


def test_a_layer_may_have_a_part_of_what_its_segment_shares() -> None:
    """The pipeline hands on T whole; b brings two of its rows to its node at a time."""
    whole = PIPELINE.replace("  for m tile 2\n", "").replace(
        "      store GBUF W Y\n", "      for p tile 2\n      store GBUF T W Y\n"
    )
    schedule = parse_schedule(whole)
    text = matched.to_text(schedule, CHAIN)
    assert text.count("tensor{T}(p=8, r=6)") == 1
    assert text.count("tensor{T}(p=2, r=6)") == 2
    again = matched.schedule_of(text, CHAIN, ARCH)
    assert again == replace(
        schedule,
        segments=tuple(
            replace(one, branches=tuple(replace(branch, ranks=()) for branch in one.branches))
            for one in schedule.segments
        ),
    )


@pytest.mark.parametrize(("method", "weights"), [("kapla", "streamed"), ("pipelined", "pinned")])
def test_answers_are_read_back_to_the_same_price(method: str, weights: str, tmp_path: Path) -> None:
    path, back = tmp_path / "net.yaml", tmp_path / "back.txt"
    path.write_text(
        'einsums: ["T[m,n] += X[m,k] * V[k,n]", "Y[m,q] += T[m,n] * W[n,q]"]\n'
        "extents: {m: 4, n: 6, k: 4, q: 2}\nweights: [V, W]\n"
    )
    nodes = {"nodes.ny": 1, "nodes.nx": 2}
    sets = {**nodes, "solver.schedule": method, "solver.weights": weights}
    mapped = api.map(str(path), "kapla_multi", **sets)
    assert isinstance(mapped.solution, Solution)
    back.write_text(values.directives(mapped.workload, mapped.solution, mapped.plan))
    again = api.simulate(str(path), "kapla_multi", back, **nodes).solution
    assert isinstance(again, Solution)
    assert (again.energy_pj, again.latency_cycles) == (
        mapped.solution.energy_pj,
        mapped.solution.latency_cycles,
    )


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("tensor{T}(p=2, r=6)", "tensor{T}(p=2, r=5)", "where steps leave p=2, r=6"),
        ("b on", "c on", '"c" is no einsum of chain'),
        ("NX[0:1]", "NX[1:1]", "names no PE"),
        ("segment\n", "", "in no segment"),
        ("segment\n", "segment\nweights pinned\n", "stands below a segment"),
        ("  matched\n", "  matched\n  matched\n", "stands once in a layer"),
    ],
)
def test_layers_that_do_not_match_are_refused_in_one_line(old: str, new: str, says: str) -> None:
    text = matched.to_text(parse_schedule(PIPELINE), CHAIN)
    assert old in text, text
    with pytest.raises(ValueError, match=r".*") as fault:
        matched.schedule_of(text.replace(old, new), CHAIN, ARCH)
    assert says in str(fault.value)
    assert len(str(fault.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("tile", "update", "says"),
    [
        (4, "    update(p+=4)\n", "an update of p by 4 stands below matched where a has one of m by 2"),
        (8, "", "0 updates stand below matched, 1 in a"),
    ],
)
def test_updates_that_do_not_match_are_refused(tile: int, update: str, says: str) -> None:
    text = matched.to_text(parse_schedule(PIPELINE), CHAIN)
    other = text.replace("p=2", f"p={tile}").replace("    update(p+=2)\n", update)
    with pytest.raises(ValueError, match=says) as fault:
        matched.schedule_of(other, CHAIN, ARCH)
    assert len(str(fault.value).splitlines()) == 1


def test_what_layers_share_stands_in_one_place() -> None:
    text = matched.to_text(parse_schedule(PIPELINE), CHAIN)
    one, other = text.split("b on")
    inside = "  GBUF:\n    tensor{T}(p=2, r=6)\n    update(p+=2)\n"
    outside = "  REGF:\n    update(p+=2)\n  GBUF:\n    tensor{T}(p=8, r=6)\n"
    assert inside in other
    other = other.replace(inside, outside)
    with pytest.raises(ValueError, match=r"tensor\{T\} at GBUF stands between other updates than in a"):
        matched.schedule_of(f"{one}b on{other}", CHAIN, ARCH)


def test_windows_of_a_segment_come_in_whole() -> None:
    e = einsum("Y[p] += X[p+r] * W[r]", {"p": 6, "r": 3}, "c")
    nest = """segment
      einsum c
        store DRAM X W Y
        for p tile 2
        store GBUF X W Y
        for p tile 1
        for r tile 1
        mac
    """
    workload = Workload("net", (e,), frozenset({"W"}))
    schedule = replace(parse_schedule(nest), weights="pinned")
    text = matched.to_text(schedule, workload)
    assert text.startswith("directives whole\nweights pinned\nsegment\n")
    assert matched.schedule_of(text, workload, ARCH) == schedule
    with pytest.raises(ValueError, match='begin the text with "directives whole"'):
        matched.schedule_of(text.replace(" whole", "", 1), workload, ARCH)
