"""What is kept between runs, in $DSE_CACHE (~/.cache/dse): a file per question, written whole, named after
all that its answer depends on.

A file begins with the SHA-256 of its name and content. One that is torn, changed or another's is removed,
said in one line, and its question answered anew. One that cannot be read (of another user, in a folder of
another user, on a bad disk) is left alone: its question is answered anew and the answer not kept. Files and
folders are made as the umask says, so that a group may share a cache (docs/reliability.md). That is no seal:
who writes the cache may write what they like, so readers of an answer check it too (`solve.kept`).
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TypeVar
from zipfile import BadZipFile

from dse.run.folder import make, write_bytes
from dse.run.record import MODEL_VERSION, SOLVER_VERSION

DIGEST = hashlib.sha256().digest_size
LARGEST = 1 << 30
STALE_S = 600.0  # whoever said so long ago that it answers a question is not believed any more
ROOT = Path(__file__).resolve().parents[2]
ANSWERS = (  # what an answer depends on: the solvers and all that they import
    "dse/run/record.py",
    "dse/run/folder.py",
    "dse/run/compiled.py",
    "dse/run/compiling.py",
    "dse/mapping",
    "dse/layout",
    "dse/sim",
    "dse/mapper",
    "dse/solve",
    "hw/arch.py",
    "hw/tiling.py",
    "workloads/arrays.py",
    "workloads/renamed.py",
    "workloads/document.py",
    "workloads/einsum.py",
    "workloads/operators.py",
    "workloads/graph.py",
)

REFUSALS = (  # of who decodes an answer
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

_unread: set[Path] = set()  # files that this process could not read


@cache
def sources(root: Path = ROOT) -> str:
    """Digest of the code that answers."""
    found = hashlib.sha256()
    for path in sorted(
        path
        for name in ANSWERS
        for path in ([root / name] if name.endswith(".py") else (root / name).rglob("*.py"))
    ):
        found.update(f"{path.relative_to(root).as_posix()}\0".encode() + path.read_bytes())
    return found.hexdigest()


def place(kind: str, question: object, suffix: str) -> Path:
    """File of a question, which its repr tells from all others, as this code answers it."""
    folder = Path(os.environ.get("DSE_CACHE") or Path.home() / ".cache" / "dse")
    key = repr((MODEL_VERSION, SOLVER_VERSION, sources(), question))
    digest = hashlib.sha256(key.encode()).hexdigest()[:32]
    return folder / f"{kind}_{digest}{suffix}"


def write(path: Path, answer: bytes) -> None:
    """Where the folder cannot be written, nothing is kept: the next run asks again. Nor is what could not be
    read replaced.
    """
    if path in _unread:
        return
    with suppress(OSError):
        make(path.parent)
        write_bytes(path, _digest(path, answer) + answer)


def read(path: Path) -> bytes | None:
    """What was kept; None if there is nothing, or nothing sound, or nothing that may be read."""
    try:
        if not stat.S_ISREG(path.stat().st_mode) or path.stat().st_size > LARGEST:
            drop(path, "is no file of the cache")
            return None
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as fault:
        _leave(path, fault.strerror or str(fault))
        return None
    answer = data[DIGEST:]
    if data[:DIGEST] != _digest(path, answer):
        drop(path, "torn, changed, or the answer to another question")
        return None
    return answer


def remembered(path: Path, decode: Callable[[bytes], T]) -> T | None:
    """What was kept, as `decode` makes of it; None if nothing was. What it refuses (with one of REFUSALS) is
    dropped.
    """
    if (answer := read(path)) is None:
        return None
    try:
        return decode(answer)
    except REFUSALS as fault:
        drop(path, " ".join(str(fault).split())[:200])
        return None


def claim(path: Path) -> bool:
    """Whether this process is the first to say that it answers a question. A hint, no lock: others who wait
    for nothing may answer it too.
    """
    said = path.with_name(f"{path.name}.claim")
    try:
        make(path.parent)
        with suppress(OSError):
            if time.time() - said.stat().st_mtime > STALE_S:
                said.unlink()
        os.close(os.open(said, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return False
    except OSError:  # where nothing is kept nobody hears of it
        return True
    return True


def release(path: Path) -> None:
    """Take back what `claim` said."""
    with suppress(OSError):
        path.with_name(f"{path.name}.claim").unlink()


def drop(path: Path, why: str) -> None:
    """Remove a file that cannot be used."""
    with suppress(OSError):
        path.unlink(missing_ok=True)
    logging.getLogger("dse").warning(
        "%s: %s; %s", path, why, "the cache keeps it, remove it" if path.exists() else "removed, built anew"
    )


def _leave(path: Path, why: str) -> None:
    """Say of the first file that cannot be read that such files are left alone."""
    if not _unread:
        said = "%s: cannot be read (%s); it and others like it are left alone, solved anew and not kept"
        logging.getLogger("dse").warning(said, path, why)
    _unread.add(path)


def _digest(path: Path, answer: bytes) -> bytes:
    return hashlib.sha256(path.name.encode() + b"\0" + answer).digest()
