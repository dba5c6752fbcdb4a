"""Extents of a thousand million and more: tables are as long as the tiles that are tried, and what is counted place by place says so in one line."""

from __future__ import annotations

import pytest

from dse.mapper.exact.local_search import _even
from dse.mapping.nest import Infeasible
from dse.solve.solve import SolverOptions, solve
from hw import machine
from workloads.text import workload

LONG = 10**9
PADDED = "O[p] += I[p+r-1] * W[r]"


@pytest.mark.parametrize("chip", ["a2", "edge_array"])
@pytest.mark.parametrize("text", ["C[m,n] += A[m,k] * B[k,n]", "Y[m] = relu(X[m])", "C[m] += A[m+k] * B[k]"])
def test_long_ranks_are_mapped(chip: str, text: str) -> None:
    found = solve(machine.arch(machine.load(chip)), workload({"m": LONG, "n": 4, "k": 4}, text), SolverOptions(gap=0.1))
    assert not isinstance(found, Infeasible) and found[0].energy_pj > LONG


@pytest.mark.parametrize(("chip", "text", "sizes"), [("a2", PADDED, {"I": (LONG,)}), ("burst_edge", "Y[m] = relu(X[m])", {})])
def test_what_is_counted_place_by_place_says_so_in_one_line(chip: str, text: str, sizes: dict[str, tuple[int, ...]]) -> None:
    from workloads.einsum import einsum
    from workloads.graph import Workload

    e = einsum(text, {"m": LONG, "p": LONG, "r": 3}, sizes=sizes)
    with pytest.raises(ValueError, match="one by one") as caught:
        solve(machine.arch(machine.load(chip)), Workload("long", (e,), frozenset()), SolverOptions())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("extent", [1, 2, 7, 12, 36, 97, 100])
def test_even_tiles_are_all_quotients(extent: int) -> None:
    every = sorted({-(-extent // m) for m in range(1, extent + 1)})
    assert sorted({n for tile in every for n in _even(extent, tile)}) == every
