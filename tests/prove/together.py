"""Answers of machines that are solved together are those that each gets alone: figure, certificate and
mapping.

    python -m tests.prove together [--prices 20000] [--first 0]

Random pairs of an einsum (products, decode, convolutions 1 x 1, 3 x 3, strided, depthwise, grouped, CSR) and
a machine of a space as users write it: arrays of 4 to 64 by 4 to 64, odd capacities, kinds and channels of
main memory, nodes, cells, clocks, words, ports, buffering; most in cells that differ in prices and rates
alone, others anywhere, at the edges of all ranges among them. Each for energy, latency and energy times
latency. Ends at the first ten that differ.
"""

from __future__ import annotations

import argparse
import sys
import time
from random import Random

from dse.mapper.exact.optimal import optimal, optimal_on
from dse.mapping.nest import Infeasible
from dse.sim.einsum.evaluate import EinsumCost, Problem
from hw import machine, space
from hw.arch import Arch
from workloads.einsum import Einsum, einsum

CELL, STRANGERS = 24, 6  # machines of a draw that differ in prices alone; others
RATES = {
    "dram.kind": ["ddr3", "ddr4", "lpddr4", "lpddr5", "gddr6"],
    "dram.channels": [1, 2, 4],
    "node_nm": [22, 32, 45],
    "cell": ["lop", "hp"],
    "clock_mhz": list(range(100, 801, 100)),
}
SIZES = {
    "array.x": list(range(4, 65)),
    "array.y": list(range(4, 65)),
    "gbuf.capacity": {"from": "32 KiB", "to": "2048 KiB", "step": "1 KiB"},
    "regf.capacity": {"from": "32 B", "to": "1024 B", "step": "2 B"},
    "word_bits": [8, 16],
    "gbuf.ports": ["shared", "separate"],
    "regf.double_buffer": [False, True],
    "gbuf.double_buffer": [False, True],
}
EINSUMS = {
    "product": ("C[m,n] += A[m,k] * B[k,n]", {"m": 64, "n": 48, "k": 96}),
    "decode": ("C[n] += A[k] * B[k,n]", {"n": 1024, "k": 512}),
    "1x1": ("C[k,p,q] += A[c,p,q] * B[k,c]", {"k": 64, "c": 48, "p": 14, "q": 14}),
    "3x3": ("C[k,p,q] += A[c,p+r-1,q+s-1] * B[k,c,r,s]", {"k": 16, "c": 8, "p": 14, "q": 14, "r": 3, "s": 3}),
    "strided": (
        "C[k,p,q] += A[c,2*p+r-1,2*q+s-1] * B[k,c,r,s]",
        {"k": 16, "c": 8, "p": 7, "q": 7, "r": 3, "s": 3},
    ),
    "depthwise": ("C[k,p,q] += A[k,p+r-1,q+s-1] * B[k,r,s]", {"k": 32, "p": 14, "q": 14, "r": 3, "s": 3}),
    "grouped": (
        "C[g,k,p,q] += A[g,c,p+r-1,q+s-1] * B[g,k,c,r,s]",
        {"g": 4, "k": 4, "c": 4, "p": 7, "q": 7, "r": 3, "s": 3},
    ),
    "odd": ("C[m,n] += A[m,k] * B[k,n]", {"m": 35, "n": 77, "k": 121}),
    "csr": ("C[m,n] += A[m,k] * B[k,n]", {"m": 256, "n": 64, "k": 256}),
}


def einsum_of(name: str) -> Einsum:
    text, sizes = EINSUMS[name]
    stored = {"3x3": (8, 14, 14), "strided": (8, 14, 14), "depthwise": (32, 14, 14), "grouped": (4, 4, 7, 7)}
    return einsum(
        text,
        sizes,
        density={"A": 0.1} if name == "csr" else None,
        sizes={"A": stored[name]} if name in stored else None,
    )


def drawn(rng: Random, whole: space.Space) -> list[Arch]:
    """Machines of one cell in turn with others; of each range the ends as often as what lies between."""

    def value(axis: space.Axis) -> object:
        if axis.key.endswith("double_buffer"):  # searches with first fills and last drains take long
            return rng.random() < 0.06
        return rng.choice((axis.values[0], axis.values[-1], rng.choice(axis.values), rng.choice(axis.values)))

    cell, found = {axis.key: value(axis) for axis in whole.axes}, list[Arch]()
    while len(found) < CELL + STRANGERS:
        near = rng.random() < CELL / (CELL + STRANGERS)
        chosen = {
            axis.key: cell[axis.key] if near and axis.key not in RATES else value(axis) for axis in whole.axes
        }
        arch = space.decode(whole, space.index_of(whole, chosen))  # type: ignore[arg-type]
        found += [arch] if isinstance(arch, Arch) else []
    return found


def told(one: EinsumCost | Infeasible) -> tuple[object, ...]:
    if isinstance(one, Infeasible):
        return (str(one),)
    return str(one.mapping), one.energy_pj, one.latency_cycles, one.bottleneck, one.optimality_gap, one.space


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prices", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0)
    given, _ = parser.parse_known_args()
    whole = space.parse(machine.load("edge_array"), RATES | SIZES)
    compared, wrong, seconds, several = 0, list[str](), [0.0, 0.0], 0
    draw = given.first
    while compared < given.prices and len(wrong) < 10:
        rng = Random(draw)
        name = list(EINSUMS)[draw % len(EINSUMS)]
        e, arches, draw = einsum_of(name), drawn(rng, whole), draw + 1
        for objective in ("energy", "latency", "edp"):
            problems, begun = [Problem(arch, e, objective) for arch in arches], time.process_time()
            found, middle = optimal_on(problems, "imperfect_spatial", allowed_gap=0.01), time.process_time()
            alone = [optimal(problem, allowed_gap=0.01) for problem in problems]
            seconds = [seconds[0] + middle - begun, seconds[1] + time.process_time() - middle]
            several += len({told(one) for one in found})
            for i, (one, own) in enumerate(zip(found, alone, strict=True)):
                if told(one) != (expected := told(own if isinstance(own, Infeasible) else own[0])):
                    wrong.append(
                        f"draw {draw - 1}, {name}, {objective}, machine {i}: {told(one)}, alone {expected}"
                    )
        compared += len(arches)
    print("\n".join(wrong[:10]), file=sys.stderr)
    print(
        f"  {compared} pairs x 3 objectives, {len(wrong)} differ, {several} different answers; CPU s "
        f"together {seconds[0]:.0f}, each alone {seconds[1]:.0f}"
    )
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
