"""The mapspace of one einsum: what a dataflow fixes and what it leaves open, and what rules of a machine or a
study (`mapping`) forbid.

A dataflow is data: `Constraints`. `dataflow` computes those of the dataflows that have a name; `ruled` adds
the limits that rules (hw.arch.Rule) set for an einsum. What a mapping breaks: dse/sim/einsum/limits.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, permutations, product
from math import ceil
from typing import Literal

from dse.mapping.nest import Loop, Mapping, Store, bits_at, may_keep, role, unrollable
from hw.arch import ALL_OTHERS, ALL_TRIPS, RANK_ROLES, ROLES, Arch, Factor, Fanout, Rule
from workloads.einsum import Einsum, Projection

ANY_TRIPS = 1 << 60  # `Limit.most` of trips without an upper limit


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit that a rule sets for the mappings of an einsum.

    spatial: trips of all spatial loops over rank `name` along dimension `at`, from least to most
    temporal: trips of all temporal loops over rank `name` at level `at`, from least to most. A loop is at the
        level whose tiles it cuts: the innermost level of the storage nodes above it whose tensors have its
        rank; without one, the outermost level
    keep, bypass: tensor `name` stands at level `at`, or does not
    tile: bits of one tile of tensor `name` at level `at`, at most (a double buffer holds two such)
    order: temporal loops over rank `name` at level `at` (as of temporal) stand above those over rank `below`
        there; loops of one trip are none
    inside: no temporal loop over rank `name` stands above a storage node at level `at`
    fill: trips of all spatial loops along dimension `at`, at least
    pes: PEs that get some of the work, at least
    """

    kind: Literal["spatial", "temporal", "keep", "bypass", "tile", "order", "inside", "fill", "pes"]
    at: str
    name: str
    least: int
    most: int
    text: str  # the part of the rule that sets it, as certificates name it
    below: str = ""  # order: the other rank

    def allows(self, trips: int) -> bool:
        """True if so many trips are allowed."""
        return self.least <= trips <= self.most


@dataclass(frozen=True, slots=True)
class Constraints:
    """What a mapping must satisfy."""

    # (fan-out dimension, ranks allowed on it); a dimension not named takes any rank
    spatial: tuple[tuple[str, tuple[str, ...]], ...] = ()
    inside: tuple[str, ...] | None = None  # ranks that may have temporal loops inside the fan-outs; None: all
    stationary: str = ""  # tensor whose innermost node must stand above those loops; "": none
    must_keep: tuple[tuple[str, str], ...] = ()  # (level, tensor) nodes that must exist
    min_pes: int = 1  # PEs that must work, over all fan-outs
    # (tensor, level): the schedule holds the tensor at that level, where other einsums fill or read it. So it
    # has no node further out, and its capacity there is not counted for this einsum
    homes: tuple[tuple[str, str], ...] = ()
    limits: tuple[Limit, ...] = ()  # of rules (`ruled`)
    name: str = field(default="constraints", compare=False)  # name in certificates

    def rule_texts(self) -> tuple[str, ...]:
        """Returns the parts of rules that set limits, each once."""
        return tuple(dict.fromkeys(limit.text for limit in self.limits))

    def unlimited(self) -> Constraints:
        """Returns the constraints without the limits of rules."""
        return replace(self, limits=())


FREE = Constraints()
Dataflow = Literal["free", "weight_stationary", "output_stationary", "input_stationary", "row_stationary"]


def violations(c: Constraints, mapping: Mapping) -> list[str]:
    """Returns why a well-formed mapping breaks its constraints, one line each."""
    stores = [node for node in mapping.nodes if isinstance(node, Store)]
    outermost = {node.tensor: node.level for node in reversed(stores)}
    missing_nodes = [
        f"{tensor} is not stored at {level}, where the dataflow needs it; add a storage node"
        for level, tensor in c.must_keep
        if Store(level, tensor) not in mapping.nodes
    ]
    wrong_homes = [
        f"the outermost node of {tensor} is not at {level}, where the schedule holds it"
        for tensor, level in c.homes
        if outermost.get(tensor, "") != level
    ]
    return [*_misplaced(c, mapping), *_inner_faults(c, mapping), *missing_nodes, *wrong_homes]


def _misplaced(c: Constraints, mapping: Mapping) -> Iterator[str]:
    """Yields spatial loops over ranks that their dimension does not allow."""
    allowed = dict(c.spatial)
    for node in mapping.nodes:
        if isinstance(node, Loop) and node.over in allowed and node.rank not in allowed[node.over]:
            yield (
                f"parfor {node.rank} over {node.over}: the dataflow allows "
                f"{', '.join(allowed[node.over]) or 'no rank'}"
            )


def _inner_faults(c: Constraints, mapping: Mapping) -> Iterator[str]:
    """Yields faults of temporal loops and nodes that stand inside all spatial loops over the fan-out
    dimensions that c names (over any dimension, if it names none).
    """
    named_dims = {dim for dim, _ in c.spatial}
    spatial_loops = [
        i
        for i, node in enumerate(mapping.nodes)
        if isinstance(node, Loop) and node.over and (node.over in named_dims or not named_dims)
    ]
    nodes = mapping.nodes[spatial_loops[-1] + 1 if spatial_loops else len(mapping.nodes) :]
    temporal_loops = [
        (i, node.rank) for i, node in enumerate(nodes) if isinstance(node, Loop) and not node.over
    ]
    stationary_nodes = [
        i for i, node in enumerate(nodes) if isinstance(node, Store) and node.tensor == c.stationary
    ]
    for _, rank in temporal_loops:
        if c.inside is not None and rank not in c.inside:
            yield (
                f"for {rank} stands inside the array; the dataflow allows {', '.join(c.inside) or 'no loop'}"
            )
    if (
        c.stationary
        and temporal_loops
        and not (stationary_nodes and stationary_nodes[-1] < temporal_loops[0][0])
    ):
        yield f"{c.stationary} moves inside the array; store it above for {temporal_loops[0][1]}"


@dataclass(frozen=True, slots=True)
class Window:
    """Ranks of a convolution or pooling by role; "": the einsum has no rank with that role."""

    p: str  # output row
    q: str  # output column
    r: str  # filter row
    s: str  # filter column
    c: str  # input channel
    k: str  # output channel


def window(e: Einsum) -> Window:
    """Returns the roles of an einsum's ranks. An input dimension whose index is the sum of an output rank and
    a reduced rank is a window; its ranks are (p, r), those of a second window (q, s). Channels are the
    largest of the other ranks.
    """
    output_ranks, sizes = e.output.ranks(), e.sizes()
    pairs = [
        (o, i)
        for d in e.inputs[0].dims
        for o in d.ranks()
        if o in output_ranks
        for i in d.ranks()
        if i not in output_ranks
    ]
    (p, r), (q, s) = (*pairs, ("", ""), ("", ""))[:2]
    others = [rank for rank in sizes if rank not in (p, q, r, s)]
    weights = e.inputs[-1].ranks() if len(e.inputs) > 1 else output_ranks
    kernel_ranks = [rank for rank in others if rank in output_ranks & weights]
    # in depthwise convolution and pooling the input has these ranks, too: the last of them is taken
    output_channels = [rank for rank in kernel_ranks if rank not in e.inputs[0].ranks()] or kernel_ranks[-1:]
    return Window(
        p,
        q,
        r,
        s,
        max((rank for rank in others if rank not in output_ranks), key=sizes.__getitem__, default=""),
        max(output_channels, key=sizes.__getitem__, default=""),
    )


def stationary(e: Einsum, systolic: str) -> Projection:
    """Returns the stationary tensor of a systolic array: the output (os), the weight (ws) or the input
    (is).
    """
    return {"os": e.output, "ws": e.inputs[-1], "is": e.inputs[0]}[systolic]


def row_stationary(e: Einsum, f: Fanout) -> Constraints:
    """Returns the mapspace of a row-stationary array f, rows first: filter rows and channels down, output
    rows and output channels across.

    A PE slides one stationary filter row along one output row, for any channels and batches. Source: Chen et
    al. (Eyeriss), ISCA 2016.
    """
    w = window(e)
    down, across = _present(w.p, w.c, w.k, w.r), _present(w.k, w.p)
    inside = tuple(rank for rank, _ in e.extents if rank not in (w.p, w.r))
    return Constraints(
        ((f.dims[0][0], down), (f.dims[1][0], across)),
        inside,
        e.inputs[-1].tensor if len(e.inputs) > 1 else "",
    )


def dataflow(name: Dataflow, e: Einsum, arch: Arch) -> Constraints:
    """Returns the constraints of a named dataflow: the output, the first input or the second input (weights)
    is stationary in the PEs, or row_stationary on the innermost two-dimensional array. FREE if the einsum has
    no such tensor (row_stationary: no window or no weights), or the machine no array.

    Raises ValueError if row_stationary finds no two-dimensional array. Source: Chen et al. (Eyeriss), ISCA
    2016, section IV.
    """
    if name == "free" or not arch.fanouts:
        return FREE
    if name == "row_stationary":
        arrays = [f for f in sorted(arch.fanouts, key=lambda f: -f.outside) if len(f.dims) == 2]
        if not arrays:
            raise ValueError(
                "solver.dataflow = row_stationary places rows on an array of two dimensions, and the "
                "machine has none; take another dataflow"
            )
        return replace(row_stationary(e, arrays[0]), name=name) if window(e).r and len(e.inputs) > 1 else FREE
    projections = {
        "output_stationary": (e.output,),
        "input_stationary": e.inputs[:1],
        "weight_stationary": e.inputs[1:2],
    }[name]
    return Constraints(stationary=projections[0].tensor, name=name) if projections else FREE


def rank_roles(e: Einsum) -> dict[str, str]:
    """Returns the rank that each role of RANK_ROLES has in an einsum, without roles that no rank has.

    Roles are those of `window`. batch: the largest of the other ranks of the output that the weights lack (m
    of a GEMM m, n, k; its n is the output channel, its k the input channel).
    """
    w, sizes = window(e), e.sizes()
    weights = e.inputs[-1].ranks() if len(e.inputs) > 1 else frozenset[str]()
    others = [
        rank
        for rank in sizes
        if rank in e.output.ranks() and rank not in weights and rank not in (w.p, w.q, w.k)
    ]
    ranks = (w.p, w.q, w.r, w.s, w.c, w.k, max(others, key=sizes.__getitem__, default=""))
    return {role: rank for role, rank in zip(RANK_ROLES, ranks, strict=True) if rank}


def einsum_kind(e: Einsum) -> str:
    """Returns the kind (hw.arch.EINSUM_KINDS) of an einsum: of MACs without a window, of MACs with one, or
    without MACs.
    """
    return "others" if e.kind != "mac" or len(e.inputs) < 2 else "convolutions" if window(e).r else "products"


def computes(e: Einsum, arch: Arch) -> tuple[Arch, ...]:
    """Returns the machine as an einsum sees it on each compute that takes it (`Arch.units`); the machine
    itself where it has one compute. Raises ValueError, one line, where none takes it.
    """
    if not arch.units:
        return (arch,)
    kinds, bits = {einsum_kind(e), e.kind}, max(p.bits or arch.word_bits for p in e.inputs)
    found = tuple(
        one
        for one in arch.units
        for takes in [one.compute.takes]
        if (not takes.kinds or kinds & {*takes.kinds}) and (takes.bits is None or bits <= takes.bits)
    )
    if not found:
        told = "; ".join(f"{one.compute.name.lower()} takes {one.compute.takes}" for one in arch.units)
        own = einsum_kind(e) + (f", {e.kind}" if e.kind != "mac" else "")
        raise ValueError(
            f"{e.name} ({own}; operands of {bits} bit) runs on no compute of {arch.name}: {told}; add to the "
            "kinds or bits of one, or a compute that takes it"
        )
    return found


def ruled(base: Constraints, rules: Sequence[Rule], e: Einsum, arch: Arch) -> Constraints:
    """Returns the constraints with the limits that rules set for an einsum on a machine.

    A rule holds for the einsums that it names, by name or by kind. Of its ranks and tensors those count that
    the einsum has, by name or else by role; `ranks` without any of these sets no limit. Rules at places that
    the machine has not, those of another core, set none.
    """
    places = {"", *arch.level_index(), *(dim for f in arch.fanouts for dim, _ in f.dims)}
    limits = tuple(
        limit
        for rule in rules
        if rule.at.upper() in places
        if not rule.einsums or e.name in rule.einsums or einsum_kind(e) in rule.einsums
        for limit in _limits(rule, e, arch)
    )
    return replace(base, limits=(*base.limits, *limits)) if limits else base


def _limits(rule: Rule, e: Einsum, arch: Arch) -> Iterator[Limit]:
    """Yields the limits that a rule sets for an einsum that it holds for."""
    sizes, roles, at, levels = e.sizes(), rank_roles(e), rule.at.upper(), arch.level_index()
    dims = {name: f for f in arch.fanouts for name, _ in f.dims}
    projections = {p.tensor: p for p in e.tensors()}
    own = f" for {' '.join(rule.einsums)}" if rule.einsums else ""
    start = f"{rule.at.lower()}: "

    def rank_of(name: str) -> str:
        return name if name in sizes else roles.get(name, "")

    def tensors_of(name: str) -> list[str]:
        by_name = [tensor for tensor in projections if tensor == name]
        return by_name or [tensor for tensor in projections if name in ROLES and role(e, tensor) == name]

    allowed: list[str] = []
    if rule.ranks is not None:
        allowed = [rank_of(name) for name in rule.ranks if rank_of(name)]
        text = f"{start}ranks {' '.join(rule.ranks) or 'none'}{own}"
        for rank in sizes if allowed or not rule.ranks else ():
            if rank not in allowed:
                yield Limit("spatial", at, rank, 1, 1, text)
    for factor in rule.factors:
        if rank := rank_of(factor.rank):
            kind: Literal["spatial", "temporal"] = "spatial" if at in dims else "temporal"
            yield Limit(kind, at, rank, *_trips(factor, sizes[rank]), f"{start}{factor}{own}")
    for tensor in (tensor for name in rule.keep for tensor in tensors_of(name)):
        yield Limit("keep", at, tensor, 0, 0, f"{start}keep {' '.join(rule.keep)}{own}")
    for tensor in (tensor for name in rule.bypass for tensor in tensors_of(name)):
        yield Limit("bypass", at, tensor, 0, 0, f"{start}bypass {' '.join(rule.bypass)}{own}")
    for tile in rule.tile:
        for tensor in tensors_of(tile.tensor):
            elem_bits = bits_at(arch.levels[levels[at]], tensor, e, arch) + projections[tensor].index_bits
            most = tile.amount * (8 if tile.unit == "B" else elem_bits)
            yield Limit("tile", at, tensor, 0, most, f"{start}tile of {tile}{own}")
    for name, below in _ordered_pairs([rank_of(one) or one for one in rule.order], sizes):
        yield Limit("order", at, name, 0, 0, f"{start}order {' '.join(rule.order)}{own}", below)
    for rank in dict.fromkeys(filter(None, map(rank_of, rule.inside))):
        yield Limit("inside", at, rank, 0, 0, f"{start}inside {' '.join(rule.inside)}{own}")
    if rule.utilization is not None and at in dims and e.kind != "copy":
        size = dict(dims[at].dims)[at]
        takes_any = not allowed and rule.ranks != ()
        ranks = [rank for rank in unrollable(e, arch, at) if rank in allowed or takes_any]
        least = min(ceil(rule.utilization * size * (1 - 1e-12)), _most_trips([sizes[r] for r in ranks], size))
        text = f"{start}utilization >= {100 * rule.utilization:g} %{own}"
        if least > 1:
            yield Limit("fill", at, "", least, 0, text)
    elif rule.utilization is not None and not at:
        pes = ceil(rule.utilization * arch.instances(len(arch.levels)) * (1 - 1e-12))
        yield Limit("pes", "", "", pes, 0, f"utilization >= {100 * rule.utilization:g} %{own}")


def _ordered_pairs(order: Sequence[str], ranks: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yields the pairs (outer rank, inner rank) that an order of loops allows in that order alone."""
    others = [rank for rank in ranks if rank not in order]
    groups = [others if name == ALL_OTHERS else [name] for name in order if name in (ALL_OTHERS, *ranks)]
    for outer, inner in combinations(groups, 2):
        yield from ((one, other) for one, other in product(outer, inner) if one != other)


def _most_trips(extents: Sequence[int], size: int) -> int:
    """Returns the most PEs of a dimension of so many that factors of some ranks can fill together."""
    found = {1}
    for n in extents:
        divisors = [trips for trips in range(1, min(n, size) + 1) if n % trips == 0]
        found = {have * trips for have in found for trips in divisors if have * trips <= size}
    return max(found)


def _trips(factor: Factor, extent: int) -> tuple[int, int]:
    """Returns the least and the most trips of a factor over a rank of so many values."""
    least = extent if factor.least == ALL_TRIPS else factor.least
    most = extent if factor.most == ALL_TRIPS else factor.most
    return least, ANY_TRIPS if most is None else most


def unkeepable(c: Constraints, e: Einsum, arch: Arch) -> str | None:
    """Returns the part of a rule that no mapping of the einsum keeps on the machine, whatever its tiles, or
    None.
    """
    sizes, levels = e.sizes(), {level.name: level for level in arch.levels}
    bypassed = {(limit.at, limit.name) for limit in c.limits if limit.kind == "bypass"}
    for limit in c.limits:
        where, level = (limit.at, limit.name), levels.get(limit.at)
        if limit.kind in ("spatial", "temporal") and limit.least > sizes[limit.name]:
            return limit.text
        if limit.kind == "keep" and (
            where in bypassed or level is None or limit.name not in may_keep(e, level)
        ):
            return limit.text
        if limit.kind == "bypass" and level and not level.bypass and limit.name in may_keep(e, level):
            return limit.text
    return None


def _present(*ranks: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(rank for rank in ranks if rank))


# per level, indices of the tensors that it holds, in the order of their nodes
Placement = tuple[tuple[int, ...], ...]
Factors = Literal["imperfect_spatial", "perfect", "imperfect"]


def placements(e: Einsum, arch: Arch, c: Constraints) -> Iterator[Placement]:
    """Yields every choice of the tensors that each level holds, and of the order of their nodes. Each tensor
    is held at one level at least. At the outermost level one order suffices.
    """
    names = [p.tensor for p in e.tensors()]
    choices: list[list[tuple[int, ...]]] = []
    for v, level in enumerate(arch.levels):
        allowed = [names.index(tensor) for tensor in may_keep(e, level)]
        forced = {names.index(tensor) for name, tensor in c.must_keep if name == level.name} | (
            set() if level.bypass else set(allowed)
        )
        held_choices = [
            held_tensors
            for n in range(len(allowed) + 1)
            for held_tensors in combinations(allowed, n)
            if forced <= set(held_tensors)
        ]
        choices.append(
            [
                order
                for held_tensors in held_choices
                for order in (permutations(held_tensors) if v else [held_tensors])
            ]
        )
    return (
        choice
        for choice in product(*choices)
        if {x for held_tensors in choice for x in held_tensors} == set(range(len(names)))
    )


def minimal_mapping(e: Einsum, arch: Arch) -> Mapping:
    """Returns the mapping with the smallest on-chip footprint: only mandatory nodes, each with a tile of one
    element, below all loops, which stand directly below the outermost level.
    """
    outer = [Store(arch.levels[0].name, p.tensor) for p in e.tensors()]
    inner = [
        Store(level.name, tensor)
        for level in arch.levels[1:]
        if not level.bypass
        for tensor in may_keep(e, level)
    ]
    return Mapping((*outer, *(Loop(rank, 1) for rank, n in e.extents if n > 1), *inner))
