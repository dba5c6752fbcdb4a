"""ZigZag accelerator, workload and mapping -> machine, workload, mapping.

    {name, operational_array,
     memories: {NAME: {size, r_cost, w_cost, area, operands, ports, served_dimensions}}}
    [{id, equation, dimension_relations, loop_dims, loop_sizes, operand_precision, operand_source}, ...]
    [{name, spatial_mapping, temporal_ordering, temporal_mapping, memory_operand_links}, ...]

Memories stand innermost first. One serves all units along its served dimensions, and is there once per unit
along the others. Sizes are bits, costs pJ per access of a port's width, whichever port it is; no operand
bypasses a memory of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dse.exchange import documents, machines, shape, zigzag_mapping
from dse.exchange.arithmetic import number
from dse.exchange.notes import Converted, Nests, Notes, Unreadable, refuse
from dse.mapping import nest
from hw import machine as machine_files
from hw.arch import OUTSIDE
from workloads import text

CLOCK_MHZ = 1000.0
WORD_BITS = 8
# directions of an operand: written from, or read to, the memory further out (high) or further inside (low)
WAYS = {"fh": "fill", "fl": "write", "tl": "read", "th": "drain"}
ROLE_OF = {"I1": "input", "I2": "weight", "O": "output"}  # memory operands, as all shipped mappings link them
EQUATION = re.compile(r"^\s*(\w+)((?:\[\w+\])+)\s*\+?=\s*(.+)$")
ACCESS = re.compile(r"(\w+)((?:\[\w+\])+)")
ACCESS_OF_WEIGHT = re.compile(r"\* (\w+)\[")
MEMORY_KEYS = {
    "size", "r_cost", "w_cost", "area", "latency", "operands", "ports", "served_dimensions",
    "auto_cost_extraction", "force_double_buffering",
}  # fmt: skip
ARRAY_KEYS = {"unit_energy", "unit_area", "dimensions", "sizes", "input_precision"}
SHAPES: dict[str, shape.Shape] = {
    "accelerator": {
        "memories!": {
            shape.ANY: {
                "size!": shape.AMOUNT,
                "r_cost": shape.NUMBER,
                "w_cost": shape.NUMBER,
                "area": shape.NUMBER,
                "operands": [shape.TEXT],
                "ports": [
                    {
                        "type": shape.TEXT,
                        "bandwidth_max": shape.AMOUNT,
                        "bandwidth": shape.AMOUNT,
                        "allocation": [shape.TEXT],
                    }
                ],
                "served_dimensions": [shape.TEXT],
            }
        },
        "operational_array!": {
            "unit_energy": shape.NUMBER,
            "unit_area": shape.NUMBER,
            "dimensions!": [shape.TEXT],
            "sizes!": [shape.COUNT],
        },
    },
    "workload": [
        {
            "equation!": shape.TEXT,
            "loop_dims!": [shape.TEXT],
            "loop_sizes!": [shape.COUNT],
            "dimension_relations": [shape.TEXT],
            "operand_precision": {shape.ANY: shape.NUMBER},
            "operand_source": {shape.ANY: object},
            "padding": [[object]],
        }
    ],
    "mapping": [
        {
            "name!": shape.TEXT,
            "spatial_mapping": {shape.ANY: ([shape.TEXT], shape.TEXT)},
            "temporal_mapping": {shape.ANY: [[[shape.TEXT]]]},
        }
    ],
}


def read(paths: Sequence[Path], notes: Notes) -> Converted:
    """Returns what the files hold. Raises Unreadable with one line per fault."""
    found: dict[str, tuple[str, Any]] = {}
    for path in paths:
        data = documents.read(path, notes)
        kind = _kind(data)
        if not kind or kind in found:
            why = f"is a second {kind}" if kind else "is no accelerator, no workload and no mapping of ZigZag"
            raise Unreadable(f"{path}: {why}; give one of each at most")
        refuse(shape.faults(str(path), kind, data, SHAPES[kind]))
        found[kind] = (str(path), data)
    machine = _machine(*found["accelerator"], notes) if "accelerator" in found else None
    workload = _workload(*found["workload"], notes) if "workload" in found else None
    mapping = _mapping(*found["mapping"], machine, workload, notes) if "mapping" in found else None
    return Converted(machine, workload, mapping)


def _kind(data: Any) -> str:
    if isinstance(data, dict) and {"memories", "operational_array"} <= data.keys():
        return "accelerator"
    first = data[0] if isinstance(data, list) and data else None
    keys = first.keys() if isinstance(first, dict) else set[str]()
    return "workload" if "equation" in keys else "mapping" if {"memory_operand_links"} & {*keys} else ""


def _machine(file: str, data: Mapping[str, Any], notes: Notes) -> dict[str, Any]:
    array = data["operational_array"]
    sizes = dict(zip(map(str, array.get("dimensions") or []), array.get("sizes") or [], strict=False))
    for key in sorted(set(array) - ARRAY_KEYS - ({"is_imc"} if array.get("is_imc") is False else set())):
        says = "ZigZag prices in-memory compute itself; a MAC takes unit_energy, or nothing, and a cycle here"
        notes.lost(file, f"operational_array.{key}", says if key == "is_imc" else "is not carried over")
    nodes: list[dict[str, Any]] = []
    outside = set(sizes)  # dimensions along which there is one memory so far
    kept: list[tuple[set[Any], set[str]]] = []  # operands of each memory, and the dimensions that it serves
    for title, memory in reversed(list(data["memories"].items())):
        served = set(map(str, memory.get("served_dimensions") or []))
        if not nodes:
            # what memories further inside serve is shared out there
            if several := sorted(outside - served - _served_inside(data["memories"], title)):
                says = f"there is one outermost memory here, not one per unit along {', '.join(several)}"
                notes.lost(file, f"memories.{title}.served_dimensions", says)
            served = set(sizes)
        beyond, operands = served - outside, {*(memory.get("operands") or [])}
        # of an operand that a memory further out is copied for along a dimension, so is this one
        copied = {dim for dim in beyond for own, along in kept if own & operands and dim not in along}
        if copied:
            says = (
                f"serves {', '.join(sorted(copied))}, along which memories further out are copied; copied "
                "here, too"
            )
            notes.lost(file, f"memories.{title}.served_dimensions", says)
        nodes += _array(outside - served, sizes)
        outside &= served
        found = _memory(file, str(title), memory, not any("memory" in one for one in nodes), notes)
        if along := [machines.name(dim) for dim in sizes if dim in beyond - copied]:
            found["along"] = along
        nodes.append(found)
        kept.append((operands, served - copied))
    nodes += _array(outside, sizes)
    nodes.append(
        {"compute": "mac", "kind": "custom", "mac_pj": float(array.get("unit_energy", 0)), "alu_pj": 0.0}
        | {"merge_pj": 0.0, "leak_mw": 0.0, "area_mm2": float(array.get("unit_area", 0))}
    )
    notes.assumed(file, "clock", f"ZigZag counts cycles; {CLOCK_MHZ:g} MHz taken, no leakage")
    head = {"name": machines.name(str(data.get("name", "zigzag"))), "clock_mhz": CLOCK_MHZ}
    return head | {"word_bits": WORD_BITS, "overlap": "free", "nodes": nodes}


def _served_inside(memories: Mapping[str, Any], outermost: str) -> set[str]:
    """Returns the dimensions that, for each operand, some memory but the outermost serves."""
    found: list[set[str]] = []
    for operand in ROLE_OF:
        inner = [
            one
            for title, one in memories.items()
            if title != outermost and operand in (one.get("operands") or [])
        ]
        found.append({str(dim) for one in inner for dim in one.get("served_dimensions") or []})
    return set.intersection(*found)


def _array(dims: set[str], sizes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the array of some dimensions; none where there are none."""
    own = {machines.name(dim): int(sizes[dim]) for dim in sizes if dim in dims}
    return [{"array": "_".join(["array", *own]), "dims": own}] if own else []


def _memory(
    file: str, title: str, memory: Mapping[str, Any], is_outermost: bool, notes: Notes
) -> dict[str, Any]:
    for key in sorted(set(memory) - MEMORY_KEYS):
        notes.lost(file, f"memories.{title}.{key}", "is not carried over")
    if memory.get("auto_cost_extraction"):
        notes.lost(
            file, f"memories.{title}.auto_cost_extraction", "ZigZag asks CACTI; r_cost and w_cost stand here"
        )
    ports = [port for port in memory.get("ports") or [] if isinstance(port, dict)]
    widths = [number(port.get("bandwidth_max", port.get("bandwidth"))) or 0.0 for port in ports]
    size = machines.whole_bytes(number(memory.get("size")) or 8, file, f"memories.{title}.size", notes)
    width = int(min(max(widths, default=0) or 64, 8 * size))
    kinds = {str(port.get("type")) for port in ports}
    costs = {}
    for way, key in (("read", "r_cost"), ("write", "w_cost")):
        own = {w for port, w in zip(ports, widths, strict=True) if port.get("type") in (way, "read_write")}
        widest = max(own, default=0.0)
        costs[way] = float(memory.get(key) or 0) * (width / widest if widest else 1.0)
        if narrow := sorted(own)[:-1]:
            shares = ", ".join(f"{w:g} bits costs {w / widest:.3g}" for w in narrow)
            says = f"has ports of several widths to {way}; here an access of {shares} of {key}"
            notes.lost(file, f"memories.{title}.ports", says)
    operands = [one for one in ("I1", "I2", "O") if is_outermost or one in (memory.get("operands") or [])]
    separate = "read_write" not in kinds
    found = machines.memory(machines.name(title), width, None if is_outermost else size, 1.0, separate)
    if len(ports) > len(kinds) or len({*widths}) > 1:
        served, says = _served(ports, operands, is_outermost)
        if served:
            listed: list[dict[str, Any]] = [ways | {"times": widths[i] / width} for i, ways in served.items()]
            found["ports"] = [{key: one for key, one in port.items() if one != 1.0} for port in listed]
            # one port that reads all and one that writes all
            if [[*port] for port in found["ports"]] in ([["read"], ["write"]], [["write"], ["read"]]):
                found["ports"] = "separate"
        else:
            says = f"{len(ports)} ports work at once there; here each kind of access has one of {width} bits"
        if says:
            notes.lost(file, f"memories.{title}.ports", says)
    if not ports:
        found["actions_per_cycle"] = "inf"
    found |= machines.custom(costs["read"], costs["write"], 0.0, float(memory.get("area") or 0))
    if memory.get("force_double_buffering") and not is_outermost:
        found["double_buffer"] = True
    roles = [ROLE_OF[one] for one in operands]
    if is_outermost:
        return found
    return found | ({} if len(roles) == len(ROLE_OF) else {"may_keep": roles}) | {"bypass": False}


def _served(
    ports: Sequence[Mapping[str, Any]], operands: Sequence[str], is_outermost: bool
) -> tuple[dict[int, dict[str, list[str]]], str]:
    """Returns which roles each port reads and writes, by its number, and what is lost of that. None where the
    ports do not say it of all operands. Inputs are written from outside alone; an output that arrives or
    leaves through the port that is inside of it, too, has no port of its own for that.
    """
    at: dict[tuple[str, str], list[int]] = {}
    for i, port in enumerate(ports):
        for entry in port.get("allocation") or []:
            operand, _, direction = (one.strip() for one in str(entry).partition(","))
            way = WAYS.get(direction, "")
            way = OUTSIDE.get(way, way) if operand != "O" or is_outermost else way
            if operand in operands and way and i not in at.setdefault((operand, way), []):
                at[operand, way].append(i)
    found: dict[int, dict[str, list[str]]] = {}
    for operand in operands:
        for way in ("read", "write"):
            outside = next(key for key, same in OUTSIDE.items() if same == way)
            # an input whose writes no port names is written where it is read; an output that no port takes
            # or gives inside goes where it does outside
            numbers = (
                at.get((operand, way))
                or at.get((operand, outside))
                or (at.get((operand, "read")) if operand != "O" else None)
            )
            if not numbers:
                return {}, ""
            found.setdefault(numbers[0], {}).setdefault(way, []).append(ROLE_OF[operand])
            if (own := at.get((operand, outside), numbers)) and own[0] != numbers[0]:
                found.setdefault(own[0], {}).setdefault(outside, []).append(ROLE_OF[operand])
    ways = sorted({f"{way} of {ROLE_OF[operand]}" for (operand, way), own in at.items() if len(own) > 1})
    says = f"{' and '.join(ways)} have several ports there; here the first of them" if ways else ""
    return found, says


def _workload(file: str, layers: Sequence[Any], notes: Notes) -> dict[str, Any]:
    entries = [_entry(file, layer, len(layers) > 1, notes) for layer in layers]
    if any(
        source != layer.get("id")
        for layer in layers
        for source in (layer.get("operand_source") or {}).values()
    ):
        notes.lost(file, "operand_source", "layers are not joined: each reads an input of its own")
    first = dict(entries[0]["extents"])
    for entry in entries:
        if not (
            own := {rank: n for rank, n in entry.pop("extents").items() if first.setdefault(rank, n) != n}
        ):
            continue
        entry["extents"] = own
    weights = [one.group(1) for e in entries for one in ACCESS_OF_WEIGHT.finditer(e["text"])]
    return {"name": machines.name(Path(file).stem), "extents": first, "einsums": entries, "weights": weights}


def _entry(file: str, layer: Mapping[str, Any], several: bool, notes: Notes) -> dict[str, Any]:
    where = f"layer {layer.get('name', layer.get('id'))}"
    match = EQUATION.match(str(layer.get("equation", "")))
    dims, sizes = layer.get("loop_dims") or [], layer.get("loop_sizes") or []
    if not match or len(dims) != len(sizes):
        refuse([f"{file}: {where}: equation, loop_dims and loop_sizes do not fit; see ZigZag's workload"])
    assert match
    relations = dict(
        str(one).replace(" ", "").split("=", 1) for one in layer.get("dimension_relations") or []
    )
    bits = {op: int(n) for op, n in (layer.get("operand_precision") or {}).items()}
    suffix = str(layer.get("id", 0)) if several else ""
    operands = {m[1]: m[2] for m in ACCESS.finditer(match[3])}
    inputs = sorted((op for op in operands if bits.get(op, WORD_BITS)), key=lambda op: op.startswith("W"))
    access = {op: _access(f"{op}{suffix}", index, relations) for op, index in operands.items()}
    output = _access(f"{match[1]}{suffix}", match[2], relations)
    final = bits.get(f"{match[1]}_final")
    if final is not None and final != bits.get(match[1], final):
        notes.lost(
            file, f"{where}.operand_precision", f"results of {final} bits have the bits of partial sums here"
        )
    for key in ("padding", "pr_loop_dims", "pr_loop_sizes"):
        if key == "padding" and any(any(pair) for pair in layer.get(key) or []):
            notes.lost(file, f"{where}.{key}", "the input is as large as its indices reach")
    name = re.sub(
        r"\W", "_", str(layer.get("name") or f"{layer.get('operator_type', 'layer')}_{layer.get('id', 0)}")
    )
    return {
        "text": f"{output} += {' * '.join(access[op] for op in inputs)}",
        "name": name,
        "extents": {str(dim).lower(): int(n) for dim, n in zip(dims, sizes, strict=True)},
        "bits": {f"{op}{suffix}": bits[op] for op in (*inputs, match[1]) if op in bits},
    }


def _access(tensor: str, index: str, relations: Mapping[str, str]) -> str:
    dims = re.findall(r"\[(\w+)\]", index)
    return f"{tensor}[{','.join(_index(relations.get(dim, dim)) for dim in dims)}]"


def _index(relation: str) -> str:
    return re.sub(r"(?<!\d)1\*", "", relation.lower())


def _mapping(
    file: str,
    layers: Sequence[Any],
    machine: Mapping[str, Any] | None,
    workload: Mapping[str, Any] | None,
    notes: Notes,
) -> Nests | None:
    """Returns the nests of layers that say where their loops stand."""
    told = [one for one in layers if isinstance(one, dict) and "temporal_mapping" in one]
    for one in layers:
        if one not in told:
            keys = [key for key in ("spatial_mapping", "temporal_ordering") if key in one]
            notes.lost(
                file, f"{one.get('name')}.{', '.join(keys)}", "constraints; the mapper chooses its loops here"
            )
    if not told:
        return None
    if machine is None or workload is None:
        refuse([f"{file}: a mapping needs its accelerator and workload; give their files, too"])
    assert machine is not None
    assert workload is not None
    spec, faults = machine_files.parse(dict(machine), "machine")
    refuse(f"machine: {line}" for line in faults)
    arch = machine_files.arch(spec)
    return {
        name: nest.to_data(zigzag_mapping.read(file, one, e, arch))
        for one, (name, e) in _matched(file, told, workload)
    }


def _matched(
    file: str, told: Sequence[Mapping[str, Any]], workload: Mapping[str, Any]
) -> Iterator[tuple[Mapping[str, Any], tuple[str, Any]]]:
    for one in told:
        entry = next((e for e in workload["einsums"] if e["name"] == one.get("name")), None)
        if entry is None:
            refuse([f"{file}: {one.get('name')} is no layer of the workload"])
        assert entry is not None
        e = text.workload(workload["extents"] | entry.get("extents", {}), entry["text"]).einsums[0]
        yield one, (entry["name"], e)
