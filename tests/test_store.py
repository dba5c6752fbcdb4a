"""The run folder: what is committed stays, what is not does not show, damage is found and put away."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cluster import store as s
from dse.run import folder as folders
from dse.run.folder import part_path
from tests.amount import amount


def read(store: s.Store, table: str, columns: list[str] | None = None) -> pa.Table | None:
    """All committed rows; None if no part has any."""
    parts = [
        s._read_part(store.path / part_path(table, group.name), columns)
        for group in store.groups
        if any(p.table == table for p in group.parts)
    ]
    return pa.concat_tables(parts, promote_options="default") if parts else None


def tables(machines: list[int]) -> dict[str, pa.Table]:
    """Two tables keyed by machine and one that machines share."""
    return {
        "machines": pa.table(
            {"machine": pa.array(machines, pa.int64()), "area_mm2": [m / 7 for m in machines]}
        ),
        "points": pa.table(
            {"machine": pa.array(machines, pa.int64()), "energy_pj": [m * 1.5 for m in machines]}
        ),
        "mappings": pa.table(
            {
                "mapping_key": sorted({f"k{m % 3}" for m in machines}),
                "nest": ["n"] * len({m % 3 for m in machines}),
            }
        ),
    }


def machines(store: s.Store, table: str = "machines") -> list[int]:
    rows = read(store, table, ["machine"])
    return [] if rows is None else sorted(rows["machine"].to_pylist())


def reopened(store: s.Store) -> tuple[s.Store, list[str]]:
    s.close(store)
    return s.open_run(store.path)


def committed(path: Path, groups: int = 3, each: int = 4) -> s.Store:
    store, _ = s.open_run(path)
    for g in range(groups):
        store = s.commit(store, [tables(list(range(g * each, (g + 1) * each)))])
    return store


def test_rows_come_back_and_manifest_lists_relative_paths(tmp_path: Path) -> None:
    store, lines = reopened(committed(tmp_path / "run"))
    assert lines == []
    assert machines(store) == list(range(12)) == machines(store, "points")
    listed = json.loads((tmp_path / "run" / "manifest.json").read_text())["parts"]
    assert sorted(listed) == ["machines", "mappings", "points"]
    assert all(
        (tmp_path / "run" / path).is_file() and not Path(path).is_absolute()
        for paths in listed.values()
        for path in paths
    )


def test_folder_can_be_moved(tmp_path: Path) -> None:
    s.close(committed(tmp_path / "run"))
    (tmp_path / "run").rename(tmp_path / "elsewhere")
    store, lines = s.open_run(tmp_path / "elsewhere")
    assert lines == []
    assert machines(store) == list(range(12))


@pytest.mark.parametrize("harm", ["flip", "cut", "empty", "missing", "swap"])
def test_damaged_part_takes_its_group_away_and_nothing_else(tmp_path: Path, harm: str) -> None:
    store = committed(tmp_path)
    part = tmp_path / store.groups[1].paths()[2]
    data = part.read_bytes()
    if harm == "missing":
        part.unlink()
    elif harm == "swap":
        part.write_bytes((tmp_path / store.groups[0].paths()[2]).read_bytes())
    else:
        flipped = bytes([*data[:90], data[90] ^ 4, *data[91:]])
        part.write_bytes({"flip": flipped, "cut": data[:-9], "empty": b""}[harm])
    store, lines = reopened(store)
    assert len(lines) == 1
    assert str(part) in lines[0]
    assert "\n" not in lines[0]
    assert machines(store) == [0, 1, 2, 3, 8, 9, 10, 11] == machines(store, "points")
    assert reopened(store)[1] == []


@settings(max_examples=amount(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), which=st.integers(0, 8))
def test_any_flipped_bit_of_any_part_is_found(
    tmp_path_factory: pytest.TempPathFactory, where: float, bit: int, which: int
) -> None:
    store = committed(tmp_path_factory.mktemp("run"))
    part = store.path / [path for group in store.groups for path in group.paths()][which]
    data = bytearray(part.read_bytes())
    data[int(where * len(data))] ^= 1 << bit
    part.write_bytes(data)
    store, lines = reopened(store)
    s.close(store)
    assert len(lines) == 1
    assert len(machines(store)) == 8


def test_page_checksums_are_written_and_verified(tmp_path: Path) -> None:
    """Of a flip inside a page, without the manifest's help."""
    store, _ = s.open_run(tmp_path)
    rng = random.Random(7)
    values = [rng.random() for _ in range(4000)]
    store = s.commit(store, [{"points": pa.table({"energy_pj": values})}])
    part = tmp_path / store.groups[0].paths()[0]
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(data)
    with pytest.raises(OSError, match=r"(?i)crc"):
        read(store, "points")
    assert pq.ParquetFile(part).metadata.num_rows == 4000


def test_orphan_foreign_and_unfinished_files_are_put_away(tmp_path: Path) -> None:
    store = committed(tmp_path)
    (tmp_path / "parts/machines/000009-0.parquet").write_bytes(
        (tmp_path / store.groups[0].paths()[0]).read_bytes()
    )
    (tmp_path / "parts/points/notes.txt").write_text("mine")
    (tmp_path / "parts/points/.000010-0.parquet.tmp").write_bytes(b"half")
    (tmp_path / "asks/generation-000001.json").write_text('{"generation": 1')
    store, lines = reopened(store)
    assert len(lines) == 3
    assert machines(store) == list(range(12))
    assert len(list((tmp_path / "quarantine").iterdir())) == 3
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_commit_holds_each_row_once(tmp_path: Path) -> None:
    store = committed(tmp_path)
    with pytest.raises(s.StoreFault, match="machines of machine 21 stand twice in a commit"):
        s.commit(store, [tables([20, 21]), tables([21])])
    own = tables([20, 21])
    with pytest.raises(s.StoreFault, match="points of machine 20 stand twice"):
        s.commit(store, [own | {"points": pa.concat_tables([own["points"], own["points"]])}])
    store = s.commit(store, [tables([20]), tables([21])])
    assert machines(store) == [*range(12), 20, 21]
    s.close(store)


CHANGED = [
    ("[17, ", "[18, "),
    ('"generation": 4', '"generation": 5'),
    ('"seed": 3', '"seed": 2'),
    ('"crc": ', '"crc": 1'),
    ("random", "Random"),
]


@pytest.mark.parametrize("changed", CHANGED)
def test_asks_that_are_not_what_was_written_are_put_away(tmp_path: Path, changed: tuple[str, str]) -> None:
    """Wherever a byte differs; written with other spaces they are still the same."""
    store = committed(tmp_path)
    path = tmp_path / "asks/generation-000004.json"
    whole = folders.seal(
        "asks",
        {
            "generation": 4,
            "identity": "",
            "asks": [[17, "random"]],
            "pruned": [],
            "seen": [],
            "seed": 3,
            "sampler": [],
        },
    )
    path.write_bytes(whole)
    store, lines = reopened(store)
    path.write_text(json.dumps(json.loads(whole), indent=1))
    store, more = reopened(store)
    assert lines == more == []
    assert path.exists()
    path.write_text(whole.decode().replace(*changed))
    store, lines = reopened(store)
    assert not path.exists()
    assert len(lines) == 1
    assert "damaged or foreign" in lines[0]
    assert machines(store) == list(range(12))
    s.close(store)


def test_damaged_manifest_falls_back_to_the_one_before(tmp_path: Path) -> None:
    store = committed(tmp_path)
    text = (tmp_path / "manifest.json").read_text()
    (tmp_path / "manifest.json").write_text(text.replace('"generation": 3', '"generation": 4'))
    store, lines = reopened(store)
    assert machines(store) == list(range(8))
    assert "manifest.json: damaged" in lines[0]
    store = s.commit(store, [tables([8, 9])])
    assert reopened(store)[1] == []
    assert machines(store) == list(range(10))


def test_second_run_is_refused_with_one_line(tmp_path: Path) -> None:
    store = committed(tmp_path)
    code = (
        "from cluster import store\nfrom pathlib import Path\ntry: "
        f"store.open_run(Path({str(tmp_path)!r}))\nexcept store.StoreFault as f: print(f)"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
    ).stdout
    assert said.count("\n") == 1
    assert "another run writes into this folder" in said
    assert f"process {os.getpid()}" in said
    s.close(store)
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
        ).stdout
        == ""
    )


LIMITED = """
import resource, sys
from pathlib import Path
from cluster import store as s
from dse.run import folder as folders
from dse.run.folder import part_path
from tests.amount import amount
from tests.amount import amount
from tests.test_store import tables
store, _ = s.open_run(Path(sys.argv[1]))
store = s.commit(store, [tables(list(range(4)))])
resource.setrlimit(resource.RLIMIT_FSIZE, (2500, resource.RLIM_INFINITY))
import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
try: s.commit(store, [tables([4]), tables(list(range(5, 9000)))])
except s.StoreFault as fault: print(fault)
"""


def test_full_disk_publishes_nothing_wrong(tmp_path: Path) -> None:
    """The limit on the size of a file stands for the disk: the same error path, in any environment."""
    said = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    ).stdout
    assert said.count("\n") == 1
    assert "disk full" in said
    store, lines = s.open_run(tmp_path)
    assert lines == []
    assert machines(store) == [0, 1, 2, 3]
    assert not list(tmp_path.rglob("*.tmp"))


READER = """
import os, sys
from pathlib import Path
from cluster import store as s
from dse.run import folder as folders
from dse.run.folder import part_path
if os.getuid() == 0: os.setuid(65534)
try: s.open_run(Path(sys.argv[1]))
except s.StoreFault as fault: print(fault)
"""


def test_read_only_folder_is_refused_with_one_line() -> None:
    """As an ordinary user, also where the tests run as root."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        s.close(committed(run))
        os.chmod(folder, 0o755)
        for path in [run, *run.rglob("*")]:
            path.chmod(0o555 if path.is_dir() else 0o444)
        said = subprocess.run(
            [sys.executable, "-c", READER, str(run)], capture_output=True, text=True, check=True, timeout=300
        ).stdout
        for path in [run, *run.rglob("*")]:
            path.chmod(0o755)
    assert said.count("\n") == 1
    assert "read-only" in said


def test_merging_keeps_every_row_once_and_bounds_the_parts(tmp_path: Path) -> None:
    store, _ = s.open_run(tmp_path)
    most = 0
    for m in range(60):
        store = s.compact(s.commit(store, [tables([m])]), fan_in=4)
        most = max(most, len(store.groups))
    assert most <= 4 + 4 + 60 // 16
    assert {g.level for g in store.groups} == {0, 1, 2} - ({0} if not 60 % 4 else set())
    store, lines = reopened(store)
    assert lines == []
    assert machines(store) == list(range(60))
    on_disk = {path.relative_to(tmp_path).as_posix() for path in tmp_path.glob("parts/*/*")}
    assert on_disk == {path for g in store.groups for path in g.paths()}


def test_a_row_group_comes_with_the_rows_of_its_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many rows each has in other tables, in parts of several row groups."""
    monkeypatch.setattr(s, "ROW_GROUP", 3)
    numbers = [9, 4, 7, 1, 8, 2, 6]
    rows = [machine for machine in numbers for _ in range(machine % 4)]
    store, _ = s.open_run(tmp_path / "run")
    order = range(len(rows))
    points = pa.table(
        {"machine": pa.array(rows, pa.int64()), "schedule": order, "energy_pj": list(map(float, order))}
    )
    store = s.commit(store, [{"machines": tables(numbers)["machines"], "points": points}])
    found = list(s.row_groups(store, {"machines": ["machine"], "points": ["machine", "energy_pj"]}))
    assert len(found) == 3
    for one in found:
        own = set(one["machines"]["machine"].to_pylist())
        assert sorted(one["points"]["machine"].to_pylist()) == sorted(m for m in rows if m in own)
    energies = [value for one in found for value in one["points"]["energy_pj"].to_pylist()]
    assert sorted(energies) == points["energy_pj"].to_pylist()
    s.close(store)


def test_shared_keys_are_kept_once_per_group(tmp_path: Path) -> None:
    store, _ = s.open_run(tmp_path)
    store = s.commit(store, [tables([0, 1]), tables([2, 3]), tables([4, 5])])
    assert sorted(read(store, "mappings")["mapping_key"].to_pylist()) == ["k0", "k1", "k2"]  # type: ignore[index]


def test_a_reader_of_the_old_manifest_still_finds_its_parts_after_a_merge(tmp_path: Path) -> None:
    store = committed(tmp_path, groups=4)
    before = json.loads((tmp_path / "manifest.json").read_text())["parts"]["machines"]
    store = s.compact(store, fan_in=4)
    store = s.commit(store, [tables([90])])
    assert sum(pq.read_table(tmp_path / path).num_rows for path in before) == 16
    assert len(machines(store)) == 17


def test_retract_takes_back_only_the_machines_named(tmp_path: Path) -> None:
    store = s.retract(committed(tmp_path), [1, 6])
    assert machines(store) == [0, 2, 3, 4, 5, 7, 8, 9, 10, 11] == machines(store, "points")
    assert machines(reopened(store)[0]) == machines(store)


def test_a_column_that_older_parts_lack_is_null_after_a_merge(tmp_path: Path) -> None:
    store = committed(tmp_path, groups=1)
    wider = tables([50])
    wider["points"] = wider["points"].append_column("gap_to_bound", pa.array([0.5]))
    store = s.commit(store, [wider])
    assert read(s.compact(store, fan_in=2), "points").num_rows == 5  # type: ignore[union-attr]


def test_a_merge_lists_points_of_fronts_only_if_all_its_groups_do(tmp_path: Path) -> None:
    store = committed(tmp_path, groups=1)  # as an older dse, which lists none
    listed = tables([50])
    listed["nondominated"] = listed["points"].select(["machine"])
    store = s.commit(store, [listed])
    assert [group.has_nondominated() for group in store.groups] == [False, True]
    (merged,) = s.compact(store, fan_in=2).groups
    assert not merged.has_nondominated()


COMMITTER = """
import sys
from pathlib import Path
from cluster import store as s
from dse.run import folder as folders
from dse.run.folder import part_path
from tests.test_store import machines, tables
store, lines = s.open_run(Path(sys.argv[1]))
m = max(machines(store), default=-1) + 1
print("up", flush=True)
while True:
    store = s.compact(s.commit(store, [tables([m, m + 1])]), fan_in=3)
    print(m + 1, flush=True)
    m += 2
"""


def test_killed_between_any_two_steps_loses_nothing_that_was_published(tmp_path: Path) -> None:
    """kill -9 at random moments of commits and merges, eight times in a row on one folder in full."""
    rng = random.Random(3)
    said = -1
    for _ in range(amount(8, 2)):
        child = subprocess.Popen(
            [sys.executable, "-c", COMMITTER, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        assert child.stdout.readline() == "up\n"
        time.sleep(rng.uniform(0.0, 0.4))
        child.send_signal(signal.SIGKILL)
        printed = child.stdout.read().split()
        child.wait(timeout=300)
        said = int(printed[-1]) if printed and printed[-1].isdigit() else said
        store, lines = s.open_run(tmp_path)
        rows = machines(store)
        s.close(store)
        assert rows == list(range(len(rows))), lines
        assert len(rows) % 2 == 0, lines
        assert len(rows) - 1 >= said, lines
        assert all("\n" not in line for line in lines)


def test_a_file_system_without_flock_is_named_with_the_way_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(handle: int, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(
        s.StoreFault, match=f"has no flock .*; give --out file://{tmp_path}/run, which"
    ) as fault:
        s.open_run(tmp_path / "run")
    assert "\n" not in str(fault.value)
    assert not folders.is_locked(tmp_path / "run")
