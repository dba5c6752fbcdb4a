"""Retention in part: shares of the tensors that a schedule still moves to and from the outermost level, in
the capacity that it leaves free (docs/reuse.md, Fusion).
"""

from __future__ import annotations

from dataclasses import replace

from dse.mapping.nest import Store
from dse.mapping.schedule import sequential
from dse.sim.einsum.evaluate import Solution
from dse.sim.fronts import Objective
from dse.sim.schedule import placed
from dse.sim.schedule.graph import evaluate
from dse.solve.gogeta.emitted import residency_problem
from dse.solve.gogeta.residency_plan import minimum, to_retained
from dse.solve.schedules.fusible_segments import fusing_levels
from hw.arch import Arch
from workloads.graph import Workload


def with_parts(arch: Arch, workload: Workload, solution: Solution, objective: Objective) -> Solution | None:
    """Returns a schedule with shares of more tensors retained at the level next to the outermost one, those
    that move the fewest words there (`residency_plan.minimum`). None if there are none, and on
    machines where such words are not counted alike: those with layouts, or of several widths.
    """
    is_counted = not (arch.layout_sensitive() or arch.narrows_or_widens())
    level = next((one for one in fusing_levels(arch) if is_counted and one == arch.levels[1]), None)
    if level is None or level.capacity_bits is None:
        return None
    nests = {one.name: one.mapping for one in solution.einsums}
    schedule = solution.schedule or sequential(workload, nests)
    shared = (node for segment in schedule.segments for node in segment.nodes if isinstance(node, Store))
    # where a tensor is retained and passed on no fill stalls are counted
    passed_on = {node.tensor for node in shared if node.level != arch.levels[0].name}
    g, left_out = placed.graph(workload, schedule), {one.tensor for one in schedule.retained} | passed_on
    _, problem, _ = residency_problem(arch, workload, schedule)
    taken = (placed.retained_bits(i, schedule, g, arch) for i in range(len(schedule.segments)))
    problem = replace(
        problem,
        lives=tuple(life for life in problem.lives if life.tensor not in left_out),
        free_bits=tuple(
            max(free - bits.get(level.name, 0), 0)
            for free, bits in zip(problem.free_bits, taken, strict=True)
        ),
        heirs=tuple(heir for heir in problem.heirs if not left_out & set(heir[1:])),
        spared_tiles=tuple(tile for tile in problem.spared_tiles if tile[1] not in left_out),
    )
    shares = to_retained(problem, minimum(problem).retained, level.name) if problem.lives else ()
    every = tuple(sorted((*schedule.retained, *shares), key=lambda one: one.tensor))
    found = evaluate(arch, workload, replace(schedule, retained=every), objective, reuse=True)
    return found if shares and isinstance(found, Solution) else None
