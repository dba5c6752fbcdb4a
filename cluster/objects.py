"""A run folder on a shared or object store (file, s3, gs, abfs URLs), through `pyarrow.fs`.

A driver works in a copy of the folder on its own disk, below `$DSE_CACHE`. After each commit it writes the
files that are new to the store, and then a head: one object that lists every file with its size and CRC-32
(small ones with their text). The newest head is the run folder; objects that it does not list do not count.
An object's name holds its checksum, so what a head lists is never overwritten. Readers and resumes make their
copy equal to the head, and check it like any run folder.

With `sink: worker` (cluster/sink.py) workers write objects of parts themselves: the driver's copy has a
manifest that names these, but not the parts, until a reader or a resume on this machine brings them.

Stores need no locks, renames or conditional writes, only to show at once what was written (S3, GCS, Azure and
POSIX do). A driver writes a claim with a number above all others that it sees, lists the claims again, and
withdraws if another one is alive: of two that start at once at most one goes on. Heads bear the number of the
claim, and the highest counts, so a driver that was thought dead changes nothing that readers see. What it
still publishes before its successor's first head is whole: parts that no head lists go after that head.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.fs as pafs

from cluster.store import RunFault, StoreFault
from dse.run import cache, folder
from dse.run.record import STORED

CLAIM_S, RENEW_S = 60.0, 10.0  # seconds after which a claim is dead, and after which it is written again
PATIENCE_S = 300.0  # seconds without a head that the store took, after which the run stops
RETRY_S = (0.1, 0.3, 1.0, 3.0)  # seconds before a call that failed is made again
TIMEOUT_S = 10.0  # seconds without an answer of an S3 server, after which a call is made again
UPLOADS = 8  # objects that are written at a time
PUBLISHED = ("parts", "asks", "inputs")  # folders whose files are objects; log/ and quarantine/ stay here
IN_HEAD = tuple(name for name in folder.FILES if name not in (folder.LOCK, folder.STOP))  # with their text
HEAD_RECORD = ".head"  # file of a copy: the head that it was made equal to
HEAD_NAME = re.compile(
    r"(\d{6,12})-[0-9a-f]{16}-[01]\.json"
)  # number of the claim, owner, number of the head % 2
Files = dict[str, list[Any]]  # path below the folder -> [bytes, CRC-32, text of a file that is no object]
T = TypeVar("T")


class RunFolder(NamedTuple):
    """A folder to run in."""

    path: Path
    shown: str  # its name for messages
    publisher: Publisher | None = None  # if it is the copy of a remote one


@dataclass(frozen=True, slots=True)
class Remote:
    """A run folder on a store."""

    shown: str  # its URL without credentials and options
    files: Any  # pyarrow.fs.FileSystem
    path: str  # of the folder in it

    def names(self, sub: str) -> dict[str, float]:
        """Returns the names of the objects directly below a folder -> when they were written, on the store's
        clock.
        """
        found = _again(
            lambda: self.files.get_file_info(pafs.FileSelector(f"{self.path}/{sub}", allow_not_found=True))
        )
        return {info.base_name: info.mtime.timestamp() for info in found if info.is_file}

    def read(self, name: str) -> bytes:
        """Returns an object. Raises FileNotFoundError."""

        path = f"{self.path}/{name}"

        def call() -> bytes:
            with self.files.open_input_stream(path) as stream:
                data: bytes = stream.read()
            self._raise_if_cut(name, len(data))
            return data

        return _again(call)

    def _raise_if_cut(self, name: str, size_bytes: int) -> None:
        """Raises OSError if an object has not that size. Some clients (gs) take a connection that is lost
        under way for the end of an object, and an upload that a server ended early for a whole one.
        """
        if self.files.type_name not in ("local", "s3"):
            found = self.files.get_file_info(f"{self.path}/{name}").size or 0
            if found != size_bytes:
                raise OSError(f"{name}: cut, {found} and {size_bytes} bytes")

    def write(self, name: str, data: bytes) -> None:
        """Writes an object."""
        path = f"{self.path}/{name}"

        def call() -> None:
            if self.files.type_name == "local":  # elsewhere there are no folders
                self.files.create_dir(path.rpartition("/")[0], recursive=True)
            try:
                with self.files.open_output_stream(path) as stream:
                    stream.write(data)
            except FileNotFoundError as fault:  # of an upload that the server forgot (gs)
                raise OSError(str(fault)) from None
            self._raise_if_cut(name, len(data))

        _again(call)

    def remove(self, name: str) -> None:
        """Removes an object, if that can be done."""
        with suppress(OSError):
            self.files.delete_file(f"{self.path}/{name}")


@dataclass(frozen=True, slots=True)
class Head:
    """A list of the run folder's files. claim: number of its driver's claim; number: counts its heads."""

    claim: int
    number: int
    owner: str
    files: Files

    @property
    def name(self) -> str:
        """Its object below heads/: the last two of a driver are there, in case one is torn."""
        return f"{self.claim:06d}-{self.owner}-{self.number % 2}.json"


@dataclass(slots=True)
class Publisher:
    """The driver's side of a folder on a store."""

    remote: Remote
    copy: Path
    claim: int
    owner: str
    number: int = 0  # heads written
    stored: Files = field(default_factory=dict)  # files that the store has
    written: set[str] = field(default_factory=set)  # objects since the last head
    garbage: list[set[str]] = field(default_factory=list)  # objects that the last heads left out
    last_s: float = field(default_factory=time.monotonic)  # time.monotonic() when the store last took a head
    is_failing: bool = False  # whether the last call of `publish` failed
    checksums: dict[tuple[Any, ...], list[Any]] = field(default_factory=dict)

    def publish(self, is_last: bool) -> str:
        """Makes the store equal to the copy. Returns "", or a line to note if that fails for the first time.

        is_last: no other call follows: tries until PATIENCE_S have passed

        Raises StoreFault if another driver took over, or PATIENCE_S have passed since the last head.
        """
        while True:
            try:
                self._publish()
                self.last_s, self.is_failing = time.monotonic(), False
                return ""
            except (OSError, pa.ArrowException) as fault:
                why = _one_line(fault)
            if time.monotonic() - self.last_s > PATIENCE_S:
                raise StoreFault(
                    f"{self.remote.shown}: takes nothing for {PATIENCE_S:.0f} s ({why}); `dse resume "
                    f"{self.remote.shown}` on this machine goes on from all that is solved"
                )
            if not is_last:
                is_new, self.is_failing = not self.is_failing, True
                return f"{self.remote.shown}: not written ({why}); tried again" * is_new
            time.sleep(RETRY_S[-1])

    def _publish(self) -> None:
        self.check()
        here = _files(self.copy, self.checksums)
        files = by_workers(self.copy) | here
        new = [path for path, entry in here.items() if entry[2] is None and self.stored.get(path) != entry]
        with ThreadPoolExecutor(UPLOADS) as threads:
            list(threads.map(lambda path: self._upload(path, files[path]), new))
        head = Head(self.claim, self.number, self.owner, files)
        self.remote.write(f"heads/{head.name}", _sealed(head))
        folder.write_bytes(self.copy / HEAD_RECORD, _record(head), durable=False)
        kept = {object_name(path, entry) for path, entry in files.items()}
        before = self.written | {object_name(path, entry) for path, entry in self.stored.items()}
        self.garbage = [names - kept for names in (*self.garbage, before)]
        self.stored, self.written, self.number = files, set(), self.number + 1
        if len(self.garbage) > 2:  # nobody reads the head before the last one any more
            for name in self.garbage.pop(0):
                self.remote.remove(name)
        if self.number == 2:
            for name in self.remote.names("heads"):
                if (found := HEAD_NAME.fullmatch(name)) and int(found[1]) < self.claim:
                    self.remote.remove(f"heads/{name}")

    def _upload(self, path: str, entry: list[Any]) -> None:
        name = object_name(path, entry)
        if name not in self.written:
            data = (self.copy / path).read_bytes()
            if [len(data), zlib.crc32(data), None] != entry:
                raise OSError(f"{self.copy / path} has changed")
            self.remote.write(name, data)
            self.written.add(name)

    def check(self) -> None:
        """Raises StoreFault if another driver took the folder over."""
        heads = self.remote.names("heads")
        if (
            self.claim_name not in self.remote.names("claims")
            or max(map(_number, heads), default=0) > self.claim
        ):
            raise StoreFault(
                f"{self.remote.shown}: another run took this folder over, as nothing was heard from this one "
                f"for {CLAIM_S:.0f} s; nothing more is written"
            )

    @property
    def claim_name(self) -> str:
        """Its object below claims/."""
        return f"{self.claim:06d}-{self.owner}"

    def renew(self, ended: threading.Event) -> None:
        """Writes the claim again every RENEW_S, and brings requests to stop, until `ended`."""
        while not ended.wait(RENEW_S):
            with suppress(OSError, pa.ArrowException, StoreFault):
                self.check()
                self.remote.write(f"claims/{self.claim_name}", _process())
                request = f"stop/{self.claim_name}"
                if self.claim_name in self.remote.names("stop"):
                    folder.write_bytes(self.copy / folder.STOP, self.remote.read(request), durable=False)
                    self.remote.remove(request)


def remote_at(url: str) -> Remote:
    """Returns the folder at a URL. Raises ValueError for one that is none of a store."""
    has_secret = re.search(r"(key|sig)=", url)  # sig: of a shared access signature (abfs)
    shown = re.sub(r"//[^/@]*:[^/@]*@", "//", url.partition("?")[0] if has_secret else url)
    try:
        files, path = pafs.FileSystem.from_uri(url)
    except (pa.ArrowException, OSError, ValueError) as fault:
        raise ValueError(
            f"{shown}: is no URL of a folder ({_one_line(fault).replace(url, shown)}); give file:///DIR, "
            "s3://BUCKET/DIR, gs://BUCKET/DIR or abfs://CONTAINER@ACCOUNT.dfs.core.windows.net/DIR"
        ) from None
    if files.type_name == "s3":  # as the URL says, but a server that falls silent is given up
        options = files.__reduce__()[1][0]
        options |= {"connect_timeout": TIMEOUT_S, "request_timeout": TIMEOUT_S, "allow_delayed_open": True}
        files = pafs.S3FileSystem(**{key: value for key, value in options.items() if value != ""})
    return Remote(shown, files, path.rstrip("/"))


def copy_folder(remote: Remote) -> Path:
    """Returns the folder on this machine's disk that holds the copy of a remote one."""
    name = re.sub(r"\W", "_", remote.path.rpartition("/")[2])[:40]
    return cache.cache_root() / "remote" / f"{name}-{hashlib.sha256(remote.shown.encode()).hexdigest()[:12]}"


def copies() -> list[cache.Entry]:
    """Returns the copies of remote run folders on this machine, aged since their last commit."""
    found, now = [], time.time()
    for copy in sorted(path for path in (cache.cache_root() / "remote").glob("*-*") if path.is_dir()):
        with suppress(FileNotFoundError):  # removed meanwhile
            sizes = [path.stat().st_size for path in copy.rglob("*") if path.is_file()]
            newest = max(path.stat().st_mtime for path in (copy, *copy.glob("*"), *copy.glob(HEAD_RECORD)))
            found.append(cache.Entry(copy, "copy of a run", "-", sum(sizes), max(0.0, now - newest)))
    return found


def prune_copies(older_s: float | None = None) -> tuple[int, int]:
    """Removes the copies that are older than `older_s` seconds; without it all. Returns how many, and their
    bytes. Those of runs that go on stay, and those with rows that are not on their store yet.
    """
    count = size_bytes = 0
    for entry in copies():
        with suppress(OSError), _locked(entry.path):
            is_old = older_s is None or entry.age_s > older_s
            if is_old and not folder.is_locked(entry.path) and not _is_ahead(entry.path):
                shutil.rmtree(entry.path)
                count, size_bytes = count + 1, size_bytes + entry.size_bytes
    return count, size_bytes


def _is_ahead(copy: Path) -> bool:
    """True if a copy's manifest is newer than the last head that its driver wrote."""
    manifest, head = copy / folder.MANIFEST, copy / HEAD_RECORD
    return manifest.exists() and (not head.exists() or manifest.stat().st_mtime_ns > head.stat().st_mtime_ns)


def in_urls(text: str, url: str) -> str:
    """Returns a message with the URL for the folder's copy."""
    remote = remote_at(url)
    return text.replace(str(copy_folder(remote)), remote.shown)


def fetched(url: str) -> Path:
    """Returns a copy of a remote run folder, as of its newest head. Raises RunFault; ValueError where no run
    is, and nothing is written then.
    """
    remote = remote_at(url)
    copy = copy_folder(remote)
    raise_if_no_run(url)
    with _as_fault(remote), _locked(copy):
        if not folder.is_locked(copy) and _fetch(remote, copy) is None:
            raise ValueError(_no_run_text(remote))
        _fetch_by_workers(remote, copy)
    return copy


def raise_if_no_run(url: str) -> None:
    """Raises ValueError for a URL at which no run is, and of which no copy is on this machine."""
    remote = remote_at(url)
    with _as_fault(remote):
        if not copy_folder(remote).is_dir() and _newest(remote) is None:
            raise ValueError(_no_run_text(remote))


def _no_run_text(remote: Remote) -> str:
    return f"{remote.shown}: no run is there; start one with dse run STUDY.yaml --out URL"


def last_claim_s(url: str) -> float:
    """Returns seconds since a driver last wrote its claim of a remote folder; inf: there is no claim."""
    remote = remote_at(url)
    with _as_fault(remote):
        return max(0.0, time.time() - max(remote.names("claims").values(), default=-inf))


@contextmanager
def run_folder(text: str) -> Iterator[RunFolder]:
    """Yields the folder to run in: for a URL a copy, else the folder itself."""
    if not folder.is_url(text):
        yield RunFolder(Path(text), text)
        return
    with published(text) as publisher:
        yield RunFolder(publisher.copy, publisher.remote.shown, publisher)


@contextmanager
def published(url: str) -> Iterator[Publisher]:
    """Claims a remote folder, and yields its Publisher, whose copy is equal to the newest head. The claim is
    renewed while the body runs. Raises RunFault if another run has claimed it.
    """
    remote = remote_at(url)
    copy = copy_folder(remote)
    with _as_fault(remote):
        publisher = _claim(remote, copy)
    ended = threading.Event()
    thread = threading.Thread(target=publisher.renew, args=(ended,), daemon=True, name="dse claim")
    thread.start()
    try:
        with _as_fault(remote), _locked(copy):
            head = _fetch(remote, copy)
            _fetch_by_workers(remote, copy)
            publisher.garbage.append(_unlisted(remote, copy, head))
            if head is not None:
                here = _files(copy, publisher.checksums)
                publisher.stored = {path: e for path, e in head.files.items() if here.get(path) == e}
        yield publisher
    finally:
        ended.set()
        thread.join()
        remote.remove(f"claims/{publisher.claim_name}")


def stop(url: str, request: bytes, waiting: Callable[[], None]) -> Path:
    """Asks the run that writes into a remote folder to end, and waits for that. Returns a copy of the folder.

    Raises ValueError if no run is there, RunFault if none writes into it.
    """
    remote = remote_at(url)
    with _as_fault(remote):
        claims = _alive(remote, remote.names("claims"), time.time())
        if not claims:
            raise_if_no_run(url)
            raise RunFault(f"{remote.shown}: no run writes into this folder")
        for name in claims:
            remote.write(f"stop/{name}", request)
        while claims.keys() & _alive(remote, remote.names("claims"), time.time()):
            waiting()
            time.sleep(1.0)
    return fetched(url)


def _claim(remote: Remote, copy: Path) -> Publisher:
    """Claims a folder. Of the claims that are there the dead ones are removed."""
    owner = os.urandom(8).hex()
    while True:
        claim = 1 + max(map(_number, [*remote.names("claims"), *remote.names("heads")]), default=0)
        publisher = Publisher(remote, copy, claim, owner)
        remote.write(f"claims/{publisher.claim_name}", _process())
        written = remote.names("claims")
        own_at = written.pop(publisher.claim_name, 0.0)
        if alive := _alive(remote, written, own_at):
            remote.remove(f"claims/{publisher.claim_name}")
            raise StoreFault(
                f"{remote.shown}: another run writes into this folder ({alive[min(alive)]}); wait for it, or "
                f"choose another with --out; if it was killed on another host, or this is a copy of its "
                f"folder, wait {CLAIM_S:.0f} s"
            )
        if all(_number(name) < claim for name in [*written, *remote.names("heads")]):
            for name in written:
                remote.remove(f"claims/{name}")
            return publisher
        remote.remove(f"claims/{publisher.claim_name}")


def _alive(remote: Remote, written: Mapping[str, float], now: float) -> dict[str, str]:
    """Returns claim -> its process, of the claims that were written less than CLAIM_S before `now`. A process
    of this host that is gone is not alive.

    written: claim -> when it was written, on the store's clock, as is `now`
    """
    alive = {}
    for name, at in written.items():
        if now - at < CLAIM_S:
            with suppress(FileNotFoundError):
                process = remote.read(f"claims/{name}").decode(errors="replace")[:200]
                if not folder.is_gone(process.removeprefix("process ")):
                    alive[name] = process
    return alive


def _process() -> bytes:
    return f"process {os.getpid()} on {socket.gethostname()}".encode()


def _number(name: str) -> int:
    found = re.match(r"\d{6,12}(?=-)", name)
    return int(found[0]) if found else 0


def _fetch(remote: Remote, copy: Path) -> Head | None:
    """Makes a copy equal to the newest head, which it returns; None without one. A file whose object is lost
    or damaged is missing from the copy then.

    A copy that was made equal to this head before is left as it is: it may hold rows that its driver could
    not publish.
    """
    for attempt in range(folder.MAX_READS):
        head = _newest(remote)
        if head is None or _is_of(copy, head):
            return head
        here = _files(copy, {})
        wanted = {path: entry for path, entry in head.files.items() if here.get(path) != entry}
        for parent in {(copy / path).parent for path in wanted}:
            folder.make_folder(parent)
        with ThreadPoolExecutor(UPLOADS) as threads:
            is_there = list(threads.map(partial(download, remote, copy), wanted, wanted.values()))
        if all(is_there) or (attempt and _is_newest(remote, head)):
            for path in here.keys() - head.files.keys():
                (copy / path).unlink(missing_ok=True)
            folder.write_bytes(copy / HEAD_RECORD, _record(head), durable=False)
            return head
    raise RunFault(f"{remote.shown}: changed faster than it could be read; try again")


def by_workers(copy: Path) -> Files:
    """Returns the entries of the parts that workers wrote, by the manifest of a copy."""
    with suppress(folder.Damaged):
        return entries([group for group in folder.read(copy).groups if group.is_by_worker()])
    return {}


def entries(groups: Iterable[folder.Group]) -> Files:
    """Returns the entries of the parts of groups."""
    return {
        folder.part_path(part.table, group.name): [part.size_bytes, part.crc, None]
        for group in groups
        for part in group.parts
    }


def _fetch_by_workers(remote: Remote, copy: Path) -> None:
    """Brings the parts that the manifest of a copy names, and that only the store has."""
    wanted = {path: entry for path, entry in by_workers(copy).items() if not (copy / path).exists()}
    for parent in {(copy / path).parent for path in wanted}:
        folder.make_folder(parent)
    with ThreadPoolExecutor(UPLOADS) as threads:
        list(threads.map(partial(download, remote, copy), wanted, wanted.values()))


def _unlisted(remote: Remote, copy: Path, head: Head | None) -> set[str]:
    """Returns the objects of parts that no head lists, of drivers and workers that are gone. They may go once
    this driver has a head: until then a driver that was thought dead may publish a head that lists them.
    """
    kept = by_workers(copy) | (head.files if head is not None else {})
    found = {f"parts/{table}/{name}" for table in STORED for name in remote.names(f"parts/{table}")}
    return found - {object_name(path, entry) for path, entry in kept.items()}


def _is_newest(remote: Remote, head: Head) -> bool:
    newest = _newest(remote)
    return newest is not None and _record(newest) == _record(head)


def _is_of(copy: Path, head: Head) -> bool:
    with suppress(OSError):
        return (copy / HEAD_RECORD).read_bytes() == _record(head)
    return False


def _record(head: Head) -> bytes:
    return f"{head.claim} {head.owner} {head.number}".encode()


def download(remote: Remote, copy: Path, path: str, entry: list[Any]) -> bool:
    """Writes one file of a head into the copy. Returns False, and leaves none, if its object is not what the
    head says.
    """
    target = copy / path
    try:
        data = entry[2].encode() if entry[2] is not None else remote.read(object_name(path, entry))
    except FileNotFoundError:
        data = b""
    if [len(data), zlib.crc32(data)] != entry[:2]:
        target.unlink(missing_ok=True)
        return False
    folder.write_bytes(target, data, durable=False)
    return True


def _newest(remote: Remote) -> Head | None:
    """Returns the newest sound head: of the highest claim, the last one."""
    names = [name for name in remote.names("heads") if HEAD_NAME.fullmatch(name)]
    for claim in sorted({_number(name) for name in names}, reverse=True):
        found = [_head(remote, name) for name in names if _number(name) == claim]
        if sound := [head for head in found if head is not None]:
            return max(sound, key=lambda head: head.number)
    return None


def _head(remote: Remote, name: str) -> Head | None:
    """Returns the head in an object; None if it is gone, torn, or not as dse writes it."""
    with suppress(FileNotFoundError, KeyError, TypeError):
        value = folder.unseal_bytes(remote.read(f"heads/{name}"), "head") or {}
        head = Head(value["claim"], value["number"], value["owner"], value["files"])
        if head.name == name and all(map(_is_file, head.files, head.files.values())):
            return head
    return None


def _is_file(path: str, entry: object) -> bool:
    """True for a path and entry that dse writes: names in a head become paths of files."""
    top, _, rest = path.partition("/")
    in_folder = top in PUBLISHED and all(part.strip(".") for part in rest.split("/"))
    match entry:
        case [int(), int(), str() | None]:
            return in_folder if rest else path in IN_HEAD and entry[2] is not None
    return False


def _sealed(head: Head) -> bytes:
    value = {"claim": head.claim, "number": head.number, "owner": head.owner, "files": head.files}
    return folder.seal("head", value)


def object_name(path: str, entry: list[Any]) -> str:
    """Returns the name of a file's object; equal names have equal content."""
    stem, dot, suffix = path.rpartition(".")
    return f"{stem or suffix}-{entry[0]:x}-{entry[1]:08x}{dot if stem else ''}{suffix if stem else ''}"


def _files(copy: Path, checksums: dict[tuple[Any, ...], list[Any]]) -> Files:
    """Returns the entries of a copy's files. checksums: entries of objects, by name and times of the file."""
    found: Files = {}
    for name in IN_HEAD:
        with suppress(FileNotFoundError):
            data = (copy / name).read_bytes()
            found[name] = [len(data), zlib.crc32(data), data.decode()]
    for path in (path for top in PUBLISHED for path in sorted((copy / top).rglob("*"))):
        if path.is_file() and not path.name.endswith(".tmp"):
            name, at = path.relative_to(copy).as_posix(), path.stat()
            key = (name, at.st_size, at.st_mtime_ns, at.st_ino)
            if key not in checksums:
                checksums[key] = [at.st_size, folder.crc(path), None]
            found[name] = checksums[key]
    return found


@contextmanager
def _locked(copy: Path) -> Iterator[None]:
    """Lets one process of this machine at a time change a copy from outside of its run."""
    folder.make_folder(copy)
    handle = os.open(copy.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@contextmanager
def _as_fault(remote: Remote) -> Iterator[None]:
    """Turns what a store refuses into a RunFault of one line."""
    try:
        yield
    except (OSError, pa.ArrowException) as fault:
        raise RunFault(
            f"{remote.shown}: cannot be read or written ({_one_line(fault)}); check the URL and the "
            "credentials, then try again"
        ) from fault


def _again(call: Callable[[], T]) -> T:
    """Returns what a call of the store returns; a refusal or a lost connection is tried again."""
    for pause_s in RETRY_S:
        try:
            return call()
        except FileNotFoundError:
            raise
        except OSError:
            time.sleep(pause_s)
    return call()


def _one_line(fault: BaseException) -> str:
    return " ".join(str(fault).split())[:300]
