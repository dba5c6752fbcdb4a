"""Environments of their own for the peers: never a dependency of ours."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

# six, the old sympy and the old numpy: undeclared needs
PACKAGES = {
    "zigzag": ["zigzag-dse>=3.9,<4", "six"],
    "scalesim": ["scalesim==3.0.0", "numpy<2"],
    "nn_dataflow": ["nn-dataflow==2.1", "sympy<1.6"],
    "accelforge": ["accelforge==1.0.467"],
    "onnxruntime": ["onnxruntime==1.32.0", "onnx==1.23.2"],
}
INTERPRETERS = {"accelforge": "python3.12"}  # of peers that ours is too old for


def python_of(peer: str, folder: Path) -> Path:
    """The interpreter of a peer's environment below the folder, made if it is not there. Raises
    FileNotFoundError without an interpreter that the peer runs on, CalledProcessError if it cannot be
    installed.
    """
    python = folder / peer / "bin" / "python"
    if not python.exists():
        subprocess.run([INTERPRETERS.get(peer, sys.executable), "-m", "venv", folder / peer], check=True)
        subprocess.run(
            [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *PACKAGES[peer]], check=True
        )
    return python


def in_folder(main: Callable[[Path], None]) -> None:
    """Calls `main` with the folder that the command line names; by default a temporary one."""
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(sys.argv[1] if len(sys.argv) > 1 else temporary))
