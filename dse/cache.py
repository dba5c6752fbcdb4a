"""What is kept between runs, in $DSE_CACHE (~/.cache/dse): a file per question, written whole, named after all that its answer depends on."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from functools import cache
from pathlib import Path

from dse.record import MODEL_VERSION, SOLVER_VERSION

ROOT = Path(__file__).resolve().parent.parent
ANSWERS = ("dse/record.py", "dse/nest.py", "dse/stack.py", "dse/sim", "dse/dataflow", "hw/arch.py", "hw/tiling.py", "workloads/einsum.py",
           "workloads/graph.py")  # what an answer depends on beside its question: all that dse/dataflow and dse/sim import


@cache
def sources(root: Path = ROOT) -> str:
    """Digest of the code that answers."""
    found = hashlib.sha256()
    for path in sorted(path for name in ANSWERS for path in ([root / name] if name.endswith(".py") else (root / name).rglob("*.py"))):
        found.update(f"{path.relative_to(root).as_posix()}\0".encode() + path.read_bytes())
    return found.hexdigest()


def place(kind: str, question: object, suffix: str) -> Path:
    """File of a question, which its repr tells from all others, as this code answers it."""
    folder = Path(os.environ.get("DSE_CACHE") or Path.home() / ".cache" / "dse")
    return folder / f"{kind}_{hashlib.sha256(repr((MODEL_VERSION, SOLVER_VERSION, sources(), question)).encode()).hexdigest()[:32]}{suffix}"


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
