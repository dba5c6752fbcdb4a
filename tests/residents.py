"""Random lists of accesses, and the least traffic of a small one by going through every schedule of single
words. Shares nothing with the linear program.

A word is in main memory, on chip, or both. After each access any word may leave the chip; one that main
memory lacks and that is still needed is written then.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from random import Random

from dse.solve.gogeta.accesses import Access, AccessList

State = tuple[tuple[int, int], ...]  # per tensor: words on chip that main memory has too, and that it lacks


def exhaustive(listed: AccessList, room: int) -> int:
    """The least words between main memory and a chip with so much room; an access itself needs none."""
    names = sorted(listed.words)
    number = {t: i for i, t in enumerate(names)}
    size = [listed.words[t] for t in names]
    last = {t: i for i, a in enumerate(listed.accesses) for t in a.read}
    costs: dict[State, int] = {tuple((0, 0) for _ in names): 0}
    for i, a in enumerate(listed.accesses):
        held = (
            min(a.resident_words, listed.accesses[i + 1].resident_words)
            if i + 1 < len(listed.accesses)
            else 0
        )
        needed = {number[t] for t in names if last.get(t, -1) > i}
        owed = needed | {number[t] for t in listed.outputs}
        costs = _left(_done(costs, a, number, size), max(0, room - held), needed, owed)
    return min(
        cost + sum(dirty for (_, dirty), t in zip(state, names, strict=True) if t in listed.outputs)
        for state, cost in costs.items()
    )


def _done(costs: dict[State, int], a: Access, number: dict[str, int], size: list[int]) -> dict[State, int]:
    """What is read comes whole, what is made is on chip; what is overwritten is gone."""
    found: dict[State, int] = {}
    for state, cost in costs.items():
        now = list(state)
        for v in (number[t] for t in a.read):
            missing = size[v] - sum(now[v])
            cost += missing
            now[v] = (0, 0) if a.written else (now[v][0] + missing, now[v][1])
        for v in (number[t] for t in a.written):
            now[v] = (0, size[v])
        after = tuple(now)
        found[after] = min(cost, found.get(after, cost))
    return found


def _left(costs: dict[State, int], room: int, needed: set[int], owed: set[int]) -> dict[State, int]:
    """Everything that may stay after an access: what nobody needs goes, what leaves and is owed to main
    memory is written, so may be what stays.
    """
    found: dict[State, int] = {}
    for state, cost in costs.items():
        ways = []
        for v, (clean, dirty) in enumerate(state):
            if v not in needed and v not in owed:
                ways.append([(0, 0, 0)])
            else:
                ways.append(
                    [(c, d, dirty - d) for d in range(dirty + 1) for c in range(clean + dirty - d + 1)]
                )
        for way in product(*ways):
            if sum(c + d for c, d, _ in way) <= room:
                after = tuple((c, d) for c, d, _ in way)
                total = cost + sum(n for _, _, n in way)
                found[after] = min(total, found.get(after, total))
    return found


def periods(
    rng: Random, tensors: int, accesses: int, most: int, held: bool = False
) -> Callable[[int], AccessList]:
    """Lists of any number of periods of the same random accesses: reads, writes and updates of a few tensors,
    each of which is made anew in every period or comes from outside; which ones are outputs.
    """
    size = {f"T{i}": rng.randint(1, most) for i in range(tensors)}
    steps: list[tuple[str, tuple[str, ...]]] = []
    for _ in range(accesses):
        kind = rng.choice(("read", "read", "read", "write", "update"))
        steps.append(
            (
                kind,
                tuple(
                    rng.sample(
                        sorted(size), 2 if kind == "update" and tensors > 1 and rng.random() < 0.4 else 1
                    )
                ),
            )
        )
    outputs = {t for t in size if rng.random() < 0.4}
    holds = [rng.randint(0, 2) if held else 0 for _ in steps]

    def lists(count: int) -> AccessList:
        version = dict.fromkeys(size, 0)
        found, words = [], {}
        for (kind, names), h in [
            (step, h) for _ in range(count) for step, h in zip(steps, holds, strict=True)
        ]:
            old = tuple(f"{t}.{version[t]}" for t in names)
            if kind != "read":
                version = version | {t: version[t] + 1 for t in names}
            new = tuple(f"{t}.{version[t]}" for t in names)
            found.append(Access(old if kind != "write" else (), new if kind != "read" else (), h))
            words |= {t: size[t.partition(".")[0]] for t in (*found[-1].read, *found[-1].written)}
        return AccessList(
            tuple(found),
            words,
            frozenset(f"{t}.{n}" for t, n in version.items() if n and t in outputs),
            count,
        )

    return lists


def small(seed: int) -> tuple[AccessList, int]:
    """A list and a room for `exhaustive`."""
    rng = Random(seed)
    lists = periods(rng, rng.randint(2, 3), rng.randint(3, 6), rng.randint(1, 3), held=seed % 3 == 0)
    listed = lists(rng.randint(1, 2))
    return listed, rng.randint(
        0, max(1, sum({t.partition(".")[0]: n for t, n in listed.words.items()}.values()))
    )
