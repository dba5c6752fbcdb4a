"""Units of random statements (which column of a view a result's column is); then the front tests again on
DuckDB 2.x, in an environment of their own: 2.0 answers some anti-joins wrongly, our queries must not.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests import test_origin

ROOT = Path(__file__).parents[2]
STATEMENTS = 5000


def main() -> int:
    found = test_origin.traced(test_origin.views(), seed=2, count=STATEMENTS, depth=3)
    print(f"  {STATEMENTS} random statements, {found} columns that are one of a view")
    with tempfile.TemporaryDirectory() as folder:
        python = Path(folder) / "bin" / "python"
        subprocess.run([sys.executable, "-m", "venv", "--system-site-packages", folder], check=True)
        own = subprocess.run(
            [
                sys.executable,
                "-c",
                "import duckdb, os; print(os.path.dirname(os.path.dirname(duckdb.__file__)))",
            ],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        subprocess.run(
            [
                python,
                "-m",
                "pip",
                "install",
                "-q",
                "--disable-pip-version-check",
                "--no-deps",
                "duckdb>=2,<3",
            ],
            check=True,
        )
        site = next((Path(folder) / "lib").glob("python*/site-packages"))
        (site / "project.pth").write_text(f"{own}\n{ROOT}\n")
        seen = subprocess.run(
            [python, "-c", "import duckdb; print(duckdb.__version__)"],
            capture_output=True,
            text=True,
            check=True,
            cwd=folder,
        )
        print(f"  DuckDB {seen.stdout.strip()}")
        return subprocess.run(
            [python, "-m", "pytest", "-q", "tests/test_db.py", "-k", "not anti_joins_are_right"],
            cwd=ROOT,
            check=False,
        ).returncode
