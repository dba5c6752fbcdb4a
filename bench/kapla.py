"""Figures and tables of KAPLA's paper (arXiv 2306.15676) on its machines: our pipelines, the published solver
and what it is compared with, under one evaluator. Each prints what the paper says, ours, and their ratio.

python -m bench.kapla [PART]... [--seconds N] [--methods NAME,...]      `--help` says what each part prints

Beside: the answers of tests/data/kapla_reference.json, under nn_dataflow's counts: it charges a word of a
buffer when it is used, we also when it arrives. An overhead is what a search costs above kapla-exhaustive, in
the mean of the rows that both finished; the text of the paper has means of its figures, not their bars.
"""

from __future__ import annotations

import argparse
import json
import resource
import signal
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import mean

from dse.frontend import tables
from dse.sim.einsum.evaluate import Solution, objective_value, percent
from dse.sim.fronts import Objective
from dse.solve.kapla.published import published
from dse.solve.options import PIPELINED_SCHEDULES, SolverOptions
from dse.solve.schedules.pipeline import pipelined
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
SECONDS = 600.0  # CPU time of each search
# nodes, REGF bytes, GBUF KiB; ours, not the paper's
MACHINES = ((16, 16, 64, 32), (8, 8, 64, 32), (8, 8, 64, 64), (8, 8, 512, 32), (4, 4, 64, 64))
EXHAUSTIVE = "kapla-exhaustive"
# what each part prints, beside what the paper says of it
PARTS = {
    "fig7": "training, batch 64, on the large machine: energy by search",
    "fig8": "the same, latency where latency is sought (the text has no numbers: it follows energy)",
    "fig9": "inference, batch 64, on the large machine: energy by search",
    "fig10": "inference, batch 1, on the edge machine: energy by search (annealing: up to 16 % in the text)",
    "fig11": "chains that are kept, 1 to 16: energy and time of the published solver (no numbers given: "
    "energy hardly rises, time falls)",
    "table5": "other machines: overhead of the published solver (1.5 to 8.3 %; the text has no "
    "sizes, ours are MLP-M on five machines)",
    "table6": "schemes between layers before and after pruning, of the segment with most",
    "listed": "the published solver's listed answers, and energy by component",
}
# mean overhead over exhaustive search, by part and search
OVERHEADS = {
    "fig7": {"kapla": 0.022, "kapla-annealing": 0.177},
    "fig9": {"kapla": 0.077, "kapla-annealing": 0.361, "kapla-random": 0.59},
    "fig10": {"kapla": 0.019, "kapla-random": 0.038},
    "table5": {"kapla": (0.044 + 0.027 + 0.015 + 0.083 + 0.067) / 5},
}
# Table VI: schemes, after pruning
SCHEMES = dict(
    zip(NETWORKS, ((784, 18), (70, 3), (700, 2), (7, 1), (331, 42), (63, 4), (560, 1)), strict=True)
)
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


def solved(
    method: str,
    name: str,
    arch: Arch,
    seconds: float,
    weights: str = "streamed",
    kept: int | None = None,
    objective: Objective = "energy",
) -> Answer:
    """An answer, or why there is none, and its CPU seconds: in a process of its own, which ends when it has
    had its time.
    """
    here, there = get_context("spawn").Pipe(duplex=False)
    asked = (there, method, name, arch, seconds, weights, kept, objective)
    child = get_context("spawn").Process(target=_asked, args=asked)
    child.start()
    there.close()
    try:
        answer: Answer = here.recv()
    except EOFError:
        child.join()
        if child.exitcode not in (-signal.SIGXCPU, -signal.SIGKILL):
            raise RuntimeError(f"{method} of {name} on {arch.name} ended with {child.exitcode}") from None
        answer = "not finished", seconds
    child.join()
    return answer


def _asked(
    there: Connection,
    method: str,
    name: str,
    arch: Arch,
    seconds: float,
    weights: str,
    kept: int | None,
    objective: Objective,
) -> None:
    workload, small = catalog.load(name), catalog.load("mlp_s:batch=1")
    pipelined(arch, small, "energy")  # kernels are loaded
    begun = time.process_time()
    end = int(begun + seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (end, end))
    rules = SolverOptions().constraints  # those of the machine
    found = (
        pipelined(arch, workload, objective, weights, constraints=rules)
        if method == "pipelined"
        else published(arch, workload, method, objective, weights, beam=kept, constraints=rules)
    )
    there.send((found if isinstance(found, Solution) else str(found), time.process_time() - begun))


def listed(limit: float) -> None:
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
            found, seconds = solved(method, name, arch, limit, weights)
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
    tables.print_table(heads, rows, "beside the listed answers; cycles")
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


def compared(part: str, cases: Iterable[tuple[str, str, Arch]], methods: Sequence[str], limit: float) -> None:
    """What every search finds, over the best of its row, and CPU seconds; overheads beside the paper's."""
    objective: Objective = "latency" if part == "fig8" else "energy"
    rows, overheads = [], dict[str, list[float]]()
    for label, name, arch in cases:
        found = {method: solved(method, name, arch, limit, objective=objective) for method in methods}
        costs = {
            method: objective_value(objective, one.energy_pj, one.latency_cycles)
            for method, (one, _) in found.items()
            if isinstance(one, Solution)
        }
        told = [
            f"{costs[method] / 1e9:.4g}, {costs[method] / min(costs.values()):.3f}, {seconds:.1f} s"
            if method in costs
            else str(one)
            for method, (one, seconds) in found.items()
        ]
        for method in costs if EXHAUSTIVE in costs else ():
            overheads.setdefault(method, []).append(costs[method] / costs[EXHAUSTIVE] - 1)
        rows.append((label, *told))
        print(*rows[-1], sep=" | ", flush=True)
    unit = "10^9 cycles" if objective == "latency" else "mJ"
    title = f"{part}: {PARTS[part]}; {unit}, over the best of the row, CPU seconds ({limit:.0f} at most)"
    tables.print_table(("", *methods), rows, title)
    paper = OVERHEADS.get(part, {})
    beside = [
        (
            method,
            percent(paper[method]) if method in paper else "-",
            percent(mean(own)),
            f"{mean(own) / paper[method]:.2f}" if method in paper else "-",
            str(len(own)),
        )
        for method, own in overheads.items()
        if method != EXHAUSTIVE
    ]
    heads = ("search", "paper", "ours", "ours / paper", "rows")
    tables.print_table(heads, beside, f"{part}: mean overhead over {EXHAUSTIVE}")


def chains(limit: float) -> None:
    arch, rows = machine.load_arch("kapla_multi"), []
    for name in ("mlp_m:batch=64", "alexnet:batch=64"):
        answers = [solved("kapla", name, arch, limit, kept=kept) for kept in (1, 2, 4, 8, 16)]
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
        ("chains kept", "1", "2", "4", "8", "16"), rows, f"fig11: {PARTS['fig11']}; mJ and CPU seconds"
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


def pruned(networks: Sequence[str], limit: float) -> None:
    """Schemes of the segment in which most are left out; ratios of the shares that fall."""
    arch, rows = machine.load_arch("kapla_multi"), []
    for name in networks:
        schemes, left = SCHEMES[name]
        name = name.replace("mlp_m", "mlp_l")  # the one whose schemes are 784 (`python -m bench.nn_dataflow`)
        paper = f"{schemes} -> {left}, {percent(1 - left / schemes)}"
        found, _ = solved("kapla", name, arch, limit)
        if not isinstance(found, Solution) or not found.pruned:
            rows.append((name, paper, found if isinstance(found, str) else "no segments", "", "", ""))
            continue
        most = max(found.pruned, key=lambda row: (row.schemes - row.solved, row.schemes))
        fallen = 1 - most.solved / most.schemes
        rows.append(
            (
                name,
                paper,
                f"{most.schemes} -> {most.solved}, {percent(fallen)}",
                f"{fallen / (1 - left / schemes):.2f}",
                f"{most.einsums[0]} to {most.einsums[-1]}",
                f"{sum(row.schemes for row in found.pruned)} in {len(found.pruned)} segments",
            )
        )
    heads = ("workload", "paper", "ours", "ours / paper", "segment", "all schemes")
    tables.print_table(heads, rows, f"table6: {PARTS['table6']}")


def main() -> None:
    words = "\n".join(f"  {part:8}{text}" for part, text in PARTS.items())
    parser = argparse.ArgumentParser(
        "python -m bench.kapla",
        description=f"{(__doc__ or '').partition('python -m')[0]}\nparts:\n{words}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help="default: listed")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="CPU seconds of each search (%(default)g)"
    )
    parser.add_argument(
        "--methods",
        default=",".join(PIPELINED_SCHEDULES),
        help="searches that figures and table5 compare (%(default)s)",
    )
    parser.add_argument(
        "--networks", default=",".join(NETWORKS), help="rows of figures and of table6 (%(default)s)"
    )
    parser.add_argument(
        "--free",
        action="store_true",
        help="figures on kapla_multi and kapla_single, whose PEs may share any ranks, not on kapla_multi_rs "
        "(row-stationary) and kapla_edge_tpu (systolic)",
    )
    given = parser.parse_args()
    methods, networks, limit = given.methods.split(","), given.networks.split(","), given.seconds
    for kind, words_given, known in (
        ("part", given.parts, tuple(PARTS)),
        ("search", methods, PIPELINED_SCHEDULES),
        ("network", networks, NETWORKS),
    ):
        if strange := [word for word in words_given if word not in known]:
            parser.error(f"{strange[0]} is no {kind}; take {', '.join(known)}")
    names = ("kapla_multi", "kapla_single") if given.free else ("kapla_multi_rs", "kapla_edge_tpu")
    multi, single = map(machine.load_arch, names)
    trained = [(name, f"train:net={name.replace(':', ',')}", multi) for name in networks]
    ones = [name.replace("64", "1") for name in networks]
    cases = {
        "fig7": trained,
        "fig8": trained,
        "fig9": [(name, name, multi) for name in networks],
        "fig10": [(name, name, single) for name in ones],
        "table5": machines(),
    }
    for part in given.parts or ["listed"]:
        if part in cases:
            compared(part, cases[part], methods, limit)
        elif part == "table6":
            pruned(networks, limit)
        else:
            {"fig11": chains, "listed": listed}[part](limit)


if __name__ == "__main__":
    main()
