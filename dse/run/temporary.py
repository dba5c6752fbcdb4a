"""Folders that go with their process: what a killed one leaves, the next one removes."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LOCK = ".dse"  # file in such a folder, locked while its process lives


@contextmanager
def private_folder(prefix: str, top: str | None = None) -> Iterator[Path]:
    """Yields a folder that no other user can enter, and removes it at the end.

    prefix: of its name, begins with "dse-"; top: folder that it lies in; None: that of temporary files

    Folders of killed processes are removed: those of this user that have a file `LOCK` which no process
    locks. A process number in the folder's name would not tell, as numbers are reused.
    """
    top = top or tempfile.gettempdir()
    for old in Path(top).glob("dse-*"):
        if (lock := _locked(old, os.O_RDWR)) is not None:
            shutil.rmtree(old, ignore_errors=True)
            os.close(lock)
    # under a name that no other process looks at until the folder is locked
    made = Path(tempfile.mkdtemp(prefix=f".{prefix}", dir=top))
    lock = _locked(made, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    path = made.rename(made.with_name(made.name.removeprefix(".")))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _locked(folder: Path, flags: int) -> int | None:
    """Locks the file `LOCK` in a folder. Returns its descriptor; None if the folder is not a private one of
    this user, or if another process has the lock.
    """
    with suppress(OSError):
        status = folder.lstat()
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077:
            lock = os.open(folder / LOCK, flags | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return lock
            except OSError:
                os.close(lock)
    return None
