"""Small graphs of operations, and the least traffic of their phases by going through every schedule of single
words: other code than the linear program's.

Operations are given as lists (what each reads and makes, what follows an operand element for element), from
which the graph is written as einsums. A word is in main memory, on chip, or both. While an operation runs,
what it found on chip of its operands is there until its result is complete, and what it leaves is there by
then; a result that follows an operand that nobody needs any more stands in its place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from random import Random

from workloads.einsum import Einsum, einsum
from workloads.graph import Workload

State = tuple[tuple[int, int], ...]  # per tensor: words on chip that main memory has too, and that it lacks


@dataclass(frozen=True)
class Step:
    """An operation: tensors that it reads, the one that it makes, which operand the result follows element
    for element.
    """

    reads: tuple[str, ...]
    makes: str
    follows: tuple[str, ...] = ()


def random_steps(rng: Random, count: int, most: int = 4) -> tuple[list[Step], dict[str, int]]:
    """Operations on vectors of one to `most` words. Each reads one to three of what came before or of what
    comes from outside.
    """
    size = {f"X{i}": rng.randint(1, most) for i in range(2)}
    steps: list[Step] = []
    for i in range(count):
        made = [step.makes for step in steps]
        near = [*made[-2:], *size][: 2 + len(made)]
        reads = list(
            dict.fromkeys(
                rng.choice(near if rng.random() < 0.8 else [*size]) for _ in range(rng.randint(1, 3))
            )
        )
        alike = [t for t in reads if rng.random() < 0.5]
        new = f"T{i}"
        size[new] = size[alike[0]] if alike else rng.randint(1, most)
        steps.append(Step(tuple(reads), new, tuple(t for t in alike if size[t] == size[new])))
    return steps, size


def workload(steps: list[Step], size: dict[str, int]) -> Workload:
    """A result follows an operand that has its rank; another operand has a rank of its own, which the
    function needs all of. Never a product: sums that read it would be one operation with it.
    """
    found: list[Einsum] = []
    for i, step in enumerate(steps):
        ranks = {t: "m" if t in step.follows else f"r{k}" for k, t in enumerate(step.reads)}
        text = f"{step.makes}[m] = f({', '.join(f'{t}[{ranks[t]}]' for t in step.reads)})"
        found.append(
            einsum(text, {"m": size[step.makes], **{ranks[t]: size[t] for t in step.reads}}, f"e{i}")
        )
    return Workload("steps", tuple(found))


def outputs(steps: list[Step]) -> set[str]:
    read = {t for step in steps for t in step.reads}
    return {step.makes for step in steps} - read


def exhaustive(steps: list[Step], size: dict[str, int], room: int) -> int:
    """The least words between main memory and a chip with so much room: all residencies, word by word."""
    names = sorted(size)
    ends = outputs(steps)
    costs: dict[State, int] = {tuple((0, 0) for _ in names): 0}
    for i, step in enumerate(steps):
        later = {t for other in steps[i + 1 :] for t in other.reads}
        fresh: dict[State, int] = {}
        for state, cost in costs.items():
            for after, more in _ways(names, state, step, size, later, ends, room):
                fresh[after] = min(cost + more, fresh.get(after, cost + more))
        costs = fresh
    return min(costs.values())


def _ways(
    names: list[str],
    state: State,
    step: Step,
    size: dict[str, int],
    later: set[str],
    ends: set[str],
    room: int,
) -> Iterator[tuple[State, int]]:
    """All that one operation may find on chip (what it drops before goes first) and leave there, and the
    words that this moves.
    """
    before = dict(zip(names, state, strict=True))
    kept = [t for t in names if sum(before[t])]
    for found in product(*(range(sum(before[t]) + 1) for t in kept)):
        at = dict.fromkeys(names, (0, 0)) | dict(zip(kept, ((n, 0) for n in found), strict=True))
        start, lacks = 0, dict[str, int]()
        for t in kept:
            lost = max(0, before[t][1] - at[t][0])  # the head lacks most
            start += lost
            lacks[t] = before[t][1] - lost
        moved = start + sum(size[t] - at[t][0] for t in step.reads)
        own = [t for t in names if t in later and t != step.makes and (t in step.reads or at[t][0])]
        free = [range(size[t] + 1) if t in step.reads else range(at[t][0] + 1) for t in own]
        for left in product(*free, range(size[step.makes] + 1) if step.makes in later else (0,)):
            leaves = dict(zip(own, left, strict=False)) | {step.makes: left[-1]}
            if _fits(names, {t: at[t][0] for t in names}, leaves, step, later, room):
                cost, after = moved, list[tuple[int, int]]()
                for t in names:
                    n = leaves.get(t, 0)
                    if t == step.makes:
                        cost += size[t] - n if t not in ends else size[t]
                        after.append((0, n))
                    else:
                        dirty = lacks.get(t, 0)
                        cost += max(0, dirty - n) if t in later else 0
                        after.append((n - min(dirty, n), min(dirty, n)))
                yield tuple(after), cost


def _fits(
    names: list[str], found: dict[str, int], leaves: dict[str, int], step: Step, later: set[str], room: int
) -> bool:
    """Room while an operation runs: what stands still, the operands until the result is complete, the result
    but for what takes a dead operand's place.
    """
    dead = [t for t in step.follows if t not in later]
    places = sum(found[t] for t in dead)
    others = sum(max(found[t], leaves.get(t, 0)) for t in names if t not in dead and t != step.makes)
    return others + max(places, leaves[step.makes]) <= room
