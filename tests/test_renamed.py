"""Old names stand in workloads/renamed.py alone; wherever one is met, one line says the new name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster import driver
from dse.frontend import api, keys, runs
from dse.mapping.nest import from_data, parse
from dse.mapping.schedule import parse_schedule
from dse.run import folder, record
from dse.study import study as studies
from hw import machine
from tests.test_cli import STUDY
from workloads import renamed

pytestmark = pytest.mark.xdist_group("renamed")

OWN = {"array": "array", "memory": "dram", "compute": "mac"}  # names of edge_array's nodes, by what they are
OLD_LINES = (
    "for m in tiles of 8",
    "spatial n over X in tiles of 2",
    "keep GLB T3 1/2",
    "keep GLB T3 1/2, 1/4 after c",
)


def places(file: str) -> list[tuple[str, str, str]]:
    """(block, old key, new key) of each key of a file that had another name. Rules (mapping[]) never had."""
    own = [key.key for key in keys.listing() if key.file == file]
    split = [key.rpartition(".") for key in own if not key.startswith("mapping[]")]
    return [
        (block, old, new) for block, _, new in split for old, names in renamed.KEYS.items() if new in names
    ]


def refusal(ask: Any, *given: Any) -> str:
    with pytest.raises(ValueError) as fault:
        ask(*given)
    return str(fault.value)


def test_every_old_key_is_met_somewhere() -> None:
    met = {old for file in ("study", "machine") for _, old, _ in places(file)}
    assert met == set(renamed.KEYS)
    assert {(old, new) for file in ("study", "machine") for _, old, new in places(file)} >= {
        (old, new) for old, names in renamed.KEYS.items() for new in names
    }


@pytest.mark.parametrize(("block", "old", "new"), places("study"))
def test_a_study_in_an_old_key_is_told_the_new_one(block: str, old: str, new: str, tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(f"{STUDY}{block}: {{{old}: 1}}\n")
    assert f"{block}.{old} = 1 has a new name; write {block}.{new}" in refusal(studies.load, path)
    path.write_text(STUDY)
    assert f"{block}.{old} = 1 has a new name; write {block}.{new}" in refusal(
        studies.load, path, [f"{block}.{old}=1"]
    )
    if block == "solver":
        assert f"solver.{old} = 1 has a new name; write solver.{new}" in refusal(
            lambda: api.map("gemm:m=2,n=2,k=2", "edge_array", **{f"solver.{old}": 1})
        )


@pytest.mark.parametrize(("block", "old", "new"), places("machine"))
def test_a_machine_in_an_old_key_is_told_the_new_one(block: str, old: str, new: str, tmp_path: Path) -> None:
    said = yaml.safe_load(
        Path(machine.__file__).with_name("machines").joinpath("edge_array.yaml").read_text()
    )
    next(node for node in said["nodes"] if block in node)[old] = 1
    path, name = tmp_path / "mine.yaml", OWN[block]
    path.write_text(yaml.safe_dump(said))
    assert f"{name}.{old} = 1 has a new name; write {name}.{new}" in refusal(machine.load, str(path))
    study = tmp_path / "study.yaml"
    study.write_text(STUDY.replace("space:\n", f"space:\n  {name}.{old}: [1]\n"))
    assert f"has a new name; write {name}.{new}" in refusal(studies.load, study)
    assert f"has a new name; write {name}.{new}" in refusal(
        lambda: api.map("gemm:m=2,n=2,k=2", "edge_array", **{f"{name}.{old}": 1})
    )


@pytest.mark.parametrize(
    ("key", "old", "new"),
    [(key, old, new) for key, own in renamed.VALUES.items() for old, new in own.items()],
)
def test_an_old_value_is_told_the_new_one(key: str, old: str, new: str, tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(STUDY)
    wanted = f'{key} = "{old}" has a new name; write {new}'
    assert wanted in refusal(studies.load, path, [f"{key}={old}"])
    assert wanted in refusal(lambda: api.map("gemm:m=2,n=2,k=2", "edge_array", **{key: old}))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> runs.Run:
    home = tmp_path_factory.mktemp("renamed")
    (home / "study.yaml").write_text(STUDY + "stop: {machines: 2}\nsolver: {mapper: cost_descending}\n")
    driver.run(studies.load(home / "study.yaml"), home / "run", workers=0)
    return runs.open(home / "run")


def views() -> Iterator[tuple[str, str, str]]:
    """(view, old column, what is said of it) of every old column, in each view that has one of the new
    ones."""
    for old, said in renamed.COLUMNS.items():
        for new in re.findall(r"\w+", said):
            yield from ((view, old, said) for view, columns in record.TABLES.items() if new in columns)
        if said == "tied_designs":  # of fronts
            yield "designs", old, said


@pytest.mark.parametrize(("view", "old", "said"), [*views()])
def test_an_old_column_is_told_the_new_one(run: runs.Run, view: str, old: str, said: str) -> None:
    assert f"{old} has a new name; write {said}" in refusal(run.sql, f'SELECT "{old}" FROM {view}')
    assert f"{old} has a new name; write {said}" in refusal(
        run.sql, f"SELECT * FROM {view} AS x WHERE x.{old} IS NOT NULL"
    )
    assert f"its new name is {said}" in refusal(run.front, [old])
    assert f"its new name is {said}" in refusal(lambda: run.front(by=[old]))


def test_every_old_column_is_of_a_view_and_none_is_left() -> None:
    assert {old for _, old, _ in views()} == set(renamed.COLUMNS)
    assert not {name for columns in record.STORED.values() for name in columns} & set(renamed.COLUMNS)


def test_no_internal_view_is_listed(run: runs.Run) -> None:
    shown = {
        row["view_name"]
        for row in run.sql("SELECT view_name FROM duckdb_views() WHERE NOT internal AND schema_name = 'main'")
    }
    assert shown == {*record.TABLES, "designs", "traffic", "components", "workloads"}
    assert re.search(r"no such table; there are (.*)", refusal(run.sql, "FROM qqqqqq"))[1].split(
        ", "
    ) == sorted(shown)  # type: ignore[index]


@pytest.mark.parametrize("line", OLD_LINES)
def test_an_old_line_of_a_mapping_is_told_the_new_form(line: str) -> None:
    now = renamed.line_now(line)
    assert f"has a new form; write {now}" in refusal(
        parse_schedule, f"{line}\nsegment\n  einsum a\n    store DRAM A\n    mac"
    )
    if not line.startswith("keep"):
        assert f"has a new form; write {now}" in refusal(parse, f"store DRAM A B C\n{line}\nmac")


@pytest.mark.parametrize(("old", "new"), [*renamed.ENTRIES.items()])
def test_an_old_entry_of_a_mapping_in_yaml_is_told_the_new_one(old: str, new: str) -> None:
    assert f"{old} has a new name; write {new}" in refusal(from_data, [{old: "n", "over": "X", "tile": 1}])


def test_every_old_line_is_tried() -> None:
    assert all(any(re.fullmatch(old, line) for line in OLD_LINES) for old, _ in renamed.LINES)


def test_a_folder_of_an_older_version_is_one_line(run: runs.Run, tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.mkdir()
    manifest = json.loads((run.path / folder.MANIFEST).read_text())
    (old / "study.yaml").write_text((run.path / "study.yaml").read_text())
    plain = {key: value for key, value in manifest.items() if key not in ("kind", "crc")}
    (old / folder.MANIFEST).write_bytes(
        folder.seal("manifest", {**plain, "version": folder.MANIFEST_VERSION - 1})
    )
    (line,) = refusal(runs.open, old).splitlines()
    assert (
        f"version = {folder.MANIFEST_VERSION - 1}, and this dse reads and writes {folder.MANIFEST_VERSION}"
        in line
    )
    assert "another folder" in line
