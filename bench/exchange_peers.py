"""The same mapping priced by the tool whose configuration it is and here, on configurations as its repository
ships them. Every difference is one of the terms that the table names, or the run stops.

python -m bench.exchange_peers zigzag|scalesim|nn_dataflow FOLDER [ENVIRONMENTS]

FOLDER: checkouts (bench.exchange_field, REPOSITORIES; none of nn_dataflow, whose package has its networks);
ENVIRONMENTS: of the tools, made where they lack.

ZigZag: a layer of its ResNet-18 (for gemm_* its product) with results as wide as partial sums, mapped here in
the dataflow that it ships, goes over by `--format zigzag` and is priced on the accelerator file as it stands.
SCALE-Sim: the smallest layer of a topology, cut to half a million MACs: cycles of the array without stalls.
nn_dataflow: the schedule that it finds for a layer of its networks on kapla_single, as a nest.
"""

from __future__ import annotations

import configparser
import io
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import yaml

from bench import nn_dataflow
from bench.exchange_field import SCALESIM_CONVOLUTIONS
from bench.peers.environment import python_of
from dse.exchange import convert, scalesim, zigzag_mapping
from dse.frontend import api
from dse.mapper.baselines.random import random
from dse.mapper.exact.optimal import optimal
from dse.mapping.constraints import Constraints
from dse.mapping.nest import Loop, Store
from dse.mapping.nest import Mapping as NestMapping
from dse.sim.counts.actions import action_pj
from dse.sim.einsum.evaluate import EinsumCost, Problem, einsum_cost
from hw import machine
from hw.arch import Arch
from tests.array_dataflows import systolic
from tests.cases_dataflow import run_dataflow
from workloads.einsum import Einsum, einsum

INPUTS = "zigzag/zigzag/inputs"
RESNET, CONV2 = "resnet18", 2  # workload, and id of its layer
IMC = ("aimc", "dimc")
# accelerator -> its mapping file, whose first entry says which ranks are unrolled where
ACCELERATORS = {
    **{f"{name}_like": f"{name}_like" for name in ("ascend", "edge_tpu", "tesla_npu", "tpu")},
    "meta_prototype": "meta_prototype_like",
    **dict.fromkeys(("eyeriss_like", "generic_array_cacti"), "default"),
    **dict.fromkeys(IMC, "default_imc"),
    "gemm_l1": "gemm_l1",
    "gemm_l1_l3": "gemm_l1_l3",
}
NAMES = tuple(ACCELERATORS)
TERMS = ("whole accesses", "first sums", "shared registers", "ports", "compute")
SEEDS = 12  # random mappings that are tried after the best ones
CONFIGS = (
    *SCALESIM_CONVOLUTIONS,
    "configs/tpuv5e_downscale.cfg topologies/conv_nets/test.csv",
    "configs/scale_layout.cfg topologies/GEMM_mnk/gpt2.csv",
    "configs/google_ramulator.cfg topologies/GEMM_mnk/vit_s.csv",
)
GEMM_SIZES, CONV_SIZES = 3, 7  # columns of a layer behind its name
OUTPUTS, MACS = 3, 1 << 19
LAYOUT_HEAD, LAYOUT_COLUMNS = "Layer name", 20
ASKED = {  # what release 3.0 stops without; it changes no cycle of the array
    "architecture_presets": {"ReadRequestBuffer": "512", "WriteRequestBuffer": "512"},
    "layout": {
        f"{one}SRAMBank{key}": value
        for one in ("Ifmap", "Filter")
        for key, value in (("Bandwidth", "10"), ("Num", "10"), ("Port", "2"))
    },
}
EXACT = 1e-9
READ, WRITE = "read", "write"
NN_MACHINE = "kapla_single"
# of the networks that nn_dataflow ships, with a batch; an image's rows fit the columns of the array
NN_LAYERS = (
    *("alex_net:conv3_a 1", "alex_net:conv4_a 4", "alex_net:conv5_a 8", "alex_net:fc1 1", "alex_net:fc2 16"),
    *("vgg_net:conv11 1", "zfnet:conv3 1", "zfnet:conv5 2", "resnet50:conv4_0_b 1", "resnet50:conv5_0_c 4"),
    *(
        "googlenet:inception_4a_5x5 4",
        "googlenet:inception_5b_3x3 2",
        "mlp_l:fc1 64",
        "lstm_phoneme:cell_igate 8",
    ),
)


class Transfer(NamedTuple):
    """One direction of what a memory of ZigZag moves of an operand."""

    is_read: bool
    is_inner: bool  # to or from the memory inside
    elems: float
    bits: int  # of an element
    most: int  # bits of the largest access
    pj: float  # of one such access


def main(peer: str, folder: Path, environments: Path) -> None:
    """Prints the table of a peer."""
    header, names, beside = {
        "zigzag": (
            ("accelerator", "ZigZag pJ", "here pJ", *TERMS, "cycles there", "here"),
            NAMES,
            beside_zigzag,
        ),
        "scalesim": (("config", "layer", "M, N, K", "cycles there", "here"), CONFIGS, beside_scalesim),
        "nn_dataflow": (
            ("layer", "nn_dataflow pJ", "here pJ", *nn_dataflow.TERMS, "cycles there", "here", "REGF here"),
            NN_LAYERS,
            beside_nn_dataflow,
        ),
    }[peer]
    print(f"| {' | '.join(header)} |\n{'|---' * len(header)}|")
    for name in names:
        with tempfile.TemporaryDirectory() as work:
            print(f"| {' | '.join(beside(folder, name, environments, Path(work)))} |", flush=True)


def beside_zigzag(folder: Path, name: str, environments: Path, work: Path) -> Sequence[str]:
    """Cells of an accelerator: the best mapping that goes over, by both."""
    inputs = folder / INPUTS
    hardware, layer = inputs / f"hardware/{name}.yaml", work / "layer.yaml"
    layer.write_text(yaml.safe_dump([one_layer(inputs, name)], sort_keys=False))
    convert.convert("zigzag", [hardware, layer], work, lossy=True)
    arch = machine.load_arch(str(work / "machine.yaml"))
    (e,) = api.catalog.load(str(work / "workload.yaml")).einsums
    why = "no mapping found"
    for cost in candidates(arch, e, spread(inputs / f"mapping/{ACCELERATORS[name]}.yaml", e, arch)):
        try:
            text = convert.written("zigzag", {e.name: cost.mapping}, [e], arch, None)
            (work / "given.yaml").write_text(text)
            theirs = priced(environments, hardware, layer, work)
            if unrolled(theirs["spatial"]) != unrolled(spatial_of(text)):
                raise ValueError(
                    "ZigZag unrolls less, as a register holds too little or a port is too narrow"
                )
        except ValueError as fault:
            why = str(fault).splitlines()[0]
            continue
        return cells(name, theirs, cost, e, arch)
    return f"`{name}.yaml`", "refused", why, *[""] * (len(TERMS) + 2)


def one_layer(inputs: Path, name: str) -> dict[str, Any]:
    """The layer, alone: it reads what nothing writes, and its results have the bits of partial sums."""
    workload, number = ("gemm_layer", 0) if name.startswith("gemm") else (RESNET, CONV2)
    layers = yaml.safe_load((inputs / f"workload/{workload}.yaml").read_text())
    layer: dict[str, Any] = next(one for one in layers if one["id"] == number)
    bits = layer["operand_precision"]
    return layer | {
        "name": "layer",
        "operand_source": dict.fromkeys("IW", number),
        "operand_precision": bits | {"O_final": bits["O"]},
    }


def spread(path: Path, e: Einsum, arch: Arch) -> Constraints:
    """The ranks that a mapping file of ZigZag unrolls, per dimension; idle dimensions take none."""
    first = yaml.safe_load(path.read_text())[0]
    told = first.get("spatial_mapping") or first["spatial_mapping_hint"]
    ranks = {
        str(dim): tuple(
            rank for rank in (str(own).split(",")[0].lower() for own in entries) if rank in e.sizes()
        )
        for dim, entries in told.items()
    }
    return Constraints(tuple((dim, ranks.get(dim, ())) for fanout in arch.fanouts for dim, _ in fanout.dims))


def candidates(arch: Arch, e: Einsum, constraints: Constraints) -> Iterator[EinsumCost]:
    """Mappings, best first; not every one can be said in ZigZag."""
    for objective in ("energy", "latency", "edp"):
        found = optimal(Problem(arch, e, objective), factors="perfect", constraints=constraints)
        yield from found if isinstance(found, list) else ()
    for seed in range(SEEDS):
        found = random(Problem(arch, e, "energy"), Random(seed), mappings=12)
        yield from found if isinstance(found, list) else ()


def priced(environments: Path, hardware: Path, layer: Path, work: Path) -> dict[str, Any]:
    """What the driver prints. Raises ValueError if ZigZag fails."""
    driver = Path(__file__).parent / "peers" / "zigzag_layer_driver.py"
    command = [python_of("zigzag", environments), driver, hardware, layer, work / "given.yaml", work]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=work)
    if done.returncode:
        raise ValueError(f"ZigZag fails: {done.stderr.strip().splitlines()[-1]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def spatial_of(text: str) -> dict[str, dict[str, float]]:
    """Ranks and factors per dimension of a mapping in ZigZag's form."""
    (layer,) = yaml.safe_load(text)
    found: dict[str, dict[str, float]] = {}
    for dim, entries in layer["spatial_mapping"].items():
        for entry in entries:
            rank, n = entry.split(", ")
            found.setdefault(dim, {})[rank] = float(n)
    return found


def unrolled(spatial: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Without what is unrolled once."""
    found = {dim: {rank: n for rank, n in own.items() if n > 1} for dim, own in spatial.items()}
    return {dim: own for dim, own in found.items() if own}


def cells(name: str, theirs: Mapping[str, Any], cost: EinsumCost, e: Einsum, arch: Arch) -> Sequence[str]:
    """Energies by both, the terms of the difference as shares, cycles by both. Raises AssertionError for a
    difference that is no term.
    """
    ours = Counter[tuple[str, str, str]]()
    for count in cost.counts:
        ours[count.level, count.tensor, count.action] += count.elems
    terms, total, memories = Counter[str](), theirs["mac_pj"], 0.0
    for tensor, operand in zigzag_mapping.operand_of(e).items():
        levels = [arch.levels[v] for v in zigzag_mapping.memories_of(e, arch)[operand]]
        for level, (pj, rows) in zip(levels, theirs["memories"][operand], strict=True):
            own = {way: ours[level.name, tensor, way] for way in (READ, WRITE)}
            found = differences(pj, [Transfer(*row) for row in rows], own, level.width_bits, operand)
            here = sum(n * action_pj((level.name, tensor, way), e, arch) for way, n in own.items())
            assert abs(here + sum(found.values()) - pj) <= EXACT * pj, (level.name, tensor, here, pj, found)
            terms.update(found)
            total, memories = total + pj, memories + here
    terms["compute"] = theirs["mac_pj"] - (cost.energy_pj - memories)
    assert terms["compute"] == 0 or name in IMC or abs(terms["compute"]) <= EXACT * total, terms
    assert abs(total - cost.energy_pj - sum(terms.values())) <= EXACT * total, (total, cost.energy_pj, terms)
    shares = [
        f"{100 * terms[term] / total:+.1f} %" if abs(terms[term]) > EXACT * total else "" for term in TERMS
    ]
    there = " + ".join(f"{n:,.0f}" for n in theirs["cycles"])
    return [
        f"`{name}.yaml`",
        f"{total:,.0f}",
        f"{cost.energy_pj:,.0f}",
        *shares,
        there,
        f"{cost.latency_cycles:,.0f}",
    ]


def differences(
    pj: float, transfers: Sequence[Transfer], ours: Mapping[str, float], width: int, operand: str
) -> dict[str, float]:
    """Terms by which ZigZag's energy of a tensor at a memory is above ours, in pJ.

    pj: ZigZag's; ours: elements read and written; width: of an access here. Raises AssertionError for
    elements that differ for another reason than these.
    """
    found = dict.fromkeys(TERMS, 0.0)
    found["whole accesses"] = pj - sum(t.elems * t.bits / t.most * t.pj for t in transfers)
    found["ports"] = sum(t.elems * t.bits * t.pj * (1 / t.most - 1 / width) for t in transfers)
    moved = Counter({(t.is_read, t.is_inner): t.elems for t in transfers})
    # sums that leave less those that come back: visits of the memory that find no sum yet
    first = moved[True, False] + moved[False, True] - ours[WRITE]
    for way, here in ours.items():
        own = [t for t in transfers if t.is_read == (way == READ)]
        there = sum(t.elems for t in own)
        if there == here:
            continue
        is_first = operand == "O" and there - here == first
        assert is_first or (operand != "O" and here % there == 0), (operand, way, there, here)
        one = own[0].bits / width * own[0].pj
        found["first sums" if is_first else "shared registers"] += (there - here) * one
    return found


def beside_scalesim(folder: Path, name: str, environments: Path, work: Path) -> Sequence[str]:
    """Cells of a config: the smallest layer of a topology, cut, in the dataflow of the config by both."""
    config, topology = (folder / "SCALE-Sim" / one for one in name.split())
    head, *rows = [line for line in topology.read_text().splitlines() if line.strip(" ,")]
    layer, sizes = cut([[cell.strip() for cell in row.split(",") if cell.strip()] for row in rows])
    (work / "topology.csv").write_text(f"{head}\n{', '.join([layer, *map(str, sizes)])},\n")
    (work / "layout.csv").write_text(f"{LAYOUT_HEAD}\n{layer}, {'1, ' * LAYOUT_COLUMNS}\n")
    (work / "config.cfg").write_text(switched_off(config.read_text()))
    kind = "gemm" if len(sizes) == GEMM_SIZES else "conv"
    files = [work / name for name in ("config.cfg", "topology.csv", "layout.csv")]
    driver = Path(__file__).parent / "peers" / "scalesim_driver.py"
    command = [python_of("scalesim", environments), driver, *files, work / "out", kind]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=work)
    title = f"`{config.name}`", f"{layer} of `{topology.name}`"
    if done.returncode:
        return *title, "", f"fails: {done.stderr.strip().splitlines()[-1]}", ""
    convert.convert("scalesim", [config], work, lossy=True)
    m, n, k = product(sizes)
    here = on_the_array(machine.load_arch(str(work / "machine.yaml")), m, n, k)
    there = float(done.stdout.splitlines()[-1])
    assert here == there, (title, there, here)
    return *title, f"{m}, {n}, {k}", f"{there:,.0f}", f"{here:,.0f}"


def cut(rows: Sequence[Sequence[str]]) -> tuple[str, list[int]]:
    """The layer of fewest MACs: its name and columns, images cut to OUTPUTS a side, then its largest other
    column halved until it has at most MACS.
    """
    layers = [(row[0], [int(cell) for cell in row[1 : CONV_SIZES + 1]]) for row in rows]
    name, sizes = min(layers, key=lambda one: prod(product(one[1])))
    if len(sizes) >= CONV_SIZES:
        height, width, r, s, *_, stride = sizes
        sizes[:2] = [min(size, own + (OUTPUTS - 1) * stride) for size, own in ((height, r), (width, s))]
    free = (4, 5) if len(sizes) >= CONV_SIZES else (0, 1, 2)
    while prod(product(sizes)) > MACS:
        largest = max(free, key=lambda i: sizes[i])
        sizes[largest] //= 2
    return name, sizes


def product(sizes: Sequence[int]) -> tuple[int, int, int]:
    """M, N and K of a layer as a product of matrices."""
    if len(sizes) == GEMM_SIZES:
        return sizes[0], sizes[1], sizes[2]
    height, width, r, s, c, k, stride = sizes
    return ((height - r) // stride + 1) * ((width - s) // stride + 1), k, c * r * s


def switched_off(text: str) -> str:
    """A config without what ours has no counterpart for, and with what release 3.0 does not do without."""
    found = configparser.ConfigParser(strict=False, interpolation=None)
    found.optionxform = str  # type: ignore[assignment,method-assign]
    found.read_string(text)
    for section, key in scalesim.SWITCHES:
        if not found.has_section(section):
            found.add_section(section)
        found[section][key] = "False"
    found["run_presets"]["InterfaceBandwidth"] = "CALC"
    for section, keys in ASKED.items():
        for key, value in keys.items():
            found[section].setdefault(key, value)
    out = io.StringIO()
    found.write(out)
    return out.getvalue()


def on_the_array(arch: Arch, m: int, n: int, k: int) -> float:
    """Cycles of the MACs: folds, what a fold needs in the SRAMs, the array, time."""
    e = einsum("O[m,n] += I[m,k] * W[k,n]", {"m": m, "n": n, "k": k})
    (grid,) = arch.fanouts
    limits = systolic(e, grid)
    assert limits.inside is not None
    spread = [(rank, size, dim) for (dim, size), (_, (rank,)) in zip(grid.dims, limits.spatial, strict=True)]
    nodes = (
        *(Store("DRAM", tensor) for tensor in "IWO"),
        *(Loop(rank, min(size, e.sizes()[rank])) for rank, size, _ in spread),
        *(Store(level, tensor) for level, tensor in (("IFMAP", "I"), ("FILTER", "W"), ("OFMAP", "O"))),
        *(Loop(rank, 1, dim) for rank, _, dim in spread),
        Store("REG", limits.stationary),
        *(Loop(rank, 1) for rank in limits.inside),
    )
    return dict(run_dataflow(e, arch, NestMapping(nodes)).price.busy_cycles)["MAC"]


def beside_nn_dataflow(_: Path, name: str, environments: Path, work: Path) -> Sequence[str]:
    """Cells of a layer: its schedule by both, REGF as large as the nest needs."""
    units, batch = name.split()
    arch = machine.load_arch(NN_MACHINE)
    driver = Path(__file__).parent / "peers" / "nn_dataflow_schedules.py"
    hardware = nn_dataflow.hardware(arch)
    command = [python_of("nn_dataflow", environments), driver, units, batch, json.dumps(hardware)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=work)
    if done.returncode:
        return name, "", f"fails: {done.stderr.strip().splitlines()[-1]}"
    answer = json.loads(done.stdout)
    (layer,) = answer["layers"]
    (down, across), sizes = layer["strides"], layer["sizes"]
    e = einsum(f"out[m,n,p,q] += in[m,k,{down}*p+r,{across}*q+s] * W[n,k,r,s]", sizes)
    nest = nn_dataflow.nest_of(layer, e, arch)
    cost = einsum_cost(Problem(nn_dataflow.roomy(arch), e, "energy"), nest)
    assert isinstance(cost, EinsumCost), (name, str(nest), cost)
    terms = nn_dataflow.terms_of(layer, nest, e, cost, hardware["pj"])
    there = answer["energy"]
    assert abs(there - cost.energy_pj - sum(terms.values())) <= EXACT * there, (name, there, cost, terms)
    shares = [f"{100 * terms[term] / there:+.1f} %" if terms[term] else "" for term in nn_dataflow.TERMS]
    held = sum(elems for level, _, elems in cost.footprint if level == "REGF") * arch.word_bits // 8
    cycles = f"{layer['time']:,}", f"{cost.latency_cycles:,.0f}"
    return f"`{units}` {batch}", f"{there:,.0f}", f"{cost.energy_pj:,.0f}", *shares, *cycles, f"{held} B"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3] if len(sys.argv) > 3 else temporary))
