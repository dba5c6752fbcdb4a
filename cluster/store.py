"""The run folder: write-once Parquet parts in groups. Replacing the manifest publishes a group.

A group is the result of one commit: one part per table, all with the same name. Each part contains this name
and the study's identity. Order of a commit: every part is written under a temporary name, fsync, rename,
fsync of its folder; then the manifest in the same way. Files that the manifest does not list do not count: a
crash leaves orphans, which the next `open_run` moves to quarantine/.

The manifest has the length and CRC-32 of every part (readers do not notice a flipped byte in a Parquet file),
a CRC-32 of itself, and the study's identity. The previous manifest is stored beside it. Compaction replaces
many groups by one; the old parts stay until the next compaction or `open_run`, for readers. No function here
reads the clock.

The file is longer than the usual 400 lines because the order of writes can only be checked when all of it is
seen together.
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

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dse.run import folder as folders
from dse.run.folder import (
    ENV,
    MANIFEST,
    PREVIOUS_MANIFEST,
    STUDY,
    Damaged,
    Group,
    Manifest,
    Part,
    create,
    make_folder,
    part_path,
    seal,
    sync,
    unseal,
    write_bytes,
)
from dse.run.record import KEYS, NONDOMINATED
from workloads.arrays import Ints

UNIQUE_TABLES = ("machines", "points", "chosen")  # tables in which no two rows of a run have the same key
# table -> its key column; rows with equal keys are equal, so a group stores them once
SHARED_KEYS = {"mappings": "mapping_key", "counts": "mapping_key"}
FAN_IN = 64  # groups of a level that are merged into one of the next: a table has fewer than 200 parts
TOP_LEVEL = 2  # groups of this level are not merged further (level 0: one commit)
ROW_GROUP = 122_880  # rows in a row group of most tables
# rows in a row group of mappings and counts: readers take only the row groups with their keys
LOOKUP_ROW_GROUP = 8192
CHOSEN_ROW_GROUP = 16_384  # rows in a row group of chosen, whose lists may take 2 kB per row in memory
MAX_LISTED = 3  # files of another study that a message names
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # of a disk, a quota or a file
Tables = Mapping[str, pa.Table]


class RunFault(ValueError):
    """A run that cannot start or continue although its study is valid. Its text has one line per fault."""

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
    generation: int = 0  # how often the manifest was published; no generation of the search
    identity: str = ""  # digest of the study
    groups: tuple[Group, ...] = ()
    # parts that a merge replaced, still on disk for readers of the previous manifest
    retired: tuple[str, ...] = ()
    study_crc: int = 0  # CRC-32 of study.yaml


@contextmanager
def as_store_fault(path: Path, is_open: bool = False) -> Iterator[None]:
    """Turns an OSError in the body into a StoreFault of one line. is_open: the folder was there before."""
    try:
        yield
    except OSError as fault:
        if fault.errno in FULL:
            raise StoreFault(f"{path}: disk full; free space, then {_resume_advice(path)}") from fault
        if is_open and fault.errno == errno.ENOENT and not path.is_dir():
            raise StoreFault(_moved_text(path)) from fault
        if fault.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise StoreFault(
                f"{path}: read-only ({fault.strerror}); make it writable, or choose another folder with --out"
            ) from fault
        raise StoreFault(f"{path}: {fault.strerror or fault}; {_resume_advice(path)}") from fault


def _moved_text(path: Path) -> str:
    return (
        f"{path}: the folder was renamed or removed during the run; `dse resume` it under its new name: all "
        "that was committed is safe"
    )


def _resume_advice(path: Path) -> str:
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
        make_folder(path)
        refuse_links(path)
        for folder in ("asks", "parts", "log"):
            make_folder(path / folder)
        lock = _lock(path)
        try:
            asks = folders.asks_of(path)
            if identity:
                _refuse_others(path, identity, asks)
            store, lines = _load(path, lock)
            store, damaged = _verify(store)
            lines += damaged + _quarantine_unlisted(store, asks)
            return _publish(replace(store, retired=())) if lines or store.retired else store, lines
        except BaseException:
            os.close(lock)
            raise


def refuse_links(path: Path) -> None:
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
    folders.raise_if_no_run(path)
    refuse_links(path)
    _check_one_run(path)
    lines = []
    with as_store_fault(path), lock_folder(path):
        manifests = _manifests(path)
        newest_manifest = manifests.get(_newest(manifests), Manifest())
        env = folders.env(path, newest_manifest)
        damaged = folders.damaged_inputs(path, env)
        if folders.is_older_env(path, newest_manifest, damaged):
            damaged.remove(STUDY)
            lines.append(f"{path / ENV}: older than {MANIFEST}; written anew by the run that follows")
        for name in damaged:
            text = env["files"][name][2] if env else None
            if text is None:
                raise StoreFault(
                    f"{path / name}: lost or not what the run wrote, and {ENV} has no copy; put it "
                    "back, or give another folder"
                )
            if (path / name).exists():
                _quarantine(path, name)
            make_folder((path / name).parent)
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


def _check_one_run(path: Path) -> None:
    """Raises OtherStudy if manifests, env.json and status.json name different studies."""
    identities = folders.identities_of_heads(path)
    if len(set(identities.values())) > 1:
        listed = ", ".join(f"{file} of study {identity}" for file, identity in identities.items())
        raise OtherStudy(f"{listed}: not of one run; {_restore_advice(path)}")


def _restore_advice(path: Path) -> str:
    return (
        "nothing was changed: restore this run's file, or remove those of the other run, "
        f"then `dse resume {path}`"
    )


@contextmanager
def lock_folder(path: Path) -> Iterator[None]:
    """Holds the lock of the run folder. Raises StoreFault if another process has it."""
    lock = _lock(path)
    try:
        yield
    finally:
        os.close(lock)


def manifest(store: Store) -> Manifest:
    """Returns the manifest that describes the store as it is."""
    return Manifest(store.generation, store.identity, store.groups, store.retired, store.study_crc)


def _refuse_others(path: Path, identity: str, asks: folders.Asks) -> None:
    """Raises OtherStudy for a folder of another study, or for files of another study in this study's
    folder.
    """
    identities = folders.identities(path, asks)
    others = {file: other for file, other in identities.items() if other != identity}
    if not others:
        return
    file, other = next(iter(others.items()))
    if len(others) == len(identities):
        whose = f"{file.name}: identity {other}, this study: {identity}"
        raise OtherStudy(f"{path}: its rows are of another study ({whose}); give another --out")
    listed = ", ".join(map(str, list(others)[:MAX_LISTED]))
    listed += f", ... ({len(others)} files)" * (len(others) > MAX_LISTED)
    raise OtherStudy(
        f"{listed}: of another run (study {other}, this one is {identity}); {_restore_advice(path)}"
    )


def with_study(store: Store, identity: str) -> Store:
    """Returns the store with this identity and the checksum of the folder's study.yaml, both published in the
    manifest before any rows of the study.
    """
    with as_store_fault(store.path, is_open=True):
        own = replace(store, identity=identity, study_crc=folders.crc(store.path / STUDY))
        return store if own == store else _publish(own)


def close(store: Store) -> None:
    """Releases the lock of the run folder, so that another process may open it."""
    os.close(store.lock)


def _lock(path: Path) -> int:
    """Locks the folder. Returns the file descriptor; the lock ends with the process, however that ends."""
    handle = os.open(path / folders.LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            raise StoreFault(
                f"{path / '.lock'}: is no regular file, or a hard link to another one; remove it"
            )
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except StoreFault:
        os.close(handle)
        raise
    except OSError as fault:
        owner = re.fullmatch(rb"process \d+ on [\w.-]+", os.read(handle, 200))
        holder = owner[0].decode() if owner else f"{path / '.lock'} does not say which"
        os.close(handle)
        if fault.errno in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
            raise StoreFault(
                f"{path}: its file system has no flock ({fault.strerror}); give --out "
                f"file://{path.absolute()}, which needs none, or another folder"
            ) from None
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
    manifests = _manifests(path)
    newest = _newest(manifests)
    newest_manifest = manifests.get(newest, Manifest())
    # the next manifest must have a higher generation than the last one that status.json mentions
    published = (folders.status(path, newest_manifest.identity) or {}).get("published")
    store = Store(
        path,
        lock,
        max(newest_manifest.generation, published if isinstance(published, int) else 0),
        newest_manifest.identity,
        newest_manifest.groups,
        newest_manifest.retired,
        newest_manifest.study_crc,
    )
    is_there = (path / MANIFEST).exists()
    if newest == MANIFEST or not (newest or is_there):
        return store, []
    if is_there:
        _quarantine(path, MANIFEST)
    fault = (
        f"damaged, lost, or older than {PREVIOUS_MANIFEST}, which is used instead; machines without "
        "rows there are "
        "solved again"
        if newest
        else ("damaged, and none before it; moved to quarantine/, all machines are solved again")
    )
    return store, [f"{path / MANIFEST}: {fault}"]


def _newest(manifests: dict[str, Manifest]) -> str:
    """Returns the name of the newest manifest, "" if there is none; of equal ones the current one."""
    return max(manifests, key=lambda name: (manifests[name].generation, name == MANIFEST), default="")


def _manifests(path: Path) -> dict[str, Manifest]:
    """Returns the sound ones of the current and the previous manifest. Raises StoreFault for a manifest of
    another version, or one that dse did not write.
    """
    try:
        if line := folders.other_version(path / MANIFEST):
            raise StoreFault(line)
        return {
            name: folders.parse(path / name, value)
            for name in (MANIFEST, PREVIOUS_MANIFEST)
            if (value := unseal(path / name, "manifest")) is not None
        }
    except Damaged as fault:
        raise StoreFault(str(fault)) from None


def _verify(store: Store) -> tuple[Store, list[str]]:
    """Drops every group that has a part whose bytes differ from what was committed. Of lists of nondominated
    points only the part goes: the points have them.
    """
    store = replace(store, groups=folders.without_lost_lists(store.path, manifest(store)).groups)
    damaged = folders.faults(store.path, manifest(store))
    for group in store.groups:
        if group.name in damaged:
            for path in group.paths():
                _quarantine(store.path, path)
    lines = [
        f"{line}; put into quarantine/, its machines are solved again"
        for lines in damaged.values()
        for line in lines
    ]
    return replace(store, groups=tuple(group for group in store.groups if group.name not in damaged)), lines


def _quarantine_unlisted(store: Store, asks: folders.Asks) -> list[str]:
    """Removes unfinished temporary files and retired parts; moves other files that the manifest does not list
    to quarantine/.
    """
    listed = {path for group in store.groups for path in group.paths()}
    lines, by_workers = list[str](), 0
    found = sorted(
        os.path.join(top, name)
        for start in ("asks", "parts")
        for top, _, names in os.walk(store.path / start)
        for name in names
    )
    for path in map(Path, found):
        relative = path.relative_to(store.path).as_posix()
        if path.name.endswith(".tmp") or relative in store.retired:
            path.unlink()
        elif relative.startswith("asks/"):
            generation, _ = asks.get(path) or (-1, "")
            if path.name != asks_name(generation):  # files of another study were refused before
                _quarantine(store.path, relative)
                lines.append(f"{path}: damaged or foreign; put into quarantine/, asked anew")
        elif relative not in listed and folders.is_by_worker(path.stem):
            _quarantine(store.path, relative)
            by_workers += 1
        elif relative not in listed:
            _quarantine(store.path, relative)
            lines.append(
                f"{path}: not in the manifest (interrupted commit or foreign file); put into "
                "quarantine/, machines that have no other rows are solved again"
            )
    if by_workers:
        lines.append(
            f"{store.path / 'parts'}: {by_workers} parts of workers are not in the manifest; put into "
            "quarantine/, machines that have no other rows are solved again"
        )
    return lines


def asks_name(generation: int) -> str:
    """Returns the file name for the asks of one generation."""
    return f"generation-{generation:06d}.json"


def _quarantine(run: Path, relative: str) -> None:
    """Moves a file of the run folder to quarantine/, named by its path; a taken name gets a number."""
    target = run / "quarantine" / relative.replace("/", "__")
    make_folder(target.parent)
    number = 0
    while os.path.lexists(target):
        number += 1
        target = target.with_name(f"{relative.replace('/', '__')}.{number}")
    with suppress(FileNotFoundError):
        os.rename(run / relative, target)


def commit(
    store: Store, lease_tables: Sequence[Tables], written: Sequence[tuple[Group, Tables]] = ()
) -> Store:
    """Publishes the tables of some leases as one group. Returns the new store.

    lease_tables: table name -> rows, one mapping per lease; a table without rows writes no part
    written: groups that workers wrote (cluster/sink.py), with those columns of their rows that are at hand

    Raises StoreFault, also for a machine or schedule with two rows. In that case no rows are published and
    the old store remains valid.
    """
    for table in UNIQUE_TABLES:
        if repeated := repeated_machines(
            table,
            [tables[table] for tables in (*lease_tables, *(rows for _, rows in written)) if table in tables],
        ):
            raise StoreFault(
                f"{store.path}: {table} of machine {repeated[0]} stand twice in a commit, which is a "
                "fault of dse; the commit is not published"
            )
    with as_store_fault(store.path, is_open=True):
        names = sorted({name for tables in lease_tables for name in tables})
        sources = {name: [tables[name] for tables in lease_tables if name in tables] for name in names}
        group = write_group(store, _next_name(store, 0), 0, sources)
        new = (*(one for one, _ in written), *([group] if group.parts else []))
        return _publish(replace(store, groups=(*store.groups, *new))) if new else store


def repeated_machines(table: str, rows: Sequence[pa.Table]) -> list[int]:
    """Returns the machines that have two rows with the same key."""
    key_columns = [name for name in KEYS[table] if rows and name in rows[0].column_names]
    if not key_columns:
        return []
    counts = (
        pa.concat_tables([one.select(key_columns) for one in rows])
        .group_by(key_columns)
        .aggregate([([], "count_all")])
    )
    found: list[int] = (
        counts.filter(pc.greater(counts["count_all"], 1))["machine"].unique().sort().to_pylist()
    )
    return found


def _next_name(store: Store, level: int) -> str:
    return f"{store.generation + 1:06d}-{level}"


def name_for_worker(store: Store, level: int, lease: int) -> str:
    """Returns the beginning of the name of the group that a worker writes for a lease."""
    return f"{_next_name(store, level)}-{lease}"


def write_group(store: Store, name: str, level: int, sources: Mapping[str, Iterable[pa.Table]]) -> Group:
    """Writes the parts of a new group, one per table that has rows. If one fails, removes them all."""
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
    """Writes one part durably. Returns None, and leaves no file, if there are no rows; but a group without
    feasible points says so.
    """
    path = store.path / part_path(table, name)
    make_folder(path.parent, parents=False)  # a run folder that was renamed is not made again
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with create(temporary) as out:
            rows = _write_rows(out, table, tables, folders.part_metadata(store.identity, table, name))
            out.flush()
            os.fsync(out.fileno())
        part = Part(table, temporary.stat().st_size, folders.crc(temporary), rows)
        if not rows and table != NONDOMINATED:
            temporary.unlink()
            return None
        os.replace(temporary, path)
        sync(path.parent)
        return part
    except BaseException:  # also on Ctrl-C
        temporary.unlink(missing_ok=True)
        raise


def _write_rows(
    out: Any, table: str, tables: Iterable[pa.Table], file_metadata: Mapping[bytes, bytes]
) -> int:
    """Writes the rows of several tables as one Parquet file with full row groups. Returns how many rows. Of
    rows with the same key in `SHARED_KEYS` one is written. file_metadata: metadata that identifies the file.
    """
    writer: pq.ParquetWriter | None = None
    rows = 0
    try:
        for gathered in _gather(table, tables):
            if writer is None:
                writer = _writer(out, gathered.schema.with_metadata(file_metadata))
            writer.write_table(
                _sort(table, _fit(gathered, writer.schema)),
                row_group_size=LOOKUP_ROW_GROUP if table in SHARED_KEYS else _max_gathered_rows(table),
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
    written_keys: set[str] = set()
    pending: list[pa.Table] = []
    for source in tables:
        new = _new_rows(source, SHARED_KEYS[table], written_keys) if table in SHARED_KEYS else source
        for at in range(0, max(1, new.num_rows), _max_gathered_rows(table)):
            pending.append(new.slice(at, _max_gathered_rows(table)))
            if sum(part.num_rows for part in pending) >= _max_gathered_rows(table):
                yield pa.concat_tables(pending, promote_options="default")
                pending = []
    if pending:
        yield pa.concat_tables(pending, promote_options="default")


def _max_gathered_rows(table: str) -> int:
    """Returns how many rows of a table are joined in memory before they are written."""
    return CHOSEN_ROW_GROUP if table == "chosen" else ROW_GROUP


def _sort(table: str, rows: pa.Table) -> pa.Table:
    """Sorts rows by their keys: machine numbers then differ by small steps, and readers find mappings by the
    range of keys.
    """
    sort_keys = [(name, "ascending") for name in KEYS.get(table, ()) if name in rows.column_names]
    return rows.take(pc.sort_indices(rows, sort_keys)) if sort_keys and table != "events" else rows


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
    delta_encoded = {"machine": "DELTA_BINARY_PACKED"} if "machine" in schema.names else {}
    dictionary_encoded = [name for name in leaves if name not in (*floats, *delta_encoded, "key")]
    return pq.ParquetWriter(
        out,
        schema,
        compression="zstd",
        compression_level=3,
        use_dictionary=dictionary_encoded,
        use_byte_stream_split=floats,
        column_encoding=delta_encoded,
        write_page_checksum=True,
    )


def _fit(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Returns the table in this schema. Columns that it lacks (a part of an older dse) become NULL."""
    if table.schema.equals(schema):
        return table
    return (
        pa.concat_tables([schema.empty_table(), table], promote_options="default")
        .select(schema.names)
        .cast(schema)
    )


def _new_rows(table: pa.Table, key: str, written_keys: set[str]) -> pa.Table:
    """Returns the rows whose key is not among `written_keys`, and adds their keys to it."""
    keys = set(table[key].unique().to_pylist())
    new = keys - written_keys
    written_keys |= new
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
    part_paths: dict[str, list[str]] = {}
    for group in store.groups:
        for part in group.parts:
            part_paths.setdefault(part.table, []).append(part_path(part.table, group.name))
    groups = [
        {"name": g.name, "level": g.level, "parts": [[p.table, p.size_bytes, p.crc, p.rows] for p in g.parts]}
        for g in store.groups
    ]
    value = {
        "version": folders.MANIFEST_VERSION,
        "generation": store.generation,
        "identity": store.identity,
        "parts": part_paths,
        "groups": groups,
        "retired": list(store.retired),
        "study_crc": store.study_crc,
    }
    if (store.path / MANIFEST).exists():
        write_bytes(store.path / PREVIOUS_MANIFEST, (store.path / MANIFEST).read_bytes(), durable=False)
    write_bytes(store.path / MANIFEST, seal("manifest", value))
    return store


def _still_locked(store: Store) -> bool:
    """True if the locked file is still the folder's .lock."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(store.lock), os.lstat(store.path / folders.LOCK))
    return False


def rows_by_part(store: Store, table: str, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Yields the committed rows of a table, one part at a time."""
    for group in store.groups:
        if any(part.table == table for part in group.parts):
            yield _read_part(store.path / part_path(table, group.name), columns)


def row_groups(store: Store, tables: Mapping[str, Sequence[str]]) -> Iterator[Tables]:
    """Yields all committed rows of the first table, one row group at a time, with the rows of the other
    tables for the same machines. tables: name -> columns to read.
    """
    first_table, *other_names = tables
    for group in store.groups:
        part_paths = {
            part.table: store.path / part_path(part.table, group.name)
            for part in group.parts
            if part.table in tables
        }
        if first_table in part_paths:
            other_tables = {
                table: _read_part(part_paths[table], tables[table])
                for table in other_names
                if table in part_paths
            }
            with pq.ParquetFile(part_paths[first_table], page_checksum_verification=True) as part:
                if part.num_row_groups > 1:
                    other_tables = {table: rows.combine_chunks() for table, rows in other_tables.items()}
                orders = {
                    table: np.argsort(found["machine"].to_numpy(), kind="stable")
                    for table, found in other_tables.items()
                    if part.num_row_groups > 1
                }
                sorted_machines = {
                    table: other_tables[table]["machine"].to_numpy()[order] for table, order in orders.items()
                }
                for number in range(part.num_row_groups):
                    # no threads: Arrow's keep the memory that they once allocated
                    rows = part.read_row_group(number, columns=list(tables[first_table]), use_threads=False)
                    same_machines = (
                        other_tables
                        if part.num_row_groups == 1
                        else {
                            table: found.take(
                                _positions(sorted_machines[table], orders[table], rows["machine"].to_numpy())
                            )
                            for table, found in other_tables.items()
                        }
                    )
                    yield {first_table: rows, **same_machines}


def _positions(sorted_machines: Ints, order: Ints, machines: Ints) -> Ints:
    """Returns the positions of the rows of some machines in a table, ascending.

    sorted_machines: the table's machines, ascending; order: their positions in it

    >>> _positions(np.array([3, 5, 5, 8]), np.array([2, 0, 3, 1]), np.array([5, 7, 3])).tolist()
    [0, 2, 3]
    """
    wanted = np.sort(machines)
    wanted = wanted[np.diff(wanted, prepend=wanted[:1] - 1) != 0]
    first, last = (np.searchsorted(sorted_machines, wanted, side) for side in ("left", "right"))
    counts = last - first
    found = np.repeat(first - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
    return np.sort(order[found])


def _read_part(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    with pq.ParquetFile(path, page_checksum_verification=True) as part:
        return part.read(columns=list(columns) if columns else None, use_threads=False)


def compact(store: Store, fan_in: int = FAN_IN, by_worker: bool = True) -> Store:
    """Merges the groups of the lowest level that has at least fan_in of them. Returns the store unchanged if
    there is none. by_worker: also those that workers wrote
    """
    for level in range(TOP_LEVEL):
        old = [g for g in store.groups if g.level == level and (by_worker or not g.is_by_worker())]
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
    """Replaces the groups `old` by one group of this level, without the rows of the machines `drop`."""
    with as_store_fault(store.path, is_open=True):
        merged = write_group(store, _next_name(store, level), level, rows_by_table(store, old, drop))
    return replace_groups(store, old, [merged])


def replace_groups(store: Store, old: Sequence[Group], merged: Sequence[Group]) -> Store:
    """Publishes merged groups in place of `old`. Retires the old parts, and removes the parts that were
    retired before.
    """
    with as_store_fault(store.path, is_open=True):
        old_names, retired_before = {group.name for group in old}, store.retired
        groups = (
            *(group for group in merged if group.parts),
            *(group for group in store.groups if group.name not in old_names),
        )
        paths = tuple(path for group in old for path in group.paths())
        store = _publish(replace(store, groups=groups, retired=paths))
        for path in retired_before:
            (store.path / path).unlink(missing_ok=True)
    return store


def rows_by_table(
    store: Store, groups: Sequence[Group], drop: frozenset[int] = frozenset()
) -> dict[str, Iterator[pa.Table]]:
    """Returns table -> its rows in these groups, without those of the machines `drop`."""
    tables = sorted({part.table for group in groups for part in group.parts})
    return {
        table: _rows_of(store, groups, table, drop)
        for table in tables
        if table != NONDOMINATED or _lists_nondominated(store, groups, drop)
    }


def _lists_nondominated(store: Store, groups: Sequence[Group], drop: frozenset[int]) -> bool:
    """True if the rows of NONDOMINATED in these groups are still all that may be on the front without the
    machines `drop`: what only a dropped point dominates is not among them.
    """
    listed = _rows_of(store, groups, NONDOMINATED, frozenset()) if drop else iter(())
    return all(group.has_nondominated() for group in groups) and all(
        drop.isdisjoint(rows["machine"].to_pylist()) for rows in listed
    )


def _rows_of(store: Store, groups: Sequence[Group], table: str, drop: frozenset[int]) -> Iterator[pa.Table]:
    """Yields the rows of a table in these groups, a row group at a time, without those of the machines
    `drop`.
    """
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
