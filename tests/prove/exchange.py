"""Random mappings of ours go to Timeloop, ZigZag and AccelForge and come back: until a thousand of each came
back at the same energy and cycles; the others are refused or say what is lost.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

from dse.exchange import accelforge_mapping, convert, documents
from dse.exchange.notes import Notes, Unreadable
from dse.mapping.nest import Mapping
from dse.mapping.schedule import parse_schedule
from dse.sim.einsum.evaluate import Problem, einsum_cost
from hw.arch import Arch
from tests import exchanged
from tests.test_exchange import timeloop_back, zigzag_back
from workloads.einsum import Einsum

WANTED = int(os.environ.get("CASES", "1000"))
Back = Callable[[Einsum, Arch, Mapping, Notes], Mapping]


def accelforge_back(e: Einsum, arch: Arch, mapping: Mapping, notes: Notes) -> Mapping:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mapping.yaml"
        path.write_text(convert.written("accelforge", {e.name: mapping}, [e], arch, None))
        text = accelforge_mapping.read("own", documents.read(path, notes)["mapping"], {}, notes)
    return parse_schedule(text).segments[0].branches[0].mapping


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
        e, arch, mapping, cost = case
        notes = Notes()
        try:
            other = back(e, arch, mapping, notes)
        except Unreadable:
            found["refused"] += 1
            continue
        same = exchanged.costs_the_same(cost, einsum_cost(Problem(arch, e, "energy"), other))
        found["same" if same else "lost" if notes.losses() else "WRONG"] += 1
    return found


def main() -> int:
    wrong = 0
    for name, (back, all_held) in BACK.items():
        found = outcomes(back, all_held, WANTED)
        print(f"{name}: {', '.join(f'{n} {what}' for what, n in found.most_common())}", flush=True)
        wrong += found["WRONG"] + (found["same"] < WANTED)
    return int(wrong > 0)
