"""Component tables, and `build`, which turns a checked Machine into an Arch.

SRAM: hw/data/sram_cacti7.csv (CACTI 7), interpolated log-log between its capacities and nodes, exact at every
row; values outside of the table are errors. Its smallest array has 64 B.
Registers (flip-flops) of up to 64 B: hw/data/register.csv at 40 nm, scaled as logic.
Logic: hw/data/mac.csv at 45 nm, scaled by hw/data/logic_scaling.csv.
DRAM: hw/data/dram.csv.
Supply voltage: hw/data/voltage.csv (hw/voltage.py), for machines that give vdd; DRAM has one of its own.

Each row names its source. A number in the machine file overrides the table.
"""

from __future__ import annotations

import csv
import difflib
import json
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace
from functools import lru_cache
from itertools import chain
from math import ceil, inf, log
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from hw.arch import (
    LAYOUT_FIELDS,
    OUTSIDE,
    PLAIN_UNITS,
    ROLES,
    SIZE_UNITS,
    TAKES_ALL,
    Access,
    Arch,
    Array,
    Compute,
    Fanout,
    Level,
    Machine,
    MacUnit,
    Memory,
    Node,
    Port,
    Rule,
    plain_number,
)
from hw.voltage import LEAST, Device, energy_factor
from workloads import plugin
from workloads.meant import meant
from workloads.renamed import key_now, value_now

DATA = Path(__file__).parent / "data"
MAX_REGISTER_BITS = 512  # of kind: register; from here on there are SRAM arrays
REGISTER_OR = "register (flip-flops, up to 64 B) or "  # of messages about memories that no SRAM table has
ON_CHIP = ("sram", "register")  # kinds of memories that technology node and cell price


class ComponentError(ValueError):
    """A component that no table has, or a machine that cannot exist: one line per fault, `key = value why;
    fix`.
    """


@dataclass(frozen=True, slots=True)
class Sram:
    """One SRAM array. Energies are per access of the full width."""

    read_pj: float
    write_pj: float
    leak_mw: float
    area_mm2: float
    access_ns: float
    cycle_ns: float


@dataclass(frozen=True, slots=True)
class Mac:
    """One MAC unit: multiplier and adder. mac_pj per multiply-accumulate, alu_pj per other operation."""

    bits: int
    mac_pj: float
    alu_pj: float
    leak_mw: float
    area_mm2: float


@dataclass(frozen=True, slots=True)
class Register:
    """Flip-flops, all read and written in every cycle. Energies are per access of the full width."""

    read_pj: float
    write_pj: float
    leak_mw: float
    area_mm2: float


@dataclass(frozen=True, slots=True)
class Dram:
    """One DRAM channel (or stack): energies, peak bandwidth, background power and width of the interface."""

    read_pj_per_bit: float
    write_pj_per_bit: float
    bandwidth_gbps: float
    background_mw: float
    interface_bits: int

    def transfers(self) -> str:
        """Returns width and rate of the interface.

        >>> dram("lpddr4").transfers()
        '16 bit at 3200 MT/s'
        """
        return f"{self.interface_bits} bit at {8e3 * self.bandwidth_gbps / self.interface_bits:g} MT/s"


def rows(table: str) -> list[dict[str, str]]:
    """Returns the rows of hw/data/<table>.csv as text, the columns with sources included."""
    with (DATA / f"{table}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@lru_cache
def _sram_table() -> dict[tuple[str, int], dict[float, dict[int, Sram]]]:
    """(cell, width_bits) -> node_nm -> capacity_bits -> array."""
    table: dict[tuple[str, int], dict[float, dict[int, Sram]]] = {}
    for row in rows("sram_cacti7"):
        numbers = [
            float(row[c]) for c in ("read_pj", "write_pj", "leakage_mw", "area_mm2", "access_ns", "cycle_ns")
        ]
        nodes = table.setdefault((row["cell"], 8 * int(row["word_bytes"])), {})
        nodes.setdefault(float(row["node_nm"]), {})[8 * int(row["capacity_bytes"])] = Sram(*numbers)
    return table


@lru_cache
def _rows_by(table: str, key: str) -> dict[str, dict[str, str]]:
    return {row[key]: row for row in rows(table)}


def bracket(x: float, xs: list[float]) -> tuple[float, float, float]:
    """Returns the neighbours of x in xs, and where x lies between them on a log scale: 0.0 if x is in xs."""
    high = xs[bisect_left(xs, x)]
    low = high if high == x else xs[bisect_left(xs, x) - 1]
    return low, high, log(x / low) / log(high / low) if high > low else 0.0


def blend(a: Iterable[float], b: Iterable[float], fraction: float) -> list[float]:
    """Returns the log-log interpolation of a and b at `fraction`. It never leaves [a, b], so it is monotonic
    where the rows are.
    """
    return [x if not fraction else x * (y / x) ** fraction for x, y in zip(a, b, strict=True)]


@lru_cache(maxsize=65536)
def sram(node_nm: float, cell: str, capacity_bits: int, width_bits: int) -> Sram:
    """Returns one SRAM array of capacity_bits with width_bits per access, in `lop` (low operating power) or
    `hp` cells.

    Area and leakage never fall with capacity, in the table as in the interpolation. Energy and cycle time are
    as CACTI gives them, which may fall. Raises ComponentError outside of the table, with its range and the
    fix. Source: hw/data/sram_cacti7.csv.
    >>> sram(45, "lop", 8 * 64, 16).read_pj
    0.149887
    """
    table = _sram_table()
    widths = sorted(w for c, w in table if c == cell)
    if not widths:
        raise ComponentError(
            f"cell = {cell} is in no table; use {' or '.join(sorted({c for c, _ in table}))}"
        )
    if width_bits not in widths:
        raise ComponentError(
            f"width_bits = {width_bits} is in no SRAM table; use one of {', '.join(map(str, widths))}, or "
            f"kind: {REGISTER_OR if capacity_bits <= MAX_REGISTER_BITS else ''}custom"
        )
    nodes = table[cell, width_bits]
    if not min(nodes) <= node_nm <= max(nodes):
        raise ComponentError(
            f"node_nm = {node_nm:g} is outside the tables ({min(nodes):g} to {max(nodes):g} nm); "
            "choose a value inside, or use kind: custom with numbers of your own"
        )
    sizes = sorted(nodes[min(nodes)])
    if not sizes[0] <= capacity_bits <= sizes[-1]:
        raise ComponentError(
            f"capacity = {show_bytes(capacity_bits / 8)} per SRAM macro is outside the SRAM table of "
            f"{width_bits} "
            f"bit words ({show_bytes(sizes[0] / 8)} to {show_bytes(sizes[-1] / 8)}); change capacity, "
            f"width_bits or banks, or use kind: {REGISTER_OR if capacity_bits < sizes[0] else ''}custom"
        )
    below, above, node_fraction = bracket(node_nm, sorted(nodes))
    ends = []
    for node in (below, above):
        low, high, fraction = bracket(capacity_bits, [float(s) for s in sizes])
        ends.append(blend(astuple(nodes[node][int(low)]), astuple(nodes[node][int(high)]), fraction))
    return Sram(*blend(ends[0], ends[1], node_fraction))


@lru_cache(maxsize=4096)
def mac(kind: str, node_nm: float, cell: str) -> Mac:
    """Returns one MAC unit. kind: a row of hw/data/mac.csv (int4 ... fp32), given at 45 nm and scaled by
    hw/data/logic_scaling.csv.

    Leakage is the unit's area times the leakage density of the smallest CACTI array (64 B) at the same node
    and cell, as no leakage of MAC units is published. Raises ComponentError for an unknown kind, or a node
    outside of the SRAM table, whose range lies within that of the logic table.
    """
    row = _rows_by("mac", "kind").get(kind)
    if row is None:
        raise ComponentError(f"kind = {kind} is no compute kind; {closest_name(kind, mac_kinds())}")
    density = _leakage_density(node_nm, cell)
    energy, area = _logic_factors(node_nm)
    area_mm2 = float(row["area_um2"]) * 1e-6 * area
    return Mac(
        int(row["bits"]),
        float(row["mac_pj"]) * energy,
        float(row["alu_pj"]) * energy,
        area_mm2 * density,
        area_mm2,
    )


@lru_cache(maxsize=4096)
def register(node_nm: float, cell: str, capacity_bits: int, width_bits: int) -> Register:
    """Returns flip-flops of capacity_bits with width_bits per access (hw/data/register.csv), scaled and
    leaking as MAC units (`mac`). Raises ComponentError for more than the table is for, or a node outside.
    >>> small, large = register(45, "lop", 8, 8), sram(45, "lop", 512, 16)
    >>> 0.05 < small.read_pj < large.read_pj < 0.2
    True
    """
    if capacity_bits > MAX_REGISTER_BITS:
        raise ComponentError(
            f"capacity = {show_bytes(capacity_bits / 8)} is more than flip-flops without a decoder are for "
            f"({show_bytes(MAX_REGISTER_BITS / 8)}); use kind: sram"
        )
    density = _leakage_density(node_nm, cell)
    ((node, row),) = _rows_by("register", "node_nm").items()
    given = _logic_factors(float(node))
    energy, area = (now / then for now, then in zip(_logic_factors(node_nm), given, strict=True))
    area_mm2 = capacity_bits * float(row["area_um2_per_bit"]) * 1e-6 * area
    return Register(
        width_bits * float(row["read_pj_per_bit"]) * energy,
        width_bits * float(row["write_pj_per_bit"]) * energy,
        area_mm2 * density,
        area_mm2,
    )


def _leakage_density(node_nm: float, cell: str) -> float:
    """Returns mW per mm2 of the smallest CACTI array (64 B). Raises ComponentError for a node outside of the
    SRAM table, whose range lies within that of the logic table.
    """
    smallest = sram(node_nm, cell, 512, 16)
    return smallest.leak_mw / smallest.area_mm2


@lru_cache(maxsize=4096)
def device(node_nm: float, cell: str) -> Device:
    """Returns the transistors of a node and cell (hw/data/voltage.csv), interpolated as SRAM between nodes.
    Raises ComponentError outside of the table.
    >>> device(45, "lop").nominal_v, round(device(45, "lop").highest_mhz(0.7))
    (0.7, 1159)
    """
    nodes = {
        float(row["node_nm"]): [float(row[f.name]) for f in fields(Device)]
        for row in rows("voltage")
        if row["cell"] == cell
    }
    if not min(nodes) <= node_nm <= max(nodes):
        raise ComponentError(
            f"node_nm = {node_nm:g} is outside the table of voltages ({min(nodes):g} to {max(nodes):g} nm); "
            "choose a value inside, or leave vdd out"
        )
    below, above, fraction = bracket(node_nm, sorted(nodes))
    return Device(*blend(nodes[below], nodes[above], fraction))


@lru_cache
def logic_v() -> float:
    """Returns the voltage at which the tables of logic give energies."""
    (volts,) = {float(row["volts"]) for row in rows("logic_scaling")}
    return volts


def _logic_factors(node_nm: float) -> list[float]:
    """Returns the factors of energy and area at a node over those at 45 nm (hw/data/logic_scaling.csv)."""
    factors = {
        float(r["node_nm"]): (float(r["energy_factor"]), float(r["area_factor"]))
        for r in _rows_by("logic_scaling", "node_nm").values()
    }
    below, above, fraction = bracket(node_nm, sorted(factors))
    return blend(factors[below], factors[above], fraction)


@lru_cache
def dram(kind: str) -> Dram:
    """Returns one channel of a DRAM kind (hw/data/dram.csv). Raises ComponentError for an unknown kind."""
    row = _rows_by("dram", "kind").get(kind)
    if row is None:
        raise ComponentError(f"kind = {kind} is no DRAM; {closest_name(kind, dram_kinds())}")
    return Dram(
        float(row["read_pj_per_bit"]),
        float(row["write_pj_per_bit"]),
        float(row["bandwidth_gbps"]),
        float(row["background_mw"]),
        int(row["interface_bits"]),
    )


def mac_kinds() -> list[str]:
    """Kinds of MAC units that the tables price."""
    return list(_rows_by("mac", "kind"))


def dram_kinds() -> list[str]:
    """Kinds of DRAM that the tables price."""
    return list(_rows_by("dram", "kind"))


def sram_nodes(cell: str) -> list[float]:
    """Technology nodes (nm) of the table of SRAMs."""
    return sorted(next(nodes for (one, _), nodes in _sram_table().items() if one == cell))


BANKINGS = (1, 2, 4, 8, 16)  # numbers of banks that a memory of kind custom may have


def table_numbers(spec: Machine, node: Memory | MacUnit, word_bits: int) -> dict[str, list[float]]:
    """Returns the energies (pJ), leakages and areas by name of those parts of the tables that a part of kind
    custom may be: MAC units of its bits, as many as it does operations per cycle (none for a unit without
    MACs); SRAMs of its capacity in banks (BANKINGS), or flip-flops, with the energy per bit of the nearest
    width that the table has, leakage and area of any; for an unbounded outermost memory the energies of
    DRAMs. Of a machine without node_nm those of the smallest and of the
    largest node. {}: the tables have no such part.
    """
    widths = [width for cell, width in _sram_table() if cell == spec.cell]
    nodes_nm = sram_nodes(spec.cell)
    if spec.node_nm and not nodes_nm[0] <= spec.node_nm <= nodes_nm[-1]:
        return {}
    ends_nm = [spec.node_nm] if spec.node_nm else [nodes_nm[0], nodes_nm[-1]]
    if isinstance(node, MacUnit):
        kinds = [row["kind"] for row in rows("mac") if int(row["bits"]) == word_bits]
        units = [mac(kind, nm, spec.cell) for kind in kinds for nm in ends_nm]
        n = max(1.0, node.ops_per_cycle)
        units = [replace(one, leak_mw=n * one.leak_mw, area_mm2=n * one.area_mm2) for one in units]
        return _columns(("mac_pj", "leak_mw", "area_mm2"), units if node.mac_pj != 0 else [])
    if node.capacity is None:
        drams = [dram(kind) for kind in dram_kinds()] if node is spec.nodes[0] else []
        per_bit = _columns(("read_pj_per_bit", "write_pj_per_bit"), drams)
        return {
            name.removesuffix("_per_bit"): [node.width_bits * pj for pj in column]
            for name, column in per_bit.items()
        }
    bits, width = 8 * node.capacity, min(widths, key=lambda w: abs(log(w / node.width_bits)))
    sizes_of = {w: _sram_table()[spec.cell, w][nodes_nm[0]] for w in widths}
    srams = [
        (w, replace(bank, leak_mw=banks * bank.leak_mw, area_mm2=banks * bank.area_mm2))
        for w, sizes in sizes_of.items()
        for nm in ends_nm
        for banks in BANKINGS
        if min(sizes) <= bits // banks <= max(sizes)
        for bank in [sram(nm, spec.cell, bits // banks, w)]
    ]
    registers = [register(nm, spec.cell, bits, width) for nm in ends_nm if bits <= MAX_REGISTER_BITS]
    energies = _columns(("read_pj", "write_pj"), [*(one for w, one in srams if w == width), *registers])
    others = _columns(("leak_mw", "area_mm2"), [*(one for _, one in srams), *registers])
    return {name: [n * node.width_bits / width for n in column] for name, column in energies.items()} | others


def _columns(names: Sequence[str], parts: Sequence[object]) -> dict[str, list[float]]:
    """Returns the numbers of parts by name; {} of none."""
    return {name: [getattr(part, name) for part in parts] for name in names} if parts else {}


MAX_NAMES = 20  # up to so many valid names are all listed by a message
NEAREST = 5  # if there are more, so many of the nearest ones


def closest_name(word: str, names: Iterable[str]) -> str:
    """Returns the advice for a wrong word: the name that it means (`meant`), up to three where none has
    the number at its end; else all valid names, or the nearest ones if there are more than MAX_NAMES.
    >>> closest_name("lpdr4", ["sram", "lpddr4"]), closest_name("ddr5", ["sram", "ddr3", "ddr4"])
    ('did you mean lpddr4?', 'did you mean ddr4 or ddr3?')
    """
    names = list(names)
    number = re.search(r"\d+$", word)
    found = meant(word, names)
    if number and not any(name.endswith(number[0]) for name in found):
        found = meant(word, names, 3)
    if found:
        return f"did you mean {' or '.join(found)}?"
    if len(names) <= MAX_NAMES:
        return f"use one of {', '.join(names)}"
    nearest = difflib.get_close_matches(word, names, NEAREST, cutoff=0)
    return f"the nearest of {len(names)} are {', '.join(nearest)}"


def show_bytes(size: float) -> str:
    """Returns a size in the largest binary unit that divides it: 131072 -> 128 KiB."""
    unit = next(
        (u for u in ("GiB", "MiB", "KiB") if size >= SIZE_UNITS[u] and size % SIZE_UNITS[u] == 0), "B"
    )
    return f"{size / SIZE_UNITS[unit]:.12g} {unit}"


def show(value: object) -> str:
    """Returns a value as messages quote it: texts in quotes, lists and mappings as YAML has them, at most 80
    characters.
    """
    text = json.dumps(value) if isinstance(value, (str, bool)) or value is None else _flow(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _flow(value: object) -> str:
    """Returns a value as it stands in a list of YAML."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_flow, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {_flow(one)}' for key, one in value.items())}}}"
    return json.dumps(value) if isinstance(value, bool) or value is None else str(value)


class Outline(NamedTuple):
    """A node of a machine file, for the order of nodes: it may have faults of its own."""

    role: str  # memory, array or compute
    name: str
    dims: Sequence[str] = ()  # of an array
    core: str = ""


N = TypeVar("N", bound=Node)

FAULT_TEXTS = {  # pydantic's type of an error -> what is wrong; what to write
    "missing": "is missing; add it",
    "string_pattern_mismatch": "is no name; use lower case letters, digits and _, a letter first",
    "string_type": "must be a text; write a word",
    "int_type": "must be a whole number; write e.g. 16",
    "float_type": "must be a number; write e.g. 0.5",
    "finite_number": "must be finite; write a number",
    "greater_than": "must be above 0; raise it",
    "greater_than_equal": "must not be negative; use 0 or more",
    "bool_type": "must be true or false; write one of them",
    "tuple_type": "must be true, false or a list of dimensions; write e.g. [x]",
    "dict_type": "must be a mapping; write e.g. {x: 16, y: 16}",
    "dataclass_type": "must be a mapping of its keys; write e.g. {align: 8}",
    "too_short": "is empty; name at least one",
}


# what a message shows for a key that is missing
EXAMPLES = {"width_bits": "width_bits: 64", "dims": "dims: {x: 16, y: 16}"}


def explain(key: str, kind: str, value: object, detail: str, known: Iterable[str] = ()) -> str:
    """Returns the message for one pydantic error: key, value, what is wrong, what to write.

    kind, detail: `type` and `msg` of the error
    known: the valid keys
    """
    shown = f"{key} = {show(value)}"
    if kind in ("unexpected_keyword_argument", "extra_forbidden"):
        known = list(known)
        new_name = key_now(key, known)
        return (
            f"{shown} has a new name; write {new_name}"
            if new_name
            else f"{shown} is no known key; {closest_name(key.rsplit('.', 1)[-1], known)}"
        )
    if kind == "missing" and (example := EXAMPLES.get(key.rpartition(".")[2])):
        return f"{key} is missing; add it, e.g. {example}"
    if kind == "value_error":
        says = detail.removeprefix("Value error, ")
        return f"{key}{says}" if says.startswith("[") else f"{shown} {says}"
    if kind == "literal_error":
        if new_name := value_now(key, value):
            return f"{shown} has a new name; write {new_name}"
        known = re.findall(r"'([^']*)'", detail)
        return f"{shown} is unknown; {closest_name(str(value), known)}"
    if kind == "float_type" and (unit := key.rpartition("_")[2]) in PLAIN_UNITS:
        example, units = PLAIN_UNITS[unit]
        read = plain_number(key, str(value))
        plain_unit = next(unit for unit, scale in units.items() if scale == 1)
        advice = f", in {plain_unit}; write {read}" if read else f"; write e.g. {example}"
        return f"{shown} must be a number{advice}"
    if kind == "int_type" and key.endswith("_bits") and (size := re.fullmatch(r"(\d+) ?B", str(value))):
        return f"{shown} must be a whole number of bits; write {8 * int(size[1])}"
    if kind == "float_type" and (percent := re.fullmatch(r"(\d+(?:\.\d+)?) ?%", str(value))):
        return f"{shown} must be a number; write {float(percent[1]) / 100:g}"
    return (
        f"{key if kind == 'missing' else shown} "
        f"{FAULT_TEXTS.get(kind, f'does not fit ({detail}); correct it')}"
    )


def order_faults(outline: Sequence[Outline]) -> Iterator[str]:
    """Yields the faults in the order of nodes, one line each. outline: of each node, outermost first."""
    roles = [one.role for one in outline]
    if "memory" not in roles[:1]:
        yield (
            f"nodes[0] = {roles[0] if roles else 'nothing'} must be a memory, where the tensors "
            "live; begin with e.g. - memory: dram"
        )
    if any(one.name == "tiling" for one in outline):
        yield "nodes: name tiling is the block of the machine's tile sizes; choose another"
    cores = list(dict.fromkeys(one.core for one in outline))
    if "compute" not in roles or roles[-1] != "compute":
        says = "end with another node than the compute" if "compute" in roles else "have no compute"
        yield f"nodes {says}; end the list with exactly one - compute: mac"
    elif cores[0]:
        yield (
            f"nodes[0].in_core = {cores[0]} cannot be: main memory stands outside of all cores; leave it out"
        )
    else:
        yield from _core_faults(outline, cores[1:])
    for what, names in (
        ("name", [one.name for one in outline]),
        ("dimension", [dim for one in outline for dim in one.dims]),
    ):
        for name, n in Counter(names).items():
            if n > 1:
                yield f"nodes: {what} {name} stands {n} times; give each its own"


def _core_faults(outline: Sequence[Outline], cores: Sequence[str]) -> Iterator[str]:
    """Yields the faults in the order of several computes and cores. cores: the names of these."""
    order = [*dict.fromkeys(("", *cores))]
    places = [order.index(one.core) for one in outline]
    for i, (one, place) in enumerate(zip(outline, places, strict=True)):
        if i and place < places[i - 1]:
            outside = "outside of all cores" if not one.core else f"of core {one.core}"
            yield (
                f"nodes[{i}] = {one.name} is {outside} and stands behind one of core {outline[i - 1].core}; "
                "list what all cores share first, then core by core"
            )
    for core in order:
        own = [one for one in outline if one.core == core]
        first = next((i for i, one in enumerate(own) if one.role == "compute"), len(own))
        where = f"core {core}" if core else "nodes"
        if core and first == len(own):
            yield f"{where} has no compute; end it with e.g. - {{compute: mac_{core}, in_core: {core}}}"
        if not core and cores and first < len(own):
            yield (
                f"{own[first].name} is a compute outside of all cores ({', '.join(cores)}); write its "
                "in_core, one of these or one of its own"
            )
        for one in own[first:]:
            if one.role != "compute":
                yield f"{one.name} stands inside of {own[first].name}, a compute; list computes last"


def paths(nodes: Sequence[N | None]) -> list[tuple[N | None, ...]]:
    """Returns for each compute of a machine the nodes from the outermost in to it: those of no core, then
    those of its own. None in nodes: a node that could not be read.
    """
    return [
        tuple(
            node
            for node in nodes
            if node is one
            or not (isinstance(node, MacUnit) or (node and node.in_core not in (None, one.in_core)))
        )
        for one in nodes
        if isinstance(one, MacUnit)
    ]


def has_units(nodes: Sequence[Node | None]) -> bool:
    """True if a machine has several computes, or cores: einsums run on one of its computes each."""
    computes = [one for one in nodes if isinstance(one, MacUnit)]
    return len(computes) > 1 or any(one.in_core for one in computes)


def unit_specs(spec: Machine) -> list[tuple[Machine, MacUnit]]:
    """Returns the machine that each compute of several stands in by itself, and this compute."""
    computes = [node for node in spec.nodes if isinstance(node, MacUnit)]
    word, found = word_bits_of(spec, computes[0]), []
    for one, path in zip(computes, paths(spec.nodes), strict=True):
        own = [replace(node, in_core=None) for node in path[:-1] if node is not None]
        alone = (*own, replace(one, in_core=None, takes=TAKES_ALL))
        places = {"", *(node.name for node in own)}.union(*(n.dims for n in own if isinstance(n, Array)))
        rules = tuple(rule for rule in spec.mapping if rule.at.lower() in places)
        found.append((replace(spec, nodes=alone, word_bits=word, mapping=rules), one))
    return found


def unit_faults(spec: Machine, nodes: Sequence[Node | None]) -> Iterator[str]:
    """Yields what cannot be where a machine has several computes, or only there."""
    computes = [one for one in nodes if isinstance(one, MacUnit)]
    if not has_units(nodes):
        for one in computes:
            if one.takes != TAKES_ALL:
                yield (
                    f"{one.name}.takes = {one.takes} leaves einsums to another compute, and there is none; "
                    "leave it out, or add one"
                )
        return
    for one in computes:
        if one.vector_lanes:
            yield (
                f"{one.name}.vector_lanes = {one.vector_lanes} stands beside other computes; give the vector "
                "unit a compute of its own, with takes: {kinds: [others]} and ops_per_cycle"
            )
    kinds = sorted({one.kind for one in computes})
    if spec.word_bits is None and len(kinds) > 1:
        yield (
            f"word_bits is missing: the computes are of several kinds ({', '.join(kinds)}); add e.g. "
            "word_bits: 8"
        )
    for node in nodes:
        keys = ("hop_pj", "endpoint_pj") if isinstance(node, Array) else LAYOUT_FIELDS
        if key := next((key for key in keys if getattr(node, key, None)), ""):
            assert node
            yield (
                f"{node.name}.{key} stands beside several computes: lines, rows, banks and networks are "
                "counted for one; leave it out"
            )


def nesting_faults(nodes: Sequence[Node | None]) -> Iterator[str]:
    """Yields the faults in how nodes are nested, one line each: DRAM listed inside of SRAM; burst or
    bank_map inside of an array. None in nodes: a node that could not be read.
    """
    first_array = next((i for i, node in enumerate(nodes) if isinstance(node, Array)), len(nodes))
    for node in nodes[first_array:]:
        if isinstance(node, Memory) and (node.burst is not None or node.bank_map is not None):
            yield (
                f"{node.name}.{'burst' if node.burst else 'bank_map'} is inside of an array; layouts are "
                "counted outside of arrays, leave it out"
            )
    memories = [node for node in nodes if isinstance(node, Memory)]
    described = next((node for node in memories if node.burst is not None or node.bank_map is not None), None)
    if described and (widened := next((node for node in memories if node.bits), None)):
        yield (
            f"{widened.name}.bits = {_shown_widths(widened)} stands beside {described.name}."
            f"{'burst' if described.burst else 'bank_map'}: lines, rows and banks are counted for elements "
            "of one width; leave one of both out"
        )
    if described and (packed := next((node for node in memories if node.formats), None)):
        yield (
            f"{packed.name}.formats stands beside {described.name}."
            f"{'burst' if described.burst else 'bank_map'}: lines, rows and banks are counted for tensors in "
            "one format; leave one of both out"
        )
    stepping = next((node.name for node in nodes if isinstance(node, MacUnit) and node.lockstep), "")
    if stepping and (
        packed := next((n for n in memories if any(one.role == "output" for one in n.formats)), None)
    ):
        yield (
            f"{packed.name}.formats.output stands beside {stepping}.lockstep: results of PEs that step "
            "together are dense; leave one of both out"
        )
    written = ("ports", "write_bandwidth", "writes_per_cycle")
    apart = [
        f"{node.name}.{key}"
        for node in memories
        for key in written
        if not (getattr(node, key) is None or isinstance(getattr(node, key), str))
    ]
    if described and apart:
        yield (
            f"{apart[0]} stands beside {described.name}.{'burst' if described.burst else 'bank_map'}: lines, "
            "rows and banks are timed at ports that serve all, at one rate; leave one of both out"
        )
    yield from _along_faults(nodes)
    first_sram = ""
    for i, node in enumerate(nodes):
        if isinstance(node, Memory) and node.kind == "sram":
            first_sram = first_sram or node.name
        elif isinstance(node, Memory) and node.kind in dram_kinds() and first_sram:
            yield (
                f"nodes[{i}] = {node.name} is {node.kind} inside of the sram {first_sram}; "
                "list the outermost memory first"
            )


def _along_faults(nodes: Sequence[Node | None]) -> Iterator[str]:
    """Yields faults of memories that PEs share along dimensions of an array (`along`)."""
    sharing = [(i, node) for i, node in enumerate(nodes) if isinstance(node, Memory) and node.along]
    for i, node in sharing:
        key = f"{node.name}.along = [{', '.join(node.along)}]"
        arrays = [one for one in nodes[:i] if isinstance(one, Array)]
        outside = [dim for one in arrays for dim in one.dims]
        for dim in node.along:
            if dim not in outside and None not in nodes[:i]:
                near = closest_name(dim, outside) if outside else "list the memory inside of an array"
                yield f"{key}: {dim} is no dimension of an array outside of it; {near}"
        for one in [one for one in nodes if isinstance(one, Array)]:
            if one.systolic is not None or one.hop_pj or one.endpoint_pj:
                what = "systolic" if one.systolic is not None else "hop_pj" if one.hop_pj else "endpoint_pj"
                yield (
                    f"{key} stands beside {one.name}.{what}: ramps and hops are counted of PEs that each "
                    "have their memories; leave one of both out"
                )
        described = (one for one in nodes if isinstance(one, Memory) and (one.burst or one.bank_map))
        if one_described := next(described, None):
            yield (
                f"{key} stands beside {one_described.name}.{'burst' if one_described.burst else 'bank_map'}: "
                "lines, rows and banks are counted where each PE has its memories; leave one of both out"
            )
        for other in nodes[:i]:
            if not isinstance(other, Memory) or not set(other.may_keep) & set(node.may_keep):
                continue
            around = {
                dim for one in nodes[: nodes.index(other)] if isinstance(one, Array) for dim in one.dims
            }
            if apart := [dim for dim in node.along if dim in around and dim not in other.along]:
                yield (
                    f"{key}: {other.name} has an instance for each PE along {apart[0]}, and keeps the same "
                    f"tensors; write {other.name}.along: [{apart[0]}] too, or may_keep of other tensors"
                )


def rule_faults(rules: Sequence[Rule], nodes: Sequence[Node | None], prefix: str) -> Iterator[str]:
    """Yields rules of a block `mapping` that name nothing of the machine, or say what cannot be there.
    prefix: the key of the block.
    """
    memories = [node.name for node in nodes if isinstance(node, Memory)]
    dims = [dim for node in nodes if isinstance(node, Array) for dim in node.dims]
    # what may stand at a memory, a dimension, the machine
    allowed = {
        "memory": ("factors", "order", "inside", "keep", "bypass", "tile"),
        "dimension": ("ranks", "factors", "utilization"),
        "machine": ("utilization",),
    }
    for i, rule in enumerate(rules):
        key = f"{prefix}[{i}]"
        at = rule.at.lower()
        if at and at not in (*memories, *dims):
            yield (
                f"{key}.at = {rule.at} is no memory and no dimension of an array; "
                f"{closest_name(at, [*memories, *dims])}"
            )
            continue
        kind = "machine" if not at else "dimension" if at in dims else "memory"
        empty = {"ranks": None, "utilization": None}
        given = [
            f.name
            for f in fields(Rule)
            if f.name not in ("at", "einsums") and getattr(rule, f.name) != empty.get(f.name, ())
        ]
        where = "without `at`" if kind == "machine" else f"at a {kind} ({rule.at})"
        if not given:
            yield f"{key} = {{at: {rule.at}}} says nothing; add one of {', '.join(allowed[kind])}"
        for name in given:
            if name not in allowed[kind]:
                yield (
                    f"{key}.{name} = {_rule_value(rule, name)} cannot stand {where}; there a rule has "
                    f"{', '.join(allowed[kind])}"
                )
        if kind == "memory" and memories and at == memories[0]:
            for name in ("bypass", "tile"):
                if name in given:
                    yield (
                        f"{key}.{name} = {_rule_value(rule, name)} cannot be: the outermost level holds "
                        "every tensor whole; leave it out"
                    )
        node = next((node for node in nodes if isinstance(node, Memory) and node.name == at), None)
        if node and rule.bypass and node.bypass is False:
            yield (
                f"{key}.bypass = {_rule_value(rule, 'bypass')} contradicts {node.name}.bypass = false: no "
                "tensor that may stand there passes it by; leave one of both out"
            )
        if both := [name for name in rule.keep if name in rule.bypass]:
            yield f"{key}.bypass = {both[0]} is in keep too; leave one out"


def _rule_value(rule: Rule, name: str) -> str:
    """Returns the value of a key of a rule, about as a file has it."""
    value = getattr(rule, name)
    return f"[{', '.join(map(str, value))}]" if isinstance(value, tuple) else show(value)


def node_faults(spec: Machine, node: Node, outermost: bool = False) -> list[str]:
    """Returns the faults of one node under the clock, technology and word of spec: contradictions, or if
    there are none, values that the tables do not have.
    """
    faults = contradictions(spec, node, outermost)
    if faults or isinstance(node, Array):
        return faults
    try:
        _ = level_of(spec, node, outermost) if isinstance(node, Memory) else compute_of(spec, node)
    except ComponentError as fault:
        return [
            str(fault)
            if str(fault).startswith(("node_nm", "cell", "clock_mhz", "vdd"))
            else f"{node.name}.{fault}"
        ]
    return []


def contradictions(spec: Machine, node: Node, outermost: bool = False) -> list[str]:
    """Returns the faults of one node that need no table to be found."""
    if isinstance(node, Memory):
        try:
            node = with_table(spec, node)
        except ComponentError as fault:
            return [f"{node.name}.{fault}"]
        return [*_memory_faults(node, outermost), *_access_faults(node)]
    return list(_array_faults(node) if isinstance(node, Array) else _mac_unit_faults(spec, node))


def _memory_faults(node: Memory, outermost: bool) -> Iterator[str]:
    key, is_sram, on_chip = node.name, node.kind == "sram", node.kind in ON_CHIP
    yield from _custom_faults(node, ("read_pj", "write_pj", "leak_mw", "area_mm2"))
    if key == "compute":
        yield "memory = compute is the name of the MAC units in every result; choose another"
    if node.kind == "custom" and node.bandwidth is None and node.actions_per_cycle is None:
        yield (
            f"{key}.actions_per_cycle is missing: kind: custom takes nothing from a table; add it "
            "(inf for no limit), or bandwidth"
        )
    if node.capacity is None and (on_chip or not outermost):
        bounded, size = ("register", "4 B") if node.kind == "register" else ("sram", "128 KiB")
        yield (
            f"{key}.capacity is missing: only an outermost level that is no {bounded} is unbounded; add "
            f"e.g. capacity: {size}"
        )
    if node.capacity is not None and node.width_bits > 8 * node.capacity:
        yield (
            f"{key}.width_bits = {node.width_bits} is wider than its capacity of "
            f"{show_bytes(node.capacity)}; lower it"
        )
    if node.capacity is not None and node.capacity % node.banks:
        yield (
            f"{key}.banks = {node.banks} must divide capacity = {show_bytes(node.capacity)}; use a "
            "power of two"
        )
    if node.banks > 1 and not is_sram:
        yield f"{key}.banks = {node.banks} is for kind: sram; leave it out, or use channels"
    if node.channels > 1 and (on_chip or node.kind == "custom"):
        yield f"{key}.channels = {node.channels} is for a DRAM kind; leave it out"
    if node.bandwidth is not None and node.actions_per_cycle is not None:
        yield (
            f"{key}.bandwidth = {node.bandwidth:g} GB/s stands beside actions_per_cycle = "
            f"{node.actions_per_cycle:g}; leave one out"
        )
    if node.cycle_ns is not None and not is_sram:
        yield f"{key}.cycle_ns = {node.cycle_ns:g} is for kind: sram; leave it out"
    if node.double_buffer and outermost:
        yield (f"{key}.double_buffer = true cannot be: nothing fills the outermost level; leave it out")
    if outermost and set(node.may_keep) != set(ROLES):
        yield (
            f"{key}.may_keep = [{', '.join(node.may_keep)}] cannot be: the outermost level holds "
            "every tensor; leave it out"
        )
    if outermost and node.bits:
        yield (
            f"{key}.bits = {_shown_widths(node)} cannot be: a tensor lies in the outermost level as wide as "
            "all that write and read it move it; leave it out, and use word_bits or the workload's bits"
        )
    if outermost and node.formats:
        yield (
            f"{key}.formats cannot be: in the outermost level a tensor lies in the format of the workload "
            "(einsums[].format); leave it out"
        )
    for one in node.formats:
        if one.role not in node.may_keep:
            yield (
                f"{key}.formats.{one.role} = {one.form} is of a tensor that may not stand there; leave it "
                f"out, or add {one.role} to may_keep"
            )
        if one.role in dict(node.bits):
            yield (
                f"{key}.formats.{one.role} stands beside {key}.bits.{one.role}: values of compressed tensors "
                "have one width everywhere; leave one of both out"
            )
    yield from _port_faults(node, outermost)
    for role, bits in node.bits:
        if role not in node.may_keep:
            yield (
                f"{key}.bits.{role} = {bits} is of a tensor that may not stand there; leave it out, or add "
                f"{role} to may_keep"
            )
    if outermost and node.bypass:
        yield f"{key}.bypass = true cannot be: the outermost level holds every tensor; leave it out"


def _port_faults(node: Memory, outermost: bool) -> Iterator[str]:
    key = node.name
    if node.write_bandwidth is not None and node.writes_per_cycle is not None:
        yield (
            f"{key}.write_bandwidth = {node.write_bandwidth:g} GB/s stands beside writes_per_cycle = "
            f"{node.writes_per_cycle:g}; leave one out"
        )
    if isinstance(node.ports, str):
        return
    for way in ("read", "write"):
        served = [role for one in node.ports for role in getattr(one, way)]
        for role in ROLES:
            if (n := served.count(role)) > 1:
                yield (
                    f"{key}.ports serve {way} of {role} {n} times; name it at one port, whose rate `times` "
                    "multiplies, e.g. times: 2"
                )
            elif not n and role in node.may_keep:
                yield f"{key}.ports do not serve {way} of {role}; add it to the {way} of a port"
            elif n and role not in node.may_keep:
                yield (
                    f"{key}.ports serve {way} of {role}, which may not stand there; leave it out, or add it "
                    "to may_keep"
                )
    for way, same in OUTSIDE.items():
        served = [role for one in node.ports for role in one.serves(way)]
        for role in dict.fromkeys(served):
            if role != "output":
                yield (
                    f"{key}.ports serve {way} of {role}, which comes from outside alone: name it in {same} "
                    "of a port"
                )
            elif outermost:
                yield f"{key}.ports serve {way} of {role}, and nothing is outside of {key}; leave it out"
            elif served.count(role) > 1 or role not in node.may_keep:
                yield (
                    f"{key}.ports serve {way} of {role} {served.count(role)} times; name it at one port, of "
                    "a memory where it may stand"
                )


def _shown_widths(node: Memory) -> str:
    """Returns the widths of a memory's elements as its file gives them."""
    return f"{{{', '.join(f'{role}: {bits}' for role, bits in node.bits)}}}"


def _custom_faults(node: Memory | MacUnit, numbers: Sequence[str]) -> Iterator[str]:
    for field in numbers if node.kind == "custom" else ():
        if getattr(node, field) is None:
            yield (
                f"{node.name}.{field} is missing: kind: custom takes nothing from a table; add it (0 if you "
                "mean 0)"
            )


def _array_faults(node: Array) -> Iterator[str]:
    for field in ("multicast", "reduce"):
        for dim in _named_dims(node, field):
            if dim not in node.dims:
                near = closest_name(dim, node.dims)
                yield f"{node.name}.{field} = {dim} is no dimension of the array; {near}"
    if node.systolic is not None and len(node.dims) != 2:
        yield (
            f"{node.name}.systolic = {node.systolic} needs two dimensions, rows and columns, has "
            f"{len(node.dims)}; split the array, or leave systolic out"
        )
    # the cycle formula of output-stationary arrays would give one cycle less than there are steps
    if node.systolic == "os" and set(node.dims.values()) == {1}:
        yield (f"{node.name}.systolic = os needs more than one PE; enlarge dims, or leave systolic out")
    if node.hop_pj and len(node.dims) != 2:
        yield (
            f"{node.name}.hop_pj = {node.hop_pj:g} needs two dimensions, rows and columns, has "
            f"{len(node.dims)}; split the array, or leave it out"
        )
    for dim in node.dims:
        if dim == "array" or dim in Array.__dataclass_fields__:
            yield f"{node.name}.dims = {dim} is a key of arrays; choose another name"


def _named_dims(node: Array, field: str) -> tuple[str, ...]:
    value: bool | tuple[str, ...] = getattr(node, field)
    return (tuple(node.dims) if value else ()) if isinstance(value, bool) else value


def _mac_unit_faults(spec: Machine, node: MacUnit) -> Iterator[str]:
    yield from _custom_faults(node, ("mac_pj", "alu_pj", "leak_mw", "area_mm2"))
    if node.kind == "custom" and spec.word_bits is None:
        yield "word_bits is missing: kind: custom has no width of its own; add e.g. word_bits: 8"
    if node.vector_kind is not None and not node.vector_lanes:
        yield (
            f"{node.name}.vector_kind = {node.vector_kind} has no vector lanes; add e.g. "
            "vector_lanes: 16, or leave it out"
        )
    if node.vector_lanes and "custom" in (node.vector_kind or node.kind, node.vector_kind):
        yield (
            f"{node.name}.vector_kind = {node.vector_kind or 'missing'} gives a vector unit no "
            f"numbers; use one of {', '.join(mac_kinds())}"
        )


def _node_nm(spec: Machine) -> float:
    if spec.node_nm is None:
        raise ComponentError("node_nm is missing: the tables need it; add e.g. node_nm: 32")
    return spec.node_nm


TABLE_FIELDS = ("read_pj", "write_pj", "leak_mw", "area_mm2", "actions_per_cycle")  # that a table may give


def with_table(spec: Machine, node: Memory) -> Memory:
    """Returns a memory with the numbers that its own table gives and it lacks. Raises ComponentError."""
    if node.table is None:
        return node
    if node.kind != "custom":
        raise ComponentError(f"table = {node.table} is for kind: custom; leave one of both out")
    bits = None if node.capacity is None else 8 * node.capacity
    numbers: dict[str, Any] = dict(_own_numbers(node.table, bits, node.width_bits, spec.node_nm, spec.cell))
    if node.bandwidth is not None:
        numbers.pop("actions_per_cycle", None)
    return replace(node, **{key: number for key, number in numbers.items() if getattr(node, key) is None})


@lru_cache(maxsize=65536)
def _own_numbers(
    key: str, capacity_bits: int | None, width_bits: int, node_nm: float | None, cell: str
) -> tuple[tuple[str, float], ...]:
    """Returns what the function of a plug-in says of a memory, checked. Raises ComponentError."""
    try:
        make = plugin.function(key)
    except plugin.PluginError as fault:
        raise ComponentError(f"table = {fault}") from None
    try:
        found = make(capacity_bits=capacity_bits, width_bits=width_bits, node_nm=node_nm, cell=cell)
        numbers = tuple((str(name), float(number)) for name, number in dict(found).items())
    except Exception as fault:  # whatever the user's function raises or returns
        raise ComponentError(f"table = {key}: {plugin.one_line(fault)}") from None
    for name, number in numbers:
        if name not in TABLE_FIELDS:
            raise ComponentError(f"table = {key}: gives {name}; {closest_name(name, TABLE_FIELDS)}")
        lowest = 0 if name != "actions_per_cycle" else 1e-300
        if not lowest <= number < inf and (name, number) != ("actions_per_cycle", inf):
            raise ComponentError(f"table = {key}: {name} = {number:g} must be finite and not negative")
    return numbers


def _device_of(spec: Machine) -> Device:
    """Returns the transistors of a machine that gives vdd. Raises ComponentError, also where they are not
    modelled at this voltage.
    """
    one = device(_node_nm(spec), spec.cell)
    low, high = one.range_v()
    if spec.vdd and not low * (1 - 1e-9) <= spec.vdd <= high * (1 + 1e-9):
        raise ComponentError(
            f"vdd = {spec.vdd:g} is outside of {low:.4g} to {high:.4g} V, for which {spec.cell} cells at "
            f"{spec.node_nm:g} nm are modelled; write a voltage inside, or least"
        )
    return one


def least_vdd_of(spec: Machine, node: Memory | MacUnit) -> float:
    """Returns the least voltage at which one node meets the clock: the compute works in every cycle; an sram
    takes no more clock cycles per access than at nominal voltage (with `slow: infeasible` one), and sustains
    the bandwidth that the file gives it. Raises ComponentError where no voltage is enough.
    """
    one, clock_ghz = _device_of(replace(spec, vdd=LEAST)), spec.clock_mhz / 1e3
    delay_factor, at_most, highest_v = inf, "", one.range_v()[1]
    if isinstance(node, MacUnit):
        delay_factor = one.highest_mhz(one.nominal_v) / spec.clock_mhz
        at_most = f"{node.name} reaches {one.highest_mhz(highest_v):.4g} MHz"
    elif (node := with_table(spec, node)).kind == "sram" and node.cycle_ns is None:
        array_cycle = _sram_of(spec, node).cycle_ns * clock_ghz
        cycles = 1 if node.slow == "infeasible" else max(1, ceil(array_cycle - 1e-9))
        rate = max(given or 0.0 for given in _given_rates(node, clock_ghz))
        delay_factor = min(cycles, node.banks / rate if rate else inf) / array_cycle
        fastest = array_cycle * one.delay_factor(highest_v)
        at_most = (
            f"an access of {node.name} takes {fastest:.3g} cycles"
            if fastest > cycles
            else f"{node.name} sustains {node.banks / fastest:.3g} of {rate:.3g} accesses per cycle"
        )
    vdd = one.least_v(delay_factor)
    if vdd is None:
        raise ComponentError(
            f"clock_mhz = {spec.clock_mhz:g} is met at no vdd: at {highest_v:.4g} V, the highest of "
            f"{spec.cell} cells at {spec.node_nm:g} nm, {at_most}; lower the clock"
        )
    return vdd


def at_supply(spec: Machine, *nodes: Node) -> Machine:
    """Returns the machine with the voltage that `vdd: least` means for these nodes. Raises ComponentError."""
    if spec.vdd != LEAST:
        return spec
    return replace(spec, vdd=max(least_vdd_of(spec, one) for one in nodes if not isinstance(one, Array)))


Row = TypeVar("Row", Sram, Mac, Register)


def at_vdd(spec: Machine, row: Row) -> Row:
    """Returns what a table says of a part on chip, at the supply voltage of the machine. Raises
    ComponentError.
    """
    if spec.vdd is None:
        return row
    one = _device_of(spec)
    energy = energy_factor(spec.vdd, one.nominal_v if isinstance(row, Sram) else logic_v())
    delay, leakage = one.delay_factor(spec.vdd), one.leak_factor(spec.vdd)
    factors = {"leak_mw": leakage, "access_ns": delay, "cycle_ns": delay}
    factors |= dict.fromkeys(("read_pj", "write_pj", "mac_pj", "alu_pj"), energy)
    scaled = {f.name: getattr(row, f.name) * factors[f.name] for f in fields(row) if f.name in factors}
    return replace(row, **scaled)


def _sram_of(spec: Machine, node: Memory) -> Sram:
    """Returns one array of an sram, as the table gives it."""
    return sram(_node_nm(spec), spec.cell, 8 * (node.capacity or 0) // node.banks, node.width_bits)


def _given_rates(node: Memory, clock_ghz: float) -> tuple[float | None, float | None]:
    """Returns the actions and the writes per clock cycle that a file gives a memory; None: the table's, and
    as many writes as reads.
    """
    per_gbps = 8 / node.width_bits / clock_ghz  # actions per clock cycle that 1 GB/s is
    return (
        node.actions_per_cycle if node.bandwidth is None else node.bandwidth * per_gbps,
        node.writes_per_cycle if node.write_bandwidth is None else node.write_bandwidth * per_gbps,
    )


def level_of(spec: Machine, node: Memory, outermost: bool) -> Level:
    """Returns the level of a memory. Raises ComponentError for values outside of the tables."""
    node = with_table(spec, node)
    spec = at_supply(spec, node) if node.kind in ON_CHIP else spec
    clock_ghz = spec.clock_mhz / 1e3
    per_gbps = 8 / node.width_bits / clock_ghz  # actions per clock cycle that 1 GB/s is
    given_rate, given_write_rate = _given_rates(node, clock_ghz)
    read, write, leak, area, cycles, rate = 0.0, 0.0, 0.0, 0.0, 1, inf
    if node.kind == "sram":
        array = at_vdd(spec, _sram_of(spec, node))
        array_cycle = _or_table(node.cycle_ns, array.cycle_ns) * clock_ghz
        cycles, rate = _sram_timing(node, array_cycle, given_rate, given_write_rate)
        read = array.read_pj
        write = array.write_pj
        leak = array.leak_mw * node.banks
        area = array.area_mm2 * node.banks
    elif node.kind == "register":
        cells = register(_node_nm(spec), spec.cell, 8 * (node.capacity or 0), node.width_bits)
        cells = at_vdd(spec, cells)
        read, write, leak, area = astuple(cells)
    elif node.kind != "custom":
        chip = dram(node.kind)
        read = chip.read_pj_per_bit * node.width_bits
        write = chip.write_pj_per_bit * node.width_bits
        leak = chip.background_mw * node.channels
        rate = chip.bandwidth_gbps * node.channels * per_gbps
    reads = _or_table(given_rate, rate)
    writes = _or_table(given_write_rate, reads)
    return Level(
        name=node.name.upper(),
        capacity_bits=None if node.capacity is None else 8 * node.capacity,
        width_bits=node.width_bits,
        read_pj=_or_table(node.read_pj, read),
        write_pj=_or_table(node.write_pj, write),
        bandwidth=reads if reads < inf else writes,
        ports=_ports(node, reads, writes),
        double_buffer=node.double_buffer,
        bypass=not outermost and node.bypass is not False,
        skip_first_read=node.skip_first_read,
        leak_mw=_or_table(node.leak_mw, leak),
        area_mm2=_or_table(node.area_mm2, area),
        access_cycles=cycles,
        may_keep=node.may_keep,
        access=_access(node, clock_ghz),
        bits=node.bits,
        latency_ns=node.latency_ns or 0.0,
        formats=node.formats,
    )


def _ports(node: Memory, reads: float, writes: float) -> str | tuple[Port, ...]:
    """Returns the ports of a memory. reads, writes: its actions per clock cycle."""
    if reads == writes:
        return node.ports
    level = reads if reads < inf else writes
    if isinstance(node.ports, str):
        own = {"shared": (Port(ROLES, ROLES),), "separate": (Port(ROLES, ()), Port((), ROLES))}[node.ports]
    else:
        own = node.ports
    return tuple(
        one._replace(read_times=one.read_times * reads / level, write_times=one.write_times * writes / level)
        for one in own
    )


def _access(node: Memory, clock_ghz: float) -> Access | None:
    """Returns the lines, rows, banks, DMA and prefetching by which layouts cost at a memory; None where
    neither burst nor bank_map is given.
    """
    if node.burst is None and node.bank_map is None:
        return None
    row, line = 8 * (node.row or 0), 8 * node.burst if node.burst else node.width_bits
    return Access(
        line_bits=line,
        row_bits=row,
        row_banks=node.row_banks or 1,
        interleave_bits=8 * (node.row_interleave or 0) or row,
        row_pj=node.row_pj or 0.0,
        row_cycles=(node.row_ns or 0.0) * clock_ghz,
        rmw=node.partial_write == "rmw",
        banks=node.banks if node.bank_map else 0,
        bank_map=node.bank_map or "word",
        capacity_bits=8 * (node.capacity or 0),
        descriptor_cycles=(node.dma_ns or 0.0) * clock_ghz,
        dma_queues=node.dma_queues or 1,
        dma_strides=node.dma_strides or 0,
        prefetch_lines=node.prefetch_lines or 0,
        prefetch_run=node.prefetch_run,
        prefetch_line=node.prefetch_line,
        miss_cycles=(node.miss_ns or 0.0) * clock_ghz,
    )


REQUIRED_WITH = {  # field of a memory -> the field that must be given with it
    "miss_ns": "prefetch_lines",
    "prefetch_run": "prefetch_lines",
    "dma_queues": "dma_ns",
    "dma_strides": "dma_ns",
}
NEED_BURST = (  # fields of a memory that are valid only with burst
    "row",
    "row_banks",
    "row_interleave",
    "row_pj",
    "row_ns",
    "dma_ns",
    "dma_queues",
    "dma_strides",
    "prefetch_lines",
    "prefetch_run",
    "prefetch_line",
    "miss_ns",
)


def _access_faults(node: Memory) -> Iterator[str]:
    """Yields the contradictions in the fields for lines, rows, banks, DMA and prefetching."""
    key, burst, row = node.name, node.burst, node.row
    given = [f for f in NEED_BURST if getattr(node, f) is not None]
    rows = [f for f in given if f.startswith("row_")]
    for f in (*given[:1], *(["partial_write = rmw"] if node.partial_write == "rmw" else ())):
        if burst is None:
            yield f"{key}.{f} needs burst, the bytes that move at once; add e.g. burst: 64 B"
    if burst is not None and row is not None and (burst > row or row % burst):
        yield (
            f"{key}.burst = {show_bytes(burst)} must divide row = {show_bytes(row)}; lower burst, or "
            "raise row"
        )
    if rows and row is None:
        yield f"{key}.{rows[0]} needs row; add e.g. row: 2 KiB"
    if (
        node.row_interleave is not None
        and row is not None
        and burst is not None
        and (row % node.row_interleave or node.row_interleave % burst)
    ):
        yield (
            f"{key}.row_interleave = {show_bytes(node.row_interleave)} must divide row = {show_bytes(row)} "
            f"and be a multiple of burst = {show_bytes(burst)}; use either of these"
        )
    if node.bank_map is not None and node.kind != "sram":
        yield f"{key}.bank_map = {node.bank_map} is for kind: sram; leave it out, or use row_banks"
    elif node.bank_map is not None and burst is not None:
        yield (
            f"{key}.bank_map = {node.bank_map} stands beside burst = {show_bytes(burst)}; an sram is "
            "counted by words or by lines, leave one out"
        )
    if (
        node.bank_map is not None
        and node.capacity is not None
        and (8 * node.capacity) % (node.banks * node.width_bits)
    ):
        yield (
            f"{key}.bank_map = {node.bank_map}: banks = {node.banks} do not hold whole words of "
            f"width_bits = {node.width_bits}; change one of them"
        )
    if (node.prefetch_run is None) != (node.prefetch_line is None):
        yield f"{key}.prefetch_run and prefetch_line are one calibration; give both or none"
    for f, g in REQUIRED_WITH.items():
        if f in given and g not in given:
            yield f"{key}.{f} needs {g}; add it, or leave {f} out"
    if (burst is not None or node.bank_map is not None) and node.actions_per_cycle == inf:
        yield f"{key}.actions_per_cycle = inf leaves no time to lines, rows and banks; give a rate"


def _sram_timing(
    node: Memory, array_cycle: float, given_rate: float | None, given_write_rate: float | None
) -> tuple[int, float]:
    """Returns (clock cycles per access of one array, actions per clock cycle of all banks). array_cycle: the
    array's cycle time, in clock cycles.
    """
    cycles = max(1, ceil(array_cycle - 1e-9))
    if cycles > 1 and node.slow == "infeasible":
        raise ComponentError(
            f"slow = infeasible: an access takes {array_cycle:.3g} clock cycles; lower clock_mhz or "
            "capacity, raise banks, or use slow: divide"
        )
    asked = (
        ("actions_per_cycle" if node.bandwidth is None else "bandwidth", given_rate),
        ("writes_per_cycle" if node.write_bandwidth is None else "write_bandwidth", given_write_rate),
    )
    for key, rate in asked:
        if rate is not None and rate * array_cycle > node.banks * (1 + 1e-9):
            raise ComponentError(
                f"{key} asks for {rate:.3g} accesses per cycle, the array sustains "
                f"{node.banks / array_cycle:.3g}; "
                "lower it or clock_mhz, raise banks or width_bits, or give cycle_ns"
            )
    return cycles, node.banks / cycles


def _or_table(number: float | None, table: float) -> float:
    return table if number is None else number


def compute_of(spec: Machine, node: MacUnit) -> Compute:
    """Returns the compute of a machine. Raises ComponentError for values outside of the tables. Several
    operations per cycle are done by as many units of the table: area and leakage of each.
    """
    spec = at_supply(spec, node)
    if spec.vdd is not None and spec.clock_mhz > (most := _device_of(spec).highest_mhz(spec.vdd)) * (
        1 + 1e-9
    ):
        raise ComponentError(
            f"clock_mhz = {spec.clock_mhz:g} is above {most:.4g}, the highest of {node.name} at vdd = "
            f"{spec.vdd:g} ({spec.cell} cells at {spec.node_nm:g} nm); lower it, raise vdd, or write vdd: "
            "least"
        )
    mac_unit = (
        Mac(spec.word_bits or 0, 0.0, 0.0, 0.0, 0.0)
        if node.kind == "custom"
        else at_vdd(spec, mac(node.kind, _node_nm(spec), spec.cell))
    )
    alu = _or_table(node.alu_pj, mac_unit.alu_pj)
    units = max(1.0, node.ops_per_cycle)  # units of the table, which do one operation per cycle each
    compute = Compute(
        mac_pj=_or_table(node.mac_pj, mac_unit.mac_pj),
        alu_pj=alu,
        ops_per_cycle=node.ops_per_cycle,
        leak_mw=_or_table(node.leak_mw, units * mac_unit.leak_mw),
        area_mm2=_or_table(node.area_mm2, units * mac_unit.area_mm2),
        merge_pj=_or_table(node.merge_pj, alu),
        gates=node.gates,
        lockstep=node.lockstep,
    )
    if not node.vector_lanes:
        return compute
    vector_lane = at_vdd(spec, mac(node.vector_kind or node.kind, _node_nm(spec), spec.cell))
    return replace(
        compute,
        alu_pj=_or_table(node.alu_pj, vector_lane.alu_pj),
        alu_per_cycle=float(node.vector_lanes),
        vector_leak_mw=node.vector_lanes * vector_lane.leak_mw,
        vector_area_mm2=node.vector_lanes * vector_lane.area_mm2,
    )


def fanout_of(node: Array, outside: int, inside: Sequence[Memory] = ()) -> Fanout:
    """Returns the fan-out of an array. outside: number of levels outside of it; inside: the memories inside.
    Names become upper case.
    """
    dims = tuple((dim.upper(), size) for dim, size in node.dims.items())
    multicast, reduce = (
        tuple(dim in _named_dims(node, field) for dim in node.dims) for field in ("multicast", "reduce")
    )
    return Fanout(
        name=node.name.upper(),
        outside=outside,
        dims=dims,
        multicast=multicast,
        reduce=reduce,
        systolic=node.systolic or "",
        hop_pj=node.hop_pj,
        endpoint_pj=node.endpoint_pj,
        injected_at=node.injected_at,
        multicast_from=node.multicast_from,
        shared=tuple(tuple(one.name.upper() for one in inside if dim in one.along) for dim in node.dims)
        if any(dim in one.along for one in inside for dim in node.dims)
        else (),
    )


def word_bits_of(spec: Machine, mac_unit: MacUnit) -> int:
    """Returns the word of a machine in bits; where the file gives none, the operand width of its MAC unit."""
    return spec.word_bits or mac(mac_unit.kind, _node_nm(spec), spec.cell).bits


def faults(spec: Machine) -> list[str]:
    """Returns all reasons why spec cannot be built, one line each."""
    node_lines = (line for i, node in enumerate(spec.nodes) for line in node_faults(spec, node, i == 0))
    machine_lines = (
        order_faults([outline(node) for node in spec.nodes]),
        unit_faults(spec, spec.nodes),
        *(nesting_faults(path) for path in paths(spec.nodes) or [spec.nodes]),
        rule_faults(spec.mapping, spec.nodes, "mapping"),
    )
    return list(dict.fromkeys(chain(*machine_lines, node_lines)))


def outline(node: Node) -> Outline:
    """Returns what `order_faults` reads of a node."""
    role = "memory" if isinstance(node, Memory) else "array" if isinstance(node, Array) else "compute"
    dims = tuple(node.dims) if isinstance(node, Array) else ()
    return Outline(role, node.name, dims, node.in_core or "")


def build(spec: Machine) -> Arch:
    """Returns the Arch of a machine, with numbers from the tables where spec gives none. Names of levels and
    dimensions become upper case.

    Raises ComponentError with one line per fault (contradictions, values outside of the tables).
    """
    if lines := faults(spec):
        raise ComponentError("\n".join(lines))
    spec = at_supply(spec, *spec.nodes)
    if not has_units(spec.nodes):
        return _path_arch(spec)
    own = [_named(_path_arch(one), node) for one, node in unit_specs(spec)]
    levels = {level.name: level for one in own for level in one.levels}
    fanouts = {f.name: f for one in own for f in one.fanouts}
    first = replace(own[0], levels=tuple(levels.values()), fanouts=tuple(fanouts.values()))
    leak_mw = replace(first, units=tuple(own)).leak_mw()
    return replace(first, units=tuple(_with_idle(one, leak_mw) for one in own))


def _named(one: Arch, node: MacUnit) -> Arch:
    """Returns the Arch of one compute with what the file says of that beside its numbers."""
    name, core = node.name.upper(), (node.in_core or "").upper()
    return replace(one, compute=replace(one.compute, name=name, core=core, takes=node.takes))


def _with_idle(one: Arch, leak_mw: float) -> Arch:
    """Returns a unit of a machine with the leakage of all that idles beside it. leak_mw: of the machine."""
    return one.with_more_leakage((leak_mw - one.leak_mw()) / one.clock_ghz)


def _path_arch(spec: Machine) -> Arch:
    """Returns the Arch of a machine of one compute that has no faults, its supply voltage known."""
    levels: list[Level] = []
    fanouts: list[Fanout] = []
    for i, node in enumerate(spec.nodes):
        if isinstance(node, Memory):
            levels.append(level_of(spec, node, not levels))
        elif isinstance(node, Array):
            inside = [one for one in spec.nodes[i:] if isinstance(one, Memory)]
            fanouts.append(fanout_of(node, len(levels), inside))
    mac_unit = next(node for node in spec.nodes if isinstance(node, MacUnit))
    return Arch(
        spec.name,
        tuple(levels),
        tuple(fanouts),
        compute_of(spec, mac_unit),
        spec.clock_mhz / 1e3,
        word_bits_of(spec, mac_unit),
        spec.tiling,
        spec.overlap,
        tuple(replace(rule, at=rule.at.upper()) for rule in spec.mapping),
        spec.vdd,
    )
