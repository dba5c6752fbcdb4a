"""GOGETA's replacement policy on a list of single accesses: tensors fill the buffer in the order in which
they come, and evict the tail of the tensor that is needed latest (arXiv 2303.11499, section 5.3).

The optimum of the same list is in `optimum.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from dse.solve.gogeta.accesses import AFTER_END, NEVER, AccessList


@dataclass(frozen=True, slots=True)
class Traffic:
    """Words between main memory and the chip."""

    read_words: int = 0
    write_words: int = 0  # words of results that do not stay on chip and are written at once
    evicted_words: int = 0  # dirty words (not in main memory yet) that were evicted
    flushed_words: int = 0  # dirty words of outputs at the end

    def words(self) -> int:
        """Words in both directions between main memory and the chip."""
        return self.read_words + self.write_words + self.evicted_words + self.flushed_words


@dataclass(slots=True)
class _Buffer:
    """The state of the policy."""

    capacity: int  # words
    resident: dict[str, int]  # words of each tensor on chip, from its beginning
    dirty: dict[str, int]  # of these words, from the beginning, those that are not in main memory yet
    next_access: dict[str, int]  # number of the next access of each tensor (AFTER_END, NEVER: `accesses`)
    evicted_words: int = 0  # dirty words evicted so far

    def free_words(self) -> int:
        return self.capacity - sum(self.resident.values())

    def evict(self, need: int, later: int) -> None:
        """Evicts tails of the tensors whose next access is after access `later`, those with the latest one
        first, until `need` words are free.
        """
        for t in sorted(
            (t for t, n in self.resident.items() if n and self.next_access[t] > later),
            key=lambda t: -self.next_access[t],
        ):
            evicted = min(need - self.free_words(), self.resident[t])
            if evicted <= 0:
                return
            self.resident[t] -= evicted
            dirty_evicted = max(0, self.dirty[t] - self.resident[t])
            self.evicted_words += dirty_evicted
            self.dirty[t] -= dirty_evicted

    def fit(self, t: str, need: int, may_evict: bool) -> int:
        """Returns how many of `need` further words of a tensor fit; if `may_evict`, after evicting tensors
        that are needed later than it.
        """
        if may_evict:
            self.evict(need, self.next_access[t])
        return max(0, min(need, self.free_words()))

    def drop(self, t: str) -> tuple[int, int]:
        return self.resident.pop(t, 0), self.dirty.pop(t, 0)


def policy(
    listed: AccessList, capacity: int, results_evict: bool = True, reads_evict: bool = False
) -> Traffic:
    """Returns the words that the policy moves.

    results_evict: results may evict tensors that are needed strictly later (GOGETA); else results only fill
        free space (SEQ-Overflow).
    reads_evict: operands that are read may also evict such tensors.
    """
    next_reads, size = listed.next_reads(), listed.words
    buffer = _Buffer(capacity, {}, {}, {})
    read = write = 0
    for a in listed.accesses:
        buffer.capacity = capacity - a.resident_words
        if buffer.free_words() < 0:
            buffer.evict(0, -1)
        for t in a.read:
            next_reads[t].pop()
            buffer.next_access[t] = next_reads[t][-1]
        for t in a.written:
            buffer.next_access[t] = min(next_reads[t][-1], AFTER_END)
        if not a.written:
            t = a.read[0]
            read += size[t] - buffer.resident.get(t, 0)
            if buffer.next_access[t] == NEVER:
                buffer.drop(t)
            elif buffer.next_access[t] != AFTER_END:
                buffer.dirty.setdefault(t, 0)
                buffer.resident[t] = buffer.resident.get(t, 0) + buffer.fit(
                    t, size[t] - buffer.resident.get(t, 0), reads_evict
                )
            continue
        for old, new in zip(a.read, a.written, strict=False):
            on_chip, _ = buffer.drop(old)
            read += size[old] - on_chip
            buffer.resident[new], buffer.dirty[new] = min(on_chip, size[new]), 0
        for t in sorted(a.written, key=buffer.next_access.__getitem__):
            on_chip = 0 if buffer.next_access[t] == AFTER_END else buffer.resident.get(t, 0)
            buffer.resident[t], buffer.dirty[t] = on_chip, 0
            if buffer.next_access[t] != AFTER_END:
                buffer.resident[t] += buffer.fit(t, size[t] - on_chip, results_evict)
                buffer.dirty[t] = buffer.resident[t]
        write += sum(size[t] - buffer.dirty[t] for t in a.written)
    return Traffic(read, write, buffer.evicted_words, sum(buffer.dirty.get(t, 0) for t in listed.outputs))
