"""The shared case files, and that the runner tells a wrong answer from a right one."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cases import main, run

DATA = Path(__file__).parent / "data"


def test_model_counts_cases_pass() -> None:
    passed, failed, lines = run(DATA / "model_counts_cases.json")
    assert (passed, failed) == (4, 0), lines
    assert [line for line in lines if "not run" in line] == lines and "M13_chain2_fused" in lines[0]


def test_a_wrong_number_fails(tmp_path: Path, capsys) -> None:
    file = json.loads((DATA / "model_counts_cases.json").read_text())
    file["cases"][0]["expected"]["energy_total"] += 1
    (tmp_path / "wrong.json").write_text(json.dumps(file))
    assert main([str(tmp_path / "wrong.json")]) == 1
    assert "3 passed, 1 failed" in capsys.readouterr().out


def test_a_kind_without_a_runner_is_named(tmp_path: Path, capsys) -> None:
    (tmp_path / "odd.json").write_text('{"kind": "odd", "cases": []}')
    assert main([str(tmp_path / "odd.json")]) == 1
    assert "kind 'odd' has no runner" in capsys.readouterr().out
