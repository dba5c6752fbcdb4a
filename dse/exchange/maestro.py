"""MAESTRO `hw` and `dnn` files -> machine and workload.

    num_pes: 256           Network vgg16 {                    // MAESTRO's Y and X are of the input, and
    l1_size_cstr: 100        Layer CONV1 {                    // nothing is padded: Y' = (Y - R) / stride + 1
    l2_size_cstr: 3000         Type: CONV
    noc_bw_cstr: 1000          Stride { X: 2, Y: 2 }
    offchip_bw_cstr: 50        Dimensions { K: 64, C: 3, R: 7, S: 7, Y: 224, X: 224 }
                           } }

A buffer L2, a row of PEs, a buffer L1 in each; words of a byte, rates in words per cycle. MAESTRO counts in
energies of a MAC: 18.61 per access of L2 and 1.68 of L1 (BASE_constants.hpp), and prices no main memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

from dse.exchange import machines
from dse.exchange.arithmetic import number
from dse.exchange.documents import text_of
from dse.exchange.notes import Converted, Notes, refuse
from hw.component import show

CLOCK_MHZ = 1000.0
L1_PJ, L2_PJ, MAC_PJ = 1.68, 18.61, 1.0
HW = re.compile(
    r"^\s*(num_pes|l1_size_cstr|l2_size_cstr|noc_bw_cstr|offchip_bw_cstr|noc_num_hops)\s*:\s*(\S+)", re.M
)
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
CONSTANT = re.compile(r"Constant\s+(\w+)\s+(\w+)\s*;")
LAYER = re.compile(r"Layer\s+([\w.-]+)\s*\{")
TYPE = re.compile(r"Type\s*:\s*(\w+)")
SIZES = re.compile(r"(Stride|Dimensions)\s*\{([^}]*)\}")
PAIR = re.compile(r"(\w+)\s*:?\s*(\w+)")
# type of a layer -> einsum, where {y} and {x} are indices of the input; ranks in the letters of the file
TEXTS = {
    "CONV": "O{i}[n,k,p,q] += I{i}[n,c,{y},{x}] * W{i}[k,c,r,s]",
    "DSCONV": "O{i}[n,c,p,q] += I{i}[n,c,{y},{x}] * W{i}[c,r,s]",
    "NGCONV": "O{i}[n,g,k,p,q] += I{i}[n,g,c,{y},{x}] * W{i}[g,k,c,r,s]",
    "GEMM": "O{i}[m,n] += I{i}[m,k] * W{i}[k,n]",
}


def read(paths: Sequence[Path], notes: Notes) -> Converted:
    """Returns what the files hold: sizes of the hardware, layers of a network. Raises Unreadable."""
    machine, workload = None, None
    for path in paths:
        text = COMMENT.sub("", text_of(path, "utf-8-sig", "give an hw or a dnn file (.m)"))
        if "Network" in text and workload is None:
            workload = _workload(str(path), text, notes)
        elif HW.search(text) and machine is None:
            machine = _machine(str(path), text, notes)
        else:
            refuse([f"{path}: holds no Network and no num_pes, or is a second such file"])
    return Converted(machine, workload)


def _machine(file: str, text: str, notes: Notes) -> dict[str, Any]:
    given = dict(HW.findall(text))
    pes = _count(file, "num_pes", given.get("num_pes"))
    l1, l2 = (_count(file, key, given.get(key)) for key in ("l1_size_cstr", "l2_size_cstr"))
    noc, offchip = (
        float(_count(file, key, given[key])) if key in given else inf
        for key in ("noc_bw_cstr", "offchip_bw_cstr")
    )
    if number(given.get("noc_num_hops", 1)) != 1:
        notes.lost(file, "noc_num_hops", "latency of hops is not counted")
    notes.assumed(file, "energy", "in pJ of MAESTRO's unit, a MAC; main memory 0, no leakage, no area")
    outer = machines.memory("dram", 8, None, offchip, False) | machines.custom(0, 0, 0, 0)
    buffer = machines.memory("l2", 8, l2, noc, True) | machines.custom(L2_PJ, L2_PJ, 0, 0)
    inner = machines.memory("l1", 8, l1, inf, True) | machines.custom(L1_PJ, L1_PJ, 0, 0)
    mac = {
        "compute": "mac",
        "kind": "custom",
        "mac_pj": MAC_PJ,
        "alu_pj": MAC_PJ,
        "leak_mw": 0.0,
        "area_mm2": 0.0,
    }
    head = {"name": machines.name(Path(file).stem), "clock_mhz": CLOCK_MHZ, "word_bits": 8, "overlap": "free"}
    array = {"array": "pes", "dims": {"x": pes}}
    levels = [buffer | {"double_buffer": True}, array, inner | {"double_buffer": True}]
    return head | {"nodes": [outer, *levels, mac]}


def _count(file: str, key: str, given: Any) -> int:
    found = number(given)
    if not found or found < 1 or found != int(found):
        refuse([f"{file}: {key} = {show(given)} is no number above 0; write one"])
    return int(found or 1)


def _workload(file: str, text: str, notes: Notes) -> dict[str, Any]:
    constants = dict(CONSTANT.findall(text))
    entries = [_entry(file, i, *one, constants, notes) for i, one in enumerate(_layers(text), 1)]
    found = [one for one in entries if one is not None]
    if not found:
        refuse([f"{file}: holds no layer of type {', '.join(TEXTS)}"])
    if "Dataflow" in text:
        notes.lost(file, "Dataflow", "directives of the mapping; the mapper chooses another")
    machines.distinct(found)
    first = dict(found[0]["extents"])
    for one in found:
        one["extents"] = {r: n for r, n in one["extents"].items() if first.setdefault(r, n) != n}
        if not one["extents"]:
            del one["extents"]
    weights = [match for one in found for match in re.findall(r"\* (\w+)\[", one["text"])]
    name = re.search(r"Network\s+([\w.-]+)", text)
    head = {"name": machines.name(name[1] if name else Path(file).stem), "extents": first}
    return head | {"einsums": found, "weights": weights}


def _layers(text: str) -> Iterator[tuple[str, str]]:
    """Yields name and body of each layer."""
    for match in LAYER.finditer(text):
        depth, at = 1, match.end()
        while depth and at < len(text):
            depth += {"{": 1, "}": -1}.get(text[at], 0)
            at += 1
        yield match[1], text[match.end() : at - 1]


def _entry(
    file: str, number_: int, name: str, body: str, constants: Mapping[str, str], notes: Notes
) -> dict[str, Any] | None:
    """Returns the einsum of a layer; None, with a note, for a type that is not read."""
    found = TYPE.search(body)
    kind = found[1] if found else "CONV"
    if kind not in TEXTS:
        notes.lost(file, f"Layer {name}", f"type {kind} is not read; the layer is left out")
        return None
    sizes = {what: dict(PAIR.findall(pairs)) for what, pairs in SIZES.findall(body)}
    where = f"Layer {name}: Dimensions"
    n = {
        key.lower(): _count(file, f"{where} {key}", constants.get(value, value))
        for key, value in sizes.get("Dimensions", {}).items()
    }
    stride = {
        axis: _count(file, f"Layer {name}: Stride {axis}", sizes.get("Stride", {}).get(axis, 1))
        for axis in "YX"
    }
    if kind != "GEMM":
        n = _with_outputs(file, name, n, stride)
    if kind == "DSCONV" and n.pop("k", 1) != 1:
        notes.lost(file, f"Layer {name}", "K of a DSCONV; one filter per channel")
    if kind == "NGCONV":
        notes.assumed(file, f"Layer {name}", "C and K are of one of G groups, as MAESTRO counts them")
    y, x = (f"{stride[axis]}*{a}+{b}" if stride[axis] > 1 else f"{a}+{b}" for axis, a, b in ("Ypr", "Xqs"))
    text = TEXTS[kind].format(i=number_, y=y, x=x)
    ranks = set(re.findall(r"\b([a-z])\b", text))
    if missing := sorted(ranks - set(n)):
        refuse([f"{file}: {where} {missing[0].upper()} is missing; add it"])
    extents = {rank: n[rank] for rank in n if rank in ranks}
    return {"text": text, "name": f"l_{re.sub(r'[^0-9A-Za-z_]', '_', name)}", "extents": extents}


def _with_outputs(file: str, name: str, n: Mapping[str, int], stride: Mapping[str, int]) -> dict[str, int]:
    """Returns the sizes with P and Q, of the output, for Y and X."""
    found = {"n": 1} | {rank: size for rank, size in n.items() if rank not in "yx"}
    for axis, window, out in ("yrp", "xsq"):
        if axis not in n or window not in n or n[axis] < n[window]:
            refuse(
                [f"{file}: Layer {name}: {axis.upper()} must be given and hold {window.upper()}; correct it"]
            )
        found[out] = (n[axis] - n[window]) // stride[axis.upper()] + 1
    return found
