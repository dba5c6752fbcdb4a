"""Designs of Timeloop, ZigZag and AccelForge become ours; mappings go there and back and cost the same."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections import Counter
from pathlib import Path
from random import Random

import pytest
import yaml

from dse.exchange import accelforge_mapping, convert, timeloop_mapping
from dse.exchange.blocks import Block, Inexpressible, Turn, nest_of
from dse.exchange.notes import NotCarried, Notes, Unreadable
from dse.frontend import api
from dse.mapping import nest
from dse.mapping.nest import Store
from dse.mapping.schedule import parse_schedule
from dse.sim.einsum.evaluate import EinsumCost, Problem, Solution, einsum_cost
from dse.sim.schedule.graph import evaluate
from hw import machine
from hw.arch import Arch, Port
from tests import exchanged
from tests.commands import dse, good
from workloads import catalog
from workloads.einsum import Einsum, einsum
from workloads.text import workload

CASES = 40  # random mappings per tool; more: tests/prove/exchange.py


def put(folder: Path, **texts: str) -> list[str]:
    """Writes files NAME.yaml."""
    for name, text in texts.items():
        (folder / f"{name}.yaml").write_text(text)
    return [f"{name}.yaml" for name in texts]


@pytest.mark.parametrize(
    ("back", "all_held"),
    [(exchanged.timeloop_back, False), (exchanged.zigzag_back, True)],
    ids=["timeloop", "zigzag"],
)
def test_a_mapping_comes_back_at_the_same_cost_or_says_what_is_lost(
    back: exchanged.Back, all_held: bool
) -> None:
    outcomes: Counter[str] = Counter()
    for seed in range(CASES):
        if (case := exchanged.random_case(Random(seed), all_held)) is None:
            continue
        what, found = exchanged.outcome(back, case)
        assert what != "WRONG", (seed, str(case[2]), str(found))
        outcomes[what] += 1
    assert outcomes["same"] > CASES / 4, outcomes


def test_a_loop_tree_comes_back_as_it_was() -> None:
    """AccelForge."""
    for seed in range(CASES):
        if (case := exchanged.random_case(Random(seed))) is None:
            continue
        e, arch, mapping, _ = case
        assert exchanged.accelforge_back(e, arch, mapping, Notes()) == mapping


def test_reuse_that_timeloop_implies_is_said_by_position() -> None:
    """B stays while m goes on, which does not move it; PEs are raised with its register."""
    arch = machine.load_arch("edge_array")
    e = einsum("C[m,n] += A[m,k] * B[k,n]", {"m": 4, "n": 16, "k": 2})
    blocks = [
        Block(tuple(Store("DRAM", t) for t in "ABC")),
        Block(tuple(Store("GBUF", t) for t in "ABC"), (Turn("k", 2), Turn("m", 4))),
        Block((), (Turn("n", 16, "X"),)),
        Block((Store("REGF", "B"),)),
    ]
    found, kept = nest_of(blocks, e, arch)
    assert [str(line).strip() for line in str(found).splitlines()][2:] == [
        "for k tile 1",
        "parfor n tile 1 over X",
        "store REGF B",
        "for m tile 1",
        "mac",
    ]
    assert kept == []


CONV = einsum("O[m,p] += I[p+r] * W[m,r]", {"m": 4, "p": 8, "r": 3})


def test_a_window_slides_with_the_loop_next_to_it_only() -> None:
    """As in Timeloop's outputs of exercise 06-mapper-convlayer-eyeriss: with a loop that does not move the
    input in between, its tile is fetched whole.
    """
    arch = machine.load_arch("edge_array")
    above = Block(tuple(Store("DRAM", t) for t in "IWO"))
    inside = Block((Store("REGF", "I"),), (Turn("r", 3),))
    next_to_it, kept = nest_of([above, Block((), (Turn("m", 4), Turn("p", 8))), inside], CONV, arch)
    between, _ = nest_of([above, Block((), (Turn("p", 8), Turn("m", 4))), inside], CONV, arch)
    assert kept == []
    assert [str(line).strip() for line in str(next_to_it).splitlines()][1:4] == [
        *("for m tile 1", "store REGF I", "for p tile 1")
    ]
    assert [str(line).strip() for line in str(between).splitlines()][1:4] == [
        *("for p tile 1", "store REGF I", "for m tile 1")
    ]


def test_a_node_does_not_pass_those_outside_of_its_array() -> None:
    """W stays in Timeloop while p goes on; PEs cannot rise above the buffer's nodes: it is fetched again."""
    arch = machine.load_arch("edge_array")
    blocks = [
        Block(tuple(Store("DRAM", t) for t in "IWO"), (Turn("p", 8),)),
        Block((Store("GBUF", "I"), Store("GBUF", "O"))),
        Block((), (Turn("m", 4, "X"),)),
        Block((Store("REGF", "W"),), (Turn("r", 3),)),
    ]
    found, kept = nest_of(blocks, CONV, arch)
    assert nest.faults(found, CONV, arch) == []
    assert [(one.level, one.tensor, one.rank) for one in kept] == [("REGF", "W", "p")]


def test_a_ragged_end_is_a_residual_factor() -> None:
    arch = machine.load_arch("edge_array")
    e = einsum("C[m,n] += A[m,k] * B[k,n]", {"m": 5, "n": 2, "k": 2})
    loops = "for m tile 2\nstore GBUF A\nfor k tile 1\nfor n tile 1\nfor m tile 1"
    own = nest.parse(f"store DRAM A B C\n{loops}\nmac")
    entries = timeloop_mapping.write("own", own, e, arch, Notes())
    assert "m=2,1" in [factor for entry in entries for factor in entry.get("factors", [])]
    back = timeloop_mapping.read("own", entries, timeloop_mapping.parts_of(arch), e, arch, Notes())
    cost = einsum_cost(Problem(arch, e, "energy"), own)
    assert isinstance(cost, EinsumCost)
    assert exchanged.costs_the_same(cost, einsum_cost(Problem(arch, e, "energy"), back))


def test_timeloop_counts_are_ours(tmp_path: Path) -> None:
    """Exercise conv1d-2level-ws of timeloop-accelergy-exercises: its timeloop-model.stats.txt says 3 fills of
    weights, 18 of inputs (a window of 16 slides over 3), 16 results written to main memory.
    """
    arch = """
architecture:
  version: 0.4
  nodes:
  - !Container {name: System, attributes: {technology: 40nm, global_cycle_seconds: 1e-9}}
  - !Component {name: MainMemory, class: SRAM, attributes: {depth: 32768, width: 64, datawidth: 8}}
  - !Component {name: Buffer, class: regfile, attributes: {depth: 64, width: 8, datawidth: 8}}
  - !Component {name: MACC, class: intmac, attributes: {width: 8}}
"""
    problem = """
problem:
  shape:
    name: Conv1D
    dimensions: [R, P]
    data_spaces:
    - {name: Weights, projection: [[[R]]]}
    - {name: Inputs, projection: [[[R], [P]]]}
    - {name: Outputs, projection: [[[P]]], read_write: True}
  instance: {R: 3, P: 16}
"""
    mapping = """
mapping:
- {target: MainMemory, type: temporal, factors: R=3 P=1, permutation: RP}
- {target: Buffer, type: temporal, factors: R=1 P=16, permutation: PR}
"""
    files = put(tmp_path, arch=arch, problem=problem, mapping=mapping)
    good("convert", "timeloop", *files, "-o", "d", folder=tmp_path)
    arch_of = machine.load_arch(str(tmp_path / "d/machine.yaml"))
    e = catalog.load(str(tmp_path / "d/workload.yaml")).einsums[0]
    own = nest.read(tmp_path / "d/mapping.yaml", ["Conv1D"])["Conv1D"]
    cost = einsum_cost(Problem(arch_of, e, "energy"), own)
    assert isinstance(cost, EinsumCost)
    counts = {row.key: row.elems for row in cost.counts}
    assert counts["BUFFER", "Weights", "write"] == counts["MAINMEMORY", "Weights", "read"] == 3
    assert counts["BUFFER", "Inputs", "write"] == counts["MAINMEMORY", "Inputs", "read"] == 18
    assert counts["MAINMEMORY", "Outputs", "write"] == 16
    assert counts["BUFFER", "Outputs", "write"] == 48


def test_a_design_of_timeloop(tmp_path: Path) -> None:
    files = put(
        tmp_path,
        arch=exchanged.TIMELOOP_ARCH,
        problem=exchanged.TIMELOOP_PROBLEM,
        mapping=exchanged.TIMELOOP_MAPPING,
    )
    good("convert", "timeloop", *files, "-o", "d", folder=tmp_path)
    arch = machine.load_arch(str(tmp_path / "d/machine.yaml"))
    assert arch.clock_ghz == 0.5
    assert [level.name for level in arch.levels] == ["DRAM", "GLOBALBUFFER", "WEIGHTREG", "PSUMREG"]
    buffer, weights, psums = arch.levels[1:]
    assert (buffer.capacity_bits, buffer.bandwidth, buffer.ports) == (512 * 4 * 64, 2.0, "separate")
    assert (buffer.may_keep, buffer.bypass) == (("input", "output"), False)
    assert (weights.may_keep, weights.bypass) == (("weight",), False)
    assert psums.may_keep == ("output",)
    # 8 lines of one element of 16 bits hold 8 elements, one per action, of whatever width
    assert (psums.capacity_bits, psums.width_bits) == (64, 8)
    assert arch.fanouts[0].dims == (("X", 8),)
    e = catalog.load(str(tmp_path / "d/workload.yaml")).einsums[0]
    assert e.sizes() == {"C": 8, "M": 16, "R": 3, "P": 10}
    assert [p.tensor for p in e.inputs] == ["Inputs", "Weights"]
    assert e.inputs[0].dims[1].terms == (("R", 1), ("P", 2))
    said = good("simulate", "d/workload.yaml", "d/machine.yaml", "d/mapping.yaml", folder=tmp_path)
    assert "ok" in said
    there = good(
        *("simulate", "d/workload.yaml", "d/machine.yaml", "d/mapping.yaml", "--format", "timeloop"),
        *("--names", "arch.yaml"),
        folder=tmp_path,
    )
    found = yaml.safe_load(there)["mapping"]
    assert [one["target"] for one in found if one["type"] == "temporal"] == [
        *("DRAM", "GlobalBuffer", "WeightReg", "PsumReg")
    ]
    assert next(one for one in found if one["type"] == "spatial")["target"] == "PE"


def test_rates_of_reads_and_of_writes(tmp_path: Path) -> None:
    """In words of Timeloop and in actions per second of AccelForge; what is not given has none (1e6)."""
    for given, reads, ports in (
        ("read_bandwidth: 16, write_bandwidth: 4", 2.0, (2.0, 0.5)),
        ("read_bandwidth: 16", 2.0, (2.0, 1e6)),
        ("write_bandwidth: 4", 1e6, (1e6, 0.5)),
        ("shared_bandwidth: 16", 2.0, None),
    ):
        arch = exchanged.TIMELOOP_ARCH.replace("read_bandwidth: 16, write_bandwidth: 16", given)
        files = put(tmp_path, arch=arch, problem=exchanged.TIMELOOP_PROBLEM)
        written, _ = convert.convert(
            "timeloop", [tmp_path / one for one in files], tmp_path / given[-9:], lossy=False
        )
        level = machine.load_arch(str(written[0])).levels[1]
        found = [(level.port("input", way), level.bandwidth) for way in ("read", "write")]
        if ports is None:
            assert level.ports == "shared"
        else:
            assert tuple(times * rate for (_, times), rate in found) == ports
            assert found[0][0][0] != found[1][0][0]
        assert level.bandwidth == reads
    write = "{name: write, energy: 7.03e-12, throughput: 8 * "
    (tmp_path / "a.yaml").write_text(exchanged.ACCELFORGE.replace(f"{write}38.4e9", f"{write}3.2e9"))
    written, said = convert.convert("accelforge", [tmp_path / "a.yaml"], tmp_path / "af", lossy=True)
    dram = machine.load_arch(str(written[0])).levels[0]
    assert dram.port("weight", "read")[0] == dram.port("output", "write")[0]
    assert dram.port("output", "write")[1] == pytest.approx(dram.port("weight", "read")[1] * 3.2 / 38.4)
    assert not [line for line in said if "throughput" in line]


def test_a_loss_is_a_line_and_nothing_is_written(tmp_path: Path) -> None:
    arch = exchanged.TIMELOOP_ARCH.replace(
        "    spatial: {meshX: 8}", "    spatial: {meshX: 8}\n    constraints: {spatial: {no_reuse: [Inputs]}}"
    )
    files = put(tmp_path, arch=arch, problem=exchanged.TIMELOOP_PROBLEM)
    said = dse("convert", "timeloop", *files, "-o", "d", folder=tmp_path)
    assert said.returncode == 2
    assert said.stderr.splitlines()[0].startswith("lost: arch.yaml: PE.constraints.spatial: no_reuse: ")
    assert "--lossy" in said.stderr.splitlines()[-1]
    assert not (tmp_path / "d").exists()
    said = dse("convert", "timeloop", *files, "-o", "d", "--lossy", folder=tmp_path)
    assert said.returncode == 0
    assert "lost: arch.yaml: PE.constraints.spatial: no_reuse: " in said.stderr
    assert machine.load(str(tmp_path / "d/machine.yaml")).nodes


def test_constraints_become_rules(tmp_path: Path) -> None:
    """Inside and in a file of constraints: trip counts over dimensions and at levels, tensors that must stand
    somewhere. `split` says which ranks stand on X.
    """
    arch = exchanged.TIMELOOP_ARCH.replace(
        "    spatial: {meshX: 8}",
        "    spatial: {meshX: 4, meshY: 2}\n    constraints: {spatial: "
        "{factors: [R=1, C=0, M<=2], permutation: [C, R, M, P], split: 2}}",
    )
    targets = """
mapspace_constraints:
  targets:
  - {target: GlobalBuffer, type: temporal, factors: P=4 C>=2}
  - {target: GlobalBuffer, type: dataspace, keep: [Inputs]}
"""
    files = put(tmp_path, arch=arch, problem=exchanged.TIMELOOP_PROBLEM, own=targets)
    good("convert", "timeloop", *files, "-o", "d", folder=tmp_path)
    assert yaml.safe_load((tmp_path / "d/machine.yaml").read_text())["mapping"] == [
        {"at": "globalbuffer", "factors": {"P": 4, "C": ">= 2"}},
        {"at": "globalbuffer", "keep": ["input"]},
        {"at": "x", "ranks": ["C", "R"]},
        {"at": "x", "factors": {"R": 1, "C": "all"}},
        {"at": "y", "factors": {"C": 1, "R": 1, "M": "<= 2"}},
    ]
    assert [rule.at for rule in machine.load_arch(str(tmp_path / "d/machine.yaml")).mapping] == [
        *("GLOBALBUFFER", "GLOBALBUFFER", "X", "X", "Y")
    ]


def test_orders_that_fix_nothing_and_room_for_indices(tmp_path: Path) -> None:
    """An order of loops of which one may have trips says nothing, others become rules, outermost first;
    metadata take room beside values.
    """
    text = """
architecture:
  version: 0.4
  nodes:
  - !Component {name: DRAM, class: DRAM, attributes: {type: LPDDR4, width: 64, datawidth: 8},
     constraints: {temporal: {permutation: [K], factors: K=1}}}
  - !Component {name: RF, class: regfile, attributes: {depth: 64, width: 8, datawidth: 8,
     metadata_storage_depth: 32, metadata_storage_width: 4},
     constraints: {temporal: {permutation: [N, K, M], factors: M=1 N=1}}}
  - !Component {name: LRF, class: regfile, attributes: {depth: 64, width: 8, datawidth: 8},
     constraints: {temporal: {permutation: [N, K, M], factors: M=1}}}
  - !Component {name: MAC, class: intmac, attributes: {multiplier_width: 8}}
"""
    put(tmp_path, arch=text)
    lossy = dse("convert", "timeloop", "arch.yaml", "-o", "d", "--lossy", folder=tmp_path)
    assert [line for line in lossy.stderr.splitlines() if line.startswith("lost")] == []
    found = yaml.safe_load((tmp_path / "d" / "machine.yaml").read_text())
    nodes, rules = found["nodes"], found["mapping"]
    assert [rule for rule in rules if "order" in rule] == [{"at": "lrf", "order": ["K", "N"]}]
    assert [node.get("capacity") for node in nodes[1:3]] == ["80 B", "64 B"]


DESIGNS = Path(__file__).parent / "data" / "designs"
# of each design of another tool a rule, port or key of a node that says what it asks for
SAYS: dict[str, object] = {
    "eyeriss.timeloop": {"at": "wspad", "order": ["R", "C"]},
    "simba.timeloop": {"at": "pe_x", "factors": {"R": 1, "S": 1, "P": 1, "Q": 1, "N": 1}},
    "sparse_tensor_core.timeloop": {"at": "rf", "inside": ["K"]},
    "ascend.zigzag": [{key: ["output"]} for key in ("read", "drain", "write", "fill")],
    "tpu_v4i.accelforge": {"at": "reuse_input", "ranks": ["output_channel"], "utilization": 1.0},
}


@pytest.mark.parametrize("design", SAYS)
def test_machines_of_other_tools_lose_nothing(design: str, tmp_path: Path) -> None:
    """What stood as lost of five of them: orders of loops, sums with ports to either side, a wish for all
    PEs, steps of 2:4 and loops at a level that holds no tensor with their rank.
    """
    written, said = convert.convert(
        design.partition(".")[2], [DESIGNS / f"{design}.yaml"], tmp_path / "d", False
    )
    assert [line for line in said if line.startswith("lost")] == []
    found = yaml.safe_load((tmp_path / "d" / "machine.yaml").read_text())
    assert SAYS[design] in [*found.get("mapping", []), *(node.get("ports") for node in found["nodes"])]
    assert isinstance(machine.load_arch(str(written[0])), Arch)


def test_a_compute_beside_the_array_is_a_core(tmp_path: Path) -> None:
    """As in AccelForge's tpu_v4i: functions run on a unit outside of the PEs."""
    text = """
arch:
  nodes:
  - !Memory {name: Main, size: inf, leak_power: 0, area: 0, tensors: {keep: All},
     actions: [{name: read, energy: 7e-12, throughput: 1e11}, {name: write, energy: 7e-12, throughput: 1e11}]}
  - !Memory {name: Buffer, size: 8192, leak_power: 1e-3, area: 1e-6, tensors: {keep: All},
     actions: [{name: read, energy: 1e-12, throughput: inf}, {name: write, energy: 1e-12, throughput: inf}]}
  - !Compute {name: Scalar, area: 1e-6, leak_power: 0, enabled: len(All) == 2,
     actions: [{name: compute, energy: 0, throughput: 4e9}]}
  - !Container {name: PE, spatial: [{name: a, fanout: 4, reuse: input}, {name: b, fanout: 2, reuse: output}]}
  - !Compute {name: MAC, leak_power: 0, area: 1e-9, enabled: len(All) == 3,
     actions: [{name: compute, energy: 1e-12, throughput: 1e9}]}
"""
    put(tmp_path, arch=text)
    good("convert", "accelforge", "arch.yaml", "-o", "d", folder=tmp_path)
    arch = machine.load_arch(str(tmp_path / "d" / "machine.yaml"))
    assert [(one.compute.name, one.compute.core, one.instances(2)) for one in arch.units] == [
        ("SCALAR", "WITH_SCALAR", 1),
        ("MAC", "WITH_MAC", 8),
    ]
    (tmp_path / "w.yaml").write_text(
        "extents: {m: 4, n: 4, k: 4}\neinsums: ['C[m,n] += A[m,k] * B[k,n]', 'S[m,n] = softmax(C[m,n])']\n"
    )
    found = api.map(str(tmp_path / "w.yaml"), str(tmp_path / "d" / "machine.yaml"))
    assert [row["unit"] for row in found.einsums] == ["MAC", "SCALAR"]
    assert "parfor n in [0:4) tile 1 over A" in found.einsums[0]["mapping"]


def test_energies_of_an_ert(tmp_path: Path) -> None:
    ert = """
ERT:
  tables:
  - {name: "System.DRAM[1..1]", actions: [{name: read, energy: 512.0}, {name: write, energy: 500.0}]}
  - name: System.GlobalBuffer[1..1]
    actions: [{name: read, energy: 12.5}, {name: write, energy: 13.5}, {name: leak, energy: 0.5}]
  - {name: "System.PE[1..8].MAC[1..8]", actions: [{name: compute, energy: 0.75}]}
"""
    files = put(tmp_path, arch=exchanged.TIMELOOP_ARCH, problem=exchanged.TIMELOOP_PROBLEM, ert=ert)
    good("convert", "timeloop", *files, "-o", "d", folder=tmp_path)
    arch = machine.load_arch(str(tmp_path / "d/machine.yaml"))
    assert (arch.levels[0].read_pj, arch.levels[0].write_pj) == (512, 500)
    assert (arch.levels[1].read_pj, arch.levels[1].write_pj) == (12.5, 13.5)
    assert arch.levels[1].leak_mw == 0.25  # 0.5 pJ in a cycle of 2 ns
    assert arch.compute.mac_pj == 0.75


def test_a_design_of_zigzag(tmp_path: Path) -> None:
    files = put(tmp_path, machine=exchanged.ZIGZAG_MACHINE, layers=exchanged.ZIGZAG_LAYERS)
    good("convert", "zigzag", *files, "-o", "d", folder=tmp_path)
    arch = machine.load_arch(str(tmp_path / "d/machine.yaml"))
    assert [level.name for level in arch.levels] == ["DRAM", "SRAM", "REG"]
    assert (arch.levels[1].width_bits, arch.levels[1].read_pj, arch.levels[1].ports) == (128, 10, "shared")
    assert (arch.levels[2].capacity_bits, arch.levels[2].may_keep) == (128, ("output",))
    assert (arch.fanouts[0].outside, arch.fanouts[0].dims) == (2, (("D1", 4), ("D2", 4)))
    e = catalog.load(str(tmp_path / "d/workload.yaml")).einsums[0]
    assert [(p.tensor, p.bits) for p in e.tensors()] == [("I", 8), ("W", 8), ("O", 16)]
    assert e.inputs[0].dims[2].terms == (("oy", 2), ("fy", 1))
    (tmp_path / "mapping.yaml").write_text(_zigzag_mapping(arch, e))
    good("convert", "zigzag", *files, "mapping.yaml", "-o", "e", folder=tmp_path)
    assert "ok" in good("simulate", "e/workload.yaml", "e/machine.yaml", "e/mapping.yaml", folder=tmp_path)


def test_ports_of_several_widths_of_zigzag(tmp_path: Path) -> None:
    """An access costs the same by each port: energies per bit go over where all that read, or write, are of
    one width.
    """
    one = '{name: rw, type: read_write, bandwidth_min: 64, bandwidth_max: 128, allocation: ["I1, tl"]}'
    read = '{name: r, type: read, bandwidth_min: 64, bandwidth_max: 64, allocation: ["I1, tl"]}'
    write = '{name: w, type: write, bandwidth_min: 64, bandwidth_max: 256, allocation: ["I1, fh"]}'
    for ports, lost in ((f"{read}\n    - {write}", 1), (f"{read}\n    - {write}\n    - {one}", 3)):
        (tmp_path / "a.yaml").write_text(exchanged.ZIGZAG_MACHINE.replace(one, ports))
        written, said = convert.convert("zigzag", [tmp_path / "a.yaml"], tmp_path / "d", lossy=True)
        arch = machine.load_arch(str(written[0]))
        ways = {"read": 10 * 256 / (64 if lost == 1 else 128), "write": 12}
        assert (arch.levels[1].width_bits, arch.levels[1].read_pj) == (256, ways["read"])
        assert arch.levels[1].write_pj == ways["write"]
        assert len([line for line in said if "sram.ports" in line]) == lost
    assert "to read; here an access of 64 bits costs 0.5 of r_cost" in "\n".join(said)


def test_ports_of_zigzag_serve_operands_and_directions(tmp_path: Path) -> None:
    """A port keeps which operands it reads and writes, and its rate; the sides of an output may have each."""
    before = '{name: rw, type: read_write, bandwidth_min: 64, bandwidth_max: 128, allocation: ["I1, tl"]}'
    ports = (
        '{name: a, type: read, bandwidth_max: 64, allocation: ["I1, tl", "O, tl", "O, th"]}',
        '{name: b, type: read, bandwidth_max: 128, allocation: ["I2, tl"]}',
        '{name: c, type: write, bandwidth_max: 64, allocation: ["I1, fh", "I2, fh", "O, fh", "O, fl"]}',
    )
    sides = exchanged.ZIGZAG_MACHINE
    for name, kind, way, direction in (("r", "read", "tl", "th"), ("w", "write", "fh", "fl")):
        one = f"{{name: {name}, type: {kind}, bandwidth_min: 16, bandwidth_max: 16, allocation: "
        text = f'{one}["O, {way}", "O, {direction}"]}}'
        assert text in sides
        sides = sides.replace(text, f'{one}["O, {way}"]}}\n    - {one}["O, {direction}"]}}')
    (tmp_path / "a.yaml").write_text(sides.replace(before, "\n    - ".join(ports)))
    written, said = convert.convert("zigzag", [tmp_path / "a.yaml"], tmp_path / "d", lossy=True)
    arch = machine.load_arch(str(written[0]))
    assert arch.levels[1].ports == (
        Port(("input", "output"), (), 0.5, 0.5),
        Port((), ("input", "weight", "output"), 0.5, 0.5),
        Port(("weight",), ()),
    )
    assert arch.levels[2].ports == (
        Port(("output",), ()),
        Port((), (), drain=("output",)),
        Port((), ("output",)),
        Port((), (), fill=("output",)),
    )
    (line,) = (line for line in said if ".ports" in line)
    assert line.endswith("here an access of 64 bits costs 0.5 of r_cost")


def test_dimensions_of_zigzag_keep_their_numbers_and_idle_ones_are_named(tmp_path: Path) -> None:
    """A register that serves D1 makes D2 the outer array; what a mapping leaves out ZigZag fills itself."""
    text = exchanged.ZIGZAG_MACHINE.replace("served_dimensions: []", "served_dimensions: [D1]")
    files = put(tmp_path, machine=text.replace("[4, 4]", "[2, 4]"), layers=exchanged.ZIGZAG_LAYERS)
    good("convert", "zigzag", *files, "-o", "d", folder=tmp_path)
    arch = machine.load_arch(str(tmp_path / "d/machine.yaml"))
    assert [fanout.dims for fanout in arch.fanouts] == [(("D2", 4),), (("D1", 2),)]
    e = catalog.load(str(tmp_path / "d/workload.yaml")).einsums[0]
    own = nest.parse(
        "store DRAM I W O\nstore SRAM I W O\nfor oy tile 1\nfor k tile 4\n"
        "parfor k tile 1 over D2\nstore REG O\nfor c tile 1\nfor fy tile 1\nmac"
    )
    written = yaml.safe_load(convert.written("zigzag", {e.name: own}, [e], arch, None))[0]
    assert written["spatial_mapping"] == {"D1": ["B, 1"], "D2": ["K, 4"]}


def _zigzag_mapping(arch: Arch, e: Einsum) -> str:
    """By hand: output channels over D1, input channels over D2."""
    own = nest.parse(
        "store DRAM I W O\nstore SRAM I W O\nfor k tile 4\nfor oy tile 1\n"
        "parfor k tile 1 over D1\nparfor c tile 1 over D2\nstore REG O\nfor fy tile 1\nmac"
    )
    assert nest.faults(own, e, arch) == []
    return convert.written("zigzag", {e.name: own}, [e], arch, None)


def test_a_design_of_accelforge(tmp_path: Path) -> None:
    files = put(tmp_path, spec=exchanged.ACCELFORGE)
    good("convert", "accelforge", *files, "-o", "d", folder=tmp_path)
    arch = machine.load_arch(str(tmp_path / "d/machine.yaml"))
    main, buffer, register = arch.levels
    assert main.read_pj == pytest.approx(7.03 * main.width_bits)
    assert main.bandwidth * main.width_bits == pytest.approx(8 * 38.4)
    assert buffer.capacity_bits == 1024 * 8 * 8
    assert buffer.write_pj == pytest.approx(0.5 * buffer.width_bits)
    assert (buffer.leak_mw, buffer.area_mm2) == (1, 1)
    assert (register.may_keep, register.bypass) == (("output",), False)
    assert arch.compute.mac_pj == pytest.approx(0.08)
    workload = catalog.load(str(tmp_path / "d/workload.yaml"))
    assert [e.name for e in workload.einsums] == ["Matmul0", "Matmul1"]
    assert workload.weights == {"W0", "W1"}
    assert "ok" in good("simulate", "d/workload.yaml", "d/machine.yaml", "d/schedule.txt", folder=tmp_path)


def test_what_accelforge_holds_above_two_einsums_is_retained() -> None:
    """By hand: T1, made and read in the buffer, moves nothing at DRAM; X, read by both, is fetched once."""
    products = workload(
        {"m": 8, "n": 4, "k": 4}, "T1[m,n] += X[m,k] * W0[k,n]", "T2[m,n] += X[m,k] * T1[m,n]", name="two"
    )
    loops = [["loop", [rank], 1, ""] for rank in "mnk"]
    branches = [[*loops, ["einsum", "T1"]], [*loops, ["einsum", "T2"]]]
    nodes = [["store", "DRAM", ["X", "W0", "T2"]], ["store", "GLB", ["X", "W0", "T1", "T2"]]]
    tensors = {e.name: [p.tensor for p in (e.output, *e.inputs)] for e in products.einsums}
    text = accelforge_mapping.schedule_text([*nodes, ["split", branches]], tensors)
    assert text.startswith("retain GLB X 1\nretain GLB T1 1\nsegment")
    found = evaluate(machine.load_arch("a2s"), products, parse_schedule(text))
    assert isinstance(found, Solution)
    moved = Counter[str]()
    for count in (count for own in found.einsums for count in own.counts if count.level == "DRAM"):
        moved[count.tensor] += count.elems
    assert +moved == {"X": 32, "W0": 16, "T2": 32}
    with pytest.raises(Inexpressible, match="T1 stands in DRAM and further inside above several einsums"):
        accelforge_mapping.schedule_text([["store", "DRAM", ["T1"]], *nodes, ["split", branches]], tensors)


def test_a_template_of_accelforge(tmp_path: Path) -> None:
    """A file of names, one that includes parts of another, deep merges, loops, conditions, assertions."""
    parts = tmp_path / "parts"
    parts.mkdir()
    (parts / "layer.yaml").write_text(
        "workload:\n  rank_sizes: {M: {{M}}, N: {{N}}, K: ceil(N / 3)}\n  einsums:\n"
        "  - 'Y[m, n] = X[m, k] * W[k, n]'\n"
    )
    (parts / "checked.yaml").write_text("{% assert M <= 8, 'M is at most 8' %}\n# checked\n")
    (tmp_path / "model.yaml").write_text(
        "{{add_to_path('parts')}}\n{{include_text('checked.yaml')}}\n{% set N = N | default(12) %}\n"
        "{% set LAYER = include('layer.yaml') %}\n"
        "workload:\n  rank_sizes: {<<<: [{{LAYER}}.workload.rank_sizes, {P: 5}]}\n  einsums:\n"
        "  - {{LAYER}}.workload.einsums\n"
        "  {% for i in range(TIMES) %}\n  - 'Z{{i}}[m, p] = Y[m, n] * V{{i}}[n, p]'\n  {% endfor %}\n"
    )
    sets = ("--set", "M=4", "--set", "TIMES=2")
    good("convert", "accelforge", "model.yaml", *sets, "-o", "d", folder=tmp_path)
    found = catalog.load(str(tmp_path / "d/workload.yaml")).einsums
    assert [e.sizes() for e in found] == [{"m": 4, "n": 12, "k": 4}, *[{"m": 4, "p": 5, "n": 12}] * 2]
    said = dse("convert", "accelforge", "model.yaml", "--set", "M=9", *sets[2:], "-o", "d", folder=tmp_path)
    assert (said.returncode, len(said.stderr.splitlines())) == (2, 1)
    assert "parts/checked.yaml: line 1: M is at most 8" in said.stderr


def test_without_jinja_a_template_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "a.yaml").write_text("arch: {nodes: [{{A}}]}")
    monkeypatch.setitem(sys.modules, "dse.exchange.templates", None)
    with pytest.raises(Unreadable, match=r"a\.yaml: is a Jinja template: pip install 'dse\[exchange\]'$"):
        convert.convert("accelforge", [tmp_path / "a.yaml"], tmp_path / "d", lossy=True)


def test_in_memory_compute_of_zigzag_is_said_to_be_lost(tmp_path: Path) -> None:
    array = "{is_imc: True, adc_resolution: 8, dimensions: [D1, D2], sizes: [4, 4]}"
    text = exchanged.ZIGZAG_MACHINE.replace(
        "{unit_energy: 0.04, unit_area: 1, dimensions: [D1, D2], sizes: [4, 4]}", array
    )
    (tmp_path / "aimc.yaml").write_text(text)
    said = dse("convert", "zigzag", "aimc.yaml", "-o", "d", folder=tmp_path)
    assert said.returncode == 2
    assert "lost: aimc.yaml: operational_array.is_imc: ZigZag prices in-memory compute itself" in said.stderr
    assert "lost: aimc.yaml: operational_array.adc_resolution: is not carried over" in said.stderr


def test_a_design_of_scale_sim(tmp_path: Path) -> None:
    presets = "ArrayHeight: 8\nArrayWidth: 4\nIfmapSramSzkB: 64\nFilterSramSzkB: 32\nOfmapSramSzkB: 16\n"
    config = f"[general]\nrun_name = a\n[architecture_presets]\n{presets}Dataflow : ws\nBandwidth : 10\n"
    (tmp_path / "a.cfg").write_text(config)
    heading = (
        "Layer name, IFMAP Height, IFMAP Width, Filter Height, Filter Width, Channels, Num Filter, Strides,"
    )
    (tmp_path / "t.csv").write_text(f"{heading}\nConv1, 10, 9, 3, 3, 4, 8, 2,\nFc, 5, 6, 7,\n")
    (tmp_path / "b.cfg").write_text(
        f"{config}[sparsity]\nSparsitySupport : true\n[layout]\nIfmapCustomLayout: False\n"
    )
    said = dse("convert", "scalesim", "b.cfg", "-o", "d", folder=tmp_path)
    assert [line.split(": ")[2] for line in said.stderr.splitlines() if line.startswith("lost")] == [
        "sparsity.SparsitySupport",
        "Dataflow",
    ]
    good("convert", "scalesim", "a.cfg", "t.csv", "-o", "d", "--lossy", folder=tmp_path)
    arch = machine.load_arch(str(tmp_path / "d/machine.yaml"))
    assert (arch.fanouts[0].dims, arch.fanouts[0].systolic) == ((("ROWS", 8), ("COLS", 4)), "ws")
    assert [level.may_keep for level in arch.levels[1:]] == [
        ("input",),
        ("weight",),
        ("output",),
        ("weight",),
    ]
    assert arch.levels[2].capacity_bits == 8 * 32 * 1024
    workload = catalog.load(str(tmp_path / "d/workload.yaml"))
    assert [e.sizes() for e in workload.einsums] == [
        {"k": 8, "p": 4, "q": 4, "c": 4, "r": 3, "s": 3},
        {"m": 5, "n": 6, "k": 7},
    ]
    assert "ok" in good("map", "d/workload.yaml", "d/machine.yaml", "--objective", "latency", folder=tmp_path)


NETWORK = """
Constant Rows 16;
Network two { // a comment { of one brace
  Layer CONV1 { Type: CONV
    Stride { X: 2, Y: 1 }
    Dimensions { K: 8, C: 4, R: 3, S: 3, Y: Rows, X: 9 } }
  Layer CONV1 { Type: DSCONV
    Dimensions { K 1,C 8,R 1 S 1,Y 14,X 4 } }
  Layer G { Type: NGCONV Dimensions { G: 2, K: 4, C: 4, R: 1, S: 1, Y: 5, X: 5 } }
  /* Layer Fc { */ Layer Fc { Type: GEMM Dimensions { M: 5, N: 6, K: 7 } Dataflow { SpatialMap(1,1) M; } }
  Layer Up { Type: TRCONV Dimensions { K: 1, C: 1, R: 2, S: 2, Y: 4, X: 4 } }
}
"""


def test_a_design_of_maestro(tmp_path: Path) -> None:
    hw = "num_pes: 16\nl1_size_cstr: 100\nl2_size_cstr: 3000\nnoc_bw_cstr: 32\noffchip_bw_cstr: 8\n"
    (tmp_path / "hw.m").write_text(hw)
    (tmp_path / "net.m").write_text(NETWORK)
    said = dse("convert", "maestro", "hw.m", "net.m", "-o", "d", folder=tmp_path)
    assert (said.returncode, said.stderr.count("lost: ")) == (2, 2)
    assert "lost: net.m: Layer Up: type TRCONV is not read; the layer is left out" in said.stderr
    good("convert", "maestro", "hw.m", "net.m", "-o", "d", "--lossy", folder=tmp_path)
    arch = machine.load_arch(str(tmp_path / "d/machine.yaml"))
    assert [level.capacity_bits for level in arch.levels] == [None, 8 * 3000, 8 * 100]
    assert [level.bandwidth for level in arch.levels[:2]] == [8, 32]
    assert (arch.levels[1].read_pj, arch.levels[2].write_pj) == (18.61, 1.68)
    workload = catalog.load(str(tmp_path / "d/workload.yaml"))
    assert [(e.name, e.macs()) for e in workload.einsums] == [
        ("l_CONV1", 8 * 4 * 3 * 3 * 14 * 4),
        ("l_CONV1_2", 8 * 14 * 4),
        ("l_G", 2 * 4 * 4 * 5 * 5),
        ("l_Fc", 5 * 6 * 7),
    ]
    (tmp_path / "net.m").write_text("Network a { Layer b { Type: CONV Dimensions { K: 1, C: x, R: 1 } } }")
    said = dse("convert", "maestro", "net.m", "-o", "d", folder=tmp_path)
    assert said.stderr.splitlines() == ['net.m: Layer b: Dimensions C = "x" is no number above 0; write one']


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("architecture: {version: 0.3, subtree: []}", "subtree (version 0.3)"),
        ("architecture: {version: 0.4, nodes: [!Container {name: a}]}", "holds no component at its end"),
        ("a: 1\n{% for i in range(3) %}\nproblem: {}", "line 2: Unexpected end of template"),
        ("a: 1\nb: {{N + 1}}", "line 2: 'N' is undefined; --set N=VALUE says it"),
        ("a: {{''.__class__}}", "line 1: access to attribute '__class__' of 'str' object is unsafe"),
        ("a: {{'x' * 2000000}}", "its text is longer than 1 MiB"),
        ("a: {{setenv('A', 'B')}}", "'setenv' is undefined"),
        ("a: {{include('wrong.yaml')}}", "files include each other"),
        ("a: {{include('no.yaml')}}", "line 1: no.yaml is in no folder that it names"),
        ("{% assert 1 > 2, 'one is less' %}", "line 1: one is less"),
        ("problem: {shape: own}", "problem.shape = own is unknown here"),
        ("machine: 1", "holds no architecture and no problem"),
        ("a: [", "no YAML"),
    ],
)
def test_a_file_that_cannot_be_read_is_a_line(tmp_path: Path, text: str, says: str) -> None:
    put(tmp_path, wrong=text)
    said = dse("convert", "timeloop", "wrong.yaml", "-o", "d", "--lossy", folder=tmp_path)
    assert (said.returncode, len(said.stderr.splitlines())) == (2, 1)
    assert said.stderr.startswith("wrong.yaml: ")
    assert says in said.stderr


@pytest.mark.parametrize("peer", exchanged.DESIGNS)
def test_a_damaged_file_is_refused_in_lines_or_read(peer: str, tmp_path: Path) -> None:
    for seed in range(CASES):
        rng = Random(seed)
        texts = [*exchanged.DESIGNS[peer]]
        wrong = rng.randrange(len(texts))
        texts[wrong] = exchanged.damaged(rng, texts[wrong])
        paths = [tmp_path / f"{i}.yaml" for i in range(len(texts))]
        for path, text in zip(paths, texts, strict=True):
            path.write_text(text)
        with contextlib.suppress(ValueError):  # all else is a defect
            convert.convert(peer, paths, tmp_path / "d", lossy=True)


def test_what_a_peer_cannot_say_is_refused_by_name() -> None:
    arch = machine.load_arch("edge_array")
    e = catalog.load("gemm:m=64,n=32,k=48").einsums[0]
    loops = (
        "for m tile 16\nfor k tile 1\nfor m tile 8\nfor n tile 8\nfor m tile 2\nfor n tile 1\nfor m tile 1"
    )
    own = nest.parse(f"store DRAM A B C\n{loops}\nmac")
    with pytest.raises(Unreadable, match="needs two loops over m at a level"):
        convert.written("timeloop", {e.name: own}, [e], arch, None)
    with pytest.raises(Unreadable, match=r"A bypasses GBUF.*: --set gbuf.bypass=false, or a rule `keep`"):
        convert.written("zigzag", {e.name: own}, [e], arch, None)
    fetched_again = nest.parse(
        "store DRAM A B C\nfor n tile 1\nfor k tile 1\nfor m tile 1\nstore REGF B\nmac"
    )
    with pytest.raises(NotCarried, match="in Timeloop B at DRAM moves 1536 elements, here 98304"):
        convert.written("timeloop", {e.name: fetched_again}, [e], arch, None)


def test_the_way_on_that_a_refusal_names_leads_on() -> None:
    """Cycles that stalls change go over where levels overlap freely, operands where none may be passed by."""
    buffered = {"gbuf.double_buffer": True, "regf.double_buffer": True, "solver.objective": "latency"}
    found = api.map("conv:k=16,c=16,p=14,q=14,r=3,s=3", "edge_array", **buffered)
    [cost], [e] = found.solution.einsums, found.workload.einsums
    with pytest.raises(NotCarried, match=r"cycles, here .*; --set overlap=free counts them as there"):
        convert.written("timeloop", {e.name: cost.mapping}, [e], found.arch, None)
    free = dataclasses.replace(found.arch, overlap="free")
    assert convert.written("timeloop", {e.name: cost.mapping}, [e], free, None)
    found = api.map(
        "gemm:m=64,n=32,k=48", "edge_array", **{"gbuf.bypass": False, "regf.bypass": False}, overlap="free"
    )
    [cost], [e] = found.solution.einsums, found.workload.einsums
    assert convert.written("zigzag", {e.name: cost.mapping}, [e], found.arch, None)


def test_the_best_mapping_goes_to_timeloop_at_its_cost() -> None:
    found = api.map("gemm:m=16,n=16,k=16", "edge_array")
    cost = found.solution.einsums[0]
    e = found.workload.einsums[0]
    text = convert.written("timeloop", {e.name: cost.mapping}, [e], found.arch, None)
    parts = timeloop_mapping.parts_of(found.arch)
    back = timeloop_mapping.read("x", yaml.safe_load(text)["mapping"], parts, e, found.arch, Notes())
    assert exchanged.costs_the_same(cost, einsum_cost(Problem(found.arch, e, "energy"), back))
