"""Ports that serve some tensors in some directions, and writes at another rate than reads (`ports`,
`write_bandwidth` and `writes_per_cycle` of a memory).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from math import prod
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import dse
from cluster import driver
from dse.frontend import api, runs
from dse.mapper.exact import ragged_program
from dse.mapper.exact.search import same_structure
from dse.mapping.nest import faults, parse
from dse.sim.einsum import bound_kernels, bounds
from dse.sim.einsum.evaluate import EinsumCost, Problem, einsum_cost, lower_bound
from dse.study import study as studies
from hw import machine, space
from hw.arch import ROLES, Arch, Port
from hw.columns import Table
from tests.amount import amount
from tests.prove.mappers import with_ports
from tests.test_mappers import MAPPERS, NAMES
from workloads import catalog
from workloads.einsum import einsum

ALL = "[input, weight, output]"
A2 = """
clock_mhz: 1000
word_bits: 8
overlap: free
nodes:
- {memory: dram, kind: custom, width_bits: 8, read_pj: 200, write_pj: 200, actions_per_cycle: 8,
   leak_mw: 0, area_mm2: 0}
- {memory: glb, kind: custom, capacity: 64 KiB, width_bits: 8, read_pj: 6, write_pj: 6,
   actions_per_cycle: 8, leak_mw: 0, area_mm2: 0}
- {array: array, dims: {x: 8, y: 8}}
- {compute: mac, kind: custom, mac_pj: 1, alu_pj: 1, merge_pj: 0, leak_mw: 0, area_mm2: 0}
"""
GEMM = einsum("C[m,n] += A[m,k] * B[k,n]", {"m": 4, "n": 2, "k": 6})
NEST = parse(
    "store DRAM A B C\nfor m tile 2\nstore GLB A B C\nparfor n tile 1 over X\nparfor m tile 1 over Y\n"
    "for k tile 1\nmac"
)


def a2(dram: str = "{}", glb: str = "{}") -> Arch:
    document = yaml.safe_load(A2)
    for node, more in zip(document["nodes"], (dram, glb), strict=False):
        node |= yaml.safe_load(more)
    spec, lines = machine.parse(document, "a2")
    assert lines == []
    return machine.arch(spec)


def busy(arch: Arch) -> dict[str, float]:
    cost = einsum_cost(Problem(arch, GEMM, "energy"), NEST)
    assert isinstance(cost, EinsumCost)
    assert cost.energy_pj == 12_400
    assert cost.latency_cycles == max(cycles for _, cycles in cost.price.busy_cycles)
    return dict(cost.price.busy_cycles)


def test_the_nest_of_the_documents_by_hand() -> None:
    """DRAM reads 24 of A and 24 of B and writes 8 of C; GLB reads 24, 24 and 48, writes 24, 24 and 48."""
    assert busy(a2()) == {"DRAM": 56 / 8, "GLB": 192 / 8, "MAC": 12}
    for dram, cycles in (
        ("{writes_per_cycle: 1}", 48 / 8 + 8),
        ("{writes_per_cycle: 1, ports: separate}", 8),
        ("{writes_per_cycle: inf}", 48 / 8),
        ("{actions_per_cycle: inf, writes_per_cycle: 1}", 8),
        ("{bandwidth: 16 GB/s, actions_per_cycle: null, write_bandwidth: 2 GB/s}", 48 / 16 + 8 / 2),
        (f"{{ports: [{{read: {ALL}}}, {{write: {ALL}, times: 0.25}}]}}", 6),
        (f"{{ports: [{{read: {ALL}}}, {{write: {ALL}, times: 0.125}}]}}", 8),
        (
            f"{{writes_per_cycle: 1, ports: [{{read: [input, output], write: {ALL}}}, {{read: [weight]}}]}}",
            11,
        ),
    ):
        assert busy(a2(dram))["DRAM"] == cycles
    for glb, cycles in (
        (f"[{{read: [input]}}, {{read: [weight]}}, {{read: [output], write: {ALL}}}]", 144 / 8),
        (f"[{{read: [input]}}, {{read: [weight]}}, {{read: [output], write: {ALL}, times: 2}}]", 9),
        (f"[{{read: {ALL}, times: 4}}, {{write: [input, weight]}}, {{write: [output]}}]", 6),
        ("[{read: [input], write: [input]}, {read: [weight], write: [weight], times: 0.5}, "
         "{read: [output], write: [output]}]", 12),
    ):  # fmt: skip
        assert busy(a2(glb=f"{{ports: {glb}}}"))["GLB"] == cycles


@settings(max_examples=amount(100, 10), deadline=None)
@given(st.integers(0, 2**32))
def test_answers_are_those_of_an_enumeration(seed: int) -> None:
    assert [line for one in with_ports(seed, 600) for line in one.wrong] == []


@pytest.mark.parametrize("name", NAMES)
def test_each_mapper_is_priced_at_these_ports(name: str) -> None:
    arch = a2(f"{{ports: [{{read: [weight, output], write: {ALL}}}, {{read: [input], times: 0.5}}]}}")
    problem = Problem(arch, GEMM, "latency")
    found = MAPPERS[name](problem, Random(0))
    assert isinstance(found, list)
    assert einsum_cost(problem, found[0].mapping) == found[0]
    assert not problem.arch.with_ports() or lower_bound(problem) <= found[0].latency_cycles


def test_machines_are_told_apart_by_ports() -> None:
    arches = [
        a2(glb=text)
        for text in (
            "{}",
            "{ports: separate}",
            "{writes_per_cycle: 4}",
            "{writes_per_cycle: 4, ports: separate}",
            f"{{ports: [{{read: {ALL}}}, {{write: {ALL}, times: 2}}]}}",
        )
    ]
    assert len({arch.family() for arch in arches}) == len(arches)
    assert len({same_structure(Problem(arch, GEMM, "energy")) for arch in arches}) == len(arches)
    # writes as fast as reads are what they are without the key
    assert a2(glb="{writes_per_cycle: 8}") == arches[0]


@settings(max_examples=amount(60, 8), deadline=None)
@given(st.integers(0, 2**32))
def test_bounds_of_many_machines_are_those_of_each(seed: int) -> None:
    """The compiled bound is the readable one to the last bit, and main memory's ports are in it."""
    rng, spec = Random(seed), machine.load("edge_array")
    at = {(of, way): rng.randrange(rng.choice([1, 2, 4])) for of in ROLES for way in range(2)}
    ports = [
        Port(
            *(tuple(of for of in ROLES if at[of, way] == i) for way in range(2)),
            *[rng.choice([0.5, 1, 3])] * 2,
        )
        for i in sorted({*at.values()})
    ]
    dram = replace(spec.nodes[0], ports=tuple(ports))
    axes: dict[str, Any] = {
        "dram.bandwidth": ["200 MB/s", "12.8 GB/s"],
        "dram.write_bandwidth": ["1 GB/s", "12.8 GB/s"],
    }
    own = space.parse(replace(spec, nodes=(dram, *spec.nodes[1:])), axes)
    built, columns = Table(own).columns(np.arange(4))
    assert built.all()
    arches = [space.decode(own, i) for i in range(4)]
    runs = [(e, 1.0) for e in catalog.load("mlp_s:batch=4").einsums]
    pj, cycles = bound_kernels.sequential(runs, columns)
    alone = [bounds.sequential(runs, arch) for arch in arches if isinstance(arch, Arch)]
    assert list(zip(pj.tolist(), cycles.tolist(), strict=True)) == alone
    for (e, _), arch in product(runs, arches):
        assert isinstance(arch, Arch)
        moved = {("input", "read"): 0.0, ("weight", "read"): 0.0, ("output", "write"): 0.0}
        for p, of in zip(e.tensors(), [*moved], strict=True):
            moved[of] += prod(dim.size for dim in p.dims) * 8 / arch.levels[0].width_bits
        rate = dict.fromkeys(moved, 0.0)
        for of, n in moved.items():
            (time,) = (
                n / arch.levels[0].bandwidth / one[2 + (of[1] == "write")]
                for one in arch.levels[0].ports
                if of[0] in one[of[1] == "write"]
            )
            rate[of] = time
        by_port = Counter[int]()
        for of, time in rate.items():
            by_port[at[of[0], int(of[1] == "write")]] += time  # type: ignore[assignment]
        assert bounds.latency_cycles(e, arch) >= max(by_port.values()) * (1 - 1e-12)


def test_sums_from_and_to_the_outside_may_have_ports_of_their_own() -> None:
    """Of the 48 reads of C at GLB 8 are drains; A and B arrive in 48 writes, C is added to in 48 (24 by two
    PEs at once, of which k is not one).
    """
    ports = f"{{read: [input]}}, {{read: [weight]}}, {{read: [output], write: {ALL}}}"
    apart = f"{{read: [input]}}, {{read: [weight]}}, {{read: [output], write: {ALL}}}, {{drain: [output]}}"
    found = [
        einsum_cost(Problem(a2(glb=f"{{actions_per_cycle: 8, ports: [{own}]}}"), GEMM, "latency"), NEST)
        for own in (ports, apart)
    ]
    assert [one.latency_cycles for one in found if isinstance(one, EinsumCost)] == [18, 17]
    assert len({one.energy_pj for one in found if isinstance(one, EinsumCost)}) == 1


STUDY = """
name: ports
workloads: ["gemm:m=12,n=8,k=16"]
machine: npu.yaml
space: {array.x: [2, 4], dram.write_bandwidth: [1 GB/s, 8 GB/s]}
objectives: [energy_pj, latency_ns]
search: {method: exhaustive}
"""
NPU = """
name: npu
clock_mhz: 500
node_nm: 32
nodes:
- {memory: dram, kind: lpddr4, width_bits: 64}
- {memory: gbuf, capacity: 2 KiB, width_bits: 64, double_buffer: true,
   ports: [{read: [weight]}, {read: [input, output], write: [input, weight, output]}]}
- {array: array, dims: {y: 2, x: 4}}
- {memory: acc, capacity: 128 B, width_bits: 32, may_keep: [output], bypass: false}
- {compute: mac, kind: int8}
"""


def test_a_study_has_the_costs_of_each_machine_by_itself(tmp_path: Path) -> None:
    (tmp_path / "npu.yaml").write_text(NPU)
    (tmp_path / "ports.yaml").write_text(STUDY)
    run = dse.sweep(tmp_path / "ports.yaml", out=tmp_path / "run", workers=0)
    rows = run.sql(
        "SELECT array_x, dram_write_bandwidth AS rate, energy_pj, latency_cycles FROM designs"
    ).table.to_pylist()
    assert len(rows) == 4
    for row in rows:
        rates = {"array.x": row["array_x"], "dram.write_bandwidth": f"{row['rate']:g} GB/s"}
        one = dse.map("gemm:m=12,n=8,k=16", str(tmp_path / "npu.yaml"), **rates)
        assert (one.energy_pj, one.latency_cycles) == (row["energy_pj"], row["latency_cycles"])
    slow, fast = (sum(row["latency_cycles"] for row in rows if row["rate"] == rate) for rate in (1, 8))
    assert slow > fast
    (tmp_path / "b.yaml").write_text(STUDY + "solver: {schedule: residency}\n")
    with pytest.raises(
        studies.StudyError, match=r"solver.schedule = residency does not time ports .*dram.ports, gbuf"
    ):
        studies.load(tmp_path / "b.yaml")


REFUSED: dict[str, tuple[Callable[[Path], Any], str]] = {
    **{
        name: (
            lambda at, name=name: dse.map("mlp_s:batch=4", str(at), **{"solver.schedule": name}),  # type: ignore[misc]
            rf"solver.schedule = {name} does not time ports .*\(gbuf.ports\).*--set gbuf.ports=shared",
        )
        for name in ("pipelined", "residency", "gogeta")
    },
    "tiling": (lambda at: dse.map("mlp_s:batch=4", str(at), **{"solver.tiling": "smaug"}), "tiling = smaug"),
    "sharing": (
        lambda at: dse.map("mlp_s:batch=4", str(at), **{"solver.sharing_gap": 0.1}), "sharing_gap = 0.1"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_knows_ports_that_serve_all_refuses_in_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "npu.yaml").write_text(NPU)
    call, says = REFUSED[name]
    with pytest.raises(ValueError, match=says) as found:
        call(tmp_path / "npu.yaml")
    assert "\n" not in str(found.value)


def test_given_schedules_and_shared_tiles_are_refused(tmp_path: Path) -> None:
    (line,) = (
        one for one in faults(parse(f"share GLB C over X\n{NEST}"), GEMM, a2(glb="{writes_per_cycle: 4}"))
        if "timed at ports" in one
    )  # fmt: skip
    assert line.startswith("mapping of C: share GLB C: parts that PEs pass round")
    workload, path = "mlp_s:batch=4", tmp_path / "npu.yaml"
    path.write_text(NPU)
    fused = dse.map(workload, str(path), **{"solver.schedule": "fused"}).schedule
    (tmp_path / "plan.txt").write_text(fused)
    assert api.simulate(workload, str(path), tmp_path / "plan.txt").latency_cycles > 0
    (tmp_path / "plan.txt").write_text(f"weights pinned\n{fused}")
    with pytest.raises(ValueError, match=r"npu has gbuf.ports: map its einsums one by one") as found:
        api.simulate(workload, str(path), tmp_path / "plan.txt")
    assert "\n" not in str(found.value)


FAULTS = {
    "ports: separate": [],
    "ports: both": ['gbuf.ports = "both" is no kind of ports; write shared, separate or ports, e.g. [{read:'],
    "ports: []": ["gbuf.ports = [] is no kind of ports"],
    "ports: [read]": ["gbuf.ports[0] = read is no port"],
    "ports: [{reads: [input]}]": ["gbuf.ports[0].reads is no key of a port; use read, write, fill"],
    "ports: [{read: [inputs]}]": ["gbuf.ports[0].read = ['inputs'] names inputs, which is no part of an"],
    "ports: [{times: 2}]": ["gbuf.ports[0] serves nothing; add read or write"],
    "ports: [{read: [input], times: 0}]": ["gbuf.ports[0].times = 0 is no number above 0; write e.g. 2"],
    f"ports: [{{read: {ALL}, write: [input, output]}}]": ["gbuf.ports do not serve write of weight; add"],
    f"ports: [{{read: {ALL}, write: {ALL}}}, {{read: [weight]}}]": ["gbuf.ports serve read of weight 2"],
    f"ports: [{{read: {ALL}, write: {ALL}, fill: [weight]}}]": ["gbuf.ports serve fill of weight"],
    f"ports: [{{read: {ALL}, write: [weight]}}], may_keep: [weight]": [
        "gbuf.ports serve read of input, which may not stand there",
        "gbuf.ports serve read of output, which may not stand there",
    ],
    "writes_per_cycle: 0.5, write_bandwidth: 1 GB/s": ["gbuf.write_bandwidth = 1 GB/s stands beside writ"],
    "writes_per_cycle: 9": ["gbuf.writes_per_cycle asks for 9 accesses per cycle, the array sustains"],
    "writes_per_cycle: 0.5, bank_map: word": ["gbuf.writes_per_cycle stands beside gbuf.bank_map: lines"],
}  # fmt: skip


@pytest.mark.parametrize("key", FAULTS)
def test_faults_of_the_keys_are_one_line_each(key: str) -> None:
    _, lines = machine.parse(yaml.safe_load(re.sub(r"ports: \[.*\}\]", key, NPU)), "npu")
    assert len(lines) == len(FAULTS[key])
    assert all(line.startswith(start) for line, start in zip(lines, FAULTS[key], strict=True))


def test_ports_are_no_axis_and_may_be_overridden() -> None:
    spec, _ = machine.parse(yaml.safe_load(NPU), "npu")
    listed = [[{"read": [*ROLES], "write": [*ROLES]}]]
    with pytest.raises(space.SpaceError, match="holds a list, no value of a column"):
        space.parse(spec, {"gbuf.ports": listed})
    assert space.override(spec, {"gbuf.ports": listed[0]}).nodes[1].ports == (Port(ROLES, ROLES),)  # type: ignore[union-attr]
    assert space.override(spec, {"gbuf.ports": "shared"}).nodes[1].ports == "shared"  # type: ignore[union-attr]


def test_a_machine_without_the_keys_is_known_as_before(tmp_path: Path) -> None:
    """The identity of its studies is what it was before there were the keys."""
    (tmp_path / "a.yaml").write_text(
        STUDY.replace("npu.yaml", "edge_array").replace(", dram.write_bandwidth: [1 GB/s, 8 GB/s]", "")
    )
    assert studies.identity(studies.load(tmp_path / "a.yaml"))["machine"] == "edge_array 41cee352c34ea84a"


def test_imperfect_factors_are_searched_elsewhere() -> None:
    for glb in ("{}", "{writes_per_cycle: 4}"):
        arch = a2(glb=glb)
        assert bool(ragged_program.unsupported(GEMM, arch)) == bool(arch.with_ports())


OF_SUMS = """
name: sums
clock_mhz: 1000
word_bits: 8
nodes:
- {memory: dram, kind: custom, width_bits: 8, read_pj: 100, write_pj: 100, actions_per_cycle: 4, leak_mw: 0,
   area_mm2: 0}
- {array: pe, dims: {x: 2}}
- {memory: acc, kind: custom, capacity: 2 B, width_bits: 8, read_pj: 1, write_pj: 1, actions_per_cycle: 1,
   leak_mw: 1, area_mm2: 1, may_keep: [output],
   ports: [{read: [output], write: [output]}, {fill: [output]}, {drain: [output]}]}
- {compute: mac, kind: custom, mac_pj: 1, alu_pj: 1, merge_pj: 1, leak_mw: 0, area_mm2: 0}
"""
STUDY_OF_SUMS = """
name: sums
machine: sums.yaml
workloads: ["gemm:m=4,n=4,k=8"]
space: {acc.read_pj: [1, 2]}
objectives: [energy_pj]
"""


def test_views_leave_out_rows_that_only_time_ports(tmp_path: Path) -> None:
    """Fills and drains through ports of their own are part of writes and reads: SQL prices each once."""
    (tmp_path / "sums.yaml").write_text(OF_SUMS)
    (tmp_path / "study.yaml").write_text(STUDY_OF_SUMS)
    driver.run(studies.load(tmp_path / "study.yaml"), tmp_path / "run", workers=0)
    run = runs.open(tmp_path / "run")
    stored = run.sql("SELECT elems, busiest_elems FROM counts WHERE action = 'drain'")
    assert [row["elems"] for row in stored] == [0] * len(stored)
    assert stored
    assert all(row["busiest_elems"] > 0 for row in stored)
    assert not run.sql("FROM traffic WHERE action IN ('fill', 'drain')")
    points = run.sql("SELECT machine, energy_pj FROM points ORDER BY machine")
    for view in ("traffic", "components"):
        sums = run.sql(f"SELECT sum(energy_pj) AS pj FROM {view} GROUP BY machine ORDER BY machine")
        assert [row["pj"] for row in sums] == pytest.approx([row["energy_pj"] for row in points])
