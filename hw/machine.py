"""The only reader of machine YAML files: `load` returns a Machine, or raises all faults of the file at once.

    name: edge                 # default: the file's name
    clock_mhz: 500
    node_nm: 32                # for the tables; cell: lop | hp
    nodes:                     # outermost first, the compute last; `<name>.<field>` is the key of a study
    - {memory: dram, kind: lpddr4, width_bits: 64}
    - {memory: gbuf, capacity: 128 KiB, width_bits: 128}
    - {array: array, dims: {y: 16, x: 16}, systolic: ws}      # rows first
    - {compute: mac, kind: int8, vector_lanes: 16}
    mapping: [{at: x, ranks: [input_channel]}]   # rules that mappings keep (hw/arch.py: Rule)
    tiling: {align: 8}         # for solver.tiling: smaug; preference, minimum, align, pes, macs, vector
                               (hw/arch.py: Tiling)

Sizes carry a unit (B, KiB, MiB, GiB), bandwidths too (GB/s). Plain numbers are refused there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from hw import component, tiling
from hw.arch import Arch, Array, Machine, MacUnit, Memory, Node, Tiling
from hw.component import Outline
from workloads import document, plugin
from workloads.meant import meant

MACHINES = Path(__file__).parent / "machines"
NODE_TYPES: dict[str, type[Memory] | type[Array] | type[MacUnit]] = {
    "memory": Memory,
    "array": Array,
    "compute": MacUnit,
}
NODE_KEYS = {f.name for kind in NODE_TYPES.values() for f in fields(kind)}
HEAD = tuple(f.name for f in fields(Machine) if f.name != "nodes")
KEYS = {*HEAD, "nodes"} - {"name", "mapping"}  # a document that has one of these keys is a machine
NO_MACHINE = "must be a mapping with clock_mhz and nodes; see hw/machines/edge_array.yaml"
SUBKEYS = {"tiling": tuple(f.name for f in fields(Tiling))}  # keys whose value is a mapping -> its keys
MACHINE_ADAPTER: TypeAdapter[Machine] = TypeAdapter(Machine)
NODE_ADAPTERS: dict[str, TypeAdapter[Node]] = {role: TypeAdapter(kind) for role, kind in NODE_TYPES.items()}
# harmless values that replace faulty ones, so that the rest of a file can be checked
STAND_IN = Machine(name="faulty", clock_mhz=1.0, node_nm=45.0, word_bits=8)


class MachineError(ValueError):
    """A machine file that cannot be used: one line per fault, `file: key = value why; fix`."""


@lru_cache
def names() -> tuple[str, ...]:
    """Returns the names of the machines that come with the project (hw/machines)."""
    return tuple(sorted(path.stem for path in MACHINES.glob("*.yaml")))


def find(name_or_path: str, folder: Path = Path()) -> Path:
    """Returns the file of a machine, given by name (hw/machines) or by path. folder: where a file is looked
    for that an unknown name may mean. Raises MachineError.
    """
    if name_or_path in names():
        return MACHINES / f"{name_or_path}.yaml"
    path = Path(name_or_path)
    if path.suffix in (".yaml", ".yml") or path.exists():
        return path
    if ":" in name_or_path:
        raise MachineError(f"machine = {name_or_path} is a workload; the machine comes second")
    if (folder / f"{name_or_path}.yaml").is_file():
        raise MachineError(f"machine = {name_or_path} is unknown; did you mean {name_or_path}.yaml?")
    raise MachineError(
        f"machine = {name_or_path} is unknown; {component.closest_name(name_or_path, names())} (a "
        "machine of your own: the path of its .yaml file)"
    )


def load(name_or_path: str, asked: bool = True) -> Machine:
    """Returns a checked machine, given by name or by path. The check includes the component tables. Raises
    MachineError with all faults of the file, one line each. asked: as in `plugin.find`, of tables.
    """
    path = find(name_or_path)
    data, faults = document.read(path)
    spec = STAND_IN
    if data is not None and not document.is_kind(data, KEYS):
        faults = [NO_MACHINE]
    elif data is not None or not faults:
        spec, more = parse(data, path.stem, path.parent, asked)
        faults = faults + more
    if faults:
        raise MachineError("\n".join(f"{path}: {line}" for line in dict.fromkeys(faults)))
    return spec


def parse(data: object, name: str, folder: Path = Path(), asked: bool = True) -> tuple[Machine, list[str]]:
    """Returns the machine of a YAML document, and its faults. If there are faults, the machine is not to be
    used: harmless values replace faulty ones, and faulty nodes are missing. name: where the document gives
    none. folder, asked: where tables of the user are, and whether they may be executed (`plugin.find`).
    """
    if not isinstance(data, dict):
        return STAND_IN, [NO_MACHINE]
    head, faults = _head({"name": name, **data})
    listed = data.get("nodes")
    # nodes under a misspelt key, which is reported already
    if "nodes" not in data and any(line.endswith("did you mean nodes?") for line in faults):
        return head, faults
    if not isinstance(listed, list) or not listed:
        return head, [
            *faults,
            "nodes must be a list, outermost memory first; add e.g. nodes: [{memory: dram, ...}, "
            "..., {compute: mac, ...}]",
        ]
    parsed = [_with_table(*_node(entry, i), folder, asked) for i, entry in enumerate(listed)]
    outline, nodes = [_outline(entry) for entry in listed], [node for node, _ in parsed]
    if all(outline):
        faults += component.order_faults([line for line in outline if line])
    faults += component.unit_faults(head, nodes)
    for path in component.paths(nodes) or [tuple(nodes)]:
        faults += component.nesting_faults(path)
    if all(node for node, _ in parsed):
        faults += component.rule_faults(head.mapping, [node for node, _ in parsed], "mapping")
    for i, (node, wrong) in enumerate(parsed):
        faults += wrong + (component.node_faults(head, node, i == 0) if node else [])
    lines = [line.replace("\n", "\\n") for line in faults]  # a name may hold a line break
    return replace(head, nodes=tuple(node for node, _ in parsed if node)), lines


def load_arch(name_or_path: str) -> Arch:
    """Returns the Arch of a machine, given by name or by path. Raises MachineError."""
    return arch(load(name_or_path))


def arch(spec: Machine) -> Arch:
    """Returns the Arch of a machine. Raises component.ComponentError, but never for a machine that `load`
    returned.
    """
    return component.build(spec)


def schema() -> dict[str, Any]:
    """Returns the JSON Schema of machine files, for editors."""
    return MACHINE_ADAPTER.json_schema(by_alias=True) | {"required": ["clock_mhz", "nodes"]}


def _head(data: Mapping[Any, Any]) -> tuple[Machine, list[str]]:
    """Returns the machine without its nodes, and its faults. A faulty value is replaced by a harmless one, so
    that the nodes can still be checked.
    """
    head_values = {key: value for key, value in data.items() if key != "nodes"}
    try:
        head = MACHINE_ADAPTER.validate_python(head_values)
        return head, tiling.faults(head.tiling)
    except ValidationError as error:
        faulty_keys = {str(detail["loc"][0]) for detail in error.errors()}
        sound_values = {
            key: value for key, value in head_values.items() if key in HEAD and key not in faulty_keys
        }
        stand_in: dict[str, Any] = {key: getattr(STAND_IN, key) for key in faulty_keys if key in HEAD}
        return MACHINE_ADAPTER.validate_python(sound_values | stand_in), _lines(error, "", (*HEAD, "nodes"))


def _outline(entry: object) -> Outline | None:
    """Returns what the order of nodes depends on of an entry of `nodes`; None if it is no node."""
    role = next((r for r in NODE_TYPES if isinstance(entry, dict) and r in entry), None)
    if role is None or not isinstance(entry, dict):
        return None
    dims = [str(d) for d in entry["dims"]] if isinstance(entry.get("dims"), dict) else []
    return Outline(role, str(entry[role]), dims if role == "array" else [], str(entry.get("in_core") or ""))


def _node(entry: object, i: int) -> tuple[Node | None, list[str]]:
    """Returns the node of entry i of `nodes` (None if it is faulty), and its faults."""
    role = next((r for r in NODE_TYPES if isinstance(entry, dict) and r in entry), None)
    if role is None or not isinstance(entry, dict):
        for key, value in entry.items() if isinstance(entry, dict) else ():
            if (found := meant(str(key), NODE_TYPES)) and key not in NODE_KEYS:
                advice = f"did you mean {' or '.join(found)}?"
                return None, [f"nodes[{i}].{key} = {component.show(value)} is no known key; {advice}"]
        return None, [
            f"nodes[{i}] = {component.show(entry)} must say what it is; begin it with memory: NAME, array: "
            "NAME or compute: NAME"
        ]
    key = entry[role] if isinstance(entry[role], str) else f"nodes[{i}]"
    valid_keys = [role, *(f.name for f in fields(NODE_TYPES[role]) if f.name != "name")]
    try:
        return NODE_ADAPTERS[role].validate_python(entry), []
    except ValidationError as error:
        return None, _lines(error, f"{key}.", valid_keys)


def _with_table(
    node: Node | None, faults: list[str], folder: Path, asked: bool
) -> tuple[Node | None, list[str]]:
    """Returns a node with the key of its own table for the name, and the faults."""
    if not isinstance(node, Memory) or node.table is None or plugin.KEY.fullmatch(node.table):
        return node, faults
    key = f"{node.name}.table = {node.table}"
    if "/" in node.table:
        return None, [*faults, f"{key} must be of a file beside the machine; move it there"]
    try:
        return replace(node, table=plugin.find(node.table, folder, asked).key), faults
    except plugin.PluginError as fault:
        return None, [*faults, f"{node.name}.table = {fault}"]


def _lines(error: ValidationError, prefix: str, valid_keys: tuple[str, ...] | list[str]) -> list[str]:
    """Returns a line per fault that pydantic found. A missing key is left out if a misspelt one stands for
    it.
    """
    lines: list[str] = []
    for detail in sorted(error.errors(), key=lambda detail: detail["type"] == "missing"):
        # without the parts that are pydantic's own words
        loc = [str(part) for part in detail["loc"] if str(part) not in ("bool", "tuple[str, ...]", "[key]")]
        if detail["type"] != "missing" or not any(
            line.endswith(f"did you mean {loc[-1]}?") for line in lines
        ):
            keys = SUBKEYS.get(loc[0], valid_keys) if len(loc) > 1 else valid_keys
            lines.append(
                component.explain(
                    prefix + ".".join(loc), detail["type"], detail["input"], detail["msg"], keys
                )
            )
    return list(dict.fromkeys(lines))
