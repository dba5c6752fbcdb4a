"""Answers layer by layer that pay much for tensors between einsums say so, in map, run, pareto and the report
alike, and name the command that fuses.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dse.explain import values
from dse.frontend import api, runs
from dse.frontend.cli import main
from dse.sim.einsum.evaluate import Solution
from dse.solve.schedules.fusible_segments import fusing_schedules
from hw import machine
from hw.arch import Arch, Compute, Fanout, Level
from workloads.einsum import einsum
from workloads.graph import Workload

TWO = """name: two
extents: {b: 64, d: 64, f: 128}
einsums: ["H[b,f] += X[b,d] * W1[d,f]", "Y[b,d] += H[b,f] * W2[f,d]"]
weights: [W1, W2]
"""
FUSES = (
    "unfused (layer by layer): tensors between einsums, through DRAM, take 25 % of all energy; {} --set "
    "solver.schedule=fused fuses them where that costs less"
)


def line_of(found: Any) -> str:
    assert isinstance(found.solution, Solution)
    return values.unfused_hint(found.arch, found.workload, found.solution)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({}, "; dse map ... --set solver.schedule=fused fuses them"),
        ({"dram.kind": "hbm2"}, ""),
        (
            {"solver.mapper": "cost_descending"},
            "--set solver.schedule=fused --set solver.mapper=optimal --set solver.tiling=mapper fuses them",
        ),
        ({"solver.schedule": "fused"}, ""),
        ({"array.hop_pj": 0.001}, "; dse map ... --set solver.schedule=fused fuses them"),
        (
            {"gbuf.bits": {"output": 32}},
            "; no solver fuses them on edge_array in memories that narrow or widen elements (--set gbuf.bits",
        ),
        ({"gbuf.bits": {}}, "; dse map ... --set solver.schedule=fused fuses them"),
        ({"gbuf.bits": None}, "; dse map ... --set solver.schedule=fused fuses them"),
    ],
)
def test_tensors_between_einsums_are_told_with_the_command_that_fuses(
    asked: dict[str, Any], said: str, tmp_path: Path
) -> None:
    (tmp_path / "two.yaml").write_text(TWO)
    found = api.map(str(tmp_path / "two.yaml"), "edge_array", **asked)
    line = line_of(found)
    assert said in line
    assert bool(line) == (
        values.exchanged_share(found.arch, found.workload, found.solution) > 0.1
        and "solver.schedule" not in asked
    )
    if "--set solver.schedule=fused" in line:  # and taking the hint is worth it
        assert (
            api.map(
                str(tmp_path / "two.yaml"),
                "edge_array",
                **{"solver.schedule": "fused", **asked, "solver.mapper": "optimal"},
            ).energy_pj
            < found.energy_pj
        )


def test_no_command_is_named_that_rules_refuse(tmp_path: Path) -> None:
    """And refusals name schedules that go with all that the machine has."""
    (tmp_path / "two.yaml").write_text(TWO)
    asked = str(tmp_path / "two.yaml"), str(tmp_path / "ruled.yaml")

    def ruled(name: str, rule: str) -> None:
        text = (machine.MACHINES / f"{name}.yaml").read_text()
        (tmp_path / "ruled.yaml").write_text(f"{text}mapping:\n- {rule}\n")

    ruled("kapla_multi_4x4", "{utilization: 0.01}")  # of no place inside of a node
    line = line_of(api.map(*asked))
    assert line.endswith("; no solver fuses them on ruled under the rules of its `mapping`")
    ruled("edge_array", "{at: x, ranks: [output_channel]}")
    assert "--set solver.schedule=fused " in line_of(api.map(*asked))
    with pytest.raises(ValueError, match="optimal does, for unfused and fused schedules of each"):
        api.map(*asked, **{"solver.schedule": "pipelined", "gbuf.bits": {"output": 32}})
    with pytest.raises(ValueError, match="mappers do, for unfused and fused schedules of each"):
        api.map(asked[0], "edge_array", **{"solver.schedule": "pipelined", "gbuf.bits": {"output": 32}})


@pytest.mark.parametrize(("machine", "reuse"), [("kapla_multi_4x4", "pipelined"), ("edge_array", "fused")])
def test_the_command_is_one_that_the_machine_takes(machine: str, reuse: str, tmp_path: Path) -> None:
    (tmp_path / "two.yaml").write_text(TWO)
    found = api.map(str(tmp_path / "two.yaml"), machine)
    assert f"--set solver.schedule={reuse} " in (line := line_of(found)), line
    assert (
        api.map(str(tmp_path / "two.yaml"), machine, **{"solver.schedule": reuse}).energy_pj < found.energy_pj
    )


def test_a_row_of_clusters_keeps_what_it_cannot_fuse() -> None:
    """Clusters in one dimension are no nodes of pipelines."""
    levels = Level("DRAM", None, 8, 50.0, 50.0), Level("SRAM", 8 * 1024, 8, 1.0, 1.0)
    row = Arch(
        "row", levels, (Fanout("clusters", 1, (("X", 4),), (True,), (True,)),), Compute(1.0, 1.0), 1.0, 8
    )
    one = Workload("w", (einsum("C[m,n] += A[m,k] * B[k,n]", {"m": 4, "n": 4, "k": 4}),))
    assert next(fusing_schedules(row, one)) == "residency"
    assert not [*fusing_schedules(row, replace(one, repeats=(3,)))]
    boundless = replace(row, levels=(levels[0], replace(levels[1], capacity_bits=None)))
    assert not [*fusing_schedules(boundless, one)]


def test_of_a_single_einsum_there_is_nothing_to_fuse() -> None:
    found = api.map("gemm:m=64,n=32,k=48", "edge_array")
    assert line_of(found) == ""
    assert "above any mapping" in found.totals["certificate"]


def test_run_pareto_report_and_show_say_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "two.yaml").write_text(TWO)
    study = {
        "name": "s",
        "workloads": [{"file": "two.yaml", "name": "two"}],
        "machine": "edge_array",
        "space": {"array.x": [8, 16]},
        "objectives": ["energy_pj"],
    }
    (tmp_path / "study.yaml").write_text(json.dumps(study))
    out = tmp_path / "run"
    said = FUSES.format(f"dse run {out / 'study.yaml'} --out NEW")
    assert main(["run", str(tmp_path / "study.yaml"), "--out", str(out), "--workers", "0"]) == 0
    assert f"best machine: {said}" in capsys.readouterr().out
    assert main(["pareto", str(out)]) == 0
    assert f"machine 1: {said}" in capsys.readouterr().out
    assert main(["report", str(out), "-o", str(tmp_path / "r.html")]) == 0
    assert said in (tmp_path / "r.html").read_text()
    assert main(["show", str(out), "best"]) == 0
    assert FUSES.format("dse map ...") in capsys.readouterr().out
    run = runs.open(out)
    rows = run.sql(
        "SELECT sum(energy_pj) AS between FROM traffic WHERE machine = 1 AND level = 'DRAM' AND "
        "tensor = 'H' AND action <> 'leak'"
    ).table.to_pylist()
    (best,) = run.show("best").solutions
    assert isinstance(best.solution, Solution)
    assert values.exchanged_share(best.arch, best.workload, best.solution) == pytest.approx(
        rows[0]["between"] / best.solution.energy_pj
    )


def test_equal_einsums_count_with_what_each_of_them_hands_on(tmp_path: Path) -> None:
    """Of three equal products in a row two results are read, and two operands made; of two beside each other
    none.
    """
    chain = "name: c\nextents: {m: 32, a: 32, b: 32, c: 32, d: 32}\neinsums: "
    (tmp_path / "row.yaml").write_text(
        chain + '["T[m,b] += X[m,a] * W[a,b]", "U[m,c] += T[m,b] * V[b,c]", "Y[m,d] += U[m,c] * Z[c,d]"]\n'
    )
    (tmp_path / "beside.yaml").write_text(
        chain + '["T[m,b] += X[m,a] * W[a,b]", "U[m,c] += R[m,b] * V[b,c]"]\n'
    )
    row, beside = (api.map(str(tmp_path / f"{name}.yaml"), "edge_array") for name in ("row", "beside"))
    assert isinstance(row.solution, Solution)
    assert isinstance(beside.solution, Solution)
    assert len(row.solution.einsums) == 1
    outer = {
        (part.tensor, part.action): part.energy_pj
        for part in row.solution.einsums[0].price.parts
        if part.level == "DRAM"
    }
    between = 2 * outer["T", "write"] + 2 * outer["X", "read"]
    assert values.exchanged_share(row.arch, row.workload, row.solution) == pytest.approx(
        between / row.energy_pj
    )
    assert values.exchanged_share(beside.arch, beside.workload, beside.solution) == 0.0
    assert line_of(beside) == ""


def test_rows_that_no_level_holds_are_said_to_be_read_once() -> None:
    """A GBUF of 128 KiB and registers of 128 KiB in all hold rows of 131,072 elements of a byte."""
    fits, too_long = (
        Workload("w", (einsum("P[q,k] = softmax(S[q,k])", {"q": 2, "k": n}),)) for n in (131_072, 131_073)
    )
    arch = machine.load_arch("edge_array")
    assert values.long_rows(arch, fits) == ""
    assert values.long_rows(arch, too_long).startswith(
        "P needs whole rows of 128 KiB, which no level on chip"
    )


def test_wide_gaps_to_the_bound_are_explained() -> None:
    """Shares of a gap of energy add up to the whole, one of latency names the bottleneck."""
    small = {"gbuf.capacity": "8 KiB"}
    energy = api.map("conv:n=1,k=64,c=64,p=28,q=28,r=3,s=3", "edge_array", **small)
    latency = api.map("gemm:m=16,n=17,k=19", "edge_array", objective="latency")
    near = api.map("gemm:m=16,n=16,k=16", "edge_array")
    lines = [
        [line for line in one.text().split("\n") if re.match(r"gap to bound [\d.]+ %: ", line)]
        for one in (energy, latency, near)
    ]
    shares = re.findall(r"(?:DRAM|static|chip) (-?[\d.]+) %", lines[0][0])
    assert len(shares) == 3
    assert sum(map(float, shares)) == pytest.approx(100, abs=0.2)
    assert "roofline" in lines[1][0]
    assert lines[2] == []
