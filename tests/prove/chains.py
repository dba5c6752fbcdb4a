"""Random chains of two to four products on two to nine nodes, weights loaded in every run or pinned: what
`pipelined` and `kapla` claim against schedules drawn from the whole notation (`tests/fuzzed.py`), in which
weights are held, pinned or loaded again for every pipeline tile. None may cost less than a claim allows.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from random import Random

from dse.mapping.schedule import Schedule
from tests.fuzzed import (
    BUFFER,
    COMPUTE,
    INSIDE,
    MACHINE,
    NODES,
    Case,
    Claim,
    Tally,
    case_of,
    fuzz,
    merged,
    stated,
)
from tests.rates import RATES

CASES = int(os.environ.get("DSE_CHAINS", "1000"))
EACH = 24  # schedules of a chain on a machine
SHOWN = 5
SOLVERS = tuple(
    {"schedule": schedule, "weights": weights}
    for schedule in ("pipelined", "kapla")
    for weights in ("streamed", "pinned")
)
GRIDS = ((1, 2), (1, 3), (2, 2), (1, 5), (2, 3), (1, 7), (2, 4), (3, 3))


def chain(rng: Random) -> str:
    """The text of a workload file."""
    wide = [rng.choice([1, 2, 3, 4]) for _ in range(5)]
    products = range(rng.choice([2, 3, 4]))
    lines = [f'- "T{i + 1}[m,r{i + 1}] += T{i}[m,r{i}] * W{i}[r{i},r{i + 1}]"' for i in products]
    extents = ", ".join(f"r{i}: {n}" for i, n in enumerate(wide[: len(products) + 1]))
    weights = ", ".join(f"W{i}" for i in products)
    rows = rng.choice([2, 4, 8])
    return (
        f"name: chain\nweights: [{weights}]\nextents: {{m: {rows}, {extents}}}\n"
        f"einsums:\n{chr(10).join(lines)}\n"
    )


def grid(rng: Random) -> str:
    """The text of a machine file: two to nine nodes."""
    (rows, columns), flag = rng.choice(GRIDS), rng.choice(["true", "true", "false"])
    text = MACHINE.format(
        overlap="free", dram=rng.choice([20, 100]), rate=rng.choice([1.0, 2.0]), leak=rng.choice([0, 0, 10])
    )
    text += NODES.format(
        rows=rows,
        columns=columns,
        hop=rng.choice([0, 0.5]),
        source=rng.choice(["same_level", "next_level"]),
        flag=flag,
    )
    room = rng.choice([10, 16, 24, 48])
    bypass = rng.choice(["true", "false", "false"])
    text += BUFFER.format(room=room, rate=rng.choice([2.0, 8.0]), bypass=bypass, double="false")
    if rng.random() < 0.3:
        text += INSIDE.format(rows=1, columns=2, flag="true", room=rng.choice([4, 8]), hop=0)
    return text + COMPUTE.format(rate=rng.choice(RATES), leak=rng.choice([0, 1]))


def one(seed: int) -> tuple[int, dict[str, Tally], Counter[str]]:
    """Returns how many schedules were held against claims, the tallies of solvers, and what they do with
    weights.
    """
    rng, tallies, kinds = Random(f"chain {seed}"), dict[str, Tally](), Counter[str]()

    def weighed(claim: Claim, s: Schedule, case: Case) -> str | None:
        text = str(s)
        kinds["held"] += "hold " in text
        kinds["pinned"] += s.weights == "pinned"
        kinds["loaded per pipeline tile"] += any(
            segment.pipelined and len(segment.nodes) and not any(b.filled_once for b in segment.branches)
            for segment in s.segments
        )
        return stated(claim, s, case)

    with tempfile.TemporaryDirectory() as folder:
        case = case_of(chain(rng), grid(rng), Path(folder))
        objective = rng.choice(["energy", "energy", "latency", "edp"])
        drawn = fuzz(case, seed, EACH, objective, weighed, tallies, solvers=SOLVERS)
    return drawn, tallies, kinds


def main() -> int:
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        found = list(pool.map(one, range(CASES), chunksize=5))
    tallies, kinds = merged(own for _, own, _ in found), Counter[str]()
    for _, _, own in found:
        kinds += own
    print(f"  {CASES} chains, {sum(drawn for drawn, _, _ in found)} schedules", flush=True)
    print(f"  comparisons with schedules of each kind: {dict(kinds)}", flush=True)
    for name, own_tally in sorted(tallies.items()):
        print(
            f"  {name}: {own_tally.drawn} held against it, least ratio {own_tally.least:.6g} (to the bound "
            f"{own_tally.bound:.6g}), {len(own_tally.failures)} below",
            flush=True,
        )
    failures = [line for own_tally in tallies.values() for line in own_tally.failures]
    print("\n".join(failures[:SHOWN]))
    return int(bool(failures))
