"""What README.md and docs/ show can be typed, and prints what they say; links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import documents
from tests.documents import PAGES, ROOT, alike, blocks, commands

LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")
LENGTH = 120  # lines of README.md


@pytest.mark.parametrize("page", [page for page in PAGES if documents.quick(page)], ids=lambda p: p.name)
def test_what_a_page_shows_holds(page: Path, tmp_path: Path) -> None:
    found = list(documents.faults(page, documents.prepared(tmp_path / "here"), long=False))
    assert not found, "\n\n".join(found)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_to_files(page: Path) -> None:
    assert [name for name in LINK.findall(page.read_text()) if not (page.parent / name).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_command_is_run_by_somebody(page: Path) -> None:
    """A block of commands has a kind that is run, or says why it is not."""
    assert [one.line for one in blocks(page) if one.kind not in documents.RUNNABLE and re.search(r"^(\$ )?(dse|make|python) ", one.body, re.M)] == []


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= LENGTH


def test_the_runner_can_fail(tmp_path: Path) -> None:
    page = ROOT / "docs" / "made_up.md"
    page.write_text("```console\n$ echo a\nb\n$ false\n```\n```sh\nfalse\n```\n```python\nassert False\n```\n<!-- not run: no -->\n```sh\nfalse\n```\n")
    try:
        assert len(list(documents.faults(page, tmp_path, long=True))) == 4
    finally:
        page.unlink()


def test_what_is_shown_is_compared() -> None:
    assert alike("a\n...\nc", "a\nb\nb\nc\n") and alike("x ... z", "x y z\n") and alike("", "anything")
    assert not alike("a\n...\nd", "a\nb\nc\n") and not alike("a", "a\nb\n") and not alike("a b", "a.b\n")
    assert list(commands("$ one 'a\nb'\nout\n$ two\n")) == [("one 'a\nb'", "out"), ("two", "")]


def test_what_a_page_shows_can_be_written_anew(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```console\n$ echo a\nb\n$ printf '1\\n2\\n3\\n'\n7\n...\n$ echo c\nc\n```\n")
    documents.rewritten(page, tmp_path)
    assert page.read_text() == "```console\n$ echo a\na\n$ printf '1\\n2\\n3\\n'\n1\n...\n$ echo c\nc\n```\n"
