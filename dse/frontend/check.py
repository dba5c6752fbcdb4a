"""Checks user files (machine, study or workload) and run folders completely."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dse.explain import units
from dse.frontend import contracts, plausible
from dse.run import cache, folder, record
from hw import component, machine
from hw.arch import MacUnit, Memory
from hw.space import override
from hw.voltage import energy_factor
from workloads import plugin

if TYPE_CHECKING:  # each command imports what it needs, so that start-up is short
    from hw.arch import Arch, Machine
    from workloads.einsum import Einsum
    from workloads.graph import Layer, Workload
    from workloads.sparsity import TileRow


MAX_NAMES = 8  # tensors that a note lists


def file(text: str, sets: Sequence[str] = ()) -> tuple[str, list[Layer]]:
    """Returns one line about a valid file or a workload of the catalog, and a workload's layer table (else
    []).

    sets: KEY=VALUE each, of a machine as in `dse map`, of a study as in `dse run`

    Raises ValueError with one line per fault.
    """
    from dse.study import read
    from dse.study import study as studies
    from workloads import catalog

    path = Path(text)
    if plugin.SPEC.fullmatch(text):
        return contracts.check(text), []
    if not path.exists() and text.partition(":")[0] in catalog.names():
        return _workload(text, sets)
    kind = kind_of(text)
    if kind == "machine":
        spec = _machine(text, sets)
        arch = machine.arch(spec)
        supply = "" if arch.vdd is None else f", {arch.vdd:g} V"
        units = f"{arch.instances(len(arch.levels))} MAC units, {arch.area_mm2():.4g} mm2{supply}"
        lines = [
            f"machine {arch.name}, {units}",
            *_channels(spec),
            *_lockstep(spec),
            *_voltages(spec, arch),
            *plausible.machine_lines(spec, arch),
        ]
        return "\n".join(lines), []
    if kind == "study":
        study = studies.load(path, sets)
        line = (
            f"study {study.name}, {study.space.size} machines, workloads "
            f"{', '.join(ref.name for ref in study.workloads)}"
        )
        return "\n".join([line + _warning(*study.loaded_workloads), *plausible.space_lines(study.space)]), []
    found = Path(catalog.file_in(text)[1])  # parameters may follow: net.onnx:batch=4
    absent = found if found.suffix else path
    if absent.suffix and not absent.exists():
        raise ValueError(f"{absent}: there is no such file; check the path")
    if (path / "study.yaml").is_file():
        raise ValueError(f"{path}: is the folder of a run; dse status {path}, dse check {path}/study.yaml")
    if not absent.suffix and not path.exists():
        name = text.partition(":")[0]
        known = component.closest_name(name, (*catalog.names(), *machine.names()))
        raise ValueError(f"{name}: no file, workload or machine has this name; {known}")
    if not str(found).lower().endswith(read.SUFFIXES) or not found.is_file():
        raise ValueError(
            f"{path}: is no file to check; give a .yaml file (machine, study, workload), an .onnx, "
            "a .pt2, a matrix (.mtx, .mtx.gz, .npz) or a config.json file"
        )
    return _workload(text, sets)


def _channels(spec: Machine) -> Iterator[str]:
    """Yields a line per DRAM: how wide a channel is, and the bandwidth that follows."""
    for node in spec.nodes:
        if isinstance(node, Memory) and node.kind in component.dram_kinds():
            part, n = component.dram(node.kind), node.channels
            several = f"{n} {node.kind} channels, {part.transfers()} each"
            given = node.bandwidth is not None or node.actions_per_cycle is not None
            yield (
                f"{node.name}: {several if n > 1 else f'1 {node.kind} channel, {part.transfers()}'} = "
                f"{n * part.bandwidth_gbps:g} GB/s{' (not used: the file gives a bandwidth)' * given}"
            )


def _lockstep(spec: Machine) -> Iterator[str]:
    """Yields a line per compute whose PEs step together through operands in N:M."""
    for node in spec.nodes:
        if isinstance(node, MacUnit) and node.lockstep:
            yield (
                f"{node.name}: PEs in lockstep: of an operand in N:M, the only one with zeros, they get "
                "whole slots, share groups of the other operand and add up sums (docs/model.md, Lockstep)"
            )


def _voltages(spec: Machine, arch: Arch) -> Iterator[str]:
    """Yields a line where the tables of a machine without vdd are at two voltages: SRAM's and logic's."""
    if arch.vdd is not None or spec.node_nm is None:
        return
    kinds = {getattr(node, "kind", "custom") for node in spec.nodes}
    logic_v, logic = component.logic_v(), kinds & {"register", *component.mac_kinds()}
    try:
        nominal_v = component.device(spec.node_nm, spec.cell).nominal_v
    except component.ComponentError:  # a node outside of the table
        return
    if "sram" in kinds and logic and abs(nominal_v / logic_v - 1) > 1e-9:
        yield (
            f"voltage: no vdd is given, so energies are those of the tables: SRAM at {nominal_v:g} V, logic "
            f"(MAC units, registers) at {logic_v:g} V; vdd: {nominal_v:.3g} has all at one, logic at "
            f"{energy_factor(nominal_v, logic_v):.3g} of these energies (docs/model.md, Supply voltage)"
        )


def kind_of(text: str) -> str:
    """Returns machine, study or workload. text: a path, or a machine's name; it may have faults."""
    path = Path(text)
    if not path.exists() and text in machine.names():
        return "machine"
    return _kind(path) if path.suffix in (".yaml", ".yml") else "workload"


def is_machine(text: str) -> bool:
    """True for the name or the file of a machine, though it may have faults."""
    path = Path(text)
    if not path.is_file():
        return not path.exists() and text in machine.names()
    return path.suffix in (".yaml", ".yml") and _kind(path) == "machine"


def components(text: str, sets: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Returns what a valid machine consists of, with the numbers of the tables; [] of another file. sets: as
    of `file`.
    """
    from dse.explain import values

    return values.machine(machine.arch(_machine(text, sets))) if kind_of(text) == "machine" else []


def _machine(text: str, sets: Sequence[str]) -> Machine:
    from dse.study import read

    try:
        return override(machine.load(text), read.assignments(sets))
    except machine.MachineError as fault:  # a clock that is hardly meant is said beside the faults
        lines = [f"{text}: {line}" for line in plausible.clock_lines(text)]
        raise machine.MachineError("\n".join([str(fault), *lines])) from None


def _workload(source: str, sets: Sequence[str]) -> tuple[str, list[Layer]]:
    from workloads import catalog
    from workloads.graph import groups_text, layer_table, results_label, results_text, rows_text, types_text

    if sets:
        raise ValueError(f"{source}: --set {sets[0]} is for machines and studies; write {source}:KEY=VALUE")
    workload = catalog.load(source)
    number = len(workload.fused)
    fused = f", {units.counted(number, 'operator')} fused into their producers" if number else ""
    line = (
        f"workload {workload.name}, {len(workload.einsums)} einsums, {workload.macs()} MACs, "
        f"{workload.parameters} parameters{fused}"
    )
    types = f"\ntypes: {text}" if (text := types_text(workload)) else ""
    types += f"\n{results_label(workload)}: {text}" if (text := results_text(workload)) else ""
    tensors = (p for e in workload.einsums for p in e.tensors())
    types += "".join(f"\nnote: {text}" for text in (rows_text(workload), groups_text(tensors)) if text)
    return line + types + _inputs(source, workload) + _warning(workload), layer_table(workload)


def _inputs(source: str, workload: Workload) -> str:
    """Returns a line on a file of einsums: which tensors are inputs, since no einsum writes them, and who
    reads each (a misspelt name is one of them); where the file names no weights, that these may be some.
    """
    from workloads import catalog
    from workloads.graph import AGAIN, names_text

    if Path(catalog.file_in(source)[1]).suffix not in (".yaml", ".yml"):
        return ""
    made = {e.output.tensor for e in workload.einsums} | {read for _, read in workload.loop_state}
    readers: dict[str, list[Einsum]] = {}
    for e in workload.einsums:
        for p in e.inputs:
            if p.tensor not in made | workload.weights and not AGAIN.search(p.tensor):
                readers.setdefault(p.tensor, []).append(e)
    texts = [f"{name} (read by {names_text([e.name for e in by])})" for name, by in readers.items()]
    listed = ", ".join(texts[:MAX_NAMES]) + ", ..." * (len(texts) > MAX_NAMES)
    line = f"\ninputs, which no einsum writes: {listed}" if texts else ""
    if not workload.weights and any(len(e.inputs) > 1 for by in readers.values() for e in by):
        line += "\nnote: the file names no weights; those that are the same in every run: weights: [...]"
    return line


class Sparsity(NamedTuple):
    """What the file of a matrix says of its rows and of tiles."""

    facts: dict[str, str]
    rows_with: tuple[tuple[int, int], ...]  # (nonzeros, rows that have as many)
    tiles: list[TileRow]  # a row per size


def sparsity(source: str) -> Sparsity | None:
    """Returns the sparsity of the matrix in a file that a workload is on; None if it is on no such file."""
    from workloads import catalog, matrix
    from workloads import sparsity as counted

    path = catalog.file_in(source)[1]
    if not matrix.is_matrix_file(path):
        return None
    p = matrix.read_pattern(path)
    per_row = counted.nonzeros_per_row(p)
    quantiles = ", ".join(f"{per_row.at_percent(percent)} at {percent} %" for percent in counted.QUANTILES)
    facts = {
        "matrix": f"{p.name}, {p.rows} x {p.columns}, {len(p.places)} nonzeros",
        "nonzeros per row": f"{per_row.mean:.4g} in the mean; of the rows {quantiles}",
        "bandwidth": str(counted.bandwidth(p)),
    }
    return Sparsity(facts, per_row.rows_with, list(counted.tile_rows(p)))


def _warning(*workloads: Workload) -> str:
    from workloads.graph import warnings

    return "".join(
        f"\nwarning: {line}" for line in dict.fromkeys(line for w in workloads for line in warnings(w))
    )


def _kind(path: Path) -> str:
    """Returns machine, study or workload: the kind that knows most of the file's keys, so that a misspelt key
    does not turn a machine into a workload. Raises ValueError.
    """
    from dse.study import read
    from workloads import document, text

    kinds = {"machine": {*machine.HEAD, "nodes"}, "study": set(read.KEYS), "workload": set(text.KEYS)}
    data, faults = document.read(path)
    faults = (
        faults
        if data is None or document.is_kind(data, {*machine.KEYS, *read.KIND, *text.DOCUMENT_KEYS})
        else []
    )
    known_keys = (
        {kind: len(keys & set(data)) for kind, keys in kinds.items()} if isinstance(data, dict) else {}
    )
    kind = max(known_keys, key=lambda kind: known_keys[kind], default="")
    if not faults and not (kind and known_keys[kind]):
        faults = [
            "is no machine (clock_mhz, nodes), no study (workloads, machine, space, objectives) and "
            "no workload (extents, einsums)"
        ]
    if faults and kind != "machine":  # hw/machine.py reports these faults itself
        raise ValueError("\n".join(f"{path}: {line}" for line in faults))
    return kind


def local(text: str | Path) -> Path:
    """Returns a run folder; of a URL a copy that is as new as its newest head."""
    if not folder.is_url(text):
        return Path(text)
    from cluster import objects

    copy: Path = objects.fetched(str(text))
    return copy


def is_intact_study(root: Path) -> bool:
    """True if env.json shows that the folder's rows belong to its study. The study itself is not read, which
    would take longer than everything else in `dse status`. Raises ValueError if no run is there.
    """
    folder.raise_if_no_run(root)
    return folder.is_intact_study(root, folder.read(root), versions())


def versions() -> dict[str, int]:
    """Returns the versions of cost model and solvers, as rows and cached answers carry them."""
    return {"model_version": record.MODEL_VERSION, "solver_version": record.SOLVER_VERSION}


def versions_text() -> str:
    """Returns the versions of the package, of cost model and solvers."""
    from importlib.metadata import PackageNotFoundError, version

    numbers = ", ".join(f"{key.partition('_')[0]} {own}" for key, own in versions().items())
    try:
        return f"{version('dse')}, {numbers}"
    except PackageNotFoundError:  # the source tree, not installed
        return numbers


def other_model(root: Path) -> str:
    """Returns which versions wrote the rows of a run, if this dse has another cost model; else ""."""
    written = folder.written_by(root, folder.read(root))
    return "" if written.startswith(f"model {record.MODEL_VERSION},") else written


def cache_rows() -> list[dict[str, Any]]:
    """Returns what $DSE_CACHE holds, by kind of question and version of the code: how many answers, their
    bytes, seconds since the newest and the oldest were written. Copies of remote run folders are a kind, too.
    """
    from cluster import objects

    groups: dict[tuple[str, str], list[cache.Entry]] = {}
    for entry in (*cache.entries(), *objects.copies()):
        groups.setdefault((entry.kind, entry.version), []).append(entry)
    return [
        {
            "kind": kind,
            "version": version,
            "answers": len(own),
            "size_bytes": sum(entry.size_bytes for entry in own),
            "newest_s": min(entry.age_s for entry in own),
            "oldest_s": max(entry.age_s for entry in own),
        }
        for (kind, version), own in sorted(groups.items())
    ]


def left_out(root: Path) -> list[str]:
    """Returns a line per damaged part, and how many machines are left out with them."""
    manifest, damaged = folder.verified_parts(root)
    count = sum(
        part.rows
        for group in manifest.groups
        if group.name in damaged
        for part in group.parts
        if part.table == "machines"
    )
    lines = [*chain.from_iterable(damaged.values())]
    return [*lines, f"--skip-damaged: {count} machines are left out"] if lines else []


def status(root: Path, skip_damaged: bool) -> dict[str, Any]:
    """Returns status.json of a run. State "running" becomes "killed" if the process that wrote it is known to
    be gone, else `last_sign_of_life_s` says how long ago it wrote. Raises Damaged, but with skip_damaged, or
    while the run goes on, not for damaged parts: these are `damaged`, a line each. `written_by`, `this_dse`:
    versions of model and solvers of the rows, and of the code that reads them.
    """
    written = folder.written_by(root, folder.read(root))
    return _status(root, skip_damaged) | {"written_by": written, "this_dse": versions_text()}


def _status(root: Path, skip_damaged: bool) -> dict[str, Any]:
    manifest, damaged = folder.verified_parts(root)
    facts, lines = folder.status(root, manifest.identity), [*chain.from_iterable(damaged.values())]
    if lines and not skip_damaged and not (facts and facts.get("state") == "running"):
        advice = f"{folder.advice(root)}, --skip-damaged leaves its machines out"
        raise folder.Damaged("\n".join(f"{line}; {advice}" for line in lines))
    if facts is None and (manifest.groups or (root / folder.STATUS).exists()):
        raise folder.Damaged(
            f"{root / folder.STATUS}: lost, damaged or of another run; {folder.advice(root)}"
        )
    facts = (facts or {"state": "not started", "done": 0}) | ({"damaged": lines} if lines else {})
    lost = [
        f"{folder.part_path(part.table, whole.name)} is lost or damaged: fronts are read from all points, no "
        "row is lost"
        for whole, sound in zip(folder.read(root).groups, manifest.groups, strict=False)
        if whole.name == sound.name
        for part in whole.parts
        if part not in sound.parts
    ]
    if lost:
        facts = {**facts, "notes": [*facts.get("notes", []), *lost]}
    if not (isinstance(written_at := facts.get("time", 0.0), int | float) and 0 <= written_at < 1e11):
        raise folder.Damaged(
            f"{root / folder.STATUS}: time = {str(written_at)[:40]} is no time; {folder.advice(root)}"
        )
    # status.json may be one generation behind: opening a run publishes the manifest first
    if (
        facts.get("state") not in ("running", "not started")
        and facts.get("published", 0) < manifest.generation - 1
    ):
        behind = (
            f"tells of generation {facts.get('published')} of {folder.MANIFEST}, which is at generation "
            f"{manifest.generation}"
        )
        raise folder.Damaged(
            f"{root / folder.STATUS}: {behind}; it is older than the rows, or a run is starting: "
            f"{folder.advice(root)}"
        )
    if facts.get("state") == "running" and folder.is_gone(str(facts.get("process", ""))):
        facts = folder.committed(root, manifest, facts)
        again = f" and solves {facts['uncommitted']} again" if facts["uncommitted"] else ""
        return facts | {
            "state": "killed",
            "reason": f"its process is gone; dse resume goes on{again}",
            "left_s": None,
            "solving": [],
        }
    if facts.get("state") == "running":
        return facts | {"last_sign_of_life_s": max(0.0, time.time() - written_at)}
    if facts.get("state") == "failed" and (known := folder.committed(root, manifest, facts))["uncommitted"]:
        return known
    return facts
