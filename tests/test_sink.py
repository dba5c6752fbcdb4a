"""`sink: worker`: rows are those that the driver would have written, whoever writes, merges, fails or comes
twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cluster import driver, objects, sink
from cluster import store as stores
from cluster.store import RunFault, StoreFault
from cluster.worker import Ask, Done, Lease, event, job_of, solve_lease, tables_of
from dse.frontend import runs
from dse.run import folder
from dse.study.study import Study
from tests.commands import dse, good
from tests.test_driver import Rows, faulty, front, rows, study, with_mapper
from tests.test_objects import Faulty

pytestmark = pytest.mark.xdist_group("sink")

ROOT = Path(__file__).resolve().parent.parent
SIZE = 48  # machines that are solved


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    home = tmp_path_factory.mktemp("expected")
    driver.run(study(home, stop=f"machines: {SIZE}"), home / "run", workers=0)
    return rows(home / "run")


@pytest.fixture(autouse=True)
def _small_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit with every third lease; three groups make one of the next level."""
    monkeypatch.setattr(driver, "COMMIT_ROWS", 8)
    monkeypatch.setattr(driver, "LEASE_S", 0.02)
    monkeypatch.setattr(driver, "MAX_PER_LEASE", 3)
    monkeypatch.setattr(stores, "FAN_IN", 3)


def by_workers(home: Path, machines: int = SIZE) -> Study:
    return replace(study(home, stop=f"machines: {machines}"), sink="worker")


def names(out: Path) -> dict[str, int]:
    """Groups that workers wrote -> their level."""
    return {group.name: group.level for group in folder.read(out).groups if group.is_by_worker()}


def test_rows_are_those_that_the_driver_writes_also_where_sinks_take_turns(
    tmp_path: Path, expected: Rows
) -> None:
    out = tmp_path / "run"
    assert driver.run(by_workers(tmp_path, 24), out, workers=0).exit_code == 0
    assert max(names(out).values()) > 0, "none was merged"
    driver.run(study(tmp_path, stop="machines: 30"), out, workers=0)
    assert driver.run(by_workers(tmp_path), out, workers=0).exit_code == 0
    assert rows(out) == expected
    assert driver.resume(out, workers=0).solved == 0
    assert not list(out.glob("quarantine/*"))


def is_listed(out: Path) -> bool:
    """Whether fronts are read from what commits list of them."""
    views = "SELECT sql FROM duckdb_views() WHERE view_name = 'front_rows'"
    return "read_parquet" in runs.open(out).con.execute(views).fetchall()[0][0]


def machines_of(out: Path, group: folder.Group, name: str) -> set[int]:
    if name not in [part.table for part in group.parts]:
        return set()
    found = pq.read_table(out / folder.part_path(name, group.name), columns=["machine"])
    return set(found["machine"].to_pylist())


def unlisted(out: Path, group: folder.Group) -> set[int]:
    return machines_of(out, group, "points") - machines_of(out, group, "nondominated")


def take_back(out: Path, machine: int) -> None:
    store, _ = stores.open_run(out)
    stores.close(stores.retract(store, [machine]))


def test_a_front_is_that_of_all_points_whatever_becomes_of_its_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both sinks and their merges, an error, damage, machines that are taken back."""
    out = tmp_path / "run"
    monkeypatch.setattr(driver, "COMMIT_ROWS", 100)  # some points of a commit dominate others
    monkeypatch.setattr(driver, "COMMIT_S", 1e9)
    with monkeypatch.context() as patch:
        small = study(tmp_path, "random", 40, "machines: 60")
        driver.run(with_mapper(small, patch, faulty), out, workers=0)
    small = replace(study(tmp_path, "random", 40, "machines: 120"), sink="worker")
    driver.run(small, out, workers=0)
    whole = front(out)
    assert len(whole) > 3
    assert is_listed(out)
    assert any(group.level for group in folder.read(out).groups)

    damaged = next(
        out / folder.part_path("points", group.name)
        for group in folder.read(out).groups
        if whole[0][0] in machines_of(out, group, "points")
    )
    damaged.write_bytes(damaged.read_bytes()[:-1])
    assert front(out, skip_damaged=True) not in ([], whole)
    driver.run(small, out, workers=0)
    assert front(out) == whole
    assert is_listed(out)

    group = next(one for one in folder.read(out).groups if unlisted(out, one))
    take_back(out, min(unlisted(out, group)))
    assert front(out) == whole
    assert is_listed(out)
    group = next(one for one in folder.read(out).groups if unlisted(out, one))
    take_back(out, min(machines_of(out, group, "nondominated")))
    front(out)
    assert not is_listed(out)  # what that machine alone dominated is not listed
    driver.resume(out, workers=0)
    assert front(out) == whole


def run_twice(
    monkeypatch: pytest.MonkeyPatch, call: Callable[[Lease, Callable[..., Done]], list[Done]]
) -> None:
    """The map of a run: `call` gives the results of each lease."""

    def again(run: Any, *_: object) -> Any:
        def results(leases: Iterator[Lease]) -> Iterator[Done]:
            for lease in leases:
                yield from call(lease, lambda one: solve_lease(run.job, one))

        return results

    @driver.contextmanager
    def lease_map(*args: Any) -> Iterator[Any]:
        yield again(*args)

    monkeypatch.setattr(driver, "_lease_map", lease_map)


def test_a_lease_that_is_done_twice_leaves_one_group(
    tmp_path: Path, expected: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    run_twice(monkeypatch, lambda lease, solve: [solve(lease), *([] if lease.merge else [solve(lease)])])
    driver.run(by_workers(tmp_path), out, workers=0)
    assert rows(out) == expected
    leases = [name.rsplit("-", 1)[0] for name in names(out)]
    assert len(leases) == len(set(leases))
    monkeypatch.undo()
    (line,) = driver.run(by_workers(tmp_path), out, workers=0).status.notes
    assert "parts of workers are not in the manifest; put into quarantine/" in line
    assert rows(out) == expected


def test_rows_that_stand_twice_in_groups_of_workers_are_not_published(tmp_path: Path) -> None:
    small = by_workers(tmp_path)
    store, _ = stores.open_run(tmp_path / "run")
    run = driver._open(small, store, [])
    job = replace(run.job, sink=driver._sink(run))
    asks = (Ask(3, 0, "test"), Ask(4, 0, "test"))
    done = [solve_lease(job, Lease(n, asks[:n], name=f"000001-0-{n}")) for n in (1, 2)]
    written = [
        (one.group, {name: pa.Table.from_batches([rows]) for name, rows in one.tables.items()})
        for one in done
        if one.group
    ]
    with pytest.raises(StoreFault, match="machines of machine 3 stand twice in a commit"):
        stores.commit(run.store, [], written)
    assert names(tmp_path / "run") == {}
    stores.commit(run.store, [], written[1:])
    assert len(rows(tmp_path / "run")["machines"]) == 2
    stores.close(store)


def test_groups_whose_merge_is_lost_stay(
    tmp_path: Path, expected: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, lost = tmp_path / "run", []

    def call(lease: Lease, solve: Callable[..., Done]) -> list[Done]:
        lost.extend(group.name for group in lease.merge)
        return [Done(lease, {}, 0.0, "its actors died") if lease.merge else solve(lease)]

    run_twice(monkeypatch, call)
    assert driver.run(by_workers(tmp_path), out, workers=0).exit_code == 0
    assert rows(out) == expected
    assert lost
    assert len(lost) == len(set(lost)), "tried again"
    assert set(lost) <= names(out).keys()


@pytest.mark.parametrize("url", [False, True])
def test_a_damaged_part_is_not_merged(
    tmp_path: Path, expected: Rows, monkeypatch: pytest.MonkeyPatch, url: bool
) -> None:
    """A merge would give its rows a new checksum."""
    monkeypatch.setenv("DSE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(objects, "RETRY_S", (0.0,))
    place = f"file://{tmp_path}/bucket/run" if url else str(tmp_path / "bucket/run")
    real = sink.merge

    def damaged(to: sink.Sink, name: str, groups: Any) -> Any:
        group = groups[1]
        part = next((tmp_path / "bucket/run/parts/machines").glob(f"{group.name}*"))
        data = bytearray(part.read_bytes())
        data[len(data) // 2] ^= 1
        part.write_bytes(data)
        return real(to, name, groups)

    with monkeypatch.context() as patch, pytest.raises(RunFault, match=r"missing|its checksum differs"):
        patch.setattr(sink, "merge", damaged)
        with objects.run_folder(place) as opened:
            driver.run(by_workers(tmp_path), opened.path, 0, publisher=opened.publisher)
    with objects.run_folder(place) as opened:
        out = driver.run(by_workers(tmp_path), opened.path, 0, publisher=opened.publisher)
        assert out.exit_code == 0
        assert any("quarantine" in note for note in out.status.notes)
    assert rows(objects.fetched(place) if url else opened.path) == expected


def test_a_process_that_does_not_see_the_drivers_folder_says_so(tmp_path: Path) -> None:
    store, _ = stores.open_run(tmp_path / "run")
    one = sink.Sink(tmp_path / "run", "", {}, (tmp_path / "run/.lock").read_bytes())
    assert not sink.fault(one)
    for other in (
        replace(one, path=tmp_path / "nowhere"),
        replace(one, lock=b"process 1 on elsewhere"),
        replace(one, remote=objects.remote_at(f"file://{tmp_path}/store"), claim="000001-0000000000000000"),
    ):
        line = sink.fault(other)
        assert "no run folder to write into from here" in line
        assert "sink: worker needs a folder that all nodes share" in line
        assert "\n" not in line
    stores.close(store)
    assert not list((tmp_path / "run/parts").iterdir())


def test_a_run_on_a_store_goes_on_with_its_copy_and_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DSE_CACHE", str(tmp_path / "cache"))
    url, here = f"file://{tmp_path}/bucket/first", str(tmp_path / "folder")
    run = ("run", "studies/first.yaml", "--workers", "0", "--set", "sink=worker", "--out")
    copy = objects.copy_folder(objects.remote_at(url))
    orphan = tmp_path / "bucket/first/parts/machines/000009-0-7-0123abcd-1-00000000.parquet"
    orphan.parent.mkdir(parents=True)
    orphan.write_bytes(b"?")
    good(*run, url, "--set", "stop.machines=30", folder=ROOT)
    assert not orphan.exists()
    assert not list(copy.glob("parts/points/*")), "rows pass the driver"
    opened, points = runs.open(url), "SELECT machine, schedule, energy_pj FROM points ORDER BY ALL"
    before, part = opened.sql(points).rows(), next(copy.glob("parts/points/*"))
    part.unlink()  # as one that the driver named after the copy was made
    assert opened.sql(points).rows() == before
    assert part.exists()
    good(*run, url, "--set", "stop.machines=60", folder=ROOT)
    copy.rename(tmp_path / "lost")  # another machine goes on
    assert "40 machines solved now, 100 in all" in good(*run, url, "--set", "stop.machines=100", folder=ROOT)
    good(
        "run",
        "studies/first.yaml",
        "--workers",
        "0",
        "--set",
        "stop.machines=100",
        "--out",
        here,
        folder=ROOT,
    )
    everything = "FROM designs ORDER BY machine, schedule"
    assert good("sql", url, everything, "--format", "csv", folder=ROOT) == good(
        "sql", here, everything, "--format", "csv", folder=ROOT
    )
    for part in (tmp_path / "bucket/first/parts/points").iterdir():
        part.unlink()
    copy.rename(tmp_path / "lost too")
    assert f"`dse resume {url}` mends" in dse("pareto", url, folder=ROOT).stderr


@pytest.mark.parametrize("torn", [False, True])
def test_a_store_that_refuses_now_and_then_loses_nothing(
    tmp_path: Path, expected: Rows, monkeypatch: pytest.MonkeyPatch, torn: bool
) -> None:
    monkeypatch.setattr(objects, "RETRY_S", (0.0,))

    def refuse(call: int) -> None:
        if call % 40 < 2:  # the second call of one that is made again, too
            raise OSError("503 Slow Down")

    remote = objects.Remote("mock://store", Faulty(refuse, torn=torn), str(tmp_path / "store"))
    publisher = objects.Publisher(remote, tmp_path / "copy", 1, "0" * 16)
    monkeypatch.setattr(objects.Publisher, "check", lambda _: None)
    out = driver.run(by_workers(tmp_path), tmp_path / "copy", 0, publisher=publisher)
    assert out.exit_code == 0
    steady = replace(remote, files=Faulty())
    objects._fetch(steady, tmp_path / "reader")
    assert rows(tmp_path / "reader") == expected


def test_parts_that_were_merged_go_from_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remote = objects.Remote("mock://store", Faulty(), str(tmp_path / "store"))
    publisher = objects.Publisher(remote, tmp_path / "copy", 1, "0" * 16)
    monkeypatch.setattr(objects.Publisher, "check", lambda _: None)
    driver.run(by_workers(tmp_path), tmp_path / "copy", 0, publisher=publisher)
    assert max(names(tmp_path / "copy").values()) > 0, "none was merged"
    for _ in range(3):  # readers may still hold the heads before the last
        publisher.publish(is_last=True)
    listed = {objects.object_name(*item) for item in objects.by_workers(tmp_path / "copy").items()}
    assert {f"parts/points/{name}" for name in remote.names("parts/points")} == {
        name for name in listed if name.startswith("parts/points/")
    }


def test_a_store_that_takes_nothing_ends_the_run_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "RETRY_S", (0.0,))
    monkeypatch.setattr(objects, "PATIENCE_S", 0.0)

    def refuse(_: int) -> None:
        raise OSError("connection lost")

    remote = objects.Remote("mock://store", Faulty(refuse), str(tmp_path / "store"))
    to = sink.Sink(tmp_path, "", {}, b"", remote)
    job = job_of(study(tmp_path))
    tables = tables_of(job, {"events": [event("start", "")]})
    with pytest.raises(StoreFault, match=r"mock://store: takes nothing for 0 s \(connection lost\); resume"):
        sink.write(to, "000001-0-1", tables)
