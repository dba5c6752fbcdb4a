"""Fifty random studies with `search.prune` and without: no machine is ruled out wrongly, costs and fronts are equal (tests/pruned.py).

    python -m tests.prove prune [--studies 50] [--first 1000]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.pruned import left_out, wrong


def main() -> int:
    given = argparse.ArgumentParser()
    given.add_argument("--studies", type=int, default=50)
    given.add_argument("--first", type=int, default=1000)
    chosen = given.parse_args(sys.argv[2:])
    with tempfile.TemporaryDirectory() as folder:
        found = [line for seed in range(chosen.first, chosen.first + chosen.studies) for line in wrong(Path(folder), seed)]
        for line in found[:20]:
            print(f"  {line}")
        print(f"  {chosen.studies} studies, {left_out(Path(folder))} machines ruled out by bounds: {len(found)} wrong")
    return int(bool(found))
