"""What machine files of all peers become: nodes of ours, with numbers from our tables where the peer leaves
them to an estimator.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from math import inf
from typing import Any

from dse.exchange.notes import Notes
from hw import component
from hw.component import Sram

NODES_NM = (22.0, 65.0)  # of the SRAM tables
CELL = "lop"
WIDTHS = (16, 32, 64, 128, 256, 512)
MACRO_WORDS = 32  # the smallest SRAM of the tables has so many words of its width
# Dynamic energy of an SRAM with its depth, below the tables: 1.56 times per doubling of both dimensions, as
# smartbuffer_RF of timeloop-accelergy-exercises scales what CACTI does not cover.
DEPTH_EXPONENT = 1.56 / 2
# a rate without limit and the cycle time that allows it, for an SRAM of the tables
UNLIMITED = 1e6
NO_CYCLE_NS = 1e-9


def name(text: str) -> str:
    """Returns a name as machine files want it.

    >>> name("GlobalBuffer"), name("PE[0..3]"), name("2level"), name("compute")
    ('globalbuffer', 'pe_0__3_', 'n2level', 'compute_')
    """
    found = re.sub(r"\W", "_", text.lower())
    found = found if re.match(r"[a-z]", found) else f"n{found}"
    return f"{found}_" if found in ("compute", "tiling") else found


def distinct(entries: Sequence[dict[str, Any]]) -> None:
    """Gives layers of one name numbers: conv, conv_2, conv_3."""
    taken: set[str] = set()
    for entry in entries:
        own, number = entry["name"], 1
        while entry["name"] in taken:
            number += 1
            entry["name"] = f"{own}_{number}"
        taken.add(entry["name"])


def size_text(size_bytes: int) -> str:
    """Returns a capacity with its unit."""
    return component.show_bytes(size_bytes)


def node_nm(value: object, file: str, notes: Notes) -> float:
    """Returns the technology node of a text such as "45nm", within the tables."""
    match = re.search(r"(\d+(?:\.\d+)?)", str(value))
    wanted = float(match[1]) if match else 45.0
    if not match:
        notes.assumed(file, "technology", "is not given; 45 nm taken")
    found = min(max(wanted, NODES_NM[0]), NODES_NM[1])
    if found != wanted:
        notes.lost(
            file, "technology", f"{wanted:g} nm is outside the tables; energies are those of {found:g} nm"
        )
    return found


def has_table(nm: float, capacity_bytes: int, banks: int, width_bits: int) -> bool:
    """True if the SRAM tables have this memory as it is."""
    try:
        component.sram(nm, CELL, 8 * capacity_bytes // banks, width_bits)
    except component.ComponentError:
        return False
    return capacity_bytes % banks == 0


def nearest_sram(nm: float, capacity_bits: int, width_bits: int) -> tuple[Sram, bool]:
    """Returns one SRAM array, and whether it was scaled from the nearest one of the tables.

    Scaled are energy (with the width, and with the depth to the power DEPTH_EXPONENT), leakage and area (with
    the capacity).
    """
    width = next((w for w in WIDTHS if w >= width_bits), WIDTHS[-1])
    depth = max(capacity_bits / width_bits, 1.0)
    table_depth = min(max(depth, MACRO_WORDS), 2.0**27 / width)
    table_bits = max(round(table_depth * width / 8) * 8, MACRO_WORDS * width)
    found = component.sram(nm, CELL, table_bits, width)
    if (width, table_bits) == (width_bits, capacity_bits):
        return found, False
    dynamic = width_bits / width * (depth / (table_bits / width)) ** DEPTH_EXPONENT
    share = capacity_bits / table_bits
    read, write, leak, area, access, cycle = astuple(found)
    return Sram(read * dynamic, write * dynamic, leak * share, area * share, access, cycle), True


def memory(
    named: str,
    width_bits: int,
    capacity_bytes: int | None,
    rate: float,
    separate: bool,
    writes: float | None = None,
) -> dict[str, Any]:
    """Returns the keys that every memory has. rate: actions per cycle; writes: those of writes, None: as of
    reads.
    """
    node: dict[str, Any] = {"memory": named}
    if capacity_bytes is not None:
        node["capacity"] = size_text(capacity_bytes)
    node["width_bits"] = width_bits
    if separate:
        node["ports"] = "separate"
    node["actions_per_cycle"] = "inf" if rate == inf else rate
    if writes not in (None, rate):
        node["writes_per_cycle"] = "inf" if writes == inf else writes
    return node


def custom(read_pj: float, write_pj: float, leak_mw: float, area_mm2: float) -> dict[str, Any]:
    """Returns the numbers of a memory of `kind: custom`."""
    numbers = {"read_pj": read_pj, "write_pj": write_pj, "leak_mw": leak_mw, "area_mm2": area_mm2}
    return {"kind": "custom"} | {key: float(f"{value:.6g}") for key, value in numbers.items()}


def table_sram(banks: int, node: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the keys of a memory that the SRAM tables have, at the rates of `node` (`memory`)."""
    found: dict[str, Any] = {"kind": "sram", "banks": banks} if banks > 1 else {"kind": "sram"}
    rates = "actions_per_cycle", "writes_per_cycle"
    found |= {key: UNLIMITED for key in rates if node.get(key) == "inf"}
    return found | {"cycle_ns": NO_CYCLE_NS}


def whole_bytes(bits: float, file: str, key: str, notes: Notes) -> int:
    """Returns a capacity in whole bytes, rounded down, at least one."""
    if bits % 8:
        notes.lost(file, key, f"{bits:g} bits are no whole bytes; {int(bits // 8) or 1} B taken")
    return int(bits // 8) or 1
