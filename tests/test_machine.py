"""Machine files: those that come along, and one clear line per fault for those that are broken."""

import json
import pickle
from math import inf
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from hw import machine
from hw.component import mac, sram
from hw.machine import MachineError
from workloads import document

CASES = json.loads((Path(__file__).parent / "data" / "optimal_mapping_cases.json").read_text())["arches"]
GOOD = """
clock_mhz: 500
node_nm: 32
nodes:
- {memory: dram, kind: lpddr4, width_bits: 64}
- {memory: gbuf, capacity: 128 KiB, width_bits: 128}
- {array: array, dims: {x: 16, y: 16}}
- {compute: mac, kind: int8}
"""
DRAM, GBUF, ARRAY, MAC = [line + "\n" for line in GOOD.splitlines() if line.startswith("- ")]


def lines_of(tmp_path: Path, text: str) -> list[str]:
    """Fault lines without the file's name."""
    path = tmp_path / "m.yaml"
    path.write_text(text)
    with pytest.raises(MachineError) as fault:
        machine.load(str(path))
    assert str(pickle.loads(pickle.dumps(fault.value))) == str(fault.value)
    lines = str(fault.value).splitlines()
    assert all(line.startswith(f"{path}: ") for line in lines)
    return [line.removeprefix(f"{path}: ") for line in lines]


def test_the_good_file_is_good(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD)
    arch = machine.arch(machine.load(str(path)))
    assert arch.name == "mine"
    assert [level.name for level in arch.levels] == ["DRAM", "GBUF"]
    assert arch.word_bits == 8
    assert arch.fanouts[0].outside == 2
    assert arch.fanouts[0].dims == (("X", 16), ("Y", 16))


@pytest.mark.parametrize("name", machine.names())
def test_machines_that_come_along_load(name: str) -> None:
    arch = machine.arch(machine.load(name))
    assert arch.name == name
    assert arch.levels[0].bypass is False
    assert arch.levels[0].capacity_bits is None


@pytest.mark.parametrize(("name", "case"), [("a2", "A2"), ("a2s", "A2s"), ("a3", "A3"), ("a3nb", "A3nb")])
def test_abstract_machines_have_the_numbers_of_the_case_file(name: str, case: str) -> None:
    arch, given_arch = machine.arch(machine.load(name)), CASES[case]
    assert len(arch.levels) == len(given_arch["levels"])
    assert arch.word_bits == 8
    for level, wanted in zip(arch.levels, given_arch["levels"], strict=True):
        bandwidth = (
            inf if wanted["bandwidth_words_per_cycle"] == "inf" else wanted["bandwidth_words_per_cycle"]
        )
        assert (level.name, level.capacity_bits, level.bandwidth) == (
            wanted["name"],
            wanted["capacity_bits"],
            bandwidth,
        )
        assert (level.read_pj, level.write_pj) == (
            wanted["read_energy_per_word"],
            wanted["write_energy_per_word"],
        )
        assert level.ports == "shared"
        assert level.leak_mw == 0
        assert level.bypass == (wanted["holds"] != "all tensors forced" and level is not arch.levels[0])
    assert (arch.compute.mac_pj, arch.compute.ops_per_cycle) == (
        given_arch["mac"]["energy_per_op"],
        given_arch["mac"]["ops_per_cycle_per_instance"],
    )
    assert arch.fanouts[0].dims == (("X", 8), ("Y", 8))
    assert all(arch.fanouts[0].multicast + arch.fanouts[0].reduce)
    assert arch.fanouts[0].outside == 2
    assert arch.leak_mw() == 0


def test_real_machines_have_their_published_sizes() -> None:
    archs = {
        name: machine.arch(machine.load(name)) for name in ("eyeriss", "tpu_edge", "nvdla", "datacenter")
    }
    # 1e9 MACs per second
    peak = {name: arch.instances(len(arch.levels)) * arch.clock_ghz for name, arch in archs.items()}
    assert peak == pytest.approx(
        {"eyeriss": 33.6, "tpu_edge": 1966, "nvdla": 1024, "datacenter": 61604}, rel=1e-3
    )
    assert [[f.systolic for f in arch.fanouts] for arch in archs.values()] == [
        [""],
        ["ws"],
        [""],
        ["", "", "ws"],
    ]
    for arch in archs.values():
        assert all(
            level.leak_mw > 0 and (level.area_mm2 > 0 or level is arch.levels[0]) for level in arch.levels
        )
        assert arch.compute.leak_mw > 0
        assert arch.compute.area_mm2 > 0
    assert archs["nvdla"].fanouts[0].multicast == (True, False)
    assert archs["nvdla"].fanouts[0].reduce == (False, True)
    gbuf = archs["eyeriss"].levels[1]
    assert gbuf.capacity_bits == 8 * 108 * 1024
    assert gbuf.ports == "separate"
    assert archs["eyeriss"].word_bits == 16


@pytest.mark.parametrize(("name", "cell"), [("tpu_edge", "lop"), ("nvdla", "lop"), ("datacenter", "hp")])
def test_weight_registers_have_the_numbers_of_the_smallest_array(name: str, cell: str) -> None:
    spec = machine.load(name)
    level, array = machine.arch(spec).levels[-1], sram(22, cell, 512, 16)
    assert spec.node_nm == 22
    assert spec.cell == cell
    assert (level.read_pj, level.write_pj, level.leak_mw, level.area_mm2) == (
        array.read_pj,
        array.write_pj,
        array.leak_mw,
        array.area_mm2,
    )


def test_ramp_and_overlap_reach_the_arch(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(
        GOOD.replace("y: 16}", "y: 16}, systolic: os").replace("128 KiB", "128 KiB, double_buffer: true")
    )
    arch = machine.arch(machine.load(str(path)))
    assert arch.fanouts[0].systolic == "os"
    assert [level.double_buffer for level in arch.levels] == [False, True]
    assert arch.overlap == "buffered"
    path.write_text(GOOD + "overlap: free\n")
    assert machine.arch(machine.load(str(path))).overlap == "free"


def test_what_a_level_holds_and_how_tensors_are_tiled_reach_the_arch(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(
        GOOD.replace("128 KiB", "128 KiB, may_keep: [output, weight, output]")
        + "tiling: {align: 4, minimum: {inner_product.weights: [16, macs]}}\n"
    )
    arch = machine.arch(machine.load(str(path)))
    assert [level.may_keep for level in arch.levels] == [("input", "weight", "output"), ("weight", "output")]
    assert (arch.tiling.align, arch.tiling.pes, dict(arch.tiling.minimum)) == (
        4,
        None,
        {"inner_product.weights": (16, "macs")},
    )
    assert hash(arch) == hash(machine.arch(machine.load(str(path))))
    assert arch.tiling.preference[:3] == ("None", "DimN", "DimNC")


def test_a_vector_unit_is_one_per_machine(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(GOOD)
    plain = machine.arch(machine.load(str(path)))
    path.write_text(GOOD.replace("kind: int8", "kind: int8, vector_lanes: 16, vector_kind: fp32"))
    arch, unit = machine.arch(machine.load(str(path))), mac("fp32", 32, "lop")
    assert arch.compute.alu_per_cycle == 16
    assert arch.compute.alu_pj == unit.alu_pj
    assert arch.compute.mac_pj == plain.compute.mac_pj
    assert arch.area_mm2() - plain.area_mm2() == pytest.approx(16 * unit.area_mm2)
    assert arch.leak_mw() - plain.leak_mw() == pytest.approx(16 * unit.leak_mw)
    assert plain.compute.alu_per_cycle is None


def test_a_slow_array_is_named_with_its_cycles(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(GOOD.replace("500", "2000").replace("128 KiB", "4 MiB"))
    arch = machine.arch(machine.load(str(path)))
    assert arch.levels[1].access_cycles > 1
    assert arch.slow_levels() == (f"GBUF ({arch.levels[1].access_cycles} cycles)",)
    path.write_text(path.read_text().replace("4 MiB", "4 MiB, slow: infeasible"))
    with pytest.raises(
        MachineError,
        match=r"gbuf.slow = infeasible: an access takes .* clock cycles; lower clock_mhz or capacity, raise "
        r"banks",
    ):
        machine.load(str(path))


BROKEN = [
    (
        "levels reversed",
        GOOD.replace(DRAM + GBUF, GBUF + DRAM.replace("64}", "64, capacity: 1 GiB}")),
        ["nodes[1] = dram is lpddr4 inside of the sram gbuf; list the outermost memory first"],
    ),
    (
        "ramp of three dimensions",
        GOOD.replace("y: 16}", "y: 16, z: 2}, systolic: ws"),
        [
            "array.systolic = ws needs two dimensions, rows and columns, has 3; split the array, or "
            "leave systolic out"
        ],
    ),
    (
        "ramp of one",
        GOOD.replace("x: 16, y: 16}", "x: 1, y: 1}, systolic: os"),
        ["array.systolic = os needs more than one PE; enlarge dims, or leave systolic out"],
    ),
    (
        "ramp of what",
        GOOD.replace("y: 16}", "y: 16}, systolic: rs"),
        ['array.systolic = "rs" is unknown; use one of os, ws, is'],
    ),
    (
        "buffers nothing",
        GOOD.replace("width_bits: 64", "width_bits: 64, double_buffer: true"),
        ["dram.double_buffer = true cannot be: nothing fills the outermost level; leave it out"],
    ),
    (
        "overlaps halfway",
        GOOD + "overlap: half\n",
        ['overlap = "half" is unknown; use one of buffered, free'],
    ),
    (
        "vector unit of no lanes",
        GOOD.replace("kind: int8", "kind: int8, vector_kind: fp32"),
        ["mac.vector_kind = fp32 has no vector lanes; add e.g. vector_lanes: 16, or leave it out"],
    ),
    (
        "vector unit without numbers",
        GOOD.replace("kind: int8", "kind: int8, vector_lanes: 4, vector_kind: custom"),
        [
            "mac.vector_kind = custom gives a vector unit no numbers; use one of int4, int8, int16, "
            "int32, fp16, bf16, fp32"
        ],
    ),
    (
        "vector unit of half a lane",
        GOOD.replace("kind: int8", "kind: int8, vector_lanes: 0.5"),
        ["mac.vector_lanes = 0.5 must be a whole number; write e.g. 16"],
    ),
    (
        "misspelt key",
        GOOD.replace("capacity", "capcity"),
        ['gbuf.capcity = "128 KiB" is no known key; did you mean capacity?'],
    ),
    (
        "misspelt key of the machine",
        GOOD.replace("clock_mhz", "clock_mz"),
        ["clock_mz = 500 is no known key; did you mean clock_mhz?"],
    ),
    (
        "wrong unit",
        GOOD.replace("128 KiB", "128 KB"),
        ['gbuf.capacity = "128 KB" is not a size; write a number with B, KiB, MiB or GiB, e.g. "128 KiB"'],
    ),
    (
        "no unit",
        GOOD.replace("128 KiB", "131072"),
        ['gbuf.capacity = 131072 is not a size; write a number with B, KiB, MiB or GiB, e.g. "128 KiB"'],
    ),
    (
        "negative size",
        GOOD.replace("128 KiB", "-4 KiB"),
        ['gbuf.capacity = "-4 KiB" must be a whole number of bytes, at least 1; raise it'],
    ),
    (
        "half a byte",
        GOOD.replace("128 KiB", "0.5 B"),
        ['gbuf.capacity = "0.5 B" must be a whole number of bytes, at least 1; raise it'],
    ),
    (
        "zero bandwidth",
        GOOD.replace("width_bits: 64", "width_bits: 64, bandwidth: 0 GB/s"),
        ['dram.bandwidth = "0 GB/s" must be above 0; raise it, or leave it out to take the table\'s'],
    ),
    (
        "zero actions",
        GOOD.replace("width_bits: 64", "width_bits: 64, actions_per_cycle: 0"),
        ["dram.actions_per_cycle = 0 must be above 0; raise it"],
    ),
    (
        "bandwidth twice",
        GOOD.replace("width_bits: 64", "width_bits: 64, bandwidth: 1 GB/s, actions_per_cycle: 1"),
        ["dram.bandwidth = 1 GB/s stands beside actions_per_cycle = 1; leave one out"],
    ),
    (
        "no capacity",
        GOOD.replace("capacity: 128 KiB, ", ""),
        [
            "gbuf.capacity is missing: only an outermost level that is no sram is unbounded; add "
            "e.g. capacity: 128 KiB"
        ],
    ),
    (
        "width in no table",
        GOOD.replace("width_bits: 128", "width_bits: 96"),
        ["gbuf.width_bits = 96 is in no SRAM table; use one of 16, 32, 64, 128, 256, 512, or kind: custom"],
    ),
    (
        "size in no table",
        GOOD.replace("128 KiB", "32 MiB"),
        [
            "gbuf.capacity = 32 MiB per SRAM macro is outside the SRAM table of 128 bit words (512 B "
            "to 16 MiB); "
            "change capacity, width_bits or banks, or use kind: custom"
        ],
    ),
    (
        "node in no table",
        GOOD.replace("node_nm: 32", "node_nm: 7"),
        [
            "node_nm = 7 is outside the tables (22 to 65 nm); choose a value inside, or use kind: "
            "custom with numbers of your own"
        ],
    ),
    (
        "no node",
        GOOD.replace("node_nm: 32\n", ""),
        ["node_nm is missing: the tables need it; add e.g. node_nm: 32"],
    ),
    (
        "wrong cell",
        GOOD.replace("node_nm: 32", "node_nm: 32\ncell: lopp"),
        ['cell = "lopp" is unknown; did you mean lop?'],
    ),
    (
        "unknown kind",
        GOOD.replace("lpddr4", "lpdr4"),
        ['dram.kind = "lpdr4" is unknown; did you mean lpddr4?'],
    ),
    (
        "dimension twice",
        GOOD.replace(ARRAY, ARRAY + "- {array: more, dims: {x: 2}}\n"),
        ["nodes: dimension x stands 2 times; give each its own"],
    ),
    ("name twice", GOOD.replace(GBUF, GBUF + GBUF), ["nodes: name gbuf stands 2 times; give each its own"]),
    (
        "name in capitals",
        GOOD.replace("memory: gbuf", "memory: GBUF"),
        ['GBUF.memory = "GBUF" is no name; use lower case letters, digits and _, a letter first'],
    ),
    (
        "name of the MAC units",
        GOOD.replace("memory: gbuf", "memory: compute"),
        ["memory = compute is the name of the MAC units in every result; choose another"],
    ),
    (
        "name no text",
        GOOD.replace("memory: gbuf", "memory: 5"),
        ["nodes[1].memory = 5 must be a text; write a word"],
    ),
    (
        "key twice",
        GOOD.replace("node_nm: 32", "node_nm: 32\nnode_nm: 45"),
        ["line 2: key node_nm stands twice; keep one"],
    ),
    (
        "dimension key twice",
        GOOD.replace("x: 16, y: 16", "x: 16, x: 8"),
        ["line 7: key x stands twice; keep one"],
    ),
    (
        "no compute",
        GOOD.replace(MAC, ""),
        ["nodes have no compute; end the list with exactly one - compute: mac"],
    ),
    (
        "compute not last",
        GOOD.replace(MAC, "") + MAC + GBUF.replace("gbuf", "late"),
        ["nodes end with another node than the compute; end the list with exactly one - compute: mac"],
    ),
    (
        "first an array",
        GOOD.replace(DRAM, "").replace(GBUF, ""),
        ["nodes[0] = array must be a memory, where the tensors live; begin with e.g. - memory: dram"],
    ),
    (
        "neither",
        GOOD.replace(ARRAY, "- {crossing: x, dims: {x: 2}}\n"),
        [
            "nodes[2] = {crossing: x, dims: {x: 2}} must say what it is; begin it with memory: "
            "NAME, array: NAME or compute: NAME"
        ],
    ),
    (
        "misspelt",
        GOOD.replace("compute: mac", "computes: mac"),
        ['nodes[3].computes = "mac" is no known key; did you mean compute?'],
    ),
    ("fan-out of nothing", GOOD.replace("x: 16", "x: 0"), ["array.dims.x = 0 must be above 0; raise it"]),
    ("no dimension", GOOD.replace("{x: 16, y: 16}", "{}"), ["array.dims = {} is empty; name at least one"]),
    (
        "dims no mapping",
        GOOD.replace("{x: 16, y: 16}", "16"),
        ["array.dims = 16 must be a mapping; write e.g. {x: 16, y: 16}"],
    ),
    (
        "dimension of no array",
        GOOD.replace("y: 16}", "y: 16}, multicast: [z]"),
        ["array.multicast = z is no dimension of the array; use one of x, y"],
    ),
    (
        "custom without numbers",
        GOOD.replace("kind: lpddr4", "kind: custom, read_pj: 1, write_pj: 1, area_mm2: 0"),
        [
            "dram.leak_mw is missing: kind: custom takes nothing from a table; add it (0 if you mean 0)",
            "dram.actions_per_cycle is missing: kind: custom takes nothing from a table; add it (inf "
            "for no limit), or bandwidth",
        ],
    ),
    (
        "custom compute",
        GOOD.replace("kind: int8", "kind: custom, mac_pj: 1, alu_pj: 1, area_mm2: 0, leak_mw: 0"),
        ["word_bits is missing: kind: custom has no width of its own; add e.g. word_bits: 8"],
    ),
    (
        "negative energy",
        GOOD.replace("kind: int8", "kind: int8, mac_pj: -1"),
        ["mac.mac_pj = -1 must not be negative; use 0 or more"],
    ),
    (
        "outermost skipped",
        GOOD.replace("kind: lpddr4", "kind: lpddr4, bypass: true"),
        ["dram.bypass = true cannot be: the outermost level holds every tensor; leave it out"],
    ),
    (
        "outermost holds a part",
        GOOD.replace("kind: lpddr4", "kind: lpddr4, may_keep: [output, input]"),
        ["dram.may_keep = [input, output] cannot be: the outermost level holds every tensor; leave it out"],
    ),
    (
        "holds a word",
        GOOD.replace("128 KiB", "128 KiB, may_keep: input"),
        ['gbuf.may_keep = "input" is no list of roles; write e.g. [input, weight, output]'],
    ),
    (
        "holds nothing",
        GOOD.replace("128 KiB", "128 KiB, may_keep: []"),
        ["gbuf.may_keep = [] is no list of roles; write e.g. [input, weight, output]"],
    ),
    (
        "holds what",
        GOOD.replace("128 KiB", "128 KiB, may_keep: [weights]"),
        ["gbuf.may_keep = [weights] names weights, which is no part of an einsum; use input, weight, output"],
    ),
    (
        "tiling no mapping",
        GOOD + "tiling: smaug\n",
        ['tiling = "smaug" must be a mapping of its keys; write e.g. {align: 8}'],
    ),
    (
        "tiling numbers",
        GOOD + "tiling: {align: -8, pes: 0, alin: 4}\n",
        [
            "tiling.align = -8 must not be negative; use 0 or more",
            "tiling.pes = 0 must be above 0; raise it",
            "tiling.alin = 4 is no known key; did you mean align?",
        ],
    ),
    (
        "preference",
        GOOD + "tiling: {preference: [None, DimCH]}\n",
        ['tiling.preference.1 = "DimCH" is unknown; did you mean DimNCH?'],
    ),
    (
        "what fits is cut",
        GOOD + "tiling: {preference: [DimN, None]}\n",
        ["tiling.preference = [DimN, None] must begin with None: what fits is not cut; put None first"],
    ),
    (
        "no preference",
        GOOD + "tiling: {preference: []}\n",
        ["tiling.preference = [] is empty; name at least one"],
    ),
    (
        "preference no list",
        GOOD + "tiling: {preference: DimN}\n",
        ['tiling.preference = "DimN" is no list; write it in brackets, e.g. [None, DimN]'],
    ),
    (
        "smallest tiles",
        GOOD + "tiling: {minimum: {convolution.inputs: [1, -3, full, mac], softmax.inputs: 1}}\n",
        [
            "tiling.minimum.convolution.inputs.1 = -3 is no tile size; write a whole number above 0, "
            "or pes, macs, vector, kernel, full",
            'tiling.minimum.convolution.inputs.3 = "mac" is no tile size; write a whole number above '
            "0, or pes, macs, vector, kernel, full",
            "tiling.minimum.softmax.inputs = 1 is no list; write it in brackets, e.g. [None, DimN]",
        ],
    ),
    (
        "tiles of no optimizer",
        GOOD + "tiling: {minimum: {conv.inputs: [1], pooling.inputs: [1, 2], batch_norm.weights: [2, 8],"
        " convolution.outputs: [1, 1, 4, pes], inner_product.inputs: [1, kernel]}}\n",
        [
            "tiling.minimum.conv.inputs is no tensor of an optimizer; did you mean convolution.inputs?",
            "tiling.minimum.pooling.inputs = [1, 2] has 2 entries for 4 dimensions; write e.g. [1, "
            "kernel, kernel, vector]",
            "tiling.minimum.batch_norm.weights = [2, 8]: dimension 0 is never cut; write 4 there",
            "tiling.minimum.convolution.outputs = [1, 1, 4, pes]: dimension 2 is never cut; write full there",
            "tiling.minimum.inner_product.inputs = [1, kernel]: dimension 1 has no kernel; write a "
            "number, pes, macs, vector or full",
        ],
    ),
    (
        "name of the tiling block",
        GOOD.replace("memory: gbuf", "memory: tiling"),
        ["nodes: name tiling is the block of the machine's tile sizes; choose another"],
    ),
    (
        "banks",
        GOOD.replace("width_bits: 128", "width_bits: 128, banks: 3"),
        ["gbuf.banks = 3 must divide capacity = 128 KiB; use a power of two"],
    ),
    (
        "channels of an sram",
        GOOD.replace("width_bits: 128", "width_bits: 128, channels: 2"),
        ["gbuf.channels = 2 is for a DRAM kind; leave it out"],
    ),
    (
        "wider than itself",
        GOOD.replace("128 KiB", "8 B"),
        ["gbuf.width_bits = 128 is wider than its capacity of 8 B; lower it"],
    ),
    (
        "faster than the array",
        GOOD.replace("width_bits: 128", "width_bits: 128, actions_per_cycle: 8"),
        [
            "gbuf.actions_per_cycle asks for 8 accesses per cycle, the array sustains 2.4; lower it "
            "or clock_mhz, raise banks or width_bits, or give cycle_ns"
        ],
    ),
    ("clock text", GOOD.replace("500", "fast"), ['clock_mhz = "fast" must be a number; write e.g. 500']),
    (
        "clock with its unit",
        GOOD.replace("500", "0.4 GHz"),
        ['clock_mhz = "0.4 GHz" must be a number, in MHz; write 400'],
    ),
    (
        "truth as number",
        GOOD.replace("x: 16", "x: true"),
        ["array.dims.x = true must be a whole number; write e.g. 16"],
    ),
    (
        "nodes no list",
        "clock_mhz: 5\nnodes: 3\n",
        [
            "nodes must be a list, outermost memory first; add e.g. nodes: [{memory: dram, ...}, "
            "..., {compute: mac, ...}]"
        ],
    ),
    ("no mapping", "- 1\n", ["must be a mapping with clock_mhz and nodes; see hw/machines/edge_array.yaml"]),
    ("empty", "", ["must be a mapping with clock_mhz and nodes; see hw/machines/edge_array.yaml"]),
    ("no YAML", "clock_mhz: [1\n", ["line 2: no YAML (did not find expected ',' or ']'); correct it"]),
    (
        "indented otherwise",
        GOOD.replace("\n- {array", "\n - {array"),
        ["line 7: no YAML (did not find expected key); is it indented as the line before?"],
    ),
    (
        "code",
        "clock_mhz: !!python/object/apply:os.system [echo]\n",
        ["line 1: no YAML (could not determine a constructor for the tag); correct it"],
    ),
    ("control character", "clock_mhz: \x07\n", ["no YAML (characters that YAML does not allow); correct it"]),
    (
        "no such day",
        "clock_mhz: 2020-13-45\n",
        ["no YAML (a date that does not exist, a number tag on text, or a key that is a list); correct it"],
    ),
    (
        "all at once",
        GOOD.replace("500", "-1")
        .replace("width_bits: 128", "width_bits: 96, capacty: 2")
        .replace("int8", "int9"),
        [
            "clock_mhz = -1 must be above 0; raise it",
            "gbuf.capacty = 2 is no known key; did you mean capacity?",
            'mac.kind = "int9" is unknown; did you mean int8 or int4 or int32?',
        ],
    ),
    (
        "tables too",
        GOOD.replace("500", "-1").replace("width_bits: 128", "width_bits: 96").replace("int8", "int9"),
        [
            "clock_mhz = -1 must be above 0; raise it",
            "gbuf.width_bits = 96 is in no SRAM table; use one of 16, 32, 64, 128, 256, 512, or kind: custom",
            'mac.kind = "int9" is unknown; did you mean int8 or int4 or int32?',
        ],
    ),
]


@pytest.mark.parametrize(("text", "lines"), [case[1:] for case in BROKEN], ids=[case[0] for case in BROKEN])
def test_broken_files_say_what_to_write(tmp_path: Path, text: str, lines: list[str]) -> None:
    assert lines_of(tmp_path, text) == lines


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(
        MachineError,
        match=r"edge_aray is unknown; did you mean edge_array\? \(a machine of your own: the path of its "
        r"\.yaml file\)",
    ):
        machine.load("edge_aray")
    with pytest.raises(MachineError, match=r"nowhere.yaml: cannot be read \(No such file or directory\)"):
        machine.load("nowhere.yaml")


def test_binary_is_no_machine(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(MachineError, match="not UTF-8"):
        machine.load(str(tmp_path / "m.yaml"))


def test_numbers_with_exponents_are_numbers(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("{a: 1e-4, b: 5e6, c: -2.5E+3, d: e5}")
    assert document.read(tmp_path / "a.yaml") == ({"a": 1e-4, "b": 5e6, "c": -2500.0, "d": "e5"}, [])


values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 5),
    st.floats(),
    st.text(max_size=3),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.sampled_from(["x", "memory", "y"]), st.integers(), max_size=2),
)
fields = [
    "memory",
    "array",
    "compute",
    "kind",
    "capacity",
    "width_bits",
    "dims",
    "banks",
    "bandwidth",
    "multicast",
    "bypass",
    "ports",
    "mac_pj",
    "actions_per_cycle",
    "may_keep",
]


@given(
    st.recursive(
        values,
        lambda v: st.dictionaries(
            st.sampled_from(["clock_mhz", "nodes", "name", *fields]), v | st.lists(v, max_size=3)
        ),
        max_leaves=12,
    )
)
def test_no_document_at_all_makes_a_traceback(data: object) -> None:
    _, faults = machine.parse(data, "any")
    assert faults
    assert all("\n" not in line and ";" in line for line in faults)


@given(st.integers(0, 3), st.sampled_from(fields), values)
def test_one_changed_field_gives_a_machine_or_lines(node: int, key: str, value: object) -> None:
    data = yaml.safe_load(GOOD)
    data["nodes"][node] = data["nodes"][node] | {key: value}
    spec, faults = machine.parse(data, "any")
    assert all("\n" not in line and ";" in line for line in faults)
    if not faults:
        assert machine.arch(spec).area_mm2() > 0


def test_schema_is_for_the_file_as_written() -> None:
    schema = machine.schema()
    assert schema["required"] == ["clock_mhz", "nodes"]
    assert "memory" in schema["$defs"]["Memory"]["properties"]
    assert "lpddr4" in schema["$defs"]["Memory"]["properties"]["kind"]["enum"]
