"""Closed form == oracle, counts, footprints and energy: 10,000 random (operator, machine, mapping) each of
thirteen kinds, 0 mismatches; and 2,000 random machine files (MACHINES) with widths, ports, first words,
memories that PEs share, PEs that do not reduce, PEs in lockstep, supply voltages, rules, gates, operands and
results in every format, and formats of single memories, these with their cycles.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from math import inf, isclose
from random import Random

from dse.mapping.nest import Loop, Mapping, Store, faults, role
from dse.sim.counts.counts import count
from dse.sim.einsum.cost import price
from hw import machine
from hw.arch import ROLES, Arch
from tests.nests import (
    RESULTS,
    RICH,
    compressed_result,
    in_a_format,
    in_other_formats,
    packed,
    random_case,
    rich_case,
    rich_einsum,
    rich_mapping,
)
from tests.oracle import port_bits, walk
from tests.test_counts import mismatch, unlike
from workloads.einsum import Einsum

CASES = 10_000
MACHINES = 2_000
SHOWN = 3
DENSE = ("gemm", "bmm", "add", "copy")
WINDOWED = ("conv", "conv1d", "depthwise", "grouped", "pool", "transposed")
Wanted = Callable[[Einsum, Arch, Mapping], bool]


def ragged(e: Einsum, arch: Arch, mapping: Mapping) -> bool:
    left = e.sizes()
    for node in mapping.nodes:
        if isinstance(node, Loop):
            if left[node.rank] % node.tile:
                return True
            left[node.rank] = node.tile
    return False


def bypassed(e: Einsum, arch: Arch, mapping: Mapping) -> bool:
    held = sum(isinstance(node, Store) for node in mapping.nodes)
    return len(arch.levels) >= 3 and held < len(arch.levels) * len(e.tensors())


KINDS: dict[str, tuple[tuple[str, ...], Wanted]] = {
    "dense": (DENSE, lambda *_: True),
    "windowed": (WINDOWED, lambda *_: True),
    "ragged": (DENSE + WINDOWED, ragged),
    "multi-level bypass": (DENSE + WINDOWED, bypassed),
    "sparse": (("spmm", "spmv"), lambda *_: True),
}


def lanes_of(mapping: Mapping) -> list[Loop]:
    return [node for node in mapping.nodes if isinstance(node, Loop) and node.over]


def between(e: Einsum, arch: Arch, mapping: Mapping) -> bool:
    """A loop in time between two in space of one fan-out."""
    array = {name: f.name for f in arch.fanouts for name, _ in f.dims}
    open_, timed = "", False
    for node in mapping.nodes:
        if isinstance(node, Store):
            open_ = ""
        elif node.over:
            if timed and array[node.over] == open_:
                return True
            open_, timed = array[node.over], False
        else:
            timed = True
    return False


def crowded(e: Einsum, arch: Arch, mapping: Mapping) -> bool:
    """Several ranks on one fan-out dimension."""
    return len({(loop.rank, loop.over) for loop in lanes_of(mapping)}) > len(
        {loop.over for loop in lanes_of(mapping)}
    )


RICH_KINDS: dict[str, Wanted] = {
    "holds": lambda e, arch, mapping: any(len(level.may_keep) < 3 for level in arch.levels),
    "bits per tensor": lambda e, arch, mapping: any(p.bits for p in e.tensors()),
    "several ranks on a dimension": crowded,
    "loops between spatial ones": between,
    "three dimensions": lambda e, arch, mapping: len({loop.over for loop in lanes_of(mapping)}) > 2,
    "compressed operands": lambda e, arch, mapping: any(p.format != "dense" for p in e.inputs),
    "compressed outputs": lambda e, arch, mapping: e.output.format != "dense",
    "extents beyond 9": lambda e, arch, mapping: max(n for _, n in e.extents) > 9,
}


def machine_file(rng: Random) -> dict[str, object]:
    """A random machine file; some are faulty."""
    sizes = {"x": rng.randint(2, 4), "y": rng.randint(2, 3)}

    def memory(**more: object) -> dict[str, object]:
        """With keys that machines had not before."""
        keys = {
            "latency_ns": rng.choice([1, 4.5, 30]),
            "bits": {rng.choice(ROLES): rng.choice([4, 16, 24, 32])},
            "ports": rng.choice(
                [
                    "separate",
                    [{"read": [of], "write": [of], "times": rng.choice([1, 2])} for of in ROLES],
                    [{"read": ["input", "weight"]}, {"read": ["output"], "write": list(ROLES)}],
                    [
                        {"read": list(ROLES), "write": ["input", "weight", "output"], "drain": ["output"]},
                        {"fill": ["output"], "times": rng.choice([1, 2])},
                    ],
                    [{"read": list(ROLES), "write": list(ROLES)}, {"drain": ["output"]}],
                ]
            ),
            "double_buffer": True,
            "skip_first_read": False,
        }
        if more["memory"] == "dram":
            del keys["bits"], keys["double_buffer"]
            if any("drain" in one for one in keys["ports"] if isinstance(one, dict)):  # type: ignore[attr-defined]
                del keys["ports"]
        if "may_keep" in more:
            del keys["ports"]
        return more | {key: value for key, value in keys.items() if rng.random() < 0.3}

    inside = [
        memory(
            memory=name,
            kind="register",
            capacity="64 B",
            width_bits=8,
            may_keep=[of],
            **({"along": [rng.choice("xy")]} if rng.random() < 0.5 else {}),
        )
        for name, of in zip(("ireg", "wreg", "acc"), ROLES, strict=True)
        if rng.random() < 0.6
    ]
    found: dict[str, object] = {
        "name": "random",
        "clock_mhz": rng.choice([100, 200, 400]),
        "node_nm": rng.choice([22, 32, 45]),
        "overlap": rng.choice(["buffered", "free"]),
        "nodes": [
            memory(memory="dram", kind="lpddr4", width_bits=64),
            memory(memory="gbuf", capacity="8 KiB", width_bits=rng.choice([32, 64])),
            {
                "array": "pe",
                "dims": sizes,
                "multicast": [dim for dim in sizes if rng.random() < 0.6],
                "reduce": [dim for dim in sizes if rng.random() < 0.5],
            },
            *inside,
            {
                "compute": "mac",
                "kind": "int8",
                "gates": rng.choice([[], [], ["input"], ["input", "weight"]]),
                "lockstep": rng.random() < 0.5,
            },
        ],
    }
    if rng.random() < 0.5:
        found["vdd"] = rng.choice(["least", 0.55, 0.6, 0.7])
    if rng.random() < 0.3:
        found["mapping"] = [{"at": "gbuf", "keep": [rng.choice(ROLES)]}]
    return found


def in_groups(rng: Random, e: Einsum) -> Einsum:
    """The einsum with one operand in N:M, where rows of one are whole groups, and no other zeros."""
    sizes, long = e.sizes(), rng.choice([2, 2, 3, 4])
    dense = [replace(p, format="dense", density=1.0, index_bits=0, pointer_bits=0) for p in e.inputs]
    may = [
        i
        for i, p in enumerate(dense)
        if len(p.dims[-1].terms) == 1 and not (sizes[p.dims[-1].ranks()[0]] % long or p.dims[-1].size % long)
    ]
    if not may:
        return e
    i, kept = rng.choice(may), rng.randrange(1, long)
    dense[i] = replace(dense[i], format=f"{kept}:{long}", density=kept / long)
    plain = replace(e.output, format="dense", density=1.0, index_bits=0, pointer_bits=0)
    return replace(e, inputs=tuple(dense), output=plain)


def machine_case(seed: int) -> tuple[Einsum, Arch, Mapping]:
    """A random einsum and nest on the machine of a file."""
    rng = Random(f"machines/{seed}")
    while True:
        spec, lines = machine.parse(machine_file(rng), "random")
        arch = None if lines else machine.arch(spec)
        e = rich_einsum(rng, rng.choice(RICH))
        if isinstance(arch, Arch) and arch.compute.lockstep:
            e = in_groups(rng, e)
        elif e.inputs[0].dims and rng.random() < 0.5:
            e = in_a_format(rng, e)
        elif rng.random() < 0.3:
            e = compressed_result(rng, rng.choice([*RESULTS]), 5)
            e = in_other_formats(rng, e) if rng.random() < 0.7 else e
        if not isinstance(arch, Arch):
            continue
        has_zeros = any(p.density < 1 for p in e.inputs)
        if has_zeros and not arch.compute.lockstep and rng.random() < 0.5:
            arch = packed(arch, e, rng)
        own = {role(e, p.tensor) for p in e.tensors() if p.format != "dense"}
        if any(own & {*dict(level.bits)} for level in arch.levels):
            continue
        mapping = rich_mapping(rng, e, arch)
        if e.points() <= 4000 and not faults(mapping, e, arch):
            return e, arch, mapping


def slower(seed: int, e: Einsum, arch: Arch, mapping: Mapping) -> str:
    """Empty if the cycles are those of the walk where fills overlap freely: the busiest port or MAC unit, and
    a first word of each memory at which operands stand.
    """
    free = replace(arch, overlap="free")
    ports, levels = port_bits(walk(mapping, e, free), e, free), {level.name: level for level in free.levels}
    busy = [
        n / levels[name].width_bits / levels[name].bandwidth
        for (name, _), n in ports.items()
        if name in levels and levels[name].bandwidth < inf
    ]
    gated = 1.0
    for p in e.inputs:
        gated *= p.density if role(e, p.tensor) in arch.compute.gates else 1.0
    busy.append(ports["MAC", "compute"] / gated / arch.compute.ops_per_cycle)
    stands = {
        node.level for node in mapping.nodes if isinstance(node, Store) and node.tensor != e.output.tensor
    }
    wait = sum(levels[name].latency_ns for name in stands) * arch.clock_ghz
    ours = price(count(mapping, e, free), e, free).latency_cycles
    return (
        ""
        if isclose(ours, max(busy) + wait, rel_tol=1e-9)
        else f"{seed}: {ours} cycles, not {max(busy)}, {wait}"
    )


def main() -> int:
    cases = int(os.environ.get("CASES", CASES))
    wrong = 0
    machines = int(os.environ.get("MACHINES", MACHINES))
    for seed in range(machines):
        case = machine_case(seed)
        line = unlike(f"machine {seed}", *case) or slower(seed, *case)
        wrong += bool(line)
        if line and wrong <= SHOWN:
            print(line)
    print(f"  machine files: {machines} nests, {wrong} mismatches so far", flush=True)
    for name, (kinds, wanted) in KINDS.items():
        found, seed = 0, 10**9
        while found < cases:
            seed += 1
            if wanted(*random_case(Random(seed), kinds)):
                found += 1
                line = mismatch(seed, kinds)
                wrong += bool(line)
                if line and wrong <= SHOWN:
                    print(line)
        print(f"  {name}: {found} nests, {wrong} mismatches so far", flush=True)
    for name, wanted in RICH_KINDS.items():
        found, seed = 0, 2 * 10**9
        while found < cases:
            seed += 1
            case = rich_case(Random(seed))
            if wanted(*case):
                found += 1
                line = unlike(f"rich seed {seed}", *case)
                wrong += bool(line)
                if line and wrong <= SHOWN:
                    print(line)
        print(f"  {name}: {found} nests, {wrong} mismatches so far", flush=True)
    return int(wrong > 0)
