"""Fused tiles and kept tensors (`solver.schedule: fused`): python -m bench.fused chains | networks
[NETWORK...] | schedules [NETWORK[@MACHINE]...] | accelforge [FOLDER [WORD...]]

chains      products one after the other (m 128, n 64, machine `a2s`): CPU ms of the whole answer in a warm
            process, the least and the median of ROUNDS in turn, beside twice that of one product and 20 ms
            per join
networks    on `edge_array`, energy, each answer in a process of its own: nothing kept; the same question
            again, its answer in $DSE_CACHE; the same again on a machine of other prices. CPU s and MiB of the
            whole process, imports and loading of the network included
schedules   a row of a table per network: unfused and best on a machine (`edge_array`), each answer in a
            process of its own with an empty cache: energy, gap, CPU s of it, and words of attention's
            scores (S, exponentials, probabilities) through main memory
accelforge  AccelForge's fused mapper, in an environment of its own (made in FOLDER, by default a temporary
            one), beside ours on `a2s` and, with sizes divided by four, on a machine of three levels; energy,
            perfect factors: CPU s of each answer in a warm process, its mapping under its own model and under
            our evaluator. Only rows with a WORD in machine or workload; its mappings are kept in FOLDER
"""

from __future__ import annotations

import json
import os
import re
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
ASKED = (  # by `schedules`; edge_array where no machine is named
    "bert_base:layers=1",
    "bert_base:layers=1,form=online",
    "bert_base:layers=1@datacenter",
    "bert_base:layers=1,form=online@datacenter",
    "mobilenet_v2",
    "squeezenet",
    "resnet50",
    "llama7b:phase=decode",
    "cg",
    "gcn",
)
SCORES = re.compile(r"A_[SEP]$")  # tensors of attention with a number per query and key
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


def one(network: str, machine_name: str, sets: dict[str, str]) -> None:
    """In a process of its own."""
    before = time.process_time()
    mapped = dse.map(network, machine_name, **{"solver.schedule": "fused", **sets})  # type: ignore[arg-type]
    answer_s, outer = time.process_time() - before, mapped.arch.levels[0]
    if isinstance(mapped.solution, Infeasible):
        print(json.dumps({"reason": str(mapped.solution)}))
        return
    of_scores = [
        part.actions * outer.width_bits / mapped.arch.word_bits
        for cost in mapped.solution.einsums
        for part in cost.price.parts
        if part.level == outer.name and SCORES.search(part.tensor)
    ]
    used, totals = resource.getrusage(resource.RUSAGE_SELF), mapped.totals
    print(
        json.dumps(
            {
                "cpu_s": used.ru_utime + used.ru_stime,
                "answer_s": answer_s,
                "mib": used.ru_maxrss / 1024,
                "gap": totals["optimality_gap"],
                "energy_pj": totals["energy_pj"],
                "certificate": totals["certificate"],
                "score_words": sum(of_scores),
            }
        )
    )


def in_process(network: str, machine_name: str, sets: dict[str, str], cache: str) -> dict[str, Any]:
    """What `one` prints, from a process of its own with this cache."""
    run = subprocess.run(
        [sys.executable, "-m", "bench.fused", "one", network, machine_name, json.dumps(sets)],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"DSE_CACHE": cache},
    )
    return dict(json.loads(run.stdout))


def schedules(wanted: Sequence[str]) -> Iterator[str]:
    """The table, a row per network."""
    kinds = "unfused", "best"
    yield f"| network | {' | '.join(f'{kind}: uJ, gap, CPU s' for kind in kinds)} | words of scores |"
    yield "|---|---|---|---|"
    for asked_for in wanted:
        network, _, machine_name = asked_for.partition("@")
        cells, found = [f"{network}{' on ' + machine_name if machine_name else ''}"], dict[str, Any]()
        for kind in kinds:
            with tempfile.TemporaryDirectory() as cache:
                sets = {"solver.schedule": kind}
                found = in_process(network, machine_name or "edge_array", sets, cache)
            taken = re.match(r"taken: [^;]*", found.get("certificate", ""))
            cells.append(
                found.get("reason")
                or f"{found['energy_pj'] / 1e6:.6g}, {100 * found['gap']:.3g} %, {found['cpu_s']:.1f}"
                + (f" ({taken[0]})" if taken else "")
            )
        yield f"| {' | '.join(cells)} | {found.get('score_words', 0):.6g} |"


def networks(wanted: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for network in wanted:
            for said, sets in (("nothing kept", {}), ("kept", {}), (f"kept, asked with {OTHER}", OTHER)):
                found = in_process(network, "edge_array", sets, folder)
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
    elif args[:1] == ["schedules"]:
        for line in schedules(args[1:] or ASKED):
            print(line, flush=True)
    elif args[:1] == ["one"]:
        one(args[1], args[2], json.loads(args[3]))
    else:
        print(__doc__)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
