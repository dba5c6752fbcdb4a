"""AccelForge mapping <-> nest or schedule. Both are loop trees in which the position of a storage node is its
reuse, so nodes correspond one by one.

    mapping:
      nodes:
      - !Storage {tensors: [T0, W0], component: GlobalBuffer}
      - !Temporal {rank_variable: m, tile_shape: 1}
      - !Spatial {rank_variable: n, tile_shape: 4, component: PE, name: X}
      - !Sequential {nodes: [!Nested {nodes: [...]}, ...]}
      - !Compute {einsum: Matmul0, component: MAC}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dse.exchange.blocks import Inexpressible
from dse.exchange.documents import TAG
from dse.exchange.notes import Notes, refuse
from dse.mapping import nest
from hw.arch import Arch
from workloads.einsum import Einsum

STEP = "  "  # indentation of our schedules
# ["loop", ranks, tile, dimension or ""], ["store", level, tensors], ["einsum", name], ["split", branches]
Node = list[Any]


def read(file: str, mapping: Mapping[str, Any], tensors: Mapping[str, Sequence[str]], notes: Notes) -> str:
    """Returns the schedule text of a mapping. tensors: of each einsum. Raises Unreadable."""
    nodes = mapping.get("nodes")
    if not isinstance(nodes, list) or not nodes:
        refuse([f"{file}: mapping.nodes must be a list of nodes; see AccelForge's mapping"])
    try:
        return schedule_text(list(_tree(nodes or [], file, notes)), tensors)
    except (Inexpressible, LookupError, TypeError, ValueError) as fault:
        refuse([f"{file}: mapping does not fit ({fault}); see AccelForge's mapping"])
        raise


def _tree(nodes: Sequence[Any], file: str, notes: Notes) -> Iterator[Node]:
    for node in nodes:
        kind = str(node.get(TAG)) if isinstance(node, dict) else str(node)
        if kind == "Nested":
            yield from _tree(node["nodes"], file, notes)
        elif kind in ("Sequential", "Pipeline"):
            if kind == "Pipeline":
                notes.lost(file, "mapping.Pipeline", "its einsums run one after the other here")
            yield ["split", [list(_tree([branch], file, notes)) for branch in node["nodes"]]]
        elif kind in ("Temporal", "Spatial"):
            dim = str(node.get("name", "")).upper() if kind == "Spatial" else ""
            given = node["rank_variable"]
            ranks = [given] if isinstance(given, str) else [*given]
            yield ["loop", [str(rank) for rank in ranks], int(node["tile_shape"]), dim]
        elif kind == "Storage":
            yield ["store", str(node["component"]).upper(), [str(tensor) for tensor in node["tensors"]]]
        elif kind == "Compute":
            yield ["einsum", str(node["einsum"])]
        else:
            notes.lost(file, f"mapping.{kind}", "is no loop, storage or compute node; left out")


def write(file: str, mapping: nest.Mapping, e: Einsum, arch: Arch) -> list[dict[str, Any]]:
    """Returns the nodes of a nest. Raises Unreadable for what is no nest."""
    if mapping.non_nest_text or mapping.layouts or mapping.shares:
        refuse([f"{file}: mapping of {e.name}: only loops and storage nodes can be carried over"])
    array = {dim: fanout.name for fanout in arch.fanouts for dim, _ in fanout.dims}
    found: list[dict[str, Any]] = []
    for entry in nest.to_data(mapping):
        if "store" in entry:
            found.append({TAG: "Storage", "tensors": entry["tensors"], "component": entry["store"]})
        elif "for" in entry:
            found.append({TAG: "Temporal", "rank_variable": entry["for"], "tile_shape": entry["tile"]})
        else:
            place = {"component": array[entry["over"]], "name": entry["over"]}
            loop = {"rank_variable": entry["parfor"], "tile_shape": entry["tile"]}
            found.append({TAG: "Spatial"} | loop | place)
    return [*found, {TAG: "Compute", "einsum": e.name, "component": "MAC"}]


def schedule_text(mapping: list[Node], tensors: Mapping[str, Sequence[str]]) -> str:
    """Its mapping as a schedule of ours. tensors: of each einsum, its result first. Raises Inexpressible.

    Einsums without a shared loop are segments of their own here, each with nodes of its own tensors; what a
    memory inside holds above several of them is retained there.
    """
    above, branches = _parted(mapping)
    if any(node[0] == "loop" for node in above):
        return "\n".join(_segment(mapping))
    own = {name: tensors.get(name, ()) for name in _einsums(mapping)}
    flat = [*_flat(branches)]
    used = [{tensor for name in _einsums(branch) for tensor in own[name]} for branch in flat]
    outermost = next((node[1] for node in [*above, *flat[0]] if node[0] == "store"), "")
    outside = [tensor for _, level, names in above if level == outermost for tensor in names]
    retained = [
        (level, tensor)
        for _, level, names in above
        for tensor in names
        if level != outermost and sum(tensor in one for one in used) > 1
    ]
    made = {result for result, *_ in filter(None, own.values())}
    if both := sorted(tensor for _, tensor in retained if tensor in made and tensor in outside):
        raise Inexpressible(f"{both[0]} stands in {outermost} and further inside above several einsums")
    lines = [f"retain {level} {tensor} 1" for level, tensor in retained]
    passed = [["store", outermost, [tensor for _, tensor in retained if tensor not in outside]]]
    for branch, names in zip(flat, used, strict=True):
        stores = [["store", level, [t for t in wanted if t in names]] for _, level, wanted in passed + above]
        lines += _segment([*(store for store in stores if store[2]), *branch])
    return "\n".join(lines)


def _parted(mapping: list[Node]) -> tuple[list[Node], list[list[Node]]]:
    """Nodes above the branches, and the branches; one without a split is a branch of its own."""
    if mapping[-1][0] == "split":
        return mapping[:-1], mapping[-1][1]
    return [], [mapping]


def _flat(branches: list[list[Node]]) -> Iterator[list[Node]]:
    """Branches that are nothing but a split are its branches."""
    for own in branches:
        if own[0][0] == "split":
            yield from _flat(own[0][1])
        else:
            yield own


def _einsums(mapping: list[Node]) -> set[str]:
    found = set()
    for node in mapping:
        if node[0] == "einsum":
            found.add(node[1])
        elif node[0] == "split":
            found |= {name for own in node[1] for name in _einsums(own)}
    return found


def _segment(mapping: list[Node]) -> Iterator[str]:
    shared, branches = _parted(mapping)
    depth = 1 + _loops(shared)
    yield "segment"
    yield from _indented(shared, 1)
    for own in _flat(branches):
        *nest, (kind, name, *_) = own
        if kind != "einsum":
            raise Inexpressible(f"shared loops branch again above {', '.join(sorted(_einsums(own)))}")
        yield f"{STEP * depth}einsum {name}"
        yield from _indented(nest, depth + 1)
        yield STEP * (depth + 1 + _loops(nest)) + "mac"


def _loops(nodes: list[Node]) -> int:
    return sum(node[0] == "loop" for node in nodes)


def _indented(nodes: list[Node], depth: int) -> Iterator[str]:
    for i, node in enumerate(nodes):
        yield STEP * (depth + _loops(nodes[:i])) + _line(node)


def _line(node: Node) -> str:
    if node[0] == "store":
        return f"store {node[1]} {' '.join(node[2])}"
    (rank, *others), tile, dim = node[1:]
    if others:
        raise Inexpressible(f"one loop over {', '.join(node[1])}")
    return f"parfor {rank} tile {tile} over {dim}" if dim else f"for {rank} tile {tile}"
