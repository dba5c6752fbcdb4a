"""Exact counts of lines, rows and banks that a layout touches: products over stored dimensions
(docs/model.md, Layouts).

A box is a set of elements that is requested at once: some values of each stored dimension. A nest requests
one box after the other. Its boxes are all combinations of one set of values per dimension (`Rows`), so a
total over the nest is a product, over dimensions, of sums over these sets. A single tile has one set per
dimension.

    runs        = |S| - sum_j prod_d c_d(j)     S: elements of the box; c_d(j): values that do not end a run,
                                                as far as dimension d decides: the next address, in which
                                                digit j rises by one and the digits inside of it become 0,
                                                is requested too
    lines       = prod_d u_d                    u_d: distinct values of the part of the address that selects
                                                the line; exact where the line divides the digits
    activations = the same with the part that selects bank and row
    conflict    = prod_d w_d                    w_d: distinct words of the SRAM bank with most of them

If a memory cuts a digit that it does not divide, a count is an estimate between limits (`Span`), or
addresses are listed (`count_listed`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, prod

import numpy as np

from dse.layout.address import Digit, Layout, Stored, parts, values
from dse.run.compiled import njit
from workloads.arrays import Ints

# (index of the digit, divisor, modulus): digit / divisor, mod modulus unless that is 0
Field = tuple[int, int, int]
# n sets of t values of a stored dimension, [n, t], each ascending; how often each set occurs [n]
Rows = tuple[Ints, Ints]
Sums = tuple[int, ...]  # the columns of `sums`
ONCE = np.ones(1, np.int64)


@dataclass(frozen=True, slots=True)
class Memory:
    """A memory, in elements of a tensor.

    DRAM: `row` elements in a row of each of `banks`; consecutive blocks of `interleave` elements lie in
        consecutive banks.
    SRAM: lines are words; each of `sram_banks` banks serves one word at a time.
    """

    line: int  # elements that move at once
    row: int = 0  # 0: no DRAM rows
    banks: int = 1
    interleave: int = 0  # 0: `row`
    sram_banks: int = 0  # SRAM banks; 0: none
    # bank of an SRAM word. word: consecutive words lie in consecutive banks; block: each bank has `capacity /
    # sram_banks` consecutive elements; xor: as word, permuted by the index of the word in its bank
    bank_map: str = "word"
    capacity: int = 0


@dataclass(frozen=True, slots=True)
class Span:
    """A count: exact if lo == hi, otherwise an estimate n between limits."""

    n: float
    lo: float
    hi: float

    @property
    def exact(self) -> bool:
        """True if both limits agree."""
        return self.lo == self.hi


@dataclass(frozen=True, slots=True)
class Counts:
    """What boxes ask of a memory, summed over boxes."""

    boxes: int  # number of boxes
    elems: int  # elements requested
    runs: int  # runs of consecutive addresses
    lines: Span  # lines touched
    partial: Span  # lines of which only a part is requested
    activations: Span  # rows opened, if each box opens its rows by itself
    banks: Span  # different DRAM banks
    conflict: Span  # words of the busiest SRAM bank
    blocks: Sums  # per digit j, blocks: distinct combinations of the digits 0..j

    @property
    def exact(self) -> bool:
        """True if lines, activations and conflict are exact counts."""
        return all(span.exact for span in (self.lines, self.activations, self.conflict))


@dataclass(frozen=True, slots=True)
class Cuts:
    """How a memory cuts the addresses of a layout. Each field from `line` on is one part of the address; None
    if the memory has no such part, or a cut does not divide a digit.
    """

    layout: Layout
    weights: tuple[int, ...]  # weight of each digit in the address
    memory: Memory
    line: tuple[Field, ...] | None  # index of the line
    row: tuple[Field, ...] | None  # bank and row
    bank: tuple[Field, ...] | None  # bank
    sram_bank: tuple[Field, ...] | None  # SRAM bank
    word: tuple[Field, ...] | None  # word within the SRAM bank


def cuts(layout: Layout, memory: Memory) -> Cuts:
    """Returns how a memory cuts the addresses of a layout."""
    line = _fields(layout, memory.line, 0)
    row = bank = sram_bank = word = None
    if memory.row:
        interleave = memory.interleave or memory.row
        bank = _fields(layout, interleave, interleave * memory.banks)
        above = _fields(layout, memory.row * memory.banks, 0)
        row = None if bank is None or above is None else bank + above
        row = _fields(layout, memory.row, 0) if interleave == memory.row else row
    if memory.sram_banks:
        shared = memory.line * memory.sram_banks
        if memory.bank_map == "block":
            deep = memory.capacity // memory.sram_banks
            low, high = _fields(layout, memory.line, deep), _fields(layout, memory.capacity, 0)
            sram_bank = _fields(layout, deep, memory.capacity)
            word = None if low is None or high is None else low + high
        elif memory.bank_map == "word":
            sram_bank, word = _fields(layout, memory.line, shared), _fields(layout, shared, 0)
    return Cuts(layout, layout.weights(), memory, line, row, bank, sram_bank, word)


def _fields(layout: Layout, low: int, high: int) -> tuple[Field, ...] | None:
    """Returns the fields of the address from weight `low` up to weight `high` (0: to the top); None if a
    limit lies inside of a digit that it does not divide.
    """
    found = list[Field]()
    for j, (digit, weight) in enumerate(zip(layout.digits, layout.weights(), strict=True)):
        top, divisor, modulus = weight * digit.pitch, 1, 0
        if (high and weight >= high) or top <= low:
            continue
        if weight < low:
            if low % weight or (j and digit.pitch % (low // weight)):
                return None
            divisor = low // weight
        if high and top > high:
            if high % max(weight, low) or (j and digit.pitch % (high // weight)) or high % weight:
                return None
            modulus = high // max(weight, low)
        found.append((j, divisor, modulus))
    return tuple(found)


def sums(c: Cuts, dim: int, rows: Sequence[Rows]) -> Sums:
    """Returns the factors of one dimension, summed over its sets of values: boxes, elems, c_d(j) of every
    digit, u_d(j) of every digit, lines, full lines, rows, banks, words, conflict.
    """
    total = [0] * (8 + 2 * len(c.layout.digits))
    for own, times in rows:
        if own.shape[1]:
            for i, found in enumerate(_measured(c, dim, own)):
                total[i] += int(found @ times) if isinstance(found, np.ndarray) else found * int(times.sum())
    return tuple(total)


def _measured(c: Cuts, dim: int, values: Ints) -> Iterator[Ints | int]:
    """Yields the factors of `sums`, per set of values or as one number for all sets."""
    digits = c.layout.digits
    yield 1
    yield values.shape[1]
    for j in range(len(digits)):
        yield _carries(digits, dim, j, values)
    for j in range(len(digits)):
        yield _different(_key(digits, dim, [(k, 1, 0) for k in range(j + 1)], values))
    keys = [
        None if fields is None else _key(digits, dim, fields, values)
        for fields in (c.line, c.row, c.bank, c.sram_bank, c.word)
    ]
    line, row, bank, sram_bank, word = keys
    yield 0 if line is None else _different(line)
    yield 0 if line is None else _full(c, dim, values, line)
    yield 0 if row is None else _different(row)
    yield 0 if bank is None else _different(bank)
    yield 0 if sram_bank is None or word is None else _different(sram_bank * (int(word.max()) + 1) + word)
    yield 0 if sram_bank is None or word is None else _most(sram_bank, word)


def _carries(digits: Sequence[Digit], dim: int, j: int, values: Ints) -> Ints | int:
    """Returns, per set of values, how many have a successor that is requested, as far as this dimension
    decides. To the successor, digits inside of j go from their last value to 0, and digit j rises by one.
    """
    own = [k for k in range(j, len(digits)) if digits[k].dim == dim]
    if not own:
        return int(values.shape[1])
    stays = np.ones(values.shape, bool)
    step = 0
    for k in own:
        if k == j:
            step += digits[k].step
        else:
            stays &= parts(digits[k], values) == digits[k].pitch - 1
            step -= digits[k].step * (digits[k].pitch - 1)
    after = values + step
    if digits[j].dim == dim:
        stays &= (after >= 0) & (parts(digits[j], np.maximum(after, 0)) == parts(digits[j], values) + 1)
    stays &= (after >= values[:, :1]) & (after <= values[:, -1:])
    if (
        int(values[0, -1] - values[0, 0]) != values.shape[1] - 1
        or not (values[:, -1] - values[:, 0] == values.shape[1] - 1).all()
    ):
        stays &= _is_asked(values, after)
    return np.asarray(stays.sum(axis=1), np.int64)


def _is_asked(values: Ints, wanted: Ints) -> Ints:
    """Returns, per wanted value, whether it is in the set of the same row."""
    base = np.arange(len(values), dtype=np.int64)[:, None] * (int(values.max()) + 2)
    inside = np.clip(wanted, -1, int(values.max()) + 1)
    flat = (values + base).ravel()
    at = np.minimum(np.searchsorted(flat, (inside + base).ravel()), len(flat) - 1)
    return np.asarray((flat[at] == (inside + base).ravel()).reshape(values.shape) & (inside == wanted))


def _key(digits: Sequence[Digit], dim: int, fields: Sequence[Field], values: Ints) -> Ints:
    """Returns one number per value for its fields of this dimension; equal numbers mean equal fields."""
    key = np.zeros(values.shape, np.int64)
    for j, divisor, modulus in fields:
        if digits[j].dim == dim:
            field = parts(digits[j], values) // divisor
            key = key * (digits[j].pitch // divisor + 1) + (field % modulus if modulus else field)
    return key


def _different(key: Ints) -> Ints:
    """Returns, per set of values, the number of different keys."""
    ordered = np.sort(key, axis=1)
    return np.asarray(1 + (ordered[:, 1:] != ordered[:, :-1]).sum(axis=1), np.int64)


def _full(c: Cuts, dim: int, values: Ints, line: Ints) -> Ints:
    """Returns, per set of values, the number of lines of which all elements of the tensor are requested.

    line: key of the line of each value
    """
    all_keys, held = _line_members(c, dim)
    found = np.empty(len(values), np.int64)
    for i, row in enumerate(line):
        keys, count = np.unique(row, return_counts=True)
        found[i] = int((held[np.searchsorted(all_keys, keys)] == count).sum())
    return found


@lru_cache(maxsize=1 << 8)
def _line_members(c: Cuts, dim: int) -> tuple[Ints, Ints]:
    """Returns the keys of the lines of a whole dimension, and how many values each has."""
    return np.unique(
        _key(c.layout.digits, dim, c.line or (), existing(c.layout.stored[dim])[None, :])[0],
        return_counts=True,
    )


def existing(s: Stored) -> Ints:
    """Returns all values of a stored dimension that hold an element."""
    if not s.tile:
        return np.arange(s.extent())
    whole = np.arange(s.tiles() * s.tile)
    return np.asarray(whole[whole // s.tile * s.stride + whole % s.tile < s.extent()])


def _most(sram_bank: Ints, word: Ints) -> Ints:
    """Returns, per set of values, the number of different words of the busiest SRAM bank."""
    row = np.repeat(np.arange(len(sram_bank)), sram_bank.shape[1])
    pairs = np.unique(np.stack([row, sram_bank.ravel(), word.ravel()]), axis=1)
    (where, _), each = np.unique(pairs[:2], axis=1, return_counts=True)
    most = np.zeros(len(sram_bank), np.int64)
    np.maximum.at(most, where, each)
    return most


def combine(c: Cuts, by_dim: Sequence[Sums], visits: int = 1) -> Counts:
    """Returns the counts of all boxes from the sums of every stored dimension.

    visits: how often the whole sequence of boxes is requested
    """
    total = [visits * prod(column) for column in zip(*by_dim, strict=True)]
    depth = len(c.layout.digits)
    boxes, elems = total[:2]
    runs = elems - sum(total[2 : 2 + depth])
    blocks = tuple(total[2 + depth : 2 + 2 * depth])
    line, full, row, bank, _word, most = total[2 + 2 * depth :]
    m = c.memory
    if not elems:
        none = Span(0, 0, 0)
        return Counts(0, 0, 0, none, none, none, none, none, blocks)
    lines = (
        Span(line, line, line)
        if c.line is not None
        else estimate_lines(c.weights, m.line, boxes, elems, runs, blocks)
    )
    partial = (
        Span(line - full, line - full, line - full) if c.line is not None else _partly(m, lines, elems, runs)
    )
    rows = banks = conflict = Span(0, 0, 0)
    if m.row:
        rows = Span(row, row, row) if c.row is not None else _rows(c, boxes, elems, runs, blocks)
        banks = (
            Span(bank, bank, bank)
            if c.bank is not None
            else Span(min(m.banks * boxes, rows.n), boxes, min(m.banks * boxes, rows.hi))
        )
    if m.sram_banks:
        conflict = (
            Span(most, most, most)
            if c.sram_bank is not None and c.word is not None
            else _conflict_span(m, lines, boxes)
        )
    return Counts(boxes, elems, runs, lines, partial, rows, banks, conflict, blocks)


@dataclass(frozen=True, slots=True)
class Tables:
    """A memo of the sums of every stored dimension, by the index ranges of its members. Boxes with equal
    ranges in a dimension share its sums.
    """

    cuts: Cuts
    memo: tuple[dict[tuple[tuple[int, int], ...], Sums], ...]

    def box(self, spans: Sequence[tuple[int, int]], copies: bool = False) -> Counts:
        """Returns the counts of one box.

        spans: (first index, number of indices) of every logical dimension
        copies: True: all copies of an element in overlapping tiles, which a write must touch
        """
        found = []
        for dim, (s, known) in enumerate(zip(self.cuts.layout.stored, self.memo, strict=True)):
            own = tuple([spans[m] for m in s.members])
            sums_ = known.get(own)
            if sums_ is None:
                sums_ = known[own] = sums(
                    self.cuts, dim, [(values(s, [(span,) for span in own], copies)[None, :], ONCE)]
                )
            found.append(sums_)
        return combine(self.cuts, found)


def tables(c: Cuts) -> Tables:
    """Returns an empty memo for these cuts, one dict per stored dimension."""
    return Tables(c, tuple({} for _ in c.layout.stored))


def estimate_lines(
    weights: Sequence[int], line: int, boxes: int, elems: int, runs: int, blocks: Sequence[int]
) -> Span:
    """Returns the lines for a cut that does not divide a digit: limits, and an estimate from the distance
    between neighbouring blocks.

    A block of digit j is the requested elements that agree in digits 0..j. A block that is less than a line
    away from the block before it shares a line with it. From the last element of a block to the first of the
    next one the distance is max(1, W_j - sum_{k > j} (b_k - 1) W_k). b_k: blocks of digit k per block of
    digit k - 1.
    """
    lo, hi = max(boxes, -(-elems // line)), min(elems, (elems + runs * (2 * line - 2)) // line)
    n, inside = float(boxes), 0.0
    for j in range(len(weights) - 1, -1, -1):
        u, w, before = blocks[j], weights[j], blocks[j - 1] if j else boxes
        lo, hi = max(lo, -(-u // (-(-(line - 1) // w) + 1))), min(hi, u * (-(-(w - 1) // line) + 1))
        if u > before:
            n += (u - before) * min(1.0, max(1.0, w - inside) / line)
            inside += (u / before - 1) * w
    return Span(min(max(n, lo), hi), lo, hi)


def _partly(m: Memory, lines: Span, elems: int, runs: int) -> Span:
    """Returns the lines of which only a part is requested: at most the lines at the two ends of each run, at
    least 0, since what a run leaves of a line may be padding.
    """
    hi = min(lines.hi, 2 * runs)
    return Span(min(max(0, lines.n - elems / m.line), hi), 0, hi)


def _rows(c: Cuts, boxes: int, elems: int, runs: int, blocks: Sequence[int]) -> Span:
    """Returns the pairs of bank and row for a cut that does not divide a digit: at most the interleaved
    blocks touched, at least the rows that the elements fill.
    """
    found = estimate_lines(c.weights, c.memory.interleave or c.memory.row, boxes, elems, runs, blocks)
    if c.memory.interleave in (0, c.memory.row):
        return found
    lo = max(boxes, ceil(elems / c.memory.row))
    return Span(min(max(found.n * c.memory.interleave / c.memory.row, lo), found.hi), lo, found.hi)


def _conflict_span(m: Memory, words: Span, boxes: int) -> Span:
    """Returns the words of the busiest SRAM bank for a cut that does not divide a digit."""
    lo = max(boxes, ceil(words.lo / m.sram_banks))
    return Span(min(max(words.n / m.sram_banks, lo), words.hi), lo, words.hi)


def count_listed(c: Cuts, rows: Sequence[Sequence[Rows]], visits: int = 1) -> Counts:
    """Returns the counts of `combine` by listing the addresses of every box, for cuts that do not divide a
    digit. Its time grows with the elements of all boxes.
    """
    by_dim = [sums(c, dim, own) for dim, own in enumerate(rows)]
    base, m = combine(c, by_dim, visits), c.memory
    held = np.bincount(_offsets(c.layout, [existing(s) for s in c.layout.stored]) // m.line)
    flat, start, times, first = list[Ints](), [0], list[int](), [0]
    for dim, own in enumerate(rows):
        for several, often in own:
            for asked, n in zip(offset(c.layout, c.weights, dim, several), often.tolist(), strict=True):
                flat.append(asked)
                start.append(start[-1] + len(asked))
                times.append(n)
        first.append(len(times))
    sram_banks = (
        sram_bank_of(np.arange(len(held), dtype=np.int64), m)
        if m.sram_banks
        else np.zeros(len(held), np.int64)
    )
    interleave = m.interleave or m.row
    found = _count_boxes(
        np.concatenate(flat) if flat else np.zeros(0, np.int64),
        np.array(start, np.int64),
        np.array(times, np.int64),
        np.array(first, np.int64),
        held,
        sram_banks,
        max(m.sram_banks, 1),
        m.line,
        interleave if m.row else 0,
        m.banks,
        m.row * m.banks,
    )
    lines, partial, pairs, banks, most = (visits * int(n) for n in found)
    conflict = _exactly(most if m.sram_banks else 0)
    return replace(
        base,
        lines=_exactly(lines),
        partial=_exactly(partial),
        activations=_exactly(pairs),
        banks=_exactly(banks),
        conflict=conflict,
    )


@njit(cache=True, nogil=True)
def _count_boxes(
    flat: Ints,
    start: Ints,
    times: Ints,
    first: Ints,
    held: Ints,
    sram_banks: Ints,
    arrays: int,
    line: int,
    interleave: int,
    banks: int,
    deep: int,
) -> Ints:
    """Returns lines, partial lines, pairs of bank and row, banks, and words of the busiest SRAM bank, each
    summed over all boxes.

    A box is one set of values of every dimension.
    flat, start: offsets of set k are flat[start[k]:start[k + 1]]; one offset per dimension adds up to an
        address
    times: how often each set occurs
    first: first set of each dimension
    held: elements per line of the whole tensor
    sram_banks: SRAM bank of each line
    arrays: number of SRAM banks, at least 1
    deep: elements of one row over all banks
    """
    dims = len(first) - 1
    total = np.zeros(5, np.int64)
    row, at = first[:-1].copy(), np.zeros(dims, np.int64)
    asked, stamp = np.zeros(len(held), np.int64), np.zeros(len(held), np.int64)
    rows = len(held) * line // deep + 2 if interleave else 1
    opened, used = np.zeros(rows * banks if interleave else 1, np.int64), np.zeros(banks, np.int64)
    words = np.zeros(arrays, np.int64)
    touched = np.zeros(len(held), np.int64)
    box = 0
    for d in range(dims):
        if first[d] == first[d + 1]:
            return total
    while True:
        box += 1
        often, some = 1, True
        for d in range(dims):
            often *= times[row[d]]
            at[d] = start[row[d]]
            some = some and start[row[d]] < start[row[d] + 1]
        lines, partial, pairs, different, most = 0, 0, 0, 0, 0
        while some:
            address = 0
            for d in range(dims):
                address += flat[at[d]]
            own = address // line
            if stamp[own] != box:
                stamp[own], asked[own], touched[lines] = box, 0, own
                lines += 1
            asked[own] += 1
            if interleave:
                bank = address // interleave % banks
                pair = address // deep * banks + bank
                if opened[pair] != box:
                    opened[pair] = box
                    pairs += 1
                if used[bank] != box:
                    used[bank] = box
                    different += 1
            d = dims - 1
            while d >= 0:
                at[d] += 1
                if at[d] < start[row[d] + 1]:
                    break
                at[d] = start[row[d]]
                d -= 1
            some = d >= 0
        words[:] = 0
        for i in range(lines):
            partial += asked[touched[i]] != held[touched[i]]
            words[sram_banks[touched[i]]] += 1
            most = max(most, words[sram_banks[touched[i]]])
        for i, n in enumerate((lines, partial, pairs, different, most)):
            total[i] += often * n
        d = dims - 1
        while d >= 0:
            row[d] += 1
            if row[d] < first[d + 1]:
                break
            row[d] = first[d]
            d -= 1
        if d < 0:
            return total


def rows_opened(c: Cuts, flat: Ints, start: Ints, boxes: Ints, order: Ints) -> int:
    """Returns the rows opened by boxes one after the other, with the addresses of each box in ascending
    order. A bank keeps its last row open.

    flat, start: offsets of values k of one dimension are flat[start[k]:start[k + 1]]
    boxes: [B, dims], k of each dimension; one offset per dimension adds up to an address
    order: boxes in the order of time
    """
    m = c.memory
    interleave = m.interleave or m.row
    return int(
        _rows_opened(
            flat,
            start,
            boxes,
            order,
            c.layout.stored_elems() // interleave + 1,
            interleave,
            m.banks,
            m.row * m.banks,
        )
    )


@njit(cache=True, nogil=True)
def _rows_opened(
    flat: Ints,
    start: Ints,
    boxes: Ints,
    order: Ints,
    interleave_units: int,
    interleave: int,
    banks: int,
    deep: int,
) -> int:
    """The compiled `rows_opened`.

    interleave_units: interleaved blocks of the whole tensor
    deep: elements of one row over all banks
    """
    many, dims = boxes.shape
    stamp, at = np.full(interleave_units, -1, np.int64), np.zeros(dims, np.int64)
    begin, room = np.zeros(many + 1, np.int64), 0
    for b in range(many):
        n = 1
        for d in range(dims):
            n *= start[boxes[b, d] + 1] - start[boxes[b, d]]
        room += min(n, interleave_units)
    touched, n = np.empty(room, np.int64), 0
    for b in range(many):
        some = True
        for d in range(dims):
            at[d] = start[boxes[b, d]]
            some = some and at[d] < start[boxes[b, d] + 1]
        while some:
            address = 0
            for d in range(dims):
                address += flat[at[d]]
            if stamp[address // interleave] != b:
                stamp[address // interleave] = b
                touched[n] = address // interleave
                n += 1
            d = dims - 1
            while d >= 0:
                at[d] += 1
                if at[d] < start[boxes[b, d] + 1]:
                    break
                at[d] = start[boxes[b, d]]
                d -= 1
            some = d >= 0
        begin[b + 1] = n
        touched[begin[b] : n].sort()
    found, rows = 0, np.full(banks, -1, np.int64)
    for b in order:
        for one in touched[begin[b] : begin[b + 1]]:
            row = one * interleave // deep
            if rows[one % banks] != row:
                rows[one % banks] = row
                found += 1
    return found


def sram_bank_of(words: Ints, m: Memory) -> Ints:
    """Returns the SRAM bank of each word."""
    if m.bank_map == "block":
        return words // (m.capacity // m.line // m.sram_banks) % m.sram_banks
    turned = words ^ (words // m.sram_banks) if m.bank_map == "xor" else words
    return np.asarray(turned % m.sram_banks)


def _exactly(n: int) -> Span:
    return Span(n, n, n)


def _offsets(layout: Layout, values: Sequence[Ints]) -> Ints:
    """Returns the addresses of a box with these values of each stored dimension."""
    at = np.zeros(1, np.int64)
    for dim, own in enumerate(values):
        at = np.add.outer(at, offset(layout, layout.weights(), dim, own)).ravel()
    return at


def offset(layout: Layout, weights: Sequence[int], dim: int, values: Ints) -> Ints:
    """Returns what values of a stored dimension add to an address."""
    offset = np.zeros(values.shape, np.int64)
    for digit, weight in zip(layout.digits, weights, strict=True):
        if digit.dim == dim:
            offset += parts(digit, values) * weight
    return offset


def misses(
    runs: float, lines: float, together: int, run_start: float | None = None, per_line: float | None = None
) -> float:
    """Returns the misses of a cache that fetches `together` consecutive lines at once: ceil(l / together) per
    run, where l is the average number of lines per run. At most one miss per line.

    run_start, per_line: calibrated misses per run and per line, used if both are given
    """
    if run_start is None or per_line is None:
        return min(lines, runs * ceil(lines / runs / together)) if runs else 0.0
    return runs * run_start + lines * per_line


def descriptors(counts: Counts, strides: int) -> int:
    """Returns the DMA descriptors of all boxes. A descriptor covers a run and up to `strides` nested strided
    repeats of it, taken from the innermost digits that repeat runs.
    """
    left, before = float(counts.runs), [counts.boxes, *counts.blocks]
    depth = next((j for j, u in enumerate(counts.blocks) if u >= counts.runs), len(counts.blocks) - 1)
    for j in range(depth, -1, -1):
        if strides and counts.blocks[j] > before[j]:
            left, strides = left * before[j] / counts.blocks[j], strides - 1
    return max(counts.boxes, ceil(left))
