"""Component tables: every row reproduced, area and leakage never fall, the range named outside; what a spec
is built into.
"""

import re
from dataclasses import replace
from itertools import pairwise
from math import inf, isclose, isnan, log, pi, sqrt
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dse.frontend import check
from hw import component, die, machine, space
from hw.arch import Arch, ComputeKind, Machine, MacUnit, Memory, MemoryKind
from hw.columns import Table
from hw.component import ComponentError, build, dram, mac, register, rows, sram

SRAM = rows("sram_cacti7")
NODES, CELLS, WIDTHS = (22, 32, 45, 65), ("lop", "hp"), (16, 32, 64, 128, 256, 512)
EDGE = machine.load("edge_array")


# energies that CACTI gives lower than at half the capacity: action, node_nm, cell, word bytes, capacity bytes
FALLS = [
    ("read", 22, "hp", 4, 32768),
    ("read", 45, "hp", 2, 131072),
    ("read", 45, "lop", 4, 256),
    ("read", 65, "hp", 2, 65536),
    ("read", 65, "hp", 4, 65536),
    ("read", 65, "hp", 16, 262144),
    ("read", 65, "lop", 4, 256),
    ("write", 22, "hp", 2, 2048),
    ("write", 22, "hp", 4, 16384),
    ("write", 22, "hp", 32, 2097152),
    ("write", 22, "lop", 2, 1024),
    ("write", 22, "lop", 32, 1048576),
    ("write", 22, "lop", 64, 8388608),
    ("write", 32, "hp", 4, 4096),
    ("write", 32, "lop", 2, 1024),
    ("write", 32, "lop", 32, 2097152),
    ("write", 32, "lop", 32, 8388608),
    ("write", 32, "lop", 64, 4194304),
    ("write", 45, "hp", 4, 4096),
    ("write", 45, "hp", 64, 8388608),
    ("write", 45, "lop", 2, 1024),
    ("write", 45, "lop", 64, 8388608),
    ("write", 65, "hp", 8, 16384),
    ("write", 65, "hp", 16, 131072),
    ("write", 65, "hp", 32, 2097152),
    ("write", 65, "hp", 64, 8388608),
    ("write", 65, "lop", 32, 524288),
    ("write", 65, "lop", 64, 8388608),
]


def memory(**fields: object) -> Memory:
    return replace(Memory(name="buf", width_bits=64, capacity=65536), **fields)  # type: ignore[arg-type]


def of(node: Memory) -> Machine:
    """EDGE with another global buffer."""
    return replace(EDGE, nodes=(EDGE.nodes[0], node, *EDGE.nodes[2:]))


def test_every_sram_row_is_reproduced() -> None:
    assert len(SRAM) == 792
    for row in SRAM:
        array = sram(
            float(row["node_nm"]), row["cell"], 8 * int(row["capacity_bytes"]), 8 * int(row["word_bytes"])
        )
        expected = [
            float(row[c]) for c in ("read_pj", "write_pj", "leakage_mw", "area_mm2", "access_ns", "cycle_ns")
        ]
        assert [
            array.read_pj,
            array.write_pj,
            array.leak_mw,
            array.area_mm2,
            array.access_ns,
            array.cycle_ns,
        ] == expected


def test_area_and_leakage_of_the_table_never_fall_with_capacity_and_listed_energies_do() -> None:
    curves: dict[tuple[str, str, str], list[dict[str, str]]] = {}
    for row in sorted(SRAM, key=lambda r: int(r["capacity_bytes"])):
        curves.setdefault((row["node_nm"], row["cell"], row["word_bytes"]), []).append(row)
    pairs = [(a, b) for curve in curves.values() for a, b in pairwise(curve)]
    assert len(pairs) == 744
    assert not [p for p in pairs for c in ("area_mm2", "leakage_mw") if float(p[1][c]) < float(p[0][c])]
    falls = [
        (c[:-3], int(b["node_nm"]), b["cell"], int(b["word_bytes"]), int(b["capacity_bytes"]))
        for a, b in pairs
        for c in ("read_pj", "write_pj")
        if float(b[c]) < float(a[c])
    ]
    assert sorted(falls) == FALLS
    assert len(FALLS) == 28


@given(st.floats(22, 65), st.sampled_from(CELLS), st.sampled_from(WIDTHS), st.floats(0, 1), st.floats(0, 1))
def test_area_and_leakage_never_fall_between_rows(
    node: float, cell: str, width: int, a: float, b: float
) -> None:
    low, high = 32 * width, 8 * 2**24
    small, large = sorted(round(low * (high / low) ** share) for share in (a, b))
    first, second = sram(node, cell, small, width), sram(node, cell, large, width)
    assert first.area_mm2 <= second.area_mm2 * (1 + 1e-12)
    assert first.leak_mw <= second.leak_mw * (1 + 1e-12)
    assert min(first.area_mm2, first.leak_mw, first.read_pj, first.write_pj, first.cycle_ns) > 0


@given(st.sampled_from(NODES), st.sampled_from(CELLS), st.sampled_from(WIDTHS), st.data())
def test_interpolation_is_a_power_law_between_neighbours(
    node: int, cell: str, width: int, data: st.DataObject
) -> None:
    low = data.draw(
        st.sampled_from([32 * width * 2**i for i in range(12) if 32 * width * 2 ** (i + 1) <= 2**27])
    )
    middle = sram(node, cell, round(low * sqrt(2)), width)
    ends = sram(node, cell, low, width), sram(node, cell, 2 * low, width)
    assert isclose(middle.read_pj, sqrt(ends[0].read_pj * ends[1].read_pj), rel_tol=1e-2)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            (32, "lop", 8 * 32, 16),
            "capacity = 32 B per SRAM macro is outside the SRAM table of 16 bit words (64 B to 16 MiB)",
        ),
        (
            (32, "lop", 8 * 2**25, 512),
            "capacity = 32 MiB per SRAM macro is outside the SRAM table of 512 bit words (2 KiB to 16 MiB)",
        ),
        (
            (32, "lop", 8 * 2**15, 48),
            "width_bits = 48 is in no SRAM table; use one of 16, 32, 64, 128, 256, 512",
        ),
        ((16, "lop", 8 * 2**15, 64), "node_nm = 16 is outside the tables (22 to 65 nm)"),
        ((32, "low", 8 * 2**15, 64), "cell = low is in no table; use hp or lop"),
    ],
)
def test_outside_the_table_the_range_and_the_fix_are_named(
    arguments: tuple[float, str, int, int], line: str
) -> None:
    with pytest.raises(ComponentError) as fault:
        sram(*arguments)
    assert str(fault.value).startswith(line)
    assert ";" in str(fault.value)
    assert "\n" not in str(fault.value)


def test_each_row_names_its_source_and_how_it_scales() -> None:
    for table in ("mac", "dram", "register"):
        for row in rows(table):
            assert len(row["source"]) > 20, row
            assert len(row["scaling"]) > 20, row
    assert all(len(row["source"]) > 20 for row in rows("logic_scaling"))


def test_logic_factors_follow_from_their_polynomials_and_cover_the_sram_nodes() -> None:
    polynomial = {
        20: (0.373, -0.1582, 0.04104),
        32: (0.8367, -0.4341, 0.1701),
        45: (1.018, -0.3107, 0.1539),
        65: (3.755, -4.398, 1.975),
    }
    energy = {node: a * 0.9**2 + b * 0.9 + c for node, (a, b, c) in polynomial.items()}
    found = {int(row["node_nm"]): float(row["energy_factor"]) for row in rows("logic_scaling")}
    assert found.keys() == energy.keys()
    assert min(found) <= min(NODES)
    assert max(found) >= max(NODES)
    assert all(isclose(found[node], energy[node] / energy[45], rel_tol=1e-5) for node in energy)


def test_mac_rows_follow_from_the_published_operations() -> None:
    pj = {(r["operation"], int(r["bits"]), r["kind"]): float(r["energy_pj"]) for r in rows("compute_45nm")}
    um2 = {(r["operation"], int(r["bits"]), r["kind"]): float(r["area_um2"]) for r in rows("compute_45nm")}
    for kind, bits, how, wide in (
        ("int8", 8, "int", 32),
        ("int32", 32, "int", 32),
        ("fp16", 16, "float", 32),
        ("fp32", 32, "float", 32),
    ):
        lane = mac(kind, 45, "lop")
        assert isclose(lane.mac_pj, pj["multiply", bits, how] + pj["add", wide, how])
        assert isclose(lane.area_mm2, 1e-6 * (um2["multiply", bits, how] + um2["add", wide, how]))
        assert lane.alu_pj == pj["add", bits, how]
    halfway = sqrt(pj["multiply", 8, "int"] * pj["multiply", 32, "int"]) + pj["add", 32, "int"]
    assert isclose(mac("int16", 45, "lop").mac_pj, halfway, rel_tol=1e-5)


@given(st.sampled_from(component.mac_kinds()), st.floats(22, 64), st.sampled_from(CELLS))
def test_a_lane_shrinks_with_its_node_and_always_leaks(kind: str, node: float, cell: str) -> None:
    small, large = mac(kind, node, cell), mac(kind, node + 1, cell)
    assert small.mac_pj < large.mac_pj
    assert small.area_mm2 < large.area_mm2
    assert small.leak_mw > 0
    assert small.alu_pj < small.mac_pj


def test_wider_numbers_cost_more() -> None:
    costs = [mac(kind, 32, "lop") for kind in ("int4", "int8", "int16", "int32", "fp32")]
    assert all(a.mac_pj < b.mac_pj and a.area_mm2 < b.area_mm2 for a, b in pairwise(costs))


def test_the_kinds_of_the_spec_are_those_of_the_tables() -> None:
    assert get_args(MemoryKind) == ("sram", "register", *component.dram_kinds(), "custom")
    assert get_args(ComputeKind) == (*component.mac_kinds(), "custom")


def test_the_lpddr4_row_follows_from_its_currents() -> None:
    chip = dram("lpddr4")
    assert isclose(chip.read_pj_per_bit, ((275 - 30) + (150 - 0.75)) * 1.1 / 51.2, rel_tol=1e-5)
    assert isclose(chip.write_pj_per_bit, ((210 - 30) + (150 - 0.75)) * 1.1 / 51.2, rel_tol=1e-5)
    assert isclose(chip.background_mw, 2.25 * 1.8 + 30 * 1.1 + 0.75 * 1.1)
    assert all(float(row["background_mw"]) > 0 and float(row["read_pj_per_bit"]) > 0 for row in rows("dram"))


def test_how_wide_a_channel_is_stands_in_the_documents_and_on_the_screen() -> None:
    """Width x transfers = bandwidth, of every kind."""
    text = (Path(__file__).parents[1] / "docs/files.md").read_text()
    for kind in component.dram_kinds():
        part = dram(kind)
        bits, rate = re.fullmatch(r"(\d+) bit at (\d+) MT/s", part.transfers()).groups()  # type: ignore[union-attr]
        assert isclose(int(bits) * int(rate) / 8e3, part.bandwidth_gbps)
        assert f"`{kind}` {part.transfers()}" in text
    said = check.file("edge_array")[0]
    assert said.splitlines()[1] == "dram: 2 lpddr4 channels, 16 bit at 3200 MT/s each = 12.8 GB/s"


def test_edge_array_is_built_from_the_tables() -> None:
    arch = build(EDGE)
    buffer, lane = sram(32, "lop", 8 * 131072, 256), mac("int8", 32, "lop")
    assert [level.name for level in arch.levels] == ["DRAM", "GBUF", "REGF"]
    assert arch.word_bits == 8
    assert arch.levels[1].read_pj == buffer.read_pj
    assert arch.levels[1].leak_mw == buffer.leak_mw
    assert arch.levels[1].area_mm2 == buffer.area_mm2
    assert isclose(arch.levels[0].read_pj, 64 * dram("lpddr4").read_pj_per_bit)
    assert arch.levels[0].leak_mw == 2 * dram("lpddr4").background_mw
    assert isclose(arch.levels[0].bandwidth * 8 * arch.clock_ghz, 12.8)
    assert arch.compute.mac_pj == lane.mac_pj
    assert arch.levels[0].bypass is False
    assert arch.levels[1].bypass is True
    registers = sram(32, "lop", 4096, 16)
    assert isclose(arch.area_mm2(), buffer.area_mm2 + 256 * (registers.area_mm2 + lane.area_mm2))


@pytest.mark.parametrize("cell", CELLS)
def test_registers_follow_from_the_bit_of_their_row(cell: str) -> None:
    """Energy by width, area and leakage by capacity; scaled as logic, log-log between nodes."""
    (row,) = rows("register")
    factor = {float(one["node_nm"]): float(one["area_factor"]) for one in rows("logic_scaling")}
    share = log(40 / 32) / log(45 / 32)
    of_row = factor[32.0] ** (1 - share) * factor[45.0] ** share
    one_bit, word = register(45, cell, 1, 1), register(45, cell, 8 * 4, 8)
    assert one_bit.area_mm2 == pytest.approx(float(row["area_um2_per_bit"]) * 1e-6 * factor[45.0] / of_row)
    smallest = sram(45, cell, 512, 16)
    assert one_bit.leak_mw / one_bit.area_mm2 == pytest.approx(smallest.leak_mw / smallest.area_mm2)
    assert [word.read_pj / one_bit.read_pj, word.area_mm2 / one_bit.area_mm2] == pytest.approx([8, 32])
    assert register(40, cell, 8, 8).write_pj == pytest.approx(8 * float(row["write_pj_per_bit"]))
    reads = [register(node, cell, 8, 8).read_pj for node in NODES]
    assert reads == sorted(reads)
    with pytest.raises(ComponentError, match=r"capacity = 65 B is more than .* use kind: sram"):
        register(45, cell, 8 * 65, 8)
    with pytest.raises(ComponentError, match="node_nm = 16 is outside the tables"):
        register(16, cell, 8, 8)


def test_what_is_too_small_for_the_sram_table_is_pointed_at_registers() -> None:
    for capacity, width, is_register in ((8 * 32, 16, True), (8 * 4, 8, True), (8 * 2**26, 16, False)):
        with pytest.raises(ComponentError) as fault:
            sram(45, "lop", capacity, width)
        assert ("kind: register (flip-flops, up to 64 B) or custom" in str(fault.value)) == is_register


def test_a_register_of_a_space_is_built_as_alone() -> None:
    """Columns of many machines and each machine by itself, over kinds, sizes and technology."""
    axes = {"regf.kind": ["sram", "register"], "regf.capacity": ["2 B", "64 B"], "node_nm": [22, 45]}
    few = space.parse(EDGE, axes | {"cell": ["lop", "hp"], "regf.actions_per_cycle": [1.0]})
    built, columns = Table(few).columns(np.arange(few.size))
    alone = [space.decode(few, index) for index in range(few.size)]
    assert built.tolist() == [isinstance(one, Arch) for one in alone]
    archs = [one for one in alone if isinstance(one, Arch)]
    assert len(archs) == 12  # an SRAM of 2 B is in no table
    assert columns.area_mm2.tolist() == [one.area_mm2() for one in archs]
    assert columns.levels["read_pj"][:, 2].tolist() == [one.levels[2].read_pj for one in archs]


def test_given_numbers_override_the_table() -> None:
    given_numbers = {"read_pj": 1.5, "write_pj": 2.5, "leak_mw": 0.25, "area_mm2": 0.125}
    level = build(of(memory(**given_numbers))).levels[1]
    assert {key: getattr(level, key) for key in given_numbers} == given_numbers
    assert build(of(memory(bandwidth=2.0))).levels[1].bandwidth == 0.5
    lane = replace(EDGE.nodes[-1], mac_pj=7.0)
    assert build(replace(EDGE, nodes=(*EDGE.nodes[:-1], lane))).compute.mac_pj == 7.0


def test_operations_per_cycle_of_a_table_unit_cost_as_many_units() -> None:
    """One of ten operations per cycle has the silicon of ten; given numbers stay, also in columns."""
    (*outer, one), row = EDGE.nodes, mac("int8", 32, "lop")

    def compute(**given: float) -> tuple[float, float, float]:
        built = build(replace(EDGE, nodes=(*outer, replace(one, **given)))).compute
        return built.area_mm2, built.leak_mw, built.mac_pj

    assert compute(ops_per_cycle=10.0) == (10 * row.area_mm2, 10 * row.leak_mw, row.mac_pj)
    assert compute(ops_per_cycle=0.5) == compute() == (row.area_mm2, row.leak_mw, row.mac_pj)
    assert compute(ops_per_cycle=10.0, area_mm2=1.0, leak_mw=2.0) == (1.0, 2.0, row.mac_pj)
    few = space.parse(EDGE, {f"{one.name}.ops_per_cycle": [1.0, 4.0]})
    one_op, four_ops = Table(few).columns(np.arange(2))[1].area_mm2.tolist()
    assert isclose(four_ops - one_op, 3 * 256 * row.area_mm2)


@given(st.integers(50, 3000), st.sampled_from([2**i for i in range(12, 24)]), st.sampled_from([1, 2, 4, 8]))
def test_a_slow_sram_takes_whole_cycles_or_is_infeasible(clock_mhz: int, capacity: int, banks: int) -> None:
    spec = replace(
        EDGE,
        clock_mhz=float(clock_mhz),
        nodes=(EDGE.nodes[0], memory(capacity=capacity, banks=banks), EDGE.nodes[-1]),
    )
    level = build(spec).levels[1]
    array = sram(32, "lop", 8 * capacity // banks, 64)
    assert (
        level.access_cycles / spec.clock_mhz * 1e3
        >= array.cycle_ns * (1 - 1e-9)
        > (level.access_cycles - 1) / spec.clock_mhz * 1e3
    )
    assert level.bandwidth == banks / level.access_cycles
    assert level.area_mm2 == banks * array.area_mm2
    strict = replace(
        spec, nodes=(spec.nodes[0], memory(capacity=capacity, banks=banks, slow="infeasible"), spec.nodes[-1])
    )
    if level.access_cycles == 1:
        assert build(strict).levels[1] == level
    else:
        with pytest.raises(
            ComponentError, match=r"buf.slow = infeasible: an access takes .* clock cycles; lower clock_mhz"
        ):
            build(strict)


def test_all_faults_come_at_once() -> None:
    outermost = memory(name="dram", kind="ddr4", capacity=None, bypass=True)
    broken = replace(
        EDGE, nodes=(outermost, memory(width_bits=48), memory(banks=3), EDGE.nodes[-1], EDGE.nodes[-1])
    )
    with pytest.raises(ComponentError) as fault:
        build(broken)
    lines = str(fault.value).splitlines()
    assert [line.split(" ", 1)[0] for line in lines] == [
        "nodes:",
        "nodes:",
        "dram.bypass",
        "buf.width_bits",
        "buf.banks",
    ]


def test_an_empty_machine_is_refused() -> None:
    with pytest.raises(ComponentError, match="must be a memory"):
        build(Machine(name="nothing", clock_mhz=1.0))
    assert isinstance(EDGE.nodes[-1], MacUnit)


def test_a_die_costs_its_share_of_the_wafer() -> None:
    """100 mm2 at 28 nm: 2891 USD, 0.07 defects per cm2, a square of 10 mm with scribe lanes of 0.2 mm."""
    dies = pi * 145**2 / 10.2**2 - pi * 290 / (sqrt(2) * 10.2)
    assert isclose(dies, 571.7, rel_tol=1e-4)
    assert isclose(die.cost_usd(100, 28), 2891 / (dies * 1.007**-10))
    nodes = [float(row["node_nm"]) for row in rows("wafer")]
    assert all(
        die.cost_usd(50, a) > die.cost_usd(50, sqrt(a * b)) > die.cost_usd(50, b) for a, b in pairwise(nodes)
    )
    assert die.cost_usd(400, 32) > 4 * die.cost_usd(100, 32)
    assert die.cost_usd(1e5, 32) == inf
    assert all(isnan(die.cost_usd(area, node)) for area, node in ((0, 32), (100, 7), (100, 90)))


def test_what_a_die_costs_constrains_machines_before_they_are_solved() -> None:
    s = space.parse(EDGE, {"array.x": [8, 32], "node_nm": [32, 45]})
    limit = space.constraint("die_cost_usd <= 0.05")
    known = [space.static_values(s, i, build(space.apply(EDGE, space.values(s, i)))) for i in range(s.size)]
    costs = [die.cost_usd(float(one["area_mm2"]), float(one["node_nm"])) for one in known]
    assert [space.violation(limit, one) for one in known] == [cost - 0.05 for cost in costs]
    assert {cost <= 0.05 for cost in costs} == {True, False}
    assert "die_cost_usd" in space.static_names(EDGE)
