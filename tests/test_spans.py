"""Spans of tiles against a list of every element."""

from __future__ import annotations

from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dse.sim.counts.spans import ALL, ALL_PES, BELOW, FIRST, LAST, ONLY, PE_0, span_sum, tile_spans
from tests.amount import amount

OPTIONS = (ALL, ALL, ALL, FIRST, LAST, ONLY, ALL_PES, ALL_PES, PE_0 + 1, PE_0 + 2)
INSIDE = (BELOW + FIRST, BELOW + LAST, BELOW + ONLY)  # of loops below the tile, which stand last
Cuts = list[tuple[int, int]]


def listed(extent: int, cuts: Cuts) -> list[tuple[int, int]]:
    """(origin, size) of every tile, cut one by one; beside each the tile that the first lane has
    meanwhile."""
    tiles = [(0, extent, extent)]
    for tile, pick in cuts:
        found = []
        for low, size, longest in tiles:
            trips = list(range(0, size, tile))
            of_first = list(range(0, longest, tile))
            if BELOW <= pick < PE_0:
                if pick != BELOW + ONLY or len(of_first) == 1:
                    found.append(
                        (low, size, longest - of_first[-1] if pick == BELOW + LAST else min(longest, tile))
                    )
                continue
            for i, begin in enumerate(trips):
                chosen = {
                    ALL: True,
                    ALL_PES: True,
                    FIRST: i == 0,
                    LAST: i == len(of_first) - 1,
                    ONLY: len(of_first) == 1 and i == 0,
                }.get(pick, i == pick - PE_0)
                if chosen:
                    found.append(
                        (
                            low + begin,
                            min(size - begin, tile),
                            min(longest - (begin if pick in (ALL, LAST) else 0), tile),
                        )
                    )
        tiles = found
    return [(low, size) for low, size, _ in tiles]


def drawn(rng: Random) -> tuple[int, Cuts]:
    options = [OPTIONS] * rng.randint(0, 4) + [INSIDE] * rng.choice([0, 0, 1, 2])
    return rng.randint(1, 40), [(rng.randint(1, 14), rng.choice(own)) for own in options]


def rows(cuts: Cuts) -> np.ndarray:
    return np.array(cuts, np.int64).reshape(-1, 2)


@given(st.integers(0, 10**9))
@settings(max_examples=amount(400), deadline=None)
def test_spans_are_those_of_a_list(seed: int) -> None:
    extent, cuts = drawn(Random(seed))
    low, size = tile_spans(extent, rows(cuts))
    assert list(zip(low.tolist(), size.tolist(), strict=True)) == listed(extent, cuts)


@given(st.integers(0, 10**9))
@settings(max_examples=amount(400), deadline=None)
def test_sums_and_unions_are_those_of_every_element(seed: int) -> None:
    rng = Random(seed)
    ranks = [(rng.randint(1, 3), *drawn(rng)) for _ in range(rng.randint(1, 2))]
    offset, stored, clip = -rng.randint(0, 6), rng.randint(1, 80), rng.random() < 0.7
    tiles = [(offset, offset)]
    for c, extent, cuts in ranks:
        tiles = [
            (low + c * begin, high + c * (begin + size - 1))
            for low, high in tiles
            for begin, size in listed(extent, cuts)
        ]
    elems = [[i for i in range(low, high + 1) if not clip or 0 <= i < stored] for low, high in tiles]
    ends = np.cumsum([0, *(len(cuts) for *_, cuts in ranks)])
    given_ranks = np.array(
        [(c, extent, ends[i], ends[i + 1]) for i, (c, extent, _) in enumerate(ranks)], np.int64
    )
    cuts = rows([cut for *_, own in ranks for cut in own])
    assert span_sum(offset, stored, given_ranks, cuts, clip, False) == sum(map(len, elems))
    assert span_sum(offset, stored, given_ranks, cuts, clip, True) == len({i for own in elems for i in own})
