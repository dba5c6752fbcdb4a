"""`solver.schedule: best`: the schedule of lowest cost among the answers of all solvers that take the machine
(`fusible_segments.fusing_schedules`, and unfused). So it is never dearer than any of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dse.mapping.conversion import with_conversions
from dse.mapping.nest import Infeasible
from dse.mapping.searched import covers
from dse.sim.counts.counts import Violated
from dse.sim.einsum.evaluate import ROUNDING_GAP, Solution, gap_in_space_text, objective_value, relative_gap
from dse.sim.fronts import Objective
from dse.sim.schedule.graph import UNTIMED, among_schedules, evaluate
from dse.solve.schedules.fused import with_certificate
from hw.arch import Arch
from workloads.graph import Workload

# WITH_BOUND: solvers that prove a lower bound of their space; the certificate speaks of the space of the
# first of them that has an answer. BESIDE: what certificates call the other solvers.
WITH_BOUND = "fused", "pipelined", "unfused"
BESIDE = {
    "parts": "the fused schedule with shares of more tensors retained",
    "pipelined": "pipelined schedules",
    "residency": "the residency schedule",
    "gogeta": "GOGETA's schedule",
    "seq-overflow": "SEQ-Overflow's schedule",
    "unfused": "unfused mappings",
}


def best(
    arch: Arch, workload: Workload, objective: Objective, answers: Mapping[str, Solution | Infeasible]
) -> Solution | Infeasible:
    """Returns the answer of lowest cost; Infeasible if there is none. Of equal costs the first one counts.

    answers: by value of `solver.schedule`, at least one of WITH_BOUND

    The certificate speaks of one space: that of fused schedules; where that solver has no answer, that of
    pipelined or of unfused ones. The other solvers stand beside it, and nothing is claimed of theirs; where
    the answer is one of theirs the certificate says so.
    For latency and energy x delay schedules whose fill and drain stalls are not counted give way to all
    others, if a solver with a bound has counted them.
    """
    found = {name: one for name, one in answers.items() if isinstance(one, Solution)}
    if not any(name in found for name in WITH_BOUND):
        return next(one for name in WITH_BOUND if isinstance(one := answers.get(name), Infeasible))
    timed = {name: one for name, one in found.items() if UNTIMED not in one.certificate}
    if objective != "energy" and any(name in timed for name in WITH_BOUND):
        found = timed
    claimed_name = next(name for name in WITH_BOUND if name in found)

    def cost(one: Solution) -> float:
        return objective_value(objective, one.energy_pj, one.latency_cycles)

    claimed = found[claimed_name]
    if "unfused" in found:
        claimed = replace(claimed, saved=1 - cost(claimed) / cost(found["unfused"]))
    chosen_name = min((claimed_name, *found), key=lambda name: cost(found[name]))
    chosen = claimed if chosen_name == claimed_name else found[chosen_name]
    lower_bound = cost(claimed) / (1 + claimed.optimality_gap)
    assert claimed.space
    others = tuple(BESIDE[name] for name in found if name != claimed_name)
    space = replace(claimed.space, beside=(*claimed.space.beside, *others))
    if chosen is not claimed or not chosen.schedule:
        chosen = _priced_alone(chosen, arch, workload, objective)
        saved = 1 - cost(chosen) / cost(claimed) * (1 - (claimed.saved or 0.0))
        chosen = replace(chosen, saved=saved, left_out=claimed.left_out)
    if (
        cost(chosen) < lower_bound * (1 - ROUNDING_GAP)
        and chosen.schedule
        and covers(space, chosen.schedule, with_conversions(workload, chosen.conversions), arch) is None
    ):
        raise Violated(
            f"{workload.name} on {arch.name}: lower bound {lower_bound} above the cost {cost(chosen)} "
            f"of\n{chosen.schedule}"
        )
    gap = relative_gap(cost(chosen), lower_bound)
    is_inside = chosen_name == claimed_name and claimed.certificate.startswith(gap_in_space_text(0))
    answer = with_certificate(chosen, gap, space, arch, workload, is_inside)
    if chosen_name == claimed_name:
        return answer
    return replace(answer, certificate=f"taken: {BESIDE[chosen_name]}; {answer.certificate}")


def _priced_alone(solution: Solution, arch: Arch, workload: Workload, objective: Objective) -> Solution:
    """Returns a solution priced anew, without the optimality gap that its solver claims: its gap is that to
    the lower bound of any schedule.
    """
    if not solution.schedule:
        return among_schedules(solution, arch, workload, objective)
    whole = with_conversions(workload, solution.conversions)
    priced = evaluate(arch, whole, solution.schedule, objective, reuse=True)
    assert isinstance(priced, Solution)
    return replace(priced, schedule=solution.schedule, conversions=solution.conversions)
