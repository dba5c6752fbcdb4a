"""Search of one fused segment with several shared loops, for energy (docs/reuse.md, Fusion).

segment
  store DRAM ...; store G K        a tensor at depth 0: brought in once
  for h                            shared loops over classes of ranks (dse/mapping/classes.py)
    store G ...                    depth 1: once per trip of h
    for m
      store G S                    what einsums hand on stands below all loops
      einsum a ...                 a tensor may pass G by: its nodes stand in the nests of its einsums
      einsum b ...

Given the tiles, parts of the cost separate:

    pJ >= sum over tensors at G of traffic(tensor, order of loops, depth)
        + sum over einsums of inner(einsum of one trip, tensors at G, bits left) * trips

`inner` is the exact mapper's answer. It depends on order and depths through the bits left alone. Where
nothing leaks and partial sums return to G only, the two sides are equal; the evaluator prices every answer.

Tiles are looked at by their lower bounds, best first. Four facts bound them:

    smaller tiles   with all tensors at G, trips of smaller tiles cost no less: loops of the larger trip may
                    stand outermost. So a tile inherits the bounds of its multiples.
    passing by      with a tensor at G at no cost, an einsum saves at least (outer - G) pJ per word and trip.
    capacity        handed-on tiles, and the cheapest depths that fit beside them, need no mapper.
    alone           an einsum costs no less than alone, minus the moves that others make
                    (`Nests.unfused_bound`).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations, product
from math import inf, prod

from dse.mapper.exact.spatial import primes
from dse.mapping.classes import cut_alike, shared_tensors
from dse.mapping.nest import Mapping, role
from dse.sim.counts.actions import accesses_per_elem
from dse.sim.counts.counts import tile_bits
from dse.sim.einsum import bounds
from dse.sim.einsum.evaluate import ROUNDING_GAP
from dse.solve.schedules.fusible_segments import Members
from dse.solve.schedules.nests import Nest, Nests, Place, whole_words
from hw.arch import Arch, Level
from workloads.einsum import Einsum, Projection
from workloads.graph import base_tensor

MAX_LOOPS = 3  # shared loops of a segment
MAX_SEARCHES = 200  # of the mapper in one search of a segment
MAX_STEPS = 20_000  # choices of depths that one search of a segment looks at
MAX_PRICED = 6  # plans of a segment that cost more than their bounds, where others may cost less
PASSES = -1  # depth of a tensor that passes the level by

Tiles = tuple[int, ...]  # of each class
Depths = tuple[int, ...]  # of each tensor


@dataclass(frozen=True, slots=True)
class Plan:
    """How a fused segment runs."""

    level: str  # where the tensors below stand; "": there are none
    loops: tuple[tuple[int, int], ...]  # index into Members.loops, tile; outermost first
    at: tuple[tuple[str, int], ...]  # tensors at the level, and how many of the loops stand above each
    # the einsums for which the plan was found; a segment of equal einsums with other names may use the plan
    like: tuple[Einsum, ...]
    nests: tuple[Mapping, ...] = ()  # nest of each einsum of `like`, below the shared loops


@dataclass(frozen=True, slots=True)
class OuterTensor:
    """A tensor of a segment that comes from the outermost level, or leaves to it."""

    name: str
    users: tuple[tuple[int, Projection], ...]  # number of each einsum that has it
    cut: frozenset[int]  # classes that cut it
    may_stand: bool  # at the level, one node for all users
    result: bool

    def alive(self, innermost: bool, einsum_count: int) -> range:
        """Returns the einsums during which its tile is alive. innermost: every trip fills it anew."""
        return range(self.users[0][0], self.users[-1][0] + 1) if innermost else range(einsum_count)


@dataclass(frozen=True, slots=True)
class Standing:
    """A depth of a tensor below given loops and tiles."""

    least_pj: float  # at least what it costs more than a tensor that stands at the level at no cost
    pj: float  # the part of it that nests do not count
    bits: int
    depth: int
    alive: range  # einsums


@dataclass(frozen=True, slots=True)
class Leaf:
    """All choices of a segment but its nests' nodes."""

    bound: float  # pJ
    order: tuple[int, ...]  # classes, outermost loop first
    depths: tuple[tuple[str, int], ...]
    nests: tuple[Nest, ...]
    need_bits: int  # bits at the level


@dataclass(slots=True)
class SegmentSearch:
    """A segment at one level, and what the search of it has found so far."""

    nests: Nests
    level: Level
    einsums: Sequence[Einsum]
    members: Members
    retained: Sequence[
        frozenset[str]
    ]  # tensors of each einsum that stand at the level whole, at no cost here
    free_bits: float
    produced: Collection[str]  # all tensors that einsums of the workload make
    sizes: Tiles = ()  # extent of each class
    tensors: list[OuterTensor] = field(default_factory=list)
    inner: dict[tuple[int, Tiles], float] = field(default_factory=dict)  # memo of `_inner`
    inner_bounds: dict[tuple[int, Tiles], float] = field(default_factory=dict)  # bounds of `inner` so far
    words: dict[tuple[int, str, Tiles, bool], float] = field(default_factory=dict)  # memo of `_words`
    # at least the pJ of one move of each einsum's words
    min_move_pj: list[float] = field(default_factory=list)
    unfused_pj: list[float] = field(default_factory=list)  # at least the pJ of each einsum anywhere
    not_found: float = inf  # lowest bound (pJ) of choices that may have nests, which the mapper did not find
    steps: int = 0  # choices of depths so far
    searches: int = 0  # of the mapper when the search began

    def __post_init__(self) -> None:
        self.sizes = tuple(self.einsums[0].sizes()[ranks[0]] for ranks in self.members.classes)
        self.tensors, self.searches = list(_outer_tensors(self)), self.nests.searches
        for i, e in enumerate(self.einsums):
            first_here = [t for t in self.tensors if t.users[0][0] == i]
            move_bounds = [
                (_bypassing(self, t, self.sizes).least_pj, _standing(self, t, self.sizes, (), 0).least_pj)
                for t in first_here
            ]
            self.min_move_pj.append(sum(map(min, move_bounds)))
            brought = {p.tensor for t in self.tensors for j, p in t.users[1:] if j == i}
            spilled = self.members.spilled & {e.output.tensor}
            moved_by_others = (brought | set(self.members.forwarded)) - spilled
            place = Place(self.level.name, retained=self.retained[i])
            self.unfused_pj.append(self.nests.unfused_bound(e, place, moved_by_others))

    def exhausted(self) -> bool:
        """True if the search has used up its budget."""
        return self.steps > MAX_STEPS or self.nests.searches - self.searches > MAX_SEARCHES


def searchable(arch: Arch, level: Level) -> bool:
    """True if the bounds of this module hold at a level: no level outside of it is cheaper."""
    outside = arch.levels[: arch.levels.index(level)]
    level_pj = max(level.read_pj, level.write_pj) + _leak(arch) / level.bandwidth
    outer_pj = min(min(one.read_pj, one.write_pj) / one.width_bits for one in outside)
    return not arch.levels[0].bypass and not arch.models_layout() and outer_pj >= level_pj / level.width_bits


def _leak(arch: Arch) -> float:
    """Returns at most the leakage (pJ) of one cycle that a port is busy for longer."""
    return (1 if arch.overlap == "free" else 2) * arch.leak_mw() / arch.clock_ghz


def _outer_tensors(s: SegmentSearch) -> Iterator[OuterTensor]:
    """Yields the tensors that are neither handed on nor retained, by their first einsum."""
    shared, seen = shared_tensors(s.einsums, s.produced), set(s.members.forwarded)
    for i, e in enumerate(s.einsums):
        for p in e.tensors():
            name = base_tensor(p.tensor, s.produced)
            if name in seen or p.tensor in s.retained[i]:
                continue
            seen.add(name)
            uses = shared.get(name, [(i, e, p)])
            cut = frozenset(c for c, ranks in enumerate(s.members.classes) if ranks[i] in p.ranks())
            is_kept = all(role(one, q.tensor) in s.level.may_keep for _, one, q in uses)
            is_cut_alike = len({j for j, _, _ in uses}) == len(uses) and cut_alike(uses, s.members.classes)
            may_stand = is_kept and (len(uses) == 1 or is_cut_alike) and p.tensor == name
            yield OuterTensor(name, tuple((j, q) for j, _, q in uses), cut, may_stand, p is e.output)


def search(s: SegmentSearch, cutoff: float, price: Callable[[Plan, int], float]) -> float:
    """Prices plans until no other plan of the searched space can cost less than the best of them, or than
    `cutoff`. Returns the lower bound (pJ) of all plans that may cost less than `cutoff`; inf: none does.

    price: returns the evaluator's price of a plan that needs so many bits; inf if it does not fit
    """
    best, lower_bound, seen, over_bound = cutoff, inf, {s.sizes}, 0
    queue: list[tuple[float, int, Tiles]] = [(_lower_bound(s, s.sizes), 0, s.sizes)]  # bound, - stage, tiles
    while queue and queue[0][0] < best and over_bound < MAX_PRICED and not s.exhausted():
        bound, negated_stage, tiles = heapq.heappop(queue)
        stage = -negated_stage
        if stage == 0:  # known are bounds of larger tiles
            for smaller in (one for one in _smaller_tiles(tiles) if one not in seen):
                seen.add(smaller)
                heapq.heappush(queue, (_lower_bound(s, smaller), 0, smaller))
            if 0 < sum(t < n for t, n in zip(tiles, s.sizes, strict=True)) <= MAX_LOOPS:
                nests = [_inherited(s, i, tiles) for i in range(len(s.einsums))]
                heapq.heappush(queue, (max(bound, _with_depths(s, tiles, nests, best)), -1, tiles))
        elif stage == 1:  # and depths that fit
            nests = [_inner(s, i, tiles) for i in range(len(s.einsums))]
            heapq.heappush(queue, (max(bound, _with_depths(s, tiles, nests, best)), -2, tiles))
        elif leaf := _best_leaf(s, tiles, best):
            cost = price(_plan(s, tiles, leaf), leaf.need_bits)
            lower_bound, best = min(lower_bound, leaf.bound), min(best, cost)
            over_bound += cost > leaf.bound * (1 + ROUNDING_GAP)
        if s.exhausted():  # its bound may be that of some of the choices
            lower_bound = min(lower_bound, bound)
    return min([lower_bound, s.not_found, *(one[0] for one in queue[:1] if one[0] < best)])


def _plan(s: SegmentSearch, tiles: Tiles, leaf: Leaf) -> Plan:
    loops = tuple((c, tiles[c]) for c in leaf.order)
    nests = tuple(nest.mapping for nest in leaf.nests if nest.mapping)
    at = tuple((name, depth) for name, depth in leaf.depths if depth != PASSES)
    return Plan(s.level.name, loops, at, tuple(s.einsums), nests)


def _smaller_tiles(tiles: Tiles) -> Iterator[Tiles]:
    """Yields the tiles with one of them divided by a prime."""
    for c, tile in enumerate(tiles):
        yield from ((*tiles[:c], tile // prime, *tiles[c + 1 :]) for prime in dict.fromkeys(primes(tile)))


def _larger_tiles(sizes: Tiles, tiles: Tiles) -> Iterator[Tiles]:
    """Yields the tiles with one of them multiplied by a prime, the inverse of `_smaller_tiles`."""
    for c, (n, tile) in enumerate(zip(sizes, tiles, strict=True)):
        yield from ((*tiles[:c], tile * prime, *tiles[c + 1 :]) for prime in dict.fromkeys(primes(n // tile)))


def _inherited(s: SegmentSearch, i: int, tiles: Tiles) -> float:
    """Returns the highest bound that is known of an einsum in these tiles, or in larger ones."""
    larger = (s.inner_bounds.get((i, one), 0.0) for one in _larger_tiles(s.sizes, tiles))
    s.inner_bounds[i, tiles] = max(s.inner_bounds.get((i, tiles), 0.0), *larger, 0.0)
    return s.inner_bounds[i, tiles]


def _inner(s: SegmentSearch, i: int, tiles: Tiles) -> float:
    """Returns the least pJ of an einsum below loops with these tiles, all its tensors at the level."""
    if (i, tiles) not in s.inner:
        names = {p.tensor for p in s.einsums[i].tensors()}
        standing = {t.name for t in s.tensors if t.may_stand} | set(s.members.forwarded)
        nest = _nest(s, i, tiles, frozenset(names & standing), inf)
        s.inner[i, tiles] = s.inner_bounds[i, tiles] = max(nest.lower_bound, _inherited(s, i, tiles))
    return s.inner[i, tiles]


def _nest(s: SegmentSearch, i: int, tiles: Tiles, homes: frozenset[str], free_bits: float) -> Nest:
    """Returns the nest of an einsum below the shared loops. homes: its tensors at the level that are not
    retained. The answer for all bits there are comes first: it mostly fits into fewer.
    """
    pairs = zip(s.members.classes, tiles, s.sizes, strict=True)
    loops = tuple(sorted((ranks[i], tile) for ranks, tile, n in pairs if tile < n))
    place = Place(s.level.name, loops, homes, retained=s.retained[i])
    all_bits = s.level.capacity_bits or inf
    nest = s.nests.best(s.einsums[i], place, all_bits)
    return (
        nest
        if nest.bits <= free_bits or nest.mapping is None
        else s.nests.best(s.einsums[i], place, free_bits)
    )


def _trips(s: SegmentSearch, tiles: Tiles, classes: Sequence[int]) -> int:
    return prod(s.sizes[c] // tiles[c] for c in classes)


def _trip_sizes(s: SegmentSearch, i: int, tiles: Tiles) -> dict[str, int]:
    """Returns the extents of an einsum in one trip of loops with these tiles, by rank."""
    pairs = zip(s.members.classes, tiles, strict=True)
    return s.einsums[i].sizes() | {ranks[i]: tile for ranks, tile in pairs}


def _words(s: SegmentSearch, i: int, p: Projection, tiles: Tiles, used: bool = False) -> float:
    """Returns the words that one trip of loops with these tiles uses of a tensor. used: those that must move
    where nodes are as small as can be; of a dense input, those that meet no zeros of other inputs.
    """
    key = i, p.tensor, tiles, used
    if key not in s.words:
        sizes, word_bits = _trip_sizes(s, i, tiles), s.nests.arch.word_bits
        trip = replace(s.einsums[i], extents=tuple(sizes.items()))
        s.words[key] = bounds.words(p, trip, word_bits) if used else whole_words(p, sizes, word_bits)
    return s.words[key]


def _bits(s: SegmentSearch, i: int, p: Projection, tiles: Tiles, refilled: bool) -> int:
    """Returns the capacity that a tile takes at the level. refilled: more than once."""
    twice = 2 if s.level.double_buffer and refilled else 1
    return twice * tile_bits(p, _trip_sizes(s, i, tiles), s.nests.arch.word_bits)


def _repeat_count(s: SegmentSearch, t: OuterTensor, tiles: Tiles) -> int:
    """Returns how often, after the first time, partial sums of a result are added to by other trips."""
    summed = [c for c in range(len(tiles)) if c not in t.cut]
    return _trips(s, tiles, summed) - 1 if t.result else 0


def _bypassing(s: SegmentSearch, t: OuterTensor, tiles: Tiles) -> Standing:
    """Returns what a tensor costs that passes the level by: its traffic is in the nests of its einsums."""
    arch, min_pj = s.nests.arch, 0.0
    outer = arch.levels[0]
    for i, p in t.users if t.may_stand else ():
        bits = p.bits or arch.word_bits
        outer_accesses, level_accesses = accesses_per_elem(outer, bits), accesses_per_elem(s.level, bits)
        read, write = (
            outer_accesses * a - level_accesses * b
            for a, b in zip(_prices(outer), _prices(s.level), strict=True)
        )
        saved = (write if t.result else read) - level_accesses * _leak(arch) / s.level.bandwidth
        min_pj += max(saved, 0.0) * _words(s, i, p, tiles, used=True) * _trips(s, tiles, range(len(tiles)))
    return Standing(min_pj, 0.0, 0, PASSES, range(0))


def _prices(level: Level) -> tuple[float, float]:
    return level.read_pj, level.write_pj


def _standing(s: SegmentSearch, t: OuterTensor, tiles: Tiles, order: Sequence[int], depth: int) -> Standing:
    """Returns what a tensor costs that stands at the level below the first loops of an order."""
    arch, (i, p) = s.nests.arch, t.users[0]
    outer, bits = arch.levels[0], p.bits or arch.word_bits
    outer_accesses, level_accesses = accesses_per_elem(outer, bits), accesses_per_elem(s.level, bits)
    above = order[:depth]
    cut = tuple(tile if c in above else n for c, (tile, n) in enumerate(zip(tiles, s.sizes, strict=True)))
    moved_words = _words(s, i, p, cut) * _trips(s, tiles, above)
    if t.result:
        all_words = _words(s, i, p, s.sizes)
        returned = moved_words - all_words if outer.skip_first_read else moved_words
        pj = moved_words * (level_accesses * s.level.read_pj + outer_accesses * outer.write_pj)
        pj += returned * (outer_accesses * outer.read_pj + level_accesses * s.level.write_pj)
        if s.level.skip_first_read:  # the einsum of a trip takes it that sums begin there
            pj += _repeat_count(s, t, tiles) * all_words * level_accesses * s.level.read_pj
    else:
        pj = moved_words * (outer_accesses * outer.read_pj + level_accesses * s.level.write_pj)
    alive = t.alive(depth == len(order), len(s.einsums))
    return Standing(pj, pj, _bits(s, i, p, cut, depth > 0), depth, alive)


@dataclass(slots=True)
class Choices:
    """The depths of all tensors for given tiles, by order of the loops."""

    s: SegmentSearch
    tiles: Tiles
    passing: list[Standing]  # of each tensor
    memo: dict[tuple[int, frozenset[int], bool], Standing] = field(default_factory=dict)

    def of(self, order: Sequence[int]) -> list[tuple[Standing, ...]]:
        """Returns the depths of each tensor that no other one dominates, cheapest first; none where there is
        no way for it.
        """
        return [self._of(k, t, order) for k, t in enumerate(self.s.tensors)]

    def _of(self, k: int, t: OuterTensor, order: Sequence[int]) -> tuple[Standing, ...]:
        """A tensor of one einsum that stands below all loops may as well pass by: a node in the einsum's nest
        is no dearer. A result that loops sum up stands at the level.
        """
        summed = _repeat_count(self.s, t, self.tiles) > 0
        deepest = len(order) + 1 if summed or len(t.users) > 1 else len(order)
        found = list[Standing]()
        for depth in reversed(range(deepest if t.may_stand else 0)):
            one = self._standing(k, t, order, depth)
            if all(one.pj < other.pj for other in found):  # of equal traffic the deepest takes least
                found.append(one)
        found += [] if summed else [self.passing[k]]
        return tuple(sorted(found, key=lambda one: (one.least_pj, one.bits)))

    def _standing(self, k: int, t: OuterTensor, order: Sequence[int], depth: int) -> Standing:
        key = k, frozenset(order[:depth]), depth == len(order)
        if key not in self.memo:
            self.memo[key] = _standing(self.s, t, self.tiles, order, depth)
        return self.memo[key]


def _fixed_pj(s: SegmentSearch, i: int, tiles: Tiles) -> float:
    """Returns the pJ of reading partial sums of an einsum's retained result, and of writing out a result that
    is handed on.
    """
    arch, p, pj = s.nests.arch, s.einsums[i].output, 0.0
    outer, bits = arch.levels[0], p.bits or arch.word_bits
    words, near = _words(s, i, p, s.sizes), accesses_per_elem(s.level, bits)
    if p.tensor in s.members.spilled:
        pj += words * (near * s.level.read_pj + accesses_per_elem(outer, bits) * outer.write_pj)
    if p.tensor in s.retained[i] and s.level.skip_first_read:
        cut = frozenset(c for c, ranks in enumerate(s.members.classes) if ranks[i] in p.ranks())
        again = _repeat_count(s, OuterTensor(p.tensor, ((i, p),), cut, True, True), tiles)
        pj += again * words * near * s.level.read_pj
    return pj


def _forwarded_bits(s: SegmentSearch, tiles: Tiles) -> list[int]:
    """Returns the bits of handed-on tiles that are alive while each einsum runs."""
    found = [0] * len(s.einsums)
    for i, e in enumerate(s.einsums):
        t = e.output.tensor
        if t in s.members.forwarded:
            last = max(j for j, other in enumerate(s.einsums) if t in {p.tensor for p in other.inputs})
            bits = _bits(s, i, e.output, tiles, True)
            for j in range(i, last + 1):
                found[j] += bits
    return found


def _lower_bound(s: SegmentSearch, tiles: Tiles) -> float:
    """Returns a lower bound (pJ) from bounds of larger tiles, and one move of each word."""
    inner_bound = _inner if tiles == s.sizes else _inherited
    return sum(
        max(s.unfused_pj[i], inner_bound(s, i, tiles) + s.min_move_pj[i]) for i in range(len(s.einsums))
    )


def _with_depths(s: SegmentSearch, tiles: Tiles, nests: Sequence[float], best: float) -> float:
    """Returns a lower bound (pJ) from bounds of the nests, and the cheapest depths that fit; inf: none below
    `best`.
    """
    return min((leaf.bound for leaf in _leaves(s, tiles, nests, best, uses_mapper=False)), default=inf)


def _best_leaf(s: SegmentSearch, tiles: Tiles, best: float) -> Leaf | None:
    """Returns the choices with the lowest bound below `best`, None if there are none."""
    base = [_inner(s, i, tiles) for i in range(len(s.einsums))]
    return min(_leaves(s, tiles, base, best, uses_mapper=True), key=lambda leaf: leaf.bound, default=None)


def _leaves(
    s: SegmentSearch, tiles: Tiles, base: Sequence[float], best: float, uses_mapper: bool
) -> Iterator[Leaf]:
    """Yields choices of order and depths, each with a lower bound than those before and than `best`.

    base: least pJ of each einsum's nest
    uses_mapper: the mapper is asked for nests; False: `base` alone bounds them
    """
    forwarded_bits = _forwarded_bits(s, tiles)
    if max(forwarded_bits) > s.free_bits:
        return
    cut_classes, seen = [c for c, n in enumerate(s.sizes) if tiles[c] < n], set[object]()
    every = Choices(s, tiles, [_bypassing(s, t, tiles) for t in s.tensors])
    fixed = [_fixed_pj(s, i, tiles) for i in range(len(s.einsums))]
    for order in permutations(cut_classes):
        choices = every.of(order)
        if all(choices) and (key := tuple(choices)) not in seen:
            seen.add(key)
            for leaf in Descent(s, tiles, order, choices, base, fixed, best, uses_mapper).visit(
                0, 0.0, forwarded_bits, {}
            ):
                best = leaf.bound
                yield leaf


@dataclass(slots=True)
class Descent:
    """Depths of all tensors for given tiles and order, chosen einsum by einsum, depth first."""

    s: SegmentSearch
    tiles: Tiles
    order: tuple[int, ...]
    choices: Sequence[Sequence[Standing]]  # of each tensor, cheapest first
    base: Sequence[float]
    fixed: Sequence[float]  # `_fixed_pj` of each einsum
    best: float  # lowest bound so far
    uses_mapper: bool

    def visit(
        self, i: int, cost: float, used_bits: Sequence[int], chosen: dict[str, Standing]
    ) -> Iterator[Leaf]:
        """Yields choices that complete those of the first i einsums.

        cost: of einsums and tensors so far; used_bits: bits in use while each einsum runs
        """
        s = self.s
        if i == len(s.einsums):
            yield from self._leaf(cost, used_bits, chosen)
            return
        new_tensors = [k for k, t in enumerate(s.tensors) if t.users[0][0] == i]
        remaining_pj = sum(self._least(j) for j in range(i + 1, len(s.einsums)))
        combos = product(*(self.choices[k] for k in new_tensors))
        for combo in sorted(combos, key=lambda depths: sum(one.least_pj for one in depths)):
            s.steps += 1
            einsum_pj = self.base[i] + self.fixed[i] + sum(one.least_pj for one in combo)
            if s.exhausted() or cost + max(einsum_pj, s.unfused_pj[i]) + remaining_pj >= self.best:
                return
            bits_now = [n + sum(one.bits for one in combo if j in one.alive) for j, n in enumerate(used_bits)]
            if max(bits_now) > s.free_bits:
                continue
            chosen_now = chosen | {s.tensors[k].name: one for k, one in zip(new_tensors, combo, strict=True)}
            if self.uses_mapper:
                inner = _nest(
                    s, i, self.tiles, self._homes(i, chosen_now), s.free_bits - bits_now[i]
                ).lower_bound
                einsum_pj = inner + self.fixed[i] + sum(one.pj for one in combo)
            if cost + max(einsum_pj, s.unfused_pj[i]) + remaining_pj < self.best:
                yield from self.visit(i + 1, cost + max(einsum_pj, s.unfused_pj[i]), bits_now, chosen_now)

    def _least(self, i: int) -> float:
        """Returns at least the pJ of an einsum whose depths are not chosen yet."""
        pairs = zip(self.s.tensors, self.choices, strict=True)
        moved = sum(own[0].least_pj for t, own in pairs if t.users[0][0] == i)
        return max(self.s.unfused_pj[i], self.base[i] + self.fixed[i] + moved)

    def _homes(self, i: int, chosen: dict[str, Standing]) -> frozenset[str]:
        """Returns the tensors of an einsum that stand at the level and are not retained."""
        stand = {t for t, one in chosen.items() if one.depth != PASSES}
        names = {p.tensor for p in self.s.einsums[i].tensors()} - self.s.retained[i]
        return frozenset(names & (stand | set(self.s.members.forwarded)))

    def _leaf(self, cost: float, used_bits: Sequence[int], chosen: dict[str, Standing]) -> Iterator[Leaf]:
        """Yields the choices, if their bound is lower than those before. cost: bound of `visit`, for at least
        as many bits.
        """
        s, nests, bound = self.s, list[Nest](), cost
        depths = tuple((t, one.depth) for t, one in chosen.items())
        if self.uses_mapper:
            free = [s.free_bits - n for n in used_bits]
            nests = [_nest(s, i, self.tiles, self._homes(i, chosen), n) for i, n in enumerate(free)]
            pj = sum(self.fixed) + sum(one.pj for one in chosen.values())
            bound = max(cost, pj + sum(nest.lower_bound for nest in nests))
        if bound >= self.best:
            return
        if any(nest.mapping is None for nest in nests):
            s.not_found = min(s.not_found, bound)
            return
        self.best = bound
        need = max(n + nest.bits for n, nest in zip(used_bits, nests, strict=True)) if nests else 0
        yield Leaf(bound, self.order, depths, tuple(nests), need)
