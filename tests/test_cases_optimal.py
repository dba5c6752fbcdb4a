"""The runner of kind optimal_mapping: what it compares, what it refuses by name, and that a wrong answer
fails.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dse.mapping.nest import parse
from dse.sim.einsum.evaluate import EinsumCost, Problem, einsum_cost
from tests.cases import run
from tests.cases_optimal import arch_of, einsums, unconfirmed

FILE = Path(__file__).parent / "data" / "optimal_mapping_cases.json"


def changed(
    tmp_path: Path, keep: list[str], change: Callable[[dict[str, Any]], None]
) -> tuple[int, int, list[str]]:
    """Outcome of the cases `keep`, each changed."""
    file = json.loads(FILE.read_text())
    file["cases"] = [case for case in file["cases"] if case["id"] in keep]
    for case in file["cases"]:
        change(case)
    (tmp_path / "changed.json").write_text(json.dumps(file))
    return run(tmp_path / "changed.json")


def test_our_optimum_is_at_most_the_listed_one() -> None:
    passed, failed, lines = run(FILE)
    assert (passed, failed) == (6, 0), lines


def test_an_optimum_above_the_listed_one_fails(tmp_path: Path) -> None:
    def lower(case: dict[str, Any]) -> None:
        case["optimum"]["energy"] = [case["optimum"]["energy"][0] - 1000]

    passed, failed, lines = changed(tmp_path, ["O01"], lower)
    assert (passed, failed) == (0, 1)
    assert "not the optimum" in lines[0]


def test_fused_einsums_above_the_listed_optimum_fail_and_below_it_are_walked(tmp_path: Path) -> None:
    def smaller(case: dict[str, Any], listed: float) -> None:
        case["workload"]["bounds"] = {"m": 16, "n_i": 4}
        case["optimum"]["energy"] = [listed]

    passed, failed, lines = changed(tmp_path, ["O14"], lambda case: smaller(case, 1.0))
    assert (passed, failed) == (0, 1)
    assert "not the optimum" in lines[0]
    assert changed(tmp_path, ["O14"], lambda case: smaller(case, 1e9))[:2] == (1, 0)


def test_an_optimum_below_the_listed_one_is_walked(tmp_path: Path) -> None:
    def higher(case: dict[str, Any]) -> None:
        case["optimum"]["energy"] = [case["optimum"]["energy"][0] + 1000]

    assert changed(tmp_path, ["O01"], higher)[:2] == (1, 0)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"options": {"imperfect": True}}, "averaged imperfect tiles"),
        ({"options": {"odd": 3}}, "option odd has no counterpart"),
        ({"arch": "tpu_v4i"}, "arch tpu_v4i has rules that a machine cannot state"),
        ({"objective": "AREA"}, "objective AREA"),
        ({"objective": "ENERGY|LATENCY"}, "a front of ENERGY|LATENCY"),
    ],
)
def test_what_cannot_be_compared_is_named(tmp_path: Path, change: dict[str, Any], why: str) -> None:
    passed, failed, lines = changed(tmp_path, ["O01"], lambda case: case.update(change))
    assert (passed, failed) == (0, 0)
    assert f"O01: not run: {why}" in lines[0]


def test_einsums_in_turn_add_up_and_n_i_bounds_all(tmp_path: Path) -> None:
    def in_turn(case: dict[str, Any]) -> None:
        case["workload"]["bounds"] = {"m": 8, "n_i": 4}
        case["chosen_mapping"] = ["[T0,W0,T1,W1,T2 in DRAM]"]
        case["optimum"]["energy"] = [1.0]

    file = json.loads(FILE.read_text())
    chain = next(case for case in file["cases"] if case["id"] == "O14")
    assert [e.sizes() for e in einsums(chain["workload"])] == [
        {"m": 128, "n0": 64, "n1": 64},
        {"m": 128, "n1": 64, "n2": 64},
    ]
    passed, failed, lines = changed(tmp_path, ["O14"], in_turn)
    assert (passed, failed) == (0, 1)
    assert "listed 1.0, ours" in lines[0]


def test_the_oracle_confirms_counts_and_tells_wrong_ones() -> None:
    file = json.loads(FILE.read_text())
    arch = arch_of(file["arches"]["A3nb"], "A3nb", 8)
    assert [level.bypass for level in arch.levels] == [False, False, False]
    assert arch.fanouts[0].outside == 2
    (e,) = einsums({"name": "g", "einsum": "C[m,n] += A[m,k]*B[k,n]", "bounds": {"m": 3, "n": 2, "k": 2}})
    nest = "\n".join(
        [
            *(f"store {level} A B C" for level in ("DRAM", "GLB", "RF")),
            *(f"for {rank} tile 1" for rank in "mnk"),
        ]
    )
    one = einsum_cost(Problem(arch, e, "energy"), parse(nest))
    assert isinstance(one, EinsumCost)
    assert unconfirmed(one, e, arch) == []


def test_an_optimum_may_be_a_number_and_a_factor_stand_without_a_star(tmp_path: Path) -> None:
    def plain(case: dict[str, Any]) -> None:
        case["optimum"]["energy"] = case["optimum"]["energy"][0]

    assert changed(tmp_path, ["O01"], plain)[:2] == (1, 0)
    short, starred = (
        {
            "name": "c",
            "einsum": f"O[k,p] += I[c,{index}]*F[k,c,r]",
            "bounds": {"k": 2, "c": 2, "p": 3, "r": 2},
        }
        for index in ("2p+r", "2*p+r")
    )
    assert einsums(short) == einsums(starred)
    assert einsums(short)[0].inputs[0].dims[1].terms == (("p", 2), ("r", 1))


def test_leakage_of_levels_is_priced(tmp_path: Path) -> None:
    file = json.loads(FILE.read_text())
    file["arches"]["A2"]["levels"][1]["leak_power"] = 3.0
    file["cases"] = [case for case in file["cases"] if case["id"] == "O01"]
    arch = arch_of(file["arches"]["A2"], "A2", 8)
    assert arch.leak_mw() == 3.0
    (tmp_path / "leaky.json").write_text(json.dumps(file))
    passed, failed, lines = run(tmp_path / "leaky.json")
    assert (passed, failed) == (0, 1)
    assert "not the optimum" in lines[0]


@pytest.mark.parametrize(
    "change",
    [
        lambda case: case.pop("arch"),
        lambda case: case.update(workload=None),
        lambda case: case.update(optimum={}),
        lambda case: case["workload"].update(einsum="C[m,n += A[m]"),
        lambda case: case.update(objective="ENERGY|AREA"),
        lambda case: case["workload"].update(bounds={}),
    ],
)
def test_a_case_of_another_form_is_named_and_the_others_run(
    tmp_path: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    file = json.loads(FILE.read_text())
    file["cases"] = [case for case in file["cases"] if case["id"] in ("O01", "O03")]
    change(file["cases"][0])
    (tmp_path / "odd.json").write_text(json.dumps(file))
    passed, failed, lines = run(tmp_path / "odd.json")
    assert (passed, failed) == (1, 0)
    assert len(lines) == 1
    assert "O01: not run: " in lines[0]


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        '{"kind": "optimal_mapping"}',
        '{"kind": ["a"]}',
        '{"kind": "systolic_cycles", "cases": [{}]}',
        '{"kind": "eyeriss"}',
        '{"kind": "smaug_tiling", "cases": [3]}',
        '{"kind": "model_counts", "cases": [{"id": "x"}]}',
    ],
)
def test_no_file_is_a_crash(tmp_path: Path, text: str) -> None:
    (tmp_path / "odd.json").write_text(text)
    passed, failed, lines = run(tmp_path / "odd.json")
    assert passed == 0
    assert lines
    assert failed == 1 or "not run: " in lines[0]
