"""Figures of chips and RTL that their makers published, beside ours.

python -m bench.silicon [NAME ...]      eyeriss, nvdla, tpu, gemmini (none: all): per published figure ours
                                        and the error

Machines are those of hw/machines with the sizes of each published configuration; nothing is fitted. Sources:

eyeriss  Chen, Krishna, Emer, Sze, IEEE JSSC 52(1), 2017, abstract (measured, 65 nm): frames per second, power
         of the chip, DRAM accesses (16 bit) per MAC of the convolutions of AlexNet (batch 4) and VGG-16 (3).
         The chip compresses activations in DRAM and gates zeros; here all are dense.
nvdla    NVDLA Primer, "Example Area and Performance with NVDLA" (nvdla.org/primer.html): the maker's
         estimates, 1 GHz, int8 ResNet-50, silicon cell area at 28 nm. Atomic C and K by its spec files.
tpu      Jouppi et al., ISCA 2017: MLP0 (5 layers, 20 M weights, batch 200) and MLP1 (4 layers, 5 M weights,
         batch 168) of Table 1; TOPS of Table 3 (measured). 256 x 256 int8 MACs at 700 MHz, 34 GB/s of weight
         memory, 24 MiB of unified buffer. Layers are taken as equal squares.
gemmini  github.com/ucb-bar/gemmini, pull request 69 (2021): ResNet-50, batch 4, cycles of the RTL.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from dse.mapper.exact.optimal import optimal
from dse.mapping.constraints import dataflow
from dse.sim.einsum.evaluate import EinsumCost, Problem
from dse.solve.options import SolverOptions
from dse.solve.solve import solve
from hw import machine, space
from hw.arch import Arch
from workloads import catalog, text
from workloads.einsum import Einsum
from workloads.graph import Workload

GAP = 0.05  # of the searches


class Figure(NamedTuple):
    """One published figure and ours."""

    what: str
    published: float
    ours: float
    unit: str


def built(name: str, **values: Any) -> Arch:
    """Returns a machine of hw/machines with other values, keys with _ for the dot."""
    spec = machine.load(name)
    return machine.arch(
        space.override(spec, {key.replace("__", "."): value for key, value in values.items()})
    )


def convolutions(workload: Workload) -> list[tuple[Einsum, int]]:
    """Returns the convolutions of a network, with how often each runs."""
    return [(e, n) for e, n in workload.runs() if e.kind == "mac" and e.inputs[0].partial_ranks()]


def mapped(e: Einsum, arch: Arch, objective: str, constrained: bool = False) -> EinsumCost:
    """Returns the cost of an einsum's best mapping within GAP; constrained: row-stationary."""
    rules = dataflow("row_stationary" if constrained else "free", e, arch)
    found = optimal(Problem(arch, e, objective), constraints=rules, allowed_gap=GAP)
    assert isinstance(found, list), found
    return found[0]


def eyeriss() -> Iterator[Figure]:
    arch = built("eyeriss")
    for name, batch, frames, mw, accesses in (
        ("alexnet:batch=4,image=227", 4, 35.0, 278.0, 0.0029),
        ("vgg16:batch=3", 3, 0.7, 236.0, 0.0035),
    ):
        cycles = chip_pj = words = macs = 0.0
        for e, n in convolutions(catalog.load(name)):
            cost = mapped(e, arch, "energy", constrained=True)
            cycles += n * cost.latency_cycles
            chip_pj += n * sum(part.energy_pj for part in cost.price.parts if part.level != "DRAM")
            words += n * sum(row.elems for row in cost.counts if row.level == "DRAM")
            macs += n * e.macs()
        net = name.partition(":")[0]
        seconds = cycles / arch.clock_ghz / 1e9
        yield Figure(f"{net}: frames per second", frames, batch / seconds, "1/s")
        yield Figure(f"{net}: power of the chip", mw, chip_pj / 1e9 / seconds, "mW")
        yield Figure(f"{net}: DRAM accesses per MAC", accesses, words / macs, "")


# MACs, atomic C and K, buffer, DRAM, 28 nm area, frames per second
NVDLA = (
    (64, 32, "512 KiB", "20 GB/s", 5.5, 269.0),
    (32, 32, "256 KiB", "15 GB/s", 3.0, 153.0),
    (32, 16, "256 KiB", "10 GB/s", 2.3, 93.0),
    (32, 8, "256 KiB", "5 GB/s", 1.7, 46.0),
    (16, 8, "256 KiB", "2 GB/s", 1.4, 20.0),
    (8, 8, "128 KiB", "1 GB/s", 0.91, 7.3),
    (8, 4, "128 KiB", "500 MB/s", 0.85, 3.6),
)


def nvdla() -> Iterator[Figure]:
    net = catalog.load("resnet50")
    for c, k, buffer, dram, mm2, frames in NVDLA:
        values = {
            "word_bits": 8,
            "node_nm": 28,
            "dram__bandwidth": dram,
            "cbuf__capacity": buffer,
            "cbuf__width_bits": min(8 * c, 512),
            "array__k": k,
            "array__c": c,
            "mac__kind": "int8",
        }
        arch = built("nvdla", **values)
        found = solved(net, arch, "latency")
        yield Figure(f"{c * k} MACs: frames per second", frames, 1e9 * arch.clock_ghz / found, "1/s")
        yield Figure(f"{c * k} MACs: area at 28 nm", mm2, arch.area_mm2(), "mm2")


def solved(net: Workload, arch: Arch, objective: str, schedule: str = "unfused") -> float:
    """Returns the cycles of a network."""
    options = SolverOptions(objective=objective, gap=GAP, schedule=schedule)  # type: ignore[arg-type]
    found = solve(arch, net, options)
    assert isinstance(found, list), found
    return float(found[0].latency_cycles)


def tpu() -> Iterator[Figure]:
    values = {
        "clock_mhz": 700,
        "node_nm": 28,
        "dram__kind": "ddr3",
        "dram__channels": 2,
        "dram__bandwidth": "34 GB/s",
        "ubuf__capacity": "24 MiB",
        "ubuf__banks": 32,
        "ubuf__width_bits": 512,
        "ubuf__actions_per_cycle": 8,
        "acc__capacity": "4 MiB",
        "acc__banks": 32,
        "acc__actions_per_cycle": 16,
        "array__y": 256,
        "array__x": 256,
    }
    arch = built("tpu_edge", **values)
    for name, layers, weights, batch, tops in (("MLP0", 5, 20e6, 200, 12.3), ("MLP1", 4, 5e6, 168, 9.7)):
        side = 16 * round((weights / layers) ** 0.5 / 16)
        ranks = ["nm"[i % 2] for i in range(layers + 1)]
        pairs = enumerate(pairwise(ranks))
        lines = [f"X{i + 1}[b,{out}] += X{i}[b,{own}] * W{i}[{own},{out}]" for i, (own, out) in pairs]
        net = text.workload({"b": batch, "m": side, "n": side}, *lines)
        cycles = solved(net, arch, "latency", "fused")
        operations = 2 * sum(e.macs() for e in net.einsums)
        yield Figure(f"{name}: TOPS", tops, operations / cycles * arch.clock_ghz / 1e3, "TOPS")


def gemmini() -> Iterator[Figure]:
    cycles = solved(catalog.load("resnet50:batch=4"), built("gemmini"), "latency")
    yield Figure("ResNet-50, batch 4: cycles", 153.709356, cycles / 1e6, "Mcycles")


CHIPS: dict[str, Callable[[], Iterable[Figure]]] = {
    "eyeriss": eyeriss,
    "nvdla": nvdla,
    "tpu": tpu,
    "gemmini": gemmini,
}


def main(names: Sequence[str]) -> None:
    print(f"{'machine':9}{'figure':36}{'published':>11}{'ours':>11}   {'unit':8}{'error':>8}")
    for name in names or CHIPS:
        for one in CHIPS[name]():
            error = one.ours / one.published - 1
            print(
                f"{name:9}{one.what:36}{one.published:11.4g}{one.ours:11.4g}   {one.unit:8}{error:8.0%}",
                flush=True,
            )


if __name__ == "__main__":
    main(sys.argv[1:])
