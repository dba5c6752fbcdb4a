"""Layouts: primitives against materialised tensors, texts, counts of tiles and of whole nests against listed
addresses, guesses, rates, mutants.

    primitives   2,000 random sequences: each element where a NumPy tensor, rebuilt step by step, has it, and
                 back
    texts        2,000 random texts: the addresses of their primitives, canonical text read again
    tiles        10,000 random tiles: runs, lines, rows, conflicts, equal where exact, within bounds elsewhere
    guesses      tiles of 32 lines and more whose cuts divide no digit: bias and spread of the guess
    nests        2,000 random (layouts, nest) pairs walked element by element (tests/streams.py)
    sanity       lines of one element, longer lines, blocked tiles; ALT's Table 2
    rate         tile and layout pairs counted per second, one core
    mutants      each rule of the counts changed: the proofs above notice
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from itertools import product
from math import prod
from random import Random
from statistics import median
from typing import Any
from unittest.mock import patch

import numpy as np

from dse.layout import address as addresses
from dse.layout import count as counts
from dse.layout import primitive as prim
from dse.layout.text import parse, primitives, show
from dse.sim.counts.terms import fills
from dse.sim.levels import transfer
from hw.arch import Arch
from tests.streams import Places, Stream, random_access, random_text
from tests.test_transfer import compared

NAMES = ("N", "H", "KW", "C_")
SEQUENCES, TEXTS, TILES, NESTS, GUESSES = 2_000, 2_000, 10_000, 2_000, 2_000
PAD, GUEST = -1, -2
# ALT, Table 2: predicted contiguous, measured row by row (512 rows)
MISSES = {4: (32, 208), 16: (128, 262), 64: (512, 785), 256: (2048, 2952)}


def random_sequence(rng: Random, shape: tuple[int, ...]) -> list[prim.Primitive]:
    """Legal primitives of all kinds one after the other, inverses among them."""
    found: list[prim.Primitive] = []
    for _ in range(rng.randint(1, 6)):
        d = rng.randrange(len(shape))
        n = shape[d]
        f = rng.choice([k for k in range(1, n + 1) if n % k == 0])
        size = rng.randint(1, n)
        p = rng.choice(
            [
                prim.Split(d, (f, n // f)),
                prim.Fuse(tuple(range(d, min(d + 2, len(shape))))),
                prim.Unfold(d, size, rng.randint(1, size)),
                prim.Reorder(tuple(rng.sample(range(len(shape)), len(shape)))),
                prim.Pad(d, rng.randint(0, 2), rng.randint(0, 2)),
                prim.StoreAt(d, rng.randint(1, 2)),
                prim.Unpad(d, 0, rng.randint(0, n - 1)),
            ]
        )
        after = prim.shape_after(p, shape)
        if prod(after) <= 5_000:
            back = [prim.inverse_of(p, shape)] if rng.random() < 0.2 else []
            found += [p, *back]
            shape = shape if back else after
    return found


def materialised(tensor: Any, p: prim.Primitive) -> Any:
    """What a primitive makes of a tensor of element numbers."""
    match p:
        case prim.Reorder(perm):
            return tensor.transpose(perm)
        case prim.Pad(dim, before, after):
            return np.pad(
                tensor,
                [(before, after) if k == dim else (0, 0) for k in range(tensor.ndim)],
                constant_values=PAD,
            )
        case prim.Unpad(dim, before, after):
            return np.take(tensor, range(before, tensor.shape[dim] - after), dim)
        case prim.DecoupleAt(dim, extent, _):
            return np.take(tensor, range(tensor.shape[dim] - extent), dim)
        case prim.StoreAt(dim, extent, _):
            return np.pad(
                tensor,
                [(0, extent) if k == dim else (0, 0) for k in range(tensor.ndim)],
                constant_values=GUEST,
            )
        case prim.Unfold(dim, size, stride):
            tiles = prim.shape_after(p, tensor.shape)[dim]
            longer = np.pad(
                tensor,
                [(0, tiles * stride + size) if k == dim else (0, 0) for k in range(tensor.ndim)],
                constant_values=PAD,
            )
            return np.stack(
                [np.take(longer, range(t * stride, t * stride + size), dim) for t in range(tiles)], dim
            )
        case prim.Fold(dim, size, stride, n):
            tiles = [np.take(tensor, t, dim) for t in range(tensor.shape[dim])]
            tile = [min(x // stride, len(tiles) - 1) for x in range(n)]
            return np.concatenate([np.take(tiles[t], [x - t * stride], dim) for x, t in enumerate(tile)], dim)
        case _:
            return tensor.reshape(prim.shape_after(p, tensor.shape))


def sequences(n: int) -> tuple[int, int]:
    """(elements checked, failures)."""
    rng, checked, wrong = Random(1), 0, 0
    while n:
        shape = tuple(rng.randint(1, 6) for _ in range(rng.randint(1, 4)))
        prims: list[prim.Primitive] = []
        with suppress(prim.LayoutError):
            prims = random_sequence(rng, shape)
            prim.shapes(shape, prims)
        if not prims:
            continue
        n -= 1
        tensor = np.arange(prod(shape)).reshape(shape)
        for p in prims:
            tensor = materialised(tensor, p)
        for index in product(*map(range, tensor.shape)):
            stands, real = prim.backward(shape, prims, index), int(tensor[index])
            said = (
                PAD
                if stands is None
                else GUEST
                if isinstance(stands, prim.Guest)
                else int(np.ravel_multi_index(stands, shape))
            )
            wrong += said != real
            checked += 1
        for number, index in enumerate(product(*map(range, shape))):
            where = prim.forward(shape, prims, index)
            wrong += where is not None and int(tensor[where]) != number
            checked += 1
    return checked, wrong


def texts(n: int) -> tuple[int, int]:
    rng, checked, wrong = Random(2), 0, 0
    for _ in range(n):
        names, shape = _shape(rng, 8)
        text = random_text(rng, names, shape)
        read = parse(text, names, shape)
        wrong += parse(show(read), names, shape) != read or show(parse(show(read), names, shape)) != show(
            read
        )
        own = primitives(text, names, shape)
        last = prim.shapes(shape, own)[-1]
        wrong += prod(last) != read.stored_elems()
        for index in product(*map(range, shape)):
            where = prim.forward(shape, own, index)
            wrong += where is None or int(np.ravel_multi_index(where, last)) != addresses.address(read, index)
            checked += 1
    return checked, wrong


def _shape(rng: Random, most: int) -> tuple[tuple[str, ...], tuple[int, ...]]:
    names = NAMES[: rng.randint(1, 4)]
    return names, tuple(rng.choice([1, 2, 4, 8, rng.randint(1, most)]) for _ in names)


def tiles(n: int, start: int = 0) -> Counter[tuple[str, str]]:
    """Per count: how often exact and right, bounded and right, wrong."""
    found: Counter[tuple[str, str]] = Counter()
    for seed in range(start, start + n):
        rng = Random(seed)
        names, shape = _shape(rng, 12)
        text = random_text(rng, names, shape)
        layout = parse(text, names, shape)
        dram, sram = random_access(rng), random_access(rng, 1)
        spans = [(first, rng.randint(1, size - first)) for size in shape for first in [rng.randrange(size)]]
        box = set(product(*(range(first, first + count) for first, count in spans)))
        copies = rng.random() < 0.3
        places = Places(shape, primitives(text, names, shape))
        at = places.written(box) if copies else places.read(box)
        for kind, a in (("dram", dram), ("sram", sram)):
            memory = counts.Memory(
                a.line_bits // 8,
                a.row_bits // 8,
                a.row_banks,
                a.interleave_bits // 8,
                a.banks,
                a.bank_map,
                a.capacity_bits // 8,
            )
            got, real = counts.tables(counts.cuts(layout, memory)).box(spans, copies), Stream()
            real.box(at, 8, a)
            pairs = {
                "runs": (counts.CountRange(got.runs, got.runs, got.runs), real.runs),
                "lines": (got.lines, real.lines),
            }
            pairs |= (
                {"rows": (got.activations, real.activations)}
                if kind == "dram"
                else {"conflict": (got.conflict, real.conflict)}
            )
            for what, (span, truth) in pairs.items():
                right = span.lo <= truth <= span.hi and span.lo <= span.n <= span.hi
                found[what, ("exact" if span.exact else "bounded") if right else "wrong"] += 1
    return found


def guesses(n: int, fused: bool) -> tuple[int, float, float, float]:
    """(tiles, bias, median, 95th percentile) of the guessed lines over the true ones, of 32 lines and more.
    fused: also where fused dimensions are cut.
    """
    rng, off = Random(3), list[float]()
    while len(off) < n:
        names, shape = NAMES, tuple(rng.choice([1, 3, 7, 14, 28, rng.randint(4, 40)]) for _ in NAMES)
        if prod(shape) > 200_000:
            continue
        layout = parse(random_text(rng, names, shape), names, shape)
        memory = counts.Memory(rng.choice([8, 16, 32, 64]))
        c = counts.cuts(layout, memory)
        spans = [(first, rng.randint(1, size - first)) for size in shape for first in [rng.randrange(size)]]
        if c.line is not None or layout.stored_elems() > 1_000_000 or prod(count for _, count in spans) < 64:
            continue
        if not fused and any(len(s.members) > 1 for s in layout.stored):
            continue
        rows = [
            [(addresses.values(s, [(spans[m],) for m in s.members])[None, :], counts.ONCE)]
            for s in layout.stored
        ]
        true, got = counts.count_listed(c, rows).lines.n, counts.tables(c).box(spans).lines
        assert got.lo <= true <= got.hi, (show(layout), spans, memory)
        if true >= 32 and not got.exact:
            off.append(got.n / true - 1)
    ranked = sorted(map(abs, off))
    return len(off), sum(off) / len(off), median(ranked), ranked[len(ranked) * 95 // 100]


def nests(n: int, in_turn: bool = True) -> Counter[tuple[str, str]]:
    """in_turn: boxes are walked for their rows; else these are bounds, as of nests of many boxes."""
    found: Counter[tuple[str, str]] = Counter()
    with nullcontext() if in_turn else patch.object(transfer, "_box_by_box", lambda *a: None):
        for seed in range(n):
            for one in compared(seed):
                found[
                    one.what.split()[0],
                    ("exact" if one.counted.exact else "bounded") if one.right else "wrong",
                ] += 1
    return found


def sanity(n: int) -> list[str]:
    """Lines of one element make layouts equal; longer ones never move less; blocked tiles are one run and
    waste nothing; ALT's misses.
    """
    rng, lines = Random(4), list[str]()
    for _ in range(n):
        names, shape = _shape(rng, 16)
        spans = [(first, rng.randint(1, size - first)) for size in shape for first in [rng.randrange(size)]]
        two = [parse(random_text(rng, names, shape), names, shape) for _ in range(2)]
        elems = prod(count for _, count in spans)
        got = [counts.tables(counts.cuts(one, counts.Memory(1, sram_banks=1))).box(spans) for one in two]
        if any(one.lines != counts.CountRange(elems, elems, elems) for one in got):
            lines.append(f"line of one element: {got}")
        for one in two:
            moved = []
            for size in (1, 2, 4, 8, 16, 32):
                rows = [
                    [(addresses.values(s, [(spans[m],) for m in s.members])[None, :], counts.ONCE)]
                    for s in one.stored
                ]
                moved.append(size * counts.count_listed(counts.cuts(one, counts.Memory(size)), rows).lines.n)
            if sorted(moved) != moved:
                lines.append(f"longer lines moved less: {moved} of {show(one)}")
        blocks = [rng.choice([1, 2, 4, 8]) for _ in names]
        cut = list(zip(names, blocks, strict=True))
        text = " ".join([*(f"{name}/{b}" for name, b in cut), *(f"{name.lower()}{b}" for name, b in cut)])
        whole = tuple(b * rng.randint(1, 4) for b in blocks)
        tile = [(b * rng.randrange(size // b), b) for b, size in zip(blocks, whole, strict=True)]
        got_one = counts.tables(counts.cuts(parse(text, names, whole), counts.Memory(prod(blocks)))).box(tile)
        if got_one.runs != 1 or got_one.lines != counts.CountRange(1, 1, 1):
            lines.append(f"blocked tile: {got_one}")
    for width, (wanted, measured) in MISSES.items():
        contiguous, strided = (
            counts.misses(1, 512 * width / 16, 4),
            counts.misses(512, 512 * max(width / 16, 1), 4, 0.06, 0.393),
        )
        off = strided / measured - 1
        print(
            f"  512 x {width}: contiguous {contiguous:.0f} misses (ALT {wanted}), row by row "
            f"{strided:.0f} (measured {measured}, {100 * off:+.1f} %)"
        )
        if contiguous != wanted or abs(off) > 0.12:
            lines.append(f"ALT, Table 2, 512 x {width}")
    return lines


def rate(seconds: float = 2.0) -> float:
    """(tile, layout) pairs per CPU second through the tables: tiles of a convolution's image, 24 layouts."""
    names, shape, rng = ("N", "H", "W", "C"), (1, 58, 58, 64), Random(5)
    every = [
        "N H W C",
        "N C H W",
        "H W C N",
        *(f"N C/{c} H W c{c}" for c in (4, 8, 16, 32)),
        *(f"N H/{h} W/{w} C/16 h{h} w{w} c16" for h in (4, 8) for w in (4, 8)),
        *(f"N H/{h} W/{h} C h{h}~{h + 2} w{h}~{h + 2}" for h in (4, 7, 14)),
    ]
    every += [f"{text}+1" for text in every[:10]]
    of = [
        counts.tables(counts.cuts(parse(text, names, shape), counts.Memory(64, 2048, 8, 2048)))
        for text in every
    ]
    boxes = [
        [(0, 1), (h, rng.choice([6, 9, 16])), (w, rng.choice([6, 9, 16])), (16 * rng.randrange(4), 16)]
        for h in range(0, 40, 7)
        for w in range(0, 40, 7)
    ]
    for table in of:
        for box in boxes:
            table.box(box)
    done, started = 0, time.process_time()
    while time.process_time() < started + seconds:
        for table in of:
            for box in boxes:
                table.box(box)
            done += len(boxes)
    return done / (time.process_time() - started)


def _wrong(found: Counter[tuple[str, str]]) -> int:
    return sum(n for (_, kind), n in found.items() if kind == "wrong")


def together(arch: Arch) -> Arch:
    """The machine with lanes that share all accesses."""
    return replace(
        arch,
        fanouts=tuple(
            replace(f, multicast=(True,) * len(f.dims), reduce=(True,) * len(f.dims)) for f in arch.fanouts
        ),
    )


def mutants() -> list[str]:
    """Rules changed one at a time, and those that nothing noticed."""
    carries, key, most, spans, visits, opened, united, full = (
        counts._carries,
        counts._key,
        counts._busiest_words,
        addresses.values,
        transfer._visits,
        transfer._rows_opened,
        transfer._union,
        counts.estimate_lines,
    )
    in_turn, walked = counts.rows_opened, transfer._box_by_box

    changes: dict[str, tuple[Any, str, Callable[..., Any]]] = {
        "runs: a carry leaves digits after it": (
            counts,
            "_carries",
            lambda digits, dim, j, v: carries(digits, dim, min(j + 1, len(digits) - 1), v),
        ),
        "runs: the successor need not be asked for": (
            counts,
            "_is_asked",
            lambda v, wanted: np.ones(v.shape, bool),
        ),
        "lines: a cut digit counts whole": (
            counts,
            "_key",
            lambda digits, dim, fields, v: key(digits, dim, [(j, 1, m) for j, _, m in fields], v),
        ),
        "rows: the bank's modulus is left out": (
            counts,
            "_key",
            lambda digits, dim, fields, v: key(digits, dim, [(j, d, 0) for j, d, _ in fields], v),
        ),
        "conflict: the mean array instead of the busiest": (
            counts,
            "_most",
            lambda port, word: np.maximum(most(port, word) - 1, 1),
        ),
        "bounds: half the upper bound of a cut": (
            counts,
            "guess",
            lambda *a: (lambda s: counts.CountRange(s.lo, s.lo, (s.lo + s.hi) // 2))(full(*a)),
        ),
        "cuts: a digit is divided though it is not": (
            counts,
            "_fields",
            lambda layout, low, high: tuple(
                (j, max(1, low // w), 0)
                for j, (d, w) in enumerate(zip(layout.digits, layout.weights(), strict=True))
                if w * d.pitch > low
            ),
        ),
        "unfold: canonical copies only": (
            transfer,
            "values",
            lambda s, box, copies=False: spans(s, box, False),
        ),
        "unfold: all copies are read": (transfer, "values", lambda s, box, copies=False: spans(s, box, True)),
        "visits: loops that the tensor does not see are left out": (transfer, "_visits", lambda *a, **k: 1),
        "visits: the first ones are read too": (
            transfer,
            "_visits",
            lambda m, link, e, a, at, first=False: visits(m, link, e, a, at, False),
        ),
        "rows stay open however many a box has": (
            transfer,
            "_rows_opened",
            lambda *a: (lambda s: counts.CountRange(s.lo, s.lo, s.lo))(opened(*a)),
        ),
        "rows: boxes in another order": (
            counts,
            "rows_opened",
            lambda c, flat, start, boxes, order: in_turn(c, flat, start, boxes, np.sort(order)),
        ),
        "rows: of sums the first reads count, too": (
            transfer,
            "_box_by_box",
            lambda m, link, e, a, c, copies, skipped: walked(m, link, e, a, c, copies, False),
        ),
        "rows: lanes that share no access ask once": (
            transfer,
            "_box_by_box",
            lambda m, link, e, a, *rest: walked(m, link, e, together(a), *rest),
        ),
        "unused: lanes that share an access count each": (transfer, "serves", fills),
        "unused: beside all that a line holds": (transfer, "serves", lambda *a, **k: ()),
        "lanes: hulls are added, not united": (
            transfer,
            "_union",
            lambda low, high: united(low[:1], high[:1]),
        ),
    }
    silent = []
    for name, (module, attribute, other) in changes.items():
        true = getattr(module, attribute)
        setattr(module, attribute, other)
        try:
            noticed = bool(_wrong(tiles(150))) or bool(_wrong(nests(150))) or bool(_wrong(nests(150, False)))
        except (AssertionError, IndexError, ValueError, ZeroDivisionError):
            noticed = True
        finally:
            setattr(module, attribute, true)
        print(f"  {'killed' if noticed else 'SURVIVES'}: {name}", flush=True)
        silent += [] if noticed else [name]
    return silent


def _told(name: str, found: Counter[tuple[str, str]]) -> int:
    for what in sorted({what for what, _ in found}):
        exact, bounded, wrong = (found[what, kind] for kind in ("exact", "bounded", "wrong"))
        print(
            f"  {name}, {what}: {exact} exact and equal, {bounded} within bounds, {wrong} wrong", flush=True
        )
    return _wrong(found)


def main() -> int:
    failed = 0
    checked, wrong = sequences(SEQUENCES)
    print(f"  primitives: {SEQUENCES} sequences, {checked} elements, {wrong} wrong", flush=True)
    failed += wrong
    checked, wrong = texts(TEXTS)
    print(f"  texts: {TEXTS}, {checked} elements, {wrong} wrong", flush=True)
    failed += wrong + _told(f"{TILES} tiles", tiles(TILES))
    for fused in (False, True):
        n, bias, middle, wide = guesses(GUESSES, fused)
        what = "guesses, fused dimensions cut too" if fused else "guesses"
        print(
            f"  {what}: {n} tiles of 32 lines and more, bias {100 * bias:+.1f} %, median "
            f"{100 * middle:.1f} %, 95 % within {100 * wide:.1f} %",
            flush=True,
        )
        failed += not fused and (abs(bias) > 0.05 or wide > 0.25)
    failed += _told(f"{NESTS} nests", nests(NESTS)) + _told(
        f"{NESTS // 4} nests, rows not walked", nests(NESTS // 4, False)
    )
    faults = sanity(300)
    print("\n".join(f"  {line}" for line in faults))
    per_second = rate()
    print(f"  rate: {per_second:,.0f} (tile, layout) pairs per CPU second and core", flush=True)
    return int(bool(failed or faults or per_second < 20_000 or mutants()))
