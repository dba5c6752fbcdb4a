"""Timeloop v0.4 architecture -> machine.

    architecture: {version: 0.4, nodes: [!Container {...}, !Component {...}, !Parallel {nodes: [...]}]}

Nodes stand outermost first, the compute last; `spatial: {meshX, meshY}` of a node multiplies it and all that
follows. Components of a !Parallel node hold different tensors, so they are levels one after the other here.
Sizes are depth x width bits; a bandwidth is words of `datawidth` bits per cycle, without limit where none is
given; a level overlaps with all others (`overlap: free`). Energies are those of an ERT (energy reference
table of Accelergy) beside the architecture; without one, of our tables.
Source: Timeloop's src/model/buffer.cpp and timeloop-accelergy-exercises, cheatsheets/3_architecture.yaml.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from math import inf, prod
from typing import Any

from dse.exchange import machines
from dse.exchange.arithmetic import number
from dse.exchange.documents import TAG
from dse.exchange.notes import Notes, refuse
from dse.exchange.timeloop_problem import Shape
from hw import component
from hw.arch import ALL_OTHERS, ROLES

# role of a tensor by its name, where no problem says it
KNOWN_ROLES = {
    "input": ("inputs", "input", "i", "ifmap", "ifmaps", "a"),
    "weight": ("weights", "weight", "w", "filter", "filters", "b"),
    "output": ("outputs", "output", "o", "ofmap", "psum", "psums", "z"),
}
FACTOR = re.compile(r"([A-Za-z_]\w*?)\s*(<=|>=|=|)\s*(\d+)\b")
DRAM_CLASSES = ("dram", "lpddr4", "ddr4", "hbm2")
# attributes that are carried over, or that change no count here
READ = {
    "technology", "global_cycle_seconds", "width", "depth", "datawidth", "entries", "type", "n_banks",
    "nbanks", "read_bandwidth", "write_bandwidth", "rw_bandwidth", "shared_bandwidth", "bandwidth",
    "multiple_buffering", "multiplier_width", "adder_width", "word_bits", "block_size", "cluster_size",
    "memory_width", "memory_depth", "n_rdwr_ports", "nports", "num_ports", "n_rd_ports", "n_wr_ports",
    "n_rw_ports", "update_fifo_depth", "latency",
}  # fmt: skip
METADATA = ("metadata_storage_depth", "metadata_storage_width")  # lines, and bits of each, for indices


@dataclass(frozen=True, slots=True)
class Part:
    """One node of the architecture, on the way from outermost to compute."""

    title: str  # as the file names it
    kind: str  # class and subclass, in small letters
    attributes: Mapping[str, Any]
    dims: tuple[tuple[str, int], ...]  # (meshX or meshY, size) of its copies
    constraints: Mapping[str, Any]
    is_container: bool
    held_beside: frozenset[str] = frozenset()  # tensors that other components of a !Parallel node keep
    own: Mapping[str, Any] = field(default_factory=dict)  # keys of the node itself


@dataclass(frozen=True, slots=True)
class Named:
    """A machine, and what the nodes of the file are called in it."""

    machine: dict[str, Any]
    parts: tuple[tuple[str, str, tuple[str, ...]], ...]  # (title, memory or "", dimensions outside of it)


@dataclass(slots=True)
class Reader:
    """What all nodes of one architecture share."""

    file: str
    notes: Notes
    names: Mapping[str, Any]  # values of names in expressions
    roles: Mapping[str, str]  # role of each tensor
    shape: Shape  # of the problem
    energies: Mapping[str, Mapping[str, float]]  # ERT: component -> action -> pJ
    areas: Mapping[str, float]  # ART: component -> um2
    cycle_ns: float = 1.0
    node_nm: float = 45.0
    word_bits: int = 8


def read(
    file: str,
    architecture: Mapping[str, Any],
    variables: Mapping[str, Any],
    roles: Mapping[str, str],
    shape: Shape,
    tables: Mapping[str, Any],
    constraints: Sequence[tuple[str, Mapping[str, Any]]],
    notes: Notes,
) -> Named:
    """Returns the machine of an architecture.

    variables: the file `variables`, names of expressions
    roles, shape: role of each tensor of the problem, and what else matters of it, if there is one
    tables: the documents ERT and ART, where given
    constraints: (file, target) of files beside the architecture

    Raises Unreadable with one line per fault.
    """
    nodes = architecture.get("nodes")
    if not isinstance(nodes, list):
        what = "subtree (version 0.3)" if "subtree" in architecture else "no list"
        refuse([f"{file}: architecture.nodes = {what} cannot be read; convert it to version 0.4 first"])
    reader = Reader(
        file,
        notes,
        variables,
        roles or _known_roles(),
        shape,
        _table(tables, "ERT"),
        _table(tables, "ART_area"),
    )
    assert isinstance(nodes, list)
    parts = [_constrained(part, constraints) for part in _flat(nodes, {}, reader)]
    if not parts or parts[-1].is_container:
        refuse([f"{file}: architecture.nodes holds no component at its end; the compute must stand last"])
    _set_technology(reader, parts, variables)
    return _machine(reader, parts, str(parts[0].title))


def _known_roles() -> dict[str, str]:
    return {name: role for role, names in KNOWN_ROLES.items() for name in names}


def _table(tables: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Returns ERT: component -> action -> pJ; or ART: component -> um2, from documents of Accelergy. A path
    such as system.PE[1..16].spad[1..1] is the component spad.
    """
    document = tables.get(kind.split("_")[0])
    found: dict[str, Any] = {}
    for entry in document.get("tables", []) if isinstance(document, dict) else []:
        title = re.sub(r"\[.*?\]", "", str(entry.get("name", ""))).rpartition(".")[2]
        actions = entry.get("actions") or []
        found[title] = (
            {str(one.get("name")): float(one.get("energy", 0.0)) for one in actions}
            if kind == "ERT"
            else float(entry.get("area", 0.0))
        )
    return found


def _flat(nodes: Sequence[Any], inherited: Mapping[str, Any], reader: Reader) -> Iterator[Part]:
    """Yields the nodes outermost first; a container hands its attributes to all that follows it."""
    for number_of, node in enumerate(nodes):
        if not isinstance(node, dict):
            refuse([f"{reader.file}: architecture.nodes[{number_of}] = {component.show(node)} is no node"])
        kind = str(node.get(TAG, "Component"))
        if kind == "Nothing":
            continue
        if kind == "Parallel":
            yield from _parallel(node, inherited, reader)
        elif "nodes" in node:
            yield from _flat(node["nodes"], inherited, reader)
        else:
            part = _part(node, kind, inherited, reader)
            if part.is_container:
                inherited = part.attributes
            yield part


def _parallel(node: Mapping[str, Any], inherited: Mapping[str, Any], reader: Reader) -> Iterator[Part]:
    """Yields the components of a !Parallel node, each with the tensors that others, or !Nothing, keep."""
    nodes = node.get("nodes") or []
    nothing = [one.get("constraints") or {} for one in nodes if one.get(TAG) == "Nothing"]
    away = {tensor for block in nothing for tensor in _names(block.get("dataspace"), "keep", "keep_only")}
    parts = list(_flat(nodes, inherited, reader))
    kept = [set(_names(part.constraints.get("dataspace"), "keep", "keep_only")) for part in parts]
    for i, part in enumerate(parts):
        others = away.union(*kept[:i], *kept[i + 1 :])
        yield replace(part, held_beside=frozenset(others - kept[i]))


def _part(node: Mapping[str, Any], kind: str, inherited: Mapping[str, Any], reader: Reader) -> Part:
    title = str(node.get("name", kind))
    spatial = node.get("spatial") if isinstance(node.get("spatial"), dict) else {}
    attributes = {**inherited, **(node.get("attributes") or {})}
    sizes = {key: number(value, {**reader.names, **attributes}) for key, value in (spatial or {}).items()}
    dims = tuple((key, int(size)) for key, size in sizes.items() if size and size > 1)
    for key, size in sizes.items():
        if size is None:
            refuse(
                [
                    f"{reader.file}: {title}.spatial.{key} = {component.show((spatial or {})[key])} "
                    "is no number; write one"
                ]
            )
    for key in sorted(set(node.get("attributes") or {})):
        if key.lower() in METADATA:
            says = "beside nonzeros stand their indices here: room for both in one capacity, traffic of both"
            reader.notes.assumed(reader.file, f"{title}.{key}", says)
        elif kind != "Container" and key.lower() not in READ:
            reader.notes.lost(reader.file, f"{title}.{key}", "changes nothing here")
    for key in sorted(set(node) - {TAG, "name", "class", "subclass", "spatial", "attributes", "constraints"}):
        reader.notes.lost(reader.file, f"{title}.{key}", "is not carried over")
    classes = f"{node.get('class', '')} {node.get('subclass', '')}".lower().strip()
    return Part(
        title, classes, attributes, dims, node.get("constraints") or {}, kind == "Container", own=node
    )


def _constrained(part: Part, constraints: Sequence[tuple[str, Mapping[str, Any]]]) -> Part:
    """Returns a node with the constraints that other files give its name."""
    own = dict(part.constraints)
    for _, target in constraints:
        if target.get("target") == part.title:
            kind = {"datatype": "dataspace", "bypass": "dataspace"}.get(
                str(target.get("type")), str(target.get("type"))
            )
            own[kind] = {
                **own.get(kind, {}),
                **{k: v for k, v in target.items() if k not in ("target", "type")},
            }
    return replace(part, constraints=own)


def _names(block: Any, *keys: str) -> list[str]:
    """Returns the tensors that a block of constraints lists under these keys."""
    found = [block.get(key) or [] for key in keys] if isinstance(block, dict) else []
    return [str(one) for own in found for one in (own if isinstance(own, list) else [own])]


def _set_technology(reader: Reader, parts: Sequence[Part], variables: Mapping[str, Any]) -> None:
    """Sets clock, technology and word: of the outermost memory, for its elements are those of the problem."""
    known = {**variables, **{k: v for part in parts for k, v in part.attributes.items()}}
    seconds = number(known.get("global_cycle_seconds"), reader.names)
    if not seconds:
        reader.notes.assumed(reader.file, "global_cycle_seconds", "is not given; 1e-9 taken (1 GHz)")
    reader.cycle_ns = (seconds or 1e-9) * 1e9
    reader.node_nm = machines.node_nm(known.get("technology", ""), reader.file, reader.notes)
    memories = [part for part in parts[:-1] if not part.is_container]
    reader.word_bits = int(_value(reader, memories[0], "datawidth", "word_bits") or 8) if memories else 8


def _value(reader: Reader, part: Part, *keys: str) -> float | None:
    """Returns the first of these attributes that is a number."""
    names = {**reader.names, **part.attributes}
    return next(
        (found for key in keys if (found := number(part.attributes.get(key), names)) is not None), None
    )


def _machine(reader: Reader, parts: Sequence[Part], title: str) -> Named:
    nodes: list[dict[str, Any]] = []
    named: list[tuple[str, str, tuple[str, ...]]] = []
    rules: list[dict[str, Any]] = []
    arrays = sum(bool(part.dims) for part in parts)
    for i, part in enumerate(parts):
        dims = _dims(part, arrays > 1)
        if dims:
            nodes.append(
                {"array": machines.name(part.title if part.is_container else f"{part.title}_copies")}
                | {"dims": dict(dims)}
            )
            rules += _spatial_rules(reader, part, [dim for dim, _ in dims])
        is_compute = i == len(parts) - 1
        if is_compute:
            nodes.append(_compute(reader, part))
        elif not part.is_container and _is_memory(part):
            is_outermost = not any("memory" in node for node in nodes)
            nodes.append(_memory(reader, part, is_outermost))
            rules += _temporal_rules(reader, part, [one for one in parts[:-1] if _holds(one)])
            rules += [] if is_outermost else _keep_rules(reader, part)
        elif not part.is_container:
            reader.notes.lost(
                reader.file, part.title, f"is no memory ({part.kind}); its energy is not counted"
            )
        level = machines.name(part.title).upper() if not is_compute and not part.is_container else ""
        named.append((part.title, level, tuple(dim.upper() for dim, _ in dims)))
    machine = {
        "name": machines.name(title),
        "clock_mhz": float(f"{1e3 / reader.cycle_ns:.9g}"),
        "node_nm": reader.node_nm,
        "word_bits": reader.word_bits,
        "overlap": "free",
        "nodes": nodes,
    }
    if rules:
        machine["mapping"] = rules
    return Named(machine, tuple(named))


def _dims(part: Part, several: bool) -> tuple[tuple[str, int], ...]:
    prefix = f"{machines.name(part.title)}_" if several else ""
    return tuple((f"{prefix}{mesh.removeprefix('mesh').lower()}", size) for mesh, size in part.dims)


def _is_memory(part: Part) -> bool:
    storage = {"depth", "entries", "memory_depth", "sizeKB"} & set(part.own.get("attributes") or {})
    return bool(storage) or _is_dram(part)


def _is_dram(part: Part) -> bool:
    return any(word in part.kind for word in DRAM_CLASSES)


def _spatial_rules(reader: Reader, part: Part, dims: Sequence[str]) -> list[dict[str, Any]]:
    """Returns the rules of the spatial constraints of a node, whose copies stand along `dims`. Over two
    dimensions the first `split` ranks of the permutation stand on the first one, all others on the second.
    """
    block = part.constraints.get("spatial")
    if not isinstance(block, dict):
        return []
    where = f"{part.title}.constraints.spatial"
    if shared := sorted({"no_reuse", "no_link_transfer", "rmw_first_update"} & block.keys()):
        says = f"{', '.join(shared)}: PEs share what they read and add up what they make here"
        reader.notes.lost(reader.file, where, says)
    _lose_others(reader, where, block, {*shared, "factors", "permutation", "split"})
    factors, order, split = _factors(reader, where, block), _order(block), block.get("split")
    if len(dims) < 2 or not isinstance(split, int):
        fixed = {rank: n for rank, n in factors.items() if len(dims) == 1 or n == 1}
        if left := sorted(factors.keys() - fixed.keys()):
            says = f"factors of {', '.join(left)}: without a split they may stand on either dimension"
            reader.notes.lost(reader.file, where, says)
        return [{"at": dim, "factors": fixed} for dim in dims if fixed]
    first = order[:split]
    rules: list[dict[str, Any]] = [{"at": dims[0], "ranks": first}]
    for dim, own in ((dims[0], [r for r in factors if r in first]), (dims[1], [*first, *factors])):
        mine = {rank: 1 if dim == dims[1] and rank in first else factors[rank] for rank in own}
        rules += [{"at": dim, "factors": mine}] if mine else []
    return rules


def _holds(part: Part) -> bool:
    return not part.is_container and _is_memory(part)


def _temporal_rules(reader: Reader, part: Part, memories: Sequence[Part]) -> list[dict[str, Any]]:
    """Returns the rules of the temporal constraints of a memory. memories: of the whole architecture.

    A loop over a rank that no tensor of its level has is one of the nearest level outside that keeps such a
    tensor here. So where the levels between forbid it but one, the loops are that one's: its limit stands at
    the level that has the rank, and the loops stand inside of the tiles of all levels down to it.
    """
    block = part.constraints.get("temporal")
    block = block if isinstance(block, dict) else {}
    where = f"{part.title}.constraints.temporal"
    _lose_others(reader, where, block, {"factors", "permutation"})
    own = _factors(reader, where, block)
    i = memories.index(part)
    factors = {rank: n for rank, n in own.items() if i == 0 or _has(reader, part, rank)}
    inside: dict[str, list[str]] = {}
    for rank in [rank for rank, n in factors.items() if n == 1]:
        below = _without(reader, memories[i + 1 :], rank)
        limits = [_factors(reader, "", one.constraints.get("temporal") or {}).get(rank) for one in below]
        loops = [number for number, n in enumerate(limits) if n != 1]
        for one in below[: loops[0] + 1] if loops else ():
            inside.setdefault(machines.name(one.title), []).append(rank)
        limited = [n for n in limits if n not in (1, None)]
        if loops:
            del factors[rank]
        if len(loops) == len(limited) == 1:
            factors[rank] = limited[0] or 1
        elif limited:
            at = " and ".join(below[number].title for number in loops)
            says = f"factors of {rank}: its loops at {at}, which keep no tensor with it, have no limit here"
            reader.notes.lost(reader.file, where, says)
    rules: list[dict[str, Any]] = [{"at": machines.name(part.title), "factors": factors}] if factors else []
    rules += [{"at": name, "inside": ranks} for name, ranks in inside.items()]
    # the innermost loop is named first; an order says nothing of loops of one trip
    ordered = [rank for rank in _order(block) if own.get(rank) != 1][::-1]
    known = {rank for ranks in reader.shape.ranks.values() for rank in ranks}
    known |= {rank for one in memories for rank in _order(one.constraints.get("temporal") or {})}
    others = known - {*ordered}
    if ordered and any(own.get(rank) != 1 for rank in others):
        ordered.insert(0, ALL_OTHERS)
    return [*rules, {"at": machines.name(part.title), "order": ordered}] if len(ordered) > 1 else rules


def _has(reader: Reader, part: Part, rank: str) -> bool:
    """Whether a tensor that a level keeps has a rank; True where no problem says so."""
    away = {*_names(part.constraints.get("dataspace"), "bypass"), *part.held_beside}
    only = _names(part.constraints.get("dataspace"), "keep_only")
    ranks = [
        own
        for tensor, own in reader.shape.ranks.items()
        if tensor not in away and (not only or tensor in only)
    ]
    return not reader.shape.ranks or any(rank in own for own in ranks)


def _without(reader: Reader, memories: Sequence[Part], rank: str) -> list[Part]:
    """Returns the levels, outermost first, down to the first that keeps a tensor with a rank."""
    return list(takewhile(lambda part: not _has(reader, part, rank), memories))


def _lose_others(reader: Reader, where: str, block: Mapping[str, Any], carried: set[str]) -> None:
    if others := sorted(map(str, block.keys() - carried - {TAG})):
        reader.notes.lost(reader.file, where, f"{', '.join(others)}: no rule says this here")


def _factors(reader: Reader, where: str, block: Mapping[str, Any]) -> dict[str, int | str]:
    """Returns trip counts by rank, as rules have them; 0 is the full extent."""
    given = block.get("factors") or []
    text = " ".join(map(str, given)) if isinstance(given, list) else str(given)
    if rest := FACTOR.sub("", text).replace(",", "").strip():
        reader.notes.lost(reader.file, where, f"factors: {rest} is no factor such as R=3 or C<=16")
    return {
        rank: ("all" if n == "0" else int(n)) if sign in ("", "=") else f"{sign} {n}"
        for rank, sign, n in FACTOR.findall(text)
    }


def _order(block: Mapping[str, Any]) -> list[str]:
    """Returns the ranks of a permutation, in its order."""
    given = block.get("permutation") or []
    return re.findall(r"\w+" if re.search(r"[\s,]", str(given)) else r"\w", str(given))


def _memory(reader: Reader, part: Part, is_outermost: bool) -> dict[str, Any]:
    width = int(_value(reader, part, "width", "memory_width") or 64)
    datawidth = int(_value(reader, part, "datawidth", "word_bits") or reader.word_bits)
    depth = _value(reader, part, "depth", "entries", "memory_depth")
    # elements keep their number where a level stores them in another width
    scale = reader.word_bits / datawidth
    own_width = width * scale
    if own_width != int(own_width):
        reader.notes.lost(
            reader.file, f"{part.title}.width", f"{width / datawidth:g} elements per action, rounded up"
        )
    own_width = max(int(-(-own_width // 1)), 1)
    bits = None if depth is None or depth == inf else depth * width
    metadata = (_value(reader, part, name) or 0 for name in METADATA)
    bits = None if bits is None else bits + prod(metadata)
    capacity = None
    if bits is not None:
        capacity = machines.whole_bytes(bits * scale, reader.file, f"{part.title}.depth", reader.notes)
        own_width = min(own_width, 8 * capacity)
    elif not is_outermost:
        refuse([f"{reader.file}: {part.title}.depth is missing; a level inside needs its number of lines"])
    rate, writes, separate = _rates(reader, part, datawidth, width)
    node = machines.memory(machines.name(part.title), own_width, capacity, rate, separate, writes)
    node |= _numbers(reader, part, node, width, bits, scale)
    if (_value(reader, part, "multiple_buffering") or 1) > 1 and not is_outermost:
        node["double_buffer"] = True
    return node | ({} if is_outermost else _held(reader, part))


def _rates(reader: Reader, part: Part, datawidth: int, width: int) -> tuple[float, float, bool]:
    """Returns (reads, writes per cycle, in actions; whether each has a port)."""
    reads, writes = (
        (_value(reader, part, key) or inf) * datawidth / width
        for key in ("read_bandwidth", "write_bandwidth")
    )
    shared = _value(reader, part, "rw_bandwidth", "shared_bandwidth", "bandwidth")
    if shared:
        return shared * datawidth / width, shared * datawidth / width, False
    return reads, writes, min(reads, writes) < inf


def _numbers(
    reader: Reader, part: Part, node: Mapping[str, Any], width: int, bits: float | None, scale: float
) -> dict[str, Any]:
    """Returns the energies of a memory: of the ERT, of its DRAM kind, of the SRAM tables, or scaled."""
    banks = int(_value(reader, part, "n_banks", "nbanks") or 1)
    if energies := reader.energies.get(part.title):
        leak_mw = energies.get("leak", 0.0) / reader.cycle_ns
        area = reader.areas.get(part.title, 0.0) * 1e-6
        return machines.custom(energies.get("read", 0.0), energies.get("write", 0.0), leak_mw, area)
    if _is_dram(part):
        kind = str(part.attributes.get("type", "")).lower()
        if kind not in component.dram_kinds():
            key = f"{part.title}.type"
            reader.notes.assumed(reader.file, key, f"{kind or 'is not given'}; LPDDR4 taken")
            kind = "lpddr4"
        return {"kind": kind, "leak_mw": 0.0}
    size = int(bits or 0) // 8
    if scale == 1 and machines.has_table(reader.node_nm, size, banks, width):
        return machines.table_sram(banks, node)
    found, scaled = machines.nearest_sram(reader.node_nm, max(8 * size // banks, 1), width)
    if scaled:
        says = f"{size} B in words of {width} bits are in no table; energies scaled from the nearest SRAM"
        reader.notes.assumed(reader.file, part.title, f"{says}; give an ERT for yours")
    return machines.custom(found.read_pj, found.write_pj, found.leak_mw * banks, found.area_mm2 * banks)


def _held(reader: Reader, part: Part) -> dict[str, Any]:
    """Returns which roles may stand at a level, and whether they must."""
    block = part.constraints.get("dataspace", {})
    keep, only = _names(block, "keep", "keep_only"), _names(block, "keep_only")
    away = {*_names(block, "bypass"), *part.held_beside}
    unknown = [one for one in (*keep, *away) if _role(reader, one) is None]
    for one in dict.fromkeys(unknown):
        key = f"{part.title}.constraints.dataspace"
        reader.notes.lost(
            reader.file, key, f"{one} is no tensor of the problem; give the problem's file, too"
        )
    kept = {_role(reader, one) for one in keep}
    may = [
        role
        for role in ROLES
        if role not in {_role(reader, one) for one in away} and (not only or role in kept)
    ]
    found: dict[str, Any] = {} if len(may) == len(ROLES) else {"may_keep": may}
    if not may:
        refuse([f"{reader.file}: {part.title}.constraints.dataspace keeps no tensor; leave the level out"])
    return found | ({"bypass": False} if kept >= set(may) else {})


def _keep_rules(reader: Reader, part: Part) -> list[dict[str, Any]]:
    """Returns the rule for tensors that must stand at a level where others may."""
    block, held = part.constraints.get("dataspace", {}), _held(reader, part)
    kept = {_role(reader, one) for one in _names(block, "keep", "keep_only")}
    roles = [role for role in held.get("may_keep", ROLES) if role in kept]
    return [{"at": machines.name(part.title), "keep": roles}] if roles and "bypass" not in held else []


def _role(reader: Reader, tensor: str) -> str | None:
    return reader.roles.get(tensor) or reader.roles.get(tensor.lower())


def _compute(reader: Reader, part: Part) -> dict[str, Any]:
    node: dict[str, Any] = {"compute": machines.name(part.title).removesuffix("_")}
    if reader.shape.in_groups:
        node["lockstep"] = True
    if energies := reader.energies.get(part.title):
        mac = energies.get("compute", energies.get("mac_random", 0.0))
        leak = energies.get("leak", 0.0) / reader.cycle_ns
        area = reader.areas.get(part.title, 0.0) * 1e-6
        # Timeloop's adders of partial sums cost nothing
        return (
            node
            | {"kind": "custom", "mac_pj": mac, "alu_pj": 0.0, "merge_pj": 0.0}
            | {"leak_mw": leak, "area_mm2": area}
        )
    bits = _value(reader, part, "multiplier_width", "datawidth", "width", "word_bits") or reader.word_bits
    kinds = (
        {"fp16": 16, "fp32": 32} if "fp" in part.kind else {"int4": 4, "int8": 8, "int16": 16, "int32": 32}
    )
    kind = next((kind for kind, width in kinds.items() if width >= bits), list(kinds)[-1])
    if kinds[kind] != bits:
        reader.notes.assumed(reader.file, part.title, f"{bits:g} bit operands; energy of {kind}")
    return node | {"kind": kind}
