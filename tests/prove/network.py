"""Hops in closed form against walks of the mesh: 10,000 trees of either kind, 10,000 nests on rectangles of a
mesh, 10,000 with unequal lanes, 10,000 with a tile that lanes share out and pass round (hops, words taken and
given, room), 2,000 pipelines that hand words on; 0 mismatches.
"""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from random import Random

from dse.sim.levels import network
from tests.rings import WALKED
from tests.test_network import handing_unlike, uneven_unlike, unlike
from tests.test_rotation import unlike as rotating_unlike

CASES = int(os.environ.get("DSE_HOPS", "10000"))
SHOWN = 3


def tree_unlike(seed: int) -> str:
    """Lanes in any positions of two dimensions, a source anywhere in or beside them."""
    rng = Random(seed)
    rows, columns = (sorted(rng.sample(range(20), rng.randint(1, 12))) for _ in range(2))
    source = rng.randint(0, 24), rng.randint(0, 24)
    lanes = {(y, x) for y in rows for x in columns}
    unequal = [
        kind
        for kind, closed in network.TREES.items()
        if closed(source, rows, columns) != WALKED[kind](source, lanes)
    ]
    return f"tree seed {seed}: {unequal}" if unequal else ""


def main() -> int:
    wrong = []
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        for name, check, cases in (
            ("trees", tree_unlike, CASES),
            ("nests", unlike, CASES),
            ("unequal lanes", uneven_unlike, CASES),
            ("rotations", rotating_unlike, CASES),
            ("words between stages", handing_unlike, CASES // 5),
        ):
            lines = list(filter(None, pool.map(check, range(cases), chunksize=50)))
            print(f"  {name}: {cases}, {len(lines)} mismatches", flush=True)
            wrong += lines
    print("\n".join(wrong[:SHOWN]))
    return int(bool(wrong))
