"""Closed form of a nest's cycles against the walk in time: 2,000 random nests on machines of mixed buffering.

Port times of the evaluator (dse/sim/counts/times.py) against those of the unrolled nests first. The cycles
are never above, also where ports serve in random order; equal where nothing contends (rounds alike, no port
wanted by two at once); the differences elsewhere are printed.

Whole schedules too: two or three einsums, fused below shared loops or in turn, against the walks of all their
trips; and in turn with first fills while the einsum before runs, against a walk of all of them together;
2,000 random ones each.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from tests import ahead
from tests.fused_in_time import Timed, timed
from tests.test_timed import Compared, compared
from tests.test_times import different

NESTS = 2_000
SHOWN = 3


def spread(name: str, found: Sequence[Compared | Timed]) -> None:
    off = sorted(max(1 - float(one.closed) / float(one.walked), 0.0) if one.walked else 0.0 for one in found)
    equal = sum(x < 1e-9 for x in off)
    print(
        f"  {name}: {len(off)}, {equal} equal, difference median {100 * median(off):.2f} %, 90 % "
        f"{100 * off[len(off) * 9 // 10]:.1f} %, largest {100 * off[-1]:.1f} %",
        flush=True,
    )


def main() -> int:
    unlike = [line for seed in range(NESTS) if (line := different(seed))]
    print(
        "\n".join(unlike[:SHOWN])
        + f"  port times that are not those of the unrolled nest: {len(unlike)} of {NESTS} nests",
        flush=True,
    )
    found = [compared(seed) for seed in range(NESTS)]
    spread("all", found)
    spread("no port wanted by two at once", [one for one in found if not one.contended])
    spread("and all rounds alike", [one for one in found if one.even])
    wrong = [one for one in found if one.fault]
    for one in wrong[:SHOWN]:
        print(one.fault)
    print(f"  closed form above the walk: {sum(one.closed > one.walked for one in found)}", flush=True)
    fused = [timed(seed, seed % 4 == 3) for seed in range(NESTS)]
    spread("fused schedules", [one for one in fused if one.shared])
    spread(
        "and no port wanted by two at once, all trips and rounds alike",
        [one for one in fused if one.shared and one.even],
    )
    above = [one for one in fused if one.fault]
    for each in above[:SHOWN]:
        print(each.fault)
    print(
        "  schedules whose closed form is above the walk, or below it where nothing contends: "
        f"{len(above)} of {NESTS}",
        flush=True,
    )
    early = [ahead.compared(seed) for seed in range(NESTS)]
    hidden = sum(one.closed < one.turn * (1 - 1e-9) for one in early)
    equal = sum(abs(one.closed - one.walked) < 1e-9 * one.walked for one in early)
    over = sum(bool(one.fault) for one in early)
    print(
        f"  first fills ahead: {NESTS} schedules, {hidden} of them hide some, {equal} equal to the "
        f"walk, {over} above it",
        flush=True,
    )
    return int(bool(wrong or unlike or above or any(one.fault for one in early)))
