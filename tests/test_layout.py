"""Layouts: the shared cases, texts against their primitives, counts against listed addresses, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dse.layout.address import values
from dse.layout.count import ONCE, Memory, count_listed, cuts, tables
from dse.layout.primitive import (
    DecoupleAt,
    Fold,
    LayoutError,
    Primitive,
    Split,
    Unfold,
    Unpad,
    Windows,
    shapes,
)
from dse.layout.text import parse
from tests.cases import run
from tests.prove import layouts as proof

CASES = Path(__file__).parent / "data" / "layout_cases.json"


def test_layout_cases_pass() -> None:
    assert run(CASES) == (56, 0, [])


@pytest.mark.parametrize(
    ("key", "part", "change"),
    [
        ("cases", "output_shape", lambda shape: [*shape[:-1], shape[-1] + 1]),
        ("cases", "forward", lambda pairs: [[pairs[-1][0], pairs[0][1]]]),
        ("cases", "inverse", lambda pairs: [[pairs[0][0], pairs[-1][1]]]),
        ("cases", "host_positions", lambda n: n + 1),
        ("window_access", "M", lambda m: m + 1),
        ("loop_remap", "layout_X", lambda _: "N H W O"),
        ("errors", "error", lambda _: "another reason"),
    ],
)
def test_every_kind_of_case_can_fail(tmp_path: Path, key: str, part: str, change) -> None:
    file = json.loads(CASES.read_text())
    file[key][0][part] = change(file[key][0][part])
    (tmp_path / "changed.json").write_text(json.dumps(file))
    passed, failed, _ = run(tmp_path / "changed.json")
    assert (passed, failed) == (55, 1)


def test_primitives_and_inverses_are_those_of_a_materialised_tensor() -> None:
    assert proof.sequences(80)[1] == 0


def test_texts_are_their_primitives_and_canonical_texts_read_the_same() -> None:
    assert proof.texts(80)[1] == 0


def test_counts_of_a_tile_are_those_of_its_addresses() -> None:
    found = proof.tiles(150, start=20_000)
    assert all(kind != "wrong" for _, kind in found)
    assert all(found[what, "exact"] for what in ("runs", "lines", "rows", "conflict"))
    assert found["lines", "bounded"]


def test_lines_of_one_element_longer_lines_blocked_tiles_and_published_misses() -> None:
    assert proof.sanity(10) == []


def test_listed_partial_lines_are_those_of_closed_forms() -> None:
    """A line is partly asked for if an element of it that exists is not."""
    layout, spans = parse("M/4 K m4", ("M", "K"), (6, 8)), [(0, 5), (2, 4)]
    c = cuts(layout, Memory(8))
    rows = [[(values(s, [(spans[m],) for m in s.members])[None, :], ONCE)] for s in layout.stored]
    closed, by_list = tables(c).box(spans), count_listed(c, rows)
    assert closed.partial == by_list.partial
    assert closed.lines == by_list.lines
    assert closed.partial.n == 2


@pytest.mark.parametrize(
    ("prims", "why"),
    [
        ([Fold(0, 3, 2, 5)], "is no inverse of an unfold"),
        ([Unpad(0, 2, 2)], "must leave an element"),
        ([DecoupleAt(0, 4)], "leave one to the host"),
        ([Split(3, (1, 4))], "there is no axis 3"),
        ([Unfold(0, 2, 0)], "stride must be at least 1"),
    ],
)
def test_what_fits_no_shape_is_refused_with_a_reason(prims: list[Primitive], why: str) -> None:
    with pytest.raises(LayoutError, match=why):
        shapes((4, 4), prims)


def test_windows_that_no_tile_holds_are_refused() -> None:
    with pytest.raises(LayoutError, match="lies in no single tile"):
        Windows(1, 1, 3, 12, Unfold(0, 4, 4)).access(2, 0)
