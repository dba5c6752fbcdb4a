"""Fronts of small joint spaces, machines and mappings, against every choice of mappings (tests/joint.py):
exact, then within gaps. Units of random statements (which column of a view a result's column is). Then the
front tests again on DuckDB 2.x, in an environment of their own: 2.0 answers some anti-joins wrongly, our
queries must not.

    python -m tests.prove fronts [--exact 100] [--covers 200] [--first 1000] [--joint-only]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from tests import test_origin
from tests.joint import faults

ROOT = Path(__file__).parents[2]
STATEMENTS = 5000


def main() -> int:
    given = argparse.ArgumentParser()
    given.add_argument("--exact", type=int, default=100)
    given.add_argument("--covers", type=int, default=200)
    given.add_argument("--first", type=int, default=1000)
    given.add_argument("--joint-only", action="store_true")
    chosen = given.parse_args(sys.argv[2:])
    lines = [
        line
        for seed in range(chosen.first, chosen.first + chosen.exact)
        for line in faults(seed, machines=20, most=300, gap=0.0, overlap="free")
    ]
    print(f"  {chosen.exact} fronts of 20 machines and all mappings of two einsums: {len(lines)} wrong")
    for number in range(chosen.covers):
        gap, overlap = (0.01, 0.03, 0.1)[number % 3], ("free", "buffered")[number % 2]
        lines += faults(chosen.first + chosen.exact + number, 6, 600, gap, overlap)
    print(f"  with {chosen.covers} covers within 1, 3 or 10 %: {len(lines)} wrong")
    for line in lines[:20]:
        print(f"  {line}")
    return int(bool(lines)) or (0 if chosen.joint_only else _statements())


def _statements() -> int:
    """Random statements, and the front tests on DuckDB 2.x. Returns the exit code."""
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
