"""Schedules that nn_dataflow finds for fully connected networks on KAPLA's machines, priced by our evaluator,
component by component.

python -m bench.nn_dataflow [FOLDER]    an environment of its own is made in FOLDER (default: a temporary
one); minutes. Beside: which of its pipelined segments have as many schemes as KAPLA's Table VI counts.

nn_dataflow 2.1 (Gao et al., ASPLOS 2017 and 2019) searches layer by layer; each schedule becomes a nest of
ours: the partition of the nodes, its loops between DRAM and GBUF, the rows and columns of PEs, its loops
between GBUF and REGF, and nodes raised above the loops that do not move their tensor. The last two columns
take out what the two conventions are known to count apart (the notes below the tables), and say what is left.
"""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

from bench.peers.environment import in_folder, python_of
from dse.frontend import tables
from dse.mapping import nest
from dse.mapping.nest import Loop, Store
from dse.mapping.schedule import sequential
from dse.sim.einsum.evaluate import EinsumCost, Solution
from dse.sim.schedule.graph import evaluate
from hw import machine
from hw.arch import Arch
from workloads.einsum import Einsum, einsum
from workloads.graph import Workload

# the latter in equal parts on 16 nodes: hops of others are not counted
MLP_M, EVEN = (784, 1000, 500, 250, 10), (512, 1024, 512, 256, 64)
CASES = (
    ("kapla_single", MLP_M, 1),
    ("kapla_single", MLP_M, 64),
    ("kapla_multi_4x4", EVEN, 1),
    ("kapla_multi_4x4", EVEN, 64),
)
# by which its energy of a layer is above ours (docs/evidence/exchange.md)
TERMS = ("fills and drains", "diagonals", "bus", "first sums", "kept", "pinned", "cycles")
EXACT = 1e-9
# schemes of a segment before pruning; of the other two networks it ships none, or none with so few stages
TABLE_VI = {"mlp_l": 784, "lstm_gnmt": 70, "alex_net": 700, "vgg_net": 7, "resnet50": 63}
RANKS = "knm"  # of a layer's loops: input channels, output channels, batch
# a tensor's loops, in the order in which nn_dataflow lists tensors
USES = {"W": (0, 1), "in": (0, 2), "out": (1, 2)}
NOTES = """\
GBUF, REGF: we charge a word that arrives, or leaves outwards, as well as the one that is used; nn_dataflow
the latter only, and an output that compute adds to twice, also the first time. Where no loop between GBUF
and REGF moves the sums, it keeps them in REGF over the outer loop of k too, which a nest whose GBUF tiles
stand inside of that loop cannot say. ARRAY: it charges a word on the bus once, however many PEs take it;
we, as KAPLA, per PE. "alike" leaves all that out. NODES: of an output it charges the mean of the way in and
the way out, we what goes; weights may start from several corners at once there. Room: its tiles that nodes
pass on once count as shared; ours are whole, or shared and turned ("share"): those cases are priced with
more room, and named."""


def connected(units: Sequence[int], batch: int) -> Workload:
    """Fully connected layers, without what rides on them."""
    layers = [
        einsum(
            f"fc{i}[m,n] += {f'fc{i - 1}' if i > 1 else 'image'}[m,k] * fc{i}_W[k,n]",
            {"m": batch, "n": n, "k": k},
            f"fc{i}",
        )
        for i, (k, n) in enumerate(pairwise(units), 1)
    ]
    return Workload("mlp", tuple(layers), frozenset(f"{e.name}_W" for e in layers))


def hardware(arch: Arch) -> dict[str, Any]:
    """A machine as the peer's driver takes it, in words."""
    (dram, gbuf, regf), (nodes, array), word = arch.levels, arch.fanouts, arch.word_bits
    assert gbuf.capacity_bits
    assert regf.capacity_bits
    return {
        "nodes": [n for _, n in nodes.dims],
        "array": [n for _, n in array.dims],
        "gbuf": gbuf.capacity_bits // word,
        "regf": regf.capacity_bits // word,
        "bus": int(gbuf.bandwidth),
        "dram": dram.bandwidth,
        "pj": {
            "mac": arch.compute.mac_pj,
            "hop": word * nodes.hop_pj,
            "idle": arch.leak_mw() / arch.clock_ghz,
            "dram": dram.read_pj,
            "gbuf": gbuf.read_pj,
            "itcn": word * array.endpoint_pj,
            "regf": regf.read_pj,
        },
    }


def nest_of(layer: Mapping[str, Any], e: Einsum, arch: Arch, held: bool = False) -> nest.Mapping:
    """A schedule of a layer as a nest; of a convolution a PE takes a row of the filter and one of the result.

    held: sums that no inner loop moves stay in REGF also over the outer loop of k, as nn_dataflow has it;
    where GBUF holds tiles inside of that loop our nests cannot say so, but with larger tiles there.
    """
    tensors = {"W": e.inputs[1].tensor, "in": e.inputs[0].tensor, "out": e.output.tensor}
    left = e.sizes()
    nodes: list[Loop | Store] = [Store("DRAM", t) for t in tensors.values()]

    def cut(rank: str, tile: int, over: str = "") -> None:
        if tile < left.get(rank, 1):
            nodes.append(Loop(rank, tile, over))
            left[rank] = tile

    for kind in layer["order"]:
        for dim, parts in zip(("NY", "NX"), layer["part"][kind], strict=True):
            if parts > 1:
                rank = {"c": "k", "k": "n", "n": "m"}[kind]
                cut(rank, -(-left[rank] // parts), dim)
    t0, t1, t2 = layer["tvals"]
    if held and t1[1] == t1[2] == 1:
        t0, t1 = [1, *t0[1:]], [t0[0] * t1[0], *t1[1:]]
    unit = [*layer["pass"], 1]

    def level(name: str, order: list[int], trips: list[int], inner: list[int]) -> None:
        """Loops, outermost first, with a node of each tensor below the innermost one that moves it."""
        loops = [at for at in sorted(range(3), key=lambda at: -order[at]) if trips[at] > 1]
        last = {
            key: max([i + 1 for i, at in enumerate(loops) if at in uses], default=0)
            for key, uses in USES.items()
        }
        for i in range(len(loops) + 1):
            nodes.extend(Store(name, tensors[key]) for key in USES if last[key] == i)
            if i < len(loops):
                rank = RANKS[loops[i]]
                cut(rank, min(inner[loops[i]], left.get(rank, 1)))

    level("GBUF", layer["orders"][0], t0, [a * b * u for a, b, u in zip(t1, t2, unit, strict=True)])
    (rows, _), (columns, size) = arch.fanouts[1].dims
    wide = min(unit[1], size // left.get("p", 1))
    cut("p", 1, columns)
    cut("n", -(-left["n"] // wide), columns)
    cut("r", 1, rows)
    cut("n", min(left["n"], t1[1] * t2[1]), rows)
    cut("k", min(left["k"], t1[0] * t2[0]), rows)
    level("REGF", layer["orders"][1], t1, list(t2))
    for rank in (*RANKS, "q", "s"):
        cut(rank, 1)
    return nest.Mapping(tuple(nodes))


def terms_of(
    layer: Mapping[str, Any], mapping: nest.Mapping, e: Einsum, cost: EinsumCost, pj: Mapping[str, float]
) -> dict[str, float]:
    """Terms by which nn_dataflow's energy of a layer is above ours, in pJ, from its figures and the trips of
    the nest. Raises AssertionError for a count of ours that these do not say.
    """
    dram, gbuf, bus, _ = (dict(zip(USES, row, strict=True)) for row in layer["access"])
    ours = Counter[tuple[str, str, str]]()
    for count in cost.counts:
        ours[count.key] += count.elems
    found = dict.fromkeys(TERMS, 0.0) | {"cycles": (layer["time"] - cost.latency_cycles) * pj["idle"]}
    macs = e.macs()
    expected: dict[tuple[str, str, str], float] = {("MAC", "-", "compute"): macs}
    for tensor, uses in USES.items():
        outer, inner = fetches(layer, uses)
        free = next(rank for at, rank in enumerate(RANKS) if at not in uses)
        visits = trips(mapping, e, free, tensor)  # of REGF, by the PEs together
        pes = trips(mapping, e, free, tensor, each=True)  # and summed over PEs
        if tensor == "out":
            words, filters = prod(e.sizes()[rank] for rank in "mnpq"), e.sizes()["r"]
            drains = filters * pes * words
            firsts = filters * pes_of(mapping, e, free) * words
            fills = drains - firsts
            expected |= {
                ("DRAM", tensor, "read"): (outer - 1) * words,
                ("DRAM", tensor, "write"): outer * words,
                ("GBUF", tensor, "read"): (visits - 1 + outer) * words,
                ("GBUF", tensor, "write"): (visits + outer - 1) * words,
                ("REGF", tensor, "read"): macs - firsts + drains,
                ("REGF", tensor, "write"): macs + fills,
            }
            found["fills and drains"] -= (2 * outer - 1) * words * pj["gbuf"] + (fills + drains) * pj["regf"]
            found["first sums"] += firsts * pj["regf"]
            found["kept"] -= 2 * (visits - inner) * words * pj["gbuf"]
            found["bus"] -= (fills + drains - bus[tensor]) * pj["itcn"]
            continue
        rows = bus[tensor] / gbuf[tensor] if tensor == "in" else 1.0
        once = gbuf[tensor] / inner
        loaded = dram[tensor] or once  # weights that fit stand in GBUF before the run there
        served = once * rows * visits
        taken = once * rows * pes if tensor == "in" else served * e.sizes()["p"]
        expected |= {
            ("DRAM", tensor, "read"): loaded,
            ("GBUF", tensor, "write"): loaded,
            ("GBUF", tensor, "read"): served,
            ("REGF", tensor, "write"): taken,
            ("REGF", tensor, "read"): macs,
        }
        found["fills and drains"] -= loaded * pj["gbuf"] + taken * pj["regf"]
        found["pinned"] -= (loaded - dram[tensor]) * pj["dram"]
        found["kept"] -= once * (visits - inner) * pj["gbuf"]
        found["diagonals"] -= (rows - 1) * once * visits * pj["gbuf"]
        found["bus"] -= (taken - bus[tensor]) * pj["itcn"]
    for key, n in expected.items():
        assert abs(ours[key] - n) <= EXACT * n, (key, ours[key], n)
    return found


def fetches(layer: Mapping[str, Any], uses: Sequence[int]) -> tuple[int, int]:
    """How often a tensor is fetched whole from DRAM and from GBUF there. Where no loop between GBUF and REGF
    moves it, its tile stays in REGF over the loops outside, too.
    """
    (free,) = {0, 1, 2} - {*uses}
    blocks, orders = layer["tvals"], layer["orders"]
    found = [1]
    for at in (0, 1):
        moved = [orders[at][loop] for loop in uses if blocks[at][loop] > 1]
        outside = blocks[at][free] if moved and orders[at][free] > min(moved) else 1
        found.append(prod(own[free] for own in blocks[:at]) * outside if moved else found[-1])
    return found[1], found[2]


def pes_of(mapping: nest.Mapping, e: Einsum, rank: str) -> int:
    """PEs that share out a rank in the first iteration."""
    size, found = e.sizes()[rank], 1
    for node in mapping.nodes:
        if isinstance(node, Loop) and node.rank == rank:
            found *= -(-size // node.tile) if node.over else 1
            size = min(size, node.tile)
    return found


def trips(mapping: nest.Mapping, e: Einsum, rank: str, tensor: str, each: bool = False) -> int:
    """Tiles of a rank that REGF's node of a tensor sees one after the other, by the first PE or by each."""
    above = mapping.nodes[: mapping.nodes.index(Store("REGF", tensor))]
    loops = [node for node in above if isinstance(node, Loop) and node.rank == rank]

    def tiles(size: int, loops: Sequence[Loop]) -> int:
        if not size or not loops:
            return size and 1
        whole, rest = divmod(size, loops[0].tile)
        if loops[0].over and not each:
            return tiles(min(size, loops[0].tile), loops[1:])
        return whole * tiles(loops[0].tile, loops[1:]) + tiles(rest, loops[1:])

    return tiles(e.sizes()[rank], loops)


def theirs(layers: list[dict[str, Any]], arch: Arch) -> dict[str, float]:
    pj = hardware(arch)["pj"]
    found = {
        name: sum(pj[key] * sum(layer["access"][at]) for layer in layers)
        for at, (name, key) in enumerate(
            (("DRAM", "dram"), ("GBUF", "gbuf"), ("ARRAY", "itcn"), ("REGF", "regf"))
        )
    }
    found["NODES"] = sum(pj["hop"] * (sum(layer["mem_nhops"]) + sum(layer["node_nhops"])) for layer in layers)
    found["MAC"] = sum(pj["mac"] * layer["ops"] for layer in layers)
    found["static"] = sum(layer["cost_static"] for layer in layers)
    return found | {"cycles": sum(layer["time"] for layer in layers)}


def ours(found: Solution) -> dict[str, float]:
    pj = dict.fromkeys(("DRAM", "GBUF", "ARRAY", "REGF", "NODES", "MAC", "static"), 0.0)
    for c in found.einsums:
        for part in c.price.parts:
            pj["static" if part.action == "leak" else part.level] += c.count * part.energy_pj
    return pj | {"cycles": found.latency_cycles}


def alike(found: Solution, arch: Arch, workload: Workload) -> dict[str, float]:
    """Our energies without what arrives at GBUF and REGF and leaves them outwards, with all first reads, and
    of the bus a word once for all that take it.
    """
    outputs = {e.name: (e.output.tensor, e.macs()) for e in workload.einsums}
    words = {"GBUF": 0.0, "REGF": 0.0}
    for c in found.einsums:
        rows = {(row.level, row.tensor, row.action): row.elems for row in c.counts}
        out, macs = outputs[c.name]
        served = dict.fromkeys(words, 0.0)
        for (level, tensor, action), n in rows.items():
            if level in served and tensor != out and action == "read":
                served[level] += n
        back, gone = rows.get(("DRAM", out, "read"), 0.0), rows["DRAM", out, "write"]
        words["GBUF"] += c.count * (
            served["GBUF"] + rows.get(("GBUF", out, "read"), 0.0) - gone + rows["GBUF", out, "write"] - back
        )
        words["REGF"] += c.count * (served["REGF"] + 2 * macs)
    bus = arch.word_bits * arch.fanouts[1].endpoint_pj
    return {
        "GBUF": arch.levels[1].read_pj * words["GBUF"],
        "ARRAY": bus * words["GBUF"],
        "REGF": arch.levels[2].read_pj * words["REGF"],
    }


def priced(
    arch: Arch, workload: Workload, layers: Sequence[Mapping[str, Any]], held: bool = False
) -> Solution:
    pairs = zip(layers, workload.einsums, strict=True)
    found = evaluate(
        arch, workload, sequential(workload, {e.name: nest_of(layer, e, arch, held) for layer, e in pairs})
    )
    if isinstance(found, Solution):
        return found
    print(f"{found}: priced with more room")
    return priced(roomy(arch), workload, layers, held)


def roomy(arch: Arch) -> Arch:
    return replace(arch, levels=tuple(replace(level, capacity_bits=None) for level in arch.levels))


def compared(
    name: str, units: Sequence[int], batch: int, answer: Mapping[str, Any]
) -> Iterator[tuple[str, float, float, str, str, str]]:
    """(component, theirs, ours, ours / theirs, ours counted alike, alike / theirs)."""
    arch, workload = machine.load_arch(name), connected(units, batch)
    found = priced(arch, workload, answer["layers"])
    mine = ours(found)
    same = alike(priced(roomy(arch), workload, answer["layers"], held=True), arch, workload)
    for key, value in theirs(answer["layers"], arch).items():
        ratio = f"{mine[key] / value:.3f}" if value else "-"
        again = same.get(key)
        yield (
            key,
            value,
            mine[key],
            ratio,
            "" if again is None else f"{again / 1e6:.4g}",
            "" if again is None or not value else f"{again / value:.3f}",
        )


def answered(folder: Path, name: str, units: Sequence[int], batch: int) -> Mapping[str, Any]:
    """What nn_dataflow finds for a machine of ours; kept in the folder, where its environment is, too."""
    widths = "-".join(map(str, units))
    kept = folder / f"{name}_{widths}_{batch}.json"
    if not kept.exists():
        driver = Path(__file__).parent / "peers" / "nn_dataflow_schedules.py"
        asked = [
            python_of("nn_dataflow", folder),
            driver,
            widths,
            str(batch),
            json.dumps(hardware(machine.load_arch(name))),
        ]
        kept.write_text(subprocess.run(asked, check=True, capture_output=True, text=True).stdout)
    found: Mapping[str, Any] = json.loads(kept.read_text())
    return found


def schemes(folder: Path) -> None:
    """Prints the segments of nn_dataflow that have as many schemes as KAPLA's Table VI says of a network."""
    driver = Path(__file__).parent / "peers" / "nn_dataflow_schemes.py"
    command = [python_of("nn_dataflow", folder), "-W", "ignore", driver, "64", "4", *TABLE_VI]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rows = []
    for name, segments in map(json.loads, printed.splitlines()):
        equal = [(s, symbols) for s, symbols in segments if prod(symbols.values()) == TABLE_VI[name]]
        stages, symbols = equal[0] if equal else ([], {})
        rows.append(
            (
                name,
                str(TABLE_VI[name]),
                f"{len(equal)} of {len(segments)}",
                ", ".join(" ".join(stage) for stage in stages),
                " x ".join(f"{n} {key}" for key, n in symbols.items()),
            )
        )
    heads = ("network", "Table VI", "segments with so many", "stages of the first", "schemes")
    tables.print_table(heads, rows, "schemes of a segment, batch 64, 16 x 16 nodes, at most four stages")


def main(folder: Path) -> None:
    schemes(folder)
    for name, units, batch in CASES:
        widths = "-".join(map(str, units))
        rows = [
            (key, *(f"{n:.0f}" if key == "cycles" else f"{n / 1e6:.5g}" for n in (a, b)), *rest)
            for key, a, b, *rest in compared(name, units, batch, answered(folder, name, units, batch))
        ]
        heads = ("component", "nn_dataflow", "ours", "ours_over", "alike", "alike_over")
        tables.print_table(heads, rows, f"{widths}, batch {batch}, on {name}: uJ, and cycles")
    print(NOTES)


if __name__ == "__main__":
    in_folder(main)
