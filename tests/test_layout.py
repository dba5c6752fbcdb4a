"""Layouts: the shared cases, texts against their primitives, counts against listed addresses, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cases import run

CASES = Path(__file__).parent / "data" / "layout_cases.json"


def test_layout_cases_pass() -> None:
    assert run(CASES) == (56, 0, [])


@pytest.mark.parametrize(("key", "part", "change"), [
    ("cases", "output_shape", lambda shape: [*shape[:-1], shape[-1] + 1]), ("cases", "forward", lambda pairs: [[pairs[-1][0], pairs[0][1]]]),
    ("cases", "inverse", lambda pairs: [[pairs[0][0], pairs[-1][1]]]), ("cases", "host_positions", lambda n: n + 1), ("window_access", "M", lambda m: m + 1),
    ("loop_remap", "layout_X", lambda _: "N H W O"), ("errors", "error", lambda _: "another reason")])
def test_every_kind_of_case_can_fail(tmp_path: Path, key: str, part: str, change) -> None:
    file = json.loads(CASES.read_text())
    file[key][0][part] = change(file[key][0][part])
    (tmp_path / "changed.json").write_text(json.dumps(file))
    passed, failed, _ = run(tmp_path / "changed.json")
    assert (passed, failed) == (55, 1)
