"""What stays on chip between accesses: GOGETA's policy, and the optimum of a given list of accesses.

The policy fills the buffer first in, first out and evicts the tail of what is needed latest (arXiv
2303.11499, section 5.3). The optimum is a linear program: between two accesses of a tensor so many of its
words stay; it bounds every policy on the same list.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from dse.solve.gogeta.accesses import AccessList

FINAL, DEAD = 10**15, 10**16  # next use of an output after its last access, and of what nobody needs


@dataclass(frozen=True, slots=True)
class Traffic:
    """Words between main memory and the chip: read; written as they are made; dirty words pushed out; dirty
    outputs at the end.
    """

    read: int = 0
    write: int = 0
    evict: int = 0
    flush: int = 0

    def words(self) -> int:
        """Words in both directions between main memory and the chip."""
        return self.read + self.write + self.evict + self.flush


@dataclass(slots=True)
class _Buffer:
    """What the policy knows of each tensor: words on chip (its head), how many of them main memory lacks (the
    head of those), the next use.
    """

    capacity: int
    resident: dict[str, int]
    dirty: dict[str, int]
    next: dict[str, int]
    evicted: int = 0

    def free(self) -> int:
        return self.capacity - sum(self.resident.values())

    def evict(self, need: int, later: int) -> None:
        """Push out the tails of tensors that are needed later than that, the latest first, until so many
        words are free.
        """
        for t in sorted(
            (t for t, n in self.resident.items() if n and self.next[t] > later), key=lambda t: -self.next[t]
        ):
            gone = min(need - self.free(), self.resident[t])
            if gone <= 0:
                return
            self.resident[t] -= gone
            lost = max(0, self.dirty[t] - self.resident[t])
            self.evicted += lost
            self.dirty[t] -= lost

    def make_room(self, t: str, need: int, replace: bool) -> int:
        """How many of so many more words of a tensor find room."""
        if replace:
            self.evict(need, self.next[t])
        return max(0, min(need, self.free()))

    def drop(self, t: str) -> tuple[int, int]:
        return self.resident.pop(t, 0), self.dirty.pop(t, 0)


def policy(listed: AccessList, capacity: int, replace: bool = True, reads_evict: bool = False) -> Traffic:
    """Words that first in, first out filling moves. replace: what is made may evict what is needed strictly
    later, as in GOGETA; without, only free room is filled (SEQ-Overflow). reads_evict: reads may, too.
    """
    uses: dict[str, list[int]] = defaultdict(list)
    for i in reversed(range(len(listed.accesses))):
        for t in listed.accesses[i].read:
            uses[t].append(i)
    size = listed.words
    buffer = _Buffer(capacity, {}, {}, {})
    read = write = 0
    for a in listed.accesses:
        buffer.capacity = capacity - a.resident_words
        if buffer.free() < 0:
            buffer.evict(0, -1)
        for t in a.read:
            uses[t].pop()
            buffer.next[t] = uses[t][-1] if uses[t] else FINAL if t in listed.outputs else DEAD
        for t in a.written:
            buffer.next[t] = uses[t][-1] if uses[t] else FINAL
        if not a.written:
            t = a.read[0]
            read += size[t] - buffer.resident.get(t, 0)
            if buffer.next[t] == DEAD:
                buffer.drop(t)
            elif buffer.next[t] != FINAL:
                buffer.dirty.setdefault(t, 0)
                buffer.resident[t] = buffer.resident.get(t, 0) + buffer.make_room(
                    t, size[t] - buffer.resident.get(t, 0), reads_evict
                )
            continue
        for old, new in zip(a.read, a.written, strict=False):
            kept, _ = buffer.drop(old)
            read += size[old] - kept
            buffer.resident[new], buffer.dirty[new] = min(kept, size[new]), 0
        for t in sorted(a.written, key=buffer.next.__getitem__):
            kept = 0 if buffer.next[t] == FINAL else buffer.resident.get(t, 0)
            buffer.resident[t], buffer.dirty[t] = kept, 0
            if buffer.next[t] != FINAL:
                buffer.resident[t] += buffer.make_room(t, size[t] - kept, replace)
                buffer.dirty[t] = buffer.resident[t]
        write += sum(size[t] - buffer.dirty[t] for t in a.written)
    return Traffic(read, write, buffer.evicted, sum(buffer.dirty.get(t, 0) for t in listed.outputs))
