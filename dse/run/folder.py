"""A run folder as its readers see it: what the manifest lists, and whether every file is still byte for byte
as it was written.

Nothing in a folder is trusted: it may come from elsewhere, or a disk may have changed it.

* A JSON file carries its own CRC-32, its kind, and its study's identity, so that none passes for another.
* A part (Parquet file) names its study, table and group, and is checked against the manifest once per
  process.
* Names of files must be such as dse writes; links are not followed.

This protects against accidents. Somebody who can write to the folder can also write rows that were never
solved (docs/reliability.md).
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import socket
import stat
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from io import BufferedWriter
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dse.run import record
from dse.run.record import NONDOMINATED as NONDOMINATED
from dse.run.record import STORED

if TYPE_CHECKING:
    from workloads.arrays import Ints

MANIFEST, PREVIOUS_MANIFEST = "manifest.json", "manifest.before.json"
ENV, STATUS, STUDY = "env.json", "status.json", "study.yaml"
SEALED_KINDS = {  # sealed JSON files that name the identity of their study -> their kind (`seal`)
    MANIFEST: "manifest",
    PREVIOUS_MANIFEST: "manifest",
    ENV: "env",
    STATUS: "status",
}
FRONT_KEYS = ("front", "worst_gap", "hypervolume", "hypervolume_reference")  # of status.json
LOCK = ".lock"  # locked by the process that writes into the folder
STOP = "stop.request"  # a request to end the run (cluster/stopping.py)
MANIFEST_VERSION = 5  # of the manifest, and of the tables that it lists
# generation of the manifest, level; of groups that workers wrote also the lease and eight random digits
GROUP_NAME = re.compile(r"\d{6,12}-\d(?P<by_worker>-\d{1,19}-[0-9a-f]{8})?")
DIGEST = re.compile(r"[0-9a-f]{16}")
MAX_BESIDE = 1000  # files of a folder in which a run is looked for
FOLDERS = ("parts", "asks", "log", "quarantine", "inputs")
FILES = (MANIFEST, PREVIOUS_MANIFEST, ENV, STATUS, STUDY, STOP, LOCK)
SEALED_ASKS = re.compile(
    rb'("crc": (\d{1,10}), )"generation": (\d{1,18}), "identity": "([0-9a-f]{0,16})", "kind": "asks"[,}]'
)
PLACE_KEY = b"dse.place"  # key in the metadata of a part; its value: identity of the study, table, group
MAX_JSON_BYTES = 64 << 20  # a JSON file with more bytes counts as damaged
# times that a folder is read: a merge may replace parts between reading the manifest and the parts
MAX_READS = 5


class Damaged(ValueError):
    """A run folder cannot be trusted; the message has one line per fault."""

    exit_code = 1


class OtherVersion(Damaged):
    """The rows of a sound run folder are of another cost model than this one."""


@dataclass(frozen=True, slots=True)
class Part:
    """One Parquet file of a group as the manifest names it; crc: CRC-32 of its bytes."""

    table: str
    size_bytes: int
    crc: int
    rows: int


@dataclass(frozen=True, slots=True)
class Group:
    """Parts that are visible together: parts/<table>/<name>.parquet. level: how often they were merged."""

    name: str
    level: int
    parts: tuple[Part, ...]

    def paths(self) -> tuple[str, ...]:
        """Paths of the parts below the run's folder."""
        return tuple(part_path(part.table, self.name) for part in self.parts)

    def has_nondominated(self) -> bool:
        """True if all of its points that may be on the run's front are listed by themselves."""
        tables = {part.table for part in self.parts}
        return NONDOMINATED in tables or "points" not in tables

    def is_by_worker(self) -> bool:
        """True if a worker wrote it (cluster/sink.py)."""
        return is_by_worker(self.name)


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of manifest.json. identity: digest of everything that determines the rows, "" while there
    are no rows. retired: paths of parts that were merged into others; they stay for readers of the manifest
    before. study_crc: CRC-32 of study.yaml, which a later session may replace by one with other limits.
    """

    generation: int = 0
    identity: str = ""
    groups: tuple[Group, ...] = ()
    retired: tuple[str, ...] = ()
    study_crc: int = 0


def part_path(table: str, name: str) -> str:
    """Path of a part below the run's folder."""
    return f"parts/{table}/{name}.parquet"


def is_by_worker(name: str) -> bool:
    """True for the name of a group that a worker wrote (cluster/sink.py)."""
    found = GROUP_NAME.fullmatch(name)
    return bool(found and found["by_worker"])


def part_metadata(identity: str, table: str, name: str) -> dict[bytes, bytes]:
    """Metadata of a part: the study, table and group that it belongs to."""
    return {PLACE_KEY: f"{identity} {table} {name}".encode()}


def digest(identity: Mapping[str, str]) -> str:
    """Digest of a study's identity, as the manifest stores it."""
    return hashlib.sha256(json.dumps(sorted(identity.items())).encode()).hexdigest()[:16]


def sync(folder: Path) -> None:
    """Make the entries of a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(folder: Path, parents: bool = True) -> None:
    """Make a folder and, if so wanted, its missing parent folders, durably."""
    if not folder.is_dir():
        if folder.exists():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
        if parents:
            make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync(folder.parent)


def write_bytes(path: Path, data: bytes, durable: bool = True) -> None:
    """Publish a whole file: temporary name, fsync, rename, fsync of the folder. Raises OSError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with create(temporary) as out:
            out.write(data)
            out.flush()
            if durable:
                os.fsync(out.fileno())
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync(path.parent)


def create(path: Path) -> BufferedWriter:
    """A new file, opened for writing. A file or link that already has this name is removed first."""
    try:
        return open(path, "xb")
    except FileExistsError:
        path.unlink()
        return open(path, "xb")


def seal(kind: str, value: Mapping[str, Any]) -> bytes:
    """JSON with its kind and its own CRC-32, so that changed and swapped files are detected."""
    content = {**value, "kind": kind}
    return json.dumps(
        {**content, "crc": zlib.crc32(json.dumps(content, sort_keys=True).encode())}, sort_keys=True
    ).encode()


def unseal(path: Path, kind: str) -> dict[str, Any] | None:
    """The value that `seal` wrote as this kind; None if the file is absent, damaged or of another kind."""
    value = _unsealed(path)
    return value if value is not None and value.pop("kind", "") == kind else None


def unseal_bytes(data: bytes, kind: str) -> dict[str, Any] | None:
    """As `unseal`, of the content of a file."""
    value = _checked(data)
    return value if value is not None and value.pop("kind", "") == kind else None


def generation_file(path: Path) -> tuple[int, str] | None:
    """(generation, identity of the study) of a file of asks; None if it is damaged or another file.

    To save time the file is not parsed: `seal` sorts the keys, so the bytes of the file without those of the
    crc entry are exactly what the checksum was computed from. A file that was written in another way is
    parsed.
    """
    with suppress(OSError):
        data = path.read_bytes()
        if (
            len(data) <= MAX_JSON_BYTES
            and (found := SEALED_ASKS.search(data))
            and zlib.crc32(data[found.end(1) :], zlib.crc32(data[: found.start(1)])) == int(found[2])
        ):
            return int(found[3]), found[4].decode()
    value = unseal(path, "asks") or {}
    generation, identity = value.get("generation"), value.get("identity")
    return (generation, identity) if isinstance(generation, int) and isinstance(identity, str) else None


Asks = dict[Path, tuple[int, str] | None]  # file of asks -> `generation_file`


def asks_of(root: Path) -> Asks:
    """The files of asks of a run folder; reading tens of thousands takes a second or more."""
    return {path: generation_file(path) for path in sorted((root / "asks").glob("*.json"))}


def identities(root: Path, asks_by_path: Asks) -> dict[Path, str]:
    """The study that each sound file of a run folder says it belongs to, as a digest. Damaged files, and
    those that name no study, are left out.
    """
    asks = {path: found[1] for path, found in asks_by_path.items() if found}
    files = sorted((root / "parts").glob("*/*.parquet"))
    parts = {path: _metadata_of(path).decode(errors="replace").partition(" ")[0] for path in files}
    return identities_of_heads(root) | {
        path: identity for path, identity in (asks | parts).items() if DIGEST.fullmatch(identity)
    }


def identities_of_heads(root: Path) -> dict[Path, str]:
    """`identities` of only the manifests, env.json and status.json."""
    identity_of = {
        root / name: (unseal(root / name, kind) or {}).get("identity") for name, kind in SEALED_KINDS.items()
    }
    identity_of[root / ENV] = (
        digest(identity_keys) if isinstance(identity_keys := identity_of[root / ENV], dict) else None
    )
    return {
        path: identity
        for path, identity in identity_of.items()
        if isinstance(identity, str) and DIGEST.fullmatch(identity)
    }


def _unsealed(path: Path) -> dict[str, Any] | None:
    """A JSON file of any kind whose CRC-32 is right; None for others."""
    with suppress(OSError):
        if path.stat().st_size <= MAX_JSON_BYTES:
            return _checked(path.read_bytes())
    return None


def _checked(data: bytes) -> dict[str, Any] | None:
    """JSON whose CRC-32 is right; else None."""
    try:
        value: dict[str, Any] = json.loads(data)
        crc = value.pop("crc")
        return value if zlib.crc32(json.dumps(value, sort_keys=True).encode()) == crc else None
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        return None


def crc(path: Path) -> int:
    """CRC-32 of a file, read a MiB at a time."""
    value = 0
    with open(path, "rb") as data:
        while block := data.read(1 << 20):
            value = zlib.crc32(block, value)
    return value


def irregular_entries(root: Path) -> Iterator[str]:
    """A message for every entry that should be a regular file or a folder and is not: links lead out of the
    run folder, and reading a pipe never ends.
    """
    for name in FILES:
        if line := _irregular(root / name, stat.S_ISREG):
            yield line
    for name in FOLDERS:
        if line := _irregular(root / name, stat.S_ISDIR):
            yield line
        elif name != "quarantine":
            yield from _irregular_below(root / name, name == "log")


def _irregular_below(folder: Path, appended: bool) -> Iterator[str]:
    """`irregular_entries` below a folder. appended: its files are appended to, so none may have a hard link
    elsewhere.
    """
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _irregular_below(Path(entry.path), appended)
            elif not entry.is_file(follow_symlinks=False):
                yield from filter(None, [_irregular(Path(entry.path), stat.S_ISREG)])
            elif appended and os.lstat(entry.path).st_nlink > 1:
                yield f"{entry.path}: is another file too, by a hard link; remove it"


def _irregular(path: Path, kind: Callable[[int], bool]) -> str:
    """A message if an entry exists that is not of this kind; else ""."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return ""
    if kind(found.st_mode):
        return ""
    what = (
        "a symbolic link"
        if stat.S_ISLNK(found.st_mode)
        else "a folder"
        if stat.S_ISDIR(found.st_mode)
        else "no regular file"
    )
    return f"{path}: is {what}; a run folder holds only regular files and folders; remove it"


def read(root: Path) -> Manifest:
    """The manifest; an empty one where nothing has been committed yet. Raises Damaged."""
    if lines := list(irregular_entries(root)):
        raise Damaged("\n".join(lines))
    if line := other_version(root / MANIFEST):
        raise Damaged(line)
    before, found = unseal(root / PREVIOUS_MANIFEST, "manifest"), unseal(root / MANIFEST, "manifest")
    if found is None:
        what = "damaged" if (root / MANIFEST).exists() else "missing"
        if (
            what == "damaged"
            or (root / PREVIOUS_MANIFEST).exists()
            or next((root / "parts").glob("*/[0-9]*.parquet"), None)
        ):
            raise Damaged(f"{root / MANIFEST}: {what}; {advice(root)}")
        return Manifest()
    manifest = parse(root / MANIFEST, found)
    if before and parse(root / PREVIOUS_MANIFEST, before).generation > manifest.generation:
        raise Damaged(f"{root / MANIFEST}: older than {PREVIOUS_MANIFEST}; {advice(root)}")
    return manifest


def is_url(text: str | Path) -> bool:
    """True for the URL of a folder on a store (cluster/objects.py)."""
    return "://" in str(text)


def is_locked(root: Path) -> bool:
    """True if a process writes into the folder: it holds its lock."""
    try:
        handle = os.open(root / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except OSError as fault:  # where there is no flock, no run has one
        return fault.errno in (errno.EAGAIN, errno.EACCES)
    finally:
        os.close(handle)


def is_gone(process: str) -> bool:
    """True if a process, "NUMBER on HOST", is known to have ended: it was on this host, and is there no more
    or is a zombie (killed, and its parent did not wait for it).
    """
    number, _, host = process.partition(" on ")
    if host != socket.gethostname() or not number.isdecimal() or not os.path.exists("/proc/self/stat"):
        return False
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] in ("Z", "X")
    except OSError:
        return True


def raise_if_no_run(root: Path) -> None:
    """Raises ValueError for a path at which no run is, not even a damaged one."""
    if not root.is_dir() or not ((root / STUDY).exists() or (root / MANIFEST).exists()):
        raise ValueError(no_run_text(root))


def no_run_text(root: Path) -> str:
    """A message for a path that is no run folder, with what to do."""
    if root.is_file():
        own = root.parent if (root.parent / MANIFEST).is_file() else Path("runs", root.stem)
        return f"{root}: is a file, and a run is a folder; give the one that dse run named, e.g. {own}"
    if root.is_dir() and (root.parent / STUDY).is_file():
        return f"{root}: is a part of the run {root.parent}; give that folder"
    if inside := _runs_in(root):
        listed = ", ".join(str(one) for one in sorted(inside.values())[:3]) + ", ..." * (len(inside) > 3)
        return f"{root}: is a folder of runs, give one of them: {listed} (dse runs {root} lists them)"
    near = _run_meant(root)
    start = f"start one with dse run STUDY.yaml --out {root}"
    return (
        f"{root}: no run is there ({STUDY} is missing); {f'did you mean {near}? or ' if near else ''}{start}"
    )


def _run_meant(root: Path) -> Path | None:
    """Returns the run of that name, or of one that is spelt alike, in the folder where it was looked for, or
    in runs/; None if there is none.
    """
    runs = _runs_in(Path("runs")) | _runs_in(root.parent)
    return next((runs[name] for name in get_close_matches(root.name, runs, 1)), None)


def _runs_in(parent: Path) -> dict[str, Path]:
    """Returns the runs among the first MAX_BESIDE files of a folder, by name."""
    with suppress(OSError):
        beside = islice(parent.iterdir(), MAX_BESIDE)
        return {one.name: one for one in beside if (one / STUDY).is_file()}
    return {}


def advice(root: Path) -> str:
    """What to do with a damaged folder: `dse resume`; if it has files of other studies, first remove these,
    since a resume refuses such a folder.
    """
    return (
        files_of_other_studies(root)
        or f"`dse resume {root}` mends what can be mended and solves the rest again"
    )


def files_of_other_studies(root: Path) -> str:
    """A message for a folder with files of several studies, naming those that are not of the study to which
    most files belong; "" for other folders.
    """
    identity_of = identities(root, asks_of(root))
    main_identity = Counter(identity_of.values()).most_common(1)[0][0] if identity_of else ""
    others = [str(path) for path, identity in identity_of.items() if identity != main_identity]
    if not others:
        return ""
    more = f" and {len(others) - 1} files more" if len(others) > 1 else ""
    return (
        f"{others[0]}{more}: of another run; restore this run's file, or remove those of the other run, "
        f"then `dse resume {root}`"
    )


def other_version(path: Path) -> str:
    """A message if a manifest is sound but of another version of its format; else ""."""
    value = _unsealed(path)
    if (
        value is None
        or value.get("kind", "manifest") != "manifest"
        or value.get("version", MANIFEST_VERSION) == MANIFEST_VERSION
    ):
        return ""
    return (
        f"{path}: version = {str(value['version'])[:20]}, and this dse reads and writes "
        f"{MANIFEST_VERSION}; use "
        "the dse that wrote it, or another folder"
    )


def parse(path: Path, value: Mapping[str, Any]) -> Manifest:
    """The manifest from its JSON value. Raises Damaged if dse would not write such a value: names in it
    become paths of files.
    """
    try:
        groups = tuple(
            Group(g["name"], g["level"], tuple(Part(*part) for part in g["parts"])) for g in value["groups"]
        )
        found = Manifest(
            value["generation"], value["identity"], groups, tuple(value["retired"]), value.get("study_crc", 0)
        )
        line = _invalid_entry(found) if value["version"] == MANIFEST_VERSION else "its version"
    except (KeyError, TypeError, AttributeError, ValueError) as fault:
        line = f"{type(fault).__name__} {fault}"
    if line:
        raise Damaged(
            f"{path}: not as dse writes it ({' '.join(line.split())[:200]}); was it "
            "made by another tool? name another folder"
        )
    return found


def _invalid_entry(manifest: Manifest) -> str:
    """The first entry of a manifest that dse would not write; empty if there is none."""
    numbers = [
        manifest.generation,
        manifest.study_crc,
        *(
            n
            for g in manifest.groups
            for n in (g.level, *(n for p in g.parts for n in (p.size_bytes, p.crc, p.rows)))
        ),
    ]
    if not all(type(n) is int and 0 <= n < 1 << 63 for n in numbers):
        return "a number is not a non-negative integer of 64 bits"
    if manifest.identity and not DIGEST.fullmatch(manifest.identity):
        return f"identity = {manifest.identity}"
    names = [group.name for group in manifest.groups]
    for name in names:
        if not GROUP_NAME.fullmatch(name):
            return f"group {name!r}"
    if len(set(names)) < len(names):
        return "a group that is listed twice"
    for group in manifest.groups:
        tables = [part.table for part in group.parts]
        if not tables or not set(tables) <= set(STORED) or len(set(tables)) < len(tables):
            return f"tables {tables} of group {group.name}"
    retired_folders = {part_path(table, "") for table in STORED}
    for path in manifest.retired:
        name = path.rpartition("/")[2].removesuffix(".parquet")
        if not GROUP_NAME.fullmatch(name) or path.replace(name, "") not in retired_folders:
            return f"retired {path!r}"
    return ""


# parts that this process has checked and found sound, with device, inode and times
_checked_parts: set[tuple[object, ...]] = set()


def fault(root: Path, part: Part, name: str, identity: str) -> str:
    """Why a part is not the file that was committed for the study; "" if it is. name: of the part's group.
    The bytes of a part are read once per process.
    """
    path = root / part_path(part.table, name)
    try:
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode):
            return "is no regular file"
        if found.st_size != part.size_bytes:
            return f"{found.st_size} bytes, {part.size_bytes} were committed"
        key = (str(path), part, identity, found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns)
        if key not in _checked_parts:
            if crc(path) != part.crc:
                return "its checksum differs from the one committed"
            if _metadata_of(path) != part_metadata(identity, part.table, name)[PLACE_KEY]:
                return (
                    f"says that it is {_metadata_of(path).decode(errors='replace')[:60] or 'of no run'}, "
                    f"not {identity} {part.table} {name}"
                )
            _checked_parts.add(key)
    except FileNotFoundError:
        return "missing"
    except OSError as refusal:
        return f"cannot be read ({refusal.strerror})"
    return ""


def _metadata_of(path: Path) -> bytes:
    """The text in a part's metadata that names its study, table and group; empty if the part cannot be
    read.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    with suppress(pa.ArrowException, OSError):
        named_place: bytes = (pq.read_metadata(path).metadata or {}).get(PLACE_KEY, b"")
        return named_place
    return b""


def repeated_machines(machines: Ints, schedules: Ints | None = None) -> Ints:
    """[n], ascending: machines, or machines of schedules, that have several rows. Sorted numbers are several
    times as quick as groups of rows.
    """
    import numpy as np

    if schedules is None or not schedules.any():
        machines = np.sort(machines)
        is_repeated = machines[1:] == machines[:-1]
    else:
        order = np.lexsort([schedules, machines])
        machines, schedules = machines[order], schedules[order]
        is_repeated = (machines[1:] == machines[:-1]) & (schedules[1:] == schedules[:-1])
    found: Ints = machines[1:][is_repeated]
    return found


def faults(root: Path, manifest: Manifest) -> dict[str, list[str]]:
    """Group -> what is wrong with its parts, one line each; sound groups are not in it."""
    found: dict[str, list[str]] = {}
    for group in manifest.groups:
        for part in group.parts:
            if why := fault(root, part, group.name, manifest.identity):
                found.setdefault(group.name, []).append(f"{root / part_path(part.table, group.name)}: {why}")
    return found


def without_lost_lists(root: Path, manifest: Manifest) -> Manifest:
    """The manifest without parts of NONDOMINATED that are not what was committed: no row is lost with them,
    since fronts can be read from all points.
    """

    def is_sound(part: Part, group: Group) -> bool:
        return part.table != NONDOMINATED or not fault(root, part, group.name, manifest.identity)

    groups = (replace(one, parts=tuple(p for p in one.parts if is_sound(p, one))) for one in manifest.groups)
    return replace(manifest, groups=tuple(groups))


def verified_parts(root: Path) -> tuple[Manifest, dict[str, list[str]]]:
    """The manifest, without lists that are lost, and the faults of its parts; a run may be writing to the
    folder. Raises Damaged.
    """
    manifest, wrong = read(root), {}
    for _ in range(MAX_READS):
        wrong = faults(root, without_lost_lists(root, manifest))
        before, manifest = manifest, read(root) if wrong else manifest
        if manifest == before:
            break
    _raise_if_older(root, manifest)
    return without_lost_lists(root, manifest), wrong


def _raise_if_older(root: Path, manifest: Manifest) -> None:
    """Raises Damaged if other files show that there was a newer manifest. status.json is written after the
    commit that it reports, and the parts of a commit after the manifest of the commit before. So rows are
    lost if the manifest is older than status.json says, or more than one generation older than the newest
    part.
    """
    facts = status(root, manifest.identity)
    published = facts.get("published") if facts else None
    shown_by = {
        f"{STATUS} says": published if isinstance(published, int) else 0,
        "parts are": _newest_generation(root) - 1,
    }
    for evidence, generation in shown_by.items():
        if generation > manifest.generation and generation > read(root).generation:
            raise Damaged(
                f"{root / MANIFEST}: its generation {manifest.generation} is older than {evidence} "
                f"({generation}), rows are lost; {advice(root)}"
            )


def _newest_generation(root: Path) -> int:
    """Generation that the newest part was written for, 0 without one."""
    return max(
        (
            int(path.stem.partition("-")[0])
            for path in (root / "parts").glob("*/*.parquet")
            if GROUP_NAME.fullmatch(path.stem)
        ),
        default=0,
    )


def faults_of_inputs(root: Path, manifest: Manifest) -> list[str]:
    """A message for each of study.yaml and the inputs that is not as the run wrote it."""
    for _ in range(MAX_READS):  # a run that is starting writes env.json first, then these files
        if not (wrong := damaged_inputs(root, env(root, manifest))):
            return []
        time.sleep(0.02)
    advice_text = advice(root)
    if is_older_env(root, manifest, wrong):
        return [f"{root / ENV}: older than {MANIFEST}; {advice_text}"]
    return [
        f"{root / name}: {'not what the run wrote' if (root / name).exists() else 'missing'}; {advice_text}"
        for name in wrong
    ]


def damaged_inputs(root: Path, env_data: Mapping[str, Any] | None) -> list[str]:
    """Names of the files that differ from what env.json says about them. env_data: content of env.json; None:
    no file is checked.
    """
    return [
        name
        for name, (size, checksum, _) in (env_data["files"] if env_data else {}).items()
        if not _is_unchanged(root / name, size, checksum)
    ]


def is_older_env(root: Path, manifest: Manifest, damaged: Sequence[str]) -> bool:
    """True if env.json is older than the manifest: study.yaml is the one that the manifest names (study_crc),
    but not the one that env.json describes. damaged: the result of `damaged_inputs`.
    """
    study = root / STUDY
    return STUDY in damaged and study.is_file() and crc(study) == manifest.study_crc


def _is_unchanged(path: Path, size: int, checksum: int) -> bool:
    return path.is_file() and path.stat().st_size == size and crc(path) == checksum


def env(root: Path, manifest: Manifest) -> dict[str, Any] | None:
    """The content of env.json; None if it is damaged or of another run. Its entry `files`: path -> [bytes,
    CRC-32, text or None].
    """
    found = unseal(root / ENV, "env")
    if (
        found is None
        or not isinstance(found.get("identity"), dict)
        or not isinstance(files := found.get("files"), dict)
    ):
        return None
    if manifest.identity and digest(found["identity"]) != manifest.identity:
        return None
    return (
        found if all(_is_run_file(name) and _is_file_entry(entry) for name, entry in files.items()) else None
    )


def _is_run_file(name: str) -> bool:
    return name == STUDY or (
        name.startswith("inputs/") and name.count("/") == 1 and Path(name).name not in ("", "..", ".")
    )


def _is_file_entry(entry: object) -> bool:
    match entry:
        case [int(), int(), str() | None]:
            return True
    return False


def status(root: Path, identity: str) -> dict[str, Any] | None:
    """status.json; None if it is absent, damaged, or of another study. identity: "" if the study has none
    yet.
    """
    found = unseal(root / STATUS, "status")
    stored_identity = found.pop("identity", None) if found else None
    return found if stored_identity == identity or not identity else None


def committed(root: Path, manifest: Manifest, facts: Mapping[str, Any]) -> dict[str, Any]:
    """What status.json says of a run whose process is gone, or whose last commit failed, with its machines by
    status as the manifest lists them: rows that were not committed are lost. `uncommitted`: machines to be
    solved again; if there are any, the front's keys, which may tell of them, are left out. A part that cannot
    be read counts nothing.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    count: Counter[str] = Counter()
    for group in manifest.groups:
        for part in group.parts:
            if part.table == "machines":
                with suppress(OSError, pa.ArrowException):
                    path = root / part_path(part.table, group.name)
                    found = pq.read_table(path, columns=["status"])["status"]
                    count.update({one["values"]: one["counts"] for one in pc.value_counts(found).to_pylist()})
    done = facts.get("done")
    lost = max(0, done - count.total()) if isinstance(done, int) else 0
    known = dict(facts) | {state: count[state] for state in record.STATUS} | {"done": count.total()}
    if lost:
        known = {key: value for key, value in known.items() if key not in FRONT_KEYS}
    return known | {"uncommitted": lost}


def is_intact_study(root: Path, manifest: Manifest, versions: Mapping[str, int]) -> bool:
    """True if env.json shows that study.yaml and its inputs are those of the rows, made by these versions of
    model and solvers. Then the rows are known to be this study's without reading the study.
    """
    env_data = env(root, manifest) if manifest.identity else None
    return (
        env_data is not None
        and STUDY in env_data["files"]
        and not damaged_inputs(root, env_data)
        and all(env_data["identity"].get(name) == str(own) for name, own in versions.items())
    )


VERSIONS = ("model_version", "solver_version")


def raise_if_other_study(root: Path, manifest: Manifest, identity: Mapping[str, str]) -> None:
    """Raises OtherVersion if the rows of the folder are of another cost model, Damaged if they belong to
    another study. What another version of the solvers found costs what it did.

    Where study.yaml and its inputs are byte for byte those of the rows, keys that only one of the versions
    has, and how it reads the machine, make no other study.
    """
    if not manifest.identity or digest(identity) == manifest.identity:
        return
    env_data = env(root, manifest) or {"identity": {}, "files": {}}
    written, same_files = (
        env_data["identity"],
        STUDY in env_data["files"] and not damaged_inputs(root, env_data),
    )
    of_version = {*VERSIONS, "machine"} if same_files else {*VERSIONS}
    compared = written.keys() & identity.keys() if same_files else written.keys() | identity.keys()
    if written and all(written.get(key) == identity.get(key) for key in compared - of_version):
        if written["model_version"] == identity["model_version"]:
            return
        raise OtherVersion(
            f"{root}: written by {versions_text(written)}, this is {versions_text(identity)}: costs have "
            "changed since, and rows of different versions are not mixed; read them with the dse that wrote "
            f"them, or solve again: dse run {root / STUDY} --out NEW"
        )
    difference = f"{MANIFEST} has identity {manifest.identity}, {STUDY} has {digest(identity)}"
    raise Damaged(
        files_of_other_studies(root)
        or f"{root / STUDY}: not the study of the rows ({difference}); restore the study.yaml that was "
        "replaced"
    )


def versions_text(identity: Mapping[str, str]) -> str:
    """Returns the versions of model and solvers in words."""
    return f"model {identity.get('model_version')}, solver {identity.get('solver_version')}"


def written_by(root: Path, manifest: Manifest) -> str:
    """Returns which versions of model and solvers wrote the rows of a folder; "": none, or env.json lost."""
    written = (env(root, manifest) or {}).get("identity", {}) if manifest.identity else {}
    return versions_text(written) if {*VERSIONS} <= written.keys() else ""
