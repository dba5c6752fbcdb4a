"""What README.md and docs/ show can be typed, and prints what they say; links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dse.frontend.arguments import parsers
from tests import documents
from tests.amount import FULL
from tests.documents import PAGES, ROOT, alike, blocks, commands
from tests.prove.__main__ import PARTS

LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")
OURS = ("dse", "hw", "workloads", "cluster", "analysis", "bench", "studies", "tests", "docs")
LENGTH = 120  # lines of README.md


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if documents.quick(page) and (FULL or page.name == "python.md")],
    ids=lambda p: p.name,
)
def test_what_a_page_shows_holds(page: Path, tmp_path: Path) -> None:
    """One page; the others in make prove PART=docs, and PART=tests."""
    found = list(documents.faults(page, documents.prepared(tmp_path / "here"), long=False))
    assert not found, "\n\n".join(found)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_to_files(page: Path) -> None:
    assert [name for name in LINK.findall(page.read_text()) if not (page.parent / name).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_command_is_run_by_somebody(page: Path) -> None:
    """A block of commands has a kind that is run, or is left out for a reason that holds of each of its
    lines.
    """
    assert [
        one.line
        for one in blocks(page)
        if one.kind not in documents.RUNNABLE and re.search(r"^(\$ )?(dse|make|python) ", one.body, re.M)
    ] == []
    assert [(one.line, lines) for one in blocks(page) if (lines := documents.skipped(one))] == []
    assert documents.unseen(page.read_text()) == []


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name not in documents.SET], ids=lambda p: p.name
)
def test_a_measured_figure_names_its_command_and_commit(page: Path) -> None:
    assert documents.unnamed(page.read_text(), page in documents.MEASURED) == []


def test_evidence_is_one_table_of_claims() -> None:
    """A row has claim, figure, command and commit, and leads to the page behind it; each page says what was
    asked, how it was measured, what it means.
    """
    lines = documents.EVIDENCE.read_text().splitlines()
    table = [line for line in lines if line.startswith("|")]
    found = [documents.CLAIM.fullmatch(line) for line in table[2:]]
    assert len(lines) <= LENGTH
    assert [line for line, match in zip(table[2:], found, strict=True) if not match] == []
    assert {documents.EVIDENCE.parent / match[1] for match in found if match} == set(documents.MEASURED) - {
        documents.EVIDENCE
    }
    for page in documents.MEASURED[1:]:
        text = page.read_text()
        assert "**Asked.** " in text
        assert "**Measured.** " in text
        assert re.search(r"^(## |\*\*)What it means", text, re.M)


def test_figures_without_a_command_are_seen() -> None:
    said = "Runs take 5.0 % less,\nand 3 CPU s."
    assert documents.unnamed(said) == ["1: 5.0 %, 3 CPU s"]
    assert documents.unnamed(f"# A\n\n- one\n- {said}") == ["4: 5.0 %, 3 CPU s"]
    named = f"{said} `make bench BENCH=driver` at `0123abc`."
    assert documents.unnamed(named) == []
    assert documents.unnamed(f"{said} `make bench BENCH=driver`.")
    assert documents.unnamed(f"{said} At `0123abc`.")
    assert documents.unnamed(f"{named}\n\n| a |\n|---|\n| 7 mJ |\n") == []
    assert documents.unnamed(f"{named}\n\nOther text.\n\n| a |\n|---|\n| 7 mJ |\n")
    assert documents.unnamed(f"```console\n$ dse x\n{said}\n```\nup to 64 `s` of `5 %`") == []
    section = "## A\n\n`python -m bench.alt` prints all.\n\n| a |\n|---|\n| 7 mJ |\n\nSo 8 % are left.\n"
    assert documents.unnamed(section, measured=True) == []
    assert documents.unnamed(f"{section}\n## B\n\n7 mJ\n", measured=True) == ["13: 7 mJ"]


def test_few_commands_are_left_out() -> None:
    left = [
        one.mark.removeprefix("not run: ")
        for page in PAGES
        for one in blocks(page)
        if one.mark.startswith("not run")
    ]
    assert len(left) <= 3
    assert set(left) == set(documents.NOT_RUN)


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda p: p.name)
def test_what_a_page_names_exists(page: Path) -> None:
    """Parts of make prove, benches, modules and commands that are named in passing."""
    text = page.read_text()
    parts = {part for found in re.findall(r"PART=([\w|]+)", text) for part in found.split("|")} - {
        "x",
        "models",
        "all",
    }
    assert parts <= set(PARTS)
    modules = re.findall(r"python -m ([\w.]+\w)", text) + [
        f"bench.{name}" for name in re.findall(r"make bench BENCH=(\w+)", text)
    ]
    places = [ROOT.joinpath(*name.split(".")) for name in modules if name.startswith(OURS)]
    assert [
        path
        for path in places
        if not path.with_suffix(".py").exists() and not (path / "__main__.py").exists()
    ] == []
    assert [
        name
        for name in re.findall(rf"(?:{'|'.join(OURS)})/[\w/]+\.(?:py|yaml|txt|md|json)\b", text)
        if not (ROOT / name).exists()
    ] == []
    assert set(re.findall(r"`dse ([a-z]+)[ `]", text)) <= set(parsers()[1])


def test_a_part_by_itself_is_no_command() -> None:
    """It would do nothing, and seem to hold."""
    said = subprocess.run(
        [sys.executable, "-m", "tests.prove.nests"], cwd=ROOT, capture_output=True, text=True
    )
    assert (said.returncode, said.stderr) == (1, "python -m tests.prove nests\n")


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= LENGTH


def test_the_runner_can_fail(tmp_path: Path) -> None:
    page = ROOT / "docs" / "made_up.md"
    page.write_text(
        "```console\n$ echo a\nb\n$ false\n```\n```sh\nfalse\n```\n```python\nassert False\n```\n<!-- not "
        "run: no -->\n```sh\nfalse\n```\n"
    )
    try:
        assert len(list(documents.faults(page, tmp_path, long=True))) == 4
    finally:
        page.unlink()


def test_what_is_left_out_is_seen() -> None:
    assert documents.unseen("text\n\n    $ dse map a b\n")
    assert documents.unseen("* item\n  ```sh\n  dse map a b\n  ```\n")
    assert documents.unseen("~~~\nx\n~~~\n")
    assert not documents.unseen("```sh\ndse map a b\n```\n\n    prose that is indented\n")
    left = documents.Block("sh", "ray start --head\ndse map a b\n", 1, "not run: several machines")
    assert documents.skipped(left) == ["dse map a b"]
    assert documents.skipped(replace(left, mark="not run: no")) == left.body.splitlines()
    assert documents.skipped(replace(left, mark="")) == []


def test_what_is_shown_is_compared() -> None:
    assert alike("a\n...\nc", "a\nb\nb\nc\n")
    assert alike("x ... z", "x y z\n")
    assert alike("", "anything")
    assert not alike("a\n...\nd", "a\nb\nc\n")
    assert not alike("a", "a\nb\n")
    assert not alike("a b", "a.b\n")
    assert list(commands("$ one 'a\nb'\nout\n$ two\n")) == [("one 'a\nb'", "out"), ("two", "")]


def test_what_a_page_shows_can_be_written_anew(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```console\n$ echo a\nb\n$ printf '1\\n2\\n3\\n'\n7\n...\n$ echo c\nc\n```\n")
    documents.rewritten(page, tmp_path)
    assert page.read_text() == "```console\n$ echo a\na\n$ printf '1\\n2\\n3\\n'\n1\n...\n$ echo c\nc\n```\n"
