"""Supply voltage: prices, leakage, delay and the highest clock by the law; `least` against a walk of all
voltages; energy on a machine with vdd against counts of the oracle.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import ceil, inf, isclose
from pathlib import Path
from random import Random

import numpy as np
import pytest

from dse.frontend import plausible
from dse.mapping.nest import parse
from dse.sim.einsum.evaluate import Problem, einsum_cost
from dse.study import prune
from dse.study import study as studies
from hw import machine, space
from hw.arch import Arch, Machine, MacUnit, Memory
from hw.columns import Table
from hw.component import ComponentError, build, device, mac, register, rows, sram
from hw.voltage import LEAST
from tests.amount import amount
from tests.oracle import walk
from workloads import catalog

EDGE = machine.load("edge_array")  # lop cells at 32 nm
MAC = EDGE.nodes[-1]


def at(vdd: float | None, clock_mhz: float = 500.0, spec: Machine = EDGE) -> Machine:
    return replace(spec, vdd=vdd, clock_mhz=clock_mhz)


def test_devices_are_those_of_the_table() -> None:
    assert len(rows("voltage")) == 8
    for row in rows("voltage"):
        one = device(float(row["node_nm"]), row["cell"])
        assert (one.nominal_v, one.vth_v, one.alpha) == tuple(
            float(row[key]) for key in ("nominal_v", "vth_v", "alpha")
        )
        assert one.delay_factor(one.nominal_v) == one.leak_factor(one.nominal_v) == 1
        assert isclose(one.highest_mhz(one.nominal_v), 1e6 / 44 / float(row["fo4_ps"]))
        assert one.vth_v < one.range_v()[0]


def test_a_clock_above_that_of_the_nominal_voltage_is_said() -> None:
    """Without vdd, of units that the tables price, at nodes that they have."""
    highest = device(32, "lop").highest_mhz(0.6)
    for clock, vdd, changes, ending in (
        (highest, None, {}, ""),
        (highest + 1, None, {}, "vdd: least prices it"),
        (9e3, None, {}, "MHz no vdd is modelled"),
        (9e3, LEAST, {}, ""),
        (9e3, None, {"node_nm": 10}, ""),
        (9e3, None, {"nodes": (*EDGE.nodes[:-1], replace(MAC, kind="custom"))}, ""),
    ):
        said = [*plausible._fast(replace(at(vdd, clock), **changes))]  # type: ignore[arg-type]
        assert len(said) == bool(ending)
        assert all(
            f"above the {highest:.4g} MHz that MAC units reach" in s and s.endswith(ending) for s in said
        )


def test_that_logic_with_a_voltage_is_not_that_of_the_tables_is_said() -> None:
    custom = replace(MAC, kind="custom", mac_pj=1.0, alu_pj=1.0, leak_mw=0.0, area_mm2=0.0)
    own = replace(EDGE, word_bits=8, nodes=(*EDGE.nodes[:-1], custom))
    flops = space.override(own, {"regf.kind": "register", "regf.capacity": "64 B"})
    high = space.override(EDGE, {"cell": "hp"})  # nominal at 0.9 V, as the tables of logic are
    said = {
        name: [line for line in plausible.machine_lines(spec, build(spec)) if "logic" in line]
        for name, spec in {
            "none": at(None),
            "nominal": at(0.6),
            "own": at(0.6, spec=own),
            "flops": at(0.6, spec=flops),
            "tables": at(0.9, spec=high),
        }.items()
    }
    assert [name for name in said if said[name]] == ["nominal", "flops"]
    share = build(at(0.6)).compute.mac_pj / build(at(None)).compute.mac_pj
    assert f"are {share:.3g} of those without vdd" in said["nominal"][0]


def test_the_law_by_hand() -> None:
    one = device(45, "lop")  # 0.7 V, vth 0.22599, alpha 1.39, exponent 5, 19.601 ps
    assert isclose(one.delay_factor(0.6), 0.6 / 0.7 * (0.47401 / 0.37401) ** 1.39)
    assert isclose(one.delay_factor(0.6), 1.1915, rel_tol=1e-4)
    assert isclose(one.leak_factor(0.6), (6 / 7) ** 6)
    assert isclose(one.highest_mhz(0.6), 973.1, rel_tol=1e-4)


@pytest.mark.parametrize(("node", "cell"), [(nm, cell) for nm in (22, 28, 40, 65) for cell in ("lop", "hp")])
def test_more_voltage_is_faster_and_leaks_more(node: float, cell: str) -> None:
    one = device(node, cell)
    volts = np.linspace(*one.range_v(), 40).tolist()
    for low, high in pairwise(volts):
        assert one.delay_factor(low) > one.delay_factor(high)
        assert one.leak_factor(low) < one.leak_factor(high)


def test_only_what_the_tables_price_on_chip_follows_vdd() -> None:
    before, after = build(at(None)), build(at(0.5))
    one = device(32, "lop")
    (dram, gbuf, regf), (dram_before, gbuf_before, regf_before) = after.levels, before.levels
    assert dram == dram_before
    for level, was in ((gbuf, gbuf_before), (regf, regf_before)):
        assert isclose(level.read_pj, was.read_pj * (0.5 / 0.6) ** 2)
        assert isclose(level.write_pj, was.write_pj * (0.5 / 0.6) ** 2)
        assert isclose(level.leak_mw, was.leak_mw * one.leak_factor(0.5))
        assert level.area_mm2 == was.area_mm2
    logic = (0.5 / 0.9) ** 2
    assert isclose(after.compute.mac_pj, before.compute.mac_pj * logic)
    assert isclose(after.compute.alu_pj, before.compute.alu_pj * logic)
    assert isclose(after.compute.leak_mw, before.compute.leak_mw * one.leak_factor(0.5))
    assert (before.vdd, after.vdd) == (None, 0.5)
    own = {"gbuf.read_pj": 3.0, "gbuf.leak_mw": 0.5, "gbuf.cycle_ns": 0.7, "mac.mac_pj": 2.0}
    given = build(space.override(EDGE, {**own, "vdd": 0.5}))
    assert (given.levels[1].read_pj, given.levels[1].leak_mw, given.compute.mac_pj) == (3.0, 0.5, 2.0)
    assert given.levels[1].access_cycles == 1
    assert isclose(given.levels[1].write_pj, gbuf.write_pj)


def test_registers_and_vector_units_are_logic() -> None:
    sets = {
        "regf.kind": "register",
        "regf.capacity": "64 B",
        "mac.vector_lanes": 4,
        "mac.vector_kind": "fp16",
    }
    spec = space.override(EDGE, {**sets, "vdd": 0.6})
    arch, cells, lane = build(spec), register(32, "lop", 512, 16), mac("fp16", 32, "lop")
    assert isclose(arch.levels[2].read_pj, cells.read_pj * (0.6 / 0.9) ** 2)
    assert arch.levels[2].leak_mw == cells.leak_mw  # at the nominal voltage of the cell
    assert isclose(arch.compute.alu_pj, lane.alu_pj * (0.6 / 0.9) ** 2)
    assert arch.compute.vector_leak_mw == 4 * lane.leak_mw


def test_sram_is_slower_at_lower_voltage() -> None:
    spec = space.override(EDGE, {"gbuf.capacity": "512 KiB", "clock_mhz": 700})
    cycle_ns = sram(32, "lop", 8 * 2**19, 256).cycle_ns
    for vdd in (0.45, 0.5, 0.6, 0.7):
        gbuf = build(replace(spec, vdd=vdd)).levels[1]
        assert gbuf.access_cycles == ceil(cycle_ns * 0.7 * device(32, "lop").delay_factor(vdd))
    assert len({build(replace(spec, vdd=vdd)).levels[1].bandwidth for vdd in (0.45, 0.72)}) == 2


@pytest.mark.parametrize(
    ("sets", "line"),
    [
        (
            {"vdd": 0.45, "clock_mhz": 1500, "regf.actions_per_cycle": 1},
            "clock_mhz = 1500 is above 1302, the highest of mac at vdd = 0.45 (lop cells at 32 nm); lower "
            "it, raise vdd, or write vdd: least",
        ),
        (
            {"vdd": "least", "clock_mhz": 2400, "regf.actions_per_cycle": 1},
            "clock_mhz = 2400 is met at no vdd: at 0.72 V, the highest of lop cells at 32 nm, mac reaches "
            "2325 MHz; lower the clock",
        ),
        (
            {"vdd": "least", "clock_mhz": 1500, "gbuf.slow": "infeasible"},
            "clock_mhz = 1500 is met at no vdd: at 0.72 V, the highest of lop cells at 32 nm, an access of "
            "gbuf takes 1.05 cycles; lower the clock",
        ),
        (
            {"vdd": 0.9},
            "vdd = 0.9 is outside of 0.45 to 0.72 V, for which lop cells at 32 nm are modelled; write a "
            "voltage inside, or least",
        ),
        (
            {"vdd": "least", "clock_mhz": 2200, "gbuf.actions_per_cycle": 0.9, "regf.actions_per_cycle": 1},
            "clock_mhz = 2200 is met at no vdd: at 0.72 V, the highest of lop cells at 32 nm, gbuf sustains "
            "0.651 of 0.9 accesses per cycle; lower the clock",
        ),
    ],
)
def test_a_clock_or_a_voltage_that_cannot_be_is_one_line(sets: dict[str, object], line: str) -> None:
    with pytest.raises(ComponentError) as fault:
        build(space.override(EDGE, sets))
    assert str(fault.value) == line


@pytest.mark.parametrize("given", ["0.6 V", -1, 0, True, "lest", inf])
def test_what_is_no_voltage_is_one_line(given: object) -> None:
    with pytest.raises(
        space.SpaceError, match=r"vdd.* is no supply voltage; write volts, e\.g\. 0\.6, or least"
    ):
        space.override(EDGE, {"vdd": given})


def meets(spec: Machine, cycles: list[int]) -> bool:
    """Whether a machine with a voltage in numbers can be, its memories no slower than these."""
    try:
        found = [level.access_cycles for level in build(spec).levels]
    except ComponentError:
        return False
    return all(now <= then for now, then in zip(found, cycles, strict=True))


def random_spec(rng: Random) -> Machine:
    sets = {
        "node_nm": rng.choice([22, 28, 32, 45, 65]),
        "cell": rng.choice(["lop", "hp"]),
        "clock_mhz": rng.choice([50, 200, 400, 700, 1000, 1500, 2500]) * rng.uniform(0.9, 1.1),
        "gbuf.capacity": rng.choice(["32 KiB", "128 KiB", "1 MiB"]),
        "gbuf.banks": rng.choice([1, 2, 4]),
        "gbuf.slow": rng.choice(["divide", "infeasible"]),
        "regf.capacity": rng.choice(["128 B", "512 B", "4 KiB"]),
        **({"gbuf.actions_per_cycle": rng.choice([0.5, 1])} if rng.random() < 0.3 else {}),
        **({"gbuf.cycle_ns": rng.choice([0.3, 0.6])} if rng.random() < 0.2 else {}),
    }
    return space.override(EDGE, sets)


def test_least_is_the_first_voltage_that_meets_the_clock() -> None:
    seen = set()
    for seed in range(amount(400, 4)):
        spec = random_spec(Random(seed))
        one = device(spec.node_nm or 0, spec.cell)
        # cycles per access at nominal voltage; one where more are refused
        cycles = [1]
        for node in spec.nodes:
            if isinstance(node, Memory) and node.kind == "sram":
                bits = 8 * (node.capacity or 0) // node.banks
                cycle_ns = node.cycle_ns or sram(spec.node_nm or 0, spec.cell, bits, node.width_bits).cycle_ns
                slow = ceil(cycle_ns * spec.clock_mhz / 1e3 - 1e-9)
                cycles.append(1 if node.slow == "infeasible" else max(1, slow))
        low, high = one.range_v()
        volts = [step / 100 for step in range(ceil(100 * low - 1e-9), int(100 * high + 1e-9) + 1)]
        expected = next((vdd for vdd in volts if meets(replace(spec, vdd=vdd), cycles)), None)
        try:
            found = build(replace(spec, vdd=LEAST)).vdd
        except ComponentError:
            found = None
        assert found == expected, seed
        seen.add("none" if found is None else "lowest" if found == volts[0] else "between")
    assert seen == {"none", "lowest", "between"}


def test_least_as_columns_and_in_constraints() -> None:
    """A study that mixes voltages and `least`: each machine is as it is alone."""
    raw = {
        "vdd": ["least", 0.5, 0.6],
        "clock_mhz": [400, 1000, 1500, 2100],
        "gbuf.capacity": ["32 KiB", "1 MiB"],
    }
    s = space.parse(space.override(EDGE, {"regf.actions_per_cycle": 1}), raw)
    machines = np.arange(s.size)
    built, columns = Table(s).columns(machines)
    found = [space.decode(s, one) for one in machines.tolist()]
    arches = [one for one in found if isinstance(one, Arch)]
    assert built.tolist() == [isinstance(one, Arch) for one in found]
    assert columns.leak_mw.tolist() == [arch.leak_mw() for arch in arches]
    assert columns.levels["read_pj"].tolist() == [[v.read_pj for v in arch.levels] for arch in arches]
    rules = prune.Constraints((space.constraint("vdd <= 0.55"),))
    alone = [prune.static_violations(s, one, rules) for one in machines.tolist()]
    assert prune.static_violations_of_many(Table(s), machines, rules) == alone
    shown = [one.vdd for one in found if isinstance(one, Arch)]
    assert [one for (one,), is_built in zip(alone, built.tolist(), strict=True) if is_built] == [
        vdd - 0.55 for vdd in shown
    ]
    assert len(set(shown)) > 3


def test_machines_that_differ_in_vdd_have_one_family_and_prices_of_their_own() -> None:
    low, high = build(at(0.5)), build(at(0.6))
    assert low.structure() == high.structure() == build(at(None)).structure()
    assert low.family() == high.family()
    assert low != high


def test_a_study_without_vdd_is_the_study_it_was(tmp_path: Path) -> None:
    """The digest of a run knows vdd, and nothing of it where the machine gives none."""

    def identity(vdd: str) -> str:
        text = (machine.MACHINES / "edge_array.yaml").read_text().replace("cell: lop", f"cell: lop{vdd}")
        (tmp_path / "edge_array.yaml").write_text(text)
        (tmp_path / "study.yaml").write_text(
            "name: v\nworkloads: ['gemm:m=4,n=4,k=4']\nmachine: edge_array.yaml\nspace: {array.x: [8]}\n"
            "objectives: [energy_pj]\n"
        )
        return studies.identity(studies.load(tmp_path / "study.yaml"))["machine"]

    assert identity("") == "edge_array 41cee352c34ea84a"
    assert len({identity(""), identity("\nvdd: 0.5"), identity("\nvdd: 0.6"), identity("\nvdd: least")}) == 4


NEST = """store DRAM A B C
for m tile 8
store GBUF A B C
parfor n tile 1 over X
parfor k tile 1 over Y
for m tile 1
store REGF A B C
mac"""


def test_energy_is_that_of_the_walked_counts() -> None:
    """Counts of the oracle times prices made here, of the rows of the tables."""
    e, vdd = catalog.load("gemm:m=32,n=16,k=16").einsums[0], 0.5
    spec = at(vdd)
    arch, mapping = build(spec), parse(NEST)
    cost = einsum_cost(Problem(arch, e, "energy"), mapping)
    tally = walk(mapping, e, arch)
    table = {"GBUF": sram(32, "lop", 8 * 2**17, 256), "REGF": sram(32, "lop", 8 * 512, 16)}
    (gbuf, regf) = (node for node in spec.nodes if isinstance(node, Memory) and node.kind == "sram")
    assert (gbuf.capacity, gbuf.width_bits, regf.capacity, regf.width_bits) == (2**17, 256, 512, 16)
    assert isinstance(MAC, MacUnit)
    unit, dram = mac(MAC.kind, 32, "lop"), arch.levels[0]
    expected = 0.0
    for (level, _, action), elems in tally.total.items():
        if level == "MAC":
            pj = (unit.mac_pj if action == "compute" else unit.alu_pj) * (vdd / 0.9) ** 2
        elif level == "DRAM":
            pj = (dram.read_pj if action == "read" else dram.write_pj) * 8 / dram.width_bits
        else:
            row, width = table[level], {"GBUF": 256, "REGF": 16}[level]
            pj = (row.read_pj if action == "read" else row.write_pj) * (vdd / 0.6) ** 2 * 8 / width
        expected += float(elems) * pj
    dynamic = sum(part.energy_pj for part in cost.price.parts if part.action != "leak")
    assert isclose(dynamic, expected, rel_tol=1e-9)
