"""Memories of which PEs along some dimensions of an array share one instance (`along` of a memory)."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import dse
from dse.mapping.nest import faults, parse, unrollable
from dse.sim.counts.counts import count
from dse.sim.einsum import bound_kernels, bounds
from dse.sim.einsum.evaluate import EinsumCost, Problem, einsum_cost, lower_bound
from hw import machine, space
from hw.arch import Arch, Compute, Fanout, Level
from hw.columns import Table
from tests import timed
from tests.amount import amount
from tests.nests import (
    RICH,
    random_arch,
    random_einsum,
    random_mapping,
    rich_arch,
    rich_einsum,
    rich_mapping,
    shared,
    split_roles,
)
from tests.prove.mappers import answers, with_sharing
from tests.test_counts import unlike
from tests.unrolled import program
from workloads import catalog
from workloads.einsum import einsum


def sharing_case(seed: int) -> str:
    """Empty if closed form and oracle agree on a random nest of a machine with such memories."""
    rng = Random(f"along/{seed}")
    while True:
        e, arch = rich_einsum(rng, rng.choice(RICH)), rich_arch(rng)
        arch = shared(split_roles(arch, rng) if rng.random() < 0.6 else arch, rng)
        if arch.with_sharing() and e.points() <= 4000:
            return unlike(f"seed {seed}", e, arch, rich_mapping(rng, e, arch))


@settings(max_examples=amount(400, 40), deadline=None)
@given(st.integers(0, 2**32))
def test_counts_are_those_of_a_walk(seed: int) -> None:
    assert sharing_case(seed) == ""


@settings(max_examples=amount(100, 10), deadline=None)
@given(st.integers(0, 2**32))
def test_answers_are_those_of_an_enumeration(seed: int) -> None:
    assert [line for one in with_sharing(seed, 2000) for line in one.wrong] == []


@settings(max_examples=amount(100, 12), deadline=None)
@given(st.integers(0, 2**32))
def test_time_is_that_of_a_walk(seed: int) -> None:
    """The walk in time is never faster than the closed form, and moves what each instance moves."""
    rng = Random(f"along/{seed}")
    e, arch = random_einsum(rng, ("gemm", "gemm", "bmm", "conv1d")), random_arch(rng)
    arch = shared(split_roles(arch, rng), rng)
    mapping = random_mapping(rng, e, arch)
    cost = einsum_cost(Problem(arch, e, "energy"), mapping)
    assert isinstance(cost, EinsumCost)
    if arch.overlap == "buffered" and e.points() <= 400:
        assert cost.latency_cycles <= float(timed.walk(program(mapping, e, arch))[0]) * (1 + 1e-9)


ROWS = """
name: rows
clock_mhz: 500
node_nm: 32
nodes:
- {memory: dram, kind: lpddr4, width_bits: 64}
- {memory: gbuf, capacity: 2 KiB, width_bits: 64}
- {array: pe, dims: {y: 2, x: 4}}
- {memory: acc, kind: register, capacity: 4 B, width_bits: 8, may_keep: [output], along: [y]}
- {memory: wreg, kind: register, capacity: 2 B, width_bits: 8, may_keep: [weight], along: [x]}
- {compute: mac, kind: int8}
"""


def test_bounds_areas_and_leakage_of_many_machines_are_those_of_each() -> None:
    spec, lines = machine.parse(yaml.safe_load(ROWS), "rows")
    assert lines == []
    own = space.parse(spec, {"pe.x": [2, 3], "wreg.capacity": ["1 B", "4 B"]})
    built, columns = Table(own).columns(np.arange(4))
    arches = [space.decode(own, i) for i in range(4)]
    assert built.all()
    assert columns.area_mm2.tolist() == [arch.area_mm2() for arch in arches if isinstance(arch, Arch)]
    assert columns.leak_mw.tolist() == [arch.leak_mw() for arch in arches if isinstance(arch, Arch)]
    runs = [(one, 1.0) for one in catalog.load("mlp_s:batch=4").einsums]
    pj, cycles = bound_kernels.sequential(runs, columns)
    alone = [bounds.sequential(runs, arch) for arch in arches if isinstance(arch, Arch)]
    assert list(zip(pj.tolist(), cycles.tolist(), strict=True)) == alone
    arch = machine.arch(spec)
    assert [arch.instances(v) for v in range(5)] == [1, 1, 4, 2, 8]


def test_along_at_an_array_is_one_fault() -> None:
    """What stands inside of a node that cannot be read is not said to be wrong, too."""
    data = yaml.safe_load(ROWS)
    data["nodes"][2]["along"] = ["x"]
    _, lines = machine.parse(data, "rows")
    assert [line.partition(";")[0] for line in lines] == ["pe.along = [x] is no known key"]


REFUSED = {
    "schedule": {"solver.schedule": "fused"},
    "pipelines": {"solver.schedule": "pipelined"},
    "tiling": {"solver.tiling": "smaug"},
    "mapper": {"solver.mapper": "cost_descending"},
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_counts_memories_of_each_pe_refuses_in_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "rows.yaml").write_text(ROWS)
    says = r"does not count memories that PEs along dimensions share \(acc.along, wreg.along\)"
    with pytest.raises(ValueError, match=says) as found:
        dse.map("mlp_s:batch=4", str(tmp_path / "rows.yaml"), **REFUSED[name])
    assert "\n" not in str(found.value)


FAULTS = {
    "along: [x]": ("along: [z]", "wreg.along = [z]: z is no dimension of an array outside of it"),
    "dims: {y: 2, x: 4}": ("dims: {y: 2, x: 4}, systolic: ws", "stands beside pe.systolic: ramps and hops"),
    "memory: gbuf,": ("memory: gbuf, bank_map: word,", "stands beside gbuf.bank_map: lines, rows and"),
    "may_keep: [output], along: [y]": ("along: [y]", "wreg.along = [x]: acc has an instance for each PE"),
}


def test_faults_of_the_key_are_one_line_each() -> None:
    for old, (new, says) in FAULTS.items():
        lines = machine.parse(yaml.safe_load(ROWS.replace(old, new)), "rows")[1]
        assert [line for line in lines if "along" in line]
        assert all(says in line for line in lines if "along" in line), lines


def test_ranks_of_what_is_shared_are_not_unrolled_over_its_dimensions() -> None:
    spec, _ = machine.parse(yaml.safe_load(ROWS), "rows")
    arch, e = machine.arch(spec), einsum("C[m,n] += A[m,k] * B[k,n]", {"m": 4, "n": 4, "k": 4})
    own = "store DRAM A B C\nparfor {} tile 2 over X\nfor m tile 1\nfor n tile 1\nfor k tile 1\nmac"
    assert faults(parse(own.format("m")), e, arch) == []
    (line,) = faults(parse(own.format("k")), e, arch)
    assert line.endswith("want different elements of it; unroll a rank that B has not")
    assert unrollable(e, arch, "X") == ["m"]
    assert unrollable(e, arch, "Y") == ["k"]


def test_a_bound_holds_where_two_memories_are_shared_along_other_dimensions() -> None:
    """Weights shared by 16 PEs along x, sums by 16 along y: together their accesses serve 256, not 16."""
    head = "{clock_mhz: 1000, word_bits: 8, overlap: free, nodes: ["
    cost = "kind: custom, width_bits: 8, actions_per_cycle: inf, leak_mw: 0, area_mm2: 0"
    text = f"""{head}
      {{memory: dram, {cost}, read_pj: 1000, write_pj: 1000}},
      {{array: pe, dims: {{x: 16, y: 16}}, multicast: [x], reduce: [y]}},
      {{memory: acc, capacity: 64 KiB, {cost}, read_pj: 9, write_pj: 9, may_keep: [output], along: [y]}},
      {{memory: wreg, capacity: 64 KiB, {cost}, read_pj: 9, write_pj: 9, may_keep: [weight], along: [x]}},
      {{memory: ireg, capacity: 64 B, {cost}, read_pj: 3, write_pj: 3, may_keep: [input]}},
      {{compute: mac, kind: custom, mac_pj: 0, alu_pj: 0, merge_pj: 0, leak_mw: 0, area_mm2: 0}}]}}"""
    spec, lines = machine.parse(yaml.safe_load(text), "two")
    assert lines == []
    problem = Problem(
        machine.arch(spec), einsum("C[m,n] += A[m,k] * B[k,n]", {"m": 512, "n": 512, "k": 512}), "energy"
    )
    own = parse(
        "store DRAM A B C\nparfor m tile 32 over X\nparfor k tile 32 over Y\nstore WREG B\nstore ACC C\n"
        "for m tile 1\nfor k tile 1\nstore IREG A\nfor n tile 1\nmac"
    )
    one = einsum_cost(problem, own)
    assert isinstance(one, EinsumCost)
    assert lower_bound(problem) <= one.energy_pj


@pytest.mark.parametrize("write_pj", [3.0, 10.0, 30.0, 90.0])
def test_an_array_whose_fills_cost_is_searched_exactly(write_pj: float) -> None:
    """Whether registers pay depends on how many PEs a fill serves, and what PEs share is not divided."""
    levels = (
        Level("DRAM", None, 8, 100.0, 100.0, bypass=False),
        Level("ACC", 24, 8, 1.0, write_pj, may_keep=("output",)),
        Level("WREG", 16, 8, 0.1, write_pj, may_keep=("weight",)),
    )
    shared = (("WREG",), ("ACC",))
    array = Fanout("PE", 1, (("X", 4), ("Y", 3)), (True, False), (False, True), shared=shared)
    arch = Arch("rows", levels, (array,), Compute(1.0, 1.0, merge_pj=5.0), 1.0, 8, overlap="free")
    for m, n in ((8, 4), (2, 8)):
        e = einsum("C[m,n] += A[m,k] * B[k,n]", {"m": m, "n": n, "k": 6})
        for objective in ("energy", "latency"):
            told = answers(0, "shared", Problem(arch, e, objective))
            assert [line for one in told for line in one.wrong] == []
            assert all(one.proven and one.feasible for one in told)


def test_sums_are_merged_of_instances_alone() -> None:
    """Of 4 x 3 PEs that sum up parts of k, 3 along Y add into one register: 4 registers per element of C."""
    levels = (Level("DRAM", None, 8, 1.0, 1.0), Level("ACC", None, 8, 1.0, 1.0, may_keep=("output",)))
    array = Fanout("PE", 1, (("X", 4), ("Y", 3)), (True, True), (False, True), shared=((), ("ACC",)))
    arch = Arch("sums", levels, (array,), Compute(1.0, 1.0, merge_pj=5.0), 1.0, 8, overlap="free")
    e = einsum("C[m,n] += A[m,k] * B[k,n]", {"m": 2, "n": 2, "k": 12})
    own = parse("store DRAM A B C\nparfor k tile 3 over X\nparfor k tile 1 over Y\nstore ACC C\n"
                "for m tile 1\nfor n tile 1\nmac")  # fmt: skip
    assert unlike("sums", e, arch, own) == ""
    (merged,) = [row.elems for row in count(own, e, arch) if row.action == "merge"]
    assert merged == (4 - 1) * 4
