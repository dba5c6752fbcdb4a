"""The shared case files, and that the runner tells a wrong answer from a right one."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from tests.cases import main, run

DATA = Path(__file__).parent / "data"


def test_model_counts_cases_pass() -> None:
    passed, failed, lines = run(DATA / "model_counts_cases.json")
    assert (passed, failed, lines) == (5, 0, [])


@pytest.mark.parametrize("path", ["MM1/GLB/T2/read", "MM0/DRAM/T0/read"])
def test_a_wrong_number_of_fused_einsums_fails(tmp_path: Path, path: str) -> None:
    def wrong(file: dict) -> None:
        *keys, last = ["counts_words_einsum_level_tensor_action", *path.split("/")]
        rows = next(case for case in file["cases"] if "einsums" in case["workload"])["expected"]
        for key in keys:
            rows = rows[key]
        rows[last] += 1

    passed, failed, lines = changed(tmp_path, "model_counts", wrong)
    assert (passed, failed) == (4, 1)
    assert path in lines[0]


def test_a_wrong_number_fails(tmp_path: Path, capsys) -> None:
    file = json.loads((DATA / "model_counts_cases.json").read_text())
    file["cases"][0]["expected"]["energy_total"] += 1
    (tmp_path / "wrong.json").write_text(json.dumps(file))
    assert main([str(tmp_path / "wrong.json")]) == 1
    assert "4 passed, 1 failed" in capsys.readouterr().out


def test_a_kind_without_a_runner_is_named(tmp_path: Path, capsys) -> None:
    (tmp_path / "odd.json").write_text('{"kind": "odd", "cases": []}')
    assert main([str(tmp_path / "odd.json")]) == 1
    assert "kind 'odd' has no runner" in capsys.readouterr().out


@pytest.mark.parametrize(("kind", "passing"), [("systolic_cycles", 24), ("eyeriss", 31)])
def test_dataflow_cases_pass(kind: str, passing: int) -> None:
    passed, failed, lines = run(DATA / f"{kind}_cases.json")
    assert (passed, failed) == (passing, 0), lines
    assert all("note: " in line for line in lines)
    assert len(lines) == {"systolic_cycles": 1, "eyeriss": 2}[kind]


def changed(tmp_path: Path, kind: str, change: Callable[[dict], None]) -> tuple[int, int, list[str]]:
    file = json.loads((DATA / f"{kind}_cases.json").read_text())
    change(file)
    (tmp_path / "changed.json").write_text(json.dumps(file))
    return run(tmp_path / "changed.json")


@pytest.mark.parametrize(
    "key",
    [
        "compute_cycles",
        "folds",
        "overall_util_pct",
        "mapping_eff_pct",
        "sram_reads_ifmap",
        "sram_reads_filter",
        "macs",
        "stall_cycles",
    ],
)
def test_every_compared_number_of_an_array_can_fail(tmp_path: Path, key: str) -> None:
    def wrong(file: dict) -> None:
        file["cases"][0][key] += 1

    passed, failed, lines = changed(tmp_path, "systolic_cycles", wrong)
    assert (passed, failed) == (23, 1)
    assert f"{key}: expected" in lines[0]


def test_other_arrays_and_shapes_follow_the_published_formula(tmp_path: Path) -> None:
    shapes = [(1, 1, 1), (7, 5, 3), (40, 33, 129)]
    arrays = [(1, 2), (4, 9), (32, 8)]
    cases = []
    for (m, n, k), (rows, columns), flow in product(shapes, arrays, ("os", "ws", "is")):
        high, wide, time = {"os": (m, n, k), "ws": (k, n, m), "is": (k, m, n)}[flow]
        folds = -(-high // rows) * -(-wide // columns)
        cycles = folds * ((1 if flow == "os" else 2) * rows + columns + time - 2) - 1
        cases.append(
            {
                "case": f"{m}x{n}x{k}",
                "shape": {"M": m, "N": n, "K": k},
                "array_rows": rows,
                "array_cols": columns,
                "dataflow": flow,
                "compute_cycles": cycles,
                "folds": folds,
            }
        )
    (tmp_path / "other.json").write_text(json.dumps({"kind": "systolic_cycles", "cases": cases}))
    assert run(tmp_path / "other.json")[:2] == (27, 0)


def test_wrong_facts_of_a_row_stationary_array_fail(tmp_path: Path) -> None:
    def wrong(file: dict) -> None:
        energies, facts = (test["expected"] for test in file["tests"])
        energies["conv1"][0] += 0.2
        energies["fc2"][2] -= 0.2
        energies["conv4"][1] -= 0.2
        facts["active_pes"]["conv2"] += 1
        facts["replication"]["conv9"] = 1
        energies["conv9"] = [0.0, 0.0, 0.0]

    passed, failed, lines = changed(tmp_path, "eyeriss", wrong)
    assert (passed, failed) == (27, 6)
    assert any("conv1: ALU: expected 1.89" in line for line in lines)
    assert any("fc2: REGF: expected 0.87" in line for line in lines)
    assert any("conv4 DRAM: DRAM: expected at most 1.37" in line for line in lines)
    assert any("conv2 active_pes: expected 136, got 135" in line for line in lines)
    assert sum("no shape of" in line and "conv9" in line for line in lines) == 2


def test_another_network_on_another_array(tmp_path: Path) -> None:
    """One layer of VGG-16 whose rows overflow the buffer, and one listed in two halves: published MACs, 4
    accesses each.
    """

    def other(file: dict) -> None:
        file["network"]["layers"] = {
            "conv1_2": {"type": "conv", "C": 64, "K": 64, "Ho": 224, "Wo": 224, "R": 3, "S": 3, "stride": 1},
            "half_a": {"type": "conv", "C": 8, "K": 6, "Ho": 9, "Wo": 9, "R": 3, "S": 3, "stride": 2},
            "half_b": {"type": "conv", "C": 8, "K": 12, "Ho": 9, "Wo": 9, "R": 3, "S": 3, "stride": 2},
        }
        test = file["tests"][0]
        test["hardware"] |= {"pe_array": [12, 14], "gbuf_bytes": 8192}
        test |= {"batch": 1, "tolerance": {"kind": "relative", "value": 1e-9}, "columns": ["ALU", "REGF"]}
        macs = [64 * 64 * 9 * 224**2 / 1e9, 8 * (6 + 12) * 9 * 81 / 1e9]
        test["expected"] = {"conv1_2": [macs[0], 4 * macs[0]], "half": [macs[1], 4 * macs[1]]}
        del file["tests"][1]

    passed, failed, lines = changed(tmp_path, "eyeriss", other)
    assert (passed, failed) == (2, 0), lines


def test_gogeta_cases_pass() -> None:
    """The 36 points of figure 10 too, as one case."""
    assert run(DATA / "gogeta_cases.json") == (17, 0, [])


def test_wrong_words_between_operations_fail(tmp_path: Path) -> None:
    def wrong(file: dict) -> None:
        file["cg"][0]["words"]["gogeta"] += 1
        file["cg"][1]["words"]["lp_bound"] -= 1
        file["cg"][2]["gogeta_breakdown_words"]["flush"] += 1
        file["cg"][3]["MB"]["ideal"] += 0.0002
        file["gcn"][0]["words"]["seq_overflow"] += 1
        file["noc"][0]["words"]["gogeta_map"] += 1
        file["arithmetic_intensity"][0]["spmm"] *= 1.0001
        file["published"]["geomean"] = 6.8
        file["cg"][4]["words"]["best"] = 1
        file["other"] = [{}]

    passed, failed, lines = changed(tmp_path, "gogeta", wrong)
    assert (passed, failed) == (8, 10)
    assert "cg aft02 N=1 sram_MiB=1: words: gogeta: expected 646065, got 646064" in lines[1]
    assert any("group other is unknown" in line for line in lines)
    assert any("best is unknown" in line for line in lines)
