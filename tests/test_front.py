"""Fronts of workloads on one machine, and least energy x delay: against every choice of mappings of small
joint spaces, and against the answers of one objective on networks.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis import db
from dse.frontend import cli, pictures, runs
from dse.mapper.exact.covers import _covering
from dse.mapper.exact.optimal import optimal_on
from dse.mapper.exact.search import SearchResult
from dse.mapping.constraints import FREE
from dse.mapping.nest import Infeasible
from dse.run import folder
from dse.sim.einsum.evaluate import EinsumCost, Problem
from dse.solve.front import _Product, _totals, covering_rows, covers_gap, thin
from dse.solve.options import SolverOptions
from dse.solve.product_lines import product_lines
from dse.solve.solve import solve, solve_unfused_on
from hw import machine
from hw import space as spaces
from hw.arch import Arch
from tests.amount import amount
from tests.joint import faults
from workloads import catalog
from workloads.einsum import einsum
from workloads.graph import Unique


@pytest.mark.parametrize("seed", range(amount(24, 4)))
def test_a_front_is_that_of_all_choices(seed: int) -> None:
    assert not list(faults(seed, machines=3, most=150, gap=0.0, overlap="free"))


@pytest.mark.parametrize("seed", range(200, 200 + amount(24, 4)))
def test_a_front_covers_all_choices_within_its_gap(seed: int) -> None:
    gap, overlap = (0.02, 0.1)[seed % 2], ("buffered", "free", "buffered")[seed % 3]
    assert not list(faults(seed, machines=3, most=300, gap=gap, overlap=overlap))


@pytest.fixture(scope="module")
def some_cost() -> EinsumCost:
    """A cost whose energy and latency tests replace."""
    e = einsum("C[m] += A[m,k] * B[k]", {"m": 2, "k": 2})
    (found,) = optimal_on([Problem(machine.arch(machine.load("a2")), e, "energy")], "perfect", FREE)
    assert isinstance(found, EinsumCost)
    return replace(found, optimality_gap=0.0)


def cloud(rng: np.random.Generator, count: int) -> np.ndarray:
    """Energy and latency of mappings, most of them near a curve."""
    latency = np.exp(rng.random(count))
    return np.column_stack([(1 + rng.random(count) ** 3) / latency ** rng.choice([0.3, 1.0, 3.0]), latency])


def priced(some_cost: EinsumCost, row: np.ndarray) -> EinsumCost:
    return replace(some_cost, energy_pj=float(row[0]), latency_cycles=float(row[1]))


@pytest.mark.parametrize("seed", range(60))
def test_a_cover_claims_what_holds_of_every_mapping(some_cost: EinsumCost, seed: int) -> None:
    """Searches answer from a list of mappings, and count up to a tenth less cycles than these take."""
    rng = np.random.default_rng(seed)
    rows, gap, stalls = cloud(rng, 300), [0.0, 0.01, 0.05, 0.2][seed % 4], 0.1 * (seed % 3 == 2)
    counted = rows[:, 1] * (1 - stalls * rng.random(len(rows)))
    cheapest, fastest = (priced(some_cost, rows[np.lexsort((rows[:, 1 - i], rows[:, i]))[0]]) for i in (0, 1))
    covering, result = _covering(cheapest, fastest, gap, 400), None
    try:
        while True:
            ask = covering.send(result) if result else next(covering)
            allowed = np.flatnonzero(counted <= ask.max_cycles)
            at = allowed[rows[allowed, 0].argmin()] if len(allowed) else -1
            is_found = at >= 0 and rows[at, 0] < ask.max_pj
            bound = float(rows[at, 0] if is_found else ask.max_pj) if at >= 0 else np.inf
            mapping = some_cost.mapping if is_found else None
            result = SearchResult(mapping, 1, bound), priced(some_cost, rows[at]) if is_found else None
    except StopIteration as end:
        cover = end.value
    members = np.array([(one.energy_pj, one.latency_cycles) for one in cover.costs])
    assert (stalls > 0) or cover.gap <= gap + 1e-8
    for row in rows:
        assert (members <= (1 + cover.gap) * (1 + 1e-8) * row).all(axis=1).any()
        assert (
            (members <= row + np.array([cover.more_pj, cover.more_cycles]) * (1 + 1e-8) + 1e-8)
            .all(axis=1)
            .any()
        )
    parts = [cover, replace(cover, gap=3 * cover.gap, more_pj=9.0, more_cycles=9.0)]
    assert covers_gap(parts, [1, 1]) == pytest.approx(3 * cover.gap)
    assert covers_gap([cover, cover], [1, 2]) <= cover.gap


@pytest.mark.parametrize("end_step", [np.inf, 8.0])
@pytest.mark.parametrize("seed", range(40))
def test_a_least_product_is_within_its_gap(some_cost: EinsumCost, seed: int, end_step: float) -> None:
    """Of three einsums with a list of mappings each: every choice."""
    rng = np.random.default_rng(seed)
    lists, occurrences = [cloud(rng, 25) for _ in range(3)], [1, int(rng.integers(1, 4)), 2]
    e = einsum("C[m] += A[m,k] * B[k]", {"m": 2, "k": 2})
    groups = [Unique(str(i), e, (f"e{i}",), n) for i, n in enumerate(occurrences)]
    own = [priced(some_cost, rows[(rows[:, 0] * rows[:, 1]).argmin()]) for rows in lists]
    least = [sum(n * rows[:, i].min() for n, rows in zip(occurrences, lists, strict=True)) for i in (0, 1)]
    lines = product_lines((0.9 * least[0], 0.9 * least[1]), _totals(groups, own))
    state, first = _Product(groups, own, lines), np.prod(_totals(groups, own))
    for _ in range(12):
        if (ratio := lines.next_ratio(0.005, end_step)) is None:
            break
        heights = [rows[:, 1] if ratio == np.inf else rows[:, 0] + ratio * rows[:, 1] for rows in lists]
        chosen = [priced(some_cost, rows[h.argmin()]) for rows, h in zip(lists, heights, strict=True)]
        weighed = [
            one if ratio == np.inf else replace(one, energy_pj=h.min())
            for one, h in zip(chosen, heights, strict=True)
        ]
        state.add(ratio, weighed, chosen)
    a, b, c = (n * rows for n, rows in zip(occurrences, lists, strict=True))
    every = (a[:, None, None] + b[None, :, None] + c[None, None, :]).reshape(-1, 2).prod(axis=1)
    found = np.prod(_totals(groups, state.best))
    assert lines.best == _totals(groups, state.best)
    assert found <= first
    assert found <= every.min() * (1 + lines.gap()) * (1 + 1e-9)
    assert lines.gap() <= 0.005


@pytest.mark.parametrize("step", [1.0, 1.001, 1.05])
def test_thinned_sums_cover_the_others(step: float) -> None:
    rng = np.random.default_rng(1)
    sums = np.exp(rng.normal(size=(60_000, 1)) * [1.0, -1.0] + 0.02 * rng.random((60_000, 2)))
    kept, factor = thin(sums, step)
    assert len(kept) < len(sums)
    assert factor == step
    energy, latency = sums[kept].T
    assert (np.diff(energy) > 0).all()
    assert (np.diff(latency) < 0).all()
    assert (energy[0], latency[-1]) == tuple(sums.min(axis=0))
    for row in sums[:2000]:
        assert np.maximum(energy / row[0], latency / row[1]).min() <= factor * (1 + 1e-12)


@pytest.mark.parametrize("gap", [0.0, 0.01, 0.2])
def test_rows_that_cover_a_front_are_few(gap: float) -> None:
    rng = np.random.default_rng(2)
    sums = np.column_stack([np.sort(1 + rng.random(400)), -np.sort(-(1 + 3 * rng.random(400)))])
    rows = covering_rows(sums, gap)
    assert {0, 399} <= set(rows.tolist())
    assert all(np.max(sums[rows] / row, axis=1).min() <= (1 + gap) * (1 + 1e-12) for row in sums)
    assert len(rows) == 400 if gap == 0 else len(rows) <= 2 + np.log(2) / np.log1p(gap)


@pytest.fixture(scope="module")
def arches() -> list[Arch]:
    """Machines that one search takes together, and one of other capacities."""
    base = machine.arch(machine.load("edge_array"))
    slow = replace(base, levels=tuple(replace(level, read_pj=3 * level.read_pj) for level in base.levels))
    small = machine.arch(machine.load("a2"))
    return [base, slow, small]


def test_a_front_has_the_ends_and_products_of_one_objective(arches: list[Arch]) -> None:
    workload = catalog.load("mlp_s:batch=64")
    answers = {
        objective: solve_unfused_on(arches, workload, SolverOptions(objective=objective))  # type: ignore[arg-type]
        for objective in ("energy", "latency", "edp", "front")
    }
    for j, arch in enumerate(arches):
        alone = solve(arch, workload, SolverOptions(objective="front"))
        one = answers["front"][j]
        assert isinstance(one, list)
        assert isinstance(alone, list)
        assert [(s.energy_pj, s.latency_cycles, s.optimality_gap) for s in one] == [
            (s.energy_pj, s.latency_cycles, s.optimality_gap) for s in alone
        ]
        least = {}
        for objective in ("energy", "latency", "edp"):
            found = answers[objective][j]
            assert isinstance(found, list)
            least[objective] = found[0]
        assert one[0].energy_pj <= least["energy"].energy_pj * (1 + 1e-9)
        assert one[-1].latency_cycles <= least["latency"].latency_cycles * (1 + 1e-9)
        product = least["edp"].energy_pj * least["edp"].latency_cycles
        assert product <= (1 + least["edp"].optimality_gap) * min(s.energy_pj * s.latency_cycles for s in one)
        assert all("has a schedule of the front" in s.certificate for s in one)


def test_a_workload_that_does_not_fit_has_no_front() -> None:
    arch = machine.arch(machine.load("edge_array"))
    last = replace(arch.levels[-1], capacity_bits=8, bypass=False)
    tiny = replace(arch, levels=(*arch.levels[:-1], last))
    found = solve(tiny, catalog.load("gemm:m=4,n=6,k=4"), SolverOptions(objective="front"))
    assert isinstance(found, Infeasible)


STUDY = """
name: joint
workloads: [{workload: "mlp_s:batch=16", weight: 2}, "gemm:m=48,n=32,k=64"]
machine: edge_array
space: {array.x: [4, 8, 16], regf.capacity: [64 B, 256 B], dram.kind: [ddr4, lpddr5]}
objectives: [energy_pj, latency_ns, area_mm2]
solver: {objective: front}
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> runs.Run:
    folder = tmp_path_factory.mktemp("front")
    (folder / "study.yaml").write_text(STUDY)
    return runs.sweep(folder / "study.yaml", folder / "run", workers=0)


def test_rows_of_a_front_are_machines_and_schedules(run: runs.Run) -> None:
    rows = run.sql("FROM points ORDER BY machine, schedule").table.to_pylist()
    assert max(row["schedule"] for row in rows) > 1
    for machine_number in {row["machine"] for row in rows}:
        own = [row for row in rows if row["machine"] == machine_number]
        assert [row["schedule"] for row in own] == list(range(len(own)))
        assert own[0]["energy_pj"] == min(row["energy_pj"] for row in own)
        assert all(
            a is b or a["energy_pj"] < b["energy_pj"] or a["latency_ns"] < b["latency_ns"]
            for a in own
            for b in own
        )
    last = rows[-1]
    shown = run.show(f"{last['machine']}.{last['schedule']}")  # priced again: it stops at another number
    assert sum(
        weight * one.totals["energy_pj"] for weight, one in zip((2, 1), shown.solutions, strict=True)
    ) == pytest.approx(last["energy_pj"])


def test_a_run_says_what_its_front_proves(run: runs.Run, capsys: pytest.CaptureFixture[str]) -> None:
    largest = max(row["optimality_gap"] for row in run.sql("SELECT optimality_gap FROM points"))
    assert cli.main(["pareto", str(run.path)]) == 0
    text = capsys.readouterr().out
    assert "no machine of this study with any choice of one mapping per distinct einsum dominates" in text
    assert f"{100 * largest:.3g} %" in run.certificate()
    assert cli.main(["pareto", str(run.path), "--knee"]) == 0
    assert "no machine of this study" not in capsys.readouterr().out


@pytest.mark.parametrize("sets", [{"search.prune": True}, {"search.method": "bounds"}])
def test_bounds_prune_no_machine_of_a_front(run: runs.Run, tmp_path: Path, sets: dict[str, Any]) -> None:
    sets = sets | {"search.generation": 4}
    pruned = runs.sweep(run.path / "study.yaml", tmp_path / "pruned", workers=0, **sets)
    asked = ["energy_pj", "latency_ns", "area_mm2"]
    fronts = [one.front(asked).table.select(["machine", "schedule", *asked]) for one in (run, pruned)]
    assert fronts[0].equals(fronts[1])
    assert pruned.certificate().startswith(f"{run.certificate()}; ")


def test_few_points_the_knee_and_the_volume_of_a_run(run: runs.Run) -> None:
    asked = ["energy_pj", "latency_ns"]
    every, few, knee = (
        one.table.select(asked).to_pandas().to_numpy()
        for one in (run.front(asked), run.front(asked, epsilon=0.05), run.front(asked, knee=True))
    )
    assert len(few) < len(every)
    assert all((few <= 1.05 * row).all(axis=1).any() for row in every)
    scaled = (every - every.min(axis=0)) / np.ptp(every, axis=0)
    assert (knee == every[scaled.sum(axis=1).argmin()]).all()
    worst, steps = every.max(axis=0), every[np.argsort(every[:, 0])]
    right = np.append(steps[1:, 0], worst[0])
    area = ((right - steps[:, 0]) * (worst[1] - steps[:, 1])).sum()
    assert run.hypervolume(asked, worst.tolist()) == pytest.approx(area)
    assert run.hypervolume() == pytest.approx(run.status()["hypervolume"])
    (found,) = run.sql(f"FROM hypervolume('(FROM points WHERE feasible)', {run.objectives()})")
    shown = run.status()["hypervolume_reference"]
    assert found["reference"] == pytest.approx([shown[o.column] for o in run.study.objectives])


@pytest.mark.parametrize(
    "asked",
    [[], ["area_mm2"], ["area_mm2", "-throughput"], ["latency_ns:max", "energy_pj"], ["power_mw"], ["-tops"]],
)
def test_the_best_point_is_the_first_of_the_front(run: runs.Run, asked: list[str]) -> None:
    """Ties included: many machines have one area."""
    objectives = asked or run.objectives()
    first = run.front(objectives)[0]
    found = [
        {key: first[key] for key in dict.fromkeys(["machine", "schedule", *map(db.column_of, objectives)])}
    ]
    assert db.best(run.con, objectives).to_pylist() == found
    if not asked:  # of the study: from the stored front, too
        assert db.best(run.con, objectives, of_study=True).to_pylist() == found
    if len(asked) == 1:  # no column of the stored front
        assert run._point(f"best:{asked[0].lstrip('-')}")[2].startswith("best:")


def test_an_axis_that_ends_where_the_best_lies_is_named(run: runs.Run) -> None:
    (line,) = run.axis_hints()
    assert line.startswith("the lowest ")
    assert re.search(r" (lies|lie) at the largest array\.x, 16: widen that axis$", line)


def test_a_run_that_has_not_finished_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And gives no advice about ends of axes, of which machines are missing."""
    (tmp_path / "study.yaml").write_text(STUDY)
    of_energy = {"solver.objective": "energy", "workloads": ["gemm:m=48,n=32,k=64"]}
    found = runs.sweep(tmp_path / "study.yaml", tmp_path / "run", workers=0, **of_energy)
    assert (found.unfinished(), len(found.axis_hints())) == ("", 1)
    path = found.path / folder.STATUS
    facts = folder.unseal(path, "status") or {}
    path.write_bytes(folder.seal("status", facts | {"state": "interrupted", "planned": 3000}))
    assert found.axis_hints() == []
    line = f"{facts['done']} of 3,000 machines solved (interrupted)"
    for command in (["pareto"], ["pareto", "--format", "csv"], ["show", "best"], ["sql", "FROM points"]):
        assert cli.main([command[0], str(found.path), *command[1:]]) == 0
        assert f"\n{line}" in "\n" + "".join(capsys.readouterr())
    assert pictures.name_of(found).endswith(f", {line}")


def test_a_run_of_shared_mappings_says_its_gap_and_all_axes_to_widen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    space = "{array.x: [4, 8], clock_mhz: [200, 300, 400], cell: [hp, lop]}"
    text = re.sub("space: .*", f"space: {space}", STUDY).replace("objective: front", "sharing_gap: 0.2")
    (tmp_path / "study.yaml").write_text(text)
    found = runs.sweep(tmp_path / "study.yaml", tmp_path / "run", workers=0)
    assert cli.main(["pareto", str(found.path)]) == 0
    said = capsys.readouterr().out
    ends = r"array\.x, 8, and at the largest clock_mhz, 400 MHz: widen these axes\n"
    assert re.search(rf"latency lies? at the largest {ends}", said)
    (gap,) = found.sql("SELECT max(optimality_gap) FROM points").rows()[0]
    short = f"costs are up to {100 * gap:.3g} % above their optima (solver.sharing_gap)"
    assert re.search(rf"\n{re.escape(short)}.* \(--why\)\n", said)
    assert cli.main(["pareto", str(found.path), "--why"]) == 0
    assert f"{short}: points that" in capsys.readouterr().out


def test_an_axis_that_ends_with_the_tables_is_not_to_be_widened() -> None:
    axes = {"node_nm": [22, 32, 45], "array.x": [8, 16, 32]}
    space = spaces.parse(machine.load("edge_array"), axes)
    node, array = space.axes
    assert [runs._goes_on(space, node, end) for end in (22, 45)] == [False, True]
    assert [runs._goes_on(space, array, end) for end in (8, 32)] == [True, True]


def test_an_axis_of_which_one_value_was_tried_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(STUDY)
    of_front = {"solver.objective": "energy", "stop.machines": 4, "workloads": ["gemm:m=48,n=32,k=64"]}
    first = runs.sweep(tmp_path / "study.yaml", tmp_path / "run", workers=0, **of_front)
    assert first.sql("SELECT count(DISTINCT array_x), count(*) FROM designs").rows() == [(1, 4)]
    assert first.axis_hints() == []


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("solver.schedule", "fused", "fronts are of unfused schedules"),
        ("solver.factors", "imperfect", "fronts are of unfused schedules"),
        ("machine", "burst_edge", "describes lines, rows, banks or hops"),
    ],
)
def test_what_has_no_front_is_one_line(tmp_path: Path, key: str, value: object, why: str) -> None:
    (tmp_path / "study.yaml").write_text(STUDY)
    with pytest.raises(ValueError, match=r"solver\.objective = front: ") as fault:
        runs.sweep(tmp_path / "study.yaml", tmp_path / "run", workers=0, **{key: value})
    assert why in str(fault.value)


def test_pictures_join_the_schedules_of_a_machine(run: runs.Run, tmp_path: Path) -> None:
    axes = run.plot("front").figure.axes[0]
    curves = [line for line in axes.lines if line.get_zorder() == 2 and len(line.get_xdata()) > 1]
    assert "schedules of one machine" in {line.get_label() for line in curves}
    on_front = {row["machine"] for row in run.front()}
    points = run.sql(
        "SELECT machine, count(*) AS n FROM points WHERE feasible GROUP BY machine"
    ).table.to_pylist()
    several = [row["n"] for row in points if row["machine"] in on_front and row["n"] > 1]
    assert sorted(len(line.get_xdata()) for line in curves if line.get_linewidth() == 0.8) == sorted(several)
    run.report(tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert "schedules of one machine" in text
    assert "any choice of one mapping per distinct einsum dominates" in text
