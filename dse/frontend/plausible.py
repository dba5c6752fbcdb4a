"""Numbers of a machine that are hardly meant: a clock in GHz, an energy ten times the tables', an SRAM slower
than the clock (`dse check`, `dse map`, `dse run`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from itertools import product
from math import ceil, floor, inf, isclose
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from dse.explain.units import counted
from hw import component, machine
from hw.arch import ALL_OTHERS, EINSUM_KINDS, RANK_ROLES, ROLES, Arch, Array, Machine, MacUnit, Memory, Rule
from hw.space import Space, Unbuildable, apply, decode, values
from hw.voltage import energy_factor
from workloads import document

if TYPE_CHECKING:  # `dse check` of a machine needs none
    from workloads.graph import Workload

BUILT = 256  # machines of a study that are built, to see whether all can be
MAX_ODD = 8  # lines about numbers of a study's machines
# of a level per bit, as a share of that of a level inside it: below, one of the two is probably wrong
ODD_ENERGY = 0.25
# times the tables' numbers, either way, of a part of kind custom, which may be of another technology; of a
# DRAM, whose kinds are all in the table
FAR, FAR_DRAM = 5, 1.25
MAX_SUM_BITS = 64  # a wider sum is hardly meant
# bytes of a bank up to which an sram may be a register file, and ports that such a one has (2 read, 1 write)
FILE_BYTES, FILE_PORTS = 1024, 3
# of a memory of kind custom: bytes of a bank above which it is surely several, and bits of an access below
# which its accesses may be single words of wide rows
MAX_BANK, WIDE_BITS = 1 << 20, 64
FAR_MAC = 3  # the same of a MAC unit without node_nm, for which the tables' range is that of all nodes
STARVED = 0.25  # of an access per bank and clock, and of a word per PE of a row: a memory below both
OPERAND = 0.75  # share of a MAC's energy that an operand costs at most in a register of kind custom
CLOCKS_MHZ = 10, 10_000  # a clock outside of these is hardly meant
# held against the tables
TABLE_VALUES = "read_pj", "write_pj", "mac_pj", "alu_pj", "leak_mw", "area_mm2"
# of a DRAM, held against the tables, too; an sram that is slower is common, one that is faster is a fault
TABLE_RATES = "bandwidth", "actions_per_cycle"
# Of a machine without node_nm, parts of kind custom are held against each other: a part is odd where no node
# of the tables puts all of them within ODD_PART of their numbers, and one puts the others within ALIKE.
ODD_PART, ALIKE = 2.5, 2.0
COSTLY_OP = 4  # MACs that another operation costs at most
# pJ per bit over a link that none on a chip or in a package costs (Simba's links between chiplets: 0.8 to
# 1.75; Shao et al., MICRO 2019), and per bit of a DRAM row opened (DDR3 to HBM2: 0.03 to 0.15)
MAX_HOP_PJ, MAX_ROW_PJ = 4, 0.3


def machine_lines(spec: Machine, arch: Arch) -> list[str]:
    """Returns lines about numbers of a machine that are hardly meant, and parts slower than the clock."""
    specs = [own for own, _ in component.unit_specs(spec)] if arch.units else [spec]
    pairs = zip(specs, arch.units or (arch,), strict=True)
    names = (f"note: {line}" for line in _odd_names(spec))
    return list(dict.fromkeys((*names, *(line for pair in pairs for line in _lines_of_one(*pair)))))


def _lines_of_one(spec: Machine, arch: Arch) -> list[str]:
    """Returns `machine_lines` of a machine of one compute."""
    warnings = (
        *_odd_clock(spec),
        *_odd_energies(arch),
        *_odd_custom(spec, arch),
        *_far_from_tables(spec, arch),
        *_odd_operations(spec, arch),
        *_odd_widths(spec, arch),
        *_odd_links(spec, arch),
        *_odd_drams(spec, arch),
        *_starved(spec, arch),
        *_unlike_tables(spec, arch),
    )
    numbers = {line.split(" = ")[0] for line in warnings}
    warnings += tuple(line for line in _odd_part(spec, arch) if line.split(" = ")[0] not in numbers)
    notes = *_fast(spec), *_below_tables(spec, arch), *_slow(spec, arch), *_above_ports(spec, arch)
    return [*(f"note: {line}" for line in notes), *(f"warning: {line}" for line in warnings)]


def _odd_names(spec: Machine) -> Iterator[str]:
    """Yields a line per name in rules for mappings that is close to a role or kind, and none."""
    for i, rule in enumerate(spec.mapping):
        for key, given, known in rule_names(rule):
            for name in given:
                if near := _near(name, known):
                    what = "kind of einsum" if key == "einsums" else "role"
                    yield f"mapping[{i}].{key} = {name} is no {what}; did you mean {near}?"


def _near(name: str, known: Sequence[str]) -> str:
    """Returns the role or kind that a word is close to; "": it is one, or close to none."""
    return "" if name in known else next(iter(get_close_matches(name, known, 1, 0.75)), "")


def rule_names(rule: Rule) -> list[tuple[str, Sequence[str], tuple[str, ...]]]:
    """Returns (key, names that a rule gives there, roles or kinds that stand for names there)."""
    return [
        ("einsums", rule.einsums, EINSUM_KINDS),
        ("ranks", rule.ranks or (), RANK_ROLES),
        ("factors", [factor.rank for factor in rule.factors], RANK_ROLES),
        ("keep", rule.keep, ROLES),
        ("bypass", rule.bypass, ROLES),
        ("tile", [limit.tensor for limit in rule.tile], ROLES),
        ("order", [rank for rank in rule.order if rank != ALL_OTHERS], RANK_ROLES),
        ("inside", rule.inside, RANK_ROLES),
    ]


def rules_of_nothing(spec: Machine, workloads: Sequence[Workload]) -> list[str]:
    """Returns a line per rule of a machine of which a key names nothing of any einsum of these workloads; not
    of names that `machine_lines` says are close to a role. No workloads: no lines.
    """
    from dse.mapping.constraints import einsum_kind

    einsums = [e for workload in workloads for e in workload.einsums]
    own = {
        "einsums": {name for e in einsums for name in (e.name, einsum_kind(e))},
        "ranks": {rank for e in einsums for rank, _ in e.extents},
        "tensors": {p.tensor for e in einsums for p in e.tensors()},
    }
    kinds = {"ranks": "ranks", "factors": "ranks", "order": "ranks", "inside": "ranks", "einsums": "einsums"}
    lines = []
    for i, rule in enumerate(spec.mapping):
        for key, given, roles in rule_names(rule):
            known = own[kinds.get(key, "tensors")] | {*roles}
            if einsums and given and not known & {*given} and not any(_near(name, roles) for name in given):
                shown, near = ", ".join(given), component.closest_name(given[0], sorted(known))
                of = ", ".join(dict.fromkeys(workload.name for workload in workloads))
                lines.append(f"note: mapping[{i}].{key} = {shown} names nothing of {of}; {near}")
                break
    return lines


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


def clock_lines(path: str) -> list[str]:
    """Returns the line about the clock of a machine file that has faults elsewhere."""
    data, _ = document.read(Path(path))
    clock = data.get("clock_mhz") if isinstance(data, dict) else None
    if isinstance(clock, str):
        with suppress(ValueError):  # YAML takes 1e9 for a text
            clock = float(clock)
    if not isinstance(clock, int | float) or clock <= 0:
        return []
    return [*_odd_clock(replace(machine.STAND_IN, clock_mhz=float(clock)))]


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


def _odd_widths(spec: Machine, arch: Arch) -> Iterator[str]:
    """Yields a line per memory whose results are narrower than an operand or wider than MAX_SUM_BITS, whose
    accesses are no whole words, and per cycle time that is far from the table's.
    """
    word = arch.word_bits
    for node in spec.nodes:
        if not isinstance(node, Memory):
            continue
        for role, bits in node.bits:
            if role == "output" and not word <= bits <= max(MAX_SUM_BITS, word):
                meant = f"narrower than one operand ({word} bit)" if bits < word else "wider than sums are"
                yield f"{node.name}.bits.output = {bits} is {meant}; correct it if that is not meant"
        if node.width_bits % word and word % node.width_bits:
            yield (
                f"{node.name}.width_bits = {node.width_bits} is no multiple of the word ({word} bit): its "
                "accesses are counted as parts of words; correct it if that is not meant"
            )
        if node.kind == "sram" and node.cycle_ns is not None and spec.node_nm:
            bits = 8 * (node.capacity or 0) // node.banks
            usual = component.sram(spec.node_nm, spec.cell, bits, node.width_bits).cycle_ns
            if not ODD_ENERGY <= (times := node.cycle_ns / usual) <= 1 / ODD_ENERGY:
                yield (
                    f"{node.name}.cycle_ns = {node.cycle_ns:.4g} is {times:.3g} times the tables' {usual:.4g}"
                    "; leave it out to take theirs, or keep it if it is meant"
                )


def _above_ports(spec: Machine, arch: Arch) -> Iterator[str]:
    """Yields a line per sram that is given more accesses per clock than its banks have ports: the tables know
    SRAM with one, which then works several times per clock. Register files (FILE_BYTES) may have FILE_PORTS.
    """
    levels = {level.name: level for level in arch.levels}
    for node in spec.nodes:
        if (
            not isinstance(node, Memory)
            or node.kind != "sram"
            or (level := levels.get(node.name.upper())) is None
        ):
            continue
        key = "actions_per_cycle" if node.bandwidth is None else "bandwidth"
        ports = FILE_PORTS if (node.capacity or 0) <= FILE_BYTES * node.banks else 1
        if getattr(node, key) is not None and level.bandwidth > node.banks * ports * (1 + 1e-9):
            banks = f"{counted(node.banks, 'bank')} of one port"
            yield (
                f"{node.name}.{key} asks for {level.bandwidth:.3g} accesses per clock of {banks} (SRAM of "
                f"the tables): each works {level.bandwidth / node.banks:.3g} times per clock, at no cost in "
                f"area; {node.banks} is one each, or raise banks"
            )


def _starved(spec: Machine, arch: Arch) -> Iterator[str]:
    """Yields a line per memory outside of an array that the file gives less than STARVED accesses per bank
    and clock, and words per clock for less than STARVED of the PEs along a dimension of that array.
    """
    levels = arch.level_index()
    for node in spec.nodes:
        v = levels.get(node.name.upper(), 0)
        if not isinstance(node, Memory) or not v:
            continue
        if node.bandwidth is None and node.actions_per_cycle is None:
            continue
        side = max((n for f in arch.fanouts if f.outside > v for _, n in f.dims), default=0)
        rate = arch.levels[v].bandwidth
        words = rate * node.width_bits / arch.word_bits
        if rate < STARVED * node.banks and words < STARVED * side:
            key = "actions_per_cycle" if node.bandwidth is None else "bandwidth"
            yield (
                f"{node.name}.{key} is {rate:.3g} accesses per clock of {counted(node.banks, 'bank')}: "
                f"{words:.3g} words for {arch.instances(len(arch.levels))} MAC units, {side} in a row; "
                "leave it out for one access per bank, or correct it if that is not meant"
            )


def _odd_custom(spec: Machine, arch: Arch) -> Iterator[str]:
    """Yields a line per memory of kind custom without a table whose writes and reads are far apart, by
    themselves or beside the tables', that serves more accesses than banks of FILE_PORTS ports do, or
    that stands in every PE and costs more per operand than OPERAND of a MAC.
    """
    custom = {
        node.name.upper(): node
        for node in spec.nodes
        if isinstance(node, Memory) and node.kind == "custom" and not node.table
    }
    for v, level in enumerate(arch.levels):
        if level.name not in custom:
            continue
        node, name, read, write = custom[level.name], level.name.lower(), level.read_pj, level.write_pj
        ports = node.banks * FILE_PORTS
        is_big = v > 0 and (node.capacity or 0) > FILE_BYTES * node.banks
        is_sram = is_big and (node.capacity or 0) <= MAX_BANK * node.banks and node.width_bits >= WIDE_BITS
        if is_sram and ports * (1 + 1e-9) < level.bandwidth < inf:
            yield (
                f"{name}.{'actions_per_cycle' if node.bandwidth is None else 'bandwidth'} asks for "
                f"{level.bandwidth:.3g} accesses per clock of {counted(node.banks, 'bank')} in "
                f"{component.show_bytes(node.capacity or 0)}: SRAM has one port per bank, register files "
                f"up to {FILE_PORTS}; raise banks, or correct it if that is not meant"
            )
        if min(read, write) > 0 and not ODD_ENERGY <= write / read <= 1 / ODD_ENERGY:
            yield (
                f"{name}.write_pj = {write:.4g} is {write / read:.3g} times {name}.read_pj = {read:.4g}; "
                "correct one of them if that is not meant"
            )
        elif is_big and min(read, write) > 0 and (usual := _writes_per_read(spec, node, arch.word_bits)):
            nearest = min(max(write / read, usual[0]), usual[1])
            if not 1 / ODD_PART <= write / read / nearest <= ODD_PART:
                yield (
                    f"{name}.read_pj = {read:.4g} and {name}.write_pj = {write:.4g}: a write costs "
                    f"{write / read:.2g} of a read, in the tables {usual[0]:.3g} to {usual[1]:.3g}; correct "
                    "one of them if that is not meant"
                )
        operand_pj, mac_pj = read / level.width_bits * arch.word_bits, arch.compute.mac_pj
        if (
            v == len(arch.levels) - 1
            and any(f.outside <= v for f in arch.fanouts)
            and operand_pj > OPERAND * mac_pj > 0
        ):
            yield (
                f"{name}.read_pj = {read:.4g} for {level.width_bits} bit is {operand_pj:.4g} per operand of "
                f"{arch.word_bits} bit, {operand_pj / mac_pj:.2g} of a MAC ({mac_pj:.4g}); correct "
                "one of them if that is not meant"
            )


def _writes_per_read(spec: Machine, node: Memory, word_bits: int) -> tuple[float, float] | None:
    """Returns the least and the largest energy of a write over that of a read that the tables have for a
    memory of kind custom; None: they have no such part.
    """
    usual = component.table_numbers(spec, node, word_bits)
    pairs = zip(usual.get("read_pj", ()), usual.get("write_pj", ()), strict=True)
    ratios = [write / read for read, write in pairs if read > 0]
    return (min(ratios), max(ratios)) if ratios else None


def _far_from_tables(spec: Machine, arch: Arch) -> Iterator[str]:
    """Yields a line per energy, leakage or area of a part of kind custom that is over FAR times the largest
    that the tables have for such a part (FAR_DRAM of a DRAM, FAR_MAC of a MAC unit without node_nm), or
    as far below their smallest.
    """
    at = f" at {spec.node_nm:g} nm" if spec.node_nm else ""
    dram_kinds = component.dram_kinds()
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
        far = FAR_DRAM if is_dram else FAR_MAC if isinstance(node, MacUnit) and not at else FAR
        for name, usual in component.table_numbers(spec, node, arch.word_bits).items():
            value = getattr(parts[node.name.lower()], name)
            nearest = min(max(value, min(usual)), max(usual))
            if value > 0 and not 1 / far <= value / nearest <= far:
                end = "most" if value > nearest else "least"
                if isinstance(node, Memory) and is_dram:
                    per_bit = {kind: getattr(component.dram(kind), f"{name}_per_bit") for kind in dram_kinds}
                    kind = min(dram_kinds, key=lambda kind: abs(per_bit[kind] * node.width_bits - nearest))
                    of = f"the {nearest:.4g} of {kind}, the {end} of the DRAMs of the tables, {size}"
                elif isclose(min(usual), max(usual)):
                    of = f"the {nearest:.4g} that the tables have for {size}{at}"
                else:
                    ends = f"{min(usual):.4g} to {max(usual):.4g}"
                    of = f"{nearest:.4g}, the {end} that the tables have for {size}{at} ({ends})"
                yield (
                    f"{node.name}.{name} = {value:.4g} is {value / nearest:.2g} times {of}; correct it, or "
                    "keep it if it is meant"
                )


def _odd_operations(spec: Machine, arch: Arch) -> Iterator[str]:
    """Yields a line per energy of a MAC unit of kind custom that is far above that of a MAC, and where a
    merge costs far more than another operation.
    """
    unit, mac_pj = spec.nodes[-1], arch.compute.mac_pj
    assert isinstance(unit, MacUnit)
    for name in ("alu_pj", "merge_pj") if unit.kind == "custom" and not unit.vector_lanes else ():
        if (pj := getattr(arch.compute, name)) > COSTLY_OP * mac_pj > 0:
            yield (
                f"{unit.name}.{name} = {pj:.4g} is {pj / mac_pj:.2g} times {unit.name}.mac_pj = {mac_pj:.4g}"
                "; correct one of them if that is not meant"
            )
            return
    pj, alu_pj = arch.compute.merge_pj, arch.compute.alu_pj
    if unit.merge_pj is not None and pj > COSTLY_OP * alu_pj > 0:
        yield (
            f"{unit.name}.merge_pj = {pj:.4g} is {pj / alu_pj:.2g} times {unit.name}.alu_pj = {alu_pj:.4g}, "
            "and a merge is one addition; correct one of them if that is not meant"
        )


# by part of a machine: its energy over the largest, and over the smallest, that the tables have at a node
Times = dict[str, tuple[float, float]]


def _odd_part(spec: Machine, arch: Arch) -> Iterator[str]:
    """Yields a line about the part of kind custom, of a machine without node_nm, whose energy goes with those
    of the others at no node of the tables (ODD_PART, ALIKE).
    """
    if spec.node_nm is not None:
        return
    # nodes of the tables; a factor over or below the tables may be common to all parts
    by_node = [_times_tables(replace(spec, node_nm=nm), arch) for nm in component.sram_nodes(spec.cell)]
    if len(by_node[0]) < 3 or (factor := min(map(_apart, by_node))) <= ODD_PART:
        return
    odd = [name for name in by_node[0] if min(_apart(_without(one, name)) for one in by_node) <= ALIKE]
    if len(odd) == 1:
        others = _without(by_node[0], odd[0])
        yield (
            f"{odd[0]} = {_energies(spec, arch)[odd[0]]:.4g} is out of proportion to {' and '.join(others)}"
            f": at no node_nm of the tables are they less than {factor:.2g} times apart; correct it, or "
            "keep it if it is meant"
        )


def _energies(spec: Machine, arch: Arch) -> dict[str, float]:
    """Returns, by name, the energies of a read or a MAC of the parts on the chip that are of kind custom."""
    reads = {level.name.lower(): level.read_pj for level in arch.levels}
    custom = [node for node in spec.nodes[1:] if not isinstance(node, Array) and node.kind == "custom"]
    return {
        f"{node.name}.read_pj" if isinstance(node, Memory) else f"{node.name}.mac_pj": reads[
            node.name.lower()
        ]
        if isinstance(node, Memory)
        else arch.compute.mac_pj
        for node in custom
    }


def _times_tables(spec: Machine, arch: Arch) -> Times:
    """Returns the energies of parts of kind custom as shares of the tables'; those that are 0 or that the
    tables have not are left out.
    """
    nodes = {node.name: node for node in spec.nodes}
    found: Times = {}
    for key, pj in _energies(spec, arch).items():
        name, field = key.split(".")
        node = nodes[name]
        assert not isinstance(node, Array)
        if pj and (usual := component.table_numbers(spec, node, arch.word_bits).get(field)):
            found[key] = pj / max(usual), pj / min(usual)
    return found


def _without(times: Times, left_out: str) -> Times:
    return {name: one for name, one in times.items() if name != left_out}


def _apart(times: Times) -> float:
    """Returns how far apart the parts are from one another; 1: one factor puts all into the tables."""
    return max(1.0, max(least for least, _ in times.values()) / min(most for _, most in times.values()))


def _odd_links(spec: Machine, arch: Arch) -> Iterator[str]:
    """Yields a line per array whose links cost more per bit than any in a package, or whose PEs pay far more
    for a bit that they take than the level outside does for reading it.
    """
    for fanout in arch.fanouts:
        name = fanout.name.lower()
        if fanout.hop_pj > MAX_HOP_PJ:
            yield (
                f"{name}.hop_pj = {fanout.hop_pj:.4g} per bit over one link: links on a chip or in a package "
                f"cost less than {MAX_HOP_PJ:g}; correct it, or keep it if it is meant"
            )
        outer, pj = arch.levels[fanout.outside - 1], fanout.endpoint_pj
        if pj * ODD_ENERGY > (per_bit := outer.read_pj / outer.width_bits) > 0:
            yield (
                f"{name}.endpoint_pj = {pj:.4g} per bit is {pj / per_bit:.2g} times what "
                f"{outer.name.lower()} pays to read it ({per_bit:.4g}); correct it, or keep it if "
                "it is meant"
            )


def _odd_drams(spec: Machine, arch: Arch) -> Iterator[str]:
    """Yields a line where a DRAM of kind custom has more background power than any in the tables of its
    bandwidth, and where opening a row costs far more than DRAMs take.
    """
    node, level = spec.nodes[0], arch.levels[0]
    if not isinstance(node, Memory) or node.capacity is not None:
        return
    if node.kind == "custom" and level.bandwidth < inf:
        gbps = level.bandwidth * level.width_bits / 8 * spec.clock_mhz / 1e3
        drams = [component.dram(kind) for kind in component.dram_kinds()]
        most = max(ceil(gbps / one.bandwidth_gbps) * one.background_mw for one in drams)
        if level.leak_mw > most:
            yield (
                f"{node.name}.leak_mw = {level.leak_mw:.4g} is {level.leak_mw / most:.2g} times the "
                f"{most:.4g} of the DRAMs of the tables that need the most for {gbps:.3g} GB/s; correct it, "
                "or keep it if it is meant"
            )
    if node.row and node.row_pj and node.row_pj > MAX_ROW_PJ * 8 * node.row:
        yield (
            f"{node.name}.row_pj = {node.row_pj:.4g} is {node.row_pj / 8 / node.row:.2g} pJ per bit of a row"
            f": DRAMs take less than {MAX_ROW_PJ:g}; correct it, or keep it if it is meant"
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
            far = ODD_PART if name in ("read_pj", "write_pj") else 1 / ODD_ENERGY
            if usual > 0 and own < inf and not 1 / far <= own / usual <= far:
                value = getattr(node, name)
                yield (
                    f"{node.name}.{name} = {value:.4g} is {own / usual:.3g} times the tables' "
                    f"{value * usual / own if own else usual:.4g}; "
                    "leave it out to take theirs, or keep it if it is meant"
                )
