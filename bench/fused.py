"""Fused tiles and kept tensors (`solver.schedule: fused`): python -m bench.fused chains | networks
[NETWORK...] | accelforge [FOLDER]

chains      products one after the other (m 128, n 64, machine `a2s`): CPU ms of the whole answer in a warm
            process, the least and the median of ROUNDS in turn, beside twice that of one product and 20 ms
            per join
networks    on `edge_array`, energy, each answer in a process of its own: nothing kept; the same question
            again, its answer in $DSE_CACHE; the same again on a machine of other prices. CPU s and MiB of the
            whole process, imports and loading of the network included
accelforge  AccelForge's fused mapper, in an environment of its own (made in FOLDER, by default a temporary
            one), beside ours on `a2s`, energy, perfect factors: CPU s of each answer in a warm process, and
            its mapping under our evaluator
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import dse
from bench.peers import accelforge_files
from bench.peers.environment import python_of
from dse.exchange import accelforge_mapping
from dse.mapping.constraints import FREE
from dse.mapping.nest import Infeasible
from dse.mapping.schedule import parse_schedule
from dse.sim.einsum.evaluate import Solution
from dse.sim.schedule.graph import evaluate
from dse.solve.schedules.fused import fused
from hw import machine
from hw.arch import Arch
from tests.test_fused import chain
from tests.test_segments import attention, gated_mlp
from workloads.graph import Workload

ROUNDS = 9
NETWORKS = ("resnet50", "bert_base", "llama7b:phase=decode")
OTHER = {"dram.kind": "gddr6"}  # prices and rates differ from edge_array's


def chains() -> None:
    arch, took = machine.load_arch("a2s"), dict[int, list[float]]()
    said = dict[int, str]()
    for turn in range(ROUNDS + 1):  # the first one compiles, or loads what was
        for many in (1, 2, 4, 8):
            workload, begun = chain(many), time.process_time()
            found = fused(arch, workload, "energy", "imperfect_spatial", lambda _: FREE)
            assert not isinstance(found, Infeasible)
            took.setdefault(many, []).extend([1e3 * (time.process_time() - begun)] * (turn > 0))
            said[many] = f"gap {100 * found.optimality_gap:.3g} %, saved {100 * (found.saved or 0):.3g} %"
    for many, own in took.items():
        limit = 2 * min(took[1]) + 20 * (many - 1)
        print(
            f"{many} products: {min(own):.1f} ms least, {median(own):.1f} median; twice one and 20 "
            f"per join: {limit:.1f}; {said[many]}",
            flush=True,
        )


def one(network: str, sets: dict[str, str]) -> None:
    """In a process of its own."""
    before = time.process_time()
    totals = dse.map(network, "edge_array", **{"solver.schedule": "fused", **sets}).totals  # type: ignore[arg-type]
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(
        json.dumps(
            {
                "cpu_s": used.ru_utime + used.ru_stime,
                "answer_s": time.process_time() - before,
                "mib": used.ru_maxrss / 1024,
                "gap": totals["optimality_gap"],
                "energy_pj": totals["energy_pj"],
                "certificate": totals["certificate"],
            }
        )
    )


def networks(wanted: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for network in wanted:
            for said, sets in (("nothing kept", {}), ("kept", {}), (f"kept, asked with {OTHER}", OTHER)):
                run = subprocess.run(
                    [sys.executable, "-m", "bench.fused", "one", network, json.dumps(sets)],
                    capture_output=True,
                    text=True,
                    check=True,
                    env=os.environ | {"DSE_CACHE": folder},
                )
                found = json.loads(run.stdout)
                print(
                    f"{network}, {said}: {found['cpu_s']:.1f} CPU s (asking {found['answer_s']:.1f}), "
                    f"{found['mib']:.0f} MiB, {found['energy_pj']:.6g} pJ, gap {100 * found['gap']:.3g} %",
                    flush=True,
                )
            print(f"  {found['certificate']}", flush=True)


def beside_accelforge(folder: Path) -> Iterator[str]:
    """A row of a table per workload. Both processes map a small chain first."""
    arch = machine.load_arch("a2s")
    workloads = [
        *(replace(attention(heads), name=f"attention, heads {heads}") for heads in (1, 4, 12)),
        *(chain(many) for many in (2, 4, 8)),
        gated_mlp(),
    ]
    small = replace(chain(2, 8, 8), name="small")
    answer(arch, small)
    yield "| workload | ours: pJ, gap, CPU s | AccelForge: pJ, CPU s | its mapping, our pJ | times faster |"
    yield "|---|---|---|---|---|"
    by_name = {workload.name: workload for workload in workloads}
    peer = accelforge_files.run(python_of("accelforge", folder), arch, [small, *workloads], folder)
    for theirs in peer:
        if (name := theirs["name"]) == small.name:
            continue
        ours, took = answer(arch, by_name[name])
        yield (
            f"| {name} | {ours.energy_pj:.9g}, {100 * ours.optimality_gap:.3g} %, {took:.2f} "
            f"| {theirs['energy_pj']:.9g}, {theirs['cpu_s']:.1f} | {priced(arch, by_name[name], theirs)} "
            f"| {theirs['cpu_s'] / took:.0f} |"
        )


def answer(arch: Arch, workload: Workload) -> tuple[Solution, float]:
    """Ours, and its CPU seconds."""
    begun = time.process_time()
    found = fused(arch, workload, "energy", "perfect", lambda _: FREE)
    assert isinstance(found, Solution)
    return found, time.process_time() - begun


def priced(arch: Arch, workload: Workload, theirs: dict[str, Any]) -> str:
    """AccelForge's mapping under our evaluator, or why it has no price there."""
    try:
        text = accelforge_mapping.schedule_text(theirs["mapping"])
        found = evaluate(arch, workload, parse_schedule(text))
    except ValueError as refused:
        return str(refused).splitlines()[0]
    return str(found) if isinstance(found, Infeasible) else f"{found.energy_pj:.9g}"


def main(asked: Sequence[str]) -> int:
    if asked[:1] == ["chains"]:
        chains()
    elif asked[:1] == ["networks"]:
        networks(asked[1:] or NETWORKS)
    elif asked[:1] == ["accelforge"]:
        with tempfile.TemporaryDirectory() as folder:
            for line in beside_accelforge(Path(asked[1] if asked[1:] else folder).resolve()):
                print(line, flush=True)
    elif asked[:1] == ["one"]:
        one(asked[1], json.loads(asked[2]))
    else:
        print(__doc__)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
