"""Fused segments on machines whose outermost array stands right inside the outermost level, so that no level
outside of all arrays can forward a tensor. Each PE of that array, a core, runs the segment on an even part of
a rank of every result (docs/reuse.md, Fusion).

segment
  store DRAM ...
  parfor h tile 4 over CORE      each core has heads of its own
    store VMEM S                 from here on the plan of one core
    einsum a ...
    einsum b ...

The segment costs the cores in use times what its part costs on a machine of one core, which takes its part of
bandwidth, leakage and vector unit. This is exact where cores read no element in common, or each reads it for
itself.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from dse.mapping.nest import Loop, Store
from dse.mapping.schedule import Segment
from dse.solve.schedules.fusible_segments import Split
from dse.solve.schedules.nests import Nests
from dse.solve.schedules.segment_plans import SegmentPlans
from workloads.graph import base_tensor


@dataclass(slots=True)
class Core:
    """A machine of one core, and what was solved on it."""

    nests: Nests
    plans: SegmentPlans = field(default_factory=SegmentPlans)


def all_cores(segment: Segment, split: Split, outer: str, made: Collection[str]) -> Segment:
    """Returns the segment of all cores: that of one core below the loops of its split.

    outer: the outermost level; made: all tensors that einsums of the workload make
    """

    def is_inner(node: Loop | Store) -> bool:
        return isinstance(node, Loop) or node.level != outer

    nodes = [*segment.nodes, *(node for branch in segment.branches for node in branch.mapping.nodes)]
    stored = [base_tensor(n.tensor, made) for n in nodes if isinstance(n, Store) and not is_inner(n)]
    branches = []
    for j, branch in enumerate(segment.branches):
        ranks = {(axis[0], axis[j]) for axis, _, _ in split.loops if axis[j] != axis[0]}
        nest = replace(branch.mapping, nodes=tuple(filter(is_inner, branch.mapping.nodes)))
        branches.append(replace(branch, mapping=nest, ranks=tuple(sorted({*branch.ranks, *ranks}))))
    return Segment(
        tuple(branches),
        (
            *(Store(outer, tensor) for tensor in dict.fromkeys(stored)),
            *(Loop(axis[0], tile, dim) for axis, tile, dim in split.loops),
            *filter(is_inner, segment.nodes),
        ),
    )
