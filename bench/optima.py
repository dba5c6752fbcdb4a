"""How many different optimal mappings random machines have: what a frontier of a range of machines would have
to hold at least.

    python -m bench.optima [--machines 600] [--einsums 4] [--seed 1]

Machines: `edge_array` with arrays of 4 to 64 by 4 to 64, buffers of 32 to 2,048 KiB by 1 KiB, registers of 32
to 1,024 B by 2 B, five kinds of DRAM. Einsums of ResNet-50, for energy. *seen*: different mappings among the
first so many machines. *at least*: Chao's estimate of how many there are in all, from those seen once and
twice (Scandinavian Journal of Statistics 11, 1984), which is a lower bound. The second table: machines of one
array, with buffers of one size, in all prices, rates and clocks of `studies/edge_cnn.yaml`.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Sequence
from itertools import product
from random import Random

from dse.frontend import tables
from dse.mapper.exact.optimal import optimal
from dse.mapping.nest import Infeasible
from dse.sim.einsum.evaluate import Problem
from hw import machine, space
from hw.arch import Arch
from workloads import catalog
from workloads.einsum import Einsum
from workloads.graph import unique

SIZES = {
    "array.x": list(range(4, 65)),
    "array.y": list(range(4, 65)),
    "gbuf.capacity": {"from": "32 KiB", "to": "2048 KiB", "step": "1 KiB"},
    "regf.capacity": {"from": "32 B", "to": "1024 B", "step": "2 B"},
    "dram.kind": ["ddr3", "ddr4", "lpddr4", "lpddr5", "gddr6"],
}
PRICES = {
    "dram.kind": ["ddr3", "ddr4", "lpddr4", "lpddr5", "gddr6"],
    "dram.channels": [1, 2, 4],
    "node_nm": [22, 32, 45],
    "cell": ["lop", "hp"],
    "clock_mhz": list(range(100, 801, 100)),
}


def drawn(axes: dict[str, object], many: int, rng: Random) -> list[Arch]:
    whole = space.parse(machine.load("edge_array"), axes)
    numbers = (rng.randrange(whole.size) for _ in iter(int, 1))
    built = (arch for number in numbers if isinstance(arch := space.decode(whole, number), Arch))
    return [arch for _, arch in zip(range(many), built, strict=False)]


def row(e: Einsum, arches: Sequence[Arch], marks: Sequence[int]) -> tuple[str, ...]:
    seen, told, begun = Counter[str](), list[str](), time.process_time()
    for n, arch in enumerate(arches, 1):
        found = optimal(Problem(arch, e, "energy"), allowed_gap=0.01)
        seen[found.einsum if isinstance(found, Infeasible) else str(found[0].mapping)] += 1
        if n in marks:
            told.append(f"{len(seen)}")
    once, twice = (sum(often == n for often in seen.values()) for n in (1, 2))
    return (
        e.name,
        *told,
        f"{len(seen) + once * (once - 1) / (2 * (twice + 1)):.0f}",
        f"{1e3 * (time.process_time() - begun) / len(arches):.1f}",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--machines", type=int, default=600)
    parser.add_argument("--einsums", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    groups = unique(catalog.load("resnet50"))
    wanted = [groups[i * len(groups) // given.einsums].einsum for i in range(given.einsums)]
    marks = [given.machines // part for part in (8, 4, 2, 1)]
    for title, axes in (
        ("any array and any buffers", SIZES),
        (f"one array and buffers, {len(list(product(*PRICES.values())))} prices and rates", PRICES),
    ):
        arches = drawn(axes, given.machines, Random(given.seed))
        tables.print_table(
            ("einsum", *(f"seen, {n}" for n in marks), "at least", "CPU ms"),
            [row(e, arches, marks) for e in wanted],
            title,
        )


if __name__ == "__main__":
    main()
