"""Fused tiles and kept tensors (`solver.schedule: fused`): python -m bench.fused chains | networks
[NETWORK...] | accelforge [FOLDER [WORD...]]

chains      products one after the other (m 128, n 64, machine `a2s`): CPU ms of the whole answer in a warm
            process, the least and the median of ROUNDS in turn, beside twice that of one product and 20 ms
            per join
networks    on `edge_array`, energy, each answer in a process of its own: nothing kept; the same question
            again, its answer in $DSE_CACHE; the same again on a machine of other prices. CPU s and MiB of the
            whole process, imports and loading of the network included
accelforge  AccelForge's fused mapper, in an environment of its own (made in FOLDER, by default a temporary
            one), beside ours on `a2s` and, with sizes divided by four, on a machine of three levels; energy,
            perfect factors: CPU s of each answer in a warm process, its mapping under its own model and under
            our evaluator. Only rows with a WORD in machine or workload; its mappings are kept in FOLDER
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
from workloads import text
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


def asked(by: int) -> tuple[Workload, ...]:
    """Chains, attention, a gated MLP, a decoder layer of GPT-3 as AccelForge has it, with smaller sizes; two
    convolutions one after the other; two products whose result is added to what they began with. Sizes, but
    for heads and filters, are divided by a number.
    """
    m, n, e = 128 // by, 64 // by, 32 // by
    attention = "S[h,m,p] += Q[h,m,e] * K[h,p,e]", "O[h,m,f] += S[h,m,p] * V[h,p,f]"
    gated = (
        "G[m,f] += X[m,k] * Wg[k,f]",
        "U[m,f] += X[m,k] * Wu[k,f]",
        "H[m,f] = swiglu(G[m,f], U[m,f])",
        "Y[m,n] += H[m,f] * Wd[f,n]",
    )
    layer = (
        "V[m,h,e] += I[m,d] * WV[h,e,d]",
        "K[m,h,e] += I[m,d] * WK[h,e,d]",
        "Q[m,h,e] += I[m,d] * WQ[h,e,d]",
        "QK[m,p,h] += Q[m,h,e] * K[p,h,e]",
        "QKS[m,p,h] = scaled(QK[m,p,h])",  # as in AccelForge, loops may cut the rows of the softmax
        "AV[m,h,f] += QKS[m,p,h] * V[p,h,f]",
        "Z[m,g] += AV[m,h,f] * WZ[h,f,g]",
        "FFA[m,c] += Z[m,g] * WFFA[g,c]",
        "FFB[m,j] += FFA[m,c] * WFFB[c,j]",
    )
    convolutions = ("A[k,p,q] += X[c,p+r,q+s] * WA[k,c,r,s]", "B[l,u,v] += A[k,u+y,v+z] * WB[l,k,y,z]")
    image = {"c": 8, "k": 16, "l": 16, "p": e + 2, "q": e + 2, "u": e, "v": e} | dict.fromkeys("rsyz", 3)
    residual = "H[m,f] += X[m,k] * WH[k,f]", "Y[m,n] += H[m,f] * WY[f,n]", "R[m,n] = Y[m,n] + X[m,n]"
    model = {"h": 2, "m": m, "p": m, "e": e, "f": e, "d": n, "g": n, "c": 256 // by, "j": n}
    return (
        *(chain(many, m, n) for many in (2, 4, 8)),
        *(
            text.workload({"h": h, "m": m, "p": m, "e": e, "f": e}, *attention, name=f"attention, heads {h}")
            for h in (1, 4, 12)
        ),
        text.workload({"m": m, "k": n, "f": m, "n": n}, *gated, name="gated MLP"),
        text.workload(model, *layer, name="decoder layer"),
        text.workload(image, *convolutions, name="two convolutions"),
        text.workload({"m": m, "k": n, "f": m, "n": n}, *residual, name="residual"),
    )


def three_levels() -> Arch:
    """`a3nb` (registers in each PE; every tensor stands at every level) with a buffer of 1 KiB."""
    arch = machine.load_arch("a3nb")
    levels = (
        replace(level, capacity_bits=1 << 13) if level.name == "GLB" else level for level in arch.levels
    )
    return replace(arch, levels=tuple(levels))


def beside_accelforge(folder: Path, words: Sequence[str]) -> Iterator[str]:
    """A row of a table per machine and workload with one of the words in its title (none: all). Both
    processes map a small chain first. AccelForge's mappings are written into the folder, as schedules.
    """
    machines = {"a2s": (machine.load_arch("a2s"), 1), "three levels": (three_levels(), 4)}
    small = replace(chain(2, 8, 8), name="small")
    answer(machines["a2s"][0], small)
    cases = {
        f"{at} | {workload.name}": (arch, workload)
        for at, (arch, by) in machines.items()
        for workload in (small, *asked(by))
        if workload == small or not words or any(word in f"{at} | {workload.name}" for word in words)
    }
    specs = {title: accelforge_files.specification(*case) for title, case in cases.items()}
    yield (
        "| machine | workload | ours: pJ, gap, CPU s | AccelForge: pJ, CPU s | by its own model "
        "| its mapping, our pJ | times faster |"
    )
    yield "|---|---|---|---|---|---|---|"
    for theirs in accelforge_files.run(python_of("accelforge", folder), specs, folder):
        title = theirs["name"]
        arch, workload = cases[title]
        if workload.name == small.name:
            continue
        ours, took = answer(arch, workload)
        own = ours if isinstance(ours, str) else f"{ours.energy_pj:.9g}, {100 * ours.optimality_gap:.3g} %"
        if "fault" in theirs:
            yield f"| {title} | {own}, {took:.2f} | {theirs['fault']} | | | |"
            continue
        found, schedule = priced(arch, workload, theirs)
        (folder / f"{title.replace(' | ', ', ')}.sch").write_text(schedule)
        yield (
            f"| {title} | {own}, {took:.2f} | {theirs['energy_pj']:.9g}, {theirs['cpu_s']:.1f} "
            f"| {theirs['own_model']} | {found} | {theirs['cpu_s'] / took:.0f} |"
        )


def answer(arch: Arch, workload: Workload) -> tuple[Solution | str, float]:
    """Ours, or why there is none, and its CPU seconds."""
    begun = time.process_time()
    found = fused(arch, workload, "energy", "perfect", lambda _: FREE)
    return found if isinstance(found, Solution) else str(found), time.process_time() - begun


def priced(arch: Arch, workload: Workload, theirs: dict[str, Any]) -> tuple[str, str]:
    """AccelForge's mapping under our evaluator, or why it has no price there; and as text."""
    schedule = json.dumps(theirs["mapping"])
    tensors = {e.name: [p.tensor for p in (e.output, *e.inputs)] for e in workload.einsums}
    try:
        schedule = accelforge_mapping.schedule_text(theirs["mapping"], tensors)
        found = evaluate(arch, workload, parse_schedule(schedule))
    except ValueError as refused:
        return str(refused).splitlines()[0], schedule
    return str(found) if isinstance(found, Infeasible) else f"{found.energy_pj:.9g}", schedule


def main(args: Sequence[str]) -> int:
    if args[:1] == ["chains"]:
        chains()
    elif args[:1] == ["networks"]:
        networks(args[1:] or NETWORKS)
    elif args[:1] == ["accelforge"]:
        with tempfile.TemporaryDirectory() as folder:
            for line in beside_accelforge(Path(args[1] if args[1:] else folder).resolve(), args[2:]):
                print(line, flush=True)
    elif args[:1] == ["one"]:
        one(args[1], json.loads(args[2]))
    else:
        print(__doc__)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
