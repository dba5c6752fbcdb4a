"""Of a training step: from which einsum to which every tensor is alive, and how many elements are at most."""

from __future__ import annotations

from dataclasses import dataclass, replace

from workloads.graph import Workload, counts

IN_PLACE = {"sgd", "momentum", "moment", "moment_of_square", "adam"}


@dataclass(frozen=True, slots=True)
class Life:
    """A tensor is alive from einsum number born (-1: before the first) to einsum number dies (past the last:
    it is a result).
    """

    tensor: str
    elems: int
    born: int
    dies: int


def lifetimes(w: Workload, forward: int | None = None) -> tuple[Life, ...]:
    """From where to where each tensor lives, in order of birth. forward: number of einsums of the forward
    pass of a training step.

    Of a repeated einsum, weights lie there once per repetition, and so does what a backward pass reads of the
    forward one; anything else is over when the next repetition starts.
    """
    cut = len(w.einsums) if forward is None else forward
    times = counts(w)
    lives: dict[str, Life] = {}
    for at, (e, n) in enumerate(zip(w.einsums, times, strict=True)):
        for p in e.inputs:
            old = lives.get(p.tensor) or Life(
                p.tensor, p.stored_elems() * (n if p.tensor in w.weights else 1), -1, at
            )
            lives[p.tensor] = replace(old, dies=at)
        lives[e.output.tensor] = Life(e.output.tensor, e.output.stored_elems(), at, len(w.einsums))
    kept = [
        replace(x, elems=x.elems * times[x.born]) if 0 <= x.born < cut <= x.dies < len(w.einsums) else x
        for x in lives.values()
    ]
    return tuple(sorted(kept, key=lambda x: (x.born, x.tensor)))


def peak_elems(w: Workload, forward: int | None = None) -> int:
    """Elements alive at once where they are most; weights and their state, which an update writes in place,
    left out.
    """
    change = [0] * (len(w.einsums) + 2)
    lasting = w.weights | {e.output.tensor for e in w.einsums if e.kind in IN_PLACE}
    for x in lifetimes(w, forward):
        if x.tensor not in lasting:
            change[x.born + 1] += x.elems
            change[min(x.dies, len(w.einsums) - 1) + 2] -= x.elems
    peak = alive = 0
    for step in change:
        alive += step
        peak = max(peak, alive)
    return peak
