"""Nests of single einsums in a fused schedule: the mapper's answer for an einsum below a shared loop, with
some tensors on chip already and a given free capacity.

Below a shared loop the mapper maps the einsum of one trip. A tensor that other einsums bring in or take away
has no storage node further out than its home level, and its bits there count for the schedule, not for the
nest. The mapper does not know that tiles which are refilled in every trip may be stored twice (double
buffer). If its answer fits all the same, it is the optimum. Otherwise it is asked again for less capacity,
and the first answer remains the lower bound.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import inf, sqrt

from dse.mapper.exact.optimal import names_some_dims, optimal
from dse.mapper.exact.search import search, search_below, supports
from dse.mapping.constraints import Constraints, Factors, Limit
from dse.mapping.nest import Infeasible, Loop, Mapping, Store, role
from dse.mapping.schedule import rename
from dse.mapping.trips import trips_below
from dse.sim.counts.actions import accesses_per_elem
from dse.sim.counts.counts import footprints
from dse.sim.einsum import bounds
from dse.sim.einsum.boundary import ALONE, Boundary
from dse.sim.einsum.cost import node_bits
from dse.sim.einsum.evaluate import ROUNDING_GAP, EinsumCost, Problem, einsum_cost, objective_value
from dse.sim.einsum.limits import broken, tile_bits
from hw.arch import Arch, Level
from workloads.einsum import Einsum, Projection, canonical_key, compulsory_elems

Key = tuple[object, ...]  # of an einsum at a place, without names
# boundary of an einsum in a segment with others, which bring in tensors: no bound of an einsum alone holds
IN_SEGMENT = Boundary(branched=True)
PROOF_NODES = PROOF_BOXES = 20_000  # nodes placed and boxes bounded in a search of `proven_bound`, at most
MIN_PROOFS = 4  # short searches of an einsum, at least, and the share of them that must prove something (1/4)
TRIES = 3  # searches of a nest, each for less capacity than the one before


@dataclass(frozen=True, slots=True)
class Place:
    """Where an einsum stands in a schedule: its shared loops, and which of its tensors are on chip."""

    level: str = ""  # where the tensors below stand (their home); "": there are none
    loops: tuple[tuple[str, int], ...] = ()  # shared loops: rank, as the einsum names it, and tile
    forwarded: frozenset[str] = frozenset()  # tensors between einsums of the segment, tile by tile
    held_whole: frozenset[str] = frozenset()  # tensors held whole, loaded once for all trips
    retained: frozenset[str] = frozenset()  # tensors held whole from their maker to their last reader
    spilled: frozenset[str] = frozenset()  # forwarded tensors that the outermost level gets too
    relaxed: bool = False  # only those limits of rules hold that bounds may take (`Nests.relaxed`)

    def homes(self) -> frozenset[str]:
        """Returns all tensors that have their home at the level: forwarded, held or retained."""
        return self.forwarded | self.held_whole | self.retained


@dataclass(frozen=True, slots=True)
class Nest:
    """The nest of an einsum at a place."""

    mapping: Mapping | None  # None: no nest was found
    bits: int  # that the nest's own storage nodes take at the level of its place
    # no nest at the place costs less, in a unit that adds up over einsums: energy, cycles or the square root
    # of energy x cycles, by objective; inf: no nest fits
    lower_bound: float
    cost: float = inf  # as the search counts it, in the same unit


@dataclass(slots=True)
class Nests:
    """Answers of the mapper by einsum, place and free capacity. Equal einsums are solved once."""

    arch: Arch
    objective: str
    factors: Factors
    constraints: Callable[[Einsum], Constraints]  # returns those of an einsum
    allowed_gap: float  # a search stops at this relative gap
    # by einsum and place: (free bits, einsum, its nest) of each search
    memo: dict[Key, list[tuple[float, Einsum, Nest]]] = field(default_factory=dict)
    lower_bounds: dict[Key, float] = field(default_factory=dict)  # memo of `lower_bound`
    padding_extra: dict[Key, float] = field(default_factory=dict)  # memo of `padding_extra_bound`
    keys: dict[tuple[Einsum, Place], Key] = field(default_factory=dict)  # memo of `_key`
    # by einsum of a trip, which of its tensors are at home at the level, level and free bits: (einsum,
    # answer). Places that differ in shared loops, or in why a tensor is at the level, may have equal trips
    found: dict[tuple[object, ...], tuple[Einsum, EinsumCost | Infeasible]] = field(default_factory=dict)
    # by einsum, boundary and nest: what the evaluator says of a segment's einsum (`plan.price`)
    prices: dict[tuple[Einsum, Boundary, Mapping], EinsumCost | Infeasible] = field(default_factory=dict)
    # by einsum and place: (free bits, lower bound) of each short search (`proven_bound`)
    proven: dict[Key, list[tuple[float, float]]] = field(default_factory=dict)
    # by canonical key of an einsum: how many short searches there were, how many of them proved their cutoff
    proofs: dict[str, tuple[int, int]] = field(default_factory=dict)
    searches: int = 0  # so far
    # of a machine with layouts: the same machine as if layouts cost nothing, for lower bounds
    without_layouts: Nests | None = None
    returning: dict[str, Nests] = field(default_factory=dict)  # memo of `of_returning_sums`, by level
    # by einsum of the workload: its limits of rules, which hold for it together with its shared loops
    # (`limits.broken_below`)
    limits: dict[str, tuple[Limit, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Removes row activations from the prices: below a shared loop a row may stay open from trip to trip,
        and the mapper, which sees one trip, would count it in each.
        """
        if self.arch.models_layout():
            self.without_layouts = Nests(
                self.arch.ideal(), self.objective, self.factors, self.constraints, self.allowed_gap
            )  # there are no rules on machines with layouts
            levels = tuple(
                replace(level, access=replace(level.access, row_pj=0.0, row_cycles=0.0))
                if level.access
                else level
                for level in self.arch.levels
            )
            self.arch, self.allowed_gap = replace(self.arch, levels=levels), inf

    def of_returning_sums(self, level: Level) -> Nests:
        """Returns answers for a machine on which the level skips no first read of a result: nests for trips
        that go on with sums of the trips before.
        """
        if level.name not in self.returning:
            levels = [
                replace(one, skip_first_read=False) if one == level else one for one in self.arch.levels
            ]
            self.returning[level.name] = self.on(replace(self.arch, levels=tuple(levels)))
        return self.returning[level.name]

    def on(self, arch: Arch) -> Nests:
        """Returns answers of the same mapper for another machine."""
        return Nests(
            arch, self.objective, self.factors, self.constraints, self.allowed_gap, limits=self.limits
        )

    def limits_key(self, e: Einsum, limits: Sequence[Limit] | None = None) -> tuple[object, ...]:
        """Returns limits of an einsum, or of a part of it, without names. None: all that it has."""
        tensors, ranks = [p.tensor for p in e.tensors()], e.ranks()
        return tuple(
            (one.kind, one.at, names.index(one.name) if one.name in names else -1, one.least, one.most)
            for one in (self.limits.get(e.name, ()) if limits is None else limits)
            for names in [ranks if one.kind in ("spatial", "temporal") else tensors]
        )

    def may_hold(
        self, e: Einsum, tensor: str, level: Level, at_outer: bool, loops: Collection[tuple[str, int]] = ()
    ) -> bool:
        """True if rules let a tensor of an einsum stand at a level below shared loops (rank, tile), and at no
        level further out but the outermost one. at_outer: it stands there, too.
        """
        order, store = self.arch.level_index(), Store(level.name, tensor)
        own = [one for one in self.limits.get(e.name, ()) if one.name == tensor]
        for one in own:
            if one.kind == "bypass" and one.at == level.name:
                return False
            if one.kind == "keep" and order[one.at] < order[level.name] and (order[one.at] or not at_outer):
                return False
            if one.kind == "tile" and one.at == level.name:
                nest = Mapping((*(Loop(rank, tile) for rank, tile in loops), store))
                if tile_bits(nest, e, self.arch, one.at, tensor) > one.most:
                    return False
        return True

    def _limits(self, e: Einsum, place: Place) -> tuple[Limit, ...]:
        """Returns the limits of the nest of an einsum at a place. Shared loops are trips of the outermost
        level, which leave fewer to the nest; where tensors stand that others bring in, and in which tiles, is
        limited there (`may_hold`).
        """
        own, sizes, found = self.limits.get(e.name, ()), e.sizes(), list[Limit]()
        shared = {rank: -(-sizes[rank] // tile) for rank, tile in place.loops}
        homes, order = place.homes(), self.arch.level_index()
        for one in own:
            if place.relaxed and self._moves(one):
                continue
            if one.kind in ("keep", "tile") and one.name in homes and order[one.at] <= order[place.level]:
                continue
            if one.kind == "temporal" and one.at == self.arch.levels[0].name:
                n = shared.get(one.name, 1)
                one = replace(one, least=-(-one.least // n), most=one.most // n)
            found.append(one)
        return tuple(found)

    def _moves(self, limit: Limit) -> bool:
        """True if a nest may keep a limit below shared loops and break it if it begins with these loops
        itself: one of trips at the outermost level, where shared loops are, or at those where einsums share
        tensors, which the loops may then cut.
        """
        outside = min((f.outside for f in self.arch.fanouts), default=len(self.arch.levels))
        return limit.kind == "temporal" and self.arch.level_index()[limit.at] < outside

    def relaxed(self, e: Einsum, place: Place) -> Place:
        """Returns the place with those limits alone that bounds may take, of nests in any tiles."""
        return replace(place, relaxed=any(map(self._moves, self.limits.get(e.name, ()))))

    def rules(self, e: Einsum, _: Arch) -> Constraints:
        """Returns the limits of an einsum, as constraints."""
        return Constraints(limits=self.limits.get(e.name, ()))

    def why_none(self, e: Einsum) -> Infeasible | None:
        """Returns why rules leave no nest of an einsum alone; None: they leave one, or there are none."""
        if not self.limits.get(e.name):
            return None
        place = Place()
        constraints = self._constraints(e, place, self._limits(e, place))
        found = optimal(self._problem(e, place, self.arch), self.factors, constraints)
        return found if isinstance(found, Infeasible) else None

    def cached_bound(self, e: Einsum, place: Place, free_bits: float) -> float:
        """Returns the highest lower bound among answers for at least as many free bits. It holds for fewer
        bits too; 0.0 without such an answer.
        """
        answered = ((bits, nest.lower_bound) for bits, _, nest in self._answers(e, place))
        proven = self.proven.get(self._key(e, place), ())
        return max((bound for bits, bound in (*answered, *proven) if free_bits <= bits), default=0.0)

    def proven_bound(self, e: Einsum, place: Place, free_bits: float, cutoff: float) -> float:
        """Returns a lower bound of nests at a place: `cutoff` where a short search proves that none costs
        less (`search_below`; it leaves out at once what a search for the best nest bounds one by one), else
        what is known. Einsums whose short searches mostly prove nothing are not asked again.
        """
        known = self.cached_bound(e, place, free_bits)
        answered = self._answered(e, place, free_bits) is not None
        if known >= cutoff or answered or cutoff == inf or self.objective == "edp" or self.without_layouts:
            return known
        v = next((v for v, level in enumerate(self.arch.levels) if level.name == place.level), 0)
        (trip, trip_count), *other_trips = trips_below(e, place.loops)
        others = self._others(e, place, other_trips)
        constraints = self._constraints(trip, place, self._limits(e, place))
        tried, succeeded = self.proofs.get(canonical_key(e), (0, 0))
        hopeless = tried >= MIN_PROOFS and succeeded * MIN_PROOFS < tried
        if cutoff <= others or hopeless or names_some_dims(constraints, self.arch):
            return known
        self.searches += 1
        problem = self._problem(trip, place, self._with_capacity(place, v, free_bits))
        goal, proofs = (cutoff - others) / trip_count, self.proven.setdefault(self._key(e, place), [])
        found = search_below(problem, self.factors, constraints, goal, 1.0, PROOF_NODES, PROOF_BOXES)
        bound = cutoff if found.lower_bound >= goal else trip_count * found.lower_bound + others
        proofs.append((free_bits, bound))
        self.proofs[canonical_key(e)] = tried + 1, succeeded + (bound >= cutoff)
        return max(known, bound)

    def _answers(self, e: Einsum, place: Place) -> list[tuple[float, Einsum, Nest]]:
        """Returns all answers at a place: (free bits, einsum, nest)."""
        return self.memo.setdefault(self._key(e, place), [])

    def _key(self, e: Einsum, place: Place) -> Key:
        """Returns a key that is equal for equal einsums at equal places, whatever their names."""
        if (e, place) not in self.keys:
            tensors = [p.tensor for p in (e.output, *e.inputs)]
            names = [
                tuple(tensors.index(t) for t in tensors if t in group)
                for group in (place.forwarded, place.held_whole, place.retained, place.spilled)
            ]
            self.keys[e, place] = (
                canonical_key(e),
                place.level,
                tuple((e.ranks().index(rank), tile) for rank, tile in place.loops),
                *names,
                place.relaxed,
                self.limits_key(e),
            )
        return self.keys[e, place]

    def best(self, e: Einsum, place: Place, free_bits: float) -> Nest:
        """Returns the nest of an einsum at a place whose own storage nodes take at most `free_bits` bits of
        the level. Earlier answers are asked first (`_answered`), and from the second question on the answer
        for all bits of the level.
        """
        answers = self._answers(e, place)
        whole_bits = self._capacity(place)
        asked = [free_bits] if not answers or free_bits >= whole_bits else [whole_bits, free_bits]
        for bits in asked:
            if nest := self._answered(e, place, free_bits):
                return nest
            if all(bits != searched_bits for searched_bits, _, _ in answers):
                answers.append((bits, e, self._solve(e, place, bits)))
        nest = self._answered(e, place, free_bits)
        assert nest
        return nest

    def _capacity(self, place: Place) -> float:
        """Returns the bits of the level of a place."""
        of_level = (one.capacity_bits or inf for one in self.arch.levels if one.name == place.level)
        return next(of_level, inf)

    def _answered(self, e: Einsum, place: Place, free_bits: float) -> Nest | None:
        """Returns the nest that earlier searches have for `free_bits` bits; None if they leave it open.

        Fewer bits cost no less: an answer for more bits holds if it fits, or if there is none. An answer for
        fewer bits holds if it costs no more, but for the allowed gap, than the lower bound for more bits.
        """
        answers = self._answers(e, place)
        more = [(bits, solved, nest) for bits, solved, nest in answers if free_bits <= bits]
        if any(nest.lower_bound == inf for _, _, nest in more):
            return Nest(None, 0, inf)
        searched = any(bits == free_bits for bits, _, _ in more)
        fitting = [one for one in answers if one[2].mapping and one[2].bits <= free_bits]
        if not fitting:
            return next((nest for bits, _, nest in more if bits == free_bits), None)
        _, solved, nest = min(fitting, key=lambda one: one[2].cost)
        bound = max((nest.lower_bound for _, _, nest in more), default=0.0)
        gap = max(self.allowed_gap if self.allowed_gap < inf else 0.0, ROUNDING_GAP)
        holds = searched or any(bits >= free_bits for bits, _, _ in fitting) or nest.cost <= bound * (1 + gap)
        if not holds or nest.mapping is None:
            return None
        return replace(nest, mapping=rename(nest.mapping, solved, e), lower_bound=bound)

    def _solve(self, e: Einsum, place: Place, free_bits: float) -> Nest:
        """Returns the nest of an einsum at a place, searched (see the top of this module)."""
        level_index = next(
            (level_index for level_index, level in enumerate(self.arch.levels) if level.name == place.level),
            0,
        )
        (trip, trip_count), *other_trips = trips_below(e, place.loops)
        lower_bound, others, searched_bits, limits = 0.0, 0.0, free_bits, self._limits(e, place)
        for attempt in range(TRIES):
            found = self._search(trip, place, level_index, searched_bits, limits)
            if not isinstance(found, EinsumCost):
                # unit nodes: the search ran out of its budget, so a nest may exist
                return Nest(None, 0, lower_bound if attempt or found.unit == "nodes" else inf)
            if not attempt:
                others = self._others(e, place, other_trips)
                lower_bound = trip_count * self._additive_value(found, 1 + found.optimality_gap) + others
            cost = trip_count * self._additive_value(found) + others
            # the schedule has the nodes of tensors that have their home at the level
            trimmed = replace(
                found.mapping,
                nodes=tuple(
                    n
                    for n in found.mapping.nodes
                    if not (isinstance(n, Store) and n.tensor in place.homes() and n.level == place.level)
                ),
            )
            at_home = (Store(place.level, t) for t in sorted(place.homes()))
            if limits and broken(
                Constraints(limits=limits),
                replace(trimmed, nodes=(*at_home, *trimmed.nodes)),
                trip,
                self.arch,
            ):  # a local search moved a loop above a tensor that others bring in
                return Nest(None, 0, lower_bound)
            bits_by_level = own_bits(e, self.arch, place, trimmed)
            if bits_by_level.get(place.level, 0) <= free_bits and all(
                level.capacity_bits is None or bits_by_level.get(level.name, 0) <= level.capacity_bits
                for level in self.arch.levels
                if level.name != place.level
            ):
                return Nest(trimmed, bits_by_level.get(place.level, 0), lower_bound, cost)
            searched_bits *= min(free_bits / max(bits_by_level.get(place.level, 0), 1), 0.9)
        return Nest(None, 0, lower_bound)

    def _search(
        self, e: Einsum, place: Place, v: int, free_bits: float, limits: tuple[Limit, ...]
    ) -> EinsumCost | Infeasible:
        """Returns the mapper's answer for one trip. v: number of the level that has `free_bits` left."""
        problem = self._problem(e, place, self.arch)
        names = [p.tensor for p in (e.output, *e.inputs)]
        homes = tuple(names.index(t) for t in names if t in place.homes())
        at = v if place.level else 0
        key = canonical_key(e), homes, problem.boundary is ALONE, at, free_bits, self.limits_key(e, limits)
        if key in self.found:
            solved_einsum, found = self.found[key]
            if isinstance(found, Infeasible) or solved_einsum is e:
                return found
            return replace(found, mapping=rename(found.mapping, solved_einsum, e))
        self.searches += 1
        problem = self._problem(e, place, self._with_capacity(place, v, free_bits))
        constraints = self._constraints(e, place, limits)
        answer = optimal(problem, self.factors, constraints, allowed_gap=self.allowed_gap)
        found = answer if isinstance(answer, Infeasible) else answer[0]
        self.found[key] = e, found
        return found

    def _with_capacity(self, place: Place, v: int, free_bits: float) -> Arch:
        """Returns the machine with `free_bits` bits at the level of a place. v: its number"""
        levels = [
            replace(level, capacity_bits=int(free_bits)) if i == v and free_bits < inf else level
            for i, level in enumerate(self.arch.levels)
        ]
        return replace(self.arch, levels=tuple(levels)) if place.level else self.arch

    def _others(self, e: Einsum, place: Place, other_trips: Sequence[tuple[Einsum, int]]) -> float:
        """Returns a lower bound of what a nest costs besides its first kind of trips."""
        return sum(n * self._trip_bound(one, place) for one, n in other_trips) + self.pj_once(e, place)

    def _problem(self, e: Einsum, place: Place, arch: Arch) -> Problem:
        return Problem(arch, e, self.objective, IN_SEGMENT if place.homes() or place.loops else ALONE)

    def _constraints(self, e: Einsum, place: Place, limits: tuple[Limit, ...]) -> Constraints:
        homes = tuple(sorted((t, place.level) for t in place.homes()))
        return replace(self.constraints(e), homes=homes, limits=limits)

    def _additive_value(self, found: EinsumCost, divisor: float = 1.0) -> float:
        value = objective_value(self.objective, found.energy_pj, found.latency_cycles) / divisor
        return sqrt(value) if self.objective == "edp" else value

    def padding_extra_bound(self, e: Einsum, place: Place) -> float:
        """Returns what a search of the trips that padding cuts adds to the lower bound of a nest; 0.0 for
        objectives other than energy. The search has the whole capacity of the level, and leaves leakage out,
        since cycles of these trips may overlap with those of others.
        """
        key = self._key(e, place)
        if key not in self.padding_extra:
            other_trips = trips_below(e, place.loops)[1:] if self.objective == "energy" else ()
            self.padding_extra[key] = sum(
                n
                * max(self._searched_trip_bound(other_trip, place) - self._trip_bound(other_trip, place), 0.0)
                for other_trip, n in other_trips
            )
        return self.padding_extra[key]

    def _searched_trip_bound(self, trip: Einsum, place: Place) -> float:
        constraints = self._constraints(trip, place, ())  # a nest that keeps rules is cut by padding here
        if not supports(trip, self.factors) or names_some_dims(constraints, self.arch):
            return 0.0
        self.searches += 1
        found = search(self._problem(trip, place, self.arch.without("leakage")), self.factors, constraints)
        return found.lower_bound if found.mapping else 0.0

    def any_nest_bound(self, e: Einsum, place: Place) -> float:
        """Returns a lower bound on the energy of nests of an einsum, in whatever tiles."""
        return self._trip_bound(e, place)

    def _trip_bound(self, trip: Einsum, place: Place) -> float:
        """Returns a lower bound on the energy of a trip without a search; 0.0 for other objectives."""
        return (
            self._compulsory_cost(trip, place, self.arch.without("leakage"))[0]
            if self.objective == "energy"
            else 0.0
        )

    def _compulsory_cost(self, trip: Einsum, place: Place, arch: Arch) -> tuple[float, float]:
        """Returns lower bounds on energy and cycles of a trip: its operations, and one move of each word from
        or to main memory. Tensors of `place.homes()`, which other einsums bring in, are not counted.
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
                    * accesses_per_elem(outer, p.bits or arch.word_bits)
                    * (0 if outer.bypass else pj)
                )
        return energy, cycles

    def pj_once(self, e: Einsum, place: Place) -> float:
        """Returns the energy (pJ) of moves that occur once for all trips: held tensors in, spilled ones out.
        0.0 for objectives other than energy.
        """
        if self.objective != "energy":
            return 0.0
        outer = self.arch.levels[0]
        level = next((one for one in self.arch.levels if one.name == place.level), self.arch.levels[0])
        total = 0.0
        for p in e.tensors():
            words, bits = whole_words(p, e.sizes(), self.arch.word_bits), p.bits or self.arch.word_bits
            if p.tensor in place.held_whole:
                total += words * (
                    accesses_per_elem(outer, bits) * outer.read_pj
                    + accesses_per_elem(level, bits) * level.write_pj
                )
            elif p is e.output and p.tensor in place.spilled:
                total += words * (
                    accesses_per_elem(outer, bits) * outer.write_pj
                    + accesses_per_elem(level, bits) * level.read_pj
                )
        return total

    def lower_bound(self, e: Einsum, place: Place) -> float:
        """Returns a lower bound on the cost of nests at a place with any free capacity, in the unit of
        `Nest.lower_bound`.
        """
        if self.without_layouts:
            return self.without_layouts.lower_bound(e, place)
        key = self._key(e, place)
        if key not in self.lower_bounds:
            self.lower_bounds[key] = self._lower_bound(e, place)
        return self.lower_bounds[key]

    def _lower_bound(self, e: Einsum, place: Place) -> float:
        """Returns the highest of three lower bounds that need no nest below the shared loop:

        compulsory: operations, and compulsory words at the outermost level.
        `_alone_bound` - forward_cost: the cost of the einsum without a shared loop, minus the most that
            moving its forwarded tensors costs. Given storage nodes of these tensors at the outermost level,
            each nest below the shared loop is also a nest of the einsum alone, in no more capacity.
        large_level: the same with a level that holds all tensors, plus the cost of inputs that are fetched
            again in every trip.
        """
        (trip, trip_count), *_ = trips_below(e, place.loops)
        energy, cycles = self._compulsory_cost(trip, place, self.arch)
        if self.objective == "edp":
            return trip_count * sqrt(energy * cycles)
        compulsory = trip_count * objective_value(self.objective, energy, cycles) + self.pj_once(e, place)
        level = next(level for level in self.arch.levels if level.name == place.level)
        forward_cost = sum(
            self._move_cost(e, p, place.level)
            for p in e.tensors()
            if p.tensor in place.forwarded and not (p is e.output and p.tensor in place.spilled)
        )
        refetch_cost = sum(
            self._refetch_cost(p, trip, trip_count, level)
            for p in e.inputs
            if p.tensor not in place.homes() and not {rank for rank, _ in place.loops} & p.ranks()
        )
        # this call of `_alone_bound` comes first: its nest mostly fits a smaller level too, and answers the
        # next
        large_level = (
            self._alone_bound(e, place, level, enlarged=True) - forward_cost + refetch_cost
            if refetch_cost > 0
            else 0.0
        )
        return max(compulsory, self._alone_bound(e, place, level, enlarged=False) - forward_cost, large_level)

    def unfused_bound(self, e: Einsum, place: Place, moved_by_others: Collection[str]) -> float:
        """Returns a lower bound on the cost of an einsum anywhere in a segment. Its traffic at the outermost
        level is counted, except that of the tensors `moved_by_others`, which other einsums bring in or take
        away.

        The bound is the cost of the einsum alone, minus the most that moving these tensors costs. It holds
        since each nest of the einsum in a segment, shared loops included, becomes a nest of the einsum alone
        once these tensors get storage nodes at the outermost level, and needs no more capacity.
        """
        level = next(level for level in self.arch.levels if level.name == place.level)
        move_cost = sum(
            self._move_cost(e, p, place.level) for p in e.tensors() if p.tensor in moved_by_others
        )
        return self._alone_bound(e, place, level, enlarged=False) - move_cost

    def _alone_bound(self, e: Einsum, place: Place, level: Level, enlarged: bool) -> float:
        """Returns a lower bound on the cost of an einsum without a shared loop. enlarged: a level smaller
        than all tensors of the einsum together is enlarged to hold them.
        """
        capacity = level.capacity_bits or inf
        all_tensor_bits = 2 * sum(p.stored_bits(self.arch.word_bits) for p in e.tensors())
        if enlarged and capacity < all_tensor_bits:
            alone = self.relaxed(e, Place(place.level, retained=place.retained))
            return self.best(e, alone, all_tensor_bits).lower_bound
        alone = self.relaxed(e, Place(place.level, retained=place.retained) if place.retained else Place())
        return self.best(e, alone, capacity if place.retained else inf).lower_bound

    def _refetch_cost(self, p: Projection, trip: Einsum, trip_count: int, level: Level) -> float:
        """Returns a lower bound on what it costs more to load an input in every trip than to load it once,
        whole, to the level and read it there in each trip.
        """
        if (
            self.objective != "energy"
            or self.arch.levels[0].bypass
            or role(trip, p.tensor) not in level.may_keep
            or not self.may_hold(trip, p.tensor, level, at_outer=True)
        ):
            return 0.0
        outer = self.arch.levels[0]
        bits = p.bits or self.arch.word_bits
        words = bounds.words(p, trip, self.arch.word_bits)
        outer_accesses, level_accesses = accesses_per_elem(outer, bits), accesses_per_elem(level, bits)
        leak = (1 if self.arch.overlap == "free" else 2) * self.arch.leak_mw() / self.arch.clock_ghz
        outer_rate, rate = outer.rates()[0], level.rates()[0]
        saved_pj = outer_accesses * outer.read_pj - level_accesses * (level.read_pj + leak / rate)
        load_pj = outer_accesses * (outer.read_pj + leak / outer_rate) + level_accesses * (
            level.write_pj + leak / rate
        )
        return (
            words * trip_count * max(saved_pj, 0.0)
            - whole_words(p, trip.sizes(), self.arch.word_bits) * load_pj
        )

    def _move_cost(self, e: Einsum, p: Projection, level_name: str) -> float:
        """Returns an upper bound on the cost of moving a tensor once between the outermost level and level
        `level_name`. Its cycles count twice where fills do not overlap with work.
        """
        outer, level = (
            self.arch.levels[0],
            next(level for level in self.arch.levels if level.name == level_name),
        )
        words, bits = p.stored_elems(), p.bits or self.arch.word_bits
        outer_accesses, level_accesses = (
            words * accesses_per_elem(outer, bits),
            words * accesses_per_elem(level, bits),
        )
        cycles = (outer_accesses / outer.rates()[0] + level_accesses / level.rates()[0]) * (
            1 if self.arch.overlap == "free" else 2
        )
        pj = (
            outer_accesses * outer.write_pj + level_accesses * level.read_pj
            if p is e.output
            else outer_accesses * outer.read_pj + level_accesses * level.write_pj
        )
        return (
            cycles if self.objective == "latency" else pj + cycles * self.arch.leak_mw() / self.arch.clock_ghz
        )


def whole_words(p: Projection, sizes: dict[str, int], word_bits: int) -> float:
    """Returns the words that an einsum uses of a tensor, as one tile; a word is as wide as an element.

    sizes: of the einsum's ranks
    """
    elems, (elem_words, row_words) = compulsory_elems(p, sizes), p.compressed_words(word_bits)
    return (
        elems
        if p.format == "dense"
        else elem_words * elems + row_words * compulsory_elems(replace(p, dims=p.dims[:-1]), sizes)
    )


def outer_nodes(e: Einsum, place: Place) -> tuple[Loop | Store, ...]:
    """Returns the shared nodes of a segment that concern a member: its own tensors and the shared loops."""
    order = [p.tensor for p in e.tensors()]
    return (
        *(Store(place.level, t) for t in order if t in place.held_whole),
        *(Loop(rank, tile) for rank, tile in place.loops),
        *(Store(place.level, t) for t in order if t in place.forwarded),
    )


def own_bits(e: Einsum, arch: Arch, place: Place, nest: Mapping) -> dict[str, int]:
    """Returns the bits per level that an einsum's own storage nodes take at a place."""
    outer = (*(Store(place.level, t) for t in sorted(place.retained)), *outer_nodes(e, place))
    full_nest = Mapping((*outer, *nest.nodes), fork=len(outer) if place.loops else 0)
    rows = footprints(full_nest, e, arch)[sum(isinstance(n, Store) for n in outer) :]
    levels, found = {level.name: level for level in arch.levels}, dict[str, int]()
    for row in rows:
        found[row.level] = found.get(row.level, 0) + node_bits(row, levels[row.level], e, arch)
    return found


def retained_nest(nest: Mapping, arch: Arch, place: Place) -> Mapping:
    """Returns a nest with storage nodes of retained tensors added at the outermost level and at their home.
    The evaluator uses these nodes only for the share of a tensor that is not retained.
    """
    nodes = [Store(level, t) for t in sorted(place.retained) for level in (arch.levels[0].name, place.level)]
    return replace(nest, nodes=(*nodes, *nest.nodes))


def retained_boundary(e: Einsum, place: Place) -> Boundary:
    """Returns the boundary of an einsum alone in its segment, with the retained tensors of its place."""
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
    """Returns the evaluator's price of an einsum alone in its segment, with the retained tensors of its
    place. Raises ValueError if they do not fit.
    """
    cost = einsum_cost(
        Problem(arch, e, objective, retained_boundary(e, place)), retained_nest(nest, arch, place)
    )
    if not isinstance(cost, EinsumCost):
        raise ValueError(str(cost))
    return cost
