"""What users read is in the field's words: no phrase of dialect.txt in documents, help, lists, templates and
screens.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cluster import driver
from dse.frontend import arguments, templates
from dse.frontend.cli import main
from dse.study import study as studies
from tests.documents import ROOT
from tests.test_cli import STUDY

pytestmark = pytest.mark.xdist_group("dialect")

GLOSSARY = ROOT / "docs" / "glossary.md"
EVIDENCE = ROOT / "docs" / "evidence"
PAGES = [
    ROOT / "README.md",
    *(
        p
        for p in sorted((ROOT / "docs").rglob("*.md"))
        if p.name not in ("glossary.md", "evidence.md") and EVIDENCE not in p.parents
    ),
]
LISTS = ("keys", "columns", "solvers", "machines", "workloads")
SCREENS = [
    ("map", "gemm:m=8,n=8,k=8", "edge_array"),
    ("map", "gemm:m=8,n=8,k=8", "a2", "--front"),
    ("map", "mlp_s", "edge_array", "--set", "solver.mapper=cost_descending"),
    ("map", "chain.yaml", "a2", "--set", "solver.schedule=fused"),
    ("map", "chain.yaml", "a2", "--set", "solver.schedule=residency"),
    ("pareto", "run", "--distinct"),
    ("show", "run", "best", "--neighbours"),
    ("status", "run"),
    ("residency", "chain.yaml", "a2"),
    ("check", "chain.yaml"),
]
CHAIN = """\
extents: {m: 16, k: 8, n: 8, p: 8}
einsums: ["T[m,n] += X[m,k] * W[k,n]", "Y[m,p] += T[m,n] * V[n,p]"]
weights: [W, V]
"""


def phrases() -> list[tuple[re.Pattern[str], str]]:
    """(what must not be said, what is said instead)."""
    lines = [
        line
        for line in (ROOT / "tests" / "dialect.txt").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    split = [re.split(r" {2,}", line, maxsplit=1) for line in lines]
    return [(re.compile(banned, re.I), instead) for banned, instead in split]


def found(text: str) -> list[str]:
    """Banned phrases of a text, where they stand and what is said instead."""
    text = " ".join(text.split())
    return [
        f"...{text[max(0, hit.start() - 40) : hit.end() + 40]}... say {instead}"
        for banned, instead in phrases()
        for hit in banned.finditer(text)
    ]


def test_each_phrase_is_found() -> None:
    """The list is read as it is meant, and what is said instead is not banned itself."""
    assert len(phrases()) > 30
    assert not any(found(instead) for _, instead in phrases())
    for text in (
        "224 lanes of 256",
        "einsums in\nturn",
        "handed on",
        "each granule",
        "it rides on its producer",
        "nothing beats it",
        "what stays on chip",
    ):
        assert found(text), text
    assert not found("16 vector lanes")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_documents(page: Path) -> None:
    """Names of the code stand in backticks on the page about the code."""
    text = page.read_text()
    assert found(re.sub(r"`[^`\n]*`", "", text) if page.name == "design.md" else text) == []


def test_help() -> None:
    whole, commands = arguments.parsers()
    assert [hit for parser in (whole, *commands.values()) for hit in found(parser.format_help())] == []


def test_templates() -> None:
    assert [hit for text in templates.TEXTS.values() for hit in found(text)] == []


@pytest.mark.parametrize("what", LISTS)
def test_lists(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", what]) == 0
    assert found(capsys.readouterr().out) == []


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dialect")
    (folder / "study.yaml").write_text(
        STUDY.replace("gemm:m=64,n=32,k=48", "gemm:m=8,n=8,k=8") + "stop: {machines: 4}\n"
    )
    (folder / "chain.yaml").write_text(CHAIN)
    driver.run(studies.load(folder / "study.yaml"), folder / "run", workers=0)
    return folder


@pytest.mark.parametrize("command", SCREENS, ids=" ".join)
def test_screens(
    command: tuple[str, ...], home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No phrase, and no unit in a name where the value carries it."""
    monkeypatch.chdir(home)
    assert main(command) == 0
    said = capsys.readouterr().out
    assert found(said) == []
    assert not re.search(r"\b(energy|latency|area|edp)_(pj|cycles|ns|mm2)", said)
