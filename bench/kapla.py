"""Networks on KAPLA's machines: pipelines of stages on rectangles of nodes, beside the published solver's figures (KAPLA, arXiv 2306.15676).

python -m bench.kapla [WORKLOAD MACHINE WEIGHTS OBJECTIVE]...    default: the MLP of the paper, pinned and streamed; a minute

The published figures are those of tests/data/kapla_reference.json: its solver's answers, and the pipeline that it drops because its bound is none. Energies are
under this evaluator for ours, under nn_dataflow's for theirs: it charges a word of a buffer when it is used, we also when it arrives.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from dse import screen
from dse.nest import Infeasible
from dse.reuse.pipeline import pipelined
from hw import machine
from workloads import catalog

REFERENCE = Path(__file__).parents[1] / "tests" / "data" / "kapla_reference.json"
CASES = (("mlp_m:batch=64", "kapla_multi", "pinned", "energy"), ("mlp_m:batch=64", "kapla_multi", "streamed", "energy"),
         ("mlp_m:batch=1", "kapla_multi_4x4", "streamed", "energy"))
NAMES = {"multi_node": "kapla_multi", "multi_node_4x4": "kapla_multi_4x4", "single_node": "kapla_single"}


def published() -> dict[tuple[str, str, str], dict[str, Any]]:
    """(workload, machine, weights) -> energy and cycles as listed."""
    data = json.loads(REFERENCE.read_text())
    found = {(f"{one['net']}:batch={one['batch']}", NAMES[one["hardware"]], "streamed"): one for one in data["kapla"]}
    one = data["pinned_segment"]
    return found | {(f"{one['net']}:batch={one['batch']}", NAMES[one["hardware"]], "pinned"): one}


def main(cases: tuple[tuple[str, ...], ...]) -> None:
    rows, parts, listed = [], [], published()
    for name, arch_name, weights, objective in cases:
        arch, workload = machine.arch(machine.load(arch_name)), catalog.load(name)
        begun = time.process_time()
        found = pipelined(arch, workload, objective, weights)  # type: ignore[arg-type]
        seconds = time.process_time() - begun
        if isinstance(found, Infeasible):
            print(f"{name} on {arch_name}: {found}")
            continue
        theirs = listed.get((name, arch_name, weights), {})
        pipes = sum(len(row.einsums) > 1 for row in found.segments)
        rows.append((f"{name} {weights}", arch_name, objective, f"{found.energy_pj / 1e9:.4g}", f"{found.steady_cycles:.0f}", f"{found.latency_cycles:.0f}",
                     f"{len(found.segments) or len(found.einsums)}, {pipes}", f"{100 * found.gap_in_space:.3g} %", f"{seconds:.1f}",
                     f"{1e3 * theirs['energy_J']:.4g}" if theirs else "-", f"{theirs['cycles']:.0f}" if theirs else "-"))
        energy: dict[str, float] = {}
        for c in found.einsums:
            for part in c.price.parts:
                key = "static" if part.action == "leak" else part.level
                energy[key] = energy.get(key, 0.0) + c.count * part.energy_pj
        energy["static"] = found.energy_pj - sum(pj for key, pj in energy.items() if key != "static")
        parts.append((f"{name} {weights}", *(f"{energy.get(key, 0) / 1e6:.4g}" for key in ("DRAM", "NODES", "GBUF", "ARRAY", "REGF", "MAC", "static"))))
    heads = ("workload", "machine", "objective", "mJ", "steady", "latency", "segments, pipes", "gap", "CPU s", "listed mJ", "listed cycles")
    screen.print_table(heads, rows, "pipelines beside the listed answers; cycles")
    screen.print_table(("workload", "DRAM", "NODES", "GBUF", "ARRAY", "REGF", "MAC", "static"), parts, "energy by component, uJ")


if __name__ == "__main__":
    given = sys.argv[1:]
    main(tuple(tuple(given[i:i + 4]) for i in range(0, len(given), 4)) or CASES)
