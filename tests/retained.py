"""Small graphs of operations, and the least traffic of their phases by going through every schedule of single
words: other code than the linear program's.

Operations are given as lists (what each reads and makes, what follows an operand element for element), from
which the graph is written as einsums. A word is in main memory, on chip, or both. While an operation runs,
what it found on chip of its operands is there until its result is complete, and what it leaves is there by
then; a result that follows an operand that nobody needs any more stands in its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations, product
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


@dataclass(frozen=True)
class Run:
    """Operations that run at once: tensors that they read and make, those that they need whole all the time,
    and (operand, result that may take its place).
    """

    reads: tuple[str, ...]
    makes: tuple[str, ...]
    whole: frozenset[str] = frozenset()
    follows: tuple[tuple[str, str], ...] = ()


def exhaustive(steps: list[Step], size: dict[str, int], room: int) -> int:
    """The least words between main memory and a chip with so much room, the steps one by one in their order:
    all residencies, word by word.
    """
    names, ends = sorted(size), outputs(steps)
    costs: dict[State, int] = {tuple((0, 0) for _ in names): 0}
    for i, step in enumerate(steps):
        later = {t for other in steps[i + 1 :] for t in other.reads}
        run = Run(step.reads, (step.makes,), follows=tuple((t, step.makes) for t in step.follows))
        costs = _after(names, costs, run, size, later, ends, room)
    return min(costs.values())


def least_of_all_orders(steps: list[Step], size: dict[str, int], room: int) -> int:
    """The least words over all orders of the steps, and over all ways to run several of them as one."""
    names, ends, count = sorted(size), outputs(steps), len(steps)
    runs = {
        members: run
        for n in range(1, count + 1)
        for members in map(frozenset, combinations(range(count), n))
        if (run := _together(steps, members, size, room))
    }
    makers = {step.makes: i for i, step in enumerate(steps)}
    costs: dict[frozenset[int], dict[State, int]] = {frozenset(): {tuple((0, 0) for _ in names): 0}}
    for n in range(count):
        for ran in [ran for ran in costs if len(ran) == n]:
            for members, run in runs.items():
                needs = {makers[t] for v in members for t in steps[v].reads if t in makers}
                if members & ran or not needs <= ran | members:
                    continue
                later = {t for v, step in enumerate(steps) if v not in ran | members for t in step.reads}
                seen = costs.setdefault(ran | members, {})
                internal = set(run.makes) - later - ends
                dead = [(old, new) for old, new in run.follows if new not in internal]
                own = Run(run.reads, tuple(t for t in run.makes if t not in internal), run.whole, tuple(dead))
                for state, cost in _after(names, costs[ran], own, size, later, ends, room).items():
                    seen[state] = min(cost, seen.get(state, cost))
    return min(costs[frozenset(range(count))].values())


def _together(steps: list[Step], members: frozenset[int], size: dict[str, int], room: int) -> Run | None:
    """What operations read, make and need whole as one pipeline. Each steps through its result ("m") or
    through an operand that its result does not follow; what one passes on to another, both step through.
    Parts that pass nothing on to each other read something in the same step, or all of it in every step, and
    then hold all else.
    """
    made = {steps[v].makes: v for v in members}
    links = [(made[t], v, t) for v in sorted(members) for t in steps[v].reads if t in made]
    reaches = {v: {steps[v].makes} for v in members}  # by member: tensors that depend on it, from outside
    for u in members:
        for v, step in enumerate(steps):
            if v not in members and reaches[u] & set(step.reads):
                reaches[u] = reaches[u] | {step.makes}
            elif v in members and (reaches[u] - {steps[u].makes}) & set(step.reads):
                return None
    found: list[frozenset[str]] = []
    ways = [
        ["m", *(t for t in steps[v].reads if t not in steps[v].follows)] if len(members) > 1 else [""]
        for v in sorted(members)
    ]
    for way in product(*ways):
        at = dict(zip(sorted(members), way, strict=True))
        if any(at[a] != "m" or at[b] != _rank(steps[b], t) for a, b, t in links):
            continue
        parts = len(_joined(members, [(a, b) for a, b, _ in links]))
        shared = [
            (a, b)
            for a, b in combinations(sorted(members), 2)
            for t in set(steps[a].reads) & set(steps[b].reads)
            if (at[a] == _rank(steps[a], t)) == (at[b] == _rank(steps[b], t))
        ]
        if parts > 1 and len(_joined(members, [*((a, b) for a, b, _ in links), *shared])) > 1:
            continue
        held = {
            t
            for v in members
            for t in (*steps[v].reads, steps[v].makes)
            if len(members) > 1
            and (parts > 1 or any(b == v for _, b, _ in links))
            and not (t in made and t != steps[v].makes)
            and at[v] != ("m" if t == steps[v].makes else _rank(steps[v], t))
        }
        found.append(frozenset(held))
    whole = min(found, key=lambda held: sum(size[t] for t in held), default=None)
    if whole is None or sum(size[t] for t in whole) > room:
        return None
    reads = tuple(dict.fromkeys(t for v in sorted(members) for t in steps[v].reads if t not in made))
    follows = tuple(
        (t, steps[v].makes)
        for v in sorted(members)
        for t in steps[v].follows
        if t not in made and t not in whole and steps[v].makes not in whole
    )
    return Run(reads, tuple(made), whole, follows)


def _rank(step: Step, operand: str) -> str:
    return "m" if operand in step.follows else operand


def _joined(members: Iterable[int], pairs: list[tuple[int, int]]) -> set[frozenset[int]]:
    part = {v: frozenset([v]) for v in members}
    for a, b in pairs:
        both = part[a] | part[b]
        part |= dict.fromkeys(both, both)
    return set(part.values())


def _after(
    names: list[str],
    costs: dict[State, int],
    run: Run,
    size: dict[str, int],
    later: set[str],
    ends: set[str],
    room: int,
) -> dict[State, int]:
    found: dict[State, int] = {}
    for state, cost in costs.items():
        for after, more in _ways(names, state, run, size, later, ends, room):
            found[after] = min(cost + more, found.get(after, cost + more))
    return found


def _ways(
    names: list[str], state: State, run: Run, size: dict[str, int], later: set[str], ends: set[str], room: int
) -> Iterator[tuple[State, int]]:
    """All that operations may find on chip (what they drop before goes first) and leave there, and the words
    that this moves.
    """
    before = dict(zip(names, state, strict=True))
    kept = [t for t in names if sum(before[t])]
    for found in product(*(range(sum(before[t]) + 1) for t in kept)):
        at = dict.fromkeys(names, 0) | dict(zip(kept, found, strict=True))
        start, lacks = 0, dict[str, int]()
        for t in kept:
            lost = max(0, before[t][1] - at[t])  # the head lacks most
            start += lost
            lacks[t] = before[t][1] - lost
        moved = start + sum(size[t] - at[t] for t in run.reads)
        own = [t for t in names if t in later and (t in run.reads or t in run.makes or at[t])]
        free = [range((size[t] if t in run.reads or t in run.makes else at[t]) + 1) for t in own]
        for left in product(*free):
            leaves = dict(zip(own, left, strict=True))
            if not _fits(names, at, leaves, run, size, later, room):
                continue
            cost, after = moved, list[tuple[int, int]]()
            for t in names:
                n = leaves.get(t, 0)
                if t in run.makes:
                    cost += size[t] - n if t not in ends else size[t]
                    after.append((0, n))
                else:
                    dirty = lacks.get(t, 0)
                    cost += max(0, dirty - n) if t in later else 0
                    after.append((n - min(dirty, n), min(dirty, n)))
            yield tuple(after), cost


def _fits(
    names: list[str],
    found: dict[str, int],
    leaves: dict[str, int],
    run: Run,
    size: dict[str, int],
    later: set[str],
    room: int,
) -> bool:
    """Room while operations run: what stands still or is needed whole, operands until results are complete,
    results but for what takes the place of an operand that nobody needs any more.
    """
    numbers = {t: i for i, t in enumerate(names)}
    pairs = [(numbers[old], numbers[new]) for old, new in run.follows if old not in later]
    used = sum(size[t] for t in run.whole)
    for place in _joined((i for t, i in numbers.items() if t not in run.whole), pairs):
        used += max(sum(found[names[i]] for i in place), sum(leaves.get(names[i], 0) for i in place))
    return used <= room
