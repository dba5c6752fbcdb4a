"""GOGETA-df as a schedule: operations of a phase run at once, each on clusters of its own, and pass tiles on
through links (arXiv 2303.11499, table 3 and section 6.4). And words between clusters, of any schedule.

For example, einsums 4 (SL = S L) and 4u (R1 = R - SL) of the conjugate gradient method on 16 clusters:

    for m tile t
      store SRAM SL                     in the clusters that make it, read through links
      einsum 4 on cluster[0:13]
        parfor m tile t/13 over cluster ...
      einsum 4u on cluster[13:16]
        parfor m tile t/3 over cluster ...
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dse.mapping.nest import Infeasible, Loop, Store
from dse.mapping.nest import Mapping as Nest
from dse.mapping.schedule import Branch, Region, Schedule, Segment
from dse.sim.counts.counts import nest_sums, tile_bits
from dse.sim.einsum.boundary import whole_nest
from dse.sim.levels.network import words_between
from dse.sim.schedule.placed import placed_segments
from dse.solve.gogeta.emitted import (
    MAX_FORWARDED_SHARE,
    Task,
    loop_ranks,
    passed_on_by,
    tensors_outside,
    with_capacity,
)
from hw.arch import Arch, Fanout
from workloads.einsum import Einsum
from workloads.graph import Workload, base_tensor


def between_clusters(arch: Arch, workload: Workload, schedule: Schedule) -> float | None:
    """Returns the words that a schedule moves between the PEs outside of the first on-chip level (clusters),
    times the links that each takes: tiles that stages pass on, multicasts and sums. Each cluster has its own
    way to main memory, as in figure 12 of GOGETA. None: links of a nest are not counted.
    """
    fanout = _outer_fanout(arch)
    if fanout is None:
        return 0.0
    # who holds what is known of machines whose links have a price, and places in rows and columns
    one_row = ((("(row)", 1),), (True,), (True,)) if len(fanout.dims) == 1 else ((), (), ())
    array = replace(
        fanout,
        hop_pj=1.0,
        dims=(*one_row[0], *fanout.dims),
        multicast=(*one_row[1], *fanout.multicast),
        reduce=(*one_row[2], *fanout.reduce),
    )
    priced = replace(arch, fanouts=tuple(array if f is fanout else f for f in arch.fanouts))
    bits = 0.0
    try:
        for one in (one for found in placed_segments(priced, workload, schedule) for one in found):
            nest = whole_nest(one.boundary, one.nest)
            own = next(f for f in one.arch.fanouts if f.name == fanout.name)  # of a stage: its region
            sums = nest_sums(nest, one.einsum, one.arch)
            bits += sum(n for _, n in words_between(nest, sums, one.arch, own, one.boundary.owners))
    except ValueError:
        return None
    return bits / arch.word_bits


def stages(task: Task, names: Sequence[str]) -> Segment | None:
    """Returns the segment of einsums that run at once below a shared loop, each on clusters in proportion to
    its operations; None: there are fewer clusters than einsums, no rank that all share, or no tile fits.
    """
    fanout, einsums = _outer_fanout(task.arch), task.named(names)
    if fanout is None:
        return None
    dim, clusters = max(fanout.dims, key=lambda pair: pair[1])
    if not 2 <= len(einsums) <= clusters:
        return None
    passed_on = passed_on_by(einsums)
    for rank_of in loop_ranks(einsums):
        if any(
            rank_of[e.name] not in p.full_ranks()
            for e in einsums
            for p in e.tensors()
            if base_tensor(p.tensor, passed_on) in passed_on
        ):
            continue
        sizes = _regions([e.macs() for e in einsums], clusters)
        if tile := _tile(task, einsums, rank_of, passed_on, sizes):
            return _segment(task, einsums, rank_of, passed_on, sizes, tile, dim)
    return None


def _outer_fanout(arch: Arch) -> Fanout | None:
    return next((f for f in arch.fanouts if f.outside <= 1 and any(n > 1 for _, n in f.dims)), None)


def _regions(work: Sequence[int], clusters: int) -> list[int]:
    """Returns the clusters of each stage: one, and of those left each time one for the stage that has most
    work per cluster.
    """
    sizes = [1] * len(work)
    for _ in range(clusters - len(work)):
        busiest = max(range(len(work)), key=lambda i: work[i] / sizes[i])
        sizes[busiest] += 1
    return sizes


def _copies(einsums: Sequence[Einsum], at: int) -> int:
    """Returns how many pipeline tiles of its result a stage holds: one per stage up to the last reader."""
    tensor = einsums[at].output.tensor
    readers = [i for i, e in enumerate(einsums) if any(p.tensor == tensor for p in e.inputs)]
    return max(readers, default=at) - at + 1


def _part(e: Einsum, rank: str, tile: int) -> Einsum:
    return replace(e, extents=tuple((r, min(n, tile) if r == rank else n) for r, n in e.extents))


def _share(tile: int, clusters: int) -> int:
    """Returns the indices of a tile that one cluster takes: equal parts, of as many clusters as divide it."""
    return tile // max(n for n in range(1, clusters + 1) if tile % n == 0)


def _held_bits(task: Task, e: Einsum, copies: int, rank: str, share: int) -> int:
    buffers = 2 if task.arch.levels[1].double_buffer else 1
    own = max(copies, buffers)
    return own * tile_bits(e.output, e.sizes() | {rank: share}, task.arch.word_bits)


def _tile(
    task: Task,
    einsums: Sequence[Einsum],
    rank_of: dict[str, str],
    passed_on: Sequence[str],
    sizes: Sequence[int],
) -> int:
    """Returns the largest pipeline tile with which what each stage passes on fits its clusters; 0: none."""
    extent = einsums[0].sizes()[rank_of[einsums[0].name]]
    for tile in (extent // trips for trips in range(2, extent + 1) if extent % trips == 0):
        if all(
            _held_bits(task, e, _copies(einsums, i), rank_of[e.name], _share(tile, sizes[i]))
            <= MAX_FORWARDED_SHARE * task.bits
            for i, e in enumerate(einsums)
            if e.output.tensor in passed_on
        ):
            return tile
    return 0


def _segment(
    task: Task,
    einsums: Sequence[Einsum],
    rank_of: dict[str, str],
    passed_on: Sequence[str],
    sizes: Sequence[int],
    tile: int,
    dim: str,
) -> Segment | None:
    outer, level = task.arch.levels[0].name, task.arch.levels[1].name
    rank = rank_of[einsums[0].name]
    inner_fanouts = tuple(f for f in task.arch.fanouts if f.outside > 1)
    branches, first = [], 0
    for i, (e, clusters) in enumerate(zip(einsums, sizes, strict=True)):
        own, is_passed_on = rank_of[e.name], e.output.tensor in passed_on
        share = _share(tile, clusters)
        held = _held_bits(task, e, _copies(einsums, i), own, share) if is_passed_on else 0
        machine = replace(with_capacity(task.arch, task.bits - held), fanouts=inner_fanouts)
        nest = task.nests(machine, _part(e, own, share))
        if isinstance(nest, Infeasible) or nest.non_nest_text:
            return None
        home = next(
            (
                n
                for n in nest.nodes
                if isinstance(n, Store) and n.level == level and n.tensor == e.output.tensor and is_passed_on
            ),
            None,
        )
        nodes = [n for n in nest.nodes if n is not home and not (isinstance(n, Store) and n.level == outer)]
        spread = [Loop(own, share, dim)] if share < tile else []
        names = ((rank, own),) if own != rank else ()
        branches.append(
            Branch(
                e.name,
                Nest((*spread, *nodes)),
                names,
                (Region(dim, first, clusters),),
                tuple(_loaded_once(e, own, nodes, level)),
            )
        )
        first += clusters
    above: list[Loop | Store] = [Store(outer, t) for t in tensors_outside(task.workload, einsums, passed_on)]
    above += [Loop(rank, tile), *(Store(level, t) for t in passed_on)]
    return Segment(tuple(branches), tuple(above))


def _loaded_once(e: Einsum, rank: str, nodes: Sequence[Loop | Store], level: str) -> list[Store]:
    """Returns the stores of operands that stand above all loops of a nest and that the shared loop does not
    cut: they are loaded once, not once per pipeline tile.
    """
    cut = {p.tensor for p in e.inputs if rank in p.ranks()} | {e.output.tensor}
    found = []
    for node in nodes:
        if isinstance(node, Loop):
            break
        if node.level == level and node.tensor not in cut:
            found.append(node)
    return found
