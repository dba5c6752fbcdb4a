"""Whole schedules against a walk of every element: traffic, room over time, and nothing read before it is
complete; 10,000 random ones, 0 mismatches.

Two to four einsums each: in turn, fused, kept in part, pinned, pipelined over lanes of their own; ragged
tiles, windows, skipped edges.
"""

from __future__ import annotations

import os
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from random import Random

from dse.mapping.nest import Loop
from tests.schedules import random_schedule
from tests.test_schedule_walks import differences

CASES = int(os.environ.get("DSE_SCHEDULES", "10000"))
SHOWN = 5


def kinds(seed: int) -> list[str]:
    _, workload, schedule = random_schedule(Random(seed))
    many = [segment for segment in schedule.segments if len(segment.branches) > 1]
    staged = [segment for segment in many if segment.pipelined]
    return [
        name
        for name, there in {
            "fused": any(not s.pipelined and any(isinstance(n, Loop) for n in s.nodes) for s in many),
            "pipelined": bool(staged),
            "granules": any(any(isinstance(n, Loop) for n in s.nodes) for s in staged),
            "kept": bool(schedule.retained),
            "less later": any(k.later_shares for k in schedule.retained),
            "pinned": schedule.weights == "pinned",
            "held": any(b.filled_once for s in schedule.segments for b in s.branches),
            "four einsums": len(workload.einsums) == 4,
        }.items()
        if there
    ]


def one(seed: int) -> tuple[list[str], list[str]]:
    return differences(seed), kinds(seed)


def main() -> int:
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        found = list(pool.map(one, range(CASES), chunksize=50))
    wrong = [lines for lines, _ in found if lines]
    for lines in wrong[:SHOWN]:
        print("\n".join(lines[:3]))
    there = Counter(kind for _, each in found for kind in each)
    print(
        f"  {CASES} schedules ({', '.join(f'{n} {kind}' for kind, n in there.items())}): "
        f"{len(wrong)} mismatches",
        flush=True,
    )
    return int(bool(wrong))
