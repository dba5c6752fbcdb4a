"""ZigZag mapping <-> nest.

    - name: conv1
      spatial_mapping: {D1: ["K, 32"], D2: ["C, 2", "FX, 4"]}
      temporal_ordering: [[OX, 112], [OY, 112]]              # innermost first
      temporal_mapping: {O: [[], [[OX, 112], [OY, 112]]], ...}
      memory_operand_links: {O: O, W: I2, I: I1}

`temporal_mapping` is ZigZag's TemporalMapping: per operand and memory of it, innermost first, the loops
inside of its tile there and outside of that of the memory before. ZigZag reads `temporal_ordering` and shares
its loops out to memories itself. Operands may stand at different places, but for the array: all memories
outside of it stand above its spatial loops, all inside below.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dse.exchange.blocks import Turn, by_tile, places
from dse.exchange.notes import Notes, refuse
from dse.exchange.same import differences
from dse.mapping import nest
from dse.mapping.nest import Loop, Store
from hw.arch import Arch
from workloads.einsum import Einsum

OPERANDS = {"input": "I", "weight": "W", "output": "O"}
LINKS = {"O": "O", "W": "I2", "I": "I1"}


def read(file: str, layer: Mapping[str, Any], e: Einsum, arch: Arch) -> nest.Mapping:
    """Returns the nest of a layer's temporal and spatial mapping. Raises Unreadable."""
    try:
        temporal = {
            str(op): [[Turn(str(dim).lower(), int(n)) for dim, n in level] for level in levels]
            for op, levels in layer["temporal_mapping"].items()
        }
        spatial = [
            Turn(str(entry).split(",")[0].strip().lower(), int(str(entry).split(",")[1]), dim)
            for key, entries in (layer.get("spatial_mapping") or {}).items()
            for dim in [str(key).upper()]
            for entry in (entries if isinstance(entries, list) else [entries])
        ]
        found = _nest(temporal, _named(spatial, arch), e, arch)
    except (KeyError, TypeError, ValueError, IndexError) as fault:
        refuse(
            [f"{file}: {layer.get('name')}: its mapping does not fit the layer and the accelerator ({fault})"]
        )
        raise
    refuse(f"{file}: {line}" for line in nest.faults(found, e, arch))
    return found


def _numbers(arch: Arch) -> dict[str, str]:
    """Returns ZigZag's name of each dimension: its own where all are numbered, as in a machine from there,
    whose arrays may stand in any order; else D1 is the outermost.
    """
    dims = [dim for fanout in arch.fanouts for dim, _ in fanout.dims]
    is_theirs = all(re.fullmatch(r"D\d+", dim) for dim in dims)
    return {dim: dim if is_theirs else f"D{i}" for i, dim in enumerate(dims, 1)}


def _named(spatial: Sequence[Turn], arch: Arch) -> list[Turn]:
    """Returns spatial loops over the machine's dimensions."""
    dims = {number: dim for dim, number in _numbers(arch).items()}
    return [replace(one, over=dims[one.over]) for one in spatial]


def operand_of(e: Einsum) -> dict[str, str]:
    """tensor -> operand."""
    return {p.tensor: OPERANDS[nest.role(e, p.tensor)] for p in e.tensors()}


def memories_of(e: Einsum, arch: Arch) -> dict[str, list[int]]:
    """operand -> levels that hold it, innermost first."""
    return {
        operand: [v for v in range(len(arch.levels))[::-1] if tensor in nest.may_keep(e, arch.levels[v])]
        for tensor, operand in operand_of(e).items()
    }


def _nest(
    temporal: Mapping[str, Sequence[Sequence[Turn]]], spatial: Sequence[Turn], e: Einsum, arch: Arch
) -> nest.Mapping:
    """temporal: per operand and memory, innermost first."""
    memories, operands = memories_of(e, arch), operand_of(e)
    order = [turn for level in temporal["O"] for turn in level][::-1]  # outermost first
    above: dict[tuple[int, str], int] = {}  # loops above the node of a level and tensor
    for tensor, operand in operands.items():
        inside = 0
        if [turn for level in temporal[operand] for turn in level][::-1] != order:
            raise ValueError(f"loops of {operand} are other ones than those of O")
        for v, level in zip(memories[operand], temporal[operand], strict=True):
            inside += len(level)
            above[v, tensor] = len(order) - inside
    nodes: list[Turn | Store] = []
    done = 0
    for level_of_block, fanout in places(arch):
        if level_of_block is None:  # spatial loops stand as far inside as they may
            inner = [at for (v, _), at in above.items() if v >= arch.fanouts[fanout].outside]
            upto = min(inner, default=len(order))
            nodes += order[done:upto]
            done = max(done, upto)
            own = {dim for dim, _ in arch.fanouts[fanout].dims}
            nodes += [one for one in spatial if one.over in own and one.trips > 1]
            continue
        for tensor, at in sorted(
            ((tensor, at) for (v, tensor), at in above.items() if v == level_of_block), key=lambda one: one[1]
        ):
            if at < done:  # nodes of levels further out stand below loops that this one stands above
                nodes.insert(_index(nodes, at), Store(arch.levels[level_of_block].name, tensor))
                continue
            nodes += order[done:at]
            done = max(done, at)
            nodes.append(Store(arch.levels[level_of_block].name, tensor))
    nodes += order[done:]
    return nest.Mapping(tuple(by_tile(nodes, e)))


def _index(nodes: Sequence[Turn | Store], at: int) -> int:
    """Returns the index in front of the temporal loop number `at`."""
    temporal = [i for i, node in enumerate(nodes) if isinstance(node, Turn) and not node.over]
    return temporal[at] if at < len(temporal) else len(nodes)


def write(file: str, mapping: nest.Mapping, e: Einsum, arch: Arch, notes: Notes) -> dict[str, Any]:
    """Returns the layer of a nest in ZigZag's mapping. Raises Unreadable where it has none."""
    where = f"{file}: mapping of {e.name}"
    refuse(f"{where}: {line}" for line in _faults(mapping, e, arch))
    memories, operands = memories_of(e, arch), operand_of(e)
    levels = arch.level_index()
    temporal: dict[str, list[list[list[Any]]]] = {op: [[] for _ in own] for op, own in memories.items()}
    numbers = _numbers(arch)
    spatial: dict[str, list[str]] = {name: [] for name in sorted(numbers.values(), key=lambda d: int(d[1:]))}
    at = {op: len(own) - 1 for op, own in memories.items()}
    order: list[list[Any]] = []
    size = e.sizes()
    for node in mapping.nodes:
        if isinstance(node, Store):
            operand = operands[node.tensor]
            at[operand] = memories[operand].index(levels[node.level])
            continue
        n, size[node.rank] = size[node.rank] // node.tile, node.tile
        if node.over:
            spatial[numbers[node.over]].append(f"{node.rank.upper()}, {n}")
        elif n > 1:
            order.insert(0, [node.rank.upper(), n])
            for operand, v in at.items():
                temporal[operand][v].insert(0, [node.rank.upper(), n])
    layer = {
        "name": e.name,
        "spatial_mapping": {dim: own or [f"{e.extents[0][0].upper()}, 1"] for dim, own in spatial.items()},
        "temporal_ordering": order,
        "temporal_mapping": temporal,
    }
    links = {operand: LINKS[operand] for operand in operands.values()}
    back = read(file, layer, e, arch)
    for line in differences(mapping, back, e, arch):
        notes.lost(file, f"mapping of {e.name}", f"in ZigZag {line}")
    return layer | {"memory_operand_links": links}


def _faults(mapping: nest.Mapping, e: Einsum, arch: Arch) -> Iterator[str]:
    if mapping.non_nest_text or mapping.layouts or mapping.shares:
        yield "only loops and storage nodes can be carried over"
        return
    if len(e.inputs) > 2:
        yield f"{len(e.inputs)} inputs; ZigZag has two"
    upper = [rank.upper() for rank in e.sizes()]
    if len(set(upper)) < len(upper):
        yield "ranks that differ in case only; ZigZag writes them in capitals"
    size = e.sizes()
    for node in mapping.nodes:
        if isinstance(node, Loop):
            if size[node.rank] % node.tile:
                yield f"{node.rank} = {size[node.rank]} in tiles of {node.tile}; ZigZag's tiles must divide"
            size[node.rank] = node.tile
    for level in arch.levels:
        for tensor in nest.may_keep(e, level):
            if Store(level.name, tensor) not in mapping.nodes:
                yield (
                    f"{tensor} bypasses {level.name}; in ZigZag operands stand in all their memories: --set "
                    f"{level.name.lower()}.bypass=false, or a rule `keep`, maps it so"
                )
