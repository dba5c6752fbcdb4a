"""Cache of answers between runs, in $DSE_CACHE (default ~/.cache/dse): one file per question (a problem to
solve). The name of a file is a digest of everything that its answer depends on.

A file begins with the SHA-256 of its name and content. A file that is truncated, was changed, or holds the
answer to another question is removed with a one-line warning, and its question is solved again. A file that
cannot be read (it or its folder belongs to another user, or the disk is bad) is left alone: its question is
solved again and the answer is not stored. Files and folders get the permissions of the umask, so that a group
may share a cache (docs/reliability.md). The digest is no protection against somebody who may write to the
cache; so callers check each answer that they read, too.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import stat
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeVar
from zipfile import BadZipFile

from dse.run.folder import make_folder, write_bytes
from dse.run.record import MODEL_VERSION, SOLVER_VERSION
from workloads.plugin import cache_root

DIGEST_BYTES = hashlib.sha256().digest_size
MAX_BYTES = 1 << 30  # bytes of a file that is read, at most
ROOT = Path(__file__).resolve().parents[2]
SOURCE_FILES = (  # source files and folders that an answer depends on: the solvers and all that they import
    "dse/run/record.py",
    "dse/run/folder.py",
    "dse/run/compiled.py",
    "dse/run/compiling.py",
    "dse/run/deadline.py",
    "dse/run/doing.py",
    "dse/mapping",
    "dse/layout",
    "dse/sim",
    "dse/mapper",
    "dse/solve",
    "hw/arch.py",
    "hw/voltage.py",
    "hw/tiling.py",
    "workloads/arrays.py",
    "workloads/renamed.py",
    "workloads/document.py",
    "workloads/einsum.py",
    "workloads/operators.py",
    "workloads/graph.py",
    "workloads/meant.py",
    "workloads/plugin.py",
)

DECODE_ERRORS = (  # what decoding a damaged answer may raise
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    RecursionError,
    OSError,
    EOFError,
    zlib.error,
    BadZipFile,
)
T = TypeVar("T")
# names of files: kind, version (files of earlier versions of dse have none), digest of the question
FILE_NAME = re.compile(r"(?P<kind>[a-z]+)_((?P<version>[0-9]+\.[0-9]+\.[0-9a-f]{8})_)?[0-9a-f]{32}\.[a-z]+")

lookups: Counter[str] = Counter()  # answers of this process: "hits" were found, "misses" solved
_unread: set[Path] = set()  # files that this process could not read


@cache
def sources(root: Path = ROOT) -> str:
    """Digest of the source code that computes answers."""
    found = hashlib.sha256()
    for path in sorted(
        path
        for name in SOURCE_FILES
        for path in ([root / name] if name.endswith(".py") else (root / name).rglob("*.py"))
    ):
        found.update(f"{path.relative_to(root).as_posix()}\0".encode() + path.read_bytes())
    return found.hexdigest()


def answer_path(kind: str, question: object, suffix: str) -> Path:
    """Path of the cache file of a question, for this version of the code. Questions that differ must have
    different reprs.
    """
    key = repr((MODEL_VERSION, SOLVER_VERSION, sources(), question))
    digest = hashlib.sha256(key.encode()).hexdigest()[:32]
    return cache_root() / f"{kind}_{version()}_{digest}{suffix}"


def version() -> str:
    """The version of the code as names of files have it: versions of model and solver, and the beginning of
    `sources`.
    """
    return f"{MODEL_VERSION}.{SOLVER_VERSION}.{sources()[:8]}"


class Entry(NamedTuple):
    """A file of the cache."""

    path: Path
    kind: str  # of its question
    version: str  # of the code that wrote it (`version`); "?": it does not say
    size_bytes: int
    age_s: float  # seconds since it was written


def entries() -> list[Entry]:
    """The files of the cache; other files in its folder are not among them."""
    found, now = [], time.time()
    with suppress(FileNotFoundError), os.scandir(cache_root()) as files:
        for file in files:
            name = FILE_NAME.fullmatch(file.name)
            if name and file.is_file(follow_symlinks=False):
                status = file.stat(follow_symlinks=False)
                age_s = max(0.0, now - status.st_mtime)
                found.append(
                    Entry(Path(file.path), name["kind"], name["version"] or "?", status.st_size, age_s)
                )
    return found


def prune(older_s: float | None = None, of_others: bool = False) -> tuple[int, int]:
    """Remove the files that are older than `older_s` seconds, and with `of_others` those of other versions of
    the code; without either, all files. Returns how many, and their bytes. A file that may not be removed
    stays.
    """
    count = size_bytes = 0
    for entry in entries():
        is_old = older_s is not None and entry.age_s > older_s
        is_other = of_others and entry.version != version()
        if is_old or is_other or (older_s is None and not of_others):
            with suppress(OSError):
                entry.path.unlink()
                count, size_bytes = count + 1, size_bytes + entry.size_bytes
    return count, size_bytes


def write(path: Path, answer: bytes) -> None:
    """Store an answer. Nothing is stored if the folder cannot be written (a warning, once; the next run
    solves again), if this process could not read the file that is there, or after a deadline, since searches
    are then cut short.
    """
    lookups["misses"] += 1
    if path in _unread:
        return
    # where the module is not loaded (it imports NumPy) no deadline is in force
    if (deadline := sys.modules.get("dse.run.deadline")) and deadline.has_passed():
        return
    try:
        make_folder(path.parent)
        write_bytes(path, _digest(path, answer) + answer)
    except OSError as fault:
        _say_unwritten(path.parent, fault.strerror or str(fault))


def read(path: Path) -> bytes | None:
    """The stored answer; None if none is stored, if its file is damaged (and now removed), or if it cannot be
    read.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode) or path.stat().st_size > MAX_BYTES:
            remove_damaged(path, "is not a regular file, or above 1 GiB")
            return None
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as fault:
        _leave(path, fault.strerror or str(fault))
        return None
    answer = data[DIGEST_BYTES:]
    if data[:DIGEST_BYTES] != _digest(path, answer):
        remove_damaged(path, "truncated, changed, or the answer to another question")
        return None
    return answer


def read_decoded(path: Path, decode: Callable[[bytes], T]) -> T | None:
    """The stored answer, decoded; None if `read` finds none. A file whose content `decode` refuses (it raises
    one of DECODE_ERRORS) is removed.
    """
    if (answer := read(path)) is None:
        return None
    try:
        decoded = decode(answer)
        lookups["hits"] += 1
        return decoded
    except DECODE_ERRORS as fault:
        remove_damaged(path, " ".join(str(fault).split())[:200])
        return None


def remove_damaged(path: Path, why: str) -> None:
    """Remove a file that cannot be used, with a warning that says why."""
    with suppress(OSError):
        path.unlink(missing_ok=True)
    logging.getLogger("dse").warning(
        "%s: %s; %s",
        path,
        why,
        "could not be removed; remove it by hand" if path.exists() else "removed, built anew",
    )


@cache
def _say_unwritten(folder: Path, why: str) -> None:
    """Warn, once for a folder, that answers are not kept."""
    logging.getLogger("dse").warning("%s: cannot be written (%s); answers are not kept", folder, why)


def _leave(path: Path, why: str) -> None:
    """Leave a file that cannot be read alone from now on; warn about the first such file only."""
    if not _unread:
        message = "%s: cannot be read (%s); it and others like it are left alone, solved anew and not kept"
        logging.getLogger("dse").warning(message, path, why)
    _unread.add(path)


def _digest(path: Path, answer: bytes) -> bytes:
    return hashlib.sha256(path.name.encode() + b"\0" + answer).digest()
