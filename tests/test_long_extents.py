"""Extents of a thousand million and more: tables are as long as the tiles that are tried, and what is counted
place by place says so in one line.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import dse
from dse.mapper.exact.local_search import _even_tiles
from dse.mapping.nest import Infeasible
from dse.sim.einsum import bound_kernels, bounds
from dse.solve.options import SolverOptions
from dse.solve.solve import solve
from hw import machine, space
from hw.arch import Arch
from hw.columns import Table
from workloads.text import workload

LONG = 10**9
PADDED = "O[p] += I[p+r-1] * W[r]"


@pytest.mark.parametrize("chip", ["a2", "edge_array"])
@pytest.mark.parametrize("text", ["C[m,n] += A[m,k] * B[k,n]", "Y[m] = relu(X[m])", "C[m] += A[m+k] * B[k]"])
def test_long_ranks_are_mapped(chip: str, text: str) -> None:
    found = solve(
        machine.arch(machine.load(chip)), workload({"m": LONG, "n": 4, "k": 4}, text), SolverOptions(gap=0.1)
    )
    assert not isinstance(found, Infeasible)
    assert found[0].energy_pj > LONG


@pytest.mark.parametrize(
    ("chip", "text", "sizes"), [("a2", PADDED, {"I": (LONG,)}), ("burst_edge", "Y[m] = relu(X[m])", {})]
)
def test_what_is_counted_place_by_place_says_so_in_one_line(
    chip: str, text: str, sizes: dict[str, tuple[int, ...]]
) -> None:
    from workloads.einsum import einsum
    from workloads.graph import Workload

    e = einsum(text, {"m": LONG, "p": LONG, "r": 3}, sizes=sizes)
    with pytest.raises(ValueError, match=r"one by one|by listing") as caught:
        solve(machine.arch(machine.load(chip)), Workload("long", (e,), frozenset()), SolverOptions())
    # other tiles do not help
    assert "\n" not in str(caught.value)
    assert "solver.factors" not in str(caught.value)


def test_bounds_of_long_cubes_are_those_of_each_machine() -> None:
    """1e27 iterations: the compiled bounds count them as floats, equal to the bit; fewer than 2^53 are
    counted whole.
    """
    s = space.parse(machine.load("a2"), {"clock_mhz": [100, 200], "array.x": [3, 8]})
    _, columns = Table(s).columns(np.arange(s.size))
    for m in (LONG, 7, (1 << 53) // LONG):
        (e,) = workload(
            {"m": m, "n": LONG, "k": LONG if m == LONG else 1}, "C[m,n] += A[m,k] * B[k,n]"
        ).einsums
        own = [
            bounds.sequential([(e, 3)], arch)
            for i in range(s.size)
            if isinstance(arch := space.decode(s, i), Arch)
        ]
        assert (
            list(
                zip(*(column.tolist() for column in bound_kernels.sequential([(e, 3)], columns)), strict=True)
            )
            == own
        )
    assert bounds.steps((1 << 53) - 1, 2) == 1 << 52
    assert bounds.steps(7, 4) == 2


STUDY = """name: long
workloads: ["gemm:m=1000000000,n=1000000007,k={k}"]
machine: a2
space: {{clock_mhz: [100, 200]}}
objectives: [energy_pj]
search: {{prune: true}}
solver: {{mapper: cost_descending}}
"""


def test_counts_beyond_what_floats_tell_apart_are_rows(tmp_path: Path) -> None:
    """3e18 and 21 multiply-accumulates: counts are stored as floats, rounded. Of 3e19 a table has no
    number."""
    (tmp_path / "study.yaml").write_text(STUDY.format(k=3))
    run = dse.sweep(tmp_path / "study.yaml", out=tmp_path / "run", workers=0)
    assert {row["macs"] for row in run.sql("SELECT macs FROM workload_costs").table.to_pylist()} == {
        3_000_000_021_000_000_000
    }
    (tmp_path / "study.yaml").write_text(STUDY.format(k=30))
    with pytest.raises(
        ValueError,
        match=r"long: workloads = gemm:.* multiply-accumulates, tables count up to 2\^63; take smaller "
        r"extents",
    ):
        dse.sweep(tmp_path / "study.yaml", out=tmp_path / "more", workers=0)


@pytest.mark.parametrize("extent", [1, 2, 7, 12, 36, 97, 100])
def test_even_tiles_are_all_quotients(extent: int) -> None:
    every = sorted({-(-extent // m) for m in range(1, extent + 1)})
    assert sorted({n for tile in every for n in _even_tiles(extent, tile)}) == every
