"""Ten random studies whose machines share mappings, 2,000 machines of each: rows of the array way equal to
those of each machine alone; and 20 of each solved alone, to the end: no gap is too small (tests/turned.py).
Then as many of fronts, a twentieth of the machines of each.

    python -m tests.prove share [--studies 10] [--first 0] [--machines 2000] [--searched 20]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path
from random import Random

from cluster.worker import job_of
from tests.turned import GOALS, drawn, too_near, unlike


def main() -> int:
    given = argparse.ArgumentParser()
    given.add_argument("--studies", type=int, default=10)
    given.add_argument("--first", type=int, default=0)
    given.add_argument("--machines", type=int, default=2000)
    given.add_argument("--searched", type=int, default=20)
    chosen = given.parse_args(sys.argv[2:])
    wrong, status, searched, n = list[str](), Counter[str](), 0, 0
    with tempfile.TemporaryDirectory() as folder:
        for goals, share in ((GOALS, 1), (("front",), 20)):
            for seed in range(chosen.first, chosen.first + chosen.studies):
                job = job_of(drawn(Path(folder), seed, 2000 // share, goals))
                asked = Random(seed).sample(
                    range(job.study.space.size), min(chosen.machines // share, job.study.space.size)
                )
                lines, found = unlike(job, asked)
                gaps, some = too_near(job, asked[: chosen.searched])
                wrong, status, searched, n = (
                    wrong + lines + gaps,
                    status + found,
                    searched + some,
                    n + len(asked),
                )
    for line in wrong[:20]:
        print(f"  {line}")
    kinds = ", ".join(f"{kind} {many}" for kind, many in sorted(status.items()))
    print(
        f"  {2 * chosen.studies} studies, {n} machines ({kinds}): {len(wrong)} rows unlike those of each "
        f"alone, or gaps too small ({searched} searched alone)"
    )
    return int(bool(wrong))
