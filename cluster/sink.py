"""`sink: worker`: workers write the rows of their leases as parts into the run folder, and the driver names
these in the manifest.

A worker sends the driver what a part's entry in the manifest needs (rows, bytes, CRC-32) and the columns that
a run keeps in memory. Its parts have names of their own (lease, random digits): a lease that two actors solve
leaves one group that the manifest names, and one that the next `store.open_run` puts away. Workers merge
groups, too, so that no row passes the driver.

Where the run folder is on a store (cluster/objects.py), a worker writes objects as the driver would upload
them: the driver's copy has no such part, and the head that it writes next lists it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from cluster import store as stores
from cluster.store import Store, StoreFault, Tables
from dse.run import folder
from dse.run.folder import Group, Manifest, part_path
from dse.run.temporary import private_folder
from dse.study import packed_columns

if TYPE_CHECKING:  # pyarrow.fs is loaded where a store is used
    from cluster.objects import Remote

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Sink:
    """Where workers write parts, and what they tell the driver of them."""

    path: Path  # the driver's run folder
    identity: str  # digest of the study
    columns: Mapping[str, Sequence[str]]  # table -> columns that the driver needs of its rows
    lock: bytes  # content of .lock, by which a worker knows the driver's folder
    remote: Remote | None = None  # the run folder on a store
    claim: str = ""  # the driver's claim there


def fault(sink: Sink) -> str:
    """Returns why this process cannot write where the driver reads; "" if it can."""
    name, why = f"parts/.{os.urandom(8).hex()}.tmp", ""
    try:
        if sink.remote is not None:
            if sink.claim not in sink.remote.names("claims"):
                why = "the driver's claim is not there"
            sink.remote.write(name, b"-")
            sink.remote.remove(name)
        else:
            if (sink.path / folder.LOCK).read_bytes() != sink.lock:
                why = "it is not the driver's"
            folder.create(sink.path / name).close()
            (sink.path / name).unlink()
    except (OSError, pa.ArrowException) as refusal:
        why = " ".join(str(refusal).split())[:200]
    shown = sink.remote.shown if sink.remote is not None else sink.path
    return (
        f"{shown}: no run folder to write into from here ({why}); sink: worker needs a folder that all nodes "
        "share or a store that all reach, sink: driver needs neither"
        if why
        else ""
    )


def write(sink: Sink, name: str, tables: Tables) -> tuple[Group, Tables]:
    """Writes the rows of a lease. Returns their group, and of the rows what the driver needs.

    name: beginning of the group's name, as the driver gives it; raises StoreFault
    """
    tables = packed_columns.packed(tables)
    with _folder(sink) as store:
        group = stores.write_group(
            store, _unique(name), 0, {table: [tables[table]] for table in sorted(tables)}
        )
        _upload(sink, store, group)
    return group, {
        table: tables[table].select(columns) for table, columns in sink.columns.items() if table in tables
    }


def merge(sink: Sink, name: str, groups: Sequence[Group]) -> Group:
    """Merges groups into one of the next level, which it returns. Their bytes are compared with their
    checksums. Raises StoreFault.
    """
    with _folder(sink) as store:
        if sink.remote is not None:
            _download(sink.remote, store, groups)
        if wrong := folder.faults(store.path, Manifest(identity=sink.identity, groups=tuple(groups))):
            raise StoreFault("\n".join(line for lines in wrong.values() for line in lines))
        merged = stores.write_group(
            store, _unique(name), groups[0].level + 1, stores.rows_by_table(store, groups)
        )
        _upload(sink, store, merged)
    return merged


def _unique(name: str) -> str:
    """Returns a name that no other group has, also of the same lease."""
    return f"{name}-{os.urandom(4).hex()}"


@contextmanager
def _folder(sink: Sink) -> Iterator[Store]:
    """Yields the run folder to write into; where it is on a store, one of this process's own."""
    if sink.remote is None:
        with stores.as_store_fault(sink.path, is_open=True):
            yield Store(sink.path, -1, identity=sink.identity)
        return
    with private_folder("dse-part-") as temporary:
        (temporary / "parts").mkdir()
        yield Store(temporary, -1, identity=sink.identity)


def _upload(sink: Sink, store: Store, group: Group) -> None:
    if sink.remote is None:
        return
    from cluster import objects

    remote = sink.remote
    data = {
        objects.object_name(path, entry): store.path / path
        for path, entry in objects.entries([group]).items()
    }
    _patiently(remote, lambda: _each(lambda name: remote.write(name, data[name].read_bytes()), data))


def _download(remote: Remote, store: Store, groups: Sequence[Group]) -> None:
    from cluster import objects

    wanted = objects.entries(groups)
    for table in {part.table for group in groups for part in group.parts}:
        folder.make_folder((store.path / part_path(table, "")).parent)
    _patiently(
        remote, lambda: _each(lambda path: objects.download(remote, store.path, path, wanted[path]), wanted)
    )


def _each(call: Callable[[str], object], names: Iterable[str]) -> None:
    from cluster import objects

    with ThreadPoolExecutor(objects.UPLOADS) as threads:
        list(threads.map(call, names))


def _patiently(remote: Remote, call: Callable[[], T]) -> T:
    """Returns what a call of the store returns; one that fails is made again for as long as the driver would.

    Raises StoreFault.
    """
    from cluster import objects

    given_up_at = time.monotonic() + objects.PATIENCE_S
    while True:
        try:
            return call()
        except (OSError, pa.ArrowException) as refusal:
            if time.monotonic() > given_up_at:
                raise StoreFault(
                    f"{remote.shown}: takes nothing for {objects.PATIENCE_S:.0f} s "
                    f"({' '.join(str(refusal).split())[:300]}); resume: all that was committed is safe"
                ) from None
        time.sleep(objects.RETRY_S[-1])
