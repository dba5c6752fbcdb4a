"""A run in one file: it answers and is priced again like its folder; a file of others leads nowhere else."""

from __future__ import annotations

import json
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import pytest

import dse
from cluster import driver
from dse.frontend import cli
from dse.run import folder, pack
from dse.study import study as studies

STUDY = """
name: small
workloads: [net.yaml]
machine: edge_array
space: {array.x: [2, 4], gbuf.capacity: [32 KiB, 64 KiB]}
objectives: [energy_pj, area_mm2]
"""
NET = 'extents: {m: 8, n: 4, k: 6}\neinsums: ["C[m,n] += A[m,k] * B[k,n]"]\n'


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    home = tmp_path_factory.mktemp("home")
    (home / "study.yaml").write_text(STUDY)
    (home / "net.yaml").write_text(NET)
    driver.run(studies.load(home / "study.yaml"), home / "small", workers=0)
    return home / "small"


def test_a_packed_run_answers_like_its_folder(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DSE_CACHE", str(tmp_path / "no cache"))
    file = tmp_path / "small.zip"
    assert cli.main(["pack", str(run), "-o", str(file)]) == 0
    for words in (["sql", "FROM designs"], ["pareto"], ["show", "best", "--why"]):
        answers = []
        for path in (run, file):
            capsys.readouterr()
            assert cli.main([words[0], str(path), *words[1:], "--format", "json"]) == 0
            answers.append(json.loads(capsys.readouterr().out))
        assert answers[0] == answers[1]
    assert dse.open(file).show("best").solutions[0].totals == dse.open(run).show("best").solutions[0].totals


def test_packing_is_repeatable_and_overwrites_nothing(run: Path, tmp_path: Path) -> None:
    files = [tmp_path / "a.zip", tmp_path / "b.zip"]
    for file in files:
        pack.pack(run, file)
    assert files[0].read_bytes() == files[1].read_bytes()
    with pytest.raises(ValueError, match="cannot be written"):
        pack.pack(run, files[0])
    with pytest.raises(ValueError, match="no run is there"):
        pack.pack(tmp_path / "absent", tmp_path / "c.zip")


@pytest.mark.parametrize("name", ["../study.yaml", "/tmp/x", "a/../../x", "inputs/a/b/c", "deflated"])
def test_a_file_of_others_is_no_way_out(tmp_path: Path, name: str) -> None:
    file = tmp_path / "x.zip"
    with ZipFile(file, "w", ZIP_DEFLATED if name == "deflated" else 0) as archive:
        archive.writestr("study.yaml", "a")
        archive.writestr(name, "a" * 100)
    with pytest.raises(ValueError, match="is no packed run"):
        dse.open(file)


def test_a_changed_part_is_seen(run: Path, tmp_path: Path) -> None:
    file, changed = tmp_path / "a.zip", tmp_path / "b.zip"
    pack.pack(run, file)
    with ZipFile(file) as old, ZipFile(changed, "w") as new:
        for entry in old.infolist():
            data = old.read(entry)
            new.writestr(entry.filename, data[:-9] + b"x" + data[-8:] if "points" in entry.filename else data)
    with pytest.raises(folder.Damaged):
        dse.open(changed).sql("FROM points")
