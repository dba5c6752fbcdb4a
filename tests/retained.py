"""Small graphs of operations, and the least traffic of their phases by going through every schedule of single
words: other code than the linear program's, and no limit on sums of words.

Operations are given as lists (what each reads and makes, what follows an operand element for element), from
which the graph is written as einsums. A run is one operation or several at once. It goes element by element
through its steps, in each order. A step reads the words that it needs and that are not on chip, makes its
own, and then each word that it touched may stay on chip until it is needed again, or leave. Words that all
steps need are there from the first to the last step if they were on chip before or remain afterwards. Never
are more words on chip than there is room. A word that leaves while main memory lacks it is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations, product
from random import Random

from workloads.einsum import Einsum, einsum
from workloads.graph import Workload

Words = int  # a set of words, as bits
ONE_STEP = "one"  # what an operation on single words steps through: all of them go in its one step
State = tuple[Words, Words]  # words on chip; those of them that main memory lacks


@dataclass(frozen=True)
class Step:
    """An operation: tensors that it reads, the one that it makes, which operand the result follows element
    for element; which others go element for element with each other.
    """

    reads: tuple[str, ...]
    makes: str
    follows: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()


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
        follows = tuple(t for t in alike if size[t] == size[new])
        others = [t for t in reads if t not in follows]
        beside = tuple(t for t in others if size[t] == size[others[0]] and rng.random() < 0.7)
        steps.append(Step(tuple(reads), new, follows, beside if len(beside) > 1 else ()))
    return steps, size


def workload(steps: list[Step], size: dict[str, int]) -> Workload:
    """A result follows an operand that has its rank; another operand has a rank of its own, or one with those
    beside it, which the function needs all of. Never a product: sums that read it would be one operation with
    it.
    """
    found: list[Einsum] = []
    for i, step in enumerate(steps):
        ranks = {
            t: "m" if t in step.follows else "b" if t in step.beside else f"r{k}"
            for k, t in enumerate(step.reads)
        }
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
    """Operations that run at once, as sets of words. Steps: (read, made) words of each, in no order; read,
    made: words that all steps need; held: those of these that have all their room, retained or not.
    """

    steps: tuple[tuple[Words, Words], ...]
    read: Words
    made: Words
    held: Words


def words_of(size: dict[str, int]) -> dict[str, Words]:
    """The words of each tensor."""
    found, first = {}, 0
    for t, n in size.items():
        found[t] = ((1 << n) - 1) << first
        first += n
    return found


def exhaustive(steps: list[Step], size: dict[str, int], room: int) -> int:
    """The least words between main memory and a chip with so much room, the steps one by one in their order:
    all residencies, word by word.
    """
    words = words_of(size)
    ends = sum(words[t] for t in outputs(steps))
    costs: dict[State, int] = {(0, 0): 0}
    for i in range(len(steps)):
        later = {t for other in steps[i + 1 :] for t in other.reads}
        needed, merged = sum(words[t] for t in later), dict[State, int]()
        for run in _runs(steps, frozenset([i]), size, room):
            _merge(merged, _after(costs, run, needed, ends, room))
        costs = merged
    return min(costs.values())


def least_of_all_orders(steps: list[Step], size: dict[str, int], room: int) -> int:
    """The least words over all orders of the steps, and over all ways to run several of them as one."""
    words, count = words_of(size), len(steps)
    ends = sum(words[t] for t in outputs(steps))
    runs = {
        members: found
        for n in range(1, count + 1)
        for members in map(frozenset, combinations(range(count), n))
        if (found := _runs(steps, members, size, room))
    }
    makers = {step.makes: i for i, step in enumerate(steps)}
    costs: dict[frozenset[int], dict[State, int]] = {frozenset(): {(0, 0): 0}}
    for n in range(count):
        for ran in [ran for ran in costs if len(ran) == n]:
            for members, ways in runs.items():
                needs = {makers[t] for v in members for t in steps[v].reads if t in makers}
                if members & ran or not needs <= ran | members:
                    continue
                later = {t for v, step in enumerate(steps) if v not in ran | members for t in step.reads}
                needed = sum(words[t] for t in later)
                for run in ways:
                    after = _after(costs[ran], run, needed, ends, room)
                    _merge(costs.setdefault(ran | members, {}), after)
    return min(costs[frozenset(range(count))].values())


def _merge(costs: dict[State, int], more: dict[State, int]) -> None:
    for state, cost in more.items():
        costs[state] = min(cost, costs.get(state, cost))


def _runs(steps: list[Step], members: frozenset[int], size: dict[str, int], room: int) -> list[Run]:
    """All ways in which operations run as one pipeline. Each steps through its result ("m") or through
    operands that its result does not follow; what one passes on to another, both step through. Parts that
    pass nothing on to each other read something in the same step, or all of it in every step. What all steps
    need is held; not by an operation that could not hold it alone, unless another one feeds it.
    """
    made = {steps[v].makes: v for v in members}
    links = [(made[t], v, t) for v in sorted(members) for t in steps[v].reads if t in made]
    reaches = {v: {steps[v].makes} for v in members}  # by member: tensors that depend on it, from outside
    for u in members:
        for v, step in enumerate(steps):
            if v not in members and reaches[u] & set(step.reads):
                reaches[u] = reaches[u] | {step.makes}
            elif v in members and (reaches[u] - {steps[u].makes}) & set(step.reads):
                return []
    found = dict[Run, None]()
    ways = [dict.fromkeys(["m", *(_rank(steps[v], t) for t in steps[v].reads)]) for v in sorted(members)]
    if len(ways) == 1 and all(size[t] == 1 for v in members for t in (*steps[v].reads, steps[v].makes)):
        ways = [dict.fromkeys([ONE_STEP])]
    for way in product(*ways):
        at = dict(zip(sorted(members), way, strict=True))
        if any(at[a] != "m" or at[b] != _rank(steps[b], t) for a, b, t in links):
            continue
        parts = len(_joined(members, [(a, b) for a, b, _ in links]))
        reads = [
            (a, b, at[a] == _rank(steps[a], t), at[b] == _rank(steps[b], t))
            for a, b in combinations(sorted(members), 2)
            for t in set(steps[a].reads) & set(steps[b].reads)
        ]
        shared = [(a, b) for a, b, first, second in reads if first == second]
        if parts > 1 and len(_joined(members, [*((a, b) for a, b, _ in links), *shared])) > 1:
            continue
        held = {
            t
            for v in members
            for t in (*steps[v].reads, steps[v].makes)
            if (any(b == v for _, b, _ in links) or _may_hold(steps[v], size, room))
            and not (t in made and t != steps[v].makes)
            and t in _needed_whole(steps[v], at[v])
        }
        in_step = [(a, b) for a, b, first, second in reads if first and second]
        together = _joined(members, [*((a, b) for a, b, _ in links), *in_step])
        if sum(size[t] for t in held) <= room:
            found[_to_run(steps, at, together, held, size)] = None
    return list(found)


def _to_run(
    steps: list[Step], at: dict[int, str], together: set[frozenset[int]], held: set[str], size: dict[str, int]
) -> Run:
    """at: the rank of each operation; together: operations that take each step at once; held: tensors."""
    words = words_of(size)
    touched = {
        v: {t: t not in _needed_whole(steps[v], at[v]) for t in (*steps[v].reads, steps[v].makes)} for v in at
    }
    common = {t for of_one in touched.values() for t, in_step in of_one.items() if not in_step}
    made = {steps[v].makes for v in at}
    found = []
    for members in together:
        tensors = {t for v in members for t in touched[v]} - common
        for j in range(max((size[t] for t in tensors), default=0)):
            bit = {t: words[t] & -words[t] for t in tensors}
            found.append((sum(bit[t] << j for t in tensors - made), sum(bit[t] << j for t in tensors & made)))
    return Run(
        tuple(found),
        sum(words[t] for t in common - made),
        sum(words[t] for t in common & made),
        sum(words[t] for t in held),
    )


def _needed_whole(step: Step, at: str) -> set[str]:
    """What an operation needs whole in each of its steps."""
    tensors = {t: _rank(step, t) for t in step.reads} | {step.makes: "m"}
    return {t for t, rank in tensors.items() if rank != at != ONE_STEP}


def _may_hold(step: Step, size: dict[str, int], room: int) -> bool:
    """Whether some way to run an operation alone holds no more than there is room for."""
    if all(size[t] == 1 for t in (*step.reads, step.makes)):
        return True
    ways = ("m", *(_rank(step, t) for t in step.reads))
    return min(sum(size[t] for t in _needed_whole(step, at)) for at in ways) <= room


def _rank(step: Step, operand: str) -> str:
    """What an operation steps through with this operand: "m" its result, "b" the operands beside it."""
    return "m" if operand in step.follows else "b" if operand in step.beside else operand


def _joined(members: Iterable[int], pairs: list[tuple[int, int]]) -> set[frozenset[int]]:
    part = {v: frozenset([v]) for v in members}
    for a, b in pairs:
        both = part[a] | part[b]
        part |= dict.fromkeys(both, both)
    return set(part.values())


def _subsets(words: Words) -> Iterator[Words]:
    found = words
    while True:
        yield found
        if not found:
            return
        found = (found - 1) & words


def _after(costs: dict[State, int], run: Run, needed: Words, ends: Words, room: int) -> dict[State, int]:
    """What may be on chip after a run, and the words moved by then. needed: words that are read later; ends:
    words of results that are written in any case.
    """
    common, every_step = run.read | run.made, (1 << len(run.steps)) - 1
    found: dict[State, int] = {}
    for (chip, lacks), cost in costs.items():
        fetched = (run.read & ~chip).bit_count() + (run.made & ends).bit_count()
        for stays in _subsets(common & needed):
            standing = (run.held | (chip & common) | stays).bit_count()
            spilled = ((lacks & common | run.made) & needed & ~stays).bit_count()
            own = chip & ~common
            if standing + own.bit_count() > room:
                continue
            dirty = lacks & ~common | (lacks | run.made) & stays
            layer: dict[tuple[int, State], int] = {(0, (own, dirty)): cost + fetched + spilled}
            for _ in run.steps:
                layer = _taken(layer, run, needed, ends, room - standing)
            for (taken, (left, lacked)), moved in layer.items():
                assert taken == every_step
                state = left | stays, lacked
                found[state] = min(moved, found.get(state, moved))
    return found


def _taken(
    layer: dict[tuple[int, State], int], run: Run, needed: Words, ends: Words, room: int
) -> dict[tuple[int, State], int]:
    """After one more step, whichever; by steps taken (as bits) and state of words that some step needs."""
    found: dict[tuple[int, State], int] = {}
    for (taken, (chip, lacks)), cost in layer.items():
        for j, (read, made) in enumerate(run.steps):
            if taken >> j & 1:
                continue
            touched, fetched = read | made, (read & ~chip).bit_count() + (made & ends).bit_count()
            for stays in _subsets(touched & needed):
                after = chip & ~touched | stays
                if after.bit_count() > room:
                    continue
                left = ((lacks | made) & touched & needed & ~stays).bit_count()
                key = taken | 1 << j, (after, lacks & ~touched | (lacks | made) & stays)
                moved = cost + fetched + left
                found[key] = min(moved, found.get(key, moved))
    return found
