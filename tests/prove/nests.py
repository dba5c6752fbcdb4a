"""Closed form == oracle: 10,000 random (operator, machine, mapping) each of five kinds, 0 mismatches."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from dse.nest import Loop, Mapping, Store
from hw.arch import Arch
from tests.nests import random_case
from tests.test_counts import mismatch
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
    "dense": (DENSE, lambda *_: True), "windowed": (WINDOWED, lambda *_: True), "ragged": (DENSE + WINDOWED, ragged),
    "multi-level bypass": (DENSE + WINDOWED, bypassed), "sparse": (("spmm", "spmv"), lambda *_: True)}


def main() -> int:
    wrong = 0
    for name, (kinds, wanted) in KINDS.items():
        found, seed = 0, 10**9
        while found < CASES:
            seed += 1
            if wanted(*random_case(Random(seed), kinds)):
                found += 1
                line = mismatch(seed, kinds)
                wrong += bool(line)
                if line and wrong <= SHOWN:
                    print(line)
        print(f"  {name}: {found} nests, {wrong} mismatches so far", flush=True)
    return int(wrong > 0)
