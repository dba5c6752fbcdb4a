"""What is kept between runs, in $DSE_CACHE (~/.cache/dse): a file per question, written whole, named after all that its answer depends on."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from dse.record import MODEL_VERSION, SOLVER_VERSION


def place(kind: str, question: object, suffix: str) -> Path:
    """File of a question, which its repr tells from all others."""
    folder = Path(os.environ.get("DSE_CACHE") or Path.home() / ".cache" / "dse")
    return folder / f"{kind}_{hashlib.sha256(repr((MODEL_VERSION, SOLVER_VERSION, question)).encode()).hexdigest()[:32]}{suffix}"


def keep(path: Path, answer: bytes) -> None:
    """Where the folder cannot be written, nothing is kept: the next run asks again."""
    own = path.with_suffix(f".{os.getpid()}.tmp")
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            own.write_bytes(answer)
            os.replace(own, path)
        finally:
            own.unlink(missing_ok=True)
