"""Exact counts of lines, rows and banks that a layout touches: products over stored dimensions
(docs/model.md, Layouts).

A box is a set of elements that is requested at once: some values of each stored dimension. A nest requests
one box after the other. Its boxes are all combinations of one set of values per dimension (`ValueSets`), so a
total over the nest is a product, over dimensions, of sums over these sets. A single tile has one set per
dimension.

    runs        = |S| - sum_j prod_d c_d(j)     S: elements of the box; the product counts elements whose next
                                                address is in S too and is reached with a carry into digit j:
                                                digit j rises by one, all digits inside of it, at their last
                                                values, return to 0. c_d(j): values of dimension d for which
                                                its own digits and set of values allow that
    lines       = prod_d u_d                    u_d: distinct values of the part of the address that selects
                                                the line
    activations = the same with the part that selects bank and row
    conflict    = prod_d w_d                    w_d: distinct words of the SRAM bank with most of them

The last three are exact if each border of a line, row or bank that falls inside a digit cuts the digit into
equal parts. Otherwise they are estimates between limits (`CountRange`), or addresses are listed
(`count_listed`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, prod
from typing import NamedTuple

import numpy as np

from dse.layout.address import Digit, Layout, StoredDim, digits_of, values
from dse.run.compiled import njit
from workloads.arrays import Ints

# n sets of t values of a stored dimension, [n, t], each ascending; how often each set occurs [n]
ValueSets = tuple[Ints, Ints]
Sums = tuple[int, ...]  # the factors that `sums` lists, in its order
ONCE = np.ones(1, np.int64)


class Field(NamedTuple):
    """A part of a digit: digit / divisor, mod modulus unless that is 0."""

    digit: int  # its index in the layout
    divisor: int
    modulus: int


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
class CountRange:
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
    lines: CountRange  # lines touched
    partial: CountRange  # lines of which only a part is requested
    activations: CountRange  # rows opened, if each box opens its rows by itself
    banks: CountRange  # different DRAM banks
    conflict: CountRange  # words of the busiest SRAM bank
    blocks: Sums  # per digit j, blocks: distinct combinations of the digits 0..j

    @property
    def exact(self) -> bool:
        """True if lines, activations and conflict are exact counts."""
        return all(span.exact for span in (self.lines, self.activations, self.conflict))


@dataclass(frozen=True, slots=True)
class Cuts:
    """How a memory cuts the addresses of a layout. Each field from `line` on is one part of the address; None
    if the memory has no such part, or a border of it cuts a digit into unequal parts.
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
            bank_elems = memory.capacity // memory.sram_banks
            low, high = _fields(layout, memory.line, bank_elems), _fields(layout, memory.capacity, 0)
            sram_bank = _fields(layout, bank_elems, memory.capacity)
            word = None if low is None or high is None else low + high
        elif memory.bank_map == "word":
            sram_bank, word = _fields(layout, memory.line, shared), _fields(layout, shared, 0)
    return Cuts(layout, layout.weights(), memory, line, row, bank, sram_bank, word)


def _fields(layout: Layout, low: int, high: int) -> tuple[Field, ...] | None:
    """Returns the fields of the address from weight `low` up to weight `high` (0: to the top); None if one of
    the two cuts a digit into unequal parts. Of the outermost digit the last part may be smaller.
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
        found.append(Field(j, divisor, modulus))
    return tuple(found)


def sums(c: Cuts, dim: int, sets: Sequence[ValueSets]) -> Sums:
    """Returns the factors of one dimension, summed over its sets of values: sets, values, c_d(j) of every
    digit, distinct combinations of the digits 0..j for every digit j (`Counts.blocks`), lines, full lines,
    rows, banks, words, conflict.
    """
    total = [0] * (8 + 2 * len(c.layout.digits))
    for value_sets, times in sets:
        if value_sets.shape[1]:
            for i, found in enumerate(_measured(c, dim, value_sets)):
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
        yield _distinct_count(_key(digits, dim, [Field(k, 1, 0) for k in range(j + 1)], values))
    keys = [
        None if fields is None else _key(digits, dim, fields, values)
        for fields in (c.line, c.row, c.bank, c.sram_bank, c.word)
    ]
    line, row, bank, sram_bank, word = keys
    yield 0 if line is None else _distinct_count(line)
    yield 0 if line is None else _full_lines(c, dim, values, line)
    yield 0 if row is None else _distinct_count(row)
    yield 0 if bank is None else _distinct_count(bank)
    yield (
        0 if sram_bank is None or word is None else _distinct_count(sram_bank * (int(word.max()) + 1) + word)
    )
    yield 0 if sram_bank is None or word is None else _busiest_words(sram_bank, word)


def _carries(digits: Sequence[Digit], dim: int, j: int, values: Ints) -> Ints | int:
    """Returns c_d(j) per set of values: how many values have their successor in the set. An element's
    successor is the next address, if digit j rises by one and the digits inside of it, all at their last
    value, return to 0; a dimension without such digits keeps its value.
    """
    dim_digits = [k for k in range(j, len(digits)) if digits[k].dim == dim]
    if not dim_digits:
        return int(values.shape[1])
    has_successor = np.ones(values.shape, bool)
    step = 0
    for k in dim_digits:
        if k == j:
            step += digits[k].step
        else:
            has_successor &= digits_of(digits[k], values) == digits[k].pitch - 1
            step -= digits[k].step * (digits[k].pitch - 1)
    after = values + step
    if digits[j].dim == dim:
        has_successor &= (after >= 0) & (
            digits_of(digits[j], np.maximum(after, 0)) == digits_of(digits[j], values) + 1
        )
    has_successor &= (after >= values[:, :1]) & (after <= values[:, -1:])
    if (
        int(values[0, -1] - values[0, 0]) != values.shape[1] - 1
        or not (values[:, -1] - values[:, 0] == values.shape[1] - 1).all()
    ):
        has_successor &= _is_asked(values, after)
    return np.asarray(has_successor.sum(axis=1), np.int64)


def _is_asked(values: Ints, wanted: Ints) -> Ints:
    """Returns, per wanted value, whether it is in the set of values of the same row."""
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
            field = digits_of(digits[j], values) // divisor
            key = key * (digits[j].pitch // divisor + 1) + (field % modulus if modulus else field)
    return key


def _distinct_count(key: Ints) -> Ints:
    """Returns, per set of values, the number of different keys."""
    ordered = np.sort(key, axis=1)
    return np.asarray(1 + (ordered[:, 1:] != ordered[:, :-1]).sum(axis=1), np.int64)


def _full_lines(c: Cuts, dim: int, values: Ints, line: Ints) -> Ints:
    """Returns, per set of values, the number of lines of which all elements of the tensor are requested.

    line: key of the line of each value
    """
    all_keys, line_elems = _line_members(c, dim)
    found = np.empty(len(values), np.int64)
    for i, row in enumerate(line):
        keys, count = np.unique(row, return_counts=True)
        found[i] = int((line_elems[np.searchsorted(all_keys, keys)] == count).sum())
    return found


@lru_cache(maxsize=1 << 8)
def _line_members(c: Cuts, dim: int) -> tuple[Ints, Ints]:
    """Returns the keys of the lines of a whole dimension, and how many values each has."""
    return np.unique(
        _key(c.layout.digits, dim, c.line or (), existing(c.layout.stored[dim])[None, :])[0],
        return_counts=True,
    )


def existing(s: StoredDim) -> Ints:
    """Returns all values of a stored dimension that hold an element."""
    if not s.tile:
        return np.arange(s.extent())
    tile_values = np.arange(s.tiles() * s.tile)
    return np.asarray(tile_values[tile_values // s.tile * s.stride + tile_values % s.tile < s.extent()])


def _busiest_words(sram_bank: Ints, word: Ints) -> Ints:
    """Returns, per set of values, the number of different words of the busiest SRAM bank."""
    row = np.repeat(np.arange(len(sram_bank)), sram_bank.shape[1])
    pairs = np.unique(np.stack([row, sram_bank.ravel(), word.ravel()]), axis=1)
    (bank_keys, _), words_of_bank = np.unique(pairs[:2], axis=1, return_counts=True)
    busiest = np.zeros(len(sram_bank), np.int64)
    np.maximum.at(busiest, bank_keys, words_of_bank)
    return busiest


def combine(c: Cuts, by_dim: Sequence[Sums], visits: int = 1) -> Counts:
    """Returns the counts of all boxes from the sums of every stored dimension.

    visits: how often the whole sequence of boxes is requested
    """
    total = [visits * prod(column) for column in zip(*by_dim, strict=True)]
    digit_count = len(c.layout.digits)
    boxes, elems = total[:2]
    runs = elems - sum(total[2 : 2 + digit_count])
    blocks = tuple(total[2 + digit_count : 2 + 2 * digit_count])
    line, full, row, bank, _word, busiest_words = total[2 + 2 * digit_count :]
    m = c.memory
    if not elems:
        none = CountRange(0, 0, 0)
        return Counts(0, 0, 0, none, none, none, none, none, blocks)
    lines = (
        CountRange(line, line, line)
        if c.line is not None
        else estimate_lines(c.weights, m.line, boxes, elems, runs, blocks)
    )
    partial = (
        CountRange(line - full, line - full, line - full)
        if c.line is not None
        else _partial_lines(m, lines, elems, runs)
    )
    rows = banks = conflict = CountRange(0, 0, 0)
    if m.row:
        rows = (
            CountRange(row, row, row) if c.row is not None else _bank_row_pairs(c, boxes, elems, runs, blocks)
        )
        banks = (
            CountRange(bank, bank, bank)
            if c.bank is not None
            else CountRange(min(m.banks * boxes, rows.n), boxes, min(m.banks * boxes, rows.hi))
        )
    if m.sram_banks:
        conflict = (
            CountRange(busiest_words, busiest_words, busiest_words)
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
        for dim, (s, sums_of) in enumerate(zip(self.cuts.layout.stored, self.memo, strict=True)):
            member_spans = tuple([spans[m] for m in s.members])
            sums_ = sums_of.get(member_spans)
            if sums_ is None:
                sums_ = sums_of[member_spans] = sums(
                    self.cuts, dim, [(values(s, [(span,) for span in member_spans], copies)[None, :], ONCE)]
                )
            found.append(sums_)
        return combine(self.cuts, found)


def tables(c: Cuts) -> Tables:
    """Returns an empty memo for these cuts, one dict per stored dimension."""
    return Tables(c, tuple({} for _ in c.layout.stored))


def estimate_lines(
    weights: Sequence[int], line: int, boxes: int, elems: int, runs: int, blocks: Sequence[int]
) -> CountRange:
    """Returns the lines where a line cuts a digit into unequal parts: limits, and an estimate from the
    distance between neighbouring blocks.

    A block of digit j is the requested elements that agree in digits 0..j. A block that is less than a line
    away from the block before it may share a line with it. From the last element of a block to the first of
    the next one the distance is max(1, W_j - sum_{k > j} (b_k - 1) W_k). W_k: weight of digit k in the
    address; b_k: blocks of digit k per block of digit k - 1.
    """
    # a run of n elements touches at most (n + 2 line - 2) / line lines
    lo, hi = max(boxes, -(-elems // line)), min(elems, (elems + runs * (2 * line - 2)) // line)
    n, inside = float(boxes), 0.0
    for j in range(len(weights) - 1, -1, -1):
        u, w, before = blocks[j], weights[j], blocks[j - 1] if j else boxes
        # at most ceil((line - 1) / w) + 1 blocks share a line; a block, of up to w addresses, touches at most
        # ceil((w - 1) / line) + 1 lines
        lo, hi = max(lo, -(-u // (-(-(line - 1) // w) + 1))), min(hi, u * (-(-(w - 1) // line) + 1))
        if u > before:
            n += (u - before) * min(1.0, max(1.0, w - inside) / line)
            inside += (u / before - 1) * w
    return CountRange(min(max(n, lo), hi), lo, hi)


def _partial_lines(m: Memory, lines: CountRange, elems: int, runs: int) -> CountRange:
    """Returns the lines of which only a part is requested: at most the lines at the two ends of each run, at
    least 0, since what a run leaves of a line may be padding.
    """
    hi = min(lines.hi, 2 * runs)
    return CountRange(min(max(0, lines.n - elems / m.line), hi), 0, hi)


def _bank_row_pairs(c: Cuts, boxes: int, elems: int, runs: int, blocks: Sequence[int]) -> CountRange:
    """Returns the pairs of bank and row where a border cuts a digit into unequal parts: at most the
    interleaved blocks touched, at least the rows that the elements fill.
    """
    found = estimate_lines(c.weights, c.memory.interleave or c.memory.row, boxes, elems, runs, blocks)
    if c.memory.interleave in (0, c.memory.row):
        return found
    lo = max(boxes, ceil(elems / c.memory.row))
    return CountRange(min(max(found.n * c.memory.interleave / c.memory.row, lo), found.hi), lo, found.hi)


def _conflict_span(m: Memory, words: CountRange, boxes: int) -> CountRange:
    """Returns the words of the busiest SRAM bank where a border cuts a digit into unequal parts: at least an
    equal share of all words, which is the estimate, at most all of them.
    """
    lo = max(boxes, ceil(words.lo / m.sram_banks))
    return CountRange(min(max(words.n / m.sram_banks, lo), words.hi), lo, words.hi)


def count_listed(c: Cuts, sets_of_dims: Sequence[Sequence[ValueSets]], visits: int = 1) -> Counts:
    """Returns the counts of `combine` by listing the addresses of every box, where a border cuts a digit into
    unequal parts. Its time grows with the elements of all boxes.
    """
    by_dim = [sums(c, dim, sets) for dim, sets in enumerate(sets_of_dims)]
    base, m = combine(c, by_dim, visits), c.memory
    line_elems = np.bincount(_offsets(c.layout, [existing(s) for s in c.layout.stored]) // m.line)
    flat, start, times, first_set = list[Ints](), [0], list[int](), [0]
    for dim, sets in enumerate(sets_of_dims):
        for value_sets, occurrences in sets:
            for offsets, n in zip(
                offset(c.layout, c.weights, dim, value_sets), occurrences.tolist(), strict=True
            ):
                flat.append(offsets)
                start.append(start[-1] + len(offsets))
                times.append(n)
        first_set.append(len(times))
    sram_banks = (
        sram_bank_of(np.arange(len(line_elems), dtype=np.int64), m)
        if m.sram_banks
        else np.zeros(len(line_elems), np.int64)
    )
    interleave = m.interleave or m.row
    found = _count_boxes(
        np.concatenate(flat) if flat else np.zeros(0, np.int64),
        np.array(start, np.int64),
        np.array(times, np.int64),
        np.array(first_set, np.int64),
        line_elems,
        sram_banks,
        max(m.sram_banks, 1),
        m.line,
        interleave if m.row else 0,
        m.banks,
        m.row * m.banks,
    )
    lines, partial, pairs, banks, busiest_words = (visits * int(n) for n in found)
    conflict = _exactly(busiest_words if m.sram_banks else 0)
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
    first_set: Ints,
    line_elems: Ints,
    sram_banks: Ints,
    sram_bank_count: int,
    line: int,
    interleave: int,
    banks: int,
    all_banks_row: int,
) -> Ints:
    """Returns lines, partial lines, pairs of bank and row, banks, and words of the busiest SRAM bank, each
    summed over all boxes.

    A box is one set of values of every dimension.
    flat, start: offsets of set k are flat[start[k]:start[k + 1]]; one offset per dimension adds up to an
        address
    times: how often each set occurs
    first_set: first set of each dimension
    line_elems: elements per line of the whole tensor
    sram_banks: SRAM bank of each line
    sram_bank_count: number of SRAM banks, at least 1
    all_banks_row: elements of one row over all banks
    """
    dims = len(first_set) - 1
    total = np.zeros(5, np.int64)
    # per dimension: the set of values of this box, and the index in `flat` of the value at hand
    set_at, at = first_set[:-1].copy(), np.zeros(dims, np.int64)
    # per line: elements requested by this box, and the last box that touched it
    requested, line_stamp = np.zeros(len(line_elems), np.int64), np.zeros(len(line_elems), np.int64)
    rows = len(line_elems) * line // all_banks_row + 2 if interleave else 1
    pair_stamp, bank_stamp = np.zeros(rows * banks if interleave else 1, np.int64), np.zeros(banks, np.int64)
    words = np.zeros(sram_bank_count, np.int64)
    touched = np.zeros(len(line_elems), np.int64)
    box = 0
    for d in range(dims):
        if first_set[d] == first_set[d + 1]:
            return total
    while True:
        box += 1
        occurrences, has_more = 1, True
        for d in range(dims):
            occurrences *= times[set_at[d]]
            at[d] = start[set_at[d]]
            has_more = has_more and start[set_at[d]] < start[set_at[d] + 1]
        lines, partial, pairs, banks_used, busiest_words = 0, 0, 0, 0, 0
        while has_more:
            address = 0
            for d in range(dims):
                address += flat[at[d]]
            line_index = address // line
            if line_stamp[line_index] != box:
                line_stamp[line_index], requested[line_index], touched[lines] = box, 0, line_index
                lines += 1
            requested[line_index] += 1
            if interleave:
                bank = address // interleave % banks
                pair = address // all_banks_row * banks + bank
                if pair_stamp[pair] != box:
                    pair_stamp[pair] = box
                    pairs += 1
                if bank_stamp[bank] != box:
                    bank_stamp[bank] = box
                    banks_used += 1
            d = dims - 1
            while d >= 0:
                at[d] += 1
                if at[d] < start[set_at[d] + 1]:
                    break
                at[d] = start[set_at[d]]
                d -= 1
            has_more = d >= 0
        words[:] = 0
        for i in range(lines):
            partial += requested[touched[i]] != line_elems[touched[i]]
            words[sram_banks[touched[i]]] += 1
            busiest_words = max(busiest_words, words[sram_banks[touched[i]]])
        for i, n in enumerate((lines, partial, pairs, banks_used, busiest_words)):
            total[i] += occurrences * n
        d = dims - 1
        while d >= 0:
            set_at[d] += 1
            if set_at[d] < first_set[d + 1]:
                break
            set_at[d] = first_set[d]
            d -= 1
        if d < 0:
            return total


def rows_opened(c: Cuts, flat: Ints, start: Ints, boxes: Ints, order: Ints) -> int:
    """Returns the rows opened by boxes one after the other, with the addresses of each box in ascending
    order. A bank keeps its last row open.

    flat, start: offsets of set k of values of one dimension are flat[start[k]:start[k + 1]]
    boxes: [B, dims], the set k of each dimension; one offset per dimension adds up to an address
    order: indices of boxes in the order of time; a box may come several times
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
    block_count: int,
    interleave: int,
    banks: int,
    all_banks_row: int,
) -> int:
    """The compiled `rows_opened`.

    block_count: interleaved blocks of the whole tensor
    all_banks_row: elements of one row over all banks
    """
    box_count, dims = boxes.shape
    # per block, the last box that touched it; per dimension, the index in `flat` of the value at hand
    stamp, at = np.full(block_count, -1, np.int64), np.zeros(dims, np.int64)
    begin, touched_size = np.zeros(box_count + 1, np.int64), 0
    for b in range(box_count):
        n = 1
        for d in range(dims):
            n *= start[boxes[b, d] + 1] - start[boxes[b, d]]
        touched_size += min(n, block_count)
    touched, n = np.empty(touched_size, np.int64), 0
    for b in range(box_count):
        has_more = True
        for d in range(dims):
            at[d] = start[boxes[b, d]]
            has_more = has_more and at[d] < start[boxes[b, d] + 1]
        while has_more:
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
            has_more = d >= 0
        begin[b + 1] = n
        touched[begin[b] : n].sort()
    found, rows = 0, np.full(banks, -1, np.int64)
    for b in order:
        for block in touched[begin[b] : begin[b + 1]]:
            row = block * interleave // all_banks_row
            if rows[block % banks] != row:
                rows[block % banks] = row
                found += 1
    return found


def sram_bank_of(words: Ints, m: Memory) -> Ints:
    """Returns the SRAM bank of each word."""
    if m.bank_map == "block":
        return words // (m.capacity // m.line // m.sram_banks) % m.sram_banks
    permuted = words ^ (words // m.sram_banks) if m.bank_map == "xor" else words
    return np.asarray(permuted % m.sram_banks)


def _exactly(n: int) -> CountRange:
    return CountRange(n, n, n)


def _offsets(layout: Layout, values: Sequence[Ints]) -> Ints:
    """Returns the addresses of a box with these values of each stored dimension."""
    at = np.zeros(1, np.int64)
    for dim, dim_values in enumerate(values):
        at = np.add.outer(at, offset(layout, layout.weights(), dim, dim_values)).ravel()
    return at


def offset(layout: Layout, weights: Sequence[int], dim: int, values: Ints) -> Ints:
    """Returns what values of a stored dimension add to an address."""
    offset = np.zeros(values.shape, np.int64)
    for digit, weight in zip(layout.digits, weights, strict=True):
        if digit.dim == dim:
            offset += digits_of(digit, values) * weight
    return offset


def misses(
    runs: float, lines: float, together: int, run_start: float | None = None, per_line: float | None = None
) -> float:
    """Returns the misses of a cache that fetches `together` consecutive lines at once: ceil(lines per run /
    together) for each run, with the average number of lines per run. At most one miss per line.

    run_start, per_line: calibrated misses per run and per line, used if both are given
    """
    if run_start is None or per_line is None:
        return min(lines, runs * ceil(lines / runs / together)) if runs else 0.0
    return runs * run_start + lines * per_line


def descriptors(counts: Counts, strides: int) -> int:
    """Returns the DMA descriptors of all boxes. A descriptor covers a run and up to `strides` nested strided
    repeats of it, taken from the innermost digits that repeat runs.
    """
    remaining, outer_blocks = float(counts.runs), [counts.boxes, *counts.blocks]
    depth = next((j for j, u in enumerate(counts.blocks) if u >= counts.runs), len(counts.blocks) - 1)
    for j in range(depth, -1, -1):
        if strides and counts.blocks[j] > outer_blocks[j]:
            remaining, strides = remaining * outer_blocks[j] / counts.blocks[j], strides - 1
    return max(counts.boxes, ceil(remaining))
