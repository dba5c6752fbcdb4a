"""What fronts of machines and mappings find and cost beside runs of one objective, and what energy x delay of
whole networks saves over the sum of each einsum's least.

    python -m bench.fronts [--study studies/squeezenet.yaml] [--first 250,740] [--machines 10]
    python -m bench.fronts --edp squeezenet,resnet18 [--machine edge_array]
    python -m bench.fronts --rows 10000000,2 10000000,3 1000000,4    the macro pareto: rows, objectives

Machines: so many consecutive ones from each first one, solved in this process, one `solver.objective` after
the other. Hypervolume: of energy, latency and area, each scaled logarithmically to 0 .. 1 over all runs, up
to 1.1. Times: CPU seconds of one process.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from analysis import db
from dse.frontend import tables
from dse.mapper.exact.optimal import optimal_on
from dse.mapping.constraints import FREE
from dse.mapping.nest import Infeasible
from dse.sim.einsum.evaluate import EinsumCost, Problem
from dse.solve.front import lower_products
from dse.solve.options import SolverOptions
from dse.solve.solve import solve_unfused_on
from dse.study import pareto
from dse.study import study as studies
from hw import machine, space
from hw.arch import Arch
from workloads import catalog
from workloads.graph import Unique, unique

OBJECTIVES = ("energy", "latency", "edp", "front")


def compare_objectives(path: str, firsts: Sequence[int], count: int) -> None:
    """Prints a row per objective: its points, front, hypervolume and CPU seconds."""
    study = studies.load(path)
    batches = [
        [
            arch
            for at in range(first, first + count)
            if isinstance(arch := space.decode(study.space, at), Arch)
        ]
        for first in firsts
    ]
    points, seconds = dict[str, np.ndarray](), dict[str, float]()
    for objective in OBJECTIVES:
        options, rows, began = replace(study.solver, objective=objective), [], time.process_time()
        for arches in batches:
            answers = solve_unfused_on(arches, study.loaded_workloads[0], options)
            for arch, found in zip(arches, answers, strict=True):
                rows.extend(
                    (one.energy_pj, one.latency_cycles / arch.clock_ghz, arch.area_mm2())
                    for one in (found if isinstance(found, list) else ())
                )
        seconds[objective], points[objective] = time.process_time() - began, np.array(rows)
    scale = pareto.scaler(np.concatenate([*points.values()]))
    cells = [
        (
            objective,
            str(len(own)),
            str(int(pareto.front(own).sum())),
            f"{pareto.hypervolume(scale(own), np.full(3, 1.1)):.4f}",
            f"{seconds[objective]:.1f}",
            f"{seconds[objective] / seconds['energy']:.2f}",
        )
        for objective, own in points.items()
    ]
    head = ("objective", "points", "front", "hypervolume", "CPU s", "x energy")
    print(tables.table(head, cells, f"{path}: {sum(map(len, batches))} machines"))


def compare_products(names: Sequence[str], machine_name: str) -> None:
    """Prints a row per network: energy x latency of each einsum's least, and the least of the network."""
    arch, options = machine.arch(machine.load(machine_name)).unbounded(), SolverOptions(objective="edp")
    cells = []
    for name in names:
        groups, began = unique(catalog.load(name)), time.process_time()
        first = [
            optimal_on([Problem(arch, group.einsum, "edp")], options.factors, FREE, options.gap)[0]
            for group in groups
        ]
        alone_s = time.process_time() - began
        found = [one for one in first if not isinstance(one, Infeasible)]
        if len(found) < len(first):
            cells.append((name, str(len(groups)), "infeasible", "", "", "", ""))
            continue
        ((choice, gap),) = lower_products([arch], groups, options, [found])
        before, after = _product(groups, found), _product(groups, choice)
        all_s = time.process_time() - began
        saved = f"{100 * (1 - after / before):.3f} %"
        cells.append(
            (
                name,
                str(len(groups)),
                f"{before:.6g}",
                saved,
                f"{100 * gap:.2f} %",
                f"{alone_s:.1f}",
                f"{all_s:.1f}",
            )
        )
    head = ("network", "einsums", "pJ cycles", "saved", "gap", "CPU s of einsums", "CPU s")
    print(tables.table(head, cells, f"energy x latency on {machine_name}"))


def _product(groups: Sequence[Unique], costs: Sequence[EinsumCost]) -> float:
    pairs = list(zip(groups, costs, strict=True))
    energy = sum(group.occurrences * one.energy_pj for group, one in pairs)
    return energy * sum(group.occurrences * one.latency_cycles for group, one in pairs)


def time_rows(rows: int, objectives: int) -> None:
    """Prints the CPU seconds that the macro `pareto` takes for a table of uniform random numbers."""
    names = [f"o{i}" for i in range(objectives)]
    values = np.random.default_rng(0).random((rows, objectives))
    given = {"rows": pa.table({name: values[:, i] for i, name in enumerate(names)})}
    seconds = []
    for statement in ("SELECT count(*) FROM rows", f"SELECT count(*) AS n FROM pareto('rows', {names})"):
        began = time.process_time()
        found = db.query_tables(given, statement, seconds=3600)
        seconds.append(time.process_time() - began)
    front = found.column(0)[0].as_py()
    print(f"{rows:,} rows, {objectives} objectives, front {front}: {seconds[1] - seconds[0]:.2f} CPU s")


def main() -> None:
    """Reads the arguments and prints one of the tables."""
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("--study", default="studies/squeezenet.yaml")
    given.add_argument("--first", default="250,740")
    given.add_argument("--machines", type=int, default=10)
    given.add_argument("--edp", default="")
    given.add_argument("--machine", default="edge_array")
    given.add_argument("--rows", nargs="*", default=[])
    chosen = given.parse_args()
    if chosen.rows:
        for sizes in chosen.rows:
            time_rows(*map(int, sizes.split(",")))
    elif chosen.edp:
        compare_products(chosen.edp.split(","), chosen.machine)
    else:
        compare_objectives(chosen.study, [int(first) for first in chosen.first.split(",")], chosen.machines)


if __name__ == "__main__":
    main()
