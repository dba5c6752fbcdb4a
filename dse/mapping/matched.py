"""Schedules of several layers in KAPLA's directives (arXiv 2306.15676, sections III-A and III-B).

    directives
    weights pinned                      as in the text of a schedule (dse/mapping/schedule.py)
    segment                             segment slicing: segments run one after the other
    fc1 on NY[0:10] NX[0:16]:           a stage of a pipeline, on these nodes; without `on`: in turn
      mac: ...
      GBUF:
        tensor{fc1_W}(k=784, n=100) hold        filled once, not once per pipeline tile
        stack(n+=100, 10) over NY
      matched                           further out, all layers of the segment have the same:
      GBUF:
        tensor{fc1}(m=8, n=1000)
        update(m+=8)                    a pipeline tile
      DRAM:
        tensor{image}(m=64, k=784)
    fc2 on NY[10:16] NX[0:16]:
      ...
      matched
      GBUF:
        tensor{fc1}(p=8, k=1000)        made and read in the same tiles
        update(p+=8)
      ...

Section III-B matches layers by the names of tensors and by updates that agree, `update(K+=24)` in one and
`update(C+=24)` in the next, and leaves it to the reader which of them those are: the line `matched` says it.
* From a schedule to layers: each layer is its own nest below the segment's loops and the segment's nodes of
  its tensors, in its own dimensions.
* From layers to a schedule: their matched loops are one loop each, called as in the first layer, and a node
  that several have is one node. Layers that do not match are a fault.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from dse.mapping import directives, schedule
from dse.mapping.directives import FIRST_LINE_WHOLE, HEAD, MATCHED, SEGMENT, Layer
from dse.mapping.nest import Loop, Store
from dse.mapping.schedule import Branch, Schedule, Segment
from hw.arch import Arch
from hw.component import closest_name
from workloads.einsum import Einsum
from workloads.graph import Workload

Nodes = tuple[Loop | Store, ...]


def to_text(planned: Schedule, workload: Workload) -> str:
    """Returns a schedule in directives. Raises ValueError with a line for each einsum whose mapping
    directives cannot express.
    """
    einsums = {e.name: e for e in workload.einsums}
    layers, wrong = list[Layer](), list[str]()
    for number, segment in enumerate(planned.segments, 1):
        for branch in segment.branches:
            e = einsums[branch.einsum]
            try:
                layer = directives.directives_of(
                    branch.mapping, e, tuple(_seen(segment.nodes, branch, e)), branch.filled_once
                )
            except ValueError as fault:
                wrong.append(str(fault))
            else:
                layers.append(replace(layer, segment=number, region=branch.region))
    if wrong:
        raise ValueError("\n".join(wrong))
    head = [line for line in str(replace(planned, segments=())).splitlines() if line.startswith(HEAD)]
    fetch_whole = any(directives.has_overlap(layer, einsums[layer.name]) for layer in layers)
    return directives.text(layers, fetch_whole, head)


def _seen(nodes: Sequence[Loop | Store], branch: Branch, e: Einsum) -> Iterator[Loop | Store]:
    """Yields the nodes that a segment shares as one of its einsums has them: loops over its own ranks, and
    the nodes of its tensors.
    """
    names, tensors = dict(branch.ranks), {p.tensor for p in e.tensors()}
    for node in nodes:
        if isinstance(node, Loop):
            yield replace(node, rank=names.get(node.rank, node.rank))
        elif node.tensor in tensors:
            yield node


def is_schedule(source: str) -> bool:
    """True if a text of directives has segments, or says something of a whole schedule."""
    return any(line == SEGMENT or line.startswith(HEAD) for _, line in directives.content_lines(source))


def schedule_of(source: str, workload: Workload, arch: Arch) -> Schedule:
    """Returns the schedule of a text of directives with segments. Raises ValueError with one line per
    fault.
    """
    lines = source.splitlines()
    begin = next((i for i, line in enumerate(lines) if line.split("#")[0].strip() == SEGMENT), len(lines))
    # line numbers of faults are those of the text
    head = [line if line.strip().startswith(HEAD) else "" for line in lines[:begin]]
    if late := next((i for i, line in enumerate(lines) if i > begin and line.strip().startswith(HEAD)), 0):
        raise ValueError(
            f'directives, line {late + 1}: "{lines[late].strip()}" stands below a segment; write it above '
            "them all"
        )
    planned = schedule.parse_schedule("\n".join(head))
    layers = directives.parse(source)
    if not layers[0].segment:
        raise ValueError(f"directives: {layers[0].name} stands in no segment; write {SEGMENT} before it")
    einsums = {e.name: e for e in workload.einsums}
    segments, wrong = list[Segment](), list[str]()
    for _, members in groupby(layers, lambda layer: layer.segment):
        group = tuple(members)
        if faults := [fault for layer in group for fault in _name_faults(layer, einsums, workload, arch)]:
            wrong += faults
            continue
        try:
            segments.append(_segment_of(group, einsums, arch, directives.fetches_whole(source)))
        except ValueError as fault:
            wrong.append(str(fault))
    if wrong:
        raise ValueError("\n".join(wrong))
    return replace(planned, segments=tuple(segments))


def _name_faults(layer: Layer, einsums: dict[str, Einsum], workload: Workload, arch: Arch) -> Iterator[str]:
    """Yields a line for each name in a layer that the workload or the machine does not have."""
    if layer.name not in einsums:
        yield (
            f'directives: "{layer.name}" is no einsum of {workload.name}; '
            f"{closest_name(layer.name, list(einsums))}"
        )
    levels = [*(level.name for level in arch.levels), directives.COMPUTE]
    for b in (*layer.buffers, *layer.matched):
        if b.level not in levels:
            yield (
                f"directives of {layer.name}: {b.level} is no level of {arch.name}; "
                f"{closest_name(b.level, levels)}"
            )


def _segment_of(
    layers: Sequence[Layer], einsums: dict[str, Einsum], arch: Arch, fetch_whole: bool
) -> Segment:
    """Returns the segment of its layers. Raises ValueError in one line where these are no nests or do not
    match.
    """
    seen, nests = list[Nodes](), []
    for layer in layers:
        e = einsums[layer.name]
        if not fetch_whole and directives.has_overlap(layer, e):
            raise ValueError(
                f"directives of {layer.name}: tiles overlap, which is priced of layers alone; in a segment, "
                f'begin the text with "{FIRST_LINE_WHOLE}", which fetches every tile whole'
            )
        shared, nest = directives.split_mapping(layer, e, arch)
        seen.append(shared)
        nests.append(nest)
    renamed = [_matching_ranks(layers, seen, i) for i in range(len(layers))]
    branches = [
        Branch(layer.name, nest, ranks, layer.region, tuple(_held(layer)))
        for layer, nest, ranks in zip(layers, nests, renamed, strict=True)
    ]
    return Segment(tuple(branches), _merged(layers, seen))


def _held(layer: Layer) -> Iterator[Store]:
    """Yields the nodes of a layer that are filled once, outermost first."""
    for b in (*reversed(layer.matched), *reversed(layer.buffers)):
        yield from (Store(b.level, tile.tensor) for tile in b.tensors if tile.hold)


def _loops(nodes: Nodes) -> list[Loop]:
    return [node for node in nodes if isinstance(node, Loop)]


def _matching_ranks(layers: Sequence[Layer], seen: Sequence[Nodes], i: int) -> tuple[tuple[str, str], ...]:
    """Returns (rank of a shared loop, the name that layer i has for it), where the two differ. Raises
    ValueError in one line where the updates of layer i do not match those of the first layer.
    """
    where = f"directives of {layers[i].name}"
    first, own = _loops(seen[0]), _loops(seen[i])
    if len(first) != len(own):
        raise ValueError(
            f"{where}: {len(own)} updates stand below {MATCHED}, {len(first)} in {layers[0].name}; layers of "
            "a segment match where they have the same updates"
        )
    names = dict[str, str]()
    for theirs, mine in zip(first, own, strict=True):
        if (mine.tile, mine.over) != (theirs.tile, theirs.over) or mine.rank != names.setdefault(
            theirs.rank, mine.rank
        ):
            raise ValueError(
                f"{where}: an update of {mine.rank} by {mine.tile} stands below {MATCHED} where "
                f"{layers[0].name} has one of {theirs.rank} by {theirs.tile}; layers of a segment match "
                "where they move what they share by as much"
            )
    return tuple(sorted((shared, name) for shared, name in names.items() if shared != name))


def _merged(layers: Sequence[Layer], seen: Sequence[Nodes]) -> Nodes:
    """Returns the nodes that a segment shares: the loops of the first layer, and between them the nodes of
    all layers, each once and in the order of every layer. Raises ValueError in one line where layers have a
    node between different loops.
    """
    nodes = list[Loop | Store]()
    for i, loop in enumerate([*_loops(seen[0]), None]):
        stores = list[Store]()
        for own in seen:
            here = _between(own, i)
            at = min((stores.index(store) for store in here if store in stores), default=len(stores))
            for store in here:
                if store in stores:
                    at = stores.index(store) + 1
                else:
                    stores.insert(at, store)
                    at += 1
        if twice := [store for store in stores if store in nodes]:
            having = [layer.name for layer, own in zip(layers, seen, strict=True) if twice[0] in own]
            raise ValueError(
                f"directives of {having[-1]}: tensor{{{twice[0].tensor}}} at {twice[0].level} stands between "
                f"other updates than in {having[0]}; what layers share stands in the same place of all"
            )
        nodes += [*stores, *([loop] if loop else [])]
    return tuple(nodes)


def _between(nodes: Nodes, i: int) -> list[Store]:
    """Returns the storage nodes with i loops outside of them."""
    return [node for at, node in enumerate(nodes) if isinstance(node, Store) and len(_loops(nodes[:at])) == i]


def load(
    path: Path, workload: Workload, arch: Arch, allow_missing: bool = False
) -> tuple[Workload, Schedule]:
    """Returns the schedule of a file, and the workload with its conversions. The file has directives, or what
    `schedule.load` reads.

    Raises ValueError with one line per fault, naming the file.
    """
    source = directives.read_if_directives(path)
    if source is None:
        return schedule.load(path, workload, allow_missing)
    try:
        if is_schedule(source):
            return workload, schedule_of(source, workload, arch)
        return workload, schedule.sequential(
            workload, directives.mappings(source, workload, arch), allow_missing
        )
    except ValueError as fault:
        raise ValueError("\n".join(f"{path}: {line}" for line in str(fault).splitlines())) from None
