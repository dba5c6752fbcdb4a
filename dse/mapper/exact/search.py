"""The exact search for the best mapping of one einsum, on one machine or on many. Its loops are compiled
(kernels/).

    for boxes of spatial unrollings, by bound, down to one:      # fixes what PEs share
        for sets of levels that hold the tensors, by bound:      # each term at the largest tile that fits
            storage nodes from compute outwards, loops below each, largest tiles first
            a nest is left where its bound is no better than the best, or where it exceeds a capacity

What a tensor moves depends only on the tile at its node (docs/model.md, Counts). So the cost of a nest is a
sum over its nodes, and the term of a node is known once it is placed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from collections.abc import Mapping as Dict
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations, pairwise, product, zip_longest
from math import gcd, inf, prod
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dse.mapper.exact import hops
from dse.mapper.exact.kernels import batch_search, state
from dse.mapper.exact.spatial import (
    KEPT_BYTES,
    FanoutDim,
    Group,
    NoneAllowed,
    SpatialUnrollings,
    TooMany,
    array_bytes,
    dims_and_groups,
    gathered_mask,
    kept_up_to,
    unrollings,
    way_count,
)
from dse.mapping.classes import rank_of
from dse.mapping.constraints import ANY_TRIPS, FREE, Constraints, Factors, stationary, unkeepable
from dse.mapping.nest import (
    Loop,
    Mapping,
    Store,
    bits_at,
    in_lockstep,
    may_keep,
    role,
    stored_at,
    ungated,
    unrollable,
)
from dse.run import deadline
from dse.sim.counts.actions import (
    accesses_per_elem,
    action_pj,
    bits_of,
    elem_cycles,
    fill_cycles,
    first_word_cycles,
    fold_cycles,
    op_cycles,
    op_pj,
    passes_array,
)
from dse.sim.counts.counts import hull
from dse.sim.counts.latency import any_nonzero
from dse.sim.counts.terms import (
    MAX_LISTED,
    direct_elems,
    gathered,
    gathers,
    moves_in_lines,
    nonzero_share,
    sparse,
    unshared,
)
from dse.sim.einsum.bounds import used_elems
from dse.sim.einsum.evaluate import Problem
from hw.arch import PORT_ACTIONS, Arch, Fanout, FieldRole, Level, slots
from workloads.arrays import Floats, Ints
from workloads.einsum import Einsum, Projection, TooLong, whole_slots

BUDGET = 5_000_000  # storage nodes placed per search: some ten seconds
REFINE_BUDGET = 100_000  # the same for each further search that tries to improve a first answer
MAX_CHOICES = 600_000  # boxes of spatial unrollings bounded per search: some five seconds
MAX_SHARED_WAYS = 1 << 15  # ways to unroll a rank up to which machines with similar arrays share tables
MIN_FOR_OUTER_BOUNDS = 1_000  # nodes and boxes before `batch_search.set_outer_bounds` is worth its time
OUTER_BUDGET = 2_000  # nodes placed for one such bound; in long searches this share of their budget:
OUTER_SHARE = 250
SHORT_SHARE = 50  # the share of its budgets after which a search is a long one
MAX_OUTER_CODES = 256  # ways in which outer levels hold the tensors that are told apart (state.Terms)
STATE_SLOTS = 1 << 15  # slots of the hash table of inner parts of nests (state.InnerStates)
Cost = tuple[float, float, float]  # value of the objective, energy, latency
# From the best mapping of perfect factors on each machine (None: none was found) to two arrays [J]: goals,
# and lower bounds of the objective over all mappings. The search of imperfect factors accepts only objectives
# below the goal; inf: any that is below the best of perfect factors.
Goals = Callable[[Sequence[Mapping | None]], tuple[Floats, Floats]]
Exposed = Literal["least", "exchanges", "ends", "sequential"]  # which stalls count as cycles (`search`)
NO_CUTOFF = (inf, inf, inf)  # a cutoff above every cost
NO_LINKS = -1  # Quantity.hop_pair of a quantity that is not multiplied by links
PRICES: tuple[FieldRole, ...] = ("price", "network")
OBJECTIVES = {"energy": state.ENERGY, "latency": state.LATENCY, "edp": state.EDP}


class Spread(NamedTuple):
    """How a layout spreads a tensor over cache lines."""

    dims: int  # mask of the dimensions along which neighbouring indices do not fill a line together
    line_share: float  # the share of a line that one index along these uses


NO_SPREAD = Spread(0, 0.0)
MANY_BITS = 1 << 50  # more than any transfer has
NO_SPREADS: Dict[str, Spread] = MappingProxyType({})  # by tensor: no layout is given


def supports(e: Einsum, factors: Factors) -> bool:
    """True if the search takes the einsum. It takes none of these:

    1. imperfect temporal factors;
    2. a dimension that adds up more than two ranks;
    3. an output dimension of one rank of which only a part is stored.
    """
    sizes = e.sizes()
    cut_short = any(
        len(dim.terms) == 1
        and dim.terms[0][1] == 1
        and not 0 <= dim.offset <= dim.size - sizes[dim.terms[0][0]]
        for dim in e.output.dims
    )
    summed = max(
        (sum(sizes[rank] > 1 for rank, _ in dim.terms) for p in e.tensors() for dim in p.dims), default=0
    )
    return factors != "imperfect" and not cut_short and summed <= 2


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The best mapping that a search found, with its lower bound."""

    mapping: Mapping | None  # None: no mapping is below the cutoff, or the budget ended before one was found
    visited: int  # storage nodes placed
    lower_bound: float  # no mapping of the space has a lower objective; 0: nothing is proven; inf: none fits
    cycles: float = inf  # those of the mapping, as the search counts them
    ended: bool = False  # whether a budget (nodes, choices) or a deadline ended the search


def search(
    problem: Problem,
    factors: Factors,
    constraints: Constraints = FREE,
    budget: int = BUDGET,
    exposed: Exposed = "least",
    cutoff: Cost = NO_CUTOFF,
    spread: Dict[str, Spread] = NO_SPREADS,
    max_cycles: float = inf,
    goals: Goals | None = None,
) -> SearchResult:
    """Returns the best mapping of the space that costs less than `cutoff`. Mappings with equal objectives
    (within a relative 1e-10) are compared by energy, then latency.

    exposed: which stalls count as cycles, besides the cycles that ports are busy (docs/model.md, Time).
    "least": single-buffered levels wait for their busiest port. Never more than the evaluator's cycles.
    "exchanges": they wait for tiles that change at different times one after the other. Never more than the
        evaluator's cycles either.
    "ends": also the first fills and last drains of double-buffered levels. Never more than the evaluator's
        cycles either; it prunes less, so the search takes longer.
    "sequential": single-buffered levels wait for all ports one after the other, as if no two tiles changed
        together. That may exceed the evaluator's cycles, so `lower_bound` is 0. The mapping found is often
        better than that of "least".
    spread: of tensors whose layout at the outermost level is given, how it spreads them over lines. The lines
        that it needs beyond those of the best layout are charged too.
    max_cycles: cycles at most; a mapping that takes more does not count.
    goals: what is asked of imperfect factors, once the best mapping of perfect ones is known.

    With cache lines the search charges a lower bound over all layouts: simultaneous requests of PEs share
    whole lines, and each row is opened once. Imperfect spatial factors are searched after perfect ones.
    """
    return search_on([problem], factors, constraints, budget, exposed, cutoff, spread, max_cycles, goals)[0]


def search_on(
    problems: Sequence[Problem],
    factors: Factors,
    constraints: Constraints = FREE,
    budget: int = BUDGET,
    exposed: Exposed = "least",
    cutoff: Cost | Floats = NO_CUTOFF,
    spread: Dict[str, Spread] = NO_SPREADS,
    max_cycles: float | Floats = inf,
    goals: Goals | None = None,
) -> list[SearchResult]:
    """Returns the result of `search` for one einsum on each of many machines that differ in prices and rates
    alone (`same_structure`).

    cutoff, max_cycles: of all machines, or a row [J, 3] and a number [J] for each.

    Bounds and counts are made once and compared with the best of each machine. A result equals that of a
    search on its machine alone: of mappings with equal costs it is the first in an order that prices do not
    change. Only where the budget ends may it differ. The outermost level is assumed to hold all tensors
    (dse/sim/schedule/outermost.py).

    With `goals` a result still equals that of its machine alone. The goal of a machine follows from its
    optimum of perfect factors, and stays what it is while imperfect ones are searched. So the second search
    has two outcomes, and neither depends on what is searched first: the optimum of imperfect factors, if it
    lies below the goal, or no mapping, which proves that the goal is a lower bound. A goal that followed each
    better mapping would leave out more, but what it leaves out would depend on the order of the batch.
    """
    problems = [_searched(problem) for problem in problems]
    if _none_allowed(problems[0], constraints):
        return [SearchResult(None, 0, inf) for _ in problems]
    machines, machine_count = (
        _read_machines(problems, constraints, exposed, spread, max_cycles),
        len(problems),
    )
    best = np.broadcast_to(np.array(cutoff), (machine_count, 3)).copy()
    found, visited, bound_left_out, ended = _search_factors(machines, "perfect", constraints, budget, best)
    lower_bounds = np.minimum(bound_left_out, best[:, 0])
    complete = bool((lower_bounds >= best[:, 0]).all())  # False: the budget has ended
    cycles = best[:, 2].copy()
    if factors != "perfect" and complete:
        goal, bounds_on_all = (
            goals(found) if goals else (np.full(machine_count, inf), np.zeros(machine_count))
        )
        has_goal = goal < best[:, 0]
        best[has_goal, 0], best[has_goal, 1:] = goal[has_goal], 0.0
        lower_bounds = best[:, 0].copy()
        open_machines = np.flatnonzero(~has_goal | (goal > bounds_on_all))
        if open_machines.size and (
            deadline.has_passed() or unrolling_count(problems[0], factors, constraints) == inf
        ):
            complete, ended = False, True
        elif open_machines.size:
            open_best = best[open_machines]
            nests, placed, bound_left_out, ended = _search_factors(
                _select_machines(machines, open_machines), factors, constraints, budget - visited, open_best
            )
            lower_bounds[open_machines], visited = (
                np.minimum(bound_left_out, open_best[:, 0]),
                visited + placed,
            )
            for j, nest, latency in zip(open_machines.tolist(), nests, open_best[:, 2].tolist(), strict=True):
                found[j], cycles[j] = (nest, latency) if nest else (found[j], cycles[j])
    proven = (complete or factors == "perfect") and exposed != "sequential"
    return [
        SearchResult(
            nest, visited, float(bound) if proven else 0.0, float(latency), ended or visited > budget
        )
        for nest, bound, latency in zip(found, lower_bounds, cycles, strict=True)
    ]


def search_below(
    problem: Problem,
    factors: Factors,
    constraints: Constraints,
    cutoff: float,
    gap: float,
    budget: int,
    choices: int | None = None,
    exposed: Exposed = "least",
    spread: Dict[str, Spread] = NO_SPREADS,
    with_outer_bounds: bool = True,
) -> SearchResult:
    """Returns a mapping that costs less than `cutoff`, within the relative gap `gap` of the optimum; or the
    proof that no mapping costs less than that.

    It starts from a cost that is known (`cutoff`), so no search of perfect factors comes first, and after
    each mapping found another one counts only if it is better by more than the gap. So it takes a fraction of
    `search`, whose answer does not depend on what was known.

    budget: nodes placed at most. choices: boxes of spatial unrollings bounded at most. Where either ends, the
        lower bound is that of what is left.
    exposed, spread: as in `search`; the lower bound holds for other than these defaults only where they count
        no more than the evaluator.
    with_outer_bounds: False leaves out bounds of the outer levels together, which take seconds where there
        are many ways to unroll: they pay in long searches alone.
    """
    nothing = SearchResult(None, 0, 0.0, ended=True)
    if not supports(problem.einsum, factors) or unrolling_count(problem, factors, constraints) == inf:
        return nothing
    problem = _searched(problem)
    if _none_allowed(problem, constraints):
        return SearchResult(None, 0, cutoff)
    machines = _read_machines([problem], constraints, exposed, spread, inf)
    best = np.array([[cutoff, 0.0, 0.0]])
    nests, visited, left, ended = _search_factors(
        machines, factors, constraints, budget, best, choices, 1 + gap, True, with_outer_bounds
    )
    return SearchResult(nests[0], visited, float(min(left[0], best[0, 0])), ended=ended or visited > budget)


def _searched(problem: Problem) -> Problem:
    """The problem as it is searched: its outermost level holds all tensors, and where fills bring in whole
    tiles nothing is known of patterns (`terms.gathered`).
    """
    arch, e = problem.arch.unbounded(), problem.einsum
    is_gathered = gathers(arch) and not problem.boundary.needs_whole_tiles()
    return replace(problem, arch=arch, einsum=e if is_gathered else e.without_pattern())


def _none_allowed(problem: Problem, constraints: Constraints) -> bool:
    """Whether limits of rules leave no mapping, whatever its tiles: no levels for a tensor, or more trips
    than there are values.
    """
    e, arch = problem.einsum, problem.arch
    return bool(constraints.limits) and (
        unkeepable(constraints, e, arch) is not None
        or not all(_holder_sets(e, arch, constraints, p.tensor) for p in e.tensors())
    )


class NodeAbove(NamedTuple):
    """The storage node above some loops."""

    tensor: str  # "": no node stands directly above them
    no_sink: bool  # whether it does not sink below them (state.Machine.no_sink)


NO_NODE = NodeAbove("", False)


class MachineInput(NamedTuple):
    """What the search reads of its machines."""

    problems: Sequence[Problem]
    machine: state.Machine
    terms: state.Terms


def _read_machines(
    problems: Sequence[Problem],
    constraints: Constraints,
    exposed: Exposed,
    spread: Dict[str, Spread],
    max_cycles: float | Floats,
) -> MachineInput:
    """The machines and their terms as arrays."""
    e, arch = problems[0].einsum, problems[0].arch
    structure, tensors = _structure_of(arch), tuple(p.tensor for p in (*e.inputs, e.output))
    form = _form(
        _with_fewest_indices(e),
        structure,
        exposed,
        tuple(spread.items()),
        tuple(_holder_sets(e, arch, constraints, tensor) for tensor in tensors),
    )
    machine = _machine(problems, tensors, _parts(structure, exposed), constraints, max_cycles)
    terms = _terms([one.arch for one in problems], form, _base(e, structure, exposed), e)
    if arch.with_latency():
        # first words of levels at which some input stands whatever the mapping
        sets = [_holder_sets(e, arch, constraints, p.tensor) for p in e.inputs]
        always = [any(all(own >> v & 1 for own in masks) for masks in sets) for v in range(len(arch.levels))]
        cycles = np.array([[first_word_cycles(v, one.arch) for v in arch.levels] for one in problems])
        machine = machine._replace(first_word=np.where(always, 0.0, cycles))
        base = terms.base.copy()
        base[:, state.RAMP] += np.where(always, cycles, 0.0).sum(axis=1)
        terms = terms._replace(base=base)
    return MachineInput(problems, machine, terms)


def _select_machines(machines: MachineInput, at: Ints) -> MachineInput:
    """The machines at positions `at` alone."""
    problems, machine, terms = machines
    if len(at) == len(problems):
        return machines
    return MachineInput(
        [problems[j] for j in at.tolist()],
        machine._replace(
            leak=machine.leak[at], max_cycles=machine.max_cycles[at], first_word=machine.first_word[at]
        ),
        terms._replace(
            link_coef=terms.link_coef[at],
            sum_coef=terms.sum_coef[at],
            low_coef=terms.low_coef[at],
            link_outer_pj=terms.link_outer_pj[at],
            sum_outer_pj=terms.sum_outer_pj[at],
            low_outer_pj=terms.low_outer_pj[at],
            base=terms.base[at],
        ),
    )


class FactorsResult(NamedTuple):
    """What a search with one kind of factors found, on J machines."""

    mappings: list[Mapping | None]  # the best one per machine, None: none beats the best before
    visited: int  # nodes placed
    bound_left_out: Floats  # [J] lower bounds of all mappings that were left out; inf: the budget did not end
    ended: bool  # whether the budget in choices or a deadline ended the search


def _search_factors(
    machines: MachineInput,
    factors: Factors,
    constraints: Constraints,
    budget: int,
    best: Floats,
    choices: int | None = None,
    margin: float = 1.0,
    with_perfect: bool = False,
    with_outer_bounds: bool = True,
) -> FactorsResult:
    """Searches with one kind of factors.

    best: [J, 3] the costs to beat, lowered in place. budget: nodes placed at most. choices: boxes of spatial
    unrollings bounded at most (None: MAX_CHOICES). margin: a mapping counts if it costs less than the best
    so far, divided by this. with_perfect: whether imperfect factors are searched together with perfect ones,
    else beside them. with_outer_bounds: False leaves out `batch_search.set_outer_bounds`.
    """
    problems, machine, terms = machines
    choices = MAX_CHOICES if choices is None else choices
    e, arch, machine_count = problems[0].einsum, problems[0].arch, len(problems)
    spatial = hops.countable(e, arch, constraints)
    unrolled = _where_alike(e, arch, spatial)
    trips = _spatial_limits(constraints)
    lockstep, served = in_lockstep(e, arch.compute), ungated(e, arch.compute.gates, True)
    fanouts = _table_fanouts(e, arch.fanouts, factors, unrolled, lockstep)
    try:
        tables = _tables(e, served, fanouts, factors, unrolled, trips, lockstep)
    except NoneAllowed:
        return FactorsResult([None] * machine_count, 0, np.full(machine_count, inf), False)
    networks = _bare_networks(arch)
    terms = terms._replace(hops=_hops(e, served, networks, fanouts, factors, unrolled, trips, lockstep))
    inside = np.array([constraints.inside is None or rank in constraints.inside for rank in tables.ranks])
    stationary_tensor = (
        tables.tensors.index(constraints.stationary) if constraints.stationary in tables.tensors else -1
    )
    # where tiles overlap or are compressed a tile may need more room twice, cut, than the whole does; and
    # bounds that know the room of all PEs end too late there to pay
    packed = _packed(e, arch)
    is_counted = all(_serves(p, e, own) for p, own in zip(e.tensors(), packed, strict=True))
    instances = [arch.instances(v) for v in range(len(arch.levels))]
    # rows of a compressed tensor have a pointer in each tile
    sinks = tables.einsum.full & ~(np.array(packed)[:, None] & tables.in_last_dim)
    has_lines = np.array([_line_bits(arch, v) > 0 for v in range(len(arch.levels))])
    min_along, fills = _least_along(constraints, arch)
    limits_trips, limited, least_trips, most_trips = _temporal_limits(constraints, arch, tables.ranks)
    above, orders, rank_inside, keeps_inside, ordered = _order_limits(constraints, arch, tables.ranks)
    rules = state.Rules(
        sinks[:, None, :] & ~has_lines[None, :, None],
        inside,
        stationary_tensor,
        _unconstrained_groups(arch, constraints),
        max([constraints.min_pes, *(limit.least for limit in constraints.limits if limit.kind == "pes")]),
        min_along,
        fills,
        factors != "perfect" and not with_perfect,
        limits_trips,
        limited,
        least_trips,
        most_trips,
        above,
        orders,
        rank_inside,
        keeps_inside,
        ordered,
    )
    outer_rules = rules._replace(
        limits_trips=False,
        limited=np.zeros_like(rules.limited),
        orders=False,
        keeps_inside=False,
        ordered=np.zeros_like(rules.ordered),
    )
    nodes, levels = len(tables.tensors) * len(arch.levels) + len(machine.loop_positions), len(arch.levels)
    # for `set_outer_bounds`: energy is the objective, no cycles count, inside of PEs each tile is stored once
    outer_machine = machine._replace(
        capacity=np.where(
            machine.position[:-1] == 0, machine.capacity, machine.capacity * instances if is_counted else inf
        ),
        double_buffer=machine.double_buffer & is_counted,
        leak=np.zeros(machine_count),
        max_cycles=np.full(machine_count, inf),
        objective=state.ENERGY,
        most_bits=np.where(machine.position[:-1] == 0, machine.most_bits, inf),
    )
    outer_coef = np.zeros(terms.link_coef.shape)
    outer_coef[..., state.PJ] = terms.link_outer_pj
    states = _inner_states(len(tables.ranks), terms.base.shape[1])

    def searched(budget: int, choices: int, outer_budget: int, best: Floats) -> FactorsResult:
        work = _work(machine_count, nodes, levels, terms, tables, budget, choices, margin)
        if not with_outer_bounds:
            work.tally[state.MIN_FOR_OUTER_BOUNDS] = np.iinfo(np.int64).max
        outer_work = _work(machine_count, nodes, levels, terms, tables, outer_budget)
        bound_left_out = batch_search.search(
            terms,
            tables.einsum,
            tables.pool,
            machine,
            terms._replace(link_coef=outer_coef),
            tables.outer_pool,
            outer_machine,
            rules,
            outer_rules,
            tables.memo,
            work,
            outer_work,
            states,
            best,
        )
        memo: dict[bytes, Mapping] = {}
        return FactorsResult(
            [
                _cached_nest(memo, tables, e, arch, dict(spatial), rules, work, j)
                if work.best_count[j] >= 0
                else None
                for j in range(machine_count)
            ],
            int(work.tally[state.VISITED]),
            bound_left_out,
            bool(work.tally[state.CHOICES] > choices or deadline.has_passed()),
        )

    long_outer_budget = budget // OUTER_SHARE
    if not with_outer_bounds or long_outer_budget < 2 * OUTER_BUDGET:
        return searched(budget, choices, OUTER_BUDGET, best)
    # what a short search does not end is searched anew with better bounds of outer levels
    short_best = best.copy()
    short = searched(budget // SHORT_SHARE, choices // SHORT_SHARE, OUTER_BUDGET, short_best)
    if deadline.has_passed() or (short.bound_left_out >= short_best[:, 0]).all():
        best[:] = short_best
        return short
    found = searched(budget - short.visited, choices, long_outer_budget, best)
    # where that does not end either, the better answer and the higher bound of both
    first = short_best[:, 0] < best[:, 0]
    best[first] = short_best[first]
    return FactorsResult(
        [short.mappings[j] if first[j] else one for j, one in enumerate(found.mappings)],
        short.visited + found.visited,
        np.maximum(short.bound_left_out, found.bound_left_out),
        found.ended,
    )


def _cached_nest(
    memo: dict[bytes, Mapping],
    tables: Tables,
    e: Einsum,
    arch: Arch,
    allowed: dict[str, tuple[str, ...]],
    rules: state.Rules,
    work: state.Work,
    j: int,
) -> Mapping:
    """The nest of machine j. Machines with equal nests get the same object, from `memo`."""
    n = int(work.best_count[j])
    key = b"".join(
        (work.best_unrolling[j].tobytes(), work.best_nodes[j, :n].tobytes(), work.best_tiles[j, :n].tobytes())
    )
    if key not in memo:
        memo[key] = _nest(tables, e, arch, allowed, rules, work, j)
    return memo[key]


@lru_cache(maxsize=64)
def _inner_states(ranks: int, parts: int) -> state.InnerStates:
    """A hash table of some megabytes that all searches reuse one after the other. Every placement of tensors
    has a number of its own (`round`), and an entry counts only for the placement that wrote it, so nothing
    need be cleared.
    """
    slot_zeros = np.zeros(STATE_SLOTS, np.int64)
    return state.InnerStates(
        np.zeros((STATE_SLOTS, ranks), np.int64),
        slot_zeros,
        slot_zeros.copy(),
        np.zeros((STATE_SLOTS, parts)),
        slot_zeros.copy(),
        slot_zeros.copy(),
        np.zeros(2, np.int64),
    )


def _where_alike(e: Einsum, arch: Arch, spatial: hops.Spatial) -> hops.Spatial:
    """Returns `spatial` (as Constraints.spatial), of dimensions along which PEs share a memory without the
    ranks of what may stand there (nest.py, `unrollable`).
    """
    allowed_ranks = dict(spatial)
    for f in arch.fanouts:
        for name, _ in f.dims if f.shared else ():
            own = unrollable(e, arch, name)
            allowed_ranks[name] = tuple(rank for rank in allowed_ranks.get(name, own) if rank in own)
    return tuple(allowed_ranks.items())


def _spatial_limits(constraints: Constraints) -> tuple[tuple[str, str, int, int], ...]:
    """(fan-out dimension, rank, least trips, most trips) of all limits of spatial loops."""
    return tuple(
        (limit.at, limit.name, limit.least, limit.most)
        for limit in constraints.limits
        if limit.kind == "spatial"
    )


def _temporal_limits(
    constraints: Constraints, arch: Arch, ranks: Sequence[str]
) -> tuple[bool, NDArray[np.bool_], Ints, Ints]:
    """The limits of temporal loops as fields of state.Rules, from `limits_trips` on."""
    shape, levels = (len(arch.levels), len(ranks)), arch.level_index()
    limited, least, most = np.zeros(shape, np.bool_), np.ones(shape, np.int64), np.full(shape, ANY_TRIPS)
    for limit in constraints.limits:
        if limit.kind == "temporal" and limit.name in ranks:
            at = levels[limit.at], ranks.index(limit.name)
            limited[at], least[at] = True, max(least[at], limit.least)
            most[at] = min(most[at], limit.most)
    ranks_limited: NDArray[np.bool_] = np.any(limited, axis=0)
    return bool(limited.any()), ranks_limited, least, most


def _least_along(constraints: Constraints, arch: Arch) -> tuple[Ints, bool]:
    """PEs in use along each fan-out dimension by the limits: fields of state.Rules, from `min_along` on."""
    least: dict[str, int] = {}
    for limit in constraints.limits:
        if limit.kind == "fill":
            least[limit.at] = max(least.get(limit.at, 1), limit.least)
    names = [name for f in sorted(arch.fanouts, key=lambda f: f.outside) for name, _ in f.dims]
    return np.array([least.get(name, 1) for name in names], np.int64), bool(least)


def _order_limits(
    constraints: Constraints, arch: Arch, ranks: Sequence[str]
) -> tuple[NDArray[np.bool_], bool, NDArray[np.bool_], bool, NDArray[np.bool_]]:
    """Where temporal loops stand by the limits, as fields of state.Rules, from `above` on."""
    shape, levels = (len(arch.levels), len(ranks)), arch.level_index()
    above, inside = np.zeros((*shape, len(ranks)), np.bool_), np.zeros(shape, np.bool_)
    for limit in constraints.limits:
        if limit.kind == "order" and limit.name in ranks and limit.below in ranks:
            above[levels[limit.at], ranks.index(limit.name), ranks.index(limit.below)] = True
        if limit.kind == "inside" and limit.name in ranks:
            inside[levels[limit.at], ranks.index(limit.name)] = True
    ordered = np.asarray(above.any(axis=(0, 1)) | above.any(axis=(0, 2)) | inside.any(axis=0), np.bool_)
    return above, bool(above.any()), inside, bool(inside.any()), ordered


def _unconstrained_groups(arch: Arch, constraints: Constraints) -> int:
    """Mask of the groups of fan-out dimensions (spatial.Group) for which the constraints `inside` and
    `stationary` do not hold: those without a dimension that `spatial` names; 0 if `spatial` names none.
    """
    dims, groups = dims_and_groups(arch.fanouts)
    names = [name for f in sorted(arch.fanouts, key=lambda f: f.outside) for name, _ in f.dims]
    named = {
        array_dim.group for array_dim in dims if names[array_dim.number] in dict(constraints.spatial)
    } or set(range(len(groups)))
    return sum(1 << g for g in range(len(groups)) if g not in named)


def _work(
    machine_count: int,
    nodes: int,
    levels: int,
    terms: state.Terms,
    tables: Tables,
    budget: int,
    choices: int = 0,
    margin: float = 1.0,
) -> state.Work:
    """The state of a search for `machine_count` machines before any node is placed."""

    def int_zeros(*shape: int) -> Ints:
        return np.zeros(shape, np.int64)

    depth, ranks, parts, quantities = nodes + 2, len(tables.ranks), terms.base.shape[1], len(terms.quantity)
    return state.Work(
        live=int_zeros(depth, machine_count),
        live_count=int_zeros(depth),
        inner_tile=int_zeros(depth, ranks),
        parts=np.zeros((depth, machine_count, parts)),
        used_bits=np.zeros((depth, levels)),
        entry_tile=int_zeros(tables.pool.span.shape[1], ranks),
        placed=int_zeros(depth),
        position=int_zeros(depth),
        node=int_zeros(depth),
        node_tile=int_zeros(depth, ranks),
        loop=int_zeros(depth),
        loop_count=int_zeros(depth),
        window_count=int_zeros(depth),
        loop_rank=int_zeros(depth, ranks),
        loop_tile=int_zeros(depth, ranks),
        untried=np.zeros((depth, ranks), np.bool_),
        outcome=int_zeros(depth, ranks),
        unrolling=int_zeros(ranks),
        nodes=int_zeros(nodes, 4),
        holds_tensor=np.zeros(nodes, np.bool_),
        tally=np.array([0, 0, budget, MIN_FOR_OUTER_BOUNDS, 0, choices], np.int64),
        stop=deadline.STOP,
        quantity_bound=np.zeros(quantities),
        ties_allowed=np.zeros(machine_count, np.bool_),
        holders=int_zeros(len(tables.tensors)),
        margin=np.array([margin]),
        outer_pj=np.zeros((max(len(terms.outer_choices), 1), machine_count)),
        outer_extra=np.zeros(machine_count),
        unit=np.ones((machine_count, 2)),
        part_scratch=np.zeros(parts),
        cost=np.zeros(3),
        lowest=np.zeros((machine_count, 3)),
        largest=int_zeros(ranks),
        sunk_tile=int_zeros(ranks),
        reached=int_zeros(ranks),
        gap_levels=int_zeros(depth + tables.pool.span.shape[1] + 1, ranks),
        best=np.zeros((machine_count, 3)),
        best_count=np.full(machine_count, -1, np.int64),
        best_unrolling=int_zeros(machine_count, ranks),
        best_holders=int_zeros(machine_count, len(tables.tensors)),
        best_nodes=int_zeros(machine_count, nodes, 4),
        best_tiles=int_zeros(machine_count, nodes, ranks),
    )


@dataclass(frozen=True, slots=True)
class Tables:
    """What the search reads of an einsum on machines with the same fan-outs."""

    ranks: tuple[str, ...]  # ranks of more than one value; if there is none, the first rank
    tensors: tuple[str, ...]  # names, the output last
    choices: tuple[SpatialUnrollings, ...]  # spatial unrollings per rank
    einsum: state.Einsum
    pool: state.Pool
    outer_pool: state.Pool  # with `stored` of its own, which `batch_search.set_outer_bounds` writes
    memo: state.Memo
    in_last_dim: NDArray[np.bool_]  # [X, R] whether the rank is in the last dimension, of columns


def _covering_fanout(f: Fanout) -> Fanout:
    """The fan-out with its sizes rounded up to 1, 4, 16, 64 or a power of two above, and without prices. So
    machines with similar arrays share tables.
    """
    dims = tuple(
        (name, next((few for few in (1, 4, 16, 64) if n <= few), 1 << (n - 1).bit_length()))
        for name, n in f.dims
    )
    return _unpriced(f, dims)


def _unpriced(f: Fanout, dims: tuple[tuple[str, int], ...]) -> Fanout:
    """The fan-out with other sizes, and without prices, on which tables do not depend."""
    return Fanout(f.name, f.outside, dims, f.multicast, f.reduce, f.systolic, shared=f.shared)


@lru_cache(maxsize=1 << 12)
def _table_fanouts(
    e: Einsum, fanouts: tuple[Fanout, ...], factors: Factors, spatial: hops.Spatial, lockstep: bool
) -> tuple[Fanout, ...]:
    """The fan-outs that tables are made for: those of similar arrays (`_covering_fanout`), or the machine's
    own, without prices, where with the former a rank has more than MAX_SHARED_WAYS ways to be unrolled.
    """
    covering = tuple(_covering_fanout(f) for f in fanouts)
    boundaries, sizes = len({f.outside for f in covering}), e.sizes()
    if boundaries > 1 and any(
        way_count(
            sizes[rank],
            _unrolled_over(rank, e, covering, spatial),
            boundaries,
            factors,
            whole_slots(e, rank) if lockstep else 1,
        )
        > MAX_SHARED_WAYS
        for rank, n in e.extents
        if n > 1
    ):
        return tuple(_unpriced(f, f.dims) for f in fanouts)
    return covering


def _unrolled_over(
    rank: str, e: Einsum, fanouts: tuple[Fanout, ...], spatial: hops.Spatial
) -> tuple[FanoutDim, ...]:
    """The fan-out dimensions that a rank may be unrolled over. spatial: as in Constraints.spatial."""
    if rank in e.output.partial_ranks():
        return ()
    names, allowed = (
        [name for f in sorted(fanouts, key=lambda f: f.outside) for name, _ in f.dims],
        dict(spatial),
    )
    return tuple(
        dim
        for dim in dims_and_groups(fanouts)[0]
        if dim.size > 1 and rank in allowed.get(names[dim.number], (rank,))
    )


def unrolling_count(problem: Problem, factors: Factors, constraints: Constraints) -> float:
    """Returns the number of spatial unrollings of all ranks together, in the tables that machines with
    similar arrays share (`_table_fanouts`); inf where a rank has too many for a table.
    """
    countable = hops.countable(problem.einsum, problem.arch, constraints)
    spatial = _where_alike(problem.einsum, problem.arch, countable)
    trips, compute = _spatial_limits(constraints), problem.arch.compute
    lockstep, served = in_lockstep(problem.einsum, compute), ungated(problem.einsum, compute.gates, True)
    fanouts = _table_fanouts(problem.einsum, problem.arch.fanouts, factors, spatial, lockstep)
    try:
        tables = _tables(problem.einsum, served, fanouts, factors, spatial, trips, lockstep)
        return int(tables.pool.rank_start[-1])
    except NoneAllowed:
        return 0
    except TooMany:
        return inf


def _table_bytes(tables: Tables) -> int:
    """What keeping the tables of an einsum takes: those of its ranks stay with them."""
    return array_bytes(tables.pool) + array_bytes(tables.memo) + sum(map(array_bytes, tables.choices))


@kept_up_to(KEPT_BYTES, _table_bytes)
def _tables(
    e: Einsum,
    served: Einsum,
    fanouts: tuple[Fanout, ...],
    factors: Factors,
    spatial: tuple[tuple[str, tuple[str, ...]], ...],
    trips: tuple[tuple[str, str, int, int], ...],
    lockstep: bool,
) -> Tables:
    """The tables of an einsum on machines with these fan-outs. served: as memories outside of arrays serve
    its result (`ungated`). spatial: (fan-out dimension, ranks that may be
    unrolled over it), as in Constraints.spatial. trips: as `_spatial_limits` returns them. lockstep: as of
    `terms.unshared`; PEs then share whole slots (`whole_slots`).

    Raises TooMany, NoneAllowed (spatial.py), TooLong (`_memo`).
    """
    dims, groups = dims_and_groups(fanouts)
    names = [name for f in sorted(fanouts, key=lambda f: f.outside) for name, _ in f.dims]
    outside = sorted({g.outside for g in groups})
    boundary_count = len(outside)
    ranks, sizes = tuple(rank for rank, n in e.extents if n > 1) or (e.extents[0][0],), e.sizes()

    found = gathered(e)

    rank_unrollings = tuple(
        unrollings(
            sizes[rank],
            _unrolled_over(rank, e, fanouts, spatial),
            len(dims),
            boundary_count,
            len(groups),
            factors,
            tuple((names.index(dim), least, most) for dim, own, least, most in trips if own == rank),
            found.tile_columns if found and rank == found.rank else None,
            whole_slots(e, rank) if lockstep else 1,
        )
        for rank in ranks
    )
    tensors = (*e.inputs, e.output)
    has_rank, full, in_window, unshared_ranks = (
        np.array([[rank in has for rank in ranks] for has in sets], np.bool_).reshape(
            len(tensors), len(ranks)
        )
        for sets in (
            [p.ranks() for p in tensors],
            [p.full_ranks() for p in tensors],
            [p.partial_ranks() for p in tensors],
            [unshared(p, served, lockstep) for p in tensors],
        )
    )
    in_last_dim = np.array([[rank in p.dims[-1].ranks() for rank in ranks] for p in tensors], np.bool_)
    kind, offset, stored, rank_of, coef = [], [], [], [], []
    for p in tensors:
        for dim in p.dims:
            terms = [(ranks.index(rank), c) for rank, c in dim.terms if rank in ranks]
            if len(terms) > 2:
                raise ValueError(f"{e.name}: a dimension of {p.tensor} adds up more than two ranks")
            inside = (
                dim.offset >= 0
                and dim.offset + sum(c * (sizes[rank] - 1) for rank, c in dim.terms) < dim.size
            )
            alone = inside and len(terms) == 1 and terms[0][1] == 1
            kind.append(state.ALONE if alone else state.HULL if inside else state.CLIPPED)
            offset.append(dim.offset)
            stored.append(dim.size)
            padded = [*terms, (-1, 0), (-1, 0)][:2]
            rank_of.append([r for r, _ in padded])
            coef.append([c for _, c in padded])
    first_dim = np.cumsum([0, *(len(p.dims) for p in tensors)])
    arrays = state.Einsum(
        has_rank=has_rank,
        full=full,
        in_window=in_window,
        unshared=unshared_ranks,
        has_zeros=np.array([any(p.density != 1 and rank in p.ranks() for p in e.inputs) for rank in ranks]),
        first_dim=first_dim,
        kind=np.array(kind, np.int64),
        offset=np.array(offset, np.int64),
        stored_size=np.array(stored, np.int64),
        dim_ranks=np.array(rank_of, np.int64).reshape(-1, 2),
        coef=np.array(coef, np.int64).reshape(-1, 2),
        rank_order=np.argsort([len(o.is_uneven) for o in rank_unrollings], kind="stable"),
    )
    groups_outside = [
        sum(1 << g for g, group in enumerate(groups) if group.outside in outside[:n])
        for n in range(boundary_count + 1)
    ]
    memo, tensor_names = _memo(rank_unrollings, arrays, boundary_count + 1), tuple(p.tensor for p in tensors)
    unreduced = sum(1 << g for g, group in enumerate(groups) if not group.reduce)
    pool = _pool(rank_unrollings, groups_outside, unreduced)
    outer_pool = pool._replace(stored=pool.stored.copy())
    return Tables(ranks, tensor_names, rank_unrollings, arrays, pool, outer_pool, memo, in_last_dim)


def _bare_networks(arch: Arch) -> tuple[Fanout, ...]:
    """The fan-outs of a machine with all that least hops do not depend on left out: prices of links above 0
    are 1, those of endpoints 0.
    """
    return tuple(replace(f, hop_pj=float(f.hop_pj > 0), endpoint_pj=0.0) for f in arch.fanouts)


@lru_cache(maxsize=256)
def _hops(
    e: Einsum,
    served: Einsum,
    networks: tuple[Fanout, ...],
    fanouts: tuple[Fanout, ...],
    factors: Factors,
    spatial: hops.Spatial,
    trips: tuple[tuple[str, str, int, int], ...],
    lockstep: bool,
) -> state.Hops:
    """The least hops of an einsum. networks: the machine's fan-outs (`_bare_networks`); served, fanouts,
    factors, spatial, trips, lockstep: as in `_tables`.
    """
    tables = _tables(e, served, fanouts, factors, spatial, trips, lockstep)
    return hops.tables(served, networks, tables.choices, tables.ranks, factors, lockstep)


def _pool(
    rank_unrollings: Sequence[SpatialUnrollings], groups_outside: Sequence[int], unreduced: int
) -> state.Pool:
    """The unrollings of all ranks end to end. groups_outside, unreduced: as in state.Pool."""
    base = np.cumsum([0, *(len(o.size) for o in rank_unrollings)])
    first = np.cumsum([0, *(len(o.is_uneven) for o in rank_unrollings)])
    ways = np.cumsum([0, *(len(o.factorizations) for o in rank_unrollings)])
    first_way = [o.first_factorization + w for o, w in zip(rank_unrollings, ways, strict=False)]
    depth = max(o.cuts.shape[1] for o in rank_unrollings)
    cuts = np.concatenate([np.pad(o.cuts, ((0, 0), (0, depth - o.cuts.shape[1]))) for o in rank_unrollings])
    out = np.concatenate(
        [
            np.where(o.outer_tile >= 0, o.outer_tile + b, -1)
            for o, b in zip(rank_unrollings, base, strict=False)
        ]
    )
    span = np.concatenate([o.span + b for o, b in zip(rank_unrollings, base, strict=False)])
    last = np.repeat(span[..., 1].ravel() - 1, (span[..., 1] - span[..., 0]).ravel())
    columns = max(o.pieces.shape[1] for o in rank_unrollings)
    return state.Pool(
        rank_start=first,
        span=span,
        size=np.concatenate([o.size for o in rank_unrollings]),
        stored=np.concatenate([o.size for o in rank_unrollings]).astype(np.float64),
        # ranks by whose tiles nothing is gathered: the same in all columns of a mask (`gathered_mask`)
        pieces=np.concatenate(
            [np.tile(o.pieces, (1, columns // o.pieces.shape[1])) for o in rank_unrollings]
        ),
        elems=np.concatenate([o.elems for o in rank_unrollings]),
        outer_tile=out,
        untiled=np.concatenate([o.untiled for o in rank_unrollings]),
        pes=np.concatenate([o.pes for o in rank_unrollings]),
        uneven=np.concatenate([o.is_uneven for o in rank_unrollings]),
        cuts=cuts,
        factorization_span=np.column_stack(
            [np.concatenate([f[:-1] for f in first_way]), np.concatenate([f[1:] for f in first_way])]
        ),
        factorizations=np.concatenate([o.factorizations for o in rank_unrollings]),
        first_tile=base,
        largest_tile=last,
        groups_outside=np.array(groups_outside, np.int64),
        unreduced=unreduced,
    )


def _memo(rank_unrollings: Sequence[SpatialUnrollings], e: state.Einsum, positions: int) -> state.Memo:
    """Empty tables for sums over tiles of windows. Raises TooLong where a window over padding, or an output
    in windows, has more than MAX_LISTED positions.
    """
    clipped, output = np.flatnonzero(e.kind == state.CLIPPED), np.arange(len(e.kind)) >= e.first_dim[-2]
    output_windows = np.flatnonzero((e.kind != state.ALONE) & output)

    def rows(dims: Ints) -> Ints:
        found = np.full(len(e.kind), -1, np.int64)
        found[dims] = np.arange(len(dims))
        return found

    def max_per_rank(dims: Ints, count: Callable[[SpatialUnrollings], int]) -> list[int]:
        return [
            max([count(rank_unrollings[r]) for r in e.dim_ranks[dims, side] if r >= 0], default=1)
            for side in (0, 1)
        ]

    hulls = np.full((positions, len(clipped), *max_per_rank(clipped, lambda o: len(o.size))), np.nan)
    unions = np.full((2, len(output_windows), *max_per_rank(output_windows, lambda o: len(o.size))), np.nan)
    shortest = np.full(
        (
            positions,
            len(e.kind),
            *max_per_rank(np.flatnonzero(e.kind != state.ALONE), lambda o: len(o.is_uneven)),
            positions,
        ),
        np.nan,
    )
    reach = [
        1
        + sum(
            c * (rank_unrollings[r].extent - 1)
            for r, c in zip(e.dim_ranks[dim], e.coef[dim], strict=True)
            if r >= 0
        )
        for dim in output_windows
    ]
    max_extent = max(
        [
            rank_unrollings[r].extent
            for dim in (*clipped, *output_windows)
            for r in e.dim_ranks[dim]
            if r >= 0
        ],
        default=1,
    )
    if max([max_extent, *reach]) > MAX_LISTED:
        raise TooLong(
            f"a window reaches into padding, or the output has windows: {max([max_extent, *reach]):,} "
            f"positions would be counted one by one, at most {MAX_LISTED:,}; take a smaller extent, or "
            "declare the padded size of the dimension in `sizes`, so that no window is clipped"
        )
    return state.Memo(
        hulls,
        rows(clipped),
        unions,
        rows(output_windows),
        shortest,
        np.zeros((2, 2, max_extent), np.int64),
        np.zeros(len(rank_unrollings), np.int64),
        np.zeros((positions, len(rank_unrollings)), np.int64),
        np.zeros(max(reach, default=1), np.bool_),
    )


def _machine(
    problems: Sequence[Problem],
    tensors: Sequence[str],
    parts: Parts,
    constraints: Constraints,
    max_cycles: float | Floats,
) -> state.Machine:
    """The machines as arrays.

    constraints: of them `homes` (the schedule keeps the tensor there already, so its capacity is accounted
        for outside of this einsum) and limits of tiles.
    max_cycles: cycles at most, on all machines or on each [J].
    """
    problem, e, arch = problems[0], problems[0].einsum, problems[0].arch
    dims, groups = dims_and_groups(arch.fanouts)
    outside = sorted({g.outside for g in groups})
    leak = np.array([one.arch.leak_mw() / one.arch.clock_ghz for one in problems])
    units = [_unit_widths(p, e, arch) for p in (*e.inputs, e.output)]
    stored = [[stored_at(level.formats, p, e) for level in arch.levels] for p in e.tensors()]
    return state.Machine(
        capacity=np.array(
            [inf if level.capacity_bits is None else float(level.capacity_bits) for level in arch.levels]
        ),
        bits=np.array(
            [
                [[bits + own.index_bits, own.pointer_bits, own.mask_bits()] for own in held]
                for held, (bits, _) in zip(stored, units, strict=True)
            ],
            np.float64,
        ),
        density=np.array(
            [[0.0 if own.format == "dense" else own.stored_density() for own in held] for held in stored]
        ),
        packed=np.array(_packed(e, arch)),
        uses_capacity=np.array(
            [
                [
                    n * ((t, level.name) not in constraints.homes)
                    for level, n in zip(arch.levels, widths, strict=True)
                ]
                for t, (_, widths) in zip(tensors, units, strict=True)
            ],
            np.float64,
        ),
        double_buffer=np.array([level.double_buffer for level in arch.levels]),
        no_sink=_no_sink_mask(e, arch),
        ports=np.array(parts.ports, np.int64),
        exposed=np.array(parts.exposed, np.int64),
        exchanges=np.array(
            [parts.index.get(PartKey("exchanges", v, v, ""), -1) for v in range(len(arch.levels))]
        ),
        through=np.array(parts.through, np.int64),
        position=np.array([sum(b <= v for b in outside) for v in range(len(arch.levels) + 1)]),
        fanout_size=np.array([array_dim.size for array_dim in dims], np.int64),
        fanout_boundary=np.array([array_dim.boundary for array_dim in dims], np.int64),
        leak=leak,
        max_cycles=np.full(len(problems), max_cycles),
        loop_positions=np.array(
            [
                k + 1
                for k, b in enumerate(outside)
                if any(level.double_buffer for level in arch.levels[:b])
                or any(limit.kind == "order" for limit in constraints.limits)
            ],
            np.int64,
        ),
        waits_at_ends=any(span.fills_end < span.drains_end for span in parts.exposed),
        objective=OBJECTIVES[problem.objective],
        first_word=np.zeros((len(problems), len(arch.levels))),
        most_bits=np.array(
            [
                [
                    _most_bits(constraints, level.name, t, n)
                    for level, n in zip(arch.levels, widths, strict=True)
                ]
                for t, (_, widths) in zip(tensors, units, strict=True)
            ],
            np.float64,
        ),
    )


def _unit_widths(p: Projection, e: Einsum, arch: Arch) -> tuple[int, list[int]]:
    """Returns the bits of which the width of an element is a multiple at every level, as many as can be, and
    the multiple at each level (nest.bits_at): whole numbers, so that capacities are compared exactly.

    16 bits at two levels and 24 at one between them: 8, and 2, 3, 2.
    """
    widths = [bits_at(level, p.tensor, e, arch) for level in arch.levels]
    unit = gcd(*widths)
    return unit, [bits // unit for bits in widths]


def _most_bits(constraints: Constraints, level: str, tensor: str, multiple: int) -> float:
    """Bits of one tile of a tensor at a level, at most, where an element takes so many times its bits there
    (state.Machine.uses_capacity); inf: no limit.
    """
    own = [
        limit.most // multiple
        for limit in constraints.limits
        if (limit.kind, limit.at, limit.name) == ("tile", level, tensor)
    ]
    return float(min(own, default=inf))


def _no_sink_mask(e: Einsum, arch: Arch) -> NDArray[np.bool_]:
    """Returns [X, V, V] by tensor, level of the parent, level of the node: whether the node does not sink
    below loops (state.Machine.no_sink). So it is for dense tensors where the node or its parent stands at a
    level with cache lines.
    """
    return _stands_whole_at(e, tuple(level.access is not None for level in arch.levels))


@lru_cache(maxsize=1024)
def _stands_whole_at(e: Einsum, lines: tuple[bool, ...]) -> NDArray[np.bool_]:
    """`_no_sink_mask`, by whether each level has cache lines."""
    has_lines = np.array(lines)
    dense = np.array([moves_in_lines(p) for p in (*e.inputs, e.output)])
    whole: NDArray[np.bool_] = dense[:, None, None] & (has_lines[None, :, None] | has_lines[None, None, :])
    return whole


class PartKey(NamedTuple):
    """A part of a cost that is cycles of a port, or a stall at a port.

    "busy": cycles of the port itself (level == port_level)
    "fill", "drain": cycles at the port for which the inside of `level` waits
    "serve": cycles at the port for transfers to levels further inside than `level`
    "exchanges": cycles of all ports for which the inside of a level waits, one exchange after the other
    """

    kind: Literal["busy", "fill", "drain", "serve", "exchanges"]
    level: int
    port_level: int
    port: str  # its name (actions.port)


class StallSpan(NamedTuple):
    """The parts that are stalls of one level: begin .. fills_end - 1 those of first fills, from there on to
    drains_end - 1 those of last drains. Of a single-buffered level the first range has all fills and drains.
    """

    begin: int
    fills_end: int
    drains_end: int


@dataclass(frozen=True, slots=True)
class Parts:
    """Index of each part of a cost that is cycles of ports or stalls. In the vector [P] of parts they stand
    after energy, steps and ramps (state.py).
    """

    index: dict[PartKey, int]
    ports: tuple[tuple[int, int], ...]  # per level: "busy" of two of its ports, as state.Machine.ports
    exposed: tuple[StallSpan, ...]  # per level
    # per level (first, last + 1) of "serve", as state.Machine.through, and of "busy" of all other ports of
    # the level next inside (of the outermost level's own, too): the time until then is never less than them
    through: tuple[tuple[int, int], ...]

    def count(self) -> int:
        """The number P of all parts, with energy, steps and ramps."""
        return _next_number(self.index)


@lru_cache(maxsize=256)
def _parts(arch: Arch, exposed: Exposed) -> Parts:
    """The parts of a machine's costs. A double-buffered level waits only for first fills and last drains, and
    only with "ends". A single-buffered level waits for all fills and drains: one part per port, or one part
    for all ports with "sequential".
    """
    index: dict[PartKey, int] = {}
    names = [_port_names(level) for level in arch.levels]
    ports = []
    for v, own in enumerate(names):
        two = [
            index.setdefault(PartKey("busy", v, v, name), _next_number(index))
            for name in (own[0], own[:2][-1])
        ]
        ports.append((two[0], two[1]))
    stalls: list[StallSpan] = []
    for v, level in enumerate(arch.levels):
        ends = [_next_number(index)]
        has_stalls = v > 0 and arch.overlap == "buffered" and (exposed == "ends" or not level.double_buffer)
        # a fill reads at outer levels and writes at this one, a drain the other way round
        for kind, outer in (("fill", "read"), ("drain", "write")):
            for u in range(v + 1) if has_stalls else ():
                for name in _port_names(arch.levels[u], kind if u == v else outer):
                    if arch.levels[u].bandwidth < inf:
                        key = PartKey(
                            "drain" if kind == "drain" and level.double_buffer else "fill", v, u, name
                        )
                        index.setdefault(key, ends[0] if exposed == "sequential" else _next_number(index))
            if kind == "drain" and has_stalls and exposed == "exchanges":
                index.setdefault(PartKey("exchanges", v, v, ""), _next_number(index))
            ends.append(_next_number(index))
        begin, fills_end, drains_end = ends
        stalls.append(StallSpan(begin, fills_end if level.double_buffer else drains_end, drains_end))
    serves = []
    for v in range(len(arch.levels)):
        begin = _next_number(index)
        can_stall = stalls[v].begin < stalls[v].drains_end
        for u in range(v + 1) if can_stall else ():
            for name in names[u] if arch.levels[u].bandwidth < inf else ():
                index.setdefault(PartKey("serve", v, u, name), _next_number(index))
        for u in (0, 1) if v == 0 else (v + 1,):
            for name in names[u][2:] if u < len(names) else ():
                index[PartKey("busy", u, u, name)] = _next_number(index)
        serves.append((begin, _next_number(index)))
    return Parts(index, tuple(ports), tuple(stalls), tuple(serves))


def counts_alike(arch: Arch, a: Exposed, b: Exposed) -> bool:
    """True if searches that expose stalls in these two ways count the same cycles on a machine: "least" and
    "ends" where no level inside is double-buffered.
    """
    return a == b or ("sequential" not in (a, b) and _parts(arch, a) == _parts(arch, b))


def _port_names(level: Level, *actions: str) -> list[str]:
    """The ports of a level that serve these actions (none: all of PORT_ACTIONS), of any tensor."""
    found = (level.port(of, action)[0] for action in actions or PORT_ACTIONS for of in level.may_keep)
    return list(dict.fromkeys(found))


def _next_number(index: Dict[PartKey, int]) -> int:
    """The number that the next part gets."""
    return 1 + max(index.values(), default=state.RAMP)


class Quantity(NamedTuple):
    """An amount that moves on a link (words, accesses of compute, first reads ...), a product over ranks. Its
    first five fields are a row of state.Terms.quantity.
    """

    kind: int  # state.WORDS, ...
    tensor: int
    position: int
    mask_irrelevant: int  # groups of PEs of which only the first counts, for ranks irrelevant to the tensor
    mask_relevant: int  # the same for its own ranks
    line_bits: int = 0  # bits of a cache line; 0: any number of words may move
    spread: Spread = NO_SPREAD
    hop_pair: int = NO_LINKS  # the pair of state.Hops whose links it is multiplied by


# quantity -> part of the cost -> its coefficient: how much one unit of the quantity adds to the part, as an
# array by price (`_with_unit_prices`)
Row = dict[Quantity, dict[int, Any]]


@dataclass(frozen=True, slots=True)
class Entries:
    """An array of coefficients, each of them a sum of factor * price, as a sparse matrix: one entry per
    coefficient and price that it depends on.
    """

    shape: tuple[int, ...]  # of the array of coefficients
    position: Ints  # [.] position of the coefficient in the flattened array
    price: Ints  # [.] number of the price (`_prices`)
    factor: Floats  # [.]

    def for_prices(self, prices: Floats) -> Floats:
        """The array for each machine [J, *shape]; prices [J, number of prices]."""
        found = np.array(
            [
                np.bincount(self.position, self.factor * machine_prices[self.price], prod(self.shape))
                for machine_prices in prices
            ],
            np.float64,
        )
        return found.reshape((len(prices), *self.shape))


@dataclass(frozen=True, slots=True)
class Form:
    """Terms of machines without their prices, and the arrays of `terms` that depend on prices."""

    terms: state.Terms
    link_coef: Entries
    sum_coef: Entries
    low_coef: Entries
    link_outer_pj: Entries
    sum_outer_pj: Entries
    low_outer_pj: Entries


@lru_cache(maxsize=256)
def _prices(arch: Arch) -> tuple[float, ...]:
    """The numbers that coefficients are sums of: prices of the machine in pJ, its rates as cycles (1 / rate),
    the cycles of a fold of each systolic array, and a last 1 for costs without a price.
    """
    fields, rates = slots(arch, *PRICES, "rate"), set(slots(arch, "rate"))
    values = [
        (1 / value if value else 0.0) if one in rates else value
        for one, value in zip(fields, arch.values(fields), strict=True)
    ]
    return (*values, *(float(fold_cycles(f)) for f in arch.fanouts if f.systolic), 1.0)


def same_structure(problem: Problem) -> tuple[Any, ...]:
    """A key that is equal for problems that `search_on` takes together: the same einsum and objective, on
    machines that differ in prices and rates alone.
    """
    e, arch = problem.einsum, problem.arch
    ramps = tuple(fill_cycles(f, e, arch) for f in arch.fanouts if f.systolic)
    return problem.objective, e, tuple(arch.values(slots(arch, "size"))), ramps, _structure_of(arch)


@lru_cache(maxsize=256)
def _structure_of(arch: Arch) -> Arch:
    """The machine reduced to what the form of its terms depends on: without sizes; prices above 0 are 1,
    prices of 0 stay.
    """

    def ones(of: FieldRole, value: float | None) -> float | None:
        return (
            float(value > 0) if of in PRICES and value is not None else value if value in (None, inf) else 1.0
        )

    return arch.without("size", "leakage", "clock", "area", "label", "tiles").map_fields(
        (*PRICES, "rate"), ones
    )


def _with_unit_prices(structure: Arch) -> Arch:
    """The structure (`_structure_of`) with an array in place of every price: 1 at the number of that price,
    else 0. A cost of this machine is then the array of its coefficients.
    """
    fields, rates = slots(structure, *PRICES, "rate"), set(slots(structure, "rate"))
    # the last prices (folds, and the 1) belong to no field of the machine: zip drops them
    columns = zip(fields, structure.values(fields), np.diag(np.array(_prices(structure))), strict=False)
    # 1 / 0 = inf: in the column of another price the rate is infinite, so it takes no time
    with np.errstate(divide="ignore"):
        return structure.with_values(
            fields,
            [None if value is None else 1 / row if one in rates else row for one, value, row in columns],
        )


def _terms(arches: Sequence[Arch], form: Form, base: Entries, e: Einsum) -> state.Terms:
    """The terms of a form with the coefficients of each machine. base: `_base` of the einsum."""
    prices, arch = np.array([_prices(arch) for arch in arches]), arches[0]
    own_base = base.for_prices(prices)
    # of each systolic array: its ramp is the fill cycles of all folds, less one cycle (actions.busy)
    own_base[:, state.RAMP] = -sum(fill_cycles(f, e, arch) > 0 for f in arch.fanouts if f.systolic)
    return form.terms._replace(
        link_coef=form.link_coef.for_prices(prices),
        sum_coef=form.sum_coef.for_prices(prices),
        low_coef=form.low_coef.for_prices(prices),
        link_outer_pj=form.link_outer_pj.for_prices(prices),
        sum_outer_pj=form.sum_outer_pj.for_prices(prices),
        low_outer_pj=form.low_outer_pj.for_prices(prices),
        base=own_base,
    )


@lru_cache(maxsize=1024)
def _form(
    e: Einsum,
    structure: Arch,
    exposed: Exposed,
    spread: tuple[tuple[str, Spread], ...],
    holder_sets: tuple[tuple[int, ...], ...],
) -> Form:
    """The terms that machines share which differ in prices and sizes alone. `_with_fewest_indices` gives the
    same for many extents.

    structure: what they share, without sizes and with prices 1 (`_structure_of`).
    spread: (tensor, Spread) pairs.
    holder_sets: per tensor the sets of levels that may hold it, as masks (`_holder_sets`).
    """
    arch = _with_unit_prices(structure)
    parts = _parts(structure, exposed)
    tensors = tuple(p.tensor for p in (*e.inputs, e.output))
    depth = len(structure.levels)
    problem, price_count = Problem(arch, e, "energy"), len(_prices(structure))
    link_rows = {
        (x, parent, child): _link(problem, tensors, parts, dict(spread), x, parent, child)
        for x, parent in product(range(len(tensors)), range(depth))
        for child in range(parent + 1, depth + 1)
    }
    links, lows, outer_links, outer_lows = (
        {key: found[which] for key, found in link_rows.items()} for which in range(4)
    )
    groups = _groups(arch)
    all_groups = (1 << len(groups)) - 1
    on_vector_unit = any_nonzero(op_cycles(1.0, 0.0, e, arch))
    busiest_pe_cycles = 0.0 if on_vector_unit else op_cycles(0.0, nonzero_share(e), e, arch)
    points_of_first_pe = Quantity(state.POINTS, 0, len({g.outside for g in groups}), all_groups, all_groups)

    def sum_links(by_link: dict[tuple[int, int, int], Row]) -> tuple[list[Row], Ints]:
        """Returns two things, per set of levels that may hold a tensor: its links added up to one row; and
        [N, 2] where its quantities begin and end, when all rows stand end to end.
        """
        sums: list[Row] = []
        for x, masks in enumerate(holder_sets):
            for mask in masks:
                levels = [*(v for v in range(depth) if mask >> v & 1), depth]
                total: Row = {points_of_first_pe: {state.STEPS: busiest_pe_cycles}} if x == 0 else {}
                for parent, child in pairwise(levels):
                    for q, coef in by_link[x, parent, child].items():
                        for part, more in coef.items():
                            _add_entry(total, q, part, more)
                sums.append(total)
        ends = np.cumsum([0, *map(len, sums)])
        return sums, np.column_stack([ends[:-1], ends[1:]])

    (sums, sum_span), (low_sums, low_span) = sum_links(links), sum_links(lows)
    outer_sums, outer_low_sums = sum_links(outer_links)[0], sum_links(outer_lows)[0]
    quantities = {
        q: i for i, q in enumerate(dict.fromkeys(q for row in (*links.values(), *sums) for q in row))
    }
    link, end = np.zeros((len(tensors), depth, depth + 1, 2), np.int64), 0
    for (x, parent, child), row in links.items():
        link[x, parent, child] = end, end + len(row)
        end += len(row)

    def flat(table: Iterable[Row]) -> tuple[Ints, Entries]:
        rows = [(quantities[q], coef) for row in table for q, coef in row.items()]
        dense = np.zeros((len(rows), parts.count(), price_count))
        for i, (_, coef) in enumerate(rows):
            for part, more in coef.items():
                dense[i, part] = more
        return np.array([q for q, _ in rows], np.int64), _entries(dense)

    def outer_pj(table: Iterable[Row], outer: Iterable[Row]) -> Entries:
        rows = [own.get(q, {}).get(state.PJ, 0.0) for row, own in zip(table, outer, strict=True) for q in row]
        return _entries(np.array([one + np.zeros(price_count) for one in rows]).reshape(-1, price_count))

    (link_quantity, coef), (sum_quantity, sum_coef), (low_quantity, low_coef) = (
        flat(links.values()),
        flat(sums),
        flat(low_sums),
    )
    bits, no_coefs = bits_of(e, arch), np.zeros((0, 0, 0))
    serves = [_serves(p, e, packed) for p, packed in zip(e.tensors(), _packed(e, arch), strict=True)]
    outer_code, outer_choices, outer_without = _outer_codes(holder_sets, _outer_levels(groups), serves)
    terms = state.Terms(
        quantity=np.array([q[:5] for q in quantities], np.int64),
        line_words=np.array([q.line_bits / bits[tensors[q.tensor]] for q in quantities]),
        spread_dims=np.array([q.spread.dims for q in quantities], np.int64),
        line_share=np.array([q.spread.line_share for q in quantities]),
        hop_pair=np.array([q.hop_pair for q in quantities], np.int64),
        hops=hops.tables(e, (), (), (), "perfect", False),
        link=link,
        link_of=link_quantity,
        link_coef=no_coefs,
        holder_span=np.cumsum([0, *map(len, holder_sets)]),
        holder_sets=np.array([mask for masks in holder_sets for mask in masks], np.int64),
        outer_code=outer_code,
        outer_choices=outer_choices,
        outer_without=outer_without,
        serves=np.array(serves),
        link_outer_pj=np.zeros((0, 0)),
        sum_outer_pj=np.zeros((0, 0)),
        low_outer_pj=np.zeros((0, 0)),
        sum=sum_span,
        sum_of=sum_quantity,
        sum_coef=no_coefs,
        low=low_span,
        low_of=low_quantity,
        low_coef=no_coefs,
        base=np.zeros((0, 0)),
    )
    return Form(
        terms,
        coef,
        sum_coef,
        low_coef,
        outer_pj(links.values(), outer_links.values()),
        outer_pj(sums, outer_sums),
        outer_pj(low_sums, outer_low_sums),
    )


@lru_cache(maxsize=1024)
def _base(e: Einsum, structure: Arch, exposed: Exposed) -> Entries:
    """What no tile changes: operations, and rows that are opened at least. structure: as of `_form`."""
    arch = _with_unit_prices(structure)
    ops = e.points() * nonzero_share(e)
    base = np.zeros((_parts(structure, exposed).count(), len(_prices(structure))))
    base[0] = ops * op_pj(e, arch)
    base[0, -1] += _min_row_pj(e, arch)
    base[state.STEPS] = op_cycles(ops, 0.0, e, arch)
    return _entries(base)


@lru_cache(maxsize=1024)
def _with_fewest_indices(e: Einsum) -> Einsum:
    """Returns an einsum of the same form that many extents have in common: of ranks with several indices each
    has two. Where the form depends on extents (windows, padding, sparse tensors) it is `e`.
    """
    if not all(
        p.format == "dense" and p.density == 1 and all(rank_of(dim, e) for dim in p.dims) for p in e.tensors()
    ):
        return e

    def smaller(p: Projection) -> Projection:
        return replace(p, dims=tuple(replace(d, size=min(d.size, 2)) for d in p.dims))

    extents = tuple((rank, min(n, 2)) for rank, n in e.extents)
    return replace(e, output=smaller(e.output), inputs=tuple(map(smaller, e.inputs)), extents=extents)


def _outer_levels(groups: Sequence[Group]) -> int:
    """How many levels are outer levels (state.Terms): outside of all fan-outs, 0 if there is no fan-out."""
    return min((g.outside for g in groups), default=0)


def _packed(e: Einsum, arch: Arch) -> tuple[bool, ...]:
    """Returns, per tensor, whether some level stores it compressed."""
    return tuple(
        any(stored_at(level.formats, p, e).format != "dense" for level in arch.levels) for p in e.tensors()
    )


def _serves(p: Projection, e: Einsum, packed: bool) -> bool:
    """Whether the outer costs of a tensor have what the outermost level serves to a node inside of a fan-out.
    No smaller tiles of it move fewer words: it is dense everywhere (not `_packed`), and each dimension has
    one rank, without gaps.
    """
    sizes = e.sizes()
    terms = [(dim, [(r, c) for r, c in dim.terms if sizes[r] > 1]) for dim in p.dims]
    return not packed and all(
        len(own) <= 1 and dim.offset == 0 and all(c == 1 and dim.size >= sizes[r] for r, c in own)
        for dim, own in terms
    )


def _outer_codes(
    holder_sets: Sequence[Sequence[int]], outer_levels: int, serves: Sequence[bool]
) -> tuple[Ints, Ints, Ints]:
    """`outer_code`, `outer_choices` and `outer_without` of state.Terms. serves: per tensor."""
    outer_mask = (1 << outer_levels) - 1

    def counted(mask: int, served: bool) -> int:
        # the levels of its nodes that count: those at outer levels, else the one that the outermost serves
        inside = mask & ~outer_mask
        return mask & outer_mask | (inside & -inside if served and mask & outer_mask == 1 else 0)

    outer = [
        [counted(mask, served) for mask in masks] for masks, served in zip(holder_sets, serves, strict=True)
    ]
    kinds = [sorted(set(masks)) for masks in outer]
    if not outer_levels or not 0 < prod(map(len, kinds)) <= MAX_OUTER_CODES:
        none = np.zeros((0, len(outer)), np.int64)
        return np.zeros(sum(map(len, outer)), np.int64), none, none
    first = np.cumsum([0, *map(len, outer)]).tolist()
    code, sets = list[int](), list[list[int]]()
    for x, (masks, own) in enumerate(zip(outer, kinds, strict=True)):
        code += [own.index(mask) * prod(map(len, kinds[x + 1 :])) for mask in masks]
        sets.append([first[x] + masks.index(mask) for mask in own])
    without = [
        [
            number - (own.index(mask) - own.index(less)) * prod(map(len, kinds[x + 1 :]))
            if (less := mask & ~(1 << mask.bit_length() >> 1)) in own and less != mask
            else -1
            for x, (mask, own) in enumerate(zip(masks, kinds, strict=True))
        ]
        for number, masks in enumerate(product(*kinds))
    ]
    return np.array(code), np.array(list(product(*sets))), np.array(without)


def _groups(arch: Arch) -> tuple[Group, ...]:
    """The groups of a machine whose prices may be arrays."""
    return dims_and_groups(tuple(replace(f, hop_pj=0.0, endpoint_pj=0.0) for f in arch.fanouts))[1]


def _entries(dense: Floats) -> Entries:
    """The entries of an array of coefficients [...]. dense: [..., number of prices] the factor of each price
    in each coefficient.
    """
    *place, price = np.nonzero(dense)
    return Entries(
        dense.shape[:-1], np.ravel_multi_index(tuple(place), dense.shape[:-1]), price, dense[(*place, price)]
    )


def _add_entry(row: Row, q: Quantity, part: int, more: Any) -> None:
    """Adds `more` to the coefficient of a quantity in one part."""
    by_part = row.setdefault(q, {})
    by_part[part] = by_part.get(part, 0.0) + more


def _link(
    problem: Problem,
    tensors: Sequence[str],
    parts: Parts,
    spread: Dict[str, Spread],
    x: int,
    parent: int,
    child: int,
) -> tuple[Row, Row, Row, Row]:
    """What a tensor's nodes at two levels, parent and child, move between each other, and a lower bound of
    it: two rows. In each, energy counts all instances, cycles the busiest instance. child: a level, or the
    number of levels, which stands for compute. Two more rows have the outer costs in each (state.Terms): all
    energy of a child at an outer level; of one further inside what the outermost level serves (`_serves`).

    reads = R - S + W', writes = W + R' - S', merges = W' - W (docs/model.md, Counts). R, W: what the parent
    serves; R', W': what the child fetches and drains; S, S': first reads, which are skipped: by the parent
    once per element, by the child once per PE. The lower bound leaves out S and S' together with the reads
    that they are subtracted from.
    """
    e, arch = problem.einsum, problem.arch
    levels, output = arch.levels, x == len(tensors) - 1
    groups = _groups(arch)
    outside = sorted({g.outside for g in groups})
    position, compute = sum(b <= child for b in outside), child == len(levels)
    # masks of groups: outside of a level; between the two levels, of which PEs share a word
    mask = {v: sum(1 << g for g, group in enumerate(groups) if group.outside <= v) for v in (parent, child)}
    # groups whose PEs have instances of their own
    own = {
        v: sum(1 << g for g, group in enumerate(groups) if group.outside <= v and not group.shares(levels, v))
        for v in (parent, child)
    }
    common = mask[child] & ~own[child]  # groups whose PEs share one instance of the child
    between = own[child] & ~own[parent]  # groups whose PEs one instance of the parent serves
    shared = common | sum(
        1 << g
        for g, group in enumerate(groups)
        if between & 1 << g and (group.reduce if output else group.multicast)
    )
    found, low, outer, outer_low = (dict[Quantity, dict[int, Any]]() for _ in range(4))
    outer_levels = _outer_levels(groups)
    in_pe = levels[parent].name in arch.levels_of_pes()
    seen = e if in_pe else ungated(e, arch.compute.gates, output)  # as the parent serves it to compute
    line_bits = (
        _line_bits(arch, parent)
        if (p := (*e.inputs, e.output)[x]).format == "dense"
        and p.density == 1
        and (not compute or nonzero_share(seen) == 1)
        else 0
    )
    link_spread = spread.get(tensors[x], NO_SPREAD) if line_bits and parent == 0 else NO_SPREAD
    gather = gathered(e)
    is_gathered = gather is not None and gather.tensor == tensors[x] and not compute
    double_buffered = not compute and levels[child].double_buffer
    child_waits = not compute and parts.exposed[child].begin < parts.exposed[child].drains_end

    no_price, is_outer_cost = _price_of_nothing(levels[parent]), _serves(p, e, _packed(e, arch)[x])

    def add(
        v: int, action: str, kind: int, own_groups: int, merged: int, scale: float, in_bound: bool
    ) -> None:
        """Adds one action at level v to the rows.

        own_groups: mask of the groups whose PEs have instances of v of their own; cycles count the first PE
            of these alone.
        merged: mask of the groups whose PEs share an access.
        scale: words per unit of the quantity; negative for skipped reads.
        in_bound: whether to add it to the lower bound too.

        Where the inside of the child waits for the action, its cycles also go to a part of that kind. The
        parent moves whole lines, for all requests that PEs make at once and in the best layout; what waits
        for a tensor waits for its lines and misses (transfer.delays).
        """
        level = levels[v]
        elem_bits = bits_at(level, tensors[x], e, arch)
        pj = level.read_pj if action in ("read", "drain") else level.write_pj
        of = role(e, tensors[x])
        side = level.port(of, action)[0]
        cycles = elem_cycles(level, elem_bits, of, action) * scale
        moved_line_bits = (
            line_bits
            if v == parent
            and not (skipped_reads and action == "read")
            and kind in (state.WORDS, state.POINTS)
            else 0
        )
        moved_spread = link_spread if moved_line_bits else NO_SPREAD
        all_instances = Quantity(kind, x, position, merged, 0)
        first_pes = own_groups | merged
        if is_gathered:
            first_pes = gathered_mask(own_groups, first_pes, len(groups))
        # along shared groups a node's own ranks are not unrolled (`_where_alike`): with or without these in
        # the mask the count is the same, and sums over windows are tabled by all groups of a boundary
        busiest = Quantity(kind, x, position, first_pes, own_groups if compute else mask[v])
        stall_key = PartKey("drain" if kind == state.LAST_DRAINS else "fill", child, v, side)
        stall = (busiest, parts.index.get(stall_key, 0), cycles)
        if kind in (state.FIRST_FILLS, state.LAST_DRAINS):
            rows = [stall]
        else:
            own_busy = [
                (
                    busiest._replace(line_bits=_busy_line_bits(level, moved_line_bits), spread=moved_spread),
                    cycles,
                ),
                *(
                    (
                        busiest._replace(line_bits=MANY_BITS, spread=at_least),
                        no_price * (miss_cycles * elem_bits / MANY_BITS),
                    )
                    for at_least, miss_cycles in _misses(level, moved_line_bits, elem_bits, len(p.dims))
                ),
            ]
            rows = [
                (
                    all_instances._replace(line_bits=moved_line_bits, spread=moved_spread),
                    state.PJ,
                    accesses_per_elem(level, elem_bits) * scale * pj,
                ),
                *((q, parts.index[PartKey("busy", v, v, side)], more) for q, more in own_busy),
            ]
            wait_keys = [PartKey("serve", crossed, v, side) for crossed in range(v, child)]
            wait_keys += [stall_key] if child_waits and not double_buffered else []
            rows += [
                (q, parts.index[key], more) for key in wait_keys if key in parts.index for q, more in own_busy
            ]
        is_outer = child < outer_levels or (
            v == parent == 0 < outer_levels and not compute and not line_bits and is_outer_cost
        )
        for q, part, more in rows:
            into = [found, *([low] if in_bound else [])]
            if is_outer and part == state.PJ:
                into += [outer, *([outer_low] if in_bound else [])]
            for row in into if any_nonzero(more) else ():
                _add_entry(row, q, part, more)

    stored = [stored_at(levels[v].formats, p, e) for v in (parent, child)[: 1 if compute else 2]]
    compressed = any(own.format != "dense" for own in stored)
    lockstep = in_lockstep(e, arch.compute)
    sparse_counts = sparse(seen, stored[0], arch.word_bits, lockstep) if output and compute else None
    nonzero_outputs = state.NONZERO_OUTPUTS_IN_PE if in_pe else state.NONZERO_OUTPUTS

    def moved(own: Projection) -> Moved:
        """What moves of the tensor as it is stored at an end of the link."""
        packed, (elem_words, row_words) = own.format != "dense", own.compressed_words(arch.word_bits)
        each = elem_words if packed else 1.0
        pointers = [(state.ROWS, row_words)] if packed and not compute else []
        amounts = (
            [(state.POINTS, direct_elems(own, seen, arch.word_bits, lockstep))]
            if compute
            else [(state.WORDS, each)]
        )
        amounts += [] if output else pointers
        first_reads = (
            [
                (nonzero_outputs, -sparse_counts.first_reads),
                (state.COMPUTE_FIRST_READS, -sparse_counts.first_reads_per_pe),
            ]
            if sparse_counts
            else [(state.COMPUTE_FIRST_READS, -1.0) if compute else (state.NODE_FIRST_READS, -each)]
        )
        only_written = (
            [(nonzero_outputs, sparse_counts.writes)] if sparse_counts and sparse_counts.writes else pointers
        )
        skipped = first_reads if output and levels[parent].skip_first_read else []
        return Moved(amounts, skipped, only_written)

    at_parent, at_child = moved(stored[0]), moved(stored[-1])
    # of first fills of what is gathered no least number of words is known
    dense = double_buffered and child_waits and not compressed and not is_gathered
    filled = [(state.FIRST_FILLS, 1.0)] if dense and not (output and levels[parent].skip_first_read) else []
    drained = [(state.LAST_DRAINS, 1.0)] if dense and not (output and p.partial_ranks()) else []
    amounts, skipped_reads, only_written = at_parent
    reads, child_fills = ((*one.amounts, *one.skipped_reads, *filled) for one in (at_parent, at_child))
    for served, brought in zip_longest(reads, child_fills):
        if served:
            # the first of all PEs that add to an element finds none to read, the others add to it
            merged = common | between if served in skipped_reads else shared
            add(parent, "read", served[0], own[parent], merged, served[1], not skipped_reads)
        if brought and not compute:
            add(child, "fill", brought[0], own[child], common, brought[1], not skipped_reads)
    crossing = [Crossing(kind, words, not skipped_reads) for kind, words in (*amounts, *skipped_reads)]
    crossing += [Crossing(kind, words, True) for kind, words in (*amounts, *only_written)] if output else []
    for quantity, pj, in_bound in _networks(problem, tensors, x, parent, child, position, shared, crossing):
        for row in (found, low) if in_bound else (found,):
            _add_entry(row, quantity, state.PJ, pj)
    writes, child_drains = ((*one.amounts, *drained, *one.only_written) for one in (at_parent, at_child))
    for taken, drain in zip_longest(writes, child_drains) if output else ():
        if taken:
            add(parent, "write", taken[0], own[parent], shared, taken[1], True)
        if drain and not compute:
            add(child, "drain", drain[0], own[child], common, drain[1], True)
    first_pe_elems = Quantity(state.POINTS if compute else state.WORDS, x, position, mask[child], mask[child])
    for cycles, q in _folds(e, arch, tensors[x], parent, child, first_pe_elems):
        for row in (found, low):
            _add_entry(row, q, state.RAMP, cycles)
    added_pj = action_pj(("MAC", p.tensor, "merge"), problem.einsum, arch)
    if output and not compute and between and any_nonzero(added_pj):
        # Merges are the partial sums that all PEs drain minus those that are left after merging. The
        # difference is at least 0, and both grow alike with smaller tiles, so the lower bound has it too.
        added_pj = added_pj * (p.density if stored[-1].format != "dense" else 1.0)
        for merged, pj in ((common, added_pj), (common | between, -added_pj)):
            for row in (found, low):
                _add_entry(row, Quantity(state.WORDS, x, position, merged, 0), state.PJ, pj)
    return found, low, outer, outer_low


class Moved(NamedTuple):
    """What a link moves at one of its ends: (Quantity.kind, words per unit of the quantity)."""

    amounts: list[tuple[int, float]]  # one way
    skipped_reads: list[tuple[int, float]]  # of a result: first reads, negative
    only_written: list[tuple[int, float]]  # of a result: what does not come back


class Crossing(NamedTuple):
    """One of the quantities that a link moves across networks."""

    kind: int  # Quantity.kind
    words: float  # per unit of the quantity
    in_bound: bool  # whether the lower bound of the link has it too


def _networks(
    problem: Problem,
    tensors: Sequence[str],
    x: int,
    parent: int,
    child: int,
    k: int,
    shared: int,
    crossing: Iterable[Crossing],
) -> Iterator[tuple[Quantity, Any, bool]]:
    """Yields what a link moves through networks with a price, as (quantity, pJ per unit, whether the lower
    bound has it too): bits that PEs take or give, and bits times links, counted once for PEs that share
    (network.network_traffic), each word as wide as it is at the parent.

    k: position of the child
    shared: mask of groups whose PEs share words
    """
    arch, compute = problem.arch, child == len(problem.arch.levels)
    word_bits = bits_at(arch.levels[parent], tensors[x], problem.einsum, arch)
    for i, f in enumerate(arch.fanouts):
        if not parent < f.outside <= child:
            continue
        pair = hops.pair_of(arch.fanouts, len(tensors), i, x, compute)
        for kind, words, in_bound in crossing:
            if any_nonzero(f.endpoint_pj):
                yield Quantity(kind, x, k, 0, 0), f.endpoint_pj * word_bits * words, in_bound
            if pair >= 0:
                yield Quantity(kind, x, k, shared, 0, hop_pair=pair), f.hop_pj * word_bits * words, in_bound


def _folds(
    e: Einsum, arch: Arch, tensor: str, parent: int, child: int, elems: Quantity
) -> Iterator[tuple[Floats, Quantity]]:
    """Yields (cycles of a fold, by price; number of folds, a quantity) for each systolic array whose
    stationary tensor crosses it on this link (terms.folds).

    The number is 1 where the child is double-buffered. Otherwise it is `elems`, the elements that the first
    PE gets; where dimensions are clipped these are fewer than the folds.
    """
    # every price of `_with_unit_prices` is an array with one entry per price
    price_count, arrays = np.size(arch.compute.mac_pj), [f for f in arch.fanouts if f.systolic]
    for i, f in enumerate(arrays):
        if (
            parent < f.outside <= child
            and tensor == stationary(e, f.systolic).tensor
            and passes_array(e, arch)
        ):
            double_buffered = child < len(arch.levels) and arch.levels[child].double_buffer
            yield (
                np.eye(price_count)[price_count - 1 - len(arrays) + i],
                elems._replace(kind=state.ONE) if double_buffered else elems,
            )


def _line_bits(arch: Arch, v: int) -> int:
    """Bits that a level outside all arrays moves at once; 0 where any number of words may move. A node that
    sinks asks for fewer words at a time and still pays for whole lines.
    """
    access = arch.levels[v].access
    return access.line_bits if access and all(f.outside > v for f in arch.fanouts) else 0


def _price_of_nothing(level: Level) -> Floats:
    """The coefficients of a cost of 1 that has no price: 1 at the last of `_prices`. level: with unit
    prices.
    """
    found = np.zeros(np.shape(level.read_pj))
    found[-1:] = 1.0
    return found


def _busy_line_bits(level: Level, line_bits: int) -> int:
    """Bits that take as long as the least request, of a level that moves `line_bits` (0: any number) at once:
    of an SRAM with banks those of all banks, since its busiest bank serves at least one word.
    """
    access = level.access
    return max(line_bits, access.banks * level.width_bits) if line_bits and access else line_bits


def _misses(level: Level, line_bits: int, elem_bits: int, dims: int) -> Iterator[tuple[Spread, float]]:
    """Yields (how much of a miss each different element of a request is at least, cycles of a miss) where
    lines are prefetched (dse/layout/count.py, misses). A request misses at least once, as it is one run of
    one line or more, and once per `prefetch_lines` of the lines that its elements fill.
    """
    access = level.access
    if line_bits and access and access.prefetch_lines and np.any(level.bandwidth < inf):
        calibrated = access.prefetch_run is not None and access.prefetch_line is not None
        a_run, a_line = (access.prefetch_run, access.prefetch_line) if calibrated else (0.0, 1.0)
        at_once = 1 if calibrated else access.prefetch_lines
        if a_run and access.miss_cycles:
            yield NO_SPREAD, a_run * access.miss_cycles
        if a_line and access.miss_cycles:
            share = elem_bits / line_bits / at_once
            yield Spread((1 << dims) - 1, share), a_line * access.miss_cycles


def _min_row_pj(e: Einsum, arch: Arch) -> float:
    """A lower bound of the energy that opens rows at the outermost level: all elements that the einsum
    touches lie packed, and each row is opened once.
    """
    access = arch.levels[0].access
    if not access or not access.row_bits:
        return 0.0

    dense = [p for p in e.tensors() if p.format == "dense" and p.density == 1]
    return sum(
        -(-used_elems(p, e.extents) * (p.bits or arch.word_bits) // access.row_bits) * access.row_pj
        for p in dense
    )


def _holder_sets(e: Einsum, arch: Arch, c: Constraints, tensor: str) -> tuple[int, ...]:
    """Sets of levels that may hold a tensor, as bit masks; none of them is empty."""
    home = next((v for v, level in enumerate(arch.levels) if (tensor, level.name) in c.homes), 0)
    limited = {(limit.kind, limit.at, limit.name) for limit in c.limits}
    allowed = [v for v, level in enumerate(arch.levels) if tensor in may_keep(e, level) and v >= home]
    required = {
        v
        for v in allowed
        if not arch.levels[v].bypass
        or (arch.levels[v].name, tensor) in c.must_keep
        or ("keep", arch.levels[v].name, tensor) in limited
        or 0 < v == home
    }
    allowed = [
        v
        for v in allowed
        if ("bypass", arch.levels[v].name, tensor) not in limited
        if v in required
        or (capacity := arch.levels[v].capacity_bits) is None
        or capacity >= bits_at(arch.levels[v], tensor, e, arch)
    ]
    return tuple(
        sum(1 << v for v in held_at)
        for n in range(1, len(allowed) + 1)
        for held_at in combinations(allowed, n)
        if required <= set(held_at)
    )


def _nest(
    tables: Tables,
    e: Einsum,
    arch: Arch,
    allowed: dict[str, tuple[str, ...]],
    rules: state.Rules,
    work: state.Work,
    j: int,
) -> Mapping:
    """The best nest that the kernels found for machine j. Loops between two nodes stand in the order that
    lets the node above them sink furthest, of those that the rules allow.
    """
    sizes = {
        rank: int(tables.pool.size[tables.choices[0].span[0, 0, 0]]) for rank in tables.ranks
    } | e.sizes()
    chosen = [int(o) - int(f) for o, f in zip(work.best_unrolling[j], tables.pool.rank_start, strict=False)]
    outside = sorted({f.outside for f in arch.fanouts})
    nodes: list[Loop | Store] = [Store(arch.levels[0].name, t) for t in _outermost_tensors(tables, work, j)]
    inner_nodes = [
        (*work.best_nodes[j, i].tolist(), work.best_tiles[j, i])
        for i in range(int(work.best_count[j]) - 1, -1, -1)
    ]
    position, above, no_sink = 0, NO_NODE, _no_sink_mask(e, arch)
    factorizations = _factorizations(tables, chosen, arch, rules)
    for x, level, parent, k, tile in inner_nodes:
        sizes, above, position = _add_loops_inward(
            tables,
            e,
            arch,
            nodes,
            sizes,
            above,
            position,
            k,
            {r: int(t) for r, t in zip(tables.ranks, tile, strict=True)},
            factorizations,
            rules,
        )
        if x < 0 and rules.orders:  # its loops, and those inside of it, stand in one order
            continue
        loops = _ordered_loops(
            tables,
            e,
            above,
            sizes,
            {r: int(tables.pool.size[t]) for r, t in zip(tables.ranks, tile, strict=True)},
            _given_order(tables, arch, nodes, rules),
        )
        nodes += (
            *(
                _idle_array_loops(e, arch, allowed, nodes, sizes, outside[k - 1])
                if k and above is NO_NODE and loops
                else ()
            ),
            *loops,
        )
        sizes = sizes | {r: int(tables.pool.size[t]) for r, t in zip(tables.ranks, tile, strict=True)}
        if x >= 0:
            nodes.append(Store(arch.levels[level].name, tables.tensors[x]))
            above = NodeAbove(tables.tensors[x], bool(no_sink[x, parent, level]))
    innermost = {
        r: int(tables.pool.span[o, len(outside), 0])
        for r, o in zip(tables.ranks, work.best_unrolling[j], strict=True)
    }
    sizes, above, position = _add_loops_inward(
        tables, e, arch, nodes, sizes, above, position, len(outside), innermost, factorizations, rules
    )
    given_order = _given_order(tables, arch, nodes, rules)
    loops = _ordered_loops(tables, e, above, sizes, dict.fromkeys(tables.ranks, 1), given_order)
    nodes += (
        *(
            _idle_array_loops(e, arch, allowed, nodes, sizes, outside[-1])
            if outside and above is NO_NODE and loops
            else ()
        ),
        *loops,
    )
    return Mapping(tuple(nodes))


def _idle_array_loops(
    e: Einsum,
    arch: Arch,
    allowed: dict[str, tuple[str, ...]],
    nodes: Sequence[Loop | Store],
    sizes: dict[str, int],
    boundary: int,
) -> list[Loop]:
    """A spatial loop of one trip, for loops that stand directly inside a fan-out boundary whose array is
    idle. Without it the node outside would sink through those loops. Returns [] if no storage node
    stands directly outside, or if the constraints allow no rank there.
    """
    outer_node = next((node for node in reversed(nodes) if isinstance(node, Store) or node.over), None)
    candidates = (
        (name, rank)
        for f in arch.fanouts
        if f.outside == boundary
        for name, _ in f.dims
        for rank, _ in e.extents
        if rank not in e.output.partial_ranks() and rank in allowed.get(name, (rank,))
    )
    return (
        [Loop(rank, sizes[rank], name) for name, rank in [next(candidates, ("", ""))] if name]
        if isinstance(outer_node, Store)
        else []
    )


def _outermost_tensors(tables: Tables, work: state.Work, j: int) -> list[str]:
    """Tensors with a node at the outermost level; the kernels do not list that node."""
    not_outermost = {
        int(node[state.TENSOR])
        for node in work.best_nodes[j, : int(work.best_count[j])]
        if node[state.PARENT] < 0
    }
    return [t for x, t in enumerate(tables.tensors) if x not in not_outermost]


def _add_loops_inward(
    tables: Tables,
    e: Einsum,
    arch: Arch,
    nodes: list[Loop | Store],
    sizes: dict[str, int],
    above: NodeAbove,
    position: int,
    k: int,
    tile: dict[str, int],
    factorizations: Sequence[Sequence[SpatialLoop]],
    rules: state.Rules,
) -> tuple[dict[str, int], NodeAbove, int]:
    """Appends to `nodes` the loops from `position` inwards to position k: at every boundary the temporal
    loops outside of it, then its spatial loops. Returns the sizes of all ranks inside, the node above, and k.

    sizes: of all ranks where `nodes` ends; tile: by rank the tile that is needed inside, in the pool
    """
    entering = [tile]
    for _ in range(k - position):
        entering.append({r: int(tables.pool.outer_tile[t]) for r, t in entering[-1].items()})
    for step, target in enumerate(reversed(entering[1:])):
        inner_sizes = {r: int(tables.pool.size[t]) for r, t in target.items()}
        given_order = _given_order(tables, arch, nodes, rules)
        nodes += _ordered_loops(tables, e, above, sizes, inner_sizes, given_order)
        sizes, above = sizes | inner_sizes, NO_NODE
        boundary = position + step
        for rank, spatial_loops in zip(tables.ranks, factorizations, strict=True):
            least = whole_slots(e, rank) if in_lockstep(e, arch.compute) else 1
            for loop in spatial_loops:
                if loop.boundary == boundary and loop.trips > 1:
                    sizes[rank] = -(-sizes[rank] // (loop.trips * least)) * least
                    nodes.append(Loop(rank, sizes[rank], loop.dim))
    return sizes, above, k


class SpatialLoop(NamedTuple):
    """The share of one fan-out dimension that a rank takes."""

    boundary: int  # number of its boundary, outermost first
    dim: str
    trips: int


def _factorizations(
    tables: Tables, chosen: Sequence[int], arch: Arch, rules: state.Rules
) -> list[list[SpatialLoop]]:
    """Per rank its spatial loops: the first factorizations of the chosen unrollings (one number per rank)
    that fit the fan-out dimensions together, and fill them as the rules ask.
    """
    dims, _ = dims_and_groups(arch.fanouts)
    names = [name for f in sorted(arch.fanouts, key=lambda f: f.outside) for name, _ in f.dims]
    ways = (
        o.factorizations[o.first_factorization[i] : o.first_factorization[i + 1]].tolist()
        for o, i in zip(tables.choices, chosen, strict=True)
    )
    for choice in product(*ways):
        if all(
            rules.min_along[d] <= prod(factorization[d] for factorization in choice) <= array_dim.size
            for d, array_dim in enumerate(dims)
        ):
            return [
                [
                    SpatialLoop(array_dim.boundary, names[d], factorization[d])
                    for d, array_dim in enumerate(dims)
                ]
                for factorization in choice
            ]
    raise AssertionError("spatial unrollings were chosen together that do not fit the array together")


def _given_order(
    tables: Tables, arch: Arch, nodes: Sequence[Loop | Store], rules: state.Rules
) -> frozenset[tuple[str, str]]:
    """Pairs of ranks whose temporal loops, where both stand directly below these nodes, stand in that order
    by the rules: those of one level.
    """
    if not rules.orders:
        return frozenset()
    order = arch.level_index()
    held = [
        (order[node.level], tables.tensors.index(node.tensor)) for node in nodes if isinstance(node, Store)
    ]
    levels = [
        max([v for v, x in held if tables.einsum.has_rank[x, r]], default=0) for r in range(len(tables.ranks))
    ]
    return frozenset(
        (tables.ranks[q], tables.ranks[r])
        for v, q, r in np.argwhere(rules.above)
        if levels[q] == levels[r] == v
    )


def _ordered_loops(
    tables: Tables,
    e: Einsum,
    above: NodeAbove,
    sizes: dict[str, int],
    inner_sizes: dict[str, int],
    given_order: Collection[tuple[str, str]],
) -> list[Loop]:
    """The temporal loops directly below a node, in the order that lets it sink furthest, of those in which
    each pair of ranks of the given order stands in that order. sizes, inner_sizes: of all ranks above and
    below them. If the node does not sink, the first loop is the one along which sliding its window saves
    most.
    """
    no_sink = above.no_sink
    left = [rank for rank in tables.ranks if inner_sizes[rank] != sizes[rank]]
    p = next((p for p in e.tensors() if p.tensor == above.tensor), None)
    full = p.full_ranks() if p else frozenset[str]()
    found = list[str]()

    def free() -> list[str]:
        return [rank for rank in left if not any((other, rank) in given_order for other in left)]

    def take(rank: str) -> None:
        found.append(rank)
        left.remove(rank)

    while not no_sink and (sunk := [rank for rank in free() if rank in full]):
        take(sunk[0])
    if p:
        windows = [
            rank
            for rank in free()
            if rank in p.partial_ranks()
            and (not no_sink or (p is not e.output and sum(rank in dim.ranks() for dim in p.dims) == 1))
        ]

        def elems_if_next(window: str) -> int:
            inside = {*found, window}
            return hull(p, {r: (inner_sizes if r in inside else sizes).get(r, 1) for r, _ in e.extents})

        if windows:
            take(min(windows, key=elems_if_next))
    while left:
        take(min(free(), key=lambda rank: no_sink and rank not in full))
    return [Loop(rank, inner_sizes[rank]) for rank in found]
