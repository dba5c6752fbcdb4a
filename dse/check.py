"""What a file of the user is: machine, study or workload, checked whole."""

from __future__ import annotations

from pathlib import Path

from dse.study import study as studies
from hw import machine
from workloads import catalog


def file(path: Path) -> str:
    """What a valid file is, in a line. Raises ValueError with one line per fault."""
    data = machine.read_yaml(path)[0] if path.suffix in (".yaml", ".yml") else None
    if isinstance(data, dict) and "nodes" in data:
        arch = machine.arch(machine.load(str(path)))
        return f"machine {arch.name}, {arch.instances(len(arch.levels))} lanes, {arch.area_mm2():.4g} mm2"
    if isinstance(data, dict) and ("space" in data or "workloads" in data):
        study = studies.load(path)
        return f"study {study.name}, {study.space.size} machines, workloads {', '.join(ref.name for ref in study.workloads)}"
    workload = catalog.load(str(path))
    return f"workload {workload.name}, {len(workload.einsums)} einsums, {workload.macs()} MACs, {workload.parameters} parameters"
