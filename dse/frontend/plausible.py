"""Numbers of a machine that are hardly meant: a clock in GHz, an energy ten times the tables', an SRAM slower
than the clock (`dse check`, `dse map`, `dse run`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import product
from math import floor, inf, isclose
from random import Random
from typing import Any

from hw import component, machine
from hw.arch import Arch, Array, Machine, MacUnit, Memory
from hw.space import Space, Unbuildable, apply, decode, values
from hw.voltage import energy_factor

BUILT = 256  # machines of a study that are built, to see whether all can be
MAX_ODD = 8  # lines about numbers of a study's machines
# of a level per bit, as a share of that of a level inside it: below, one of the two is probably wrong
ODD_ENERGY = 0.25
# times the tables' numbers, either way, of a part of kind custom, which may be of another technology; of a
# DRAM, whose kinds are all in the table
FAR, FAR_DRAM = 5, 1.25
CLOCKS_MHZ = 10, 10_000  # a clock outside of these is hardly meant
# held against the tables
TABLE_VALUES = "read_pj", "write_pj", "mac_pj", "alu_pj", "leak_mw", "area_mm2"
# of a DRAM, held against the tables, too; an sram that is slower is common, one that is faster is a fault
TABLE_RATES = "bandwidth", "actions_per_cycle"


def machine_lines(spec: Machine, arch: Arch) -> list[str]:
    """Returns lines about numbers of a machine that are hardly meant, and parts slower than the clock."""
    specs = [own for own, _ in component.unit_specs(spec)] if arch.units else [spec]
    pairs = zip(specs, arch.units or (arch,), strict=True)
    return list(dict.fromkeys(line for pair in pairs for line in _lines_of_one(*pair)))


def _lines_of_one(spec: Machine, arch: Arch) -> list[str]:
    """Returns `machine_lines` of a machine of one compute."""
    warnings = (
        *_odd_clock(spec),
        *_odd_energies(arch),
        *_odd_custom(spec, arch),
        *_far_from_tables(spec, arch),
        *_unlike_tables(spec, arch),
    )
    notes = *_fast(spec), *_below_tables(spec, arch), *_slow(spec, arch)
    return [*(f"note: {line}" for line in notes), *(f"warning: {line}" for line in warnings)]


def lines_not_shipped(spec: Machine, arch: Arch) -> list[str]:
    """Returns `machine_lines` without those of the shipped machine of that name, whose numbers are meant."""
    return [line for line in machine_lines(spec, arch) if line not in _shipped_lines(spec.name)]


@cache
def _shipped_lines(name: str) -> list[str]:
    if name not in machine.names():
        return []
    spec = machine.load(name)
    return machine_lines(spec, machine.arch(spec))


def lines_of_machine(space: Space, number: int) -> list[str]:
    """Returns `lines_not_shipped` of a machine of a space; [] where it cannot be built."""
    arch = decode(space, number)
    if isinstance(arch, Unbuildable):
        return []
    return lines_not_shipped(apply(space.template, values(space, number)), arch)


def space_lines(space: Space) -> list[str]:
    """Returns lines about up to BUILT machines of a space: how many cannot be built, have an SRAM slower than
    the clock, or numbers that are hardly meant, each with its most common or first reason.
    """
    numbers = range(space.size) if space.size <= BUILT else Random(0).sample(range(space.size), BUILT)
    among = f"of {'all' if len(numbers) == space.size else 'a sample of'} {len(numbers)} machines"
    # odd: of lines that differ in numbers alone, the first
    reasons, slow, odd = Counter[str](), dict[str, list[str]](), dict[str, str]()
    for i in numbers:
        arch, spec = decode(space, i), apply(space.template, values(space, i))
        if isinstance(arch, Unbuildable):
            reasons[arch.reason] += 1
            continue
        for line in lines_not_shipped(spec, arch):
            kind, _, text = line.partition(": ")
            if kind == "note":
                slow.setdefault(re.split(":| = ", text)[0], []).append(f"{text} (machine {i})")
            else:
                odd.setdefault(re.sub(r"[-+.\de]+", "", line), line)
    found = [f"note: on {len(lines)} {among}, {lines[0]}" for lines in slow.values()]
    if reasons:
        (reason, _), *others = reasons.most_common()
        often = "most often: " if others else ""
        found.append(f"warning: {reasons.total()} {among} cannot be built, {often}{reason}")
    left_out = len(odd) - MAX_ODD
    more = [f"warning: {left_out} more such numbers; dse check of the machine names all"]
    return [*found, *list(odd.values())[:MAX_ODD], *(more if left_out > 0 else [])]


def _odd_clock(spec: Machine) -> Iterator[str]:
    """Yields a line where the clock is outside of CLOCKS_MHZ: GHz or Hz were probably meant."""
    least, most = CLOCKS_MHZ
    if least <= spec.clock_mhz <= most:
        return
    meant_mhz = spec.clock_mhz * (1e3 if spec.clock_mhz < least else 1e-6)
    unit = "GHz" if spec.clock_mhz < least else "Hz"
    meant = f"; {spec.clock_mhz:g} {unit} is {meant_mhz:g}" if least <= meant_mhz <= most else ""
    yield (
        f"clock_mhz = {spec.clock_mhz:g} is {'below' if unit == 'GHz' else 'above'} "
        f"{least if unit == 'GHz' else most:g} MHz{meant}; correct it if that is not meant"
    )


def _odd_energies(arch: Arch) -> Iterator[str]:
    """Yields a line per energy of a level that is, per bit, far below that of a level inside it. Levels of
    different tensors stand side by side.
    """
    for (v, outer), field in product(enumerate(arch.levels), ("read_pj", "write_pj")):
        for inner in (one for one in arch.levels[v + 1 :] if {*one.may_keep} & {*outer.may_keep}):
            pj, inner_pj = getattr(outer, field), getattr(inner, field)
            if 0 < pj / outer.width_bits < ODD_ENERGY * inner_pj / inner.width_bits:
                yield (
                    f"{outer.name.lower()}.{field} = {pj:.4g} for {outer.width_bits} bit is less than "
                    f"{ODD_ENERGY:g} of {inner.name.lower()}.{field} = {inner_pj:.4g} for {inner.width_bits} "
                    f"bit, a level inside it; correct one of them if that is not meant"
                )
                break


def _fast(spec: Machine) -> Iterator[str]:
    """Yields a line where a machine without vdd has a clock above that of MAC units at nominal voltage."""
    mac_unit = next(node for node in spec.nodes if isinstance(node, MacUnit))
    if spec.vdd is not None or spec.node_nm is None or mac_unit.kind == "custom":
        return
    try:
        device = component.device(spec.node_nm, spec.cell)
    except component.ComponentError:  # a node outside of the table
        return
    highest, most = (device.highest_mhz(vdd) for vdd in (device.nominal_v, device.range_v()[1]))
    if spec.clock_mhz > highest * (1 + 1e-9):
        is_modelled = spec.clock_mhz <= most
        cure = "vdd: least prices it" if is_modelled else f"above {most:.4g} MHz no vdd is modelled"
        yield (
            f"clock_mhz = {spec.clock_mhz:g} is above the {highest:.4g} MHz that MAC units reach at the "
            f"nominal voltage (docs/model.md, Supply voltage); {cure}"
        )


def _below_tables(spec: Machine, arch: Arch) -> Iterator[str]:
    """Yields a line where logic of a machine with vdd costs less or more than without, whose tables are at
    another voltage than the nominal one.
    """
    if arch.vdd is None or isclose(arch.vdd, logic_v := component.logic_v()):
        return
    if any(
        node.kind != "custom"
        if isinstance(node, MacUnit)
        else isinstance(node, Memory) and node.kind == "register"
        for node in spec.nodes
    ):
        factor = energy_factor(arch.vdd, logic_v)
        yield (
            f"vdd = {arch.vdd:g}: energies of logic (MAC units, registers) are {factor:.3g} of those without "
            f"vdd, which are at {logic_v:g} V (docs/model.md, Supply voltage); compare machines that all "
            "give vdd"
        )


def _slow(spec: Machine, arch: Arch) -> Iterator[str]:
    """Yields a line per sram whose access takes several cycles of the clock (memory.slow: divide)."""
    for node in spec.nodes:
        level = next((one for one in arch.levels if one.name == node.name.upper()), None)
        if isinstance(node, Memory) and level and level.access_cycles > 1:
            bits = (level.capacity_bits or 0) // node.banks
            array = component.sram(spec.node_nm or 0, spec.cell, bits, node.width_bits)
            cycle_ns = node.cycle_ns or component.at_vdd(replace(spec, vdd=arch.vdd), array).cycle_ns
            rate = node.banks / level.access_cycles
            yield (
                f"{node.name}: an access takes {level.access_cycles} cycles ({cycle_ns:.3g} ns at "
                f"{spec.clock_mhz:g} MHz; memory.slow: divide), so its bandwidth is at most {rate:.3g} "
                f"{'access' if rate == 1 else 'accesses'} per cycle; more banks (e.g. "
                f"{node.banks * level.access_cycles}) or clock_mhz up to {floor(1e3 / cycle_ns)} raise it"
            )


def _odd_custom(spec: Machine, arch: Arch) -> Iterator[str]:
    """Yields a line per memory of kind custom without a table whose writes and reads are far apart, or that
    stands in every PE and costs more per operand than a MAC.
    """
    custom = {
        node.name.upper()
        for node in spec.nodes
        if isinstance(node, Memory) and node.kind == "custom" and not node.table
    }
    for v, level in enumerate(arch.levels):
        if level.name not in custom:
            continue
        name, read, write = level.name.lower(), level.read_pj, level.write_pj
        if min(read, write) > 0 and not ODD_ENERGY <= write / read <= 1 / ODD_ENERGY:
            yield (
                f"{name}.write_pj = {write:.4g} is {write / read:.3g} times {name}.read_pj = {read:.4g}; "
                "correct one of them if that is not meant"
            )
        operand_pj, mac_pj = read / level.width_bits * arch.word_bits, arch.compute.mac_pj
        if (
            v == len(arch.levels) - 1
            and any(f.outside <= v for f in arch.fanouts)
            and operand_pj > mac_pj > 0
        ):
            yield (
                f"{name}.read_pj = {read:.4g} for {level.width_bits} bit is {operand_pj:.4g} per operand of "
                f"{arch.word_bits} bit, more than a MAC ({mac_pj:.4g}); correct one of them if that is not "
                "meant"
            )


def _far_from_tables(spec: Machine, arch: Arch) -> Iterator[str]:
    """Yields a line per energy, leakage or area of a part of kind custom that is over FAR times the largest
    that the tables have for such a part (FAR_DRAM of a DRAM), or as far below their smallest.
    """
    at = f" at {spec.node_nm:g} nm" if spec.node_nm else ""
    parts = {level.name.lower(): level for level in arch.levels} | {spec.nodes[-1].name.lower(): arch.compute}
    for node in spec.nodes:
        if isinstance(node, Array) or node.kind != "custom":
            continue
        size = f"{arch.word_bits} bit"
        if isinstance(node, Memory):
            size = (
                f"{f'{component.show_bytes(node.capacity)}, ' if node.capacity else ''}{node.width_bits} bit"
            )
        is_dram = isinstance(node, Memory) and node.capacity is None
        far = FAR_DRAM if is_dram else FAR
        where = f"a DRAM, {size}" if is_dram else f"{size}{at}"
        for name, usual in component.table_numbers(spec, node, arch.word_bits).items():
            value = getattr(parts[node.name.lower()], name)
            nearest = min(max(value, min(usual)), max(usual))
            if value > 0 and not 1 / far <= value / nearest <= far:
                yield (
                    f"{node.name}.{name} = {value:.4g} is {value / nearest:.2g} times the {nearest:.4g} that "
                    f"the tables have for {where}; correct it, or keep it if it is meant"
                )


def _unlike_tables(spec: Machine, arch: Arch) -> Iterator[str]:
    """Yields a line per energy, leakage or area of a memory or of the MAC unit, or bandwidth of a DRAM, that
    is given, and far from the tables' own.
    """
    given = {
        node.name: [
            name
            for name in (*TABLE_VALUES, *(TABLE_RATES if kind not in component.ON_CHIP else ()))
            if getattr(node, name, None) is not None
        ]
        for node in spec.nodes
        if (kind := getattr(node, "kind", "custom")) != "custom"
    }
    plain: Any = [replace(node, **dict.fromkeys(given.get(node.name, ()))) for node in spec.nodes]  # type: ignore[arg-type]
    plain_arch = machine.arch(replace(spec, nodes=tuple(plain)))
    parts, plain_parts = (
        {**{level.name: level for level in one.levels}, spec.nodes[-1].name.upper(): one.compute}
        for one in (arch, plain_arch)
    )
    for node in spec.nodes:
        for name in given.get(node.name, ()):
            field = "bandwidth" if name in TABLE_RATES else name  # of a Level, in actions per cycle
            own, usual = (getattr(one[node.name.upper()], field) for one in (parts, plain_parts))
            if usual > 0 and own < inf and not ODD_ENERGY <= own / usual <= 1 / ODD_ENERGY:
                value = getattr(node, name)
                yield (
                    f"{node.name}.{name} = {value:.4g} is {own / usual:.3g} times the tables' "
                    f"{value * usual / own if own else usual:.4g}; "
                    "leave it out to take theirs, or keep it if it is meant"
                )
