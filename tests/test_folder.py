"""A run folder that was damaged, forged, or made elsewhere: named in one line, mended where it can be,
harmless always.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from cluster import driver
from cluster import store as stores
from cluster.pruning import BoundPruner
from dse.frontend import check, cli
from dse.run import folder, record
from dse.run.folder import Damaged
from dse.study import study as studies
from tests.amount import some
from tests.test_driver import Rows, rows, study

pytestmark = pytest.mark.xdist_group("folder")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Rows]:
    home = tmp_path_factory.mktemp("finished")
    driver.run(study(home, "nsga2", 8, "machines: 30"), home / "run", workers=0)
    return home / "run", rows(home / "run")


@pytest.fixture
def run(finished: tuple[Path, Rows], tmp_path: Path) -> Path:
    shutil.copytree(finished[0], tmp_path / "run")
    return tmp_path / "run"


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, list[str]]:
    code = cli.main(words)
    out, err = capsys.readouterr()
    return code, out, err.splitlines()


def resealed(run: Path, change: Callable[[dict[str, Any]], object]) -> None:
    value = folder.unseal(run / folder.MANIFEST, "manifest")
    assert value is not None
    change(value)
    (run / folder.MANIFEST).write_bytes(folder.seal("manifest", value))


def test_a_sealed_file_is_of_its_kind_and_every_byte_counts(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(folder.seal("asks", {"generation": 3}))
    assert folder.unseal(path, "asks") == {"generation": 3}
    assert folder.unseal(path, "status") is None
    data = path.read_bytes()
    for i in range(len(data)):
        path.write_bytes(bytes([*data[:i], data[i] ^ 1, *data[i + 1 :]]))
        assert folder.unseal(path, "asks") is None


NAMES = (folder.ENV, folder.STUDY, "inputs/a2.yaml", folder.STATUS, folder.MANIFEST, folder.PREVIOUS_MANIFEST)


@pytest.mark.parametrize(
    ("harm", "name"), some(product(("lost", "flipped", "another"), NAMES), 0, 1, 4, 7, 10, 12)
)
def test_what_is_lost_or_damaged_is_said_and_mended(
    run: Path, finished: tuple[Path, Rows], name: str, harm: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = run / name
    data = path.read_bytes()
    right = said(capsys, "sql", str(run), "FROM points ORDER BY ALL", "--format", "csv")
    path.unlink() if harm == "lost" else path.write_bytes(
        bytes([*data[:40], data[40] ^ 2, *data[41:]])
        if harm == "flipped"
        else (run / "asks" / "generation-000001.json").read_bytes()
    )
    code, out, err = said(capsys, "sql", str(run), "FROM points ORDER BY ALL", "--format", "csv")
    assert (code == 0 and out == right[1]) or (
        code == 1 and not out and err and all(str(run) in line for line in err)
    )
    code, out, err = said(capsys, "resume", str(run), "--workers", "0")
    assert code == 0
    assert rows(run) == finished[1]
    assert name in (folder.STATUS, folder.PREVIOUS_MANIFEST) or any(
        Path(name).name in line for line in err
    ), err
    assert said(capsys, "sql", str(run), "FROM points ORDER BY ALL", "--format", "csv")[:2] == right[:2]


def test_a_lost_env_does_not_let_another_study_take_the_rows(
    run: Path, tmp_path: Path, finished: tuple[Path, Rows]
) -> None:
    (run / folder.ENV).unlink()
    study(tmp_path, "nsga2", 8, "machines: 30")
    other = studies.load(tmp_path / "nsga2.yaml", ["solver.objective=latency"])
    with pytest.raises(stores.StoreFault, match=r"its rows are of another study .* give another --out"):
        driver.run(other, run, workers=0)
    assert rows(run) == finished[1]


def test_rows_whose_key_is_another_ones_are_refused(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BoundPruner, "keys", lambda ruler, digits: ["0" * 16] * len(digits))
    with pytest.raises(stores.StoreFault, match=r"machine .* has the key .*, which is none of this study"):
        driver.resume(run, workers=0)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the same study with another seed."""
    home = tmp_path_factory.mktemp("other")
    study(home, "nsga2", 8, "machines: 30")
    driver.run(studies.load(home / "nsga2.yaml", ["search.seed=2"]), home / "run", workers=0)
    return home / "run"


ANSWERS = ("sql", "FROM points ORDER BY ALL", "--format", "csv")


def bytes_of(run: Path) -> dict[Path, bytes]:
    return {
        path: path.read_bytes() for path in sorted(run.rglob("*")) if path.is_file() and path.name != ".lock"
    }


FOREIGN = [
    "asks/generation-000001.json",
    folder.MANIFEST,
    folder.PREVIOUS_MANIFEST,
    folder.ENV,
    folder.STATUS,
    "parts/points/{}.parquet",
    "parts/points/000999-0.parquet",
]


@pytest.mark.parametrize("name", some(FOREIGN, 0, 1, 3, 5))
def test_a_file_of_another_seed_is_refused_and_nothing_is_changed(
    run: Path, other: Path, finished: tuple[Path, Rows], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run went on: rows stood twice, or all machines were solved anew; both with exit code 0. `dse sql`
    does not advise a resume that refuses.
    """
    name = name.format(folder.read(run).groups[0].name)
    source = other / name if "points" not in name else next((other / "parts" / "points").iterdir())
    shutil.copy(source, run / name)
    before, own, its = bytes_of(run), folder.read(finished[0]).identity, folder.read(other).identity
    code, _, err = said(capsys, "sql", str(run), "FROM points ORDER BY ALL")
    assert code in (0, 1)
    assert [line for line in err if f"{run / name}: of another run" not in line or "mends" in line] == []
    code, out, err = said(capsys, "resume", str(run), "--workers", "0")
    assert (code, out, len(err)) == (2, "", 1)
    heads = name.endswith("json") and "/" not in name
    line = (
        f"{run / name} of study {its}"
        if heads
        else f"{run / name}: of another run (study {its}, this one is {own})"
    )
    assert line in err[0]
    assert "nothing was changed" in err[0]
    assert bytes_of(run) == before
    (run / name).unlink()
    assert said(capsys, "resume", str(run), "--workers", "0")[0] == 0
    assert rows(run) == finished[1]


def test_a_run_of_the_study_names_a_file_of_another_seed_too(
    run: Path, other: Path, finished: tuple[Path, Rows], tmp_path: Path
) -> None:
    """Also env.json, which else says that the study at hand is another one."""
    study(tmp_path, "nsga2", 8, "machines: 30")
    own = studies.load(tmp_path / "nsga2.yaml")
    for name in (folder.MANIFEST, folder.ENV):
        data = (run / name).read_bytes()
        shutil.copy(other / name, run / name)
        with pytest.raises(stores.OtherStudy, match=f"{name}: of another run .* nothing was changed"):
            driver.run(own, run, workers=0)
        (run / name).write_bytes(data)
    assert driver.run(own, run, workers=0).exit_code == 0
    assert rows(run) == finished[1]


def test_many_files_of_another_seed_are_one_line(
    run: Path, other: Path, finished: tuple[Path, Rows], capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where the manifests are lost, so that only study.yaml says whose folder it is."""
    for name in (folder.MANIFEST, folder.PREVIOUS_MANIFEST):
        (run / name).unlink()
    for path in (other / "asks").iterdir():
        shutil.copy(path, run / "asks")
    code, _, err = said(capsys, "resume", str(run), "--workers", "0")
    assert code == 2
    assert len(err) == 1
    assert "generation-000000.json, " in err[0]
    assert " files): of another run (" in err[0]
    for path in (run / "asks").iterdir():
        path.unlink()
    assert said(capsys, "resume", str(run), "--workers", "0")[0] == 0
    assert rows(run) == finished[1]


def test_a_status_behind_the_rows_is_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """status.json of some sessions before says too little; one commit more is what opening a run may do."""
    store, _ = stores.open_run(run)
    for code in (0, 0, 1):
        assert said(capsys, "status", str(run))[0] == code
        store = stores.commit(
            store, [{"events": stores._read_part(next((run / "parts" / "events").iterdir()))}]
        )
    stores.close(store)
    code, out, err = said(capsys, "status", str(run))
    assert (code, out, len(err)) == (1, "", 1)
    assert f"{folder.STATUS}: tells of generation" in err[0]


@pytest.mark.parametrize("harm", [folder.STUDY, "inputs/a2.yaml"])
def test_a_status_is_of_a_study_that_is_whole(
    run: Path, harm: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Though it reads the study only where env.json says that something differs."""
    assert said(capsys, "status", str(run))[0] == 0
    (run / harm).write_bytes((run / harm).read_bytes() + b"\n# another")
    code, out, err = said(capsys, "status", str(run))
    assert (code, out, len(err)) == (1, "", 1)
    assert "not what the run wrote" in err[0]


def test_rows_of_another_model_are_told_from_those_of_another_study(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though this version reads the machine another way, and has keys that the run's had not."""
    manifest = folder.read(run)
    identity = (folder.env(run, manifest) or {})["identity"]
    read_now = identity | {"machine": "a2 0123456789abcdef", "solver.new": "1", "solver_version": "99"}
    folder.raise_if_other_study(run, manifest, read_now)
    for key in ("solver.gap", "workloads", "space"):
        with pytest.raises(Damaged, match="not the study of the rows"):
            folder.raise_if_other_study(run, manifest, read_now | {key: "other"})
    with pytest.raises(
        folder.OtherVersion, match=r"solver \d+, this is model 99, solver 99: costs have changed"
    ):
        folder.raise_if_other_study(run, manifest, read_now | {"model_version": "99"})
    monkeypatch.setattr(record, "MODEL_VERSION", record.MODEL_VERSION + 1)
    code, out, err = said(capsys, "status", str(run))
    assert (code, len(err)) == (0, 1)
    written = f"written by model {record.MODEL_VERSION - 1}, solver {record.SOLVER_VERSION}"
    assert written in err[0]
    for command in (["pareto"], ["show", "best"], ["sql", "FROM points"]):
        code, out, err = said(capsys, command[0], str(run), *command[1:])
        assert (code, out, len(err)) == (1, "", 1)
        assert f"{written}, this is model {record.MODEL_VERSION}, " in err[0]
    assert f"(by {written[11:]}: other costs)" in said(capsys, "runs", str(run.parent))[1]
    (run / folder.STUDY).write_bytes((run / folder.STUDY).read_bytes() + b"\n# another")
    assert "not what the run wrote" in said(capsys, "status", str(run))[2][0]
    with pytest.raises(Damaged, match="not the study of the rows"):
        folder.raise_if_other_study(run, manifest, read_now)


@pytest.mark.parametrize("harm", ["missing", "damaged"])
def test_a_lost_list_of_a_front_loses_no_row(
    run: Path, harm: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Points have what it lists."""
    asked = ("SELECT count(*) FROM machines", "SELECT machine, schedule, energy_pj FROM points ORDER BY ALL")
    before = [said(capsys, "pareto", str(run)), *(said(capsys, "sql", str(run), one) for one in asked)]
    for part in (run / "parts/nondominated").iterdir():
        if harm == "missing":
            part.unlink()
        else:
            part.write_bytes(b"?" * part.stat().st_size)
    again = [said(capsys, "pareto", str(run)), *(said(capsys, "sql", str(run), one) for one in asked)]
    assert [(code, out) for code, out, _ in again] == [(code, out) for code, out, _ in before]
    assert "is lost or damaged: fronts are read from all points" in " ".join(
        said(capsys, "status", str(run))[1].split()
    )
    store, _ = stores.open_run(run)
    assert store.groups
    assert not any(part.table == folder.NONDOMINATED for group in store.groups for part in group.parts)
    stores.close(store)


def test_a_run_of_other_solvers_is_read(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "SOLVER_VERSION", record.SOLVER_VERSION + 1)
    for command in ("status", "pareto"):
        assert said(capsys, command, str(run))[0] == 0


def test_a_status_of_another_run_is_refused(
    run: Path, other: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(other / folder.STATUS, run)
    code, out, err = said(capsys, "status", str(run))
    assert (code, out, len(err)) == (1, "", 1)
    assert "lost, damaged or of another run" in err[0]


def test_a_part_says_of_which_run_and_place_it_is(
    run: Path, other: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Though the manifest has its length and checksum."""
    groups = folder.read(run).groups
    at = next(i for i, part in enumerate(groups[0].parts) if part.table == "points")
    path, there = run / groups[0].paths()[at], next((other / "parts" / "points").iterdir())
    others = [one for one in sorted((run / "parts" / "points").iterdir()) if one != path]
    for source in (there, *others[:1]):
        shutil.copy(source, path)
        resealed(
            run,
            lambda m: m["groups"][0]["parts"][at].__setitem__(
                slice(1, 3), [path.stat().st_size, folder.crc(path)]
            ),
        )
        code, out, err = said(capsys, *ANSWERS[:1], str(run), *ANSWERS[1:])
        assert (code, out, len(err)) == (1, "", 1)
        assert f"{path}: says that it is " in err[0]


def test_rows_that_stand_twice_are_refused_and_taken_back(
    run: Path, finished: tuple[Path, Rows], capsys: pytest.CaptureFixture[str]
) -> None:
    store, _ = stores.open_run(run)
    group = {
        part.table: stores._read_part(run / path)
        for part, path in zip(store.groups[0].parts, store.groups[0].paths(), strict=True)
    }
    stores.close(stores.commit(store, [{table: group[table] for table in stores.UNIQUE_TABLES}]))
    for words in (ANSWERS, ("pareto", "--format", "csv"), ("show", "best")):
        code, out, err = said(capsys, words[0], str(run), *words[1:])
        assert (code, out, len(err)) == (1, "", 1)
        assert "stand twice" in err[0]
        assert "dse resume" in err[0]
    code, _, err = said(capsys, "resume", str(run), "--workers", "0")
    assert code == 0
    assert any("rows stand twice" in line for line in err)
    assert rows(run) == finished[1]
    assert said(capsys, *ANSWERS[:1], str(run), *ANSWERS[1:])[0] == 0


def test_a_manifest_behind_its_parts_has_lost_rows(
    run: Path, finished: tuple[Path, Rows], capsys: pytest.CaptureFixture[str]
) -> None:
    """Manifests and status.json went back together; parts that were written later are still there."""
    shutil.copytree(run, run.with_name("early"))
    store, _ = stores.open_run(run)
    for _ in range(2):
        store = stores.commit(
            store, [{"events": stores._read_part(next((run / "parts" / "events").iterdir()))}]
        )
    stores.close(store)
    for name in (folder.MANIFEST, folder.PREVIOUS_MANIFEST, folder.STATUS):
        shutil.copy(run.with_name("early") / name, run)
    code, out, err = said(capsys, *ANSWERS[:1], str(run), *ANSWERS[1:])
    assert (code, out, len(err)) == (1, "", 1)
    assert "is older than parts are" in err[0]
    assert said(capsys, "resume", str(run), "--workers", "0")[0] == 0
    assert rows(run) == finished[1]


FORGED: dict[str, Callable[[dict[str, Any]], object]] = {
    "a group above": lambda m: m["groups"][0].update(name="../../../victim"),
    "a group that is a path": lambda m: m["groups"][0].update(name="000001-0/x"),
    "a table above": lambda m: m["groups"][0]["parts"][0].__setitem__(0, "../../.."),
    "retired above": lambda m: m.update(retired=["../victim.parquet"]),
    "a group twice": lambda m: m["groups"].append(m["groups"][0]),
    "a size that is none": lambda m: m["groups"][0]["parts"][0].__setitem__(1, -1),
    "groups of another kind": lambda m: m.update(groups={"a": 1}),
    "no groups": lambda m: m.pop("groups"),
    "a generation that is none": lambda m: m.update(generation="9"),
    "version 99": lambda m: m.update(version=99),
    "no version": lambda m: m.pop("version"),
}


@pytest.mark.parametrize("kind", FORGED)
def test_a_forged_manifest_moves_no_file_and_is_one_line(
    run: Path, tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "victim.parquet").write_text("mine")
    resealed(run, FORGED[kind])
    before = sorted(str(path) for path in run.rglob("*"))
    for command in ("sql", "status", "pareto", "show", "resume"):
        words = [
            command,
            str(run),
            *{"sql": ["FROM machines"], "show": ["best"], "resume": ["--workers", "0"]}.get(command, []),
        ]
        code, out, err = said(capsys, *words)
        assert code == 1, (words, err)
        assert not out, (words, err)
        assert len(err) == 1, (words, err)
        assert "manifest.json" in err[0], (words, err)
    assert (tmp_path / "victim.parquet").read_text() == "mine"
    assert sorted(str(path) for path in run.rglob("*")) == before


PLACES = (
    ".lock",
    "status.json",
    "env.json",
    "manifest.json",
    "study.yaml",
    "quarantine",
    "parts",
    "asks",
    "log",
    "parts/points",
    "log/actor-0001.log",
)


KINDS = [
    *((name, kind) for name in PLACES for kind in ("link", "pipe")),
    (".lock", "hard link"),
    ("log/actor-0001.log", "hard link"),
]


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_links_and_pipes_are_not_followed(
    run: Path, tmp_path: Path, name: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "theirs").write_text("somebody's")
    path = run / name
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    path.symlink_to(tmp_path / "theirs") if kind == "link" else os.mkfifo(
        path
    ) if kind == "pipe" else os.link(tmp_path / "theirs", path)
    code, out, err = said(capsys, "resume", str(run), "--workers", "0")
    assert code == 1, err
    assert not out, err
    assert len(err) == 1, err
    assert name in err[0], err
    assert "remove it" in err[0], err
    assert (tmp_path / "theirs").read_text() == "somebody's"
    if (name, kind) != (".lock", "hard link"):
        code, out, err = said(capsys, "sql", str(run), "FROM machines")
        assert code == 1
        assert not out
        assert any(name in line for line in err)


def test_a_study_made_elsewhere_reads_nothing_outside_of_its_folder(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "theirs.yaml").write_text("somebody's")
    (run / folder.ENV).unlink()
    text = (run / folder.STUDY).read_text()
    for wrong in (
        text.replace("machine: inputs/a2.yaml", f"machine: {tmp_path}/theirs.yaml"),
        text.replace("machine: inputs/", "machine: ../"),
        text.replace("- gemm:m=64,n=32,k=48", f"- {{file: {tmp_path}/theirs.yaml}}"),
        text.replace("- gemm:m=64,n=32,k=48", "- ../theirs.yaml"),
    ):
        assert wrong != text
        (run / folder.STUDY).write_text(wrong)
        for words in (["sql", str(run), "FROM machines"], ["resume", str(run), "--workers", "0"]):
            code, _out, err = said(capsys, *words)
            assert code == 2, err
            assert len(err) == 1, err
            assert "leads out of the run's folder" in err[0], err


def test_a_lock_that_was_taken_away_stops_the_run_before_it_publishes(tmp_path: Path) -> None:
    def taken(status: driver.Status) -> None:
        (tmp_path / "run" / ".lock").unlink(missing_ok=True)

    with pytest.raises(stores.StoreFault, match="removed or replaced"):
        driver.run(study(tmp_path), tmp_path / "run", workers=0, progress=taken)


def test_damaged_groups_are_left_out_on_request_only(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    part = run / folder.read(run).groups[-1].paths()[0]
    part.write_bytes(part.read_bytes()[:-1])
    for words in (
        ["sql", str(run), "SELECT count(*) FROM machines"],
        ["status", str(run)],
        ["pareto", str(run)],
        ["show", str(run), "best"],
    ):
        code, out, err = said(capsys, *words)
        assert code == 1
        assert not out
        assert len(err) == 1
        assert part.name in err[0]
        assert "resume" in err[0]
        assert "--skip-damaged" in err[0]
        code, out, err = said(capsys, *words, "--skip-damaged")
        assert code == 0
        told = out if words[0] == "status" else "\n".join(err)
        assert part.name in told
        left_out = sum(one.rows for one in folder.read(run).groups[-1].parts if one.table == "machines")
        assert words[0] == "status" or f"{left_out} machines are left out" in told


def test_the_status_of_a_run_that_goes_on_tells_of_damage(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = run / folder.read(run).groups[-1].paths()[0]
    part.write_bytes(part.read_bytes()[:-1])
    facts = folder.status(run, folder.read(run).identity) or {}
    monkeypatch.setattr(
        folder, "status", lambda *_: facts | {"state": "running", "process": "1 on elsewhere"}
    )
    found = check.status(run, skip_damaged=False)
    assert found["state"] == "running"
    assert part.name in found["damaged"][0]


def test_a_manifest_that_went_back_is_found(run: Path, finished: tuple[Path, Rows]) -> None:
    """By the one before it, or by status.json: nothing else would tell that rows are gone."""
    shutil.copy(run / folder.PREVIOUS_MANIFEST, run / folder.MANIFEST)
    with pytest.raises(Damaged, match=r"older than status.json says"):
        check.status(run, False)
    assert driver.resume(run, workers=0).exit_code == 0
    assert rows(run) == finished[1]
    check.status(run, False)
