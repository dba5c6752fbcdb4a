"""What is kept between runs: whole files, and nothing where the folder cannot be written."""

from __future__ import annotations

from pathlib import Path

import pytest

from dse import cache


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
