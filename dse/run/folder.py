"""A run folder as its readers see it: what the manifest lists, and whether it is still byte for byte what was written.

Nothing in a folder is trusted: it may come from elsewhere, or a disk may have changed it. JSON files carry a CRC-32 of themselves and say what they are and
of which study (so that one does not pass for another), parts say of which study, table and group they are and are checked against the manifest once per
process, names are those that dse writes, links are not followed.
Against chance that is enough; who can write the folder can also write rows that were never solved (docs/reliability.md).
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import stat
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from io import BufferedWriter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dse.run.record import STORED

MANIFEST, BEFORE = "manifest.json", "manifest.before.json"
ENV, STATUS, STUDY = "env.json", "status.json", "study.yaml"
HEADS = {  # sealed, with the identity of the study
    MANIFEST: "manifest",
    BEFORE: "manifest",
    ENV: "env",
    STATUS: "status",
}
VERSION = 5  # of the manifest, and of the tables that it lists
NAME = re.compile(r"\d{6,12}-\d")
DIGEST = re.compile(r"[0-9a-f]{16}")
FOLDERS = ("parts", "asks", "log", "quarantine", "inputs")
FILES = (MANIFEST, BEFORE, ENV, STATUS, STUDY, ".lock")
SEAL = re.compile(rb'("crc": (\d{1,10}), )"generation": (\d{1,18}), "identity": "([0-9a-f]{0,16})", "kind": "asks"[,}]')
PLACE = b"dse.place"  # in the metadata of a part: identity of the study, table, group
LARGEST_JSON = 64 << 20
TRIES = 5  # a merge may replace parts between reading the manifest and reading them


class Damaged(ValueError):
    """What is wrong with a run folder, one line per fault."""

    exit_code = 1


@dataclass(frozen=True, slots=True)
class Part:
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
        return tuple(part_path(part.table, self.name) for part in self.parts)


@dataclass(frozen=True, slots=True)
class Manifest:
    """identity: digest of all that shapes the rows, "" before there are any. retired: merged parts, still there for readers of the manifest before."""

    generation: int = 0
    identity: str = ""
    groups: tuple[Group, ...] = ()
    retired: tuple[str, ...] = ()


def part_path(table: str, name: str) -> str:
    return f"parts/{table}/{name}.parquet"


def place(identity: str, table: str, name: str) -> dict[bytes, bytes]:
    """What a part says of itself."""
    return {PLACE: f"{identity} {table} {name}".encode()}


def digest(identity: Mapping[str, str]) -> str:
    """What the manifest holds of a study's identity."""
    return hashlib.sha256(json.dumps(sorted(identity.items())).encode()).hexdigest()[:16]


def sync(folder: Path) -> None:
    """Make the entries of a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make(folder: Path) -> None:
    """Make a folder, durably, with those above it."""
    if not folder.is_dir():
        if folder.exists():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
        make(folder.parent)
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
    """A new file to write: what is there under its name, a link of somebody else perhaps, goes first."""
    try:
        return open(path, "xb")  # noqa: SIM115 the caller closes it
    except FileExistsError:
        path.unlink()
        return open(path, "xb")  # noqa: SIM115


def seal(kind: str, value: Mapping[str, Any]) -> bytes:
    """JSON that says what it is, with a CRC-32 of itself, so that a flipped digit and a swapped file show."""
    whole = {**value, "kind": kind}
    return json.dumps({**whole, "crc": zlib.crc32(json.dumps(whole, sort_keys=True).encode())}, sort_keys=True).encode()


def unseal(path: Path, kind: str) -> dict[str, Any] | None:
    """What `seal` wrote as this kind, or None if the file is damaged, another one, or absent."""
    value = _whole(path)
    return value if value is not None and value.pop("kind", "") == kind else None


def generation_file(path: Path) -> tuple[int, str] | None:
    """The generation whose asks a file has and the identity of its study, or None if it is damaged or another one. Of a large file the checksum is taken of its
    bytes as they stand: `seal` writes it between names in order, so that all else is what it was taken of. What is written in another way is read whole."""
    with suppress(OSError):
        data = path.read_bytes()
        if len(data) <= LARGEST_JSON and (found := SEAL.search(data)) and zlib.crc32(data[found.end(1):], zlib.crc32(data[:found.start(1)])) == int(found[2]):
            return int(found[3]), found[4].decode()
    value = unseal(path, "asks") or {}
    generation, identity = value.get("generation"), value.get("identity")
    return (generation, identity) if isinstance(generation, int) and isinstance(identity, str) else None


def identities(root: Path, own: str) -> dict[Path, str]:
    """Of which study each sound file of a run folder says it is, by its digest.

    Damaged files, and those that say nothing, are left out. own: digest of the study at hand: asks that claim it
    are believed without their checksum, which is looked at later."""
    asks = {path: _study_of_asks(path, own) for path in sorted((root / "asks").glob("*.json"))}
    files = sorted((root / "parts").glob("*/*.parquet"))
    parts = {path: _place_of(path).decode(errors="replace").partition(" ")[0] for path in files}
    return heads_of(root) | {path: its for path, its in (asks | parts).items() if DIGEST.fullmatch(its)}


def heads_of(root: Path) -> dict[Path, str]:
    """`identities` of the manifests, env.json and status.json."""
    said = {root / name: (unseal(root / name, kind) or {}).get("identity") for name, kind in HEADS.items()}
    said[root / ENV] = digest(named) if isinstance(named := said[root / ENV], dict) else None
    return {path: its for path, its in said.items() if isinstance(its, str) and DIGEST.fullmatch(its)}


def _study_of_asks(path: Path, own: str) -> str:
    with suppress(OSError):
        claimed = SEAL.search(path.read_bytes())
        if claimed and claimed[4].decode() == own:
            return own
    return (generation_file(path) or (0, ""))[1]


def _whole(path: Path) -> dict[str, Any] | None:
    """JSON whose CRC-32 is right, of any kind."""
    try:
        if path.stat().st_size > LARGEST_JSON:
            return None
        value: dict[str, Any] = json.loads(path.read_bytes())
        crc = value.pop("crc")
        return value if zlib.crc32(json.dumps(value, sort_keys=True).encode()) == crc else None
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError):
        return None


def crc(path: Path) -> int:
    value = 0
    with open(path, "rb") as data:
        while block := data.read(1 << 20):
            value = zlib.crc32(block, value)
    return value


def strange(root: Path) -> Iterator[str]:
    """What in a folder is neither a file nor a folder of its own, one line each: links lead elsewhere, pipes wait for ever."""
    for name in FILES:
        if (line := _strange(root / name, stat.S_ISREG)):
            yield line
    for name in FOLDERS:
        if (line := _strange(root / name, stat.S_ISDIR)):
            yield line
        elif name != "quarantine":
            yield from _below(root / name, name == "log")


def _below(folder: Path, in_place: bool) -> Iterator[str]:
    """in_place: its files are appended to, so that they must not be another file too."""
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _below(Path(entry.path), in_place)
            elif line := _strange(Path(entry.path), stat.S_ISREG):
                yield line
            elif in_place and os.lstat(entry.path).st_nlink > 1:
                yield f"{entry.path}: is another file too, by a hard link; remove it"


def _strange(path: Path, kind: Callable[[int], bool]) -> str:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return ""
    if kind(found.st_mode):
        return ""
    what = "a symbolic link" if stat.S_ISLNK(found.st_mode) else "a folder" if stat.S_ISDIR(found.st_mode) else "no regular file"
    return f"{path}: is {what}; a run folder holds files and folders of its own only: remove it"


def read(root: Path) -> Manifest:
    """The manifest; an empty one where nothing has been committed yet. Raises Damaged."""
    if lines := list(strange(root)):
        raise Damaged("\n".join(lines))
    if line := other_version(root / MANIFEST):
        raise Damaged(line)
    before, found = unseal(root / BEFORE, "manifest"), unseal(root / MANIFEST, "manifest")
    if found is None:
        what = "damaged" if (root / MANIFEST).exists() else "missing"
        if what == "damaged" or (root / BEFORE).exists() or next((root / "parts").glob("*/[0-9]*.parquet"), None):
            raise Damaged(f"{root / MANIFEST}: {what}; {way_on(root)}")
        return Manifest()
    manifest = parse(root / MANIFEST, found)
    if before and parse(root / BEFORE, before).generation > manifest.generation:
        raise Damaged(f"{root / MANIFEST}: older than {BEFORE}; {way_on(root)}")
    return manifest


def absent(root: Path) -> str:
    """Why no run can be read from a path, and what to do."""
    if root.is_file():
        return f"{root}: is a file, and a run is a folder; give the one that dse run named, e.g. runs/{root.stem}"
    return f"{root}: no run is there ({STUDY} is missing); start one with dse run STUDY.yaml --out {root}"


def way_on(root: Path) -> str:
    """What helps with a folder that is not as a run left it: a resume, which refuses a folder with files of several studies."""
    return foreign(root) or f"`dse resume {root}` mends what can be mended and solves the rest again"


def foreign(root: Path) -> str:
    """Of a folder with files of several studies those that are not of the study that most are of, and what to do; else nothing."""
    said = identities(root, "")
    own = Counter(said.values()).most_common(1)[0][0] if said else ""
    others = [str(path) for path, its in said.items() if its != own]
    if not others:
        return ""
    more = f" and {len(others) - 1} files more" if len(others) > 1 else ""
    return f"{others[0]}{more}: of another run; put this run's own back or remove what is of the other, then `dse resume {root}`"


def other_version(path: Path) -> str:
    """One line of a sound manifest that another version of dse wrote, or nothing."""
    value = _whole(path)
    if value is None or value.get("kind", "manifest") != "manifest" or value.get("version", VERSION) == VERSION:
        return ""
    return f"{path}: version = {str(value['version'])[:20]}, and this dse reads and writes {VERSION}; use the dse that wrote it, or another folder"


def parse(path: Path, value: Mapping[str, Any]) -> Manifest:
    """The manifest in its JSON. Raises Damaged if it is none that dse writes: names lead to files."""
    try:
        groups = tuple(Group(g["name"], g["level"], tuple(Part(*part) for part in g["parts"])) for g in value["groups"])
        found = Manifest(value["generation"], value["identity"], groups, tuple(value["retired"]))
        line = _foreign(found) if value["version"] == VERSION else "its version"
    except (KeyError, TypeError, AttributeError, ValueError) as fault:
        line = f"{type(fault).__name__} {fault}"
    if line:
        raise Damaged(f"{path}: not as dse writes it ({' '.join(line.split())[:200]}); a folder made elsewhere? give another one")
    return found


def _foreign(m: Manifest) -> str:
    """What of a manifest dse does not write, or nothing."""
    numbers = [m.generation, *(n for g in m.groups for n in (g.level, *(n for p in g.parts for n in (p.size_bytes, p.crc, p.rows))))]
    if not all(type(n) is int and 0 <= n < 1 << 63 for n in numbers):
        return "a number is none"
    if m.identity and not DIGEST.fullmatch(m.identity):
        return f"identity = {m.identity}"
    names = [group.name for group in m.groups]
    for name in names:
        if not NAME.fullmatch(name):
            return f"group {name!r}"
    if len(set(names)) < len(names):
        return "a group that stands twice"
    for group in m.groups:
        tables = [part.table for part in group.parts]
        if not tables or not set(tables) <= set(STORED) or len(set(tables)) < len(tables):
            return f"tables {tables} of group {group.name}"
    known = {part_path(table, "") for table in STORED}
    for path in m.retired:
        name = path.rpartition("/")[2].removesuffix(".parquet")
        if not NAME.fullmatch(name) or path.replace(name, "") not in known:
            return f"retired {path!r}"
    return ""


_sound: set[tuple[object, ...]] = set()  # parts that this process has checked, as they are on disk


def fault(root: Path, part: Part, name: str, identity: str) -> str:
    """Why a part is not what was committed for the study, or nothing; its bytes are read once per process."""
    path = root / part_path(part.table, name)
    try:
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode):
            return "is no regular file"
        if found.st_size != part.size_bytes:
            return f"{found.st_size} bytes, {part.size_bytes} were committed"
        key = (str(path), part, identity, found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns)
        if key not in _sound:
            if crc(path) != part.crc:
                return "its checksum differs from the one committed"
            if _place_of(path) != place(identity, part.table, name)[PLACE]:
                return f"says that it is {_place_of(path).decode(errors='replace')[:60] or 'of no run'}, not {identity} {part.table} {name}"
            _sound.add(key)
    except FileNotFoundError:
        return "missing"
    except OSError as refusal:
        return f"cannot be read ({refusal.strerror})"
    return ""


def _place_of(path: Path) -> bytes:
    """What a part says of itself, or nothing."""
    with suppress(pa.ArrowException, OSError):
        own: bytes = (pq.read_metadata(path).metadata or {}).get(PLACE, b"")
        return own
    return b""


def faults(root: Path, manifest: Manifest) -> dict[str, list[str]]:
    """Group -> what is wrong with its parts, one line each; sound groups are not in it."""
    found: dict[str, list[str]] = {}
    for group in manifest.groups:
        for part in group.parts:
            if why := fault(root, part, group.name, manifest.identity):
                found.setdefault(group.name, []).append(f"{root / part_path(part.table, group.name)}: {why}")
    return found


def sound(root: Path) -> tuple[Manifest, dict[str, list[str]]]:
    """The manifest and the faults of its parts, while a run may go on in the folder. Raises Damaged."""
    manifest, wrong = read(root), {}
    for _ in range(TRIES):
        wrong = faults(root, manifest)
        before, manifest = manifest, read(root) if wrong else manifest
        if manifest == before:
            break
    _not_gone_back(root, manifest)
    return manifest, wrong


def _not_gone_back(root: Path, manifest: Manifest) -> None:
    """status.json is written after the commit that it tells of, and a part after the manifest of the commit before: one behind either has lost rows."""
    facts = status(root, manifest.identity)
    told = facts.get("published") if facts else None
    newest = {f"{STATUS} says": told if isinstance(told, int) else 0, "parts are": _newest(root) - 1}
    for what, least in newest.items():
        if least > manifest.generation and least > read(root).generation:
            raise Damaged(f"{root / MANIFEST}: its generation {manifest.generation} is older than {what} ({least}), rows are lost; {way_on(root)}")


def _newest(root: Path) -> int:
    """Generation that the newest part was written for, 0 without one."""
    return max((int(path.stem.partition("-")[0]) for path in (root / "parts").glob("*/*.parquet") if NAME.fullmatch(path.stem)), default=0)


def heads(root: Path, manifest: Manifest) -> list[str]:
    """Why study.yaml and its inputs are not what the run wrote, one line each."""
    for _ in range(TRIES):  # env.json is written before them
        if not (wrong := damaged_heads(root, env(root, manifest))):
            return []
        time.sleep(0.02)
    way = way_on(root)
    return [f"{root / name}: {'not what the run wrote' if (root / name).exists() else 'missing'}; {way}" for name in wrong]


def damaged_heads(root: Path, known: Mapping[str, Any] | None) -> list[str]:
    """Files of env.json that differ from what it says of them; without it, nobody knows."""
    return [name for name, (size, value, _) in (known["files"] if known else {}).items() if not _equals(root / name, size, value)]


def _equals(path: Path, size: int, value: int) -> bool:
    return path.is_file() and path.stat().st_size == size and crc(path) == value


def env(root: Path, manifest: Manifest) -> dict[str, Any] | None:
    """env.json, if it is sound and of this run. files: path -> [bytes, CRC-32, text or None]."""
    found = unseal(root / ENV, "env")
    if found is None or not isinstance(found.get("identity"), dict) or not isinstance(files := found.get("files"), dict):
        return None
    if manifest.identity and digest(found["identity"]) != manifest.identity:
        return None
    return found if all(_own_file(name) and _listed(entry) for name, entry in files.items()) else None


def _own_file(name: str) -> bool:
    return name == STUDY or (name.startswith("inputs/") and name.count("/") == 1 and Path(name).name not in ("", "..", "."))


def _listed(entry: object) -> bool:
    match entry:
        case [int(), int(), str() | None]:
            return True
    return False


def status(root: Path, identity: str) -> dict[str, Any] | None:
    """status.json as it was written; None if it is damaged, absent, or of another study. identity: "" before there is one."""
    found = unseal(root / STATUS, "status")
    own = found.pop("identity", None) if found else None
    return found if own == identity or not identity else None


def same_study(root: Path, manifest: Manifest, identity: Mapping[str, str]) -> list[str]:
    """One line if the rows of the folder are of another study."""
    if manifest.identity and digest(identity) != manifest.identity:
        both = f"{MANIFEST} has identity {manifest.identity}, it has {digest(identity)}"
        return [foreign(root) or f"{root / STUDY}: not the study of the rows ({both}); put back the one that was exchanged"]
    return []
