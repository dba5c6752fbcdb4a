"""Every command on small real runs: exit codes, formats, round trips, a query while a run goes on, pipes,
Ctrl-C.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import readline
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from analysis import db
from dse.explain.units import column, quantity
from dse.frontend import check, plausible, prompt, runs
from dse.frontend.arguments import EXAMPLES, EXIT_CODES
from dse.frontend.cli import COMMANDS, _close_line, main
from dse.frontend.compare import compare
from dse.run import folder
from dse.study import study as studies
from hw.component import build
from hw.machine import find, load, load_arch, names, parse
from hw.space import override
from tests.amount import some
from tests.commands import dse, good
from tests.test_layers import HEAVY, loaded_by
from workloads import catalog

pytestmark = pytest.mark.xdist_group("cli")

ROOT = Path(__file__).resolve().parent.parent
DSE = str(Path(sys.executable).with_name("dse"))
STUDY = """\
name: small
workloads: ["gemm:m=64,n=32,k=48"]
machine: edge_array
space:
  array.x: [2, 4, 8]
  gbuf.capacity: {from: 4 KiB, to: 16 KiB, step: x2}
  dram.kind: [lpddr4, lpddr5, gddr6]
objectives: [energy_pj, latency_ns, area_mm2]
"""
SIZE = 27
LONG = (
    STUDY.replace('"gemm:m=64,n=32,k=48"', "squeezenet")
    .replace("name: small", "name: long")
    .replace("to: 16 KiB", "to: 2 MiB")
    .replace("array.x: [2, 4, 8]", "array.x: [2, 4, 8]\n  array.y: [2, 4, 6, 8, 10, 12, 14, 16]")
    + "solver: {mapper: cost_descending}\n"
)
LONG_SIZE = 720
TIGHT = """\
name: tight
workloads: ["gemm:m=64,n=32,k=48"]
machine: a3nb
space:
  rf.capacity: [1 B, 2 B, 3 B, 64 B]
  glb.capacity: [2 B, 16 KiB]
objectives: [energy_pj, latency_ns]
solver: {mapper: cost_descending}
"""


def rows(folder: Path, statement: str, run: str = "run") -> list[dict[str, Any]]:
    return json.loads(good("sql", run, statement, "--format", "json", folder=folder))  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "small.yaml").write_text(STUDY)
    said = good("run", "small.yaml", "--workers", "0", "--out", "run", folder=folder)
    assert f"{SIZE} machines solved now, {SIZE} in all" in said
    return folder


def test_a_second_run_and_a_resume_find_nothing_to_do(home: Path) -> None:
    before = good("pareto", "run", "--format", "csv", folder=home)
    for command in (["run", "small.yaml", "--out", "run"], ["resume", "run"]):
        said = good(*command, "--workers", "0", folder=home)
        assert said.startswith("run: nothing is left to do: every machine of the space is evaluated;")
        assert f"; 0 machines solved now, {SIZE} in all" in said
    assert good("pareto", "run", "--format", "csv", folder=home) == before


def test_a_run_goes_on_where_it_stopped(home: Path) -> None:
    assert "10 machines solved now, 10 in all" in good(
        "run", "small.yaml", "--workers", "0", "--out", "part", "--set", "stop.machines=10", folder=home
    )
    assert f"{SIZE - 10} machines solved now, {SIZE} in all" in good(
        "run", "small.yaml", "--workers", "0", "--out", "part", folder=home
    )
    assert good("pareto", "part", "--format", "csv", folder=home) == good(
        "pareto", "run", "--format", "csv", folder=home
    )


def test_status(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = json.loads(good("status", "run", "--format", "json", folder=home))
    assert (facts["state"], facts["done"], facts["ok"], facts["planned"], facts["error"]) == (
        "finished",
        SIZE,
        SIZE,
        SIZE,
        0,
    )
    assert facts["front"] == len(good("pareto", "run", "--format", "csv", folder=home).splitlines()) - 1
    assert "finished" in good("status", "run", folder=home)
    wide = max(map(len, good("status", "run", folder=home).splitlines()))
    monkeypatch.setenv("COLUMNS", "60")  # as `watch` sets it for a pipe
    assert max(map(len, good("status", "run", folder=home).splitlines())) <= 60 < wide
    monkeypatch.delenv("COLUMNS")
    needed = ("pyarrow",)  # whose parts are these
    assert loaded_by("status run", [name for name in HEAVY if name not in needed], home) == []


def test_a_front_loads_neither_simulator_nor_workload_again(home: Path) -> None:
    """What is said of fusion is kept; MACs are counted where ratios are asked for."""
    said = good("pareto", "run", folder=home)
    assert loaded_by(["pareto", "run"], ["numba", "dse.sim.einsum.evaluate", "onnx"], home) == []
    assert good("pareto", "run", folder=home) == said
    assert "tops" in good("pareto", "run", "--format", "csv", folder=home).splitlines()[0]


def test_points_that_are_costed_again_together_are_those_shown_one_by_one(home: Path) -> None:
    run = runs.open(home / "run")
    keys = [(row["machine"], row["schedule"]) for row in run.front()]
    assert len(keys) > 1
    for key, found in zip(keys, run.solutions(keys), strict=True):
        alone = run.show(f"{key[0]}.{key[1]}").solutions
        assert [one.solution for one in found] == [one.solution for one in alone]
        assert [one.arch for one in found] == [one.arch for one in alone]


def test_an_empty_front_says_why_in_the_last_line(home: Path) -> None:
    (home / "small_rf.yaml").write_text(TIGHT.replace("[1 B, 2 B, 3 B, 64 B]", "[1 B, 2 B]"))
    (home / "slow.yaml").write_text(
        TIGHT.replace("objectives", 'constraints: ["latency_ns <= 1"]\nobjectives')
    )
    for name, why in (
        ("small_rf", "4 infeasible, most often gemm: GLB needs 3 bytes, has 2"),
        ("slow", "no schedule meets latency_ns <= 1"),
    ):
        said = good("run", f"{name}.yaml", "--workers", "0", "--out", name, folder=home)
        assert said.splitlines()[-1] == f"the front is empty: {why}"
    assert (
        "no schedule meets" in json.loads(good("status", "slow", "--format", "json", folder=home))["reason"]
    )


def test_a_front_says_the_same_in_every_format(home: Path) -> None:
    listed = json.loads(good("pareto", "run", "--format", "json", folder=home))
    table = list(csv.DictReader(io.StringIO(good("pareto", "run", "--format", "csv", folder=home))))
    piped = subprocess.run(
        f"'{DSE}' pareto run --format parquet | cat", shell=True, cwd=home, capture_output=True, timeout=300
    ).stdout
    binary = pq.read_table(pa.BufferReader(piped)).to_pylist()
    text = good("pareto", "run", folder=home)
    assert (
        [row["machine"] for row in listed]
        == [int(row["machine"]) for row in table]
        == [row["machine"] for row in binary]
    )
    assert (
        [row["energy_pj"] for row in listed]
        == [float(row["energy_pj"]) for row in table]
        == [row["energy_pj"] for row in binary]
    )
    assert f"{len(listed)} rows" in text
    assert all(cell in text for cell in column("energy_pj", [row["energy_pj"] for row in listed]))
    points = rows(home, "SELECT energy_pj AS e, latency_ns AS t, area_mm2 AS a FROM points")
    kept = [
        p
        for p in points
        if not any(q != p and q["e"] <= p["e"] and q["t"] <= p["t"] and q["a"] <= p["a"] for q in points)
    ]
    assert sorted((row["energy_pj"], row["latency_ns"], row["area_mm2"]) for row in listed) == sorted(
        (p["e"], p["t"], p["a"]) for p in kept
    )


def test_objectives_and_conditions_of_a_front(home: Path) -> None:
    (best,) = json.loads(
        good(
            "pareto",
            "run",
            "--objectives",
            "area_mm2",
            "--where",
            "array_x > 2",
            "--format",
            "json",
            folder=home,
        )
    )[:1]
    assert best["area_mm2"] == rows(home, "SELECT min(area_mm2) AS a FROM machines WHERE array_x > 2")[0]["a"]
    assert best["array_x"] == 4
    small = json.loads(
        good(
            "pareto",
            "run",
            "--where",
            f"area_mm2 <= {best['area_mm2']!r} -- no more",
            "--format",
            "json",
            folder=home,
        )
    )
    assert small
    assert all(row["area_mm2"] <= best["area_mm2"] for row in small)


def test_sql(home: Path) -> None:
    assert rows(home, "SELECT status, count(*) AS n FROM machines GROUP BY status") == [
        {"status": "ok", "n": SIZE}
    ]
    (einsum,) = rows(
        home,
        "SELECT e.energy_pj, sum(t.energy_pj) AS parts FROM einsums e JOIN traffic t USING (machine, "
        "schedule, einsum) WHERE machine = 0 GROUP BY ALL",
    )
    assert einsum["parts"] == pytest.approx(einsum["energy_pj"])
    asked = subprocess.run(
        [DSE, "sql", "run"],
        cwd=home,
        input="SELECT count(*) AS n FROM points;\nselec;\n",
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert asked.returncode == 2
    assert str(SIZE) in asked.stdout
    assert asked.stderr.endswith("; write SELECT for selec\n")


def test_runs_under_a_folder_are_listed(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "run", tmp_path / "a/b/run")
    shutil.copytree(home / "run", tmp_path / "broken")
    (tmp_path / "broken/manifest.json").write_text("{}")
    found = json.loads(good("runs", str(tmp_path), "--format", "json", folder=home))
    assert [one["run"] for one in found] == [str(tmp_path / "a/b/run"), str(tmp_path / "broken")]
    status = json.loads(good("status", "run", "--format", "json", folder=home))
    whole, broken = found
    assert (whole["state"], whole["study"], whole["machines"]) == ("finished", "small", SIZE)
    assert (whole["front"], whole["hypervolume"]) == (status["front"], status["hypervolume"])
    assert (broken["state"], broken["front"]) == ("damaged", None)
    assert "2 rows" in good("runs", str(tmp_path), folder=home)
    good("runs", str(tmp_path / "a/b/run"), "--tag", "baseline, int8", folder=home)
    [tagged, _] = json.loads(good("runs", str(tmp_path), "--format", "json", folder=home))
    assert (whole["tags"], tagged["tags"]) == ("", "baseline, int8")
    assert dse("runs", str(tmp_path), "--tag", "a", folder=home).returncode == 2
    assert dse("runs", "nowhere", folder=home).returncode == 2


def test_two_runs_compared(home: Path) -> None:
    good(*["run", "small.yaml", "--workers", "0", "--out", "few", "--set", "stop.machines=4"], folder=home)
    said = dse("compare", "run", "few", "--format", "json", folder=home)
    assert (said.returncode, said.stderr) == (0, "")
    found = json.loads(said.stdout)
    assert {"key": "done", "a": SIZE, "b": 4} in found["runs"]
    best = {one["objective"]: one for one in found["objectives"]}
    assert list(best) == ["energy_pj:min", "latency_ns:min", "area_mm2:min", "hypervolume"]
    status = json.loads(good("status", "run", "--format", "json", folder=home))
    assert best["hypervolume"]["a"] == pytest.approx(status["hypervolume"])  # of the same box
    assert best["hypervolume"]["b"] < best["hypervolume"]["a"]  # a part of these machines
    lowest = rows(home, "SELECT min(energy_pj) AS e FROM points")[0]["e"]
    assert best["energy_pj:min"]["a"] == lowest
    assert best["energy_pj:min"]["change"] == pytest.approx(best["energy_pj:min"]["b"] / lowest - 1)
    assert found["study_keys"] == [{"key": "stop.machines", "a": None, "b": "4"}]
    shown = good("compare", "run", "few", folder=home)
    assert re.search(rf"energy_pj:min +{quantity('energy_pj', lowest)} ", shown)
    assert "above their optima" in shown
    asked = "SELECT run, count(*) AS n, any_value(energy_pj) FROM designs GROUP BY run ORDER BY n"
    both = good("sql", "run", "--with", "few", asked, "--format", "json", folder=home)
    assert [(one["run"], one["n"]) for one in json.loads(both)] == [("few", 4), ("run", SIZE)]
    narrow = "FROM einsums WHERE machine IN (SELECT machine FROM designs WHERE run = 'few') AND run = 'few'"
    own = rows(home, narrow.replace("run = 'few'", "true"), run="few")
    assert json.loads(good("sql", "run", "--with", "few", narrow, "--format", "json", folder=home)) == [
        {"run": "few", **one} for one in own
    ]
    for refused in ("FROM nowhere", "FROM read_csv('small.yaml')", "FROM 'small.yaml'"):
        assert dse("sql", "run", "--with", "few", refused, folder=home).returncode == 2
    assert good("report", "run", "--with", "few", "-o", "both.html", folder=home)
    assert '"others":[{"name":"few"' in (home / "both.html").read_text()


def test_two_machines_of_a_run_compared(home: Path) -> None:
    a, b = (
        one["machine"]
        for one in rows(
            home,
            "SELECT arg_min(machine, energy_pj) AS machine FROM points UNION ALL SELECT "
            "arg_max(machine, energy_pj) FROM points",
        )
    )
    found = json.loads(good("compare", "run", "best", str(b), "--format", "json", folder=home))
    first, totals, *others = found.values()
    assert [*found][:2] == ["machines", "gemm:m=64,n=32,k=48.totals"]
    assert {"energy_pj"} < {one["metric"] for one in first}
    [energy] = [one for one in totals if one["metric"] == "energy_pj"]
    assert energy["change"] == energy["b"] / energy["a"] - 1 > 0
    assert any(others)
    for words in (("run", "best", "77777"), (str(a), str(b))):
        said = dse("compare", *words, folder=home)
        assert (said.returncode, said.stderr.count("\n")) == (2, 1)
    assert f"dse compare RUN {a} {b}" in said.stderr


def test_what_moved_between_two_mappings(home: Path) -> None:
    asked = ("gemm:m=64,n=32,k=48", "edge_array")
    costs = {}
    for name, mapper in (("a", "optimal"), ("b", "cost_descending")):
        options = ("--set", f"solver.mapper={mapper}")
        (home / f"{name}.txt").write_text(good("map", *asked, *options, "--format", "schedule", folder=home))
        costs[name] = json.loads(good("map", *asked, *options, "--format", "json", folder=home))
    found = json.loads(good("compare", *asked, "a.txt", "b.txt", "--format", "json", folder=home))
    energy = found["einsums"][0]
    assert energy["energy_pj_a"] == costs["a"]["energy_pj"]
    assert energy["energy_pj_b"] == costs["b"]["energy_pj"]
    moved = found["traffic"]
    assert moved
    levels = {one["level"]: one for one in moved}
    assert levels["REGF"]["moved_bytes_a"] == 2 * 49152 * 2  # of C, read and written, in words of 2 bytes
    assert all(one["energy_pj_a"] != one["energy_pj_b"] for one in moved)
    same = json.loads(good("compare", *asked, "a.txt", "a.txt", "--format", "json", folder=home))
    assert same["traffic"] == []
    assert {one["change"] for one in next(iter(same.values()))} == {None}
    totals = {one["metric"]: one for one in next(iter(found.values()))}
    for key, one in totals.items():
        assert (one["a"], one["b"]) == (costs["a"][key], costs["b"][key])
    assert totals["energy_pj"]["change"] == pytest.approx(energy["energy_change"])
    shown = good("compare", *asked, "a.txt", "b.txt", folder=home)
    assert re.search(r"energy +584.6 nJ +673 nJ +\+15.1 %", shown)
    assert not re.search("_pj|_ns|_cycles", shown)
    assert dse("compare", *asked, "a.txt", folder=home).returncode == 2


def test_a_checked_machine_shows_its_numbers(home: Path) -> None:
    """By name too; an energy far below that of a level inside is a warning, no fault."""
    shown = json.loads(good("check", "edge_array", "--format", "json", folder=home))["files"][0]
    components = {one["component"]: one for one in shown["components"]}
    assert list(components) == ["DRAM", "GBUF", "REGF", "MAC"]
    assert (components["GBUF"]["capacity_bytes"], components["REGF"]["instances"]) == (128 * 1024, 256)
    assert "warning" not in shown["is"]
    custom = (
        "kind: custom, read_pj: {}, write_pj: 25, leak_mw: 9, area_mm2: 0.3, bandwidth: 16 GB/s, capacity"
    )
    edge = (Path(__file__).parents[1] / "hw/machines/edge_array.yaml").read_text()
    for read_pj, odd in ((13.0, 0), (0.13, 1)):
        (home / "odd.yaml").write_text(edge.replace("gbuf, capacity", f"gbuf, {custom.format(read_pj)}"))
        said = good("check", "odd.yaml", folder=home)
        assert said.count("warning: gbuf.read_pj = 0.13 for 256 bit is less than 0.25 of regf.read_pj") == odd
        assert re.search(r"GBUF +1 +128 KiB +(13 pJ|0.13 pJ|130 fJ) .* 256 bit", said)


@pytest.mark.parametrize("factor", [0.1, 0.5, 2.0, 10.0])
@pytest.mark.parametrize(
    "key",
    [
        *("dram.read_pj", "gbuf.read_pj", "gbuf.write_pj", "regf.read_pj", "mac.mac_pj"),
        *("gbuf.leak_mw", "gbuf.area_mm2", "mac.area_mm2"),
    ],
)
def test_an_energy_that_is_far_from_the_tables_is_a_warning(home: Path, key: str, factor: float) -> None:
    """A digit too many or too few, in each component."""
    edge = (Path(__file__).parents[1] / "hw/machines/edge_array.yaml").read_text()
    name, field = key.split(".")
    arch = load_arch("edge_array")
    part = next((level for level in arch.levels if level.name == name.upper()), arch.compute)
    planted = getattr(part, field) * factor
    (home / "planted.yaml").write_text(edge.replace(f": {name},", f": {name}, {field}: {planted!r},", 1))
    said = check.file(str(home / "planted.yaml"))[0]
    assert (f"{key} = {planted:.4g} is {factor:.3g} times the tables'" in said) == (factor in (0.1, 10.0))


def test_what_is_odd_about_a_machine_is_said_where_it_is_used(home: Path) -> None:
    """In a study, before a run, and beside a mapping; not of the shipped machine, whose numbers are meant."""
    line = "dram.read_pj = 9e\\+04 is [0-9.]* times the tables'"
    mapped = dse("map", "gemm:m=8,n=8,k=8", "edge_array", "--set", "dram.read_pj=90000", folder=home)
    assert re.search(f"warning: {line}", mapped.stderr)
    assert "warning" not in dse("map", "gemm:m=8,n=8,k=8", "kapla_multi", folder=home).stderr
    (home / "slow.yaml").write_text(
        "name: s\nworkloads: ['gemm:m=8,n=8,k=8']\nmachine: edge_array\nobjectives: [energy_pj]\n"
        "space: {gbuf.capacity: [64 KiB, 1 MiB], clock_mhz: [500, 900], dram.read_pj: [500, 90000]}\n"
    )
    said = good("check", "slow.yaml", folder=home)
    assert "note: on 2 of all 8 machines, gbuf: an access takes " in said
    assert re.search(f"warning: {line}", said)
    (home / "many.yaml").write_text(
        "name: m\nworkloads: ['gemm:m=8,n=8,k=8']\nmachine: edge_array\nobjectives: [energy_pj]\n"
        "space: {dram.read_pj: [90000, 91000, 92000, 93000], "
        "gbuf.leak_mw: [900], mac.mac_pj: [99], regf.write_pj: [70]}\n"
    )
    said = good("check", "many.yaml", folder=home)
    for key in ("dram.read_pj = 9e+04", "gbuf.leak_mw", "mac.mac_pj", "regf.write_pj"):
        assert said.count(f"warning: {key}") == 1, said
    run = dse("run", "slow.yaml", "--workers", "0", "--set", "stop.machines=1", "--out", "slow", folder=home)
    assert "note: on 2 of all 8 machines, gbuf: " in run.stderr


def test_memories_of_different_tensors_are_not_inside_each_other(home: Path) -> None:
    edge = (Path(__file__).parents[1] / "hw/machines/edge_array.yaml").read_text()
    node = "- {memory: gbuf, capacity: 128 KiB, width_bits: 256}"
    for roles, odd in (("input, output", False), ("input, weight, output", True)):
        two = (
            "- {memory: wbuf, capacity: 4 KiB, width_bits: 256, may_keep: [weight]}\n"
            f"- {{memory: abuf, capacity: 4 MiB, width_bits: 256, may_keep: [{roles}]}}"
        )
        (home / "beside.yaml").write_text(edge.replace(node, two))
        said = check.file(str(home / "beside.yaml"))[0]
        assert ("of abuf.read_pj" in said and "a level inside it" in said) is odd


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [  # ten times what the shipped machine has, without node_nm where not said
        (
            "kapla_single",
            "mac_pj: 0.9984",
            "mac_pj: 9.984",
            "mac.mac_pj = 9.984 is 3.3 times 3.029, the most",
        ),
        ("kapla_multi", "_pj: 0.0940885", "_pj: 0.940885", "regf.read_pj = 0.9409 for 16 bit is 0.94"),
        (
            "kapla_single",
            "_pj: 7.4837",
            "_pj: 60",
            "gbuf.read_pj = 60 is out of proportion to regf.read_pj and",
        ),
        ("kapla_single", "leak_mw: 541", "leak_mw: 5410", "dram.leak_mw = 5410 is 1.9 times the 2867"),
        ("kapla_multi", "leak_mw: 1272", "leak_mw: 12720", "dram.leak_mw = 1.272e+04 is 1.1 times"),
        ("kapla_single", "hop_pj: 0.61", "hop_pj: 6.1", "nodes.hop_pj = 6.1 per bit over one link"),
        ("simba", "hop_pj: 1.285", "hop_pj: 12.85", "package.hop_pj = 12.85 per bit over one link"),
        (
            "kapla_multi",
            "point_pj: 0.1026",
            "point_pj: 1.026",
            "array.endpoint_pj = 1.026 per bit is 5.8 times",
        ),
        (
            "burst_edge",
            "row_pj: 4588.0",
            "row_pj: 45880",
            "dram.row_pj = 4.588e+04 is 0.7 pJ per bit of a row",
        ),
        ("a2", "alu_pj: 1", "alu_pj: 10", "mac.alu_pj = 10 is 10 times mac.mac_pj = 1"),
        ("a2", "merge_pj: 0", "merge_pj: 10", "mac.merge_pj = 10 is 10 times mac.mac_pj = 1"),
    ],
)
def test_ten_times_a_number_of_a_shipped_machine_is_a_warning(
    home: Path, name: str, old: str, new: str, said: str
) -> None:
    text = (Path(__file__).parents[1] / f"hw/machines/{name}.yaml").read_text()
    (home / "ten.yaml").write_text(re.sub(re.escape(old), new, text))
    line = check.file(str(home / "ten.yaml"))[0]
    assert f"warning: {said}" in line


def test_no_number_of_a_shipped_machine_is_called_odd_but_by_its_own_table() -> None:
    """Four are: a bandwidth and a power of one chip, and bandwidths of two others."""
    said = [line for name in names() for line in plausible.machine_lines(load(name), load_arch(name))]
    odd = [line for line in said if line.startswith("warning")]
    assert all("times the tables'" in line for line in odd)
    assert len(odd) == 4


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "channels: 2",
            "channels: 2, bandwidth: 100 GB/s",
            "dram.bandwidth = 100 is 7.81 times the tables' 12.8",
        ),
        ("channels: 2", "channels: 2, bandwidth: 10 GB/s", ""),
        (
            "128 KiB, w",
            "128 KiB, bits: {output: 4}, w",
            "gbuf.bits.output = 4 is narrower than one operand (8",
        ),
        ("128 KiB, w", "128 KiB, bits: {output: 320}, w", "gbuf.bits.output = 320 is wider than sums are"),
        ("128 KiB, w", "128 KiB, cycle_ns: 0.05, w", "gbuf.cycle_ns = 0.05 is "),
        (
            "512 B, width_bits: 16",
            "4 B, kind: register, width_bits: 12",
            "regf.width_bits = 12 is no multiple of the word (8 bit)",
        ),
        ("clock_mhz: 500", "clock_mhz: 0.6", "clock_mhz = 0.6 is below 10 MHz; 0.6 GHz is 600; correct it"),
        ("clock_mhz: 500", "clock_mhz: 0.001", "clock_mhz = 0.001 is below 10 MHz; correct it"),
        ("clock_mhz: 500", "clock_mhz: 10", ""),
        (
            "width_bits: 16, a",
            "kind: custom, leak_mw: 0, area_mm2: 0, read_pj: 0.1, write_pj: 0.5, width_bits: 16, a",
            "regf.write_pj = 0.5 is 5 times regf.r",
        ),
        (
            "width_bits: 16, a",
            "kind: custom, leak_mw: 0, area_mm2: 0, read_pj: 0.5, write_pj: 0.5, width_bits: 16, a",
            "is 0.25 per operand of 8 bit, 1.3 of a MAC",
        ),
        (
            "width_bits: 16, a",
            "kind: custom, leak_mw: 0, area_mm2: 0, read_pj: 0.1, write_pj: 0.3, width_bits: 16, a",
            "",
        ),
        (  # the SRAM table has 13.26 and 25.58
            "gbuf, c",
            "gbuf, kind: custom, leak_mw: 0, area_mm2: 0, bandwidth: 16 GB/s, read_pj: 67, write_pj: 67, c",
            "gbuf.read_pj = 67 is 5.1 times 13.26, the most that the tables have for 128 KiB, 256",
        ),
        (
            "gbuf, c",
            "gbuf, kind: custom, leak_mw: 0, area_mm2: 0, bandwidth: 16 GB/s, read_pj: 65, write_pj: 65, c",
            "",
        ),
        (  # three times the tables' reads, writes as they have them
            "gbuf, c",
            "gbuf, kind: custom, leak_mw: 0, area_mm2: 0, bandwidth: 16 GB/s, read_pj: 40, write_pj: 25, c",
            "gbuf.read_pj = 40 and gbuf.write_pj = 25: a write costs 0.62 of a read, in the tables ",
        ),
        ("gbuf, c", "gbuf, read_pj: 40, c", "gbuf.read_pj = 40 is 3.02 times the tables' 13.26"),
        ("gbuf, c", "gbuf, read_pj: 30, c", ""),
        (
            "gbuf, c",
            "gbuf, kind: custom, leak_mw: 0, area_mm2: 0, actions_per_cycle: 10, read_pj: 9, write_pj: 9, c",
            "gbuf.actions_per_cycle asks for 10 accesses per clock of 1 bank in 128 KiB",
        ),
        (
            "gbuf, c",
            "gbuf, kind: custom, leak_mw: 0, area_mm2: 0, actions_per_cycle: 3, read_pj: 9, write_pj: 9, c",
            "",
        ),
        (
            "kind: int8}",
            "kind: custom, leak_mw: 0, area_mm2: 0, alu_pj: 0.02, mac_pj: 0.2, merge_pj: 0.2}\nword_bits: 8",
            "mac.merge_pj = 0.2 is 10 times mac.alu_pj = 0.02, and a merge is one addition",
        ),
        (  # 16 banks of 8 KiB: less than a fifth of what one array of 128 KiB takes
            "gbuf, c",
            "gbuf, kind: custom, leak_mw: 0, area_mm2: 0, bandwidth: 16 GB/s, read_pj: 2.5, write_pj: 4.9, c",
            "",
        ),
        (  # the tables have 10.1 to 12.5 mW and 0.19 to 0.27 mm2 in one bank to 16
            "gbuf, c",
            "gbuf, kind: custom, leak_mw: 107, area_mm2: 0.3, bandwidth: 16 GB/s, read_pj: 9, write_pj: 9, c",
            "gbuf.leak_mw = 107 is 8.6 times 12.51, the most that the tables have for 128 KiB",
        ),
        (
            "gbuf, c",
            "gbuf, kind: custom, leak_mw: 9, area_mm2: 2.7, bandwidth: 16 GB/s, read_pj: 9, write_pj: 9, c",
            "gbuf.area_mm2 = 2.7 is ",
        ),
        (  # flip-flops have 0.05, an SRAM of as many bits does not exist
            "regf, capacity: 512 B, w",
            "regf, kind: custom, leak_mw: 0, area_mm2: 0, read_pj: 0.01, write_pj: 0.03, capacity: 4 B, w",
            "regf.read_pj = 0.01 is",
        ),
        (
            "dram, kind: lpddr4, channels: 2",
            "dram, kind: custom, leak_mw: 0, area_mm2: 0, bandwidth: 9 GB/s, read_pj: 3794, write_pj: 3000",
            "dram.read_pj = 3794 is 1.4 times the 2688 of ddr3, the most of the DRAMs of the tables, 64 bit",
        ),
        (
            "dram, kind: lpddr4, channels: 2",
            "dram, kind: custom, leak_mw: 0, area_mm2: 0, bandwidth: 9 GB/s, read_pj: 300, write_pj: 150",
            "dram.write_pj = 150 is 0.72 times",
        ),
        (
            "dram, kind: lpddr4, channels: 2",
            "dram, kind: custom, leak_mw: 0, area_mm2: 0, bandwidth: 9 GB/s, read_pj: 3300, write_pj: 3000",
            "",
        ),
        (
            "kind: int8}",
            "kind: custom, leak_mw: 0, area_mm2: 0, alu_pj: 0.01, mac_pj: 0.01}\nword_bits: 8",
            "mac.mac_pj = 0.01 is",
        ),
    ],
)
def test_a_number_that_is_hardly_meant_is_a_warning(home: Path, old: str, new: str, said: str) -> None:
    """A DRAM faster than its kind; a clock in GHz; writes unlike reads; registers dearer than a MAC;
    parts of kind custom far from the tables."""
    edge = (Path(__file__).parents[1] / "hw/machines/edge_array.yaml").read_text()
    (home / "given.yaml").write_text(edge.replace(old, new, 1))
    line = check.file(str(home / "given.yaml"))[0]
    assert line.count("warning") == bool(said)
    assert said in line


@pytest.mark.parametrize(
    ("rule", "without", "beside"),
    [
        ("{at: x, ranks: [out_channel]}", "ranks = out_channel is no role; did you mean output_channel?", ""),
        ("{at: gbuf, tile: {weigth: 2 KiB}}", "tile = weigth is no role; did you mean weight?", ""),
        ("{at: x, einsums: [prodcts], ranks: [k]}", "einsums = prodcts is no kind of einsum; did", ""),
        ("{at: x, factors: {kk: 4}}", "", "factors = kk names nothing of gemm; did you mean k?"),
        ("{at: x, einsums: [gemmm], ranks: [k]}", "", "einsums = gemmm names nothing of gemm; did you mean"),
        ("{at: x, ranks: [output_channel, kk, k]}", "", ""),
    ],
)
def test_names_in_rules_that_are_misspelt_are_noted(rule: str, without: str, beside: str) -> None:
    """Without a workload those that are close to a role, with one those of nothing; each once."""
    raw = yaml.safe_load((Path(__file__).parents[1] / "hw/machines/edge_array.yaml").read_text())
    spec, faults = parse(raw | {"mapping": [yaml.safe_load(rule)]}, "ruled")
    assert spec
    assert not faults
    found = [line for line in plausible.machine_lines(spec, build(spec)) if "mapping[0]" in line]
    of_workload = plausible.rules_of_nothing(spec, [replace(catalog.load("gemm:m=2,n=2,k=2"), name="gemm")])
    for lines, said in ((found, without), (of_workload, beside)):
        assert [line.startswith(f"note: mapping[0].{said}") for line in lines] == [True] * bool(said)
    assert not plausible.rules_of_nothing(spec, [])


@pytest.mark.parametrize(
    ("block", "fault"),
    [
        ("[{utilization: 50}]", "[0].utilization = 50 is a share of the PEs, above 0 and at most 1; write"),
        (
            "[{at: gbuf, bypass: [output]}]",
            "[0].bypass = [output] contradicts gbuf.bypass = false: no tensor",
        ),
        ("", ""),
    ],
)
def test_rules_that_cannot_be_are_explained(block: str, fault: str) -> None:
    text = (Path(__file__).parents[1] / "hw/machines/edge_array.yaml").read_text()
    raw = yaml.safe_load(text.replace("128 KiB", "128 KiB, bypass: false", 1) + f"mapping: {block}\n")
    _, lines = parse(raw, "ruled")
    assert [line.startswith(f"mapping{fault}") for line in lines] == [True] * bool(fault), lines


def test_more_accesses_than_ports_are_noted() -> None:
    """Of SRAM of the tables, with one port per bank; a register file may have three."""

    def notes(**given: object) -> list[str]:
        spec = override(load("edge_array"), {key.replace("_", ".", 1): value for key, value in given.items()})
        return [line for line in plausible.machine_lines(spec, build(spec)) if "accesses per clock" in line]

    assert not notes(gbuf_banks=2, gbuf_actions_per_cycle=2, regf_actions_per_cycle=3)
    [line] = notes(gbuf_banks=2, gbuf_actions_per_cycle=3)
    assert line.startswith(
        "note: gbuf.actions_per_cycle asks for 3 accesses per clock of 2 banks of one port"
    )


def test_a_memory_that_starves_its_array_is_noticed() -> None:
    """A word of 32 per access, for 16 PEs a row; a slow memory that feeds a quarter of a row is meant."""

    def said(**given: object) -> list[str]:
        spec = override(load("edge_array"), {f"gbuf.{key}": value for key, value in given.items()})
        return [
            line for line in plausible.machine_lines(spec, build(spec)) if "MAC units, 16 in a row" in line
        ]

    assert not said(actions_per_cycle=0.125)
    few = "warning: gbuf.actions_per_cycle is 0.1 accesses per clock of 1 bank: 3.2 words for 256"
    assert [line.startswith(few) for line in said(actions_per_cycle=0.1)] == [True]
    slow = "warning: gbuf.bandwidth is 0.1 accesses"
    assert [line.startswith(slow) for line in said(bandwidth="1.6 GB/s")] == [True]


def test_groups_are_said_with_their_rank(home: Path) -> None:
    (home / "two.yaml").write_text(
        "extents: {m: 8, k: 8, n: 8}\nweights: [W]\n"
        'einsums:\n- {text: "Y[m,n] += X[m,k] * W[k,n]", format: {W: "2:4"}}'
    )
    line = "W has 2 nonzeros in each 4 neighbours along n, its last dimension"
    assert f"note: {line}" in check.file(str(home / "two.yaml"))[0]
    assert line in " ".join(good("map", "two.yaml", "edge_array", folder=home).split())


def test_an_sram_slower_than_the_clock_is_named_with_what_helps(home: Path) -> None:
    """At the clock and with the banks that the line tells, an access takes one cycle."""
    edge = (Path(__file__).parents[1] / "hw/machines/edge_array.yaml").read_text()
    edge = edge.replace("128 KiB", "256 KiB").replace(", actions_per_cycle: 2", "")
    file = home / "slow.yaml"

    def notes(clock_mhz: int) -> list[str]:
        file.write_text(edge.replace("clock_mhz: 500", f"clock_mhz: {clock_mhz}"))
        return [text for text in check.file(str(file))[0].splitlines() if text.startswith("note: ")]

    [said] = notes(800)
    assert said.startswith("note: gbuf: an access takes 2 cycles (")
    assert "at most 0.5 accesses per cycle" in said
    highest = int(re.search(r"clock_mhz up to (\d+)", said)[1])  # type: ignore[index]
    assert (len(notes(highest)), len(notes(highest + 1))) == (0, 1)


def test_schedules_compared_by_name(home: Path) -> None:
    """A word that is no file is a solver.schedule, which is solved; beside a file too."""
    (home / "two.yaml").write_text(
        "extents: {b: 16, d: 64, f: 256}\nweights: [W1, W2]\n"
        'einsums: ["H[b,f] += X[b,d] * W1[d,f]", "Y[b,d] += H[b,f] * W2[f,d]"]\n'
    )
    asked = ("two.yaml", "edge_array")
    found = json.loads(good("compare", *asked, "unfused", "fused", "--format", "json", folder=home))
    for name, letter in (("unfused", "a"), ("fused", "b")):
        options = ("--set", f"solver.schedule={name}", "--set", "gbuf.capacity=64 KiB")
        alone = json.loads(good("map", *asked, *options[:2], "--format", "json", folder=home))
        assert sum(one[f"energy_pj_{letter}"] for one in found["einsums"]) == pytest.approx(
            alone["energy_pj"]
        )
        (home / f"{name}.txt").write_text(good("map", *asked, *options, "--format", "schedule", folder=home))
    mixed = ("compare", *asked, "unfused.txt", "unfused", *options[2:], "--set", "solver.gap=0")
    assert {
        one["change"]
        for one in next(iter(json.loads(good(*mixed, "--format", "json", folder=home)).values()))
    } == {None}
    wrong = dse("compare", *asked, "unfused", "fuzed", folder=home)
    assert (wrong.returncode, wrong.stderr) == (
        2,
        "fuzed: neither a file nor a name of solver.schedule; did you mean fused?\n",
    )


def test_equal_einsums_that_one_schedule_maps_apart_have_a_row_each_in_comparisons(home: Path) -> None:
    """H and Y are equal and solved once; W is the weight of the first alone, V is made by nobody."""
    (home / "equal.yaml").write_text(
        "extents: {b: 64, d: 64, f: 64}\nweights: [W]\n"
        'einsums: ["H[b,f] += X[b,d] * W[d,f]", "Y[b,d] += H[b,f] * V[f,d]"]\n'
    )
    asked = ("equal.yaml", "edge_array")
    found = json.loads(good("compare", *asked, "unfused", "fused", "--format", "json", folder=home))
    assert sorted(one["einsums"] for one in found["einsums"]) == [["H"], ["Y"]]
    moved = found["traffic"]
    for name, letter in (("unfused", "a"), ("fused", "b")):
        options = ("--set", f"solver.schedule={name}", "--format", "json")
        alone = json.loads(good("map", *asked, *options, folder=home))
        energies = [one[f"energy_pj_{letter}"] for one in found["einsums"]]
        assert sum(energies) == pytest.approx(alone["energy_pj"])
        assert max(energies) < 0.6 * alone["energy_pj"]
        by_component = [one[f"energy_pj_{letter}"] for one in found["components"]]
        assert sum(by_component) == pytest.approx(alone["energy_pj"])
        dram = sum(one[f"moved_bytes_{letter}"] for one in moved if one["level"] == "DRAM")
        assert dram == sum(one["occurrences"] * one["main_memory_bytes"] for one in alone["einsums"])
        assert [one["names"] for one in alone["einsums"]] == (
            [["H", "Y"]] if name == "unfused" else [["H"], ["Y"]]
        )
    shown = good("map", *asked, "--einsum", "Y", folder=home)
    assert re.search(r"^H, Y +2 ", shown, re.MULTILINE)
    assert "Y: Y[b,d] += H[b,f] * V[f,d]" in shown
    assert re.search(r"^DRAM +V +read ", shown, re.MULTILINE)
    assert not re.search(r"^(DRAM|REGF) +[WX] ", shown, re.MULTILINE)
    [layer] = json.loads(good("check", "equal.yaml", "--format", "json", folder=home))["files"][0]["layers"]
    assert (layer["einsum"], layer["weights"], layer["inputs"]) == ("H, Y", 64 * 64, 3 * 64 * 64)
    assert layer["einsums"] == ["H", "Y"]


class Typed(io.StringIO):
    """What somebody types at a terminal."""

    def isatty(self) -> bool:
        return True


def typed_at_a_terminal(monkeypatch: pytest.MonkeyPatch, lines: Sequence[str]) -> None:
    monkeypatch.setattr(sys, "stdin", Typed("\n".join(lines)))
    monkeypatch.setattr(prompt, "_edit_lines", lambda _words: None)


def test_a_pipe_of_statements_gets_their_rows_alone(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("SELECT 1 AS one;\nSELECT 2 AS two;"))
    assert good("sql", "run", "--format", "csv", folder=home).split() == ["one", "1", "two", "2"]


def test_the_prompt_knows_its_views(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    typed = (
        *(".help", ".tables", ".schema points", ".schema", ".schema pointz", ".foo", ".rows x"),
        *(
            "SELECT range AS a",
            "FROM range(50)",
            ".rows 3",
            "",
            "SELECT range AS b",
            "FROM range(5);",
            ".rows 0",
        ),
        *("SELECT range AS c FROM range(50)", "", ".quit", "SELECT 77 AS unseen"),
    )
    typed_at_a_terminal(monkeypatch, typed)
    said = good("sql", "run", folder=home)
    assert said.count("...> ") == 4
    help_, tables, points, every, *faults = said.replace("...> ", "").split("dse> ")[1:]
    assert all(word in help_ for word in (".tables", ".schema [VIEW]", ".rows N", ".quit", "LIMIT"))
    assert not re.search("^_", tables, re.MULTILINE)
    views = [line.split()[0] for line in tables.splitlines()[2:] if line]
    assert views == [*dict.fromkeys(line.split()[0] for line in every.splitlines()[2:] if line)]
    assert set(prompt.ROW_IS) == set(views)
    assert re.search(r"points +energy_pj +double +pJ +energy, leakage included", points)
    assert "machines " not in points
    assert faults[0].startswith("pointz: no such view; there are choices, ")
    assert faults[1] == ".foo: no such command; .help lists them\n"
    assert faults[2] == ".rows N: give a number of rows; 0: all\n"
    assert faults[3].endswith("40 rows of 50; .rows 0 shows the other 10\n")
    assert faults[5].endswith("3 rows of 5; .rows 0 shows the other 2\n")
    assert faults[7].endswith("50 rows\n")
    assert "unseen" not in said


def test_json_has_an_einsum_in_full_where_it_is_asked(tmp_path: Path) -> None:
    command = ("map", "mlp_s:batch=4", "edge_array", "--format", "json")
    plain, every = (
        json.loads(good(*command, *asked, folder=tmp_path))["einsums"] for asked in ((), ("--einsum", "all"))
    )
    name = plain[-1]["name"]
    *_, last = json.loads(good(*command, "--einsum", name, folder=tmp_path))["einsums"]
    full = {"traffic", "footprint", "busy"}
    assert [full & row.keys() for row in (*plain, *every, last)] == [set()] * len(plain) + [full] * (
        len(every) + 1
    )
    assert last == every[-1]
    for row in every:
        *parts, total = row["traffic"]
        assert sum(one["energy_pj"] for one in parts) == pytest.approx(row["energy_pj"])
        assert total["energy_pj"] == row["energy_pj"]
        assert max(one["busy_cycles"] for one in row["busy"]) <= row["latency_cycles"]
        assert all(one["share_used"] <= 1 for one in row["footprint"] if one["tensor"] == "all")


def test_every_column_of_every_view_has_a_meaning(home: Path) -> None:
    """`.schema` says it, and `dse list columns` lists all views with all columns that no study names."""
    run = runs.open(home / "run")
    _, columns = prompt._views(run.sql)
    rows = [*prompt._schema([one["table_name"] for one in columns], columns, run.study)]
    assert len(rows) == len(columns)
    assert not [row for row in rows if not row[-1]]
    units = {(view, name): unit for view, name, _, unit, _ in rows}
    assert (units["traffic", "bytes"], units["designs", "gbuf_capacity"]) == ("B", "B")
    own = {(view, name) for view in prompt.ROW_IS for name in studies.columns(run.study, view)}
    listed = json.loads(good("list", "columns", "--format", "json", folder=home))
    named = {(one["table"], one["column"]) for one in listed if ", ..." not in one["column"]}
    there = {(view, name) for view, name, *_ in rows if not name.startswith("workload_")}
    assert named == there - own
    # what costs are of
    of = {(one["table"], one["column"]): one["meaning"] for one in listed}
    assert of["einsums", "macs"].endswith("; of one occurrence")
    assert of["workload_costs", "macs"].endswith("; of one run of the workload")
    assert "all occurrences" in of["traffic", "elems"]
    assert of["designs", "einsum"] == of["machines", "einsum"]


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        (
            "SELECT * FROM traffic WHERE level = 'Dram'",
            "no row of traffic has level = 'Dram'; there are 'DRAM', ",
        ),
        (
            "SELECT sum(bytes) FROM traffic WHERE action = 'raed'",
            "no row of traffic has action = 'raed'; there are",
        ),
        ("FROM einsums WHERE machine = 999999", "machine 999999 is not in this run"),
        ("designs", "; write FROM designs"),
        (
            "SELECT schedule FROM einsums JOIN traffic USING (machine)",
            "; rows of einsums and traffic meet by USING (machine, schedule, workload, einsum)",
        ),
        (
            "SELECT energy_pj FROM einsums JOIN designs USING (machine)",
            "; rows of einsums and designs meet by USING (machine, schedule)",
        ),
        (
            "FROM sensitivity('designs', 'energy_pj', 'node_nm')",
            '"node_nm": no such column; the axes are array_x',
        ),
        ("FROM hypervolume('designs', ['energy_pj', 'area_mm2'], [1, 1])", "1 pJ, 1 mm2"),
        ("FROM knee('designs', ['energy_pj', '-energy_pj'])", 'knee: objective "energy_pj" is given twice'),
        (
            "SELECT energypj FROM what_if({dram_pj: 0.5}, machines := [148])",
            "energypj: no such column; did you mean energy_pj?",
        ),
    ],
)
def test_what_a_statement_lacks_is_said(home: Path, statement: str, told: str) -> None:
    said = dse("sql", "run", statement, folder=home)
    assert told in said.stdout + said.stderr


def test_answers_in_python_say_what_they_have(home: Path) -> None:
    run = runs.open(home / "run")
    front = run.front("energy_pj, area_mm2")
    assert [*front] == [*run.front(["energy_pj", "area_mm2"])]
    assert front[0]["area"] == front[0]["area_mm2"]
    for ask, fault, told in (
        (lambda: run.front(epsilon="5%"), ValueError, "epsilon = '5%': give a share, such as 0.05 for 5 %"),
        (lambda: run.front(epsilon=5), ValueError, "a share from 0 to 1"),
        (lambda: run.robust({"dram_pj": 0.2}, samples="x"), ValueError, "samples = 'x': give a whole number"),
        (lambda: run.what_if({"dram_pj": "x"}), ValueError, "dram_pj = 'x': give a number, such as 0.5"),
        (
            lambda: run.what_if({"dram_pj": 1.0}, machines=7),
            ValueError,
            "machines = 7: give a list of numbers",
        ),
        (lambda: front[99], IndexError, f"row 99: the answer has {len(front)} rows, from 0 on"),
        (
            lambda: front.to_pandas(),
            AttributeError,
            "there are .frame() (a pandas data frame), .table (Arrow)",
        ),
        (lambda: front[0]["latency"], KeyError, "latency is one of latency_"),
    ):
        with pytest.raises(fault, match=re.escape(told)):
            ask()
    one, other, *_ = [row["machine"] for row in run.sql("FROM points")]
    costs = {row["metric"]: row for row in compare(run, one, other)["machines"]}
    (want,) = run.sql(f"FROM points WHERE machine = {one}")
    assert costs["energy_pj"]["a"] == want["energy_pj"]
    assert compare(run, runs.open(home / "run"))["objectives"]


def test_the_prompt_knows_its_macros(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an example of each; a front alone has the columns of `dse pareto`, also of several runs, and many
    values of `sensitivity` are ranges: .rows 0 undoes both.
    """
    front = "FROM pareto('designs', ['energy_pj', 'latency_ns'])"
    values = "FROM sensitivity('(SELECT range AS v, range + 1.0 AS e FROM range(99))', 'e', 'v', ['e'])"
    typed = (
        ".macros",
        ".schema knee points",
        ".schema kne",
        f"{front};",
        f"{values};",
        ".rows 0",
        f"{front};",
        f"{values};",
        ".quit",
    )
    typed_at_a_terminal(monkeypatch, typed)
    said = good("sql", "run", folder=home).split("dse> ")[1:]
    assert [line.split("(")[0] for line in said[0].splitlines()[2:] if line] == [
        f"FROM {m}" for m in db.RETURNS
    ]
    assert f"FROM {db.example('knee')}\n" in said[1]
    assert "knee   may have  grp := ['dram_kind']\n" in said[1]
    assert "points  energy_pj" in said[1]
    assert "kne: no such view; there are choices" in said[2]
    assert "more columns: SELECT * FROM pareto(...), or .rows 0" in said[3]
    assert ["certificate" in said[i].splitlines()[0] for i in (3, 6)] == [False, True]
    assert re.search(r"99 values in \d+ ranges; .rows 0 shows each value", said[4])
    assert "99 rows" in said[7]
    shutil.copytree(home / "run", home / "again")
    both = good("sql", "run", "--with", "again", front, folder=home)
    assert both.split()[:3] == ["machine", "run", "energy_pj"]
    assert "certificate" not in both


def test_two_machines_compared(home: Path) -> None:
    (home / "fast.yaml").write_text(
        find("edge_array").read_text().replace("clock_mhz: 500", "clock_mhz: 1000")
    )
    found = json.loads(good("compare", "edge_array", "fast.yaml", "--format", "json", folder=home))
    totals, differing = found.values()
    changes = {one["metric"]: one["change"] for one in totals}
    assert changes == dict.fromkeys(changes) | {"clock_ghz": 1.0, "peak_tops": 1.0}
    assert {"field": "clock_mhz", "a": 500.0, "b": 1000.0, "change": 1.0} in differing
    assert not any(one["field"].endswith("_pj") for one in differing)
    assert "no field differs" in good("compare", "edge_array", "edge_array", folder=home)
    other = good("compare", "edge_array", "nvdla", folder=home)
    assert re.search(r"^gbuf +there +absent$", other, re.MULTILINE)
    assert re.search(r"^mac\.mac_pj +196\.2 fJ +301\.3 fJ +\+53\.5 %$", other, re.MULTILINE)
    assert dse("compare", "edge_array", "run", folder=home).returncode == 2


def test_runs_of_other_work_are_said_and_no_run_counts_twice(home: Path) -> None:
    other = ["--workers", "0", "--out", "other", "--set", 'workloads=["gemm:m=8,n=8,k=8"]']
    good("run", "small.yaml", *other, "--set", "stop.machines=2", folder=home)
    said = dse("compare", "run", "other", folder=home)
    assert said.returncode == 0
    assert said.stderr.startswith(
        "warning: the runs solve different workloads (gemm:m=64,n=32,k=48 and gemm:m=8"
    )
    for command in (["sql", "run", "--with", "./run", "SELECT 1"], ["report", "run", "--with", "run"]):
        wrong = dse(*command, folder=home)
        assert (wrong.returncode, wrong.stdout) == (2, "")
        assert wrong.stderr == f"{command[3]}: this run is given twice; name each run once\n"


def test_commands_of_the_prompt_are_statements_too(home: Path) -> None:
    assert ".schema [VIEW]" in good("sql", "run", ".help", folder=home)
    assert "designs" in good("sql", "run", ".tables;", folder=home)
    assert re.search(r"points +energy_pj +double", good("sql", "run", " .schema points", folder=home))
    for command, line in (
        (".foo", ".foo: no such command; .help lists them\n"),
        (".rows 3", ".rows: is for the prompt (dse sql DIR); here --all shows all rows\n"),
    ):
        wrong = dse("sql", "run", command, folder=home)
        assert (wrong.returncode, wrong.stdout, wrong.stderr) == (2, "", line)


def test_the_prompt_completes_names_and_keeps_its_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[Callable[[], None]] = []
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr("atexit.register", kept.append)
    prompt._edit_lines(["designs", "dram_kind", "SELECT", ".schema"])
    complete = readline.get_completer()
    assert [complete("d", i) for i in range(3)] == ["designs", "dram_kind", None]
    assert complete("sel", 0) == "SELECT"
    assert complete(".s", 0) == ".schema"
    readline.add_history("FROM designs")
    kept[0]()
    assert "FROM designs" in (tmp_path / "dse/sql_history").read_text()


def test_the_prompt_goes_on_after_a_statement_that_takes_too_long(home: Path) -> None:
    """Also one that DuckDB cannot interrupt, whose connection stays busy."""
    long = "SELECT levenshtein(repeat('a', 1000000), repeat('b', 1000000))"
    asked = subprocess.run(
        [DSE, "sql", "run", "--timeout", "1.5"],
        cwd=home,
        input=f"{long};\nSELECT 7 * 6 AS x\n\n",
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (asked.returncode, asked.stderr) == (1, "stopped after 1.5 s; --timeout gives it more\n")
    assert re.fullmatch(r" *x\n─+\n *42\n\n1 row\n", asked.stdout), asked.stdout


def test_show_best_an_index_and_a_schedule(home: Path) -> None:
    front = json.loads(good("pareto", "run", "--format", "json", folder=home))
    best = good("show", "run", "best", folder=home)
    assert f"{quantity('energy_pj', front[0]['energy_pj'])}" in best
    assert "store DRAM" in best
    assert "traffic per occurrence" in best
    first, rest = best.split("\n", 1)
    assert first.startswith(f"best: machine {front[0]['machine']}, lowest energy of all feasible machines")
    for point in (str(front[0]["machine"]), f"{front[0]['machine']}.0"):
        assert good("show", "run", point, folder=home).split("\n", 1)[1] == rest
    fastest = good("show", "run", "best:latency_ns", folder=home)
    assert "lowest latency" in fastest.split("\n")[0]
    assert good("show", "run", "5", "--einsum", "gemm", folder=home) == good("show", "run", "5", folder=home)


def test_an_einsum_that_is_not_there_is_refused_before_anything_is_solved(home: Path) -> None:
    """A network that takes minutes."""
    said = dse("map", "llama70b:phase=prefill,context=2048", "datacenter", "--einsum", "nope", folder=home)
    assert (said.returncode, said.stdout) == (2, "")
    refused = said.stderr.splitlines()[-1]  # a slow machine shows its progress before
    assert refused.startswith("--einsum nope: llama70b:phase=prefill,context=2048 has no such einsum; ")


WEIGHED = """
name: weighed
workloads: [{workload: "gemm:m=8,n=8,k=8", name: p}, {workload: "gemm:m=4,n=4,k=4", name: q, weight: 3}]
machine: edge_array
space: {array.x: [2]}
constraints: ["latency_ns[q] <= 1"]
objectives: [energy_pj]
search: {method: exhaustive}
"""


def test_show_adds_workloads_up_and_names_broken_constraints(home: Path) -> None:
    (home / "weighed.yaml").write_text(WEIGHED)
    good("run", "weighed.yaml", "--workers", "0", "--out", "weighed", folder=home)
    told = json.loads(good("show", "weighed", "0", "--format", "json", folder=home))
    p, q = (found["energy_pj"] for found in told["workloads"].values())
    assert told["energy_pj"] == pytest.approx(p + 3 * q)
    assert told["cost_of"] == "p + 3 x q"
    (broken,) = told["broken_constraints"]
    assert broken.startswith("latency_ns[q] <= 1 (by ")
    shown = good("show", "weighed", "0", folder=home)
    assert re.search(r"broken constraints +latency_ns\[q\] <= 1 \(by [\d.]+ [un]s\)", shown)
    assert quantity("energy_pj", told["energy_pj"]) in shown


def test_an_infeasible_machine_names_level_need_have_and_einsum(home: Path) -> None:
    (home / "tight.yaml").write_text(TIGHT)
    good("run", "tight.yaml", "--workers", "0", "--out", "tight", folder=home)
    table = json.loads(
        good("sql", "tight", "FROM machines ORDER BY machine", "--format", "json", folder=home)
    )
    lacking = [row for row in table if row["status"] == "infeasible"]
    assert len(table) == 8
    assert len(lacking) == 6
    for row in lacking:
        assert (row["limit_level"], row["need_bytes"], row["einsum"]) == (
            "GLB" if row["glb_capacity"] < 3 else "RF",
            3,
            "gemm",
        )
        assert row["have_bytes"] == row["glb_capacity" if row["glb_capacity"] < 3 else "rf_capacity"]
        assert all(
            part in row["reason"]
            for part in ("gemm", row["limit_level"], str(row["need_bytes"]), str(row["have_bytes"]))
        )
    shown = good("show", "tight", str(lacking[0]["machine"]), folder=home)
    assert lacking[0]["reason"] in shown
    assert "infeasible" in shown
    said = dse("map", "gemm:m=64,n=32,k=48", "a3nb", "--set", "rf.capacity=2 B", folder=home)
    assert said.returncode == 1
    assert said.stdout == "infeasible: gemm: RF needs 3 bytes, has 2\n"


def test_a_front_in_sql_shows_the_columns_of_dse_pareto(home: Path) -> None:
    asked = "FROM pareto('designs', ['energy_pj', 'latency_ns', 'area_mm2'])"
    shown = good("sql", "run", asked, folder=home)
    first = good("pareto", "run", "--where", "true", folder=home)
    machines = [re.findall(r"^ *(\d+)  ", text, re.MULTILINE) for text in (shown, first)]
    assert machines[0] == machines[1] != []
    assert "latency_cycles" not in shown
    assert "more columns" in shown
    for whole in (("sql", "run", asked, "--all"), ("sql", "run", f"SELECT * {asked}")):
        assert "latency_cycles" in good(*whole, folder=home)


def test_many_values_of_a_parameter_are_shown_in_ranges(home: Path) -> None:
    asked = (
        "FROM sensitivity('(SELECT i AS clock_mhz, exp(i) AS e, 1 AS g FROM range(100, 200) t(i))', 'e', "
        "'clock_mhz', ['g'])"
    )
    shown = good("sql", "run", asked, folder=home)
    assert "100 values in 8 ranges" in shown
    low, high = math.exp(106 - 149.5), math.exp(193 - 149.5)  # the middles of the first and the last range
    found = re.findall(r"^(100 to 112|187 to 199) MHz +13 +13 +(\S+)$", shown, re.MULTILINE)
    assert [float(value) for _, value in found] == pytest.approx([low, high], rel=1e-3)
    assert len(good("sql", "run", asked, "--all", folder=home).splitlines()) > 100


def test_a_knee_names_the_rule_and_points_of_equal_sum(home: Path) -> None:
    """Of a front of two points in two objectives both sums are 1."""
    asked = ["energy_pj", "latency_ns"]
    run = runs.open(home / "run")
    two = run.front(asked, distinct=True).table["machine"].to_pylist()[:2]
    where = f"machine IN ({two[0]}, {two[1]})"
    said = good("pareto", "run", "--objectives", ",".join(asked), "--knee", "--where", where, folder=home)
    assert f"to 1 (worst); {two[1]} has the same sum: of such the one" in said


def test_a_long_axis_has_a_step_that_can_be_seen() -> None:
    from dse.frontend.runs import _steps

    assert _steps(range(16), 5) == [4, 6]
    assert _steps(range(447), 446) == [419, 445]
    assert _steps(range(447), 100) == [73, 99, 101, 127]
    assert _steps(["a", "b", "c"], "b") == ["a", "c"]


def test_rows_of_a_front_that_their_gaps_may_exchange_are_named() -> None:
    """Of the rows, the first two are near in energy and latency, the last two in energy alone."""
    front = pa.table(
        {
            "machine": [7, 8, 9, 10],
            "schedule": [0, 1, 0, 0],
            "energy_pj": [100.0, 104.0, 200.0, 205.0],
            "latency_ns": [52.0, 50.0, 30.0, 20.0],
            "area_mm2": [1.0, 1.0, 1.0, 1.0],
            "dram_kind": ["a", "b", "a", "a"],
            "optimality_gap": [0.0, 0.05, 0.05, 0.05],
        }
    )
    objectives = ["energy_pj", "latency_ns", "area_mm2"]
    assert _close_line(front, [], objectives).startswith("7 and 8.1 are not separated: ")
    assert _close_line(front, [], ["energy_pj"]).startswith("7 and 8.1, 9 and 10 are not separated: ")
    assert _close_line(front, ["dram_kind"], objectives) == ""
    areas = front.set_column(4, "area_mm2", pa.array([1.0, 1.01, 1.0, 1.0]))
    assert _close_line(areas, [], objectives) == ""
    assert _close_line(front.slice(0, 0), [], objectives) == ""
    many = pa.concat_tables([front.slice(0, 2)] * 2)
    assert "7 and 8.1, 7 and 8.1, 8.1 and 7 and 1 more pair are not" in _close_line(many, [], ["energy_pj"])


def test_a_share_in_percent_is_pointed_at_its_number(home: Path) -> None:
    said = dse("pareto", "run", "--epsilon", "5%", folder=home)
    assert said.returncode == 2
    assert "--epsilon: 5% is no share; write 0.05" in said.stderr


GEMM, NO_ROOM = "gemm:m=4,n=2,k=4", ("--set", "rf.capacity=1 B")
ENDS: list[tuple[int, tuple[str, ...]]] = [
    (0, ("list", "columns")),
    (0, ("status", "run")),
    (1, ("map", GEMM, "a3nb", *NO_ROOM)),
    (1, ("map", GEMM, "a3nb", *NO_ROOM, "--format", "json")),
    (1, ("map", GEMM, "a3nb", *NO_ROOM, "--front")),
    (1, ("plot", GEMM, "a3nb", "nest", *NO_ROOM)),
    (1, ("status", "damaged")),
    (1, ("sql", "run", "SELECT count(*) FROM range(1000000) a, range(1000000) b", "--timeout", "0.1")),
    (2, ()),
    (2, ("mapp",)),
    (2, ("list", "things")),
    (2, ("map", "gem", "a3nb")),
    (2, ("map", GEMM, "a4nb")),
    (2, ("map", GEMM, "a3nb", "--set", "rf.size=1 B")),
    (2, ("status", "nowhere")),
    (2, ("sql", "run", "SELEC 1")),
    (2, ("show", "run", "77777")),
]


@pytest.mark.parametrize(
    ("code", "command"), ENDS, ids=lambda one: " ".join(one) if isinstance(one, tuple) else str(one)
)
def test_every_exit_code_has_one_meaning(code: int, command: tuple[str, ...], home: Path) -> None:
    if "damaged" in command:
        shutil.copytree(home / "run", home / "damaged")
        (home / "damaged/manifest.json").write_text("{}")
    said = dse(*command, folder=home)
    assert said.returncode == code, said.stderr
    assert "Traceback" not in said.stderr


@pytest.mark.parametrize(
    ("command", "advice"),
    [
        ("pareto run --by foo", "the nearest of 36 are"),
        ("pareto run --by sourc", "did you mean source?"),
        ("pareto run --objectives foo", "there are energy_pj, "),
        ("map foo edge_array", "the nearest of 73 are "),
        ("map resnet50 edge_array --einsum foo", "the nearest of 74 are pool5, pool1, fc, "),
        ("map resnet50 edge_array --einsum conv_1", "did you mean conv1?"),
        ("show run best --einsum gem", "did you mean gemm?"),
    ],
)
def test_an_unknown_name_is_answered_by_the_nearest(command: str, advice: str, home: Path) -> None:
    said = dse(*command.split(), folder=home)
    assert said.returncode == 2
    assert advice in said.stderr
    assert len(said.stderr) < 300, said.stderr


def test_exit_codes_stand_in_one_table() -> None:
    table = re.findall(r"^\| (\d+) \| (.*) \|$", (ROOT / "docs/reliability.md").read_text(), re.MULTILINE)
    assert {int(code): meaning for code, meaning in table} == EXIT_CODES
    assert {code for code, _ in ENDS} < EXIT_CODES.keys()


@pytest.mark.parametrize("mapper", ["cost_descending", "optimal"])
def test_map_and_simulate_agree_bit_for_bit(home: Path, mapper: str) -> None:
    """In all that a mapping costs; what optimal has proven of it, simulate cannot know."""
    for workload, machine in (
        ("gemm:m=64,n=32,k=48", "edge_array"),
        ("conv:k=16,c=8,p=14,q=14,r=3,s=3,pad=1", "a3"),
    ):
        asked = ("map", workload, machine, "--set", f"solver.mapper={mapper}", "--format")
        solved = json.loads(good(*asked, "json", folder=home))
        (home / "nest.yaml").write_text(good(*asked, "yaml", folder=home))
        (home / "nest.txt").write_text(solved["einsums"][0]["mapping"] + "\n")
        for name in ("nest.yaml", "nest.txt"):
            costed = json.loads(good("simulate", workload, machine, name, "--format", "json", folder=home))
            [own], [other] = solved["einsums"], costed["einsums"]
            assert own["gap_to_bound"] == other["gap_to_bound"]
            assert own["optimality_gap"] == (other["optimality_gap"] if mapper == "cost_descending" else 0)
            told = {"optimality_gap": 0, "certificate": "", "space": None}
            plain, again = (
                {**found, **told, "einsums": {**one, **told}}
                for found, one in ((solved, own), (costed, other))
            )
            assert plain == again
        assert solved["einsums"][0]["mapping"] in good(*asked, "text", folder=home)
        assert {
            "energy_pj",
            "latency_cycles",
            "latency_ns",
            "initiation_interval_cycles",
            "energy_steady_pj",
            "edp_pj_ns",
            "area_mm2",
            "tops",
            "tops_per_w",
            "macs_per_byte",
            "share_of_peak",
            "components",
            "status",
            "optimality_gap",
            "gap_to_bound",
            "certificate",
            "space",
            "einsums",
        } == set(solved)


def test_map_takes_machine_fields_and_objectives(home: Path) -> None:
    small, fast = (
        json.loads(good("map", "gemm:m=64,n=32,k=48", "edge_array", *more, "--format", "json", folder=home))
        for more in (("--set", "gbuf.capacity=4 KiB"), ("--objective", "latency"))
    )
    plain = json.loads(good("map", "gemm:m=64,n=32,k=48", "edge_array", "--format", "json", folder=home))
    assert small["area_mm2"] < plain["area_mm2"]
    assert fast["latency_cycles"] <= plain["latency_cycles"]


def test_a_point_of_a_run_is_what_map_finds(home: Path) -> None:
    (row,) = rows(
        home,
        "SELECT energy_pj, latency_ns FROM points JOIN machines USING (machine) WHERE array_x = 4 AND "
        "gbuf_capacity = 8192 AND dram_kind = 'lpddr5'",
    )
    sets = [
        part for key in ("array.x=4", "gbuf.capacity=8 KiB", "dram.kind=lpddr5") for part in ("--set", key)
    ]
    found = json.loads(
        good("map", "gemm:m=64,n=32,k=48", "edge_array", *sets, "--format", "json", folder=home)
    )
    assert row == {key: found[key] for key in row}


@pytest.mark.parametrize(
    ("what", "named"),
    [
        ("workloads", "resnet50"),
        ("machines", "edge_array"),
        ("solvers", "cost_descending"),
        ("columns", "bottleneck"),
        ("columns", "violation_"),
    ],
)
def test_list(what: str, named: str, tmp_path: Path) -> None:
    assert named in good("list", what, folder=tmp_path)


def test_list_without_a_word_names_the_words(tmp_path: Path) -> None:
    """Each of them is one, and there are no others."""
    words = [row["what"] for row in json.loads(good("list", "--format", "json", folder=tmp_path))]
    wrong = dse("list", "things", folder=tmp_path)
    assert wrong.returncode == 2
    assert f"use one of {', '.join(words)};" in wrong.stderr


def test_weights_are_what_the_file_names_wherever_they_stand(tmp_path: Path) -> None:
    """First or second operand; two activations have none; a file that names none is noted."""
    texts = ("Q[q,d] += WQ[e,d] * X[q,e]", "S[q,c] += Q[q,d] * K[c,d]", "O[q,d] += S[q,c] * V[c,d]")
    path = tmp_path / "attention.yaml"
    rows = []
    for weights in ("weights: [WQ]", ""):
        path.write_text(f"extents: {{q: 4, c: 6, d: 8, e: 2}}\neinsums: {json.dumps([*texts])}\n{weights}\n")
        line, layers = check.file(str(path))
        rows.append([(layer.weights, layer.inputs) for layer in layers])
        assert ("names no weights" in line) == (not weights)
        inputs = "X (read by Q), K (read by S), V (read by O)"
        assert f"no einsum writes: {'' if weights else 'WQ (read by Q), '}{inputs}" in line
    assert rows == [[(16, 8), (0, 80), (0, 72)], [(0, 24), (0, 80), (0, 72)]]


def test_check_of_good_files(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(STUDY)
    (tmp_path / "ffn.yaml").write_text(
        'extents: {m: 4, n: 2, k: 3}\neinsums: ["C[m,n] += A[m,k] * B[k,n]"]\n'
    )
    own = [str(ROOT / "hw/machines/edge_array.yaml"), str(ROOT / "studies/edge_cnn.yaml")]
    lines = good("check", "small.yaml", "ffn.yaml", *own, folder=tmp_path).splitlines()
    said = [line for line in lines if ": " in line and not line.startswith("note: ")]
    # the layer table of the workload
    assert any(re.search(r"C +1 +mac +m=4 n=2 k=3 +24", line) for line in lines)
    assert [line.split(": ", 1)[1].split(",")[0] for line in said] == [
        "study small",
        "workload ffn",
        "A (read by C)",
        "machine edge_array",
        "2 lpddr4 channels",
        "no vdd is given",
        "study edge-cnn",
    ]
    assert "27 machines" in said[0]
    assert "24 MACs" in said[1]
    shrunk = good("check", "edge_array", "--set", "gbuf.capacity=96 KiB", folder=tmp_path)
    assert re.search(r"^GBUF .* 96 KiB", shrunk, re.MULTILINE)
    for name, fault in (
        ("edge_array", "gbuf.capacty"),
        ("small.yaml", "stop.machine"),
        ("gemm", "gbuf.capacity"),
    ):
        wrong = dse("check", name, "--set", f"{fault}=64", folder=tmp_path)
        assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
        assert fault in wrong.stderr


@pytest.mark.parametrize(("clocks", "looked_at"), [(2, "8 of all 12"), (100, r"1\d\d of a sample of 256")])
def test_check_of_a_study_names_machines_that_cannot_be_built(
    tmp_path: Path, clocks: int, looked_at: str
) -> None:
    (tmp_path / "study.yaml").write_text(
        "name: s\nworkloads: ['gemm:m=8,n=8,k=8']\nmachine: edge_array\nobjectives: [energy_pj]\n"
        "space: {array.x: [2, 4], regf.capacity: [8 B, 16 B, 256 B], "
        f"clock_mhz: {[*range(100, 100 + clocks)]}}}\n"
    )
    said = good("check", "study.yaml", folder=tmp_path)
    assert re.search(f"warning: {looked_at} machines cannot be built, most often: regf.capacity = ", said)


def test_dry_run_starts_nothing(home: Path) -> None:
    facts = good("run", "small.yaml", "--out", "dry", "--dry-run", folder=home)
    assert re.search(rf"machines in space\s+{SIZE}\b", facts)
    assert not (home / "dry").exists()


@pytest.mark.parametrize("command", EXAMPLES)
def test_help_has_an_example(command: str, tmp_path: Path) -> None:
    said = " ".join(good(command, "--help", folder=tmp_path).split())
    assert f"example: {' '.join(EXAMPLES[command].split())}" in said
    assert command in good("--help", folder=tmp_path)


@pytest.mark.parametrize(
    "command",
    some(
        [
            "sql run 'FROM range(100000)' --format csv",
            "list columns",
            "show run best",
            "pareto run --format json",
            "run small.yaml --out piped --workers 0 2>&1",
        ],
        0,
        1,
        4,
    ),
)
def test_a_closed_pipe_is_no_traceback(home: Path, command: str) -> None:
    said = subprocess.run(
        f"'{DSE}' {command} | head -c 1", shell=True, cwd=home, capture_output=True, text=True, timeout=300
    )
    assert said.stderr == ""
    assert len(said.stdout) == 1


# the command, its commits a second apart
SOON = """
import sys
from cluster import driver
from dse.frontend.cli import main
driver.COMMIT_S = 1.0
sys.exit(main())
"""


def start(
    folder: Path, *command: str, program: tuple[str, ...] = (DSE,), **env: str
) -> subprocess.Popen[str]:
    """As from a terminal: what runs in the background of a shell ignores Ctrl-C, and so would its
    children."""
    return subprocess.Popen(
        [*program, *command],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **env},
        start_new_session=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )


def wait_for(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 300
    while not true():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.1)


def test_questions_while_a_run_goes_on_and_ctrl_c(tmp_path: Path) -> None:
    (tmp_path / "long.yaml").write_text(LONG)
    command, manifest = ("run", "long.yaml", "--workers", "0", "--out", "run"), tmp_path / "run/manifest.json"
    child = start(tmp_path, *command, program=(sys.executable, "-c", SOON))
    try:
        # points may be written before they are published
        wait_for(lambda: manifest.exists() and '"points"' in manifest.read_text())
        assert child.poll() is None, "the run was over before the question"
        assert json.loads(good("status", "run", "--format", "json", folder=tmp_path))["state"] == "running"
        first = rows(tmp_path, "SELECT count(*) AS n, min(energy_pj) AS e FROM points")[0]
        assert 0 < first["n"] < LONG_SIZE
        assert first["e"] > 0
        assert good("pareto", "run", folder=tmp_path)
        assert child.poll() is None, "the run was over before the last answer"
        os.killpg(child.pid, signal.SIGINT)
        said, heard = child.communicate(timeout=300)
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
    assert child.returncode == 130
    assert "interrupted" in said
    assert "Traceback" not in said + heard
    assert re.search(r"interrupted; finishing \d+ machines?; again to stop now", heard)
    kept = rows(tmp_path, "SELECT count(*) AS n FROM points")[0]["n"]
    assert first["n"] <= kept < LONG_SIZE
    assert f"{kept + 1} in all" in good(
        "run",
        "long.yaml",
        "--out",
        "run",
        "--workers",
        "0",
        "--set",
        f"stop.machines={kept + 1}",
        folder=tmp_path,
    )


def test_status_of_a_killed_run(tmp_path: Path) -> None:
    (tmp_path / "long.yaml").write_text(LONG)
    child = start(tmp_path, "run", "long.yaml", "--workers", "0", "--out", "run")
    wait_for(lambda: (folder.status(tmp_path / "run", "") or {}).get("done", 0) > 0)
    facts = json.loads(good("status", "run", "--format", "json", folder=tmp_path))
    assert facts["state"] == "running"
    assert 0 <= facts["last_sign_of_life_s"] < 60
    study = facts["study"]
    assert (study["name"], prod(study["axes"].values()), study["machines"]) == ("long", LONG_SIZE, LONG_SIZE)
    assert f"{len(study['axes'])} axes (" in good("status", "run", folder=tmp_path)
    os.killpg(child.pid, signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # killed, and still a zombie
    facts = json.loads(good("status", "run", "--format", "json", folder=tmp_path))
    child.communicate()
    assert facts["state"] == "killed"
    assert "dse resume" in facts["reason"]
    committed = sum(group.parts[0].rows for group in folder.read(tmp_path / "run").groups)
    assert facts["done"] == facts["ok"] + facts["infeasible"] + facts["pruned"] + facts["error"] == committed
    assert (facts["uncommitted"] > 0) == (f"solves {facts['uncommitted']} again" in facts["reason"])
    assert facts["done"] + facts["uncommitted"] > 0


def interrupted(child: subprocess.Popen[str]) -> None:
    """Presses Ctrl-C, and again while nothing happens: an import in the midst of a statement swallows it."""
    while child.poll() is None:
        os.killpg(child.pid, signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            child.wait(20)
    said, heard = child.communicate()
    assert (child.returncode, said, heard.splitlines()[-1]) == (130, "", "interrupted")


def test_ctrl_c_in_a_statement_is_130(home: Path, tmp_path: Path) -> None:
    asked = "SELECT count(*) FROM range(1000000) a, range(1000000) b"
    child = start(home, "sql", "run", asked, TMPDIR=str(tmp_path))
    # past its imports: what they are interrupted in may swallow it
    wait_for(lambda: any(tmp_path.glob("dse-sql-*")))
    interrupted(child)


def test_what_a_killed_command_leaves_among_temporary_files_the_next_one_removes(
    home: Path, tmp_path: Path
) -> None:
    """Also what it has spilled."""
    asked = "SELECT max(a) FROM (SELECT row_number() OVER (ORDER BY hash(range)) AS a FROM range(90000000))"
    child = start(home, "sql", "run", asked, "--memory", "150MB", TMPDIR=str(tmp_path))
    wait_for(lambda: any(tmp_path.glob("dse-sql-*/spill/*")))
    os.killpg(child.pid, signal.SIGKILL)
    child.communicate()
    assert any(tmp_path.glob("dse-sql-*/spill/*"))
    start(home, "sql", "run", "SELECT 1", TMPDIR=str(tmp_path)).communicate()
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("of", [RuntimeError(db.INTERRUPTED[0]), duckdb.Error(db.INTERRUPTED[1])])
def test_ctrl_c_in_a_question_of_our_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], of: Exception
) -> None:
    """DuckDB makes an error of a Ctrl-C that comes while the main thread asks."""

    def ask(*_: object) -> int:
        raise of

    with pytest.raises(KeyboardInterrupt), db.as_query_error():
        ask()
    monkeypatch.setitem(COMMANDS, "list", ask)
    assert main(["list", "solvers"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_ctrl_c_in_a_mapping_is_130(home: Path) -> None:
    """Its search runs compiled, beside the thread that listens, and says meanwhile what it does."""
    child = start(home, "map", "unet", "simba")
    assert child.stderr
    said = r"unet on simba: \d+ of \d+ einsums, .*, now einsum \w+ \("
    assert any(re.match(said, line) for line in iter(child.stderr.readline, ""))
    interrupted(child)


def test_a_statement_that_others_left_running_ends_no_later_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands called in one process: only a statement of its own that takes no interrupt makes one end the
    process.
    """
    ended: list[int] = []
    monkeypatch.setattr("os._exit", ended.append)
    done = threading.Event()
    other = threading.Thread(target=done.wait, name="dse sql")
    other.start()
    try:
        assert main(["list", "solvers"]) == 0
        assert ended == []
    finally:
        done.set()
        other.join()


def test_residency(home: Path) -> None:
    asked = (
        "residency",
        "cg:matrix=nasa4704,n=1,form=periodic",
        "gogeta_clusters",
        "--set",
        "sram.capacity=64 KiB",
    )
    said = good(*asked, folder=home)
    assert "GOGETA-df, GOGETA-map" in said
    assert "saves 4, and there is room" in said
    assert "on-chip retention (one period of the loop, which has 10)" in said
    told = json.loads(good(*asked, "--format", "json", folder=home))
    assert [row["times_less"] for row in told["configurations"]] == pytest.approx(
        [1, 11.553, 11.553, 11.553, 11.553], abs=1e-3
    )
    wrong = dse("residency", "cg:matrix=nasa", "gogeta_clusters", folder=home)
    assert wrong.returncode == 2
    assert wrong.stderr.count("\n") == 1
    assert "nasa4704" in wrong.stderr
    assert not wrong.stdout


def test_work_of_the_vector_unit_is_named_vector(tmp_path: Path) -> None:
    (tmp_path / "rowmax.yaml").write_text(
        "extents: {m: 64, n: 64, d: 8}\neinsums:\n- S[m,n] += Q[m,d] * K[n,d]\n- M[m] max= S[m,n]\n"
    )
    (tmp_path / "study.yaml").write_text(
        "name: s\nworkloads: [rowmax.yaml]\nmachine: edge_array\n"
        "space: {mac.vector_lanes: [0, 4]}\nobjectives: [energy_pj, latency_ns]\n"
    )
    asked = ("map", "rowmax.yaml", "edge_array", "--set", "mac.vector_lanes=4", "--format", "json")
    shown = json.loads(good(*asked, folder=tmp_path))
    energy = {one["name"]: one["dynamic_pj"] for one in shown["components"]}
    multiplied, maximum = shown["einsums"]
    assert (multiplied["bottleneck"] == "VECTOR", maximum["bottleneck"]) == (False, "VECTOR")
    assert maximum["mac_utilization"] is None
    assert multiplied["mac_utilization"] > 0
    assert energy["MAC"] > 0
    assert energy["VECTOR"] > 0
    text = good(*asked[:-2], "--einsum", "M", folder=tmp_path)
    assert re.search(r"\nVECTOR +1024 cycles .* yes\n", text)
    assert re.search(r"\nVECTOR +- +compute ", text)
    good("run", "study.yaml", "--workers", "0", "--out", "run", folder=tmp_path)
    stored = {
        (row["machine"], row["component"]): row["dynamic_pj"]
        for row in rows(tmp_path, "SELECT machine, component, dynamic_pj FROM components")
    }
    assert {at: stored[at] for at in stored if at[0] == 1} == pytest.approx(
        {(1, name): pj for name, pj in energy.items()}
    )
    assert (0, "VECTOR") not in stored
    assert stored[0, "MAC"] > 0
    assert rows(tmp_path, "SELECT bottleneck FROM einsums WHERE machine = 1 AND einsum = 'M'") == [
        {"bottleneck": "VECTOR"}
    ]


def test_the_voltage_that_least_means_is_shown(tmp_path: Path) -> None:
    """And which levels are slower than the clock at it."""
    edge = (Path(__file__).parents[1] / "hw/machines/edge_array.yaml").read_text()
    edge = edge.replace("clock_mhz: 500", "vdd: least\nclock_mhz: 1000").replace("128 KiB", "4 MiB")
    (tmp_path / "own.yaml").write_text(edge)
    (tmp_path / "study.yaml").write_text(
        'name: s\nworkloads: ["gemm:m=8,n=8,k=8"]\nmachine: own.yaml\n'
        "space: {clock_mhz: [600, 1000]}\nobjectives: [energy_pj, latency_ns]\n"
    )
    arch = load_arch(str(tmp_path / "own.yaml"))
    assert arch.vdd is not None
    assert arch.slow_levels()
    good("run", "study.yaml", "--workers", "0", "--out", "run", folder=tmp_path)
    for command in (["map", "gemm:m=8,n=8,k=8", "own.yaml"], ["show", "run", "1"]):
        text = good(*command, folder=tmp_path)
        assert re.search(rf"\nvdd +{arch.vdd:g} V\n", text)
        assert re.search(rf"\nslower than the clock +{re.escape(arch.slow_levels()[0])}\n", text)
        found = json.loads(good(*command, "--format", "json", folder=tmp_path))
        found = next(iter(found["workloads"].values())) if "workloads" in found else found
        assert (found["vdd"], found["slower_than_the_clock"]) == (arch.vdd, arch.slow_levels()[0])
    plain = json.loads(good("map", "gemm:m=8,n=8,k=8", "edge_array", "--format", "json", folder=tmp_path))
    assert not {"vdd", "slower_than_the_clock"} & set(plain)


@given(st.lists(st.floats(1e-6, 1e18), min_size=1, max_size=5))
def test_a_number_above_zero_is_never_shown_as_zero(values: list[float]) -> None:
    for name in ("energy_pj", "latency_ns", "area_mm2", "area_share", "latency_cycles"):
        for text in [*(column(name, [*values, 0.0]) or ())[:-1], *(quantity(name, one) for one in values)]:
            assert float(text.split()[0]) > 0, (name, values)


def test_a_memory_that_moves_nothing_is_named_with_its_area(tmp_path: Path) -> None:
    edge = (Path(__file__).parents[1] / "hw/machines/edge_array.yaml").read_text()
    wbuf = "- {memory: wbuf, capacity: 16 KiB, width_bits: 64, may_keep: [weight]}\n- {array: array"
    (tmp_path / "own.yaml").write_text(edge.replace("- {array: array", wbuf))
    (tmp_path / "relu.yaml").write_text("extents: {m: 64, n: 64}\neinsums:\n- C[m,n] = relu(A[m,n])\n")
    said = good("map", "relu.yaml", "own.yaml", "--set", "gbuf.bypass=false", folder=tmp_path)
    found = json.loads(good("map", "relu.yaml", "own.yaml", "--format", "json", folder=tmp_path))
    area = {one["name"]: one["area_mm2"] for one in found["components"]}
    (share,) = re.findall(r"\nWBUF, REGF move nothing here; ([\d.]+) % of the area\n", said)
    assert float(share) == pytest.approx(100 * (area["WBUF"] + area["REGF"]) / found["area_mm2"], rel=0.01)
    weighty = good("map", "gemm:m=64,n=64,k=64", "own.yaml", "--set", "wbuf.bypass=false", folder=tmp_path)
    assert "WBUF" not in "".join(re.findall("\n.* nothing here", weighty))
