"""Networks on KAPLA's machines: our pipelines, the published solver and what it is compared with, under one
evaluator (KAPLA, arXiv 2306.15676).

python -m bench.kapla [PART]...    PARTS: listed networks training edge chains machines pruned; default:
                                   listed, two minutes. Each search has DSE_KAPLA_SECONDS of CPU time (120);
                                   DSE_KAPLA_METHODS: which searches networks, training, edge and machines
                                   compare (all, by commas)

Beside: what the paper prints, and the answers of tests/data/kapla_reference.json, under nn_dataflow's counts:
it charges a word of a buffer when it is used, we also when it arrives. The reference `best` is the least of
all searches of a row: nobody's optimum.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

from dse.frontend import tables
from dse.sim.einsum.evaluate import Solution, percent
from dse.solve.kapla.published import published
from dse.solve.schedules.pipeline import pipelined
from dse.solve.solve import PIPELINED_SCHEDULES
from hw import machine
from hw.arch import Arch
from workloads import catalog

REFERENCE = Path(__file__).parents[1] / "tests" / "data" / "kapla_reference.json"
NAMES = {"multi_node": "kapla_multi", "multi_node_4x4": "kapla_multi_4x4", "single_node": "kapla_single"}
LISTED = (
    ("mlp_m:batch=64", "kapla_multi", "pinned"),
    ("mlp_m:batch=64", "kapla_multi", "streamed"),
    ("mlp_m:batch=1", "kapla_multi_4x4", "streamed"),
    ("mlp_m:batch=1", "kapla_single", "streamed"),
)
NETWORKS = tuple(
    f"{name}:batch=64"
    for name in ("mlp_m", "lstm", "alexnet", "vgg16", "mobilenet_v1", "resnet50", "googlenet")
)
LIMIT = float(os.environ.get("DSE_KAPLA_SECONDS", "120"))
METHODS = tuple(os.environ.get("DSE_KAPLA_METHODS", ",".join(PIPELINED_SCHEDULES)).split(","))
# nodes, REGF bytes, GBUF KiB; ours, not the paper's
MACHINES = ((16, 16, 64, 32), (8, 8, 64, 32), (8, 8, 64, 64), (8, 8, 512, 32), (4, 4, 64, 64))
PAPER = {
    "networks": "inference: 7.7 % over exhaustive, random 59 %, annealing 36.1 %",
    "training": "training: 2.2 % over exhaustive, annealing 17.7 %",
    "edge": "edge: 1.9 % over exhaustive, at most 10 %; annealing up to 16 %, random 3.8 %",
    "chains": "fewer chains: energy hardly rises, time falls",
    "machines": "overheads generally small (Table V)",
    "pruned": "over 90 % of schemes fall (Table VI)",
    "listed": "the published solver's answers",
}
COMPONENTS = ("DRAM", "NODES", "GBUF", "ARRAY", "REGF", "MAC", "static")
# the same in the listed answers
THEIRS = (
    ("DRAM",),
    ("NoC_node", "NoC_mem"),
    ("GBUF", "remote_GBUF"),
    ("ITCN",),
    ("REGF",),
    ("MAC",),
    ("static",),
)
Answer = tuple[Solution | str, float]


def solved(method: str, name: str, arch: Arch, weights: str = "streamed", kept: int | None = None) -> Answer:
    """An answer, or why there is none, and its CPU seconds: in a process of its own, which ends when it has
    had its time.
    """
    here, there = get_context("spawn").Pipe(duplex=False)
    child = get_context("spawn").Process(target=_asked, args=(there, method, name, arch, weights, kept))
    child.start()
    there.close()
    try:
        answer: Answer = here.recv()
    except EOFError:
        child.join()
        if child.exitcode not in (-signal.SIGXCPU, -signal.SIGKILL):
            raise RuntimeError(f"{method} of {name} on {arch.name} ended with {child.exitcode}") from None
        answer = "not finished", LIMIT
    child.join()
    return answer


def _asked(there: Connection, method: str, name: str, arch: Arch, weights: str, kept: int | None) -> None:
    workload, small = catalog.load(name), catalog.load("mlp_s:batch=1")
    pipelined(arch, small, "energy")  # kernels are loaded
    begun = time.process_time()
    resource.setrlimit(resource.RLIMIT_CPU, (int(begun + LIMIT) + 1, int(begun + LIMIT) + 1))
    found = (
        pipelined(arch, workload, "energy", weights)
        if method == "pipelined"
        else published(arch, workload, method, "energy", weights, beam=kept)
    )
    there.send((found if isinstance(found, Solution) else str(found), time.process_time() - begun))


def listed() -> None:
    """Beside the answers that are listed; energy by component."""
    data = json.loads(REFERENCE.read_text())
    known = {
        (f"{one['net']}:batch={one['batch']}", NAMES[one["hardware"]], "streamed"): one
        for one in data["kapla"]
    }
    one = data["pinned_segment"]
    known[f"{one['net']}:batch={one['batch']}", NAMES[one["hardware"]], "pinned"] = one
    rows, parts = [], []
    for case in LISTED:
        name, arch_name, weights = case
        arch, theirs, label = machine.load_arch(arch_name), known[case], f"{name} {weights}"
        for method in PIPELINED_SCHEDULES[:2]:
            found, seconds = solved(method, name, arch, weights)
            said = (found, "", "", "", "")
            if isinstance(found, Solution):
                pipes = sum(len(row.einsums) > 1 for row in found.segments)
                said = (
                    f"{found.energy_pj / 1e9:.4g}",
                    f"{found.initiation_interval_cycles:.0f}",
                    f"{found.latency_cycles:.0f}",
                    f"{len(found.segments) or len(found.einsums)}, {pipes}",
                    percent(found.optimality_gap),
                )
                parts.append((label, method, *(f"{uj:.4g}" for uj in components(found))))
            rows.append((label, arch_name, method, *said, f"{seconds:.1f}"))
        told = (f"{1e3 * theirs['energy_J']:.4g}", f"{theirs['cycles']:.0f}", "", "", "")
        rows.append((label, arch_name, "listed", *told, f"{theirs.get('cpu_s', '')}"))
        if given := theirs.get("breakdown_J"):
            joule = [sum(given[key] for key in keys) for keys in THEIRS]
            parts.append((label, "listed", *(f"{1e6 * j:.4g}" for j in joule)))
    heads = ("workload", "machine", "search", "mJ", "steady", "latency", "segments, pipes", "gap", "CPU s")
    tables.print_table(heads, rows, f"beside {PAPER['listed']}; cycles")
    tables.print_table(("workload", "search", *COMPONENTS), parts, "energy by component, uJ")


def components(found: Solution) -> list[float]:
    """In uJ: DRAM, between nodes, buffers, in arrays, registers, operations, what leaks."""
    energy: dict[str, float] = {}
    for c in found.einsums:
        for part in c.price.parts:
            key = "static" if part.action == "leak" else part.level
            energy[key] = energy.get(key, 0.0) + c.count * part.energy_pj
    energy["static"] = found.energy_pj - sum(pj for key, pj in energy.items() if key != "static")
    return [energy.get(key, 0.0) / 1e6 for key in COMPONENTS]


def compared(title: str, cases: Iterable[tuple[str, str, Arch]]) -> None:
    """What every search finds, over the best of its row, and its CPU seconds."""
    rows = []
    for label, name, arch in cases:
        found = [solved(method, name, arch) for method in METHODS]
        best = min([one.energy_pj for one, _ in found if isinstance(one, Solution)], default=0.0)
        told = [
            f"{one.energy_pj / 1e9:.4g}, {one.energy_pj / best:.3f}, {seconds:.1f} s"
            if isinstance(one, Solution)
            else one
            for one, seconds in found
        ]
        rows.append((label, *told))
        print(*rows[-1], sep=" | ", flush=True)
    said = f"mJ, over the best of the row, CPU seconds ({LIMIT:.0f} at most)"
    tables.print_table(("", *METHODS), rows, f"{said}; paper: {PAPER[title]}")


def chains() -> None:
    arch, rows = machine.load_arch("kapla_multi"), []
    for name in ("mlp_m:batch=64", "alexnet:batch=64"):
        answers = [solved("kapla", name, arch, kept=kept) for kept in (1, 2, 4, 8, 16)]
        rows.append(
            (
                name,
                *(
                    f"{one.energy_pj / 1e9:.4g}, {seconds:.1f} s" if isinstance(one, Solution) else one
                    for one, seconds in answers
                ),
            )
        )
    tables.print_table(
        ("chains kept", "1", "2", "4", "8", "16"),
        rows,
        f"kapla, mJ and CPU seconds; paper: {PAPER['chains']}",
    )


def machines() -> Iterable[tuple[str, str, Arch]]:
    base = machine.load_arch("kapla_multi")
    for rows, columns, regf, gbuf in MACHINES:
        levels = (
            base.levels[0],
            replace(base.levels[1], capacity_bits=gbuf << 13),
            replace(base.levels[2], capacity_bits=regf << 3),
        )
        nodes = replace(
            base.fanouts[0],
            dims=tuple((name, n) for (name, _), n in zip(base.fanouts[0].dims, (rows, columns), strict=True)),
        )
        yield (
            f"{rows}x{columns} nodes, REGF {regf} B, GBUF {gbuf} KiB",
            "mlp_m:batch=64",
            replace(base, levels=levels, fanouts=(nodes, *base.fanouts[1:])),
        )


def pruned() -> None:
    arch, rows = machine.load_arch("kapla_multi"), []
    for name in NETWORKS:
        found, _ = solved("kapla", name, arch)
        if not isinstance(found, Solution) or not found.pruned:
            rows.append((name, found if isinstance(found, str) else "no segments", "", "", "", ""))
            continue
        most = max(found.pruned, key=lambda row: (row.schemes - row.solved, row.schemes))
        rows.append(
            (
                name,
                str(len(found.pruned)),
                f"{most.einsums[0]} to {most.einsums[-1]}",
                str(most.schemes),
                str(most.valid),
                str(most.solved),
            )
        )
    tables.print_table(
        ("workload", "segments", "of which", "schemes", "valid", "solved"),
        rows,
        f"pruning by kapla; paper: {PAPER['pruned']}",
    )


def main(parts: Sequence[str]) -> None:
    multi, single = (machine.load_arch(name) for name in ("kapla_multi", "kapla_single"))
    trained = [f"train:net={name.replace(':', ',')}" for name in NETWORKS]
    ones = [name.replace("64", "1") for name in NETWORKS]
    cases = {
        "networks": [(name, name, multi) for name in NETWORKS],
        "training": [(name, name, multi) for name in trained],
        "edge": [(name, name, single) for name in ones],
        "machines": machines(),
    }
    known = {title: partial(compared, title, own) for title, own in cases.items()}
    known |= {"listed": listed, "chains": chains, "pruned": pruned}
    if strange := [part for part in parts if part not in known]:
        sys.exit(f"{strange[0]} is no part; take {', '.join(known)}")
    for part in parts:
        known[part]()


if __name__ == "__main__":
    main(sys.argv[1:] or ["listed"])
