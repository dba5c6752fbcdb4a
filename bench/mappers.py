"""Mappers side by side in one run: CPU seconds (compile excluded), and energy of every mapping under our
evaluator.

python -m bench.mappers speed [MACHINE...]       optimal on every unique einsum of the networks, three
                                                 objectives, in the default space; ragged tiles in time:
                                                 python -m bench.smaug. MACHINE,MINUTES: on random ones of the
                                                 einsums, for so many CPU minutes
python -m bench.mappers drawn [EACH] [MACHINE...]   energy, cold, of so many einsums of each of sixteen
                                                 networks, drawn and listed first, on each of eight machines,
                                                 those with several arrays among them
python -m bench.mappers ended [SECONDS]          searches that take longer, ended by limits.seconds
python -m bench.mappers tiles [LAYERS]           what perfect tiles cost on arrays that few extents divide
python -m bench.mappers peers [LAYERS] [FOLDER]  ZigZag and nn_dataflow in environments of their own (made in
FOLDER, default a temporary one) on
                                                 ResNet-18 and ResNet-50; AccelForge and KAPLA as published or
                                                 measured before
python -m bench.mappers baselines [NETWORK...]   cost_descending, random, annealing over optimal on
edge_array, as the table of docs/evidence/heuristics.md
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from bench.peers import zigzag_files
from bench.peers.environment import python_of
from dse.mapper.baselines.annealing import annealing
from dse.mapper.baselines.cost_descending import cost_descending
from dse.mapper.baselines.random import MAPPINGS, random
from dse.mapper.exact.optimal import optimal
from dse.mapping.constraints import Factors
from dse.mapping.nest import Infeasible
from dse.run import deadline
from dse.sim.counts.actions import action_pj
from dse.sim.einsum.evaluate import EinsumCost, Problem, objective_value
from hw import machine
from hw.arch import Arch, Compute, Fanout, Level
from tests.cases_optimal import OBJECTIVES, arch_of, einsums
from workloads import catalog
from workloads.einsum import Einsum
from workloads.graph import Unique, unique

DATA = Path(__file__).parents[1] / "tests" / "data"
# ZigZag's TPU-like example with one register file and one SRAM for all operands, so that both tools have the
# same machine.
TPU_LIKE = Arch(
    "tpu_like",
    (
        Level("DRAM", None, 64, 700.0, 750.0, 1.0, bypass=False),
        Level("SRAM", 1 << 24, 64, 416.16 / 32, 378.4 / 32, 32.0),
        Level("RF", 1024, 8, 0.095, 0.095),
    ),
    (Fanout("array", 2, (("x", 32), ("y", 32)), (True, True), (True, True)),),
    Compute(0.04, 0.04),
    1.0,
    8,
    overlap="free",
)
MACHINES = ["edge_array", "eyeriss", "nvdla", "tpu_edge", "datacenter", "smv", "a2", "a3"]
ARRAYS = [
    "edge_array",
    "eyeriss",
    "nvdla",
    "tpu_edge",
    "datacenter",
    "simba",
    "kapla_multi",
    "gogeta_clusters",
]
NETWORKS = [
    "alexnet",
    "vgg16",
    "vgg19",
    "googlenet",
    "resnet18",
    "resnet50",
    "squeezenet",
    "mobilenet_v1",
    "mobilenet_v2",
    "bert_base",
    "gpt2",
    "llama7b:phase=prefill",
    "llama7b:phase=decode",
    "vit_b",
    "lstm",
    "cg",
]
BASELINES = ["alexnet", "resnet18", "bert_base", "lstm"]
SPACES: tuple[Factors, ...] = ("perfect", "imperfect_spatial")
NEAR = 0.01  # as `solver.gap`
NEARLY = partial(optimal, allowed_gap=NEAR)
ROUNDS = (24, 32)  # of annealing here; the paper's budget is the mapper's default
Solve = Callable[[Problem], list[EinsumCost] | Infeasible]
Timed = tuple[EinsumCost | Infeasible, float]  # result, CPU seconds


def timed(solve: Solve, problem: Problem) -> Timed:
    """Result and CPU seconds."""
    began = time.process_time()
    found = solve(problem)
    return (found if isinstance(found, Infeasible) else found[0]), time.process_time() - began


def warm_up(arch: Arch) -> None:
    """Compiles or loads the kernels, so that no layer pays for it."""
    for source in ("gemm:m=8,n=8,k=8", "conv:k=4,c=4,p=6,q=6,r=3,s=3,pad=1"):
        NEARLY(Problem(arch, catalog.load(source).einsums[0], "energy"))


def forget() -> None:
    """Nothing that was worked out before is known: memoised functions of ours start anew."""
    for module in [
        module for name, module in sys.modules.items() if name.partition(".")[0] in ("dse", "hw", "workloads")
    ]:
        for own in vars(module).values():
            if hasattr(own, "cache_clear"):
                own.cache_clear()


def unique_macs(source: str) -> list[Unique]:
    return [group for group in unique(catalog.load(source)) if group.einsum.kind == "mac"]


def edge_array() -> Arch:
    """Three levels, free bypass, 16 x 16 lanes, as in specs of the optimal mapper: 128 KiB and 512 B per
    lane.
    """
    return machine.load_arch("edge_array")


def speed(machines: Sequence[str]) -> Iterator[str]:
    """Per machine, all unique einsums of NETWORKS and all objectives, in the default space: CPU ms cold
    (nothing kept from another einsum or machine) and of a machine that differs in capacities and prices only
    from one before; how many are proven, and the gaps of the others.
    """
    for asked in machines:
        name, _, minutes = asked.partition(",")
        arch = machine.load_arch(name)
        warm_up(arch)
        end, found = time.process_time() + 60 * float(minutes or inf), list(_einsums().values())
        chosen = Random(0).sample(found, len(found)) if minutes else found
        cold: list[tuple[float, str]] = []
        warm: list[float] = []
        gaps: list[float] = []
        for e, label in chosen:
            if time.process_time() > end:
                break
            for objective in OBJECTIVES.values():
                forget()
                for changed in (arch, _other(arch)):
                    one, seconds = timed(NEARLY, Problem(changed, e, objective))
                    if changed is arch:
                        cold.append((1000 * seconds, f"{label}, {objective}"))
                        gaps.append(inf if isinstance(one, Infeasible) else one.optimality_gap)
                    else:
                        warm.append(1000 * seconds)
            yield (
                f"{name} {label} {_shape(e)}: {', '.join(f'{ms:.1f} ms' for ms, _ in cold[-3:])}; gaps "
                f"{', '.join(f'{100 * gap:.2g} %' for gap in gaps[-3:])}"
            )
        cold.sort()
        gaps.sort()
        at_99 = cold[int(0.99 * len(cold))][0]
        yield (
            f"{name}: {len(cold)} of {len(found) * len(OBJECTIVES)} problems, "
            f"{sum(gap == 0 for gap in gaps)} proven, {sum(gap <= 0.02 for gap in gaps)} within 2 %, largest "
            f"gap {100 * gaps[-1]:.2g} %; CPU ms cold median {median(ms for ms, _ in cold):.1f}, 99 % "
            f"{at_99:.0f}, worst {cold[-1][0]:.0f} ({cold[-1][1]}); machine after machine median "
            f"{median(warm):.1f}"
        )


def drawn(each: int, machines: Sequence[str]) -> Iterator[str]:
    """Energy of so many einsums of each of NETWORKS (`_drawn`) on each machine, in the default space and gap:
    the einsums, a line per problem, then how many are within the gap, and CPU ms cold: by machine, and where
    fills overlap freely or not.
    """
    chosen = _drawn(each)
    for source, own in chosen.items():
        yield f"{source}: {', '.join(group.names[0] for group in own)}"
    rows: list[tuple[float, float, str, str]] = []  # gap, CPU ms, machine, overlap
    for name in machines:
        arch = machine.load_arch(name)
        warm_up(arch)
        for source, own in chosen.items():
            for group in own:
                forget()
                found, seconds = timed(NEARLY, Problem(arch, group.einsum, "energy"))
                gap = inf if isinstance(found, Infeasible) else found.optimality_gap
                rows.append((gap, 1000 * seconds, name, arch.overlap))
                yield (
                    f"{name} {source} {group.names[0]} {_shape(group.einsum)}: {1000 * seconds:.1f} ms; gap "
                    f"{100 * gap:.2g} %; {_pj(found)}"
                )
        yield _summed(name, [row for row in rows if row[2] == name])
    for overlap in ("free", "buffered"):
        yield _summed(f"{overlap} overlap", [row for row in rows if row[3] == overlap])


def _drawn(each: int) -> dict[str, list[Unique]]:
    """So many unique einsums of each network, at most, in the same order in every run."""
    found = {}
    for source in NETWORKS:
        groups = list(unique(catalog.load(source)))
        found[source] = Random(source).sample(groups, min(each, len(groups)))
    return found


def _summed(label: str, rows: Sequence[tuple[float, float, str, str]]) -> str:
    """rows: gap, CPU ms, machine, overlap of each problem."""
    if not rows:
        return f"{label}: none"
    gaps, times = sorted(row[0] for row in rows), sorted(row[1] for row in rows)
    within, at_95, at_99 = (
        sum(gap <= NEAR * (1 + 1e-9) for gap in gaps),
        int(0.95 * len(rows)),
        int(0.99 * len(rows)),
    )
    return (
        f"| {label} | {len(rows)} | {100 * within / len(rows):.1f} % | {100 * gaps[at_95]:.2g} % | "
        f"{100 * gaps[-1]:.2g} % | {median(times):.0f} | {times[at_99]:.0f} | {times[-1]:.0f} |"
    )


def ended(seconds: float) -> Iterator[str]:
    """What `limits.seconds` leaves of searches that take longer: the answer's gap, wall and CPU seconds."""
    for name in ("datacenter", "kapla_multi", "simba"):
        arch = machine.load_arch(name)
        warm_up(arch)
        for source in ("gemm:m=4096,n=4096,k=4096", "llama7b:phase=prefill"):
            groups = unique_macs(source)
            began, cpu = time.monotonic(), time.process_time()
            with deadline.within(seconds, is_divided=True):
                found = []
                for at, group in enumerate(groups):
                    with deadline.part(len(groups) - at):
                        found.append(timed(NEARLY, Problem(arch, group.einsum, "energy"))[0])
            gaps = [inf if isinstance(one, Infeasible) else one.optimality_gap for one in found]
            yield (
                f"{name} {source}, {len(groups)} einsums, {seconds:g} s: {time.monotonic() - began:.2f} s, "
                f"{time.process_time() - cpu:.2f} CPU s; gaps at most {100 * max(gaps):.3g} %"
            )


def _einsums() -> dict[str, tuple[Einsum, str]]:
    """Unique einsums of all networks, with where they stand."""
    return {
        group.key: (group.einsum, f"{source} {group.names[0]}")
        for source in reversed(NETWORKS)
        for group in unique(catalog.load(source))
    }


def _other(arch: Arch) -> Arch:
    """The machine with other prices and an eighth more room on chip."""
    return replace(
        arch,
        levels=tuple(
            replace(
                level,
                read_pj=1.1 * level.read_pj,
                capacity_bits=level.capacity_bits and level.capacity_bits * 9 // 8,
            )
            for level in arch.levels
        ),
    )


def tiles(layers: int) -> Iterator[str]:
    """What perfect tiles cost: figure over that of ragged lanes, on arrays whose sides few extents divide,
    median and worst per objective.
    """
    found = list(_einsums().values())
    chosen = [one for one in found if one[0].kind == "mac"][:: max(len(found) // layers, 1)][:layers]
    yield "| array | objective | median | worst | where |"
    yield "|---|---|---|---|---|"
    for x, y in ((10, 10), (12, 14), (24, 24)):
        arch = edge_array()
        arch = replace(
            arch,
            fanouts=tuple(
                replace(f, dims=tuple((name, n) for (name, _), n in zip(f.dims, (x, y), strict=True)))
                for f in arch.fanouts
            ),
        )
        warm_up(arch)
        for objective in OBJECTIVES.values():
            ratios = []
            for e, label in chosen:
                perfect, ragged = (
                    timed(partial(optimal, factors=own, allowed_gap=NEAR), Problem(arch, e, objective))[0]
                    for own in SPACES
                )
                ratios.append((_value(perfect, objective) / _value(ragged, objective), label))
            ratios.sort()
            yield (
                f"| {x} x {y} | {objective} | {median(ratio for ratio, _ in ratios):.3f} | "
                f"{ratios[-1][0]:.2f} | {ratios[-1][1]} |"
            )


def _shape(e: Einsum) -> str:
    return " ".join(f"{rank}{n}" for rank, n in e.extents)


def _pj(found: EinsumCost | Infeasible) -> str:
    if isinstance(found, Infeasible):
        return str(found)
    return f"{found.energy_pj:.6g} pJ" + ("" if found.proven else f" ({found.certificate})")


def peers(layers: int, folder: Path) -> Iterator[str]:
    """layers: only the first so many of the networks; 0: all."""
    yield from against_zigzag(layers, folder)
    yield from beside_nn_dataflow(layers, folder)
    yield from accelforge()
    yield from kapla()


def against_zigzag(layers: int, folder: Path) -> Iterator[str]:
    """ResNet-18 on the same machine, energy and latency: ZigZag maps every layer, we map every unique one,
    both in its example's dataflow over perfect factors, then both free (it tries three ways to spread a
    layer, we all of our default space); its mappings are costed by our evaluator, and ours by its model.
    """
    work = folder / "zigzag_run"
    work.mkdir(exist_ok=True)
    warm_up(TPU_LIKE)
    for objective in ("energy", "latency"):
        for free in (False, True):
            lanes = {"default": {} if free else zigzag_files.example(TPU_LIKE)}
            found = zigzag_files.run(python_of("zigzag", folder), TPU_LIKE, work, layers, objective, lanes)
            yield from _side_by_side(found, objective, free)
    yield from priced_by_zigzag(layers, folder)


def _side_by_side(found: dict[str, Any], objective: str, free: bool) -> Iterator[str]:
    workload, unit = catalog.load(found["network"]), "pJ" if objective == "energy" else "cycles"
    own = {e.name: e for e in workload.einsums}
    keys = {name: group.key for group in unique(workload) for name in group.names}
    done: dict[str, Timed] = {}
    theirs, ours, above = 0.0, 0.0, list[str]()
    for layer in found["layers"]:
        e = own[zigzag_files.name_of(layer)]
        if keys[e.name] not in done:
            mapper = (
                NEARLY
                if free
                else partial(optimal, factors="perfect", constraints=zigzag_files.dataflow(e, TPU_LIKE))
            )
            done[keys[e.name]] = timed(mapper, Problem(TPU_LIKE, e, objective))
        one, seconds = done[keys[e.name]]
        other, how = zigzag_files.translated(layer, e, TPU_LIKE)
        its, best = _value(other, objective), _value(one, objective)
        theirs, ours = theirs + its, ours + best
        above += [e.name] if best > its * (1 + 1e-9) else []
        yield (
            f"{objective}, {'free' if free else 'its dataflow'}, {e.name} {_shape(e)}: ZigZag "
            f"{layer['cpu_s']:.2f} s, {its:.6g} {unit} ({how}; {layer['energy_pj']:.6g} pJ, "
            f"{layer['latency_cycles']:.6g} cycles by its own model); ours {1000 * seconds:.1f} ms, "
            f"{best:.6g} ({'proven' if not isinstance(one, Infeasible) and one.proven else one}), ratio "
            f"{its / best:.3f}"
        )
    seconds = sum(seconds for _, seconds in done.values())
    yield (
        f"ResNet-18, {objective}, both {'free' if free else 'in its dataflow'}, {len(found['layers'])} "
        f"layers: ZigZag {found['cpu_s']:.1f} CPU s, ours {seconds:.2f} for {len(done)} unique einsums, "
        f"{found['cpu_s'] / seconds:.0f} times faster; ZigZag's mappings over ours {theirs / ours:.3f} (this "
        f"evaluator); above ZigZag: {', '.join(above) or 'none'}"
    )


def priced_by_zigzag(layers: int, folder: Path) -> Iterator[str]:
    """The other way round: our mappings of least energy in its dataflow, exported loop by loop, beside its
    own best ones, both by its model.
    """
    # ZigZag has no bypass
    arch = replace(TPU_LIKE, levels=tuple(replace(level, bypass=False) for level in TPU_LIKE.levels))
    work, lanes = folder / "zigzag_run", {"default": zigzag_files.example(arch)}
    run = partial(zigzag_files.run, python_of("zigzag", folder), arch, work, layers, "energy")
    searched = run(lanes)
    own = {e.name: e for e in catalog.load(searched["network"]).einsums}
    orders, best = dict[str, zigzag_files.Orders](), dict[str, EinsumCost]()
    for name in (layer["name"] for layer in searched["layers"]):
        e = own[zigzag_files.name_of({"name": name})]
        (best[name],) = optimal(
            Problem(arch, e, "energy"), factors="perfect", constraints=zigzag_files.dataflow(e, arch)
        )
        orders[name], lanes[name] = zigzag_files.exported(best[name].mapping, e, arch)
    priced = run(lanes, orders)
    for theirs, ours in zip(searched["layers"], priced["layers"], strict=True):
        name = ours["name"]
        yield (
            f"{name}, least energy in its dataflow: ours {ours['energy_pj']:.6g} pJ by its model, "
            f"{best[name].energy_pj:.6g} by ours; its own {theirs['energy_pj']:.6g} by its model, ratio "
            f"{theirs['energy_pj'] / ours['energy_pj']:.3f}; by memory, innermost first "
            f"{_rounded(ours['by_memory'])}, MACs {ours['mac_pj']:.6g}; here "
            f"{_rounded(_by_memory(best[name], own[zigzag_files.name_of(ours)], arch))}"
        )


def _by_memory(found: EinsumCost, e: Einsum, arch: Arch) -> dict[str, list[float]]:
    """Energy per operand and level, innermost first, in ZigZag's order."""
    of = {(p.tensor, level.name): 0.0 for p in e.tensors() for level in arch.levels}
    for row in found.counts:
        if (row.tensor, row.level) in of:
            of[row.tensor, row.level] += row.elems * action_pj((row.level, row.tensor, row.action), e, arch)
    return {
        name: [of[p.tensor, level.name] for level in reversed(arch.levels)]
        for name, p in zip("IWO", e.tensors(), strict=True)
    }


def _rounded(by: dict[str, list[float]]) -> str:
    return ", ".join(f"{name} {' '.join(f'{pj:.4g}' for pj in own)}" for name, own in sorted(by.items()))


def beside_nn_dataflow(layers: int, folder: Path) -> Iterator[str]:
    """ResNet-50, exhaustive search on one node of 16 x 16 PEs. Only its time compares."""
    command = [
        python_of("nn_dataflow", folder),
        Path(__file__).parent / "peers" / "nn_dataflow_driver.py",
        "resnet50",
        str(layers),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder)
    found = json.loads(done.stdout.splitlines()[-1])
    warm_up(TPU_LIKE)
    groups = unique_macs("resnet50")
    ours = sum(timed(NEARLY, Problem(TPU_LIKE, group.einsum, "energy"))[1] for group in groups)
    yield (
        f"ResNet-50, {found['layers']} layers of 72: nn_dataflow {found['cpu_s']:.1f} CPU s; optimal "
        f"{ours:.2f} for all {len(groups)} unique einsums. Energies do not compare: its row-stationary units "
        "and fractional folds have no nest of ours"
    )


def accelforge() -> Iterator[str]:
    """Cases of the shared file: CPU seconds of the peer as listed there, ours measured now."""
    file = json.loads((DATA / "optimal_mapping_cases.json").read_text())
    for case in file["cases"]:
        data = file["arches"][case["arch"]]
        if "einsums" in case["workload"] or "levels" not in data:
            continue
        (e,), arch, objective = (
            einsums(case["workload"]),
            arch_of(data, case["arch"], case["workload"]["bits_per_value"]),
            OBJECTIVES[case["objective"]],
        )
        warm_up(arch)
        one, seconds = timed(partial(optimal, factors="perfect"), Problem(arch, e, objective))
        (listed,), listed_s = case["optimum"][objective], sum(case["cpu_s"].values())
        yield (
            f"{case['id']} {case['arch']} {_shape(e)} {objective}: AccelForge {listed:.9g} in {listed_s:.2f} "
            f"s (listed); optimal {_value(one, objective):.9g} in {1000 * seconds:.1f} ms, "
            f"{listed_s / seconds:.0f} times faster"
        )


def _value(found: EinsumCost | Infeasible, objective: str) -> float:
    return (
        inf
        if isinstance(found, Infeasible)
        else objective_value(objective, found.energy_pj, found.latency_cycles)
    )


def kapla() -> Iterator[str]:
    """As measured before on its own hardware and model; nothing is run."""
    for row in json.loads((DATA / "kapla_reference.json").read_text())["kapla"]:
        yield (
            f"KAPLA (listed) {row['net']} batch {row['batch']} on {row['hardware']}, {row['mapping']}: "
            f"{row['cpu_s']} CPU s, {row['energy_J'] * 1e12:.6g} pJ by its own model"
        )


def baselines(networks: Sequence[str]) -> Iterator[str]:
    """Energy over optimal and CPU seconds of every mapper, unique einsums weighted by how often they run;
    equal ones of several networks are solved once.
    """
    mappers: dict[str, Solve] = {
        "optimal": NEARLY,
        "cost_descending": lambda problem: cost_descending(problem, Random(0)),
        "random": lambda problem: random(problem, Random(0)),
        "annealing": lambda problem: annealing(problem, Random(0), *ROUNDS),
    }
    arch = edge_array()
    warm_up(arch)
    done: dict[tuple[str, str], Timed] = {}
    yield (
        f"| network on {arch.name} | unique einsums | not proven | "
        + " | ".join(f"{name}: energy, CPU s" for name in mappers)
        + " |"
    )
    yield "|---|---|---|" + "---|" * len(mappers)
    for source in networks:
        groups, cells, best = unique_macs(source), [], 0.0
        for name, solve in mappers.items():
            for group in groups:
                if (name, group.key) not in done:
                    done[name, group.key] = timed(solve, Problem(arch, group.einsum, "energy"))
            found = [(*done[name, group.key], group.occurrences) for group in groups]
            pj = sum(n * _value(one, "energy") for one, _, n in found)
            best = best or pj
            cells.append(f"{pj / best:.3f}, {sum(seconds for _, seconds, _ in found):.2f}")
        gaps = [
            one.gap_to_bound
            for group in groups
            if not isinstance(one := done["optimal", group.key][0], Infeasible) and not one.proven
        ]
        yield f"| {source} | {len(groups)} | {len(gaps)} | {' | '.join(cells)} |"
    yield (
        f"optimal: near {NEAR}; random: {MAPPINGS} mappings that fit; annealing: {ROUNDS[0]} rounds of "
        f"{ROUNDS[1]}, its default (the paper's) is 1024 of 128"
    )


def main(arguments: list[str]) -> None:
    match arguments:
        case ["speed", *machines]:
            lines = speed(machines or MACHINES)
        case ["drawn", *rest]:
            lines = drawn(int(rest[0]) if rest else 6, rest[1:] or ARRAYS)
        case ["ended", *seconds]:
            lines = ended(float(seconds[0]) if seconds else 5.0)
        case ["tiles", *layers]:
            lines = tiles(int(layers[0]) if layers else 60)
        case ["baselines", *networks]:
            lines = baselines(networks or BASELINES)
        case ["peers", *rest]:
            with tempfile.TemporaryDirectory() as folder:
                for line in peers(
                    int(rest[0]) if rest else 0, Path(rest[1]).resolve() if rest[1:] else Path(folder)
                ):
                    print(line, flush=True)
            return
        case _:
            sys.exit(__doc__)
    for line in lines:
        print(line, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
