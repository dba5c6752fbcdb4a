"""AccelForge specification -> machine, workload, schedule.

    arch: {nodes: [!Memory {name, size, tensors: {keep, may_keep}, actions: [{name, energy, throughput}]},
                   !Container {name, spatial: [{name, fanout}]}, !Compute {name, actions}]}
    workload: {rank_sizes | iteration_space_shape, bits_per_value, einsums: [{name, tensor_accesses}]}

Its units are bits, J, W, m2 and actions per second, an action moves bits_per_action bits (1 unless it says).
It knows no clock: ours is 1 GHz, and rates are per cycle of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

from dse.exchange import accelforge_mapping, documents, machines, shape
from dse.exchange.arithmetic import number
from dse.exchange.documents import TAG
from dse.exchange.notes import Converted, Notes, Unreadable, refuse
from hw import component
from hw.arch import ROLES

CLOCK_MHZ = 1000.0
WORD_BITS = 8
READ_BITS = 64  # width of a memory whose actions say none
TOP = ("arch", "workload", "mapping", "renames", "mapper", "variables", "config")
SEPARATE = "max(a.n_calls / a.throughput for a in actions)"  # of reads and writes, each at a port of its own
RANGE = re.compile(r"^\s*0\s*<=\s*(\w+)\s*<\s*(.+?)\s*$")
DRAM = {"lpddr4": "lpddr4", "lpddr5": "lpddr5", "ddr4": "ddr4", "hbm2": "hbm2", "dram": "lpddr4"}
# keys of nodes that are carried over
MEMORY_KEYS = {
    TAG, "name", "size", "leak_power", "area", "tensors", "actions", "spatial", "component_class",
    "total_latency", "extra_attributes_for_component_model", "bits_per_action",
}  # fmt: skip


def _tree() -> shape.Shape:
    node = {
        "rank_variable": ([shape.TEXT], shape.TEXT),
        "tile_shape": shape.COUNT,
        "tensors": [shape.TEXT],
        "component": shape.TEXT,
        "einsum": shape.TEXT,
        "nodes": _tree,
    }
    return [node]


_RANGES = ([shape.TEXT], {shape.ANY: shape.TEXT})
_ARCH_NODE = {
    "name": shape.TEXT,
    "spatial": [{"name": shape.TEXT, "fanout": shape.AMOUNT}],
    "tensors": {shape.ANY: shape.TEXT},
    "actions": [{"name!": shape.TEXT}],
    "extra_attributes_for_component_model": {shape.ANY: object},
}
_ACCESS = {"name!": shape.TEXT, "projection": ([shape.TEXT], {shape.ANY: shape.TEXT})}
_EINSUM = {"name": shape.TEXT, "tensor_accesses": [_ACCESS], "iteration_space_shape": _RANGES}
SHAPES: dict[str, shape.Shape] = {
    "arch": {"nodes!": [_ARCH_NODE], "extra_attributes_for_all_component_models": {shape.ANY: object}},
    "workload": {
        "rank_sizes": {shape.ANY: shape.AMOUNT},
        "iteration_space_shape": _RANGES,
        "bits_per_value": {shape.ANY: object},
        "einsums!": [(shape.TEXT, _EINSUM)],
    },
    "mapping": {"nodes!": _tree},
}


def read(paths: Sequence[Path], notes: Notes) -> Converted:
    """Returns what the files hold. Raises Unreadable with one line per fault."""
    found: dict[str, tuple[str, Any]] = {}
    for path in paths:
        data = documents.read(path, notes)
        if not isinstance(data, dict) or not data.keys() & {*TOP}:
            raise Unreadable(f"{path}: holds no arch, workload or mapping; give files of AccelForge")
        if isinstance(data.get("workload"), dict):
            data["workload"] = {**data["workload"], "einsums": [*_flat(data["workload"].get("einsums"))]}
        for key, value in data.items():
            if key in found and key != "renames":
                raise Unreadable(
                    f"{path}: {key} stands in {found[key][0]}, too; convert one design at a time"
                )
            refuse(shape.faults(str(path), str(key), value, SHAPES.get(str(key), object)))
            found[str(key)] = (str(path), value)
            if key not in TOP:
                notes.lost(str(path), str(key), "is not carried over")
    workload = _workload(*found["workload"], notes) if "workload" in found else None
    machine = _machine(*found["arch"], workload, notes) if "arch" in found else None
    schedule = None
    if "mapping" in found:
        entries = workload["einsums"] if workload else []
        tensors = {one["name"]: re.findall(r"(\w+)\[", one["text"]) for one in entries}
        schedule = accelforge_mapping.read(*found["mapping"], tensors, notes)
    return Converted(machine, workload, None, schedule)


def _flat(einsums: Any) -> Iterator[Any]:
    """Yields the entries of a list, and of lists inside of it: einsums of files that it includes."""
    for one in einsums if isinstance(einsums, list) else [einsums]:
        if isinstance(one, list):
            yield from _flat(one)
        elif one is not None:
            yield one


def _machine(file: str, arch: Any, workload: Mapping[str, Any] | None, notes: Notes) -> dict[str, Any]:
    given = arch.get("nodes") if isinstance(arch, dict) else None
    if not isinstance(given, list) or not all(isinstance(node, dict) and TAG in node for node in given):
        refuse([f"{file}: arch.nodes must be a list of !Memory, !Container and !Compute"])
    shared = arch.get("extra_attributes_for_all_component_models") or {}
    tech = number(shared.get("tech_node"))
    nm = machines.node_nm(f"{tech * 1e9:g}nm" if tech else "", file, notes)
    assert isinstance(given, list)
    nodes: list[dict[str, Any]] = []
    rules: list[dict[str, Any]] = []
    several = sum(str(node[TAG]) == "Compute" for node in given) > 1
    core: dict[str, str] = {}  # of nodes behind a compute
    for node in given:
        arrays, own_rules = _spatial(file, node, notes)
        nodes, rules = [*nodes, *(array | core for array in arrays)], rules + own_rules
        kind = str(node[TAG])
        if kind == "Memory":
            nodes.append(_memory(file, node, nm, not any("memory" in one for one in nodes), notes) | core)
        elif kind == "Compute":
            compute = _compute(file, node)
            name = {"in_core": f"with_{compute['compute']}"} if several and node is not given[-1] else core
            nodes.append(compute | name | (_takes(file, node, notes) if several else {}))
            core = {"in_core": f"with_{machines.name(str(given[-1].get('name')))}"} if several else {}
        elif kind != "Container":
            notes.lost(file, f"arch.{node.get('name', kind)}", f"!{kind} is not carried over")
    notes.assumed(
        file, "clock", f"AccelForge has none; {CLOCK_MHZ:g} MHz, rates per second are per cycle of it"
    )
    head = {"name": machines.name(Path(file).stem), "clock_mhz": CLOCK_MHZ, "node_nm": nm}
    found = head | {"word_bits": _word_bits(workload), "overlap": "free"}
    return found | ({"mapping": rules} if rules else {}) | {"nodes": nodes}


def _word_bits(workload: Mapping[str, Any] | None) -> int:
    bits = [n for one in (workload or {}).get("einsums", []) for n in one.get("bits", {}).values()]
    return max(bits) if bits else WORD_BITS


def _takes(file: str, node: Mapping[str, Any], notes: Notes) -> dict[str, Any]:
    """Returns which einsums one of several computes does: those of two tensors are functions, all others
    products.
    """
    enabled = str(node.get("enabled", True)).replace(" ", "")
    kinds = {"len(All)==2": ["others"], "len(All)==3": ["products", "convolutions"]}.get(enabled)
    where = f"arch.{node.get('name')}.enabled"
    if kinds:
        notes.assumed(file, where, f"{enabled}: {', '.join(kinds)}; sums of two tensors are others, too")
    elif enabled != "True":
        notes.lost(file, where, f"{enabled} is no number of tensors; takes all einsums")
    return {"takes": {"kinds": kinds}} if kinds else {}


# ranks that a tensor lacks, by role: those along which PEs may share it
LACKED = {
    "input": ["output_channel"],
    "weight": ["batch", "output_row", "output_column"],
    "output": ["input_channel", "filter_row", "filter_column"],
}


def _spatial(
    file: str, node: Mapping[str, Any], notes: Notes
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns the array in front of a node, if any, and the rules of what is unrolled over it."""
    rules: list[dict[str, Any]] = []
    dims: dict[str, int] = {}
    shared: list[str] = []
    title = str(node.get("name"))
    for one in node.get("spatial") or []:
        dim, size = machines.name(str(one.get("name", "x"))), number(one.get("fanout"))
        if not size or size != int(size):
            refuse([f"{file}: {title}.spatial.fanout = {component.show(one.get('fanout'))} is no number"])
        dims[dim] = int(size or 1)
        if one.get("may_reuse") != "Nothing":
            shared.append(dim)
        reused = LACKED.get(str(one.get("reuse")).strip())
        rule: dict[str, Any] = {"ranks": reused} if reused else {}
        if reused:
            says = f"reuse: {one['reuse']}: of the ranks that it lacks those with a role are unrolled there"
            notes.assumed(file, f"{title}.spatial.{dim}", says)
        # as a rule: the share, or as much as ranks can fill, where AccelForge takes the most that it finds
        least = number(one.get("min_usage"))
        if least is not None and 0 < least <= 1:
            rule["utilization"] = least
        rules += [{"at": dim} | rule] if rule else []
        carried = {
            "name",
            "fanout",
            *(["may_reuse"] if dim not in shared else []),
            *(["reuse"] * bool(reused)),
            *(["min_usage"] if least == 0 or "utilization" in rule else []),
        }
        if others := sorted(set(one) - carried):
            says = f"{', '.join(others)}: the mapper chooses which ranks are unrolled there"
            notes.lost(file, f"{title}.spatial.{dim}", says)
    if not dims:
        return [], rules
    found: dict[str, Any] = {"array": machines.name(title if node[TAG] == "Container" else f"{title}_copies")}
    reuse = {} if len(shared) == len(dims) else {"multicast": shared or False, "reduce": shared or False}
    return [found | {"dims": dims} | reuse], rules


def _actions(node: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {str(one.get("name")): one for one in node.get("actions") or [] if isinstance(one, dict)}


def _memory(
    file: str, node: Mapping[str, Any], nm: float, is_outermost: bool, notes: Notes
) -> dict[str, Any]:
    title, actions = str(node.get("name")), _actions(node)
    for key in sorted(set(node) - MEMORY_KEYS):
        notes.lost(file, f"{title}.{key}", "is not carried over")
    wide = [number(one.get("bits_per_action")) for one in actions.values() if one.get("bits_per_action")]
    bits = number(node.get("size", "inf"))
    if bits is None:
        one_element = re.match(r"\s*(input|weight|output)\.bits_per_value\b", str(node["size"]))
        note = notes.assumed if one_element else notes.lost
        note(file, f"{title}.size", f"{component.show(node['size'])} is no number; one word taken")
        bits = float(WORD_BITS)
    if bits < 1:
        refuse([f"{file}: {title}.size = {component.show(node['size'])} bits hold nothing; raise it"])
    if bits == inf and not is_outermost:
        notes.lost(file, f"{title}.size", "inf: levels inside have a size; 1 GiB taken")
        bits = 8.0 * 2**30
    capacity = None if bits == inf else machines.whole_bytes(bits, file, f"{title}.size", notes)
    width = int(min(wide[0] if wide and wide[0] else READ_BITS, bits))
    latency = str(node.get("total_latency", "")).strip()
    separate = latency == SEPARATE
    if latency and not separate:
        notes.lost(file, f"{title}.total_latency", "busy times follow from actions and rates here")
    reads, writes = (_rate(actions.get(way, {}), width) for way in ("read", "write"))
    found = machines.memory(machines.name(title), width, capacity, reads, separate, writes)
    found |= _numbers(file, node, found, actions, nm, int(bits) if bits != inf else None, notes)
    return found | ({} if is_outermost else _held(file, node, notes))


def _rate(action: Mapping[str, Any], width: int) -> float:
    """Returns the rate of reads or of writes in actions of `width` bits per cycle."""
    per_second = number(action.get("throughput", "inf"))
    bits = number(action.get("bits_per_action", 1)) or 1.0
    return inf if per_second is None else per_second * bits / width / (CLOCK_MHZ * 1e6)


def _numbers(
    file: str,
    node: Mapping[str, Any],
    own: Mapping[str, Any],
    actions: Mapping[str, Mapping[str, Any]],
    nm: float,
    bits: int | None,
    notes: Notes,
) -> dict[str, Any]:
    """Returns the energies of a memory. own: the keys that it has here so far."""
    width = own["width_bits"]
    kind = str(node.get("component_class", "")).lower()
    pj = {name: _energy_pj(actions.get(name, {}), width) for name in ("read", "write")}
    leak = (number(node.get("leak_power", 0)) or 0.0) * 1e3
    area = (number(node.get("area", 0)) or 0.0) * 1e6
    if None not in pj.values() or kind == "dummy":
        return machines.custom(pj["read"] or 0.0, pj["write"] or 0.0, leak, area)
    if dram := next((dram for word, dram in DRAM.items() if word in kind), ""):
        return {"kind": dram}
    banks = int(number((node.get("extra_attributes_for_component_model") or {}).get("n_banks", 1)) or 1)
    size = bits or 8 * 2**30
    if machines.has_table(nm, size // 8, banks, width):
        return machines.table_sram(banks, own)
    array, _ = machines.nearest_sram(nm, max(size // banks, 8), width)
    says = f"{size // 8} B in words of {width} bits are in no table; energies scaled from the nearest SRAM"
    notes.assumed(file, str(node.get("name")), says)
    return machines.custom(array.read_pj, array.write_pj, array.leak_mw * banks, array.area_mm2 * banks)


def _energy_pj(action: Mapping[str, Any], width: int) -> float | None:
    """Returns the energy of `width` bits, None where the action gives none."""
    joule = number(action.get("energy"))
    bits = number(action.get("bits_per_action", 1)) or 1.0
    return None if joule is None else joule * 1e12 * width / bits


def _held(file: str, node: Mapping[str, Any], notes: Notes) -> dict[str, Any]:
    """Returns which roles may stand at a level, and whether they must."""
    block = node.get("tensors") or {}
    keep, may = (_roles(str(block[key])) if key in block else None for key in ("keep", "may_keep"))
    for key in ("keep", "may_keep"):
        text = str(block.get(key, "All"))
        if _roles(text) is None and not text.startswith("~"):
            notes.lost(
                file, f"{node.get('name')}.tensors.{key}", f"{text} is no set of input, weight, output"
            )
    # what may stand there beside what must: nothing where keep is given, else all
    allowed = may if may is not None else ([] if "keep" in block and "may_keep" not in block else [*ROLES])
    roles = [role for role in ROLES if role in (keep or []) or role in allowed] or [*ROLES]
    found: dict[str, Any] = {} if len(roles) == len(ROLES) else {"may_keep": roles}
    return found | ({"bypass": False} if keep and set(keep) >= set(roles) else {})


def _roles(text: str) -> list[str] | None:
    """Returns the roles of a set expression such as `input | output`; None where it is another one."""
    words = [word.strip().lower() for word in text.split("|")]
    if words == ["all"]:
        return [*ROLES]
    return [role for role in ROLES if role in words] if set(words) <= {*ROLES} else None


def _compute(file: str, node: Mapping[str, Any]) -> dict[str, Any]:
    action = _actions(node).get("compute", {})
    found: dict[str, Any] = {"compute": machines.name(str(node.get("name"))).removesuffix("_")}
    joule, per_second = number(action.get("energy")), number(action.get("throughput", "inf"))
    if joule is None and str(node.get("component_class", "")).lower() != "dummy":
        return found | {"kind": "int8"}
    if per_second and per_second != inf:
        found["ops_per_cycle"] = per_second / (CLOCK_MHZ * 1e6)
    numbers = {"mac_pj": (joule or 0.0) * 1e12, "alu_pj": 0.0, "merge_pj": 0.0}
    leak = (number(node.get("leak_power", 0)) or 0.0) * 1e3
    return (
        found
        | {"kind": "custom"}
        | numbers
        | {"leak_mw": leak, "area_mm2": (number(node.get("area", 0)) or 0.0) * 1e6}
    )


def _workload(file: str, given: Any, notes: Notes) -> dict[str, Any]:
    if not isinstance(given, dict) or not isinstance(given.get("einsums"), list):
        refuse([f"{file}: workload.einsums must be a list; see AccelForge's workload"])
    ranges = dict(_ranges(given.get("iteration_space_shape")))
    named = given.get("rank_sizes") or {}
    sizes = {str(rank): number(n, named) for rank, n in named.items()}
    for key in sorted(set(given) - {"einsums", "iteration_space_shape", "rank_sizes", "bits_per_value"}):
        if key != "persistent_tensors":
            notes.lost(file, f"workload.{key}", "is not carried over")
    entries = [
        _entry(file, one, ranges, sizes, given.get("bits_per_value") or {}, notes) for one in given["einsums"]
    ]
    extents: dict[str, int] = {}
    for entry in entries:  # ranks of one size everywhere stand above
        own = entry.pop("extents")
        entry["extents"] = {rank: n for rank, n in own.items() if extents.setdefault(rank, n) != n}
        if not entry["extents"]:
            del entry["extents"]
    made = {entry["text"].partition("[")[0] for entry in entries}
    read = [re.findall(r"(\w+)\[", entry["text"].partition("=")[2]) for entry in entries]
    weights = [name for names in read for name in names[1:] if name not in made]
    found = {"name": machines.name(Path(file).stem), "extents": extents, "einsums": entries}
    return found | {"weights": list(dict.fromkeys(weights))}


def _ranges(given: Any) -> Iterator[tuple[str, Any]]:
    """Yields (rank, extent) of `0 <= m < 128`, in a mapping or a list."""
    texts = given.values() if isinstance(given, dict) else given or []
    for text in texts:
        if match := RANGE.match(str(text)):
            yield match[1], match[2]


def _entry(
    file: str,
    one: Any,
    ranges: Mapping[str, Any],
    sizes: Mapping[str, float | None],
    bits: Mapping[str, Any],
    notes: Notes,
) -> dict[str, Any]:
    one = (
        _from_text(one)
        if isinstance(one, str)
        else {**_from_text(one["einsum"]), **one}
        if "einsum" in one
        else one
    )
    name = str(one.get("name"))
    accesses = one.get("tensor_accesses")
    if not isinstance(accesses, list):
        refuse([f"{file}: workload.einsums.{name} has no tensor_accesses; write them out"])
    texts = {str(a["name"]): _indices(a.get("projection") or []) for a in accesses or []}
    outputs = [str(a["name"]) for a in accesses or [] if a.get("output")]
    if len(outputs) != 1:
        refuse([f"{file}: workload.einsums.{name} has {len(outputs)} outputs; einsums here have one"])
    inputs = sorted((t for t in texts if t not in outputs), key=lambda t: t.upper().startswith("W"))
    own = {**ranges, **dict(_ranges(one.get("iteration_space_shape")))}
    ranks = list(dict.fromkeys(re.findall(r"[A-Za-z_]\w*", ",".join(texts.values()))))
    extents = {rank: _extent(file, name, rank, own, sizes) for rank in ranks}
    shown = {tensor: f"{tensor}[{text}]" for tensor, text in texts.items()}
    product = " * ".join(shown[t] for t in inputs)
    entry: dict[str, Any] = {"text": f"{shown[outputs[0]]} += {product}", "name": name, "extents": extents}
    width = {str(a["name"]): number(a.get("bits_per_value")) for a in accesses or []}
    default = number(bits.get("All"))
    if widths := {t: int(n) for t in texts if (n := width[t] or number(bits.get(t)) or default)}:
        entry["bits"] = widths
    for key in sorted(set(one) - {"name", "einsum", "tensor_accesses", "iteration_space_shape", "renames"}):
        notes.lost(file, f"workload.einsums.{name}.{key}", "is not carried over")
    return entry


def _from_text(given: Any) -> dict[str, Any]:
    """Returns an einsum given as `T0[p, n, m] = I0[n, c, H: 2 * p + r] * W0[r, c, m]`."""
    accesses = [
        {"name": tensor, "projection": [index.rpartition(":")[2] for index in indices.split(",")]}
        for tensor, indices in re.findall(r"(\w+)\s*\[([^\]]*)\]", str(given))
    ]
    if not accesses or "=" not in str(given):
        return {"name": str(given)}
    first = accesses[0] | {"output": True}
    return {"name": f"make_{first['name']}", "tensor_accesses": [first, *accesses[1:]]}


def _indices(projection: Any) -> str:
    """Returns indices with factors in front: `p * 2 + r` is 2*p+r."""
    given = projection.values() if isinstance(projection, dict) else projection
    plain = (re.sub(r"\s+", "", str(one)) for one in given)
    return ",".join(re.sub(r"([A-Za-z_]\w*)\*(\d+)", r"\2*\1", one) for one in plain)


def _extent(
    file: str, einsum: str, rank: str, ranges: Mapping[str, Any], sizes: Mapping[str, float | None]
) -> int:
    found = number(ranges[rank]) if rank in ranges else sizes.get(rank.upper(), sizes.get(rank))
    if not found or found < 1 or found != int(found):
        refuse([f"{file}: workload.einsums.{einsum}: rank {rank} has no extent; say 0 <= {rank} < N"])
    return int(found or 1)
