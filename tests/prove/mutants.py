"""Every rule of the searches made slightly wrong: a proof must catch each. Prints a table, fails if a mutant
lives.

    python -m tests.prove mutants [--problems 150] [--only TEXT] [--anchors]

A mutant (mutants.yaml) is one expression or statement changed in a copy of the sources, found by the
definition that it stands in (anchors.py). Its proof runs there in a process of its own, without compiling:
the searches are short, the enumerations were made before, from the sources as they are. The copy without a
change must pass every proof. A mutant that outlives the seeds that a test draws by default is shown all of
them. A mutant whose place or test is gone fails: its rule moved, and the mutant must move along. So does one
that ends its proof with an exception: that shows a broken line, not a wrong answer.
--anchors: only whether each has its place and its test.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from random import Random

import yaml

from tests.prove import anchors
from tests.told_apart import TOLD

ROOT = Path(__file__).parents[2]
COPIED = ("dse", "hw", "workloads", "cluster", "analysis", "bench", "tests", "pyproject.toml")
WALKED = 600  # nests and schedules that are walked element by element
SECONDS = 1500  # for one proof of one mutant
# in the copy
CHECKED = (
    "import sys, pathlib; from tests.prove import mutants; sys.exit(mutants.checked(sys.argv[1], "
    "pathlib.Path(sys.argv[2])))"
)
GROUPS = (
    "array",
    "array",
    "array",
    "one level",
    "two levels",
    "windows",
    "two fan-outs",
    "holds",
    "sparse",
    "symmetric",
)


@dataclass(frozen=True)
class Mutant:
    """One row of mutants.yaml. rule: what is wrong; definition of a file, and old -> new in it
    (`anchors.changed`); proof: what catches it.
    """

    rule: str
    file: str
    definition: str
    old: str
    new: str
    proof: str
    nth: int | None = None

    def changed(self) -> str:
        """The source of its file with the rule made wrong. Raises ValueError where the rule is gone."""
        return anchors.changed((ROOT / self.file).read_text(), self.definition, self.old, self.new, self.nth)


def mutants() -> list[Mutant]:
    """All of them, in the order of mutants.yaml."""
    table = yaml.safe_load((Path(__file__).parent / "mutants.yaml").read_text())
    return [
        Mutant(row["rule"], file, row["in"], row["old"], row["new"], row["proof"], row.get("nth"))
        for file, rows in table.items()
        for row in rows
    ]


Problem_ = tuple[int, str, str]  # seed, group, tiles


def problems(number: int) -> list[Problem_]:
    return [(i, "told", tiles) for i, (tiles, _) in enumerate(TOLD.values())] + [
        (seed, GROUPS[seed % len(GROUPS)], "perfect" if seed // len(GROUPS) % 2 else "imperfect_spatial")
        for seed in range(number)
    ]


def made(seed: int, group: str, tiles: str):  # type: ignore[no-untyped-def]
    """On a machine that the search prices as the evaluator does: every answer is to be proven."""
    from tests.nests import searched
    from tests.problems import random_problem, symmetric

    if group == "told":
        return list(TOLD.values())[seed][1]
    rng = Random(f"mutants/{seed}/{group}/{tiles}")
    problem = symmetric(rng) if group == "symmetric" else random_problem(rng, group, tiles, 40_000)
    return replace(problem, arch=searched(problem.arch, problem.einsum))


def answer(asked: Problem_) -> list[float]:
    from tests.enumeration import enumerated

    return list(enumerated(made(*asked), asked[2], "tensors").cost)


def differences(proof: str, answers: list[tuple[Problem_, list[float]]]) -> Iterator[str]:
    """Run in the copy: what a proof finds wrong there."""
    from dse.mapper.exact import search
    from dse.mapper.exact.optimal import optimal
    from dse.mapping.constraints import minimal_mapping
    from dse.sim.einsum.evaluate import lower_bound
    from tests.enumeration import Best
    from tests.nests import rich_case
    from tests.prove.mappers import compared
    from tests.test_counts import mismatch, unlike
    from tests.test_schedule_walks import differences as walked_otherwise

    if proof == "nests":
        yield from filter(None, (mismatch(seed, KINDS) for seed in range(WALKED)))
        yield from filter(
            None, (unlike(f"rich seed {seed}", *rich_case(Random(seed))) for seed in range(WALKED))
        )
        return
    if proof == "schedules":
        yield from (line for seed in range(WALKED) for line in walked_otherwise(seed))
        return
    # bounds of what stands outside of all lanes, from the first node on
    search.MIN_FOR_OUTER_BOUNDS = 0
    for asked, cost in answers:
        problem = made(*asked)
        if proof == "bounds":
            yield from ["bound above"] if lower_bound(problem) > cost[0] * (1 + 1e-9) else []
            continue
        best = Best(
            (cost[0], cost[1], cost[2]),
            minimal_mapping(problem.einsum, problem.arch) if cost[0] < float("inf") else None,
            0,
        )
        found = optimal(problem, asked[2])
        yield from (f"{asked}: {line}" for line in compared(problem, best, found, proof))
        yield from (
            [f"{asked}: {found[0].certificate}"] if isinstance(found, list) and not found[0].proven else []
        )


KINDS = ("gemm", "bmm", "conv", "conv1d", "depthwise", "pool", "transposed", "spmm", "spmv")


def copied(folder: Path, mutant: Mutant | None) -> Path:
    """The sources in a folder, with a mutant's change."""
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, folder / name)
    if mutant:
        (folder / mutant.file).write_text(mutant.changed())
    return folder


@cache
def parsed(file: str) -> ast.AST:
    return ast.parse((ROOT / file).read_text())


def unanchored(mutant: Mutant) -> Iterator[str]:
    """What a mutant says that is there no more: its place in the sources, or its test."""
    try:
        anchors.check(parsed(mutant.file), mutant.definition, mutant.old, mutant.new, mutant.nth)
    except (ValueError, SyntaxError, OSError) as fault:
        yield f"{mutant.rule}: {mutant.file}: {fault}"
    file, _, test = mutant.proof.partition("[")[0].partition("::")
    if test and f"def {test.rpartition('::')[2]}(" not in (ROOT / file).read_text():
        yield f"{mutant.rule}: no test {mutant.proof}"


def told(proof: str, mutant: Mutant | None, answers: Path, full: bool = False) -> tuple[str, float]:
    """How a proof ends in a copy of the sources: "" if nothing is wrong there, else what it says; seconds.
    full: with all seeds of a test (tests/amount.py).
    """
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="dse-mutant-") as home:
        folder = copied(Path(home), mutant)
        environment = {
            **os.environ,
            "PYTHONPATH": str(folder),
            "NUMBA_DISABLE_JIT": "1",
            "DSE_CACHE": str(folder / "cache"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "COLUMNS": "240",
            **({"DSE_TESTS": "full"} if full else {}),
        }
        command = (
            [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-x",
                "-p",
                "no:xdist",
                "-p",
                "no:cacheprovider",
                "--hypothesis-seed=0",
                proof,
            ]
            if "::" in proof
            else [sys.executable, "-c", CHECKED, proof, str(answers)]
        )
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                timeout=SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"no answer in {SECONDS} s", SECONDS
    return "" if done.returncode == 0 else _ending(
        done.stdout, done.stderr, "::" in proof
    ), time.monotonic() - started


def _ending(out: str, err: str, test: bool) -> str:
    """What a proof that failed found wrong, or the exception that ended it."""
    lines, last = out.strip().splitlines(), (err.strip() or "exit").splitlines()[-1]
    if not test:
        return lines[0] if lines else f"CRASH: {last}"
    why = next((line.partition(" - ")[2] for line in lines if line.startswith("FAILED ")), "") or last
    return "the test fails" if why.startswith(("assert", "AssertionError", "Failed")) else f"CRASH: {why}"


def checked(proof: str, answers: Path) -> int:
    """In the copy: 1 at the first difference."""
    for line in differences(
        proof, [((a[0], a[1], a[2]), cost) for a, cost in json.loads(answers.read_text())]
    ):
        print(line.splitlines()[0])
        return 1
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=int, default=150)
    parser.add_argument("--only", default="")
    parser.add_argument("--anchors", action="store_true")
    given, _ = parser.parse_known_args()
    chosen = [m for m in mutants() if given.only in m.rule]
    if gone := [line for m in chosen for line in unanchored(m)]:
        print("\n".join(f"  NO MUTANT: {line}" for line in gone))
    if gone or given.anchors:
        print(f"  {len(chosen)} mutants, {len(gone)} without their place or test")
        return int(bool(gone))
    proofs = list(dict.fromkeys(m.proof for m in chosen))
    with (
        tempfile.TemporaryDirectory(prefix="dse-answers-") as home,
        ProcessPoolExecutor(2, get_context("spawn")) as pool,
    ):
        path, wanted = (
            Path(home) / "answers.json",
            problems(given.problems) if {"mappers", "bounds"} & set(proofs) else [],
        )
        path.write_text(json.dumps(list(zip(wanted, pool.map(answer, wanted, chunksize=4), strict=True))))
        with ThreadPoolExecutor(2) as threads:

            @cache
            def of_plain(proof: str, full: bool = False) -> str:
                """What a proof says of the sources as they are."""
                return told(proof, None, path, full)[0]

            def of_mutant(m: Mutant) -> tuple[str, float, bool]:
                """What its proof says of a mutant, seconds; whether only all seeds of the test show it."""
                said, seconds = told(m.proof, m, path)
                if said or "::" not in m.proof:
                    return said, seconds, False
                said, more = told(m.proof, m, path, full=True)
                if said and (false := of_plain(m.proof, True)):
                    said = f"CRASH: the sources as they are fail: {false}"
                return said, seconds + more, True

            false = [
                f"  the sources as they are fail {proof}: {said}"
                for proof, said in zip(proofs, threads.map(of_plain, proofs), strict=True)
                if said
            ]
            print(
                "\n".join(false) if false else f"  the sources as they are pass all {len(proofs)} proofs",
                flush=True,
            )
            alive = 0
            for m, (said, seconds, needs_all) in zip(chosen, threads.map(of_mutant, chosen), strict=True):
                lives = not said or said.startswith("CRASH")
                alive += lives
                print(
                    f"  {'LIVES' if lives else 'killed'} {m.rule}: {m.proof}, {seconds:.0f} "
                    f"s{' (all seeds)' if needs_all else ''}{f'; {said[:140]}' if said else ''}",
                    flush=True,
                )
    print(f"  {len(chosen)} mutants, {len(chosen) - alive} killed")
    return int(alive > 0 or bool(false))
