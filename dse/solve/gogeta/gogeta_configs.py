"""GOGETA's configurations as schedules. A configuration has an order of phases, a part of the first on-chip
level in which their segments work, and tensors that are retained in the rest of that level.

Every configuration is tried with segments that work in all of the level, a half, a quarter, ... of it; the
schedule that moves the fewest words is returned. Configuration `residency` retains what the linear program
chooses. It tries its own order of operations, GOGETA's phases, and operations one by one, so it never moves
more words than the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

from dse.mapping.nest import Infeasible
from dse.mapping.schedule import Schedule
from dse.mapping.searched import Mappings, Space, certificate_words
from dse.sim.einsum.evaluate import Memory, Solution, Violated
from dse.sim.schedule.graph import evaluate
from dse.solve.gogeta import residency_plan
from dse.solve.gogeta.accesses import AccessList, Phase, one_by_one
from dse.solve.gogeta.emitted import MovedWords, Nests, moved_words, phases_of, residency_problem, segments
from dse.solve.gogeta.operations import Graph, graph
from dse.solve.gogeta.operations import words as words_of
from dse.solve.gogeta.residency_plan import Gaps, ResidencyProblem
from dse.solve.gogeta.traffic import CountingRule, counting_rule, optimal_order, pipelines
from hw.arch import Arch
from workloads.einsum import WorkloadError
from workloads.graph import Workload, owner

PARTS = (1, 2, 4, 8, 16)  # segments work in 1 / this of the level
Keeper = Callable[[ResidencyProblem], Gaps]  # policy that decides which elements are retained


@dataclass(frozen=True, slots=True)
class Configuration:
    """How the schedule of a configuration is found."""

    families: Sequence[Sequence[Phase]]  # orders of phases that are tried
    keeper: Keeper | None  # policy that decides what is retained; None: the linear program
    # (list of accesses, words of buffer) -> main-memory words that the configuration moves for that list
    listed: Callable[[AccessList, int], float]


def _configuration(name: str, one: Graph, words: int, word_bits: int, workload: Workload) -> Configuration:
    """Returns the configuration of a name. words: capacity of the first on-chip level, all instances."""
    alone, policy = one_by_one(one), counting_rule(name).policy
    if name == "seq-flex":
        return Configuration([alone], residency_plan.seq_flex, lambda listed, _: listed.streamed())
    if name == "seq-overflow":
        filled = partial(policy, replace=False)
        return Configuration([alone], residency_plan.seq_overflow, lambda *given: filled(*given).words())
    phases = pipelines(one, words, word_bits, name if name == "gogeta-published" else "corrected")
    if name in ("gogeta", "gogeta-published"):
        return Configuration([phases], residency_plan.gogeta, lambda *given: policy(*given).words())
    order, least = optimal_order(workload, words, word_bits)
    return Configuration([order, phases, alone], None, lambda _, __: least)


CONFIGURATIONS = {
    "seq-flex": "operations one by one, each from and to main memory",
    "seq-overflow": "operations one by one; what is made or read is retained until the buffer is full",
    "gogeta": "operations that pipeline share a loop; what is needed latest leaves first (GOGETA)",
    "gogeta-published": "the same with edges classified as printed there",
    "residency": "order, pipelines and shares of the buffer with lowest traffic: retention by a linear "
    "program",
}


def solve_configuration(
    arch: Arch, workload: Workload, name: str, nests: Nests, objective: str, mappings: tuple[Mappings, ...]
) -> Solution | Infeasible:
    """Returns the schedule of a configuration, priced. mappings: the space in which its nests are searched.

    Raises WorkloadError if the second memory has no capacity, if the machine prices layouts or hops, or if a
    loop of the workload is not unrolled.
    """
    if len(arch.levels) < 2 or not arch.levels[1].capacity_bits:
        raise WorkloadError(
            f"{arch.name}: solver.schedule = {name} needs a bounded memory below main memory; give "
            "its second memory a capacity"
        )
    if arch.layout_sensitive():
        raise WorkloadError(
            f"{arch.name}: solver.schedule = {name} does not count layouts and hops, but this "
            "machine has prices for them; take solver.schedule=unfused"
        )
    if workload.repeats and max(workload.repeats) > 1:
        raise WorkloadError(
            f"{workload.name}: solver.schedule = {name} needs each repetition as einsums of its own; "
            "take form=unrolled"
        )
    words = arch.levels[1].capacity_bits * arch.instances(1) // arch.word_bits
    one = graph(workload)
    given = _configuration(name, one, words, arch.word_bits, workload)
    listed = counting_rule(name).listed(one, given.families[0], arch.word_bits)
    found: list[_Attempt] = []
    blocked: Infeasible | None = None
    for part, family in product(PARTS, given.families):
        bits = arch.levels[1].capacity_bits // part
        tried = _attempt(arch, workload, one, family, bits, nests, given.keeper)
        if isinstance(tried, Infeasible):
            blocked = blocked or tried
        else:
            found.append(tried)
    if blocked and not found:
        return blocked
    best = min(found, key=lambda tried: tried.words)
    schedule = Schedule(
        best.schedule.segments, residency_plan.to_retained(best.problem, best.gaps, arch.levels[1].name)
    )
    solution = evaluate(arch, workload, schedule, objective, reuse=True)
    if isinstance(solution, Infeasible):
        return solution
    memory = _memory(
        arch, workload, one, best, listed, given.listed(listed, words), schedule, counting_rule(name)
    )
    least = (
        f"{'lowest' if best.proven else 'nearly lowest'} main-memory traffic for these segments and "
        "mappings, by a linear program"
    )
    by = least if given.keeper is None else f"{name}, a policy"
    space = _space(arch, found, best, given, mappings)
    claim = f"{by}{_beyond(memory)}; {solution.certificate}{certificate_words(space)}"
    return replace(solution, memory=memory, certificate=f"schedule {name}: {claim}", space=space)


def _space(
    arch: Arch,
    found: Sequence[_Attempt],
    best: _Attempt,
    given: Configuration,
    mappings: tuple[Mappings, ...],
) -> Space:
    """Returns the space of the schedules that were tried. The certificate claims no optimum in it."""
    fused = max(len(segment.branches) for one in found for segment in one.schedule.segments)
    retained = (
        () if given.keeper is residency_plan.seq_flex else tuple(life.tensor for life in best.problem.lives)
    )
    return Space(
        mappings,
        "some" if len(given.families) > 1 else "given",
        fused=fused,
        shared_loops=int(fused > 1),
        summed=fused > 1,
        levels=(arch.levels[1].name,),
        retained=retained,
        parts=bool(retained),
    )


CAUSES = {
    "in_registers_words": "results that it does not count",
    "not_fused_words": "tensors that it passes on or reads once for all, and no shared loop does",
    "reread_words": "operands that nests read more than once",
    "capacity_words": "what does not fit beside the working tiles",
}


def _beyond(memory: Memory) -> str:
    """Returns the part of a certificate that compares the words that move with those of the list of phases,
    and names the main cause of the difference; "" if it is below 1 %.
    """
    more = memory.moved_words - memory.listed_words
    if abs(more) < 0.01 * max(memory.listed_words, 1.0):
        return ""
    cause = max(CAUSES, key=lambda name: getattr(memory, name) * (1 if more > 0 else -1))
    return (
        f"; {memory.moved_words:.4g} words move, {memory.listed_words:.4g} in the list of phases: "
        f"{CAUSES[cause]}"
    )


@dataclass(frozen=True, slots=True)
class _Attempt:
    """A schedule that was tried."""

    schedule: Schedule  # without retained tensors
    far: MovedWords  # main-memory words of `schedule`
    problem: ResidencyProblem
    gaps: Gaps  # the elements that are retained
    words: float  # main-memory words if these are retained
    saved: float  # words fewer if every instance of the level had one more bit
    proven: bool  # whether `gaps` is the optimum of `problem`


def _attempt(
    arch: Arch,
    workload: Workload,
    one: Graph,
    family: Sequence[Phase],
    bits: int,
    nests: Nests,
    keeper: Keeper | None,
) -> _Attempt | Infeasible:
    """Returns the schedule of one order of phases. bits: of each instance of the level, for its segments."""
    numbers = [[at for stage in phase.stages for at in stage] for phase in family]
    phases = phases_of(workload, one.operations, numbers)
    own = segments(arch, workload, phases, bits, nests)
    if isinstance(own, Infeasible):
        return own
    schedule = Schedule(tuple(own))
    far = moved_words(arch, workload, schedule)
    space = residency_problem(arch, workload, schedule, far)
    least = residency_plan.minimum(space) if keeper is None else None
    gaps = least.gaps if least else keeper(space) if keeper else {}
    rest = sum(far.values()) - sum(sum(life.moved) for life in space.lives)
    return _Attempt(
        schedule,
        far,
        space,
        gaps,
        rest + residency_plan.moved_words(space, gaps),
        least.saved if least else 0.0,
        least is None or least.proven,
    )


def _memory(
    arch: Arch,
    workload: Workload,
    one: Graph,
    best: _Attempt,
    listed: AccessList,
    words: float,
    schedule: Schedule,
    by: CountingRule,
) -> Memory:
    """Returns the main-memory words of the schedule and of the list of accesses (words), and their difference
    by cause.
    """
    made = {e.output.tensor for e in workload.einsums}
    once = {
        (e.name, p.tensor): words_of(p, e.sizes(), arch.word_bits)
        for e in workload.einsums
        for p in e.tensors()
        if best.far.get((e.name, p.tensor))
    }
    results = one.makers().keys() | one.state
    hidden = {t for t, n in one.words(arch.word_bits).items() if n <= by.small and t in results}
    small = sum(n for (_, tensor), n in once.items() if owner(tensor, made) in hidden)
    total = sum(moved_words(arch, workload, schedule).values())
    if abs(total - best.words) > 1e-6 * max(total, 1.0):
        raise Violated(
            f"{workload.name} on {arch.name}: the retention plan says {best.words} words of main "
            f"memory, the schedule moves {total}:\n{schedule}"
        )
    again = sum(best.far.values()) - sum(once.values())
    stays = sum(best.far.values()) - total
    apart = sum(once.values()) - small - listed.streamed()
    per_word = best.saved * arch.word_bits / arch.instances(1)
    return Memory(total, words, small, apart, again, (listed.streamed() - words) - stays, per_word)
