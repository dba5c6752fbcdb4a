"""AccelForge beside us: our machine and workload as its specification. Its mappings are read by
dse/exchange/accelforge_mapping.py.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from hw.arch import Arch, Fanout, Level
from workloads.einsum import Einsum, show_dim
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
    """The components, outermost first: tensors that einsums hand on may stay out of DRAM, but then stand in a
    buffer outside of the arrays; any other level may hold any tensor, or none.
    """
    array_at = {fanout.outside: fanout for fanout in arch.fanouts}
    last = min(array_at) - 1  # the innermost buffer outside of the arrays
    buffers = " | ".join(level.name for level in arch.levels[:last])
    for v, level in enumerate(arch.levels):
        yield from array(array_at.get(v))
        keep = "~Intermediates" if v == 0 else f"~({buffers})" if v == last else "Nothing"
        keep = keep if level.bypass or v == 0 else "All"
        yield f"- !Memory {json.dumps(memory(level, keep))}"
    yield from array(array_at.get(len(arch.levels)))
    compute = {
        "name": "MAC",
        "leak_power": 0,
        "area": 0,
        "actions": [{"name": "compute", "energy": arch.compute.mac_pj, "throughput": 1, "latency": 0}],
    }
    yield f"- !Compute {json.dumps(compute)}"


def array(fanout: Fanout | None) -> Iterator[str]:
    if fanout is not None:
        dims = [{"name": dim, "fanout": n} for dim, n in fanout.dims]
        yield f"- !Container {json.dumps({'name': fanout.name, 'spatial': dims})}"


def dimension_names(workload: Workload) -> dict[str, list[str]]:
    """Names of the dimensions of each tensor: ranks of its maker, else of its first reader."""
    first = {e.output.tensor: e.output for e in workload.einsums}
    for p in (p for e in workload.einsums for p in e.inputs):
        first.setdefault(p.tensor, p)
    return {
        tensor: [
            d.ranks()[0].upper() if len(d.ranks()) == 1 else f"{tensor}_{i}" for i, d in enumerate(p.dims)
        ]
        for tensor, p in first.items()
    }


def einsum_entry(e: Einsum, names: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """An einsum, with an index per dimension of each tensor; none is padded."""
    accesses = [
        {
            "name": p.tensor,
            "projection": dict(zip(names[p.tensor], map(show_dim, p.dims), strict=True)),
            "output": p is e.output,
        }
        for p in (*e.inputs, e.output)
    ]
    return {"name": e.name, "tensor_accesses": accesses}


def specification(arch: Arch, workload: Workload) -> str:
    names = dimension_names(workload)
    sizes = {rank: n for e in workload.einsums for rank, n in e.sizes().items()}
    work = {
        "iteration_space_shape": {rank: f"0 <= {rank} < {n}" for rank, n in sizes.items()},
        "bits_per_value": {"All": arch.word_bits},
        "einsums": [einsum_entry(e, names) for e in workload.einsums],
    }
    return "\n".join(
        ("arch:", "  nodes:", *(f"  {line}" for line in nodes(arch)), yaml.safe_dump({"workload": work}))
    )


def run(python: Path, specs: Mapping[str, str], folder: Path) -> Iterator[dict[str, Any]]:
    """What the driver prints, a specification at a time. Raises CalledProcessError if AccelForge fails."""
    (folder / "specs.json").write_text(json.dumps(specs))
    command = [python, Path(__file__).with_name("accelforge_driver.py"), folder / "specs.json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder) as running:
        assert running.stdout is not None
        for line in running.stdout:
            if line.startswith("{"):
                yield json.loads(line)
    if running.returncode:
        raise subprocess.CalledProcessError(running.returncode, command)
