"""Files of Timeloop v0.4, merged by their top-level keys as there -> machine, workload, mapping."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dse.exchange import documents, shape, timeloop_machine, timeloop_mapping, timeloop_problem
from dse.exchange.notes import Converted, Notes, Unreadable, refuse
from dse.exchange.timeloop_machine import Named
from dse.mapping import nest
from hw import machine as machines
from workloads import text

ALIASES = {"arch": "architecture", "compound_components": "components"}
CONSTRAINTS = ("constraints", "mapspace_constraints", "architecture_constraints", "mapspace")
# keys of files that say nothing about the design
SILENT = ("globals", "mapper", "components", "variables", "ERT", "ART", "ERT_summary", "ART_summary", "model")


def _nodes() -> shape.Shape:
    constraints = {
        "dataspace": {"keep": [shape.TEXT], "bypass": [shape.TEXT], "keep_only": [shape.TEXT]},
        "temporal": {shape.ANY: object},
        "spatial": {shape.ANY: object},
    }
    node = {
        "name": shape.TEXT,
        "attributes": {shape.ANY: object},
        "spatial": {shape.ANY: shape.AMOUNT},
        "constraints": constraints,
        "nodes": _nodes,
    }
    return [node]


_PROBLEM_SHAPE = {
    "dimensions!": [shape.TEXT],
    "coefficients": [{"name!": shape.TEXT, "default": shape.AMOUNT}],
    "data_spaces!": [{"name!": shape.TEXT, "projection!": [object]}],
}
_TARGETS = [
    {
        "target!": shape.TEXT,
        "type!": shape.TEXT,
        "factors": ([shape.TEXT], shape.TEXT),
        "permutation": ([shape.TEXT], shape.TEXT),
        "split": shape.NUMBER,
        "keep": [shape.TEXT],
        "bypass": [shape.TEXT],
    }
]
_ENTRIES = [
    {"name!": shape.TEXT, "area": shape.NUMBER, "actions": [{"name!": shape.TEXT, "energy": shape.NUMBER}]}
]
SHAPES: dict[str, shape.Shape] = {
    "architecture": {"nodes": _nodes},
    "problem": {"shape!": (shape.TEXT, _PROBLEM_SHAPE), "instance": {shape.ANY: object}},
    "mapping": _TARGETS,
    "variables": {shape.ANY: object},
    "ERT": {"tables": _ENTRIES},
    "ART": {"tables": _ENTRIES},
}
Found = dict[str, tuple[str, Any]]  # top-level key -> (file, value)


def read(paths: Sequence[Path], notes: Notes) -> Converted:
    """Returns what the files hold. Raises Unreadable with one line per fault."""
    found = _merged(paths, notes)
    if not {"architecture", "problem"} & found.keys():
        refuse([f"{paths[0]}: holds no architecture and no problem; give files of Timeloop v0.4"])
    file, problem = found.get("problem", ("", None))
    variables = found.get("variables", ("", {}))[1] or {}
    workload = timeloop_problem.read(file, problem, variables, notes) if problem is not None else None
    named = _machine(found, workload, notes) if "architecture" in found else None
    mapping = _mapping(found, workload, named, notes) if "mapping" in found else None
    return Converted(named.machine if named else None, workload, mapping)


def parts(path: Path) -> timeloop_mapping.Parts:
    """Returns the nodes of an architecture file: the names that a mapping for it must bear."""
    notes = Notes()
    found = _merged([path], notes)
    if "architecture" not in found:
        refuse([f"{path}: holds no architecture; give the file whose names the mapping shall bear"])
    return _machine(found, None, notes).parts


def _merged(paths: Sequence[Path], notes: Notes) -> Found:
    found: Found = {}
    for path in paths:
        data = documents.read(path, notes)
        if not isinstance(data, dict):
            raise Unreadable(f"{path}: holds no keys; give a YAML file of Timeloop")
        for key, value in data.items():
            key = ALIASES.get(str(key), str(key))
            if key in found and key not in SILENT:
                raise Unreadable(
                    f"{path}: {key} stands in {found[key][0]}, too; convert one design at a time"
                )
            refuse(shape.faults(str(path), key, value, SHAPES.get(key, object)))
            found[key] = (str(path), value)
            if (
                key not in (*SILENT, *CONSTRAINTS, "architecture", "problem", "mapping")
                and "ignore" not in key
            ):
                notes.lost(str(path), key, "is not carried over")
    return found


def _machine(found: Found, workload: Mapping[str, Any] | None, notes: Notes) -> Named:
    file, architecture = found["architecture"]
    if not isinstance(architecture, dict):
        refuse([f"{file}: architecture must hold nodes; see Timeloop's version 0.4"])
    tables: dict[str, Any] = {key: found[key][1] for key in ("ERT", "ART") if key in found}
    roles = timeloop_problem.roles(workload) if workload else {}
    variables = found.get("variables", ("", {}))[1] or {}
    targets = list(_targets(found, notes))
    return timeloop_machine.read(
        file, architecture, variables, roles, timeloop_problem.shape(workload), tables, targets, notes
    )


def _targets(found: Found, notes: Notes) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields (file, target) of constraints beside the architecture."""
    for key in CONSTRAINTS:
        file, value = found.get(key, ("", None))
        given = value.get("targets", value.get("constraints")) if isinstance(value, dict) else value
        for one in given if isinstance(given, list) else ():
            if isinstance(one, dict) and "target" in one:
                yield file, one


def _mapping(
    found: Found, workload: Mapping[str, Any] | None, named: Named | None, notes: Notes
) -> dict[str, list[dict[str, Any]]]:
    file, targets = found["mapping"]
    if workload is None or named is None or not isinstance(targets, list):
        refuse([f"{file}: mapping needs its architecture and problem; give their files, too"])
    assert workload is not None
    assert named is not None
    spec, faults = machines.parse(named.machine, "machine")
    refuse(f"{found['architecture'][0]}: {line}" for line in faults)
    entry = text.Entry(**workload["einsums"][0])
    e = text.workload(workload["extents"], entry.text).einsums[0]
    arch = machines.arch(spec)
    read = timeloop_mapping.read(file, targets, named.parts, e, arch, notes)
    return {entry.name: nest.to_data(read)}
