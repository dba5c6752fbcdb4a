"""Runs inside AccelForge's own environment (Python 3.12): its fused mapper (FFM) maps workloads for energy,
in one process. Prints one JSON object a workload. Needs accelforge, nothing of ours.

python accelforge_driver.py SPECS.json

SPECS.json: {name: text of a specification} (bench/peers/accelforge_files.py). CPU seconds are the mapper's:
partial mappings and their join; imports and files are left out. A fault, or no answer in SECONDS of CPU time,
is a line too.
"""

import json
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import accelforge as af
from accelforge.mapper.FFM import main as ffm

SECONDS = 900


def tree(node: Any) -> list[Any]:
    """The nodes of a mapping, outermost first: ["loop", ranks, tile, dimension or ""], ["store", memory,
    tensors], ["einsum", name], ["split", branches]. What only reserves capacity is left out.
    """
    found: list[Any] = []
    for own in node.nodes:
        kind = type(own).__name__
        if kind == "Nested":
            found += tree(own)
        elif kind in ("Sequential", "Pipeline"):
            found.append(["split", [tree(branch) for branch in own.nodes]])
        elif kind in ("Temporal", "Spatial"):
            ranks = [own.rank_variable] if isinstance(own.rank_variable, str) else sorted(own.rank_variable)
            found.append(["loop", ranks, int(own.tile_shape), str(getattr(own, "name", ""))])
        elif kind == "Storage":
            found.append(["store", own.component, [str(tensor) for tensor in own.tensors]])
        elif kind == "Compute":
            found.append(["einsum", own.einsum])
    return found


def mapped(path: Path) -> dict[str, Any]:
    spec = af.Spec.from_yaml(path)
    spec.mapper.metrics = af.Metrics.ENERGY
    begun = time.process_time()
    partial = ffm.make_pmappings(spec, print_progress=False)
    joined = ffm.join_pmappings(partial, metrics=af.Metrics.ENERGY, print_progress=False)
    took = time.process_time() - begun
    energies = joined.data["Total<SEP>energy"]
    best = joined.data.iloc[int(energies.argmin())]["Total<SEP>mapping"]()
    return {
        "cpu_s": took,
        "energy_pj": float(energies.min()),
        "mapping": tree(best),
        "own_model": own_model(spec, best),
    }


def own_model(spec: af.Spec, mapping: Any) -> str:
    """What AccelForge's model says of a mapping of its mapper: pJ, or why it refuses it."""
    spec.mapping = mapping
    try:
        return f"{float(spec.evaluate_mapping().energy()):.9g}"
    except Exception as fault:  # of another tool: any kind
        return str(fault).splitlines()[0]


def late(*_: object) -> None:
    raise TimeoutError(f"no answer in {SECONDS} CPU s")


def main(specs: str) -> None:
    signal.signal(signal.SIGVTALRM, late)
    af.set_n_parallel_jobs(1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spec.yaml"
        for name, text in json.loads(Path(specs).read_text()).items():
            path.write_text(text)
            signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
            try:
                answer = mapped(path)
            except Exception as fault:  # of another tool: any kind
                answer = {"fault": f"{type(fault).__name__}: {fault}".splitlines()[0]}
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            print(json.dumps({"name": name} | answer), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
