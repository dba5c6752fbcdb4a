"""Reads and checks the parts of a study file. Faults are collected, not raised, so that a user sees all of
them at once.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.util import find_spec
from itertools import product, takewhile
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar, get_type_hints

from pydantic import TypeAdapter, ValidationError

from dse.solve.options import PIPELINED_SCHEDULES, SolverOptions
from dse.study.pareto import AGGREGATES, MAXIMISED, METRICS, Objective
from dse.study.prune import Constraints, meets, metric_of
from dse.study.sampler import MAX_SPACE_SIZE, OPTUNA, Search
from hw import machine
from hw.arch import Machine
from hw.component import closest_name, explain, show
from hw.space import Constraint, Space, SpaceError, constraint, parse, static_names
from workloads import catalog, plugin
from workloads import document as documents
from workloads.einsum import WorkloadError, canonical_key
from workloads.graph import Workload, counts, warning, with_bits
from workloads.meant import meant

T = TypeVar("T")

KEYS = (
    "name",
    "workloads",
    "machine",
    "space",
    "constraints",
    "objectives",
    "search",
    "stop",
    "solver",
    "limits",
    "workers",
    "sink",
    "unknown",
)
NEEDED = ("workloads", "machine", "space", "objectives")
KIND = (*NEEDED, "constraints", "solver")  # a document with one of these keys is a study
WORKLOAD_KEYS = ("workload", "file", "bind", "weight", "name", "bits")
SUFFIXES = catalog.SUFFIXES
PARAMETER = re.compile(r"\w+=[^\s:=]+")  # a parameter in a catalog name
MAX_TRIED = 2000  # machines that are tried to find one that meets the static constraints


class StudyError(ValueError):
    """A study file that cannot be used: one line per fault, `file: key = value why; fix`."""


@dataclass(frozen=True, slots=True)
class Faults:
    """Lines collected while a file is read."""

    lines: list[str]

    def add(self, line: str) -> None:
        """Records one line: `key = value why; fix`, without the file."""
        self.lines.append(line)

    def text(self, path: Path) -> str:
        """Returns all lines in order, each once, with the file in front."""
        return "\n".join(f"{path}: {line}" for line in dict.fromkeys(self.lines))


NO_DIGESTS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class WorkloadRef:
    """A workload of a study."""

    name: str
    text: str  # as written: a path, or a catalog name with parameters
    path: str  # absolute path of the file in `text`; "": there is none
    bind: tuple[tuple[str, int], ...]  # sizes of symbolic dimensions
    weight: float
    digest: str  # of everything that solvers see of it
    # (tensor, or "weights" or "activations"; bits per element that replace those of the workload)
    bits: tuple[tuple[str, int], ...] = ()


def document(path: Path, set_texts: Sequence[str], faults: Faults) -> dict[str, Any] | None:
    """Returns the study file's document with the --set assignments ("key=value") merged in; None if it is no
    mapping.
    """
    if path.is_dir() and (path / "study.yaml").is_file():
        faults.add(f"is the folder of a run; go on with it by dse resume {path}, or give {path}/study.yaml")
        return None
    raw, document_faults = documents.read(path)
    is_study = documents.is_kind(raw, KIND)
    if not is_study and (raw is not None or not document_faults):
        is_machine = documents.is_kind(raw, machine.KEYS)
        document_faults = [
            f"{'is a machine; a study ' * is_machine}must be a mapping with workloads, machine, space and "
            "objectives; see studies/edge_cnn.yaml"
        ]
    faults.lines.extend(document_faults)
    if not is_study or not isinstance(raw, dict):
        return None
    raw = {"name": path.stem, **raw}
    for text in set_texts:
        _merge(raw, text, faults)
    misspelt = [_unknown_key(str(key), raw[key]) for key in raw if key not in KEYS]
    faults.lines.extend(misspelt)
    for key in NEEDED:
        if key not in raw and not any(line.endswith(f"did you mean {key}?") for line in misspelt):
            faults.add(explain(key, "missing", None, ""))
    return _with_sizes(raw, faults)


SIZE_AXIS = "workload."  # axes of the space with this prefix are parameters of workloads


def _with_sizes(raw: dict[str, Any], faults: Faults) -> dict[str, Any]:
    """Returns a study in which the axes `workload.<parameter>` of its space have become workloads, one per
    workload and combination of values, the last axis fastest.
    """
    space, listed = raw.get("space"), raw.get("workloads")
    axes = {str(key): value for key, value in space.items()} if isinstance(space, Mapping) else {}
    axes = {key: value for key, value in axes.items() if key.startswith(SIZE_AXIS)}
    if not axes or not isinstance(listed, list):
        return raw
    rest = {key: value for key, value in space.items() if str(key) not in axes}  # type: ignore[union-attr]
    names = [key.removeprefix(SIZE_AXIS) for key in axes]
    for key, values in axes.items():
        if not isinstance(values, list) or not values or any(type(one) not in (int, str) for one in values):
            faults.add(f"space.{key} = {show(values)} is no list of sizes or words; write e.g. [1, 4, 16]")
            return raw | {"space": rest}
        if len(set(values)) < len(values):
            faults.add(f"space.{key} = {show(values)} has a value twice; keep one")
    found: list[Any] = []
    for i, item in enumerate(listed):
        entry = dict(item) if isinstance(item, Mapping) else {"workload": item}
        text = str(entry.pop("file", None) or entry.get("workload"))
        for name in names:
            if name in catalog.given_in(text):
                faults.add(
                    f"space.{SIZE_AXIS}{name}: workloads[{i}] = {text} has {name} already; leave one of "
                    "both out"
                )
        own_name = entry.get("name") or (Path(catalog.file_in(text)[1]).stem if _is_path(text) else text)
        for values in product(*axes.values()):
            given = dict(zip(names, values, strict=True))
            named = {
                "workload": catalog.with_parameters(text, given),
                "name": catalog.with_parameters(str(own_name), given),
            }
            found.append(entry | named)
    return raw | {"workloads": found, "space": rest}


def _unknown_key(key: str, value: object) -> str:
    """Returns the message for an unknown key of a study; fields of the machine belong into `space`."""
    field, given = key, value
    if isinstance(value, Mapping) and len(value) == 1 and not meant(key, KEYS):
        [(name, given)] = value.items()
        field = f"{key}.{name}"
    if "." not in field:
        return explain(key, "extra_forbidden", value, "", KEYS)
    values = given if isinstance(given, list) else [given]
    return f"{field} = {show(given)} is no key of a study; a field of the machine: space.{field} = {values}"


def block(kind: type[T], raw: object, prefix: str, faults: Faults) -> T:
    """Returns a dataclass from a mapping, each key checked against its type. Faulty keys keep their
    default.
    """
    hints = get_type_hints(kind, include_extras=True)
    if not isinstance(raw, Mapping):
        faults.add(f"{prefix} = {show(raw)} is no mapping; write {prefix}: {{{next(iter(hints))}: ...}}")
        return kind()
    found = {}
    for key, value in raw.items():
        if key not in hints:
            faults.add(explain(f"{prefix}.{key}", "extra_forbidden", value, "", hints))
            continue
        try:
            found[key] = TypeAdapter(hints[key]).validate_python(value, strict=True)
        except ValidationError as error:
            detail = error.errors()[0]
            faults.add(explain(f"{prefix}.{key}", detail["type"], value, detail["msg"], hints))
    return kind(**found)


def name(raw: Mapping[str, Any], faults: Faults) -> str:
    """Returns the study's name; a fault if it cannot be the name of a folder."""
    text = raw["name"]
    if not isinstance(text, str) or not re.fullmatch(r"\w[\w.-]*", text):
        faults.add(f"name = {show(text)} is no name of a folder; use letters, digits, - and _")
    return str(text)


def search(raw: object, faults: Faults) -> Search:
    """Returns the block `search`. With method optuna:NAME further keys are arguments of that sampler."""
    if not isinstance(raw, Mapping) or not str(raw.get("method", "")).startswith(OPTUNA):
        found = block(Search, raw, "search", faults)
        return replace(found, prune=True) if found.method == "bounds" else found
    own = {key: value for key, value in raw.items() if key in get_type_hints(Search) and key != "method"}
    given = {key: value for key, value in raw.items() if key not in {*own, "method"}}
    for key, value in given.items():
        if not isinstance(value, str | int | float | None):
            faults.add(f"search.{key} = {show(value)} must be a number, a text, true, false or null")
    options = tuple((str(key), value) for key, value in sorted(given.items()))
    return replace(block(Search, own, "search", faults), method=str(raw["method"]), options=options)  # type: ignore[arg-type]


def plugin_key(key: str, spec: str, folder: Path, faults: Faults, within: Path | None) -> str:
    """Returns the key of a plug-in, its source found and, unless a run folder names it, executed; the spec
    itself with a fault.

    key: in messages
    folder: to which files are relative
    within: folder that must contain all files; None: any, and the user names it
    """
    try:
        source = spec.partition(":")[0]
        if source.endswith(".py") and (line := _outside_reason(folder / source, within)):
            raise plugin.PluginError(f"{show(spec)} {line}")
        found = plugin.find(spec, folder, within is None).key
        if within is None:
            plugin.function(found)
        return found
    except plugin.PluginError as fault:
        faults.add(f"{key} = {fault}")
        return spec


def solver(raw: object, faults: Faults, folder: Path = Path(), within: Path | None = None) -> SolverOptions:
    """Returns the solver options of a study; faults for options that do not go together. folder, within: of
    a mapper that is a plug-in (`plugin_key`).
    """
    options = block(SolverOptions, raw, "solver", faults)
    if plugin.SPEC.fullmatch(options.mapper):
        mapper = plugin_key("solver.mapper", options.mapper, folder, faults, within)
        options = replace(options, mapper=mapper)
    elif options.mapper != "optimal":
        from dse.solve.solve import MAPPERS_BY_NAME  # imported here: that is slow

        if options.mapper not in MAPPERS_BY_NAME:
            faults.add(
                f"solver.mapper = {show(options.mapper)} is no mapper; "
                f"{closest_name(options.mapper, MAPPERS_BY_NAME)}"
            )
    if options.mapper == "annealing" and not find_spec("sklearn"):
        faults.add("solver.mapper = annealing needs scikit-learn; pip install 'dse[baselines]'")
    for key in ("factors", "dataflow") if options.mapper != "optimal" or options.tiling != "mapper" else ():
        if isinstance(raw, Mapping) and key in raw and raw[key] == getattr(options, key):
            faults.add(
                f"solver.{key} = {show(raw[key])} is a choice of the mapper optimal; leave it out, "
                "or take that mapper"
            )
    if options.tiling != "smaug" and isinstance(raw, Mapping) and "host_copies" in raw:
        faults.add(
            f"solver.host_copies = {show(raw['host_copies'])} is a choice of solver.tiling: smaug; take "
            "that, or leave it out"
        )
    shares_exactly = (
        options.mapper == "optimal" and options.tiling == "mapper" and options.factors != "imperfect"
    )
    if options.sharing_gap and (
        not shares_exactly
        or (options.schedule != "unfused" and (options.schedule, options.objective) != ("fused", "energy"))
    ):
        faults.add(
            f"solver.sharing_gap = {show(options.sharing_gap)}: machines share mappings (schedule unfused) "
            "and schedules of least energy (fused), so it needs such a schedule, and the mapper optimal with "
            "factors perfect or imperfect_spatial; set these, or leave solver.sharing_gap out"
        )
    if options.objective == "front" and (
        not shares_exactly or options.schedule != "unfused" or options.layout != "row_major"
    ):
        faults.add(
            "solver.objective = front: fronts are of unfused schedules, from exact searches of each machine; "
            "leave out solver.schedule, mapper, tiling, layout and factors: imperfect, or take "
            "the objective energy, latency or edp"
        )
    is_pipelined = options.schedule in PIPELINED_SCHEDULES
    needs_optimal = options.schedule in ("best", "fused") or is_pipelined
    if options.schedule != "unfused" and (
        options.tiling != "mapper" or (needs_optimal and options.mapper != "optimal")
    ):
        needed = (
            "the mapper optimal; leave out solver.mapper and solver.tiling"
            if needs_optimal
            else "the nests of a mapper; leave out solver.tiling"
        )
        faults.add(f"solver.schedule = {show(options.schedule)} needs {needed}")
    is_fused_alt = options.schedule in ("best", "fused") and options.layout == "alt"
    if options.layout != "row_major" and (
        (options.mapper, options.tiling) != ("optimal", "mapper")
        or (options.schedule != "unfused" and not is_fused_alt)
    ):
        faults.add(
            f"solver.layout = {show(options.layout)} needs the mapper optimal, without "
            "solver.schedule (alt also goes with schedule: fused and best); leave it out"
        )
    for key in ("layout_joint", "layout_loops", "layout_proposer", "layout_levels"):
        if options.layout != "sampled" and isinstance(raw, Mapping) and key in raw:
            faults.add(
                f"solver.{key} = {show(raw[key])} is a choice of solver.layout: sampled; take that, or leave "
                "it out"
            )
    for key, least in (("layout_joint", 1), ("layout_loops", 0)):
        if (count := getattr(options, key)) < least:
            faults.add(f"solver.{key} = {count} must be at least {least}")
    for key, kept in (("dataflow", "free"), ("factors", "imperfect_spatial")):
        if options.layout == "sampled" and (given := getattr(options, key)) != kept:
            faults.add(
                f"solver.{key} = {show(given)}: solver.layout = sampled draws mappings of any dataflow, with "
                "its own factors; leave it out"
            )
    for key in ("weights", "spatial_layer_pipe", "temporal_layer_pipe"):
        if not is_pipelined and isinstance(raw, Mapping) and key in raw:
            faults.add(
                f"solver.{key} = {show(raw[key])} is a choice of solver.schedule: pipelined; take "
                "that, or leave it out"
            )
    for key in ("factors", "gap"):
        if is_pipelined and isinstance(raw, Mapping) and key in raw:
            faults.add(
                f"solver.{key} = {show(raw[key])} is a choice of unfused and fused schedules: segments of "
                f"solver.schedule = {show(options.schedule)} do not obey it; leave it out"
            )
    for key in ("initiation_interval", "latency"):
        if (limit := getattr(options, key)) and options.schedule != "pipelined":
            faults.add(
                f"solver.{key} = {show(limit)} is a choice of solver.schedule: pipelined; take that, or "
                "leave it out"
            )
    if (
        is_pipelined
        and options.temporal_layer_pipe
        and not options.spatial_layer_pipe
        and isinstance(raw, Mapping)
        and "temporal_layer_pipe" in raw
    ):
        faults.add(
            "solver.temporal_layer_pipe = true needs stages that run at once; leave it out, or take "
            "solver.spatial_layer_pipe=true"
        )
    return options


def workers(raw: Mapping[str, Any], faults: Faults) -> tuple[int | None, str]:
    """Returns (number of workers; None: one per CPU, 0: in-process), and who writes the parts of tables."""
    count, sink = raw.get("workers"), raw.get("sink", "driver")
    if count is not None and (type(count) is not int or count < 0):
        faults.add(f"workers = {show(count)} is no number of workers; use a whole number, 0 for in-process")
    if sink not in ("driver", "worker"):
        faults.add(f"sink = {show(sink)} is unknown; use driver or worker")
    return count, str(sink)


def space(
    raw: Mapping[str, Any], folder: Path, faults: Faults, within: Path | None = None
) -> tuple[str, Space | None]:
    """Returns the path of the machine file ("": none, or faulty), and the space over that machine (None:
    faulty).

    within: folder that must contain the machine file if it is given as a path; None: any folder
    """
    if "machine" not in raw:
        return "", None
    given = raw["machine"]
    if not isinstance(given, str):
        faults.add(f"machine = {show(given)} is no name or path; {closest_name(str(given), machine.names())}")
        return "", None
    try:
        path = (
            machine.find(given)
            if given in machine.names()
            else machine.find(str(folder / given) if _is_path(given) else given, folder)
        )
        if given not in machine.names() and (line := _outside_reason(path, within)):
            faults.add(f"machine = {show(given)} {line}")
            return "", None
        found = parse(machine.load(str(path), within is None), raw["space"]) if "space" in raw else None
    except machine.MachineError as error:
        faults.lines.extend(
            line if line.startswith("machine ") else f"machine: {line}" for line in str(error).splitlines()
        )
    except SpaceError as error:
        faults.lines.extend(str(error).splitlines())
        return str(path.resolve()), None
    else:
        if found is not None and found.size > MAX_SPACE_SIZE:
            faults.add(f"space has {found.size} machines; keep it at 2^62 at most")
        return str(path.resolve()), found
    return "", None


def unknown_as_movement(raw: Mapping[str, Any], faults: Faults) -> bool:
    """True if unknown operators count as data movement."""
    if (given := raw.get("unknown", "error")) not in ("error", "movement"):
        faults.add(
            f"unknown = {show(given)} must be error or movement: operators that nobody knows, and that "
            "could be products, are refused or counted as data movement"
        )
    return bool(given == "movement")


def workloads(
    raw: object,
    folder: Path,
    fuse: bool,
    faults: Faults,
    within: Path | None = None,
    unknown: bool = False,
    digests: Mapping[str, str] = NO_DIGESTS,
) -> list[tuple[WorkloadRef, Workload | None]]:
    """Returns each workload as the study names it, and loaded.

    fuse: whether one-to-one operators are fused into their producers
    within: folder that must contain all files of workloads; None: any folder
    unknown: whether workloads may have unknown operators
    digests: by name, of workloads that are not loaded
    """
    if raw is None:
        return []
    if not isinstance(raw, list) or not raw:
        faults.add(f"workloads = {show(raw)} is no list; write e.g. [resnet50:batch=1]")
        return []
    if line := _unquoted_fault(raw):
        faults.add(line)
        return []
    results = [
        _workload(f"workloads[{i}]", item, folder, fuse, faults, within, digests)
        for i, item in enumerate(raw)
    ]
    pairs = [one for one in results if one is not None]
    faults.lines.extend(
        f"workloads: {line}; write unknown: movement to count them as data movement"
        for _, w in pairs
        if w and (line := warning(w)) and not unknown
    )
    names = [ref.name for ref, _ in pairs]
    for text in dict.fromkeys(names):
        if names.count(text) > 1:
            faults.add(
                f'workloads: name "{text}" stands twice; give one of them a name of its own: '
                f"{{workload: ..., name: ...}}"
            )
        if text in AGGREGATES:
            faults.add(f'workloads: name "{text}" means an aggregate in objectives; choose another')
    return pairs


def objectives(
    raw: object,
    names: Sequence[str] | None,
    clock_varies: bool,
    faults: Faults,
    folder: Path = Path(),
    within: Path | None = None,
) -> tuple[Objective, ...]:
    """Returns the objectives. names: of the workloads; None: not all are known, any name will do. folder,
    within: of cost terms that are plug-ins (`plugin_key`).
    """
    if raw is None:
        return ()
    if not isinstance(raw, list) or not raw:
        faults.add(
            f"objectives = {show(raw)} is no list; write e.g. [energy_pj, {{latency_ns: max}}, area_mm2]"
        )
        return ()
    found = [
        _objective(f"objectives[{i}]", item, names, faults, folder, within) for i, item in enumerate(raw)
    ]
    valid = [o for o in found if o is not None]
    for i, o in enumerate(found):
        if o is not None and o.metric == "latency_cycles" and clock_varies:
            faults.add(
                f"objectives[{i}] = latency_cycles does not compare machines of different clock_mhz; "
                "use latency_ns"
            )
    for o in dict.fromkeys(valid):
        if [other.column for other in valid].count(o.column) > 1:
            faults.add(f"objectives: {o.column} stands twice; keep one")
    return tuple(valid)


def constraints(
    raw: object,
    search_space: Space | None,
    names: Sequence[str] | None,
    faults: Faults,
    template: Machine | None = None,
) -> Constraints:
    """Returns the constraints, split into those on a machine alone (static) and those on its costs
    (modelled).

    search_space: the study's space; None: it is faulty, so that only syntax and names are checked
    template: the machine of a faulty space; None: it is faulty, too, and only names without a dot are checked
    names: workloads that a metric may name; None: any
    """
    if not isinstance(raw, list):
        faults.add(f'constraints = {show(raw)} is no list; write e.g. ["area_mm2 <= 12"]')
        return Constraints()
    known = static_names(search_space.template if search_space else template or machine.STAND_IN)
    static: list[Constraint] = []
    modelled: list[Constraint] = []
    for i, text in enumerate(dict.fromkeys(map(str, raw))):
        try:
            one = constraint(text)
        except SpaceError as error:
            faults.add(f"constraints[{i}]: {error}")
            continue
        asked = [n for n in sorted(one.names) if search_space or template or "." not in n]
        unknown = [fault for n in asked if (fault := _name_fault(n, known, names))]
        faults.lines.extend(f'constraints[{i}]: "{text}": {fault}' for fault in unknown)
        if not unknown:
            (modelled if any(metric_of(n)[0] for n in one.names) else static).append(one)
    found = Constraints(tuple(static), tuple(modelled))
    if search_space is None:
        return found
    return found if _check_met(search_space, found, faults) else Constraints()


def digest(text: str) -> str:
    """Returns the first 16 hexadecimal digits of the text's SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def assignment(text: str, faults: Faults) -> tuple[str, Any]:
    """Returns (dotted key, value) of a --set; the key is empty if the text is faulty."""
    dotted, equals, value = text.partition("=")
    if not equals or not dotted.strip():
        faults.add(f"--set {text}: no key=value; write --set {dotted.strip() or 'KEY'}=VALUE")
        return "", None
    parsed, wrong = documents.parse(value)
    if wrong:
        faults.add(f"--set {text}: the value is no YAML; quote it")
        return "", None
    return dotted.strip(), parsed


def assignments(texts: Sequence[str]) -> dict[str, Any]:
    """Returns all --set of a command line. Raises ValueError with all faults."""
    faults = Faults([])
    found = dict(assignment(text, faults) for text in texts)
    if faults.lines:
        raise ValueError("\n".join(faults.lines))
    return found


def _merge(raw: dict[str, Any], text: str, faults: Faults) -> None:
    """Merges "key=value" into the document. A key of space keeps its dots."""
    dotted, parsed = assignment(text, faults)
    first, _, inner_key = dotted.partition(".")
    inner = raw.get(first) or {}
    if not first:
        return
    if not inner_key:
        raw[first] = parsed
    elif not isinstance(inner, dict):
        faults.add(f"--set {text}: {first} has no keys; set it as a whole: --set {first}=...")
    else:
        raw[first] = {**inner, inner_key: parsed}


def _outside_reason(path: Path, within: Path | None) -> str:
    """Returns why a file may not be read, if it is outside of the folder `within`; else ""."""
    if within is None or within.resolve() in path.resolve().parents:
        return ""
    return "leads out of the run's folder; copy the file into it, or start a run of your own with dse run"


def _is_path(text: str) -> bool:
    return text.partition(":")[0].lower().endswith(SUFFIXES)


def _unquoted_fault(raw: list[Any]) -> str:
    """Returns the fault of a list in which YAML split a name at its commas: [gemm:m=64,n=32,k=48] has three
    items, [{workload: gemm:m=64,n=32}] has two keys.
    """
    for i, item in enumerate(raw):
        is_mapping = isinstance(item, Mapping)
        rest = [key for key in item if item[key] is None] if is_mapping else raw[i + 1 :]
        pieces = list(takewhile(lambda part: isinstance(part, str) and PARAMETER.fullmatch(part), rest))
        first_piece = str(item.get("workload")) if is_mapping else str(item)
        if pieces:
            name = f'"{",".join([first_piece, *pieces])}"'
            return (
                f"workloads[{i}] = {first_piece} ends at a comma; quote it as a whole: "
                f"{f'{{workload: {name}}}' if is_mapping else f'[{name}]'}"
            )
    return ""


def _workload(
    key: str,
    item: object,
    folder: Path,
    fuse: bool,
    faults: Faults,
    within: Path | None,
    digests: Mapping[str, str],
) -> tuple[WorkloadRef, Workload | None] | None:
    """Returns the workload of one entry of the list `workloads`; None if it has a fault. key: the entry's
    name in messages. A workload whose digest is given is not loaded.
    """
    entry = {"workload": item} if isinstance(item, str) else item
    if not isinstance(entry, Mapping) or ("workload" in entry) == ("file" in entry):
        faults.add(
            f"{key} = {show(item)} is no workload; write a name like resnet50:batch=1, or {{file: "
            f"net.onnx, name: net}}"
        )
        return None
    for k in entry:
        if k not in WORKLOAD_KEYS:
            faults.add(explain(f"{key}.{k}", "extra_forbidden", entry[k], "", WORKLOAD_KEYS))
    text = str(entry.get("workload", entry.get("file")))
    weight, bind = entry.get("weight", 1), entry.get("bind", {})
    if type(weight) not in (int, float) or not 0 < weight < float("inf"):
        faults.add(f"{key}.weight = {show(weight)} must be a number above 0; correct it")
        return None
    if not isinstance(bind, Mapping) or any(type(number) is not int for number in bind.values()):
        faults.add(f"{key}.bind = {show(bind)} must give whole numbers, e.g. {{N: 1}}; correct it")
        return None
    bits = entry.get("bits", {})
    if not isinstance(bits, Mapping) or any(type(n) is not int or n < 1 for n in bits.values()):
        faults.add(
            f"{key}.bits = {show(bits)} must give whole numbers of at least 1, e.g. {{weights: 8, "
            f"activations: 16}}; correct it"
        )
        return None
    before, path, _ = catalog.file_in(text)
    absolute = str((folder / path).resolve()) if path else ""
    if path and (line := _outside_reason(Path(absolute), within)):
        faults.add(f"{key} = {show(text)} {line}")
        return None
    if (match := plugin.SPEC.match(text)) and within:
        try:
            plugin.function(plugin.find(match[0], folder, asked=False).key)
        except plugin.PluginError as fault:
            faults.add(f"{key} = {fault}")
            return None
    plain_path = path and not before and not match
    name = str(entry.get("name", "" if match else Path(path).stem if plain_path else text))
    pairs, widths = (tuple((str(k), v) for k, v in entry.items()) for entry in (bind, bits))
    ref = WorkloadRef(name, text, absolute, pairs, float(weight), digests.get(name, ""), widths)
    if ref.digest:
        return ref, None
    try:
        loaded = _load(ref, fuse)
    except WorkloadError as error:
        faults.lines.extend(f"{key}: {line}" for line in str(error).splitlines())
        return None
    return replace(ref, name=name or loaded.name, digest=_digest(loaded)), loaded


def _load(ref: WorkloadRef, fuse: bool) -> Workload:
    before, _, after = catalog.file_in(ref.text)
    return with_bits(catalog.load(before + ref.path + after, dict(ref.bind), fuse), dict(ref.bits))


@lru_cache(maxsize=16)
def stored_workload(ref: WorkloadRef, fuse: bool) -> Workload:
    """Returns a workload of a stored study, loaded. Raises StudyError if it is not what was solved."""
    loaded = _load(ref, fuse)
    if _digest(loaded) != ref.digest:
        raise StudyError(
            f"workload {ref.name}: not what the run solved, this version of dse reads it otherwise; take the "
            "version that made the run, or run the study into a new folder"
        )
    return loaded


def _digest(workload: Workload) -> str:
    """Returns a digest of everything that solvers see of a workload."""
    rows = [
        (e.name, canonical_key(e), [p.tensor for p in e.tensors()], n)
        for e, n in zip(workload.einsums, counts(workload), strict=True)
    ]
    return digest(repr((rows, sorted(workload.weights))))


def _objective(
    key: str, item: object, names: Sequence[str] | None, faults: Faults, folder: Path, within: Path | None
) -> Objective | None:
    """Returns the objective of "area_mm2", {energy_pj: sum} or {throughput: sum, direction: max}."""
    given = {item: ""} if isinstance(item, str) else item
    metric_keys = [k for k in given if k != "direction"] if isinstance(given, Mapping) else []
    if not isinstance(given, Mapping) or len(metric_keys) != 1:
        faults.add(
            f"{key} = {show(item)} is no objective; write energy_pj, {{energy_pj: sum}} or "
            f"{{throughput: sum, direction: max}}"
        )
        return None
    metric = str(metric_keys[0])
    over, direction = str(given[metric]), given.get("direction", "max" if metric in MAXIMISED else "min")
    metric_names = (*METRICS, "area_mm2")
    is_term = plugin.SPEC.fullmatch(metric) is not None
    if is_term and over:
        faults.add(f"{key} = {{{metric}: {over}}}: a cost term is of all workloads; write {metric}")
    elif is_term and direction in ("min", "max"):
        return Objective(plugin_key(key, metric, folder, faults, within), "", str(direction))
    elif metric not in metric_names and not is_term:
        faults.add(f"{key} = {metric} is no metric; {closest_name(metric, metric_names)}")
    elif metric == "area_mm2" and over:
        faults.add(f"{key} = {{area_mm2: {over}}}: area is the machine's, not a workload's; write area_mm2")
    elif over and names is not None and over not in (*AGGREGATES, *names):
        faults.add(
            f"{key} = {{{metric}: {over}}} names no aggregate and no workload; "
            f"{closest_name(over, (*AGGREGATES, *names))}"
        )
    elif direction not in ("min", "max"):
        faults.add(f"{key}.direction = {show(direction)} is unknown; use min or max")
    else:
        return Objective(metric, over, str(direction))
    return None


def _name_fault(text: str, known: Collection[str], names: Sequence[str] | None) -> str:
    """Returns why a name in a constraint is neither a number of the machine (known) nor a metric, or ""."""
    metric, workload = metric_of(text)
    if metric:
        return (
            f"{workload} is no workload; {closest_name(workload, names)}"
            if workload and names is not None and workload not in names
            else ""
        )
    return (
        ""
        if text in known
        else f"{text} is no number of the machine and no metric; "
        f"{closest_name(text, (*sorted(known), *METRICS))}"
    )


def _check_met(search_space: Space, found: Constraints, faults: Faults) -> bool:
    """False, with a fault, if no machine meets the static constraints. Each constraint is checked by itself
    over the axes that it names; then all together, if the space has fewer than 2 x `MAX_TRIED` machines.
    """
    single = [(Constraints((c,)), _slice(search_space, c)) for c in found.static]
    for checked, machines in (
        *single,
        (found, range(0, search_space.size, max(1, search_space.size // MAX_TRIED))),
    ):
        # that none of a sample meets all constraints proves nothing
        decides = checked is not found or len(machines) == search_space.size
        if decides and _none_meets(search_space, checked, machines):
            faults.add(
                f"constraints: no machine of the space meets {' and '.join(c.text for c in checked.static)}; "
                "relax it, or widen the space"
            )
            return False
    return True


def _none_meets(search_space: Space, checked: Constraints, machines: Sequence[int]) -> bool:
    """True if none of these machines meets the constraints and at least one misses them. Machines that cannot
    be built do neither.
    """
    any_missed = False
    for number in machines:
        met = meets(search_space, number, checked)
        if met:
            return False
        any_missed |= met is False
    return any_missed


def _slice(search_space: Space, one: Constraint) -> Sequence[int]:
    """Returns the numbers of one machine per combination of values on the axes that a constraint names (the
    first value on all other axes); () if it names anything else, or there are more than `MAX_TRIED`.
    """
    lengths = [len(axis.values) if axis.key in one.names else 1 for axis in search_space.axes]
    if not one.names <= {axis.key for axis in search_space.axes} or prod(lengths) > MAX_TRIED:
        return ()
    strides = [prod(len(axis.values) for axis in search_space.axes[i + 1 :]) for i in range(len(lengths))]
    return [sum(s * p for s, p in zip(strides, at, strict=True)) for at in product(*map(range, lengths))]
