"""Small designs in the formats of other tools, and random mappings that go there and back."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import yaml

from dse.exchange import accelforge_mapping, convert, documents, timeloop_mapping, zigzag_mapping
from dse.exchange.notes import Notes, Unreadable
from dse.mapping.nest import Loop, Mapping, faults
from dse.mapping.schedule import parse_schedule
from dse.sim.einsum.evaluate import EinsumCost, Problem, einsum_cost
from hw.arch import Arch
from tests import nests
from workloads.einsum import Einsum

Back = Callable[[Einsum, Arch, Mapping, Notes], Mapping]  # a mapping to a peer's form and back
KINDS = ("gemm", "bmm", "conv", "conv1d", "depthwise", "grouped", "pool", "add")

TIMELOOP_ARCH = """
architecture:
  version: 0.4
  nodes:
  - !Container
    name: System
    attributes: {technology: 45nm, global_cycle_seconds: 2e-9}
  - !Component
    name: DRAM
    class: DRAM
    attributes: {type: LPDDR4, width: 64, datawidth: 8}
  - !Component
    name: GlobalBuffer
    class: smartbuffer_SRAM
    attributes: {depth: 512 * 4, width: 64, datawidth: 8, n_banks: 2, read_bandwidth: 16, write_bandwidth: 16}
    constraints:
      dataspace: {keep: [Inputs, Outputs], bypass: [Weights]}
  - !Container
    name: PE
    spatial: {meshX: 8}
  - !Parallel
    nodes:
    - !Component
      name: WeightReg
      class: storage
      subclass: regfile
      attributes: {depth: 4, width: 16, datawidth: 8}
      constraints:
        dataspace: {keep: [Weights]}
    - !Component
      name: PsumReg
      class: storage
      subclass: regfile
      attributes: {depth: 8, width: datawidth, datawidth: 16}
      constraints:
        dataspace: {keep: [Outputs]}
    - !Nothing {constraints: {dataspace: {keep: [Inputs]}}}
  - !Component
    name: MAC
    class: intmac
    attributes: {multiplier_width: 8, adder_width: 16}
"""

TIMELOOP_PROBLEM = """
problem:
  version: 0.4
  shape:
    name: Conv1D
    dimensions: [C, M, R, P]
    coefficients:
    - {name: stride, default: 1}
    data_spaces:
    - name: Weights
      projection: [[[C]], [[M]], [[R]]]
    - name: Inputs
      projection: [[[C]], [[R], [P, stride]]]
    - name: Outputs
      projection: [[[M]], [[P]]]
      read_write: True
  instance: {C: 8, M: 16, R: 3, P: 10, stride: 2}
"""

TIMELOOP_MAPPING = """
mapping:
- {target: DRAM, type: temporal, factors: M=2 P=5, permutation: PM}
- {target: GlobalBuffer, type: dataspace, keep: [Inputs, Outputs], bypass: [Weights]}
- {target: GlobalBuffer, type: temporal, factors: [C=2, P=2, M=2], permutation: [C, P, M]}
- {target: PE, type: spatial, factors: C4 M2, permutation: CM, split: 2}
- {target: WeightReg, type: temporal, factors: R=3 M=2, permutation: RM}
"""

ZIGZAG_MACHINE = """
name: small
memories:
  reg:
    size: 128
    r_cost: 0.5
    w_cost: 0.6
    area: 0
    latency: 1
    operands: [O]
    ports:
    - {name: r, type: read, bandwidth_min: 16, bandwidth_max: 16, allocation: ["O, tl", "O, th"]}
    - {name: w, type: write, bandwidth_min: 16, bandwidth_max: 16, allocation: ["O, fh", "O, fl"]}
    served_dimensions: []
  sram:
    size: 65536
    r_cost: 10
    w_cost: 12
    area: 1
    latency: 1
    operands: [I1, I2, O]
    ports:
    - {name: rw, type: read_write, bandwidth_min: 64, bandwidth_max: 128, allocation: ["I1, tl"]}
    served_dimensions: [D1, D2]
  dram:
    size: 10000000000
    r_cost: 700
    w_cost: 750
    area: 0
    latency: 1
    operands: [I1, I2, O]
    ports:
    - {name: rw, type: read_write, bandwidth_min: 64, bandwidth_max: 64, allocation: ["I1, tl"]}
    served_dimensions: [D1, D2]
operational_array: {unit_energy: 0.04, unit_area: 1, dimensions: [D1, D2], sizes: [4, 4]}
"""

ZIGZAG_LAYERS = """
- id: 0
  name: conv
  operator_type: Conv
  equation: O[b][k][oy]+=W[k][c][fy]*I[b][c][iy]
  dimension_relations: [iy=2*oy+1*fy]
  loop_dims: [B, K, C, OY, FY]
  loop_sizes: [1, 8, 4, 6, 3]
  operand_precision: {W: 8, I: 8, O: 16, O_final: 16}
  operand_source: {I: 0, W: 0}
"""

ACCELFORGE = """
arch:
  nodes:
  - !Memory
    name: MainMemory
    size: inf
    leak_power: 0
    area: 0
    tensors: {keep: ~Intermediates, may_keep: All}
    actions:
    - {name: read, energy: 7.03e-12, throughput: 8 * 38.4e9}
    - {name: write, energy: 7.03e-12, throughput: 8 * 38.4e9}
  - !Memory
    name: GlobalBuffer
    size: 1024*8*8
    leak_power: 1e-3
    area: 1e-6
    tensors: {keep: ~MainMemory, may_keep: All}
    actions:
    - {name: read, energy: 0.25e-12, bits_per_action: 1}
    - {name: write, energy: 0.5e-12, bits_per_action: 1}
  - !Container
    name: PE
    spatial: [{name: X, fanout: 4}]
  - !Memory
    name: Register
    size: 16
    tensors: {keep: output}
    leak_power: 0
    area: 0
    actions: [{name: read, energy: 0}, {name: write, energy: 0}]
  - !Compute
    name: MAC
    leak_power: 0
    area: 0
    actions: [{name: compute, energy: 0.08e-12, throughput: 1e9}]
workload:
  iteration_space_shape: {m: 0 <= m < 8, n0: 0 <= n0 < 6, n1: 0 <= n1 < 4, n2: 0 <= n2 < 5}
  bits_per_value: {All: 8}
  einsums:
  - name: Matmul0
    tensor_accesses:
    - {name: T0, projection: [m, n0]}
    - {name: W0, projection: [n0, n1]}
    - {name: T1, projection: [m, n1], output: True}
  - name: Matmul1
    tensor_accesses:
    - {name: T1, projection: [m, n1]}
    - {name: W1, projection: [n1, n2]}
    - {name: T2, projection: [m, n2], output: True}
mapping:
  nodes:
  - !Storage {tensors: [T0, W0, W1, T2, T1], component: MainMemory}
  - !Sequential
    nodes:
    - !Nested
      nodes:
      - !Storage {tensors: [T0, W0, T1], component: GlobalBuffer}
      - !Temporal {rank_variable: m, tile_shape: 1}
      - !Spatial {rank_variable: n1, tile_shape: 1, component: PE, name: X}
      - !Storage {tensors: [T1], component: Register}
      - !Temporal {rank_variable: n0, tile_shape: 1}
      - !Compute {einsum: Matmul0, component: MAC}
    - !Nested
      nodes:
      - !Storage {tensors: [T1, W1, T2], component: GlobalBuffer}
      - !Temporal {rank_variable: m, tile_shape: 1}
      - !Temporal {rank_variable: n2, tile_shape: 1}
      - !Storage {tensors: [T2], component: Register}
      - !Temporal {rank_variable: n1, tile_shape: 1}
      - !Compute {einsum: Matmul1, component: MAC}
"""


DESIGNS = {
    "timeloop": (TIMELOOP_ARCH, TIMELOOP_PROBLEM, TIMELOOP_MAPPING),
    "zigzag": (ZIGZAG_MACHINE, ZIGZAG_LAYERS),
    "accelforge": (ACCELFORGE,),
}
JUNK = (
    "",
    "null",
    "-1",
    "0",
    "[]",
    "{}",
    "abc",
    "[1, [2]]",
    "{a: 1}",
    "1e400",
    ".nan",
    "true",
    "[null]",
    "9" * 20,
)
VALUE = re.compile(r"(:|-|\[|,) ?([^\s,\[\]{}:]+|\[[^\[\]]*\]|\{[^{}]*\})(?=[\s,\]}]|$)")


def damaged(rng: Random, text: str) -> str:
    """A file with a line less, or another value somewhere."""
    lines = text.splitlines()
    i = rng.randrange(len(lines))
    if rng.random() < 0.2:
        del lines[i]
    elif values := [*VALUE.finditer(lines[i])]:
        one = rng.choice(values)
        lines[i] = lines[i][: one.start(2)] + rng.choice(JUNK) + lines[i][one.end(2) :]
    return "\n".join(lines)


def random_case(rng: Random, all_held: bool = False) -> tuple[Einsum, Arch, Mapping, EinsumCost] | None:
    """A mapping that is well-formed and fits; None where the one drawn does not.

    all_held: mostly with extents that divide, on machines that no tensor may bypass, as ZigZag has them
    """
    e, arch = nests.random_einsum(rng, KINDS), nests.random_arch(rng)
    if all_held:
        e = replace(e, extents=tuple((rank, rng.choice([1, 2, 4, 8])) for rank, _ in e.extents))
        held = tuple(replace(level, bypass=v == 0 and level.bypass) for v, level in enumerate(arch.levels))
        arch = numbered(rng, replace(arch, levels=held))
    mapping = nests.random_mapping(rng, e, arch)
    cost = None if faults(mapping, e, arch) else einsum_cost(Problem(arch, e, "energy"), mapping)
    return (e, arch, mapping, cost) if isinstance(cost, EinsumCost) else None


def numbered(rng: Random, arch: Arch) -> Arch:
    """Every other time with dimensions D1, D2, ... as machines from ZigZag have them, in any order."""
    count = sum(len(fanout.dims) for fanout in arch.fanouts)
    if rng.random() < 0.5:
        return arch
    names = iter(rng.sample([f"D{i + 1}" for i in range(count)], count))
    fanouts = (
        replace(fanout, dims=tuple((next(names), n) for _, n in fanout.dims)) for fanout in arch.fanouts
    )
    return replace(arch, fanouts=tuple(fanouts))


def unrolled(mapping: Mapping, e: Einsum) -> dict[tuple[str, str], int]:
    """PEs by rank and dimension."""
    size, found = e.sizes(), dict[tuple[str, str], int]()
    for node in mapping.nodes:
        if isinstance(node, Loop):
            n, size[node.rank] = -(-size[node.rank] // node.tile), node.tile
            if node.over and n > 1:
                found[node.rank, node.over] = n * found.get((node.rank, node.over), 1)
    return found


def timeloop_back(e: Einsum, arch: Arch, mapping: Mapping, notes: Notes) -> Mapping:
    data = yaml.safe_load(yaml.safe_dump(timeloop_mapping.write("own", mapping, e, arch, notes)))
    return timeloop_mapping.read("own", data, timeloop_mapping.parts_of(arch), e, arch, Notes())


def zigzag_back(e: Einsum, arch: Arch, mapping: Mapping, notes: Notes) -> Mapping:
    data = yaml.safe_load(yaml.safe_dump(zigzag_mapping.write("own", mapping, e, arch, notes)))
    return zigzag_mapping.read("own", data, e, arch)


def accelforge_back(e: Einsum, arch: Arch, mapping: Mapping, notes: Notes) -> Mapping:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mapping.yaml"
        path.write_text(convert.written("accelforge", {e.name: mapping}, [e], arch, None))
        text = accelforge_mapping.read("own", documents.read(path, notes)["mapping"], {}, notes)
    return parse_schedule(text).segments[0].branches[0].mapping


def outcome(back: Back, case: tuple[Einsum, Arch, Mapping, EinsumCost]) -> tuple[str, Mapping | None]:
    """What becomes of a mapping that goes to a peer and comes back, and what came back: "same" cost, "lost"
    (another cost, and said so), "refused"; "WRONG": another cost and no word of it, or other ranks unrolled.
    """
    e, arch, mapping, cost = case
    notes = Notes()
    try:
        found = back(e, arch, mapping, notes)
    except Unreadable:
        return "refused", None
    if unrolled(found, e) != unrolled(mapping, e):
        return "WRONG", found
    same = costs_the_same(cost, einsum_cost(Problem(arch, e, "energy"), found))
    return "same" if same else "lost" if notes.losses() else "WRONG", found


def costs_the_same(one: EinsumCost, other: object) -> bool:
    """Whether energy and cycles are equal, but for rounding."""
    return isinstance(other, EinsumCost) and all(
        abs(a - b) <= 1e-9 * a
        for a, b in ((one.energy_pj, other.energy_pj), (one.latency_cycles, other.latency_cycles))
    )
