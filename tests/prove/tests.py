"""The default tests with all their seeds and examples, drawn anew, four times what `make test` takes."""

from __future__ import annotations

import os
import subprocess
import sys


def main() -> int:
    command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadfile", "--max-worker-restart", "0"]
    return subprocess.run(command, env={**os.environ, "DSE_TESTS": "full"}, check=False).returncode
