"""The run folder: write-once Parquet parts in groups. Replacing the manifest publishes a group.

A group is the result of one commit: one part per table, all with the same name. Each part contains this name
and the study's identity. Order of a commit: every part is written under a temporary name, fsync, rename,
fsync of its folder; then the manifest in the same way. Files that the manifest does not list do not count: a
crash leaves orphans, which the next `open_run` moves to quarantine/.

The manifest has the length and CRC-32 of every part (readers do not notice a flipped byte in a Parquet file),
a CRC-32 of itself, and the study's identity. The previous manifest is stored beside it. Compaction replaces
many groups by one; the old parts stay until the next compaction or `open_run`, for readers. No function here
reads the clock.

Longer than 400 lines: the order of writes can only be checked when all of it is seen together.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import socket
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dse.run import folder as folders
from dse.run.folder import (
    BEFORE,
    ENV,
    MANIFEST,
    STUDY,
    Damaged,
    Group,
    Manifest,
    Part,
    create,
    make,
    part_path,
    seal,
    sync,
    unseal,
    write_bytes,
)
from dse.run.record import KEYS

ONCE = ("machines", "points", "chosen")  # tables in which no two rows of a run have the same key
SHARED = {"mappings": "mapping_key", "counts": "mapping_key"}  # equal keys, equal rows: stored once per group
FAN_IN = 64  # groups of a level that are merged into one of the next: a table has fewer than 200 parts
TOP_LEVEL = 2  # groups of this level are not merged further
ROW_GROUP = 122_880  # rows in a row group of most tables
FEW = 8192  # rows in a row group of mappings and counts: readers take only the row groups with their keys
LONG = 16_384  # rows in a row group of chosen, whose lists may take 2 kB per row in memory
LISTED = 3  # files of another study that a message names
Tables = Mapping[str, pa.Table]


class RunFault(ValueError):
    """A run that cannot start or continue although its study is valid: one line."""

    exit_code = 1


class StoreFault(RunFault):
    """A fault of a run folder."""


class OtherStudy(StoreFault):
    """A folder, or files in it, that belong to another study. Nothing was changed."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Store:
    """An opened run folder."""

    path: Path
    lock: int  # file descriptor of the locked file .lock
    generation: int = 0  # how often the manifest was published
    identity: str = ""  # digest of the study
    groups: tuple[Group, ...] = ()
    # parts that a merge replaced, still on disk for readers of the previous manifest
    retired: tuple[str, ...] = ()


@contextmanager
def as_store_fault(path: Path) -> Iterator[None]:
    """Turns an OSError in the body into a StoreFault of one line."""
    try:
        yield
    except OSError as fault:
        if fault.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise StoreFault(f"{path}: disk full; free space, then {_way_on(path)}") from fault
        if fault.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise StoreFault(
                f"{path}: read-only ({fault.strerror}); make it writable, or choose another folder with --out"
            ) from fault
        raise StoreFault(f"{path}: {fault.strerror or fault}; {_way_on(path)}") from fault


def _way_on(path: Path) -> str:
    """Returns the advice for a failed write."""
    return (
        f"`dse resume {path}`: all that was committed is safe"
        if os.path.exists(path / MANIFEST)
        else "start again, or choose another folder with --out"
    )


def open_run(path: Path, identity: str = "") -> tuple[Store, list[str]]:
    """Locks the folder (created if missing), verifies all parts, and moves damaged or orphaned files to
    quarantine/.

    identity: digest of the study to continue; "": any

    Returns the store, and one line per file moved. Raises StoreFault if the folder is in use, read-only or
    the disk is full; OtherStudy, before any file is moved, for files of another study.
    """
    with as_store_fault(path):
        make(path)
        own(path)
        for folder in ("asks", "parts", "log"):
            make(path / folder)
        lock = _lock(path)
        try:
            if identity:
                _refuse_others(path, identity)
            store, lines = _load(path, lock)
            store, damaged = _verify(store)
            lines += damaged + _put_away_strangers(store)
            return _publish(replace(store, retired=())) if lines or store.retired else store, lines
        except BaseException:
            os.close(lock)
            raise


def own(path: Path) -> None:
    """Raises StoreFault if the folder contains links or special files, through which a run would write
    elsewhere.
    """
    if lines := list(folders.irregular_entries(path)):
        raise StoreFault("\n".join(lines))


def mend(path: Path) -> list[str]:
    """Restores study.yaml and its input files where they are lost or damaged and env.json has their text.

    Returns one line per file. Raises StoreFault; OtherStudy where manifests, env.json and status.json belong
    to different studies, so that it is unknown whose folder it is.
    """
    if not ((path / STUDY).exists() or (path / MANIFEST).exists()):
        raise ValueError(folders.absent(path))
    own(path)
    _one_run(path)
    lines = []
    with as_store_fault(path), _lock_folder(path):
        known = folders.env(path, next(iter(_manifests(path).values()), Manifest()))
        for name in folders.damaged_heads(path, known):
            text = known["files"][name][2] if known else None
            if text is None:
                raise StoreFault(
                    f"{path / name}: lost or not what the run wrote, and {ENV} has no copy; put it "
                    "back, or give another folder"
                )
            if (path / name).exists():
                _quarantine(path, name)
            make((path / name).parent)
            write_bytes(path / name, text.encode())
            lines.append(
                f"{path / name}: lost or not what the run wrote; written anew from {ENV}, what was "
                "there is in quarantine/"
            )
    if not (path / STUDY).is_file():
        raise StoreFault(
            f"{path / STUDY}: lost, and {ENV} has no copy; `dse run STUDY.yaml --out {path}` goes on "
            "with the study at hand"
        )
    return lines


def _one_run(path: Path) -> None:
    said = folders.heads_of(path)
    if len(set(said.values())) > 1:
        listed = ", ".join(f"{file} of study {its}" for file, its in said.items())
        raise OtherStudy(f"{listed}: not of one run; {_put_back(path)}")


def _put_back(path: Path) -> str:
    return (
        "nothing was changed: restore this run's file, or remove those of the other run, "
        f"then `dse resume {path}`"
    )


@contextmanager
def _lock_folder(path: Path) -> Iterator[None]:
    lock = _lock(path)
    try:
        yield
    finally:
        os.close(lock)


def manifest(store: Store) -> Manifest:
    """Returns the manifest that describes the store as it is."""
    return Manifest(store.generation, store.identity, store.groups, store.retired)


def _refuse_others(path: Path, identity: str) -> None:
    """Raises OtherStudy for a folder of another study, or for files of another study in this study's
    folder.
    """
    said = folders.identities(path, identity)
    others = {file: its for file, its in said.items() if its != identity}
    if not others:
        return
    file, its = next(iter(others.items()))
    if len(others) == len(said):
        whose = f"{file.name}: identity {its}, this study: {identity}"
        raise OtherStudy(f"{path}: its rows are of another study ({whose}); give another --out")
    listed = ", ".join(map(str, list(others)[:LISTED]))
    listed += f", ... ({len(others)} files)" * (len(others) > LISTED)
    raise OtherStudy(f"{listed}: of another run (study {its}, this one is {identity}); {_put_back(path)}")


def with_identity(store: Store, identity: str) -> Store:
    """Returns the store with this identity, published in the manifest before there are rows."""
    with as_store_fault(store.path):
        return store if store.identity == identity else _publish(replace(store, identity=identity))


def close(store: Store) -> None:
    """Releases the lock of the run folder, so that another process may open it."""
    os.close(store.lock)


def _lock(path: Path) -> int:
    """Locks the folder. Returns the file descriptor; the lock ends with the process, however that ends."""
    handle = os.open(path / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            raise StoreFault(
                f"{path / '.lock'}: is no regular file, or a hard link to another one; remove it"
            )
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except StoreFault:
        os.close(handle)
        raise
    except OSError as fault:
        said = re.fullmatch(rb"process \d+ on [\w.-]+", os.read(handle, 200))
        holder = said[0].decode() if said else f"{path / '.lock'} does not say which"
        os.close(handle)
        if fault.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        raise StoreFault(
            f"{path}: another run writes into this folder ({holder}); wait for it, or choose another "
            "with --out"
        ) from None
    os.ftruncate(handle, 0)
    os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
    return handle


def _load(path: Path, lock: int) -> tuple[Store, list[str]]:
    """Returns the store of the newest sound manifest, and a line to report if that is not the current one."""
    found = _manifests(path)
    newest = max(found, key=lambda name: (found[name].generation, name == MANIFEST), default="")
    m = found[newest] if newest else Manifest()
    # the next manifest must have a higher generation than the last one that status.json mentions
    told = (folders.status(path, m.identity) or {}).get("published")
    store = Store(
        path, lock, max(m.generation, told if isinstance(told, int) else 0), m.identity, m.groups, m.retired
    )
    there = (path / MANIFEST).exists()
    if newest == MANIFEST or not (newest or there):
        return store, []
    if there:
        _quarantine(path, MANIFEST)
    what = (
        f"damaged, lost, or older than {BEFORE}, which is used instead; machines without rows there are "
        "solved again"
        if newest
        else ("damaged, and none before it; moved to quarantine/, all machines are solved again")
    )
    return store, [f"{path / MANIFEST}: {what}"]


def _manifests(path: Path) -> dict[str, Manifest]:
    """Returns the sound ones of the current and the previous manifest. Raises StoreFault for a manifest of
    another version, or one that dse did not write.
    """
    try:
        if line := folders.other_version(path / MANIFEST):
            raise StoreFault(line)
        return {
            name: folders.parse(path / name, value)
            for name in (MANIFEST, BEFORE)
            if (value := unseal(path / name, "manifest")) is not None
        }
    except Damaged as fault:
        raise StoreFault(str(fault)) from None


def _verify(store: Store) -> tuple[Store, list[str]]:
    """Drops every group that has a part whose bytes differ from what was committed."""
    wrong = folders.faults(store.path, manifest(store))
    for group in store.groups:
        if group.name in wrong:
            for path in group.paths():
                _quarantine(store.path, path)
    lines = [
        f"{line}; put into quarantine/, its machines are solved again"
        for lines in wrong.values()
        for line in lines
    ]
    return replace(store, groups=tuple(group for group in store.groups if group.name not in wrong)), lines


def _put_away_strangers(store: Store) -> list[str]:
    """Removes unfinished temporary files and retired parts; moves other files that the manifest does not list
    to quarantine/.
    """
    listed = {path for group in store.groups for path in group.paths()}
    lines = []
    for path in sorted(
        p for top in ("parts", "asks") for p in (store.path / top).rglob("*") if not p.is_dir()
    ):
        relative = path.relative_to(store.path).as_posix()
        if path.name.endswith(".tmp") or relative in store.retired:
            path.unlink()
        elif relative.startswith("asks/"):
            if why := _strange_asks(path):
                _quarantine(store.path, relative)
                lines.append(f"{path}: {why}; put into quarantine/, asked anew")
        elif relative not in listed:
            _quarantine(store.path, relative)
            lines.append(
                f"{path}: not in the manifest (interrupted commit or foreign file); put into "
                "quarantine/, its machines are solved again"
            )
    return lines


def _strange_asks(path: Path) -> str:
    """Returns why a file is not the asks of its generation, or "". Files of another study were refused
    before.
    """
    generation, _ = folders.generation_file(path) or (-1, "")
    return "" if path.name == asks_name(generation) else "damaged or foreign"


def asks_name(generation: int) -> str:
    """Returns the file name for the asks of one generation."""
    return f"generation-{generation:06d}.json"


def _quarantine(run: Path, relative: str) -> None:
    target = run / "quarantine" / relative.replace("/", "__")
    make(target.parent)
    number = 0
    while os.path.lexists(target):
        number += 1
        target = target.with_name(f"{relative.replace('/', '__')}.{number}")
    with suppress(FileNotFoundError):
        os.rename(run / relative, target)


def commit(store: Store, batches: Sequence[Tables]) -> Store:
    """Publishes the tables of some leases as one group. Returns the new store.

    batches: table name -> rows, one mapping per lease; a table without rows writes no part

    Raises StoreFault, also for a machine or schedule with two rows. In that case no rows are published and
    the old store remains valid.
    """
    for table in ONCE:
        if twice := repeated_machines(table, [batch[table] for batch in batches if table in batch]):
            raise StoreFault(
                f"{store.path}: {table} of machine {twice[0]} stand twice in a commit, which is a "
                "fault of dse; the commit is not published"
            )
    with as_store_fault(store.path):
        names = sorted({name for batch in batches for name in batch})
        sources = {name: [batch[name] for batch in batches if name in batch] for name in names}
        group = _write_group(store, 0, sources)
        return _publish(replace(store, groups=(*store.groups, group))) if group.parts else store


def repeated_machines(table: str, rows: Sequence[pa.Table]) -> list[int]:
    """Returns the machines that have two rows with the same key."""
    by = [name for name in KEYS[table] if rows and name in rows[0].column_names]
    if not by:
        return []
    counts = pa.concat_tables([one.select(by) for one in rows]).group_by(by).aggregate([([], "count_all")])
    found: list[int] = (
        counts.filter(pc.greater(counts["count_all"], 1))["machine"].unique().sort().to_pylist()
    )
    return found


def _write_group(store: Store, level: int, sources: Mapping[str, Iterable[pa.Table]]) -> Group:
    name = f"{store.generation + 1:06d}-{level}"
    parts: list[Part] = []
    try:
        for table, rows in sources.items():
            if part := _write_part(store, table, name, rows):
                parts.append(part)
    except BaseException:  # also on Ctrl-C: leave no orphans
        for part in parts:
            (store.path / part_path(part.table, name)).unlink(missing_ok=True)
        raise
    return Group(name, level, tuple(parts))


def _write_part(store: Store, table: str, name: str, tables: Iterable[pa.Table]) -> Part | None:
    path = store.path / part_path(table, name)
    make(path.parent)
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with create(temporary) as out:
            rows = _write_rows(out, table, tables, folders.place(store.identity, table, name))
            out.flush()
            os.fsync(out.fileno())
        part = Part(table, temporary.stat().st_size, folders.crc(temporary), rows)
        if not rows:
            temporary.unlink()
            return None
        os.replace(temporary, path)
        sync(path.parent)
        return part
    except BaseException:  # also on Ctrl-C
        temporary.unlink(missing_ok=True)
        raise


def _write_rows(out: Any, table: str, tables: Iterable[pa.Table], place: Mapping[bytes, bytes]) -> int:
    """Writes the rows of several tables as one Parquet file with full row groups. Returns how many rows. Of
    rows with the same key in `SHARED` one is written. place: metadata that identifies the file.
    """
    writer: pq.ParquetWriter | None = None
    rows = 0
    try:
        for gathered in _gather(table, tables):
            if writer is None:
                writer = _writer(out, gathered.schema.with_metadata(place))
            writer.write_table(
                _sort(table, _fit(gathered, writer.schema)),
                row_group_size=FEW if table in SHARED else _most(table),
            )
            rows += gathered.num_rows
    finally:
        if writer is not None:
            writer.close()
    return rows


def _gather(table: str, tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yields the rows of several tables joined into larger ones. One small write per lease would cost more
    than the rest of a commit.
    """
    seen: set[str] = set()
    held: list[pa.Table] = []
    for source in tables:
        new = _unseen(source, SHARED[table], seen) if table in SHARED else source
        for at in range(0, new.num_rows, _most(table)):
            held.append(new.slice(at, _most(table)))
            if sum(part.num_rows for part in held) >= _most(table):
                yield pa.concat_tables(held, promote_options="default")
                held = []
    if held:
        yield pa.concat_tables(held, promote_options="default")


def _most(table: str) -> int:
    """Returns how many rows of a table are joined in memory before they are written."""
    return LONG if table == "chosen" else ROW_GROUP


def _sort(table: str, rows: pa.Table) -> pa.Table:
    """Sorts rows by their keys: machine numbers then differ by small steps, and readers find mappings by the
    range of keys.
    """
    by = [(name, "ascending") for name in KEYS.get(table, ()) if name in rows.column_names]
    return rows.take(pc.sort_indices(rows, by)) if by and table != "events" else rows


def _writer(out: Any, schema: pa.Schema) -> pq.ParquetWriter:
    """Returns a Parquet writer. Encodings: machine numbers as differences, floats split by byte, keys of
    machines plain (each occurs once), all other columns by dictionary.
    """
    leaves = {
        f"{f.name}.list.element" if pa.types.is_list(f.type) else f.name: f.type.value_type
        if pa.types.is_list(f.type)
        else f.type
        for f in schema
    }
    floats = [name for name, kind in leaves.items() if pa.types.is_floating(kind)]
    steps = {"machine": "DELTA_BINARY_PACKED"} if "machine" in schema.names else {}
    others = [name for name in leaves if name not in (*floats, *steps, "key")]
    return pq.ParquetWriter(
        out,
        schema,
        compression="zstd",
        compression_level=3,
        use_dictionary=others,
        use_byte_stream_split=floats,
        column_encoding=steps,
        write_page_checksum=True,
    )


def _fit(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Returns the table in this schema; columns that an older part lacks are NULL."""
    if table.schema.equals(schema):
        return table
    return (
        pa.concat_tables([schema.empty_table(), table], promote_options="default")
        .select(schema.names)
        .cast(schema)
    )


def _unseen(table: pa.Table, key: str, seen: set[str]) -> pa.Table:
    keys = set(table[key].unique().to_pylist())
    new = keys - seen
    seen |= new
    return (
        table
        if len(new) == len(keys)
        else table.filter(pc.is_in(table[key], pa.array(sorted(new), table[key].type)))
    )


def _publish(store: Store) -> Store:
    """Replaces the manifest. The commit takes effect at this point."""
    if not _still_locked(store):
        raise StoreFault(
            f"{store.path / '.lock'}: removed or replaced, another run may write into this folder; "
            "nothing more is written, resume"
        )
    store = replace(store, generation=store.generation + 1)
    listed: dict[str, list[str]] = {}
    for group in store.groups:
        for part in group.parts:
            listed.setdefault(part.table, []).append(part_path(part.table, group.name))
    groups = [
        {"name": g.name, "level": g.level, "parts": [[p.table, p.size_bytes, p.crc, p.rows] for p in g.parts]}
        for g in store.groups
    ]
    value = {
        "version": folders.VERSION,
        "generation": store.generation,
        "identity": store.identity,
        "parts": listed,
        "groups": groups,
        "retired": list(store.retired),
    }
    if (store.path / MANIFEST).exists():
        write_bytes(store.path / BEFORE, (store.path / MANIFEST).read_bytes(), durable=False)
    write_bytes(store.path / MANIFEST, seal("manifest", value))
    return store


def _still_locked(store: Store) -> bool:
    """True if the locked file is still the folder's .lock."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(store.lock), os.lstat(store.path / ".lock"))
    return False


def batches(store: Store, tables: Mapping[str, Sequence[str]]) -> Iterator[Tables]:
    """Yields all committed rows of the first table, one row group at a time, with the rows of the other
    tables for the same machines. tables: name -> columns to read.
    """
    first, *others = tables
    for group in store.groups:
        there = {
            part.table: store.path / part_path(part.table, group.name)
            for part in group.parts
            if part.table in tables
        }
        if first in there:
            beside = {table: _read_part(there[table], tables[table]) for table in others if table in there}
            with pq.ParquetFile(there[first], page_checksum_verification=True) as part:
                for number in range(part.num_row_groups):
                    # no threads: Arrow's keep the memory that they once allocated
                    rows = part.read_row_group(number, columns=list(tables[first]), use_threads=False)
                    own = (
                        beside
                        if part.num_row_groups == 1
                        else {
                            table: found.filter(pc.is_in(found["machine"], rows["machine"].combine_chunks()))
                            for table, found in beside.items()
                        }
                    )
                    yield {first: rows, **own}


def _read_part(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    with pq.ParquetFile(path, page_checksum_verification=True) as part:
        return part.read(columns=list(columns) if columns else None, use_threads=False)


def compact(store: Store, fan_in: int = FAN_IN) -> Store:
    """Merges the groups of the lowest level that has at least fan_in of them. Returns the store unchanged if
    there is none.
    """
    for level in range(TOP_LEVEL):
        old = [group for group in store.groups if group.level == level]
        if len(old) >= fan_in:
            return _rewrite(store, old, level + 1, frozenset())
    return store


def retract(store: Store, machines: Collection[int]) -> Store:
    """Removes the rows of some machines, which will be solved again. Groups with such rows are rewritten."""
    drop = frozenset(machines)
    for group in store.groups:
        if any(p.table == "machines" for p in group.parts):
            ids = _read_part(store.path / part_path("machines", group.name), ["machine"])["machine"]
            if not drop.isdisjoint(ids.to_pylist()):
                store = _rewrite(store, [group], group.level, drop)
    return store


def _rewrite(store: Store, old: Sequence[Group], level: int, drop: frozenset[int]) -> Store:
    tables = sorted({part.table for group in old for part in group.parts})
    with as_store_fault(store.path):
        merged = _write_group(store, level, {table: _rows_of(store, old, table, drop) for table in tables})
        gone = {group.name for group in old}
        kept = tuple(group for group in store.groups if group.name not in gone)
        paths = tuple(path for group in old for path in group.paths())
        unlisted = store.retired
        groups = (merged, *kept) if merged.parts else kept
        store = _publish(replace(store, groups=groups, retired=paths))
        for path in unlisted:
            (store.path / path).unlink(missing_ok=True)
    return store


def _rows_of(store: Store, groups: Sequence[Group], table: str, drop: frozenset[int]) -> Iterator[pa.Table]:
    for group in groups:
        if any(part.table == table for part in group.parts):
            with pq.ParquetFile(
                store.path / part_path(table, group.name), page_checksum_verification=True
            ) as part:
                for number in range(part.num_row_groups):
                    rows = part.read_row_group(number, use_threads=False)
                    if drop and "machine" in rows.column_names:
                        rows = rows.filter(
                            pc.invert(pc.is_in(rows["machine"], pa.array(sorted(drop), rows["machine"].type)))
                        )
                    yield rows
