"""Fused tiles and kept tensors against every schedule of their space: random graphs of two to four einsums,
each nest enumerated and priced by the evaluator.

On machines whose fills overlap freely, and, every fourth, on machines whose fills wait, where answers may
have a gap. As many under rules for mappings (tests/rules_kept.py), a quarter as many of eleven rows, where
shared loops leave remainders, and on machines that narrow or widen elements, price hops, or whose ports serve
some tensors. Half as many on machines with lines and rows, layouts chosen in the same
solve. Half of the machines have slow lanes and leakage of all that is there (`tests/rates.py`). Graphs
without lanes against a list of schedules that is counted by hand, from docs/model.md alone
(tests/by_hand.py). And the published chain of two products, walked element by element.
"""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from random import Random

from hw import machine
from tests import rates
from tests.by_hand import wrong as by_hand_wrong
from tests.fusions import (
    ELEVEN,
    FEW,
    networked_case,
    ported_case,
    random_case,
    ruled_case,
    unlike,
    widened_case,
    wrong,
    wrong_in_layouts,
)
from tests.test_fused import chain, solved
from tests.test_schedule_walks import compared

CASES = int(os.environ.get("DSE_FUSED", "200"))


def overlap_of(seed: int) -> str:
    return "buffered" if seed % 4 == 3 else "free"


def one(seed: int) -> list[str]:
    return wrong(seed, overlap_of(seed), seed // 4 % 2 == 1)


def uneven(seed: int) -> list[str]:
    arch, workload = random_case(seed, overlap_of(seed), FEW, ELEVEN)
    return unlike(seed, rates.drawn(arch, Random(seed)) if seed // 4 % 2 else arch, workload)


def widened(seed: int) -> list[str]:
    return unlike(seed, *widened_case(seed, overlap_of(seed)))


def networked(seed: int) -> list[str]:
    return unlike(seed, *networked_case(seed, overlap_of(seed)))


def ported(seed: int) -> list[str]:
    return unlike(seed, *ported_case(seed, overlap_of(seed)))


def ruled(seed: int) -> list[str]:
    return unlike(seed, *ruled_case(seed, overlap_of(seed)))


def laid(seed: int) -> tuple[list[str], list[float]]:
    return wrong_in_layouts(seed, overlap_of(seed), seed // 4 % 2 == 1)


def main() -> int:
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        found = list(pool.map(one, range(CASES), chunksize=5))
    for lines in [lines for lines in found if lines][:5]:
        print("\n".join(lines))
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        told = list(pool.map(laid, range(CASES // 2), chunksize=5))
    for lines in [lines for lines, _ in told if lines][:5]:
        print("\n".join(lines))
    ratios = [ratio for _, own in told for ratio in own]
    print(
        f"  {CASES // 2} graphs on machines with lines, reuse and layouts together: "
        f"{sum(bool(lines) for lines, _ in told)} wrong; over rows or columns with copies for free: "
        f"{sum(ratio <= 1 + 1e-9 for ratio in ratios)} of {len(ratios)} no dearer, dearest {max(ratios):.3f}",
        flush=True,
    )
    others = 0  # graphs of the parts that follow that are wrong
    for told_wrong, cases, what in (
        (uneven, CASES // 4, "of eleven rows, tiles that leave a remainder"),
        (widened, CASES // 4, "on machines that narrow or widen elements"),
        (networked, CASES // 4, "on machines that price hops"),
        (ported, CASES // 4, "on machines whose ports serve some tensors"),
        (ruled, CASES, "under rules"),
        (by_hand_wrong, 2 * CASES, "by hand"),
    ):
        with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
            own_lines = list(pool.map(told_wrong, range(cases), chunksize=5))
        number = sum(map(bool, own_lines))
        print(
            f"  {cases} graphs {what}: {number} wrong",
            *[line for lines in own_lines for line in lines][:3],
            sep="\n  ",
            flush=True,
        )
        others += number
    many = sum(len(random_case(seed)[1].einsums) == 4 for seed in range(CASES))
    print(
        f"  {CASES} graphs ({many} of four einsums), energy and latency: {sum(map(bool, found))} wrong",
        flush=True,
    )
    best, _ = solved(chain(2))
    assert best.schedule is not None
    walked = compared(machine.arch(machine.load("a2s")), chain(2), best.schedule)
    print(
        f"  the published chain of two products: {best.energy_pj:.0f} pJ (listed 12304384), "
        f"{len(walked)} differences to its walk",
        flush=True,
    )
    return int(
        any(found)
        or any(lines for lines, _ in told)
        or others > 0
        or bool(walked)
        or best.energy_pj > 12304384
    )
