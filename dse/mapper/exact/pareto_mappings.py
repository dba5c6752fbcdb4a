"""Mappings of one einsum on one machine that nothing beats in energy, latency and room at once
(docs/solvers.md, What nothing beats).

The least energy, then the least energy of all that takes fewer cycles, until nothing does; then the same in
less room than the largest of these took: the epsilon-constraint method (Haimes, Lasdon, Wismer, On a
bicriterion formulation ..., 1971), whose every search is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from dse.mapper.exact.optimal import none_fits
from dse.mapper.exact.search import BUDGET, search, supports
from dse.mapping.nest import Infeasible, Mapping
from dse.mapping.searched import Mappings, certificate_words, mappings_of
from dse.mapping.space import FREE, Constraints, Factors
from dse.sim.counts.counts import footprints
from dse.sim.counts.parts import bits_of
from dse.sim.einsum.cost import held_bits
from dse.sim.einsum.evaluate import EinsumCost, Problem, evaluate_fitting_alone
from dse.sim.fronts import undominated
from dse.sim.schedule import outermost
from hw.arch import Arch, Level

SEARCHES = 400  # at most
LESS = 1 - 1e-9  # of the cycles of a mapping: what takes no more than that is faster


@dataclass(frozen=True, slots=True)
class Member:
    """A mapping; room_bytes: that it holds in the level of the front, the last one begun."""

    cost: EinsumCost
    room_bytes: int


@dataclass(frozen=True, slots=True)
class Front:
    """members: the least energy first. level: whose room counts, the outermost bounded one. certificate: what
    is proven.
    """

    members: tuple[Member, ...]
    level: str
    certificate: str


@outermost.mapper
def front(
    problem: Problem, factors: Factors = "imperfect_spatial", constraints: Constraints = FREE
) -> Front | Infeasible:
    """All of them, or as many as SEARCHES find. Raises ValueError where the exact search does not take the
    einsum or the machine.
    """
    e, arch = problem.einsum, problem.arch
    if factors == "imperfect" or not supports(e, factors) or arch.layout_sensitive():
        why = (
            f"{arch.name} prices layouts or hops"
            if arch.layout_sensitive()
            else "solver.factors = imperfect"
            if factors == "imperfect"
            else f"{e.name} has sums of many ranks"
        )
        raise ValueError(f"a front is of exact searches: {why}, which these do not take")
    found, searches, proven, room = list[Member](), 0, True, inf
    level = next((one for one in arch.levels if one.capacity_bits is not None), arch.levels[0])
    while searches < SEARCHES:
        own, limit, smaller = list[Member](), inf, _smaller(arch, level, room)
        while searches < SEARCHES:
            one = search(Problem(smaller, e, "energy"), factors, constraints, BUDGET, limit=limit)
            searches, proven = searches + 1, proven and one.lower_bound > 0
            if one.mapping is None:
                break
            own, limit = [*own, _member(Problem(arch, e, "energy"), one.mapping, level)], one.cycles * LESS
        found += own
        if not own or level.capacity_bits is None or not max(member.room_bytes for member in own):
            break
        room = max(member.room_bytes for member in own) - 1
    if not found:
        return none_fits(problem, constraints)
    members = tuple(sorted(_undominated(found), key=_objectives))
    return Front(
        members,
        level.name,
        _certificate(arch, mappings_of(factors, arch, constraints), proven, searches >= SEARCHES),
    )


def _smaller(arch: Arch, level: Level, room_bytes: float) -> Arch:
    """The machine with less room in a level."""
    if room_bytes == inf:
        return arch
    return replace(
        arch,
        levels=tuple(
            replace(one, capacity_bits=8 * int(room_bytes)) if one is level else one for one in arch.levels
        ),
    )


def _member(problem: Problem, mapping: Mapping, level: Level) -> Member:
    e = problem.einsum
    bits = held_bits(footprints(mapping, e, problem.arch), level, bits_of(e, problem.arch))
    return Member(evaluate_fitting_alone(problem, mapping), -(-bits // 8))


def _objectives(one: Member) -> tuple[float, float, int]:
    """What a table of the front shows of a mapping, and what it is compared in."""
    return one.cost.energy_pj, one.cost.latency_cycles, one.room_bytes


def _undominated(members: Sequence[Member]) -> list[Member]:
    """Of equal ones the first."""
    return [members[i] for i in undominated([_objectives(one) for one in members])]


def _certificate(arch: Arch, space: Mappings, proven: bool, cut: bool) -> str:
    if cut:
        return f"cut after {SEARCHES} searches: others may be missing"
    if not proven:
        return "not proven: searches ended their budget"
    missing = ", by cycles without fill stalls: of mappings that stall differently some may be missing"
    return f"all of the searched space{'' if arch.overlap == 'free' else missing}{certificate_words(space)}"
