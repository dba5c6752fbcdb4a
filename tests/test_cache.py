"""What is kept between runs: whole files, and nothing where the folder cannot be written."""

from __future__ import annotations

from pathlib import Path

import pytest

from dse import cache
from tests.test_layers import FILES, ROOT, imports


def test_a_file_per_question_written_whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DSE_CACHE", str(tmp_path / "cache"))
    one, other = cache.place("map", ("a", 1.0), ".json"), cache.place("map", ("a", 2.0), ".json")
    assert one != other == cache.place("map", ("a", 2.0), ".json")
    cache.keep(one, b"first")
    cache.keep(one, b"second")
    assert one.read_bytes() == b"second" and list((tmp_path / "cache").iterdir()) == [one]
    monkeypatch.setattr(cache, "SOLVER_VERSION", -1)
    assert cache.place("map", ("a", 1.0), ".json") != one


def test_a_folder_that_cannot_be_written_keeps_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("DSE_CACHE", str(tmp_path / "file"))
    cache.keep(cache.place("map", 1, ".json"), b"lost")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_digest_covers_all_code_that_an_answer_depends_on() -> None:
    """Everything that the mappers and the evaluator import, however far; a changed file moves every name."""
    files = {path.relative_to(ROOT).with_suffix("").as_posix(): path for path in FILES}
    todo, found = ["dse/dataflow/frontier", "dse/dataflow/optimal", "dse/sim/evaluate"], set()
    while todo:
        if (name := todo.pop()) not in found:
            found.add(name)
            todo += [module for module in (one.replace(".", "/") for one in imports(files[name])) if module in files]
    own = {path.relative_to(ROOT).with_suffix("").as_posix()
           for name in cache.ANSWERS for path in ([ROOT / name] if name.endswith(".py") else (ROOT / name).rglob("*.py"))}
    assert found <= own | {"dse/cache"}


def test_a_changed_source_moves_every_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for path in ("dse/dataflow/optimal.py", "dse/nest.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("one = 1")
    monkeypatch.setattr(cache, "ANSWERS", ("dse/nest.py", "dse/dataflow"))
    before = cache.sources(tmp_path)
    (tmp_path / "dse/dataflow/optimal.py").write_text("one = 2")
    cache.sources.cache_clear()
    assert cache.sources(tmp_path) != before
    name = cache.place("map", 1, ".json")
    monkeypatch.setattr(cache, "sources", lambda: "other")
    assert cache.place("map", 1, ".json") != name
