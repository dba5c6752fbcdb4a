"""Schedules drawn from the whole notation against what every solver claims (`tests/fuzzed.py`): none of a
searched space costs less than the optimality gap allows, none at all less than the gap to the lower bound.
Prints per solver how many were held against it, the share that its claim covers, the least ratio of price and
claim, and what leaves the others out. On tight machines (every third) many answers are that nothing fits: no
schedule that they speak of does."""

from __future__ import annotations

import os
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from tests.fuzzed import REPORTED, Tally, fuzz, merged, random_case, reported, stated

SCHEDULES = int(os.environ.get("DSE_CLAIMS", "20000"))
EACH = 250  # schedules of a workload on a machine
SHOWN = 5
OBJECTIVES = ("energy", "latency", "energy", "edp")


def one(seed: int) -> tuple[int, dict[str, Tally]]:
    """A random workload on a random machine."""
    tallies: dict[str, Tally] = {}
    with tempfile.TemporaryDirectory() as folder:
        case = random_case(seed, Path(folder), crowded=seed % 3 == 2)
        return fuzz(case, seed, EACH, OBJECTIVES[seed // 2 % len(OBJECTIVES)], stated, tallies), tallies


def known(name: str) -> tuple[int, dict[str, Tally]]:
    """A schedule that cost less than claims allowed, and what lies near to it."""
    tallies: dict[str, Tally] = {}
    with tempfile.TemporaryDirectory() as folder:
        case, schedule, solvers = reported(name, Path(folder))
        return fuzz(case, 0, EACH // 5, "energy", stated, tallies, [schedule], solvers), tallies


def main() -> int:
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        found, seed = [*pool.map(known, REPORTED)], 0
        while (left := SCHEDULES - sum(drawn for drawn, _ in found)) > 0:  # where nothing fits none is drawn
            more = -(-left // EACH)
            found += pool.map(one, range(seed, seed + more))
            seed += more
    tallies = merged(own for _, own in found)
    print(
        f"  {sum(drawn for drawn, _ in found)} schedules of {len(found)} workloads and machines", flush=True
    )
    for name, own in sorted(tallies.items()):
        out = ", ".join(
            f"{what} {n}" for what, n in sorted(own.excluded.items(), key=lambda pair: -pair[1])[:4]
        )
        share = 100 * own.covered / own.drawn if own.drawn else 0.0
        print(
            f"  {name}: {own.drawn} held against it, {share:.0f} % covered, least ratio {own.least:.6g} (to "
            f"the bound {own.bound:.6g}), {len(own.failures)} below; left out: {out or 'none'}",
            flush=True,
        )
    asked, refused, fitting = (
        sum(getattr(own, name) for own in tallies.values()) for name in ("asked", "refused", "fitting")
    )
    print(
        f"  {refused} of {asked} answers say that nothing fits ({100 * refused / max(asked, 1):.0f} "
        f"%), {fitting} schedules that do held against them"
    )
    failures = [line for own in tallies.values() for line in own.failures]
    print("\n".join(failures[:SHOWN]))
    return int(bool(failures))
