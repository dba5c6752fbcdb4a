"""Memories that give elements a width of their own (`bits` of a machine file): what they cost, by hand and by
enumeration, what tells machines apart, and what refuses them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import dse
from dse.explain import values
from dse.frontend import api
from dse.mapper.exact.optimal import optimal
from dse.mapper.exact.search import same_structure
from dse.mapping.constraints import FREE, ruled
from dse.mapping.nest import Infeasible, faults, parse
from dse.sim.einsum import bound_kernels, bounds
from dse.sim.einsum.evaluate import EinsumCost, Problem, Solution, einsum_cost
from dse.sim.einsum.limits import broken
from dse.solve.options import SolverOptions
from dse.solve.solve import solve
from dse.study import study as studies
from hw import machine, space
from hw.arch import ROLES, Arch, Memory, read_rules
from hw.columns import Table
from tests.amount import amount
from tests.enumeration import mappings
from tests.prove.mappers import widths
from tests.test_mappers import MAPPERS, NAMES
from workloads import catalog
from workloads.einsum import einsum

GEMM = einsum("C[m,n] += A[m,k] * B[k,n]", {"m": 2, "n": 3, "k": 4})
# the array adds up each output in a buffer beside it, of 32 bits; results leave it with 8
STATIONARY = """
name: sums
clock_mhz: 1000
word_bits: 8
overlap: free
nodes:
- {memory: dram, kind: custom, width_bits: 8, read_pj: 100, write_pj: 200, leak_mw: 0, area_mm2: 0,
   actions_per_cycle: 1}
- {memory: acc, kind: custom, capacity: 24 B, width_bits: 32, read_pj: 3, write_pj: 5, leak_mw: 0,
   area_mm2: 0, actions_per_cycle: 0.25, ports: separate, may_keep: [output], bypass: false,
   bits: {output: 32}}
- {array: pes, dims: {y: 1, x: 3}, endpoint_pj: 1, hop_pj: 0}
- {compute: mac, kind: custom, mac_pj: 0, alu_pj: 0, merge_pj: 0, leak_mw: 0, area_mm2: 0}
"""
NEST = parse("store DRAM A B C\nstore ACC C\nfor k tile 1\nfor m tile 1\nparfor n tile 1 over X\nmac")


def stationary(**changes: Any) -> Arch:
    spec, lines = machine.parse(yaml.safe_load(STATIONARY), "sums")
    assert lines == []
    nodes = [replace(node, **changes) if node.name == "acc" else node for node in spec.nodes]
    return machine.arch(replace(spec, nodes=tuple(nodes)))


def test_sums_of_32_bits_in_a_buffer_above_results_of_8_bits() -> None:
    """24 products are added up in 6 sums: 24 writes and 18 reads of 32 bits in the buffer, which are then
    read once more and leave as 8 bits. A and B come from DRAM as 8 bits: A once for all 3 PEs.
    """
    cost = einsum_cost(Problem(stationary(), GEMM, "energy"), NEST)
    assert isinstance(cost, EinsumCost)
    found = {(p.level, p.tensor, p.action): (p.actions, p.energy_pj) for p in cost.price.parts}
    assert found == {
        ("DRAM", "A", "read"): (8, 800),
        ("DRAM", "B", "read"): (24, 2400),
        ("DRAM", "C", "write"): (6, 1200),
        ("ACC", "C", "read"): (18 + 6, 72),
        ("ACC", "C", "write"): (24, 120),
        ("MAC", "-", "compute"): (24, 0),
        # PEs take A and B as they leave DRAM, and take and give sums as wide as the buffer has them
        ("PES", "A", "endpoint"): (24 * 8, 24 * 8),
        ("PES", "B", "endpoint"): (24 * 8, 24 * 8),
        ("PES", "C", "endpoint"): ((18 + 24) * 32, (18 + 24) * 32),
    }
    assert dict(cost.price.busy_cycles)["ACC"] == cost.latency_cycles == 24 / 0.25
    narrow = einsum_cost(Problem(stationary(capacity=23), GEMM, "energy"), NEST)
    assert narrow == Infeasible("ACC", 24, 23, GEMM.name)
    as_elsewhere = einsum_cost(Problem(stationary(bits=()), GEMM, "energy"), NEST)
    assert isinstance(as_elsewhere, EinsumCost)
    assert as_elsewhere.mapping_key != cost.mapping_key
    assert as_elsewhere.latency_cycles == 38  # DRAM is the bottleneck, the buffer busy for 24 cycles


@settings(max_examples=amount(120, 12), deadline=None)
@given(st.integers(0, 2**32))
def test_answers_are_those_of_an_enumeration(seed: int) -> None:
    """Optima, gaps and bounds on machines that narrow or widen elements, with buffers and networks."""
    assert [line for one in widths(seed, 1_000) for line in one.wrong] == []


@pytest.mark.parametrize("name", NAMES)
def test_each_mapper_obeys_the_room_that_widths_need(name: str) -> None:
    """Six sums of 32 bits do not fit 23 B; of 8 bits they would."""
    for capacity in (24, 23):
        problem = Problem(stationary(capacity=capacity), GEMM, "energy")
        problem = replace(problem, arch=problem.arch.without("network"))
        found = MAPPERS[name](problem, Random(0))
        assert isinstance(found, list)
        assert einsum_cost(problem, found[0].mapping) == found[0]


def test_a_rule_of_the_largest_tile_counts_elements_as_wide_as_they_are_there() -> None:
    """A sum takes 4 B in the buffer: 3 of them fit a tile of 3 elements, or of 12 B; none one of 3 B."""
    e, arch = einsum("C[m] += A[m,k] * B[k]", {"m": 3, "k": 2}), stationary().without("network")
    problem = Problem(arch, e, "energy")
    priced = [(one, einsum_cost(problem, one)) for one in mappings(problem, "perfect", "tensors")]
    for limit, most in ((3, 3), ("12 B", 3), ("11 B", 2), ("4 B", 1), ("3 B", 0)):
        rules = read_rules([{"at": "acc", "keep": ["C"], "tile": {"C": limit}}])
        limits = ruled(FREE, rules, e, arch)
        kept = [
            cost.energy_pj
            for one, cost in priced
            if isinstance(cost, EinsumCost) and not broken(limits, one, e, arch)
        ]
        found = optimal(problem, "perfect", limits)
        if most == 0:
            assert isinstance(found, Infeasible)
            assert not kept
            continue
        assert isinstance(found, list)
        held = {(level, tensor): elems for level, tensor, elems in found[0].footprint}
        assert held["ACC", "C"] <= most
        assert found[0].energy_pj == pytest.approx(min(kept))


def test_machines_are_told_apart_by_widths() -> None:
    one, other, none = stationary(), stationary(bits=(("output", 24),)), stationary(bits=())
    assert len({one.family(), other.family(), none.family()}) == 3
    assert len({same_structure(Problem(arch, GEMM, "energy")) for arch in (one, other, none)}) == 3
    assert len({str(einsum_cost(Problem(a, GEMM, "energy"), NEST)) for a in (one, other, none)}) == 3


@settings(max_examples=amount(60, 8), deadline=None)
@given(st.lists(st.sampled_from([0, 4, 12, 24, 32]), min_size=6, max_size=6))
def test_bounds_of_many_machines_are_those_of_each(given_bits: list[int]) -> None:
    spec = machine.load("edge_array")
    halves = iter((given_bits[:3], given_bits[3:]))
    nodes = [
        replace(node, bits=tuple((of, n) for of, n in zip(ROLES, next(halves), strict=True) if n))
        if isinstance(node, Memory) and i
        else node
        for i, node in enumerate(spec.nodes)
    ]
    own = space.parse(
        replace(spec, nodes=tuple(nodes)), {"gbuf.width_bits": [64, 128], "regf.capacity": ["64 B"]}
    )
    built, columns = Table(own).columns(np.arange(2))
    assert built.all()
    arches = [space.decode(own, i) for i in range(2)]
    runs = [(e, 1.0) for e in catalog.load("mlp_s:batch=4").einsums]
    pj, cycles = bound_kernels.sequential(runs, columns)
    assert list(zip(pj.tolist(), cycles.tolist(), strict=True)) == [
        bounds.sequential(runs, arch) for arch in arches if isinstance(arch, Arch)
    ]


STUDY = """
name: widths
workloads: ["gemm:m=12,n=8,k=16", "conv:k=4,c=6,p=5,q=5,r=3,s=3"]
machine: npu.yaml
space: {array.x: [2, 4], gbuf.capacity: [512 B, 2 KiB]}
objectives: [energy_pj, latency_ns]
search: {method: exhaustive}
"""
NPU = """
name: npu
clock_mhz: 500
node_nm: 32
nodes:
- {memory: dram, kind: lpddr4, width_bits: 64}
- {memory: gbuf, capacity: 2 KiB, width_bits: 64, double_buffer: true, bits: {weight: 4}}
- {array: array, dims: {y: 2, x: 4}, hop_pj: 0.01}
- {memory: acc, capacity: 128 B, width_bits: 32, may_keep: [output], bypass: false,
   bits: {output: 32}}
- {compute: mac, kind: int8}
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("widths")
    (folder / "npu.yaml").write_text(NPU)
    (folder / "widths.yaml").write_text(STUDY)
    return dse.sweep(folder / "widths.yaml", out=folder / "run", workers=0)


def test_traffic_of_a_run_sums_to_its_energy(run: Any) -> None:
    rows = run.sql(
        "SELECT p.machine, p.energy_pj, t.pj FROM points p JOIN "
        "(SELECT machine, sum(energy_pj) AS pj FROM traffic GROUP BY machine) t USING (machine)"
    ).table.to_pylist()
    assert len(rows) == 4
    assert all(row["pj"] == pytest.approx(row["energy_pj"], rel=1e-9) for row in rows)
    told = run.sql("SELECT DISTINCT level, bits FROM counts WHERE action IN ('read', 'write')")
    met = [(row["level"], row["bits"]) for row in told.table.to_pylist()]
    assert {bits for level, bits in met if level == "ACC"} == {32}
    assert {bits for level, bits in met if level == "GBUF"} == {4, None}
    assert {bits for level, bits in met if level == "DRAM"} == {None}


REFUSED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "schedule": (
        lambda at: dse.map("mlp_s:batch=4", str(at), **{"solver.schedule": "pipelined"}),
        r"schedule = pipelined .*\(gbuf\.bits, acc\.bits\).*\(--set gbuf\.bits=\{\} --set acc\.bits=\{\}\)",
    ),
    "no level of one width": (
        lambda at: dse.map(
            "mlp_s:batch=4",
            str(at),
            **{"solver.schedule": "fused", "array.hop_pj": 0, "array.endpoint_pj": 0},
        ),
        r"in memories of one width, inside of none .*\(gbuf\.bits, acc\.bits\), and npu has none",
    ),
    "tiling": (lambda at: dse.map("mlp_s:batch=4", str(at), **{"solver.tiling": "smaug"}), "tiling = smaug"),
    "sharing": (
        lambda at: dse.map("mlp_s:batch=4", str(at), **{"solver.sharing_gap": 0.1}),
        "sharing_gap = 0.1",
    ),
    "csr": (lambda at: dse.map("spmv:m=8,k=8,nnz=9", str(at)), "gbuf.bits.input = 4: .* is compressed"),
    "residency": (lambda at: api.residency("mlp_s:batch=4", str(at)), "has memories with `bits`"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_knows_one_width_only_refuses_in_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "npu.yaml").write_text(NPU.replace("{weight: 4}", "{input: 4}"))
    call, says = REFUSED[name]
    with pytest.raises(ValueError, match=says) as found:
        call(tmp_path / "npu.yaml")
    assert "\n" not in str(found.value)


def test_a_study_that_knows_one_width_only_is_refused(tmp_path: Path) -> None:
    (tmp_path / "npu.yaml").write_text(NPU)
    (tmp_path / "a.yaml").write_text(STUDY + "solver: {schedule: pipelined}\n")
    with pytest.raises(studies.StudyError, match=r"solver.schedule = pipelined does not price elements"):
        studies.load(tmp_path / "a.yaml")


def test_given_schedules_and_shared_tiles_are_refused(tmp_path: Path) -> None:
    arch = stationary()
    lines = faults(parse(f"share ACC C over X\n{NEST}"), GEMM, arch)
    assert any(re.search("share ACC C: parts that PEs pass round", line) for line in lines)
    workload = catalog.load("mlp_s:batch=4")
    (tmp_path / "npu.yaml").write_text(NPU)
    fused = dse.map("mlp_s:batch=4", str(tmp_path / "npu.yaml"))
    text = "weights pinned\n" + fused.schedule
    (tmp_path / "plan.txt").write_text(text)
    with pytest.raises(ValueError, match="counted in one width only") as found:
        api.simulate("mlp_s:batch=4", str(tmp_path / "npu.yaml"), tmp_path / "plan.txt")
    assert "\n" not in str(found.value)
    assert isinstance(solve(arch.without("network"), workload, SolverOptions()), list | Infeasible)


FAULTS = {
    "bits: {output: 32}": [],
    "bits: {outputs: 32}": ["gbuf.bits = {outputs: 32} names outputs, which is no part of an einsum; use"],
    "bits: {output: 0}": ["gbuf.bits = {output: 0} gives output 0 bits; write a whole number above 0"],
    "bits: 32": ["gbuf.bits = 32 is no mapping of roles to bits; write e.g. {output: 32}"],
    "bits: {input: 4}, may_keep: [output]": ["gbuf.bits.input = 4 is of a tensor that may not stand there"],
    "bits: {input: 4}, bank_map: word": ["gbuf.bits = {input: 4} stands beside gbuf.bank_map: lines, rows"],
}


@pytest.mark.parametrize("key", FAULTS)
def test_faults_of_the_key_are_one_line_each(key: str) -> None:
    document = yaml.safe_load(NPU.replace("bits: {weight: 4}", key))
    _, lines = machine.parse(document, "npu")
    assert len(lines) == len(FAULTS[key])
    assert all(line.startswith(start) for line, start in zip(lines, FAULTS[key], strict=True))


def test_main_memory_has_one_width_and_axes_have_none() -> None:
    document = yaml.safe_load(NPU.replace("lpddr4,", "lpddr4, bits: {output: 16},"))
    (line,) = machine.parse(document, "npu")[1]
    assert line.startswith("dram.bits = {output: 16} cannot be: a tensor lies in the outermost level")
    spec, _ = machine.parse(yaml.safe_load(NPU), "npu")
    with pytest.raises(space.SpaceError, match="holds a list, no value of a column"):
        space.parse(spec, {"gbuf.bits": [{"output": 24}, {"output": 32}]})
    assert space.override(spec, {"acc.bits": {"output": 24}}).nodes[3].bits == (("output", 24),)  # type: ignore[union-attr]


def test_a_machine_without_the_key_is_known_as_before(tmp_path: Path) -> None:
    """The identity of its studies is what it was before there was the key."""
    (tmp_path / "a.yaml").write_text(STUDY.replace("npu.yaml", "edge_array"))
    assert studies.identity(studies.load(tmp_path / "a.yaml"))["machine"] == "edge_array 41cee352c34ea84a"


def test_einsums_share_tensors_above_an_accumulator(tmp_path: Path) -> None:
    """Scores stay in the buffer, in 8 bits, and their sums in the accumulator below."""
    text = NPU.replace(", bits: {weight: 4}", "").replace("hop_pj: 0.01", "hop_pj: 0, endpoint_pj: 0")
    (tmp_path / "npu.yaml").write_text(text)
    asked = ("attention:heads=2,q=16,context=16,d=8", str(tmp_path / "npu.yaml"))
    alone, fused, best = (dse.map(*asked, **{"solver.schedule": one}) for one in ("unfused", "fused", "best"))
    assert fused.energy_pj < alone.energy_pj
    assert best.energy_pj == fused.energy_pj
    (tmp_path / "plan.txt").write_text(fused.schedule)
    again = api.simulate(*asked, tmp_path / "plan.txt")
    assert isinstance(again.solution, Solution)
    assert again.solution.energy_pj == pytest.approx(fused.energy_pj, rel=1e-12)
    for line, other, says in (
        ("store GBUF M E L", "store ACC M E L", "store ACC M: .* 32 bits in M, 8 bits in E"),
        ("retain GBUF P 1", "retain ACC P 1", "retain ACC P: retained tensors are counted in one width"),
    ):
        assert line in fused.schedule
        (tmp_path / "plan.txt").write_text(fused.schedule.replace(line, other))
        with pytest.raises(ValueError, match=says):
            api.simulate(*asked, tmp_path / "plan.txt")


def test_sums_that_return_narrower_than_an_accumulator_has_them_are_said(tmp_path: Path) -> None:
    """C leaves ACC once for each k, and comes back from DRAM in 8 bits; in NEST it leaves once for all."""
    (tmp_path / "sums.yaml").write_text(STATIONARY)
    (tmp_path / "w.yaml").write_text(
        "extents: {m: 2, n: 3, k: 4}\neinsums: ['C[m,n] += A[m,k] * B[k,n]']\nname: product\n"
    )
    cure = "; bypass: false at ACC keeps them there"
    drained = "store DRAM A B C\nfor k tile 1\nstore ACC C\nfor m tile 1\nparfor n tile 1 over X\nmac"
    for text, said, ending in (
        (str(NEST), "", ""),
        (drained, "DRAM in 8 bits", "accuracy"),
        (drained.replace("store ACC C\n", ""), "DRAM in 8 bits", cure),
    ):
        (tmp_path / "sums.yaml").write_text(
            STATIONARY.replace("bypass: false", f"bypass: {str(ending == cure).lower()}")
        )
        (tmp_path / "nest.txt").write_text(text)
        found = api.simulate(str(tmp_path / "w.yaml"), str(tmp_path / "sums.yaml"), tmp_path / "nest.txt")
        assert isinstance(found.solution, Solution)
        lines = [
            line
            for line in values.notes(found.arch, found.workload, found.solution)
            if line.startswith("partial sums")
        ]
        assert len(lines) == bool(said)
        assert all(
            line.startswith(f"partial sums of C return from {said}, narrower") and line.endswith(ending)
            for line in lines
        )
