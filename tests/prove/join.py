"""The graph engine against every choice of labels: random small DAGs with random tables and fronts, exactly
and with beams of few rows.
"""

from __future__ import annotations

import os
from collections import Counter
from random import Random

from dse.solve.elimination import join
from tests.joins import KINDS, random_problem, wrong

CASES = int(os.environ.get("DSE_JOINS", "500"))
BEAMS = (2, 3, 6, 24)


def main() -> int:
    lines = [line for seed in range(CASES) for most in (None, *BEAMS) for line in wrong(seed, most)]
    for line in lines[:5]:
        print(line)
    cut: Counter[str] = Counter()
    for seed in range(CASES):
        tables, rooms = random_problem(Random(seed), KINDS[seed % len(KINDS)])
        cut["rooms"] += bool(rooms)
        for most in BEAMS:
            found = join(tables, rooms, "edp", most)
            cut["cut"] += any(one.energy * one.latency > found.lower_bound for one in found.choices)
    print(
        f"  {CASES} problems ({', '.join(KINDS)}; {cut['rooms']} with rooms), energy, latency, EDP, "
        f"front: {len(lines)} wrong; {cut['cut']} beams cut",
        flush=True,
    )
    return int(bool(lines) or not cut["cut"])
