"""Configurations as the repositories of other tools ship them, through `dse convert`; and what Timeloop's own
reference outputs count, beside ours.

python -m bench.exchange_field FOLDER    FOLDER holds a checkout of each of REPOSITORIES; seconds

A row says what became of the files, whether it runs (a mapping is priced; else a product of 64 x 64 x 64 is
mapped on the machine, or the workload is loaded), and what is lost, by kind. NAME=VALUE among the files of a
configuration says a name that its templates leave open. Reference outputs are the
`timeloop-model.stats.txt` that timeloop-accelergy-exercises keeps beside its designs.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from dse.exchange import convert
from dse.frontend import api
from dse.sim.einsum.evaluate import Solution

REPOSITORIES = {  # folder -> commit
    "timeloop-accelergy-exercises": "2d55108",
    "zigzag": "3d12a96",
    "accelforge": "1c1929c",
    "SCALE-Sim": "1d62b68",
    "maestro": "4eb08d1",
}
NETS = "workloads"  # of AccelForge
# of SCALE-Sim: configurations, each with a network
SCALESIM_CONVOLUTIONS = (
    "configs/eyeriss.cfg topologies/conv_nets/alexnet.csv",
    "configs/google.cfg topologies/conv_nets/Resnet18.csv",
    "configs/scale.cfg topologies/conv_nets/Resnet50.csv",
    "configs/rebuttal_test_is.cfg topologies/conv_nets/Googlenet.csv",
    "configs/rebuttal_test_os.cfg topologies/conv_nets/mobilenet.csv",
    "configs/rebuttal_test_ws.cfg topologies/conv_nets/yolo.csv",
    "configs/sparsity.cfg topologies/conv_nets/FasterRCNN.csv",
)
GEMM = "gemm:m=64,n=64,k=64"
EXERCISES = (
    "timeloop-accelergy-exercises/workspace/tutorial_exercises/01_accelergy_timeloop_2020_ispass/timeloop"
)
DESIGNS = "timeloop-accelergy-exercises/workspace/example_designs/example_designs"
# design -> architecture, problem, mapping, reference statistics
MODELS = {
    "00-model-conv1d-1level": ("1level", "conv1d", "conv1d-1level", ""),
    "01-model-conv1d-2level": ("2level", "conv1d", "conv1d-2level-ws", "ws/"),
    "02-model-conv1d+oc-2level": ("2level", "conv1d+oc", "conv1d+oc-2level-os-tiled", "tiling/"),
    "03-model-conv1d+oc-3level": ("3level", "conv1d+oc", "conv1d+oc-3level-bypass", "bypass/"),
    "04-model-conv1d+oc-3levelspatial": (
        "3levelspatial",
        "conv1d+oc+ic",
        "conv1d+oc+ic-3levelspatial-cp-ws",
        "cp/",
    ),
}
# the reference output of 04 is of another architecture, with 16 global buffers
REFERENCES = tuple(MODELS)[:4]
FILES: dict[str, tuple[str, Sequence[str]]] = {  # peer -> below what folder, files of each configuration
    "timeloop": (
        "",
        (
            *(
                f"{EXERCISES}/{d}/arch/{a}.arch.yaml {EXERCISES}/{d}/prob/{p}.prob.yaml "
                f"{EXERCISES}/{d}/map/{m}.map.yaml"
                for d, (a, p, m, _) in MODELS.items()
            ),
            f"{EXERCISES}/06-mapper-convlayer-eyeriss/arch/eyeriss_like.yaml "
            f"{EXERCISES}/06-mapper-convlayer-eyeriss/prob/VGG02_layer5.yaml",
            *(
                f"{DESIGNS}/{name}/arch.yaml"
                for name in (
                    "eyeriss_like",
                    "simba_like",
                    "simple_weight_stationary",
                    "sparse_tensor_core_like",
                )
            ),
        ),
    ),
    "zigzag": (
        "zigzag/zigzag/inputs",
        (
            *(
                f"hardware/{name}.yaml workload/resnet18.yaml"
                for name in ("aimc", "dimc", "eyeriss_like", "generic_array_cacti", "meta_prototype")
            ),
            *(
                f"hardware/{name}.yaml workload/resnet18.yaml mapping/{name}.yaml"
                for name in ("ascend_like", "edge_tpu_like", "tesla_npu_like", "tpu_like")
            ),
            "hardware/gemm_l1_l3.yaml workload/gemm_layer.yaml mapping/gemm_l1_l3.yaml",
        ),
    ),
    "accelforge": (
        "accelforge/examples",
        (
            *(
                f"arches/{name}.yaml"
                for name in ("eyeriss", "nvdla", "simba", "simple", "snowcat", "tpu_v4i")
            ),
            f"{NETS}/basic/three_matmuls_annotated.yaml",
            f"{NETS}/cnns/mobilenet/mobilenet_28.yaml",
            f"{NETS}/transformers/gpt/gpt3_6.7B.yaml BATCH_SIZE=1 N_NEW_TOKENS=1024 DECODE=False",
            f"arches/simple.yaml {NETS}/basic/matmuls.yaml mappings/unfused_matmuls_to_simple.yaml "
            "N_EINSUMS=2",
        ),
    ),
    "scalesim": (
        "SCALE-Sim",
        (
            *SCALESIM_CONVOLUTIONS,
            "configs/tpuv5e_downscale.cfg topologies/llama/llama3b.csv",
            "configs/scale_layout.cfg topologies/translation/gpt2.csv",
            "configs/google_ramulator.cfg topologies/conv_nets/UNet_2d.csv",
        ),
    ),
    "maestro": (
        "maestro/data",
        tuple(
            f"hw/accelerator_1.m model/{name}_model.m"
            for name in (
                *(
                    "MobileNetV2",
                    "ResNeXt50",
                    "Resnet50",
                    "Transformer_Complete",
                    "UNet",
                    "gnmt",
                    "googlenet",
                ),
                *("mnasnet", "squeezenet1_0", "vgg16"),
            )
        ),
    ),
}
READ, WRITE = "read", "write"


def main(folder: Path) -> None:
    """Prints both tables."""
    print("| tool | files | ours | runs | lost |\n|---|---|---|---|---|")
    for peer, (below, groups) in FILES.items():
        for group in groups:
            words = group.split()
            paths = [folder / below / word for word in words if "=" not in word]
            values = dict(word.split("=") for word in words if "=" in word)
            shown = ", ".join(f"`{one}`" for one in (*(path.name for path in paths), *words[len(paths) :]))
            print(f"| {peer} | {shown} | {converted(peer, paths, values)} |")
    print("\n| design | level | tensor | action | Timeloop | here |\n|---|---|---|---|---|---|")
    for design in REFERENCES:
        for row in compared(folder, design):
            print(f"| {design} | {' | '.join(row)} |")


def converted(peer: str, paths: Sequence[Path], values: Mapping[str, str]) -> str:
    """What became of the files, as three cells."""
    with tempfile.TemporaryDirectory() as out:
        try:
            written, notes = convert.convert(peer, paths, Path(out), lossy=True, values=values)
        except ValueError as fault:
            line = re.sub(r"\S*/", "", str(fault).splitlines()[0])
            return f"refused | | {line}"
        lost = Counter(
            re.sub(r"^layer [^.]*", "layers", note.split(": ", 2)[2]) for note in notes if note[0] == "l"
        )
        shown = [f"{key}{f' ({n} times)' if n > 1 else ''}" for key, n in lost.items()]
        kinds = "; ".join([*shown[:3], *([f"{len(shown) - 3} more kinds"] if shown[3:] else [])])
        return f"{', '.join(path.stem for path in written)} | {priced(Path(out))} | {kinds or 'nothing'}"


def priced(out: Path) -> str:
    """One cell: what a price says of the files."""
    machine, workload = out / "machine.yaml", out / "workload.yaml"
    if given := [file for file in (out / "mapping.yaml", out / "schedule.txt") if file.exists()]:
        found = api.simulate(str(workload), str(machine), given[0])
        costs = f"{found.totals['energy_pj']:,.0f} pJ, {found.totals['latency_cycles']:,.0f} cycles"
        return f"{given[0].stem}: {costs}"
    parts = []
    if workload.exists():
        loaded = api.catalog.load(str(workload))
        parts.append(f"{len(loaded.einsums)} einsums, {loaded.macs():,} MACs")
    if machine.exists():
        mapped = api.map(GEMM, str(machine), **{"limits.seconds": 3, "solver.factors": "perfect"})
        fits = isinstance(mapped.solution, Solution)
        parts.append(f"gemm {mapped.totals['latency_cycles']:,.0f} cycles" if fits else "gemm does not fit")
    return "; ".join(parts)


def compared(folder: Path, design: str) -> Iterator[tuple[str, ...]]:
    """Rows of a design: level, tensor, action, words by Timeloop and here, of all instances."""
    arch, problem, mapping, reference = MODELS[design]
    home = folder / EXERCISES / design
    paths = [
        home / f"arch/{arch}.arch.yaml",
        home / f"prob/{problem}.prob.yaml",
        home / f"map/{mapping}.map.yaml",
    ]
    theirs = statistics((home / f"ref-output/{reference}timeloop-model.stats.txt").read_text())
    with tempfile.TemporaryDirectory() as out:
        convert.convert("timeloop", paths, Path(out), lossy=True)
        found = api.simulate(*(f"{out}/{name}.yaml" for name in ("workload", "machine", "mapping")))
    (one,) = found.solution.einsums
    cycles = theirs.pop(("", "", "cycles"))
    yield "", "", "cycles", f"{cycles:,}", f"{found.solution.latency_cycles:,.0f}"
    ours: Counter[tuple[str, str, str]] = Counter()
    for count in one.counts:
        if count.action in (READ, WRITE):
            ours[count.level.lower(), count.tensor, count.action] += round(count.elems)
    for key in sorted({*theirs, *ours}):
        if theirs[key] or ours[key]:
            yield *key, f"{theirs[key]:,}", f"{ours[key]:,}"
    assert all(
        ours[key] - theirs[key] == (drained(ours, key) if key[1:] == ("Outputs", READ) else 0) for key in ours
    ), f"{design}: a difference is no drain of outputs"


def drained(ours: Counter[tuple[str, str, str]], key: tuple[str, str, str]) -> int:
    """Outputs that leave a level inside: read there here, and free in Timeloop."""
    return 0 if key[0] == "mainmemory" else ours["mainmemory", "Outputs", WRITE]


def statistics(text: str) -> Counter[tuple[str, str, str]]:
    """Words of all instances by level, tensor and action of a timeloop-model.stats.txt, and its cycles. Fills
    and updates are writes here.
    """
    found: Counter[tuple[str, str, str]] = Counter()
    level, tensor, instances = "", "", 1
    for line in text.partition("Networks")[0].splitlines():
        if match := re.match(r"=== (\w+) ===", line):
            level, tensor = match[1].lower(), ""
        elif match := re.match(r"    (\w+):$", line):
            tensor = match[1]
        elif match := re.match(r"\s+Utilized instances \(max\)\s+: (\d+)", line):
            instances = int(match[1])
        elif match := re.match(r"\s+Scalar (read|fill|update)s \(per-instance\)\s+: (\d+)", line):
            found[level, tensor, READ if match[1] == "read" else WRITE] += int(match[2]) * instances
    cycles = re.search(r"^Cycles: (\d+)", text, re.M)
    assert cycles
    found["", "", "cycles"] = int(cycles[1])
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]))
