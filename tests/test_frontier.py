"""Fronts of single einsums: of all mappings that can be listed none beats a member, and no other is beaten by
none.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from random import Random

import pytest

from dse.frontend import api, cli
from dse.mapper.exact import pareto_mappings
from dse.mapper.exact.pareto_mappings import front
from dse.mapping.nest import Infeasible
from dse.sim.counts.counts import counted, footprints
from dse.sim.einsum.cost import node_bits, overflow
from dse.sim.einsum.evaluate import ROUNDING_GAP, Problem, evaluate_fitting, fanout_overflow
from tests.amount import amount
from tests.enumeration import mappings
from tests.problems import GROUPS, random_problem
from workloads.einsum import Einsum

Figures = tuple[float, float, float]


def listed(problem: Problem, tiles: str, level: str) -> set[Figures]:
    """Energy, latency and room in bytes of all mappings that fit, priced one by one."""
    e, arch, found = problem.einsum, problem.arch, set[Figures]()
    for mapping in mappings(problem, tiles, "tensors"):
        held = footprints(mapping, e, arch)
        if not overflow(held, e, arch) and not fanout_overflow(mapping, e, arch):
            cost = evaluate_fitting(problem, counted(mapping, e, arch, held))
            bits = sum(
                node_bits(f, one, e, arch)
                for f in held
                for one in arch.levels
                if f.level == one.name == level
            )
            found.add((cost.energy_pj, cost.latency_cycles, -(-bits // 8)))
    return found


def narrow(e: Einsum, rng: Random) -> Einsum:
    """With tensors of other words than a byte, so that room is no whole number of them."""
    own = {p.tensor: rng.choice([2, 3, 4, 12]) for p in e.tensors()}
    return replace(
        e,
        output=replace(e.output, bits=own[e.output.tensor]),
        inputs=tuple(replace(p, bits=own[p.tensor]) for p in e.inputs),
    )


def reaches(one: Figures, other: Figures) -> bool:
    return all(a <= b * (1 + ROUNDING_GAP) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("seed", range(amount(24, 8)))
def test_a_front_is_that_of_all_mappings(seed: int) -> None:
    rng = Random(seed)
    tiles = rng.choice(["perfect", "imperfect_spatial"])
    problem = random_problem(rng, rng.choice(GROUPS), tiles, 1500, "tensors")
    problem = replace(problem, arch=replace(problem.arch, overlap="free"), objective="energy")
    if seed % 2:
        problem = replace(problem, einsum=narrow(problem.einsum, rng))
    found = front(problem, tiles)  # type: ignore[arg-type]
    every = listed(problem, tiles, "" if isinstance(found, Infeasible) else found.level)
    assert isinstance(found, Infeasible) == (not every)
    if isinstance(found, Infeasible):
        return
    members = [
        (one.cost.energy_pj, one.cost.latency_cycles, float(one.capacity_bytes)) for one in found.members
    ]
    assert found.certificate.startswith("all of ")
    assert all(any(reaches(one, other) for one in members) for other in every)
    assert all(any(reaches(other, one) for other in every) for one in members)
    assert not any(reaches(a, b) for a in members for b in members if a is not b)
    energies = [one.cost.energy_pj for one in found.members]
    assert energies == sorted(energies)
    assert min(one.capacity_bytes for one in found.members) >= 0


def test_fewer_cycles_and_less_room_cost_energy() -> None:
    name = "conv:k=4,c=5,p=7,q=3,r=3,s=3,pad=1"
    rows = list(api.front(name, "a2"))
    assert len({row["latency_cycles"] for row in rows}) > 3
    assert len({row["GLB_bytes"] for row in rows}) > 3
    best = api.map(name, "a2", **{"solver.gap": 0})
    assert rows[0]["energy_pj"] == pytest.approx(best.energy_pj)
    assert rows[0]["nest"].startswith("store DRAM")


def test_no_row_of_a_front_is_beaten_in_what_it_shows() -> None:
    """Tensors of four bits: room is compared in the bytes that the table shows."""
    rows = list(api.front("tests/data/reported/four_bits.yaml", "a3nb"))
    shown = [(row["energy_pj"], row["latency_cycles"], row["GLB_bytes"]) for row in rows]
    assert all(isinstance(room, int) for *_, room in shown)
    assert len(shown) > 8
    assert not any(reaches(a, b) for a in shown for b in shown if a is not b)


def test_a_front_that_is_cut_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pareto_mappings, "MAX_SEARCHES", 3)
    rows = list(api.front("gemm:m=16,n=24,k=32", "edge_array"))
    assert 0 < len(rows) <= 3
    assert all(row["certificate"] == "cut after 3 searches: others may be missing" for row in rows)


@pytest.mark.parametrize(("nodes", "proven"), [(32, False), (1 << 20, True)])
def test_a_search_that_is_cut_proves_no_front(
    monkeypatch: pytest.MonkeyPatch, nodes: int, proven: bool
) -> None:
    """32 nodes: perfect factors are searched to the end each time, imperfect ones once are not."""
    monkeypatch.setattr(pareto_mappings, "BUDGET", nodes)
    rows = api.front("gemm:m=7,n=5,k=11", "a2")
    assert all(row["certificate"].startswith("all of the searched space") == proven for row in rows)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ["squeezenet", "edge_array", "--front", "--set", "solver.factors=imperfect"],
            "solver.objective = front: fronts are of unfused schedules, from exact searches of ",
        ),
        (
            ["squeezenet", "edge_array", "--front", "--einsum", "none"],
            "squeezenet: no einsum none; name one, or none for the front of the workload: ",
        ),
        (
            ["gemm:m=4,n=4,k=4", "edge_array", "--front", "--objective", "edp"],
            "--front cannot be combined with --objective: it prints a front over energy and latency, ",
        ),
        (
            ["gemm:m=4,n=4,k=4", "edge_array", "--front", "--format", "yaml"],
            "--front cannot be combined with --format yaml: ",
        ),
        (
            ["gemm:m=4,n=4,k=4", "edge_array", "--front", "--set", "solver.schedule=fused"],
            "a front is of single einsums, each by the exact search; ",
        ),
        (
            ["gemm:m=4,n=4,k=4", "edge_array", "--front", "--set", "solver.factors=imperfect"],
            "a front is of exact searches: solver.factors = imperfect, ",
        ),
        (
            ["gemm:m=4,n=4,k=4", "burst_edge", "--front"],
            "a front is of exact searches: burst_edge prices layouts or hops, ",
        ),
    ],
)
def test_what_has_no_front_is_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], line: str
) -> None:
    assert cli.main(["map", *arguments]) == 2
    assert line in (said := capsys.readouterr().err)
    assert said.count("\n") == 1


def test_a_front_as_table_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["map", "gemm:m=16,n=24,k=32", "edge_array", "--front"]
    assert cli.main(command) == 0
    text = capsys.readouterr().out
    assert re.search(r"energy +latency +GBUF\b", text)
    assert "non-dominated mappings: all of the searched space" in text
    assert "imperfect spatial factors" not in text
    assert cli.main([*command, "--why"]) == 0
    assert "imperfect spatial factors" in capsys.readouterr().out
    assert cli.main([*command, "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) > 1
    assert set(rows[0]) == {"energy_pj", "latency_cycles", "GBUF_bytes", "nest", "certificate"}
