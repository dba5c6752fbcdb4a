"""Random mappings of ours go to Timeloop, ZigZag and AccelForge and come back: until a thousand of each came
back at the same energy and cycles; the others are refused or say what is lost.
"""

from __future__ import annotations

import os
from collections import Counter
from random import Random

from tests import exchanged
from tests.exchanged import Back, accelforge_back, timeloop_back, zigzag_back

WANTED = int(os.environ.get("CASES", "1000"))
BACK: dict[str, tuple[Back, bool]] = {
    "timeloop": (timeloop_back, False),
    "zigzag": (zigzag_back, True),
    "accelforge": (accelforge_back, False),
}


def outcomes(back: Back, all_held: bool, wanted: int) -> Counter[str]:
    """same, lost and refused; WRONG: another cost and no word of it."""
    found: Counter[str] = Counter()
    seed = 0
    while found["same"] < wanted and seed < 100 * wanted:
        case, seed = exchanged.random_case(Random(seed), all_held), seed + 1
        if case is None:
            continue
        found[exchanged.outcome(back, case)[0]] += 1
    return found


def main() -> int:
    wrong = 0
    for name, (back, all_held) in BACK.items():
        found = outcomes(back, all_held, WANTED)
        print(f"{name}: {', '.join(f'{n} {what}' for what, n in found.most_common())}", flush=True)
        wrong += found["WRONG"] + (found["same"] < WANTED)
    return int(wrong > 0)
