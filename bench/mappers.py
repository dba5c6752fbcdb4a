"""Mappers side by side in one run: CPU seconds (compile excluded), and energy of every mapping under our evaluator.

python -m bench.mappers speed [NETWORK...]       optimal on every unique einsum, energy of the divisor and the ragged space
python -m bench.mappers peers [LAYERS] [FOLDER]  ZigZag and nn_dataflow in environments of their own (made in FOLDER, default a temporary one) on
                                                 ResNet-18 and ResNet-50; AccelForge and KAPLA as published or measured before
python -m bench.mappers baselines [NETWORK...]   cost_descending, random, annealing over optimal, as a README table
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import inf
from pathlib import Path
from random import Random
from statistics import median

from bench.peers import zigzag_files
from bench.peers.environment import python_of
from dse.dataflow.annealing import annealing
from dse.dataflow.cost_descending import cost_descending
from dse.dataflow.optimal import optimal, solved
from dse.dataflow.random import random
from dse.nest import Infeasible
from dse.sim.evaluate import EinsumCost, Problem, figure
from hw.arch import Arch, Compute, Fanout, Level
from tests.cases_optimal import OBJECTIVES, arch_of, einsums
from workloads import catalog
from workloads.einsum import Einsum
from workloads.graph import Unique, unique

DATA = Path(__file__).parents[1] / "tests" / "data"
# ZigZag's TPU-like example (specs/field.md, 1.1) with one register file and one SRAM for all operands, so that both tools have the same machine.
TPU_LIKE = Arch("tpu_like", (
    Level("DRAM", None, 64, 700.0, 750.0, 1.0, bypass=False), Level("SRAM", 1 << 24, 64, 416.16 / 32, 378.4 / 32, 32.0), Level("RF", 1024, 8, 0.095, 0.095)),
    (Fanout("array", 2, (("x", 32), ("y", 32)), (True, True), (True, True)),), Compute(0.04, 0.04), 1.0, 8)
SPEED = ["resnet50", "vgg19", "squeezenet", "bert_base", "llama7b:phase=prefill", "llama7b:phase=decode"]
NETWORKS = ["alexnet", "vgg19", "resnet50", "squeezenet", "shufflenet", "inception_v1", "densenet121"]
ROUNDS = (24, 32)  # of annealing here; the paper's budget is the mapper's default
Solve = Callable[[Problem], list[EinsumCost] | Infeasible]


def timed(solve: Solve, problem: Problem) -> tuple[EinsumCost | Infeasible, float]:
    """Result and CPU seconds."""
    began = time.process_time()
    found = solve(problem)
    return (found if isinstance(found, Infeasible) else found[0]), time.process_time() - began


def _optimal(problem: Problem) -> list[EinsumCost] | Infeasible:
    return optimal(problem, Random(0))


def warm_up(arch: Arch) -> None:
    """Compiles or loads the kernels, so that no layer pays for it."""
    for source in ("gemm:m=8,n=8,k=8", "conv:k=4,c=4,p=6,q=6,r=3,s=3,pad=1"):
        _optimal(Problem(arch, catalog.load(source).einsums[0], "energy"))


def unique_macs(source: str) -> list[Unique]:
    return [group for group in unique(catalog.load(source)) if group.einsum.kind == "mac"]


def speed(networks: Sequence[str]) -> Iterator[str]:
    """Per layer: CPU ms of optimal, pJ of the optimum over divisor and over ragged tiles; per network the median and the worst."""
    warm_up(TPU_LIKE)
    for source in networks:
        spent = []
        for group in unique_macs(source):
            one, seconds = timed(_optimal, Problem(TPU_LIKE, group.einsum, "energy"))
            rough, slower = timed(partial(solved, tiles="ragged"), Problem(TPU_LIKE, group.einsum, "energy"))
            spent.append(1000 * seconds)
            yield (f"{source} {group.names[0]} x{group.count} {_shape(group.einsum)}: {spent[-1]:.1f} ms, divisor {_pj(one)}, "
                   f"ragged {_pj(rough)} ({1000 * slower:.1f} ms)")
        yield f"{source}: {len(spent)} unique einsums, CPU ms median {median(spent):.1f}, worst {max(spent):.1f}, sum {sum(spent):.1f}"


def _shape(e: Einsum) -> str:
    return " ".join(f"{rank}{n}" for rank, n in e.extents)


def _pj(found: EinsumCost | Infeasible) -> str:
    return str(found) if isinstance(found, Infeasible) else f"{found.energy_pj:.6g} pJ"


def peers(layers: int, folder: Path) -> Iterator[str]:
    """layers: only the first so many of the networks; 0: all."""
    yield from against_zigzag(layers, folder)
    yield from beside_nn_dataflow(layers, folder)
    yield from accelforge()
    yield from kapla()


def against_zigzag(layers: int, folder: Path) -> Iterator[str]:
    """ResNet-18 on the same machine: ZigZag maps every layer, we map every unique one; its mappings are costed by our evaluator."""
    work = folder / "zigzag_run"
    work.mkdir(exist_ok=True)
    found = zigzag_files.run(python_of("zigzag", folder), TPU_LIKE, work, layers)
    workload = catalog.load(found["network"])
    own, keys = {e.name: e for e in workload.einsums}, {name: group.key for group in unique(workload) for name in group.names}
    warm_up(TPU_LIKE)
    done: dict[str, tuple[EinsumCost, float, float]] = {}  # per unique einsum: ours, our seconds, ZigZag's seconds
    theirs = ours = 0.0
    for layer in found["layers"]:
        e = own[zigzag_files.name_of(layer)]
        if keys[e.name] not in done:
            done[keys[e.name]] = (*_solved(e), layer["cpu_s"])
        one, seconds, _ = done[keys[e.name]]
        other, how = zigzag_files.translated(layer, e, TPU_LIKE)
        theirs, ours = theirs + other.energy_pj, ours + one.energy_pj
        yield (f"{e.name} {_shape(e)}: ZigZag {layer['cpu_s']:.2f} s, {other.energy_pj:.6g} pJ ({how}; {layer['energy_pj']:.6g} by its own model); "
               f"optimal {1000 * seconds:.1f} ms, {one.energy_pj:.6g} pJ, ratio {other.energy_pj / one.energy_pj:.3f}")
    seconds, once = sum(s for _, s, _ in done.values()), sum(s for _, _, s in done.values())
    yield (f"ResNet-18, {len(found['layers'])} layers: ZigZag {found['cpu_s']:.1f} CPU s ({once:.1f} for one of each of the {len(done)} unique), "
           f"optimal {seconds:.2f}: {found['cpu_s'] / seconds:.0f} times faster ({once / seconds:.0f} on unique layers); "
           f"energy of ZigZag's mappings over ours {theirs / ours:.3f}")


def _solved(e: Einsum) -> tuple[EinsumCost, float]:
    one, seconds = timed(_optimal, Problem(TPU_LIKE, e, "energy"))
    if isinstance(one, Infeasible):
        raise ValueError(str(one))
    return one, seconds


def beside_nn_dataflow(layers: int, folder: Path) -> Iterator[str]:
    """ResNet-50, exhaustive search on one node of 16 x 16 PEs. Only its time compares."""
    command = [python_of("nn_dataflow", folder), Path(__file__).parent / "peers" / "nn_dataflow_driver.py", "resnet50", str(layers)]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder).stdout.splitlines()[-1])
    warm_up(TPU_LIKE)
    groups = unique_macs("resnet50")
    ours = sum(timed(_optimal, Problem(TPU_LIKE, group.einsum, "energy"))[1] for group in groups)
    yield (f"ResNet-50, {found['layers']} layers of 72: nn_dataflow {found['cpu_s']:.1f} CPU s; optimal {ours:.2f} for all {len(groups)} unique einsums. "
           "Energies do not compare: its row-stationary units and fractional folds have no nest of ours")


def accelforge() -> Iterator[str]:
    """Cases of the shared file: CPU seconds of the peer as listed there, ours measured now."""
    file = json.loads((DATA / "optimal_mapping_cases.json").read_text())
    for case in file["cases"]:
        data = file["arches"][case["arch"]]
        if "einsums" in case["workload"] or "levels" not in data:
            continue
        (e,), arch, objective = einsums(case["workload"]), arch_of(data, case["arch"], case["workload"]["bits_per_value"]), OBJECTIVES[case["objective"]]
        warm_up(arch)
        one, seconds = timed(partial(solved, tiles="perfect"), Problem(arch, e, objective))
        (listed,), listed_s = case["optimum"][objective], sum(case["cpu_s"].values())
        yield (f"{case['id']} {case['arch']} {_shape(e)} {objective}: AccelForge {listed:.9g} in {listed_s:.2f} s (listed); "
               f"optimal {_value(one, objective):.9g} in {1000 * seconds:.1f} ms, {listed_s / seconds:.0f} times faster")


def _value(found: EinsumCost | Infeasible, objective: str) -> float:
    return inf if isinstance(found, Infeasible) else figure(objective, found.energy_pj, found.latency_cycles)


def kapla() -> Iterator[str]:
    """As measured before on its own hardware and model; nothing is run."""
    for row in json.loads((DATA / "kapla_reference.json").read_text())["kapla"]:
        yield (f"KAPLA (listed) {row['net']} batch {row['batch']} on {row['hardware']}, {row['mapping']}: {row['cpu_s']} CPU s, "
               f"{row['energy_J'] * 1e12:.6g} pJ by its own model")


def baselines(networks: Sequence[str]) -> Iterator[str]:
    """Energy over optimal and CPU seconds of every mapper, unique einsums weighted by how often they run."""
    mappers: dict[str, Solve] = {
        "optimal": _optimal, "cost_descending": lambda problem: cost_descending(problem, Random(0)), "random": lambda problem: random(problem, Random(0)),
        "annealing": lambda problem: annealing(problem, Random(0), *ROUNDS)}
    warm_up(TPU_LIKE)
    yield f"| network, {TPU_LIKE.name} | " + " | ".join(f"{name}: energy, CPU s" for name in mappers) + " |"
    yield "|---|" + "---|" * len(mappers)
    for source in networks:
        totals = {name: _network(solve, unique_macs(source)) for name, solve in mappers.items()}
        yield f"| {source} | " + " | ".join(f"{pj / totals['optimal'][0]:.3f}, {seconds:.2f}" for pj, seconds in totals.values()) + " |"
    yield f"annealing: {ROUNDS[0]} rounds of {ROUNDS[1]}; the paper's budget, 1024 of 128, is its default"


def _network(solve: Solve, groups: Sequence[Unique]) -> tuple[float, float]:
    """(pJ, CPU seconds) of a network."""
    results = [(*timed(solve, Problem(TPU_LIKE, group.einsum, "energy")), group.count) for group in groups]
    return sum(n * _value(one, "energy") for one, _, n in results), sum(seconds for _, seconds, _ in results)


def main(arguments: list[str]) -> None:
    match arguments:
        case ["speed", *networks]:
            lines = speed(networks or SPEED)
        case ["baselines", *networks]:
            lines = baselines(networks or NETWORKS)
        case ["peers", *rest]:
            with tempfile.TemporaryDirectory() as folder:
                for line in peers(int(rest[0]) if rest else 0, Path(rest[1]).resolve() if rest[1:] else Path(folder)):
                    print(line, flush=True)
            return
        case _:
            sys.exit(__doc__)
    for line in lines:
        print(line, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
