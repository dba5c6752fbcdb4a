"""GOGETA's figures 4 to 6, 10 to 12 and table 1 (arXiv 2303.11499) beside what it states of them: python -m
bench.gogeta [--time | --schedules [WORKLOAD ...]].

Words are of 4 bytes, MB of 1e6 bytes as there. Optimal is the least of any order of operations found, with
its own fusions. Bars of the figures are not given as numbers in the paper; what its text says of them stands
beside. Then the CPU time of one residency solve. Exit 1 if a stated figure is missed.

--schedules: the configurations as schedules that the evaluator prices (`solver.schedule`), and where their
words come from; exit 1 if Optimal moves more than another one.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from math import exp, log
from statistics import median

from dse.frontend import api
from dse.mapping.nest import Infeasible
from dse.solve.gogeta.accesses import AccessList, access_list, pipelined_phases
from dse.solve.gogeta.classify import classify
from dse.solve.gogeta.operations import SMALL_WORDS, graph
from dse.solve.gogeta.optimum import optimum, steady
from dse.solve.gogeta.traffic import CountingRule, TrafficReport, traffic_of
from tests.cases_gogeta import between_clusters, intensity
from workloads import catalog, gnn, hpc
from workloads.einsum import Einsum, einsum
from workloads.graph import unique
from workloads.matrix import MATRICES

MIB = 2**18  # words
CLUSTERS = 16
# access by access, n x n matrices for nothing: what the paper's figures need (docs/reuse.md)
PUBLISHED = CountingRule(as_published=True)


def mean(found: list[float]) -> float:
    return exp(sum(map(log, found)) / len(found))


def table(*rows: tuple[object, ...]) -> Iterator[str]:
    head, *rest = rows
    for row in (head, ("---",) * len(head), *rest):
        yield (
            "| " + " | ".join(f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row) + " |"
        )


def intensities() -> Iterator[str]:
    """Figures 4 to 6."""
    yield "Figure 4, multiplications per word of products in networks"
    rows = [
        (name, [intensity(u.einsum) for u in unique(catalog.load(name)) if u.einsum.kind == "mac"])
        for name in ("resnet50", "bert_base", "gpt2")
    ]
    yield from table(
        ("network", "products", "least", "geomean", "most"),
        *((name, len(n), min(n), mean(n), max(n)) for name, n in rows),
    )
    yield (
        "Figure 5, N = 16: dense products of CG (stated: below N / 2 = 8), sparse ones (stated: z N / (2 "
        "z + 1 + 2 N), below N / 2)"
    )
    yield from table(
        ("matrix", "dense", "sparse", "stated limit"),
        *(
            (
                m.name,
                intensity(hpc.gemm(m.rows, 16, 16)[0]),
                intensity(hpc.spmm(m.rows, m.rows, 16, m.nnz)[0]),
                (z := m.nnz / m.rows) * 16 / (2 * z + 33),
            )
            for m in MATRICES.values()
        ),
    )
    yield "Figure 6, N = 16, full reuse across iterations of CG (stated: rises with the iterations)"
    counts = (1, 2, 5, 10, 20)
    yield from table(
        ("matrix", *(f"iter {n}" for n in counts)),
        *((name, *(_whole(name, n) for n in counts)) for name in MATRICES),
    )


def _whole(matrix: str, iterations: int) -> float:
    w = hpc.cg(matrix=matrix, n=16, iterations=iterations)
    g = graph(w)
    return (
        w.macs()
        / access_list(g, pipelined_phases(g, classify(g), small_words=SMALL_WORDS)).compulsory_words()
    )


def chains() -> Iterator[str]:
    """Table 1: five products in a row, with a new operand each as in a network, or only with each other as in
    a solver; 1,000 in every rank, or all but N.
    """
    network = (
        "Z[m,n] += A[m,k] * B[k,n]",
        "Y[o,n] += C[o,m] * Z[m,n]",
        "X[p,n] += D[p,o] * Y[o,n]",
        "W[q,n] += E[q,p] * X[p,n]",
        "V[r,n] += F[r,q] * W[q,n]",
    )
    solver = (
        "Z[m,n] += A[m,k] * B[k,n]",
        "Y[o,n] += C[o,m] * Z[m,n]",
        "X[m,n] += Z[m,i] * Y[i,n]",
        "W[o,n] += Y[o,h] * X[h,n]",
        "V[m,n] += X[m,g] * W[g,n]",
    )
    rows: list[tuple[object, ...]] = [("chain", "alone", "reused", "times", "stated")]
    for name, texts, stated in (("network, equal", network, 15 / 7), ("solver, equal", solver, 15 / 4)):
        alone, reused = _chain([einsum(text, dict.fromkeys("mnkopqrihg", 1000)) for text in texts])
        rows.append((name, alone, reused, reused / alone, stated))
    alone, reused = _chain(
        [einsum(text, dict.fromkeys("mkopqr", 16) | {"n": 100_000_000}) for text in network]
    )
    rows.append(("network, N large", alone, reused, reused / alone, 5.0))
    yield "Table 1, multiplications per word (stated: 2.14, 3.75, and 5 with one large rank)"
    yield from table(*rows)


def _chain(chain: list[Einsum]) -> tuple[float, float]:
    macs, made = sum(e.macs() for e in chain), {e.output.tensor for e in chain}
    size = {p.tensor: p.stored_elems() for e in chain for p in e.tensors()}
    kept = sum(n for t, n in size.items() if t not in made) + size[chain[-1].output.tensor]
    return macs / sum(size[p.tensor] for e in chain for p in e.tensors()), macs / kept


def traffic(found: dict[tuple[str, int, int], TrafficReport]) -> Iterator[str]:
    """Figure 10 and what its text says."""
    yield "Figure 10, MB of main memory, 10 iterations of CG"
    yield from table(
        (
            "matrix",
            "N",
            "MiB",
            "SEQ-Flex",
            "SEQ-Overflow",
            "GOGETA",
            "Ideal",
            "Optimal",
            "times",
            "GOGETA / optimum",
            "words per word of SRAM",
        ),
        *(
            (
                name,
                n,
                mib,
                *(
                    4e-6 * w
                    for w in (r.seq_flex, r.seq_overflow.words(), r.gogeta.words(), r.ideal, r.optimal.cost)
                ),
                r.seq_flex / r.gogeta.words(),
                r.gogeta.words() / r.bound_gogeta.cost,
                r.optimal.saved_per_word,
            )
            for (name, n, mib), r in found.items()
        ),
    )
    yield from table(
        ("quantity", "stated", "here"), *((what, stated, here) for what, stated, here, _ in claims(found))
    )


def claims(found: dict[tuple[str, int, int], TrafficReport]) -> Iterator[tuple[str, str, str, bool]]:
    """(what, stated, here, whether it holds)."""
    times = [r.seq_flex / r.gogeta.words() for r in found.values()]
    yield "geomean SEQ-Flex / GOGETA", "6.7", f"{mean(times):.3f}", round(mean(times), 1) == 6.7
    yield (
        "range",
        "1.18 to 23.7",
        f"{min(times):.3f} to {max(times):.3f}",
        abs(min(times) - 1.18) < 0.005 and abs(max(times) - 23.7) < 0.05,
    )
    fits = [
        r.gogeta.words() == r.ideal
        for (name, _, mib), r in found.items()
        if name in ("aft02", "nasa4704") and mib > 1
    ]
    yield "aft02, nasa4704 with 4 and 16 MiB at Ideal", "all", f"{sum(fits)} of {len(fits)}", all(fits)
    large = [(mib, r) for (name, _, mib), r in found.items() if name == "ecology1" and mib < 16]
    over = [r.seq_flex / r.seq_overflow.words() for _, r in large]
    yield (
        "ecology1, 1 and 4 MiB: SEQ-Flex / SEQ-Overflow",
        "similar",
        f"{min(over):.3f} to {max(over):.3f}",
        max(over) < 1.1,
    )
    better = [
        f"{100 * (min(part) - 1):.0f} to {100 * (max(part) - 1):.0f} % at {mib} MiB"
        for mib in (1, 4)
        if (part := [r.seq_flex / r.gogeta.words() for own, r in large if own == mib])
    ]
    yield "ecology1, small memory: GOGETA better by", "18 to 30 %", ", ".join(better), True


def others() -> Iterator[str]:
    """Figures 11 and 12."""
    yield "Figure 11, one layer of GCN with 1 MiB (stated: cora marginal, then Ideal; protein Ideal both)"
    layers = {name: traffic_of(gnn.gcn(name, layers=1), MIB, count=PUBLISHED) for name in ("cora", "protein")}
    yield from table(
        ("graph", "SEQ-Flex MB", "SEQ-Overflow times", "GOGETA times", "Ideal times"),
        *(
            (
                name,
                4e-6 * r.seq_flex,
                *(r.seq_flex / w for w in (r.seq_overflow.words(), r.gogeta.words(), r.ideal)),
            )
            for name, r in layers.items()
        ),
    )
    yield (
        "Figure 12, KB between 16 clusters in lines 4 and 5 of CG, N = 8 (stated: M N words, and 2 N N "
        "15 words = 7.68 KB)"
    )
    yield from table(
        ("matrix", "GOGETA-df", "GOGETA-map", "times"),
        *(
            (name, 0.004 * df, 0.004 * sliced, df / sliced)
            for name in MATRICES
            for df, sliced in [_clusters(name)]
        ),
    )


def _clusters(matrix: str) -> tuple[int, int]:
    g = graph(hpc.cg(matrix=matrix, n=8, iterations=1))
    return between_clusters(
        g, classify(g), [at for at, e in enumerate(g.operations) if e.name in ("0.4", "0.5")], CLUSTERS
    )


def timed(runs: int = 20) -> Iterator[str]:
    """CPU milliseconds of one residency solve: median and largest over matrices, columns and sizes of
    SRAM."""
    solves: dict[str, Callable[[Callable[[int], AccessList], int], object]] = {
        "10 iterations, unrolled": lambda lists, room: optimum(lists(10), room),
        "10 iterations, by periods": lambda lists, room: steady(lists, 10, room),
        "1,000 iterations, by periods": lambda lists, room: steady(lists, 1000, room),
    }
    spent: dict[str, list[float]] = {name: [] for name in solves}
    for name, n, mib in product(MATRICES, (1, 8, 16), (1, 4, 16)):
        w = hpc.cg(matrix=name, n=n, iterations=1000, form="periodic")
        phases = pipelined_phases(one := graph(w, 3), classify(one), small_words=SMALL_WORDS)
        made = {count: access_list(graph(w, count), phases) for count in (5, 6, 10)}
        for what, solve in solves.items():
            each = []
            for _ in range(runs):
                started = time.process_time()
                solve(made.__getitem__, mib * MIB)
                each.append(1e3 * (time.process_time() - started))
            spent[what].append(median(each))
    yield "CPU ms of one residency solve of CG (medians of runs, over the 36 points)"
    yield from table(
        ("solve", "median", "largest"), *((what, median(each), max(each)) for what, each in spent.items())
    )


def scheduled(names: Sequence[str], machine: str) -> int:
    """A table per workload; how many of them Optimal does not win."""
    lost = 0
    for name in names:
        rows, moved = [], {}
        for pick in ("seq-flex", "seq-overflow", "gogeta", "residency"):
            started = time.process_time()
            found = api.map(name, machine, **{"solver.schedule": pick, "solver.factors": "perfect"}).solution
            if isinstance(found, Infeasible) or found.memory is None:
                rows.append((pick, str(found)))
                continue
            memory = found.memory
            moved[pick] = memory.moved_words
            parts = [getattr(memory, f"{part}_words") for part in WORDS]
            rows.append(
                (
                    pick,
                    1e-6 * memory.moved_words,
                    moved["seq-flex"] / memory.moved_words,
                    *(1e-6 * n for n in parts),
                    memory.saved_words,
                    1e-9 * found.energy_pj,
                    1e-6 * found.latency_cycles,
                    time.process_time() - started,
                )
            )
        print(f"{name} on {machine}, millions of words of main memory")
        print("\n".join(table(PARTS, *rows)), flush=True)
        lost += moved["residency"] > min(moved.values()) * (1 + 1e-9)
    return lost


WORDS = ("listed", "in_registers", "not_fused", "reread", "capacity")  # of Memory
PARTS = (
    "reuse",
    "moved",
    "times less",
    "= listed",
    "+ small",
    "+ apart",
    "+ again",
    "+ room",
    "saved by a word",
    "mJ",
    "M cycles",
    "CPU s",
)
SCHEDULED = ("bert_base", "llama7b:phase=decode", "resnet50", *(f"cg:matrix={name},n=8" for name in MATRICES))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--time", action="store_true", help="the CPU time of solves alone")
    parser.add_argument(
        "--schedules",
        nargs="*",
        metavar="WORKLOAD",
        help="the configurations as schedules alone; of these workloads",
    )
    parser.add_argument("--machine", default="gogeta_clusters", help="that schedules are for")
    given = parser.parse_args()
    if given.time:
        print("\n".join(timed()))
        return 0
    if given.schedules is not None:
        return int(scheduled(given.schedules or SCHEDULED, given.machine) > 0)
    found = {
        (name, n, mib): traffic_of(hpc.cg(matrix=name, n=n, form="periodic"), mib * MIB, count=PUBLISHED)
        for name, n, mib in product(MATRICES, (1, 8, 16), (1, 4, 16))
    }
    print("\n".join([*intensities(), *chains(), *traffic(found), *others(), *timed()]))
    missed = [what for what, _, _, holds in claims(found) if not holds]
    for what in missed:
        print(f"MISSED: {what}", file=sys.stderr)
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
