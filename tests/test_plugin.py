"""Functions of the user (workload, mapper, component table, cost term); samplers of Optuna's by name."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from random import Random

import optuna
import pytest

import dse
from cluster import driver
from dse.frontend import contracts
from dse.mapper.plugged import plugged
from dse.sim.einsum.evaluate import Problem
from dse.study import study as studies
from hw import machine
from workloads import catalog, plugin
from workloads.einsum import WorkloadError, einsum

OWN = """
from dse.mapper.baselines.cost_descending import cost_descending
from dse.mapping.nest import Infeasible
from workloads.text import workload

def tiny(batch: int = 1):
    return workload({"b": batch, "m": 4, "k": 8}, "Y[b,m] += X[b,k] * W[k,m]")

def greedy(problem, rng):
    found = cost_descending(problem, rng)
    return found if isinstance(found, Infeasible) else [str(one.mapping) for one in found]

def rram(capacity_bits, width_bits, node_nm, cell):
    return {"read_pj": 0.01 * width_bits, "write_pj": 0.1 * width_bits, "leak_mw": 0.0,
            "area_mm2": 1e-7 * capacity_bits, "actions_per_cycle": 1.0}

def dollars(machine, area_mm2, **metrics):
    return 10 * area_mm2 + machine["array.x"]

def unsteady(problem, rng, state=[0]):
    state[0] += 1
    return greedy(problem, rng) * (1 + state[0] % 2)

def outermost(problem, rng):
    stores = [f"store DRAM {p.tensor}" for p in problem.einsum.tensors()]
    return ["\\n".join([*stores, *(f"for {rank} tile 1" for rank, _ in problem.einsum.extents)])]

def worst_first(problem, rng):
    return outermost(problem, rng) + greedy(problem, rng)

def unfinished(problem, rng):
    return [outermost(problem, rng)[0].rpartition("\\n")[0]]

def nothing(problem, rng):
    return []

def negative(capacity_bits, width_bits, node_nm, cell):
    return {"read_pj": -1.0}

def words(machine, energy_pj, **metrics):
    return "cheap"
"""
MACHINE = """
clock_mhz: 1000
word_bits: 8
nodes:
- {memory: dram, kind: lpddr4, width_bits: 8}
- {memory: glb, kind: custom, table: "own.py:rram", capacity: 4 KiB, width_bits: 8}
- {array: array, dims: {x: 4, y: 4}}
- {compute: mac, kind: custom, mac_pj: 1, alu_pj: 1, leak_mw: 0, area_mm2: 0}
"""
STUDY = """
name: own
workloads: ["own.py:tiny:batch=2"]
machine: machine.yaml
space: {array.x: [2, 4], glb.capacity: [1 KiB, 4 KiB]}
objectives: [energy_pj, "own.py:dollars"]
solver: {mapper: "own.py:greedy"}
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with plug-ins, a machine and a study, and a cache of its own."""
    monkeypatch.setenv("DSE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    for name, text in (("own.py", OWN), ("machine.yaml", MACHINE), ("study.yaml", STUDY)):
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_contract_is_tried(home: Path) -> None:
    kinds = {"tiny": "workload", "greedy": "mapper", "rram": "component table", "dollars": "cost term"}
    for name, kind in kinds.items():
        assert contracts.check(f"own.py:{name}").startswith(f"{kind} {name} of own.py, {name}@")
    breaches = {
        "unsteady": "two answers with the same seed",
        "nothing": "return a list of mappings",
        "unfinished": "rank k ends with tile 6, not 1",
        "negative": "read_pj = -1 must be finite and not negative",
        "words": "returned 'cheap'; return a finite number",
        "absent": "has no function absent",
    }
    for name, words in breaches.items():
        with pytest.raises(ValueError, match=words):
            contracts.check(f"own.py:{name}")


def test_mappings_of_a_mapper_come_best_first(home: Path) -> None:
    problem = Problem(
        machine.load_arch("a3"), einsum("C[m,n] += A[m,k] * B[k,n]", {"m": 8, "n": 8, "k": 8}), "energy"
    )
    first, last = plugged(plugin.find("own.py:worst_first").key)(problem, Random(1))
    assert first.energy_pj < last.energy_pj


def test_a_study_of_plug_ins_runs_and_its_folder_holds_them(home: Path) -> None:
    study = studies.load(home / "study.yaml")
    driver.run(study, home / "run", workers=0)
    for name in ("own.py", "machine.yaml", "study.yaml"):
        (home / name).unlink()
    run = dse.open(home / "run")
    rows = list(run.sql("SELECT array_x, glb_capacity, dollars, energy_pj FROM designs ORDER BY machine"))
    for row in rows:
        assert row["dollars"] == pytest.approx(10 * 1e-7 * 8 * row["glb_capacity"] + row["array_x"])
    assert len(rows) == 4
    assert (
        driver.run(studies.load(home / "run" / "study.yaml", within=home / "run"), home / "run", 0).solved
        == 0
    )
    shown = run.show("best").solutions[0].totals
    assert shown["energy_pj"] == min(row["energy_pj"] for row in rows)


def test_a_run_folder_of_others_executes_nothing_unasked(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver.run(studies.load(home / "study.yaml"), home / "run", workers=0)
    monkeypatch.setenv("DSE_CACHE", str(home / "cache of another"))
    with pytest.raises(
        ValueError, match=r"not executed unasked; read it, then allow it with dse check .*tiny"
    ):
        dse.open(home / "run")
    contracts.check(f"{home}/run/inputs/0_own.py:tiny")
    assert len(dse.open(home / "run").sql("FROM designs")) == 4


def test_the_source_is_part_of_every_key(home: Path) -> None:
    before = studies.identity(studies.load(home / "study.yaml"))
    (home / "own.py").write_text(OWN.replace("10 * area_mm2", "20 * area_mm2"))
    after = studies.identity(studies.load(home / "study.yaml"))
    changed = {line.partition(":")[0] for line in studies.changes(before, after)}
    assert changed == {"solver.mapper", "machine", "objectives"}  # the einsums are the same


def test_a_file_travels_with_its_source(home: Path) -> None:
    found = plugin.find("own.py:tiny")
    (home / "own.py").unlink()
    (home / "job").write_bytes(pickle.dumps(found))
    statement = (
        "import pickle; from workloads import plugin; found = pickle.load(open('job', 'rb')); "
        "print(plugin.function(found.key)(3).macs())"
    )
    code = [
        sys.executable,
        "-c",
        f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r}); {statement}",
    ]
    answer = subprocess.run(code, capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == str(3 * 4 * 8)


def test_an_installed_module_of_another_version_is_refused(home: Path) -> None:
    found = plugin.find("workloads.text:workload")
    other = plugin.admit(found.source, found.name, "0" * 16, b"", True)
    with pytest.raises(plugin.PluginError, match="another version here than on the driver"):
        plugin.function(other.key)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("absent.py:f", "cannot be read"),
        ("own.py:tiny:batch=0", "batch = 0 must be at least 1"),
        ("own.py:tiny:size=2", "no parameter is named size"),
        ("no.such_module:f", "no such module is installed"),
        ("own.py:greedy:problem=1,rng=2", "AttributeError"),
        ("xml.sax.saxutils:escape:data=1,entities=1", "AttributeError"),
        ("train:net=own.py:tiny", "a training step of a plug-in is not made"),
    ],
)
def test_faults_of_workloads_are_one_line(home: Path, source: str, words: str) -> None:
    with pytest.raises(WorkloadError, match=words) as fault:
        catalog.load(source)
    assert "\n" not in str(fault.value)
    assert catalog.load("own.py:tiny:batch=3").macs() == 96


SEARCH = """
name: s
workloads: ["gemm:m=4,n=4,k=4"]
machine: edge_array
space: {array.x: [1, 2, 3, 4, 5, 6], array.y: [1, 2, 3, 4], dram.kind: [ddr3, lpddr4]}
objectives: [energy_pj]
search: {method: "optuna:NAME", generation: 8, startup: 8, OWN}
stop: {machines: 24}
"""


def sampled(home: Path, name: str, own: str = "n_ei_candidates: 8", objectives: str = "") -> studies.Study:
    text = SEARCH.replace("NAME", name).replace("OWN", own)
    (home / "s.yaml").write_text(text.replace("[energy_pj]", objectives or "[energy_pj]"))
    return studies.load(home / "s.yaml")


def test_a_sampler_of_optuna_by_name_learns_and_a_run_goes_to_a_storage(home: Path) -> None:
    study = sampled(home, "TPESampler")
    assert dict(study.search.options) == {"n_ei_candidates": 8}
    assert studies.identity(study)["search.n_ei_candidates"] == "8"
    driver.run(study, home / "run", workers=0)
    run = dse.open(home / "run")
    assert run.sql("SELECT count(*) AS n FROM machines WHERE source = 'optuna:TPESampler'")[0]["n"] > 0
    assert run.to_optuna(str(home / "run.log")) == len(run.sql("FROM machines"))
    backend = optuna.storages.journal.JournalFileBackend(str(home / "run.log"))
    stored = optuna.load_study(study_name="s", storage=optuna.storages.JournalStorage(backend))
    assert stored.best_value == run.front()[0]["energy_pj"]
    assert stored.best_params["array.x"] == run.front()[0]["array_x"]
    with pytest.raises(ValueError, match="has a study s already; give another storage"):
        run.to_optuna(str(home / "run.log"))


@pytest.mark.parametrize(
    ("name", "own", "objectives", "words"),
    [
        ("TPSampler", "seed: 1", "", "Optuna has no sampler TPSampler; did you mean TPESampler"),
        ("TPESampler", "candidates: 1", "", "unexpected keyword argument 'candidates'"),
        ("TPESampler", "candidates: [1]", "", "must be a number, a text, true, false or null"),
        (
            "CmaEsSampler",
            "seed: 1",
            "[energy_pj, area_mm2]",
            "needs cmaes; pip install cmaes|multi-objective",
        ),
    ],
)
def test_a_sampler_that_cannot_serve_is_one_line(
    home: Path, name: str, own: str, objectives: str, words: str
) -> None:
    with pytest.raises(studies.StudyError, match=words):
        sampled(home, name, own, objectives)
