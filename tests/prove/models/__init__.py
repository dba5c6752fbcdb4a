"""Models that people bring, by real exporters: their MACs against a counter on the torch modules, small
graphs against torch's numbers.

Needs torch, torchvision, transformers, onnxruntime and onnxscript, in an environment of their own:
build/models (make build/models/ready) or the folder $DSE_MODELS_ENV. Without it the part says so in one line
and proves nothing. Mutants that it kills: shapes of the file believed at another batch, a Reshape that keeps
its constants, LSTM as movement, constant queries of one sample (networks); slices that ignore their step,
copy_ that reads what it overwrites (graphs).
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[3]


def main() -> int:
    folder = Path(os.environ.get("DSE_MODELS_ENV", ROOT / "build" / "models"))
    python = folder / "bin" / "python"
    if not python.exists():
        print(
            f"models: not run: {folder} is no environment with torch, torchvision and transformers; "
            "make build/models/ready, or set DSE_MODELS_ENV to one"
        )
        return 0
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    parts = (["tests.prove.models.small"], ["tests.prove.models.run", str(ROOT / "build" / "exported")])
    return max(
        [
            subprocess.run([str(python), "-m", *part], cwd=ROOT, env=env, check=False).returncode
            for part in parts
        ]
    )
