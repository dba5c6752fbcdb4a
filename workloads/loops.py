"""Loops around the einsums of a workload: what one iteration leaves to the next, and loops written out.

The einsums of a workload with a `loop_state` are one iteration. Each result in it is what the next iteration
reads under another name. Written out, results carry the number of their iteration, and those of the loop
state the name under which they are read:

    S = A P;  P1 = R + F P;  loop state P -> P1      (2 iterations)
    S_1 = A P;  P_1 = R + F P;  S_2 = A P_1;  P_2 = R + F P_1
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from workloads.einsum import Einsum, Projection, WorkloadError, closest
from workloads.graph import Workload, base_of_any, counts, differing_key, setting

Form = Literal["unrolled", "periodic"]
MAX_EINSUMS = 100_000  # of a loop that is written out


@dataclass(frozen=True, slots=True)
class LoopForm:
    """How a loop is wanted. form: one iteration that repeats, or einsums of every iteration; iterations: 0:
    as many as the workload says.
    """

    form: Form = "periodic"
    iterations: int = 0


def state_faults(
    einsums: Sequence[Einsum], state: Mapping[str, str], weights: Collection[str]
) -> Iterator[str]:
    """Yields a line per fault of a loop state. state: name that an iteration reads -> result of the iteration
    before.
    """
    made = {e.output.tensor: e.output for e in einsums}
    names = made.keys() | {p.tensor for e in einsums for p in e.inputs}
    readers: dict[str, list[Projection]] = {}
    for e in einsums:
        for p in e.inputs:
            readers.setdefault(base_of_any(p.tensor, names, made), []).append(p)
    from_outside = readers.keys() - made.keys() - set(weights)
    for before, after in state.items():
        if before in made:
            yield f"loop_state: {before} is made by an einsum; name what an iteration reads of the one before"
        elif before in weights:
            yield f"loop_state: {before} is a weight, which no iteration changes; drop it from one of the two"
        elif before not in from_outside:
            hint = closest(before, sorted(from_outside), f"tensors are {', '.join(sorted(from_outside))}")
            yield f"loop_state: {before} is read by no einsum; {hint}"
        elif after not in made:
            hint = closest(after, sorted(made), f"results are {', '.join(sorted(made))}")
            yield f"loop_state.{before} = {after} is made by no einsum; {hint}"
        else:
            yield from _form_faults(before, made[after], readers[before])


def _form_faults(before: str, result: Projection, reads: Sequence[Projection]) -> Iterator[str]:
    """Yields a line if the next iteration reads a result in another size or form than it is made in."""
    where = f"loop_state.{before} = {result.tensor}"
    for p in reads:
        if p.stored_elems() != result.stored_elems():
            yield (
                f"{where}: {result.tensor} has {result.stored_elems()} elements, and {p.tensor} is read with "
                f"{p.stored_elems()}; give both one size"
            )
            return
        if key := differing_key(result, p):
            said = f"{setting(result, key)}, and {p.tensor} {setting(p, key)}"
            yield f"{where}: {said}; give both the same {key}"
            return


def in_form(workload: Workload, wanted: LoopForm) -> Workload:
    """Returns a loop in a form and with a number of iterations. Raises WorkloadError if it is no loop, if it
    is too long to be written out, or if a name that this needs is taken.
    """
    if not workload.loop_state:
        raise WorkloadError(
            f"{workload.name}: form and iterations are of loops; give loop_state and iterations in the file"
        )
    iterations = wanted.iterations or max(counts(workload))
    repeats = (iterations,) * len(workload.einsums) if iterations > 1 else ()
    loop = replace(workload, repeats=repeats)
    return unrolled(loop) if wanted.form == "unrolled" else loop


def unrolled(loop: Workload) -> Workload:
    """Returns a loop with the einsums of every iteration written out; faults as in `in_form`."""
    iterations, made = max(counts(loop)), {e.output.tensor for e in loop.einsums}
    if iterations * len(loop.einsums) > MAX_EINSUMS:
        raise WorkloadError(
            f"{loop.name}: {iterations} iterations of {len(loop.einsums)} einsums are more than "
            f"{MAX_EINSUMS:,} when they are written out; give fewer iterations"
        )
    names = made | {p.tensor for e in loop.einsums for p in e.inputs}
    result_of = {before: after for after, before in loop.loop_state}
    read_as = dict(reversed(loop.loop_state))

    def numbered(result: str, iteration: int) -> str:
        return f"{read_as.get(result, result)}_{iteration}"

    def tensor_in(iteration: int, base: str) -> str:
        if base in made:
            return numbered(base, iteration)
        return numbered(result_of[base], iteration - 1) if iteration > 1 and base in result_of else base

    def einsum_in(iteration: int, e: Einsum) -> Einsum:
        def renamed(p: Projection) -> Projection:
            base = base_of_any(p.tensor, names, made)
            return replace(p, tensor=tensor_in(iteration, base) + p.tensor.removeprefix(base))

        return e.map_projections(renamed, name=f"{e.name}_{iteration}")

    steps = range(1, iterations + 1)
    taken = {numbered(result, i) for result in made for i in steps} & (names - made)
    if taken:
        raise WorkloadError(
            f"{loop.name}: form=unrolled names a result {min(taken)}, as a tensor from outside is; rename "
            "that tensor"
        )
    return replace(
        loop,
        einsums=tuple(einsum_in(i, e) for i in steps for e in loop.einsums),
        repeats=(),
        loop_state=tuple((numbered(after, iterations), before) for after, before in loop.loop_state),
    )
