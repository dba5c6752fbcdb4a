"""Timeloop mapping <-> nest.

    mapping:
    - {target: GLB, type: dataspace, keep: [Inputs], bypass: [Weights, Outputs]}
    - {target: GLB, type: temporal, factors: [P=4, M=2, "Q=3,2"], permutation: [P, M, Q]}
    - {target: PE, type: spatial, factors: [M=4], permutation: [M, C], split: 1}

A permutation stands innermost first. Of a spatial one the first `split` ranks are spread over X, the others
over Y. A factor `Q=3,2` has 2 trips at the end of the rank (imperfect), `Q=0` is what the others leave.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

from dse.exchange import blocks as blocked
from dse.exchange.blocks import Block, Inexpressible, Turn
from dse.exchange.notes import Notes, refuse
from dse.exchange.same import differences, overflows
from dse.mapping import nest
from dse.mapping.nest import Store
from hw.arch import Arch
from workloads.einsum import Einsum

FACTOR = re.compile(r"([A-Za-z_]\w*?)\s*=?\s*(\d+)(?:\s*,\s*(\d+))?(?=[\s\]]|$)")
KINDS = {"datatype": "dataspace", "bypass": "dataspace"}
# (title, memory or "", dimensions of the array outside of it) of each node
Parts = Sequence[tuple[str, str, tuple[str, ...]]]
Targets = dict[tuple[str, str], Mapping[str, Any]]


def parts_of(arch: Arch) -> Parts:
    """Returns the nodes of a machine that no architecture file names, under its own names. Each dimension of
    an array is a container of its own, so that a rank may be spread over several.
    """
    found: list[tuple[str, str, tuple[str, ...]]] = []
    for level, fanout in blocked.places(arch):
        if level is not None:
            found.append((arch.levels[level].name, arch.levels[level].name, ()))
            continue
        one = arch.fanouts[fanout]
        several = len(one.dims) > 1
        found += [(f"{one.name}_{dim}" if several else one.name, "", (dim,)) for dim, _ in one.dims]
    return found


def read(
    file: str, targets: Sequence[Any], parts: Parts, e: Einsum, arch: Arch, notes: Notes
) -> nest.Mapping:
    """Returns the nest of a mapping. parts: nodes of the architecture, outermost first. Raises Unreadable."""
    by_target: Targets = {}
    for i, one in enumerate(targets):
        if not isinstance(one, dict) or not {"target", "type"} <= one.keys():
            refuse([f"{file}: mapping[{i}] must have target and type; see Timeloop's mapping"])
        kind = str(one["type"])
        by_target[_target(str(one["target"]), kind, parts), KINDS.get(kind, kind)] = one
    unknown = [title for title, _ in by_target if title not in [part[0] for part in parts]]
    names = ", ".join(part[0] for part in parts)
    refuse(
        f"{file}: mapping: target {title} is no node of the architecture; it has {names}" for title in unknown
    )
    try:
        found = list(_blocks(by_target, parts, e, arch))
        mapping, kept = fitting(_completed(found, e), e, arch)
    except ValueError as fault:
        refuse([f"{file}: mapping: {fault}"])
        raise
    for one in kept:
        key = f"mapping.{one.level}.{one.tensor}"
        notes.lost(file, key, f"Timeloop keeps the tile over {one.rank}; a nest here fetches it again")
    refuse(f"{file}: {line}" for line in nest.faults(mapping, e, arch))
    return mapping


def fitting(found: Sequence[Block], e: Einsum, arch: Arch) -> tuple[nest.Mapping, list[blocked.Kept]]:
    """Returns the nest of a blocked mapping, and what it cannot say. Where a level does not hold all that a
    window slides over, the window is fetched again at each step.
    """
    rigid: list[str] = []
    while True:
        mapping, kept = blocked.nest_of(found, e, arch, rigid)
        level = "" if nest.faults(mapping, e, arch) else overflows(mapping, e, arch)
        if not level or level in rigid or level not in arch.level_index():
            return mapping, kept
        rigid.append(level)


def _target(text: str, kind: str, parts: Parts) -> str:
    """Returns the node that a target means: Timeloop's mapper writes inter_PE_spatial for the array of PE,
    and older files name the memory outside of an array.
    """
    titles = [part[0] for part in parts]
    found = text if text in titles else re.sub(r"^inter_(.*)_spatial$", r"\1", text)
    if kind == "spatial" and found in titles:
        at = titles.index(found)
        inside = next((part for part in parts[at + 1 :] if part[1] or part[2]), None)
        if not parts[at][2] and inside and inside[2]:
            return inside[0]
    return found


def _blocks(by_target: Targets, parts: Parts, e: Einsum, arch: Arch) -> Iterator[Block]:
    levels = arch.level_index()
    for title, level, dims in parts:
        spatial = by_target.get((title, "spatial"), {})
        turns = tuple(_spatial(spatial, dims, e)) if spatial else ()
        if any(turn.trips != 1 for turn in turns) and not dims:
            raise ValueError(f"target {title} is spatial, the architecture has no copies there")
        yield Block((), turns)
        keep = by_target.get((title, "dataspace"), {})
        stores = _kept(title, keep, e, arch, levels[level]) if level in levels else ()
        yield Block(tuple(stores), tuple(_temporal(by_target.get((title, "temporal"), {}), e)))


def _kept(title: str, block: Mapping[str, Any], e: Einsum, arch: Arch, v: int) -> Iterator[Store]:
    level = arch.levels[v]
    bypass = {str(one) for one in block.get("bypass") or []}
    may = nest.may_keep(e, level)
    for tensor in block.get("keep") or []:
        if tensor not in may:
            raise ValueError(f"target {title}: keep {tensor}, which cannot stand there; {', '.join(may)} can")
    yield from (Store(level.name, tensor) for tensor in may if tensor not in bypass)


def _factors(block: Mapping[str, Any], e: Einsum) -> dict[str, tuple[int, int]]:
    """Returns (trips, trips at the end) of each rank."""
    given = block.get("factors") or []
    text = " ".join(str(one) for one in given) if isinstance(given, list) else str(given)
    found = {rank: (int(n), int(end or 0)) for rank, n, end in FACTOR.findall(text)}
    for rank in found:
        if rank not in e.sizes():
            raise ValueError(f"factor of {rank}, which is no rank; the problem has {', '.join(e.sizes())}")
    return found


def _order(block: Mapping[str, Any], e: Einsum) -> list[str]:
    """Returns the ranks of a permutation, innermost first; ranks that it leaves out stand outside."""
    given = block.get("permutation") or []
    text = (
        given
        if isinstance(given, list)
        else re.split(r"[\s,]+", given)
        if re.search(r"[\s,]", given)
        else [*given]
    )
    named = [str(rank) for rank in text if str(rank) in e.sizes()]
    return [*named, *(rank for rank in e.sizes() if rank not in named)]


def _temporal(block: Mapping[str, Any], e: Einsum) -> Iterator[Turn]:
    factors = _factors(block, e)
    for rank in reversed(_order(block, e)):
        if rank in factors:
            yield Turn(rank, factors[rank][0], "", factors[rank][1])


def _spatial(block: Mapping[str, Any], dims: Sequence[str], e: Einsum) -> Iterator[Turn]:
    factors, order = _factors(block, e), _order(block, e)
    split = int(block.get("split", len(order)))
    for i in range(len(order) - 1, -1, -1):
        if order[i] in factors and factors[order[i]][0] != 1:
            over = dims[0 if i < split or len(dims) < 2 else 1] if dims else ""
            yield Turn(order[i], factors[order[i]][0], over, factors[order[i]][1])


def _completed(blocks: Sequence[Block], e: Einsum) -> list[Block]:
    """Returns blocks with factors of 0 replaced by what the other factors of the rank leave."""
    trips = [(turn.rank, turn.trips) for block in blocks for turn in block.turns]
    left = {rank: -(-n // prod(t for r, t in trips if r == rank and t)) for rank, n in e.extents}
    if twice := [rank for rank in left if [t for r, t in trips if r == rank].count(0) > 1]:
        raise ValueError(f"two factors of {twice[0]} are 0; say one of them")
    return [
        Block(
            block.stores, tuple(t if t.trips else Turn(t.rank, left[t.rank], t.over, 0) for t in block.turns)
        )
        for block in blocks
    ]


def write(
    file: str, mapping: nest.Mapping, e: Einsum, arch: Arch, notes: Notes, parts: Parts | None = None
) -> list[dict[str, Any]]:
    """Returns the Timeloop mapping of a nest. parts: nodes of the architecture whose names it bears (None:
    the machine's own). Raises Unreadable where it has none; notes what it costs there otherwise.
    """
    parts = parts or parts_of(arch)
    try:
        own = blocked.blocks_of(mapping, e, arch)
        data = list(_entries(own, e, arch, parts))
        back, _ = blocked.nest_of(own, e, arch)
    except ValueError as fault:
        refuse([f"{file}: mapping of {e.name}: {fault}"])
        raise
    for line in differences(mapping, back, e, arch):
        notes.lost(file, f"mapping of {e.name}", f"in Timeloop {line}")
    return data


def _entries(own: Sequence[Block], e: Einsum, arch: Arch, parts: Parts) -> Iterator[dict[str, Any]]:
    block_of = {
        arch.levels[level].name: block
        for (level, _), block in zip(blocked.places(arch), own, strict=True)
        if level is not None
    }
    spatial = [turn for block in own for turn in block.turns if turn.over]
    for title, level, dims in parts:
        if dims:
            yield _spatial_entry(title, dims, spatial, e)
        if level in block_of:
            kept = [store.tensor for store in block_of[level].stores]
            away = [p.tensor for p in e.tensors() if p.tensor not in kept]
            yield {"target": title, "type": "dataspace", "keep": kept, "bypass": away}
            yield {"target": title, "type": "temporal"} | _ordered(block_of[level].turns[::-1], e)


def _spatial_entry(title: str, dims: Sequence[str], spatial: Sequence[Turn], e: Einsum) -> dict[str, Any]:
    if len(dims) > 2:
        raise Inexpressible(f"uses {len(dims)} dimensions of {title}; Timeloop has X and Y")
    sides = [[turn for turn in spatial[::-1] if turn.over == dim] for dim in dims]
    inner_first = [turn for side in sides for turn in side]
    ranks = [turn.rank for turn in inner_first]
    if twice := [rank for rank in ranks if ranks.count(rank) > 1]:
        raise Inexpressible(f"spreads {twice[0]} twice over {title}; Timeloop has one factor of a rank there")
    # ranks of one trip may stand on either side
    split = len(sides[0]) if len(dims) > 1 else len(e.extents)
    return {"target": title, "type": "spatial"} | _ordered(inner_first, e) | {"split": split}


def _ordered(inner_first: Sequence[Turn], e: Einsum) -> dict[str, Any]:
    named = [turn.rank for turn in inner_first]
    others = [rank for rank in e.sizes() if rank not in named]
    factors = [f"{t.rank}={t.trips}" + (f",{t.residual}" if t.residual else "") for t in inner_first]
    return {"factors": [*factors, *(f"{rank}=1" for rank in others)], "permutation": [*named, *others]}
