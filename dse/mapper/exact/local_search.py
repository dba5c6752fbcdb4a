"""A local search, used where an exact search ends its budget: it goes from a mapping to better ones of the
same space until no move helps. Deterministic.

A mapping is a list of slots, outermost first: one for the temporal loops directly below each storage node; at
a fan-out boundary one per dimension, then one for the temporal loops directly inside. Per rank, each slot has
the tile that stands inside of it. Moves:

1. a prime of one rank goes from one slot to another;
2. the same for two ranks at once;
3. a storage node is removed, added, or swapped with the next one of its level.

Candidates of one move are costed together by the vectorised evaluator; the cheapest of them are costed again,
and checked, by the scalar one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import inf, isqrt, prod

import numpy as np

from dse.mapper.exact.spatial import primes
from dse.mapping.constraints import FREE, Constraints, Factors
from dse.mapping.nest import Loop, Mapping, Store, faults, may_keep, unrollable
from dse.run import deadline
from dse.sim.counts.counts import footprints, hull
from dse.sim.counts.vectorized import Costs, cost_many, tables
from dse.sim.einsum.cost import overflow, price_mapping
from dse.sim.einsum.evaluate import Problem, fanout_overflow, objective_value
from dse.sim.einsum.limits import broken
from hw.arch import Arch
from workloads.einsum import Einsum

Cost = tuple[float, float, float]  # value of the objective, energy, latency
Slot = tuple[int, str]  # index of the item that it stands below; fan-out dimension, "": temporal loops
Chain = tuple[int, ...]  # tiles of one rank, one per slot
# at most: moves of a climb; moves of a climb from another placement; how often other placements are tried
# when no move helps
CLIMB_ROUNDS, TRIAL_ROUNDS, RESTARTS = 60, 5, 12
# batches of candidates costed at most per start: each takes up to a tenth of a second, where padding makes
# counts slow
MAX_BATCHES = 200
UNEVEN_NEIGHBOURS = 4  # uneven tile sizes tried on either side of the present one
TIE_TOLERANCE = 1e-10  # costs that differ by less, relatively, are ties


@dataclass(frozen=True, slots=True)
class State:
    """A mapping as items and tiles."""

    items: tuple[Store | int, ...]  # storage nodes, and fan-out boundaries as the number of levels outside
    tiles: dict[str, Chain]  # per rank the tile that each slot leaves


Incumbent = tuple[State, Mapping, Cost]


def improve(
    problem: Problem,
    start: Mapping,
    factors: Factors,
    constraints: Constraints = FREE,
    rounds: int = CLIMB_ROUNDS,
) -> Mapping:
    """Returns `start`, or a mapping that costs less. `start` must fit and keep the constraints. Tiles of
    `start` that are not in the space may stay in the result.
    """
    batches = iter(range(MAX_BATCHES))
    state, best = _to_state(problem, start), _cost(problem, start, constraints)
    if state is None or _cost(problem, _nest(problem, state), constraints) is None or best is None:
        return start
    found = _climb(problem, (state, start, best), factors, constraints, rounds, batches)
    for _ in range(RESTARTS):  # no move helps: try other placements, and climb from each
        state, _, best = found
        neighbours = (
            one
            for placed in _placements(problem.einsum, problem.arch, state)
            for one in _if_better(problem, State(*placed), None, constraints)
        )
        climbs = (_climb(problem, one, factors, constraints, TRIAL_ROUNDS, batches) for one in neighbours)
        better = next((one for one in climbs if _is_below(one[2], best)), None)
        if better is None or deadline.has_passed():
            break
        found = _climb(problem, better, factors, constraints, rounds, batches)
    return found[1]


def _climb(
    problem: Problem,
    found: Incumbent,
    factors: Factors,
    rules: Constraints,
    rounds: int,
    batches: Iterator[int],
) -> Incumbent:
    """Makes at most `rounds` moves, each time the first one that helps. batches: one item per batch of
    candidates that may still be costed.
    """
    for _ in range(rounds):
        better = next(_better_states(problem, found[0], found[2], factors, rules, batches), None)
        if better is None:
            break
        found = better
    return found


def _better_states(
    problem: Problem, state: State, best: Cost, factors: Factors, rules: Constraints, batches: Iterator[int]
) -> Iterator[Incumbent]:
    """Yields states that cost less than `best`, kind of move by kind of move: chains of one rank, of two
    ranks, placements.
    """
    e, arch = problem.einsum, problem.arch
    ranks = [rank for rank, n in e.extents if n > 1]
    slots = _slots(state.items, arch)
    chains = {rank: _neighbour_chains(e, arch, slots, state.tiles[rank], rank, factors) for rank in ranks}
    small_moves = {
        rank: [
            own for own in chains[rank] if primes(e.sizes()[rank])[0] in (_ratio(own, state.tiles[rank]), 1)
        ][:90]
        for rank in ranks
    }
    for choice in (*([rank] for rank in ranks), *(list(pair) for pair in combinations(ranks, 2))):
        if next(batches, None) is None or deadline.has_passed():
            return
        options = {
            rank: (
                state.tiles[rank],
                *((chains if len(choice) == 1 else small_moves)[rank] if rank in choice else ()),
            )
            for rank in state.tiles
        }
        for tiles_of in _cheapest(problem, state, options, best):
            yield from _if_better(problem, replace(state, tiles=tiles_of), best, rules)
    for items, tiles_of in _placements(e, arch, state):
        yield from _if_better(problem, State(items, tiles_of), best, rules)


def _if_better(problem: Problem, state: State, best: Cost | None, rules: Constraints) -> Iterator[Incumbent]:
    """Yields the state if it fits, keeps the constraints and costs less than `best`."""
    mapping = _nest(problem, state)
    cost = _cost(problem, mapping, rules)
    if cost is not None and (best is None or _is_below(cost, best)):
        yield state, mapping, cost


def _is_below(a: Cost, b: Cost) -> bool:
    """Whether cost a is lower than b by the first of their numbers that differ by more than rounding."""
    return next(
        (x < y for x, y in zip(a, b, strict=True) if abs(x - y) > TIE_TOLERANCE * min(abs(x), abs(y))), False
    )


def _cost(problem: Problem, mapping: Mapping, rules: Constraints) -> Cost | None:
    """The cost of a mapping. None if it does not fit, breaks a constraint, or is malformed (after a node
    comes or goes, the loops around it may stand where none may).
    """
    e, arch = problem.einsum, problem.arch
    if (
        faults(mapping, e, arch)
        or fanout_overflow(mapping, e, arch)
        or (rules != FREE and broken(rules, mapping, e, arch))
    ):
        return None
    if overflow(footprints(mapping, e, arch), e, arch):
        return None
    p = price_mapping(mapping, e, arch)
    return objective_value(problem.objective, p.energy_pj, p.latency_cycles), p.energy_pj, p.latency_cycles


def _cheapest(
    problem: Problem, state: State, options: dict[str, tuple[Chain, ...]], best: Cost
) -> Iterator[dict[str, Chain]]:
    """Yields the cheapest choices of chains that fit and do not cost more than `best`, 8 at most. Stalls take
    longest to count, so they are counted only for choices that without stalls cost no more than `best`.
    """
    e, arch = problem.einsum, problem.arch
    nest = _to_nest(e, arch, state, unit_loops=True)
    shape = tuple(len(options[rank]) for rank, _ in e.extents)
    choices = np.stack(np.unravel_index(np.arange(prod(shape)), shape), axis=1)
    capacity_bits = [inf if level.capacity_bits is None else level.capacity_bits for level in arch.levels]
    for overlap in dict.fromkeys(("free", arch.overlap)):
        costs = cost_many(tables(nest, e, arch, options), e, replace(arch, overlap=overlap), choices)
        value = {
            "energy": costs.energy_pj,
            "latency": costs.latency_cycles,
            "edp": costs.energy_pj * costs.latency_cycles,
        }[problem.objective]
        selected = (
            np.all(costs.occupied_bits <= capacity_bits, axis=1)
            & _pes_fit(e, arch, state.items, options, choices)
            & (value <= best[0] * (1 + TIE_TOLERANCE))
        )
        if not selected.any():
            return
        options, choices = _without_unused(e, options, choices[selected])
        costs = Costs(
            costs.energy_pj[selected], costs.latency_cycles[selected], costs.occupied_bits[selected]
        )
        value = value[selected]
    for c in sorted(range(len(value)), key=lambda c: (value[c], costs.energy_pj[c], costs.latency_cycles[c]))[
        :8
    ]:
        yield {rank: options[rank][n] for (rank, _), n in zip(e.extents, choices[c].tolist(), strict=True)}


def _without_unused(
    e: Einsum, options: dict[str, tuple[Chain, ...]], choices: np.ndarray
) -> tuple[dict[str, tuple[Chain, ...]], np.ndarray]:
    """Returns the options without those that no choice takes, and the choices as indices into them."""
    columns = [np.unique(column, return_inverse=True) for column in choices.T]
    used_options = {
        rank: tuple(options[rank][n] for n in used)
        for (rank, _), (used, _) in zip(e.extents, columns, strict=True)
    }
    return {rank: used_options.get(rank, own) for rank, own in options.items()}, np.stack(
        [at for _, at in columns], axis=1
    )


def _pes_fit(
    e: Einsum,
    arch: Arch,
    items: Sequence[Store | int],
    options: dict[str, tuple[Chain, ...]],
    choices: np.ndarray,
) -> np.ndarray:
    """[C] whether the trips over each fan-out dimension are at most its size."""
    slots, sizes = _slots(items, arch), {name: n for f in arch.fanouts for name, n in f.dims}
    fits = np.ones(len(choices), np.bool_)
    for at, (_, dim) in enumerate(slots):
        if dim:
            used = np.ones(len(choices), np.int64)
            for r, (rank, n) in enumerate(e.extents):
                used *= np.array([-(-(own[at - 1] if at else n) // own[at]) for own in options[rank]])[
                    choices[:, r]
                ]
            fits &= used <= sizes[dim]
    return fits


def _slots(items: Sequence[Store | int], arch: Arch) -> list[Slot]:
    """The slots of a list of items, outermost first."""
    found: list[Slot] = []
    for i, item in enumerate(items):
        if isinstance(item, int):
            found += [
                (i, name) for f in arch.fanouts if f.outside == item for name, size in f.dims if size > 1
            ]
        found.append((i, ""))
    return found


def _items(stores: Sequence[Store], arch: Arch) -> tuple[Store | int, ...]:
    """Storage nodes with the fan-out boundaries between them."""
    number, found = {level.name: v for v, level in enumerate(arch.levels)}, list[Store | int](stores)
    for boundary in sorted({f.outside for f in arch.fanouts}, reverse=True):
        at = next(
            (i for i, node in enumerate(found) if isinstance(node, Store) and number[node.level] >= boundary),
            len(found),
        )
        found.insert(at, boundary)
    return tuple(found)


def _to_state(problem: Problem, mapping: Mapping) -> State | None:
    """The mapping as a state. None where temporal loops stand between the spatial loops of one boundary, or
    above all nodes.
    """
    e, arch = problem.einsum, problem.arch
    items = _items([node for node in mapping.nodes if isinstance(node, Store)], arch)
    slots, boundary = _slots(items, arch), {name: f.outside for f in arch.fanouts for name, _ in f.dims}
    tile, sizes, at, store = {rank: [0] * len(slots) for rank, _ in e.extents}, e.sizes(), -1, -1
    cuts: list[tuple[int, str, int]] = []
    for node in mapping.nodes:
        if isinstance(node, Store):
            store = next(i for i in range(store + 1, len(items)) if isinstance(items[i], Store))
            at = slots.index((store, ""))
        elif node.over:
            spatial_slot = next(
                (
                    i
                    for i, (item, dim) in enumerate(slots)
                    if dim == node.over and items[item] == boundary[node.over]
                ),
                -1,
            )
            if spatial_slot < at:
                return None
            at = spatial_slot
        elif at >= 0:
            at = slots.index((slots[at][0], ""))
        else:
            return None
        if isinstance(node, Loop):
            cuts.append((at, node.rank, node.tile))
    for i in range(len(slots)):
        for where, rank, n in cuts:
            if where == i:
                sizes[rank] = n
        for rank, tiles in tile.items():
            tiles[i] = sizes[rank]
    return State(items, {rank: tuple(tiles) for rank, tiles in tile.items()})


def _to_nest(e: Einsum, arch: Arch, state: State, unit_loops: bool) -> Mapping:
    """The nest of a state. unit_loops: with loops of one trip. Loops of one slot stand in the order that lets
    the node above them sink furthest.
    """
    slots, nodes, stored_tensors = _slots(state.items, arch), list[Loop | Store](), set[str]()
    left, at = e.sizes(), 0
    for i, item in enumerate(state.items):
        if isinstance(item, Store):
            nodes.append(item)
        while at < len(slots) and slots[at][0] == i:
            new = {rank: own[at] for rank, own in state.tiles.items()}
            order = [rank for rank, _ in e.extents]
            if isinstance(item, Store) and item.tensor in stored_tensors:
                order = _order(e, item.tensor, left, new)
            nodes += [
                Loop(rank, new[rank], slots[at][1]) for rank in order if unit_loops or new[rank] < left[rank]
            ]
            left, at = new, at + 1
        if isinstance(item, Store):
            stored_tensors.add(item.tensor)
    return Mapping(tuple(nodes))


def _order(e: Einsum, tensor: str, sizes: dict[str, int], new: dict[str, int]) -> list[str]:
    """Ranks in the order that lets the tensor's node sink furthest below their loops."""
    p = next(p for p in e.tensors() if p.tensor == tensor)

    def held(window: str) -> int:
        return hull(
            p,
            {rank: new[rank] if rank in p.full_ranks() or rank == window else n for rank, n in sizes.items()},
        )

    window = min((rank for rank, _ in e.extents if rank in p.partial_ranks()), key=held, default="")
    return sorted(
        sizes, key=lambda rank: (rank not in p.full_ranks(), rank != window, rank not in p.partial_ranks())
    )


def _nest(problem: Problem, state: State) -> Mapping:
    """The nest of a state without loops of one trip."""
    return _to_nest(problem.einsum, problem.arch, state, unit_loops=False)


def _neighbour_chains(
    e: Einsum, arch: Arch, slots: Sequence[Slot], chain: Chain, rank: str, factors: Factors
) -> list[Chain]:
    """The chains of a rank that are one move away: a prime goes from one slot to another. With imperfect
    spatial factors also: a spatial slot takes another number of PEs. With imperfect factors also: a slot
    takes another tile of similar size.
    """
    sizes, found = {name: n for f in arch.fanouts for name, n in f.dims}, dict[Chain, None]()
    extent = e.sizes()[rank]
    for i, j in combinations(range(len(chain)), 2):
        for p in dict.fromkeys(primes(extent)):
            found[(*chain[:i], *(n * p for n in chain[i:j]), *chain[j:])] = None
            if all(n % p == 0 for n in chain[i:j]):
                found[(*chain[:i], *(n // p for n in chain[i:j]), *chain[j:])] = None
    if factors != "perfect":
        for i, (_, dim) in enumerate(slots):
            before = chain[i - 1] if i else extent
            for n in range(1, min(sizes[dim], before) + 1) if dim else ():
                for j in range(i + 1, len(chain)):
                    found[(*chain[:i], *[-(-before // n)] * (j - i), *([1] * (len(chain) - j)))] = None
    if factors == "imperfect":
        for i, (_, dim) in enumerate(slots):
            for n in (
                _even_tiles(before := chain[i - 1] if i else extent, min(chain[i], before)) if not dim else ()
            ):
                found[_with_tile(slots, chain, i, n)] = None

    ranks_over = {dim: unrollable(e, arch, dim) for _, dim in slots if dim}

    def allowed(chain: Chain) -> bool:
        for (_, dim), before, after in zip(slots, (extent, *chain), chain, strict=False):
            if after == before:
                continue
            whole = before % after == 0
            uneven = factors != "imperfect" and (not dim or factors == "perfect")
            if after > before or (not whole and uneven) or (dim and rank not in ranks_over[dim]):
                return False
            if dim and (-(-before // after) > sizes[dim] or -(-before // -(-before // after)) != after):
                return False
        return chain[-1] == 1

    return [other for other in found if other != chain and allowed(other)]


def _even_tiles(extent: int, tile: int) -> list[int]:
    """Tiles that cut an extent n as evenly as can be (n / m, rounded up), next to `tile` in size:
    UNEVEN_NEIGHBOURS smaller and UNEVEN_NEIGHBOURS larger ones.

    Of m and n / m one is at most the root of n. So each such size is a small number, or the quotient of a
    small m.
    """
    root = isqrt(extent) + 1
    sizes = sorted(
        {-(-extent // m) for m in range(1, min(root, extent) + 1)}
        | {n for n in range(1, root) if -(-extent // -(-extent // n)) == n}
    )
    at = next(i for i, n in enumerate(sizes) if n >= tile)
    return sizes[max(at - UNEVEN_NEIGHBOURS, 0) : at + UNEVEN_NEIGHBOURS + 1]


def _with_tile(slots: Sequence[Slot], chain: Chain, at: int, tile: int) -> Chain:
    """A chain with another tile at a temporal slot. Spatial slots inside keep their trip counts; temporal
    ones keep their tiles as far as they fit.
    """
    new = [*chain[:at], tile]
    for (_, dim), before, after in zip(slots[at + 1 :], chain[at:], chain[at + 1 :], strict=False):
        new.append(-(-new[-1] // -(-before // after)) if dim else min(after, new[-1]))
    return tuple(new)


def _ratio(a: Chain, b: Chain) -> int:
    """The prime by which two chains differ."""
    return next((max(x, y) // min(x, y) for x, y in zip(a, b, strict=True) if x != y), 1)


def _placements(
    e: Einsum, arch: Arch, state: State
) -> Iterator[tuple[tuple[Store | int, ...], dict[str, Chain]]]:
    """Yields placements that are one move away: a node removed, added, or swapped with the next one of its
    level. When a node goes, its loops join those before it.
    """
    stores = [item for item in state.items if isinstance(item, Store)]
    slot_of = dict(
        zip(
            [item for item in state.items if isinstance(item, Store)],
            [at for at, (i, _) in enumerate(_slots(state.items, arch)) if isinstance(state.items[i], Store)],
            strict=True,
        )
    )

    def with_nodes(
        new: Sequence[Store], after: dict[Store, Store | None]
    ) -> tuple[tuple[Store | int, ...], dict[str, Chain]]:
        """The state with other nodes. after: per new node the old node whose loops stand below it, None: no
        loops do; of a node that is not in `after`, its own.
        """
        items = _items(new, arch)
        old_slots, new_slots = _slots(state.items, arch), _slots(items, arch)
        old_slot_of: list[int | None] = []
        for i, dim in new_slots:
            item = items[i]
            if isinstance(item, Store):
                old = after.get(item, item)
                old_slot_of.append(None if old is None else slot_of[old])
            else:
                old_slot_of.append(
                    next(
                        at for at, (k, name) in enumerate(old_slots) if state.items[k] == item and name == dim
                    )
                )
        tiles: dict[str, Chain] = {}
        for rank, n in e.extents:
            own: list[int] = []
            for at in old_slot_of:
                own.append((own[-1] if own else n) if at is None else state.tiles[rank][at])
            tiles[rank] = (*tuple(own[:-1]), 1)
        return items, tiles

    for i, node in enumerate(stores):
        level = next(level for level in arch.levels if level.name == node.level)
        if level.bypass and sum(other.tensor == node.tensor for other in stores) > 1 and i > 0:
            yield with_nodes([*stores[:i], *stores[i + 1 :]], {stores[i - 1]: node})
        if i + 1 < len(stores) and stores[i + 1].level == node.level:
            yield with_nodes(
                [*stores[:i], stores[i + 1], node, *stores[i + 2 :]],
                {stores[i + 1]: node, node: stores[i + 1]},
            )
    number = {level.name: v for v, level in enumerate(arch.levels)}
    for level in arch.levels:
        for tensor in may_keep(e, level):
            if Store(level.name, tensor) not in stores:
                first = next(
                    (i for i, node in enumerate(stores) if number[node.level] >= number[level.name]),
                    len(stores),
                )
                last = next(
                    (i for i, node in enumerate(stores) if number[node.level] > number[level.name]),
                    len(stores),
                )
                for at in range(first, last + 1):
                    new = Store(level.name, tensor)
                    yield with_nodes([*stores[:at], new, *stores[at:]], {new: None})
                    if at:
                        yield with_nodes(
                            [*stores[:at], new, *stores[at:]], {new: stores[at - 1], stores[at - 1]: None}
                        )
