"""Depths of the tensors of a fused segment, below given shared loops and tiles: what each costs and takes,
and the cheapest that fit together (docs/reuse.md, Fusion).

A tensor of the segment that comes from the outermost level, or leaves to it, stands at the level below the
first d of the loops, once for all einsums that have it, or passes the level by. Its traffic is that of its
tile below d loops, times their trips. Readers and depths are chosen einsum by einsum, depth first; each nest
is the mapper's answer for the bits that are left.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, permutations, product
from math import inf, prod

from dse.mapping.classes import cut_alike, exchangeable, shared_tensors
from dse.mapping.constraints import FREE
from dse.mapping.nest import role
from dse.run import deadline
from dse.sim.counts.actions import accesses_per_elem
from dse.sim.counts.counts import tile_bits
from dse.sim.einsum import bounds
from dse.sim.einsum.evaluate import ROUNDING_GAP
from dse.solve.schedules.nests import Nest, Place, whole_words
from dse.solve.schedules.plan import FusedSegment, forwarded_bits, may_forward, may_hold
from hw.arch import Arch, Level
from workloads.einsum import Projection
from workloads.graph import base_tensor

MAX_SEARCHES = 60  # of the mapper in one search of a segment
MAX_STEPS = 20_000  # choices of depths that one search of a segment looks at
PASSES = -1  # depth of a tensor that passes the level by

Tiles = tuple[int, ...]  # of each class


@dataclass(frozen=True, slots=True)
class OuterTensor:
    """A tensor of a segment that comes from the outermost level, or leaves to it."""

    name: str
    users: tuple[tuple[int, Projection], ...]  # index of each einsum that has it, and how it accesses it
    cut: frozenset[int]  # classes with a rank of the tensor: loops over them cut it
    may_stand: bool  # whether it may stand at the level, in one node for all users
    result: bool  # whether it is an output

    def alive(self, innermost: bool, einsum_count: int) -> range:
        """Returns the einsums during which its tile is alive. innermost: it stands below all shared loops, so
        every trip fills it anew, and it is alive from its first to its last user; else during all einsums.
        """
        return range(self.users[0][0], self.users[-1][0] + 1) if innermost else range(einsum_count)


@dataclass(frozen=True, slots=True)
class Standing:
    """A depth of a tensor, below given loops and tiles, and what it costs."""

    # lower bound of what it costs more than a tensor that stands at the level and is filled at no cost
    least_pj: float
    pj: float  # the part of it that the nests of einsums do not count
    bits: int  # at the level
    depth: int  # how many of the shared loops stand above it; PASSES
    alive: range  # einsums during which it takes these bits


@dataclass(frozen=True, slots=True)
class Leaf:
    """A complete choice for a segment with given tiles: order of the loops, depths of tensors, nests."""

    bound: float  # pJ
    order: tuple[int, ...]  # classes, outermost loop first
    depths: tuple[tuple[str, int], ...]
    nests: tuple[Nest, ...]
    need_bits: int  # bits at the level


@dataclass(slots=True)
class SegmentSearch:
    """A segment, and what the search for its shared loops has found so far."""

    segment: FusedSegment
    sizes: Tiles = ()  # extent of each class of ranks (classes.py), which a shared loop cuts together
    tensors: list[OuterTensor] = field(default_factory=list)
    inner: dict[tuple[int, Tiles], float] = field(default_factory=dict)  # memo of `shared_loops._inner`
    # lower bounds of `inner` so far
    inner_bounds: dict[tuple[int, Tiles], float] = field(default_factory=dict)
    words: dict[tuple[int, str, Tiles, bool], float] = field(default_factory=dict)  # memo of `_words`
    moved: dict[tuple[str, Tiles], tuple[float, int]] = field(default_factory=dict)  # memo of `_moved`
    per_index: dict[tuple[int, int], float] = field(default_factory=dict)  # of `shared_loops._uneven_bound`
    # per einsum, lower bounds: pJ of moving, once, the words of the tensors that no earlier einsum has
    min_move_pj: list[float] = field(default_factory=list)
    # pJ of the einsum, anywhere below loops whose tiles divide
    unfused_pj: list[float] = field(default_factory=list)
    any_tiles: list[float] = field(default_factory=list)  # the same, below loops with any tiles
    choices: dict[Tiles, Choices] = field(default_factory=dict)  # of depths
    mirrors: list[tuple[int, int]] = field(default_factory=list)  # classes that may change places
    leak_pj: float = 0.0  # `most_leak_pj` of the machine
    wait_pj: list[float] = field(default_factory=list)  # `_wait_pj` of each einsum
    not_found: float = inf  # lowest bound (pJ) of choices that may have nests, which the mapper did not find
    steps: int = 0  # choices of depths looked at so far
    searches: int = 0  # searches of the mapper before this one began

    def __post_init__(self) -> None:
        self.sizes = tuple(self.segment.own[0].sizes()[ranks[0]] for ranks in self.segment.members.classes)
        self.mirrors = mirrors(self.segment, self.segment.members.classes)
        self.leak_pj = most_leak_pj(self.segment.nests.arch)
        self.wait_pj = [_wait_pj(self, i) for i in range(len(self.segment.own))]
        self.tensors, self.searches = list(_outer_tensors(self)), self.segment.nests.searches
        for i, e in enumerate(self.segment.own):
            first_here = [t for t in self.tensors if t.users[0][0] == i]
            move_bounds = [
                (
                    _bypassing(self, t, self.sizes).least_pj,
                    _standing(self, t, self.sizes, self.sizes, 0).least_pj,
                )
                for t in first_here
            ]
            self.min_move_pj.append(sum(map(min, move_bounds)))
            brought = {p.tensor for t in self.tensors for j, p in t.users[1:] if j == i}
            spilled = self.segment.members.spilled & {e.output.tensor}
            moved_by_others = (brought | set(self.segment.members.forwarded)) - spilled
            place = Place(self.segment.level.name, retained=self.segment.retained[i])
            self.unfused_pj.append(self.segment.nests.unfused_bound(e, place, moved_by_others))
            forwarded_place = replace(place, forwarded=frozenset(moved_by_others))
            self.any_tiles.append(self.segment.nests.any_nest_bound(e, forwarded_place))

    def lower_bound(self, i: int, tiles: Tiles) -> float:
        """Returns a lower bound of the pJ of an einsum, wherever below loops with these tiles its tensors
        stand.
        """
        return (self.unfused_pj if divides(self, tiles) else self.any_tiles)[i]

    def one_of_mirrored(self, tiles: Tiles) -> Tiles:
        """Returns the tiles that stand for these ones and those that cost the same, classes having changed
        places: the larger tile first.
        """
        found = list(tiles)
        for a, b in self.mirrors:
            found[a], found[b] = max(found[a], found[b]), min(found[a], found[b])
        return tuple(found)

    def renew(self) -> None:
        """Begins a new budget."""
        self.steps, self.searches = 0, self.segment.nests.searches

    def exhausted(self) -> bool:
        """True if the search has used up its budget, or its time."""
        return (
            deadline.has_passed()
            or self.steps > MAX_STEPS
            or self.segment.nests.searches - self.searches > MAX_SEARCHES
        )


def mirrors(s: FusedSegment, loops: Sequence[tuple[str, ...]]) -> list[tuple[int, int]]:
    """Returns pairs of shared loops, no loop in two of them, such that plans cost the same when these change
    places (`classes.exchangeable`); none where layouts cost something or constraints may name ranks.
    """
    found = list[tuple[int, int]]()
    if s.arch.models_layout() or any(s.nests.constraints(e) != FREE for e in s.own):
        return found
    for a, b in combinations(range(len(loops)), 2):
        if not {a, b} & {c for pair in found for c in pair} and exchangeable(s.own, loops[a], loops[b]):
            found.append((a, b))
    return found


def most_leak_pj(arch: Arch) -> float:
    """Returns at most the leakage (pJ) of one cycle that a port is busy for longer."""
    return (1 if arch.overlap == "free" else 2) * arch.leak_mw() / arch.clock_ghz


def _outer_tensors(s: SegmentSearch) -> Iterator[OuterTensor]:
    """Yields the tensors that are neither forwarded nor retained, by their first einsum."""
    shared, seen = shared_tensors(s.segment.own, s.segment.made), set(s.segment.members.forwarded)
    for i, e in enumerate(s.segment.own):
        for p in e.tensors():
            name = base_tensor(p.tensor, s.segment.made)
            if name in seen or p.tensor in s.segment.retained[i]:
                continue
            seen.add(name)
            uses = shared.get(name, [(i, e, p)])
            cut = frozenset(c for c, ranks in enumerate(s.segment.members.classes) if ranks[i] in p.ranks())
            is_kept = all(role(one, q.tensor) in s.segment.level.may_keep for _, one, q in uses)
            is_cut_alike = len({j for j, _, _ in uses}) == len(uses) and cut_alike(
                uses, s.segment.members.classes
            )
            may_stand = is_kept and (len(uses) == 1 or is_cut_alike) and p.tensor == name
            smallest = tuple((ranks, 1) for ranks in s.segment.members.classes)
            may_stand = may_stand and may_hold(s.segment, name, True, smallest)
            yield OuterTensor(name, tuple((j, q) for j, _, q in uses), cut, may_stand, p is e.output)


def _place_below(s: SegmentSearch, i: int, tiles: Tiles, homes: frozenset[str]) -> Place:
    loops = tuple(sorted((ranks[i], tile) for ranks, tile in _loops(s, tiles)))
    return Place(s.segment.level.name, loops, homes, retained=s.segment.retained[i])


def _loops(s: SegmentSearch, tiles: Tiles) -> list[tuple[tuple[str, ...], int]]:
    """Returns the shared loops with these tiles, as (rank in each einsum, tile)."""
    pairs = zip(s.segment.members.classes, tiles, s.sizes, strict=True)
    return [(ranks, tile) for ranks, tile, n in pairs if tile < n]


def nest_below(
    s: SegmentSearch,
    i: int,
    tiles: Tiles,
    homes: frozenset[str],
    free_bits: float,
    cutoff: float = inf,
    is_bound: bool = False,
) -> Nest:
    """Returns the nest of an einsum below the shared loops; one without a mapping, and with a lower bound of
    at least `cutoff`, where a short search proves that none costs less. homes: its tensors at the level that
    are not retained. The answer for all bits there are comes first: it mostly fits into fewer.

    is_bound: only the lower bound is asked for, which then holds for smaller tiles, too (`Nests.relaxed`)
    """
    place, nests, e = _place_below(s, i, tiles, homes), s.segment.nests, s.segment.own[i]
    place = nests.relaxed(e, place) if is_bound else place
    nest = Nest(None, 0, inf)
    for bits in (s.segment.level.capacity_bits or inf, free_bits):
        bound = nests.proven_bound(e, place, bits, cutoff * (1 + ROUNDING_GAP))
        if bound >= cutoff * (1 + ROUNDING_GAP):
            return Nest(None, 0, bound)
        nest = nests.best(e, place, bits)
        if nest.bits <= free_bits or nest.mapping is None:
            return nest
    return nest


def nests_of_returning_sums(s: SegmentSearch, tiles: Tiles, leaf: Leaf) -> Leaf | None:
    """Returns the choices with other nests for einsums whose sums later trips continue: the best ones if
    every trip reads its sums from the level. None if there are none, or they take more bits.
    """
    nests, standing = list(leaf.nests), {t for t, depth in leaf.depths if depth != PASSES}
    returning = s.segment.nests.of_returning_sums(s.segment.level)
    for i, e in enumerate(s.segment.own):
        place = _place_below(s, i, tiles, _homes(s, i, standing))
        if {rank for rank, _ in place.loops} <= e.output.ranks():
            continue
        nest = returning.best(e, place, s.segment.level.capacity_bits or inf)
        if nest.mapping and nest.bits <= nests[i].bits:
            nests[i] = nest
    return replace(leaf, nests=tuple(nests)) if tuple(nests) != leaf.nests else None


def _homes(s: SegmentSearch, i: int, standing: Collection[str]) -> frozenset[str]:
    """Returns the tensors of an einsum that stand at the level and are not retained. standing: those of the
    segment that neither pass by nor are forwarded.
    """
    names = {p.tensor for p in s.segment.own[i].tensors()} - s.segment.retained[i]
    return frozenset(names & {*standing, *s.segment.members.forwarded})


def _standing_names(chosen: Mapping[str, Standing]) -> set[str]:
    return {t for t, one in chosen.items() if one.depth != PASSES}


def divides(s: SegmentSearch, tiles: Tiles) -> bool:
    """Returns whether no loop leaves a remainder."""
    return all(n % tile == 0 for n, tile in zip(s.sizes, tiles, strict=True))


def _trips(s: SegmentSearch, tiles: Tiles, classes: Sequence[int]) -> int:
    return prod(-(-s.sizes[c] // tiles[c]) for c in classes)


def _kinds(s: SegmentSearch, tiles: Tiles) -> Iterator[tuple[Tiles, int]]:
    """Yields the different trips of loops with these tiles, each as (extent of every class in it, number of
    such trips): all trips of a loop have its tile, but the last one may have a remainder.
    """
    each = [[(t, n // t), *([(n % t, 1)] if n % t else [])] for t, n in zip(tiles, s.sizes, strict=True)]
    for kinds in product(*each):
        yield tuple(t for t, _ in kinds), prod(many for _, many in kinds)


def _trip_sizes(s: SegmentSearch, i: int, tiles: Tiles) -> dict[str, int]:
    """Returns the extents of an einsum in one trip of loops with these tiles, by rank."""
    pairs = zip(s.segment.members.classes, tiles, strict=True)
    return s.segment.own[i].sizes() | {ranks[i]: tile for ranks, tile in pairs}


def _words(s: SegmentSearch, i: int, p: Projection, tiles: Tiles, used: bool = False) -> float:
    """Returns the words of a tensor that one trip of loops with these tiles accesses. used: only those that
    must move whatever the nest; of a dense input, those that meet no zeros of other inputs.
    """
    key = i, p.tensor, tiles, used
    if key not in s.words:
        sizes, word_bits = _trip_sizes(s, i, tiles), s.segment.nests.arch.word_bits
        trip = replace(s.segment.own[i], extents=tuple(sizes.items()))
        s.words[key] = bounds.words(p, trip, word_bits) if used else whole_words(p, sizes, word_bits)
    return s.words[key]


def _bits(s: SegmentSearch, i: int, p: Projection, tiles: Tiles, refilled: bool) -> int:
    """Returns the capacity that a tile takes at the level. refilled: more than once."""
    twice = 2 if s.segment.level.double_buffer and refilled else 1
    return twice * tile_bits(p, _trip_sizes(s, i, tiles), s.segment.nests.arch.word_bits)


def _repeat_count(s: SegmentSearch, t: OuterTensor, tiles: Tiles) -> int:
    """Returns how often partial sums of a result are continued by a later trip: trips of the loops over ranks
    that are irrelevant to it, less the first; 0 for inputs.
    """
    summed = [c for c in range(len(tiles)) if c not in t.cut]
    return _trips(s, tiles, summed) - 1 if t.result else 0


def _bypassing(s: SegmentSearch, t: OuterTensor, tiles: Tiles) -> Standing:
    """Returns what a tensor costs that passes the level by: its traffic is in the nests of its einsums."""
    arch, min_pj = s.segment.nests.arch, 0.0
    outer = arch.levels[0]
    for i, p in t.users if t.may_stand else ():
        bits = p.bits or arch.word_bits
        outer_accesses, level_accesses = (
            accesses_per_elem(outer, bits),
            accesses_per_elem(s.segment.level, bits),
        )
        read, write = (
            outer_accesses * a - level_accesses * b
            for a, b in zip(_prices(outer), _prices(s.segment.level), strict=True)
        )
        saved = (write if t.result else read) - level_accesses * s.leak_pj / s.segment.level.rates()[0]
        kinds = _kinds(s, tiles)
        min_pj += max(saved, 0.0) * sum(_words(s, i, p, one, used=True) * many for one, many in kinds)
    return Standing(min_pj, 0.0, 0, PASSES, range(0))


def _prices(level: Level) -> tuple[float, float]:
    return level.read_pj, level.write_pj


def _standing(s: SegmentSearch, t: OuterTensor, tiles: Tiles, cut: Tiles, depth: int) -> Standing:
    """Returns what a tensor costs that stands at the level below some loops. tiles: of all loops; cut: the
    same, of the loops above alone; depth: how many these are
    """
    (pj, bits), (i, p) = _moved(s, t, cut), t.users[0]
    if t.result and s.segment.level.skip_first_read:  # nests skip first reads in every trip, but sums go on
        level_accesses = accesses_per_elem(s.segment.level, p.bits or s.segment.nests.arch.word_bits)
        pj += _repeat_count(s, t, tiles) * _words(s, i, p, s.sizes) * level_accesses * s.segment.level.read_pj
    return Standing(pj, pj, bits, depth, t.alive(cut == tiles, len(s.segment.own)))


def _moved(s: SegmentSearch, t: OuterTensor, cut: Tiles) -> tuple[float, int]:
    """Returns what it costs (pJ) to move a tensor's tiles between the outermost level and the level, below
    loops with the tiles `cut`, and the bits of a tile. The loops further in change nothing of it.
    """
    key = t.name, cut
    if key not in s.moved:
        arch, (i, p) = s.segment.nests.arch, t.users[0]
        outer, bits = arch.levels[0], p.bits or arch.word_bits
        outer_accesses = accesses_per_elem(outer, bits)
        level_accesses = accesses_per_elem(s.segment.level, bits)
        wait = s.wait_pj[i] * outer_accesses / outer.bandwidth
        words = sum(_words(s, i, p, one) * many for one, many in _kinds(s, cut))
        write_pj = level_accesses * s.segment.level.write_pj
        if t.result:
            returned = words - _words(s, i, p, s.sizes) if outer.skip_first_read else words
            pj = words * (level_accesses * s.segment.level.read_pj + outer_accesses * outer.write_pj + wait)
            pj += returned * (outer_accesses * outer.read_pj + write_pj + wait)
        else:
            pj = words * (outer_accesses * outer.read_pj + write_pj + wait)
        s.moved[key] = pj, _bits(s, i, p, cut, cut != s.sizes)
    return s.moved[key]


def _wait_pj(s: SegmentSearch, i: int) -> float:
    """Returns at least the leakage (pJ) per cycle in which the outermost level moves tiles of an einsum that
    stand at the level. Nothing inside runs meanwhile where the level is not double-buffered
    (dse/sim/counts/latency.py), and the outermost level takes longest, to and fro, where it is the slower
    one and has one port.
    """
    arch, outer = s.segment.nests.arch, s.segment.nests.arch.levels[0]
    outer_is_slower = (
        outer.bandwidth * outer.width_bits <= s.segment.level.bandwidth * s.segment.level.width_bits
    )
    inside_waits = (
        arch.overlap == "buffered"
        and not s.segment.level.double_buffer
        and s.segment.level.name == arch.levels[1].name
    )
    one_port = outer.ports == "shared" and not arch.with_ports()
    all_wait = inside_waits and outer_is_slower and one_port and not s.segment.retained[i]
    return arch.leak_mw() / arch.clock_ghz if all_wait else 0.0


@dataclass(slots=True)
class Choices:
    """The depths of all tensors for given tiles, by order of the loops."""

    s: SegmentSearch
    tiles: Tiles
    passing: list[Standing]  # of each tensor

    def of(self, order: Sequence[int]) -> list[tuple[Standing, ...]]:
        """Returns, per tensor, the depths that no other one dominates, cheapest first; () where it can
        neither stand nor pass by.
        """
        cuts = [self.s.sizes]
        for c in order:
            cuts.append((*cuts[-1][:c], self.tiles[c], *cuts[-1][c + 1 :]))
        return [self._of(k, t, cuts) for k, t in enumerate(self.s.tensors)]

    def _of(self, k: int, t: OuterTensor, cuts: Sequence[Tiles]) -> tuple[Standing, ...]:
        """A tensor of one einsum that stands below all loops may as well pass by: a node in the einsum's nest
        is no dearer. A result that loops sum up stands at the level. cuts: tiles of the first d loops, by d
        """
        summed = _repeat_count(self.s, t, self.tiles) > 0
        deepest = len(cuts) if summed or len(t.users) > 1 else len(cuts) - 1
        found = list[Standing]()
        for depth in reversed(range(deepest if t.may_stand else 0)):
            if not may_hold(self.s.segment, t.name, True, _loops(self.s, cuts[depth])):
                continue
            one = _standing(self.s, t, self.tiles, cuts[depth], depth)
            if all(one.pj < other.pj for other in found):  # of equal traffic the deepest takes least
                found.append(one)
        found += [] if summed else [self.passing[k]]
        return tuple(sorted(found, key=lambda one: (one.least_pj, one.bits)))


def _fixed_pj(s: SegmentSearch, i: int, tiles: Tiles) -> float:
    """Returns the pJ of an einsum that no depth changes: of reading back partial sums of its retained result,
    and of writing its result to the outermost level if it is forwarded and spilled.
    """
    arch, p, pj = s.segment.nests.arch, s.segment.own[i].output, 0.0
    outer, bits = arch.levels[0], p.bits or arch.word_bits
    words, level_accesses = _words(s, i, p, s.sizes), accesses_per_elem(s.segment.level, bits)
    if p.tensor in s.segment.members.spilled:
        pj += words * (
            level_accesses * s.segment.level.read_pj + accesses_per_elem(outer, bits) * outer.write_pj
        )
    if p.tensor in s.segment.retained[i] and s.segment.level.skip_first_read:
        cut = frozenset(c for c, ranks in enumerate(s.segment.members.classes) if ranks[i] in p.ranks())
        repeats = _repeat_count(s, OuterTensor(p.tensor, ((i, p),), cut, True, True), tiles)
        pj += repeats * words * level_accesses * s.segment.level.read_pj
    return pj


def leaves(
    s: SegmentSearch, tiles: Tiles, base: Sequence[float], best: float, uses_mapper: bool
) -> Iterator[Leaf]:
    """Yields choices of order and depths, each with a lower bound than those before and than `best`.

    base: least pJ of each einsum's nest
    uses_mapper: the mapper is asked for nests; False: `base` alone bounds them
    """
    forwarded_tile_bits = forwarded_bits(
        s.segment, [_trip_sizes(s, i, tiles) for i in range(len(s.segment.own))]
    )
    if max(forwarded_tile_bits) > s.segment.free_bits or not may_forward(s.segment, _loops(s, tiles)):
        return
    looped, seen = [c for c, n in enumerate(s.sizes) if tiles[c] < n], set[object]()
    if tiles not in s.choices:
        s.choices[tiles] = Choices(s, tiles, [_bypassing(s, t, tiles) for t in s.tensors])
    choices_by_order = s.choices[tiles]
    fixed = [_fixed_pj(s, i, tiles) for i in range(len(s.segment.own))]
    alone = [s.lower_bound(i, tiles) for i in range(len(s.segment.own))]
    for order in permutations(looped):
        choices = choices_by_order.of(order)
        key = tuple(tuple((one.pj, one.bits, one.depth) for one in each) for each in choices)
        if all(choices) and key not in seen:
            seen.add(key)
            descent = Descent(s, tiles, order, choices, base, fixed, alone, best, uses_mapper)
            for leaf in descent.visit(0, 0.0, forwarded_tile_bits, {}):
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
    alone: Sequence[float]  # `SegmentSearch.lower_bound` of each einsum
    best: float  # lowest bound so far
    uses_mapper: bool
    new_tensors: list[list[int]] = field(init=False)  # of each einsum: its tensors that no earlier one has
    remaining_pj: list[float] = field(init=False)  # at least the pJ of all einsums after each one
    # memo: their depths together, with their least pJ, cheapest first
    combos: dict[int, list[tuple[float, tuple[Standing, ...]]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        members = range(len(self.s.segment.own))
        self.new_tensors = [[k for k, t in enumerate(self.s.tensors) if t.users[0][0] == i] for i in members]
        least = [
            max(self.alone[i], self.base[i] + self.fixed[i] + sum(self.choices[k][0].least_pj for k in new))
            for i, new in enumerate(self.new_tensors)
        ]
        self.remaining_pj = [sum(least[i + 1 :]) for i in members]

    def _combos(self, i: int) -> list[tuple[float, tuple[Standing, ...]]]:
        if i not in self.combos:
            combos = product(*(self.choices[k] for k in self.new_tensors[i]))
            costs = [(sum(one.least_pj for one in combo), combo) for combo in combos]
            self.combos[i] = sorted(costs, key=lambda pair: pair[0])
        return self.combos[i]

    def visit(
        self, i: int, cost: float, used_bits: Sequence[int], chosen: dict[str, Standing]
    ) -> Iterator[Leaf]:
        """Yields choices that complete those of the first i einsums.

        cost: of einsums and tensors so far; used_bits: bits in use while each einsum runs
        """
        s = self.s
        if i == len(s.segment.own):
            yield from self._leaf(cost, used_bits, chosen)
            return
        new_tensors, remaining_pj = self.new_tensors[i], self.remaining_pj[i]
        for least_pj, combo in self._combos(i):
            s.steps += 1
            einsum_pj = self.base[i] + self.fixed[i] + least_pj
            if s.exhausted() or cost + max(einsum_pj, self.alone[i]) + remaining_pj >= self.best:
                return
            bits_now = [n + sum(one.bits for one in combo if j in one.alive) for j, n in enumerate(used_bits)]
            if max(bits_now) > s.segment.free_bits:
                continue
            chosen_now = chosen | {s.tensors[k].name: one for k, one in zip(new_tensors, combo, strict=True)}
            if self.uses_mapper:
                homes, free_bits = (
                    _homes(s, i, _standing_names(chosen_now)),
                    s.segment.free_bits - bits_now[i],
                )
                outside_pj = self.fixed[i] + sum(one.pj for one in combo)
                cutoff = self.best - cost - remaining_pj - outside_pj
                einsum_pj = outside_pj + nest_below(s, i, self.tiles, homes, free_bits, cutoff).lower_bound
            if cost + max(einsum_pj, self.alone[i]) + remaining_pj < self.best:
                yield from self.visit(i + 1, cost + max(einsum_pj, self.alone[i]), bits_now, chosen_now)

    def _leaf(self, cost: float, used_bits: Sequence[int], chosen: dict[str, Standing]) -> Iterator[Leaf]:
        """Yields the choices, if their bound is lower than those before. cost: bound of `visit`, for at least
        as many bits.
        """
        s, nests, bound = self.s, list[Nest](), cost
        depths = tuple((t, one.depth) for t, one in chosen.items())
        if self.uses_mapper:
            free = [s.segment.free_bits - n for n in used_bits]
            standing = _standing_names(chosen)
            nests = [nest_below(s, i, self.tiles, _homes(s, i, standing), n) for i, n in enumerate(free)]
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
