"""The solver stack: SMAUG's tiling as a pick, from a solved workload to rows, text and back."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import yaml

from cluster.worker import Ask, Lease, job_of, solve_lease
from dse.explain import values
from dse.frontend.cli import main
from dse.mapper.smaug.mapper import smaug
from dse.mapping.nest import Infeasible, faults
from dse.mapping.searched import Mappings, Space, certificate_words
from dse.sim.einsum.evaluate import EinsumCost, Problem, Solution, einsum_cost
from dse.solve import solve as stack
from dse.solve.options import SolverOptions
from dse.solve.solve import solve
from dse.solve.stored import reprice
from dse.study import study as studies
from hw import machine
from workloads import catalog
from workloads.graph import unique

pytestmark = pytest.mark.xdist_group("stack")

SMV = machine.arch(machine.load("smv"))
NET = catalog.load("light_squeezenet")  # nests, and schedules that are none
SMAUG = SolverOptions(tiling="smaug")
WHY = "outside the nest space: the first tile has more rows than the next"
UNNESTED, NESTED = "conv:k=64,c=64,p=56,q=56,r=3,s=3,pad=1", "conv:k=64,c=64,p=28,q=28,r=3,s=3,stride=2"
STUDY = f"""\
name: pads
workloads: ["{UNNESTED}", "{NESTED}"]
machine: smv
space:
  ispad.capacity: [4 KiB, 16 KiB, 32 KiB]
  array.pe: [4, 8]
objectives: [energy_pj, latency_ns]
solver: {{tiling: smaug}}
"""


@pytest.fixture(scope="module")
def solved() -> Solution:
    found = solve(SMV, NET, SMAUG)
    assert isinstance(found, list)
    return found[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run."""
    found = tmp_path_factory.mktemp("pads")
    (found / "pads.yaml").write_text(STUDY)
    assert main(["run", str(found / "pads.yaml"), "--workers", "0", "--out", str(found / "run")]) == 0
    return found


def metrics(cost: EinsumCost) -> tuple[float, float, str]:
    return cost.energy_pj, cost.latency_cycles, cost.mapping_key


def test_a_nest_costs_what_the_evaluator_says_and_others_are_counted_in_the_certificate(
    solved: Solution,
) -> None:
    costs = list(zip(solved.einsums, unique(NET), strict=True))
    nests = [(cost, group.einsum) for cost, group in costs if not cost.mapping.non_nest_text]
    assert 0 < len(nests) < len(costs)
    outside = f"{len(costs) - len(nests)} of {len(costs)} einsums outside the nest space"
    assert re.fullmatch(
        rf"not proven optimal \(smaug; {outside}\); at most .* % above the unfused lower bound",
        solved.certificate,
    )
    for cost, e in nests:
        assert faults(cost.mapping, e, SMV) == []
        assert cost.certificate.startswith("not proven optimal; at most ")
        priced = einsum_cost(Problem(SMV, e, "energy"), cost.mapping)
        assert isinstance(priced, EinsumCost)
        (bare,) = smaug(Problem(SMV, e, "energy"), Random(0), host_copies_cost=False)
        assert metrics(priced) == metrics(bare)
        assert (cost.energy_pj > bare.energy_pj) == (cost.host_copies > 0)
    assert all(cost.host_copies is not None and cost.host_copy_elems is not None for cost in solved.einsums)
    assert solved.energy_pj == sum(cost.count * cost.energy_pj for cost in solved.einsums)


def test_a_stored_schedule_is_priced_again() -> None:
    small = catalog.load("gemm:m=16,n=8,k=8")
    found = solve(machine.arch(machine.load("a3")), small, SolverOptions())
    assert isinstance(found, list)
    priced = reprice(
        machine.arch(machine.load("a3")),
        small,
        SolverOptions(),
        {cost.name: str(cost.mapping) for cost in found[0].einsums},
    )
    assert isinstance(priced, Solution)
    assert priced.einsums == found[0].einsums


# an output through a window
WINDOW = 'extents: {p: 5, r: 3, k: 17, c: 19}\neinsums: ["D[p+r,c] += G[p,k] * F[k,c,r]"]\n'
# three ranks in a dimension
THREE = 'extents: {a: 3, b: 2, r: 3, c: 4}\neinsums: ["D[a,b,c] += G[2*a+b+r] * F[r,c]"]\n'


@pytest.mark.parametrize("net", ["", WINDOW])
def test_each_einsum_of_a_machine_has_its_own_certificate_in_the_tiles_of_the_pick(
    net: str, tmp_path: Path
) -> None:
    (tmp_path / "net.yaml").write_text(net)
    edge, cost = machine.arch(machine.load("edge_array")), {}
    loaded = catalog.load(str(tmp_path / "net.yaml") if net else "gemm:m=127,n=31,k=47")
    for tiles, space in (("perfect", "perfect"), ("imperfect_spatial", "imperfect_spatial")):
        found = solve(edge, loaded, SolverOptions(objective="edp", factors=tiles))  # type: ignore[arg-type]
        assert isinstance(found, list)
        assert all(one.space == Mappings(space, node_order="arrays") for one in found[0].einsums)
        assert (
            certificate_words(Space((Mappings(space, node_order="arrays"),), alone=True))
            in found[0].certificate
        )
        assert found[0].optimality_gap < 0.05
        cost[tiles] = found[0].energy_pj * found[0].latency_cycles
    assert cost["imperfect_spatial"] < cost["perfect"]


def test_what_the_search_does_not_take_has_a_gap_for_a_proof(tmp_path: Path) -> None:
    (tmp_path / "net.yaml").write_text(THREE)
    found = solve(
        machine.arch(machine.load("edge_array")), catalog.load(str(tmp_path / "net.yaml")), SolverOptions()
    )
    assert isinstance(found, list)
    assert found[0].einsums[0].proven is None
    assert 0 < found[0].optimality_gap == found[0].gap_to_bound


def test_what_was_mapped_once_is_evaluated_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DSE_CACHE", str(tmp_path))
    edge, net = machine.arch(machine.load("edge_array")), catalog.load("light_squeezenet")
    first, tiled = stack.cached(edge, net, SolverOptions()), stack.cached(SMV, net, SMAUG)
    # what SMAUG tiles is made anew
    assert [path.suffix for path in tmp_path.iterdir()] == [".json"]
    assert tiled == solve(SMV, net, SMAUG)
    monkeypatch.setattr(stack, "solve_unfused", None)
    second = stack.cached(edge, net, SolverOptions())
    assert isinstance(first, list)
    assert isinstance(second, list)
    assert first == second
    assert [[getattr(c, key) for key in stack.PROOF_FIELDS] for c in first[0].einsums] == [
        [getattr(c, key) for key in stack.PROOF_FIELDS] for c in second[0].einsums
    ]


def test_no_mapper_is_asked_and_what_cannot_be_tiled_is_infeasible_with_its_reason() -> None:
    assert solve(SMV, catalog.load(NESTED), SolverOptions(tiling="smaug", mapper="exhaustive")) == solve(
        SMV, catalog.load(NESTED), SMAUG
    )
    wide = solve(SMV, catalog.load("conv:k=16,c=64,p=8,q=4000,r=3,s=3,pad=1"), SMAUG)
    assert isinstance(wide, Infeasible)
    assert (wide.level, wide.have_bytes) == ("ISPAD", 32768)
    assert wide.need_bytes > wide.have_bytes
    assert "SMAUG has no optimizers of sparse tensors; leave solver.tiling out" in str(
        solve(SMV, catalog.load("spmm:m=64,k=64,n=8,nnz=400"), SMAUG)
    )


def test_what_is_printed(solved: Solution) -> None:
    *_, copies = values.network(SMV, NET, solved, True)
    assert copies.header == ("einsum", "host_copies", "host_copy_elems", "schedule")
    assert len(copies.rows) == len(solved.einsums)
    assert {row[3] for row in copies.rows} >= {"a nest", WHY}
    for cost, group in zip(solved.einsums, unique(NET), strict=True):
        text, _ = values.einsum(SMV, group.einsum, cost)
        assert "SMAUG " in text
        assert ("store DRAM" in text) == (not cost.mapping.non_nest_text)
        assert cost.mapping.non_nest_text in text
    plain = values.document(SMV, NET, solved)["einsums"][0]
    assert plain["host_copies"] == solved.einsums[0].host_copies
    assert json.dumps(plain)
    no_copies = solve(SMV, catalog.load("gemm:m=4,n=8,k=8"), SolverOptions())
    assert isinstance(no_copies, list)
    assert len(values.network(SMV, catalog.load("gemm:m=4,n=8,k=8"), no_copies[0], True)) == 2


def test_the_yaml_of_nests_is_simulated_and_that_of_others_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "schedule.yaml"
    for source in (NESTED, UNNESTED):
        free = ["--set", "solver.tiling=smaug", "--set", "solver.host_copies=free"]
        assert main(["map", source, "smv", *free, "--format", "yaml"]) == 0
        file.write_text(capsys.readouterr().out)
        code = main(["simulate", source, "smv", str(file), "--format", "json"])
        said = capsys.readouterr()
        if source == NESTED:
            found = solve(SMV, catalog.load(source), replace(SMAUG, host_copies="free"))
            assert code == 0
            assert isinstance(found, list)
            assert json.loads(said.out)["energy_pj"] == found[0].energy_pj
        else:
            assert code == 2
            assert said.out == ""
            assert (
                said.err == f"{file}: conv: mapping is {WHY}; only loop nests can be read "
                "here: dse map --set solver.tiling=smaug finds this mapping again\n"
            )


def test_an_unknown_tiling_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["map", NESTED, "smv", "--set", "solver.tiling=smog"]) == 2
    assert capsys.readouterr().err == 'solver.tiling = "smog" is unknown; did you mean smaug?\n'
    assert main(["list", "solvers"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"solver.tiling +smaug +SMAUG's tiling", said)
    assert re.search(r"solver.tiling +mapper +tiles as the mapper", said)


def test_rows_hold_the_hosts_copies_and_the_text(folder: Path) -> None:
    lease = Lease(0, (Ask(0, 0, "exhaustive"), Ask(5, 0, "exhaustive")))
    rows = {
        table: found.to_pylist()
        for table, found in solve_lease(job_of(studies.load(folder / "pads.yaml")), lease).tables.items()
    }
    keys = {row["workload"]: row["mapping_1"] for row in rows["chosen"]}
    found = {row["mapping_key"]: row for row in rows["mappings"]}
    unnested, nested = found[keys[UNNESTED]], found[keys[NESTED]]
    assert unnested["host_copies"] > 0
    assert unnested["host_copy_elems"] > 56 * 56 * 64
    assert unnested["nest"].startswith(f"{WHY}\nSMAUG convolution")
    assert nested["nest"].startswith("store DRAM")
    assert {row["level"] for row in rows["counts"]} >= {"DRAM", "ISPAD", "WSPAD", "OSPAD", "WREG", "MAC"}
    refused = rows["machines"][0]
    assert (refused["status"], refused["limit_level"], refused["need_bytes"], refused["have_bytes"]) == (
        "infeasible",
        "ISPAD",
        10752,
        4096,
    )


def test_a_sweep_over_scratchpads_and_pes_is_shown_and_asked_in_sql(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(folder / "run")
    statement = (
        "SELECT machine, e.workload, host_copies, nest LIKE 'outside%' AS unnested, e.energy_pj, "
        "sum(t.energy_pj) AS parts FROM einsums e JOIN mappings USING (mapping_key) JOIN traffic t USING "
        "(machine, schedule, workload, einsum) GROUP BY ALL"
    )
    assert main(["sql", run, statement, "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == 8
    assert all(row["parts"] == pytest.approx(row["energy_pj"]) for row in rows)
    assert {row["workload"] for row in rows if row["unnested"]} == {UNNESTED}
    assert all(row["host_copies"] > 0 for row in rows)
    assert main(["show", run, "best"]) == 0
    said = capsys.readouterr().out
    assert WHY in said
    assert "  inputs 1 x 56 x 56 x 64 through ISPAD: DimNH" in said
    assert "store DRAM I W O" in said
    assert "tiles cut by the host" in said


def test_a_study_names_its_tiling_among_what_shapes_rows(folder: Path) -> None:
    study = studies.load(folder / "pads.yaml")
    assert studies.identity(study)["solver.tiling"] == "smaug"
    assert yaml.safe_load(studies.to_yaml(study))["solver"] == {"tiling": "smaug"}
