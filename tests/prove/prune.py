"""Fifty random studies with `search.prune` and without: no machine is ruled out wrongly, costs and fronts are
equal; machines of random spaces that bounds rule out, many at once and one by one: equal rows
(tests/pruned.py).

    python -m tests.prove prune [--studies 50] [--first 1000] [--spaces 40] [--machines 500]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.pruned import left_out, unlike, wrong


def main() -> int:
    given = argparse.ArgumentParser()
    given.add_argument("--studies", type=int, default=50)
    given.add_argument("--first", type=int, default=1000)
    given.add_argument("--spaces", type=int, default=40)
    given.add_argument("--machines", type=int, default=500)
    chosen = given.parse_args(sys.argv[2:])
    with tempfile.TemporaryDirectory() as folder:
        found = [
            line
            for seed in range(chosen.first, chosen.first + chosen.studies)
            for line in wrong(Path(folder), seed)
        ]
        for line in found[:20]:
            print(f"  {line}")
        print(
            f"  {chosen.studies} studies, {left_out(Path(folder))} machines ruled out by bounds: "
            f"{len(found)} wrong"
        )
        both = [
            unlike(Path(folder), seed, chosen.machines)
            for seed in range(chosen.first, chosen.first + chosen.spaces)
        ]
        wrong_rows = [line for lines, _ in both for line in lines]
        for line in wrong_rows[:20]:
            print(f"  {line}")
        n = sum(n for _, n in both)
        print(
            f"  {chosen.spaces} spaces, {chosen.spaces * chosen.machines} machines, {n} ruled out: "
            f"{len(wrong_rows)} unlike those one by one"
        )
    return int(bool(found or wrong_rows))
