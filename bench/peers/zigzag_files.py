"""ZigZag beside us: our machine as its files, its mapping as ours (uneven mapping: a storage node per operand
and memory).
"""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from dse.mapping.constraints import Constraints
from dse.mapping.nest import Infeasible, Loop, Mapping, Store
from dse.sim.einsum.evaluate import EinsumCost, Problem, einsum_cost
from hw.arch import Arch
from workloads.einsum import Einsum

CONV = {"K": "k", "C": "c", "OY": "p", "OX": "q", "FY": "r", "FX": "s"}
GEMM = {"K": "n", "C": "k"}
UNBOUNDED_BITS = 10**12
# per operand and memory, innermost first: loops inside its tile there
Orders = dict[str, list[list[tuple[str, int]]]]


def machine_file(arch: Arch) -> dict[str, Any]:
    """Every level holds every operand (ZigZag has no bypass); one read and one write port as wide as the
    level's bandwidth allows, costs per that width.
    """
    memories = {}
    for v in range(len(arch.levels) - 1, -1, -1):
        level, outer = arch.levels[v], v < arch.fanouts[0].outside
        wide = level.width_bits * (1 if level.bandwidth == float("inf") else max(int(level.bandwidth), 1))
        ports = [
            {
                "name": f"{way[0]}_port_1",
                "type": way,
                "bandwidth_min": level.width_bits,
                "bandwidth_max": wide,
                "allocation": [
                    f"{operand}, {end}"
                    for operand in ("I1", "I2", "O")
                    for end in ends[: 2 if operand == "O" else 1]
                ],
            }
            for way, ends in (("read", ("tl", "th")), ("write", ("fh", "fl")))
        ]
        per = wide / level.width_bits
        memories[level.name] = {
            "size": level.capacity_bits or UNBOUNDED_BITS,
            "r_cost": level.read_pj * per,
            "w_cost": level.write_pj * per,
            "area": 0,
            "latency": 1,
            "operands": ["I1", "I2", "O"],
            "ports": ports,
            "served_dimensions": ["D1", "D2"] if outer else [],
        }
    array = {
        "unit_energy": arch.compute.mac_pj,
        "unit_area": 1,
        "dimensions": ["D1", "D2"],
        "sizes": [n for _, n in arch.fanouts[0].dims],
    }
    return {"name": arch.name, "memories": memories, "operational_array": array}


def example(arch: Arch) -> dict[str, list[str]]:
    """Output channels over the first dimension of the array, input channels over the second, as in ZigZag's
    TPU-like example.
    """
    (_, rows), (_, columns) = arch.fanouts[0].dims
    return {"D1": [f"K, {rows}"], "D2": [f"C, {columns}"]}


def mapping_file(lanes: dict[str, dict[str, list[str]]]) -> list[dict[str, Any]]:
    """lanes: what layers (default: all others) spread over the array; empty: ZigZag decides."""
    links = {"O": "O", "W": "I2", "I": "I1"}
    return [
        {"name": name, **({"spatial_mapping": own} if own else {}), "memory_operand_links": links}
        for name, own in lanes.items()
    ]


def dataflow(e: Einsum, arch: Arch) -> Constraints:
    """The same for our mappers."""
    names = CONV if "p" in e.sizes() else GEMM
    (rows, _), (columns, _) = arch.fanouts[0].dims
    return Constraints(((rows, (names["K"],)), (columns, (names["C"],))))


def run(
    python: Path,
    arch: Arch,
    folder: Path,
    layers: int,
    objective: str,
    lanes: dict[str, dict[str, list[str]]],
    orders: dict[str, Orders] | None = None,
) -> dict[str, Any]:
    """What the driver prints; orders: of mappings to price, in place of a search. Raises CalledProcessError
    if ZigZag fails.
    """
    (folder / "machine.yaml").write_text(yaml.safe_dump(machine_file(arch), sort_keys=False))
    (folder / "mapping.yaml").write_text(yaml.safe_dump(mapping_file(lanes), sort_keys=False))
    (folder / "orders.json").write_text(json.dumps(orders))
    command = [
        python,
        Path(__file__).with_name("zigzag_driver.py"),
        folder / "machine.yaml",
        folder / "mapping.yaml",
        folder,
        objective,
        str(layers),
        *([folder / "orders.json"] if orders else []),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def name_of(layer: dict[str, Any]) -> str:
    """The name that our ONNX reader gives the layer."""
    return re.sub(r"\W", "_", layer["name"])


def translated(layer: dict[str, Any], e: Einsum, arch: Arch) -> tuple[EinsumCost, str]:
    """ZigZag's mapping of a layer under our evaluator, and how it was carried over.

    Its memories of one operand may sit on either side of the array's border at any loop; ours stand all
    outside or all inside of it. Where they cross, the outer ones move outwards (fewer fetches, more space),
    or else the inner ones inwards. It holds neither padding nor the words that a stride skips, we do: a
    mapping that does not fit for that is costed as if it did.
    """
    names = CONV if "p" in e.sizes() else GEMM
    operands = dict(zip(("I", "W", "O"), (p.tensor for p in e.tensors()), strict=True))
    order = [
        (names[dim], n) for level in layer["temporal"]["O"] for dim, n in level if names.get(dim) in e.sizes()
    ]
    cuts = {tensor: _cuts(layer["temporal"][operand], names, e) for operand, tensor in operands.items()}
    border = arch.fanouts[0].outside
    outside = min(own[v] for own in cuts.values() for v in range(1, border))
    inside = max(own[v] for own in cuts.values() for v in range(border, len(arch.levels)))
    ways = (
        [(inside, "as it is")]
        if inside <= outside
        else [(inside, "outer memories moved outwards"), (outside, "inner memories moved inwards")]
    )
    spatial = [
        (names[dim], int(n), arch.fanouts[0].dims[i][0])
        for i, (dim, n) in enumerate(layer["spatial"])
        if names.get(dim) in e.sizes()
    ]
    roomy = replace(
        arch, levels=tuple(replace(v, capacity_bits=v.capacity_bits and UNBOUNDED_BITS) for v in arch.levels)
    )
    full = ""
    for on, (at, how) in product((arch, roomy), ways):
        moved = {
            tensor: [max(cut, at) if v < border else min(cut, at) for v, cut in enumerate(own)]
            for tensor, own in cuts.items()
        }
        cost = einsum_cost(Problem(on, e, "energy"), _nest(order, spatial, moved, at, e, arch))
        if not isinstance(cost, Infeasible):
            return cost, how if on is arch else f"{how}; {full}"
        full = str(cost)
    raise ValueError(f"{layer['name']}: {full}")


def exported(mapping: Mapping, e: Einsum, arch: Arch) -> tuple[Orders, dict[str, list[str]]]:
    """Our mapping in ZigZag's terms: temporal loops, and lanes. Every level must hold every tensor, tiles
    must be perfect.
    """
    names, levels = (
        {rank: dim for dim, rank in (CONV if "p" in e.sizes() else GEMM).items()},
        [level.name for level in arch.levels],
    )
    operands = {p.tensor: operand for operand, p in zip(("I", "W", "O"), e.tensors(), strict=True)}
    orders: Orders = {operand: [[] for _ in levels] for operand in operands.values()}
    at, size = dict.fromkeys(operands.values(), len(levels) - 1), e.sizes()
    # what stands idle is named, too: else ZigZag spreads something over it
    lanes = {f"D{i + 1}": ["K, 1"] for i in range(len(arch.fanouts[0].dims))}
    for node in mapping.nodes:
        if isinstance(node, Store):
            at[operands[node.tensor]] = len(levels) - 1 - levels.index(node.level)
            continue
        n, size[node.rank] = size[node.rank] // node.tile, node.tile
        if node.over:
            lanes[f"D{[dim for dim, _ in arch.fanouts[0].dims].index(node.over) + 1}"] = [
                f"{names[node.rank]}, {n}"
            ]
        elif n > 1:
            for operand, v in at.items():
                orders[operand][v].insert(0, (names[node.rank], n))
    return orders, lanes


def _cuts(levels: list[list[list[Any]]], names: dict[str, str], e: Einsum) -> list[int]:
    """Per level of ours, outermost first, how many loops (from the innermost) run inside the operand's tile
    there.
    """
    inside, found = 0, []
    for loops in levels:
        inside += sum(names.get(dim) in e.sizes() for dim, _ in loops)
        found.append(inside)
    return found[::-1]


def _nest(
    order: list[tuple[str, int]],
    spatial: list[tuple[str, int, str]],
    cuts: dict[str, list[int]],
    border: int,
    e: Einsum,
    arch: Arch,
) -> Mapping:
    """order: temporal loops, innermost first; border: how many of them run inside the array."""
    tile = dict.fromkeys(e.sizes(), 1)
    nodes: list[Loop | Store] = []
    for i in range(len(order) + 1):
        for v in range(len(arch.levels) - 1, arch.fanouts[0].outside - 1, -1):
            nodes += [Store(arch.levels[v].name, tensor) for tensor, own in cuts.items() if own[v] == i]
        if i == border:
            for rank, n, dim in reversed(spatial):
                nodes.append(Loop(rank, tile[rank], dim))
                tile[rank] = min(tile[rank] * n, e.sizes()[rank])
        for v in range(arch.fanouts[0].outside - 1, -1, -1):
            nodes += [
                Store(arch.levels[v].name, tensor)
                for tensor, own in cuts.items()
                if (own[v] if v else len(order)) == i
            ]
        if i < len(order):
            rank, n = order[i]
            nodes.append(Loop(rank, tile[rank]))
            tile[rank] = min(tile[rank] * n, e.sizes()[rank])
    return Mapping(tuple(nodes[::-1]))
