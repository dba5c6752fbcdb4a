"""20,000 random operators on random accelerators keep every invariant and compute what the untiled operator
does.

python -m tests.prove smaug [--operators 20000] [--seed 1]
"""

from __future__ import annotations

import argparse
import random
from collections import Counter

from dse.mapper.smaug.smaug import tile
from dse.mapping.nest import Infeasible
from tests.operators import operator, unit
from tests.tiled import broken, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operators", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_known_args()[0]
    tiled: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    for number in range(given.operators):
        rng = random.Random(f"{given.seed}/{number}")
        op, u = operator(rng), unit(rng)
        found = tile(op, u)
        if isinstance(found, Infeasible):
            refused[op.kind] += 1
            continue
        tiled[op.kind] += 1
        lines = [
            *broken(found, u),
            *(["the tiled result differs"] if wrong(found, u.accelerators, number) else []),
        ]
        assert not lines, f"operator {number} of seed {given.seed}: {op} on {u}: {lines}"
    print(
        f"{sum(tiled.values())} operators tiled, 0 invariants broken, {sum(refused.values())} "
        f"infeasible; tiled {dict(tiled)}, infeasible {dict(refused)}"
    )
    return 0
