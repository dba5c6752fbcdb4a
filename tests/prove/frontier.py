"""10,000 machines priced by frontiers, objectives in turn: what optimal finds on that machine alone."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context

from tests.families import BETTER, KINDS, differences

FAMILIES, PAIRS = 60, 28  # per kind of layer; machines of each
BUDGET = 60_000_000  # nodes that optimal may visit, minutes


def compared(kind: str, seed: int) -> list[str]:
    return list(differences(kind, seed, PAIRS, BUDGET))


def main() -> int:
    runs = list(product(KINDS, range(FAMILIES)))
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        found = Counter(line for lines in pool.map(compared, *zip(*runs, strict=True)) for line in lines)
    wrong = [line for line in found if line not in ("", BETTER)]
    for line in wrong:
        print(f"  {line}")
    print(f"  {len(runs) * PAIRS} pairs of einsum and machine, objectives in turn: {found['']} equal, {len(wrong)} different, "
          f"{found[BETTER]} cheaper than what optimal had when its budget ended")
    return int(bool(wrong))
