"""Nests of einsums in a schedule: the mapper's answer where tensors stand at a level already, in the room
that is left, under a shared loop.

A mapping below a shared loop is one of the einsum of a single trip; a tensor that others bring in, or take
away, has no node further out than its home, and takes no room there: that is the schedule's. What the mapper
does not know: tiles that are refilled in every trip may have to be doubled. An answer that fits all the same
is the optimum; else one for less room is taken, and the first one is the bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import inf, sqrt

from dse.mapper.exact.optimal import names_some_dims, optimal
from dse.mapper.exact.search import search, supports
from dse.mapping.nest import Infeasible, Loop, Mapping, Store, role
from dse.mapping.schedule import rename
from dse.mapping.space import Constraints, Factors
from dse.sim.counts.counts import footprints
from dse.sim.counts.parts import bits_of, per_elem
from dse.sim.einsum import bounds
from dse.sim.einsum.boundary import ALONE, Boundary
from dse.sim.einsum.cost import room_bits
from dse.sim.einsum.evaluate import EinsumCost, Problem, einsum_cost, objective_value
from dse.solve.schedules.trips import trips
from hw.arch import Arch, Level
from workloads.einsum import Einsum, Projection, canonical_key, compulsory_elems

Key = tuple[object, ...]  # of an einsum at a place, whatever it is called
# others bring in what it reads: no bound of an einsum that stands alone holds
BELOW = Boundary(branched=True)
TRIES = 3


@dataclass(frozen=True, slots=True)
class Place:
    """Where an einsum stands. rank, tile: of the shared loop, "" where there is none. level: where tensors
    have their homes.

    forwarded: tiles that einsums of the segment hand on; held_whole: whole, brought in once; retained: whole,
    from the einsum that makes it to the last that reads it; spilled: handed on, and written out too.
    """

    level: str = ""
    rank: str = ""
    tile: int = 0
    forwarded: frozenset[str] = frozenset()
    held_whole: frozenset[str] = frozenset()
    retained: frozenset[str] = frozenset()
    spilled: frozenset[str] = frozenset()

    def homes(self) -> frozenset[str]:
        """Tensors that are on chip at this place, in whichever way."""
        return self.forwarded | self.held_whole | self.retained


@dataclass(frozen=True, slots=True)
class Nest:
    """An einsum's own nest at a place, None: none was found. bits: room of its own at the level. lower_bound:
    no nest there costs less, in the unit that adds up over einsums (energy, cycles, root of energy x cycles).
    """

    mapping: Mapping | None
    bits: int
    lower_bound: float


@dataclass(slots=True)
class Nests:
    """Answers of the mapper, by einsum, place and room; equal einsums are solved once."""

    arch: Arch
    objective: str
    factors: Factors
    constraints: Callable[[Einsum], Constraints]
    allowed_gap: float
    memo: dict[Key, list[tuple[float, Einsum, Nest]]] = field(default_factory=dict)
    lower_bounds: dict[Key, float] = field(default_factory=dict)
    padding_extra: dict[Key, float] = field(default_factory=dict)
    keys: dict[tuple[Einsum, Place], Key] = field(default_factory=dict)
    searches: int = 0
    # where layouts are felt: the same where they cost nothing, for bounds of words
    without_layouts: Nests | None = None

    def __post_init__(self) -> None:
        """Below a shared loop rows that are open stay open from trip to trip: the mapper, which sees one
        trip, must not count them.
        """
        if self.arch.models_layout():
            self.without_layouts = Nests(
                self.arch.ideal(), self.objective, self.factors, self.constraints, self.allowed_gap
            )
            levels = tuple(
                replace(level, access=replace(level.access, row_pj=0.0, row_cycles=0.0))
                if level.access
                else level
                for level in self.arch.levels
            )
            self.arch, self.allowed_gap = replace(self.arch, levels=levels), inf

    def cached_bound(self, e: Einsum, place: Place, free_bits: float) -> float:
        """What answers for no less room say: in less, no nest costs less."""
        return max(
            (nest.lower_bound for asked, _, nest in self._answers(e, place) if free_bits <= asked),
            default=0.0,
        )

    def _answers(self, e: Einsum, place: Place) -> list[tuple[float, Einsum, Nest]]:
        """At a place, whatever the room: (room, einsum, nest)."""
        return self.memo.setdefault(self._key(e, place), [])

    def _key(self, e: Einsum, place: Place) -> Key:
        if (e, place) not in self.keys:
            order = [p.tensor for p in (e.output, *e.inputs)]
            names = [
                tuple(order.index(t) for t in order if t in own)
                for own in (place.forwarded, place.held_whole, place.retained, place.spilled)
            ]
            self.keys[e, place] = (
                canonical_key(e),
                place.level,
                e.ranks().index(place.rank) if place.rank else -1,
                place.tile,
                *names,
            )
        return self.keys[e, place]

    def best(self, e: Einsum, place: Place, free_bits: float) -> Nest:
        """The nest of an einsum at a place, in `free_bits` bits of its own at the level. An answer for more
        room that takes no more than there is holds for less.
        """
        known = self._answers(e, place)
        for asked, first, nest in known:
            if free_bits == asked or (
                nest.bits <= free_bits <= asked
                if nest.mapping
                else free_bits <= asked and nest.lower_bound == inf
            ):
                return (
                    nest
                    if first is e or not nest.mapping
                    else replace(nest, mapping=rename(nest.mapping, first, e))
                )
        nest = self._solve(e, place, free_bits)
        known.append((free_bits, e, nest))
        return nest

    def _solve(self, e: Einsum, place: Place, free_bits: float) -> Nest:
        v = next((v for v, level in enumerate(self.arch.levels) if level.name == place.level), 0)
        (trip, many), *others = trips(e, place.rank, place.tile) if place.rank else ((e, 1),)
        floor, asked = 0.0, free_bits
        for attempt in range(TRIES):
            found = self._search(trip, place, self.arch, v, asked)
            if not isinstance(found, EinsumCost):
                # nodes: the search did not come to an end
                return Nest(None, 0, floor if attempt or found.unit == "nodes" else inf)
            if not attempt:
                floor = (
                    many * self._unit(found)
                    + sum(n * self._few(one, place) for one, n in others)
                    + self.pj_once(e, place)
                )
            own = replace(
                found.mapping,
                nodes=tuple(
                    n
                    for n in found.mapping.nodes
                    if not (isinstance(n, Store) and n.tensor in place.homes() and n.level == place.level)
                ),
            )
            rooms = own_bits(e, self.arch, place, own)
            if rooms.get(place.level, 0) <= free_bits and all(
                level.capacity_bits is None or rooms.get(level.name, 0) <= level.capacity_bits
                for level in self.arch.levels
                if level.name != place.level
            ):
                return Nest(own, rooms.get(place.level, 0), floor)
            asked *= min(free_bits / max(rooms.get(place.level, 0), 1), 0.9)
        return Nest(None, 0, floor)

    def _search(
        self, e: Einsum, place: Place, arch: Arch, v: int, free_bits: float
    ) -> EinsumCost | Infeasible:
        self.searches += 1
        if place.level and free_bits < inf:
            arch = replace(
                arch,
                levels=tuple(
                    replace(level, capacity_bits=int(free_bits)) if i == v else level
                    for i, level in enumerate(arch.levels)
                ),
            )
        found = optimal(
            self._problem(e, place, arch),
            self.factors,
            self._constraints(e, place),
            allowed_gap=self.allowed_gap,
        )
        return found if isinstance(found, Infeasible) else found[0]

    def _problem(self, e: Einsum, place: Place, arch: Arch) -> Problem:
        return Problem(arch, e, self.objective, BELOW if place.homes() or place.rank else ALONE)

    def _constraints(self, e: Einsum, place: Place) -> Constraints:
        return replace(self.constraints(e), homes=tuple(sorted((t, place.level) for t in place.homes())))

    def _unit(self, found: EinsumCost) -> float:
        value = objective_value(self.objective, found.energy_pj, found.latency_cycles) / (
            1 + found.optimality_gap
        )
        return sqrt(value) if self.objective == "edp" else value

    def closer(self, e: Einsum, place: Place) -> float:
        """What a search of the trips that padding cuts adds to the floor of a nest: energy without leakage,
        in all of the level. Their cycles may hide behind those of other trips.
        """
        key = self._key(e, place)
        if key not in self.padding_extra:
            others = trips(e, place.rank, place.tile)[1:] if place.rank and self.objective == "energy" else ()
            self.padding_extra[key] = sum(
                n * max(self._other(one, place) - self._few(one, place), 0.0) for one, n in others
            )
        return self.padding_extra[key]

    def _other(self, trip: Einsum, place: Place) -> float:
        constraints = self._constraints(trip, place)
        if not supports(trip, self.factors) or names_some_dims(constraints, self.arch):
            return 0.0
        self.searches += 1
        found = search(self._problem(trip, place, self.arch.without("leakage")), self.factors, constraints)
        return found.lower_bound if found.mapping else 0.0

    def _few(self, trip: Einsum, place: Place) -> float:
        """The same without a search."""
        return (
            self._compulsory(trip, place, self.arch.without("leakage"))[0]
            if self.objective == "energy"
            else 0.0
        )

    def _compulsory(self, trip: Einsum, place: Place, arch: Arch) -> tuple[float, float]:
        """Energy and cycles of operations and of each word of main memory once, but for tensors that others
        bring in.
        """
        outer = arch.levels[0]
        energy, cycles = bounds.lower_bound(
            bounds.needs(trip, arch.word_bits),
            bounds.rates(replace(arch, levels=(replace(outer, bandwidth=inf), *arch.levels[1:]))),
        )
        for p in trip.tensors():
            if p.tensor in place.homes():
                pj = outer.write_pj if p is trip.output else outer.read_pj
                energy -= (
                    bounds.words(p, trip, arch.word_bits)
                    * per_elem(outer, p.bits or arch.word_bits)
                    * (0 if outer.bypass else pj)
                )
        return energy, cycles

    def pj_once(self, e: Einsum, place: Place) -> float:
        """Energy of what moves once for all trips: held tensors in, leaving ones out."""
        if self.objective != "energy":
            return 0.0
        outer = self.arch.levels[0]
        level = next((one for one in self.arch.levels if one.name == place.level), self.arch.levels[0])
        total = 0.0
        for p in e.tensors():
            words, bits = whole_words(p, e, self.arch.word_bits), p.bits or self.arch.word_bits
            if p.tensor in place.held_whole:
                total += words * (
                    per_elem(outer, bits) * outer.read_pj + per_elem(level, bits) * level.write_pj
                )
            elif p is e.output and p.tensor in place.spilled:
                total += words * (
                    per_elem(outer, bits) * outer.write_pj + per_elem(level, bits) * level.read_pj
                )
        return total

    def lower_bound(self, e: Einsum, place: Place) -> float:
        """What no nest at a place costs less than, in any room; of equal questions once."""
        if self.without_layouts:
            return self.without_layouts.lower_bound(e, place)
        key = self._key(e, place)
        if key not in self.lower_bounds:
            self.lower_bounds[key] = self._lower_bound(e, place)
        return self.lower_bounds[key]

    def _lower_bound(self, e: Einsum, place: Place) -> float:
        """A bound that asks for no nest there: compulsory words at the outermost level and operations; and
        what the einsum costs without a shared loop, less what it then moves of tensors that are handed on.

        For with nodes of these at the outermost level, any nest below a shared loop is one of the einsum
        alone, in no more room. Their words keep ports busy, at most for the time of both, which counts twice
        where fills and work wait for each other.
        """
        (trip, many), *_ = trips(e, place.rank, place.tile)
        energy, cycles = self._compulsory(trip, place, self.arch)
        if self.objective == "edp":
            return many * sqrt(energy * cycles)
        own = many * objective_value(self.objective, energy, cycles) + self.pj_once(e, place)
        level = next(level for level in self.arch.levels if level.name == place.level)
        passed = sum(
            self._move_cost(e, p, place.level)
            for p in e.tensors()
            if p.tensor in place.forwarded and not (p is e.output and p.tensor in place.spilled)
        )
        again = sum(
            self._refetch_cost(p, trip, many, level)
            for p in e.inputs
            if p.tensor not in place.homes() and place.rank not in p.ranks()
        )
        # first: what it finds mostly fits into less room, too
        wide = self._alone(e, place, level, wide=True) - passed + again if again > 0 else 0.0
        return max(own, self._alone(e, place, level, wide=False) - passed, wide)

    def _alone(self, e: Einsum, place: Place, level: Level, wide: bool) -> float:
        """What it costs at least without a shared loop; wide: at a level that all of it fits into."""
        have = level.capacity_bits or inf
        all_of_it = 2 * sum(p.stored_bits(self.arch.word_bits) for p in e.tensors())
        if wide and have < all_of_it:
            return self.best(e, Place(place.level, retained=place.retained), all_of_it).lower_bound
        return self.best(
            e,
            Place(place.level, retained=place.retained) if place.retained else Place(),
            have if place.retained else inf,
        ).lower_bound

    def _refetch_cost(self, p: Projection, trip: Einsum, many: int, level: Level) -> float:
        """What a tensor that comes anew in every trip costs at least beyond one that is brought in once: with
        a whole tensor at the level, its reads are from there, and none of its tiles are.
        """
        if (
            self.objective != "energy"
            or self.arch.levels[0].bypass
            or role(trip, p.tensor) not in level.may_keep
        ):
            return 0.0
        outer = self.arch.levels[0]
        bits = p.bits or self.arch.word_bits
        words = bounds.words(p, trip, self.arch.word_bits)
        far, near = per_elem(outer, bits), per_elem(level, bits)
        leak = (1 if self.arch.overlap == "free" else 2) * self.arch.leak_mw() / self.arch.clock_ghz
        saved = far * outer.read_pj - near * (level.read_pj + leak / level.bandwidth)
        brought = far * (outer.read_pj + leak / outer.bandwidth) + near * (
            level.write_pj + leak / level.bandwidth
        )
        return words * many * max(saved, 0.0) - whole_words(p, trip, self.arch.word_bits) * brought

    def _move_cost(self, e: Einsum, p: Projection, name: str) -> float:
        """What it costs at most to move a tensor between the outermost level and another one."""
        outer, level = self.arch.levels[0], next(level for level in self.arch.levels if level.name == name)
        words, bits = p.stored_elems(), p.bits or self.arch.word_bits
        far, near = words * per_elem(outer, bits), words * per_elem(level, bits)
        cycles = (far / outer.bandwidth + near / level.bandwidth) * (1 if self.arch.overlap == "free" else 2)
        pj = (
            far * outer.write_pj + near * level.read_pj
            if p is e.output
            else far * outer.read_pj + near * level.write_pj
        )
        return (
            cycles if self.objective == "latency" else pj + cycles * self.arch.leak_mw() / self.arch.clock_ghz
        )


def whole_words(p: Projection, e: Einsum, word_bits: int) -> float:
    """All that an einsum sees of a tensor, as one tile, in widths of an element."""
    elems, (nonzero_words, row_words) = compulsory_elems(p, e.sizes()), p.csr_words(word_bits)
    return (
        elems
        if p.format == "dense"
        else nonzero_words * p.density * elems
        + row_words * compulsory_elems(replace(p, dims=p.dims[:-1]), e.sizes())
    )


def outer_nodes(e: Einsum, place: Place) -> tuple[Loop | Store, ...]:
    """The shared part of a segment as a member sees it, without what only others have."""
    order = [p.tensor for p in e.tensors()]
    return (
        *(Store(place.level, t) for t in order if t in place.held_whole),
        *([Loop(place.rank, place.tile)] if place.rank else []),
        *(Store(place.level, t) for t in order if t in place.forwarded),
    )


def own_bits(e: Einsum, arch: Arch, place: Place, own: Mapping) -> dict[str, int]:
    """Room per level that an einsum's own nodes take at a place."""
    outer = outer_nodes(e, place)
    whole = Mapping((*outer, *own.nodes), fork=len(outer) if place.rank else 0)
    rows = footprints(whole, e, arch)[sum(isinstance(n, Store) for n in outer) :]
    levels, bits = {level.name: level for level in arch.levels}, bits_of(e, arch)
    found: dict[str, int] = {}
    for row in rows:
        if row.tensor not in place.retained or row.level != place.level:
            found[row.level] = found.get(row.level, 0) + room_bits(row, levels[row.level], bits)
    return found


def retained_nest(own: Mapping, arch: Arch, place: Place) -> Mapping:
    """With the nodes that the share of a kept tensor that stays does without."""
    nodes = [Store(level, t) for t in sorted(place.retained) for level in (arch.levels[0].name, place.level)]
    return replace(own, nodes=(*nodes, *own.nodes))


def retained_boundary(e: Einsum, place: Place) -> Boundary:
    """What stands around an einsum in a segment of its own, some of its tensors kept."""
    return (
        Boundary(
            retained=tuple(
                (p.tensor, place.level, Fraction(1)) for p in e.tensors() if p.tensor in place.retained
            )
        )
        if place.retained
        else ALONE
    )


def price_alone(arch: Arch, e: Einsum, objective: str, place: Place, nest: Mapping) -> EinsumCost:
    """The evaluator's price of an einsum in a segment of its own, some of its tensors kept. Raises ValueError
    where what is kept does not fit.
    """
    found = einsum_cost(
        Problem(arch, e, objective, retained_boundary(e, place)), retained_nest(nest, arch, place)
    )
    if not isinstance(found, EinsumCost):
        raise ValueError(str(found))
    return found
