"""GOGETA's configurations as schedules. A configuration has an order of phases, a part of the first on-chip
level in which their segments work, and tensors that are retained in the rest of that level.

Every configuration is tried with segments that work in all of the level, a half, a quarter, ... of it; the
schedule that moves the fewest words is returned. Configuration `residency` retains what the linear program
chooses. It tries its own order of operations, GOGETA's phases, and operations one by one, so it never moves
more words than the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product

from dse.mapping.nest import Infeasible
from dse.mapping.nest import Mapping as Nest
from dse.mapping.schedule import Schedule
from dse.mapping.searched import Mappings, Space, certificate_words
from dse.run import deadline
from dse.sim.counts.counts import Violated
from dse.sim.einsum.evaluate import Memory, Solution
from dse.sim.schedule.graph import evaluate
from dse.solve.gogeta import clusters, emitted, residency_plan
from dse.solve.gogeta.accesses import AccessList, Phase, one_by_one
from dse.solve.gogeta.emitted import MovedWords, Nests, moved_words, residency_problem
from dse.solve.gogeta.operations import Graph, graph
from dse.solve.gogeta.operations import accessed_words as words_of
from dse.solve.gogeta.residency_plan import ResidencyProblem, RetainedElems
from dse.solve.gogeta.traffic import CountingRule, TrafficReport, counting_rule, pipelines, traffic_of
from hw.arch import Arch
from workloads.einsum import Einsum, WorkloadError
from workloads.graph import Workload, base_tensor

LEVEL_FRACTIONS = (1, 2, 4, 8, 16)  # segments work in 1 / this of the level
# workloads of more einsums, whose attempts take tens of seconds each, take fewer of these fractions
MAX_EINSUMS, FEW_FRACTIONS = 1000, (1, 4)
# policy that decides which elements are retained
RetentionPolicy = Callable[[ResidencyProblem], RetainedElems]


@dataclass(frozen=True, slots=True)
class Configuration:
    """How the schedule of a configuration is found."""

    phase_orders: Sequence[Sequence[Phase]]  # orders of phases that are tried
    retention_policy: RetentionPolicy | None  # policy that decides what is retained; None: the linear program
    # (list of accesses, words of buffer) -> main-memory words that the configuration moves for that list
    words_moved: Callable[[AccessList, int], float]
    staged: bool = False  # whether operations of a phase run at once, each on clusters of its own


@dataclass(frozen=True, slots=True)
class _Unretained:
    """A schedule that retains nothing."""

    schedule: Schedule
    words: MovedWords  # main-memory words that it moves
    problem: ResidencyProblem  # what policies may retain
    every: ResidencyProblem  # what the linear program may: also tensors that are retained in one share or not


@dataclass(slots=True)
class Emitted:
    """What configurations of one workload on one machine have in common, under equal other options: what one
    of them finds the next ones take.
    """

    # by machine and canonical key: an einsum, and its nest
    nests: dict[tuple[Arch, str], tuple[Einsum, Nest | Infeasible]] = field(default_factory=dict)
    parts: emitted.EmittedParts = field(default_factory=dict)
    # by phases, bits of the level in which their segments work, whether operations run as stages, and what is
    # taken to be retained
    schedules: dict[
        tuple[tuple[emitted.Phase, ...], int, bool, frozenset[tuple[str, str]]], _Unretained | Infeasible
    ] = field(default_factory=dict)
    report: TrafficReport | None = None  # of the workload on the first on-chip level, edges corrected

    def clear(self) -> None:
        """Forgets what was found of mappings, but not the report."""
        for found in (self.nests, self.parts, self.schedules):
            found.clear()


def _configuration(
    name: str, op_graph: Graph, words: int, word_bits: int, workload: Workload, known: Emitted
) -> Configuration:
    """Returns the configuration of a name. words: capacity of the first on-chip level, all instances."""
    single_ops, policy = one_by_one(op_graph, words, word_bits), counting_rule(name).policy
    if name == "seq-flex":
        return Configuration(
            [single_ops], residency_plan.seq_flex, lambda listed, _: listed.unbuffered_words()
        )
    if name == "seq-overflow":
        fill_policy = partial(policy, results_evict=False)
        return Configuration(
            [single_ops], residency_plan.seq_overflow, lambda *arguments: fill_policy(*arguments).words()
        )
    phases = pipelines(op_graph, words, word_bits, name if name == "gogeta-published" else "corrected")
    if name.startswith("gogeta"):
        return Configuration(
            [phases],
            residency_plan.gogeta,
            lambda *arguments: policy(*arguments).words(),
            name == "gogeta-df",
        )
    known.report = found = known.report or traffic_of(workload, words, word_bits)
    return Configuration([found.order, phases, single_ops], None, lambda _, __: found.optimal.cost)


CONFIGURATIONS = {
    "seq-flex": "operations one by one, each from and to main memory",
    "seq-overflow": "operations one by one; what is made or read is retained until the buffer is full",
    "gogeta": "operations that pipeline share a loop; what is needed latest leaves first (GOGETA)",
    "gogeta-published": "the same with edges classified as printed there",
    "gogeta-df": "the phases of gogeta, each operation on clusters of its own: tiles pass through links "
    "(GOGETA-df)",
    "residency": "order, pipelines and shares of the buffer with lowest traffic: retention by a linear "
    "program",
}


def solve_configuration(
    arch: Arch,
    workload: Workload,
    name: str,
    nests: Nests,
    objective: str,
    mappings: tuple[Mappings, ...],
    known: Emitted,
) -> Solution | Infeasible:
    """Returns the schedule of a configuration, priced. mappings: the space in which its nests are searched.
    known: of configurations of the same workload, machine, nests and objective; what is found is added.

    Raises WorkloadError if the second memory has no capacity, if the machine prices layouts or hops, or if a
    loop of the workload is not unrolled.
    """
    if len(arch.levels) < 2 or not arch.levels[1].capacity_bits:
        raise WorkloadError(
            f"{arch.name}: solver.schedule = {name} needs a bounded memory below main memory; give "
            "its second memory a capacity"
        )
    if arch.models_layout() or (arch.prices_networks() and name != "gogeta-df"):
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
    op_graph = graph(workload)
    configuration = _configuration(name, op_graph, words, arch.word_bits, workload, known)
    by_name = {e.name: e for e in workload.einsums}
    position = {e_name: i for i, e_name in enumerate(by_name)}

    listed = counting_rule(name).to_access_list(op_graph, configuration.phase_orders[0], arch.word_bits)
    attempts: list[_Attempt] = []
    first_infeasible: Infeasible | None = None
    fractions = LEVEL_FRACTIONS if len(workload.einsums) <= MAX_EINSUMS else FEW_FRACTIONS
    stages = clusters.stages if configuration.staged else None
    # slices retain nothing where links have a price
    policy = residency_plan.seq_flex if arch.prices_networks() else configuration.retention_policy

    def attempt_with(
        phases: tuple[emitted.Phase, ...], bits: int, retained: frozenset[tuple[str, str]] = frozenset()
    ) -> _Attempt | Infeasible:
        key = phases, bits, configuration.staged, retained
        if key not in known.schedules:
            task = emitted.Task(arch, workload, by_name, position, nests, bits, stages, retained)
            known.schedules[key] = _unretained(task, phases, known)
        return _attempt(known.schedules[key], policy, phases, bits)

    for fraction, phase_order in product(fractions, configuration.phase_orders):
        if attempts and deadline.has_passed():
            break
        bits = arch.levels[1].capacity_bits // fraction
        attempt = attempt_with(_named(workload, op_graph, phase_order), bits)
        if isinstance(attempt, Infeasible):
            first_infeasible = first_infeasible or attempt
        else:
            attempts.append(attempt)
    if first_infeasible and not attempts:
        return first_infeasible
    # once more for what was retained: pipelines that read it may move fewer words than operations one by one
    if policy is None and len(workload.einsums) <= MAX_EINSUMS:
        for one in tuple(attempts):
            if any(len(phase) > 1 for phase in one.phases) and (retained := _found_whole(workload, one)):
                again = None if deadline.has_passed() else attempt_with(one.phases, one.bits, retained)
                attempts += [again] if isinstance(again, _Attempt) else []
    best = min(attempts, key=_Attempt.rank)
    schedule = Schedule(
        best.schedule.segments, residency_plan.to_retained(best.problem, best.gaps, arch.levels[1].name)
    )
    solution = evaluate(arch, workload, schedule, objective, reuse=True)
    if isinstance(solution, Infeasible):
        return solution
    memory = _memory(
        arch,
        workload,
        op_graph,
        best,
        listed,
        configuration.words_moved(listed, words),
        schedule,
        counting_rule(name),
    )
    optimum_text = (
        f"{'lowest' if best.proven else 'nearly lowest'} main-memory traffic for these segments and "
        "mappings, by a linear program"
    )
    method_text = optimum_text if configuration.retention_policy is None else f"{name}, a policy"
    space = _space(arch, attempts, best, configuration, mappings)
    claim = (
        f"{method_text}{_difference_text(memory, schedule)}; {solution.certificate}{certificate_words(space)}"
    )
    return replace(solution, memory=memory, certificate=f"schedule {name}: {claim}", space=space)


def _space(
    arch: Arch,
    attempts: Sequence[_Attempt],
    best: _Attempt,
    configuration: Configuration,
    mappings: tuple[Mappings, ...],
) -> Space:
    """Returns the space of the schedules that were tried. The certificate claims no optimum in it."""
    tried = [segment for attempt in attempts for segment in attempt.schedule.segments]
    fused = max((len(segment.branches) for segment in tried if not segment.pipelined), default=1)
    stages = max((len(segment.branches) for segment in tried if segment.pipelined), default=1)
    # beside stages nothing is retained
    is_bare = configuration.retention_policy is residency_plan.seq_flex or any(
        segment.pipelined for segment in best.schedule.segments
    )
    retained = () if is_bare else tuple(life.tensor for life in best.problem.lives)
    return Space(
        mappings,
        "some" if len(configuration.phase_orders) > 1 else "given",
        fused=fused,
        shared_loops=int(max(fused, stages) > 1),
        summed=max(fused, stages) > 1,
        levels=(arch.levels[1].name,),
        retained=retained,
        parts=bool(retained),
        pipelined=stages,
    )


CAUSES = {
    "in_registers_words": "results that it does not count",
    "not_fused_words": "tensors that it passes on or reads once for all, and no shared loop does",
    "reread_words": "operands that nests read more than once",
    "capacity_words": "what its list retains and does not fit beside the working tiles",
}
RETAINED_MORE = "what it retains beyond its list, also instead of passing it on"  # capacity_words below 0
STAGES_RETAIN_NOTHING = "what its list retains: a schedule with stages retains nothing"


def cause_text(memory: Memory, cause: str, schedule: Schedule | None) -> str:
    """Returns what a key of CAUSES means in a schedule."""
    if cause == "capacity_words" and memory.capacity_words < 0:
        return RETAINED_MORE
    staged = any(segment.pipelined for segment in schedule.segments) if schedule else False
    return STAGES_RETAIN_NOTHING if cause == "capacity_words" and staged else CAUSES[cause]


def main_cause(memory: Memory) -> str:
    """Returns the key of CAUSES that says most of why a schedule moves other words than its list of phases;
    "" if they differ by less than 1 %.
    """
    excess_words = memory.moved_words - memory.listed_words
    if abs(excess_words) < 0.01 * max(memory.listed_words, 1.0):
        return ""
    return max(CAUSES, key=lambda name: getattr(memory, name) * (1 if excess_words > 0 else -1))


def _difference_text(memory: Memory, schedule: Schedule) -> str:
    """Returns the part of a certificate that compares the words that move with those of the list of phases,
    and names the main cause of the difference; "" if there is none.
    """
    cause = main_cause(memory)
    return (
        f"; {memory.moved_words:.4g} words move, {memory.listed_words:.4g} in the list of phases: "
        f"{cause_text(memory, cause, schedule)}"
        if cause
        else ""
    )


@dataclass(frozen=True, slots=True)
class _Attempt:
    """A schedule that was tried."""

    phases: tuple[emitted.Phase, ...]
    bits: int  # of the level, in which segments work
    schedule: Schedule  # without retained tensors
    unretained_words: MovedWords  # main-memory words of `schedule`
    problem: ResidencyProblem
    gaps: RetainedElems  # the elements that are retained
    words: float  # main-memory words if these are retained
    saved_per_bit: float  # words fewer if every instance of the level had one more bit
    proven: bool  # whether `gaps` is the optimum of `problem`

    def rank(self) -> tuple[int, float]:
        """Returns what the best attempt has the least of: most pipelines first, where operations are to run
        as stages.
        """
        return -sum(one.pipelined for one in self.schedule.segments), self.words


def _named(workload: Workload, op_graph: Graph, order: Sequence[Phase]) -> tuple[emitted.Phase, ...]:
    """Returns an order of phases with each operation as the names of its einsums."""
    numbers = [[operation for stage in phase.stages for operation in stage] for phase in order]
    return tuple(emitted.phases_of(workload, op_graph.operations, numbers))


def _unretained(
    task: emitted.Task, phases: tuple[emitted.Phase, ...], known: Emitted
) -> _Unretained | Infeasible:
    """Returns the schedule of one order of phases that retains nothing. known: what was emitted before."""
    found = emitted.segments(task, phases, known.parts)
    if isinstance(found, Infeasible):
        return found
    schedule = Schedule(tuple(found))
    # segments may be the same whatever is taken to be retained
    plain = known.schedules.get((phases, task.bits, task.stages is not None, frozenset()))
    if isinstance(plain, _Unretained) and plain.schedule == schedule:
        return plain
    return _Unretained(schedule, *residency_problem(task.arch, task.workload, schedule))


def _found_whole(workload: Workload, attempt: _Attempt) -> frozenset[tuple[str, str]]:
    """Returns (einsum, tensor that it reads) for all that einsums find retained whole."""
    segment_of = {b.einsum: i for i, one in enumerate(attempt.schedule.segments) for b in one.branches}
    made = {e.output.tensor for e in workload.einsums}
    whole_in = {  # (before, after): segments after the one, up to the other, find all of the tensor
        life.tensor: [
            (before, after)
            for before, after, elems in zip(
                life.stops, life.stops[1:], attempt.gaps.get(life.tensor, ()), strict=False
            )
            if elems == life.size
        ]
        for life in attempt.problem.lives
    }
    return frozenset(
        (e.name, p.tensor)
        for e in workload.einsums
        for p in e.inputs
        if any(
            before < segment_of[e.name] <= after
            for before, after in whole_in.get(base_tensor(p.tensor, made), ())
        )
    )


def _attempt(
    found: _Unretained | Infeasible,
    retention_policy: RetentionPolicy | None,
    phases: tuple[emitted.Phase, ...],
    bits: int,
) -> _Attempt | Infeasible:
    """Returns the schedule with what the policy (None: the linear program) retains."""
    if isinstance(found, Infeasible):
        return found
    if any(segment.pipelined for segment in found.schedule.segments):  # nothing is retained beside stages
        retention_policy = residency_plan.seq_flex
    problem = found.problem if retention_policy else found.every
    optimum = residency_plan.minimum(problem) if retention_policy is None else None
    gaps = optimum.retained if optimum else retention_policy(problem) if retention_policy else {}
    fixed_words = sum(found.words.values()) - sum(sum(life.moved_words) for life in problem.lives)
    return _Attempt(
        phases,
        bits,
        found.schedule,
        found.words,
        problem,
        gaps,
        fixed_words + residency_plan.moved_words(problem, gaps),
        optimum.saved_per_bit if optimum else 0.0,
        optimum is None or optimum.proven,
    )


def _memory(
    arch: Arch,
    workload: Workload,
    op_graph: Graph,
    best: _Attempt,
    listed: AccessList,
    listed_words: float,
    schedule: Schedule,
    counting: CountingRule,
) -> Memory:
    """Returns the main-memory words of the schedule and of the list of accesses (words), and their difference
    by cause.
    """
    made = {e.output.tensor for e in workload.einsums}
    words_once = {
        (e.name, p.tensor): words_of(p, e.sizes(), arch.word_bits)
        for e in workload.einsums
        for p in e.tensors()
        if best.unretained_words.get((e.name, p.tensor))
    }
    results = op_graph.makers().keys() | op_graph.state
    in_registers = {
        t for t, n in op_graph.words(arch.word_bits).items() if n <= counting.small_words and t in results
    }
    register_words = sum(
        n for (_, tensor), n in words_once.items() if base_tensor(tensor, made) in in_registers
    )
    total = sum(moved_words(arch, workload, schedule).values())
    if abs(total - best.words) > 1e-6 * max(total, 1.0):
        raise Violated(
            f"{workload.name} on {arch.name}: the retention plan says {best.words} words of main "
            f"memory, the schedule moves {total}:\n{schedule}"
        )
    reread_words = sum(best.unretained_words.values()) - sum(words_once.values())
    retained_words = sum(best.unretained_words.values()) - total
    not_fused_words = sum(words_once.values()) - register_words - listed.unbuffered_words()
    saved_per_word = best.saved_per_bit * arch.word_bits / arch.instances(1)
    return Memory(
        total,
        listed_words,
        register_words,
        not_fused_words,
        reread_words,
        (listed.unbuffered_words() - listed_words) - retained_words,
        saved_per_word,
    )
