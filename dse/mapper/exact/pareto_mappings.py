"""The Pareto front of one einsum's mappings on one machine, in energy, latency and capacity used
(docs/solvers.md).

The first search finds the least energy. Each next one finds the least energy in fewer cycles than before,
until no mapping is faster. Then all of this is repeated with less capacity than the largest of these mappings
took. This is the epsilon-constraint method (Haimes, Lasdon, Wismer, On a bicriterion formulation ..., 1971);
every search is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from dse.mapper.exact.optimal import none_fits
from dse.mapper.exact.search import BUDGET, search, supports
from dse.mapping.constraints import FREE, Constraints, Factors
from dse.mapping.nest import Infeasible, Mapping
from dse.mapping.searched import Mappings, certificate_words, mappings_of
from dse.sim.counts.counts import footprints
from dse.sim.einsum.cost import occupied_bits
from dse.sim.einsum.evaluate import EinsumCost, Problem, evaluate_unfused
from dse.sim.fronts import undominated
from dse.sim.schedule import outermost
from hw.arch import Arch, Level

MAX_SEARCHES = 400  # searches per front, at most
FASTER = 1 - 1e-9  # a mapping is faster than another if it takes at most this share of its cycles


@dataclass(frozen=True, slots=True)
class Member:
    """A mapping of the front."""

    cost: EinsumCost
    capacity_bytes: int  # capacity that it takes in the level `Front.level`, rounded up to bytes


@dataclass(frozen=True, slots=True)
class Front:
    """The mappings that no other one dominates."""

    members: tuple[Member, ...]  # the least energy first
    level: str  # the level whose capacity counts: the outermost one that has a limit
    certificate: str  # text: what is proven


@outermost.mapper
def front(
    problem: Problem, factors: Factors = "imperfect_spatial", constraints: Constraints = FREE
) -> Front | Infeasible:
    """The whole front, or as much of it as MAX_SEARCHES searches find. Raises ValueError where the exact
    search does not take the einsum or the machine.
    """
    e, arch = problem.einsum, problem.arch
    if factors == "imperfect" or not supports(e, factors) or arch.layout_sensitive():
        why = (
            f"{arch.name} prices layouts or hops"
            if arch.layout_sensitive()
            else "solver.factors = imperfect"
            if factors == "imperfect"
            else f"{e.name} has a compressed output, or a dimension of many ranks or stored in part"
        )
        raise ValueError(f"a front is of exact searches: {why}, which these do not support")
    found, searches, proven, capacity_bytes = list[Member](), 0, True, inf
    level = next((one for one in arch.levels if one.capacity_bits is not None), arch.levels[0])
    while searches < MAX_SEARCHES:
        energy_front, limit, with_capacity = list[Member](), inf, _with_capacity(arch, level, capacity_bytes)
        while searches < MAX_SEARCHES:
            one = search(Problem(with_capacity, e, "energy"), factors, constraints, BUDGET, max_cycles=limit)
            searches, proven = searches + 1, proven and one.lower_bound > 0 and not one.ended
            if one.mapping is None:
                break
            energy_front, limit = (
                [*energy_front, _member(Problem(arch, e, "energy"), one.mapping, level)],
                one.cycles * FASTER,
            )
        found += energy_front
        if (
            not energy_front
            or level.capacity_bits is None
            or not max(member.capacity_bytes for member in energy_front)
        ):
            break
        capacity_bytes = max(member.capacity_bytes for member in energy_front) - 1
    if not found:
        return none_fits(problem, constraints)
    members = tuple(sorted(_undominated(found), key=_objectives))
    return Front(
        members,
        level.name,
        _certificate(arch, mappings_of(factors, arch, constraints), proven, searches >= MAX_SEARCHES),
    )


def _with_capacity(arch: Arch, level: Level, capacity_bytes: float) -> Arch:
    """The machine with the capacity of one level cut to `capacity_bytes`."""
    if capacity_bytes == inf:
        return arch
    return replace(
        arch,
        levels=tuple(
            replace(one, capacity_bits=8 * int(capacity_bytes)) if one is level else one
            for one in arch.levels
        ),
    )


def _member(problem: Problem, mapping: Mapping, level: Level) -> Member:
    e = problem.einsum
    bits = occupied_bits(footprints(mapping, e, problem.arch), level, e, problem.arch)
    return Member(evaluate_unfused(problem, mapping), -(-bits // 8))


def _objectives(one: Member) -> tuple[float, float, int]:
    """The three objectives: energy, latency, capacity taken. A table of the front shows these."""
    return one.cost.energy_pj, one.cost.latency_cycles, one.capacity_bytes


def _undominated(members: Sequence[Member]) -> list[Member]:
    """The members that no other one dominates; of equal ones the first."""
    return [members[i] for i in undominated([_objectives(one) for one in members])]


def _certificate(arch: Arch, space: Mappings, proven: bool, cut: bool) -> str:
    if cut:
        return f"cut after {MAX_SEARCHES} searches: others may be missing"
    if not proven:
        return "not proven: some searches reached the end of their budget"
    missing = (
        ", compared by cycles without fill stalls: mappings that are on the front only by their stalls may "
        "be missing"
    )
    return f"all of the searched space{'' if arch.overlap == 'free' else missing}{certificate_words(space)}"
