"""The default tests with all their seeds and examples, drawn anew, about five times `make test` takes."""

from __future__ import annotations

import os
import subprocess
import sys


def main() -> int:
    command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadgroup", "--max-worker-restart", "0"]
    return subprocess.run(command, env={**os.environ, "DSE_TESTS": "full"}, check=False).returncode
