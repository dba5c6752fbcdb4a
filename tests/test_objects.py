"""Run folders on a store: what a reader sees is a head's, whatever fails, and at most one driver writes."""

from __future__ import annotations

import io
import json
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import pytest

from cluster import objects
from cluster import store as stores
from cluster.store import StoreFault
from dse.run import cache
from tests.commands import dse, good

ROOT = Path(__file__).parents[1]


class Faulty:
    """A local store whose calls can be watched and refused: `on_call` gets their number, and may raise."""

    type_name = "local"

    def __init__(self, on_call: Callable[[int], None] = lambda _: None, torn: bool = False) -> None:
        self.files, self.on_call, self.torn, self.calls = pafs.LocalFileSystem(), on_call, torn, 0
        self.create_dir = self.files.create_dir
        self.lock = threading.Lock()

    def _called(self) -> None:
        with self.lock:
            self.calls += 1
            call = self.calls
        self.on_call(call)

    def get_file_info(self, selector: Any) -> Any:
        self._called()
        return self.files.get_file_info(selector)

    def open_input_stream(self, path: str) -> Any:
        self._called()
        return self.files.open_input_stream(path)

    def open_output_stream(self, path: str) -> Any:
        try:
            self._called()
        except BaseException:
            if self.torn:
                with self.files.open_output_stream(path) as stream:
                    stream.write(b'{"half')
            raise
        return self.files.open_output_stream(path)

    def delete_file(self, path: str) -> None:
        self._called()
        self.files.delete_file(path)


class Died(BaseException):
    """The process ends here."""


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(objects, "RETRY_S", (0.0,))


def _remote(tmp_path: Path, files: Any = None) -> objects.Remote:
    return objects.Remote("mock://store", files or Faulty(), str(tmp_path / "store"))


def _publisher(remote: objects.Remote, copy: Path) -> objects.Publisher:
    publisher = objects._claim(remote, copy)
    objects._fetch(remote, copy)
    return publisher


def _write(copy: Path, number: int) -> None:
    """A folder as a run leaves it after some commits: each replaces a part, and the manifest names it."""
    for sub in ("parts/machines", "asks"):
        (copy / sub).mkdir(parents=True, exist_ok=True)
    for old in (copy / "parts/machines").iterdir():
        old.unlink()
    (copy / f"parts/machines/{number:06d}-0.parquet").write_bytes(b"rows %d" % number * 99)
    (copy / f"asks/generation-{number:06d}.json").write_bytes(b"asks %d" % number)
    (copy / "manifest.json").write_text(json.dumps({"commit": number}))


def _commit_in(copy: Path) -> int:
    """The commit that a copy holds; fails if it mixes several."""
    number: int = json.loads((copy / "manifest.json").read_text())["commit"]
    assert [p.read_bytes() for p in (copy / "parts/machines").iterdir()] == [b"rows %d" % number * 99]
    assert [p.read_bytes() for p in sorted((copy / "asks").iterdir())] == [
        b"asks %d" % n for n in range(number + 1)
    ]
    return number


def _forget_claims(tmp_path: Path) -> None:
    """As if the drivers so far had died long ago."""
    for claim in (tmp_path / "store/claims").iterdir():
        claim.unlink()


def _read(tmp_path: Path, copy: str) -> int:
    head = objects._fetch(_remote(tmp_path), tmp_path / copy)
    return -1 if head is None else _commit_in(tmp_path / copy)


@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.parametrize("kind", [Died, OSError])
def test_a_reader_sees_a_whole_commit_whichever_call_fails(
    tmp_path: Path, torn: bool, kind: type[BaseException]
) -> None:
    failing, calls = 1, 99
    while failing <= calls:
        root, files = tmp_path / str(failing), Faulty(torn=torn)
        publisher = _publisher(_remote(root, files), root / "copy")
        files.calls, published = 0, -1

        def fail(call: int, failing: int = failing) -> None:
            if call == failing or (
                kind is Died and call > failing
            ):  # a refusal is tried again, a death is not
                raise kind("503 Slow Down")

        files.on_call = fail
        try:
            for number in range(4):
                _write(root / "copy", number)
                assert not publisher.publish(False), "one refusal is no fault"
                published = number
        except Died:
            assert _read(root, "reader") in (published, published + 1)
        else:
            assert _read(root, "reader") == 3
            calls = files.calls
        files.on_call = lambda _: None
        # a driver that comes later goes on from there, and so does a reader that has an older copy
        _forget_claims(root)
        later = _publisher(_remote(root), root / "later")
        for number in range(_read(root, "reader") + 1, 5):
            _write(root / "later", number)
            assert not later.publish(True)
        assert _read(root, "reader") == _read(root, "new") == 4
        failing += 1
    assert failing > 20


def test_objects_that_no_head_lists_are_removed(tmp_path: Path) -> None:
    publisher = _publisher(_remote(tmp_path), tmp_path / "copy")
    for number in range(8):
        _write(tmp_path / "copy", number)
        publisher.publish(False)
    assert len(list((tmp_path / "store/parts/machines").iterdir())) == 3
    assert len(list((tmp_path / "store/heads").iterdir())) == 2


def test_of_two_drivers_that_start_at_once_at_most_one_goes_on(tmp_path: Path) -> None:
    """The second one starts, and ends its claim, between any two calls of the first."""
    outcomes = set()
    for at in range(1, 12):
        root = tmp_path / str(at)
        won = []

        def start(root: Path, name: str, files: Faulty, won: list[str] = won) -> None:
            try:
                objects._claim(_remote(root, files), root / name)
                won.append(name)
            except StoreFault as fault:
                assert "another run writes into this folder (process" in str(fault)

        def other(call: int, at: int = at, root: Path = root) -> None:
            if call == at:
                start(root, "second", Faulty())

        start(root, "first", Faulty(other))
        assert len(won) <= 1
        outcomes.add(tuple(won))
    assert outcomes >= {("first",), ("second",)}


def test_a_driver_that_was_thought_dead_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = _remote(tmp_path)
    old = _publisher(remote, tmp_path / "old")
    _write(tmp_path / "old", 0)
    old.publish(False)
    with pytest.raises(StoreFault, match="wait for it, or choose another"):
        objects._claim(remote, tmp_path / "new")
    monkeypatch.setattr(objects, "CLAIM_S", 0.0)
    new = _publisher(remote, tmp_path / "new")
    for number in (1, 2):
        _write(tmp_path / "new", number)
        new.publish(False)
    _write(tmp_path / "old", 2)
    (tmp_path / "old/parts/machines/000002-0.parquet").write_bytes(b"its own rows of the same name")
    with pytest.raises(StoreFault, match="another run took this folder over"):
        old.publish(True)
    monkeypatch.setattr(objects.Publisher, "check", lambda _: None)  # it stopped behind its check
    old.publish(True)
    assert _read(tmp_path, "reader") == 2


def test_rows_that_a_store_did_not_take_are_published_by_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Faulty()
    publisher = _publisher(_remote(tmp_path, files), tmp_path / "copy")
    _write(tmp_path / "copy", 0)
    publisher.publish(False)

    def refuse(_: int) -> None:
        raise OSError("connection lost")

    files.on_call = refuse
    _write(tmp_path / "copy", 1)
    assert "not written (connection lost); tried again" in publisher.publish(False)
    assert publisher.publish(False) == "", "said once"
    monkeypatch.setattr(objects, "PATIENCE_S", 0.0)
    with pytest.raises(StoreFault, match="takes nothing for 0 s"):
        publisher.publish(True)
    _forget_claims(tmp_path)
    again = _publisher(_remote(tmp_path), tmp_path / "copy")
    assert _commit_in(tmp_path / "copy") == 1
    again.publish(True)
    assert _read(tmp_path, "reader") == 1


def test_a_head_from_elsewhere_writes_nothing_outside_of_the_copy(tmp_path: Path) -> None:
    for path in ("../x", "parts/../../x", "/x", "parts//x", "log/x", ".lock", "x", "parts/./x"):
        head = objects.Head(1, 0, "0" * 16, {path: [1, 2212294583, "1"]})
        remote = _remote(tmp_path)
        remote.write(f"heads/{head.name}", objects._sealed(head))
        assert objects._fetch(remote, tmp_path / "a/b/copy") is None, path


def test_a_run_on_a_store_equals_one_in_a_folder(tmp_path: Path) -> None:
    url, here = f"file://{tmp_path}/bucket/first", str(tmp_path / "folder")
    run = ("run", "studies/first.yaml", "--workers", "0", "--out")
    copy = objects.copy_folder(objects.remote_at(url))
    for command in ("status", "resume", "stop", "pareto"):
        said = dse(command, url, folder=ROOT)
        assert said.returncode == 2
        assert said.stderr == f"{url}: no run is there; start one with dse run STUDY.yaml --out URL\n"
    assert not list((cache.cache_root() / "remote").glob(f"{copy.name}*")), (
        "nothing is left of a mistyped URL"
    )
    assert not (tmp_path / "bucket").exists()
    good(*run, url, "--set", "stop.machines=30", folder=ROOT)
    copy.rename(tmp_path / "lost")  # another machine goes on
    assert f"{url}: finished" in good(*run, url, "--set", "stop.machines=60", folder=ROOT)
    good(*run, here, "--set", "stop.machines=60", folder=ROOT)
    front = good("pareto", here, "--format", "csv", folder=ROOT)
    assert len(front.splitlines()) > 3
    assert good("pareto", url, "--format", "csv", folder=ROOT) == front
    next((tmp_path / "bucket/first/parts/points").iterdir()).write_bytes(b"torn")
    copy.rename(tmp_path / "lost too")
    assert f"`dse resume {url}` mends" in dse("pareto", url, folder=ROOT).stderr
    good("resume", url, "--workers", "0", folder=ROOT)
    assert good("pareto", url, "--format", "csv", folder=ROOT) == front


def test_copies_are_shown_and_pruned_but_those_that_are_needed(tmp_path: Path) -> None:
    """Needed: a run goes on in it, or its rows are not on the store."""
    url = f"file://{tmp_path}/bucket/first"
    good("run", "studies/first.yaml", "--workers", "0", "--set", "stop.machines=1", "--out", url, folder=ROOT)
    copy = objects.copy_folder(objects.remote_at(url))

    def prune(*options: str) -> str:
        return good("cache", "--prune", *options, folder=ROOT)

    rows = json.loads(good("cache", "--format", "json", folder=ROOT))["answers"]
    (size,) = [row["size_bytes"] for row in rows if row["kind"] == "copy of a run"]
    assert size > 1000
    prune()
    prune("--older", "1")
    with objects.published(url) as publisher:
        store, _ = stores.open_run(publisher.copy)
        prune("--all")
        stores.close(store)
    manifest = copy / "manifest.json"
    data = manifest.read_bytes()
    manifest.write_bytes(data)
    prune("--all")
    assert manifest.read_bytes() == data
    (copy / objects.HEAD_RECORD).touch()
    assert "entries removed" in prune("--all")
    assert not copy.exists()
    assert '"done": 1,' in good("status", url, "--format", "json", folder=ROOT)


def test_a_run_on_a_store_is_stopped_from_another_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "RENEW_S", 0.05)
    url = f"file://{tmp_path}/bucket/first"

    def ask() -> None:
        with pytest.raises(ValueError, match="no run is there"):  # it ends before it has a head
            objects.stop(url, b"stop", lambda: None)

    with objects.published(url) as publisher:
        stopping = threading.Thread(target=ask)
        stopping.start()
        while not (publisher.copy / "stop.request").exists():
            time.sleep(0.01)
        assert (publisher.copy / "stop.request").read_bytes() == b"stop"
    stopping.join()


class EndsUploadsEarly(Faulty):
    """A store whose n-th upload is ended before its data came, and yet said to be whole: so does
    fake-gcs-server where a request of data is lost, and pyarrow's client believes it.
    """

    type_name = "gcs"

    def __init__(self, ended: int) -> None:
        super().__init__()
        self.ended, self.uploads = ended, 0

    def open_output_stream(self, path: str) -> Any:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with self.lock:
            self.uploads += 1
            is_ended = self.uploads == self.ended
        Path(path).write_bytes(b"")
        return io.BytesIO() if is_ended else self.files.open_output_stream(path)


def test_a_head_names_no_object_whose_upload_was_ended_early(tmp_path: Path) -> None:
    ended, uploads = 1, 99
    while ended <= uploads:
        root, files = tmp_path / str(ended), EndsUploadsEarly(ended)
        publisher = _publisher(_remote(root, files), root / "copy")
        for number in range(2):
            _write(root / "copy", number)
            assert not publisher.publish(False)
            assert _read(root, "reader") == number
        ended, uploads = ended + 1, files.uploads
    assert ended > 6


def test_what_a_driver_thought_dead_still_publishes_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its successor starts between its uploads and its head, and dies before it has one of its own."""
    monkeypatch.setattr(objects, "CLAIM_S", 0.0)
    files, store, started = Faulty(), tmp_path / "store", []
    old = _publisher(_remote(tmp_path, files), tmp_path / "old")

    def start(_: int) -> None:
        if not started and len(list(store.glob("parts/*/*")) + list(store.glob("asks/*"))) == 2:
            started.append(True)
            with objects.published(f"file://{store}"):
                pass

    files.on_call = start
    _write(tmp_path / "old", 0)
    old.publish(False)
    assert started
    assert _read(tmp_path, "reader") == 0


def test_parts_that_are_written_again_stay(tmp_path: Path) -> None:
    """A driver that dies before its head leaves parts; its successor makes some of them again."""
    url, store = f"file://{tmp_path}/store", tmp_path / "store"
    for name in ("same", "left"):
        data = f"rows {name}".encode()
        path = objects.object_name(f"parts/machines/{name}.parquet", [len(data), zlib.crc32(data), None])
        (store / path).parent.mkdir(parents=True, exist_ok=True)
        (store / path).write_bytes(data)
    with objects.published(url) as publisher:
        (publisher.copy / "parts/machines").mkdir(parents=True)
        (publisher.copy / "parts/machines/same.parquet").write_bytes(b"rows same")
        for _ in range(3):
            publisher.publish(False)
    assert [path.name.partition("-")[0] for path in store.glob("parts/machines/*")] == ["same"]


def test_a_head_that_is_refused_sends_no_object_again(tmp_path: Path) -> None:
    files = Faulty()
    publisher = _publisher(_remote(tmp_path, files), tmp_path / "copy")
    files.calls = 0

    def refuse(call: int) -> None:
        if call in (5, 6):  # of the head, after two looks whether to go on, and two objects
            raise OSError("503 Slow Down")

    files.on_call = refuse
    _write(tmp_path / "copy", 0)
    assert "not written" in publisher.publish(False)
    assert publisher.publish(False) == ""
    assert files.calls == 9
    assert _read(tmp_path, "reader") == 0
