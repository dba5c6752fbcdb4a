"""A run in one file: it answers and is priced again like its folder; a file of others leads nowhere else."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import pytest

import dse
from cluster import driver
from dse.frontend import cli, point_files
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


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two workloads, one in a file and unfused, on parameters of all kinds."""
    home = tmp_path_factory.mktemp("two")
    (home / "study.yaml").write_text(
        STUDY.replace("[net.yaml]", "[net.yaml, 'gemm:m=8,n=8,k=8']")
        + "solver: {fuse_elementwise: false}\nstop: {machines: 1}\n"
    )
    text = (home / "study.yaml").read_text()
    space = (
        "{array.x: [2], gbuf.capacity: [1234567 B], gbuf.width_bits: [64], gbuf.actions_per_cycle: [.inf], "
        "clock_mhz: [400], gbuf.double_buffer: [true], dram.bandwidth: [3.7 GB/s], gbuf.kind: [custom], "
        "gbuf.read_pj: [1.5], gbuf.write_pj: [2], gbuf.leak_mw: [0], gbuf.area_mm2: [0.1]}"
    )
    (home / "study.yaml").write_text(
        "\n".join(f"space: {space}" if line.startswith("space") else line for line in text.splitlines())
    )
    (home / "net.yaml").write_text(NET.replace('"]', '", "D[m,n] = relu(C[m,n])"]'))
    driver.run(studies.load(home / "study.yaml"), home / "two", workers=0)
    return home / "two"


@pytest.mark.parametrize("form", ["text", "timeloop", "accelforge", "directives"])
def test_an_exported_point_is_priced_by_the_commands_that_it_prints(
    run: Path,
    two: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    form: str,
) -> None:
    """Without the run, whatever the kind of a parameter; in the form of --format, too. Directives have no
    word for what is no product.
    """
    home = run if form == "directives" else two
    out, shown = tmp_path / "out", dse.open(home).show("best")
    monkeypatch.setenv("DSE_CACHE", str(tmp_path / "no cache"))
    assert cli.main(["show", str(home), "best", "--export", str(out), "--format", form]) == 0
    lines = capsys.readouterr().out.splitlines()
    commands = [line.partition("; dse ")[2] for line in lines if "; dse " in line]
    for command, one in zip(commands, shown.solutions, strict=True):
        assert cli.main([*shlex.split(command), "--format", "json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert [found[key] for key in ("energy_pj", "latency_cycles", "area_mm2")] == [
            one.totals[key] for key in ("energy_pj", "latency_cycles", "area_mm2")
        ]
    monkeypatch.chdir(out)  # as README.txt says, from the folder alone
    text = (out / "README.txt").read_text()
    own = [line.split("dse ", 1)[1] for line in text.splitlines() if line.startswith("    dse ")]
    assert len(own) == len(commands)
    for command in own:
        assert cli.main(shlex.split(command)) == 0
    assert ("Built into dse" in text) == any("is built into dse" in line for line in lines)
    assert len([path for path in out.iterdir() if form in path.name]) == len(commands) * (form != "text")
    assert {line.partition(": ")[0] for line in lines} | {str(out / "0_net.yaml")} == {
        *map(str, out.iterdir())
    }


def test_a_point_is_not_exported_where_its_files_would_not_say_all_of_it(run: Path, tmp_path: Path) -> None:
    """Bits that a study gives to a workload are in no file; what stands in a folder is left alone."""
    (tmp_path / "net.yaml").write_text(NET)
    text = STUDY.replace("[net.yaml]", "[{workload: net.yaml, bits: {B: 4}}]") + "stop: {machines: 1}\n"
    (tmp_path / "study.yaml").write_text(text)
    driver.run(studies.load(tmp_path / "study.yaml"), tmp_path / "bits", workers=0)
    for path, out, words in (
        (tmp_path / "bits", "out", "net: files do not say all of this point"),
        (run, "bits", "holds something already; give a new folder"),
    ):
        opened = dse.open(path)
        with pytest.raises(ValueError, match=words):
            point_files.write(opened, opened.show("best"), tmp_path / out, "text", lambda _: "")
    assert not (tmp_path / "out").exists()
