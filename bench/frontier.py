"""Frontiers: what building one costs, how large it is, and how fast it prices machines. CPU seconds, compile excluded.

python -m bench.frontier [NETWORK] [EINSUM...]     default: all unique einsums of resnet50, machines of studies/edge_cnn.yaml
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from dse.dataflow import frontier
from dse.dataflow.family import family
from dse.study import study as studies
from hw.arch import Arch
from hw.space import decode
from workloads import catalog
from workloads.graph import unique

STUDY = Path(__file__).parents[1] / "studies" / "edge_cnn.yaml"
MACHINES = 100_000  # distinct ones that are priced


def sampled() -> list[Arch]:
    """Machines of the study, evenly over its space."""
    space = studies.load(STUDY).space
    step = max(space.size // MACHINES, 1)
    return [arch for i in range(0, space.size, step) if isinstance(arch := decode(space, i), Arch)][:MACHINES]


def lines(network: str, wanted: Sequence[str]) -> Iterator[str]:
    archs = sampled()
    shared = family(archs)
    yield (f"{len(archs)} machines: {len(shared.shapes)} array sizes, rooms {[len(rooms) for rooms in shared.rooms]}, shares {shared.shares}, "
           f"ratios of prices {shared.ratios}")
    spent, asked = 0.0, [frontier.asked(shared, arch) for arch in archs]
    small = catalog.load("gemm:m=4,n=4,k=4").einsums[0]
    frontier.prices(frontier.solved(small, shared), asked[:1], frontier.rates(asked[:1], archs[:1], small), "energy")  # compiles
    for group in unique(catalog.load(network)):
        if wanted and group.names[0] not in wanted:
            continue
        e, began = group.einsum, time.process_time()
        own = frontier.solved(e, shared)
        built = time.process_time() - began
        spent += built
        lists = [len(frontier.members(own, number)) for number in {machine.cell for machine in asked}]
        rates, began = frontier.rates(asked, archs, e), time.process_time()
        best, _ = frontier.prices(own, asked, rates, "energy")
        rate = len(archs) / (time.process_time() - began)
        yield (f"{group.names[0]} {' '.join(f'{rank}{n}' for rank, n in e.extents)}: built in {built:.2f} s, {len(own.counts)} mappings of "
               f"{own.rows.shape[1]} columns, {min(lists)} to {max(lists)} per cell, {rate / 1e6:.2f} M prices/s, {(best >= 0).mean():.0%} feasible")
    yield f"{network}: {spent:.1f} CPU s in all"


def main(arguments: list[str]) -> None:
    for line in lines(*(arguments[:1] or ["resnet50"]), arguments[1:]):
        print(line, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
