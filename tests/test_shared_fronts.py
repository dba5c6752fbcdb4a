"""Fronts of machines that share mappings: what lines prove of rows, and fronts against those of each machine
searched by itself.
"""

from __future__ import annotations

from itertools import pairwise
from math import inf
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from cluster import worker
from cluster.batch_eval import FrontTable
from cluster.worker import Ask, Lease
from dse.frontend import runs
from dse.mapping.nest import Infeasible
from dse.solve import solve
from dse.solve.front import fronts_on, thin
from dse.solve.options import SolverOptions
from dse.solve.product_lines import Line
from dse.solve.sharing import shared_fronts
from dse.solve.sharing.shared_fronts import next_ratio, proven_rows
from dse.solve.sharing.shared_mappings import MachineBatch
from dse.study import study as studies
from tests import turned
from tests.amount import some
from tests.test_front import cloud
from tests.test_turns import EINSUMS, cell, tables
from workloads.einsum import Einsum
from workloads.graph import Unique


def line(every: np.ndarray, known: np.ndarray, ratio: float, looseness: float) -> Line:
    """The line of a ratio, a share below the least of all choices, with the best known choice."""
    heights = [rows[:, 1] if ratio == inf else rows @ [1.0, ratio] for rows in (every, known)]
    energy, latency = known[heights[1].argmin()].tolist()
    return Line(ratio, float(heights[0].min()) / (1 + looseness), (energy, latency))


@pytest.mark.parametrize("seed", range(60))
def test_rows_that_lines_prove_cover_every_choice(seed: int) -> None:
    """Of one to four einsums with a list of mappings each, of which not all are known."""
    rng = np.random.default_rng(seed)
    every, known = np.zeros((1, 2)), np.zeros((1, 2))
    for _ in range(1 + seed % 4):
        n, own = rng.integers(1, 4), cloud(rng, 12)
        every = (every[:, None] + n * own).reshape(-1, 2)
        known = (known[:, None] + n * own[: 12 - seed % 3]).reshape(-1, 2)
    looseness, allowed = (0.0, 0.01)[seed // 3 % 2], (0.005, 0.05, 0.3)[seed % 3]
    lines = [line(every, known, ratio, looseness) for ratio in (inf, 0.0)]
    for _ in range(8):
        if ratio := next_ratio(lines, allowed / 4):
            assert all(one.ratio != ratio for one in lines)
            lines.append(line(every, known, ratio, looseness))
    sums = known[thin(known, 1.0)[0]]
    listed, gap = proven_rows(sums, lines, allowed)
    rows = sums[listed]
    worst = (rows[:, None] / every).max(axis=2).min(axis=0).max()
    assert worst <= (1 + gap) * (1 + 1e-12)
    assert {0, len(sums) - 1} <= set(listed.tolist())

    def corner(before: np.ndarray, after: np.ndarray) -> float:
        """By which factor at most the corner of two rows is above a line."""
        ratios = [(one.ratio, one.least) for one in lines if one.ratio < inf]
        return min((after[0] + ratio * before[1]) / least for ratio, least in ratios)

    # none is left out where the next to it is not within the gap; of three one is needed, if not the last
    assert all(b == a + 1 or corner(sums[a], sums[b]) <= 1 + allowed + 1e-9 for a, b in pairwise(listed))
    assert all(corner(rows[i], rows[i + 2]) > 1 + allowed for i in range(len(rows) - 2))
    ends = sums[0, 0] / lines[1].least, sums[-1, 1] / lines[0].least
    inner = max((corner(a, b) for a, b in pairwise(rows)), default=1.0)
    assert 1 + gap == pytest.approx(max(*ends, inner), abs=1e-8)


@pytest.mark.parametrize("seed", range(8))
def test_lines_come_near_to_all_corners_of_the_hull(seed: int) -> None:
    """Of exact lines there is one for each side of the hull, in the end; then none is left to ask for."""
    rng = np.random.default_rng(seed)
    every = np.exp(rng.normal(size=(4000, 1)) * [0.5, -0.5] + 0.3 * rng.random((4000, 2)))
    lines = [line(every, every, ratio, 0.0) for ratio in (inf, 0.0)]
    while ratio := next_ratio(lines, 1e-9):
        lines.append(line(every, every, ratio, 0.0))
        assert len(lines) < 100
    corners = sorted({one.corner for one in lines if one.corner})
    sides = [(b[0] - a[0]) / (a[1] - b[1]) for a, b in pairwise(corners)]
    assert len(corners) > 4
    for (a, _), side in zip(pairwise(corners), sides, strict=True):
        assert a[0] + side * a[1] <= (every @ [1.0, side]).min() * (1 + 1e-8)


def own_fronts(c: MachineBatch, groups: list[Unique], at: range) -> list[np.ndarray]:
    """Energy and latency of the front of each machine, searched by itself."""
    found = []
    for front in fronts_on([c.arch(i) for i in at], groups, SolverOptions(gap=0.01, objective="front")):
        assert not isinstance(front, Infeasible)
        found.append(total(groups, front[0]))
    return found


def total(groups: list[Unique], choices: Any) -> np.ndarray:
    pairs = np.array([[(one.energy_pj, one.latency_cycles) for one in choice] for choice in choices])
    return np.einsum("e,feo->fo", [group.occurrences for group in groups], pairs)


@pytest.mark.parametrize(
    ("capacity", "share", "es", "rounds"),
    [
        ("4 KiB", 0.05, [EINSUMS[0], EINSUMS[3], EINSUMS[2]], 12),
        ("64 KiB", 0.2, [EINSUMS[1], EINSUMS[0]], 12),
        ("4 KiB", 0.05, [EINSUMS[0]], 0),
    ],
)
def test_fronts_of_machines_that_share_mappings_cover_those_of_each(
    capacity: str, share: float, es: list[Einsum], rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_fronts, "MAX_ROUNDS", rounds)
    alone, lines = list[int](), dict[int, list[Line]]()
    make_fronts = shared_fronts._fronts

    def kept_lines(shared: Any, given: dict[int, list[Line]], *others: Any) -> Any:
        lines.update(given)
        return make_fronts(shared, given, *others)

    monkeypatch.setattr(shared_fronts, "_fronts", kept_lines)

    def kept(arches: Any, *given: Any) -> Any:
        alone.extend(range(len(arches)))
        return fronts_on(arches, *given)

    monkeypatch.setattr(solve, "fronts_on", kept)
    c = cell(capacity)
    groups = [Unique(str(i), e, (e.name,), 1 + 2 * i) for i, e in enumerate(es)]
    options = SolverOptions(gap=0.0, objective="front", sharing_gap=share)
    found = solve.find_shared_fronts_of(c, groups, options)
    table, at = FrontTable(tuple(es), found), range(0, len(c), 40)
    for i, own in zip(at, own_fronts(c, groups, at), strict=True):
        choices, gap = table.on(c.arch(i), i)
        rows = total(groups, choices)
        assert gap <= share
        for one in lines[i]:
            assert one.least <= min(map(one.height, own.tolist())) * (1 + 1e-9)
        assert max(np.max(rows / one, axis=1).min() for one in own) <= (1 + gap) * (1 + 1e-9)
        assert rows[0, 0] <= own[0, 0] * (1 + share)
        assert rows[-1, 1] <= own[-1, 1] * (1 + share)
    assert table.fits.all()
    assert (len(alone) < len(c) / 2) == (rounds > 0)  # machines share


STUDY = """
name: fronts
workloads: [{{workload: "mlp_s:batch=16", weight: 2}}, "gemm:m=48,n=32,k=64"]
machine: edge_array
space: {{array.x: [4, 8], regf.capacity: [64 B, 256 B], dram.kind: [ddr4, lpddr5], clock_mhz: [200, 400]}}
objectives: [energy_pj, latency_ns, area_mm2]
search: {{method: exhaustive{search}}}
solver: {{objective: front{solver}}}
"""


def test_rows_do_not_depend_on_leases_and_answers_are_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DSE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "study.yaml").write_text(STUDY.format(search="", solver=", sharing_gap: 0.05"))
    study = studies.load(tmp_path / "study.yaml")
    job = worker.job_of(study)
    many = tables(job, alone=False)
    assert many == tables(worker.job_of(study), alone=True)
    files = list((tmp_path / "cache").glob("shared_*.npz"))
    assert len(files) == 2  # one a workload
    with monkeypatch.context() as patch:
        patch.setattr(solve, "find_shared_fronts", None)
        one = worker.job_of(study)
        found = [worker.solve_lease(one, Lease(0, (Ask(i, 0, "exhaustive"),))) for i in (7, 3)]
    assert [repr(row) for done in found for row in done.tables["points"].to_pylist()] == [
        row for i in (7, 3) for row in sorted(many["points"]) if f"'machine': {i}," in row
    ]
    whole = {file: file.read_bytes() for file in files}
    for file, other in (files, files[::-1]):
        file.write_bytes(whole[other])
    assert tables(worker.job_of(study), alone=False) == many


@pytest.mark.parametrize("search", [", prune: true, generation: 8", "bounds, generation: 4"])
def test_a_run_that_shares_mappings_has_a_front_near_that_of_each(tmp_path: Path, search: str) -> None:
    """Of machines and mappings, with machines that bounds rule out."""
    found = []
    for name, of_search, solver in (("own", "", ""), ("shared", search, ", sharing_gap: 0.04")):
        text = STUDY.format(search=of_search, solver=solver).replace("exhaustivebounds", "bounds")
        (tmp_path / f"{name}.yaml").write_text(text)
        found.append(runs.sweep(tmp_path / f"{name}.yaml", tmp_path / name, workers=0))
    asked = ["energy_pj", "latency_ns", "area_mm2"]
    own, shared = (one.front(asked).table.select(asked).to_pandas().to_numpy() for one in found)
    assert max(np.max(shared / row, axis=1).min() for row in own) <= 1.04
    assert "any choice of one mapping per distinct einsum dominates" in found[1].certificate()
    gaps = [row["optimality_gap"] for row in found[1].sql("SELECT optimality_gap FROM points")]
    assert 0.01 < max(gaps) <= 0.04
    row = found[1].sql("FROM points ORDER BY schedule DESC LIMIT 1").table.to_pylist()[0]
    shown = found[1].show(f"{row['machine']}.{row['schedule']}")  # priced again: it stops at another number
    assert row["schedule"] > 0
    assert "has a schedule of the front at most" in shown.solutions[0].certificate


@pytest.mark.parametrize("seed", some(range(4), 2))
def test_random_studies_of_fronts(tmp_path: Path, seed: int) -> None:
    job = worker.job_of(turned.drawn(tmp_path, seed, clocks=16, goals=("front",)))
    asked_for = Random(seed).sample(range(job.study.space.size), min(30, job.study.space.size))
    assert turned.unlike(job, asked_for)[0] == []
    assert turned.too_near(job, asked_for[:4])[0] == []
