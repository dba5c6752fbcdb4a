"""Files of other tools -> ours (`dse convert`), and mappings of ours -> theirs (`--format timeloop` ...)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from dse.exchange import (
    accelforge,
    accelforge_mapping,
    maestro,
    scalesim,
    timeloop,
    timeloop_mapping,
    zigzag,
    zigzag_mapping,
)
from dse.exchange.documents import TAG
from dse.exchange.notes import Converted, NotCarried, Notes, refuse
from dse.mapping import nest
from hw import machine as machines
from hw.arch import Arch
from workloads import text
from workloads.einsum import Einsum

READERS: dict[str, Callable[[Sequence[Path], Notes], Converted]] = {
    "timeloop": timeloop.read,
    "zigzag": zigzag.read,
    "accelforge": accelforge.read,
    "scalesim": scalesim.read,
    "maestro": maestro.read,
}
FILES = {
    "machine": "machine.yaml",
    "workload": "workload.yaml",
    "mapping": "mapping.yaml",
    "schedule": "schedule.txt",
}
ADVICE = "--lossy converts all the same"
WIDTH = 110


def convert(
    peer: str, paths: Sequence[Path], out: Path, lossy: bool, values: Mapping[str, str] | None = None
) -> tuple[list[Path], list[str]]:
    """Writes what the files of a peer hold into a folder. Returns the files written, and the notes.

    values: of names that the files leave to a template

    Raises Unreadable for files that cannot be read; NotCarried where something is lost and lossy is False.
    Nothing is written then.
    """
    notes = Notes(values=values or {})
    found = READERS[peer](paths, notes)
    if losses := [] if lossy else notes.losses():
        raise NotCarried("\n".join([*losses, f"{len(losses)} lost, nothing is written; {ADVICE}"]))
    texts = dict(_texts(peer, paths, found))
    _check(found)
    written = []
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, value in texts.items():
            (out / name).write_text(value, encoding="utf-8")
            written.append(out / name)
    except OSError as fault:
        refuse([f"{out}: cannot be written ({fault.strerror}); give another folder"])
    return written, [str(note) for note in notes.found]


def _texts(peer: str, paths: Sequence[Path], found: Converted) -> Iterator[tuple[str, str]]:
    head = f"# From {', '.join(path.name for path in paths)} ({peer}), by dse convert.\n"
    if found.machine is not None:
        yield FILES["machine"], head + machine_text(found.machine)
    if found.workload is not None:
        yield FILES["workload"], head + yaml.safe_dump(found.workload, sort_keys=False, width=WIDTH)
    if found.mapping is not None:
        lines = (
            f"{name}:\n" + "".join(f"- {_flow(node)}\n" for node in own)
            for name, own in found.mapping.items()
        )
        yield FILES["mapping"], head + "".join(lines)
    if found.schedule is not None:
        yield FILES["schedule"], f"{found.schedule}\n"


def machine_text(document: Mapping[str, Any]) -> str:
    """Returns a machine file, a line per node."""
    top = {key: value for key, value in document.items() if key != "nodes"}
    nodes = "".join(f"- {_flow(_kind_first(node))}\n" for node in document["nodes"])
    return yaml.safe_dump(top, sort_keys=False) + f"nodes:\n{nodes}"


def _kind_first(node: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a node with its kind behind its name."""
    (role, name), *_ = node.items()
    return {role: name} | ({"kind": node["kind"]} if "kind" in node else {}) | dict(node)


def _flow(value: Any) -> str:
    return str(yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000)).strip()


def _check(found: Converted) -> None:
    """Raises Unreadable for files that our readers would refuse."""
    if found.machine is not None:
        _, faults = machines.parse(found.machine, "machine")
        refuse(f"machine: {line}" for line in faults)
    if found.workload is not None:
        entries = found.workload["einsums"]
        try:
            for one in entries:
                text.workload(found.workload["extents"] | one.get("extents", {}), one["text"])
        except ValueError as fault:
            refuse(f"workload: {line}" for line in str(fault).splitlines())


def _write_timeloop(
    mappings: Mapping[str, nest.Mapping],
    einsums: Mapping[str, Einsum],
    arch: Arch,
    names: Path | None,
    notes: Notes,
) -> str:
    parts = timeloop.parts(names) if names else None
    documents = [
        {"mapping": timeloop_mapping.write("dse", one, einsums[name], arch, notes, parts)}
        for name, one in mappings.items()
    ]
    return "---\n".join(
        f"# {name}\nmapping:\n" + "".join(f"- {_flow(entry)}\n" for entry in document["mapping"])
        for name, document in zip(mappings, documents, strict=True)
    )


def _write_accelforge(
    mappings: Mapping[str, nest.Mapping], einsums: Mapping[str, Einsum], arch: Arch, _: Path | None, __: Notes
) -> str:
    trees = [accelforge_mapping.write("dse", one, einsums[name], arch) for name, one in mappings.items()]
    if len(trees) == 1:
        return "mapping:\n  nodes:\n" + "".join(f"  - {_tagged(node)}\n" for node in trees[0])
    nested = (
        "    - !Nested\n      nodes:\n" + "".join(f"      - {_tagged(node)}\n" for node in tree)
        for tree in trees
    )
    return "mapping:\n  nodes:\n  - !Sequential\n    nodes:\n" + "".join(nested)


def _tagged(node: Mapping[str, Any]) -> str:
    return f"!{node[TAG]} {_flow({key: value for key, value in node.items() if key != TAG})}"


def _write_zigzag(
    mappings: Mapping[str, nest.Mapping],
    einsums: Mapping[str, Einsum],
    arch: Arch,
    _: Path | None,
    notes: Notes,
) -> str:
    layers = [zigzag_mapping.write("dse", one, einsums[name], arch, notes) for name, one in mappings.items()]
    return str(yaml.safe_dump(layers, sort_keys=False, default_flow_style=None, width=WIDTH))


Writer = Callable[[Mapping[str, nest.Mapping], Mapping[str, Einsum], Arch, Path | None, Notes], str]
WRITERS: dict[str, Writer] = {
    "timeloop": _write_timeloop,
    "zigzag": _write_zigzag,
    "accelforge": _write_accelforge,
}


def written(
    peer: str, mappings: Mapping[str, nest.Mapping], einsums: Sequence[Einsum], arch: Arch, names: Path | None
) -> str:
    """Returns mappings of ours as a file of a peer. names: its architecture file, whose names they bear.

    Raises Unreadable for what it cannot express, NotCarried where it would cost something else there.
    """
    notes = Notes()
    if arch.units:
        raise ValueError(f"{arch.name} has several computes, which mappings for {peer} cannot name")
    found = WRITERS[peer](mappings, {e.name: e for e in einsums}, arch, names, notes)
    if losses := notes.losses():
        raise NotCarried("\n".join(losses))
    return found
