"""Random sampling of the mapspace: Timeloop's baseline (Parashar et al., ISPASS 2019), over the space that `exhaustive` enumerates."""

from __future__ import annotations

from functools import lru_cache
from itertools import chain
from random import Random

from dse.dataflow.exhaustive import Placement, before, gaps, lanes, layers, least, without_idle
from dse.nest import Infeasible, Loop, Mapping, Store
from dse.sim import cost
from dse.sim.counts import count, footprints
from dse.sim.evaluate import EinsumCost, Problem, figure, priced
from hw.arch import Arch
from workloads.einsum import Einsum

MAPPINGS = 1000  # that fit; Timeloop finds 220 to 970 of them per CPU second (specs/field.md, 1.4)
ATTEMPTS = 20  # per mapping that fits


def random(problem: Problem, rng: Random, mappings: int = MAPPINGS) -> list[EinsumCost] | Infeasible:
    """Best first: the cheapest of `mappings` random mappings that fit, fewer if ATTEMPTS times as many draws do not find them."""
    e, arch = problem.einsum, problem.arch
    best, lowest, fitting = least(e, arch), None, 0
    if full := cost.overflow(footprints(best, e), e, arch):
        lowest = None
    for attempt in range(mappings * ATTEMPTS):
        mapping = draw(e, arch, rng) if attempt else best
        held = footprints(mapping, e)
        if cost.overflow(held, e, arch):
            continue
        found = ranked(problem, mapping)
        if lowest is None or before(found, lowest):
            best, lowest = mapping, found
        fitting += 1
        if fitting == mappings:
            break
    if lowest is None:
        return full or Infeasible("", 0, 0, e.name)
    return [priced(problem, best, count(best, e, arch), footprints(best, e))]


def ranked(problem: Problem, mapping: Mapping) -> tuple[float, float, float]:
    """Figure of the objective, energy, latency of a mapping that fits."""
    p = cost.price(count(mapping, problem.einsum, problem.arch), problem.einsum, problem.arch)
    return figure(problem.objective, p.energy_pj, p.latency_cycles), p.energy_pj, p.latency_cycles


def draw(e: Einsum, arch: Arch, rng: Random) -> Mapping:
    """One mapping: placement, windows and lanes at random, then every prime of a rank's tile to one of its loops in time. May not fit."""
    placement = place(e, arch, rng)
    nodes: list[Loop | Store] = []
    tile = e.sizes()
    orders = [rng.choice(choices) for choices in gaps(e, arch, placement)]
    left = sum(map(bool, orders))
    for item, order in zip(layers(arch, placement), orders, strict=True):
        nodes += [item] if isinstance(item, Store) else spread(e, arch, item, tile, rng)
        for rank in order:
            for p in primes(tile[rank]):
                if left == 1 or rng.random() * left < 1:
                    tile[rank] //= p
            nodes.append(Loop(rank, tile[rank]))
        left -= bool(order)
    return without_idle(Mapping(tuple(nodes)), e)


def place(e: Einsum, arch: Arch, rng: Random) -> Placement:
    """Tensors per level in a random order; where none may be skipped all, else each by the toss of a coin; all of them at some level."""
    names = [p.tensor for p in e.tensors()]
    while True:
        held = [[name for name in names if not level.bypass or rng.random() < 0.5] for level in arch.levels]
        if set(chain(*held)) == set(names):
            return tuple(tuple(rng.sample(own, len(own))) for own in held)


def spread(e: Einsum, arch: Arch, border: int, tile: dict[str, int], rng: Random) -> list[Loop | Store]:
    """Spatial loops at a border, ranks in random order on what is left of each fan-out dimension; shrinks `tile`."""
    wanted = lanes(e, arch, border)
    free = {dim: n for f in arch.fanouts for dim, n in f.dims}
    for i in rng.sample(range(len(wanted)), len(wanted)):
        pass
    return wanted


@lru_cache(maxsize=1 << 12)
def primes(n: int) -> tuple[int, ...]:
    p = next((p for p in range(2, int(n**0.5) + 1) if n % p == 0), n)
    return () if n == 1 else (p, *primes(n // p))
