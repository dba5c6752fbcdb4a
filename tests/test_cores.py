"""Fused segments that are split over the PEs of an outermost array (dse/solve/schedules/cores.py)."""

from __future__ import annotations

from dataclasses import replace
from math import inf, sqrt
from pathlib import Path
from typing import Any

import pytest

from dse.mapping.constraints import FREE, ruled
from dse.mapping.nest import Loop, Store
from dse.mapping.schedule import Schedule
from dse.mapping.searched import covers, words
from dse.sim.einsum.evaluate import Solution, objective_value
from dse.sim.fronts import Objective
from dse.sim.schedule.graph import evaluate
from dse.solve.options import SolverOptions
from dse.solve.schedules import fused
from dse.solve.schedules.fusible_segments import array_of_cores, joined_segments, splits
from dse.solve.schedules.nests import Nests
from dse.solve.solve import solve
from hw import machine
from hw.arch import Arch, read_rules
from tests.fuzzed import Case, Tally, fuzz, stated
from tests.test_schedule_walks import compared
from workloads.einsum import einsum
from workloads.graph import Workload

MACHINE = """clock_mhz: 500
node_nm: 32
overlap: {overlap}
nodes:
- {{memory: dram, kind: lpddr4, channels: 2, width_bits: 64}}
- {{array: cores, dims: {dims}, multicast: {multicast}, reduce: false}}
- {{memory: gbuf, kind: custom, capacity: {room}, width_bits: 16, read_pj: 0.7, write_pj: 0.9,
  actions_per_cycle: 4, leak_mw: 0.3, area_mm2: 0}}
- {{array: array, dims: {{x: 4, y: 4}}, multicast: true, reduce: true, hop_pj: {hop}}}
- {{compute: mac, kind: int8, vector_lanes: {lanes}}}
"""


def cores(
    folder: Path,
    dims: str = "{core: 2}",
    multicast: bool = False,
    overlap: str = "buffered",
    lanes: int = 0,
    room: str = "2 KiB",
    hop: float = 0.0,
) -> Arch:
    """A machine of cores, each with a buffer and 16 MAC units."""
    flag = str(multicast).lower()
    text = MACHINE.format(dims=dims, multicast=flag, overlap=overlap, lanes=lanes, room=room, hop=hop)
    (folder / "cores.yaml").write_text(text)
    return machine.load_arch(str(folder / "cores.yaml"))


def chain_of(*texts: str, **sizes: int) -> Workload:
    return Workload("chain", tuple(einsum(one, sizes, f"e{i}") for i, one in enumerate(texts)))


ATTENTION = chain_of(
    "S[h,m,p] += Q[h,m,e] * K[h,p,e]",
    "P[h,m,p] = relu(S[h,m,p])",
    "O[h,m,f] += P[h,m,p] * V[h,p,f]",
    **{"h": 4, "m": 8, "p": 8, "e": 4, "f": 4},
)
PRODUCTS = chain_of("T[m,n] += X[m,k] * W[k,n]", "Y[m,f] += T[m,n] * V[n,f]", m=8, k=4, n=4, f=6)


@pytest.mark.parametrize("objective", ["energy", "latency", "edp"])
@pytest.mark.parametrize(
    ("workload", "given"),
    [
        (ATTENTION, {}),
        (ATTENTION, {"dims": "{row: 2, column: 3}", "overlap": "free", "lanes": 7}),
        (ATTENTION, {"multicast": True, "lanes": 4}),
        (PRODUCTS, {"dims": "{row: 1, column: 4}", "room": "64 B"}),
        (PRODUCTS, {"hop": 0.2}),
    ],
)
def test_a_segment_costs_the_cores_in_use_times_its_part(
    tmp_path: Path, objective: Objective, workload: Workload, given: dict[str, Any]
) -> None:
    arch, seen = cores(tmp_path, **given), 0
    g = fused.graph(arch, workload, objective, Nests(arch, objective, "perfect", lambda _: FREE, 0.0))
    assert g.array
    for m in g.members:
        own = Workload("segment", workload.einsums[m.first : m.last + 1])
        for option, make in fused.on_cores(g, m, g.array, inf):
            whole = evaluate(arch, own, Schedule((make(),)), objective)
            assert isinstance(whole, Solution), whole
            assert whole.energy_pj == pytest.approx(option.energy, rel=1e-12)
            assert whole.latency_cycles == pytest.approx(option.latency, rel=1e-12)
            value = objective_value(objective, option.energy, option.latency)
            assert option.lower_bound <= (sqrt(value) if objective == "edp" else value) * (1 + 1e-12)
            seen += 1
    assert seen


def test_cores_that_read_in_common_are_left_out(tmp_path: Path) -> None:
    """Weights that all cores read: one read serves them where the array multicasts."""
    (m,) = joined_segments(PRODUCTS)
    for multicast, axes in ((False, [("m", "m")]), (True, [])):
        array = array_of_cores(cores(tmp_path, multicast=multicast))
        assert array
        assert [axis for one in splits(PRODUCTS, m, array) for axis, _, _ in one.loops] == axes


def test_the_answer_is_walked_and_what_the_search_covers_says_how_it_is_split(tmp_path: Path) -> None:
    arch = cores(tmp_path, room="256 B")
    found = solve(arch, ATTENTION, SolverOptions(schedule="fused"))
    assert isinstance(found, list)
    (answer,) = found
    schedule, space = answer.schedule, answer.space
    assert schedule is not None
    assert space is not None
    assert compared(arch, ATTENTION, schedule) == []
    segment = next(one for one in schedule.segments if len(one.branches) > 1)
    loop = next(n for n in segment.nodes if isinstance(n, Loop) and n.over)
    assert covers(space, schedule, ATTENTION, arch) is None
    assert any("below an even split over CORES" in line for line in words(space)[0])

    def with_nodes(*nodes: Loop | Store) -> Schedule:
        changed = replace(segment, nodes=nodes)
        return replace(
            schedule, segments=tuple(changed if one is segment else one for one in schedule.segments)
        )

    on_one_core = with_nodes(*(replace(loop, over="") if n is loop else n for n in segment.nodes))
    in_other_parts = with_nodes(*(replace(loop, tile=1) if n is loop else n for n in segment.nodes))
    for other in (on_one_core, in_other_parts):
        assert covers(space, other, ATTENTION, arch) == "shared loops"
    unfused = solve(arch, ATTENTION, SolverOptions())
    assert isinstance(unfused, list)
    assert answer.energy_pj < unfused[0].energy_pj


@pytest.mark.parametrize(
    ("workload", "objective", "given"),
    [
        (ATTENTION, "energy", {"room": "128 B"}),
        (PRODUCTS, "latency", {"overlap": "free"}),
        (PRODUCTS, "energy", {"dims": "{row: 2, column: 2}", "room": "32 B"}),
    ],
)
def test_no_schedule_costs_less_than_is_claimed(
    tmp_path: Path, workload: Workload, objective: Objective, given: dict[str, Any]
) -> None:
    case, tallies = Case("", str(given), workload, cores(tmp_path, **given)), dict[str, Tally]()
    assert fuzz(case, 1, 100, objective, stated, tallies, solvers=({"schedule": "fused"},)) == 100
    assert not [line for own in tallies.values() for line in own.failures]
    assert tallies["fused"].covered > 20


@pytest.mark.parametrize(
    ("rules", "is_split"),
    [
        ([{"at": "core", "ranks": ["m"]}], True),
        ([{"at": "core", "factors": {"m": 2}}, {"utilization": 1.0}], True),  # of all cores together
        ([{"at": "core", "ranks": ["n"], "einsums": ["e0"]}], False),
        ([{"at": "core", "factors": {"m": 1}, "einsums": ["e1"]}], False),
    ],
)
def test_segments_are_split_as_rules_allow(
    tmp_path: Path, rules: list[dict[str, object]], is_split: bool
) -> None:
    arch, limits = cores(tmp_path), read_rules(rules)
    found = fused.fused(arch, PRODUCTS, "energy", "perfect", lambda e: ruled(FREE, limits, e, arch))
    assert isinstance(found, Solution)
    assert bool(found.schedule and not found.schedule.is_unfused()) == is_split
