"""Every rule of the searches made slightly wrong: a proof must catch each. Prints a table, fails if a mutant lives.

    python -m tests.prove mutants [--problems 400] [--only TEXT]

A mutant is one line of the sources changed in a copy of them. Its proof runs there in a process of its own, without compiling (the searches are short, the
enumerations were made before, from the sources as they are); the copy without a change must pass every proof. A mutant whose line is gone fails: its rule
moved, and the mutant must move along.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from random import Random

ROOT = Path(__file__).parents[2]
COPIED = ("dse", "hw", "workloads", "cluster", "analysis", "tests", "pyproject.toml")
KNOWN = [(43, "known", "perfect"), (20, "known", "divisor"), (176, "known", "divisor")]  # on these a search once was wrong
WALKED = 600  # nests that the oracle walks
SECONDS = 1500  # for one proof of one mutant
GROUPS_OF = {"mappers": ("array", "array", "array", "one level", "two levels", "windows", "two fan-outs", "holds", "sparse", "symmetric"),
             "frontier": ("array", "one level", "two levels", "windows")}


@dataclass(frozen=True)
class Mutant:
    """rule: what is wrong; old -> new in a file, which has it once; proof: what catches it, a check below or a test."""

    rule: str
    file: str
    old: str
    new: str
    proof: str = "mappers"


KERNELS, OPTIMAL, FORMULA, FRONTIER = (f"dse/dataflow/{name}.py" for name in ("optimal_kernels", "optimal", "formula", "frontier_kernels"))
TERMS, TIMES = "dse/sim/terms.py", "tests/test_times.py::test_port_times_are_those_of_the_unrolled_nest"
KEY = "tests/test_frontier.py::test_a_frontier_is_kept_under_all_that_it_depends_on"
MUTANTS = (
    Mutant("room bound x 1.1", KERNELS, "out[i] += max(together - crossing[first, i]", "out[i] += max(1.1 * together - crossing[first, i]"),
    Mutant("room bound counts what serves compute", KERNELS, "if y != x and pays[y] and np.any(c.paid[x, y]):", "if y != x and np.any(c.paid[x, y]):"),
    Mutant("room bound forgets the lanes", KERNELS, "first, second, k = 0, -1, -1, c.words[x] * lanes_left", "first, second, k = 0, -1, -1, c.words[x]"),
    Mutant("a pair's bound is its first program's", KERNELS, "if seen >> (x + 1) & 1:", "if seen:"),
    Mutant("lanes bound x 1.1", KERNELS, "out[i] += max(together - crossing[x, i]", "out[i] += max(1.1 * together - crossing[x, i]"),
    Mutant("shared lanes bound x 1.1", OPTIMAL, "np.maximum(together / prod(", "np.maximum(1.1 * together / prod("),
    Mutant("shared lanes taken for more than there are", OPTIMAL, "for n in t.lane_size) ** (1 / len(own)) - apart",
           "for n in t.lane_size) ** (0.8 / len(own)) - apart"),
    Mutant("bound of an access x 1.1", FORMULA, "0.0 if inner or busiest or skip else e.points() / spread",
           "0.0 if inner or busiest or skip else 1.1 * e.points() / spread"),
    Mutant("labels: dominance ignores energy", KERNELS, "        for i in range(h.parts.shape[1]):\n            covered",
           "        for i in range(1, h.parts.shape[1]):\n            covered"),
    Mutant("labels: dominance ignores room", KERNELS, "            covered = covered and h.need[own, v] <= h.need[label, v]\n", ""),
    Mutant("ranks change places that play different parts", OPTIMAL, "if dense and len(turn) == 2 * len(swaps) and shape(turn) == shape({}):",
           "if dense and len(turn) == 2 * len(swaps):"),
    Mutant("uneven lanes of a reduced rank never pay", FORMULA, "return plain and (rank in e.output.full() or not any(skips))", "return plain"),
    Mutant("uneven lanes of a window never pay", FORMULA, "return plain and (rank in e.output.full()", "return (rank in e.output.full()"),
    Mutant("no loop directly below ragged lanes", "dse/dataflow/walks.py", "whole = spans[group, s, 1] if states[s, RAGGED] else", "whole ="),
    Mutant("nodes rise above their own loops", "dse/dataflow/steps.py",
           "allowed &= full[below] | (full[above.tensor] | part[above.tensor] if above is not None and filled else frozenset())", "allowed &= full[below]"),
    Mutant("windows are no loops to rise above", "dse/dataflow/steps.py", "full[above.tensor] | part[above.tensor] if above",
           "full[above.tensor] if above"),
    Mutant("nodes that doubled buffering keeps sink all the same", "dse/dataflow/steps.py",
           "if not arch.levels[above.level].double_buffer and x.tensor != rules.stationary:", "if x.tensor != rules.stationary:"),
    Mutant("a node's least room is what it holds above its loops", KERNELS, "rest_bits(steps[e], steps[e + 1, 0], s2, w.lowest,",
           "rest_bits(steps[e], steps[e + 1, 0], s2, s2,"),
    Mutant("moving tiles are not doubled", KERNELS, "return 2.0 * bits if t.doubled[v] and moved else bits", "return bits"),
    Mutant("first reads come off at their least, not their most", KERNELS, "t.high if t.weights[p, n] < 0 else t.low", "t.low"),
    Mutant("bounds of states that stand for others are their own", FORMULA, "for s in range(tiles.shape[0] if borders else 0):", "for s in range(0):"),
    Mutant("bounds know no lanes", FORMULA, "for group in range(LANES - 1, LANES + borders):", "for group in range(LANES - 1, LANES):"),
    Mutant("lanes: one dimension decides which way is better", KERNELS, "covered = covered and w.sets[new, j, d] <= lanes_used",
           "covered = covered and (d > 0 or w.sets[new, j, d] <= lanes_used)"),
    Mutant("energy stands for energy x delay", KERNELS, "latency if objective == LATENCY else energy * latency",
           "latency if objective == LATENCY else energy"),
    Mutant("least compute cycles doubled", OPTIMAL, "least_ops = -(-e.points()", "least_ops = 2 * -(-e.points()"),
    Mutant("sinks into no window", KERNELS, "        if t.seen[x, r] and not t.full[x, r] and s[r] != s2[r]:\n            best = min",
           "        if False:\n            best = min"),
    Mutant("perfect lanes may be ragged", "dse/dataflow/walks.py", "if inner < before and (not perfect or tile % lanes_in_use == 0):",
           "if inner < before:"),
    Mutant("a spent budget is a proof", OPTIMAL, "proven, visited = visited <= budget - spent, visited + spent", "proven, visited = True, visited + spent",
           "tests/test_optimal.py::test_a_spent_budget_is_no_certificate"),
    Mutant("members: dominance ignores cycles", FRONTIER,
           "        if a[i, c] > b[j, c] * CLOSE:\n            return False\n    for c in range(last - rooms, last):",
           "        pass\n    for c in range(last - rooms, last):", "frontier"),
    Mutant("members: dominance ignores rooms", FRONTIER, "        if a[i, c] > b[j, c]:\n            return False", "        pass", "frontier"),
    Mutant("chains: dominance ignores room", FRONTIER,
           "        for v in range(own.need.shape[1]):\n            covered = covered and own.need[old, v] <= own.need[new, v]\n",
           "        for v in range(own.need.shape[1]):\n", "frontier"),
    Mutant("chains: dominance ignores the first product", FRONTIER, "for c in range(own.moved.shape[1]):", "for c in range(1, own.moved.shape[1]):",
           "frontier"),
    Mutant("a frontier's key drops the bits of a word", "dse/dataflow/frontier.py", "replace(f, arch=bare), word_bits", "replace(f, arch=bare)", KEY),
    Mutant("a frontier's key drops the capacities", "dse/dataflow/frontier.py", "replace(f, arch=bare), word_bits",
           "replace(f, arch=bare, rooms=()), word_bits", KEY),
    Mutant("a key drops the sources", "dse/cache.py", "(MODEL_VERSION, SOLVER_VERSION, sources(), question)", "(MODEL_VERSION, SOLVER_VERSION, question)",
           "tests/test_cache.py::test_a_changed_source_moves_every_name"),
    Mutant("the digest drops the walks", "dse/cache.py", "\"dse/sim\", \"dse/dataflow\", ", "\"dse/sim\", ",
           "tests/test_cache.py::test_the_digest_covers_all_code_that_an_answer_depends_on"),
    Mutant("a priced mapping is not looked at", "dse/dataflow/frontier.py",
           "    if (n, machine.cell) not in own.fits or not isclose(p.energy_pj, out[0, 0], rel_tol=1e-9) or not", "    if False and not",
           "tests/test_frontier.py::test_a_priced_mapping_fits_the_machine"),
    Mutant("lower bound x 1.5", "dse/sim/bounds.py", "total = n.computed * op_pj(n.einsum, arch)", "total = 1.5 * n.computed * op_pj(n.einsum, arch)",
           "bounds"),
    Mutant("bound of traffic ignores multicast", "dse/sim/bounds.py", "best = min(best, n.computed / widest * pj)", "best = min(best, n.computed * pj)",
           "bounds"),
    Mutant("counts: lanes that share are read each", TERMS, "return FIRST if loop.rank not in link.seen and shared[loop.over] else LANES", "return LANES",
           "nests"),
    Mutant("counts: spilled sums are never read back", TERMS, "AND_FIRST[picks[number]] if skip and loop.rank not in link.seen else picks[number]",
           "picks[number]", "nests"),
    Mutant("counts: rows of a compressed tile are forgotten", TERMS, "    yield Term(1, (*rows, *outer))\n", "", "nests"),
    Mutant("counts: padding is fetched", TERMS, "if distinct or (clip and not within(dim, [extent for extent, _ in ranks])):", "if distinct:", "nests"),
    Mutant("counts: the first lane is the busiest", "dse/sim/counts.py", "instances(sums, [tiles])", "[{}]", "nests"),
    Mutant("nodes sink below every loop of their own", TERMS, "        if node.rank not in full:\n            return i + 1\n", "", "nests"),
    Mutant("a fill overlaps without room", "dse/sim/times.py", "        if not c.arch.levels[v].double_buffer:\n", "        if False:\n", TIMES),
    Mutant("a lane that padding spares stands for all", TERMS, "if inside else lanes[:known])", "if True else lanes[:known])", "nests"),
)


Problem_ = tuple[int, str, str]  # seed, group, tiles


def problems(proof: str, number: int) -> list[Problem_]:
    groups = GROUPS_OF["frontier" if proof == "frontier" else "mappers"]
    known = [] if proof == "frontier" else KNOWN
    return known + [(seed, groups[seed % len(groups)], "perfect" if proof == "frontier" or seed // len(groups) % 2 else "divisor") for seed in range(number)]


def made(seed: int, group: str, tiles: str):  # type: ignore[no-untyped-def]
    from tests.problems import random_problem, symmetric

    rng = Random(f"mutants/{seed}/{group}/{tiles}")
    if group == "known":
        return random_problem(Random(seed), "array", tiles, 200_000)
    return symmetric(rng) if group == "symmetric" else random_problem(rng, group, tiles, 40_000)


def answer(asked: Problem_) -> list[float]:
    from tests.enumeration import enumerated

    return list(enumerated(made(*asked), asked[2]).cost)


def differences(proof: str, answers: list[tuple[Problem_, list[float]]]) -> Iterator[str]:
    """Run in the copy: what a proof finds wrong there."""
    from dse.dataflow import optimal
    from dse.sim.evaluate import lower_bound
    from tests.enumeration import Best
    from tests.nests import rich_case
    from tests.prove.mappers import compared, one_machine
    from tests.test_counts import mismatch, unlike

    if proof == "nests":
        yield from filter(None, (mismatch(seed, KINDS) for seed in range(WALKED)))
        yield from filter(None, (unlike(f"rich seed {seed}", *rich_case(Random(seed))) for seed in range(WALKED)))
        return
    for asked, cost in answers:
        problem = made(*asked)
        if proof == "bounds":
            yield from ["bound above"] if lower_bound(problem) > cost[0] * (1 + 1e-9) else []
            continue
        best = Best((cost[0], cost[1], cost[2]), optimal.least(problem.einsum, problem.arch) if cost[0] < float("inf") else None, 0)
        found = one_machine(problem) if proof == "frontier" else optimal.solved(problem, asked[2])
        if found is not None:
            yield from (f"{asked}: {line}" for line in compared(problem, best, found, proof))


KINDS = ("gemm", "bmm", "conv", "conv1d", "depthwise", "pool", "transposed", "spmm", "spmv")


def copied(folder: Path, mutant: Mutant | None) -> Path:
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, folder / name)
    if mutant:
        path = folder / mutant.file
        text = path.read_text()
        if text.count(mutant.old) != 1:
            raise ValueError(f"{mutant.file} has {text.count(mutant.old)} times: {mutant.old}")
        path.write_text(text.replace(mutant.old, mutant.new))
    return folder


def told(proof: str, mutant: Mutant | None, answers: Path) -> tuple[str, float]:
    """How a proof ends in a copy of the sources: "" if nothing is wrong there, else what it says; seconds."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="dse-mutant-") as home:
        try:
            folder = copied(Path(home), mutant)
        except ValueError as fault:
            return f"NO MUTANT: {fault}", 0.0
        environment = {**os.environ, "PYTHONPATH": str(folder), "NUMBA_DISABLE_JIT": "1", "DSE_CACHE": str(folder / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:xdist", "-p", "no:cacheprovider", proof] if "::" in proof else \
            [sys.executable, "-m", "tests.prove.mutants", proof, str(answers)]
        try:
            done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False)
        except subprocess.TimeoutExpired:
            return f"no answer in {SECONDS} s", SECONDS
    said = (done.stdout.strip() or done.stderr.strip()[-200:] or "exit").splitlines()
    return "" if done.returncode == 0 else said[0] if "::" not in proof else "the test fails", time.monotonic() - started


def checked(proof: str, answers: Path) -> int:
    """In the copy: 1 at the first difference."""
    for line in differences(proof, [((a[0], a[1], a[2]), cost) for a, cost in json.loads(answers.read_text()).get(proof, [])]):
        print(line.splitlines()[0])
        return 1
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=int, default=400)
    parser.add_argument("--only", default="")
    given, _ = parser.parse_known_args()
    chosen = [m for m in MUTANTS if given.only in m.rule]
    proofs = list(dict.fromkeys(m.proof for m in chosen))
    with tempfile.TemporaryDirectory(prefix="dse-answers-") as home, ProcessPoolExecutor(2, get_context("spawn")) as pool:
        path, known = Path(home) / "answers.json", {}
        for proof in {"mappers", "frontier", "bounds"} & set(proofs):
            wanted = problems(proof, given.problems)
            known[proof] = list(zip(wanted, pool.map(answer, wanted, chunksize=4), strict=True))
        path.write_text(json.dumps(known))
        with ThreadPoolExecutor(2) as threads:
            run: Callable[[tuple[str, Mutant | None]], tuple[str, float]] = lambda one: told(one[0], one[1], path)  # noqa: E731
            plain = dict(zip(proofs, threads.map(run, [(proof, None) for proof in proofs]), strict=True))
            false = [f"  the sources as they are fail {proof}: {said}" for proof, (said, _) in plain.items() if said]
            print("\n".join(false) if false else f"  the sources as they are pass all {len(proofs)} proofs", flush=True)
            alive = 0
            for m, (said, seconds) in zip(chosen, threads.map(run, [(m.proof, m) for m in chosen]), strict=True):
                lives = not said or said.startswith("NO MUTANT")
                alive += lives
                print(f"  {'LIVES' if lives else 'killed'} {m.rule}: {m.proof}, {seconds:.0f} s{f'; {said[:140]}' if said else ''}", flush=True)
    print(f"  {len(chosen)} mutants, {len(chosen) - alive} killed")
    return int(alive > 0 or bool(false))


if __name__ == "__main__":
    sys.exit(checked(sys.argv[1], Path(sys.argv[2])))
