"""Which nests of a schedule keep rules for mappings, counted from the text of the rules (docs/files.md,
`mapping`) by code that shares nothing with `dse`; and random rules for small workloads, which name
ranks and tensors.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import ceil, prod
from random import Random
from typing import Any

from dse.mapping.nest import Loop, Store
from hw.arch import ALL_TRIPS, Arch, Rule, read_rules
from workloads.einsum import Einsum, Projection
from workloads.graph import Workload

Nodes = Sequence[Loop | Store]


def drawn_rules(rng: Random, arch: Arch, workload: Workload) -> tuple[Rule, ...]:
    """One to three rules, each of some einsum of the workload, for it alone or for all."""
    return read_rules([_drawn(rng, arch, rng.choice(workload.einsums)) for _ in range(rng.randint(1, 3))])


def _drawn(rng: Random, arch: Arch, e: Einsum) -> dict[str, Any]:
    dims = [name for f in arch.fanouts for name, _ in f.dims]
    inner = [level.name for level in arch.levels[1:]]
    ranks = [rank for rank, _ in e.extents]
    tensor, n = rng.choice([p.tensor for p in e.tensors()]), rng.randint(1, 3)
    trips = {rng.choice(ranks): rng.choice([n, f"<= {n}", f"<= {n}", f">= {n}", "all"])}
    kinds: dict[str, dict[str, Any]] = {
        "keep": {"at": rng.choice([*inner, "DRAM"]), "keep": [tensor]},
        "bypass": {"at": rng.choice(inner), "bypass": [tensor]},
        "tile": {"at": rng.choice(inner), "tile": {tensor: rng.choice([1, 2, 3, 4, 6, "4 B", "8 B"])}},
        "temporal": {"at": rng.choice([level.name for level in arch.levels]), "factors": trips},
    }
    if dims:
        kinds["ranks"] = {"at": rng.choice(dims), "ranks": rng.sample(ranks, rng.randint(0, len(ranks)))}
        kinds["spatial"] = {"at": rng.choice(dims), "factors": trips}
        kinds["utilization"] = {"utilization": rng.choice([0.3, 0.5, 1.0])}
    entry = kinds[rng.choice([*kinds])]
    return entry | ({"einsums": [e.name]} if rng.random() < 0.6 else {})


def kept(
    rules: Sequence[Rule],
    e: Einsum,
    arch: Arch,
    loops: Sequence[tuple[str, int]],
    shared: Mapping[str, int],
    outer: Collection[str],
    nest: Nodes,
) -> bool:
    """Whether an einsum keeps rules. loops: shared ones (rank, tile); shared: tensors in GLB by a shared
    node, and how many of these loops stand above it; outer: tensors with a shared node in DRAM; nest: the
    nodes of its own below.
    """
    return all(
        _kept(rule, e, arch, loops, shared, outer, nest)
        for rule in rules
        if not rule.einsums or e.name in rule.einsums
    )


def _kept(
    rule: Rule,
    e: Einsum,
    arch: Arch,
    loops: Sequence[tuple[str, int]],
    shared: Mapping[str, int],
    outer: Collection[str],
    nest: Nodes,
) -> bool:
    sizes, tensors = dict(e.extents), {p.tensor: p for p in (e.output, *e.inputs)}
    at, order = rule.at.upper(), [level.name for level in arch.levels]
    stands = {("GLB", t) for t in shared} | {("DRAM", t) for t in outer}
    tile, spatial, temporal = dict(sizes), dict[tuple[str, str], int](), dict[tuple[str, str], int]()
    for rank, size in loops:
        temporal["DRAM", rank] = temporal.get(("DRAM", rank), 1) * ceil(tile[rank] / size)
        tile[rank] = size
    above = {(order.index(level), t) for level, t in stands}
    tiles = {t: [_elems(tensors[t], sizes | dict(loops[:depth]))] for t, depth in shared.items()}
    for i, node in enumerate(nest):
        if isinstance(node, Store):
            filled = any(t == node.tensor for _, t in above)
            above.add((order.index(node.level), node.tensor))
            stands.add((node.level, node.tensor))
            if node.level == at:
                p = tensors[node.tensor]
                tiles.setdefault(node.tensor, []).append(
                    _elems(p, _sunk(p, tile, nest[i + 1 :]) if filled else tile)
                )
            continue
        n, tile[node.rank] = ceil(tile[node.rank] / node.tile), node.tile
        if node.over:
            spatial[node.over, node.rank] = spatial.get((node.over, node.rank), 1) * n
        else:
            level = max((v for v, t in above if node.rank in tensors[t].ranks()), default=0)
            temporal[order[level], node.rank] = temporal.get((order[level], node.rank), 1) * n
    counted = temporal if at in order else spatial
    for factor in rule.factors:
        if factor.rank in sizes:
            least, most = (sizes[factor.rank] if n == ALL_TRIPS else n for n in (factor.least, factor.most))
            if not least <= counted.get((at, factor.rank), 1) <= (10**9 if most is None else most):
                return False
    listed = [rank for rank in rule.ranks or () if rank in sizes]
    others = [n for (dim, rank), n in spatial.items() if dim == at and rank not in listed]
    if rule.ranks is not None and (listed or not rule.ranks) and max(others, default=1) > 1:
        return False
    if any(t in tensors and (at, t) not in stands for t in rule.keep):
        return False
    if any((at, t) in stands for t in rule.bypass):
        return False
    for limit in rule.tile:
        if limit.tensor not in tensors:
            continue
        width = _bits(arch, at, e, limit.tensor)
        most_bits = limit.amount * (8 if limit.unit == "B" else width)
        if (at, limit.tensor) in stands and max(tiles[limit.tensor]) * width > most_bits:
            return False
    pes = prod(n for f in arch.fanouts for _, n in f.dims)
    return rule.utilization is None or prod(spatial.values()) >= rule.utilization * pes


def _bits(arch: Arch, at: str, e: Einsum, tensor: str) -> int:
    """Bits of an element at a memory: its width there, else a word."""
    first, output = e.inputs[0].tensor, e.output.tensor
    role = "output" if tensor == output else "input" if tensor == first else "weight"
    return next((dict(level.bits).get(role, 8) for level in arch.levels if level.name == at), 8)


def _elems(p: Projection, tile: Mapping[str, int]) -> int:
    return prod(1 + sum(c * (tile[rank] - 1) for rank, c in d.terms) for d in p.dims)


def _sunk(p: Projection, tile: Mapping[str, int], below: Nodes) -> dict[str, int]:
    """The tile below the loops right inside of a node that move it: a part of it at a time is there, and
    behind one that moves a window over it nothing more.
    """
    found = dict(tile)
    for node in below:
        if isinstance(node, Store) or node.over or node.rank not in p.ranks():
            break
        found[node.rank] = node.tile
        if any(node.rank in d.ranks() and len(d.terms) > 1 for d in p.dims):
            break
    return found
