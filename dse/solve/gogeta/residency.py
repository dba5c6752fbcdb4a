"""GOGETA's replacement policy on a list of single accesses: tensors fill the buffer in the order in which
they come, and evict the tail of the tensor that is needed latest (arXiv 2303.11499, section 5.3).

The optimum of the same list is in `optimum.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from dse.solve.gogeta.accesses import DEAD, FINAL, AccessList


@dataclass(frozen=True, slots=True)
class Traffic:
    """Words between main memory and the chip."""

    read: int = 0
    write: int = 0  # words of results that do not stay on chip and are written at once
    evict: int = 0  # dirty words (not in main memory yet) that were evicted
    flush: int = 0  # dirty words of outputs at the end

    def words(self) -> int:
        """Words in both directions between main memory and the chip."""
        return self.read + self.write + self.evict + self.flush


@dataclass(slots=True)
class _Buffer:
    """The state of the policy."""

    capacity: int  # words
    resident: dict[str, int]  # words of each tensor on chip, from its beginning
    dirty: dict[str, int]  # of these words, from the beginning, those that are not in main memory yet
    next: dict[str, int]  # number of the next access of each tensor (FINAL, DEAD: `accesses`)
    evicted: int = 0  # dirty words evicted so far

    def free(self) -> int:
        return self.capacity - sum(self.resident.values())

    def evict(self, need: int, later: int) -> None:
        """Evicts tails of the tensors whose next access is after access `later`, those with the latest one
        first, until `need` words are free.
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
        """Returns how many of `need` further words of a tensor fit; if `replace`, after evicting tensors that
        are needed later than it.
        """
        if replace:
            self.evict(need, self.next[t])
        return max(0, min(need, self.free()))

    def drop(self, t: str) -> tuple[int, int]:
        return self.resident.pop(t, 0), self.dirty.pop(t, 0)


def policy(listed: AccessList, capacity: int, replace: bool = True, reads_evict: bool = False) -> Traffic:
    """Returns the words that the policy moves.

    replace: results may evict tensors that are needed strictly later (GOGETA); else results only fill free
        space (SEQ-Overflow).
    reads_evict: operands that are read may also evict such tensors.
    """
    uses, size = listed.uses(), listed.words
    buffer = _Buffer(capacity, {}, {}, {})
    read = write = 0
    for a in listed.accesses:
        buffer.capacity = capacity - a.resident_words
        if buffer.free() < 0:
            buffer.evict(0, -1)
        for t in a.read:
            uses[t].pop()
            buffer.next[t] = uses[t][-1]
        for t in a.written:
            buffer.next[t] = min(uses[t][-1], FINAL)
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
