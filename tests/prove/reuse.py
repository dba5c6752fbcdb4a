"""What stays on chip: the linear program against every schedule of single words, loops against their whole
lists, orders of operations on the solvers.

    python -m tests.prove reuse [--lists 3000] [--graphs 2000] [--orders 500] [--loops 1500] [--schedules 150]
        [--chains 1] [--blockings 3000]

Mutants that the first part kills: spills that cost nothing, an interval that leaves a gap too early, outputs
that spill, room that a phase holds given away. The second: periods between the ends that are tied by the
wrong tensor, a bound of prices that one period more does not see. Graphs: three to five operations, small
results and operands that are held until the result is complete, from einsums to the least of all schedules of
single words. Orders: three to six operations, the least of all their orders and pipelines. Schedules:
networks as `solver.schedule` emits them: none moves less than the bound of its list
of phases, the policy and the optimum rank alike, and what moves beyond the list is told by cause. Blockings:
of random products none brings in less than the bound of what is read again. Chains of 1,100 and 3,000
operations, residency and mappings, unfused and fused: at the default limit of recursion.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import product
from math import exp, log
from multiprocessing import get_context
from random import Random

from dse.solve import solve
from dse.solve.gogeta.optimum import optimum, steady
from dse.solve.gogeta.traffic import CountingRule, TrafficReport, traffic_of
from dse.solve.options import SolverOptions
from tests.chains import KINDS
from tests.prove.mappers import asked
from tests.residents import exhaustive, periods, small
from tests.test_chains import TIGHT
from tests.test_emitted import FLAT, SLICES, listed_and_moved, random_network
from tests.test_rereads import below_every_blocking
from tests.test_retention import differs, loop_differs, order_differs
from workloads.matrix import MATRICES
from workloads.solvers import SOLVERS

CLOSE = 1e-6


def of_words(seed: int) -> str:
    """Lists up to eight accesses of three tensors."""
    rng = Random(seed)
    listed, room = small(seed)
    if seed % 2:
        listed = periods(rng, 3, rng.randint(4, 8), 2, held=seed % 6 == 1)(1)
    found, least = optimum(listed, room), exhaustive(listed, room)
    return (
        ""
        if abs(found.cost - least) < CLOSE and abs(found.bound - least) < CLOSE
        else f"seed {seed}: {found.cost}, bound {found.bound}, but {least}"
    )


def of_blockings(seed: int) -> str:
    bound, own = below_every_blocking(seed)
    return (
        "" if bound <= own * (1 + CLOSE) else f"seed {seed}: {bound} words read again, and {own} are enough"
    )


def of_loops(seed: int) -> tuple[str, int, int]:
    """A difference, how many loops were solved, how many of them proven."""
    rng = Random(seed)
    lists = periods(rng, rng.randint(2, 5), rng.randint(3, 10), rng.randint(1, 12))
    room, counts, proven = rng.randint(0, 24), (7, 9, 12, 20), 0
    for count in counts:
        whole, found = optimum(lists(count), room), steady(lists, count, room)
        if not found.bound - CLOSE <= whole.cost <= found.cost + CLOSE:
            return (
                f"seed {seed}, {count} periods: {whole.cost} is not between {found.bound} and {found.cost}",
                len(counts),
                0,
            )
        proven += found.cost - found.bound < CLOSE
    return "", len(counts), proven


def solver(name: str, matrix: str, n: int, mib: int) -> tuple[str, TrafficReport]:
    form = {} if name == "gmres" else {"form": "periodic", "iterations": 10}
    return name, traffic_of(
        SOLVERS[name](matrix=matrix, n=n, **form), mib * 2**18, count=CountingRule(as_published=True)
    )


def orders(found: list[tuple[str, TrafficReport]]) -> Iterator[str]:
    for name in ("cg", "bicgstab", "gmres"):
        mine = [r for solver, r in found if solver == name]
        wrong = [
            r
            for r in mine
            if r.optimal.bound < r.optimal.cost * (1 - 1e-9)
            or r.optimal.cost > r.bound_gogeta.cost + CLOSE
            or r.bound_gogeta.cost > r.gogeta.words() + CLOSE
            or r.optimal.cost > min(r.seq_overflow.words(), r.best_policy.words()) + CLOSE
        ]
        gaps, given = [1 + r.gap() for r in mine], [r.gogeta.words() / r.bound_gogeta.cost for r in mine]
        print(
            f"  {name}: {len(mine)} points, policy over optimum as GOGETA orders {_mean(given):.4f}, worst "
            f"{max(given):.4f}; after search of orders {_mean(gaps):.4f}, worst {max(gaps):.4f}"
        )
        yield from (f"{name}: not proven, or out of order: {r}" for r in wrong)
        if name == "cg" and max(gaps) > 1 + 1e-9:
            yield f"cg: a gap of {max(gaps) - 1} is left"


def long_chain(at: tuple[str, int]) -> str:
    kind, length = at
    w = KINDS[kind](length)
    try:
        found = traffic_of(w, 300)
        mapped = (
            [solve.solve(TIGHT, w, SolverOptions(schedule=name)) for name in ("unfused", "fused")]
            if kind == "products"
            else []
        )  # type: ignore[arg-type]
    except RecursionError as fault:
        return f"{length} {kind}: {fault}"
    whole = found.optimal.bound <= found.optimal.cost * (1 + 1e-9) and all(
        isinstance(one, list) for one in mapped
    )
    return "" if whole else f"{length} {kind}: {found.optimal.cost}, bound {found.optimal.bound}, {mapped}"


def of_schedules(seed: int) -> str:
    rng = Random(seed)
    w, words = random_network(seed), rng.randint(12, 150)
    arch = SLICES if rng.random() < 0.5 else FLAT
    arch = replace(
        arch,
        levels=(
            arch.levels[0],
            replace(arch.levels[1], capacity_bits=8 * max(words // arch.instances(1), 6)),
        ),
    )
    return listed_and_moved(arch, w)


def _mean(found: list[float]) -> float:
    return exp(sum(map(log, found)) / len(found))


def main() -> int:
    given = asked(
        __doc__, lists=3_000, graphs=2_000, orders=500, loops=1_500, schedules=150, chains=1, blockings=3_000
    )
    points = [("cg", n) for n in (1, 8, 16)] + [("bicgstab", n) for n in (1, 8, 16)] + [("gmres", 1)]
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        wrong = list(filter(None, pool.map(of_words, range(given.lists), chunksize=64)))
        print(f"  {given.lists} lists: {given.lists - len(wrong)} at the least of all schedules", flush=True)
        wrong += [line for line in pool.map(differs, range(given.graphs), chunksize=16) if line]
        print(
            f"  {given.graphs} graphs of three to five operations against every schedule of single words",
            flush=True,
        )
        apart = [line for line in pool.map(order_differs, range(given.orders), chunksize=8) if line]
        wrong += apart
        print(f"  {given.orders} graphs, all orders and pipelines: {len(apart)} differ", flush=True)
        wrong += [line for line in pool.map(loop_differs, range(given.loops), chunksize=16) if line]
        wrong += [line for line in pool.map(of_schedules, range(given.schedules), chunksize=4) if line]
        print(f"  {given.schedules} networks as schedules: none below its list", flush=True)
        wrong += [line for line in pool.map(of_blockings, range(given.blockings), chunksize=32) if line]
        print(f"  {given.blockings} products: no blocking below what is read again", flush=True)
        loops = list(pool.map(of_loops, range(given.loops), chunksize=32))
        wrong += [line for line, _, _ in loops if line]
        print(
            f"  {sum(n for _, n, _ in loops)} loops: within cost and bound, {sum(n for _, _, n in loops)} "
            "proven without unrolling",
            flush=True,
        )
        if given.chains:
            wrong += filter(None, pool.map(long_chain, product(KINDS, (1100, 3000))))
            print("  chains of 1,100 and 3,000 operations: answered", flush=True)
        jobs = [(name, matrix, n, mib) for (name, n), matrix, mib in product(points, MATRICES, (1, 4, 16))]
        wrong += orders(list(pool.map(solver, *zip(*jobs, strict=True))))
    print("\n".join(f"  {line}" for line in wrong[:20]))
    return int(bool(wrong))
