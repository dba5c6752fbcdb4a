"""Runs inside AccelForge's own environment (Python 3.12): its fused mapper (FFM) maps workloads for energy,
in one process. Prints one JSON object a workload. Needs accelforge, nothing of ours.

python accelforge_driver.py SPECS.json

SPECS.json: {name: text of a specification} (bench/peers/accelforge_files.py). CPU seconds are the mapper's:
partial mappings and their join; imports and files are left out.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import accelforge as af
from accelforge.mapper.FFM import main as ffm


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
    return {"cpu_s": took, "energy_pj": float(energies.min()), "mapping": tree(best)}


def main(specs: str) -> None:
    af.set_n_parallel_jobs(1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spec.yaml"
        for name, text in json.loads(Path(specs).read_text()).items():
            path.write_text(text)
            print(json.dumps({"name": name} | mapped(path)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
