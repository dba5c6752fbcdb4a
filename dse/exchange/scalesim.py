"""SCALE-Sim config and topology -> machine and workload.

    [architecture_presets]         Layer name, IFMAP Height, IFMAP Width, Filter Height, Filter Width,
    ArrayHeight: 32                    Channels, Num Filter, Strides,
    IfmapSramSzkB: 64              Layer, M, N, K,
    Dataflow: ws

A systolic array of rows and columns with one register per PE for what is stationary; three double-buffered
SRAMs, one per operand; words of a byte. SCALE-Sim counts cycles and no energy; here at 1 GHz.
"""

from __future__ import annotations

import configparser
import csv
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dse.exchange import machines
from dse.exchange.arithmetic import number
from dse.exchange.documents import text_of
from dse.exchange.notes import Converted, Notes, refuse
from hw.component import show

CLOCK_MHZ = 1000.0
ARRAY = {"ArrayHeight": "rows", "ArrayWidth": "cols"}
SRAMS = {
    "IfmapSramSzkB": ("ifmap", "input"),
    "FilterSramSzkB": ("filter", "weight"),
    "OfmapSramSzkB": ("ofmap", "output"),
}
SWITCHES = (  # of what ours has no counterpart for
    ("sparsity", "SparsitySupport"),
    ("layout", "IfmapCustomLayout"),
    ("layout", "FilterCustomLayout"),
    ("run_presets", "UseRamulatorTrace"),
)
STATIONARY = {"os": "output", "ws": "weight", "is": "input"}
CONV_COLUMNS = 8  # name, height and width of input and filter, channels, filters, stride
GEMM_COLUMNS = 4  # name, M, N, K


def read(paths: Sequence[Path], notes: Notes) -> Converted:
    """Returns what the files hold: a config (.cfg) and a topology (.csv). Raises Unreadable."""
    machine, workload = None, None
    for path in paths:
        text = text_of(path, "utf-8-sig", "give a .cfg or a .csv file")
        if "[architecture_presets]" in text and machine is None:
            machine = _machine(str(path), text, notes)
        elif path.suffix == ".csv" and workload is None:
            workload = _workload(str(path), text)
        else:
            refuse(
                [f"{path}: is no config with [architecture_presets] and no topology .csv, or a second one"]
            )
    return Converted(machine, workload)


def _machine(file: str, text: str, notes: Notes) -> dict[str, Any]:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        parser.read_string(text)
    except configparser.Error as fault:
        refuse([f"{file}: is no config ({str(fault).splitlines()[0][:80]}); correct it"])
    presets = dict(parser["architecture_presets"])
    for section, key in SWITCHES:
        if parser.get(section, key, fallback="false").strip().lower() == "true":
            notes.lost(file, f"{section}.{key}", "is not carried over")
    dims = {name: _count(file, key, presets.get(key)) for key, name in ARRAY.items()}
    flow = presets.get("Dataflow", "").strip().lower()
    if flow not in STATIONARY:
        refuse([f"{file}: Dataflow = {show(flow)} is unknown; write os, ws or is"])
    says = f"{flow}: ramps and register are as there; the mapper chooses the ranks of rows and columns"
    notes.lost(file, "Dataflow", says)
    words = number(presets.get("Bandwidth", "inf").split(",")[0]) or float("inf")
    nodes = [machines.memory("dram", 8, None, words, False) | machines.custom(0, 0, 0, 0)]
    for key, (name, role) in SRAMS.items():
        size = 1024 * _count(file, key, presets.get(key))
        sram = machines.memory(name, 8, size, float("inf"), True) | machines.custom(0, 0, 0, 0)
        nodes.append(sram | {"double_buffer": True, "may_keep": [role], "bypass": False})
    nodes.append({"array": "grid", "dims": dims, "systolic": flow})
    register = machines.memory("reg", 8, 1, float("inf"), True) | machines.custom(0, 0, 0, 0)
    nodes.append(register | {"may_keep": [STATIONARY[flow]], "bypass": False})
    mac = {"compute": "mac", "kind": "custom", "mac_pj": 0.0, "alu_pj": 0.0, "leak_mw": 0.0, "area_mm2": 0.0}
    notes.assumed(file, "energy", "SCALE-Sim counts cycles; all energies are 0, minimise latency")
    head = {"name": machines.name(Path(file).stem), "clock_mhz": CLOCK_MHZ, "word_bits": 8, "overlap": "free"}
    return head | {"nodes": [*nodes, mac]}


def _count(file: str, key: str, given: Any) -> int:
    found = number(given)
    if not found or found < 1 or found != int(found):
        refuse([f"{file}: {key} = {show(given)} is no number above 0; write one"])
    return int(found or 1)


def _workload(file: str, text: str) -> dict[str, Any]:
    rows = [[cell.strip() for cell in row if cell.strip()] for row in csv.reader(text.splitlines())]
    entries = [_entry(file, i, row) for i, row in enumerate(rows[1:], 2) if row]
    if not entries:
        refuse([f"{file}: holds no layer below its heading"])
    machines.distinct(entries)
    first = dict(entries[0]["extents"])
    for entry in entries:
        if own := {rank: n for rank, n in entry.pop("extents").items() if first.setdefault(rank, n) != n}:
            entry["extents"] = own
    return {"name": machines.name(Path(file).stem), "extents": first, "einsums": entries} | _weights(entries)


def _weights(entries: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    return {"weights": [found for one in entries for found in re.findall(r"\* (\w+)\[", one["text"])]}


def _entry(file: str, line: int, row: Sequence[str]) -> dict[str, Any]:
    """Returns one layer: a convolution without padding, or a product of matrices."""
    name, tensor = re.sub(r"\W", "_", row[0]), line - 1
    n = [_count(file, f"line {line}, {row[0]}", cell) for cell in row[1:CONV_COLUMNS]]
    if len(row) == GEMM_COLUMNS:
        text = f"O{tensor}[m,n] += I{tensor}[m,k] * W{tensor}[k,n]"
        return {"text": text, "name": f"l_{name}", "extents": dict(zip("mnk", n, strict=True))}
    if len(row) < CONV_COLUMNS:
        refuse([f"{file}: line {line} has {len(row)} columns; a convolution has 8, a product 4 (M, N, K)"])
    height, width, r, s, c, k, stride = n
    if r > height or s > width:
        refuse([f"{file}: line {line}: a filter of {r} x {s} is larger than its input of {height} x {width}"])
    index = [f"{stride}*{a}+{b}" if stride > 1 else f"{a}+{b}" for a, b in ("pr", "qs")]
    text = f"O{tensor}[k,p,q] += I{tensor}[c,{index[0]},{index[1]}] * W{tensor}[k,c,r,s]"
    p, q = (height - r) // stride + 1, (width - s) // stride + 1
    extents = {"k": k, "p": p, "q": q, "c": c, "r": r, "s": s}
    return {"text": text, "name": f"l_{name}", "extents": extents}
