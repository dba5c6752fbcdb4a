"""AccelForge beside us: our machine and workload as its specification. Its mappings are read by
dse/exchange/accelforge_mapping.py.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from hw.arch import Arch, Level
from workloads.einsum import Einsum
from workloads.graph import Workload


def memory(level: Level, keep: str) -> dict[str, Any]:
    """keep: tensors that must stand there, in its set expressions. Its energies are per bit, its rates only
    matter to latency.
    """
    actions = [
        {"name": name, "energy": pj / level.width_bits, "throughput": "inf", "latency": 0}
        for name, pj in (("read", level.read_pj), ("write", level.write_pj))
    ]
    return {
        "name": level.name,
        "size": level.capacity_bits or "inf",
        "leak_power": 0,
        "area": 0,
        "tensors": {"keep": keep, "may_keep": "All"},
        "actions": actions,
    }


def nodes(arch: Arch) -> Iterator[str]:
    """A machine of two levels above one array, outermost first: what the array hands on may stay in the
    buffer or pass it by, only what it hands on may stay out of DRAM.
    """
    outer, buffer = arch.levels
    yield f"- !Memory {json.dumps(memory(outer, '~Intermediates'))}"
    yield f"- !Memory {json.dumps(memory(buffer, f'~{outer.name}'))}"
    compute = {
        "name": "MAC",
        "leak_power": 0,
        "area": 0,
        "spatial": [{"name": dim, "fanout": n} for dim, n in arch.fanouts[0].dims],
        "actions": [{"name": "compute", "energy": arch.compute.mac_pj, "throughput": 1, "latency": 0}],
    }
    yield f"- !Compute {json.dumps(compute)}"


def einsum_entry(e: Einsum) -> dict[str, Any]:
    """Every dimension of every tensor is one rank."""
    accesses = [
        {"name": p.tensor, "projection": [rank for d in p.dims for rank in d.ranks()]} for p in e.inputs
    ]
    output = {"name": e.output.tensor, "projection": [rank for d in e.output.dims for rank in d.ranks()]}
    return {"name": e.name, "tensor_accesses": [*accesses, output | {"output": True}]}


def specification(arch: Arch, workload: Workload) -> str:
    sizes = {rank: n for e in workload.einsums for rank, n in e.sizes().items()}
    work = {
        "iteration_space_shape": {rank: f"0 <= {rank} < {n}" for rank, n in sizes.items()},
        "bits_per_value": {"All": arch.word_bits},
        "einsums": [einsum_entry(e) for e in workload.einsums],
    }
    return "\n".join(
        ("arch:", "  nodes:", *(f"  {line}" for line in nodes(arch)), yaml.safe_dump({"workload": work}))
    )


def run(python: Path, arch: Arch, workloads: list[Workload], folder: Path) -> Iterator[dict[str, Any]]:
    """What the driver prints, a workload at a time. Raises CalledProcessError if AccelForge fails."""
    specs = {workload.name: specification(arch, workload) for workload in workloads}
    (folder / "specs.json").write_text(json.dumps(specs))
    command = [python, Path(__file__).with_name("accelforge_driver.py"), folder / "specs.json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder) as running:
        assert running.stdout is not None
        for line in running.stdout:
            if line.startswith("{"):
                yield json.loads(line)
    if running.returncode:
        raise subprocess.CalledProcessError(running.returncode, command)
