"""Mapping and layouts of one einsum chosen together, on machines whose levels describe lines, row buffers or
banks.

The search (search.py) counts whole lines: whatever the layouts are, all that PEs ask for at once takes whole
lines. So it finds mappings whose tiles fill lines, and its lower bound holds for every mapping in any
layouts. The cost of a mapping in given layouts is counted (dse/sim/levels/transfer.py) tensor by tensor,
since what a tensor moves depends only on the loops around its own nodes and on its own layout.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Mapping as Dict
from dataclasses import dataclass, field, replace
from itertools import product
from math import inf, log, prod
from typing import NamedTuple

from dse.layout.address import Layout, row_major
from dse.layout.text import show
from dse.mapper.exact.layout_candidates import layouts
from dse.mapper.exact.optimal import names_some_dims, none_fits, optimal, sort_key
from dse.mapper.exact.search import BUDGET, NO_SPREADS, Exposed, Spread, search_below, supports
from dse.mapping.constraints import FREE, Constraints, Factors, violations
from dse.mapping.nest import Infeasible, Loop, Mapping, Store, TensorLayout, may_keep
from dse.mapping.searched import Mappings, mappings_of
from dse.sim.counts.actions import Delay, Key
from dse.sim.counts.counts import Counted, Footprint, footprints
from dse.sim.counts.terms import Link, resting_position, sink, slides
from dse.sim.einsum import cost
from dse.sim.einsum.boundary import counted, network_traffic, node_footprints, whole_nest
from dse.sim.einsum.cost import overflow
from dse.sim.einsum.evaluate import (
    ROUNDING_GAP,
    EinsumCost,
    Problem,
    einsum_cost,
    objective_value,
    relative_gap,
)
from dse.sim.fronts import undominated
from dse.sim.levels import transfer
from dse.sim.levels.network import Uncounted
from dse.sim.levels.transfer import Transfer
from dse.sim.schedule import outermost
from hw.arch import Arch
from workloads.einsum import Einsum

# after a layout that adds at most this share of energy and of cycles, no other one is tried
NEGLIGIBLE = 1e-3
# storage nodes placed, and boxes of spatial unrollings bounded, at most: by each search with lines in view,
# and by those for mappings below a known cost
LINES_BUDGET, LINES_CHOICES = 100_000, 100_000
FIRST_BUDGET = 400_000  # storage nodes placed by the first of them
CANDIDATE_BUDGET, CANDIDATE_CHOICES = 20_000, 20_000
# ways to count stalls: the first one bounds more closely, the other one gets further within its budget
STALLS: tuple[Exposed, ...] = ("exchanges", "least")
MAX_LAYOUT_SETS = 64  # sets of layouts (one layout per `TensorAt`) that are compared, at most
TensorAt = tuple[str, str]  # (level, tensor)


@dataclass(slots=True)
class LayoutPricing:
    """A mapping on a machine, and what its tensors move in the layouts asked for so far."""

    problem: Problem
    mapping: Mapping
    nest: Mapping  # the mapping below the loops and nodes that it shares with other einsums
    nest_counts: Counted  # that nest, counted
    moving_keys: frozenset[Key]  # the (level, tensor, action) that move anything
    links: dict[TensorAt, Link]  # the link that moves the tensor out of the level and back
    footprints: dict[TensorAt, Footprint]  # of tensors at levels with a capacity
    free_bits: dict[str, int]  # what all footprints leave of these levels
    hops_pj: float
    # results of `moves`
    transfers: dict[tuple[TensorAt, Layout], dict[Key, Transfer]] = field(default_factory=dict)
    prices: dict[tuple[tuple[Key, Delay], ...], cost.Price] = field(default_factory=dict)  # by delays

    def moves(self, place: TensorAt, layout: Layout) -> dict[Key, Transfer]:
        """What a tensor moves at a level in a layout."""
        if (place, layout) not in self.transfers:
            found = transfer.of_layout(self.nest_counts, self.links[place], self.problem.arch, layout)
            self.transfers[place, layout] = {
                key: one for key, one in found.items() if key in self.moving_keys
            }
        return self.transfers[place, layout]

    def cost(self, chosen: Dict[TensorAt, Layout]) -> tuple[float, float]:
        """(energy, cycles) in layouts, one per place."""
        e, arch = self.problem.einsum, self.problem.arch
        moved = {
            key: one for place, layout in chosen.items() for key, one in self.moves(place, layout).items()
        }
        delays = transfer.delays(moved, e, arch)
        own = tuple(delays.items())
        if own not in self.prices:
            one = self.nest_counts
            self.prices[own] = cost.price(
                one.rows, e, arch, one.timed, one.restart_at, one.moves_more, delays=delays
            )
        p = self.prices[own]
        return p.energy_pj + self.hops_pj + sum(
            part[-1] for part in transfer.layout_energy(moved, arch)
        ), p.latency_cycles

    def cost_beyond_elems(self, place: TensorAt, layout: Layout) -> tuple[float, float]:
        """(energy, port cycles) that a layout costs beyond those of the elements that it moves. They do not
        depend on the layouts of other tensors.
        """
        arch, moved = self.problem.arch, self.moves(place, layout)
        level = next(level for level in arch.levels if level.name == place[0])
        energy = sum(part[-1] for part in transfer.layout_energy(moved, arch))
        return energy, sum(one.added_cycles(level) for one in moved.values())

    def more_bits(self, place: TensorAt, layout: Layout) -> int:
        """The bits that a tensor takes in a layout beyond its footprint. Row-major takes none: of a sliding
        window, or beside padding, it stores only the part that counts as footprint, whereas other layouts
        store the complete tile.
        """
        if place not in self.footprints or layout.stored_elems() <= self.footprints[place].elems:
            return 0
        link, e, arch, own = self.links[place], self.problem.einsum, self.problem.arch, self.footprints[place]
        if layout == row_major(transfer.dim_names(link.tensor), transfer.shape_at(self.nest, link, e, arch)):
            return 0
        level = next(level for level in arch.levels if level.name == place[0])
        whole = replace(own, elems=layout.stored_elems())
        return cost.node_bits(whole, level, e, arch) - cost.node_bits(own, level, e, arch)

    def fits(self, chosen: Dict[TensorAt, Layout]) -> bool:
        """Whether tensors fit beside each other in these layouts."""
        more = dict.fromkeys(self.free_bits, 0)
        for place, layout in chosen.items():
            if place in self.footprints:
                more[place[0]] += self.more_bits(place, layout)
        return all(more[level] <= max(free, 0) for level, free in self.free_bits.items())

    def candidates(self, place: TensorAt) -> list[Layout]:
        """The candidate layouts that fit beside the footprints of other tensors."""
        link, e, arch = self.links[place], self.problem.einsum, self.problem.arch
        return [one for one in layouts(self.nest, link, e, arch) if self.fits({place: one})]

    def front(self, place: TensorAt, candidates: Sequence[Layout]) -> list[Layout]:
        """The candidates that no other one dominates in energy and cycles, cheapest first. After the first
        one that costs next to nothing (`NEGLIGIBLE`), no more candidates are looked at.
        """
        rows, (energy, cycles) = list[tuple[float, float, int]](), self.cost({})
        for i, layout in enumerate(candidates):
            rows.append((*self.cost_beyond_elems(place, layout), i))
            if rows[-1][0] <= NEGLIGIBLE * energy and rows[-1][1] <= NEGLIGIBLE * cycles:
                break
        rows.sort()
        return [candidates[rows[n][2]] for n in undominated([row[:2] for row in rows])]


def layout_pricing(problem: Problem, mapping: Mapping) -> LayoutPricing:
    """A mapping with everything about its cost that does not depend on layouts, counted once per mapping.

    `links` has the (level, tensor) pairs that move data at a level with lines, row buffers or banks.
    """
    e, arch, boundary = problem.einsum, problem.arch, problem.boundary
    mapping = replace(mapping, layouts=())
    nest = whole_nest(boundary, mapping)
    counts = counted(boundary, nest, e, arch)
    with_access = {level.name for level in arch.levels if level.access}
    moved = {(row.level, row.tensor) for row in counts.rows}
    places = {
        place: link
        for link in counts.sums.formulas.links
        for place in [(link.parent.level, link.tensor.tensor)]
        if place[0] in with_access and place in moved
    }
    hops = sum(way.energy_pj for way in network_traffic(boundary, nest, counts.sums, arch))
    held, others = node_footprints(boundary, nest, e, arch), dict(boundary.reserved_bits)
    free_bits = {
        level.name: level.capacity_bits - cost.occupied_bits(held, level, e, arch) - others.get(level.name, 0)
        for level in arch.levels
        if level.capacity_bits is not None
    }
    return LayoutPricing(
        problem,
        mapping,
        nest,
        counts,
        frozenset(row.key for row in counts.rows),
        places,
        {(f.level, f.tensor): f for f in held if f.level in free_bits},
        free_bits,
        hops,
    )


def best_layouts(
    one: LayoutPricing, fixed: Dict[TensorAt, Layout]
) -> tuple[float, float, dict[TensorAt, Layout]]:
    """(energy, cycles, layouts) of a mapping in its best layouts. fixed: layouts that are given.

    What layouts add to the energy, and to the cycles of a port, are sums over tensors; so the best set takes
    each layout from the front of its place. Fronts are shortened until there are at most
    `MAX_LAYOUT_SETS` sets. Where no set of these fits, layouts take no room beyond the footprints.
    """
    found = _best_of_fronts(one, fixed, True) or _best_of_fronts(one, fixed, False)
    assert found
    return found


def _best_of_fronts(
    one: LayoutPricing, fixed: Dict[TensorAt, Layout], may_grow: bool
) -> tuple[float, float, dict[TensorAt, Layout]] | None:
    """`best_layouts` of the fronts of all places; None if no set of layouts fits. may_grow: whether layouts
    that are not given may take more room than the footprints.
    """
    objective = one.problem.objective
    fronts = {
        place: [fixed[place]]
        if place in fixed
        else one.front(
            place, [own for own in one.candidates(place) if may_grow or not one.more_bits(place, own)]
        )
        for place in one.links
    }
    for max_layouts in (8, 2, 1):
        if prod(map(len, fronts.values())) > MAX_LAYOUT_SETS:
            fronts = {
                place: choice[-max_layouts:] if objective == "latency" else choice[:max_layouts]
                for place, choice in fronts.items()
            }
    sets = [dict(zip(fronts, choice, strict=True)) for choice in product(*fronts.values())]
    found = [
        (*one.cost(chosen), i, chosen)
        for i, chosen in enumerate(sets)
        if one.fits({at: own for at, own in chosen.items() if at not in fixed})
    ]
    if not found:
        return None
    energy, cycles, _, chosen = min(found, key=lambda row: (objective_value(objective, *row[:2]), *row[:3]))
    return energy, cycles, chosen


@outermost.mapper
def layout_aware(
    problem: Problem,
    factors: Factors = "imperfect_spatial",
    constraints: Constraints = FREE,
    allowed_gap: float = 0.0,
    interface: frozenset[str] = frozenset(),
) -> list[EinsumCost] | Infeasible:
    """The best solution that was found, alone in a list: a mapping with the layouts that are not row-major.
    Its certificate covers all mappings of the space in all layouts.

    interface: tensors that must lie row-major at the outermost level.

    These mappings are priced, each in its best layouts, while none is within `allowed_gap` of the lower
    bound; some searches go below the least cost of those before, which leaves out most of the space:

    1. the best ones on the assumption that lines are filled, by several ways to count stalls (`search`);
    2. the best one if, besides, elements of interface tensors that lie about a line apart share no line;
    3. the one with the least energy: row activations take time that the search does not see, and fewer lines
       have fewer of them;
    4. the best ones that stage all tensors in a level on chip, and the fastest of these;
    5. the best ones where layouts cost nothing.
    """
    found = priced_mappings(problem, factors, constraints, allowed_gap, interface)
    if isinstance(found, Infeasible):
        return found
    best = min(found.costs, key=lambda one: sort_key(problem, one))
    return [with_certificate(best, problem.objective, found.lower_bound, found.visited, found.space)]


@dataclass(frozen=True, slots=True)
class PricedMappings:
    """Mappings, and the cost of each in its best layouts."""

    mappings: tuple[LayoutPricing, ...]
    costs: tuple[EinsumCost, ...]
    lower_bound: float  # on the objective of any mapping in any layouts
    visited: int
    space: Mappings


class _LineSearch(NamedTuple):
    """A search with lines in view (`search.search_below`)."""

    objective: str
    constraints: Constraints
    exposed: Exposed = "exchanges"
    spread: Dict[str, Spread] = NO_SPREADS
    is_below: bool = False  # whether below the least cost that is known


@outermost.mapper
def priced_mappings(
    problem: Problem,
    factors: Factors,
    constraints: Constraints,
    allowed_gap: float,
    interface: frozenset[str],
) -> PricedMappings | Infeasible:
    """All mappings that `layout_aware` prices, with their costs. With imperfect temporal factors they include
    mappings found with imperfect spatial factors alone, which are part of the same space.
    """
    e, arch = problem.einsum, problem.arch
    priced: dict[Mapping, tuple[LayoutPricing, EinsumCost]] = {}
    bound, visited, space = 0.0, 0, mappings_of(factors, arch, constraints)
    uncounted = list[Uncounted]()
    spread = interface_spread(e, arch, interface)
    searchable = "imperfect_spatial" if factors == "imperfect" else factors

    def costs() -> Iterator[tuple[float, float]]:
        return ((one.energy_pj, one.latency_cycles) for _, one in priced.values())

    def gap() -> float:
        return relative_gap(min(objective_value(problem.objective, *pair) for pair in costs()), bound)

    def price(mapping: Mapping | None) -> None:
        if mapping and mapping not in priced and _fits(problem, mapping):
            try:
                one = layout_pricing(problem, mapping)
            except Uncounted as fault:
                uncounted.append(fault)
                return
            priced[mapping] = one, cost_in_best_layouts(one, interface)

    def without_lines(objective: str, kind: Factors) -> EinsumCost | Infeasible:
        found = optimal(
            replace(problem, arch=arch.ideal(), objective=objective),
            kind,
            constraints,
            allowed_gap=allowed_gap,
        )
        return found if isinstance(found, Infeasible) else found[0]

    goal = problem.objective
    ideal = without_lines(goal, factors)
    if isinstance(ideal, Infeasible):
        return ideal
    visited = ideal.visited
    if ideal.space:
        space = ideal.space
        bound = objective_value(goal, ideal.energy_pj, ideal.latency_cycles) / (1 + ideal.optimality_gap)
    is_searched = supports(e, searchable) and not names_some_dims(constraints, arch)
    staging = list(_staging_constraints(e, arch, constraints))
    is_energy = goal == "energy"
    searches = [_LineSearch(goal, constraints), _LineSearch(goal, constraints, "least")]
    searches += [] if is_energy else [_LineSearch(goal, constraints, "sequential", is_below=True)]
    searches += [_LineSearch(goal, constraints, spread=spread, is_below=True)] if spread else []
    searches += [] if is_energy else [_LineSearch("energy", constraints)]
    searches += [_LineSearch("latency", rules, way) for rules in staging for way in STALLS]
    searches += [_LineSearch(goal, rules, is_below=True) for rules in staging if goal != "latency"]
    for i, (objective, rules, exposed, search_spread, is_below) in enumerate(searches if is_searched else ()):
        if priced and gap() <= allowed_gap:
            break
        known = min((objective_value(objective, *pair) for pair in costs()), default=inf) if is_below else inf
        found = search_below(
            replace(problem, objective=objective),
            searchable,
            rules,
            known,
            allowed_gap if is_below else 0.0,
            CANDIDATE_BUDGET if is_below else LINES_BUDGET if i else FIRST_BUDGET,
            CANDIDATE_CHOICES if is_below else LINES_CHOICES,
            exposed,
            search_spread,
            with_outer_bounds=False,
        )
        visited += found.visited
        if i < len(STALLS) and searchable == factors:
            bound = max(bound, found.lower_bound)
            if found.lower_bound == inf and not priced:
                return none_fits(problem, constraints)
        price(found.mapping)
    others = list(product(dict.fromkeys((goal, "energy")), dict.fromkeys((searchable, factors))))
    for objective, kind in sorted(others, key=lambda way: way != (goal, factors)):
        if priced and gap() <= allowed_gap:
            break
        if (objective, kind) != (goal, factors):
            ideal = without_lines(objective, kind)
            assert isinstance(ideal, EinsumCost)
            visited += ideal.visited
        price(fitting(problem, ideal.mapping, constraints))
    if uncounted and not priced:
        raise uncounted[0]
    if not priced:
        return Infeasible("the search", visited, BUDGET, e.name, "nodes")
    return PricedMappings(
        tuple(one for one, _ in priced.values()),
        tuple(cost for _, cost in priced.values()),
        bound,
        visited,
        space,
    )


def _staging_constraints(e: Einsum, arch: Arch, constraints: Constraints) -> Iterator[Constraints]:
    """Constraints that stage every tensor in a level on chip outside of all fan-outs, one per such level.
    This part of the space is smaller, so that a search gets further within its budget.
    """
    for level in arch.levels[1 : min((f.outside for f in arch.fanouts), default=len(arch.levels))]:
        yield replace(
            constraints,
            must_keep=(*constraints.must_keep, *((level.name, tensor) for tensor in may_keep(e, level))),
        )


def _fits(problem: Problem, mapping: Mapping) -> bool:
    """Whether a mapping fits all capacities."""
    return not overflow(footprints(mapping, problem.einsum, problem.arch), problem.einsum, problem.arch)


def fitting(problem: Problem, mapping: Mapping, constraints: Constraints = FREE) -> Mapping | None:
    """A mapping that was found where lines cost nothing: as it is if it fits here, else `lowered`; None if
    that does not fit either or breaks the constraints.
    """
    if _fits(problem, mapping):
        return mapping
    below = lowered(mapping, problem.einsum, problem.arch)
    return below if _fits(problem, below) and not violations(constraints, below) else None


def lowered(mapping: Mapping, e: Einsum, arch: Arch) -> Mapping:
    """The mapping with each node that would sink, if lines cost nothing, moved down to where its tile would
    come to rest. There it takes as much capacity as the sunk tile. A node stays above a loop along which a
    window of its input slides. Windows of results are fetched anew in every trip.

    store BUF A                for a ...
    for a ...        ->          store BUF A
    """
    tensors = {p.tensor: p for p in e.tensors()}
    last_level: dict[str, str] = {}  # level of the last node of each tensor so far
    moved_to: dict[int, Store] = {}  # nodes that move down to just above a position
    nodes = list[Loop | Store]()
    for i, node in enumerate(mapping.nodes):
        nodes += [moved_to[i]] if i in moved_to else []
        if not isinstance(node, Store):
            nodes.append(node)
            continue
        p, parent = tensors[node.tensor], last_level.get(node.tensor)
        last_level[node.tensor] = node.level
        end = sink(p, mapping, i) if parent else i + 1
        end -= slides(p, e, mapping, end - 2)
        if end > i + 1 and parent and resting_position(p, e, mapping, i, parent, arch.layout_levels()) < end:
            moved_to[end] = node
        else:
            nodes.append(node)
    return replace(
        mapping, nodes=(*nodes, *(moved_to[i] for i in moved_to if i == len(mapping.nodes))), layouts=()
    )


def found_in_best_layouts(
    problem: Problem, found: EinsumCost, interface: frozenset[str]
) -> EinsumCost | Infeasible:
    """A mapping that was found where layouts cost nothing, in its best layouts; `lowered` if it does not fit
    here.

    The lower bound of that search holds with layouts only where levels never wait for each other (overlap:
    free). Elsewhere tiles that do not sink change less often, which may hide more of the transfers inside.
    """
    mapping = fitting(problem, found.mapping)
    if mapping is None:
        return none_fits(problem, FREE)
    proven = found.space is not None and problem.arch.overlap == "free"
    bound = (
        objective_value(problem.objective, found.energy_pj, found.latency_cycles) / (1 + found.optimality_gap)
        if proven
        else 0.0
    )
    return with_certificate(
        cost_in_best_layouts(layout_pricing(problem, mapping), interface),
        problem.objective,
        bound,
        found.visited,
        found.space,
    )


def cost_in_best_layouts(one: LayoutPricing, interface: frozenset[str]) -> EinsumCost:
    """The evaluator's cost of a mapping in its best layouts. interface: as in `layout_aware`."""
    home = one.problem.arch.levels[0].name
    fixed = {
        place: row_major(
            transfer.dim_names(link.tensor),
            transfer.shape_at(one.nest, link, one.problem.einsum, one.problem.arch),
        )
        for place, link in one.links.items()
        if place[0] == home and place[1] in interface
    }
    chosen = best_layouts(one, fixed)[2]
    found = einsum_cost(one.problem, in_layouts(one.mapping, chosen))
    assert isinstance(found, EinsumCost)
    return found


def in_layouts(mapping: Mapping, chosen: Dict[TensorAt, Layout]) -> Mapping:
    """A mapping with these layouts; row-major ones are left out, as they are the default."""
    return replace(
        mapping,
        layouts=tuple(
            TensorLayout(*place, show(layout))
            for place, layout in sorted(chosen.items(), key=lambda row: row[0])
            if layout != row_major(layout.names, layout.shape)
        ),
    )


def with_certificate(
    one: EinsumCost, objective: str, lower: float, visited: int, space: Mappings | None
) -> EinsumCost:
    """An einsum's cost with its certificate. lower: no mapping of the space in any layouts has a lower
    objective.

    The optimality gap is the gap to `lower` or to the bound of any mapping, whichever is smaller; 0 below
    ROUNDING_GAP.
    """
    gap = min(
        one.gap_to_bound, relative_gap(objective_value(objective, one.energy_pj, one.latency_cycles), lower)
    )
    return replace(
        one,
        optimality_gap=0.0 if gap <= ROUNDING_GAP else gap,
        space=replace(space, layouts="all") if lower > 0 and space else None,
        visited=visited,
    )


def interface_spread(e: Einsum, arch: Arch, interface: frozenset[str]) -> dict[str, Spread]:
    """An estimate, per interface tensor, of how it spreads over lines if it lies row-major at the outermost
    level.

    The dimensions are the one whose stride is nearest to a line, and all outside of it. The share is the
    stride of that one over the line, at most 1.
    """
    line = arch.levels[0].access.line_bits if arch.levels[0].access else 0
    found = {}
    for p in e.tensors():
        pitch_bits = [
            prod(d.size for d in p.dims[k + 1 :]) * (p.bits or arch.word_bits) for k in range(len(p.dims))
        ]
        if line and p.tensor in interface and max(pitch_bits, default=0) > (p.bits or arch.word_bits):
            nearest = min(range(len(pitch_bits)), key=lambda k: (abs(log(pitch_bits[k] / line)), k))
            found[p.tensor] = Spread((2 << nearest) - 1, min(pitch_bits[nearest] / line, 1.0))
    return found
