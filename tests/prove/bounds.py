"""Lower bounds are never above the cost of a mapping: 100,000 random ones, half of them of rich nests."""

from __future__ import annotations

from random import Random

from dse.sim.einsum import bounds
from dse.sim.einsum.cost import price_mapping
from tests.nests import random_case, rich_case

MAPPINGS = 100_000


def main() -> int:
    wrong = 0
    for seed in range(MAPPINGS):
        e, arch, mapping = (rich_case if seed % 2 else random_case)(Random(seed))
        p = price_mapping(mapping, e, arch)
        if bounds.energy_pj(e, arch) > p.energy_pj * (1 + 1e-9) or bounds.latency_cycles(
            e, arch
        ) > p.latency_cycles * (1 + 1e-9):
            wrong += 1
            print(f"  seed {seed}: bound above the cost\n{e}\n{mapping}")
    print(f"  {MAPPINGS} mappings, {wrong} bounds above the cost")
    return int(wrong > 0)
