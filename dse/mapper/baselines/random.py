"""Random sampling of the mapspace: Timeloop's baseline (Parashar et al., ISPASS 2019), over the space that
`exhaustive` enumerates.
"""

from __future__ import annotations

from collections.abc import Mapping as Dict
from dataclasses import dataclass
from itertools import chain
from math import gcd
from random import Random

from dse.mapper.baselines.cost_descending import smallest_mapping
from dse.mapper.baselines.exhaustive import (
    Placement,
    is_lower,
    loop_orders,
    loop_positions,
    spatial_loops,
    without_unit_loops,
)
from dse.mapper.exact.spatial import primes
from dse.mapping.nest import Infeasible, Loop, Mapping, Store, in_lockstep, may_keep
from dse.sim.counts.counts import footprints
from dse.sim.einsum import cost
from dse.sim.einsum.evaluate import EinsumCost, Problem, evaluate_unfused, objective_value
from dse.sim.schedule import outermost
from hw.arch import Arch
from workloads.einsum import Einsum, whole_slots

MAPPINGS = 1000  # mappings that fit; Timeloop finds 220 to 970 of them per CPU second
ATTEMPTS = 20  # draws per mapping that fits, at most

# what loops stand directly below: a storage node, or a fan-out boundary, given by how many levels are outside
# of it
LoopPosition = Store | int


@dataclass(frozen=True, slots=True)
class Choices:
    """A mapping as independent choices."""

    placement: Placement
    orders: Dict[LoopPosition, int]  # which of the possible orders (`loop_orders`) the loops below have
    # trip count by (what the loop stands below, rank, fan-out dimension or "" for the temporal loop)
    trips: Dict[tuple[LoopPosition, str, str], int]


@outermost.mapper
def random(problem: Problem, rng: Random, mappings: int = MAPPINGS) -> list[EinsumCost] | Infeasible:
    """The best of random mappings that fit, and of the smallest mapping.

    Returns a list of one solution. Draws until `mappings` of them fit, at most ATTEMPTS times as many.
    """
    e, arch = problem.einsum, problem.arch
    best = smallest_mapping(e, arch)
    if isinstance(best, Infeasible):
        return best
    lowest, fitting = objective_values(problem, best), 0
    for _ in range(mappings * ATTEMPTS):
        mapping = mapping_of(e, arch, draw(e, arch, rng))
        if cost.overflow(footprints(mapping, e, arch), e, arch):
            continue
        if is_lower(found := objective_values(problem, mapping), lowest):
            best, lowest = mapping, found
        fitting += 1
        if fitting == mappings:
            break
    return [evaluate_unfused(problem, best)]


def objective_values(problem: Problem, mapping: Mapping) -> tuple[float, float, float]:
    """The value of the objective, energy and latency of a mapping that fits."""
    p = cost.price_mapping(mapping, problem.einsum, problem.arch)
    return objective_value(problem.objective, p.energy_pj, p.latency_cycles), p.energy_pj, p.latency_cycles


def draw(e: Einsum, arch: Arch, rng: Random) -> Choices:
    """Random choices: placement, order of the loops at each position, PEs per spatial loop, and for every
    prime factor of an extent one position. The mapping need not fit.
    """
    placement = place(e, arch, rng)
    positions, orders = loop_positions(arch, placement), loop_orders(e, arch, placement)
    open_positions = [
        position
        for position, position_orders in zip(positions, orders, strict=True)
        if position_orders != [()]
    ]
    trips: dict[tuple[LoopPosition, str, str], int] = {}
    for rank, n in e.extents:
        for p in primes(n):
            key = rng.choice(open_positions), rank, ""
            trips[key] = trips.get(key, 1) * p
    loops = [
        (position, loop)
        for position in positions
        if isinstance(position, int)
        for loop in spatial_loops(e, arch, position)
    ]
    free_pes = {dim: n for f in arch.fanouts for dim, n in f.dims}
    for position, loop in rng.sample(loops, len(loops)):
        trips[position, loop.rank, loop.over] = rng.randint(1, free_pes[loop.over])
        free_pes[loop.over] //= trips[position, loop.rank, loop.over]
    return Choices(
        placement,
        {
            position: rng.randrange(len(position_orders))
            for position, position_orders in zip(positions, orders, strict=True)
        },
        trips,
    )


def place(e: Einsum, arch: Arch, rng: Random) -> Placement:
    """A random placement, in random order. A level that may bypass tensors holds each that it may keep with
    probability 1/2; other levels hold all that they may keep. Every tensor stands at some level.
    """
    names = {p.tensor for p in e.tensors()}
    while True:
        held = [
            [name for name in may_keep(e, level) if not level.bypass or rng.random() < 0.5]
            for level in arch.levels
        ]
        if set(chain(*held)) == names:
            return tuple(tuple(rng.sample(level_tensors, len(level_tensors))) for level_tensors in held)


def mapping_of(e: Einsum, arch: Arch, choices: Choices) -> Mapping:
    """The mapping closest to the choices. Temporal trip counts are cut to divisors of the tile, spatial ones
    to the PEs that are free; the innermost loops take what is left of each rank.
    """
    tile, free_pes = e.sizes(), {dim: n for f in arch.fanouts for dim, n in f.dims}
    positions, orders = loop_positions(arch, choices.placement), loop_orders(e, arch, choices.placement)
    nodes: list[Loop | Store] = []
    for position, position_orders in zip(positions, orders, strict=True):
        for loop in spatial_loops(e, arch, position) if isinstance(position, int) else ():
            outer = tile[loop.rank]
            n = min(choices.trips.get((position, loop.rank, loop.over), 1), free_pes[loop.over])
            least = whole_slots(e, loop.rank) if in_lockstep(e, arch.compute) else 1
            tile[loop.rank] = outer if outer % least else -(-outer // (n * least)) * least
            free_pes[loop.over] //= -(-outer // tile[loop.rank])
            nodes.append(Loop(loop.rank, tile[loop.rank], loop.over))
        nodes += [position] if isinstance(position, Store) else []
        for rank in position_orders[choices.orders.get(position, 0) % len(position_orders)]:
            tile[rank] //= (
                tile[rank]
                if position is positions[-1]
                else gcd(tile[rank], choices.trips.get((position, rank, ""), 1))
            )
            nodes.append(Loop(rank, tile[rank]))
    return without_unit_loops(Mapping(tuple(nodes)), e)
