"""The report: no name breaks out of it, what is embedded is what the run holds, and a hundred thousand points
are small.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dse
from analysis import report
from dse.frontend import cli
from tests.pages import HOSTILE, page
from tests.test_cli import STUDY, TIGHT

pytestmark = pytest.mark.xdist_group("report")

KINDS = {"f4": "<f4", "u1": "u1", "u2": "<u2", "i4": "<i4"}


class Parts(HTMLParser):
    """Elements as a browser would find them: attributes, and the text of scripts by id."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: dict[str, str] = {}
        self.inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.inside = (dict(attrs).get("id") or f"script {len(self.tags)}") if tag == "script" else ""

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.scripts[self.inside] = self.scripts.get(self.inside, "") + data

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""


def columns(parts: Parts) -> dict[str, np.ndarray]:
    raw = gzip.decompress(base64.b64decode(parts.scripts["data-columns"]))
    return {
        c["name"]: np.frombuffer(raw, KINDS[c["kind"]], c["length"], c["at"])
        for c in json.loads(parts.scripts["data-facts"])["columns"]
    }


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("report")
    (home / "small.yaml").write_text(STUDY + 'constraints: ["latency_ns <= 4000"]\n')
    dse.sweep(home / "small.yaml", home / "run", workers=0)
    return home / "run"


def test_hostile_names_stay_text() -> None:
    """Without the escapes of `script_json`, or of the title, a browser would find one more element."""
    mild, wild = Parts(report.document(page(50))), Parts(report.document(page(50, hostile=True)))
    assert [tag for tag, _ in wild.tags] == [tag for tag, _ in mild.tags]
    assert not any(name.startswith("on") for _, attrs in wild.tags for name in attrs)
    facts = json.loads(wild.scripts["data-facts"])
    assert facts["study"].split("\n") == [name.encode("utf-8", "replace").decode() for name in HOSTILE]
    assert wild.scripts["data-columns"].isascii()
    assert wild.scripts["data-details"].isascii()


@given(st.text())
def test_no_text_ends_the_element_that_holds_it(text: str) -> None:
    found = report.script_json({"a": [text]})
    assert not set("<>&\u2028\u2029") & set(found)
    assert json.loads(found) == {"a": [text.encode("utf-8", "replace").decode()]}


def test_scripts_write_text_and_no_markup() -> None:
    program = (Path(report.__file__).parent / "report.js").read_text()
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new "
        r"Function|fetch\(|XMLHttpRequest|import\(",
        program,
    )


def test_nothing_is_asked_of_a_network() -> None:
    parts = Parts(report.document(page(10)))
    policy = next(
        attrs["content"]
        for tag, attrs in parts.tags
        if tag == "meta" and attrs.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy
    assert policy.startswith("default-src 'none'")
    assert "http" not in policy
    assert not [
        attrs
        for tag, attrs in parts.tags
        if attrs.get("src") or (attrs.get("href") or "#").startswith(("http", "//"))
    ]


def test_columns_come_back_to_seven_digits() -> None:
    made = page(1000)
    found = columns(Parts(report.document(made)))
    for column in made.columns:
        np.testing.assert_allclose(found[column.name], column.values, rtol=1e-6)


def test_infinities_and_large_numbers_are_numbers() -> None:
    assert report.script_json([float("inf"), float("nan"), np.float64(2), np.int64(3)]) == "[null,null,2.0,3]"
    head, _ = report.pack_columns([report.Column("a", "a", "metric", np.array([1e300, -np.inf]))])
    assert head[0]["kind"] == "f4"
    assert [
        report.pack_columns([report.Column("a", "a", "machine", np.array(v))])[0][0]["kind"]
        for v in ([255], [256], [65536], [-1])
    ] == ["u1", "u2", "i4", "i4"]


def test_a_hundred_thousand_points_are_below_12_mb() -> None:
    assert len(report.document(page(100_000)).encode()) < 12e6


def test_the_report_holds_what_the_run_does(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "x.html"
    assert cli.main(["report", str(run), "-o", str(out)]) == 0
    assert "needs no network" in capsys.readouterr().out
    opened, parts = dse.open(run), Parts(out.read_text())
    found, facts = columns(parts), json.loads(parts.scripts["data-facts"])
    rows = opened.sql("FROM designs ORDER BY generation, machine, schedule").table.to_pylist()
    assert found["machine"][found["row"]].tolist() == [row["machine"] for row in rows]
    np.testing.assert_allclose(found["energy_pj"], [row["energy_pj"] for row in rows], rtol=1e-6)
    front = {(row["machine"], row["schedule"]) for row in opened.front()}
    assert {
        (row["machine"], row["schedule"]) for row, on in zip(rows, found["front"], strict=True) if on
    } == front
    assert 0 < found["feasible"].sum() < len(rows)
    assert facts["missed"] == [
        {"constraint": "latency_ns <= 4000", "points": int((found["feasible"] == 0).sum())}
    ]
    head = next(c for c in facts["columns"] if c["name"] == "gbuf_capacity")
    assert [head["choices"][code] for code in found["gbuf_capacity"][found["row"]]] == [
        f"{row['gbuf_capacity'] // 1024} KiB" for row in rows
    ]


def test_points_are_explained_as_dse_show_does(run: Path, tmp_path: Path) -> None:
    opened = dse.open(run)
    opened.report(tmp_path / "x.html")
    details: dict[str, Any] = json.loads(
        gzip.decompress(base64.b64decode(Parts((tmp_path / "x.html").read_text()).scripts["data-details"]))
    )
    assert set(details["points"]) == {f"{row['machine']}.{row['schedule']}" for row in opened.front()}
    for point, (own,) in details["points"].items():
        (solved,) = opened.show(point).solutions
        assert sum(own["energy"].values()) == pytest.approx(solved.energy_pj)
        assert sum(own["latency"].values()) == pytest.approx(solved.latency_ns)
        assert [details["nests"][e[5]] for e in own["einsums"]] == [row["mapping"] for row in solved.einsums]


def test_reasons_are_counted(tmp_path: Path) -> None:
    (tmp_path / "tight.yaml").write_text(TIGHT)
    opened = dse.sweep(tmp_path / "tight.yaml", tmp_path / "run", workers=0)
    opened.report(tmp_path / "x.html")
    facts = json.loads(Parts((tmp_path / "x.html").read_text()).scripts["data-facts"])
    assert sum(row["machines"] for row in facts["reasons"]) == len(
        opened.sql("FROM machines WHERE status <> 'ok'")
    )
    assert {row["level"] for row in facts["reasons"]} <= {"RF", "GLB", ""}


def test_a_run_without_a_feasible_point_has_a_report(tmp_path: Path) -> None:
    (tmp_path / "none.yaml").write_text(STUDY + 'constraints: ["latency_ns <= 1"]\n')
    dse.sweep(tmp_path / "none.yaml", tmp_path / "run", workers=0, **{"stop.machines": 4}).report(
        tmp_path / "x.html"
    )
    parts = Parts((tmp_path / "x.html").read_text())
    assert columns(parts)["front"].sum() == 0
    assert json.loads(parts.scripts["data-facts"])["missed"][0]["points"] == 4


@pytest.mark.parametrize(
    ("words", "said"),
    [(["nowhere"], "no run is there"), (["run", "-o", "no/such/x.html"], "cannot be written")],
)
def test_a_wrong_word_is_one_line(
    run: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["report", *(str(run) if word == "run" else word for word in words)]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len([line for line in lines if not line.startswith("report of ")]) == 1  # slow ones say so first
    assert said in lines[-1]
