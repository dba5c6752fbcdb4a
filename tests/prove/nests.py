"""Closed form == oracle, counts, footprints and energy: 10,000 random (operator, machine, mapping) each of
thirteen kinds, 0 mismatches.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from random import Random

from dse.mapping.nest import Loop, Mapping, Store
from hw.arch import Arch
from tests.nests import random_case, rich_case
from tests.test_counts import mismatch, unlike
from workloads.einsum import Einsum

CASES = 10_000
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


def main() -> int:
    cases = int(os.environ.get("CASES", CASES))
    wrong = 0
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
