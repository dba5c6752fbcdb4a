"""What each part of the stack brings: python -m bench.headline [CASE...]; a case is WORKLOAD@MACHINE.

Every case is solved by the whole stack, then with one part off in turn, or switched to a published method:
figure of the objective over that of the whole, gap, CPU seconds from an empty cache. A part that is cheaper
than the whole is an error, but for cycles in which waits are not counted. Layouts are left out where no lines
are described.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from os import environ
from typing import Any

import dse
from dse.sim.schedule.graph import UNTIMED
from hw import machine

CASES = [
    "squeezenet@edge_array",
    "bert_tiny@edge_array",
    "cg:matrix=nasa4704,n=8,iterations=2@edge_array",
    "gcn@edge_array",
    "squeezenet@burst_edge",
    "bert_tiny@burst_edge",
]
WHOLE = {"solver.schedule": "fused"}
LAYOUTS = {"solver.layout": "alt"}
PARTS: dict[str, dict[str, str]] = {
    "einsums in turn": {"solver.schedule": "unfused"},
    "layouts row-major": {"solver.layout": "row_major"},
    "neither": {"solver.schedule": "unfused", "solver.layout": "row_major"},
    "perfect lanes": {"solver.factors": "perfect"},
    "weights stand still": {"solver.dataflow": "weight_stationary"},
    "outputs stand still": {"solver.dataflow": "output_stationary"},
    "KAPLA's cost descending": {
        "solver.mapper": "cost_descending",
        "solver.schedule": "unfused",
        "solver.layout": "row_major",
    },
    "GOGETA": {"solver.schedule": "gogeta", "solver.layout": "row_major"},
    "ALT, between products": {"solver.schedule": "unfused", "solver.layout": "wp"},
}


def solved(workload: str, name: str, sets: dict[str, str]) -> tuple[dict[str, Any], float]:
    """Totals, and CPU seconds, with nothing in the cache."""
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        environ["DSE_CACHE"] = folder
        return dse.map(workload, name, **sets).totals, time.process_time() - began


def case(text: str, objective: str) -> Iterator[tuple[str, float, str]]:
    """(part, figure over that of the whole, what is told of it)."""
    workload, _, name = text.rpartition("@")
    felt = machine.load_arch(name).models_layout()
    whole = WHOLE | (LAYOUTS if felt else {}) | {"solver.objective": objective}
    least, known = 0.0, list[dict[str, str]]()
    for part, sets in ({"all": dict[str, str]()} | PARTS).items():
        both = {key: value for key, value in (whole | sets).items() if felt or key != "solver.layout"}
        if both in known:
            continue
        known.append(both)
        try:
            totals, seconds = solved(workload, name, both)
        except ValueError as fault:
            yield part, float("inf"), f"refused: {fault}"
            continue
        value = totals.get("energy_pj" if objective == "energy" else "latency_cycles", float("inf"))
        least = least or value
        said = (
            "; counts no waits"
            if objective == "latency" and UNTIMED in str(totals.get("certificate"))
            else ""
        )
        yield (
            part,
            value / least,
            f"gap {100 * totals.get('optimality_gap', float('inf')):.3g} %, {seconds:.1f} s "
            f"{totals.get('reason', '')}{said}",
        )


def main(cases: list[str]) -> int:
    wrong = 0
    for text in cases or CASES:
        for objective in ("energy", "latency"):
            print(f"{text}, {objective}", flush=True)
            for part, ratio, told in case(text, objective):
                cheaper = ratio < 1 - 1e-9 and "counts no waits" not in told
                wrong += cheaper
                print(f"  {part:26}{ratio:8.3f}  {told}{'  CHEAPER THAN ALL' if cheaper else ''}", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
