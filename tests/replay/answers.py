"""The answers of this revision, one JSON line each: what `make replay` compares between two revisions.

    python -m tests.replay.answers FILE [--groups mappers,fused,...] [--share 1.0]

An answer is told in terms that no renaming touches: figures, and mappings as lists of nodes. So two revisions
are compared line by line, whatever their keys, classes and texts are called; a revision knows its own names,
in this file.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import dse
from cluster import driver
from dse.mapper.exact import pareto_mappings
from dse.mapper.exact.optimal import optimal
from dse.mapping.nest import Infeasible, Loop, Mapping
from dse.mapping.schedule import Branch, Schedule
from dse.sim.einsum.evaluate import EinsumCost, Solution
from dse.solve.options import SolverOptions
from dse.solve.schedules.pipeline import pipelined
from dse.solve.solve import solve_schedule
from dse.study import study as studies
from tests import cases, fusions, piped
from tests.prove.mappers import problem_of
from tests.test_every_entry import SMALL

DATA = Path(__file__).parents[2].parent / "shared" / "data"
MACHINES = ("edge_array", "eyeriss", "tpu_edge", "a3nb")
IMPERFECT = ("gemm:m=67,n=31,k=45", "conv:k=13,c=7,p=11,q=11,r=3,s=3", "spmv:m=40,k=50,nnz=70")
RESIDENT = ("cg:matrix=ecology1,n=8", "gcn", "bert_tiny", "spmm_chain:rows=512,nnz=2048,n=8,length=4")
PUBLISHED = {
    "kapla_multi_4x4": ("kapla", "pipelined"),
    "gogeta_clusters": ("seq-flex", "seq-overflow", "gogeta", "gogeta-published", "residency"),
    "a2s": ("fused",),
}
METHODS_ON = ("mlp_s:batch=8", "gemm:m=64,n=32,k=48", "attention:heads=2,kv=2,q=16,context=16,d=8")
STUDIES = {
    "exhaustive": "name: a\nworkloads: ['gemm:m=16,n=8,k=12']\nmachine: edge_array\n"
    "space: {array.x: [2, 4], gbuf.capacity: [8 KiB, 16 KiB], dram.kind: [lpddr4, lpddr5]}\n"
    "objectives: [energy_pj, latency_ns, area_mm2]\nsearch: {method: exhaustive}\n",
    "shared": "name: b\nworkloads: ['gemm:m=16,n=8,k=12', 'conv:k=8,c=4,p=6,q=6,r=3,s=3']\nmachine: "
    "edge_array\n"
    "space: {clock_mhz: {from: 100, to: 800, step: 100}, dram.kind: [lpddr4, lpddr5, ddr4]}\n"
    "objectives: [energy_pj, latency_ns]\nsearch: {method: exhaustive}\nsolver: {sharing_gap: 0.05}\n",
    "random": "name: c\nworkloads: ['mlp_s:batch=4']\nmachine: edge_array\n"
    "space: {array.x: [4, 8, 16], array.y: [4, 8, 16], regf.capacity: [32 B, 64 B, 256 B]}\n"
    "objectives: [edp_pj_ns, area_mm2]\nsearch: {method: random, seed: 3}\nstop: {machines: "
    "12}\nsolver: {objective: edp}\n",
    "nsga2": "name: d\nworkloads: [{workload: 'gemm:m=16,n=8,k=12', name: p}, {workload: 'gemm:m=8,n=8,k=8', "
    "name: q, weight: 2}]\n"
    "machine: edge_array\nspace: {array.x: [2, 4, 8, 16], array.y: [2, 4, 8, 16], gbuf.capacity: [4 "
    "KiB, 8 KiB, 16 KiB]}\n"
    "constraints: ['area_mm2 <= 1']\nobjectives: [{energy_pj: sum}, {latency_ns: max}]\nsearch: "
    "{method: nsga2, seed: 5}\nstop: {machines: 24}\n",
    "fused": "name: e\nworkloads: ['mlp_s:batch=4']\nmachine: a2s\nspace: {glb.capacity: [4 KiB, 16 KiB]}\n"
    "objectives: [energy_pj]\nsearch: {method: exhaustive}\nsolver: {schedule: fused}\n",
}
COLUMNS = (
    "point",
    "machine",
    "status",
    "energy_pj",
    "latency_cycles",
    "latency_ns",
    "area_mm2",
    "edp_pj_ns",
    "array_x",
    "array_y",
    "gbuf_capacity",
    "regf_capacity",
    "glb_capacity",
    "dram_kind",
    "clock_mhz",
)


def number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def nest(mapping: Mapping) -> list[list[Any]]:
    """Nodes, outermost first: [rank, tile, dimension of the fan-out or ""], or [level, tensor]."""
    return [[n.rank, n.tile, n.over] if isinstance(n, Loop) else [n.level, n.tensor] for n in mapping.nodes]


def schedule(one: Schedule | None) -> Any:
    """Per segment its shared nodes and branches (einsum, nest, regions)."""
    if one is None:
        return None
    return [[nest(Mapping(s.nodes)), [branch(b) for b in s.branches]] for s in one.segments]


def branch(one: Branch) -> Any:
    """[einsum, its nest, region as [dimension, first, size], nodes that are filled once]."""
    return [
        one.einsum,
        nest(one.mapping),
        [[r.dim, r.first, r.size] for r in one.region],
        nest(Mapping(one.filled_once)),
    ]


def cost(found: EinsumCost | Infeasible) -> list[Any]:
    if isinstance(found, Infeasible):
        return ["infeasible", found.level, found.need_bytes, found.have_bytes]
    return [
        found.energy_pj,
        found.latency_cycles,
        number(found.optimality_gap),
        number(found.gap_to_bound),
        nest(found.mapping),
    ]


def solution(found: Solution | Infeasible) -> Any:
    if isinstance(found, Infeasible):
        return cost(found)  # type: ignore[arg-type]
    return [
        found.energy_pj,
        found.latency_cycles,
        number(found.optimality_gap),
        number(found.gap_to_bound),
        [cost(c) for c in found.einsums],
        schedule(found.schedule),
    ]


def mapped(source: str, machine: str, **options: Any) -> Any:
    """options: of the solver."""
    found = dse.map(source, machine, **{f"solver.{key}": value for key, value in options.items()})
    return [solution(found.solution), schedule(found.plan)]


def from_cases(_: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    for path in sorted(DATA.glob("*_cases.json")):
        yield path.name, lambda path=path: list(map(str, cases.run(path)))  # type: ignore[misc]


def from_mappers(many: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    for seed in range(many):

        def answer(seed: int = seed) -> Any:
            problem = problem_of(seed, 20_000)
            tiles = "perfect" if seed % 3 == 0 else "imperfect_spatial"
            found = optimal(problem, tiles)  # type: ignore[arg-type]
            return cost(found if isinstance(found, Infeasible) else found[0])

        yield str(seed), answer


def from_fused(many: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    for seed in range(many):

        def answer(seed: int = seed) -> Any:
            arch, workload = fusions.random_case(seed, "buffered" if seed % 4 == 3 else "free")
            found = solve_schedule(
                arch, workload, SolverOptions(schedule="fused", objective="energy" if seed % 2 else "latency")
            )
            return solution(found if isinstance(found, Infeasible) else found[0])

        yield str(seed), answer


def from_pipelines(many: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    for seed in range(many):

        def answer(seed: int = seed) -> Any:
            arch, workload, weights = piped.random_case(seed)
            return solution(pipelined(arch, workload, "energy", weights))  # type: ignore[arg-type]

        yield str(seed), answer


def from_catalog(_: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    for machine in MACHINES:
        for name, parameters in SMALL.items():
            source = f"{name}:{parameters}" if parameters else name
            yield f"{source} on {machine}", lambda source=source, machine=machine: mapped(source, machine)  # type: ignore[misc]


def from_imperfect(_: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    for source in IMPERFECT:
        yield source, lambda source=source: mapped(source, "edge_array", factors="imperfect")  # type: ignore[misc]


def from_residency(_: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    for source in RESIDENT:

        def answer(source: str = source) -> Any:
            return [
                [str(x) for x in row]
                for row in dse.residency(source, "gogeta_clusters").configurations.rows()
            ]

        yield source, answer


def from_fronts(many: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    for seed in range(many):

        def answer(seed: int = seed) -> Any:
            found = pareto_mappings.front(problem_of(seed, 2_000))
            return (
                cost(found)
                if isinstance(found, Infeasible)
                else [[*cost(member.cost), member.capacity_bytes] for member in found.members]
            )

        yield str(seed), answer


def from_methods(_: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    for machine, methods in PUBLISHED.items():
        for method in methods:
            for source in METHODS_ON:
                yield (
                    f"{method}: {source} on {machine}",
                    lambda source=source, machine=machine, method=method: mapped(
                        source, machine, schedule=method
                    ),
                )  # type: ignore[misc]
    for heuristic in ("cost_descending", "random", "exhaustive"):
        yield heuristic, lambda heuristic=heuristic: mapped("gemm:m=4,n=3,k=2", "a2s", mapper=heuristic)  # type: ignore[misc]
    for source in ("conv:k=16,c=8,p=14,q=14,r=3,s=3", "gemm:m=64,n=32,k=48"):
        yield f"smaug: {source}", lambda source=source: mapped(source, "smv", tiling="smaug")  # type: ignore[misc]
    yield "layouts", lambda: mapped("conv:k=16,c=8,p=14,q=14,r=3,s=3", "burst_edge", layout="alt")


def from_studies(_: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    for name, text in STUDIES.items():

        def answer(text: str = text) -> Any:
            with tempfile.TemporaryDirectory() as home:
                path = Path(home) / "study.yaml"
                path.write_text(text)
                driver.run(studies.load(path), Path(home) / "run", workers=0)
                run = dse.open(Path(home) / "run")
                there = [
                    name
                    for name in COLUMNS
                    if name in run.sql("SELECT * FROM designs LIMIT 0").table.column_names
                ]
                return [
                    [str(x) for x in row]
                    for row in run.sql(f"SELECT {', '.join(there)} FROM designs ORDER BY ALL").rows()
                ]

        yield name, answer


GROUPS: dict[str, tuple[Callable[[int], Iterator[tuple[str, Callable[[], Any]]]], int]] = {
    "cases": (from_cases, 0),
    "mappers": (from_mappers, 1000),
    "fused": (from_fused, 200),
    "pipelines": (from_pipelines, 100),
    "catalog": (from_catalog, 0),
    "imperfect": (from_imperfect, 0),
    "residency": (from_residency, 0),
    "fronts": (from_fronts, 20),
    "methods": (from_methods, 0),
    "studies": (from_studies, 0),
}


def answered(task: tuple[str, int, int]) -> str:
    """The nth answer of a group as a line; an exception is an answer too."""
    group, many, nth = task
    key, answer = list(GROUPS[group][0](many))[nth]
    try:
        value = answer()
    except Exception as fault:  # compared like any other answer
        value = ["raised", type(fault).__name__, str(fault)[:300]]
    return json.dumps([f"{group}: {key}", value])


def tasks(groups: Sequence[str], share: float) -> list[tuple[str, int, int]]:
    found = []
    for group in groups:
        make, most = GROUPS[group]
        many = max(int(most * share), 1) if most else 0
        found += [(group, many, i) for i in range(len(list(make(many))))]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file")
    parser.add_argument("--groups", default=",".join(GROUPS))
    parser.add_argument("--share", type=float, default=1.0)
    given = parser.parse_args()
    os.environ["DSE_CACHE"] = tempfile.mkdtemp(prefix="dse-replay-")  # nothing that was answered before
    with ProcessPoolExecutor(2, get_context("spawn")) as pool, open(given.file, "w") as out:
        for line in pool.map(answered, tasks(given.groups.split(","), given.share), chunksize=1):
            print(line, file=out, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
